//! What has to be put. Only addresses wait here, each once: what is known of one is looked up when it is put, so that
//! whoever is behind puts the newest, and the queue is no longer than the list. No socket, no clock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use super::share::Share;
use crate::model::{Address, RemoteState, Server};
use crate::registry::merge::LocalState;
use crate::registry::view::{Batch, Delta};

/// Records of the store that are remembered while it is read from the start.
const HELD_MAX: usize = 8_000_000;

/// Refused records that are remembered.
const REFUSED_MAX: usize = 1024;
/// Refused for this long, it is no hiccup.
const REFUSED_MS_MAX: u64 = 10_000;

#[derive(Default)]
pub struct Outbox {
    queue: VecDeque<Address>,
    /// Whether it is put even if it came from another node.
    waiting: HashMap<Address, bool>,
    /// What the store lacked when we came: put when there is nothing newer to say.
    backlog: Vec<Address>,
}

impl Outbox {
    pub fn push(&mut self, address: Address, whoever_knows: bool) {
        match self.waiting.get_mut(&address) {
            Some(whoever) => *whoever |= whoever_knows,
            None => {
                self.waiting.insert(address, whoever_knows);
                self.queue.push_back(address);
            }
        }
    }

    /// What changed here. Of what went, the registry knows whether others have to be told.
    pub fn note(&mut self, batch: &Batch) {
        for delta in &batch.deltas {
            match delta {
                Delta::Added(server) | Delta::Changed(server) | Delta::Proven(server) if server.foreign => {}
                Delta::Added(server) | Delta::Changed(server) | Delta::Proven(server) | Delta::Removed(server) => {
                    self.push(server.address, false);
                }
            }
        }
    }

    /// The next addresses to put, at most `most`.
    pub fn take(&mut self, most: usize) -> Vec<(Address, bool)> {
        let count = most.min(self.queue.len());
        let next = self.queue.drain(..count);
        next.map(|address| (address, self.waiting.remove(&address).unwrap_or(false))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Finds out what the store lacks: of what this node alone may know, and of what falls to it of all that is known.
    pub fn reconcile<'a>(
        &mut self,
        servers: impl IntoIterator<Item = &'a Server>,
        removals: impl IntoIterator<Item = Address>,
        held: &Held,
        share: &Share,
    ) {
        let lacks = |server: &&Server| (!server.foreign || share.is_mine(server.address)) && !held.has(server);
        self.backlog = servers.into_iter().filter(lacks).map(|server| server.address).collect();
        self.backlog.extend(removals);
    }

    /// Lets some of the backlog into the queue, if the queue is empty: no flood when the store is back.
    pub fn refill(&mut self, most: usize) {
        if self.is_empty() {
            for _ in 0..most {
                let Some(address) = self.backlog.pop() else { break };
                self.push(address, true);
            }
            self.backlog.shrink_to(1024);
        }
    }
}

/// What the store does not take, and since when. One failure is nothing: it is put again.
#[derive(Default)]
pub struct Refused {
    since_ms: HashMap<Address, u64>,
    /// Why, the last time.
    reason: String,
}

impl Refused {
    pub fn note(&mut self, address: Address, mono_ms: u64, reason: String) {
        self.reason = reason;
        if self.since_ms.len() < REFUSED_MAX {
            self.since_ms.entry(address).or_insert(mono_ms);
        }
    }

    /// It was taken at last, or there is nothing left to put.
    pub fn forget(&mut self, address: Address) {
        if !self.since_ms.is_empty() {
            self.since_ms.remove(&address);
        }
    }

    /// Why something has been refused for so long that the other nodes lack it.
    pub fn lasting(&self, mono_ms: u64) -> Option<&str> {
        let is_lasting = |since_ms: &u64| mono_ms.saturating_sub(*since_ms) >= REFUSED_MS_MAX;
        self.since_ms.values().any(is_lasting).then_some(&self.reason)
    }
}

/// Whether what is known here has to be put: it is news of this node, or there is nobody else to put it.
pub fn worth_putting(known: &LocalState, whoever_knows: bool) -> bool {
    whoever_knows || !known.foreign()
}

/// What the store holds, as it was read from the start: one number a record.
#[derive(Default)]
pub struct Held {
    hasher: RandomState,
    records: HashSet<u64>,
}

impl Held {
    pub fn note(&mut self, told: &RemoteState<'_>) {
        if let RemoteState::Listed(listed) = told
            && self.records.len() < HELD_MAX
        {
            let announce = &listed.announce;
            self.records.insert(self.number(announce.address, announce.proven_at_ms, listed.last_seen_ms));
        }
    }

    fn has(&self, server: &Server) -> bool {
        self.records.contains(&self.number(server.address, server.proven_at_ms, server.last_seen_ms))
    }

    fn number(&self, address: Address, proven_at_ms: u64, last_seen_ms: u64) -> u64 {
        self.hasher.hash_one((address, proven_at_ms, last_seen_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::node_id;
    use crate::model::{Facts, Game, Proof};
    use std::sync::Arc;

    fn server(port: u16, foreign: bool) -> Server {
        let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
        let server = Server::new(address, Game::Known("iceball"), Proof::Cookie, 5, &Facts::default());
        Server { foreign, ..server }
    }

    fn ports(taken: Vec<(Address, bool)>) -> Vec<u16> {
        taken.into_iter().map(|(address, _)| address.port()).collect()
    }

    #[test]
    fn each_address_waits_once_and_what_came_from_others_not_at_all() {
        let mut outbox = Outbox::default();
        let [own, foreign, gone] = [(1, false), (2, true), (3, true)].map(|(port, f)| Arc::new(server(port, f)));
        let deltas = vec![Delta::Added(own.clone()), Delta::Changed(own), Delta::Added(foreign), Delta::Removed(gone)];
        outbox.note(&Batch { serial: 1, deltas });
        assert_eq!(ports(outbox.take(1)), [1]);
        assert_eq!(ports(outbox.take(10)), [3]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_is_refused_for_long_is_told_from_what_is_put_again() {
        let mut refused = Refused::default();
        let [one, other] = [1, 2].map(|port| server(port, false).address);
        refused.note(one, 5_000, "no".into());
        refused.note(one, 9_000, "still no".into());
        assert_eq!(
            (refused.lasting(14_999), refused.lasting(15_000)),
            (None, Some("still no")),
            "since the first time"
        );
        refused.note(other, 9_000, "nor this".into());
        refused.forget(one);
        assert_eq!((refused.lasting(18_999), refused.lasting(19_000)), (None, Some("nor this")));
        refused.forget(other);
        assert_eq!(refused.lasting(100_000), None);
        (1..=2_000).for_each(|port| refused.note(server(port, false).address, 0, String::new()));
        assert_eq!(refused.since_ms.len(), REFUSED_MAX);
    }

    #[test]
    fn the_backlog_is_what_the_store_lacks_and_waits_for_its_turn() {
        let [own, other] = ["own", "other"].map(node_id);
        let share = Share::new(own);
        share.set_live(vec![own, other]);
        let mine = (10..).find(|port| share.is_mine(server(*port, true).address)).unwrap();
        let others = (10..).find(|port| !share.is_mine(server(*port, true).address)).unwrap();
        let servers = [server(1, false), server(2, false), server(mine, true), server(others, true)];
        let mut held = Held::default();
        held.records.insert(held.number(servers[1].address, 5, 5));
        let mut outbox = Outbox::default();
        outbox.reconcile(&servers, [server(9, false).address], &held, &share);
        outbox.push(server(8, false).address, false);
        outbox.refill(10);
        assert_eq!(ports(outbox.take(10)), [8], "what is new goes first");
        outbox.refill(1);
        assert_eq!(ports(outbox.take(10)), [9]);
        outbox.refill(10);
        assert_eq!(ports(outbox.take(10)), [mine, 1]);
        outbox.refill(10);
        assert!(outbox.is_empty());
    }
}

//! The queue of records to put. It holds only addresses, each once; the record is looked up when it is put, so that a slow
//! node puts the newest state and the queue is never longer than the list. No socket, no clock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use super::share::Share;
use crate::model::{Address, RemoteState, Server};
use crate::registry::merge::LocalState;
use crate::registry::view::{Batch, Delta};

/// Upper bound on [`StoredRecords`].
const STORED_MAX: usize = 8_000_000;

/// Upper bound on the rejected records that are remembered.
const REJECTED_MAX: usize = 1024;
/// A record rejected for this long is reported.
const REJECTED_MS_MAX: u64 = 10_000;

#[derive(Default)]
pub struct Outbox {
    queue: VecDeque<Address>,
    /// The queued addresses, and whether to put each even if its record came from another node.
    waiting: HashMap<Address, bool>,
    /// What the store lacked when the session began: put while the queue is empty.
    backlog: Vec<Address>,
}

impl Outbox {
    pub fn push(&mut self, address: Address, even_if_foreign: bool) {
        match self.waiting.get_mut(&address) {
            Some(queued) => *queued |= even_if_foreign,
            None => {
                self.waiting.insert(address, even_if_foreign);
                self.queue.push_back(address);
            }
        }
    }

    /// Queues local changes. For removals, the registry decides later whether the record has to be put.
    pub fn note(&mut self, batch: &Batch) {
        for delta in &batch.deltas {
            let server = delta.server();
            if !server.foreign || matches!(delta, Delta::Removed(_)) {
                self.push(server.address, false);
            }
        }
    }

    /// Takes up to `most` addresses.
    pub fn take(&mut self, most: usize) -> Vec<(Address, bool)> {
        let count = most.min(self.queue.len());
        let next = self.queue.drain(..count);
        next.map(|address| (address, self.waiting.remove(&address).unwrap_or(false))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Computes the backlog: the records that the store lacks, as far as they are this node's own or in its share.
    pub fn reconcile<'a>(
        &mut self,
        servers: impl IntoIterator<Item = &'a Server>,
        removals: impl IntoIterator<Item = Address>,
        stored: &StoredRecords,
        share: &Share,
    ) {
        let lacks = |server: &&Server| (!server.foreign || share.is_mine(server.address)) && !stored.contains(server);
        self.backlog = servers.into_iter().filter(lacks).map(|server| server.address).collect();
        self.backlog.extend(removals);
    }

    /// Moves some of the backlog into an empty queue. Limited, so that a store that is back is not flooded.
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

/// Records that the store rejects, and since when. They are put again; only a lasting rejection is reported.
#[derive(Default)]
pub struct RejectedPuts {
    since_ms: HashMap<Address, u64>,
    /// Of the latest rejection.
    reason: String,
}

impl RejectedPuts {
    pub fn note(&mut self, address: Address, mono_ms: u64, reason: String) {
        self.reason = reason;
        if self.since_ms.len() < REJECTED_MAX {
            self.since_ms.entry(address).or_insert(mono_ms);
        }
    }

    /// The record was accepted, or there is nothing left to put.
    pub fn forget(&mut self, address: Address) {
        if !self.since_ms.is_empty() {
            self.since_ms.remove(&address);
        }
    }

    /// The reason, if any record has been rejected for [`REJECTED_MS_MAX`].
    pub fn lasting(&self, mono_ms: u64) -> Option<&str> {
        let is_lasting = |since_ms: &u64| mono_ms.saturating_sub(*since_ms) >= REJECTED_MS_MAX;
        self.since_ms.values().any(is_lasting).then_some(&self.reason)
    }
}

/// Whether a record has to be put by this node: it is its own, or it was queued regardless of its origin.
pub fn must_put(local: &LocalState, even_if_foreign: bool) -> bool {
    even_if_foreign || !local.foreign()
}

/// The records that the store held when the session began: one hash per record.
#[derive(Default)]
pub struct StoredRecords {
    hasher: RandomState,
    records: HashSet<u64>,
}

impl StoredRecords {
    pub fn note(&mut self, remote: &RemoteState<'_>) {
        if let RemoteState::Listed(listed) = remote
            && self.records.len() < STORED_MAX
        {
            let announce = &listed.announce;
            self.records.insert(self.hash(announce.address, announce.proven_at_ms, listed.last_seen_ms));
        }
    }

    fn contains(&self, server: &Server) -> bool {
        self.records.contains(&self.hash(server.address, server.proven_at_ms, server.last_seen_ms))
    }

    fn hash(&self, address: Address, proven_at_ms: u64, last_seen_ms: u64) -> u64 {
        self.hasher.hash_one((address, proven_at_ms, last_seen_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::node_id;
    use crate::model::{Facts, Fields, Game, Proof};
    use std::sync::Arc;

    fn server(port: u16, foreign: bool) -> Server {
        let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
        let server = Server::new(address, Game::Own("iceball"), Proof::Cookie, 5, &Facts::default());
        Server { foreign, ..server }
    }

    fn ports(taken: Vec<(Address, bool)>) -> Vec<u16> {
        taken.into_iter().map(|(address, _)| address.port()).collect()
    }

    #[test]
    fn each_address_is_queued_once_and_foreign_ones_not_at_all() {
        let mut outbox = Outbox::default();
        let [own, foreign, gone] = [(1, false), (2, true), (3, true)].map(|(port, f)| Arc::new(server(port, f)));
        let deltas = vec![
            Delta::Added(own.clone()),
            Delta::Changed { now: own.clone(), before: own, fields: Fields::NAME },
            Delta::Added(foreign),
            Delta::Removed(gone),
        ];
        outbox.note(&Batch { serial: 1, deltas });
        assert_eq!(ports(outbox.take(1)), [1]);
        assert_eq!(ports(outbox.take(10)), [3]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn only_a_lasting_rejection_is_reported() {
        let mut rejected = RejectedPuts::default();
        let [one, other] = [1, 2].map(|port| server(port, false).address);
        rejected.note(one, 5_000, "no".into());
        rejected.note(one, 9_000, "still no".into());
        assert_eq!(
            (rejected.lasting(14_999), rejected.lasting(15_000)),
            (None, Some("still no")),
            "since the first time"
        );
        rejected.note(other, 9_000, "not this either".into());
        rejected.forget(one);
        assert_eq!((rejected.lasting(18_999), rejected.lasting(19_000)), (None, Some("not this either")));
        rejected.forget(other);
        assert_eq!(rejected.lasting(100_000), None);
        (1..=2_000).for_each(|port| rejected.note(server(port, false).address, 0, String::new()));
        assert_eq!(rejected.since_ms.len(), REJECTED_MAX);
    }

    #[test]
    fn the_backlog_is_what_the_store_lacks_and_waits_for_an_empty_queue() {
        let [own, other] = ["own", "other"].map(node_id);
        let share = Share::new(own);
        share.set_live(vec![own, other]);
        let mine = (10..).find(|port| share.is_mine(server(*port, true).address)).unwrap();
        let others = (10..).find(|port| !share.is_mine(server(*port, true).address)).unwrap();
        let servers = [server(1, false), server(2, false), server(mine, true), server(others, true)];
        let mut stored = StoredRecords::default();
        stored.records.insert(stored.hash(servers[1].address, 5, 5));
        let mut outbox = Outbox::default();
        outbox.reconcile(&servers, [server(9, false).address], &stored, &share);
        outbox.push(server(8, false).address, false);
        outbox.refill(10);
        assert_eq!(ports(outbox.take(10)), [8], "new changes before the backlog");
        outbox.refill(1);
        assert_eq!(ports(outbox.take(10)), [9]);
        outbox.refill(10);
        assert_eq!(ports(outbox.take(10)), [mine, 1]);
        outbox.refill(10);
        assert!(outbox.is_empty());
    }
}

//! Several nodes as one master: they exchange records through a store that is slow, loses some puts and stores others twice.
//! `src/cluster/simulation.rs` has the exact invariants of the records; here they travel beside everything else.

use rallypoint::cluster::clock::{self, Offset};
use rallypoint::cluster::outbox::{Outbox, StoredRecords, must_put};
use rallypoint::cluster::record::{self, node_id};
use rallypoint::cluster::share::{NODE_GONE_MS, Share};
use rallypoint::model::{Change, RemoteState, SharedTime};
use rallypoint::protocols::section::Cookies;
use rallypoint::registry::Outcome;

use super::*;

pub const NAMES: [&str; 3] = ["ann", "bob", "cid"];
/// Upper bound on the time until a record that was put is read by the others.
pub const EXCHANGE_MS: u64 = 2_000;
/// Records put at once, and taken from the backlog.
const PUTS: usize = 100;

/// A node's part in the cluster.
pub struct Member {
    pub name: &'static str,
    pub share: Arc<Share>,
    pub outbox: Outbox,
    time: SharedTime,
    /// How many records it has read; None until it connects.
    read: Option<usize>,
    pub connected_ms: u64,
}

impl Member {
    pub fn new(number: usize) -> Member {
        let name = NAMES[number];
        let share = Arc::new(Share::new(node_id(name)));
        let (time, outbox) = (SharedTime::default(), Outbox::default());
        Member { name, share, outbox, time, read: None, connected_ms: u64::MAX }
    }
}

/// A record in the store.
#[derive(Clone)]
pub struct Entry {
    address: Address,
    value: Vec<u8>,
    created_ms: u64,
}

impl World {
    /// A node reaches the store: it learns the time, reads all records and puts those that are missing.
    pub(super) fn connect_node(&mut self, number: usize) {
        let (ms, keys) = (self.ms, self.keys);
        let last: BTreeMap<Address, Entry> = self.entries.iter().map(|entry| (entry.address, entry.clone())).collect();
        let (stored_to, mut stored) = (self.entries.len(), StoredRecords::default());
        let machine = &mut self.machines[number];
        let (Some(node), Some(member)) = (&mut machine.node, &mut machine.member) else { return };
        let now = node.hub.clock.now();
        member.time = clock::measured(member.time, now.mono_ms, EPOCH_MS + ms, now);
        node.hub.set_time(member.time);
        node.set_cookies(Cookies { keys, time: member.time });
        for entry in last.into_values() {
            if let Some(remote) = take(node, member, &entry) {
                stored.note(&remote);
            }
        }
        (member.read, member.connected_ms) = (Some(stored_to), ms);
        let (view, removals) = (node.hub.view(), node.hub.own_removals(0));
        member.outbox.reconcile(view.servers.iter().map(|server| &**server), removals, &stored, &member.share);
        member.outbox.refill(PUTS);
        self.soon(number);
        self.plan_at(ms + 1_000, Event::Live);
    }

    /// Puts what has changed.
    pub(super) fn put_records(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        let (Some(node), Some(member)) = (&machine.node, &mut machine.member) else { return };
        let batches = std::mem::take(&mut *node.unshared.borrow_mut());
        if member.read.is_none() {
            return; // `connect_node` finds what the store lacks
        }
        batches.iter().for_each(|batch| member.outbox.note(batch));
        member.outbox.refill(PUTS);
        let now = node.hub.clock.now();
        let mut puts = Vec::new();
        for (address, even_if_foreign) in member.outbox.take(PUTS) {
            let known = node.hub.local_states([address], now).pop().flatten();
            if let Some(known) = known.filter(|known| must_put(known, even_if_foreign)) {
                let value = record::encode(member.name, now.unix_ms, &known, Offset::at(member.time, now));
                puts.push((Entry { address, value, created_ms: 0 }, even_if_foreign));
            }
        }
        for (entry, even_if_foreign) in puts {
            if self.rng.one_in(20)
                && let Some(member) = &mut self.machines[number].member
            {
                member.outbox.push(entry.address, even_if_foreign); // not acknowledged
                if self.rng.one_in(2) {
                    continue; // and not stored
                }
            }
            let at_ms = self.ms + self.rng.between(1, EXCHANGE_MS / 4);
            self.plan_at(at_ms, Event::Put(Box::new(entry)));
        }
    }

    pub(super) fn stored(&mut self, entry: Entry) {
        self.counts.records += 1;
        self.entries.push(Entry { created_ms: EPOCH_MS + self.ms, ..entry });
        for node in 0..self.machines.len() {
            let at_ms = self.ms + self.rng.between(1, EXCHANGE_MS / 4);
            self.plan_at(at_ms, Event::Read { node });
        }
    }

    pub(super) fn read_records(&mut self, number: usize) {
        let Machine { node: Some(node), member: Some(member), .. } = &mut self.machines[number] else { return };
        let Some(read) = member.read.replace(self.entries.len()) else {
            member.read = None;
            return;
        };
        for entry in self.entries.iter().skip(read) {
            take(node, member, entry);
        }
        self.soon(number);
    }

    /// All nodes learn which of them are alive.
    pub(super) fn tell_live(&mut self) {
        let is_live = |machine: &&Machine| machine.node.is_some() || self.ms < machine.stopped_ms + NODE_GONE_MS;
        let live: Vec<u32> = self
            .machines
            .iter()
            .filter(is_live)
            .filter_map(|machine| machine.member.as_ref())
            .map(|member| node_id(member.name))
            .collect();
        for machine in &self.machines {
            if let Some(member) = &machine.member {
                member.share.set_live(live.clone());
            }
        }
        self.shared_ms = self.ms;
    }
}

/// A node takes another's record.
fn take(node: &Node, member: &mut Member, entry: &Entry) -> Option<RemoteState<'static>> {
    let now = node.hub.clock.now();
    let record = record::decode(entry.address, &entry.value).unwrap();
    if record.by == member.name && member.read.is_some() {
        return None;
    }
    let (remote, _) = record.into_local_time(entry.created_ms, Offset::at(member.time, now), now);
    let outcome = node.hub.apply_one(&Change::Merge(Box::new(remote.clone())), now);
    let known = node.hub.local_states([entry.address], now).pop().flatten();
    if outcome == Outcome::Stale && known.is_some_and(|known| known.is_ahead_of(&remote)) {
        member.outbox.push(entry.address, true);
    }
    Some(remote)
}

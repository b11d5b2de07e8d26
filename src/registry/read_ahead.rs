//! Fetches what changes are about to touch into the processor's cache.

use std::hash::BuildHasher;

use arrayvec::ArrayVec;

use super::{Registry, Slot};
use crate::model::{Address, Announce, Change, Server};

/// Entries to prefetch at once: as many as a batch of datagrams can announce.
const READ_AHEAD: usize = 64;

impl Registry {
    /// Prefetches the entries of changes that are about to be applied. With a million entries, nearly every lookup has
    /// several cache misses; here they overlap.
    pub fn read_ahead<'a>(&self, changes: impl IntoIterator<Item = &'a Change<'a>>) {
        let mut hashed = ArrayVec::<(u64, Address), READ_AHEAD>::new();
        for change in changes.into_iter().take(READ_AHEAD) {
            let address = match change {
                Change::Announce(Announce { address, .. }) => *address,
                Change::Merge(remote) => remote.address(),
                _ => continue,
            };
            hashed.push((self.hasher.hash_one(address), address));
        }
        let found: ArrayVec<&Slot, READ_AHEAD> = hashed
            .iter()
            .filter_map(|&(hash, address)| self.slots.get(self.find_hashed(hash, address)? as usize))
            .collect();
        let servers: ArrayVec<&Server, READ_AHEAD> = found.iter().filter_map(|slot| slot.server.as_deref()).collect();
        // Something of each cache line of a server, and its texts.
        let lines = servers.iter().fold(0, |read, server| {
            read ^ server.proven_at_ms ^ u64::from(server.life_ms) ^ server.verified_by as u64 ^ server.first_seen_ms
        });
        std::hint::black_box(servers.iter().fold(lines as usize, |read, server| read ^ server.texts.version().len()));
    }
}

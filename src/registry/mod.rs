//! What is known of every server, and for how long. One door, [`Registry::apply`]; time comes in as an argument.
//!
//! The registry holds an entry only for what has been proven. It remembers which entries changed since the last
//! [`Registry::drain`]; [`view`] turns those into the published list and its deltas.

pub mod view;
mod wheel;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::model::{Address, Announce, Change, Now, OperatorWord, Server, Texts};
use wheel::Wheel;

/// A stamp this far ahead of now was made before the clock was set back, and stands in nobody's way.
const SKEW_MAX_MS: u64 = 5_000;
/// A proof that changed nothing else is published again when the published one is this part of a life old.
const REPUBLISH_PART: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub servers_max: usize,
    pub servers_per_ip_max: u32,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Added,
    Changed,
    /// Proven again, nothing new to say.
    Refreshed,
    /// Older than what is known already, or the very same: ignored.
    Stale,
    Refused(Refusal),
}

/// Why a proven server is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The list has as many servers as the operator allows.
    Full,
    /// Its IP address has as many servers as the operator allows.
    FullForIp,
    /// The operator's configuration names another game at this address.
    OtherGameConfigured,
    /// Its life had ended when the proof arrived.
    Late,
}

/// An entry's changed state since the last drain: what its slot holds now.
pub type Dirty = (u32, Option<Arc<Server>>);

pub struct Registry {
    limits: Limits,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_address: HashTable<u32>,
    hasher: RandomState,
    per_ip: HashMap<IpAddr, u32>,
    wheel: Wheel,
    words: HashMap<Address, OperatorWord>,
    dirty: Vec<u32>,
}

struct Slot {
    server: Option<Arc<Server>>,
    address: Address,
    /// When its life ends, monotonic.
    end_ms: u64,
    /// The newest proof; `server.proven_at_ms` is the published one.
    proven_at_ms: u64,
    /// The tick of the wheel that this slot waits in; items of other ticks are left-overs.
    tick: u64,
    dirty: bool,
}

impl Registry {
    pub fn new(limits: Limits, now: Now) -> Registry {
        Registry {
            limits,
            slots: Vec::new(),
            free: Vec::new(),
            by_address: HashTable::new(),
            hasher: RandomState::new(),
            per_ip: HashMap::new(),
            wheel: Wheel::new(now.mono_ms),
            words: HashMap::new(),
            dirty: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Lower limits take nobody off the list; they hold for newcomers.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub fn apply(&mut self, change: &Change<'_>, now: Now) -> Outcome {
        match change {
            Change::Announce(announce) => self.announce(announce, now),
            Change::Words(words) => self.set_words(words),
        }
    }

    /// Ends lives, at most `most` of them so that a caller with a lock can let others in; true if some are left.
    pub fn expire(&mut self, now: Now, most: usize) -> bool {
        for _ in 0..most {
            let Some((tick, at)) = self.wheel.pop_due(now.mono_ms) else { return false };
            let Some(slot) = self.slots.get(at as usize) else { continue };
            if slot.server.is_none() || slot.tick != tick {
                continue;
            }
            if slot.end_ms <= now.mono_ms {
                self.remove(at);
            } else {
                self.queue(at);
            }
        }
        true
    }

    /// Whether anything changed since the last drain.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Moves what changed since the last drain to `out`: each slot once, in its present state.
    pub fn drain(&mut self, out: &mut Vec<Dirty>) {
        for at in self.dirty.drain(..) {
            if let Some(slot) = self.slots.get_mut(at as usize) {
                slot.dirty = false;
                out.push((at, slot.server.clone()));
            }
        }
        self.dirty.shrink_to(1024);
    }

    fn announce(&mut self, announce: &Announce<'_>, now: Now) -> Outcome {
        let age_ms = now.unix_ms.saturating_sub(announce.proven_at_ms);
        if age_ms >= announce.life_ms {
            return Outcome::Refused(Refusal::Late);
        }
        let end_ms = now.mono_ms + announce.life_ms - age_ms;
        match self.find(announce.address) {
            Some(at) => self.renew(at, announce, end_ms, now),
            None => self.add(announce, end_ms),
        }
    }

    fn add(&mut self, announce: &Announce<'_>, end_ms: u64) -> Outcome {
        let address = announce.address;
        let word = self.words.get(&address);
        if word.is_some_and(|word| word.game != announce.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        if self.len() >= self.limits.servers_max {
            return Outcome::Refused(Refusal::Full);
        }
        let on_ip = self.per_ip.entry(address.ip()).or_default();
        if *on_ip >= self.limits.servers_per_ip_max && word.is_none() {
            return Outcome::Refused(Refusal::FullForIp);
        }
        *on_ip += 1;
        let server = Server {
            address,
            game: announce.game.clone(),
            texts: Texts::new(&announce.facts),
            players_current: announce.facts.players_current,
            players_max: announce.facts.players_max,
            word: word.map(|word| word.word).unwrap_or_default(),
            verified_by: announce.proof,
            proven_at_ms: announce.proven_at_ms,
            first_seen_ms: announce.proven_at_ms,
        };
        let slot = Slot {
            server: Some(Arc::new(server)),
            address,
            end_ms,
            proven_at_ms: announce.proven_at_ms,
            tick: 0,
            dirty: false,
        };
        let at = self.place(slot);
        let Registry { by_address, slots, hasher, .. } = self;
        by_address.insert_unique(hasher.hash_one(address), at, |&at| {
            slots.get(at as usize).map_or(0, |slot| hasher.hash_one(slot.address))
        });
        self.queue(at);
        self.mark(at);
        Outcome::Added
    }

    fn place(&mut self, slot: Slot) -> u32 {
        if let Some(at) = self.free.pop()
            && let Some(place) = self.slots.get_mut(at as usize)
        {
            // What was here before may still wait to be drained; the slot is then on that list already.
            *place = Slot { dirty: place.dirty, ..slot };
            return at;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    fn renew(&mut self, at: u32, announce: &Announce<'_>, end_ms: u64, now: Now) -> Outcome {
        let Some(slot) = self.slots.get_mut(at as usize) else { return Outcome::Stale };
        let Some(server) = &mut slot.server else { return Outcome::Stale };
        let from_the_future = slot.proven_at_ms > now.unix_ms + SKEW_MAX_MS;
        if announce.proven_at_ms <= slot.proven_at_ms && !from_the_future {
            return Outcome::Stale;
        }
        let same_game = server.game == announce.game;
        if !same_game && self.words.get(&announce.address).is_some_and(|word| word.game != announce.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        slot.end_ms = end_ms;
        slot.proven_at_ms = announce.proven_at_ms;
        let sooner = self.wheel.tick_for(end_ms) < slot.tick;

        let unchanged = same_game && server.verified_by == announce.proof && server.says(&announce.facts);
        let published_age_ms = announce.proven_at_ms.abs_diff(server.proven_at_ms);
        let outcome = if unchanged { Outcome::Refreshed } else { Outcome::Changed };
        if !unchanged || published_age_ms >= announce.life_ms / REPUBLISH_PART {
            let first_seen_ms = if same_game { server.first_seen_ms } else { announce.proven_at_ms };
            let word = self.words.get(&announce.address).map(|word| word.word).unwrap_or_default();
            *server = Arc::new(Server {
                address: announce.address,
                game: announce.game.clone(),
                texts: if unchanged { server.texts.clone() } else { Texts::new(&announce.facts) },
                players_current: announce.facts.players_current,
                players_max: announce.facts.players_max,
                word,
                verified_by: announce.proof,
                proven_at_ms: announce.proven_at_ms,
                first_seen_ms,
            });
            self.mark(at);
        }
        if sooner {
            self.queue(at);
        }
        outcome
    }

    fn set_words(&mut self, words: &[OperatorWord]) -> Outcome {
        let mut touched: Vec<Address> = self.words.drain().map(|(address, _)| address).collect();
        self.words.extend(words.iter().map(|word| (word.address, word.clone())));
        touched.extend(words.iter().map(|word| word.address));
        let mut outcome = Outcome::Refreshed;
        for address in touched {
            let Some(at) = self.find(address) else { continue };
            let word = self.words.get(&address);
            let Some(Slot { server: Some(server), .. }) = self.slots.get_mut(at as usize) else { continue };
            if word.is_some_and(|word| word.game != server.game) {
                // The operator now says that another game is there.
                self.remove(at);
                outcome = Outcome::Changed;
                continue;
            }
            let word = word.map(|word| word.word).unwrap_or_default();
            if server.word != word {
                *server = Arc::new(Server { word, ..Server::clone(server) });
                self.mark(at);
                outcome = Outcome::Changed;
            }
        }
        outcome
    }

    fn remove(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        slot.server = None;
        let address = slot.address;
        if let Ok(entry) = self.by_address.find_entry(self.hasher.hash_one(address), |&other| other == at) {
            entry.remove();
        }
        if let Some(count) = self.per_ip.get_mut(&address.ip()) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_ip.remove(&address.ip());
            }
        }
        self.free.push(at);
        self.mark(at);
    }

    fn find(&self, address: Address) -> Option<u32> {
        let is_it = |&at: &u32| self.slots.get(at as usize).is_some_and(|slot| slot.address == address);
        self.by_address.find(self.hasher.hash_one(address), is_it).copied()
    }

    fn queue(&mut self, at: u32) {
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.tick = self.wheel.tick_for(slot.end_ms);
            self.wheel.add(slot.tick, at);
        }
    }

    fn mark(&mut self, at: u32) {
        if let Some(slot) = self.slots.get_mut(at as usize)
            && !slot.dirty
        {
            slot.dirty = true;
            self.dirty.push(at);
        }
    }
}

#[cfg(test)]
mod tests;

//! The registry: the state and the life of every server. All changes go through [`Registry::apply`]; time is an argument.
//!
//! Only proven servers have an entry. The registry remembers which entries changed since the last [`Registry::drain`];
//! [`view`] turns those into the published list and its deltas.

mod asks;
mod limits;
pub mod merge;
mod mirror;
mod moderation;
pub mod networks;
pub mod per_game;
mod read_ahead;
pub mod recent;
mod restore;
pub mod servers;
mod shares;
mod silence;
mod updates;
pub mod view;
mod wheel;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

use crate::model::{
    Address, Announce, Change, Facts, NamedServer, Now, Proof, Server, SharedTime, Silence, Strength, round_trip,
};
pub use asks::Due;
use merge::Removals;
use mirror::MirroredSlots;
use moderation::Moderation;
use per_game::PerGame;
pub use restore::Life;
use restore::Unsettled;
use shares::Shares;
use silence::{Silent, announced_ms};
use wheel::{Tick, Wheel};

/// A timestamp this far ahead of now was made before the clock was set back, and is ignored.
const SKEW_MAX_MS: u64 = 5_000;
/// A proof that changed nothing is published when the published one is older than 1/4 of a life.
const REPUBLISH_PART: u64 = 4;
/// How often a named server whose life has ended is checked.
const NAMED_CHECK_MS: u64 = 60_000;

/// The registry's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub servers_max: usize,
    /// What all servers together may take, in bytes.
    pub bytes_max: usize,
    pub servers_per_ip_max: u32,
    /// Interval between two queries to a server.
    pub ask_every_ms: u64,
    /// A server is removed from the list after this many unanswered queries in a row.
    pub misses_max: u8,
    /// A server that announces itself stays listed for so long after its last answer; 0: it is removed like any other.
    pub grace_ms: u64,
}

impl Settings {
    /// No bounds, and the default intervals: for what needs only some of them.
    pub const UNBOUNDED: Settings = Settings {
        servers_max: usize::MAX,
        bytes_max: usize::MAX,
        servers_per_ip_max: u32::MAX,
        ask_every_ms: 30_000,
        misses_max: 3,
        grace_ms: 0,
    };
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Added,
    Changed,
    /// Proven again, without other changes.
    Refreshed,
    /// Not newer than the known state: ignored.
    Stale,
    Refused(Refusal),
}

/// Why a proven server is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The list or its memory is full, and no network holds more than its own would hold.
    Full,
    /// Its IP address (IPv6 /64) has reached its limit.
    FullForIp,
    /// A wider network around its address has reached its limit, and no address in it has more servers than its own would have.
    FullForNetwork,
    /// The network around its address has as many servers of its game as the operator allows, and no address there has more of them.
    FullForGame,
    /// The operator's configuration names another game at this address.
    OtherGameConfigured,
    /// Its life had ended when the proof arrived.
    Late,
    /// It is not listed, so there is nothing to renew.
    NotListed,
    /// A server with a stronger proof is listed at this address.
    StrongerProof,
    /// The operator has banned its address.
    Banned,
    /// The operator keeps this server off the list.
    Unlisted,
    /// The operator keeps servers of such a name off the list.
    Hidden,
}

/// An entry's changed state since the last drain: the slot, and what is listed there now.
pub type Dirty = (u32, Option<Arc<Server>>);

/// The state of an address, listed or not.
#[derive(Clone, Debug)]
pub struct AddressState {
    pub server: Arc<Server>,
    pub listed: bool,
    /// Unanswered queries in a row.
    pub misses: u8,
    pub proven_at_ms: u64,
    pub life_left_ms: u64,
}

pub struct Registry {
    settings: Settings,
    /// This node's tag; 0 without a cluster.
    node: u8,
    /// The cluster's time, and what to correct when it becomes known.
    time: SharedTime,
    unsettled: Unsettled,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_address: HashTable<u32>,
    hasher: RandomState,
    /// Decides when servers that arrive together are queried: see [`Registry::spread_ms`].
    spread_key: u64,
    shares: Shares,
    per_game: PerGame,
    ends: Wheel,
    asks: Wheel,
    named: HashMap<Address, NamedServer>,
    removals: Removals,
    mirrored: MirroredSlots,
    moderation: Moderation,
    dirty: Vec<u32>,
    /// By slot: identifies the answer whose facts are those of the server, or 0. As long as the last slot that had one.
    digests: Vec<u64>,
    silent: Silent,
}

/// In a cache line of its own.
#[repr(align(64))]
struct Slot {
    server: Option<Arc<Server>>,
    address: Address,
    /// When its life ends, monotonic. A named server stays longer.
    end_ms: u64,
    /// The newest proof; `server.proven_at_ms` is the published one.
    proven_at_ms: u64,
    /// The ticks at which this slot is due in either wheel; items with other ticks are obsolete.
    end_tick: Tick,
    ask_tick: Tick,
    /// For a restored server that was not refreshed since: the end of its life without the grace period, in seconds of the
    /// cluster's time. 0 for all others.
    restored_end_s: u32,
    /// Unanswered queries in a row.
    misses: u8,
    asked: bool,
    /// Whether readers see it. A server that no longer answers is kept until its life ends, for the doctor.
    listed: bool,
    /// Whether it counts for limits: named servers do not.
    counted: bool,
    /// Whether it is counted as proven by a cookie.
    cookie_proven: bool,
    /// Whether it is counted as mirrored.
    mirrored: bool,
    dirty: bool,
}

/// Whether a timestamp is from before the clock was set back, or from a clock that is ahead. Such timestamps are ignored.
fn is_from_the_future(stamp_ms: u64, now: Now) -> bool {
    stamp_ms > now.unix_ms + SKEW_MAX_MS
}

impl Registry {
    pub fn new(settings: Settings, now: Now) -> Registry {
        let hasher = RandomState::new();
        Registry {
            settings,
            node: 0,
            time: SharedTime::default(),
            unsettled: Unsettled::default(),
            slots: Vec::new(),
            free: Vec::new(),
            by_address: HashTable::new(),
            spread_key: hasher.hash_one(0),
            hasher,
            shares: Shares::default(),
            per_game: PerGame::default(),
            ends: Wheel::new(now.mono_ms),
            asks: Wheel::new(now.mono_ms),
            named: HashMap::new(),
            removals: Removals::default(),
            mirrored: MirroredSlots::default(),
            moderation: Moderation::default(),
            dirty: Vec::new(),
            digests: Vec::new(),
            silent: Silent::default(),
        }
    }

    /// Replaces the random times of queries, so that a simulation can be repeated.
    pub fn set_spread_key(&mut self, key: u64) {
        self.spread_key = key;
    }

    /// Entries, listed or not.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Lower limits of places remove no servers; they apply to newcomers. Servers that take more than there is memory for go.
    pub fn set_settings(&mut self, settings: Settings, now: Now) {
        let interval_changed = settings.ask_every_ms != self.settings.ask_every_ms;
        self.settings = settings;
        if interval_changed {
            for at in 0..self.slots.len() as u32 {
                self.queue_ask(at, now.mono_ms + self.spread_ms(at));
            }
        }
        self.shed();
    }

    pub fn apply(&mut self, change: &Change<'_>, now: Now) -> Outcome {
        let outcome = self.apply_whole(change, now);
        self.shed();
        outcome
    }

    fn apply_whole(&mut self, change: &Change<'_>, now: Now) -> Outcome {
        match change {
            Change::Announce(announce) => self.announce(announce, now),
            Change::Mirror(mirrored) => self.mirror(mirrored, now),
            Change::Heartbeat { address, game, life_ms, keys } => self.heartbeat(*address, game, *life_ms, keys, now),
            Change::Announcing { address, protocol } => self.announcing(*address, protocol, now),
            Change::Answer { address, game, rtt_us, facts, digest } => {
                self.answer(*address, game, *rtt_us, facts.as_ref(), *digest, now)
            }
            Change::Miss { address, game, proven_at_ms } => self.miss(*address, game, *proven_at_ms, now),
            Change::Quit { address, master, proven } => self.quit(*address, *master, *proven, now),
            Change::Restore { .. } => self.restore(change, now),
            Change::Merge(remote) => self.merge(remote, now),
            Change::NamedServers(named) => self.set_named_servers(named, now),
        }
    }

    /// The listed server at an address.
    pub fn listed(&self, address: Address) -> Option<&Arc<Server>> {
        let slot = self.slots.get(self.find(address)? as usize)?;
        slot.server.as_ref().filter(|_| slot.listed)
    }

    /// The state of an address, listed or not.
    pub fn address_state(&self, address: Address, now: Now) -> Option<AddressState> {
        let slot = self.slots.get(self.find(address)? as usize)?;
        Some(AddressState {
            server: slot.server.clone()?,
            listed: slot.listed,
            misses: slot.misses,
            proven_at_ms: slot.proven_at_ms,
            life_left_ms: slot.end_ms.saturating_sub(now.mono_ms),
        })
    }

    /// Removes up to `most` expired servers, so that a caller can release its lock in between. True if some may be left.
    pub fn expire(&mut self, now: Now, most: usize) -> bool {
        for _ in 0..most {
            let Some((tick, at)) = self.ends.pop_due(now.mono_ms) else { return false };
            let Some(slot) = self.slots.get(at as usize) else { continue };
            if slot.server.is_none() || slot.end_tick != tick {
                continue;
            }
            if slot.end_ms > now.mono_ms {
                self.queue_end(at, slot.end_ms);
            } else if self.is_named(slot.address) {
                self.queue_end(at, now.mono_ms + NAMED_CHECK_MS);
            } else {
                self.remove(at);
            }
        }
        true
    }

    /// Removes every entry that `keep` rejects.
    #[cfg(test)]
    pub fn retain(&mut self, keep: impl Fn(Address) -> bool) {
        let gone = |slot: &Slot| slot.server.is_some() && !keep(slot.address);
        let gone: Vec<u32> = (0u32..).zip(&self.slots).filter(|(_, slot)| gone(slot)).map(|(at, _)| at).collect();
        gone.into_iter().for_each(|at| self.remove(at));
    }

    /// Whether anything changed since the last drain.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Moves the changes since the last drain to `out`: each slot once, in its current state.
    pub fn drain(&mut self, out: &mut Vec<Dirty>) {
        out.reserve(self.dirty.len());
        for at in self.dirty.drain(..) {
            if let Some(slot) = self.slots.get_mut(at as usize) {
                slot.dirty = false;
                out.push((at, slot.server.clone().filter(|_| slot.listed)));
            }
        }
        self.dirty.shrink_to(1024);
    }

    fn announce(&mut self, announce: &Announce<'_>, now: Now) -> Outcome {
        let age_ms = now.unix_ms.saturating_sub(announce.proven_at_ms);
        if age_ms >= announce.life_ms {
            return Outcome::Refused(Refusal::Late);
        }
        if self.named.get(&announce.address).is_some_and(|named| named.game != announce.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        let strength = announce.proof.strength();
        if let Some(refusal) =
            self.refuses(announce.address, &announce.facts.name, strength, announce.proven_at_ms, now)
        {
            return Outcome::Refused(refusal);
        }
        let end_ms = now.mono_ms + announce.life_ms - age_ms;
        match self.find(announce.address) {
            Some(at) => self.renew(at, announce, end_ms, now),
            None => self.add(announce, end_ms, now),
        }
    }

    fn add(&mut self, announce: &Announce<'_>, end_ms: u64, now: Now) -> Outcome {
        let server = Server { node: self.node, ..Server::announced(announce) };
        if !self.named.contains_key(&announce.address)
            && let Err(refusal) = self.admit(&server)
        {
            return Outcome::Refused(refusal);
        }
        self.removals.forget(announce.address, announce.proof.strength());
        let at = self.insert(server, end_ms, announce.asked, true);
        if announce.asked {
            // A cookie is no answer to a query: what only an answer says, like the name, is asked for at once.
            let is_answer = announce.proof != Proof::Cookie;
            let wait_ms = if is_answer { self.spread_ms(at) } else { 0 };
            self.queue_ask(at, now.mono_ms + wait_ms);
            if is_answer && announce.rtt_us.is_none() {
                self.delay_query(at, now);
            }
        }
        Outcome::Added
    }

    /// Whether this slot has a listed, live server with a stronger proof. One that no longer answers does not count.
    fn has_stronger_proof(&self, at: u32, strength: Strength, now: Now) -> bool {
        let Some(slot) = self.slots.get(at as usize) else { return false };
        slot.server.as_ref().is_some_and(|server| strength < server.strength())
            && slot.listed
            && (slot.end_ms > now.mono_ms || self.is_named(slot.address))
    }

    /// Renews the life of a server, and nothing else.
    fn prolong(&mut self, at: u32, announce: &Announce<'_>, end_ms: u64) -> Outcome {
        let Some(slot) = self.slots.get_mut(at as usize) else { return Outcome::Stale };
        let Some(server) = &mut slot.server else { return Outcome::Stale };
        if slot.asked && slot.misses == 0 {
            self.silent.note_gap(at, announced_ms(slot.end_ms, server), end_ms.saturating_sub(announce.life_ms));
        }
        slot.end_ms = end_ms;
        slot.restored_end_s = 0;
        let last_seen_ms = announce.proven_at_ms.max(server.last_seen_ms);
        if last_seen_ms - server.last_seen_ms >= announce.life_ms / REPUBLISH_PART {
            *server = Arc::new(Server { last_seen_ms, foreign: false, ..Server::clone(server) });
            self.mark(at);
        }
        Outcome::Refreshed
    }

    fn renew(&mut self, at: u32, announce: &Announce<'_>, end_ms: u64, now: Now) -> Outcome {
        let strength = announce.proof.strength();
        if self.has_stronger_proof(at, strength, now) {
            return Outcome::Refused(Refusal::StrongerProof);
        }
        let node = self.node;
        let asked = announce.asked || self.is_named(announce.address);
        let Some(slot) = self.slots.get_mut(at as usize) else { return Outcome::Stale };
        let Some(server) = &mut slot.server else { return Outcome::Stale };
        let same_strength = server.strength() == strength;
        let is_comparable = slot.listed && same_strength && !is_from_the_future(slot.proven_at_ms, now);
        let same_game = server.game == announce.game;
        // A server's answers to our queries have more facts than its announcements, which have no round-trip time.
        let knows_more = same_game
            && slot.listed
            && slot.asked
            && server.verified_by == announce.proof
            && server.rtt_us.is_some()
            && announce.asked
            && announce.rtt_us.is_none();
        let unchanged = same_game
            && slot.listed
            && server.verified_by == announce.proof
            && server.via.is_none()
            && server.silence() == Silence::None
            && server.keys == announce.keys
            && (knows_more || server.matches_facts(&announce.facts));
        let is_tie = is_comparable && announce.proven_at_ms == slot.proven_at_ms;
        if is_comparable && announce.proven_at_ms < slot.proven_at_ms || is_tie && unchanged {
            // Its answer to a query may have come in between. That is the newer proof, but does not renew its life.
            let is_prolonged = slot.asked && same_game && server.verified_by == announce.proof && end_ms > slot.end_ms;
            return if is_prolonged { self.prolong(at, announce, end_ms) } else { Outcome::Stale };
        }
        let is_newcomer = !same_game && slot.counted;
        if is_newcomer && self.per_game.full(announce.address.ip(), &announce.game, self.shares.exempt()).is_some() {
            return Outcome::Refused(Refusal::FullForGame);
        }
        // Of two different announcements of the same millisecond, the one that arrives later wins. Its timestamp orders them
        // for other nodes, and makes a replay of either one stale.
        let proven_at_ms = announce.proven_at_ms + u64::from(is_tie);
        if same_game && slot.asked && slot.misses == 0 {
            self.silent.note_gap(at, announced_ms(slot.end_ms, server), end_ms.saturating_sub(announce.life_ms));
        }
        self.silent.end(at, &mut slot.misses);
        slot.end_ms = end_ms;
        slot.restored_end_s = 0;
        slot.proven_at_ms = proven_at_ms;
        let sooner = self.ends.tick_for(end_ms) < slot.end_tick;
        let newly_asked = asked && !slot.asked;
        slot.asked = asked;
        if !slot.listed || !same_strength {
            self.removals.forget(announce.address, strength);
        }
        slot.listed = true;
        // The proof may be newer than the heartbeat: an answer renews only the proof. After the clock was set back, the
        // heartbeat may be from the future.
        let age_ms = |published_ms: u64| proven_at_ms.abs_diff(published_ms);
        let published_age_ms = age_ms(server.proven_at_ms).max(age_ms(server.last_seen_ms));
        let is_same_life = is_same_life(server, announce.life_ms);
        if !unchanged || !is_same_life || published_age_ms >= announce.life_ms / REPUBLISH_PART {
            let same_facts = unchanged || knows_more;
            let updated = if same_facts { Server::clone(server) } else { server.with_facts(&announce.facts) };
            let renewed = Server {
                game: announce.game.clone(),
                verified_by: announce.proof,
                foreign: false,
                node,
                proven_at_ms,
                rtt_us: announce.rtt_us.map(round_trip).or(updated.rtt_us.filter(|_| knows_more)),
                first_seen_ms: if same_game { updated.first_seen_ms } else { proven_at_ms },
                last_seen_ms: proven_at_ms,
                life_ms: whole_life(announce.life_ms),
                via: None,
                keys: announce.keys.clone(),
                ..updated
            };
            *server = Arc::new(renewed.with_silence(Silence::None));
            self.mark(at);
        }
        if sooner {
            self.queue_end(at, end_ms);
        }
        if newly_asked {
            self.queue_ask(at, now.mono_ms + self.spread_ms(at));
        } else if announce.rtt_us.is_none() {
            self.delay_query(at, now);
        }
        if unchanged { Outcome::Refreshed } else { Outcome::Changed }
    }

    /// Whether this is the address of a named server that is queried, and listed while it answers.
    fn is_named(&self, address: Address) -> bool {
        self.named.get(&address).is_some_and(|named| named.asked)
    }

    fn set_named_servers(&mut self, named: &[NamedServer], now: Now) -> Outcome {
        let mut touched: Vec<Address> = self.named.drain().map(|(address, _)| address).collect();
        self.named.extend(named.iter().map(|named| (named.address, named.clone())));
        touched.extend(named.iter().map(|named| named.address));
        let mut outcome = Outcome::Refreshed;
        for address in &touched {
            if self.apply_overrides(*address, now) {
                outcome = Outcome::Changed;
            }
        }
        self.recheck_names(&touched);
        outcome
    }

    /// Applies the operator's configuration, or its absence, to one entry. True if that changed anything.
    fn apply_overrides(&mut self, address: Address, now: Now) -> bool {
        let named = self.named.get(&address).cloned();
        self.recount(address, named.is_none());
        if let Some((at, slot)) = self.slot_of(address) {
            let Some(server) = &mut slot.server else { return false };
            if named.as_ref().is_none_or(|named| named.game == server.game) {
                let overrides = named.as_ref().map(|named| named.overrides).unwrap_or_default();
                // The operator vouches for a named server, whoever else lists it.
                let via = server.via.clone().filter(|_| named.is_none());
                let changed = server.overrides != overrides || server.via != via;
                if changed {
                    *server = Arc::new(Server { overrides, via, ..Server::clone(server) });
                    self.mark(at);
                }
                // If only an earlier configuration kept it, it expires now.
                self.queue_end(at, now.mono_ms);
                return changed;
            }
            // The configuration now names another game there.
            self.remove(at);
        }
        let Some(NamedServer { game, asked: true, .. }) = named else { return false };
        let server = Server::new(address, game, Proof::Config, now.unix_ms, &Facts::default());
        let at = self.insert(server, now.mono_ms, true, false);
        self.queue_ask(at, now.mono_ms);
        true
    }

    /// A new entry, with what the operator's configuration says of its address.
    fn insert(&mut self, server: Server, end_ms: u64, asked: bool, listed: bool) -> u32 {
        let named = self.named.get(&server.address);
        let overrides = named.map(|named| named.overrides).unwrap_or_default();
        self.insert_shared(Arc::new(Server { overrides, ..server }), end_ms, asked, listed)
    }

    /// The same for a server that has the operator's configuration already.
    fn insert_shared(&mut self, server: Arc<Server>, end_ms: u64, asked: bool, listed: bool) -> u32 {
        let address = server.address;
        let counted = !self.named.contains_key(&address);
        let at = self.place(Slot {
            address,
            end_ms,
            proven_at_ms: server.proven_at_ms,
            server: Some(server),
            end_tick: 0,
            ask_tick: 0,
            restored_end_s: 0,
            misses: 0,
            asked,
            listed,
            counted,
            cookie_proven: false,
            mirrored: false,
            dirty: false,
        });
        if counted {
            self.count(at, address.ip(), true);
        }
        let Registry { by_address, slots, hasher, .. } = self;
        by_address.insert_unique(hasher.hash_one(address), at, |&at| {
            slots.get(at as usize).map_or(0, |slot| hasher.hash_one(slot.address))
        });
        self.queue_end(at, end_ms);
        self.mark(at);
        at
    }

    fn place(&mut self, slot: Slot) -> u32 {
        if let Some(at) = self.free.pop()
            && let Some(place) = self.slots.get_mut(at as usize)
        {
            // The previous entry may not have been drained yet; the slot is then marked already.
            *place = Slot { dirty: place.dirty, ..slot };
            return at;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    fn remove(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        self.silent.forget(at);
        slot.server = None;
        let (address, counted) = (slot.address, slot.counted);
        if let Ok(entry) = self.by_address.find_entry(self.hasher.hash_one(address), |&other| other == at) {
            entry.remove();
        }
        if counted {
            self.count(at, address.ip(), false);
        }
        self.free.push(at);
        self.mark(at);
    }

    fn find(&self, address: Address) -> Option<u32> {
        self.find_hashed(self.hasher.hash_one(address), address)
    }

    fn find_hashed(&self, hash: u64, address: Address) -> Option<u32> {
        let is_it = |&at: &u32| self.slots.get(at as usize).is_some_and(|slot| slot.address == address);
        self.by_address.find(hash, is_it).copied()
    }

    fn slot_of(&mut self, address: Address) -> Option<(u32, &mut Slot)> {
        let at = self.find(address)?;
        Some((at, self.slots.get_mut(at as usize)?))
    }

    fn queue_end(&mut self, at: u32, when_ms: u64) {
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.end_tick = self.ends.tick_for(when_ms);
            self.ends.add(slot.end_tick, at);
        }
    }

    fn mark(&mut self, at: u32) {
        self.set_digest(at, 0); // what its last answer said may no longer be what is known
        self.reweigh(at);
        self.recount_mirrored(at);
        if let Some(slot) = self.slots.get_mut(at as usize)
            && !slot.dirty
        {
            slot.dirty = true;
            self.dirty.push(at);
        }
    }
}

/// Whether the published life, which a restart uses, is still right. Other nodes report it in whole seconds.
fn is_same_life(server: &Server, life_ms: u64) -> bool {
    u64::from(server.life_ms).abs_diff(life_ms) <= 1_000
}

/// A life as published.
fn whole_life(life_ms: u64) -> u32 {
    u32::try_from(life_ms).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

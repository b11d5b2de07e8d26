//! Merges the records of other nodes into the registry.
//!
//! A server has a proof (with its facts) and a heartbeat (with its keys and its life), each with a timestamp. Of each, the
//! newer one wins, whichever node it came from and in whatever order they arrive: proofs compare by (timestamp, node),
//! heartbeats by timestamp, and the later end of life wins. Another game replaces both if its proof is newer. A removal wins
//! over every proof that is not newer.
//!
//! This holds among proofs of the same strength. A stronger proof that is alive wins over any weaker one, of which nothing
//! is kept; removing a weaker one does not end a stronger one.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::restore::seconds;
use super::silence::announced_ms;
use super::{Outcome, Refusal, Registry, is_from_the_future};
use crate::model::{Address, Gone, Now, RemoteServer, RemoteState, Server, Silence, Strength, round_trip};

/// Removals to remember, so that an older proof that arrives later is ignored. The oldest is forgotten first.
const REMOVALS_MAX: usize = 1 << 16;

/// This node's state of an address, for the other nodes.
#[derive(Clone, Debug)]
pub enum LocalState {
    Listed {
        server: Arc<Server>,
        life_left_ms: u64,
        asked: bool,
        /// See [`RemoteServer::stronger_gone_ms`].
        stronger_gone_ms: Option<u64>,
    },
    Gone(Gone),
}

impl LocalState {
    /// Whether all of it came from other nodes.
    pub fn foreign(&self) -> bool {
        match self {
            LocalState::Listed { server, .. } => server.foreign,
            LocalState::Gone(gone) => gone.foreign,
        }
    }

    /// Whether this state has something newer than the remote one, which readers of the store would otherwise miss.
    pub fn is_ahead_of(&self, remote: &RemoteState<'_>) -> bool {
        match (self, remote) {
            (LocalState::Listed { server, stronger_gone_ms, .. }, RemoteState::Listed(remote)) => {
                match server.strength().cmp(&remote.strength()) {
                    Ordering::Equal => {
                        (server.proven_at_ms, server.node, server.silence())
                            > (remote.announce.proven_at_ms, remote.node, remote.silence)
                            || server.last_seen_ms > remote.last_seen_ms
                    }
                    Ordering::Greater => true,
                    Ordering::Less => stronger_gone_ms.is_some_and(|gone_ms| gone_ms >= remote.announce.proven_at_ms),
                }
            }
            (LocalState::Listed { server, .. }, RemoteState::Gone(gone)) => {
                !gone.ends(server.strength(), server.proven_at_ms)
            }
            (LocalState::Gone(gone), RemoteState::Listed(remote)) => {
                gone.ends(remote.strength(), remote.announce.proven_at_ms)
            }
            (LocalState::Gone(ours), RemoteState::Gone(remote)) => {
                ours.at_ms > remote.at_ms || ours.game_at_ms > remote.game_at_ms
            }
        }
    }
}

/// The servers that were removed, and when.
#[derive(Default)]
pub(super) struct Removals {
    by_address: HashMap<Address, Gone>,
    /// In order of arrival, including those that were forgotten since.
    order: VecDeque<(Address, u64)>,
}

impl Removals {
    /// Two removals of an address are merged, so that each still ends the proofs that it ended.
    pub(super) fn add(&mut self, gone: Gone, now: Now) {
        let known = self.by_address.entry(gone.address).or_insert(gone);
        let newer = if gone.at_ms >= known.at_ms || is_from_the_future(known.at_ms, now) { gone } else { *known };
        let known_ms = if is_from_the_future(known.game_at_ms, now) { 0 } else { known.game_at_ms };
        *known = Gone { game_at_ms: gone.game_at_ms.max(known_ms), ..newer };
        self.order.push_back((gone.address, gone.at_ms));
        while self.order.len() > REMOVALS_MAX {
            let Some((address, at_ms)) = self.order.pop_front() else { return };
            if self.by_address.get(&address).is_some_and(|gone| gone.at_ms == at_ms) {
                self.by_address.remove(&address);
            }
        }
    }

    /// The server is listed again with a newer proof. A weaker proof does not cancel the removal of a stronger one.
    pub(super) fn forget(&mut self, address: Address, strength: Strength) {
        let ends_stronger = |gone: &Gone| match strength {
            Strength::Address => true,
            Strength::Mirrored => gone.game_at_ms > 0,
            Strength::Game => false,
        };
        if self.get(address).is_some_and(|gone| !ends_stronger(gone)) {
            self.by_address.remove(&address);
        }
    }

    fn get(&self, address: Address) -> Option<&Gone> {
        self.by_address.get(&address)
    }
}

impl Registry {
    /// Sets this node's tag, which all proofs from now on carry.
    pub fn set_node(&mut self, node: u8) {
        self.node = node;
    }

    /// The state of an address for the other nodes. None if it is unknown or has just expired, for a restored server until
    /// the cluster's time is known, and for other masters, because each node is a separate member of their network.
    pub fn local_state(&self, address: Address, now: Now) -> Option<LocalState> {
        let slot = self.find(address).and_then(|at| self.slots.get(at as usize));
        let Some((slot, server)) = slot.filter(|slot| slot.listed).and_then(|slot| Some((slot, slot.server.clone()?)))
        else {
            return self.removal(address, now).copied().map(LocalState::Gone);
        };
        let restored_left_ms = self.restored_left_ms(slot, now);
        let mut life_left_ms = restored_left_ms.unwrap_or(slot.end_ms.saturating_sub(now.mono_ms));
        let mut asked = slot.asked;
        if restored_left_ms.is_none() && self.is_named(address) {
            // A named server stays here in any case. At other nodes it lives for as long as its answers may be missed, and
            // only the nodes that name it query it.
            let named_life_ms = self.settings.ask_every_ms * (u64::from(self.settings.misses_max) + 1);
            asked &= life_left_ms > named_life_ms;
            life_left_ms = life_left_ms.max(named_life_ms);
        }
        let is_news = life_left_ms > 0 && !server.game.is_master();
        let removal = self.removal(address, now).filter(|_| server.strength().is_weak());
        let stronger_gone_ms = removal.map(|gone| gone.game_at_ms).filter(|at_ms| *at_ms > 0);
        is_news.then_some(LocalState::Listed { server, life_left_ms, asked, stronger_gone_ms })
    }

    /// The removals since a time that this node has to put.
    pub fn own_removals(&self, since_ms: u64, now: Now) -> impl Iterator<Item = Address> {
        let is_ours =
            move |gone: &&Gone| !gone.foreign && gone.at_ms >= since_ms && !is_from_the_future(gone.at_ms, now);
        self.removals.by_address.values().filter(is_ours).map(|gone| gone.address)
    }

    /// The removal of an address. One from before the clock was set back is ignored.
    fn removal(&self, address: Address, now: Now) -> Option<&Gone> {
        self.removals.get(address).filter(|gone| !is_from_the_future(gone.at_ms, now))
    }

    pub(super) fn merge(&mut self, remote: &RemoteState<'_>, now: Now) -> Outcome {
        match remote {
            RemoteState::Listed(listed) => self.merge_listed(listed, now),
            RemoteState::Gone(gone) => self.merge_gone(gone, now),
        }
    }

    fn merge_gone(&mut self, gone: &Gone, now: Now) -> Outcome {
        let covers = |known: &Gone| known.at_ms >= gone.at_ms && known.game_at_ms >= gone.game_at_ms;
        let is_known = self.removal(gone.address, now).is_some_and(covers);
        if is_known || is_from_the_future(gone.at_ms, now) {
            return Outcome::Stale;
        }
        let gone = Gone { foreign: true, ..*gone };
        let Some((at, slot)) = self.slot_of(gone.address) else {
            self.removals.add(gone, now);
            return Outcome::Refreshed;
        };
        if let Some(server) = slot.server.as_ref().filter(|_| slot.listed)
            && !gone.ends(server.strength(), slot.proven_at_ms)
            && (gone.at_ms_for(server.strength()) == 0 || !is_from_the_future(slot.proven_at_ms, now))
        {
            let strength = server.strength();
            if gone.ends(strength, server.proven_at_ms) {
                self.publish_proof(at);
            }
            if strength == Strength::Address || strength.is_weak() && gone.game_at_ms > 0 {
                self.removals.add(gone, now);
            }
            return Outcome::Stale;
        }
        let was_listed = std::mem::replace(&mut slot.listed, false);
        self.silent.leave(at);
        if gone.quit && !self.is_named(gone.address) {
            self.remove(at);
        } else if was_listed {
            self.mark(at);
        }
        self.removals.add(gone, now);
        if was_listed { Outcome::Changed } else { Outcome::Refreshed }
    }

    fn merge_listed(&mut self, listed: &RemoteServer<'_>, now: Now) -> Outcome {
        let announce = &listed.announce;
        let (address, strength) = (announce.address, listed.strength());
        if announce.life_ms == 0 {
            // If it is still alive here, the store needs the newer record.
            let is_older = self.listed(address).is_some();
            return if is_older { Outcome::Stale } else { Outcome::Refused(Refusal::Late) };
        }
        if let Some(at_ms) = listed.stronger_gone_ms {
            // This proof came after that removal, even in the same millisecond.
            let before_ms = at_ms.min(announce.proven_at_ms.saturating_sub(1));
            self.merge_gone(&Gone { address, at_ms: before_ms, game_at_ms: at_ms, quit: false, foreign: true }, now);
        }
        let named = self.named.get(&address);
        if named.is_some_and(|named| named.game != announce.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        let is_named = named.is_some();
        if let Some(refusal) = self.refuses(address, &announce.facts.name, strength, announce.proven_at_ms, now) {
            return Outcome::Refused(refusal);
        }
        if self.removal(address, now).is_some_and(|gone| gone.ends(strength, announce.proven_at_ms)) {
            return Outcome::Stale;
        }
        let end_ms = now.mono_ms + announce.life_ms;
        if let Some(at) = self.find(address) {
            return self.merge_into(at, listed, end_ms, now);
        }
        let server = Server {
            foreign: true,
            node: listed.node,
            first_seen_ms: listed.first_seen_ms,
            last_seen_ms: listed.last_seen_ms,
            life_ms: whole_life_ms(listed, now),
            via: listed.via.clone(),
            ..Server::announced(announce).with_silence(listed.silence)
        };
        if !is_named && let Err(refusal) = self.make_room_for(address.ip(), server.bytes(), server.via.is_some()) {
            return Outcome::Refused(refusal);
        }
        self.removals.forget(address, strength);
        let at = self.insert(server, end_ms, announce.asked, true);
        self.queue_ask(at, now.mono_ms + self.spread_ms(at));
        Outcome::Added
    }

    /// Publishes our newest proof, which was not published because it changed nothing, so that other nodes see it.
    fn publish_proof(&mut self, at: u32) {
        let node = self.node;
        if let Some(slot) = self.slots.get_mut(at as usize)
            && let Some(server) = &mut slot.server
        {
            let proven_at_ms = slot.proven_at_ms;
            *server = Arc::new(Server { proven_at_ms, node, foreign: false, ..Server::clone(server) });
            self.mark(at);
        }
    }

    fn merge_into(&mut self, at: u32, listed: &RemoteServer<'_>, end_ms: u64, now: Now) -> Outcome {
        let (announce, strength) = (&listed.announce, listed.strength());
        if self.has_stronger_proof(at, strength, now) {
            return Outcome::Stale;
        }
        let shared_end_ms = self.time.unix_ms(now) + announce.life_ms;
        let own_node = self.node;
        let Some(slot) = self.slots.get_mut(at as usize) else { return Outcome::Stale };
        let Some(server) = &mut slot.server else { return Outcome::Stale };
        let same_strength = server.strength() == strength;
        // Another game, or a proof of another strength, replaces everything.
        let same_game = server.game == announce.game && same_strength;
        // An entry that is not listed was removed before this proof, or was never proven here.
        let remote_wins = !slot.listed || !same_strength || is_from_the_future(slot.proven_at_ms, now);
        // An unpublished newer proof is always this node's own.
        let proven_by = if slot.proven_at_ms == server.proven_at_ms { server.node } else { own_node };
        let ours = (slot.proven_at_ms, proven_by, server.silence());
        let newer_proof = remote_wins || (announce.proven_at_ms, listed.node, listed.silence) > ours;
        // A heartbeat from before the clock was set back is older than any other.
        let seen_ms = if is_from_the_future(server.last_seen_ms, now) { 0 } else { server.last_seen_ms };
        let newer_heartbeat = newer_proof && !same_game || same_game && listed.last_seen_ms > seen_ms;
        if newer_heartbeat && same_game && slot.asked && slot.misses == 0 {
            let before_ms = announced_ms(slot.end_ms, server);
            self.silent.note_gap(at, before_ms, before_ms + listed.last_seen_ms.saturating_sub(seen_ms));
        }
        if same_game {
            if end_ms >= slot.end_ms {
                slot.restored_end_s = 0;
            } else if slot.restored_end_s != 0 {
                slot.restored_end_s = slot.restored_end_s.max(seconds(shared_end_ms));
            }
            slot.end_ms = slot.end_ms.max(end_ms);
        }
        if !newer_proof && (announce.proven_at_ms, listed.node) > (server.proven_at_ms, server.node) {
            self.publish_proof(at);
            return if newer_heartbeat { self.merge_into(at, listed, end_ms, now) } else { Outcome::Stale };
        }
        if !newer_proof && !newer_heartbeat {
            return Outcome::Stale;
        }
        let unchanged = same_game
            && slot.listed
            && (!newer_proof || server.matches_facts(&announce.facts) && server.silence() == listed.silence);
        let nothing_of_ours = (announce.proven_at_ms, listed.node, listed.silence)
            >= (server.proven_at_ms, server.node, server.silence())
            && listed.last_seen_ms >= seen_ms;
        let mut new = if newer_proof { server.with_facts(&announce.facts) } else { Server::clone(server) };
        if newer_proof {
            new.game = announce.game.clone();
            new.verified_by = announce.proof;
            new.proven_at_ms = announce.proven_at_ms;
            new.rtt_us = announce.rtt_us.map(round_trip);
            new.node = listed.node;
            new = new.with_silence(listed.silence);
            slot.proven_at_ms = announce.proven_at_ms;
            self.silent.end(at, &mut slot.misses);
        }
        if newer_heartbeat {
            new.last_seen_ms = listed.last_seen_ms;
            new.life_ms = whole_life_ms(listed, now);
            new.keys = announce.keys.clone();
            new.via = listed.via.clone();
        }
        new.first_seen_ms = if same_game { new.first_seen_ms.min(listed.first_seen_ms) } else { listed.first_seen_ms };
        new.foreign |= nothing_of_ours || !same_game || remote_wins;
        *server = Arc::new(new);
        if !same_game {
            slot.end_ms = end_ms;
            slot.restored_end_s = 0;
        }
        let was_listed = std::mem::replace(&mut slot.listed, true);
        let newly_asked = announce.asked && !slot.asked;
        slot.asked = announce.asked || same_game && slot.asked;
        let end_ms = slot.end_ms;
        if self.ends.tick_for(end_ms) < slot.end_tick {
            self.queue_end(at, end_ms);
        }
        if !was_listed || !same_strength {
            self.removals.forget(announce.address, strength);
        }
        if newly_asked {
            self.queue_ask(at, now.mono_ms + self.spread_ms(at));
        } else if newer_proof && listed.silence == Silence::OthersAsk {
            self.queue_ask(at, now.mono_ms);
        }
        self.mark(at);
        if unchanged { Outcome::Refreshed } else { Outcome::Changed }
    }
}

/// The removal of a server by this node.
pub(super) fn gone(server: &Server, at_ms: u64, quit: bool) -> Gone {
    let game_at_ms = if server.strength().is_weak() { 0 } else { at_ms };
    Gone { address: server.address, at_ms, game_at_ms, quit, foreign: false }
}

/// The life after the last heartbeat, rounded to seconds: clocks differ by milliseconds.
fn whole_life_ms(listed: &RemoteServer<'_>, now: Now) -> u32 {
    let ends_at_ms = now.unix_ms + listed.announce.life_ms;
    let life_s = (ends_at_ms.saturating_sub(listed.last_seen_ms) + 500) / 1_000;
    u32::try_from(life_s * 1_000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Announce, Change, Facts, Game, HeartbeatKeys, NamedServer, Overrides, Proof};
    use crate::registry::Settings;

    const T: u64 = 1_760_000_000_000;
    const SETTINGS: Settings =
        Settings { servers_max: 3, servers_per_ip_max: 1, ask_every_ms: 30_000, misses_max: 3, ..Settings::UNBOUNDED };

    fn at(ms: u64) -> Now {
        Now { mono_ms: 5_000 + ms, unix_ms: T + ms }
    }

    fn address(port: u16) -> Address {
        Address::new([192, 0, 2, 1].into(), port).unwrap()
    }

    fn announce(port: u16, game: &'static str, proven_ms: u64) -> Announce<'static> {
        Announce {
            address: address(port),
            game: Game::Own(game),
            proof: Proof::Query,
            proven_at_ms: T + proven_ms,
            life_ms: 120_000,
            asked: true,
            rtt_us: Some(7),
            keys: Some(Arc::new(HeartbeatKeys::of(game, address(port)))),
            facts: Facts { name: "remote".into(), ..Facts::default() },
        }
    }

    fn remote(port: u16, game: &'static str, proven_ms: u64) -> Change<'static> {
        remote_since(T, port, game, proven_ms)
    }

    fn remote_since(first_seen_ms: u64, port: u16, game: &'static str, proven_ms: u64) -> Change<'static> {
        let announce = announce(port, game, proven_ms);
        let last_seen_ms = announce.proven_at_ms;
        Change::Merge(Box::new(RemoteState::Listed(RemoteServer {
            silence: Default::default(),
            announce,
            node: 9,
            first_seen_ms,
            last_seen_ms,
            via: None,
            stronger_gone_ms: None,
        })))
    }

    /// The same server, proven by another node with other facts.
    fn remote_other_facts(proven_ms: u64) -> Change<'static> {
        let facts = Facts { name: "theirs".into(), ..Facts::default() };
        let announce = Announce { facts, ..announce(1, "netpanzer", proven_ms) };
        let (first_seen_ms, last_seen_ms) = (T, announce.proven_at_ms);
        let listed = RemoteServer {
            silence: Default::default(),
            announce,
            node: 9,
            first_seen_ms,
            last_seen_ms,
            via: None,
            stronger_gone_ms: None,
        };
        Change::Merge(Box::new(RemoteState::Listed(listed)))
    }

    fn gone(port: u16, ms: u64, quit: bool) -> Change<'static> {
        Change::Merge(Box::new(RemoteState::Gone(Gone {
            address: address(port),
            at_ms: T + ms,
            game_at_ms: T + ms,
            quit,
            foreign: true,
        })))
    }

    fn registry() -> Registry {
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.set_node(1);
        registry
    }

    #[test]
    fn remote_servers_count_for_the_limit_of_the_list_and_not_for_that_of_an_address() {
        let mut registry = registry();
        for port in 1..=3 {
            assert_eq!(registry.apply(&remote(port, "netpanzer", 0), at(0)), Outcome::Added, "three at one address");
        }
        assert_eq!(registry.apply(&remote(4, "netpanzer", 0), at(0)), Outcome::Refused(Refusal::Full));
        let server = registry.listed(address(1)).unwrap();
        assert!(server.foreign && server.node == 9 && server.texts.name() == "remote");
        assert!(matches!(
            registry.local_state(address(1), at(20_000)),
            Some(LocalState::Listed { life_left_ms: 100_000, .. })
        ));
    }

    #[test]
    fn two_nodes_that_prove_a_server_in_the_same_millisecond_end_with_the_same_facts() {
        for (own_node, is_theirs) in [(5, true), (200, false)] {
            let mut registry = Registry::new(SETTINGS, at(0));
            registry.set_node(own_node);
            registry.apply(&remote(1, "netpanzer", 0), at(0));
            let unpublished = registry.apply(&Change::Announce(announce(1, "netpanzer", 1_000)), at(1_000));
            assert_eq!(unpublished, Outcome::Refreshed, "it changes nothing");
            registry.apply(&remote_other_facts(1_000), at(1_010));
            let server = registry.listed(address(1)).unwrap();
            let expected = if is_theirs { ("theirs", 9, true) } else { ("remote", own_node, false) };
            assert_eq!((server.texts.name(), server.node, server.foreign), expected, "ours is put, theirs is not");
        }
    }

    #[test]
    fn an_unpublished_later_proof_is_published_when_the_published_one_loses_a_tie() {
        let mut registry = registry();
        registry.apply(&Change::Announce(announce(1, "netpanzer", 1_000)), at(1_000));
        registry.apply(&Change::Announce(announce(1, "netpanzer", 2_000)), at(2_000));
        registry.drain(&mut Vec::new());
        registry.apply(&remote_other_facts(1_000), at(2_010));
        let server = registry.listed(address(1)).unwrap();
        let expected = ("remote", T + 2_000, false);
        assert_eq!((server.texts.name(), server.proven_at_ms, server.foreign), expected);
        assert!(registry.is_dirty(), "it is published");
    }

    #[test]
    fn an_echo_changes_nothing_and_a_newer_proof_of_ours_is_ours_again() {
        let mut registry = registry();
        registry.apply(&remote(1, "netpanzer", 0), at(0));
        let mut dirty = Vec::new();
        registry.drain(&mut dirty);
        assert_eq!(registry.apply(&remote(1, "netpanzer", 0), at(10)), Outcome::Stale);
        assert!(!registry.is_dirty());
        let answer =
            Change::Answer { address: address(1), game: Game::Own("netpanzer"), rtt_us: 1, facts: None, digest: 0 };
        registry.apply(&answer, at(40_000));
        let server = registry.listed(address(1)).unwrap();
        assert_eq!((server.foreign, server.node, server.proven_at_ms), (false, 1, T + 40_000));
        assert_eq!(
            registry.apply(&remote(1, "netpanzer", 39_000), at(41_000)),
            Outcome::Refreshed,
            "a newer heartbeat"
        );
        let server = registry.listed(address(1)).unwrap();
        assert_eq!((server.proven_at_ms, server.last_seen_ms), (T + 40_000, T + 39_000));
        assert!(!server.foreign, "other nodes still lack the proof");
    }

    #[test]
    fn a_record_whose_life_has_ended_is_older_than_a_server_that_lives_on() {
        let mut registry = registry();
        let Change::Merge(mut ended) = remote(1, "netpanzer", 0) else { unreachable!() };
        if let RemoteState::Listed(listed) = &mut *ended {
            listed.announce.life_ms = 0;
        }
        let ended = Change::Merge(ended);
        assert_eq!(registry.apply(&ended, at(10)), Outcome::Refused(Refusal::Late));
        registry.apply(&remote(1, "netpanzer", 20), at(20));
        assert_eq!(registry.apply(&ended, at(30)), Outcome::Stale, "so that the newer record is put again");
    }

    #[test]
    fn a_removal_wins_over_older_proofs_and_loses_to_newer_ones() {
        let mut registry = registry();
        assert_eq!(registry.apply(&gone(1, 500, true), at(500)), Outcome::Refreshed, "nothing was there");
        assert_eq!(registry.apply(&remote(1, "netpanzer", 400), at(600)), Outcome::Stale);
        assert_eq!(registry.apply(&remote(1, "netpanzer", 700), at(700)), Outcome::Added);
        assert_eq!(registry.apply(&gone(1, 600, true), at(800)), Outcome::Stale);
        assert_eq!(registry.apply(&gone(1, 900, false), at(900)), Outcome::Changed);
        assert!(registry.listed(address(1)).is_none());
        assert_eq!(registry.len(), 1, "one that no longer answers is kept for its owner");
        assert_eq!(registry.apply(&remote(1, "netpanzer", 1_000), at(1_000)), Outcome::Changed);
        assert_eq!(registry.apply(&gone(1, 1_100, true), at(1_100)), Outcome::Changed);
        assert!(registry.is_empty());
        assert_eq!(registry.own_removals(0, at(200_000)).count(), 0, "all of them came from others");
    }

    #[test]
    fn a_removal_from_before_the_clock_was_set_back_is_ignored() {
        let mut registry = registry();
        registry.apply(&Change::Announce(announce(1, "netpanzer", 3_600_000)), at(3_600_000));
        registry.apply(&Change::Quit { address: address(1), master: false, proven: false }, at(3_600_001));
        assert!(registry.local_state(address(1), at(3_600_002)).is_some());
        // The clock goes back by an hour; the monotonic one does not.
        let back = |ms: u64| Now { mono_ms: 3_700_000 + ms, unix_ms: T + ms };
        assert!(registry.local_state(address(1), back(0)).is_none() && registry.own_removals(0, back(0)).count() == 0);
        assert_eq!(registry.apply(&remote(1, "netpanzer", 1_000), back(1_000)), Outcome::Added);
        assert_eq!(registry.apply(&gone(1, 3_600_001, true), back(2_000)), Outcome::Stale, "nor another node's");
        assert!(registry.listed(address(1)).is_some());
        assert_eq!(registry.apply(&gone(1, 3_000, true), back(3_000)), Outcome::Changed);
    }

    #[test]
    fn a_heartbeat_from_before_the_clock_was_set_back_gives_way_to_the_next_one() {
        let back = |ms: u64| Now { mono_ms: 3_700_000 + ms, unix_ms: T + ms };
        let seen = |registry: &Registry| {
            let server = registry.listed(address(1)).unwrap();
            (server.proven_at_ms, server.last_seen_ms, server.foreign)
        };
        let set_back = || {
            let mut registry = registry();
            registry.apply(&Change::Announce(announce(1, "netpanzer", 3_600_000)), at(3_600_000));
            let answer =
                Change::Answer { address: address(1), game: Game::Own("netpanzer"), rtt_us: 7, facts: None, digest: 0 };
            registry.apply(&answer, back(0));
            assert_eq!(seen(&registry), (T, T + 3_600_000, false));
            registry
        };
        let mut own = set_back();
        own.apply(&Change::Announce(announce(1, "netpanzer", 1_000)), back(1_000));
        assert_eq!(seen(&own), (T + 1_000, T + 1_000, false), "it is published, so other nodes learn of it");
        let mut others = set_back();
        assert_eq!(others.apply(&remote(1, "netpanzer", 1_000), back(1_500)), Outcome::Refreshed);
        assert_eq!(seen(&others), (T + 1_000, T + 1_000, true));
    }

    #[test]
    fn own_removals_are_put_until_the_server_is_back() {
        let mut registry = registry();
        registry.apply(&Change::Announce(announce(1, "netpanzer", 0)), at(0));
        registry.apply(&Change::Quit { address: address(1), master: false, proven: false }, at(10));
        assert_eq!(registry.own_removals(T + 10, at(20)).collect::<Vec<_>>(), [address(1)]);
        assert_eq!(registry.own_removals(T + 11, at(20)).count(), 0);
        assert!(matches!(
            registry.local_state(address(1), at(10)),
            Some(LocalState::Gone(Gone { quit: true, foreign: false, .. }))
        ));
        registry.apply(&Change::Announce(announce(1, "netpanzer", 20)), at(20));
        assert_eq!(registry.own_removals(0, at(200_000)).count(), 0);
        while registry.expire(at(200_000), 100) {}
        assert!(registry.local_state(address(1), at(200_000)).is_none(), "expiry is not put");
        registry.apply(
            &Change::Announce(Announce { game: Game::master("netpanzer"), ..announce(2, "netpanzer", 200_000) }),
            at(200_000),
        );
        assert!(registry.local_state(address(2), at(200_000)).is_none(), "and neither is another master");
        registry.apply(&Change::Quit { address: address(2), master: true, proven: false }, at(200_000));
        assert_eq!(registry.own_removals(0, at(200_000)).count(), 0);
    }

    #[test]
    fn the_number_of_remembered_removals_is_bounded() {
        let mut removals = Removals::default();
        let there = Address::new([192, 0, 2, 2].into(), 1).unwrap();
        for at_ms in 0..=REMOVALS_MAX as u64 {
            removals.add(
                Gone {
                    address: if at_ms == 0 { there } else { address(1) },
                    at_ms,
                    game_at_ms: at_ms,
                    quit: true,
                    foreign: false,
                },
                at(0),
            );
        }
        assert_eq!((removals.by_address.len(), removals.order.len()), (1, REMOVALS_MAX));
    }

    #[test]
    fn the_operators_configuration_applies_to_remote_servers() {
        let mut registry = registry();
        let overrides = Overrides { official: true, priority: 5, flavor: 4 };
        let game = Game::Own("hyperbol");
        let named = NamedServer { address: address(1), game, overrides, asked: true };
        registry.apply(&Change::NamedServers(Arc::new([named])), at(0));
        let refused = Outcome::Refused(Refusal::OtherGameConfigured);
        assert_eq!(registry.apply(&remote(1, "netpanzer", 10), at(10)), refused);
        assert_eq!(registry.apply(&remote(1, "hyperbol", 10), at(10)), Outcome::Changed);
        assert_eq!(registry.listed(address(1)).unwrap().overrides, overrides);
        // It stays because it is named; other nodes get a life that outlasts three misses.
        while registry.expire(at(600_000), 100) {}
        let known = registry.local_state(address(1), at(600_000));
        assert!(matches!(known, Some(LocalState::Listed { life_left_ms: 120_000, asked: false, .. })), "{known:?}");
        assert_eq!(registry.apply(&gone(1, 600_000, true), at(600_000)), Outcome::Changed);
        assert_eq!(registry.len(), 1, "a named server is still queried");
        let mut targets = Vec::new();
        registry.due(at(700_000), 10, &mut targets);
        assert!(targets.iter().all(|target| target.named) && !targets.is_empty());
    }

    #[test]
    fn the_earliest_first_seen_wins_in_any_order() {
        let seen = |first_seen_ms, proven_ms| remote_since(first_seen_ms, 1, "netpanzer", proven_ms);
        for [before, after] in [[T - 5_000, T - 9_000], [T - 9_000, T - 5_000]] {
            let mut registry = registry();
            registry.apply(&seen(before, 0), at(0));
            registry.apply(&seen(after, 1_000), at(1_000));
            assert_eq!(registry.listed(address(1)).unwrap().first_seen_ms, T - 9_000);
        }
    }

    #[test]
    fn a_remote_proof_resets_the_count_of_misses() {
        let mut registry = registry();
        registry.apply(&remote(1, "netpanzer", 0), at(0));
        registry.apply(&Change::Miss { address: address(1), game: Game::Own("netpanzer"), proven_at_ms: None }, at(10));
        registry.apply(&remote(1, "netpanzer", 20), at(20));
        assert_eq!(registry.address_state(address(1), at(20)).unwrap().misses, 0);
    }

    #[test]
    fn another_game_replaces_the_server_if_its_proof_is_newer() {
        let mut registry = registry();
        registry.apply(&remote(1, "netpanzer", 1_000), at(1_000));
        assert_eq!(registry.apply(&remote(1, "hyperbol", 900), at(1_000)), Outcome::Stale);
        assert_eq!(registry.apply(&remote(1, "hyperbol", 1_100), at(1_100)), Outcome::Changed);
        assert_eq!(registry.listed(address(1)).unwrap().game.name(), "hyperbol");
    }
}

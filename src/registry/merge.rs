//! Many nodes as one: what other nodes told, merged into what is known here.
//!
//! Two things are known of a server, each with its time: a proof (its facts with it), and a sign of life (its keys with
//! it, and how long it lives). Of each, the newer one stays, whichever node it came from and in whatever order: the
//! proof by (time stamp, node), the sign of life by its time stamp, the end of the life the later one. Another game
//! replaces both if its proof is newer. A removal wins over every proof that is not newer than itself.
//!
//! All of this is among proofs of the same strength. A stronger one that lives wins over a weaker one, however new, and
//! nothing of the weaker one stays; the removal of a weaker one ends no stronger one.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::restore::seconds;
use super::{Outcome, Refusal, Registry, is_from_the_future};
use crate::model::{Address, Gone, Now, Proof, RemoteServer, RemoteState, Server, Strength, round_trip};

/// Removals remembered, so that an older proof that arrives later lists nothing; the oldest is forgotten first.
const REMOVALS_MAX: usize = 1 << 16;

/// What this node can tell the others of an address.
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
    /// Whether other nodes told us all of it.
    pub fn foreign(&self) -> bool {
        match self {
            LocalState::Listed { server, .. } => server.foreign,
            LocalState::Gone(gone) => gone.foreign,
        }
    }

    /// Whether what was told leaves out something that is known here: it would be lost to whoever reads it next.
    pub fn is_ahead_of(&self, told: &RemoteState<'_>) -> bool {
        match (self, told) {
            (LocalState::Listed { server, stronger_gone_ms, .. }, RemoteState::Listed(told)) => {
                match server.verified_by.strength().cmp(&told.announce.proof.strength()) {
                    Ordering::Equal => {
                        (server.proven_at_ms, server.node) > (told.announce.proven_at_ms, told.node)
                            || server.last_seen_ms > told.last_seen_ms
                    }
                    Ordering::Greater => true,
                    Ordering::Less => stronger_gone_ms.is_some_and(|gone_ms| gone_ms >= told.announce.proven_at_ms),
                }
            }
            (LocalState::Listed { server, .. }, RemoteState::Gone(gone)) => {
                !gone.ends(server.verified_by, server.proven_at_ms)
            }
            (LocalState::Gone(gone), RemoteState::Listed(told)) => {
                gone.ends(told.announce.proof, told.announce.proven_at_ms)
            }
            (LocalState::Gone(ours), RemoteState::Gone(told)) => {
                ours.at_ms > told.at_ms || ours.game_at_ms > told.game_at_ms
            }
        }
    }
}

/// Who was taken off the list, and when.
#[derive(Default)]
pub(super) struct Removals {
    by_address: HashMap<Address, Gone>,
    /// In the order in which they came, with those that were forgotten since.
    order: VecDeque<(Address, u64)>,
}

impl Removals {
    /// Of two removals of an address each still ends what it ended.
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

    /// It is listed again, with a proof that is newer. A weaker proof than the one that was removed does not bring that
    /// one back.
    pub(super) fn forget(&mut self, address: Address, proof: Proof) {
        if !self.by_address.is_empty()
            && (proof.strength() == Strength::Game || self.get(address).is_some_and(|gone| gone.game_at_ms == 0))
        {
            self.by_address.remove(&address);
        }
    }

    fn get(&self, address: Address) -> Option<&Gone> {
        self.by_address.get(&address)
    }
}

impl Registry {
    /// Who this node is among many; what is proven from now on carries it.
    pub fn set_node(&mut self, node: u8) {
        self.node = node;
    }

    /// What can be told of an address; None when nothing is known, or its life has just ended, or, of a server that was
    /// restored, nobody knows whether it has: before the time of all nodes is known. Other masters are told of
    /// by nobody: each node is in its own place among them.
    pub fn known(&self, address: Address, now: Now) -> Option<LocalState> {
        let slot = self.find(address).and_then(|at| self.slots.get(at as usize));
        let Some((slot, server)) = slot.filter(|slot| slot.listed).and_then(|slot| Some((slot, slot.server.clone()?)))
        else {
            return self.removal(address, now).copied().map(LocalState::Gone);
        };
        let restored_left_ms = self.restored_left_ms(slot, now);
        let mut life_left_ms = restored_left_ms.unwrap_or(slot.end_ms.saturating_sub(now.mono_ms));
        let mut asked = slot.asked;
        if restored_left_ms.is_none() && self.is_named(address) {
            // Here the operator's word keeps it; elsewhere it lives as long as we could miss its answers, and it is
            // for those who name it to ask it.
            let word_ms = self.settings.ask_every_ms * (u64::from(self.settings.misses_max) + 1);
            asked &= life_left_ms > word_ms;
            life_left_ms = life_left_ms.max(word_ms);
        }
        let is_news = life_left_ms > 0 && !server.game.is_master();
        let removal = self.removal(address, now).filter(|_| server.verified_by.strength() == Strength::Address);
        let stronger_gone_ms = removal.map(|gone| gone.game_at_ms).filter(|at_ms| *at_ms > 0);
        is_news.then_some(LocalState::Listed { server, life_left_ms, asked, stronger_gone_ms })
    }

    /// The removals since then that this node has to tell of.
    pub fn own_removals(&self, since_ms: u64, now: Now) -> impl Iterator<Item = Address> {
        let told = move |gone: &&Gone| !gone.foreign && gone.at_ms >= since_ms && !is_from_the_future(gone.at_ms, now);
        self.removals.by_address.values().filter(told).map(|gone| gone.address)
    }

    /// The removal of an address. One from before a clock was set back stands in nobody's way.
    fn removal(&self, address: Address, now: Now) -> Option<&Gone> {
        self.removals.get(address).filter(|gone| !is_from_the_future(gone.at_ms, now))
    }

    pub(super) fn merge(&mut self, told: &RemoteState<'_>, now: Now) -> Outcome {
        match told {
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
            && !gone.ends(server.verified_by, slot.proven_at_ms)
            && (gone.at_ms_for(server.verified_by) == 0 || !is_from_the_future(slot.proven_at_ms, now))
        {
            let is_weak = server.verified_by.strength() == Strength::Address;
            if gone.ends(server.verified_by, server.proven_at_ms) {
                self.say_it_is_proven(at);
            }
            if is_weak && gone.game_at_ms > 0 {
                self.removals.add(gone, now);
            }
            return Outcome::Stale;
        }
        let was_listed = std::mem::replace(&mut slot.listed, false);
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
        let address = announce.address;
        if announce.life_ms == 0 {
            // Where it lives on here, whoever reads the store next has to hear of that.
            let is_older = self.listed(address).is_some();
            return if is_older { Outcome::Stale } else { Outcome::Refused(Refusal::Late) };
        }
        if let Some(at_ms) = listed.stronger_gone_ms {
            // This proof came after it, even in the same millisecond.
            let before_ms = at_ms.min(announce.proven_at_ms.saturating_sub(1));
            self.merge_gone(&Gone { address, at_ms: before_ms, game_at_ms: at_ms, quit: false, foreign: true }, now);
        }
        let named = self.named.get(&address);
        if named.is_some_and(|named| named.game != announce.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        if self.removal(address, now).is_some_and(|gone| gone.ends(announce.proof, announce.proven_at_ms)) {
            return Outcome::Stale;
        }
        let end_ms = now.mono_ms + announce.life_ms;
        if let Some(at) = self.find(address) {
            return self.merge_into(at, listed, end_ms, now);
        }
        let named = named.map(|named| named.overrides);
        if named.is_none()
            && let Err(refusal) = self.make_room_for(address.ip())
        {
            return Outcome::Refused(refusal);
        }
        let mut server =
            Server::new(address, announce.game.clone(), announce.proof, announce.proven_at_ms, &announce.facts);
        server.overrides = named.unwrap_or_default();
        server.foreign = true;
        server.node = listed.node;
        server.rtt_us = announce.rtt_us.map(round_trip);
        server.first_seen_ms = listed.first_seen_ms;
        server.last_seen_ms = listed.last_seen_ms;
        server.life_ms = whole_life_ms(listed, now);
        server.keys = announce.keys.clone();
        self.removals.forget(address, announce.proof);
        let at = self.insert(server, end_ms, announce.asked, true);
        self.queue_ask(at, now.mono_ms + self.spread_ms(at));
        Outcome::Added
    }

    /// Our newest proof said nothing new, and was not published; now others have to know that there is one.
    fn say_it_is_proven(&mut self, at: u32) {
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
        let announce = &listed.announce;
        if self.is_held_against(at, announce.proof, now) {
            return Outcome::Stale;
        }
        let shared_end_ms = self.time.unix_ms(now) + announce.life_ms;
        let own_node = self.node;
        let Some(slot) = self.slots.get_mut(at as usize) else { return Outcome::Stale };
        let Some(server) = &mut slot.server else { return Outcome::Stale };
        let same_strength = server.verified_by.strength() == announce.proof.strength();
        // Nothing of what was known stays where another game came, or a proof of another strength.
        let same_game = server.game == announce.game && same_strength;
        // What is not listed was removed, and before this proof, or it has not been proven here at all.
        let theirs_counts = !slot.listed || !same_strength || is_from_the_future(slot.proven_at_ms, now);
        // A newer proof that said nothing new was not published, and it is this node's own.
        let proven_by = if slot.proven_at_ms == server.proven_at_ms { server.node } else { own_node };
        let newer_proof = theirs_counts || (announce.proven_at_ms, listed.node) > (slot.proven_at_ms, proven_by);
        let newer_sign = newer_proof && !same_game || same_game && listed.last_seen_ms > server.last_seen_ms;
        if same_game {
            if end_ms >= slot.end_ms {
                slot.restored_end_s = 0;
            } else if slot.restored_end_s != 0 {
                slot.restored_end_s = slot.restored_end_s.max(seconds(shared_end_ms));
            }
            slot.end_ms = slot.end_ms.max(end_ms);
        }
        if !newer_proof && (announce.proven_at_ms, listed.node) > (server.proven_at_ms, server.node) {
            self.say_it_is_proven(at);
            return if newer_sign { self.merge_into(at, listed, end_ms, now) } else { Outcome::Stale };
        }
        if !newer_proof && !newer_sign {
            return Outcome::Stale;
        }
        let unchanged = same_game && slot.listed && (!newer_proof || server.matches_facts(&announce.facts));
        let nothing_of_ours = (announce.proven_at_ms, listed.node) >= (server.proven_at_ms, server.node)
            && listed.last_seen_ms >= server.last_seen_ms;
        let mut new = if newer_proof { server.with_facts(&announce.facts) } else { Server::clone(server) };
        if newer_proof {
            new.game = announce.game.clone();
            new.verified_by = announce.proof;
            new.proven_at_ms = announce.proven_at_ms;
            new.rtt_us = announce.rtt_us.map(round_trip);
            new.node = listed.node;
            slot.proven_at_ms = announce.proven_at_ms;
            slot.misses = 0;
        }
        if newer_sign {
            new.last_seen_ms = listed.last_seen_ms;
            new.life_ms = whole_life_ms(listed, now);
            new.keys = announce.keys.clone();
        }
        new.first_seen_ms = if same_game { new.first_seen_ms.min(listed.first_seen_ms) } else { listed.first_seen_ms };
        new.foreign |= nothing_of_ours || !same_game || theirs_counts;
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
            self.removals.forget(announce.address, announce.proof);
        }
        if newly_asked {
            self.queue_ask(at, now.mono_ms + self.spread_ms(at));
        }
        self.mark(at);
        if unchanged { Outcome::Refreshed } else { Outcome::Changed }
    }
}

/// The removal of a server by this node.
pub(super) fn gone(server: &Server, at_ms: u64, quit: bool) -> Gone {
    let game_at_ms = if server.verified_by.strength() == Strength::Game { at_ms } else { 0 };
    Gone { address: server.address, at_ms, game_at_ms, quit, foreign: false }
}

/// How long it is listed after its last heartbeat. Clocks differ by milliseconds, lives by seconds.
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
    const SETTINGS: Settings = Settings { servers_max: 3, servers_per_ip_max: 1, ask_every_ms: 30_000, misses_max: 3 };

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
            facts: Facts { name: "told".into(), ..Facts::default() },
        }
    }

    fn told(port: u16, game: &'static str, proven_ms: u64) -> Change<'static> {
        told_since(T, port, game, proven_ms)
    }

    fn told_since(first_seen_ms: u64, port: u16, game: &'static str, proven_ms: u64) -> Change<'static> {
        let announce = announce(port, game, proven_ms);
        let last_seen_ms = announce.proven_at_ms;
        Change::Merge(Box::new(RemoteState::Listed(RemoteServer {
            announce,
            node: 9,
            first_seen_ms,
            last_seen_ms,
            stronger_gone_ms: None,
        })))
    }

    /// The same server as another node has proven it, at that time.
    fn told_other_facts(proven_ms: u64) -> Change<'static> {
        let facts = Facts { name: "theirs".into(), ..Facts::default() };
        let announce = Announce { facts, ..announce(1, "netpanzer", proven_ms) };
        let (first_seen_ms, last_seen_ms) = (T, announce.proven_at_ms);
        let listed = RemoteServer { announce, node: 9, first_seen_ms, last_seen_ms, stronger_gone_ms: None };
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
    fn what_others_prove_counts_for_the_whole_list_and_not_for_one_address() {
        let mut registry = registry();
        for port in 1..=3 {
            assert_eq!(registry.apply(&told(port, "netpanzer", 0), at(0)), Outcome::Added, "three at one address");
        }
        assert_eq!(registry.apply(&told(4, "netpanzer", 0), at(0)), Outcome::Refused(Refusal::Full));
        let server = registry.listed(address(1)).unwrap();
        assert!(server.foreign && server.node == 9 && server.texts.name() == "told");
        assert!(matches!(
            registry.known(address(1), at(20_000)),
            Some(LocalState::Listed { life_left_ms: 100_000, .. })
        ));
    }

    #[test]
    fn two_nodes_that_prove_a_server_in_the_same_millisecond_end_with_the_same_facts() {
        for (own_node, is_theirs) in [(5, true), (200, false)] {
            let mut registry = Registry::new(SETTINGS, at(0));
            registry.set_node(own_node);
            registry.apply(&told(1, "netpanzer", 0), at(0));
            let unpublished = registry.apply(&Change::Announce(announce(1, "netpanzer", 1_000)), at(1_000));
            assert_eq!(unpublished, Outcome::Refreshed, "it says nothing new");
            registry.apply(&told_other_facts(1_000), at(1_010));
            let server = registry.listed(address(1)).unwrap();
            let expected = if is_theirs { ("theirs", 9, true) } else { ("told", own_node, false) };
            assert_eq!((server.texts.name(), server.node, server.foreign), expected, "others hear of what is ours");
        }
    }

    #[test]
    fn a_later_proof_that_was_not_published_is_told_when_the_published_one_loses_a_tie() {
        let mut registry = registry();
        registry.apply(&Change::Announce(announce(1, "netpanzer", 1_000)), at(1_000));
        registry.apply(&Change::Announce(announce(1, "netpanzer", 2_000)), at(2_000));
        registry.drain(&mut Vec::new());
        registry.apply(&told_other_facts(1_000), at(2_010));
        let server = registry.listed(address(1)).unwrap();
        let expected = ("told", T + 2_000, false);
        assert_eq!((server.texts.name(), server.proven_at_ms, server.foreign), expected);
        assert!(registry.is_dirty(), "the other nodes hear of it");
    }

    #[test]
    fn an_echo_changes_nothing_and_a_newer_proof_of_ours_is_ours_again() {
        let mut registry = registry();
        registry.apply(&told(1, "netpanzer", 0), at(0));
        let mut dirty = Vec::new();
        registry.drain(&mut dirty);
        assert_eq!(registry.apply(&told(1, "netpanzer", 0), at(10)), Outcome::Stale);
        assert!(!registry.is_dirty());
        let answer = Change::Answer { address: address(1), game: Game::Own("netpanzer"), rtt_us: 1, facts: None };
        registry.apply(&answer, at(40_000));
        let server = registry.listed(address(1)).unwrap();
        assert_eq!((server.foreign, server.node, server.proven_at_ms), (false, 1, T + 40_000));
        assert_eq!(
            registry.apply(&told(1, "netpanzer", 39_000), at(41_000)),
            Outcome::Refreshed,
            "a newer sign of life"
        );
        let server = registry.listed(address(1)).unwrap();
        assert_eq!((server.proven_at_ms, server.last_seen_ms), (T + 40_000, T + 39_000));
        assert!(!server.foreign, "others lack the proof still");
    }

    #[test]
    fn a_record_whose_life_has_ended_is_older_than_a_server_that_lives_on() {
        let mut registry = registry();
        let Change::Merge(mut ended) = told(1, "netpanzer", 0) else { unreachable!() };
        if let RemoteState::Listed(listed) = &mut *ended {
            listed.announce.life_ms = 0;
        }
        let ended = Change::Merge(ended);
        assert_eq!(registry.apply(&ended, at(10)), Outcome::Refused(Refusal::Late));
        registry.apply(&told(1, "netpanzer", 20), at(20));
        assert_eq!(registry.apply(&ended, at(30)), Outcome::Stale, "so that the store gets the newer one back");
    }

    #[test]
    fn a_removal_wins_over_older_proofs_and_loses_to_newer_ones() {
        let mut registry = registry();
        assert_eq!(registry.apply(&gone(1, 500, true), at(500)), Outcome::Refreshed, "nothing was there");
        assert_eq!(registry.apply(&told(1, "netpanzer", 400), at(600)), Outcome::Stale);
        assert_eq!(registry.apply(&told(1, "netpanzer", 700), at(700)), Outcome::Added);
        assert_eq!(registry.apply(&gone(1, 600, true), at(800)), Outcome::Stale);
        assert_eq!(registry.apply(&gone(1, 900, false), at(900)), Outcome::Changed);
        assert!(registry.listed(address(1)).is_none());
        assert_eq!(registry.len(), 1, "one that no longer answers is kept for its owner");
        assert_eq!(registry.apply(&told(1, "netpanzer", 1_000), at(1_000)), Outcome::Changed);
        assert_eq!(registry.apply(&gone(1, 1_100, true), at(1_100)), Outcome::Changed);
        assert!(registry.is_empty());
        assert_eq!(registry.own_removals(0, at(200_000)).count(), 0, "all of them came from others");
    }

    #[test]
    fn a_removal_from_before_the_clock_was_set_back_stands_in_nobodys_way() {
        let mut registry = registry();
        registry.apply(&Change::Announce(announce(1, "netpanzer", 3_600_000)), at(3_600_000));
        registry.apply(&Change::Quit { address: address(1), master: false }, at(3_600_001));
        assert!(registry.known(address(1), at(3_600_002)).is_some());
        // The clock goes back by an hour; the monotonic one does not.
        let back = |ms: u64| Now { mono_ms: 3_700_000 + ms, unix_ms: T + ms };
        assert!(registry.known(address(1), back(0)).is_none() && registry.own_removals(0, back(0)).count() == 0);
        assert_eq!(registry.apply(&told(1, "netpanzer", 1_000), back(1_000)), Outcome::Added);
        assert_eq!(registry.apply(&gone(1, 3_600_001, true), back(2_000)), Outcome::Stale, "and nobody else's");
        assert!(registry.listed(address(1)).is_some());
        assert_eq!(registry.apply(&gone(1, 3_000, true), back(3_000)), Outcome::Changed);
    }

    #[test]
    fn own_removals_are_told_until_the_server_is_back() {
        let mut registry = registry();
        registry.apply(&Change::Announce(announce(1, "netpanzer", 0)), at(0));
        registry.apply(&Change::Quit { address: address(1), master: false }, at(10));
        assert_eq!(registry.own_removals(T + 10, at(20)).collect::<Vec<_>>(), [address(1)]);
        assert_eq!(registry.own_removals(T + 11, at(20)).count(), 0);
        assert!(matches!(
            registry.known(address(1), at(10)),
            Some(LocalState::Gone(Gone { quit: true, foreign: false, .. }))
        ));
        registry.apply(&Change::Announce(announce(1, "netpanzer", 20)), at(20));
        assert_eq!(registry.own_removals(0, at(200_000)).count(), 0);
        while registry.expire(at(200_000), 100) {}
        assert!(registry.known(address(1), at(200_000)).is_none(), "an ended life is nobody's news");
        registry.apply(
            &Change::Announce(Announce { game: Game::master("netpanzer"), ..announce(2, "netpanzer", 200_000) }),
            at(200_000),
        );
        assert!(registry.known(address(2), at(200_000)).is_none(), "nor is another master");
        registry.apply(&Change::Quit { address: address(2), master: true }, at(200_000));
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
    fn the_operators_word_holds_for_what_others_tell() {
        let mut registry = registry();
        let overrides = Overrides { official: true, priority: 5, flavor: 4 };
        let game = Game::Own("hyperbol");
        let named = NamedServer { address: address(1), game, overrides, asked: true };
        registry.apply(&Change::NamedServers(Arc::new([named])), at(0));
        let refused = Outcome::Refused(Refusal::OtherGameConfigured);
        assert_eq!(registry.apply(&told(1, "netpanzer", 10), at(10)), refused);
        assert_eq!(registry.apply(&told(1, "hyperbol", 10), at(10)), Outcome::Changed);
        assert_eq!(registry.listed(address(1)).unwrap().overrides, overrides);
        // Here it is kept by the word, and others are told of a life that outlasts three misses.
        while registry.expire(at(600_000), 100) {}
        let known = registry.known(address(1), at(600_000));
        assert!(matches!(known, Some(LocalState::Listed { life_left_ms: 120_000, asked: false, .. })), "{known:?}");
        assert_eq!(registry.apply(&gone(1, 600_000, true), at(600_000)), Outcome::Changed);
        assert_eq!(registry.len(), 1, "the operator wants it asked still");
        let mut targets = Vec::new();
        registry.due(at(700_000), 10, &mut targets);
        assert!(targets.iter().all(|target| target.named) && !targets.is_empty());
    }

    #[test]
    fn the_earlier_first_sight_counts_whichever_comes_last() {
        let seen = |first_seen_ms, proven_ms| told_since(first_seen_ms, 1, "netpanzer", proven_ms);
        for [before, after] in [[T - 5_000, T - 9_000], [T - 9_000, T - 5_000]] {
            let mut registry = registry();
            registry.apply(&seen(before, 0), at(0));
            registry.apply(&seen(after, 1_000), at(1_000));
            assert_eq!(registry.listed(address(1)).unwrap().first_seen_ms, T - 9_000);
        }
    }

    #[test]
    fn a_proof_of_another_node_starts_the_count_of_misses_again() {
        let mut registry = registry();
        registry.apply(&told(1, "netpanzer", 0), at(0));
        registry.apply(&Change::Miss { address: address(1), game: Game::Own("netpanzer") }, at(10));
        registry.apply(&told(1, "netpanzer", 20), at(20));
        assert_eq!(registry.address_state(address(1), at(20)).unwrap().misses, 0);
    }

    #[test]
    fn another_game_replaces_if_its_proof_is_newer() {
        let mut registry = registry();
        registry.apply(&told(1, "netpanzer", 1_000), at(1_000));
        assert_eq!(registry.apply(&told(1, "hyperbol", 900), at(1_000)), Outcome::Stale);
        assert_eq!(registry.apply(&told(1, "hyperbol", 1_100), at(1_100)), Outcome::Changed);
        assert_eq!(registry.listed(address(1)).unwrap().game.name(), "hyperbol");
    }
}

//! Ends of lives for the store to save, and servers restored from it.
//!
//! A restored server is listed for a grace period beyond the end of its life, because the file may lack its last heartbeats.
//! Other nodes only ever see the saved end, without the grace period, and nothing until the cluster's time is known. Then it
//! is also known whether this node's clock was stepped since the file was written.

use std::hash::BuildHasher;
use std::sync::Arc;

use super::{Outcome, REPUBLISH_PART, Refusal, Registry, Slot};
use crate::model::{Address, Change, Now, Server, SharedTime};

/// Timestamps that are off by no more than this are not corrected.
const SHIFT_MIN_MS: u64 = 2_000;

/// When a server's life ends unless it is refreshed, and when it was last proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub address: Address,
    pub ends_at_ms: u64,
    pub proven_at_ms: u64,
}

/// Restored servers whose timestamps have not been compared with the cluster's time yet.
#[derive(Clone, Copy, Default)]
pub(super) struct Unsettled {
    /// How far the clock was behind the cluster's time when the file was written. None: nothing to compare.
    behind_ms: Option<i64>,
}

impl Registry {
    /// The number of slots, in use or not.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Appends the lives of the listed servers in up to `most` slots, from slot `from` on. Returns the slot to continue
    /// from, or None at the end. The grace period of a restored server is not part of its life, so that it is not granted
    /// again after another restart.
    pub fn lives(&self, from: usize, most: usize, now: Now, out: &mut Vec<Life>) -> Option<usize> {
        let slots = self.slots.iter().skip(from).take(most);
        let behind_ms = self.unsettled.behind_ms.unwrap_or(self.time.offset_ms(now));
        let without_grace_ms = |slot: &Slot| match slot.restored_end_s {
            0 => u64::MAX,
            end_s => (u64::from(end_s) * 1_000).saturating_add_signed(-behind_ms),
        };
        out.extend(slots.filter(|slot| slot.listed && slot.server.is_some()).map(|slot| Life {
            address: slot.address,
            ends_at_ms: (now.unix_ms + slot.end_ms).saturating_sub(now.mono_ms).min(without_grace_ms(slot)),
            proven_at_ms: slot.proven_at_ms,
        }));
        let next = from + most;
        (next < self.slots.len()).then_some(next)
    }

    /// How far this node's clock is behind the cluster's time; None while that is not known yet.
    pub fn behind_ms(&self, now: Now) -> Option<i64> {
        let is_known = self.node == 0 || self.time.ahead_of_mono_ms.is_some();
        is_known.then(|| self.time.offset_ms(now))
    }

    /// Sets the cluster's time. The first time, restored servers are corrected accordingly.
    pub fn set_time(&mut self, time: SharedTime, now: Now) {
        self.time = time;
        if let Some(behind_ms) = self.unsettled.behind_ms.take() {
            let shift_ms = behind_ms - time.offset_ms(now);
            (0..self.slots.len() as u32).for_each(|at| self.correct_restored(at, shift_ms, now));
        }
    }

    /// The rest of a restored server's life, as reported to other nodes; None if it was refreshed since.
    pub(super) fn restored_left_ms(&self, slot: &Slot, now: Now) -> Option<u64> {
        let end_ms = Some(u64::from(slot.restored_end_s) * 1_000).filter(|end_ms| *end_ms > 0)?;
        let is_known = self.time.ahead_of_mono_ms.is_some();
        Some(if is_known { end_ms.saturating_sub(self.time.unix_ms(now)) } else { 0 })
    }

    /// Makes room for so many more servers, at most as many as may be listed.
    pub fn reserve(&mut self, servers: usize) {
        let servers = servers.min(self.settings.servers_max.saturating_sub(self.len()));
        let Registry { by_address, slots, hasher, dirty, .. } = self;
        slots.reserve(servers);
        dirty.reserve(servers);
        by_address.reserve(servers, |&at| slots.get(at as usize).map_or(0, |slot| hasher.hash_one(slot.address)));
    }

    /// Lists a server from the store again. Limits per address are not checked: it had passed them.
    pub(super) fn restore(&mut self, change: &Change<'_>, now: Now) -> Outcome {
        let &Change::Restore { ref server, ends_at_ms, grace_ms, behind_ms, ask_in_ms } = change else {
            return Outcome::Stale;
        };
        let named = self.named.get(&server.address);
        if named.is_some_and(|named| named.game != server.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        if let Some(refusal) =
            self.refuses(server.address, server.texts.name(), server.strength(), server.proven_at_ms, now)
        {
            return Outcome::Refused(refusal);
        }
        let named = self.named.get(&server.address);
        // A named server stays for as long as its answers may be missed.
        let unanswered_ms = self.settings.ask_every_ms * u64::from(self.settings.misses_max);
        let kept_ms = if named.is_some_and(|named| named.asked) { unanswered_ms } else { 0 };
        let last_ms = (ends_at_ms + grace_ms).max(server.proven_at_ms + kept_ms);
        // A clock that was set back must not extend a life.
        let most_ms = u64::from(server.life_ms) + grace_of(server);
        let left_ms = last_ms.saturating_sub(now.unix_ms).min(most_ms.max(kept_ms));
        if left_ms == 0 {
            self.ask_mirrored_again(server, ask_in_ms, now);
            return Outcome::Refused(Refusal::Late);
        }
        let is_named = named.is_some();
        let overrides = named.map(|named| named.overrides).unwrap_or_default();
        let server = match server.overrides == overrides {
            true => server.clone(),
            false => Arc::new(Server { overrides, ..Server::clone(server) }),
        };
        let (end_ms, asked) = (now.mono_ms + left_ms, server.was_asked());
        let is_weaker = |known: &Arc<Server>| known.strength() < server.strength();
        let at = match self.slot_of(server.address) {
            Some((_, slot)) if slot.listed && !slot.server.as_ref().is_some_and(is_weaker) => return Outcome::Stale,
            // Either a named server, whose entry exists and is already queried, or a weaker proof arrived first.
            Some((at, slot)) => {
                slot.proven_at_ms = server.proven_at_ms;
                slot.server = Some(server);
                (slot.end_ms, slot.listed) = (end_ms, true);
                let newly_asked = asked && !slot.asked;
                slot.asked |= asked;
                self.queue_end(at, end_ms);
                self.mark(at);
                if newly_asked {
                    self.queue_ask(at, now.mono_ms + ask_in_ms);
                }
                at
            }
            None => {
                if !is_named
                    && let Err(refusal) = self.make_room_for(server.address.ip(), server.bytes(), server.via.is_some())
                {
                    return Outcome::Refused(refusal);
                }
                let at = self.insert_shared(server, end_ms, asked, true);
                self.queue_ask(at, now.mono_ms + ask_in_ms);
                at
            }
        };
        if let Some(slot) = self.slots.get_mut(at as usize) {
            self.silent.end(at, &mut slot.misses);
            slot.restored_end_s = seconds(ends_at_ms.saturating_add_signed(behind_ms)).max(1);
        }
        self.unsettled.behind_ms = Some(behind_ms);
        Outcome::Added
    }

    /// Corrects a restored server once the cluster's time is known: shifts its timestamps by the step that the clock made
    /// since, and limits its stay to its end plus the grace period.
    fn correct_restored(&mut self, at: u32, shift_ms: i64, now: Now) {
        let (shared_ms, offset_ms) = (self.time.unix_ms(now), self.time.offset_ms(now));
        let Some(slot) = self.slots.get_mut(at as usize).filter(|slot| slot.restored_end_s != 0) else { return };
        let Some(server) = &mut slot.server else { return };
        let (end_ms, life_ms) = (u64::from(slot.restored_end_s) * 1_000, u64::from(server.life_ms));
        // Last seen in the future: the clock was wrong without anyone noticing, and the true end is unknown. Treat the life
        // as ended, so that any other node's record is newer.
        let is_from_the_future = end_ms.saturating_sub(life_ms) > shared_ms + SHIFT_MIN_MS;
        let restored_end_ms = if is_from_the_future { shared_ms } else { end_ms };
        slot.restored_end_s = seconds(restored_end_ms);
        let left_ms = (restored_end_ms + grace_of(server)).saturating_sub(shared_ms);
        slot.end_ms = slot.end_ms.min(now.mono_ms + left_ms);
        let (address, end_ms) = (slot.address, slot.end_ms);
        if shift_ms.unsigned_abs() > SHIFT_MIN_MS || is_from_the_future {
            let seen_ms = restored_end_ms.saturating_sub(life_ms).saturating_add_signed(-offset_ms).min(now.unix_ms);
            let latest_ms = if is_from_the_future { seen_ms } else { now.unix_ms };
            let shifted = |ms: u64| ms.saturating_add_signed(shift_ms).min(latest_ms);
            slot.proven_at_ms = shifted(slot.proven_at_ms);
            *server = Arc::new(Server {
                proven_at_ms: shifted(server.proven_at_ms),
                first_seen_ms: shifted(server.first_seen_ms),
                last_seen_ms: seen_ms,
                ..Server::clone(server)
            });
            self.mark(at);
        }
        if end_ms <= now.mono_ms && !self.is_named(address) {
            self.remove(at);
        } else {
            self.queue_end(at, end_ms);
        }
    }
}

/// The longest grace period: a heartbeat that changes nothing is published, and so written, at the latest after this time.
fn grace_of(server: &Server) -> u64 {
    u64::from(server.life_ms) / REPUBLISH_PART
}

/// A time in whole seconds.
pub(super) fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1_000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Announce, Facts, Game, Gone, NamedServer, Overrides, Proof, RemoteServer, RemoteState};
    use crate::registry::Settings;
    use crate::registry::merge::LocalState;

    const T: u64 = 1_760_000_000_000;
    const SETTINGS: Settings = Settings {
        servers_max: 100,
        servers_per_ip_max: 100,
        ask_every_ms: 30_000,
        misses_max: 3,
        ..Settings::UNBOUNDED
    };
    const LIFE_MS: u64 = 120_000;

    fn address() -> Address {
        "192.0.2.1:1".parse().unwrap()
    }

    /// The time at a node that started at T, with a clock that is behind by `behind_ms`.
    fn at(ms: u64, behind_ms: i64) -> Now {
        Now { mono_ms: ms, unix_ms: (T + ms).saturating_add_signed(-behind_ms) }
    }

    /// The cluster's time, which is right.
    const SHARED: SharedTime = SharedTime { ahead_of_mono_ms: Some(T as i64) };

    /// A registry with one restored server, whose life ends `ends_ms` after T, written by a clock that was right.
    fn restored(ends_ms: i64, now: Now) -> Registry {
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(1);
        registry.apply(&restore(ends_ms, 0), now);
        registry
    }

    fn restore(ends_ms: i64, behind_ms: i64) -> Change<'static> {
        let ends_at_ms = T.saturating_add_signed(ends_ms - behind_ms);
        let seen_ms = ends_at_ms - LIFE_MS;
        let mut server = Server::new(address(), Game::Own("one"), Proof::Cookie, seen_ms, &Facts::default());
        server.life_ms = LIFE_MS as u32;
        let server = Arc::new(server);
        Change::Restore { server, ends_at_ms, grace_ms: LIFE_MS / 4, behind_ms, ask_in_ms: 0 }
    }

    /// The rest of the server's life, as reported to other nodes.
    fn reported_ms(registry: &Registry, now: Now) -> Option<u64> {
        registry.local_state(address(), now).map(|local| match local {
            LocalState::Listed { life_left_ms, .. } => life_left_ms,
            LocalState::Gone(gone) => panic!("{gone:?}"),
        })
    }

    fn is_listed(registry: &mut Registry, now: Now) -> bool {
        while registry.expire(now, 100) {}
        registry.listed(address()).is_some()
    }

    #[test]
    fn a_restored_server_is_reported_once_the_time_is_known_and_without_its_grace() {
        let mut registry = restored(10_000, at(0, 0));
        assert!(is_listed(&mut registry, at(0, 0)));
        assert_eq!(reported_ms(&registry, at(0, 0)), None, "the cluster's time is not known");
        registry.set_time(SHARED, at(1_000, 0));
        assert_eq!(reported_ms(&registry, at(1_000, 0)), Some(9_000));
        assert_eq!(reported_ms(&registry, at(10_000, 0)), None);
        assert!(is_listed(&mut registry, at(39_000, 0)), "the grace applies to this node only");
        assert!(!is_listed(&mut registry, at(40_300, 0)));

        let mut ended = restored(-1_000, at(0, 0));
        ended.set_time(SHARED, at(0, 0));
        assert!(is_listed(&mut ended, at(0, 0)) && reported_ms(&ended, at(0, 0)).is_none());
        let mut lives = Vec::new();
        ended.lives(0, 10, at(0, 0), &mut lives);
        assert_eq!(lives[0].ends_at_ms, T - 1_000, "the grace is not written either, so it is not granted twice");
    }

    fn proven_by(proof: Proof, ask_in_ms: u64) -> Change<'static> {
        let Change::Restore { server, ends_at_ms, grace_ms, behind_ms, .. } = restore(50_000, 0) else {
            unreachable!()
        };
        let server = Arc::new(Server { verified_by: proof, ..Server::clone(&server) });
        Change::Restore { server, ends_at_ms, grace_ms, behind_ms, ask_in_ms }
    }

    fn due(registry: &mut Registry, ms: u64) -> usize {
        let mut due = Vec::new();
        registry.due(at(ms, 0), 10, &mut due);
        due.len()
    }

    #[test]
    fn a_restored_server_is_queried_at_its_time_if_queries_prove_it() {
        for (proof, queries) in [(Proof::Query, 1), (Proof::Cookie, 0)] {
            let mut registry = Registry::new(SETTINGS, at(0, 0));
            registry.apply(&proven_by(proof, 7_000), at(0, 0));
            assert_eq!((due(&mut registry, 6_750), due(&mut registry, 7_250)), (0, queries), "{proof:?}");
        }
        // The same if the address was listed with a weaker proof meanwhile.
        let mut registry = Registry::new(SETTINGS, at(0, 0));
        registry.apply(&proven_by(Proof::Connection, 0), at(0, 0));
        assert_eq!(registry.apply(&proven_by(Proof::Query, 7_000), at(0, 0)), Outcome::Added);
        assert_eq!((due(&mut registry, 6_750), due(&mut registry, 7_250)), (0, 1));
    }

    #[test]
    fn a_named_server_is_restored_while_its_last_answer_is_recent_and_queried_at_once() {
        let overrides = Overrides { official: true, priority: 3, flavor: 0 };
        let named = NamedServer { address: address(), game: Game::Own("one"), overrides, asked: true };
        let Change::Restore { server, behind_ms, .. } = restore(-60_000, 0) else { unreachable!() };
        // Its life ended a minute ago; it answered ten seconds ago.
        let server = Arc::new(Server { proven_at_ms: T - 10_000, verified_by: Proof::Query, ..Server::clone(&server) });
        let ended = Change::Restore { server, ends_at_ms: T - 60_000, grace_ms: 0, behind_ms, ask_in_ms: 20_000 };
        let mut registry = Registry::new(SETTINGS, at(0, 0));
        assert_eq!(registry.apply(&ended, at(0, 0)), Outcome::Refused(Refusal::Late), "not named");
        registry.apply(&Change::NamedServers(Arc::new([named])), at(0, 0));
        assert_eq!(registry.apply(&ended, at(0, 0)), Outcome::Added);
        let state = registry.address_state(address(), at(0, 0)).unwrap();
        assert_eq!((state.life_left_ms, state.server.overrides), (80_000, overrides), "three misses after that");
        assert_eq!(due(&mut registry, 0), 1);
    }

    #[test]
    fn the_lives_of_listed_servers_are_saved_by_this_nodes_clock() {
        let now = at(0, 600_000);
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(1);
        registry.apply(&restore(50_000, 600_000), now);
        let announce = |port: u16, life_ms: u64| {
            Change::Announce(Announce {
                address: Address::new([192, 0, 2, 2].into(), port).unwrap(),
                game: Game::Own("one"),
                proof: Proof::Query,
                proven_at_ms: now.unix_ms,
                life_ms,
                asked: true,
                rtt_us: None,
                keys: None,
                facts: Facts::default(),
            })
        };
        for port in 1..=3 {
            registry.apply(&announce(port, 70_000), now);
        }
        let missed = Address::new([192, 0, 2, 2].into(), 2).unwrap();
        // The last of four: the other nodes of the cluster ask before it leaves.
        for _ in 0..4 {
            registry.apply(&Change::Miss { address: missed, game: Game::Own("one"), proven_at_ms: None }, now);
        }
        registry.retain(|address| address.port() != 3);
        assert_eq!(registry.slots(), 4, "in use or not");
        let mut lives = Vec::new();
        assert_eq!(registry.lives(0, 4, now, &mut lives), None, "that was all");
        let ends: Vec<_> = lives.iter().map(|life| (life.address.port(), life.ends_at_ms)).collect();
        assert_eq!(ends, [(1, now.unix_ms + 50_000), (1, now.unix_ms + 70_000)], "not what is unlisted or gone");
    }

    #[test]
    fn a_restored_server_has_the_rest_of_its_life_and_its_grace() {
        let registry = restored(110_000, at(0, 0));
        assert_eq!(registry.address_state(address(), at(0, 0)).unwrap().life_left_ms, 140_000);
    }

    #[test]
    fn differences_of_up_to_two_seconds_are_not_corrected() {
        for (behind_ms, shift_ms) in [(2_000, 0), (2_001, 2_001), (-2_000, 0)] {
            let now = at(0, behind_ms);
            let mut registry = restored(50_000, now);
            registry.set_time(SHARED, now);
            let server = registry.listed(address()).unwrap();
            let stamps = (server.first_seen_ms, server.proven_at_ms);
            assert_eq!(stamps, (T - 70_000 - shift_ms, T - 70_000 - shift_ms), "{behind_ms} behind");
        }
        for (seen_ms, is_reported) in [(0, true), (2_000, true), (3_000, false)] {
            let mut registry = restored(LIFE_MS as i64 + seen_ms, at(0, 0));
            registry.set_time(SHARED, at(0, 0));
            assert_eq!(reported_ms(&registry, at(0, 0)).is_some(), is_reported, "seen {seen_ms} ms in the future");
        }
    }

    #[test]
    fn a_clock_that_is_behind_lists_nothing_for_longer_than_the_grace() {
        let behind_ms = 600_000;
        let now = at(0, behind_ms);
        let mut long_gone = restored(-200_000, now);
        assert!(is_listed(&mut long_gone, now), "still alive by this clock");
        long_gone.set_time(SHARED, now);
        assert!(!is_listed(&mut long_gone, now));

        let mut alive = restored(50_000, now);
        alive.set_time(SHARED, now);
        assert_eq!(reported_ms(&alive, now), Some(50_000));
        let server = alive.listed(address()).unwrap();
        assert_eq!((server.last_seen_ms, server.proven_at_ms), (now.unix_ms - 70_000, now.unix_ms - 70_000));
        assert!(is_listed(&mut alive, at(79_000, behind_ms)) && !is_listed(&mut alive, at(80_300, behind_ms)));
    }

    #[test]
    fn timestamps_from_the_future_are_not_reported() {
        // Written by a node that was alone, with a clock that was ten minutes ahead.
        for behind_ms in [0, -600_000] {
            let now = at(0, behind_ms);
            let mut registry = restored(650_000, now);
            assert!(is_listed(&mut registry, now));
            registry.set_time(SHARED, now);
            assert_eq!(reported_ms(&registry, now), None);
            let server = registry.listed(address()).unwrap();
            let ended_ms = now.unix_ms - LIFE_MS;
            assert!(server.last_seen_ms <= ended_ms && server.proven_at_ms <= ended_ms, "older than what others know");
            assert!(is_listed(&mut registry, at(29_000, behind_ms)), "the grace applies to this node only");
            assert!(!is_listed(&mut registry, at(30_300, behind_ms)));
        }
    }

    #[test]
    fn a_clock_that_was_always_behind_loses_nothing() {
        let now = at(0, 600_000);
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(1);
        assert_eq!(registry.apply(&restore(50_000, 600_000), now), Outcome::Added);
        assert_eq!(registry.behind_ms(now), None, "not known yet: the file keeps its value");
        registry.set_time(SHARED, now);
        assert_eq!(registry.behind_ms(now), Some(600_000));
        assert_eq!(reported_ms(&registry, now), Some(50_000));
        assert_eq!(registry.listed(address()).unwrap().proven_at_ms, now.unix_ms - 70_000);
    }

    #[test]
    fn new_proofs_of_a_restored_server_count_as_usual() {
        let mut registry = restored(-1_000, at(0, 0));
        registry.set_time(SHARED, at(0, 0));
        let listed = |left_ms| {
            let announce = Announce {
                address: address(),
                game: Game::Own("one"),
                proof: Proof::Cookie,
                proven_at_ms: T,
                life_ms: left_ms,
                asked: false,
                rtt_us: None,
                keys: None,
                facts: Facts::default(),
            };
            RemoteServer {
                silence: Default::default(),
                announce,
                node: 9,
                first_seen_ms: T,
                last_seen_ms: T,
                via: None,
                stronger_gone_ms: None,
            }
        };
        let merge = |left_ms| Change::Merge(Box::new(RemoteState::Listed(listed(left_ms))));
        registry.apply(&merge(20_000), at(0, 0));
        assert_eq!(reported_ms(&registry, at(0, 0)), Some(20_000), "the other node's value, without a grace");
        registry.apply(&merge(90_000), at(0, 0));
        assert_eq!(reported_ms(&registry, at(0, 0)), Some(90_000));
        registry
            .apply(&Change::Announce(Announce { proven_at_ms: T + 5_000, ..listed(LIFE_MS).announce }), at(5_000, 0));
        assert_eq!(reported_ms(&registry, at(5_000, 0)), Some(LIFE_MS));
        let gone = Gone { address: address(), at_ms: T + 6_000, game_at_ms: T + 6_000, quit: true, foreign: true };
        assert_eq!(registry.apply(&Change::Merge(Box::new(RemoteState::Gone(gone))), at(6_000, 0)), Outcome::Changed);
    }

    #[test]
    fn a_restored_named_server_is_reported_once_it_has_answered() {
        let mut registry = Registry::new(SETTINGS, at(0, 0));
        registry.set_node(1);
        let game = Game::Own("one");
        let named =
            NamedServer { address: address(), game: game.clone(), overrides: Overrides::default(), asked: true };
        registry.apply(&Change::NamedServers(Arc::new([named])), at(0, 0));
        registry.apply(&restore(-1_000, 0), at(0, 0));
        registry.set_time(SHARED, at(0, 0));
        assert!(is_listed(&mut registry, at(0, 0)) && reported_ms(&registry, at(0, 0)).is_none());
        registry.apply(&Change::Answer { address: address(), game, rtt_us: 1, facts: None, digest: 0 }, at(100, 0));
        assert_eq!(reported_ms(&registry, at(100, 0)), Some(120_000), "as long as its answers could be missed");
    }
}

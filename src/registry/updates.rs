//! Updates of known servers: heartbeats, answered and missed queries, and quits.

use std::sync::Arc;

use super::merge::gone;
use super::silence::announced_ms;
use super::{Outcome, REPUBLISH_PART, Refusal, Registry, is_same_life, whole_life};
use crate::model::{
    Address, Facts, Game, HeartbeatKeys, Now, Proof, Server, Silence, Strength, VersionText, round_trip,
};

impl Registry {
    pub(super) fn heartbeat(
        &mut self,
        address: Address,
        game: &Game,
        life_ms: u64,
        keys: &Arc<HeartbeatKeys>,
        now: Now,
    ) -> Outcome {
        let not_listed = Outcome::Refused(Refusal::NotListed);
        let Some(at) = self.find(address) else { return not_listed };
        let Some(slot) = self.slots.get_mut(at as usize) else { return not_listed };
        // Answers to our queries are the proof; without them a heartbeat proves nothing more than a connection. A server
        // that is proven by a cookie is not refreshed by heartbeats.
        let is_proven = |server: &Server| server.game == *game && server.verified_by == Proof::Query;
        let Some(server) = slot.server.as_mut().filter(|server| slot.listed && is_proven(server)) else {
            return not_listed;
        };
        let end_ms = now.mono_ms + life_ms;
        if slot.asked && slot.misses == 0 {
            self.silent.note_gap(at, announced_ms(slot.end_ms, server), now.mono_ms);
        }
        slot.end_ms = end_ms;
        slot.restored_end_s = 0;
        let end_tick = slot.end_tick;
        let unchanged = server.keys.as_ref() == Some(keys) && server.via.is_none();
        let published_age_ms = now.unix_ms.abs_diff(server.last_seen_ms);
        let is_same_life = is_same_life(server, life_ms);
        if !unchanged || !is_same_life || published_age_ms >= life_ms / REPUBLISH_PART {
            let (keys, life_ms) = (Some(keys.clone()), whole_life(life_ms));
            let (last_seen_ms, via) = (now.unix_ms, None);
            *server = Arc::new(Server { keys, last_seen_ms, life_ms, via, foreign: false, ..Server::clone(server) });
            self.mark(at);
        }
        if self.ends.tick_for(end_ms) < end_tick {
            self.queue_end(at, end_ms);
        }
        if unchanged { Outcome::Refreshed } else { Outcome::Changed }
    }

    pub(super) fn answer(
        &mut self,
        address: Address,
        game: &Game,
        rtt_us: u32,
        facts: Option<&Facts<'_>>,
        digest: u64,
        now: Now,
    ) -> Outcome {
        let (republish_ms, node) = (self.settings.ask_every_ms, self.node);
        let is_named = self.is_named(address);
        let Some((at, slot)) = self.slot_of(address) else { return Outcome::Stale };
        let Some(known) = slot.server.clone().filter(|server| server.game == *game) else { return Outcome::Stale };
        let completed = facts.and_then(|facts| with_known_version(&known, facts));
        let has_facts = facts.is_some();
        let facts = completed.as_ref().or(facts);
        let name = facts.map_or(known.texts.name(), |facts| &facts.name);
        let strength = Strength::of(Proof::Query, known.via.is_some());
        if let Some(refusal) = self.refuses(address, name, strength, u64::MAX, now) {
            return Outcome::Refused(refusal);
        }
        let mirrored_life_ms = known.via.as_ref().map(|_| self.settings.mirrored_life_ms());
        let known_digest = self.digest(at);
        let Some(slot) = self.slots.get_mut(at as usize) else { return Outcome::Stale };
        let Some(server) = slot.server.as_mut() else { return Outcome::Stale };
        let was_listed = std::mem::replace(&mut slot.listed, true);
        if is_named {
            slot.restored_end_s = 0; // a named server needs no heartbeat
        }
        if let Some(life_ms) = mirrored_life_ms {
            // Nobody announces it: its answers renew its life.
            (slot.end_ms, slot.restored_end_s) = (now.mono_ms + life_ms, 0);
        }
        self.silent.end(at, &mut slot.misses);
        slot.proven_at_ms = now.unix_ms;
        let new_facts = facts.filter(|facts| !server.matches_facts(facts));
        // A cookie says more than an answer without our nonce, and no less than one with it.
        let verified_by = if server.verified_by == Proof::Cookie { Proof::Cookie } else { Proof::Query };
        let unchanged =
            was_listed && new_facts.is_none() && server.verified_by == verified_by && server.silence() == Silence::None;
        let published_age_ms = now.unix_ms.abs_diff(server.proven_at_ms);
        if !unchanged || published_age_ms >= republish_ms {
            let updated = new_facts.map_or_else(|| Server::clone(server), |facts| server.with_facts(facts));
            let proven_at_ms = now.unix_ms;
            let rtt_us = Some(round_trip(rtt_us));
            let (last_seen_ms, life_ms) = match mirrored_life_ms {
                Some(life_ms) => (now.unix_ms, whole_life(life_ms)),
                None => (updated.last_seen_ms, updated.life_ms),
            };
            let answered =
                Server { verified_by, foreign: false, node, proven_at_ms, rtt_us, last_seen_ms, life_ms, ..updated };
            *server = Arc::new(answered.with_silence(Silence::None));
            self.mark(at);
        }
        // An answer that was not read says what is known only if nothing else has changed that meanwhile.
        self.set_digest(at, if has_facts || digest == known_digest { digest } else { 0 });
        if !was_listed {
            self.removals.forget(address, strength);
        }
        if unchanged { Outcome::Refreshed } else { Outcome::Changed }
    }

    pub(super) fn miss(&mut self, address: Address, game: &Game, proven_at_ms: Option<u64>, now: Now) -> Outcome {
        let Some((at, slot)) = self.slot_of(address) else { return Outcome::Stale };
        let Some(server) = slot.server.clone().filter(|server| server.game == *game) else { return Outcome::Stale };
        if proven_at_ms.is_some_and(|asked_after_ms| asked_after_ms != slot.proven_at_ms) {
            return Outcome::Stale;
        }
        slot.misses = slot.misses.saturating_add(1);
        if !slot.listed {
            return Outcome::Refreshed;
        }
        if let Some(silence) = self.silence(at, now) {
            return if self.set_silence(at, silence) { Outcome::Changed } else { Outcome::Refreshed };
        }
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.listed = false;
        }
        self.silent.leave(at);
        self.mark(at);
        self.removals.add(gone(&server, now.unix_ms, false), now);
        Outcome::Changed
    }

    pub(super) fn quit(&mut self, address: Address, master: bool, proven: bool, now: Now) -> Outcome {
        let is_named = self.is_named(address);
        let Some((at, slot)) = self.slot_of(address) else { return Outcome::Stale };
        let Some(server) = &mut slot.server else { return Outcome::Stale };
        let came_by_heartbeat = server.keys.is_some() && server.verified_by != Proof::Cookie;
        if !(came_by_heartbeat || proven) || server.game.is_master() != master {
            return Outcome::Stale;
        }
        let gone = gone(server, now.unix_ms, true);
        let was_listed = std::mem::replace(&mut slot.listed, false);
        if is_named {
            // A named server is listed for as long as it answers: query it now.
            *server = Arc::new(Server { keys: None, ..Server::clone(server) });
            self.mark(at);
            self.queue_ask(at, now.mono_ms);
        } else {
            self.remove(at);
        }
        if !master {
            self.removals.add(gone, now);
        }
        if was_listed { Outcome::Changed } else { Outcome::Refreshed }
    }

    pub(super) fn digest(&self, at: u32) -> u64 {
        self.digests.get(at as usize).copied().unwrap_or(0)
    }

    pub(super) fn set_digest(&mut self, at: u32, digest: u64) {
        let place = at as usize;
        if digest != 0 && self.digests.len() <= place {
            self.digests.resize(place + 1, 0);
        }
        if let Some(known) = self.digests.get_mut(place) {
            *known = digest;
        }
    }
}

/// The facts of an answer with the version that the server announced, where the answer has none: not every game's query tells
/// it. None: nothing has to be added.
fn with_known_version<'a>(known: &Server, facts: &Facts<'a>) -> Option<Facts<'a>> {
    let version = VersionText::from(known.texts.version()).ok().filter(|version| !version.is_empty())?;
    facts.version.is_empty().then(|| Facts { version, ..facts.clone() })
}

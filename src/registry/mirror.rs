//! Servers that other masters list. Each has answered our own query, and is listed for as long as it answers: nobody announces
//! it, so its answers renew its life. A server that announces itself is never changed here, and takes over an entry that
//! another master brought.

use std::sync::Arc;

use super::{Outcome, Registry, Settings, Slot};
use crate::model::{Mirrored, Now, Proof, Server, Strength, round_trip};

/// How long a mirrored server stays known after its last answer. It leaves the list much earlier, after a few missed queries;
/// until then it is queried, and is back with its first answer.
const LIFE_MS_MIN: u64 = 600_000;
/// After this long without an answer, a server from before a restart is not queried again.
const FORGOTTEN_MS: u64 = 30 * 86_400_000;

/// The slots of mirrored servers.
#[derive(Default)]
pub(super) struct MirroredSlots {
    count: usize,
    /// In order of arrival, the newest last, including some that are no longer mirrored.
    pub(super) order: Vec<u32>,
}

impl MirroredSlots {
    /// The mirrored server that came last, which gives way first.
    pub(super) fn newest(&mut self, slots: &[Slot]) -> Option<u32> {
        while let Some(at) = self.order.pop() {
            if slots.get(at as usize).is_some_and(|slot| slot.mirrored) {
                return Some(at);
            }
        }
        None
    }
}

impl Settings {
    /// The life of a mirrored server after an answer: longer than it takes to miss as many queries as end a listing.
    pub fn mirrored_life_ms(&self) -> u64 {
        LIFE_MS_MIN.max(self.ask_every_ms * (u64::from(self.misses_max) + 2))
    }
}

impl Registry {
    /// The number of mirrored servers, listed or not.
    pub fn mirrored(&self) -> usize {
        self.mirrored.count
    }

    pub(super) fn mirror(&mut self, mirrored: &Mirrored<'_>, now: Now) -> Outcome {
        let Mirrored { address, game, via, rtt_us, facts } = mirrored;
        let known = self.slot_of(*address).and_then(|(at, slot)| Some((at, slot.server.clone()?)));
        let is_direct = known.as_ref().is_some_and(|(_, server)| server.via.is_none());
        if is_direct || self.named.contains_key(address) {
            return Outcome::Stale;
        }
        // It has answered just now. Another node's clock may be ahead, but its proof is not newer.
        if let Some(refusal) = self.refuses(*address, &facts.name, Strength::Mirrored, u64::MAX, now) {
            return Outcome::Refused(refusal);
        }
        match known {
            Some((_, server)) if server.game == *game => {
                return self.answer(*address, game, *rtt_us, Some(facts), 0, now);
            }
            Some((at, _)) => self.remove(at),
            None => {}
        }
        let life_ms = self.settings.mirrored_life_ms();
        let server = Server {
            node: self.node,
            rtt_us: Some(round_trip(*rtt_us)),
            life_ms: super::whole_life(life_ms),
            via: Some(via.clone()),
            ..Server::new(*address, game.clone(), Proof::Query, now.unix_ms, facts)
        };
        if let Err(refusal) = self.admit(&server) {
            return Outcome::Refused(refusal);
        }
        self.removals.forget(*address, Strength::Mirrored);
        let at = self.insert(server, now.mono_ms + life_ms, true, true);
        self.queue_ask(at, now.mono_ms + self.spread_ms(at));
        Outcome::Added
    }

    /// Keeps a mirrored server from before a restart whose life ended while the program was down: nobody will announce it
    /// again, so it is queried, and listed once it answers.
    pub(super) fn ask_mirrored_again(&mut self, server: &Arc<Server>, ask_in_ms: u64, now: Now) {
        let is_recent = server.proven_at_ms + FORGOTTEN_MS > now.unix_ms;
        let ip = server.address.ip();
        if server.via.is_some()
            && is_recent
            && self.find(server.address).is_none()
            && self.make_room_for(ip, server.bytes(), true).is_ok()
        {
            let end_ms = now.mono_ms + self.settings.mirrored_life_ms();
            let at = self.insert(Server::clone(server), end_ms, true, false);
            self.queue_ask(at, now.mono_ms + ask_in_ms);
        }
    }

    /// Updates the number of mirrored entries. Call it whenever an entry has changed.
    pub(super) fn recount_mirrored(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let is_mirrored = slot.server.as_ref().is_some_and(|server| server.via.is_some());
        if std::mem::replace(&mut slot.mirrored, is_mirrored) == is_mirrored {
            return;
        }
        if !is_mirrored {
            self.mirrored.count -= 1;
            return;
        }
        self.mirrored.count += 1;
        self.mirrored.order.push(at);
        if self.mirrored.order.len() > 2 * self.mirrored.count + 64 {
            self.tidy_mirrored();
        }
    }

    /// Removes slots that are no longer mirrored, and all but the newest place of each slot.
    fn tidy_mirrored(&mut self) {
        let mut seen = std::collections::HashSet::new();
        let slots = &self.slots;
        let is_mirrored = |at: &u32| slots.get(*at as usize).is_some_and(|slot| slot.mirrored);
        let newest_first = self.mirrored.order.iter().rev().copied();
        let mut order: Vec<u32> = newest_first.filter(|at| is_mirrored(at) && seen.insert(*at)).collect();
        order.reverse();
        self.mirrored.order = order;
    }
}

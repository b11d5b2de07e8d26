//! Servers that do not answer. Somebody else can be the cause: who forges our address at a game that limits its answers per
//! address keeps us unanswered. So before a server is taken off the list, the other nodes of a cluster ask, and one whose
//! announcements go on arriving stays for a grace period with what it said last, marked.
//!
//! Announcements go on arriving if the last one is hardly older than the longest interval so far. An announcement that may be
//! forged counts as well: the grace period is counted from the last answer, so no forger can exceed it.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Outcome, Registry, Slot};
use crate::model::{Address, Now, Server, Silence};

/// An announcement may be late by a quarter of the interval and this.
const LATE_MS: u64 = 2_000;

#[derive(Default)]
pub(super) struct Silent {
    /// By slot: the listed servers that have not answered their last query.
    since: HashMap<u32, Since>,
    /// By slot: the longest interval between two announcements, in seconds; 0: there was no second one. As long as the last slot
    /// that had one.
    gaps_s: Vec<u16>,
}

/// Times are monotonic.
struct Since {
    answered_ms: u64,
    /// When it last announced itself without a proof.
    announced_ms: u64,
}

impl Silent {
    /// A server that is queried and answers announces itself now, and did so before.
    pub fn note_gap(&mut self, at: u32, before_ms: u64, now_ms: u64) {
        let place = at as usize;
        if now_ms <= before_ms {
            return;
        }
        let gap_s = u16::try_from((now_ms - before_ms).div_ceil(1_000)).unwrap_or(u16::MAX);
        if self.gaps_s.len() <= place {
            self.gaps_s.resize(place + 1, 0);
        }
        if let Some(longest_s) = self.gaps_s.get_mut(place) {
            *longest_s = gap_s.max(*longest_s);
        }
    }

    /// It has proven itself.
    pub fn end(&mut self, at: u32, misses: &mut u8) {
        if std::mem::take(misses) > 0 {
            self.since.remove(&at);
        }
    }

    /// It has left the list.
    pub fn leave(&mut self, at: u32) {
        self.since.remove(&at);
    }

    /// The slot is free.
    pub fn forget(&mut self, at: u32) {
        self.since.remove(&at);
        if let Some(gap_s) = self.gaps_s.get_mut(at as usize) {
            *gap_s = 0;
        }
    }

    fn gap_ms(&self, at: u32) -> u64 {
        self.gaps_s.get(at as usize).map_or(0, |gap_s| u64::from(*gap_s) * 1_000)
    }
}

/// When a server last announced itself with a proof: its life began then.
pub(super) fn announced_ms(end_ms: u64, server: &Server) -> u64 {
    end_ms.saturating_sub(server.life_ms.into())
}

impl Registry {
    /// A server announces itself by something that may be forged. It counts only while the server is silent.
    pub(super) fn announcing(&mut self, address: Address, protocol: &str, now: Now) -> Outcome {
        let is_it =
            |slot: &Slot| slot.listed && slot.server.as_ref().is_some_and(|server| server.game.protocol() == protocol);
        let at = self.find(address).filter(|at| self.slots.get(*at as usize).is_some_and(is_it));
        let Some(since) = at.and_then(|at| self.silent.since.get_mut(&at)) else { return Outcome::Stale };
        since.announced_ms = now.mono_ms;
        Outcome::Refreshed
    }

    /// Notes that a listed server has not answered. What follows from its silence; None: it has to leave the list.
    pub(super) fn silence(&mut self, at: u32, now: Now) -> Option<Silence> {
        let slot = self.slots.get(at as usize)?;
        let server = slot.server.as_ref()?;
        let grace_ms = self.settings.grace_ms;
        let since = self.silent.since.entry(at).or_insert_with(|| {
            let age_ms = now.unix_ms.saturating_sub(slot.proven_at_ms).min(grace_ms);
            Since { answered_ms: now.mono_ms.saturating_sub(age_ms), announced_ms: 0 }
        });
        if slot.misses < self.settings.misses_max {
            return Some(server.silence());
        }
        if self.node != 0 && server.silence() == Silence::None {
            return Some(Silence::OthersAsk);
        }
        let announced_ms = since.announced_ms.max(announced_ms(slot.end_ms, server));
        let is_in_grace = now.mono_ms < since.answered_ms + grace_ms;
        let gap_ms = self.silent.gap_ms(at);
        let announces = gap_ms > 0 && now.mono_ms <= announced_ms + gap_ms + gap_ms / 4 + LATE_MS;
        (is_in_grace && announces && server.via.is_none()).then_some(Silence::Announces)
    }

    /// Publishes what follows from a server's silence. True if that is new.
    pub(super) fn set_silence(&mut self, at: u32, silence: Silence) -> bool {
        let node = self.node;
        let Some(slot) = self.slots.get_mut(at as usize) else { return false };
        let Some(server) = slot.server.as_mut().filter(|server| server.silence() != silence) else { return false };
        // A proof that is not published yet is this node's own.
        let node = if server.proven_at_ms == slot.proven_at_ms { server.node } else { node };
        let proven_at_ms = slot.proven_at_ms;
        *server =
            Arc::new(Server { proven_at_ms, node, foreign: false, ..Server::clone(server) }.with_silence(silence));
        self.mark(at);
        true
    }
}

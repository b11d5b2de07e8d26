//! What outlives the program: when lives end, for whoever keeps them, and the way back.

use std::sync::Arc;

use super::{Outcome, REPUBLISH_PART, Refusal, Registry};
use crate::model::{Address, Now, Proof, Server};

/// When the life of a server at an address ends, as things are, and when it was last proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub address: Address,
    pub ends_at_ms: u64,
    pub proven_at_ms: u64,
}

impl Registry {
    /// How many slots there are, in use or not.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Appends when the lives of the listed servers in up to `most` slots end, from slot `from` on; tells where to go
    /// on, or None at the end.
    pub fn lives(&self, from: usize, most: usize, now: Now, out: &mut Vec<Life>) -> Option<usize> {
        let slots = self.slots.iter().skip(from).take(most);
        out.extend(slots.filter(|slot| slot.listed && slot.server.is_some()).map(|slot| Life {
            address: slot.address,
            ends_at_ms: (now.unix_ms + slot.end_ms).saturating_sub(now.mono_ms),
            proven_at_ms: slot.proven_at_ms,
        }));
        let next = from + most;
        (next < self.slots.len()).then_some(next)
    }

    /// Its owner has done nothing new, so the limit for each IP address is not asked again.
    pub(super) fn restore(&mut self, server: &Arc<Server>, ends_at_ms: u64, ask_in_ms: u64, now: Now) -> Outcome {
        let word = self.words.get(&server.address);
        if word.is_some_and(|word| word.game != server.game) {
            return Outcome::Refused(Refusal::OtherGameConfigured);
        }
        // What the operator names stays for as long as it would have without an answer.
        let unanswered_ms = self.settings.ask_every_ms * u64::from(self.settings.misses_max);
        let kept_ms = if word.is_some_and(|word| word.asked) { unanswered_ms } else { 0 };
        let ends_at_ms = ends_at_ms.max(server.proven_at_ms + kept_ms);
        // A clock that was set back makes no life longer than it was.
        let most_ms = u64::from(server.life_ms) * (REPUBLISH_PART + 1) / REPUBLISH_PART;
        let left_ms = ends_at_ms.saturating_sub(now.unix_ms).min(most_ms.max(kept_ms));
        if left_ms == 0 {
            return Outcome::Refused(Refusal::Late);
        }
        let is_named = word.is_some();
        let word = word.map(|word| word.word).unwrap_or_default();
        let server = Server { word, ..Server::clone(server) };
        let (end_ms, asked) = (now.mono_ms + left_ms, server.verified_by == Proof::Query);
        let is_weaker = |known: &Arc<Server>| known.verified_by.is_weaker_than(server.verified_by);
        match self.slot_of(server.address) {
            Some((_, slot)) if slot.listed && !slot.server.as_ref().is_some_and(is_weaker) => return Outcome::Stale,
            // The operator's word has made a place for it, where it is asked already; or a weaker proof was faster.
            Some((at, slot)) => {
                slot.proven_at_ms = server.proven_at_ms;
                slot.server = Some(Arc::new(server));
                (slot.end_ms, slot.listed) = (end_ms, true);
                let newly_asked = asked && !slot.asked;
                slot.asked |= asked;
                self.queue_end(at, end_ms);
                self.mark(at);
                if newly_asked {
                    self.queue_ask(at, now.mono_ms + ask_in_ms);
                }
            }
            None => {
                if !is_named && let Err(refusal) = self.make_room_for(server.address.ip()) {
                    return Outcome::Refused(refusal);
                }
                let at = self.insert(server, end_ms, asked, true);
                self.queue_ask(at, now.mono_ms + ask_in_ms);
            }
        }
        Outcome::Added
    }
}

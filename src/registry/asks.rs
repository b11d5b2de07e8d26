//! When servers are queried: which are due, and how their queries are spread.

use super::{Registry, Slot};
use crate::model::{Address, Game, Now, Proof, Silence};

/// The shortest time between an announcement that was itself an answer to a query, and the next query.
const AFTER_QUERY_MS: u64 = 1_100;

/// A server to query now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub address: Address,
    pub game: Game,
    /// A named server, which other nodes may not know.
    pub named: bool,
    /// It answered the last query.
    pub proven: bool,
    /// Its newest proof.
    pub proven_at_ms: u64,
    /// Identifies the answer that says what is known about it; 0: none does.
    pub digest: u64,
    /// Which of our addresses asks: another one than before if the next miss would take it off the list.
    pub turn: u8,
    /// The node that queries it has no answer: every node asks.
    pub others_ask: bool,
}

impl Registry {
    /// Appends up to `most` servers that are due for a query, and schedules the next query of each.
    pub fn due(&mut self, now: Now, most: usize, out: &mut Vec<Due>) {
        for _ in 0..most {
            let Some((tick, at)) = self.asks.pop_due(now.mono_ms) else { return };
            let Some(slot) = self.slots.get(at as usize) else { continue };
            let Some(server) = &slot.server else { continue };
            if slot.asked && slot.ask_tick == tick {
                let named = self.is_named(slot.address);
                let proven = matches!(server.verified_by, Proof::Query | Proof::Cookie) && slot.misses == 0;
                let (address, proven_at_ms) = (slot.address, slot.proven_at_ms);
                let digest = self.digest(at);
                let (turn, others_ask) = (self.turn(slot), server.silence() != Silence::None);
                let game = server.game.clone();
                out.push(Due { address, game, named, proven, proven_at_ms, digest, turn, others_ask });
                self.queue_ask(at, now.mono_ms + self.settings.ask_every_ms);
            }
        }
    }

    /// Which of our addresses asks a server: another one than before if the next miss would take it off the list.
    fn turn(&self, slot: &Slot) -> u8 {
        (slot.misses.saturating_add(2)).saturating_sub(self.settings.misses_max)
    }

    pub(super) fn queue_ask(&mut self, at: u32, when_ms: u64) {
        if let Some(slot) = self.slots.get_mut(at as usize)
            && slot.asked
        {
            slot.ask_tick = self.asks.tick_for(when_ms);
            self.asks.add(slot.ask_tick, at);
        }
    }

    /// Delays the next query of a server that was just queried in another way: some answer only once a second.
    pub(super) fn delay_query(&mut self, at: u32, now: Now) {
        let soon_ms = now.mono_ms + AFTER_QUERY_MS;
        let soon = self.asks.tick_for(soon_ms);
        if self.slots.get(at as usize).is_some_and(|slot| slot.asked && slot.ask_tick < soon) {
            self.queue_ask(at, soon_ms);
        }
    }

    /// A time in the second half of the interval, different for each slot, so that servers that arrive together are not
    /// queried together.
    pub(super) fn spread_ms(&self, at: u32) -> u64 {
        let half = (self.settings.ask_every_ms / 2).max(1);
        // A step of SplitMix64: well mixed, and the key is secret.
        let mut mixed = self.spread_key.wrapping_add(u64::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        half + (mixed ^ (mixed >> 31)) % half
    }
}

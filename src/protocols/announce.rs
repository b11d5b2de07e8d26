//! What the announcers of all protocols share: what is announced, and when to announce again.

use crate::model::Facts;
use crate::text;

/// What a game server's owner wants masters to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub game: String,
    /// The port that the game is played on; the address is the sender's.
    pub port: u16,
    pub facts: Facts<'static>,
}

/// After a first failure; each further one doubles it, up to the protocol's own pace.
const RETRY_MS: u64 = 2_000;
/// The longest reason that is shown to people.
const REASON_CHARS_MAX: usize = 200;

/// When to announce again: regularly while it goes well, sooner and then ever later while it does not.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    every_ms: u64,
    due_ms: u64,
    failures: u32,
}

impl Pace {
    /// The first announcement is due at once.
    pub fn new(now_ms: u64, every_ms: u64) -> Pace {
        Pace { every_ms, due_ms: now_ms, failures: 0 }
    }

    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// An announcement that began at this time was accepted.
    pub fn accepted(&mut self, began_ms: u64) {
        self.failures = 0;
        self.due_ms = began_ms + self.every_ms;
    }

    /// It was not, or could not be made.
    pub fn failed(&mut self, now_ms: u64) {
        self.due_ms = now_ms + RETRY_MS.saturating_mul(1 << self.failures.min(16)).min(self.every_ms);
        self.failures += 1;
    }
}

/// A master's words in a line for people: clean, and not longer than anybody reads.
pub fn reason(bytes: &[u8]) -> String {
    // Cut before it is cleaned: a character has at most 4 bytes.
    let start = bytes.get(..4 * REASON_CHARS_MAX).unwrap_or(bytes);
    text::clean(start).trim().chars().take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_while_it_goes_well() {
        let mut pace = Pace::new(1_000, 300_000);
        assert_eq!(pace.due_ms(), 1_000);
        pace.accepted(1_000);
        assert_eq!(pace.due_ms(), 301_000);
    }

    #[test]
    fn retries_come_later_and_later_and_never_later_than_the_pace() {
        let mut pace = Pace::new(0, 60_000);
        let mut waits = Vec::new();
        for _ in 0..7 {
            pace.failed(1_000_000);
            waits.push(pace.due_ms() - 1_000_000);
        }
        assert_eq!(waits, [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        for _ in 0..100 {
            pace.failed(0);
        }
        assert_eq!(pace.due_ms(), 60_000);
        pace.accepted(0);
        pace.failed(0);
        assert_eq!(pace.due_ms(), 2_000, "a success forgets the failures");
    }

    #[test]
    fn reasons_are_clean_and_short() {
        assert_eq!(reason(b" no\x1b[1m way\r\n"), "no[1m way");
        assert_eq!(reason("é".repeat(5_000).as_bytes()), "é".repeat(200));
    }
}

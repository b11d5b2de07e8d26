//! How a program beside a game server announces it to masters: the forms that this takes, what is announced, and when
//! to announce again.

use super::Verdict;
use crate::model::Facts;
use crate::text;

/// How a protocol's masters are told of a server. A line of help goes with each form that a program can use.
pub enum Announce {
    /// A request to a page of a web server.
    Http(HttpAnnounce),
    /// A message over TCP, with a connection for each.
    Stream { rules: &'static dyn StreamAnnounce, help: &'static str },
    /// Datagrams, with answers that decide what is sent next.
    Datagrams { start: StartAnnouncer, help: &'static str },
    /// Masters list the port that an announcement comes from, so that only the game itself can send it.
    OwnPort {
        /// What the owner can do instead.
        advice: &'static str,
        /// What the game sends; its master answers with questions.
        heartbeat: fn(&Facts<'_>) -> Vec<u8>,
    },
    /// There are no masters of its own that take announcements.
    None,
}

/// A request to a web server, from the path of the master's address; with a body it is a POST with JSON.
#[derive(Clone, Copy)]
pub struct HttpAnnounce {
    pub path: fn(given: &str, &Offer) -> String,
    pub json: Option<fn(&Offer) -> Vec<u8>>,
    /// What an answer with this status and body means.
    pub verdict: fn(status: u16, body: &[u8]) -> Verdict,
    pub help: &'static str,
}

/// An exchange of one message and one answer.
pub trait StreamAnnounce: Sync {
    fn message(&self, offer: &Offer) -> Vec<u8>;

    /// What the master makes of the message; None while its answer is not whole.
    fn verdict(&self, answer: &[u8]) -> Option<Verdict>;

    /// The same once the master has closed the connection; None when this is not an answer.
    fn final_verdict(&self, answer: &[u8]) -> Option<Verdict>;

    /// The message that the server is gone, where the protocol has one.
    fn goodbye(&self, offer: &Offer) -> Option<Vec<u8>>;
}

/// Begins to announce at this time. An error says what of the offer cannot be announced.
pub type StartAnnouncer = fn(now_ms: u64, &Offer) -> Result<Box<dyn Announcer>, String>;

/// Announces one server to one master by datagrams, in rounds. The caller has the socket and the clock, and passes in
/// only datagrams from the master's own address.
pub trait Announcer: Send {
    /// When [`Announcer::step`] has something to do next.
    fn due_ms(&self) -> u64;

    fn step(&mut self, now_ms: u64) -> Option<Step>;

    /// The round that is due can begin.
    fn ready(&mut self, now_ms: u64);

    /// It cannot: the next try is at this time.
    fn put_off(&mut self, until_ms: u64);

    /// The datagram to send.
    fn announcement(&self, offer: &Offer) -> Vec<u8>;

    /// Reads a datagram; what is in `reply` afterwards goes back to the master.
    fn hear(&mut self, now_ms: u64, bytes: &[u8], reply: &mut Vec<u8>) -> Heard;
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A round is due: ask the game and find the master, then call [`Announcer::ready`] or [`Announcer::put_off`].
    Prepare,
    /// Send an announcement.
    Announce,
    /// The round is over.
    Finish(Round),
    /// The round is over, and the master has complained for long enough to be believed.
    Believe(Complaint),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    Accepted,
    Unanswered,
    /// The master complained, but that may be forged. The text says so.
    Doubted(&'static str),
}

/// What a datagram from the master means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The server is listed once the reply has arrived.
    Accepted,
    Complaint(Complaint),
    /// Not a master's message, nothing new, or nothing to be believed yet.
    Nothing,
}

/// What a master finds wrong with an announcement, in words for the server's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// The next announcements are made as the master wants them.
    Adapted(String),
    /// This master cannot be satisfied.
    GivenUp(String),
    /// The announcement itself is broken: no master should get another one.
    Malformed(String),
}

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

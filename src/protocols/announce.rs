//! How the `announce` command announces a game server to masters: the methods of the protocols, the announced facts, and when to
//! announce again.

use super::Verdict;
use crate::model::Facts;
use crate::text;

/// How servers are announced to a protocol's masters. Each method that the command can use has a line of help.
pub enum AnnounceMethod {
    /// A request to a page of a web server.
    Http(HttpAnnounce),
    /// Messages over TCP, each on its own connection.
    Stream { rules: &'static dyn StreamAnnounce, help: &'static str },
    /// Datagrams, with answers that decide what is sent next.
    Datagrams { start: StartAnnouncer, help: &'static str },
    /// Masters list the source port of an announcement, so only the game itself can send it.
    OwnPort {
        /// What the owner can do instead.
        advice: &'static str,
        /// The game's heartbeat; the master answers with a query.
        heartbeat: fn(&Facts<'_>) -> Vec<u8>,
    },
    /// Masters send a token to the game's port, so only the game itself can announce there.
    Challenged(ChallengedAnnounce),
    /// The protocol has no announcements.
    None,
}

impl AnnounceMethod {
    /// What an owner can do where only the game itself can announce.
    pub fn only_itself(&self) -> Option<&'static str> {
        match self {
            AnnounceMethod::OwnPort { advice, .. } => Some(advice),
            AnnounceMethod::Challenged(challenged) => Some(challenged.advice),
            _ => None,
        }
    }
}

/// A request to a web server, from the path of the master's address; with a body it is a POST.
#[derive(Clone, Copy)]
pub struct HttpAnnounce {
    pub path: fn(given: &str, &Offer) -> String,
    pub post: Option<HttpBody>,
    /// The meaning of an answer with this status and body.
    pub verdict: fn(status: u16, body: &[u8]) -> Verdict,
    pub help: &'static str,
}

/// The body of a POST.
#[derive(Clone, Copy)]
pub struct HttpBody {
    pub content_type: &'static str,
    pub body: fn(&Offer) -> Vec<u8>,
}

/// Requests to a web server. The master answers the first with a datagram to the game's port, whose token the next carries.
#[derive(Clone, Copy)]
pub struct ChallengedAnnounce {
    pub advice: &'static str,
    /// From the path of the master's address.
    pub path: fn(given: &str) -> String,
    /// In lower case.
    pub headers: fn(&Registration<'_>) -> Vec<(&'static str, String)>,
    pub post: HttpBody,
    /// The token in a datagram that came to the port of the game with this [`Registration::id`].
    pub token: fn(id: u128, &[u8]) -> Option<String>,
    /// The meaning of an answer; None while the token is on its way.
    pub verdict: fn(status: u16, body: &[u8]) -> Option<Verdict>,
}

/// What a game says of itself to such a master.
pub struct Registration<'a> {
    pub offer: &'a Offer,
    /// A random number that the game keeps, by which the master knows it again.
    pub id: u128,
    /// Grows when the facts change.
    pub serial: u32,
    /// From the newest datagram of the master.
    pub token: Option<&'a str>,
}

/// An exchange of one message and one answer.
pub trait StreamAnnounce: Sync {
    fn message(&self, offer: &Offer) -> Vec<u8>;

    /// The master's verdict; None while its answer is incomplete.
    fn verdict(&self, answer: &[u8]) -> Option<Verdict>;

    /// The same after the master has closed the connection; None if this is not an answer.
    fn final_verdict(&self, answer: &[u8]) -> Option<Verdict>;

    /// The message that the server quits, if the protocol has one.
    fn goodbye(&self, offer: &Offer) -> Option<Vec<u8>>;
}

/// Starts announcing at this time. The error says why the offer cannot be announced.
pub type StartAnnouncer = fn(now_ms: u64, &Offer) -> Result<Box<dyn Announcer>, String>;

/// Announces one server to one master by datagrams, in rounds. The caller owns the socket and the clock, and passes in only
/// datagrams from the master's address.
pub trait Announcer: Send {
    /// When to call [`Announcer::step`] next.
    fn due_ms(&self) -> u64;

    fn step(&mut self, now_ms: u64) -> Option<Step>;

    /// The round that is due can begin.
    fn ready(&mut self, now_ms: u64);

    /// It cannot begin; try again at this time.
    fn put_off(&mut self, until_ms: u64);

    /// The datagram to send.
    fn announcement(&self, offer: &Offer) -> Vec<u8>;

    /// Handles a datagram; if `reply` is filled, it is sent to the master.
    fn hear(&mut self, now_ms: u64, bytes: &[u8], reply: &mut Vec<u8>) -> MasterReply;
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A round is due: query the game and resolve the master, then call [`Announcer::ready`] or [`Announcer::put_off`].
    Prepare,
    /// Send an announcement.
    Announce,
    /// The round is over.
    Finish(Round),
    /// The round is over, and the complaints have persisted long enough to be believed.
    Believe(Complaint),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    Accepted,
    Unanswered,
    /// The master complained, but that may be forged. The text says so.
    Doubted(&'static str),
}

/// The meaning of a datagram from the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterReply {
    /// The server is listed when the reply arrives.
    Accepted,
    Complaint(Complaint),
    /// Not a master's message, nothing new, or not believed yet.
    Nothing,
}

/// A master's complaint about an announcement, as text for the server's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// The next announcements are adapted to it.
    Adapted(String),
    /// This master cannot be satisfied.
    GivenUp(String),
    /// The announcement is malformed: no master should get another one.
    Malformed(String),
}

/// What is announced about a game server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub game: String,
    /// The game's port; the address is the sender's.
    pub port: u16,
    pub facts: Facts<'static>,
}

/// Delay after a first failure; each further one doubles it, up to the protocol's interval.
const RETRY_MS: u64 = 2_000;
/// Upper bound on a reason that is shown.
const REASON_CHARS_MAX: usize = 200;

/// When to announce again: regularly after successes, with exponential backoff after failures.
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

    /// It was not accepted, or not sent.
    pub fn failed(&mut self, now_ms: u64) {
        self.due_ms = now_ms + RETRY_MS.saturating_mul(1 << self.failures.min(16)).min(self.every_ms);
        self.failures += 1;
    }
}

/// A master's reason as one line of clean text of limited length.
pub fn reason(bytes: &[u8]) -> String {
    // Cut before cleaning: a character has at most 4 bytes.
    let start = bytes.get(..4 * REASON_CHARS_MAX).unwrap_or(bytes);
    text::clean(start).trim().chars().take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_after_successes() {
        let mut pace = Pace::new(1_000, 300_000);
        assert_eq!(pace.due_ms(), 1_000);
        pace.accepted(1_000);
        assert_eq!(pace.due_ms(), 301_000);
    }

    #[test]
    fn retries_back_off_up_to_the_interval() {
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
        assert_eq!(pace.due_ms(), 2_000, "a success resets the backoff");
    }

    #[test]
    fn who_can_announce_only_itself_is_told_what_to_do() {
        let advice = |name: &str| super::super::card(name).unwrap().announce.only_itself();
        assert!(advice("quake3").unwrap().contains("sv_master"));
        assert!(advice("ddnet").unwrap().contains("sv_register_url"));
        assert_eq!((advice("netpanzer"), advice("hyperbol")), (None, None));
    }

    #[test]
    fn reasons_are_clean_and_short() {
        assert_eq!(reason(b" no\x1b[1m way\r\n"), "no[1m way");
        assert_eq!(reason("é".repeat(5_000).as_bytes()), "é".repeat(200));
    }
}

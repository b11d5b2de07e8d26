//! What was seen of whom, lately: so that the owner of a server can be told why it is not listed, and the operator how
//! much of what there is. Bounded: a fixed number of pages, one an IP address, the newest address wins its page. Good news
//! pushes out no complaint, neither on its page nor of others.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

use crate::cookie;
use crate::model::Address;
use crate::protocols::{Drop, Fault};
use crate::registry::Refusal;

const SHARDS: usize = 64;
const PAGES_PER_SHARD: usize = 128;
const NOTES_PER_PAGE: usize = 8;
/// A complaint keeps its page for this long: a game that was refused is quiet for half an hour.
const COMPLAINT_MS: u64 = 35 * 60_000;
/// And anything keeps it for this long: where there are more addresses than pages, most have nothing to be told.
const KEPT_MS: u64 = 2_000;

/// Which channel it came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Iceball's datagrams.
    Iceball,
    /// A heartbeat, over netPanzer's protocol or HTTP.
    Heartbeat,
    /// Our own question to the server.
    Query,
}

impl Channel {
    pub fn name(self) -> &'static str {
        match self {
            Channel::Iceball => "iceball",
            Channel::Heartbeat => "heartbeat",
            Channel::Query => "query",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    CookieSent,
    CookieReturned,
    /// A good cookie that is older than the last one, or says the same: nothing changed.
    CookieRepeated,
    /// Answered, unless `withheld`: a living server of that address was proven, and the sender could be somebody else.
    BadVersion {
        heartbeat_version: u16,
        version: u32,
        withheld: bool,
    },
    /// The same.
    BadFormat {
        length: u16,
        withheld: bool,
    },
    Dropped(Drop),
    Banned,
    Heartbeat,
    Refused(Refusal),
    Answered {
        rtt_us: u32,
    },
    Silent,
    BadAnswer(Box<Fault>),
    /// Facts came that differ, or that nobody asked for.
    Disputed,
    Quit,
}

/// Names of all that can happen, in the order of [`What::number`].
pub const LABELS: [&str; 32] = [
    "cookie_sent",
    "cookie_returned",
    "bad_version",
    "bad_format",
    "banned",
    "heartbeat",
    "answered",
    "silent",
    "bad_answer",
    "quit",
    "dropped_too_short",
    "dropped_unknown_magic",
    "dropped_source_port_0",
    "dropped_announced_port_0",
    "dropped_source_address",
    "dropped_cookie_content",
    "dropped_cookie_short",
    "dropped_cookie_unknown_key",
    "dropped_cookie_forged",
    "dropped_cookie_old",
    "refused_full",
    "refused_full_for_ip",
    "refused_full_for_network",
    "refused_other_game_configured",
    "refused_late",
    "refused_not_listed",
    "refused_stronger_proof",
    "disputed",
    "bad_version_unanswered",
    "bad_format_unanswered",
    "cookie_repeated",
    "other",
];

impl What {
    fn number(&self) -> usize {
        match self {
            What::CookieSent => 0,
            What::CookieReturned => 1,
            What::BadVersion { withheld: false, .. } => 2,
            What::BadFormat { withheld: false, .. } => 3,
            What::Banned => 4,
            What::Heartbeat => 5,
            What::Answered { .. } => 6,
            What::Silent => 7,
            What::BadAnswer(_) => 8,
            What::Quit => 9,
            What::Dropped(Drop::TooShort) => 10,
            What::Dropped(Drop::UnknownMagic) => 11,
            What::Dropped(Drop::SourcePort0) => 12,
            What::Dropped(Drop::AnnouncedPort0) => 13,
            What::Dropped(Drop::SourceAddress) => 14,
            What::Dropped(Drop::CookieContent) => 15,
            What::Dropped(Drop::Cookie(cookie::Refusal::Short)) => 16,
            What::Dropped(Drop::Cookie(cookie::Refusal::UnknownKey)) => 17,
            What::Dropped(Drop::Cookie(cookie::Refusal::Forged)) => 18,
            What::Dropped(Drop::Cookie(cookie::Refusal::Old)) => 19,
            What::Refused(Refusal::Full) => 20,
            What::Refused(Refusal::FullForIp) => 21,
            What::Refused(Refusal::FullForNetwork) => 22,
            What::Refused(Refusal::OtherGameConfigured) => 23,
            What::Refused(Refusal::Late) => 24,
            What::Refused(Refusal::NotListed) => 25,
            What::Refused(Refusal::StrongerProof) => 26,
            What::Disputed => 27,
            What::BadVersion { withheld: true, .. } => 28,
            What::BadFormat { withheld: true, .. } => 29,
            What::CookieRepeated => 30,
        }
    }

    /// As it should be, or nothing to worry about: it pushes out nothing that is.
    fn is_good(&self) -> bool {
        matches!(
            self,
            What::CookieSent | What::CookieReturned | What::CookieRepeated | What::Heartbeat | What::Answered { .. }
        ) || self.is_withheld()
    }

    /// Whether a complaint was earned and not sent.
    pub fn is_withheld(&self) -> bool {
        matches!(self, What::BadVersion { withheld: true, .. } | What::BadFormat { withheld: true, .. })
    }

    /// Whether it came from the address that it is noted for: by a cookie that came back, a connection, or an answer to
    /// our query. Otherwise it could be anybody's. None where nobody sent anything.
    pub fn is_senders_own(&self) -> Option<bool> {
        match self {
            What::CookieReturned | What::CookieRepeated | What::Refused(_) => Some(true),
            What::Heartbeat | What::Quit | What::Answered { .. } => Some(true),
            What::CookieSent | What::BadVersion { .. } | What::BadFormat { .. } => Some(false),
            What::Dropped(_) | What::Banned | What::BadAnswer(_) | What::Disputed => Some(false),
            What::Silent => None,
        }
    }

    pub fn label(&self) -> &'static str {
        LABELS.get(self.number()).unwrap_or(&"other")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub at_ms: u64,
    pub channel: Channel,
    /// The port that was announced or asked; 0 where the message did not tell.
    pub port: u16,
    /// The port that it was sent from; 0 for our own questions.
    pub source_port: u16,
    pub what: What,
    /// How often, since the page was begun.
    pub times: u32,
}

impl Note {
    pub fn new(at_ms: u64, channel: Channel, port: u16, source_port: u16, what: What) -> Note {
        Note { at_ms, channel, port, source_port, what, times: 1 }
    }
}

#[derive(Clone, Default)]
struct Page {
    ip: Option<IpAddr>,
    /// Good news of others does not push it out before this.
    kept_until_ms: u64,
    notes: ArrayVec<Note, NOTES_PER_PAGE>,
}

pub struct Ledger {
    shards: Vec<Mutex<Vec<Page>>>,
    hasher: RandomState,
    counts: [AtomicU64; LABELS.len()],
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::new()
    }
}

impl Ledger {
    pub fn new() -> Ledger {
        let shard = || Mutex::new(vec![Page::default(); PAGES_PER_SHARD]);
        Ledger {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Writes a note. The same thing again only counts.
    pub fn note(&self, ip: IpAddr, note: Note) {
        if let Some(count) = self.counts.get(note.what.number()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.with_page(ip, |page| {
            if page.ip != Some(ip) {
                // Later than that would be from before the clock was set back.
                let is_kept = (note.at_ms + 1..=note.at_ms + COMPLAINT_MS).contains(&page.kept_until_ms);
                if note.what.is_good() && is_kept {
                    return;
                }
                page.ip = Some(ip);
                page.kept_until_ms = 0;
                page.notes.clear();
            }
            let kept_ms = if note.what.is_good() { KEPT_MS } else { COMPLAINT_MS };
            page.kept_until_ms = page.kept_until_ms.max(note.at_ms + kept_ms);
            let same = |known: &Note| {
                known.port == note.port && known.channel == note.channel && known.what.number() == note.what.number()
            };
            if let Some(at) = page.notes.iter().position(same) {
                let times = page.notes.remove(at).times.saturating_add(1);
                page.notes.push(Note { times, ..note });
            } else {
                if page.notes.is_full() {
                    let good = page.notes.iter().position(|note| note.what.is_good());
                    page.notes.remove(good.unwrap_or(0));
                }
                page.notes.push(note);
            }
        });
    }

    /// What is known of a server: what named its port, and what named none. Oldest first.
    pub fn notes(&self, address: Address) -> Vec<Note> {
        let mut found = Vec::new();
        self.with_page(address.ip(), |page| {
            if page.ip == Some(address.ip()) {
                let concerns = |note: &&Note| note.port == address.port() || note.port == 0;
                found.extend(page.notes.iter().filter(concerns).cloned());
            }
        });
        found
    }

    /// How often each thing happened since the start, by its name.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LABELS.into_iter().zip(&self.counts).map(|(label, count)| (label, count.load(Ordering::Relaxed)))
    }

    fn with_page(&self, ip: IpAddr, act: impl FnOnce(&mut Page)) {
        let hash = self.hasher.hash_one(ip) as usize;
        let Some(shard) = self.shards.get(hash % SHARDS) else { return };
        let mut pages = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = pages.get_mut(hash / SHARDS % PAGES_PER_SHARD) {
            act(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::new([203, 0, 113, 5].into(), port).unwrap()
    }

    fn note(at_ms: u64, port: u16, what: What) -> Note {
        Note::new(at_ms, Channel::Iceball, port, 40_000, what)
    }

    #[test]
    fn the_same_again_only_counts_and_others_ports_are_not_told() {
        let ledger = Ledger::new();
        let ip = address(1).ip();
        ledger.note(ip, note(1, 1, What::CookieSent));
        ledger.note(ip, note(2, 0, What::BadFormat { length: 5, withheld: false }));
        ledger.note(ip, note(3, 1, What::CookieSent));
        ledger.note(ip, note(4, 2, What::CookieReturned));
        let notes = ledger.notes(address(1));
        assert_eq!(notes.len(), 2);
        assert_eq!((notes[0].what.clone(), notes[0].at_ms), (What::BadFormat { length: 5, withheld: false }, 2));
        assert_eq!((notes[1].what.clone(), notes[1].times, notes[1].at_ms), (What::CookieSent, 2, 3));
        assert!(ledger.notes("203.0.113.6:1".parse().unwrap()).is_empty());
        let counts: Vec<_> = ledger.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("cookie_sent", 2), ("cookie_returned", 1), ("bad_format", 1)]);
    }

    #[test]
    fn memory_is_bounded_whoever_comes() {
        let ledger = Ledger::new();
        for number in 0..100_000u32 {
            ledger.note(IpAddr::V4(number.into()), note(1, 1, What::CookieSent));
        }
        ledger.note(address(99).ip(), note(1 + KEPT_MS, 99, What::CookieSent));
        let pages: usize = ledger.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert_eq!(pages, SHARDS * PAGES_PER_SHARD);
        assert_eq!(ledger.notes(address(99)).len(), 1);
        // Whatever can be told of one server, told many times.
        let drops = [Drop::TooShort, Drop::UnknownMagic, Drop::SourcePort0, Drop::AnnouncedPort0, Drop::CookieContent];
        let refusals = [Refusal::Full, Refusal::FullForIp, Refusal::Late, Refusal::NotListed].map(What::Refused);
        for what in drops.map(What::Dropped).into_iter().chain(refusals).chain([What::Banned, What::Quit]) {
            ledger.note(address(1).ip(), note(2, 1, what));
        }
        assert_eq!(ledger.notes(address(1)).len(), NOTES_PER_PAGE);
    }

    #[test]
    fn good_news_of_others_pushes_out_no_complaint() {
        let ledger = Ledger::new();
        let refused = What::BadVersion { heartbeat_version: 1, version: 0, withheld: false };
        ledger.note(address(1).ip(), note(1_000, 1, refused.clone()));
        for port in 2..=32 {
            for good in [What::CookieSent, What::CookieReturned, What::BadFormat { length: 5, withheld: true }] {
                ledger.note(address(1).ip(), note(2_000, port, good));
            }
        }
        // So many that each page is surely among theirs.
        let of_others = |at_ms: u64| {
            for number in 0..200_000u32 {
                ledger.note(IpAddr::V4(number.into()), note(at_ms, 1, What::CookieSent));
            }
        };
        of_others(1_000 + COMPLAINT_MS - 1);
        assert_eq!(ledger.notes(address(1)).iter().map(|note| &note.what).collect::<Vec<_>>(), [&refused]);
        of_others(1_000 + COMPLAINT_MS);
        assert_eq!(ledger.notes(address(1)).len(), 0, "not for ever");
    }

    #[test]
    fn a_clock_set_back_pins_no_page() {
        let ledger = Ledger::new();
        let hour_ms = 3_600_000;
        let refused = What::BadVersion { heartbeat_version: 1, version: 0, withheld: false };
        ledger.note(address(1).ip(), note(10 * hour_ms, 1, refused));
        for number in 0..50_000u32 {
            ledger.note(IpAddr::V4(number.into()), note(8 * hour_ms, 1, What::CookieSent));
        }
        assert!(ledger.notes(address(1)).is_empty(), "a complaint from the future keeps its page for two hours");
    }

    #[test]
    fn labels_are_unique_and_sound() {
        let mut labels = LABELS.to_vec();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), LABELS.len());
        assert_eq!(What::Refused(Refusal::NotListed).label(), "refused_not_listed");
        assert_eq!(What::Dropped(Drop::CookieContent).label(), "dropped_cookie_content");
    }
}

//! Recent events per IP address, so that the doctor can explain why a server is not listed, and how often each kind of
//! event happened. Memory is fixed: a number of pages, one per address; a new address replaces an older one. A good event
//! never replaces a recent problem, neither on its own page nor on another address's.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;
use hashbrown::DefaultHashBuilder;

use crate::model::Address;
use crate::protocols::event::{self, Event, Severity};
use crate::protocols::{CARDS, Card, Fault};
use crate::registry::Refusal;

const SHARDS: usize = 64;
const PAGES_PER_SHARD: usize = 128;
const NOTES_PER_PAGE: usize = 8;
/// A page with a problem is kept for this long: some games stay silent for half an hour after they are refused.
const PROBLEM_MS: u64 = 35 * 60_000;
/// Any page is kept for this long, so that a flood of addresses does not replace pages all the time.
const KEPT_MS: u64 = 2_000;

/// Where an event came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// A protocol's datagrams: the index of its card in [`CARDS`], for counting without a search.
    Datagrams(u8),
    /// A heartbeat over TCP or HTTP.
    Heartbeat,
    /// Our own query to the server.
    Query,
}

impl Channel {
    /// The datagrams of this protocol.
    pub fn datagrams(protocol: &str) -> Channel {
        let place = CARDS.iter().position(|card| card.name == protocol);
        Channel::Datagrams(place.and_then(|place| place.try_into().ok()).unwrap_or(u8::MAX))
    }

    /// The protocol that its datagrams belong to.
    pub fn card(self) -> Option<&'static Card> {
        match self {
            Channel::Datagrams(place) => CARDS.get(usize::from(place)),
            Channel::Heartbeat | Channel::Query => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Channel::Datagrams(_) => self.card().map_or(OTHER, |card| card.name),
            Channel::Heartbeat => "heartbeat",
            Channel::Query => "query",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An event of a datagram protocol, which describes it.
    Datagram(Event),
    Banned,
    Heartbeat,
    Answered {
        rtt_us: u32,
    },
    Silent,
    BadAnswer(Box<Fault>),
    Quit,
    Refused(Refusal),
    /// Conflicting or unsolicited facts arrived.
    Disputed,
    /// The name that it announced is not one of its address.
    OtherName,
    /// A token was sent to its port, because it did not return one.
    Challenged,
    /// What it posted is not accepted, for this reason.
    BadPost(Box<str>),
    /// The name that it announced could not be looked up.
    UnknownName,
    /// It announced itself, and was not verified: too much was announced at once.
    Postponed,
}

/// The labels of everything but datagrams, in the order of [`What::number`].
const LABELS: [&str; 23] = [
    "banned",
    "heartbeat",
    "answered",
    "silent",
    "bad_answer",
    "quit",
    "refused_full",
    "refused_full_for_ip",
    "refused_full_for_network",
    "refused_other_game_configured",
    "refused_late",
    "refused_not_listed",
    "refused_stronger_proof",
    "disputed",
    "refused_banned",
    "refused_unlisted",
    "refused_hidden",
    "other_name",
    "challenged",
    "bad_post",
    "unknown_name",
    "postponed",
    "refused_full_for_game",
];
const OTHER: &str = "other";

impl What {
    /// Its index among the counters: its protocol's for a datagram, otherwise the general ones.
    fn number(&self) -> usize {
        match self {
            What::Datagram(event) => event.kind.number.into(),
            What::Banned => 0,
            What::Heartbeat => 1,
            What::Answered { .. } => 2,
            What::Silent => 3,
            What::BadAnswer(_) => 4,
            What::Quit => 5,
            What::Refused(Refusal::Full) => 6,
            What::Refused(Refusal::FullForIp) => 7,
            What::Refused(Refusal::FullForNetwork) => 8,
            What::Refused(Refusal::OtherGameConfigured) => 9,
            What::Refused(Refusal::Late) => 10,
            What::Refused(Refusal::NotListed) => 11,
            What::Refused(Refusal::StrongerProof) => 12,
            What::Disputed => 13,
            What::Refused(Refusal::Banned) => 14,
            What::Refused(Refusal::Unlisted) => 15,
            What::Refused(Refusal::Hidden) => 16,
            What::OtherName => 17,
            What::Challenged => 18,
            What::BadPost(_) => 19,
            What::UnknownName => 20,
            What::Postponed => 21,
            What::Refused(Refusal::FullForGame) => 22,
        }
    }

    fn is_same_kind(&self, other: &What) -> bool {
        let is_datagram = |what: &What| matches!(what, What::Datagram(_));
        is_datagram(self) == is_datagram(other) && self.number() == other.number()
    }

    pub fn severity(&self) -> Severity {
        match self {
            What::Datagram(event) => event.kind.severity,
            What::Heartbeat | What::Answered { .. } => Severity::Good,
            What::OtherName | What::UnknownName => Severity::Step,
            What::Banned
            | What::Silent
            | What::BadAnswer(_)
            | What::Quit
            | What::Refused(_)
            | What::Disputed
            | What::Challenged
            | What::BadPost(_)
            | What::Postponed => Severity::Problem,
        }
    }

    /// Whether it certainly came from the address: over a connection, with a returned cookie, or as an answer to our query.
    /// Otherwise the source address may be forged. None if nothing was received.
    pub fn sender_proven(&self) -> Option<bool> {
        match self {
            What::Datagram(event) => event.kind.sender_proven,
            What::Refused(_)
            | What::Heartbeat
            | What::Quit
            | What::OtherName
            | What::UnknownName
            | What::Postponed
            | What::Challenged
            | What::BadPost(_)
            | What::Answered { .. } => Some(true),
            What::Banned | What::BadAnswer(_) | What::Disputed => Some(false),
            What::Silent => None,
        }
    }

    /// The values in the texts of a datagram's event.
    pub fn values(&self) -> Option<[u32; 2]> {
        match self {
            What::Datagram(event) => Some(event.values),
            _ => None,
        }
    }

    pub fn label(&self) -> &'static str {
        match self {
            What::Datagram(event) => event.kind.label,
            general => LABELS.get(general.number()).unwrap_or(&OTHER),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub at_ms: u64,
    pub channel: Channel,
    /// The port that was announced or queried; 0 if the message has none.
    pub port: u16,
    /// The source port of the message; 0 for our own queries.
    pub source_port: u16,
    pub what: What,
    /// How often this happened since the address got its page.
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
    /// Good events of other addresses do not replace the page before this time.
    kept_until_ms: u64,
    /// Each with its turn, in no order: nearly every event is an update, which moves nothing.
    notes: ArrayVec<(u32, Note), NOTES_PER_PAGE>,
    /// The turn of the newest note.
    turn: u32,
}

impl Page {
    fn write(&mut self, note: Note) {
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        let same = |(_, known): &&mut (u32, Note)| {
            known.port == note.port && known.channel == note.channel && known.what.is_same_kind(&note.what)
        };
        if let Some(known) = self.notes.iter_mut().find(same) {
            let times = known.1.times.saturating_add(1);
            *known = (turn, Note { times, ..note });
            return;
        }
        if self.notes.is_full() {
            // The oldest of those that are no problem, or of all.
            let age = |(at, _): &(u32, Note)| turn.wrapping_sub(*at);
            let is_minor = |(_, note): &(u32, Note)| note.what.severity() != Severity::Problem;
            let oldest = self.notes.iter().enumerate().max_by_key(|(_, known)| (is_minor(known), age(known)));
            if let Some((place, _)) = oldest {
                self.notes.swap_remove(place);
            }
        }
        self.notes.push((turn, note));
    }

    /// Oldest first.
    fn read(&self) -> impl Iterator<Item = &Note> {
        let mut notes: ArrayVec<&(u32, Note), NOTES_PER_PAGE> = self.notes.iter().collect();
        notes.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(self.turn.wrapping_sub(*at)));
        notes.into_iter().map(|(_, note)| note)
    }
}

pub struct Ledger {
    shards: Vec<Mutex<Vec<Page>>>,
    hasher: DefaultHashBuilder,
    counts: Counts,
}

/// How often each kind of event happened.
struct Counts {
    general: [AtomicU64; LABELS.len()],
    /// Per card, in the order of [`CARDS`].
    datagrams: [[AtomicU64; event::NUMBERS]; CARDS.len()],
    other: AtomicU64,
}

impl Counts {
    fn add(&self, note: &Note) {
        let number = note.what.number();
        let counter = match (&note.what, note.channel) {
            (What::Datagram(_), Channel::Datagrams(place)) => {
                self.datagrams.get(usize::from(place)).and_then(|counters| counters.get(number))
            }
            (What::Datagram(_), _) => None,
            _ => self.general.get(number),
        };
        counter.unwrap_or(&self.other).fetch_add(1, Ordering::Relaxed);
    }

    /// By label; kinds of several protocols with the same label are added up.
    fn read(&self) -> BTreeMap<&'static str, u64> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counts = BTreeMap::from([(OTHER, load(&self.other))]);
        for (label, counter) in LABELS.iter().zip(&self.general) {
            *counts.entry(label).or_default() += load(counter);
        }
        for (card, counters) in CARDS.iter().zip(&self.datagrams) {
            for kind in event::SHARED.iter().chain(card.events) {
                *counts.entry(kind.label).or_default() += counters.get(usize::from(kind.number)).map_or(0, load);
            }
        }
        counts
    }
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
            hasher: DefaultHashBuilder::default(),
            counts: Counts {
                general: [const { AtomicU64::new(0) }; LABELS.len()],
                datagrams: [const { [const { AtomicU64::new(0) }; event::NUMBERS] }; CARDS.len()],
                other: AtomicU64::new(0),
            },
        }
    }

    /// Records a note. A note of the same kind for the same port is updated.
    pub fn note(&self, ip: IpAddr, note: Note) {
        self.counts.add(&note);
        let is_problem = note.what.severity() == Severity::Problem;
        self.with_page(ip, |page| {
            if page.ip != Some(ip) {
                // A later time than that was set before the clock was set back.
                let is_kept = (note.at_ms + 1..=note.at_ms + PROBLEM_MS).contains(&page.kept_until_ms);
                if !is_problem && is_kept {
                    return;
                }
                page.ip = Some(ip);
                page.kept_until_ms = 0;
                page.notes.clear();
            }
            let kept_ms = if is_problem { PROBLEM_MS } else { KEPT_MS };
            page.kept_until_ms = page.kept_until_ms.max(note.at_ms + kept_ms);
            page.write(note);
        });
    }

    /// The events of a server: those for its port, and those for no port. Oldest first.
    pub fn notes(&self, address: Address) -> Vec<Note> {
        let mut found = Vec::new();
        self.with_page(address.ip(), |page| {
            if page.ip == Some(address.ip()) {
                let concerns = |note: &&Note| note.port == address.port() || note.port == 0;
                found.extend(page.read().filter(concerns).cloned());
            }
        });
        found
    }

    /// How often each kind of event happened since the start, by its label.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.read().into_iter()
    }

    fn with_page(&self, ip: IpAddr, act: impl FnOnce(&mut Page)) {
        let (shard, page) = self.place(ip);
        let Some(shard) = self.shards.get(shard) else { return };
        let mut pages = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = pages.get_mut(page) {
            act(page);
        }
    }

    /// The shard that has the address's page, and which of its pages that is.
    fn place(&self, ip: IpAddr) -> (usize, usize) {
        let hash = self.hasher.hash_one(ip) as usize;
        (hash % SHARDS, hash / SHARDS % PAGES_PER_SHARD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::event::EventKind;
    use crate::protocols::iceball::{self, events};

    const BAD_VERSION: What = What::Datagram(events::BAD_VERSION.event());
    const BAD_FORMAT: What = What::Datagram(events::BAD_FORMAT.event());
    const COOKIE_SENT: What = What::Datagram(events::COOKIE_SENT.event());
    const COOKIE_RETURNED: What = What::Datagram(events::COOKIE_RETURNED.event());

    fn address(port: u16) -> Address {
        Address::new([203, 0, 113, 5].into(), port).unwrap()
    }

    fn note(at_ms: u64, port: u16, what: What) -> Note {
        Note::new(at_ms, Channel::datagrams(iceball::NAME), port, 40_000, what)
    }

    /// Another address with the same page.
    fn rival(ledger: &Ledger, ip: IpAddr) -> IpAddr {
        let others = (0..=u32::MAX).map(|number| IpAddr::V4(number.into()));
        others.filter(|other| *other != ip).find(|other| ledger.place(*other) == ledger.place(ip)).unwrap()
    }

    #[test]
    fn repeated_events_are_counted_and_other_ports_are_left_out() {
        let ledger = Ledger::new();
        let ip = address(1).ip();
        ledger.note(ip, note(1, 1, COOKIE_SENT));
        ledger.note(ip, note(2, 0, BAD_FORMAT));
        ledger.note(ip, note(3, 1, COOKIE_SENT));
        ledger.note(ip, note(4, 2, COOKIE_RETURNED));
        let notes = ledger.notes(address(1));
        assert_eq!(notes.len(), 2);
        assert_eq!((notes[0].what.clone(), notes[0].at_ms), (BAD_FORMAT, 2));
        assert_eq!((notes[1].what.clone(), notes[1].times, notes[1].at_ms), (COOKIE_SENT, 2, 3));
        assert!(ledger.notes("203.0.113.6:1".parse().unwrap()).is_empty());
        let counts: Vec<_> = ledger.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [("bad_format", 1), ("cookie_returned", 1), ("cookie_sent", 2)]);
    }

    #[test]
    fn memory_is_bounded() {
        let ledger = Ledger::new();
        for number in 0..100_000u32 {
            ledger.note(IpAddr::V4(number.into()), note(1, 1, COOKIE_SENT));
        }
        ledger.note(address(99).ip(), note(1 + KEPT_MS, 99, COOKIE_SENT));
        let pages: usize = ledger.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert_eq!(pages, SHARDS * PAGES_PER_SHARD);
        assert_eq!(ledger.notes(address(99)).len(), 1);
        // Every kind of event for one server.
        let drops = event::SHARED.map(|kind| What::Datagram(kind.event()));
        let refusals = [Refusal::Full, Refusal::FullForIp, Refusal::Late, Refusal::NotListed].map(What::Refused);
        for what in drops.into_iter().chain(refusals).chain([What::Banned, What::Quit]) {
            ledger.note(address(1).ip(), note(2, 1, what));
        }
        assert_eq!(ledger.notes(address(1)).len(), NOTES_PER_PAGE);
    }

    #[test]
    fn the_oldest_leave_first_and_those_that_are_no_problem_before_the_others() {
        let ledger = Ledger::new();
        let write = |port, what| ledger.note(address(1).ip(), note(1, port, what));
        let read = || {
            let mut page = Vec::new();
            ledger.with_page(address(1).ip(), |notes| page.extend(notes.read().map(|note| note.port)));
            page
        };
        write(0, BAD_VERSION);
        (1..8).for_each(|port| write(port, COOKIE_SENT));
        write(1, COOKIE_SENT);
        assert_eq!(read(), [0, 2, 3, 4, 5, 6, 7, 1], "what happened again is the newest");
        write(8, COOKIE_SENT);
        assert_eq!(read(), [0, 3, 4, 5, 6, 7, 1, 8]);
        (10..18).for_each(|port| write(port, BAD_FORMAT));
        assert_eq!(read(), [10, 11, 12, 13, 14, 15, 16, 17]);
        // The number of turns begins anew.
        ledger.with_page(address(1).ip(), |page| {
            page.notes.iter_mut().for_each(|(at, _)| *at = at.wrapping_sub(page.turn).wrapping_sub(2));
            page.turn = u32::MAX - 1;
        });
        [12, 13, 14].into_iter().for_each(|port| write(port, BAD_FORMAT));
        assert_eq!(read(), [10, 11, 15, 16, 17, 12, 13, 14]);
    }

    #[test]
    fn good_news_of_others_pushes_out_no_complaint() {
        let ledger = Ledger::new();
        let refused = BAD_VERSION;
        ledger.note(address(1).ip(), note(1_000, 1, refused.clone()));
        for port in 2..=32 {
            for good in [COOKIE_SENT, COOKIE_RETURNED, What::Datagram(events::BAD_FORMAT.event().withheld())] {
                ledger.note(address(1).ip(), note(2_000, port, good));
            }
        }
        let rival = rival(&ledger, address(1).ip());
        ledger.note(rival, note(1_000 + PROBLEM_MS - 1, 1, COOKIE_SENT));
        assert_eq!(ledger.notes(address(1)).iter().map(|note| &note.what).collect::<Vec<_>>(), [&refused]);
        ledger.note(rival, note(1_000 + PROBLEM_MS, 1, COOKIE_SENT));
        assert_eq!(ledger.notes(address(1)).len(), 0, "not for ever");
    }

    #[test]
    fn a_clock_set_back_pins_no_page() {
        let ledger = Ledger::new();
        let hour_ms = 3_600_000;
        let refused = BAD_VERSION;
        ledger.note(address(1).ip(), note(10 * hour_ms, 1, refused));
        ledger.note(rival(&ledger, address(1).ip()), note(8 * hour_ms, 1, COOKIE_SENT));
        assert!(ledger.notes(address(1)).is_empty(), "a complaint from the future keeps its page for two hours");
    }

    #[test]
    fn labels_are_unique() {
        let general = LABELS.into_iter().chain([OTHER]);
        let mut labels: Vec<_> = general.chain(event::SHARED.iter().map(|kind| kind.label)).collect();
        // Protocols may have labels in common with each other, not with the others.
        for card in CARDS {
            assert!(card.events.iter().all(|kind| !labels.contains(&kind.label)), "{}", card.name);
        }
        let all = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), all);
        assert_eq!(What::Refused(Refusal::NotListed).label(), "refused_not_listed");
    }

    #[test]
    fn labels_that_dashboards_know_are_there() {
        let labels: Vec<_> = Ledger::new().counts().map(|(label, _)| label).collect();
        for known in "answered bad_answer bad_format bad_format_unanswered bad_version bad_version_unanswered banned \
                      cookie_repeated cookie_returned cookie_sent disputed dropped_announced_port_0 dropped_cookie_content \
                      dropped_cookie_forged dropped_cookie_old dropped_cookie_short dropped_cookie_unknown_key \
                      dropped_source_address dropped_source_port_0 dropped_too_short dropped_unknown_magic heartbeat other \
                      quit refused_full refused_full_for_ip refused_full_for_network refused_late refused_not_listed \
                      refused_other_game_configured refused_stronger_proof silent"
            .split_whitespace()
        {
            assert!(labels.contains(&known), "{known}");
        }
    }

    #[test]
    fn every_kind_of_every_protocol_is_counted_under_its_label() {
        let ledger = Ledger::new();
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        for card in CARDS {
            for kind in event::SHARED.iter().chain(card.events) {
                let channel = Channel::datagrams(card.name);
                assert_eq!(channel.name(), card.name);
                ledger.note(address(1).ip(), Note::new(0, channel, 1, 1, What::Datagram(kind.event())));
                *expected.entry(kind.label).or_default() += 1;
            }
        }
        let counts: BTreeMap<_, _> = ledger.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, expected);
        assert_eq!(counts["dropped_too_short"], CARDS.len() as u64);
        static STRAY: EventKind = EventKind { number: u8::MAX, label: "stray", ..EventKind::DROPPED };
        ledger.note(address(1).ip(), note(0, 1, What::Datagram(STRAY.event())));
        assert_eq!(ledger.counts().find(|(label, _)| *label == OTHER), Some((OTHER, 1)));
    }
}

//! The game server's side of Iceball's datagrams: when to announce, what to echo, when to stop.
//!
//! | event | reaction |
//! |---|---|
//! | every 40 s | a burst of 5 announcements, a second apart |
//! | `MSOK` + cookie | `HSHK` + the same cookie, every time |
//! | `BADV` with a heartbeat version that we speak | once: announced again with the versions given |
//! | any other `BADV` | this master is given up |
//! | `BADF` to two announcements of a burst | our announcement is malformed; the program ends with an error |
//! | `BADV` or `BADF` after an `MSOK` | doubted: as above after three bursts with complaints and without an `MSOK` |
//!
//! A master never answers a handshake: returning the cookie counts as acceptance. The caller passes in only datagrams from the
//! master's address. That address can be forged, and a complaint has serious consequences, so one that contradicts an earlier
//! `MSOK` has to persist; any `MSOK` in between clears it. A single `BADF` is ignored, because it would end the announcements to
//! all other masters, too, and a real one follows every announcement.

use super::wire::{Announcement, FromMaster, HANDSHAKE, HEARTBEAT_VERSION, MAP_SIZE, MODE_SIZE, NAME_SIZE, Version};
use crate::model::{Facts, VersionText};
use crate::protocols::announce::{self, Complaint, MasterReply, Offer, Round, Step};
use crate::protocols::pick;

pub const BURST: u8 = 5;
pub const PACKET_EVERY_MS: u64 = 1_000;
pub const BURST_EVERY_MS: u64 = 40_000;
/// How long to wait for an answer to a burst's last announcement.
pub const PATIENCE_MS: u64 = 2_000;

/// After an `MSOK`, complaints are believed after this many bursts without another one.
const DOUBTED_BURSTS: u8 = 3;

/// The current game's version: 0.2.1-37.
pub const VERSION: Version = Version(0x0080_8025);

/// After a complaint that contradicts an earlier `MSOK`.
const DOUBTED: &str =
    "it no longer accepts the announcement (BADV or BADF); that may be forged, and is believed only if it persists";

const MALFORMED: &str = "it says that the announcement is malformed (BADF)";

/// Starts announcing, with the owner's version or the current game's.
pub fn start(now_ms: u64, offer: &Offer) -> Result<Box<dyn announce::Announcer>, String> {
    let version = match offer.facts.version.as_str() {
        "" => VERSION,
        version => version.parse()?,
    };
    Ok(Box::new(Announcer::new(now_ms, version)))
}

pub struct Announcer {
    /// The game's version.
    own_version: Version,
    /// The version that it is announced with.
    version: Version,
    fell_back: bool,
    /// When this burst began or will begin.
    burst_ms: u64,
    ready: bool,
    /// When the last announcement of this burst was sent.
    last_ms: u64,
    sent: u8,
    answered: bool,
    /// Whether the last announcement was answered.
    answered_last: bool,
    /// Refusals that may still arrive for announcements with the old version; they are ignored.
    late_refusals: u8,
    /// This master has accepted an announcement, so complaints are doubted.
    accepted: bool,
    /// The last doubted complaint of this burst.
    doubted: Option<Refusal>,
    /// Bursts with a doubted complaint and without a cookie, since the last cookie.
    doubted_bursts: u8,
    /// How many announcements of this burst had been sent when the first `BADF` arrived.
    malformed_at: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Version { heartbeat_version: u16, version: Version },
    Format,
}

impl Announcer {
    /// The first burst begins at once.
    pub fn new(now_ms: u64, version: Version) -> Announcer {
        Announcer {
            own_version: version,
            version,
            fell_back: false,
            burst_ms: now_ms,
            ready: false,
            last_ms: now_ms,
            sent: 0,
            answered: false,
            answered_last: false,
            late_refusals: 0,
            accepted: false,
            doubted: None,
            doubted_bursts: 0,
            malformed_at: None,
        }
    }

    fn judge(&mut self, now_ms: u64) -> Step {
        let (answered, doubted) = (self.answered, self.doubted.filter(|_| !self.answered));
        self.begin(self.burst_ms + BURST_EVERY_MS);
        self.ready = false;
        self.late_refusals = 0;
        self.doubted_bursts = self.doubted_bursts.saturating_add(u8::from(doubted.is_some()));
        match doubted {
            Some(refusal) if self.doubted_bursts >= DOUBTED_BURSTS => {
                self.doubted_bursts = 0;
                Step::Believe(self.believe(now_ms, refusal))
            }
            Some(_) => Step::Finish(Round::Doubted(DOUBTED)),
            None if answered => Step::Finish(Round::Accepted),
            None => Step::Finish(Round::Unanswered),
        }
    }

    fn begin(&mut self, at_ms: u64) {
        (self.burst_ms, self.sent, self.answered) = (at_ms, 0, false);
        (self.doubted, self.malformed_at) = (None, None);
    }

    fn complaint(&mut self, now_ms: u64, refusal: Refusal) -> MasterReply {
        if self.accepted {
            self.doubted = Some(refusal);
            return MasterReply::Nothing;
        }
        match refusal {
            Refusal::Version { .. } if self.late_refusals > 0 => {
                self.late_refusals -= 1;
                MasterReply::Nothing
            }
            // It has to be repeated for an announcement that was sent after the first `BADF`.
            Refusal::Format if *self.malformed_at.get_or_insert(self.sent) == self.sent => MasterReply::Nothing,
            refusal => MasterReply::Complaint(self.believe(now_ms, refusal)),
        }
    }

    fn believe(&mut self, now_ms: u64, refusal: Refusal) -> Complaint {
        match refusal {
            Refusal::Version { heartbeat_version, version } => self.refused(now_ms, heartbeat_version, version),
            Refusal::Format => Complaint::Malformed(MALFORMED.into()),
        }
    }

    fn refused(&mut self, now_ms: u64, heartbeat_version: u16, version: Version) -> Complaint {
        let is_new = !self.fell_back && version != self.version;
        if heartbeat_version != HEARTBEAT_VERSION || !is_new {
            return Complaint::GivenUp(format!(
                "it takes only Iceball {version} with heartbeat version {heartbeat_version}; \
                 this is Iceball {} with heartbeat version {HEARTBEAT_VERSION}",
                self.own_version
            ));
        }
        self.fell_back = true;
        self.version = version;
        self.late_refusals = self.sent.saturating_sub(1);
        self.begin(now_ms);
        Complaint::Adapted(format!("it expects Iceball {version}; announced as that"))
    }
}

impl announce::Announcer for Announcer {
    fn due_ms(&self) -> u64 {
        match self.sent {
            0 => self.burst_ms,
            BURST.. if self.answered_last => self.last_ms,
            BURST.. => self.last_ms + PATIENCE_MS,
            _ => self.last_ms + PACKET_EVERY_MS,
        }
    }

    fn step(&mut self, now_ms: u64) -> Option<Step> {
        if now_ms < self.due_ms() {
            return None;
        }
        if !self.ready {
            return Some(Step::Prepare);
        }
        if self.sent >= BURST {
            return Some(self.judge(now_ms));
        }
        self.sent += 1;
        self.last_ms = now_ms;
        self.answered_last = false;
        Some(Step::Announce)
    }

    fn ready(&mut self, now_ms: u64) {
        self.begin(now_ms);
        self.ready = true;
    }

    fn put_off(&mut self, until_ms: u64) {
        self.begin(until_ms);
    }

    /// The announcement in the version that this master expects. Long texts are cut at a character boundary.
    fn announcement(&self, offer: &Offer) -> Vec<u8> {
        let facts = &offer.facts;
        let announcement = Announcement {
            version: self.version,
            port: offer.port,
            players_current: facts.players_current.unwrap_or(0),
            players_max: facts.players_max.unwrap_or(0),
            name: cut(&facts.name, NAME_SIZE),
            mode: cut(&facts.mode, MODE_SIZE),
            map: cut(&facts.map, MAP_SIZE),
        };
        announcement.emit(HEARTBEAT_VERSION).to_vec()
    }

    fn hear(&mut self, now_ms: u64, bytes: &[u8], reply: &mut Vec<u8>) -> MasterReply {
        match FromMaster::parse(bytes) {
            Ok(FromMaster::Accepted { cookie }) => {
                (self.answered, self.answered_last, self.accepted) = (true, true, true);
                self.doubted_bursts = 0;
                reply.extend(HANDSHAKE);
                reply.extend(cookie);
                MasterReply::Accepted
            }
            Ok(FromMaster::BadVersion { heartbeat_version, version }) => {
                self.complaint(now_ms, Refusal::Version { heartbeat_version, version })
            }
            Ok(FromMaster::BadFormat) => self.complaint(now_ms, Refusal::Format),
            Err(_) => MasterReply::Nothing,
        }
    }
}

/// The part of a text that fits a field, cut at a character boundary.
fn cut(text: &str, size: usize) -> &[u8] {
    text.as_bytes().get(..text.floor_char_boundary(size)).unwrap_or_default()
}

/// The facts of a simulated server.
pub fn pretend(number: usize) -> Facts<'static> {
    let players_max = [16, 32, 64].into_iter().cycle().nth(number % 3).unwrap_or(64);
    Facts {
        name: format!("Glacier {}", number + 1).into(),
        mode: pick(&["ctf", "tdm", "dm", "build"], number).into(),
        map: pick(&["mesa.vxl", "nucflag.icemap", "ctfbase.vxl"], number).into(),
        version: VersionText::from("0.2.1-37").unwrap_or_default(),
        players_current: Some((number * 5 % (players_max + 1)) as u16),
        players_max: Some(players_max as u16),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Facts;
    use crate::protocols::announce::Announcer as _;
    use crate::protocols::iceball::wire::{BODY, ToMaster};

    const OTHER: Version = Version(0x0080_8023);

    fn offer(name: &'static str) -> Offer {
        let facts = Facts { name: name.into(), mode: "ctf".into(), map: "mesa.vxl".into(), ..Facts::default() };
        Offer { game: "iceball".into(), port: 20737, facts: Facts { players_max: Some(64), ..facts } }
    }

    fn refusal(heartbeat_version: u16, version: Version) -> Vec<u8> {
        let mut bytes = Vec::new();
        FromMaster::BadVersion { heartbeat_version, version }.emit(&mut bytes);
        bytes
    }

    fn falls_back() -> Complaint {
        Complaint::Adapted(format!("it expects Iceball {OTHER}; announced as that"))
    }

    fn is_given_up(heard: &MasterReply) -> bool {
        matches!(heard, MasterReply::Complaint(Complaint::GivenUp(_)))
    }

    fn hear(announcer: &mut Announcer, now_ms: u64, bytes: &[u8]) -> MasterReply {
        announcer.hear(now_ms, bytes, &mut Vec::new())
    }

    /// An announcer that is ready for its first burst.
    fn announcer(now_ms: u64) -> Announcer {
        let mut announcer = Announcer::new(now_ms, VERSION);
        assert_eq!(announcer.step(now_ms), Some(Step::Prepare));
        announcer.ready(now_ms);
        announcer
    }

    /// All steps until a time, each with its time.
    fn steps(announcer: &mut Announcer, until_ms: u64) -> Vec<(u64, Step)> {
        let mut found = Vec::new();
        while announcer.due_ms() <= until_ms {
            let now_ms = announcer.due_ms();
            assert!(now_ms == 0 || announcer.step(now_ms - 1).is_none(), "too early");
            let step = announcer.step(now_ms).unwrap();
            if step == Step::Prepare {
                announcer.ready(now_ms);
            }
            found.push((now_ms, step));
        }
        found
    }

    fn sent_at(steps: &[(u64, Step)]) -> Vec<u64> {
        steps.iter().filter(|(_, step)| *step == Step::Announce).map(|(at, _)| *at).collect()
    }

    #[test]
    fn five_a_second_apart_every_forty_seconds() {
        let mut announcer = Announcer::new(500, VERSION);
        let steps = steps(&mut announcer, 85_000);
        let seconds: Vec<u64> = sent_at(&steps).into_iter().map(|ms| (ms - 500) / 1_000).collect();
        assert_eq!(seconds, [0, 1, 2, 3, 4, 40, 41, 42, 43, 44, 80, 81, 82, 83, 84]);
        assert_eq!(steps[0], (500, Step::Prepare));
        assert_eq!(steps[6], (6_500, Step::Finish(Round::Unanswered)));
        assert_eq!(steps[7], (40_500, Step::Prepare));
    }

    #[test]
    fn packets_are_a_second_apart_however_late_the_caller_is() {
        let mut announcer = Announcer::new(0, VERSION);
        assert_eq!(announcer.step(0), Some(Step::Prepare));
        announcer.ready(3_000); // the game answered late
        assert_eq!(announcer.step(3_000), Some(Step::Announce));
        assert_eq!(announcer.step(30_000), Some(Step::Announce));
        assert_eq!(announcer.step(30_500), None);
        assert_eq!(announcer.due_ms(), 31_000);
    }

    #[test]
    fn every_cookie_is_echoed_whatever_is_in_it() {
        let mut announcer = announcer(0);
        for cookie in [&b""[..], b"\0\xff\0", &[7; 4_000]] {
            announcer.step(announcer.due_ms());
            let bytes = [b"MSOK", cookie].concat();
            let mut reply = Vec::new();
            assert_eq!(announcer.hear(10, &bytes, &mut reply), MasterReply::Accepted);
            assert_eq!(reply, [b"HSHK", cookie].concat());
        }
        assert_eq!(steps(&mut announcer, 10_000).last().unwrap().1, Step::Finish(Round::Accepted));
        assert_eq!(steps(&mut announcer, 50_000).last().unwrap().1, Step::Finish(Round::Unanswered), "in this burst");
    }

    #[test]
    fn a_burst_is_over_when_its_last_announcement_is_answered() {
        let mut announcer = announcer(0);
        assert_eq!(sent_at(&steps(&mut announcer, 4_000)).len(), 5);
        hear(&mut announcer, 4_050, b"MSOKcookie");
        assert_eq!(announcer.step(4_050), Some(Step::Finish(Round::Accepted)));
        assert_eq!(announcer.due_ms(), 40_000);
    }

    #[test]
    fn it_adapts_to_the_expected_version_once() {
        let mut announcer = announcer(0);
        announcer.step(0);
        assert_eq!(hear(&mut announcer, 20, &refusal(2, OTHER)), MasterReply::Complaint(falls_back()));
        assert_eq!(sent_at(&steps(&mut announcer, 10_000)), [20, 1_020, 2_020, 3_020, 4_020]);
        let whole = announcer.announcement(&offer("A"));
        let parsed = ToMaster::parse(&whole).unwrap();
        assert_eq!(parsed, ToMaster::Announce { heartbeat_version: 2, version: OTHER, whole: &whole });
        let given_up = "it takes only Iceball 0.2.1-37 with heartbeat version 2; \
                        this is Iceball 0.2.1-37 with heartbeat version 2";
        let heard = hear(&mut announcer, 50_000, &refusal(2, VERSION));
        assert_eq!(heard, MasterReply::Complaint(Complaint::GivenUp(given_up.into())));
    }

    #[test]
    fn refusals_of_earlier_announcements_do_not_count_twice() {
        let mut announcer = announcer(0);
        for now_ms in [0, 1_000, 2_000] {
            announcer.step(now_ms);
        }
        assert_eq!(hear(&mut announcer, 2_500, &refusal(2, OTHER)), MasterReply::Complaint(falls_back()));
        announcer.step(2_500);
        for now_ms in [2_600, 3_400] {
            assert_eq!(hear(&mut announcer, now_ms, &refusal(2, OTHER)), MasterReply::Nothing);
        }
        assert!(is_given_up(&hear(&mut announcer, 4_000, &refusal(2, OTHER))));
    }

    #[test]
    fn a_master_that_cannot_be_satisfied_is_given_up() {
        let refused = |heartbeat_version, version| {
            let mut announcer = announcer(0);
            announcer.step(0);
            is_given_up(&hear(&mut announcer, 1, &refusal(heartbeat_version, version)))
        };
        assert!(refused(3, OTHER) && refused(1, VERSION));
        assert!(refused(2, VERSION), "the version it wants is the version it got");
    }

    #[test]
    fn badf_is_believed_after_a_second_announcement() {
        let mut announcer = announcer(0);
        announcer.step(0);
        for now_ms in [1, 2, 3] {
            assert_eq!(
                hear(&mut announcer, now_ms, b"BADF"),
                MasterReply::Nothing,
                "however often it answers the same announcement"
            );
        }
        announcer.step(1_000);
        assert_eq!(
            hear(&mut announcer, 1_001, b"BADF"),
            MasterReply::Complaint(Complaint::Malformed(MALFORMED.into()))
        );
        // It is counted per burst.
        let mut announcer = self::announcer(0);
        assert_eq!(sent_at(&steps(&mut announcer, 4_000)).len(), 5);
        hear(&mut announcer, 4_001, b"BADF");
        assert_eq!(sent_at(&steps(&mut announcer, 40_000)).len(), 1);
        assert_eq!(hear(&mut announcer, 40_001, b"BADF"), MasterReply::Nothing);
    }

    /// An announcer that a master has accepted, at the beginning of its next burst.
    fn accepted() -> Announcer {
        let mut announcer = announcer(0);
        announcer.step(0);
        hear(&mut announcer, 10, b"MSOKcookie");
        let first = steps(&mut announcer, 39_999);
        assert_eq!(first.last().unwrap().1, Step::Finish(Round::Accepted));
        announcer
    }

    /// Runs a burst in which every announcement gets these answers, and returns its result.
    fn burst(announcer: &mut Announcer, answers: &[&[u8]]) -> Step {
        loop {
            let now_ms = announcer.due_ms();
            match announcer.step(now_ms).unwrap() {
                Step::Prepare => announcer.ready(now_ms),
                Step::Announce => answers.iter().for_each(|answer| {
                    let heard = hear(announcer, now_ms + 1, answer);
                    assert!(matches!(heard, MasterReply::Nothing | MasterReply::Accepted), "{heard:?}");
                }),
                judged => return judged,
            }
        }
    }

    #[test]
    fn forged_complaints_do_not_end_what_a_master_has_accepted() {
        let mut announcer = accepted();
        let forged = [b"BADF".to_vec(), refusal(2, OTHER), refusal(3, OTHER), refusal(2, VERSION)];
        let forged: Vec<&[u8]> = forged.iter().map(Vec::as_slice).collect();
        // Never, while the master itself answers.
        for answers in [[&forged[..], &[b"MSOKc"]].concat(), [&[&b"MSOKc"[..]], &forged[..]].concat()] {
            for _ in 0..20 {
                let judged = burst(&mut announcer, &answers);
                assert_eq!(judged, Step::Finish(Round::Accepted));
            }
        }
        // If it does not, two bursts are not enough, however often they are repeated.
        for _ in 0..20 {
            for _ in 0..2 {
                assert_eq!(burst(&mut announcer, &forged), Step::Finish(Round::Doubted(DOUBTED)));
            }
            assert_eq!(burst(&mut announcer, &[b"MSOKc"]), Step::Finish(Round::Accepted));
        }
        assert_eq!(announcer.version, VERSION);
    }

    #[test]
    fn complaints_that_persist_are_believed() {
        let lasts = |answer: &[u8]| {
            let mut announcer = accepted();
            assert_eq!(burst(&mut announcer, &[answer]), Step::Finish(Round::Doubted(DOUBTED)));
            // Silence neither counts nor clears.
            assert_eq!(burst(&mut announcer, &[]), Step::Finish(Round::Unanswered));
            assert_eq!(burst(&mut announcer, &[answer]), Step::Finish(Round::Doubted(DOUBTED)));
            let Step::Believe(complaint) = burst(&mut announcer, &[answer]) else { panic!("not believed") };
            (announcer, complaint)
        };
        assert_eq!(lasts(b"BADF").1, Complaint::Malformed(MALFORMED.into()));
        assert!(matches!(lasts(&refusal(3, OTHER)).1, Complaint::GivenUp(_)));
        let (mut announcer, complaint) = lasts(&refusal(2, OTHER));
        assert_eq!(complaint, falls_back());
        let now_ms = announcer.due_ms();
        assert_eq!(announcer.step(now_ms), Some(Step::Prepare), "at once");
        let whole = announcer.announcement(&offer("A"));
        assert!(matches!(ToMaster::parse(&whole), Ok(ToMaster::Announce { version: OTHER, .. })));
        // Then it is accepted, or doubted again.
        assert_eq!(burst(&mut announcer, &[&refusal(2, OTHER)]), Step::Finish(Round::Doubted(DOUBTED)));
        assert_eq!(burst(&mut announcer, &[b"MSOKc"]), Step::Finish(Round::Accepted));
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut announcer = announcer(0);
        announcer.step(0);
        for bytes in [&b""[..], b"MSO", b"BADV\x02\0", b"HSHKcookie", b"1CEB", &[0; 300]] {
            assert_eq!(hear(&mut announcer, 1, bytes), MasterReply::Nothing, "{bytes:?}");
        }
        assert_eq!(announcer.due_ms(), 1_000);
    }

    #[test]
    fn a_burst_that_cannot_begin_is_put_off() {
        let mut announcer = Announcer::new(0, VERSION);
        assert_eq!(announcer.step(0), Some(Step::Prepare));
        announcer.put_off(7_000);
        assert_eq!(announcer.step(6_999), None);
        assert_eq!(announcer.step(7_000), Some(Step::Prepare));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let whole = Announcer::new(0, VERSION).announcement(&offer("aééééééééééééééééééé"));
        let parsed = Announcement::parse_body(&whole[BODY..]).unwrap();
        assert_eq!(parsed.name, "aéééééééééééééé".as_bytes());
        assert_eq!((parsed.port, parsed.players_current, parsed.players_max), (20737, 0, 64));
        assert_eq!((parsed.version, parsed.mode, parsed.map), (VERSION, &b"ctf"[..], &b"mesa.vxl"[..]));
    }
}

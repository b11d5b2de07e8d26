//! A listed server as it is stored and shared.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use arrayvec::ArrayString;

use super::{
    Address, Announce, Details, Facts, Game, GameRules, HeartbeatKeys, Overrides, Player, Proof, Strength, VersionText,
};

/// The four texts of a listed server in one allocation: with a million servers, four allocations each would take most of
/// the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Texts {
    pub(super) all: Box<str>,
    ends: [u16; 3],
    /// The server's, here because there is room: a million servers are kept as small as they can be.
    silence: Silence,
}

impl Texts {
    /// Upper bound on the length of each text; longer ones are cut at a character boundary.
    pub const BYTES_MAX: usize = 1024;

    pub fn new(address: Address, facts: &Facts<'_>) -> Texts {
        let mut buffer = ArrayString::new();
        let name = facts.shown_name(address, &mut buffer);
        let mut all = String::with_capacity(name.len() + facts.mode.len() + facts.map.len() + facts.version.len());
        let mut push = |text: &str| {
            all.push_str(cut(text, Texts::BYTES_MAX));
            all.len() as u16 // at most 4 × BYTES_MAX
        };
        let ends = [push(name), push(&facts.mode), push(&facts.map)];
        push(&facts.version);
        Texts { all: all.into_boxed_str(), ends, silence: Silence::None }
    }

    fn part(&self, from: u16, to: usize) -> &str {
        self.all.get(from as usize..to).unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.part(0, self.ends[0] as usize)
    }

    pub fn mode(&self) -> &str {
        self.part(self.ends[0], self.ends[1] as usize)
    }

    pub fn map(&self) -> &str {
        self.part(self.ends[1], self.ends[2] as usize)
    }

    pub fn version(&self) -> &str {
        self.part(self.ends[2], self.all.len())
    }

    fn same_as(&self, address: Address, facts: &Facts<'_>) -> bool {
        self.name() == cut(facts.shown_name(address, &mut ArrayString::new()), Texts::BYTES_MAX)
            && self.mode() == cut(&facts.mode, Texts::BYTES_MAX)
            && self.map() == cut(&facts.map, Texts::BYTES_MAX)
            && self.version() == facts.version.as_str()
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?} {:?}", self.name(), self.mode(), self.map(), self.version())
    }
}

/// The longest prefix of `text` of at most `bytes_max` bytes that ends at a character boundary.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

/// A round trip as it is stored: at least a microsecond.
pub fn round_trip(us: u32) -> NonZeroU32 {
    NonZeroU32::new(us).unwrap_or(NonZeroU32::MIN)
}

/// The name of another master whose list named a server.
#[derive(Debug, PartialEq, Eq)]
pub struct Origin(Box<str>);

impl Origin {
    /// Upper bound on the length of the name.
    pub const BYTES_MAX: usize = 128;

    pub fn new(name: &str) -> Origin {
        Origin(cut(name, Origin::BYTES_MAX).into())
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

/// What follows from a server's silence. For the same proof, the later stage is the newer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Silence {
    /// It answers, or has not been silent for long.
    #[default]
    None,
    /// The node that queries it has no answer: the other nodes query it before it is taken off the list.
    OthersAsk,
    /// Nobody gets an answer, and it announces itself: it stays listed for a while with what it said last.
    Announces,
}

impl Silence {
    /// As records spell it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Silence::None => None,
            Silence::OthersAsk => Some("others ask"),
            Silence::Announces => Some("announces"),
        }
    }

    pub fn named(name: &str) -> Silence {
        let known = |silence: &Silence| silence.name() == Some(name);
        [Silence::OthersAsk, Silence::Announces].into_iter().find(known).unwrap_or_default()
    }
}

/// One listed server: immutable and shared between the registry, the views and their readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub address: Address,
    pub game: Game,
    pub texts: Texts,
    pub players_current: Option<u16>,
    pub players_max: Option<u16>,
    pub password: Option<bool>,
    pub overrides: Overrides,
    pub verified_by: Proof,
    /// Whether it came from another node, so that the others need not be informed.
    pub foreign: bool,
    /// The node that has the proof, in one byte: it only breaks ties. 0 where there is one node.
    pub node: u8,
    /// When it was last proven. Published when facts change, and at least every quarter of its life.
    pub proven_at_ms: u64,
    /// The last proof's round trip in microseconds, if it was a query.
    pub rtt_us: Option<NonZeroU32>,
    pub first_seen_ms: u64,
    /// When it last announced itself, or was queried because the operator names it. Of a mirrored server: when it last answered.
    pub last_seen_ms: u64,
    /// How long it is listed after that; 0 for servers that the operator names.
    pub life_ms: u32,
    /// The master whose list named it; None: it announced itself here, or the operator names it.
    pub via: Option<Arc<Origin>>,
    pub details: Option<Arc<Details>>,
    pub keys: Option<Arc<HeartbeatKeys>>,
}

impl Server {
    pub fn matches_facts(&self, facts: &Facts<'_>) -> bool {
        self.players_current == facts.shown_players()
            && self.players_max == facts.players_max
            && self.password == facts.password
            && self.details == facts.details
            && self.texts.same_as(self.address, facts)
    }

    /// Whether the other differs at most in when it was seen, and by which node.
    pub fn is_the_same_as(&self, other: &Server) -> bool {
        self.address == other.address
            && self.game == other.game
            && self.texts == other.texts
            && self.players_current == other.players_current
            && self.players_max == other.players_max
            && self.password == other.password
            && self.overrides == other.overrides
            && self.verified_by == other.verified_by
            && self.via == other.via
            && self.first_seen_ms == other.first_seen_ms
            && self.life_ms == other.life_ms
            && self.details == other.details
            && self.keys == other.keys
    }

    /// A new entry.
    pub fn new(address: Address, game: Game, verified_by: Proof, seen_ms: u64, facts: &Facts<'_>) -> Server {
        Server {
            address,
            game,
            texts: Texts::new(address, facts),
            players_current: facts.shown_players(),
            players_max: facts.players_max,
            password: facts.password,
            overrides: Overrides::default(),
            verified_by,
            foreign: false,
            node: 0,
            proven_at_ms: seen_ms,
            rtt_us: None,
            first_seen_ms: seen_ms,
            last_seen_ms: seen_ms,
            life_ms: 0,
            via: None,
            details: facts.details.clone(),
            keys: None,
        }
    }

    /// A server as its announcement describes it.
    pub fn announced(announce: &Announce<'_>) -> Server {
        let Announce { address, game, proof, proven_at_ms, life_ms, rtt_us, keys, facts, asked: _ } = announce;
        Server {
            rtt_us: rtt_us.map(round_trip),
            life_ms: u32::try_from(*life_ms).unwrap_or(u32::MAX),
            keys: keys.clone(),
            ..Server::new(*address, game.clone(), *proof, *proven_at_ms, facts)
        }
    }

    /// What follows from its not answering since its last proof.
    pub fn silence(&self) -> Silence {
        self.texts.silence
    }

    pub fn with_silence(mut self, silence: Silence) -> Server {
        self.texts.silence = silence;
        self
    }

    /// Whether it announces itself and does not answer: what is known of it may be old.
    pub fn is_unanswered(&self) -> bool {
        self.silence() == Silence::Announces
    }

    /// The players, if known: see [`Details::known_players`].
    pub fn known_players(&self) -> Option<&[Player]> {
        self.details.as_deref()?.known_players(self.players_current)
    }

    pub fn rules(&self) -> &GameRules {
        self.details.as_deref().map(|details| &details.rules).unwrap_or_default()
    }

    pub fn strength(&self) -> Strength {
        Strength::of(self.verified_by, self.via.is_some())
    }

    /// What it last reported about itself.
    pub fn facts(&self) -> Facts<'_> {
        Facts {
            game: "".into(), // known already, as `self.game`
            name: self.texts.name().into(),
            mode: self.texts.mode().into(),
            map: self.texts.map().into(),
            version: VersionText::from(self.texts.version()).unwrap_or_default(),
            players_current: self.players_current,
            players_max: self.players_max,
            password: self.password,
            details: self.details.clone(),
        }
    }

    /// Whether what is known of it is only what its owner states: nothing but a connection has proven it.
    pub fn is_stated(&self) -> bool {
        self.verified_by == Proof::Connection
            && (!self.texts.all.is_empty()
                || self.players_current.is_some()
                || self.players_max.is_some()
                || self.password.is_some()
                || self.details.is_some())
    }

    /// Whether it has answered its game's query: it is asked again after a restart.
    pub fn was_asked(&self) -> bool {
        self.verified_by == Proof::Query || self.verified_by == Proof::Cookie && self.rtt_us.is_some()
    }

    /// The same server with other facts.
    pub fn with_facts(&self, facts: &Facts<'_>) -> Server {
        Server {
            texts: Texts::new(self.address, facts),
            players_current: facts.shown_players(),
            players_max: facts.players_max,
            password: facts.password,
            details: facts.details.clone(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_as_small_as_a_million_of_them_need() {
        // With the counts of its Arc, 152 bytes: allocators round both this and 144 up to 160.
        assert_eq!(size_of::<Server>(), 136);
    }

    #[test]
    fn impossible_counts_are_cut_and_invisible_names_are_none() {
        let address = "203.0.113.5:20737".parse().unwrap();
        let server = |facts: &Facts<'_>| {
            let server = Server::new(address, Game::Own("iceball"), Proof::Cookie, 1, facts);
            assert!(server.matches_facts(facts), "the same again says nothing new: {facts:?}");
            let before = Server::new(address, Game::Own("iceball"), Proof::Cookie, 1, &Facts::default());
            let changed = before.with_facts(facts);
            assert_eq!((&changed.texts, changed.players_current), (&server.texts, server.players_current));
            server
        };
        for (current, max, expected) in [
            (Some(65_535), Some(1), Some(1)),
            (Some(1), Some(1), Some(1)),
            (Some(5), Some(0), Some(5)),
            (Some(5), None, Some(5)),
            (None, Some(1), None),
        ] {
            let facts = Facts { players_current: current, players_max: max, ..Facts::default() };
            let server = server(&facts);
            assert_eq!((server.players_current, server.players_max), (expected, max));
        }
        assert_eq!(server(&Facts::default()).texts.name(), "", "unknown");
        for name in ["   ", "\u{a0}\u{2003}\u{3000}", "\u{200b}\u{2060}\u{ad}", "\u{3164}", "\u{2800} \u{e0020}"] {
            let facts = Facts { name: name.into(), ..Facts::default() };
            let server = server(&facts);
            assert_eq!(server.texts.name(), server.address.to_string(), "{name:?}");
            assert!(server.matches_facts(&facts));
        }
        for name in [" a ", "\u{fffd}", "日本", "é\u{200d}"] {
            assert_eq!(server(&Facts { name: name.into(), ..Facts::default() }).texts.name(), name);
        }
    }

    #[test]
    fn stages_of_silence_come_back_from_records() {
        for silence in [Silence::None, Silence::OthersAsk, Silence::Announces] {
            assert_eq!(silence.name().map(Silence::named).unwrap_or_default(), silence);
        }
        assert_eq!(Silence::named("of a later version"), Silence::None);
    }

    #[test]
    fn texts_come_back_and_long_ones_are_cut_at_a_character() {
        let long = "é".repeat(Texts::BYTES_MAX);
        let facts = Facts {
            name: long.as_str().into(),
            mode: "ctf".into(),
            map: "".into(),
            version: VersionText::from("0.2.1").unwrap(),
            ..Facts::default()
        };
        let address = "203.0.113.5:20737".parse().unwrap();
        let texts = Texts::new(address, &facts);
        assert_eq!(texts.name(), "é".repeat(Texts::BYTES_MAX / 2));
        assert_eq!((texts.mode(), texts.map(), texts.version()), ("ctf", "", "0.2.1"));
        assert!(texts.same_as(address, &facts));
    }
}

//! The words that every room shares: where a server is, what is known of it, how it was proven, and what may
//! change. Plain data, without behaviour of its own.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::sync::Arc;

use arrayvec::ArrayString;

/// A moment, as the hub's clock told it: rules and the registry never ask for the time themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the monotonic clock; life times are counted with it.
    pub mono_ms: u64,
    /// Milliseconds since 1970, UTC; what people and other nodes are told.
    pub unix_ms: u64,
}

/// The time that all nodes of a cluster share, as its distance from this node's monotonic clock: a time of day that is set
/// anew does not move it. Without a cluster, it is this node's own time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTime {
    pub ahead_of_mono_ms: Option<i64>,
}

impl SharedTime {
    /// Milliseconds since 1970, as all nodes count them.
    pub fn unix_ms(self, now: Now) -> u64 {
        self.ahead_of_mono_ms.map_or(now.unix_ms, |ahead_ms| now.mono_ms.saturating_add_signed(ahead_ms))
    }

    /// What has to be added to this node's time of day to get the shared time.
    pub fn offset_ms(self, now: Now) -> i64 {
        (self.unix_ms(now) as i64).saturating_sub(now.unix_ms as i64)
    }
}

/// Where a game server is: its identity in the registry. Never port 0, never an IPv4 address written as IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    ip: IpAddr,
    port: NonZeroU16,
}

impl Address {
    pub fn new(ip: IpAddr, port: u16) -> Option<Address> {
        let port = NonZeroU16::new(port)?;
        Some(Address { ip: ip.to_canonical(), port })
    }

    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The old list formats know IPv4 only; a server elsewhere is left out of them.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        match self.ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        }
    }

    pub fn port(&self) -> u16 {
        self.port.get()
    }

    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port())
    }
}

/// In one piece, not field by field: the registry hashes an address twice for every handshake.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.ip {
            IpAddr::V4(ip) => state.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(self.port())),
            IpAddr::V6(ip) => {
                state.write_u128(ip.to_bits());
                state.write_u16(self.port());
            }
        }
    }
}

/// The longest name of a game.
pub const GAME_BYTES_MAX: usize = 64;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket().fmt(f)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let socket: SocketAddr =
            text.parse().map_err(|_| format!("`{text}` is not an address like 203.0.113.5:20737"))?;
        Address::new(socket.ip(), socket.port()).ok_or_else(|| format!("`{text}` has port 0"))
    }
}

/// The name of a game, as its protocol writes it. Games with a card have a static name; a protocol that lists any
/// game brings its own.
#[derive(Clone, Debug)]
pub enum Game {
    Known(&'static str),
    Other(Arc<str>),
}

impl Game {
    pub fn name(&self) -> &str {
        match self {
            Game::Known(name) => name,
            Game::Other(name) => name,
        }
    }
}

/// The name under which netPanzer's masters list each other. They are in the registry, and not games.
pub const MASTER: &str = "master";

impl PartialEq for Game {
    fn eq(&self, other: &Game) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Game {}

/// How a listed server was proven to be where it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A cookie sent to its address came back.
    Cookie,
    /// It answered its game's own query with our nonce.
    Query,
    /// Only its TCP connection vouches for the address: its game cannot be queried.
    Connection,
    /// The operator's configuration names it.
    Config,
}

/// How much a proof shows, weakest first. A weaker proof never replaces, edits, prolongs or ends a stronger one that
/// lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// Someone at the IP address opened a connection. Nothing shows that a game is there.
    Address,
    /// The game sent back what was sent to it, or the operator vouches for it.
    Game,
}

impl Proof {
    pub fn strength(self) -> Strength {
        match self {
            Proof::Connection => Strength::Address,
            Proof::Cookie | Proof::Query | Proof::Config => Strength::Game,
        }
    }

    pub fn is_weaker_than(self, other: Proof) -> bool {
        self.strength() < other.strength()
    }

    pub fn name(self) -> &'static str {
        match self {
            Proof::Cookie => "cookie",
            Proof::Query => "query",
            Proof::Connection => "connection",
            Proof::Config => "config",
        }
    }
}

/// A version in text. Versions are often made from packed numbers, so this owns its text, without an allocation.
pub type VersionText = ArrayString<32>;

/// What a server says of itself, borrowed from the message that said it. An empty text means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    pub name: Cow<'a, str>,
    pub mode: Cow<'a, str>,
    pub map: Cow<'a, str>,
    pub version: VersionText,
    pub players_current: Option<u16>,
    pub players_max: Option<u16>,
    pub password: Option<bool>,
    pub details: Option<Arc<Details>>,
}

impl Facts<'_> {
    /// What the server says of one of its rules.
    pub fn rule(&self, name: &str) -> Option<&str> {
        let rules = self.details.as_deref().map_or(&[][..], |details| &details.rules);
        rules.iter().find(|(found, _)| **found == *name).map(|(_, value)| &**value)
    }

    /// The name as it is listed: a name that nobody could see gives way to the address. An empty one stays unknown.
    fn shown_name<'a>(&'a self, address: Address, buffer: &'a mut ArrayString<64>) -> &'a str {
        let is_invisible = !self.name.is_empty() && self.name.chars().all(is_blank);
        if is_invisible && write!(buffer, "{address}").is_ok() { buffer } else { &self.name }
    }

    /// How many play, as it is listed: not more than the server has room for, where it says so.
    pub fn shown_players(&self) -> Option<u16> {
        let most = self.players_max.filter(|most| *most > 0).unwrap_or(u16::MAX);
        self.players_current.map(|players| players.min(most))
    }

    /// The same facts, kept beyond the message that said them.
    pub fn into_owned(self) -> Facts<'static> {
        Facts {
            name: Cow::Owned(self.name.into_owned()),
            mode: Cow::Owned(self.mode.into_owned()),
            map: Cow::Owned(self.map.into_owned()),
            version: self.version,
            players_current: self.players_current,
            players_max: self.players_max,
            password: self.password,
            details: self.details,
        }
    }
}

/// What a game's query tells beyond the facts that all games have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub players: Vec<Player>,
    /// Name and value, in the order in which the server told them.
    pub rules: Vec<(Box<str>, Box<str>)>,
}

impl Details {
    pub const PLAYERS_MAX: usize = 256;
    pub const RULES_MAX: usize = 256;
    /// All names and values together.
    pub const BYTES_MAX: usize = 16 << 10;

    /// Who plays, if that is known: where somebody does and nobody is named, the game does not tell.
    pub fn known_players(&self, players_current: Option<u16>) -> Option<&[Player]> {
        Some(&*self.players).filter(|players| !players.is_empty() || players_current == Some(0))
    }

    /// What is kept of what a server tells: of a rule that is told twice the first, and not more than anybody reads.
    pub fn bounded(mut self) -> Details {
        let mut room = Details::BYTES_MAX;
        let mut fits = |size: usize| room.checked_sub(size).map(|left| room = left).is_some();
        self.players.truncate(Details::PLAYERS_MAX);
        self.players.retain(|player| fits(player.name.len() + player.team.as_ref().map_or(0, |team| team.len())));
        self.rules.truncate(Details::RULES_MAX);
        let mut rules: Vec<(Box<str>, Box<str>)> = Vec::with_capacity(self.rules.len());
        for (name, value) in self.rules {
            if !rules.iter().any(|(known, _)| *known == name) && fits(name.len() + value.len()) {
                rules.push((name, value));
            }
        }
        Details { players: self.players, rules }
    }
}

/// One who plays. Absent means that the game does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Player {
    #[schema(value_type = String)]
    pub name: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spectator: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kills: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deaths: Option<i32>,
}

/// The keys that a heartbeat sent, kept byte for byte: lists are filtered by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatKeys(pub Vec<HeartbeatKey>);

/// A key and its value.
pub type HeartbeatKey = (Box<[u8]>, Box<[u8]>);

impl HeartbeatKeys {
    /// The keys of a server that announced itself in another way: what every heartbeat has.
    pub fn of(game: &str, address: Address) -> HeartbeatKeys {
        let key = |key: &str, value: &str| (key.as_bytes().into(), value.as_bytes().into());
        HeartbeatKeys(vec![key("gamename", game), key("port", &address.port().to_string())])
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| **found == *key).map(|(_, value)| &**value)
    }
}

/// The four texts of a listed server in one allocation: at a million servers, four would be the bulk of the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Texts {
    all: Box<str>,
    ends: [u16; 3],
}

impl Texts {
    /// The longest text kept of each kind; longer ones are cut at a character's edge.
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
        Texts { all: all.into_boxed_str(), ends }
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

/// Whether a character leaves no mark on a page: white space, and what Unicode has that is as wide as nothing or empty.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{e0000}'..='\u{e0fff}')
}

/// The longest start of `text` of at most `bytes_max` bytes that ends at a character's edge.
fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

/// A round trip as it is kept; one that took no time took a microsecond.
pub fn round_trip(us: u32) -> NonZeroU32 {
    NonZeroU32::new(us).unwrap_or(NonZeroU32::MIN)
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
    pub word: Word,
    pub verified_by: Proof,
    /// Whether other nodes know all of this already, because it came from them.
    pub foreign: bool,
    /// The node that has the proof, in one byte: it only breaks ties. 0 where there is one node.
    pub node: u8,
    /// When it was last proven. Republished with the facts, and at the latest after a quarter of its life.
    pub proven_at_ms: u64,
    /// The last proof's round trip in microseconds, where it was a query.
    pub rtt_us: Option<NonZeroU32>,
    pub first_seen_ms: u64,
    /// When it last announced itself, or was asked by name of the operator.
    pub last_seen_ms: u64,
    /// How long it is listed after that; 0 where the operator's word keeps it.
    pub life_ms: u32,
    pub details: Option<Arc<Details>>,
    pub keys: Option<Arc<HeartbeatKeys>>,
}

impl Server {
    pub fn says(&self, facts: &Facts<'_>) -> bool {
        self.players_current == facts.shown_players()
            && self.players_max == facts.players_max
            && self.password == facts.password
            && self.details == facts.details
            && self.texts.same_as(self.address, facts)
    }

    /// Whether the other differs only in when it was heard of, and from whom.
    pub fn is_the_same_as(&self, other: &Server) -> bool {
        self.address == other.address
            && self.game == other.game
            && self.texts == other.texts
            && self.players_current == other.players_current
            && self.players_max == other.players_max
            && self.password == other.password
            && self.word == other.word
            && self.verified_by == other.verified_by
            && self.first_seen_ms == other.first_seen_ms
            && self.life_ms == other.life_ms
            && self.details == other.details
            && self.keys == other.keys
    }

    /// A server as it is first known.
    pub fn new(address: Address, game: Game, verified_by: Proof, seen_ms: u64, facts: &Facts<'_>) -> Server {
        Server {
            address,
            game,
            texts: Texts::new(address, facts),
            players_current: facts.shown_players(),
            players_max: facts.players_max,
            password: facts.password,
            word: Word::default(),
            verified_by,
            foreign: false,
            node: 0,
            proven_at_ms: seen_ms,
            rtt_us: None,
            first_seen_ms: seen_ms,
            last_seen_ms: seen_ms,
            life_ms: 0,
            details: facts.details.clone(),
            keys: None,
        }
    }

    /// What it last said of itself.
    pub fn facts(&self) -> Facts<'_> {
        Facts {
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

    /// The same server, saying something else now.
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

/// The operator's word on a server: what no server may say of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    pub official: bool,
    /// Lists are sorted by it, highest first.
    pub priority: i32,
    /// What kind of official server it is, in a game that has kinds; 0 is unofficial.
    pub flavor: u8,
}

/// The operator's word on the server of one game at one address. No other game is listed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorWord {
    pub address: Address,
    pub game: Game,
    pub word: Word,
    /// It need not announce itself: it is asked by query, and listed while it answers.
    pub asked: bool,
}

/// A server was announced and its address proven.
#[derive(Clone, Debug)]
pub struct Announce<'a> {
    pub address: Address,
    pub game: Game,
    pub proof: Proof,
    /// When the proof was begun (for a cookie: when it was sent). An older one never overwrites a newer one,
    /// and the life time counts from here, so that a replay prolongs nothing.
    pub proven_at_ms: u64,
    pub life_ms: u64,
    /// Whether it is to be asked again and again by its game's query.
    pub asked: bool,
    pub rtt_us: Option<u32>,
    pub keys: Option<Arc<HeartbeatKeys>>,
    pub facts: Facts<'a>,
}

/// What another node told of an address, in this node's own time.
// A change that holds one boxes the whole.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are listed servers, and a change has it in a box")]
pub enum Told<'a> {
    Listed(Listed<'a>),
    Gone(Gone),
}

impl Told<'_> {
    pub fn address(&self) -> Address {
        match self {
            Told::Listed(listed) => listed.announce.address,
            Told::Gone(gone) => gone.address,
        }
    }
}

/// A server that another node lists. The life in `announce` is what is left of it now.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    pub announce: Announce<'a>,
    /// Who has the proof.
    pub node: u8,
    pub first_seen_ms: u64,
    pub last_seen_ms: u64,
    /// For a proof of an address alone: when a stronger one was removed there, if one was. Without this, a node that
    /// still has the stronger one could not tell that its time is over.
    pub stronger_gone_ms: Option<u64>,
}

/// A server was taken off the list: it wins over proofs that are not newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    pub address: Address,
    /// Ends proofs of the address alone up to this time.
    pub at_ms: u64,
    /// Ends proofs of the game up to this time, `at_ms` at the latest; 0 where nothing that strong was removed.
    pub game_at_ms: u64,
    /// It said so itself; otherwise it no longer answered, and is kept until its life ends.
    pub quit: bool,
    /// Whether this came from another node.
    pub foreign: bool,
}

impl Gone {
    /// Up to when proofs of this kind are over; 0 where they are not.
    pub fn at_ms_for(&self, proof: Proof) -> u64 {
        match proof.strength() {
            Strength::Address => self.at_ms,
            Strength::Game => self.game_at_ms,
        }
    }

    pub fn ends(&self, proof: Proof, proven_at_ms: u64) -> bool {
        proven_at_ms <= self.at_ms_for(proof)
    }
}

/// What may be done to the registry. All doors lead here.
#[derive(Clone, Debug)]
pub enum Change<'a> {
    Announce(Announce<'a>),
    /// A heartbeat of a server that is listed: a new life, and the keys of this heartbeat instead of the last one's.
    Heartbeat {
        address: Address,
        game: Game,
        life_ms: u64,
        keys: Arc<HeartbeatKeys>,
    },
    /// A server that is asked answered. Without facts, it is alive and said nothing more.
    Answer {
        address: Address,
        game: Game,
        rtt_us: u32,
        facts: Option<Facts<'a>>,
    },
    /// A server that is asked did not answer in this round.
    Miss {
        address: Address,
        game: Game,
    },
    /// It says that it is gone, over a connection. Only what came by heartbeat goes, and masters only for masters.
    Quit {
        address: Address,
        master: bool,
    },
    /// A server that was listed before a restart is listed again, for what is left of its life.
    Restore {
        server: Arc<Server>,
        /// When its life ends, as far as the file knows, by the clock that it was written with.
        ends_at_ms: u64,
        /// Listed here for so much longer, because the file may lack the last signs of life. Other nodes never hear of it.
        grace_ms: u64,
        /// What that clock was behind the time that the nodes share.
        behind_ms: i64,
        /// Where it can be asked: how soon.
        ask_in_ms: u64,
    },
    /// What another node told. Boxed, so that the changes of datagrams stay small.
    Merge(Box<Told<'a>>),
    /// The operator's words on servers, all of them; they replace the earlier ones.
    Words(Arc<[OperatorWord]>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_canonical_and_never_port_0() {
        let mapped: IpAddr = "::ffff:203.0.113.5".parse().unwrap();
        let address = Address::new(mapped, 20737).unwrap();
        assert_eq!(address, "203.0.113.5:20737".parse().unwrap());
        assert_eq!(address.to_string(), "203.0.113.5:20737");
        assert_eq!(Address::new(mapped, 0), None);
        assert!("203.0.113.5".parse::<Address>().unwrap_err().contains("203.0.113.5:20737"));
        assert!("203.0.113.5:0".parse::<Address>().unwrap_err().contains("port 0"));
    }

    #[test]
    fn a_server_is_as_small_as_a_million_of_them_need() {
        assert_eq!(size_of::<Server>(), 136);
    }

    #[test]
    fn impossible_counts_are_cut_and_invisible_names_are_none() {
        let address = "203.0.113.5:20737".parse().unwrap();
        let server = |facts: &Facts<'_>| {
            let server = Server::new(address, Game::Known("iceball"), Proof::Cookie, 1, facts);
            assert!(server.says(facts), "the same again says nothing new: {facts:?}");
            let before = Server::new(address, Game::Known("iceball"), Proof::Cookie, 1, &Facts::default());
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
            assert!(server.says(&facts));
        }
        for name in [" a ", "\u{fffd}", "日本", "é\u{200d}"] {
            assert_eq!(server(&Facts { name: name.into(), ..Facts::default() }).texts.name(), name);
        }
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

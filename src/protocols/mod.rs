//! The protocols: one folder each, all with the same structure, and one row each in [`CARDS`].
//!
//! Rules take bytes and a time and return effects. Nothing here uses a socket, a runtime or a clock, so all rules are tested
//! with byte arrays and made-up times.

pub mod a2s;
pub mod announce;
pub mod bloodmasters;
pub mod ddnet;
pub mod event;
pub mod fetch;
mod games;
pub mod hyperbol;
pub mod iceball;
pub mod join;
pub mod luanti;
pub mod netpanzer;
pub mod network;
pub mod nonce;
pub mod packets;
pub mod post;
pub mod quake3;
pub mod rows;
pub mod section;
#[cfg(test)]
pub mod testing;
pub mod xash3d;

use std::any::TypeId;
use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arrayvec::{ArrayString, ArrayVec};
use bytes::Bytes;

use crate::model::{Address, Change, Facts, Game, HeartbeatKeys, Now, Proof, Server};
use crate::registry::view::{Renderer, View};
use event::{AcceptedEvents, EventKind};
pub use games::{
    Games, announce_every_ms, bound_facts, card_of, game, game_named, is_unnamed, names_of, own_card, query_of,
    servers_of,
};

pub use fetch::{FAULTS_MAX, Fetch, List, ListEntry, ListedName, StreamFetch, Take};

/// Everything that the rest of the program knows about a protocol.
pub struct Card {
    /// Its gamename: the section in the configuration, the scheme of URLs, the label in metrics.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// The well-known port of its masters; none if the list is a page on a web server.
    pub master_port: Option<u16>,
    /// The games of its servers.
    pub games: Games,
    /// Its section of the configuration, with the default values.
    pub section: fn() -> Box<dyn section::Section>,
    /// The default port of its game servers.
    pub game_port: u16,
    /// What qstat calls its game servers. A master's type ends in `M`, after that name or in the place of its `S`.
    pub qstat_types: &'static [&'static str],
    /// How the protocol verifies a server's address.
    pub proof: Proof,
    /// How its servers announce themselves: the end of "Iceball servers announce themselves …".
    pub announced: &'static str,
    /// How `rallypoint announce` announces a server to its masters.
    pub announce: announce::AnnounceMethod,
    /// How often its servers announce themselves.
    pub announce_every_ms: u64,
    /// How long a server stays listed without another announcement.
    pub life_ms: u64,
    /// Upper bound on the players of a server.
    pub players_most: u16,
    /// Upper bound on the names and values that are kept of a server's players and rules, above what real servers say.
    pub details_bytes_max: usize,
    /// How clients fetch the list from its masters.
    pub fetch: Fetch,
    /// How its game servers are queried; none if they cannot be.
    pub query: Option<&'static dyn Query>,
    /// How a game server answers the query.
    pub answer: Option<Answerer>,
    /// Whether there are several kinds (flavors) of official servers, which its lists show.
    pub flavors: bool,
    /// The events of its datagrams, besides [those of all protocols](event::SHARED).
    pub events: &'static [&'static EventKind],
    /// The facts of a simulated server with this number: plausible, and different for each.
    pub pretend: fn(usize) -> Facts<'static>,
    /// Its own attributes in exported XML.
    pub xml_attributes: &'static [XmlAttribute],
    /// How a player joins a server.
    pub join: fn(&Server) -> join::Join,
    /// Every function that parses bytes from the network. Table tests and fuzzing walk these.
    pub decoders: &'static [Decoder],
    /// One valid message for each decoder, in the same order.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Every message that can be both read and written, for fuzzing.
    pub round_trips: &'static [RoundTrip],
}

/// An attribute's name, and its value if the server reports it.
pub type XmlAttribute = (&'static str, fn(&Facts<'_>) -> Option<String>);

/// A message's name, and whether bytes parse as that message.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// A message's name, and whether it is the same after it was written and read again. None: the bytes are not that message.
pub type RoundTrip = (&'static str, fn(&[u8]) -> Option<bool>);

/// All protocols. A new one is a folder and a row here.
pub const CARDS: &[Card] = &[
    iceball::CARD,
    netpanzer::CARD,
    hyperbol::CARD,
    bloodmasters::CARD,
    quake3::CARD,
    luanti::CARD,
    xash3d::CARD,
    ddnet::CARD,
];

pub fn card(name: &str) -> Option<&'static Card> {
    CARDS.iter().find(|card| card.name == name)
}

/// A query that servers of many games answer, and that no master here needs: only the tool asks it.
pub struct Dialect {
    /// The scheme of URLs, and what its servers are called.
    pub name: &'static str,
    /// Which servers answer it, for help texts.
    pub title: &'static str,
    /// The usual port of game servers that answer it.
    pub game_port: u16,
    /// What qstat calls its game servers.
    pub qstat_types: &'static [&'static str],
    pub query: &'static dyn Query,
    /// Every function that parses bytes from the network, and a valid message for each.
    pub decoders: &'static [Decoder],
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All dialects. Their names are no protocol's.
pub const DIALECTS: &[Dialect] = &[a2s::DIALECT];

pub fn dialect(name: &str) -> Option<&'static Dialect> {
    DIALECTS.iter().find(|dialect| dialect.name == name)
}

/// Whether an address belongs to a single host: not multicast, broadcast or unspecified.
pub fn is_one_host(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

/// Upper bound on a reply: none may be much longer than the datagram that it answers.
pub const REPLY_BYTES_MAX: usize = 128;
pub type Reply = ArrayVec<u8, REPLY_BYTES_MAX>;

/// The master's rules for a protocol over datagrams.
pub trait DatagramRules: Send + Sync {
    /// Handles one datagram. `reply` is empty; if it is filled, it is sent back.
    fn datagram<'a>(&self, at: &Context<'_>, from: SocketAddr, bytes: &'a [u8], reply: &mut Reply) -> Effect<'a>;

    /// The renderer of the requested list: [packets], the best servers first. Equal requests get the same renderer, so
    /// that a list is rendered once for all clients. None: the request gets no answer.
    fn list(&self, _request: &ListRequest) -> Option<Arc<dyn Renderer>> {
        None
    }

    /// How to cut a list after one of its packets: the bytes at the end of every packet but the last, and the end mark that
    /// replaces them.
    fn last_packet(&self) -> (&'static [u8], &'static [u8]) {
        (b"", b"")
    }

    /// What this client's copy of the list has in every packet and others' have not. Lists are rendered without it, so that all
    /// clients share them.
    fn echo(&self, _request: &ListRequest) -> Option<Echo> {
        None
    }

    /// Servers that are told of a client who asked for this list.
    fn introduction(&self, _request: &ListRequest, _client: SocketAddr) -> Option<Introduction> {
        None
    }

    /// The events of announcements that the registry has accepted.
    fn accepted_events(&self) -> AcceptedEvents;
}

/// What datagram rules can use besides the datagram.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub now: Now,
    /// The newest published view.
    pub view: &'a View,
}

/// Upper bound on a canonical request for a list.
pub const LIST_REQUEST_BYTES_MAX: usize = 288;

/// A request for a list in canonical form: requests for the same list are equal.
pub type ListRequest = ArrayVec<u8, LIST_REQUEST_BYTES_MAX>;

/// Bytes of a client's request that every packet of its list repeats, inserted at this position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Echo {
    pub at: usize,
    pub bytes: ArrayVec<u8, 8>,
}

/// A datagram to some of the servers in a list that names the client, so that they send to it: both sides together open a path
/// through NAT. The client may be forged, so each is charged for what it will get, and the number is bounded.
pub struct Introduction {
    /// Their [addresses](packets::addresses), the best first.
    pub servers: Arc<dyn Renderer>,
    pub datagram: Reply,
}

/// The effect of a datagram.
// A box would be an allocation per datagram.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum Effect<'a> {
    /// The reply is sent, unless it [is a complaint](event::Event::is_complaint) that must be withheld. No state is kept.
    Answered(event::Event),
    /// The same, and what the datagram says counts for a server that is listed already, although it may be forged.
    Announced(event::Event, Change<'a>),
    /// A server has proven its address.
    Change(Change<'a>),
    /// A request for a list. Another thread sends as much of it as the budget grants.
    List(ListRequest),
    /// The datagram is ignored.
    Dropped(event::Event),
}

/// How a game server is queried.
pub trait Query: Sync {
    /// Writes a question. The server returns the nonce.
    fn ask(&self, ask: Ask, nonce: u32, question: &mut Question);

    /// The same for a server that wants its own token back ([`Heard::Again`]).
    fn ask_with(&self, ask: Ask, nonce: u32, _token: u32, question: &mut Question) {
        self.ask(ask, nonce, question);
    }

    /// Parses an answer to either question.
    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault>;

    /// The same, for those who show no details: [`Facts::details`] may be left out, which for long answers is most of the work.
    fn hear_briefly<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        self.hear(bytes)
    }

    /// Whether an answer, if it is valid, carries facts and no nonce, so that an equal one says the same. Looks no closer than
    /// needed to see that.
    fn is_without_nonce(&self, _bytes: &[u8]) -> bool {
        false
    }

    /// The bits of a nonce that the server returns. Only these are used.
    fn nonce_mask(&self) -> u32 {
        u32::MAX
    }

    /// Whether the answer to [`Ask::Facts`] says everything that the answer to [`Ask::Proof`] says, so that a client that may
    /// ask for a long answer at once needs no other question.
    fn facts_say_all(&self) -> bool {
        true
    }

    /// What shows that an answer belongs to a question.
    fn proven_by(&self) -> ProvenBy {
        ProvenBy::Nonce
    }

    /// What to send after an answer, so that the server frees what the question took there; nothing for most games.
    fn farewell(&self, _answer: &[u8], _last: &mut Question) {}

    /// The least interval between two questions to one server, for games that limit their answers.
    fn spacing_us(&self) -> u64 {
        0
    }

    /// Tells the queries of different games apart.
    fn kind(&self) -> TypeId
    where
        Self: 'static,
    {
        TypeId::of::<Self>()
    }
}

/// What to ask for. If one answer has both the nonce and the facts, both questions are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The nonce, in the game's shortest answer: the address may be a victim's, so it must not get a long one.
    Proof,
    /// The nonce and the facts, for a server that is proven already.
    Facts,
}

/// What shows that an answer belongs to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvenBy {
    /// The nonce in it.
    Nonce,
    /// Only the port that it arrives at, which was chosen at random for the question: the game returns nothing of ours. One
    /// such answer must be enough only for servers whose address has been proven otherwise, by a cookie, a connection, or
    /// several answers in a row.
    Port,
}

/// A question, with room to spare.
pub type Question = ArrayVec<u8, QUESTION_BYTES_MAX>;
pub const QUESTION_BYTES_MAX: usize = 64;

/// A valid answer. Only one with a nonce can prove an address.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// The nonce alone.
    Proof { nonce: u32 },
    /// The nonce and the facts in one datagram.
    Whole { nonce: u32, facts: Facts<'a> },
    /// The nonce and some facts; the answer to [`Ask::Facts`] has more.
    Some { nonce: u32, facts: Facts<'a> },
    /// Facts without a nonce: they may be forged.
    Facts(Facts<'a>),
    /// The server is there, and says no more, where the game is [proven by the port](ProvenBy::Port).
    Alive,
    /// The server wants the question again with this token, where the game is [proven by the port](ProvenBy::Port).
    Again { token: u32 },
}

/// What is wrong with an answer, as text.
pub type Fault = ArrayString<96>;

/// A fault with an error's text, cut to fit.
pub fn fault(error: impl fmt::Display) -> Fault {
    let mut text = Fault::new();
    let _ = write!(text, "{error}");
    text
}

/// A game server's answers to a question, in order, from its facts and its address; none is silence.
pub type Answerer = fn(of: &Facts<'_>, at: Address, question: &[u8]) -> Vec<Vec<u8>>;

/// Picks one of several by number.
fn pick(choices: &[&'static str], number: usize) -> &'static str {
    choices.get(number % choices.len().max(1)).copied().unwrap_or_default()
}

/// The master's rules for a protocol over TCP.
pub trait StreamRules: Send + Sync {
    /// Opens a session with a client at `peer` that connected to `local`; `random` is different for each.
    fn open(&self, peer: SocketAddr, local: SocketAddr, random: u32) -> Box<dyn Session>;

    /// How long a client may take for a request, if the protocol limits it.
    fn patience_ms(&self) -> Option<u64> {
        None
    }
}

/// One connection's session. It takes input, appends answers to `out`, and returns what to do next.
pub trait Session: Send {
    fn on(&mut self, input: SessionInput<'_>, out: &mut Vec<Output>) -> Next;

    /// What to send instead of a list that cannot be rendered now, with the reason in words; the connection is closed then. None
    /// where the protocol has no words for it.
    fn refused(&self, _reason: &str) -> Option<Bytes> {
        None
    }

    /// How many lists it has sent so far.
    fn lists(&self) -> u64;
}

/// A part of an answer.
pub enum Output {
    Bytes(Bytes),
    /// A list, shared by all clients that request it. Another thread renders it, because that may take long.
    List(Arc<dyn Renderer>),
}

impl Output {
    pub fn text(text: &'static [u8]) -> Output {
        Output::Bytes(Bytes::from_static(text))
    }

    /// The bytes, for tests.
    #[cfg(test)]
    pub fn bytes(&self, view: &View) -> Bytes {
        match self {
            Output::Bytes(bytes) => bytes.clone(),
            Output::List(renderer) => renderer.render(view).to_vec().into(),
        }
    }
}

#[derive(Debug)]
pub enum SessionInput<'a> {
    Opened,
    Bytes(&'a [u8]),
    /// The client has closed its side, but may still read.
    Ended,
    /// The result of [`Next::Announce`].
    Verdict(Verdict),
}

#[derive(Debug)]
pub enum Next {
    /// Wait for more input.
    Read,
    /// Pass the same input from `taken` on after everything in `out` is written, so that a client with many requests gets
    /// further answers only when it has read the earlier ones.
    Write { taken: usize },
    /// Close the connection after everything is written.
    Close,
    /// A server announces itself; a [`SessionInput::Verdict`] follows.
    Announce(Heartbeat),
    /// A server quits; then close the connection.
    Quit { address: Address, master: bool },
}

/// A server's heartbeat. Its IP address is that of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub address: Address,
    /// For a family: its protocol's own name, until the server has reported its game.
    pub game: Game,
    pub life_ms: u64,
    /// Whether it has to answer its game's query before it is listed.
    pub verify: bool,
    pub keys: Arc<HeartbeatKeys>,
    /// What the announcement says of the server, where the game's answer does not say it.
    pub said: Option<Box<Facts<'static>>>,
    /// The name under which it wants to be listed.
    pub name: Option<Named>,
}

/// A name under which a server wants to be listed. If it is one of its address, it becomes a rule of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub host: Box<str>,
    pub rule: &'static str,
}

impl Heartbeat {
    /// An announcement of the named game, of any protocol or of the given one. A game whose own protocol has a stronger
    /// proof than a heartbeat can bring is announced only there; the error says where. A server of a family says itself
    /// which of its games it is, when it answers the query.
    pub fn new(
        address: Address,
        protocol: Option<&'static Card>,
        name: &str,
        keys: HeartbeatKeys,
    ) -> Result<Heartbeat, String> {
        let game = match protocol {
            Some(card) if card.games == Games::Family => Some(Game::Own(card.name)),
            Some(card) => game(card.name, name),
            None => game_named(name),
        };
        let game = game.ok_or_else(|| match protocol {
            Some(card) => format!("{} has no game of that name", card.title),
            None => "this is not the name of a game".into(),
        })?;
        let card = card_of(&game).ok_or("its protocol is unknown")?;
        // Its answer says what its lists are filtered by, too.
        let keys = if is_unnamed(&game) { HeartbeatKeys::of(name, address) } else { keys };
        let query = query_of(&game);
        let is_proven_here = query.is_some() && card.proof != Proof::Cookie;
        if matches!(game, Game::Own(_)) && !is_proven_here && card.proof != Proof::Connection {
            return Err(format!("{} servers announce themselves {}", card.title, card.announced));
        }
        Ok(Heartbeat {
            address,
            game,
            life_ms: card.life_ms,
            verify: query.is_some(),
            keys: Arc::new(keys),
            said: None,
            name: None,
        })
    }
}

/// The result of a heartbeat. The text is for the server's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Listed,
    Refused(String),
    /// Refused for now: too much at once, here or from there.
    TryLater {
        reason: String,
        after_s: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn names_and_ports_are_unique() {
        let names: HashSet<_> = CARDS.iter().map(|card| card.name).collect();
        let ports: Vec<_> = CARDS.iter().filter_map(|card| card.master_port).collect();
        assert_eq!(names.len(), CARDS.len());
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len());
        assert!(DIALECTS.iter().all(|dialect| card(dialect.name).is_none()));
        for card in CARDS {
            assert!(card.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{}", card.name);
            assert!(card.life_ms > 2 * card.announce_every_ms, "{}: one lost announcement ends it", card.name);
        }
    }

    #[test]
    fn choices_are_picked_in_turn() {
        let picked: Vec<_> = (0..7).map(|number| pick(&["a", "b", "c"], number)).collect();
        assert_eq!((picked.concat().as_str(), pick(&[], 5)), ("abcabca", ""));
    }

    #[test]
    fn a_dialect_is_found_by_its_name() {
        for known in DIALECTS {
            assert_eq!(dialect(known.name).map(|found| found.name), Some(known.name));
        }
        assert!(dialect("nothing").is_none());
    }

    #[test]
    fn no_nonce_is_guessed_within_millions_of_tries() {
        for query in CARDS.iter().filter_map(|card| card.query) {
            assert!(query.nonce_mask().count_ones() >= 24);
        }
    }

    #[test]
    fn a_server_that_returns_the_nonce_is_asked_the_same_whatever_token_it_gives() {
        for card in CARDS {
            let Some(query) = card.query.filter(|query| query.proven_by() == ProvenBy::Nonce) else { continue };
            let (mut question, mut again) = (Question::new(), Question::new());
            query.ask(Ask::Proof, 7, &mut question);
            query.ask_with(Ask::Proof, 7, 9, &mut again);
            assert_eq!(question, again, "{}", card.name);
        }
    }

    /// The answers of a simulated server parse as its facts.
    #[test]
    fn simulated_servers_answer_their_own_query() {
        let at = "203.0.113.5:3030".parse().unwrap();
        for card in CARDS {
            assert_eq!(card.query.is_some(), card.answer.is_some(), "{}", card.name);
            let names: HashSet<_> = (0..100).map(|number| (card.pretend)(number).name).collect();
            assert_eq!(names.len(), 100, "{}", card.name);
            let (Some(query), Some(answer)) = (card.query, card.answer) else { continue };
            for number in 0..100 {
                let facts = (card.pretend)(number);
                let nonce = (0xdead_0000 | number as u32) & query.nonce_mask();
                let answers = |ask: Ask| {
                    let mut question = Question::new();
                    query.ask(ask, nonce, &mut question);
                    answer(&facts, at, &question)
                };
                let proof = answers(Ask::Proof);
                assert_eq!(proof.len(), 1, "{}: one datagram proves", card.name);
                if query.proven_by() == ProvenBy::Port {
                    match query.hear(&proof[0]).unwrap() {
                        Heard::Alive => {}
                        Heard::Facts(reported) => assert_eq!(reported, facts, "{} {number}", card.name),
                        other => panic!("{}: {other:?}", card.name),
                    }
                    continue;
                }
                let (mut nonces, mut reported) = (Vec::new(), Vec::new());
                for bytes in answers(Ask::Facts) {
                    match query.hear(&bytes).unwrap() {
                        Heard::Proof { nonce } => nonces.push(nonce),
                        // Facts without a nonce come after it.
                        Heard::Facts(facts) if !nonces.is_empty() => reported.push(facts.into_owned()),
                        Heard::Facts(_) => panic!("{}: facts before the nonce", card.name),
                        Heard::Alive | Heard::Again { .. } => panic!("{}: no nonce", card.name),
                        Heard::Whole { nonce, facts } | Heard::Some { nonce, facts } => {
                            nonces.push(nonce);
                            reported.push(facts.into_owned());
                        }
                    }
                }
                // In a family, only the first answer has the game.
                if let Ok(Heard::Some { facts: first, .. }) = query.hear(&proof[0]) {
                    assert_eq!(first.game, facts.game, "{} {number}", card.name);
                    reported.iter_mut().for_each(|reported| reported.game = first.game.clone().into_owned().into());
                }
                assert_eq!((nonces, reported), (vec![nonce], vec![facts.clone()]), "{} {number}", card.name);
                let proven = match query.hear(&proof[0]).unwrap() {
                    Heard::Proof { nonce } | Heard::Whole { nonce, .. } | Heard::Some { nonce, .. } => Some(nonce),
                    Heard::Facts(_) | Heard::Alive | Heard::Again { .. } => None,
                };
                assert_eq!(proven, Some(nonce), "{}: the first answer carries the nonce", card.name);
            }
            for nonsense in [&b""[..], b"x", b"\\", &[0xff; 200]] {
                assert!(answer(&(card.pretend)(0), at, nonsense).is_empty(), "{}", card.name);
            }
        }
    }

    #[test]
    fn a_brief_answer_says_the_same_but_for_the_details() {
        /// The kind of an answer, its nonce and its facts.
        fn parts(heard: Result<Heard<'_>, Fault>) -> (String, Option<Facts<'static>>) {
            match heard {
                Ok(Heard::Facts(facts)) => ("facts".into(), Some(facts.into_owned())),
                Ok(Heard::Some { nonce, facts }) => (format!("some {nonce}"), Some(facts.into_owned())),
                Ok(Heard::Whole { nonce, facts }) => (format!("whole {nonce}"), Some(facts.into_owned())),
                other => (format!("{other:?}"), None),
            }
        }
        let mut brief = HashSet::new();
        for card in CARDS {
            let (Some(query), Some(answer)) = (card.query, card.answer) else { continue };
            let at = Address::new([192, 0, 2, 1].into(), 1).unwrap();
            for (number, ask) in (0..20).flat_map(|number| [(number, Ask::Proof), (number, Ask::Facts)]) {
                let mut question = Question::new();
                query.ask(ask, 0x1bad_cafe & query.nonce_mask(), &mut question);
                for mut bytes in answer(&(card.pretend)(number), at, &question) {
                    loop {
                        let (kind, facts) = parts(query.hear(&bytes));
                        let (brief_kind, brief_facts) = parts(query.hear_briefly(&bytes));
                        let has_details = brief_facts.as_ref().is_some_and(|facts| facts.details.is_some());
                        let is_less = !has_details && facts.as_ref().is_some_and(|facts| facts.details.is_some());
                        brief.extend(is_less.then_some(card.name));
                        let facts = facts.map(|facts| if is_less { Facts { details: None, ..facts } } else { facts });
                        assert_eq!((brief_kind, brief_facts), (kind, facts), "{} {number}", card.name);
                        if bytes.pop().is_none() {
                            break; // all shorter ones were compared, too
                        }
                    }
                }
            }
        }
        assert!(brief.len() >= 2, "{brief:?}");
    }

    #[test]
    fn every_decoder_has_a_sample_and_survives_its_every_cut() {
        let of_cards = CARDS.iter().map(|card| (card.name, card.decoders, (card.samples)()));
        let of_dialects = DIALECTS.iter().map(|dialect| (dialect.name, dialect.decoders, (dialect.samples)()));
        for (name, decoders, samples) in of_cards.chain(of_dialects) {
            assert_eq!(samples.len(), decoders.len(), "{name}");
            for ((message, decode), sample) in decoders.iter().zip(&samples) {
                assert!(decode(sample), "{name} {message}");
                for len in 0..sample.len() {
                    decode(&sample[..len]);
                }
                for other in &samples {
                    decode(other);
                }
            }
        }
    }

    #[test]
    fn samples_survive_being_written_and_read_again() {
        for card in CARDS {
            for (message, survives) in card.round_trips {
                let trips: Vec<bool> = (card.samples)().iter().filter_map(|sample| survives(sample)).collect();
                assert!(!trips.is_empty() && trips.iter().all(|same| *same), "{} {message}: {trips:?}", card.name);
            }
        }
    }

    proptest! {
        #[test]
        fn no_decoder_panics(bytes: Vec<u8>, sample: usize, flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8)) {
            for card in CARDS {
                let samples = (card.samples)();
                let mut changed = samples[sample % samples.len()].clone();
                for (at, byte) in &flips {
                    let at = at % changed.len();
                    changed[at] = *byte;
                }
                for (_, decode) in card.decoders {
                    decode(&bytes);
                    decode(&changed);
                }
            }
        }
    }
}

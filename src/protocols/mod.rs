//! The protocols: one folder each, all with the same anatomy, and one row each in [`CARDS`].
//!
//! A rule takes bytes and a time and returns effects. Nothing here knows a socket, a runtime or a clock, so every
//! rule is tested with byte arrays and made-up times.

pub mod announce;
pub mod bloodmasters;
pub mod event;
pub mod fetch;
mod games;
pub mod hyperbol;
pub mod iceball;
pub mod netpanzer;
pub mod network;
pub mod packets;
pub mod quake3;
pub mod rows;
pub mod section;
#[cfg(test)]
pub mod testing;

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arrayvec::{ArrayString, ArrayVec};
use bytes::Bytes;

use crate::model::{Address, Change, Facts, Game, HeartbeatKeys, Now, Proof};
use crate::registry::view::{Renderer, View};
use event::{EventKind, Proven};
pub use games::{Games, allow_players, announce_every_ms, card_of, game, game_named, is_unnamed, own_card, query_of};

pub use fetch::{FAULTS_MAX, Fetch, List, ListEntry, StreamFetch};

/// What the rest of the house has to know of a protocol.
pub struct Card {
    /// Its gamename: the section in the configuration, the scheme of its addresses, the label in metrics.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// The port that its masters have always used; none where the list is a page on a web server.
    pub master_port: Option<u16>,
    /// Which games its servers may be of.
    pub games: Games,
    /// Its section of the configuration, on its defaults.
    pub section: fn() -> Box<dyn section::Section>,
    /// The port that its game servers use unless told otherwise.
    pub game_port: u16,
    /// What qstat calls its game servers, where it knows them.
    pub qstat_type: Option<&'static str>,
    /// How its own protocol proves a server's address.
    pub proof: Proof,
    /// How its servers announce themselves: the end of "Iceball servers announce themselves …".
    pub announced: &'static str,
    /// How a program beside a server announces it to a master.
    pub announce: announce::Announce,
    /// How often its servers announce themselves.
    pub announce_every_ms: u64,
    /// How long a server stays listed without another announcement.
    pub life_ms: u64,
    /// The most players that its servers have room for.
    pub players_most: u16,
    /// How players' programs fetch the list from its masters.
    pub fetch: Fetch,
    /// How its game servers are queried; none where they cannot be.
    pub query: Option<&'static dyn Query>,
    /// The other side of the query: how a game server answers.
    pub answer: Option<Answerer>,
    /// Whether official servers come in kinds (flavors), which its lists show.
    pub flavors: bool,
    /// What can happen to its datagrams, beside [what all protocols share](event::SHARED).
    pub events: &'static [&'static EventKind],
    /// What a pretend server of this number says of itself: plausible, and different for each.
    pub pretend: fn(usize) -> Facts<'static>,
    /// Attributes that only this game has in exported XML, and their values.
    pub xml_attributes: &'static [XmlAttribute],
    /// The link that starts the game and joins a server.
    pub join_link: fn(Address) -> String,
    /// Every function that reads bytes from the network. Table tests and fuzzing walk these.
    pub decoders: &'static [Decoder],
    /// One genuine message for each decoder, in the same order.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// An attribute's name, and its value where a server says it.
pub type XmlAttribute = (&'static str, fn(&Facts<'_>) -> Option<String>);

/// A message's name, and whether bytes were understood as that message.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// All protocols. A new one is a folder and a row here.
pub const CARDS: &[Card] = &[iceball::CARD, netpanzer::CARD, hyperbol::CARD, bloodmasters::CARD, quake3::CARD];

pub fn card(name: &str) -> Option<&'static Card> {
    CARDS.iter().find(|card| card.name == name)
}

/// Whether an address belongs to one host that could play: neither everybody's nor nobody's.
pub fn is_one_host(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

/// The longest answer to a datagram: none may be much longer than what it answers.
pub const REPLY_BYTES_MAX: usize = 128;
pub type Reply = ArrayVec<u8, REPLY_BYTES_MAX>;

/// The master's rules for a protocol whose servers announce themselves by datagrams.
pub trait DatagramRules: Send + Sync {
    /// Looks at one datagram. `reply` comes in empty; what is in it afterwards goes back to the sender.
    fn datagram<'a>(&self, at: &Context<'_>, from: SocketAddr, bytes: &'a [u8], reply: &mut Reply) -> Effect<'a>;

    /// What renders the list that was requested: [packets](packets), the best servers first. Equal requests get the same
    /// renderer, so that a list is rendered once for all clients that ask for it. None: the request gets no answer.
    fn list(&self, _request: &ListRequest) -> Option<Arc<dyn Renderer>> {
        None
    }

    /// How a list is cut after one of its packets: the bytes at the end of every packet but the last, and the end mark that
    /// is sent in their place.
    fn last_packet(&self) -> (&'static [u8], &'static [u8]) {
        (b"", b"")
    }

    /// What an announcement counts as once the registry has taken it.
    fn proven(&self) -> Proven;
}

/// What datagram rules may look at beside the datagram.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub now: Now,
    /// The newest published view.
    pub view: &'a View,
}

/// The longest request for a list, in canonical form.
pub const LIST_REQUEST_BYTES_MAX: usize = 160;

/// A request for a list in canonical form: requests for the same list are equal.
pub type ListRequest = ArrayVec<u8, LIST_REQUEST_BYTES_MAX>;

/// What a datagram leads to.
// A box would be an allocation per datagram.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum Effect<'a> {
    /// The sender is answered, unless the answer [is a complaint](event::Event::is_complaint) that must not be sent;
    /// nothing is remembered of it.
    Answered(event::Event),
    /// A server has proven itself.
    Change(Change<'a>),
    /// The sender asks for a list. It gets as much of it as the guard's budget grants, from another thread.
    List(ListRequest),
    /// The datagram is ignored.
    Dropped(event::Event),
}

/// How a game server is queried.
pub trait Query: Sync {
    /// Writes a question. The server sends the nonce back.
    fn ask(&self, ask: Ask, nonce: u32, question: &mut Question);

    /// Reads an answer, to whichever question.
    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault>;

    /// How long to wait between two questions to one server, for games that do not answer more often.
    fn spacing_us(&self) -> u64 {
        0
    }
}

/// What is asked. Where the game's answer carries both the nonce and the facts, both questions are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The nonce, in the shortest answer that the game has: an address that may be a victim's gets no long one.
    Proof,
    /// The nonce and the facts, for a server that has proven its address before.
    Facts,
}

/// The longest question, with room to spare.
pub type Question = ArrayVec<u8, 64>;

/// An answer that was understood. Only one with a nonce can prove an address.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// The nonce alone.
    Proof { nonce: u32 },
    /// The nonce and the facts in one datagram.
    Whole { nonce: u32, facts: Facts<'a> },
    /// The nonce and some facts; the answer to [`Ask::Facts`] has more.
    Some { nonce: u32, facts: Facts<'a> },
    /// Facts without a nonce: anybody could have sent them.
    Facts(Facts<'a>),
}

/// What is wrong with an answer, in words.
pub type Fault = ArrayString<96>;

/// A fault in the words of an error; what does not fit is cut.
pub fn fault(error: impl fmt::Display) -> Fault {
    let mut text = Fault::new();
    let _ = write!(text, "{error}");
    text
}

/// The datagrams that a game server answers a question with, in order; none is silence. From what it is, where it is, and
/// the bytes it was asked.
pub type Answerer = fn(of: &Facts<'_>, at: Address, question: &[u8]) -> Vec<Vec<u8>>;

/// One of several, by number.
fn pick(choices: &[&'static str], number: usize) -> &'static str {
    choices.iter().cycle().nth(number % choices.len().max(1)).copied().unwrap_or_default()
}

/// The master's rules for a protocol that is spoken over TCP connections.
pub trait StreamRules: Send + Sync {
    /// A session with a client at `peer` that connected to `local`; `random` is different for each.
    fn open(&self, peer: SocketAddr, local: SocketAddr, random: u32) -> Box<dyn Session>;

    /// How long a client may take for a request, where the protocol says so itself.
    fn patience_ms(&self) -> Option<u64> {
        None
    }
}

/// One conversation. It hears what happens, appends its answer to `out`, and says what it wants next.
pub trait Session: Send {
    fn on(&mut self, event: Event<'_>, out: &mut Vec<Output>) -> Next;

    /// How many lists it has given so far.
    fn lists(&self) -> u64;
}

/// A part of an answer.
pub enum Output {
    Bytes(Bytes),
    /// A list, shared with all who ask for it. The session does not render it: that may take its time.
    List(Arc<dyn Renderer>),
}

impl Output {
    pub fn text(text: &'static [u8]) -> Output {
        Output::Bytes(Bytes::from_static(text))
    }

    /// The bytes, where nothing else renders lists.
    #[cfg(test)]
    pub fn bytes(&self, view: &View) -> Bytes {
        match self {
            Output::Bytes(bytes) => bytes.clone(),
            Output::List(renderer) => renderer.render(view).into(),
        }
    }
}

#[derive(Debug)]
pub enum Event<'a> {
    Opened,
    Bytes(&'a [u8]),
    /// The client has nothing more to say, but may still listen.
    Ended,
    /// What became of [`Next::Announce`].
    Verdict(Verdict),
}

#[derive(Debug)]
pub enum Next {
    /// More input, please.
    Read,
    /// More of the same input, from `taken` on, once everything in `out` is written: a client that asks for much gets the
    /// next answers when it has read the ones before.
    Write { taken: usize },
    /// The conversation is over once everything is written.
    Close,
    /// A server announces itself; a [`Event::Verdict`] follows.
    Announce(Heartbeat),
    /// A server says that it is gone; then the conversation is over.
    Quit { address: Address, master: bool },
}

/// A server's word that it is there. It has the address of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub address: Address,
    /// For a family: its protocol's own name, until the server has said which game it is.
    pub game: Game,
    pub life_ms: u64,
    /// Whether it has to answer its game's query before it is listed.
    pub verify: bool,
    pub keys: Arc<HeartbeatKeys>,
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
        let query = query_of(&game);
        if matches!(game, Game::Own(_)) && query.is_none() && card.proof != Proof::Connection {
            return Err(format!("{} servers announce themselves {}", card.title, card.announced));
        }
        Ok(Heartbeat { address, game, life_ms: card.life_ms, verify: query.is_some(), keys: Arc::new(keys) })
    }
}

/// What became of a heartbeat. The text is for the server's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Listed,
    Refused(String),
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
        for card in CARDS {
            assert!(card.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{}", card.name);
            assert!(card.life_ms > 2 * card.announce_every_ms, "{}: one lost announcement ends it", card.name);
            assert!((card.join_link)("203.0.113.5:1".parse().unwrap()).starts_with(card.name));
        }
    }

    /// What a pretend server answers is understood as exactly what it is, by the same card's query.
    #[test]
    fn pretend_servers_answer_their_own_query() {
        let at = "203.0.113.5:3030".parse().unwrap();
        for card in CARDS {
            assert_eq!(card.query.is_some(), card.answer.is_some(), "{}", card.name);
            let names: HashSet<_> = (0..100).map(|number| (card.pretend)(number).name).collect();
            assert_eq!(names.len(), 100, "{}", card.name);
            let (Some(query), Some(answer)) = (card.query, card.answer) else { continue };
            for number in 0..100 {
                let facts = (card.pretend)(number);
                let nonce = 0xdead_0000 | number as u32;
                let answers = |ask: Ask| {
                    let mut question = Question::new();
                    query.ask(ask, nonce, &mut question);
                    answer(&facts, at, &question)
                };
                let proof = answers(Ask::Proof);
                assert_eq!(proof.len(), 1, "{}: one datagram proves", card.name);
                let (mut nonces, mut told) = (Vec::new(), Vec::new());
                for bytes in answers(Ask::Facts) {
                    match query.hear(&bytes).unwrap() {
                        Heard::Proof { nonce } => nonces.push(nonce),
                        // What comes without a nonce comes after it.
                        Heard::Facts(facts) if !nonces.is_empty() => told.push(facts.into_owned()),
                        Heard::Facts(_) => panic!("{}: facts before the nonce", card.name),
                        Heard::Whole { nonce, facts } | Heard::Some { nonce, facts } => {
                            nonces.push(nonce);
                            told.push(facts.into_owned());
                        }
                    }
                }
                // Which game of a family it is, only the first answer says.
                if let Ok(Heard::Some { facts: first, .. }) = query.hear(&proof[0]) {
                    assert_eq!(first.game, facts.game, "{} {number}", card.name);
                    told.iter_mut().for_each(|told| told.game = first.game.clone().into_owned().into());
                }
                assert_eq!((nonces, told), (vec![nonce], vec![facts.clone()]), "{} {number}", card.name);
                let proven = match query.hear(&proof[0]).unwrap() {
                    Heard::Proof { nonce } | Heard::Whole { nonce, .. } | Heard::Some { nonce, .. } => Some(nonce),
                    Heard::Facts(_) => None,
                };
                assert_eq!(proven, Some(nonce), "{}: the first answer carries the nonce", card.name);
            }
            for nonsense in [&b""[..], b"x", b"\\", &[0xff; 200]] {
                assert!(answer(&(card.pretend)(0), at, nonsense).is_empty(), "{}", card.name);
            }
        }
    }

    #[test]
    fn every_decoder_has_a_sample_and_survives_its_every_cut() {
        for card in CARDS {
            let samples = (card.samples)();
            assert_eq!(samples.len(), card.decoders.len(), "{}", card.name);
            for ((message, decode), sample) in card.decoders.iter().zip(&samples) {
                assert!(decode(sample), "{} {message}", card.name);
                for len in 0..sample.len() {
                    decode(&sample[..len]);
                }
                for other in &samples {
                    decode(other);
                }
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

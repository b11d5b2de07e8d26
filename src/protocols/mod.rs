//! The protocols: one folder each, all with the same anatomy, and one row each in [`CARDS`].
//!
//! A rule takes bytes and a time and returns effects. Nothing here knows a socket, a runtime or a clock, so every
//! rule is tested with byte arrays and made-up times.

pub mod bloodmasters;
pub mod hyperbol;
pub mod iceball;

use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;

use crate::cookie;
use crate::model::{Address, Change, Now};

/// What the rest of the house has to know of a protocol.
pub struct Card {
    /// Its gamename: the section in the configuration, the scheme of its addresses, the label in metrics.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// The port that its masters have always used; none where the list is a page on a web server.
    pub master_port: Option<u16>,
    /// The link that starts the game and joins a server.
    pub join_link: fn(Address) -> String,
    /// Every function that reads bytes from the network. Table tests and fuzzing walk these.
    pub decoders: &'static [Decoder],
    /// One genuine message for each decoder, in the same order.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// A message's name, and whether bytes were understood as that message.
pub type Decoder = (&'static str, fn(&[u8]) -> bool);

/// All protocols. A new one is a folder and a row here.
pub const CARDS: &[Card] = &[iceball::CARD, hyperbol::CARD, bloodmasters::CARD];

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
    fn datagram<'a>(&self, now: Now, from: SocketAddr, bytes: &'a [u8], reply: &mut Reply) -> Effect<'a>;
}

/// What a datagram leads to.
#[derive(Debug)]
pub enum Effect<'a> {
    /// The sender is answered; nothing is remembered of it.
    Answered(Answer),
    /// A server has proven itself.
    Change(Change<'a>),
    /// Nothing at all happens.
    Dropped(Drop),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Cookie,
    BadVersion,
    BadFormat,
}

/// Why a datagram got silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    TooShort,
    UnknownMagic,
    SourcePort0,
    AnnouncedPort0,
    /// The source address is no single host's: nobody could play there.
    SourceAddress,
    Cookie(cookie::Refusal),
    /// The cookie is ours, its content is not an announcement.
    CookieContent,
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
            assert!(card.name.bytes().all(|b| b.is_ascii_lowercase()), "{}", card.name);
            assert!((card.join_link)("203.0.113.5:1".parse().unwrap()).starts_with(card.name));
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

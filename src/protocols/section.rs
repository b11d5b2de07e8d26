//! A protocol's own section of the configuration: its keys, and everything that follows from their values.
//!
//! A protocol has a plain struct with its settings and implements [`Configured`] for it; the rest of the program knows it as
//! a [`Section`].

use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::network::MasterNetwork;
use super::{DatagramRules, Heartbeat, StreamRules};
use crate::cookie::Keys;
use crate::model::{NamedServer, SharedTime};
use crate::registry::view::{Rendered, Renderer};
use crate::settings::{Item, Key, KeyText, Problem};

/// The settings of a protocol.
pub trait Configured: Clone + Debug + Default + PartialEq + Send + Sync + 'static {
    const KEYS: &'static [Key<Self>];

    /// Where it listens.
    fn listeners(&self) -> Vec<Listener<'_>>;

    /// The master's rules for datagrams, with what cookies are made of now.
    fn datagrams(&self, _cookies: Cookies) -> Option<Box<dyn DatagramRules>> {
        None
    }

    /// The master's rules for TCP connections.
    fn streams(&self, _here: &Here) -> Option<Box<dyn StreamRules>> {
        None
    }

    /// The paths that it serves on every HTTP listener: the same whatever the settings are.
    fn routes(&self, _bans: &[IpNet]) -> Vec<Route> {
        Vec::new()
    }

    /// The servers that the operator names.
    fn named_servers(&self) -> &[NamedServer] {
        &[]
    }

    /// The longest that a server of this protocol stays listed without a sign of life.
    fn life_max_ms(&self) -> u64;

    /// Keeps the life of other settings, where it cannot change while the program runs.
    fn keep_life(&mut self, _from: &Self) {}

    /// The network of masters that this one belongs to, where the protocol has such a thing.
    fn network(&self, _listening: &[SocketAddr]) -> Option<MasterNetwork> {
        None
    }

    /// Settings that are allowed but probably a mistake.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Addresses to listen on, and what is spoken there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener<'a> {
    /// The key within the section.
    pub key: &'static str,
    pub addresses: &'a [SocketAddr],
    pub spoken: Spoken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// The protocol's own conversation over TCP.
    Stream,
    Http,
    /// Datagrams, of which the first `bytes_max` bytes are read.
    Datagrams {
        bytes_max: usize,
    },
    /// The same, and HTTP on the same port number.
    DatagramsAndHttp {
        bytes_max: usize,
    },
}

impl Spoken {
    /// How much of a datagram is read, where there are datagrams.
    pub fn datagram_bytes_max(self) -> Option<usize> {
        match self {
            Spoken::Datagrams { bytes_max } | Spoken::DatagramsAndHttp { bytes_max } => Some(bytes_max),
            Spoken::Stream | Spoken::Http => None,
        }
    }
}

/// A path over HTTP that answers as the game's own programs expect.
pub struct Route {
    pub path: &'static str,
    pub content_type: &'static str,
    /// What its lists are counted as.
    pub label: &'static str,
    pub rule: Box<dyn RouteRule>,
}

pub trait RouteRule: Send + Sync {
    /// What a GET from `peer` asks for; `query` is what stands behind the `?`.
    fn get(&self, peer: IpAddr, query: &str) -> Asked;
}

pub enum Asked {
    List(Arc<dyn Renderer>),
    /// A server announces itself; once it is listed, it is answered with this.
    Announce {
        heartbeat: Heartbeat,
        answer: Arc<Rendered>,
    },
    /// An HTTP status, and a text for people.
    Refused {
        status: u16,
        text: &'static str,
    },
}

/// What cookies are made of: it changes as keys rotate, and with the nodes of a cluster.
#[derive(Clone, Copy)]
pub struct Cookies {
    pub keys: Keys,
    pub time: SharedTime,
}

/// Where a protocol is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// What its listeners for conversations are bound to.
    pub listening: Vec<SocketAddr>,
    /// The addresses that the machine has now.
    pub machine: Vec<IpAddr>,
}

/// The settings of some protocol.
pub trait Section: Debug + Send + Sync {
    fn keys(&self) -> Vec<KeyText>;
    /// None where there is no such key.
    fn set(&mut self, name: &str, item: &Item<'_>) -> Option<Result<(), Problem>>;
    fn listeners(&self) -> Vec<Listener<'_>>;
    fn datagrams(&self, cookies: Cookies) -> Option<Box<dyn DatagramRules>>;
    fn streams(&self, here: &Here) -> Option<Box<dyn StreamRules>>;
    fn routes(&self, bans: &[IpNet]) -> Vec<Route>;
    fn named_servers(&self) -> &[NamedServer];
    fn life_max_ms(&self) -> u64;
    fn keep_life(&mut self, from: &dyn Section);
    fn network(&self, listening: &[SocketAddr]) -> Option<MasterNetwork>;
    fn warnings(&self) -> Vec<String>;
    fn as_any(&self) -> &dyn Any;
    fn cloned(&self) -> Box<dyn Section>;
    fn is_equal(&self, other: &dyn Section) -> bool;
}

/// The settings of a protocol on their defaults: what a card has.
pub fn defaults<S: Configured>() -> Box<dyn Section> {
    let mut settings = S::default();
    S::KEYS.iter().for_each(|key| key.set_default(&mut settings));
    Box::new(settings)
}

impl<S: Configured> Section for S {
    fn keys(&self) -> Vec<KeyText> {
        S::KEYS.iter().map(Key::text).collect()
    }

    fn set(&mut self, name: &str, item: &Item<'_>) -> Option<Result<(), Problem>> {
        let key = S::KEYS.iter().find(|key| key.name == name)?;
        Some((key.set)(self, item))
    }

    fn listeners(&self) -> Vec<Listener<'_>> {
        Configured::listeners(self)
    }

    fn datagrams(&self, cookies: Cookies) -> Option<Box<dyn DatagramRules>> {
        Configured::datagrams(self, cookies)
    }

    fn streams(&self, here: &Here) -> Option<Box<dyn StreamRules>> {
        Configured::streams(self, here)
    }

    fn routes(&self, bans: &[IpNet]) -> Vec<Route> {
        Configured::routes(self, bans)
    }

    fn named_servers(&self) -> &[NamedServer] {
        Configured::named_servers(self)
    }

    fn life_max_ms(&self) -> u64 {
        Configured::life_max_ms(self)
    }

    fn keep_life(&mut self, from: &dyn Section) {
        if let Some(from) = from.as_any().downcast_ref() {
            Configured::keep_life(self, from);
        }
    }

    fn network(&self, listening: &[SocketAddr]) -> Option<MasterNetwork> {
        Configured::network(self, listening)
    }

    fn warnings(&self) -> Vec<String> {
        Configured::warnings(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn Section> {
        Box::new(self.clone())
    }

    fn is_equal(&self, other: &dyn Section) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }
}

impl Clone for Box<dyn Section> {
    fn clone(&self) -> Box<dyn Section> {
        (**self).cloned()
    }
}

impl PartialEq for dyn Section {
    fn eq(&self, other: &dyn Section) -> bool {
        self.is_equal(other)
    }
}

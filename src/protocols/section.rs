//! A protocol's section of the configuration: its keys, and what depends on their values.
//!
//! A protocol implements [`Configured`] for a plain struct with its settings; the rest of the program uses it as a [`Section`].

use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;

use super::network::MasterNetwork;
use super::post::{PostAnswer, PostRoute};
use super::{DatagramRules, Heartbeat, StreamRules};
use crate::cookie::Keys;
use crate::model::{NamedServer, Overrides, SharedTime};
use crate::registry::view::{Rendered, Renderer};
use crate::settings::{Item, Key, KeyText, Problem};

/// What follows from a section's settings and outlives its rules, which are made anew as keys rotate. A setting that it follows
/// from replaces it by an empty one.
pub struct Derived<T>(Arc<OnceLock<Arc<T>>>);

impl<T> Derived<T> {
    pub fn get(&self, make: impl FnOnce() -> T) -> Arc<T> {
        self.0.get_or_init(|| Arc::new(make())).clone()
    }
}

impl<T> Clone for Derived<T> {
    fn clone(&self) -> Derived<T> {
        Derived(self.0.clone())
    }
}

impl<T> Default for Derived<T> {
    fn default() -> Derived<T> {
        Derived(Arc::default())
    }
}

impl<T> Debug for Derived<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("derived")
    }
}

impl<T> PartialEq for Derived<T> {
    fn eq(&self, _: &Derived<T>) -> bool {
        true
    }
}

/// The settings of a protocol.
pub trait Configured: Clone + Debug + Default + PartialEq + Send + Sync + 'static {
    const KEYS: &'static [Key<Self>];

    /// Its listeners.
    fn listeners(&self) -> Vec<Listener<'_>>;

    /// The master's rules for datagrams, with the current cookie keys.
    fn datagrams(&self, _cookies: Cookies) -> Option<Box<dyn DatagramRules>> {
        None
    }

    /// The master's rules for TCP connections.
    fn streams(&self, _local: &LocalAddresses) -> Option<Box<dyn StreamRules>> {
        None
    }

    /// The paths that it serves on every HTTP listener. They must not depend on the settings.
    fn routes(&self, _with: &Surroundings) -> Vec<Route> {
        Vec::new()
    }

    /// The paths that its game servers post to, on every HTTP listener. They must not depend on the settings.
    fn posts(&self) -> Vec<PostRoute> {
        Vec::new()
    }

    /// The servers that the operator names.
    fn named_servers(&self) -> &[NamedServer] {
        &[]
    }

    /// Upper bound on the time that a server stays listed without a heartbeat or an answer.
    fn life_max_ms(&self) -> u64;

    /// Takes over the life from other settings, for clusters, where it cannot change while the program runs.
    fn keep_life(&mut self, _from: &Self) {}

    /// The network of masters that this one belongs to, if the protocol has networks.
    fn network(&self, _listening: &[SocketAddr]) -> Option<MasterNetwork> {
        None
    }

    /// Settings that are allowed but probably a mistake.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Addresses to listen on, and the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener<'a> {
    /// The key within the section.
    pub key: &'static str,
    pub addresses: &'a [SocketAddr],
    pub transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The protocol's own sessions over TCP.
    Stream,
    Http,
    /// Datagrams, of which the first `bytes_max` bytes are read.
    Datagrams {
        bytes_max: usize,
    },
    /// Datagrams, and HTTP on the same port number.
    DatagramsAndHttp {
        bytes_max: usize,
    },
}

impl Transport {
    /// How much of a datagram is read, if there are datagrams.
    pub fn datagram_bytes_max(self) -> Option<usize> {
        match self {
            Transport::Datagrams { bytes_max } | Transport::DatagramsAndHttp { bytes_max } => Some(bytes_max),
            Transport::Stream | Transport::Http => None,
        }
    }
}

/// What a protocol's paths can use besides its own settings.
#[derive(Clone)]
pub struct Surroundings {
    /// Networks that the configuration bans.
    pub bans: Vec<IpNet>,
    pub places: Arc<dyn Places>,
}

impl Default for Surroundings {
    /// No bans, and no database.
    fn default() -> Surroundings {
        Surroundings { bans: Vec::new(), places: Arc::new(Nowhere) }
    }
}

/// Where addresses are, if a database is configured.
pub trait Places: Send + Sync {
    fn place(&self, ip: IpAddr) -> Option<Place>;

    /// Whether there is a database.
    fn is_known(&self) -> bool {
        true
    }
}

/// Two letters each, in upper case: the continent (`AF AN AS EU NA OC SA`), and the country if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub continent: [u8; 2],
    pub country: Option<[u8; 2]>,
}

/// No database.
struct Nowhere;

impl Places for Nowhere {
    fn place(&self, _ip: IpAddr) -> Option<Place> {
        None
    }

    fn is_known(&self) -> bool {
        false
    }
}

/// An HTTP path for the game's own programs.
pub struct Route {
    pub path: &'static str,
    pub content_type: &'static str,
    /// The label of its lists in metrics.
    pub label: &'static str,
    pub rule: Box<dyn RouteRule>,
}

pub trait RouteRule: Send + Sync {
    /// Handles a GET from `peer`; `query` is the part after the `?`.
    fn get(&self, peer: IpAddr, query: &str) -> RouteAnswer;

    /// Whether each client gets its own answer, so that copies are of no use.
    fn is_for_one(&self) -> bool {
        false
    }
}

pub enum RouteAnswer {
    List(Arc<dyn Renderer>),
    /// A server announces itself; this is the answer if it is listed.
    Announce {
        heartbeat: Heartbeat,
        answer: Arc<Rendered>,
    },
    /// An answer for this client alone.
    Answer(PostAnswer),
    /// An HTTP status and a text for people.
    Refused {
        status: u16,
        text: &'static str,
    },
}

/// Keys and clock of cookies. They change when keys rotate, and follow the cluster.
#[derive(Clone, Copy)]
pub struct Cookies {
    pub keys: Keys,
    pub time: SharedTime,
}

/// The addresses that a protocol is served on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    /// The addresses of its TCP listeners.
    pub listening: Vec<SocketAddr>,
    /// The current addresses of the machine.
    pub machine: Vec<IpAddr>,
}

/// The settings of any protocol.
pub trait Section: Debug + Send + Sync {
    fn keys(&self) -> Vec<KeyText>;
    /// None if there is no such key.
    fn set(&mut self, name: &str, item: &Item<'_>) -> Option<Result<(), Problem>>;
    fn listeners(&self) -> Vec<Listener<'_>>;
    fn datagrams(&self, cookies: Cookies) -> Option<Box<dyn DatagramRules>>;
    fn streams(&self, local: &LocalAddresses) -> Option<Box<dyn StreamRules>>;
    fn routes(&self, with: &Surroundings) -> Vec<Route>;
    fn posts(&self) -> Vec<PostRoute>;
    fn named_servers(&self) -> &[NamedServer];
    fn life_max_ms(&self) -> u64;
    fn keep_life(&mut self, from: &dyn Section);
    fn network(&self, listening: &[SocketAddr]) -> Option<MasterNetwork>;
    fn warnings(&self) -> Vec<String>;
    fn as_any(&self) -> &dyn Any;
    fn cloned(&self) -> Box<dyn Section>;
    fn is_equal(&self, other: &dyn Section) -> bool;
}

/// What an operator says of a named server: `official`, and `priority` in lists.
pub fn overrides(table: &Item<'_>) -> Result<Overrides, Problem> {
    let official = table.optional("official", Item::boolean)?.unwrap_or(false);
    let priority = table.optional("priority", |item| item.integer(-1_000_000, 1_000_000))?.unwrap_or(0);
    Ok(Overrides { official, priority: priority as i32, flavor: 0 })
}

/// The default settings of a protocol, for its card.
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

    fn streams(&self, local: &LocalAddresses) -> Option<Box<dyn StreamRules>> {
        Configured::streams(self, local)
    }

    fn routes(&self, with: &Surroundings) -> Vec<Route> {
        Configured::routes(self, with)
    }

    fn posts(&self) -> Vec<PostRoute> {
        Configured::posts(self)
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

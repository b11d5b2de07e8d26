//! The published list: an immutable snapshot with a serial, the deltas that led to it, and the lists rendered from it.
//! Readers share a view and never wait for a writer.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use siphasher::sip::SipHasher13;

use super::Dirty;
use crate::model::{MASTER, Now, Server};

/// Renders a view: `/master.json`, a page, a protocol's list.
pub trait Renderer: Send + Sync {
    fn render(&self, view: &View) -> Vec<u8>;

    /// Whether the same view would be rendered differently now.
    fn is_stale(&self) -> bool {
        false
    }
}

/// A rendered list, shared by all its readers.
pub struct Rendered {
    pub body: Bytes,
    /// A hash of the content, so it stays the same across views and restarts that change nothing.
    pub etag: String,
    /// Other encodings of the body, each made on first request.
    variants: [OnceLock<Option<Bytes>>; VARIANTS],
    /// Whether a thread has begun to make each.
    begun: [AtomicBool; VARIANTS],
}

/// The number of other encodings of a body.
pub const VARIANTS: usize = 3;

impl Rendered {
    pub fn new(body: impl Into<Bytes>) -> Rendered {
        let body = body.into();
        let mut hasher = SipHasher13::new();
        hasher.write(&body);
        Rendered {
            etag: format!("\"{:016x}\"", hasher.finish()),
            body,
            variants: Default::default(),
            begun: Default::default(),
        }
    }

    /// The body in another encoding, if it has been made.
    pub fn made(&self, number: usize) -> Option<Option<Bytes>> {
        self.variants.get(number)?.get().cloned()
    }

    /// True for the first caller only, which has to make the variant.
    pub fn begin(&self, number: usize) -> bool {
        self.begun.get(number).is_some_and(|begun| !begun.swap(true, Ordering::Relaxed))
    }

    /// The body in another encoding, made by the first caller; None if it is of no use.
    pub fn variant(&self, number: usize, make: impl FnOnce(&Bytes) -> Option<Bytes>) -> Option<Bytes> {
        self.variants.get(number)?.get_or_init(|| make(&self.body)).clone()
    }
}

/// One published state of the registry.
pub struct View {
    pub serial: u64,
    pub published_at_ms: u64,
    pub servers: Vec<Arc<Server>>,
    by_game: OnceLock<ByGame>,
}

/// Servers by the name of their game, then by their protocol.
type ByGame = HashMap<Box<str>, Vec<(&'static str, Vec<Arc<Server>>)>>;

impl View {
    pub fn new(serial: u64, published_at_ms: u64, servers: Vec<Arc<Server>>) -> View {
        View { serial, published_at_ms, servers, by_game: OnceLock::new() }
    }

    /// All game servers, without the listed masters.
    pub fn games(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.iter().filter(|server| !server.game.is_master())
    }

    /// The other masters.
    pub fn masters(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.of_game(MASTER).filter(|server| server.game.is_master())
    }

    /// The servers of the games of this name, in any protocol. Does not scan the servers of other games.
    pub fn of_game(&self, game: &str) -> impl Iterator<Item = &Arc<Server>> {
        let groups = self.by_game().get(game).map(Vec::as_slice).unwrap_or_default();
        groups.iter().flat_map(|(_, servers)| servers)
    }

    /// The servers of a protocol, of any game. The order of games is unspecified.
    pub fn of_protocol(&self, protocol: &str) -> impl Iterator<Item = &Arc<Server>> {
        let groups = self.by_game().values().flatten().filter(move |(spoken, _)| *spoken == protocol);
        groups.flat_map(|(_, servers)| servers)
    }

    fn by_game(&self) -> &ByGame {
        self.by_game.get_or_init(|| {
            let mut by_game = ByGame::new();
            for server in &self.servers {
                let (name, protocol) = (server.game.name(), server.game.protocol());
                let groups = match by_game.get_mut(name) {
                    Some(groups) => groups,
                    None => by_game.entry(name.into()).or_default(),
                };
                match groups.iter_mut().find(|(spoken, _)| *spoken == protocol) {
                    Some((_, servers)) => servers.push(server.clone()),
                    None => groups.push((protocol, vec![server.clone()])),
                }
            }
            by_game
        })
    }
}

/// The change of one server between two views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Added(Arc<Server>),
    Changed(Arc<Server>),
    /// Proven again, and nothing else.
    Proven(Arc<Server>),
    Removed(Arc<Server>),
}

impl Delta {
    pub fn server(&self) -> &Arc<Server> {
        match self {
            Delta::Added(server) | Delta::Changed(server) | Delta::Proven(server) | Delta::Removed(server) => server,
        }
    }
}

/// All deltas from one serial to the next.
#[derive(Clone, Debug)]
pub struct Batch {
    pub serial: u64,
    pub deltas: Vec<Delta>,
}

/// Makes views from drained changes. It keeps its own copy of the list, so that the registry is locked only while it is
/// drained and not while a view is made.
#[derive(Default)]
pub struct Publisher {
    shadow: Vec<Option<Arc<Server>>>,
    serial: u64,
}

impl Publisher {
    /// The next view and its deltas; None if nothing changed.
    pub fn publish(&mut self, dirty: &mut Vec<Dirty>, now: Now) -> Option<(View, Batch)> {
        let mut deltas = Vec::with_capacity(dirty.len());
        for (at, server) in dirty.drain(..) {
            let at = at as usize;
            if at >= self.shadow.len() {
                self.shadow.resize(at + 1, None);
            }
            let Some(place) = self.shadow.get_mut(at) else { continue };
            let before = std::mem::replace(place, server.clone());
            match (before, server) {
                (None, None) => {}
                (None, Some(new)) => deltas.push(Delta::Added(new)),
                (Some(old), None) => deltas.push(Delta::Removed(old)),
                (Some(old), Some(new)) if old.is_the_same_as(&new) => deltas.push(Delta::Proven(new)),
                (Some(old), Some(new)) if (old.address, &old.game) == (new.address, &new.game) => {
                    deltas.push(Delta::Changed(new))
                }
                (Some(old), Some(new)) => {
                    // Another server: the slot was reused for another address, or the game has changed.
                    deltas.push(Delta::Removed(old));
                    deltas.push(Delta::Added(new));
                }
            }
        }
        if deltas.is_empty() {
            return None;
        }
        // Removals first: a server may have left one slot and come back in another.
        deltas.sort_by_key(|delta| !matches!(delta, Delta::Removed(_)));
        self.serial += 1;
        let servers = self.shadow.iter().flatten().cloned().collect();
        Some((View::new(self.serial, now.unix_ms, servers), Batch { serial: self.serial, deltas }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Game, Proof};

    #[test]
    fn servers_by_game_and_by_protocol() {
        let games = [
            Game::Own("tanks"),
            Game::carried("tanks", "chess"),
            Game::carried("planes", "chess"),
            Game::master("tanks"),
        ];
        let named_so = Game::carried("planes", MASTER);
        let servers = (1..).zip(games.into_iter().chain([named_so])).map(|(port, game)| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            Arc::new(Server::new(address, game, Proof::Query, 0, &Facts::default()))
        });
        let view = View::new(1, 0, servers.collect());
        fn ports<'a>(servers: impl Iterator<Item = &'a Arc<Server>>) -> Vec<u16> {
            let mut ports: Vec<u16> = servers.map(|server| server.address.port()).collect();
            ports.sort_unstable();
            ports
        }
        assert_eq!(ports(view.of_game("tanks")), [1]);
        assert_eq!(ports(view.of_game("chess")), [2, 3]);
        assert_eq!(view.of_game("planes").count(), 0);
        assert_eq!(ports(view.of_protocol("tanks")), [1, 2, 4]);
        assert_eq!(ports(view.of_protocol("planes")), [3, 5]);
        assert_eq!(view.of_protocol("chess").count(), 0);
        assert_eq!((ports(view.masters()), ports(view.games())), (vec![4], vec![1, 2, 3, 5]));
    }

    #[test]
    fn a_variant_is_made_once() {
        let rendered = Rendered::new("body");
        assert_eq!(rendered.variant(0, |body| Some(body.slice(1..))), Some("ody".into()));
        assert_eq!(rendered.variant(0, |_| None), Some("ody".into()));
        assert_eq!(rendered.variant(1, |_| None), None);
        assert_eq!(rendered.variant(VARIANTS, |body| Some(body.clone())), None);
    }
}

//! The game of a server, and its protocol.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Upper bound on the length of a game's name.
pub const GAME_BYTES_MAX: usize = 64;

/// The name under which masters list each other. They are in the registry, but are not games.
pub const MASTER: &str = "master";

/// A game and its protocol. `protocols::game` makes one from names that came from the network.
#[derive(Clone, Debug)]
pub enum Game {
    /// The game that a protocol is named after: the protocol and the game have one name.
    Own(&'static str),
    /// Another game of a protocol that carries several.
    Carried(Arc<Carried>),
}

/// A game that is not its protocol's own.
#[derive(Debug)]
pub struct Carried {
    pub protocol: &'static str,
    pub name: Box<str>,
    /// Not a game but another master.
    pub is_master: bool,
}

impl Game {
    pub fn carried(protocol: &'static str, name: &str) -> Game {
        Game::Carried(Arc::new(Carried { protocol, name: name.into(), is_master: false }))
    }

    /// A master that speaks this protocol.
    pub fn master(protocol: &'static str) -> Game {
        Game::Carried(Arc::new(Carried { protocol, name: MASTER.into(), is_master: true }))
    }

    /// The name of its protocol's card.
    pub fn protocol(&self) -> &'static str {
        match self {
            Game::Own(name) => name,
            Game::Carried(carried) => carried.protocol,
        }
    }

    /// The game's name, as its protocol writes it.
    pub fn name(&self) -> &str {
        match self {
            Game::Own(name) => name,
            Game::Carried(carried) => &carried.name,
        }
    }

    pub fn is_master(&self) -> bool {
        matches!(self, Game::Carried(carried) if carried.is_master)
    }
}

impl PartialEq for Game {
    fn eq(&self, other: &Game) -> bool {
        self.name() == other.name() && self.protocol() == other.protocol()
    }
}

impl Eq for Game {}

impl Hash for Game {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.protocol(), self.name()).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_game_is_its_name_and_its_protocol() {
        assert_eq!(size_of::<Game>(), 16);
        let (own, carried) = (Game::Own("tanks"), Game::carried("tanks", "chess"));
        assert_eq!((own.protocol(), own.name()), ("tanks", "tanks"));
        assert_eq!((carried.protocol(), carried.name()), ("tanks", "chess"));
        assert_eq!(carried, Game::carried("tanks", "chess"));
        assert!(own != carried && carried != Game::carried("planes", "chess") && carried != Game::Own("chess"));
        let named_so = Game::carried("planes", MASTER);
        assert!(Game::master("tanks").is_master() && !named_so.is_master() && !Game::Own(MASTER).is_master());
    }
}

//! Which game a server is of.

use std::sync::Arc;

/// The longest name of a game.
pub const GAME_BYTES_MAX: usize = 64;

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

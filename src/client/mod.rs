//! The tool in a player's hands: fetches masters' lists, asks game servers, pretends to be some. It drives the protocols'
//! cards over sockets and knows nothing of the master's own rooms.
//!
//! [`target`] reads typed addresses, [`list`] fetches a master's list, [`watch`] again and again, [`query`] asks many servers
//! at once, [`simulate`] pretends to be servers, [`announce`] announces servers to masters.

pub mod addresses;
pub mod announce;
pub mod connect;
mod hint;
pub mod http;
pub mod list;
pub mod query;
pub mod rallypoint;
pub mod simulate;
mod socket;
pub mod target;
mod throttle;
pub mod tls;
pub mod watch;

use std::time::Duration;

use crate::asker::TRIES_MAX;
use crate::model::{Address, Facts, Game};
use crate::protocols::{ListEntry, own_card};

pub use target::Target;

/// How long to wait for each try, and how often to try again; None: as is usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    pub timeout: Option<Duration>,
    pub retries: Option<u8>,
}

impl Patience {
    /// More tries of one server could not be told apart.
    pub const RETRIES_MAX: u8 = TRIES_MAX - 1;

    /// For one try of a master's list.
    pub fn list_try(self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(30))
    }

    pub fn list_tries(self) -> u8 {
        1 + self.retries.unwrap_or(0).min(Patience::RETRIES_MAX)
    }

    /// For one try of a server. With four of them, it is given up within 5 s.
    pub fn server_try(self) -> Duration {
        self.timeout.unwrap_or(Duration::from_millis(900))
    }

    pub fn server_tries(self) -> u8 {
        1 + self.retries.unwrap_or(Patience::RETRIES_MAX).min(Patience::RETRIES_MAX)
    }
}

/// A server that was found, and what is known of it by now.
#[derive(Clone, Debug)]
pub struct Found {
    pub game: Game,
    pub address: Address,
    pub official: Option<bool>,
    pub flavor: Option<u8>,
    /// What the server says of itself or, before it has been asked, what the master says of it.
    pub facts: Facts<'static>,
    pub rtt_us: Option<u32>,
    pub state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Named, and not asked.
    Named,
    Answered,
    /// It was asked in vain; this is why.
    Failed(String),
}

impl Found {
    pub fn new(game: Game, address: Address) -> Found {
        Found::listed(game, ListEntry::at(address))
    }

    pub fn listed(game: Game, listed: ListEntry) -> Found {
        let ListEntry { address, official, flavor, facts } = listed;
        Found { game, address, official, flavor, facts, rtt_us: None, state: State::Named }
    }

    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            State::Failed(why) => Some(why),
            State::Named | State::Answered => None,
        }
    }

    /// Whether it is known to be up: it answered or, in a game that cannot be asked, its master vouches for it.
    /// None: nobody has asked.
    pub fn responding(&self) -> Option<bool> {
        match self.state {
            State::Answered => Some(true),
            State::Failed(_) => Some(false),
            State::Named => (self.facts != Facts::default()).then_some(true),
        }
    }

    /// As people write it: `netpanzer://203.0.113.5:3030`.
    pub fn url(&self) -> String {
        let scheme = own_card(&self.game).map_or(self.game.name(), |card| card.name);
        format!("{scheme}://{}", self.address)
    }

    /// Whether somebody is known to play there.
    pub fn is_not_empty(&self) -> bool {
        self.facts.players_current.is_some_and(|players| players > 0)
    }

    /// How many play, of how many; empty where nobody knows.
    pub fn players(&self) -> String {
        match (self.facts.players_current, self.facts.players_max) {
            (Some(players), Some(most)) => format!("{players}/{most}"),
            (Some(players), None) => players.to_string(),
            _ => String::new(),
        }
    }

    /// Whether there is room for one more, as far as is known.
    pub fn is_not_full(&self) -> bool {
        match (self.facts.players_current, self.facts.players_max) {
            (Some(players), Some(most)) => players < most,
            _ => true,
        }
    }
}

//! The client side: fetches masters' lists, queries game servers, announces and simulates them. It drives the protocols'
//! cards over sockets and does not depend on the master server's code.
//!
//! [`target`] parses typed addresses, [`list`] fetches a master's list, [`watch`] fetches several repeatedly, [`history`] a
//! server's players over time, [`query`] queries many servers at once, [`simulate`] runs simulated servers, [`announce`]
//! announces servers to masters.

pub mod addresses;
pub mod announce;
pub mod connect;
mod hint;
pub mod history;
pub mod http;
pub mod list;
pub mod query;
pub mod rallypoint;
pub mod seen;
pub mod simulate;
mod socket;
pub mod target;
mod throttle;
pub mod tls;
pub mod watch;

use std::time::Duration;

use arrayvec::ArrayString;

use crate::asker::{Failure, TRIES_MAX};
use crate::model::{Address, Facts, Game};
use crate::protocols::{ListEntry, own_card};

pub use target::Target;

/// Timeout per try and number of retries; None means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPolicy {
    pub timeout: Option<Duration>,
    pub retries: Option<u8>,
}

impl RetryPolicy {
    /// The asker cannot tell more tries of one server apart.
    pub const RETRIES_MAX: u8 = TRIES_MAX - 1;

    /// Timeout for one try to fetch a master's list.
    pub fn list_try(self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(30))
    }

    pub fn list_tries(self) -> u8 {
        1 + self.retries.unwrap_or(0).min(RetryPolicy::RETRIES_MAX)
    }

    /// Timeout for one query of a server. With four tries, a silent server takes less than 5 s.
    pub fn server_try(self) -> Duration {
        self.timeout.unwrap_or(Duration::from_millis(900))
    }

    pub fn server_tries(self) -> u8 {
        1 + self.retries.unwrap_or(RetryPolicy::RETRIES_MAX).min(RetryPolicy::RETRIES_MAX)
    }
}

/// A server from a list or the command line, and what is known about it so far.
#[derive(Clone, Debug)]
pub struct Found {
    pub game: Game,
    pub address: Address,
    pub official: Option<bool>,
    pub flavor: Option<u8>,
    /// The master whose list named it to the Rallypoint that lists it. None: it announces itself there, or this is unknown.
    pub via: Option<Box<str>>,
    /// From the server's own answer; until it has answered, from the master's list.
    pub facts: Facts<'static>,
    pub rtt_us: Option<u32>,
    /// Where it is, if its master knows.
    pub country: Option<CountryCode>,
    /// The round trip that its master has measured, where [`Found::rtt_us`] is only ours.
    pub master_rtt_us: Option<u32>,
    /// Which of several masters list it. Empty where there is one list.
    pub masters: watch::Masters,
    pub state: State,
}

/// Two letters in upper case (ISO 3166).
pub type CountryCode = ArrayString<2>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    NotQueried,
    Answered,
    /// Queried without a usable answer; this is why.
    Failed(String),
}

impl Found {
    pub fn new(game: Game, address: Address) -> Found {
        Found::listed(game, ListEntry::at(address))
    }

    pub fn listed(game: Game, listed: ListEntry) -> Found {
        let ListEntry { address, official, flavor, facts } = listed;
        Found {
            game,
            address,
            official,
            flavor,
            via: None,
            facts,
            rtt_us: None,
            country: None,
            master_rtt_us: None,
            masters: watch::Masters::default(),
            state: State::NotQueried,
        }
    }

    /// Whether it was asked and said nothing at all.
    pub fn is_silent(&self) -> bool {
        self.failure().is_some_and(|why| why == Failure::Silent.words(""))
    }

    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            State::Failed(why) => Some(why),
            State::NotQueried | State::Answered => None,
        }
    }

    /// Whether it is known to be up: it answered, or its game has no query and the master's list describes it.
    /// None: not queried.
    pub fn responding(&self) -> Option<bool> {
        match self.state {
            State::Answered => Some(true),
            State::Failed(_) => Some(false),
            State::NotQueried => (self.facts != Facts::default()).then_some(true),
        }
    }

    /// As typed on the command line: `netpanzer://203.0.113.5:3030`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme(), self.address)
    }

    pub fn scheme(&self) -> &str {
        own_card(&self.game).map_or(self.game.name(), |card| card.name)
    }

    /// Whether it is known to have players.
    pub fn is_not_empty(&self) -> bool {
        self.facts.players_current.is_some_and(|players| players > 0)
    }

    /// Players and capacity, `3/8`; empty if unknown.
    pub fn players(&self) -> String {
        match (self.facts.players_current, self.facts.players_max) {
            (Some(players), Some(most)) => format!("{players}/{most}"),
            (Some(players), None) => players.to_string(),
            _ => String::new(),
        }
    }

    /// Whether it has a free slot; true if unknown.
    pub fn is_not_full(&self) -> bool {
        match (self.facts.players_current, self.facts.players_max) {
            (Some(players), Some(most)) => players < most,
            _ => true,
        }
    }
}

//! How many servers of one game a network may have, where the operator limits it.
//!
//! A network is an IPv4 /24 or an IPv6 /48: the widest that has limits of its own. In a network that is full, the address with the
//! most servers of the game gives way to one with fewer (`shares.rs`). A limit applies to newcomers. Servers that the
//! operator names and exempt networks have none.
//!
//! Only what has a limit is counted, by a keyed hash of the game and the prefix.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::shares::{heaviest_beside, heaviest_inside};
use super::{Refusal, Registry};
use crate::model::Game;
use crate::prefix::{Networks, Prefix};

/// The operator's limits, by the game's name. 0: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GameLimits {
    pub named: BTreeMap<String, u32>,
    /// Of all other games.
    pub others: u32,
}

impl GameLimits {
    /// The limit of a game. Other masters are no games.
    fn of(&self, game: &Game) -> Option<u32> {
        self.of_name(game.name()).filter(|_| !game.is_master())
    }

    fn of_name(&self, name: &str) -> Option<u32> {
        Some(self.named.get(name).copied().unwrap_or(self.others)).filter(|limit| *limit > 0)
    }
}

#[derive(Default)]
pub(super) struct PerGame {
    limits: GameLimits,
    hasher: RandomState,
    /// Servers, by game and prefix.
    held: HashMap<u64, u32>,
    /// By slot: the game that it is counted for, or 0. As long as the last slot that was counted.
    counted: Vec<u64>,
}

impl PerGame {
    fn is_off(&self) -> bool {
        self.limits == GameLimits::default()
    }

    /// A number for a game that has a limit.
    fn id(&self, game: &Game) -> Option<u64> {
        self.limits.of(game).map(|_| self.hasher.hash_one(game).max(1))
    }

    fn held(&self, game: u64, prefix: &Prefix) -> u32 {
        self.held.get(&self.hasher.hash_one((game, prefix))).copied().unwrap_or(0)
    }

    /// The network around an address that is full of servers of a game.
    pub fn full(&self, ip: IpAddr, game: &Game, exempt: &Networks) -> Option<Prefix> {
        let limit = self.limits.of(game)?;
        let network = Prefix::all(ip, exempt).pop().filter(Prefix::is_widest)?;
        (self.held(self.id(game)?, &network) >= limit).then_some(network)
    }

    /// Counts what is in a slot for this game, or (None) for none.
    fn count(&mut self, at: u32, prefixes: &[Prefix], game: Option<&Game>) {
        let place = at as usize;
        let game = game.and_then(|game| self.id(game)).unwrap_or(0);
        let before = self.counted.get(place).copied().unwrap_or(0);
        if before == game {
            return;
        }
        if self.counted.len() <= place {
            self.counted.resize(place + 1, 0);
        }
        if let Some(counted) = self.counted.get_mut(place) {
            *counted = game;
        }
        for prefix in prefixes {
            self.change(before, prefix, -1);
            self.change(game, prefix, 1);
        }
    }

    fn change(&mut self, game: u64, prefix: &Prefix, more: i32) {
        if game == 0 {
            return;
        }
        let key = self.hasher.hash_one((game, prefix));
        let held = self.held.entry(key).or_default();
        *held = held.saturating_add_signed(more);
        if *held == 0 {
            self.held.remove(&key);
        }
    }
}

impl Registry {
    /// Sets how many servers of a game a network may have. Lower limits remove no servers; they apply to newcomers.
    pub fn set_game_limits(&mut self, limits: GameLimits) {
        if self.per_game.limits != limits {
            self.per_game = PerGame { limits, ..PerGame::default() };
            self.count_games();
        }
    }

    /// How many servers of a game a network may have.
    pub fn game_limit(&self, name: &str) -> Option<u32> {
        self.per_game.limits.of_name(name)
    }

    /// Counts all entries again, as when other networks are exempt.
    pub(super) fn count_games(&mut self) {
        self.per_game = PerGame { limits: std::mem::take(&mut self.per_game.limits), ..PerGame::default() };
        (0..self.slots.len() as u32).for_each(|at| self.recount_game(at));
    }

    /// Counts an entry for its game, if it counts for limits. Call it whenever an entry has changed.
    pub(super) fn recount_game(&mut self, at: u32) {
        if self.per_game.is_off() {
            return;
        }
        let Some(slot) = self.slots.get(at as usize) else { return };
        let server = slot.server.as_ref().filter(|_| slot.counted);
        let prefixes = Prefix::all(slot.address.ip(), self.shares.exempt());
        self.per_game.count(at, &prefixes, server.map(|server| &server.game));
    }

    /// Makes room for a newcomer in its network, if its game has a limit there: for one and no more, also where the limit was lowered.
    /// A mirrored one takes nobody's place.
    pub(super) fn make_room_for_game(&mut self, ip: IpAddr, game: &Game, is_mirrored: bool) -> Result<(), Refusal> {
        if let Some(full) = self.per_game.full(ip, game, self.shares.exempt()) {
            let gives_way = || self.gives_way_of_game(ip, game, full);
            let gone = (!is_mirrored).then(gives_way).flatten().ok_or(Refusal::FullForGame)?;
            self.remove(gone);
        }
        Ok(())
    }

    /// The newest server of a game at the address in a network that has the most of them, if a newcomer's would have fewer.
    fn gives_way_of_game(&self, ip: IpAddr, game: &Game, inside: Prefix) -> Option<u32> {
        let id = self.per_game.id(game)?;
        let held = |prefix: &Prefix| self.per_game.held(id, prefix);
        let beside = |prefix: &Prefix| if self.shares.is_apart(prefix) { 0 } else { held(prefix) };
        let heaviest = |around: Option<Prefix>| heaviest_inside(around?, beside);
        let own = Prefix::owners(ip, self.shares.exempt());
        let address = heaviest_beside(&own, Some(inside), 1, held, heaviest)?;
        self.shares.entries(&address).find(|at| self.per_game.counted.get(*at as usize) == Some(&id))
    }
}

#[cfg(test)]
mod tests;

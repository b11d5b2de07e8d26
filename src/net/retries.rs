//! Retries for games that announced themselves but did not answer: they may still be loading, or a datagram was lost. The
//! next heartbeat may be minutes away, so they are queried a few more times within the minute. Memory is bounded per
//! address, per network and in total.

use std::collections::HashMap;

use crate::model::Address;
use crate::prefix::Networks;
use crate::prefix::quota::{Place, Quota};
use crate::protocols::Heartbeat;

/// When a game is queried again, counted from its first missed answer.
const AFTER_MS: [u64; 5] = [2_000, 5_000, 10_000, 20_000, 40_000];
const GAMES_MAX: usize = 1024;
/// Games per address; wider networks have a larger limit.
const GAMES_PER_IP_MAX: u32 = 8;

pub struct Retries {
    games: HashMap<Address, Pending>,
    places: Quota,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries { games: HashMap::new(), places: Quota::new(GAMES_MAX, GAMES_PER_IP_MAX) }
    }
}

struct Pending {
    heartbeat: Heartbeat,
    _place: Place,
    began_ms: u64,
    asked: usize,
    /// None while a query is in flight.
    due_ms: Option<u64>,
}

impl Retries {
    /// Sets the networks that have only the limit per address. Applies to games that are added from now on.
    pub fn set_exempt(&mut self, exempt: Networks) {
        self.places.set_exempt(exempt);
    }

    /// Remembers a game that did not answer. False if there are too many.
    pub fn add(&mut self, now_ms: u64, heartbeat: Heartbeat) -> bool {
        self.take(heartbeat.address);
        let Some(place) = self.places.take(heartbeat.address.ip()) else { return false };
        let due_ms = AFTER_MS.first().map(|after_ms| now_ms + after_ms);
        self.games.insert(heartbeat.address, Pending { heartbeat, _place: place, began_ms: now_ms, asked: 0, due_ms });
        true
    }

    /// Removes a game: it has answered, it is gone, or it announced itself again.
    pub fn take(&mut self, address: Address) -> Option<Heartbeat> {
        self.games.remove(&address).map(|pending| pending.heartbeat)
    }

    /// The games to query now.
    pub fn due(&mut self, now_ms: u64) -> Vec<Heartbeat> {
        let due = self.games.values_mut().filter(|game| game.due_ms.is_some_and(|due_ms| due_ms <= now_ms));
        let mut due: Vec<Heartbeat> = due
            .map(|game| {
                game.due_ms = None;
                game.heartbeat.clone()
            })
            .collect();
        due.sort_unstable_by_key(|heartbeat| heartbeat.address); // the same order in every run
        due
    }

    /// A game did not answer again: schedules the next retry, or gives up.
    pub fn silent(&mut self, now_ms: u64, address: Address) {
        let Some(game) = self.games.get_mut(&address) else { return };
        game.asked += 1;
        match AFTER_MS.get(game.asked) {
            Some(after_ms) => game.due_ms = Some(now_ms.max(game.began_ms + after_ms)),
            None => drop(self.take(address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Game;
    use std::net::IpAddr;

    fn heartbeat(ip: impl Into<IpAddr>, port: u16) -> Heartbeat {
        let address = Address::new(ip.into(), port).unwrap();
        let game = Game::Own("netpanzer");
        Heartbeat { address, game, life_ms: 720_000, verify: true, keys: Default::default(), said: None, name: None }
    }

    #[test]
    fn a_silent_game_is_queried_a_few_times_within_the_minute() {
        let mut retries = Retries::default();
        let game = heartbeat([192, 0, 2, 1], 3030);
        assert!(retries.add(1_000, game.clone()));
        let mut asked_ms = Vec::new();
        for now_ms in (1_000..100_000).step_by(500) {
            for due in retries.due(now_ms) {
                assert_eq!(due, game);
                assert!(retries.due(now_ms).is_empty(), "a query is in flight");
                asked_ms.push(now_ms);
                retries.silent(now_ms, game.address);
            }
        }
        assert_eq!(asked_ms, [3_000, 6_000, 11_000, 21_000, 41_000]);
        assert!(retries.games.is_empty() && retries.places.is_empty());
        retries.silent(100_000, game.address); // unknown: ignored
    }

    #[test]
    fn a_heartbeat_restarts_the_retries_and_an_answer_ends_them() {
        let mut retries = Retries::default();
        let game = heartbeat([192, 0, 2, 1], 3030);
        for now_ms in [0, 1_000, 2_500] {
            assert!(retries.add(now_ms, game.clone()));
        }
        assert_eq!(retries.due(4_499).len(), 0);
        assert_eq!(retries.due(4_500).len(), 1);
        // An answer after the game was removed has no effect.
        assert_eq!(retries.take(game.address), Some(game.clone()));
        assert_eq!(retries.take(game.address), None);
        assert!(retries.due(100_000).is_empty() && retries.places.is_empty());
    }

    #[test]
    fn memory_is_bounded_for_an_address_for_a_network_and_in_all() {
        let mut retries = Retries::default();
        let mut add = |ip: [u8; 4], port: u16| retries.add(0, heartbeat(ip, port));
        assert_eq!((1..=100).filter(|port| add([192, 0, 2, 1], *port)).count(), 8);
        assert_eq!((1..=100).filter(|host| add([192, 0, 2, 1 + *host], 1)).count(), 8 * 8 - 8, "one /24");
        assert_eq!(
            (0..=255).filter(|host| add([198, 51, *host, 1], 1)).count(),
            256,
            "other networks are not affected"
        );
        let many = (0..100u8).flat_map(|x| (0..100).map(move |y| [10, x, y, 1]));
        assert_eq!(many.filter(|ip| add(*ip, 1)).count(), GAMES_MAX - 64 - 256);
        assert_eq!(retries.games.len(), GAMES_MAX);
        assert!(retries.due(60_000).len() == GAMES_MAX);
    }

    #[test]
    fn exempt_networks_have_only_the_limit_per_address() {
        let mut retries = Retries::default();
        let add =
            |retries: &mut Retries| (1..=100).filter(|host| retries.add(0, heartbeat([192, 0, 2, *host], 1))).count();
        assert_eq!(add(&mut retries), 64);
        retries.set_exempt(Networks::new(&["192.0.2.0/24".parse().unwrap()]));
        assert_eq!(add(&mut retries), 100);
        assert_eq!((1..=100).filter(|port| retries.add(0, heartbeat([192, 0, 2, 7], *port))).count(), 8);
        retries.games.keys().copied().collect::<Vec<_>>().into_iter().for_each(|address| drop(retries.take(address)));
        assert!(retries.places.is_empty(), "each is removed from the prefixes it was counted for");
    }
}

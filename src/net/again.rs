//! Games that announced themselves and then did not answer: still loading, or a datagram was lost. The next heartbeat may
//! be minutes away, so they are asked again some times within the minute. In bounded memory: so many in all, and so many
//! in each network.

use std::collections::HashMap;

use arrayvec::ArrayVec;

use crate::model::Address;
use crate::prefix::{LEVELS_MAX, Networks, Prefix};
use crate::protocols::Heartbeat;

/// How long after the first silence each of them is asked again.
const AFTER_MS: [u64; 5] = [2_000, 5_000, 10_000, 20_000, 40_000];
const GAMES_MAX: usize = 1024;
/// Games of one address; wider networks have a larger limit.
const GAMES_PER_IP_MAX: u32 = 8;

#[derive(Default)]
pub struct Again {
    games: HashMap<Address, Pending>,
    counts: HashMap<Prefix, u32>,
    /// Networks that have only the limit per address.
    exempt: Networks,
}

struct Pending {
    heartbeat: Heartbeat,
    /// What it counts for.
    prefixes: ArrayVec<Prefix, LEVELS_MAX>,
    began_ms: u64,
    asked: usize,
    /// None while it is being asked.
    due_ms: Option<u64>,
}

impl Again {
    /// The networks that have only the limit per address, from the next game on.
    pub fn set_exempt(&mut self, exempt: Networks) {
        self.exempt = exempt;
    }

    /// Remembers a game that was silent. False where there are too many.
    pub fn add(&mut self, now_ms: u64, heartbeat: Heartbeat) -> bool {
        self.take(heartbeat.address);
        let prefixes = Prefix::all(heartbeat.address.ip(), &self.exempt);
        let is_full = |prefix: &Prefix| self.count(prefix) >= prefix.limit(GAMES_PER_IP_MAX);
        if self.games.len() >= GAMES_MAX || prefixes.iter().any(is_full) {
            return false;
        }
        prefixes.iter().for_each(|prefix| *self.counts.entry(*prefix).or_default() += 1);
        let due_ms = AFTER_MS.first().map(|after_ms| now_ms + after_ms);
        self.games.insert(heartbeat.address, Pending { heartbeat, prefixes, began_ms: now_ms, asked: 0, due_ms });
        true
    }

    /// Forgets a game: it has answered, it is gone, or it announced itself again.
    pub fn take(&mut self, address: Address) -> Option<Heartbeat> {
        let pending = self.games.remove(&address)?;
        for prefix in pending.prefixes {
            let left = self.count(&prefix).saturating_sub(1);
            if left == 0 {
                self.counts.remove(&prefix);
            } else {
                self.counts.insert(prefix, left);
            }
        }
        Some(pending.heartbeat)
    }

    /// The games to ask now.
    pub fn due(&mut self, now_ms: u64) -> Vec<Heartbeat> {
        let due = self.games.values_mut().filter(|game| game.due_ms.is_some_and(|due_ms| due_ms <= now_ms));
        due.map(|game| {
            game.due_ms = None;
            game.heartbeat.clone()
        })
        .collect()
    }

    /// A game was silent again: it has another chance, or it had enough.
    pub fn silent(&mut self, now_ms: u64, address: Address) {
        let Some(game) = self.games.get_mut(&address) else { return };
        game.asked += 1;
        match AFTER_MS.get(game.asked) {
            Some(after_ms) => game.due_ms = Some(now_ms.max(game.began_ms + after_ms)),
            None => drop(self.take(address)),
        }
    }

    fn count(&self, prefix: &Prefix) -> u32 {
        self.counts.get(prefix).copied().unwrap_or(0)
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
        Heartbeat { address, game, life_ms: 720_000, verify: true, keys: Default::default() }
    }

    #[test]
    fn a_silent_game_is_asked_some_times_within_the_minute() {
        let mut again = Again::default();
        let game = heartbeat([192, 0, 2, 1], 3030);
        assert!(again.add(1_000, game.clone()));
        let mut asked_ms = Vec::new();
        for now_ms in (1_000..100_000).step_by(500) {
            for due in again.due(now_ms) {
                assert_eq!(due, game);
                assert!(again.due(now_ms).is_empty(), "it is being asked");
                asked_ms.push(now_ms);
                again.silent(now_ms, game.address);
            }
        }
        assert_eq!(asked_ms, [3_000, 6_000, 11_000, 21_000, 41_000]);
        assert!(again.games.is_empty() && again.counts.is_empty());
        again.silent(100_000, game.address); // nobody waits for it
    }

    #[test]
    fn a_heartbeat_begins_anew_and_whoever_answers_is_forgotten() {
        let mut again = Again::default();
        let game = heartbeat([192, 0, 2, 1], 3030);
        for now_ms in [0, 1_000, 2_500] {
            assert!(again.add(now_ms, game.clone()));
        }
        assert_eq!(again.due(4_499).len(), 0);
        assert_eq!(again.due(4_500).len(), 1);
        // It answers after it was taken back: nobody waits any more.
        assert_eq!(again.take(game.address), Some(game.clone()));
        assert_eq!(again.take(game.address), None);
        assert!(again.due(100_000).is_empty() && again.counts.is_empty());
    }

    #[test]
    fn memory_is_bounded_for_an_address_for_a_network_and_in_all() {
        let mut again = Again::default();
        let mut add = |ip: [u8; 4], port: u16| again.add(0, heartbeat(ip, port));
        assert_eq!((1..=100).filter(|port| add([192, 0, 2, 1], *port)).count(), 8);
        assert_eq!((1..=100).filter(|host| add([192, 0, 2, 1 + *host], 1)).count(), 8 * 8 - 8, "one /24");
        assert_eq!((0..=255).filter(|host| add([198, 51, *host, 1], 1)).count(), 256, "others are not held up");
        let many = (0..100u8).flat_map(|x| (0..100).map(move |y| [10, x, y, 1]));
        assert_eq!(many.filter(|ip| add(*ip, 1)).count(), GAMES_MAX - 64 - 256);
        assert_eq!(again.games.len(), GAMES_MAX);
        assert!(again.due(60_000).len() == GAMES_MAX);
    }

    #[test]
    fn exempt_networks_have_only_the_limit_per_address() {
        let mut again = Again::default();
        let add = |again: &mut Again| (1..=100).filter(|host| again.add(0, heartbeat([192, 0, 2, *host], 1))).count();
        assert_eq!(add(&mut again), 64);
        again.set_exempt(Networks::new(&["192.0.2.0/24".parse().unwrap()]));
        assert_eq!(add(&mut again), 100);
        assert_eq!((1..=100).filter(|port| again.add(0, heartbeat([192, 0, 2, 7], *port))).count(), 8);
        again.games.keys().copied().collect::<Vec<_>>().into_iter().for_each(|address| drop(again.take(address)));
        assert!(again.counts.is_empty(), "each is taken back where it was counted");
    }
}

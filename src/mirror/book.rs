//! What an upstream lists, and when each of its servers is asked. No socket and no clock.
//!
//! A server that is known here already is the prober's. Others are asked one after another: few at a time, one per address, and
//! those that stay silent more and more rarely.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use super::reach::Reach;
use crate::model::{Address, Game};
use crate::prefix::quota::{Place, Quota};
use crate::prefix::{Networks, Prefix};

/// When a server is looked at again that is known here.
const KNOWN_MS: u64 = 15_000;
/// When a server is asked again that did not answer; each time twice as long as before, up to the longest.
const SILENT_MS: u64 = 60_000;
const SILENT_MS_MAX: u64 = 3_600_000;
/// When a server is asked again that could not be asked, because too many others are.
const BUSY_MS: u64 = 5_000;
/// When a server is asked whose address is being asked for another one.
const TURN_MS: u64 = 1_000;
/// How long a server may be silent before it is forgotten, if the upstream can no longer be asked whether it lists it.
const FORGET_MS: u64 = 86_400_000;

/// The bounds on what is asked for one upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    pub servers_max: usize,
    pub servers_per_ip_max: u32,
    pub exempt: Networks,
    pub reach: Reach,
}

/// What became of a fetched list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub taken: usize,
    /// Left out: their addresses must not be asked.
    pub unreachable: usize,
    /// Left out: too many, in all or in one network.
    pub too_many: usize,
}

pub struct Book {
    reach: Reach,
    places: Quota,
    servers: HashMap<Address, Entry>,
    due: BTreeSet<(u64, Address)>,
    /// The addresses that are being asked.
    asking: HashSet<Prefix>,
    spread: RandomState,
}

struct Entry {
    game: Game,
    _place: Place,
    /// None while it is being asked.
    due_ms: Option<u64>,
    /// How often it was silent in a row, and since when.
    silent: u32,
    silent_since_ms: Option<u64>,
}

impl Book {
    pub fn new(bounds: Bounds) -> Book {
        let places = Quota::new(bounds.servers_max, bounds.servers_per_ip_max);
        places.set_exempt(bounds.exempt);
        Book {
            reach: bounds.reach,
            places,
            servers: HashMap::new(),
            due: BTreeSet::new(),
            asking: HashSet::new(),
            spread: RandomState::new(),
        }
    }

    /// Replaces the list. Servers that were on it before keep their turn.
    pub fn list(&mut self, listed: Vec<(Address, Game)>, now_ms: u64) -> Taken {
        let names: HashSet<Address> = listed.iter().map(|(address, _)| *address).collect();
        let gone: Vec<Address> = self.servers.keys().filter(|address| !names.contains(address)).copied().collect();
        gone.into_iter().for_each(|address| self.forget(address));
        self.more(listed, now_ms)
    }

    /// Adds to the list.
    pub fn more(&mut self, listed: Vec<(Address, Game)>, now_ms: u64) -> Taken {
        let mut taken = Taken::default();
        for (address, game) in listed {
            if let Some(known) = self.servers.get_mut(&address) {
                known.game = game;
            } else if !self.reach.contains(address.ip()) {
                taken.unreachable += 1;
            } else if !self.add(address, game, now_ms) {
                taken.too_many += 1;
            }
        }
        taken.taken = self.servers.len();
        taken
    }

    fn add(&mut self, address: Address, game: Game, now_ms: u64) -> bool {
        let Some(place) = self.places.take(address.ip()) else { return false };
        self.due.insert((now_ms, address));
        let due_ms = Some(now_ms);
        self.servers.insert(address, Entry { game, _place: place, due_ms, silent: 0, silent_since_ms: None });
        true
    }

    fn forget(&mut self, address: Address) {
        let Some(entry) = self.servers.remove(&address) else { return };
        match entry.due_ms {
            Some(due_ms) => drop(self.due.remove(&(due_ms, address))),
            None => drop(self.asking.remove(&Prefix::narrowest(address.ip()))),
        }
    }

    /// The upstream could not be asked for its list. Its last one counts, except for servers that have been silent for long.
    pub fn keep(&mut self, now_ms: u64) {
        let is_over = |entry: &Entry| entry.silent_since_ms.is_some_and(|since_ms| now_ms >= since_ms + FORGET_MS);
        let over = self.servers.iter().filter(|(_, entry)| is_over(entry)).map(|(address, _)| *address);
        let over: Vec<Address> = over.collect();
        over.into_iter().for_each(|address| self.forget(address));
    }

    /// The next server to ask. One of [`Book::known`], [`Book::silent`] and [`Book::busy`] has to follow for it.
    pub fn next(&mut self, now_ms: u64) -> Option<(Address, Game)> {
        loop {
            let (_, address) = self.due.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms)?;
            self.due.pop_first();
            let Some(entry) = self.servers.get_mut(&address) else { continue };
            if self.asking.insert(Prefix::narrowest(address.ip())) {
                entry.due_ms = None;
                return Some((address, entry.game.clone()));
            }
            entry.due_ms = Some(now_ms + TURN_MS);
            self.due.insert((now_ms + TURN_MS, address));
        }
    }

    /// The server has an entry here.
    pub fn known(&mut self, address: Address, now_ms: u64) {
        if let Some(entry) = self.asked(address) {
            (entry.silent, entry.silent_since_ms) = (0, None);
            self.again(address, now_ms, KNOWN_MS);
        }
    }

    /// The server did not answer, or cannot be listed.
    pub fn silent(&mut self, address: Address, now_ms: u64) {
        if let Some(entry) = self.asked(address) {
            let after_ms = SILENT_MS.saturating_mul(1 << entry.silent.min(16)).min(SILENT_MS_MAX);
            entry.silent += 1;
            entry.silent_since_ms.get_or_insert(now_ms);
            self.again(address, now_ms, after_ms);
        }
    }

    /// The server could not be asked.
    pub fn busy(&mut self, address: Address, now_ms: u64) {
        if self.asked(address).is_some() {
            self.again(address, now_ms, BUSY_MS);
        }
    }

    /// The entry of a server that was being asked. None if the upstream dropped it meanwhile.
    fn asked(&mut self, address: Address) -> Option<&mut Entry> {
        let entry = self.servers.get_mut(&address).filter(|entry| entry.due_ms.is_none())?;
        self.asking.remove(&Prefix::narrowest(address.ip()));
        Some(entry)
    }

    /// Schedules the next look, up to a quarter later than said, so that servers do not stay in step.
    fn again(&mut self, address: Address, now_ms: u64, after_ms: u64) {
        let due_ms = now_ms + after_ms + self.spread.hash_one((address, now_ms)) % (after_ms / 4).max(1);
        if let Some(entry) = self.servers.get_mut(&address) {
            entry.due_ms = Some(due_ms);
            self.due.insert((due_ms, address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(servers_max: usize) -> Bounds {
        let reach = Reach::of(&"netpanzer://master.example".parse().unwrap(), Networks::NONE);
        Bounds { servers_max, servers_per_ip_max: 4, exempt: Networks::NONE, reach }
    }

    impl Book {
        fn len(&self) -> usize {
            self.servers.len()
        }
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn game() -> Game {
        Game::Own("one")
    }

    fn listed(addresses: &[&str]) -> Vec<(Address, Game)> {
        addresses.iter().map(|text| (address(text), game())).collect()
    }

    fn all_due(book: &mut Book, now_ms: u64) -> Vec<Address> {
        std::iter::from_fn(|| book.next(now_ms)).map(|(address, _)| address).collect()
    }

    #[test]
    fn silent_servers_are_asked_more_and_more_rarely() {
        let mut book = Book::new(bounds(10));
        book.list(listed(&["192.1.2.1:1"]), 0);
        let mut asked_ms = Vec::new();
        for now_ms in (0..86_400_000).step_by(1_000) {
            for address in all_due(&mut book, now_ms) {
                asked_ms.push(now_ms);
                assert!(book.next(now_ms).is_none(), "it is being asked");
                book.silent(address, now_ms);
            }
            if now_ms % 60_000 == 0 {
                book.list(listed(&["192.1.2.1:1"]), now_ms); // listed all day
            }
        }
        let gaps: Vec<u64> = asked_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (gap, least) in gaps.iter().zip([60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000, 3_600_000]) {
            assert!((least..=least * 5 / 4 + 1_000).contains(gap), "{gaps:?}");
        }
        assert!(asked_ms.len() <= 30, "{} times a day", asked_ms.len());
    }

    #[test]
    fn a_known_server_is_looked_at_from_time_to_time_and_asked_soon_when_it_has_gone() {
        let mut book = Book::new(bounds(10));
        book.list(listed(&["192.1.2.1:1"]), 0);
        for now_ms in [0, 19_000, 38_000] {
            let (address, _) = book.next(now_ms).unwrap();
            book.known(address, now_ms);
            assert_eq!(book.next(now_ms + 14_000), None);
        }
        let (address, _) = book.next(57_000).unwrap();
        book.silent(address, 57_000);
        assert!(book.next(57_000 + 75_000).is_some(), "the first pause is short");
        book.busy(address, 400_000);
        assert!(book.next(400_000 + 6_250).is_some());
    }

    #[test]
    fn the_number_is_bounded_in_all_for_an_address_and_for_a_network() {
        let mut book = Book::new(bounds(100));
        let ports: Vec<_> = (1..=50).map(|port| format!("192.1.2.1:{port}")).collect();
        let hosts: Vec<_> = (1..=200).map(|host| format!("198.52.100.{host}:1")).collect();
        let others: Vec<_> = (1..=200).map(|net| format!("203.1.{net}.1:1")).collect();
        let local = ["127.0.0.1:1", "10.0.0.1:1", "224.0.0.1:1"].map(String::from).to_vec();
        let all: Vec<String> = [local, ports, hosts, others].concat();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let taken = book.list(listed(&all), 0);
        assert_eq!(taken, Taken { taken: 100, unreachable: 3, too_many: 350 });
        let of = |book: &Book, start: &str| book.servers.keys().filter(|it| it.to_string().starts_with(start)).count();
        assert_eq!((of(&book, "192.1.2."), of(&book, "198.52.100.")), (4, 32), "4 per address, 32 per /24");
        // What is dropped makes room, and nothing is left of it.
        assert_eq!(book.list(listed(&["192.1.2.1:49", "192.1.2.1:50"]), 1_000).taken, 2);
        assert_eq!((book.len(), book.due.len()), (2, 2));
        book.list(Vec::new(), 2_000);
        assert!(book.places.is_empty() && book.due.is_empty() && book.asking.is_empty());
    }

    #[test]
    fn one_server_of_an_address_is_asked_at_a_time() {
        let mut book = Book::new(bounds(10));
        book.list(listed(&["192.1.2.1:1", "192.1.2.1:2", "192.1.2.2:1"]), 0);
        let first = all_due(&mut book, 0);
        assert_eq!(first, [address("192.1.2.1:1"), address("192.1.2.2:1")]);
        assert_eq!(all_due(&mut book, 1_000), []);
        book.silent(first[0], 1_500);
        assert_eq!(all_due(&mut book, 2_000), [address("192.1.2.1:2")]);
        // One that the upstream drops while it is asked leaves its address free.
        book.list(listed(&["192.1.2.1:3"]), 2_500);
        assert_eq!(all_due(&mut book, 2_500), [address("192.1.2.1:3")]);
        book.known(address("192.1.2.1:2"), 3_000);
        assert_eq!(book.len(), 1);
    }

    #[test]
    fn the_last_list_of_a_dead_upstream_counts_until_a_server_has_been_silent_for_a_day() {
        let mut book = Book::new(bounds(10));
        book.list(listed(&["192.1.2.1:1", "192.1.2.2:1"]), 0);
        let day = 86_400_000;
        for now_ms in (0..3 * day).step_by(30_000) {
            for address in all_due(&mut book, now_ms) {
                match address.to_string().as_str() {
                    "192.1.2.1:1" => book.known(address, now_ms),
                    _ => book.silent(address, now_ms),
                }
            }
            book.keep(now_ms);
            assert_eq!(book.len(), if now_ms < day { 2 } else { 1 });
        }
        // The one that answered has gone at last: it is asked for another day, in case it comes back.
        for now_ms in (3 * day..5 * day).step_by(30_000) {
            for address in all_due(&mut book, now_ms) {
                book.silent(address, now_ms);
            }
            book.keep(now_ms);
        }
        assert_eq!((book.len(), book.due.len()), (0, 0));
    }
}

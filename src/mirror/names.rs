//! The names in an upstream's list, and when each is looked up. No socket and no clock.
//!
//! Whoever writes the list chooses whose name servers are asked. So there are only so many names, one is looked up at a time,
//! and what was found, or that nothing was, is remembered; also for names that have left the list.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::model::{Address, Game};

/// Upper bound on the names of one upstream.
const NAMES_MAX: usize = 1_000;
/// The least time between two lookups.
const GAP_MS: u64 = 500;
/// How long an address is remembered.
const FOUND_MS: u64 = 1_800_000;
/// How long it is remembered that a name has no address; each time twice as long as before, up to the longest.
const MISSING_MS: u64 = 60_000;
const MISSING_MS_MAX: u64 = 3_600_000;

#[derive(Default)]
pub struct Names {
    known: HashMap<Box<str>, Known>,
    next_ms: u64,
}

struct Known {
    /// The servers under this name; none if it is not on the list any more.
    servers: Vec<(u16, Game)>,
    ip: Option<IpAddr>,
    /// None while it is being looked up.
    due_ms: Option<u64>,
    /// How often it had no address, in a row.
    missing: u32,
}

impl Known {
    fn servers(&self) -> impl Iterator<Item = (Address, Game)> + '_ {
        let at = |(port, game): &(u16, Game)| Some((Address::new(self.ip?, *port)?, game.clone()));
        self.servers.iter().filter_map(at)
    }
}

impl Names {
    /// Replaces the list. The number of servers that were left out, because there are too many names.
    pub fn list(&mut self, named: Vec<(Box<str>, u16, Game)>, now_ms: u64) -> usize {
        self.known.values_mut().for_each(|known| known.servers.clear());
        let mut left_out = 0;
        let mut new = Vec::new();
        for (host, port, game) in named {
            match self.known.get_mut(&host) {
                Some(known) => known.servers.push((port, game)),
                None => new.push((host, port, game)),
            }
        }
        // What has left the list makes room as soon as it would be looked up again, not before.
        self.known.retain(|_, known| !known.servers.is_empty() || known.due_ms.is_none_or(|due_ms| now_ms < due_ms));
        for (host, port, game) in new {
            if let Some(known) = self.known.get_mut(&host) {
                known.servers.push((port, game));
            } else if self.known.len() < NAMES_MAX {
                let servers = vec![(port, game)];
                self.known.insert(host, Known { servers, ip: None, due_ms: Some(now_ms), missing: 0 });
            } else {
                left_out += 1;
            }
        }
        left_out
    }

    /// All servers whose names are known.
    pub fn servers(&self) -> impl Iterator<Item = (Address, Game)> + '_ {
        self.known.values().flat_map(Known::servers)
    }

    /// The next name to look up. [`Names::found`] has to follow for it.
    pub fn next(&mut self, now_ms: u64) -> Option<Box<str>> {
        if now_ms < self.next_ms {
            return None;
        }
        let listed = self.known.iter_mut().filter(|(_, known)| !known.servers.is_empty());
        let due = listed.filter_map(|(host, known)| Some((known.due_ms?, host, known)));
        let (_, host, known) = due.filter(|(due_ms, ..)| *due_ms <= now_ms).min_by_key(|(due_ms, ..)| *due_ms)?;
        known.due_ms = None;
        self.next_ms = now_ms + GAP_MS;
        Some(host.clone())
    }

    /// What a name leads to. If it cannot be found any more, its last address counts. Returns its servers.
    pub fn found(&mut self, host: &str, ip: Option<IpAddr>, now_ms: u64) -> Vec<(Address, Game)> {
        let Some(known) = self.known.get_mut(host) else { return Vec::new() };
        known.ip = ip.or(known.ip);
        known.missing = if ip.is_some() { 0 } else { known.missing + 1 };
        let after_ms = match known.missing {
            0 => FOUND_MS,
            missing => MISSING_MS.saturating_mul(1 << (missing - 1).min(16)).min(MISSING_MS_MAX),
        };
        known.due_ms = Some(now_ms + after_ms);
        known.servers().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn game() -> Game {
        Game::Own("one")
    }

    fn named(hosts: impl IntoIterator<Item = impl Into<Box<str>>>) -> Vec<(Box<str>, u16, Game)> {
        hosts.into_iter().map(|host| (host.into(), 5, game())).collect()
    }

    fn ip() -> Option<IpAddr> {
        Some([192, 0, 2, 1].into())
    }

    /// Follows a list for so long, fetched every minute, and returns the lookups.
    fn follow(
        names: &mut Names,
        until_ms: u64,
        ip: Option<IpAddr>,
        list: impl Fn(u64) -> Vec<(Box<str>, u16, Game)>,
    ) -> Vec<(u64, Box<str>)> {
        let mut lookups = Vec::new();
        for now_ms in (0..until_ms).step_by(250) {
            if now_ms % 60_000 == 0 {
                names.list(list(now_ms / 60_000), now_ms);
                assert!(names.known.len() <= NAMES_MAX);
            }
            if let Some(host) = names.next(now_ms) {
                names.found(&host, ip, now_ms);
                lookups.push((now_ms, host));
            }
        }
        lookups
    }

    #[test]
    fn a_known_name_is_not_looked_up_again_for_half_an_hour() {
        let mut names = Names::default();
        let lookups = follow(&mut names, 1_800_000, ip(), |_| named(["a.example", "b.example"]));
        assert_eq!(lookups.len(), 2, "{lookups:?}");
        assert_eq!(names.servers().count(), 2);
        assert!(names.next(1_801_000).is_some());
    }

    #[test]
    fn a_few_names_are_looked_up_in_a_second_however_many_there_are() {
        let list = |_| named((0..5_000).map(|number| format!("{number}.victim.example")));
        let lookups = follow(&mut Names::default(), 3_600_000, ip(), list);
        assert!(lookups.windows(2).all(|pair| pair[1].0 - pair[0].0 >= GAP_MS));
        assert!(lookups.len() <= 2 * NAMES_MAX, "{} in an hour", lookups.len());
    }

    #[test]
    fn names_that_change_each_time_are_not_looked_up_for_ever() {
        let list = |minute| named((0..500).map(|number| format!("{minute}-{number}.victim.example")));
        let lookups = follow(&mut Names::default(), 3_600_000, ip(), list);
        assert!((NAMES_MAX..=2 * NAMES_MAX).contains(&lookups.len()), "{} in an hour", lookups.len());
        // Nor are two lists in turn.
        let list = |minute| named((0..100).map(|number| format!("{}-{number}.victim.example", minute % 2)));
        assert_eq!(follow(&mut Names::default(), 1_700_000, ip(), list).len(), 200);
    }

    #[test]
    fn a_name_without_an_address_is_looked_up_more_and_more_rarely() {
        let lookups = follow(&mut Names::default(), 86_400_000, None, |_| named(["missing.example"]));
        let gaps: Vec<u64> = lookups.windows(2).map(|pair| (pair[1].0 - pair[0].0) / 60_000).collect();
        assert_eq!(gaps[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_name_has_one_lookup_for_all_its_ports_and_keeps_its_last_address() {
        let mut names = Names::default();
        let two = vec![("a.example".into(), 5, game()), ("a.example".into(), 6, game())];
        assert_eq!(names.list(two.clone(), 0), 0);
        assert_eq!(names.servers().count(), 0);
        assert_eq!(names.next(0).as_deref(), Some("a.example"));
        assert_eq!(names.next(10_000), None, "it is being looked up");
        assert_eq!(names.found("a.example", ip(), 10_000).len(), 2);
        assert_eq!(names.next(2_000_000).as_deref(), Some("a.example"));
        assert_eq!(names.found("a.example", None, 2_000_000).len(), 2);
        names.list(two, 2_010_000);
        let servers: Vec<String> = names.servers().map(|(address, _)| address.to_string()).collect();
        assert_eq!(servers, ["192.0.2.1:5", "192.0.2.1:6"]);
        names.list(Vec::new(), 2_020_000);
        assert_eq!(names.servers().count(), 0, "not on the list any more");
        assert!(names.found("unknown.example", ip(), 0).is_empty());
    }

    #[test]
    fn only_so_many_names_are_taken() {
        let hosts = || (0..NAMES_MAX + 7).map(|number| format!("{number}.example"));
        assert_eq!(Names::default().list(named(hosts()), 0), 7);
    }
}

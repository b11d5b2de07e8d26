//! The lists of several masters as one: one row per server, with the masters that list it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::client::Found;
use crate::model::{Address, Facts};

/// A set of masters, by their numbers from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masters(u16);

impl Masters {
    /// Upper bound on the number of masters.
    pub const MAX: usize = u16::BITS as usize;

    pub fn insert(&mut self, number: usize) {
        self.0 |= 1u16.checked_shl(number as u32).unwrap_or(0);
    }

    pub fn remove(&mut self, number: usize) {
        self.0 &= !1u16.checked_shl(number as u32).unwrap_or(0);
    }

    pub fn contains(self, number: usize) -> bool {
        self.iter().any(|known| known == number)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of these are among the others.
    pub fn are_among(self, others: Masters) -> bool {
        self.0 & !others.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Masters::MAX).filter(move |number| self.0 >> number & 1 == 1)
    }
}

/// One row per server, in the order of the lists. Two lists mean the same server if the address and the protocol are the same.
///
/// What the first master says of a server counts; what it does not say is taken from the others. A round trip is the master's
/// own, so it is moved away from where ours will be.
pub fn merge(lists: &[Option<Vec<Found>>]) -> Vec<Found> {
    let mut merged: Vec<Found> = Vec::with_capacity(lists.iter().flatten().map(Vec::len).max().unwrap_or(0));
    let mut rows: HashMap<(&'static str, Address), usize> = HashMap::new();
    for (number, list) in lists.iter().enumerate() {
        for found in list.iter().flatten() {
            match rows.entry((found.game.protocol(), found.address)) {
                Entry::Vacant(place) => {
                    place.insert(merged.len());
                    merged.push(Found { master_rtt_us: found.rtt_us, rtt_us: None, ..found.clone() });
                }
                Entry::Occupied(row) => {
                    if let Some(known) = merged.get_mut(*row.get()) {
                        complete(known, found);
                    }
                }
            }
            if let Some(row) = rows.get(&(found.game.protocol(), found.address)).and_then(|row| merged.get_mut(*row)) {
                row.masters.insert(number);
            }
        }
    }
    merged
}

/// Adds what another master says of a server.
fn complete(known: &mut Found, other: &Found) {
    if known.facts == Facts::default() {
        known.facts = other.facts.clone();
    }
    known.country = known.country.or(other.country);
    known.official = known.official.or(other.official);
    known.flavor = known.flavor.or(other.flavor);
    known.master_rtt_us = known.master_rtt_us.or(other.rtt_us);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::CountryCode;
    use crate::model::Game;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn found(game: &'static str, port: u16) -> Found {
        Found::new(Game::Own(game), format!("203.0.113.5:{port}").parse().unwrap())
    }

    fn named(port: u16, name: &'static str) -> Found {
        Found { facts: Facts { name: name.into(), ..Facts::default() }, ..found("netpanzer", port) }
    }

    #[test]
    fn one_row_per_server_and_the_first_master_counts() {
        let first = vec![found("netpanzer", 1), named(2, "two"), found("iceball", 3)];
        let country = CountryCode::from("DE").unwrap();
        let mut second = vec![
            Found { rtt_us: Some(5), country: Some(country), official: Some(true), ..named(1, "one") },
            Found { rtt_us: Some(7), ..named(2, "another name") },
            found("netpanzer", 3),
        ];
        second[2].flavor = Some(4);
        let merged = merge(&[Some(first), None, Some(second)]);
        let rows: Vec<_> = merged
            .iter()
            .map(|row| (row.game.name(), row.address.port(), &*row.facts.name, row.masters.iter().collect::<Vec<_>>()))
            .collect();
        assert_eq!(
            rows,
            [
                ("netpanzer", 1, "one", vec![0, 2]),
                ("netpanzer", 2, "two", vec![0, 2]),
                ("iceball", 3, "", vec![0]),
                ("netpanzer", 3, "", vec![2])
            ]
        );
        assert_eq!((merged[0].country, merged[0].official), (Some(country), Some(true)));
        assert_eq!((merged[0].rtt_us, merged[0].master_rtt_us, merged[1].master_rtt_us), (None, Some(5), Some(7)));
        assert_eq!(merged[3].flavor, Some(4));
    }

    #[test]
    fn sets() {
        let (mut some, mut more) = (Masters::default(), Masters::default());
        assert!(some.is_empty() && some.are_among(more));
        some.insert(15);
        some.insert(16); // there is no such master
        more.insert(0);
        assert!(some.contains(15) && !some.contains(0) && !some.contains(16) && !some.are_among(more));
        more.insert(15);
        assert!(some.are_among(more) && !more.are_among(some));
        assert_eq!(more.iter().collect::<Vec<_>>(), [0, 15]);
        more.remove(0);
        more.remove(16);
        assert_eq!(more, some);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_listed_twice(lists in proptest::collection::vec(proptest::collection::vec(1u16..9, 0..9), 0..5)) {
            let lists: Vec<Vec<u16>> = lists;
            let found: Vec<_> = lists.iter().map(|ports| Some(ports.iter().map(|port| found("netpanzer", *port)).collect())).collect();
            let merged = merge(&found);
            let all: HashSet<u16> = lists.iter().flatten().copied().collect();
            prop_assert_eq!(merged.len(), all.len());
            for row in &merged {
                for (number, ports) in lists.iter().enumerate() {
                    prop_assert_eq!(row.masters.contains(number), ports.contains(&row.address.port()));
                }
            }
        }
    }
}

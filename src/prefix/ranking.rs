//! Which networks hold the most of something scarce, while what they hold comes and goes.
//!
//! Networks nest ([`Prefix::owners`]): of the widest networks the heaviest is looked for, in that the heaviest of the next narrower
//! ones, and so on down to an address. Each level is kept in order, so that neither counting nor finding looks at all of them. That
//! is for what there are thousands of. The registry, with millions of entries, has compact tables (`registry/shares.rs`).

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Included};

use super::Prefix;

#[derive(Debug)]
pub struct Ranking {
    held: HashMap<Prefix, u32>,
    /// Each network after the one around it and what it holds.
    order: BTreeSet<(Option<Prefix>, u32, Prefix)>,
    /// The address that was found last: of equally heavy networks, those after it are found next, and inside a network those after
    /// the same place in it.
    last: Prefix,
}

impl Default for Ranking {
    fn default() -> Ranking {
        Ranking { held: HashMap::new(), order: BTreeSet::new(), last: Prefix::FIRST }
    }
}

impl Ranking {
    /// Counts one more for the owners of an address, widest first.
    pub fn add(&mut self, owners: &[Prefix]) {
        self.change(owners, 1);
    }

    /// Undoes [`Ranking::add`].
    pub fn remove(&mut self, owners: &[Prefix]) {
        self.change(owners, -1);
    }

    /// What the heaviest network inside another one holds, or (None) the heaviest of the widest; 0 if there is none.
    pub fn most(&self, around: Option<Prefix>) -> u32 {
        let up_to = (around, u32::MAX, Prefix::LAST);
        let heaviest = self.order.range(..=up_to).next_back();
        heaviest.filter(|(of, ..)| *of == around).map_or(0, |(_, held, _)| *held)
    }

    /// Addresses that hold the most: one, or some of those that do where networks are equally heavy; other ones each time if there are
    /// more than `some`.
    pub fn heaviest(&mut self, some: usize) -> Vec<Prefix> {
        let mut found = Vec::new();
        self.descend(None, some, &mut found);
        self.last = found.last().copied().unwrap_or(self.last);
        found
    }

    fn descend(&self, around: Option<Prefix>, some: usize, found: &mut Vec<Prefix>) {
        let most = self.most(around);
        if most == 0 {
            return found.extend(around);
        }
        let last = around.map_or(self.last, |around| self.last.moved_into(around));
        let after = (Excluded((around, most, last)), Excluded((around, most.saturating_add(1), Prefix::FIRST)));
        let before = (Included((around, most, Prefix::FIRST)), Included((around, most, last)));
        let equal = self.order.range(after).chain(self.order.range(before));
        let equal: Vec<Prefix> = equal.take(some).map(|(.., prefix)| *prefix).collect();
        let each = (some / equal.len().max(1)).max(1);
        equal.into_iter().for_each(|prefix| self.descend(Some(prefix), each, found));
    }

    fn change(&mut self, owners: &[Prefix], more: i32) {
        let mut around = None;
        for prefix in owners {
            let before = self.held.get(prefix).copied().unwrap_or(0);
            let after = before.saturating_add_signed(more);
            self.order.remove(&(around, before, *prefix));
            if after == 0 {
                self.held.remove(prefix);
            } else {
                self.held.insert(*prefix, after);
                self.order.insert((around, after, *prefix));
            }
            around = Some(*prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Networks;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn owners(ip: &str) -> Vec<Prefix> {
        Prefix::owners(ip.parse().unwrap(), &Networks::NONE).to_vec()
    }

    fn ranking(ips: &[&str]) -> Ranking {
        let mut ranking = Ranking::default();
        ips.iter().for_each(|ip| ranking.add(&owners(ip)));
        ranking
    }

    fn heaviest(ranking: &mut Ranking, some: usize) -> Vec<String> {
        ranking.heaviest(some).iter().map(|prefix| prefix.network().to_string()).collect()
    }

    fn all_of_the_heaviest(ranking: &mut Ranking) -> Vec<String> {
        let mut found = ranking.heaviest(16);
        found.sort();
        found.iter().map(|prefix| prefix.network().to_string()).collect()
    }

    #[test]
    fn the_widest_is_looked_for_first_and_then_inside_it() {
        // Three in one address are less than four in a /16, where two are in one /24.
        let four = ["203.0.113.7", "203.0.113.8", "203.0.16.1", "203.0.32.1"];
        let mut ranking = ranking(&[&["192.0.2.1"; 3][..], &four, &["2001:db8::1"]].concat());
        assert_eq!(ranking.most(None), 4);
        assert_eq!(all_of_the_heaviest(&mut ranking), ["203.0.113.7", "203.0.113.8"]);
        ranking.remove(&owners("203.0.113.8"));
        assert_eq!(all_of_the_heaviest(&mut ranking), ["192.0.2.1", "203.0.16.1", "203.0.32.1", "203.0.113.7"]);
        for ip in ["192.0.2.1", "192.0.2.1", "203.0.16.1", "203.0.113.7"] {
            ranking.remove(&owners(ip));
        }
        assert_eq!(all_of_the_heaviest(&mut ranking), ["192.0.2.1", "203.0.32.1", "2001:db8::"]);
        for ip in ["192.0.2.1", "203.0.32.1", "2001:db8::1"] {
            ranking.remove(&owners(ip));
        }
        assert_eq!((all_of_the_heaviest(&mut ranking), ranking.most(None)), (vec![], 0));
        assert!(ranking.held.is_empty() && ranking.order.is_empty());
    }

    #[test]
    fn of_equally_heavy_networks_each_has_its_turn() {
        let ips: Vec<String> = (0..40).map(|net| format!("10.{net}.0.1")).collect();
        let mut ranking = ranking(&ips.iter().map(String::as_str).collect::<Vec<_>>());
        let turns: Vec<String> = (0..5).flat_map(|_| heaviest(&mut ranking, 16)).collect();
        assert_eq!(turns, ips.iter().chain(&ips).cloned().collect::<Vec<_>>());
    }

    #[test]
    fn of_equally_heavy_addresses_in_many_networks_each_has_its_turn() {
        let ips: Vec<String> = (0..60).map(|number| format!("10.{}.0.{}", number % 20, number)).collect();
        let mut ranking = ranking(&ips.iter().map(String::as_str).collect::<Vec<_>>());
        let turns: BTreeSet<String> = (0..60).flat_map(|_| heaviest(&mut ranking, 16)).collect();
        assert_eq!(turns, ips.into_iter().collect());
    }

    proptest! {
        /// The heaviest by counting all of them.
        #[test]
        fn the_heaviest_is_what_counting_finds(ips in proptest::collection::vec((0..3u8, 0..3u8, 0..3u8), 1..60)) {
            let mut ranking = Ranking::default();
            let ips: Vec<IpAddr> = ips.iter().map(|(a, b, c)| [10, *a, b * 64 + *c, *c].into()).collect();
            let all = |ips: &[IpAddr]| -> Vec<Vec<Prefix>> {
                ips.iter().map(|ip| Prefix::owners(*ip, &Networks::NONE).to_vec()).collect()
            };
            all(&ips).iter().for_each(|owners| ranking.add(owners));
            for left in (1..=ips.len()).rev() {
                let all = all(&ips[..left]);
                let holds = |prefix: &Prefix| all.iter().filter(|owners| owners.contains(prefix)).count();
                for found in ranking.heaviest(100) {
                    let found = Prefix::owners(found.network(), &Networks::NONE);
                    for (level, prefix) in found.iter().enumerate() {
                        let beside = all.iter().filter(|other| other[..level] == found[..level]);
                        prop_assert_eq!(beside.map(|other| holds(&other[level])).max(), Some(holds(prefix)));
                    }
                }
                ranking.remove(&all[left - 1]);
            }
            prop_assert!(ranking.held.is_empty() && ranking.order.is_empty());
        }
    }
}

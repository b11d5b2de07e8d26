//! The number of entries of each nested prefix, for the limits.
//!
//! A million servers may have a million addresses, so the tables are compact: one per prefix length, with keys that need no
//! alignment.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::Refusal;
use crate::prefix::{LEVELS_MAX, Networks, Prefix};

#[derive(Default)]
pub struct PrefixCounts {
    /// Addresses that have only the limit per address.
    exempt: Networks,
    /// By IPv4 address, which has at most 65,535 ports.
    v4: HashMap<[u8; 4], Counts<u16>>,
    v4_24: HashMap<[u8; 3], u32>,
    /// By IPv6 /64.
    v6: HashMap<[u8; 8], Counts<u32>>,
    v6_56: HashMap<[u8; 7], u32>,
    v6_48: HashMap<[u8; 6], u32>,
}

#[derive(Clone, Copy, Default)]
struct Counts<C> {
    entries: C,
    /// Entries proven by a cookie, whether or not they count for limits.
    proven: C,
}

/// Which of the two [`Counts`].
#[derive(Clone, Copy)]
enum Kind {
    Entry,
    Proof,
}

impl PrefixCounts {
    /// Sets all entry counts to zero and replaces the exempt networks. Counts of proofs stay.
    pub fn reset(&mut self, exempt: Networks) {
        self.exempt = exempt;
        (self.v4_24, self.v6_56, self.v6_48) = Default::default();
        self.v4.retain(|_, counts| {
            counts.entries = 0;
            counts.proven > 0
        });
        self.v6.retain(|_, counts| {
            counts.entries = 0;
            counts.proven > 0
        });
    }

    pub fn exempt(&self) -> &Networks {
        &self.exempt
    }

    /// The address block that competes for room in a full list: the widest prefix that the address counts for, i.e. its
    /// IPv4 /24 or IPv6 /48, or the address (IPv6 /64) itself in an exempt network.
    pub fn limit_key(&self, ip: IpAddr) -> Prefix {
        self.prefixes(ip).last().copied().unwrap_or(Prefix::narrowest(ip))
    }

    /// Checks that one more entry of this address exceeds none of its limits; `per_ip_max` is the narrowest prefix's limit.
    pub fn fits(&self, ip: IpAddr, per_ip_max: u32) -> Result<(), Refusal> {
        let is_full = |prefix: &Prefix| self.count(prefix) >= prefix.limit(per_ip_max);
        match self.prefixes(ip).iter().position(is_full) {
            None => Ok(()),
            Some(0) => Err(Refusal::FullForIp),
            Some(_) => Err(Refusal::FullForNetwork),
        }
    }

    pub fn add(&mut self, ip: IpAddr) {
        self.prefixes(ip).iter().for_each(|prefix| self.tally(prefix, Kind::Entry, true));
    }

    /// Undoes [`PrefixCounts::add`].
    pub fn remove(&mut self, ip: IpAddr) {
        self.prefixes(ip).iter().for_each(|prefix| self.tally(prefix, Kind::Entry, false));
    }

    /// An entry of this address has been proven by a cookie, or no longer is.
    pub fn prove(&mut self, ip: IpAddr, is_proven: bool) {
        self.tally(&Prefix::narrowest(ip), Kind::Proof, is_proven);
    }

    /// Whether an entry of this address (IPv6 /64) has been proven by a cookie.
    pub fn is_proven(&self, ip: IpAddr) -> bool {
        match octets(&Prefix::narrowest(ip)) {
            ([a, b, c, d, ..], 32) => self.v4.get(&[a, b, c, d]).is_some_and(|counts| counts.proven > 0),
            (network, _) => self.v6.get(&network).is_some_and(|counts| counts.proven > 0),
        }
    }

    /// Entries that count for a prefix.
    pub fn count(&self, prefix: &Prefix) -> u32 {
        match octets(prefix) {
            ([a, b, c, d, ..], 32) => self.v4.get(&[a, b, c, d]).map_or(0, |counts| counts.entries.into()),
            ([a, b, c, ..], 24) => self.v4_24.get(&[a, b, c]).copied().unwrap_or(0),
            ([a, b, c, d, e, f, g, _], 56) => self.v6_56.get(&[a, b, c, d, e, f, g]).copied().unwrap_or(0),
            ([a, b, c, d, e, f, ..], 48) => self.v6_48.get(&[a, b, c, d, e, f]).copied().unwrap_or(0),
            (network, _) => self.v6.get(&network).map_or(0, |counts| counts.entries),
        }
    }

    fn prefixes(&self, ip: IpAddr) -> ArrayVec<Prefix, LEVELS_MAX> {
        Prefix::all(ip, &self.exempt)
    }

    /// Counts one more or one less. Proofs are counted for the narrowest prefixes only.
    fn tally(&mut self, prefix: &Prefix, kind: Kind, more: bool) {
        match octets(prefix) {
            ([a, b, c, d, ..], 32) => tally(&mut self.v4, [a, b, c, d], kind, more),
            ([a, b, c, ..], 24) => step(&mut self.v4_24, [a, b, c], more),
            ([a, b, c, d, e, f, g, _], 56) => step(&mut self.v6_56, [a, b, c, d, e, f, g], more),
            ([a, b, c, d, e, f, ..], 48) => step(&mut self.v6_48, [a, b, c, d, e, f], more),
            (network, _) => tally(&mut self.v6, network, kind, more),
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let narrow = self.v4.is_empty() && self.v6.is_empty();
        narrow && self.v4_24.is_empty() && self.v6_56.is_empty() && self.v6_48.is_empty()
    }
}

/// The first octets of a prefix and its length, which identifies the table.
fn octets(prefix: &Prefix) -> ([u8; 8], u8) {
    let network = match prefix.network() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()) << 32,
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    };
    (network.to_be_bytes(), prefix.bits())
}

/// Counts one more or one less, and removes an entry without counts.
fn tally<K: Eq + Hash + Copy, C: Copy + Default + Into<u32> + TryFrom<u32>>(
    counts: &mut HashMap<K, Counts<C>>,
    key: K,
    kind: Kind,
    more: bool,
) {
    let found = counts.entry(key).or_default();
    let count = match kind {
        Kind::Entry => &mut found.entries,
        Kind::Proof => &mut found.proven,
    };
    let old: u32 = (*count).into();
    let new = if more { old.saturating_add(1) } else { old.saturating_sub(1) };
    *count = C::try_from(new).unwrap_or(*count);
    if found.entries.into() + found.proven.into() == 0 {
        counts.remove(&key);
    }
}

/// The same for a table with a single count.
fn step<K: Eq + Hash + Copy>(counts: &mut HashMap<K, u32>, key: K, more: bool) {
    let count = counts.entry(key).or_default();
    *count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
    if *count == 0 {
        counts.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn counts_of(counts: &PrefixCounts, of: &str) -> Vec<u32> {
        Prefix::all(ip(of), counts.exempt()).iter().map(|prefix| counts.count(prefix)).collect()
    }

    #[test]
    fn an_entry_counts_for_every_prefix_around_it() {
        let mut counts = PrefixCounts::default();
        let ips =
            ["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8:0:100::1", "2001:db8:0:101::1", "2001:db8:0:200::1"];
        ips.iter().for_each(|address| counts.add(ip(address)));
        assert_eq!(counts_of(&counts, "192.0.2.1"), [2, 3]);
        assert_eq!(counts_of(&counts, "2001:db8:0:100::9"), [1, 2, 3]);
        ips.iter().for_each(|address| counts.remove(ip(address)));
        assert!(counts.is_empty());
    }

    #[test]
    fn limits_hold_at_every_level() {
        let mut counts = PrefixCounts::default();
        counts.add(ip("192.0.2.1"));
        assert_eq!(counts.fits(ip("192.0.2.1"), 1), Err(Refusal::FullForIp));
        (2..=8).for_each(|last| counts.add(ip(&format!("192.0.2.{last}"))));
        assert_eq!(counts.fits(ip("192.0.2.9"), 1), Err(Refusal::FullForNetwork), "8 in a /24");
        assert_eq!(counts.fits(ip("192.0.3.1"), 1), Ok(()));
        (0..4).for_each(|subnet| counts.add(ip(&format!("2001:db8::{subnet}:0:0:0:1"))));
        assert_eq!(counts.fits(ip("2001:db8:0:5::1"), 1), Err(Refusal::FullForNetwork), "4 in a /56");
        (4..16).for_each(|subnet| counts.add(ip(&format!("2001:db8:0:{subnet}00::1"))));
        assert_eq!(counts.fits(ip("2001:db8:0:ff00::1"), 1), Err(Refusal::FullForNetwork), "16 in a /48");
        assert_eq!(counts.fits(ip("2001:db8:1::1"), 1), Ok(()));
    }

    #[test]
    fn one_proven_address_proves_its_whole_ipv6_64() {
        let mut counts = PrefixCounts::default();
        for address in ["2001:db8::1", "192.0.2.1"] {
            counts.prove(ip(address), true);
            counts.prove(ip(address), true);
            counts.prove(ip(address), false);
        }
        assert!(counts.is_proven(ip("2001:db8::2")) && !counts.is_proven(ip("2001:db8:0:1::1")));
        assert!(counts.is_proven(ip("192.0.2.1")) && !counts.is_proven(ip("192.0.2.2")));
        assert_eq!(counts_of(&counts, "192.0.2.1"), [0, 0], "a proof is no entry");
        counts.reset(Networks::default());
        assert!(counts.is_proven(ip("192.0.2.1")));
        counts.prove(ip("2001:db8::1"), false);
        counts.prove(ip("192.0.2.1"), false);
        assert!(counts.is_empty());
    }

    #[test]
    fn the_counts_of_a_million_addresses_are_small() {
        assert_eq!((size_of::<([u8; 4], Counts<u16>)>(), size_of::<([u8; 3], u32)>()), (8, 8));
    }
}

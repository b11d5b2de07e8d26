//! Who has how many entries, for the limits: counts for each nested prefix, the members of each owner in the order in
//! which they were listed, and who owns most.
//!
//! An owner is the widest prefix that an address counts for: its IPv4 /24 or IPv6 /48, or the address (IPv6 /64) itself
//! in an exempt network. Nothing here is searched from end to end, because a flood of newcomers to a full list asks for
//! the largest owner each time.
//!
//! A million servers may have a million owners, so each structure is as small as it can be: IPv4 and IPv6 have tables of
//! their own, keys have no alignment, lists are linked by 32-bit numbers, and owners of one entry are not sorted.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;

use arrayvec::ArrayVec;
use hashbrown::HashTable;

use super::Refusal;
use crate::prefix::{LEVELS_MAX, Networks, Prefix};

/// The end of a linked list. No vector gets as long.
const NONE: u32 = u32::MAX;
/// An owner with fewer entries makes room for nobody.
const SORTED_MIN: u32 = 2;

#[derive(Default)]
pub struct Owners {
    /// Addresses that have only the limit per address.
    exempt: Networks,
    /// By IPv4 address. One has no more than 65,535 ports.
    v4: HashMap<[u8; 4], Counts<u16>>,
    /// By IPv6 /64.
    v6: HashMap<[u8; 8], Counts<u32>>,
    /// By IPv6 /56.
    v6_56: HashMap<[u8; 7], Counts<u32>>,
    owners: Vec<Owner>,
    free: Vec<u32>,
    by_key: HashTable<u32>,
    hasher: RandomState,
    /// Owners by size, from [`SORTED_MIN`] on.
    by_size: BTreeSet<(u32, u32)>,
    /// For each of the registry's slots, its place among its owner's.
    members: Vec<Member>,
}

#[derive(Clone, Copy, Default)]
struct Counts<C> {
    entries: C,
    /// Those that brought a cookie back, whether or not they count for limits.
    proven: C,
}

/// What is counted.
#[derive(Clone, Copy)]
enum Kind {
    Entry,
    Proof,
}

/// A prefix, packed: the number of bits tells the kinds apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    network: [u8; 8],
    bits: u8,
}

struct Owner {
    key: Key,
    size: u32,
    /// The member that was listed last.
    newest: u32,
}

/// An entry's neighbours among those of its owner.
#[derive(Clone, Copy)]
struct Member {
    older: u32,
    newer: u32,
}

impl Member {
    const NOBODY: Member = Member { older: NONE, newer: NONE };
}

impl Owners {
    /// Nobody yet, with other exempt networks; proofs stay.
    pub fn begin_anew(&mut self, exempt: Networks) {
        self.exempt = exempt;
        (self.v6_56, self.owners, self.free, self.by_key) = Default::default();
        (self.by_size, self.members) = Default::default();
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

    /// Whether one more entry of this address keeps all its limits; `per_ip_max` is the limit of the narrowest prefix.
    pub fn fits(&self, ip: IpAddr, per_ip_max: u32) -> Result<(), Refusal> {
        let is_full = |prefix: &Prefix| self.count(prefix) >= prefix.limit(per_ip_max);
        match self.prefixes(ip).iter().position(is_full) {
            None => Ok(()),
            Some(0) => Err(Refusal::FullForIp),
            Some(_) => Err(Refusal::FullForNetwork),
        }
    }

    /// Counts the entry in a slot.
    pub fn add(&mut self, slot: u32, ip: IpAddr) {
        for prefix in self.prefixes(ip) {
            self.tally(&prefix, Kind::Entry, true);
        }
        self.join(slot, ip);
    }

    /// Undoes [`Owners::add`].
    pub fn remove(&mut self, slot: u32, ip: IpAddr) {
        for prefix in self.prefixes(ip) {
            self.tally(&prefix, Kind::Entry, false);
        }
        self.leave(slot, ip);
    }

    /// An entry of this address has been proven by a cookie, or no longer is.
    pub fn prove(&mut self, ip: IpAddr, is_proven: bool) {
        self.tally(&Prefix::narrowest(ip), Kind::Proof, is_proven);
    }

    /// Counts one more or one less. The size of an owner is counted where its members are.
    fn tally(&mut self, prefix: &Prefix, kind: Kind, more: bool) {
        match key_of(prefix) {
            Key { network: [a, b, c, d, ..], bits: 32 } => tally(&mut self.v4, [a, b, c, d], kind, more),
            Key { network, bits: 64 } => tally(&mut self.v6, network, kind, more),
            Key { network: [a, b, c, d, e, f, g, _], bits: 56 } => {
                tally(&mut self.v6_56, [a, b, c, d, e, f, g], kind, more);
            }
            _ => {}
        }
    }

    /// Whether an entry of this address (IPv6 /64) has been proven by a cookie.
    pub fn is_proven(&self, ip: IpAddr) -> bool {
        match key_of(&Prefix::narrowest(ip)) {
            Key { network: [a, b, c, d, ..], bits: 32 } => self.v4.get(&[a, b, c, d]).is_some_and(|ip| ip.proven > 0),
            Key { network, .. } => self.v6.get(&network).is_some_and(|network| network.proven > 0),
        }
    }

    /// The slot that makes room for a newcomer of this address: the newest of the largest owner's. None where the
    /// newcomer's own owner would be as large as that.
    pub fn makes_room_for(&self, newcomer: IpAddr) -> Option<u32> {
        let largest = self.owner(self.by_size.last()?.1)?;
        let theirs = self.prefixes(newcomer).last().map_or(0, |prefix| self.size(&key_of(prefix)));
        (largest.size > theirs + 1).then_some(largest.newest)
    }

    /// Entries that count for a prefix.
    pub fn count(&self, prefix: &Prefix) -> u32 {
        match key_of(prefix) {
            Key { network: [a, b, c, d, ..], bits: 32 } => {
                self.v4.get(&[a, b, c, d]).map_or(0, |counts| counts.entries.into())
            }
            Key { network, bits: 64 } => self.v6.get(&network).map_or(0, |counts| counts.entries),
            Key { network: [a, b, c, d, e, f, g, _], bits: 56 } => {
                self.v6_56.get(&[a, b, c, d, e, f, g]).map_or(0, |counts| counts.entries)
            }
            widest => self.size(&widest),
        }
    }

    fn prefixes(&self, ip: IpAddr) -> ArrayVec<Prefix, LEVELS_MAX> {
        Prefix::all(ip, &self.exempt)
    }

    fn owner(&self, at: u32) -> Option<&Owner> {
        self.owners.get(at as usize)
    }

    fn find(&self, key: &Key) -> Option<u32> {
        let is_it = |&at: &u32| self.owner(at).is_some_and(|owner| owner.key == *key);
        self.by_key.find(self.hasher.hash_one(key), is_it).copied()
    }

    fn size(&self, key: &Key) -> u32 {
        self.find(key).and_then(|at| self.owner(at)).map_or(0, |owner| owner.size)
    }

    /// Makes a slot the newest member of its owner.
    fn join(&mut self, slot: u32, ip: IpAddr) {
        let Some(key) = self.prefixes(ip).last().map(key_of) else { return };
        let at = self.find(&key).unwrap_or_else(|| self.begin(key));
        if self.members.len() <= slot as usize {
            self.members.resize(slot as usize + 1, Member::NOBODY);
        }
        let Some(owner) = self.owners.get_mut(at as usize) else { return };
        let older = std::mem::replace(&mut owner.newest, slot);
        let size = owner.size + 1;
        if let Some(before) = self.members.get_mut(older as usize) {
            before.newer = slot;
        }
        if let Some(member) = self.members.get_mut(slot as usize) {
            *member = Member { older, newer: NONE };
        }
        self.resize(at, size);
    }

    fn leave(&mut self, slot: u32, ip: IpAddr) {
        let Some(member) = self.members.get_mut(slot as usize) else { return };
        let Member { older, newer } = std::mem::replace(member, Member::NOBODY);
        if let Some(member) = self.members.get_mut(older as usize) {
            member.newer = newer;
        }
        if let Some(member) = self.members.get_mut(newer as usize) {
            member.older = older;
        }
        let Some(at) = self.prefixes(ip).last().and_then(|prefix| self.find(&key_of(prefix))) else { return };
        let Some(owner) = self.owners.get_mut(at as usize) else { return };
        if owner.newest == slot {
            owner.newest = older;
        }
        let (key, size) = (owner.key, owner.size.saturating_sub(1));
        self.resize(at, size);
        if size == 0 {
            if let Ok(entry) = self.by_key.find_entry(self.hasher.hash_one(key), |&other| other == at) {
                entry.remove();
            }
            self.free.push(at);
        }
    }

    /// An owner without members.
    fn begin(&mut self, key: Key) -> u32 {
        let owner = Owner { key, size: 0, newest: NONE };
        let at = self.free.pop().unwrap_or(self.owners.len() as u32);
        match self.owners.get_mut(at as usize) {
            Some(place) => *place = owner,
            None => self.owners.push(owner),
        }
        let Owners { by_key, owners, hasher, .. } = self;
        by_key.insert_unique(hasher.hash_one(key), at, |&at| {
            owners.get(at as usize).map_or(0, |owner| hasher.hash_one(owner.key))
        });
        at
    }

    fn resize(&mut self, at: u32, size: u32) {
        let Some(owner) = self.owners.get_mut(at as usize) else { return };
        let old_size = std::mem::replace(&mut owner.size, size);
        if old_size >= SORTED_MIN {
            self.by_size.remove(&(old_size, at));
        }
        if size >= SORTED_MIN {
            self.by_size.insert((size, at));
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty()
            && self.v6.is_empty()
            && self.v6_56.is_empty()
            && self.by_key.is_empty()
            && self.by_size.is_empty()
            && self.free.len() == self.owners.len()
    }
}

fn key_of(prefix: &Prefix) -> Key {
    let network = match prefix.network() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()) << 32,
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    };
    Key { network: network.to_be_bytes(), bits: prefix.bits() }
}

/// Counts one more or one less; what comes to nothing is forgotten.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn counts(owners: &Owners, of: &str) -> Vec<u32> {
        Prefix::all(ip(of), owners.exempt()).iter().map(|prefix| owners.count(prefix)).collect()
    }

    #[test]
    fn an_entry_counts_for_every_prefix_around_it() {
        let mut owners = Owners::default();
        let ips =
            ["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8:0:100::1", "2001:db8:0:101::1", "2001:db8:0:200::1"];
        for (slot, address) in (0..).zip(ips) {
            owners.add(slot, ip(address));
        }
        assert_eq!(counts(&owners, "192.0.2.1"), [2, 3]);
        assert_eq!(counts(&owners, "2001:db8:0:100::9"), [1, 2, 3]);
        for (slot, address) in (0..).zip(ips) {
            owners.remove(slot, ip(address));
        }
        assert!(owners.is_empty());
    }

    #[test]
    fn limits_hold_at_every_level() {
        let mut owners = Owners::default();
        let mut slot = 0;
        let mut fill = |owners: &mut Owners, address: String| {
            owners.add(slot, ip(&address));
            slot += 1;
        };
        fill(&mut owners, "192.0.2.1".into());
        assert_eq!(owners.fits(ip("192.0.2.1"), 1), Err(Refusal::FullForIp));
        (2..=8).for_each(|last| fill(&mut owners, format!("192.0.2.{last}")));
        assert_eq!(owners.fits(ip("192.0.2.9"), 1), Err(Refusal::FullForNetwork), "8 in a /24");
        assert_eq!(owners.fits(ip("192.0.3.1"), 1), Ok(()));
        (0..4).for_each(|subnet| fill(&mut owners, format!("2001:db8::{subnet}:0:0:0:1")));
        assert_eq!(owners.fits(ip("2001:db8:0:5::1"), 1), Err(Refusal::FullForNetwork), "4 in a /56");
        (4..16).for_each(|subnet| fill(&mut owners, format!("2001:db8:0:{subnet}00::1")));
        assert_eq!(owners.fits(ip("2001:db8:0:ff00::1"), 1), Err(Refusal::FullForNetwork), "16 in a /48");
        assert_eq!(owners.fits(ip("2001:db8:1::1"), 1), Ok(()));
    }

    #[test]
    fn a_whole_ipv6_network_of_64_bits_is_proven_with_one_of_its_addresses() {
        let mut owners = Owners::default();
        for address in ["2001:db8::1", "192.0.2.1"] {
            owners.prove(ip(address), true);
            owners.prove(ip(address), true);
            owners.prove(ip(address), false);
        }
        assert!(owners.is_proven(ip("2001:db8::2")) && !owners.is_proven(ip("2001:db8:0:1::1")));
        assert!(owners.is_proven(ip("192.0.2.1")) && !owners.is_proven(ip("192.0.2.2")));
        assert_eq!(counts(&owners, "192.0.2.1"), [0, 0], "a proof is no entry");
        owners.begin_anew(Networks::default());
        assert!(owners.is_proven(ip("192.0.2.1")));
        owners.prove(ip("2001:db8::1"), false);
        owners.prove(ip("192.0.2.1"), false);
        assert!(owners.is_empty());
    }

    #[test]
    fn a_million_owners_fit() {
        assert_eq!((size_of::<Owner>(), size_of::<Member>(), size_of::<([u8; 4], Counts<u16>)>()), (20, 8, 8));
    }

    proptest! {
        /// Against lists that are searched from end to end.
        #[test]
        fn the_newest_of_the_largest_makes_room(steps in proptest::collection::vec((0..40u32, 0..6u8, 0..4u8), 1..200)) {
            let mut owners = Owners::default();
            let mut known: Vec<(u32, IpAddr)> = Vec::new();
            for (slot, network, host) in steps {
                let address = IpAddr::from([192, 0, network, host]);
                match known.iter().position(|(taken, _)| *taken == slot) {
                    Some(at) => {
                        let (slot, address) = known.remove(at);
                        owners.remove(slot, address);
                    }
                    None => {
                        known.push((slot, address));
                        owners.add(slot, address);
                    }
                }
                let of = |network: u8| known.iter().filter(move |(_, ip)| *ip >= IpAddr::from([192, 0, network, 0]) && *ip <= IpAddr::from([192, 0, network, 255]));
                let largest = (0..6).map(|network| of(network).count()).max().unwrap_or(0);
                let newcomer = owners.makes_room_for(address);
                if largest <= of(network).count() + 1 {
                    prop_assert_eq!(newcomer, None);
                } else {
                    let newest_of_largest: Vec<_> = (0..6).filter(|network| of(*network).count() == largest)
                        .filter_map(|network| of(network).next_back()).map(|(slot, _)| *slot).collect();
                    prop_assert!(newest_of_largest.contains(&newcomer.unwrap()));
                }
            }
            for (slot, address) in known {
                owners.remove(slot, address);
            }
            prop_assert!(owners.is_empty());
        }
    }
}

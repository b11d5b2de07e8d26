//! What each network holds of the list: how many entries, and how many bytes. Limits are counted here, and here it is decided
//! who gives way when places or bytes run out.
//!
//! Networks nest ([`Prefix::owners`]), and the one that holds the most gives way: of the widest networks the heaviest, in that the
//! heaviest of the next narrower ones, and so on down to an address, whose newest entry goes. Of equally heavy ones, the one that
//! grew last gives way. The newcomer is compared with the heaviest at each step, so that nobody gives way to one who would then
//! hold as much.
//!
//! A million servers may have a million addresses, so the tables are compact: one for each prefix length.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::Refusal;
use crate::prefix::{Networks, Prefix};

/// No slot has this number.
const NONE: u32 = u32::MAX;
/// Bytes are counted in pieces of this size, so that 128 GiB fit into 32 bits.
const UNIT: usize = 32;

/// What has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scarce {
    Places,
    Bytes,
}

#[derive(Default)]
pub struct Shares {
    /// Networks whose addresses share nothing: each is an owner of its own.
    exempt: Networks,
    v4: HashMap<u32, Owner<u16>>,
    v6: HashMap<u64, Owner<u32>>,
    /// The wider networks, by length, narrowest first.
    v4_wider: [HashMap<u32, Held>; 3],
    v6_wider: [HashMap<u64, Held>; 5],
    /// The widest network around each entry, by how heavy it is: in places and in bytes.
    widest: [BTreeSet<(Weight, Prefix)>; 2],
    /// By slot.
    members: Vec<Member>,
    /// Of all entries together.
    units: u64,
    /// How many entries have come so far.
    arrivals: u32,
}

/// What a network holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub entries: u32,
    /// In [`UNIT`]s.
    units: u32,
    /// Which arrival was the last one here, whether or not that entry is still there.
    stamp: u32,
}

/// How much a network holds of what is scarce, then its stamp. (Once in four billion arrivals a stamp begins again, and ties are
/// decided wrongly for a while.)
type Weight = (u32, u32);

/// An address (IPv6 /64): what it holds, and its entries from the newest on.
#[derive(Clone, Copy)]
struct Owner<C> {
    newest: u32,
    units: u32,
    entries: C,
    /// Entries proven by a cookie, whether or not they count.
    proven: C,
}

/// An entry of an address: its neighbours in the order of arrival, and what it takes.
#[derive(Clone, Copy)]
struct Member {
    older: u32,
    newer: u32,
    units: u32,
    stamp: u32,
}

impl Member {
    const NONE: Member = Member { older: NONE, newer: NONE, units: 0, stamp: 0 };
}

impl Held {
    fn of(self, scarce: Scarce) -> u32 {
        match scarce {
            Scarce::Places => self.entries,
            Scarce::Bytes => self.units,
        }
    }

    fn weight(self, scarce: Scarce) -> Weight {
        (self.of(scarce), self.stamp)
    }

    /// One entry more or less, and its bytes.
    fn changed(self, entries: i32, units: i64, arrivals: u32) -> Held {
        let units = (i64::from(self.units) + units).clamp(0, u32::MAX.into());
        let stamp = if entries > 0 { arrivals } else { self.stamp };
        Held { entries: self.entries.saturating_add_signed(entries), units: units as u32, stamp }
    }

    fn is_nothing(self) -> bool {
        self.entries == 0 && self.units == 0
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl Shares {
    /// Forgets what networks hold, and replaces the exempt ones. Call [`Shares::add`] again for each entry. Counts of proofs stay.
    pub fn reset(&mut self, exempt: Networks) {
        let Shares { v4, v6, .. } = std::mem::take(self);
        let v4 = v4.into_iter().filter(|(_, owner)| owner.proven > 0);
        let v6 = v6.into_iter().filter(|(_, owner)| owner.proven > 0);
        *self = Shares {
            exempt,
            v4: v4.map(|(key, owner)| (key, Owner { newest: NONE, units: 0, entries: 0, ..owner })).collect(),
            v6: v6.map(|(key, owner)| (key, Owner { newest: NONE, units: 0, entries: 0, ..owner })).collect(),
            ..Shares::default()
        };
    }

    pub fn exempt(&self) -> &Networks {
        &self.exempt
    }

    /// What all entries take together.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.units).unwrap_or(usize::MAX).saturating_mul(UNIT)
    }

    /// Checks that one more entry of this address exceeds none of its limits; `per_ip_max` is the limit of an address. If not,
    /// the network that is full.
    pub fn fits(&self, ip: IpAddr, per_ip_max: u32) -> Result<(), (Refusal, Prefix)> {
        let is_full = |prefix: &Prefix| self.held(prefix).entries >= prefix.limit(per_ip_max);
        match Prefix::all(ip, &self.exempt).into_iter().enumerate().find(|(_, prefix)| is_full(prefix)) {
            None => Ok(()),
            Some((0, prefix)) => Err((Refusal::FullForIp, prefix)),
            Some((_, prefix)) => Err((Refusal::FullForNetwork, prefix)),
        }
    }

    /// Counts an entry, as the newest of its address.
    pub fn add(&mut self, slot: u32, ip: IpAddr, bytes: usize) {
        let units = units(bytes);
        if self.members.len() <= slot as usize {
            self.members.resize(slot as usize + 1, Member::NONE);
        }
        let older = self.newest(&Prefix::narrowest(ip)).unwrap_or(NONE);
        self.set_newer(older, slot);
        self.arrivals = self.arrivals.wrapping_add(1);
        self.set_member(slot, Member { older, newer: NONE, units, stamp: self.arrivals });
        self.tally(ip, 1, i64::from(units), Some(slot));
    }

    /// Undoes [`Shares::add`].
    pub fn remove(&mut self, slot: u32, ip: IpAddr) {
        let Some(Member { older, newer, units, .. }) = self.members.get(slot as usize).copied() else { return };
        let was_newest = self.newest(&Prefix::narrowest(ip)) == Some(slot);
        self.tally(ip, -1, -i64::from(units), was_newest.then_some(older));
        self.set_member(slot, Member::NONE);
        self.set_newer(older, newer);
        if let Some(member) = self.members.get_mut(newer as usize) {
            member.older = older;
        }
    }

    /// An entry takes another number of bytes.
    pub fn weigh(&mut self, slot: u32, ip: IpAddr, bytes: usize) {
        let units = units(bytes);
        let Some(member) = self.members.get_mut(slot as usize).filter(|member| member.units != units) else { return };
        let more = i64::from(units) - i64::from(member.units);
        member.units = units;
        self.tally(ip, 0, more, None);
    }

    /// An entry of this address has been proven by a cookie, or no longer is.
    pub fn prove(&mut self, ip: IpAddr, is_proven: bool) {
        let change = if is_proven { 1 } else { -1 };
        self.with_owner(&Prefix::narrowest(ip), |owner| owner.proven = owner.proven.saturating_add_signed(change));
    }

    /// Whether an entry of this address (IPv6 /64) has been proven by a cookie.
    pub fn is_proven(&self, ip: IpAddr) -> bool {
        self.owner(&Prefix::narrowest(ip)).is_some_and(|owner| owner.proven > 0)
    }

    /// What a network of one of the owners' lengths holds.
    pub fn held(&self, prefix: &Prefix) -> Held {
        let (level, number) = prefix.owner_level();
        let Some(wider) = level.checked_sub(1) else {
            let stamp = |owner: &Owner<u32>| self.members.get(owner.newest as usize).map_or(0, |newest| newest.stamp);
            let held = |owner: Owner<u32>| Held { entries: owner.entries, units: owner.units, stamp: stamp(&owner) };
            return self.owner(prefix).map(held).unwrap_or_default();
        };
        let held = if prefix.network().is_ipv4() {
            self.v4_wider.get(wider).and_then(|table| table.get(&(number as u32)))
        } else {
            self.v6_wider.get(wider).and_then(|table| table.get(&number))
        };
        held.copied().unwrap_or_default()
    }

    /// The entry that gives way to a newcomer of this address, inside a network or (None) of all: the newest of the heaviest. None if
    /// the newcomer's own network would then be as heavy.
    pub fn gives_way_to(&self, ip: IpAddr, bytes: usize, inside: Option<Prefix>, scarce: Scarce) -> Option<u32> {
        let more = Held { entries: 1, units: units(bytes), stamp: 0 }.of(scarce);
        let held = |prefix: &Prefix| self.held(prefix).of(scarce);
        let own = Prefix::owners(ip, &self.exempt);
        self.newest(&heaviest_beside(&own, inside, more, held, |around| self.heaviest(around, scarce))?)
    }

    /// The entry that gives way when those that are there take too much.
    pub fn gives_way(&self, scarce: Scarce) -> Option<u32> {
        let heaviest = |around| self.heaviest(around, scarce);
        self.newest(&address_in(heaviest(None)?, heaviest))
    }

    /// The heaviest network inside another one, or (None) the heaviest of the widest. None in the narrowest.
    fn heaviest(&self, around: Option<Prefix>, scarce: Scarce) -> Option<Prefix> {
        let Some(around) = around else {
            return self.widest.get(scarce as usize)?.last().map(|(_, prefix)| *prefix);
        };
        let weight = |prefix: &Prefix| if self.is_apart(prefix) { (0, 0) } else { self.held(prefix).weight(scarce) };
        heaviest_inside(around, weight)
    }

    /// The entries of an address, from the newest on.
    pub fn entries(&self, address: &Prefix) -> impl Iterator<Item = u32> {
        let older = |slot: &u32| self.members.get(*slot as usize).map(|member| member.older);
        std::iter::successors(self.newest(address), move |slot| older(slot).filter(|older| *older != NONE))
    }

    /// An exempt address is an owner of its own, and holds nothing of the networks around it.
    pub fn is_apart(&self, prefix: &Prefix) -> bool {
        prefix.is_narrowest() && self.exempt.touches(*prefix)
    }

    fn newest(&self, address: &Prefix) -> Option<u32> {
        self.owner(address).map(|owner| owner.newest).filter(|slot| *slot != NONE)
    }

    fn set_member(&mut self, slot: u32, member: Member) {
        if let Some(known) = self.members.get_mut(slot as usize) {
            *known = member;
        }
    }

    fn set_newer(&mut self, slot: u32, newer: u32) {
        if let Some(member) = self.members.get_mut(slot as usize) {
            member.newer = newer;
        }
    }

    /// Adds to what each network around an address holds. `newest`: the address's newest entry, if it is another one now.
    fn tally(&mut self, ip: IpAddr, entries: i32, more_units: i64, newest: Option<u32>) {
        self.units = self.units.saturating_add_signed(more_units);
        let owners = Prefix::owners(ip, &self.exempt);
        for (at, prefix) in owners.iter().enumerate() {
            let before = self.held(prefix);
            self.set(prefix, before.changed(entries, more_units, self.arrivals), newest);
            if at == 0 {
                self.rank(prefix, before, self.held(prefix));
            }
        }
    }

    /// Keeps the order of the widest networks.
    fn rank(&mut self, prefix: &Prefix, before: Held, after: Held) {
        for (scarce, ranked) in [Scarce::Places, Scarce::Bytes].into_iter().zip(&mut self.widest) {
            ranked.remove(&(before.weight(scarce), *prefix));
            if after.of(scarce) > 0 {
                ranked.insert((after.weight(scarce), *prefix));
            }
        }
    }

    fn set(&mut self, prefix: &Prefix, held: Held, newest: Option<u32>) {
        let (level, number) = prefix.owner_level();
        let Some(wider) = level.checked_sub(1) else {
            return self.with_owner(prefix, |owner| {
                *owner = Owner {
                    newest: newest.unwrap_or(owner.newest),
                    units: held.units,
                    entries: held.entries,
                    ..*owner
                };
            });
        };
        if prefix.network().is_ipv4() {
            self.v4_wider.get_mut(wider).into_iter().for_each(|table| put(table, number as u32, held));
        } else {
            self.v6_wider.get_mut(wider).into_iter().for_each(|table| put(table, number, held));
        }
    }

    /// An address as it is stored, with counts of one width.
    fn owner(&self, address: &Prefix) -> Option<Owner<u32>> {
        let (_, number) = address.owner_level();
        if address.network().is_ipv4() {
            self.v4.get(&(number as u32)).map(|owner| owner.widened())
        } else {
            self.v6.get(&number).copied()
        }
    }

    /// Changes what is stored of an address, and removes it when it holds nothing.
    fn with_owner(&mut self, address: &Prefix, change: impl FnOnce(&mut Owner<u32>)) {
        let mut owner = self.owner(address).unwrap_or(Owner { newest: NONE, units: 0, entries: 0, proven: 0 });
        change(&mut owner);
        let is_empty = owner.entries == 0 && owner.proven == 0;
        let (_, number) = address.owner_level();
        match (address.network().is_ipv4(), is_empty) {
            (true, true) => drop(self.v4.remove(&(number as u32))),
            (true, false) => drop(self.v4.insert(number as u32, owner.narrowed())),
            (false, true) => drop(self.v6.remove(&number)),
            (false, false) => drop(self.v6.insert(number, owner)),
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let wider = self.v4_wider.iter().all(HashMap::is_empty) && self.v6_wider.iter().all(HashMap::is_empty);
        let ranked = self.widest.iter().all(BTreeSet::is_empty);
        self.v4.is_empty() && self.v6.is_empty() && wider && ranked && self.units == 0
    }
}

impl Owner<u16> {
    fn widened(self) -> Owner<u32> {
        let Owner { newest, units, entries, proven } = self;
        Owner { newest, units, entries: entries.into(), proven: proven.into() }
    }
}

impl Owner<u32> {
    /// An IPv4 address has at most 65,535 ports.
    fn narrowed(self) -> Owner<u16> {
        let Owner { newest, units, entries, proven } = self;
        let narrow = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        Owner { newest, units, entries: narrow(entries), proven: narrow(proven) }
    }
}

/// The address that gives way to a newcomer whose owners are `own`, widest first, inside a network or (None) of all: the heaviest in
/// the heaviest. None if the newcomer's own network would then be as heavy.
pub fn heaviest_beside(
    own: &[Prefix],
    inside: Option<Prefix>,
    more: u32,
    held: impl Fn(&Prefix) -> u32,
    heaviest: impl Fn(Option<Prefix>) -> Option<Prefix>,
) -> Option<Prefix> {
    let mut around = inside;
    for own in own.iter().filter(|own| inside.is_none_or(|inside| own.bits() > inside.bits())) {
        let other = heaviest(around)?;
        if other != *own && held(&other) > held(own).saturating_add(more) {
            return Some(address_in(other, heaviest));
        }
        // Its own network can hold no more than now, but the shares inside it may be uneven.
        around = Some(*own);
    }
    None
}

/// The heaviest of the networks that are the next narrower ones inside another one, of those that hold anything.
pub fn heaviest_inside<W: Ord + Default>(around: Prefix, weight: impl Fn(&Prefix) -> W) -> Option<Prefix> {
    let inside = around.inside().map(|prefix| (weight(&prefix), prefix));
    let held = inside.filter(|(weight, _)| *weight > W::default());
    held.max_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, prefix)| prefix)
}

/// From a network to the heaviest address in it.
fn address_in(mut network: Prefix, heaviest: impl Fn(Option<Prefix>) -> Option<Prefix>) -> Prefix {
    while let Some(inside) = heaviest(Some(network)) {
        network = inside;
    }
    network
}

/// Keeps no row for a network that holds nothing.
fn put<K: std::hash::Hash + Eq>(table: &mut HashMap<K, Held>, key: K, held: Held) {
    if held.is_nothing() {
        table.remove(&key);
    } else {
        table.insert(key, held);
    }
}

#[cfg(test)]
mod tests;

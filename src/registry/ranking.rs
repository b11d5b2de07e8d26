//! Who has most, when the list is full: its owners by size, and the members of each in the order in which they were first
//! seen. A list with room to spare pays nothing for it. Indexing a million entries takes the better part of a second, and the
//! registry is locked meanwhile; so it begins when the list is nearly full, and every newcomer carries it on by a few
//! entries. From then on it is kept up, so that a flood of newcomers does not search the list each time.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::prefix::Prefix;

/// The end of a linked list. No vector gets as long.
const NONE: u32 = u32::MAX;
/// An owner with fewer entries makes room for nobody.
const SORTED_MIN: u32 = 2;

#[derive(Default)]
pub struct Ranking {
    owners: HashMap<Prefix, Owner>,
    /// Those with at least [`SORTED_MIN`] entries.
    by_size: BTreeSet<(u32, Prefix)>,
    /// For each of the registry's slots, its place among its owner's.
    members: Vec<Member>,
    /// Slots below this have been looked at.
    next: u32,
    /// What was found there and has not joined: when it was first seen, and its slot.
    found: Vec<(u64, u32)>,
    /// All slots have been looked at; what was found is sorted, the oldest last.
    is_sorted: bool,
    /// Slots of entries that came meanwhile, in their order.
    late: VecDeque<u32>,
}

#[derive(Clone, Copy)]
struct Owner {
    size: u32,
    /// The slot of the member that came last.
    newest: u32,
}

/// What is known of a slot.
#[derive(Clone, Copy, Default)]
enum Member {
    /// Nobody is there, or somebody who has yet to join.
    #[default]
    Unknown,
    /// Joins after all that were found.
    Late,
    /// The neighbours among the owner's entries.
    Joined { older: u32, newer: u32 },
}

impl Ranking {
    /// Goes on with what was there before: at most so many steps, each of which looks at one slot or lets one entry join.
    /// `first_seen_ms` and `owner` are None for a slot without an entry that counts.
    pub fn advance(
        &mut self,
        slots: usize,
        most: usize,
        first_seen_ms: impl Fn(u32) -> Option<u64>,
        owner: impl Fn(u32) -> Option<Prefix>,
    ) {
        for _ in 0..most {
            if self.is_sorted {
                let joins = match self.found.pop() {
                    // Where another has taken its place since, that one is late.
                    Some((_, at)) => Some(at).filter(|at| matches!(self.member(*at), Member::Unknown)),
                    None => {
                        self.found = Vec::new(); // its memory is not needed again
                        let Some(at) = self.late.pop_front() else { return };
                        Some(at).filter(|at| matches!(self.member(*at), Member::Late))
                    }
                };
                if let Some((at, owner)) = joins.and_then(|at| Some((at, owner(at)?))) {
                    self.link(at, owner);
                }
            } else if (self.next as usize) < slots {
                if let (Member::Unknown, Some(ms)) = (self.member(self.next), first_seen_ms(self.next)) {
                    self.found.push((ms, self.next));
                }
                self.next += 1;
            } else {
                self.found.sort_unstable_by(|a, b| b.cmp(a));
                self.is_sorted = true;
            }
        }
    }

    /// Whether everybody has joined.
    pub fn is_complete(&self) -> bool {
        self.is_sorted && self.found.is_empty() && self.late.is_empty()
    }

    fn member(&self, slot: u32) -> Member {
        self.members.get(slot as usize).copied().unwrap_or_default()
    }

    fn set_member(&mut self, slot: u32, member: Member) {
        if self.members.len() <= slot as usize {
            self.members.resize(slot as usize + 1, Member::Unknown);
        }
        if let Some(known) = self.members.get_mut(slot as usize) {
            *known = member;
        }
    }

    /// The entry in a slot is its owner's newest.
    pub fn join(&mut self, slot: u32, owner: Prefix) {
        if self.is_complete() {
            self.link(slot, owner);
        } else {
            self.set_member(slot, Member::Late);
            self.late.push_back(slot);
        }
    }

    fn link(&mut self, slot: u32, owner: Prefix) {
        let Owner { size, newest } = self.owners.get(&owner).copied().unwrap_or(Owner { size: 0, newest: NONE });
        self.set_newer(newest, slot);
        self.set_member(slot, Member::Joined { older: newest, newer: NONE });
        self.set(owner, size, Owner { size: size + 1, newest: slot });
    }

    /// The entry in a slot goes.
    pub fn leave(&mut self, slot: u32, owner: Prefix) {
        let Member::Joined { older, newer } = self.member(slot) else { return };
        let Some(Owner { size, newest }) = self.owners.get(&owner).copied() else { return };
        self.set_member(slot, Member::Unknown);
        self.set_newer(older, newer);
        if let Some(Member::Joined { older: known, .. }) = self.members.get_mut(newer as usize) {
            *known = older;
        }
        let newest = if newest == slot { older } else { newest };
        self.set(owner, size, Owner { size: size.saturating_sub(1), newest });
    }

    fn set_newer(&mut self, slot: u32, newer: u32) {
        if let Some(Member::Joined { newer: known, .. }) = self.members.get_mut(slot as usize) {
            *known = newer;
        }
    }

    fn set(&mut self, prefix: Prefix, old_size: u32, owner: Owner) {
        if old_size >= SORTED_MIN {
            self.by_size.remove(&(old_size, prefix));
        }
        if owner.size >= SORTED_MIN {
            self.by_size.insert((owner.size, prefix));
        }
        if owner.size == 0 {
            self.owners.remove(&prefix)
        } else {
            self.owners.insert(prefix, owner)
        };
    }

    /// The slot that makes room for a newcomer of this owner: the newest of the largest owner's. None where the newcomer's
    /// own would then be as large as that.
    pub fn makes_room_for(&self, newcomer: &Prefix) -> Option<u32> {
        let (size, largest) = self.by_size.last()?;
        let own_size = self.owners.get(newcomer).map_or(0, |owner| owner.size);
        let is_larger = *size > own_size + 1;
        self.owners.get(largest).filter(|_| is_larger).map(|owner| owner.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Networks;
    use proptest::prelude::*;

    fn owner(network: u8) -> Prefix {
        Prefix::all([192, 0, network, 1].into(), &Networks::default())[1]
    }

    /// A list of slots, each with when its entry was first seen and the network it is in, and its ranking.
    #[derive(Default)]
    struct List {
        slots: Vec<Option<(u64, u8)>>,
        ranking: Option<Ranking>,
        /// A slot was given to another while its entry had not joined, which costs the exact order.
        is_inexact: bool,
    }

    impl List {
        fn toggle(&mut self, slot: usize, now_ms: u64, network: u8) {
            self.slots.resize(self.slots.len().max(slot + 1), None);
            let ranking = self.ranking.as_mut();
            match self.slots[slot].take() {
                Some((_, network)) => {
                    ranking.into_iter().for_each(|ranking| ranking.leave(slot as u32, owner(network)));
                }
                None => {
                    self.is_inexact |=
                        ranking.as_ref().is_some_and(|ranking| matches!(ranking.member(slot as u32), Member::Late));
                    self.slots[slot] = Some((now_ms, network));
                    ranking.into_iter().for_each(|ranking| ranking.join(slot as u32, owner(network)));
                }
            }
        }

        fn advance(&mut self, most: usize) {
            let entry = |at: u32| self.slots.get(at as usize).copied().flatten();
            let first_seen_ms = |at| entry(at).map(|(ms, _)| ms);
            let ranking = self.ranking.get_or_insert_default();
            ranking.advance(self.slots.len(), most, first_seen_ms, |at| entry(at).map(|(_, network)| owner(network)));
        }

        /// The slots of a network, oldest first.
        fn members(&self, network: u8) -> Vec<u32> {
            let entries = (0u32..).zip(&self.slots).filter_map(|(at, entry)| Some((entry.as_ref()?, at)));
            let mut members: Vec<_> = entries.filter(|(entry, _)| entry.1 == network).collect();
            members.sort_unstable();
            members.into_iter().map(|(_, at)| at).collect()
        }
    }

    proptest! {
        /// Against a list that is searched from end to end. The ranking begins after some steps, and takes its time.
        #[test]
        fn the_newest_of_the_largest_makes_room(
            steps in proptest::collection::vec((0..40usize, 0..6u8), 1..300),
            begins in 0..200u64,
            most in 1..5usize,
        ) {
            let mut list = List::default();
            for (now_ms, &(slot, network)) in (0..).zip(&steps) {
                list.toggle(slot, now_ms, network);
                if now_ms >= begins {
                    list.advance(most);
                }
                let Some(ranking) = list.ranking.as_ref().filter(|ranking| ranking.is_complete()) else { continue };
                let goes = ranking.makes_room_for(&owner(network));
                let largest = (0..6).map(|network| list.members(network).len()).max().unwrap_or(0);
                if largest <= list.members(network).len() + 1 {
                    prop_assert_eq!(goes, None);
                } else {
                    let mut of_largest = (0..6).map(|network| list.members(network)).filter(|members| members.len() == largest);
                    let is_right = |members: Vec<u32>| {
                        goes.is_some_and(|goes| members.last() == Some(&goes) || list.is_inexact && members.contains(&goes))
                    };
                    prop_assert!(of_largest.any(is_right));
                }
            }
            list.advance(usize::MAX);
            for slot in 0..list.slots.len() {
                if list.slots[slot].is_some() {
                    list.toggle(slot, 1_000, 0);
                }
            }
            let ranking = list.ranking.unwrap();
            prop_assert!(ranking.is_complete() && ranking.owners.is_empty() && ranking.by_size.is_empty());
        }
    }
}

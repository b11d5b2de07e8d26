//! Who has most, while the list is full: its owners by size, and the members of each in the order in which they were first
//! seen. It is made when the list is full and somebody needs a place, so that a list that is not full pays nothing for it;
//! that takes a part of a second for a million entries, once. From then on it is kept up, so that a flood of newcomers does
//! not search the list each time.

use std::collections::{BTreeSet, HashMap};

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
}

#[derive(Clone, Copy)]
struct Owner {
    size: u32,
    /// The slot of the member that came last.
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

impl Ranking {
    /// The entry in a slot is its owner's newest.
    pub fn join(&mut self, slot: u32, owner: Prefix) {
        if self.members.len() <= slot as usize {
            self.members.resize(slot as usize + 1, Member::NOBODY);
        }
        let Owner { size, newest: older } = self.owners.get(&owner).copied().unwrap_or(Owner { size: 0, newest: NONE });
        if let Some(member) = self.members.get_mut(older as usize) {
            member.newer = slot;
        }
        if let Some(member) = self.members.get_mut(slot as usize) {
            *member = Member { older, newer: NONE };
        }
        self.set(owner, size, Owner { size: size + 1, newest: slot });
    }

    /// The entry in a slot goes.
    pub fn leave(&mut self, slot: u32, owner: Prefix) {
        let Some(Owner { size, newest }) = self.owners.get(&owner).copied() else { return };
        let Some(member) = self.members.get_mut(slot as usize) else { return };
        let Member { older, newer } = std::mem::replace(member, Member::NOBODY);
        if let Some(member) = self.members.get_mut(older as usize) {
            member.newer = newer;
        }
        if let Some(member) = self.members.get_mut(newer as usize) {
            member.older = older;
        }
        let newest = if newest == slot { older } else { newest };
        self.set(owner, size, Owner { size: size.saturating_sub(1), newest });
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

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn the_newest_of_the_largest_makes_room(steps in proptest::collection::vec((0..40u32, 0..6u8), 1..200)) {
            let mut ranking = Ranking::default();
            let mut known: Vec<(u32, u8)> = Vec::new();
            for (slot, network) in steps {
                match known.iter().position(|(taken, _)| *taken == slot) {
                    Some(at) => {
                        let (slot, network) = known.remove(at);
                        ranking.leave(slot, owner(network));
                    }
                    None => {
                        known.push((slot, network));
                        ranking.join(slot, owner(network));
                    }
                }
                let slots = |network: u8| known.iter().filter(move |known| known.1 == network).map(|known| known.0);
                let largest = (0..6).map(|network| slots(network).count()).max().unwrap_or(0);
                let goes = ranking.makes_room_for(&owner(network));
                if largest <= slots(network).count() + 1 {
                    prop_assert_eq!(goes, None);
                } else {
                    let is_largest = |network: &u8| slots(*network).count() == largest;
                    let mut newest = (0..6).filter(is_largest).filter_map(|network| slots(network).next_back());
                    prop_assert!(newest.any(|slot| goes == Some(slot)));
                }
            }
            for (slot, network) in known {
                ranking.leave(slot, owner(network));
            }
            prop_assert!(ranking.owners.is_empty() && ranking.by_size.is_empty());
        }
    }
}

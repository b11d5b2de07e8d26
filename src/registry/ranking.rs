//! An index of address blocks by number of entries, which decides what a full list evicts. Within a block, entries are
//! linked in the order in which they were first seen.
//!
//! Indexing a million entries takes most of a second, during which the registry would be locked. So indexing begins when
//! the list is nearly full, and every newcomer advances it by a few entries. Once complete, the index is kept up to date, so
//! that a flood of newcomers does not search the list each time. A list with room to spare has no index.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::prefix::Prefix;

/// The end of a linked list: no slot has this number.
const NONE: u32 = u32::MAX;
/// A block with fewer entries is never evicted from.
const SORTED_MIN: u32 = 2;

#[derive(Default)]
pub struct Ranking {
    blocks: HashMap<Prefix, Block>,
    /// The blocks with at least [`SORTED_MIN`] entries.
    by_size: BTreeSet<(u32, Prefix)>,
    /// The links of each of the registry's slots.
    members: Vec<Member>,
    /// Slots below this have been scanned.
    next: u32,
    /// Scanned entries that are not linked yet: when each was first seen, and its slot.
    found: Vec<(u64, u32)>,
    /// All slots have been scanned, and `found` is sorted, oldest last.
    is_sorted: bool,
    /// Slots of entries that were added during the scan, in order.
    late: VecDeque<u32>,
}

#[derive(Clone, Copy)]
struct Block {
    size: u32,
    /// The slot of the entry that was added last.
    newest: u32,
}

/// The state of a slot.
#[derive(Clone, Copy, Default)]
enum Member {
    /// Empty, or not linked yet.
    #[default]
    Unknown,
    /// Added during the scan: linked after everything in `found`.
    Late,
    /// Linked, with the neighbours in its block.
    Joined { older: u32, newer: u32 },
}

impl Ranking {
    /// Advances the indexing by up to `most` steps; each step scans one slot or links one entry. `first_seen_ms` and
    /// `limit_key` return None for a slot without an entry that counts.
    pub fn advance(
        &mut self,
        slots: usize,
        most: usize,
        first_seen_ms: impl Fn(u32) -> Option<u64>,
        limit_key: impl Fn(u32) -> Option<Prefix>,
    ) {
        for _ in 0..most {
            if self.is_sorted {
                let joins = match self.found.pop() {
                    // A slot that was reused since the scan is linked later, as `Late`.
                    Some((_, at)) => Some(at).filter(|at| matches!(self.member(*at), Member::Unknown)),
                    None => {
                        self.found = Vec::new(); // frees its memory
                        let Some(at) = self.late.pop_front() else { return };
                        Some(at).filter(|at| matches!(self.member(*at), Member::Late))
                    }
                };
                if let Some((at, limit_key)) = joins.and_then(|at| Some((at, limit_key(at)?))) {
                    self.link(at, limit_key);
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

    /// Whether every entry is linked.
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

    /// Adds a slot as the newest of its block.
    pub fn join(&mut self, slot: u32, limit_key: Prefix) {
        if self.is_complete() {
            self.link(slot, limit_key);
        } else {
            self.set_member(slot, Member::Late);
            self.late.push_back(slot);
        }
    }

    fn link(&mut self, slot: u32, limit_key: Prefix) {
        let Block { size, newest } = self.blocks.get(&limit_key).copied().unwrap_or(Block { size: 0, newest: NONE });
        self.set_newer(newest, slot);
        self.set_member(slot, Member::Joined { older: newest, newer: NONE });
        self.set(limit_key, size, Block { size: size + 1, newest: slot });
    }

    /// Removes a slot from its block.
    pub fn leave(&mut self, slot: u32, limit_key: Prefix) {
        let Member::Joined { older, newer } = self.member(slot) else { return };
        let Some(Block { size, newest }) = self.blocks.get(&limit_key).copied() else { return };
        self.set_member(slot, Member::Unknown);
        self.set_newer(older, newer);
        if let Some(Member::Joined { older: known, .. }) = self.members.get_mut(newer as usize) {
            *known = older;
        }
        let newest = if newest == slot { older } else { newest };
        self.set(limit_key, size, Block { size: size.saturating_sub(1), newest });
    }

    fn set_newer(&mut self, slot: u32, newer: u32) {
        if let Some(Member::Joined { newer: known, .. }) = self.members.get_mut(slot as usize) {
            *known = newer;
        }
    }

    fn set(&mut self, prefix: Prefix, old_size: u32, block: Block) {
        if old_size >= SORTED_MIN {
            self.by_size.remove(&(old_size, prefix));
        }
        if block.size >= SORTED_MIN {
            self.by_size.insert((block.size, prefix));
        }
        if block.size == 0 {
            self.blocks.remove(&prefix)
        } else {
            self.blocks.insert(prefix, block)
        };
    }

    /// The slot to evict for a newcomer of this block: the newest of the largest block. None if the newcomer's block would
    /// then be at least as large.
    pub fn to_evict_for(&self, newcomer: &Prefix) -> Option<u32> {
        let (size, largest) = self.by_size.last()?;
        let own_size = self.blocks.get(newcomer).map_or(0, |block| block.size);
        let is_larger = *size > own_size + 1;
        self.blocks.get(largest).filter(|_| is_larger).map(|block| block.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Networks;
    use proptest::prelude::*;

    fn limit_key(network: u8) -> Prefix {
        Prefix::all([192, 0, network, 1].into(), &Networks::default())[1]
    }

    /// A list of slots (when the entry was first seen, and its network) and its ranking.
    #[derive(Default)]
    struct List {
        slots: Vec<Option<(u64, u8)>>,
        ranking: Option<Ranking>,
        /// A slot was reused before its entry was linked, so the order within a block may be inexact.
        is_inexact: bool,
    }

    impl List {
        fn toggle(&mut self, slot: usize, now_ms: u64, network: u8) {
            self.slots.resize(self.slots.len().max(slot + 1), None);
            let ranking = self.ranking.as_mut();
            match self.slots[slot].take() {
                Some((_, network)) => {
                    ranking.into_iter().for_each(|ranking| ranking.leave(slot as u32, limit_key(network)));
                }
                None => {
                    self.is_inexact |=
                        ranking.as_ref().is_some_and(|ranking| matches!(ranking.member(slot as u32), Member::Late));
                    self.slots[slot] = Some((now_ms, network));
                    ranking.into_iter().for_each(|ranking| ranking.join(slot as u32, limit_key(network)));
                }
            }
        }

        fn advance(&mut self, most: usize) {
            let entry = |at: u32| self.slots.get(at as usize).copied().flatten();
            let first_seen_ms = |at| entry(at).map(|(ms, _)| ms);
            let ranking = self.ranking.get_or_insert_default();
            ranking
                .advance(self.slots.len(), most, first_seen_ms, |at| entry(at).map(|(_, network)| limit_key(network)));
        }

        /// The slots of a network, oldest first.
        fn members(&self, network: u8) -> Vec<u32> {
            let entries = (0u32..).zip(&self.slots).filter_map(|(at, entry)| Some((entry.as_ref()?, at)));
            let mut members: Vec<_> = entries.filter(|(entry, _)| entry.1 == network).collect();
            members.sort_unstable();
            members.into_iter().map(|(_, at)| at).collect()
        }
    }

    #[test]
    fn an_entry_that_leaves_is_never_evicted_again() {
        let mut list = List::default();
        (0..4).for_each(|slot| list.toggle(slot, slot as u64, 1));
        list.advance(usize::MAX);
        let evicted = |list: &List| list.ranking.as_ref().unwrap().to_evict_for(&limit_key(2));
        list.toggle(2, 4, 1); // from the middle
        assert_eq!(evicted(&list), Some(3));
        list.toggle(3, 5, 1);
        assert_eq!(evicted(&list), Some(1), "not 2, which has left");
    }

    proptest! {
        /// Compares the ranking, which begins after some steps and advances slowly, with a full search.
        #[test]
        fn the_newest_of_the_largest_block_is_evicted(
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
                let evicted = ranking.to_evict_for(&limit_key(network));
                let largest = (0..6).map(|network| list.members(network).len()).max().unwrap_or(0);
                if largest <= list.members(network).len() + 1 {
                    prop_assert_eq!(evicted, None);
                } else {
                    let mut of_largest = (0..6).map(|network| list.members(network)).filter(|members| members.len() == largest);
                    let is_right = |members: Vec<u32>| {
                        evicted.is_some_and(|slot| members.last() == Some(&slot) || list.is_inexact && members.contains(&slot))
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
            prop_assert!(ranking.is_complete() && ranking.blocks.is_empty() && ranking.by_size.is_empty());
        }
    }
}

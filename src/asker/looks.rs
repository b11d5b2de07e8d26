//! When to look at a query again whose facts are awaited or have to settle.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::Turn;

/// Times that come in their order go into a queue, the few that are earlier than its last one into a heap.
#[derive(Default)]
pub(super) struct Looks {
    in_order: VecDeque<Look>,
    others: BinaryHeap<Look>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Look {
    at_us: u64,
    turn: Turn,
}

/// The earliest is the greatest, for a heap.
impl Ord for Look {
    fn cmp(&self, other: &Look) -> Ordering {
        (other.at_us, other.turn.serial).cmp(&(self.at_us, self.turn.serial))
    }
}

impl PartialOrd for Look {
    fn partial_cmp(&self, other: &Look) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Looks {
    pub fn push(&mut self, at_us: u64, turn: Turn) {
        let look = Look { at_us, turn };
        if self.in_order.back().is_none_or(|last| last.at_us <= at_us) {
            self.in_order.push_back(look);
        } else {
            self.others.push(look);
        }
    }

    /// The earliest, if its time has come.
    pub fn pop(&mut self, now_us: u64) -> Option<Turn> {
        let next_us = self.next_us().filter(|at_us| *at_us <= now_us)?;
        let is_next = |look: &mut Look| look.at_us == next_us;
        self.in_order.pop_front_if(is_next).or_else(|| self.others.pop()).map(|look| look.turn)
    }

    /// When the earliest is due.
    pub fn next_us(&self) -> Option<u64> {
        let (first, other) = (self.in_order.front(), self.others.peek());
        first.into_iter().chain(other).map(|look| look.at_us).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn the_earliest_comes_first(times in proptest::collection::vec(0..50u64, 0..100)) {
            let mut looks = Looks::default();
            for (serial, at_us) in (0..).zip(&times) {
                looks.push(*at_us, Turn { serial, place: 0 });
            }
            let mut expected = times.clone();
            expected.sort_unstable();
            for now_us in 0..50 {
                while let Some(turn) = looks.pop(now_us) {
                    let at_us = times[turn.serial as usize];
                    proptest::prop_assert_eq!(at_us, now_us, "when it is due");
                    proptest::prop_assert_eq!(expected.remove(0), at_us);
                }
            }
            proptest::prop_assert_eq!((expected.len(), looks.next_us()), (0, None));
        }
    }
}

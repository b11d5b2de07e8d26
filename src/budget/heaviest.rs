//! The prefixes that cost most, in fixed memory.
//!
//! A charge is recorded with a chance of its cost: about once per `quantum` of each prefix's own cost, so that the table is
//! touched rarely, whatever the rate. A table that is in use by another thread is not waited for. When it is full, a new prefix
//! takes the place of the one that costs least and inherits its figures, as in the algorithm "Space-Saving": what costs most is
//! in the table, and its cost is never underestimated by more than a quantum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Kind;
use crate::model::Now;
use crate::prefix::Prefix;

const ENTRIES_MAX: usize = 256;
/// Costs count half after this time.
const HALF_LIFE_MS: u64 = 60_000;
/// One refusal of this many is recorded, for all of them.
const REFUSALS_SAMPLED: u64 = 16;

/// A prefix and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heavy {
    pub kind: Kind,
    pub prefix: Prefix,
    /// In the unit of its kind. Costs fade with time: a steady rate shows as 87 seconds of it.
    pub cost: u64,
    /// Requests that were refused. They fade, too.
    pub refused: u64,
    /// How much of the budget is used, in thousandths. More than 1,000 is debt.
    pub share: u64,
}

#[derive(Default)]
pub struct Heaviest {
    entries: Mutex<Vec<Entry>>,
    refusals: AtomicU64,
}

struct Entry {
    kind: Kind,
    prefix: Prefix,
    /// Thousandths of the kind's burst, which makes kinds comparable.
    weight: u64,
    cost: u64,
    refused: u64,
    at_ms: u64,
}

impl Entry {
    fn fade(&mut self, now_ms: u64) {
        let half_lives = now_ms.saturating_sub(self.at_ms) / HALF_LIFE_MS;
        if half_lives > 0 {
            let faded = |figure: u64| figure.checked_shr(half_lives as u32).unwrap_or(0);
            (self.weight, self.cost, self.refused) = (faded(self.weight), faded(self.cost), faded(self.refused));
            self.at_ms += half_lives * HALF_LIFE_MS;
        }
    }
}

impl Heaviest {
    /// Records a cost. `weight` is the same in thousandths of what the prefix may use at once.
    pub fn add(&self, kind: Kind, prefix: Prefix, now: Now, cost: u64, weight: u64) {
        self.change(kind, prefix, now, |entry| {
            entry.cost = entry.cost.saturating_add(cost);
            entry.weight = entry.weight.saturating_add(weight);
        });
    }

    /// Records a refusal, or leaves it to a later one.
    pub fn refuse(&self, kind: Kind, prefix: Prefix, now: Now) {
        if self.refusals.fetch_add(1, Ordering::Relaxed).is_multiple_of(REFUSALS_SAMPLED) {
            self.change(kind, prefix, now, |entry| {
                entry.refused = entry.refused.saturating_add(REFUSALS_SAMPLED);
                entry.weight = entry.weight.max(1_000);
            });
        }
    }

    fn change(&self, kind: Kind, prefix: Prefix, now: Now, change: impl FnOnce(&mut Entry)) {
        let Ok(mut entries) = self.entries.try_lock() else { return };
        let known = entries.iter_mut().find(|entry| (entry.kind, entry.prefix) == (kind, prefix));
        if let Some(entry) = known {
            entry.fade(now.mono_ms);
            return change(entry);
        }
        let mut new = Entry { kind, prefix, weight: 0, cost: 0, refused: 0, at_ms: now.mono_ms };
        if entries.len() < ENTRIES_MAX {
            change(&mut new);
            return entries.push(new);
        }
        entries.iter_mut().for_each(|entry| entry.fade(now.mono_ms));
        if let Some(least) = entries.iter_mut().min_by_key(|entry| entry.weight) {
            new.weight = least.weight;
            change(&mut new);
            *least = new;
        }
    }

    /// All entries, the heaviest first. `share` says how much of its budget a prefix has used.
    pub fn all(&self, now: Now, share: impl Fn(Kind, Prefix) -> u64) -> Vec<Heavy> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter_mut().for_each(|entry| entry.fade(now.mono_ms));
        entries.retain(|entry| entry.weight > 0);
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.weight));
        let heavy = |entry: &Entry| {
            let Entry { kind, prefix, cost, refused, .. } = *entry;
            Heavy { kind, prefix, cost, refused, share: share(kind, prefix) }
        };
        entries.iter().map(heavy).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn at(ms: u64) -> Now {
        Now { mono_ms: ms, unix_ms: 0 }
    }

    fn prefix(number: u32) -> Prefix {
        Prefix::narrowest(Ipv4Addr::from_bits(number).into())
    }

    fn all(heaviest: &Heaviest, ms: u64) -> Vec<(u64, u64)> {
        heaviest.all(at(ms), |_, _| 0).iter().map(|heavy| (heavy.cost, heavy.refused)).collect()
    }

    #[test]
    fn costs_add_up_and_fade() {
        let heaviest = Heaviest::default();
        heaviest.add(Kind::Lists, prefix(1), at(0), 1_000, 10);
        heaviest.add(Kind::Lists, prefix(1), at(1), 1_000, 10);
        heaviest.add(Kind::Searches, prefix(1), at(0), 7, 15);
        assert_eq!(all(&heaviest, 59_999), [(2_000, 0), (7, 0)], "by the share of what is allowed, not by the figure");
        assert_eq!(all(&heaviest, 60_000), [(1_000, 0), (3, 0)]);
        assert_eq!(all(&heaviest, 60_000 * 10), []);
    }

    #[test]
    fn costs_halve_each_minute_however_often_they_are_looked_at() {
        let heaviest = Heaviest::default();
        heaviest.add(Kind::Lists, prefix(1), at(5_000), 800, 100);
        for (ms, cost) in [(64_999, 800), (65_000, 400), (95_000, 400), (125_000, 200), (184_999, 200), (185_000, 100)]
        {
            assert_eq!(all(&heaviest, ms), [(cost, 0)], "at {ms}");
        }
    }

    #[test]
    fn what_costs_most_stays_among_many() {
        let heaviest = Heaviest::default();
        for round in 0..20u32 {
            heaviest.add(Kind::Lists, prefix(1), at(round.into()), 500, 100);
            for number in 0..1_000 {
                heaviest.add(Kind::Lists, prefix(1_000 + round * 1_000 + number), at(round.into()), 5, 1);
            }
        }
        let heavy = heaviest.all(at(20), |_, _| 3);
        assert_eq!((heavy.len(), heavy[0].prefix, heavy[0].cost, heavy[0].share), (ENTRIES_MAX, prefix(1), 10_000, 3));
    }

    #[test]
    fn refusals_are_sampled() {
        let heaviest = Heaviest::default();
        for _ in 0..1_000 {
            heaviest.refuse(Kind::Searches, prefix(1), at(0));
        }
        let refused = heaviest.all(at(0), |_, _| 0)[0].refused;
        assert!((980..=1_020).contains(&refused), "{refused}");
    }
}

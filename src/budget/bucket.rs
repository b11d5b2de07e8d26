//! Token buckets by address prefix, in fixed memory and without locks.
//!
//! A bucket is one number in a table, indexed by a keyed hash of the prefix. Prefixes that collide share one bucket, so a
//! collision makes a budget smaller, never larger. Without the key, an attacker cannot choose a collision.

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher13;

use crate::model::Now;
use crate::prefix::{LEVELS_MAX, Networks, Prefix};

/// Half a megabyte in all.
const PLACES: usize = 1 << 16;
/// Costs are counted in this fraction (1/N) of their unit: every factor of a wide prefix divides it.
const FRACTION: u64 = 16;
/// A debt is never larger than this many bursts, so that it is paid off in bounded time.
const DEBT_MAX: u64 = 4;

/// The budget of one address (IPv6 /64). Wider networks get more, see [`Prefix::limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub burst: u64,
    pub per_second: u64,
}

/// The buckets of all prefixes, for one kind of cost.
pub struct Table {
    rate: Rate,
    key: [u64; 2],
    places: Box<[AtomicU64]>,
    /// The budget of all together: its rate is its burst, too.
    all: Option<(AtomicU64, u64)>,
}

/// A bucket in one number: the time, in cost at `per_second`, at which the bucket would be full. The bucket is full when that
/// time has passed, and empty when it is `burst` ahead.
///
/// Prefixes of all widths share the table, so they share the rate, and a wide one is charged a fraction of each cost instead.
pub struct Bucket<'a> {
    level: &'a AtomicU64,
    /// In fractions of the unit of costs, see [`Bucket::scaled`].
    rate: Rate,
    /// A cost is multiplied by this.
    scale: u64,
    /// None: the bucket of all together.
    pub prefix: Option<Prefix>,
}

pub type Buckets<'a> = ArrayVec<Bucket<'a>, { LEVELS_MAX + 1 }>;

impl Table {
    /// `key` must be random and secret. `all_per_second`: the budget of all together, if that is limited.
    pub fn new(rate: Rate, all_per_second: Option<u64>, key: [u64; 2]) -> Table {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Table { rate, key, places, all: all_per_second.map(|per_second| (AtomicU64::new(0), per_second)) }
    }

    /// The buckets that an address is charged to: one for each of its prefixes, unless it is exempt, and that of all.
    pub fn buckets(&self, ip: IpAddr, exempt: &Networks) -> Buckets<'_> {
        let mut buckets = Buckets::new();
        if !exempt.contains(ip) {
            let of_prefix = |prefix: Prefix| {
                let level = self.places.get(self.place(&prefix))?;
                let Rate { burst, per_second } = self.rate;
                let rate = Rate { burst: burst * FRACTION, per_second: per_second * FRACTION };
                let scale = FRACTION / u64::from(prefix.limit(1)).max(1);
                Some(Bucket { level, rate, scale, prefix: Some(prefix) })
            };
            buckets.extend(Prefix::all(ip, &Networks::NONE).into_iter().filter_map(of_prefix));
        }
        if let Some((level, per_second)) = &self.all {
            let rate = Rate { burst: *per_second, per_second: *per_second };
            buckets.push(Bucket { level, rate, scale: 1, prefix: None });
        }
        buckets
    }

    fn place(&self, prefix: &Prefix) -> usize {
        place(self.key, prefix, PLACES)
    }
}

/// The index of a prefix in a table of so many places.
pub fn place(key: [u64; 2], prefix: &Prefix, places: usize) -> usize {
    let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
    match prefix.network() {
        IpAddr::V4(ip) => hasher.write_u64(u64::from(ip.to_bits()) << 8 | u64::from(prefix.bits())),
        IpAddr::V6(ip) => {
            hasher.write_u128(ip.to_bits());
            hasher.write_u8(prefix.bits());
        }
    }
    hasher.finish() as usize % places
}

/// Charges all buckets, or none if one has too little left.
pub fn charge_all(buckets: &[Bucket<'_>], now: Now, cost: u64, quarters_kept: u64) -> bool {
    for (number, bucket) in buckets.iter().enumerate() {
        if !bucket.charge(now, cost, quarters_kept) {
            buckets.iter().take(number).for_each(|charged| charged.refund(cost));
            return false;
        }
    }
    true
}

impl Bucket<'_> {
    /// What is left apart from the reserved quarters.
    pub fn left(&self, now: Now, quarters_kept: u64) -> u64 {
        self.room(quarters_kept).saturating_sub(self.used(now)) / self.scale
    }

    /// How much of it is used, in thousandths of the burst: more than 1,000 is debt.
    pub fn share(&self, now: Now) -> u64 {
        self.used(now).saturating_mul(1_000) / self.rate.burst.max(1)
    }

    /// Whole seconds, at least one, until this much is left.
    pub fn wait_s(&self, now: Now, cost: u64) -> u64 {
        let needed = (self.used(now) + self.scaled(cost)).saturating_sub(self.rate.burst);
        needed.div_ceil(self.rate.per_second.max(1)).max(1)
    }

    /// Charges a cost that has arisen already. It may become a debt. Returns what was charged: less if the debt would be too large.
    pub fn charge_debt(&self, now: Now, cost: u64) -> u64 {
        let (axis, scaled) = (self.axis(now), self.scaled(cost));
        let most = axis + DEBT_MAX * self.rate.burst;
        let level_after = |level: u64| level.max(axis).saturating_add(scaled).min(most.max(level));
        let before = self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| Some(level_after(level)));
        let before = before.unwrap_or_else(|level| level); // always Ok
        cost.min((level_after(before) - before.max(axis)) / self.scale)
    }

    /// If a charge of this cost has just crossed a multiple of one n-th of the burst: the cost that this stands for, and the
    /// same in thousandths of the burst.
    pub fn crossed(&self, cost: u64, n: u64) -> Option<(u64, u64)> {
        let (level, scaled) = (self.level.load(Ordering::Relaxed), self.scaled(cost));
        let quantum = (self.rate.burst / n).max(1);
        let recorded = scaled.max(quantum);
        (level / quantum != level.saturating_sub(scaled) / quantum)
            .then(|| (recorded / self.scale, recorded.saturating_mul(1_000) / self.rate.burst.max(1)))
    }

    fn charge(&self, now: Now, cost: u64, quarters_kept: u64) -> bool {
        let (axis, room, cost) = (self.axis(now), self.room(quarters_kept), self.scaled(cost));
        let charged = |level: u64| {
            let level = level.max(axis).saturating_add(cost);
            (level.saturating_sub(axis) <= room).then_some(level)
        };
        self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged).is_ok()
    }

    fn refund(&self, cost: u64) {
        self.level.fetch_sub(self.scaled(cost), Ordering::Relaxed);
    }

    fn used(&self, now: Now) -> u64 {
        self.level.load(Ordering::Relaxed).saturating_sub(self.axis(now))
    }

    fn scaled(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.scale)
    }

    fn room(&self, quarters_kept: u64) -> u64 {
        self.rate.burst - self.rate.burst / 4 * quarters_kept
    }

    fn axis(&self, now: Now) -> u64 {
        let (seconds, ms) = (now.mono_ms / 1_000, now.mono_ms % 1_000);
        seconds * self.rate.per_second + ms * self.rate.per_second / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 1_000, per_second: 100 };

    fn at(ms: u64) -> Now {
        Now { mono_ms: 1_000_000 + ms, unix_ms: 0 }
    }

    fn table(rate: Rate, all: Option<u64>) -> Table {
        Table::new(rate, all, [1, 2])
    }

    fn take(table: &Table, ms: u64, ip: &str, cost: u64) -> bool {
        charge_all(&table.buckets(ip.parse().unwrap(), &Networks::default()), at(ms), cost, 0)
    }

    #[test]
    fn an_address_has_its_burst_and_then_its_rate() {
        let table = table(RATE, None);
        for (ms, cost, taken) in [(0, 900, true), (0, 101, false), (0, 100, true), (0, 1, false), (10, 1, true)] {
            assert_eq!(take(&table, ms, "192.0.2.1", cost), taken, "{cost} at {ms}");
        }
        assert!(!take(&table, 5_000, "192.0.2.1", 501) && take(&table, 5_010, "192.0.2.1", 499));
        assert!(take(&table, 0, "198.51.100.1", 1_000), "another address");
    }

    #[test]
    fn wide_networks_have_their_multiple() {
        for (address, count) in [("192.0.2.", 8), ("2001:db8:0:", 4)] {
            let table = table(RATE, None);
            let ip = |number: u32| {
                if address.ends_with('.') { format!("{address}{number}") } else { format!("{address}{number:x}::1") }
            };
            let taken = (1..=count + 4).filter(|number| take(&table, 0, &ip(*number), 1_000)).count() as u32;
            assert_eq!(taken, count, "{address}");
        }
        let table = table(RATE, None);
        let taken = (0..40).filter(|number| take(&table, 0, &format!("2001:db8:0:{number:x}00::1"), 1_000)).count();
        assert_eq!(taken, 16, "a /48");
    }

    #[test]
    fn wide_networks_have_their_multiple_of_small_costs_too() {
        let table = table(RATE, None);
        let taken = (0..20_000).filter(|number| take(&table, 0, &format!("192.0.2.{}", number % 250), 1)).count();
        assert_eq!(taken, 8_000);
    }

    #[test]
    fn a_refused_charge_leaves_no_trace() {
        let table = table(RATE, Some(500));
        assert!(!take(&table, 0, "192.0.2.1", 501));
        let buckets = table.buckets([192, 0, 2, 1].into(), &Networks::default());
        assert_eq!(buckets.iter().map(|bucket| bucket.left(at(0), 0)).collect::<Vec<_>>(), [1_000, 8_000, 500]);
    }

    #[test]
    fn a_debt_is_bounded_and_paid_off() {
        let table = table(RATE, None);
        let buckets = table.buckets([192, 0, 2, 1].into(), &Networks::default());
        buckets[0].charge_debt(at(0), 500);
        assert_eq!((buckets[0].share(at(0)), buckets[0].wait_s(at(0), 1)), (500, 1));
        buckets[0].charge_debt(at(0), 1_000_000);
        assert_eq!(buckets[0].share(at(0)), 4_000);
        assert_eq!((buckets[0].left(at(0), 0), buckets[0].wait_s(at(0), 1)), (0, 31));
        assert_eq!(buckets[0].left(at(30_010), 0), 1);
        buckets[0].charge_debt(at(0), u64::MAX);
        assert_eq!(buckets[0].share(at(0)), 4_000, "an earlier time, or any cost, makes it no larger");
    }

    #[test]
    fn a_charge_is_recorded_when_it_crosses_a_part_of_the_burst() {
        let table = table(RATE, None);
        let [address, network] = &table.buckets([192, 0, 2, 1].into(), &Networks::default())[..] else { panic!("two") };
        let charge = |bucket: &Bucket<'_>, cost| {
            bucket.charge_debt(at(0), cost);
            bucket.crossed(cost, 10) // parts of 100
        };
        assert_eq!(charge(address, 60), None);
        assert_eq!(charge(address, 60), Some((100, 100)), "for the part, and in thousandths of the burst");
        assert_eq!(charge(address, 250), Some((250, 250)), "or for all of a charge that is larger");
        assert_eq!(charge(network, 8 * 99), None);
        assert_eq!(charge(network, 8), Some((800, 100)), "a /24 has eight times the budget");
    }

    #[test]
    fn an_exempt_network_has_only_the_budget_of_all() {
        let exempt = Networks::new(&["192.0.2.0/24".parse().unwrap()]);
        let table = table(RATE, Some(500));
        assert_eq!(table.buckets([192, 0, 2, 1].into(), &exempt).len(), 1);
        assert_eq!(table.buckets([192, 0, 3, 1].into(), &exempt).len(), 3);
    }
}

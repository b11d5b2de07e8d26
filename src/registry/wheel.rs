//! A timer wheel for the ends of lives: a ring of buckets, one per tick. Adding is O(1) and a tick costs only what is in
//! its bucket, so the cost of expiry does not grow with the number of servers. Extending a life moves nothing: the registry
//! checks the actual end when the bucket is due, and queues the item again.

/// The resolution of the wheel: how late an expiry may be noticed.
pub const TICK_MS: u64 = 250;
/// Ticks in the ring. An end further away goes into the last bucket and is queued again from there.
const RING: Tick = 4096;

/// Number of ticks since the clock's start; a u32 lasts for 34 years.
pub type Tick = u32;

fn tick_at(ms: u64) -> Tick {
    Tick::try_from(ms / TICK_MS).unwrap_or(Tick::MAX - RING)
}

pub struct Wheel {
    buckets: Vec<Vec<u32>>,
    /// The first tick that has not been emptied yet.
    next: Tick,
}

impl Wheel {
    pub fn new(now_ms: u64) -> Wheel {
        Wheel { buckets: std::iter::repeat_with(Vec::new).take(RING as usize).collect(), next: tick_at(now_ms) }
    }

    /// The tick at which an item with this end is due.
    pub fn tick_for(&self, end_ms: u64) -> Tick {
        tick_at(end_ms.saturating_add(TICK_MS - 1)).clamp(self.next, self.next + RING - 1)
    }

    pub fn add(&mut self, tick: Tick, item: u32) {
        if let Some(bucket) = self.buckets.get_mut((tick % RING) as usize) {
            bucket.push(item);
        }
    }

    /// Takes one due item and its tick.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<(Tick, u32)> {
        let now = tick_at(now_ms);
        while self.next <= now {
            let bucket = self.buckets.get_mut((self.next % RING) as usize)?;
            if let Some(item) = bucket.pop() {
                return Some((self.next, item));
            }
            // Give back the memory of a burst; keep the little that an ordinary bucket needs.
            bucket.shrink_to(64);
            self.next += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_due_at_its_tick_and_not_before() {
        let mut wheel = Wheel::new(1_000);
        let tick = wheel.tick_for(1_300);
        wheel.add(tick, 7);
        assert_eq!(wheel.pop_due(1_499), None);
        assert_eq!(wheel.pop_due(1_500), Some((tick, 7)));
        assert_eq!(wheel.pop_due(1_500), None);
    }

    #[test]
    fn past_ends_are_due_next_and_far_ends_are_due_early() {
        let mut wheel = Wheel::new(10_000);
        let past = wheel.tick_for(3);
        wheel.add(past, 1);
        let far = wheel.tick_for(u64::MAX / 2);
        wheel.add(far, 2);
        assert_eq!(wheel.pop_due(10_000), Some((past, 1)));
        assert_eq!(wheel.pop_due(10_000 + u64::from(RING - 1) * TICK_MS), Some((far, 2)));
    }

    #[test]
    fn an_end_beyond_the_clocks_range_is_due_late_even_after_years() {
        let year_ms = 365 * 24 * 3_600_000;
        let mut wheel = Wheel::new(year_ms);
        let far = wheel.tick_for(u64::MAX);
        wheel.add(far, 1);
        assert_eq!(wheel.pop_due(year_ms + u64::from(RING - 2) * TICK_MS), None);
        assert_eq!(wheel.pop_due(year_ms + u64::from(RING - 1) * TICK_MS), Some((far, 1)));
    }

    #[test]
    fn an_emptied_bucket_can_be_filled_again_within_its_tick() {
        let mut wheel = Wheel::new(0);
        assert_eq!(wheel.pop_due(999), None);
        let tick = wheel.tick_for(999);
        wheel.add(tick, 3);
        assert_eq!(wheel.pop_due(999), None);
        assert_eq!(wheel.pop_due(1_000), Some((tick, 3)));
    }
}

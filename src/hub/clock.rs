//! The program's clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime};

use crate::model::Now;

/// The program's clock. Nothing below the hub reads another one.
///
/// Its time of day never goes back by a small correction, because proofs are ordered by it. It follows the system clock
/// forwards at once and backwards slowly. If the two are far apart, it takes over the system clock's time.
pub struct Clock {
    start: Instant,
    offset_ms: AtomicI64,
    slewed_at_ms: AtomicI64,
}

/// A larger step is taken over at once: the time before it was wrong.
const STEP_MS: i64 = 60_000;
/// A small correction backwards takes this many times its length.
const SLEW: i64 = 10;

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { start: Instant::now(), offset_ms: AtomicI64::new(unix_ms()), slewed_at_ms: AtomicI64::new(0) }
    }

    /// Microseconds of the monotonic clock, for round trips.
    pub fn mono_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    pub fn now(&self) -> Now {
        self.at(self.start.elapsed().as_millis() as i64, unix_ms())
    }

    fn at(&self, mono_ms: i64, wall_ms: i64) -> Now {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        let ahead_ms = mono_ms + offset_ms - wall_ms;
        let back_ms = if (0..=STEP_MS).contains(&ahead_ms) {
            let since_ms = mono_ms - self.slewed_at_ms.load(Ordering::Relaxed);
            (since_ms / SLEW).clamp(0, ahead_ms)
        } else {
            ahead_ms
        };
        if back_ms != 0 || ahead_ms == 0 {
            self.offset_ms.store(offset_ms - back_ms, Ordering::Relaxed);
            self.slewed_at_ms.store(mono_ms, Ordering::Relaxed);
        }
        Now { mono_ms: mono_ms as u64, unix_ms: (mono_ms + offset_ms - back_ms).max(0) as u64 }
    }
}

/// The system's time of day.
fn unix_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_follows_forwards_at_once_and_backwards_slowly() {
        let clock = Clock::new();
        let t = clock.offset_ms.load(Ordering::Relaxed);
        let at = |mono_ms: i64, wall_ms: i64| clock.at(mono_ms, t + wall_ms).unix_ms as i64 - t;
        assert_eq!(at(1_000, 1_000), 1_000);
        assert_eq!(at(2_000, 9_000), 9_000, "set forwards by 7 s");
        assert_eq!(at(3_000, 7_000), 9_900, "set back by 3 s: time goes on, a tenth slower");
        let mut before = 9_900;
        for mono_ms in (3_100..60_000).step_by(100) {
            let now = at(mono_ms, mono_ms + 4_000);
            assert!((before..=before + 100).contains(&now), "{before} then {now}");
            before = now;
        }
        assert_eq!(before, 59_900 + 4_000, "and has caught up");
        assert_eq!(at(60_000, -500_000), -500_000, "far apart: the system is right");
    }
}

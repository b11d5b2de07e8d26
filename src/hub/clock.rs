//! The program's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use crate::model::Now;

/// The program's clock. Nothing below the hub reads another one.
///
/// Its time of day never goes back by a small correction, because proofs are ordered by it. It follows the system clock
/// forwards at once and backwards slowly. If the two are far apart, it takes over the system clock's time.
pub struct Clock {
    source: Source,
    offset_ms: AtomicI64,
    slewed_at_ms: AtomicI64,
}

/// The clocks below this one.
enum Source {
    /// The system's, and the time when the program started.
    System(Instant),
    Virtual(Arc<VirtualTime>),
}

/// A time that is set instead of read, for simulations.
#[derive(Debug, Default)]
pub struct VirtualTime {
    /// What a monotonic clock would show, in microseconds.
    pub mono_us: AtomicU64,
    /// What the system's time of day would be, in milliseconds since 1970.
    pub unix_ms: AtomicI64,
}

impl Source {
    fn mono_us(&self) -> u64 {
        match self {
            Source::System(start) => start.elapsed().as_micros() as u64,
            Source::Virtual(time) => time.mono_us.load(Ordering::Relaxed),
        }
    }

    fn unix_ms(&self) -> i64 {
        match self {
            Source::System(_) => unix_ms(),
            Source::Virtual(time) => time.unix_ms.load(Ordering::Relaxed),
        }
    }
}

/// A larger step is taken over at once: the time before it was wrong.
const STEP_MS: i64 = 60_000;
/// A small correction backwards takes this many times its length.
const SLEW: i64 = 10;

impl Clock {
    pub(super) fn new() -> Clock {
        Clock::over(Source::System(Instant::now()))
    }

    /// A clock over a time that the caller sets.
    pub(super) fn of(time: Arc<VirtualTime>) -> Clock {
        Clock::over(Source::Virtual(time))
    }

    fn over(source: Source) -> Clock {
        let mono_ms = (source.mono_us() / 1_000) as i64;
        let offset_ms = AtomicI64::new(source.unix_ms() - mono_ms);
        Clock { source, offset_ms, slewed_at_ms: AtomicI64::new(mono_ms) }
    }

    /// Microseconds of the monotonic clock, for round trips.
    pub fn mono_us(&self) -> u64 {
        self.source.mono_us()
    }

    pub fn now(&self) -> Now {
        self.at((self.source.mono_us() / 1_000) as i64, self.source.unix_ms())
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
        // All threads read these: they are written only when they change.
        if back_ms != 0 {
            self.offset_ms.store(offset_ms - back_ms, Ordering::Relaxed);
        }
        if (back_ms != 0 || ahead_ms == 0) && self.slewed_at_ms.load(Ordering::Relaxed) != mono_ms {
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

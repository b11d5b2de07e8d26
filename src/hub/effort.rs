//! What a piece of work takes of a core.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant; // in a simulation, the simulated time

/// Work of one thread that has begun. A share of a core counts by this: while the thread waits for the processor, on a busy
/// machine, others use it.
pub(super) struct Effort {
    began: Instant,
    /// The thread's processor time until then; None if the system does not tell.
    used: Option<Duration>,
}

impl Effort {
    pub(super) fn begin() -> Effort {
        Effort { began: Instant::now(), used: used() }
    }

    /// The processor time so far, on the thread that it began on. It is never longer than the time that has passed.
    pub(super) fn took(&self) -> Duration {
        let worked = self.used.zip(used()).map(|(before, now)| now.saturating_sub(before));
        let passed = self.began.elapsed();
        worked.map_or(passed, |worked| worked.min(passed))
    }
}

/// The processor time of this thread.
fn used() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}

/// Works for so much processor time, for tests.
#[cfg(test)]
pub(super) fn work(long: Duration) {
    let effort = Effort::begin();
    let mut sum = 0u64;
    while effort.took() < long {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_an_effort_and_waiting_for_another_thread_is_none() {
        const LONG: Duration = Duration::from_millis(10);
        let waiting = Effort::begin();
        std::thread::spawn(|| work(LONG)).join().unwrap();
        assert!(waiting.took() < LONG / 2, "{:?}", waiting.took());
        work(LONG);
        assert!(waiting.took() >= LONG, "{:?}", waiting.took());
    }
}

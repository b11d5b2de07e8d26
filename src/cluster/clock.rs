//! The store's clock. A node measures it with its own keep-alives and stores it as an offset from its monotonic clock, so
//! that stepping the wall clock changes nothing. No socket, no clock.

use crate::model::{Now, SharedTime};

/// Clocks that differ by no more than this count as equal.
pub const SKEW_MAX_MS: u64 = 2_000;

/// The offset between this node's wall clock and the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// Store's time minus this node's; 0 while they differ by at most [`SKEW_MAX_MS`].
    pub ms: i64,
}

impl Offset {
    pub fn at(time: SharedTime, now: Now) -> Offset {
        let ms = time.offset_ms(now);
        Offset { ms: if ms.unsigned_abs() > SKEW_MAX_MS { ms } else { 0 } }
    }

    pub fn to_store(self, ms: u64) -> u64 {
        ms.saturating_add_signed(self.ms)
    }

    pub fn to_here(self, ms: u64) -> u64 {
        ms.saturating_add_signed(-self.ms)
    }
}

/// Estimates the store's time from one of our own records: put at `put_mono_ms`, received back at `seen`, and stored in
/// between, at `created_ms` by the store's clock. The estimate `before` (at first, this node's wall clock) moves only as far
/// as these bounds require.
pub fn measured(before: SharedTime, put_mono_ms: u64, created_ms: u64, seen: Now) -> SharedTime {
    let ahead_of = |mono_ms: u64| (created_ms as i64).saturating_sub(mono_ms as i64);
    let (least, most) = (ahead_of(seen.mono_ms), ahead_of(put_mono_ms.min(seen.mono_ms)));
    let own = (seen.unix_ms as i64).saturating_sub(seen.mono_ms as i64);
    SharedTime { ahead_of_mono_ms: Some(before.ahead_of_mono_ms.unwrap_or(own).clamp(least, most)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_760_000_000_000;
    const UNKNOWN: SharedTime = SharedTime { ahead_of_mono_ms: None };

    /// A node that started at T by its own clock.
    fn at(ms: u64) -> Now {
        Now { mono_ms: ms, unix_ms: T + ms }
    }

    fn offset_ms(time: SharedTime, ms: u64) -> i64 {
        Offset::at(time, at(ms)).ms
    }

    #[test]
    fn the_stores_time_is_estimated_from_a_record_that_came_back() {
        let measured = |created_ms: u64, seen_ms| measured(UNKNOWN, 0, created_ms, at(seen_ms));
        assert_eq!(measured(T + 20, 50).unix_ms(at(60)), T + 60, "nothing proves our clock wrong");
        assert_eq!(offset_ms(measured(T + 1_900, 10), 10), 0, "within the skew");
        assert_eq!(measured(T + 1_900, 10).unix_ms(at(10)), T + 1_900, "but known exactly");
        assert_eq!(offset_ms(measured(T + 9_000, 9_500), 9_500), 0, "the round trip was slow, the clock is right");
        assert_eq!(offset_ms(measured(T + 3_600_010, 20), 20), 3_599_990);
        assert_eq!(offset_ms(measured(T - 3_600_000, 20), 20), -3_600_000);
        assert_eq!(offset_ms(UNKNOWN, 20), 0);
    }

    #[test]
    fn a_later_measurement_corrects_only_what_it_proves_wrong() {
        let first = measured(UNKNOWN, 0, T + 60_000, at(10));
        let slow = measured(first, 5_000, T + 66_000, at(8_000));
        assert_eq!(slow, first, "a record with a round trip of 3 s proves nothing new");
        let drifted = measured(first, 5_000, T + 65_500, at(5_010));
        assert_eq!(drifted.unix_ms(at(5_010)), T + 65_500);
    }

    #[test]
    fn stepping_the_wall_clock_does_not_move_the_stores_time() {
        let time = measured(UNKNOWN, 0, T, at(10));
        for step_ms in [-3_600_000, 3_600_000i64] {
            let now = Now { mono_ms: 20_000, unix_ms: (T + 20_000).saturating_add_signed(step_ms) };
            assert_eq!(time.unix_ms(now), T + 20_000);
            let offset = Offset::at(time, now);
            assert_eq!(offset.to_store(now.unix_ms), T + 20_000, "immediately, not with the next keep-alive");
            assert_eq!(offset.to_here(T + 20_000), now.unix_ms);
        }
    }
}

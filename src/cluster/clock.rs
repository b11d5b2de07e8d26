//! What time it is in the store. A node measures it with its own signs of life and keeps it as a distance from its
//! monotonic clock, so that a time of day that is set anew changes nothing. No socket, no clock.

use crate::model::{Now, SharedTime};

/// Two clocks that differ by less count as the same.
pub const SKEW_MAX_MS: u64 = 2_000;

/// How this node's time of day stands to the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    /// What has to be added to this node's time to get the store's; 0 while the two are nearly the same.
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

/// The store's time, from one of our own records that came back: put at `put_mono_ms` and seen again at `seen`, taken by
/// the store at `created_ms` by its own clock, so somewhere in between. What was known before changes only as far as that
/// proves it wrong; at first, that is this node's own time of day.
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
    fn the_time_of_the_store_follows_from_a_record_that_came_back() {
        let measured = |created_ms: u64, seen_ms| measured(UNKNOWN, 0, created_ms, at(seen_ms));
        assert_eq!(measured(T + 20, 50).unix_ms(at(60)), T + 60, "nothing says that our clock is wrong");
        assert_eq!(offset_ms(measured(T + 1_900, 10), 10), 0, "within the skew");
        assert_eq!(measured(T + 1_900, 10).unix_ms(at(10)), T + 1_900, "and known exactly all the same");
        assert_eq!(offset_ms(measured(T + 9_000, 9_500), 9_500), 0, "it was only on its way for long");
        assert_eq!(offset_ms(measured(T + 3_600_010, 20), 20), 3_599_990);
        assert_eq!(offset_ms(measured(T - 3_600_000, 20), 20), -3_600_000);
        assert_eq!(offset_ms(UNKNOWN, 20), 0);
    }

    #[test]
    fn a_later_measurement_corrects_only_what_it_proves_wrong() {
        let first = measured(UNKNOWN, 0, T + 60_000, at(10));
        let slow = measured(first, 5_000, T + 66_000, at(8_000));
        assert_eq!(slow, first, "a record that was on its way for 3 s says nothing new");
        let drifted = measured(first, 5_000, T + 65_500, at(5_010));
        assert_eq!(drifted.unix_ms(at(5_010)), T + 65_500);
    }

    #[test]
    fn a_clock_that_is_set_anew_moves_nothing() {
        let time = measured(UNKNOWN, 0, T, at(10));
        for step_ms in [-3_600_000, 3_600_000i64] {
            let now = Now { mono_ms: 20_000, unix_ms: (T + 20_000).saturating_add_signed(step_ms) };
            assert_eq!(time.unix_ms(now), T + 20_000);
            let offset = Offset::at(time, now);
            assert_eq!(offset.to_store(now.unix_ms), T + 20_000, "at once, not with the next sign of life");
            assert_eq!(offset.to_here(T + 20_000), now.unix_ms);
        }
    }
}

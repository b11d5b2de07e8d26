//! The notices that wait for one address: bounded, one batch at a time, retried with growing pauses. No socket, no clock.

use std::collections::VecDeque;
use std::sync::Arc;

use super::notice::Notice;

/// Upper bound on the notices that wait. When there are more, the oldest are dropped.
pub const WAITING_MAX: usize = 256;
/// Upper bound on the notices of one request.
pub const BATCH_MAX: usize = 20;
/// The least time between two requests.
const PACE_MS: u64 = 2_000;
/// The pause after the first failure. It doubles with each, up to the longest.
const PAUSE_MS: u64 = 2_000;
const PAUSE_MS_MAX: u64 = 300_000;
/// The longest that the other side can make us wait.
const AFTER_MS_MAX: u64 = 3_600_000;
/// A batch is given up when it has been tried for this long.
const GIVE_UP_MS: u64 = 3_600_000;

/// Notices that are sent in one request.
#[derive(Debug, PartialEq)]
pub struct Batch {
    /// The same for every try.
    pub number: u64,
    pub notices: Vec<Notice>,
    /// Notices before these that were dropped.
    pub dropped: u64,
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Sent,
    /// To be tried again: why, and after how many milliseconds if the other side said so.
    Failed(String, Option<u64>),
    /// It will not be accepted later either.
    Refused(String),
}

/// What a try has changed: what to count and to log.
#[derive(Debug, Default, PartialEq)]
pub struct Report {
    pub sent: u64,
    /// Notices that were given up.
    pub failed: u64,
    /// The first failure after a success.
    pub begins_to_fail: Option<String>,
    pub works_again: bool,
}

#[derive(Default)]
pub struct Queue {
    waiting: VecDeque<Notice>,
    /// Dropped since the last batch.
    dropped: u64,
    batches: u64,
    /// The batch that is tried, and when it was tried first.
    trying: Option<(Arc<Batch>, u64)>,
    /// A try has begun and not ended.
    is_busy: bool,
    not_before_ms: u64,
    /// In a row.
    failures: u32,
}

impl Queue {
    /// Adds a notice. Returns how many were dropped for it.
    pub fn push(&mut self, notice: Notice) -> u64 {
        let is_full = self.waiting.len() >= WAITING_MAX;
        if is_full {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(notice);
        is_full.into()
    }

    /// Notices that have not arrived.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.trying.as_ref().map_or(0, |(batch, _)| batch.notices.len())
    }

    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// The batch to send now, if one is due. `fit` says how many of these notices go into one request. The caller has to
    /// report how it [ended](Queue::ended).
    pub fn next(&mut self, fit: impl Fn(&[Notice]) -> usize, now_ms: u64) -> Option<Arc<Batch>> {
        if self.is_busy || now_ms < self.not_before_ms {
            return None;
        }
        if self.trying.is_none() {
            if self.waiting.is_empty() {
                return None;
            }
            let first = self.waiting.make_contiguous();
            let most = first.len().min(BATCH_MAX);
            let count = fit(first.get(..most).unwrap_or_default()).clamp(1, most);
            let notices = self.waiting.drain(..count).collect();
            self.batches += 1;
            let batch = Batch { number: self.batches, notices, dropped: std::mem::take(&mut self.dropped) };
            self.trying = Some((Arc::new(batch), now_ms));
        }
        self.is_busy = true;
        self.trying.as_ref().map(|(batch, _)| batch.clone())
    }

    /// A try has ended. `jitter` is random: addresses that fail together must not be tried together.
    pub fn ended(&mut self, outcome: Outcome, jitter: u32, now_ms: u64) -> Report {
        self.is_busy = false;
        let Some((batch, since_ms)) = self.trying.take() else { return Report::default() };
        let count = batch.notices.len() as u64;
        let (why, after_ms, can_retry) = match outcome {
            Outcome::Sent => {
                self.not_before_ms = now_ms + PACE_MS;
                let works_again = std::mem::take(&mut self.failures) > 0;
                return Report { sent: count, works_again, ..Report::default() };
            }
            Outcome::Failed(why, after_ms) => (why, after_ms, true),
            Outcome::Refused(why) => (why, None, false),
        };
        let pause_ms = pause_ms(self.failures).max(after_ms.unwrap_or(0).min(AFTER_MS_MAX));
        self.not_before_ms = now_ms + pause_ms + u64::from(jitter) % (pause_ms / 4).max(1);
        let begins = self.failures == 0;
        self.failures = self.failures.saturating_add(1);
        // By the time of this try, not of the next: who asks for an hour's pause gets another try after it.
        let is_given_up = !can_retry || now_ms.saturating_sub(since_ms) >= GIVE_UP_MS;
        if !is_given_up {
            self.trying = Some((batch, since_ms));
        }
        Report {
            failed: if is_given_up { count } else { 0 },
            begins_to_fail: begins.then_some(why),
            ..Report::default()
        }
    }
}

/// The pause after so many earlier failures in a row.
fn pause_ms(failures: u32) -> u64 {
    (PAUSE_MS << failures.min(16)).min(PAUSE_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notices::notice::What;
    use proptest::prelude::*;

    fn notice(at_ms: u64) -> Notice {
        Notice { at_ms, what: What::Test }
    }

    fn queue(notices: u64) -> Queue {
        let mut queue = Queue::default();
        for at_ms in 0..notices {
            queue.push(notice(at_ms));
        }
        queue
    }

    fn all(notices: &[Notice]) -> usize {
        notices.len()
    }

    fn failed() -> Outcome {
        Outcome::Failed("no".into(), None)
    }

    #[test]
    fn batches_are_bounded_in_order_and_at_a_pace() {
        let mut queue = queue(45);
        let first = queue.next(all, 0).unwrap();
        assert_eq!((first.notices.len(), first.notices[0].at_ms, first.number), (BATCH_MAX, 0, 1));
        assert_eq!(queue.next(all, 100_000), None, "one at a time");
        let report = queue.ended(Outcome::Sent, 0, 100);
        assert_eq!(report, Report { sent: 20, ..Report::default() });
        assert_eq!(queue.next(all, 100 + PACE_MS - 1), None);
        let second = queue.next(|_| 3, 100 + PACE_MS).unwrap();
        assert_eq!((second.notices.len(), second.notices[0].at_ms, second.number), (3, 20, 2));
        assert_eq!(queue.len(), 25);
    }

    #[test]
    fn the_oldest_are_dropped_and_the_next_batch_says_how_many() {
        let mut queue = queue(WAITING_MAX as u64);
        assert_eq!((queue.push(notice(900)), queue.push(notice(901))), (1, 1));
        let batch = queue.next(all, 0).unwrap();
        assert_eq!((batch.dropped, batch.notices[0].at_ms, queue.len()), (2, 2, WAITING_MAX));
        queue.ended(Outcome::Sent, 0, 0);
        assert_eq!(queue.next(all, PACE_MS).unwrap().dropped, 0);
    }

    #[test]
    fn a_batch_is_tried_again_unchanged_after_longer_and_longer_pauses() {
        let mut queue = queue(1);
        let (mut now_ms, mut pauses) = (0, Vec::new());
        let first = queue.next(all, now_ms).unwrap();
        assert_eq!(queue.ended(failed(), 0, now_ms).begins_to_fail.as_deref(), Some("no"));
        queue.push(notice(7));
        for _ in 0..9 {
            let begun_ms = now_ms;
            while queue.next(all, now_ms).map(|batch| assert_eq!(batch, first)).is_none() {
                now_ms += 1_000;
            }
            pauses.push((now_ms - begun_ms) / 1_000);
            assert_eq!(queue.ended(failed(), 0, now_ms), Report::default(), "it is said once");
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!(queue.is_failing());
        now_ms += 300_000;
        assert_eq!(queue.next(all, now_ms).unwrap(), first);
        let report = queue.ended(Outcome::Sent, 0, now_ms);
        assert_eq!(report, Report { sent: 1, works_again: true, ..Report::default() });
        assert!(!queue.is_failing());
    }

    #[test]
    fn the_other_side_can_ask_for_a_pause_within_a_bound() {
        let mut slow = queue(1);
        slow.next(all, 0).unwrap();
        slow.ended(Outcome::Failed("429".into(), Some(7_500)), 0, 0);
        assert_eq!(slow.next(all, 7_499), None);
        assert!(slow.next(all, 7_500).is_some());
        let mut hasty = queue(1);
        hasty.next(all, 0).unwrap();
        hasty.ended(Outcome::Failed("429".into(), Some(0)), 0, 0);
        assert_eq!(hasty.not_before_ms, PAUSE_MS, "never more often than otherwise");
        let mut hostile = queue(1);
        hostile.next(all, 0).unwrap();
        let report = hostile.ended(Outcome::Failed("429".into(), Some(u64::MAX)), u32::MAX, 0);
        assert_eq!(report.failed, 0, "a pause is not the end");
        assert!(hostile.not_before_ms <= AFTER_MS_MAX + AFTER_MS_MAX / 4);
        assert!(hostile.next(all, hostile.not_before_ms).is_some());
    }

    #[test]
    fn what_is_refused_is_given_up_at_once_and_what_fails_after_an_hour() {
        let mut refused = queue(30);
        refused.next(all, 0).unwrap();
        assert_eq!(refused.ended(Outcome::Refused("404".into()), 0, 0).failed, 20);
        assert_eq!(refused.next(all, 1_999), None, "the next waits, too");
        assert_eq!(refused.next(all, 2_000).unwrap().notices[0].at_ms, 20);
        let mut failing = queue(30);
        let (mut now_ms, mut given_up) = (0, 0);
        while given_up == 0 {
            if failing.next(all, now_ms).is_some() {
                given_up = failing.ended(failed(), 0, now_ms).failed;
            }
            now_ms += 1_000;
        }
        assert_eq!(given_up, 20);
        assert!((3_600_000..3_960_000).contains(&now_ms), "{now_ms}");
        assert_eq!(failing.len(), 10);
    }

    proptest! {
        /// Whatever happens: memory is bounded, and every notice is sent, given up, dropped, or waits.
        #[test]
        fn nothing_is_lost_without_being_counted(steps in prop::collection::vec((0..40u64, 0..4u8, any::<u32>()), 1..200)) {
            let (mut queue, mut now_ms) = (Queue::default(), 0);
            let (mut pushed, mut sent, mut failed_count, mut dropped) = (0, 0, 0, 0);
            for (count, outcome, jitter) in steps {
                for at_ms in 0..count {
                    dropped += queue.push(notice(at_ms));
                    pushed += 1;
                }
                now_ms += u64::from(jitter % 500_000);
                if queue.next(all, now_ms).is_some() {
                    let outcome = match outcome {
                        0 => Outcome::Sent,
                        1 => Outcome::Refused("no".into()),
                        2 => failed(),
                        _ => Outcome::Failed("later".into(), Some(u64::from(jitter))),
                    };
                    let report = queue.ended(outcome, jitter, now_ms);
                    sent += report.sent;
                    failed_count += report.failed;
                }
                prop_assert!(queue.len() <= WAITING_MAX + BATCH_MAX);
                prop_assert_eq!(pushed, sent + failed_count + dropped + queue.len() as u64);
                prop_assert!(queue.not_before_ms <= now_ms + AFTER_MS_MAX + AFTER_MS_MAX / 4);
            }
        }
    }
}

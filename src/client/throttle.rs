//! Congestion control: how many queries may be in flight. An answer that finds the receive buffer full is dropped, and one
//! that waits in a queue comes too late: both look like a silent server. So the limit starts low enough for any machine and
//! grows while answers are quick and this thread would manage more of them. Losses and late answers halve it; without them it
//! grows again. Callers pass in the time.

/// Losses within this time count as one event: one burst that was too large.
const STEP_US: u64 = 100_000;
/// After this long without a loss, the limit grows by an eighth.
const GROWTH_US: u64 = 250_000;
/// This many answers fit into any receive buffer. A lower limit would only help an attacker who floods this machine.
const LEAST: usize = 8;
/// Late answers within a step before they count as congestion.
const ANSWERS_MIN: u32 = 10;
/// By how many the limit may grow for each quick answer.
const GROWTH: usize = 2;
/// How many answers a second one thread manages on most machines.
pub const MANAGED_PER_SECOND: u32 = 50_000;
/// While about as many come, more queries in flight would only wait longer, and take more memory.
const ENOUGH_PER_SECOND: u64 = MANAGED_PER_SECOND as u64 * 4 / 5;
/// How many come is known after this long, and of longer ago than this, half counts.
const RATE_US: u64 = 5_000;
const RATE_US_MAX: u64 = 40_000;

pub struct Throttle {
    /// The configured limit.
    most: usize,
    in_flight: usize,
    changed_us: u64,
    lost_us: Option<u64>,
    /// Timeout for one try; grows if servers turn out to be farther away.
    try_us: u64,
    try_us_max: u64,
    /// Start of the current count, its answers, how many of them were late, and the latest.
    counting_us: u64,
    answers: u32,
    late: u32,
    latest_us: u64,
    /// Since when answers are counted to know how many come, and how many have.
    rate_us: u64,
    came: u64,
    /// How much the limit may grow when that is of use.
    earned: usize,
    /// How far it may grow before it is known again how many come.
    grows_to: usize,
}

impl Throttle {
    /// Begins with a limit of `first`, if the receive buffer has room for it: `room` is for how many queries it can hold the answers,
    /// should they all arrive at once.
    pub fn new(first: usize, most: usize, room: usize, try_us: u64, try_us_max: u64) -> Throttle {
        let in_flight = most.min(first).min(room.max(LEAST));
        Throttle {
            most,
            in_flight,
            changed_us: 0,
            lost_us: None,
            try_us,
            try_us_max,
            counting_us: 0,
            answers: 0,
            late: 0,
            latest_us: 0,
            rate_us: 0,
            came: 0,
            earned: 0,
            grows_to: in_flight,
        }
    }

    /// Lets the limit grow by so many as soon as few answers come, within the room for these: a list may begin with servers that do not
    /// answer.
    pub fn with_more(self, more: usize, room: usize) -> Throttle {
        Throttle { earned: more.min(room.saturating_sub(self.in_flight)), ..self }
    }

    /// Upper bound on queries in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Timeout for one try.
    pub fn try_us(&self) -> u64 {
        self.try_us
    }

    /// Answers were lost with this many queries in flight.
    pub fn lost(&mut self, now_us: u64, in_flight: usize) {
        if self.lost_us.is_none() || now_us >= self.changed_us + STEP_US {
            self.in_flight = (self.in_flight.min(in_flight) / 2).max(LEAST.min(self.most));
            self.changed_us = now_us;
        }
        self.lost_us = Some(now_us);
    }

    /// A server answered, with this many queries in flight. An answer after its try's timeout is late. If a quarter are late,
    /// either the path is congested or all servers are far away: fewer queries in flight help against the former, a longer
    /// timeout against the latter.
    pub fn answered(&mut self, now_us: u64, rtt_us: u32, in_flight: usize) {
        let rtt_us = u64::from(rtt_us);
        if self.came == 0 && now_us < self.rate_us + RATE_US {
            self.rate_us = now_us; // the first one, at once
        }
        self.came += 1;
        if now_us >= self.counting_us + STEP_US {
            (self.counting_us, self.answers, self.late, self.latest_us) = (now_us, 0, 0, 0);
        }
        self.answers += 1;
        if rtt_us > self.try_us {
            self.late += 1;
            self.latest_us = self.latest_us.max(rtt_us);
        }
        if self.late >= ANSWERS_MIN && self.late * 4 >= self.answers {
            self.lost(now_us, in_flight);
            self.try_us = self.try_us.max((self.latest_us * 3 / 2).min(self.try_us_max));
            self.late = 0;
        } else if rtt_us < self.try_us / 4 {
            self.earned = (self.earned + GROWTH).min(self.most);
            self.grow(now_us);
        }
    }

    /// Lets the limit grow by what quick answers have earned, unless about as many come as one thread manages. What counts is how many come,
    /// not how long they take: servers that are far away or silent hold up others as well.
    fn grow(&mut self, now_us: u64) {
        if self.has_lost() || self.earned == 0 {
            return;
        }
        if self.enough_come(now_us) == Some(false) {
            // Perhaps this thread has only waited for its processor: what comes after a step shows whether it was enough.
            (self.rate_us, self.came, self.grows_to) = (now_us, 0, self.in_flight * 2);
        }
        let more = self.earned.min(self.grows_to.saturating_sub(self.in_flight));
        self.earned -= more;
        self.in_flight = (self.in_flight + more).min(self.most);
    }

    /// Whether about as many answers come as one thread manages.
    pub fn is_busy(&mut self, now_us: u64) -> bool {
        self.enough_come(now_us) == Some(true)
    }

    /// The same; none while it is too early to tell.
    fn enough_come(&mut self, now_us: u64) -> Option<bool> {
        let mut counted_us = now_us.saturating_sub(self.rate_us);
        while counted_us > RATE_US_MAX {
            (self.came, counted_us) = (self.came / 2, counted_us / 2);
            self.rate_us = now_us - counted_us;
        }
        (counted_us >= RATE_US).then(|| self.came * 1_000_000 >= ENOUGH_PER_SECOND * counted_us)
    }

    /// Raises the limit while too few answers come, and after a while without losses. Call regularly.
    pub fn recover(&mut self, now_us: u64) {
        self.grow(now_us);
        if self.has_lost() && now_us >= self.changed_us + GROWTH_US {
            self.in_flight = (self.in_flight + self.in_flight.div_ceil(8)).min(self.most);
            self.changed_us = now_us;
        }
    }

    /// Whether anything has been lost so far.
    pub fn has_lost(&self) -> bool {
        self.lost_us.is_some()
    }

    /// Whether the answer to a query sent at this time may have been lost on this machine.
    pub fn may_have_lost(&self, asked_us: u64) -> bool {
        self.lost_us.is_some_and(|lost_us| lost_us >= asked_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_halves_it_and_quiet_brings_it_back() {
        let mut throttle = Throttle::new(4_000, 1_000_000, 1_000_000, 900_000, 3_600_000);
        throttle.recover(10_000_000);
        assert!(!throttle.may_have_lost(0) && !throttle.has_lost());
        for us in [20_000_000, 20_000_001, 20_099_999] {
            throttle.lost(us, 1_900);
            assert_eq!(throttle.in_flight(), 950, "half of what there was, once for one burst");
        }
        throttle.lost(20_100_000, 2_000);
        assert_eq!(throttle.in_flight(), 475);
        throttle.recover(20_349_999);
        assert_eq!(throttle.in_flight(), 475);
        throttle.recover(20_350_000);
        assert_eq!(throttle.in_flight(), 535);
        assert!(throttle.may_have_lost(20_100_000) && !throttle.may_have_lost(20_100_001));
    }

    #[test]
    fn it_never_stops_and_never_exceeds_the_configured_limit() {
        for most in [2_000, 1] {
            let mut throttle = Throttle::new(4_000, most, 1_000_000, 900_000, 3_600_000);
            (1..100).for_each(|step| throttle.lost(step * STEP_US, 5_000));
            assert_eq!(throttle.in_flight(), LEAST.min(most));
            (100..1_000).for_each(|step| throttle.recover(step * GROWTH_US));
            assert_eq!(throttle.in_flight(), most);
        }
    }

    #[test]
    fn it_begins_with_what_the_receive_buffer_can_hold() {
        for (most, room, expected) in [
            (2_000, 180, 180),
            (2_000, 7_000, 2_000),
            (10_000, 7_000, 4_000),
            (100, 180, 100),
            (2_000, 0, LEAST),
            (1, 0, 1),
        ] {
            assert_eq!(Throttle::new(4_000, most, room, 900_000, 3_600_000).in_flight(), expected, "{most} {room}");
        }
    }

    #[test]
    fn quick_answers_make_it_grow_and_late_ones_halve_it() {
        let mut throttle = Throttle::new(4_000, 7_000, 1_000_000, 900_000, 3_600_000);
        assert_eq!(throttle.in_flight(), 4_000);
        let answers = |throttle: &mut Throttle, now_us, rtt_us, count| {
            (0..count).for_each(|_| throttle.answered(now_us, rtt_us, 4_000));
            throttle.in_flight()
        };
        assert_eq!(answers(&mut throttle, 1_000_000, 200_000, 500), 5_000);
        assert_eq!(answers(&mut throttle, 2_000_000, 300_000, 1_000), 5_000, "not quick");
        assert_eq!(answers(&mut throttle, 3_000_000, 200_000, 9_000), 7_000, "as many as were asked for");
        // Some servers are far away.
        assert_eq!(
            answers(&mut throttle, 4_000_000, 30_000, 100) + answers(&mut throttle, 4_000_000, 1_000_000, 30),
            14_000
        );
        assert!(!throttle.has_lost());
        assert_eq!(answers(&mut throttle, 5_000_000, 1_000_000, 9), 7_000);
        assert_eq!(answers(&mut throttle, 5_000_000, 1_000_000, 1), 2_000);
        assert!(throttle.may_have_lost(4_900_000));
        assert_eq!(answers(&mut throttle, 5_050_000, 1_000_000, 50), 2_000, "the same queue");
    }

    #[test]
    fn it_grows_while_one_thread_manages_more() {
        let mut throttle = Throttle::new(500, 20_000, 1_000_000, 900_000, 3_600_000);
        let mut now_us = 0;
        let mut answers = |per_ms: u32, ms: u32| {
            for _ in 0..ms {
                now_us += 1_000;
                (0..per_ms).for_each(|_| throttle.answered(now_us, 20_000, 500));
                throttle.recover(now_us);
            }
            throttle.in_flight()
        };
        assert_eq!(answers(45, 100), 500, "about as many as it manages");
        assert_eq!(answers(0, 3), 500, "a moment");
        assert_eq!(answers(0, 30), 9_500, "those that are in flight do not answer: what was earned is of use");
        assert_eq!(answers(1, 1_000), 11_500, "far away, or hardly any that answer");
        assert_eq!(answers(0, 1_000), 11_500);
        assert_eq!(answers(20, 1_000), 20_000);
    }

    /// A thread that has to wait for its processor hears nothing meanwhile, and asking more would not help.
    #[test]
    fn a_pause_among_many_answers_makes_it_grow_by_one_step() {
        for (per_ms, pause_ms) in [45, 50, 70].into_iter().flat_map(|per_ms| [10, 25, 90].map(|pause| (per_ms, pause)))
        {
            let mut throttle = Throttle::new(500, 20_000, 1_000_000, 900_000, 3_600_000);
            for ms in (0..200).chain(200 + pause_ms..500) {
                (0..per_ms).for_each(|_| throttle.answered(ms * 1_000, 1_000, 500));
                throttle.recover(ms * 1_000);
                let most = if ms < 200 { 500 } else { 1_000 };
                assert!(throttle.in_flight() <= most, "{per_ms} {pause_ms} {ms}: {}", throttle.in_flight());
            }
        }
    }

    #[test]
    fn it_is_busy_while_about_as_many_come_as_a_thread_manages() {
        let mut throttle = Throttle::new(500, 20_000, 1_000_000, 900_000, 3_600_000);
        for ms in 0..200 {
            let per_ms = if ms < 100 { 45 } else { 30 };
            (0..per_ms).for_each(|_| throttle.answered(ms * 1_000, 1_000, 500));
            match (ms, throttle.is_busy(ms * 1_000)) {
                (0..5, is_busy) => assert!(!is_busy, "{ms}: too early to tell"),
                (5..100, is_busy) => assert!(is_busy, "{ms}"),
                (180.., is_busy) => assert!(!is_busy, "{ms}"),
                _ => {}
            }
        }
    }

    #[test]
    fn a_list_that_begins_with_silent_servers_holds_up_nothing() {
        for (room, expected) in [(1_000_000, 2_000), (1_200, 1_200), (100, 100)] {
            let mut throttle = Throttle::new(500, 30_000, room, 900_000, 3_600_000).with_more(1_500, room);
            (1..100).for_each(|ms| throttle.recover(ms * 1_000));
            assert_eq!(throttle.in_flight(), expected);
        }
        let mut throttle = Throttle::new(500, 30_000, 1_000_000, 900_000, 3_600_000).with_more(1_500, 1_000_000);
        for ms in 1..100 {
            (0..45).for_each(|_| throttle.answered(ms * 1_000, 1_000, 500));
            throttle.recover(ms * 1_000);
        }
        assert_eq!(throttle.in_flight(), 500, "enough answers come");
    }

    #[test]
    fn bursts_with_pauses_between_them_are_no_high_rate() {
        let mut throttle = Throttle::new(500, 70_000, 1_000_000, 900_000, 3_600_000);
        for (burst, grown) in [(1, 1_000), (2, 2_000)] {
            (0..500).for_each(|_| throttle.answered(burst * 30_000, 30_000, 500));
            assert_eq!(throttle.in_flight(), grown);
        }
    }

    #[test]
    fn servers_that_are_far_away_are_waited_for_longer_and_are_late_only_once() {
        let mut throttle = Throttle::new(4_000, 2_000, 1_000_000, 900_000, 3_600_000);
        let mut now_us = 1_000_000;
        let mut answers = |throttle: &mut Throttle, rtt_us| {
            now_us += STEP_US;
            (0..100).for_each(|_| throttle.answered(now_us, rtt_us, 2_000));
            (throttle.in_flight(), throttle.try_us())
        };
        assert_eq!(answers(&mut throttle, 1_000_000), (1_000, 1_500_000));
        for _ in 0..100 {
            assert_eq!(answers(&mut throttle, 1_100_000), (1_000, 1_500_000), "in time now");
        }
        assert_eq!(answers(&mut throttle, 3_000_000), (500, 3_600_000), "no longer than all tries together");
        assert_eq!(answers(&mut throttle, 5_000_000), (250, 3_600_000));
    }
}

//! How many servers to wait for at one time when this machine cannot keep up. An answer that finds the receive buffer full is
//! lost, and looks like a server's silence. So a loss halves what is in flight, and while there is none it grows again. No
//! clock: times come in.

/// Losses within one of these are one event: a burst that was too large.
const STEP_US: u64 = 100_000;
/// So long without a loss, and it grows by an eighth.
const GROWTH_US: u64 = 250_000;

pub struct Throttle {
    /// As it was asked for.
    most: usize,
    in_flight: usize,
    changed_us: u64,
    lost_us: Option<u64>,
}

impl Throttle {
    pub fn new(in_flight: usize) -> Throttle {
        Throttle { most: in_flight, in_flight, changed_us: 0, lost_us: None }
    }

    /// Servers to wait for at one time, at the most.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Answers were lost while so many servers were waited for.
    pub fn lost(&mut self, now_us: u64, in_flight: usize) {
        if self.lost_us.is_none() || now_us >= self.changed_us + STEP_US {
            // One at a time fits into any buffer.
            self.in_flight = (self.in_flight.min(in_flight) / 2).max(1);
            self.changed_us = now_us;
        }
        self.lost_us = Some(now_us);
    }

    /// Call now and then: after a while without losses there may be more in flight.
    pub fn recover(&mut self, now_us: u64) {
        if self.has_lost() && now_us >= self.changed_us + GROWTH_US {
            self.in_flight = (self.in_flight + self.in_flight.div_ceil(8)).min(self.most);
            self.changed_us = now_us;
        }
    }

    /// Whether anything was lost yet.
    pub fn has_lost(&self) -> bool {
        self.lost_us.is_some()
    }

    /// Whether the answer to a question that was asked at this time may have been lost here.
    pub fn may_have_lost(&self, asked_us: u64) -> bool {
        self.lost_us.is_some_and(|lost_us| lost_us >= asked_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_halves_it_and_quiet_brings_it_back() {
        let mut throttle = Throttle::new(1_000_000);
        throttle.recover(10_000_000);
        assert!(!throttle.may_have_lost(0) && !throttle.has_lost());
        for us in [20_000_000, 20_000_001, 20_099_999] {
            throttle.lost(us, 2_000);
            assert_eq!(throttle.in_flight(), 1_000, "half of what there was, once for one burst");
        }
        throttle.lost(20_100_000, 1_000);
        assert_eq!(throttle.in_flight(), 500);
        throttle.recover(20_349_999);
        assert_eq!(throttle.in_flight(), 500);
        throttle.recover(20_350_000);
        assert_eq!(throttle.in_flight(), 563);
        assert!(throttle.may_have_lost(20_100_000) && !throttle.may_have_lost(20_100_001));
    }

    #[test]
    fn it_never_stops_and_never_exceeds_what_was_asked_for() {
        for most in [2_000, 1] {
            let mut throttle = Throttle::new(most);
            (1..100).for_each(|step| throttle.lost(step * STEP_US, 5_000));
            assert_eq!(throttle.in_flight(), 1);
            (100..1_000).for_each(|step| throttle.recover(step * GROWTH_US));
            assert_eq!(throttle.in_flight(), most);
        }
    }
}

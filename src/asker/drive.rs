//! The loop around an [`Asker`]: it receives answers, handles timeouts, and sends as many questions as the rate limits allow.
//! The master's prober and the query command supply sockets and a clock as a [`Driver`].

use std::net::SocketAddr;

use super::{Asker, Finished, Lane};
use crate::model::Address;
use crate::protocols::Question;

/// Receive after this many questions from one socket: the answers to a longer burst may not fit into its buffer. As many leave
/// with one system call.
pub const BURST: usize = 64;

/// The sockets, the clock and the consumer of an asker.
pub trait Driver {
    type Tag;

    fn asker(&mut self) -> &mut Asker<Self::Tag>;

    fn now_us(&self) -> u64;

    /// Reads a datagram into the buffer: the lane that it arrived on, its size and its sender. None if there is none, or if
    /// it is time for other work.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)>;

    /// When the last datagram that [`Driver::receive`] has read was received.
    fn received_us(&self) -> u64 {
        self.now_us()
    }

    /// Called after all datagrams that have arrived were handled.
    fn all_heard(&mut self, _buffer: &mut [u8]) {}

    /// Called before [`Driver::finish`] for a server that timed out.
    fn overdue(&mut self, _finished: &Finished<Self::Tag>, _buffer: &mut [u8]) -> impl Future<Output = ()> {
        async {}
    }

    /// Called before questions are sent; adds servers to query.
    fn prepare(&mut self);

    /// The lane to send the next question from, or the first of several for one of our addresses each.
    fn lane(&mut self, now_us: u64) -> Option<Lane>;

    /// After how many questions to receive.
    fn burst(&self) -> usize {
        BURST
    }

    /// Sends a question, now or with the next [`Driver::flush`]. A failure to send counts as a lost datagram: the next try
    /// follows.
    fn send(&mut self, lane: Lane, address: Address, question: Question) -> impl Future<Output = ()>;

    /// Sends what [`Driver::send`] has kept, so that many questions leave together.
    fn flush(&mut self) -> impl Future<Output = ()> {
        async {}
    }

    /// Takes a result.
    fn finish(&mut self, finished: Finished<Self::Tag>);
}

/// One pass of the loop.
pub async fn pass<D: Driver>(driver: &mut D, buffer: &mut [u8]) {
    hear(driver, buffer);
    let now_us = driver.now_us();
    while let Some(finished) = driver.asker().timed_out(now_us) {
        driver.overdue(&finished, buffer).await;
        driver.finish(finished);
    }
    driver.prepare();
    send(driver, buffer).await;
    while let Some((lane, address, last)) = driver.asker().next_farewell() {
        driver.send(lane, address, last).await;
    }
    driver.flush().await;
}

/// Receives and handles the datagrams that have arrived.
pub fn hear<D: Driver>(driver: &mut D, buffer: &mut [u8]) {
    while let Some((lane, size, from)) = driver.receive(buffer) {
        let now_us = driver.received_us();
        let bytes = buffer.get(..size).unwrap_or_default();
        if let Some(finished) = driver.asker().heard(now_us, lane, from, bytes) {
            driver.finish(finished);
        }
    }
    driver.all_heard(buffer);
}

async fn send<D: Driver>(driver: &mut D, buffer: &mut [u8]) {
    let mut sent = 0usize;
    let mut now_us = driver.now_us();
    while let Some(lane) = driver.lane(now_us) {
        let Some((lane, address, question)) = driver.asker().next_from(now_us, lane) else { return };
        driver.send(lane, address, question).await;
        sent += 1;
        if sent.is_multiple_of(driver.burst()) {
            driver.flush().await;
            hear(driver, buffer);
            now_us = driver.now_us();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asker::Settings;
    use crate::model::Facts;
    use crate::protocols::{Ask, Fault, Heard, Query, fault};

    /// A game that echoes the question.
    struct Echo;

    impl Query for Echo {
        fn ask(&self, _ask: Ask, nonce: u32, question: &mut Question) {
            question.extend(nonce.to_be_bytes());
        }

        fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
            let nonce = u32::from_be_bytes(bytes.try_into().map_err(|_| fault("no nonce"))?);
            Ok(Heard::Whole { nonce, facts: Facts::default() })
        }
    }

    /// Servers in memory: those with an even port answer at once.
    struct Memory {
        asker: Asker<u16>,
        now_us: u64,
        to_add: Vec<u16>,
        waiting: Vec<(Address, Question)>,
        waiting_most: usize,
        steps: Vec<String>,
    }

    impl Driver for Memory {
        type Tag = u16;

        fn asker(&mut self) -> &mut Asker<u16> {
            &mut self.asker
        }

        fn now_us(&self) -> u64 {
            self.now_us
        }

        fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
            let (from, bytes) = self.waiting.pop()?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            Some((1, bytes.len(), from.socket()))
        }

        async fn overdue(&mut self, finished: &Finished<u16>, _buffer: &mut [u8]) {
            self.steps.push(format!("overdue {}", finished.tag));
        }

        fn prepare(&mut self) {
            for port in self.to_add.drain(..) {
                self.asker.ask(server(port), &Echo, Ask::Proof, port).unwrap();
            }
        }

        fn lane(&mut self, _now_us: u64) -> Option<Lane> {
            Some(1)
        }

        async fn send(&mut self, _lane: Lane, address: Address, question: Question) {
            if address.port().is_multiple_of(2) {
                self.waiting.push((address, question));
                self.waiting_most = self.waiting_most.max(self.waiting.len());
            }
        }

        fn finish(&mut self, finished: Finished<u16>) {
            self.steps.push(format!(
                "{} {}",
                if finished.result.is_ok() { "answered" } else { "silent" },
                finished.tag
            ));
        }
    }

    fn server(port: u16) -> Address {
        Address::new([192, 0, 2, 1].into(), port).unwrap()
    }

    fn memory(to_add: Vec<u16>) -> Memory {
        let settings =
            Settings { tries: 1, try_us: 1_000, all_us: 1_000, per_second: 1_000_000, per_ip_per_second: 1_000_000 };
        let asker = Asker::new(settings, [1; 16]);
        Memory { asker, now_us: 1_000_000, to_add, waiting: Vec::new(), waiting_most: 0, steps: Vec::new() }
    }

    #[tokio::test]
    async fn a_pass_receives_before_it_times_out_and_sends_last() {
        let mut memory = memory(vec![1, 2]);
        pass(&mut memory, &mut [0; 100]).await;
        assert!(memory.steps.is_empty() && memory.waiting.len() == 1, "asked, and one answer is on its way");
        memory.now_us += 5_000;
        memory.to_add.push(4);
        pass(&mut memory, &mut [0; 100]).await;
        assert_eq!(memory.steps, ["answered 2", "overdue 1", "silent 1"]);
        assert_eq!(memory.waiting.len(), 1, "the new one was asked in the same pass");
        assert_eq!(memory.asker.in_flight(), 1);
    }

    #[tokio::test]
    async fn answers_are_received_between_bursts_of_questions() {
        let mut memory = memory((1..=500).map(|number| 2 * number).collect());
        pass(&mut memory, &mut [0; 100]).await;
        assert_eq!((memory.waiting_most, memory.steps.len() + memory.waiting.len()), (BURST, 500));
    }
}

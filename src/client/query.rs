//! Asking many game servers at once: one socket, a pace, a bound on how many are waited for. What counts as an answer is
//! the [`Asker`]'s business.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::{Found, State};
use crate::asker::{Answer, Asker, Failure, Finished, Lane, Settings};
use crate::net::prober::{destination, socket};
use crate::protocols::{Ask, query_of};

/// How fast to ask.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Datagrams a second.
    pub per_second: u32,
    /// Servers waited for at one time, not counting those that were silent once: they would hold up the others. What
    /// is in flight cannot overrun a slow network, or a slow machine, for long: its answers come slowly, and with them
    /// the next questions.
    pub in_flight: usize,
}

/// Four tries 0.9 s apart, each of which is listened for until the end; the last of all steps within 3.9 s: a server that
/// stays silent is given up within 5 s.
const TRIES: u8 = 4;
const TRY_US: u64 = 900_000;
const ALL_US: u64 = 3_900_000;
/// Datagrams a second to one address, so that no list can turn us against a stranger. Loopback is nobody's network.
const PER_IP_PER_SECOND: u32 = 2_000;
/// One socket, on a port of this run's own.
const LANE: Lane = 0;
/// The socket is emptied between so many questions: the answers to a whole burst may not fit into its buffer.
const BURST: usize = 16;
/// The longest answer that UDP can carry.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// How long to wait when questions wait for their pace.
const SHORT: Duration = Duration::from_millis(1);

/// What is remembered of a server while it is asked.
struct Tag {
    /// Its place among all.
    number: usize,
    unsent: Option<io::Error>,
}

/// Asks every server that can be asked, and writes down what became of it. `finished` is called with each of those as soon
/// as its answer is there, or is given up.
pub async fn ask_all(found: &mut [Found], pace: Pace, finished: impl FnMut(&Found)) -> io::Result<()> {
    let queue = found.iter().enumerate().filter(|(_, server)| query_of(&server.game).is_some());
    let queue: VecDeque<usize> = queue.map(|(number, _)| number).collect();
    let all_here = found.iter().all(|server| server.address.ip().is_loopback());
    let settings = Settings {
        tries: TRIES,
        try_us: TRY_US,
        all_us: ALL_US,
        per_second: pace.per_second,
        per_ip_per_second: if all_here { pace.per_second } else { PER_IP_PER_SECOND.min(pace.per_second) },
    };
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
    let (socket, mapped) = socket()?;
    let asker = Asker::new(settings, seed);
    let in_flight = pace.in_flight;
    Run { found, queue, in_flight, socket, mapped, asker, started: Instant::now(), finished }.run().await
}

struct Run<'a, F> {
    found: &'a mut [Found],
    /// Those who have not been asked yet.
    queue: VecDeque<usize>,
    in_flight: usize,
    socket: UdpSocket,
    mapped: bool,
    asker: Asker<Tag>,
    started: Instant,
    finished: F,
}

impl<F: FnMut(&Found)> Run<'_, F> {
    async fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            self.take_more();
            self.send(&mut buffer).await;
            self.receive(&mut buffer);
            while let Some(over) = self.asker.timed_out(self.now_us()) {
                self.finish(over);
            }
            if self.asker.in_flight() == 0 && self.queue.is_empty() {
                return Ok(());
            }
            let _ = timeout(self.wait(), self.socket.readable()).await; // either is a reason to look again
        }
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn wait(&self) -> Duration {
        if self.asker.has_questions() {
            return SHORT;
        }
        let due_us = self.asker.next_timeout_us().unwrap_or(0);
        Duration::from_micros(due_us.saturating_sub(self.now_us())).max(SHORT)
    }

    fn take_more(&mut self) {
        for _ in 0..self.queue.len() {
            if self.asker.fresh() >= self.in_flight {
                return;
            }
            let Some(number) = self.queue.pop_front() else { return };
            let Some((server, query)) = self.found.get(number).and_then(|s| Some((s, query_of(&s.game)?))) else {
                continue;
            };
            if self.asker.ask(server.address, query, Ask::Proof, Tag { number, unsent: None }).is_err() {
                // Another game at the same address is being asked; one after the other.
                self.queue.push_back(number);
            }
        }
    }

    async fn send(&mut self, buffer: &mut [u8]) {
        let mut sent = 0;
        while let Some((address, question)) = self.asker.next_question(self.now_us(), LANE) {
            if let Err(error) = self.socket.send_to(&question, destination(address, self.mapped)).await
                && let Some(tag) = self.asker.tag_mut(address)
            {
                tag.unsent = Some(error);
            }
            sent += 1;
            if sent % BURST == 0 {
                self.receive(buffer);
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        loop {
            match self.socket.try_recv_from(buffer) {
                Ok((size, from)) => {
                    let bytes = buffer.get(..size).unwrap_or_default();
                    if let Some(over) = self.asker.heard(self.now_us(), LANE, from, bytes) {
                        self.finish(over);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {} // an earlier question's bad luck (an ICMP error); it times out by itself
            }
        }
    }

    fn finish(&mut self, over: Finished<Tag>) {
        let Some(server) = self.found.get_mut(over.tag.number) else { return };
        server.state = match over.result {
            Ok(Answer { rtt_us, facts: Some(facts), .. }) => {
                server.facts = facts;
                server.rtt_us = Some(rtt_us);
                State::Answered
            }
            Ok(Answer { fault: Some(fault), .. }) => State::Failed(format!("bad answer: {fault}")),
            Ok(_) => State::Failed("it is alive, but says nothing of itself".into()),
            Err(Failure::Bad(fault)) => State::Failed(format!("bad answer: {fault}")),
            Err(Failure::Silent) => match over.tag.unsent {
                Some(error) => State::Failed(format!("cannot send: {error}")),
                None => State::Failed("no answer".into()),
            },
        };
        (self.finished)(server);
    }
}

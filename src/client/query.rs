//! Queries many game servers at once: a rate limit, and a bound on queries in flight. The [`Asker`] decides what counts as an
//! answer. Queries whose answers this machine may have lost are repeated. One socket and one thread are enough for tens of
//! thousands of servers a second; at higher rates [`threads`] share them.

pub mod threads;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::time::{timeout, timeout_at};

use super::socket::{Socket, Undelivered};
use super::throttle::Throttle;
use super::{Found, RetryPolicy, State};
use crate::asker::drive::{self, Driver};
use crate::asker::{Asker, Failure, Finished, Lane, Response, Settings};
use crate::model::Address;
use crate::net::prober::DATAGRAM_BYTES_MAX;
use crate::protocols::{Ask, ProvenBy, Question, game, query_of};

/// Rate, concurrency and timeouts.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Datagrams per second.
    pub per_second: u32,
    /// Datagrams per second to one IP address, so that a forged list cannot make us flood a third party. Does not apply to
    /// loopback.
    pub per_ip_per_second: u32,
    /// Servers in flight, not counting those that have missed a try: they would hold up the others. The bound also paces us
    /// on a slow network or machine: the next queries are sent as answers come in. See [`in_flight_for`].
    pub in_flight: usize,
    /// How many it begins with, and how many more there may be as soon as few answers come.
    pub first_in_flight: usize,
    pub more_in_flight: usize,
    pub retry: RetryPolicy,
    /// Size of the socket's receive buffer in bytes; None: as large as the system allows.
    pub receive_buffer: Option<usize>,
    pub wanted: Wanted,
}

/// What the answers are wanted for, besides what every answer says. What is not wanted is not asked for where that takes a
/// question of its own, and is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Players and rules.
    pub details: bool,
    /// Which game of its family a server runs.
    pub game: bool,
    /// Somebody else will read it: what could be forged is believed later.
    pub published: bool,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted { details: true, game: true, published: true }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            per_second: 30_000,
            per_ip_per_second: 2_000,
            in_flight: in_flight_for(30_000),
            first_in_flight: 4_000,
            more_in_flight: 0,
            retry: RetryPolicy::default(),
            receive_buffer: None,
            wanted: Wanted::default(),
        }
    }
}

/// How many servers may be in flight at a rate: as many as are asked within a fifteenth of a second, so that servers at usual
/// distances can be asked as fast as that; and at least 2,000.
pub fn in_flight_for(per_second: u32) -> usize {
    (per_second as usize / 15).max(2_000)
}

/// A nonce and the facts may come as two datagrams.
const ANSWERS_PER_QUESTION: usize = 2;
/// For how long facts settle that come after their nonce, if nobody but the one who asks reads them. Both datagrams leave the server
/// together, so the second is hardly ever this late.
const SETTLE_US: u64 = 2_000;
/// A thread has only one socket.
const LANE: Lane = 0;
/// Wait while queries are held back by the rate limit.
const SHORT: Duration = Duration::from_millis(1);
/// Wait while as many are in flight as may be: after a while without answers, more may.
const HELD_UP: Duration = Duration::from_millis(5);
/// While about as many answers come as a thread manages, they are received this much later, and so more of them at once: waking up for a
/// few takes longer than reading them, both here and where they are sent. Round trips seem to take that much longer, too.
const GATHER: Duration = Duration::from_micros(100);
/// For a datagram to ourselves to arrive. It takes long only on a very busy machine.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// How many tries of one server are repeated because its answer may have been lost here. Each time fewer are in flight.
const LOSSES_MAX: u8 = 20;

/// A queued server.
#[derive(Clone, Copy)]
struct Turn {
    /// Which part it is in, and its index there.
    part: u32,
    number: u32,
    /// Tries without an answer, and tries whose answer may have been lost here.
    tries: u8,
    losses: u8,
}

/// State kept for a server in flight.
struct Tag {
    turn: Turn,
    asked_us: u64,
    /// Why a query may not have arrived.
    undelivered: Option<io::Error>,
}

/// Queries every server that can be queried, and stores the results in `found`. `finished` is called for each of them as
/// soon as it has answered or failed.
pub async fn query_all(found: &mut [Found], pace: Pace, finished: impl FnMut(&Found)) -> io::Result<()> {
    let all_loopback = are_loopback(found);
    let mut whole = Some(found);
    query_parts(&mut || whole.take(), pace, all_loopback, false, finished).await
}

fn are_loopback(found: &[Found]) -> bool {
    found.iter().all(|server| server.address.ip().is_loopback())
}

/// Takes the next part of a list; None if there are no more.
type More<'m, 'a> = dyn FnMut() -> Option<&'a mut [Found]> + Send + 'm;

/// The same with servers that come in parts: the next one is taken when all others are asked; none is taken if it fails.
async fn query_parts<'a>(
    more: &mut More<'_, 'a>,
    pace: Pace,
    all_loopback: bool,
    has_thread: bool,
    finished: impl FnMut(&Found),
) -> io::Result<()> {
    let try_us = pace.retry.server_try().as_micros() as u64;
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
    let socket = Socket::open(pace.receive_buffer)?;
    let try_us_max = try_us * u64::from(pace.retry.server_tries());
    let room = socket.room() / ANSWERS_PER_QUESTION;
    let throttle = Throttle::new(pace.first_in_flight, pace.in_flight, room, try_us, try_us_max);
    let mut asker = Asker::new(settings(pace, all_loopback), seed);
    if !pace.wanted.details {
        asker.leave_out_details();
    }
    if !pace.wanted.published {
        asker.settle_for(SETTLE_US);
    }
    let started = Instant::now();
    let mut run = Run {
        parts: Vec::new(),
        more,
        queue: VecDeque::new(),
        socket,
        asker,
        throttle: throttle.with_more(pace.more_in_flight, room),
        pace,
        all_loopback,
        has_thread,
        started,
        lost: 0,
        is_quiet: true,
        finished,
    };
    run.run().await;
    Ok(())
}

fn settings(pace: Pace, all_loopback: bool) -> Settings {
    let (tries, try_us) = (pace.retry.server_tries(), pace.retry.server_try().as_micros() as u64);
    let per_second = pace.per_second;
    Settings {
        tries,
        try_us,
        // Leaves time for one more try if the second step of a query starts late.
        all_us: try_us * u64::from(tries) + try_us / 3,
        per_second,
        per_ip_per_second: if all_loopback { per_second } else { pace.per_ip_per_second.min(per_second) },
    }
}

struct Run<'m, 'a, F> {
    parts: Vec<&'a mut [Found]>,
    more: &'m mut More<'m, 'a>,
    /// Servers to query, for the first time or again.
    queue: VecDeque<Turn>,
    socket: Socket,
    asker: Asker<Tag>,
    throttle: Throttle,
    pace: Pace,
    all_loopback: bool,
    /// Nothing else runs on this thread, so it may sleep.
    has_thread: bool,
    started: Instant,
    /// Answers dropped by the socket's receive buffer, as of the last check.
    lost: u32,
    /// Nothing was received since the last check for losses.
    is_quiet: bool,
    finished: F,
}

impl<F: FnMut(&Found)> Run<'_, '_, F> {
    async fn run(&mut self) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            drive::pass(self, &mut buffer).await;
            if self.asker.in_flight() == 0 && !self.fill_queue(0) {
                return;
            }
            if self.has_thread && self.throttle.is_busy(self.now_us()) {
                std::thread::sleep(GATHER);
            }
            let _ = timeout(self.wait(), self.socket.ready()).await; // in both cases, the next pass follows
        }
    }

    fn wait(&self) -> Duration {
        if self.asker.has_questions() {
            return SHORT;
        }
        let due_us = self.asker.next_timeout_us().unwrap_or(0);
        let due = Duration::from_micros(due_us.saturating_sub(self.now_us())).max(SHORT);
        let is_held_up = self.asker.fresh() >= self.throttle.in_flight();
        if is_held_up { due.min(HELD_UP) } else { due }
    }

    fn take_more(&mut self) {
        self.throttle.recover(self.now_us());
        if self.throttle.has_lost() {
            // From now on each try is queued separately, so that retries, too, count as in flight. An answer no longer
            // counts once its try has ended, so the timeout is adapted to the answers seen so far.
            let try_us = self.throttle.try_us();
            self.asker.set_settings(Settings { tries: 1, try_us, ..settings(self.pace, self.all_loopback) });
        }
        let (mut postponed, asked_us) = (0, self.now_us());
        while self.asker.fresh() < self.throttle.in_flight() && self.fill_queue(postponed) {
            let Some(turn) = self.queue.pop_front() else { return };
            let Some((server, query)) = self.found(turn).and_then(|s| Some((s, query_of(&s.game)?))) else { continue };
            let address = server.address;
            let tag = Tag { turn, asked_us, undelivered: None };
            // Long answers come to us, whatever the list says, so nobody has to prove an address first.
            let asked = match (query.facts_say_all(), self.pace.wanted.game) {
                (true, _) => self.asker.ask(address, query, Ask::Facts, tag),
                (false, false) if turn.tries == 0 => self.asker.ask_facts_first(address, query, tag),
                (false, _) => self.asker.ask_both(address, query, tag),
            };
            if asked.is_err() {
                // Another game at the same address is being queried; this one has to wait.
                self.queue.push_back(turn);
                postponed += 1;
            }
        }
    }

    /// Whether there is a server in the queue besides those at its end that have to wait; takes the next part if there is none.
    fn fill_queue(&mut self, postponed: usize) -> bool {
        while self.queue.len() <= postponed {
            let Some(next) = (self.more)() else { return false };
            let part = self.parts.len() as u32;
            let queryable = (0..).zip(next.iter()).filter(|(_, server)| query_of(&server.game).is_some());
            // Ahead of those that wait.
            let waiting = self.queue.len();
            self.queue.extend(queryable.map(|(number, _)| Turn { part, number, tries: 0, losses: 0 }));
            self.queue.rotate_left(waiting);
            self.parts.push(next);
        }
        true
    }

    fn found(&self, turn: Turn) -> Option<&Found> {
        self.parts.get(turn.part as usize)?.get(turn.number as usize)
    }

    fn found_mut(&mut self, turn: Turn) -> Option<&mut Found> {
        self.parts.get_mut(turn.part as usize)?.get_mut(turn.number as usize)
    }

    /// A closed port fails the server at once, unless the report may be forged. Any other report is only shown as the reason
    /// if the server never answers.
    fn take_report(&mut self, report: &Undelivered, quoted: &[u8]) {
        let Some(address) = Address::new(report.to.ip(), report.to.port()) else { return };
        // Anyone can send a report, and an old one may come late; but only a host that saw the query knows the number in it.
        let error = report.error.kind();
        let is_closed = error == io::ErrorKind::ConnectionRefused && self.asker.has_sent(address, quoted);
        let Some(tag) = self.asker.tag_mut(address) else { return };
        tag.undelivered = Some(error.into());
        if is_closed && let Some(tag) = self.asker.give_up(address) {
            self.end(tag.turn, State::Failed("connection refused: the port is closed".into()));
        }
    }

    /// Finds out whether answers were lost on this machine, before a server counts as silent.
    async fn check_for_losses(&mut self, buffer: &mut [u8]) {
        self.socket.check_for_losses();
        let end = tokio::time::Instant::now() + CHECK_TIMEOUT;
        drive::hear(self, buffer);
        while self.socket.is_checking() && timeout_at(end, self.socket.ready()).await.is_ok() {
            drive::hear(self, buffer);
        }
        self.is_quiet = true;
    }

    /// The next turn of a server that has not answered, if it gets one. While nothing is lost, the asker makes all tries by
    /// itself.
    fn another_turn(&self, turn: Turn, is_lost: bool) -> Option<Turn> {
        let Turn { tries, losses, .. } = turn;
        match (self.throttle.has_lost(), is_lost) {
            (_, true) => (losses < LOSSES_MAX).then_some(Turn { losses: losses + 1, ..turn }),
            (true, false) => (tries + 1 < self.pace.retry.server_tries()).then_some(Turn { tries: tries + 1, ..turn }),
            (false, false) => None,
        }
    }

    fn end(&mut self, turn: Turn, state: State) {
        let Run { parts, finished, .. } = self;
        let part = parts.get_mut(turn.part as usize);
        if let Some(server) = part.and_then(|part| part.get_mut(turn.number as usize)) {
            server.state = state;
            finished(server);
        }
    }
}

impl<F: FnMut(&Found)> Driver for Run<'_, '_, F> {
    type Tag = Tag;

    fn asker(&mut self) -> &mut Asker<Tag> {
        &mut self.asker
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
        let (size, from) = self.socket.receive(buffer)?;
        self.is_quiet = false;
        Some((LANE, size, from))
    }

    fn received_us(&self) -> u64 {
        self.socket.received_at().saturating_duration_since(self.started).as_micros() as u64
    }

    fn all_heard(&mut self, buffer: &mut [u8]) {
        if self.lost != self.socket.lost() {
            self.lost = self.socket.lost();
            self.throttle.lost(self.now_us(), self.asker.in_flight());
        }
        while let Some(report) = self.socket.undelivered(buffer) {
            let quoted = buffer.get(..report.quoted).unwrap_or_default();
            self.take_report(&report, quoted);
        }
    }

    async fn overdue(&mut self, over: &Finished<Tag>, buffer: &mut [u8]) {
        if is_silence(&over.result) && !self.is_quiet {
            self.check_for_losses(buffer).await;
        }
    }

    fn prepare(&mut self) {
        self.take_more();
    }

    fn lane(&mut self, _now_us: u64) -> Option<Lane> {
        Some(LANE)
    }

    async fn send(&mut self, _lane: Lane, address: Address, question: Question) {
        self.socket.push(question, address);
        if self.socket.is_full() {
            self.flush().await;
        }
    }

    async fn flush(&mut self) {
        while let Err((to, error)) = self.socket.flush().await {
            let address = Address::new(to.ip(), to.port());
            if let Some(tag) = address.and_then(|address| self.asker.tag_mut(address)) {
                tag.undelivered = Some(error);
            }
        }
    }

    fn finish(&mut self, over: Finished<Tag>) {
        let Finished { tag, result, .. } = over;
        let is_lost = self.throttle.may_have_lost(tag.asked_us);
        let says_no_more = |result: &Result<Response, Failure>| {
            let game = self.found(tag.turn).map(|server| &server.game);
            let query = game.and_then(query_of);
            query.is_some_and(|query| query.proven_by() == ProvenBy::Port)
                && matches!(result, Ok(Response { facts: None, fault: None, .. }))
        };
        let is_alive = says_no_more(&result);
        if let Ok(Response { rtt_us, facts, .. }) = &result
            && (facts.is_some() || is_alive)
        {
            self.throttle.answered(self.received_us(), *rtt_us, self.asker.in_flight());
        } else if let Some(turn) = self.another_turn(tag.turn, is_lost) {
            self.queue.push_back(turn);
            return;
        }
        let state = match result {
            Ok(Response { rtt_us, facts: Some(facts), .. }) => {
                if let Some(server) = self.found_mut(tag.turn) {
                    // If the protocol has many games, the answer says which one this is.
                    if let Some(game) = game(server.game.protocol(), &facts.game) {
                        server.game = game;
                    }
                    server.facts = *facts;
                    server.rtt_us = Some(rtt_us);
                }
                State::Answered
            }
            Ok(Response { rtt_us, .. }) if is_alive => {
                if let Some(server) = self.found_mut(tag.turn) {
                    server.rtt_us = Some(rtt_us);
                }
                State::Answered
            }
            Ok(Response { fault: Some(fault), .. }) => State::Failed(Failure::Bad(fault).words("")),
            Ok(_) => State::Failed("it answers, but does not describe itself".into()),
            Err(failure) => State::Failed(match (&failure, tag.undelivered) {
                (Failure::Silent, Some(error)) => format!("{}: {error}", failure.words("")),
                (Failure::Silent, None) if is_lost => {
                    format!("{}, or this machine lost it: try a lower --rate", failure.words(""))
                }
                _ => failure.words(""),
            }),
        };
        self.end(tag.turn, state);
    }
}

/// Whether there is no usable answer, though one may have been sent.
fn is_silence(result: &Result<Response, Failure>) -> bool {
    matches!(result, Err(Failure::Silent) | Ok(Response { facts: None, fault: None, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::simulate::{self, Network};
    use crate::model::Game;
    use crate::protocols::card;
    use nix::libc;
    use nix::sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
    };
    use std::net::Ipv4Addr;
    use std::os::fd::AsRawFd;

    /// Simulated servers on their own thread, so that they answer whatever the test is doing.
    fn simulated(game: &'static str, count: usize, delay_ms: u64) -> Vec<Found> {
        let (sender, addresses) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let servers = simulate::bind(card(game).unwrap(), count, "127.0.0.1:0".parse().unwrap()).await.unwrap();
                sender.send(servers.iter().map(|server| server.address).collect::<Vec<_>>()).unwrap();
                simulate::run(servers, Network { loss_percent: 0, delay: Duration::from_millis(delay_ms) }, None).await;
            });
        });
        let addresses = addresses.recv().unwrap();
        addresses.into_iter().map(|address| Found::new(Game::Own(card(game).unwrap().name), address)).collect()
    }

    /// Simulated servers at consecutive addresses in 127.0.0.0/8, which share a socket.
    pub fn many(game: &'static str, count: u32) -> Vec<Found> {
        let card = card(game).unwrap();
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let address = move |ip: Ipv4Addr| Address::new(ip.into(), port).unwrap();
        std::thread::spawn(move || {
            let mut control = nix::cmsg_space!(libc::in_pktinfo);
            let mut buffer = [0; 100];
            loop {
                let mut slices = [io::IoSliceMut::new(&mut buffer)];
                let fd = socket.as_raw_fd();
                let read: RecvMsg<SockaddrIn> =
                    recvmsg(fd, &mut slices, Some(&mut control), MsgFlags::empty()).unwrap();
                let about = read.cmsgs().unwrap().next();
                let Some(ControlMessageOwned::Ipv4PacketInfo(mut info)) = about else { panic!("{about:?}") };
                let (from, size) = (read.address.unwrap(), read.bytes);
                info.ipi_spec_dst = info.ipi_addr;
                let at = Ipv4Addr::from_bits(u32::from_be(info.ipi_addr.s_addr));
                for answer in card.answer.unwrap()(&(card.pretend)(5), address(at), &buffer[..size]) {
                    let about = [ControlMessage::Ipv4PacketInfo(&info)];
                    let slices = [io::IoSlice::new(&answer)];
                    let _ = sendmsg(fd, &slices, &about, MsgFlags::empty(), Some(&from)); // nobody waits for it any more
                }
            }
        });
        let ip = |number| Ipv4Addr::from_bits(u32::from_be_bytes([127, 1, 0, 0]) + number);
        (0..count).map(|number| Found::new(Game::Own(card.name), address(ip(number)))).collect()
    }

    /// For servers that one thread answers for, which may be late beside other work: no more in flight than its buffer takes.
    pub fn patient(in_flight: usize) -> Pace {
        let retry = RetryPolicy { timeout: Some(Duration::from_secs(10)), retries: Some(RetryPolicy::RETRIES_MAX) };
        Pace { in_flight, retry, ..Pace::default() }
    }

    #[tokio::test]
    async fn ten_thousand_servers_at_an_open_rate_all_answer() {
        let pace = Pace { per_second: 1_000_000, ..patient(200) };
        let mut found = many("netpanzer", 10_000);
        query_all(&mut found, pace, |_| {}).await.unwrap();
        let failed: Vec<_> = found.iter().filter_map(Found::failure).collect();
        assert_eq!(failed, Vec::<&str>::new());
        assert!(found.iter().all(|server| server.state == State::Answered && !server.facts.name.is_empty()));
    }

    #[tokio::test]
    async fn details_are_left_out_on_request() {
        for game in ["netpanzer", "quake3"] {
            for details in [true, false] {
                let mut found = simulated(game, 3, 0);
                let wanted = Wanted { details, ..Wanted::default() };
                query_all(&mut found, Pace { wanted, ..Pace::default() }, |_| {}).await.unwrap();
                let is_right =
                    |server: &Found| !server.facts.name.is_empty() && server.facts.details.is_some() == details;
                assert!(found.iter().all(is_right), "{game} {details}: {found:?}");
            }
        }
    }

    #[tokio::test]
    async fn which_game_it_is_is_asked_on_request() {
        for game in [true, false] {
            let mut found = simulated("quake3", 3, 0);
            let wanted = Wanted { game, ..Wanted::default() };
            query_all(&mut found, Pace { wanted, ..Pace::default() }, |_| {}).await.unwrap();
            for server in &found {
                assert_eq!((server.game.name() != "quake3", server.url().starts_with("quake3://")), (game, true));
                assert!(!server.facts.name.is_empty() && server.facts.details.is_some(), "{server:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_this_machine_loses_is_not_the_servers_silence() {
        // All at once, with room for some ten answers.
        let retry = RetryPolicy { timeout: Some(Duration::from_millis(500)), retries: Some(1) };
        let pace = Pace {
            per_second: 1_000_000,
            in_flight: 1_000_000,
            retry,
            receive_buffer: Some(8 << 10),
            ..Pace::default()
        };
        for game in ["hyperbol", "netpanzer"] {
            let mut found = simulated(game, 300, 20);
            let mut finished = 0;
            query_all(&mut found, pace, |_| finished += 1).await.unwrap();
            let failed: Vec<_> = found.iter().filter_map(Found::failure).collect();
            assert_eq!((failed.as_slice(), finished), (&[][..], 300), "{game}");
        }
    }

    #[tokio::test]
    async fn servers_that_take_longer_than_a_try_are_found_though_they_are_many() {
        let retry = RetryPolicy { timeout: Some(Duration::from_millis(400)), retries: None };
        let pace = Pace { in_flight: 20, retry, ..Pace::default() };
        let mut found = simulated("netpanzer", 120, 500);
        query_all(&mut found, pace, |_| {}).await.unwrap();
        let failed: Vec<_> = found.iter().filter_map(Found::failure).collect();
        assert_eq!(failed, Vec::<&str>::new());
    }

    #[tokio::test]
    async fn a_closed_port_is_told_from_silence() {
        let bound = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let closed = bound().local_addr().unwrap();
        let silent = bound();
        let server =
            |at: std::net::SocketAddr| Found::new(Game::Own("hyperbol"), Address::new(at.ip(), at.port()).unwrap());
        let mut found = vec![server(closed), server(silent.local_addr().unwrap())];
        let mut order = Vec::new();
        let retry = RetryPolicy { timeout: Some(Duration::from_millis(100)), retries: None };
        query_all(&mut found, Pace { retry, ..Pace::default() }, |server| order.push(server.address)).await.unwrap();
        assert_eq!(found[0].failure(), Some("connection refused: the port is closed"));
        assert_eq!(found[1].failure(), Some("no answer"));
        assert_eq!(order, [found[0].address, found[1].address], "at once");
        // The closed port failed after one query, the silent one after four.
        silent.set_nonblocking(true).unwrap();
        let asked = std::iter::from_fn(|| silent.recv(&mut [0; 100]).ok()).count();
        assert_eq!(asked, 4);
    }
}

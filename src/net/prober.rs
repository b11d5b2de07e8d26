//! The prober queries servers, to verify those that announce themselves and to keep the list up to date. It queries only
//! servers that announced themselves, that are tested from their own address, that the operator names, or that a master lists that
//! the operator follows, with rate limits per address and in total, so that it cannot be used to attack others.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tracing::debug;

use super::lanes::{Lanes, QUESTIONS_MAX};
use super::stopped;
use crate::asker::drive::{self, Driver};
use crate::asker::{Asker, Failure, Finished, Lane, Response, Settings};
use crate::hub::Hub;
use crate::ledger::{Channel, Ledger, Note, What};
use crate::metrics::Metrics;
use crate::model::{Address, Change, Game};
use crate::prefix::Networks;
use crate::protocols::post::Challenge;
use crate::protocols::{Ask, Query, Question, query_of};
use crate::registry::Due;

/// How often the prober checks for servers that are due.
/// A burst is as many as are due in that time, and the more there are, the fewer system calls each server takes.
const TICK: Duration = Duration::from_millis(50);
/// Upper bound on queries in flight; the rate limits keep it well below. One half is for regular rounds, the other for
/// servers that announce themselves, so that neither delays the other.
const IN_FLIGHT_MAX: usize = 100_000;
/// Upper bound on servers taken from the registry at once.
const DUE_MAX: usize = 4096;
/// Upper bound on announced servers that wait for their query.
const PROOFS_MAX: usize = 4096;
/// The longest possible datagram: a full server has a long list of players.
pub const DATAGRAM_BYTES_MAX: usize = 65_535;
const RECEIVE_BUFFER: usize = 8 << 20;

/// A heartbeat is answered within 4 s: three tries, and some time for the answer. If rounds are shorter than that, the tries
/// are too, so that each round ends before the next begins.
pub fn settings(per_second: u32, servers_per_ip_max: u32, every: Duration) -> Settings {
    let per_ip_per_second = servers_per_ip_max.saturating_mul(4);
    let try_us = (every.as_micros() as u64 * 3 / 10).min(1_000_000);
    Settings { tries: 3, try_us, all_us: try_us * 29 / 10, per_second, per_ip_per_second }
}

/// Settings that can change while the prober runs.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    pub settings: Settings,
    /// Networks in which only the limit per address applies.
    pub exempt: Arc<Networks>,
}

/// A handle to request the verification of a server.
#[derive(Clone)]
pub struct Prober {
    proofs: mpsc::Sender<ProofRequest>,
    challenges: mpsc::Sender<Challenge>,
}

struct ProofRequest {
    address: Address,
    query: &'static dyn Query,
    answer: oneshot::Sender<Result<Response, Unproven>>,
}

/// Why a server was not verified.
#[derive(Debug)]
pub enum Unproven {
    Asked(Failure),
    /// It was not queried: too many queries are in flight, or one of another game to the same port.
    Busy,
    /// It was not queried: too many queries to its address or network are in flight.
    TooMany,
}

/// Why a server is queried: for a regular round, for heartbeats that wait for the result, or both.
pub struct Purpose {
    query: &'static dyn Query,
    /// The query was started for a heartbeat, not for a regular round.
    is_proof: bool,
    round: Option<Round>,
    proofs: Vec<oneshot::Sender<Result<Response, Unproven>>>,
}

/// A regular query.
struct Round {
    game: Game,
    /// The server's newest proof when it was due.
    proven_at_ms: u64,
    /// Whether a miss counts. Where another node's question was not answered, it is that node's to say so.
    may_miss: bool,
}

impl Prober {
    /// Queries a server, and returns its response or why there is none.
    pub async fn prove(&self, address: Address, query: &'static dyn Query) -> Result<Response, Unproven> {
        let (answer, verdict) = oneshot::channel();
        self.proofs.try_send(ProofRequest { address, query, answer }).map_err(|_| Unproven::Busy)?;
        verdict.await.unwrap_or(Err(Unproven::Busy))
    }

    /// Sends a datagram to a server that has asked for it. Where too many wait, it is dropped, as if the network had lost it.
    pub fn challenge(&self, challenge: Challenge) {
        let _ = self.challenges.try_send(challenge); // the server asks again
    }
}

/// Whether this node of a cluster queries a server.
pub type IsMine = Box<dyn Fn(Address) -> bool + Send + Sync>;

/// What the prober sends from: sockets, or a simulated network.
pub trait Ports {
    /// How long a port waits for answers after its last query.
    fn set_linger_us(&mut self, linger_us: u64);
    /// Closes ports that no longer wait for answers.
    fn close_old(&mut self, now_us: u64);
    /// Opens as many ports as are missing.
    fn open_new(&mut self, now_us: u64);
    /// A random port of those in use; the first of several, if there is one of each of our addresses.
    fn pick(&mut self, now_us: u64) -> Option<Lane>;
    /// Which of our addresses asks a server of this address at its turn: so many lanes after the first.
    fn source(&self, _to: IpAddr, _turn: u8) -> Lane {
        0
    }
    fn send(&mut self, lane: Lane, to: Address, bytes: &[u8]) -> io::Result<usize>;
    /// Sends a question with the next [`Ports::flush`].
    fn ask(&mut self, lane: Lane, to: Address, question: Question);
    fn flush(&mut self);
    /// Reads a datagram from any of them. None when all are empty, or when each has had its turn.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)>;
}

impl Ports for Lanes {
    fn set_linger_us(&mut self, linger_us: u64) {
        Lanes::set_linger_us(self, linger_us);
    }

    fn close_old(&mut self, now_us: u64) {
        Lanes::close_old(self, now_us);
    }

    fn open_new(&mut self, now_us: u64) {
        Lanes::open_new(self, now_us);
    }

    fn pick(&mut self, now_us: u64) -> Option<Lane> {
        Lanes::pick(self, now_us)
    }

    fn source(&self, to: IpAddr, turn: u8) -> Lane {
        Lanes::source(self, to, turn)
    }

    fn send(&mut self, lane: Lane, to: Address, bytes: &[u8]) -> io::Result<usize> {
        Lanes::send(self, lane, to, bytes)
    }

    fn ask(&mut self, lane: Lane, to: Address, question: Question) {
        Lanes::ask(self, lane, to, question);
    }

    fn flush(&mut self) {
        Lanes::flush(self);
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
        Lanes::receive(self, buffer)
    }
}

/// The prober's task.
pub struct Worker<P = Lanes> {
    hub: Arc<Hub>,
    ledger: Arc<Ledger>,
    metrics: Arc<Metrics>,
    lanes: P,
    asker: Asker<Purpose>,
    /// Which servers this node queries.
    is_mine: IsMine,
    proofs: mpsc::Receiver<ProofRequest>,
    challenges: mpsc::Receiver<Challenge>,
    /// Queries in flight that were started for heartbeats.
    proving: usize,
    changes: Vec<Change<'static>>,
    targets: Vec<Due>,
}

impl Worker {
    pub fn new(
        hub: Arc<Hub>,
        ledger: Arc<Ledger>,
        metrics: Arc<Metrics>,
        settings: Settings,
        from: &[IpAddr],
        seed: [u8; 16],
    ) -> io::Result<(Prober, Worker)> {
        let lanes = Lanes::new(seed, from, hub.clock.mono_us(), linger_us(settings))?;
        Ok(Worker::over(lanes, hub, ledger, metrics, settings, seed))
    }

    /// Runs until the program stops; new settings take effect at once.
    pub async fn run(mut self, mut settings: watch::Receiver<ProbeSettings>, mut stop: watch::Receiver<bool>) {
        self.set(&settings.borrow_and_update());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return,
                () = self.lanes.readable() => {}
                Some(proof) = self.proofs.recv() => self.prove(proof),
                Some(challenge) = self.challenges.recv() => self.challenge(&challenge),
                _ = tick.tick() => self.take_due(),
                Ok(()) = settings.changed() => self.set(&settings.borrow_and_update()),
            }
            self.turn(&mut buffer).await;
        }
    }
}

impl<P: Ports> Worker<P> {
    /// A prober that sends from these ports.
    pub fn over(
        lanes: P,
        hub: Arc<Hub>,
        ledger: Arc<Ledger>,
        metrics: Arc<Metrics>,
        settings: Settings,
        seed: [u8; 16],
    ) -> (Prober, Worker<P>) {
        let (sender, proofs) = mpsc::channel(PROOFS_MAX);
        let (challenger, challenges) = mpsc::channel(PROOFS_MAX);
        let asker = Asker::new(settings, seed);
        let (changes, targets) = (Vec::new(), Vec::new());
        let is_mine: IsMine = Box::new(|_| true);
        let worker =
            Worker { hub, ledger, metrics, lanes, asker, is_mine, proofs, challenges, proving: 0, changes, targets };
        (Prober { proofs: sender, challenges: challenger }, worker)
    }

    /// In a cluster, queries only this node's share.
    pub fn sharing(self, is_mine: IsMine) -> Worker<P> {
        Worker { is_mine, ..self }
    }

    /// Everything that has come up by now: servers that are due, heartbeats that wait, answers. For a caller with its own
    /// loop.
    pub async fn step(&mut self, buffer: &mut [u8]) {
        while let Ok(proof) = self.proofs.try_recv() {
            self.prove(proof);
        }
        while let Ok(challenge) = self.challenges.try_recv() {
            self.challenge(&challenge);
        }
        self.take_due();
        self.turn(buffer).await;
    }

    /// Receives answers, sends questions and applies the results.
    async fn turn(&mut self, buffer: &mut [u8]) {
        drive::pass(self, buffer).await;
        self.apply();
    }

    /// Queries in flight.
    pub fn in_flight(&self) -> usize {
        self.asker.in_flight()
    }

    pub fn ports(&mut self) -> &mut P {
        &mut self.lanes
    }

    fn set(&mut self, settings: &ProbeSettings) {
        self.asker.set_settings(settings.settings);
        self.asker.set_exempt(settings.exempt.clone());
        self.lanes.set_linger_us(linger_us(settings.settings));
    }

    fn prove(&mut self, ProofRequest { address, query, answer }: ProofRequest) {
        let asked = self.asker.tag_mut(address);
        // The answer to another game's query proves nothing about this one.
        let is_other = asked.as_ref().is_some_and(|purpose| purpose.query.kind() != query.kind());
        if let Some(purpose) = asked.filter(|_| !is_other) {
            purpose.proofs.retain(|waits| !waits.is_closed());
            return purpose.proofs.push(answer);
        }
        let refusal = if is_other || self.proving >= IN_FLIGHT_MAX / 2 {
            Unproven::Busy
        } else if !self.asker.has_room_for(address.ip()) {
            Unproven::TooMany
        } else {
            self.proving += 1;
            let purpose = Purpose { query, is_proof: true, round: None, proofs: vec![answer] };
            let _ = self.asker.ask(address, query, Ask::Proof, purpose); // no query to it is in flight
            self.asker.ask_from(address, self.lanes.source(address.ip(), 0));
            return;
        };
        let _ = answer.send(Err(refusal)); // the requester may be gone
    }

    /// Nothing comes back to the port that it is sent from.
    fn challenge(&mut self, challenge: &Challenge) {
        let now_us = self.hub.clock.mono_us();
        self.lanes.open_new(now_us);
        let source = self.lanes.source(challenge.to.ip(), 0);
        let sent = self.lanes.pick(now_us).map(|first| self.lanes.send(first + source, challenge.to, &challenge.bytes));
        if let Some(Err(error)) = sent {
            debug!(address = %challenge.to, %error, "prober: sending a challenge failed");
        }
    }

    fn take_due(&mut self) {
        let rounds = self.asker.in_flight().saturating_sub(self.proving);
        let room = (IN_FLIGHT_MAX / 2).saturating_sub(rounds);
        let mut targets = std::mem::take(&mut self.targets);
        self.hub.due(self.hub.clock.now(), room.min(DUE_MAX), &mut targets);
        for Due { address, game, named, proven, proven_at_ms, digest, turn, others_ask } in targets.drain(..) {
            let may_miss = named || (self.is_mine)(address);
            let Some(query) = query_of(&game).filter(|_| may_miss || others_ask) else { continue };
            let round = Some(Round { game, proven_at_ms, may_miss });
            let purpose = Purpose { query, is_proof: false, round, proofs: Vec::new() };
            let ask = if proven { Ask::Facts } else { Ask::Proof };
            match self.asker.ask_known(address, query, ask, digest, purpose) {
                Ok(()) => self.asker.ask_from(address, self.lanes.source(address.ip(), turn)),
                Err(Purpose { round, .. }) => {
                    if let Some(asked) = self.asker.tag_mut(address).filter(|asked| asked.query.kind() == query.kind())
                    {
                        asked.round = round;
                    }
                }
            }
        }
        self.targets = targets;
        self.lanes.close_old(self.hub.clock.mono_us());
    }

    fn apply(&mut self) {
        if !self.changes.is_empty() {
            self.hub.apply(&self.changes, self.hub.clock.now(), |_, _| {});
            self.changes.clear();
        }
    }
}

impl<P: Ports> Driver for Worker<P> {
    type Tag = Purpose;

    fn asker(&mut self) -> &mut Asker<Purpose> {
        &mut self.asker
    }

    fn now_us(&self) -> u64 {
        self.hub.clock.mono_us()
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
        self.lanes.receive(buffer)
    }

    fn prepare(&mut self) {
        if self.asker.has_questions() {
            self.lanes.open_new(self.hub.clock.mono_us());
        }
    }

    fn lane(&mut self, now_us: u64) -> Option<Lane> {
        self.lanes.pick(now_us)
    }

    fn burst(&self) -> usize {
        QUESTIONS_MAX
    }

    async fn send(&mut self, lane: Lane, address: Address, question: Question) {
        self.metrics.questions.inc();
        self.lanes.ask(lane, address, question);
    }

    async fn flush(&mut self) {
        self.lanes.flush();
    }

    fn finish(&mut self, finished: Finished<Purpose>) {
        let Finished { address, tag: Purpose { is_proof, round, proofs, .. }, mut result } = finished;
        self.proving -= usize::from(is_proof);
        let what = match &result {
            Ok(answer) => What::Answered { rtt_us: answer.rtt_us },
            Err(Failure::Silent) => What::Silent,
            Err(Failure::Bad(fault)) => What::BadAnswer(Box::new(*fault)),
        };
        let at_ms = self.hub.clock.now().unix_ms;
        if let Ok(answer) = &result {
            self.metrics.rtt(answer.rtt_us);
        }
        let note = |what| self.ledger.note(address.ip(), Note::new(at_ms, Channel::Query, address.port(), 0, what));
        note(what);
        if result.as_ref().is_ok_and(|answer| answer.disputed) {
            note(What::Disputed);
        }
        if let Ok(answer) = &mut result
            && !proofs.is_empty()
            && answer.facts.is_none()
            && answer.digest != 0
        {
            // It says what is known: those who wait for it get that.
            answer.facts = self.hub.listed(address).map(|server| Box::new(server.facts().into_owned()));
        }
        for proof in proofs {
            let _ = proof.send(result.clone().map_err(Unproven::Asked)); // the requester may be gone
        }
        let Some(Round { game, proven_at_ms, .. }) = round.filter(|round| round.may_miss || result.is_ok()) else {
            return;
        };
        self.changes.push(match result {
            Ok(Response { rtt_us, facts, digest, .. }) => {
                let facts = facts.map(|facts| *facts);
                Change::Answer { address, game, rtt_us, facts, digest }
            }
            Err(failure) => {
                debug!(%address, game = game.name(), ?failure, "no good answer");
                Change::Miss { address, game, proven_at_ms: Some(proven_at_ms) }
            }
        });
    }
}

/// The destination as a socket address; `mapped`: as an IPv4-mapped address, for a dual-stack socket.
pub fn destination(address: Address, mapped: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if mapped => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address.socket(),
    }
}

/// How long after a question its answers may arrive.
fn linger_us(settings: Settings) -> u64 {
    settings.all_us + 2 * settings.try_us
}

/// A dual-stack socket (true: it needs IPv4-mapped addresses), or an IPv4 socket if the machine has no IPv6.
pub fn socket() -> io::Result<(UdpSocket, bool)> {
    socket_with(RECEIVE_BUFFER, None)
}

/// The same, bound to an address of this machine if one is named.
pub fn socket_with(receive_buffer: usize, from: Option<IpAddr>) -> io::Result<(UdpSocket, bool)> {
    let bind = |domain, own: SocketAddr| {
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(from.is_some())?;
        }
        socket.set_nonblocking(true)?;
        let _ = socket.set_recv_buffer_size(receive_buffer); // best effort: the system has a limit
        // Questions are short. What is never fragmented needs no identification, and choosing one for every destination takes an
        // eighth of what asking takes. Best effort: it only saves time.
        let _ = set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE);
        socket.bind(&own.into())?;
        UdpSocket::from_std(socket.into())
    };
    if let Some(ip) = from {
        let own = SocketAddr::new(ip, 0);
        return match bind(Domain::for_address(own), own) {
            Ok(socket) => Ok((socket, false)),
            Err(error) => Err(io::Error::new(error.kind(), format!("from {ip}: {error}"))),
        };
    }
    let both = bind(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, 0).into()).map(|socket| (socket, true));
    both.or_else(|_| Ok((bind(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, 0).into())?, false)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::VirtualTime;
    use crate::model::{NamedServer, Overrides};
    use crate::protocols::CARDS;
    use crate::registry;
    use std::sync::atomic::Ordering;
    use tokio::task::{JoinHandle, yield_now};

    /// Everything is sent, and nothing comes back.
    struct Silence;

    impl Ports for Silence {
        fn set_linger_us(&mut self, _linger_us: u64) {}

        fn close_old(&mut self, _now_us: u64) {}

        fn open_new(&mut self, _now_us: u64) {}

        fn pick(&mut self, _now_us: u64) -> Option<Lane> {
            Some(1)
        }

        fn send(&mut self, _lane: Lane, _to: Address, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn ask(&mut self, _lane: Lane, _to: Address, _question: Question) {}

        fn flush(&mut self) {}

        fn receive(&mut self, _buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
            None
        }
    }

    fn silence(time: &Arc<VirtualTime>) -> (Prober, Worker<Silence>) {
        let limits = registry::Settings { servers_max: 10, servers_per_ip_max: 10, ..registry::Settings::UNBOUNDED };
        let settings = settings(1_000, 100, Duration::from_secs(30));
        let (hub, ledger) = (Arc::new(Hub::simulated(limits, time.clone(), 7)), Arc::new(Ledger::new()));
        Worker::over(Silence, hub, ledger, Arc::new(Metrics::new()), settings, [7; 16])
    }

    /// Two games that are queried in different ways.
    fn two_games() -> [(Game, &'static dyn Query); 2] {
        let mut games = CARDS.iter().filter_map(|card| Some((Game::Own(card.name), card.query?)));
        [games.next().unwrap(), games.next().unwrap()]
    }

    fn address() -> Address {
        "192.0.2.1:5".parse().unwrap()
    }

    async fn proving(
        prober: &Prober,
        worker: &mut Worker<Silence>,
        query: &'static dyn Query,
    ) -> JoinHandle<Result<Response, Unproven>> {
        let prober = prober.clone();
        let proof = tokio::spawn(async move { prober.prove(address(), query).await });
        yield_now().await; // it makes its request
        worker.step(&mut [0; 100]).await;
        yield_now().await; // it takes its answer, if it has one
        proof
    }

    #[tokio::test]
    async fn an_answer_to_one_games_query_proves_no_other_game() {
        let ((prober, mut worker), [(_, one), (_, other)]) = (silence(&Arc::default()), two_games());
        let first = proving(&prober, &mut worker, one).await;
        let same = proving(&prober, &mut worker, one).await;
        let different = proving(&prober, &mut worker, other).await;
        assert!(!first.is_finished() && !same.is_finished(), "they wait for the same answer");
        assert!(different.is_finished());
        assert!(matches!(different.await.unwrap(), Err(Unproven::Busy)));
        assert_eq!(worker.in_flight(), 1);
    }

    #[tokio::test]
    async fn a_query_for_one_game_is_no_round_of_another() {
        for is_same in [true, false] {
            let time = Arc::new(VirtualTime::default());
            let ((prober, mut worker), [(_, one), (game, other)]) = (silence(&time), two_games());
            let proof = proving(&prober, &mut worker, if is_same { other } else { one }).await;
            let named = NamedServer { address: address(), game, overrides: Overrides::default(), asked: true };
            worker.hub.apply_one(&Change::NamedServers(Arc::new([named])), worker.hub.clock.now());
            time.mono_us.fetch_add(500_000, Ordering::Relaxed); // it is due
            worker.step(&mut [0; 100]).await;
            let joined = worker.asker.tag_mut(address()).unwrap().round.is_some();
            assert_eq!((joined, proof.is_finished()), (is_same, false));
        }
    }
}

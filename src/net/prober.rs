//! The prober: asks servers with their game's own query, to prove those that announce themselves and to keep what is
//! listed true. It asks only who has announced itself or is named by the operator, within a pace in all and for each
//! address, so that nobody can aim it at a victim.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tracing::debug;

use super::lanes::Lanes;
use super::stopped;
use crate::asker::drive::{self, Driver};
use crate::asker::{Asker, Failure, Finished, Lane, Response, Settings};
use crate::hub::Hub;
use crate::ledger::{Channel, Ledger, Note, What};
use crate::metrics::Metrics;
use crate::model::{Address, Change, Game};
use crate::prefix::Networks;
use crate::protocols::{Ask, Query, Question, query_of};
use crate::registry::Due;

/// How often the prober looks at what is due.
const TICK: Duration = Duration::from_millis(20);
/// Servers waited for at one time. More than enough for the pace; a bound all the same. Half of it is for the rounds, and
/// half for those who announce themselves: neither holds up the other.
const IN_FLIGHT_MAX: usize = 100_000;
/// Servers taken from the registry in one go.
const DUE_MAX: usize = 4096;
/// Those who announce themselves and wait to be asked.
const PROOFS_MAX: usize = 4096;
/// Any datagram: a full server has a long list of players.
const DATAGRAM_BYTES_MAX: usize = 65_535;
const RECEIVE_BUFFER: usize = 8 << 20;

/// A heartbeat is answered within 4 s: three tries, and then some time to say so. Where the rounds are shorter than that,
/// one is over before the next begins.
pub fn settings(per_second: u32, servers_per_ip_max: u32, every: Duration) -> Settings {
    let per_ip_per_second = servers_per_ip_max.saturating_mul(4);
    let try_us = (every.as_micros() as u64 * 3 / 10).min(1_000_000);
    Settings { tries: 3, try_us, all_us: try_us * 29 / 10, per_second, per_ip_per_second }
}

/// What the operator may set while the prober runs.
#[derive(Clone, Debug)]
pub struct Asking {
    pub settings: Settings,
    /// Networks that have only the pace of each address.
    pub exempt: Arc<Networks>,
}

/// How others ask the prober to prove a server.
#[derive(Clone)]
pub struct Prober {
    proofs: mpsc::Sender<ProofRequest>,
}

struct ProofRequest {
    address: Address,
    query: &'static dyn Query,
    answer: oneshot::Sender<Result<Response, Unproven>>,
}

/// Why a server has not been proven.
#[derive(Debug)]
pub enum Unproven {
    Asked(Failure),
    /// It was not asked: too much is under way.
    Busy,
    /// It was not asked: too much is under way to its owner's servers.
    TooMany,
}

/// Why a server is asked: its turn has come, somebody waits for its proof, or both.
pub struct Purpose {
    /// It is asked because somebody waits, and not because it was its turn.
    is_proof: bool,
    round: Option<Game>,
    proofs: Vec<oneshot::Sender<Result<Response, Unproven>>>,
}

impl Prober {
    /// Asks a server until it has answered or failed to.
    pub async fn prove(&self, address: Address, query: &'static dyn Query) -> Result<Response, Unproven> {
        let (answer, verdict) = oneshot::channel();
        self.proofs.try_send(ProofRequest { address, query, answer }).map_err(|_| Unproven::Busy)?;
        verdict.await.unwrap_or(Err(Unproven::Busy))
    }
}

/// Whether a server is this node's to ask, where there are several nodes.
pub type IsMine = Box<dyn Fn(Address) -> bool + Send + Sync>;

/// The prober at work. One task: everything it does is short.
pub struct Worker {
    hub: Arc<Hub>,
    ledger: Arc<Ledger>,
    metrics: Arc<Metrics>,
    lanes: Lanes,
    asker: Asker<Purpose>,
    /// Which servers are this node's to ask.
    is_mine: IsMine,
    proofs: mpsc::Receiver<ProofRequest>,
    /// How many are asked because somebody waits.
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
        seed: [u8; 16],
    ) -> io::Result<(Prober, Worker)> {
        let lanes = Lanes::new(seed, hub.clock.mono_us(), linger_us(settings))?;
        let (sender, proofs) = mpsc::channel(PROOFS_MAX);
        let asker = Asker::new(settings, seed);
        let (changes, targets) = (Vec::new(), Vec::new());
        let is_mine: IsMine = Box::new(|_| true);
        let worker = Worker { hub, ledger, metrics, lanes, asker, is_mine, proofs, proving: 0, changes, targets };
        Ok((Prober { proofs: sender }, worker))
    }

    /// Asks only this node's share, where there are others.
    pub fn sharing(self, is_mine: IsMine) -> Worker {
        Worker { is_mine, ..self }
    }

    /// Asks until the program stops; new settings take effect as they come.
    pub async fn run(mut self, mut asking: watch::Receiver<Asking>, mut stop: watch::Receiver<bool>) {
        self.set(&asking.borrow_and_update());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return,
                () = self.lanes.readable() => {}
                Some(proof) = self.proofs.recv() => self.prove(proof),
                _ = tick.tick() => self.take_due(),
                Ok(()) = asking.changed() => self.set(&asking.borrow_and_update()),
            }
            drive::pass(&mut self, &mut buffer).await;
            self.apply();
        }
    }

    fn set(&mut self, asking: &Asking) {
        self.asker.set_settings(asking.settings);
        self.asker.set_exempt(asking.exempt.clone());
        self.lanes.set_linger_us(linger_us(asking.settings));
    }

    fn prove(&mut self, ProofRequest { address, query, answer }: ProofRequest) {
        if let Some(purpose) = self.asker.tag_mut(address) {
            purpose.proofs.retain(|waits| !waits.is_closed());
            return purpose.proofs.push(answer);
        }
        let refusal = if self.proving >= IN_FLIGHT_MAX / 2 {
            Unproven::Busy
        } else if !self.asker.has_room_for(address.ip()) {
            Unproven::TooMany
        } else {
            self.proving += 1;
            let purpose = Purpose { is_proof: true, round: None, proofs: vec![answer] };
            let _ = self.asker.ask(address, query, Ask::Proof, purpose); // it is not being asked yet
            return;
        };
        let _ = answer.send(Err(refusal)); // or whoever asked is gone
    }

    fn take_due(&mut self) {
        let rounds = self.asker.in_flight().saturating_sub(self.proving);
        let room = (IN_FLIGHT_MAX / 2).saturating_sub(rounds);
        let mut targets = std::mem::take(&mut self.targets);
        self.hub.due(self.hub.clock.now(), room.min(DUE_MAX), &mut targets);
        for Due { address, game, named, proven } in targets.drain(..) {
            let Some(query) = query_of(&game).filter(|_| named || (self.is_mine)(address)) else { continue };
            let purpose = Purpose { is_proof: false, round: Some(game), proofs: Vec::new() };
            let ask = if proven { Ask::Facts } else { Ask::Proof };
            if let Err(Purpose { round, .. }) = self.asker.ask(address, query, ask, purpose)
                && let Some(asked) = self.asker.tag_mut(address)
            {
                asked.round = round;
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

impl Driver for Worker {
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

    fn lane(&mut self) -> Option<Lane> {
        self.lanes.pick(self.hub.clock.mono_us())
    }

    async fn send(&mut self, lane: Lane, address: Address, question: Question) {
        self.metrics.questions.inc();
        if let Err(error) = self.lanes.send(lane, address, &question) {
            debug!(%address, %error, "prober: sending failed");
        }
    }

    fn finish(&mut self, finished: Finished<Purpose>) {
        let Finished { address, tag: Purpose { is_proof, round, proofs }, result } = finished;
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
        for proof in proofs {
            let _ = proof.send(result.clone().map_err(Unproven::Asked)); // whoever asked may be gone
        }
        let Some(game) = round else { return };
        self.changes.push(match result {
            Ok(Response { rtt_us, facts, .. }) => Change::Answer { address, game, rtt_us, facts },
            Err(failure) => {
                debug!(%address, game = game.name(), ?failure, "no good answer");
                Change::Miss { address, game }
            }
        });
    }
}

/// Where to send: an IPv4 address is written as IPv6 for a socket of both families.
pub fn destination(address: Address, mapped: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if mapped => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address.socket(),
    }
}

/// How long answers may come after a question.
fn linger_us(settings: Settings) -> u64 {
    settings.all_us + 2 * settings.try_us
}

/// One socket for both families (true: IPv4 addresses have to be written as IPv6), or for IPv4 alone where the machine
/// has no other.
pub fn socket() -> io::Result<(UdpSocket, bool)> {
    socket_with(RECEIVE_BUFFER)
}

pub fn socket_with(receive_buffer: usize) -> io::Result<(UdpSocket, bool)> {
    let bind = |domain, any: SocketAddr| {
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        let _ = socket.set_recv_buffer_size(receive_buffer); // the system gives what it allows
        socket.bind(&any.into())?;
        UdpSocket::from_std(socket.into())
    };
    let both = bind(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, 0).into()).map(|socket| (socket, true));
    both.or_else(|_| Ok((bind(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, 0).into())?, false)))
}

//! One master: the program's own parts, put together as `app.rs` does, with the simulated network in the place of sockets and
//! a time that the world sets.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use arc_swap::ArcSwap;
use rallypoint::asker::Lane;
use rallypoint::cluster::record::node_tag;
use rallypoint::cluster::share::Share;
use rallypoint::config::Config;
use rallypoint::cookie::Keys;
use rallypoint::hub::{Hub, VirtualTime};
use rallypoint::ledger::{Channel, Ledger};
use rallypoint::metrics::Metrics;
use rallypoint::model::{Address, Server, SharedTime};
use rallypoint::net::announcements::Announcements;
use rallypoint::net::batch::Datagram;
use rallypoint::net::datagram_lists::{self, SendPackets};
use rallypoint::net::guard::Guard;
use rallypoint::net::prober::{self, Ports, Worker};
use rallypoint::net::session::{self, Numbers, StreamService};
use rallypoint::net::udp::{self, Datagrams};
use rallypoint::protocols::post::Post;
use rallypoint::protocols::section::{Cookies, LocalAddresses, RouteAnswer, Surroundings};
use rallypoint::protocols::{Card, Heartbeat, ListRequest, Question, Reply};
use rallypoint::registry::view::{Batch, Delta, Renderer};
use rallypoint::store::{Restored, Store, Writer, history};
use tokio::io::DuplexStream;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use crate::random::Rng;

/// Where the simulated years begin.
pub const EPOCH_MS: u64 = 1_790_000_000_000;
/// A port that no service and no lane has.
const CONNECTIONS_MAX: usize = 1_000;
/// A connection's buffer in either direction.
const STREAM_BYTES: usize = 64 << 10;
const QUESTION_LANES: u64 = 8;
const LANE_US: u64 = 250_000;
const LANES_KEPT: usize = 64;

pub struct Node {
    pub ip: IpAddr,
    pub config: Config,
    time: Arc<VirtualTime>,
    pub hub: Arc<Hub>,
    pub guard: Arc<Guard>,
    pub announcements: Arc<Announcements>,
    pub prober: Worker<SimulatedPorts>,
    datagrams: Vec<DatagramService>,
    streams: Vec<(&'static Card, Arc<StreamService>)>,
    cookies: Cookies,
    store: Option<Store>,
    writer: Option<Writer>,
    pub tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
    batches: broadcast::Receiver<Arc<Batch>>,
    /// The list as its deltas tell it.
    pub listed: BTreeMap<Address, Arc<Server>>,
    /// When each of them was last put on it, in the world's time.
    pub listed_since: BTreeMap<Address, u64>,
    pub serial: u64,
    /// When it started, in the world's time.
    pub started_ms: u64,
    buffer: Vec<u8>,
    /// In a cluster: what has been published and the others do not know yet.
    pub unshared: RefCell<Vec<Arc<Batch>>>,
    is_clustered: bool,
}

struct DatagramService {
    card: &'static Card,
    port: u16,
    worker: udp::Worker,
    sender: datagram_lists::Sender,
    requests: Receiver<(SocketAddr, ListRequest)>,
    channel: Channel,
}

/// What a node sends: from one of its ports, to an address.
pub struct Outgoing {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With the size of the datagram that it answers.
    Reply {
        asked_bytes: usize,
    },
    List,
    Question,
}

impl Node {
    /// Starts a node at this time of its two clocks, with the folder of its store.
    pub fn start(
        ip: IpAddr,
        config: &Config,
        folder: Option<&Path>,
        keys: Keys,
        rng: &mut Rng,
        (ms, unix_ms): (u64, i64),
        cluster: Option<(&str, Arc<Share>)>,
    ) -> (Node, Restored) {
        let time = Arc::new(VirtualTime::default());
        time.unix_ms.store(unix_ms, Ordering::Relaxed);
        let hub = Arc::new(Hub::simulated(config.registry(usize::MAX), time.clone(), rng.next()));
        hub.set_exempt(config.guard.exempt());
        if let Some((name, _)) = &cluster {
            hub.set_node(node_tag(name));
        }
        let guard = Arc::new(Guard::new(config.guard.settings(CONNECTIONS_MAX)));
        let (ledger, metrics) = (Arc::new(Ledger::new()), Arc::new(Metrics::new()));
        let probe = &config.probe;
        let settings = prober::settings(probe.per_second_max, config.guard.servers_per_ip_max, probe.every);
        let ports = SimulatedPorts::new(rng.next());
        let cookies = Cookies { keys, time: SharedTime::default() };
        let (prober, worker) = Worker::over(ports, hub.clone(), ledger.clone(), metrics.clone(), settings, rng.key());
        let announcements = Arc::new(Announcements::new(hub.clone(), guard.clone(), prober, ledger.clone(), cookies));
        let is_clustered = cluster.is_some();
        let worker = match cluster {
            Some((_, share)) => worker.sharing(Box::new(move |address| share.is_mine(address))),
            None => worker,
        };
        let mut datagrams = Vec::new();
        let mut streams = Vec::new();
        for (card, section) in config.sections() {
            if let (Some(rules), Some(bytes_max)) =
                (section.datagrams(cookies), section.listeners().iter().find_map(|l| l.transport.datagram_bytes_max()))
            {
                let rules = Arc::new(ArcSwap::from_pointee(rules));
                let sender = datagram_lists::Sender {
                    game: card.name,
                    rules: rules.clone(),
                    guard: guard.clone(),
                    hub: hub.clone(),
                    metrics: metrics.clone(),
                    stop: Arc::default(),
                };
                let (lists, requests) = sender.queue();
                let worker = udp::Worker {
                    game: card.name,
                    bytes_max,
                    rules,
                    guard: guard.clone(),
                    hub: hub.clone(),
                    ledger: ledger.clone(),
                    lists,
                    stop: Arc::default(),
                };
                let (port, channel) = (card.master_port.unwrap_or(1), Channel::datagrams(card.name));
                datagrams.push(DatagramService { card, port, worker, sender, requests, channel });
            }
            if let Some(rules) = section.streams(&LocalAddresses::default()) {
                let service = StreamService {
                    game: card.name,
                    rules: Arc::new(ArcSwap::from_pointee(rules)),
                    announcements: announcements.clone(),
                    metrics: metrics.clone(),
                    numbers: Numbers::default(),
                };
                streams.push((card, Arc::new(service)));
            }
        }
        // Without history: its cost would be most of a simulated hour's.
        let history = history::Settings { every_s: 3_600, bytes_max: 0 };
        let mut store = folder.map(|folder| Store::open(folder, history).unwrap());
        let restored = store.as_mut().map(|store| store.restore(&hub, |_| false)).unwrap_or_default();
        let batches = hub.subscribe();
        hub.publish(hub.clock.now());
        let writer = store.as_mut().map(|store| store.writer(&hub));
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(announcements.clone().retry_silent(stop.subscribe()));
        let mut node = Node {
            ip,
            config: config.clone(),
            time,
            hub,
            guard,
            announcements,
            prober: worker,
            datagrams,
            streams,
            cookies,
            store,
            writer,
            tasks,
            stop,
            batches,
            listed: BTreeMap::new(),
            listed_since: BTreeMap::new(),
            serial: 0,
            started_ms: ms,
            buffer: vec![0; 65_535],
            unshared: RefCell::default(),
            is_clustered,
        };
        node.take_batches();
        (node, restored)
    }

    pub fn set_time(&self, ms: u64, unix_ms: i64) {
        self.time.mono_us.store((ms - self.started_ms) * 1_000, Ordering::Relaxed);
        self.time.unix_ms.store(unix_ms, Ordering::Relaxed);
    }

    pub fn rotate_keys(&mut self, secret: [u8; 16]) {
        let keys = self.cookies.keys.rotated(secret);
        self.set_cookies(Cookies { keys, ..self.cookies });
    }

    pub fn set_cookies(&mut self, cookies: Cookies) {
        self.cookies = cookies;
        for service in &self.datagrams {
            let section = self.config.sections().find(|(card, _)| card.name == service.card.name);
            if let Some(rules) = section.and_then(|(_, section)| section.datagrams(cookies)) {
                service.worker.rules.store(Arc::new(rules));
            }
        }
    }

    pub fn datagram_ports(&self) -> impl Iterator<Item = (&'static Card, u16)> {
        self.datagrams.iter().map(|service| (service.card, service.port))
    }

    /// Datagrams arrive at one of its ports, in one batch.
    pub fn receive(&mut self, port: u16, datagrams: Vec<(SocketAddr, Vec<u8>)>, out: &mut Vec<Outgoing>) {
        let Some(service) = self.datagrams.iter().find(|service| service.port == port) else {
            let now_us = self.hub.clock.mono_us();
            datagrams.into_iter().for_each(|(from, bytes)| self.prober.ports().deliver(now_us, port, from, bytes));
            return;
        };
        let at = SocketAddr::new(self.ip, port);
        let mut batch =
            SimulatedBatch { received: datagrams, replies: Vec::new(), bytes_max: service.worker.bytes_max };
        service.worker.serve(&mut batch, service.channel);
        out.extend(batch.replies.into_iter().map(|(to, bytes, asked_bytes)| Outgoing {
            from: at,
            to,
            bytes,
            kind: Kind::Reply { asked_bytes },
        }));
        while let Ok((from, request)) = service.requests.try_recv() {
            let mut packets = SimulatedPackets(Vec::new());
            service.sender.answer(from, &request, &mut packets);
            let lists = packets.0.into_iter();
            out.extend(lists.map(|(to, bytes)| Outgoing { from: at, to, bytes, kind: Kind::List }));
        }
    }

    /// The prober's turn.
    pub async fn probe(&mut self, out: &mut Vec<Outgoing>) {
        self.prober.step(&mut self.buffer).await;
        let ip = self.ip;
        for (port, to, bytes) in self.prober.ports().sent.drain(..) {
            out.push(Outgoing { from: SocketAddr::new(ip, port), to: to.socket(), bytes, kind: Kind::Question });
        }
    }

    /// Publishes what has changed. Returns what follows from the deltas: the servers that came or changed.
    pub fn publish(&mut self) -> Vec<Delta> {
        self.hub.publish(self.hub.clock.now());
        self.take_batches()
    }

    /// Applies the deltas to the list so far: serials increase by one, and each delta fits the list that it changes.
    fn take_batches(&mut self) -> Vec<Delta> {
        let ms = self.started_ms + self.hub.clock.mono_us() / 1_000;
        let mut all = Vec::new();
        while let Ok(batch) = self.batches.try_recv() {
            assert_eq!(batch.serial, self.serial + 1, "serials increase by one");
            self.serial = batch.serial;
            for delta in &batch.deltas {
                let server = delta.server();
                let before = match delta {
                    Delta::Removed(_) => self.listed.remove(&server.address),
                    _ => self.listed.insert(server.address, server.clone()),
                };
                assert_eq!(before.is_none(), matches!(delta, Delta::Added(_)), "the delta fits: {delta:?}");
                match delta {
                    Delta::Removed(_) => self.listed_since.remove(&server.address),
                    _ => Some(*self.listed_since.entry(server.address).or_insert(ms)),
                };
            }
            all.extend(batch.deltas.iter().cloned());
            if self.is_clustered {
                self.unshared.borrow_mut().push(batch);
            }
        }
        assert_eq!(self.hub.view_guard().serial, self.serial);
        all
    }

    /// Whether the deltas have led to the published view.
    pub fn check_view(&self) {
        let view = self.hub.view();
        assert_eq!(view.servers.len(), self.listed.len(), "the deltas lead to the view");
        for server in &*view.servers {
            assert!(self.listed.get(&server.address).is_some_and(|known| Arc::ptr_eq(known, server)));
        }
    }

    pub fn write_store(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.turn(false);
        }
    }

    /// Stops cleanly, or is killed.
    pub fn end(mut self, is_clean: bool) {
        let _ = self.stop.send(true);
        self.tasks.abort_all();
        if is_clean {
            self.hub.publish(self.hub.clock.now());
            if let Some(writer) = &mut self.writer {
                writer.turn(true);
            }
        }
        drop((self.writer.take(), self.store.take()));
    }

    /// Opens a connection to a protocol's port; None if it is refused.
    pub fn connect(&mut self, card: &Card, peer: SocketAddr, random: u32) -> Option<DuplexStream> {
        let (card, service) = self.streams.iter().find(|(with, _)| with.name == card.name)?;
        let admission = Arc::new(self.guard.admit(peer.ip())?);
        let (client, server) = tokio::io::duplex(STREAM_BYTES);
        let local = SocketAddr::new(self.ip, card.master_port.unwrap_or(1));
        let idle = self.config.guard.idle.max(Duration::from_secs(1));
        let talk = service.open((peer, local), random);
        let serving = session::converse(server, talk, admission.clone(), service.clone(), idle);
        self.tasks.spawn(async move {
            tokio::select! {
                () = serving => {}
                () = admission.evicted() => {}
            }
        });
        Some(client)
    }

    /// The effect of a GET on one of the paths that a protocol brings: a list, or a heartbeat.
    pub fn get(&self, card: &Card, peer: IpAddr, path_and_query: &str) -> Option<RouteAnswer> {
        let (_, section) = self.config.sections().find(|(with, _)| with.name == card.name)?;
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let route = section.routes(&Surroundings::default()).into_iter().find(|route| route.path == path)?;
        Some(route.rule.get(peer, query))
    }

    /// What a game server posts. Whether there is such a path.
    pub fn post(&mut self, card: &Card, peer: IpAddr, path: &str, headers: &[(&str, String)], body: &[u8]) -> bool {
        let Some((_, section)) = self.config.sections().find(|(with, _)| with.name == card.name) else { return false };
        let Some(route) = section.posts().into_iter().find(|route| route.path == path) else { return false };
        let header = |name| headers.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str());
        let answer = self.announcements.post(route.rule, &Post { peer, header: &header, body });
        self.tasks.spawn(async move {
            answer.await;
        });
        true
    }

    /// A heartbeat over HTTP.
    pub fn announce(&mut self, heartbeat: Heartbeat) {
        let announcements = self.announcements.clone();
        self.tasks.spawn(async move {
            announcements.announce(heartbeat).await;
        });
    }

    pub fn render(&self, renderer: &Arc<dyn Renderer>) -> Vec<u8> {
        self.hub.list_blocking(renderer).body.to_vec()
    }
}

/// A batch of datagrams without a socket.
struct SimulatedBatch {
    received: Vec<(SocketAddr, Vec<u8>)>,
    /// To whom, what, and the size of the datagram that it answers.
    replies: Vec<(SocketAddr, Vec<u8>, usize)>,
    bytes_max: usize,
}

impl Datagrams for SimulatedBatch {
    fn each<'a>(&'a mut self, mut look: impl FnMut(Datagram<'a>, &mut Reply)) {
        let mut reply = Reply::new();
        for (from, bytes) in &self.received {
            look(Datagram { from: *from, bytes: &bytes[..bytes.len().min(self.bytes_max)] }, &mut reply);
            if !reply.is_empty() {
                self.replies.push((*from, reply.to_vec(), bytes.len()));
                reply.clear();
            }
        }
    }

    fn withhold(&mut self, number: usize) {
        self.replies.swap_remove(number);
    }

    fn send_replies(&mut self) {}
}

/// Packets of lists.
struct SimulatedPackets(Vec<(SocketAddr, Vec<u8>)>);

impl SendPackets for SimulatedPackets {
    fn send<'a>(&mut self, to: SocketAddr, packets: impl Iterator<Item = datagram_lists::Parts<'a>>) -> u64 {
        let sent: Vec<_> = packets.map(|parts| (to, parts.concat())).collect();
        let bytes = sent.iter().map(|(_, packet)| packet.len() as u64).sum();
        self.0.extend(sent);
        bytes
    }
}

/// The prober's ports: eight at a time, each with a random number, used for two seconds.
pub struct SimulatedPorts {
    rng: Rng,
    open: VecDeque<(Lane, u16)>,
    inbox: VecDeque<(Lane, Vec<u8>, SocketAddr)>,
    pub sent: Vec<(u16, Address, Vec<u8>)>,
}

impl SimulatedPorts {
    fn new(seed: u64) -> SimulatedPorts {
        SimulatedPorts { rng: Rng::new(seed), open: VecDeque::new(), inbox: VecDeque::new(), sent: Vec::new() }
    }

    fn deliver(&mut self, _now_us: u64, port: u16, from: SocketAddr, bytes: Vec<u8>) {
        if let Some((lane, _)) = self.open.iter().rev().find(|(_, open)| *open == port) {
            self.inbox.push_back((*lane, bytes, from));
        }
    }

    /// One of the ports in use, as a forger may guess it.
    pub fn one_in_use(&self, rng: &mut Rng) -> Option<u16> {
        let in_use = self.open.len().min(QUESTION_LANES as usize);
        (in_use > 0).then(|| self.open[self.open.len() - 1 - rng.below(in_use as u64) as usize].1)
    }
}

impl Ports for SimulatedPorts {
    fn set_linger_us(&mut self, _linger_us: u64) {}

    fn close_old(&mut self, now_us: u64) {
        let newest = (now_us / LANE_US) as Lane;
        while self.open.front().is_some_and(|(lane, _)| lane + (LANES_KEPT as Lane) < newest) {
            self.open.pop_front();
        }
    }

    fn open_new(&mut self, now_us: u64) {
        let newest = (now_us / LANE_US) as Lane + QUESTION_LANES as Lane;
        let next = self.open.back().map_or(newest - (QUESTION_LANES as Lane - 1), |(lane, _)| lane + 1);
        for lane in next.max(newest - (QUESTION_LANES as Lane - 1))..=newest {
            // Above all ports of masters.
            self.open.push_back((lane, self.rng.between(32_768, 65_535) as u16));
        }
    }

    fn pick(&mut self, _now_us: u64) -> Option<Lane> {
        let in_use = self.open.len().min(QUESTION_LANES as usize);
        (in_use > 0).then(|| self.open[self.open.len() - 1 - self.rng.below(in_use as u64) as usize].0)
    }

    fn send(&mut self, lane: Lane, to: Address, bytes: &[u8]) -> io::Result<usize> {
        let (_, port) = self.open.iter().rev().find(|(open, _)| *open == lane).ok_or(io::ErrorKind::NotConnected)?;
        self.sent.push((*port, to, bytes.to_vec()));
        Ok(bytes.len())
    }

    fn ask(&mut self, lane: Lane, to: Address, question: Question) {
        let _ = self.send(lane, to, &question); // from a port that is closed, it is lost
    }

    fn flush(&mut self) {}

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
        let (lane, bytes, from) = self.inbox.pop_front()?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Some((lane, bytes.len(), from))
    }
}

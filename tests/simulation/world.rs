//! The world around the masters: game servers, a network, forgers and players, in virtual time. One event follows the other;
//! the time jumps to the next one.

mod checks;
mod exchange;
mod forgers;
mod games;
mod players;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint::cluster::share::NODE_GONE_MS;
use rallypoint::cookie::Keys;
use rallypoint::model::{Address, HeartbeatKeys};
use rallypoint::protocols::announce::{AnnounceMethod, ChallengedAnnounce, Registration, Step};
use rallypoint::protocols::section::RouteAnswer;
use rallypoint::protocols::{CARDS, Card, Fetch, Heartbeat, Take};
use rallypoint::registry::view::View;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::game::{Game, State};
use crate::node::{EPOCH_MS, Kind, Node, Outgoing};
use crate::plan::Plan;
use crate::random::Rng;
use exchange::{Entry, Member};

/// How often a node works while queries are in flight or something has changed.
const FAST_MS: u64 = 40;
/// Between two rotations of the cookie keys, as in the program.
const ROTATE_MS: u64 = 60_000;
/// How long a newcomer may take until it is listed, where no datagram is lost.
const SOON_MS: u64 = 10_000;
/// A forgotten duplicate arrives this late at most.
const LATE_MS: u64 = 60_000;
/// How long views are kept, to compare lists with.
const VIEWS_MS: u64 = 5_000;
/// The longest answer to a connection.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
const FLOOD_BATCH: usize = 64;

enum Event {
    Deliver {
        to: SocketAddr,
        from: SocketAddr,
        bytes: Vec<u8>,
    },
    Announce {
        game: usize,
        generation: u64,
    },
    /// A turn in a game server's life.
    Turn {
        game: usize,
        generation: u64,
    },
    Facts {
        game: usize,
        generation: u64,
    },
    Tick {
        node: usize,
        run: u64,
    },
    Fast {
        node: usize,
        run: u64,
    },
    Store {
        node: usize,
        run: u64,
    },
    Rotate {
        node: usize,
        run: u64,
    },
    Stop {
        node: usize,
    },
    Start {
        node: usize,
    },
    Jump {
        node: usize,
    },
    /// A node reaches the store of its cluster.
    Connect {
        node: usize,
        run: u64,
    },
    /// A record arrives there, and a node reads.
    Put(Box<Entry>),
    Read {
        node: usize,
    },
    /// All nodes learn which of them are alive.
    Live,
    Spoof,
    Flood {
        left: u32,
        /// Requests for lists in the name of one victim.
        is_aimed: bool,
    },
    List,
}

struct Planned {
    at_ms: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        (self.at_ms, self.order) == (other.at_ms, other.order)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> std::cmp::Ordering {
        (self.at_ms, self.order).cmp(&(other.at_ms, other.order))
    }
}

/// A master's machine: its node while it runs, its clock and its disk.
struct Machine {
    ip: IpAddr,
    node: Option<Node>,
    /// Counts its starts.
    run: u64,
    is_fast: bool,
    /// How far its time of day is ahead of the world's.
    ahead_ms: i64,
    /// Whether its clock was ever set back: its file may be from the future.
    was_set_back: bool,
    /// When its clock was last set while it ran.
    jumped_ms: Option<u64>,
    folder: Option<PathBuf>,
    views: VecDeque<(u64, Arc<View>)>,
    /// What was listed when it stopped, and when that was.
    before: Option<Stopped>,
    /// Its part in the cluster, while it runs.
    member: Option<Member>,
    stopped_ms: u64,
}

struct Stopped {
    at_ms: u64,
    is_clean: bool,
    ahead_ms: i64,
    /// The address, and since when it is listed.
    listed: Vec<(Address, u64)>,
}

/// Whose facts have this name.
struct Said {
    /// None: a forger's.
    game: Option<usize>,
    /// A forger has announced these facts in the name of this address.
    in_the_name_of: Option<SocketAddr>,
    until_ms: u64,
}

/// What a connection to fetch a list has heard.
struct Heard {
    machine: usize,
    run: u64,
    card: &'static Card,
    asked_ms: u64,
    bytes: Vec<u8>,
}

/// Figures for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub simulated_ms: u64,
    pub events: u64,
    pub datagrams: u64,
    pub forged: u64,
    pub questions: u64,
    pub connections: u64,
    pub views: u64,
    pub lists: u64,
    pub restarts: u64,
    pub restored: u64,
    /// Records exchanged between nodes.
    pub records: u64,
    pub jumps: u64,
    pub games: u64,
    /// Checks of honest servers, and those that found one missing because of losses.
    pub checked: u64,
    pub missing: u64,
    /// Everything that happened, as one number.
    pub digest: u64,
}

impl Counts {
    pub fn hours(&self) -> f64 {
        self.simulated_ms as f64 / 3_600_000.0
    }

    pub fn add(&mut self, other: &Counts) {
        self.simulated_ms += other.simulated_ms;
        self.events += other.events;
        self.datagrams += other.datagrams;
        self.forged += other.forged;
        self.questions += other.questions;
        self.connections += other.connections;
        self.views += other.views;
        self.lists += other.lists;
        self.restarts += other.restarts;
        self.restored += other.restored;
        self.records += other.records;
        self.jumps += other.jumps;
        self.games += other.games;
        self.checked += other.checked;
        self.missing += other.missing;
    }

    fn note(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
}

pub struct World {
    plan: Plan,
    rng: Rng,
    ms: u64,
    start: Instant,
    order: u64,
    queue: BinaryHeap<Reverse<Planned>>,
    machines: Vec<Machine>,
    games: Vec<Game>,
    /// Those that are up, or may still be listed.
    active: Vec<usize>,
    by_address: HashMap<SocketAddr, usize>,
    said: HashMap<(&'static str, String), Said>,
    numbers: usize,
    ports: u64,
    /// What each network that belongs to nobody has used of the budgets of each node.
    used: HashMap<checks::Budgeted, checks::Used>,
    /// Datagrams from masters that a forger has seen at its own address.
    seen: VecDeque<(&'static str, Vec<u8>)>,
    /// The store of the cluster, and the keys that its nodes share.
    entries: Vec<Entry>,
    keys: Keys,
    rotated_ms: u64,
    /// When the nodes last learned which of them are alive.
    shared_ms: u64,
    heard: (mpsc::UnboundedSender<Heard>, mpsc::UnboundedReceiver<Heard>),
    pub counts: Counts,
}

/// The address of a master.
fn master_ip(number: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 10 + number as u8).into()
}

/// A forger's own address, and that of a player.
fn forger() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 66], 6_666))
}

fn player(number: u64) -> SocketAddr {
    SocketAddr::from(([198, 18, (number >> 8) as u8, number as u8], 50_000))
}

/// Removes a folder with everything in it, in the end.
pub struct Folder(PathBuf);

impl Folder {
    fn new(seed: u64) -> Folder {
        let shared = PathBuf::from("/dev/shm");
        let base = if shared.is_dir() { shared } else { std::env::temp_dir() };
        static NUMBER: AtomicU64 = AtomicU64::new(0); // tests run at the same time
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("rallypoint-simulation-{}-{seed}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the world of a seed to its end.
pub fn run(plan: Plan) -> Counts {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let folder = plan.store_every_ms.map(|_| Folder::new(plan.seed));
        let mut world = World::new(plan, folder.as_ref());
        world.run().await;
        world.counts
    })
}

impl World {
    fn new(plan: Plan, folder: Option<&Folder>) -> World {
        let machine = |number: usize| Machine {
            ip: master_ip(number),
            node: None,
            run: 0,
            is_fast: false,
            ahead_ms: 0,
            was_set_back: false,
            jumped_ms: None,
            folder: folder.map(|folder| folder.0.join(number.to_string())),
            views: VecDeque::new(),
            before: None,
            member: None,
            stopped_ms: 0,
        };
        let mut world = World {
            rng: Rng::new(plan.seed ^ 0xabcd),
            ms: 0,
            start: Instant::now(),
            order: 0,
            queue: BinaryHeap::new(),
            machines: (0..plan.nodes).map(machine).collect(),
            games: Vec::new(),
            active: Vec::new(),
            by_address: HashMap::new(),
            said: HashMap::new(),
            numbers: 0,
            ports: 0,
            used: HashMap::new(),
            seen: VecDeque::new(),
            entries: Vec::new(),
            keys: Keys::new([[1; 16], [2; 16], [3; 16]]),
            rotated_ms: 0,
            shared_ms: 0,
            heard: mpsc::unbounded_channel(),
            counts: Counts::default(),
            plan,
        };
        for machine in &world.machines {
            if let Some(folder) = &machine.folder {
                std::fs::create_dir_all(folder).unwrap();
            }
        }
        (0..world.machines.len()).for_each(|node| world.start_node(node));
        for number in 0..world.plan.games + world.plan.liars {
            world.add_game(number >= world.plan.games, 120_000);
        }
        if let Some(every_ms) = world.plan.spoof_every_ms {
            world.plan_in(every_ms, Event::Spoof);
        }
        if world.plan.floods {
            world.plan_in(300_000, Event::Flood { left: 80, is_aimed: true });
        }
        world.plan_in(world.plan.list_every_ms, Event::List);
        world
    }

    async fn run(&mut self) {
        while let Some(Reverse(Planned { at_ms, event, .. })) = self.queue.pop() {
            if at_ms >= self.plan.duration_ms {
                break;
            }
            if at_ms > self.ms {
                self.ms = at_ms;
                tokio::time::sleep_until(self.start + Duration::from_millis(at_ms)).await;
                for machine in &self.machines {
                    if let Some(node) = &machine.node {
                        node.set_time(at_ms, machine.unix_ms(at_ms));
                    }
                }
            }
            self.counts.events += 1;
            self.handle(event).await;
            while let Ok(heard) = self.heard.1.try_recv() {
                self.check_heard(&heard);
            }
        }
        self.counts.simulated_ms = self.plan.duration_ms;
        self.counts.games = self.games.len() as u64;
        if self.counts.checked > 300_000 {
            let share = self.counts.missing as f64 / self.counts.checked as f64;
            assert!(share < 0.05, "{:.1} % of honest servers were missing", share * 100.0);
        }
    }

    fn plan_at(&mut self, at_ms: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Planned { at_ms: at_ms.max(self.ms), order: self.order, event }));
    }

    /// Around this time from now.
    fn plan_in(&mut self, ms: u64, event: Event) {
        let at_ms = self.ms + self.rng.around(ms);
        self.plan_at(at_ms, event);
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { to, from, bytes } => self.deliver(to, from, bytes).await,
            Event::Announce { game, generation } if self.games[game].generation == generation => self.announce(game),
            Event::Turn { game, generation } if self.games[game].generation == generation => self.turn(game),
            Event::Facts { game, generation } if self.games[game].generation == generation => {
                self.change_facts(game);
                self.plan_in(self.plan.facts_every_ms, Event::Facts { game, generation });
            }
            Event::Announce { .. } | Event::Turn { .. } | Event::Facts { .. } => {}
            Event::Tick { node, run } if self.machines[node].run == run => {
                self.work(node).await;
                self.check_all(node);
                self.plan_at(self.ms + self.plan.tick_ms, Event::Tick { node, run });
            }
            Event::Fast { node, run } if self.machines[node].run == run => {
                self.machines[node].is_fast = false;
                self.work(node).await;
            }
            Event::Store { node, run } if self.machines[node].run == run => {
                if let (Some(running), Some(every_ms)) = (&mut self.machines[node].node, self.plan.store_every_ms) {
                    running.write_store();
                    self.plan_at(self.ms + every_ms, Event::Store { node, run });
                }
            }
            Event::Rotate { node, run } if self.machines[node].run == run => {
                self.rotate(node);
                self.plan_at(self.ms + ROTATE_MS, Event::Rotate { node, run });
            }
            Event::Tick { .. } | Event::Fast { .. } | Event::Store { .. } | Event::Rotate { .. } => {}
            Event::Connect { node, run } if self.machines[node].run == run => self.connect_node(node),
            Event::Connect { .. } => {}
            Event::Put(entry) => self.stored(*entry),
            Event::Read { node } => self.read_records(node),
            Event::Live => self.tell_live(),
            Event::Stop { node } => self.stop_node(node),
            Event::Start { node } => self.start_node(node),
            Event::Jump { node } => self.jump(node),
            Event::Spoof => {
                self.spoof();
                if let Some(every_ms) = self.plan.spoof_every_ms {
                    self.plan_in(every_ms, Event::Spoof);
                }
            }
            Event::Flood { left, is_aimed } => self.flood(left, is_aimed).await,
            Event::List => {
                self.list();
                self.plan_in(self.plan.list_every_ms, Event::List);
            }
        }
    }

    fn start_node(&mut self, number: usize) {
        let (ms, ip) = (self.ms, self.machines[number].ip);
        let own_keys = Keys::new([self.rng.key(), self.rng.key(), self.rng.key()]);
        let is_clustered = self.machines.len() > 1;
        let keys = if is_clustered { self.keys } else { own_keys };
        let config = self.plan.config();
        let machine = &mut self.machines[number];
        machine.member = is_clustered.then(|| Member::new(number));
        let cluster = machine.member.as_ref().map(|member| (member.name, member.share.clone()));
        let clocks = (ms, machine.unix_ms(ms));
        let folder = machine.folder.clone();
        let (node, restored) = Node::start(ip, &config, folder.as_deref(), keys, &mut self.rng, clocks, cluster);
        machine.node = Some(node);
        machine.run += 1;
        machine.is_fast = false;
        machine.views.clear();
        let run = machine.run;
        self.used.retain(|budgeted, _| budgeted.node != ip);
        self.counts.restored += restored.listed as u64;
        self.check_restored(number);
        self.note_view(number);
        for game in 0..self.games.len() {
            self.disturb(game, number, true);
        }
        self.plan_at(ms + 1, Event::Tick { node: number, run });
        if is_clustered {
            let connects_ms = ms + self.rng.below(30_000);
            self.plan_at(connects_ms, Event::Connect { node: number, run });
            self.tell_live();
        }
        self.plan_at(ms + ROTATE_MS, Event::Rotate { node: number, run });
        if let Some(every_ms) = self.plan.store_every_ms {
            self.plan_at(ms + every_ms, Event::Store { node: number, run });
        }
        if let Some(every_ms) = self.plan.restart_every_ms {
            self.plan_in(every_ms, Event::Stop { node: number });
        }
        if let Some(every_ms) = self.plan.jump_every_ms {
            self.plan_in(every_ms, Event::Jump { node: number });
        }
    }

    fn stop_node(&mut self, number: usize) {
        let is_clean = self.rng.one_in(2);
        let down_ms = *self.rng.pick(&[1_000, 10_000, 60_000, 600_000]);
        let down_ms = self.rng.around(down_ms);
        let step_ms = if self.rng.one_in(4) { self.step() } else { 0 };
        let machine = &mut self.machines[number];
        let Some(node) = machine.node.take() else { return };
        let listed = node.listed_since.iter().map(|(address, since_ms)| (*address, *since_ms)).collect();
        machine.before = Some(Stopped { at_ms: self.ms, is_clean, ahead_ms: machine.ahead_ms, listed });
        machine.ahead_ms += step_ms;
        machine.was_set_back |= step_ms < 0;
        machine.run += 1;
        machine.member = None;
        machine.stopped_ms = self.ms;
        node.end(is_clean);
        if self.machines.len() > 1 {
            (0..self.games.len()).for_each(|game| self.disturb(game, number, true));
            self.plan_at(self.ms + NODE_GONE_MS + 1, Event::Live);
        }
        self.counts.restarts += 1;
        self.plan_at(self.ms + down_ms, Event::Start { node: number });
    }

    /// Rotates the cookie keys of a node, or of all nodes of a cluster.
    fn rotate(&mut self, number: usize) {
        let secret = self.rng.key();
        if self.machines.len() == 1 {
            self.machines[number].node.iter_mut().for_each(|node| node.rotate_keys(secret));
        } else if self.ms >= self.rotated_ms + ROTATE_MS {
            (self.rotated_ms, self.keys) = (self.ms, self.keys.rotated(secret));
            for node in self.machines.iter_mut().filter_map(|machine| machine.node.as_mut()) {
                node.rotate_keys(secret);
            }
        }
    }

    /// A step of a clock, either way.
    fn step(&mut self) -> i64 {
        let step_ms = *self.rng.pick(&[3_000, 30_000, 120_000, 3_600_000, 86_400_000]);
        let step_ms = self.rng.around(step_ms) as i64;
        if self.rng.one_in(2) { step_ms } else { -step_ms }
    }

    fn jump(&mut self, number: usize) {
        let step_ms = self.step();
        let ms = self.ms;
        let machine = &mut self.machines[number];
        let Some(node) = &machine.node else { return };
        machine.ahead_ms += step_ms;
        machine.was_set_back |= step_ms < 0;
        machine.jumped_ms = Some(ms);
        node.set_time(ms, machine.unix_ms(ms));
        self.counts.jumps += 1;
        for game in 0..self.games.len() {
            self.disturb(game, number, false);
        }
        if let Some(every_ms) = self.plan.jump_every_ms {
            self.plan_in(every_ms, Event::Jump { node: number });
        }
    }

    /// Publishes and queries.
    async fn work(&mut self, number: usize) {
        let mut out = Vec::new();
        let Some(node) = &mut self.machines[number].node else { return };
        node.probe(&mut out).await;
        while node.tasks.try_join_next().is_some() {}
        // The task that retries silent games always runs.
        let is_busy = node.prober.in_flight() > 0 || node.tasks.len() > 1;
        let deltas = node.publish();
        self.send_all(out);
        self.put_records(number);
        if !deltas.is_empty() {
            self.counts.views += 1;
            self.counts.note(deltas.len() as u64);
            self.note_view(number);
            for delta in &deltas {
                self.check_delta(number, delta);
            }
        }
        if is_busy {
            self.soon(number);
        }
    }

    /// Another turn of a node soon.
    fn soon(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        if machine.node.is_some() && !std::mem::replace(&mut machine.is_fast, true) {
            let run = machine.run;
            self.plan_at(self.ms + FAST_MS, Event::Fast { node: number, run });
        }
    }

    fn note_view(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        let Some(node) = &machine.node else { return };
        machine.views.push_back((self.ms, node.hub.view()));
        // The newest of the old ones was in force at the beginning of the time.
        while machine.views.get(1).is_some_and(|(ms, _)| ms + VIEWS_MS < self.ms) {
            machine.views.pop_front();
        }
    }

    fn send_all(&mut self, out: Vec<Outgoing>) {
        for Outgoing { from, to, bytes, kind } in out {
            self.check_sent(from.ip(), to, &bytes, kind);
            self.send(from, to, bytes);
        }
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        self.counts.datagrams += 1;
        self.counts.note(bytes.len() as u64);
        if self.rng.percent(self.plan.loss_percent) {
            for end in [from, to] {
                if let Some(&game) = self.by_address.get(&end) {
                    self.games[game].lost_ms = Some(self.ms);
                }
            }
            return;
        }
        let path_ms = 5 + path(from.ip(), to.ip()) % self.plan.delay_ms;
        let copies = 1 + usize::from(self.rng.percent(self.plan.duplicate_percent));
        for copy in 0..copies {
            let mut delay_ms = path_ms;
            if copy > 0 || self.rng.percent(self.plan.late_percent) {
                let is_very_late = copy > 0 && self.rng.one_in(20);
                delay_ms += self.rng.below(if is_very_late { LATE_MS } else { self.plan.delay_ms });
            }
            self.plan_at(self.ms + delay_ms, Event::Deliver { to, from, bytes: bytes.clone() });
        }
    }

    async fn deliver(&mut self, to: SocketAddr, from: SocketAddr, bytes: Vec<u8>) {
        if let Some(number) = self.machines.iter().position(|machine| machine.ip == to.ip()) {
            return self.deliver_to_node(number, to.port(), vec![(from, bytes)]).await;
        }
        if to == forger() {
            if let Some((card, _)) = self.services(0).into_iter().find(|(_, port)| *port == from.port()) {
                self.seen.push_back((card.name, bytes));
                self.seen.truncate(64);
            }
            return;
        }
        if let Some(&game) = self.by_address.get(&to) {
            self.hear(game, from, &bytes);
        }
    }

    async fn deliver_to_node(&mut self, number: usize, port: u16, datagrams: Vec<(SocketAddr, Vec<u8>)>) {
        let mut out = Vec::new();
        let Some(node) = &mut self.machines[number].node else { return };
        let is_service = node.datagram_ports().any(|(_, service)| service == port);
        node.receive(port, datagrams, &mut out);
        if !is_service {
            node.probe(&mut out).await;
        }
        self.send_all(out);
        self.soon(number);
    }

    fn services(&self, number: usize) -> Vec<(&'static Card, u16)> {
        self.machines[number].node.iter().flat_map(Node::datagram_ports).collect()
    }
}

impl Machine {
    fn unix_ms(&self, ms: u64) -> i64 {
        (EPOCH_MS + ms) as i64 + self.ahead_ms
    }
}

/// A number for the way between two addresses.
fn path(from: IpAddr, to: IpAddr) -> u64 {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { return 0 };
    Rng::new(u64::from(from.to_bits()) << 32 | u64::from(to.to_bits())).next()
}

/// An address that only forgers use: nobody there has ever sent anything.
fn is_victim(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 203)
}

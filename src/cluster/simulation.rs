//! A simulation of several registries and one store in virtual time. Puts are lost, duplicated and delayed, readers lag,
//! clocks are wrong, and nodes are stopped or killed and restart with or without their file, with a clock that was stepped
//! meanwhile, and before they reach the store. The invariants:
//!
//! 1. The same records in any order, any number of times, give the same list. (A weaker proof is not kept while a stronger
//!    one lives; it counts once the node that has it puts it again.)
//! 2. No server is listed after the end of its life, apart from the tolerated clock skew and a tick. Only a node that
//!    restored a server from its own file may list it longer: by a grace of a quarter of a life, and, until it reaches the
//!    store, by the error of its clock.
//! 3. No proof is lost: a server that was proven at a live node, and has neither expired nor quit since, is listed there at
//!    every moment. Weaker proofs at the same address do not change that.
//! 4. Once everything has been delivered, all nodes list the same servers, each with its newest proof, and so does a node
//!    that starts from the store alone. (They may differ in the last quarter of a life: a heartbeat that changes nothing
//!    is put only after a quarter of a life.)

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use super::clock::{self, Offset, SKEW_MAX_MS};
use super::outbox::{Outbox, StoredRecords, must_put};
use super::record::{self, node_id, node_tag};
use super::share::Share;
use crate::model::{
    Address, Announce, Change, Facts, Game, HeartbeatKeys, Now, Proof, RemoteState, Server, SharedTime,
};
use crate::protocols::game_named;
use crate::protocols::testing::{BY_COOKIE, BY_QUERY};
use crate::registry::view::{Publisher, View};
use crate::registry::{Life, Outcome, Registry, Settings};
use crate::store::{lives::Stamps, restore};

const T: u64 = 1_760_000_000_000;
const LIFE_MS: u64 = 120_000;
const TICK_MS: u64 = 250;
const SETTINGS: Settings = Settings {
    servers_max: 1_000,
    servers_per_ip_max: 1_000,
    ask_every_ms: 30_000,
    misses_max: 1,
    ..Settings::UNBOUNDED
};
const NAMES: [&str; 3] = ["ann", "bob", "cid"];
const PORTS: u64 = 6;

/// A pseudo-random generator: seed and counter.
struct Rng(u64, u64);

impl Rng {
    fn below(&mut self, most: u64) -> u64 {
        self.1 += 1;
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        self.1.hash(&mut hasher);
        hasher.finish() % most
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A stored record: key, value, and the store's timestamp.
#[derive(Clone)]
struct Entry {
    address: Address,
    value: Vec<u8>,
    created_ms: u64,
}

/// The store: every entry in order. A node that connects reads only the last one per address.
#[derive(Default)]
struct Store {
    entries: Vec<Entry>,
}

impl Store {
    fn last_of_each(&self) -> Vec<Entry> {
        let mut last: BTreeMap<Address, (usize, Entry)> = BTreeMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            last.insert(entry.address, (at, entry.clone()));
        }
        let mut all: Vec<_> = last.into_values().collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, entry)| entry).collect()
    }
}

/// The contents of a node's file after it was stopped or killed: see `store/restore.rs`.
struct File {
    servers: Vec<Server>,
    stamps: HashMap<Address, Stamps>,
    lag_ms: u64,
    behind_ms: i64,
}

struct Node {
    name: &'static str,
    registry: Registry,
    publisher: Publisher,
    view: View,
    outbox: Outbox,
    share: Share,
    /// How far this node's clock is ahead of the store's, and the node's own estimate of the store's time.
    ahead_ms: i64,
    time: SharedTime,
    /// How many entries it has read; None until it connects.
    read: Option<usize>,
    /// Puts in flight.
    sent: VecDeque<(Entry, bool)>,
    /// The ends of lives as last written to its file.
    stamps: HashMap<Address, Stamps>,
    /// When it starts, and when it connects to the store.
    starts_ms: u64,
    connects_ms: u64,
    /// The file it will start with, and the clock error noted there.
    file: Option<File>,
    file_behind_ms: i64,
}

/// Upper bound on the age of a written life.
const LAG_MS: u64 = 10_000;

impl Node {
    /// A node that starts with nothing and connects immediately.
    fn new(name: &'static str, ahead_ms: i64, store: &Store, ms: u64) -> Node {
        let mut node = Node::start(name, ahead_ms, ms);
        node.connect_to(store, ms);
        node
    }

    fn start(name: &'static str, ahead_ms: i64, ms: u64) -> Node {
        let now = Now { mono_ms: ms, unix_ms: (T + ms).saturating_add_signed(ahead_ms) };
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(node_tag(name));
        Node {
            name,
            registry,
            publisher: Publisher::default(),
            view: View::new(0, 0, Vec::new()),
            outbox: Outbox::default(),
            share: Share::new(node_id(name)),
            ahead_ms,
            time: SharedTime::default(),
            read: None,
            sent: VecDeque::new(),
            stamps: HashMap::new(),
            starts_ms: ms,
            connects_ms: ms,
            file: None,
            file_behind_ms: 0,
        }
    }

    /// Measures the clock, reads the whole store, and puts what it lacks.
    fn connect_to(&mut self, store: &Store, ms: u64) {
        let now = self.now(ms);
        self.time = clock::measured(self.time, ms, T + ms, now);
        self.registry.set_time(self.time, now);
        let mut stored = StoredRecords::default();
        for entry in store.last_of_each() {
            if let Some(remote) = self.take(&entry, ms) {
                stored.note(&remote);
            }
        }
        self.read = Some(store.entries.len());
        self.work(ms);
        let servers = self.view.servers.clone();
        self.outbox.reconcile(servers.iter().map(|server| &**server), [], &stored, &self.share);
        self.outbox.refill(1_000);
    }

    /// Restores the servers of its file, by its own clock.
    fn restore(&mut self, ms: u64) {
        let now = self.now(ms);
        let Some(File { servers, stamps, lag_ms, behind_ms }) = self.file.take() else { return };
        self.file_behind_ms = behind_ms;
        for server in servers {
            let stamps = stamps.get(&server.address).copied();
            let (server, ends_at_ms) = restore::up_to_date(server, stamps, now.unix_ms);
            let grace_ms = restore::grace_ms(&server, lag_ms);
            let server = Arc::new(Server { foreign: false, node: 0, ..server });
            let change = Change::Restore { server, ends_at_ms, grace_ms, behind_ms, ask_in_ms: 0 };
            self.registry.apply(&change, now);
        }
        self.work(ms);
    }

    /// Its file at this moment. After a clean stop it is complete; after a kill it has what was published, and ends of lives
    /// that are some seconds old.
    fn file(&mut self, is_clean: bool, ms: u64) -> File {
        if is_clean {
            self.write_stamps(ms);
        }
        File {
            servers: self.view.servers.iter().map(|server| Server::clone(server)).collect(),
            stamps: std::mem::take(&mut self.stamps),
            lag_ms: if is_clean { 0 } else { LAG_MS },
            behind_ms: self.registry.behind_ms(self.now(ms)).unwrap_or(self.file_behind_ms),
        }
    }

    fn write_stamps(&mut self, ms: u64) {
        let mut lives = Vec::new();
        self.registry.lives(0, usize::MAX / 2, self.now(ms), &mut lives);
        // Written with a resolution of one second.
        let stamps = |life: Life| Stamps {
            ends_at_ms: life.ends_at_ms.next_multiple_of(1_000),
            proven_at_ms: life.proven_at_ms / 1_000 * 1_000,
        };
        self.stamps = lives.into_iter().map(|life| (life.address, stamps(life))).collect();
    }

    fn is_up(&self, ms: u64) -> bool {
        ms >= self.starts_ms && self.file.is_none()
    }

    fn offset(&self, ms: u64) -> Offset {
        Offset::at(self.time, self.now(ms))
    }

    fn now(&self, ms: u64) -> Now {
        Now { mono_ms: ms, unix_ms: (T + ms).saturating_add_signed(self.ahead_ms) }
    }

    fn take(&mut self, entry: &Entry, ms: u64) -> Option<RemoteState<'static>> {
        let now = self.now(ms);
        let record = record::decode(entry.address, &entry.value).unwrap();
        if record.by == self.name && self.read.is_some() {
            return None;
        }
        let (remote, _) = record.into_local_time(entry.created_ms, self.offset(ms), now);
        if self.registry.apply(&Change::Merge(Box::new(remote.clone())), now) == Outcome::Stale
            && self.registry.local_state(entry.address, now).is_some_and(|known| known.is_ahead_of(&remote))
        {
            self.outbox.push(entry.address, true);
        }
        Some(remote)
    }

    /// Expires servers, publishes, and sends what has to be put.
    fn work(&mut self, ms: u64) {
        let now = self.now(ms);
        while self.registry.expire(now, 100) {}
        let mut dirty = Vec::new();
        self.registry.drain(&mut dirty);
        if let Some((view, batch)) = self.publisher.publish(&mut dirty, now) {
            self.view = view;
            self.outbox.note(&batch);
        }
        if self.read.is_none() {
            self.outbox = Outbox::default(); // `connect_to` finds what the store lacks
        }
        for (address, even_if_foreign) in self.outbox.take(100) {
            let known = self.registry.local_state(address, now).filter(|known| must_put(known, even_if_foreign));
            if let Some(known) = known {
                let value = record::encode(self.name, now.unix_ms, &known, self.offset(ms));
                self.sent.push_back((Entry { address, value, created_ms: 0 }, even_if_foreign));
            }
        }
    }

    /// Address, game, players and time of proof (by the store's clock) of every listed server.
    fn list(&self, ms: u64, certain: impl Fn(Address) -> bool) -> Vec<(Address, String, Option<u16>, u64)> {
        let mut list: Vec<_> = self
            .view
            .servers
            .iter()
            .filter(|server| certain(server.address))
            .map(|server| {
                let proven_at_ms = self.offset(ms).to_store(server.proven_at_ms);
                (server.address, server.game.name().to_string(), server.players_current, proven_at_ms)
            })
            .collect();
        list.sort();
        list
    }
}

fn address(port: u64) -> Address {
    Address::new([192, 0, 2, 1].into(), port as u16 + 1).unwrap()
}

/// A game that another protocol carries.
fn other() -> Game {
    game_named("other").unwrap()
}

fn game(port: u64) -> Game {
    Game::Own(if port.is_multiple_of(2) { BY_COOKIE } else { BY_QUERY })
}

fn announce(port: u64, players: u64, now: Now) -> Change<'static> {
    let keys = (port % 2 == 1).then(|| HeartbeatKeys::of(BY_QUERY, address(port)).into());
    Change::Announce(Announce {
        address: address(port),
        game: game(port),
        proof: if keys.is_some() { Proof::Query } else { Proof::Cookie },
        proven_at_ms: now.unix_ms,
        life_ms: LIFE_MS,
        asked: false,
        rtt_us: None,
        keys,
        facts: Facts { players_current: Some(players as u16), ..Facts::default() },
    })
}

/// Another game at the same address, with the weakest proof.
fn connect(port: u64, players: u64, now: Now) -> Change<'static> {
    let Change::Announce(announce) = announce(port, players, now) else { unreachable!() };
    let keys = Some(HeartbeatKeys::of("other", address(port)).into());
    Change::Announce(Announce { game: other(), proof: Proof::Connection, keys, ..announce })
}

/// What really happened at one address: when it was last proven, refreshed or removed, in the store's time, and where.
#[derive(Clone, Copy, Default)]
struct Truth {
    proven_ms: u64,
    alive_ms: u64,
    removed_ms: u64,
    /// When another game was last proven there by its connection.
    connected_ms: u64,
    /// The nodes where it was last proven and last refreshed.
    at_node: usize,
    alive_at: usize,
}

struct World {
    rng: Rng,
    ms: u64,
    store: Store,
    nodes: Vec<Node>,
    truth: BTreeMap<u64, Truth>,
}

impl World {
    /// `skew_ms`: upper bound on each clock's error, either way.
    fn new(seed: u64, skew_ms: u64) -> World {
        let mut rng = Rng(seed, 0);
        let store = Store::default();
        let mut node = |name| Node::new(name, rng.below(2 * skew_ms + 1) as i64 - skew_ms as i64, &store, 0);
        let nodes = NAMES.into_iter().map(&mut node).collect();
        World { rng, ms: 0, store, nodes, truth: BTreeMap::new() }
    }

    /// A random event at a random node.
    fn random_event(&mut self) {
        let (at, port, players) = (self.rng.below(3) as usize, self.rng.below(PORTS), self.rng.below(3));
        let what = self.rng.below(14);
        if !self.nodes[at].is_up(self.ms) {
            return;
        }
        let now = self.nodes[at].now(self.ms);
        let registry = &mut self.nodes[at].registry;
        let truth = self.truth.entry(port).or_default();
        let (address, game) = (address(port), game(port));
        let change = match what {
            0..8 => announce(port, players, now),
            8 => Change::Quit { address, master: false, proven: false },
            9 => Change::Miss { address, game, proven_at_ms: None },
            10 => Change::Answer { address, game, rtt_us: 5, facts: None, digest: 0 },
            12.. => connect(port, players, now),
            _ => {
                Change::Heartbeat { address, game, life_ms: LIFE_MS, keys: HeartbeatKeys::of(BY_QUERY, address).into() }
            }
        };
        let was_weak = registry.listed(address).is_some_and(|server| server.verified_by == Proof::Connection);
        let outcome = registry.apply(&change, now);
        if !matches!(outcome, Outcome::Added | Outcome::Changed | Outcome::Refreshed) {
            return;
        }
        let ms = T + self.ms;
        match what {
            0..8 => *truth = Truth { proven_ms: ms, alive_ms: ms, at_node: at, alive_at: at, ..*truth },
            8 | 9 if was_weak => {}
            9 if registry.listed(address).is_some() => {} // the others ask first
            8 | 9 => truth.removed_ms = ms,
            12.. => truth.connected_ms = ms,
            10 => (truth.proven_ms, truth.at_node) = (ms, at),
            _ => (truth.alive_ms, truth.alive_at) = (ms, at),
        }
    }

    /// Moves some entries to the store and back. Some are lost (and put again), duplicated, or reordered.
    fn deliver(&mut self) {
        for node in &mut self.nodes {
            let Some(mut read) = node.read else { continue };
            for _ in 0..self.rng.below(6) {
                let Some((mut entry, even_if_foreign)) = node.sent.pop_front() else { break };
                entry.created_ms = T + self.ms;
                if self.rng.one_in(5) {
                    node.outbox.push(entry.address, even_if_foreign); // not acknowledged
                    if self.rng.one_in(2) {
                        continue; // not stored either
                    }
                }
                if self.rng.one_in(5) {
                    self.store.entries.push(entry.clone());
                }
                self.store.entries.push(entry);
            }
            if self.rng.one_in(3) && node.sent.len() > 1 {
                node.sent.swap(0, 1); // reordered, as over two connections
            }
            for _ in 0..self.rng.below(6) {
                let Some(entry) = self.store.entries.get(read).cloned() else { break };
                read += 1;
                node.take(&entry, self.ms);
            }
            node.read = Some(read);
        }
    }

    /// Stops or kills a node. It restarts later with or without its file, perhaps with a stepped clock, and connects to the
    /// store later still.
    fn restart_one(&mut self) {
        let at = self.rng.below(3) as usize;
        let Node { name, ahead_ms, .. } = self.nodes[at];
        if !self.nodes[at].is_up(self.ms) {
            return;
        }
        // Proofs that only this node had are lost with it.
        for truth in self.truth.values_mut().filter(|truth| truth.at_node == at || truth.alive_at == at) {
            truth.proven_ms = 0;
            truth.alive_at = NAMES.len();
        }
        let is_clean = self.rng.one_in(2);
        let file = self.nodes[at].file(is_clean, self.ms);
        let step_ms = [0, 0, -600_000, 600_000][self.rng.below(4) as usize];
        let down_ms = self.rng.below(LIFE_MS * 3 / 2);
        let alone_ms = if self.rng.one_in(2) { 0 } else { self.rng.below(LIFE_MS) };
        let mut node = Node::start(name, ahead_ms + step_ms, self.ms);
        node.starts_ms = self.ms + down_ms;
        node.connects_ms = node.starts_ms + alone_ms;
        let has_lost_file = self.rng.one_in(4);
        node.file = Some(if has_lost_file { File { servers: Vec::new(), ..file } } else { file });
        self.nodes[at] = node;
    }

    /// Starts and connects the nodes that are due.
    fn start_and_connect_due(&mut self) {
        for node in &mut self.nodes {
            if self.ms >= node.starts_ms && node.file.is_some() {
                node.restore(self.ms);
            }
            if self.ms >= node.connects_ms && node.read.is_none() {
                node.connect_to(&self.store, self.ms);
            }
        }
    }

    fn check_lives(&self) {
        for node in &self.nodes {
            for server in &*node.view.servers {
                let port = u64::from(server.address.port()) - 1;
                let truth = self.truth.get(&port).copied().unwrap_or_default();
                let is_weak = server.verified_by == Proof::Connection;
                let alive_ms = if is_weak { truth.connected_ms } else { truth.alive_ms };
                // Each of two clocks may be off by the tolerated skew.
                let mut latest_ms = alive_ms + LIFE_MS + 2 * SKEW_MAX_MS + 2 * TICK_MS;
                let grace_ends_ms = T + node.starts_ms + LIFE_MS * 5 / 4 + 2 * TICK_MS;
                if node.starts_ms > 0 {
                    // Ends of lives are written with a resolution of one second.
                    let of_grace_ms = if node.read.is_none() { u64::MAX / 2 } else { LIFE_MS / 4 + 1_000 };
                    latest_ms = latest_ms.max((latest_ms + of_grace_ms).min(grace_ends_ms));
                }
                let Node { name, starts_ms, connects_ms, ahead_ms, .. } = node;
                let (address, ms, seed) = (server.address, self.ms, self.rng.0);
                assert!(
                    T + ms <= latest_ms,
                    "seed {seed}: {name} ({ahead_ms} ms ahead, started {starts_ms}, reached the store {connects_ms}) lists \
                     {address} at {ms}, {} ms after its end",
                    T + ms - alive_ms - LIFE_MS
                );
            }
        }
    }

    fn check_nothing_is_lost(&self) {
        for (port, truth) in &self.truth {
            let still = truth.proven_ms.min(truth.alive_ms) + LIFE_MS > T + self.ms + 2 * SKEW_MAX_MS + TICK_MS;
            // A removal at a node whose clock is ahead may also remove a proof made shortly after it.
            if still && truth.at_node == truth.alive_at && truth.proven_ms > truth.removed_ms + 2 * SKEW_MAX_MS {
                let node = &self.nodes[truth.at_node];
                let is_it = |server: &Server| server.address == address(*port) && server.game == game(*port);
                let listed = node.view.servers.iter().any(|server| is_it(server));
                assert!(listed, "{} lost {} at {}", node.name, address(*port), self.ms);
            }
        }
    }

    /// Whether all nodes must agree on a server: its life is not in its last quarter.
    fn is_certain(&self, address: Address) -> bool {
        let truth = self.truth.get(&(u64::from(address.port()) - 1)).copied().unwrap_or_default();
        let age_ms = |seen_ms: u64| T + self.ms + 2 * SKEW_MAX_MS - seen_ms;
        let is_certain = |seen_ms: u64| !(LIFE_MS * 3 / 4..LIFE_MS * 2).contains(&age_ms(seen_ms));
        is_certain(truth.alive_ms) && is_certain(truth.connected_ms)
    }

    fn list(&self, node: &Node) -> Vec<(Address, String, Option<u16>, u64)> {
        node.list(self.ms, |address| self.is_certain(address))
    }

    /// Delivers everything.
    fn deliver_all(&mut self) {
        let last_ms = self.nodes.iter().map(|node| node.connects_ms).max().unwrap_or(0);
        self.ms = self.ms.max(last_ms);
        self.start_and_connect_due();
        for _ in 0..2_000 {
            self.deliver();
            self.nodes.iter_mut().for_each(|node| node.work(self.ms));
        }
        let behind = |node: &Node| node.read != Some(self.store.entries.len()) || !node.sent.is_empty();
        assert!(!self.nodes.iter().any(behind), "the nodes never stop putting");
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.ms += TICK_MS * self.rng.below(40);
            self.start_and_connect_due();
            for _ in 0..self.rng.below(3) {
                self.random_event();
            }
            self.deliver();
            for node in self.nodes.iter_mut().filter(|node| node.is_up(self.ms)) {
                node.work(self.ms);
                // As the writer does: in turns, within the lag.
                if self.rng.one_in(3) {
                    node.write_stamps(self.ms);
                }
            }
            self.check_lives();
            self.check_nothing_is_lost();
            if self.rng.one_in(60) {
                self.restart_one();
            }
        }
    }
}

/// Seeds that once found a bug.
const REGRESSION_SEEDS: [u64; 8] = [1_099, 2_559, 2_683, 2_826, 2_888, 3_670, 6_834, 7_660];

#[test]
fn nothing_is_lost_nothing_is_listed_too_long_and_all_nodes_agree_in_the_end() {
    for seed in (0..40).chain(REGRESSION_SEEDS) {
        // No skew, a tolerated one, and one that is corrected.
        for skew_ms in [0, SKEW_MAX_MS / 2, 3_600_000] {
            let mut world = World::new(seed, skew_ms);
            world.run(150);
            world.deliver_all();
            let lists: Vec<_> = world.nodes.iter().map(|node| world.list(node)).collect();
            assert_eq!(lists[0], lists[1], "seed {seed}, skew {skew_ms}");
            assert_eq!(lists[1], lists[2], "seed {seed}, skew {skew_ms}");
            let mut late = Node::new("eve", 0, &world.store, world.ms);
            late.work(world.ms);
            assert_eq!(world.list(&late), lists[0], "a newcomer, seed {seed}, skew {skew_ms}");
        }
    }
}

/// Records of several nodes, as their registries would encode them.
fn some_records(rng: &mut Rng, of_both_strengths: bool) -> Vec<RemoteState<'static>> {
    let mut records = Vec::new();
    assert_eq!(NAMES.map(node_tag).into_iter().collect::<BTreeSet<_>>().len(), 3);
    for number in 0..12 {
        let name = NAMES[number % 3];
        // Different nodes may have the same stamp; one node never has it twice.
        let ms = 1_000 * rng.below(20) + number as u64 / 3;
        let now = Now { mono_ms: ms, unix_ms: T + ms };
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(node_tag(name));
        let port = rng.below(2) * 2 + 1; // the games that may quit
        let weak = of_both_strengths && rng.one_in(3);
        let change = if weak { connect } else { announce };
        registry.apply(&change(port, rng.below(5), now), now);
        if rng.one_in(4) {
            let quit = Change::Quit { address: address(port), master: false, proven: false };
            let game = if weak { other() } else { game(port) };
            let miss = Change::Miss { address: address(port), game, proven_at_ms: None };
            registry.apply(if rng.one_in(2) { &quit } else { &miss }, now);
            if of_both_strengths && rng.one_in(2) {
                // A weaker proof takes the place that the stronger one held.
                let now = Now { mono_ms: ms + 1_000, unix_ms: T + ms + 1_000 };
                registry.apply(&connect(port, rng.below(5), now), now);
            }
        }
        let known = registry.local_state(address(port), now).unwrap();
        let value = record::encode(name, now.unix_ms, &known, Offset::default());
        let record = record::decode(address(port), &value).unwrap();
        let later = Now { mono_ms: 30_000, unix_ms: T + 30_000 };
        records.push(record.into_local_time(now.unix_ms, Offset::default(), later).0);
    }
    records
}

#[test]
fn the_same_records_in_any_order_give_the_same_list() {
    let now = Now { mono_ms: 30_000, unix_ms: T + 30_000 };
    for seed in 0..400 {
        let mut rng = Rng(seed, 0);
        let of_both_strengths = seed % 2 == 1;
        let records = some_records(&mut rng, of_both_strengths);
        let mut expected = None;
        for order in 0..8 {
            let mut registry = Registry::new(SETTINGS, now);
            let rounds = if of_both_strengths { 2 } else { 1 };
            for _ in 0..rounds {
                let mut left = records.clone();
                left.extend(records.iter().take(order).cloned()); // some twice
                while !left.is_empty() {
                    let at = rng.below(left.len() as u64) as usize;
                    registry.apply(&Change::Merge(Box::new(left.swap_remove(at))), now);
                }
            }
            let list: Vec<_> = (0..PORTS)
                .filter_map(|port| registry.address_state(address(port), now).filter(|record| record.listed))
                .map(|record| {
                    let server = record.server;
                    let proof = (server.verified_by, server.proven_at_ms, server.node);
                    (server.address, server.players_current, proof, record.life_left_ms)
                })
                .collect();
            let first = expected.get_or_insert_with(|| list.clone());
            assert_eq!(*first, list, "seed {seed}, order {order}");
        }
    }
}

#[test]
fn records_that_the_store_lost_are_put_again() {
    let mut world = World::new(7, 0);
    world.run(40);
    world.deliver_all();
    (0..20).for_each(|_| world.random_event());
    world.deliver_all();
    let before = world.list(&world.nodes[0]);
    assert!(!before.is_empty());
    world.store = Store::default();
    let ids: Vec<u32> = NAMES.iter().map(|name| node_id(name)).collect();
    // One node is gone for good: another puts what it had proven.
    world.nodes.pop();
    for node in &mut world.nodes {
        node.read = Some(0);
        node.share.set_live(ids[..2].to_vec());
        let removals: Vec<_> = node.registry.own_removals(0, node.now(world.ms)).collect();
        let servers = node.view.servers.clone();
        node.outbox.reconcile(servers.iter().map(|server| &**server), removals, &StoredRecords::default(), &node.share);
        node.outbox.refill(1_000);
    }
    for _ in 0..2_000 {
        world.deliver();
        world.nodes.iter_mut().for_each(|node| node.work(world.ms));
    }
    let mut late = Node::new("eve", 0, &world.store, world.ms);
    late.work(world.ms);
    assert_eq!(world.list(&late), before);
}

#[test]
fn stepping_a_nodes_clock_loses_no_record_and_falsifies_none() {
    for step_ms in [-3_600_000, 3_600_000] {
        let mut world = World::new(1, 0);
        world.nodes[1].ahead_ms += step_ms;
        for (at, port) in [(0, 0), (1, 2)] {
            let now = world.nodes[at].now(world.ms);
            world.nodes[at].registry.apply(&announce(port, 1, now), now);
        }
        world.deliver_all();
        for node in &world.nodes {
            let ports: Vec<u16> = node.list(world.ms, |_| true).iter().map(|(address, ..)| address.port()).collect();
            assert_eq!(ports, [1, 3], "{} after a step of {step_ms} ms, with no keep-alive since", node.name);
            let proven = node.list(world.ms, |_| true).iter().all(|(.., proven_at_ms)| *proven_at_ms == T + world.ms);
            assert!(proven, "{:?}", node.list(world.ms, |_| true));
        }
    }
}

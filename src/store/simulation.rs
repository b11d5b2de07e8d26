//! Several registries and one store, in made-up time, with everything that goes wrong: puts that are lost, doubled and
//! late, readers that are behind, clocks that are off, nodes that restart with nothing. The invariants:
//!
//! 1. The same records in any order, however often, give the same list. (A weaker proof is not kept while a stronger one
//!    lives, so it counts when it is put again, as the node that has it does.)
//! 2. Nothing is listed beyond its life, by more than two clocks may differ and a tick.
//! 3. Nothing proven is lost: what was proven at a node that lives, and has neither ended nor quit since, is listed there
//!    at every moment. Weaker proofs at the same address change nothing about that.
//! 4. When nothing happens any more and everything has arrived, all nodes list the same, each with its newest proof, and
//!    so does a node that starts from the store alone. (In the last quarter of a life they may differ: a sign of life
//!    that says nothing new is told only after a quarter.)

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use super::clock::{self, Offset, SKEW_MAX_MS};
use super::outbox::{Held, Outbox, worth_putting};
use super::record::{self, Games, node_id, node_tag};
use super::share::Share;
use crate::model::{Address, Announce, Change, Facts, Game, HeartbeatKeys, Now, Proof, Server, SharedTime, Told};
use crate::registry::view::{Publisher, View};
use crate::registry::{Outcome, Registry, Settings};

const T: u64 = 1_760_000_000_000;
const LIFE_MS: u64 = 120_000;
const TICK_MS: u64 = 250;
const SETTINGS: Settings =
    Settings { servers_max: 1_000, servers_per_ip_max: 1_000, ask_every_ms: 30_000, misses_max: 1 };
const NAMES: [&str; 3] = ["ann", "bob", "cid"];
const PORTS: u64 = 6;

/// Numbers that follow from a seed.
struct Dice(u64, u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.1 += 1;
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        self.1.hash(&mut hasher);
        hasher.finish() % most
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A record as it lies in the store: its key, its value, and when the store took it.
#[derive(Clone)]
struct Entry {
    address: Address,
    value: Vec<u8>,
    created_ms: u64,
}

/// The store: every entry in order, and one value an address for whoever starts anew.
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

struct Node {
    name: &'static str,
    registry: Registry,
    publisher: Publisher,
    view: View,
    outbox: Outbox,
    games: Games,
    share: Share,
    /// What this node's clock is ahead of the store's, and what it takes for it.
    ahead_ms: i64,
    offset: Offset,
    /// How far it has read.
    read: usize,
    /// Puts on their way.
    sent: VecDeque<(Entry, bool)>,
}

impl Node {
    fn new(name: &'static str, ahead_ms: i64, store: &Store, ms: u64) -> Node {
        let unix_ms = (T + ms).saturating_add_signed(ahead_ms);
        let now = Now { mono_ms: ms, unix_ms };
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(node_tag(name));
        let mut node = Node {
            name,
            registry,
            publisher: Publisher::default(),
            view: View::new(0, 0, Vec::new()),
            outbox: Outbox::default(),
            games: Games::default(),
            share: Share::new(node_id(name)),
            ahead_ms,
            offset: Offset::at(clock::measured(SharedTime::default(), ms, T + ms, now), now),
            read: store.entries.len(),
            sent: VecDeque::new(),
        };
        for entry in store.last_of_each() {
            node.take(&entry, ms);
        }
        node
    }

    fn now(&self, ms: u64) -> Now {
        Now { mono_ms: ms, unix_ms: (T + ms).saturating_add_signed(self.ahead_ms) }
    }

    fn take(&mut self, entry: &Entry, ms: u64) {
        let now = self.now(ms);
        let record = record::decode(entry.address, &entry.value, &mut self.games).unwrap();
        if record.by == self.name && self.view.serial > 0 {
            return;
        }
        let (told, _) = record.settle(entry.created_ms, self.offset, now);
        if self.registry.apply(&Change::Merge(Box::new(told.clone())), now) == Outcome::Stale
            && self.registry.known(entry.address, now).is_some_and(|known| known.is_ahead_of(&told))
        {
            self.outbox.push(entry.address, true);
        }
    }

    /// Expires, publishes, and sends what has to be put.
    fn work(&mut self, ms: u64) {
        let now = self.now(ms);
        while self.registry.expire(now, 100) {}
        let mut dirty = Vec::new();
        self.registry.drain(&mut dirty);
        if let Some((view, batch)) = self.publisher.publish(&mut dirty, now) {
            self.view = view;
            self.outbox.note(&batch);
        }
        for (address, whoever_knows) in self.outbox.take(100) {
            let known = self.registry.known(address, now).filter(|known| worth_putting(known, whoever_knows));
            if let Some(known) = known {
                let value = record::encode(self.name, now.unix_ms, &known, self.offset);
                self.sent.push_back((Entry { address, value, created_ms: 0 }, whoever_knows));
            }
        }
    }

    /// Address, game, players and proof (in the store's time) of all that is listed.
    fn list(&self, certain: impl Fn(Address) -> bool) -> Vec<(Address, String, Option<u16>, u64)> {
        let mut list: Vec<_> = self
            .view
            .servers
            .iter()
            .filter(|server| certain(server.address))
            .map(|server| {
                let proven_at_ms = self.offset.to_store(server.proven_at_ms);
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

fn game(port: u64) -> Game {
    Game::Known(if port.is_multiple_of(2) { "iceball" } else { "netpanzer" })
}

fn announce(port: u64, players: u64, now: Now) -> Change<'static> {
    let keys = (port % 2 == 1).then(|| HeartbeatKeys::of("netpanzer", address(port)).into());
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

/// Another game at the same address, for which only its connection speaks.
fn connect(port: u64, players: u64, now: Now) -> Change<'static> {
    let Change::Announce(announce) = announce(port, players, now) else { unreachable!() };
    let keys = Some(HeartbeatKeys::of("other", address(port)).into());
    Change::Announce(Announce { game: Game::Known("other"), proof: Proof::Connection, keys, ..announce })
}

/// The truth about one address: when it was last proven, prolonged or removed, in the store's time, and where.
#[derive(Clone, Copy, Default)]
struct Truth {
    proven_ms: u64,
    alive_ms: u64,
    removed_ms: u64,
    /// When another game was there, proven by its connection alone.
    connected_ms: u64,
    /// Where it was proven, and where it was heard of.
    at_node: usize,
    alive_at: usize,
}

struct World {
    dice: Dice,
    ms: u64,
    store: Store,
    nodes: Vec<Node>,
    truth: BTreeMap<u64, Truth>,
}

impl World {
    /// `skew_ms`: how far clocks are off, either way.
    fn new(seed: u64, skew_ms: u64) -> World {
        let mut dice = Dice(seed, 0);
        let store = Store::default();
        let mut node = |name| Node::new(name, dice.below(2 * skew_ms + 1) as i64 - skew_ms as i64, &store, 0);
        let nodes = NAMES.into_iter().map(&mut node).collect();
        World { dice, ms: 0, store, nodes, truth: BTreeMap::new() }
    }

    /// Something happens at a door.
    fn happen(&mut self) {
        let (at, port, players) = (self.dice.below(3) as usize, self.dice.below(PORTS), self.dice.below(3));
        let what = self.dice.below(14);
        let now = self.nodes[at].now(self.ms);
        let registry = &mut self.nodes[at].registry;
        let truth = self.truth.entry(port).or_default();
        let (address, game) = (address(port), game(port));
        let change = match what {
            0..8 => announce(port, players, now),
            8 => Change::Quit { address, master: false },
            9 => Change::Miss { address, game },
            10 => Change::Answer { address, game, rtt_us: 5, facts: None },
            12.. => connect(port, players, now),
            _ => Change::Heartbeat {
                address,
                game,
                life_ms: LIFE_MS,
                keys: HeartbeatKeys::of("netpanzer", address).into(),
            },
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
            8 | 9 => truth.removed_ms = ms,
            12.. => truth.connected_ms = ms,
            10 => (truth.proven_ms, truth.at_node) = (ms, at),
            _ => (truth.alive_ms, truth.alive_at) = (ms, at),
        }
    }

    /// The way to the store and back: some is lost (and put again), doubled, or late; nobody reads all at once.
    fn carry(&mut self) {
        for node in &mut self.nodes {
            for _ in 0..self.dice.below(6) {
                let Some((mut entry, whoever_knows)) = node.sent.pop_front() else { break };
                entry.created_ms = T + self.ms;
                if self.dice.once_in(5) {
                    node.outbox.push(entry.address, whoever_knows); // not acknowledged
                    if self.dice.once_in(2) {
                        continue; // and really lost
                    }
                }
                if self.dice.once_in(5) {
                    self.store.entries.push(entry.clone());
                }
                self.store.entries.push(entry);
            }
            if self.dice.once_in(3) && node.sent.len() > 1 {
                node.sent.swap(0, 1); // overtaken, as over two connections
            }
            for _ in 0..self.dice.below(6) {
                let Some(entry) = self.store.entries.get(node.read).cloned() else { break };
                node.read += 1;
                node.take(&entry, self.ms);
            }
        }
    }

    fn restart_one(&mut self) {
        let at = self.dice.below(3) as usize;
        let (name, ahead_ms) = (self.nodes[at].name, self.nodes[at].ahead_ms);
        // What it alone knew is lost with it.
        for truth in self.truth.values_mut().filter(|truth| truth.at_node == at || truth.alive_at == at) {
            truth.proven_ms = 0;
            truth.alive_at = NAMES.len();
        }
        self.nodes[at] = Node::new(name, ahead_ms, &self.store, self.ms);
    }

    fn check_lives(&self) {
        for node in &self.nodes {
            for server in &node.view.servers {
                let port = u64::from(server.address.port()) - 1;
                let truth = self.truth.get(&port).copied().unwrap_or_default();
                let is_weak = server.verified_by == Proof::Connection;
                let alive_ms = if is_weak { truth.connected_ms } else { truth.alive_ms };
                // Two clocks may each be off by the skew, unnoticed.
                let latest_ms = alive_ms + LIFE_MS + 2 * SKEW_MAX_MS + 2 * TICK_MS;
                assert!(T + self.ms <= latest_ms, "{} lists {} after its end", node.name, server.address);
            }
        }
    }

    fn check_nothing_is_lost(&self) {
        for (port, truth) in &self.truth {
            let still = truth.proven_ms.min(truth.alive_ms) + LIFE_MS > T + self.ms + 2 * SKEW_MAX_MS + TICK_MS;
            // A removal elsewhere, by a clock that is ahead, may take a proof of the same moments with it.
            if still && truth.at_node == truth.alive_at && truth.proven_ms > truth.removed_ms + 2 * SKEW_MAX_MS {
                let node = &self.nodes[truth.at_node];
                let is_it = |server: &Server| server.address == address(*port) && server.game == game(*port);
                let listed = node.view.servers.iter().any(|server| is_it(server));
                assert!(listed, "{} lost {} at {}", node.name, address(*port), self.ms);
            }
        }
    }

    /// Whether a server's life is not in its last quarter.
    fn is_certain(&self, address: Address) -> bool {
        let truth = self.truth.get(&(u64::from(address.port()) - 1)).copied().unwrap_or_default();
        let age_ms = |seen_ms: u64| T + self.ms + 2 * SKEW_MAX_MS - seen_ms;
        let is_certain = |seen_ms: u64| !(LIFE_MS * 3 / 4..LIFE_MS * 2).contains(&age_ms(seen_ms));
        is_certain(truth.alive_ms) && is_certain(truth.connected_ms)
    }

    fn list(&self, node: &Node) -> Vec<(Address, String, Option<u16>, u64)> {
        node.list(|address| self.is_certain(address))
    }

    /// Lets everything arrive.
    fn settle(&mut self) {
        for _ in 0..2_000 {
            self.carry();
            self.nodes.iter_mut().for_each(|node| node.work(self.ms));
        }
        let behind = |node: &Node| node.read < self.store.entries.len() || !node.sent.is_empty();
        assert!(!self.nodes.iter().any(behind), "it never comes to rest");
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.ms += TICK_MS * self.dice.below(40);
            for _ in 0..self.dice.below(3) {
                self.happen();
            }
            self.carry();
            self.nodes.iter_mut().for_each(|node| node.work(self.ms));
            self.check_lives();
            self.check_nothing_is_lost();
            if self.dice.once_in(60) {
                self.restart_one();
            }
        }
    }
}

#[test]
fn nothing_is_lost_nothing_stays_too_long_and_all_agree_in_the_end() {
    for seed in 0..40 {
        // Unnoticed, noticed, and no skew at all.
        for skew_ms in [0, SKEW_MAX_MS / 2, 3_600_000] {
            let mut world = World::new(seed, skew_ms);
            world.run(150);
            world.settle();
            let lists: Vec<_> = world.nodes.iter().map(|node| world.list(node)).collect();
            assert_eq!(lists[0], lists[1], "seed {seed}, skew {skew_ms}");
            assert_eq!(lists[1], lists[2], "seed {seed}, skew {skew_ms}");
            let mut late = Node::new("eve", 0, &world.store, world.ms);
            late.work(world.ms);
            assert_eq!(world.list(&late), lists[0], "a newcomer, seed {seed}, skew {skew_ms}");
        }
    }
}

/// Records of several nodes, as their registries would tell them.
fn some_records(dice: &mut Dice, of_both_strengths: bool) -> Vec<Told<'static>> {
    let mut games = Games::default();
    let mut records = Vec::new();
    assert_eq!(NAMES.map(node_tag).into_iter().collect::<BTreeSet<_>>().len(), 3);
    for number in 0..12 {
        let name = NAMES[number % 3];
        // Different nodes may have the same stamp; one node never has it twice.
        let ms = 1_000 * dice.below(20) + number as u64 / 3;
        let now = Now { mono_ms: ms, unix_ms: T + ms };
        let mut registry = Registry::new(SETTINGS, now);
        registry.set_node(node_tag(name));
        let port = dice.below(2) * 2 + 1; // the games that may quit
        let weak = of_both_strengths && dice.once_in(3);
        let change = if weak { connect } else { announce };
        registry.apply(&change(port, dice.below(5), now), now);
        if dice.once_in(4) {
            let quit = Change::Quit { address: address(port), master: false };
            let miss =
                Change::Miss { address: address(port), game: if weak { Game::Known("other") } else { game(port) } };
            registry.apply(if dice.once_in(2) { &quit } else { &miss }, now);
            if of_both_strengths && dice.once_in(2) {
                // Its place is taken by what could not have it before.
                let now = Now { mono_ms: ms + 1_000, unix_ms: T + ms + 1_000 };
                registry.apply(&connect(port, dice.below(5), now), now);
            }
        }
        let known = registry.known(address(port), now).unwrap();
        let value = record::encode(name, now.unix_ms, &known, Offset::default());
        let record = record::decode(address(port), &value, &mut games).unwrap();
        let later = Now { mono_ms: 30_000, unix_ms: T + 30_000 };
        records.push(record.settle(now.unix_ms, Offset::default(), later).0);
    }
    records
}

#[test]
fn the_same_records_in_any_order_give_the_same_list() {
    let now = Now { mono_ms: 30_000, unix_ms: T + 30_000 };
    for seed in 0..400 {
        let mut dice = Dice(seed, 0);
        let of_both_strengths = seed % 2 == 1;
        let records = some_records(&mut dice, of_both_strengths);
        let mut expected = None;
        for order in 0..8 {
            let mut registry = Registry::new(SETTINGS, now);
            let rounds = if of_both_strengths { 2 } else { 1 };
            for _ in 0..rounds {
                let mut left = records.clone();
                left.extend(records.iter().take(order).cloned()); // some come twice
                while !left.is_empty() {
                    let at = dice.below(left.len() as u64) as usize;
                    registry.apply(&Change::Merge(Box::new(left.swap_remove(at))), now);
                }
            }
            let list: Vec<_> = (0..PORTS)
                .filter_map(|port| registry.record(address(port), now).filter(|record| record.listed))
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
fn what_the_store_lost_is_put_again_by_those_who_know() {
    let mut world = World::new(7, 0);
    world.run(40);
    world.settle();
    let before = world.list(&world.nodes[0]);
    assert!(!before.is_empty());
    world.store = Store::default();
    let ids: Vec<u32> = NAMES.iter().map(|name| node_id(name)).collect();
    // One node is gone for good: what it had proven is put by another.
    world.nodes.pop();
    for node in &mut world.nodes {
        node.read = 0;
        node.share.set_live(ids[..2].to_vec());
        let removals: Vec<_> = node.registry.own_removals(0, node.now(world.ms)).collect();
        let servers = node.view.servers.clone();
        node.outbox.reconcile(servers.iter().map(|server| &**server), removals, &Held::default(), &node.share);
        node.outbox.refill(1_000);
    }
    for _ in 0..2_000 {
        world.carry();
        world.nodes.iter_mut().for_each(|node| node.work(world.ms));
    }
    let mut late = Node::new("eve", 0, &world.store, world.ms);
    late.work(world.ms);
    assert_eq!(world.list(&late), before);
}

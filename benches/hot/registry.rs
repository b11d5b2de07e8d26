//! The registry and the published view: servers that come, change, renew their proof and expire.

use std::net::Ipv4Addr;

use rallypoint::model::{Address, Announce, Change, Facts, Now};
use rallypoint::protocols::iceball;
use rallypoint::registry::view::Publisher;
use rallypoint::registry::{Outcome, Registry, Settings};

use super::world::START;
use super::{HotPath, Scale, Work};

/// Operations in a run: with [`STEP_MS`], a whole number of ticks of the wheel.
const COUNT: u32 = 1_000;
/// Between two changes.
const STEP_MS: u64 = 1;

pub fn add(scale: Scale, all: &mut Vec<HotPath>) {
    for &servers in scale.registered {
        for (what, kind) in
            [("a proof again", Kind::Renew), ("a change", Kind::Change), ("one comes, one expires", Kind::Churn)]
        {
            let make = move || World { kind, ..World::new(servers) };
            all.push(HotPath::new(format!("registry {what}, {servers} listed"), COUNT, make));
        }
        all.push(HotPath::new(format!("publish 64 changes, {servers} listed"), 1, move || Publish::new(servers)));
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Renew,
    Change,
    Churn,
}

/// A full registry.
struct World {
    kind: Kind,
    registry: Registry,
    now: Now,
    servers: u32,
    /// The number of the next server that comes.
    next: u32,
    players: u16,
}

impl World {
    fn new(servers: usize) -> World {
        let settings = Settings { servers_max: usize::MAX, servers_per_ip_max: u32::MAX, ..Settings::UNBOUNDED };
        let mut registry = Registry::new(settings, START);
        registry.set_spread_key(1);
        let mut world = World { kind: Kind::Renew, registry, now: START, servers: servers as u32, next: 0, players: 3 };
        for _ in 0..servers {
            world.come();
        }
        world.drain();
        world
    }

    /// A life is as long as it takes for all others to come.
    fn announce(&mut self, number: u32, players: u16) -> Outcome {
        self.now.mono_ms += STEP_MS;
        self.now.unix_ms += STEP_MS;
        let facts = Facts {
            name: "Somebody's server [EU]".into(),
            mode: "ctf".into(),
            map: "mesa.vxl".into(),
            version: "0.2.1-37".parse().unwrap(),
            players_current: Some(players),
            players_max: Some(64),
            ..Facts::default()
        };
        let announce = Announce {
            address: Address::new(Ipv4Addr::from(0x0a00_0000 + number % 0x00ff_ffff).into(), 20_737).unwrap(),
            game: rallypoint::model::Game::Own(iceball::CARD.name),
            proof: iceball::CARD.proof,
            proven_at_ms: self.now.unix_ms,
            life_ms: u64::from(self.servers) * STEP_MS,
            asked: false,
            rtt_us: None,
            keys: None,
            facts,
        };
        self.registry.apply(&Change::Announce(announce), self.now)
    }

    fn come(&mut self) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        assert_eq!(self.announce(number, 3), Outcome::Added);
    }

    /// One of the newest half, in a scattered order: none of them expires meanwhile.
    fn scattered(&self, turn: u32) -> u32 {
        self.next - 1 - (u64::from(turn) * 2_654_435_761 % u64::from(self.servers / 2)) as u32
    }

    fn drain(&mut self) -> Vec<rallypoint::registry::Dirty> {
        let mut dirty = Vec::new();
        self.registry.drain(&mut dirty);
        dirty
    }
}

impl Work for World {
    fn prepare(&mut self) {
        self.players = self.players % 60 + 4;
        self.drain();
    }

    fn run(&mut self) {
        for turn in 0..COUNT {
            match self.kind {
                Kind::Renew => {
                    let number = self.scattered(turn);
                    assert_ne!(self.announce(number, 3), Outcome::Added);
                }
                Kind::Change => {
                    let number = self.scattered(turn);
                    assert_ne!(self.announce(number, self.players), Outcome::Added);
                }
                Kind::Churn => {
                    self.come();
                    self.registry.expire(self.now, 16);
                }
            }
        }
    }
}

/// A view of all, after some have changed.
struct Publish {
    world: World,
    publisher: Publisher,
    dirty: Vec<rallypoint::registry::Dirty>,
}

impl Publish {
    fn new(servers: usize) -> Publish {
        let mut world = World::new(servers);
        // World::new has drained: all servers again, for the publisher.
        for turn in 0..world.servers {
            let number = world.next - world.servers + turn;
            world.announce(number, 4);
        }
        let mut publisher = Publisher::default();
        let mut dirty = world.drain();
        let (view, _) = publisher.publish(&mut dirty, world.now).unwrap();
        assert_eq!(view.servers.len(), servers);
        Publish { world, publisher, dirty }
    }
}

impl Work for Publish {
    fn prepare(&mut self) {
        self.world.players = self.world.players % 60 + 5;
        for turn in 0..64 {
            let (number, players) = (self.world.scattered(turn), self.world.players);
            self.world.announce(number, players);
        }
        self.dirty = self.world.drain();
    }

    fn run(&mut self) {
        assert!(self.publisher.publish(&mut self.dirty, self.world.now).is_some());
    }
}

//! What the targets share: a configuration, keys, a list with servers of all games, and honest game servers.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rallypoint::config::Config;
use rallypoint::cookie::Keys;
use rallypoint::hub::Hub;
use rallypoint::ledger::Ledger;
use rallypoint::metrics::Metrics;
use rallypoint::model::{Address, Announce, Change, Facts, Game, HeartbeatKeys, Now, Overrides, Server, SharedTime};
use rallypoint::net::announcements::Announcements;
use rallypoint::net::guard::Guard;
use rallypoint::net::prober::{self, Worker};
use rallypoint::net::tcp::Entrance;
use rallypoint::protocols::announce::{AnnounceMethod, Offer};
use rallypoint::protocols::section::{Cookies, Section};
use rallypoint::protocols::{CARDS, Card, Context, DatagramRules, Effect, Games, Reply, game};
use rallypoint::registry::Settings;
use rallypoint::registry::view::View;
use rallypoint::web::{Home, HttpService, Pages, Site};
use tokio::sync::watch;

pub const START: Now = Now { mono_ms: 1_000_000, unix_ms: 1_760_000_000_000 };
/// Servers of each protocol in the view.
const SERVERS_EACH: usize = 48;

/// The defaults, and a password wherever a protocol has one: without it, messages of other masters are not parsed.
pub static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let passwords = CARDS.iter().map(|card| format!("{}.password=secret", card.name));
    // Budgets are not what is looked for here.
    let exempt = ["guard.exempt=127.0.0.0/8,::1/128".to_string()];
    let known = passwords.filter(|set| Config::load(None, std::slice::from_ref(set)).is_ok());
    let set: Vec<String> = known.chain(exempt).collect();
    Config::load(None, &set).expect("a configuration")
});

pub fn keys() -> Keys {
    Keys::new([[1; 16], [2; 16], [3; 16]])
}

fn cookies(keys: Keys) -> Cookies {
    Cookies { keys, time: SharedTime::default() }
}

pub fn later(ms: u64) -> Now {
    Now { mono_ms: START.mono_ms + ms, unix_ms: START.unix_ms + ms }
}

/// A protocol's rules for datagrams.
pub struct DatagramService {
    pub card: &'static Card,
    pub section: &'static dyn Section,
    /// How much of a datagram is read.
    pub bytes_max: usize,
    /// Its rules now, and after one and two rotations of the keys.
    rules: [Box<dyn DatagramRules>; 3],
}

impl DatagramService {
    /// The rules after so many rotations of the keys.
    pub fn rules(&self, turns: usize) -> &dyn DatagramRules {
        &*self.rules[turns % self.rules.len()]
    }
}

/// Every protocol that listens for datagrams.
pub static DATAGRAM_SERVICES: LazyLock<Vec<DatagramService>> = LazyLock::new(|| {
    let service = |(card, section): (&'static Card, &'static dyn Section)| {
        let transports = section.listeners().into_iter().map(|listener| listener.transport);
        let bytes_max = transports.filter_map(|transport| transport.datagram_bytes_max()).max()?;
        let once = keys().rotated([7; 16]);
        let rules = [keys(), once, once.rotated([8; 16])].map(|keys| section.datagrams(cookies(keys)));
        let [Some(now), Some(next), Some(last)] = rules else { return None };
        Some(DatagramService { card, section, bytes_max, rules: [now, next, last] })
    };
    CONFIG.sections().filter_map(service).collect()
});

/// A game server that announces itself as its game does.
#[derive(Clone)]
pub struct Honest {
    card: &'static Card,
    pub facts: Facts<'static>,
    pub from: SocketAddr,
}

impl Honest {
    pub fn new(card: &'static Card, number: usize, from: SocketAddr) -> Honest {
        Honest { card, facts: (card.pretend)(number), from }
    }

    fn offer(&self) -> Offer {
        Offer { game: self.card.name.into(), port: self.from.port(), facts: self.facts.clone() }
    }

    /// Its announcement. None if its protocol has none in datagrams.
    pub fn announcement(&self) -> Option<Vec<u8>> {
        match &self.card.announce {
            AnnounceMethod::OwnPort { heartbeat, .. } => Some(heartbeat(&self.facts)),
            AnnounceMethod::Datagrams { start, .. } => {
                let offer = self.offer();
                Some(start(0, &offer).ok()?.announcement(&offer))
            }
            _ => None,
        }
    }

    /// What it sends when this comes from the master.
    pub fn answer(&self, reply: &[u8]) -> Option<Vec<u8>> {
        match &self.card.announce {
            AnnounceMethod::OwnPort { .. } => {
                let at = Address::new(self.from.ip(), self.from.port())?;
                self.card.answer?(&self.facts, at, reply).into_iter().next()
            }
            AnnounceMethod::Datagrams { start, .. } => {
                let mut announcer = start(0, &self.offer()).ok()?;
                announcer.ready(0);
                announcer.step(0);
                let mut answer = Vec::new();
                announcer.hear(1, reply, &mut answer);
                Some(answer).filter(|answer| !answer.is_empty())
            }
            _ => None,
        }
    }

    /// The master's reply to its announcement.
    pub fn reply(&self, rules: &dyn DatagramRules, view: &View, now: Now) -> Option<Reply> {
        let mut reply = Reply::new();
        rules.datagram(&Context { now, view }, self.from, &self.announcement()?, &mut reply);
        Some(reply).filter(|reply| !reply.is_empty())
    }
}

/// A list of servers of all games, with both kinds of addresses.
pub static VIEW: LazyLock<View> = LazyLock::new(|| {
    let empty = View::new(1, 0, Vec::new());
    let servers = CARDS.iter().zip(0u8..).flat_map(|(card, block)| {
        let empty = &empty;
        (0..SERVERS_EACH).map(move |number| Arc::new(server(card, number, place(block, number), empty)))
    });
    View::new(2, START.unix_ms, servers.collect())
});

/// Where the server of this number is: in 198.18.0.0/15, every fourth in 2001:db8::/32.
fn place(block: u8, number: usize) -> Address {
    let ip: IpAddr = match number % 4 {
        0 => [0x2001, 0xdb8, block.into(), 0, 0, 0, 0, number as u16].into(),
        _ => [198, 18, block, number as u8].into(),
    };
    Address::new(ip, 20_000 + number as u16 % 3).expect("a port")
}

/// A listed server.
pub fn server(card: &'static Card, number: usize, address: Address, empty: &View) -> Server {
    let announce = announced(card, number, address, empty).unwrap_or_else(|| plain(card, number, address));
    let overrides =
        Overrides { official: number.is_multiple_of(5), priority: number as i32 % 3, flavor: number as u8 % 8 };
    Server { overrides, ..Server::announced(&announce) }
}

/// As it announces itself in datagrams.
fn announced(card: &'static Card, number: usize, address: Address, empty: &View) -> Option<Announce<'static>> {
    let service = DATAGRAM_SERVICES.iter().find(|service| service.card.name == card.name)?;
    let rules = service.rules(0);
    let server = Honest::new(card, number, address.socket());
    let reply = server.reply(rules, empty, START)?;
    let proof = server.answer(&reply)?;
    let Effect::Change(Change::Announce(announce)) =
        rules.datagram(&Context { now: START, view: empty }, server.from, &proof, &mut Reply::new())
    else {
        return None;
    };
    let Announce { address, game, proof, proven_at_ms, life_ms, asked, rtt_us, keys, facts } = announce;
    Some(Announce { address, game, proof, proven_at_ms, life_ms, asked, rtt_us, keys, facts: facts.into_owned() })
}

/// As others announce it.
fn plain(card: &'static Card, number: usize, address: Address) -> Announce<'static> {
    let facts = (card.pretend)(number);
    let own = Game::Own(card.name);
    let game = match (card.games, number % 3) {
        (Games::Any, 1) => game(card.name, "a game").unwrap_or(own),
        (Games::Any, 2) => Game::master(card.name),
        _ => own,
    };
    Announce {
        address,
        keys: Some(Arc::new(HeartbeatKeys::of(game.name(), address))),
        game,
        proof: card.proof,
        proven_at_ms: START.unix_ms - number as u64,
        life_ms: card.life_ms,
        asked: card.query.is_some(),
        rtt_us: card.query.map(|_| 25_000),
        facts,
    }
}

/// Changes one bit, or none if there is nothing to change.
pub fn flip(bytes: &mut [u8], bit: usize) {
    let bits = bytes.len() * 8;
    if let Some(byte) = bit.checked_rem(bits).and_then(|bit| bytes.get_mut(bit / 8)) {
        *byte ^= 1 << (bit % 8);
    }
}

/// The HTTP server with the same list, without a socket: nobody is asked, so nobody is proven.
pub fn http(stop: watch::Receiver<bool>) -> (HttpService, Arc<Guard>) {
    let settings = Settings { servers_max: 10_000, servers_per_ip_max: 1_000, ..Settings::UNBOUNDED };
    let (hub, ledger, metrics) = (Arc::new(Hub::new(settings)), Arc::new(Ledger::new()), Arc::new(Metrics::new()));
    let now = hub.clock.now();
    for server in &*VIEW.servers {
        let server = Server { proven_at_ms: now.unix_ms, life_ms: 86_400_000, ..Server::clone(server) };
        let restore = Change::Restore {
            server: Arc::new(server),
            ends_at_ms: now.unix_ms + 86_400_000,
            grace_ms: 0,
            behind_ms: 0,
            ask_in_ms: 86_400_000,
        };
        hub.apply_one(&restore, now);
    }
    hub.publish(now);
    let guard = Arc::new(Guard::new(CONFIG.guard.settings(1_000)));
    let (prober, worker) = Worker::new(
        hub.clone(),
        ledger.clone(),
        metrics.clone(),
        prober::settings(1, 1, Duration::from_secs(1)),
        &[],
        [1; 16],
    )
    .expect("a socket");
    drop(worker);
    let cookies = Cookies { keys: Keys::new([[1; 16], [2; 16], [3; 16]]), time: SharedTime::default() };
    let announcements = Arc::new(Announcements::new(hub, guard.clone(), prober, ledger, cookies));
    let pages = Pages::load(&CONFIG).expect("the pages");
    let site = Site::new(announcements, guard.clone(), metrics.clone(), pages, 1, None, Arc::default());
    let entrance = Arc::new(Entrance::new(guard.clone(), metrics, CONFIG.entrance()));
    (HttpService::new(site, Home(None), entrance, stop), guard)
}

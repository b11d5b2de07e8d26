//! Simulated game servers: each has its own socket, answers its game's query and is announced to a master. For launcher
//! authors and for tests; one thread drives them all.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::announce::{self, Master};
use super::connect::addresses;
use super::http;
use super::target::{Kind, Target};
use crate::model::{Address, Facts, Player};
use crate::protocols::announce::{AnnounceMethod, ChallengedAnnounce, Offer, Registration};
use crate::protocols::{Card, Verdict};

/// Longer queries are cut.
const QUERY_BYTES_MAX: usize = 512;
/// Refusals reported one by one.
const REPORTED_MAX: usize = 5;
/// Heartbeats sent at once, and the pause after them, so that the master's receive buffer does not overflow.
const HEARTBEATS_AT_ONCE: usize = 16;
const HEARTBEATS_PAUSE: Duration = Duration::from_millis(10);
/// For a request, and for the token that a master sends for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const TOKEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Masters limit the connections of an address.
const REGISTRATIONS_AT_ONCE: usize = 8;

pub struct SimulatedServer {
    card: &'static Card,
    socket: UdpSocket,
    pub address: Address,
    facts: ArcSwap<Facts<'static>>,
    /// How often players come and go; None: never.
    pub come_and_go: Option<Duration>,
    /// By which a master that sends tokens knows it again.
    id: u128,
    /// The newest token that has come to its port.
    token: watch::Sender<Option<String>>,
}

impl SimulatedServer {
    fn offer(&self) -> Offer {
        Offer { game: self.card.name.to_string(), port: self.address.port(), facts: Facts::clone(&self.facts.load()) }
    }
}

/// Binds a socket for each server: on ports chosen by the system, or on consecutive ports.
pub async fn bind(card: &'static Card, count: usize, listen: SocketAddr) -> io::Result<Vec<SimulatedServer>> {
    let mut all = Vec::with_capacity(count);
    let random = RandomState::new();
    for number in 0..count {
        let port = match listen.port() {
            0 => 0,
            first => u16::try_from(usize::from(first) + number)
                .map_err(|_| io::Error::other(format!("there are fewer than {count} ports from {first} to 65535")))?,
        };
        let socket = UdpSocket::bind((listen.ip(), port)).await.map_err(|error| {
            let which = if port == 0 { format!("socket {} of {count}", number + 1) } else { format!("port {port}") };
            io::Error::new(error.kind(), format!("{which}: {error}"))
        })?;
        let local = socket.local_addr()?;
        let address = Address::new(local.ip(), local.port()).ok_or_else(|| io::Error::other("port 0"))?;
        let id = u128::from(random.hash_one((number, 0))) << 64 | u128::from(random.hash_one((number, 1)));
        let (facts, token) = (ArcSwap::from_pointee((card.pretend)(number)), watch::Sender::new(None));
        all.push(SimulatedServer { card, socket, address, facts, come_and_go: None, id, token });
    }
    Ok(all)
}

/// How the servers are announced.
pub enum Announcing {
    /// One by one.
    Single(Single),
    /// By the game itself, from its own port.
    OwnPort { master: Target, heartbeat: fn(&Facts<'_>) -> Vec<u8> },
}

/// How one server is announced.
pub enum Single {
    /// As by `rallypoint announce`, a program separate from the game.
    Separate(Master),
    /// By the game itself, with a token that the master sends to its port.
    Challenged { master: Target, rules: ChallengedAnnounce },
}

impl Announcing {
    /// To this master; the error says why it does not accept this game.
    pub fn to(master: Target, card: &Card) -> Result<Announcing, String> {
        match (master.kind, &card.announce) {
            (Kind::Game(own), AnnounceMethod::OwnPort { heartbeat, .. }) if own.name == card.name => {
                Ok(Announcing::OwnPort { master, heartbeat: *heartbeat })
            }
            (Kind::Page(own), AnnounceMethod::Challenged(rules)) if own.name == card.name => {
                Ok(Announcing::Single(Single::Challenged { master, rules: *rules }))
            }
            _ => Master::of(master, card.name).map(|master| Announcing::Single(Single::Separate(master))),
        }
    }
}

/// Simulated network conditions.
#[derive(Clone, Copy)]
pub struct Network {
    /// Percentage of answers that are dropped.
    pub loss_percent: u8,
    /// Delay of every answer.
    pub delay: Duration,
}

/// Answers queries and announces the servers, until dropped.
pub async fn run(servers: Vec<SimulatedServer>, network: Network, announcing: Option<Announcing>) {
    let mut tasks = JoinSet::new();
    let servers: Vec<Arc<SimulatedServer>> = servers.into_iter().map(Arc::new).collect();
    for server in &servers {
        tasks.spawn(answer(server.clone(), network));
        if let Some(every) = server.come_and_go {
            tasks.spawn(come_and_go(server.clone(), every));
        }
    }
    match announcing {
        None => {}
        Some(Announcing::Single(single)) => drop(tasks.spawn(announce(servers, Arc::new(single)))),
        Some(Announcing::OwnPort { master, heartbeat }) => {
            drop(tasks.spawn(send_heartbeats(servers, master, heartbeat)))
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Decides which answers are dropped.
#[derive(Default)]
struct Loss {
    answers: u64,
    state: RandomState,
}

impl Loss {
    fn drops(&mut self, loss_percent: u8) -> bool {
        self.answers += 1;
        loss_percent > 0 && self.state.hash_one(self.answers) % 100 < loss_percent.into()
    }
}

async fn answer(server: Arc<SimulatedServer>, network: Network) {
    let mut loss = Loss::default();
    let mut buffer = [0; QUERY_BYTES_MAX];
    loop {
        // The error is an ICMP error about an earlier answer.
        let Ok((size, from)) = server.socket.recv_from(&mut buffer).await else { continue };
        let query = buffer.get(..size).unwrap_or_default();
        if let AnnounceMethod::Challenged(rules) = &server.card.announce
            && let Some(token) = (rules.token)(server.id, query)
        {
            server.token.send_replace(Some(token));
            continue;
        }
        // A game that cannot be queried keeps its socket, too: no other server gets its port.
        let Some(answer) = server.card.answer else { continue };
        let mut answers = answer(&server.facts.load(), server.address, query);
        answers.retain(|_| !loss.drops(network.loss_percent));
        if !answers.is_empty() && !network.delay.is_zero() {
            sleep(network.delay).await;
        }
        for bytes in answers {
            let _ = server.socket.send_to(&bytes, from).await; // counts as lost
        }
    }
}

/// Lets players come and go, so that a demonstration lives.
async fn come_and_go(server: Arc<SimulatedServer>, every: Duration) {
    let random = RandomState::new();
    for turn in 0u64.. {
        sleep(every).await;
        let moved = moved(&server.facts.load(), random.hash_one((server.id, turn)));
        server.facts.store(Arc::new(moved));
    }
}

/// One turn later: in about half of them, one player comes or goes. Scores grow.
fn moved(facts: &Facts<'static>, random: u64) -> Facts<'static> {
    let (players, size) = (facts.players_current.unwrap_or(0), facts.players_max.unwrap_or(0));
    let moved = match random % 4 {
        0 => players.saturating_add(1).min(size),
        1 => players.saturating_sub(1),
        _ => players,
    };
    let details = facts.details.as_deref().map(|details| {
        let mut details = details.clone();
        if details.players.len() == usize::from(players) {
            details.players.truncate(moved.into());
            while details.players.len() < usize::from(moved) {
                let name = format!("Guest {}", random / 4 % 1_000).into();
                details.players.push(Player { name, score: Some(0), ..Player::default() });
            }
        }
        for (at, player) in details.players.iter_mut().enumerate() {
            let gained = i32::from(random >> (8 + at % 48) & 1 == 1);
            player.score = player.score.map(|score| score.saturating_add(gained));
        }
        Arc::new(details)
    });
    Facts { players_current: facts.players_current.map(|_| moved), details, ..facts.clone() }
}

/// The announcement interval of the game's own servers.
fn interval(servers: &[Arc<SimulatedServer>]) -> Duration {
    Duration::from_millis(servers.iter().map(|server| server.card.announce_every_ms).min().unwrap_or(u64::MAX))
}

/// Sends rounds of heartbeats from the servers' own sockets. The master's queries are answered like all others.
async fn send_heartbeats(servers: Vec<Arc<SimulatedServer>>, master: Target, heartbeat: fn(&Facts<'_>) -> Vec<u8>) {
    let interval = interval(&servers);
    loop {
        let began = Instant::now();
        match find(&servers, &master).await {
            Err(why) => warn!("no heartbeats to {master}: {why}"),
            Ok(to) => {
                for some in servers.chunks(HEARTBEATS_AT_ONCE) {
                    for server in some {
                        let _ = server.socket.send_to(&heartbeat(&server.facts.load()), to).await; // counts as lost
                    }
                    sleep(HEARTBEATS_PAUSE).await;
                }
                info!("sent heartbeats for {} servers to {master}", servers.len());
            }
        }
        sleep_until(began + interval).await;
    }
}

/// The master's address, in the address family of the servers.
async fn find(servers: &[Arc<SimulatedServer>], master: &Target) -> Result<SocketAddr, String> {
    let authority = master.authority(master.master_port()?);
    let from = servers.first().map(|server| server.address.ip());
    let found = addresses(&authority, from).await.map_err(|error| error.to_string())?;
    found.first().copied().ok_or_else(|| "it has no address".into())
}

/// Announces the servers in rounds, at the interval of the game's own servers.
async fn announce(servers: Vec<Arc<SimulatedServer>>, single: Arc<Single>) {
    let interval = interval(&servers);
    loop {
        let began = Instant::now();
        let mut refused = Vec::new();
        let permits = Arc::new(Semaphore::new(single.at_once()));
        let mut round = JoinSet::new();
        for server in &servers {
            let (server, single, permits) = (server.clone(), single.clone(), permits.clone());
            round.spawn(async move {
                let _permit = permits.acquire().await;
                single.announce(&server).await.map_err(|why| (server.address, why))
            });
        }
        while let Some(result) = round.join_next().await {
            refused.extend(result.ok().and_then(Result::err));
        }
        for (address, why) in refused.iter().take(REPORTED_MAX) {
            warn!("{address} not announced to {single}: {why}");
        }
        if refused.len() > REPORTED_MAX {
            warn!("and {} more", refused.len() - REPORTED_MAX);
        }
        info!("announced {} of {} servers to {single}", servers.len() - refused.len(), servers.len());
        sleep_until(began + interval).await;
    }
}

impl Single {
    fn at_once(&self) -> usize {
        match self {
            Single::Separate(master) => master.at_once(),
            Single::Challenged { .. } => REGISTRATIONS_AT_ONCE,
        }
    }

    /// The error says why the server is not listed.
    async fn announce(&self, server: &SimulatedServer) -> Result<(), String> {
        match self {
            Single::Separate(master) => {
                let announced = announce::once(server.offer(), server.address.ip(), master).await;
                announced.map_err(|status| status.to_string())
            }
            Single::Challenged { master, rules } => register(server, master, rules).await,
        }
    }
}

impl fmt::Display for Single {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Single::Separate(master) => master.fmt(f),
            Single::Challenged { master, .. } => master.fmt(f),
        }
    }
}

/// Registers a server: if the master wants a token, with the one that it sends.
async fn register(server: &SimulatedServer, master: &Target, rules: &ChallengedAnnounce) -> Result<(), String> {
    let mut tokens = server.token.subscribe();
    let verdict = match post(server, master, rules).await? {
        Some(verdict) => verdict,
        None => {
            let token = timeout(TOKEN_TIMEOUT, tokens.changed()).await;
            token.map_err(|_| format!("no token within {} s", TOKEN_TIMEOUT.as_secs()))?.ok();
            post(server, master, rules).await?.ok_or("its token does not count")?
        }
    };
    match verdict {
        Verdict::Listed => Ok(()),
        Verdict::Refused(reason) | Verdict::TryLater { reason, .. } => Err(format!("refused: {reason}")),
    }
}

async fn post(
    server: &SimulatedServer,
    master: &Target,
    rules: &ChallengedAnnounce,
) -> Result<Option<Verdict>, String> {
    let (offer, token) = (server.offer(), server.token.borrow().clone());
    let game = Registration { offer: &offer, id: server.id, serial: 0, token: token.as_deref() };
    let url = master.page(&(rules.path)(&master.path))?;
    let request = http::Request {
        post: Some((rules.post.content_type, (rules.post.body)(&offer))),
        headers: (rules.headers)(&game),
        from: Some(server.address.ip()),
        ..http::Request::get(url, http::ANSWER_BYTES_MAX, REQUEST_TIMEOUT)
    };
    let (status, body) = request.send().await.map_err(|error| error.to_string())?;
    Ok((rules.verdict)(status.as_u16(), &body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::{Ask, Question, netpanzer};

    #[test]
    fn players_come_and_go_within_the_servers_size() {
        let mut facts = (netpanzer::CARD.pretend)(3);
        let (mut least, mut most) = (u16::MAX, 0);
        for turn in 0u64..2_000 {
            facts = moved(&facts, RandomState::new().hash_one(turn));
            let players = facts.players_current.unwrap();
            assert_eq!(facts.details.as_ref().unwrap().players.len(), usize::from(players));
            (least, most) = (least.min(players), most.max(players));
        }
        assert_eq!((least, most), (0, facts.players_max.unwrap()), "sometimes nobody, sometimes full");
        let unknown = moved(&Facts::default(), 0);
        assert_eq!(unknown.players_current, None, "what is unknown stays unknown");
    }

    #[tokio::test]
    async fn heartbeats_come_from_the_port_that_answers() {
        let announce = AnnounceMethod::OwnPort { advice: "", heartbeat: |facts| facts.name.as_bytes().to_vec() };
        let card: &Card = Box::leak(Box::new(Card { announce, ..netpanzer::CARD }));
        let master = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to: Target = format!("netpanzer://{}", master.local_addr().unwrap()).parse().unwrap();
        let servers = bind(card, 20, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let expected: Vec<_> =
            servers.iter().map(|server| (server.address, server.facts.load().name.to_string())).collect();
        let announcing = Announcing::to(to, card).unwrap();
        let network = Network { loss_percent: 0, delay: Duration::ZERO };
        let running = tokio::spawn(run(servers, network, Some(announcing)));
        let mut buffer = [0; 1500];
        let mut received = Vec::new();
        let mut from = master.local_addr().unwrap();
        for _ in &expected {
            let (size, sender) = master.recv_from(&mut buffer).await.unwrap();
            from = sender;
            let address = Address::new(from.ip(), from.port()).unwrap();
            received.push((address, String::from_utf8_lossy(&buffer[..size]).into_owned()));
        }
        assert_eq!(received, expected);
        let mut question = Question::new();
        card.query.unwrap().ask(Ask::Proof, 7, &mut question);
        master.send_to(&question, from).await.unwrap();
        assert_eq!(master.recv_from(&mut buffer).await.unwrap().1, from);
        running.abort();
    }
}

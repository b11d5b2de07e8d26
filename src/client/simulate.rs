//! Pretend game servers: each has a socket of its own, answers its game's query and announces itself to a master. For
//! launcher authors and for tests; one thread drives them all.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::announce::{self, Master};
use super::connect::addresses;
use super::target::{Kind, Target};
use crate::model::{Address, Facts};
use crate::protocols::Card;
use crate::protocols::announce::{Announce, Offer};

/// The longest question that is looked at.
const QUESTION_BYTES_MAX: usize = 512;
/// Refusals that are reported one by one.
const REPORTED_MAX: usize = 5;
/// Heartbeats at one time, and the pause after them: a master's socket holds only so many.
const HEARTBEATS_AT_ONCE: usize = 16;
const HEARTBEATS_PAUSE: Duration = Duration::from_millis(10);

pub struct Pretend {
    card: &'static Card,
    socket: UdpSocket,
    pub address: Address,
    facts: Facts<'static>,
}

/// Binds a socket for each server: on ports that the system chooses, or on consecutive ones from a port on.
pub async fn bind(card: &'static Card, count: usize, listen: SocketAddr) -> io::Result<Vec<Pretend>> {
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let port = match listen.port() {
            0 => 0,
            first => u16::try_from(usize::from(first) + number)
                .map_err(|_| io::Error::other(format!("there are no {count} ports from {first} on")))?,
        };
        let socket = UdpSocket::bind((listen.ip(), port)).await.map_err(|error| {
            let which = if port == 0 { format!("socket {} of {count}", number + 1) } else { format!("port {port}") };
            io::Error::new(error.kind(), format!("{which}: {error}"))
        })?;
        let local = socket.local_addr()?;
        let address = Address::new(local.ip(), local.port()).ok_or_else(|| io::Error::other("port 0"))?;
        all.push(Pretend { card, socket, address, facts: (card.pretend)(number) });
    }
    Ok(all)
}

/// How the servers are announced.
pub enum Announcing {
    /// As a program beside a game announces it.
    Beside(Master),
    /// By the game itself, from its own port.
    Itself { master: Target, heartbeat: fn(&Facts<'_>) -> Vec<u8> },
}

impl Announcing {
    /// To this master; an error says why it takes no servers of this game.
    pub fn to(master: Target, card: &Card) -> Result<Announcing, String> {
        match (master.kind, &card.announce) {
            (Kind::Game(own), Announce::OwnPort { heartbeat, .. }) if own.name == card.name => {
                Ok(Announcing::Itself { master, heartbeat: *heartbeat })
            }
            _ => Master::of(master, card.name).map(Announcing::Beside),
        }
    }
}

/// What the network between the servers and their clients is like.
#[derive(Clone, Copy)]
pub struct Network {
    /// So many of a hundred answers get lost.
    pub loss_percent: u8,
    /// Every answer takes this long.
    pub delay: Duration,
}

/// Answers and announces, until dropped.
pub async fn run(servers: Vec<Pretend>, network: Network, announcing: Option<Announcing>) {
    let mut tasks = JoinSet::new();
    let servers: Vec<Arc<Pretend>> = servers.into_iter().map(Arc::new).collect();
    for server in &servers {
        tasks.spawn(answer(server.clone(), network));
    }
    match announcing {
        None => {}
        Some(Announcing::Beside(master)) => drop(tasks.spawn(announce(servers, Arc::new(master)))),
        Some(Announcing::Itself { master, heartbeat }) => {
            drop(tasks.spawn(send_heartbeats(servers, master, heartbeat)))
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Whether an answer gets lost.
#[derive(Default)]
struct Dice {
    thrown: u64,
    state: RandomState,
}

impl Dice {
    fn lost(&mut self, loss_percent: u8) -> bool {
        self.thrown += 1;
        loss_percent > 0 && self.state.hash_one(self.thrown) % 100 < loss_percent.into()
    }
}

async fn answer(server: Arc<Pretend>, network: Network) {
    let mut dice = Dice::default();
    // A game that cannot be queried still has its socket: nobody else gets its port.
    let Some(answer) = server.card.answer else { return };
    let mut buffer = [0; QUESTION_BYTES_MAX];
    loop {
        // An error is an earlier answer's bad luck (an ICMP error).
        let Ok((size, from)) = server.socket.recv_from(&mut buffer).await else { continue };
        let question = buffer.get(..size).unwrap_or_default();
        let mut answers = answer(&server.facts, server.address, question);
        answers.retain(|_| !dice.lost(network.loss_percent));
        if !answers.is_empty() && !network.delay.is_zero() {
            sleep(network.delay).await;
        }
        for bytes in answers {
            let _ = server.socket.send_to(&bytes, from).await; // lost, as any datagram may be
        }
    }
}

/// The pace of the game's own servers.
fn every(servers: &[Arc<Pretend>]) -> Duration {
    Duration::from_millis(servers.iter().map(|server| server.card.announce_every_ms).min().unwrap_or(u64::MAX))
}

/// Rounds of heartbeats from the servers' own sockets. The master's questions are answered as all others.
async fn send_heartbeats(servers: Vec<Arc<Pretend>>, master: Target, heartbeat: fn(&Facts<'_>) -> Vec<u8>) {
    let every = every(&servers);
    loop {
        let began = Instant::now();
        match find(&servers, &master).await {
            Err(why) => warn!("no heartbeats to {master}: {why}"),
            Ok(to) => {
                for some in servers.chunks(HEARTBEATS_AT_ONCE) {
                    for server in some {
                        let _ = server.socket.send_to(&heartbeat(&server.facts), to).await; // may be lost, as any datagram
                    }
                    sleep(HEARTBEATS_PAUSE).await;
                }
                info!("sent heartbeats of {} servers to {master}", servers.len());
            }
        }
        sleep_until(began + every).await;
    }
}

/// The master's address, in the family of the servers.
async fn find(servers: &[Arc<Pretend>], master: &Target) -> Result<SocketAddr, String> {
    let authority = master.authority(master.master_port()?);
    let from = servers.first().map(|server| server.address.ip());
    let found = addresses(&authority, from).await.map_err(|error| error.to_string())?;
    found.first().copied().ok_or_else(|| "it has no address".into())
}

/// Rounds of announcements, at the pace of the game's own servers.
async fn announce(servers: Vec<Arc<Pretend>>, master: Arc<Master>) {
    let every = every(&servers);
    loop {
        let began = Instant::now();
        let mut refused = Vec::new();
        let permits = Arc::new(Semaphore::new(master.at_once()));
        let mut round = JoinSet::new();
        for server in &servers {
            let (server, master, permits) = (server.clone(), master.clone(), permits.clone());
            round.spawn(async move {
                let _permit = permits.acquire().await;
                let (game, port) = (server.card.name.to_string(), server.address.port());
                let offer = Offer { game, port, facts: server.facts.clone() };
                announce::once(offer, server.address.ip(), &master).await.map_err(|why| (server.address, why))
            });
        }
        while let Some(result) = round.join_next().await {
            refused.extend(result.ok().and_then(Result::err));
        }
        for (address, why) in refused.iter().take(REPORTED_MAX) {
            warn!("{address} is not announced to {master}: {why}");
        }
        if refused.len() > REPORTED_MAX {
            warn!("and {} more", refused.len() - REPORTED_MAX);
        }
        info!("announced {} of {} to {master}", servers.len() - refused.len(), servers.len());
        sleep_until(began + every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::{Ask, Question, netpanzer};

    #[tokio::test]
    async fn heartbeats_come_from_the_port_that_answers() {
        let announce = Announce::OwnPort { advice: "", heartbeat: |facts| facts.name.as_bytes().to_vec() };
        let card: &Card = Box::leak(Box::new(Card { announce, ..netpanzer::CARD }));
        let master = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to: Target = format!("netpanzer://{}", master.local_addr().unwrap()).parse().unwrap();
        let servers = bind(card, 20, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let expected: Vec<_> = servers.iter().map(|server| (server.address, server.facts.name.to_string())).collect();
        let announcing = Announcing::to(to, card).unwrap();
        let network = Network { loss_percent: 0, delay: Duration::ZERO };
        let running = tokio::spawn(run(servers, network, Some(announcing)));
        let mut buffer = [0; 1500];
        let mut heard = Vec::new();
        let mut from = master.local_addr().unwrap();
        for _ in &expected {
            let (size, sender) = master.recv_from(&mut buffer).await.unwrap();
            from = sender;
            let address = Address::new(from.ip(), from.port()).unwrap();
            heard.push((address, String::from_utf8_lossy(&buffer[..size]).into_owned()));
        }
        assert_eq!(heard, expected);
        let mut question = Question::new();
        card.query.unwrap().ask(Ask::Proof, 7, &mut question);
        master.send_to(&question, from).await.unwrap();
        assert_eq!(master.recv_from(&mut buffer).await.unwrap().1, from);
        running.abort();
    }
}

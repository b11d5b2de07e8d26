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
use crate::model::{Address, Facts};
use crate::protocols::Card;
use crate::protocols::announce::Offer;

/// The longest question that is looked at.
const QUESTION_BYTES_MAX: usize = 512;
/// Refusals that are told one by one.
const TOLD_MAX: usize = 5;

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

/// What the network between the servers and whoever asks them is like.
#[derive(Clone, Copy)]
pub struct Network {
    /// So many of a hundred answers get lost.
    pub loss_percent: u8,
    /// Every answer takes this long.
    pub delay: Duration,
}

/// Answers, and announces where there is a master to tell, until dropped.
pub async fn run(servers: Vec<Pretend>, network: Network, master: Option<Master>) {
    let mut tasks = JoinSet::new();
    let servers: Vec<Arc<Pretend>> = servers.into_iter().map(Arc::new).collect();
    for server in &servers {
        tasks.spawn(answer(server.clone(), network));
    }
    if let Some(master) = master {
        tasks.spawn(announce(servers, Arc::new(master)));
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

/// Rounds of announcements, at the pace of the game's own servers.
async fn announce(servers: Vec<Arc<Pretend>>, master: Arc<Master>) {
    let every_ms = servers.iter().map(|server| server.card.announce_every_ms).min().unwrap_or(u64::MAX);
    let every = Duration::from_millis(every_ms);
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
        for (address, why) in refused.iter().take(TOLD_MAX) {
            warn!("{address} is not announced to {master}: {why}");
        }
        if refused.len() > TOLD_MAX {
            warn!("and {} more", refused.len() - TOLD_MAX);
        }
        info!("announced {} of {} to {master}", servers.len() - refused.len(), servers.len());
        sleep_until(began + every).await;
    }
}

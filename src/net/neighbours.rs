//! A master among masters: asks its neighbours whom they know, tells all of them that it is there, and says good-bye.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::stopped;
use crate::hub::Hub;
use crate::model::{Address, Announce, Change, Facts, Game, HeartbeatKeys, MASTER, Proof};
use crate::protocols::is_one_host;
use crate::protocols::netpanzer::serve::network;
use crate::protocols::netpanzer::{LIFE_MS, wire};

/// The original's pace.
const EVERY: Duration = Duration::from_secs(300);
/// For one exchange with one master.
const PATIENCE: Duration = Duration::from_secs(5);
/// For all the good-byes together: the program wants to end.
const GOODBYE: Duration = Duration::from_millis(1_500);
/// Masters known at the most, and how much of an answer is read.
const MASTERS_MAX: usize = 256;
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// What the network is, from the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    pub neighbours: Vec<String>,
    pub password: String,
    /// The port that others reach this master on.
    pub port: u16,
    pub public: Option<Address>,
}

impl Network {
    fn is_on(&self) -> bool {
        !self.password.is_empty()
    }
}

/// Runs until told to stop; a new configuration begins a new round.
pub async fn run(hub: Arc<Hub>, mut network: watch::Receiver<Network>, mut stop: watch::Receiver<bool>) {
    loop {
        let current = network.borrow_and_update().clone();
        if current.is_on() {
            let round = round(&hub, &current);
            tokio::select! {
                () = round => {}
                () = stopped(&mut stop) => {}
            }
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            changed = network.changed() => if changed.is_err() { return },
            () = stopped(&mut stop) => {
                let goodbyes = say_goodbye(&hub, &current);
                let _ = timeout(GOODBYE, goodbyes).await; // who did not hear it will notice
                return;
            }
        }
    }
}

/// Asks every neighbour, then tells every master that is known now.
async fn round(hub: &Arc<Hub>, network: &Network) {
    let mut asking = JoinSet::new();
    for neighbour in network.neighbours.clone() {
        let network = network.clone();
        asking.spawn(async move {
            let learned = ask(&neighbour, &network).await;
            (neighbour, learned)
        });
    }
    while let Some(answer) = asking.join_next().await {
        match answer {
            Ok((_, Ok(learned))) => learned.into_iter().for_each(|master| add(hub, master)),
            Ok((neighbour, Err(error))) => warn!("netPanzer master {neighbour} did not answer: {error}"),
            Err(_) => {} // it was stopped with us
        }
    }
    let message = network::heartbeat(network.port, &network.password);
    for (master, result) in tell_all(hub, network, &message).await {
        match result {
            Ok(answer) if answer == br"\final\" => {}
            Ok(answer) => warn!("netPanzer master {master} refused us: {}", String::from_utf8_lossy(&answer)),
            Err(error) => debug!("netPanzer master {master} was not reached: {error}"),
        }
    }
}

async fn say_goodbye(hub: &Arc<Hub>, network: &Network) {
    if network.is_on() {
        tell_all(hub, network, &network::quit(network.port, &network.password)).await;
    }
}

/// The masters that a neighbour knows, without ourselves.
async fn ask(neighbour: &str, network: &Network) -> io::Result<Vec<Address>> {
    let (answer, local) = exchange(neighbour, &network::list()).await?;
    let mut learned = wire::parse_list(&answer).map_err(io::Error::other)?;
    let own = Address::new(local.ip(), network.port);
    learned.retain(|master| {
        let is_us = Some(*master) == own || Some(*master) == network.public;
        // What a neighbour calls its own loopback address is not ours to connect to, unless it is here.
        let elsewhere = master.ip().is_loopback() && !local.ip().is_loopback();
        !is_us && !elsewhere && is_one_host(master.ip())
    });
    learned.truncate(MASTERS_MAX);
    Ok(learned)
}

fn add(hub: &Hub, master: Address) {
    let now = hub.clock.now();
    if hub.view().of_game(MASTER).count() >= MASTERS_MAX {
        return;
    }
    let announce = Announce {
        address: master,
        game: Game::Known(MASTER),
        proof: Proof::Connection,
        proven_at_ms: now.unix_ms,
        life_ms: LIFE_MS,
        asked: false,
        rtt_us: None,
        keys: Some(Arc::new(HeartbeatKeys::of(MASTER, master))),
        facts: Facts::default(),
    };
    hub.apply_one(&Change::Announce(announce), now);
}

/// Sends a message to every master: the configured, and those that announced themselves or were learned.
async fn tell_all(hub: &Hub, network: &Network, message: &[u8]) -> Vec<(String, io::Result<Vec<u8>>)> {
    let mut masters: HashSet<String> = network.neighbours.iter().cloned().collect();
    // Not from the view: what was learned a moment ago may not be published yet.
    hub.publish(hub.clock.now());
    masters.extend(hub.view().of_game(MASTER).map(|server| server.address.to_string()));
    let mut telling = JoinSet::new();
    for master in masters.into_iter().take(MASTERS_MAX) {
        let message = message.to_vec();
        telling.spawn(async move {
            let answer = exchange(&master, &message).await.map(|(answer, _)| answer);
            (master, answer)
        });
    }
    let mut results = Vec::new();
    while let Some(result) = telling.join_next().await {
        results.extend(result);
    }
    results
}

/// One request and its answer: to the close, or to the `final` that ends it.
async fn exchange(master: &str, message: &[u8]) -> io::Result<(Vec<u8>, SocketAddr)> {
    let talk = async {
        let mut stream = TcpStream::connect(master).await?;
        let local = stream.local_addr()?;
        stream.write_all(message).await?;
        let mut answer = Vec::new();
        let mut limited = (&mut stream).take(ANSWER_BYTES_MAX);
        while !answer.ends_with(br"\final\") && limited.read_buf(&mut answer).await? > 0 {}
        Ok((answer, local))
    };
    timeout(PATIENCE, talk).await?
}

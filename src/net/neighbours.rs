//! A master among masters: asks its neighbours whom they know, tells all of them that it is there, and says good-bye.

use std::collections::{HashMap, HashSet};
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
use crate::protocols::announce::reason;
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
/// A master that others tell of is taken at their word for so many rounds.
const SILENT_ROUNDS_MAX: u8 = 2;

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
    let mut silent = HashMap::new();
    loop {
        let current = network.borrow_and_update().clone();
        if current.is_on() {
            let round = round(&hub, &current, &mut silent);
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

/// Asks every neighbour whom it knows, adds those, and tells all of them that we are here. Who is only heard of, and has
/// been silent for some rounds, is not added again: masters that know each other would keep a dead one alive for ever.
async fn round(hub: &Arc<Hub>, network: &Network, silent: &mut HashMap<Address, u8>) {
    let mut asking = JoinSet::new();
    for neighbour in network.neighbours.clone() {
        let network = network.clone();
        asking.spawn(async move {
            let learned = ask(&neighbour, &network).await;
            (neighbour, learned)
        });
    }
    let mut learned = HashSet::new();
    while let Some(answer) = asking.join_next().await {
        match answer {
            Ok((_, Ok(masters))) => learned.extend(masters),
            Ok((neighbour, Err(error))) => warn!("netPanzer master {neighbour} did not answer: {error}"),
            Err(_) => {} // it was stopped with us
        }
    }
    silent.retain(|master, _| learned.contains(master));
    let rounds = |master: &Address| silent.get(master).copied().unwrap_or(0);
    learned.iter().filter(|master| rounds(master) < SILENT_ROUNDS_MAX).for_each(|master| add(hub, *master));
    let message = network::heartbeat(network.port, &network.password);
    for (master, result) in tell_all(hub, network, &learned, &message).await {
        if let Some(learned) = master.parse().ok().filter(|master| learned.contains(master)) {
            let rounds = silent.entry(learned).or_default();
            *rounds = if result.is_ok() { 0 } else { rounds.saturating_add(1) };
        }
        match result {
            Ok(answer) if answer == br"\final\" => {}
            Ok(answer) => warn!("netPanzer master {master} refused us: {}", reason(&answer)),
            Err(error) => debug!("netPanzer master {master} was not reached: {error}"),
        }
    }
}

async fn say_goodbye(hub: &Arc<Hub>, network: &Network) {
    if network.is_on() {
        tell_all(hub, network, &HashSet::new(), &network::quit(network.port, &network.password)).await;
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

/// Sends a message to every master: the configured, those that announced themselves, and those just heard of.
async fn tell_all(
    hub: &Hub,
    network: &Network,
    learned: &HashSet<Address>,
    message: &[u8],
) -> Vec<(String, io::Result<Vec<u8>>)> {
    let view = hub.view();
    let known = view.of_game(MASTER).map(|server| server.address).chain(learned.iter().copied());
    let masters = network.neighbours.iter().cloned().chain(known.map(|master| master.to_string()));
    let mut told = HashSet::new();
    let mut telling = JoinSet::new();
    for master in masters.filter(|master| told.insert(master.clone())).take(MASTERS_MAX) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Settings;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_dead_master_is_not_kept_alive_by_hearsay() {
        let settings = Settings { servers_max: 10, servers_per_ip_max: 10, ask_every_ms: 30_000, misses_max: 3 };
        let hub = Arc::new(Hub::new(settings));
        let neighbour = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = neighbour.local_addr().unwrap();
        let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = neighbour.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(br"\final\") && stream.read_buf(&mut request).await.unwrap() > 0 {}
                let hearsay = format!(r"\ip\127.0.0.1\port\{}\final\", dead.port());
                let answer = if request.starts_with(br"\list") { &hearsay } else { r"\final\" };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let neighbours = vec![address.to_string()];
        let network = Network { neighbours, password: "secret".into(), port: 1, public: None };
        let mut silent = HashMap::new();
        let mut renewed_ms = Vec::new();
        for _ in 0..5 {
            round(&hub, &network, &mut silent).await;
            let record = hub.record(Address::new(dead.ip(), dead.port()).unwrap()).unwrap();
            renewed_ms.push(record.proven_at_ms);
            while hub.clock.now().unix_ms <= record.proven_at_ms {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(silent.values().copied().collect::<Vec<_>>(), [5]);
        renewed_ms.dedup();
        assert_eq!(renewed_ms.len(), 2, "taken at their word twice, and not again");
    }
}

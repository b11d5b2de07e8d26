//! A master among masters: asks its neighbours which masters they know, sends all of them heartbeats, and a quit to every
//! one of those in the end.

mod exchange;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::stopped;
use crate::hub::Hub;
use crate::model::{Address, Announce, Change, Facts, Game, HeartbeatKeys, MASTER, Proof};
use crate::protocols::is_one_host;
use crate::protocols::netpanzer::network::{self, Own};
use crate::protocols::netpanzer::{CARD, LIFE_MS};
use crate::protocols::section::MasterNetwork as Network;
use exchange::{AT_ONCE_MAX, Heard, Target, exchange, exchange_all};

/// The original's pace.
const EVERY: Duration = Duration::from_secs(300);
/// For one exchange with one master.
const PATIENCE: Duration = Duration::from_secs(5);
/// For all quits together: the program wants to end.
const GOODBYE: Duration = Duration::from_millis(1_500);
/// Masters known, and masters sent a heartbeat, beside the configured ones.
const MASTERS_MAX: usize = 256;
/// A master that others tell of is taken at their word for so many rounds.
const SILENT_ROUNDS_MAX: u8 = 2;

impl Network {
    fn is_on(&self) -> bool {
        !self.password.is_empty()
    }

    /// The port that others reach this master on.
    fn port(&self) -> u16 {
        let listening = self.listening.first().map(SocketAddr::port);
        self.public.map(|public| public.port()).or(listening).or(CARD.master_port).unwrap_or(0)
    }

    /// The addresses of this master itself, with those that the machine has now.
    fn own(&self) -> Own {
        Own::new(&self.listening, &machine_addresses(), self.public)
    }

    fn heartbeat(&self) -> Vec<u8> {
        network::heartbeat(self.port(), &self.password)
    }

    fn quit(&self) -> Vec<u8> {
        network::quit(self.port(), &self.password)
    }
}

pub fn machine_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let address = interfaces.filter_map(|interface| interface.address);
    address
        .filter_map(|address| {
            let ipv4 = address.as_sockaddr_in().map(|address| address.ip().into());
            ipv4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
        })
        .collect()
}

/// What is remembered from round to round.
#[derive(Default)]
struct Memory {
    /// For how many rounds masters that are only heard of have been silent.
    silent: HashMap<Address, u8>,
    told: Notified,
    /// Neighbours that turned out to be this master itself: the operator is told once.
    ourselves: HashSet<String>,
}

/// The masters that were sent a heartbeat and may still list this one, and when. Exchanges note it themselves, before
/// they send: a round may end at any moment.
type Notified = Arc<Mutex<HashMap<SocketAddr, Instant>>>;

/// Runs until told to stop; a new configuration begins a new round.
pub async fn run(hub: Arc<Hub>, mut network: watch::Receiver<Network>, mut stop: watch::Receiver<bool>) {
    let mut memory = Memory::default();
    let mut current = network.borrow_and_update().clone();
    loop {
        if current.is_on() {
            tokio::select! {
                () = round(&hub, &current, &mut memory) => {}
                () = stopped(&mut stop) => {}
            }
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            changed = network.changed() => if changed.is_err() { return },
            () = stopped(&mut stop) => return say_goodbye(&current, &memory.told).await,
        }
        let new = network.borrow_and_update().clone();
        if new.quit() != current.quit() {
            // What they know this master by is no longer true.
            say_goodbye(&current, &memory.told).await;
        }
        current = new;
    }
}

/// Asks every neighbour which masters it knows, adds those, and sends all of them a heartbeat. A master that is only
/// heard of, and has been silent for some rounds, is not added again: masters that know each other would keep a dead one
/// alive for ever.
async fn round(hub: &Arc<Hub>, network: &Network, memory: &mut Memory) {
    let own = Arc::new(network.own());
    let (mut targets, learned) = ask_all(network, &own, &mut memory.ourselves).await;
    memory.silent.retain(|master, _| learned.contains(master));
    let rounds = |master: &Address| memory.silent.get(master).copied().unwrap_or(0);
    add_all(hub, learned.iter().filter(|master| rounds(master) < SILENT_ROUNDS_MAX).copied());

    add_targets(hub, &own, &learned, &memory.told, &mut targets);
    let told = memory.told.clone();
    let note = move |peer| {
        lock(&told).insert(peer, Instant::now());
    };
    for (target, result) in exchange_all(targets, network.heartbeat(), PATIENCE, note).await {
        for master in target.places.iter().filter_map(|place| Address::new(place.ip(), place.port())) {
            if learned.contains(&master) {
                let rounds = memory.silent.entry(master).or_default();
                *rounds = if result.is_ok() { 0 } else { rounds.saturating_add(1) };
            }
        }
        match result.map(|heard| network::complaint(&heard.answer)) {
            Ok(None) => {}
            Ok(Some(complaint)) => warn!("netPanzer master {target} does not list this one: {complaint}"),
            Err(error) => debug!("netPanzer master {target} was not reached: {error}"),
        }
    }
}

/// The neighbours, and the masters that they know, without this one.
async fn ask_all(
    network: &Network,
    own: &Arc<Own>,
    ourselves: &mut HashSet<String>,
) -> (Vec<Target>, HashSet<Address>) {
    let mut asking = JoinSet::new();
    for neighbour in network.neighbours.clone() {
        asking.spawn(ask(neighbour, own.clone()));
    }
    let (mut targets, mut learned) = (Vec::<Target>::new(), HashSet::new());
    while let Some(asked) = asking.join_next().await {
        let Ok(Asked { target, masters }) = asked else { continue }; // it was stopped with us
        match masters {
            Ok(masters) => learned.extend(masters),
            Err(Unasked::Ourselves) => {
                if ourselves.insert(target.name.clone()) {
                    warn!("netpanzer.neighbours: {target} is this master itself. Remove it");
                }
            }
            Err(Unasked::Failed(why)) => warn!("netPanzer master {target} gave no list of masters: {why}"),
        }
        // One master may have two names, or none that is found.
        if !target.places.is_empty() && !targets.iter().any(|known| known.places == target.places) {
            targets.push(target);
        }
    }
    (targets, learned)
}

/// What came of asking a neighbour: who it is, and which masters it knows, without this one.
struct Asked {
    target: Target,
    masters: Result<Vec<Address>, Unasked>,
}

enum Unasked {
    Ourselves,
    Failed(String),
}

async fn ask(neighbour: String, own: Arc<Own>) -> Asked {
    let mut target = Target { name: neighbour, places: Vec::new() };
    let masters = match look_up(&target.name).await {
        Ok(found) => ask_at(found, &mut target, &own).await,
        Err(why) => Err(Unasked::Failed(why)),
    };
    Asked { target, masters }
}

async fn look_up(name: &str) -> Result<Vec<SocketAddr>, String> {
    match timeout(PATIENCE, lookup_host(name)).await {
        Ok(found) => found.map(Iterator::collect).map_err(|error| error.to_string()),
        Err(_) => Err("its name was not found in time".into()),
    }
}

/// Asks the master at one of these places, and leaves in `target` where it may be.
async fn ask_at(found: Vec<SocketAddr>, target: &mut Target, own: &Own) -> Result<Vec<Address>, Unasked> {
    let is_own = |place: &SocketAddr| Address::new(place.ip(), place.port()).is_some_and(|place| own.contains(place));
    let (ours, places): (Vec<_>, Vec<_>) = found.into_iter().map(canonical).partition(is_own);
    if !ours.is_empty() && places.is_empty() {
        return Err(Unasked::Ourselves);
    }
    target.places = places;
    match exchange(target, &network::list(), PATIENCE, |_| {}).await {
        Ok(heard) => {
            target.places = vec![heard.peer];
            read_masters(&heard, own).map_err(Unasked::Failed)
        }
        // `localhost` is also ::1, where nobody listens.
        Err(_) if !ours.is_empty() => {
            target.places.clear();
            Err(Unasked::Ourselves)
        }
        Err(error) => Err(Unasked::Failed(error.to_string())),
    }
}

/// An IPv4 address is not written as IPv6: one master has one address.
fn canonical(mut address: SocketAddr) -> SocketAddr {
    if address.ip().to_canonical().is_ipv4() {
        address.set_ip(address.ip().to_canonical());
    }
    address
}

/// The masters in a neighbour's answer, without this one.
fn read_masters(heard: &Heard, own: &Own) -> Result<Vec<Address>, String> {
    let mut masters = network::read_list(&heard.answer)?;
    masters.retain(|master| {
        // What a neighbour calls its own loopback address is not ours to connect to, unless it is here.
        let elsewhere = master.ip().is_loopback() && !heard.local.ip().is_loopback();
        !own.contains(*master) && !elsewhere && is_one_host(master.ip())
    });
    masters.truncate(MASTERS_MAX);
    Ok(masters)
}

/// Lists masters that a neighbour told of, as long as there is room.
fn add_all(hub: &Hub, masters: impl Iterator<Item = Address>) {
    let now = hub.clock.now();
    let view = hub.view();
    let known: HashSet<Address> = view.of_game(MASTER).map(|server| server.address).collect();
    let mut room = MASTERS_MAX.saturating_sub(known.len());
    for master in masters {
        if !known.contains(&master) {
            let Some(left) = room.checked_sub(1) else { continue };
            room = left;
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
}

/// Who gets a heartbeat beside the neighbours: masters that announced themselves and those just heard of. No more than
/// can be sent a quit later, when the program wants to end.
fn add_targets(hub: &Hub, own: &Own, learned: &HashSet<Address>, told: &Notified, targets: &mut Vec<Target>) {
    let forgotten = Duration::from_millis(LIFE_MS) + PATIENCE;
    let mut told = lock(told);
    told.retain(|_, at| at.elapsed() < forgotten); // they list this master no more
    let mut room = MASTERS_MAX.saturating_sub(told.len());
    let mut seen: HashSet<SocketAddr> = targets.iter().flat_map(|target| target.places.clone()).collect();
    let view = hub.view();
    let known = view.of_game(MASTER).map(|server| server.address).chain(learned.iter().copied());
    for master in known.filter(|master| !own.contains(*master)) {
        let place = master.socket();
        if !seen.insert(place) {
            continue;
        }
        if !told.contains_key(&place) {
            let Some(left) = room.checked_sub(1) else { continue };
            room = left;
        }
        targets.push(Target { name: place.to_string(), places: vec![place] });
    }
}

/// A quit for every master that was sent a heartbeat. One that does not hear it will notice by itself.
async fn say_goodbye(network: &Network, told: &Notified) {
    let masters = std::mem::take(&mut *lock(told));
    // With very many, each gets its share of the time.
    let patience = GOODBYE / masters.len().div_ceil(AT_ONCE_MAX).max(1) as u32;
    let targets = masters.into_keys().map(|place| Target { name: place.to_string(), places: vec![place] });
    let goodbyes = exchange_all(targets.collect(), network.quit(), patience, |_| {});
    let _ = timeout(GOODBYE, goodbyes).await; // long enough
}

fn lock(told: &Notified) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Instant>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

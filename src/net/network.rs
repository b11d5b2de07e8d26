//! Drives a network of masters: asks the neighbours which masters they know, sends heartbeats to all of them, and quits when
//! the program stops. The messages and their meaning are the protocol's ([`NetworkRules`]).

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
use crate::model::{Address, Change};
use crate::protocols::is_one_host;
use crate::protocols::network::{MasterNetwork, NetworkRules, Own, Trouble};
use exchange::{AT_ONCE_MAX, Exchanged, Target, exchange, exchange_all};

/// Timeout of one exchange with one master.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of all quits together, because the program is stopping.
const QUITS_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Upper bound on known masters, and on those that get heartbeats, apart from the neighbours.
const MASTERS_MAX: usize = 256;
/// A master that only others mention stays listed for this many rounds without its own answer.
const SILENT_ROUNDS_MAX: u8 = 2;

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

/// State between rounds.
#[derive(Default)]
struct Memory {
    /// For how many rounds masters that only others mention have been silent.
    silent: HashMap<Address, u8>,
    notified: Notified,
    /// Neighbours that turned out to be this master itself: each is logged once.
    ourselves: HashSet<String>,
}

/// The masters that got a heartbeat and may still list this one, with its time. It is recorded before the heartbeat is sent,
/// because a round can be interrupted at any time.
type Notified = Arc<Mutex<HashMap<SocketAddr, Instant>>>;

/// Runs until the program stops; a new configuration begins a new round.
pub async fn run(hub: Arc<Hub>, mut network: watch::Receiver<MasterNetwork>, mut stop: watch::Receiver<bool>) {
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
            () = tokio::time::sleep(Duration::from_millis(current.rules.every_ms())) => {}
            changed = network.changed() => if changed.is_err() { return },
            () = stopped(&mut stop) => return send_quits(&current, &memory.notified).await,
        }
        let new = network.borrow_and_update().clone();
        if new.quit() != current.quit() {
            // The other masters list this one under its old settings.
            send_quits(&current, &memory.notified).await;
        }
        current = new;
    }
}

/// Asks every neighbour which masters it knows, adds those, and sends all of them a heartbeat. A master that only others
/// mention and that has been silent for some rounds is not added again: masters that know each other would keep a dead
/// one alive for ever.
async fn round(hub: &Arc<Hub>, network: &MasterNetwork, memory: &mut Memory) {
    let own = Arc::new(network.own(&machine_addresses()));
    let (mut targets, learned) = ask_neighbours(network, &own, &mut memory.ourselves).await;
    memory.silent.retain(|master, _| learned.contains(master));
    let rounds = |master: &Address| memory.silent.get(master).copied().unwrap_or(0);
    add_all(hub, network.rules, learned.iter().filter(|master| rounds(master) < SILENT_ROUNDS_MAX).copied());

    add_targets(hub, network.rules, &own, &learned, &memory.notified, &mut targets);
    let notified = memory.notified.clone();
    let note = move |peer| {
        lock(&notified).insert(peer, Instant::now());
    };
    for (target, result) in exchange_all(targets, network.rules, network.heartbeat(), EXCHANGE_TIMEOUT, note).await {
        for master in target.addresses.iter().filter_map(|place| Address::new(place.ip(), place.port())) {
            if learned.contains(&master) {
                let rounds = memory.silent.entry(master).or_default();
                *rounds = if result.is_ok() { 0 } else { rounds.saturating_add(1) };
            }
        }
        match result.map(|exchanged| network.rules.complaint(&exchanged.answer)) {
            Ok(None) => {}
            Ok(Some(complaint)) => {
                warn!("{}", network.rules.warning(&target.to_string(), &Trouble::Refused(complaint)))
            }
            Err(error) => {
                let trouble = Trouble::Unreachable(error.to_string());
                debug!("{}", network.rules.warning(&target.to_string(), &trouble));
            }
        }
    }
}

/// The neighbours, and the masters that they know, without this one.
async fn ask_neighbours(
    network: &MasterNetwork,
    own: &Arc<Own>,
    ourselves: &mut HashSet<String>,
) -> (Vec<Target>, HashSet<Address>) {
    let rules = network.rules;
    let mut asking = JoinSet::new();
    for neighbour in network.neighbours.clone() {
        asking.spawn(ask(rules, neighbour, own.clone()));
    }
    let (mut targets, mut learned) = (Vec::<Target>::new(), HashSet::new());
    while let Some(asked) = asking.join_next().await {
        let Ok(Neighbour { target, masters }) = asked else { continue }; // the program stops
        match masters {
            Ok(masters) => learned.extend(masters),
            // Logged once.
            Err(Trouble::Ourselves) if !ourselves.insert(target.name.clone()) => {}
            Err(trouble) => warn!("{}", rules.warning(&target.to_string(), &trouble)),
        }
        // One master may have two names, or a name that is not found.
        if !target.addresses.is_empty() && !targets.iter().any(|known| known.addresses == target.addresses) {
            targets.push(target);
        }
    }
    (targets, learned)
}

/// A neighbour, and the masters that it knows, without this one.
struct Neighbour {
    target: Target,
    masters: Result<Vec<Address>, Trouble>,
}

async fn ask(rules: &'static dyn NetworkRules, neighbour: String, own: Arc<Own>) -> Neighbour {
    let mut target = Target { name: neighbour, addresses: Vec::new() };
    let masters = match resolve(&target.name).await {
        Ok(found) => ask_at(rules, found, &mut target, &own).await,
        Err(why) => Err(Trouble::NoList(why)),
    };
    Neighbour { target, masters }
}

async fn resolve(name: &str) -> Result<Vec<SocketAddr>, String> {
    match timeout(EXCHANGE_TIMEOUT, lookup_host(name)).await {
        Ok(found) => found.map(Iterator::collect).map_err(|error| error.to_string()),
        Err(_) => Err("its name was not found in time".into()),
    }
}

/// Asks the master at one of these addresses, and sets the addresses of `target`.
async fn ask_at(
    rules: &dyn NetworkRules,
    found: Vec<SocketAddr>,
    target: &mut Target,
    own: &Own,
) -> Result<Vec<Address>, Trouble> {
    let is_own = |place: &SocketAddr| Address::new(place.ip(), place.port()).is_some_and(|place| own.contains(place));
    let (ours, addresses): (Vec<_>, Vec<_>) = found.into_iter().map(canonical).partition(is_own);
    if !ours.is_empty() && addresses.is_empty() {
        return Err(Trouble::Ourselves);
    }
    target.addresses = addresses;
    match exchange(target, rules, &rules.list(), EXCHANGE_TIMEOUT, |_| {}).await {
        Ok(exchanged) => {
            target.addresses = vec![exchanged.peer];
            read_masters(rules, &exchanged, own).map_err(Trouble::NoList)
        }
        // `localhost` is also ::1, where nothing may listen.
        Err(_) if !ours.is_empty() => {
            target.addresses.clear();
            Err(Trouble::Ourselves)
        }
        Err(error) => Err(Trouble::NoList(error.to_string())),
    }
}

/// Converts IPv4-mapped addresses to IPv4, so that one master has one address.
fn canonical(mut address: SocketAddr) -> SocketAddr {
    if address.ip().to_canonical().is_ipv4() {
        address.set_ip(address.ip().to_canonical());
    }
    address
}

/// The masters in a neighbour's answer, without this one.
fn read_masters(rules: &dyn NetworkRules, exchanged: &Exchanged, own: &Own) -> Result<Vec<Address>, String> {
    let mut masters = rules.read_list(&exchanged.answer)?;
    masters.retain(|master| {
        // A neighbour's loopback address is of no use here, unless the neighbour is on this machine.
        let elsewhere = master.ip().is_loopback() && !exchanged.local.ip().is_loopback();
        !own.contains(*master) && !elsewhere && is_one_host(master.ip())
    });
    masters.truncate(MASTERS_MAX);
    Ok(masters)
}

/// Lists masters that neighbours mentioned, up to the limit.
fn add_all(hub: &Hub, rules: &dyn NetworkRules, masters: impl Iterator<Item = Address>) {
    let now = hub.clock.now();
    let view = hub.view();
    let known: HashSet<Address> = view.masters().map(|server| server.address).collect();
    let mut room = MASTERS_MAX.saturating_sub(known.len());
    for master in masters {
        if !known.contains(&master) {
            let Some(left) = room.checked_sub(1) else { continue };
            room = left;
        }
        hub.apply_one(&Change::Announce(rules.announce(master, now.unix_ms)), now);
    }
}

/// Adds the masters that get a heartbeat besides the neighbours: those that announced themselves and those just mentioned. Their
/// number is limited, because each gets a quit when the program stops.
fn add_targets(
    hub: &Hub,
    rules: &dyn NetworkRules,
    own: &Own,
    learned: &HashSet<Address>,
    notified: &Notified,
    targets: &mut Vec<Target>,
) {
    let forgotten = Duration::from_millis(rules.life_ms()) + EXCHANGE_TIMEOUT;
    let mut notified = lock(notified);
    notified.retain(|_, at| at.elapsed() < forgotten); // after that, the others do not list this master any more
    let mut room = MASTERS_MAX.saturating_sub(notified.len());
    let mut seen: HashSet<SocketAddr> = targets.iter().flat_map(|target| target.addresses.clone()).collect();
    let view = hub.view();
    let known = view.masters().map(|server| server.address).chain(learned.iter().copied());
    for master in known.filter(|master| !own.contains(*master)) {
        let place = master.socket();
        if !seen.insert(place) {
            continue;
        }
        if !notified.contains_key(&place) {
            let Some(left) = room.checked_sub(1) else { continue };
            room = left;
        }
        targets.push(Target { name: place.to_string(), addresses: vec![place] });
    }
}

/// Sends a quit to every master that got a heartbeat. One that does not get it drops this master when its life ends.
async fn send_quits(network: &MasterNetwork, notified: &Notified) {
    let masters = std::mem::take(&mut *lock(notified));
    // With many masters, each batch gets its share of the time.
    let limit = QUITS_TIMEOUT / masters.len().div_ceil(AT_ONCE_MAX).max(1) as u32;
    let targets = masters.into_keys().map(|place| Target { name: place.to_string(), addresses: vec![place] });
    let quits = exchange_all(targets.collect(), network.rules, network.quit(), limit, |_| {});
    let _ = timeout(QUITS_TIMEOUT, quits).await; // masters that did not get it drop this one later
}

fn lock(notified: &Notified) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Instant>> {
    notified.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

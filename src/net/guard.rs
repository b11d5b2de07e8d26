//! The guard: bans, connection limits, and the [budgets](crate::budget).
//!
//! No connection is refused because of a limit. Instead, the connection that has been idle longest is evicted: of the same
//! address or of a wider network around it if that exceeds its own limit; when the table is full, of the network that holds the
//! most, up to a provider's. So neither one address nor many can keep others out, or push out those who hold less.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use tokio::sync::Notify;
use tokio::time::Instant; // in a simulation, the simulated time

use crate::budget::{self, Budgets};
use crate::prefix::ranking::Ranking;
use crate::prefix::{LEVELS_MAX, Networks, OWNERS_MAX, Prefix};

/// How many equally heavy addresses are looked at to find a connection to evict, and how many connections of them: enough to find
/// one that is nearly the longest idle, and cheap.
const ADDRESSES_COMPARED: usize = 16;
const COMPARED: usize = 64;
/// The same within a prefix that has reached its limit. By default one address has no more connections than this, so the
/// result is exact.
const COMPARED_OF_PREFIX: usize = 1_024;

/// The limits of the `[guard]` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub connections_max: usize,
    /// For one address (IPv6 /64); wider prefixes have larger limits.
    pub per_ip_max: u32,
    pub bans: Networks,
    /// The budgets; its exempt networks have only the connection limit per address.
    pub budgets: budget::Settings,
}

pub struct Guard {
    bans: ArcSwap<Networks>,
    start: Instant,
    groups: Mutex<Groups>,
    budgets: ArcSwap<Budgets>,
}

struct Groups {
    settings: Settings,
    all: Group,
    by_prefix: HashMap<Prefix, Group>,
    /// Those of proxies: each is somebody else's, and counts like a network of its own.
    of_proxies: Group,
    /// What each network holds: made when the table is full, because it costs as much as everything else here.
    ranking: Option<Ranking>,
    /// With fewer connections than this, the ranking is dropped.
    ranked_from: usize,
}

/// Connections that count for the same limit.
#[derive(Default)]
struct Group {
    connections: Vec<Arc<Connection>>,
    /// Where the next comparison begins.
    next: usize,
}

struct Connection {
    ip: IpAddr,
    /// The prefixes it was counted for; none for a proxy's.
    prefixes: ArrayVec<Prefix, LEVELS_MAX>,
    /// Its index in the group of each prefix, and last in the group of all. Only accessed under the lock.
    positions: [AtomicUsize; LEVELS_MAX + 1],
    active_at_us: AtomicU64,
    /// Since when its client has not taken all of an answer; 0: it has.
    holding_since_us: AtomicU64,
    evicted: Notify,
}

impl Guard {
    pub fn new(settings: Settings) -> Guard {
        let bans = ArcSwap::from_pointee(settings.bans.clone());
        let budgets = ArcSwap::from_pointee(new_budgets(settings.budgets.clone()));
        let groups = Groups::new(settings);
        Guard { bans, start: Instant::now(), groups: Mutex::new(groups), budgets }
    }

    /// Sets new limits and bans. Evicts banned connections at once; lower limits take effect with new connections.
    pub fn set(&self, settings: Settings) {
        self.bans.store(Arc::new(settings.bans.clone()));
        let budgets = self.budgets.load();
        if *budgets.settings() != settings.budgets {
            self.budgets.store(Arc::new(budgets.renewed(settings.budgets.clone())));
        }
        let mut groups = self.groups();
        groups.settings = settings;
        groups.ranking = None; // other networks may be exempt
        groups.evict_banned();
    }

    /// Sets new bans only. Returns how many connections were evicted.
    pub fn set_bans(&self, bans: Networks) -> usize {
        self.bans.store(Arc::new(bans.clone()));
        let mut groups = self.groups();
        groups.settings.bans = bans;
        groups.evict_banned()
    }

    /// Evicts a connection of the network that holds the most, for when the system runs out of descriptors.
    pub fn evict_idle(&self) {
        let mut groups = self.groups();
        if let Some(connection) = groups.of_the_heaviest(None) {
            groups.evict(&connection);
        }
    }

    /// Evicts up to `most` of the connections that hold an answer, for when answers take too much memory: from the networks that
    /// hold the most, those that have held one for longest. Returns how many.
    pub fn evict_holders(&self, most: usize) -> usize {
        let mut groups = self.groups();
        let since = |connection: &Arc<Connection>| connection.holding_since_us.load(Ordering::Relaxed);
        let holders: Vec<_> = groups.all.connections.iter().map(|it| (since(it), it)).filter(|it| it.0 > 0).collect();
        let mut held: HashMap<Prefix, u32> = HashMap::new();
        let owners = holders.iter().flat_map(|(_, connection)| groups.owners(connection));
        owners.for_each(|owner| *held.entry(owner).or_default() += 1);
        // What each network around it holds, from the widest to the address.
        let weights = |connection: &Connection| {
            let (owners, mut weights) = (groups.owners(connection), [1; OWNERS_MAX]);
            for (level, weight) in weights.iter_mut().enumerate() {
                let owner = owners.get(level).or(owners.last());
                *weight = owner.and_then(|owner| held.get(owner)).copied().unwrap_or(1);
            }
            weights
        };
        let mut holders: Vec<_> = holders.into_iter().map(|(since, it)| (Reverse(weights(it)), since, it)).collect();
        holders.sort_unstable_by_key(|(held, since, _)| (*held, *since));
        let evicted: Vec<_> = holders.into_iter().take(most).map(|(_, _, connection)| connection.clone()).collect();
        evicted.iter().for_each(|connection| groups.evict(connection));
        evicted.len()
    }

    pub fn bans(&self) -> arc_swap::Guard<Arc<Networks>> {
        self.bans.load()
    }

    pub fn budgets(&self) -> arc_swap::Guard<Arc<Budgets>> {
        self.budgets.load()
    }

    /// Admits a connection unless its address is banned.
    pub fn admit(self: &Arc<Guard>, ip: IpAddr) -> Option<Admission> {
        self.admit_counted(ip, |groups| Prefix::all(ip, &groups.settings.budgets.exempt))
    }

    /// The same for a proxy: its connections are of many clients, so they count only for the limit in all.
    pub fn admit_proxy(self: &Arc<Guard>, ip: IpAddr) -> Option<Admission> {
        self.admit_counted(ip, |_| ArrayVec::new())
    }

    fn admit_counted(
        self: &Arc<Guard>,
        ip: IpAddr,
        prefixes: impl FnOnce(&Groups) -> ArrayVec<Prefix, LEVELS_MAX>,
    ) -> Option<Admission> {
        let ip = ip.to_canonical();
        if self.bans().contains(ip) {
            return None;
        }
        let active_at_us = AtomicU64::new(self.now_us());
        let mut groups = self.groups();
        // It may have been banned in between: under the lock, either this sees it or the ban sees the connection.
        if groups.settings.bans.contains(ip) {
            return None;
        }
        let prefixes = prefixes(&groups);
        let connection = Arc::new(Connection {
            ip,
            prefixes,
            positions: Default::default(),
            active_at_us,
            holding_since_us: AtomicU64::new(0),
            evicted: Notify::new(),
        });
        groups.add(&connection);
        groups.make_room_for(&connection);
        Some(Admission { guard: self.clone(), connection })
    }

    pub fn connections(&self) -> usize {
        self.groups().all.connections.len()
    }

    fn now_us(&self) -> u64 {
        self.us_at(Instant::now())
    }

    fn us_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_micros() as u64
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Budgets with a random, secret key.
fn new_budgets(settings: budget::Settings) -> Budgets {
    let random = RandomState::new();
    Budgets::new(settings, [random.hash_one(0), random.hash_one(1)])
}

impl Groups {
    fn new(settings: Settings) -> Groups {
        let (all, of_proxies) = (Group::default(), Group::default());
        Groups { settings, all, by_prefix: HashMap::new(), of_proxies, ranking: None, ranked_from: 0 }
    }

    fn evict_banned(&mut self) -> usize {
        let is_banned = |connection: &&Arc<Connection>| self.settings.bans.contains(connection.ip);
        let banned: Vec<_> = self.all.connections.iter().filter(is_banned).cloned().collect();
        banned.iter().for_each(|connection| self.evict(connection));
        banned.len()
    }

    /// Evicts those that give way to a newcomer.
    fn make_room_for(&mut self, newcomer: &Arc<Connection>) {
        // More than one if the limits were lowered.
        while let Some(connection) = self.next_to_evict(newcomer) {
            self.evict(&connection);
        }
    }

    fn next_to_evict(&mut self, newcomer: &Arc<Connection>) -> Option<Arc<Connection>> {
        for prefix in &newcomer.prefixes {
            if let Some(group) = self.by_prefix.get_mut(prefix)
                && group.connections.len() > prefix.limit(self.settings.per_ip_max) as usize
            {
                return group.longest_idle(COMPARED_OF_PREFIX, Some(newcomer));
            }
        }
        let is_over = self.all.connections.len() > self.settings.connections_max;
        if is_over { self.of_the_heaviest(Some(newcomer)) } else { None }
    }

    /// The longest idle connection of the network that holds the most, or of those that hold as much; not the newcomer, which
    /// counts already.
    fn of_the_heaviest(&mut self, newcomer: Option<&Arc<Connection>>) -> Option<Arc<Connection>> {
        let mut ranking = self.ranking.take().unwrap_or_else(|| self.rank());
        let (most, addresses) = (ranking.most(None), ranking.heaviest(ADDRESSES_COMPARED));
        self.ranking = Some(ranking);
        let compared = COMPARED / addresses.len().max(1);
        let of_address = |address: &Prefix| self.by_prefix.get_mut(address)?.longest_idle(compared, newcomer);
        let of_networks = addresses.iter().filter_map(of_address).min_by_key(|it| it.active_at_us());
        let of_proxies = if most <= 1 { self.of_proxies.longest_idle(compared, newcomer) } else { None };
        of_networks.into_iter().chain(of_proxies).min_by_key(|it| it.active_at_us())
    }

    fn rank(&mut self) -> Ranking {
        let mut ranking = Ranking::default();
        self.all.connections.iter().for_each(|connection| ranking.add(&self.owners(connection)));
        let count = self.all.connections.len();
        self.ranked_from = count - count / 8;
        ranking
    }

    /// The networks that hold a connection, widest first.
    fn owners(&self, connection: &Connection) -> ArrayVec<Prefix, OWNERS_MAX> {
        let is_of_proxy = connection.prefixes.is_empty();
        if is_of_proxy { ArrayVec::new() } else { Prefix::owners(connection.ip, &self.settings.budgets.exempt) }
    }

    fn add(&mut self, connection: &Arc<Connection>) {
        for (number, prefix) in connection.prefixes.iter().enumerate() {
            self.by_prefix.entry(*prefix).or_default().add(connection, number);
        }
        if connection.prefixes.is_empty() {
            self.of_proxies.add(connection, 0);
        }
        self.all.add(connection, LEVELS_MAX);
        let owners = self.owners(connection);
        self.ranking.iter_mut().for_each(|ranking| ranking.add(&owners));
    }

    fn evict(&mut self, connection: &Arc<Connection>) {
        connection.evicted.notify_one();
        self.remove(connection);
    }

    fn remove(&mut self, connection: &Arc<Connection>) {
        if !self.all.remove(connection, LEVELS_MAX) {
            return; // evicted before
        }
        let owners = self.owners(connection);
        let is_ranked = self.all.connections.len() >= self.ranked_from;
        self.ranking = self.ranking.take().filter(|_| is_ranked);
        self.ranking.iter_mut().for_each(|ranking| ranking.remove(&owners));
        if connection.prefixes.is_empty() {
            self.of_proxies.remove(connection, 0);
        }
        for (number, prefix) in connection.prefixes.iter().enumerate() {
            if let Some(group) = self.by_prefix.get_mut(prefix) {
                group.remove(connection, number);
                if group.connections.is_empty() {
                    self.by_prefix.remove(prefix);
                }
            }
        }
    }
}

impl Group {
    /// All connections of this group have their index in it at `positions[number]`.
    fn add(&mut self, connection: &Arc<Connection>, number: usize) {
        if let Some(position) = connection.positions.get(number) {
            position.store(self.connections.len(), Ordering::Relaxed);
            self.connections.push(connection.clone());
        }
    }

    /// False if it is not here.
    fn remove(&mut self, connection: &Arc<Connection>, number: usize) -> bool {
        let Some(at) = connection.positions.get(number).map(|position| position.load(Ordering::Relaxed)) else {
            return false;
        };
        let is_here = self.connections.get(at).is_some_and(|found| Arc::ptr_eq(found, connection));
        if is_here {
            self.connections.swap_remove(at);
            if let Some(position) = self.connections.get(at).and_then(|moved| moved.positions.get(number)) {
                position.store(at, Ordering::Relaxed);
            }
        }
        is_here
    }

    /// The longest idle of up to `compared` connections, without a newcomer.
    fn longest_idle(&mut self, compared: usize, newcomer: Option<&Arc<Connection>>) -> Option<Arc<Connection>> {
        let count = self.connections.len();
        self.next = (self.next + compared) % count.max(1);
        let from_next = self.connections.iter().skip(self.next).chain(&self.connections);
        let some = from_next.take(compared.min(count));
        let others = some.filter(|connection| newcomer.is_none_or(|newcomer| !Arc::ptr_eq(connection, newcomer)));
        others.min_by_key(|connection| connection.active_at_us()).cloned()
    }
}

impl Connection {
    fn active_at_us(&self) -> u64 {
        self.active_at_us.load(Ordering::Relaxed)
    }
}

/// An admitted connection. Dropping it frees its place.
pub struct Admission {
    guard: Arc<Guard>,
    connection: Arc<Connection>,
}

impl Admission {
    /// Marks the connection as active.
    pub fn touch(&self) {
        self.touch_at(Instant::now());
    }

    /// The same for a caller that has just read the clock.
    pub fn touch_at(&self, now: Instant) {
        self.connection.active_at_us.store(self.guard.us_at(now), Ordering::Relaxed);
    }

    /// Marks the connection as one whose client has not taken all of an answer yet.
    pub fn hold(&self) {
        let since = &self.connection.holding_since_us;
        if since.load(Ordering::Relaxed) == 0 {
            since.store(self.guard.now_us().max(1), Ordering::Relaxed);
        }
    }

    /// The client has taken everything.
    pub fn release(&self) {
        self.connection.holding_since_us.store(0, Ordering::Relaxed);
    }

    /// Completes when the connection is evicted.
    pub async fn evicted(&self) {
        self.connection.evicted.notified().await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.guard.groups().remove(&self.connection);
    }
}

#[cfg(test)]
mod tests;

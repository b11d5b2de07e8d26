//! The guard: bans, connection limits, and the [budgets](crate::budget).
//!
//! No connection is refused because of a limit. Instead, the connection that has been idle longest is evicted: of the same
//! address or of a wider network around it if that exceeds its own limit, otherwise of all. So neither one address nor many
//! can keep others out with idle connections.

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
use crate::prefix::{LEVELS_MAX, Networks, Prefix};

/// How many connections are compared to find one to evict: enough to find one that is nearly the longest idle, and cheap.
const COMPARED: usize = 16;
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
    /// The prefixes it was counted for.
    prefixes: ArrayVec<Prefix, LEVELS_MAX>,
    /// Its index in the group of each prefix, and last in the group of all. Only accessed under the lock.
    positions: [AtomicUsize; LEVELS_MAX + 1],
    active_at_ms: AtomicU64,
    /// Since when its client has not taken all of an answer; 0: it has.
    holding_since_ms: AtomicU64,
    evicted: Notify,
}

impl Guard {
    pub fn new(settings: Settings) -> Guard {
        let bans = ArcSwap::from_pointee(settings.bans.clone());
        let budgets = ArcSwap::from_pointee(new_budgets(settings.budgets.clone()));
        let groups = Groups { settings, all: Group::default(), by_prefix: HashMap::new() };
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
        groups.evict_banned();
    }

    /// Sets new bans only. Returns how many connections were evicted.
    pub fn set_bans(&self, bans: Networks) -> usize {
        self.bans.store(Arc::new(bans.clone()));
        let mut groups = self.groups();
        groups.settings.bans = bans;
        groups.evict_banned()
    }

    /// Evicts one of the longest idle connections, for when the system runs out of descriptors.
    pub fn evict_idle(&self) {
        let mut groups = self.groups();
        if let Some(connection) = groups.all.longest_idle(COMPARED) {
            groups.evict(&connection);
        }
    }

    /// Evicts up to `most` of the connections that hold an answer, for when answers take too much memory: from the networks that
    /// hold the most, those that have held one for longest. Returns how many.
    pub fn evict_holders(&self, most: usize) -> usize {
        let mut groups = self.groups();
        let since = |connection: &Arc<Connection>| connection.holding_since_ms.load(Ordering::Relaxed);
        let holders: Vec<_> = groups.all.connections.iter().map(|it| (since(it), it)).filter(|it| it.0 > 0).collect();
        let mut by_network: HashMap<Option<&Prefix>, usize> = HashMap::new();
        for (_, connection) in &holders {
            *by_network.entry(connection.prefixes.last()).or_default() += 1;
        }
        let in_network = |connection: &Connection| by_network.get(&connection.prefixes.last()).copied().unwrap_or(0);
        let mut holders: Vec<_> = holders.into_iter().map(|(since, it)| (Reverse(in_network(it)), since, it)).collect();
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
        let active_at_ms = AtomicU64::new(self.now_ms());
        let mut groups = self.groups();
        // It may have been banned in between: under the lock, either this sees it or the ban sees the connection.
        if groups.settings.bans.contains(ip) {
            return None;
        }
        let prefixes = prefixes(&groups);
        groups.evict_for(&prefixes);
        let connection = Arc::new(Connection {
            ip,
            prefixes,
            positions: Default::default(),
            active_at_ms,
            holding_since_ms: AtomicU64::new(0),
            evicted: Notify::new(),
        });
        groups.add(&connection);
        Some(Admission { guard: self.clone(), connection })
    }

    pub fn connections(&self) -> usize {
        self.groups().all.connections.len()
    }

    fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    fn ms_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_millis() as u64
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
    fn evict_banned(&mut self) -> usize {
        let is_banned = |connection: &&Arc<Connection>| self.settings.bans.contains(connection.ip);
        let banned: Vec<_> = self.all.connections.iter().filter(is_banned).cloned().collect();
        banned.iter().for_each(|connection| self.evict(connection));
        banned.len()
    }

    fn evict_for(&mut self, prefixes: &[Prefix]) {
        // More than one if the limits were lowered.
        while let Some(connection) = self.next_to_evict(prefixes) {
            self.evict(&connection);
        }
    }

    fn next_to_evict(&mut self, prefixes: &[Prefix]) -> Option<Arc<Connection>> {
        for prefix in prefixes {
            if let Some(group) = self.by_prefix.get_mut(prefix)
                && group.connections.len() >= prefix.limit(self.settings.per_ip_max) as usize
            {
                return group.longest_idle(COMPARED_OF_PREFIX);
            }
        }
        let is_full = self.all.connections.len() >= self.settings.connections_max;
        if is_full { self.all.longest_idle(COMPARED) } else { None }
    }

    fn add(&mut self, connection: &Arc<Connection>) {
        for (prefix, position) in connection.prefixes.iter().zip(&connection.positions) {
            self.by_prefix.entry(*prefix).or_default().add(connection, position);
        }
        if let Some(position) = connection.positions.last() {
            self.all.add(connection, position);
        }
    }

    fn evict(&mut self, connection: &Arc<Connection>) {
        connection.evicted.notify_one();
        self.remove(connection);
    }

    fn remove(&mut self, connection: &Arc<Connection>) {
        self.all.remove(connection, LEVELS_MAX);
        for (level, prefix) in connection.prefixes.iter().enumerate() {
            if let Some(group) = self.by_prefix.get_mut(prefix) {
                group.remove(connection, level);
                if group.connections.is_empty() {
                    self.by_prefix.remove(prefix);
                }
            }
        }
    }
}

impl Group {
    fn add(&mut self, connection: &Arc<Connection>, position: &AtomicUsize) {
        position.store(self.connections.len(), Ordering::Relaxed);
        self.connections.push(connection.clone());
    }

    /// All connections of this group have their index in it at `positions[number]`.
    fn remove(&mut self, connection: &Arc<Connection>, number: usize) {
        let Some(at) = connection.positions.get(number).map(|position| position.load(Ordering::Relaxed)) else {
            return;
        };
        if self.connections.get(at).is_some_and(|found| Arc::ptr_eq(found, connection)) {
            self.connections.swap_remove(at);
            if let Some(position) = self.connections.get(at).and_then(|moved| moved.positions.get(number)) {
                position.store(at, Ordering::Relaxed);
            }
        }
    }

    /// The longest idle of up to `compared` connections.
    fn longest_idle(&mut self, compared: usize) -> Option<Arc<Connection>> {
        let count = self.connections.len();
        self.next = (self.next + compared) % count.max(1);
        let some = self.connections.iter().cycle().skip(self.next).take(compared.min(count));
        some.min_by_key(|connection| connection.active_at_ms.load(Ordering::Relaxed)).cloned()
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
        self.connection.active_at_ms.store(self.guard.ms_at(now), Ordering::Relaxed);
    }

    /// Marks the connection as one whose client has not taken all of an answer yet.
    pub fn hold(&self) {
        let since = &self.connection.holding_since_ms;
        if since.load(Ordering::Relaxed) == 0 {
            since.store(self.guard.now_ms().max(1), Ordering::Relaxed);
        }
    }

    /// The client has taken everything.
    pub fn release(&self) {
        self.connection.holding_since_ms.store(0, Ordering::Relaxed);
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
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn ipv6(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn limits(connections_max: usize, per_ip_max: u32) -> Settings {
        Settings { connections_max, per_ip_max, ..Settings::default() }
    }

    fn guard(connections_max: usize, per_ip_max: u32) -> Arc<Guard> {
        Arc::new(Guard::new(limits(connections_max, per_ip_max)))
    }

    fn networks(networks: &[&str]) -> Networks {
        Networks::new(&networks.iter().map(|network| network.parse().unwrap()).collect::<Vec<_>>())
    }

    /// Makes the first the longest idle and the last the most recently active.
    fn by_idle_time(admissions: &[&Admission]) {
        for (at_ms, admission) in (1..).zip(admissions) {
            admission.connection.active_at_ms.store(at_ms, Ordering::Relaxed);
        }
    }

    fn evicted(admission: &Admission) -> bool {
        let waiting = std::pin::pin!(admission.evicted());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.poll(&mut context).is_ready()
    }

    #[test]
    fn those_who_hold_an_answer_for_longest_are_evicted_first() {
        let guard = guard(100, 100);
        let admissions: Vec<_> = (0..4).map(|last| guard.admit(ip(last)).unwrap()).collect();
        for (admission, since_ms) in admissions.iter().zip([0, 30, 10, 20]) {
            admission.connection.holding_since_ms.store(since_ms, Ordering::Relaxed);
        }
        admissions[1].hold();
        assert_eq!(admissions[1].connection.holding_since_ms.load(Ordering::Relaxed), 30, "since it began");
        admissions[3].release();
        assert_eq!(guard.evict_holders(1), 1);
        assert!(evicted(&admissions[2]) && !evicted(&admissions[1]));
        assert_eq!(guard.evict_holders(5), 1);
        assert!(evicted(&admissions[1]) && !evicted(&admissions[0]) && !evicted(&admissions[3]));
        assert_eq!((guard.evict_holders(5), guard.connections()), (0, 2));
        admissions[0].hold();
        assert_eq!(guard.evict_holders(5), 1);
    }

    #[test]
    fn the_network_that_holds_the_most_answers_loses_them_first() {
        let guard = guard(100, 100);
        let network = |third| (0..2).map(move |last| IpAddr::from([192, 0, third, last]));
        let admissions: Vec<_> = [ip(9)].into_iter().chain(network(1)).map(|ip| guard.admit(ip).unwrap()).collect();
        for (admission, since_ms) in admissions.iter().zip([1, 30, 20]) {
            admission.connection.holding_since_ms.store(since_ms, Ordering::Relaxed);
        }
        assert_eq!(guard.evict_holders(1), 1);
        assert!(evicted(&admissions[2]) && !evicted(&admissions[0]), "one alone has held its answer for longer");
        assert_eq!(guard.evict_holders(1), 1);
        assert!(evicted(&admissions[0]), "with one each, the longest");
    }

    #[test]
    fn one_address_evicts_only_its_own_longest_idle() {
        let guard = guard(100, 2);
        let other = guard.admit(ip(9)).unwrap();
        let first = guard.admit(ip(1)).unwrap();
        let second = guard.admit(ip(1)).unwrap();
        by_idle_time(&[&other, &second, &first]);
        let third = guard.admit(ip(1)).unwrap();
        assert!(evicted(&second));
        assert!(!evicted(&first) && !evicted(&third) && !evicted(&other));
        assert_eq!(guard.connections(), 3);
        drop((first, second, third, other));
        assert_eq!(guard.connections(), 0);
        assert!(guard.groups().by_prefix.is_empty());
    }

    #[test]
    fn an_ipv6_64_counts_as_one_address() {
        let guard = guard(100, 2);
        let first = guard.admit(ipv6("2001:db8::1")).unwrap();
        let second = guard.admit(ipv6("2001:db8::2")).unwrap();
        let neighbour = guard.admit(ipv6("2001:db8:0:1::1")).unwrap();
        by_idle_time(&[&neighbour, &first, &second]);
        let third = guard.admit(ipv6("2001:db8::3")).unwrap();
        assert!(evicted(&first));
        assert!(!evicted(&second) && !evicted(&third) && !evicted(&neighbour));
    }

    #[test]
    fn a_wider_network_pushes_out_only_its_own_longest_idle() {
        let guard = guard(100, 1);
        let elsewhere = guard.admit("198.51.100.1".parse().unwrap()).unwrap();
        // 8 in a /24, each at its own address.
        let all: Vec<_> = (1..=8).map(|last| guard.admit(ip(last)).unwrap()).collect();
        by_idle_time(&[&elsewhere, &all[1], &all[0], &all[2], &all[3], &all[4], &all[5], &all[6], &all[7]]);
        let _ninth = guard.admit(ip(9)).unwrap();
        assert_eq!(
            all.iter().map(evicted).collect::<Vec<_>>(),
            [false, true, false, false, false, false, false, false]
        );
        assert!(!evicted(&elsewhere));
        // 4 in a /56, and 16 in a /48.
        let of_56: Vec<_> = (0..4).map(|net| guard.admit(ipv6(&format!("2001:db8:0:{net}::1"))).unwrap()).collect();
        let _fifth = guard.admit(ipv6("2001:db8:0:4::1")).unwrap();
        assert_eq!(of_56.iter().filter(|admission| evicted(admission)).count(), 1);
        let _of_48: Vec<_> =
            (1..=16).map(|net| guard.admit(ipv6(&format!("2001:db8:0:{net:x}00::1"))).unwrap()).collect();
        assert_eq!(guard.connections(), 1 + 8 + 16);
    }

    #[test]
    fn exempt_networks_have_only_the_limit_of_an_address() {
        let guard = guard(100, 1);
        let exempt = networks(&["192.0.2.0/24"]);
        guard.set(Settings { budgets: budget::Settings { exempt, ..Default::default() }, ..limits(100, 1) });
        let all: Vec<_> = (1..=20).map(|last| guard.admit(ip(last)).unwrap()).collect();
        assert_eq!(guard.connections(), 20);
        let _again = guard.admit(ip(1)).unwrap();
        assert!(evicted(&all[0]));
    }

    #[test]
    fn a_proxy_has_no_limit_of_its_own_but_counts_for_the_limit_in_all() {
        let guard = guard(20, 1);
        let all: Vec<_> = (0..20).map(|_| guard.admit_proxy(ip(1)).unwrap()).collect();
        assert_eq!(guard.connections(), 20);
        let _client = guard.admit(ip(1)).unwrap();
        assert_eq!(all.iter().filter(|admission| evicted(admission)).count(), 1, "the limit in all");
        assert_eq!(guard.connections(), 20);
        guard.set(Settings { bans: networks(&["192.0.2.1/32"]), ..limits(20, 1) });
        assert!(guard.admit_proxy(ip(1)).is_none());
    }

    #[test]
    fn a_connection_that_sends_a_request_is_not_idle() {
        let guard = guard(100, 2);
        let first = guard.admit(ip(1)).unwrap();
        let second = guard.admit(ip(1)).unwrap();
        by_idle_time(&[&first, &second]);
        // Wait until the guard's clock is past the times set above.
        while guard.now_ms() <= 2 {
            std::thread::yield_now();
        }
        first.touch();
        let _third = guard.admit(ip(1)).unwrap();
        assert!(evicted(&second) && !evicted(&first));
    }

    #[test]
    fn indexes_stay_right_as_connections_come_and_go() {
        let guard = guard(1_000, 1_000);
        let mut all: Vec<_> = (0..200u16).map(|number| guard.admit(ip((number % 3) as u8)).unwrap()).collect();
        for number in 0..150 {
            drop(all.swap_remove(number * 7 % all.len()));
        }
        assert_eq!(guard.connections(), 50);
        {
            let groups = guard.groups();
            let counted: usize =
                (0..3).map(|last| groups.by_prefix[&Prefix::narrowest(ip(last))].connections.len()).sum();
            let widest = Prefix::all(ip(0), &Networks::default())[1];
            assert_eq!((counted, groups.by_prefix[&widest].connections.len()), (50, 50));
        }
        drop(all);
        assert!(guard.groups().by_prefix.is_empty() && guard.connections() == 0);
    }

    #[test]
    fn a_full_guard_evicts_the_longest_idle_for_anyone() {
        let guard = guard(10, 100);
        let all: Vec<_> = (0..10).map(|last| guard.admit(ip(last)).unwrap()).collect();
        for (age, admission) in all.iter().enumerate() {
            admission.connection.active_at_ms.store(100 - age as u64, Ordering::Relaxed);
        }
        let _new = guard.admit(ip(50)).unwrap();
        assert_eq!(guard.connections(), 10);
        let gone: Vec<_> = all.iter().map(evicted).collect();
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 1);
        assert!(gone[9], "the longest idle one: {gone:?}");
    }

    #[test]
    fn every_connection_is_compared_in_its_turn() {
        let guard = guard(100, 100);
        let all: Vec<_> = (0..64).map(|last| guard.admit(ip(last)).unwrap()).collect();
        for admission in all.iter().rev() {
            all.iter().for_each(|other| other.connection.active_at_ms.store(9, Ordering::Relaxed));
            admission.connection.active_at_ms.store(1, Ordering::Relaxed);
            let mut groups = guard.groups();
            let mut found = (0..64 / COMPARED).filter_map(|_| groups.all.longest_idle(COMPARED));
            assert!(found.any(|found| Arc::ptr_eq(&found, &admission.connection)));
        }
    }

    #[test]
    fn only_other_budgets_forget_what_was_used() {
        let guard = guard(10, 10);
        let now = crate::model::Now { mono_ms: 0, unix_ms: 0 };
        let search = || guard.budgets().take(budget::Kind::Searches, now, ip(1), 1_000_000);
        assert!(search().is_ok() && search().is_err());
        guard.set(limits(20, 10));
        assert!(search().is_err(), "the limit of connections is no budget");
        let budgets = budget::Settings { servers_per_ip_max: 7, ..budget::Settings::default() };
        guard.set(Settings { budgets: budgets.clone(), ..limits(20, 10) });
        assert!(search().is_ok());
        assert_eq!(*guard.budgets().settings(), budgets);
    }

    #[test]
    fn banned_addresses_are_not_admitted() {
        let with_bans = || Settings { bans: networks(&["192.0.2.0/28"]), ..limits(10, 10) };
        let guard = Arc::new(Guard::new(with_bans()));
        assert!(guard.admit(ip(15)).is_none());
        assert!(guard.admit("::ffff:192.0.2.1".parse().unwrap()).is_none());
        assert!(guard.admit(ip(16)).is_some());
        guard.set(limits(10, 10));
        let inside = guard.admit(ip(15)).unwrap();
        guard.set(with_bans());
        assert!(evicted(&inside), "banned while connected");
        guard.set_bans(Networks::default());
        let (inside, outside) = (guard.admit(ip(15)).unwrap(), guard.admit(ip(16)).unwrap());
        assert_eq!(guard.set_bans(with_bans().bans), 1);
        assert!(evicted(&inside) && !evicted(&outside) && guard.admit(ip(15)).is_none());
    }

    #[test]
    fn lowered_limits_take_effect_with_the_next_connection() {
        let guard = guard(100, 100);
        let _all: Vec<_> = (0..20).map(|last| guard.admit(ip(last)).unwrap()).collect();
        guard.set(limits(5, 100));
        let _new = guard.admit(ip(50)).unwrap();
        assert_eq!(guard.connections(), 5);
        guard.evict_idle();
        assert_eq!(guard.connections(), 4);
    }
}

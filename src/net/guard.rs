//! The guard: who is banned, how many connections there may be, and what may be sent as lists in datagrams.
//!
//! A full house turns nobody away. The connection that has been idle longest makes room, first among those of the
//! same address and of the wider networks around it, each of which has its own limit, so that neither one address nor
//! many can keep others out by sitting still.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use tokio::sync::Notify;

use super::budget::{self, Budget};
use crate::prefix::{LEVELS_MAX, Networks, Prefix};

/// How many connections are compared when one has to go: enough to be near the longest idle, few enough to be cheap.
const COMPARED: usize = 16;
/// The same where a prefix is over its limit. One address has no more than this by default, so there it is exact.
const COMPARED_OF_PREFIX: usize = 256;

/// What the operator may set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub connections_max: usize,
    /// For one address (IPv6 /64); wider prefixes have larger limits.
    pub per_ip_max: u32,
    pub bans: Networks,
    /// Networks that have only the limit per address.
    pub exempt: Networks,
    /// For lists that are sent as datagrams, all together.
    pub list_bytes_per_second: u64,
}

pub struct Guard {
    bans: ArcSwap<Networks>,
    start: Instant,
    rooms: Mutex<Rooms>,
    lists: ArcSwap<Budget>,
}

struct Rooms {
    settings: Settings,
    all: Room,
    by_prefix: HashMap<Prefix, Room>,
}

/// Connections that count for the same limit.
#[derive(Default)]
struct Room {
    connections: Vec<Arc<Connection>>,
    /// Where the comparison begins next time.
    next: usize,
}

struct Connection {
    ip: IpAddr,
    /// What it counted for when it came.
    prefixes: ArrayVec<Prefix, LEVELS_MAX>,
    /// Its place in the room of each prefix, and behind those in the room of all; only touched under the lock.
    places: [AtomicUsize; LEVELS_MAX + 1],
    active_at_ms: AtomicU64,
    evicted: Notify,
}

impl Guard {
    pub fn new(settings: Settings) -> Guard {
        let bans = ArcSwap::from_pointee(settings.bans.clone());
        let lists = ArcSwap::from_pointee(new_budget(settings.budget()));
        let rooms = Rooms { settings, all: Room::default(), by_prefix: HashMap::new() };
        Guard { bans, start: Instant::now(), rooms: Mutex::new(rooms), lists }
    }

    /// New limits and bans. Those who are banned now have to go; lower limits take hold as others come.
    pub fn set(&self, settings: Settings) {
        self.bans.store(Arc::new(settings.bans.clone()));
        if *self.lists.load().settings() != settings.budget() {
            self.lists.store(Arc::new(new_budget(settings.budget())));
        }
        let mut rooms = self.rooms();
        let is_banned = |connection: &&Arc<Connection>| settings.bans.contains(connection.ip);
        let banned: Vec<_> = rooms.all.connections.iter().filter(is_banned).cloned().collect();
        banned.iter().for_each(|connection| rooms.evict(connection));
        rooms.settings = settings;
    }

    /// Closes one connection that is among the longest idle, when the system has no more descriptors to give.
    pub fn make_room(&self) {
        let mut rooms = self.rooms();
        if let Some(connection) = rooms.all.longest_idle(COMPARED) {
            rooms.evict(&connection);
        }
    }

    pub fn bans(&self) -> arc_swap::Guard<Arc<Networks>> {
        self.bans.load()
    }

    /// What may be sent as lists in datagrams.
    pub fn lists(&self) -> arc_swap::Guard<Arc<Budget>> {
        self.lists.load()
    }

    /// Lets a connection in, unless its address is banned.
    pub fn admit(self: &Arc<Guard>, ip: IpAddr) -> Option<Admission> {
        let ip = ip.to_canonical();
        if self.bans().contains(ip) {
            return None;
        }
        let active_at_ms = AtomicU64::new(self.now_ms());
        let mut rooms = self.rooms();
        let prefixes = Prefix::all(ip, &rooms.settings.exempt);
        rooms.make_room_for(&prefixes);
        let connection =
            Arc::new(Connection { ip, prefixes, places: Default::default(), active_at_ms, evicted: Notify::new() });
        rooms.let_in(&connection);
        Some(Admission { guard: self.clone(), connection })
    }

    pub fn connections(&self) -> usize {
        self.rooms().all.connections.len()
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Settings {
    fn budget(&self) -> budget::Settings {
        budget::Settings { bytes_per_second: self.list_bytes_per_second, exempt: self.exempt.clone() }
    }
}

/// A budget with a key that nobody knows.
fn new_budget(settings: budget::Settings) -> Budget {
    let random = RandomState::new();
    Budget::new(settings, [random.hash_one(0), random.hash_one(1)])
}

impl Rooms {
    fn make_room_for(&mut self, prefixes: &[Prefix]) {
        // More than one may have to go when the limits were lowered.
        while let Some(connection) = self.one_too_many(prefixes) {
            self.evict(&connection);
        }
    }

    fn one_too_many(&mut self, prefixes: &[Prefix]) -> Option<Arc<Connection>> {
        for prefix in prefixes {
            if let Some(room) = self.by_prefix.get_mut(prefix)
                && room.connections.len() >= prefix.limit(self.settings.per_ip_max) as usize
            {
                return room.longest_idle(COMPARED_OF_PREFIX);
            }
        }
        let is_full = self.all.connections.len() >= self.settings.connections_max;
        if is_full { self.all.longest_idle(COMPARED) } else { None }
    }

    fn let_in(&mut self, connection: &Arc<Connection>) {
        for (prefix, place) in connection.prefixes.iter().zip(&connection.places) {
            self.by_prefix.entry(*prefix).or_default().let_in(connection, place);
        }
        if let Some(place) = connection.places.last() {
            self.all.let_in(connection, place);
        }
    }

    fn evict(&mut self, connection: &Arc<Connection>) {
        connection.evicted.notify_one();
        self.forget(connection);
    }

    fn forget(&mut self, connection: &Arc<Connection>) {
        self.all.forget(connection, LEVELS_MAX);
        for (level, prefix) in connection.prefixes.iter().enumerate() {
            if let Some(room) = self.by_prefix.get_mut(prefix) {
                room.forget(connection, level);
                if room.connections.is_empty() {
                    self.by_prefix.remove(prefix);
                }
            }
        }
    }
}

impl Room {
    fn let_in(&mut self, connection: &Arc<Connection>, place: &AtomicUsize) {
        place.store(self.connections.len(), Ordering::Relaxed);
        self.connections.push(connection.clone());
    }

    /// Whoever is in here has its place in this room under the same number.
    fn forget(&mut self, connection: &Arc<Connection>, number: usize) {
        let Some(at) = connection.places.get(number).map(|place| place.load(Ordering::Relaxed)) else { return };
        if self.connections.get(at).is_some_and(|found| Arc::ptr_eq(found, connection)) {
            self.connections.swap_remove(at);
            if let Some(place) = self.connections.get(at).and_then(|moved| moved.places.get(number)) {
                place.store(at, Ordering::Relaxed);
            }
        }
    }

    /// The longest idle of some; of all, where there are no more than are compared.
    fn longest_idle(&mut self, compared: usize) -> Option<Arc<Connection>> {
        let count = self.connections.len();
        self.next = (self.next + compared) % count.max(1);
        let some = self.connections.iter().cycle().skip(self.next).take(compared.min(count));
        some.min_by_key(|connection| connection.active_at_ms.load(Ordering::Relaxed)).cloned()
    }
}

/// A connection's place in the house; it is given back when this is dropped.
pub struct Admission {
    guard: Arc<Guard>,
    connection: Arc<Connection>,
}

impl Admission {
    /// The connection has just asked for something: it is not idle.
    pub fn touch(&self) {
        self.connection.active_at_ms.store(self.guard.now_ms(), Ordering::Relaxed);
    }

    /// Ends when the connection has to make room for another.
    pub async fn evicted(&self) {
        self.connection.evicted.notified().await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.guard.rooms().forget(&self.connection);
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

    /// Makes the first the longest idle, and the last the most active.
    fn in_order(admissions: &[&Admission]) {
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
    fn one_address_pushes_out_only_its_own_longest_idle() {
        let guard = guard(100, 2);
        let other = guard.admit(ip(9)).unwrap();
        let first = guard.admit(ip(1)).unwrap();
        let second = guard.admit(ip(1)).unwrap();
        in_order(&[&other, &second, &first]);
        let third = guard.admit(ip(1)).unwrap();
        assert!(evicted(&second));
        assert!(!evicted(&first) && !evicted(&third) && !evicted(&other));
        assert_eq!(guard.connections(), 3);
        drop((first, second, third, other));
        assert_eq!(guard.connections(), 0);
        assert!(guard.rooms().by_prefix.is_empty());
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_address() {
        let guard = guard(100, 2);
        let first = guard.admit(ipv6("2001:db8::1")).unwrap();
        let second = guard.admit(ipv6("2001:db8::2")).unwrap();
        let neighbour = guard.admit(ipv6("2001:db8:0:1::1")).unwrap();
        in_order(&[&neighbour, &first, &second]);
        let third = guard.admit(ipv6("2001:db8::3")).unwrap();
        assert!(evicted(&first));
        assert!(!evicted(&second) && !evicted(&third) && !evicted(&neighbour));
    }

    #[test]
    fn a_wider_network_pushes_out_only_its_own_longest_idle() {
        let guard = guard(100, 1);
        let elsewhere = guard.admit("198.51.100.1".parse().unwrap()).unwrap();
        // 8 in a /24, each at an address of its own.
        let all: Vec<_> = (1..=8).map(|last| guard.admit(ip(last)).unwrap()).collect();
        in_order(&[&elsewhere, &all[1], &all[0], &all[2], &all[3], &all[4], &all[5], &all[6], &all[7]]);
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
        guard.set(Settings { exempt: networks(&["192.0.2.0/24"]), ..limits(100, 1) });
        let all: Vec<_> = (1..=20).map(|last| guard.admit(ip(last)).unwrap()).collect();
        assert_eq!(guard.connections(), 20);
        let _again = guard.admit(ip(1)).unwrap();
        assert!(evicted(&all[0]));
    }

    #[test]
    fn whoever_asks_for_something_is_not_idle() {
        let guard = guard(100, 2);
        let first = guard.admit(ip(1)).unwrap();
        let second = guard.admit(ip(1)).unwrap();
        in_order(&[&first, &second]);
        // The guard's clock has to show more than the made-up times above.
        while guard.now_ms() <= 2 {
            std::thread::yield_now();
        }
        first.touch();
        let _third = guard.admit(ip(1)).unwrap();
        assert!(evicted(&second) && !evicted(&first));
    }

    #[test]
    fn places_are_kept_as_others_come_and_go() {
        let guard = guard(1_000, 1_000);
        let mut all: Vec<_> = (0..200u16).map(|number| guard.admit(ip((number % 3) as u8)).unwrap()).collect();
        for number in 0..150 {
            drop(all.swap_remove(number * 7 % all.len()));
        }
        assert_eq!(guard.connections(), 50);
        {
            let rooms = guard.rooms();
            let counted: usize =
                (0..3).map(|last| rooms.by_prefix[&Prefix::narrowest(ip(last))].connections.len()).sum();
            let widest = Prefix::all(ip(0), &Networks::default())[1];
            assert_eq!((counted, rooms.by_prefix[&widest].connections.len()), (50, 50));
        }
        drop(all);
        assert!(guard.rooms().by_prefix.is_empty() && guard.connections() == 0);
    }

    #[test]
    fn a_full_house_makes_room_for_anyone() {
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
    fn the_banned_are_not_let_in() {
        let with_bans = || Settings { bans: networks(&["192.0.2.0/28"]), ..limits(10, 10) };
        let guard = Arc::new(Guard::new(with_bans()));
        assert!(guard.admit(ip(15)).is_none());
        assert!(guard.admit("::ffff:192.0.2.1".parse().unwrap()).is_none());
        assert!(guard.admit(ip(16)).is_some());
        guard.set(limits(10, 10));
        let inside = guard.admit(ip(15)).unwrap();
        guard.set(with_bans());
        assert!(evicted(&inside), "banned while inside");
    }

    #[test]
    fn lowered_limits_take_hold_with_the_next_one() {
        let guard = guard(100, 100);
        let _all: Vec<_> = (0..20).map(|last| guard.admit(ip(last)).unwrap()).collect();
        guard.set(limits(5, 100));
        let _new = guard.admit(ip(50)).unwrap();
        assert_eq!(guard.connections(), 5);
        guard.make_room();
        assert_eq!(guard.connections(), 4);
    }
}

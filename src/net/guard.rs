//! The guard at the door: who is banned, and how many connections there may be.
//!
//! A full house turns nobody away. The connection that has been idle longest makes room, first among those of the
//! same address, so that neither one address nor many can keep others out by sitting still.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use tokio::sync::Notify;

use crate::model::owner;
use crate::prefix::Networks;

/// How many connections are compared when one has to go: enough to be near the longest idle, few enough to be cheap.
const COMPARED: usize = 16;

pub struct Guard {
    bans: ArcSwap<Networks>,
    start: Instant,
    rooms: Mutex<Rooms>,
}

struct Rooms {
    connections_max: usize,
    per_ip_max: usize,
    all: Vec<Arc<Connection>>,
    /// By whom an address counts for.
    by_ip: HashMap<IpAddr, Vec<Arc<Connection>>>,
    /// Where the comparison begins next time.
    next: usize,
}

struct Connection {
    ip: IpAddr,
    /// Its place in `Rooms::all`; only touched under the lock.
    at: AtomicUsize,
    active_at_ms: AtomicU64,
    evicted: Notify,
}

impl Guard {
    pub fn new(connections_max: usize, per_ip_max: usize, bans: &[IpNet]) -> Guard {
        let rooms = Rooms { connections_max, per_ip_max, all: Vec::new(), by_ip: HashMap::new(), next: 0 };
        Guard { bans: ArcSwap::from_pointee(Networks::new(bans)), start: Instant::now(), rooms: Mutex::new(rooms) }
    }

    /// New limits and bans. Those who are banned now have to go; lower limits take hold as others come.
    pub fn set(&self, connections_max: usize, per_ip_max: usize, bans: &[IpNet]) {
        let bans = Arc::new(Networks::new(bans));
        self.bans.store(bans.clone());
        let mut rooms = self.rooms();
        rooms.connections_max = connections_max;
        rooms.per_ip_max = per_ip_max;
        let banned: Vec<_> = rooms.all.iter().filter(|connection| bans.contains(connection.ip)).cloned().collect();
        banned.iter().for_each(|connection| rooms.evict(connection));
    }

    /// Closes one connection that is among the longest idle, when the system has no more descriptors to give.
    pub fn make_room(&self) {
        let mut rooms = self.rooms();
        if let Some(connection) = rooms.longest_idle_of_some() {
            rooms.evict(&connection);
        }
    }

    pub fn bans(&self) -> arc_swap::Guard<Arc<Networks>> {
        self.bans.load()
    }

    /// Lets a connection in, unless its address is banned.
    pub fn admit(self: &Arc<Guard>, ip: IpAddr) -> Option<Admission> {
        let ip = ip.to_canonical();
        if self.bans().contains(ip) {
            return None;
        }
        let active_at_ms = AtomicU64::new(self.now_ms());
        let mut rooms = self.rooms();
        rooms.make_room_for(ip);
        let at = AtomicUsize::new(rooms.all.len());
        let connection = Arc::new(Connection { ip, at, active_at_ms, evicted: Notify::new() });
        rooms.all.push(connection.clone());
        rooms.by_ip.entry(owner(ip)).or_default().push(connection.clone());
        Some(Admission { guard: self.clone(), connection })
    }

    pub fn connections(&self) -> usize {
        self.rooms().all.len()
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rooms {
    fn make_room_for(&mut self, ip: IpAddr) {
        // More than one may have to go when the limits were lowered.
        while let Some(connection) = self.one_too_many(ip) {
            self.evict(&connection);
        }
    }

    fn one_too_many(&mut self, ip: IpAddr) -> Option<Arc<Connection>> {
        let of_ip = self.by_ip.get(&owner(ip)).map(Vec::as_slice).unwrap_or_default();
        if of_ip.len() >= self.per_ip_max {
            return longest_idle(of_ip.iter());
        }
        if self.all.len() >= self.connections_max { self.longest_idle_of_some() } else { None }
    }

    fn longest_idle_of_some(&mut self) -> Option<Arc<Connection>> {
        self.next = (self.next + COMPARED) % self.all.len().max(1);
        longest_idle(self.all.iter().cycle().skip(self.next).take(COMPARED.min(self.all.len())))
    }

    fn evict(&mut self, connection: &Arc<Connection>) {
        connection.evicted.notify_one();
        self.forget(connection);
    }

    fn forget(&mut self, connection: &Arc<Connection>) {
        let at = connection.at.load(Ordering::Relaxed);
        if self.all.get(at).is_some_and(|found| Arc::ptr_eq(found, connection)) {
            self.all.swap_remove(at);
            if let Some(moved) = self.all.get(at) {
                moved.at.store(at, Ordering::Relaxed);
            }
        }
        if let Some(of_ip) = self.by_ip.get_mut(&owner(connection.ip)) {
            of_ip.retain(|found| !Arc::ptr_eq(found, connection));
            if of_ip.is_empty() {
                self.by_ip.remove(&owner(connection.ip));
            }
        }
    }
}

fn longest_idle<'a>(connections: impl Iterator<Item = &'a Arc<Connection>>) -> Option<Arc<Connection>> {
    connections.min_by_key(|connection| connection.active_at_ms.load(Ordering::Relaxed)).cloned()
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

    fn evicted(admission: &Admission) -> bool {
        let waiting = std::pin::pin!(admission.evicted());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.poll(&mut context).is_ready()
    }

    #[test]
    fn one_address_pushes_out_only_its_own_longest_idle() {
        let guard = Arc::new(Guard::new(100, 2, &[]));
        let other = guard.admit(ip(9)).unwrap();
        let first = guard.admit(ip(1)).unwrap();
        let second = guard.admit(ip(1)).unwrap();
        first.connection.active_at_ms.store(5, Ordering::Relaxed);
        second.connection.active_at_ms.store(4, Ordering::Relaxed);
        let third = guard.admit(ip(1)).unwrap();
        assert!(evicted(&second));
        assert!(!evicted(&first) && !evicted(&third) && !evicted(&other));
        assert_eq!(guard.connections(), 3);
        drop((first, second, third, other));
        assert_eq!(guard.connections(), 0);
        assert!(guard.rooms().by_ip.is_empty());
    }

    #[test]
    fn a_full_house_makes_room_for_anyone() {
        let guard = Arc::new(Guard::new(10, 100, &[]));
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
        let bans = ["192.0.2.0/28".parse().unwrap()];
        let guard = Arc::new(Guard::new(10, 10, &bans));
        assert!(guard.admit(ip(15)).is_none());
        assert!(guard.admit("::ffff:192.0.2.1".parse().unwrap()).is_none());
        assert!(guard.admit(ip(16)).is_some());
        guard.set(10, 10, &[]);
        let inside = guard.admit(ip(15)).unwrap();
        guard.set(10, 10, &bans);
        assert!(evicted(&inside), "banned while inside");
    }

    #[test]
    fn lowered_limits_take_hold_with_the_next_one() {
        let guard = Arc::new(Guard::new(100, 100, &[]));
        let _all: Vec<_> = (0..20).map(|last| guard.admit(ip(last)).unwrap()).collect();
        guard.set(5, 100, &[]);
        let _new = guard.admit(ip(50)).unwrap();
        assert_eq!(guard.connections(), 5);
        guard.make_room();
        assert_eq!(guard.connections(), 4);
    }
}

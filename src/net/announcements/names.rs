//! Whether a name that a server announces is one of its address. Lookups are slow and some are never answered, so they are
//! bounded: one at a time for an address, few for a network. What cannot be looked up is neither believed nor blamed.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::prefix::Networks;
use crate::prefix::quota::{Place, Quota};

/// In all. The system's resolver takes a thread for each.
const LOOKUPS_MAX: usize = 64;
/// For one address; wider networks have a larger limit.
const LOOKUPS_PER_IP_MAX: u32 = 1;
/// With the wait for a place.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOf {
    /// It is one of the address.
    This,
    /// It is one of other addresses only.
    Other,
    /// It could not be looked up: the resolver failed or was too slow, or too many others wait.
    Unknown,
}

type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

pub struct Names {
    places: Quota,
    /// Wakes those that wait for a place.
    freed: Arc<Notify>,
    resolve: Arc<Resolve>,
    patience: Duration,
}

impl Default for Names {
    fn default() -> Names {
        let system = |host: &str| Ok((host, 0).to_socket_addrs()?.map(|found| found.ip()).collect());
        Names::new(system, PATIENCE)
    }
}

impl Names {
    pub fn new(resolve: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static, patience: Duration) -> Names {
        let places = Quota::new(LOOKUPS_MAX, LOOKUPS_PER_IP_MAX);
        Names { places, freed: Arc::default(), resolve: Arc::new(resolve), patience }
    }

    /// Sets the networks in which only the limit per address applies.
    pub fn set_exempt(&self, exempt: Networks) {
        self.places.set_exempt(exempt);
    }

    pub async fn look_up(&self, host: &str, ip: IpAddr) -> NameOf {
        match timeout(self.patience, self.resolved(host.into(), ip)).await {
            Ok(Some(found)) if found.iter().any(|found| found.to_canonical() == ip) => NameOf::This,
            Ok(Some(_)) => NameOf::Other,
            Ok(None) | Err(_) => NameOf::Unknown,
        }
    }

    /// The addresses of a name, for a client that asks; none if it cannot be looked up.
    pub async fn addresses(&self, host: &str, client: IpAddr) -> Option<Vec<IpAddr>> {
        timeout(self.patience, self.resolved(host.into(), client)).await.ok()?
    }

    /// A lookup cannot be stopped, so it keeps its place until it ends.
    async fn resolved(&self, host: Box<str>, ip: IpAddr) -> Option<Vec<IpAddr>> {
        let place = self.place(ip).await;
        let (resolve, freed) = (self.resolve.clone(), self.freed.clone());
        let lookup = tokio::task::spawn_blocking(move || {
            let found = resolve(&host);
            drop(place);
            freed.notify_waiters();
            found
        });
        lookup.await.ok()?.ok()
    }

    async fn place(&self, ip: IpAddr) -> Place {
        loop {
            let freed = self.freed.notified(); // before the try, so that none is missed
            match self.places.take(ip) {
                Some(place) => return place,
                None => freed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_name_is_one_of_the_address_of_others_or_unknown() {
        let names = Names::new(
            |host| match host {
                "own.test" => Ok(vec![ip("198.51.100.1"), ip("::ffff:192.0.2.1")]),
                "other.test" => Ok(vec![ip("198.51.100.1")]),
                _ => Err(io::ErrorKind::Other.into()),
            },
            PATIENCE,
        );
        for (host, expected) in
            [("own.test", NameOf::This), ("other.test", NameOf::Other), ("broken.test", NameOf::Unknown)]
        {
            assert_eq!(names.look_up(host, ip("192.0.2.1")).await, expected, "{host}");
        }
        assert!(names.places.is_empty());
        let system = Names::default();
        assert_eq!(system.look_up("127.0.0.1", ip("127.0.0.1")).await, NameOf::This);
        assert_eq!(system.look_up("127.0.0.1", ip("127.0.0.2")).await, NameOf::Other);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lookups_that_are_never_answered_keep_no_other_address_waiting() {
        let (end, ended) = mpsc::channel::<()>();
        let (ended, stuck) = (Mutex::new(ended), Arc::new(AtomicUsize::new(0)));
        let count = stuck.clone();
        let resolve = move |host: &str| {
            if host == "stuck.test" {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = ended.lock().unwrap().recv(); // until the test ends
            }
            Ok(vec![ip("192.0.2.1")])
        };
        let names = Arc::new(Names::new(resolve, Duration::from_millis(50)));
        // Everything that a hundred addresses of one network may begin, and again.
        let mut all = tokio::task::JoinSet::new();
        for host in (0..=99u8).chain(0..=99) {
            let names = names.clone();
            all.spawn(async move { names.look_up("stuck.test", [203, 0, 113, host].into()).await });
        }
        assert!(all.join_all().await.iter().all(|name| *name == NameOf::Unknown));
        while stuck.load(Ordering::SeqCst) < 8 {
            tokio::task::yield_now().await;
        }
        assert_eq!(names.look_up("own.test", ip("203.0.113.200")).await, NameOf::Unknown, "its network is full");
        assert_eq!(stuck.load(Ordering::SeqCst), 8, "one for an address, eight for the network");
        let patient = Names {
            patience: PATIENCE,
            places: names.places.clone(),
            freed: names.freed.clone(),
            resolve: names.resolve.clone(),
        };
        assert_eq!(patient.look_up("own.test", ip("192.0.2.1")).await, NameOf::This);
        drop(end);
        assert_eq!(patient.look_up("own.test", ip("203.0.113.200")).await, NameOf::Other, "places are free again");
    }

    #[tokio::test]
    async fn servers_of_one_address_wait_for_each_other() {
        let running = Arc::new(AtomicUsize::new(0));
        let count = running.clone();
        let resolve = move |_: &str| {
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
            std::thread::yield_now();
            count.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![ip("192.0.2.1")])
        };
        let names = Arc::new(Names::new(resolve, PATIENCE));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let names = names.clone();
            all.spawn(async move { names.look_up("own.test", ip("192.0.2.1")).await });
        }
        assert!(all.join_all().await.iter().all(|name| *name == NameOf::This));
    }
}

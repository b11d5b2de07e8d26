//! Several threads query the servers of one list: each takes a few, and more whenever it has nothing else to ask, so that all of
//! them end at about the same time.

use std::collections::VecDeque;
use std::io;
use std::iter::from_fn;
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashSet;
use tokio::sync::oneshot;

use super::{Pace, Part, are_loopback, query_all, query_parts};
use crate::client::Found;

/// What one thread manages, and for how many servers another one is worth starting.
const PER_SECOND: u32 = 50_000;
const SERVERS: usize = 1_000;
/// How many servers a thread takes at once.
const PART: usize = 64;
/// Servers in flight that a thread begins with: few enough that what is known about them stays in its processor's cache. Two
/// threads have as many as one by default.
const FIRST_IN_FLIGHT: usize = 1_000;

/// The parts that nobody has taken yet.
type Rest = Mutex<VecDeque<Part>>;

impl Pace {
    /// The pace of one of so many threads.
    fn of_one_in(self, threads: usize) -> Pace {
        let part = |all: u32| (all / threads.max(1) as u32).max(1);
        Pace {
            per_second: part(self.per_second),
            per_ip_per_second: part(self.per_ip_per_second),
            in_flight: (self.in_flight / threads.max(1)).max(1),
            first_in_flight: self.first_in_flight.min(FIRST_IN_FLIGHT),
            ..self
        }
    }
}

/// Like [`query_all`], with several threads if the rate is more than one of them manages. `finished` is called on any of them.
pub async fn query_in_threads(
    found: &mut Vec<Found>,
    pace: Pace,
    finished: impl Fn() + Clone + Send + 'static,
) -> io::Result<()> {
    match threads_for(found.len(), pace) {
        threads if threads > 1 && !share_addresses(found) => with(threads, found, pace, finished).await,
        _ => query_all(found, pace, |_| finished()).await,
    }
}

fn threads_for(servers: usize, pace: Pace) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let useful = (pace.per_second / PER_SECOND) as usize;
    cores.min(useful).min(servers / SERVERS).min(pace.in_flight).max(1)
}

/// Whether several games are to be asked at one address. Only one thread can do that, because they have to take turns.
fn share_addresses(found: &[Found]) -> bool {
    let mut seen = HashSet::with_capacity(found.len());
    !found.iter().all(|server| seen.insert(server.address))
}

async fn with(
    threads: usize,
    found: &mut Vec<Found>,
    pace: Pace,
    finished: impl Fn() + Clone + Send + 'static,
) -> io::Result<()> {
    let (pace, all_loopback, servers) = (pace.of_one_in(threads), are_loopback(found), found.len());
    // They come back to the same place, which is in memory already.
    let mut all = found.drain(..);
    let parts = from_fn(|| {
        let servers: Vec<Found> = all.by_ref().take(PART).collect();
        (!servers.is_empty()).then_some(servers)
    });
    let rest: VecDeque<Part> = (0..).zip(parts).map(|(number, servers)| Part { number, servers }).collect();
    drop(all);
    let rest: Arc<Rest> = Arc::new(Mutex::new(rest));
    let mut others = Vec::new();
    for _ in 1..threads {
        let (done, result) = oneshot::channel();
        let (rest, finished) = (rest.clone(), finished.clone());
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let parts = query_parts(from_fn(|| take(&rest)), pace, all_loopback, |_| finished());
            let _ = done.send(runtime.and_then(|runtime| runtime.block_on(parts))); // nobody waits for it any more
        };
        // Without another thread, the others do its work.
        if std::thread::Builder::new().name("query".into()).spawn(run).is_ok() {
            others.push(result);
        }
    }
    let mut results = vec![query_parts(from_fn(|| take(&rest)), pace, all_loopback, |_| finished()).await];
    for other in others {
        results.push(other.await.unwrap_or_else(|_| Err(io::Error::other("a thread has ended early"))));
    }
    let (mut parts, mut error) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(more) => parts.extend(more),
            Err(why) => error = Some(why),
        }
    }
    let untaken: Vec<Part> = rest.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
    let all_taken = untaken.is_empty();
    parts.extend(untaken);
    parts.sort_by_key(|part| part.number);
    found.extend(parts.into_iter().flat_map(|part| part.servers));
    match error {
        // A thread without a socket has taken nothing, so the others have done its work, unless none had one.
        Some(why) if !all_taken || found.len() < servers => Err(why),
        _ => Ok(()),
    }
}

fn take(rest: &Rest) -> Option<Part> {
    rest.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

#[cfg(test)]
mod tests {
    use super::super::tests::many;
    use super::*;
    use crate::client::State;
    use crate::model::{Address, Game};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn threads_share_the_servers() {
        for (threads, count) in [(1, 100), (2, 1_000), (3, 1_000), (7, 65), (7, 0)] {
            let mut found = many("netpanzer", count);
            let expected: Vec<_> = found.iter().map(|server| server.address).collect();
            let finished = Arc::new(AtomicUsize::new(0));
            let counted = finished.clone();
            let count = move || _ = counted.fetch_add(1, Ordering::Relaxed);
            with(threads, &mut found, Pace::default(), count).await.unwrap();
            let addresses: Vec<_> = found.iter().map(|server| server.address).collect();
            assert_eq!(finished.load(Ordering::Relaxed), expected.len());
            assert_eq!(addresses, expected, "in their order");
            assert!(found.iter().all(|server| server.state == State::Answered), "{found:?}");
        }
    }

    /// A pass can end with nothing in flight and nothing queued though parts are left: all that it asked has answered by then.
    #[tokio::test]
    async fn a_thread_asks_for_more_before_it_ends() {
        let mut part = Some(Part { number: 0, servers: many("netpanzer", 10) });
        let mut asked = 0;
        let more = from_fn(|| {
            asked += 1;
            if asked == 1 { None } else { part.take() }
        });
        let taken = query_parts(more, Pace::default(), true, |_| {}).await.unwrap();
        assert!(taken.iter().flat_map(|part| &part.servers).all(|server| server.state == State::Answered));
        assert_eq!(taken.len(), 1);
    }

    #[test]
    fn several_games_at_an_address_are_for_one_thread() {
        let mut found = vec![Found::new(Game::Own("a"), address(1)), Found::new(Game::Own("a"), address(2))];
        assert!(!share_addresses(&found));
        found.push(Found::new(Game::Own("b"), address(1)));
        assert!(share_addresses(&found));
    }

    fn address(port: u16) -> Address {
        Address::new([192, 0, 2, 1].into(), port).unwrap()
    }

    #[test]
    fn all_threads_together_keep_to_the_pace() {
        let pace = Pace::default();
        let part = pace.of_one_in(3);
        assert_eq!((part.per_second, part.per_ip_per_second, part.in_flight), (10_000, 666, 666));
        assert_eq!(threads_for(1_000_000, pace), 1, "one thread manages that");
        let open = Pace { per_second: 1_000_000, ..pace };
        assert_eq!(threads_for(1_999, open), 1, "so few are not worth it");
        assert_eq!(threads_for(1_000_000, Pace { in_flight: 1, ..open }), 1);
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(threads_for(1_000_000, open), cores.min(20));
    }
}

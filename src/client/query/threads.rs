//! Several threads query the servers of one list: each takes a few, and more whenever it has nothing else to ask, so that all of
//! them end at about the same time.

use std::io;
use std::slice::ChunksMut;
use std::sync::{Mutex, PoisonError};

use super::{Pace, are_loopback, query_parts};
use crate::client::Found;
use crate::client::seen::first_of_each;
use crate::client::throttle::MANAGED_PER_SECOND;

/// For how many servers another thread is worth starting.
const SERVERS: usize = 1_000;
/// How many servers a thread takes at once.
const PART: usize = 64;
/// Servers in flight that a thread begins with: few enough that what is known about them stays in its processor's cache.
const FIRST_IN_FLIGHT: usize = 250;

/// The parts that nobody has taken yet.
type Rest<'a> = Mutex<ChunksMut<'a, Found>>;

impl Pace {
    /// The pace of one of so many threads.
    fn of_one_in(self, threads: usize) -> Pace {
        let part = |all: u32| (all / threads.max(1) as u32).max(1);
        let first = self.first_in_flight / threads.max(1);
        Pace {
            per_second: part(self.per_second),
            per_ip_per_second: part(self.per_ip_per_second),
            in_flight: (self.in_flight / threads.max(1)).max(1),
            first_in_flight: first.clamp(1, FIRST_IN_FLIGHT),
            more_in_flight: first.saturating_sub(FIRST_IN_FLIGHT),
            ..self
        }
    }
}

/// Like [`query_all`](super::query_all), with several threads if the rate is more than one of them manages. Blocks; not for async
/// code. `finished` is called on any thread.
pub fn query_in_threads(found: &mut [Found], pace: Pace, finished: impl Fn() + Sync) -> io::Result<()> {
    let threads = match threads_for(found.len(), pace) {
        several @ 2.. if !share_addresses(found) => several,
        _ => 1,
    };
    with(threads, found, pace, finished)
}

fn threads_for(servers: usize, pace: Pace) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let useful = (pace.per_second / MANAGED_PER_SECOND) as usize;
    cores.min(useful).min(servers / SERVERS).min(pace.in_flight).max(1)
}

/// Whether several games are to be asked at one address. Only one thread can do that, because they have to take turns.
fn share_addresses(found: &[Found]) -> bool {
    first_of_each(found, |server| server.address).count() < found.len()
}

fn with(threads: usize, found: &mut [Found], pace: Pace, finished: impl Fn() + Sync) -> io::Result<()> {
    let all_loopback = are_loopback(found);
    let part = if threads > 1 { PART } else { found.len().max(1) };
    let pace = if threads > 1 { pace.of_one_in(threads) } else { pace };
    let rest = Mutex::new(found.chunks_mut(part));
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(query_parts(&mut || take(&rest), pace, all_loopback, true, |_| finished()))
    };
    std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().name("query".into()).spawn_scoped(scope, run).ok();
        // Without another thread, the others do its work.
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = run();
        let joined: Vec<_> = others.into_iter().map(|other| other.join()).collect();
        // A thread without a socket has taken nothing, so the others have done its work, unless none had one.
        joined
            .into_iter()
            .try_fold(own, |result, other| other.map(|other| result.or(other)))
            .unwrap_or_else(|_| Err(io::Error::other("a thread has ended early")))
    })
}

fn take<'a>(rest: &Rest<'a>) -> Option<&'a mut [Found]> {
    rest.lock().unwrap_or_else(PoisonError::into_inner).next()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{many, patient};
    use super::*;
    use crate::client::State;
    use crate::model::{Address, Game};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn threads_share_the_servers() {
        for (threads, count) in [(1, 100), (2, 1_000), (3, 1_000), (7, 65), (7, 0)] {
            let mut found = many("netpanzer", count);
            let expected: Vec<_> = found.iter().map(|server| server.address).collect();
            let finished = AtomicUsize::new(0);
            with(threads, &mut found, patient(50), || _ = finished.fetch_add(1, Ordering::Relaxed)).unwrap();
            let addresses: Vec<_> = found.iter().map(|server| server.address).collect();
            assert_eq!(finished.load(Ordering::Relaxed), expected.len());
            assert_eq!(addresses, expected, "in their order");
            assert!(found.iter().all(|server| server.state == State::Answered), "{found:?}");
        }
    }

    /// A pass can end with nothing in flight and nothing queued though parts are left: all that it asked has answered by then.
    #[tokio::test]
    async fn a_thread_asks_for_more_before_it_ends() {
        let mut found = many("netpanzer", 10);
        let mut part = Some(&mut *found);
        let mut asked = 0;
        let mut more = || {
            asked += 1;
            if asked == 1 { None } else { part.take() }
        };
        query_parts(&mut more, Pace::default(), true, true, |_| {}).await.unwrap();
        assert!(found.iter().all(|server| server.state == State::Answered));
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
        assert_eq!((part.first_in_flight, part.more_in_flight), (250, 1_083), "4,000 in all, if they do not answer");
        assert_eq!(threads_for(1_000_000, pace), 1, "one thread manages that");
        let open = Pace { per_second: 1_000_000, ..pace };
        assert_eq!(threads_for(1_999, open), 1, "so few are not worth it");
        assert_eq!(threads_for(1_000_000, Pace { in_flight: 1, ..open }), 1);
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(threads_for(1_000_000, open), cores.min(20));
    }
}

//! One runtime per core, each with one thread, for connections whose answers are prepared. Serving a connection wakes no other
//! thread. Nothing here may take long: whatever does belongs to the program's main runtime.
//!
//! Connections that ask again and again, and whose packets arrive on one processor, gather on one thread. The system likes to run it
//! there: what it has done for them is in that processor's cache then, and no other one has to be woken. A connection moves only to a
//! thread that has no more connections than its own: they trade places, and no thread gets more than its share, also where all
//! packets arrive on one processor.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use super::guard::Guard;
use super::stopped;

/// Threads of a core that do what takes long, such as rendering a list that is not prepared. Their number is bounded elsewhere.
const BLOCKING_THREADS_MAX: usize = 64;
/// How often a core that stops looks whether its connections have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// After so many requests, a connection looks where its packets arrive; after twice as many for each move, up to a bound.
const REQUESTS: u32 = 64;
const MOVES_MAX: u32 = 6;

thread_local! {
    /// The core that this thread is.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

pub struct Cores {
    cores: Vec<Core>,
    processors: Vec<usize>,
    next: AtomicUsize,
}

struct Core {
    handle: Handle,
    /// Connections that have their place here.
    connections: AtomicUsize,
}

impl Core {
    fn new(runtime: &Runtime) -> Core {
        Core { handle: runtime.handle().clone(), connections: AtomicUsize::new(0) }
    }
}

impl Cores {
    /// Starts a thread per core. They run until the program stops and no connections are left, or until it ends.
    pub fn start(guard: &Arc<Guard>, stop: &watch::Receiver<bool>) -> io::Result<(Cores, Vec<JoinHandle<()>>)> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let runtimes = (0..count).map(|_| runtime()).collect::<io::Result<Vec<_>>>()?;
        let cores = runtimes.iter().map(Core::new).collect();
        let threads = runtimes.into_iter().enumerate().map(|(number, runtime)| {
            let (guard, stop) = (guard.clone(), stop.clone());
            let run = move || {
                HERE.set(Some(number));
                runtime.block_on(until_the_end(guard, stop));
            };
            std::thread::Builder::new().name(format!("core-{number}")).spawn(run)
        });
        let cores = Cores { cores, processors: processors().collect(), next: AtomicUsize::new(0) };
        Ok((cores, threads.collect::<io::Result<_>>()?))
    }

    pub fn count(&self) -> usize {
        self.cores.len()
    }

    /// The core for the next connection: each in turn. The system would distribute them by chance.
    pub fn next(&self) -> Option<&Handle> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        Some(&self.cores.get(turn.checked_rem(self.cores.len())?)?.handle)
    }

    /// A place on the core that this thread is; none on other threads.
    pub fn place(self: &Arc<Cores>) -> Option<Place> {
        self.place_on(HERE.get()?)
    }

    fn place_on(self: &Arc<Cores>, number: usize) -> Option<Place> {
        self.cores.get(number)?.connections.fetch_add(1, Ordering::Relaxed);
        Some(Place { cores: self.clone(), number, moves: 0, requests: 0, wanted: None })
    }

    /// The core for what arrives on a processor.
    fn of(&self, processor: usize) -> Option<usize> {
        self.processors.iter().position(|one| *one == processor)?.checked_rem(self.cores.len())
    }

    /// Counts a connection of one core as one of another, unless that has more of them.
    fn trade(&self, from: usize, to: usize) -> Option<()> {
        let (from, to) = (&self.cores.get(from)?.connections, &self.cores.get(to)?.connections);
        let own = from.load(Ordering::Relaxed);
        to.try_update(Ordering::Relaxed, Ordering::Relaxed, |its| (its <= own).then_some(its + 1)).ok()?;
        from.fetch_sub(1, Ordering::Relaxed);
        Some(())
    }
}

/// The place of a connection on a core, until it is dropped.
pub struct Place {
    cores: Arc<Cores>,
    number: usize,
    /// How often it has moved, up to a bound.
    moves: u32,
    /// Requests since it looked.
    requests: u32,
    /// The core that was better when it looked.
    wanted: Option<usize>,
}

impl Place {
    /// At a request: moves the place to a better core, if there is one. The connection belongs there after this request.
    /// `processor` tells where its packets arrive.
    pub fn moves(&mut self, processor: impl FnOnce() -> Option<usize>) -> bool {
        self.requests += 1;
        if self.requests < REQUESTS << self.moves {
            return false;
        }
        self.requests = 0;
        let better = processor().and_then(|processor| self.cores.of(processor)).filter(|core| *core != self.number);
        let last = std::mem::replace(&mut self.wanted, better);
        // A client's thread that was elsewhere for a moment is not followed.
        let better = better.filter(|_| better == last);
        let Some(core) = better.filter(|core| self.cores.trade(self.number, *core).is_some()) else { return false };
        (self.number, self.wanted) = (core, None);
        self.moves = (self.moves + 1).min(MOVES_MAX);
        true
    }

    /// The runtime of its core.
    pub fn handle(&self) -> Option<&Handle> {
        self.cores.cores.get(self.number).map(|core| &core.handle)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(core) = self.cores.cores.get(self.number) {
            core.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The processors that this program may run on.
pub fn processors() -> impl Iterator<Item = usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(move |number| allowed.is_set(*number).unwrap_or(false))
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()
}

async fn until_the_end(guard: Arc<Guard>, mut stop: watch::Receiver<bool>) {
    stopped(&mut stop).await;
    while guard.connections() > 0 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cores on two of the processors 4 to 7.
    fn cores() -> Arc<Cores> {
        let runtimes = [runtime().unwrap(), runtime().unwrap()];
        let cores = runtimes.iter().map(Core::new).collect();
        Arc::new(Cores { cores, processors: vec![4, 5, 6, 7], next: AtomicUsize::new(0) })
    }

    fn places(cores: &Arc<Cores>, count: usize) -> Vec<Place> {
        (0..count).map(|number| cores.place_on(number % 2).unwrap()).collect()
    }

    /// After how many requests it moves, if it does.
    fn moves_after(place: &mut Place, requests: u32, processor: usize) -> Option<u32> {
        (1..=requests).find(|_| place.moves(|| Some(processor)))
    }

    fn connections(cores: &Cores) -> Vec<usize> {
        cores.cores.iter().map(|core| core.connections.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_connection_moves_to_where_its_packets_arrive_if_they_do_so_twice() {
        for (processor, core) in [(4, 0), (5, 1), (6, 0), (7, 1), (3, 0), (usize::MAX, 0)] {
            let mut place = cores().place_on(0).unwrap();
            assert_eq!(moves_after(&mut place, 4 * REQUESTS, processor), (core == 1).then_some(2 * REQUESTS));
            assert_eq!(place.number, core, "{processor}");
        }
        let mut place = cores().place_on(0).unwrap();
        for processor in [5, 4, 5, 4] {
            assert_eq!(moves_after(&mut place, REQUESTS, processor), None, "its client's thread moves about");
        }
        assert!((1..1_000).all(|_| !place.moves(|| None)), "the system does not tell");
    }

    #[test]
    fn connections_of_two_processors_gather_on_two_cores() {
        let cores = cores();
        let mut all = places(&cores, 32);
        for _ in 0..100 {
            for (number, place) in all.iter_mut().enumerate() {
                moves_after(place, REQUESTS, 4 + number / 16);
                let most = connections(&cores).into_iter().max();
                assert!(most <= Some(17), "they trade places one by one");
            }
        }
        assert!(all.iter().enumerate().all(|(number, place)| place.number == number / 16));
    }

    #[test]
    fn no_core_gets_more_than_its_share() {
        let cores = cores();
        let mut all = places(&cores, 30);
        for _ in 0..100 {
            for place in &mut all {
                moves_after(place, REQUESTS, 5);
            }
        }
        assert_eq!(connections(&cores), [14, 16], "all packets arrive on one processor");

        let mut later = places(&cores, 8);
        for place in &mut later {
            assert_eq!(moves_after(place, 10 * REQUESTS, 5), None, "others have moved there");
        }
        drop(all);
        assert_eq!(connections(&cores), [4, 4]);
        assert_eq!(moves_after(&mut later[0], REQUESTS, 5), Some(REQUESTS), "those are gone");
        drop(later);
        assert_eq!(connections(&cores), [0, 0]);
    }

    #[test]
    fn a_connection_that_has_moved_looks_less_often() {
        let mut place = cores().place_on(0).unwrap();
        for looks_after in [1, 2, 4, 8, 16, 32, 64, 64, 64].map(|times| times * REQUESTS) {
            let elsewhere = 5 - place.number;
            assert_eq!(moves_after(&mut place, u32::MAX, elsewhere), Some(2 * looks_after));
        }
    }

    #[test]
    fn only_the_threads_of_cores_have_places() {
        assert!(cores().place().is_none());
    }
}

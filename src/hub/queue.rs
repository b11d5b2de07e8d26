//! A short queue in front of work that takes long and that clients can ask for: a few at a time, off the threads that serve.
//!
//! When a place is free, the client goes first whose networks have used the least of their budget. So one address that asks a lot
//! delays a stranger by about one piece of work. The queue is short, and shorter still for one address; who finds it full is
//! refused, or takes the place of the one who has used most. Work for a client who has gone is not begun.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant; // in a simulation, the simulated time

use crate::prefix::Prefix;

/// The longest queue, and the most of it that one address (IPv6 /64) may take.
const WAITING_MAX: usize = 64;
const WAITING_PER_PREFIX_MAX: usize = 8;
/// How long a client waits at most.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a client is told to wait that was refused because others had work to do.
const BUSY_S: u64 = 2;

/// Why work was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too many others wait, or too many lists are held by slow readers.
    Busy,
    /// The client's networks have used up their budget.
    OverBudget { retry_after_s: u64 },
}

impl Refusal {
    /// The number of seconds after which it may work.
    pub fn retry_after_s(self) -> u64 {
        match self {
            Refusal::Busy => BUSY_S,
            Refusal::OverBudget { retry_after_s } => retry_after_s.max(1),
        }
    }
}

/// In words, for people.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Refusal::Busy => "too many others ask for something at the moment",
            Refusal::OverBudget { .. } => "too much was asked for from your network",
        };
        write!(f, "{why}; try again in {} s", self.retry_after_s())
    }
}

/// The accounts that work is charged to.
pub trait Accounts: Send + Sync {
    /// How much of its budget an address, or the network around it that has used most, has used.
    fn used(&self, ip: IpAddr) -> u64;

    /// Whether it has something left; otherwise, the number of seconds until then.
    fn admit(&self, ip: IpAddr) -> Result<(), u64>;

    /// Charges the time that some work took, in microseconds.
    fn charge(&self, ip: IpAddr, us: u64);
}

/// The accounts, once there are any. Until then, nothing is charged.
pub type SharedAccounts = Arc<OnceLock<Arc<dyn Accounts>>>;

pub struct Queue {
    state: Mutex<State>,
    accounts: SharedAccounts,
    patience: Duration,
    refused: AtomicU64,
}

struct State {
    free: usize,
    waiting: Vec<Waiting>,
    /// Who has a place.
    working: Vec<Prefix>,
    arrived: u64,
}

struct Waiting {
    ip: IpAddr,
    /// The narrowest prefix around it.
    prefix: Prefix,
    /// Its place in the order of arrival.
    number: u64,
    ready: oneshot::Sender<Result<Place, Refusal>>,
}

/// The right to work. Dropping it lets the next one begin.
pub struct Place {
    queue: Arc<Queue>,
    prefix: Prefix,
}

impl Queue {
    /// `places`: how many work at a time.
    pub fn new(places: usize, accounts: SharedAccounts) -> Arc<Queue> {
        Arc::new(Queue::with_patience(places, accounts, PATIENCE))
    }

    fn with_patience(places: usize, accounts: SharedAccounts, patience: Duration) -> Queue {
        let state = State { free: places.max(1), waiting: Vec::new(), working: Vec::new(), arrived: 0 };
        Queue { state: Mutex::new(state), accounts, patience, refused: AtomicU64::new(0) }
    }

    /// A place for a client, as soon as there is one. Dropping the future gives up.
    pub async fn place(self: &Arc<Queue>, ip: IpAddr) -> Result<Place, Refusal> {
        let ready = match self.enter(ip) {
            Ok(Entered::Place(place)) => return Ok(place),
            Ok(Entered::Waiting(ready)) => ready,
            Err(refusal) => return self.refuse(refusal),
        };
        match tokio::time::timeout(self.patience, ready).await {
            Ok(Ok(Ok(place))) => Ok(place),
            Ok(Ok(Err(refusal))) => self.refuse(refusal),
            Ok(Err(_)) | Err(_) => self.refuse(Refusal::Busy),
        }
    }

    /// Does work for a client on a thread of its own, and charges its time to the client.
    pub async fn work<T: Send + 'static>(
        self: &Arc<Queue>,
        ip: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.admit(ip)?;
        let place = self.place(ip).await?;
        let charge = self.clone();
        let work = move || {
            let started = Instant::now();
            let done = work();
            charge.charge(ip, started.elapsed());
            drop(place);
            done
        };
        on_a_thread(work).await
    }

    /// Whether a client has something left of its budget.
    pub fn admit(&self, ip: IpAddr) -> Result<(), Refusal> {
        let admitted = self.accounts.get().map_or(Ok(()), |accounts| accounts.admit(ip));
        admitted.or_else(|retry_after_s| self.refuse(Refusal::OverBudget { retry_after_s }))
    }

    pub fn charge(&self, ip: IpAddr, took: Duration) {
        if let Some(accounts) = self.accounts.get() {
            accounts.charge(ip, took.as_micros() as u64);
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        let mut state = self.state();
        state.forget_gone();
        state.waiting.len()
    }

    /// How often a client was refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a refusal.
    pub fn refuse<T>(&self, refusal: Refusal) -> Result<T, Refusal> {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(refusal)
    }

    fn enter(self: &Arc<Queue>, ip: IpAddr) -> Result<Entered, Refusal> {
        let prefix = Prefix::narrowest(ip);
        let mut state = self.state();
        if state.free > 0 {
            return Ok(Entered::Place(self.taken(&mut state, prefix)));
        }
        state.forget_gone();
        let of_prefix = state.waiting.iter().filter(|waiting| waiting.prefix == prefix).count();
        if of_prefix >= WAITING_PER_PREFIX_MAX {
            return Err(Refusal::Busy);
        }
        let (ready, receiver) = oneshot::channel();
        state.arrived += 1;
        let number = state.arrived;
        state.waiting.push(Waiting { ip, prefix, number, ready });
        if state.waiting.len() > WAITING_MAX {
            let last = (0..state.waiting.len()).max_by_key(|at| self.rank(&state, *at));
            let last = last.map(|last| state.waiting.swap_remove(last));
            drop(state);
            if let Some(last) = last {
                let _ = last.ready.send(Err(Refusal::Busy)); // the newcomer itself, perhaps
            }
        }
        Ok(Entered::Waiting(receiver))
    }

    /// The order of those who wait: who has used least, then who has least work in progress, then who came first.
    fn rank(&self, state: &State, at: usize) -> (u64, usize, u64) {
        let Some(waiting) = state.waiting.get(at) else { return (u64::MAX, usize::MAX, u64::MAX) };
        let used = self.accounts.get().map_or(0, |accounts| accounts.used(waiting.ip));
        let working = state.working.iter().filter(|prefix| **prefix == waiting.prefix).count();
        (used, working, waiting.number)
    }

    fn taken(self: &Arc<Queue>, state: &mut State, prefix: Prefix) -> Place {
        state.free -= 1;
        state.working.push(prefix);
        Place { queue: self.clone(), prefix }
    }

    fn leave(self: &Arc<Queue>, prefix: Prefix) {
        let mut state = self.state();
        state.free += 1;
        if let Some(at) = state.working.iter().position(|working| *working == prefix) {
            state.working.swap_remove(at);
        }
        state.forget_gone();
        let next = (0..state.waiting.len()).min_by_key(|at| self.rank(&state, *at));
        let Some(next) = next.map(|next| state.waiting.swap_remove(next)) else { return };
        let place = self.taken(&mut state, next.prefix);
        drop(state);
        let _ = next.ready.send(Ok(place)); // to one who has just gone: dropping it lets the next one begin
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => Ok(done),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(Refusal::Busy), // the program stops
    }
}

enum Entered {
    Place(Place),
    Waiting(oneshot::Receiver<Result<Place, Refusal>>),
}

impl State {
    fn forget_gone(&mut self) {
        self.waiting.retain(|waiting| !waiting.ready.is_closed());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.leave(self.prefix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// What each address has used. An address with 1,000 or more is over its budget.
    #[derive(Default)]
    struct Used(Mutex<HashMap<IpAddr, u64>>);

    impl Accounts for Used {
        fn used(&self, ip: IpAddr) -> u64 {
            self.0.lock().unwrap().get(&ip).copied().unwrap_or(0)
        }

        fn admit(&self, ip: IpAddr) -> Result<(), u64> {
            if self.used(ip) < 1_000 { Ok(()) } else { Err(7) }
        }

        fn charge(&self, ip: IpAddr, us: u64) {
            *self.0.lock().unwrap().entry(ip).or_default() += us;
        }
    }

    fn queue(places: usize, used: &[(IpAddr, u64)]) -> Arc<Queue> {
        let accounts = SharedAccounts::default();
        let used = Used(Mutex::new(used.iter().copied().collect()));
        accounts.set(Arc::new(used)).ok().unwrap();
        Queue::new(places, accounts)
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }

    /// Waits as a client does, without a runtime.
    fn wait(queue: &Arc<Queue>, ip: IpAddr) -> oneshot::Receiver<Result<Place, Refusal>> {
        match queue.enter(ip) {
            Ok(Entered::Waiting(ready)) => ready,
            _ => panic!("there was a place, or none at all"),
        }
    }

    #[test]
    fn a_stranger_goes_before_one_who_has_used_a_lot() {
        let queue = queue(1, &[(ip(1), 500)]);
        let working = now(queue.place(ip(1))).unwrap().unwrap();
        let mut greedy: Vec<_> = (0..3).map(|_| wait(&queue, ip(1))).collect();
        let mut stranger = wait(&queue, ip(2));
        drop(working);
        let place = stranger.try_recv().unwrap().unwrap();
        assert!(greedy.iter_mut().all(|one| one.try_recv().is_err()));
        drop(place);
        let first = greedy[0].try_recv().unwrap();
        assert!(first.is_ok() && greedy[1].try_recv().is_err(), "then by arrival, one at a time");
    }

    #[test]
    fn one_with_work_in_progress_goes_after_one_without() {
        let queue = queue(2, &[]);
        let [one, other] = [1, 1].map(|last| now(queue.place(ip(last))).unwrap().unwrap());
        let (mut again, mut stranger) = (wait(&queue, ip(1)), wait(&queue, ip(2)));
        drop(one);
        let _place = stranger.try_recv().unwrap().unwrap();
        assert!(again.try_recv().is_err());
        drop(other);
        assert!(again.try_recv().is_ok());
    }

    #[test]
    fn who_has_gone_gets_no_place_and_takes_none_away() {
        let queue = queue(1, &[]);
        let working = now(queue.place(ip(1))).unwrap().unwrap();
        let (gone, mut next) = (wait(&queue, ip(2)), wait(&queue, ip(3)));
        assert_eq!(queue.waiting(), 2);
        drop(gone);
        assert_eq!(queue.waiting(), 1);
        drop(working);
        let place = next.try_recv().unwrap().unwrap();
        // A place that was on its way to one who goes is passed on.
        let (going, mut last) = (wait(&queue, ip(4)), wait(&queue, ip(5)));
        drop(place);
        drop(going);
        let place = last.try_recv().unwrap().unwrap();
        assert_eq!(queue.waiting(), 0);
        assert_eq!(queue.state().free, 0);
        drop(place);
        assert_eq!(queue.state().free, 1);
        assert!(queue.state().working.is_empty());
    }

    #[test]
    fn the_queue_is_short_for_one_address_and_for_all() {
        let heavy: Vec<_> = (100..=200).map(|last| (ip(last), 10)).collect();
        let queue = queue(1, &heavy);
        let _working = now(queue.place(ip(99))).unwrap().unwrap();
        let mut of_one: Vec<_> = (0..WAITING_PER_PREFIX_MAX).map(|_| wait(&queue, ip(1))).collect();
        assert_eq!(now(queue.place(ip(1))).unwrap().err(), Some(Refusal::Busy));
        assert_eq!(queue.refused(), 1);
        let mut others: Vec<_> = (100..).take(WAITING_MAX - of_one.len()).map(|last| wait(&queue, ip(last))).collect();
        // One more who has used as much as the others is refused; one who has used less takes the place of the last of them.
        assert_eq!(wait(&queue, ip(200)).try_recv().unwrap().err(), Some(Refusal::Busy));
        let mut stranger = wait(&queue, ip(2));
        assert!(stranger.try_recv().is_err(), "it waits");
        assert_eq!(others.pop().unwrap().try_recv().unwrap().err(), Some(Refusal::Busy));
        assert!(of_one.iter_mut().chain(&mut others).all(|one| one.try_recv().is_err()), "the others wait on");
        assert_eq!(queue.waiting(), WAITING_MAX);
    }

    #[tokio::test]
    async fn nobody_waits_for_ever() {
        let queue = Arc::new(Queue::with_patience(1, SharedAccounts::default(), Duration::ZERO));
        let _working = queue.place(ip(1)).await.unwrap();
        assert_eq!(queue.place(ip(2)).await.err(), Some(Refusal::Busy));
        assert_eq!(queue.waiting(), 0);
    }

    #[tokio::test]
    async fn work_is_charged_and_refused_beyond_the_budget() {
        let queue = queue(1, &[(ip(1), 1_000)]);
        assert_eq!(queue.work(ip(1), || 1).await, Err(Refusal::OverBudget { retry_after_s: 7 }));
        assert_eq!(queue.work(ip(2), || 2).await, Ok(2));
        let accounts = queue.accounts.get().unwrap();
        queue.charge(ip(2), Duration::from_millis(1));
        assert!(accounts.used(ip(2)) >= 1_000, "in microseconds");
        assert_eq!((Refusal::Busy.retry_after_s(), Refusal::OverBudget { retry_after_s: 0 }.retry_after_s()), (2, 1));
    }
}

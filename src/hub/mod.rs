//! The only shared mutable state. All changes go in through [`Hub::apply`]; views and deltas are published at a bounded rate, so
//! that neither readers nor a burst of changes can starve the writers.

mod clock;
mod effort;
mod held;
mod lists;
mod queue;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::broadcast;

use crate::model::{Address, Change, Now, Server, SharedTime};
use crate::moderation::Rules;
use crate::prefix::Networks;
use crate::registry::merge::LocalState;
use crate::registry::per_game::GameLimits;
use crate::registry::view::{Batch, Publisher, Rendered, Renderer, View};
use crate::registry::{AddressState, Due, Life, Outcome, Registry, Settings};
pub use clock::{Clock, VirtualTime};
use effort::Effort;
pub use held::Held;
use lists::Lists;
use queue::SharedAccounts;
pub use queue::{Accounts, Queue, Refusal};

/// The least interval between two views; a burst of changes is gathered into one.
const PACE_MIN: Duration = Duration::from_millis(20);
/// Publishing may use this fraction (1/N) of a core.
const PACE_SHARE: u32 = 20;
/// Preparing lists may use this fraction (1/N) of a core.
const PREPARE_SHARE: u32 = 4;
/// How often to look for lists to prepare: at least and at most.
const PREPARE_EVERY: Duration = Duration::from_millis(250);
const PREPARE_PAUSE_MIN: Duration = Duration::from_millis(5);
/// How often to check for lives that have ended.
const EXPIRE_EVERY: Duration = Duration::from_millis(250);
/// Upper bound on lives ended at once, before other threads can use the registry.
const EXPIRE_MOST: usize = 4096;
/// Batches of deltas that are kept for slow readers; one that is further behind starts from a new view.
const BATCHES_KEPT: usize = 256;

pub struct Hub {
    pub clock: Clock,
    registry: Mutex<Registry>,
    changed: Condvar,
    publishing: Mutex<Publishing>,
    view: ArcSwap<View>,
    lists: Lists,
    accounts: SharedAccounts,
    batches: broadcast::Sender<Arc<Batch>>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct Publishing {
    publisher: Publisher,
    /// The view before the newest, for a short while. A thread that receives datagrams may still hold it; this makes sure that
    /// it is freed here, which takes a while for a long one.
    former: Option<Arc<View>>,
}

impl Hub {
    pub fn new(settings: Settings) -> Hub {
        Hub::with_clock(settings, Clock::new())
    }

    /// A hub in a simulation: its time is set, and the same seed gives the same behaviour.
    pub fn simulated(settings: Settings, time: Arc<VirtualTime>, seed: u64) -> Hub {
        let hub = Hub::with_clock(settings, Clock::of(time));
        hub.registry().set_spread_key(seed);
        hub
    }

    fn with_clock(settings: Settings, clock: Clock) -> Hub {
        let now = clock.now();
        let accounts = SharedAccounts::default();
        Hub {
            clock,
            registry: Mutex::new(Registry::new(settings, now)),
            changed: Condvar::new(),
            publishing: Mutex::default(),
            view: ArcSwap::from_pointee(View::new(0, now.unix_ms, Vec::new())),
            lists: Lists::new(accounts.clone()),
            accounts,
            batches: broadcast::Sender::new(BATCHES_KEPT),
            stopping: AtomicBool::new(false),
        }
    }

    /// Applies changes in order, under one lock, and reports the outcome of each.
    pub fn apply<'a>(
        &self,
        changes: impl IntoIterator<Item = &'a Change<'a>> + Clone,
        now: Now,
        outcome: impl FnMut(&Change<'_>, Outcome),
    ) {
        self.apply_and_look(changes, now, outcome, |_| ());
    }

    /// The same, followed by a look at the registry under the same lock.
    pub fn apply_and_look<'a>(
        &self,
        changes: impl IntoIterator<Item = &'a Change<'a>> + Clone,
        now: Now,
        mut outcome: impl FnMut(&Change<'_>, Outcome),
        look: impl FnOnce(&Registry),
    ) {
        let mut registry = self.registry();
        let was_dirty = registry.is_dirty();
        registry.read_ahead(changes.clone());
        for change in changes {
            let became = registry.apply(change, now);
            outcome(change, became);
        }
        look(&registry);
        if !was_dirty && registry.is_dirty() {
            self.changed.notify_one();
        }
    }

    /// Makes room for so many more servers, so that the registry's tables need not grow step by step.
    pub fn reserve(&self, servers: usize) {
        self.registry().reserve(servers);
    }

    pub fn set_settings(&self, settings: Settings) {
        self.registry().set_settings(settings, self.clock.now());
    }

    /// Sets the networks in which only the limit per address applies.
    pub fn set_exempt(&self, exempt: Networks) {
        self.registry().set_exempt(exempt);
    }

    /// Sets how many servers of a game a network may have.
    pub fn set_game_limits(&self, limits: GameLimits) {
        self.registry().set_game_limits(limits);
    }

    /// How many servers of a game a network may have.
    pub fn game_limit(&self, name: &str) -> Option<u32> {
        self.registry().game_limit(name)
    }

    /// Applies one change and returns its outcome.
    pub fn apply_one(&self, change: &Change<'_>, now: Now) -> Outcome {
        let mut became = Outcome::Stale;
        self.apply([change], now, |_, outcome| became = outcome);
        became
    }

    /// The server that is listed at an address now, ahead of the next view.
    pub fn listed(&self, address: Address) -> Option<Arc<Server>> {
        self.registry().listed(address).cloned()
    }

    /// Everything known about an address.
    pub fn address_state(&self, address: Address) -> Option<AddressState> {
        self.registry().address_state(address, self.clock.now())
    }

    /// Sets what the operator keeps off the list, and removes what is on it. Returns how many servers left the list.
    pub fn set_rules(&self, rules: Arc<Rules>) -> usize {
        let removed = self.registry().set_rules(rules);
        self.changed.notify_one();
        removed
    }

    /// The name that a server was refused for, if it was.
    pub fn hidden_name(&self, address: Address) -> Option<String> {
        self.registry().hidden_name(address).map(String::from)
    }

    /// Sets this node's number in the cluster.
    pub fn set_node(&self, node: u8) {
        self.registry().set_node(node);
    }

    /// Sets the time that all nodes share.
    pub fn set_time(&self, time: SharedTime) {
        self.registry().set_time(time, self.clock.now());
        self.changed.notify_one();
    }

    /// How far the clock is behind that time: see [`Registry::behind_ms`].
    pub fn behind_ms(&self, now: Now) -> Option<i64> {
        self.registry().behind_ms(now)
    }

    /// The time that all nodes share, in milliseconds since 1970; without a cluster, this node's.
    pub fn shared_ms(&self) -> u64 {
        let now = self.clock.now();
        now.unix_ms.saturating_add_signed(self.behind_ms(now).unwrap_or(0))
    }

    /// The states of some addresses for other nodes, in the given order, under one lock.
    pub fn local_states(&self, addresses: impl IntoIterator<Item = Address>, now: Now) -> Vec<Option<LocalState>> {
        let registry = self.registry();
        addresses.into_iter().map(|address| registry.local_state(address, now)).collect()
    }

    /// The removals since then that this node has to report to others.
    pub fn own_removals(&self, since_ms: u64) -> Vec<Address> {
        self.registry().own_removals(since_ms, self.clock.now()).collect()
    }

    /// The servers that are due for a query, at most `most`.
    pub fn due(&self, now: Now, most: usize, out: &mut Vec<Due>) {
        self.registry().due(now, most, out);
    }

    /// When the lives of listed servers end, as of now: see [`Registry::lives`].
    pub fn lives(&self, from: usize, most: usize, now: Now, out: &mut Vec<Life>) -> Option<usize> {
        self.registry().lives(from, most, now, out)
    }

    /// The number of slots that [`Hub::lives`] can be called for.
    pub fn slots(&self) -> usize {
        self.registry().slots()
    }

    /// The newest published view.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The same without a share in it, for a short look.
    pub fn view_guard(&self) -> arc_swap::Guard<Arc<View>> {
        self.view.load()
    }

    /// Sets the accounts that clients' own work is charged to. Before that, nothing is charged.
    pub fn set_accounts(&self, accounts: Arc<dyn Accounts>) {
        let _ = self.accounts.set(accounts); // fails if it has been called before
    }

    /// The newest view as a renderer shows it, or a slightly older one: see [`lists`]. It is rendered off the threads of the
    /// runtime, which serve others.
    pub async fn list(&self, renderer: &Arc<dyn Renderer>, ip: IpAddr) -> Result<Arc<Rendered>, Refusal> {
        self.lists.get(renderer, ip, || self.view()).await
    }

    /// The same if it is rendered already.
    pub fn ready_list(&self, renderer: &Arc<dyn Renderer>) -> Option<Arc<Rendered>> {
        self.lists.ready(renderer, &self.view_guard())
    }

    /// Does work that takes long off the threads of the runtime, as if it was a list: one that is common, or for this client.
    pub async fn work<T: Send + 'static>(
        &self,
        is_common: bool,
        ip: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.lists.work(is_common, ip, work).await
    }

    /// The queue for lists with clients' own parameters.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.lists.queue
    }

    /// Sets which lists are kept ready for the first who asks for them.
    pub fn keep_lists(&self, renderers: Vec<Arc<dyn Renderer>>) {
        self.lists.keep(renderers);
    }

    /// Starts the thread that prepares lists which take long, until [`Hub::stop`]: see [`lists`]. `finish` completes a list before
    /// clients get it.
    pub fn prepare_lists(
        self: &Arc<Hub>,
        finish: impl Fn(&Arc<Rendered>, Option<&Rendered>) + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let hub = self.clone();
        let run = move || {
            hub.lists.begin_to_prepare();
            while !hub.stopping.load(Ordering::Relaxed) {
                let started = Instant::now();
                let next = hub.lists.prepare(&hub.view(), &finish);
                let pause = match next {
                    Ok(()) => started.elapsed() * (PREPARE_SHARE - 1),
                    Err(at) => at.map_or(PREPARE_EVERY, |at| at.into_std().saturating_duration_since(started)),
                };
                std::thread::park_timeout(pause.clamp(PREPARE_PAUSE_MIN, PREPARE_EVERY));
            }
        };
        std::thread::Builder::new().name("lists".into()).spawn(run)
    }

    /// Another queue, with so many places, for work of another kind.
    pub fn new_queue(&self, places: usize) -> Arc<Queue> {
        Queue::new(places, self.accounts.clone())
    }

    /// What rendered lists take in memory.
    pub fn held(&self) -> &Arc<Held> {
        &self.lists.held
    }

    /// Takes lists out of the cache that can be spared, because memory is short.
    pub fn spare_lists(&self) {
        self.lists.spare();
    }

    /// The same for a thread that may block.
    pub fn list_blocking(&self, renderer: &Arc<dyn Renderer>) -> Arc<Rendered> {
        self.lists.get_blocking(renderer, || self.view())
    }

    /// Batches of deltas from now on. Call this before [`Hub::view`], so that no delta is missed.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Batch>> {
        self.batches.subscribe()
    }

    /// Ends lives that are over and publishes the changes. The hub's thread does this regularly.
    pub fn publish(&self, now: Now) {
        while self.registry().expire(now, EXPIRE_MOST) {}
        let mut publishing = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dirty = Vec::new();
        self.registry().drain(&mut dirty);
        if let Some((view, batch)) = publishing.publisher.publish(&mut dirty, now) {
            publishing.former = Some(self.view.swap(Arc::new(view)));
            let _ = self.batches.send(Arc::new(batch)); // fails if there is no subscriber
        }
    }

    /// Publishes what was restored, before anybody can have seen a list or subscribed to deltas. `look` is called with each server.
    pub fn publish_first(&self, now: Now, look: impl Fn(&Server)) {
        while self.registry().expire(now, EXPIRE_MOST) {}
        let mut publishing = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dirty = Vec::new();
        self.registry().drain(&mut dirty);
        if dirty.is_empty() {
            return;
        }
        self.view.store(Arc::new(publishing.publisher.publish_first(&mut dirty, now, look)));
    }

    /// Starts the thread that publishes until [`Hub::stop`].
    pub fn start(self: &Arc<Hub>) -> std::io::Result<JoinHandle<()>> {
        let hub = self.clone();
        std::thread::Builder::new().name("hub".into()).spawn(move || hub.run())
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _registry = self.registry(); // so that the thread is either waiting or will check `stop` again
        self.changed.notify_all();
    }

    fn run(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            let effort = Effort::begin();
            self.publish(self.clock.now());
            // Rest long enough to stay within the share; changes gather meanwhile.
            let rest = PACE_MIN.max(effort.took() * (PACE_SHARE - 1));
            self.wait(rest, false);
            let effort = Effort::begin();
            self.lists.forget_groups();
            self.free_former_view();
            self.lists.forget_unused();
            self.wait(effort.took() * (PACE_SHARE - 1), false);
            self.wait(EXPIRE_EVERY.saturating_sub(rest), true);
        }
    }

    /// By now no thread that receives datagrams holds the view before the newest: it is freed, with the servers that only it
    /// has.
    fn free_former_view(&self) {
        let mut publishing = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        publishing.former = None;
        publishing.publisher.catch_up();
    }

    /// Waits until the time has passed, the program stops or, with `for_change`, something has changed.
    fn wait(&self, time: Duration, for_change: bool) {
        let go_on =
            |registry: &mut Registry| !(self.stopping.load(Ordering::Relaxed) || for_change && registry.is_dirty());
        let waited = self.changed.wait_timeout_while(self.registry(), time, go_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// A panic of a thread that holds the lock would be a bug, but must not stop the others.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Announce, Facts, Game, Proof};
    use crate::registry::view::Delta;

    fn announce(now: Now, port: u16) -> Change<'static> {
        Change::Announce(Announce {
            address: format!("192.0.2.1:{port}").parse().unwrap(),
            game: Game::Own("iceball"),
            proof: Proof::Cookie,
            proven_at_ms: now.unix_ms,
            life_ms: 1_000,
            asked: false,
            rtt_us: None,
            keys: None,
            facts: Facts::default(),
        })
    }

    fn hub() -> Arc<Hub> {
        Arc::new(Hub::new(Settings { servers_max: 100, servers_per_ip_max: 100, ..Settings::UNBOUNDED }))
    }

    #[test]
    fn changes_are_published_with_their_deltas_and_end_with_their_lives() {
        let hub = hub();
        let mut batches = hub.subscribe();
        let now = hub.clock.now();
        let mut outcomes = Vec::new();
        hub.apply(&[announce(now, 1), announce(now, 2)], now, |_, outcome| outcomes.push(outcome));
        assert_eq!(outcomes, [Outcome::Added, Outcome::Added]);
        assert_eq!(hub.view().serial, 0);
        hub.publish(now);
        assert_eq!((hub.view().serial, hub.view().servers.len()), (1, 2));
        let batch = batches.try_recv().unwrap();
        assert_eq!((batch.serial, batch.deltas.len()), (1, 2));
        hub.publish(now);
        assert_eq!(hub.view().serial, 1, "nothing changed");

        let later = Now { mono_ms: now.mono_ms + 2_000, unix_ms: now.unix_ms + 2_000 };
        hub.publish(later);
        assert!(hub.view().servers.is_empty());
        assert!(batches.try_recv().unwrap().deltas.iter().all(|delta| matches!(delta, Delta::Removed(_))));
    }

    #[test]
    fn another_game_at_an_address_is_another_server() {
        let hub = hub();
        let mut batches = hub.subscribe();
        let now = hub.clock.now();
        hub.apply_one(&announce(now, 1), now);
        hub.publish(now);
        batches.try_recv().unwrap();
        let later = Now { mono_ms: now.mono_ms + 10, unix_ms: now.unix_ms + 10 };
        let Change::Announce(announce) = announce(later, 1) else { unreachable!() };
        hub.apply_one(&Change::Announce(Announce { game: Game::Own("netpanzer"), ..announce }), later);
        hub.publish(later);
        let batch = batches.try_recv().unwrap();
        let [Delta::Removed(old), Delta::Added(new)] = &batch.deltas[..] else { panic!("{batch:?}") };
        assert_eq!((old.game.name(), new.game.name()), ("iceball", "netpanzer"));
    }

    #[test]
    fn the_thread_publishes_and_stops() {
        let hub = hub();
        let mut batches = hub.subscribe();
        let thread = hub.start().unwrap();
        let now = hub.clock.now();
        hub.apply(&[announce(now, 1)], now, |_, _| {});
        assert!(matches!(batches.blocking_recv().unwrap().deltas[..], [Delta::Added(_)]));
        assert!(matches!(batches.blocking_recv().unwrap().deltas[..], [Delta::Removed(_)]));
        hub.stop();
        thread.join().unwrap();
    }
}

//! The only shared mutable state. Everybody's changes go in through [`Hub::apply`]; views and deltas come out at the
//! hub's own bounded pace, so that neither readers nor a storm of changes can take the machine from the writers.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::broadcast;

use crate::model::{Address, Change, Now, Server, SharedTime};
use crate::prefix::Networks;
use crate::registry::merge::LocalState;
use crate::registry::view::{Batch, Publisher, Rendered, Renderer, View};
use crate::registry::{AddressState, Due, Life, Outcome, Registry, Settings};

/// The shortest time between two views: what a burst of changes is gathered into.
const PACE_MIN: Duration = Duration::from_millis(20);
/// Publishing may take one part in this many of a core.
const PACE_SHARE: u32 = 20;
/// A list that is dear to render is as old as this at the most, where it could be newer.
const STALE_MAX: Duration = Duration::from_secs(2);
/// Lists remembered from view to view; one more pushes out the one that was asked for longest ago.
const LISTS_MAX: usize = 64;
/// How often ended lives are looked for.
const EXPIRE_EVERY: Duration = Duration::from_millis(250);
/// Lives ended in one go, before other threads get their turn at the registry.
const EXPIRE_MOST: usize = 4096;
/// Batches of deltas kept for a reader that is behind; one that is further behind starts from a new view.
const BATCHES_KEPT: usize = 256;

/// The clock of the whole program. Nothing below the hub asks for the time.
///
/// The time of day never goes back while a small correction is under way: proofs are ordered by it. It follows the
/// system's forwards at once, backwards slowly, and gives in when the two are far apart.
pub struct Clock {
    start: Instant,
    offset_ms: AtomicI64,
    slewed_at_ms: AtomicI64,
}

/// A correction of more than this was no correction: the time before it was wrong.
const STEP_MS: i64 = 60_000;
/// A small correction backwards takes this many times as long as it is.
const SLEW: i64 = 10;

impl Clock {
    fn new() -> Clock {
        Clock { start: Instant::now(), offset_ms: AtomicI64::new(unix_ms()), slewed_at_ms: AtomicI64::new(0) }
    }

    /// Microseconds of the monotonic clock, for round trips.
    pub fn mono_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    pub fn now(&self) -> Now {
        self.at(self.start.elapsed().as_millis() as i64, unix_ms())
    }

    fn at(&self, mono_ms: i64, wall_ms: i64) -> Now {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        let ahead_ms = mono_ms + offset_ms - wall_ms;
        let back_ms = if (0..=STEP_MS).contains(&ahead_ms) {
            let since_ms = mono_ms - self.slewed_at_ms.load(Ordering::Relaxed);
            (since_ms / SLEW).clamp(0, ahead_ms)
        } else {
            ahead_ms
        };
        if back_ms != 0 || ahead_ms == 0 {
            self.offset_ms.store(offset_ms - back_ms, Ordering::Relaxed);
            self.slewed_at_ms.store(mono_ms, Ordering::Relaxed);
        }
        Now { mono_ms: mono_ms as u64, unix_ms: (mono_ms + offset_ms - back_ms).max(0) as u64 }
    }
}

/// The system's time of day.
fn unix_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// A list as it was last rendered.
#[derive(Default)]
struct ListCell {
    last: ArcSwapOption<Rendered>,
    kept: Mutex<Kept>,
}

struct Kept {
    serial: u64,
    at: Instant,
    /// How long it is good enough.
    rest: Duration,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { serial: u64::MAX, at: Instant::now(), rest: Duration::ZERO }
    }
}

impl Kept {
    /// Rendered from one time to another: the longer that took, the longer it is good enough.
    fn new(serial: u64, from: Instant, to: Instant) -> Kept {
        Kept { serial, at: to, rest: ((to - from) * (PACE_SHARE - 1)).min(STALE_MAX) }
    }

    fn is_good(&self, serial: u64, now: Instant) -> bool {
        self.serial == serial || now.saturating_duration_since(self.at) < self.rest
    }
}

type Lists = Vec<(Arc<dyn Renderer>, Arc<ListCell>)>;

pub struct Hub {
    pub clock: Clock,
    registry: Mutex<Registry>,
    changed: Condvar,
    publisher: Mutex<Publisher>,
    view: ArcSwap<View>,
    lists: Mutex<Lists>,
    batches: broadcast::Sender<Arc<Batch>>,
    stopping: AtomicBool,
}

impl Hub {
    pub fn new(settings: Settings) -> Hub {
        let clock = Clock::new();
        let now = clock.now();
        Hub {
            clock,
            registry: Mutex::new(Registry::new(settings, now)),
            changed: Condvar::new(),
            publisher: Mutex::default(),
            view: ArcSwap::from_pointee(View::new(0, now.unix_ms, Vec::new())),
            lists: Mutex::default(),
            batches: broadcast::Sender::new(BATCHES_KEPT),
            stopping: AtomicBool::new(false),
        }
    }

    /// Applies changes in order, under one lock; tells what became of each.
    pub fn apply<'a>(
        &self,
        changes: impl IntoIterator<Item = &'a Change<'a>> + Clone,
        now: Now,
        outcome: impl FnMut(&Change<'_>, Outcome),
    ) {
        self.apply_and_look(changes, now, outcome, |_| ());
    }

    /// The same, with a look at what is known then, under the same lock.
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

    pub fn set_settings(&self, settings: Settings) {
        self.registry().set_settings(settings, self.clock.now());
    }

    /// The networks that have only the limit per address.
    pub fn set_exempt(&self, exempt: Networks) {
        self.registry().set_exempt(exempt);
    }

    /// One change; what became of it.
    pub fn apply_one(&self, change: &Change<'_>, now: Now) -> Outcome {
        let mut became = Outcome::Stale;
        self.apply([change], now, |_, outcome| became = outcome);
        became
    }

    /// The server listed at an address this very moment, ahead of the next view.
    pub fn listed(&self, address: Address) -> Option<Arc<Server>> {
        self.registry().listed(address).cloned()
    }

    /// All that is known of an address.
    pub fn address_state(&self, address: Address) -> Option<AddressState> {
        self.registry().address_state(address, self.clock.now())
    }

    /// Takes off what is not to be kept any more, wherever it came from.
    pub fn retain(&self, keep: impl Fn(Address) -> bool) {
        self.registry().retain(keep);
        self.changed.notify_one();
    }

    /// Who this node is among many.
    pub fn set_node(&self, node: u8) {
        self.registry().set_node(node);
    }

    /// The time that all nodes share.
    pub fn set_time(&self, time: SharedTime) {
        self.registry().set_time(time, self.clock.now());
        self.changed.notify_one();
    }

    /// What the clock is behind that time: see [`Registry::behind_ms`].
    pub fn behind_ms(&self, now: Now) -> Option<i64> {
        self.registry().behind_ms(now)
    }

    /// What can be told of some addresses to other nodes, in their order, under one lock.
    pub fn known(&self, addresses: impl IntoIterator<Item = Address>, now: Now) -> Vec<Option<LocalState>> {
        let registry = self.registry();
        addresses.into_iter().map(|address| registry.known(address, now)).collect()
    }

    /// The removals since then that this node has to tell others of.
    pub fn own_removals(&self, since_ms: u64) -> Vec<Address> {
        self.registry().own_removals(since_ms, self.clock.now()).collect()
    }

    /// The servers whose turn it is to be asked, at most `most`.
    pub fn due(&self, now: Now, most: usize, out: &mut Vec<Due>) {
        self.registry().due(now, most, out);
    }

    /// When the lives of listed servers end, this very moment: see [`Registry::lives`].
    pub fn lives(&self, from: usize, most: usize, now: Now, out: &mut Vec<Life>) -> Option<usize> {
        self.registry().lives(from, most, now, out)
    }

    /// How many slots there are to ask for lives.
    pub fn slots(&self) -> usize {
        self.registry().slots()
    }

    /// The newest published view.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The newest view as a renderer shows it, or a slightly older one: rendering one list takes its share of a core at
    /// the most, however many ask and however fast the list changes.
    pub fn list(&self, renderer: &Arc<dyn Renderer>) -> Arc<Rendered> {
        let cell = self.list_cell(renderer);
        let view = self.view();
        // Whoever finds somebody at work takes what was there before, if there is something.
        let mut kept = match cell.kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => match cell.last.load_full() {
                Some(last) => return last,
                None => cell.kept.lock().unwrap_or_else(PoisonError::into_inner),
            },
        };
        if let Some(last) = cell.last.load_full()
            && kept.is_good(view.serial, Instant::now())
            && !renderer.is_stale()
        {
            return last;
        }
        let started = Instant::now();
        let rendered = Arc::new(Rendered::new(renderer.render(&view)));
        *kept = Kept::new(view.serial, started, Instant::now());
        cell.last.store(Some(rendered.clone()));
        rendered
    }

    fn list_cell(&self, renderer: &Arc<dyn Renderer>) -> Arc<ListCell> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = match lists.iter().position(|(known, _)| Arc::ptr_eq(known, renderer)) {
            Some(at) => lists.remove(at).1,
            None => Arc::default(),
        };
        if lists.len() >= LISTS_MAX {
            lists.remove(0);
        }
        lists.push((renderer.clone(), cell.clone()));
        cell
    }

    /// Batches of deltas from now on. Take this first and [`Hub::view`] second, and no delta is missed.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Batch>> {
        self.batches.subscribe()
    }

    /// Ends lives that are over and publishes what changed. The hub's thread does this by itself.
    pub fn publish(&self, now: Now) {
        while self.registry().expire(now, EXPIRE_MOST) {}
        let mut publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dirty = Vec::new();
        self.registry().drain(&mut dirty);
        if let Some((view, batch)) = publisher.publish(&mut dirty, now) {
            let view = Arc::new(view);
            self.view.store(view);
            let _ = self.batches.send(Arc::new(batch)); // fails when nobody listens
        }
    }

    /// Starts the thread that publishes until [`Hub::stop`].
    pub fn start(self: &Arc<Hub>) -> std::io::Result<JoinHandle<()>> {
        let hub = self.clone();
        std::thread::Builder::new().name("hub".into()).spawn(move || hub.run())
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _registry = self.registry(); // so that the thread is either waiting or will look again
        self.changed.notify_all();
    }

    fn run(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            let started = Instant::now();
            self.publish(self.clock.now());
            // Rest for as long as keeps the share; changes gather meanwhile.
            let rest = PACE_MIN.max(started.elapsed() * (PACE_SHARE - 1));
            self.wait(rest, false);
            self.wait(EXPIRE_EVERY.saturating_sub(rest), true);
        }
    }

    /// Waits for the time to pass or the program to stop, or, if asked, for a change.
    fn wait(&self, time: Duration, for_change: bool) {
        let go_on =
            |registry: &mut Registry| !(self.stopping.load(Ordering::Relaxed) || for_change && registry.is_dirty());
        let waited = self.changed.wait_timeout_while(self.registry(), time, go_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// A panic of one thread in here would be a bug, but must not end the service of all others.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Announce, Facts, Game, Proof};
    use crate::registry::view::Delta;
    use std::sync::mpsc;

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
        Arc::new(Hub::new(Settings { servers_max: 100, servers_per_ip_max: 100, ask_every_ms: 30_000, misses_max: 3 }))
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
    fn the_time_of_day_follows_forwards_at_once_and_backwards_slowly() {
        let clock = Clock::new();
        let t = clock.offset_ms.load(Ordering::Relaxed);
        let at = |mono_ms: i64, wall_ms: i64| clock.at(mono_ms, t + wall_ms).unix_ms as i64 - t;
        assert_eq!(at(1_000, 1_000), 1_000);
        assert_eq!(at(2_000, 9_000), 9_000, "set forwards by 7 s");
        assert_eq!(at(3_000, 7_000), 9_900, "set back by 3 s: time goes on, a tenth slower");
        let mut before = 9_900;
        for mono_ms in (3_100..60_000).step_by(100) {
            let now = at(mono_ms, mono_ms + 4_000);
            assert!((before..=before + 100).contains(&now), "{before} then {now}");
            before = now;
        }
        assert_eq!(before, 59_900 + 4_000, "and has caught up");
        assert_eq!(at(60_000, -500_000), -500_000, "far apart: the system is right");
    }

    #[test]
    fn an_expensive_list_is_good_for_19_times_as_long_as_it_took() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let kept = Kept::new(1, at(0), at(50));
        assert!(kept.is_good(2, at(50 + 949)));
        assert!(!kept.is_good(2, at(50 + 950)));
        assert!(kept.is_good(1, at(1_000_000)), "nothing has changed");
        let expensive = Kept::new(1, at(0), at(60_000));
        assert!(expensive.is_good(2, at(60_000 + 1_999)) && !expensive.is_good(2, at(60_000 + 2_000)));
        let cheap = Kept::new(1, at(0), at(0));
        assert!(!cheap.is_good(2, at(0)));
    }

    /// Says when it begins to render, and goes on when it may.
    struct Slow {
        begins: mpsc::Sender<u64>,
        may_go_on: Mutex<mpsc::Receiver<()>>,
    }

    fn slow() -> (Arc<dyn Renderer>, mpsc::Receiver<u64>, mpsc::Sender<()>) {
        let ((begins, begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
        (Arc::new(Slow { begins, may_go_on: Mutex::new(may_go_on) }), begun, go_on)
    }

    impl Renderer for Slow {
        fn render(&self, view: &View) -> Vec<u8> {
            self.begins.send(view.serial).unwrap();
            self.may_go_on.lock().unwrap().recv().unwrap();
            view.serial.to_string().into_bytes()
        }
    }

    #[test]
    fn a_slow_list_holds_up_neither_views_nor_those_who_take_the_last_one() {
        let hub = hub();
        let (renderer, begun, go_on) = slow();
        let now = hub.clock.now();
        let next_view = |port| {
            hub.apply_one(&announce(now, port), now);
            hub.publish(now);
            assert_eq!(hub.view().serial, u64::from(port), "views do not wait for lists");
        };
        let shown = || String::from_utf8(hub.list(&renderer).body.to_vec()).unwrap();
        next_view(1);
        go_on.send(()).unwrap();
        assert_eq!(shown(), "1");
        assert_eq!(begun.try_recv(), Ok(1));
        assert_eq!(shown(), "1");
        assert!(begun.try_recv().is_err(), "once per view");
        hub.list_cell(&renderer).kept.lock().unwrap().rest = Duration::ZERO; // as if it had been cheap
        next_view(2);
        std::thread::scope(|scope| {
            let slow = scope.spawn(shown);
            assert_eq!(begun.recv(), Ok(2));
            next_view(3);
            assert_eq!(shown(), "1", "somebody is at work: the last one does");
            go_on.send(()).unwrap();
            assert_eq!(slow.join().unwrap(), "2");
        });
        assert!(begun.try_recv().is_err());
    }

    #[test]
    fn the_number_of_kept_lists_is_bounded() {
        let hub = hub();
        for _ in 0..=LISTS_MAX {
            hub.list_cell(&slow().0);
            assert!(hub.lists.lock().unwrap().len() <= LISTS_MAX);
        }
    }

    #[test]
    fn the_thread_publishes_by_itself_and_stops_when_told() {
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

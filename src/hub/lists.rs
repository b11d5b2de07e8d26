//! The cache of rendered lists: one for all listeners. A list is rendered once per view, however many clients ask for it. One
//! that is expensive to render is kept for longer, so that rendering takes no more than its share of a core.
//!
//! Only one thread renders a list at a time. Clients that come meanwhile get the list as it was before; they wait only where
//! there is none, or if it is old because there was no recent request.
//!
//! A common list that takes long is [prepared](Lists::prepare) by a thread beside the clients, while it is asked for: none of them
//! waits for it. Some lists are kept ready even if nobody asks, at a slower pace, for the first who does.
//!
//! Lists that many clients share have threads of their own. Lists with a client's own parameters wait in a [queue](super::queue),
//! and their time is charged to that client.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::Instant; // in a simulation, the simulated time

use super::held::Held;
use super::queue::{Queue, Refusal, SharedAccounts, on_a_thread};
use super::{PACE_MIN, PACE_SHARE};
use crate::registry::view::{Rendered, Renderer, View};

/// Upper bound on the age of an expensive list.
const STALE_MAX: Duration = Duration::from_secs(2);
/// A list that takes longer than this is prepared beside the clients. A client can wait for one that takes less.
const QUICK: Duration = Duration::from_millis(4);
/// For how long a list is prepared after a client has asked for it.
const ASKED_FOR: Duration = Duration::from_secs(30);
/// Preparing a list that nobody asks for may use this fraction (1/N) of a core, or more if the list would be older than this.
const KEPT_SHARE: u32 = 100;
const KEPT_STALE_MAX: Duration = Duration::from_secs(5);
/// Lists of more servers are not kept ready, nor are large ones: they would take most of the memory.
const KEPT_SERVERS_MAX: usize = 250_000;
/// For how long nothing is kept ready after memory was short.
const SPARED_FOR: Duration = Duration::from_secs(60);
/// How long a group's view is kept after that, for the next request.
const GROUP_KEPT: Duration = Duration::from_millis(500);
/// Upper bound on cached lists; a further one replaces the least recently used one. It is more than all renderers that are
/// kept for clients' own filters, so that those cannot replace a list that takes long to render.
const LISTS_MAX: usize = 256;

/// How long a [large](Rendered::is_large) list is kept without a request. Smaller ones stay: the next client gets them at once.
const UNUSED_KEPT: Duration = Duration::from_secs(30);

pub struct Lists {
    cells: Mutex<Cells>,
    groups: Mutex<Vec<Group>>,
    /// Renderers of lists that are kept ready.
    kept: Mutex<Vec<Arc<dyn Renderer>>>,
    /// Whether a thread prepares lists.
    prepares: AtomicBool,
    /// When lists were last taken out of the cache because memory was short.
    spared_at: Mutex<Option<Instant>>,
    started: Instant,
    /// How many common lists are rendered at a time: their number is bounded, and nobody else's work delays them.
    common: Arc<Semaphore>,
    /// Lists with clients' own parameters, and other work that takes long.
    pub queue: Arc<Queue>,
    pub held: Arc<Held>,
}

type Cells = Vec<(Arc<dyn Renderer>, Arc<Cell>)>;

impl Lists {
    /// Both kinds of lists together have about one rendering per core.
    pub fn new(accounts: SharedAccounts) -> Lists {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let common = (cores / 2).max(1);
        Lists {
            cells: Mutex::default(),
            groups: Mutex::default(),
            kept: Mutex::default(),
            prepares: AtomicBool::new(false),
            spared_at: Mutex::default(),
            started: Instant::now(),
            common: Arc::new(Semaphore::new(common)),
            queue: Queue::new(cores.saturating_sub(common), accounts),
            held: Arc::default(),
        }
    }
}

/// Lists that share work for each view: see [`Renderer::group`].
struct Group {
    number: usize,
    /// What they are rendered from.
    view: Arc<View>,
    /// When a newer view may be taken.
    until: Instant,
    /// Whether the first list of this view is rendered, so that it is known what the work takes.
    is_measured: bool,
}

/// A list's place in the cache.
#[derive(Default)]
struct Cell {
    last: ArcSwapOption<Last>,
    /// Held by the thread or task that renders.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Whether it was asked for since [`Cell::forget_unused`] looked last.
    is_used: AtomicBool,
    /// When that first found that it was not.
    unused_since: Mutex<Option<Instant>>,
    /// When a client last asked for it, in milliseconds since the start; 0: nobody has.
    asked_at_ms: AtomicU64,
    /// Whether the last list is large: one that nobody asks for is not rendered then.
    is_large: AtomicBool,
}

/// A list as it was last rendered.
struct Last {
    list: Arc<Rendered>,
    fresh: Freshness,
}

enum Found {
    List(Arc<Rendered>),
    /// The caller has to render it.
    Turn(OwnedMutexGuard<()>),
    /// It is being rendered, and there is no recent one to send meanwhile.
    Wait,
}

impl Lists {
    /// The newest view as the renderer shows it, or a slightly older one, for a client at this address.
    pub async fn get(
        &self,
        renderer: &Arc<dyn Renderer>,
        ip: IpAddr,
        view: impl Fn() -> Arc<View>,
    ) -> Result<Arc<Rendered>, Refusal> {
        let cell = self.asked(renderer);
        let view = || self.view_for(&**renderer, view());
        let turn = loop {
            match cell.find(&**renderer, &view(), self.prepares.load(Ordering::Relaxed)) {
                Found::List(list) => return Ok(list),
                Found::Turn(turn) => break turn,
                Found::Wait => drop(cell.turn.lock().await),
            }
        };
        let (rendered_by, view, held) = (renderer.clone(), view(), self.held.clone());
        let (serial, is_common, started) = (view.serial, renderer.is_common(), Instant::now());
        let list = self.work(is_common, ip, move || cell.render(&*rendered_by, &view, &held, turn)).await;
        self.rest(&**renderer, serial, started);
        list
    }

    /// The view that a renderer shows: the newest, or that of its group.
    fn view_for(&self, renderer: &dyn Renderer, newest: Arc<View>) -> Arc<View> {
        let Some(number) = renderer.group() else { return newest };
        let (mut groups, now) = (self.groups(), Instant::now());
        let Some(group) = groups.iter_mut().find(|group| group.number == number) else {
            groups.push(Group { number, view: newest.clone(), until: now + STALE_MAX, is_measured: false });
            return newest;
        };
        if now >= group.until && group.view.serial != newest.serial {
            *group = Group { number, view: newest, until: now + STALE_MAX, is_measured: false };
        }
        group.view.clone()
    }

    /// The first list of a group's view took this long, with the work that all share: the view is good for a while.
    fn rest(&self, renderer: &dyn Renderer, serial: u64, started: Instant) {
        let Some(number) = renderer.group() else { return };
        let (mut groups, now) = (self.groups(), Instant::now());
        let first = groups.iter_mut().find(|group| group.number == number && group.view.serial == serial);
        if let Some(group) = first.filter(|group| !group.is_measured) {
            (group.until, group.is_measured) = (now + Freshness::new(serial, started, now).rest, true);
        }
    }

    /// Frees the views of groups that nobody has asked for since they may be replaced.
    pub fn forget_groups(&self) {
        let now = Instant::now();
        self.groups().retain(|group| now < group.until + GROUP_KEPT);
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees large lists that nobody asks for any more. Their readers keep them until they have them.
    pub fn forget_unused(&self) {
        let now = Instant::now();
        self.cells().iter().for_each(|(_, cell)| cell.forget_unused(now));
    }

    /// Does work that takes long, on a thread of its own. Once begun, it is done to its end, even if the client is gone: others
    /// may be waiting. What is not common is charged to the client, and refused when it is too much.
    pub async fn work<T: Send + 'static>(
        &self,
        is_common: bool,
        ip: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        if !is_common {
            return if self.held.is_over() {
                self.queue.refuse(Refusal::Busy)
            } else {
                self.queue.work(ip, work).await
            };
        }
        let permit = self.common.clone().acquire_owned().await;
        let work = move || {
            let done = work();
            drop(permit);
            done
        };
        on_a_thread(work).await
    }

    /// The same for a thread that may block. It takes no place: there are few such threads, and each renders one list at a time.
    pub fn get_blocking(&self, renderer: &Arc<dyn Renderer>, view: impl Fn() -> Arc<View>) -> Arc<Rendered> {
        let cell = self.asked(renderer);
        let view = || self.view_for(&**renderer, view());
        loop {
            match cell.find(&**renderer, &view(), self.prepares.load(Ordering::Relaxed)) {
                Found::List(list) => return list,
                Found::Turn(turn) => {
                    let (view, started) = (view(), Instant::now());
                    let list = cell.render(&**renderer, &view, &self.held, turn);
                    self.rest(&**renderer, view.serial, started);
                    return list;
                }
                Found::Wait => drop(cell.turn.blocking_lock()),
            }
        }
    }

    /// Sets which lists are kept ready.
    pub fn keep(&self, renderers: Vec<Arc<dyn Renderer>>) {
        *self.kept() = renderers;
    }

    /// Lists that take long are prepared from now on.
    pub fn begin_to_prepare(&self) {
        self.prepares.store(true, Ordering::Relaxed);
    }

    /// Renders the list that has waited for longest, if one is due. `finish` completes a list before clients get it: it is called
    /// with the list before it, if clients have asked for that. Returns when to look again, if nothing is due now.
    pub fn prepare(
        &self,
        newest: &Arc<View>,
        finish: &dyn Fn(&Arc<Rendered>, Option<&Rendered>),
    ) -> Result<(), Option<Instant>> {
        let now = Instant::now();
        let kept = self.kept().clone();
        let is_kept = |renderer: &Arc<dyn Renderer>| kept.iter().any(|kept| Arc::ptr_eq(kept, renderer));
        let spared_at = *self.spared_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_short = spared_at.is_some_and(|at| now.saturating_duration_since(at) < SPARED_FOR);
        let may_keep = newest.servers.len() <= KEPT_SERVERS_MAX && !self.held.is_high() && !is_short;
        if may_keep {
            kept.iter().for_each(|renderer| drop(self.cell(renderer)));
        }
        let due = |(renderer, cell): &(Arc<dyn Renderer>, Arc<Cell>)| {
            let is_asked_for = self.is_asked_for(cell, now);
            let is_wanted = renderer.is_common() && (is_asked_for || may_keep && is_kept(renderer));
            let at = cell.due(&**renderer, newest, is_asked_for).filter(|_| is_wanted)?;
            Some((at.unwrap_or(self.started), is_asked_for))
        };
        let all: Vec<_> = self.cells().clone();
        let next = all.iter().filter_map(|one| Some((due(one)?, one))).min_by_key(|((at, _), _)| *at);
        let Some(((at, is_asked_for), (renderer, cell))) = next else { return Err(None) };
        if at > now {
            return Err(Some(at));
        }
        // If a client renders it meanwhile, that is as good.
        let Ok(turn) = cell.turn.clone().try_lock_owned() else { return Err(Some(now + PACE_MIN)) };
        let view = self.view_for(&**renderer, newest.clone());
        let finish = |list: &Arc<Rendered>, before: Option<&Rendered>| finish(list, before.filter(|_| is_asked_for));
        cell.render_and(&**renderer, &view, &self.held, turn, &finish);
        self.rest(&**renderer, view.serial, now);
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Arc<dyn Renderer>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a list that a client asks for.
    fn asked(&self, renderer: &Arc<dyn Renderer>) -> Arc<Cell> {
        let cell = self.cell(renderer);
        cell.asked_at_ms.store(self.started.elapsed().as_millis().max(1) as u64, Ordering::Relaxed);
        cell
    }

    fn is_asked_for(&self, cell: &Cell, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.started + Duration::from_millis(cell.asked_at_ms()));
        cell.asked_at_ms() > 0 && since < ASKED_FOR
    }

    /// Takes lists out of the cache that can be spared: those with clients' own parameters, and those that are kept ready though
    /// nobody asks for them. Their memory is free once their readers have them.
    pub fn spare(&self) {
        let now = Instant::now();
        *self.spared_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.cells().retain(|(renderer, cell)| renderer.is_common() && self.is_asked_for(cell, now));
    }

    fn cells(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, renderer: &Arc<dyn Renderer>) -> Arc<Cell> {
        let mut cells = self.cells();
        let cell = match cells.iter().position(|(known, _)| Arc::ptr_eq(known, renderer)) {
            Some(at) => cells.remove(at).1,
            None => {
                // A list whose renderer is held only by the cache cannot be requested again. Without this, clients that send ever
                // new filters would replace the common lists.
                cells.retain(|(known, _)| Arc::strong_count(known) > 1);
                // Nor is an old one of use.
                let now = Instant::now();
                cells.iter().filter(|(known, _)| !known.is_common()).for_each(|(_, cell)| cell.forget_old(now));
                Arc::default()
            }
        };
        if cells.len() >= LISTS_MAX {
            cells.remove(0);
        }
        cells.push((renderer.clone(), cell.clone()));
        cell
    }
}

impl Cell {
    fn find(&self, renderer: &dyn Renderer, view: &View, is_prepared: bool) -> Found {
        self.is_used.store(true, Ordering::Relaxed);
        let version = renderer.version(view);
        let good = || {
            let (last, now) = (self.last.load_full()?, Instant::now());
            let is_good = last.fresh.is_good(version, now) && !renderer.is_stale();
            let is_good = is_good || is_prepared && renderer.is_common() && last.fresh.is_prepared(now);
            is_good.then(|| last.list.clone())
        };
        if let Some(list) = good() {
            return Found::List(list);
        }
        match self.turn.clone().try_lock_owned() {
            // It may have been rendered in between.
            Ok(turn) => good().map_or(Found::Turn(turn), Found::List),
            Err(_) => {
                let last = self.last.load_full().filter(|last| last.fresh.is_recent(Instant::now()));
                last.map_or(Found::Wait, |last| Found::List(last.list.clone()))
            }
        }
    }

    /// Frees a large list if nobody has asked for it for a while.
    fn forget_unused(&self, now: Instant) {
        let mut since = self.unused_since.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_used.swap(false, Ordering::Relaxed) {
            *since = None;
            return;
        }
        let since = *since.get_or_insert(now);
        let is_large = |last: &Last| last.list.is_large();
        if now.saturating_duration_since(since) >= UNUSED_KEPT && self.last.load().as_deref().is_some_and(is_large) {
            self.last.store(None);
        }
    }

    fn asked_at_ms(&self) -> u64 {
        self.asked_at_ms.load(Ordering::Relaxed)
    }

    /// When to prepare the list, if it is another one in this view: None within for one that was never rendered.
    fn due(&self, renderer: &dyn Renderer, view: &View, is_asked_for: bool) -> Option<Option<Instant>> {
        if !is_asked_for && self.is_large.load(Ordering::Relaxed) {
            return None;
        }
        let Some(last) = self.last.load_full() else { return Some(None) };
        let Freshness { version, at, took, .. } = last.fresh;
        if took <= QUICK || version == renderer.version(view) && !renderer.is_stale() {
            return None;
        }
        let kept = (took * (KEPT_SHARE - 1)).min(KEPT_STALE_MAX);
        Some(Some(at + if is_asked_for { last.fresh.rest } else { kept }))
    }

    /// Frees the list if it is too old to be sent.
    fn forget_old(&self, now: Instant) {
        if self.last.load().as_ref().is_some_and(|last| !last.fresh.is_recent(now)) {
            self.last.store(None);
        }
    }

    fn render(
        &self,
        renderer: &dyn Renderer,
        view: &View,
        held: &Arc<Held>,
        turn: OwnedMutexGuard<()>,
    ) -> Arc<Rendered> {
        self.render_and(renderer, view, held, turn, &|_, _| ())
    }

    fn render_and(
        &self,
        renderer: &dyn Renderer,
        view: &View,
        held: &Arc<Held>,
        turn: OwnedMutexGuard<()>,
        finish: &dyn Fn(&Arc<Rendered>, Option<&Rendered>),
    ) -> Arc<Rendered> {
        let started = Instant::now();
        let (body, tag) = renderer.render_tagged(view);
        let version = renderer.version(view);
        let list = Arc::new(Rendered::of(view, held.count(body), tag).with_version(version));
        self.is_large.store(list.is_large(), Ordering::Relaxed);
        let before = self.last.load_full();
        finish(&list, before.as_ref().map(|before| &*before.list));
        let fresh = Freshness::new(version, started, Instant::now());
        self.last.store(Some(Arc::new(Last { list: list.clone(), fresh })));
        drop(turn);
        list
    }
}

/// How long a list may be used.
struct Freshness {
    /// See [`Renderer::version`].
    version: u64,
    at: Instant,
    took: Duration,
    rest: Duration,
    /// How old it may be while the next one is being rendered.
    recent: Duration,
}

impl Freshness {
    /// Rendered from one time to another: the longer that took, the longer it is good enough. One that keeps its share even
    /// when every view is rendered is good only for its view: a client that was told of a change may look for it at once.
    fn new(version: u64, from: Instant, to: Instant) -> Freshness {
        let took = to - from;
        let rest = if took * PACE_SHARE <= PACE_MIN { Duration::ZERO } else { took * (PACE_SHARE - 1) };
        let recent = if took > QUICK { KEPT_STALE_MAX } else { STALE_MAX };
        let recent = (recent + took) * 2;
        Freshness { version, at: to, took, rest: rest.min(STALE_MAX), recent }
    }

    fn is_good(&self, version: u64, now: Instant) -> bool {
        self.version == version || now.saturating_duration_since(self.at) < self.rest
    }

    /// Whether it is good enough until the next one is prepared.
    fn is_prepared(&self, now: Instant) -> bool {
        self.took > QUICK && self.is_recent(now)
    }

    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_large_list_that_nobody_asks_for_is_freed_and_a_small_one_stays() {
        struct Bytes(usize);
        impl Renderer for Bytes {
            fn render(&self, _: &View) -> Vec<u8> {
                vec![0; self.0]
            }
        }
        let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
        let small: Arc<dyn Renderer> = Arc::new(Bytes(1_000));
        let large: Arc<dyn Renderer> = Arc::new(Bytes(Rendered::LARGE_BYTES));
        let read = |renderer| lists.get_blocking(renderer, || views.newest());
        let start = Instant::now();
        let forget = |after: Duration| {
            lists.cells().iter().for_each(|(_, cell)| cell.forget_unused(start + after));
            lists.held.bytes()
        };
        let both = 1_000 + Rendered::LARGE_BYTES;
        drop((read(&small), read(&large)));
        assert_eq!(forget(Duration::ZERO), both, "just asked for");
        assert_eq!(forget(UNUSED_KEPT), both, "the first look that finds it unused");
        assert_eq!(forget(UNUSED_KEPT * 2 - Duration::from_millis(1)), both);
        let reader = read(&large);
        assert_eq!(forget(UNUSED_KEPT * 2), both, "asked for again");
        assert_eq!(forget(UNUSED_KEPT * 3), both);
        assert_eq!(forget(UNUSED_KEPT * 4), both, "a slow reader has it");
        drop(reader);
        assert_eq!(lists.held.bytes(), 1_000);
        assert_eq!(read(&large).body.len(), Rendered::LARGE_BYTES, "rendered again");
    }

    #[test]
    fn an_expensive_list_is_good_for_19_times_as_long_as_it_took() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let fresh = Freshness::new(1, at(0), at(50));
        assert!(fresh.is_good(2, at(50 + 949)));
        assert!(!fresh.is_good(2, at(50 + 950)));
        assert!(fresh.is_good(1, at(1_000_000)), "nothing has changed");
        let expensive = Freshness::new(1, at(0), at(60_000));
        assert!(expensive.is_good(2, at(60_000 + 1_999)) && !expensive.is_good(2, at(60_000 + 2_000)));
        let cheap = Freshness::new(1, at(0), at(1));
        assert!(!cheap.is_good(2, at(1)) && cheap.is_good(1, at(1)), "views come at intervals of 20 times as long");
        assert!(Freshness::new(1, at(0), at(2)).is_good(2, at(2)));
    }

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// A renderer that reports when it begins, and continues when the test allows it.
    struct Slow {
        begins: mpsc::Sender<u64>,
        may_go_on: Mutex<mpsc::Receiver<()>>,
        is_stale: AtomicBool,
        is_common: bool,
    }

    fn slow() -> (Arc<Slow>, mpsc::Receiver<u64>, mpsc::Sender<()>) {
        slow_and(true)
    }

    fn slow_and(is_common: bool) -> (Arc<Slow>, mpsc::Receiver<u64>, mpsc::Sender<()>) {
        let ((begins, begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
        let (may_go_on, is_stale) = (Mutex::new(may_go_on), AtomicBool::new(false));
        (Arc::new(Slow { begins, may_go_on, is_stale, is_common }), begun, go_on)
    }

    impl Renderer for Slow {
        fn render(&self, view: &View) -> Vec<u8> {
            self.begins.send(view.serial).unwrap();
            self.may_go_on.lock().unwrap().recv().unwrap();
            view.serial.to_string().into_bytes()
        }

        fn is_stale(&self) -> bool {
            self.is_stale.load(Ordering::Relaxed)
        }

        fn is_common(&self) -> bool {
            self.is_common
        }
    }

    /// Views without servers, with increasing serials.
    #[derive(Default)]
    struct Views(AtomicU64);

    impl Views {
        fn next(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn newest(&self) -> Arc<View> {
            Arc::new(View::new(self.0.load(Ordering::Relaxed), 0, Vec::new()))
        }
    }

    fn text(list: &Rendered) -> String {
        String::from_utf8(list.body.to_vec()).unwrap()
    }

    #[test]
    fn clients_get_the_last_list_while_a_slow_one_is_rendered() {
        let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
        let (slow, begun, go_on) = slow();
        let renderer: Arc<dyn Renderer> = slow.clone();
        let shown = || text(&lists.get_blocking(&renderer, || views.newest()));
        views.next();
        go_on.send(()).unwrap();
        assert_eq!(shown(), "1");
        assert_eq!(begun.try_recv(), Ok(1));
        assert_eq!(shown(), "1");
        assert!(begun.try_recv().is_err(), "once per view");
        slow.is_stale.store(true, Ordering::Relaxed); // so that it is rendered anew, however long it took
        views.next();
        std::thread::scope(|scope| {
            let slow = scope.spawn(shown);
            assert_eq!(begun.recv(), Ok(2));
            views.next();
            assert_eq!(shown(), "1", "another thread renders: the last one does");
            go_on.send(()).unwrap();
            assert_eq!(slow.join().unwrap(), "2");
        });
        assert!(begun.try_recv().is_err());
    }

    #[test]
    fn an_old_list_is_not_sent_while_the_next_one_is_rendered() {
        let (cell, slow) = (Cell::default(), slow().0);
        let of = |serial| View::new(serial, 0, Vec::new());
        let _turn = cell.turn.clone().try_lock_owned().unwrap();
        let now = Instant::now();
        let rendered = |before: Duration| {
            let at = now.checked_sub(before).unwrap();
            let fresh = Freshness::new(1, at, at);
            cell.last.store(Some(Arc::new(Last { list: Arc::new(Rendered::new("old")), fresh })));
        };
        rendered(Duration::from_secs(1));
        assert!(matches!(cell.find(&*slow, &of(2), false), Found::List(_)));
        rendered(Duration::from_secs(10));
        assert!(matches!(cell.find(&*slow, &of(1), false), Found::List(_)), "nothing has changed");
        assert!(matches!(cell.find(&*slow, &of(2), false), Found::Wait));
    }

    #[test]
    fn the_first_list_is_rendered_once_for_all_waiting_clients() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let (lists, views) = (Arc::new(Lists::new(SharedAccounts::default())), Arc::new(Views::default()));
        let (slow, begun, go_on) = slow();
        let renderer: Arc<dyn Renderer> = slow;
        let ask = || {
            let (lists, views, renderer) = (lists.clone(), views.clone(), renderer.clone());
            runtime.spawn(async move { text(&lists.get(&renderer, CLIENT, || views.newest()).await.unwrap()) })
        };
        let gone = ask();
        assert_eq!(begun.recv(), Ok(0));
        let waiting: Vec<_> = (0..20).map(|_| ask()).collect();
        // Both workers are free although nothing is rendered yet, and the client who asked first may go.
        runtime.block_on(async { tokio::spawn(async {}).await.unwrap() });
        gone.abort();
        go_on.send(()).unwrap();
        for one in waiting {
            assert_eq!(runtime.block_on(one).unwrap(), "0");
        }
        assert!(begun.try_recv().is_err());
        assert_eq!(text(&lists.get_blocking(&renderer, || views.newest())), "0", "and for other threads");
    }

    #[test]
    fn a_list_that_takes_long_is_prepared_beside_those_who_ask_for_it() {
        let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
        let (slow, begun, go_on) = slow();
        let renderer: Arc<dyn Renderer> = slow.clone();
        let shown = || text(&lists.get_blocking(&renderer, || views.newest()));
        let finished = Mutex::new(Vec::new());
        let finish = |list: &Arc<Rendered>, before: Option<&Rendered>| {
            finished.lock().unwrap().push((text(list), before.map(text)));
        };
        let prepare = || lists.prepare(&views.newest(), &finish);
        lists.begin_to_prepare();
        assert_eq!(prepare(), Err(None), "nobody has asked, and nothing is kept");
        lists.keep(vec![renderer.clone()]);
        go_on.send(()).unwrap();
        assert_eq!(prepare(), Ok(()), "before anybody asks");
        assert_eq!((begun.try_recv(), prepare()), (Ok(0), Err(None)), "once per view");
        // As if it had taken long, some time ago.
        let age = |took_ms: u64, before_s: u64| {
            let last = lists.cell(&renderer).last.load_full().unwrap();
            let at = Instant::now().checked_sub(Duration::from_secs(before_s)).unwrap();
            let fresh = Freshness::new(last.fresh.version, at.checked_sub(Duration::from_millis(took_ms)).unwrap(), at);
            lists.cell(&renderer).last.store(Some(Arc::new(Last { list: last.list.clone(), fresh })));
        };
        age(100, 0);
        views.next();
        assert!(matches!(prepare(), Err(Some(_))), "it rests");
        age(100, 3);
        assert!(matches!(prepare(), Err(Some(_))), "longer if nobody asks");
        assert_eq!(shown(), "0", "a client does not wait for the next one");
        go_on.send(()).unwrap();
        assert_eq!((prepare(), begun.try_recv()), (Ok(()), Ok(1)), "and it is prepared for the others");
        assert_eq!(*finished.lock().unwrap(), [("0".into(), None), ("1".into(), Some("0".into()))]);
        // A client can wait for one that is quick, and for one that is too old.
        for (took_ms, before_s, serial) in [(1, 3, 2), (100, 60, 3)] {
            age(took_ms, before_s);
            views.next();
            go_on.send(()).unwrap();
            assert_eq!((shown(), begun.try_recv()), (serial.to_string(), Ok(serial)));
        }
        // One that shows the same is not rendered again.
        lists.keep(Vec::new());
        age(100, 3);
        assert_eq!(prepare(), Err(None));
        lists.held.set_max(0);
        lists.keep(vec![renderer.clone()]);
        lists.cell(&renderer).asked_at_ms.store(0, Ordering::Relaxed);
        views.next();
        age(100, 60);
        assert_eq!(prepare(), Err(None), "there is no memory for lists that nobody asks for");
        lists.held.set_max(usize::MAX);
        lists.spare();
        assert!(lists.cells().is_empty(), "nobody has asked for it");
        assert_eq!(prepare(), Err(None), "memory was short just now");
    }

    /// Its lists share work with others; each says which view it was rendered from.
    struct OfGroup;

    impl Renderer for OfGroup {
        fn render(&self, view: &View) -> Vec<u8> {
            view.serial.to_string().into_bytes()
        }

        fn group(&self) -> Option<usize> {
            Some(1)
        }
    }

    #[test]
    fn lists_that_share_work_are_rendered_from_one_view_while_it_is_worth_it() {
        let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
        let shown = || text(&lists.get_blocking(&(Arc::new(OfGroup) as Arc<dyn Renderer>), || views.newest()));
        views.next();
        assert_eq!(shown(), "1");
        // The first one took long.
        lists.groups()[0].until = Instant::now() + Duration::from_secs(60);
        views.next();
        assert_eq!(shown(), "1", "another list of the same group");
        lists.forget_groups();
        assert_eq!(shown(), "1", "it is in use");
        lists.groups()[0].until = Instant::now();
        assert_eq!(shown(), "2");
        views.next();
        assert_eq!(shown(), "3", "it took no time");
        lists.groups()[0].until = Instant::now().checked_sub(GROUP_KEPT).unwrap();
        lists.forget_groups();
        assert!(lists.groups().is_empty());
    }

    #[test]
    fn lists_with_own_parameters_never_hold_up_a_common_one_and_are_refused_in_the_end() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let (lists, views) = (Arc::new(Lists::new(SharedAccounts::default())), Arc::new(Views::default()));
        let (own, begun, go_on) = slow_and(false);
        let ask = |renderer: Arc<dyn Renderer>| {
            let (lists, views) = (lists.clone(), views.clone());
            runtime.spawn(async move { lists.get(&renderer, CLIENT, || views.newest()).await.map(|list| text(&list)) })
        };
        // As many as can be rendered at a time, and one more that waits and whose client then goes.
        let places = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).max(1);
        let others: Vec<_> = (1..places).map(|_| slow_and(false)).collect();
        let working: Vec<_> = others.iter().map(|(other, ..)| ask(other.clone())).chain([ask(own)]).collect();
        assert_eq!(begun.recv(), Ok(0));
        others.iter().for_each(|(_, begun, _)| assert_eq!(begun.recv(), Ok(0)));
        let (gone, gone_begun, _) = slow_and(false);
        let going = ask(gone);
        while lists.queue.waiting() == 0 {
            std::thread::yield_now();
        }
        let (common, _common_begun, common_go_on) = slow();
        common_go_on.send(()).unwrap();
        assert_eq!(runtime.block_on(ask(common)).unwrap(), Ok("0".into()), "while all places are taken");
        going.abort();
        assert!(runtime.block_on(going).is_err());
        go_on.send(()).unwrap();
        others.iter().for_each(|(_, _, go_on)| go_on.send(()).unwrap());
        for one in working {
            assert_eq!(runtime.block_on(one).unwrap(), Ok("0".into()));
        }
        assert!(gone_begun.try_recv().is_err(), "work for a client who has gone is not begun");
        // When too much is held by slow readers, only common lists are rendered.
        lists.held.set_max(0);
        let (common, _common_begun, common_go_on) = slow();
        common_go_on.send(()).unwrap();
        assert!(runtime.block_on(ask(common.clone())).unwrap().is_ok() && lists.held.is_over());
        assert_eq!(runtime.block_on(ask(slow_and(false).0)).unwrap(), Err(Refusal::Busy));
        assert_eq!(lists.cells().len(), 2);
        lists.spare();
        assert_eq!(lists.cells().len(), 1);
    }

    #[test]
    fn lists_of_renderers_that_are_gone_make_room_first() {
        let lists = Lists::new(SharedAccounts::default());
        let popular: Arc<dyn Renderer> = slow().0;
        let cell = lists.cell(&popular);
        for _ in 0..LISTS_MAX * 2 {
            let renderer: Arc<dyn Renderer> = slow().0;
            lists.cell(&renderer);
        }
        assert!(lists.cells.lock().unwrap().len() <= 3);
        assert!(Arc::ptr_eq(&cell, &lists.cell(&popular)));
        let kept: Vec<Arc<dyn Renderer>> = (0..LISTS_MAX * 2).map(|_| slow().0 as Arc<dyn Renderer>).collect();
        kept.iter().for_each(|renderer| drop(lists.cell(renderer)));
        assert_eq!(lists.cells.lock().unwrap().len(), LISTS_MAX, "and their number is bounded");
    }
}

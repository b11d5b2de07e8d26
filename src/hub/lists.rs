//! The cache of rendered lists: one for all listeners. A list is rendered once per view, however many clients ask for it. One
//! that is expensive to render is kept for longer, so that rendering takes no more than its share of a core.
//!
//! Only one thread renders a list at a time. Clients that come meanwhile get the list as it was before; they wait only where
//! there is none, or if it is old because there was no recent request.
//!
//! Lists that many clients share have threads of their own. Lists with a client's own parameters wait in a [queue](super::queue),
//! and their time is charged to that client.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
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
        let cell = self.cell(renderer);
        let view = || self.view_for(&**renderer, view());
        let turn = loop {
            match cell.find(&**renderer, view().serial) {
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
        let cell = self.cell(renderer);
        let view = || self.view_for(&**renderer, view());
        loop {
            match cell.find(&**renderer, view().serial) {
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

    /// Takes lists with clients' own parameters out of the cache. Their memory is free once their readers have them.
    pub fn forget_own(&self) {
        self.cells().retain(|(renderer, _)| renderer.is_common());
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
    fn find(&self, renderer: &dyn Renderer, serial: u64) -> Found {
        self.is_used.store(true, Ordering::Relaxed);
        let good = || {
            let last = self.last.load_full()?;
            let is_good = last.fresh.is_good(serial, Instant::now()) && !renderer.is_stale();
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
        let started = Instant::now();
        let (body, tag) = renderer.render_tagged(view);
        let list = Arc::new(Rendered::of(view, held.count(body), tag));
        let fresh = Freshness::new(view.serial, started, Instant::now());
        self.last.store(Some(Arc::new(Last { list: list.clone(), fresh })));
        drop(turn);
        list
    }
}

/// How long a list may be used.
struct Freshness {
    serial: u64,
    at: Instant,
    rest: Duration,
    /// How old it may be while the next one is being rendered.
    recent: Duration,
}

impl Freshness {
    /// Rendered from one time to another: the longer that took, the longer it is good enough. One that keeps its share even
    /// when every view is rendered is good only for its view: a client that was told of a change may look for it at once.
    fn new(serial: u64, from: Instant, to: Instant) -> Freshness {
        let took = to - from;
        let rest = if took * PACE_SHARE <= PACE_MIN { Duration::ZERO } else { took * (PACE_SHARE - 1) };
        Freshness { serial, at: to, rest: rest.min(STALE_MAX), recent: (STALE_MAX + took) * 2 }
    }

    fn is_good(&self, serial: u64, now: Instant) -> bool {
        self.serial == serial || now.saturating_duration_since(self.at) < self.rest
    }

    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
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
        let _turn = cell.turn.clone().try_lock_owned().unwrap();
        let now = Instant::now();
        let rendered = |before: Duration| {
            let at = now.checked_sub(before).unwrap();
            let fresh = Freshness::new(1, at, at);
            cell.last.store(Some(Arc::new(Last { list: Arc::new(Rendered::new("old")), fresh })));
        };
        rendered(Duration::from_secs(1));
        assert!(matches!(cell.find(&*slow, 2), Found::List(_)));
        rendered(Duration::from_secs(10));
        assert!(matches!(cell.find(&*slow, 1), Found::List(_)), "nothing has changed");
        assert!(matches!(cell.find(&*slow, 2), Found::Wait));
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
        lists.forget_own();
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

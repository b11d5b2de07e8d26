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

use super::effort::Effort;
use super::held::Held;
use super::queue::{Queue, Refusal, SharedAccounts, on_a_thread};
use super::{PACE_MIN, PACE_SHARE};
use crate::registry::view::{Rendered, Renderer, View};

/// Upper bound on the age of an expensive list.
const STALE_MAX: Duration = Duration::from_secs(2);
/// A list that takes longer than this is prepared beside the clients. A client can wait for one that takes less.
const QUICK: Duration = Duration::from_millis(4);
/// For how long a list is prepared, and a [large](Rendered::is_large) one kept, after a client has asked for it. Smaller ones stay:
/// the next client gets them at once.
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
        let (serial, is_common, rendering) = (view.serial, renderer.is_common(), cell.clone());
        let list = self.work(is_common, ip, move || rendering.render(&*rendered_by, &view, &held, turn)).await;
        self.rest(&**renderer, serial, &cell);
        // What all share may be old rather than missing.
        let last = |refusal| cell.last.load_full().filter(|_| is_common).map(|last| last.list.clone()).ok_or(refusal);
        list.or_else(last)
    }

    /// The list, if it is rendered and good enough.
    pub fn ready(&self, renderer: &Arc<dyn Renderer>, newest: &Arc<View>) -> Option<Arc<Rendered>> {
        let cell = self.asked(renderer);
        let is_prepared = self.prepares.load(Ordering::Relaxed);
        match renderer.group() {
            Some(_) => cell.good(&**renderer, &self.view_for(&**renderer, newest.clone()), is_prepared),
            None => cell.good(&**renderer, newest, is_prepared),
        }
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

    /// The first list of a group's view took a while, with the work that all share: the view is good for a while.
    fn rest(&self, renderer: &dyn Renderer, serial: u64, cell: &Cell) {
        let Some(number) = renderer.group() else { return };
        let took = cell.last.load().as_ref().map(|last| last.fresh.took).unwrap_or_default();
        let (mut groups, now) = (self.groups(), Instant::now());
        let first = groups.iter_mut().find(|group| group.number == number && group.view.serial == serial);
        if let Some(group) = first.filter(|group| !group.is_measured) {
            (group.until, group.is_measured) = (now + Freshness::new(serial, took, now).rest, true);
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
        self.forget_unused_at(Instant::now());
    }

    fn forget_unused_at(&self, now: Instant) {
        let cells = self.cells();
        let unused = cells.iter().filter(|(_, cell)| !self.is_asked_for(cell, now));
        unused.for_each(|(_, cell)| cell.forget_large());
    }

    /// Does work that takes long, on a thread of its own. Once begun, it is done to its end, even if the client is gone: others
    /// may be waiting. What is not common is charged to the client, and refused when it is too much. While readers hold as much
    /// as lists may take, nothing is rendered at all.
    pub async fn work<T: Send + 'static>(
        &self,
        is_common: bool,
        ip: IpAddr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        if !is_common {
            // Again when its turn comes: what was begun before it may have taken what was left.
            let held = self.held.clone();
            let work = move || if held.is_over() { None } else { Some(work()) };
            let done = if self.held.is_over() { None } else { self.queue.work(ip, work).await? };
            return done.map_or_else(|| self.queue.refuse(Refusal::Busy), Ok);
        }
        let permit = self.common.clone().acquire_owned().await;
        if !self.make_room() {
            return self.queue.refuse(Refusal::Busy);
        }
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
                    let view = view();
                    let list = cell.render(&**renderer, &view, &self.held, turn);
                    self.rest(&**renderer, view.serial, &cell);
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
        let Some(((at, is_asked_for), (renderer, _))) = next else { return Err(None) };
        if at > now {
            return Err(Some(at));
        }
        let renderer = renderer.clone();
        drop(all); // so that what is taken out of the cache is freed
        if !self.make_room() {
            return Err(Some(now + KEPT_STALE_MAX));
        }
        let cell = self.cell(&renderer);
        // If a client renders it meanwhile, that is as good.
        let Ok(turn) = cell.turn.clone().try_lock_owned() else { return Err(Some(now + PACE_MIN)) };
        let view = self.view_for(&*renderer, newest.clone());
        let finish = |list: &Arc<Rendered>, before: Option<&Rendered>| finish(list, before.filter(|_| is_asked_for));
        cell.render_and(&*renderer, &view, &self.held, turn, &finish);
        self.rest(&*renderer, view.serial, &cell);
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

    /// Takes lists out of the cache until there is memory for another: first those that can be spared, then those requested longest
    /// ago. False if that does not help, because readers hold too much.
    fn make_room(&self) -> bool {
        if self.held.is_over() {
            self.spare();
        }
        while self.held.is_over() {
            let mut cells = self.cells();
            let oldest = cells.iter().enumerate().min_by_key(|(_, (_, cell))| cell.asked_at_ms()).map(|(at, _)| at);
            let Some(oldest) = oldest else { return false };
            cells.remove(oldest);
        }
        true
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
    /// The last list, if it is good enough.
    fn good(&self, renderer: &dyn Renderer, view: &View, is_prepared: bool) -> Option<Arc<Rendered>> {
        let (last, now) = (self.last.load(), Instant::now());
        let last = last.as_ref()?;
        let is_good = last.fresh.is_good(renderer.version(view), now) && !renderer.is_stale();
        let is_good = is_good || is_prepared && renderer.is_common() && last.fresh.is_prepared(now);
        is_good.then(|| last.list.clone())
    }

    fn find(&self, renderer: &dyn Renderer, view: &View, is_prepared: bool) -> Found {
        let good = || self.good(renderer, view, is_prepared);
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

    /// Frees the list if it is large.
    fn forget_large(&self) {
        if self.last.load().as_deref().is_some_and(|last| last.list.is_large()) {
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
        let effort = Effort::begin();
        let (body, tag) = renderer.render_tagged(view);
        let version = renderer.version(view);
        let list = Arc::new(Rendered::of(view, held.count(body), tag).with_version(version));
        self.is_large.store(list.is_large(), Ordering::Relaxed);
        let before = self.last.load_full();
        finish(&list, before.as_ref().map(|before| &*before.list));
        let fresh = Freshness::new(version, effort.took(), Instant::now());
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
    /// Rendered at a time: the more processor time that took, the longer it is good enough. One that keeps its share even when
    /// every view is rendered is good only for its view: a client that was told of a change may look for it at once.
    fn new(version: u64, took: Duration, at: Instant) -> Freshness {
        let rest = if took * PACE_SHARE <= PACE_MIN { Duration::ZERO } else { took * (PACE_SHARE - 1) };
        let recent = if took > QUICK { KEPT_STALE_MAX } else { STALE_MAX };
        let recent = (recent + took) * 2;
        Freshness { version, at, took, rest: rest.min(STALE_MAX), recent }
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
mod tests;

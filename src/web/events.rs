//! The event stream: a snapshot with its serial, then deltas, to any number of readers.
//!
//! One task collects the hub's batches into frames, a few per second, and each frame is rendered once for all readers. A
//! server that changes all the time is in one of them a second, with its newest state. A snapshot is rendered once, too, and
//! reused while it is valid: the frames since then bring it up to date. A reader that reconnects with `Last-Event-ID` gets what it
//! missed, or a snapshot. What a reader gets is charged to its network: one that is over budget gets several frames as one, later.
//! One that falls behind gets a `reset` and is disconnected: there is no queue that could grow.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};
use url::form_urlencoded;

use super::filter::Wrong;
use super::json::ServerJson;
use super::{Peer, Site, api, reply};
use crate::budget::Kind;
use crate::hub::Refusal;
use crate::model::{Address, GAME_BYTES_MAX, Server};
use crate::net::stopped;
use crate::protocols::{card, names_of, servers_of};
use crate::registry::recent::Recent;
use crate::registry::view::{Batch, Delta, View};

/// Changes are collected for this long, so that many changes make a few frames per second.
const GATHER: Duration = Duration::from_millis(200);
/// A server is in one frame of this time at most: readers would pay for one that changes all the time.
const SERVER_EVERY: Duration = Duration::from_secs(1);
/// How many frames a reader may be behind.
const BEHIND_MAX: usize = 64;
/// Frames kept for readers that reconnect, and the most changes they may hold together.
const KEPT_MAX: usize = 512;
const KEPT_CHANGES_MAX: usize = 200_000;
/// A comment, which keeps a quiet stream alive, and its interval.
const ALIVE: &[u8] = b": alive\n\n";
const ALIVE_EVERY: Duration = Duration::from_secs(8);
/// A snapshot is valid for this multiple of the time it took to render, up to a maximum.
const SNAPSHOT_SHARE: u32 = 19;
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(5);
/// The most games that a frame keeps its rendered text for.
const GAMES_MAX: usize = 32;

/// What readers are told of what happened until a serial. For a reader with an earlier serial, or one in its midst, the result is
/// the same: each change is the newest state of its server.
struct Frame {
    before: u64,
    after: u64,
    changes: BTreeMap<Address, Change>,
    /// Rendered for all games (""), or for one.
    rendered: Mutex<HashMap<String, Bytes>>,
}

pub struct Events {
    /// Identifies this run of the program: serials start again with each.
    run: u32,
    frames: broadcast::Sender<Arc<Frame>>,
    kept: Mutex<VecDeque<Arc<Frame>>>,
    snapshots: Recent<String, SnapshotCell>,
}

/// The last snapshot for readers of a game ("": of all). Readers that arrive while it is rendered wait for it.
type SnapshotCell = tokio::sync::Mutex<Option<Written>>;

#[derive(Clone)]
struct Written {
    serial: u64,
    text: Bytes,
    /// A new one before this time would take more than its share of a core.
    good_until: Instant,
}

impl Events {
    pub fn new(run: u32) -> Events {
        let frames = broadcast::Sender::new(BEHIND_MAX);
        Events { run, frames, kept: Mutex::default(), snapshots: Recent::default() }
    }

    fn id(&self, serial: u64) -> String {
        format!("{:08x}-{serial}", self.run)
    }

    fn serial_of(&self, id: &str) -> Option<u64> {
        let (run, serial) = id.split_once('-')?;
        (u32::from_str_radix(run, 16).ok()? == self.run).then_some(serial.parse().ok()?)
    }

    fn keep(&self, frame: &Arc<Frame>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(frame.clone());
        let mut all: usize = kept.iter().map(|frame| frame.changes.len()).sum();
        while kept.len() > KEPT_MAX || (all > KEPT_CHANGES_MAX && kept.len() > 1) {
            all -= kept.pop_front().map_or(0, |frame| frame.changes.len());
        }
    }

    /// What a reader with this serial has missed; None when that is no longer known, or the serial was never used.
    fn missed(&self, serial: u64) -> Option<Vec<Arc<Frame>>> {
        let newest = self.kept.lock().unwrap_or_else(PoisonError::into_inner).back()?.after;
        if serial <= newest { self.after(serial) } else { None }
    }

    /// The frames that bring a view with this serial up to date; None when some are no longer known.
    fn after(&self, serial: u64) -> Option<Vec<Arc<Frame>>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let news: Vec<_> = kept.iter().filter(|frame| frame.after > serial).cloned().collect();
        news.first().is_none_or(|first| first.before <= serial).then_some(news)
    }

    /// A snapshot for a client, and the frames since then.
    async fn snapshot(&self, site: &Arc<Site>, game: &str, ip: IpAddr) -> Result<(Written, Vec<Arc<Frame>>), Refusal> {
        let cell = self.snapshots.get(game.to_string(), |_| Arc::default());
        let mut last = cell.lock().await;
        let good = last.as_ref().filter(|written| Instant::now() < written.good_until);
        if let Some((written, news)) = good.and_then(|written| Some((written.clone(), self.after(written.serial)?))) {
            return Ok((written, news));
        }
        let is_common = game.is_empty() || card(game).is_some();
        let (writer, game) = (site.clone(), game.to_string());
        let write = move || {
            let (view, started) = (writer.hub.view(), Instant::now());
            let text = writer.hub.held().count(snapshot_event(&writer.events, &view, &game).into_bytes());
            let good_until = Instant::now() + (started.elapsed() * SNAPSHOT_SHARE).min(SNAPSHOT_AGE_MAX);
            Written { serial: view.serial, text, good_until }
        };
        let written = site.hub.work(is_common, ip, write).await?;
        *last = Some(written.clone());
        let news = self.after(written.serial).unwrap_or_default();
        Ok((written, news))
    }

    /// Collects batches into frames until stopped.
    pub async fn gather(site: Arc<Site>, mut stop: watch::Receiver<bool>) {
        let mut batches = site.hub.subscribe();
        let mut gathered = Gathered::since(site.hub.view().serial);
        loop {
            if gathered.is_empty() {
                tokio::select! {
                    batch = batches.recv() => gathered.take(batch),
                    () = stopped(&mut stop) => return,
                }
            }
            let until = Instant::now() + GATHER;
            while let Ok(next) = timeout_at(until, batches.recv()).await {
                gathered.take(next);
            }
            if *stop.borrow() {
                return;
            }
            let Some(frame) = gathered.frame(Instant::now()) else { continue };
            if frame.before == u64::MAX {
                // Some batches were missed: every reader has to start again.
                site.events.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            let frame = Arc::new(frame);
            site.events.keep(&frame);
            let _ = site.events.frames.send(frame); // fails when nobody reads
        }
    }
}

/// What happened to the server at an address: first these left, then this one came or changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Change {
    /// The last view in which something happened.
    serial: u64,
    removed: Vec<Arc<Server>>,
    now: Option<(Arc<Server>, IsNew)>,
}

/// Whether a server was added, and not only changed.
type IsNew = bool;

impl Change {
    fn remove(&mut self, server: &Arc<Server>) {
        self.now = None;
        if self.removed.iter().all(|removed| removed.game != server.game) {
            self.removed.push(server.clone());
        }
    }

    fn put(&mut self, server: &Arc<Server>, is_new: IsNew) {
        let was_new = self.now.as_ref().is_some_and(|(_, was_new)| *was_new);
        let removed = self.removed.len();
        self.removed.retain(|removed| removed.game != server.game);
        let is_back = self.removed.len() < removed;
        self.now = Some((server.clone(), !is_back && (is_new || was_new)));
    }

    /// Both changes as one.
    fn then(&mut self, later: &Change) {
        self.serial = later.serial;
        later.removed.iter().for_each(|server| self.remove(server));
        if let Some((server, is_new)) = &later.now {
            self.put(server, *is_new);
        }
    }
}

/// Changes that readers have not been told yet.
struct Gathered {
    /// The last serial of the last frame, and of what has come since.
    before: u64,
    newest: u64,
    /// Whether something is missing: then no reader can go on.
    gap: bool,
    changes: BTreeMap<Address, Change>,
    /// When readers were last told of a server, if that was a moment ago.
    told: HashMap<Address, Instant>,
}

impl Gathered {
    fn since(serial: u64) -> Gathered {
        Gathered { before: serial, newest: serial, gap: false, changes: BTreeMap::new(), told: HashMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.gap
    }

    fn take(&mut self, received: Result<Arc<Batch>, broadcast::error::RecvError>) {
        match received {
            Ok(batch) if batch.serial <= self.newest => {} // known already
            Ok(batch) => {
                self.gap |= batch.serial != self.newest + 1;
                self.newest = batch.serial;
                for delta in &batch.deltas {
                    let change = self.changes.entry(delta.server().address).or_default();
                    change.serial = batch.serial;
                    match delta {
                        Delta::Added(server) => change.put(server, true),
                        Delta::Changed(server) | Delta::Proven(server) => change.put(server, false),
                        Delta::Removed(server) => change.remove(server),
                    }
                }
            }
            Err(_) => self.gap = true,
        }
    }

    /// The next frame, if there is something to tell. What readers were told a moment ago stays for a later one.
    fn frame(&mut self, now: Instant) -> Option<Frame> {
        self.told.retain(|_, at| now < *at + SERVER_EVERY);
        let told = &self.told;
        let changes = match self.gap {
            true => std::mem::take(&mut self.changes),
            false => self.changes.extract_if(.., |address, _| !told.contains_key(address)).collect(),
        };
        if changes.is_empty() && !self.gap {
            return None;
        }
        self.told.extend(changes.keys().map(|address| (*address, now)));
        let before = if std::mem::take(&mut self.gap) { u64::MAX } else { self.before };
        self.before = self.newest;
        Some(Frame { before, after: self.newest, changes, rendered: Mutex::default() })
    }
}

#[derive(Serialize)]
struct Snapshot<'a> {
    serial: u64,
    servers: Vec<ServerJson<'a>>,
}

#[derive(Serialize, Default)]
struct Deltas<'a> {
    serial: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<Gone<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    added: Vec<ServerJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed: Vec<ServerJson<'a>>,
}

#[derive(Serialize)]
struct Gone<'a> {
    protocol: &'static str,
    game: &'a str,
    address: String,
    port: u16,
}

/// Whether a reader of one game, or of all, sees this server.
fn concerns(server: &Server, game: &str) -> bool {
    if game.is_empty() { !server.game.is_master() } else { names_of(&server.game).any(|name| name == game) }
}

impl Frame {
    /// Several frames as one.
    fn joined(frames: &[Arc<Frame>]) -> Option<Frame> {
        let (first, last) = (frames.first()?, frames.last()?);
        let mut changes: BTreeMap<Address, Change> = BTreeMap::new();
        for (address, change) in frames.iter().flat_map(|frame| &frame.changes) {
            changes.entry(*address).or_default().then(change);
        }
        Some(Frame { before: first.before, after: last.after, changes, rendered: Mutex::default() })
    }

    /// The text for a reader with this serial. One with a snapshot of the frame's midst has some of it already.
    fn text_since(&self, serial: u64, events: &Events, game: &str) -> Bytes {
        if serial <= self.before {
            return self.text(events, game);
        }
        let news = self.changes.iter().filter(|(_, change)| change.serial > serial);
        let changes = news.map(|(address, change)| (*address, change.clone())).collect();
        let rest = Frame { before: serial, after: self.after, changes, rendered: Mutex::default() };
        frame_event(events, &rest, game).into()
    }

    /// The event's text for readers of a game ("": of all), rendered on first use.
    fn text(&self, events: &Events, game: &str) -> Bytes {
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = rendered.get(game) {
            return text.clone();
        }
        let text: Bytes = frame_event(events, self, game).into();
        if rendered.len() < GAMES_MAX {
            rendered.insert(game.to_string(), text.clone());
        }
        text
    }
}

fn frame_event(events: &Events, frame: &Frame, game: &str) -> String {
    let mut deltas = Deltas { serial: frame.after, ..Deltas::default() };
    for Change { removed, now, .. } in frame.changes.values() {
        deltas.removed.extend(removed.iter().filter(|server| concerns(server, game)).map(|server| Gone {
            protocol: server.game.protocol(),
            game: server.game.name(),
            address: server.address.ip().to_string(),
            port: server.address.port(),
        }));
        match now {
            Some((server, true)) if concerns(server, game) => deltas.added.push(ServerJson::new(server)),
            Some((server, false)) if concerns(server, game) => deltas.changed.push(ServerJson::new(server)),
            _ => {}
        }
    }
    event("delta", &events.id(frame.after), &deltas)
}

fn snapshot_event(events: &Events, view: &View, game: &str) -> String {
    let servers: Vec<_> = match game {
        "" => view.games().map(|server| ServerJson::new(server)).collect(),
        game => servers_of(view, game).map(|server| ServerJson::new(server)).collect(),
    };
    event("snapshot", &events.id(view.serial), &Snapshot { serial: view.serial, servers })
}

/// JSON has no line breaks of its own, so one `data` line is enough.
fn event(name: &str, id: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\nid: {id}\ndata: {data}\n\n")
}

/// The list as it changes
///
/// Server-sent events: `snapshot` with `serial` and `servers`, then `delta` with `serial`, `removed`, `added` and
/// `changed`, to be applied in this order. A reader that reconnects with `Last-Event-ID` gets what it missed, or another
/// snapshot. `reset` tells a reader that is too slow to start again. A server that changes all the time is in one event a second.
#[utoipa::path(get, path = "/api/v1/events", tag = "servers", params(
    ("game" = Option<String>, Query, description = "Only this game, or this family of games"),
    ("Last-Event-ID" = Option<String>, Header, description = "The last event that was received"),
), responses(
    (status = 200, description = "An endless stream of events", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 429, description = "Too much for this network: see `Retry-After`", body = Wrong),
    (status = 503, description = "Too many others: see `Retry-After`", body = Wrong),
))]
pub async fn events(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let mut game = String::new();
    for (name, value) in form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes()) {
        if name != "game" || value.len() > GAME_BYTES_MAX {
            return api::bad_request(&Wrong::parameter(&name, "is unknown here; `game` is known"));
        }
        game = value.into_owned();
    }
    if let Err(over) = site.guard.budgets().admit(Kind::Events, site.hub.clock.now(), peer.ip()) {
        return reply::over(over);
    }
    // In this order: a frame that arrives in between is received, and skipped by its serial.
    let frames = site.events.frames.subscribe();
    let last = headers.get("Last-Event-ID").and_then(|id| id.to_str().ok());
    let missed =
        last.and_then(|id| site.events.serial_of(id)).and_then(|serial| Some((serial, site.events.missed(serial)?)));
    // A resumed reader that missed nothing still sees at once that it is connected.
    let mut first = VecDeque::from([Bytes::from_static(b"retry: 2000\n\n")]);
    let (mut serial, news) = match missed {
        Some(missed) => missed,
        None => {
            let (written, news) = match site.events.snapshot(&site, &game, peer.ip()).await {
                Ok(snapshot) => snapshot,
                Err(refusal) => return reply::refused(refusal),
            };
            first.push_back(written.text);
            (written.serial, news)
        }
    };
    for frame in news {
        first.push_back(frame.text_since(serial, &site.events, &game));
        serial = frame.after;
    }
    let (site_of_reader, ip) = (Arc::downgrade(&site), peer.ip());
    let reader = Reader { site: site_of_reader, ip, frames, game, serial, first, over: false };
    site.metrics.readers.inc();
    let counted = Counted(site.metrics.readers.clone());
    let body = stream::unfold((reader, counted), |(mut reader, counted)| async move {
        let text = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(text), (reader, counted)))
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = StatusCode::OK;
    reply::set(&mut response, header::CONTENT_TYPE, "text/event-stream");
    reply::set(&mut response, header::CACHE_CONTROL, "no-store");
    response
}

/// Counts a reader while it is connected.
struct Counted(prometheus_client::metrics::gauge::Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Reader {
    /// Weak: a reader keeps nothing alive.
    site: Weak<Site>,
    ip: IpAddr,
    frames: broadcast::Receiver<Arc<Frame>>,
    game: String,
    serial: u64,
    /// What it gets first.
    first: VecDeque<Bytes>,
    over: bool,
}

impl Reader {
    /// The next piece of the stream, charged to the reader's network.
    async fn next(&mut self) -> Option<Bytes> {
        let text = match self.first.pop_front() {
            Some(first) => first,
            None if self.over => return None,
            None => self.news().await?,
        };
        let site = self.site.upgrade()?;
        if site.guard.bans().contains(self.ip) {
            return None; // behind a proxy, the connection itself is not the banned client's
        }
        site.guard.budgets().charge(Kind::Events, site.hub.clock.now(), self.ip, text.len() as u64);
        Some(text)
    }

    async fn news(&mut self) -> Option<Bytes> {
        let wait = self.over_budget()?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if !self.over_budget()?.is_zero() {
            return Some(Bytes::from_static(ALIVE)); // and it waits on
        }
        let alive = Instant::now() + ALIVE_EVERY;
        loop {
            let frame = match timeout_at(alive, self.frames.recv()).await {
                Err(_) => return Some(Bytes::from_static(ALIVE)),
                Ok(Ok(frame)) if frame.after <= self.serial => continue, // in the snapshot already
                Ok(Ok(frame)) if frame.before <= self.serial => frame,
                // It fell behind, or frames were lost: the browser reconnects and gets a new snapshot.
                Ok(Ok(_)) | Ok(Err(broadcast::error::RecvError::Lagged(_))) => {
                    self.over = true;
                    return Some(Bytes::from_static(b"event: reset\nid:\ndata: {}\n\n"));
                }
                Ok(Err(broadcast::error::RecvError::Closed)) => return None,
            };
            let since = std::mem::replace(&mut self.serial, frame.after);
            let site = self.site.upgrade()?;
            if wait.is_zero() {
                return Some(frame.text_since(since, &site.events, &self.game));
            }
            return Some(self.joined(frame).text(&site.events, &self.game));
        }
    }

    /// A frame together with those that have come since, for a reader that had to wait.
    fn joined(&mut self, first: Arc<Frame>) -> Arc<Frame> {
        let mut frames = vec![first];
        // What does not continue these is noticed with the next frame.
        while let Ok(frame) = self.frames.try_recv() {
            if frame.before > self.serial {
                self.over = true;
                self.first.push_back(Bytes::from_static(b"event: reset\nid:\ndata: {}\n\n"));
                break;
            }
            self.serial = frame.after;
            frames.push(frame);
        }
        match Frame::joined(&frames) {
            Some(joined) if frames.len() > 1 => Arc::new(joined),
            _ => frames.swap_remove(0),
        }
    }

    /// How long the reader has to wait because its network is over budget; None when the program stops.
    fn over_budget(&self) -> Option<Duration> {
        let site = self.site.upgrade()?;
        let admitted = site.guard.budgets().admit(Kind::Events, site.hub.clock.now(), self.ip);
        Some(
            admitted
                .err()
                .map_or(Duration::ZERO, |over| Duration::from_secs(over.retry_after_s.into()).min(ALIVE_EVERY)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::model::{Facts, Game, Proof};
    use proptest::prelude::*;

    fn server(port: u16, game: &'static str, players: u16) -> Arc<Server> {
        let facts = Facts { players_current: Some(players), ..Facts::default() };
        let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
        Arc::new(Server::new(address, Game::Own(game), Proof::Query, 0, &facts))
    }

    fn batch(serial: u64, deltas: Vec<Delta>) -> Result<Arc<Batch>, broadcast::error::RecvError> {
        Ok(Arc::new(Batch { serial, deltas }))
    }

    #[test]
    fn a_server_that_changes_all_the_time_is_told_once_a_second_with_its_newest_state() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut gathered = Gathered::since(0);
        let (mut frames, mut told) = (0, Vec::new());
        for round in 1..=100 {
            gathered.take(batch(round, vec![Delta::Changed(server(1, "tanks", round as u16))]));
            if let Some(frame) = gathered.frame(at(round * 100)) {
                frames += 1;
                told.extend(frame.changes.values().filter_map(|change| change.now.as_ref()?.0.players_current));
            }
        }
        assert!((9..=11).contains(&frames), "{frames} in ten seconds");
        assert!(!gathered.is_empty(), "the newest state is still to come");
        let last = gathered.frame(at(11_000)).unwrap();
        assert_eq!(last.changes.values().next().unwrap().now.as_ref().unwrap().0.players_current, Some(100));
        assert!(gathered.is_empty() && gathered.frame(at(99_000)).is_none());
        // Another server is told at once.
        gathered.take(batch(101, vec![Delta::Added(server(2, "tanks", 1))]));
        assert_eq!(gathered.frame(at(11_001)).unwrap().before, 100);
        // Something is missing: every reader starts again.
        gathered.take(batch(103, vec![Delta::Removed(server(2, "tanks", 1))]));
        assert_eq!(gathered.frame(at(11_002)).unwrap().before, u64::MAX);
    }

    /// The list of a reader, as the page keeps it.
    type Known = BTreeMap<Address, Arc<Server>>;

    fn apply(known: &mut Known, frame: &Frame) {
        for (address, change) in &frame.changes {
            if !change.removed.is_empty() {
                known.remove(address);
            }
            known.extend(change.now.iter().map(|(server, _)| (*address, server.clone())));
        }
    }

    proptest! {
        /// Servers come, change and go in any order. Readers begin with a snapshot of any moment, and some get several
        /// frames as one. In the end, all have the same list.
        #[test]
        fn every_reader_ends_with_the_true_list(
                steps in proptest::collection::vec((1..4u16, 0..4usize, 0..3u16, 0..400u64), 1..60), joins in 1..5usize) {
            let start = Instant::now();
            let (mut gathered, mut truth, mut time) = (Gathered::since(0), Known::new(), 0);
            let (mut readers, mut frames): (Vec<(u64, Known)>, Vec<Arc<Frame>>) = (vec![(0, Known::new())], Vec::new());
            for (serial, (port, what, players, ms)) in (1..).zip(steps) {
                let new = server(port, ["tanks", "chess"][what % 2], players);
                let old = truth.get(&new.address).cloned();
                let deltas = match (old, what) {
                    (None, _) => vec![Delta::Added(new.clone())],
                    (Some(old), 3) => vec![Delta::Removed(old)],
                    (Some(old), _) if old.game == new.game => vec![Delta::Changed(new.clone())],
                    (Some(old), _) => vec![Delta::Removed(old), Delta::Added(new.clone())],
                };
                match deltas.last() {
                    Some(Delta::Removed(_)) => drop(truth.remove(&new.address)),
                    _ => drop(truth.insert(new.address, new)),
                }
                gathered.take(batch(serial, deltas));
                readers.push((serial, truth.clone()));
                time += ms;
                frames.extend(gathered.frame(start + Duration::from_millis(time)).map(Arc::new));
            }
            frames.extend(gathered.frame(start + Duration::from_millis(time + 1_000)).map(Arc::new));
            prop_assert!(gathered.is_empty());
            for (serial, mut known) in readers {
                let news: Vec<_> = frames.iter().filter(|frame| frame.after > serial).cloned().collect();
                for some in news.chunks(joins) {
                    apply(&mut known, &Frame::joined(some).unwrap());
                }
                prop_assert_eq!(&known, &truth, "from {}", serial);
            }
        }
    }

    #[test]
    fn what_brings_a_snapshot_up_to_date() {
        let events = Events::new(1);
        let keep = |before, after| {
            events.keep(&Arc::new(Frame { before, after, changes: BTreeMap::new(), rendered: Mutex::default() }));
        };
        let after =
            |serial| events.after(serial).map(|frames| frames.iter().map(|frame| frame.after).collect::<Vec<_>>());
        let missed = |serial| events.missed(serial).is_some();
        assert_eq!((after(7), missed(7)), (Some(vec![]), false), "nothing has happened yet");
        keep(1, 3);
        keep(3, 5);
        assert_eq!(after(0), None, "what was before is gone");
        assert_eq!(after(1), Some(vec![3, 5]));
        assert_eq!(after(2), Some(vec![3, 5]), "in the midst of a frame");
        assert_eq!(after(3), Some(vec![5]));
        assert_eq!(after(5), Some(vec![]));
        assert!(!missed(0) && missed(1) && missed(2) && missed(5) && !missed(6), "nobody was given 6");
        keep(u64::MAX, 9);
        assert_eq!(after(5), None, "something is missing");
        assert_eq!(after(9), Some(vec![]));
    }
}

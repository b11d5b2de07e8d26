//! The event stream: a snapshot with its serial, then deltas, to any number of readers.
//!
//! One task collects the hub's batches into frames, a few per second, and each frame is rendered once for all readers. A
//! snapshot is rendered once, too, and reused while it is valid: the frames since then bring it up to date. A reader that
//! reconnects with `Last-Event-ID` gets what it missed, or a snapshot. One that falls behind gets a `reset` and is
//! disconnected: there is no queue that could grow.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
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
use super::{Site, api, aside, reply};
use crate::model::{GAME_BYTES_MAX, Server};
use crate::net::stopped;
use crate::protocols::{names_of, servers_of};
use crate::registry::recent::Recent;
use crate::registry::view::{Batch, Delta, View};

/// Changes are collected for this long, so that many changes make a few frames per second.
const GATHER: Duration = Duration::from_millis(200);
/// How many frames a reader may be behind.
const BEHIND_MAX: usize = 64;
/// Frames kept for readers that reconnect, and the most deltas they may hold together.
const KEPT_MAX: usize = 512;
const KEPT_DELTAS_MAX: usize = 200_000;
/// Interval of keep-alives on a quiet stream.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// A snapshot is valid for this multiple of the time it took to render, up to a maximum.
const SNAPSHOT_SHARE: u32 = 19;
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(5);
/// The most games that a frame keeps its rendered text for.
const GAMES_MAX: usize = 32;

/// What happened between two serials.
struct Frame {
    before: u64,
    after: u64,
    batches: Vec<Arc<Batch>>,
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
        let deltas = |frame: &Arc<Frame>| frame.batches.iter().map(|batch| batch.deltas.len()).sum::<usize>();
        let mut all: usize = kept.iter().map(deltas).sum();
        while kept.len() > KEPT_MAX || (all > KEPT_DELTAS_MAX && kept.len() > 1) {
            all -= kept.pop_front().as_ref().map_or(0, deltas);
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

    /// A snapshot, and the frames since then.
    async fn snapshot(&self, site: &Site, game: &str) -> (Written, Vec<Arc<Frame>>) {
        let cell = self.snapshots.get(game.to_string(), |_| Arc::default());
        let mut last = cell.lock().await;
        let good = last.as_ref().filter(|written| Instant::now() < written.good_until);
        if let Some((written, news)) = good.and_then(|written| Some((written.clone(), self.after(written.serial)?))) {
            return (written, news);
        }
        let (view, started) = (site.hub.view(), Instant::now());
        let write = || snapshot_event(self, &view, game);
        let text = aside(&view, write);
        let good_until = Instant::now() + (started.elapsed() * SNAPSHOT_SHARE).min(SNAPSHOT_AGE_MAX);
        let written = Written { serial: view.serial, text, good_until };
        *last = Some(written.clone());
        (written, Vec::new())
    }

    /// Collects batches into frames until stopped.
    pub async fn gather(site: Arc<Site>, mut stop: watch::Receiver<bool>) {
        let mut batches = site.hub.subscribe();
        let mut serial = site.hub.view().serial;
        loop {
            let first = tokio::select! {
                batch = batches.recv() => batch,
                () = stopped(&mut stop) => return,
            };
            let until = Instant::now() + GATHER;
            let mut gathered = Vec::new();
            let mut gap = !take(first, serial, &mut gathered);
            while let Ok(next) = timeout_at(until, batches.recv()).await {
                gap |= !take(next, serial, &mut gathered);
            }
            let Some(after) = gathered.last().map(|batch| batch.serial) else { continue };
            if gap {
                // Some batches were missed: every reader has to start again.
                site.events.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            let rendered = Mutex::default();
            let frame =
                Arc::new(Frame { before: if gap { u64::MAX } else { serial }, after, batches: gathered, rendered });
            serial = after;
            site.events.keep(&frame);
            let _ = site.events.frames.send(frame); // fails when nobody reads
        }
    }
}

/// Adds a batch that continues what is known; false when something is missing before it.
fn take(received: Result<Arc<Batch>, broadcast::error::RecvError>, serial: u64, into: &mut Vec<Arc<Batch>>) -> bool {
    match received {
        Ok(batch) if batch.serial <= serial => true, // known already
        Ok(batch) => {
            let last = into.last().map_or(serial, |last| last.serial);
            let follows = batch.serial == last + 1;
            into.push(batch);
            follows
        }
        Err(_) => false,
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
    /// The frame without what a snapshot taken within it already contains.
    fn text_since(&self, serial: u64, events: &Events, game: &str) -> Bytes {
        if self.before == serial {
            return self.text(events, game);
        }
        let news = self.batches.iter().filter(|batch| batch.serial > serial);
        news.map(|batch| batch_event(events, batch, game)).collect::<String>().into()
    }

    /// The event's text for readers of a game ("": of all), rendered on first use.
    fn text(&self, events: &Events, game: &str) -> Bytes {
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = rendered.get(game) {
            return text.clone();
        }
        let text: Bytes = self.batches.iter().map(|batch| batch_event(events, batch, game)).collect::<String>().into();
        if rendered.len() < GAMES_MAX {
            rendered.insert(game.to_string(), text.clone());
        }
        text
    }
}

fn batch_event(events: &Events, batch: &Batch, game: &str) -> String {
    let mut deltas = Deltas { serial: batch.serial, ..Deltas::default() };
    for delta in &batch.deltas {
        match delta {
            Delta::Added(server) if concerns(server, game) => deltas.added.push(ServerJson::new(server)),
            Delta::Changed(server) | Delta::Proven(server) if concerns(server, game) => {
                deltas.changed.push(ServerJson::new(server))
            }
            Delta::Removed(server) if concerns(server, game) => deltas.removed.push(Gone {
                protocol: server.game.protocol(),
                game: server.game.name(),
                address: server.address.ip().to_string(),
                port: server.address.port(),
            }),
            _ => {}
        }
    }
    event("delta", &events.id(batch.serial), &deltas)
}

fn snapshot_event(events: &Events, view: &View, game: &str) -> Bytes {
    let servers: Vec<_> = match game {
        "" => view.games().map(|server| ServerJson::new(server)).collect(),
        game => servers_of(view, game).map(|server| ServerJson::new(server)).collect(),
    };
    event("snapshot", &events.id(view.serial), &Snapshot { serial: view.serial, servers }).into()
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
/// snapshot. `reset` tells a reader that is too slow to start again.
#[utoipa::path(get, path = "/api/v1/events", tag = "servers", params(
    ("game" = Option<String>, Query, description = "Only this game, or this family of games"),
    ("Last-Event-ID" = Option<String>, Header, description = "The last event that was received"),
), responses(
    (status = 200, description = "An endless stream of events", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is wrong", body = Wrong),
))]
pub async fn events(State(site): State<Arc<Site>>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let mut game = String::new();
    for (name, value) in form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes()) {
        if name != "game" || value.len() > GAME_BYTES_MAX {
            return api::bad_request(&Wrong::parameter(&name, "is unknown here; `game` is known"));
        }
        game = value.into_owned();
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
            let (written, news) = site.events.snapshot(&site, &game).await;
            first.push_back(written.text);
            (written.serial, news)
        }
    };
    for frame in news {
        first.push_back(frame.text_since(serial, &site.events, &game));
        serial = frame.after;
    }
    let reader = Reader { site: Arc::downgrade(&site), frames, game, serial, first, over: false };
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
    frames: broadcast::Receiver<Arc<Frame>>,
    game: String,
    serial: u64,
    /// What it gets first.
    first: VecDeque<Bytes>,
    over: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.pop_front() {
            return Some(first);
        }
        if self.over {
            return None;
        }
        loop {
            let alive = Instant::now() + ALIVE_EVERY;
            let site = || self.site.upgrade();
            match timeout_at(alive, self.frames.recv()).await {
                Err(_) => return Some(Bytes::from_static(b": alive\n\n")),
                Ok(Ok(frame)) if frame.after <= self.serial => {} // in the snapshot already
                Ok(Ok(frame)) if frame.before <= self.serial => {
                    let since = std::mem::replace(&mut self.serial, frame.after);
                    return Some(frame.text_since(since, &site()?.events, &self.game));
                }
                // It fell behind, or frames were lost: the browser reconnects and gets a new snapshot.
                Ok(Ok(_)) | Ok(Err(broadcast::error::RecvError::Lagged(_))) => {
                    self.over = true;
                    return Some(Bytes::from_static(b"event: reset\nid:\ndata: {}\n\n"));
                }
                Ok(Err(broadcast::error::RecvError::Closed)) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_brings_a_snapshot_up_to_date() {
        let events = Events::new(1);
        let keep = |before, after| {
            events.keep(&Arc::new(Frame { before, after, batches: Vec::new(), rendered: Mutex::default() }));
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

//! The event stream: a snapshot with its serial, then deltas, to any number of readers.
//!
//! One task collects the hub's batches into [frames](super::frames), a few per second, and each frame is rendered and encoded
//! once for all readers of the same form. A proof alone is no news: only what readers see differently is sent, and of a server
//! that changes all the time one state a second. A snapshot is rendered once, too, and reused while it is valid: the frames since
//! then bring it up to date. A reader that reconnects with `Last-Event-ID` gets what it missed, or a snapshot. What a reader gets
//! is charged to its network: one that is over budget gets several frames as one, later. One that falls behind gets a `reset` and
//! is disconnected: there is no queue that could grow.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, Sleep, sleep_until};

use super::columns::{Columns, Wanted};
use super::filter::{FILTERS, Filter, Filters, PAGING, Wrong};
use super::frames::{FORMS_MAX, Forgotten, Form, Frame, Gathered, id};
use super::{Peer, Site, api, parameters, reply};
use crate::budget::{Kind, Over};
use crate::encodings::Pieces;
use crate::geo;
use crate::hub::Refusal;
use crate::net::stopped;
use crate::registry::recent::Recent;
use crate::registry::view;

/// The least time between two frames, so that many changes make a few frames per second. A change after a pause is told at once.
const GATHER: Duration = Duration::from_millis(200);
/// The same for each reader, with many of them, up to a maximum. To write a frame to a reader takes some 13 µs, most of it in the
/// system: up to 20,000 readers take about a quarter of a core, however many changes there are.
const GATHER_PER_READER: Duration = Duration::from_micros(50);
const GATHER_MAX: Duration = Duration::from_secs(1);
/// How many frames a reader may be behind.
const BEHIND_MAX: usize = 64;
/// Frames kept for readers that reconnect. There is a bound in bytes as well: [`Events::set_bytes_max`].
const KEPT_MAX: usize = 512;
/// How long frames are gathered after the last reader has gone, for one that reconnects. Without readers, nobody pays for them.
const UNREAD: Duration = Duration::from_secs(60);
/// The most bytes that are kept of what was rendered of them. What a late reader needs beyond that is rendered again.
const PIECES_BYTES_MAX: usize = 32 << 20;
/// A frame with this many servers takes milliseconds to render.
const LONG_FRAME: usize = 500;
/// The most changes that a reader that comes back is told one by one.
const MISSED_CHANGES_MAX: usize = 5_000;
/// A quiet stream is kept alive by a comment, this often.
const ALIVE_EVERY: Duration = Duration::from_secs(8);
/// A snapshot is valid for this multiple of the time it took to render, up to a maximum.
const SNAPSHOT_SHARE: u32 = 19;
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(5);

pub struct Events {
    /// Identifies this run of the program: serials start again with each.
    run: u32,
    frames: broadcast::Sender<Arc<Frame>>,
    kept: Mutex<VecDeque<Arc<Frame>>>,
    /// What the frames may keep in memory together.
    bytes_max: AtomicUsize,
    /// The last serial for which no frame was made, because nobody read.
    skipped: AtomicU64,
    /// When the last reader has gone.
    left_at: Mutex<Option<Instant>>,
    /// The forms that somebody reads.
    forms: Mutex<Vec<Weak<Form>>>,
    snapshots: Recent<Form, SnapshotCell>,
}

/// The last snapshot in a form. Readers that arrive while it is rendered wait for it.
type SnapshotCell = tokio::sync::Mutex<Option<Written>>;

#[derive(Clone)]
struct Written {
    serial: u64,
    body: view::Body,
    /// A new one before this time would take more than its share of a core.
    good_until: Instant,
}

impl Events {
    pub fn new(run: u32) -> Events {
        let frames = broadcast::Sender::new(BEHIND_MAX);
        let (kept, forms, snapshots) = (Mutex::default(), Mutex::default(), Recent::default());
        let (skipped, left_at) = (AtomicU64::new(0), Mutex::default());
        Events { run, frames, kept, bytes_max: AtomicUsize::new(usize::MAX), skipped, left_at, forms, snapshots }
    }

    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn serial_of(&self, id: &str) -> Option<u64> {
        let (run, serial) = id.split_once('-')?;
        (u32::from_str_radix(run, 16).ok()? == self.run).then_some(serial.parse().ok()?)
    }

    /// The form as all its readers share it.
    fn shared(&self, form: Form) -> Arc<Form> {
        let mut forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        forms.retain(|known| known.strong_count() > 0);
        if let Some(known) = forms.iter().filter_map(Weak::upgrade).find(|known| **known == form) {
            return known;
        }
        let form = Arc::new(form);
        forms.push(Arc::downgrade(&form));
        form
    }

    /// The forms to prepare frames in. If there are more, their readers prepare their own; so do those that search, at their own
    /// cost.
    fn forms(&self) -> Vec<Arc<Form>> {
        let forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        let mut forms: Vec<_> = forms.iter().filter_map(Weak::upgrade).filter(|form| form.is_by_game()).collect();
        // Nobody can push aside what most read by asking for games that do not exist.
        forms.sort_by_key(|form| !form.is_common());
        forms.truncate(FORMS_MAX);
        forms
    }

    fn keep(&self, frame: &Arc<Frame>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if frame.before == u64::MAX {
            kept.clear(); // some batches were missed: every reader has to start again
        }
        kept.push_back(frame.clone());
        let mut weight: usize = kept.iter().map(|frame| frame.weight()).sum();
        while kept.len() > KEPT_MAX || (weight > self.bytes_max() && kept.len() > 1) {
            let Some(oldest) = kept.pop_front() else { break };
            weight -= oldest.weight();
            oldest.forget();
        }
        let mut bytes = 0;
        for (behind, frame) in kept.iter().rev().enumerate() {
            bytes += frame.bytes();
            if behind > BEHIND_MAX || bytes > PIECES_BYTES_MAX {
                frame.forget_pieces();
            }
        }
    }

    /// Whether nobody reads, and nobody has for a while.
    fn is_unread(&self) -> bool {
        let left_at = *self.left_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.frames.receiver_count() == 0 && left_at.is_none_or(|at| at.elapsed() >= UNREAD)
    }

    /// A reader goes.
    fn left(&self) {
        *self.left_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// No frames are made of what happened up to this serial.
    fn skip(&self, serial: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
        self.skipped.store(serial, Ordering::Relaxed);
    }

    /// The frames that bring a view with this serial up to date; None when some are no longer known.
    fn after(&self, serial: u64) -> Option<Vec<Arc<Frame>>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if serial < self.skipped.load(Ordering::Relaxed) {
            return None;
        }
        let news: Vec<_> = kept.iter().filter(|frame| frame.is_news(serial)).cloned().collect();
        news.first().is_none_or(|first| first.before <= serial).then_some(news)
    }

    /// The same for a reader that comes back. None as well if it missed so much that a snapshot, which readers share, costs less
    /// than frames that have to be made again for this one.
    fn missed(&self, serial: u64) -> Option<Vec<Arc<Frame>>> {
        let changes = |news: &[Arc<Frame>]| news.iter().map(|frame| frame.len()).sum::<usize>();
        self.after(serial).filter(|news| news.len() <= BEHIND_MAX && changes(news) <= MISSED_CHANGES_MAX)
    }

    /// Frees the snapshots that are too old for another reader.
    pub fn forget_snapshots(&self, now: Instant) {
        for cell in self.snapshots.all() {
            // Whoever has it locked uses it or makes a new one.
            if let Ok(mut last) = cell.try_lock() {
                last.take_if(|written| written.good_until <= now);
            }
        }
    }

    /// A snapshot for a client, and the frames since then.
    async fn snapshot(
        &self,
        site: &Arc<Site>,
        form: &Arc<Form>,
        ip: IpAddr,
    ) -> Result<(Written, Vec<Arc<Frame>>), Refusal> {
        let cell = self.snapshots.get(Form::clone(form), |_| Arc::default());
        let mut last = cell.lock().await;
        let good = last.as_ref().filter(|written| Instant::now() < written.good_until);
        if let Some((written, news)) = good.and_then(|written| Some((written.clone(), self.after(written.serial)?))) {
            return Ok((written, news));
        }
        let is_common = form.is_common();
        let (writer, form) = (site.clone(), form.clone());
        let write = move || {
            let (view, started) = (writer.hub.view(), Instant::now());
            let body = form.snapshot(&view, &writer.search, &id(writer.events.run, view.serial));
            let body = writer.hub.held().count(body);
            let good_until = Instant::now() + (started.elapsed() * SNAPSHOT_SHARE).min(SNAPSHOT_AGE_MAX);
            Written { serial: view.serial, body, good_until }
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
        let mut next = Instant::now();
        let mut countries = geo::version();
        loop {
            tokio::select! {
                batch = batches.recv() => {
                    if let Ok(batch) = &batch
                        && site.events.is_unread()
                    {
                        // A reader that comes now begins with a view that has this batch: it was published before.
                        (gathered, countries) = (Gathered::since(batch.serial), geo::version());
                        site.events.skip(batch.serial);
                        continue;
                    }
                    gathered.take(batch);
                    // Any server may be in another country now, of which no change tells.
                    if std::mem::replace(&mut countries, geo::version()) != countries {
                        gathered.start_again();
                    }
                }
                () = sleep_until(next), if !gathered.is_empty() => {
                    let now = Instant::now();
                    if let Some(frame) = gathered.frame(now, site.events.bytes_max()) {
                        Events::tell(&site, frame).await;
                    }
                    // Rendering takes half of a core at most.
                    next = now + pause(site.events.frames.receiver_count()).max(2 * now.elapsed());
                }
                () = stopped(&mut stop) => return,
            }
        }
    }

    /// Sends a frame to all readers. It is prepared before they wake up, so that none of them has to.
    async fn tell(site: &Arc<Site>, frame: Frame) {
        let frame = Arc::new(frame);
        let forms = site.events.forms();
        let prepare = {
            let (site, frame) = (site.clone(), frame.clone());
            move || {
                for form in forms {
                    let _ = frame.piece(frame.before, 0, &form, site.events.run, site.hub.held()); // it is new
                }
            }
        };
        if frame.len() < LONG_FRAME {
            prepare();
        } else {
            let _ = tokio::task::spawn_blocking(prepare).await; // fails when the program stops
        }
        site.events.keep(&frame);
        let _ = site.events.frames.send(frame); // fails when nobody reads
    }
}

/// The least time between two frames for so many readers.
fn pause(readers: usize) -> Duration {
    let readers = u32::try_from(readers).unwrap_or(u32::MAX);
    GATHER_PER_READER.saturating_mul(readers).clamp(GATHER, GATHER_MAX)
}

/// Pieces that are always the same.
struct Standing {
    /// The beginning of every stream. A resumed reader that missed nothing still sees at once that it is connected.
    begin: Bytes,
    alive: Bytes,
    reset: Bytes,
}

static STANDING: LazyLock<HashMap<Pieces, Standing>> = LazyLock::new(|| {
    let all = Pieces::ALL.into_iter().map(|pieces| {
        let piece = |text: &[u8]| pieces.piece::<Vec<u8>>(|writer| writer.write_all(text)).unwrap_or_default();
        let begin = [pieces.beginning(), &piece(b"retry: 2000\n\n")].concat().into();
        let (alive, reset) = (piece(b": alive\n\n").into(), piece(b"event: reset\nid:\ndata: {}\n\n").into());
        (pieces, Standing { begin, alive, reset })
    });
    all.collect()
});

/// A standing piece in an encoding.
fn standing(pieces: Pieces, which: impl FnOnce(&Standing) -> &Bytes) -> Bytes {
    STANDING.get(&pieces).map(|standing| which(standing).clone()).unwrap_or_default()
}

/// What a request asks for.
fn form_of(query: &str, headers: &HeaderMap) -> Result<Form, Wrong> {
    let is_accepted = |pieces: &Pieces| pieces.name().is_none_or(|name| reply::accepts(headers, name));
    let pieces = Pieces::ALL.into_iter().find(is_accepted).unwrap_or(Pieces::Plain);
    let (mut filter, mut wanted) = (Filter::default(), Wanted::default());
    for (name, value) in parameters::once(query)? {
        let is_filter = !PAGING.contains(&&*name) && filter.take(&name, &value)?;
        if !is_filter && !wanted.take(&name, &value)? {
            return Err(parameters::unknown(&name, &[&FILTERS[..], &Wanted::NAMES].concat()));
        }
    }
    filter.check()?;
    Ok(Form::new(filter, wanted.columns(Columns::BRIEF)?, pieces))
}

/// The list as it changes
///
/// Server-sent events: `snapshot` (its data is a `SnapshotEvent`), then `delta` (a `DeltaEvent`) with `removed`, `added` and
/// `changed`, to be applied in this order. Each server in `changed` has its `address` and `port`, and the fields that changed
/// with their new values; null means that the field is absent now. `proven_at`, `last_seen` and `rtt_ms` come along, but nothing
/// is sent when only they have moved. A server is in one event a second at most. `players` and `rules` are left out, unless
/// `details` or `fields` asks for them. With filters, a server that begins to match is in `added`, and one that no longer matches is
/// in `removed`. A server in `changed` that the reader does not know has all its fields there. A reader that reconnects with `Last-Event-ID` gets what it missed, or another snapshot. `reset` tells a
/// reader that is too slow to start again. The stream is compressed (zstd, br, gzip) if `Accept-Encoding` allows it.
#[utoipa::path(get, path = "/api/v1/events", tag = "servers", operation_id = "streamEvents", params(
    Filters, Wanted,
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
    let form = match form_of(query.as_deref().unwrap_or_default(), &headers) {
        Ok(form) => site.events.shared(form),
        Err(wrong) => return api::bad_request(&wrong),
    };
    if let Err(over) = admit(&site, &form, peer.ip()) {
        return reply::over(over);
    }
    // In this order: a frame that arrives in between is received, and skipped by its serial.
    let frames = site.events.frames.subscribe();
    let last = headers.get("Last-Event-ID").and_then(|id| id.to_str().ok());
    let known = last.and_then(|id| site.events.serial_of(id)).filter(|serial| *serial <= site.hub.view().serial);
    let mut first = VecDeque::from([standing(form.pieces, |standing| &standing.begin)]);
    let (mut serial, news) = match known.and_then(|serial| Some((serial, site.events.missed(serial)?))) {
        Some(missed) => missed,
        None => {
            let (written, news) = match site.events.snapshot(&site, &form, peer.ip()).await {
                Ok(snapshot) => snapshot,
                Err(refusal) => return reply::refused(refusal),
            };
            first.extend(written.body.pieces().iter().cloned());
            (written.serial, news)
        }
    };
    let (begun, mut over) = (serial, false);
    for frame in news {
        match piece(&site, &frame, (serial, begun), &form, peer.ip()) {
            Ok(piece) => first.extend(piece),
            Err(Forgotten) => {
                over = true;
                first.push_back(standing(form.pieces, |standing| &standing.reset));
                break;
            }
        }
        serial = frame.after;
    }
    let (site_of_reader, ip, pieces) = (Arc::downgrade(&site), peer.ip(), form.pieces);
    let quiet_since = Instant::now();
    let alive = Box::pin(sleep_until(quiet_since + ALIVE_EVERY));
    let reader = Reader { site: site_of_reader, ip, frames, form, begun, serial, first, quiet_since, alive, over };
    site.metrics.readers.inc();
    let counted = Counted { readers: site.metrics.readers.clone(), site: Arc::downgrade(&site) };
    let body = stream::unfold((reader, counted), |(mut reader, counted)| async move {
        let piece = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), (reader, counted)))
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = StatusCode::OK;
    reply::set(&mut response, header::CONTENT_TYPE, "text/event-stream");
    reply::set(&mut response, header::CACHE_CONTROL, "no-store");
    reply::set(&mut response, header::VARY, "Accept-Encoding");
    if let Some(name) = pieces.name() {
        reply::set(&mut response, header::CONTENT_ENCODING, name);
    }
    response
}

/// Whether a reader is within its budgets: that of events, and for one that searches, that of searches.
fn admit(site: &Site, form: &Form, ip: IpAddr) -> Result<(), Over> {
    let admit = |kind| site.guard.budgets().admit(kind, site.hub.clock.now(), ip);
    admit(Kind::Events)?;
    if form.is_by_game() { Ok(()) } else { admit(Kind::Searches) }
}

/// What a reader with these serials, the present one and the one that it began with, gets of a frame. What is made only for the
/// readers of a search is charged to the first of them.
fn piece(
    site: &Site,
    frame: &Frame,
    (since, begun): (u64, u64),
    form: &Arc<Form>,
    ip: IpAddr,
) -> Result<Option<Bytes>, Forgotten> {
    let make = || frame.piece(since, begun, form, site.events.run, site.hub.held());
    if form.is_by_game() {
        return make();
    }
    let started = std::time::Instant::now();
    let piece = if frame.len() < LONG_FRAME { make() } else { tokio::task::block_in_place(make) };
    site.hub.queue().charge(ip, started.elapsed());
    piece
}

/// Counts a reader while it is connected.
struct Counted {
    readers: prometheus_client::metrics::gauge::Gauge,
    site: Weak<Site>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.readers.dec();
        if let Some(site) = self.site.upgrade() {
            site.events.left();
        }
    }
}

struct Reader {
    /// Weak: a reader keeps nothing alive.
    site: Weak<Site>,
    ip: IpAddr,
    frames: broadcast::Receiver<Arc<Frame>>,
    form: Arc<Form>,
    /// The serial that it began with, and that of what it has now.
    begun: u64,
    serial: u64,
    /// What it gets first.
    first: VecDeque<Bytes>,
    /// When it last got something.
    quiet_since: Instant,
    /// When to look whether it has been quiet for too long: not set anew for each piece, which would cost more than the piece.
    alive: Pin<Box<Sleep>>,
    over: bool,
}

impl Reader {
    /// The next piece of the stream, charged to the reader's network.
    async fn next(&mut self) -> Option<Bytes> {
        let piece = match self.first.pop_front() {
            Some(first) => first,
            None if self.over => return None,
            None => self.news().await?,
        };
        let site = self.site.upgrade()?;
        if site.guard.bans().contains(self.ip) {
            return None; // behind a proxy, the connection itself is not the banned client's
        }
        site.guard.budgets().charge(Kind::Events, site.hub.clock.now(), self.ip, piece.len() as u64);
        self.quiet_since = Instant::now();
        Some(piece)
    }

    fn standing(&self, which: impl FnOnce(&Standing) -> &Bytes) -> Bytes {
        standing(self.form.pieces, which)
    }

    async fn news(&mut self) -> Option<Bytes> {
        let wait = self.over_budget()?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
            if !self.over_budget()?.is_zero() {
                return Some(self.standing(|standing| &standing.alive)); // and it waits on
            }
        }
        loop {
            let received = tokio::select! {
                biased;
                received = self.frames.recv() => received,
                () = &mut self.alive => {
                    let due = self.quiet_since + ALIVE_EVERY;
                    let is_due = due <= Instant::now();
                    self.alive.as_mut().reset(if is_due { Instant::now() + ALIVE_EVERY } else { due });
                    match is_due {
                        true => return Some(self.standing(|standing| &standing.alive)),
                        false => continue,
                    }
                }
            };
            let frame = match received {
                Ok(frame) if !frame.is_news(self.serial) => continue, // in the snapshot already
                Ok(frame) if frame.before <= self.serial => frame,
                // It fell behind, or frames were lost: the browser reconnects and gets a new snapshot.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return Some(self.reset()),
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            let since = std::mem::replace(&mut self.serial, frame.after);
            let frame = if wait.is_zero() { Ok(frame) } else { self.joined(frame) };
            let site = self.site.upgrade()?;
            let told = frame.and_then(|frame| piece(&site, &frame, (since, self.begun), &self.form, self.ip));
            match told {
                Ok(Some(piece)) => return Some(piece),
                Ok(None) => {}
                Err(Forgotten) => return Some(self.reset()),
            }
            // A search that finds nothing costs, too.
            if !self.over_budget()?.is_zero() {
                return Some(self.standing(|standing| &standing.alive));
            }
        }
    }

    /// The last piece, which tells the reader to begin again.
    fn reset(&mut self) -> Bytes {
        self.over = true;
        self.standing(|standing| &standing.reset)
    }

    /// A frame together with those that have come since, for a reader that had to wait.
    fn joined(&mut self, first: Arc<Frame>) -> Result<Arc<Frame>, Forgotten> {
        let mut frames = vec![first];
        // What does not continue these is noticed with the next frame.
        while let Ok(frame) = self.frames.try_recv() {
            if frame.before > self.serial {
                let reset = self.reset();
                self.first.push_back(reset);
                break;
            }
            self.serial = frame.after;
            frames.push(frame);
        }
        match &*frames {
            [_] => Ok(frames.swap_remove(0)),
            frames => Frame::joined(frames).map(Arc::new),
        }
    }

    /// How long the reader has to wait because its network is over budget; None when the program stops.
    fn over_budget(&self) -> Option<Duration> {
        let site = self.site.upgrade()?;
        let admitted = admit(&site, &self.form, self.ip);
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

    #[test]
    fn what_brings_a_snapshot_up_to_date() {
        let events = Events::new(1);
        let keep = |before, after| events.keep(&Arc::new(Frame::empty(before, after)));
        let after =
            |serial| events.after(serial).map(|frames| frames.iter().map(|frame| frame.after).collect::<Vec<_>>());
        assert_eq!(after(7), Some(vec![]), "nothing has happened yet");
        keep(1, 3);
        keep(3, 5);
        assert_eq!(after(0), None, "what was before is gone");
        assert_eq!(after(1), Some(vec![3, 5]));
        assert_eq!(after(2), Some(vec![3, 5]), "in the midst of a frame");
        assert_eq!(after(3), Some(vec![5]));
        assert_eq!(after(5), Some(vec![]));
        keep(5, 5);
        assert_eq!((after(4), after(5)), (Some(vec![5, 5]), Some(vec![5])), "what was told a second later");
        keep(u64::MAX, 9);
        assert_eq!(after(5), None, "something is missing");
        assert_eq!(after(9), Some(vec![]));
        events.skip(12);
        assert_eq!((after(11), after(12)), (None, Some(vec![])), "nobody read, so no frame was made");
        keep(12, 14);
        assert_eq!((after(11), after(12), after(13)), (None, Some(vec![14]), Some(vec![14])));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_made_while_somebody_reads_and_for_a_minute_after() {
        let events = Events::new(1);
        assert!(events.is_unread(), "nobody has come yet");
        let reader = events.frames.subscribe();
        assert!(!events.is_unread());
        tokio::time::advance(UNREAD * 2).await;
        assert!(!events.is_unread(), "it reads, though nothing happens");
        drop(reader);
        events.left();
        assert!(!events.is_unread(), "it may reconnect");
        tokio::time::advance(UNREAD - Duration::from_millis(1)).await;
        assert!(!events.is_unread());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(events.is_unread());
    }

    #[test]
    fn who_missed_too_much_gets_a_snapshot() {
        let events = Events::new(1);
        let frames = BEHIND_MAX as u64 + 1;
        (0..frames).for_each(|number| events.keep(&Arc::new(Frame::empty(number, number + 1))));
        assert_eq!(events.after(0).map(|frames| frames.len()), Some(BEHIND_MAX + 1));
        assert!(events.missed(0).is_none());
        assert_eq!(events.missed(1).map(|frames| frames.len()), Some(BEHIND_MAX));
    }

    #[tokio::test]
    async fn snapshots_that_are_too_old_are_freed() {
        let (events, now) = (Events::new(1), Instant::now());
        let form = Form::new(Filter::default(), Columns::BRIEF, Pieces::Plain);
        let cell = events.snapshots.get(form, |_| Arc::default());
        let good_until = now + Duration::from_secs(1);
        *cell.lock().await = Some(Written { serial: 1, body: view::Body::default(), good_until });
        events.forget_snapshots(now);
        assert!(cell.lock().await.is_some());
        events.forget_snapshots(good_until);
        assert!(cell.lock().await.is_none());
    }

    #[test]
    fn what_most_read_is_prepared_however_many_others_there_are() {
        let events = Events::new(1);
        let form = |query: &str| form_of(query, &HeaderMap::new()).unwrap();
        let others: Vec<_> =
            (0..FORMS_MAX).map(|number| events.shared(form(&format!("game=no+game+{number}")))).collect();
        let common = [events.shared(form("")), events.shared(form("game=iceball"))];
        let _search = events.shared(form("q=x"));
        let prepared = events.forms();
        assert_eq!(prepared.len(), FORMS_MAX);
        assert!(common.iter().all(|form| prepared.contains(form)) && prepared.contains(&others[0]));
        assert!(prepared.iter().all(|form| form.is_by_game()), "who searches pays for it");
    }

    #[test]
    fn frames_are_rarer_with_many_readers() {
        let millis = [0, 1, 4_000, 10_000, 20_000, usize::MAX].map(|readers| pause(readers).as_millis());
        assert_eq!(millis, [200, 200, 200, 500, 1_000, 1_000]);
    }

    #[test]
    fn readers_of_the_same_form_share_it_while_there_are_some() {
        let events = Events::new(1);
        let form = |query: &str, accepted: &'static str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, accepted.parse().unwrap())]);
            form_of(query, &headers).unwrap()
        };
        let all = events.shared(form("", "gzip, br;q=0"));
        assert_eq!((all.pieces, &*all), (Pieces::Gzip, &Form::new(Filter::default(), Columns::BRIEF, Pieces::Gzip)));
        assert!(Arc::ptr_eq(&all, &events.shared(form("game=&details=0", "gzip"))));
        let other = events.shared(form("game=tanks&details", "gzip, br, zstd"));
        let tanks = Filter { game: Some("tanks".into()), ..Filter::default() };
        assert_eq!(*other, Form::new(tanks, Columns::ALL, Pieces::Zstd));
        assert_eq!(events.forms().len(), 2);
        drop(other);
        assert_eq!(events.forms().len(), 1);
        assert_eq!(form("", "identity").pieces, Pieces::Plain);
        for wrong in
            ["games=x", "details=maybe", "game=a&game=b", "limit=1", "sort=name", "after=1.2.3.4:5", "fields=x"]
        {
            assert!(form_of(wrong, &HeaderMap::new()).is_err(), "{wrong}");
        }
    }
}

//! Frames of the event stream: the changes of a short time, rendered and encoded once for all readers that want them in the
//! same form.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use serde::{Serialize, Serializer};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::columns::Columns;
use super::filter::{Filter, Matcher};
use super::json::{Patch, Place, Row};
use super::search::Search;
use crate::encodings::Pieces;
use crate::hub::Held;
use crate::model::{Address, Fields, Server};
use crate::registry::view::{Batch, Body, Delta, View, Writer};

/// A server is in one frame of this time at most: readers would pay for one that changes all the time.
const SERVER_EVERY: Duration = Duration::from_secs(1);
/// The most forms that a frame keeps its pieces for.
pub const FORMS_MAX: usize = 64;
/// Shorter pieces are not counted among the lists in memory.
const LONG_PIECE: usize = 64 << 10;
/// JSON is written in small parts, which encoders do not like.
const BUFFER_BYTES: usize = 16 << 10;

/// What a reader wants to be told, and how. Readers of the same form share one.
#[derive(Clone, Debug)]
pub struct Form {
    filter: Filter,
    columns: Columns,
    pub pieces: Pieces,
    matcher: Arc<Matcher>,
}

/// The rest follows from these.
impl PartialEq for Form {
    fn eq(&self, other: &Form) -> bool {
        (&self.filter, self.columns, self.pieces) == (&other.filter, other.columns, other.pieces)
    }
}

impl Form {
    pub fn new(filter: Filter, columns: Columns, pieces: Pieces) -> Form {
        let matcher = Arc::new(Matcher::new(&filter));
        Form { filter, columns, pieces, matcher }
    }

    /// Whether many readers share this: their number is bounded.
    pub fn is_common(&self) -> bool {
        self.columns == Columns::BRIEF && self.filter.is_common()
    }

    /// Whether a server that is wanted stays wanted, whatever changes. Otherwise, servers come and go with what they say of
    /// themselves, and a reader pays for looking at all that changed.
    pub fn is_by_game(&self) -> bool {
        self.filter.is_by_game()
    }

    /// An event as a piece of the stream. JSON has no line breaks of its own, so one `data` line is enough.
    fn event<W: Write + Default>(&self, name: &str, id: &str, data: &impl Serialize) -> W {
        let write = |writer: &mut dyn Write| {
            let mut writer = BufWriter::with_capacity(BUFFER_BYTES, writer);
            write!(writer, "event: {name}\nid: {id}\ndata: ")?;
            serde_json::to_writer(&mut writer, data)?;
            writer.write_all(b"\n\n")?;
            writer.flush()
        };
        self.pieces.piece(write).unwrap_or_default() // writing to memory does not fail
    }

    /// The whole list.
    pub fn snapshot(&self, view: &View, search: &Search, id: &str) -> Body {
        let servers = self.matcher.all(view, search);
        let snapshot = Snapshot { serial: view.serial, servers: Rows { form: self, servers } };
        self.event::<Writer>("snapshot", id, &snapshot).finish()
    }
}

/// Whole rows, each made while it is written: all at once would take more memory than their text.
struct Rows<'a> {
    form: &'a Form,
    servers: Vec<&'a Server>,
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.servers.iter().map(|server| Row::new(server, self.form.columns)))
    }
}

impl Rows<'_> {
    fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

#[derive(Serialize)]
struct Snapshot<'a> {
    serial: u64,
    servers: Rows<'a>,
}

#[derive(Serialize)]
struct Deltas<'a> {
    serial: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<Gone<'a>>,
    #[serde(skip_serializing_if = "Rows::is_empty")]
    added: Rows<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed: Vec<Patch<'a>>,
}

impl<'a> Deltas<'a> {
    /// Tells a reader whose servers all stay wanted.
    fn tell(&mut self, Change { removed, now, .. }: &'a Change, form: &Form) {
        let removed = removed.iter().filter(|server| form.matcher.is_of(server));
        self.removed.extend(removed.map(|server| Gone::new(server)));
        match now.as_ref().filter(|(server, _)| form.matcher.is_of(server)) {
            Some((server, How::Added)) => self.added.servers.push(server),
            Some((server, How::Changed(fields))) => self.change(server, *fields, form),
            None => {}
        }
    }

    /// Tells a reader that had the server if it was wanted, and did not if it was not.
    fn tell_by_match(&mut self, Change { before, now, .. }: &'a Change, form: &Form) {
        let had = before.as_ref().filter(|server| form.matcher.matches(server));
        let has = now.as_ref().filter(|(server, _)| form.matcher.matches(server));
        match (had, has) {
            (Some(had), Some((server, How::Changed(fields)))) if had.game == server.game => {
                self.change(server, *fields, form);
            }
            (had, has) => {
                self.removed.extend(had.map(|server| Gone::new(server)));
                self.added.servers.extend(has.map(|(server, _)| &**server));
            }
        }
    }

    /// Tells a reader of which nobody knows whether it has the server: all of it, or that it is gone.
    fn tell_newest(&mut self, Change { removed, now, .. }: &'a Change, form: &Form) {
        self.removed.extend(removed.iter().filter(|server| form.matcher.is_of(server)).map(|server| Gone::new(server)));
        match now {
            Some((server, _)) if form.matcher.matches(server) => self.change(server, Fields::ALL, form),
            Some((server, _)) if form.matcher.is_of(server) => self.removed.push(Gone::new(server)),
            _ => {}
        }
    }

    fn change(&mut self, server: &'a Server, fields: Fields, form: &Form) {
        let seen = form.columns.seen(fields);
        if seen != Fields::NONE {
            self.changed.push(Patch::new(server, seen, form.columns));
        }
    }

    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.changed.is_empty()
    }
}

#[derive(Serialize)]
struct Gone<'a> {
    protocol: &'static str,
    game: &'a str,
    #[serde(flatten)]
    place: Place,
}

impl<'a> Gone<'a> {
    fn new(server: &'a Server) -> Gone<'a> {
        Gone { protocol: server.game.protocol(), game: server.game.name(), place: server.address.into() }
    }
}

/// What happened to the server at an address: first these left, then this one came or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// The first and the last view in which something happened.
    first: u64,
    serial: u64,
    /// The server before all this, if there was one.
    before: Option<Arc<Server>>,
    removed: Vec<Arc<Server>>,
    now: Option<(Arc<Server>, How)>,
}

/// How a server came to be as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Added,
    Changed(Fields),
}

impl Change {
    fn new(delta: &Delta, serial: u64) -> Change {
        let before = match delta {
            Delta::Added(_) => None,
            Delta::Changed { before: server, .. } | Delta::Proven(server) | Delta::Removed(server) => {
                Some(server.clone())
            }
        };
        Change { first: serial, serial, before, removed: Vec::new(), now: None }
    }

    fn remove(&mut self, server: &Arc<Server>) {
        self.now = None;
        if self.removed.iter().all(|removed| removed.game != server.game) {
            self.removed.push(server.clone());
        }
    }

    fn put(&mut self, server: &Arc<Server>, how: How) {
        let removed = self.removed.len();
        self.removed.retain(|removed| removed.game != server.game);
        let is_back = self.removed.len() < removed;
        let how = match (self.now.as_ref().map(|(_, how)| *how), how) {
            // Some readers know it as it was before, some do not know it.
            _ if is_back => How::Changed(Fields::ALL),
            (Some(How::Added), _) | (_, How::Added) => How::Added,
            (Some(How::Changed(before)), How::Changed(fields)) => How::Changed(before | fields),
            (None, How::Changed(fields)) => How::Changed(fields),
        };
        self.now = Some((server.clone(), how));
    }

    /// What it keeps in memory, in bytes.
    fn weight(&self) -> usize {
        let now = self.now.iter().map(|(server, _)| server);
        size_of::<Change>()
            + self.before.iter().chain(&self.removed).chain(now).map(|server| server.bytes()).sum::<usize>()
    }

    /// Both changes as one.
    fn then(&mut self, later: &Change) {
        self.serial = later.serial;
        later.removed.iter().for_each(|server| self.remove(server));
        if let Some((server, how)) = &later.now {
            self.put(server, *how);
        }
    }
}

/// What readers are told of what happened until a serial. For a reader with an earlier serial, or one in its midst, the result is
/// the same: each change is the newest state of its server.
pub struct Frame {
    pub before: u64,
    pub after: u64,
    /// The first view of which something is told here. It may be one before this frame: see [`SERVER_EVERY`].
    first: u64,
    /// The number of servers in it, and what they keep in memory.
    len: usize,
    weight: usize,
    /// None once they were [forgotten](Frame::forget).
    changes: ArcSwapOption<Changes>,
    /// What has been rendered of it.
    rendered: Mutex<Vec<Piece>>,
}

type Changes = BTreeMap<Address, Change>;

/// There was no more memory for a frame: a reader that needs it has to begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten;

/// What readers of a form with a serial get of a frame; none if it has nothing for them.
struct Piece {
    form: Arc<Form>,
    reader: Known,
    bytes: Option<Bytes>,
}

/// What a reader knows of the list when it gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// All that was told before the frame, and no more.
    Before,
    /// Some of what the frame tells, because it began with a snapshot shortly before the frame.
    More,
    /// What was so in the midst of the frame.
    Midst(u64),
}

impl Frame {
    fn new(before: u64, after: u64, changes: Changes) -> Frame {
        let first = changes.values().map(|change| change.first).min().unwrap_or(u64::MAX);
        let (len, weight) = (changes.len(), changes.values().map(Change::weight).sum());
        let changes = ArcSwapOption::from_pointee(changes);
        Frame { before, after, first, len, weight, changes, rendered: Mutex::default() }
    }

    /// Several frames as one.
    pub fn joined(frames: &[Arc<Frame>]) -> Result<Frame, Forgotten> {
        let (before, after) =
            (frames.first().map_or(0, |first| first.before), frames.last().map_or(0, |last| last.after));
        let mut changes = Changes::new();
        for frame in frames {
            for (address, change) in &*frame.changes.load_full().ok_or(Forgotten)? {
                changes.entry(*address).and_modify(|known| known.then(change)).or_insert_with(|| change.clone());
            }
        }
        Ok(Frame::new(before, after, changes))
    }

    #[cfg(test)]
    pub fn empty(before: u64, after: u64) -> Frame {
        Frame::new(before, after, BTreeMap::new())
    }

    /// Whether a reader with this serial may lack some of it. What is told later than it happened, because its server was told a
    /// moment before, can come in a frame that begins and ends with the same serial.
    pub fn is_news(&self, serial: u64) -> bool {
        self.after > serial || (self.before, self.after) == (serial, serial)
    }

    /// The number of servers in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What its servers keep in memory, in bytes.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Frees everything, also for readers that have not taken it yet.
    pub fn forget(&self) {
        self.changes.store(None);
        self.forget_pieces();
    }

    /// What a reader with this serial gets, in its form; rendered on first use. `begun` is the serial that it began with. One with
    /// a snapshot of the frame's midst has some of it already.
    pub fn piece(
        &self,
        since: u64,
        begun: u64,
        form: &Arc<Form>,
        run: u32,
        held: &Arc<Held>,
    ) -> Result<Option<Bytes>, Forgotten> {
        let reader = match since > self.before {
            true => Known::Midst(since),
            false if begun >= self.first && !form.is_by_game() => Known::More,
            false => Known::Before,
        };
        let known = || {
            let rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
            let known = rendered.iter().find(|piece| Arc::ptr_eq(&piece.form, form) && piece.reader == reader);
            known.map(|piece| piece.bytes.clone())
        };
        if let Some(bytes) = known() {
            return Ok(bytes);
        }
        let changes = self.changes.load_full().ok_or(Forgotten)?;
        // Others get what is rendered meanwhile. Two readers of one form may both render it: what most read is prepared.
        let bytes = self.render(&changes, reader, form, run).map(|bytes| match bytes.len() {
            ..LONG_PIECE => bytes.into(),
            LONG_PIECE.. => held.share(bytes.into()),
        });
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if rendered.len() < FORMS_MAX {
            rendered.push(Piece { form: form.clone(), reader, bytes: bytes.clone() });
        }
        Ok(bytes)
    }

    /// Frees what has been rendered.
    pub fn forget_pieces(&self) {
        self.rendered.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The size of what has been rendered.
    pub fn bytes(&self) -> usize {
        let rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        rendered.iter().filter_map(|piece| Some(piece.bytes.as_ref()?.len())).sum()
    }

    fn render(&self, changes: &Changes, reader: Known, form: &Form, run: u32) -> Option<Vec<u8>> {
        let added = Rows { form, servers: Vec::new() };
        let mut deltas = Deltas { serial: self.after, removed: Vec::new(), added, changed: Vec::new() };
        let is_news = |change: &&Change| !matches!(reader, Known::Midst(since) if change.serial <= since);
        for change in changes.values().filter(is_news) {
            match reader {
                _ if form.is_by_game() => deltas.tell(change, form),
                Known::Before => deltas.tell_by_match(change, form),
                Known::More | Known::Midst(_) => deltas.tell_newest(change, form),
            }
        }
        (!deltas.is_empty()).then(|| form.event("delta", &id(run, self.after), &deltas))
    }
}

/// An event's id. Serials start again with each run of the program.
pub fn id(run: u32, serial: u64) -> String {
    format!("{run:08x}-{serial}")
}

/// Changes that readers have not been told yet.
pub struct Gathered {
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
    pub fn since(serial: u64) -> Gathered {
        Gathered { before: serial, newest: serial, gap: false, changes: BTreeMap::new(), told: HashMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.gap
    }

    /// Readers have to begin with a new snapshot.
    pub fn start_again(&mut self) {
        self.gap = true;
    }

    pub fn take(&mut self, received: Result<Arc<Batch>, RecvError>) {
        match received {
            Ok(batch) if batch.serial <= self.newest => {} // known already
            Ok(batch) => {
                self.gap |= batch.serial != self.newest + 1;
                self.newest = batch.serial;
                batch.deltas.iter().for_each(|delta| self.note(delta, batch.serial));
            }
            Err(_) => self.gap = true,
        }
    }

    fn note(&mut self, delta: &Delta, serial: u64) {
        let address = delta.server().address;
        match delta {
            // Readers see nothing of it. If they are about to be told of the server, its newest times come along.
            Delta::Proven(server) | Delta::Changed { now: server, fields: Fields::NONE, .. } => {
                if let Some((known, _)) = self.changes.get_mut(&address).and_then(|change| change.now.as_mut()) {
                    *known = server.clone();
                }
            }
            Delta::Added(server) => self.change(delta, serial).put(server, How::Added),
            Delta::Changed { now, fields, .. } => self.change(delta, serial).put(now, How::Changed(*fields)),
            Delta::Removed(server) => self.change(delta, serial).remove(server),
        }
    }

    /// What happens to the server of a delta.
    fn change(&mut self, delta: &Delta, serial: u64) -> &mut Change {
        let change = self.changes.entry(delta.server().address).or_insert_with(|| Change::new(delta, serial));
        change.serial = serial;
        change
    }

    /// The next frame, if there is something to tell. What readers were told a moment ago stays for a later one. More than
    /// `bytes_max` at once is not told one by one: readers begin again, with a snapshot that they share.
    pub fn frame(&mut self, now: Instant, bytes_max: usize) -> Option<Frame> {
        if self.changes.values().map(Change::weight).sum::<usize>() > bytes_max {
            self.changes.clear();
            self.gap = true;
        }
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
        Some(Frame::new(before, self.newest, changes))
    }
}

#[cfg(test)]
mod tests;

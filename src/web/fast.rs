//! A connection while it asks for nothing but lists that everybody shares: their answers are [prepared](super::answers), so a
//! request costs one read and one write. Anything else (other paths, parameters, bodies, HTTP/1.0, what cannot be read, a client
//! that is refused) is left to hyper, with the bytes that were read. A connection that was left to hyper stays there. Until then, it may
//! [move](crate::net::cores) to another core between two requests.
//!
//! What holds for all connections holds here: who the client is, its budget, the time that a head and a pause in reading may
//! take, and that a client that does not read its answer can be evicted.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use httparse::{Header, Request, Status};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::answers::{Form, Target};
use super::charge::REQUEST_BYTES;
use super::{Peer, Site, http, reply};
use crate::budget::Kind;
use crate::model::Now;
use crate::net::cores::Place;
use crate::net::guard::Admission;
use crate::net::stopped;
use crate::net::tcp::{Entrance, Settings};
use crate::registry::view::Body;
use crate::times;

/// The longest head that is read here. Few clients send more than half of this.
const HEAD_BYTES_MAX: usize = 4 << 10;
/// The longest request that is kept to compare the next one with it.
const LAST_BYTES_MAX: usize = 1 << 10;
/// The most headers that are read here.
const HEADERS_MAX: usize = 32;
/// Room for the head of an answer.
const ANSWER_HEAD_BYTES: usize = 1024;

/// Why a connection is not served here any more.
pub enum Left {
    /// It has ended, or the program stops.
    Ended,
    /// Something else was asked for: what was read of it.
    Other(Bytes),
    /// Its place is on another core now.
    Moved,
}

/// The place of a connection, and what tells on which processor its packets arrive.
pub struct Moving<'a, S>(pub &'a mut Place, pub fn(&S) -> Option<usize>);

pub struct Connection<'a, S> {
    stream: &'a mut S,
    /// None if it has to stay.
    moving: Option<Moving<'a, S>>,
    site: &'a Site,
    /// Whether it uses TLS.
    is_secure: bool,
    entrance: &'a Entrance,
    peer: SocketAddr,
    admission: &'a Admission,
    buffer: Vec<u8>,
    /// How much of the buffer was read, and how much of that is answered.
    filled: usize,
    answered: usize,
    /// What was asked for last.
    target: Option<Arc<Target>>,
    last: Option<Last>,
    /// The head of the answer.
    head: Vec<u8>,
    idle: Duration,
    /// When the client has to have done something.
    deadline: Instant,
    /// Wakes at the deadline, or before it: moving it for every request would cost more than looking again.
    alarm: Pin<Box<Sleep>>,
    stop: watch::Receiver<bool>,
    /// Completes when the program stops. None until the connection has waited for the first time: then it wakes this task, and
    /// need not be polled again, which would take a lock that all connections share.
    stopping: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// A request for a prepared list.
struct Asked {
    /// None: the same as before. Sharing it for each request would make all cores write to one place.
    target: Option<Arc<Target>>,
    client: SocketAddr,
    is_head: bool,
    encoding: Option<usize>,
    /// Where the tags are that the client knows.
    known: Option<Range<usize>>,
    /// Where the request ends.
    end: usize,
}

/// The last request that was read, if its client is the connection's own. Clients that ask again and again mostly send the same bytes.
struct Last {
    bytes: Vec<u8>,
    /// Who the client is depends on these.
    settings: Arc<Settings>,
    is_head: bool,
    encoding: Option<usize>,
    /// Where the tags are that the client knows, from its beginning.
    known: Option<Range<usize>>,
}

enum Found {
    Asked(Asked),
    /// More bytes are needed.
    Incomplete,
    /// Not for here.
    Other,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    pub fn new(
        stream: &'a mut S,
        moving: Option<Moving<'a, S>>,
        (site, is_secure): (&'a Site, bool),
        entrance: &'a Entrance,
        peer: SocketAddr,
        admission: &'a Admission,
        stop: watch::Receiver<bool>,
    ) -> Connection<'a, S> {
        let idle = entrance.settings().idle;
        let deadline = Instant::now() + idle;
        Connection {
            stream,
            moving,
            site,
            is_secure,
            entrance,
            peer,
            admission,
            buffer: vec![0; HEAD_BYTES_MAX],
            filled: 0,
            answered: 0,
            target: None,
            last: None,
            head: Vec::with_capacity(ANSWER_HEAD_BYTES),
            idle,
            deadline,
            alarm: Box::pin(sleep_until(deadline)),
            stop,
            stopping: None,
        }
    }

    /// Serves while lists are asked for that everybody shares, and this is the place for it.
    pub async fn serve(mut self) -> io::Result<Left> {
        loop {
            let found = match self.find_again() {
                Some(again) => Found::Asked(again),
                None => self.find(),
            };
            match found {
                Found::Asked(asked) => {
                    let end = asked.end;
                    // Asked before the answer is sent: over loopback, this thread itself receives its acknowledgement, wherever it
                    // runs.
                    let moves = self.moves(end);
                    if !self.answer(asked).await? {
                        return Ok(Left::Other(self.rest()));
                    }
                    self.answered = end;
                    if moves {
                        return Ok(Left::Moved);
                    }
                }
                Found::Incomplete if self.filled - self.answered < HEAD_BYTES_MAX => {
                    if !self.read().await? {
                        return Ok(Left::Ended);
                    }
                }
                Found::Incomplete | Found::Other => return Ok(Left::Other(self.rest())),
            }
        }
    }

    /// Whether it moves after the request that ends here, which must be the last one that was read.
    fn moves(&mut self, end: usize) -> bool {
        let moving = self.moving.as_mut().filter(|_| end == self.filled);
        moving.is_some_and(|Moving(place, processor)| place.moves(|| processor(self.stream)))
    }

    /// What is not answered.
    fn rest(mut self) -> Bytes {
        self.buffer.truncate(self.filled);
        Bytes::from(self.buffer).split_off(self.answered)
    }

    /// The request that the bytes begin with, if it is the same as the last one: nothing else is read of it.
    fn find_again(&self) -> Option<Asked> {
        let Last { bytes, settings, is_head, encoding, known } = self.last.as_ref()?;
        let target = self.target.as_ref()?;
        let is_same = self.buffer.get(self.answered..self.filled)?.starts_with(bytes);
        // The configuration may have changed since.
        let is_valid = || self.site.is_target(target.path, target) && Arc::ptr_eq(settings, &self.entrance.settings());
        (is_same && is_valid()).then(|| Asked {
            target: None,
            client: self.peer,
            is_head: *is_head,
            encoding: *encoding,
            known: known.as_ref().map(|known| self.answered + known.start..self.answered + known.end),
            end: self.answered + bytes.len(),
        })
    }

    /// The request that the bytes begin with.
    fn find(&mut self) -> Found {
        let bytes = self.buffer.get(self.answered..self.filled).unwrap_or_default();
        if bytes.is_empty() {
            return Found::Incomplete;
        }
        let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
        let mut request = Request::new(&mut []);
        match request.parse_with_uninit_headers(bytes, &mut headers) {
            Ok(Status::Complete(size)) => match self.read_request(&request, self.answered + size) {
                Some((asked, settings)) => {
                    self.last = self.remember(&asked, settings);
                    Found::Asked(asked)
                }
                None => Found::Other,
            },
            Ok(Status::Partial) => Found::Incomplete,
            Err(_) => Found::Other,
        }
    }

    fn remember(&mut self, asked: &Asked, settings: Arc<Settings>) -> Option<Last> {
        let mut bytes = self.last.take().map_or_else(Vec::new, |last| last.bytes);
        bytes.clear();
        let request = self.buffer.get(self.answered..asked.end);
        bytes.extend_from_slice(request.filter(|request| request.len() <= LAST_BYTES_MAX)?);
        let Asked { client, is_head, encoding, ref known, .. } = *asked;
        let known = known.as_ref().map(|known| known.start - self.answered..known.end - self.answered);
        (client == self.peer).then_some(Last { bytes, settings, is_head, encoding, known })
    }

    /// A request for a prepared list; none if it is for anything else, or may not be answered.
    fn read_request(&self, request: &Request<'_, '_>, end: usize) -> Option<(Asked, Arc<Settings>)> {
        let is_head = match request.method? {
            "GET" => false,
            "HEAD" => true,
            _ => return None,
        };
        if request.version != Some(1) || request.headers.iter().any(changes_the_meaning) {
            return None;
        }
        let path = request.path?;
        let is_last = self.target.as_ref().is_some_and(|last| self.site.is_target(path, last));
        let target = if is_last { None } else { Some(self.site.target(path)?) };
        let lines = |name: &'static str| values(request.headers, name);
        let settings = Arc::clone(&self.entrance.settings());
        let (of_clients, names) =
            (lines(settings.proxies.header.name()), request.headers.iter().map(|header| header.name));
        // Lists may be read through a forgotten proxy.
        let (Peer(client), _) = http::client(self.entrance, &settings, self.peer, of_clients, names)?;
        let mut known = lines("if-none-match").map(|line| range_in(&self.buffer, line));
        let asked = Asked {
            target,
            client,
            is_head,
            encoding: reply::accepted(|| lines("accept-encoding")),
            known: known.next(),
            end,
        };
        // Several lines of tags are rare.
        known.next().is_none().then_some((asked, settings))
    }

    /// Answers a request; false if it has to be refused.
    async fn answer(&mut self, mut asked: Asked) -> io::Result<bool> {
        let Some(target) = asked.target.take().or_else(|| self.target.take()) else { return Ok(false) };
        let (site, now, ip) = (self.site, self.site.hub.clock.now(), asked.client.ip());
        if site.guard.budgets().is_over(Kind::Lists, now, ip) {
            return Ok(false);
        }
        let ready = target.newest(site);
        let body = match ready.as_ref().and_then(|newest| newest.form(asked.encoding)) {
            Some(form) => self.compose(form, &asked, now),
            None => {
                drop(ready);
                let Ok(prepared) = target.prepared(site, asked.client).await else { return Ok(false) };
                let form = target.form(&prepared, asked.encoding, site, asked.client).await;
                self.compose(form, &asked, now)
            }
        };
        target.count(&site.metrics);
        site.guard.budgets().charge(Kind::Lists, now, ip, REQUEST_BYTES.max(body.len() as u64));
        self.target = Some(target);
        self.write(&body).await?;
        Ok(true)
    }

    /// Writes the head of an answer, and returns its body.
    fn compose(&mut self, form: &Form, asked: &Asked, now: Now) -> Body {
        let known = asked.known.clone().and_then(|known| self.buffer.get(known));
        let is_known = known.is_some_and(|line| reply::knows([line].into_iter(), &form.etag));
        self.head.clear();
        self.head.extend_from_slice(if is_known { &form.not_modified } else { &form.whole });
        if let Some(hsts) = self.site.hsts(self.is_secure) {
            self.head.extend_from_slice(b"Strict-Transport-Security: ");
            self.head.extend_from_slice(hsts.as_bytes());
            self.head.extend_from_slice(b"\r\n");
        }
        self.head.extend_from_slice(b"Date: ");
        self.head.extend_from_slice(&date(now.unix_ms / 1_000));
        self.head.extend_from_slice(b"\r\n\r\n");
        if is_known || asked.is_head { Body::default() } else { form.body.clone() }
    }

    /// Reads what there is; false at the end of the connection or of the program.
    async fn read(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.answered..self.filled, 0);
        self.filled -= std::mem::take(&mut self.answered);
        let read = poll_fn(|cx| {
            let mut room = ReadBuf::new(self.buffer.get_mut(self.filled..).unwrap_or_default());
            match Pin::new(&mut *self.stream).poll_read(cx, &mut room) {
                Poll::Ready(read) => Poll::Ready(read.map(|()| room.filled().len())),
                Poll::Pending if self.poll_stopping(cx) => Poll::Ready(Ok(0)),
                Poll::Pending => self.poll_late(cx).map(Err),
            }
        });
        let size = read.await?;
        self.filled += size;
        Ok(size > 0)
    }

    /// Sends the head and a body.
    async fn write(&mut self, body: &Body) -> io::Result<()> {
        let (first, rest) = body.pieces().split_first().map_or((&[][..], &[][..]), |(first, rest)| (first, rest));
        self.write_part(first).await?;
        self.head.clear();
        for piece in rest {
            self.write_part(piece).await?;
        }
        self.stream.flush().await?;
        self.admission.release();
        Ok(())
    }

    /// Sends the head, if there is any, and a piece.
    async fn write_part(&mut self, body: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        poll_fn(|cx| {
            while sent < self.head.len() + body.len() {
                let head = self.head.get(sent..).unwrap_or_default();
                let body = body.get(sent.saturating_sub(self.head.len())..).unwrap_or_default();
                let now = Instant::now();
                self.admission.touch_at(now);
                let stream = Pin::new(&mut *self.stream);
                let written = match (head, body) {
                    (one, []) | ([], one) => stream.poll_write(cx, one),
                    _ => stream.poll_write_vectored(cx, &[IoSlice::new(head), IoSlice::new(body)]),
                };
                match written {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(size)) => {
                        sent += size;
                        self.deadline = now + self.idle;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        self.admission.hold();
                        return self.poll_late(cx).map(Err);
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Whether the program stops. If not, it wakes this task when it does.
    fn poll_stopping(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stopping.is_some() {
            // An error means that the sender is gone, so the program stops.
            return self.stop.has_changed().unwrap_or(true) && *self.stop.borrow();
        }
        let mut stop = self.stop.clone();
        let stopping = self.stopping.insert(Box::pin(async move { stopped(&mut stop).await }));
        stopping.as_mut().poll(cx).is_ready()
    }

    /// Ready when the deadline has passed.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        while self.alarm.as_mut().poll(cx).is_ready() {
            if Instant::now() >= self.deadline {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            self.alarm.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }
}

/// Whether a header makes a request more than a question for a list: a body, or another use of the connection.
fn changes_the_meaning(header: &Header<'_>) -> bool {
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    match header.name.len() {
        6 => is("expect"),
        7 => is("upgrade"),
        10 => is("connection") && !header.value.eq_ignore_ascii_case(b"keep-alive"),
        14 => is("content-length"),
        17 => is("transfer-encoding"),
        _ => false,
    }
}

fn values<'a>(headers: &'a [Header<'a>], name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// Where a part of a buffer is in it.
fn range_in(buffer: &[u8], part: &[u8]) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(buffer.as_ptr() as usize);
    start..start + part.len()
}

/// The length of a date in a header.
const DATE_BYTES: usize = 29;

/// The date as headers have it, written once a second in each thread.
fn date(unix_s: u64) -> [u8; DATE_BYTES] {
    thread_local! {
        static WRITTEN: Cell<(u64, [u8; DATE_BYTES])> = const { Cell::new((u64::MAX, [b' '; DATE_BYTES])) };
    }
    let (written_s, date) = WRITTEN.get();
    if written_s == unix_s {
        return date;
    }
    let mut date = [b' '; DATE_BYTES];
    for (place, byte) in date.iter_mut().zip(times::http_date(unix_s).bytes()) {
        *place = byte;
    }
    WRITTEN.set((unix_s, date));
    date
}

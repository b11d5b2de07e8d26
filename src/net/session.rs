//! Drives a protocol's session over a TCP connection: reads, writes and timeouts.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::announcements::Announcements;
use super::guard::Admission;
use crate::budget::Kind;
use crate::metrics::Metrics;
use crate::protocols::{Next, Output, Session, SessionInput, StreamRules};
use crate::registry::view::{Rendered, Renderer};

/// Size of the read buffer. Requests are shorter; further data stays in the socket until these are answered.
pub(super) const READ_BYTES: usize = 4096;
/// Parts of answers per system call, which leave in one segment if they fit.
const PARTS_AT_ONCE: usize = 32;
/// After the last answer, input is read and discarded for this long and up to this size: closing with unread data causes a
/// reset, and the client could lose the answer.
const LINGER: Duration = Duration::from_secs(1);
pub(super) const LINGER_BYTES_MAX: usize = 256 << 10;

/// The rules of a protocol, replaced when the configuration changes.
pub type SharedStreamRules = Arc<ArcSwap<Box<dyn StreamRules>>>;

/// What all connections of one protocol share.
pub struct StreamService {
    pub game: &'static str,
    pub rules: SharedStreamRules,
    pub announcements: Arc<Announcements>,
    pub metrics: Arc<Metrics>,
    pub numbers: Numbers,
}

/// Numbers that nobody can foretell, one for each connection, without a system call for each.
#[derive(Default)]
pub struct Numbers {
    key: RandomState,
    drawn: AtomicU64,
}

impl Numbers {
    fn next(&self) -> u32 {
        self.key.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed)) as u32
    }
}

impl StreamService {
    /// Opens a session between two addresses, `(peer, local)`. The number is one that nobody can foretell.
    pub fn open(&self, (peer, local): (SocketAddr, SocketAddr), random: u32) -> Talk {
        let mut session = self.rules.load().open(peer, local, random);
        let mut out = Vec::new();
        let next = session.on(SessionInput::Opened, &mut out);
        Talk { peer, session, next, out, parts: Vec::new(), input: Vec::new(), ended: false }
    }

    /// The same for a connection.
    pub fn open_connection(&self, peer: SocketAddr, local: SocketAddr) -> Talk {
        self.open((peer, local), self.numbers.next())
    }

    /// Moves answers to the parts, as bytes, up to a list that has to be rendered first. False if there is one.
    pub fn render_ready(&self, talk: &mut Talk) -> bool {
        let Talk { peer, session, next, parts, out, .. } = talk;
        let mut done = 0;
        for output in &*out {
            let pushed = match output {
                Output::Bytes(bytes) => {
                    push(parts, bytes.clone());
                    Ok(())
                }
                Output::List(renderer) => match self.announcements.hub.ready_list(renderer) {
                    Some(list) => admit(&self.announcements, peer.ip())
                        .map(|()| push_list(&self.announcements, peer.ip(), &list, parts)),
                    None => break,
                },
            };
            match pushed {
                Ok(()) => done += 1,
                Err(reason) => {
                    parts.extend(session.refused(&reason));
                    (done, *next) = (out.len(), Next::Close);
                    break;
                }
            }
        }
        out.drain(..done);
        out.is_empty()
    }

    /// Counts what a session has sent, at its end.
    pub fn count(&self, talk: &Talk) {
        self.metrics.listed(self.game, talk.session.lists());
    }
}

/// A conversation between two steps.
pub struct Talk {
    pub peer: SocketAddr,
    pub session: Box<dyn Session>,
    pub next: Next,
    /// Answers that are not written yet: first the parts, then the rest, which may have lists to be rendered.
    pub parts: Vec<Bytes>,
    pub out: Vec<Output>,
    /// What was read, and the session has not taken, for [`Next::Write`].
    pub input: Vec<u8>,
    /// Whether the client has closed its side.
    pub ended: bool,
}

/// Serves one connection to its end.
pub async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    admission: Arc<Admission>,
    service: Arc<StreamService>,
    idle: Duration,
) {
    let Ok(local) = stream.local_addr() else { return };
    let talk = service.open_connection(peer, local);
    converse(stream, talk, admission, service, idle).await;
}

/// Goes on with a conversation, over any stream.
pub async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    talk: Talk,
    admission: Arc<Admission>,
    service: Arc<StreamService>,
    idle: Duration,
) {
    let own = service.rules.load().patience_ms().map(Duration::from_millis);
    let idle = own.map_or(idle, |own| idle.min(own));
    let mut connection = Connection { stream, talk, announcements: service.announcements.clone(), admission, idle };
    if let Err(error) = connection.run().await {
        debug!(peer = %connection.talk.peer, %error, "connection ended");
    }
    service.count(&connection.talk);
}

struct Connection<S> {
    stream: S,
    talk: Talk,
    announcements: Arc<Announcements>,
    admission: Arc<Admission>,
    idle: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    async fn run(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        let mut unread = 0..0; // bytes in the buffer that the session has not taken yet
        for (place, byte) in buffer.iter_mut().zip(self.talk.input.drain(..)) {
            (*place, unread.end) = (byte, unread.end + 1);
        }
        // A request has to be complete within the idle time; an answer restarts it.
        let mut deadline = Instant::now() + self.idle;
        loop {
            // Apply it before the answer is sent, so that the client finds the server removed.
            if let Next::Quit { address, master } = self.talk.next {
                self.announcements.quit(address, master).await;
            }
            if !self.talk.out.is_empty() || !self.talk.parts.is_empty() {
                if !self.render().await {
                    self.talk.next = Next::Close;
                }
                self.admission.hold();
                self.write().await?;
                self.admission.release();
                self.admission.touch();
                deadline = Instant::now() + self.idle;
            }
            self.talk.next = match std::mem::replace(&mut self.talk.next, Next::Read) {
                Next::Read => {
                    let size = timeout_at(deadline, self.stream.read(&mut buffer)).await??;
                    unread = 0..size;
                    self.talk.read(buffer.get(..size).unwrap_or_default())
                }
                Next::Write { taken } => {
                    // A client with many requests takes turns with the others.
                    tokio::task::yield_now().await;
                    unread.start += taken;
                    self.talk.feed(SessionInput::Bytes(buffer.get(unread.clone()).unwrap_or_default()))
                }
                Next::Announce(heartbeat) => {
                    let verdict = self.announcements.announce(heartbeat).await;
                    self.talk.feed(SessionInput::Verdict(verdict))
                }
                Next::Close | Next::Quit { .. } if self.talk.ended => return Ok(()), // nothing more can come
                Next::Close | Next::Quit { .. } => break,
            };
        }
        self.stream.shutdown().await?;
        let _ = timeout(LINGER, self.drain(&mut buffer)).await; // a timeout is no error
        Ok(())
    }

    /// Writes everything, as long as the client reads some of it within the idle time. The parts are shared with other
    /// connections, so they are not copied; each is released as soon as it is written.
    async fn write(&mut self) -> io::Result<()> {
        while !self.talk.is_written() {
            let written = timeout(self.idle, self.stream.write_vectored(&self.talk.slices())).await??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.talk.written(written);
        }
        Ok(())
    }

    async fn drain(&mut self, buffer: &mut [u8]) {
        let mut drained = 0;
        while drained < LINGER_BYTES_MAX {
            match self.stream.read(buffer).await {
                Ok(0) | Err(_) => return,
                Ok(size) => drained += size,
            }
        }
    }

    /// Moves answers to the parts, as bytes. Lists are rendered on other threads. False if one was refused: the answers after it
    /// are not sent, because the client would take them for others.
    async fn render(&mut self) -> bool {
        let Talk { peer, session, parts, out, .. } = &mut self.talk;
        for output in out.drain(..) {
            match output {
                Output::Bytes(bytes) => push(parts, bytes),
                Output::List(renderer) => match list(&self.announcements, peer.ip(), &renderer).await {
                    Ok(list) => push_list(&self.announcements, peer.ip(), &list, parts),
                    Err(reason) => {
                        parts.extend(session.refused(&reason));
                        return false;
                    }
                },
            }
        }
        true
    }
}

impl Talk {
    pub fn feed(&mut self, input: SessionInput<'_>) -> Next {
        self.session.on(input, &mut self.out)
    }

    /// Passes on what was read: nothing at the end.
    pub fn read(&mut self, bytes: &[u8]) -> Next {
        self.ended = bytes.is_empty();
        self.feed(if self.ended { SessionInput::Ended } else { SessionInput::Bytes(bytes) })
    }

    pub fn is_written(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts that one system call writes. They are shared with other connections, so they are not copied.
    pub fn slices(&self) -> ArrayVec<IoSlice<'_>, PARTS_AT_ONCE> {
        self.parts.iter().take(PARTS_AT_ONCE).map(|part| IoSlice::new(part)).collect()
    }

    /// So many bytes of them are written. Each part is released as soon as all of it is.
    pub fn written(&mut self, mut size: usize) {
        let whole = self.parts.iter().take_while(|part| {
            let is_whole = part.len() <= size;
            size -= if is_whole { part.len() } else { 0 };
            is_whole
        });
        let whole = whole.count();
        self.parts.drain(..whole);
        if let Some(first) = self.parts.first_mut() {
            first.advance(size);
        }
    }
}

/// Adds a part, if it is any: nothing can be written of an empty one.
fn push(parts: &mut Vec<Bytes>, part: Bytes) {
    parts.extend(Some(part).filter(|part| !part.is_empty()));
}

/// A list within the client's budget, or the reason why not.
async fn list(of: &Announcements, ip: IpAddr, renderer: &Arc<dyn Renderer>) -> Result<Arc<Rendered>, String> {
    admit(of, ip)?;
    of.hub.list(renderer, ip).await.map_err(|refusal| refusal.to_string())
}

fn admit(of: &Announcements, ip: IpAddr) -> Result<(), String> {
    of.guard.budgets().admit(Kind::Lists, of.hub.clock.now(), ip).map_err(|over| over.to_string())
}

/// Adds a list, and charges it to the client that gets it.
fn push_list(of: &Announcements, ip: IpAddr, list: &Rendered, parts: &mut Vec<Bytes>) {
    of.guard.budgets().charge(Kind::Lists, of.hub.clock.now(), ip, list.body.len() as u64);
    parts.extend_from_slice(list.body.pieces());
}

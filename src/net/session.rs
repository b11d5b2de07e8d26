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
use crate::registry::view::Renderer;

/// Size of the read buffer. Requests are shorter; further data stays in the socket until these are answered.
const READ_BYTES: usize = 4096;
/// Parts of answers per system call, which leave in one segment if they fit.
const PARTS_AT_ONCE: usize = 32;
/// After the last answer, input is read and discarded for this long and up to this size: closing with unread data causes a
/// reset, and the client could lose the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 256 << 10;

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

/// Serves one connection to its end.
pub async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    admission: Arc<Admission>,
    service: Arc<StreamService>,
    idle: Duration,
) {
    let Ok(local) = stream.local_addr() else { return };
    let random = service.numbers.next();
    converse(stream, (peer, local), random, admission, service, idle).await;
}

/// The same over any stream between two addresses, `(peer, local)`.
pub async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (peer, local): (SocketAddr, SocketAddr),
    random: u32,
    admission: Arc<Admission>,
    service: Arc<StreamService>,
    idle: Duration,
) {
    let (session, idle) = {
        let rules = service.rules.load();
        let idle = rules.patience_ms().map_or(idle, |own| idle.min(Duration::from_millis(own)));
        (rules.open(peer, local, random), idle)
    };
    let mut connection =
        Connection { stream, peer, session, announcements: service.announcements.clone(), admission, idle };
    if let Err(error) = connection.run().await {
        debug!(%peer, %error, "connection ended");
    }
    service.metrics.listed(service.game, connection.session.lists());
}

struct Connection<S> {
    stream: S,
    peer: SocketAddr,
    session: Box<dyn Session>,
    announcements: Arc<Announcements>,
    admission: Arc<Admission>,
    idle: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    async fn run(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        let mut unread = 0..0; // bytes in the buffer that the session has not taken yet
        let (mut out, mut parts) = (Vec::new(), Vec::new());
        let mut next = self.feed(SessionInput::Opened, &mut out);
        // A request has to be complete within the idle time; an answer restarts it.
        let mut deadline = Instant::now() + self.idle;
        let mut ended = false;
        loop {
            // Apply it before the answer is sent, so that the client finds the server removed.
            if let Next::Quit { address, master } = next {
                self.announcements.quit(address, master).await;
            }
            if !out.is_empty() {
                if !self.rendered(&mut out, &mut parts).await {
                    next = Next::Close;
                }
                self.admission.hold();
                self.write(&mut parts).await?;
                self.admission.release();
                self.admission.touch();
                deadline = Instant::now() + self.idle;
            }
            next = match next {
                Next::Read => {
                    let size = timeout_at(deadline, self.stream.read(&mut buffer)).await??;
                    ended = size == 0;
                    unread = 0..size;
                    let input = if ended {
                        SessionInput::Ended
                    } else {
                        SessionInput::Bytes(buffer.get(..size).unwrap_or_default())
                    };
                    self.feed(input, &mut out)
                }
                Next::Write { taken } => {
                    // A client with many requests takes turns with the others.
                    tokio::task::yield_now().await;
                    unread.start += taken;
                    self.feed(SessionInput::Bytes(buffer.get(unread.clone()).unwrap_or_default()), &mut out)
                }
                Next::Announce(heartbeat) => {
                    let verdict = self.announcements.announce(heartbeat).await;
                    self.feed(SessionInput::Verdict(verdict), &mut out)
                }
                Next::Close | Next::Quit { .. } if ended => return Ok(()), // nothing more can come
                Next::Close | Next::Quit { .. } => break,
            };
        }
        self.stream.shutdown().await?;
        let _ = timeout(LINGER, self.drain(&mut buffer)).await; // a timeout is no error
        Ok(())
    }

    fn feed(&mut self, input: SessionInput<'_>, out: &mut Vec<Output>) -> Next {
        self.session.on(input, out)
    }

    /// Writes everything, as long as the client reads some of it within the idle time. The parts are shared with other
    /// connections, so they are not copied; each is released as soon as it is written.
    async fn write(&mut self, out: &mut Vec<Bytes>) -> io::Result<()> {
        out.retain(|part| !part.is_empty());
        let mut first = 0;
        while let Some(parts) = out.get_mut(first..).filter(|parts| !parts.is_empty()) {
            let mut written = timeout(self.idle, self.write_some(parts)).await??;
            for part in parts {
                let taken = written.min(part.len());
                part.advance(taken);
                written -= taken;
                if !part.is_empty() {
                    break;
                }
                *part = Bytes::new();
                first += 1;
            }
        }
        out.clear();
        Ok(())
    }

    async fn write_some(&mut self, parts: &[Bytes]) -> io::Result<usize> {
        let slices: ArrayVec<_, PARTS_AT_ONCE> =
            parts.iter().take(PARTS_AT_ONCE).map(|part| IoSlice::new(part)).collect();
        match self.stream.write_vectored(&slices).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
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

    /// Moves answers to `parts` as bytes. Lists are rendered on other threads. False if one was refused: the answers after it are
    /// not sent, because the client would take them for others.
    async fn rendered(&mut self, out: &mut Vec<Output>, parts: &mut Vec<Bytes>) -> bool {
        for output in out.drain(..) {
            match output {
                Output::Bytes(bytes) => parts.push(bytes),
                Output::List(renderer) => match list(&self.announcements, self.peer.ip(), &renderer).await {
                    Ok(list) => parts.push(list),
                    Err(reason) => {
                        parts.extend(self.session.refused(&reason));
                        return false;
                    }
                },
            }
        }
        true
    }
}

/// A list within the client's budget, or the reason why not.
async fn list(of: &Announcements, ip: IpAddr, renderer: &Arc<dyn Renderer>) -> Result<Bytes, String> {
    of.guard.budgets().admit(Kind::Lists, of.hub.clock.now(), ip).map_err(|over| over.to_string())?;
    let list = of.hub.list(renderer, ip).await.map_err(|refusal| refusal.to_string())?;
    of.guard.budgets().charge(Kind::Lists, of.hub.clock.now(), ip, list.body.len() as u64);
    Ok(list.body.clone())
}

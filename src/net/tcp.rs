//! Accepts TCP connections. An error never ends the loop: it is logged, and accepting goes on.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::client::{Proxies, canonical};
use super::cores::Cores;
use super::guard::{Admission, Guard};
use super::{proxy, stopped};
use crate::metrics::Metrics;

/// Pause after an error. When descriptors or memory run out, only waiting helps; pending connections stay in the backlog.
const AFTER_ERROR: Duration = Duration::from_millis(20);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What all listeners share: who is let in, and on whose behalf.
pub struct Entrance {
    pub guard: Arc<Guard>,
    metrics: Arc<Metrics>,
    settings: ArcSwap<Settings>,
    failures: Seldom,
    refusals: Seldom,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub proxies: Proxies,
    /// How long a connection may be idle.
    pub idle: Duration,
}

impl Entrance {
    pub fn new(guard: Arc<Guard>, metrics: Arc<Metrics>, settings: Settings) -> Entrance {
        let settings = ArcSwap::from_pointee(settings);
        Entrance { guard, metrics, settings, failures: Seldom::default(), refusals: Seldom::default() }
    }

    pub fn set(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    pub fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Admits a connection of a client, or of a proxy.
    pub fn admit(&self, ip: IpAddr, is_proxy: bool) -> Option<Arc<Admission>> {
        let admission = if is_proxy { self.guard.admit_proxy(ip) } else { self.guard.admit(ip) };
        if admission.is_none() {
            debug!(%ip, "connection refused: banned");
        }
        admission.map(Arc::new)
    }

    /// What to do about a connection that could not be accepted: how long to wait before the next one, if at all.
    pub fn failed(&self, error: &io::Error) -> Option<Duration> {
        if is_peer_error(error) {
            debug!(%error, "connection closed before it was accepted");
            return None;
        }
        // Most likely out of descriptors: evict an idle connection.
        self.guard.evict_idle();
        if self.failures.is_due() {
            warn!(%error, "accepting a connection failed; retrying");
        }
        Some(AFTER_ERROR)
    }

    /// The client of a connection, and its admission. A proxy's connection is the proxy's own until its header is read.
    async fn client(
        &self,
        stream: &mut TcpStream,
        peer: SocketAddr,
        admission: Arc<Admission>,
        mut stop: watch::Receiver<bool>,
    ) -> Option<(SocketAddr, Arc<Admission>)> {
        let settings = self.settings.load_full();
        if !settings.proxies.protocol.contains(peer.ip()) {
            return Some((peer, admission));
        }
        let header = tokio::select! {
            header = timeout(settings.idle, read_header(stream)) => header.unwrap_or(Err("it did not arrive in time")),
            () = admission.evicted() => return None,
            () = stopped(&mut stop) => return None,
        };
        match header {
            Ok(Header::Client(client)) => {
                let client = canonical(client);
                Some((client, self.admit(client.ip(), settings.proxies.networks.contains(client.ip()))?))
            }
            Ok(Header::Proxy) => Some((peer, admission)),
            Ok(Header::Nothing) => None,
            Err(why) => {
                self.metrics.proxy_refusals.inc();
                if self.refusals.is_due() {
                    warn!("{peer} is in proxy.protocol, but sent no valid PROXY header ({why}): closed");
                }
                None
            }
        }
    }
}

/// How a proxy's connection begins.
enum Header {
    Client(SocketAddr),
    /// The connection is the proxy's own.
    Proxy,
    /// It ends without a byte: the proxy has checked whether the port is open.
    Nothing,
}

/// Reads a PROXY header and nothing of what follows it.
async fn read_header(stream: &mut TcpStream) -> Result<Header, &'static str> {
    let mut buffer = vec![0; proxy::HEADER_BYTES_MAX];
    let mut read = 0;
    loop {
        let rest = buffer.get_mut(read..).filter(|rest| !rest.is_empty()).ok_or("it is too long")?;
        let peeked = stream.peek(rest).await.map_err(|_| "the connection failed")?;
        if peeked == 0 {
            return if read == 0 { Ok(Header::Nothing) } else { Err("it is cut off") };
        }
        let header =
            proxy::parse(buffer.get(..read + peeked).unwrap_or_default()).map_err(|_| "it is something else")?;
        // All of an incomplete header belongs to it.
        let end = header.map_or(read + peeked, |header| header.size);
        let own = buffer.get_mut(read..end).unwrap_or_default();
        stream.read_exact(own).await.map_err(|_| "the connection failed")?;
        if let Some(header) = header {
            return Ok(header.client.map_or(Header::Proxy, Header::Client));
        }
        read = end;
    }
}

/// Passes every admitted connection to `serve`, with its client, each on its own task, until `stop` is set. A connection that
/// is evicted to make room for another is dropped immediately. With `cores`, the tasks run there.
pub async fn accept<S, F>(
    listener: TcpListener,
    entrance: Arc<Entrance>,
    cores: Option<Arc<Cores>>,
    mut stop: watch::Receiver<bool>,
    serve: S,
) where
    S: Fn(TcpStream, SocketAddr, Arc<Admission>) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let serve = Arc::new(serve);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let is_proxy = entrance.settings().proxies.contains(peer.ip());
                let Some(admission) = entrance.admit(peer.ip(), is_proxy) else { continue };
                let (entrance, serve, stop) = (entrance.clone(), serve.clone(), stop.clone());
                let task = move |stream: TcpStream| async move {
                    attend(&entrance, stream, peer, admission, stop, &*serve).await;
                };
                spawn(stream, cores.as_deref(), task);
            }
            Err(error) => {
                if let Some(pause) = entrance.failed(&error) {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}

/// Serves an admitted connection, behind a proxy after its header is read. It is dropped when it is evicted.
pub async fn attend<F: Future<Output = ()>>(
    entrance: &Entrance,
    mut stream: TcpStream,
    peer: SocketAddr,
    admission: Arc<Admission>,
    stop: watch::Receiver<bool>,
    serve: &impl Fn(TcpStream, SocketAddr, Arc<Admission>) -> F,
) {
    let client = entrance.client(&mut stream, peer, admission, stop).await;
    let Some((client, admission)) = client else { return };
    unless_evicted(client, &admission, serve(stream, client, admission.clone())).await;
}

/// Serves a connection until it is evicted.
pub async fn unless_evicted(client: SocketAddr, admission: &Admission, serve: impl Future<Output = ()>) {
    tokio::select! {
        biased; // most polls are about what it serves
        () = serve => {}
        () = admission.evicted() => debug!(%client, "connection closed: evicted while idle"),
    }
}

/// Starts a connection's task, on one of the cores if there are any.
fn spawn<F: Future<Output = ()> + Send + 'static>(
    stream: TcpStream,
    cores: Option<&Cores>,
    task: impl FnOnce(TcpStream) -> F + Send + 'static,
) {
    let Some(core) = cores.and_then(Cores::next) else {
        tokio::spawn(task(stream));
        return;
    };
    // It belongs to the runtime that it was accepted in.
    let Ok(stream) = stream.into_std() else { return };
    core.spawn(async move {
        if let Ok(stream) = TcpStream::from_std(stream) {
            task(stream).await;
        }
    });
}

/// The processor on which the last packet of a connection arrived, where the system tells.
pub fn arrives_on(stream: &TcpStream) -> Option<usize> {
    SockRef::from(stream).cpu_affinity().ok()
}

/// Lets a warning through once a minute.
#[derive(Default)]
struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() > WARN_EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// Whether the peer caused an accept error.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

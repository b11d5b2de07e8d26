//! Accepts TCP connections. An error never ends the loop: it is logged, and accepting goes on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::guard::{Admission, Guard};
use super::stopped;

/// Pause after an error. When descriptors or memory run out, only waiting helps; pending connections stay in the backlog.
const AFTER_ERROR: Duration = Duration::from_millis(20);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Passes every admitted connection to `serve`, each on its own task, until `stop` is set. A connection that is evicted to
/// make room for another is dropped immediately.
pub async fn accept<S, F>(listener: TcpListener, guard: Arc<Guard>, mut stop: watch::Receiver<bool>, serve: S)
where
    S: Fn(TcpStream, SocketAddr, Arc<Admission>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut last_warning = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(admission) = guard.admit(peer.ip()) else {
                    debug!(%peer, "connection refused: banned");
                    continue;
                };
                let admission = Arc::new(admission);
                let serving = serve(stream, peer, admission.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        () = admission.evicted() => debug!(%peer, "connection closed: evicted while idle"),
                    }
                });
            }
            Err(error) if is_peer_error(&error) => debug!(%error, "connection closed before it was accepted"),
            Err(error) => {
                // Most likely out of descriptors: evict an idle connection.
                guard.evict_idle();
                if last_warning.is_none_or(|at: Instant| at.elapsed() > WARN_EVERY) {
                    last_warning = Some(Instant::now());
                    warn!(%error, "accepting a connection failed; retrying");
                }
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Whether the peer caused an accept error.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

//! Accepting TCP connections. An error here never ends the program: it is told, and the loop goes on.

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

/// Out of descriptors or memory: waiting is all that helps, and the waiting connections do not go away.
const AFTER_ERROR: Duration = Duration::from_millis(20);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Hands every admitted connection to `serve`, each on a task of its own, until `stop` turns true. A connection that
/// has to make room for another is dropped where it stands.
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
                        () = admission.evicted() => debug!(%peer, "connection closed: it was idle, and its place was needed"),
                    }
                });
            }
            Err(error) if is_the_peers(&error) => debug!(%error, "a connection was gone before it was accepted"),
            Err(error) => {
                // Most likely there are no more descriptors: somebody who sits idle has to give one back.
                guard.make_room();
                if last_warning.is_none_or(|at: Instant| at.elapsed() > WARN_EVERY) {
                    last_warning = Some(Instant::now());
                    warn!(%error, "accepting failed; going on");
                }
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Whether an accept failed because of the peer, not because of us.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

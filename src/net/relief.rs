//! Keeps the memory that rendered lists take within its bound: when slow readers hold too many of them, the connections that have
//! held one for longest are closed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::debug;

use super::guard::Guard;
use super::stopped;
use crate::hub::Hub;

/// How many are closed at a time, before looking again at what that has freed.
const AT_ONCE: usize = 16;
const PAUSE: Duration = Duration::from_millis(10);
/// The pause where nobody holds anything: the common lists alone take more than the bound.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// Runs until stopped.
pub async fn run(hub: Arc<Hub>, guard: Arc<Guard>, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = hub.held().over() => {}
            () = stopped(&mut stop) => return,
        }
        hub.forget_own_lists();
        let evicted = if hub.held().is_over() { guard.evict_holders(AT_ONCE) } else { 0 };
        debug!(bytes = hub.held().bytes(), evicted, "rendered lists take too much memory");
        tokio::time::sleep(if evicted > 0 { PAUSE } else { LONG_PAUSE }).await;
    }
}

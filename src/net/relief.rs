//! Keeps the memory that rendered lists take within its bound: when slow readers hold too many of them, connections of the
//! networks that hold the most are closed.

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
            () = hub.held().high() => {}
            () = stopped(&mut stop) => return,
        }
        hub.spare_lists();
        if !hub.held().is_high() {
            continue;
        }
        let evicted = guard.evict_holders(AT_ONCE);
        debug!(bytes = hub.held().bytes(), evicted, "rendered lists take too much memory");
        tokio::time::sleep(if evicted > 0 { PAUSE } else { LONG_PAUSE }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget;
    use crate::net::guard::Settings;
    use crate::registry::view::{Body, Renderer, View};
    use std::net::IpAddr;

    struct OwnList;

    impl Renderer for OwnList {
        fn render(&self, _view: &View) -> Body {
            vec![0; 900].into()
        }

        fn is_common(&self) -> bool {
            false
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_at_once_after_only_the_cache_was_in_the_way() {
        let settings = crate::registry::Settings {
            servers_max: 1,
            servers_per_ip_max: 1,
            ask_every_ms: 1,
            misses_max: 1,
            ..crate::registry::Settings::UNBOUNDED
        };
        let hub = Arc::new(Hub::new(settings));
        let limits = Settings {
            connections_max: 9,
            per_ip_max: 9,
            bans: Default::default(),
            budgets: budget::Settings::default(),
        };
        let guard = Arc::new(Guard::new(limits));
        let (stop, stopping) = watch::channel(false);
        let running = tokio::spawn(run(hub.clone(), guard.clone(), stopping));
        hub.held().set_max(1_000);
        let renderer: Arc<dyn Renderer> = Arc::new(OwnList);
        drop(hub.list_blocking(&renderer));
        assert!(hub.held().is_high());
        while hub.held().is_high() {
            tokio::task::yield_now().await;
        }
        let reader = guard.admit(IpAddr::from([192, 0, 2, 1])).unwrap();
        reader.hold();
        let _answer = hub.held().count(vec![0; 900]);
        let in_time = tokio::time::timeout(LONG_PAUSE / 2, reader.evicted()).await;
        assert!(in_time.is_ok(), "others are refused until room is made");
        stop.send_replace(true);
        running.await.unwrap();
    }
}

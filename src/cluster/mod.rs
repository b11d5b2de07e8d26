//! The cluster: several nodes share one server list through NATS JetStream's key-value store. Each node keeps the whole
//! list in memory, puts what it has proven, watches what the others put, and merges that through the registry.
//!
//! A `session` lasts as long as one connection to the store. Each new session reads the whole list again and puts what
//! the store lacks. Between sessions the node serves alone. Nothing here is on the hot path.
//!
//! `buckets` creates and repairs the store's buckets. The other modules know no socket and no clock: [`record`] (format
//! of the stored values), [`clock`] (the store's time), [`outbox`] (what has to be put), `in_flight` (what the store
//! has not acknowledged yet), [`share`] (which node queries
//! which server), [`keyring`] (the shared cookie keys), [`decision`] (the operator's decisions), and `simulation.rs`, which tests all of it in virtual time.

mod buckets;
pub mod clock;
pub mod decision;
mod decisions;
mod in_flight;
pub mod keyring;
pub mod outbox;
pub mod record;
mod session;
pub mod share;
#[cfg(test)]
mod simulation;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{ConnectOptions, Event, ServerAddr};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use crate::cookie::Keys;
use crate::hub::Hub;
use crate::metrics::{ClusterFigures, Metrics};
use crate::model::SharedTime;
use crate::net::guard::Guard;
use crate::net::moderator::Moderator;
use crate::net::stopped;
use buckets::SessionError;
use clock::Offset;
use keyring::Keyring;
use record::{node_id, node_tag};
use session::Session;
use share::{Nodes, Share};

/// How long to wait for a NATS server to accept a connection or answer a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Exponential backoff between two attempts to connect.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(250);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// The NATS client gives up a connection after two unanswered pings.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How often the live nodes are counted and the age of the keys is checked.
const TICK: Duration = Duration::from_secs(1);
/// The same warning is not repeated within this time.
const WARN_EVERY_MS: u64 = 60_000;

/// The `[cluster]` section of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// URLs of the NATS servers. Empty: no cluster.
    pub nats: Vec<String>,
    /// 0: one per NATS server, up to 3.
    pub replicas: usize,
    /// This node's name. Empty: a random one.
    pub node: String,
    pub credentials: Option<PathBuf>,
    pub ca: Option<PathBuf>,
}

impl Settings {
    /// Checks that the files are readable, so that a mistake shows at startup and not on the first connection.
    pub fn check(&self) -> Result<(), String> {
        let files = [("cluster.credentials", &self.credentials), ("cluster.ca", &self.ca)];
        for (key, path) in files {
            if let Some(path) = path {
                std::fs::read(path).map_err(|error| format!("{key}: {}: {error}", path.display()))?;
            }
        }
        Ok(())
    }
}

/// This node's membership of the cluster.
pub struct Cluster {
    settings: Settings,
    name: String,
    /// Random: distinguishes this process from another node with the same name.
    run: u32,
    /// The longest life of a server: how long the store has to keep a record.
    life_max: Duration,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    share: Arc<Share>,
    /// None: decisions are not shared.
    moderator: Option<Arc<Moderator>>,
    metrics: Arc<Metrics>,
    /// Puts new cookie keys and the cluster's time into use before it returns.
    use_cookies: Box<dyn Fn(Keys, SharedTime) + Send + Sync>,
    ring: Mutex<Keyring>,
    time: Mutex<SharedTime>,
    /// Whether a session is established. The metric may still say "not connected", while puts are rejected.
    in_session: AtomicBool,
    nodes: Mutex<Nodes>,
    warned_at_ms: Mutex<Vec<(&'static str, u64)>>,
}

impl Cluster {
    /// `keys` are the cookie keys to use until the store's are known; `random` names a node without a configured name.
    pub fn new(
        settings: Settings,
        life_max: Duration,
        hub: Arc<Hub>,
        guard: Arc<Guard>,
        metrics: Arc<Metrics>,
        keys: Keys,
        random: u32,
    ) -> Cluster {
        let name = if settings.node.is_empty() { format!("{random:08x}") } else { settings.node.clone() };
        let own = node_id(&name);
        hub.set_node(node_tag(&name));
        let ring = Keyring::new(keys, hub.clock.now().mono_ms);
        Cluster {
            settings,
            name,
            run: random,
            life_max,
            hub,
            guard,
            share: Arc::new(Share::new(own)),
            moderator: None,
            metrics,
            use_cookies: Box::new(|_, _| {}),
            ring: Mutex::new(ring),
            time: Mutex::default(),
            in_session: AtomicBool::new(false),
            nodes: Mutex::new(Nodes::new(own)),
            warned_at_ms: Mutex::default(),
        }
    }

    /// Which servers this node has to query.
    pub fn share(&self) -> Arc<Share> {
        self.share.clone()
    }

    /// Calls `use_cookies` with the cluster's cookie keys and time whenever they change.
    pub fn with_cookies(self, use_cookies: impl Fn(Keys, SharedTime) + Send + Sync + 'static) -> Cluster {
        Cluster { use_cookies: Box::new(use_cookies), ..self }
    }

    /// Shares the operator's decisions, too.
    pub fn with_moderator(self, moderator: Arc<Moderator>) -> Cluster {
        Cluster { moderator: Some(moderator), ..self }
    }

    /// Runs one session after another until `stop` is set.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut pause = RETRY_PAUSE_MIN;
        let mut has_warned = false;
        loop {
            let session_stop = stop.clone();
            let error = tokio::select! {
                ended = self.run_session(session_stop) => match ended {
                    Ok(()) => return,
                    Err(error) => error,
                },
                () = self.keep() => continue,
            };
            let was_connected = self.in_session.swap(false, Ordering::Relaxed);
            self.show_connected(false);
            self.ring().disconnected();
            if was_connected || !has_warned {
                warn!("cluster: no connection to NATS ({error}); serving alone and retrying");
                has_warned = true;
            } else {
                debug!("cluster: {error}");
            }
            pause = if was_connected { RETRY_PAUSE_MIN } else { (pause * 2).min(RETRY_PAUSE_MAX) };
            // Jitter: the nodes should not all reconnect at the same moment.
            let own_pause = pause + Duration::from_millis(u64::from(self.run % 100));
            tokio::select! {
                () = tokio::time::sleep(own_pause) => {}
                () = self.keep() => {}
                () = stopped(&mut stop) => return,
            }
        }
    }

    async fn run_session(&self, mut stop: watch::Receiver<bool>) -> Result<(), SessionError> {
        let (broken, mut is_broken) = watch::channel(false);
        let session = tokio::select! {
            session = self.open(broken) => session?,
            () = stopped(&mut stop) => return Ok(()),
        };
        tokio::select! {
            error = session.run() => Err(error),
            () = stopped(&mut is_broken) => Err(SessionError("the connection broke".into())),
            () = stopped(&mut stop) => {
                session.leave().await;
                Ok(())
            }
        }
    }

    async fn open(&self, broken: watch::Sender<bool>) -> Result<Session<'_>, SessionError> {
        let servers: Result<Vec<ServerAddr>, _> = self.settings.nats.iter().map(|server| server.parse()).collect();
        let servers = servers.map_err(|error| SessionError::caused_by("cluster.nats", &error))?;
        let mut options = ConnectOptions::new()
            .name(format!("rallypoint {}", self.name))
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(CONNECT_TIMEOUT))
            .ping_interval(PING_EVERY)
            // A broken connection ends the session: the client must not send queued records much later.
            .max_reconnects(servers.len())
            // The addresses that the NATS servers advertise to each other may not be reachable from here.
            .ignore_discovered_servers()
            .event_callback(move |event| {
                let broken = broken.clone();
                async move {
                    match event {
                        Event::Disconnected | Event::Closed => drop(broken.send_replace(true)),
                        event => debug!("cluster: NATS: {event}"),
                    }
                }
            });
        if let Some(ca) = &self.settings.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some(path) = &self.settings.credentials {
            options = credentials(options, path).await?;
        } else if let Some(server) = servers.iter().find(|server| server.has_user_pass()) {
            options = user(options, server);
        }
        let client =
            options.connect(servers).await.map_err(|error| SessionError::caused_by("cannot connect", &error))?;
        Session::open(self, client).await
    }

    /// Counts the live nodes, and rotates the keys while the store is unreachable. Never returns.
    async fn keep(&self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.count_nodes();
            let connected = self.in_session.load(Ordering::Relaxed);
            let now = self.hub.clock.now();
            let mut ring = self.ring();
            if !connected && ring.rotate_alone(now.mono_ms, secret) {
                (self.use_cookies)(ring.keys, self.time());
            }
        }
    }

    fn count_nodes(&self) {
        let live = self.nodes().live(self.hub.clock.now().mono_ms);
        if let Some(figures) = self.figures() {
            figures.nodes.set(live.len() as i64);
        }
        self.share.set_live(live);
    }

    /// The whole store has been read and its keys are in use.
    fn connected(&self) {
        self.show_connected(true);
        if !self.in_session.swap(true, Ordering::Relaxed) {
            let servers = self.hub.view().servers.len();
            info!("cluster: connected to NATS as node {}; {servers} servers known", self.name);
        }
    }

    /// `reason`: why the store has rejected this node's records for too long to count as connected. None: it accepts them.
    fn set_rejected(&self, reason: Option<&str>) {
        match (self.show_connected(reason.is_none()), reason) {
            (true, Some(reason)) => {
                warn!("cluster: NATS rejects this node's servers, other nodes do not see them: {reason}")
            }
            (false, None) => info!("cluster: NATS accepts this node's servers again"),
            _ => {}
        }
    }

    /// Sets the metric and returns its previous value.
    fn show_connected(&self, is_connected: bool) -> bool {
        self.figures().is_some_and(|figures| figures.connected.set(is_connected.into()) == 1)
    }

    /// Adopts the store's keys.
    fn take_keys(&self, keys: Keys, revision: u64, age_ms: u64) {
        let mut ring = self.ring();
        if ring.adopt(keys, revision, self.hub.clock.now().mono_ms, age_ms) {
            (self.use_cookies)(ring.keys, self.time());
        }
    }

    /// The store's time as last measured. It stays valid while the store is unreachable.
    fn time(&self) -> SharedTime {
        *self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_time(&self, time: SharedTime) {
        let before = std::mem::replace(&mut *self.time.lock().unwrap_or_else(PoisonError::into_inner), time);
        if before != time {
            self.hub.set_time(time);
            (self.use_cookies)(self.ring().keys, time);
        }
        let offset = Offset::at(time, self.hub.clock.now());
        if offset.ms != 0 {
            let side = if offset.ms > 0 { "behind" } else { "ahead of" };
            let ms = offset.ms.unsigned_abs();
            let message = || format!("this node's clock is {ms} ms {side} NATS's; records use NATS's time");
            self.warn("clock", message);
        }
    }

    /// Warns at most once per [`WARN_EVERY_MS`] and kind.
    fn warn(&self, kind: &'static str, message: impl FnOnce() -> String) {
        let now_ms = self.hub.clock.now().mono_ms;
        let mut warned = self.warned_at_ms.lock().unwrap_or_else(PoisonError::into_inner);
        warned.retain(|(_, at_ms)| now_ms.saturating_sub(*at_ms) < WARN_EVERY_MS);
        if !warned.iter().any(|(known, _)| *known == kind) {
            warned.push((kind, now_ms));
            warn!("cluster: {}", message());
        }
    }

    fn figures(&self) -> Option<&ClusterFigures> {
        self.metrics.cluster.as_ref()
    }

    fn ring(&self) -> MutexGuard<'_, Keyring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn credentials(options: ConnectOptions, path: &Path) -> Result<ConnectOptions, SessionError> {
    let unreadable = |error| SessionError::caused_by(&format!("cluster.credentials {}", path.display()), &error);
    options.credentials_file(path).await.map_err(unreadable)
}

/// Applies the credentials in a server's URL (`user:password@` or `token@`), which the NATS client ignores.
fn user(options: ConnectOptions, server: &ServerAddr) -> ConnectOptions {
    let decoded = |text: Option<&str>| text.map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
    match (decoded(server.username()), decoded(server.password())) {
        (Some(user), Some(password)) => options.user_and_password(user, password),
        (Some(token), None) => options.token(token),
        _ => options,
    }
}

/// A new cookie secret; None if the system has no random numbers.
fn secret() -> Option<[u8; 16]> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).ok().map(|()| secret)
}

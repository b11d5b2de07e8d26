//! Many nodes as one, on NATS JetStream's key-value store. Each node keeps the whole list in memory, puts what it has
//! proven, watches what the others put, and merges it through the registry's own door.
//!
//! A visit to the store begins with a connection and ends with its loss; the next begins from the start: the whole list
//! is read again, and what it lacks is put. Between visits the node serves alone. Nothing here is on the hot path.
//!
//! [`session`] is one visit, [`buckets`] what is there; without a socket or a clock are [`record`], what is put, [`clock`],
//! the time there, [`outbox`], what has to be put, [`share`], who asks whom, [`keyring`], the cookie keys, and
//! `simulation.rs`, all of it in made-up time.

mod buckets;
pub mod clock;
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
use crate::net::stopped;
use buckets::Lost;
use clock::Offset;
use keyring::Keyring;
use record::{node_id, node_tag};
use session::Session;
use share::{Nodes, Share};

/// How long to wait for a NATS server to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two tries to reach the store: from the first to the second, twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A connection on which nothing comes back for this long, twice, is given up.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How often the living nodes are counted and the keys looked at.
const TICK: Duration = Duration::from_secs(1);
/// The same complaint is not repeated within this time.
const WARN_EVERY_MS: u64 = 60_000;

/// What the operator can set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Where NATS is; none: there is no cluster.
    pub nats: Vec<String>,
    /// 0: as many as the NATS cluster has, up to 3.
    pub replicas: usize,
    /// This node's name; empty: a random one.
    pub node: String,
    pub credentials: Option<PathBuf>,
    pub ca: Option<PathBuf>,
}

impl Settings {
    /// Whether the files can be read: told at the start, not with the first connection.
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

/// This node among the others.
pub struct Cluster {
    settings: Settings,
    name: String,
    /// Tells this run of the program from another node that has the same name.
    run: u32,
    /// The longest life of a server: what the store has to keep.
    life_max: Duration,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    share: Arc<Share>,
    metrics: Arc<Metrics>,
    /// Has what cookies are made with used from now on: when it returns, it is.
    use_cookies: Box<dyn Fn(Keys, SharedTime) + Send + Sync>,
    ring: Mutex<Keyring>,
    time: Mutex<SharedTime>,
    /// Whether this node is one of many at the moment; what is shown may be worse.
    visiting: AtomicBool,
    nodes: Mutex<Nodes>,
    warned_at_ms: Mutex<Vec<(&'static str, u64)>>,
}

impl Cluster {
    /// `keys` are the cookie keys until the store's are known; `random` names a node that has no name.
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
            metrics,
            use_cookies: Box::new(|_, _| {}),
            ring: Mutex::new(ring),
            time: Mutex::default(),
            visiting: AtomicBool::new(false),
            nodes: Mutex::new(Nodes::new(own)),
            warned_at_ms: Mutex::default(),
        }
    }

    /// Who asks whom.
    pub fn share(&self) -> Arc<Share> {
        self.share.clone()
    }

    /// Calls `use_cookies` with the cookie keys and the time of all nodes, whenever they change.
    pub fn with_cookies(self, use_cookies: impl Fn(Keys, SharedTime) + Send + Sync + 'static) -> Cluster {
        Cluster { use_cookies: Box::new(use_cookies), ..self }
    }

    /// Visits the store again and again until told to stop.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut pause = PAUSE_MIN;
        let mut told_lost = false;
        loop {
            let visit_stop = stop.clone();
            let lost = tokio::select! {
                ended = self.visit(visit_stop) => match ended {
                    Ok(()) => return,
                    Err(lost) => lost,
                },
                () = self.keep() => continue,
            };
            let was_connected = self.visiting.swap(false, Ordering::Relaxed);
            self.show_connected(false);
            self.ring().disconnected();
            if was_connected || !told_lost {
                warn!("cluster: no NATS ({lost}); this node serves alone, and goes on trying");
                told_lost = true;
            } else {
                debug!("cluster: {lost}");
            }
            pause = if was_connected { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            // Not all nodes at the same moment.
            let own_pause = pause + Duration::from_millis(u64::from(self.run % 100));
            tokio::select! {
                () = tokio::time::sleep(own_pause) => {}
                () = self.keep() => {}
                () = stopped(&mut stop) => return,
            }
        }
    }

    async fn visit(&self, mut stop: watch::Receiver<bool>) -> Result<(), Lost> {
        let (broken, mut is_broken) = watch::channel(false);
        let session = tokio::select! {
            session = self.open(broken) => session?,
            () = stopped(&mut stop) => return Ok(()),
        };
        tokio::select! {
            lost = session.run() => Err(lost),
            () = stopped(&mut is_broken) => Err(Lost("the connection broke".into())),
            () = stopped(&mut stop) => {
                session.leave().await;
                Ok(())
            }
        }
    }

    async fn open(&self, broken: watch::Sender<bool>) -> Result<Session<'_>, Lost> {
        let servers: Result<Vec<ServerAddr>, _> = self.settings.nats.iter().map(|server| server.parse()).collect();
        let servers = servers.map_err(|error| Lost::because("cluster.nats", &error))?;
        let mut options = ConnectOptions::new()
            .name(format!("rallypoint {}", self.name))
            .connection_timeout(PATIENCE)
            .request_timeout(Some(PATIENCE))
            .ping_interval(PING_EVERY)
            // A broken connection ends the visit. What was about to be sent must not be sent much later.
            .max_reconnects(servers.len())
            // The operator has named them; what they call each other may not be reachable from here.
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
        let client = options.connect(servers).await.map_err(|error| Lost::because("cannot connect", &error))?;
        Session::open(self, client).await
    }

    /// Counts the living nodes, and keeps the keys fresh when there is no store to do it. Never ends.
    async fn keep(&self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.count_nodes();
            let connected = self.visiting.load(Ordering::Relaxed);
            let now = self.hub.clock.now();
            let mut ring = self.ring();
            if !connected && ring.go_alone(now.mono_ms, secret) {
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

    /// The store has been read from the start, and its keys are in use: this node is one of many now.
    fn connected(&self) {
        self.show_connected(true);
        if !self.visiting.swap(true, Ordering::Relaxed) {
            let servers = self.hub.view().servers.len();
            info!("cluster: connected to NATS as node {}; {servers} servers are known", self.name);
        }
    }

    /// Why the store does not take what this node puts, for too long to be called connected; None when it does.
    fn set_refused(&self, reason: Option<&str>) {
        match (self.show_connected(reason.is_none()), reason) {
            (true, Some(reason)) => warn!("cluster: the other nodes do not hear of this one's servers: {reason}"),
            (false, None) => info!("cluster: NATS takes again what this node puts"),
            _ => {}
        }
    }

    /// Returns what was shown before.
    fn show_connected(&self, is_connected: bool) -> bool {
        self.figures().is_some_and(|figures| figures.connected.set(is_connected.into()) == 1)
    }

    /// Takes over the store's keys.
    fn take_keys(&self, keys: Keys, revision: u64, age_ms: u64) {
        let mut ring = self.ring();
        if ring.take_over(keys, revision, self.hub.clock.now().mono_ms, age_ms) {
            (self.use_cookies)(ring.keys, self.time());
        }
    }

    /// What time it is in the store, as far as this node knows. It stays known when the store is lost.
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
            let words = || format!("this node's clock is {ms} ms {side} NATS's, whose time the other nodes are told");
            self.warn("clock", words);
        }
    }

    /// Warns, but not of the same thing all the time.
    fn warn(&self, what: &'static str, words: impl FnOnce() -> String) {
        let now_ms = self.hub.clock.now().mono_ms;
        let mut warned = self.warned_at_ms.lock().unwrap_or_else(PoisonError::into_inner);
        warned.retain(|(_, at_ms)| now_ms.saturating_sub(*at_ms) < WARN_EVERY_MS);
        if !warned.iter().any(|(known, _)| *known == what) {
            warned.push((what, now_ms));
            warn!("cluster: {}", words());
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

async fn credentials(options: ConnectOptions, path: &Path) -> Result<ConnectOptions, Lost> {
    let unreadable = |error| Lost::because(&format!("cluster.credentials {}", path.display()), &error);
    options.credentials_file(path).await.map_err(unreadable)
}

/// The client leaves it to us to look at what stands before the host's name: a user and a password, or a token.
fn user(options: ConnectOptions, server: &ServerAddr) -> ConnectOptions {
    let decoded = |text: Option<&str>| text.map(|text| percent_decode_str(text).decode_utf8_lossy().into_owned());
    match (decoded(server.username()), decoded(server.password())) {
        (Some(user), Some(password)) => options.user_and_password(user, password),
        (Some(token), None) => options.token(token),
        _ => options,
    }
}

/// A new cookie secret; None when the system gives no random numbers.
fn secret() -> Option<[u8; 16]> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).ok().map(|()| secret)
}

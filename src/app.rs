//! The rooms put together: binds every port, starts every thread and task, reloads and stops them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::config::Config;
use crate::cookie::Keys;
use crate::hub::Hub;
use crate::model::{Change, OperatorWord};
use crate::net::guard::Guard;
use crate::net::listen::{self, ListenError};
use crate::net::tcp;
use crate::net::udp::{SharedRules, Worker};
use crate::protocols::DatagramRules;
use crate::protocols::iceball::{self, serve::Rules};
use crate::web::{self, HttpLimits, Pages, Site};

/// A cookie key seals for this long, and opens for as long again; longer than any cookie is good for.
const KEY_EVERY: Duration = Duration::from_secs(60);
/// Connections get this long to take what they asked for when the program stops.
const GRACE: Duration = Duration::from_secs(2);

pub struct App {
    config: Config,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    site: Arc<Site>,
    keys: Keys,
    rules: SharedRules,
    threads: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
    stop_threads: Arc<AtomicBool>,
    stop_tasks: watch::Sender<bool>,
    limits: Arc<ArcSwap<HttpLimits>>,
    /// Where it listens, by configuration key.
    pub listening: Vec<(&'static str, SocketAddr)>,
}

impl App {
    /// Binds every port, then starts. Nothing runs yet when a port cannot be had.
    pub async fn start(config: Config) -> anyhow::Result<App> {
        let pages = Pages::load(&config)?;
        let (http_listeners, udp_sockets) = bind(&config)?;
        let hub = Arc::new(Hub::new(config.guard.limits));
        let guard = &config.guard;
        let guard = Guard::new(guard.connections_max, guard.connections_per_ip_max, &guard.bans);
        let keys = Keys::new(random()?);
        let (stop_tasks, _) = watch::channel(false);
        let mut app = App {
            site: Site::new(hub.clone(), pages),
            hub,
            guard: Arc::new(guard),
            rules: Arc::new(ArcSwap::from_pointee(iceball_rules(&config, keys))),
            keys,
            threads: Vec::new(),
            tasks: JoinSet::new(),
            stop_threads: Arc::default(),
            stop_tasks,
            limits: Arc::new(ArcSwap::from_pointee(HttpLimits { idle: config.guard.idle })),
            listening: Vec::new(),
            config,
        };
        app.apply_words();
        app.threads.push(app.hub.start().context("cannot start a thread")?);
        for socket in udp_sockets {
            let worker = Worker {
                game: iceball::NAME,
                rules: app.rules.clone(),
                guard: app.guard.clone(),
                hub: app.hub.clone(),
                stop: app.stop_threads.clone(),
            };
            app.threads.push(worker.start(socket).context("cannot start a thread")?);
        }
        for (key, listener) in http_listeners {
            let listener = TcpListener::from_std(listener)?;
            let address = listener.local_addr()?;
            info!("{key}: listening on {address}");
            app.listening.push((key, address));
            app.serve_http(listener);
        }
        Ok(app)
    }

    /// Rotates the cookie keys for as long as it is polled.
    pub async fn keep(&mut self) {
        let mut interval = tokio::time::interval(KEY_EVERY);
        interval.tick().await; // the first is at once, and the keys are fresh
        loop {
            interval.tick().await;
            match random() {
                Ok(secret) => {
                    self.keys = self.keys.rotated(secret);
                    self.set_rules();
                }
                Err(error) => warn!("{error:#}; the cookie keys stay as they are"),
            }
        }
    }

    /// Takes over what can change while running. On an error nothing has changed.
    pub fn reload(&mut self, new: Config) -> anyhow::Result<()> {
        let pages = Pages::load(&new)?;
        let fixed = self.config.needs_restart(&new);
        if !fixed.is_empty() {
            warn!("changed, but in effect only after a restart: {}", fixed.join(", "));
        }
        self.config = new;
        let guard = &self.config.guard;
        self.guard.set(guard.connections_max, guard.connections_per_ip_max, &guard.bans);
        self.limits.store(Arc::new(HttpLimits { idle: guard.idle }));
        self.hub.set_limits(guard.limits);
        self.site.set_pages(pages);
        self.set_rules();
        self.apply_words();
        Ok(())
    }

    /// Stops everything, within the grace time and a moment.
    pub async fn stop(mut self) {
        self.stop_threads.store(true, Ordering::Relaxed);
        self.stop_tasks.send_replace(true);
        self.hub.stop();
        while self.tasks.join_next().await.is_some() {}
        let give_up = tokio::time::Instant::now() + GRACE;
        while self.guard.connections() > 0 && tokio::time::Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a thread that panicked has already said so
        }
    }

    fn set_rules(&self) {
        self.rules.store(Arc::new(iceball_rules(&self.config, self.keys)));
    }

    fn apply_words(&self) {
        let words: Arc<[OperatorWord]> = self.config.iceball.servers.clone().into();
        self.hub.apply(&[Change::Words(words)], self.hub.clock.now(), |_, _| {});
    }

    fn serve_http(&mut self, listener: TcpListener) {
        let router = web::router(self.site.clone());
        let limits = self.limits.clone();
        let stop = self.stop_tasks.subscribe();
        let stop_connections = stop.clone();
        let serve = move |stream, peer, admission| {
            let limits = **limits.load();
            web::serve_connection(stream, peer, admission, router.clone(), limits, stop_connections.clone())
        };
        self.tasks.spawn(tcp::accept(listener, self.guard.clone(), stop, serve));
    }
}

type Bound = (Vec<(&'static str, std::net::TcpListener)>, Vec<std::net::UdpSocket>);

fn bind(config: &Config) -> Result<Bound, ListenError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut http, mut udp) = (Vec::new(), Vec::new());
    for &address in &config.iceball.listen {
        let (listener, sockets) = listen::tcp_and_udp(address, cores, "iceball.listen")?;
        http.push(("iceball.listen", listener));
        udp.extend(sockets);
    }
    let other = [("iceball.client_listen", &config.iceball.client_listen), ("web.listen", &config.web.listen)];
    for (key, addresses) in other {
        for &address in addresses {
            http.push((key, listen::tcp(address, key)?));
        }
    }
    Ok((http, udp))
}

fn iceball_rules(config: &Config, keys: Keys) -> Box<dyn DatagramRules> {
    Box::new(Rules { settings: config.iceball.settings, keys })
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("the system gives no random numbers: {error}"))?;
    Ok(bytes)
}

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

use crate::asker;
use crate::config::Config;
use crate::cookie::Keys;
use crate::hub::Hub;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::model::Change;
use crate::net::door::Door;
use crate::net::guard::Guard;
use crate::net::listen::{self, ListenError};
use crate::net::neighbours::{self, Network};
use crate::net::session::{self, SharedStreamRules};
use crate::net::udp::{self, SharedRules};
use crate::net::{prober, tcp};
use crate::protocols::{DatagramRules, StreamRules, hyperbol, iceball, netpanzer};
use crate::store::cluster::Cluster;
use crate::web::{self, HttpLimits, Pages, Site};

/// A cookie key seals for this long, and opens for as long again; longer than any cookie is good for.
const KEY_EVERY: Duration = Duration::from_secs(60);
/// Connections get this long to take what they asked for when the program stops.
const GRACE: Duration = Duration::from_secs(2);

pub struct App {
    config: Config,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    door: Arc<Door>,
    site: Arc<Site>,
    keys: Keys,
    /// The keys of all nodes as they change, where there are others.
    shared_keys: Option<watch::Receiver<Keys>>,
    iceball: SharedRules,
    netpanzer: SharedStreamRules,
    asking: watch::Sender<asker::Settings>,
    network: watch::Sender<Network>,
    threads: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
    stop_threads: Arc<AtomicBool>,
    stop_tasks: watch::Sender<bool>,
    limits: Arc<ArcSwap<HttpLimits>>,
}

impl App {
    /// Binds every port, then starts. Nothing runs yet when a port cannot be had.
    pub async fn start(config: Config) -> anyhow::Result<App> {
        let pages = Pages::load(&config)?;
        config.cluster.check().map_err(anyhow::Error::msg)?;
        let bound = bind(&config)?;
        let hub = Arc::new(Hub::new(config.registry()));
        let guard = &config.guard;
        let guard = Guard::new(guard.connections_max, guard.connections_per_ip_max, &guard.bans);
        let keys = Keys::new(random()?);
        let is_many = !config.cluster.nats.is_empty();
        let metrics = if is_many { Metrics::new().with_cluster() } else { Metrics::new() };
        let (ledger, metrics) = (Arc::new(Ledger::new()), Arc::new(metrics));
        let (prober, prober_worker) =
            prober::Worker::new(hub.clone(), ledger.clone(), metrics.clone(), asking(&config), random()?)
                .context("cannot open a UDP socket to ask game servers")?;
        let door = Arc::new(Door { hub: hub.clone(), prober, ledger });
        let guard = Arc::new(guard);
        let cluster = if is_many { Some(cluster(&config, &hub, &guard, &metrics, keys)?) } else { None };
        let mut app = App {
            site: Site::new(door.clone(), guard.clone(), metrics, pages, u32::from_ne_bytes(random()?)),
            door,
            hub,
            guard,
            iceball: Arc::new(ArcSwap::from_pointee(iceball_rules(&config, keys))),
            netpanzer: Arc::new(ArcSwap::from_pointee(netpanzer_rules(&config))),
            keys,
            shared_keys: cluster.as_ref().map(Cluster::keys),
            asking: watch::Sender::new(asking(&config)),
            network: watch::Sender::new(network(&config, bound.netpanzer_port())),
            threads: Vec::new(),
            tasks: JoinSet::new(),
            stop_threads: Arc::default(),
            stop_tasks: watch::Sender::new(false),
            limits: Arc::new(ArcSwap::from_pointee(HttpLimits { idle: config.guard.idle })),
            config,
        };
        app.warn_of_odd_settings();
        app.apply_words();
        app.threads.push(app.hub.start().context("cannot start a thread")?);
        let stop = app.stop_tasks.subscribe();
        let prober_worker = match &cluster {
            Some(cluster) => prober_worker.sharing(cluster.share()),
            None => prober_worker,
        };
        if let Some(cluster) = cluster {
            app.tasks.spawn(cluster.run(stop.clone()));
        }
        app.tasks.spawn(prober_worker.run(app.asking.subscribe(), stop.clone()));
        app.tasks.spawn(app.site.clone().gather_events(stop.clone()));
        app.tasks.spawn(neighbours::run(app.hub.clone(), app.network.subscribe(), stop));
        app.serve(bound)?;
        Ok(app)
    }

    fn serve(&mut self, bound: Bound) -> anyhow::Result<()> {
        for socket in bound.udp {
            let worker = udp::Worker {
                game: iceball::NAME,
                rules: self.iceball.clone(),
                guard: self.guard.clone(),
                hub: self.hub.clone(),
                ledger: self.door.ledger.clone(),
                stop: self.stop_threads.clone(),
            };
            self.threads.push(worker.start(socket).context("cannot start a thread")?);
        }
        for (key, listener) in bound.http {
            let listener = listening(key, listener)?;
            self.serve_http(listener);
        }
        for (key, listener) in bound.netpanzer {
            let listener = listening(key, listener)?;
            self.serve_stream(listener, self.netpanzer.clone());
        }
        let hyperbol: SharedStreamRules = Arc::new(ArcSwap::from_pointee(Box::new(hyperbol::serve::Rules::new())));
        for (key, listener) in bound.hyperbol {
            let listener = listening(key, listener)?;
            self.serve_stream(listener, hyperbol.clone());
        }
        Ok(())
    }

    /// Keeps the cookie keys fresh for as long as it is polled: by itself, or as all nodes do together.
    pub async fn keep(&mut self) {
        if self.shared_keys.is_some() {
            self.follow_keys().await;
        }
        let mut interval = tokio::time::interval(KEY_EVERY);
        interval.tick().await; // the first is at once, and the keys are fresh
        loop {
            interval.tick().await;
            match random() {
                Ok(secret) => {
                    self.keys = self.keys.rotated(secret);
                    self.set_iceball_rules();
                }
                Err(error) => warn!("{error:#}; the cookie keys stay as they are"),
            }
        }
    }

    /// Takes over the keys of all nodes as they change; ends when nobody changes them any more.
    async fn follow_keys(&mut self) {
        while let Some(shared) = &mut self.shared_keys
            && shared.changed().await.is_ok()
        {
            self.keys = *shared.borrow_and_update();
            self.set_iceball_rules();
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
        self.hub.set_settings(self.config.registry());
        self.site.set_pages(pages);
        self.set_iceball_rules();
        self.netpanzer.store(Arc::new(netpanzer_rules(&self.config)));
        self.asking.send_replace(asking(&self.config));
        let port = self.network.borrow().port;
        self.network.send_if_modified(|network| {
            let new = crate::app::network(&self.config, port);
            let modified = *network != new;
            *network = new;
            modified
        });
        self.warn_of_odd_settings();
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

    fn set_iceball_rules(&self) {
        self.iceball.store(Arc::new(iceball_rules(&self.config, self.keys)));
    }

    fn apply_words(&self) {
        self.hub.apply_one(&Change::Words(self.config.words()), self.hub.clock.now());
    }

    /// What is allowed, but hardly meant.
    fn warn_of_odd_settings(&self) {
        let netpanzer = &self.config.netpanzer;
        if netpanzer.settings.password.is_empty() && !netpanzer.neighbours.is_empty() {
            warn!("netpanzer.neighbours are not contacted: without netpanzer.password there is no network");
        }
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

    fn serve_stream(&mut self, listener: TcpListener, rules: SharedStreamRules) {
        let (door, limits) = (self.door.clone(), self.limits.clone());
        let serve = move |stream, peer, admission| {
            session::serve(stream, peer, admission, rules.clone(), door.clone(), limits.load().idle)
        };
        self.tasks.spawn(tcp::accept(listener, self.guard.clone(), self.stop_tasks.subscribe(), serve));
    }
}

/// Every port, bound.
struct Bound {
    udp: Vec<std::net::UdpSocket>,
    http: Vec<(&'static str, std::net::TcpListener)>,
    netpanzer: Vec<(&'static str, std::net::TcpListener)>,
    hyperbol: Vec<(&'static str, std::net::TcpListener)>,
}

impl Bound {
    /// The port under which other masters know this one.
    fn netpanzer_port(&self) -> u16 {
        let first = self.netpanzer.first().and_then(|(_, listener)| listener.local_addr().ok());
        first.map_or(netpanzer::CARD.master_port.unwrap_or(0), |address| address.port())
    }
}

fn bind(config: &Config) -> Result<Bound, ListenError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut bound = Bound { udp: Vec::new(), http: Vec::new(), netpanzer: Vec::new(), hyperbol: Vec::new() };
    for &address in &config.iceball.listen {
        let (listener, sockets) = listen::tcp_and_udp(address, cores, "iceball.listen")?;
        bound.http.push(("iceball.listen", listener));
        bound.udp.extend(sockets);
    }
    let bind_all = |key: &'static str, addresses: &[SocketAddr]| -> Result<Vec<_>, ListenError> {
        addresses.iter().map(|&address| Ok((key, listen::tcp(address, key)?))).collect()
    };
    bound.http.extend(bind_all("iceball.client_listen", &config.iceball.client_listen)?);
    bound.http.extend(bind_all("web.listen", &config.web.listen)?);
    bound.netpanzer = bind_all("netpanzer.listen", &config.netpanzer.listen)?;
    bound.hyperbol = bind_all("hyperbol.listen", &config.hyperbol.listen)?;
    Ok(bound)
}

fn listening(key: &str, listener: std::net::TcpListener) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::from_std(listener)?;
    info!("{key}: listening on {}", listener.local_addr()?);
    Ok(listener)
}

fn iceball_rules(config: &Config, keys: Keys) -> Box<dyn DatagramRules> {
    Box::new(iceball::serve::Rules { settings: config.iceball.settings, keys })
}

fn netpanzer_rules(config: &Config) -> Box<dyn StreamRules> {
    Box::new(netpanzer::serve::Rules::new(config.netpanzer.settings.clone()))
}

fn asking(config: &Config) -> asker::Settings {
    prober::settings(config.probe.per_second_max, config.guard.servers_per_ip_max)
}

fn network(config: &Config, port: u16) -> Network {
    let settings = &config.netpanzer.settings;
    Network {
        neighbours: config.netpanzer.neighbours.clone(),
        password: settings.password.clone(),
        port: settings.public.map_or(port, |public| public.port()),
        public: settings.public,
    }
}

fn cluster(
    config: &Config,
    hub: &Arc<Hub>,
    guard: &Arc<Guard>,
    metrics: &Arc<Metrics>,
    keys: Keys,
) -> anyhow::Result<Cluster> {
    let (hub, guard, metrics) = (hub.clone(), guard.clone(), metrics.clone());
    let random = u32::from_ne_bytes(random()?);
    Ok(Cluster::new(config.cluster.clone(), config.life_max(), hub, guard, metrics, keys, random))
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("the system gives no random numbers: {error}"))?;
    Ok(bytes)
}

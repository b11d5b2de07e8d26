//! The rooms put together: binds every port, starts every thread and task, reloads and stops them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use nix::sys::resource::{Resource, getrlimit};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::config::Config;
use crate::cookie::Keys;
use crate::hub::Hub;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::model::{Change, SharedTime};
use crate::net::door::Door;
use crate::net::guard::Guard;
use crate::net::listen::{self, ListenError};
use crate::net::neighbours::{self, Network};
use crate::net::session::{self, Desk, SharedStreamRules};
use crate::net::udp::{self, SharedRules};
use crate::net::{prober, tcp};
use crate::protocols::{StreamRules, card, hyperbol, iceball, netpanzer};
use crate::store::Store;
use crate::store::cluster::Cluster;
use crate::web::{self, Home, HttpLimits, Pages, Site};

/// A cookie key seals for this long, and opens for as long before and after; longer than any cookie is good for.
const KEY_EVERY: Duration = Duration::from_secs(60);
/// How often the keys and the threads are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Everybody gets this long to come to an end when the program stops.
const GRACE: Duration = Duration::from_secs(2);
/// Descriptors that are not for connections: listeners, files, sockets to game servers and other masters.
const DESCRIPTORS_RESERVED: usize = 128;

pub struct App {
    /// What the ports were bound by.
    started_with: Config,
    config: Config,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    door: Arc<Door>,
    metrics: Arc<Metrics>,
    site: Arc<Site>,
    keys_made: Instant,
    iceball: Arc<IceballRules>,
    netpanzer: SharedStreamRules,
    asking: watch::Sender<prober::Asking>,
    network: watch::Sender<Network>,
    threads: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
    stop_threads: Arc<AtomicBool>,
    stop_tasks: watch::Sender<bool>,
    limits: Arc<ArcSwap<HttpLimits>>,
    store: Option<Store>,
}

impl App {
    /// Binds every port, then starts. Nothing runs yet when a port cannot be had.
    pub async fn start(config: Config) -> anyhow::Result<App> {
        let pages = Pages::load(&config)?;
        config.cluster.check().map_err(anyhow::Error::msg)?;
        let bound = bind(&config)?;
        let hub = Arc::new(Hub::new(config.registry()));
        hub.set_exempt(config.guard.exempt());
        let guard = Guard::new(config.guard.at_the_door(connections_max(&config)));
        let keys = Keys::new([random()?, random()?, random()?]);
        let is_many = config.is_one_of_many();
        let metrics = if is_many { Metrics::new().with_cluster() } else { Metrics::new() };
        let (ledger, metrics) = (Arc::new(Ledger::new()), Arc::new(metrics));
        let (prober, prober_worker) =
            prober::Worker::new(hub.clone(), ledger.clone(), metrics.clone(), asking(&config).settings, random()?)
                .context("cannot open a UDP socket to ask game servers")?;
        let door = Arc::new(Door::new(hub.clone(), prober, ledger));
        let guard = Arc::new(guard);
        let store = config.data_dir.as_deref().map(|folder| Store::open(folder, config.history)).transpose()?;
        let iceball = Arc::new(IceballRules::new(&config, keys));
        let cluster = match is_many {
            true => Some(cluster(&config, &hub, &guard, &metrics, keys)?.with_cookies(iceball.clone().followed())),
            false => None,
        };
        let network = network(&config, bound.netpanzer_addresses());
        let mut app = App {
            site: Site::new(
                door.clone(),
                guard.clone(),
                metrics.clone(),
                pages,
                u32::from_ne_bytes(random()?),
                store.as_ref(),
            ),
            door,
            metrics,
            hub,
            guard,
            iceball,
            netpanzer: Arc::new(ArcSwap::from_pointee(netpanzer_rules(&config, &network))),
            keys_made: Instant::now(),
            asking: watch::Sender::new(asking(&config)),
            network: watch::Sender::new(network),
            threads: Vec::new(),
            tasks: JoinSet::new(),
            stop_threads: Arc::default(),
            stop_tasks: watch::Sender::new(false),
            limits: Arc::new(ArcSwap::from_pointee(HttpLimits { idle: config.guard.idle })),
            store,
            started_with: config.clone(),
            config,
        };
        app.warn_of_odd_settings();
        app.apply_words();
        app.restore()?;
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
        app.tasks.spawn(app.door.clone().ask_again(stop.clone()));
        app.tasks.spawn(app.site.clone().gather_events(stop.clone()));
        app.tasks.spawn(neighbours::run(app.hub.clone(), app.network.subscribe(), stop));
        app.serve(bound)?;
        Ok(app)
    }

    /// Lists what was listed before, so that the first who asks sees it, and keeps it from here on.
    fn restore(&mut self) -> anyhow::Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let bans = self.guard.bans();
        store.restore(&self.hub, |ip| bans.contains(ip));
        self.hub.publish(self.hub.clock.now());
        store.start(&self.hub).context("cannot start a thread")
    }

    fn serve(&mut self, bound: Bound) -> anyhow::Result<()> {
        for socket in bound.udp {
            let worker = udp::Worker {
                game: iceball::NAME,
                rules: self.iceball.shared.clone(),
                guard: self.guard.clone(),
                hub: self.hub.clone(),
                ledger: self.door.ledger.clone(),
                stop: self.stop_threads.clone(),
            };
            self.threads.push(worker.start(socket).context("cannot start a thread")?);
        }
        for (key, listener) in bound.http {
            let listener = listening(key, listener)?;
            self.serve_http(listener, home(key));
        }
        for (key, listener) in bound.netpanzer {
            let listener = listening(key, listener)?;
            self.serve_stream(listener, self.desk(netpanzer::NAME, self.netpanzer.clone()));
        }
        let hyperbol: SharedStreamRules = Arc::new(ArcSwap::from_pointee(Box::new(hyperbol::serve::Rules::new())));
        for (key, listener) in bound.hyperbol {
            let listener = listening(key, listener)?;
            self.serve_stream(listener, self.desk(hyperbol::NAME, hyperbol.clone()));
        }
        Ok(())
    }

    /// Looks after what has to be looked after for as long as it is polled: rotates the cookie keys, and ends with an error
    /// when a thread or a task has died, because nobody would notice otherwise.
    pub async fn keep(&mut self) -> anyhow::Error {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let stored = self.store.as_ref().and_then(Store::dead_thread);
            if let Some(thread) = self.threads.iter().find(|thread| thread.is_finished()).or(stored) {
                let name = thread.thread().name().unwrap_or("unnamed").to_string();
                return anyhow::anyhow!("the thread `{name}` has ended: this is a bug. Start the program again");
            }
            if let Some(ended) = self.tasks.try_join_next() {
                let why = ended.err().map(|error| format!(" ({error})")).unwrap_or_default();
                return anyhow::anyhow!("a task has ended{why}: this is a bug. Start the program again");
            }
            // Many nodes rotate the keys together.
            if self.started_with.is_one_of_many() || self.keys_made.elapsed() < KEY_EVERY {
                continue;
            }
            match random() {
                Ok(secret) => {
                    self.iceball.set(|rules| rules.keys = rules.keys.rotated(secret));
                    self.keys_made = Instant::now();
                }
                Err(error) => warn!("{error:#}; the cookie keys stay as they are"),
            }
        }
    }

    /// Takes over what can change while running. On an error nothing has changed.
    pub fn reload(&mut self, mut new: Config) -> anyhow::Result<()> {
        let pages = Pages::load(&new)?;
        let fixed = self.started_with.needs_restart(&new);
        if self.started_with.is_one_of_many() {
            new.iceball.settings.life_ms = self.started_with.iceball.settings.life_ms;
        }
        if !fixed.is_empty() {
            warn!("changed, but in effect only after a restart: {}", fixed.join(", "));
        }
        self.config = new;
        let guard = &self.config.guard;
        self.guard.set(guard.at_the_door(connections_max(&self.config)));
        let bans = self.guard.bans();
        self.hub.retain(|server| !bans.contains(server.ip()));
        self.limits.store(Arc::new(HttpLimits { idle: guard.idle }));
        self.hub.set_settings(self.config.registry());
        self.hub.set_exempt(guard.exempt());
        self.site.set_pages(pages);
        self.iceball.set(|rules| rules.settings = self.config.iceball.settings);
        let network = network(&self.config, self.network.borrow().listening.clone());
        self.netpanzer.store(Arc::new(netpanzer_rules(&self.config, &network)));
        self.asking.send_replace(asking(&self.config));
        self.network.send_if_modified(|current| std::mem::replace(current, network.clone()) != network);
        self.warn_of_odd_settings();
        self.apply_words();
        if let Some(store) = &self.store {
            store.set_history(self.config.history);
        }
        Ok(())
    }

    /// Stops everything. What has not come to its end when the grace time is over is left where it is.
    pub async fn stop(mut self) {
        let give_up = Instant::now() + GRACE;
        self.stop_threads.store(true, Ordering::Relaxed);
        self.stop_tasks.send_replace(true);
        self.hub.stop();
        let tasks = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout_at(give_up, tasks).await;
        let all_done = |app: &App| app.guard.connections() == 0 && app.threads.iter().all(JoinHandle::is_finished);
        while !all_done(&self) && Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if let Some(store) = self.store {
            self.hub.publish(self.hub.clock.now()); // the last changes, and then they are written
            store.stop();
        }
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

    fn serve_http(&mut self, listener: TcpListener, home: Home) {
        let router = web::router(self.site.clone(), home);
        let limits = self.limits.clone();
        let stop = self.stop_tasks.subscribe();
        let stop_connections = stop.clone();
        let serve = move |stream, peer, admission| {
            let limits = **limits.load();
            web::serve_connection(stream, peer, admission, router.clone(), limits, stop_connections.clone())
        };
        self.tasks.spawn(tcp::accept(listener, self.guard.clone(), stop, serve));
    }

    fn desk(&self, game: &'static str, rules: SharedStreamRules) -> Arc<Desk> {
        Arc::new(Desk { game, rules, door: self.door.clone(), metrics: self.metrics.clone() })
    }

    fn serve_stream(&mut self, listener: TcpListener, desk: Arc<Desk>) {
        let limits = self.limits.clone();
        let serve =
            move |stream, peer, admission| session::serve(stream, peer, admission, desk.clone(), limits.load().idle);
        self.tasks.spawn(tcp::accept(listener, self.guard.clone(), self.stop_tasks.subscribe(), serve));
    }
}

/// Iceball's rules. What is set is in use when `set` returns: each batch of datagrams begins with a look at them.
struct IceballRules {
    now: Mutex<iceball::serve::Rules>,
    shared: SharedRules,
}

impl IceballRules {
    fn new(config: &Config, keys: Keys) -> IceballRules {
        let rules = iceball::serve::Rules { settings: config.iceball.settings, keys, time: SharedTime::default() };
        IceballRules { now: Mutex::new(rules), shared: Arc::new(ArcSwap::from_pointee(Box::new(rules))) }
    }

    fn set(&self, change: impl FnOnce(&mut iceball::serve::Rules)) {
        let mut rules = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut rules);
        self.shared.store(Arc::new(Box::new(*rules)));
    }

    /// What the nodes of a cluster tell each other for cookies.
    fn followed(self: Arc<IceballRules>) -> impl Fn(Keys, SharedTime) + Send + Sync {
        move |keys, time| self.set(|rules| (rules.keys, rules.time) = (keys, time))
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
    /// Where other masters reach this one.
    fn netpanzer_addresses(&self) -> Vec<SocketAddr> {
        self.netpanzer.iter().filter_map(|(_, listener)| listener.local_addr().ok()).collect()
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

/// As many connections as are configured, or as the system has descriptors for.
fn connections_max(config: &Config) -> usize {
    let wanted = config.guard.connections_max;
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |(soft, _)| soft as usize);
    let possible = descriptors.saturating_sub(DESCRIPTORS_RESERVED).max(16);
    if possible < wanted {
        warn!(
            "guard.max_connections is {wanted}, but the system allows only {descriptors} descriptors: {possible} it is"
        );
    }
    wanted.min(possible)
}

/// The game whose section of the configuration a listener is in.
fn home(key: &str) -> Home {
    Home(key.split('.').next().and_then(card).map(|card| card.name))
}

fn listening(key: &str, listener: std::net::TcpListener) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::from_std(listener)?;
    info!("{key}: listening on {}", listener.local_addr()?);
    Ok(listener)
}

fn netpanzer_rules(config: &Config, network: &Network) -> Box<dyn StreamRules> {
    Box::new(netpanzer::serve::Rules::new(config.netpanzer.settings.clone(), network.own()))
}

fn asking(config: &Config) -> prober::Asking {
    let settings = prober::settings(config.probe.per_second_max, config.guard.servers_per_ip_max, config.probe.every);
    prober::Asking { settings, exempt: Arc::new(config.guard.exempt()) }
}

fn network(config: &Config, listening: Vec<SocketAddr>) -> Network {
    Network {
        neighbours: config.netpanzer.neighbours.clone(),
        password: config.netpanzer.settings.password.clone(),
        listening,
        public: config.netpanzer.settings.public,
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

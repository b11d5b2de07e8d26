//! Puts the rooms together: binds every port, starts every thread and task, reloads and stops them.

mod memory;
mod services;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use crate::admin::answer::{Answers, Reload};
use crate::admin::socket::AdminSocket;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::cookie::Keys;
use crate::hub::Hub;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::mirror::{self, Mirror};
use crate::model::{Change, SharedTime};
use crate::moderation::Board;
use crate::net::accounts;
use crate::net::announcements::Announcements;
use crate::net::cores::{Cores, processors};
use crate::net::datagram_lists;
use crate::net::guard::{self, Admission, Guard};
use crate::net::listen::{self, ListenError};
use crate::net::moderator::Moderator;
use crate::net::network;
use crate::net::prober;
use crate::net::quick;
use crate::net::relief;
use crate::net::session::{Numbers, SharedStreamRules, StreamService};
use crate::net::tcp::{self, Entrance};
use crate::net::udp::{self, SharedRules};
use crate::notices::{self, Notices};
use crate::prefix::Networks;
use crate::protocols::Card;
use crate::protocols::section::{Cookies, Transport};
use crate::store::Store;
use crate::web::{Certificate, Home, HttpService, Pages, Site, Tls};
use memory::Memory;
use services::Services;

/// How long a cookie key is used before the next one. The keys before and after it are accepted, too, so this is longer
/// than any cookie is valid.
const KEY_ROTATION: Duration = Duration::from_secs(60);
/// How often the age of the keys and the state of the threads are checked.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// How long connections and threads may take to end when the program stops.
const GRACE: Duration = Duration::from_secs(2);
/// Descriptors that are not for connections: listeners, files, sockets to game servers and other masters.
const DESCRIPTORS_RESERVED: usize = 192;
/// The key of the listeners that use TLS.
const TLS_LISTEN: &str = "web.tls_listen";

pub struct App {
    /// The configuration that the ports were bound with.
    started_with: Config,
    config: Config,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    moderator: Arc<Moderator>,
    announcements: Arc<Announcements>,
    metrics: Arc<Metrics>,
    site: Arc<Site>,
    keys_made: Instant,
    services: Arc<Services>,
    probe_settings: watch::Sender<prober::ProbeSettings>,
    mirror_settings: watch::Sender<mirror::Settings>,
    notices: Arc<Notices>,
    notice_settings: watch::Sender<notices::Settings>,
    threads: Vec<JoinHandle<()>>,
    tasks: JoinSet<()>,
    stop_threads: Arc<AtomicBool>,
    stop_tasks: watch::Sender<bool>,
    entrance: Arc<Entrance>,
    cores: Arc<Cores>,
    tls: Option<Arc<Tls>>,
    store: Option<Store>,
    /// Requests to read the configuration again.
    reloads: Option<mpsc::Receiver<Reload>>,
    listening: Vec<Listening>,
}

/// A port that is served.
#[derive(Clone)]
pub struct Listening {
    /// The key of the configuration that names it.
    pub key: String,
    /// The protocol that it belongs to. None for `web.listen` and `web.tls_listen`.
    pub card: Option<&'static Card>,
    pub address: SocketAddr,
    pub transport: Transport,
    pub tls: bool,
}

impl App {
    /// Binds every port, then starts. If a port cannot be bound, nothing has started.
    pub async fn start(config: Config) -> anyhow::Result<App> {
        let pages = Pages::load(&config)?;
        config.cluster.check().map_err(anyhow::Error::msg)?;
        let certificate = Certificate::read(&config.web)?;
        let bound = bind(&config)?;
        let admin = config.admin_socket.as_deref().map(AdminSocket::bind).transpose().map_err(anyhow::Error::msg)?;
        let memory = Memory::of(&config.guard);
        let hub = Arc::new(Hub::new(config.registry(memory.servers)));
        hub.set_exempt(config.guard.exempt());
        hub.set_game_limits(config.guard.game_limits.clone());
        let guard = Arc::new(Guard::new(config.guard.settings(connections_max(&config, memory))));
        hub.held().set_max(memory.lists);
        hub.set_accounts(Arc::new(accounts::Searches::new(guard.clone(), &hub)));
        let keys = Keys::new([random()?, random()?, random()?]);
        let cookies = Cookies { keys, time: SharedTime::default() };
        let is_clustered = config.is_clustered();
        let metrics = if is_clustered { Metrics::new().with_cluster() } else { Metrics::new() };
        let (ledger, metrics) = (Arc::new(Ledger::new()), Arc::new(metrics));
        let (prober, prober_worker) = prober::Worker::new(
            hub.clone(),
            ledger.clone(),
            metrics.clone(),
            probe_settings(&config).settings,
            &config.probe.from,
            random()?,
        )
        .context("cannot open a UDP socket to ask game servers")?;
        let announcements = Arc::new(Announcements::new(hub.clone(), guard.clone(), prober, ledger, cookies));
        announcements.set_limits(config.guard.servers_per_ip_max, config.guard.exempt());
        let mut store = config.data_dir.as_deref().map(|folder| Store::open(folder, config.history)).transpose()?;
        let board = Arc::new(Board::default());
        board.configure(config.guard.moderation());
        if let Some(store) = &mut store {
            store.keep_board(board.clone());
        }
        let moderator = Arc::new(Moderator::new(board.clone(), hub.clone(), guard.clone()));
        moderator.apply();
        let services = Arc::new(Services::new(&config, cookies, &bound, announcements.clone()));
        let cluster = match is_clustered {
            true => {
                let cluster = cluster(&config, &hub, &guard, &metrics, keys)?;
                Some(cluster.with_cookies(services.clone().cookie_updates()).with_moderator(moderator.clone()))
            }
            false => None,
        };
        let entrance = Arc::new(Entrance::new(guard.clone(), metrics.clone(), config.entrance()));
        let tls = certificate.map(|certificate| Arc::new(Tls::new(certificate, hub.clone())));
        let stop_tasks = watch::Sender::new(false);
        let (cores, threads) = Cores::start(&guard, &stop_tasks.subscribe()).context("cannot start a thread")?;
        let notices = Arc::new(Notices::new(hub.clone(), guard.clone(), metrics.clone()));
        let mut app = App {
            notices,
            notice_settings: watch::Sender::new(config.notices()),
            site: Site::new(
                announcements.clone(),
                guard.clone(),
                metrics.clone(),
                pages,
                u32::from_ne_bytes(random()?),
                store.as_ref(),
                board,
            ),
            announcements,
            metrics,
            hub,
            guard,
            moderator,
            services,
            keys_made: Instant::now(),
            probe_settings: watch::Sender::new(probe_settings(&config)),
            mirror_settings: watch::Sender::new(config.mirror()),
            threads,
            tasks: JoinSet::new(),
            stop_threads: Arc::default(),
            stop_tasks,
            entrance,
            cores: Arc::new(cores),
            tls,
            store,
            reloads: None,
            listening: Vec::new(),
            started_with: config.clone(),
            config,
        };
        app.config.warnings().iter().for_each(|text| warn!("{text}"));
        app.site.set_changes_bytes_max(memory.changes);
        app.apply_named_servers();
        app.restore()?;
        app.threads.push(app.hub.start().context("cannot start a thread")?);
        app.threads.push(app.site.prepare_lists().context("cannot start a thread")?);
        let stop = app.stop_tasks.subscribe();
        let prober_worker = match &cluster {
            Some(cluster) => {
                let share = cluster.share();
                prober_worker.sharing(Box::new(move |address| share.is_mine(address)))
            }
            None => prober_worker,
        };
        if let Some(cluster) = cluster {
            app.tasks.spawn(cluster.run(stop.clone()));
        }
        app.tasks.spawn(prober_worker.run(app.probe_settings.subscribe(), stop.clone()));
        app.tasks.spawn(app.announcements.clone().retry_silent(stop.clone()));
        app.tasks.spawn(app.site.clone().gather_events(stop.clone()));
        app.tasks.spawn(app.site.clone().tidy(stop.clone()));
        app.tasks.spawn(relief::run(app.hub.clone(), app.guard.clone(), stop.clone()));
        let mirror = Mirror { announcements: app.announcements.clone(), metrics: app.metrics.clone() };
        app.tasks.spawn(Arc::new(mirror).run(app.mirror_settings.subscribe(), stop.clone()));
        app.tasks.spawn(app.notices.clone().run(app.notice_settings.subscribe(), stop.clone()));
        if let Some(tls) = &app.tls {
            app.site.set_tls(tls.clone());
            app.tasks.spawn(tls.clone().follow(stop.clone()));
        }
        for masters in app.services.all.iter().filter_map(|service| service.network.as_ref()) {
            app.tasks.spawn(network::run(app.hub.clone(), masters.subscribe(), stop.clone()));
        }
        app.tasks.spawn(app.moderator.clone().run(stop));
        if let Some(admin) = admin {
            app.serve_admin(admin);
        }
        app.serve(bound)?;
        Ok(app)
    }

    fn serve_admin(&mut self, socket: AdminSocket) {
        let (reload, reloads) = mpsc::channel(1);
        let answers = Answers {
            moderator: self.moderator.clone(),
            hub: self.hub.clone(),
            guard: self.guard.clone(),
            ledger: self.announcements.ledger.clone(),
            metrics: self.metrics.clone(),
            notices: self.notices.clone(),
            store: self.store.as_ref().map(Store::status),
            started: Instant::now().into_std(),
            reload,
        };
        self.reloads = Some(reloads);
        self.tasks.spawn(socket.serve(Arc::new(answers), self.stop_tasks.subscribe()));
    }

    /// The requests to read the configuration again, which the caller has to answer. None without an admin socket.
    pub fn take_reloads(&mut self) -> Option<mpsc::Receiver<Reload>> {
        self.reloads.take()
    }

    /// The configuration in effect.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The ports that are served, in the order of the configuration.
    pub fn listening(&self) -> &[Listening] {
        &self.listening
    }

    /// Restores the list from the store before anything is served, and starts writing changes to it.
    fn restore(&mut self) -> anyhow::Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let bans = self.guard.bans();
        store.restore(&self.hub, |ip| bans.contains(ip));
        let now = self.hub.clock.now();
        let budgets = self.guard.budgets();
        self.hub.publish_first(now, |server| budgets.prove(now, server.address.socket()));
        store.start(&self.hub).context("cannot start a thread")
    }

    fn serve(&mut self, bound: Vec<Bound>) -> anyhow::Result<()> {
        let services = self.services.clone();
        for Bound { key, card, tcp, udp, transport, tls } in bound {
            let service = card.and_then(|card| services.of(card));
            let address = match (&tcp, udp.first()) {
                (Some(tcp), _) => tcp.local_addr()?,
                (None, Some(udp)) => udp.local_addr()?,
                (None, None) => continue,
            };
            self.listening.push(Listening { key, card, address, transport, tls });
            let datagrams = service.and_then(|service| Some((service, service.datagrams.as_ref()?)));
            if let (Some((service, rules)), Some(bytes_max)) = (datagrams, transport.datagram_bytes_max()) {
                self.serve_datagrams(service.card.name, rules, bytes_max, udp).context("cannot start a thread")?;
            }
            let Some(tcp) = tcp else { continue };
            let streams = service.and_then(|service| Some((service.card, service.streams.clone()?)));
            match (transport, streams) {
                (Transport::Stream, Some((card, rules))) => {
                    self.serve_stream(tcp, &self.service(card.name, rules)).context("cannot start a thread")?;
                }
                (Transport::Stream, None) | (Transport::Datagrams { .. }, _) => {}
                (Transport::Http | Transport::DatagramsAndHttp { .. }, _) => {
                    let home = Home(card.map(|card| card.name));
                    self.serve_http(TcpListener::from_std(tcp)?, home, self.tls.clone().filter(|_| tls));
                }
            }
        }
        Ok(())
    }

    /// Runs until a thread or a task has died, which is an error; rotates the cookie keys meanwhile.
    pub async fn supervise(&mut self) -> anyhow::Error {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let stored = self.store.as_ref().and_then(Store::dead_thread);
            if let Some(thread) = self.threads.iter().find(|thread| thread.is_finished()).or(stored) {
                let name = thread.thread().name().unwrap_or("unnamed").to_string();
                return anyhow::anyhow!("the thread `{name}` has ended: this is a bug. Start the program again");
            }
            if let Some(ended) = self.tasks.try_join_next() {
                let why = ended.err().map(|error| format!(" ({error})")).unwrap_or_default();
                return anyhow::anyhow!("a task has ended{why}: this is a bug. Start the program again");
            }
            // In a cluster, the nodes rotate the keys together.
            if self.started_with.is_clustered() || self.keys_made.elapsed() < KEY_ROTATION {
                continue;
            }
            match random() {
                Ok(secret) => {
                    self.services.set_cookies(|cookies| cookies.keys = cookies.keys.rotated(secret));
                    self.keys_made = Instant::now();
                }
                Err(error) => warn!("{error:#}; the cookie keys stay as they are"),
            }
        }
    }

    /// Applies what can change while running, and returns the keys that cannot. On an error nothing has changed.
    pub fn reload(&mut self, mut new: Config) -> anyhow::Result<Vec<String>> {
        let pages = Pages::load(&new)?;
        let certificate = Certificate::read(&new.web)?;
        let fixed = self.started_with.needs_restart(&new);
        if self.started_with.is_clustered() {
            new.keep_lives(&self.started_with);
        }
        if !fixed.is_empty() {
            warn!("changed, but in effect only after a restart: {}", fixed.join(", "));
        }
        self.config = new;
        let guard = &self.config.guard;
        self.moderator.board.configure(guard.moderation());
        let memory = Memory::of(guard);
        let settings = guard.settings(connections_max(&self.config, memory));
        // The bans of before stay until the new ones, with those of the administration, replace them.
        self.guard.set(guard::Settings { bans: Networks::clone(&self.guard.bans()), ..settings });
        self.moderator.apply();
        self.entrance.set(self.config.entrance());
        if let (Some(tls), Some(certificate)) = (&self.tls, certificate) {
            tls.set(certificate);
        }
        self.hub.set_settings(self.config.registry(memory.servers));
        self.hub.set_exempt(guard.exempt());
        self.hub.set_game_limits(guard.game_limits.clone());
        self.hub.held().set_max(memory.lists);
        self.announcements.set_limits(guard.servers_per_ip_max, guard.exempt());
        self.site.set_changes_bytes_max(memory.changes);
        self.site.set_pages(pages);
        self.services.set(&self.config);
        self.probe_settings.send_replace(probe_settings(&self.config));
        self.mirror_settings.send_replace(self.config.mirror());
        self.notice_settings.send_replace(self.config.notices());
        self.config.warnings().iter().for_each(|text| warn!("{text}"));
        self.apply_named_servers();
        if let Some(store) = &self.store {
            store.set_history(self.config.history);
        }
        Ok(fixed)
    }

    /// Stops everything. What is still running after the grace time is abandoned.
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
            self.hub.publish(self.hub.clock.now()); // so that the store writes the last changes
            store.stop();
        }
    }

    fn apply_named_servers(&self) {
        self.hub.apply_one(&Change::NamedServers(self.config.named_servers()), self.hub.clock.now());
    }

    /// One thread per socket, and one for the lists that they are asked for.
    fn serve_datagrams(
        &mut self,
        game: &'static str,
        rules: &SharedRules,
        bytes_max: usize,
        sockets: Vec<UdpSocket>,
    ) -> std::io::Result<()> {
        let Some(first) = sockets.first() else { return Ok(()) };
        let sender = datagram_lists::Sender {
            game,
            rules: rules.clone(),
            guard: self.guard.clone(),
            hub: self.hub.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop_threads.clone(),
        };
        let (lists, thread) = sender.start(first)?;
        self.threads.push(thread);
        for socket in sockets {
            let worker = udp::Worker {
                game,
                bytes_max,
                rules: rules.clone(),
                guard: self.guard.clone(),
                hub: self.hub.clone(),
                ledger: self.announcements.ledger.clone(),
                lists: lists.clone(),
                stop: self.stop_threads.clone(),
            };
            self.threads.push(worker.start(socket)?);
        }
        Ok(())
    }

    fn serve_http(&mut self, listener: TcpListener, home: Home, tls: Option<Arc<Tls>>) {
        let stop = self.stop_tasks.subscribe();
        let service = HttpService::new(self.site.clone(), home, self.entrance.clone(), stop);
        match tls {
            // Handshakes take long.
            Some(tls) => self.accept(listener, None, move |stream, peer, admission| {
                tls.clone().serve(service.clone(), stream, peer, admission)
            }),
            None => {
                let (cores, others) = (self.cores.clone(), Handle::current());
                self.accept(listener, Some(cores.clone()), move |stream, peer, admission| {
                    service.clone().serve_on(cores.clone(), others.clone(), stream, peer, admission)
                });
            }
        }
    }

    fn service(&self, game: &'static str, rules: SharedStreamRules) -> Arc<StreamService> {
        Arc::new(StreamService {
            game,
            rules,
            announcements: self.announcements.clone(),
            metrics: self.metrics.clone(),
            numbers: Numbers::default(),
        })
    }

    /// Each core accepts connections of its own, and serves them to their end: a list is one short conversation, and waking
    /// another thread for it would cost more than the list.
    fn serve_stream(&mut self, listener: std::net::TcpListener, service: &Arc<StreamService>) -> std::io::Result<()> {
        let mut processors = processors();
        for listener in listen::share(listener, self.cores.count()) {
            let worker = quick::Worker {
                service: service.clone(),
                entrance: self.entrance.clone(),
                processor: processors.next(),
                others: self.cores.clone(),
                stop: self.stop_threads.clone(),
                stop_tasks: self.stop_tasks.subscribe(),
            };
            self.threads.push(worker.start(listener)?);
        }
        Ok(())
    }

    fn accept<S, F>(&mut self, listener: TcpListener, cores: Option<Arc<Cores>>, serve: S)
    where
        S: Fn(TcpStream, SocketAddr, Arc<Admission>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(tcp::accept(listener, self.entrance.clone(), cores, self.stop_tasks.subscribe(), serve));
    }
}

/// A bound port.
struct Bound {
    /// The key of the configuration that names it.
    key: String,
    /// None for `web.listen` and `web.tls_listen`.
    card: Option<&'static Card>,
    tcp: Option<std::net::TcpListener>,
    udp: Vec<UdpSocket>,
    transport: Transport,
    tls: bool,
}

fn bind(config: &Config) -> Result<Vec<Bound>, ListenError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut bound = Vec::new();
    let mut bind_all = |key: String, card, addresses: &[SocketAddr], transport| -> Result<(), ListenError> {
        let tls = key == TLS_LISTEN;
        let bind_one = |address| match transport {
            Transport::Datagrams { .. } => Ok((None, listen::udp(address, cores, &key)?)),
            Transport::DatagramsAndHttp { .. } => {
                let (tcp, udp) = listen::tcp_and_udp(address, cores, &key)?;
                Ok((Some(tcp), udp))
            }
            Transport::Http | Transport::Stream => Ok((Some(listen::tcp(address, &key)?), Vec::new())),
        };
        let sockets = listen::all(addresses, bind_one)?;
        bound.extend(sockets.into_iter().map(|(tcp, udp)| Bound { key: key.clone(), card, tcp, udp, transport, tls }));
        Ok(())
    };
    for (card, section) in config.sections() {
        for listener in section.listeners() {
            let key = format!("{}.{}", card.name, listener.key);
            bind_all(key, Some(card), listener.addresses, listener.transport)?;
        }
    }
    bind_all("web.listen".into(), None, &config.web.listen, Transport::Http)?;
    bind_all(TLS_LISTEN.into(), None, &config.web.tls_listen, Transport::Http)?;
    Ok(bound)
}

/// The configured number of connections, or fewer where the system allows fewer descriptors.
fn connections_max(config: &Config, memory: Memory) -> usize {
    let wanted = config.guard.connections_max.min(memory.connections);
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |(soft, _)| soft as usize);
    let possible = descriptors.saturating_sub(DESCRIPTORS_RESERVED).max(16);
    if possible < wanted {
        warn!("{wanted} connections would fit, but the system allows only {descriptors} descriptors: using {possible}");
    }
    wanted.min(possible)
}

fn probe_settings(config: &Config) -> prober::ProbeSettings {
    let settings = prober::settings(config.probe.per_second_max, config.guard.servers_per_ip_max, config.probe.every);
    prober::ProbeSettings { settings, exempt: Arc::new(config.guard.exempt()) }
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

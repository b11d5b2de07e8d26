//! HTTP: the page, the lists for the games' clients, the API, health. Reads only the published view.

mod announce;
mod answers;
mod api;
mod charge;
mod check;
mod columns;
mod cors;
mod doctor;
mod door;
mod embed;
mod events;
mod fast;
mod feed;
pub mod filter;
mod frames;
mod game_page;
mod games;
mod history;
mod http;
mod json;
mod manual;
mod missing;
mod openapi;
mod order;
mod origin;
mod page;
mod parameters;
pub mod plot;
mod plots;
mod reply;
mod routes;
mod row;
mod samples;
pub mod search;
mod server_page;
mod template;
mod test_now;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::extract::{Extension, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::watch;

use crate::config::Config;
use crate::geo;
use crate::hub::{Hub, Refusal};
use crate::metrics::Metrics;
use crate::moderation::Board;
use crate::net::announcements::Announcements;
use crate::net::guard::Guard;
use crate::net::stopped;
use crate::prefix::quota::Quota;
use crate::protocols::Card;
use crate::protocols::post::PostRoute;
use crate::protocols::section::{Places, Route, Section, Surroundings};
use crate::registry::recent::Recent;
use crate::registry::view::{Rendered, Renderer, View};
use crate::store::{Status, Store};
use answers::Target;
use api::ListAsk;
use events::Events;
use filter::Filter;
pub use http::HttpService;
use page::{Ask, Index, IndexRenderer};
pub use page::{BUILT_IN_STYLESHEET, BUILT_IN_TEMPLATE};
use reply::Fresh;
use search::Search;
pub use template::PageError;
pub use tls::{Certificate, Tls};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Which pages are told where a visitor comes from: our own, of whose requests it shows that they are ours.
const REFERRERS: &str = "same-origin";

/// How long a page waits for its plots.
const PLOTS_PATIENCE: Duration = Duration::from_secs(1);
/// How often to look for what is not used.
const TIDY_EVERY: Duration = Duration::from_secs(10);
/// From this many servers on, rendering takes milliseconds.
const LONG_LIST: usize = 5_000;

/// What the handlers need.
pub struct Site {
    hub: Arc<Hub>,
    announcements: Arc<Announcements>,
    guard: Arc<Guard>,
    metrics: Arc<Metrics>,
    pages: ArcSwap<Pages>,
    /// The games whose listeners have a page.
    homes: ArcSwap<Vec<Home>>,
    lists: Recent<ListAsk>,
    games: Arc<dyn Renderer>,
    /// The API's list of all servers.
    all: Arc<Target>,
    search: Arc<Search>,
    events: Events,
    /// Servers that came alive lately.
    alive: Arc<feed::Alive>,
    openapi: Rendered,
    /// The store; none where nothing is kept.
    history: Option<history::Access>,
    store: Option<Arc<Status>>,
    /// What the operator keeps off the list.
    board: Arc<Board>,
    /// Servers that their owners test.
    tests: Quota,
    /// Long bodies of requests that are being read.
    pub long_bodies: Quota,
    /// The certificate in use, which has names of this master.
    tls: OnceLock<Arc<Tls>>,
}

/// What follows from the configuration: renderers and files. Replaced as a whole.
pub struct Pages {
    /// Where addresses are.
    database: Option<Arc<geo::Database>>,
    index: Arc<Index>,
    /// Renderers of the index page that were requested recently.
    indexes: Recent<Ask, IndexRenderer>,
    /// Those without parameters.
    first: Mutex<Vec<(Home, Arc<IndexRenderer>)>>,
    /// Whether history is counted.
    history: bool,
    doctor: doctor::Page,
    manual: manual::Page,
    server: server_page::Page,
    game: game_page::Page,
    embed: Arc<embed::Page>,
    embeds: Recent<Filter>,
    feeds: Recent<Filter>,
    missing: missing::Page,
    script: Rendered,
    favicon: Rendered,
    stylesheet: Arc<Rendered>,
    /// What the protocols serve.
    routes: Vec<Route>,
    /// Those of their lists that everybody shares.
    targets: Vec<Arc<Target>>,
    posts: Vec<PostRoute>,
    /// Every protocol with its settings.
    sections: Vec<(&'static Card, Box<dyn Section>)>,
    /// The operator's token for the API; empty: there is none.
    token: String,
    /// The names under which this master is reached.
    hosts: Vec<String>,
    /// What browsers that came with TLS are told of it.
    hsts: Option<HeaderValue>,
}

impl Pages {
    /// Reads the operator's files; an error names the file and what is wrong with it.
    pub fn load(config: &Config) -> Result<Pages, PageError> {
        let database = config.geo_database.as_deref().map(geo::Database::open).transpose().map_err(PageError)?;
        let database = database.map(Arc::new);
        let places: Option<Arc<dyn Places>> = database.clone().map(|database| database as _);
        let places = places.unwrap_or_else(|| Surroundings::default().places);
        let with = Surroundings { bans: config.guard.bans.clone(), places };
        let routes: Vec<Route> = config.sections().flat_map(|(_, section)| section.routes(&with)).collect();
        Ok(Pages {
            database,
            index: Arc::new(Index::load(&config.web)?),
            indexes: Recent::default(),
            first: Mutex::default(),
            history: config.history.bytes_max > 0,
            doctor: doctor::Page::new(&config.web.title)?,
            manual: manual::Page::new(&config.web.title, &openapi::document(&api::routes().1))?,
            server: server_page::Page::new(&config.web.title)?,
            game: game_page::Page::new(&config.web.title)?,
            embed: Arc::new(embed::Page::new(&config.web.title)?),
            embeds: Recent::default(),
            feeds: Recent::default(),
            missing: missing::Page::new(&config.web.title)?,
            script: Rendered::new(page::SCRIPT),
            favicon: Rendered::new(page::FAVICON),
            stylesheet: Arc::new(Rendered::new(page::stylesheet(&config.web)?)),
            targets: routes.iter().filter_map(Target::of).map(Arc::new).collect(),
            routes,
            posts: config.sections().flat_map(|(_, section)| section.posts()).collect(),
            sections: config.sections().map(|(card, section)| (card, section.cloned())).collect(),
            token: config.web.token.clone(),
            hosts: config.web.hosts.clone(),
            hsts: config.hsts().and_then(|age| HeaderValue::from_str(&format!("max-age={}", age.as_secs())).ok()),
        })
    }
}

impl Site {
    /// `run` identifies this run of the program.
    pub fn new(
        announcements: Arc<Announcements>,
        guard: Arc<Guard>,
        metrics: Arc<Metrics>,
        pages: Pages,
        run: u32,
        store: Option<&Store>,
        board: Arc<Board>,
    ) -> Arc<Site> {
        let (_, document) = api::routes();
        let hub = announcements.hub.clone();
        let search = Arc::<Search>::default();
        geo::set_countries(pages.database.clone());
        Arc::new(Site {
            hub: hub.clone(),
            announcements,
            guard,
            metrics,
            pages: ArcSwap::from_pointee(pages),
            homes: ArcSwap::default(),
            lists: Recent::default(),
            games: Arc::new(games::GamesRenderer),
            all: Arc::new(Target::api(api::list_of(ListAsk::all(), &search))),
            search,
            events: Events::new(run),
            alive: Arc::default(),
            openapi: Rendered::new(serde_json::to_string_pretty(&openapi::document(&document)).unwrap_or_default()),
            history: store.map(|store| history::Access::new(store.reader(), &hub)),
            store: store.map(Store::status),
            board,
            tests: test_now::places(),
            long_bodies: http::long_bodies(),
            tls: OnceLock::new(),
        })
    }

    /// Feeds the event stream and the feed until stopped.
    pub async fn gather_events(self: Arc<Site>, stop: watch::Receiver<bool>) {
        tokio::join!(Events::gather(self.clone(), stop.clone()), feed::Alive::follow(self, stop));
    }

    /// Frees what nobody has used for a while, until stopped.
    pub async fn tidy(self: Arc<Site>, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(TIDY_EVERY) => {
                    self.search.forget_unused(Instant::now());
                    self.events.forget_snapshots(tokio::time::Instant::now());
                    if let Some(database) = self.pages.load().database.clone() {
                        let _ = tokio::task::spawn_blocking(move || database.refresh()).await; // fails when we stop
                    }
                }
                () = stopped(&mut stop) => return,
            }
        }
    }

    /// Bounds what changes that readers of events have not taken yet keep in memory.
    pub fn set_changes_bytes_max(&self, bytes_max: usize) {
        self.events.set_bytes_max(bytes_max);
    }

    pub fn set_pages(&self, pages: Pages) {
        geo::set_countries(pages.database.clone());
        self.pages.store(Arc::new(pages));
        self.keep_lists();
    }

    /// Prepares lists that take long beside those who ask for them, until the hub stops.
    pub fn prepare_lists(&self) -> io::Result<JoinHandle<()>> {
        let held = self.hub.held().clone();
        self.hub.prepare_lists(move |list, before| {
            if let Some(before) = before {
                reply::encode_as_before(list, before, &held);
            }
        })
    }

    /// The page that a listener shows where the address has no parameters.
    fn add_home(&self, home: Home) {
        self.homes.rcu(|homes| {
            let others = homes.iter().copied().filter(|known| *known != home);
            others.chain([home]).collect::<Vec<_>>()
        });
        self.keep_lists();
    }

    /// The lists that everybody shares, and the first pages, are kept ready for the first who asks for them.
    fn keep_lists(&self) {
        let pages = self.pages.load();
        let targets = pages.targets.iter().chain([&self.all]).map(|target| target.renderer.clone());
        let homes = self.homes.load();
        let first = homes.iter().map(|home| self.first_page(&pages, *home) as Arc<dyn Renderer>);
        self.hub.keep_lists(targets.chain(first).collect());
    }

    /// The index page without parameters.
    fn first_page(&self, pages: &Pages, home: Home) -> Arc<IndexRenderer> {
        let mut all = pages.first.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = all.iter().find(|(known, _)| *known == home) {
            return page.clone();
        }
        let page = self.index(pages, Ask::parse("", home.0));
        all.push((home, page.clone()));
        page
    }

    fn index(&self, pages: &Pages, ask: Ask) -> Arc<IndexRenderer> {
        let plots = self.history.as_ref().filter(|_| pages.history).map(|access| access.plots.clone());
        Arc::new(IndexRenderer::new(pages.index.clone(), ask, self.search.clone(), plots))
    }

    /// The newest view as a renderer shows it.
    async fn render(&self, renderer: &Arc<dyn Renderer>, Peer(peer): Peer) -> Result<Arc<Rendered>, Refusal> {
        let started = Instant::now();
        let list = self.hub.list(renderer, peer.ip()).await;
        self.metrics.render.observe(started.elapsed().as_secs_f64());
        list
    }

    /// The same as a response.
    async fn send(
        &self,
        renderer: &Arc<dyn Renderer>,
        peer: Peer,
        content_type: &'static str,
        headers: &HeaderMap,
        fresh: Fresh,
    ) -> Response {
        match self.render(renderer, peer).await {
            Ok(list) => {
                self.encode(&list, renderer.is_common(), peer, reply::accepted_by(headers)).await;
                reply::rendered(&list, content_type, headers, fresh)
            }
            Err(refusal) => reply::refused(refusal),
        }
    }

    /// Encodes a long list as the client accepts it. If there are too many others, it is sent as it is.
    async fn encode(&self, list: &Arc<Rendered>, is_common: bool, Peer(peer): Peer, encoding: Option<usize>) {
        if let Some(encode) = reply::long_encoding(list, encoding, self.hub.held()) {
            let _ = self.hub.work(is_common, peer.ip(), encode).await;
        }
    }
}

impl Site {
    /// The list that everybody shares at a path, if it has one.
    fn target(&self, path: &str) -> Option<Arc<Target>> {
        if path == self.all.path {
            return Some(self.all.clone());
        }
        self.pages.load().targets.iter().find(|target| target.path == path).cloned()
    }

    /// That browsers shall come with TLS only: said where they did.
    fn hsts(&self, is_secure: bool) -> Option<HeaderValue> {
        is_secure.then(|| self.pages.load().hsts.clone()).flatten()
    }

    /// Whether it is this one.
    fn is_target(&self, path: &str, target: &Arc<Target>) -> bool {
        let is_any = || self.pages.load().targets.iter().any(|any| Arc::ptr_eq(any, target));
        path == target.path && (Arc::ptr_eq(&self.all, target) || is_any())
    }
}

/// Work whose time grows with the list: for a long one, it does not run on a thread that serves others.
fn aside<T>(view: &View, work: impl FnOnce() -> T) -> T {
    if view.servers.len() < LONG_LIST { work() } else { tokio::task::block_in_place(work) }
}

/// The game that a listener belongs to: its page shows this one where the address names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(pub Option<&'static str>);

pub fn router(site: Arc<Site>, home: Home) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/index.html", get(index))
        .route("/style.css", get(stylesheet))
        .route("/page.js", get(script))
        .route("/favicon.svg", get(favicon))
        .route("/servers/{game}/{address}", get(server_page::page))
        .route("/servers/{game}/{address}/badge.svg", get(embed::badge))
        .route("/games/{game}", get(game_page::page))
        .route("/embed", get(embed::list))
        .route("/feed.atom", get(feed::feed))
        .route("/doctor", get(doctor::page).post(doctor::test))
        .route("/plots", get(plots::fragments))
        .route("/api", get(manual::page))
        .route("/api/v1", get(manual::page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/v1/openapi.json", get(openapi_document))
        .merge(api::routes().0)
        .merge(routes::all())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn_with_state(site.clone(), charge::charge))
        .layer(axum::middleware::from_fn(cors::allow_everyone))
        .layer(Extension(home))
        .with_state(site)
}

async fn index(
    State(site): State<Arc<Site>>,
    Extension(Home(home)): Extension<Home>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let pages = site.pages.load_full();
    let access = site.history.as_ref().filter(|_| pages.history);
    let index = match query.as_deref().unwrap_or_default() {
        "" => site.first_page(&pages, Home(home)),
        query => pages.indexes.get(Ask::parse(query, home), |ask| site.index(&pages, ask)),
    };
    let renderer: Arc<dyn Renderer> = index.clone();
    let shown = match site.render(&renderer, peer).await {
        Ok(shown) => shown,
        Err(refusal) => return reply::refused(refusal),
    };
    let missing = index.missing();
    if let Some(access) = access.filter(|_| !missing.is_nothing()) {
        // A slow disk does not hold up the page: it is then sent without its plots.
        let drawn = plots::draw(access, peer, missing, site.hub.clock.now().unix_ms);
        if tokio::time::timeout(PLOTS_PATIENCE, drawn).await == Ok(true)
            && let Ok(shown) = site.render(&renderer, peer).await
        {
            return site.page_of(&shown, renderer.is_common(), peer, &headers).await;
        }
    }
    site.page_of(&shown, renderer.is_common(), peer, &headers).await
}

impl Site {
    async fn page_of(&self, page: &Arc<Rendered>, is_common: bool, peer: Peer, headers: &HeaderMap) -> Response {
        self.encode(page, is_common, peer, reply::accepted_by(headers)).await;
        page_of(page, headers)
    }
}

/// A page for people. Its policy allows only our own scripts, styles, images and requests, and other sites are not told the
/// address that their visitors come from, which may have a search in it.
fn page_of(page: &Rendered, headers: &HeaderMap) -> Response {
    let mut response = reply::rendered(page, HTML, headers, Fresh::Ask);
    set_policy(&mut response);
    response
}

fn set_policy(response: &mut Response) {
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                  form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    reply::set(response, header::CONTENT_SECURITY_POLICY, policy);
    reply::set(response, header::REFERRER_POLICY, REFERRERS);
}

async fn script(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.pages.load().script, JAVASCRIPT, &headers, Fresh::Ask)
}

async fn favicon(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.pages.load().favicon, SVG, &headers, Fresh::Seconds(86_400))
}

async fn stylesheet(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.pages.load().stylesheet, CSS, &headers, Fresh::Ask)
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    serial: u64,
    servers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<StoreReady>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterReady>,
}

/// A node that cannot write still serves, and reports it here.
#[derive(Serialize)]
struct StoreReady {
    failing: bool,
    /// How often the file was removed while in use, and its history lost.
    #[serde(skip_serializing_if = "is_none")]
    files_lost: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// A node without a connection to the others still serves, and reports it here.
#[derive(Serialize)]
struct ClusterReady {
    connected: bool,
    nodes: i64,
}

/// A node that answers at all has bound its ports and can serve.
async fn ready(State(site): State<Arc<Site>>) -> Json<Ready> {
    let view = site.hub.view();
    let figures = site.metrics.cluster.as_ref();
    let cluster =
        figures.map(|figures| ClusterReady { connected: figures.connected.get() == 1, nodes: figures.nodes.get() });
    let files_lost = |status: &Status| status.files_lost.load(Ordering::Relaxed);
    let store = site.store.as_deref();
    let store = store.map(|status| StoreReady { failing: status.is_failing(), files_lost: files_lost(status) });
    Json(Ready { ready: true, serial: view.serial, servers: view.servers.len(), store, cluster })
}

async fn metrics(State(site): State<Arc<Site>>, Extension(Peer(peer)): Extension<Peer>) -> Response {
    let view = site.hub.view();
    if view.servers.len() < LONG_LIST {
        site.metrics.count(&view);
    } else if !site.metrics.has_counted(&view) {
        // If there is too much other work, the last count is good enough.
        let counting = site.clone();
        let _ = site.hub.work(false, peer.ip(), move || counting.metrics.count(&counting.hub.view())).await;
    }
    let queue = site.hub.queue();
    site.metrics.set_work(queue.waiting(), queue.refused(), site.hub.held().bytes());
    let (ledger, connections, now) = (&site.announcements.ledger, site.guard.connections(), site.hub.clock.now());
    let budgets = site.guard.budgets();
    let text = site.metrics.text(&view, ledger, connections, site.store.as_deref(), (&budgets, now));
    let mut response = Response::new(text.into());
    reply::set(&mut response, header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    response
}

async fn openapi_document(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.openapi, JSON, &headers, Fresh::Ask)
}

async fn not_found(State(site): State<Arc<Site>>, request: Request) -> Response {
    let path = request.uri().path();
    if missing::is_for_people(request.headers()) && !path.starts_with("/api/") {
        let text = format!("There is no page at {path}.");
        return missing::page(&site.pages.load().missing, "Not found", &text, request.headers());
    }
    reply::error(StatusCode::NOT_FOUND, &format!("no such path: {path}\n"))
}

async fn method_not_allowed(method: Method) -> Response {
    reply::error(StatusCode::METHOD_NOT_ALLOWED, &format!("{method} is not allowed here\n"))
}

/// The client of a request: the peer of its connection, or the address that a trusted proxy names.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        reply::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("{self}\n"))
    }
}

//! HTTP: the page, the lists that the games' clients read, health. Only reads the published view.

mod api;
mod bloodmasters;
mod check;
mod events;
mod filter;
mod http;
mod json;
mod page;
mod reply;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::watch;

use crate::config::Config;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::net::door::Door;
use crate::net::guard::Guard;
use crate::protocols::bloodmasters::list::emit_bans;
use crate::protocols::bloodmasters::serve::ServerLines;
use crate::protocols::iceball::{self, list::MasterJson};
use crate::registry::view::{Rendered, Renderer};
use events::Events;
pub use http::{HttpLimits, serve_connection};
pub use page::{BUILT_IN_STYLESHEET, BUILT_IN_TEMPLATE, PageError};
use reply::Fresh;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// From this many servers on, rendering takes milliseconds.
const LONG_LIST: usize = 5_000;

/// What the handlers need.
pub struct Site {
    hub: Arc<Hub>,
    door: Arc<Door>,
    guard: Arc<Guard>,
    metrics: Arc<Metrics>,
    pages: ArcSwap<Pages>,
    lists: api::Lists,
    events: Events,
    openapi: Rendered,
}

/// What follows from the configuration: renderers and files. Replaced as a whole.
pub struct Pages {
    index: Arc<dyn Renderer>,
    master_json: Arc<dyn Renderer>,
    stylesheet: Arc<Rendered>,
    /// Whether Bloodmasters' list is served at all.
    bloodmasters: bool,
    bloodmasters_list: Arc<dyn Renderer>,
    bloodmasters_bans: Arc<Rendered>,
    iceball: iceball::serve::Settings,
    /// What makes a caller of the API the operator; empty: nothing does.
    token: String,
}

impl Pages {
    /// Reads the operator's files; an error names the file and what is wrong with it.
    pub fn load(config: &Config) -> Result<Pages, PageError> {
        Ok(Pages {
            index: Arc::new(page::Index::load(&config.web)?),
            master_json: Arc::new(MasterJson { settings: config.iceball.settings }),
            stylesheet: Arc::new(Rendered::new(page::stylesheet(&config.web)?)),
            bloodmasters: config.bloodmasters.list,
            bloodmasters_list: Arc::new(ServerLines),
            bloodmasters_bans: Arc::new(Rendered::new(emit_bans(&config.guard.ipv4_bans()))),
            iceball: config.iceball.settings,
            token: config.web.token.clone(),
        })
    }
}

impl Site {
    /// `run` tells this run of the program from others.
    pub fn new(door: Arc<Door>, guard: Arc<Guard>, metrics: Arc<Metrics>, pages: Pages, run: u32) -> Arc<Site> {
        let (_, document) = api::routes();
        Arc::new(Site {
            hub: door.hub.clone(),
            door,
            guard,
            metrics,
            pages: ArcSwap::from_pointee(pages),
            lists: api::Lists::default(),
            events: Events::new(run),
            openapi: Rendered::new(document.to_pretty_json().unwrap_or_default()),
        })
    }

    /// Feeds the event stream until told to stop.
    pub async fn gather_events(self: Arc<Site>, stop: watch::Receiver<bool>) {
        Events::gather(self, stop).await;
    }

    pub fn set_pages(&self, pages: Pages) {
        self.pages.store(Arc::new(pages));
    }

    fn list(&self, choose: impl Fn(&Pages) -> &Arc<dyn Renderer>) -> Arc<Rendered> {
        let pages = self.pages.load();
        self.render(choose(&pages))
    }

    /// The newest view as a renderer shows it. A long list is made off the threads that serve others.
    fn render(&self, renderer: &Arc<dyn Renderer>) -> Arc<Rendered> {
        let view = self.hub.view();
        let render = || {
            let started = Instant::now();
            let list = view.list(renderer);
            self.metrics.render.observe(started.elapsed().as_secs_f64());
            list
        };
        if view.servers.len() < LONG_LIST { render() } else { tokio::task::block_in_place(render) }
    }
}

pub fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/index.html", get(index))
        .route("/style.css", get(stylesheet))
        .route("/master.json", get(master_json))
        .route("/bloodmasterslist.php", get(bloodmasters::list))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/v1/openapi.json", get(openapi))
        .merge(api::routes().0)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(axum::middleware::from_fn(api::allow_everyone))
        .with_state(site)
}

async fn index(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let mut response = reply::rendered(&site.list(|pages| &pages.index), HTML, &headers, Fresh::Ask);
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                  form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    reply::set(&mut response, header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn stylesheet(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.pages.load().stylesheet, CSS, &headers, Fresh::Ask)
}

async fn master_json(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    site.metrics.listed("master.json");
    reply::rendered(&site.list(|pages| &pages.master_json), JSON, &headers, Fresh::Ask)
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    serial: u64,
    servers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterReady>,
}

/// A node that is cut off from the others serves all the same, and says so.
#[derive(Serialize)]
struct ClusterReady {
    connected: bool,
    nodes: i64,
}

/// Whoever gets an answer at all gets it from a node that has bound its ports and can serve.
async fn ready(State(site): State<Arc<Site>>) -> Json<Ready> {
    let view = site.hub.view();
    let figures = site.metrics.cluster.as_ref();
    let cluster =
        figures.map(|figures| ClusterReady { connected: figures.connected.get() == 1, nodes: figures.nodes.get() });
    Json(Ready { ready: true, serial: view.serial, servers: view.servers.len(), cluster })
}

async fn metrics(State(site): State<Arc<Site>>) -> Response {
    let text = site.metrics.text(&site.hub.view(), &site.door.ledger, site.guard.connections());
    let mut response = Response::new(text.into());
    reply::set(&mut response, header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    response
}

async fn openapi(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.openapi, JSON, &headers, Fresh::Ask)
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    reply::error(StatusCode::NOT_FOUND, &format!("there is no {path} here\n"))
}

async fn method_not_allowed(method: Method) -> Response {
    reply::error(StatusCode::METHOD_NOT_ALLOWED, &format!("{method} is not possible here\n"))
}

/// The peer of a request's connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        reply::error(StatusCode::INTERNAL_SERVER_ERROR, &format!("{self}\n"))
    }
}

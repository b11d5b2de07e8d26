//! HTTP: the page, the lists that the games' clients read, health. Only reads the published view.

mod bloodmasters;
mod history;
mod http;
mod page;
pub mod plot;
mod reply;

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::config::Config;
use crate::hub::Hub;
use crate::net::door::Door;
use crate::protocols::bloodmasters::list::emit_bans;
use crate::protocols::bloodmasters::serve::ServerLines;
use crate::protocols::iceball::list::MasterJson;
use crate::registry::view::{Rendered, Renderer};
use crate::store::history::Reader;
pub use http::{HttpLimits, serve_connection};
pub use page::{BUILT_IN_STYLESHEET, BUILT_IN_TEMPLATE, PageError};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// What the handlers need.
pub struct Site {
    hub: Arc<Hub>,
    door: Arc<Door>,
    pages: ArcSwap<Pages>,
    /// None where nothing is kept.
    history: Option<history::Access>,
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
        })
    }
}

impl Site {
    pub fn new(door: Arc<Door>, pages: Pages, history: Option<Reader>) -> Arc<Site> {
        let history = history.map(history::Access::new);
        Arc::new(Site { hub: door.hub.clone(), door, pages: ArcSwap::from_pointee(pages), history })
    }

    pub fn set_pages(&self, pages: Pages) {
        self.pages.store(Arc::new(pages));
    }

    fn list(&self, choose: impl Fn(&Pages) -> &Arc<dyn Renderer>) -> Arc<Rendered> {
        let pages = self.pages.load();
        self.hub.view().list(choose(&pages))
    }
}

pub fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/index.html", get(index))
        .route("/style.css", get(stylesheet))
        .route("/master.json", get(master_json))
        .route("/bloodmasterslist.php", get(bloodmasters::list))
        .route("/api/v1/servers/{game}/{address}/history", get(history::server))
        .route("/api/v1/history", get(history::game))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(site)
}

async fn index(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let mut response = reply::rendered(&site.list(|pages| &pages.index), HTML, &headers);
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                  form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    reply::set(&mut response, header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn stylesheet(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.pages.load().stylesheet, CSS, &headers)
}

async fn master_json(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    reply::rendered(&site.list(|pages| &pages.master_json), JSON, &headers)
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    serial: u64,
    servers: usize,
}

/// Whoever gets an answer at all gets it from a node that has bound its ports and can serve.
async fn ready(State(site): State<Arc<Site>>) -> Json<Ready> {
    let view = site.hub.view();
    Json(Ready { ready: true, serial: view.serial, servers: view.servers.len() })
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

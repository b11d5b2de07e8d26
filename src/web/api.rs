//! The JSON API. Its OpenAPI document is generated from these handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::columns::{Columns, Wanted};
use super::filter::{FILTERS, Filter, PAGING, Selection, Wrong};
use super::json::{Row, ServerJson};
use super::reply::{self, Fresh};
use super::search::Search;
use super::{JSON, Peer, Site, announce, check, events, games, history, parameters, test_now};
use crate::geo;
use crate::model::Address;
use crate::registry::view::{Body, Renderer, Tag, View};

/// How long a client may cache a list.
pub const LIST_FRESH: Fresh = Fresh::Seconds(2);
/// The path of the list, and its label in metrics.
pub const LIST_PATH: &str = "/api/v1/servers";
pub const LIST_LABEL: &str = "api";
/// Where the API is.
const PREFIX: &str = "/api/";
/// The longest announcement, with players and rules.
pub const BODY_BYTES_MAX: usize = 12 << 10;

#[derive(OpenApi)]
#[openapi(
    info(title = "Rallypoint", description = "Game servers that are up. Every address is verified."),
    servers((url = "/", description = "this master")),
    components(schemas(test_now::TestStep, test_now::TestResult, test_now::TestSaid)),
    tags(
        (name = "servers", description = "The list, and why a server is on it or not"),
        (name = "games", description = "Games and protocols"),
        (name = "history", description = "Players and servers over time"),
    ),
)]
struct Document;

/// The routes, and the document that describes them.
pub fn routes() -> (Router<Arc<Site>>, utoipa::openapi::OpenApi) {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(list, announce::announce))
        .routes(routes!(one))
        .routes(routes!(games::list))
        .routes(routes!(history::server))
        .routes(routes!(history::server_plot))
        .routes(routes!(history::game))
        .routes(routes!(history::game_plot))
        .routes(routes!(events::events))
        .routes(routes!(check::check))
        .routes(routes!(test_now::test))
        .split_for_parts();
    (router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)), document)
}

pub fn is_api(path: &str) -> bool {
    path.starts_with(PREFIX)
}

/// Turns an error in plain text into one in JSON, like all others here.
pub async fn in_json(response: Response) -> Response {
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == JSON);
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (head, body) = response.into_parts();
    let text = axum::body::to_bytes(body, BODY_BYTES_MAX).await.unwrap_or_default();
    let error = String::from_utf8_lossy(&text).trim_end().to_string();
    let mut response = wrong(status, &Wrong { error, parameter: None });
    for name in [header::ALLOW, header::RETRY_AFTER, header::CONNECTION] {
        if let Some(value) = head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

pub fn wrong(status: StatusCode, wrong: &Wrong) -> Response {
    reply::json(status, wrong)
}

pub fn bad_request(error: &Wrong) -> Response {
    wrong(StatusCode::BAD_REQUEST, error)
}

/// A list of servers.
#[derive(Serialize, ToSchema)]
struct ServerList<'a> {
    /// Increases with every change of the list.
    serial: u64,
    /// The number of servers on all pages.
    total: usize,
    #[schema(value_type = Vec<ServerJson>)]
    servers: Vec<Row<'a>>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What a request for a list asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListAsk {
    filter: Filter,
    columns: Columns,
}

impl ListAsk {
    /// All servers, with all their fields.
    pub fn all() -> ListAsk {
        ListAsk { filter: Filter::default(), columns: Columns::ALL }
    }

    fn parse(query: &str) -> Result<ListAsk, Wrong> {
        let (mut filter, mut wanted) = (Filter::default(), Wanted::default());
        for (name, value) in parameters::once(query)? {
            if !filter.take(&name, &value)? && !wanted.take(&name, &value)? {
                return Err(parameters::unknown(&name, &[&FILTERS[..], &PAGING, &Wanted::NAMES].concat()));
            }
        }
        filter.check()?;
        Ok(ListAsk { filter, columns: wanted.columns(Columns::ALL)? })
    }
}

struct ListRenderer {
    ask: ListAsk,
    search: Arc<Search>,
    /// The version of the countries in the last rendering.
    countries: AtomicU64,
}

impl Renderer for ListRenderer {
    fn render(&self, view: &View) -> Body {
        self.render_tagged(view).0
    }

    /// A list with the same servers and facts says the same, though they were proven again since.
    fn render_tagged(&self, view: &View) -> (Body, Option<Tag>) {
        self.countries.store(geo::version(), Ordering::Relaxed);
        let ListAsk { filter, columns } = &self.ask;
        let Selection { total, page, next, .. } = filter.select(view, &self.search);
        let rows = |columns| page.iter().map(|server| Row::new(server, columns)).collect();
        let list = ServerList { serial: view.serial, total, servers: rows(*columns), next };
        let body = Body::json(&list);
        let servers = rows(columns.without(Columns::TIMES));
        let mut tag = Tag::default();
        let _ = serde_json::to_writer(&mut tag, &ServerList { serial: 0, servers, ..list }); // to memory: cannot fail
        (body, Some(tag))
    }

    fn is_stale(&self) -> bool {
        self.countries.load(Ordering::Relaxed) != geo::version()
    }

    fn is_common(&self) -> bool {
        let ListAsk { filter, columns } = &self.ask;
        filter.limit.is_none() && filter.is_common() && [Columns::ALL, Columns::BRIEF].contains(columns)
    }
}

pub fn list_of(ask: ListAsk, search: &Arc<Search>) -> Arc<dyn Renderer> {
    Arc::new(ListRenderer { ask, search: search.clone(), countries: AtomicU64::new(0) })
}

/// Listed servers, filtered, sorted, page by page
///
/// The `ETag` is weak and stays the same while only `serial`, `proven_at`, `last_seen` and `rtt_ms` differ: a client that sends
/// it in `If-None-Match` gets 304 until a server comes, goes or says something else.
#[utoipa::path(get, path = "/api/v1/servers", tag = "servers", operation_id = "listServers", params(Filter, Wanted), responses(
    (status = 200, description = "The servers", body = ServerList),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 429, description = "Too many searches from this network: see `Retry-After`", body = Wrong),
    (status = 503, description = "Too many others search: see `Retry-After`", body = Wrong),
))]
async fn list(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    match ListAsk::parse(query.as_deref().unwrap_or_default()) {
        Ok(ask) => {
            site.metrics.listed(LIST_LABEL, 1);
            let renderer = match ask == ListAsk::all() {
                true => site.all.renderer.clone(),
                false => site.lists.get(ask, |ask| list_of(ask, &site.search)),
            };
            site.send(&renderer, peer, JSON, &headers, LIST_FRESH).await
        }
        Err(error) => bad_request(&error),
    }
}

/// One server
#[utoipa::path(get, path = "/api/v1/servers/{game}/{address}", tag = "servers", operation_id = "getServer", params(
    ("game" = String, Path, description = "The game's name"),
    ("address" = String, Path, description = "Its address and port, e.g. 203.0.113.5:20737"),
), responses(
    (status = 200, description = "The server", body = ServerJson),
    (status = 400, description = "The address is not valid", body = Wrong),
    (status = 404, description = "No such server is listed", body = Wrong),
))]
async fn one(State(site): State<Arc<Site>>, Path((game, address)): Path<(String, String)>) -> Response {
    let address: Address = match address.parse() {
        Ok(address) => address,
        Err(error) => return bad_request(&Wrong::parameter("address", error)),
    };
    match site.hub.listed(address).filter(|server| server.game.name() == game) {
        Some(server) => reply::json(StatusCode::OK, &ServerJson::new(&server)),
        None => {
            let error = format!("no {game} server is listed at {address}; see /api/v1/check");
            wrong(StatusCode::NOT_FOUND, &Wrong { error, parameter: None })
        }
    }
}

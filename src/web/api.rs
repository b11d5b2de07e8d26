//! The JSON API. Its OpenAPI document is generated from these handlers.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::columns::{Columns, Wanted};
use super::filter::{FILTERS, Filter, PAGING, Selection, Wrong};
use super::json::{Place, Row, ServerJson};
use super::reply::{self, Fresh};
use super::search::Search;
use super::{JSON, Peer, Site, check, events, games, history, origin, parameters};
use crate::model::{Address, GAME_BYTES_MAX, HeartbeatKeys, MASTER};
use crate::protocols::{Heartbeat, Verdict, card, is_one_host};
use crate::registry::view::{Renderer, Tag, View};

/// How long a client may cache a list.
pub const LIST_FRESH: Fresh = Fresh::Seconds(2);
/// The path of the list, and its label in metrics.
pub const LIST_PATH: &str = "/api/v1/servers";
pub const LIST_LABEL: &str = "api";
/// Where the API is.
const PREFIX: &str = "/api/";
/// An announcement is a few dozen bytes.
const BODY_BYTES_MAX: usize = 4096;

#[derive(OpenApi)]
#[openapi(
    info(title = "Rallypoint", description = "Game servers that are up. Every address is verified."),
    servers((url = "/", description = "this master")),
)]
struct Document;

/// The routes, and the document that describes them.
pub fn routes() -> (Router<Arc<Site>>, utoipa::openapi::OpenApi) {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(list, announce))
        .routes(routes!(one))
        .routes(routes!(games::list))
        .routes(routes!(history::server))
        .routes(routes!(history::server_plot))
        .routes(routes!(history::game))
        .routes(routes!(history::game_plot))
        .routes(routes!(events::events))
        .routes(routes!(check::check))
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
    for name in [header::ALLOW, header::RETRY_AFTER] {
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
}

impl Renderer for ListRenderer {
    fn render(&self, view: &View) -> Vec<u8> {
        self.render_tagged(view).0
    }

    /// A list with the same servers and facts says the same, though they were proven again since.
    fn render_tagged(&self, view: &View) -> (Vec<u8>, Option<Tag>) {
        let ListAsk { filter, columns } = &self.ask;
        let Selection { total, page, next, .. } = filter.select(view, &self.search);
        let rows = |columns| page.iter().map(|server| Row::new(server, columns)).collect();
        let list = ServerList { serial: view.serial, total, servers: rows(*columns), next };
        let body = serde_json::to_vec(&list).unwrap_or_default();
        let servers = rows(columns.without(Columns::TIMES));
        let mut tag = Tag::default();
        let _ = serde_json::to_writer(&mut tag, &ServerList { serial: 0, servers, ..list }); // to memory: cannot fail
        (body, Some(tag))
    }

    fn is_common(&self) -> bool {
        let ListAsk { filter, columns } = &self.ask;
        filter.limit.is_none() && filter.is_common() && [Columns::ALL, Columns::BRIEF].contains(columns)
    }
}

pub fn list_of(ask: ListAsk, search: &Arc<Search>) -> Arc<dyn Renderer> {
    Arc::new(ListRenderer { ask, search: search.clone() })
}

/// Listed servers, filtered, sorted, page by page
///
/// The `ETag` is weak and stays the same while only `serial`, `proven_at`, `last_seen` and `rtt_ms` differ: a client that sends
/// it in `If-None-Match` gets 304 until a server comes, goes or says something else.
#[utoipa::path(get, path = "/api/v1/servers", tag = "servers", params(Filter, Wanted), responses(
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
#[utoipa::path(get, path = "/api/v1/servers/{game}/{address}", tag = "servers", params(
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

/// A server that announces itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Announcement {
    /// The game's name. May be left out if the protocol is given and has one game, or if the server's answer says which.
    #[serde(default)]
    game: String,
    /// The protocol that the server speaks. If absent, it follows from the game's name.
    protocol: Option<String>,
    /// The port that players connect to.
    port: u16,
    /// Its IP address, if that is not the caller's own. Needs the operator's token.
    #[schema(value_type = Option<String>)]
    address: Option<IpAddr>,
}

/// The result of an announcement.
#[derive(Serialize, ToSchema)]
struct Announced {
    listed: bool,
    /// The address under which the server is known.
    #[serde(flatten)]
    place: Place,
    /// The server has to announce itself again within this many seconds.
    life_s: u64,
}

/// Announces a server
///
/// The caller's own address is announced. A server of a game that can be queried is queried before it is listed, so the
/// answer can take four seconds. Another address can be announced with the operator's token. The body has to be sent as
/// `application/json`, and not by a page of another origin.
#[utoipa::path(post, path = "/api/v1/servers", tag = "servers", request_body = Announcement, responses(
    (status = 200, description = "The server is listed", body = Announced),
    (status = 400, description = "The announcement is wrong", body = Wrong),
    (status = 403, description = "A page of another origin sent it", body = Wrong),
    (status = 415, description = "It was not sent as application/json", body = Wrong),
    (status = 401, description = "Another address needs the operator's token", body = Wrong),
    (status = 422, description = "The server is not listed; the error says why", body = Wrong),
    (status = 429, description = "Too many announcements from this network; `Retry-After` says when to try again", body = Wrong),
))]
async fn announce(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let refused = |status, error: &str| wrong(status, &Wrong { error: error.into(), parameter: None });
    if origin::is_cross_origin(&headers) {
        return refused(StatusCode::FORBIDDEN, "a page of another origin cannot announce a server");
    }
    if !origin::is_json(&headers) {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the Content-Type has to be application/json");
    }
    let announcement: Announcement = match serde_json::from_slice(&body) {
        Ok(announcement) => announcement,
        Err(error) => return bad_request(&Wrong { error: format!("the body: {error}"), parameter: None }),
    };
    let ip = announcement.address.unwrap_or(peer.ip()).to_canonical();
    if ip != peer.ip().to_canonical() && !has_token(&headers, &site.pages.load().token) {
        let error = "announcing another address than your own needs the operator's token";
        return wrong(StatusCode::UNAUTHORIZED, &Wrong::parameter("address", error));
    }
    match heartbeat(&announcement, ip) {
        Ok(heartbeat) => {
            let (address, life_ms) = (heartbeat.address, heartbeat.life_ms);
            match site.announcements.announce(heartbeat).await {
                Verdict::Listed => {
                    let announced = Announced { listed: true, place: address.into(), life_s: life_ms / 1000 };
                    reply::json(StatusCode::OK, &announced)
                }
                Verdict::Refused(error) => wrong(StatusCode::UNPROCESSABLE_ENTITY, &Wrong { error, parameter: None }),
                Verdict::TryLater { reason, after_s } => reply::try_later(&reason, after_s),
            }
        }
        Err(error) => bad_request(&error),
    }
}

fn heartbeat(announcement: &Announcement, ip: IpAddr) -> Result<Heartbeat, Wrong> {
    let name = crate::text::clean(announcement.game.as_bytes()).into_owned();
    let address = Address::new(ip, announcement.port).ok_or_else(|| Wrong::parameter("port", "must not be 0"))?;
    if !is_one_host(ip) {
        return Err(Wrong::parameter("address", "is not the address of one host"));
    }
    let protocol = match &announcement.protocol {
        Some(name) => Some(card(name).ok_or_else(|| Wrong::parameter("protocol", "is unknown here"))?),
        None => None,
    };
    // A protocol with one game needs no name beside its own, and a server of a family says it itself.
    let name = match protocol {
        Some(card) if name.is_empty() => card.name,
        _ => &name,
    };
    if name.is_empty() || name.len() > GAME_BYTES_MAX || name.contains('\\') || name == MASTER {
        return Err(Wrong::parameter("game", "is not the name of a game"));
    }
    let keys = HeartbeatKeys::of(name, address);
    Heartbeat::new(address, protocol, name, keys).map_err(|error| Wrong::parameter("game", error))
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    !token.is_empty() && bool::from(given.as_bytes().ct_eq(token.as_bytes()))
}

//! History as JSON and as plots. Reading it waits for a disk, so it runs on blocking threads, a few at a time.

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use tracing::warn;
use utoipa::ToSchema;

use super::filter::Wrong;
use super::json::{Place, rfc3339};
use super::plot::Look;
use super::plots::Plots;
use super::reply::{self, Fresh};
use super::{JSON, Peer, SVG, Site, api, aside, parameters, plot};
use crate::hub::{Hub, Queue, Refusal};
use crate::model::Address;
use crate::protocols::servers_of;
use crate::registry::view::Rendered;
use crate::store::history::{History, Range, Reader};

/// How long a client may cache a history: it grows once a minute.
const FRESH: Fresh = Fresh::Seconds(30);
/// Concurrent readers of the file; others wait in a queue.
const READERS_MAX: usize = 4;

/// Access to the file.
pub struct Access {
    reader: Reader,
    queue: Arc<Queue>,
    /// The plots on the page.
    pub plots: Arc<Plots>,
}

impl Access {
    pub fn new(reader: Reader, hub: &Hub) -> Access {
        let plots = Arc::new(Plots::new(reader.clone()));
        Access { reader, queue: hub.new_queue(READERS_MAX), plots }
    }

    /// Reads for a client, on a blocking thread.
    pub async fn read<T: Send + 'static>(
        &self,
        Peer(peer): Peer,
        read: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unread> {
        let reader = self.reader.clone();
        match self.queue.work(peer.ip(), move || read(&reader)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => {
                warn!("history cannot be read: {error}");
                Err(Unread::Failed)
            }
            Err(refusal) => Err(Unread::Refused(refusal)),
        }
    }
}

/// Why there is no history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The log says why.
    Failed,
    Refused(Refusal),
}

impl Unread {
    /// The answer to a client that wanted it, as plain text.
    pub fn response(self) -> Response {
        match self {
            Unread::Refused(refusal) => reply::refused(refusal),
            Unread::Failed => reply::error(StatusCode::SERVICE_UNAVAILABLE, "history cannot be read at the moment\n"),
        }
    }
}

/// A history. There are no points for times when nothing was counted or the server was not listed.
#[derive(Serialize, ToSchema)]
#[schema(as = History)]
struct HistoryJson {
    game: String,
    /// Absent for a whole game.
    #[serde(flatten)]
    place: Option<Place>,
    /// `24h`, `7d`, `30d` or `1y`.
    range: &'static str,
    from: String,
    to: String,
    /// The seconds that a point covers; absent where points are as counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    points: Vec<PointJson>,
}

/// A count at one time, or the mean over the seconds that follow.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryPoint)]
struct PointJson {
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    players: Option<f64>,
    /// The least and the most in that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    players_least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    players_most: Option<f64>,
    /// For a server: the share of that time in which it was listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    present: Option<f64>,
    /// For a game: its servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<f64>,
}

/// Players and presence of one server
#[utoipa::path(get, path = "/api/v1/servers/{game}/{address}/history", tag = "history", operation_id = "getServerHistory", params(
    ("game" = String, Path, description = "The game's name"),
    ("address" = String, Path, description = "Its address and port, e.g. 203.0.113.5:20737"),
    ("range" = Option<String>, Query, description = "`24h` (as counted), `7d`, `30d` (5 minutes) or `1y` (hours)"),
), responses(
    (status = 200, description = "The history", body = HistoryJson),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 404, description = "Nothing is known of this server, or no history is kept", body = Wrong),
    (status = 429, description = "Too many searches from this network: see `Retry-After`", body = Wrong),
    (status = 503, description = "Too many others read histories: see `Retry-After`", body = Wrong),
))]
pub async fn server(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Path((game, address)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    of_server(&site, peer, game, &address, query.as_deref(), Form::Json, &headers).await
}

/// Players of one server, as a plot
///
/// An image for other sites. It suits light and dark pages and has a text alternative.
#[utoipa::path(get, path = "/api/v1/servers/{game}/{address}/history.svg", tag = "history", operation_id = "getServerHistoryPlot", params(
    ("game" = String, Path, description = "The game's name"),
    ("address" = String, Path, description = "Its address and port, e.g. 203.0.113.5:20737"),
    ("range" = Option<String>, Query, description = "`24h`, `7d`, `30d` or `1y`"),
), responses(
    (status = 200, description = "The plot", body = String, content_type = "image/svg+xml"),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 404, description = "Nothing is known of this server, or no history is kept", body = Wrong),
    (status = 429, description = "Too many searches from this network: see `Retry-After`", body = Wrong),
    (status = 503, description = "Too many others read histories: see `Retry-After`", body = Wrong),
))]
pub async fn server_plot(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Path((game, address)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    of_server(&site, peer, game, &address, query.as_deref(), Form::Svg, &headers).await
}

async fn of_server(
    site: &Site,
    peer: Peer,
    game: String,
    address: &str,
    query: Option<&str>,
    form: Form,
    headers: &HeaderMap,
) -> Response {
    let parsed = address.parse().map_err(|error: String| Wrong::parameter("address", error));
    let asked = parsed.and_then(|address: Address| Ok((address, asked(query, false)?.1)));
    let (address, range) = match asked {
        Ok(asked) => asked,
        Err(wrong) => return api::bad_request(&wrong),
    };
    let server = site.hub.listed(address).filter(|server| server.game.name() == game);
    let (listed, size) = (server.is_some(), server.and_then(|server| server.players_max));
    answer(site, peer, Asked { game, address: Some(address), range, listed, size, form }, headers).await
}

/// Players and servers of a whole game
#[utoipa::path(get, path = "/api/v1/history", tag = "history", operation_id = "getGameHistory", params(
    ("game" = String, Query, description = "The game's name"),
    ("range" = Option<String>, Query, description = "`24h` (as counted), `7d`, `30d` (5 minutes) or `1y` (hours)"),
), responses(
    (status = 200, description = "The history", body = HistoryJson),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 404, description = "Nothing is known of this game, or no history is kept", body = Wrong),
    (status = 429, description = "Too many searches from this network: see `Retry-After`", body = Wrong),
    (status = 503, description = "Too many others read histories: see `Retry-After`", body = Wrong),
))]
pub async fn game(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    of_game(&site, peer, query.as_deref(), Form::Json, &headers).await
}

/// Players of a whole game, as a plot
///
/// An image for other sites. It suits light and dark pages and has a text alternative.
#[utoipa::path(get, path = "/api/v1/history.svg", tag = "history", operation_id = "getGameHistoryPlot", params(
    ("game" = String, Query, description = "The game's name"),
    ("range" = Option<String>, Query, description = "`24h`, `7d`, `30d` or `1y`"),
), responses(
    (status = 200, description = "The plot", body = String, content_type = "image/svg+xml"),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 404, description = "Nothing is known of this game, or no history is kept", body = Wrong),
    (status = 429, description = "Too many searches from this network: see `Retry-After`", body = Wrong),
    (status = 503, description = "Too many others read histories: see `Retry-After`", body = Wrong),
))]
pub async fn game_plot(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    of_game(&site, peer, query.as_deref(), Form::Svg, &headers).await
}

async fn of_game(site: &Site, peer: Peer, query: Option<&str>, form: Form, headers: &HeaderMap) -> Response {
    let (game, range) = match asked(query, true) {
        Ok(asked) => asked,
        Err(wrong) => return api::bad_request(&wrong),
    };
    let view = site.hub.view();
    let listed = aside(&view, || servers_of(&view, &game).next().is_some());
    answer(site, peer, Asked { game, address: None, range, listed, size: None, form }, headers).await
}

/// The game, where it is a parameter, and the range.
fn asked(query: Option<&str>, with_game: bool) -> Result<(String, Range), Wrong> {
    let (mut game, mut range) = (String::new(), Range::Day);
    let known: &[&str] = if with_game { &["game", "range"] } else { &["range"] };
    for (name, value) in parameters::once(query.unwrap_or_default())? {
        match &*name {
            "range" => range = value.parse().map_err(|error: String| Wrong::parameter("range", error))?,
            "game" if with_game => game = value.into_owned(),
            _ => return Err(parameters::unknown(&name, known)),
        }
    }
    if with_game && game.is_empty() {
        return Err(Wrong::parameter("game", "is missing"));
    }
    Ok((game, range))
}

/// Whose history, and how far back.
struct Asked {
    game: String,
    address: Option<Address>,
    range: Range,
    /// A server that is listed but was not counted yet has a history without points.
    listed: bool,
    /// How many players the server has room for.
    size: Option<u16>,
    form: Form,
}

/// The form of the answer.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Svg,
}

async fn answer(site: &Site, peer: Peer, asked: Asked, headers: &HeaderMap) -> Response {
    let wrong = |status, error: String| api::wrong(status, &Wrong { error, parameter: None });
    let Some(access) = &site.history else {
        return wrong(StatusCode::NOT_FOUND, "this node keeps no history: its data_dir is empty".into());
    };
    let whose = asked.address.map_or(asked.game.clone(), |address| format!("{} {address}", asked.game));
    let now_ms = site.hub.clock.now().unix_ms;
    let content_type = match asked.form {
        Form::Json => JSON,
        Form::Svg => SVG,
    };
    match access.read(peer, move |reader| render(reader, asked, now_ms)).await {
        Ok(Some(list)) => reply::rendered(&list, content_type, headers, FRESH),
        Ok(None) => wrong(StatusCode::NOT_FOUND, format!("nothing is known of {whose}")),
        Err(Unread::Refused(refusal)) => reply::refused(refusal),
        Err(Unread::Failed) => wrong(StatusCode::SERVICE_UNAVAILABLE, "history cannot be read at the moment".into()),
    }
}

fn render(reader: &Reader, asked: Asked, now_ms: u64) -> rusqlite::Result<Option<Rendered>> {
    let Asked { game, address, range, listed, size, form } = asked;
    let found = match address {
        Some(address) => reader.server(&game, address, range, now_ms)?,
        None => reader.game(&game, range, now_ms)?,
    };
    let Some(history) = found.or_else(|| listed.then(|| range.history(now_ms, []))) else { return Ok(None) };
    Ok(Some(Rendered::new(match form {
        Form::Json => json(&history, game, address, range),
        Form::Svg => {
            let whose = address.map_or_else(|| game.clone(), |address| address.to_string());
            let title = format!("Players of {whose} {}", plot::in_the_last(range));
            plot::image(&history, &Look { title: &title, size, ..Look::default() }).into_bytes()
        }
    })))
}

fn json(history: &History, game: String, address: Option<Address>, range: Range) -> Vec<u8> {
    let points = history.points.iter().map(|point| PointJson {
        at: rfc3339(point.at_s * 1_000),
        players: point.players(),
        players_least: point.least().filter(|_| range.step_s().is_some()),
        players_most: point.most().filter(|_| range.step_s().is_some()),
        present: address.map(|_| point.count()),
        servers: address.is_none().then(|| point.count()),
    });
    let body = HistoryJson {
        points: points.collect(),
        game,
        place: address.map(Place::from),
        range: range.name(),
        from: rfc3339(history.from_s * 1_000),
        to: rfc3339(history.to_s * 1_000),
        step: range.step_s(),
    };
    serde_json::to_vec(&body).unwrap_or_default()
}

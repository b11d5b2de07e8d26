//! History as JSON. Reading it waits for a disk, so it happens beside the async threads, a few at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::warn;

use super::{JSON, Site, reply};
use crate::model::Address;
use crate::registry::view::Rendered;
use crate::store::history::{History, Range, Reader};

/// Readers of the file at one time; others wait for their turn.
const READERS_MAX: usize = 4;

/// The way to the file.
pub struct Access {
    reader: Reader,
    turns: Arc<Semaphore>,
}

impl Access {
    pub fn new(reader: Reader) -> Access {
        Access { reader, turns: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// Runs what reads on a thread that may wait. None where reading failed; the log says why.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Option<T> {
        let turn = self.turns.clone().acquire_owned().await.ok()?;
        let reader = self.reader.clone();
        let result = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            read(&reader)
        });
        match result.await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) => {
                warn!("history cannot be read: {error}");
                None
            }
            Err(_) => None, // a panic has told itself
        }
    }
}

#[derive(Serialize)]
struct Body {
    game: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    range: &'static str,
    from: String,
    to: String,
    /// Seconds that a point stands for; absent where points are as counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    points: Vec<BodyPoint>,
}

#[derive(Serialize)]
struct BodyPoint {
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    players: Option<f64>,
    /// For a server: the share of the time that it was listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    present: Option<f64>,
    /// For a game: its servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<f64>,
}

type Parameters = Query<HashMap<String, String>>;

/// `/api/v1/servers/{game}/{address}/history?range=24h|7d|30d|1y`
pub async fn server(
    State(site): State<Arc<Site>>,
    Path((game, address)): Path<(String, String)>,
    Query(parameters): Parameters,
    headers: HeaderMap,
) -> Response {
    let range = match range(&parameters, &["range"]) {
        Ok(range) => range,
        Err(reason) => return error(StatusCode::BAD_REQUEST, &reason),
    };
    let address: Address = match address.parse() {
        Ok(address) => address,
        Err(reason) => return error(StatusCode::BAD_REQUEST, &format!("address: {reason}")),
    };
    let name = game.clone();
    let listed = site.hub.listed(address).is_some_and(|server| server.game.name() == game);
    answer(&site, game, Some(address), range, listed, &headers, move |reader, now_ms| {
        reader.server(&name, address, range, now_ms)
    })
    .await
}

/// `/api/v1/history?game=NAME&range=24h|7d|30d|1y`
pub async fn game(State(site): State<Arc<Site>>, Query(parameters): Parameters, headers: HeaderMap) -> Response {
    let range = match range(&parameters, &["game", "range"]) {
        Ok(range) => range,
        Err(reason) => return error(StatusCode::BAD_REQUEST, &reason),
    };
    let Some(game) = parameters.get("game").filter(|game| !game.is_empty()).cloned() else {
        return error(StatusCode::BAD_REQUEST, "game: is missing: write /api/v1/history?game=NAME");
    };
    let name = game.clone();
    let listed = site.hub.view().of_game(&game).next().is_some();
    answer(&site, game, None, range, listed, &headers, move |reader, now_ms| reader.game(&name, range, now_ms)).await
}

/// The range asked for, where all parameters are known ones.
fn range(parameters: &HashMap<String, String>, known: &[&str]) -> Result<Range, String> {
    if let Some(unknown) = parameters.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("{unknown}: is no parameter here; there is {}", known.join(" and ")));
    }
    let range = parameters.get("range").map_or(Ok(Range::Day), |text| text.parse());
    range.map_err(|reason: String| format!("range: {reason}"))
}

/// What was found, as JSON. What is listed but was not counted yet has a history without points.
async fn answer(
    site: &Site,
    game: String,
    address: Option<Address>,
    range: Range,
    listed: bool,
    headers: &HeaderMap,
    read: impl FnOnce(&Reader, u64) -> rusqlite::Result<Option<History>> + Send + 'static,
) -> Response {
    let Some(access) = &site.history else {
        return error(StatusCode::NOT_FOUND, "this node keeps no history: its data_dir is empty");
    };
    let now_ms = site.hub.clock.now().unix_ms;
    let whose = address.map_or(game.clone(), |address| format!("{game} {address}"));
    let to_s = now_ms / 1_000;
    let empty = move || History { from_s: to_s.saturating_sub(range.seconds()), to_s, points: Vec::new() };
    let render = move |reader: &Reader| {
        let history = read(reader, now_ms)?.or_else(|| listed.then(empty));
        Ok(history.map(|history| {
            let body = serde_json::to_vec(&body(game, address, range, &history)).unwrap_or_default();
            let rendered = Rendered::new(body);
            rendered.gzip(); // here, where it takes nobody's time
            rendered
        }))
    };
    let rendered = match access.read(render).await {
        Some(Some(rendered)) => rendered,
        Some(None) => return error(StatusCode::NOT_FOUND, &format!("nothing is known of {whose}")),
        None => return error(StatusCode::SERVICE_UNAVAILABLE, "history cannot be read at the moment"),
    };
    let mut response = reply::rendered(&rendered, JSON, headers);
    reply::set(&mut response, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    response
}

fn body(game: String, address: Option<Address>, range: Range, history: &History) -> Body {
    let points = history.points.iter().map(|point| BodyPoint {
        at: rfc3339(point.at_s),
        players: point.players(),
        present: address.map(|_| point.count()),
        servers: address.is_none().then(|| point.count()),
    });
    Body {
        points: points.collect(),
        game,
        address: address.map(|address| address.to_string()),
        range: range.name(),
        from: rfc3339(history.from_s),
        to: rfc3339(history.to_s),
        step: range.step_s(),
    }
}

fn rfc3339(unix_s: u64) -> String {
    // Far beyond any clock, the formatter would panic.
    let time = Duration::from_secs(unix_s.min(4_102_444_800));
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + time).to_string()
}

#[derive(Serialize)]
struct Reason<'a> {
    error: &'a str,
}

fn error(status: StatusCode, reason: &str) -> Response {
    let body = serde_json::to_string(&Reason { error: reason }).unwrap_or_default();
    let mut response = reply::error(status, &body);
    reply::set(&mut response, header::CONTENT_TYPE, JSON);
    response
}

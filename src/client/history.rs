//! A server's players over time, from a Rallypoint that lists it: `/api/v1/servers/{game}/{address}/history`.

use std::time::Duration;

use serde::Deserialize;

use super::http::Request;
use super::list::ListError;
use super::rallypoint::{PATH, encode};
use super::target::{Kind, Target};
use crate::model::Address;
use crate::times::parse_rfc3339;

/// A day with a point every minute is about 100 KiB.
const BYTES_MAX: usize = 1 << 20;
const POINTS_MAX: usize = 10_000;
const RANGE: &str = "24h";

/// Players at these times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub from_s: u64,
    pub to_s: u64,
    /// In the order of time.
    pub points: Vec<(u64, f32)>,
}

#[derive(Deserialize)]
struct Document {
    from: String,
    to: String,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    at: String,
    players: Option<f32>,
}

/// Whether a master has histories.
pub fn has_histories(master: &Target) -> bool {
    matches!(master.kind, Kind::Rallypoint)
}

/// The last day of a server. None: the master has none of it.
pub async fn last_day(
    master: &Target,
    game: &str,
    address: Address,
    timeout: Duration,
) -> Result<Option<History>, ListError> {
    let base = master.path.split_once(PATH).map_or(&*master.path, |(base, _)| base).trim_end_matches('/');
    let server = format!("{}/{}", encode(game), encode(&address.to_string()));
    let url = master.page(&format!("{base}{PATH}/{server}/history?range={RANGE}")).map_err(ListError::Usage)?;
    match Request::get(url, BYTES_MAX, timeout).page_if_found().await? {
        Some(page) => read(&page).map(Some),
        None => Ok(None),
    }
}

fn read(page: &[u8]) -> Result<History, ListError> {
    let bad = |why: String| ListError::Bad(format!("not a history: {why}"));
    let Document { from, to, points } = serde_json::from_slice(page).map_err(|error| bad(error.to_string()))?;
    let time = |text: &str| parse_rfc3339(text).ok_or_else(|| bad("a time is not RFC 3339".into()));
    let points = points.into_iter().take(POINTS_MAX);
    let known = points.filter_map(|point| Some((parse_rfc3339(&point.at)?, point.players?)));
    let mut points: Vec<_> = known.filter(|(_, players)| (0.0..=f32::from(u16::MAX)).contains(players)).collect();
    points.sort_by_key(|(at, _)| *at);
    Ok(History { from_s: time(&from)?, to_s: time(&to)?, points })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_order_and_only_possible_ones() {
        let page = br#"{"game":"x","range":"24h","from":"1970-01-01T00:00:10Z","to":"1970-01-02T00:00:10Z","points":[
            {"at":"1970-01-01T00:02:00Z","players":3},{"at":"1970-01-01T00:01:00Z","players":1.5},
            {"at":"never","players":1},{"at":"1970-01-01T00:03:00Z"},{"at":"1970-01-01T00:04:00Z","players":-1},
            {"at":"1970-01-01T00:05:00Z","players":1e30}]}"#;
        let history = read(page).unwrap();
        assert_eq!(history, History { from_s: 10, to_s: 86_410, points: vec![(60, 1.5), (120, 3.0)] });
        for bad in [&b"[]"[..], b"{", br#"{"from":"x","to":"y","points":[]}"#] {
            assert!(read(bad).unwrap_err().to_string().starts_with("not a history: "));
        }
    }
}

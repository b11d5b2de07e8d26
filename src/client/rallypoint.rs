//! Another Rallypoint's list: `/api/v1/servers`, page by page.
//!
//! `{"serial": n, "total": n, "servers": [...]}`; `limit` is at most 1000, `after` is the previous page's `next` or, if there
//! is none, its last server.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::list::{Limits, ListError, Listing, get};
use super::{CountryCode, Found, Target};
use crate::model::{Address, Details, Facts, Origin, Player};
use crate::protocols::rows::{self, Rest};
use crate::protocols::{FAULTS_MAX, fault, game, game_named, is_one_host};
use crate::text;

pub const PATH: &str = "/api/v1/servers";
pub const PAGE: usize = 1000;
pub const PAGES_MAX: usize = 1000;
/// All pages together: a million servers fit.
pub const PAGES_BYTES_MAX: usize = 256 << 20;
/// Timeout for all pages together, as a multiple of the timeout for one.
const PAGES_TIMEOUTS: u32 = 20;

#[derive(Deserialize)]
struct Row {
    protocol: Option<String>,
    game: String,
    address: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    name: String,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    map: String,
    #[serde(default)]
    version: String,
    players_current: Option<u16>,
    players_max: Option<u16>,
    password: Option<bool>,
    official: Option<bool>,
    flavor: Option<u8>,
    via: Option<String>,
    rtt_ms: Option<f64>,
    country: Option<String>,
    #[serde(default)]
    players: Vec<PlayerRow>,
    #[serde(default)]
    rules: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct PlayerRow {
    #[serde(default)]
    name: String,
    team: Option<String>,
    spectator: Option<bool>,
    ping: Option<i32>,
    score: Option<i32>,
    points: Option<i32>,
    kills: Option<i32>,
    deaths: Option<i32>,
}

/// All servers. The target's path is either the other Rallypoint's base path, or the full path of the list with filters.
pub async fn list(target: &Target, page_timeout: Duration, limits: Limits) -> Result<Listing, ListError> {
    let pages = timeout(page_timeout * PAGES_TIMEOUTS, pages(target, page_timeout, limits));
    pages.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn pages(target: &Target, page_timeout: Duration, limits: Limits) -> Result<Listing, ListError> {
    let path = &target.path;
    let start = match path.find(PATH) {
        Some(_) => path.to_string(),
        None => format!("{}{PATH}", path.trim_end_matches('/')),
    };
    let joint = if start.contains('?') { '&' } else { '?' };
    let mut reader = Reader::new(limits);
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let url = target.page(&format!("{start}{joint}limit={PAGE}{after}")).map_err(ListError::Usage)?;
        let page = get(url, page_timeout, limits).page().await?;
        let Some(last) = reader.take(&page)? else { break };
        after = format!("&after={}", encode(&last));
    }
    Ok(reader.listing)
}

/// The pages read so far.
struct Reader {
    limits: Limits,
    listing: Listing,
    seen: HashSet<Address>,
    bytes: usize,
}

impl Reader {
    fn new(limits: Limits) -> Reader {
        Reader { limits, listing: Listing::default(), seen: HashSet::new(), bytes: 0 }
    }

    /// Reads a page; returns the next page's `after`, if there is one.
    fn take(&mut self, page: &[u8]) -> Result<Option<String>, ListError> {
        self.bytes += page.len();
        if self.bytes > PAGES_BYTES_MAX {
            return Err(ListError::Bad(format!("its list is longer than {} MiB", PAGES_BYTES_MAX >> 20)));
        }
        let (mut rows, before, addresses_only) = (0, self.seen.len(), self.limits.addresses_only);
        let rest = rows::read(page, |row| {
            rows += 1;
            if !self.is_full() {
                self.add(row.and_then(|row| read(row, addresses_only)));
            }
        });
        let Rest { total, next, .. } =
            rest.map_err(|error| ListError::Bad(format!("not a Rallypoint's list: {error}")))?;
        let servers = &self.listing.servers;
        let last = next.or_else(|| servers.last().map(|last| last.address.to_string()));
        let is_last = rows < PAGE || total.is_some_and(|total| servers.len() >= total) || self.is_full();
        Ok(last.filter(|_| !is_last && self.seen.len() > before))
    }

    fn is_full(&self) -> bool {
        self.listing.servers.len() >= self.limits.servers_max
    }

    fn add(&mut self, row: Result<Found, String>) {
        let listing = &mut self.listing;
        match row {
            Ok(found) if self.seen.insert(found.address) => listing.servers.push(found),
            Ok(_) => {} // the list changed between two pages
            Err(error) => {
                listing.left_out += 1;
                if listing.faults.len() < FAULTS_MAX {
                    listing.faults.push(fault(error));
                }
            }
        }
    }
}

fn read(row: &str, addresses_only: bool) -> Result<Found, String> {
    let row: Row = serde_json::from_str(row).map_err(|error| error.to_string())?;
    let mut found = address(&row)?;
    if !addresses_only {
        describe(&mut found, row);
    }
    Ok(found)
}

/// Which server a row is about, and who named it.
fn address(row: &Row) -> Result<Found, String> {
    let address = match row.address.parse::<IpAddr>() {
        Ok(ip) => Address::new(ip, row.port),
        Err(_) => row.address.parse::<SocketAddr>().ok().and_then(|at| Address::new(at.ip(), at.port())),
    };
    let address = address.filter(|address| is_one_host(address.ip()));
    let address = address.ok_or_else(|| format!("{} is not a host's address", clean(&row.address)))?;
    let game = match &row.protocol {
        Some(protocol) => game(protocol, &clean(&row.game)),
        None => game_named(&clean(&row.game)), // an older Rallypoint
    };
    let game = game.ok_or_else(|| format!("unknown game: {}", clean(&row.game)))?;
    let via = row.via.as_ref().map(|via| Origin::new(&clean(via)).name().into());
    Ok(Found { via, ..Found::new(game, address) })
}

/// What a row says of its server.
fn describe(found: &mut Found, row: Row) {
    let rules = row.rules.iter().map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        (clean(name), clean(&value))
    });
    let players = row.players.into_iter().map(player);
    let details = Details { players: players.collect(), rules: rules.collect() }.bounded();
    found.facts = Facts {
        name: clean(&row.name).into(),
        mode: clean(&row.mode).into(),
        map: clean(&row.map).into(),
        version: text::version(row.version.as_bytes()),
        players_current: row.players_current,
        players_max: row.players_max,
        password: row.password,
        details: (details != Details::default()).then(|| Arc::new(details)),
        ..Facts::default()
    }
    .bounded();
    found.rtt_us = row.rtt_ms.map(|ms| (ms * 1000.0) as u32); // saturates
    (found.official, found.flavor) = (row.official, row.flavor);
    found.country = row.country.as_deref().and_then(country);
}

/// Two letters in upper case, and nothing else.
fn country(text: &str) -> Option<CountryCode> {
    CountryCode::from(text).ok().filter(|code| code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()))
}

fn player(row: PlayerRow) -> Player {
    Player {
        name: clean(&row.name).into(),
        team: row.team.map(|team| clean(&team).into()),
        spectator: row.spectator,
        ping: row.ping,
        score: row.score,
        points: row.points,
        kills: row.kills,
        deaths: row.deaths,
    }
}

fn clean(text: &str) -> String {
    text::clean(text.as_bytes()).into_owned()
}

/// Percent-encodes a value for a URL.
pub fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_all_fields() {
        let row = serde_json::json!({
            "game": "bloodmasters", "address": "203.0.113.5", "port": 6969, "name": "A\u{1b}b", "mode": "Scavenger",
            "map": "m", "version": "1.3", "players_current": 1, "players_max": 8, "password": true, "official": true,
            "flavor": 4, "verified_by": "query", "proven_at": "2026-01-01T00:00:00Z", "rtt_ms": 12.5,
            "players": [{"name": "Alice", "team": "red", "spectator": false, "ping": 64}],
            "rules": {"website": "http://www.example.org/", "score_limit": 20}, "via": "netpanzer://a\u{7}.example",
            "country": "DE"
        });
        let address = read(&row.to_string(), true).unwrap();
        assert_eq!((address.via.as_deref(), &address.facts), (Some("netpanzer://a.example"), &Facts::default()));
        let found = read(&row.to_string(), false).unwrap();
        assert_eq!(found.url(), "bloodmasters://203.0.113.5:6969");
        assert_eq!((&*found.facts.name, found.rtt_us, found.flavor), ("Ab", Some(12_500), Some(4)));
        let details = found.facts.details.as_ref().unwrap();
        assert_eq!((&*details.players[0].name, details.players[0].team.as_deref()), ("Alice", Some("red")));
        assert_eq!(found.facts.rule("score_limit"), Some("20"));
        assert_eq!(found.country.as_deref(), Some("DE"));
        for bad in ["", "D", "de", "DEU", "D\u{1b}", "é"] {
            assert_eq!(country(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn texts_have_a_bound() {
        let long = "éx".repeat(20_000);
        let row = serde_json::json!({
            "game": "netpanzer", "address": "203.0.113.5:1", "name": long, "mode": long, "map": long, "version": long,
            "via": long, "rules": {"a": long, "b": "c"}
        });
        let facts = read(&row.to_string(), false).unwrap().facts;
        for text in [&facts.name, &facts.mode, &facts.map] {
            assert!(text.len() == 1_023 && long.starts_with(&**text), "{} bytes", text.len());
        }
        assert_eq!((facts.rule("a"), facts.rule("b")), (None, Some("c")));
    }

    #[test]
    fn pages_have_an_end() {
        let page = |from: usize, rows: usize| {
            let rows: Vec<_> =
                (from..from + rows).map(|port| format!(r#"{{"game":"x","address":"192.0.2.1:{port}"}}"#)).collect();
            format!(r#"{{"servers":[{}]}}"#, rows.join(",")).into_bytes()
        };
        let mut reader = Reader::new(Limits::WHOLE);
        assert_eq!(reader.take(&page(1, PAGE)).unwrap().as_deref(), Some("192.0.2.1:1000"));
        assert_eq!(reader.take(&page(1, PAGE)).unwrap(), None, "the same again");
        assert_eq!(reader.take(&page(1001, PAGE)).unwrap().as_deref(), Some("192.0.2.1:2000"));
        assert_eq!(reader.take(&page(2001, 5)).unwrap(), None, "the last");
        assert_eq!((reader.listing.servers.len(), reader.bytes > 1000), (2_005, true));
        let mut reader = Reader { bytes: PAGES_BYTES_MAX - 5, ..Reader::new(Limits::WHOLE) };
        assert!(reader.take(&page(1, PAGE)).unwrap_err().to_string().contains("longer than 256 MiB"));
        let mut reader = Reader::new(Limits::addresses(1_500));
        assert_eq!(reader.take(&page(1, PAGE)).unwrap().as_deref(), Some("192.0.2.1:1000"));
        assert_eq!(reader.take(&page(1001, PAGE)).unwrap(), None, "enough");
        assert_eq!(reader.listing.servers.len(), 1_500);
    }

    #[test]
    fn required_fields() {
        let found = read(r#"{"game": "chess", "address": "[2001:db8::1]:5"}"#, false).unwrap();
        assert_eq!((found.game.name(), found.address.to_string().as_str()), ("chess", "[2001:db8::1]:5"));
        assert_eq!(found.facts, Facts::default());
        for bad in [
            serde_json::json!({}),
            serde_json::json!({"game": "x", "address": "203.0.113.5"}),
            serde_json::json!({"game": "x", "address": "0.0.0.0", "port": 5}),
            serde_json::json!({"game": "x", "address": "203.0.113.5", "port": 70000}),
        ] {
            assert!(read(&bad.to_string(), false).is_err());
        }
        assert_eq!(encode("[::1]:5/a"), "%5B%3A%3A1%5D%3A5%2Fa");
    }
}

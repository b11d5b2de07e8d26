//! Fetches everything that a copy consists of, bounded in time and size.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::{sleep, timeout};

use crate::client::list::ListError;
use crate::client::rallypoint::{PAGE, PAGES_BYTES_MAX, PAGES_MAX, PATH, encode};
use crate::client::{RetryPolicy, Target, http};
use crate::model::{Address, GAME_BYTES_MAX};
use crate::prefix::fair::{self, Claim};
use crate::protocols::rows::{self, Rest};
use crate::protocols::section::Surroundings;
use crate::protocols::{CARDS, Card, Fetch, Take};

/// The longest page, stylesheet or script.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Timeout for everything together, as a multiple of the timeout for one request.
const TIMEOUTS: u32 = 20;
/// Delay before a retry.
const PAUSE: Duration = Duration::from_millis(500);

/// The files that the page needs besides itself.
pub const PARTS: [&str; 2] = ["style.css", "page.js"];
/// Older masters have none.
const ICON: &str = "favicon.svg";
pub const OPENAPI: &str = "api/v1/openapi.json";

pub struct Fetched {
    pub page: String,
    /// Files that are copied byte for byte: those of the page, the games' own lists, the OpenAPI document.
    pub plain: Vec<(&'static str, Vec<u8>)>,
    pub list: List,
}

/// All pages of the API's list.
#[derive(Default)]
pub struct List {
    pub serial: u64,
    /// In the API's default order.
    pub rows: Vec<Row>,
}

/// A server: the API's own text, and what is needed to sort it into files.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub json: Box<str>,
    pub game: String,
    pub protocol: String,
    pub players: u16,
    priority: i32,
    is_unanswered: bool,
    address: Address,
}

impl Row {
    fn claim(&self) -> Claim {
        Claim { answers: !self.is_unanswered, priority: self.priority, players: self.players, ip: self.address.ip() }
    }
}

pub async fn all(master: &Target, retry: RetryPolicy) -> Result<Fetched, ListError> {
    match timeout(retry.list_try() * TIMEOUTS, everything(master, retry)).await {
        Ok(fetched) => fetched,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

async fn everything(master: &Target, retry: RetryPolicy) -> Result<Fetched, ListError> {
    let list = list(master, retry).await?;
    let page = get(master, retry, "/", TEXT_BYTES_MAX).await?.ok_or_else(|| missing("its page"))?;
    let page = String::from_utf8(page).map_err(|_| ListError::Bad("its page is not text".into()))?;
    let mut plain = Vec::new();
    for part in PARTS {
        let bytes = get(master, retry, &format!("/{part}"), TEXT_BYTES_MAX).await?;
        plain.push((part, bytes.ok_or_else(|| missing(part))?));
    }
    if let Some(icon) = get(master, retry, &format!("/{ICON}"), TEXT_BYTES_MAX).await? {
        plain.push((ICON, icon));
    }
    if let Some(document) = get(master, retry, &format!("/{OPENAPI}"), TEXT_BYTES_MAX).await? {
        let is_object = serde_json::from_slice::<serde_json::Map<_, _>>(&document).is_ok();
        plain.push((OPENAPI, document));
        is_object.then_some(()).ok_or_else(|| ListError::Bad("its OpenAPI document is not JSON".into()))?;
    }
    for (card, path) in routes() {
        // A master without this path is older than the game's card.
        if let Some(bytes) = get(master, retry, &format!("/{path}"), PAGES_BYTES_MAX).await? {
            check(card, path, &bytes)?;
            plain.push((path, bytes));
        }
    }
    Ok(Fetched { page, plain, list })
}

/// The games' own lists over HTTP, by their paths without the slash.
pub fn routes() -> impl Iterator<Item = (&'static Card, &'static str)> {
    let routes = CARDS
        .iter()
        .flat_map(|card| (card.section)().routes(&Surroundings::default()).into_iter().map(move |route| (card, route)));
    let shared = routes.filter(|(_, route)| !route.rule.is_for_one());
    shared.map(|(card, route)| (card, route.path.trim_start_matches('/')))
}

/// A page that is not the game's list must not replace one that is.
fn check(card: &Card, path: &str, bytes: &[u8]) -> Result<(), ListError> {
    match &card.fetch {
        Fetch::Http { path: usual, read } if usual.trim_start_matches('/') == path => {
            read(bytes, Take::ALL).map(drop).map_err(|why| ListError::Bad(format!("/{path} is not a list: {why}")))
        }
        _ => Ok(()),
    }
}

fn missing(what: &str) -> ListError {
    ListError::Bad(format!("it has no {what}: is it a Rallypoint?"))
}

/// The API's list, in pages by address: a server that stays listed keeps its place while the list changes.
async fn list(master: &Target, retry: RetryPolicy) -> Result<List, ListError> {
    let mut pages = Pages::default();
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let path = format!("{PATH}?sort=address&limit={PAGE}{after}");
        let page = get(master, retry, &path, http::LIST_BYTES_MAX).await?.ok_or_else(|| missing("API"))?;
        match pages.take(&page)? {
            Some(next) => after = format!("&after={}", encode(&next)),
            None => break,
        }
    }
    let mut standings = fair::standings(pages.list.rows.iter().map(|row| (row.claim(), row.address))).into_iter();
    // Stable: servers that are equal stay sorted by address.
    pages.list.rows.sort_by_cached_key(|_| Reverse(standings.next()));
    Ok(pages.list)
}

#[derive(Default)]
struct Pages {
    list: List,
    seen: HashSet<Address>,
    bytes: usize,
}

impl Pages {
    /// Reads a page; returns the next page's `after`, if there is one.
    fn take(&mut self, page: &[u8]) -> Result<Option<String>, ListError> {
        self.bytes += page.len();
        if self.bytes > PAGES_BYTES_MAX {
            return Err(ListError::Bad(format!("its list is longer than {} MiB", PAGES_BYTES_MAX >> 20)));
        }
        let before = self.seen.len();
        let rest = rows::read(page, |row| {
            // A row without an address or a game is of no use to anybody.
            if let Some((address, row)) = row.ok().and_then(read)
                && self.seen.insert(address)
            {
                self.list.rows.push(row);
            }
        });
        let Rest { serial, next, .. } =
            rest.map_err(|error| ListError::Bad(format!("not a Rallypoint's list: {error}")))?;
        if before == 0 {
            self.list.serial = serial.unwrap_or_default();
        }
        Ok(next.filter(|_| self.seen.len() > before))
    }
}

fn read(json: &str) -> Option<(Address, Row)> {
    #[derive(Deserialize)]
    struct Head {
        game: String,
        #[serde(default)]
        protocol: String,
        address: IpAddr,
        port: u16,
        #[serde(default)]
        players_current: u16,
        #[serde(default)]
        priority: i32,
        unanswered_since: Option<IgnoredAny>,
    }
    let head: Head = serde_json::from_str(json).ok()?;
    let Head { game, protocol, address, port, players_current: players, priority, unanswered_since } = head;
    let address = Address::new(address, port)?;
    (!game.is_empty() && game.len() <= GAME_BYTES_MAX).then_some(())?;
    let is_unanswered = unanswered_since.is_some();
    Some((address, Row { json: json.into(), game, protocol, players, priority, is_unanswered, address }))
}

/// One of the master's pages; None if it has no such page.
async fn get(master: &Target, retry: RetryPolicy, path: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, ListError> {
    let url = master.page(&format!("{}{path}", master.path.trim_end_matches('/'))).map_err(ListError::Usage)?;
    let request = http::Request::get(url, bytes_max, retry.list_try());
    for number in 1..retry.list_tries() {
        match request.page_if_found().await {
            Err(_) => sleep(PAUSE * number.into()).await,
            done => return done,
        }
    }
    request.page_if_found().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(port: u16, game: &str) -> String {
        format!(r#"{{"game":"{game}","protocol":"p","address":"192.0.2.1","port":{port},"players_current":2}}"#)
    }

    #[test]
    fn pages_are_joined_without_duplicates_and_have_an_end() {
        let mut pages = Pages::default();
        let page = |rows: &[String], next: &str| {
            format!(r#"{{"serial":7,"total":9,"servers":[{}]{next}}}"#, rows.join(",")).into_bytes()
        };
        let first = page(&[row(1, "a"), row(2, "b")], r#","next":"n1""#);
        assert_eq!(pages.take(&first).unwrap().as_deref(), Some("n1"));
        let second = page(&[row(2, "b"), row(3, "c")], r#","next":"n2""#);
        assert_eq!(pages.take(&second).unwrap().as_deref(), Some("n2"));
        assert_eq!(pages.take(&second).unwrap(), None, "nothing new: the end");
        let games: Vec<_> = pages.list.rows.iter().map(|row| row.game.as_str()).collect();
        assert_eq!((games, pages.list.serial), (vec!["a", "b", "c"], 7));
        assert_eq!(&*pages.list.rows[0].json, row(1, "a"), "the API's own text");
        assert!(pages.take(b"<html>").unwrap_err().to_string().contains("not a Rallypoint's list"));
        pages.bytes = PAGES_BYTES_MAX;
        assert!(pages.take(&first).unwrap_err().to_string().contains("longer than 256 MiB"));
    }

    #[test]
    fn rows_that_are_no_servers_are_left_out() {
        assert!(read(&row(1, "a")).is_some());
        for bad in [
            "7",
            "{}",
            &row(0, "a"),
            &row(1, ""),
            &row(1, &"x".repeat(65)),
            r#"{"game":"a","address":"example.org","port":1}"#,
            r#"{"game":"a","address":"192.0.2.1","port":70000}"#,
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }
}

//! Fetches a master's list over any protocol, bounded in time and size, without duplicates.

mod datagrams;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use url::Url;

use super::target::{Kind, Target};
use super::{Found, RetryPolicy, connect, http, rallypoint};
use crate::model::{Address, Game};
use crate::protocols::{Card, Fault, Fetch, List, ListEntry, ListedName, StreamFetch, Take};

/// Delay before the first retry; it grows linearly.
const PAUSE: Duration = Duration::from_millis(500);
/// Names that are looked up at the same time.
const LOOKUPS_AT_ONCE: usize = 64;
/// The longest list over TCP: half a million records of Hyperbol fit.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// The longest lists over UDP, all games together: a million servers fit.
const DATAGRAM_BYTES_MAX: usize = 8 << 20;
/// The longest entry of a list that has only addresses.
const ENTRY_BYTES_MAX: usize = 64;
/// What a list may have besides its entries.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// A page with the details of servers is long even where few of them are wanted: the longest public ones have some megabytes.
const PAGE_FRAME_BYTES_MAX: usize = 4 << 20;
/// The entry of one server in a page, with its players and rules.
const PAGE_ENTRY_BYTES_MAX: usize = 2 << 10;

/// How much of a list is taken, from whom.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub(super) servers_max: usize,
    stream_bytes_max: usize,
    datagram_bytes_max: usize,
    page_bytes_max: usize,
    /// Without what the master says of its servers besides their games and addresses. Names are not looked up.
    pub(super) addresses_only: bool,
    /// Redirects lead to the same host.
    same_host: bool,
}

impl Limits {
    /// For a user who has asked for the list.
    pub const WHOLE: Limits = Limits {
        servers_max: usize::MAX,
        stream_bytes_max: STREAM_BYTES_MAX,
        datagram_bytes_max: DATAGRAM_BYTES_MAX,
        page_bytes_max: http::LIST_BYTES_MAX,
        addresses_only: false,
        same_host: false,
    };

    /// For a program that asks for it again and again, whatever the master has become: the addresses of so many servers, in
    /// memory that their number bounds, from the host that the operator named.
    pub fn addresses(servers_max: usize) -> Limits {
        let bytes_max = servers_max.saturating_mul(ENTRY_BYTES_MAX).saturating_add(FRAME_BYTES_MAX);
        let page_bytes_max = servers_max.saturating_mul(PAGE_ENTRY_BYTES_MAX).saturating_add(PAGE_FRAME_BYTES_MAX);
        Limits {
            servers_max,
            stream_bytes_max: bytes_max.min(STREAM_BYTES_MAX),
            datagram_bytes_max: bytes_max.min(DATAGRAM_BYTES_MAX),
            page_bytes_max: page_bytes_max.min(http::LIST_BYTES_MAX),
            addresses_only: true,
            same_host: true,
        }
    }

    fn take(self) -> Take {
        Take { servers_max: self.servers_max, addresses_only: self.addresses_only }
    }
}

/// A fetched list.
#[derive(Debug, Default)]
pub struct Listing {
    pub servers: Vec<Found>,
    /// Servers that are listed by a name, with their ports and games, if names are not looked up.
    pub named: Vec<(Box<str>, u16, Game)>,
    /// The first invalid entries, and how many there were in all.
    pub faults: Vec<Fault>,
    pub left_out: usize,
    /// Why the list may be incomplete.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub enum ListError {
    /// The address does not name a list.
    Usage(String),
    /// The master cannot be reached, or does not answer.
    Connect(io::Error),
    /// The answer is not a list.
    Bad(String),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListError::Usage(why) => f.write_str(why),
            // A bare time-out; one that says more is told as it is.
            ListError::Connect(error) if error.kind() == io::ErrorKind::TimedOut && error.get_ref().is_none() => {
                f.write_str("it did not answer in time: it is off, or a firewall drops what is sent")
            }
            ListError::Connect(error) => write!(f, "{error}"),
            ListError::Bad(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ListError {}

impl From<io::Error> for ListError {
    fn from(error: io::Error) -> ListError {
        ListError::Connect(error)
    }
}

/// Fetches a master's list. `games` are requested in addition to the one in the address, if the protocol has several.
pub async fn list(target: &Target, games: &[String], retry: RetryPolicy) -> Result<Listing, ListError> {
    list_within(target, games, retry, Limits::WHOLE).await
}

/// The same, within limits.
pub async fn list_within(
    target: &Target,
    games: &[String],
    retry: RetryPolicy,
    limits: Limits,
) -> Result<Listing, ListError> {
    if !games.is_empty() && target.datagram_fetch().is_none() {
        return Err(ListError::Usage("this master has one list for all games; --game cannot choose".into()));
    }
    for number in 1..retry.list_tries() {
        match fetch(target, games, retry.list_try(), limits).await {
            // A retry does not fix a wrong address.
            Err(error) if !matches!(error, ListError::Usage(_)) => sleep(PAUSE * number.into()).await,
            done => return done,
        }
    }
    fetch(target, games, retry.list_try(), limits).await
}

async fn fetch(target: &Target, games: &[String], try_timeout: Duration, limits: Limits) -> Result<Listing, ListError> {
    let authority = target.authority(target.master_port().map_err(ListError::Usage)?);
    match target.kind {
        Kind::Rallypoint => rallypoint::list(target, try_timeout, limits).await,
        Kind::Dialect(_) => Err(ListError::Usage(format!("`{target}` is not a master"))),
        Kind::Page(card) | Kind::Game(card) => {
            let mut list = match &card.fetch {
                Fetch::Http { path, read } => {
                    let url = target.page(target.path_or(path)).map_err(ListError::Usage)?;
                    let page = get(url, try_timeout, limits).page().await?;
                    read(&page, limits.take()).map_err(bad)?
                }
                Fetch::Stream(fetch) => {
                    let exchange = async {
                        exchange(connect::connect(&authority, None).await?, *fetch, limits.stream_bytes_max).await
                    };
                    let timed_out = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    timeout(try_timeout, exchange).await.unwrap_or_else(timed_out)?
                }
                Fetch::Datagrams(rules) => {
                    return datagrams::fetch(card, *rules, target, games, try_timeout, limits).await;
                }
            };
            if !limits.addresses_only {
                resolve(&mut list, try_timeout).await;
            }
            Ok(found(card, list, limits.servers_max))
        }
    }
}

/// Looks up the servers that are listed by a name.
async fn resolve(list: &mut List, patience: Duration) {
    let mut named = std::mem::take(&mut list.named).into_iter();
    let mut lookups = JoinSet::new();
    let until = Instant::now() + patience;
    loop {
        while lookups.len() < LOOKUPS_AT_ONCE
            && let Some(ListedName { host, port, facts }) = named.next()
        {
            lookups.spawn(async move {
                look_up(&host, port).await.map(|address| ListEntry { facts, ..ListEntry::at(address) })
            });
        }
        match timeout_at(until, lookups.join_next()).await {
            Ok(Some(Ok(entry))) => list.add(entry),
            Ok(Some(Err(_))) => {}
            Ok(None) => return,
            Err(_) => {
                let missing = lookups.len() + named.len();
                (0..missing).for_each(|_| list.add(Err("its name was not looked up in time")));
                return;
            }
        }
    }
}

/// The address of a server that is listed by a name.
pub async fn look_up(host: &str, port: u16) -> Result<Address, String> {
    let authority = format!("{host}:{port}");
    let found = connect::addresses(&authority, None).await.map_err(|error| error.to_string())?;
    let address = found.iter().find_map(|found| Address::new(found.ip(), found.port()));
    address.ok_or_else(|| format!("{authority} has no address"))
}

/// A request for a list, or for a page of it.
pub(super) fn get(url: Url, try_timeout: Duration, limits: Limits) -> http::Request {
    http::Request { same_host: limits.same_host, ..http::Request::get(url, limits.page_bytes_max, try_timeout) }
}

fn found(card: &'static Card, list: List, servers_max: usize) -> Listing {
    let mut seen = HashSet::new();
    let once = list.servers.into_iter().filter(|listed| seen.insert(listed.address)).take(servers_max);
    let servers = once.map(|listed| Found::listed(Game::Own(card.name), listed)).collect();
    let named = list.named.into_iter().map(|named| (named.host, named.port, Game::Own(card.name))).collect();
    Listing { servers, named, faults: list.faults, left_out: list.left_out, notes: Vec::new() }
}

/// A number of bytes for messages.
pub(super) fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

fn bad(fault: Fault) -> ListError {
    ListError::Bad(fault.to_string())
}

/// One request and one list over TCP.
async fn exchange(mut stream: TcpStream, fetch: &dyn StreamFetch, bytes_max: usize) -> Result<List, ListError> {
    let mut received = Vec::new();
    let mut requested = false;
    let (from, mut to) = stream.split();
    let mut from = from.take(bytes_max as u64);
    let lost = |error: io::Error| ListError::Bad(format!("the connection was lost: {error}"));
    loop {
        if !requested && let Some(request) = fetch.request(&received).map_err(bad)? {
            to.write_all(&request).await.map_err(lost)?;
            requested = true;
        }
        if fetch.is_whole(&received) || from.read_buf(&mut received).await.map_err(lost)? == 0 {
            break;
        }
    }
    if from.limit() == 0 {
        return Err(ListError::Bad(format!("its list is longer than {}", size(bytes_max))));
    }
    fetch.read(&received).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_says_what_may_be_in_the_way() {
        let bare = ListError::from(io::Error::from(io::ErrorKind::TimedOut)).to_string();
        assert!(bare.starts_with("it did not answer in time") && bare.contains("firewall"), "{bare}");
        let silent = io::Error::new(io::ErrorKind::TimedOut, "cannot connect to 203.0.113.5:80: no answer");
        assert_eq!(ListError::from(silent).to_string(), "cannot connect to 203.0.113.5:80: no answer");
    }
}

//! Fetching a master's list, whatever it speaks: bounded in time and size, and no server in it twice.

mod datagrams;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::target::{Kind, Target};
use super::{Found, Patience, connect, http, rallypoint};
use crate::model::Game;
use crate::protocols::{Card, Fault, Fetch, List, StreamFetch};

/// Before a master is tried again; longer each time.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest list over TCP: half a million records of Hyperbol fit.
const STREAM_BYTES_MAX: u64 = 8 << 20;

/// A list that was fetched.
#[derive(Debug, Default)]
pub struct Listing {
    pub servers: Vec<Found>,
    /// What was wrong with single entries, as far as it was kept, and how many were.
    pub faults: Vec<Fault>,
    pub left_out: usize,
    /// Why the list may be incomplete.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub enum ListError {
    /// There is no such list: the address names none.
    Usage(String),
    /// Nobody is there, or does not answer.
    Connect(io::Error),
    /// Somebody answers, but not with a list.
    Bad(String),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListError::Usage(why) => f.write_str(why),
            ListError::Connect(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("it did not answer in time")
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

/// Fetches the list of a master. `games` are those asked for besides the address, where the protocol has several.
pub async fn list(target: &Target, games: &[String], patience: Patience) -> Result<Listing, ListError> {
    if !games.is_empty() && target.datagram_fetch().is_none() {
        return Err(ListError::Usage("this master has one list for all games; --game cannot choose".into()));
    }
    for number in 1..patience.list_tries() {
        match fetch(target, games, patience.list_try()).await {
            // Trying again does not correct what was typed.
            Err(error) if !matches!(error, ListError::Usage(_)) => sleep(PAUSE * number.into()).await,
            done => return done,
        }
    }
    fetch(target, games, patience.list_try()).await
}

async fn fetch(target: &Target, games: &[String], patience: Duration) -> Result<Listing, ListError> {
    let authority = target.authority(target.master_port().map_err(ListError::Usage)?);
    match target.kind {
        Kind::Rallypoint => rallypoint::list(target, patience).await,
        Kind::Page(card) | Kind::Game(card) => {
            let list = match &card.fetch {
                Fetch::Http { path, read } => {
                    let url = target.page(target.path_or(path)).map_err(ListError::Usage)?;
                    let page = http::Request::get(url, http::LIST_BYTES_MAX, patience).page().await?;
                    read(&page).map_err(bad)?
                }
                Fetch::Stream(fetch) => {
                    let talk = async { converse(connect::connect(&authority, None).await?, *fetch).await };
                    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    timeout(patience, talk).await.unwrap_or_else(late)?
                }
                Fetch::Datagrams(rules) => return datagrams::fetch(card, *rules, target, games, patience).await,
            };
            Ok(found(card, list))
        }
    }
}

fn found(card: &'static Card, list: List) -> Listing {
    let mut seen = HashSet::new();
    let once = list.servers.into_iter().filter(|listed| seen.insert(listed.address));
    let servers = once.map(|listed| Found::listed(Game::Own(card.name), listed)).collect();
    Listing { servers, faults: list.faults, left_out: list.left_out, notes: Vec::new() }
}

fn bad(fault: Fault) -> ListError {
    ListError::Bad(fault.to_string())
}

/// One request and one list over TCP.
async fn converse(mut stream: TcpStream, fetch: &dyn StreamFetch) -> Result<List, ListError> {
    let mut heard = Vec::new();
    let mut asked = false;
    let (from, mut to) = stream.split();
    let mut from = from.take(STREAM_BYTES_MAX);
    let broken = |error: io::Error| ListError::Bad(format!("the connection broke off: {error}"));
    loop {
        if !asked && let Some(request) = fetch.request(&heard).map_err(bad)? {
            to.write_all(&request).await.map_err(broken)?;
            asked = true;
        }
        if fetch.is_whole(&heard) || from.read_buf(&mut heard).await.map_err(broken)? == 0 {
            break;
        }
    }
    if from.limit() == 0 {
        return Err(ListError::Bad(format!("its list is longer than {} MiB", STREAM_BYTES_MAX >> 20)));
    }
    fetch.read(&heard).map_err(bad)
}

//! Fetching a master's list, whatever it speaks: bounded in time and size, and no server in it twice.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::place::{Kind, Place};
use super::{Found, http, rallypoint};
use crate::model::Game;
use crate::protocols::{Card, Fault, Fetch, List, StreamFetch};

/// For a connection to be made, and for one list to arrive.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The longest list over TCP: a million records of Hyperbol fit.
const STREAM_BYTES_MAX: u64 = 64 << 20;

/// A list that was fetched.
#[derive(Debug, Default)]
pub struct Listing {
    pub servers: Vec<Found>,
    /// What was wrong with single entries.
    pub faults: Vec<Fault>,
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
            ListError::Connect(error) => write!(f, "cannot connect: {error}"),
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

/// Fetches the list of the master at this place.
pub async fn list(place: &Place) -> Result<Listing, ListError> {
    let authority = place.authority(place.master_port().map_err(ListError::Usage)?);
    match place.kind {
        Kind::Rallypoint => rallypoint::list(&authority, &place.path).await,
        Kind::Page(card) | Kind::Game(card) => {
            let list = match &card.fetch {
                Fetch::Http { path, read } => {
                    let path = if place.path.len() > 1 { &place.path } else { *path };
                    read(&http::get(&authority, path).await?).map_err(bad)?
                }
                Fetch::Stream(fetch) => {
                    let stream = connect(&authority, None).await?;
                    let talk = converse(stream, *fetch);
                    timeout(PATIENCE, talk)
                        .await
                        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?
                }
            };
            Ok(found(card, list))
        }
    }
}

fn found(card: &'static Card, list: List) -> Listing {
    let mut seen = HashSet::new();
    let once = list.servers.into_iter().filter(|listed| seen.insert(listed.address));
    let servers = once.map(|listed| Found::listed(Game::Known(card.name), listed)).collect();
    Listing { servers, faults: list.faults }
}

fn bad(fault: Fault) -> ListError {
    ListError::Bad(fault.to_string())
}

/// Connects to the first of the name's addresses that takes us; `source` is the address to come from.
pub async fn connect(authority: &str, source: Option<IpAddr>) -> Result<TcpStream, ListError> {
    let connecting = async {
        let Some(source) = source else { return TcpStream::connect(authority).await };
        let mut last = io::Error::other("the name has no address of the same family");
        for to in tokio::net::lookup_host(authority).await? {
            match connect_from(source, to).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    let connected = timeout(CONNECT_PATIENCE, connecting).await;
    Ok(connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?)
}

async fn connect_from(source: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if !source.is_unspecified() {
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(to).await
}

/// One request and one list over TCP.
async fn converse(mut stream: TcpStream, fetch: &dyn StreamFetch) -> Result<List, ListError> {
    let mut heard = Vec::new();
    let mut asked = false;
    let (from, mut to) = stream.split();
    let mut from = from.take(STREAM_BYTES_MAX);
    loop {
        if !asked && let Some(request) = fetch.request(&heard).map_err(bad)? {
            to.write_all(&request).await?;
            asked = true;
        }
        if fetch.is_whole(&heard) || from.read_buf(&mut heard).await? == 0 {
            break;
        }
    }
    if from.limit() == 0 {
        return Err(ListError::Bad(format!("its list is longer than {} MiB", STREAM_BYTES_MAX >> 20)));
    }
    fetch.read(&heard).map_err(bad)
}

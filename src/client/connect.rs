//! From `host:port` to a connection, bounded in time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

/// For a name to be looked up, and for a connection to one address to be made.
const PATIENCE: Duration = Duration::from_secs(5);

/// The addresses of `host:port`, at least one. IPv4 first: that is where these games are, and what is announced over it is
/// listed where the old ones find it. `from` is the address of this machine to come from: only its family is of use then.
pub async fn addresses(authority: &str, from: Option<IpAddr>) -> io::Result<Vec<SocketAddr>> {
    let found = match timeout(PATIENCE, lookup_host(authority)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(io::Error::new(error.kind(), format!("cannot find {authority}: {error}"))),
        Err(_) => return Err(io::Error::other(format!("cannot find {authority}: no answer to the look-up"))),
    };
    let of_use = |to: &SocketAddr| from.is_none_or(|from| from.is_ipv4() == to.is_ipv4());
    let mut found: Vec<_> = found.filter(of_use).collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    if found.is_empty() { Err(io::Error::other(format!("{authority} has no address of use"))) } else { Ok(found) }
}

/// Connects to the first of the name's addresses that takes us.
pub async fn connect(authority: &str, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    for to in addresses(authority, from).await? {
        match timeout(PATIENCE, connect_to(to, from)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = io::Error::new(error.kind(), format!("cannot connect to {to}: {error}")),
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("cannot connect to {to}: no answer")),
        }
    }
    Err(last)
}

async fn connect_to(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    socket.connect(to).await
}

/// Any port of this machine, in the family of the other side.
pub fn any_port(other: IpAddr) -> SocketAddr {
    match other {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

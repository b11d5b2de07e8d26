//! Resolves `host:port` and connects to it, with timeouts.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

/// For one DNS lookup, and for one connection attempt.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of `host:port`, at least one. IPv4 first: most of these games know only IPv4, and a server that is
/// announced over IPv4 is visible to them. With a local address `from`, only addresses of its family are returned.
pub async fn addresses(authority: &str, from: Option<IpAddr>) -> io::Result<Vec<SocketAddr>> {
    let found = match timeout(TIMEOUT, lookup_host(authority)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(io::Error::new(error.kind(), format!("cannot find {authority}: {error}"))),
        Err(_) => return Err(io::Error::other(format!("cannot find {authority}: the DNS lookup timed out"))),
    };
    let same_family = |to: &SocketAddr| from.is_none_or(|from| from.is_ipv4() == to.is_ipv4());
    let mut found: Vec<_> = found.filter(same_family).collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    match (found.is_empty(), from) {
        (false, _) => Ok(found),
        (true, Some(IpAddr::V4(_))) => Err(io::Error::other(format!("{authority} has no IPv4 address"))),
        (true, Some(IpAddr::V6(_))) => Err(io::Error::other(format!("{authority} has no IPv6 address"))),
        (true, None) => Err(io::Error::other(format!("{authority} has no address"))),
    }
}

/// Connects to the first of the name's addresses that accepts the connection.
pub async fn connect(authority: &str, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    for to in addresses(authority, from).await? {
        match timeout(TIMEOUT, connect_to(to, from)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                last = io::Error::new(error.kind(), format!("cannot connect to {to}: {}", in_words(&error)))
            }
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("cannot connect to {to}: {SILENT}")),
        }
    }
    Err(last)
}

/// What it is like when a firewall drops everything: it cannot be told from an address that nobody has.
const SILENT: &str = "no answer: the address is wrong, the machine is off, or a firewall drops it";

/// Why a connection failed, with what to look at.
fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("{error}: nothing listens on that port; is it running, and is that its port?")
        }
        io::ErrorKind::TimedOut => SILENT.into(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            format!("{error}: there is no way to that address from here")
        }
        _ => error.to_string(),
    }
}

async fn connect_to(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    socket.connect(to).await
}

/// The unspecified address with port 0, in the family of the peer.
pub fn any_port(peer: IpAddr) -> SocketAddr {
    match peer {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

//! A master as people write it, and how it is reached.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::client::url::Url;
use crate::protocols::{bloodmasters, iceball, netpanzer};

/// For one address of a host that has several.
const CONNECT: Duration = Duration::from_secs(4);
const HTTP_PORT: u16 = 80;

#[derive(Clone, Debug)]
pub struct Master {
    /// As it was written.
    pub text: String,
    pub(super) kind: Kind,
    pub(super) url: Url,
    pub(super) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Announced to by datagrams, with a handshake.
    Iceball,
    /// Announced to by a request that is answered.
    Answers(Door),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    NetPanzer,
    Bloodmasters,
    Api,
}

impl Master {
    /// A master to which this game can be announced.
    pub fn parse(text: &str, game: &str) -> Result<Master, String> {
        let url = Url::parse(text)?;
        if url.user.is_some() {
            return Err(format!("`{}://{}`: masters know no users", url.scheme, url.host));
        }
        let (kind, port, only) = match url.scheme.as_str() {
            iceball::NAME => (Kind::Iceball, iceball::CARD.master_port, Some(iceball::NAME)),
            netpanzer::NAME => (Kind::Answers(Door::NetPanzer), netpanzer::CARD.master_port, None),
            "bloodmasters+http" => (Kind::Answers(Door::Bloodmasters), None, Some(bloodmasters::NAME)),
            "http" => (Kind::Answers(Door::Api), None, None),
            _ => {
                let known = "iceball://host, netpanzer://host, bloodmasters+http://host/ or http://host (a Rallypoint)";
                return Err(format!("`{text}`: a server cannot be announced there; masters are {known}"));
            }
        };
        if let Some(only) = only.filter(|only| *only != game) {
            return Err(format!("`{text}`: this master takes {only} servers only, not {game}"));
        }
        let port = url.port.or(port).unwrap_or(HTTP_PORT);
        Ok(Master { text: text.to_string(), kind, url, port })
    }

    pub fn is_iceball(&self) -> bool {
        self.kind == Kind::Iceball
    }

    /// Its addresses now. IPv4 first: what is listed is the address that we come from, and the old games know no other.
    pub(super) async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        addresses(&self.url.host, self.port).await
    }

    pub(super) async fn connect(&self) -> Result<TcpStream, String> {
        let mut failure = String::new();
        for address in self.addresses().await? {
            failure = match timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => format!("cannot connect to {address}: {error}"),
                Err(_) => format!("cannot connect to {address}: no answer"),
            };
        }
        Err(failure)
    }
}

/// The addresses of a name, at least one, IPv4 first.
pub(super) async fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = match timeout(CONNECT, lookup_host((host, port))).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(format!("cannot find {host}: {error}")),
        Err(_) => return Err(format!("cannot find {host}: no answer to the look-up")),
    };
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    if found.is_empty() { Err(format!("cannot find {host}: it has no address")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_as_people_write_them() {
        let parsed = |text: &str, game: &str| Master::parse(text, game).map(|master| (master.kind, master.port));
        assert_eq!(parsed("iceball://play.example", "iceball"), Ok((Kind::Iceball, 27790)));
        assert_eq!(parsed("iceball://play.example:1", "iceball"), Ok((Kind::Iceball, 1)));
        assert_eq!(parsed("netpanzer://127.0.0.1", "hyperbol"), Ok((Kind::Answers(Door::NetPanzer), 28900)));
        assert_eq!(
            parsed("bloodmasters+http://h/list.php", "bloodmasters"),
            Ok((Kind::Answers(Door::Bloodmasters), 80))
        );
        assert_eq!(parsed("http://h:8080", "anything"), Ok((Kind::Answers(Door::Api), 8080)));
        for (text, game, says) in [
            ("iceball://h", "netpanzer", "takes iceball servers only"),
            ("bloodmasters+http://h", "iceball", "takes bloodmasters servers only"),
            ("hyperbol://h", "hyperbol", "cannot be announced there"),
            ("https://h", "hyperbol", "masters are iceball://"),
            ("127.0.0.1:28900", "netpanzer", "not an address"),
            ("netpanzer://joe:secret@h", "netpanzer", "no users"),
        ] {
            let error = parsed(text, game).unwrap_err();
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
    }
}

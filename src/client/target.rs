//! Typed addresses: `netpanzer://host:port`, `bloodmasters+https://host/path`, `http://host`. The scheme names the
//! protocol; the command decides whether a master or a game server is meant.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV4};
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::{Host, ParseError, Position, Url};

use super::{connect, hint};
use crate::model::Address;
use crate::protocols::fetch::DatagramFetch;
use crate::protocols::{CARDS, Card, DIALECTS, Dialect, Fetch, card, dialect};

#[derive(Clone)]
pub struct Target {
    pub kind: Kind,
    /// Over TLS: `https://`.
    pub secure: bool,
    /// A name, or an IP address without brackets.
    pub host: String,
    pub port: Option<u16>,
    /// With its leading slash; empty if none was given.
    pub path: String,
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// `NAME://`: a game's master, or a server of the game.
    Game(&'static Card),
    /// `NAME://`: a game server that is only queried.
    Dialect(&'static Dialect),
    /// `NAME+http://`, `NAME+https://`: the web page with a game's list.
    Page(&'static Card),
    /// `http://`, `https://`: another Rallypoint.
    Rallypoint,
}

/// A game server that can be queried.
#[derive(Clone, Copy)]
pub struct GameServer {
    /// Of its protocol, or of the dialect that it is asked in.
    pub name: &'static str,
    /// As given, or the usual one.
    pub port: u16,
    /// None: it is asked in a dialect.
    pub card: Option<&'static Card>,
}

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        // `http:host` is a valid URL, but a typed address without slashes is probably `host:port`.
        if !text.contains("://") {
            return Err(hint::no_scheme(text));
        }
        let shown = without_login(text);
        let bad = |why: String| format!("`{shown}`: {why}");
        let typed = typed_authority(&shown);
        let url = match Url::parse(text) {
            Err(ParseError::RelativeUrlWithoutBase) => return Err(hint::no_scheme(&shown)),
            parsed => parsed.map_err(|error| bad(in_words(error, typed)))?,
        };
        let scheme = url.scheme();
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad(format!("logins are not supported; write {scheme}://{typed}")));
        }
        let known = kind(scheme);
        let rest = &url[Position::BeforeHost..];
        let (kind, secure) = known.ok_or_else(|| bad(hint::unknown_scheme(scheme, rest)))?;
        // There is no login, so an `@` is part of the path.
        let typed = typed_authority(text);
        // A URL may have a colon without a port; here that is a typing mistake.
        if typed.ends_with(':') || url.port() == Some(0) {
            return Err(bad(in_words(ParseError::InvalidPort, typed)));
        }
        let host = host(&url).map_err(|error| bad(in_words(error, typed)))?;
        let path = match &url[Position::BeforePath..Position::AfterQuery] {
            "/" => "",
            path => path,
        };
        if matches!(kind, Kind::Game(card) if !takes_path(card)) && !path.is_empty()
            || matches!(kind, Kind::Dialect(_)) && !path.is_empty()
        {
            return Err(bad(format!("a {scheme} address has no path")));
        }
        Ok(Target { kind, secure, host, port: url.port(), path: path.to_string() })
    }
}

impl GameServer {
    /// `NAME://IPV4:PORT` of a game that can be queried, as most lines of long files are: the result is that of the rules for all
    /// addresses, without their cost.
    pub(super) fn plain(text: &str) -> Option<(&'static str, Address)> {
        let (scheme, rest) = text.split_once(':')?;
        let at: SocketAddrV4 = rest.strip_prefix("//")?.parse().ok()?;
        let name = match kind(scheme)?.0 {
            Kind::Game(card) if card.query.is_some() => card.name,
            Kind::Dialect(dialect) => dialect.name,
            Kind::Game(_) | Kind::Page(_) | Kind::Rallypoint => return None,
        };
        Some((name, Address::new((*at.ip()).into(), at.port())?))
    }
}

/// The host, checked by the rules for web addresses whatever the scheme: the parser accepts almost any host for others.
fn host(url: &Url) -> Result<String, ParseError> {
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(ParseError::EmptyHost)?;
    Ok(match Host::parse(host)? {
        Host::Domain(name) => name,
        Host::Ipv4(ip) => ip.to_string(),
        Host::Ipv6(ip) => ip.to_string(),
    })
}

/// An address for messages, without anything before the last `@`: that may be a password, which may contain any character.
pub fn without_login(text: &str) -> String {
    match text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://…@{rest}"),
        None => text.into(),
    }
}

/// The host and the port as typed. The parser's errors do not say which part is wrong.
fn typed_authority(text: &str) -> &str {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.strip_prefix("…@").unwrap_or(authority)
}

/// What is wrong with a host or a port.
fn in_words(error: ParseError, typed: &str) -> String {
    let in_brackets = typed.strip_prefix('[').map(|rest| rest.split_once(']'));
    match (error, in_brackets) {
        (_, None) if typed.matches(':').count() > 1 => hint::brackets(typed),
        (_, Some(None)) => "the bracket is not closed".into(),
        (ParseError::InvalidIpv6Address, Some(Some((host, "")))) => format!("`{host}` is not an IPv6 address"),
        (ParseError::InvalidIpv6Address, Some(Some((_, after)))) => {
            format!("`{after}` after the bracket is not a port")
        }
        (ParseError::InvalidPort, _) => match typed.rsplit_once(':').map_or("", |(_, port)| port) {
            "" => "there is no port after the colon".into(),
            port => format!("`{port}` is not a port from 1 to 65535"),
        },
        (ParseError::EmptyHost, _) => "it has no host".into(),
        _ => format!("`{typed}` is not a host"),
    }
}

/// Whether the path of a master's address selects a list.
fn takes_path(card: &Card) -> bool {
    matches!(card.fetch, Fetch::Datagrams(_))
}

/// The kind of target, and whether it uses TLS.
fn kind(scheme: &str) -> Option<(Kind, bool)> {
    let (name, secure) = match scheme.rsplit_once('+').unwrap_or(("", scheme)) {
        (name, "http") => (name, false),
        (name, "https") => (name, true),
        _ => {
            let game = card(scheme).map(Kind::Game);
            return game.or_else(|| dialect(scheme).map(Kind::Dialect)).map(|kind| (kind, false));
        }
    };
    if !scheme.contains('+') {
        return Some((Kind::Rallypoint, secure));
    }
    let page = card(name).filter(|card| matches!(card.fetch, Fetch::Http { .. }));
    page.map(|card| (Kind::Page(card), secure))
}

impl Target {
    /// The game server to query; an error says why it cannot be queried.
    pub fn game_server(&self) -> Result<GameServer, String> {
        let card = match self.kind {
            Kind::Game(card) => card,
            Kind::Dialect(dialect) => {
                let port = self.port.unwrap_or(dialect.game_port);
                return Ok(GameServer { name: dialect.name, port, card: None });
            }
            Kind::Page(_) | Kind::Rallypoint => {
                let games = CARDS.iter().filter(|card| card.query.is_some()).map(|card| card.name);
                let all = games.chain(DIALECTS.iter().map(|dialect| dialect.name));
                let all: Vec<_> = all.map(|name| format!("{name}://{}", self.host_text())).collect();
                return Err(format!(
                    "`{self}` is a master, not a game server: `rallypoint list {self}` shows its servers; a game server is written {}",
                    all.join(" or ")
                ));
            }
        };
        if !self.path.is_empty() {
            return Err(format!("`{self}`: a game server's address has no path"));
        }
        if card.query.is_none() {
            return Err(format!("`{self}`: {} servers cannot be queried over the network", card.title));
        }
        Ok(GameServer { name: card.name, port: self.port.unwrap_or(card.game_port), card: Some(card) })
    }

    /// How its list is fetched, if that is done by datagrams.
    pub fn datagram_fetch(&self) -> Option<&'static dyn DatagramFetch> {
        match self.kind {
            Kind::Game(Card { fetch: Fetch::Datagrams(fetch), .. }) => Some(*fetch),
            _ => None,
        }
    }

    /// The decoded path without its leading slash, and the query string without its question mark.
    pub fn path_and_query(&self) -> Result<(String, &str), String> {
        let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
        let path = percent_decode_str(path.trim_start_matches('/')).decode_utf8();
        let path = path.map_err(|_| format!("`{self}`: the path is not UTF-8"))?;
        Ok((path.into_owned(), query))
    }

    /// The port of the master, or of the web server that has the list.
    pub fn master_port(&self) -> Result<u16, String> {
        let default = match self.kind {
            Kind::Game(card) => card.master_port.ok_or_else(|| {
                let host = self.host_text();
                format!(
                    "the list of {} is on a web server; write {1}+http://{host} or {1}+https://{host}",
                    card.title, card.name
                )
            })?,
            Kind::Dialect(_) => {
                return Err(format!("`{self}` is a game server, not a master: `rallypoint query {self}` asks it"));
            }
            Kind::Page(_) | Kind::Rallypoint if self.secure => HTTPS_PORT,
            Kind::Page(_) | Kind::Rallypoint => HTTP_PORT,
        };
        Ok(self.port.unwrap_or(default))
    }

    /// The path that was given, or the default.
    pub fn path_or<'a>(&'a self, default: &'a str) -> &'a str {
        if self.path.len() > 1 { &self.path } else { default }
    }

    /// `host:port`, as resolvers and the Host header expect it.
    pub fn authority(&self, port: u16) -> String {
        match self.host.parse::<Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]:{port}"),
            Err(_) => format!("{}:{port}", self.host),
        }
    }

    /// The host, with brackets around an IPv6 address.
    pub fn host_text(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// The URL of a page on this web server.
    pub fn page(&self, path: &str) -> Result<Url, String> {
        let authority = self.authority(self.master_port()?);
        let slash = if path.starts_with('/') { "" } else { "/" };
        let text = format!("{}://{authority}{slash}{path}", if self.secure { "https" } else { "http" });
        Url::parse(&text).map_err(|error| format!("`{self}`: {error}"))
    }

    /// Its address with this port; the first one if a name has several.
    pub async fn address(&self, port: u16) -> io::Result<Address> {
        let found = connect::addresses(&self.authority(port), None).await?;
        let address = found.first().and_then(|found| Address::new(found.ip(), found.port()));
        address.ok_or_else(|| io::Error::other("port 0"))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let http = if self.secure { "https" } else { "http" };
        match self.kind {
            Kind::Game(card) => write!(f, "{}://", card.name)?,
            Kind::Dialect(dialect) => write!(f, "{}://", dialect.name)?,
            Kind::Page(card) => write!(f, "{}+{http}://", card.name)?,
            Kind::Rallypoint => write!(f, "{http}://")?,
        }
        match self.port {
            Some(port) => write!(f, "{}", self.authority(port))?,
            None => write!(f, "{}", self.host_text())?,
        }
        write!(f, "{}", self.path)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn masters_and_their_default_ports() {
        for (text, port) in [
            ("iceball://master.example", 27790),
            ("iceball://master.example:5", 5),
            ("netpanzer://203.0.113.5", 28900),
            ("hyperbol://[2001:db8::1]", 20203),
            ("bloodmasters+http://example.org/list.php?a=b", 80),
            ("iceball+http://example.org:8080/master.json", 8080),
            ("http://example.org", 80),
            ("http://example.org:8080", 8080),
            ("https://example.org", 443),
            ("https://[2001:db8::1]:8443/a", 8443),
            ("bloodmasters+https://example.org/list.php", 443),
        ] {
            assert_eq!(target(text).master_port(), Ok(port), "{text}");
            assert_eq!(target(text).to_string(), text);
        }
        assert_eq!(target("NetPanzer://Host/").to_string(), "netpanzer://host");
        assert_eq!(target("http://host/a b").path, "/a%20b");
        let no_master = target("bloodmasters://example.org").master_port().unwrap_err();
        assert!(
            no_master.ends_with("write bloodmasters+http://example.org or bloodmasters+https://example.org"),
            "{no_master}"
        );
    }

    #[test]
    fn a_plain_address_is_what_all_rules_make_of_it() {
        let hosts = ["203.0.113.5:1", "0.0.0.0:65535", "127.0.0.1:80", "127.0.0.1:443", "1.2.3.4:5"];
        let names = CARDS.iter().map(|card| card.name).chain(DIALECTS.iter().map(|dialect| dialect.name));
        let mut plain = 0;
        for text in names.flat_map(|name| hosts.map(|host| format!("{name}://{host}"))) {
            let target = target(&text);
            let by_all_rules = target
                .game_server()
                .ok()
                .map(|server| (server.name, Address::new(target.host.parse().unwrap(), server.port).unwrap()));
            assert_eq!(GameServer::plain(&text), by_all_rules, "{text}");
            plain += usize::from(by_all_rules.is_some());
        }
        assert!(plain > CARDS.len());
        for text in
            ["http://127.0.0.1:80", "netpanzer://127.0.0.1:0", "netpanzer://127.0.0.01:1", "netpanzer://127.0.0.1"]
        {
            assert!(GameServer::plain(text).is_none(), "{text}");
        }
    }

    #[test]
    fn game_servers() {
        for (text, name, port, has_card) in [
            ("hyperbol://203.0.113.5:12133", "hyperbol", 12133, true),
            ("hyperbol://203.0.113.5", "hyperbol", 20200, true),
            ("a2s://203.0.113.5", "a2s", 27015, false),
            ("a2s://[2001:db8::1]:5", "a2s", 5, false),
        ] {
            let found = target(text).game_server().unwrap();
            assert_eq!((found.name, found.port, found.card.is_some()), (name, port, has_card));
            assert_eq!(target(text).to_string(), text);
        }
        assert!(target("a2s://203.0.113.5").master_port().unwrap_err().contains("rallypoint query a2s://203.0.113.5"));
        assert!("a2s://203.0.113.5/path".parse::<Target>().unwrap_err().contains("no path"));
        for (text, why) in [
            ("iceball://203.0.113.5", "cannot be queried"),
            ("http://203.0.113.5", "not a game server"),
            ("bloodmasters+http://203.0.113.5/", "not a game server"),
        ] {
            let error = target(text).game_server().map(|found| found.name).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(target("hyperbol://[::1]").authority(5), "[::1]:5");
    }

    #[test]
    fn pages() {
        let page = |text: &str, path: &str| target(text).page(path).unwrap().to_string();
        assert_eq!(page("http://h:80", "/a?b=c"), "http://h/a?b=c");
        assert_eq!(page("https://h", "?x"), "https://h/?x");
        assert_eq!(page("iceball://[::1]", "/master.json"), "http://[::1]:27790/master.json");
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, why) in [
            ("203.0.113.5:3030", "write netpanzer://203.0.113.5:3030"),
            ("", "write for example"),
            ("doom://host", "unknown scheme `doom`; the schemes are iceball, netpanzer"),
            ("netpanser://host:1", "did you mean netpanzer://host:1?"),
            ("netpanzer:127.0.0.1", "write netpanzer://127.0.0.1"),
            ("netpanzer+http://host/", "write netpanzer://host"),
            ("netpanser://me:secret@host", "logins are not supported"),
            ("netpanzer://", "no host"),
            ("netpanzer://:3030", "no host"),
            ("netpanzer://a b", "`a b` is not a host"),
            ("netpanzer://a\u{1b}[31m", "is not a host"),
            ("netpanzer://a%00b", "is not a host"),
            ("netpanzer://me:secret@host:1", "`netpanzer://…@host:1`: logins are not supported"),
            ("netpanzer://host:", "no port after the colon"),
            ("netpanzer://host:0", "not a port"),
            ("netpanzer://host:+1", "not a port"),
            ("netpanzer://host:65536", "not a port"),
            ("netpanzer://2001:db8::a", "in brackets: [2001:db8::a]"),
            ("netpanzer://[2001:db8::1", "not closed"),
            ("netpanzer://[host]", "not an IPv6 address"),
            ("netpanzer://[::1]5", "not a port"),
            ("netpanzer://host/path", "no path"),
            ("netpanzer://me:secret@host:x", "`netpanzer://…@host:x`: `x` is not a port"),
            ("netpanzer://me:se/cret@host:x", "`netpanzer://…@host:x`: "),
            ("a b://host", "has no scheme"),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(why) && !error.contains("cret"), "{text}: {error}");
        }
        let target: Target = "http://host/a@b:/c".parse().unwrap();
        assert_eq!(
            (&*target.host, target.port, &*target.path),
            ("host", None, "/a@b:/c"),
            "an @ in a path is no login"
        );
    }
}

//! What `rallypoint serve` says on a terminal once it is ready: where the page is, which games listen where, and what to do
//! next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::help;
use crate::app::Listening;
use crate::config::Config;
use crate::protocols::section::{Section, Surroundings, Transport};

/// The text, without the end of its last line.
pub fn text(version: &str, listening: &[Listening], config: &Config, machine: &[IpAddr]) -> String {
    let mut rows = Vec::new();
    let page = page(listening);
    if let Some(page) = page {
        rows.push(("The page", url(page, "localhost")));
        let outside = machine.iter().find(|ip| is_public_enough(**ip) && ip.is_ipv4() == page.address.is_ipv4());
        if let Some(ip) = outside.filter(|_| page.address.ip().is_unspecified()) {
            rows.push(("  from elsewhere", url(page, &host(*ip))));
        }
    }
    for (card, section) in config.sections() {
        let ports = ports(listening, card.name);
        let paths = paths(section);
        let place = match (ports.is_empty(), page, paths) {
            (false, _, _) => ports,
            (true, Some(page), Some(path)) => format!("HTTP {}, {path}", page.address.port()),
            _ => "not served".into(),
        };
        rows.push((card.title, place));
    }
    let saved = config.data_dir.as_ref().map_or("nothing: data_dir is not set".into(), |dir| dir.display().to_string());
    rows.push(("Saved in", saved));
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
    let mut text = format!("Rallypoint {version} is ready. Ctrl-C stops it.\n\n");
    for (left, right) in rows {
        let _ = writeln!(text, "  {left:width$}  {right}");
    }
    text.push_str(&next(listening));
    let doors = doors(listening);
    if !doors.is_empty() {
        let _ =
            write!(text, "\nOpen in the firewall, for players and game servers elsewhere:\n  {}\n", doors.join(" "));
    }
    text
}

/// What most people do next, if they can do it here.
fn next(listening: &[Listening]) -> String {
    let game = help::example();
    let own = |port: &&Listening| port.card.is_some_and(|card| card.name == game);
    let Some(port) = listening.iter().find(own) else { return String::new() };
    let at = SocketAddr::new(here(port.address.ip()), port.address.port());
    let doctor = page(listening).map(|page| format!("Not listed? {}doctor says why.\n", url(page, "localhost")));
    format!(
        "\nNext, in another terminal: simulated servers, to see it work:\n  {} simulate {game} --count 5 --announce {game}://{at}\n{}",
        called_as(),
        doctor.unwrap_or_default(),
    )
}

/// The program as it was called, so that the line works where it is not in `PATH`.
fn called_as() -> String {
    std::env::args().next().filter(|name| name.contains('/')).unwrap_or_else(|| "rallypoint".into())
}

/// The listener for the page: `web.listen`, one with TLS, or any HTTP.
fn page(listening: &[Listening]) -> Option<&Listening> {
    let is_http = |port: &&Listening| matches!(port.transport, Transport::Http | Transport::DatagramsAndHttp { .. });
    let rank = |port: &&Listening| (port.card.is_some(), port.tls, !port.address.is_ipv4());
    listening.iter().filter(is_http).min_by_key(rank)
}

/// The URL of a page, at this name if it is on all addresses.
fn url(page: &Listening, name: &str) -> String {
    let (scheme, ip) = (if page.tls { "https" } else { "http" }, page.address.ip());
    let host = if ip.is_unspecified() { name.to_string() } else { host(ip) };
    format!("{scheme}://{host}:{}/", page.address.port())
}

fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Where a program on this machine finds it.
fn here(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Whether others can have a way to this address of the machine: not only this machine, not only this cable.
fn is_public_enough(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// The ports of a game: `UDP and HTTP 27790, HTTP 27795`.
fn ports(listening: &[Listening], game: &str) -> String {
    let mut ports = BTreeMap::new();
    for port in listening.iter().filter(|port| port.card.is_some_and(|card| card.name == game)) {
        ports.insert(port.address.port(), kind(port.transport));
    }
    ports.iter().map(|(port, kind)| format!("{kind} {port}")).collect::<Vec<_>>().join(", ")
}

fn kind(transport: Transport) -> &'static str {
    match transport {
        Transport::Stream => "TCP",
        Transport::Http => "HTTP",
        Transport::Datagrams { .. } => "UDP",
        Transport::DatagramsAndHttp { .. } => "UDP and HTTP",
    }
}

/// The path of a game that is served on every HTTP port: the one for its servers, or else the one for its list.
fn paths(section: &dyn Section) -> Option<&'static str> {
    let posts = section.posts();
    let first = posts.first().map(|post| post.path);
    first.or_else(|| section.routes(&Surroundings::default()).first().map(|route| route.path))
}

/// What a firewall has to let in, as `ufw` writes it. Nothing, if everything is for this machine only.
fn doors(listening: &[Listening]) -> Vec<String> {
    let outside = listening.iter().filter(|port| !port.address.ip().is_loopback());
    let doors: BTreeSet<(u16, &str)> = outside
        .flat_map(|port| {
            let kinds: &[&str] = match port.transport {
                Transport::Stream | Transport::Http => &["tcp"],
                Transport::Datagrams { .. } => &["udp"],
                Transport::DatagramsAndHttp { .. } => &["tcp", "udp"],
            };
            kinds.iter().map(|kind| (port.address.port(), *kind))
        })
        .collect();
    doors.into_iter().map(|(port, kind)| format!("{port}/{kind}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::CARDS;

    fn port(card: Option<&'static str>, address: &str, transport: Transport) -> Listening {
        let card = card.and_then(crate::protocols::card);
        Listening { key: "a.key".into(), card, address: address.parse().unwrap(), transport, tls: false }
    }

    #[test]
    fn everything_that_listens_is_named_once() {
        let game = help::example();
        let both = Transport::DatagramsAndHttp { bytes_max: 1 };
        let listening = [
            port(Some(game), "0.0.0.0:4000", both),
            port(Some(game), "[::]:4000", both),
            port(Some(game), "0.0.0.0:4001", Transport::Stream),
            port(None, "0.0.0.0:8080", Transport::Http),
            port(None, "[::]:8080", Transport::Http),
        ];
        let machine = ["127.0.0.1".parse().unwrap(), "192.0.2.7".parse().unwrap()];
        let text = text("9.9.9", &listening, &Config::default(), &machine);
        for line in [
            "Rallypoint 9.9.9 is ready",
            "http://localhost:8080/\n",
            "http://192.0.2.7:8080/\n",
            "UDP and HTTP 4000, TCP 4001\n",
            &format!(" simulate {game} --count 5 --announce {game}://127.0.0.1:4000\n"),
            "http://localhost:8080/doctor says why",
            "  4000/tcp 4000/udp 4001/tcp 8080/tcp\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        for card in CARDS {
            let lines = text.lines().filter(|line| line.trim_start().starts_with(card.title));
            assert_eq!(lines.count(), 1, "{}\n{text}", card.title);
        }
        // The tests' own program has a long path.
        let text = text.replace(&called_as(), "rallypoint");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn what_is_only_for_this_machine_needs_no_firewall() {
        let listening = [port(None, "127.0.0.1:8080", Transport::Http)];
        let text = text("1", &listening, &Config::default(), &["192.0.2.7".parse().unwrap()]);
        assert!(text.contains("http://127.0.0.1:8080/"), "{text}");
        assert!(!text.contains("192.0.2.7") && !text.contains("firewall"), "{text}");
        assert!(text.contains("not served"), "a game without a listener: {text}");
    }

    #[test]
    fn the_page_is_where_people_can_read_it() {
        let secure = Listening { tls: true, ..port(None, "[::]:443", Transport::Http) };
        assert_eq!(url(&secure, "localhost"), "https://localhost:443/");
        let plain = port(None, "[2001:db8::1]:80", Transport::Http);
        assert_eq!(url(&plain, "localhost"), "http://[2001:db8::1]:80/");
        assert_eq!(page(&[secure, plain]).map(|page| page.address.port()), Some(80));
        assert!(page(&[port(None, "0.0.0.0:1", Transport::Stream)]).is_none());
    }
}

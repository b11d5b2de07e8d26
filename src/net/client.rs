//! Who the client is. The peer of a connection is, unless it is a proxy that the operator trusts to name another address.
//!
//! A header that names the client (`X-Forwarded-For` or `Forwarded`) is a list to which every proxy appends the address
//! that connected to it. Only what a trusted proxy appended is true; the client can have sent the rest. So the list is
//! read from its end, and the first address that is not a trusted proxy itself is the client.

use std::net::{IpAddr, SocketAddr};

use crate::prefix::Networks;

/// How many proxies a request may have passed.
const PROXIES_MAX: usize = 32;

/// The proxies that are trusted to name their clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// Reverse proxies, whose requests have a header that names the client.
    pub networks: Networks,
    /// The one header that is trusted.
    pub header: Header,
    /// Proxies whose connections begin with the PROXY protocol.
    pub protocol: Networks,
}

/// The headers that can name a client. A proxy appends to one of them, and passes the other on as the client sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    #[default]
    XForwardedFor,
    Forwarded,
}

impl Header {
    pub fn name(self) -> &'static str {
        match self {
            Header::XForwardedFor => "x-forwarded-for",
            Header::Forwarded => "forwarded",
        }
    }
}

impl Proxies {
    /// Whether connections from here are of many clients.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.networks.contains(ip) || self.protocol.contains(ip)
    }

    /// The client of a request: `peer`, or the address that the header's lines name if `peer` is a trusted proxy. Its port is
    /// 0 if the header does not name one.
    pub fn client<'a>(&self, peer: SocketAddr, lines: impl DoubleEndedIterator<Item = &'a [u8]>) -> SocketAddr {
        let mut client = canonical(peer);
        let mut addresses = lines.rev().flat_map(|line| self.addresses(line)).take(PROXIES_MAX);
        while self.networks.contains(client.ip()) {
            // Unreadable or missing: what the last proxy connected to is unknown, and the proxy counts as the client.
            match addresses.next() {
                Some(Some(address)) => client = canonical(address),
                Some(None) | None => break,
            }
        }
        client
    }

    /// The addresses in one line of the header, from its end; None for each that cannot be read.
    fn addresses<'a>(&self, line: &'a [u8]) -> impl Iterator<Item = Option<SocketAddr>> + use<'a> {
        let header = self.header;
        let elements = FromEnd { rest: Some(line), separator: b',' }.filter(|element| !element.is_empty());
        elements.map(move |element| match header {
            Header::XForwardedFor => node(element),
            Header::Forwarded => node(unquoted(for_parameter(element)?)?),
        })
    }
}

/// An IPv4 address is never written as IPv6, so that bans and limits of the address apply.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The parts of a list, from its end and trimmed; a separator within quotes does not count. From the end, because the end was
/// written by a trusted proxy: quotes that a client left open cannot hide it.
struct FromEnd<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> Iterator for FromEnd<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let mut is_quoted = false;
        let is_separator = |&at: &usize| {
            let byte = rest.get(at).copied();
            is_quoted ^= byte == Some(b'"') && !is_escaped(rest, at);
            byte == Some(self.separator) && !is_quoted
        };
        let found = (0..rest.len()).rev().find(is_separator);
        let part = rest.get(found.map_or(0, |at| at + 1)..).unwrap_or_default();
        self.rest = found.and_then(|at| rest.get(..at));
        Some(part.trim_ascii())
    }
}

/// Whether an odd number of backslashes precedes a byte.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The value of `for` in `for=192.0.2.43;proto=http;by=203.0.113.43`; none if it is there twice.
fn for_parameter(element: &[u8]) -> Option<&[u8]> {
    let mut values = FromEnd { rest: Some(element), separator: b';' }.filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = pair.split_at_checked(at)?;
        name.eq_ignore_ascii_case(b"for").then(|| value.get(1..).unwrap_or_default())
    });
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// A value without its quotes. An address has nothing to escape.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inner @ .., b'"'] => Some(inner),
        [b'"', ..] => None,
        _ => Some(value),
    }
}

/// An address, with a port or without; IPv6 in brackets or without a port. `unknown` and hidden names (`_a1`) are none.
fn node(text: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let ip = match bare {
        Some(inner) => inner.parse().map(IpAddr::V6),
        None => text.parse(),
    };
    ip.map_or_else(|_| text.parse().ok(), |ip| Some(SocketAddr::new(ip, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proxies(header: Header) -> Proxies {
        let networks: Vec<_> = ["10.0.0.0/8", "2001:db8:aaaa::/48"].map(|text| text.parse().unwrap()).into();
        Proxies { networks: Networks::new(&networks), header, protocol: Networks::default() }
    }

    fn client(header: Header, peer: &str, lines: &[&str]) -> String {
        let lines = lines.iter().map(|line| line.as_bytes());
        proxies(header).client(peer.parse().unwrap(), lines).to_string()
    }

    fn x(lines: &[&str]) -> String {
        client(Header::XForwardedFor, "10.0.0.1:999", lines)
    }

    fn forwarded(lines: &[&str]) -> String {
        client(Header::Forwarded, "10.0.0.1:999", lines)
    }

    const PROXY: &str = "10.0.0.1:999";

    #[test]
    fn only_a_trusted_proxy_can_name_a_client() {
        for header in [Header::XForwardedFor, Header::Forwarded] {
            for peer in ["203.0.113.7:5", "[2001:db8::1]:5", "11.0.0.1:5"] {
                assert_eq!(client(header, peer, &["192.0.2.1", "for=192.0.2.1"]), peer);
            }
        }
        assert_eq!(client(Header::XForwardedFor, "[::ffff:203.0.113.7]:5", &["192.0.2.1"]), "203.0.113.7:5");
        assert_eq!(client(Header::XForwardedFor, "[::ffff:10.0.0.1]:5", &["192.0.2.1"]), "192.0.2.1:0");
        assert_eq!(client(Header::XForwardedFor, "[2001:db8:aaaa::1]:5", &["192.0.2.1"]), "192.0.2.1:0");
    }

    #[test]
    fn the_last_address_that_is_no_proxy_is_the_client() {
        assert_eq!(x(&["192.0.2.1"]), "192.0.2.1:0");
        assert_eq!(x(&["198.51.100.9, 192.0.2.1"]), "192.0.2.1:0", "the first was sent by the client");
        assert_eq!(x(&["198.51.100.9", "192.0.2.1"]), "192.0.2.1:0", "lines count in their order");
        assert_eq!(x(&["198.51.100.9,192.0.2.1 ,\t10.2.3.4", "10.9.9.9"]), "192.0.2.1:0", "other proxies are skipped");
        assert_eq!(x(&["10.1.1.1, 10.2.2.2"]), "10.1.1.1:0", "a client within the proxies' network");
        assert_eq!(x(&[", 192.0.2.1, ,"]), "192.0.2.1:0", "empty elements do not count");
        assert_eq!(x(&["192.0.2.1", "", " "]), "192.0.2.1:0");
        assert_eq!(x(&["2001:db8::5, 2001:db8:aaaa::7"]), "[2001:db8::5]:0");
    }

    #[test]
    fn addresses_come_with_and_without_ports_and_brackets() {
        for (text, expected) in [
            ("192.0.2.1:4711", "192.0.2.1:4711"),
            ("2001:db8::1", "[2001:db8::1]:0"),
            ("[2001:db8::1]", "[2001:db8::1]:0"),
            ("[2001:db8::1]:4711", "[2001:db8::1]:4711"),
            ("::ffff:192.0.2.1", "192.0.2.1:0"),
        ] {
            assert_eq!(x(&[text]), expected);
            assert_eq!(forwarded(&[&format!("for=\"{text}\"")]), expected);
            assert_eq!(forwarded(&[&format!("For={text};proto=https;by=10.0.0.1")]), expected);
        }
    }

    #[test]
    fn what_cannot_be_read_leaves_the_proxy_as_the_client() {
        for text in [
            "",
            "unknown",
            "_hidden",
            "_hidden:80",
            "unknown:80",
            "nonsense",
            "192.0.2",
            "192.0.2.1:",
            "192.0.2.1:99999",
            "192.0.2.1.",
            "[192.0.2.1]",
            "[2001:db8::1",
            "fe80::1%eth0",
            "\u{e9}",
            "\"192.0.2.1\"",
            "192.0.2.1 192.0.2.2",
        ] {
            assert_eq!(x(&[text]), PROXY, "{text}");
            let nearest = if text.is_empty() { "192.0.2.9:0" } else { "10.0.0.2:0" };
            assert_eq!(x(&["192.0.2.9", text, "10.0.0.2"]), nearest, "{text}");
        }
        assert_eq!(x(&[]), PROXY);
        for text in [
            "",
            "192.0.2.1",
            "by=192.0.2.1",
            "for",
            "for=",
            "for=\"192.0.2.1",
            "for=unknown",
            "for=\"_x:1\"",
            "for=\"\"",
        ] {
            assert_eq!(forwarded(&[text]), PROXY, "{text}");
        }
        assert_eq!(forwarded(&["for=192.0.2.1;for=192.0.2.2"]), PROXY, "one of them may be the client's");
        let long = vec!["10.0.0.2"; PROXIES_MAX].join(",");
        assert_eq!(x(&["192.0.2.1", &long]), "10.0.0.2:0", "too many proxies");
        assert_eq!(x(&["192.0.2.1", &long[9..]]), "192.0.2.1:0");
    }

    #[test]
    fn forwarded_has_quotes_and_other_parameters() {
        assert_eq!(forwarded(&["for=\"[2001:db8:cafe::17]:4711\""]), "[2001:db8:cafe::17]:4711");
        assert_eq!(forwarded(&["proto=http; For=192.0.2.60 ;by=203.0.113.43"]), "192.0.2.60:0");
        assert_eq!(forwarded(&["for=192.0.2.43, for=198.51.100.17"]), "198.51.100.17:0");
        assert_eq!(forwarded(&["for=192.0.2.43", "for=10.0.0.2;by=10.0.0.1"]), "192.0.2.43:0");
        assert_eq!(forwarded(&["host=\"a,b;for=192.0.2.9\";for=192.0.2.1"]), "192.0.2.1:0");
        assert_eq!(forwarded(&["for=192.0.2.1;host=\"a\\\",for=192.0.2.9\""]), "192.0.2.1:0");
    }

    #[test]
    fn quotes_that_a_client_leaves_open_do_not_hide_what_the_proxy_appends() {
        for sent in ["for=\"", "for=\"192.0.2.9", "\"", "for=\"\\", "for=192.0.2.9;host=\"x", "\\\"\\"] {
            assert_eq!(forwarded(&[&format!("{sent}, for=192.0.2.1")]), "192.0.2.1:0", "{sent}");
            assert_eq!(forwarded(&[sent, "for=\"192.0.2.1:5\";proto=https"]), "192.0.2.1:5", "{sent}");
        }
    }

    proptest! {
        #[test]
        fn any_lines_are_read_without_a_panic(
            lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4),
            text in r#"(for=|"|\[|\]|:|,|;|\\|10\.0\.0\.1|2001:db8::1| |[0-9a-f]){0,30}"#,
        ) {
            for header in [Header::XForwardedFor, Header::Forwarded] {
                let lines = lines.iter().map(Vec::as_slice).chain([text.as_bytes()]);
                proxies(header).client(PROXY.parse().unwrap(), lines);
            }
        }

        #[test]
        fn nothing_that_a_client_sends_changes_what_the_proxy_appends(
            sent in prop::collection::vec(any::<u8>(), 0..60),
            ip in any::<std::net::Ipv6Addr>(),
        ) {
            let trusted = |header| proxies(header).networks.contains(IpAddr::V6(ip).to_canonical());
            for (header, appended) in [(Header::XForwardedFor, format!("{ip}")), (Header::Forwarded, format!("for=\"[{ip}]\""))] {
                prop_assume!(!trusted(header));
                let line = [&sent[..], b", ", appended.as_bytes()].concat();
                let client = proxies(header).client(PROXY.parse().unwrap(), [&line[..]].into_iter());
                prop_assert_eq!(client.ip(), IpAddr::V6(ip).to_canonical());
            }
        }
    }
}

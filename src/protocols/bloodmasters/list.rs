//! The two text formats of the web page: for launchers the server list, one `ip:port` per line; for game servers the ban
//! list, one IPv4 pattern per line, with `*` for any octet. Lines end with LF or CRLF. IPv4 only.
//!
//! A game server treats every non-empty line as a ban, so the ban list must contain nothing but patterns.

use std::fmt::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;

use crate::model::Address;
use crate::protocols::is_one_host;

/// The list for launchers. IPv6 servers are left out.
pub fn emit_servers(addresses: impl IntoIterator<Item = Address>) -> String {
    let mut list = String::new();
    for address in addresses {
        if let Some(ip) = address.ipv4() {
            let _ = writeln!(list, "{ip}:{}", address.port()); // writing to a String cannot fail
        }
    }
    list
}

/// Reads the list for launchers, line by line. A bad line does not affect the others.
pub fn parse_servers(list: &[u8]) -> impl Iterator<Item = Result<Address, BadLine>> {
    parse_lines(list, |line| {
        let socket: SocketAddrV4 = line.parse().map_err(|_| Fault::NotAnAddress)?;
        let address = Address::new((*socket.ip()).into(), socket.port()).ok_or(Fault::Port0)?;
        if is_one_host(address.ip()) { Ok(address) } else { Err(Fault::NotOneHost) }
    })
}

/// A ban pattern: `None` is `*`, any octet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern([Option<u8>; 4]);

impl Pattern {
    pub fn matches(&self, ip: Ipv4Addr) -> bool {
        self.0.iter().zip(ip.octets()).all(|(banned, octet)| banned.is_none_or(|banned| banned == octet))
    }

    fn parse(line: &str) -> Result<Pattern, Fault> {
        let mut pattern = [None; 4];
        let mut parts = line.split('.');
        for octet in &mut pattern {
            *octet = match parts.next().ok_or(Fault::NotAPattern)? {
                "*" => None,
                // The game compares text, so a number in another notation would never match.
                number => {
                    let parsed = number.parse::<u8>().ok().filter(|octet| octet.to_string() == number);
                    Some(parsed.ok_or(Fault::NotAPattern)?)
                }
            };
        }
        if parts.next().is_some() { Err(Fault::NotAPattern) } else { Ok(Pattern(pattern)) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, octet) in self.0.iter().enumerate() {
            let dot = if place > 0 { "." } else { "" };
            match octet {
                Some(octet) => write!(f, "{dot}{octet}")?,
                None => write!(f, "{dot}*")?,
            }
        }
        Ok(())
    }
}

/// The smallest set of patterns that matches exactly a network: one if its prefix ends at an octet boundary, otherwise up to
/// 128, one per value of the last octet.
pub fn patterns(network: Ipv4Net) -> impl Iterator<Item = Pattern> {
    let prefix_bits = network.prefix_len();
    let octets_written = prefix_bits.div_ceil(8);
    let lines = 1u64 << (8 * octets_written - prefix_bits);
    let addresses_per_line = 1u64 << (32 - 8 * octets_written);
    let first = u64::from(network.network().to_bits());
    (0..lines).map(move |line| {
        let octets = ((first + line * addresses_per_line) as u32).to_be_bytes(); // inside the network
        let mut place = 0;
        Pattern(octets.map(|octet| {
            place += 1;
            (place <= octets_written).then_some(octet)
        }))
    })
}

/// The ban list for game servers. Overlapping and adjacent networks are aggregated first.
pub fn emit_bans(networks: &[Ipv4Net]) -> String {
    let mut list = String::new();
    for pattern in Ipv4Net::aggregate(&networks.to_vec()).into_iter().flat_map(patterns) {
        let _ = writeln!(list, "{pattern}"); // writing to a String cannot fail
    }
    list
}

/// Reads the ban list for game servers, line by line.
pub fn parse_bans(list: &[u8]) -> impl Iterator<Item = Result<Pattern, BadLine>> {
    parse_lines(list, Pattern::parse)
}

/// An invalid line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NotText,
    NotAnAddress,
    Port0,
    /// Broadcast, multicast or unspecified.
    NotOneHost,
    NotAPattern,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = match self.fault {
            Fault::NotText => "not text",
            Fault::NotAnAddress => "not an address like 203.0.113.5:6969",
            Fault::Port0 => "port 0",
            Fault::NotOneHost => "not the address of one host",
            Fault::NotAPattern => "not a pattern like 203.0.113.5 or 203.0.113.*",
        };
        write!(f, "line {}: {fault}", self.line)
    }
}

impl std::error::Error for BadLine {}

/// Parses trimmed lines and skips empty ones.
fn parse_lines<T>(list: &[u8], parse: impl Fn(&str) -> Result<T, Fault>) -> impl Iterator<Item = Result<T, BadLine>> {
    let lines = list.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).zip(1..);
    lines.filter(|(line, _)| !line.is_empty()).map(move |(bytes, line)| {
        let text = std::str::from_utf8(bytes).map_err(|_| Fault::NotText);
        text.and_then(&parse).map_err(|fault| BadLine { line, fault })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(network: &str) -> Vec<String> {
        patterns(network.parse().unwrap()).map(|pattern| pattern.to_string()).collect()
    }

    #[test]
    fn servers_in_both_directions() {
        let addresses = ["203.0.113.5:6969", "[2001:db8::1]:6969", "203.0.113.6:1"].map(|text| text.parse().unwrap());
        let list = emit_servers(addresses);
        assert_eq!(list, "203.0.113.5:6969\n203.0.113.6:1\n");
        let both = [Ok(addresses[0]), Ok(addresses[2])];
        assert_eq!(parse_servers(list.as_bytes()).collect::<Vec<_>>(), both);
        let crlf = list.replace('\n', "\r\n") + "\r\n";
        assert_eq!(parse_servers(crlf.as_bytes()).collect::<Vec<_>>(), both);
        assert_eq!(parse_servers(b"").count(), 0);
        assert_eq!(emit_servers([]), "");
    }

    #[test]
    fn bad_lines_are_reported_and_the_others_are_read() {
        let list = b"<html>\n\n203.0.113.5:6969\n203.0.113.5:0\n224.0.0.1:6969\n203.0.113.5\n[::1]:6969\n\xff\n";
        let bad = |line, fault| Err(BadLine { line, fault });
        let parsed: Vec<_> = parse_servers(list).collect();
        assert_eq!(
            parsed,
            [
                bad(1, Fault::NotAnAddress),
                Ok("203.0.113.5:6969".parse().unwrap()),
                bad(4, Fault::Port0),
                bad(5, Fault::NotOneHost),
                bad(6, Fault::NotAnAddress),
                bad(7, Fault::NotAnAddress),
                bad(8, Fault::NotText),
            ]
        );
        assert_eq!(parsed[2].unwrap_err().to_string(), "line 4: port 0");
    }

    #[test]
    fn networks_as_patterns() {
        assert_eq!(lines("198.51.100.7/32"), ["198.51.100.7"]);
        assert_eq!(lines("198.51.100.0/24"), ["198.51.100.*"]);
        assert_eq!(lines("198.51.100.7/16"), ["198.51.*.*"]);
        assert_eq!(lines("198.0.0.0/8"), ["198.*.*.*"]);
        assert_eq!(lines("0.0.0.0/0"), ["*.*.*.*"]);
        assert_eq!(lines("198.51.100.6/31"), ["198.51.100.6", "198.51.100.7"]);

        let twenty = lines("198.51.96.0/20");
        assert_eq!((twenty.len(), twenty[0].as_str(), twenty[15].as_str()), (16, "198.51.96.*", "198.51.111.*"));
        let half = lines("198.51.100.128/25");
        assert_eq!((half.len(), half[0].as_str(), half[127].as_str()), (128, "198.51.100.128", "198.51.100.255"));
        let top = lines("255.255.255.255/1");
        assert_eq!((top.len(), top[0].as_str(), top[127].as_str()), (128, "128.*.*.*", "255.*.*.*"));
    }

    #[test]
    fn bans_in_both_directions() {
        let networks = ["198.51.100.0/25", "198.51.100.128/25", "198.51.100.9/32", "192.0.2.1/32"];
        let list = emit_bans(&networks.map(|text| text.parse().unwrap()));
        assert_eq!(list, "192.0.2.1\n198.51.100.*\n");
        let parsed: Vec<_> = parse_bans(list.as_bytes()).map(|pattern| pattern.unwrap().to_string()).collect();
        assert_eq!(parsed, ["192.0.2.1", "198.51.100.*"]);
        assert_eq!(emit_bans(&[]), "");
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for bad in ["1.2.3", "1.2.3.4.5", "1.2.3.", "1.2.3.256", "1.2.3.04", "1.2.3.+4", "1.2.3.**", "a", "1.2.3.4/32"]
        {
            let parsed: Vec<_> = parse_bans(bad.as_bytes()).collect();
            assert_eq!(parsed, [Err(BadLine { line: 1, fault: Fault::NotAPattern })], "{bad}");
        }
    }

    proptest! {
        #[test]
        fn patterns_ban_exactly_their_network(bits: u32, prefix in 0u8..=32, others: [u32; 8]) {
            let network = Ipv4Net::new(bits.into(), prefix).unwrap();
            let patterns: Vec<_> = patterns(network).collect();
            prop_assert_eq!(patterns.len(), 1 << ((32 - prefix) % 8));
            let (first, last) = (network.network().to_bits(), network.broadcast().to_bits());
            let near = others.map(|other| bits ^ (other >> (prefix % 32)));
            let edges = [bits, first, last, first.wrapping_sub(1), last.wrapping_add(1)];
            for ip in edges.into_iter().chain(others).chain(near).map(Ipv4Addr::from) {
                let matching = patterns.iter().filter(|pattern| pattern.matches(ip)).count();
                prop_assert_eq!(matching, usize::from(network.contains(&ip)), "{} in {}", ip, network);
            }
        }

        #[test]
        fn patterns_round_trip(octets: [Option<u8>; 4]) {
            let text = Pattern(octets).to_string();
            prop_assert_eq!(parse_bans(text.as_bytes()).collect::<Vec<_>>(), [Ok(Pattern(octets))]);
        }

        #[test]
        fn servers_round_trip(servers in proptest::collection::vec((1u32..0xe000_0000, 1u16..), 0..20)) {
            let addresses: Vec<_> = servers.iter()
                .map(|&(ip, port)| Address::new(Ipv4Addr::from(ip).into(), port).unwrap()).collect();
            let list = emit_servers(addresses.iter().copied());
            let parsed: Result<Vec<_>, _> = parse_servers(list.as_bytes()).collect();
            prop_assert_eq!(parsed, Ok(addresses));
        }
    }
}

//! The PROXY protocol, versions 1 and 2: the header with which a TCP proxy names its client, before anything else on a
//! connection. <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The longest header that is accepted. Only additions to version 2 (certificates, identifiers) make a header long.
pub const HEADER_BYTES_MAX: usize = 4096;
/// The longest header of version 1, with its line end.
const V1_BYTES_MAX: usize = 107;
const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Before the addresses of version 2: its start, version and command, address family, length.
const V2_BYTES: usize = 16;

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// None if the proxy does not name a client: it checks whether we are alive, or does not know the client's address.
    pub client: Option<SocketAddr>,
    /// The length of the header; what follows it belongs to the client.
    pub size: usize,
}

/// These bytes are not the beginning of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Reads the header that `bytes` begin with; None if more bytes are needed.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Invalid> {
    let begins = |start: &[u8]| bytes.iter().zip(start).all(|(byte, expected)| byte == expected);
    if begins(V1_START) {
        parse_v1(bytes)
    } else if begins(V2_START) {
        parse_v2(bytes)
    } else {
        Err(Invalid)
    }
}

/// `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443` and a line end, or `PROXY UNKNOWN` and anything.
fn parse_v1(bytes: &[u8]) -> Result<Option<Header>, Invalid> {
    let longest = bytes.get(..V1_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = longest.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_BYTES_MAX { Ok(None) } else { Err(Invalid) };
    };
    let line = longest.get(..end).and_then(|line| str::from_utf8(line).ok()).ok_or(Invalid)?;
    let mut words = line.split(' ').skip(1);
    let client = match words.next() {
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(v1_client::<Ipv4Addr>(words)?),
        Some("TCP6") => Some(v1_client::<Ipv6Addr>(words)?),
        _ => return Err(Invalid),
    };
    Ok(Some(Header { client, size: end + 2 }))
}

fn v1_client<'a, Ip: FromStr>(mut words: impl Iterator<Item = &'a str>) -> Result<SocketAddr, Invalid>
where
    SocketAddr: From<(Ip, u16)>,
{
    let mut ip = || words.next()?.parse::<Ip>().ok();
    let (source, _destination) = (ip().ok_or(Invalid)?, ip().ok_or(Invalid)?);
    // A number's own parser would accept a sign.
    let is_plain = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let mut port = || words.next().filter(is_plain)?.parse::<u16>().ok();
    let (port, _destination) = (port().ok_or(Invalid)?, port().ok_or(Invalid)?);
    if words.next().is_some() { Err(Invalid) } else { Ok((source, port).into()) }
}

fn parse_v2(bytes: &[u8]) -> Result<Option<Header>, Invalid> {
    let Some((head, rest)) = bytes.split_first_chunk::<V2_BYTES>() else { return Ok(None) };
    let [.., command, family, high, low] = *head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let size = V2_BYTES + length;
    if size > HEADER_BYTES_MAX {
        return Err(Invalid);
    }
    let Some(addresses) = rest.get(..length) else { return Ok(None) };
    let client = match (command, family) {
        // LOCAL: the proxy's own connection.
        (0x20, _) => None,
        // Unknown, or a Unix socket on the proxy's machine.
        (0x21, 0x00 | 0x31) => None,
        (0x21, 0x11) => Some(v2_client::<Ipv4Addr, 4>(addresses)?),
        (0x21, 0x21) => Some(v2_client::<Ipv6Addr, 16>(addresses)?),
        _ => return Err(Invalid),
    };
    Ok(Some(Header { client, size }))
}

/// The source's address, the destination's address, the source's port, the destination's port. What follows is skipped.
fn v2_client<Ip: From<[u8; N]>, const N: usize>(bytes: &[u8]) -> Result<SocketAddr, Invalid>
where
    SocketAddr: From<(Ip, u16)>,
{
    let (source, rest) = bytes.split_first_chunk::<N>().ok_or(Invalid)?;
    let (_destination, rest) = rest.split_first_chunk::<N>().ok_or(Invalid)?;
    let [high, low, _, _] = *rest.first_chunk::<4>().ok_or(Invalid)?;
    Ok((Ip::from(*source), u16::from_be_bytes([high, low])).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v1(line: &str) -> Result<Option<Header>, Invalid> {
        parse(format!("{line}\r\nGET / HTTP/1.1\r\n").as_bytes())
    }

    /// A header of version 2, made here by hand.
    fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = (addresses.len() as u16).to_be_bytes();
        [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, addresses].concat()
    }

    fn addresses(client: SocketAddr) -> (u8, Vec<u8>) {
        let port = client.port().to_be_bytes();
        match client {
            SocketAddr::V4(client) => {
                (0x11, [&client.ip().octets()[..], &[198, 51, 100, 1], &port, &[1, 187]].concat())
            }
            SocketAddr::V6(client) => (0x21, [&client.ip().octets()[..], &[9; 16], &port, &[1, 187]].concat()),
        }
    }

    fn client(text: &str, size: usize) -> Result<Option<Header>, Invalid> {
        Ok(Some(Header { client: Some(text.parse().unwrap()), size }))
    }

    #[test]
    fn lines_of_version_1() {
        let line = "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443";
        assert_eq!(v1(line), client("192.0.2.1:56324", line.len() + 2));
        let line = "PROXY TCP6 2001:db8::1 2001:db8::2 1 65535";
        assert_eq!(v1(line), client("[2001:db8::1]:1", line.len() + 2));
        for line in ["PROXY UNKNOWN", "PROXY UNKNOWN ffff::1 ffff::2 65535 65535"] {
            assert_eq!(v1(line), Ok(Some(Header { client: None, size: line.len() + 2 })));
        }
        for line in [
            "PROXY",
            "PROXY ",
            "PROXY TCP4",
            "PROXY TCP5 192.0.2.1 198.51.100.1 1 2",
            "PROXY TCP4 2001:db8::1 2001:db8::2 1 2",
            "PROXY TCP4 192.0.2.1 2001:db8::2 1 2",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1 2 3",
            "PROXY TCP4 192.0.2.1 198.51.100.1 65536 2",
            "PROXY TCP4 192.0.2.1 198.51.100.1 +1 2",
            "PROXY TCP4 192.0.2.1 198.51.100.1  1 2",
            "PROXY TCP4 192.0.2.256 198.51.100.1 1 2",
            "proxy TCP4 192.0.2.1 198.51.100.1 1 2",
            "PROXY unknown",
            "GET / HTTP/1.1",
            "",
        ] {
            assert_eq!(v1(line), Err(Invalid), "{line}");
        }
        assert_eq!(parse(b"PROXY UNKNOWN \xff\r\n"), Err(Invalid), "not text");
    }

    #[test]
    fn a_line_of_version_1_has_at_most_107_bytes() {
        let line = |size: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(size - 16)).into_bytes();
        assert_eq!(parse(&line(107)), Ok(Some(Header { client: None, size: 107 })));
        assert_eq!(parse(&line(108)), Err(Invalid));
        assert_eq!(parse(&line(107)[..106]), Ok(None));
    }

    #[test]
    fn headers_of_version_2() {
        let (family, mut bytes) = addresses("192.0.2.1:56324".parse().unwrap());
        assert_eq!(parse(&v2(0x21, family, &bytes)), client("192.0.2.1:56324", 28));
        assert_eq!(parse(&v2(0x20, family, &bytes)), Ok(Some(Header { client: None, size: 28 })), "LOCAL");
        bytes.extend([0x04; 100]);
        assert_eq!(parse(&v2(0x21, family, &bytes)), client("192.0.2.1:56324", 128), "additions are skipped");
        assert_eq!(parse(&v2(0x21, family, &bytes[..11])), Err(Invalid), "too short for its addresses");
        let (family, bytes) = addresses("[2001:db8::1]:7".parse().unwrap());
        assert_eq!(parse(&v2(0x21, family, &bytes)), client("[2001:db8::1]:7", 52));
        assert_eq!(parse(&v2(0x21, family, &bytes[..35])), Err(Invalid));
        for (command, family) in [(0x20, 0x00), (0x20, 0xff), (0x21, 0x00), (0x21, 0x31)] {
            assert_eq!(parse(&v2(command, family, &[])), Ok(Some(Header { client: None, size: 16 })));
        }
        // Another version, an unknown command, datagrams, an unknown family.
        for (command, family) in [(0x11, 0x11), (0x22, 0x11), (0x21, 0x12), (0x21, 0x22), (0x21, 0x41), (0x21, 0x10)] {
            assert_eq!(parse(&v2(command, family, &[0; 216])), Err(Invalid), "{command:x} {family:x}");
        }
    }

    #[test]
    fn a_header_of_version_2_is_bounded() {
        let longest = v2(0x20, 0, &[0; HEADER_BYTES_MAX - 16]);
        assert_eq!(parse(&longest), Ok(Some(Header { client: None, size: HEADER_BYTES_MAX })));
        assert_eq!(parse(&v2(0x20, 0, &[0; HEADER_BYTES_MAX - 15])[..16]), Err(Invalid), "before the rest arrives");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic_and_never_beyond_their_end(
            start in prop::sample::select(vec![&b""[..], V1_START, V2_START, b"PROXY TCP4 ", b"PROXY TCP6 ::1 "]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [start, &rest].concat();
            if let Ok(Some(header)) = parse(&bytes) {
                prop_assert!(header.size <= bytes.len() && header.size <= HEADER_BYTES_MAX);
            }
        }

        #[test]
        fn what_a_proxy_writes_is_read_and_every_part_of_it_is_incomplete(
            ip in any::<std::net::IpAddr>(),
            port in any::<u16>(),
            additions in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let client = SocketAddr::new(ip, port);
            let family = if ip.is_ipv4() { "TCP4" } else { "TCP6" };
            let line = format!("PROXY {family} {ip} {ip} {port} 80\r\n").into_bytes();
            let (family, addresses) = addresses(client);
            for whole in [line, v2(0x21, family, &[addresses, additions].concat())] {
                let expected = Header { client: Some(client), size: whole.len() };
                prop_assert_eq!(parse(&whole), Ok(Some(expected)));
                prop_assert_eq!(parse(&[&whole[..], b"GET /"].concat()), Ok(Some(expected)));
                for size in 0..whole.len() {
                    prop_assert_eq!(parse(&whole[..size]), Ok(None));
                }
            }
        }
    }
}

//! How proxies name their clients: the PROXY protocol, and the headers of reverse proxies. A header has one meaning, however
//! it is split, and is bounded. A peer that is not trusted names nobody but itself.

use std::net::SocketAddr;
use std::sync::LazyLock;

use super::tape::Tape;
use rallypoint::net::client::{Header, Proxies, canonical};
use rallypoint::net::proxy::{self, HEADER_BYTES_MAX};
use rallypoint::prefix::Networks;

static TRUSTED: LazyLock<Networks> = LazyLock::new(|| {
    let networks = ["10.0.0.0/8", "2001:db8:aaaa::/48"].map(|text| text.parse().expect("a network"));
    Networks::new(&networks)
});

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    if tape.flag() {
        protocol(tape.byte(), tape.rest());
    } else {
        header(&mut tape);
    }
}

fn protocol(cut: u8, bytes: &[u8]) {
    let whole = proxy::parse(bytes);
    if let Ok(Some(header)) = whole {
        assert!(header.size <= bytes.len() && header.size <= HEADER_BYTES_MAX);
        assert_eq!(proxy::parse(&bytes[..header.size]), whole, "what follows a header is not part of it");
        // A part of it is either too short, or read in the same way.
        let part = proxy::parse(&bytes[..usize::from(cut).min(bytes.len())]);
        assert!(part == Ok(None) || part == whole, "{part:?} before {whole:?}");
    }
    assert!(whole != Ok(None) || bytes.len() < HEADER_BYTES_MAX, "a header without an end");
}

fn header(tape: &mut Tape<'_>) {
    let header = if tape.flag() { Header::Forwarded } else { Header::XForwardedFor };
    let proxies = Proxies { networks: TRUSTED.clone(), header, protocol: Networks::default() };
    let peers: [SocketAddr; 3] = [
        ([10, 0, 0, 1], 40_000).into(),
        ([0, 0, 0, 0, 0, 0xffff, 0x0a00, 1], 40_000).into(),
        ([203, 0, 113, 5], 40_000).into(),
    ];
    let peer = *tape.choice(&peers);
    let lines: Vec<&[u8]> = tape.rest().split(|&byte| byte == b'\n').collect();
    let client = proxies.client(peer, lines.iter().copied());
    assert_eq!(client, canonical(client));
    if !TRUSTED.contains(peer.ip()) {
        assert_eq!(client, peer, "a stranger names another address");
    }
    // Whatever a client wrote before the last proxy's word changes nothing.
    let forged = match header {
        Header::XForwardedFor => &b"198.51.100.7, "[..],
        Header::Forwarded => b"for=198.51.100.7, ",
    };
    let named: &[u8] = match header {
        Header::XForwardedFor => b"203.0.113.9",
        Header::Forwarded => b"for=203.0.113.9",
    };
    let first = lines.first().copied().unwrap_or_default();
    for before in [forged, first] {
        let line = [before, b",", named].concat();
        let client = proxies.client(peer, [&line[..]].into_iter());
        let expected = if TRUSTED.contains(peer.ip()) { ([203, 0, 113, 9], 0).into() } else { peer };
        assert_eq!(client, expected, "{}", line.escape_ascii());
    }
}

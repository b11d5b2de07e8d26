//! A master's answer to `getservers` and `getserversExt`: binary lists of addresses in packets.
//!
//! A packet is the header, then entries in network byte order: `\` + 4 + 2 bytes (IPv4) or `/` + 16 + 2 bytes (IPv6, only in
//! extended answers). The last packet ends with `\EOT\0\0\0`. quakestat and ioquake3's client take an address only when
//! another `\` or `/` follows it, so every other packet ends with a single `\`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::wire::HEADER;
use crate::bytes::Reader;
use crate::model::Address;
use crate::protocols::fetch::Packet;

/// Fits every path without fragmentation; dpmaster's limit, too.
pub const PACKET_BYTES_MAX: usize = 1_400;
const PLAIN: &[u8] = b"getserversResponse";
const EXTENDED: &[u8] = b"getserversExtResponse";
/// The end of the last packet.
pub const END: &[u8] = b"\\EOT\0\0\0";

/// The answer with these servers, in their order. IPv6 addresses are left out of a plain answer. There is always a last
/// packet with an end mark, and never more than `packets_max`: the rest of the servers is left out.
pub fn encode(extended: bool, servers: impl IntoIterator<Item = Address>, packets_max: usize) -> Vec<Vec<u8>> {
    let begin = || [&HEADER[..], if extended { EXTENDED } else { PLAIN }].concat();
    let mut packets = Vec::new();
    let mut packet = begin();
    let mut entry = Vec::new();
    for server in servers {
        entry.clear();
        match server.ip() {
            IpAddr::V4(ip) => {
                entry.push(b'\\');
                entry.extend(ip.octets());
            }
            IpAddr::V6(ip) if extended => {
                entry.push(b'/');
                entry.extend(ip.octets());
            }
            IpAddr::V6(_) => continue,
        }
        entry.extend(server.port().to_be_bytes());
        // Any packet may turn out to be the last, so the end mark must fit.
        if packet.len() + entry.len() + END.len() > PACKET_BYTES_MAX {
            if packets.len() + 1 >= packets_max {
                break;
            }
            packet.push(b'\\');
            packets.push(std::mem::replace(&mut packet, begin()));
        }
        packet.extend(&entry);
    }
    packet.extend(END);
    packets.push(packet);
    packets
}

/// Reads a packet; None if it is not one. Entries with port 0 are left out, and so is what is cut off at the end.
pub fn decode(bytes: &[u8]) -> Option<Packet> {
    let text = bytes.strip_prefix(&HEADER)?;
    let entries = text.strip_prefix(PLAIN).or_else(|| text.strip_prefix(EXTENDED))?;
    let mut packet = Packet { servers: Vec::new(), end: false };
    let mut fields = Reader::new(entries);
    while let Some(kind) = fields.u8() {
        let rest = fields.rest();
        // An address that begins like this would have port 0. Some masters leave out the zeros.
        if kind == b'\\' && rest.starts_with(b"EOT") && rest.iter().skip(3).take(3).all(|&byte| byte == 0) {
            packet.end = true;
            break;
        }
        let ip = match kind {
            b'\\' => fields.array().map(|octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets))),
            b'/' => fields.array().map(|octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets))),
            _ => None,
        };
        let (Some(ip), Some(port)) = (ip, fields.array().map(u16::from_be_bytes)) else { break };
        packet.servers.extend(Address::new(ip, port));
    }
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use proptest::prelude::*;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn writes_what_dpmaster_wrote() {
        let empty = hex("ffffffff67657473657276657273526573706f6e73655c454f54000000");
        assert_eq!(encode(false, [], 9), std::slice::from_ref(&empty));
        assert_eq!(decode(&empty), Some(Packet { servers: vec![], end: true }));
        let one = hex("ffffffff67657473657276657273526573706f6e73655c7f0000016d385c454f54000000");
        assert_eq!(encode(false, addresses(&["127.0.0.1:27960", "[::1]:1"]), 9), [one]);
        let both = hex(
            "ffffffff67657473657276657273457874526573706f6e73655c7f0000016d382f000000000000000000000000000000016d395c454f54000000",
        );
        let servers = addresses(&["127.0.0.1:27960", "[::1]:27961"]);
        assert_eq!(encode(true, servers.clone(), 9), std::slice::from_ref(&both));
        assert_eq!(decode(&both), Some(Packet { servers, end: true }));
    }

    #[test]
    fn something_follows_the_last_address_of_every_packet() {
        let safe = hex("ffffffff67657473657276657273526573706f6e73655ccb0071056d385ccb0071066d385c");
        let servers = addresses(&["203.0.113.5:27960", "203.0.113.6:27960"]);
        assert_eq!(decode(&safe), Some(Packet { servers, end: false }));

        let servers: Vec<_> = (1..=480).map(|port| Address::new([203, 0, 113, 5].into(), port).unwrap()).collect();
        let packets = encode(false, servers.iter().copied(), 9);
        assert_eq!(packets.len(), 3);
        for packet in &packets {
            assert!(packet.len() <= PACKET_BYTES_MAX);
            assert!(packet.ends_with(b"\\") || packet.ends_with(END));
        }
        let read: Vec<_> = packets.iter().flat_map(|packet| decode(packet).unwrap().servers).collect();
        assert_eq!(read, servers);
    }

    #[test]
    fn a_packet_may_be_exactly_full() {
        let servers: Vec<_> = (1..=72).map(|port| format!("[2001:db8::1]:{port}").parse().unwrap()).collect();
        let lengths: Vec<_> = encode(true, servers, 9).iter().map(Vec::len).collect();
        assert_eq!(lengths, [PACKET_BYTES_MAX]);
    }

    #[test]
    fn a_cut_answer_keeps_the_first_servers_and_its_end_mark() {
        let servers: Vec<_> = (1..=480).map(|port| Address::new([203, 0, 113, 5].into(), port).unwrap()).collect();
        let packets = encode(false, servers.iter().copied(), 1);
        let packet = decode(&packets[0]).unwrap();
        assert!(packets.len() == 1 && packet.end);
        assert_eq!(packet.servers, servers[..packet.servers.len()]);
        assert!(packet.servers.len() > 190);
    }

    #[test]
    fn lenient_where_masters_differ() {
        let without_zeros = [&HEADER[..], PLAIN, b"\\EOT"].concat();
        assert_eq!(decode(&without_zeros), Some(Packet { servers: vec![], end: true }));
        let cut = [&HEADER[..], PLAIN, b"\\\x01\x02\x03\x04\0\x01\\\x01\x02"].concat();
        assert_eq!(decode(&cut), Some(Packet { servers: addresses(&["1.2.3.4:1"]), end: false }));
        assert_eq!(decode(b"\xff\xff\xff\xffinfoResponse\n"), None);
    }

    proptest! {
        #[test]
        fn every_server_of_a_list_arrives(v4 in proptest::collection::vec((any::<u32>(), 1u16..), 0..500),
                v6 in proptest::collection::vec((any::<u128>(), 1u16..), 0..200), extended: bool) {
            let v4 = v4.into_iter().filter_map(|(ip, port)| Address::new(IpAddr::V4(ip.into()), port));
            let v6 = v6.into_iter().filter_map(|(ip, port)| Address::new(IpAddr::V6(ip.into()), port));
            let servers: Vec<_> = v4.chain(v6).collect();
            let packets = encode(extended, servers.iter().copied(), usize::MAX);
            let decoded: Vec<_> = packets.iter().map(|packet| decode(packet).unwrap()).collect();
            let ends: Vec<_> = decoded.iter().map(|packet| packet.end).collect();
            prop_assert_eq!(ends.iter().filter(|end| **end).count(), 1);
            prop_assert_eq!(ends.last(), Some(&true));
            prop_assert!(packets.iter().all(|packet| packet.len() <= PACKET_BYTES_MAX));
            let wanted: Vec<_> = servers.iter().filter(|server| extended || server.ipv4().is_some()).copied().collect();
            let read: Vec<_> = decoded.into_iter().flat_map(|packet| packet.servers).collect();
            prop_assert_eq!(read, wanted);
        }

        #[test]
        fn anything_can_be_read(bytes: Vec<u8>) {
            decode(&[&HEADER[..], EXTENDED, &bytes].concat());
        }
    }
}

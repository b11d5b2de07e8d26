//! A master's list of addresses, in packets.
//!
//! A packet is `FF FF FF FF f\n`, the client's key if it sent one (`7F` + u32 LE + `08`), entries (IP address and port in
//! network byte order), and an entry of zeros. So the zeros end a packet and not the list: nothing says how many packets
//! there are. Addresses are of one family, that of the client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use super::wire::HEADER;
use crate::bytes::Reader;
use crate::model::Address;
use crate::protocols::Echo;
use crate::protocols::fetch::Packet;

const LIST: &[u8] = b"f\n";
/// Where the key stands in a packet.
const KEY_AT: usize = HEADER.len() + LIST.len();
const KEY_BYTES: usize = 6;
const KEY_BEGIN: u8 = 0x7f;
const KEY_END: u8 = 0x08;

const IPV4_BYTES: usize = 6;
const IPV6_BYTES: usize = 18;
/// What clients have room for.
const IPV4_PACKET_MAX: usize = 512;
const IPV6_PACKET_MAX: usize = 1_280;

/// Entries in a packet, with a key: 82, or 69 of IPv6.
fn entries_max(ipv6: bool) -> usize {
    let (entry, packet) = if ipv6 { (IPV6_BYTES, IPV6_PACKET_MAX) } else { (IPV4_BYTES, IPV4_PACKET_MAX) };
    (packet - KEY_AT - KEY_BYTES) / entry - 1
}

/// The packets with the servers of one family, in their order, without a key and with room for one. There is at least one
/// packet and never more than `packets_max`: the rest of the servers is left out.
pub fn encode(ipv6: bool, servers: impl IntoIterator<Item = Address>, packets_max: usize) -> Vec<Vec<u8>> {
    let begin = || [&HEADER[..], LIST].concat();
    let (mut packets, mut packet, mut entries) = (Vec::new(), begin(), 0);
    let end = |mut packet: Vec<u8>| {
        packet.resize(packet.len() + if ipv6 { IPV6_BYTES } else { IPV4_BYTES }, 0);
        packet
    };
    for server in servers.into_iter().filter(|server| server.ipv4().is_none() == ipv6) {
        if entries == entries_max(ipv6) {
            if packets.len() + 1 >= packets_max {
                break;
            }
            packets.push(end(std::mem::replace(&mut packet, begin())));
            entries = 0;
        }
        match server.ip() {
            IpAddr::V4(ip) => packet.extend(ip.octets()),
            IpAddr::V6(ip) => packet.extend(ip.octets()),
        }
        packet.extend(server.port().to_be_bytes());
        entries += 1;
    }
    packets.push(end(packet));
    packets
}

/// The client's key, where it belongs in each packet.
pub fn echo(key: u32) -> Echo {
    let mut bytes = ArrayVec::new();
    bytes.push(KEY_BEGIN);
    bytes.extend(key.to_le_bytes());
    bytes.push(KEY_END);
    Echo { at: KEY_AT, bytes }
}

/// Reads a packet for a client that asked with this key; None if it is not one. Entries with port 0 are left out.
///
/// A key looks like an address that begins with 127, so it is recognized only by its value. A packet with room for another
/// entry is taken for the last one.
pub fn decode(bytes: &[u8], key: u32) -> Option<Packet> {
    let entries = bytes.strip_prefix(&HEADER)?.strip_prefix(LIST)?;
    let entries = entries.strip_prefix(&*echo(key).bytes).unwrap_or(entries);
    let ipv6 = entries.len().is_multiple_of(IPV6_BYTES) && entries.ends_with(&[0; IPV6_BYTES]);
    let mut packet = Packet { servers: Vec::new(), end: false };
    let mut fields = Reader::new(entries);
    let mut count = 0;
    loop {
        let ip = match ipv6 {
            true => fields.array().map(|octets: [u8; 16]| IpAddr::V6(Ipv6Addr::from(octets))),
            false => fields.array().map(|octets: [u8; 4]| IpAddr::V4(Ipv4Addr::from(octets))),
        };
        let (Some(ip), Some(port)) = (ip, fields.array().map(u16::from_be_bytes)) else { break };
        if ip.is_unspecified() && port == 0 {
            packet.end = count < entries_max(ipv6);
            break;
        }
        count += 1;
        packet.servers.extend(Address::new(ip, port));
    }
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use proptest::prelude::*;

    const KEY: u32 = 0xdead_beef;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// What a client gets.
    fn with_key(packet: &[u8], key: u32) -> Vec<u8> {
        let Echo { at, bytes } = echo(key);
        [&packet[..at], &bytes, &packet[at..]].concat()
    }

    #[test]
    fn writes_what_xash3d_master_wrote() {
        let one = addresses(&["127.0.0.1:27015"]);
        let packets = encode(false, one.clone(), 9);
        assert_eq!(packets, [hex("ffffffff660a7f0000016987000000000000")]);
        let keyed = with_key(&packets[0], KEY);
        assert_eq!(keyed, hex("ffffffff660a7fefbeadde087f0000016987000000000000"));
        assert_eq!(decode(&keyed, KEY), Some(Packet { servers: one.clone(), end: true }));
        assert_eq!(decode(&packets[0], KEY), Some(Packet { servers: one, end: true }));
        let five =
            addresses(&["127.0.0.1:54404", "127.0.0.1:27015", "127.0.0.1:40467", "127.0.0.1:36433", "127.0.0.1:43503"]);
        let packets = encode(false, five.clone(), 9);
        assert_eq!(
            with_key(&packets[0], KEY),
            hex("ffffffff660a7fefbeadde087f000001d4847f00000169877f0000019e137f0000018e517f000001a9ef000000000000")
        );
    }

    #[test]
    fn a_long_list_takes_three_packets_as_on_xash3d_master() {
        let servers: Vec<_> = (1..=215).map(|port| Address::new([203, 0, 113, 5].into(), port).unwrap()).collect();
        let packets = encode(false, servers.clone(), 9);
        let keyed: Vec<_> = packets.iter().map(|packet| with_key(packet, KEY)).collect();
        assert_eq!(keyed.iter().map(Vec::len).collect::<Vec<_>>(), [510, 510, 324]);
        let read: Vec<_> = keyed.iter().map(|packet| decode(packet, KEY).unwrap()).collect();
        assert_eq!(read.iter().map(|packet| packet.end).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(read.into_iter().flat_map(|packet| packet.servers).collect::<Vec<_>>(), servers);
        let cut = encode(false, servers.clone(), 2);
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [504, 504]);
    }

    #[test]
    fn an_empty_list_is_said_aloud() {
        assert_eq!(encode(false, [], 9), [hex("ffffffff660a000000000000")]);
        assert_eq!(encode(true, [], 9), [hex("ffffffff660a000000000000000000000000000000000000")]);
        for ipv6 in [false, true] {
            assert_eq!(decode(&encode(ipv6, [], 9)[0], KEY), Some(Packet { servers: vec![], end: true }));
        }
    }

    #[test]
    fn an_entry_without_a_port_is_not_the_end() {
        let list = hex("ffffffff660a cb007105 0000 00000000 0001 cb007106 6987 000000000000");
        let packet = decode(&list, KEY).unwrap();
        assert_eq!(packet.servers.last(), addresses(&["203.0.113.6:27015"]).last());
        assert!(packet.end && !packet.servers.iter().any(|server| server.port() == 0));
    }

    #[test]
    fn nothing_else_is_a_list() {
        for bytes in [&b""[..], b"\xff\xff\xff\xff", b"\xff\xff\xff\xffs\n", b"f\n"] {
            assert_eq!(decode(bytes, KEY), None);
        }
    }

    proptest! {
        #[test]
        fn every_server_of_a_list_arrives(v4 in proptest::collection::vec((1u32.., 1u16..), 0..300),
                v6 in proptest::collection::vec((1u128.., 1u16..), 0..200), ipv6: bool, key: Option<u32>) {
            let v4 = v4.into_iter().filter_map(|(ip, port)| Address::new(IpAddr::V4(ip.into()), port));
            let v6 = v6.into_iter().filter_map(|(ip, port)| Address::new(IpAddr::V6(ip.into()), port));
            let servers: Vec<_> = v4.chain(v6).collect();
            let packets = encode(ipv6, servers.iter().copied(), usize::MAX);
            let sent = packets.iter().map(|packet| key.map_or(packet.clone(), |key| with_key(packet, key)));
            let sent: Vec<_> = sent.collect();
            let most = if ipv6 { IPV6_PACKET_MAX } else { IPV4_PACKET_MAX };
            prop_assert!(sent.iter().all(|packet| packet.len() <= most));
            let wanted: Vec<_> = servers.iter().filter(|server| server.ipv4().is_none() == ipv6).copied().collect();
            if let Some(key) = key {
                let read: Vec<_> = sent.iter().flat_map(|packet| decode(packet, key).unwrap().servers).collect();
                prop_assert_eq!(read, wanted);
            }
        }

        #[test]
        fn anything_can_be_read(bytes: Vec<u8>) {
            decode(&[&HEADER[..], LIST, &bytes].concat(), KEY);
        }
    }
}

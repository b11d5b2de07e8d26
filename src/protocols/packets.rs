//! The format of rendered lists that are sent as datagrams: the packets one after another, each prefixed with its length as a
//! big-endian u16. A list of addresses, for [introductions](super::Introduction), has the same format: an IP address and a port
//! in place of each packet.

use std::net::IpAddr;

use crate::model::Address;

/// Appends a packet to a rendered list. A packet that is longer than any datagram, 65,535 bytes, is left out.
pub fn push(list: &mut Vec<u8>, packet: &[u8]) {
    let Ok(length) = u16::try_from(packet.len()) else { return };
    list.extend(length.to_be_bytes());
    list.extend(packet);
}

/// The packets of a rendered list, in order.
pub fn split(list: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut rest = list;
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first_chunk()?;
        let (packet, behind) = behind.split_at_checked(u16::from_be_bytes(*length).into())?;
        rest = behind;
        Some(packet)
    })
}

/// Appends an address to a rendered list of addresses.
pub fn push_address(list: &mut Vec<u8>, address: Address) {
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => push(list, &[&ip.octets()[..], &port].concat()),
        IpAddr::V6(ip) => push(list, &[&ip.octets()[..], &port].concat()),
    }
}

/// The addresses of a rendered list of addresses.
pub fn addresses(list: &[u8]) -> impl Iterator<Item = Address> + Clone {
    split(list).filter_map(|entry| {
        let (ip, port) = entry.split_last_chunk()?;
        let ipv4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
        let ip = ipv4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from)).ok()?;
        Address::new(ip, u16::from_be_bytes(*port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_packet_follows_its_length() {
        let mut list = Vec::new();
        push(&mut list, b"ab");
        push(&mut list, b"");
        push(&mut list, &[7; 258]);
        assert_eq!(list.get(..8), Some(&b"\0\x02ab\0\0\x01\x02"[..]));
        push(&mut list, &[0; 65_536]);
        assert_eq!(split(&list).collect::<Vec<_>>(), [&b"ab"[..], b"", &[7; 258]]);
        assert_eq!(split(&[]).count(), 0);
    }

    #[test]
    fn addresses_of_both_families() {
        let all: Vec<Address> =
            ["203.0.113.5:27015", "[2001:db8::1]:1"].iter().map(|text| text.parse().unwrap()).collect();
        let mut list = Vec::new();
        all.iter().for_each(|address| push_address(&mut list, *address));
        assert_eq!(addresses(&list).collect::<Vec<_>>(), all);
        push(&mut list, b"nonsense");
        push(&mut list, &[0; 6]);
        assert_eq!(addresses(&list).count(), 2);
    }

    #[test]
    fn a_truncated_packet_is_ignored() {
        let mut list = Vec::new();
        push(&mut list, b"abc");
        for length in 0..list.len() {
            assert_eq!(split(list.get(..length).unwrap()).count(), 0);
        }
    }

    proptest! {
        #[test]
        fn push_and_split_round_trip(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let mut list = Vec::new();
            packets.iter().for_each(|packet| push(&mut list, packet));
            prop_assert_eq!(split(&list).collect::<Vec<_>>(), packets);
        }

        #[test]
        fn anything_can_be_split(bytes: Vec<u8>) {
            prop_assert!(split(&bytes).map(<[u8]>::len).sum::<usize>() <= bytes.len());
        }
    }
}

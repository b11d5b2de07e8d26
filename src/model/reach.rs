//! Where an address leads: to the internet, or to this machine and the networks around it. This is the only list of special
//! networks: the mirror, the doctor's lookups and the check for forgotten proxies ask the same one.
//!
//! <https://www.iana.org/assignments/iana-ipv4-special-registry>, <https://www.iana.org/assignments/iana-ipv6-special-registry>

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A host on the internet.
    Internet,
    /// This machine, or a network that only its neighbours reach.
    Near,
    /// No game server has such an address: it is reserved or for documentation, or only a translator knows where it leads.
    Nowhere,
}

use Reach::{Internet, Near, Nowhere};

/// The first network that contains an address counts.
const IPV4: &[(Ipv4Addr, u32, Reach)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, Nowhere),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Near),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Near), // behind a provider's address translation
    (Ipv4Addr::new(127, 0, 0, 0), 8, Near),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Near), // link-local
    (Ipv4Addr::new(172, 16, 0, 0), 12, Near),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Nowhere),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Nowhere),   // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24, Nowhere), // relays of 6to4
    (Ipv4Addr::new(192, 168, 0, 0), 16, Near),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Near), // benchmarks, in networks of one's own
    (Ipv4Addr::new(198, 51, 100, 0), 24, Nowhere), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24, Nowhere), // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 3, Nowhere), // multicast, reserved, broadcast
];

/// The first network that contains an address counts; outside all of them there is nothing.
const IPV6: &[(Ipv6Addr, u32, Reach)] = &[
    (Ipv6Addr::LOCALHOST, 128, Near),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, Nowhere), // NAT64: any IPv4 address, also a near one
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, Nowhere), // NAT64 of a network of one's own
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, Nowhere),    // Teredo (2001::/32), benchmarks, identifiers
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, Nowhere), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, Nowhere),    // 6to4: any IPv4 address, also a near one
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, Nowhere),    // documentation
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, Internet),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Near), // unique local
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Near), // link-local
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Near), // site-local, of old
];

impl Reach {
    pub fn of(ip: IpAddr) -> Reach {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let is_in = |network: Ipv4Addr, bits: u32| (ip.to_bits() ^ network.to_bits()) >> (32 - bits) == 0;
                IPV4.iter().find(|(network, bits, _)| is_in(*network, *bits)).map_or(Internet, |(.., reach)| *reach)
            }
            IpAddr::V6(ip) => {
                let is_in = |network: Ipv6Addr, bits: u32| (ip.to_bits() ^ network.to_bits()) >> (128 - bits) == 0;
                IPV6.iter().find(|(network, bits, _)| is_in(*network, *bits)).map_or(Nowhere, |(.., reach)| *reach)
            }
        }
    }

    /// Whether an address is of this machine, or of a network around it.
    pub fn is_near(ip: IpAddr) -> bool {
        Reach::of(ip) == Near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_special_network_ends_where_the_registry_says() {
        for (reach, addresses) in [
            (
                Internet,
                "1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 \
                 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 \
                 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 8.8.8.8 ::ffff:8.8.8.8 2000:: \
                 2001:200:: 2001:db7:ffff:: 2001:db9:: 2003:: 2606:4700::1111 3ffe:: 3fff:1000::",
            ),
            (
                Near,
                "10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 127.0.0.1 127.255.255.255 169.254.169.254 172.16.0.0 \
                 172.31.255.255 192.168.0.0 192.168.255.255 198.18.0.0 198.19.255.255 ::1 ::ffff:10.0.0.1 fc00:: fd00::1 \
                 fdff:ffff:: fe80::1 febf:: fec0::1",
            ),
            (
                Nowhere,
                "0.0.0.0 0.255.255.255 192.0.0.8 192.0.2.1 192.88.99.1 198.51.100.1 203.0.113.5 224.0.0.1 239.1.1.1 240.0.0.1 \
                 255.255.255.255 :: ::2 ::127.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::a00:1 64:ff9b::808:808 64:ff9b:1::1 \
                 64:ff9b:1:ffff:: 100::1 2001::1 2001:0:5ef5:79fb:: 2001:2::1 2001:db8::1 2002:7f00:1::1 2002:808:808::1 \
                 3fff::1 3fff:fff:: 4000:: 5f00::1 fe00::1 ff02::1",
            ),
        ] {
            for ip in addresses.split_ascii_whitespace() {
                assert_eq!(Reach::of(ip.parse().unwrap()), reach, "{ip}");
            }
        }
    }
}

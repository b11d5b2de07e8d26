//! The nested address prefixes that limits apply to, and sets of networks.
//!
//! One customer usually has an IPv6 /64, often a /56 or a /48, and sometimes an IPv4 /24. Limits therefore nest: an entry
//! of one address also counts for every wider prefix around it, and each of those has its own, larger limit.

pub mod fair;
pub mod quota;
pub mod ranking;

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;
use ipnet::IpNet;

/// Upper bound on the nested prefixes of one address.
pub const LEVELS_MAX: usize = 3;

/// Prefix lengths, narrowest first, each with the factor by which its limit exceeds the limit of the narrowest.
const IPV4_LEVELS: [(u8, u32); 2] = [(32, 1), (24, 8)];
const IPV6_LEVELS: [(u8, u32); 3] = [(64, 1), (56, 4), (48, 16)];
/// Lengths of what one owner may hold, narrowest first: the levels above, and what providers hold. The wider ones have no limit;
/// they decide who gives way first.
const IPV4_OWNERS: [u8; 4] = [32, 24, 20, 16];
const IPV6_OWNERS: [u8; 6] = [64, 56, 48, 40, 32, 29];
/// Upper bound on the owners of one address.
pub const OWNERS_MAX: usize = 6;

/// An address block that shares one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    network: IpAddr,
    bits: u8,
}

/// Hashed in one or two writes, not field by field: each connection, query and announcement looks up several.
impl Hash for Prefix {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.network {
            IpAddr::V4(ip) => state.write_u64(u64::from(ip.to_bits()) << 8 | u64::from(self.bits)),
            IpAddr::V6(ip) => {
                state.write_u128(ip.to_bits());
                state.write_u8(self.bits);
            }
        }
    }
}

impl Prefix {
    /// Before and after all others in their order.
    const FIRST: Prefix = Prefix { network: IpAddr::V4(Ipv4Addr::UNSPECIFIED), bits: 0 };
    const LAST: Prefix = Prefix { network: IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)), bits: u8::MAX };

    /// The narrowest prefix around an address: the address itself, or its IPv6 /64.
    pub fn narrowest(ip: IpAddr) -> Prefix {
        let ip = ip.to_canonical();
        Prefix::new(ip, if ip.is_ipv4() { IPV4_LEVELS[0].0 } else { IPV6_LEVELS[0].0 })
    }

    /// The widest prefix around an address that has a limit: an IPv4 /24, an IPv6 /48.
    pub fn widest(ip: IpAddr) -> Prefix {
        let ip = ip.to_canonical();
        Prefix::new(ip, if ip.is_ipv4() { IPV4_LEVELS[1].0 } else { IPV6_LEVELS[2].0 })
    }

    /// All prefixes that an address counts for, narrowest first; only the narrowest if `exempt` contains the address.
    pub fn all(ip: IpAddr, exempt: &Networks) -> ArrayVec<Prefix, LEVELS_MAX> {
        let ip = ip.to_canonical();
        let levels = if ip.is_ipv4() { &IPV4_LEVELS[..] } else { &IPV6_LEVELS[..] };
        let count = if exempt.touches(Prefix::narrowest(ip)) { 1 } else { levels.len() };
        levels.iter().take(count).map(|(bits, _)| Prefix::new(ip, *bits)).collect()
    }

    /// All networks whose owner may hold an address, widest first; only the narrowest prefix if `exempt` contains the address.
    pub fn owners(ip: IpAddr, exempt: &Networks) -> ArrayVec<Prefix, OWNERS_MAX> {
        let ip = ip.to_canonical();
        // All addresses of an IPv6 /64 are one owner: if any of them is exempt, so are the others.
        let narrowest = Prefix::narrowest(ip);
        if exempt.touches(narrowest) {
            return ArrayVec::from_iter([narrowest]);
        }
        owner_bits(ip).iter().rev().map(|bits| Prefix::new(ip, *bits)).collect()
    }

    /// The networks of the next narrower owners inside this one; none in the narrowest.
    pub fn inside(self) -> impl Iterator<Item = Prefix> {
        let narrower = owner_bits(self.network).iter().rev().find(|bits| **bits > self.bits).copied();
        let count = narrower.map_or(0, |bits| 1u32 << (bits - self.bits).min(16));
        (0..count).map(move |number| {
            let bits = narrower.unwrap_or(self.bits);
            let network = match self.network {
                IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | number << (32 - bits.min(32))).into(),
                IpAddr::V6(ip) => {
                    Ipv6Addr::from_bits(ip.to_bits() | u128::from(number) << (128 - bits.min(128))).into()
                }
            };
            Prefix { network, bits }
        })
    }

    /// Which of the owners' lengths it has, from the narrowest (0), and its network as a number, without the bits of hosts.
    pub fn owner_level(&self) -> (usize, u64) {
        let level = owner_bits(self.network).iter().position(|bits| *bits == self.bits).unwrap_or_default();
        let number = match self.network {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        (level, number)
    }

    /// The one at the same place in another network, by the bits that the other one leaves open.
    fn moved_into(self, around: Prefix) -> Prefix {
        let network = match (around.network, self.network) {
            (IpAddr::V4(ip), IpAddr::V4(own)) => {
                let open = u32::MAX.checked_shr(around.bits.into()).unwrap_or(0);
                Ipv4Addr::from_bits(ip.to_bits() | own.to_bits() & open).into()
            }
            (IpAddr::V6(ip), IpAddr::V6(own)) => {
                let open = u128::MAX.checked_shr(around.bits.into()).unwrap_or(0);
                Ipv6Addr::from_bits(ip.to_bits() | own.to_bits() & open).into()
            }
            _ => around.network,
        };
        Prefix { network, ..self }
    }

    fn new(ip: IpAddr, bits: u8) -> Prefix {
        let network = match ip {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << (32 - bits.min(32)))).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - bits.min(128)))).into(),
        };
        Prefix { network, bits }
    }

    pub fn network(&self) -> IpAddr {
        self.network
    }

    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether it is an address (IPv6 /64).
    pub fn is_narrowest(&self) -> bool {
        owner_bits(self.network).first() == Some(&self.bits)
    }

    /// Whether it is as wide as the network of a provider.
    pub fn is_widest_owner(&self) -> bool {
        owner_bits(self.network).last() == Some(&self.bits)
    }

    /// Whether no wider prefix around it has a limit.
    pub fn is_widest(&self) -> bool {
        let levels = if self.network.is_ipv4() { &IPV4_LEVELS[..] } else { &IPV6_LEVELS[..] };
        levels.last().is_some_and(|(bits, _)| *bits == self.bits)
    }

    /// The limit of this prefix, if one address (or IPv6 /64) has the limit `narrowest`.
    pub fn limit(&self, narrowest: u32) -> u32 {
        let levels = if self.network.is_ipv4() { &IPV4_LEVELS[..] } else { &IPV6_LEVELS[..] };
        let factor = levels.iter().find(|(bits, _)| *bits == self.bits).map_or(1, |(_, factor)| *factor);
        narrowest.saturating_mul(factor)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

fn owner_bits(ip: IpAddr) -> &'static [u8] {
    if ip.is_ipv4() { &IPV4_OWNERS } else { &IPV6_OWNERS }
}

/// A set of networks, stored as sorted ranges that do not overlap, for lookup by binary search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    ranges: Vec<(u128, u128)>,
}

impl Networks {
    pub const NONE: Networks = Networks { ranges: Vec::new() };

    pub fn new(networks: &[IpNet]) -> Networks {
        let mut ranges: Vec<_> = networks.iter().flat_map(ranges).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let overlap = next.0 <= before.1;
            if overlap {
                before.1 = before.1.max(next.1);
            }
            overlap
        });
        Networks { ranges }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        // It is empty nearly always.
        !self.ranges.is_empty() && self.has_any(number(ip), number(ip))
    }

    /// Whether it contains any address of a prefix.
    pub fn touches(&self, prefix: Prefix) -> bool {
        let width = if prefix.network.is_ipv4() { 32 } else { 128 };
        let first = number(prefix.network);
        let others = 1u128.checked_shl(width - u32::from(prefix.bits)).map_or(u128::MAX, |size| size - 1);
        self.has_any(first, first | others)
    }

    /// Whether it contains any address from the first to the last.
    fn has_any(&self, first: u128, last: u128) -> bool {
        let after = self.ranges.partition_point(|range| range.0 <= last);
        after.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|range| first <= range.1)
    }
}

/// The addresses of a network as ranges of [`number`]: usually one. An IPv6 network around the IPv4-mapped range gives two,
/// before and after it, because it should not match IPv4 addresses.
fn ranges(net: &IpNet) -> impl Iterator<Item = (u128, u128)> {
    let (first, last) = (number(net.network()), number(net.broadcast()));
    let (ipv4_first, ipv4_last) = (number(Ipv4Addr::UNSPECIFIED.into()), number(Ipv4Addr::BROADCAST.into()));
    let surrounds_ipv4 = first < ipv4_first && ipv4_last <= last;
    let before_and_after = [(first, ipv4_first - 1), (ipv4_last + 1, last)];
    let ranges = if surrounds_ipv4 { ArrayVec::from(before_and_after) } else { ArrayVec::from_iter([(first, last)]) };
    ranges.into_iter().filter(|(first, last)| first <= last)
}

/// An address as a number; IPv4 as IPv4-mapped IPv6, so that both families are comparable.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => Ipv6Addr::to_bits(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(ip: &str, exempt: &Networks) -> Vec<String> {
        Prefix::all(ip.parse().unwrap(), exempt).iter().map(Prefix::to_string).collect()
    }

    #[test]
    fn networks_touch_a_prefix_if_they_have_any_of_its_addresses() {
        let networks = |all: &[&str]| Networks::new(&all.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>());
        let touches = |all: &[&str], ip: &str| networks(all).touches(Prefix::narrowest(ip.parse().unwrap()));
        for (network, ip, expected) in [
            ("192.0.2.0/24", "192.0.2.255", true),
            ("192.0.2.0/24", "192.0.3.0", false),
            ("192.0.2.1/32", "192.0.2.0", false),
            ("2001:db8::ffff/128", "2001:db8::1", true),
            ("2001:db8:0:0:ffff:ffff:ffff:ffff/128", "2001:db8::", true),
            ("2001:db8:0:1::/128", "2001:db8::", false),
            ("2001:db8::/32", "2001:db8:7:7::7", true),
            ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff/128", "2001:db8::", false),
            ("::/0", "192.0.2.1", false),
        ] {
            assert_eq!(touches(&[network], ip), expected, "{network} {ip}");
            assert_eq!(touches(&["2001:db8:ffff::/48", network, "10.0.0.0/8"], ip), expected, "{network} {ip}");
        }
        assert!(!touches(&[], "192.0.2.1"));
    }

    #[test]
    fn prefixes_nest_from_the_narrowest() {
        let none = Networks::default();
        assert_eq!(shown("192.0.2.77", &none), ["192.0.2.77/32", "192.0.2.0/24"]);
        assert_eq!(shown("::ffff:192.0.2.77", &none), ["192.0.2.77/32", "192.0.2.0/24"]);
        let v6 = ["2001:db8:1:2ab::/64", "2001:db8:1:200::/56", "2001:db8:1::/48"];
        assert_eq!(shown("2001:db8:1:2ab:3:4:5:6", &none), v6);
        for ip in ["192.0.2.77", "2001:db8:1:2ab:3:4:5:6"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Prefix::all(ip, &none).first(), Some(&Prefix::narrowest(ip)));
        }
    }

    #[test]
    fn the_last_prefix_of_an_address_is_the_widest() {
        for ip in ["192.0.2.77", "2001:db8:1:2ab:3:4:5:6"] {
            let prefixes = Prefix::all(ip.parse().unwrap(), &Networks::default());
            let widest: Vec<_> = prefixes.iter().filter(|prefix| prefix.is_widest()).collect();
            assert_eq!(widest, [prefixes.last().unwrap()], "{ip}");
            assert_eq!(widest, [&Prefix::widest(ip.parse().unwrap())], "{ip}");
        }
    }

    #[test]
    fn owners_nest_and_each_has_the_next_narrower_ones_inside() {
        let owners = |ip: &str| Prefix::owners(ip.parse().unwrap(), &Networks::default());
        let shown = |ip: &str| owners(ip).iter().map(Prefix::to_string).collect::<Vec<_>>();
        assert_eq!(shown("203.0.113.77"), ["203.0.0.0/16", "203.0.112.0/20", "203.0.113.0/24", "203.0.113.77/32"]);
        let v6 = ["2001:db8::/29", "2001:db9::/32", "2001:db9:f00::/40", "2001:db9:f0f::/48", "2001:db9:f0f:ab00::/56"];
        assert_eq!(shown("2001:db9:f0f:abcd::1")[..5], v6);
        for ip in ["203.0.113.77", "2001:db9:f0f:abcd::1"] {
            let owners = owners(ip);
            for pair in owners.windows(2) {
                assert_eq!(pair[0].inside().filter(|inner| *inner == pair[1]).count(), 1, "{pair:?}");
                assert!(
                    pair[0].inside().count() <= 256 && pair[0].inside().all(|inner| inner.bits() == pair[1].bits())
                );
            }
            assert_eq!(owners.last().unwrap().inside().count(), 0);
            let levels: Vec<usize> = owners.iter().map(|owner| owner.owner_level().0).collect();
            assert!(levels.iter().rev().copied().eq(0..owners.len()), "{levels:?}");
        }
        let exempt = Networks::new(&["203.0.113.0/24".parse().unwrap()]);
        assert_eq!(
            Prefix::owners("203.0.113.77".parse().unwrap(), &exempt)[..],
            [Prefix::narrowest("203.0.113.77".parse().unwrap())]
        );
    }

    #[test]
    fn exempt_networks_keep_the_limit_per_address_only() {
        let exempt = Networks::new(&["192.0.2.0/28".parse().unwrap(), "2001:db8::/32".parse().unwrap()]);
        assert_eq!(shown("192.0.2.3", &exempt), ["192.0.2.3/32"]);
        assert_eq!(shown("192.0.2.77", &exempt).len(), 2);
        assert_eq!(shown("2001:db8::1", &exempt), ["2001:db8::/64"]);
    }

    #[test]
    fn wider_prefixes_have_larger_limits() {
        let limits = |ip: &str| -> Vec<u32> {
            Prefix::all(ip.parse().unwrap(), &Networks::default()).iter().map(|prefix| prefix.limit(32)).collect()
        };
        assert_eq!(limits("192.0.2.1"), [32, 256]);
        assert_eq!(limits("2001:db8::1"), [32, 128, 512]);
        assert_eq!(Prefix::all("2001:db8::1".parse().unwrap(), &Networks::default())[2].limit(u32::MAX), u32::MAX);
    }

    #[test]
    fn an_ipv6_network_contains_no_ipv4_address() {
        let contains = |nets: &[&str], ip: &str| {
            let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
            Networks::new(&nets).contains(ip.parse().unwrap())
        };
        for net in ["::/0", "::/64", "::/80"] {
            for ip in ["0.0.0.0", "192.0.2.1", "255.255.255.255", "::ffff:0.0.0.0", "::ffff:192.0.2.1"] {
                assert!(!contains(&[net], ip), "{net} {ip}");
            }
            assert!(contains(&[net], "::1") && contains(&[net], "::fffe:ffff:ffff"), "{net}");
            assert_eq!(contains(&[net], "::1:0:0:0"), net != "::/80", "{net}");
            assert!(contains(&[net, "0.0.0.0/0"], "192.0.2.1"), "{net}");
        }
        assert!(contains(&["::/0"], "2001:db8::1"));
        assert!(!contains(&["0.0.0.0/0"], "2001:db8::1") && contains(&["0.0.0.0/0"], "::ffff:192.0.2.1"));
        assert!(contains(&["::ffff:192.0.2.0/120"], "192.0.2.1"), "written as IPv6");
    }

    proptest! {
        #[test]
        fn a_set_contains_the_networks_it_was_made_of(nets in proptest::collection::vec((any::<u32>(), 0..=32u8), 0..20), probes: Vec<u32>) {
            let nets: Vec<IpNet> = nets.into_iter()
                .map(|(ip, len)| IpNet::new(Ipv4Addr::from(ip).into(), len).unwrap()).collect();
            let set = Networks::new(&nets);
            let edges = nets.iter().flat_map(|net| [net.network(), net.broadcast()]);
            for ip in probes.into_iter().map(|ip| Ipv4Addr::from(ip).into()).chain(edges) {
                prop_assert_eq!(set.contains(ip), nets.iter().any(|net| net.contains(&ip)), "{}", ip);
            }
        }

        #[test]
        fn an_address_is_in_all_of_its_prefixes(ip: u128) {
            let ip = IpAddr::V6(Ipv6Addr::from_bits(ip));
            for prefix in Prefix::all(ip, &Networks::default()) {
                let net = IpNet::new(prefix.network(), prefix.bits()).unwrap();
                prop_assert!(net.contains(&ip.to_canonical()) && net.network() == prefix.network());
            }
        }
    }
}

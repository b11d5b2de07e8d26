//! How many entries each IP address has. IPv4 addresses have a table of their own: in one table for both kinds, each
//! would take the room of an IPv6 address, and with a million servers that is 33 bytes a server. For the same reason
//! the count is as small as the number of ports allows, and the key has no alignment.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::SubAssign;

#[derive(Default)]
pub struct PerIp {
    v4: HashMap<[u8; 4], u16>,
    v6: HashMap<Ipv6Addr, u32>,
}

impl PerIp {
    pub fn count(&self, ip: IpAddr) -> u32 {
        match ip {
            IpAddr::V4(ip) => self.v4.get(&ip.octets()).map_or(0, |count| u32::from(*count)),
            IpAddr::V6(ip) => self.v6.get(&ip).copied().unwrap_or(0),
        }
    }

    pub fn add(&mut self, ip: IpAddr) {
        match ip {
            // There are no more than 65,535 ports.
            IpAddr::V4(ip) => {
                let count = self.v4.entry(ip.octets()).or_default();
                *count = count.saturating_add(1);
            }
            IpAddr::V6(ip) => *self.v6.entry(ip).or_default() += 1,
        }
    }

    pub fn remove(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => one_less(&mut self.v4, ip.octets()),
            IpAddr::V6(ip) => one_less(&mut self.v6, ip),
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

fn one_less<K: Eq + Hash, C: From<u8> + PartialOrd + SubAssign>(counts: &mut HashMap<K, C>, ip: K) {
    match counts.get_mut(&ip) {
        Some(count) if *count > C::from(1) => *count -= C::from(1),
        _ => drop(counts.remove(&ip)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_both_kinds_and_forgets_what_is_gone() {
        let ips: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let mut per_ip = PerIp::default();
        for ip in ips {
            per_ip.add(ip);
            per_ip.add(ip);
            assert_eq!(per_ip.count(ip), 2);
        }
        for ip in ips {
            per_ip.remove(ip);
            assert_eq!(per_ip.count(ip), 1);
            per_ip.remove(ip);
            per_ip.remove(ip);
            assert_eq!(per_ip.count(ip), 0);
        }
        assert!(per_ip.is_empty());
    }
}

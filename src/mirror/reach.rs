//! Which addresses may be asked because another master lists them. A hostile master must not make us probe this machine or
//! its network.

use std::net::IpAddr;

use crate::client::Target;
use crate::model;
use crate::prefix::Networks;

/// Which addresses of an upstream's list may be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// The upstream is itself on this machine or in a private network.
    is_local: bool,
    /// Networks that the operator exempts from limits.
    exempt: Networks,
}

impl Reach {
    /// Only an address that the operator typed makes an upstream local: a name is the business of whoever owns it, and may
    /// lead anywhere tomorrow.
    pub fn of(upstream: &Target, exempt: Networks) -> Reach {
        let typed: Option<IpAddr> = upstream.host.parse().ok();
        Reach { is_local: upstream.host == "localhost" || typed.is_some_and(model::Reach::is_near), exempt }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        match model::Reach::of(ip) {
            model::Reach::Internet => true,
            model::Reach::Near => self.is_local || self.exempt.contains(ip),
            model::Reach::Nowhere => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(upstream: &str, exempt: &[&str]) -> Reach {
        let exempt: Vec<_> = exempt.iter().map(|network| network.parse().unwrap()).collect();
        Reach::of(&upstream.parse().unwrap(), Networks::new(&exempt))
    }

    fn reached<'a>(reach: &Reach, addresses: &[&'a str]) -> Vec<&'a str> {
        addresses.iter().filter(|ip| reach.contains(ip.parse().unwrap())).copied().collect()
    }

    const PUBLIC: &[&str] = &["8.8.8.8", "100.63.0.1", "2606:4700::1"];
    const LOCAL: &[&str] = &[
        "127.0.0.1",
        "127.9.9.9",
        "10.0.0.1",
        "172.16.5.5",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "::1",
        "fd00::1",
        "fe80::1",
        "::ffff:10.0.0.1",
    ];
    const NEVER: &[&str] = &[
        "0.0.0.0",
        "0.1.2.3",
        "203.0.113.5",
        "255.255.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "::",
        "ff02::1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "2001::1",
        "2002:7f00:1::1",
        "2001:db8::1",
    ];

    #[test]
    fn a_master_on_the_internet_lists_nothing_of_our_own_network() {
        for upstream in ["netpanzer://203.0.113.9", "netpanzer://master.example", "http://10.0.0.1.example"] {
            let reach = reach(upstream, &[]);
            assert_eq!(reached(&reach, PUBLIC), PUBLIC, "{upstream}");
            assert_eq!(reached(&reach, LOCAL), Vec::<&str>::new(), "{upstream}");
            assert_eq!(reached(&reach, NEVER), Vec::<&str>::new(), "{upstream}");
        }
    }

    #[test]
    fn a_master_in_a_private_network_lists_its_neighbours() {
        for upstream in ["netpanzer://127.0.0.1:5", "http://localhost:8080", "http://[fd00::9]", "http://192.168.1.9"] {
            let reach = reach(upstream, &[]);
            assert_eq!(reached(&reach, LOCAL), LOCAL, "{upstream}");
            assert_eq!(reached(&reach, PUBLIC), PUBLIC, "{upstream}");
            assert_eq!(reached(&reach, NEVER), Vec::<&str>::new(), "{upstream}");
        }
    }

    #[test]
    fn the_operator_can_exempt_a_network() {
        let reach = reach("netpanzer://master.example", &["10.0.0.0/8", "0.0.0.0/8", "64:ff9b::/96"]);
        assert_eq!(reached(&reach, LOCAL), ["10.0.0.1", "::ffff:10.0.0.1"]);
        assert_eq!(reached(&reach, NEVER), Vec::<&str>::new());
    }
}

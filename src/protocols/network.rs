//! Networks of masters: the settings of one of them, and a protocol's rules. There is no socket here; `net::network` drives the
//! rules.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};

use crate::model::{Address, Announce};

/// A network of masters, as configured on this one.
#[derive(Clone, Debug)]
pub struct MasterNetwork {
    pub rules: &'static dyn NetworkRules,
    /// As typed; names are resolved when needed.
    pub neighbours: Vec<String>,
    /// The password that all masters share; empty: there is no network.
    pub password: String,
    /// The addresses that this master listens on.
    pub listening: Vec<SocketAddr>,
    /// This master's address as others see it, if they connect to a different one.
    pub public: Option<Address>,
    /// The port to announce if it does not listen.
    pub default_port: u16,
}

/// Messages between masters of one protocol over TCP: one message and its answer per connection.
pub trait NetworkRules: Debug + Sync {
    /// The interval between rounds of heartbeats.
    fn every_ms(&self) -> u64;

    /// How long a master stays listed after its last heartbeat.
    fn life_ms(&self) -> u64;

    /// Asks another master which masters it knows.
    fn list(&self) -> Vec<u8>;

    /// Announces this master, which is reached on `port`.
    fn heartbeat(&self, port: u16, password: &str) -> Vec<u8>;

    /// Withdraws the announcement.
    fn quit(&self, port: u16, password: &str) -> Vec<u8>;

    /// Whether an answer is complete. Others are read until the connection is closed.
    fn is_whole(&self, answer: &[u8]) -> bool;

    /// The masters in the answer to `list`, or why there are none, as text for the operator.
    fn read_list(&self, answer: &[u8]) -> Result<Vec<Address>, String>;

    /// What is wrong with the answer to a heartbeat and what to do about it, as text for the operator. None: nothing is wrong.
    fn complaint(&self, answer: &[u8]) -> Option<String>;

    /// The entry of a master that another one has mentioned.
    fn announce(&self, master: Address, now_ms: u64) -> Announce<'static>;

    /// A line for the log about another master.
    fn warning(&self, master: &str, trouble: &Trouble) -> String;
}

/// A problem with another master.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is this master itself.
    Ourselves,
    /// It did not send a list of masters.
    NoList(String),
    /// It does not list this master.
    Refused(String),
    /// It did not answer a heartbeat.
    Unreachable(String),
}

impl PartialEq for MasterNetwork {
    /// Compares only the settings: a protocol has only one kind of rules.
    fn eq(&self, other: &MasterNetwork) -> bool {
        let same_neighbours = self.neighbours == other.neighbours && self.password == other.password;
        same_neighbours && self.listening == other.listening && self.public == other.public
    }
}

impl MasterNetwork {
    pub fn is_on(&self) -> bool {
        !self.password.is_empty()
    }

    /// The port that others reach this master on.
    fn port(&self) -> u16 {
        let listening = self.listening.first().map(SocketAddr::port);
        self.public.map(|public| public.port()).or(listening).unwrap_or(self.default_port)
    }

    /// This master's own addresses, with the machine's current ones.
    pub fn own(&self, machine: &[IpAddr]) -> Own {
        Own::new(&self.listening, machine, self.public)
    }

    pub fn heartbeat(&self) -> Vec<u8> {
        self.rules.heartbeat(self.port(), &self.password)
    }

    pub fn quit(&self) -> Vec<u8> {
        self.rules.quit(self.port(), &self.password)
    }
}

/// The addresses that reach this master itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    places: Vec<(IpNet, u16)>,
}

impl Own {
    /// From its listeners, the machine's addresses, and the public address in the configuration.
    pub fn new(listening: &[SocketAddr], of_machine: &[IpAddr], public: Option<Address>) -> Own {
        let mut places: Vec<(IpNet, u16)> = public.iter().map(|public| (public.ip().into(), public.port())).collect();
        for address in listening {
            let (ip, port) = (address.ip().to_canonical(), address.port());
            if ip.is_unspecified() {
                let family = of_machine.iter().map(IpAddr::to_canonical).filter(|own| own.is_ipv4() == ip.is_ipv4());
                places.extend(family.chain([loopback(ip)]).map(|own| (whole_loopback(own), port)));
            } else {
                places.push((ip.into(), port));
            }
        }
        Own { places }
    }

    pub fn contains(&self, address: Address) -> bool {
        // A connection to 0.0.0.0 reaches this machine.
        let ip = if address.ip().is_unspecified() { loopback(address.ip()) } else { address.ip() };
        self.places.iter().any(|(network, port)| *port == address.port() && network.contains(&ip))
    }
}

fn loopback(of_family: IpAddr) -> IpAddr {
    if of_family.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

/// For an IPv4 loopback address, the whole loopback network.
fn whole_loopback(ip: IpAddr) -> IpNet {
    match ip {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        ip => ip.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes down what it is told.
    #[derive(Debug)]
    struct Told;

    impl NetworkRules for Told {
        fn every_ms(&self) -> u64 {
            0
        }
        fn life_ms(&self) -> u64 {
            0
        }
        fn list(&self) -> Vec<u8> {
            Vec::new()
        }
        fn heartbeat(&self, port: u16, password: &str) -> Vec<u8> {
            format!("here {port} {password}").into()
        }
        fn quit(&self, port: u16, password: &str) -> Vec<u8> {
            format!("gone {port} {password}").into()
        }
        fn is_whole(&self, _answer: &[u8]) -> bool {
            false
        }
        fn read_list(&self, _answer: &[u8]) -> Result<Vec<Address>, String> {
            Ok(Vec::new())
        }
        fn complaint(&self, _answer: &[u8]) -> Option<String> {
            None
        }
        fn announce(&self, _master: Address, _now_ms: u64) -> Announce<'static> {
            panic!("nobody is mentioned")
        }
        fn warning(&self, _master: &str, _trouble: &Trouble) -> String {
            String::new()
        }
    }

    fn network() -> MasterNetwork {
        MasterNetwork {
            rules: &Told,
            neighbours: vec!["192.0.2.9".into()],
            password: "secret".into(),
            listening: vec!["192.0.2.5:28901".parse().unwrap()],
            public: None,
            default_port: 28_900,
        }
    }

    #[test]
    fn a_network_without_a_password_is_none() {
        assert!(network().is_on());
        assert!(!MasterNetwork { password: String::new(), ..network() }.is_on());
    }

    #[test]
    fn a_master_announces_the_port_that_others_reach_it_on() {
        let public = "203.0.113.9:28999".parse().unwrap();
        for (network, port) in [
            (network(), 28_901),
            (MasterNetwork { public: Some(public), ..network() }, 28_999),
            (MasterNetwork { listening: Vec::new(), ..network() }, 28_900),
        ] {
            assert_eq!(network.heartbeat(), format!("here {port} secret").into_bytes());
            assert_eq!(network.quit(), format!("gone {port} secret").into_bytes());
        }
        let own = MasterNetwork { public: Some(public), ..network() }.own(&[]);
        assert!(own.contains("192.0.2.5:28901".parse().unwrap()) && own.contains(public));
    }

    #[test]
    fn any_other_setting_is_another_network() {
        assert_eq!(network(), network());
        for other in [
            MasterNetwork { neighbours: Vec::new(), ..network() },
            MasterNetwork { password: "other".into(), ..network() },
            MasterNetwork { listening: Vec::new(), ..network() },
            MasterNetwork { public: Some("203.0.113.9:1".parse().unwrap()), ..network() },
        ] {
            assert_ne!(other, network());
        }
    }

    fn own(listening: &[&str], public: Option<&str>) -> Own {
        let listening: Vec<_> = listening.iter().map(|text| text.parse().unwrap()).collect();
        let machine = ["127.0.0.1", "192.0.2.5", "10.0.0.5", "::1", "2001:db8::5"].map(|text| text.parse().unwrap());
        Own::new(&listening, &machine, public.map(|text| text.parse().unwrap()))
    }

    #[test]
    fn its_own_address_in_any_spelling() {
        let of = |own: &Own, addresses: &[&str]| -> Vec<bool> {
            addresses.iter().map(|text| own.contains(text.parse().unwrap())).collect()
        };
        let ipv4 = own(&["0.0.0.0:28900"], Some("203.0.113.9:28999"));
        let ours = [
            "127.0.0.1:28900",
            "127.0.0.2:28900",
            "192.0.2.5:28900",
            "10.0.0.5:28900",
            "0.0.0.0:28900",
            "[::ffff:192.0.2.5]:28900",
            "203.0.113.9:28999",
        ];
        assert_eq!(of(&ipv4, &ours), [true; 7]);
        let others = ["192.0.2.5:28901", "192.0.2.6:28900", "[::1]:28900", "[2001:db8::5]:28900", "203.0.113.9:28900"];
        assert_eq!(of(&ipv4, &others), [false; 5]);
        let both = own(&["127.0.0.1:1", "[::]:2"], None);
        assert_eq!(of(&both, &["127.0.0.1:1", "[::1]:2", "[2001:db8::5]:2", "[::]:2"]), [true; 4]);
        assert_eq!(of(&both, &["127.0.0.2:1", "192.0.2.5:1", "127.0.0.1:2", "[2001:db8::6]:2"]), [false; 4]);
    }
}

//! A network of masters, from the side of one of them: what it sends to the others, what it makes of their answers, and
//! which addresses are its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};

use super::announce::{parse_answer, parse_ended_answer};
use super::serve::{NO_NETWORK, NO_PASSWORD, WRONG_PASSWORD};
use super::wire::{Request, SEPARATOR, WireError, parse_list};
use crate::model::{Address, MASTER};
use crate::protocols::Verdict;
use crate::protocols::announce::reason;

/// How much is shown of an answer that is not netPanzer's.
const STRANGE_CHARS_MAX: usize = 80;
const NO_ANSWER: &str = "it closed the connection without an answer";

fn request(kind: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
    let pairs = pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
    Request { kind: kind.into(), pairs }.emit()
}

pub fn list() -> Vec<u8> {
    request("list", &[("gamename", MASTER)])
}

pub fn heartbeat(port: u16, password: &str) -> Vec<u8> {
    request("heartbeat", &[("port", &port.to_string()), ("gamename", MASTER), ("password", password)])
}

pub fn quit(port: u16, password: &str) -> Vec<u8> {
    request("quit", &[("gamename", MASTER), ("password", password), ("port", &port.to_string())])
}

/// The masters in another master's list, or why there are none, in words for the operator.
pub fn read_list(answer: &[u8]) -> Result<Vec<Address>, String> {
    parse_list(answer).map_err(|error| match error {
        _ if answer.is_empty() => NO_ANSWER.into(),
        WireError::Error => complaint(answer).unwrap_or_else(|| error.to_string()),
        _ => error.to_string(),
    })
}

/// What is wrong with the answer to a heartbeat, and what to do about it, in words for the operator. None: nothing.
pub fn complaint(answer: &[u8]) -> Option<String> {
    match parse_answer(answer).or_else(|| parse_ended_answer(answer)) {
        Some(Verdict::Listed) => None,
        Some(Verdict::Refused(reason)) => Some(format!("it refused: {reason}{}", advice(&reason))),
        None if answer.is_empty() => Some(format!("{NO_ANSWER}. Is it a netPanzer master?")),
        None => {
            let shown: String = reason(answer).replace(SEPARATOR as char, " ");
            let shown: String = shown.trim().chars().take(STRANGE_CHARS_MAX).collect();
            Some(format!("its answer is not netPanzer's: \"{shown}\". Is it a netPanzer master?"))
        }
    }
}

fn advice(reason: &str) -> &'static str {
    match reason {
        WRONG_PASSWORD | NO_PASSWORD => ". netpanzer.password has to be the same on both masters",
        NO_NETWORK => ". It needs the same netpanzer.password as this one",
        _ => "",
    }
}

/// The addresses at which this master itself is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    places: Vec<(IpNet, u16)>,
}

impl Own {
    /// From what it listens on, the addresses that this machine has, and the address that the operator names.
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
        // A connection to 0.0.0.0 ends at this machine.
        let ip = if address.ip().is_unspecified() { loopback(address.ip()) } else { address.ip() };
        self.places.iter().any(|(network, port)| *port == address.port() && network.contains(&ip))
    }
}

fn loopback(of_family: IpAddr) -> IpAddr {
    if of_family.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

/// One loopback address of IPv4 stands for all of them.
fn whole_loopback(ip: IpAddr) -> IpNet {
    match ip {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        ip => ip.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn complaints_are_in_words_and_say_what_to_do() {
        let same = "netpanzer.password has to be the same on both masters";
        for (answer, expected) in [
            (&br"\final\"[..], None),
            (br"\final", None),
            (
                br"\error\wrong password for master update\final\",
                Some(format!("it refused: wrong password for master update. {same}")),
            ),
            (
                br"\error\passwort missing for master update",
                Some(format!("it refused: passwort missing for master update. {same}")),
            ),
            (
                br"\error\this master is in no master network\final\",
                Some(
                    "it refused: this master is in no master network. It needs the same netpanzer.password as this one"
                        .into(),
                ),
            ),
            (b"\\error\\go\x1b[31m away\\final\\", Some("it refused: go[31m away".into())),
            (b"", Some("it closed the connection without an answer. Is it a netPanzer master?".into())),
            (
                b"\\HTTP/1.1 400\r\n\\x",
                Some("its answer is not netPanzer's: \"HTTP/1.1 400 x\". Is it a netPanzer master?".into()),
            ),
        ] {
            assert_eq!(complaint(answer), expected, "{}", String::from_utf8_lossy(answer));
        }
        assert!(complaint(&[b'x'; 100_000]).unwrap().len() < 200);
    }

    #[test]
    fn lists_of_masters() {
        assert_eq!(read_list(br"\ip\192.0.2.1\port\28900\final\"), Ok(vec!["192.0.2.1:28900".parse().unwrap()]));
        assert_eq!(read_list(br"\error\go away\final\"), Err("it refused: go away".into()));
        assert_eq!(read_list(b""), Err(NO_ANSWER.into()));
        assert!(read_list(br"\ip\192.0.2.1\port\1").unwrap_err().contains("cut short"));
    }
}

//! The address of a game server.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

/// A game server's IP address and port: its identity in the registry. Never port 0, never an IPv4-mapped IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    ip: IpAddr,
    port: NonZeroU16,
}

impl Address {
    pub fn new(ip: IpAddr, port: u16) -> Option<Address> {
        let port = NonZeroU16::new(port)?;
        Some(Address { ip: ip.to_canonical(), port })
    }

    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// None for IPv6: list formats that know only IPv4 leave the server out.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        match self.ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        }
    }

    pub fn port(&self) -> u16 {
        self.port.get()
    }

    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port())
    }
}

/// Hashed in one write, not field by field: the registry hashes an address twice per handshake.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.ip {
            IpAddr::V4(ip) => state.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(self.port())),
            IpAddr::V6(ip) => {
                state.write_u128(ip.to_bits());
                state.write_u16(self.port());
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket().fmt(f)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let socket: SocketAddr =
            text.parse().map_err(|_| format!("`{text}` is not an address like 203.0.113.5:20737"))?;
        Address::new(socket.ip(), socket.port()).ok_or_else(|| format!("`{text}` has port 0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_canonical_and_never_port_0() {
        let mapped: IpAddr = "::ffff:203.0.113.5".parse().unwrap();
        let address = Address::new(mapped, 20737).unwrap();
        assert_eq!(address, "203.0.113.5:20737".parse().unwrap());
        assert_eq!(address.to_string(), "203.0.113.5:20737");
        assert_eq!(Address::new(mapped, 0), None);
        assert!("203.0.113.5".parse::<Address>().unwrap_err().contains("203.0.113.5:20737"));
        assert!("203.0.113.5:0".parse::<Address>().unwrap_err().contains("port 0"));
    }
}

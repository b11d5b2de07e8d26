//! The master's side of Bloodmasters' web list: what a server's announcement means, and what launchers are given.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::{NAME, list};
use crate::model::{Address, HeartbeatKeys};
use crate::protocols::Heartbeat;
use crate::registry::view::{Renderer, View};

/// The game announces itself every 60 s.
pub const LIFE_MS: u64 = 180_000;

/// An announcement from `ip`. None when the port is none: digits from 1 to 65535.
pub fn heartbeat(ip: IpAddr, port: &str) -> Option<Heartbeat> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let address = Address::new(ip, port.parse().ok().filter(|_| digits)?)?;
    Heartbeat::new(address, NAME, HeartbeatKeys::of(NAME, address)).ok()
}

/// The list for launchers: `ip:port` lines, most recently proven first.
pub struct ServerLines;

impl Renderer for ServerLines {
    fn render(&self, view: &View) -> Vec<u8> {
        let mut servers: Vec<_> = view.of_game(NAME).collect();
        servers.sort_by_key(|server| Reverse(server.proven_at_ms));
        list::emit_servers(servers.into_iter().map(|server| server.address)).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_digits() {
        let ip = "203.0.113.5".parse().unwrap();
        assert_eq!(heartbeat(ip, "6969").unwrap().address, "203.0.113.5:6969".parse().unwrap());
        for bad in ["", "0", "65536", "+1", " 1", "x"] {
            assert!(heartbeat(ip, bad).is_none(), "{bad}");
        }
    }
}

//! What each network holds of a list: for the operator, who has to see who fills it.

use std::collections::HashMap;

use crate::model::{Proof, Server};
use crate::prefix::{Networks, Prefix};

/// What the servers of a network are and say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub servers: u64,
    pub players: u64,
    /// What they keep in memory.
    pub bytes: u64,
    /// Servers by their proof, without those that are zero.
    pub proofs: Vec<(Proof, u64)>,
}

/// What to compare networks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Servers,
    Players,
    Bytes,
}

impl By {
    pub const ALL: [By; 3] = [By::Servers, By::Players, By::Bytes];

    pub fn name(self) -> &'static str {
        match self {
            By::Servers => "servers",
            By::Players => "players",
            By::Bytes => "bytes",
        }
    }
}

impl Holding {
    pub fn of(&self, by: By) -> u64 {
        match by {
            By::Servers => self.servers,
            By::Players => self.players,
            By::Bytes => self.bytes,
        }
    }

    fn add(&mut self, server: &Server) {
        self.servers += 1;
        self.players += u64::from(server.players_current.unwrap_or(0));
        self.bytes += server.bytes() as u64;
        match self.proofs.iter_mut().find(|(proof, _)| *proof == server.verified_by) {
            Some((_, count)) => *count += 1,
            None => self.proofs.push((server.verified_by, 1)),
        }
    }
}

/// What all these servers are together, and what each network of each width holds of them.
pub struct Holdings {
    pub all: Holding,
    by_network: HashMap<Prefix, Holding>,
}

impl Holdings {
    pub fn of<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Holdings {
        let (mut all, mut by_network) = (Holding::default(), HashMap::<Prefix, Holding>::new());
        for server in servers {
            all.add(server);
            for network in Prefix::owners(server.address.ip(), &Networks::NONE) {
                by_network.entry(network).or_default().add(server);
            }
        }
        Holdings { all, by_network }
    }

    /// The networks that hold the most, of any width. A network that holds no more than a narrower one inside it is left out.
    pub fn largest(&self, by: By, most: usize) -> Vec<(Prefix, &Holding)> {
        let is_explained = |(network, holding): &(&Prefix, &Holding)| {
            network
                .inside()
                .any(|inner| self.by_network.get(&inner).is_some_and(|inner| inner.servers == holding.servers))
        };
        let mut largest: Vec<_> = self.by_network.iter().filter(|(_, holding)| holding.of(by) > 0).collect();
        largest.sort_by(|(one, a), (other, b)| {
            b.of(by).cmp(&a.of(by)).then(other.bits().cmp(&one.bits())).then(one.cmp(other))
        });
        let apart = largest.into_iter().filter(|found| !is_explained(found));
        apart.take(most).map(|(network, holding)| (*network, holding)).collect()
    }

    /// The largest part of everything that one provider's network holds, from 0 to 1.
    pub fn largest_share(&self, by: By) -> f64 {
        let widest = self.by_network.iter().filter(|(network, _)| network.is_widest_owner());
        let most = widest.map(|(_, holding)| holding.of(by)).max().unwrap_or(0);
        most as f64 / self.all.of(by).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};

    fn server(address: &str, players: u16) -> Server {
        let facts = Facts { players_current: Some(players), ..Facts::default() };
        Server::new(address.parse().unwrap(), Game::Own("tanks"), Proof::Query, 0, &facts)
    }

    #[test]
    fn the_narrowest_network_that_explains_what_is_held_is_named() {
        let servers = [
            server("192.0.2.1:1", 60),
            server("192.0.2.1:2", 60),
            server("192.0.2.9:1", 0),
            server("198.51.100.1:1", 4),
            server("[2001:db8::1]:1", 1),
        ];
        let holdings = Holdings::of(&servers);
        let shown = |by| -> Vec<_> {
            holdings.largest(by, 9).into_iter().map(|(network, held)| (network.to_string(), held.of(by))).collect()
        };
        let named = |rows: &[(&str, u64)]| rows.iter().map(|(name, of)| (name.to_string(), *of)).collect::<Vec<_>>();
        let by_servers = [
            ("192.0.2.0/24", 3),
            ("192.0.2.1/32", 2),
            ("2001:db8::/64", 1),
            ("192.0.2.9/32", 1),
            ("198.51.100.1/32", 1),
        ];
        assert_eq!(shown(By::Servers), named(&by_servers));
        assert_eq!(shown(By::Players)[..2], named(&[("192.0.2.1/32", 120), ("192.0.2.0/24", 120)]));
        assert_eq!(holdings.all.proofs, [(Proof::Query, 5)]);
        assert_eq!(holdings.largest_share(By::Servers), 0.6);
        assert_eq!(holdings.largest_share(By::Players), 120.0 / 125.0);
        assert_eq!(Holdings::of(&[]).largest_share(By::Bytes), 0.0);
    }
}

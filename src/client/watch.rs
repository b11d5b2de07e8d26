//! Masters' lists over time: [`rounds`] fetches them, `merge` makes one list of them, and [`Changes`] says which servers appear,
//! change and disappear between two rounds.

mod merge;
pub mod rounds;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Found;
use crate::model::{Address, Details, Facts};

pub use merge::Masters;

/// How a server differs from the previous list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Came,
    Changed,
    Went,
}

impl ChangeKind {
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Came => "came",
            ChangeKind::Changed => "changed",
            ChangeKind::Went => "went",
        }
    }
}

/// Compares each list with the previous one.
#[derive(Default)]
pub struct Changes {
    /// By protocol and address, as lists are merged: a server's answer may name another game than the list.
    known: BTreeMap<(&'static str, Address), Found>,
}

impl Changes {
    /// New and changed servers in the order of the list, then those that are gone.
    pub fn since_last(&mut self, servers: Vec<Found>) -> Vec<(ChangeKind, Found)> {
        let mut before = std::mem::take(&mut self.known);
        let mut changes = Vec::new();
        for server in servers {
            let key = (server.game.protocol(), server.address);
            match before.remove(&key) {
                None => changes.push((ChangeKind::Came, server.clone())),
                Some(known) if !looks_the_same(&known, &server) => changes.push((ChangeKind::Changed, server.clone())),
                Some(_) => {}
            }
            self.known.insert(key, server);
        }
        changes.extend(before.into_values().map(|server| (ChangeKind::Went, server)));
        changes
    }
}

/// Whether two states look the same to a reader. Round-trip times always differ and do not count.
fn looks_the_same(a: &Found, b: &Found) -> bool {
    without_pings(a) == without_pings(b)
        && a.game == b.game
        && a.official == b.official
        && a.flavor == b.flavor
        && a.failure() == b.failure()
}

fn without_pings(server: &Found) -> Facts<'static> {
    let mut facts = server.facts.clone();
    facts.details = facts.details.map(|details| {
        let mut details = Details::clone(&details);
        details.players.iter_mut().for_each(|player| player.ping = None);
        Arc::new(details)
    });
    facts
}

/// Whether the name, map, mode, game or address contains the text, ignoring case.
pub fn has_text(server: &Found, text: &str) -> bool {
    let facts = &server.facts;
    let fields = [&*facts.name, &*facts.map, &*facts.mode, server.game.name(), &server.address.to_string()];
    let text = text.to_lowercase();
    fields.iter().any(|field| field.to_lowercase().contains(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::State;
    use crate::model::{Game, Player};

    fn server(port: u16, players: u16) -> Found {
        let facts = Facts { name: format!("Server {port}").into(), players_current: Some(players), ..Facts::default() };
        Found { facts, ..Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap()) }
    }

    #[test]
    fn what_came_changed_and_went() {
        let mut changes = Changes::default();
        let mut compare = |servers: Vec<Found>| {
            let changed = changes.since_last(servers);
            changed.iter().map(|(what, server)| (*what, server.address.port())).collect::<Vec<_>>()
        };
        assert_eq!(compare(vec![server(2, 0), server(1, 0)]), [(ChangeKind::Came, 2), (ChangeKind::Came, 1)]);
        let nearer = Found { rtt_us: Some(5), ..server(1, 0) };
        assert_eq!(compare(vec![nearer, server(2, 1)]), [(ChangeKind::Changed, 2)]);
        let silent = Found { state: State::Failed("no answer".into()), ..server(2, 1) };
        assert_eq!(
            compare(vec![silent.clone(), server(3, 0)]),
            [(ChangeKind::Changed, 2), (ChangeKind::Came, 3), (ChangeKind::Went, 1)]
        );
        assert_eq!(compare(vec![silent, server(3, 0)]), []);
    }

    #[test]
    fn a_server_is_known_by_its_protocol_and_address() {
        let mut changes = Changes::default();
        let mut compare = |servers: &[&Game]| {
            let servers = servers.iter().map(|game| Found { game: Game::clone(game), ..server(1, 0) }).collect();
            changes.since_last(servers).iter().map(|(what, server)| (*what, server.game.clone())).collect::<Vec<_>>()
        };
        let (listed, answered) = (Game::Own("netpanzer"), Game::carried("netpanzer", "x"));
        assert_eq!(compare(&[&listed]), [(ChangeKind::Came, listed.clone())]);
        assert_eq!(compare(&[&answered]), [(ChangeKind::Changed, answered.clone())], "it says which game it is");
        let other = Game::carried("iceball", "x");
        let both = [&answered, &other];
        assert_eq!(compare(&both), [(ChangeKind::Came, other.clone())], "two servers with one name and address");
        assert_eq!(compare(&both), []);
        assert_eq!(compare(&both[..1]), [(ChangeKind::Went, other.clone())]);
    }

    #[test]
    fn a_players_ping_is_not_a_change() {
        let pinged = |ping| {
            let player = Player { name: "Ann".into(), ping: Some(ping), ..Player::default() };
            let details = Some(Arc::new(Details { players: vec![player], rules: Default::default() }));
            Found { facts: Facts { details, ..Facts::default() }, ..server(1, 0) }
        };
        assert!(looks_the_same(&pinged(30), &pinged(31)));
        assert!(!looks_the_same(&pinged(30), &server(1, 0)));
    }

    #[test]
    fn all_fields_are_searched() {
        for (text, found) in [("SERVER 7", true), ("", true), ("113.5:7", true), ("panzer", true), ("chess", false)] {
            assert_eq!(has_text(&server(7, 0), text), found, "{text}");
        }
    }
}

//! A master's list over time: fetched again and again, and what came, changed and went between two times.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::list::{ListError, list};
use super::query::{Pace, ask_all};
use super::{Found, Patience, Target};
use crate::model::{Address, Details, Facts};

/// What became of a server since the time before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Came,
    Changed,
    Went,
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            What::Came => "came",
            What::Changed => "changed",
            What::Went => "went",
        }
    }
}

/// What a look at a master brings, in the order in which it arrives.
pub enum Seen<'a> {
    /// The master's list, before its servers are asked.
    List(&'a [Found]),
    /// A server that has answered, or has been given up.
    Answer(&'a Found),
}

/// The list as it is now; with `pace`, every server that can be asked is asked. `see` is shown everything as it arrives.
pub async fn fetch(
    master: &Target,
    games: &[String],
    patience: Patience,
    pace: Option<Pace>,
    mut see: impl FnMut(Seen<'_>),
) -> Result<Vec<Found>, ListError> {
    let mut servers = list(master, games, patience).await?.servers;
    see(Seen::List(&servers));
    if let Some(pace) = pace {
        ask_all(&mut servers, pace, |server| see(Seen::Answer(server))).await?;
    }
    Ok(servers)
}

/// Tells one list from the next.
#[derive(Default)]
pub struct Changes {
    known: BTreeMap<(String, Address), Found>,
}

impl Changes {
    /// What is new in this list, in its order, and then what is gone.
    pub fn since_last(&mut self, servers: Vec<Found>) -> Vec<(What, Found)> {
        let mut before = std::mem::take(&mut self.known);
        let mut news = Vec::new();
        for server in servers {
            let key = (server.game.name().to_string(), server.address);
            match before.remove(&key) {
                None => news.push((What::Came, server.clone())),
                Some(known) if !says_the_same(&known, &server) => news.push((What::Changed, server.clone())),
                Some(_) => {}
            }
            self.known.insert(key, server);
        }
        news.extend(before.into_values().map(|server| (What::Went, server)));
        news
    }
}

/// Whether a reader would see no difference. A round trip is another each time, and no news.
fn says_the_same(a: &Found, b: &Found) -> bool {
    without_pings(a) == without_pings(b)
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

/// Whether a server is what somebody is looking for: its name, map, mode, game or address has the text in it.
pub fn has_text(server: &Found, text: &str) -> bool {
    let facts = &server.facts;
    let told = [&*facts.name, &*facts.map, &*facts.mode, server.game.name(), &server.address.to_string()];
    let text = text.to_lowercase();
    told.iter().any(|told| told.to_lowercase().contains(&text))
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
        let mut told = |servers: Vec<Found>| {
            let news = changes.since_last(servers);
            news.iter().map(|(what, server)| (*what, server.address.port())).collect::<Vec<_>>()
        };
        assert_eq!(told(vec![server(2, 0), server(1, 0)]), [(What::Came, 2), (What::Came, 1)]);
        let nearer = Found { rtt_us: Some(5), ..server(1, 0) };
        assert_eq!(told(vec![nearer, server(2, 1)]), [(What::Changed, 2)]);
        let silent = Found { state: State::Failed("no answer".into()), ..server(2, 1) };
        assert_eq!(told(vec![silent.clone(), server(3, 0)]), [(What::Changed, 2), (What::Came, 3), (What::Went, 1)]);
        assert_eq!(told(vec![silent, server(3, 0)]), []);
    }

    #[test]
    fn a_players_ping_is_no_news() {
        let pinged = |ping| {
            let player = Player { name: "Ann".into(), ping: Some(ping), ..Player::default() };
            let details = Some(Arc::new(Details { players: vec![player], rules: Vec::new() }));
            Found { facts: Facts { details, ..Facts::default() }, ..server(1, 0) }
        };
        assert!(says_the_same(&pinged(30), &pinged(31)));
        assert!(!says_the_same(&pinged(30), &server(1, 0)));
    }

    #[test]
    fn text_is_looked_for_everywhere() {
        for (text, found) in [("SERVER 7", true), ("", true), ("113.5:7", true), ("panzer", true), ("chess", false)] {
            assert_eq!(has_text(&server(7, 0), text), found, "{text}");
        }
    }
}

//! The game server itself, queried for the facts to announce.

use std::borrow::Cow;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::query::{Pace, query_all};
use crate::client::target::GameServer;
use crate::client::{Found, State, Target};
use crate::model::{Facts, Game};
use crate::protocols::announce::Offer;
use crate::protocols::{Card, Games};

/// Several masters are announced to at the same time; one query serves them all.
const FRESH: Duration = Duration::from_secs(1);

pub struct Source {
    target: Target,
    port: u16,
    card: &'static Card,
    last: Mutex<Option<(Instant, Result<Facts<'static>, String>)>>,
}

impl Source {
    /// A game server that can be queried; on the game's default port if none is given.
    pub fn of(target: Target) -> Result<Source, String> {
        let GameServer { port, card, .. } = target.game_server()?;
        let card = card.ok_or_else(|| {
            format!("`{target}` does not say which game is announced: ask it as a server of that game")
        })?;
        Ok(Source { port, target, card, last: Mutex::new(None) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The family that the game belongs to. Announcements name the family: its servers say themselves which game they are.
    pub fn family(&self) -> Option<&'static str> {
        (self.card.games == Games::Family).then_some(self.card.name)
    }

    /// The game's current answer.
    pub async fn facts(&self) -> Result<Facts<'static>, String> {
        let mut last = self.last.lock().await;
        if let Some((at, result)) = &*last
            && at.elapsed() < FRESH
        {
            return result.clone();
        }
        let result = self.query().await.map_err(|reason| format!("the game at {}: {reason}", self.target));
        *last = Some((Instant::now(), result.clone()));
        result
    }

    async fn query(&self) -> Result<Facts<'static>, String> {
        let address = self.target.address(self.port).await.map_err(|error| error.to_string())?;
        let mut servers = vec![Found::new(Game::Own(self.card.name), address)];
        let cannot = |error| format!("cannot be queried: {error}");
        query_all(&mut servers, Pace::default(), |_| {}).await.map_err(cannot)?;
        match servers.pop().map(|server| (server.state, server.facts)) {
            Some((State::Failed(why), _)) => Err(why),
            Some((State::NotQueried | State::Answered, facts)) => Ok(facts),
            None => Err("cannot be queried".into()),
        }
    }
}

/// The values from the command line, completed by the game's answer.
pub(super) fn merged(offer: &Offer, queried: Facts<'static>) -> Offer {
    let given = offer.facts.clone();
    let text = |given: Cow<'static, str>, queried| if given.is_empty() { queried } else { given };
    let facts = Facts {
        name: text(given.name, queried.name),
        mode: text(given.mode, queried.mode),
        map: text(given.map, queried.map),
        version: if given.version.is_empty() { queried.version } else { given.version },
        players_current: given.players_current.or(queried.players_current),
        players_max: given.players_max.or(queried.players_max),
        ..queried
    };
    Offer { facts, ..offer.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn games_that_can_be_queried() {
        let port = |text: &str| Source::of(text.parse().unwrap()).map(|source| source.port());
        assert_eq!(port("netpanzer://127.0.0.1:1"), Ok(1));
        assert_eq!(port("hyperbol://127.0.0.1"), Ok(20200));
        assert!(port("iceball://127.0.0.1:20737").unwrap_err().contains("cannot be queried"));
    }

    #[test]
    fn the_command_line_takes_precedence_over_the_game() {
        let given = Facts { name: "Mine".into(), players_max: Some(4), ..Facts::default() };
        let queried = Facts { name: "Its".into(), map: "mesa".into(), players_max: Some(8), ..Facts::default() };
        let offer = Offer { game: "x".into(), port: 1, facts: given };
        let merged = merged(&offer, Facts { players_current: Some(2), ..queried }).facts;
        assert_eq!((&*merged.name, &*merged.map), ("Mine", "mesa"));
        assert_eq!((merged.players_current, merged.players_max), (Some(2), Some(4)));
    }
}

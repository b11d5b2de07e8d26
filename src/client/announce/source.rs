//! The game itself, asked for what is announced.

use std::borrow::Cow;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::query::{Pace, ask_all};
use crate::client::{Found, State, Target};
use crate::model::{Facts, Game};
use crate::protocols::Card;
use crate::protocols::announce::Offer;

/// Several masters are announced to at the same moment; the game is asked once for all of them.
const FRESH: Duration = Duration::from_secs(1);

pub struct Source {
    target: Target,
    port: u16,
    card: &'static Card,
    last: Mutex<Option<(Instant, Result<Facts<'static>, String>)>>,
}

impl Source {
    /// A game that can be queried; on its usual port, if none is given.
    pub fn of(target: Target) -> Result<Source, String> {
        let (card, _) = target.game_server()?;
        Ok(Source { port: target.port.unwrap_or(card.game_port), target, card, last: Mutex::new(None) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the game says of itself now.
    pub async fn facts(&self) -> Result<Facts<'static>, String> {
        let mut last = self.last.lock().await;
        if let Some((at, result)) = &*last
            && at.elapsed() < FRESH
        {
            return result.clone();
        }
        let result = self.ask().await.map_err(|reason| format!("the game at {}: {reason}", self.target));
        *last = Some((Instant::now(), result.clone()));
        result
    }

    async fn ask(&self) -> Result<Facts<'static>, String> {
        let address = self.target.address(self.port).await.map_err(|error| error.to_string())?;
        let mut asked = [Found::new(Game::Own(self.card.name), address)];
        let cannot = |error| format!("cannot be asked: {error}");
        ask_all(&mut asked, Pace::default(), |_| {}).await.map_err(cannot)?;
        let [Found { state, facts, .. }] = asked;
        match state {
            State::Failed(why) => Err(why),
            State::Named | State::Answered => Ok(facts),
        }
    }
}

/// The owner's word where there is one, otherwise the game's.
pub(super) fn merged(offer: &Offer, heard: Facts<'static>) -> Offer {
    let given = offer.facts.clone();
    let text = |given: Cow<'static, str>, heard| if given.is_empty() { heard } else { given };
    let facts = Facts {
        name: text(given.name, heard.name),
        mode: text(given.mode, heard.mode),
        map: text(given.map, heard.map),
        version: if given.version.is_empty() { heard.version } else { given.version },
        players_current: given.players_current.or(heard.players_current),
        players_max: given.players_max.or(heard.players_max),
        ..heard
    };
    Offer { facts, ..offer.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn games_that_can_be_asked() {
        let port = |text: &str| Source::of(text.parse().unwrap()).map(|source| source.port());
        assert_eq!(port("netpanzer://127.0.0.1:1"), Ok(1));
        assert_eq!(port("hyperbol://127.0.0.1"), Ok(20200));
        assert!(port("iceball://127.0.0.1:20737").unwrap_err().contains("cannot be asked"));
    }

    #[test]
    fn the_owners_word_goes_before_the_games() {
        let given = Facts { name: "Mine".into(), players_max: Some(4), ..Facts::default() };
        let heard = Facts { name: "Its".into(), map: "mesa".into(), players_max: Some(8), ..Facts::default() };
        let offer = Offer { game: "x".into(), port: 1, facts: given };
        let merged = merged(&offer, Facts { players_current: Some(2), ..heard }).facts;
        assert_eq!((&*merged.name, &*merged.map), ("Mine", "mesa"));
        assert_eq!((merged.players_current, merged.players_max), (Some(2), Some(4)));
    }
}

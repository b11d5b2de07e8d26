//! The game itself, asked for what is announced.

use std::borrow::Cow;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::master::addresses;
use crate::client::ask_one;
use crate::client::url::Url;
use crate::model::{Address, Facts};
use crate::protocols::announce::Offer;
use crate::protocols::{CARDS, Query, card};

/// Several masters are announced to at the same moment; the game is asked once for all of them.
const FRESH: Duration = Duration::from_secs(1);

pub struct Source {
    text: String,
    host: String,
    port: u16,
    query: &'static dyn Query,
    last: Mutex<Option<(Instant, Result<Facts<'static>, String>)>>,
}

impl Source {
    /// `netpanzer://127.0.0.1:3030`: a game that can be queried, and its port.
    pub fn parse(text: &str) -> Result<Source, String> {
        let url = Url::parse(text)?;
        let Some(query) = card(&url.scheme).and_then(|card| card.query) else {
            let known: Vec<_> = CARDS.iter().filter(|card| card.query.is_some()).map(|card| card.name).collect();
            return Err(format!("`{text}`: only games of {} can be asked", known.join(", ")));
        };
        let port = url.port.ok_or_else(|| format!("`{text}`: the game's port is missing"))?;
        Ok(Source { text: text.to_string(), host: url.host, port, query, last: Mutex::new(None) })
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
        let result = self.ask().await.map_err(|reason| format!("the game at {}: {reason}", self.text));
        *last = Some((Instant::now(), result.clone()));
        result
    }

    async fn ask(&self) -> Result<Facts<'static>, String> {
        let found = addresses(&self.host, self.port).await?;
        let address = found.first().and_then(|found| Address::new(found.ip(), found.port()));
        let address = address.ok_or("it has no address")?;
        let answer = ask_one::ask(address, self.query).await?;
        answer.facts.ok_or_else(|| "it is alive, but says nothing of itself".into())
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
        assert_eq!(Source::parse("netpanzer://127.0.0.1:3030").map(|source| source.port()).ok(), Some(3030));
        for (text, says) in [
            ("iceball://127.0.0.1:20737", "only games of netpanzer, hyperbol, bloodmasters can be asked"),
            ("http://127.0.0.1:1", "can be asked"),
            ("netpanzer://127.0.0.1", "port is missing"),
            ("127.0.0.1:3030", "not an address"),
        ] {
            let error = Source::parse(text).err().unwrap();
            assert!(error.contains(says), "{error}");
        }
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

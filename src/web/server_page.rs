//! The page of one server, at an address that stays. It also says when a server that is gone was last here.

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use url::form_urlencoded;

use super::json::rfc3339;
use super::page::{Choosing, ranges};
use super::plots::{Chart, Large};
use super::row::{Row, encoded};
use super::template::{PageError, Template};
use super::{Peer, Site, missing, page_of};
use crate::model::{Address, GAME_BYTES_MAX, Server};
use crate::protocols::card;
use crate::registry::view::Rendered;
use crate::store::history::Range;

/// The page's template, which follows from the configuration.
pub struct Page {
    template: Template,
    pub title: String,
}

#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    name: &'a str,
    game_title: &'a str,
    game_link: String,
    /// What it is right now, in a sentence.
    summary: String,
    /// None: it is not listed.
    server: Option<Row<'a>>,
    /// When it was last counted, if it is not listed.
    last_here: Option<String>,
    history: bool,
    /// The server's name for `/plots`.
    of: String,
    plot: String,
    words: String,
    ranges: Vec<Choosing>,
    doctor: String,
    badge: String,
}

impl Page {
    pub fn new(title: &str) -> Result<Page, PageError> {
        let source = include_str!("../../assets/server.html").to_string();
        let tell = |error| PageError(format!("the page of a server: {error}"));
        Ok(Page { template: Template::new("server.html", source).map_err(tell)?, title: title.into() })
    }
}

/// `/servers/GAME/ADDRESS`.
pub async fn page(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Path((game, address)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let pages = site.pages.load_full();
    let unknown = |text: &str| missing::page(&pages.missing, "No such server", text, &headers);
    let Some(address) = address.parse::<Address>().ok().filter(|_| game.len() <= GAME_BYTES_MAX) else {
        return unknown("The address of a server ends with its game and its address, like 203.0.113.5:20737.");
    };
    let listed = site.hub.listed(address).filter(|server| server.game.name() == game);
    let range = range_of(query.as_deref().unwrap_or_default());
    let large = Large { game: game.as_str().into(), address: Some(address), range, zone: 0, values: false };
    let access = site.history.as_ref().filter(|_| pages.history);
    let mut chart = Chart::default();
    let mut last_s = 0;
    if let Some(access) = access {
        let drawn = large.clone().draw(&site, access, peer).await;
        chart = match drawn {
            Ok(chart) => chart,
            Err(_) if listed.is_some() => Chart::default(),
            Err(unread) => return unread.response(),
        };
        last_s = chart.last_s;
        // The finest counts say best when it was here; the coarsest reach back farthest.
        for range in [Range::Day, Range::Year].into_iter().filter(|_| listed.is_none()) {
            match (Large { range, ..large.clone() }).draw(&site, access, peer).await {
                Ok(looked) => last_s = last_s.max(looked.last_s),
                Err(unread) => return unread.response(),
            }
        }
    }
    if listed.is_none() && last_s == 0 {
        return unknown("It is not listed, and this master has no record of it.");
    }
    let name = listed.as_ref().map(|server| server.texts.name()).filter(|name| !name.is_empty());
    let endpoint = address.to_string();
    let game_title = card(&game).map_or(game.as_str(), |card| card.title);
    let place = format!("{}/{}", encoded(&game), encoded(&endpoint));
    let variables = Variables {
        title: &pages.server.title,
        name: name.unwrap_or(&endpoint),
        game_title,
        game_link: format!("/games/{}", encoded(&game)),
        summary: listed.as_deref().map_or_else(|| gone(game_title), |server| summary(server, game_title)),
        last_here: listed.is_none().then(|| rfc3339(last_s * 1_000)),
        server: listed.as_deref().map(|server| Row::new(server, None)),
        history: !chart.plot.is_empty(),
        of: format!("{game}/{endpoint}"),
        plot: chart.plot,
        words: chart.words,
        ranges: ranges(range, |range| format!("/servers/{place}?range={}", range.name())),
        badge: format!("/servers/{place}/badge.svg"),
        doctor: format!("/doctor?game={}&address={}", encoded(&game), encoded(&endpoint)),
    };
    page_of(&Rendered::new(pages.server.template.render(&variables)), &headers)
}

/// The range to plot; a wrong one counts as none.
pub fn range_of(query: &str) -> Range {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find_map(|(name, value)| (name == "range").then(|| value.parse().ok())?).unwrap_or(Range::Week)
}

fn gone(game_title: &str) -> String {
    format!("This {game_title} server is not listed right now.")
}

/// One sentence for people and for previews in chats.
pub fn summary(server: &Server, game_title: &str) -> String {
    let players = match (server.players_current, server.players_max) {
        (Some(players), Some(size)) => format!("{players} of {size} players"),
        (Some(1), None) => "1 player".into(),
        (Some(players), None) => format!("{players} players"),
        (None, _) => "an unknown number of players".into(),
    };
    let on = |before: &str, text: &str| if text.is_empty() { String::new() } else { format!("{before}{text}") };
    let (map, mode) = (on(" on ", server.texts.map()), on(", ", server.texts.mode()));
    let password = if server.password == Some(true) { ", password needed" } else { "" };
    format!("{game_title}: {players}{map}{mode}{password}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game, Proof};

    #[test]
    fn a_server_in_a_sentence() {
        let say = |facts: &Facts<'_>| {
            let address = "203.0.113.5:20737".parse().unwrap();
            summary(&Server::new(address, Game::Own("iceball"), Proof::Cookie, 1, facts), "Iceball")
        };
        let facts = Facts { players_current: Some(3), players_max: Some(8), ..Facts::default() };
        assert_eq!(say(&facts), "Iceball: 3 of 8 players.");
        let facts = Facts { map: "mesa".into(), mode: "ctf".into(), password: Some(true), ..facts };
        assert_eq!(say(&facts), "Iceball: 3 of 8 players on mesa, ctf, password needed.");
        assert_eq!(say(&Facts { players_current: Some(1), ..Facts::default() }), "Iceball: 1 player.");
        assert_eq!(say(&Facts::default()), "Iceball: an unknown number of players.");
    }

    #[test]
    fn a_wrong_range_is_the_week() {
        assert_eq!(range_of("range=30d"), Range::Month);
        for query in ["", "range=", "range=2d", "x=1"] {
            assert_eq!(range_of(query), Range::Week, "{query}");
        }
    }
}

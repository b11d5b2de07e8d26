//! The page of one game, `/games/NAME`: how many play it, over time, on which maps and in which modes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;

use super::page::{Choosing, ranges};
use super::plots::{Chart, Large, title_of};
use super::row::encoded;
use super::server_page::range_of;
use super::template::{PageError, Template};
use super::{Peer, Site, aside, missing, page_of, reply};
use crate::model::{GAME_BYTES_MAX, Server};
use crate::protocols::{card, servers_of};
use crate::registry::view::{Rendered, View};

/// The most maps and modes shown.
const ROWS: usize = 20;

pub struct Page {
    template: Template,
    title: String,
}

#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    name: &'a str,
    summary: String,
    maps: Vec<Counted>,
    maps_others: usize,
    modes: Vec<Counted>,
    modes_others: usize,
    /// The game's name for `/plots`.
    of: &'a str,
    plot: String,
    words: String,
    ranges: Vec<Choosing>,
    list: String,
    feed: String,
    embed: String,
}

/// A map or a mode.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Counted {
    name: String,
    /// The list of its servers.
    link: String,
    servers: usize,
    players: u64,
}

impl Page {
    pub fn new(title: &str) -> Result<Page, PageError> {
        let source = include_str!("../../assets/game.html").to_string();
        let tell = |error| PageError(format!("the page of a game: {error}"));
        Ok(Page { template: Template::new("game.html", source).map_err(tell)?, title: title.into() })
    }
}

pub async fn page(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    Path(game): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let pages = site.pages.load_full();
    let view = site.hub.view();
    let is_known = game.len() <= GAME_BYTES_MAX && !game.is_empty();
    if !is_known || card(&game).is_none() && aside(&view, || servers_of(&view, &game).next().is_none()) {
        return missing::page(&pages.missing, "No such game", "No server of this game is listed.", &headers);
    }
    let range = range_of(query.as_deref().unwrap_or_default());
    let mut chart = Chart::default();
    if let Some(access) = site.history.as_ref().filter(|_| pages.history) {
        let large = Large { game: game.as_str().into(), address: None, range, zone: 0, values: false };
        chart = large.draw(&site, access, peer).await.unwrap_or_default();
    }
    let of = game.clone();
    let counting = move || {
        let count = |parameter, text| counted(&view, &of, parameter, text);
        (summary(&view, &of), count("map", |it| it.texts.map()), count("mode", |it| it.texts.mode()))
    };
    let (summary, (maps, maps_others), (modes, modes_others)) = match site.hub.work(false, peer.0.ip(), counting).await
    {
        Ok(counted) => counted,
        Err(refusal) => return reply::refused(refusal),
    };
    let name = encoded(&game);
    let variables = Variables {
        title: &pages.game.title,
        name: title_of(&game),
        summary,
        maps,
        maps_others,
        modes,
        modes_others,
        of: &game,
        plot: chart.plot,
        words: chart.words,
        ranges: ranges(range, |range| format!("/games/{name}?range={}", range.name())),
        list: format!("/?game={name}"),
        feed: format!("/feed.atom?game={name}"),
        embed: format!("/embed?game={name}"),
    };
    page_of(&Rendered::new(pages.game.template.render(&variables)), &headers)
}

fn summary(view: &View, game: &str) -> String {
    let (mut servers, mut players, mut places) = (0u64, 0u64, 0u64);
    for server in servers_of(view, game) {
        servers += 1;
        players += u64::from(server.players_current.unwrap_or(0));
        places += u64::from(server.players_max.unwrap_or(0));
    }
    let counted = |number: u64, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    format!("{} on {} with room for {places}.", counted(players, "player"), counted(servers, "server"))
}

/// What most play, and how many more there are.
fn counted(view: &View, game: &str, parameter: &str, text: fn(&Server) -> &str) -> (Vec<Counted>, usize) {
    let mut found: HashMap<&str, (usize, u64)> = HashMap::new();
    for server in servers_of(view, game).filter(|server| !text(server).is_empty()) {
        let (servers, players) = found.entry(text(server)).or_default();
        *servers += 1;
        *players += u64::from(server.players_current.unwrap_or(0));
    }
    let mut all: Vec<_> = found.into_iter().collect();
    all.sort_unstable_by_key(|(name, (servers, players))| (Reverse(*players), Reverse(*servers), *name));
    let others = all.len().saturating_sub(ROWS);
    all.truncate(ROWS);
    let row = |(name, (servers, players)): (&str, (usize, u64))| Counted {
        name: name.into(),
        link: format!("/?game={}&{parameter}={}", encoded(game), encoded(name)),
        servers,
        players,
    };
    (all.into_iter().map(row).collect(), others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Game, Proof};

    #[test]
    fn maps_are_counted_and_the_most_played_come_first() {
        let server = |port: u16, map: &str, players| {
            let facts = Facts {
                map: map.to_string().into(),
                players_current: Some(players),
                players_max: Some(64),
                ..Facts::default()
            };
            let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
            Arc::new(Server::new(address, Game::Own("iceball"), Proof::Cookie, 1, &facts))
        };
        let few = vec![server(1, "a", 1), server(2, "b&c", 3), server(3, "a", 1), server(4, "", 5)];
        let view = View::new(1, 0, few);
        let (maps, others) = counted(&view, "iceball", "map", |it| it.texts.map());
        let said: Vec<_> = maps.iter().map(|it| (it.name.as_str(), it.servers, it.players)).collect();
        assert_eq!((said, others), (vec![("b&c", 1, 3), ("a", 2, 2)], 0));
        assert_eq!(maps[0].link, "/?game=iceball&map=b%26c");
        assert_eq!(summary(&view, "iceball"), "10 players on 4 servers with room for 256.");
        assert_eq!(summary(&view, "netpanzer"), "0 players on 0 servers with room for 0.");
        let many = View::new(1, 0, (1..=30).map(|port| server(port, &format!("map {port}"), port)).collect());
        let (maps, others) = counted(&many, "iceball", "map", |it| it.texts.map());
        assert_eq!((maps.len(), others, maps[0].name.as_str()), (20, 10, "map 30"));
    }
}

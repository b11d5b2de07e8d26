//! The games that are listed, with how many servers and players each has, and the protocols that this master speaks.

use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::api::{self, LIST_FRESH};
use super::filter::Wrong;
use super::{JSON, Peer, Site, parameters};
use crate::model::Server;
use crate::protocols::CARDS;
use crate::registry::view::{Body, Renderer, Tag, View};

/// The most games in the answer: servers choose the names of their games.
const GAMES_MAX: usize = 1_000;

/// The games of all listed servers.
#[derive(Serialize, ToSchema)]
struct GameList<'a> {
    /// Increases with every change of the list.
    serial: u64,
    /// The number of games, including those beyond the first thousand.
    total: usize,
    /// The games with listed servers, first those with the most players.
    games: Vec<GameJson<'a>>,
    /// The protocols that this master speaks.
    protocols: Vec<ProtocolJson>,
}

/// A game.
#[derive(Serialize, ToSchema)]
#[schema(as = Game)]
struct GameJson<'a> {
    /// The name of the game, as its servers write it: the value of `game`.
    game: &'a str,
    /// The protocol that its servers speak.
    protocol: &'static str,
    #[serde(flatten)]
    count: Count,
}

/// A protocol.
#[derive(Serialize, ToSchema)]
#[schema(as = Protocol)]
struct ProtocolJson {
    /// Its name: the value of `protocol`.
    protocol: &'static str,
    /// Its name for people.
    title: &'static str,
    #[serde(flatten)]
    count: Count,
}

/// How many servers and players.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
struct Count {
    /// The number of listed servers.
    servers: usize,
    /// The number of players on them, where they report it.
    players_current: u64,
    /// The number of players that they have room for, where they report it.
    players_max: u64,
}

impl Count {
    fn of(servers: &[Arc<Server>]) -> Count {
        let sum = |number: fn(&Server) -> Option<u16>| servers.iter().filter_map(|it| number(it)).map(u64::from).sum();
        Count {
            servers: servers.len(),
            players_current: sum(|server| server.players_current),
            players_max: sum(|server| server.players_max),
        }
    }

    fn add(&mut self, other: Count) {
        self.servers += other.servers;
        self.players_current += other.players_current;
        self.players_max += other.players_max;
    }
}

/// Renders the answer.
pub struct GamesRenderer;

impl Renderer for GamesRenderer {
    fn render(&self, view: &View) -> Body {
        self.render_tagged(view).0
    }

    /// The same counts say the same in any view.
    fn render_tagged(&self, view: &View) -> (Body, Option<Tag>) {
        let (list, mut tag) = (games(view), Tag::default());
        let body = Body::json(&list);
        let _ = serde_json::to_writer(&mut tag, &GameList { serial: 0, ..list }); // to memory: cannot fail
        (body, Some(tag))
    }
}

fn games(view: &View) -> GameList<'_> {
    let groups = view.groups();
    let mut games: Vec<_> =
        groups.map(|(game, protocol, servers)| GameJson { game, protocol, count: Count::of(servers) }).collect();
    games.sort_by(|one, other| {
        let order = |game: &GameJson<'_>| (game.count.players_current, game.count.servers);
        order(other).cmp(&order(one)).then_with(|| (one.game, one.protocol).cmp(&(other.game, other.protocol)))
    });
    let protocols = CARDS.iter().map(|card| {
        let mut count = Count::default();
        games.iter().filter(|game| game.protocol == card.name).for_each(|game| count.add(game.count));
        ProtocolJson { protocol: card.name, title: card.title, count }
    });
    let (protocols, total) = (protocols.collect(), games.len());
    games.truncate(GAMES_MAX);
    GameList { serial: view.serial, total, games, protocols }
}

/// The games that are listed, and the protocols that this master speaks
#[utoipa::path(get, path = "/api/v1/games", tag = "games", operation_id = "listGames", responses(
    (status = 200, description = "The games", body = GameList),
    (status = 400, description = "A parameter is wrong", body = Wrong),
))]
pub async fn list(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    if let Err(error) = parameters::none(query.as_deref().unwrap_or_default()) {
        return api::bad_request(&error);
    }
    site.metrics.listed("api", 1);
    site.send(&site.games, peer, JSON, &headers, LIST_FRESH).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Game, Proof};
    use crate::registry::view::Rendered;
    use serde_json::json;

    fn server(port: u16, game: Game, players: Option<u16>) -> Arc<Server> {
        let facts = Facts { players_current: players, players_max: Some(8), ..Facts::default() };
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        Arc::new(Server::new(address, game, Proof::Query, 0, &facts))
    }

    #[test]
    fn games_are_counted_and_the_busiest_is_first() {
        let family = CARDS.iter().find(|card| card.name == "quake3").unwrap();
        let game = |name: &str| Game::carried(family.name, name);
        let servers = vec![
            server(1, game("Quake3Arena"), Some(1)),
            server(2, game("Xonotic"), Some(5)),
            server(3, game("Quake3Arena"), None),
            server(4, Game::Own("netpanzer"), Some(0)),
            server(5, Game::master("netpanzer"), None),
        ];
        let view = View::new(7, 0, servers);
        let list = serde_json::to_value(games(&view)).unwrap();
        let row = |game, protocol, servers, current, max| json!({ "game": game, "protocol": protocol, "servers": servers, "players_current": current, "players_max": max });
        let expected = [
            row("Xonotic", "quake3", 1, 5, 8),
            row("Quake3Arena", "quake3", 2, 1, 16),
            row("netpanzer", "netpanzer", 1, 0, 8),
        ];
        assert_eq!(list["games"], json!(expected), "masters are not games");
        assert_eq!((&list["serial"], &list["total"]), (&json!(7), &json!(3)));
        let protocols = list["protocols"].as_array().unwrap();
        assert_eq!(protocols.len(), CARDS.len(), "also those without servers");
        let quake3 = protocols.iter().find(|protocol| protocol["protocol"] == "quake3").unwrap();
        assert_eq!((&quake3["servers"], &quake3["players_current"]), (&json!(3), &json!(6)));
    }

    #[test]
    fn the_tag_follows_from_the_counts() {
        let tag = |serial, players| {
            let view = View::new(serial, 0, vec![server(1, Game::Own("netpanzer"), Some(players))]);
            let (body, tag) = GamesRenderer.render_tagged(&view);
            Rendered::of(&view, body, tag).etag
        };
        assert_eq!(tag(1, 3), tag(2, 3));
        assert_ne!(tag(1, 3), tag(1, 4));
    }

    #[test]
    fn the_number_of_games_is_bounded() {
        let game = |number: u16| Game::carried("quake3", &format!("game{number}"));
        let view = View::new(1, 0, (1..=1_001).map(|number| server(number, game(number), None)).collect());
        let list = games(&view);
        assert_eq!((list.total, list.games.len()), (1_001, GAMES_MAX));
    }
}

//! Sample answers of the API's page. They are made by the functions that make the answers, of a server that does not exist.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use super::api::{self, ListAsk};
use super::check::Diagnosis;
use super::columns::Columns;
use super::filter::{Filter, Wrong};
use super::frames::{Form, id};
use super::games::GamesRenderer;
use super::json::{ServerJson, rfc3339};
use super::search::Search;
use crate::encodings::Pieces;
use crate::model::{Details, Facts, Game, Player, Proof, Server, VersionText};
use crate::protocols::CARDS;
use crate::registry::view::{Body, Renderer, View};

/// When all this is.
const AT_MS: u64 = 1_768_053_600_000;
const RUN: u32 = 0x0bad_cafe;

/// An answer to each operation that has one, by its name, and what an error looks like.
pub fn samples() -> HashMap<&'static str, String> {
    let Some(server) = server() else { return HashMap::new() };
    let (view, search) = (View::new(7, AT_MS, vec![server.clone()]), Arc::<Search>::default());
    let list = api::list_of(ListAsk::all(), &search).render(&view);
    let events = Form::new(Filter::default(), Columns::BRIEF, Pieces::Plain).snapshot(&view, &search, &id(RUN, 7));
    HashMap::from([
        ("listServers", pretty_bytes(&list)),
        ("getServer", pretty(&ServerJson::new(&server))),
        ("listGames", pretty_bytes(&GamesRenderer.render(&view))),
        ("streamEvents", text(&events).trim_end().into()),
        ("checkServer", pretty(&diagnosis(&server))),
        ("error", pretty(&Wrong::parameter("limit", "must be a number from 1 to 1000, not `x`"))),
    ])
}

fn server() -> Option<Arc<Server>> {
    let card = CARDS.first()?;
    let player = Player { name: "Ann".into(), score: Some(12), ..Player::default() };
    let details = Details { players: vec![player], rules: [("speed", "fast")].into() };
    let facts = Facts {
        name: "A server".into(),
        mode: "ctf".into(),
        map: "hills".into(),
        version: VersionText::from("1.2").ok()?,
        players_current: Some(1),
        players_max: Some(16),
        details: Some(Arc::new(details)),
        ..Facts::default()
    };
    let address = format!("203.0.113.5:{}", card.game_port).parse().ok()?;
    Some(Arc::new(Server::new(address, Game::Own(card.name), Proof::Cookie, AT_MS, &facts)))
}

fn diagnosis(server: &Server) -> Diagnosis<'_> {
    Diagnosis {
        game: server.game.name().into(),
        place: server.address.into(),
        listed: true,
        summary: format!("Listed. Last verified by {} at {}.", server.verified_by.name(), rfc3339(AT_MS)),
        advice: None,
        did_you_mean: None,
        kept_off: None,
        seen: Vec::new(),
        server: None,
    }
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn text(body: &Body) -> String {
    body.pieces().iter().map(|piece| String::from_utf8_lossy(piece)).collect()
}

fn pretty_bytes(json: &Body) -> String {
    serde_json::from_str::<serde_json::Value>(&text(json)).map(|value| pretty(&value)).unwrap_or_default()
}

//! JSON with the same names as `/api/v1/servers`: absent means unknown, never null.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{milliseconds, up};
use crate::client::Found;
use crate::model::Player;

#[derive(Serialize)]
struct Document<'a> {
    total: usize,
    servers: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Event<'a> {
    at: &'a str,
    event: &'a str,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
    server: Row<'a>,
}

#[derive(Serialize)]
struct Row<'a> {
    game: &'a str,
    address: String,
    port: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mode: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    map: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    players_current: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    players_max: Option<u16>,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    official: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flavor: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    players: Option<&'a [Player]>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    rules: Map<String, Value>,
}

pub fn write(servers: &[Found]) -> String {
    let servers: Vec<_> = up(servers).map(row).collect();
    let document = Document { total: servers.len(), servers };
    // Plain structs, written to memory: this cannot fail.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// One server and what became of it, in a line.
pub fn event(at: &str, event: &str, found: &Found) -> String {
    let line = Event { at, event, fault: found.failure(), server: row(found) };
    serde_json::to_string(&line).unwrap_or_default()
}

fn row(found: &Found) -> Row<'_> {
    let facts = &found.facts;
    let details = facts.details.as_deref();
    let mut rules = Map::new();
    for (name, value) in details.map_or(&[][..], |details| &details.rules) {
        // Of a rule that is told twice the first counts.
        rules.entry(name.to_string()).or_insert_with(|| Value::from(&**value));
    }
    Row {
        game: found.game.name(),
        address: found.address.ip().to_string(),
        port: found.address.port(),
        name: &facts.name,
        mode: &facts.mode,
        map: &facts.map,
        players_current: facts.players_current,
        players_max: facts.players_max,
        version: &facts.version,
        password: facts.password,
        official: found.official,
        flavor: found.flavor,
        rtt_ms: found.rtt_us.map(milliseconds),
        players: details.and_then(|details| details.known_players(facts.players_current)),
        rules,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::servers;
    use super::*;

    #[test]
    fn the_contracts_names_and_no_null() {
        let text = write(&servers());
        assert!(!text.contains("null"), "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["total"], 2, "the one that failed is not among them");
        let expected = serde_json::json!({
            "game": "hyperbol", "address": "203.0.113.5", "port": 20200, "name": "A \"quoted\", <b>&amp;</b> name",
            "mode": "Deathmatch", "map": "a_doommkii.hba", "players_current": 3, "players_max": 8, "version": "1.08b",
            "password": false, "official": true, "flavor": 4, "rtt_ms": 12.345,
            "players": [{"name": "Al,ice", "team": "red"}], "rules": {"skill": "above novice", "players_IMF": "3"}
        });
        assert_eq!(json["servers"][0], expected);
        let named = serde_json::json!({"game": "netpanzer", "address": "2001:db8::1", "port": 3030});
        assert_eq!(json["servers"][1], named);
    }
}

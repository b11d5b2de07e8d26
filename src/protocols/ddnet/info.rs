//! What a game says of itself in the body of a request, checked by the rules of its clients, and what is kept of it.
//!
//! A client skips a server whose info breaks one of these rules: `max_clients` and `max_players` are integers, `passworded` is
//! a boolean, `game_type`, `name`, `version` and `map.name` are texts without control characters, `clients` is a list of
//! objects with the texts `name` and `clan`, the integers `country` and `score` and the boolean `is_player`; players ≤ clients
//! ≤ `max_clients`, and players ≤ `max_players` ≤ `max_clients`. Other keys that clients know are kept where they are
//! right. What no client knows is dropped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::NAME;
use crate::model::{Details, Facts, Game, GameRules, Player};
use crate::protocols::bound_facts;
use crate::text;

/// Upper bound on what is kept. A full server of 64 clients has 11 KiB with all skins, one of 128 has 12 KiB without them.
pub const KEPT_BYTES_MAX: usize = 16 << 10;
/// Upper bounds on texts: twice what clients show.
const NAME_BYTES_MAX: usize = 128;
const TEXT_BYTES_MAX: usize = 64;
const CLIENT_BYTES_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    max_clients: u16,
    max_players: u16,
    passworded: bool,
    game_type: String,
    name: String,
    map: MapInfo,
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_score_kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requires_login: Option<Value>,
    clients: Vec<Client>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MapInfo {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Client {
    name: String,
    clan: String,
    country: i64,
    score: i64,
    is_player: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    skin: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    afk: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    team: Option<Value>,
}

impl Info {
    /// Reads the body of a request. The error says what is wrong.
    pub fn parse(body: &[u8]) -> Result<Info, String> {
        let mut info: Info = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        info.check()?;
        info.clean();
        Ok(info)
    }

    /// The rules of clients that the types do not have.
    fn check(&self) -> Result<(), String> {
        let texts = [
            ("game_type", &self.game_type),
            ("name", &self.name),
            ("map.name", &self.map.name),
            ("version", &self.version),
        ];
        let of_clients =
            self.clients.iter().flat_map(|client| [("clients.name", &client.name), ("clients.clan", &client.clan)]);
        if let Some((key, _)) = texts.into_iter().chain(of_clients).find(|(_, text)| text.bytes().any(|byte| byte < 32))
        {
            return Err(format!("{key} has control characters"));
        }
        let (clients, players) = (self.clients.len(), self.players());
        let (clients_max, players_max) = (usize::from(self.max_clients), usize::from(self.max_players));
        if clients > clients_max {
            return Err(format!("{clients} clients, but max_clients is {clients_max}"));
        }
        if players > players_max {
            return Err(format!("{players} players, but max_players is {players_max}"));
        }
        if players_max > clients_max {
            return Err(format!("max_players is {players_max}, but max_clients is {clients_max}"));
        }
        Ok(())
    }

    fn players(&self) -> usize {
        self.clients.iter().filter(|client| client.is_player).count()
    }

    /// Cuts texts and drops what no client knows.
    fn clean(&mut self) {
        clean(&mut self.name, NAME_BYTES_MAX);
        for text in [&mut self.game_type, &mut self.version, &mut self.map.name] {
            clean(text, TEXT_BYTES_MAX);
        }
        self.map.sha256.take_if(|hash| !hash.as_str().is_some_and(is_sha256));
        self.map.size.take_if(|size| size.as_u64().is_none());
        // Clients look at the start.
        let kind = self.client_score_kind.take();
        let known =
            ["points", "time"].into_iter().find(|known| kind.as_ref().is_some_and(|kind| kind.starts_with(known)));
        self.client_score_kind = known.map(Into::into);
        self.requires_login.take_if(|value| !value.is_boolean());
        for client in &mut self.clients {
            clean(&mut client.name, CLIENT_BYTES_MAX);
            clean(&mut client.clan, CLIENT_BYTES_MAX);
            // Clients have 32 bits.
            client.country = client.country.clamp(i32::MIN.into(), i32::MAX.into());
            client.score = client.score.clamp(i32::MIN.into(), i32::MAX.into());
            client.skin = client.skin.take().and_then(|skin| known_skin(&skin));
            client.afk.take_if(|afk| !afk.is_boolean());
            client.team.take_if(|team| !team.is_i64());
        }
    }

    /// The text for lists, without blanks. Skins are left out if there is no room for them.
    pub fn kept(mut self) -> Result<String, String> {
        let json = |info: &Info| serde_json::to_string(info).unwrap_or_default(); // plain data: cannot fail
        let mut text = json(&self);
        if text.len() > KEPT_BYTES_MAX {
            self.clients.iter_mut().for_each(|client| client.skin = None);
            text = json(&self);
        }
        if text.len() > KEPT_BYTES_MAX {
            return Err(format!("{} bytes, of which at most {KEPT_BYTES_MAX} can be listed", text.len()));
        }
        Ok(text)
    }

    pub fn facts(&self) -> Facts<'static> {
        let mut rules = GameRules::new();
        let mut rule = |name: &str, value: String| rules.push(name, &value);
        rule("clients", self.clients.len().to_string());
        rule("max_clients", self.max_clients.to_string());
        if let Some(hash) = self.map.sha256.as_ref().and_then(Value::as_str) {
            rule("map_sha256", hash.into());
        }
        if let Some(size) = self.map.size.as_ref().and_then(Value::as_u64) {
            rule("map_size", size.to_string());
        }
        if let Some(kind) = &self.client_score_kind {
            rule("score_kind", kind.clone());
        }
        if self.requires_login == Some(Value::Bool(true)) {
            rule("requires_login", "true".into());
        }
        let players = self.clients.iter().map(|client| Player {
            name: client.name.as_str().into(),
            team: Some(client.clan.clone().into()).filter(|_| !client.clan.is_empty()),
            spectator: Some(!client.is_player),
            score: i32::try_from(client.score).ok(),
            ..Player::default()
        });
        let players = players.collect();
        let mut facts = Facts {
            name: self.name.clone().into(),
            mode: self.game_type.clone().into(),
            map: self.map.name.clone().into(),
            version: text::version(self.version.as_bytes()),
            players_current: u16::try_from(self.players()).ok(),
            players_max: Some(self.max_players),
            password: Some(self.passworded),
            details: Some(Arc::new(Details { players, rules }.bounded())),
            ..Facts::default()
        };
        bound_facts(&Game::Own(NAME), &mut facts);
        facts
    }

    /// The info of a server that is listed without one: it has not registered itself, but answers queries.
    pub fn of(facts: &Facts<'_>) -> Info {
        let players = facts.details.as_deref().map_or(&[][..], |details| &details.players);
        let clients: Vec<Client> = players.iter().map(Client::of).collect();
        let present = u16::try_from(clients.len()).unwrap_or(u16::MAX);
        let playing = u16::try_from(clients.iter().filter(|client| client.is_player).count()).unwrap_or(u16::MAX);
        let max_players = facts.players_max.unwrap_or(0).max(playing);
        let max_clients = facts.rule("max_clients").and_then(|most| most.parse().ok()).unwrap_or(max_players);
        let number = |name: &str| facts.rule(name).and_then(|value| value.parse::<u64>().ok()).map(Value::from);
        Info {
            max_clients: max_clients.max(max_players).max(present),
            max_players,
            passworded: facts.password.unwrap_or(false),
            game_type: facts.mode.as_ref().into(),
            name: facts.name.as_ref().into(),
            map: MapInfo { name: facts.map.as_ref().into(), sha256: None, size: number("map_size") },
            version: facts.version.to_string(),
            client_score_kind: None,
            requires_login: None,
            clients,
        }
    }
}

impl Client {
    fn of(player: &Player) -> Client {
        Client {
            name: player.name.as_ref().into(),
            clan: player.team.as_deref().unwrap_or_default().into(),
            country: -1,
            score: player.score.unwrap_or(0).into(),
            is_player: player.spectator != Some(true),
            skin: None,
            afk: None,
            team: None,
        }
    }
}

fn clean(text: &mut String, bytes_max: usize) {
    let cleaned = text::clean(text.as_bytes());
    let cut = cleaned.get(..cleaned.floor_char_boundary(bytes_max)).unwrap_or_default();
    if cut != text.as_str() {
        *text = cut.to_string();
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A skin of 0.6 (`name`, `color_body`, `color_feet`) or of 0.7 (six parts, each with `name` and `color`).
fn known_skin(skin: &Value) -> Option<Value> {
    const PARTS: [&str; 6] = ["body", "marking", "decoration", "hands", "feet", "eyes"];
    let mut known = Map::new();
    for (key, value) in skin.as_object()? {
        let is_part = PARTS.contains(&key.as_str());
        let value = match value {
            Value::Object(part) if is_part => Value::Object(part.iter().filter_map(known_in_skin).collect()),
            value => match known_in_skin((key, value)) {
                Some((_, value)) => value,
                None => continue,
            },
        };
        known.insert(key.clone(), value);
    }
    (!known.is_empty()).then_some(Value::Object(known))
}

fn known_in_skin((key, value): (&String, &Value)) -> Option<(String, Value)> {
    let is_known = match key.as_str() {
        "name" => {
            value.as_str().is_some_and(|name| name.len() <= CLIENT_BYTES_MAX && !name.bytes().any(|byte| byte < 32))
        }
        "color_body" | "color_feet" | "color" => value.is_i64(),
        _ => false,
    };
    is_known.then(|| (key.clone(), value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::ddnet::testing::INFO;
    use serde_json::json;

    fn client(name: &str, is_player: bool) -> Value {
        json!({"name": name, "clan": "A", "country": -1, "score": 5, "is_player": is_player})
    }

    /// The real info with these changes; null removes a key.
    fn changed(changes: Value) -> Result<Info, String> {
        let mut info: Value = serde_json::from_str(INFO).unwrap();
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(info.as_object_mut().unwrap().remove(key)),
                value => info[key] = value.clone(),
            }
        }
        Info::parse(info.to_string().as_bytes())
    }

    #[test]
    fn the_info_of_a_real_server_stays_as_it_is() {
        let info = Info::parse(INFO.as_bytes()).unwrap();
        assert_eq!(info.clone().kept().unwrap(), INFO);
        let facts = info.facts();
        assert_eq!((&*facts.name, &*facts.mode, &*facts.map), ("Loopback DD", "TestDDraceNetwork", "Tutorial"));
        assert_eq!((facts.version.as_str(), facts.rule("max_clients")), ("0.6.4, 16.4", Some("16")));
        assert_eq!(facts.rule("map_sha256").map(str::len), Some(64));
    }

    #[test]
    fn players_and_spectators_have_clans_and_scores() {
        let clients = [client("Alice", true), client("Bob", false)];
        let facts = changed(json!({ "clients": clients })).unwrap().facts();
        assert_eq!((facts.players_current, facts.rule("clients")), (Some(1), Some("2")));
        let players = &facts.details.as_ref().unwrap().players;
        assert_eq!((&*players[0].name, players[0].team.as_deref(), players[0].score), ("Alice", Some("A"), Some(5)));
        assert_eq!((players[0].spectator, players[1].spectator), (Some(false), Some(true)));
    }

    #[test]
    fn what_clients_refuse_is_refused_and_explained() {
        let many = |count: usize, is_player: bool| json!(vec![client("x", is_player); count]);
        for (changes, expected) in [
            (json!({"name": null}), "missing field `name`"),
            (json!({"name": 7}), "invalid type: integer `7`, expected a string"),
            (json!({"name": "a\u{1b}b"}), "name has control characters"),
            (json!({"version": "a\nb"}), "version has control characters"),
            (json!({"game_type": "\u{0}"}), "game_type has control characters"),
            (json!({"map": {"name": "\t"}}), "map.name has control characters"),
            (json!({"map": {}}), "missing field `name`"),
            (json!({"map": "x"}), "invalid type"),
            (json!({"max_clients": 16.0}), "invalid type"),
            (json!({"max_clients": -1}), "invalid value"),
            (json!({"max_clients": "16"}), "invalid type"),
            (json!({"passworded": 0}), "invalid type"),
            (json!({"client_score_kind": 1}), "invalid type"),
            (json!({"clients": {}}), "invalid type"),
            (json!({"clients": [{}]}), "missing field"),
            (json!({"clients": [client("a\u{7}", true)]}), "clients.name has control characters"),
            (json!({"clients": many(17, false)}), "17 clients, but max_clients is 16"),
            (json!({"max_players": 1, "clients": many(2, true)}), "2 players, but max_players is 1"),
            (json!({"max_players": 17}), "max_players is 17, but max_clients is 16"),
        ] {
            let error = changed(changes.clone()).unwrap_err();
            assert!(error.starts_with(expected), "{changes}: {error}");
        }
        for bad in ["", "[]", "7", "null", &INFO[1..], &format!("{INFO}x")] {
            assert!(Info::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Info::parse(&"[".repeat(100_000).into_bytes()).is_err());
    }

    #[test]
    fn keys_that_no_client_knows_are_dropped_and_texts_are_cut() {
        let mut alice = client("Alice", true);
        alice["skin"] =
            json!({"name": "bunny", "color_body": 7, "x": "y", "body": {"name": "bear", "color": 3, "z": 1}});
        alice["score"] = json!(1i64 << 40);
        alice["afk"] = json!("yes");
        alice["more"] = json!([1, 2]);
        let info = changed(json!({
            "clients": [alice],
            "name": "é".repeat(500),
            "map": {"name": "m", "sha256": "short", "size": "x", "more": {}},
            "client_score_kind": "time_and_more",
            "requires_login": "no",
            "more": {"a": [1]},
        }));
        let kept: Value = serde_json::from_str(&info.unwrap().kept().unwrap()).unwrap();
        assert_eq!(
            kept["clients"][0]["skin"],
            json!({"body": {"color": 3, "name": "bear"}, "color_body": 7, "name": "bunny"})
        );
        assert_eq!(kept["clients"][0]["score"], i32::MAX);
        assert_eq!((&kept["map"], &kept["client_score_kind"]), (&json!({"name": "m"}), &json!("time")));
        assert_eq!(kept["name"].as_str().unwrap().len(), NAME_BYTES_MAX);
        for gone in ["more", "requires_login"] {
            assert!(kept.get(gone).is_none(), "{gone}");
        }
        assert!(kept["clients"][0].get("afk").is_none() && kept["clients"][0].get("more").is_none());
    }

    #[test]
    fn keys_that_clients_know_are_kept_where_they_are_right() {
        let kept = |info: Value| -> Value { serde_json::from_str(&changed(info).unwrap().kept().unwrap()).unwrap() };
        let of_client = |key: &str, value: Value| {
            let mut alice = client("Alice", true);
            alice[key] = value;
            kept(json!({"clients": [alice]}))["clients"][0].get(key).cloned()
        };
        assert_eq!((of_client("team", json!(3)), of_client("team", json!("3"))), (Some(json!(3)), None));
        assert_eq!((of_client("afk", json!(true)), of_client("afk", json!(1))), (Some(json!(true)), None));
        for (skin, expected) in [
            (json!({"name": "a b"}), Some(json!({"name": "a b"}))),
            (json!({"name": "s".repeat(CLIENT_BYTES_MAX)}), Some(json!({"name": "s".repeat(CLIENT_BYTES_MAX)}))),
            (json!({"name": "s".repeat(CLIENT_BYTES_MAX + 1)}), None),
            (json!({"name": "a\u{1f}b"}), None),
            (json!({"color": "red", "body": 5, "x": {"name": "y"}}), None),
            (json!({"eyes": {"color": 1, "x": 2}}), Some(json!({"eyes": {"color": 1}}))),
        ] {
            assert_eq!(of_client("skin", skin.clone()), expected, "{skin}");
        }
        for (hash, is_kept) in [("0a".repeat(32), true), ("0g".repeat(32), false), ("0a".repeat(31), false)] {
            let map = kept(json!({"map": {"name": "m", "sha256": hash}}));
            assert_eq!(map["map"].get("sha256").is_some(), is_kept, "{hash}");
        }
        for (value, rule) in [(json!(true), Some("true")), (json!(false), None), (Value::Null, None)] {
            let facts = changed(json!({"requires_login": value})).unwrap().facts();
            assert_eq!(facts.rule("requires_login"), rule);
        }
    }

    #[test]
    fn what_has_just_the_length_is_kept_whole() {
        let with_length = |count: usize, skin: Value, length: usize| {
            let mut tee = client("n", true);
            tee["skin"] = skin;
            let clients = vec![tee; count];
            let mut info = changed(json!({"max_clients": count, "max_players": count, "clients": clients})).unwrap();
            let mut missing = length - serde_json::to_string(&info).unwrap().len();
            for client in &mut info.clients {
                let more = missing.min(20);
                client.name += &"x".repeat(more);
                missing -= more;
            }
            assert_eq!(missing, 0);
            info.kept()
        };
        let skin = json!({"name": "s"});
        let whole = with_length(173, skin.clone(), KEPT_BYTES_MAX).unwrap();
        assert!(whole.len() == KEPT_BYTES_MAX && whole.contains("skin"));
        let without = with_length(173, skin, KEPT_BYTES_MAX + 1).unwrap();
        assert!(without.len() < KEPT_BYTES_MAX && !without.contains("skin"));
        assert_eq!(with_length(226, json!({}), KEPT_BYTES_MAX).unwrap().len(), KEPT_BYTES_MAX);
        let error = with_length(226, json!({}), KEPT_BYTES_MAX + 1).unwrap_err();
        assert_eq!(error, "16385 bytes, of which at most 16384 can be listed");
    }

    #[test]
    fn a_full_server_fits_and_loses_its_skins_first() {
        let mut tee = client(&"n".repeat(15), true);
        tee["clan"] = json!("c".repeat(11));
        tee["skin"] = json!({"name": "s".repeat(23), "color_body": 16_777_215, "color_feet": 16_777_215});
        let full = |count: usize| {
            let clients = vec![tee.clone(); count];
            changed(json!({"max_clients": count, "max_players": count, "clients": clients})).unwrap().kept()
        };
        let (whole, without) = (full(64).unwrap(), full(128).unwrap());
        assert!(whole.contains("color_body") && !without.contains("color_body"));
        assert!(whole.len() <= KEPT_BYTES_MAX && without.len() <= KEPT_BYTES_MAX);
        assert!(full(400).unwrap_err().contains("at most"));
    }
}

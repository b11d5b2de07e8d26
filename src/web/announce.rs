//! `POST /api/v1/servers`: a server announces itself. Where its game cannot be queried, its owner says what it is like.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

use super::api::{bad_request, wrong};
use super::door::{Act, Closed, Through};
use super::filter::Wrong;
use super::json::Place;
use super::{Peer, Site, origin, parameters, reply};
use crate::budget::{Kind, Over};
use crate::model::{Address, Details, Facts, GAME_BYTES_MAX, HeartbeatKeys, MASTER, Player, VersionText};
use crate::protocols::{Heartbeat, Verdict, bound_facts, card, is_one_host, query_of};
use crate::text;

/// The longest name, map and mode, the longest text of a player or a rule's name, and the longest value of a rule, in characters.
const TEXT_CHARS_MAX: usize = 128;
const SHORT_CHARS_MAX: usize = 64;
const RULE_CHARS_MAX: usize = 256;

/// A server that announces itself.
#[derive(Debug, Default, PartialEq, ToSchema)]
pub struct Announcement {
    /// The game's name. May be left out if the protocol is given and has one game, or if the server's answer says which.
    #[schema(max_length = 64)]
    game: Option<String>,
    /// The protocol that the server speaks. If absent, it follows from the game's name.
    protocol: Option<String>,
    /// The port that players connect to.
    #[schema(minimum = 1, maximum = 65535, required = true, nullable = false)]
    port: Option<u16>,
    /// Its IP address, if that is not the caller's own. Needs the operator's token.
    #[schema(value_type = Option<String>)]
    address: Option<IpAddr>,
    /// What it is called. This and all that follows is only for games that cannot be queried: all others say it themselves.
    #[schema(max_length = 128)]
    name: Option<String>,
    #[schema(max_length = 128)]
    mode: Option<String>,
    #[schema(max_length = 128)]
    map: Option<String>,
    /// Printable ASCII.
    #[schema(max_length = 32, pattern = "^[ -~]*$")]
    version: Option<String>,
    /// Whether a password is needed to join.
    password: Option<bool>,
    /// The number of players. If absent, those in `players` are counted.
    players_current: Option<u16>,
    players_max: Option<u16>,
    #[schema(max_items = 256)]
    players: Option<Vec<Player>>,
    /// Names and values, each a text.
    rules: Option<BTreeMap<String, String>>,
}

/// The result of an announcement.
#[derive(Serialize, ToSchema)]
struct Announced {
    listed: bool,
    /// The address under which the server is known.
    #[serde(flatten)]
    place: Place,
    /// The server has to announce itself again within this many seconds.
    life_s: u64,
    /// Whether the list shows what the announcement says of the server, marked as stated by its owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stated: bool,
}

/// Announces a server
///
/// The caller's own address is announced. A server of a game that can be queried is queried before it is listed, so the
/// answer can take four seconds. Of a game that cannot be queried, the announcement says what the server is like, and the list shows
/// it with `stated`. Each announcement replaces what the one before it said. Another address can be announced with the operator's
/// token. The body has to be sent as `application/json`, and not by a page of another origin.
#[utoipa::path(post, path = "/api/v1/servers", tag = "servers", operation_id = "announceServer", request_body = Announcement, responses(
    (status = 200, description = "The server is listed", body = Announced),
    (status = 400, description = "The announcement is wrong", body = Wrong),
    (status = 403, description = "A page of another origin sent it, or a proxy that is not configured", body = Wrong),
    (status = 415, description = "It was not sent as application/json", body = Wrong),
    (status = 401, description = "Another address needs the operator's token", body = Wrong),
    (status = 413, description = "It is longer than 12 KiB", body = Wrong),
    (status = 422, description = "The server is not listed; the error says why", body = Wrong),
    (status = 429, description = "Too many announcements from this network; `Retry-After` says when to try again", body = Wrong),
))]
pub async fn announce(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(through): Extension<Through>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let refused = |status, error: &str| wrong(status, &Wrong { error: error.into(), parameter: None });
    if let Err(closed) = site.admits(Act::Announce, through, &headers) {
        return refused(Closed::STATUS, &closed.to_string());
    }
    if !origin::is_json(&headers) {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the Content-Type has to be application/json");
    }
    let announcement = match Announcement::read(&body) {
        Ok(announcement) => announcement,
        Err(error) => return bad_request(&error),
    };
    let ip = announcement.address.unwrap_or(peer.ip()).to_canonical();
    if ip != peer.ip().to_canonical() {
        match site.has_token(peer.ip(), &headers) {
            Ok(true) => {}
            Ok(false) => {
                let error = "announcing another address than your own needs the operator's token";
                return wrong(StatusCode::UNAUTHORIZED, &Wrong::parameter("address", error));
            }
            Err(over) => return reply::over(over),
        }
    }
    let heartbeat = match announcement.heartbeat(ip) {
        Ok(heartbeat) => heartbeat,
        Err(error) => return bad_request(&error),
    };
    let (address, life_ms, stated) = (heartbeat.address, heartbeat.life_ms, heartbeat.said.is_some());
    match site.announcements.announce(heartbeat).await {
        Verdict::Listed => {
            let announced = Announced { listed: true, place: address.into(), life_s: life_ms / 1000, stated };
            reply::json(StatusCode::OK, &announced)
        }
        Verdict::Refused(error) => wrong(StatusCode::UNPROCESSABLE_ENTITY, &Wrong { error, parameter: None }),
        Verdict::TryLater { reason, after_s } => reply::try_later(&reason, after_s),
    }
}

impl Site {
    /// Whether a request has the operator's token. Wrong ones are charged to the client: who has guessed too often is not told
    /// whether the next guess is right.
    pub fn has_token(&self, client: IpAddr, headers: &HeaderMap) -> Result<bool, Over> {
        let pages = self.pages.load();
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(given) = given.and_then(|value| value.strip_prefix("Bearer ")).filter(|_| !pages.token.is_empty())
        else {
            return Ok(false);
        };
        let (budgets, now) = (self.guard.budgets(), self.hub.clock.now());
        budgets.admit(Kind::Guesses, now, client)?;
        let is_right = bool::from(given.as_bytes().ct_eq(pages.token.as_bytes()));
        if !is_right {
            budgets.charge(Kind::Guesses, now, client, 1);
        }
        Ok(is_right)
    }
}

impl Announcement {
    const NAMES: [&str; 13] = [
        "game",
        "protocol",
        "port",
        "address",
        "name",
        "mode",
        "map",
        "version",
        "password",
        "players_current",
        "players_max",
        "players",
        "rules",
    ];

    /// Reads a body; an error names the field at fault. Null is the same as leaving a field out.
    fn read(body: &[u8]) -> Result<Announcement, Wrong> {
        let unread = |error| Wrong { error: format!("the body: {error}"), parameter: None };
        let Pairs(pairs) = serde_json::from_slice(body).map_err(unread)?;
        let mut read = Announcement::default();
        for (at, (name, value)) in pairs.iter().enumerate() {
            if pairs.iter().take(at).any(|(known, _)| known == name) {
                return Err(Wrong::parameter(name, "is given twice"));
            }
            // An unknown name is an error, whatever its value.
            if !value.is_null() || !Announcement::NAMES.contains(&name.as_str()) {
                read.take(name, value)?;
            }
        }
        Ok(read)
    }

    fn take(&mut self, name: &str, value: &Value) -> Result<(), Wrong> {
        let text = || texts(name, value, TEXT_CHARS_MAX);
        let number = || {
            let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
            number.map(Some).ok_or_else(|| Wrong::parameter(name, "must be a whole number from 0 to 65535"))
        };
        match name {
            "game" => self.game = Some(texts(name, value, usize::MAX)?),
            "protocol" => self.protocol = Some(texts(name, value, usize::MAX)?),
            "port" => self.port = number()?,
            "address" => {
                let address = value.as_str().and_then(|text| text.parse().ok());
                self.address = Some(address.ok_or_else(|| Wrong::parameter(name, "must be an IP address"))?);
            }
            "name" => self.name = Some(text()?),
            "mode" => self.mode = Some(text()?),
            "map" => self.map = Some(text()?),
            "version" => {
                let version = texts(name, value, VersionText::new_const().capacity())?;
                let is_plain = version.bytes().all(|byte| matches!(byte, b' '..=b'~'));
                let is_plain = is_plain.then_some(version);
                self.version = Some(is_plain.ok_or_else(|| Wrong::parameter(name, "must be printable ASCII"))?);
            }
            "password" => {
                let flag = value.as_bool();
                self.password = Some(flag.ok_or_else(|| Wrong::parameter(name, "must be true or false"))?);
            }
            "players_current" => self.players_current = number()?,
            "players_max" => self.players_max = number()?,
            "players" => self.players = Some(players(value)?),
            "rules" => self.rules = Some(rules(value)?),
            _ => return Err(parameters::unknown(name, &Announcement::NAMES)),
        }
        Ok(())
    }

    fn heartbeat(self, ip: IpAddr) -> Result<Heartbeat, Wrong> {
        let port = self.port.ok_or_else(|| Wrong::parameter("port", "is missing"))?;
        let address = Address::new(ip, port).ok_or_else(|| Wrong::parameter("port", "must not be 0"))?;
        if !is_one_host(ip) {
            return Err(Wrong::parameter("address", "is not the address of one host"));
        }
        let protocol = match &self.protocol {
            Some(name) => Some(card(name).ok_or_else(|| Wrong::parameter("protocol", "is unknown here"))?),
            None => None,
        };
        // A protocol with one game needs no name beside its own, and a server of a family says it itself.
        let name = match (self.game.as_deref().unwrap_or_default(), protocol) {
            ("", Some(card)) => card.name,
            ("", None) => return Err(Wrong::parameter("game", "is missing")),
            (name, _) => name,
        };
        if name.len() > GAME_BYTES_MAX || name.contains('\\') || name == MASTER {
            return Err(Wrong::parameter("game", "is not the name of a game"));
        }
        let keys = HeartbeatKeys::of(name, address);
        let mut heartbeat =
            Heartbeat::new(address, protocol, name, keys).map_err(|error| Wrong::parameter("game", error))?;
        if let Some(said) = self.first_said() {
            if query_of(&heartbeat.game).is_some() {
                let error = "is not taken for this game: its servers are queried, and say it themselves";
                return Err(Wrong::parameter(said, error));
            }
            let mut facts = self.facts();
            bound_facts(&heartbeat.game, &mut facts);
            heartbeat.said = Some(Box::new(facts));
        }
        Ok(heartbeat)
    }

    /// The first field that says what the server is like, if there is one.
    fn first_said(&self) -> Option<&'static str> {
        let said = [
            ("name", self.name.is_some()),
            ("mode", self.mode.is_some()),
            ("map", self.map.is_some()),
            ("version", self.version.is_some()),
            ("password", self.password.is_some()),
            ("players_current", self.players_current.is_some()),
            ("players_max", self.players_max.is_some()),
            ("players", self.players.is_some()),
            ("rules", self.rules.is_some()),
        ];
        said.into_iter().find_map(|(name, is_said)| is_said.then_some(name))
    }

    fn facts(self) -> Facts<'static> {
        let playing = |players: &Vec<Player>| {
            let playing = players.iter().filter(|player| player.spectator != Some(true)).count();
            u16::try_from(playing).unwrap_or(u16::MAX)
        };
        let players_current = self.players_current.or_else(|| self.players.as_ref().map(playing));
        let details = (self.players.is_some() || self.rules.is_some()).then(|| {
            let rules = self.rules.unwrap_or_default().into_iter().collect();
            Arc::new(Details { players: self.players.unwrap_or_default(), rules }.bounded())
        });
        Facts {
            name: self.name.unwrap_or_default().into(),
            mode: self.mode.unwrap_or_default().into(),
            map: self.map.unwrap_or_default().into(),
            version: self.version.as_deref().and_then(|text| VersionText::from(text).ok()).unwrap_or_default(),
            players_current,
            players_max: self.players_max,
            password: self.password,
            details,
            ..Facts::default()
        }
    }
}

/// A text of a field, cleaned.
fn texts(name: &str, value: &Value, chars_max: usize) -> Result<String, Wrong> {
    let given = value.as_str().ok_or_else(|| Wrong::parameter(name, "must be a text"))?;
    match given.chars().count() > chars_max {
        true => Err(Wrong::parameter(name, format!("has a text of more than {chars_max} characters"))),
        false => Ok(text::clean(given.as_bytes()).trim().to_string()),
    }
}

fn rules(value: &Value) -> Result<BTreeMap<String, String>, Wrong> {
    let given = value.as_object().ok_or_else(|| Wrong::parameter("rules", "must be an object of texts"))?;
    if given.len() > Details::RULES_MAX {
        return Err(Wrong::parameter("rules", format!("must be {} at most", Details::RULES_MAX)));
    }
    let text = |text: &Value, chars_max| texts("rules", text, chars_max);
    given
        .iter()
        .map(|(name, value)| Ok((text(&name.as_str().into(), SHORT_CHARS_MAX)?, text(value, RULE_CHARS_MAX)?)))
        .collect()
}

fn players(value: &Value) -> Result<Vec<Player>, Wrong> {
    let wrong = |error: String| Wrong::parameter("players", error);
    let given = value.as_array().ok_or_else(|| wrong("must be a list of players".into()))?;
    if given.len() > Details::PLAYERS_MAX {
        return Err(wrong(format!("must be {} at most", Details::PLAYERS_MAX)));
    }
    let player = |(at, value): (usize, &Value)| {
        let player: StatedPlayer =
            serde_json::from_value(value.clone()).map_err(|error| wrong(format!("number {}: {error}", at + 1)))?;
        let text = |text: String| texts("players", &text.into(), SHORT_CHARS_MAX);
        Ok(Player {
            name: text(player.name)?.into(),
            team: player.team.map(text).transpose()?.map(Into::into),
            spectator: player.spectator,
            ping: player.ping,
            score: player.score,
            points: player.points,
            kills: player.kills,
            deaths: player.deaths,
        })
    };
    given.iter().enumerate().map(player).collect()
}

/// A player as an announcement states it: [`Player`], in which nothing else may be.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct StatedPlayer {
    name: String,
    team: Option<String>,
    spectator: Option<bool>,
    ping: Option<i32>,
    score: Option<i32>,
    points: Option<i32>,
    kills: Option<i32>,
    deaths: Option<i32>,
}

/// The fields of an object, also those that come twice.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn heartbeat(body: &Value) -> Result<Heartbeat, Wrong> {
        Announcement::read(body.to_string().as_bytes())?.heartbeat([203, 0, 113, 5].into())
    }

    #[test]
    fn what_an_owner_states_is_cleaned_and_bounded() {
        let body = json!({
            "game": "mygame", "port": 7777, "name": " My\u{1b}[1m server ", "mode": "ctf", "map": null, "version": "1.2",
            "password": false, "players_max": 8, "rules": {"b": "2", "a": "1"},
            "players": [{"name": "Ann", "score": 3}, {"name": "Bob\u{7}", "spectator": true}],
        });
        let facts = *heartbeat(&body).unwrap().said.unwrap();
        assert_eq!(
            (&*facts.name, &*facts.mode, &*facts.map, facts.version.as_str()),
            ("My[1m server", "ctf", "", "1.2")
        );
        assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(1), Some(8), Some(false)));
        assert_eq!((facts.rule("a"), facts.rule("b")), (Some("1"), Some("2")));
        let details = facts.details.unwrap();
        assert_eq!((&*details.players[1].name, details.players[0].score), ("Bob", Some(3)));
        assert!(heartbeat(&json!({"game": "mygame", "port": 7777})).unwrap().said.is_none());
    }

    #[test]
    fn errors_name_the_field() {
        let with = |name: &str, value: Value| {
            let mut body = json!({"game": "mygame", "port": 7777});
            body[name] = value;
            body
        };
        let many = |count: usize| vec![json!({"name": "x"}); count];
        for (body, field, says) in [
            (json!({"game": "mygame"}), "port", "is missing"),
            (json!({"port": 1}), "game", "is missing"),
            (json!({"port": 1, "game": ""}), "game", "is missing"),
            (with("port", json!(70_000)), "port", "65535"),
            (with("port", json!(-1)), "port", "65535"),
            (with("port", json!(0)), "port", "not be 0"),
            (with("game", json!("a\\b")), "game", "name of a game"),
            (with("game", json!(7)), "game", "must be a text"),
            (with("address", json!("here")), "address", "IP address"),
            (with("protocol", json!("chess")), "protocol", "unknown"),
            (with("name", json!("x".repeat(129))), "name", "more than 128"),
            (with("version", json!("é")), "version", "ASCII"),
            (with("version", json!("x".repeat(33))), "version", "more than 32"),
            (with("password", json!("no")), "password", "true or false"),
            (with("players_current", json!(1.5)), "players_current", "whole number"),
            (with("players", json!({})), "players", "list"),
            (with("players", json!(many(257))), "players", "256"),
            (with("players", json!([{"name": "Ann"}, {"score": 3}])), "players", "number 2: missing field `name`"),
            (with("players", json!([{"name": "x".repeat(65)}])), "players", "more than 64"),
            (with("rules", json!([1])), "rules", "object"),
            (with("rules", json!({"a": 1})), "rules", "must be a text"),
            (with("nmae", json!("x")), "nmae", "known are game, protocol, port"),
            (with("nmae", Value::Null), "nmae", "known are"),
        ] {
            let wrong = heartbeat(&body).unwrap_err();
            assert_eq!(wrong.parameter.as_deref(), Some(field), "{body}: {wrong:?}");
            assert!(wrong.error.contains(says), "{body}: {wrong:?}");
        }
        let read = |body: &str| Announcement::read(body.as_bytes()).unwrap_err();
        assert_eq!(read(r#"{"port": 1, "game": "a", "port": 2}"#), Wrong::parameter("port", "is given twice"));
        for body in ["", "7", "[]", "{", "null", r#"{"port": 1} x"#] {
            assert!(read(body).error.starts_with("the body: "), "{body}");
        }
    }

    #[test]
    fn a_game_that_is_queried_says_it_itself() {
        let queried = crate::protocols::CARDS.iter().filter(|card| card.query.is_some());
        let mut taken = 0;
        for card in queried {
            let body = json!({"protocol": card.name, "port": 1, "map": "x"});
            let wrong = heartbeat(&body).unwrap_err();
            taken += usize::from(wrong.parameter.as_deref() == Some("map"));
        }
        assert!(taken > 2);
    }
}

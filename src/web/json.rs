//! A server in JSON, with the field names of the documents. Unknown fields are absent, never null.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::model::{Address, Fields, Origin, Player, Server};
use crate::protocols::join::Join;
use crate::protocols::own_card;
use crate::times;

/// A listed server. A field that is absent is unknown.
#[derive(Serialize, ToSchema)]
#[schema(as = Server)]
pub struct ServerJson<'a> {
    /// The protocol that it speaks.
    protocol: &'static str,
    /// The game's name, as its protocol writes it.
    game: &'a str,
    /// The IP address.
    address: String,
    port: u16,
    /// Both together, as every parameter takes them.
    endpoint: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mode: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    map: &'a str,
    /// Active players; where a game also counts clients or spectators, those counts are in the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    players_current: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    players_max: Option<u16>,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    /// Whether a password is needed to join.
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<bool>,
    /// Whether the operator marks it as official.
    official: bool,
    /// Set by the operator: lists are sorted by it, highest first.
    #[serde(skip_serializing_if = "is_zero")]
    priority: i32,
    /// The kind of official server, in games that have kinds; 0 is unofficial.
    #[serde(skip_serializing_if = "Option::is_none")]
    flavor: Option<u8>,
    /// How its address was verified: `cookie`, `query`, `connection` or `config`.
    verified_by: &'static str,
    /// The master whose list named it, if it did not announce itself here: another master that this one follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<&'a str>,
    /// When it was last verified (RFC 3339, UTC).
    proven_at: String,
    first_seen: String,
    /// When it last announced itself or, if it is listed via another master, answered.
    last_seen: String,
    /// The round trip from this master, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_ms: Option<f64>,
    /// How a player joins it; absent where no way is known but to enter the address in the game.
    #[serde(skip_serializing_if = "Join::is_unknown")]
    join: Join,
    /// The players, where the game reports them. An empty list: nobody plays.
    #[serde(skip_serializing_if = "Option::is_none")]
    players: Option<&'a [Player]>,
    #[serde(skip_serializing_if = "Rules::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    rules: Rules<'a>,
}

impl<'a> ServerJson<'a> {
    pub fn new(server: &'a Server) -> ServerJson<'a> {
        let has_flavor = own_card(&server.game).is_some_and(|card| card.flavors);
        ServerJson {
            protocol: server.game.protocol(),
            game: server.game.name(),
            address: server.address.ip().to_string(),
            port: server.address.port(),
            endpoint: server.address.to_string(),
            name: server.texts.name(),
            mode: server.texts.mode(),
            map: server.texts.map(),
            players_current: server.players_current,
            players_max: server.players_max,
            version: server.texts.version(),
            password: server.password,
            official: server.overrides.official,
            priority: server.overrides.priority,
            flavor: has_flavor.then_some(server.overrides.flavor),
            verified_by: server.verified_by.name(),
            via: server.via.as_deref().map(Origin::name),
            proven_at: rfc3339(server.proven_at_ms),
            first_seen: rfc3339(server.first_seen_ms),
            last_seen: rfc3339(server.last_seen_ms.max(server.proven_at_ms)),
            rtt_ms: server.rtt_us.map(|us| f64::from(us.get()) / 1000.0),
            join: own_card(&server.game).map(|card| (card.join)(server)).unwrap_or_default(),
            players: server.known_players(),
            rules: Rules(server.rules()),
        }
    }

    /// The same without players and rules.
    pub fn brief(server: &'a Server) -> ServerJson<'a> {
        ServerJson { players: None, rules: Rules(&[]), ..ServerJson::new(server) }
    }
}

/// A change of a server: where it is, and the fields that changed, each with its whole new value, or null if it is absent now.
/// What moves with every proof comes along.
pub struct Patch<'a> {
    server: &'a Server,
    fields: Fields,
}

impl<'a> Patch<'a> {
    pub fn new(server: &'a Server, fields: Fields) -> Patch<'a> {
        Patch { server, fields }
    }
}

impl Serialize for Patch<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = ServerJson::new(self.server);
        let mut patch = PatchMap { map: serializer.serialize_map(None)?, fields: self.fields };
        patch.put(Fields::GAME, "protocol", Some(row.protocol))?;
        patch.put(Fields::GAME, "game", Some(row.game))?;
        patch.map.serialize_entry("address", &row.address)?;
        patch.map.serialize_entry("port", &row.port)?;
        patch.map.serialize_entry("endpoint", &row.endpoint)?;
        patch.text(Fields::NAME, "name", row.name)?;
        patch.text(Fields::MODE, "mode", row.mode)?;
        patch.text(Fields::MAP, "map", row.map)?;
        patch.put(Fields::PLAYERS_CURRENT, "players_current", row.players_current)?;
        patch.put(Fields::PLAYERS_MAX, "players_max", row.players_max)?;
        patch.text(Fields::VERSION, "version", row.version)?;
        patch.put(Fields::PASSWORD, "password", row.password)?;
        patch.put(Fields::OFFICIAL, "official", Some(row.official))?;
        patch.put(Fields::PRIORITY, "priority", Some(row.priority).filter(|priority| !is_zero(priority)))?;
        patch.put(Fields::FLAVOR, "flavor", row.flavor)?;
        patch.put(Fields::VERIFIED_BY, "verified_by", Some(row.verified_by))?;
        patch.put(Fields::VIA, "via", row.via)?;
        patch.map.serialize_entry("proven_at", &row.proven_at)?;
        patch.put(Fields::FIRST_SEEN, "first_seen", Some(row.first_seen))?;
        patch.map.serialize_entry("last_seen", &row.last_seen)?;
        match row.rtt_ms {
            Some(rtt_ms) => patch.map.serialize_entry("rtt_ms", &rtt_ms)?,
            None => patch.put(Fields::HAS_RTT, "rtt_ms", None::<f64>)?,
        }
        patch.put(Fields::JOIN, "join", Some(row.join).filter(|join| !join.is_unknown()))?;
        patch.put(Fields::PLAYERS, "players", row.players)?;
        patch.put(Fields::RULES, "rules", Some(row.rules).filter(|rules| !rules.is_empty()))?;
        patch.map.end()
    }
}

/// Writes the fields of a patch that have changed.
struct PatchMap<M> {
    map: M,
    fields: Fields,
}

impl<M: SerializeMap> PatchMap<M> {
    fn put(&mut self, field: Fields, name: &str, value: Option<impl Serialize>) -> Result<(), M::Error> {
        if self.fields.has(field) { self.map.serialize_entry(name, &value) } else { Ok(()) }
    }

    fn text(&mut self, field: Fields, name: &str, text: &str) -> Result<(), M::Error> {
        self.put(field, name, Some(text).filter(|text| !text.is_empty()))
    }
}

/// Where a server is: how every object that names one spells it.
#[derive(Serialize, ToSchema)]
pub struct Place {
    /// The IP address.
    pub address: String,
    pub port: u16,
    /// Both together, e.g. `203.0.113.5:20737`, as every parameter takes them.
    pub endpoint: String,
}

impl From<Address> for Place {
    fn from(address: Address) -> Place {
        Place { address: address.ip().to_string(), port: address.port(), endpoint: address.to_string() }
    }
}

impl ServerJson<'_> {
    /// What it says apart from when the server was last seen, and how far away it was then.
    pub fn without_times(self) -> Self {
        ServerJson { proven_at: String::new(), last_seen: String::new(), rtt_ms: None, ..self }
    }
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Rules as an object, in the server's own order.
struct Rules<'a>(&'a [(Box<str>, Box<str>)]);

impl Rules<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Rules<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// A time of day as RFC 3339, UTC.
pub fn rfc3339(unix_ms: u64) -> String {
    times::rfc3339(unix_ms / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Details, Facts, Game, Overrides, Proof, round_trip};
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use std::sync::Arc;

    fn server((name, players, maximum, extra, rule, at): (u8, u8, u8, u8, u8, u64)) -> Server {
        let known = |number: u8| (number > 0).then_some(u16::from(number));
        let text = |number: u8| String::from_utf8(vec![b'x'; number.into()]).unwrap().into();
        let player = Player { name: "Ann".into(), score: Some(rule.into()), ..Player::default() };
        let rules = (0..rule).map(|number| (format!("r{number}").into(), format!("{maximum}").into())).collect();
        let details = Details { players: vec![player; extra.into()], rules };
        let facts = Facts {
            name: text(name),
            map: text(maximum),
            mode: text(rule),
            players_current: known(players),
            players_max: known(maximum).map(|most| most + 10),
            password: [None, Some(true), Some(false)][usize::from(extra) % 3],
            details: (extra > 0).then(|| Arc::new(details)),
            ..Facts::default()
        };
        let proof = [Proof::Query, Proof::Cookie][usize::from(name) % 2];
        Server {
            overrides: Overrides { official: extra == 1, priority: i32::from(name) - 1, flavor: extra },
            rtt_us: (players > 1).then(|| round_trip(players.into())),
            first_seen_ms: u64::from(rule) * 1000,
            via: (rule > 1).then(|| Arc::new(Origin::new("elsewhere"))),
            ..Server::new("203.0.113.5:1".parse().unwrap(), Game::Own("iceball"), proof, at * 1000, &facts)
        }
    }

    /// As a reader applies it.
    fn apply(row: &mut Map<String, Value>, patch: &Value) {
        for (name, value) in patch.as_object().unwrap() {
            match value {
                Value::Null => drop(row.remove(name)),
                value => drop(row.insert(name.clone(), value.clone())),
            }
        }
    }

    fn states() -> impl Strategy<Value = (u8, u8, u8, u8, u8, u64)> {
        (0..3u8, 0..4u8, 0..3u8, 0..3u8, 0..3u8, 0..3u64)
    }

    proptest! {
        #[test]
        fn a_row_with_its_patches_is_the_new_row(before in states(), after in states()) {
            let (before, after) = (server(before), server(after));
            let fields = Fields::between(&before, &after);
            let expected = json!(ServerJson::new(&after));
            let mut row = json!(ServerJson::new(&before)).as_object().unwrap().clone();
            apply(&mut row, &json!(Patch::new(&after, fields)));
            prop_assert_eq!(Value::Object(row), expected.clone());
            let mut unknown = Map::new();
            apply(&mut unknown, &json!(Patch::new(&after, Fields::ALL)));
            prop_assert_eq!(Value::Object(unknown), expected);
            // Without details, too.
            let mut brief = json!(ServerJson::brief(&before)).as_object().unwrap().clone();
            apply(&mut brief, &json!(Patch::new(&after, fields.without(Fields::DETAILS))));
            prop_assert_eq!(Value::Object(brief), json!(ServerJson::brief(&after)));
        }
    }

    #[test]
    fn a_patch_has_only_what_changed_and_what_moves_with_every_proof() {
        let patch = json!(Patch::new(&server((1, 3, 1, 1, 1, 7)), Fields::PLAYERS_CURRENT | Fields::RULES));
        let expected = json!({
            "address": "203.0.113.5", "port": 1, "endpoint": "203.0.113.5:1", "players_current": 3, "rules": {"r0": "1"},
            "proven_at": "1970-01-01T00:00:07Z", "last_seen": "1970-01-01T00:00:07Z", "rtt_ms": 0.003,
        });
        assert_eq!(patch, expected);
    }
}

//! A server in JSON, with the field names of the documents. Unknown fields are absent, never null.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::columns::{Column, Columns};
use crate::geo;
use crate::model::{Address, Fields, GameRules, Origin, Player, Server};
use crate::protocols::join::Join;
use crate::protocols::own_card;
use crate::times;

/// A listed server. A field that is absent is unknown, or was not asked for.
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
    #[schema(required = false)]
    official: bool,
    /// Set by the operator: lists are sorted by it, highest first.
    #[serde(skip_serializing_if = "is_zero")]
    priority: i32,
    /// The kind of official server, in games that have kinds; 0 is unofficial.
    #[serde(skip_serializing_if = "Option::is_none")]
    flavor: Option<u8>,
    /// How its address was verified: `cookie`, `query`, `connection` or `config`.
    #[schema(required = false)]
    verified_by: &'static str,
    /// True where the game cannot be queried: its owner states what is known of it. Otherwise absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stated: bool,
    /// The master whose list named it, if it did not announce itself here: another master that this one follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<&'a str>,
    /// It announces itself and no longer answers; this is when it last did. Otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    unanswered_since: Option<String>,
    /// Where it is: two letters (ISO 3166), if the operator has a database and the address is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    country: Option<&'static str>,
    /// When it was last verified (RFC 3339, UTC).
    #[schema(required = false)]
    proven_at: String,
    #[schema(required = false)]
    first_seen: String,
    /// When it last announced itself or, if it is listed via another master, answered.
    #[schema(required = false)]
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
            stated: server.is_stated(),
            via: server.via.as_deref().map(Origin::name),
            unanswered_since: server.is_unanswered().then(|| rfc3339(server.proven_at_ms)),
            country: geo::country(server.address.ip()),
            proven_at: rfc3339(server.proven_at_ms),
            first_seen: rfc3339(server.first_seen_ms),
            last_seen: rfc3339(server.last_seen_ms.max(server.proven_at_ms)),
            rtt_ms: server.rtt_us.map(|us| f64::from(us.get()) / 1000.0),
            join: own_card(&server.game).map(|card| (card.join)(server)).unwrap_or_default(),
            players: server.known_players(),
            rules: Rules(server.rules()),
        }
    }
}

/// A server with the fields that a client wants.
pub struct Row<'a> {
    server: &'a Server,
    columns: Columns,
}

impl<'a> Row<'a> {
    pub fn new(server: &'a Server, columns: Columns) -> Row<'a> {
        Row { server, columns }
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = ServerJson::new(self.server);
        if self.columns == Columns::ALL {
            return row.serialize(serializer);
        }
        let map = serializer.serialize_map(None)?;
        row.write(Writer { map, columns: self.columns, changed: Fields::ALL, nulls: false })
    }
}

/// A change of a server: where it is, and the wanted fields that changed, each with its whole new value, or null if it is absent
/// now. What moves with every proof comes along.
pub struct Patch<'a> {
    server: &'a Server,
    changed: Fields,
    columns: Columns,
}

impl<'a> Patch<'a> {
    pub fn new(server: &'a Server, changed: Fields, columns: Columns) -> Patch<'a> {
        Patch { server, changed, columns }
    }
}

impl Serialize for Patch<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let map = serializer.serialize_map(None)?;
        let writer = Writer { map, columns: self.columns, changed: self.changed, nulls: true };
        ServerJson::new(self.server).write(writer)
    }
}

impl ServerJson<'_> {
    /// Writes some fields.
    fn write<M: SerializeMap>(self, mut to: Writer<M>) -> Result<M::Ok, M::Error> {
        let row = self;
        to.put(Fields::GAME, Column::Protocol, "protocol", Some(row.protocol))?;
        to.put(Fields::GAME, Column::Game, "game", Some(row.game))?;
        to.always(Column::Address, "address", row.address)?;
        to.always(Column::Port, "port", row.port)?;
        to.always(Column::Endpoint, "endpoint", row.endpoint)?;
        to.text(Fields::NAME, Column::Name, "name", row.name)?;
        to.text(Fields::MODE, Column::Mode, "mode", row.mode)?;
        to.text(Fields::MAP, Column::Map, "map", row.map)?;
        to.put(Fields::PLAYERS_CURRENT, Column::PlayersCurrent, "players_current", row.players_current)?;
        to.put(Fields::PLAYERS_MAX, Column::PlayersMax, "players_max", row.players_max)?;
        to.text(Fields::VERSION, Column::Version, "version", row.version)?;
        to.put(Fields::PASSWORD, Column::Password, "password", row.password)?;
        to.put(Fields::OFFICIAL, Column::Official, "official", Some(row.official))?;
        let priority = Some(row.priority).filter(|priority| !is_zero(priority));
        to.put(Fields::PRIORITY, Column::Priority, "priority", priority)?;
        to.put(Fields::FLAVOR, Column::Flavor, "flavor", row.flavor)?;
        to.put(Fields::VERIFIED_BY, Column::VerifiedBy, "verified_by", Some(row.verified_by))?;
        to.put(Fields::STATED, Column::Stated, "stated", Some(row.stated).filter(|stated| *stated))?;
        to.put(Fields::VIA, Column::Via, "via", row.via)?;
        to.put(Fields::UNANSWERED, Column::UnansweredSince, "unanswered_since", row.unanswered_since)?;
        // Like the game, it never changes.
        to.put(Fields::GAME, Column::Country, "country", row.country)?;
        to.always(Column::ProvenAt, "proven_at", row.proven_at)?;
        to.put(Fields::FIRST_SEEN, Column::FirstSeen, "first_seen", Some(row.first_seen))?;
        to.always(Column::LastSeen, "last_seen", row.last_seen)?;
        match row.rtt_ms {
            Some(rtt_ms) => to.always(Column::RttMs, "rtt_ms", rtt_ms)?,
            None => to.put(Fields::HAS_RTT, Column::RttMs, "rtt_ms", None::<f64>)?,
        }
        to.put(Fields::JOIN, Column::Join, "join", Some(row.join).filter(|join| !join.is_unknown()))?;
        to.put(Fields::PLAYERS, Column::Players, "players", row.players)?;
        to.put(Fields::RULES, Column::Rules, "rules", Some(row.rules).filter(|rules| !rules.is_empty()))?;
        to.map.end()
    }
}

/// Writes the fields that are wanted and have changed.
struct Writer<M> {
    map: M,
    columns: Columns,
    changed: Fields,
    /// Whether a field that is absent is written as null.
    nulls: bool,
}

impl<M: SerializeMap> Writer<M> {
    fn put(
        &mut self,
        field: Fields,
        column: Column,
        name: &str,
        value: Option<impl Serialize>,
    ) -> Result<(), M::Error> {
        let is_wanted = self.changed.has(field) && self.columns.has(column) && (self.nulls || value.is_some());
        if is_wanted { self.map.serialize_entry(name, &value) } else { Ok(()) }
    }

    fn text(&mut self, field: Fields, column: Column, name: &str, text: &str) -> Result<(), M::Error> {
        self.put(field, column, name, Some(text).filter(|text| !text.is_empty()))
    }

    /// What comes along with every change.
    fn always(&mut self, column: Column, name: &str, value: impl Serialize) -> Result<(), M::Error> {
        if self.columns.has(column) { self.map.serialize_entry(name, &value) } else { Ok(()) }
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

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Rules as an object, in the server's own order.
struct Rules<'a>(&'a GameRules);

impl Rules<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Rules<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0.iter() {
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
    use crate::model::{Details, Facts, Game, Overrides, Proof, Silence, round_trip};
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use std::sync::Arc;

    fn server((name, players, maximum, extra, rule, at): (u8, u8, u8, u8, u8, u64)) -> Server {
        let known = |number: u8| (number > 0).then_some(u16::from(number));
        let text = |number: u8| String::from_utf8(vec![b'x'; number.into()]).unwrap().into();
        let player = Player { name: "Ann".into(), score: Some(rule.into()), ..Player::default() };
        let rules = (0..rule).map(|number| (format!("r{number}"), maximum.to_string())).collect();
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
        let proof = [Proof::Query, Proof::Cookie, Proof::Connection][usize::from(name)];
        // A server that does not answer is not proven again.
        let (silence, at) = if rule == 2 { (Silence::Announces, 0) } else { (Silence::None, at) };
        let server = Server {
            overrides: Overrides { official: extra == 1, priority: i32::from(name) - 1, flavor: extra },
            rtt_us: (players > 1).then(|| round_trip(players.into())),
            first_seen_ms: u64::from(rule) * 1000,
            via: (rule > 1).then(|| Arc::new(Origin::new("elsewhere"))),
            ..Server::new("203.0.113.5:1".parse().unwrap(), Game::Own("iceball"), proof, at * 1000, &facts)
        };
        server.with_silence(silence)
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
            apply(&mut row, &json!(Patch::new(&after, fields, Columns::ALL)));
            prop_assert_eq!(Value::Object(row), expected.clone());
            let mut unknown = Map::new();
            apply(&mut unknown, &json!(Patch::new(&after, Fields::ALL, Columns::ALL)));
            prop_assert_eq!(Value::Object(unknown), expected.clone());
            // With some of the fields, too, which are those of the whole row.
            let columns = Columns::BRIEF.without(Columns::TIMES);
            let mut brief = json!(Row::new(&before, columns)).as_object().unwrap().clone();
            apply(&mut brief, &json!(Patch::new(&after, columns.seen(fields), columns)));
            prop_assert_eq!(Value::Object(brief.clone()), json!(Row::new(&after, columns)));
            let mut whole = expected.as_object().unwrap().clone();
            whole.retain(|name, _| !["players", "rules", "proven_at", "last_seen", "rtt_ms"].contains(&name.as_str()));
            prop_assert_eq!(brief, whole);
        }
    }

    #[test]
    fn a_patch_has_only_what_changed_and_what_moves_with_every_proof() {
        let patch =
            json!(Patch::new(&server((1, 3, 1, 1, 1, 7)), Fields::PLAYERS_CURRENT | Fields::RULES, Columns::ALL));
        let expected = json!({
            "address": "203.0.113.5", "port": 1, "endpoint": "203.0.113.5:1", "players_current": 3, "rules": {"r0": "1"},
            "proven_at": "1970-01-01T00:00:07Z", "last_seen": "1970-01-01T00:00:07Z", "rtt_ms": 0.003,
        });
        assert_eq!(patch, expected);
    }
}

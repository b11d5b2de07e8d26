//! A server in JSON, with the field names of the documents. Unknown fields are absent, never null.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::model::{Address, Origin, Player, Server};
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
    /// The players, where the game reports them. An empty list: nobody plays.
    #[serde(skip_serializing_if = "Option::is_none")]
    players: Option<&'a [Player]>,
    #[serde(skip_serializing_if = "Rules::is_empty")]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    rules: Rules<'a>,
}

impl<'a> ServerJson<'a> {
    pub fn new(server: &'a Server) -> ServerJson<'a> {
        let details = server.details.as_deref();
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
            players: details.and_then(|details| details.known_players(server.players_current)),
            rules: Rules(details.map(|details| details.rules.as_slice()).unwrap_or_default()),
        }
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

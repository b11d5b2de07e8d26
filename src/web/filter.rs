//! Which servers, in which order, how many: the parameters that the API and the page share.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use url::form_urlencoded;
use utoipa::{IntoParams, ToSchema};

use crate::model::{Address, Proof, Server};
use crate::protocols::servers_of;
use crate::registry::view::View;

/// The most servers in one answer.
pub const LIMIT_MAX: usize = 1000;
/// The longest value of a parameter.
const VALUE_BYTES_MAX: usize = 256;

/// An error in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Wrong {
    /// What is wrong.
    pub error: String,
    /// The parameter at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
}

impl Wrong {
    pub fn parameter(name: &str, error: impl Into<String>) -> Wrong {
        Wrong { error: error.into(), parameter: Some(name.into()) }
    }
}

/// Parameters of a list. Filters are combined with *and*.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Filter {
    /// Only this game, by its name. The name of a family of games stands for all of them.
    pub game: Option<String>,
    /// Only servers that speak this protocol, by its name: the `protocol` of a server.
    pub protocol: Option<String>,
    /// Only servers with this text in their name, map, mode, version or address, ignoring case.
    pub q: Option<String>,
    /// Only this map, ignoring case.
    pub map: Option<String>,
    /// Only this mode, ignoring case.
    pub mode: Option<String>,
    /// Only this version, ignoring case.
    pub version: Option<String>,
    /// Only servers with players.
    pub not_empty: bool,
    /// Only servers that are not full.
    pub not_full: bool,
    /// Only servers without a password.
    pub no_password: bool,
    /// Only servers that the operator marks as official.
    pub official: bool,
    /// Only servers verified in this way: `cookie`, `query`, `connection` or `config`.
    pub verified_by: Option<String>,
    /// `name`, `players`, `map`, `mode`, `version`, `game`, `address`, `rtt`, `proven`, `first_seen`, each with a `-`
    /// before it for the reverse order. When left out: the operator's priority, then the number of players.
    pub sort: Option<String>,
    /// The most servers in the answer, 1 to 1000; 1000 when left out.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u16>,
    /// Continue after this place: the `next` of the previous answer, or a server's `address:port`.
    pub after: Option<String>,
}

/// The names of all parameters.
pub const NAMES: [&str; 14] = [
    "game",
    "protocol",
    "q",
    "map",
    "mode",
    "version",
    "not_empty",
    "not_full",
    "no_password",
    "official",
    "verified_by",
    "sort",
    "limit",
    "after",
];

/// The keys to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Priority,
    Name,
    Players,
    Map,
    Mode,
    Version,
    Game,
    Address,
    Rtt,
    Proven,
    FirstSeen,
}

/// Names for the keys; a second name is that of the JSON field. The bool: whether the largest comes first.
const KEYS: [(&str, &str, Key, bool); 11] = [
    ("priority", "priority", Key::Priority, true),
    ("name", "name", Key::Name, false),
    ("players", "players_current", Key::Players, true),
    ("map", "map", Key::Map, false),
    ("mode", "mode", Key::Mode, false),
    ("version", "version", Key::Version, false),
    ("game", "game", Key::Game, false),
    ("address", "address", Key::Address, false),
    ("rtt", "rtt_ms", Key::Rtt, false),
    ("proven", "proven_at", Key::Proven, true),
    ("first_seen", "first_seen", Key::FirstSeen, false),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub key: Key,
    /// Whether the largest comes first.
    pub descending: bool,
}

impl Sort {
    pub const DEFAULT: Sort = Sort { key: Key::Priority, descending: true };

    fn parse(text: &str) -> Option<Sort> {
        let (text, turned) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
        let (_, _, key, descending) = KEYS.iter().find(|(name, field, _, _)| *name == text || *field == text)?;
        Some(Sort { key: *key, descending: *descending != turned })
    }
}

/// The place of a server in an order: what it is sorted by, then its address, so that no two are equal.
type Position<'a> = (Value<'a>, Address);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value<'a> {
    Number(i64),
    Text(Cow<'a, str>),
}

impl Filter {
    /// Reads a query string. An unknown parameter is an error where `strict`, and ignored otherwise.
    pub fn parse(query: &str, strict: bool) -> Result<Filter, Wrong> {
        let mut filter = Filter::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if value.len() > VALUE_BYTES_MAX {
                return Err(Wrong::parameter(&name, format!("is longer than {VALUE_BYTES_MAX} bytes")));
            }
            let text = || (!value.is_empty()).then(|| value.to_string());
            let flag = || match &*value {
                "" | "1" | "true" | "yes" | "on" => Ok(true),
                "0" | "false" | "no" | "off" => Ok(false),
                other => Err(Wrong::parameter(&name, format!("must be true or false, not `{other}`"))),
            };
            match &*name {
                "game" => filter.game = text(),
                "protocol" => filter.protocol = text(),
                "q" => filter.q = text(),
                "map" => filter.map = text(),
                "mode" => filter.mode = text(),
                "version" => filter.version = text(),
                "not_empty" => filter.not_empty = flag()?,
                "not_full" => filter.not_full = flag()?,
                "no_password" => filter.no_password = flag()?,
                "official" => filter.official = flag()?,
                "verified_by" => filter.verified_by = text(),
                "sort" => filter.sort = text(),
                "limit" => filter.limit = Some(limit(&value)?),
                "after" => filter.after = text(),
                _ if strict => {
                    let known = NAMES.join(", ");
                    return Err(Wrong::parameter(&name, format!("is unknown; known are {known}")));
                }
                _ => {}
            }
        }
        filter.check()?;
        Ok(filter)
    }

    fn check(&self) -> Result<(), Wrong> {
        if let Some(proof) = &self.verified_by
            && Proof::named(proof).is_none()
        {
            let proofs = Proof::ALL.map(Proof::name);
            return Err(Wrong::parameter("verified_by", format!("must be one of {}", proofs.join(", "))));
        }
        if let Some(sort) = &self.sort
            && Sort::parse(sort).is_none()
        {
            let known: Vec<_> = KEYS.iter().map(|(name, _, _, _)| *name).collect();
            return Err(Wrong::parameter(
                "sort",
                format!("must be one of {}, or one with a `-` before it", known.join(", ")),
            ));
        }
        if let Some(after) = &self.after
            && parse_place(after).is_none()
            && after.parse::<Address>().is_err()
        {
            return Err(Wrong::parameter(
                "after",
                "must be the `next` of an answer, or an address like 203.0.113.5:20737",
            ));
        }
        Ok(())
    }

    pub fn sort(&self) -> Sort {
        self.sort.as_deref().and_then(Sort::parse).unwrap_or(Sort::DEFAULT)
    }

    /// All servers that match, in order.
    pub fn apply<'v>(&self, view: &'v View) -> Vec<&'v Arc<Server>> {
        let q = self.q.as_deref().map(str::to_lowercase);
        let passes = |server: &&Arc<Server>| self.passes(server, q.as_deref());
        let mut servers: Vec<_> = match &self.game {
            Some(game) => servers_of(view, game).filter(passes).collect(),
            None => view.games().filter(passes).collect(),
        };
        let sort = self.sort();
        servers.sort_by_cached_key(|server| Ordered(place(server, sort.key), sort.descending));
        servers
    }

    /// One page of an ordered list: the servers, and where the next page begins.
    pub fn page<'a, 'v>(&self, servers: &'a [&'v Arc<Server>]) -> (&'a [&'v Arc<Server>], Option<String>) {
        let sort = self.sort();
        let start = self.after.as_deref().map_or(0, |after| {
            let named = after.parse::<Address>().ok();
            let at = named.and_then(|address| servers.iter().position(|server| server.address == address));
            let place = parse_place(after).or_else(|| Some((Value::Number(0), named?)));
            match (at, place) {
                (Some(at), _) => at + 1,
                (None, Some(after)) => {
                    let after = Ordered(after, sort.descending);
                    servers.partition_point(|server| Ordered(place_of(server, sort), sort.descending) <= after)
                }
                (None, None) => 0,
            }
        });
        let limit = usize::from(self.limit.unwrap_or(LIMIT_MAX as u16));
        let rest = servers.get(start..).unwrap_or_default();
        let page = rest.get(..limit).unwrap_or(rest);
        let more = rest.len() > page.len();
        let next = page.last().filter(|_| more).map(|server| emit_place(&place_of(server, sort)));
        (page, next)
    }

    fn passes(&self, server: &Server, q: Option<&str>) -> bool {
        let texts = &server.texts;
        let is = |wanted: &Option<String>, text: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted.to_lowercase() == text.to_lowercase())
        };
        let has = |q: &str| {
            let address = server.address.to_string();
            let texts = [texts.name(), texts.map(), texts.mode(), texts.version(), &address];
            texts.iter().any(|text| text.to_lowercase().contains(q))
        };
        let players = server.players_current.unwrap_or(0);
        self.protocol.as_ref().is_none_or(|protocol| protocol == server.game.protocol())
            && is(&self.map, texts.map())
            && is(&self.mode, texts.mode())
            && is(&self.version, texts.version())
            && (!self.not_empty || players > 0)
            && (!self.not_full || server.players_max.is_none_or(|max| players < max))
            && (!self.no_password || server.password != Some(true))
            && (!self.official || server.overrides.official)
            && self.verified_by.as_ref().is_none_or(|proof| proof == server.verified_by.name())
            && q.is_none_or(has)
    }
}

fn limit(value: &str) -> Result<u16, Wrong> {
    let number = value.parse::<u16>().ok().filter(|number| (1..=LIMIT_MAX).contains(&usize::from(*number)));
    number.ok_or_else(|| Wrong::parameter("limit", format!("must be a number from 1 to {LIMIT_MAX}, not `{value}`")))
}

/// Compares in the order's direction; equal ones by address, always ascending.
#[derive(PartialEq, Eq)]
struct Ordered<'a>(Position<'a>, bool);

impl Ord for Ordered<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = self.0.0.cmp(&other.0.0);
        let by_value = if self.1 { by_value.reverse() } else { by_value };
        by_value.then(self.0.1.cmp(&other.0.1))
    }
}

impl PartialOrd for Ordered<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn place_of(server: &Server, sort: Sort) -> Position<'_> {
    place(server, sort.key)
}

fn place(server: &Server, key: Key) -> Position<'_> {
    let text = |text: &str| Value::Text(Cow::Owned(text.to_lowercase()));
    let players = i64::from(server.players_current.unwrap_or(0));
    let value = match key {
        Key::Priority => Value::Number((i64::from(server.overrides.priority) << 16) + players),
        Key::Name => text(server.texts.name()),
        Key::Players => Value::Number(players),
        Key::Map => text(server.texts.map()),
        Key::Mode => text(server.texts.mode()),
        Key::Version => text(server.texts.version()),
        Key::Game => text(server.game.name()),
        Key::Address => Value::Number(0),
        // Servers without a round trip come last.
        Key::Rtt => Value::Number(server.rtt_us.map_or(i64::MAX, |us| i64::from(us.get()))),
        Key::Proven => Value::Number(server.proven_at_ms as i64),
        Key::FirstSeen => Value::Number(server.first_seen_ms as i64),
    };
    (value, server.address)
}

/// A place as text: `n123~203.0.113.5:1` or `tname~203.0.113.5:1`.
fn emit_place((value, address): &Position<'_>) -> String {
    match value {
        Value::Number(number) => format!("n{number}~{address}"),
        Value::Text(text) => format!("t{text}~{address}"),
    }
}

fn parse_place(text: &str) -> Option<Position<'static>> {
    let (value, address) = text.rsplit_once('~')?;
    let value = match value.split_at_checked(1)? {
        ("n", number) => Value::Number(number.parse().ok()?),
        ("t", text) => Value::Text(Cow::Owned(text.to_string())),
        _ => return None,
    };
    Some((value, address.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game, Overrides};
    use proptest::prelude::*;

    fn server(port: u16, name: &str, players: u16) -> Arc<Server> {
        let facts = Facts {
            name: name.to_string().into(),
            map: "Mesa".into(),
            players_current: Some(players),
            players_max: Some(8),
            password: Some(port == 2),
            ..Facts::default()
        };
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        let server = Server::new(address, Game::Own("iceball"), Proof::Cookie, port.into(), &facts);
        Arc::new(Server { overrides: Overrides { official: port == 3, ..Overrides::default() }, ..server })
    }

    fn view() -> View {
        let master = Server::new(
            "203.0.113.9:9".parse().unwrap(),
            Game::master("tanks"),
            Proof::Connection,
            0,
            &Facts::default(),
        );
        View::new(1, 0, vec![server(1, "beta", 0), server(2, "Alpha", 8), server(3, "gamma", 3), Arc::new(master)])
    }

    fn ports(query: &str) -> Vec<u16> {
        let view = view();
        let filter = Filter::parse(query, true).unwrap();
        let servers = filter.apply(&view);
        filter.page(&servers).0.iter().map(|server| server.address.port()).collect()
    }

    #[test]
    fn filters_and_orders() {
        for (query, expected) in [
            ("", vec![2, 3, 1]),
            ("sort=name", vec![2, 1, 3]),
            ("sort=-name", vec![3, 1, 2]),
            ("sort=players", vec![2, 3, 1]),
            ("sort=-players_current", vec![1, 3, 2]),
            ("sort=address", vec![1, 2, 3]),
            ("sort=proven", vec![3, 2, 1]),
            ("sort=address&limit=2", vec![1, 2]),
            ("sort=address&after=203.0.113.5:1", vec![2, 3]),
            ("sort=address&after=203.0.113.4:77", vec![1, 2, 3]),
            ("not_empty", vec![2, 3]),
            ("not_full=true", vec![3, 1]),
            ("not_full=0", vec![2, 3, 1]),
            ("no_password=1", vec![3, 1]),
            ("official=yes", vec![3]),
            ("q=ALPH", vec![2]),
            ("q=113.5%3A3", vec![3]),
            ("map=mesa", vec![2, 3, 1]),
            ("map=mes", vec![]),
            ("game=iceball", vec![2, 3, 1]),
            ("game=master", vec![9]),
            ("game=other", vec![]),
            ("verified_by=query", vec![]),
            ("verified_by=cookie&not_empty&not_full", vec![3]),
        ] {
            assert_eq!(ports(query), expected, "{query}");
        }
    }

    #[test]
    fn errors_name_the_parameter() {
        for (query, parameter) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("sort=nonsense", "sort"),
            ("verified_by=x", "verified_by"),
            ("not_empty=maybe", "not_empty"),
            ("after=x", "after"),
            ("gmae=iceball", "gmae"),
        ] {
            let wrong = Filter::parse(query, true).unwrap_err();
            assert_eq!(wrong.parameter.as_deref(), Some(parameter), "{query}: {wrong:?}");
        }
        let long = format!("q={}", "x".repeat(1000));
        assert!(Filter::parse(&long, true).is_err());
        assert_eq!(Filter::parse("utm_source=x", false), Ok(Filter::default()));
    }

    proptest! {
        #[test]
        fn pages_put_together_are_the_whole_list(
                rows in proptest::collection::vec(("[a-c~]{0,2}", 0..3u16), 0..40), limit in 1..7u16, key in 0..KEYS.len(), turned: bool) {
            let servers = rows.iter().enumerate().map(|(at, (name, players))| server(at as u16 + 1, name, *players)).collect();
            let view = View::new(1, 0, servers);
            let sort = format!("{}{}", if turned { "-" } else { "" }, KEYS[key].0);
            let mut filter = Filter { sort: Some(sort), limit: Some(limit), ..Filter::default() };
            let all = filter.apply(&view);
            let mut pages = Vec::new();
            loop {
                let (page, next) = filter.page(&all);
                pages.extend(page.iter().map(|server| server.address));
                filter.after = next;
                if filter.after.is_none() { break }
                prop_assert!(filter.check().is_ok());
            }
            let whole: Vec<_> = all.iter().map(|server| server.address).collect();
            prop_assert_eq!(pages, whole);
        }

        #[test]
        fn any_query_string_is_read_or_refused(query: String) {
            let _ = Filter::parse(&query, true);
        }
    }
}

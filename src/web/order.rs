//! In which order servers are listed, and where a page of them begins.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use super::search::{Part, part};
use crate::geo::{self, countries};
use crate::model::{Address, Server};
use crate::registry::view::Standings;

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
    Country,
    Proven,
    FirstSeen,
}

/// Names for the keys; a second name is that of the JSON field. The bool: whether the largest comes first.
pub const KEYS: [(&str, &str, Key, bool); 12] = [
    ("priority", "priority", Key::Priority, true),
    ("name", "name", Key::Name, false),
    ("players", "players_current", Key::Players, true),
    ("map", "map", Key::Map, false),
    ("mode", "mode", Key::Mode, false),
    ("version", "version", Key::Version, false),
    ("game", "game", Key::Game, false),
    ("address", "address", Key::Address, false),
    ("rtt", "rtt_ms", Key::Rtt, false),
    ("country", "country", Key::Country, false),
    ("proven", "proven_at", Key::Proven, true),
    ("first_seen", "first_seen", Key::FirstSeen, false),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub key: Key,
    /// Whether the largest comes first.
    pub descending: bool,
}

/// Everything that lists can be sorted by.
pub fn sort_names() -> Vec<String> {
    key_names().flat_map(|name| [name.to_string(), format!("-{name}")]).collect()
}

/// The names of the keys.
pub fn key_names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|(name, ..)| *name)
}

impl Sort {
    pub const DEFAULT: Sort = Sort { key: Key::Priority, descending: true };

    pub fn parse(text: &str) -> Option<Sort> {
        let (text, turned) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
        let (_, _, key, descending) = KEYS.iter().find(|(name, field, _, _)| *name == text || *field == text)?;
        Some(Sort { key: *key, descending: *descending != turned })
    }

    /// The prepared text that this sorts by.
    pub fn part(self) -> Option<Part> {
        match self.key {
            Key::Name => Some(Part::Name),
            Key::Map => Some(Part::Map),
            Key::Mode => Some(Part::Mode),
            Key::Version => Some(Part::Version),
            _ => None,
        }
    }
}

/// The place of a server in an order: what it is sorted by, then its address, so that no two are equal.
pub type Position<'a> = (Value<'a>, Address);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value<'a> {
    Number(i64),
    /// In lower case, as bytes, which sort like the text.
    Text(Cow<'a, [u8]>),
    /// Where it stands in the [order that is fair to networks](crate::prefix::fair).
    Standing(i64),
}

/// Compares in the order's direction; equal ones by address, always ascending.
#[derive(PartialEq, Eq)]
pub struct Ordered<'a>(pub Position<'a>, pub bool);

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

/// The first servers of an order, found without sorting all.
pub struct Best<'a, 'v> {
    limit: usize,
    kept: Vec<(Ordered<'a>, &'v Arc<Server>)>,
    /// Whether those kept include the best so far, with the worst of them in the last place.
    is_cut: bool,
}

impl<'a, 'v> Best<'a, 'v> {
    pub fn new(limit: usize) -> Best<'a, 'v> {
        Best { limit, kept: Vec::new(), is_cut: false }
    }

    pub fn push(&mut self, ordered: Ordered<'a>, server: &'v Arc<Server>) {
        // One more than the limit, to know whether there are more.
        let bound = if self.is_cut { self.kept.get(self.limit) } else { None };
        if bound.is_some_and(|(worst, _)| ordered >= *worst) {
            return;
        }
        self.kept.push((ordered, server));
        if self.kept.len() >= 2 * (self.limit + 1) {
            self.kept.select_nth_unstable_by(self.limit, |(one, _), (other, _)| one.cmp(other));
            self.kept.truncate(self.limit + 1);
            self.is_cut = true;
        }
    }

    /// The page, and where the next one begins.
    pub fn page(mut self) -> (Vec<&'v Arc<Server>>, Option<String>) {
        self.kept.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let has_more = self.kept.len() > self.limit;
        self.kept.truncate(self.limit);
        let next = self.kept.last().filter(|_| has_more).map(|(last, _)| emit_place(&last.0));
        (self.kept.into_iter().map(|(_, server)| server).collect(), next)
    }
}

/// A server's place. `text` is its prepared text where the key is one, `standings` those of its list where the key needs them.
pub fn place<'a>(server: &Arc<Server>, text: &'a [u8], key: Key, standings: &Standings) -> Position<'a> {
    let prepared = |of: Part| Value::Text(Cow::Borrowed(part(text, of)));
    let value = match key {
        Key::Priority => Value::Standing(standings.of(server)),
        Key::Name => prepared(Part::Name),
        Key::Players => Value::Number(server.players_current.unwrap_or(0).into()),
        Key::Map => prepared(Part::Map),
        Key::Mode => prepared(Part::Mode),
        Key::Version => prepared(Part::Version),
        Key::Game => Value::Text(Cow::Owned(server.game.name().to_lowercase().into_bytes())),
        Key::Address => Value::Number(0),
        // Servers without a round trip come last.
        Key::Rtt => Value::Number(server.rtt_us.map_or(i64::MAX, |us| i64::from(us.get()))),
        // By their names, because those are shown; unknown ones come last.
        Key::Country => {
            let name = geo::country(server.address.ip()).and_then(countries::name).unwrap_or("~");
            Value::Text(Cow::Owned(name.to_lowercase().into_bytes()))
        }
        Key::Proven => Value::Number(server.proven_at_ms as i64),
        Key::FirstSeen => Value::Number(server.first_seen_ms as i64),
    };
    (value, server.address)
}

/// A place as text: `n123~203.0.113.5:1`, `tname~203.0.113.5:1` or `s123~203.0.113.5:1`.
fn emit_place((value, address): &Position<'_>) -> String {
    match value {
        Value::Number(number) => format!("n{number}~{address}"),
        Value::Text(text) => format!("t{}~{address}", String::from_utf8_lossy(text)),
        Value::Standing(standing) => format!("s{standing}~{address}"),
    }
}

pub fn parse_place(text: &str) -> Option<Position<'static>> {
    let (value, address) = text.rsplit_once('~')?;
    let value = match value.split_at_checked(1)? {
        ("n", number) => Value::Number(number.parse().ok()?),
        ("t", text) => Value::Text(Cow::Owned(text.as_bytes().to_vec())),
        ("s", standing) => Value::Standing(standing.parse().ok()?),
        _ => return None,
    };
    Some((value, address.parse().ok()?))
}

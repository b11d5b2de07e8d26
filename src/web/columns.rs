//! Which fields of servers a client wants: the parameters `fields` and `details` that the list and the event stream share.

use std::fmt;

use utoipa::IntoParams;

use super::filter::Wrong;
use super::parameters;
use crate::model::Fields;

/// A field of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Protocol,
    Game,
    Address,
    Port,
    Endpoint,
    Name,
    Mode,
    Map,
    PlayersCurrent,
    PlayersMax,
    Version,
    Password,
    Official,
    Priority,
    Flavor,
    VerifiedBy,
    Stated,
    Via,
    UnansweredSince,
    Country,
    ProvenAt,
    FirstSeen,
    LastSeen,
    RttMs,
    Join,
    Players,
    Rules,
}

/// The fields in the order of a server's JSON, with their names, and what they are among the [`Fields`] that can change. Those that
/// move with every proof are none of them.
pub const FIELDS: [(Column, &str, Fields); 27] = [
    (Column::Protocol, "protocol", Fields::GAME),
    (Column::Game, "game", Fields::GAME),
    (Column::Address, "address", Fields::NONE),
    (Column::Port, "port", Fields::NONE),
    (Column::Endpoint, "endpoint", Fields::NONE),
    (Column::Name, "name", Fields::NAME),
    (Column::Mode, "mode", Fields::MODE),
    (Column::Map, "map", Fields::MAP),
    (Column::PlayersCurrent, "players_current", Fields::PLAYERS_CURRENT),
    (Column::PlayersMax, "players_max", Fields::PLAYERS_MAX),
    (Column::Version, "version", Fields::VERSION),
    (Column::Password, "password", Fields::PASSWORD),
    (Column::Official, "official", Fields::OFFICIAL),
    (Column::Priority, "priority", Fields::PRIORITY),
    (Column::Flavor, "flavor", Fields::FLAVOR),
    (Column::VerifiedBy, "verified_by", Fields::VERIFIED_BY),
    (Column::Stated, "stated", Fields::STATED),
    (Column::Via, "via", Fields::VIA),
    (Column::UnansweredSince, "unanswered_since", Fields::UNANSWERED),
    (Column::Country, "country", Fields::GAME),
    (Column::ProvenAt, "proven_at", Fields::NONE),
    (Column::FirstSeen, "first_seen", Fields::FIRST_SEEN),
    (Column::LastSeen, "last_seen", Fields::NONE),
    (Column::RttMs, "rtt_ms", Fields::HAS_RTT),
    (Column::Join, "join", Fields::JOIN),
    (Column::Players, "players", Fields::PLAYERS),
    (Column::Rules, "rules", Fields::RULES),
];

/// What every server has, whatever is wanted: which one it is.
const ALWAYS: Columns = Columns(0)
    .with(Column::Protocol)
    .with(Column::Game)
    .with(Column::Address)
    .with(Column::Port)
    .with(Column::Endpoint);

/// What makes a long list long.
const DETAILS: Columns = Columns(0).with(Column::Players).with(Column::Rules);

/// A set of fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Columns(u32);

impl Columns {
    pub const ALL: Columns = Columns((1 << FIELDS.len()) - 1);
    /// Without players and rules.
    pub const BRIEF: Columns = Columns::ALL.without(DETAILS);
    /// What moves with every proof.
    pub const TIMES: Columns = Columns(0).with(Column::ProvenAt).with(Column::LastSeen).with(Column::RttMs);

    const fn with(self, column: Column) -> Columns {
        Columns(self.0 | 1 << column as u32)
    }

    pub const fn without(self, others: Columns) -> Columns {
        Columns(self.0 & !others.0)
    }

    pub fn has(self, column: Column) -> bool {
        self.0 & (1 << column as u32) != 0
    }

    /// Those of some changed fields that are wanted.
    pub fn seen(self, changed: Fields) -> Fields {
        let all = |wanted: bool| {
            let these = FIELDS.iter().filter(|(column, ..)| self.has(*column) == wanted);
            these.fold(Fields::NONE, |all, (.., of)| all | *of)
        };
        changed.without(all(false).without(all(true)))
    }
}

impl fmt::Debug for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(FIELDS.iter().filter(|(column, ..)| self.has(*column)).map(|(_, name, _)| name)).finish()
    }
}

/// The parameters as they are read.
#[derive(Clone, Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Only these fields of each server, separated by commas: `fields=name,map,players_current`. `protocol`, `game`, `address`,
    /// `port` and `endpoint` come along.
    #[param(example = "name,map,players_current")]
    fields: Option<String>,
    /// Whether each server has its `players` and `rules`, also besides `fields`. Without them, the answer is brief.
    details: Option<bool>,
}

impl Wanted {
    pub const NAMES: [&str; 2] = ["fields", "details"];

    /// Takes a parameter; false if it is none of these.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, Wrong> {
        match name {
            "fields" => self.fields = Some(value.into()).filter(|value: &String| !value.is_empty()),
            "details" => self.details = Some(parameters::flag(name, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The fields that are wanted, where these are meant if nothing is said.
    pub fn columns(&self, default: Columns) -> Result<Columns, Wrong> {
        let columns = match &self.fields {
            Some(fields) => fields.split(',').try_fold(ALWAYS, |all, name| {
                let found = FIELDS.iter().find(|(_, known, _)| *known == name.trim());
                found.map(|(column, ..)| all.with(*column)).ok_or_else(|| unknown(name))
            })?,
            None => default,
        };
        Ok(match self.details {
            Some(true) => columns.with(Column::Players).with(Column::Rules),
            Some(false) => columns.without(DETAILS),
            None => columns,
        })
    }
}

fn unknown(name: &str) -> Wrong {
    let known: Vec<_> = FIELDS.iter().map(|(_, name, _)| *name).collect();
    let short: String = name.chars().take(64).collect();
    Wrong::parameter("fields", format!("`{short}` is not a field of a server; those are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(pairs: &[(&str, &str)]) -> Result<Columns, Wrong> {
        let mut wanted = Wanted::default();
        for (name, value) in pairs {
            assert!(wanted.take(name, value)?, "{name}");
        }
        wanted.columns(Columns::ALL)
    }

    #[test]
    fn what_is_wanted() {
        assert_eq!(columns(&[]), Ok(Columns::ALL));
        assert_eq!(columns(&[("fields", "")]), Ok(Columns::ALL));
        assert_eq!(columns(&[("details", "1")]), Ok(Columns::ALL));
        assert_eq!(columns(&[("details", "0")]), Ok(Columns::BRIEF));
        let some = columns(&[("fields", "map, rtt_ms")]).unwrap();
        let expected = r#"{"protocol", "game", "address", "port", "endpoint", "map", "rtt_ms"}"#;
        assert_eq!(format!("{some:?}"), expected);
        let all = FIELDS.map(|(_, name, _)| name).join(",");
        assert_eq!(columns(&[("fields", &all)]), Ok(Columns::ALL));
        assert!(all.len() <= parameters::VALUE_CHARS_MAX);
        for wrong in [("fields", "map,nothing"), ("fields", "map,"), ("details", "maybe")] {
            assert_eq!(columns(&[wrong]).unwrap_err().parameter.as_deref(), Some(wrong.0), "{wrong:?}");
        }
        let with_details = columns(&[("fields", "map"), ("details", "1")]).unwrap();
        assert!(with_details.has(Column::Rules) && !with_details.has(Column::Name));
        assert_eq!(columns(&[("fields", "map,rules"), ("details", "0")]), columns(&[("fields", "map")]));
        assert!(!Wanted::default().take("q", "x").unwrap());
    }

    #[test]
    fn each_field_is_in_its_place() {
        assert!(FIELDS.iter().enumerate().all(|(at, (column, ..))| *column as usize == at));
    }

    #[test]
    fn changes_that_are_not_wanted_are_not_seen() {
        let some = columns(&[("fields", "map,verified_by")]).unwrap();
        assert_eq!(some.seen(Fields::MAP | Fields::NAME), Fields::MAP);
        assert_eq!(some.seen(Fields::NAME | Fields::HAS_RTT), Fields::NONE);
        assert_eq!(some.seen(Fields::VERIFIED_BY), Fields::VERIFIED_BY, "though one of its fields is not wanted");
        assert_eq!(Columns::BRIEF.seen(Fields::DETAILS | Fields::JOIN), Fields::JOIN);
        assert_eq!(Columns::ALL.seen(Fields::ALL), Fields::ALL);
    }
}

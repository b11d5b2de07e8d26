//! The columns of a table, as selected by `--columns`, and the fields of CSV and JSON that they correspond to. A column may
//! have two fields: `address` stands for `address` and `port`.

use std::fmt::{Display, Write};
use std::net::IpAddr;

use super::milliseconds;
use crate::client::Found;
use crate::protocols::card;

/// A field of CSV and JSON.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    /// Appends the value as text; nothing if it is unknown.
    pub write: fn(&Found, &mut String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// A number or boolean, formatted by this program.
    Plain,
}

/// A column of a table.
#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub title: &'static str,
    pub fields: &'static [&'static str],
    pub shape: Shape,
    /// The cell's text; empty if unknown.
    pub cell: fn(&Found) -> String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text that may be cut to no less than this many characters.
    Text(usize),
    /// Never cut: meant to be copied, or short anyway.
    Whole,
    /// Right-aligned.
    Number,
}

use Kind::{Plain, Text};

/// All fields of CSV, in order.
pub const FIELDS: &[Field] = &[
    Field { name: "game", kind: Text, write: |found, out| out.push_str(found.game.name()) },
    Field { name: "address", kind: Text, write: |found, out| show_ip(out, found.address.ip()) },
    Field { name: "port", kind: Plain, write: |found, out| show_number(out, Some(found.address.port())) },
    Field { name: "name", kind: Text, write: |found, out| out.push_str(&found.facts.name) },
    Field { name: "mode", kind: Text, write: |found, out| out.push_str(&found.facts.mode) },
    Field { name: "map", kind: Text, write: |found, out| out.push_str(&found.facts.map) },
    Field { name: "players_current", kind: Plain, write: |found, out| show_number(out, found.facts.players_current) },
    Field { name: "players_max", kind: Plain, write: |found, out| show_number(out, found.facts.players_max) },
    Field { name: "version", kind: Text, write: |found, out| out.push_str(&found.facts.version) },
    Field { name: "password", kind: Plain, write: |found, out| show_bool(out, found.facts.password) },
    Field { name: "official", kind: Plain, write: |found, out| show_bool(out, found.official) },
    Field { name: "flavor", kind: Plain, write: |found, out| show_number(out, found.flavor) },
    Field { name: "rtt_ms", kind: Plain, write: |found, out| show_milliseconds(out, found.rtt_us) },
    Field { name: FAULT, kind: Text, write: |found, out| out.push_str(found.failure().unwrap_or_default()) },
    Field { name: "protocol", kind: Text, write: |found, out| out.push_str(found.game.protocol()) },
    Field { name: "via", kind: Text, write: |found, out| out.push_str(found.via.as_deref().unwrap_or_default()) },
];

/// Why a server did not answer. Failed servers are shown only with this column.
pub const FAULT: &str = "fault";
/// Only if `--columns` names it: the format that `query --from` reads.
pub const URL: Field = Field { name: "url", kind: Text, write: |found, out| out.push_str(&found.url()) };

/// All columns, the default ones first.
pub const COLUMNS: &[Column] = &[
    column("name", "Server", &["name"], Shape::Text(20), name),
    column("players", "Players", &["players_current", "players_max"], Shape::Number, Found::players),
    column("map", "Map", &["map"], Shape::Text(12), |found| found.facts.map.to_string()),
    column("mode", "Mode", &["mode"], Shape::Text(10), |found| found.facts.mode.to_string()),
    column("version", "Version", &["version"], Shape::Text(10), |found| found.facts.version.to_string()),
    column("ping", "Ping", &["rtt_ms"], Shape::Number, ping),
    column("address", "Address", &["address", "port"], Shape::Whole, |found| found.address.to_string()),
    column("game", "Game", &["game"], Shape::Text(12), game),
    column("protocol", "Protocol", &["protocol"], Shape::Text(12), |found| found.game.protocol().into()),
    column("password", "Password", &["password"], Shape::Whole, |found| yes_or_no(found.facts.password)),
    column("official", "Official", &["official"], Shape::Whole, |found| yes_or_no(found.official)),
    column("flavor", "Flavor", &["flavor"], Shape::Number, |found| known(found.flavor)),
    column("via", "Via", &["via"], Shape::Text(16), via),
    column("url", "URL", &["url"], Shape::Whole, Found::url),
    column(FAULT, "Fault", &[FAULT], Shape::Text(16), |found| found.failure().unwrap_or_default().into()),
    // The fields of CSV and JSON that are not columns above.
    column("port", "Port", &["port"], Shape::Number, |found| found.address.port().to_string()),
    column("players_current", "Players", &["players_current"], Shape::Number, |found| {
        known(found.facts.players_current)
    }),
    column("players_max", "Max", &["players_max"], Shape::Number, |found| known(found.facts.players_max)),
    column("rtt_ms", "Ping", &["rtt_ms"], Shape::Number, |found| known(found.rtt_us.map(milliseconds))),
];

/// The default columns, if they fit and are not empty; `game` only if there are several games.
pub const DEFAULT: &[&str] = &["name", "players", "map", "mode", "version", "ping", "address", "game"];
/// The order in which columns are dropped from a narrow table.
pub const DROP_ORDER: &[&str] = &["version", "mode", "game", "ping", "map", "players", "name"];

const fn column(
    name: &'static str,
    title: &'static str,
    fields: &'static [&'static str],
    shape: Shape,
    cell: fn(&Found) -> String,
) -> Column {
    Column { name, title, fields, shape, cell }
}

impl Column {
    /// By name; the error suggests the nearest one and lists them all.
    pub fn parse(text: &str) -> Result<&'static Column, String> {
        let typed = text.trim().to_lowercase();
        if let Some(column) = COLUMNS.iter().find(|column| column.name == typed) {
            return Ok(column);
        }
        let distance = |column: &&Column| strsim::osa_distance(&typed, column.name);
        let near = COLUMNS.iter().min_by_key(distance).filter(|near| distance(near) <= (typed.len() / 2).max(1));
        let near = near.map(|near| format!("; did you mean `{}`?", near.name)).unwrap_or_else(|| ".".into());
        let known: Vec<_> = COLUMNS.iter().map(|column| column.name).collect();
        Err(format!("unknown column{near} The columns are {}", known.join(", ")))
    }
}

/// The fields of these columns, each once, in their order.
pub fn fields(columns: &[&Column]) -> Vec<&'static Field> {
    let mut chosen: Vec<&'static Field> = Vec::new();
    for name in columns.iter().flat_map(|column| column.fields) {
        let field = FIELDS.iter().find(|field| field.name == *name).unwrap_or(&URL);
        if !chosen.iter().any(|other| other.name == field.name) {
            chosen.push(field);
        }
    }
    chosen
}

fn known(value: Option<impl Display>) -> String {
    let mut text = String::new();
    show(&mut text, value);
    text
}

fn show(out: &mut String, value: Option<impl Display>) {
    if let Some(value) = value {
        let _ = write!(out, "{value}"); // writing to memory cannot fail
    }
}

/// The same as [`show`] for numbers, which long lists have many of: without the formatting machinery.
fn show_number(out: &mut String, value: Option<impl Into<u32>>) {
    let Some(value) = value else { return };
    let (mut digits, mut rest) = ([0u8; 10], value.into());
    let mut length = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        (rest, length) = (rest / 10, length + 1);
        if rest == 0 {
            break;
        }
    }
    let digits = digits.get(digits.len() - length..).unwrap_or_default();
    out.push_str(std::str::from_utf8(digits).unwrap_or_default());
}

fn show_ip(out: &mut String, ip: IpAddr) {
    let IpAddr::V4(ip) = ip else { return show(out, Some(ip)) };
    for (number, octet) in ip.octets().into_iter().enumerate() {
        if number > 0 {
            out.push('.');
        }
        show_number(out, Some(octet));
    }
}

fn show_bool(out: &mut String, value: Option<bool>) {
    out.push_str(value.map_or("", |value| if value { "true" } else { "false" }));
}

/// As [`milliseconds`] is shown: without zeros at the end.
fn show_milliseconds(out: &mut String, rtt_us: Option<u32>) {
    let Some(rtt_us) = rtt_us else { return };
    show_number(out, Some(rtt_us / 1000));
    let mut part = rtt_us % 1000;
    if part == 0 {
        return;
    }
    // A leading 1 keeps the zeros before other digits.
    part += 1000;
    while part.is_multiple_of(10) {
        part /= 10;
    }
    let dot = out.len();
    show_number(out, Some(part));
    out.replace_range(dot..=dot, ".");
}

fn yes_or_no(value: Option<bool>) -> String {
    value.map_or("", |value| if value { "yes" } else { "no" }).into()
}

fn via(found: &Found) -> String {
    found.via.as_deref().unwrap_or_default().into()
}

fn name(found: &Found) -> String {
    found.facts.name.to_string()
}

fn ping(found: &Found) -> String {
    found.rtt_us.map(|rtt_us| format!("{} ms", rtt_us.div_ceil(1000))).unwrap_or_default()
}

fn game(found: &Found) -> String {
    card(found.game.name()).map_or(found.game.name(), |card| card.title).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_once_and_every_field_exists() {
        for column in COLUMNS {
            assert_eq!(COLUMNS.iter().filter(|other| other.name == column.name).count(), 1, "{}", column.name);
            for name in column.fields {
                assert!(FIELDS.iter().chain([&URL]).any(|field| field.name == *name), "{name}");
            }
        }
        for field in FIELDS {
            assert!(Column::parse(field.name).is_ok(), "{} cannot be chosen", field.name);
        }
        for name in DEFAULT.iter().chain(DROP_ORDER) {
            assert!(Column::parse(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_writes_them() {
        fn shown<T>(write: fn(&mut String, T), value: T) -> String {
            let mut out = String::from("before ");
            write(&mut out, value);
            out.split_off("before ".len())
        }
        for number in [0, 1, 9, 10, 99, 100, 12_345, 65_535, 1_000_000_000, u32::MAX] {
            assert_eq!(shown(show_number, Some(number)), number.to_string());
        }
        for rtt_us in (0..3_000).chain([9_999, 10_000, 10_010, 12_345, 1_000_000, 1_000_001, u32::MAX]) {
            assert_eq!(shown(show_milliseconds, Some(rtt_us)), milliseconds(rtt_us).to_string());
        }
        for ip in ["0.0.0.0", "203.0.113.5", "255.255.255.255", "2001:db8::1"] {
            assert_eq!(shown(show_ip, ip.parse().unwrap()), ip);
        }
        assert_eq!([Some(true), Some(false), None].map(|value| shown(show_bool, value)), ["true", "false", ""]);
        assert_eq!(shown(show_number, None::<u16>) + &shown(show_milliseconds, None), "");
    }

    #[test]
    fn an_unknown_name_gets_a_suggestion_and_the_list() {
        assert_eq!(Column::parse(" Map ").unwrap().name, "map");
        let error = Column::parse("plyers").unwrap_err();
        assert!(error.contains("did you mean `players`?") && error.contains("name, players, map"), "{error}");
        let error = Column::parse("xyzzy").unwrap_err();
        assert!(!error.contains("did you mean") && error.contains("The columns are name"), "{error}");
    }
}

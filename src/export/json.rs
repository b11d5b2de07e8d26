//! JSON with the same names as `/api/v1/servers`. Unknown values are absent, never null. Servers that failed are in a
//! separate list, `failed`, with the reason as `fault`; in JSON lines they are among the others.

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::{Map, Value};

use super::columns::{Field, URL, fields};
use super::{Layout, milliseconds, shown};
use crate::client::Found;
use crate::model::Player;

#[derive(Serialize)]
struct Document<'a> {
    total: usize,
    servers: Vec<Server<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Server<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Server<'a> {
    Whole(Box<Row<'a>>),
    Chosen(Chosen),
}

/// Selected fields of a server, in the order of `--columns`.
struct Chosen(Vec<(&'static str, Value)>);

impl Serialize for Chosen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}

#[derive(Serialize)]
struct Event<'a> {
    at: &'a str,
    event: &'a str,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
    /// The masters that list it, where several are watched.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    masters: &'a [&'a str],
    server: Row<'a>,
}

#[derive(Serialize)]
struct Row<'a> {
    protocol: &'static str,
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
    via: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    country: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    players: Option<&'a [Player]>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    rules: Map<String, Value>,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
}

pub fn write(servers: &[Found], layout: &Layout) -> String {
    let (failed, up): (Vec<_>, Vec<_>) =
        shown(servers, layout.has_fault(true)).partition(|server| server.failure().is_some());
    let fields = layout.columns.as_deref().map(fields);
    let rows = |found: Vec<_>| found.into_iter().map(|found| server(found, fields.as_deref())).collect();
    let document = Document { total: up.len(), servers: rows(up), failed: rows(failed) };
    // Plain structs, written to memory: this cannot fail.
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

/// One object per line.
pub fn lines(servers: &[Found], layout: &Layout) -> String {
    let fields = layout.columns.as_deref().map(fields);
    let line = |found| serde_json::to_string(&server(found, fields.as_deref())).unwrap_or_default() + "\n";
    shown(servers, layout.has_fault(true)).map(line).collect()
}

fn server<'a>(found: &'a Found, fields: Option<&[&'static Field]>) -> Server<'a> {
    let row = row(found);
    let Some(fields) = fields else { return Server::Whole(Box::new(row)) };
    let mut values = match serde_json::to_value(row) {
        Ok(Value::Object(values)) => values,
        _ => Map::new(),
    };
    values.insert(URL.name.into(), found.url().into());
    Server::Chosen(Chosen(fields.iter().filter_map(|field| Some((field.name, values.remove(field.name)?))).collect()))
}

/// A change of one server, on one line.
pub fn event(at: &str, event: &str, masters: &[&str], found: &Found) -> String {
    let line = Event { at, event, fault: found.failure(), masters, server: Row { fault: None, ..row(found) } };
    serde_json::to_string(&line).unwrap_or_default()
}

fn row(found: &Found) -> Row<'_> {
    let facts = &found.facts;
    let details = facts.details.as_deref();
    let mut rules = Map::new();
    for (name, value) in details.iter().flat_map(|details| details.rules.iter()) {
        // If a rule occurs twice, the first one counts.
        rules.entry(name.to_string()).or_insert_with(|| Value::from(value));
    }
    Row {
        protocol: found.game.protocol(),
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
        via: found.via.as_deref(),
        rtt_ms: found.rtt_us.or(found.master_rtt_us).map(milliseconds),
        country: found.country.as_deref(),
        players: details.and_then(|details| details.known_players(facts.players_current)),
        rules,
        fault: found.failure(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::Column;
    use super::super::tests::servers;
    use super::*;

    #[test]
    fn the_contracts_names_and_no_null() {
        let text = write(&servers(), &Layout::default());
        assert!(!text.contains("null"), "{text}");
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["total"], 2, "the one that failed is not among them");
        let expected = serde_json::json!({
            "protocol": "hyperbol", "game": "hyperbol", "address": "203.0.113.5", "port": 20200, "name": "A \"quoted\", <b>&amp;</b> name",
            "mode": "Deathmatch", "map": "a_doommkii.hba", "players_current": 3, "players_max": 8, "version": "1.08b",
            "password": false, "official": true, "flavor": 4, "rtt_ms": 12.345,
            "players": [{"name": "Al,ice", "team": "red"}], "rules": {"skill": "above novice", "players_IMF": "3"}
        });
        assert_eq!(json["servers"][0], expected);
        let named =
            serde_json::json!({"protocol": "netpanzer", "game": "netpanzer", "address": "2001:db8::1", "port": 3030});
        assert_eq!(json["servers"][1], named);
        let failed = serde_json::json!([
            {"protocol": "hyperbol", "game": "hyperbol", "address": "203.0.113.6", "port": 20200, "fault": "no answer"}
        ]);
        assert_eq!(json["failed"], failed);
        assert!(!write(&servers()[..1], &Layout::default()).contains("failed"));
    }

    #[test]
    fn a_line_each_and_only_what_was_chosen() {
        let text = lines(&servers(), &Layout::default());
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ports: Vec<_> = objects.iter().map(|object| (&object["port"], &object["fault"])).collect();
        assert_eq!(
            ports,
            [(&20200.into(), &Value::Null), (&20200.into(), &"no answer".into()), (&3030.into(), &Value::Null)]
        );
        let chosen = |names: &[&str]| Layout {
            columns: Some(names.iter().map(|name| Column::parse(name).unwrap()).collect()),
            ..Layout::default()
        };
        assert_eq!(
            lines(&servers(), &chosen(&["players", "address", "ping"])),
            "{\"players_current\":3,\"players_max\":8,\"address\":\"203.0.113.5\",\"port\":20200,\"rtt_ms\":12.345}\n\
             {\"address\":\"2001:db8::1\",\"port\":3030}\n"
        );
        let json: Value = serde_json::from_str(&write(&servers(), &chosen(&["url", "fault"]))).unwrap();
        assert_eq!(json["failed"], serde_json::json!([{"url": "hyperbol://203.0.113.6:20200", "fault": "no answer"}]));
        assert_eq!(json["total"], 2);
    }
}

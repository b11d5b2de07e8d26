//! Parses `/list` as a client. A bad row does not affect the others.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::announce::{FLAGS, NUMBERS};
use crate::model::{Address, Details, Facts, GameRules, Player};
use crate::protocols::{Fault, List, ListEntry, Take, fault, is_one_host, rows};
use crate::text;

#[derive(Deserialize)]
struct Row {
    address: String,
    port: u16,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

pub fn read(json: &[u8], take: Take) -> Result<List, Fault> {
    let mut list = List::new(take);
    let mut number = 0;
    let read = rows::read_named(json, "list", |row| {
        number += 1;
        if list.is_full() {
            return;
        }
        match row.and_then(listed) {
            Ok(Listed::At(entry)) => list.add(Ok::<_, String>(entry)),
            Ok(Listed::Named(host, port, facts)) => list.add_named(host, port, *facts),
            Err(why) => list.add(Err(format!("server {number}: {why}"))),
        }
    });
    read.map_err(|error| fault(format_args!("not Luanti's list: {error}")))?;
    Ok(list)
}

enum Listed {
    At(ListEntry),
    /// Most servers are listed by a name.
    Named(Box<str>, u16, Box<Facts<'static>>),
}

fn listed(row: &str) -> Result<Listed, String> {
    let row: Row = serde_json::from_str(row).map_err(|error| error.to_string())?;
    let mut facts = facts(&row.rest);
    match row.address.parse::<IpAddr>() {
        Ok(ip) => {
            let address = Address::new(ip, row.port).filter(|address| is_one_host(address.ip()));
            let address = address.ok_or_else(|| format!("{ip} port {} is not the address of one host", row.port))?;
            Ok(Listed::At(ListEntry { facts, ..ListEntry::at(address) }))
        }
        Err(_) if row.port > 0 && is_name(&row.address) => {
            let mut details = facts.details.take().map(Arc::unwrap_or_clone).unwrap_or_default();
            details.rules = details.rules.behind("address", &row.address);
            facts.details = Some(details.bounded().into());
            Ok(Listed::Named(row.address.into(), row.port, Box::new(facts)))
        }
        Err(_) => Err("its address is neither an IP address nor a name".into()),
    }
}

fn is_name(host: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    (1..=253).contains(&host.len()) && host.bytes().all(is_plain) && !host.starts_with('-')
}

fn facts(row: &serde_json::Map<String, Value>) -> Facts<'static> {
    let clean = |key: &str| row.get(key).and_then(Value::as_str).map(|text| text::clean(text.as_bytes()).into_owned());
    let count = |key: &str| row.get(key).and_then(Value::as_u64).map(|count| count.min(u16::MAX.into()) as u16);
    let names = |key: &str| {
        let list = row.get(key).and_then(Value::as_array)?;
        let name = |value: &Value| value.as_str().map(|name| text::clean(name.as_bytes()).into_owned());
        Some(list.iter().filter_map(name).collect::<Vec<_>>())
    };
    let mut rules = GameRules::new();
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            rules.push(key, &value);
        }
    };
    put("description", clean("description"));
    put("url", clean("url"));
    FLAGS.iter().for_each(|key| put(key, row.get(*key).and_then(Value::as_bool).map(|flag| flag.to_string())));
    put("privs", clean("privs"));
    NUMBERS.iter().for_each(|key| put(key, row.get(*key).and_then(Value::as_u64).map(|number| number.to_string())));
    put("lag", row.get("lag").and_then(Value::as_f64).map(|lag| lag.to_string()));
    put("clients_top", count("clients_top").map(|count| count.to_string()));
    put("geo_continent", clean("geo_continent"));
    put("mods", names("mods").map(|mods| mods.join(",")));
    let player = |name: String| Player { name: name.into(), ..Player::default() };
    let players = names("clients_list").unwrap_or_default().into_iter().map(player).collect();
    Facts {
        name: clean("name").unwrap_or_default().into(),
        mode: clean("gameid").unwrap_or_default().into(),
        map: clean("mapgen").unwrap_or_default().into(),
        version: text::version(clean("version").unwrap_or_default().as_bytes()),
        players_current: count("clients"),
        players_max: count("clients_max"),
        password: row.get("password").and_then(Value::as_bool),
        details: Some(Details { players, rules }.bounded().into()),
        ..Facts::default()
    }
}

/// A list as a master writes it.
pub const EXAMPLE: &[u8] = br#"{"total":{"servers":2,"clients":1},"total_max":{"servers":2,"clients":3},"list":[{"address":"203.0.113.5","port":30000,"name":"Rally One","description":"d","clients":1,"clients_max":15,"clients_list":["sam"],"mods":["a","b"],"proto_min":37,"proto_max":41,"ping":0.01,"version":"5.6.1","gameid":"minetest_game","pvp":true},{"address":"203.0.113.5","port":30001}]}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_master_writes() {
        let list = read(EXAMPLE, Take::ALL).unwrap();
        let [first, second] = &list.servers[..] else { panic!("{list:?}") };
        assert_eq!(
            (&*first.facts.name, &*first.facts.mode, first.facts.players_max),
            ("Rally One", "minetest_game", Some(15))
        );
        for (rule, value) in [("mods", "a,b"), ("pvp", "true"), ("proto_min", "37")] {
            assert_eq!(first.facts.rule(rule), Some(value));
        }
        assert_eq!(&*first.facts.details.as_ref().unwrap().players[0].name, "sam");
        assert_eq!((second.address.port(), second.facts.players_current), (30_001, None));
    }

    #[test]
    fn a_row_has_all_that_a_player_chooses_by() {
        let list = read(
            br#"{"list":[{"address":"203.0.113.5","port":30000,"mapgen":"v7","version":"5.6.1","clients":3,"password":true}]}"#,
            Take::ALL,
        );
        let facts = &list.unwrap().servers[0].facts;
        assert_eq!((&*facts.map, facts.version.as_str()), ("v7", "5.6.1"));
        assert_eq!((facts.players_current, facts.password), (Some(3), Some(true)));
    }

    #[test]
    fn names_are_kept_bad_rows_are_skipped_and_other_documents_are_refused() {
        let list = read(
            br#"{"list":[{"address":"play.example.org","port":1,"name":7},{},7,{"address":"a b","port":1},
                {"address":"203.0.113.5","port":0},{"address":"224.0.0.1","port":5},{"address":"x","port":0}]}"#,
            Take::ALL,
        )
        .unwrap();
        assert_eq!((list.servers.len(), list.faults.len(), list.named.len()), (0, 6, 1), "{list:?}");
        assert!(list.faults[1].starts_with("server 3: "), "{}", list.faults[1]);
        assert_eq!((&*list.named[0].host, list.named[0].port, &*list.named[0].facts.name), ("play.example.org", 1, ""));
        for other in [&b""[..], b"<html>", b"[]", b"{}", br#"{"servers":[]}"#] {
            assert!(read(other, Take::ALL).unwrap_err().contains("not Luanti's list"), "{other:?}");
        }
    }

    #[test]
    fn no_more_is_taken_than_wanted() {
        let rows = r#"{"address":"a.example","port":1,"name":"x"},{"address":"203.0.113.5","port":1,"name":"x"},7"#;
        let json = format!(r#"{{"list":[{rows},{rows},{rows}]}}"#);
        let list = read(json.as_bytes(), Take { servers_max: 3, addresses_only: true }).unwrap();
        assert_eq!((list.servers.len(), list.named.len(), list.left_out), (1, 2, 1));
        assert_eq!((&list.servers[0].facts, &list.named[0].facts), (&Facts::default(), &Facts::default()));
        assert!(read(&json.as_bytes()[..json.len() - 1], Take { servers_max: 1, ..Take::ALL }).is_err());
    }
}

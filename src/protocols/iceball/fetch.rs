//! Parses `/master.json` as a client. Other masters may leave out fields or add some; a bad row does not affect the others.

use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::model::{Address, Facts};
use crate::protocols::{Fault, List, ListEntry, Take, fault, is_one_host, rows};
use crate::text;

#[derive(Deserialize)]
struct Row {
    address: IpAddr,
    port: u16,
    #[serde(default)]
    name: String,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    map: String,
    #[serde(default)]
    version: String,
    players_current: Option<u16>,
    players_max: Option<u16>,
    /// Official if the field is present, whatever its value.
    official: Option<IgnoredAny>,
}

pub fn read(json: &[u8], take: Take) -> Result<List, Fault> {
    let mut list = List::new(take);
    let mut number = 0;
    let read = rows::read(json, |row| {
        number += 1;
        if list.is_full() {
            return;
        }
        list.add(row.and_then(listed).map_err(|why| format!("server {number}: {why}")));
    });
    read.map_err(|error| fault(format_args!("not Iceball's list: {error}")))?;
    Ok(list)
}

fn listed(row: &str) -> Result<ListEntry, String> {
    let row: Row = serde_json::from_str(row).map_err(|error| error.to_string())?;
    let address = Address::new(row.address, row.port).filter(|address| is_one_host(address.ip()));
    let address = address.ok_or_else(|| format!("{} is not the address of one host", row.address))?;
    let clean = |text: &str| text::clean(text.as_bytes()).into_owned().into();
    let facts = Facts {
        name: clean(&row.name),
        mode: clean(&row.mode),
        map: clean(&row.map),
        version: text::version(row.version.as_bytes()),
        players_current: row.players_current,
        players_max: row.players_max,
        ..Facts::default()
    };
    Ok(ListEntry { official: Some(row.official.is_some()), facts, ..ListEntry::at(address) })
}

/// A list as a master writes it.
pub const EXAMPLE: &[u8] = br#"{"version":2,"iceball_version":8421411,"servers":[{"name":"first","address":"203.0.113.6","port":1,"players_current":3,"players_max":64,"mode":"ctf","map":"mesa.vxl","version":"0.2.1-37","priority":9,"official":true}]}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_master_writes() {
        let list = read(EXAMPLE, Take::ALL).unwrap();
        let [first] = &list.servers[..] else { panic!("{list:?}") };
        assert_eq!((first.address.to_string().as_str(), first.official), ("203.0.113.6:1", Some(true)));
        assert_eq!((&*first.facts.name, &*first.facts.map, &*first.facts.mode), ("first", "mesa.vxl", "ctf"));
        assert_eq!((first.facts.players_current, first.facts.players_max), (Some(3), Some(64)));
        assert_eq!(first.facts.version.as_str(), "0.2.1-37");
    }

    #[test]
    fn bad_rows_are_skipped_and_other_documents_are_refused() {
        let list = read(
            br#"{"servers":[{"address":"203.0.113.5","port":1,"name":"\u001b[31mred"},{},7,
                {"address":"nowhere","port":1},{"address":"203.0.113.5","port":0},{"address":"224.0.0.1","port":5}]}"#,
            Take::ALL,
        )
        .unwrap();
        assert_eq!((list.servers.len(), list.faults.len()), (1, 5), "{list:?}");
        for (fault, number) in list.faults.iter().zip(2..) {
            assert!(fault.starts_with(&format!("server {number}: ")), "{fault}");
        }
        assert_eq!((&*list.servers[0].facts.name, list.servers[0].official), ("[31mred", Some(false)));
        for other in [&b""[..], b"<html>", b"[]", b"{}", &EXAMPLE[..EXAMPLE.len() - 1]] {
            assert!(read(other, Take::ALL).unwrap_err().contains("not Iceball's list"), "{other:?}");
        }
    }

    #[test]
    fn no_more_is_taken_than_wanted() {
        let row = r#"{"address":"203.0.113.5","port":1,"name":"x"}"#;
        let json = format!(r#"{{"servers":[{row},7,{row},{row},7]}}"#);
        let list = read(json.as_bytes(), Take { servers_max: 2, addresses_only: true }).unwrap();
        assert_eq!((list.servers.len(), list.left_out, &*list.servers[0].facts.name), (2, 1, ""));
    }
}

//! Parses `servers.json` as a client. A server has a row, and an entry for each place at which it is: a bad row does not affect
//! the others.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::info::Info;
use super::wire;
use crate::model::Address;
use crate::protocols::{Fault, List, ListEntry, Take, fault, is_one_host, rows};

#[derive(Deserialize)]
struct Row<'a> {
    addresses: Vec<String>,
    #[serde(borrow)]
    info: &'a RawValue,
}

pub fn read(json: &[u8], take: Take) -> Result<List, Fault> {
    let mut list = List::new(take);
    let mut number = 0;
    let read = rows::read(json, |row| {
        number += 1;
        if list.is_full() {
            return;
        }
        match row.and_then(listed) {
            Ok(entries) => entries.for_each(|entry| list.add(Ok::<_, String>(entry))),
            Err(why) => list.add(Err(format!("server {number}: {why}"))),
        }
    });
    read.map_err(|error| fault(format_args!("not DDNet's list: {error}")))?;
    Ok(list)
}

/// A row may have many places, so their entries are made one by one.
fn listed(row: &str) -> Result<impl Iterator<Item = ListEntry> + use<>, String> {
    let row: Row<'_> = serde_json::from_str(row).map_err(|error| error.to_string())?;
    let mut places: Vec<Address> = row.addresses.iter().filter_map(|text| place(text)).collect();
    places.sort_unstable();
    places.dedup(); // one for each version of the protocol
    if places.is_empty() {
        return Err("no address like tw-0.6+udp://203.0.113.5:8303".into());
    }
    let facts = Info::parse(row.info.get().as_bytes())?.facts();
    Ok(places.into_iter().map(move |address| ListEntry { facts: facts.clone(), ..ListEntry::at(address) }))
}

fn place(text: &str) -> Option<Address> {
    let (_, place) = wire::split_address(text)?;
    place.parse().ok().filter(|address: &Address| is_one_host(address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::ddnet::testing::INFO;

    #[test]
    fn a_server_has_an_entry_for_each_place() {
        let json = format!(
            r#"{{"communities":[],"servers":[{{"addresses":["tw-0.7+udp://203.0.113.5:8303","tw-0.6+udp://203.0.113.5:8303",
            "tw-0.6+udp://[2001:db8::1]:8303","tw-0.9+udp://203.0.113.9:1"],"location":"eu:de","info":{INFO}}}]}}"#
        );
        let list = read(json.as_bytes(), Take::ALL).unwrap();
        let places: Vec<_> = list.servers.iter().map(|entry| entry.address.to_string()).collect();
        assert_eq!(places, ["203.0.113.5:8303", "[2001:db8::1]:8303"]);
        assert!(list.servers.iter().all(|entry| entry.facts.name == "Loopback DD"));
    }

    #[test]
    fn bad_rows_are_skipped_and_other_documents_are_refused() {
        let row = |address: &str, info: &str| format!(r#"{{"addresses":["{address}"],"info":{info}}}"#);
        let rows = [
            row("tw-0.6+udp://203.0.113.5:8303", INFO),
            row("tw-0.6+udp://203.0.113.5:8303", "{}"),
            row("tw-0.6+udp://224.0.0.1:8303", INFO),
            row("203.0.113.5:8303", INFO),
            "{}".into(),
            "7".into(),
        ];
        let list = read(format!(r#"{{"servers":[{}]}}"#, rows.join(",")).as_bytes(), Take::ALL).unwrap();
        assert_eq!((list.servers.len(), list.left_out), (1, 5), "{list:?}");
        assert!(list.faults[0].starts_with("server 2: missing field"), "{}", list.faults[0]);
        for other in [&b""[..], b"<html>", b"[]", b"{}"] {
            assert!(read(other, Take::ALL).unwrap_err().contains("not DDNet's list"), "{other:?}");
        }
    }

    #[test]
    fn no_more_is_taken_than_wanted() {
        let addresses: Vec<_> = (1..100).map(|port| format!(r#""tw-0.6+udp://203.0.113.5:{port}""#)).collect();
        let row = format!(r#"{{"addresses":[{}],"info":{INFO}}}"#, addresses.join(","));
        let json = format!(r#"{{"servers":[{row},7,{row}]}}"#);
        let list = read(json.as_bytes(), Take { servers_max: 5, addresses_only: true }).unwrap();
        assert_eq!((list.servers.len(), list.left_out), (5, 0));
        assert!(list.servers.iter().all(|entry| *entry == ListEntry::at(entry.address)));
    }
}

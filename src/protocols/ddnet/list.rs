//! The list as clients read it: one row for each server, with all its addresses.
//!
//! Clients refuse the whole list if one location is not a code that they know, so a place that is not one of these is left out.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::NAME;
use super::info::Info;
use super::record::{Record, SecretHash};
use super::wire::Version;
use crate::model::{Address, Server};
use crate::protocols::section::{Place, Places};
use crate::registry::view::{Body, Renderer, View, Writer};

/// Continents that clients know.
const CONTINENTS: [&[u8; 2]; 7] = [b"AF", b"AN", b"AS", b"EU", b"NA", b"OC", b"SA"];

pub struct ServerList {
    pub places: Arc<dyn Places>,
}

#[derive(Serialize)]
struct Document<'a> {
    servers: Rows<'a>,
}

/// Rows, each made while it is written: all infos at once would take as much memory as the list.
struct Rows<'a> {
    list: &'a ServerList,
    servers: Vec<Found<'a>>,
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.servers.iter().filter_map(|server| self.list.row(server)))
    }
}

#[derive(Serialize)]
struct Row {
    addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    info: Box<RawValue>,
}

/// A server at all its addresses.
struct Found<'a> {
    addresses: Vec<(Address, Version)>,
    serial: i64,
    /// Where its newest info came in.
    newest: &'a Server,
}

impl Renderer for ServerList {
    fn render(&self, view: &View) -> Body {
        let mut by_secret: BTreeMap<SecretHash, Found<'_>> = BTreeMap::new();
        let mut servers = Vec::new();
        for server in view.of_protocol(NAME) {
            match Record::of(server) {
                Some(record) => add(&mut by_secret, server, record),
                // It has not registered itself.
                None => {
                    servers.push(Found { addresses: vec![(server.address, Version::V6)], serial: 0, newest: server })
                }
            }
        }
        servers.extend(by_secret.into_values());
        servers.iter_mut().for_each(|server| server.addresses.sort_unstable());
        servers.sort_by(|one, other| one.addresses.cmp(&other.addresses));
        let mut out = Writer::default();
        let document = Document { servers: Rows { list: self, servers } };
        let written = serde_json::to_writer(&mut out, &document).map_err(io::Error::from);
        let _ = written.and_then(|()| out.write_all(b"\n")); // plain data to memory: cannot fail
        out.finish()
    }

    fn version(&self, view: &View) -> u64 {
        view.facts_serial(NAME)
    }
}

impl ServerList {
    fn row(&self, server: &Found<'_>) -> Option<Row> {
        let location = server.addresses.iter().find_map(|(address, _)| location(self.places.place(address.ip())?));
        let addresses = server.addresses.iter().map(|(address, version)| format!("{}://{address}", version.scheme()));
        let info = match Record::of(server.newest) {
            Some(record) => record.info,
            None => Info::of(&server.newest.facts()).kept().ok()?,
        };
        Some(Row { addresses: addresses.collect(), location, info: RawValue::from_string(info).ok()? })
    }
}

fn add<'a>(servers: &mut BTreeMap<SecretHash, Found<'a>>, server: &'a Server, record: Record) {
    let addresses = record.versions.iter().map(|version| (server.address, *version));
    match servers.get_mut(&record.secret) {
        Some(found) => {
            found.addresses.extend(addresses);
            // The newest info is that of the server, wherever it came in.
            if record.serial > found.serial {
                (found.serial, found.newest) = (record.serial, server);
            }
        }
        None => {
            let found = Found { addresses: addresses.collect(), serial: record.serial, newest: server };
            servers.insert(record.secret, found);
        }
    }
}

/// `eu:de`, or the continent alone.
fn location(place: Place) -> Option<String> {
    CONTINENTS.iter().find(|known| ***known == place.continent)?;
    let letters = |code: [u8; 2]| code.map(|letter| char::from(letter.to_ascii_lowercase()));
    let mut text = String::from_iter(letters(place.continent));
    if let Some(country) = place.country.filter(|country| country.iter().all(u8::is_ascii_alphabetic)) {
        text.push(':');
        text.extend(letters(country));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Announce, Facts, Game, Proof};
    use crate::protocols::Take;
    use crate::protocols::ddnet::testing::{INFO, SECRET};
    use crate::protocols::ddnet::{answer, fetch};
    use serde_json::Value;
    use std::net::IpAddr;

    struct Somewhere;

    impl Places for Somewhere {
        fn place(&self, ip: IpAddr) -> Option<Place> {
            let place = |continent: &[u8; 2], country| Some(Place { continent: *continent, country });
            match ip.to_string().as_str() {
                "203.0.113.5" => place(b"EU", Some(*b"DE")),
                "203.0.113.6" => place(b"AS", None),
                "203.0.113.7" => place(b"XX", Some(*b"DE")),
                "203.0.113.8" => place(b"NA", Some(*b"1\"")),
                _ => None,
            }
        }
    }

    fn server(address: &str, secret: &str, versions: &[Version], serial: i64, info: &str) -> Arc<Server> {
        let address: Address = address.parse().unwrap();
        let versions = versions.to_vec();
        let record = Record { secret: SecretHash::of(secret), versions, serial, info: info.into() };
        Arc::new(Server::announced(&Announce {
            address,
            game: Game::Own(NAME),
            proof: Proof::Cookie,
            proven_at_ms: 1,
            life_ms: 1,
            asked: false,
            rtt_us: None,
            keys: Some(record.keys(address)),
            facts: Facts::default(),
        }))
    }

    fn render(servers: Vec<Arc<Server>>) -> Value {
        let bytes = ServerList { places: Arc::new(Somewhere) }.render(&View::new(1, 0, servers)).to_vec();
        assert_eq!(fetch::read(&bytes, Take::ALL).unwrap().left_out, 0);
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn a_server_is_one_row_with_all_its_addresses_and_its_newest_info() {
        let both = [Version::V6, Version::V7];
        let newer = INFO.replace("Tutorial", "Kobra");
        let list = render(vec![
            server("[2001:db8::1]:8303", SECRET, &both, 4, &newer),
            server("203.0.113.9:8303", "another server's Secret", &[Version::V6], 0, INFO),
            server("203.0.113.5:8303", SECRET, &both, 3, INFO),
        ]);
        let rows = list["servers"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        let addresses = [
            "tw-0.6+udp://203.0.113.5:8303",
            "tw-0.7+udp://203.0.113.5:8303",
            "tw-0.6+udp://[2001:db8::1]:8303",
            "tw-0.7+udp://[2001:db8::1]:8303",
        ];
        assert_eq!(rows[0]["addresses"], serde_json::json!(addresses));
        assert_eq!((&rows[0]["location"], &rows[0]["info"]["map"]["name"]), (&"eu:de".into(), &"Kobra".into()));
        assert_eq!(rows[1]["addresses"][0], "tw-0.6+udp://203.0.113.9:8303");
        assert!(rows[1].get("location").is_none());
        let text = list.to_string();
        assert!(!text.contains(SECRET) && !text.contains("secret"));
    }

    #[test]
    fn the_newest_info_counts_at_whichever_address_it_came_in() {
        for serials in [[3, 4], [4, 3]] {
            let infos = serials.map(|serial| INFO.replace("Tutorial", &format!("map {serial}")));
            let list = render(vec![
                server("203.0.113.5:8303", SECRET, &[Version::V6], serials[0], &infos[0]),
                server("203.0.113.6:8303", SECRET, &[Version::V6], serials[1], &infos[1]),
            ]);
            assert_eq!(list["servers"][0]["info"]["map"]["name"], "map 4", "{serials:?}");
        }
    }

    #[test]
    fn the_form_is_that_of_the_original() {
        let servers = vec![server("203.0.113.5:8303", SECRET, &[Version::V6], 0, INFO)];
        let bytes = ServerList { places: Arc::new(Somewhere) }.render(&View::new(1, 0, servers));
        let row = format!(r#"{{"addresses":["tw-0.6+udp://203.0.113.5:8303"],"location":"eu:de","info":{INFO}}}"#);
        assert_eq!(String::from_utf8(bytes.to_vec()).unwrap(), format!("{{\"servers\":[{row}]}}\n"));
        let none = ServerList { places: Arc::new(Somewhere) }.render(&View::new(1, 0, Vec::new()));
        assert_eq!(none.to_vec(), b"{\"servers\":[]}\n");
    }

    #[test]
    fn locations_are_codes_that_clients_know() {
        for (ip, expected) in [
            ("203.0.113.5", Some("eu:de")),
            ("203.0.113.6", Some("as")),
            ("203.0.113.7", None),
            ("203.0.113.8", Some("na")),
            ("203.0.113.9", None),
        ] {
            let list = render(vec![server(&format!("{ip}:8303"), SECRET, &[Version::V6], 0, INFO)]);
            assert_eq!(list["servers"][0].get("location").and_then(Value::as_str), expected, "{ip}");
        }
    }

    #[test]
    fn a_server_that_did_not_register_is_listed_by_its_facts() {
        let address = "203.0.113.6:8303".parse().unwrap();
        for number in 0..50 {
            let facts = answer::pretend(number);
            let server = Server::new(address, Game::Own(NAME), Proof::Query, 1, &facts);
            let list = render(vec![Arc::new(server)]);
            let info = &list["servers"][0]["info"];
            assert_eq!((info["name"].as_str(), info["map"]["name"].as_str()), (Some(&*facts.name), Some(&*facts.map)));
            let clients = facts.details.as_ref().unwrap().players.len();
            assert_eq!(info["clients"].as_array().unwrap().len(), clients);
            assert!(info["clients"].as_array().unwrap().iter().all(|client| client["country"] == -1));
        }
        let unknown = Server::new(address, Game::Own(NAME), Proof::Config, 1, &Facts::default());
        assert_eq!(render(vec![Arc::new(unknown)])["servers"][0]["info"]["max_clients"], 0);
        let other = Server::new(address, Game::Own("tanks"), Proof::Query, 1, &Facts::default());
        assert_eq!(render(vec![Arc::new(other)])["servers"], serde_json::json!([]));
    }

    #[test]
    fn a_broken_info_costs_its_own_row_only() {
        let servers = vec![
            server("203.0.113.5:1", SECRET, &[Version::V6], 0, "{"),
            server("203.0.113.5:2", "another server's Secret", &[Version::V6], 0, INFO),
        ];
        assert_eq!(render(servers)["servers"].as_array().unwrap().len(), 1);
    }
}

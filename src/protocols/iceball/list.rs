//! Renders `/master.json` for the game's client, whose parser is fragile: it needs an integer `iceball_version` beside the
//! documented `version` and every field in every server, takes any `official` for true, and does not understand `\u` escapes
//! (texts are cleaned when they arrive).

use std::borrow::Cow;
use std::net::Ipv4Addr;

use serde::{Serialize, Serializer};

use super::NAME;
use super::serve::Settings;
use crate::model::Server;
use crate::registry::view::{Body, Renderer, View};

pub struct MasterJson {
    pub settings: Settings,
}

#[derive(Serialize)]
struct Document<'a> {
    version: u16,
    iceball_version: u32,
    #[serde(serialize_with = "rows")]
    servers: Vec<ListedAt<'a>>,
}

type ListedAt<'a> = (&'a Server, Ipv4Addr);

#[derive(Serialize)]
struct Row<'a> {
    name: Cow<'a, str>,
    address: Ipv4Addr,
    port: u16,
    players_current: u16,
    players_max: u16,
    mode: &'a str,
    map: &'a str,
    version: &'a str,
    priority: i32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    official: bool,
}

/// Rows are made one at a time while writing, which halves the memory.
fn rows<S: Serializer>(servers: &[ListedAt<'_>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(servers.iter().map(|&(server, address)| Row {
        // The game would show an empty row for a server without a name.
        name: match server.texts.name() {
            "" => Cow::Owned(server.address.to_string()),
            name => Cow::Borrowed(name),
        },
        address,
        port: server.address.port(),
        players_current: server.players_current.unwrap_or(0),
        players_max: server.players_max.unwrap_or(0),
        mode: server.texts.mode(),
        map: server.texts.map(),
        version: server.texts.version(),
        priority: server.overrides.priority,
        official: server.overrides.official,
    }))
}

impl Renderer for MasterJson {
    /// Sorted by priority, highest first; the game shows rows in this order.
    fn render(&self, view: &View) -> Body {
        let servers = view.of_protocol(NAME);
        let mut listed: Vec<ListedAt<'_>> = Vec::with_capacity(view.servers.len());
        listed.extend(servers.filter_map(|server| Some((&**server, server.address.ipv4()?))));
        listed.sort_by_key(|(server, _)| std::cmp::Reverse(server.overrides.priority));
        let Settings { heartbeat_version, version, .. } = self.settings;
        let document = Document { version: heartbeat_version, iceball_version: version.0, servers: listed };
        Body::json(&document)
    }

    fn version(&self, view: &View) -> u64 {
        view.facts_serial(NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Game, Overrides, Proof, Server, VersionText};
    use std::sync::Arc;

    fn server(address: &str, name: &str, overrides: Overrides) -> Arc<Server> {
        let facts = Facts {
            name: name.into(),
            mode: "ctf".into(),
            map: "mesa.vxl".into(),
            version: VersionText::from("0.2.1-37").unwrap(),
            ..Facts::default()
        };
        let facts = Facts { players_current: Some(3), players_max: Some(64), ..facts };
        let address = address.parse::<Address>().unwrap();
        Arc::new(Server { overrides, ..Server::new(address, Game::Own(NAME), Proof::Cookie, 0, &facts) })
    }

    fn rendered(servers: Vec<Arc<Server>>) -> String {
        let view = View::new(1, 0, servers);
        String::from_utf8(MasterJson { settings: Settings::default() }.render(&view).to_vec()).unwrap()
    }

    #[test]
    fn exact_bytes() {
        let plain = server("203.0.113.5:20737", "\"Grüße\" <b>\\", Overrides::default());
        let first = server("203.0.113.6:1", "first", Overrides { official: true, priority: 9, flavor: 0 });
        let ipv6 = server("[2001:db8::1]:1", "the game knows IPv4 only", Overrides::default());
        assert_eq!(
            rendered(vec![plain, ipv6, first]),
            concat!(
                r#"{"version":2,"iceball_version":8421411,"servers":["#,
                r#"{"name":"first","address":"203.0.113.6","port":1,"players_current":3,"players_max":64,"mode":"ctf","#,
                r#""map":"mesa.vxl","version":"0.2.1-37","priority":9,"official":true},"#,
                r#"{"name":"\"Grüße\" <b>\\","address":"203.0.113.5","port":20737,"players_current":3,"#,
                r#""players_max":64,"mode":"ctf","map":"mesa.vxl","version":"0.2.1-37","priority":0}]}"#
            )
        );
    }

    #[test]
    fn an_empty_list_is_a_list() {
        assert_eq!(rendered(vec![]), r#"{"version":2,"iceball_version":8421411,"servers":[]}"#);
    }
}

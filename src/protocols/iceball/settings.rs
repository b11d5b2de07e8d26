//! Iceball's section of the configuration.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::list::MasterJson;
use super::{NAME, serve};
use crate::model::{Address, Game, NamedServer};
use crate::protocols::DatagramRules;
use crate::protocols::section::{
    Configured, Cookies, Listener, Route, RouteAnswer, RouteRule, Surroundings, Transport, overrides,
};
use crate::registry::view::Renderer;
use crate::settings::{Item, Key, Problem};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub listen: Vec<SocketAddr>,
    pub client_listen: Vec<SocketAddr>,
    pub rules: serve::Settings,
    pub servers: Vec<NamedServer>,
}

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    fn listeners(&self) -> Vec<Listener<'_>> {
        vec![
            Listener {
                key: "listen",
                addresses: &self.listen,
                transport: Transport::DatagramsAndHttp { bytes_max: serve::DATAGRAM_BYTES_MAX },
            },
            Listener { key: "client_listen", addresses: &self.client_listen, transport: Transport::Http },
        ]
    }

    fn datagrams(&self, cookies: Cookies) -> Option<Box<dyn DatagramRules>> {
        Some(Box::new(serve::Rules { settings: self.rules, keys: cookies.keys, time: cookies.time }))
    }

    fn routes(&self, _with: &Surroundings) -> Vec<Route> {
        let rule = Box::new(WholeList(Arc::new(MasterJson { settings: self.rules })));
        vec![Route { path: "/master.json", content_type: "application/json", label: "master.json", rule }]
    }

    fn named_servers(&self) -> &[NamedServer] {
        &self.servers
    }

    fn life_max_ms(&self) -> u64 {
        self.rules.life_ms
    }

    fn keep_life(&mut self, from: &Settings) {
        self.rules.life_ms = from.rules.life_ms;
    }
}

/// The same list for every request.
struct WholeList(Arc<dyn Renderer>);

impl RouteRule for WholeList {
    fn get(&self, _peer: IpAddr, _query: &str) -> RouteAnswer {
        RouteAnswer::List(self.0.clone())
    }
}

const KEYS: &[Key<Settings>] = &[
    Key {
        name: "listen",
        doc: "UDP for game servers and HTTP for game clients, on the same port number.",
        default: "[\"0.0.0.0:27790\", \"[::]:27790\"]",
        example: "",
        set: |settings, item| {
            settings.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "client_listen",
        doc: "HTTP on the port that the protocol's document names for clients.",
        default: "[\"0.0.0.0:27795\", \"[::]:27795\"]",
        example: "",
        set: |settings, item| {
            settings.client_listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "heartbeat_version",
        doc: "The version of the heartbeat protocol that is expected of game servers.",
        default: "2",
        example: "",
        set: |settings, item| {
            settings.rules.heartbeat_version = item.integer(0, 65_535)? as u16;
            Ok(())
        },
    },
    Key {
        name: "version",
        doc: "The version of the game that is expected of game servers. Its build (-35) is not compared.",
        default: "\"0.2.1-35\"",
        example: "",
        set: |settings, item| {
            settings.rules.version = item.parsed("a version like \"0.2.1\" or \"0.2.1-35\"")?;
            Ok(())
        },
    },
    Key {
        name: "life",
        doc: "How long a server stays listed after its last handshake.",
        default: "\"120s\"",
        example: "",
        set: |settings, item| {
            settings.rules.life_ms = item.duration_ms(1_000, 86_400_000)?;
            Ok(())
        },
    },
    Key {
        name: "servers",
        doc: "Overrides for servers: official, and the priority in the list (highest first).",
        default: "[]",
        example: "[[iceball.servers]]\naddress = \"203.0.113.5:20737\"\nofficial = true\npriority = 10",
        set: |settings, item| {
            settings.servers =
                item.list("a list of tables: write [[iceball.servers]]", |table| named_server(&table))?;
            Ok(())
        },
    },
];

/// An entry of `iceball.servers`.
fn named_server(table: &Item<'_>) -> Result<NamedServer, Problem> {
    table.only(&["address", "official", "priority"])?;
    let address: Address = table.required("address", |item| item.parsed("an address like \"203.0.113.5:20737\""))?;
    Ok(NamedServer { address, game: Game::Own(NAME), overrides: overrides(table)?, asked: false })
}

//! Renders `/list` for the game's own menu. A value of a wrong type in one row breaks the menu for everyone, so rows are made
//! of typed fields only; what a server has not said is left out.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::NAME;
use super::serve::number;
use crate::model::{Facts, Server};
use crate::prefix::fair::Claim;
use crate::protocols::join::Join;
use crate::protocols::section::Places;
use crate::registry::view::{Body, Renderer, Tag, View, claim, sort_fairly};

/// The continents that the game's menu knows: any other ends it with an error.
const CONTINENTS: [&[u8; 2]; 6] = [b"AF", b"AS", b"EU", b"NA", b"OC", b"SA"];
const MONTH_S: f64 = 30.0 * 86_400.0;

pub struct ServerRows {
    pub places: Arc<dyn Places>,
}

/// The most servers and players that this run has listed at a time.
static MOST: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

#[derive(Serialize)]
struct Document<'a> {
    total: Total,
    total_max: Total,
    list: Vec<Row<'a>>,
}

#[derive(Clone, Copy, Serialize)]
struct Total {
    servers: u64,
    clients: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
struct Row<'a> {
    address: Cow<'a, str>,
    port: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    gameid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mapgen: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    privs: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients_max: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients_top: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients_list: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mods: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proto_min: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proto_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    game_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ping: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pop_v: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    creative: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pvp: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedicated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollback: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    can_see_far_names: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    geo_continent: Option<&'static str>,
}

/// The continent of an address, if the menu knows it.
pub fn continent(places: &dyn Places, ip: IpAddr) -> Option<&'static str> {
    let place = places.place(ip)?;
    let found = CONTINENTS.into_iter().find(|continent| **continent == place.continent)?;
    std::str::from_utf8(found).ok()
}

/// A value among a server's rules, of its type.
fn rule<T: std::str::FromStr>(server: &Server, key: &str) -> Option<T> {
    text(server, key)?.parse().ok()
}

fn text<'a>(server: &'a Server, key: &str) -> Option<&'a str> {
    server.rules().get(key)
}

impl ServerRows {
    fn row<'a>(&self, server: &'a Server) -> Row<'a> {
        let players = server.details.as_deref().and_then(|details| details.known_players(server.players_current));
        Row {
            address: match text(server, "address") {
                Some(name) => Cow::Borrowed(name),
                None => Cow::Owned(server.address.ip().to_string()),
            },
            port: server.address.port(),
            name: server.texts.name(),
            description: text(server, "description"),
            version: server.texts.version(),
            gameid: server.texts.mode(),
            mapgen: server.texts.map(),
            url: text(server, "url"),
            privs: text(server, "privs"),
            clients: server.players_current,
            clients_max: server.players_max,
            clients_top: rule(server, "clients_top"),
            clients_list: players.map(|players| players.iter().map(|player| &*player.name).collect()),
            mods: text(server, "mods").map(|mods| mods.split(',').filter(|name| !name.is_empty()).collect()),
            proto_min: rule(server, "proto_min"),
            proto_max: rule(server, "proto_max"),
            uptime: rule(server, "uptime"),
            game_time: rule(server, "game_time"),
            lag: rule(server, "lag").filter(|lag: &f64| lag.is_finite()),
            ping: ping(server),
            pop_v: rule(server, "pop_v_milli").map(|milli: u64| (milli + 500) / 1_000),
            password: server.password,
            creative: rule(server, "creative"),
            damage: rule(server, "damage"),
            pvp: rule(server, "pvp"),
            dedicated: rule(server, "dedicated"),
            rollback: rule(server, "rollback"),
            can_see_far_names: rule(server, "can_see_far_names"),
            geo_continent: continent(&*self.places, server.address.ip()),
        }
    }
}

/// In seconds, with five digits.
fn ping(server: &Server) -> Option<f64> {
    server.rtt_us.map(|us| (f64::from(us.get()) / 10.0).round() / 100_000.0)
}

/// How good a server is, as the original list sees it.
fn points(server: &Server) -> f64 {
    let facts: Facts<'_> = server.facts();
    let (clients, most) = (f64::from(server.players_current.unwrap_or(0)), f64::from(server.players_max.unwrap_or(0)));
    let crowd = (clients - 0.8 * most).max(0.0);
    let age = (number(&facts, "game_time") as f64 / MONTH_S).min(8.0);
    let popularity = (number(&facts, "pop_v_milli") as f64 / 2_000.0).min(4.0);
    let huge = if most > 200.0 { 8.0 } else { 0.0 };
    let far = (ping(server).unwrap_or(0.0) - 0.4).max(0.0) * 8.0;
    let points = clients - crowd + age + popularity - huge - far;
    let is_between = number(&facts, "proto_min") <= 32 && number(&facts, "proto_max") > 36;
    if is_between { points * 0.6 } else { points }
}

impl Renderer for ServerRows {
    fn render(&self, view: &View) -> Body {
        self.render_tagged(view).0
    }

    /// The round trip is measured with every query; a list with the same servers says the same whatever it was.
    fn render_tagged(&self, view: &View) -> (Body, Option<Tag>) {
        let mut listed: Vec<(i64, &Server)> =
            view.of_protocol(NAME).map(|server| ((points(server) * 1_000.0) as i64, &**server)).collect();
        // The game's menu keeps this order. Points are claims as players are.
        let claimed = |(points, server): &(i64, &Server)| {
            let players = u16::try_from(points / 1_000).unwrap_or(if *points < 0 { 0 } else { u16::MAX });
            Claim { players, ..claim(server) }
        };
        sort_fairly(&mut listed, claimed, |(points, server)| (Reverse(*points), server.address));
        let clients = listed.iter().map(|(_, server)| u64::from(server.players_current.unwrap_or(0))).sum();
        let total = Total { servers: listed.len() as u64, clients };
        let most =
            |at: usize, now: u64| MOST.get(at).map_or(now, |most| most.fetch_max(now, Ordering::Relaxed).max(now));
        let total_max = Total { servers: most(0, total.servers), clients: most(1, total.clients) };
        let list = listed.into_iter().map(|(_, server)| self.row(server)).collect();
        let mut document = Document { total, total_max, list };
        let body = Body::json(&document);
        document.list.iter_mut().for_each(|row| row.ping = None);
        let mut tag = Tag::default();
        let _ = serde_json::to_writer(&mut tag, &document); // plain data: cannot fail
        (body, Some(tag))
    }
}

/// How players join. The game takes the address and the port apart.
pub fn join(server: &Server) -> Join {
    let (ip, port) = (server.address.ip(), server.address.port());
    Join { link: None, command: Some(format!("luanti --go --address {ip} --port {port}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Details, Game, Proof};
    use crate::protocols::luanti::announce::{Announcement, EXAMPLE};
    use crate::protocols::section::{Place, Surroundings};
    use serde_json::{Value, json};

    fn nowhere() -> ServerRows {
        ServerRows { places: Surroundings::default().places }
    }

    fn server(port: u16, facts: &Facts<'_>) -> Arc<Server> {
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        let server = Server::new(address, Game::Own(NAME), Proof::Query, 0, facts);
        Arc::new(Server { rtt_us: Some(crate::model::round_trip(3_554)), ..server })
    }

    fn rendered(rows: &ServerRows, servers: Vec<Arc<Server>>) -> Value {
        serde_json::from_slice(&rows.render(&View::new(1, 0, servers)).to_vec()).unwrap()
    }

    /// What the original list wrote after a real server's start, except for its address.
    #[test]
    fn a_real_servers_row_is_the_originals() {
        let golden: Value = serde_json::from_str(include_str!("../../../tests/data/luanti.json")).unwrap();
        let whole = golden["announce_start_from_real_server"].as_str().unwrap();
        let body = whole.split_once("\r\n\r\n").unwrap().1;
        let content_type = whole.lines().find_map(|line| line.strip_prefix("Content-Type: ")).unwrap();
        let json = crate::protocols::luanti::form::json(Some(content_type), body.as_bytes()).unwrap();
        let says = Announcement::parse(json.as_bytes()).unwrap().server.unwrap();
        let more = [("clients_top", "0"), ("pop_v_milli", "0")].into();
        let list = rendered(&nowhere(), vec![server(30_000, &says.facts(None, &more))]);
        let mut expected = golden["list_from_original_after_real_start"]["list"][0].clone();
        expected["address"] = "203.0.113.5".into();
        assert_eq!(list["list"][0], expected);
        assert_eq!(list["total"], json!({"servers": 1, "clients": 0}));
    }

    #[test]
    fn every_value_has_its_type_or_is_left_out() {
        let rules = [("uptime", "soon"), ("pvp", "maybe"), ("lag", "NaN"), ("game_time", "-1"), ("mods", "")];
        let details = Some(Arc::new(Details { players: Vec::new(), rules: rules.into() }));
        let list = rendered(&nowhere(), vec![server(1, &Facts { details, ..Facts::default() })]);
        assert_eq!(list["list"][0], json!({"address": "203.0.113.5", "port": 1, "mods": [], "ping": 0.00355}));
        assert_eq!(rendered(&nowhere(), vec![])["list"], json!([]));
    }

    struct Everywhere(&'static [u8; 2]);

    impl Places for Everywhere {
        fn place(&self, _ip: IpAddr) -> Option<Place> {
            Some(Place { continent: *self.0, country: None })
        }
    }

    #[test]
    fn only_continents_that_the_menu_knows() {
        for (code, expected) in [(b"EU", json!("EU")), (b"AN", Value::Null), (b"XX", Value::Null)] {
            let list = rendered(&ServerRows { places: Arc::new(Everywhere(code)) }, vec![server(1, &Facts::default())]);
            assert_eq!(list["list"][0]["geo_continent"], expected);
        }
    }

    #[test]
    fn the_best_come_first() {
        let says = Announcement::parse(EXAMPLE).unwrap().server.unwrap();
        let with = |clients: u16, most: u16, rules: &[(&str, &str)]| {
            let facts = says.facts(None, &rules.iter().copied().collect());
            Facts { players_current: Some(clients), players_max: Some(most), ..facts }
        };
        let old = |rules: &[(&str, &str)]| {
            let rules = rules.iter().copied().collect();
            let details = Some(Arc::new(Details { players: Vec::new(), rules }));
            Facts { players_current: Some(10), players_max: Some(20), details, ..Facts::default() }
        };
        for (facts, expected) in [
            (with(0, 20, &[]), 0.0001),
            (with(10, 20, &[]), 10.0001),
            (with(20, 20, &[]), 16.0001),
            (with(10, 20, &[("pop_v_milli", "3000")]), 11.5001),
            (with(10, 20, &[("pop_v_milli", "90000")]), 14.0001),
            (with(10, 300, &[]), 2.0001),
            (with(10, 200, &[]), 10.0001),
            (old(&[("game_time", "7776000")]), 13.0),
            (old(&[("game_time", "77760000")]), 18.0),
            (old(&[("proto_min", "32"), ("proto_max", "37")]), 6.0),
            (old(&[("proto_min", "33"), ("proto_max", "37")]), 10.0),
            (old(&[("proto_min", "32"), ("proto_max", "36")]), 10.0),
        ] {
            let points = points(&server(1, &facts));
            assert!((points - expected).abs() < 0.001, "{points} {expected}");
        }
        let far =
            Server { rtt_us: Some(crate::model::round_trip(900_000)), ..(*server(1, &with(10, 20, &[]))).clone() };
        assert!((points(&far) - 6.0001).abs() < 0.001, "half a second more than is good");
        let list = rendered(
            &nowhere(),
            vec![server(1, &with(1, 9, &[])), server(2, &with(5, 9, &[])), server(3, &with(0, 9, &[]))],
        );
        let ports: Vec<_> = list["list"].as_array().unwrap().iter().map(|row| row["port"].as_u64().unwrap()).collect();
        assert_eq!(ports, [2, 1, 3]);
        assert_eq!(list["total"]["clients"], 6);
        assert!(list["total_max"]["clients"].as_u64().unwrap() >= 6);
        let popular =
            [1, 2].map(|port| server(port, &with(1, 9, &[("pop_v_milli", ["1400", "1600"][port as usize - 1])])));
        let list = rendered(&nowhere(), popular.to_vec());
        let row = |at: usize| (list["list"][at]["port"].as_u64(), list["list"][at]["pop_v"].as_u64());
        assert_eq!([row(0), row(1)], [(Some(2), Some(2)), (Some(1), Some(1))], "by a tenth of a player");
    }
}

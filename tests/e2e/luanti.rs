//! Luanti: game servers post to `/announce`, are probed over UDP, and are listed as JSON. The last tests run Debian's server in a
//! network namespace of its own.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::machines::{Own, inside};
use crate::programs::Program;
use crate::support::*;
use crate::tools::ends;

const PROBE: [u8; 8] = [0x4f, 0x45, 0x74, 3, 0, 0, 0, 1];

/// A game that greets those who knock, and notes who leaves.
struct Luanti {
    socket: UdpSocket,
}

impl Luanti {
    fn start() -> Luanti {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Luanti { socket }
    }

    fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// Answers one probe as the game does, with this id, and returns what came back to it.
    fn greet(&self, id: u8) -> Vec<u8> {
        let mut buffer = [0; 100];
        let (size, from) = self.socket.recv_from(&mut buffer).expect("a probe");
        assert_eq!(buffer[..size], PROBE);
        let answer = [0x4f, 0x45, 0x74, 3, 0, 1, 0, 3, 0xff, 0xdc, 0, 1, 0, id];
        self.socket.send_to(&answer, from).unwrap();
        let (size, again) = self.socket.recv_from(&mut buffer).expect("a farewell");
        assert_eq!(again, from);
        buffer[..size].to_vec()
    }
}

fn announcement(action: &str, port: u16, changes: Value) -> Value {
    let mut object = json!({
        "action": action, "port": port, "address": "", "name": "A \"world\" é", "description": "All are welcome",
        "version": "5.6.1", "gameid": "minetest_game", "mapgen": "v7", "privs": "interact, shout", "url": "https://a.example/",
        "clients": 2, "clients_max": 15, "clients_list": ["sam", "alex"], "mods": ["beds", "default"], "proto_min": 37,
        "proto_max": 41, "uptime": 0, "game_time": 77, "password": false, "pvp": true, "creative": false, "damage": true,
        "dedicated": true, "rollback": false, "can_see_far_names": true, "surprise": {"a": [1]},
    });
    for (key, value) in changes.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

/// Posts as the real server does: status and text.
fn post(web: SocketAddr, announcement: &Value) -> (u16, String) {
    let body = format!("--B\r\nContent-Disposition: form-data; name=\"json\"\r\n\r\n{announcement}\r\n--B--\r\n");
    let head = format!(
        "POST /announce HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=B\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let answer = split(&exchange(web, (head + &body).as_bytes()));
    (answer.status(), answer.text().trim_end().to_string())
}

fn rows(server: &Server) -> Vec<Value> {
    server.json("/list")["list"].as_array().unwrap().clone()
}

#[test]
fn a_server_that_posts_is_probed_listed_updated_and_removed() {
    let server = Server::start(&["probe.every=15m"]);
    let (web, game) = (server.address("web.listen"), Luanti::start());
    assert_eq!(server.json("/list")["list"], json!([]));
    let filed = (202, "Request has been filed.".to_string());
    assert_eq!(post(web, &announcement("start", game.port(), json!({}))), filed);
    assert_eq!(game.greet(7), [0x4f, 0x45, 0x74, 3, 0, 7, 0, 0, 3], "its place is free again");
    let listed = until("it is listed", || rows(&server).pop());
    let mut expected = announcement("", game.port(), json!({"address": "127.0.0.1", "privs": "interact,shout"}));
    let object = expected.as_object_mut().unwrap();
    object.retain(|key, _| key != "action" && key != "surprise");
    object.insert("clients_list".into(), json!(["alex", "sam"]));
    object.insert("clients_top".into(), 2.into());
    object.insert("pop_v".into(), 2.into());
    object.insert("ping".into(), listed["ping"].clone());
    assert!(listed["ping"].as_f64().is_some());
    assert_eq!(listed, expected, "everything that it said and the menu knows, and nothing else");
    assert_eq!(server.json("/list.json"), server.json("/list"));

    let update =
        announcement("update", game.port(), json!({"uptime": 300, "clients_list": ["sam"], "mods": null, "lag": 0.09}));
    assert_eq!(post(web, &update), filed);
    game.greet(8);
    let listed = until("the update is listed", || rows(&server).pop().filter(|row| row["uptime"] == 300));
    assert_eq!((&listed["clients"], &listed["clients_top"], &listed["lag"]), (&json!(1), &json!(2), &json!(0.09)));
    assert_eq!(listed["mods"], json!(["beds", "default"]), "kept from the start");
    let old = announcement("update", game.port(), json!({"uptime": 299}));
    assert_eq!(post(web, &old), (400, "Detected non-monotonic uptime.".into()));

    let one = server.json(&format!("/api/v1/servers/luanti/127.0.0.1:{}", game.port()));
    assert_eq!(
        (&one["name"], &one["mode"], &one["verified_by"]),
        (&json!("A \"world\" é"), &json!("minetest_game"), &json!("query"))
    );
    assert_eq!(
        (&one["rules"]["mods"], &one["rules"]["description"]),
        (&json!("beds,default"), &json!("All are welcome"))
    );
    assert_eq!(one["players"], json!([{"name": "sam"}]));

    let delete = json!({"action": "delete", "address": "", "port": game.port()});
    assert_eq!(post(web, &delete), (200, "Removed from server list.".into()));
    assert_eq!(rows(&server), Vec::<Value>::new());
    assert_eq!(post(web, &delete), (200, "Server to remove not found.".into()));
    let total = &server.json("/list")["total_max"];
    assert_eq!((&total["servers"], &total["clients"]), (&json!(1), &json!(2)));
}

#[test]
fn a_server_that_does_not_answer_is_told_why_with_its_next_post() {
    let server = Server::start(&[]);
    let (web, game) = (server.address("web.listen"), Luanti::start());
    assert_eq!(post(web, &announcement("start", game.port(), json!({}))).0, 202);
    let update = announcement("update", game.port(), json!({"uptime": 300}));
    let text = until("the failure is told", || {
        let (status, text) = post(web, &update);
        (status == 409).then_some(text)
    });
    let expected = format!(
        "Request has been filed, but the previous one encountered an error:\nno answer from 127.0.0.1:{} over UDP",
        game.port()
    );
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(rows(&server), Vec::<Value>::new());
}

#[test]
fn nobody_but_the_sender_is_probed_and_a_name_that_is_not_its_own_is_not_listed() {
    let server = Server::start(&[]);
    let (web, game) = (server.address("web.listen"), Luanti::start());
    // Not this machine's: a reserved name that no resolver knows.
    let named = announcement("start", game.port(), json!({"address": "host.test"}));
    assert_eq!(post(web, &named).0, 202);
    game.greet(2);
    let listed = until("it is listed", || rows(&server).pop());
    assert_eq!(listed["address"], "127.0.0.1");
    let warning = until("a warning", || {
        let (status, text) = post(web, &announcement("update", game.port(), json!({"uptime": 5})));
        (status == 409).then_some(text)
    });
    assert!(warning.contains("there is a warning from the previous one:\nthe announced name"), "{warning}");
}

#[test]
fn the_list_can_be_switched_off_and_a_page_of_another_site_announces_nothing() {
    let off = Server::start(&["luanti.list=false"]);
    assert_eq!(off.get("/list").status(), 404);
    assert_eq!(post(off.address("web.listen"), &announcement("start", 1, json!({}))).0, 404);
    let on = Server::start(&[]);
    let head = "POST /announce HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\nContent-Length: 7\r\nConnection: close\r\n\r\njson={}";
    assert_eq!(split(&exchange(on.address("web.listen"), head.as_bytes())).status(), 403);
}

#[test]
fn continents_come_from_the_operators_database() {
    let database = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/places.mmdb");
    let server = Server::start(&[&format!("geo.database={}", database.display())]);
    assert_eq!(server.json("/geoip"), json!({"continent": "EU"}));
    let (web, game) = (server.address("web.listen"), Luanti::start());
    post(web, &announcement("start", game.port(), json!({})));
    game.greet(2);
    assert_eq!(until("it is listed", || rows(&server).pop())["geo_continent"], "EU");
    assert_eq!(Server::start(&[]).json("/geoip"), json!({"continent": null}));
}

/// Debian's server, which runs in a world of its own.
fn minetest(folder: &Folder, master: SocketAddr) -> Program {
    let config = folder.write(
        "minetest.conf",
        &format!(
            "server_announce = true\nserverlist_url = http://{master}\nport = 30000\nbind_address = 127.0.0.1\n\
             server_name = Real Luanti\nserver_description = A test\nmax_users = 9\nmapgen_limit = 100\n"
        ),
    );
    let mut command = Command::new("/usr/lib/minetest/minetestserver");
    command.env("HOME", folder.path()).args(["--gameid", "minetest_game", "--config"]).arg(config);
    command.arg("--world").arg(folder.path().join("world"));
    Program::start(&mut command, folder, "minetest", "minetest-server")
}

#[test]
fn a_real_server_is_listed_and_gone_when_it_stops() {
    if !inside(Own::Network, "luanti::a_real_server_is_listed_and_gone_when_it_stops") {
        return;
    }
    let server = Server::start(&["web.listen=127.0.0.1:8080", "probe.every=1s"]);
    let folder = Folder::new("luanti");
    let game = minetest(&folder, server.address("web.listen"));
    let listed = until_within(Duration::from_secs(60), "the real server is listed", || rows(&server).pop());
    for (key, value) in [
        ("name", json!("Real Luanti")),
        ("address", json!("127.0.0.1")),
        ("port", json!(30_000)),
        ("gameid", json!("minetest_game")),
        ("clients_max", json!(9)),
        ("clients", json!(0)),
    ] {
        assert_eq!(listed[key], value, "{key}");
    }
    assert!(listed["mods"].as_array().unwrap().contains(&json!("default")));
    // Its own answer says only that it is there.
    let ask = |more: &[&str]| {
        let (asked, _) = ends(0, &[&["query", "luanti://127.0.0.1", "--format", "json"], more].concat());
        serde_json::from_str::<Value>(&asked).unwrap()["servers"][0].clone()
    };
    assert_eq!(ask(&[])["name"], Value::Null);
    let asked = ask(&["--master", "luanti+http://127.0.0.1:8080"]);
    assert_eq!((&asked["name"], &asked["mode"]), (&json!("Real Luanti"), &json!("minetest_game")));
    assert!(asked["rtt_ms"].is_f64() && asked["rules"]["mods"].as_str().unwrap().contains("default"), "{asked}");
    let seen = || server.json("/api/v1/servers/luanti/127.0.0.1:30000")["proven_at"].clone();
    let first = seen();
    until("it answers again and again", || (seen() != first).then_some(()));
    game.interrupt();
    until("it is gone", || rows(&server).is_empty().then_some(()));
    let log = std::fs::read_to_string(folder.path().join("minetest.log")).unwrap();
    assert!(!log.contains("rror from serverlist") && !log.contains("ERROR"), "{log}");
}

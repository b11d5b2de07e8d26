//! Luanti: game servers post to `/announce`, are probed over UDP, and are listed as JSON. The last tests run Debian's server in a
//! network namespace of its own.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::commands::ends;
use crate::support::documents::game_lines;
use crate::support::machines::{Own, inside};
use crate::support::programs::Program;
use crate::support::*;

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

    /// Answers all probes that have come.
    fn greet_all(&self) {
        let mut buffer = [0; 100];
        self.socket.set_nonblocking(true).unwrap();
        while let Ok((size, from)) = self.socket.recv_from(&mut buffer) {
            if buffer[..size] == PROBE {
                let answer = [0x4f, 0x45, 0x74, 3, 0, 1, 0, 3, 0xff, 0xdc, 0, 1, 0, 2];
                self.socket.send_to(&answer, from).unwrap();
            }
        }
        self.socket.set_nonblocking(false).unwrap();
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

/// Whether the page has this in the row of a server and its details.
fn shows(page: &str, port: u16, rule: &str, value: &str) -> bool {
    let cell = format!("<th scope=\"row\">{rule}</th><td>{value}</td>");
    page.split_once(&format!("127.0.0.1:{port}")).is_some_and(|(_, row)| row.contains(&cell))
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

    let page = server.get("/?game=luanti").text().to_string();
    assert!(shows(&page, game.port(), "mods", "beds,default"), "{page}");
    assert!(shows(&page, game.port(), "privs", "interact,shout") && page.contains("minetest_game"), "{page}");
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
#[ignore = "needs mount namespaces"]
fn nobody_but_the_sender_is_probed_and_a_name_that_is_not_its_own_is_not_listed() {
    if !inside(
        Own::Mounts,
        "protocols::luanti::nobody_but_the_sender_is_probed_and_a_name_that_is_not_its_own_is_not_listed",
    ) {
        return;
    }
    let folder = Folder::new("names");
    let hosts = folder.write("hosts", "127.0.0.1 localhost play.luanti.test\n192.0.2.1 other.luanti.test\n");
    // Nobody answers there.
    let resolver = folder.write("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
    let lend = |file: &Path, place: &str| {
        let mount = Command::new("mount").arg("--bind").arg(file).arg(place).status();
        assert!(mount.expect("mount, from Debian's mount").success(), "{place}");
    };
    lend(&hosts, "/etc/hosts");
    lend(&resolver, "/etc/resolv.conf");
    let server = Server::start(&["probe.every=15m"]);
    let (web, game) = (server.address("web.listen"), Luanti::start());
    let listed = "there is a warning from the previous one:\nthe announced name";
    let (other, unknown) = (format!("{listed} is not one of 127.0.0.1"), format!("{listed} could not be looked up"));
    let mut warning = None;
    for (time, (name, address, next)) in [
        ("play.luanti.test", "play.luanti.test", None),
        ("missing.luanti.test", "127.0.0.1", Some(&unknown)),
        ("other.luanti.test", "127.0.0.1", Some(&other)),
        ("192.0.2.1", "127.0.0.1", Some(&other)),
        ("play.luanti.test", "play.luanti.test", None),
        ("", "127.0.0.1", None),
    ]
    .into_iter()
    .enumerate()
    {
        let update = announcement("update", game.port(), json!({"uptime": time, "address": name}));
        let (status, text) = post(web, &update);
        match warning {
            Some(warning) => assert!(status == 409 && text.contains(warning), "{name}: {text}"),
            None => assert_eq!((status, &*text), (202, "Request has been filed."), "{name}"),
        }
        // Whatever it names, the sender is probed, and nobody else.
        game.greet(2);
        let row = until("it is listed", || rows(&server).pop().filter(|row| row["uptime"] == time));
        assert_eq!(row["address"], address, "{name}");
        warning = next;
    }
}

#[test]
fn an_update_of_an_unknown_server_is_a_start_and_so_is_one_with_less_uptime() {
    let server = Server::start(&["probe.every=15m"]);
    let (web, game) = (server.address("web.listen"), Luanti::start());
    let filed = (202, "Request has been filed.".to_string());
    for (id, uptime, clients) in [(2, 300, json!(["sam", "alex"])), (3, 5, json!(["sam"]))] {
        let update =
            announcement("update", game.port(), json!({"uptime": uptime, "clients_list": clients, "mods": null}));
        assert_eq!(post(web, &update), filed);
        game.greet(id);
        let row = until("it is listed", || rows(&server).pop().filter(|row| row["uptime"] == uptime));
        let clients = clients.as_array().unwrap().len();
        assert_eq!((&row["name"], &row["mods"]), (&json!("A \"world\" é"), &Value::Null));
        assert_eq!((&row["clients_top"], &row["pop_v"]), (&json!(clients), &json!(clients)), "counted anew");
    }
}

#[test]
fn a_server_that_did_not_answer_for_a_while_comes_back_with_everything_that_it_said() {
    let server = Server::start(&["probe.every=1s"]);
    let (web, game) = (server.address("web.listen"), Luanti::start());
    post(web, &announcement("start", game.port(), json!({})));
    game.greet(2);
    until("it is listed", || rows(&server).pop());
    until("it has missed its probes", || rows(&server).is_empty().then_some(()));
    let update = json!({"uptime": 300, "clients_list": [], "mods": null, "privs": null});
    let mut update = announcement("update", game.port(), update);
    update.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    post(web, &update);
    let row = until("it is listed again", || {
        game.greet_all();
        rows(&server).pop().filter(|row| row["uptime"] == 300)
    });
    assert_eq!((&row["mods"], &row["privs"]), (&json!(["beds", "default"]), &json!("interact,shout")));
    assert_eq!((&row["clients"], &row["clients_top"], &row["pop_v"]), (&json!(0), &json!(2), &json!(1)));
}

#[test]
fn long_bodies_of_one_address_have_few_places_and_a_full_server_needs_none() {
    let server = Server::start(&[]);
    let web = server.address("web.listen");
    let head = |size: usize| {
        format!("POST /announce HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n")
    };
    let begin = |size: usize| {
        let mut stream = connect(web);
        stream.write_all(head(size).as_bytes()).unwrap();
        stream
    };
    let held: Vec<_> = (0..9).map(|_| begin(40_000)).collect();
    let is_answered = |stream: &TcpStream| stream.peek(&mut [0]).is_ok();
    held.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    until("one of nine is refused", || held.iter().any(is_answered).then_some(()));
    let refused = |size: usize| split(&exchange(web, (head(size) + &"x".repeat(size)).as_bytes())).status() == 503;
    assert!(!refused(24 << 10), "this one is short");
    drop(held);
    until("places are free again", || (!refused(40_000)).then_some(()));
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
    let lines = game_lines("luanti", "", &master.to_string()).replace("play.example.org", "127.0.0.1");
    let config = folder.write(
        "minetest.conf",
        &format!(
            "{lines}port = 30000\nbind_address = 127.0.0.1\n\
             server_name = Real Luanti\nserver_description = A test\nmax_users = 9\nmapgen_limit = 100\n"
        ),
    );
    let mut command = Command::new("/usr/lib/minetest/minetestserver");
    command.env("HOME", folder.path()).args(["--gameid", "minetest_game", "--config"]).arg(config);
    command.arg("--world").arg(folder.path().join("world"));
    Program::start(&mut command, folder, "minetest", "minetest-server")
}

#[test]
#[ignore = "needs minetest-server and network namespaces"]
fn a_real_server_is_listed_and_gone_when_it_stops() {
    if !inside(Own::Network, "protocols::luanti::a_real_server_is_listed_and_gone_when_it_stops") {
        return;
    }
    let server = Server::start(&["web.listen=127.0.0.1:8080", "probe.every=1s"]);
    let folder = Folder::new("luanti");
    let game = minetest(&folder, server.address("web.listen"));
    let listed = until("the real server is listed", || rows(&server).pop());
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
    let mods: Vec<_> = listed["mods"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(mods.contains(&"default"), "{mods:?}");
    let page = server.get("/?game=luanti").text().to_string();
    assert!(page.contains("Real Luanti") && shows(&page, 30_000, "mods", &mods.join(",")), "{page}");
    assert!(shows(&page, 30_000, "description", "A test"), "{page}");
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

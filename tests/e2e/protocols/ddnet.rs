//! DDNet over real sockets: a recorder that registers as the game does, the list as clients fetch it, and Debian's server.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::commands::ends;
use crate::support::documents::game_lines;
use crate::support::machines::{Own, inside};
use crate::support::programs::Program;
use crate::support::*;

const SECRET: &str = "569baaab-1815-4d42-a066-f559a0363903";
const UUID: &str = "9eab27de-20c4-431c-b4be-bf15c7b3d21b";
const INFO: &str = concat!(
    r#"{"max_clients":16,"max_players":16,"passworded":false,"game_type":"TestDDraceNetwork","name":"Loopback DD","#,
    r#""map":{"name":"Tutorial","sha256":"0dafbba301084aebbf439575e36a44bfb65a4f15e606e9eec3814e2e0e28d953","#,
    r#""size":1082711},"version":"0.6.4, 16.4","clients":[{"name":"Alice","clan":"Aces","country":-1,"score":7,"#,
    r#""is_player":true}]}"#,
);
const NEED_CHALLENGE: &str = "{\"status\":\"need_challenge\"}\n";
const NEED_INFO: &str = "{\"status\":\"need_info\"}\n";
const SUCCESS: &str = "{\"status\":\"success\"}\n";

/// A game server that registers one version of the protocol at one address.
struct Recorder {
    socket: UdpSocket,
    master: SocketAddr,
    version: &'static str,
    token: Option<String>,
}

impl Recorder {
    fn new(master: SocketAddr, socket: &UdpSocket, version: &'static str) -> Recorder {
        let socket = socket.try_clone().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Recorder { socket, master, version, token: None }
    }

    fn headers(&self, secret: &str) -> String {
        let port = self.socket.local_addr().unwrap().port();
        format!("Address: tw-{}+udp://connecting-address.invalid:{port}\r\nSecret: {secret}\r\n", self.version)
    }

    fn register(&self, serial: i64, body: &str) -> Response {
        let connless = if self.version == "0.7" { "Connless-Token: dd3f9563\r\n" } else { "" };
        let token = self.token.as_ref().map(|token| format!("Challenge-Token: {token}\r\n")).unwrap_or_default();
        let headers = self.headers(SECRET);
        post(
            self.master,
            &format!(
                "{headers}{connless}Challenge-Secret: {UUID}:tw{}/ipv4\r\n{token}Info-Serial: {serial}\r\n",
                self.version
            ),
            body,
        )
    }

    fn delete(&self, secret: &str) -> Response {
        post(self.master, &format!("Action: delete\r\n{}", self.headers(secret)), "")
    }

    /// Waits for the challenge and keeps its token.
    fn challenged(&mut self) {
        let mut buffer = [0; 300];
        let (size, _) = self.socket.recv_from(&mut buffer).unwrap();
        let start = match self.version {
            "0.7" => b"\x21\xdd\x3f\x95\x63\xff\xff\xff\xff\xff\xff\xff\xffchal".to_vec(),
            _ => b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffchal".to_vec(),
        };
        let start = [&start, format!("{UUID}:tw{}/ipv4\0", self.version).as_bytes()].concat();
        let token = buffer[..size].strip_prefix(&start[..]).expect("a challenge").strip_suffix(b"\0").expect("a zero");
        self.token = Some(String::from_utf8(token.to_vec()).unwrap());
    }
}

fn post(master: SocketAddr, headers: &str, body: &str) -> Response {
    let length = body.len();
    let request = format!(
        "POST /ddnet/15/register HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = connect(master);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    split(&answer)
}

fn servers(server: &Server) -> Vec<Value> {
    let list = server.json("/ddnet/15/servers.json");
    list["servers"].as_array().unwrap().clone()
}

/// The server as the API has it.
fn known(server: &Server) -> Value {
    server.json("/api/v1/servers?game=ddnet")["servers"][0].clone()
}

#[test]
fn a_game_registers_is_listed_and_goes_and_its_secret_is_nowhere() {
    let folder = Folder::new("ddnet");
    let data = format!("data_dir={}", folder.path().join("data").display());
    let server = Server::start(&[&data, "log=debug"]);
    let web = server.address("web.listen");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut six, mut seven) = (Recorder::new(web, &socket, "0.6"), Recorder::new(web, &socket, "0.7"));
    let answer = six.register(0, INFO);
    assert_eq!((answer.status(), answer.text()), (200, NEED_CHALLENGE));
    assert_eq!(answer.header("Content-Type"), Some("application/json"));
    assert_eq!(servers(&server).len(), 0, "nothing without a proof");
    six.challenged();
    assert_eq!(six.register(0, "").text(), NEED_INFO);
    assert_eq!(six.register(0, INFO).text(), SUCCESS);
    assert_eq!(seven.register(0, "").text(), NEED_CHALLENGE);
    seven.challenged();
    assert_eq!(seven.register(0, "").text(), SUCCESS);

    let place = socket.local_addr().unwrap();
    let addresses = ["0.6", "0.7"].map(|version| format!("tw-{version}+udp://{place}"));
    let listed = servers(&server);
    let info: Value = serde_json::from_str(INFO).unwrap();
    assert_eq!(listed, [json!({"addresses": addresses, "info": info})]);
    let shown = &known(&server);
    assert_eq!(
        (&shown["name"], &shown["game"], &shown["verified_by"]),
        (&json!("Loopback DD"), &json!("ddnet"), &json!("cookie"))
    );
    assert_eq!((&shown["players_current"], &shown["mode"]), (&json!(1), &json!("TestDDraceNetwork")));
    let page = server.get("/?game=ddnet");
    assert!(page.text().contains("Loopback DD") && page.text().contains("Aces"), "{}", page.text());
    let (list, _) = ends(0, &["list", &format!("ddnet+http://{web}"), "--format", "json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["total"], &list["servers"][0]["name"]), (&json!(1), &json!("Loopback DD")));

    let changed = INFO.replace("Tutorial", "Kobra 4");
    assert_eq!(six.register(1, "").text(), NEED_INFO);
    assert_eq!(six.register(1, &changed).text(), SUCCESS);
    assert_eq!(servers(&server)[0]["info"]["map"]["name"], "Kobra 4");
    assert_eq!(six.register(2, "{\"name\":7}").status(), 400);

    // The store has been written: the server is known after a restart, without its info.
    let port = web.port();
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let (_, mut log) = server.end();
    let server = Server::start(&[&data, "log=debug", &format!("web.listen=127.0.0.1:{port}")]);
    assert_eq!(servers(&server)[0]["addresses"], json!(addresses));
    assert_eq!(six.register(1, "").text(), NEED_CHALLENGE, "the keys are new");
    six.challenged();
    assert_eq!(six.register(1, "").text(), SUCCESS);

    let refused = six.delete("00000000-1815-4d42-a066-f559a0363903");
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("could not find registered server"));
    assert_eq!(six.delete(SECRET).text(), SUCCESS);
    assert_eq!(servers(&server)[0]["addresses"], json!([addresses[1]]));
    assert_eq!(seven.delete(SECRET).text(), SUCCESS);
    assert_eq!(servers(&server).len(), 0);

    let api = server.get("/api/v1/servers").text().to_string() + server.get("/metrics").text();
    server.signal(nix::sys::signal::Signal::SIGTERM);
    log += &server.end().1;
    let mut stored = Vec::new();
    for file in std::fs::read_dir(folder.path().join("data")).unwrap() {
        stored.extend(std::fs::read(file.unwrap().path()).unwrap());
    }
    let stored = String::from_utf8_lossy(&stored);
    assert!(stored.contains("Loopback DD"), "the store has the server");
    for (place, text) in [("log", &*log), ("store", &*stored), ("API", &*api)] {
        assert!(!text.contains(SECRET), "the Secret is in the {place}");
        assert!(!text.contains(UUID), "the Challenge-Secret is in the {place}");
    }
}

#[test]
fn the_doctor_tells_owners_of_closed_ports_and_bad_infos() {
    let server = Server::start(&[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut game = Recorder::new(server.address("web.listen"), &socket, "0.6");
    let place = socket.local_addr().unwrap();
    let check = || server.json(&format!("/api/v1/check?game=ddnet&address={place}"));
    assert_eq!(game.register(0, INFO).text(), NEED_CHALLENGE);
    let (diagnosis, advice) = (check()["summary"].clone(), check()["advice"].clone());
    assert!(diagnosis.as_str().unwrap().contains("was sent a token over UDP"), "{diagnosis}");
    assert!(advice.as_str().unwrap().contains(&format!("UDP port {}", place.port())), "{advice}");

    game.challenged();
    assert_eq!(game.register(0, "{}").status(), 400);
    let diagnosis = check()["summary"].clone();
    assert!(diagnosis.as_str().unwrap().contains("refused: invalid info: missing field"), "{diagnosis}");
    assert_eq!(game.register(0, INFO).text(), SUCCESS);
    assert_eq!(check()["listed"], true);
}

#[test]
fn a_server_with_two_addresses_is_one_row() {
    let server = Server::start(&["web.listen=127.0.0.1:0,[::1]:0"]);
    let sockets = ["127.0.0.1:0", "[::1]:0"].map(|at| UdpSocket::bind(at).unwrap());
    for (socket, web) in sockets.iter().zip(&server.listening()["web.listen"]) {
        let mut game = Recorder::new(*web, socket, "0.6");
        assert_eq!(game.register(0, INFO).text(), NEED_CHALLENGE);
        game.challenged();
        assert_eq!(game.register(0, INFO).text(), SUCCESS);
    }
    let addresses = sockets.each_ref().map(|socket| format!("tw-0.6+udp://{}", socket.local_addr().unwrap()));
    let listed = servers(&server);
    assert_eq!((listed.len(), &listed[0]["addresses"]), (1, &json!(addresses)));
}

#[test]
fn clients_get_the_dates_of_the_list_with_head_too() {
    let server = Server::start(&[]);
    let web = server.address("web.listen");
    let whole = get(web, "/ddnet/15/servers.json", "");
    assert_eq!((whole.status(), whole.text()), (200, "{\"servers\":[]}\n"));
    assert_eq!(whole.header("Content-Type"), Some("application/json"));
    let head = request(web, "HEAD", "/ddnet/15/servers.json", "");
    assert_eq!((head.status(), head.body.len()), (200, 0));
    for answer in [&whole, &head] {
        for name in ["Date", "Last-Modified"] {
            assert!(answer.header(name).is_some_and(|date| date.ends_with(" GMT")), "{name}: {}", answer.head);
        }
        assert_eq!(answer.header("Etag"), whole.header("Etag"));
        assert_eq!(answer.header("Content-Length"), Some("15"));
    }
    let off = Server::start(&["ddnet.list=false"]);
    assert_eq!(off.get("/ddnet/15/servers.json").status(), 404);
    let answer = post(off.address("web.listen"), "", "");
    assert_eq!(answer.status(), 404);
    assert!(answer.text().starts_with("{\"status\":\"error\",\"message\":"), "{}", answer.text());
}

#[test]
fn a_body_that_is_too_long_is_refused_and_a_full_server_is_not() {
    let server = Server::start(&[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut game = Recorder::new(server.address("web.listen"), &socket, "0.6");
    game.register(0, "");
    game.challenged();
    let long = " ".repeat((128 << 10) - INFO.len()) + INFO;
    assert_eq!(game.register(0, &long).text(), SUCCESS, "{} bytes", long.len());
    assert_eq!(game.register(1, &format!(" {long}")).status(), 413);
}

#[test]
#[ignore = "needs ddnet-server and network namespaces"]
fn debians_server_registers_is_queried_and_goes() {
    if !inside(Own::Network, "protocols::ddnet::debians_server_registers_is_queried_and_goes") {
        return;
    }
    let server = Server::start(&["web.listen=127.0.0.1:8080"]);
    let folder = Folder::new("ddnet-server");
    let mut command = Command::new("/usr/games/DDNet-Server");
    let lines = game_lines("ddnet", "", "127.0.0.1:8080");
    let others = ["http_allow_insecure 1", "sv_sixup 1", "sv_port 8303", "sv_name Loopback DD"];
    command.env("HOME", folder.path()).current_dir(folder.path()).args(lines.lines().chain(others));
    let game = Program::start(&mut command, &folder, "server", "ddnet-server");
    let addresses = json!(["tw-0.6+udp://127.0.0.1:8303", "tw-0.7+udp://127.0.0.1:8303"]);
    let row =
        until("both versions on the list", || servers(&server).into_iter().find(|row| row["addresses"] == addresses));
    assert_eq!((&row["info"]["name"], &row["info"]["map"]["name"]), (&json!("Loopback DD"), &json!("Tutorial")));
    assert_eq!(known(&server)["verified_by"], "cookie");
    assert!(server.get("/").text().contains("Loopback DD"));

    let (asked, _) = ends(0, &["query", "ddnet://127.0.0.1:8303", "--format", "json"]);
    let asked: Value = serde_json::from_str(&asked).unwrap();
    let asked = &asked["servers"][0];
    // Its answer has no more than 16 letters of the mode.
    for fact in ["name", "map", "version", "players_current", "players_max"] {
        assert_eq!(asked[fact], known(&server)[fact], "{fact}");
    }
    game.interrupt();
    until("the server to be gone", || servers(&server).is_empty().then_some(()));
}

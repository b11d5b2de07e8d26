//! What one address, one network and all together may have: entries in the list, announcements and reads (budgets), searches, and
//! what slow readers have not taken.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::support::*;

/// A game at an address of 127.0.0.0/8.
fn game(server: &Server, ip: [u8; 4]) -> Game {
    Game::on(server.address("iceball.listen"), ip.into())
}

fn check(server: &Server, address: &str) -> Value {
    server.json(&format!("/api/v1/check?game=iceball&address={address}"))
}

fn addresses(server: &Server) -> Vec<String> {
    server.listed().iter().map(|row| format!("{}:{}", row["address"].as_str().unwrap(), row["port"])).collect()
}

#[test]
fn a_full_list_takes_from_the_network_that_has_most() {
    let server = Server::start(&["guard.max_servers=6"]);
    game(&server, [127, 0, 9, 1]).announce(&announcement(b"small", 1, 0));
    // A flood from one /24, from a different address each.
    for host in 1..=20 {
        game(&server, [127, 0, 1, host]).announce(&announcement(b"flood", 1, 0));
    }
    let refused = "no network has more servers on it than its own";
    until("the flood to be refused", || {
        check(&server, "127.0.1.20:1")["summary"].as_str().filter(|summary| summary.contains(refused)).map(drop)
    });
    until("the list to be full", || (server.listed().len() == 6).then_some(()));
    // New servers from other networks are listed, and replace servers of the flood.
    for network in [2, 3] {
        game(&server, [127, 0, network, 1]).announce(&announcement(b"newcomer", 1, 0));
        let newcomer = format!("127.0.{network}.1:1");
        until("the newcomer", || addresses(&server).contains(&newcomer).then_some(()));
    }
    let (flood, mut others): (Vec<_>, Vec<_>) =
        addresses(&server).into_iter().partition(|address| address.starts_with("127.0.1."));
    others.sort();
    assert_eq!((flood.len(), others), (3, ["127.0.2.1:1", "127.0.3.1:1", "127.0.9.1:1"].map(String::from).to_vec()));
}

#[test]
fn exempt_networks_have_only_the_limit_per_address_from_the_next_reload_on() {
    let folder = Folder::new("exempt");
    let limits = |exempt: &str| format!("[guard]\nmax_servers_per_ip = 1\nexempt = [{exempt}]\n");
    let file = folder.write("rallypoint.toml", &limits(""));
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let announce_all = |server: &Server| {
        for host in 1..=10 {
            game(server, [127, 0, 1, host]).announce(&announcement(b"one of ten", 1, 0));
        }
    };
    announce_all(&server);
    let too_many = "too many servers in the network around its address";
    until("the limit of the /24", || {
        check(&server, "127.0.1.10:1")["summary"].as_str().filter(|summary| summary.contains(too_many)).map(drop)
    });
    until("those before it", || (server.listed().len() == 8).then_some(()));
    folder.write("rallypoint.toml", &limits("\"127.0.0.0/8\""));
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    announce_all(&server);
    until("all ten", || (server.listed().len() == 10).then_some(()));
    game(&server, [127, 0, 1, 1]).announce(&announcement(b"second", 2, 0));
    until("the limit of the address", || {
        let diagnosis = check(&server, "127.0.1.1:2");
        diagnosis["summary"].as_str().filter(|summary| summary.contains("too many servers at its address")).map(drop)
    });
}

#[test]
fn a_limit_for_a_game_in_a_network_is_set_while_the_program_runs() {
    let folder = Folder::new("per-game");
    let limit = |most: &str| format!("[guard]\nmax_per_game_and_network = {most}\n");
    let file = folder.write("rallypoint.toml", "");
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let announce = |server: &Server, network: u8, host: u8, port: u16| {
        game(server, [127, 0, network, host]).announce(&announcement(b"one of many", port, 0));
    };
    (1..=10).for_each(|host| announce(&server, 1, host, 1));
    until("all without a limit", || (server.listed().len() == 10).then_some(()));
    // Those that are listed stay; newcomers in this network are refused, and those in another one are not.
    folder.write("rallypoint.toml", &limit("[\"iceball=3\", \"*=1\"]"));
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    announce(&server, 1, 11, 1);
    let diagnosis = until("the refusal", || {
        let diagnosis = check(&server, "127.0.1.11:1");
        let is_refused =
            diagnosis["summary"].as_str().unwrap().contains("as many servers of this game as the operator");
        is_refused.then_some(diagnosis)
    });
    assert!(diagnosis["advice"].as_str().unwrap().contains("guard.max_per_game_and_network"), "{diagnosis}");
    assert_eq!(server.figure("rallypoint_events_total{kind=\"refused_full_for_game\"}"), 1.0);
    announce(&server, 2, 1, 1);
    announce(&server, 1, 2, 1);
    until("the other network", || addresses(&server).contains(&"127.0.2.1:1".into()).then_some(()));
    assert_eq!(server.listed().len(), 11);
    // In a network that is full, the address with the most of them makes room for one with fewer.
    folder.write("rallypoint.toml", &limit("13"));
    assert_eq!(server.log().matches("configuration reloaded").count(), 1);
    server.signal(Signal::SIGHUP);
    until("the second reload", || (server.log().matches("configuration reloaded").count() == 2).then_some(()));
    (2..=4).for_each(|port| announce(&server, 1, 1, port));
    until("a full network", || (server.listed().len() == 14).then_some(()));
    announce(&server, 1, 12, 1);
    until("the newcomer", || addresses(&server).contains(&"127.0.1.12:1".into()).then_some(()));
    // Which of its last three is the newest, threads decide.
    let left = |port: &u16| addresses(&server).contains(&format!("127.0.1.1:{port}"));
    assert_eq!((server.listed().len(), left(&1), (1..=4).filter(left).count()), (14, true, 3));
}

/// One request on an open connection: the whole answer.
pub fn ask(stream: &mut BufReader<TcpStream>, request: &str) -> Response {
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length: usize = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
    let mut answer = head.into_bytes();
    let at = answer.len();
    answer.resize(at + length, 0);
    stream.read_exact(&mut answer[at..]).unwrap();
    split(&answer)
}

fn announcement_of_chess() -> String {
    let body = r#"{"game":"chess","port":1234}"#;
    let length = body.len();
    format!(
        "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// A heartbeat over netPanzer's port from this address: the answer.
fn heartbeat_from(ip: &str, server: &Server) -> String {
    let mut stream = connect_from(ip, server.address("netpanzer.listen"));
    stream.write_all(br"\heartbeat\gamename\chess\port\1234\final\").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn too_many_announcements_are_refused_with_a_time_and_others_are_not() {
    // Small budgets: 64 announcements at once, one per second.
    let server = Server::start(&["guard.exempt=127.9.9.0/24", "guard.max_servers_per_ip=1"]);
    let announce = announcement_of_chess();
    let flood = |ip: &str| {
        let mut stream = BufReader::new(connect_from(ip, server.address("web.listen")));
        (0..300).map(|_| ask(&mut stream, &announce)).find(|answer| answer.status() == 429)
    };
    let refused = flood("127.0.0.1").expect("a refusal");
    let after: u32 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!((1..60).contains(&after), "{after}");
    assert!(refused.text().contains("try again in"), "{}", refused.text());
    assert_eq!(refused.header("Content-Type"), Some("application/json"));

    let metrics = server.get("/metrics");
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let line = |start: &str| metrics.text().lines().find(|line| line.starts_with(start)).map(count);
    assert!(line("rallypoint_budget_refused_total{budget=\"handshakes\"}").unwrap() >= 1.0);
    let share = line("rallypoint_budget_network_share{budget=\"handshakes\",network=\"127.0.0.0/24\"}").unwrap();
    assert!((0.0..=1.0).contains(&share), "{share}");

    let error = until("an error on the other port", || {
        flood("127.0.0.1");
        Some(heartbeat_from("127.0.0.1", &server)).filter(|answer| answer.starts_with(r"\error\"))
    });
    assert!(error.contains("try again in"), "{error}");
    assert!(heartbeat_from("127.1.0.1", &server).starts_with(r"\final\"), "another network");
    assert!(flood("127.9.9.9").is_none(), "an exempt network");
    // A flood of announcements does not touch lists.
    assert_eq!(server.get("/api/v1/servers").status(), 200);
}

#[test]
fn who_reads_too_much_is_told_to_wait_and_health_is_always_answered() {
    let server = Server::start(&[]);
    let mut stream = BufReader::new(connect_from("127.0.0.1", server.address("web.listen")));
    // The longest answer of an empty server.
    let request = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n";
    let size = ask(&mut stream, request).body.len();
    let burst = 128 << 20;
    let answers = burst / size + 4_000;
    let refused = (0..answers).map(|_| ask(&mut stream, request)).find(|answer| answer.status() == 429);
    let refused = refused.expect("a refusal");
    assert!(refused.header("Retry-After").is_some() && refused.text().contains("too many requests from your network"));
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/check?game=iceball&address=127.0.0.1:1"] {
        assert_eq!(server.get(path).status(), 200, "{path}");
    }
    let announced =
        until("an announcement is not refused for that", || Some(ask(&mut stream, &announcement_of_chess())));
    assert_eq!(announced.status(), 200, "{}", announced.text());
    let mut other = BufReader::new(connect_from("127.1.0.1", server.address("web.listen")));
    assert_eq!(ask(&mut other, request).status(), 200);
}

/// How often datagrams were refused for lack of budget.
fn refused(server: &Server) -> u64 {
    let metrics = server.get("/metrics");
    let of = |kind: &str| {
        let start = format!("rallypoint_budget_refused_total{{budget=\"{kind}\"}} ");
        metrics.text().lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse::<u64>().unwrap()
    };
    of("announcements") + of("replies")
}

#[test]
fn forged_announcements_silence_nobody_who_is_listed() {
    let server = Server::start(&["guard.max_servers_per_ip=2"]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"alpha", 1, 3));
    until("it is listed", || (server.listed().len() == 1).then_some(()));
    // Anybody could send these in its name: they come from another port of its address.
    let forger = Game::new(server.address("iceball.listen"));
    until("the budget is used up", || {
        (0..50).for_each(|number| forger.send(&announcement(b"forged", 2, number)));
        (refused(&server) > 0).then_some(())
    });
    until("it is still heard", || {
        (0..50).for_each(|number| forger.send(&announcement(b"forged", 2, number)));
        game.send(&announcement(b"alpha", 1, 4));
        game.socket.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        let mut buffer = [0; 200];
        let size = game.socket.recv(&mut buffer).ok()?;
        buffer[..size].starts_with(b"MSOK").then(|| game.handshake(&buffer[4..size]))
    });
    until("its new state", || (server.listed()[0]["players_current"] == 4).then_some(()));
}

/// Long enough that a search takes a while, and that an answer does not fit into the system's buffers.
const SERVERS: u16 = 1_000;

fn connect_from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.into()
}

fn get_from(ip: &str, to: SocketAddr, path: &str) -> Response {
    let mut stream = connect_from(ip, to);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    split(&answer)
}

fn netpanzer_list(ip: &str, server: &Server, filter: &str) -> String {
    let mut stream = connect_from(ip, server.address("netpanzer.listen"));
    write!(stream, r"\list\gamename\iceball{filter}\final\\final\").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A master with many servers, all of one address that has no budgets.
fn filled(set: &[&str]) -> Server {
    let many = ["guard.max_servers_per_ip=65535", "guard.exempt=127.7.7.7/32", "iceball.life=1h"];
    let set: Vec<&str> = many.iter().chain(set).copied().collect();
    let server = Server::start(&set);
    let game = Game::on(server.address("iceball.listen"), [127, 7, 7, 7].into());
    for port in 1..=SERVERS {
        game.announce(&announcement(b"one of very many servers", port, 3));
    }
    until("all to be listed", || (server.json("/readyz")["servers"] == SERVERS).then_some(()));
    server
}

fn figure(server: &Server, name: &str) -> u64 {
    server.figure(name) as u64
}

#[test]
fn who_searches_all_the_time_is_refused_and_nobody_else_is() {
    let server = filled(&[]);
    let web = server.address("web.listen");
    let mut number: u16 = 0;
    let refused = until("a refusal", || {
        number += 1;
        let answer =
            get_from("127.0.5.1", web, &format!("/api/v1/servers?q=many&sort=name&limit={}", 1_000 - number % 900));
        assert!([200, 429].contains(&answer.status()), "{}", answer.head);
        (answer.status() == 429).then_some(answer)
    });
    let after: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!(after >= 1 && refused.text().contains("try again in"), "{}", refused.text());
    // A moment later there is a little left again.
    let error = until("an error", || {
        number += 1;
        get_from("127.0.5.1", web, &format!("/api/v1/servers?q=many&sort=name&limit={}", 1_000 - number % 900));
        let own = netpanzer_list("127.0.5.1", &server, &format!(r"\port\{number}"));
        own.starts_with(r"\error\").then_some(own)
    });
    assert!(error.starts_with(r"\error\too much was asked for") && error.ends_with(r"\final\"), "{error}");
    // Common lists cost nothing, and others have their own budget.
    for path in ["/master.json", "/api/v1/servers", "/"] {
        assert_eq!(get_from("127.0.5.1", web, path).status(), 200, "{path}");
    }
    assert!(netpanzer_list("127.0.5.1", &server, "").starts_with(r"\ip\127.7.7.7\port\"));
    assert_eq!(get_from("127.0.6.1", web, "/api/v1/servers?q=another").status(), 200);
    assert_eq!(netpanzer_list("127.0.6.1", &server, r"\port\5"), r"\ip\127.7.7.7\port\5\final\");
    assert!(figure(&server, "rallypoint_renderings_refused_total") >= 2);
}

#[test]
fn clients_that_never_read_do_not_take_more_memory_the_more_they_are() {
    let server = filled(&["guard.max_list_mib=1"]);
    let web = server.address("web.listen");
    let most = 100;
    // Each asks for lists of its own that no system buffers: 300 KB each, several times.
    let silent: Vec<_> = (0..most)
        .map(|number: u16| {
            let mut stream = connect_from(&format!("127.0.{}.1", 10 + number), web);
            let path = format!("/api/v1/servers?limit={}", 900 + number);
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.repeat(20).as_bytes()).unwrap();
            stream
        })
        .collect();
    // All together would be 30 MB.
    until("those who hold lists to be closed", || {
        let held = figure(&server, "rallypoint_lists_held_bytes");
        assert!(held < 8 << 20, "{held} bytes");
        (figure(&server, "rallypoint_connections") < u64::from(most) && held <= 1 << 20).then_some(())
    });
    assert_eq!(server.listed().len(), usize::from(SERVERS), "common lists go on");
    drop(silent);
    until("searches to work again", || {
        (get_from("127.0.5.1", web, "/api/v1/servers?q=many").status() == 200).then_some(())
    });
}

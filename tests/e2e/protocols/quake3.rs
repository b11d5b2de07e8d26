//! The Quake III family over real sockets: pretend games announce themselves from their own ports, and every command finds
//! them. `quake3_programs.rs` does the same with real games and browsers.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};

use rallypoint::model::Address;
use rallypoint::protocols::fetch::Packet;
use rallypoint::protocols::quake3::{announce, answer, packets};
use serde_json::Value;

use crate::support::commands::{Running, announced, ends, json, listed, place, places, simulate};
use crate::support::*;

const HEADER: &[u8] = &[0xff; 4];

fn master(server: &Server) -> String {
    format!("quake3://{}", server.address("quake3.listen"))
}

fn socket(at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2048];
    let size = socket.recv(&mut buffer).unwrap();
    buffer[..size].to_vec()
}

/// All packets of a list, until its end mark.
fn list(socket: &UdpSocket, master: SocketAddr, request: &str) -> Vec<Address> {
    socket.send_to(&[HEADER, request.as_bytes()].concat(), master).unwrap();
    let mut servers = Vec::new();
    loop {
        let Packet { servers: more, end } = packets::decode(&receive(socket)).unwrap();
        servers.extend(more);
        if end {
            return servers;
        }
    }
}

#[test]
fn games_announce_themselves_and_every_command_finds_them() {
    let server = Server::start(&["probe.every=2s"]);
    let (games, addresses) = announced("quake3", &server, 12, &[]);
    let all = listed(&server);
    assert_eq!(places(&all), addresses);
    for server in &all {
        assert_eq!((&server["protocol"], &server["verified_by"]), (&"quake3".into(), &"query".into()));
        assert!(!server["name"].as_str().unwrap().contains('^'), "without colours: {server}");
    }
    let games_listed: HashSet<_> = all.iter().map(|server| server["game"].as_str().unwrap()).collect();
    assert_eq!(games_listed, HashSet::from(["Xonotic", "Quake3Arena", "Nexuiz", "et", "wolfmp"]));
    assert_eq!(server.json("/api/v1/servers?protocol=quake3")["total"], 12);
    assert_eq!(
        server.json("/api/v1/servers?game=quake3")["total"],
        12,
        "the family's name stands for all of its games"
    );
    assert_eq!(server.json("/api/v1/servers?game=Xonotic")["total"], 2);

    // getstatus brings players and the round trip.
    let with_players = until("players", || {
        listed(&server).into_iter().find(|server| server["players"].as_array().is_some_and(|players| players.len() > 1))
    });
    let player = &with_players["players"][0];
    assert!(player["ping"].is_i64() && player["score"].is_i64() && player["name"].is_string(), "{player}");
    assert!(with_players["rtt_ms"].is_number() && with_players["rules"]["clients"].is_string(), "{with_players}");
    assert!(!games_listed.contains("quake3") && with_players["game"] != "quake3", "{with_players}");

    let of = |game: &str, protocol: &str| -> HashSet<String> {
        let all = listed(&server);
        let wanted = all.iter().filter(|server| server["game"] == game && server["rules"]["protocol"] == protocol);
        wanted.map(place).collect()
    };
    let master = master(&server);
    let found = json(&["list", &format!("{master}/Xonotic?protocol=3"), "--query"]);
    assert_eq!(places(&found), of("Xonotic", "3"));
    assert!(found.iter().all(|server| server["game"] == "Xonotic" && server["protocol"] == "quake3"), "{found:?}");
    assert!(found.iter().any(|server| server["players_max"].as_u64() > Some(0)), "they were queried: {found:?}");
    assert_eq!(places(&json(&["list", &format!("{master}/Quake3Arena?protocol=71")])), of("Quake3Arena", "71"));
    assert_eq!(places(&json(&["list", &master])), addresses, "every game of the table");

    let one = addresses.iter().next().unwrap();
    let found = json(&["query", &format!("quake3://{one}")]);
    let expected = all.iter().find(|server| place(server) == *one).unwrap();
    assert_eq!((&found[0]["name"], &found[0]["game"]), (&expected["name"], &expected["game"]));

    let folder = Folder::new("quake3-export");
    let file = folder.path().join("list.json");
    ends(0, &["export", &format!("{master}/et?protocol=84"), "--json", file.to_str().unwrap(), "--once"]);
    let exported: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(places(exported["servers"].as_array().unwrap()), of("et", "84"));

    let mut watch = Running::start(&["watch", &format!("{master}/wolfmp?protocol=60"), "--every", "1s"]);
    let lines = watch.lines(2);
    assert!(of("wolfmp", "60").iter().all(|address| lines.iter().any(|line| line.contains(address))), "{lines:?}");

    // They are gone when they no longer answer.
    drop(games);
    until("an empty list", || listed(&server).is_empty().then_some(()));
}

#[test]
fn ipv6() {
    let server = Server::start(&["quake3.listen=[::1]:0"]);
    let (_games, addresses) = announced("quake3", &server, 6, &["--listen", "::1"]);
    assert!(addresses.iter().all(|address| address.starts_with("[::1]:")));
    let player = socket("[::1]:0");
    let to = server.address("quake3.listen");
    assert_eq!(list(&player, to, "getservers Xonotic 3 empty full"), [], "a plain list has IPv4 only");
    assert_eq!(list(&player, to, "getserversExt Xonotic 3 empty full ipv4"), []);
    let found = list(&player, to, "getserversExt Xonotic 3 empty full ipv6");
    assert_eq!(found, list(&player, to, "getserversExt Xonotic 3 empty full"));
    assert!(found.len() == 1 && addresses.contains(&found[0].to_string()), "{found:?}");
    assert_eq!(places(&json(&["list", &master(&server)])), addresses);
}

#[test]
fn only_the_game_itself_announces_to_its_masters_and_others_take_it_from_a_program() {
    let server = Server::start(&[]);
    let (_games, addresses) = simulate("quake3", 1, &[]);
    let (_, said) = ends(2, &["announce", "quake3", "--from-query", &addresses[0], "--master", &master(&server)]);
    assert!(said.contains("sv_master1") && said.contains("dedicated 2"), "{said}");
    let api = format!("http://{}", server.address("web.listen"));
    // The game's own name does, too: the query's address says what it speaks.
    ends(0, &["announce", "Xonotic", "--from-query", &addresses[0], "--master", &api, "--once"]);
    let found = until("it to be listed", || listed(&server).pop());
    assert_eq!((&found["protocol"], &found["game"]), (&"quake3".into(), &"Xonotic".into()));
    let player = socket("127.0.0.1:0");
    let found = list(&player, server.address("quake3.listen"), "getservers Xonotic 3 empty full");
    assert_eq!(format!("quake3://{}", found[0]), addresses[0], "its lists have it, too");
}

#[test]
fn lists_are_the_same_after_a_restart() {
    let folder = Folder::new("quake3-restart");
    let data = format!("data_dir={}", folder.path().display());
    let server = Server::start(&[&data]);
    let (_games, _) = announced("quake3", &server, 12, &[]);
    let player = socket("127.0.0.1:0");
    let requests =
        ["getservers 71 empty full", "getservers Xonotic 3 empty full", "getservers 84", "getservers 60 full"];
    let lists = |server: &Server| requests.map(|request| list(&player, server.address("quake3.listen"), request));
    let before = lists(&server);
    assert!(before.iter().filter(|list| !list.is_empty()).count() >= 3, "{before:?}");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(server.end().0.success());
    let again = Server::start(&[&data]);
    assert_eq!(lists(&again), before);
}

#[test]
fn the_doctor_says_what_the_protocol_does_not() {
    let server = Server::start(&[]);
    let to = server.address("quake3.listen");
    let send = |game: &UdpSocket, text: &str| game.send_to(&[HEADER, text.as_bytes()].concat(), to).unwrap();
    let says = |game: &UdpSocket, what: &str| {
        let path = format!("/api/v1/check?game=quake3&address={}", game.local_addr().unwrap());
        until(what, || server.json(&path).to_string().contains(what).then_some(()));
    };
    let unknown = socket("127.0.0.1:0");
    send(&unknown, "heartbeat Nope\n");
    says(&unknown, "`Nope`");
    says(&unknown, "quake3.tags");
    let game = socket("127.0.0.2:0");
    send(&game, "heartbeat DarkPlaces\n");
    let getinfo = String::from_utf8(receive(&game).split_off(4)).unwrap();
    says(&game, "did not answer getinfo");
    let challenge = getinfo.strip_prefix("getinfo ").unwrap();
    let info = format!("infoResponse\n\\protocol\\3\\sv_maxclients\\8\\clients\\0\\challenge\\{challenge}");
    send(&game, &info);
    says(&game, "has no gamename");
    send(&game, &format!("{info}\\gamename\\Own"));
    until("it to be listed", || listed(&server).pop());
    let path = |game_name: &str| format!("/api/v1/check?game={game_name}&address={}", game.local_addr().unwrap());
    assert_eq!(server.json(&path("Own"))["listed"], true);
    let other = server.json(&path("Xonotic"));
    assert!(other["listed"] == false && other["summary"].as_str().unwrap().ends_with(": Own."), "{other}");
    until("the page's menu to have it", || server.get("/").text().contains("<option value=\"Own\"").then_some(()));

    let wrong_port = socket("127.0.0.3:0");
    let heartbeat = [HEADER, b"heartbeat DarkPlaces\n"].concat();
    wrong_port.send_to(&heartbeat, server.address("iceball.listen")).unwrap();
    says(&wrong_port, "on the port for Iceball. Make sure that the server announces itself over UDP port 27950.");
}

/// Registers games of one kind on ports of 127.0.0.1, which answer nothing later.
fn register(master: SocketAddr, count: usize) -> Vec<UdpSocket> {
    let facts = answer::pretend(0);
    let mut sockets = Vec::new();
    for _ in 0..count {
        let game = socket("127.0.0.1:0");
        let local = game.local_addr().unwrap();
        let at = Address::new(local.ip(), local.port()).unwrap();
        game.send_to(&announce::heartbeat(&facts), master).unwrap();
        for answer in answer::answer(&facts, at, &receive(&game)) {
            game.send_to(&answer, master).unwrap();
        }
        sockets.push(game);
    }
    sockets
}

/// How many requests for lists have been looked at.
fn requests(server: &Server) -> u64 {
    let metrics = server.get("/metrics");
    let counts = metrics.text().lines().filter(|line| line.starts_with("rallypoint_list_answers_total{"));
    counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_forged_flood_brings_its_victim_little_and_others_get_whole_lists() {
    const REQUESTS: u64 = 1_000;
    let server = Server::start(&["guard.max_servers_per_ip=1000", "probe.every=10m"]);
    let to = server.address("quake3.listen");
    let games = register(to, 450);
    until("all of them to be listed", || (server.json("/api/v1/servers?limit=1")["total"] == 450).then_some(()));
    let request = "getservers Xonotic 3 empty full";

    // Whoever forges the victim's address makes datagrams as the victim's own socket does.
    let victim = socket("127.0.0.2:0");
    let player = socket("127.0.0.3:0");
    let before = requests(&server);
    let heard = victim.try_clone().unwrap();
    let (sender, sizes) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok(size) = heard.recv(&mut buffer) {
            if buffer[..size] == *b"over" || sender.send(size).is_err() {
                return;
            }
        }
    });
    for sent in 1..=REQUESTS {
        victim.send_to(&[HEADER, request.as_bytes()].concat(), to).unwrap();
        // In pieces that fit into the receive buffer.
        if sent % 200 == 0 {
            until("the requests to be looked at", || (requests(&server) - before >= sent).then_some(()));
        }
        if sent == REQUESTS * 3 / 5 {
            // Another player in the middle of it.
            let found: HashSet<_> = list(&player, to, request).into_iter().map(|at| at.port()).collect();
            let expected: HashSet<_> = games.iter().map(|game| game.local_addr().unwrap().port()).collect();
            assert_eq!(found, expected, "the whole list");
        }
    }
    victim.send_to(b"over", victim.local_addr().unwrap()).unwrap();
    let sizes: Vec<usize> = sizes.iter().collect();
    let on_the_wire: usize = sizes.iter().map(|size| size + 28).sum();
    assert!(on_the_wire > 3_000, "the first requests are answered: {sizes:?}");
    assert!(on_the_wire <= 100_000, "{on_the_wire} bytes");
}

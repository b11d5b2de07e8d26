//! Xash3D over real sockets: pretend games announce themselves from their own ports, and every command finds them; then what
//! a stranger may try. `xash3d_programs.rs` does the same with xash3d-query.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};

use rallypoint::model::Address;
use rallypoint::protocols::xash3d::{announce, answer, packets};
use serde_json::Value;

use crate::support::commands::{Running, announced, ends, json, listed, place, places};
use crate::support::*;

const KEY: u32 = 0xdead_beef;

fn master(server: &Server) -> String {
    format!("xash3d://{}", server.address("xash3d.listen"))
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

fn query(filter: &str) -> Vec<u8> {
    [b"1\xff0.0.0.0:0\0", filter.as_bytes(), b"\0"].concat()
}

/// All packets of a list, up to one that has room for another entry.
fn list(socket: &UdpSocket, master: SocketAddr, filter: &str) -> Vec<Address> {
    socket.send_to(&query(&format!("{filter}\\key\\deadbeef")), master).unwrap();
    let mut servers = Vec::new();
    loop {
        let packet = receive(socket);
        assert_eq!(packet[6..12], [0x7f, 0xef, 0xbe, 0xad, 0xde, 0x08], "every packet repeats the key");
        let read = packets::decode(&packet, KEY).unwrap();
        servers.extend(read.servers);
        if read.end {
            return servers;
        }
    }
}

/// A game that announces itself by hand.
struct Game {
    socket: UdpSocket,
    master: SocketAddr,
}

impl Game {
    fn new(at: &str, master: SocketAddr) -> Game {
        Game { socket: socket(at), master }
    }

    fn challenge(&self) -> u32 {
        self.socket.send_to(b"q\xff", self.master).unwrap();
        let answer = receive(&self.socket);
        assert_eq!((answer.len(), &answer[..6]), (10, &b"\xff\xff\xff\xffs\n"[..]));
        u32::from_le_bytes(answer[6..].try_into().unwrap())
    }

    fn add(&self, challenge: u32, keys: &str) {
        let text = format!("0\n\\challenge\\{challenge}\\protocol\\49\\max\\8\\region\\255{keys}\n");
        self.socket.send_to(text.as_bytes(), self.master).unwrap();
    }

    fn address(&self) -> Address {
        let local = self.socket.local_addr().unwrap();
        Address::new(local.ip(), local.port()).unwrap()
    }
}

#[test]
fn games_announce_themselves_and_every_command_finds_them() {
    let server = Server::start(&["probe.every=2s"]);
    let (games, addresses) = announced("xash3d", &server, 12, &[]);
    let all = listed(&server);
    assert_eq!(places(&all), addresses);
    for server in &all {
        assert_eq!((&server["protocol"], &server["game"]), (&"xash3d".into(), &"xash3d".into()));
        assert_eq!((&server["verified_by"], &server["mode"]), (&"cookie".into(), &server["rules"]["gamedir"]));
    }
    let of = |gamedir: &str| {
        let of_gamedir = all.iter().filter(|server| server["mode"] == gamedir).map(place);
        of_gamedir.collect::<HashSet<_>>()
    };
    assert!(of("valve").len() == 3 && of("cstrike").len() == 3, "{all:?}");
    assert_eq!(server.json("/api/v1/servers?game=xash3d&mode=cstrike")["total"], 3);
    let page = server.get("/?game=xash3d&mode=cstrike");
    assert!(page.text().contains("de_dust2") && !page.text().contains("crossfire"), "by gamedir");

    // The master asks them for their names. Their version is from the announcement.
    let named = until("their names", || {
        let all = listed(&server);
        all.iter().all(|server| server["name"].is_string() && server["rtt_ms"].is_number()).then_some(all)
    });
    for server in &named {
        assert_eq!((&server["verified_by"], &server["version"]), (&"cookie".into(), &"0.21".into()), "{server}");
        assert_eq!(server["rules"]["deathmatch"], "1", "{server}");
    }
    let one = addresses.iter().next().unwrap();
    let found = json(&["query", &format!("xash3d://{one}")]);
    let expected = named.iter().find(|server| place(server) == *one).unwrap();
    assert_eq!((&found[0]["name"], &found[0]["mode"]), (&expected["name"], &expected["mode"]));

    let master = master(&server);
    assert_eq!(places(&json(&["list", &master])), addresses);
    let found = json(&["list", &format!("{master}/valve"), "--query"]);
    assert!(found.iter().all(|server| server["name"].as_str().unwrap().starts_with("Black Mesa")), "{found:?}");
    assert_eq!(places(&json(&["list", &format!("{master}/cstrike")])), of("cstrike"));
    assert_eq!(places(&json(&["list", &master, "--game", "valve", "--game", "dod"])).len(), 3 + of("dod").len());
    assert_eq!(json(&["list", &format!("{master}/none")]).len(), 0, "an empty list is an answer");

    let folder = Folder::new("xash3d-export");
    let file = folder.path().join("list.json");
    ends(0, &["export", &format!("{master}/valve"), "--json", file.to_str().unwrap(), "--once"]);
    let exported: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(places(exported["servers"].as_array().unwrap()), of("valve"));

    let mut watch = Running::start(&["watch", &format!("{master}/tfc"), "--every", "1s"]);
    let lines = watch.lines(of("tfc").len());
    assert!(of("tfc").iter().all(|address| lines.iter().any(|line| line.contains(address))), "{lines:?}");

    // They are gone when they no longer answer.
    drop(games);
    until("an empty list", || listed(&server).is_empty().then_some(()));
}

#[test]
fn ipv6() {
    let server = Server::start(&["xash3d.listen=[::1]:0"]);
    let (_games, addresses) = announced("xash3d", &server, 6, &["--listen", "::1"]);
    assert!(addresses.iter().all(|address| address.starts_with("[::1]:")));
    let player = socket("[::1]:0");
    let found = list(&player, server.address("xash3d.listen"), "");
    assert_eq!(found.iter().map(Address::to_string).collect::<HashSet<_>>(), addresses);
    assert_eq!(places(&json(&["list", &master(&server)])), addresses);
}

#[test]
fn only_the_game_itself_announces_to_its_masters_and_the_tool_says_how() {
    let server = Server::start(&[]);
    let (_, said) = ends(2, &["announce", "xash3d", "--port", "27015", "--master", &master(&server)]);
    assert!(said.contains("addmaster") && said.contains("xashcomm.lst"), "{said}");
    let api = format!("http://{}", server.address("web.listen"));
    let (_, said) = ends(1, &["announce", "xash3d", "--port", "27015", "--master", &api, "--once"]);
    assert!(said.contains("over UDP port 27010"), "a connection proves less than a challenge: {said}");
}

#[test]
fn forged_foreign_and_repeated_challenges_change_nothing_and_the_doctor_says_so() {
    let server = Server::start(&[]);
    let to = server.address("xash3d.listen");
    let says = |game: &Game, what: &str| {
        let path = format!("/api/v1/check?game=xash3d&address={}", game.socket.local_addr().unwrap());
        until(what, || server.json(&path).to_string().contains(what).then_some(()));
    };
    let [game, other] = ["127.0.0.1:0", "127.0.0.1:0"].map(|at| Game::new(at, to));
    let challenge = game.challenge();
    says(&game, "did not return the challenge");
    other.add(challenge, r"\gamedir\valve\map\stolen");
    says(&other, "not sent to this address and port");
    game.add(challenge ^ 0x1000, r"\gamedir\valve\map\guessed");
    says(&game, "not sent to this address and port");
    game.add(challenge, r"\gamedir\valve\players\nobody");
    says(&game, "is not valid");
    game.add(challenge, r"\gamedir\valve\map\crossfire\players\1");
    let found = until("it to be listed", || listed(&server).pop());
    assert_eq!((&found["map"], listed(&server).len()), (&"crossfire".into(), 1));
    says(&game, "its address is verified");
    game.socket.send_to(b"b\n", to).unwrap();
    says(&game, "goes away");
    assert_eq!(listed(&server).len(), 1, "anyone can say that");
    let metrics = server.get("/metrics");
    for label in ["dropped_challenge_forged", "dropped_bad_value", "add_accepted", "dropped_remove"] {
        assert!(metrics.text().contains(label), "{label}: not in the metrics");
    }
}

#[test]
fn long_lists_are_split_as_on_xash3d_master() {
    let server = Server::start(&["guard.max_servers_per_ip=1000", "probe.every=10m"]);
    let to = server.address("xash3d.listen");
    let facts = answer::pretend(0);
    let mut games = Vec::new();
    for _ in 0..215 {
        let game = socket("127.0.0.1:0");
        let local = game.local_addr().unwrap();
        game.send_to(&announce::heartbeat(&facts), to).unwrap();
        let at = Address::new(local.ip(), local.port()).unwrap();
        let answers = answer::answer(&facts, at, &receive(&game));
        game.send_to(&answers[0], to).unwrap();
        games.push(game);
    }
    until("all of them to be listed", || (server.json("/api/v1/servers?limit=1")["total"] == 215).then_some(()));
    let player = socket("127.0.0.1:0");
    let expected: HashSet<_> = games.iter().map(|game| game.local_addr().unwrap().port()).collect();
    let found = until("the whole list", || Some(list(&player, to, r"\gamedir\valve")).filter(|list| list.len() == 215));
    assert_eq!(found.iter().map(Address::port).collect::<HashSet<_>>(), expected);
    player.send_to(&query(r"\gamedir\valve\key\deadbeef"), to).unwrap();
    let sizes = [(); 3].map(|()| receive(&player).len());
    assert_eq!(sizes, [510, 510, 324]);
}

#[test]
fn servers_behind_nat_are_told_of_players_and_nobody_is_flooded() {
    let server = Server::start(&["guard.max_servers_per_ip=4"]);
    let to = server.address("xash3d.listen");
    let game = Game::new("127.0.0.2:0", to);
    game.add(game.challenge(), r"\gamedir\valve\map\crossfire\nat\1");
    until("it to be listed", || listed(&server).pop());
    let player = socket("127.0.0.3:0");
    let expected = format!("\u{fffd}\u{fffd}\u{fffd}\u{fffd}c {}", player.local_addr().unwrap());
    until("the list with it", || list(&player, to, r"\gamedir\valve").contains(&game.address()).then_some(()));
    assert_eq!(String::from_utf8_lossy(&receive(&game.socket)), expected);
    assert_eq!(list(&player, to, r"\nat\0"), [], "who wants none of these tells none of them");

    // Whoever forges players' addresses makes datagrams as their own sockets do.
    let told = game.socket.try_clone().unwrap();
    let (sender, sizes) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(size) = told.recv(&mut buffer) {
            if buffer[..size] == *b"over" || sender.send(size).is_err() {
                return;
            }
        }
    });
    let asked = |server: &Server| -> u64 {
        let metrics = server.get("/metrics");
        let counts = metrics.text().lines().filter(|line| line.starts_with("rallypoint_list_answers_total{"));
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let before = asked(&server);
    for number in 1..=1_000u64 {
        let forged = socket(&format!("127.{}.{}.7:0", 10 + number % 100, number / 100));
        forged.send_to(&query(""), to).unwrap();
        if number % 100 == 0 {
            until("the requests to be looked at", || (asked(&server) - before >= number).then_some(()));
        }
    }
    game.socket.send_to(b"over", game.socket.local_addr().unwrap()).unwrap();
    let count = sizes.iter().count();
    assert!((1..=400).contains(&count), "{count} datagrams for 1,000 forged players");
}

#[test]
fn clients_that_are_too_old_are_asked_to_update() {
    let server = Server::start(&["xash3d.min_client_version=0.21", "xash3d.update_address=127.0.0.1:27010"]);
    let to = server.address("xash3d.listen");
    let (_games, addresses) = announced("xash3d", &server, 5, &[]);
    let player = socket("127.0.0.1:0");
    let update: Address = "127.0.0.1:27010".parse().unwrap();
    assert_eq!(list(&player, to, r"\gamedir\valve\clver\0.20"), [update]);
    assert_eq!(list(&player, to, r"\gamedir\valve"), [update], "who does not say it is too old");
    let found = list(&player, to, r"\clver\0.21").iter().map(Address::to_string).collect::<HashSet<_>>();
    assert_eq!(found, addresses);
    player.send_to(b"\xff\xff\xff\xffinfo 48", to).unwrap();
    let please = String::from_utf8_lossy(&receive(&player)).into_owned();
    assert!(please.contains(r"\map\Update please\") && please.contains(r"\host\https://github.com/FWGS/"), "{please}");
    assert_eq!(places(&json(&["list", &master(&server)])), addresses, "our own command is new enough");
}

#[test]
fn lists_are_the_same_after_a_restart() {
    let folder = Folder::new("xash3d-restart");
    let data = format!("data_dir={}", folder.path().display());
    let server = Server::start(&[&data]);
    let (_games, _) = announced("xash3d", &server, 10, &[]);
    let player = socket("127.0.0.1:0");
    let lists = |server: &Server| {
        ["", r"\gamedir\valve", r"\dedicated\0", r"\password\1", r"\protocol\48"]
            .map(|filter| list(&player, server.address("xash3d.listen"), filter))
    };
    let before = lists(&server);
    assert!(before.iter().filter(|list| !list.is_empty()).count() >= 4, "{before:?}");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(server.end().0.success());
    assert_eq!(lists(&Server::start(&[&data])), before);
}

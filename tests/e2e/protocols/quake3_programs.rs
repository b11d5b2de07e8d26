//! The Quake III family with real programs from Debian: servers of ioquake3 and DarkPlaces announce themselves, are
//! listed, queried and forgotten, and quakestat reads the lists. The ports of masters and games are fixed, so each test
//! runs in a network namespace of its own.
//!
//! ioquake3's client does not run without a screen: [`read_as_ioquake3`] follows its rules instead.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use serde_json::Value;

use crate::support::commands::{ends, simulate};
use crate::support::documents::game_blocks;
use crate::support::machines::{Own, inside};
use crate::support::programs::*;
use crate::support::*;

const LISTEN: &str = "quake3.listen=127.0.0.1:27950,[::1]:27950";
const MASTER: (&str, &str) = ("sv_master1", "127.0.0.1:27950");
const MASTER_IPV6: (&str, &str) = ("sv_master3", "[::1]:27950");
const HEADER: &[u8] = b"\xff\xff\xff\xff";
const END: &[u8] = b"\\EOT\0\0\0";

/// A server as it should be listed.
struct Expected {
    address: &'static str,
    game: &'static str,
    name: &'static str,
    map: &'static str,
    /// One of its rules: the name with its colours. ioquake3 calls it so only in its answer to a query.
    rule: (&'static str, &'static str),
}

/// What [`start_all`] starts. ioquake3 has a port of its own for IPv6.
const ALL: [Expected; 5] = [
    Expected {
        address: "127.0.0.1:27960",
        game: "Quake3Arena",
        name: "Red Arena",
        map: "m",
        rule: ("sv_hostname", "^1Red ^7Arena"),
    },
    Expected {
        address: "[::1]:27961",
        game: "Quake3Arena",
        name: "Red Arena",
        map: "m",
        rule: ("sv_hostname", "^1Red ^7Arena"),
    },
    Expected {
        address: "127.0.0.1:27970",
        game: "Nexuiz",
        name: "Another game",
        map: "m",
        rule: ("sv_hostname", "Another game"),
    },
    Expected {
        address: "127.0.0.1:26000",
        game: "Xonotic",
        name: "Green Places",
        map: "start",
        rule: ("hostname", "^2Green ^xf80Places"),
    },
    Expected {
        address: "[::1]:26000",
        game: "Xonotic",
        name: "Green Places",
        map: "start",
        rule: ("hostname", "^2Green ^xf80Places"),
    },
];

/// Quake III (heartbeat tag `QuakeArena-1`), another game on the same engine (tag `DarkPlaces`), and Xonotic's engine.
fn start_all(quake: &Quake) -> [Program; 3] {
    let arena = [
        MASTER,
        MASTER_IPV6,
        ("sv_hostname", "^1Red ^7Arena"),
        ("net_enabled", "3"), // IPv4 and IPv6
        ("net_port6", "27961"),
    ];
    let nexuiz = [
        MASTER,
        ("sv_hostname", "Another game"),
        ("com_gamename", "Nexuiz"),
        ("com_protocol", "3"),
        ("com_legacyprotocol", "3"),
    ];
    let xonotic = [MASTER, MASTER_IPV6, ("hostname", "^2Green ^xf80Places")];
    [quake.ioquake3(27960, &arena), quake.ioquake3(27970, &nexuiz), quake.xonotic(26000, &xonotic)]
}

/// All pages of the API's list.
fn servers(server: &Server) -> Vec<Value> {
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.json(&format!("/api/v1/servers?protocol=quake3{after}"));
        all.extend(page["servers"].as_array().unwrap_or_else(|| panic!("{page}")).iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return all,
        }
    }
}

fn address_of(server: &Value) -> String {
    let ip: IpAddr = server["address"].as_str().unwrap().parse().unwrap();
    SocketAddr::new(ip, server["port"].as_u64().unwrap() as u16).to_string()
}

fn addresses(servers: &[Value]) -> BTreeSet<String> {
    servers.iter().map(address_of).collect()
}

fn expected(of: impl Fn(&Expected) -> bool) -> BTreeSet<String> {
    ALL.iter().filter(|server| of(server)).map(|server| server.address.to_string()).collect()
}

/// Waits until all are listed and have been queried.
fn until_all_are_listed(server: &Server) {
    let listed = until("all servers, with their rules", || {
        let listed = servers(server);
        let has_rule = |expected: &Expected| {
            let server = listed.iter().find(|server| address_of(server) == expected.address);
            server.is_some_and(|server| server["rules"][expected.rule.0] == expected.rule.1)
        };
        ALL.iter().all(has_rule).then_some(listed)
    });
    for expected in &ALL {
        let server = listed.iter().find(|server| address_of(server) == expected.address).unwrap();
        assert_eq!((&server["protocol"], &server["game"]), (&"quake3".into(), &expected.game.into()), "{server}");
        assert_eq!((&server["name"], &server["map"]), (&expected.name.into(), &expected.map.into()), "{server}");
        assert_eq!((&server["players_current"], &server["players_max"]), (&0.into(), &8.into()), "{server}");
        assert_eq!((&server["verified_by"], &server["players"]), (&"query".into(), &serde_json::json!([])), "{server}");
    }
    assert_eq!(addresses(&listed), expected(|_| true));
}

/// The `ADDRESS` column of quakestat's table.
fn in_table(table: &str) -> BTreeSet<String> {
    let rows = table.lines().filter(|line| !line.contains("ADDRESS"));
    rows.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("127."))).map(String::from).collect()
}

/// A master's list as quakestat shows it: the game servers that answered. It asks from another address, because DarkPlaces
/// answers each address once a second and the master asks, too.
fn listed_by_quakestat(master_type: &str) -> (BTreeSet<String>, String) {
    let table = quakestat(&[master_type, "127.0.0.1:27950", "-srcip", "127.0.0.2", "-u", "-nh"]);
    let found = in_table(&table).into_iter().filter(|address| address != "127.0.0.1:27950").collect();
    (found, table)
}

#[test]
#[ignore = "needs ioquake3, darkplaces, qstat and network namespaces"]
fn real_servers_announce_themselves_are_queried_and_vanish() {
    if !inside(Own::Network, "protocols::quake3_programs::real_servers_announce_themselves_are_queried_and_vanish") {
        return;
    }
    let server = Server::start(&[LISTEN, "probe.every=2s", "probe.misses=2"]);
    let quake = Quake::new();
    let [arena, nexuiz, xonotic] = start_all(&quake);
    until_all_are_listed(&server);
    let web = format!("http://{}", server.address("web.listen"));
    for expected in &ALL {
        let (says, _) = ends(0, &["doctor", &web, "quake3", expected.address]);
        assert!(says.contains("Last verified by query"), "{says}");
    }

    let _client = join_darkplaces("127.0.0.1:26000".parse().unwrap());
    let row = until("the player", || servers(&server).into_iter().find(|row| row["players_current"] == 1));
    assert_eq!(row["game"], "Xonotic");
    assert_eq!((&row["players"][0]["name"], row["players"].as_array().map(Vec::len)), (&"unconnected".into(), Some(1)));

    // One says goodbye with two heartbeats and answers no more, one is killed, and one does not say anything.
    arena.terminate();
    drop(nexuiz);
    xonotic.terminate();
    // Two rounds of queries, each with its retries at the pace of the slowest engine.
    until("all servers to be gone", || servers(&server).is_empty().then_some(()));
    for expected in &ALL {
        let (says, _) = ends(1, &["doctor", &web, "quake3", expected.address]);
        assert!(says.contains("did not answer our query"), "{}: {says}", expected.address);
    }
    for master_type in ["-q3m", "-nexuizm", "-xonoticm"] {
        let (found, table) = listed_by_quakestat(master_type);
        assert!(found.is_empty(), "{master_type}: {table}");
    }
}

#[test]
#[ignore = "needs ioquake3, darkplaces, qstat and network namespaces"]
fn real_servers_are_found_by_quakestat_and_by_our_own_commands() {
    if !inside(Own::Network, "protocols::quake3_programs::real_servers_are_found_by_quakestat_and_by_our_own_commands")
    {
        return;
    }
    let server = Server::start(&[LISTEN, "probe.every=2s"]);
    let quake = Quake::new();
    let _games = start_all(&quake);
    until_all_are_listed(&server);

    // The first asks for a protocol number, the others name the game, too.
    for (master_type, game, name) in [
        ("-q3m", "Quake3Arena", "Red Arena"),
        ("-nexuizm", "Nexuiz", "Another game"),
        ("-xonoticm", "Xonotic", "Green "), // quakestat does not know DarkPlaces' ^xRGB
    ] {
        let (found, table) = listed_by_quakestat(master_type);
        assert_eq!(found, expected(|server| server.game == game && server.address.starts_with("127.")), "{table}");
        assert!(table.contains(name) && table.contains("0/8"), "{table}");
    }
    let list = |master: &str| {
        let (found, _) = ends(0, &["list", master, "--format", "json"]);
        addresses(serde_json::from_str::<Value>(&found).unwrap()["servers"].as_array().unwrap())
    };
    for (game, protocol) in [("Quake3Arena", 68), ("Nexuiz", 3), ("Xonotic", 3)] {
        let found = list(&format!("quake3://[::1]/{game}?protocol={protocol}"));
        assert_eq!(found, expected(|server| server.game == game), "{game}");
    }
    assert_eq!(list("quake3://127.0.0.1"), expected(|_| true), "without a game, all that are known");
    for expected in &ALL {
        let url = format!("quake3://{}", expected.address);
        let found = until("an answer from a server that answers once a second", || {
            let output = command().args(["query", &url, "--format", "json"]).output().unwrap();
            let found: Value = serde_json::from_slice(&output.stdout).unwrap();
            found["servers"].get(0).cloned()
        });
        assert_eq!((&found["name"], &found["map"]), (&expected.name.into(), &expected.map.into()), "{found}");
        assert_eq!((&found["players_current"], &found["players_max"]), (&0.into(), &8.into()), "{found}");
    }
}

#[test]
#[ignore = "needs ioquake3, darkplaces, qstat and network namespaces"]
fn real_servers_with_the_lines_of_the_owners_page_are_listed() {
    if !inside(Own::Network, "protocols::quake3_programs::real_servers_with_the_lines_of_the_owners_page_are_listed") {
        return;
    }
    let server = Server::start(&[LISTEN]);
    let quake = Quake::new();
    let blocks = game_blocks("quake3", "", "127.0.0.1");
    let [ioquake3, command, darkplaces] = &blocks[..] else { panic!("{blocks:?}") };
    let _games = [quake.owned_ioquake3(27960, command, ioquake3), quake.owned_xonotic(26000, darkplaces)];
    let all = BTreeSet::from(["127.0.0.1:26000".to_string(), "127.0.0.1:27960".to_string()]);
    until("both to be listed", || (addresses(&servers(&server)) == all).then_some(()));
}

#[test]
#[ignore = "needs ioquake3, darkplaces, qstat and network namespaces"]
fn a_real_server_without_masters_is_announced_by_our_own_program() {
    if !inside(
        Own::Network,
        "protocols::quake3_programs::a_real_server_without_masters_is_announced_by_our_own_program",
    ) {
        return;
    }
    let server = Server::start(&[LISTEN, "probe.every=2s"]);
    let quake = Quake::new();
    let _game = quake.ioquake3(27960, &[("sv_master1", ""), ("sv_hostname", "Quiet")]);
    let announce = ["announce", "quake3", "--once", "--from-query", "quake3://127.0.0.1:27960", "--master"];
    let web = format!("http://{}", server.address("web.listen"));
    until("the game to be up and announced", || {
        command().args([&announce[..], &[&web]].concat()).output().unwrap().status.success().then_some(())
    });
    let row = until("the list", || servers(&server).pop());
    assert_eq!((&row["game"], &row["name"]), (&"Quake3Arena".into(), &"Quiet".into()), "{row}");
    // Masters of its own family list the port that a heartbeat comes from: only the game itself can send it.
    let (_, says) = ends(2, &[&announce[..], &["quake3://127.0.0.1"]].concat());
    assert!(says.contains("sv_master1"), "{says}");
}

/// The addresses that ioquake3's client takes from one packet: one counts only if a `\` or `/` follows it, and 256 at
/// most. From the notes on that client, and not with our own decoder.
fn read_as_ioquake3(packet: &[u8]) -> Vec<SocketAddr> {
    let extended = packet.starts_with(b"\xff\xff\xff\xffgetserversExtResponse");
    assert!(extended || packet.starts_with(b"\xff\xff\xff\xffgetserversResponse"), "{packet:?}");
    let is_mark = |byte: &u8| *byte == b'\\' || (extended && *byte == b'/');
    let mut rest = &packet[packet.iter().position(is_mark).unwrap_or(packet.len())..];
    let mut found = Vec::new();
    while let Some((mark, entry)) = rest.split_first().filter(|(mark, _)| is_mark(mark)) {
        let ip_bytes = if *mark == b'\\' { 4 } else { 16 };
        if found.len() == 256 || !entry.get(ip_bytes + 2).is_some_and(|next| *next == b'\\' || *next == b'/') {
            break;
        }
        let (ip, port) = (&entry[..ip_bytes], u16::from_be_bytes([entry[ip_bytes], entry[ip_bytes + 1]]));
        let ip = match <[u8; 4]>::try_from(ip) {
            Ok(ip) => IpAddr::from(ip),
            Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(ip).unwrap()).into(),
        };
        found.push(SocketAddr::new(ip, port));
        rest = &entry[ip_bytes + 2..];
    }
    found
}

#[test]
fn the_ioquake3_reader_needs_a_mark_behind_each_address() {
    let entry = |last: u8| [b"\\\x7f\0\0".as_slice(), &[last, 0x6d, 0x38]].concat();
    let packet = |end: &[u8]| [HEADER, b"getserversResponse", &entry(1), &entry(2), end].concat();
    let both: Vec<SocketAddr> = vec!["127.0.0.1:27960".parse().unwrap(), "127.0.0.2:27960".parse().unwrap()];
    assert_eq!(read_as_ioquake3(&packet(END)), both);
    assert_eq!(read_as_ioquake3(&packet(b"\\")), both);
    assert_eq!(read_as_ioquake3(&packet(b"")), both[..1], "the last one is lost");
    let many = [&[HEADER, b"getserversResponse"].concat(), &entry(1).repeat(300)[..], END].concat();
    assert_eq!(read_as_ioquake3(&many).len(), 256);
}

/// Asks for a list and receives its packets, to the one with the end mark.
fn ask(master: &str, request: &str) -> Vec<Vec<u8>> {
    let master: SocketAddr = master.parse().unwrap();
    let socket = UdpSocket::bind((master.ip(), 0)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.send_to(&[HEADER, request.as_bytes()].concat(), master).unwrap();
    let mut packets = Vec::new();
    while !packets.last().is_some_and(|packet: &Vec<u8>| packet.ends_with(END)) {
        let mut buffer = [0; 2048];
        let size = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{request}: no end mark: {error}"));
        packets.push(buffer[..size].to_vec());
    }
    packets
}

/// What quakestat can ask this kind of master for: its option, the game, and the game's protocol number. Simulated servers
/// are of these in turn.
const KINDS: [(&str, &str, &str); 6] = [
    ("-q3m", "Quake3Arena", "68"),
    ("-openarenam", "Quake3Arena", "71"),
    ("-xonoticm", "Xonotic", "3"),
    ("-nexuizm", "Nexuiz", "3"),
    ("-woetm", "et", "84"),
    ("-rwm", "wolfmp", "60"),
];

#[test]
#[ignore = "needs ioquake3, darkplaces, qstat and network namespaces"]
fn none_of_450_servers_is_missing_from_the_lists() {
    if !inside(Own::Network, "protocols::quake3_programs::none_of_450_servers_is_missing_from_the_lists") {
        return;
    }
    const IPV4: usize = 450;
    const IPV6: usize = 200;
    let server = Server::start(&[
        LISTEN,
        "guard.max_servers_per_ip=10000",
        "guard.exempt=127.0.0.0/8,::1/128",
        "probe.every=15m",
    ]);
    let simulated = |count: usize, ip: &str, master: &str| {
        let (running, urls) = simulate("quake3", count * KINDS.len(), &["--listen", ip, "--announce", master]);
        let bare = urls.iter().map(|url| url.strip_prefix("quake3://").unwrap().to_string());
        (running, bare.collect::<BTreeSet<String>>())
    };
    let (_ipv4, ipv4) = simulated(IPV4, "127.0.0.1", "quake3://127.0.0.1");
    let (_ipv6, ipv6) = simulated(IPV6, "::1", "quake3://[::1]");
    let quake = Quake::new();
    let _game = quake.ioquake3(27960, &[MASTER]);
    let mut all: BTreeSet<String> = ipv4.union(&ipv6).cloned().collect();
    all.insert("127.0.0.1:27960".into());
    let listed = until("all of them", || Some(servers(&server)).filter(|listed| addresses(listed) == all));

    for (master_type, game, protocol) in KINDS {
        let of_kind = |server: &&Value| server["game"] == game && server["rules"]["protocol"] == protocol;
        let of_kind: BTreeSet<String> = listed.iter().filter(of_kind).map(address_of).collect();
        let (ipv4, ipv6): (BTreeSet<_>, _) = of_kind.iter().cloned().partition(|at| at.starts_with("127."));
        let real = usize::from(master_type == "-q3m");
        assert_eq!((ipv4.len(), ipv6.len()), (IPV4 + real, IPV6), "{game} {protocol}");

        let (found, table) = listed_by_quakestat(master_type);
        let missing: Vec<&String> = ipv4.difference(&found).collect();
        assert!(found == ipv4, "{master_type}: {} servers, missing {missing:?}", found.len());
        assert!(!table.contains("no response"), "{table}");
        for (master, request, expected) in [
            ("127.0.0.1:27950", format!("getservers {game} {protocol} full empty\n"), &ipv4),
            ("127.0.0.1:27950", format!("getserversExt {game} {protocol} ipv4 full empty"), &ipv4),
            ("[::1]:27950", format!("getserversExt {game} {protocol} full empty ipv6"), &ipv6),
            ("[::1]:27950", format!("getserversExt {game} {protocol} full empty"), &of_kind),
        ] {
            let packets = ask(master, &request);
            assert!(packets.len() > 2 && packets.iter().all(|packet| packet.len() <= 1400), "{request}");
            let found: Vec<String> =
                packets.iter().flat_map(|packet| read_as_ioquake3(packet)).map(|at| at.to_string()).collect();
            assert_eq!(found.len(), expected.len(), "{request}: each of them once");
            assert_eq!(&found.into_iter().collect::<BTreeSet<_>>(), expected, "{request}");
        }
    }
}

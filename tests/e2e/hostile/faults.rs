//! Faults: what the machine, the clock or a peer can do to a running master. Each time it serves on, and what was listed stays.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::attackers::{
    REAL, Real, SETTINGS, changing_servers, forged_announcements, is_listed, many_networks, never_readers, newcomer,
    unfinished_requests,
};
use crate::support::netpanzer::say;
use crate::support::*;

/// The server answers, lists exactly these ports, and no thread has panicked.
fn serves(server: &Server, ports: &[u16]) {
    assert_eq!(server.get("/healthz").status(), 200);
    let mut listed: Vec<u64> = server.listed().iter().map(|server| server["port"].as_u64().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ports.iter().copied().map(u64::from).collect::<Vec<_>>());
    assert!(!server.log().contains("panic"), "{}", server.log());
}

fn announce(server: &Server, port: u16) {
    Game::new(server.address("iceball.listen")).announce(&announcement(b"a server", port, 1));
    let is_it = |server: &serde_json::Value| server["port"] == port;
    until("it is listed", || server.listed().iter().any(is_it).then_some(()));
}

/// The number of open descriptors.
fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count()
}

fn set_descriptors_max(server: &Server, most: usize) {
    let mut prlimit = Command::new("prlimit");
    prlimit.args([format!("--pid={}", server.id()), format!("--nofile={most}:")]);
    assert!(prlimit.status().expect("prlimit, from Debian's util-linux").success());
}

#[test]
fn without_descriptors_game_servers_are_listed_and_later_connections_are_served() {
    let mut server = Server::start(&[]);
    announce(&server, 1);
    let before = descriptors(&server);
    set_descriptors_max(&server, 8);
    let mut waiting = connect(server.address("web.listen"));
    waiting.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    server.wait_for_log("accepting a connection failed");
    // Datagrams need none.
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"meanwhile", 2, 1));
    set_descriptors_max(&server, before + 100);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "who waited is served: {answer}");
    until("both are listed", || (server.listed().len() == 2).then_some(()));
    serves(&server, &[1, 2]);
}

#[test]
#[ignore = "needs faketime"]
fn a_clock_set_forth_and_back_ends_no_life_and_stops_nothing() {
    let output = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let output = output.expect("faketime, from Debian's faketime");
    let folder = Folder::new("faults-clock");
    let clock = folder.write("clock", "+0");
    let mut command = command();
    command.env("LD_PRELOAD", String::from_utf8(output.stdout).unwrap().trim());
    command.env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let data = format!("data_dir={}", folder.path().join("data").display());
    let server = Server::start_as(command, &[], &[&data, "history.every=1s"]);
    announce(&server, 1);
    let proven = || server.json("/api/v1/servers/iceball/127.0.0.1:1")["proven_at"].as_str().unwrap().to_string();
    let first = proven();
    for (port, set) in (2..).zip(["+900d", "-900d", "+0"]) {
        std::fs::write(&clock, set).unwrap();
        announce(&server, port);
        serves(&server, &(1..=port).collect::<Vec<_>>());
    }
    assert_eq!(proven(), first, "what was proven before all that stands");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
}

/// A datagram whose UDP header says that it came from port 0. Needs root.
fn send_from_port_0(to: SocketAddr, bytes: &[u8]) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).expect("a raw socket, as root");
    let mut datagram = Vec::new();
    for field in [0, to.port(), 8 + bytes.len() as u16, 0] {
        datagram.extend(field.to_be_bytes()); // source port, port, length, no checksum
    }
    datagram.extend(bytes);
    socket.send_to(&datagram, &SocketAddr::new(to.ip(), 0).into()).unwrap();
}

#[test]
fn datagrams_from_port_0_are_counted_and_ignored() {
    let server = Server::start(&[]);
    announce(&server, 1);
    if nix::unistd::geteuid().is_root() {
        let dropped = || {
            let metrics = server.get("/metrics");
            let line = metrics.text().lines().find(|line| line.contains("dropped_source_port_0")).unwrap().to_string();
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        for key in ["iceball.listen", "quake3.listen"] {
            let before = dropped();
            send_from_port_0(server.address(key), &announcement(b"from nowhere", 2, 1));
            until("it is counted", || (dropped() > before).then_some(()));
        }
    }
    serves(&server, &[1]);
}

#[test]
fn the_longest_datagrams_are_ignored() {
    let server = Server::start(&[]);
    announce(&server, 1);
    let longest = 65_507;
    for key in ["iceball.listen", "quake3.listen"] {
        let game = Game::new(server.address(key));
        for start in [&announcement(b"long", 2, 1)[..], b"\xff\xff\xff\xffheartbeat DarkPlaces\n", b"HSHK", b""] {
            let mut bytes = start.to_vec();
            bytes.resize(longest, b'A');
            for _ in 0..50 {
                game.send(&bytes);
            }
        }
    }
    serves(&server, &[1]);
    announce(&server, 3);
}

/// Closes with a reset.
fn reset(stream: TcpStream) {
    Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn resets_in_mid_answer_leave_nothing_behind() {
    let server = Server::start(&["guard.max_servers_per_ip=1000", "iceball.life=1h"]);
    let game = Game::new(server.address("iceball.listen"));
    for port in 1..=1_000 {
        game.announce(&announcement(b"a server with a name of some length", port, 0));
    }
    until("all", || (server.json("/api/v1/servers")["total"] == 1_000).then_some(()));
    let before = descriptors(&server);
    for round in 0..300 {
        let (key, request) = match round % 3 {
            0 => ("web.listen", "GET /api/v1/servers HTTP/1.1\r\nHost: x\r\n\r\n".to_string()),
            1 => ("netpanzer.listen", r"\list\gamename\iceball\final\".to_string()),
            _ => ("web.listen", "GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n".to_string()),
        };
        let mut stream = connect(server.address(key));
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = [0; 100];
        stream.read_exact(&mut first).unwrap();
        reset(stream);
    }
    until("all descriptors are closed", || (descriptors(&server) <= before + 2).then_some(()));
    serves(&server, &(1..=1_000).collect::<Vec<_>>());
}

/// Connections from many addresses, so that no limit per address closes them.
fn connect_from(number: u32, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Addresses of their own /24 each, 100 connections from each, from ports that the system gives to nobody: other tests
    // listen on those that it chooses.
    let ip = Ipv4Addr::from_bits(0x7f01_0001 + ((number / 100) << 8));
    let port = 10_000 + (number % 100) as u16;
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::V4(ip), port).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

#[test]
fn ten_thousand_slow_connections_stop_nobody() {
    const COUNT: u32 = 10_000;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    assert!(most > u64::from(COUNT) + 1_000, "this test needs {COUNT} descriptors; the limit is {most}");
    let server = Server::start_after("ulimit -n $(ulimit -H -n)", &["guard.idle_timeout=1h"]);
    let mut slow = Vec::new();
    for number in 0..COUNT {
        let mut stream = connect_from(number, server.address("web.listen"));
        stream.write_all(b"GET / HTTP/1.1\r\nX").unwrap();
        slow.push(stream);
        if number % 1_000 == 0 {
            announce(&server, 1 + (number / 1_000) as u16);
        }
    }
    serves(&server, &(1..=10).collect::<Vec<_>>());
    assert_eq!(say(&server, r"\heartbeat\gamename\g\port\700\final\"), r"\final\");
    let open =
        server.get("/metrics").text().lines().find_map(|line| {
            line.strip_prefix("rallypoint_connections ").and_then(|count| count.parse::<usize>().ok())
        });
    assert!(open.unwrap() <= 8_192, "the longest idle have made room: {open:?}");
}

#[test]
fn under_a_memory_limit_it_serves_on_whatever_clients_hold() {
    // What docs/capacity.md states for a small machine.
    const LIMIT_MIB: u64 = 256;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let limits =
        format!("ulimit -d {}; ulimit -n $(ulimit -H -n); export MALLOC_MMAP_THRESHOLD_=131072", LIMIT_MIB << 10);
    // Nobody is closed only because it is slow.
    let small = ["guard.max_list_mib=64", "guard.max_connections=2048", "guard.idle_timeout=1h"];
    let server = Server::start_after(&limits, &[SETTINGS, &small].concat());
    let in_force = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let bytes = (LIMIT_MIB << 20).to_string();
    let is_data = |line: &&str| line.starts_with("Max data size") && line.split_whitespace().nth(3) == Some(&bytes);
    assert!(in_force.lines().any(|line| is_data(&line)), "{in_force}");

    let real = Real::new(REAL);
    real.renew(&server, 3, "before");
    let attacks = [
        forged_announcements(&server, Some(2_000)),
        changing_servers(&server),
        unfinished_requests(&server, 2_000),
        never_readers(&server, many_networks),
    ];
    let [.., silent] = &attacks;
    // Each list has 200 KB or more: all of them would need more than the limit.
    until_within(LIMIT * 2, "many to have asked for a list", || (silent.done() > (LIMIT_MIB * 5)).then_some(()));
    real.renew(&server, 4, "under attack");
    let address = newcomer(&server, 1);
    until("a newcomer to be listed", || is_listed(&server, address).then_some(()));
    for path in ["/", "/master.json", "/healthz"] {
        assert_eq!(server.get(path).status(), 200, "{path}");
    }
    assert!(attacks.iter().all(|attack| attack.done() > 0));
    drop(attacks);
    real.renew(&server, 5, "afterwards");
    assert!(!server.log().contains("panic"), "{}", server.log());
}

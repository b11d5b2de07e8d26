//! netPanzer over real sockets: heartbeats and their verification, lists, the prober, bad input.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::netpanzer::{Tank, list, say};
use crate::support::*;

const FAST: &[&str] = &["probe.every=1s", "probe.misses=2"];

#[test]
fn a_game_that_answers_is_listed_with_its_facts() {
    let server = Server::start(FAST);
    let tank = Tank::new();
    assert_eq!(tank.heartbeat(&server), r"\final\");
    until("the list", || (list(&server, "netpanzer") == format!(r"{}\final\", tank.entry())).then_some(()));
    let page = server.get("/");
    assert!(page.text().contains("Tank &lt;1&gt;") && page.text().contains(">query<"), "{}", page.text());
    tank.players.store(5, Ordering::Relaxed);
    until("the prober to notice", || server.get("/").text().contains(">5/8<").then_some(()));
    let gamespy =
        r"\gamename\gamespy2\gamever\020109017\location\5\validate\12345678\final\\list\\gamename\netpanzer\final\";
    assert_eq!(say(&server, gamespy), format!(r"\basic\\secure\RALLYP\ip\127.0.0.1:{}\final\", tank.port));
}

#[test]
fn an_accepted_heartbeat_is_visible_at_once() {
    let server = Server::start(&["guard.max_servers_per_ip=100"]);
    for port in 1..=50 {
        let entry = format!(r"\ip\127.0.0.1\port\{port}\final\");
        assert_eq!(say(&server, &format!(r"\heartbeat\gamename\other\port\{port}\final\")), r"\final\");
        assert_eq!(list(&server, "other"), entry);
        assert_eq!(say(&server, &format!(r"\quit\port\{port}\final\")), r"\final\");
        assert_eq!(list(&server, "other"), r"\final\");
    }
}

#[test]
fn a_full_game_is_shown_with_all_players() {
    let server = Server::start(&["probe.every=15m"]);
    let tank = Tank::new();
    tank.players.store(100, Ordering::Relaxed); // in more than 7 KB
    assert_eq!(tank.heartbeat(&server), r"\final\");
    let row = until("the list", || server.json("/api/v1/servers")["servers"].get(0).cloned());
    assert_eq!((&row["players_current"], row["players"].as_array().map(Vec::len)), (&100.into(), Some(100)));
    assert_eq!(row["players"][99]["name"], "Driver of tank number 99");
    let empty = Tank::new();
    empty.players.store(0, Ordering::Relaxed);
    assert_eq!(empty.heartbeat(&server), r"\final\");
    let path = format!("/api/v1/servers/netpanzer/127.0.0.1:{}", empty.port);
    assert_eq!(server.json(&path)["players"], serde_json::json!([]), "an empty game has a known, empty list");
}

#[test]
fn an_address_with_many_silent_games_does_not_delay_others() {
    let server = Server::start(&["guard.max_servers_per_ip=8", "guard.max_connections_per_ip=1000"]);
    let mut heartbeats: Vec<TcpStream> = (1..=200)
        .map(|port| {
            let mut stream = connect(server.address("netpanzer.listen"));
            write!(stream, r"\heartbeat\gamename\netpanzer\port\{port}\final\").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream
        })
        .collect();
    let answers = heartbeats.iter_mut().map(|stream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let refused = answers.filter(|answer| answer.contains("too many ")).count();
    // An address may have four times as many queries in flight as servers on the list.
    assert!((100..=200 - 32).contains(&refused), "{refused}");
    assert_eq!(Tank::new().heartbeat(&server), r"\final\", "it goes on as before");
}

#[test]
fn a_game_that_does_not_answer_gets_an_error() {
    let server = Server::start(FAST);
    let tank = Tank::new();
    tank.alive.store(false, Ordering::Relaxed);
    let silent =
        format!(r"\error\no answer from 127.0.0.1:{} over UDP: it is asked again within a minute\final\", tank.port);
    assert_eq!(tank.heartbeat(&server), silent);
    tank.alive.store(true, Ordering::Relaxed);
    tank.honest.store(false, Ordering::Relaxed);
    let answer = tank.heartbeat(&server);
    assert!(answer.starts_with(&format!(r"\error\bad answer from 127.0.0.1:{} over UDP: ", tank.port)), "{answer}");
    assert_eq!(list(&server, "netpanzer"), r"\final\");
    // A game with a wrong answer is not queried again. Another game's rounds show that time has passed.
    let asked = tank.asked_from().len();
    let other = Tank::new();
    assert_eq!(other.heartbeat(&server), r"\final\");
    until("some rounds", || (other.asked_from().len() >= 5).then_some(()));
    assert_eq!(tank.asked_from().len(), asked);
}

#[test]
fn a_game_that_was_silent_is_queried_again_and_listed_without_another_heartbeat() {
    let server = Server::start(FAST);
    let (tank, gone) = (Tank::new(), Tank::new());
    for silent in [&tank, &gone] {
        silent.alive.store(false, Ordering::Relaxed);
        assert!(silent.heartbeat(&server).contains("it is asked again within a minute"));
    }
    assert_eq!(say(&server, &format!(r"\quit\port\{}\final\", gone.port)), r"\final\");
    let (asked, asked_before_quit) = (tank.asked_from().len(), gone.asked_from().len());
    until("another question, in vain", || (tank.asked_from().len() > asked).then_some(()));
    assert_eq!(list(&server, "netpanzer"), r"\final\");
    tank.alive.store(true, Ordering::Relaxed);
    until("the list", || (list(&server, "netpanzer") == format!(r"{}\final\", tank.entry())).then_some(()));
    assert_eq!(gone.asked_from().len(), asked_before_quit, "one that has quit is not asked again");
}

#[test]
fn a_game_that_falls_silent_is_removed_and_listed_again() {
    let server = Server::start(FAST);
    let tank = Tank::new();
    assert_eq!(tank.heartbeat(&server), r"\final\");
    tank.alive.store(false, Ordering::Relaxed);
    until("it to leave", || (list(&server, "netpanzer") == r"\final\").then_some(()));
    tank.alive.store(true, Ordering::Relaxed);
    until("it to come back", || list(&server, "netpanzer").contains(&tank.entry()).then_some(()));
}

#[test]
fn a_proven_game_is_answered_at_once_and_quits_when_it_says_so() {
    let server = Server::start(&["probe.every=15m"]);
    let tank = Tank::new();
    assert_eq!(tank.heartbeat(&server), r"\final\");
    // It would fail verification now, but it is proven already.
    tank.alive.store(false, Ordering::Relaxed);
    assert_eq!(tank.heartbeat(&server), r"\final\");
    assert_eq!(say(&server, &format!(r"\quit\port\{}\final\", tank.port)), r"\final\");
    until("it to leave", || (list(&server, "netpanzer") == r"\final\").then_some(()));
    assert_eq!(say(&server, r"\quit\port\1\final\"), r"\final\", "known or not");
}

#[test]
fn without_verification_a_heartbeat_is_listed_at_once() {
    let server = Server::start(&["netpanzer.verify=off", "probe.every=1s"]);
    assert_eq!(say(&server, r"\heartbeat\gamename\netpanzer\port\3030\final\"), r"\final\");
    until("the list", || (list(&server, "netpanzer") == r"\ip\127.0.0.1\port\3030\final\").then_some(()));
    assert!(server.get("/").text().contains(">connection<"));
}

#[test]
fn any_game_is_listed_and_filtered_by_any_key() {
    let server = Server::start(&[]);
    for (port, mode) in [(1, "Ctf"), (2, "dm")] {
        let heartbeat = format!(r"\heartbeat\gamename\my game\port\{port}\mode\{mode}\final\");
        assert_eq!(say(&server, &heartbeat), r"\final\");
    }
    until("both", || (list(&server, "my game").matches(r"\ip\").count() == 2).then_some(()));
    assert_eq!(say(&server, r"\list\gamename\my game\mode\Ctf\final\"), r"\ip\127.0.0.1\port\1\final\");
    // A heartbeat replaces the whole key set.
    say(&server, r"\heartbeat\gamename\my game\port\1\x\y\final\");
    until("the new keys", || (say(&server, r"\list\gamename\my game\mode\Ctf\final\") == r"\final\").then_some(()));
    // Servers that were announced through another protocol are listed here, too.
    Game::new(server.address("iceball.listen")).announce(&announcement(b"ice", 20737, 0));
    until("the iceball server", || (list(&server, "iceball") == r"\ip\127.0.0.1\port\20737\final\").then_some(()));
}

#[test]
fn a_transcript_with_pipelining_and_single_bytes() {
    let server = Server::start(&[]);
    say(&server, r"\heartbeat\gamename\g\port\7\final\");
    until("it", || (list(&server, "g") != r"\final\").then_some(()));
    let mut stream = connect(server.address("netpanzer.listen"));
    stream.set_nodelay(true).unwrap();
    for byte in br"\list\gamename\g\final\\x\final\list\final\" {
        stream.write_all(&[*byte]).unwrap();
    }
    let expected: &[u8] =
        br"\ip\127.0.0.1\port\7\final\\error\Unknown request\final\\error\missing gamename in list query\final\";
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, expected);
    // Still open; a bare `final` closes it without an answer.
    stream.write_all(br"\final\").unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn lists_for_clients_that_are_quick_slow_many_or_come_back() {
    let server = Server::start(&["guard.max_connections_per_ip=5000", "guard.exempt=127.0.0.0/8"]);
    say(&server, r"\heartbeat\gamename\g\port\7\final\");
    until("it", || (list(&server, "g") != r"\final\").then_some(()));
    let address: SocketAddr = server.address("netpanzer.listen");
    let (question, expected) = (br"\list\gamename\g\final\", br"\ip\127.0.0.1\port\7\final\");
    let ask = |stream: &mut TcpStream| {
        stream.write_all(question).unwrap();
        let mut answer = [0; 27];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, expected);
    };
    // More connections than are waited for at a time, of which each asks later than all others have connected; then again.
    let mut all: Vec<TcpStream> = (0..600).map(|_| connect(address)).collect();
    all.iter_mut().for_each(ask);
    all.iter_mut().rev().for_each(ask);
    // One that asks in the moment in which it connects, again and again, and closes.
    (0..200).for_each(|_| ask(&mut connect(address)));
    drop(all);
    // The one is that of the request for the metrics.
    until("all connections to be closed", || {
        server.get("/metrics").text().contains("\nrallypoint_connections 1\n").then_some(())
    });
    // 1,400 of these, and those before.
    let counted = server.get("/metrics");
    let line = counted.text().lines().find_map(|line| line.strip_prefix("rallypoint_lists_total{list=\"netpanzer\"} "));
    assert!(line.unwrap().parse::<u64>().unwrap() > 1_400, "{line:?}");
}

#[test]
fn clients_that_never_stop_talking_do_not_keep_others_from_their_lists() {
    let server = Server::start(&["guard.idle_timeout=2s", "guard.max_connections_per_ip=5000"]);
    let address: SocketAddr = server.address("netpanzer.listen");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            // This is answered with nothing, so that a client can send it faster than it is read.
            let endless = br"\gamename\a\b\c\d\e\f\g\h\i\final\".repeat(1_000);
            let (stop, mut stream) = (&stop, connect(address));
            scope.spawn(move || while !stop.load(Ordering::Relaxed) && stream.write_all(&endless).is_ok() {});
        }
        let _stop = StopAtEnd(&stop);
        // Each connection is served by one thread or another.
        for _ in 0..20 {
            assert_eq!(list(&server, "nobody"), r"\final\");
        }
    });
}

/// Stops the threads of a test however it ends.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn too_many_servers_at_one_address_get_an_error() {
    let server = Server::start(&["guard.max_servers_per_ip=2"]);
    let answers: Vec<_> =
        (1..=3).map(|port| say(&server, &format!(r"\heartbeat\gamename\g\port\{port}\final\"))).collect();
    assert_eq!(answers, [r"\final\", r"\final\", r"\error\too many servers at your address\final\"]);
}

#[test]
fn a_megabyte_token_is_refused_without_growing() {
    let server = Server::start(&[]);
    let before = server.memory_kib();
    for _ in 0..20 {
        let mut stream = connect(server.address("netpanzer.listen"));
        let _ = stream.write_all(&vec![b'a'; 1 << 20]); // the server may close before it has read everything
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer == br"\error\token too long\final\");
    }
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "grew by {grown} KiB");
}

#[test]
fn resets_idle_and_slow_clients_do_not_delay_others() {
    let server = Server::start(&["guard.idle_timeout=2s", "guard.max_connections_per_ip=5000"]);
    let address: SocketAddr = server.address("netpanzer.listen");
    let mut idle: Vec<TcpStream> = (0..1_000).map(|_| connect(address)).collect();
    // Resets in the middle of a reply, by closing with unread data.
    for _ in 0..50 {
        let mut stream = connect(address);
        stream.write_all(&br"\list\gamename\nobody\final\".repeat(100)).unwrap();
        nix::sys::socket::setsockopt(
            &stream,
            nix::sys::socket::sockopt::Linger,
            &nix::libc::linger { l_onoff: 1, l_linger: 0 },
        )
        .unwrap();
    }
    assert_eq!(list(&server, "nobody"), r"\final\");
    let mut slow = connect(address);
    let closed = until("the slow writer to be closed", || slow.write_all(b"x").err());
    assert!(matches!(closed.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset), "{closed}");
    for stream in &mut idle {
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    }
    assert_eq!(list(&server, "nobody"), r"\final\");
    assert!(!server.log().contains("panic"));
}

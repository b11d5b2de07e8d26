//! The event stream over real sockets: snapshots, deltas, encodings, and what is not sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::*;
use crate::web::api::ports;
use crate::web::browser::Tank;

/// A reader of the event stream.
pub struct Stream<R = TcpStream> {
    lines: BufReader<R>,
}

impl Stream {
    pub fn open(address: SocketAddr, path: &str, headers: &str) -> Stream {
        Stream::over(connect(address), path, headers)
    }

    pub fn over(mut stream: TcpStream, path: &str, headers: &str) -> Stream {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n{headers}\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        Stream { lines }
    }
}

impl<R: Read> Stream<R> {
    /// The next event: its name, its id and its data. Skips chunk sizes and comments.
    pub fn next(&mut self) -> (String, String, Value) {
        let (mut name, mut id) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream ended");
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("event: ") {
                name = text.into();
            } else if let Some(text) = line.strip_prefix("id: ") {
                id = text.into();
            } else if let Some(text) = line.strip_prefix("data: ") {
                return (name, id, serde_json::from_str(text).unwrap());
            }
        }
    }
}

#[test]
fn events_begin_with_a_snapshot_and_continue_with_deltas() {
    let server = Server::start(&["iceball.life=3s"]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 0));
    until("it", || server.listed().pop());
    let mut stream = Stream::open(server.address("web.listen"), "/api/v1/events", "");
    let (name, _, data) = stream.next();
    assert_eq!((name.as_str(), ports(&data)), ("snapshot", vec![1]));
    game.announce(&announcement(b"second", 2, 0));
    let (name, _, delta) = stream.next();
    assert_eq!((name.as_str(), &delta["added"][0]["name"]), ("delta", &json!("second")));
    assert!(delta["serial"].as_u64() > data["serial"].as_u64());
    game.announce(&announcement(b"second", 2, 9));
    assert_eq!(stream.next().2["changed"][0]["players_current"], 9);
    let mut gone = Vec::new();
    while gone.len() < 2 {
        let (_, _, delta) = stream.next();
        gone.extend(delta["removed"].as_array().into_iter().flatten().map(|gone| gone["port"].as_u64().unwrap()));
    }
    gone.sort_unstable();
    assert_eq!(gone, [1, 2]);
}

#[test]
fn a_reader_that_reconnects_misses_nothing() {
    let server = Server::start(&[]);
    let address = server.address("web.listen");
    let game = Game::new(server.address("iceball.listen"));
    let mut stream = Stream::open(address, "/api/v1/events", "");
    let (_, _, data) = stream.next();
    assert_eq!(ports(&data), Vec::<u64>::new());
    game.announce(&announcement(b"first", 1, 0));
    let (_, id, _) = stream.next();
    drop(stream);
    game.announce(&announcement(b"second", 2, 0));
    until("it", || (server.listed().len() == 2).then_some(()));
    let resume = |id: &str| Stream::open(address, "/api/v1/events", &format!("Last-Event-ID: {id}\r\n"));
    let mut again = resume(&id);
    let (name, last, delta) = again.next();
    assert_eq!((name.as_str(), &delta["added"][0]["name"]), ("delta", &json!("second")), "only what was missed");
    game.announce(&announcement(b"third", 3, 0));
    assert_eq!(again.next().2["added"][0]["name"], "third");
    // With the last id, with one of another run, with an invalid one.
    game.announce(&announcement(b"fourth", 4, 0));
    let (name, _, delta) = resume(&last).next();
    assert_eq!((name.as_str(), delta["added"][0]["port"].as_u64()), ("delta", Some(3)));
    for unknown in ["00000000-1", "nonsense", "-", ""] {
        assert_eq!(resume(unknown).next().0, "snapshot", "{unknown}");
    }
    let mut other_game = Stream::open(address, "/api/v1/events?game=netpanzer", "");
    assert_eq!(ports(&other_game.next().2), Vec::<u64>::new());
}

#[test]
fn a_slow_reader_is_closed_and_others_are_not() {
    // Without budgets: otherwise, the changes would stop before the reader's buffers are full.
    let limits = ["guard.idle_timeout=1s", "guard.max_servers_per_ip=1000", "guard.exempt=127.0.0.0/8"];
    let server = Server::start(&limits);
    let address = server.address("web.listen");
    let game = Game::new(server.address("iceball.listen"));
    let mut slow = connect(address);
    write!(slow, "GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut quick = Stream::open(address, "/api/v1/events", "");
    quick.next();
    // It reads all the time: on a slow machine, one round may arrive in several deltas.
    let hears_of_the_last = std::thread::spawn(move || {
        let is_last = |server: &Value| server["port"] == 999;
        while !quick.next().2["added"].as_array().is_some_and(|added| added.iter().any(is_last)) {}
    });
    let before = server.memory_kib();
    let mut players = 0;
    // Announce changes until the slow reader's buffers are full and it is disconnected.
    until("the slow reader to be closed", || {
        players += 1;
        for port in 1..=400 {
            game.announce(&announcement(b"a name that fills its field", port, players));
        }
        (!server.get("/metrics").text().contains("rallypoint_event_readers 2")).then_some(())
    });
    assert!(server.memory_kib().saturating_sub(before) < 64 << 10);
    let mut rest = Vec::new();
    slow.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let _ = slow.read_to_end(&mut rest); // ends with a reset or a close
    game.announce(&announcement(b"still here", 999, 0));
    hears_of_the_last.join().unwrap();
}

/// curl, which accepts one encoding and decodes it. Killed when dropped.
struct Curl(Child);

impl Curl {
    fn open(address: SocketAddr, encoding: &str) -> (Curl, Stream<impl Read>) {
        let mut curl = Command::new("curl");
        curl.args(["-sN", "--compressed", "-H", &format!("Accept-Encoding: {encoding}"), "-D", "-"]);
        curl.arg(format!("http://{address}/api/v1/events")).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut curl = curl.spawn().unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
        }
        let expected = format!("Content-Encoding: {encoding}\r\n");
        assert!(head.contains(&expected) && head.contains("Vary: Accept-Encoding\r\n"), "{head}");
        (Curl(curl), Stream { lines })
    }
}

impl Drop for Curl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs curl"]
fn a_stream_is_compressed_and_each_event_can_be_read_as_it_comes() {
    let server = Server::start(&[]);
    let address = server.address("web.listen");
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 0));
    until("it", || server.listed().pop());
    // One of each begins before the first delta, and one between two.
    let mut readers = Vec::new();
    for players in 1..=3 {
        for encoding in ["zstd", "br", "gzip"] {
            let (curl, mut stream) = Curl::open(address, encoding);
            let (name, _, data) = stream.next();
            assert_eq!((name.as_str(), ports(&data)), ("snapshot", vec![1]), "{encoding}");
            readers.push((encoding, curl, stream));
        }
        game.announce(&announcement(b"first", 1, players));
        for (encoding, _, stream) in &mut readers {
            // A snapshot may be of a moment ago; what came after it follows.
            let told = loop {
                let (name, _, data) = stream.next();
                assert_eq!(name, "delta", "{encoding}");
                let told = data["changed"][0]["players_current"].as_u64().unwrap();
                if told >= u64::from(players) {
                    break told;
                }
            };
            assert_eq!(told, u64::from(players), "{encoding}");
        }
    }
}

#[test]
fn a_reader_with_filters_is_told_of_servers_as_they_begin_and_cease_to_match() {
    let server = Server::start(&[]);
    let address = server.address("web.listen");
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 0));
    game.announce(&announcement(b"second", 2, 5));
    until("both", || (server.listed().len() == 2).then_some(()));
    let path = "/api/v1/events?q=SEC&not_empty=1&game=iceball&fields=players_current";
    let mut stream = Stream::open(address, path, "");
    let (_, _, snapshot) = stream.next();
    let row = json!({"protocol": "iceball", "game": "iceball", "address": "127.0.0.1", "port": 2, "endpoint": "127.0.0.1:2", "players_current": 5});
    assert_eq!(snapshot["servers"], json!([row]));
    // Neither of them is wanted: the first that is told is the one after them.
    game.announce(&announcement(b"first", 1, 3));
    game.announce(&announcement(b"second too", 3, 0));
    until("it", || (server.listed().len() == 3).then_some(()));
    game.announce(&announcement(b"second", 2, 6));
    // A reader that has just begun may be told that a server is gone which it never had.
    let mut next_with = |name: &str| loop {
        let (_, id, delta) = stream.next();
        if delta.get(name).is_some() {
            return (id, delta);
        }
    };
    let (id, delta) = next_with("changed");
    let (row, unwanted) = (&delta["changed"][0], delta["changed"][0].get("name"));
    assert_eq!((&row["port"], &row["players_current"], unwanted), (&json!(2), &json!(6), None), "{delta}");
    game.announce(&announcement(b"second too", 3, 1));
    let (_, delta) = next_with("added");
    assert_eq!((&delta["added"][0]["port"], &delta["added"][0]["players_current"]), (&json!(3), &json!(1)), "{delta}");
    game.announce(&announcement(b"second", 2, 0));
    let (_, delta) = next_with("removed");
    let gone =
        json!({"protocol": "iceball", "game": "iceball", "address": "127.0.0.1", "port": 2, "endpoint": "127.0.0.1:2"});
    assert_eq!(delta["removed"], json!([gone]), "{delta}");
    // A reader that comes back has the same list in the end.
    let mut again = Stream::open(address, path, &format!("Last-Event-ID: {id}\r\n"));
    let mut known = std::collections::BTreeSet::from([2]);
    while known != [3].into() {
        let (_, _, delta) = again.next();
        let ports = |name: &str| delta[name].as_array().cloned().unwrap_or_default();
        known.retain(|port| !ports("removed").iter().any(|row| row["port"] == *port));
        known.extend(ports("added").iter().chain(&ports("changed")).map(|row| row["port"].as_u64().unwrap()));
    }
}

/// The names of a row's fields.
fn fields(row: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn only_what_changed_is_sent_and_a_proof_alone_is_not() {
    let server = Server::start(&["probe.every=1s"]);
    let address = server.address("web.listen");
    let tank = Tank::new("Tank", &[("Ann", 3), ("Bob", 1)]);
    tank.heartbeat(&server);
    let row = || server.json(&format!("/api/v1/servers/netpanzer/127.0.0.1:{}", tank.port()));
    until("its players", || row()["players"].as_array().filter(|players| players.len() == 2).map(drop));
    let mut brief = Stream::open(address, "/api/v1/events", "");
    let mut whole = Stream::open(address, "/api/v1/events?details=1", "");
    let ((_, id, snapshot), (_, _, with_details)) = (brief.next(), whole.next());
    let mut expected = row();
    assert_eq!(fields(&with_details["servers"][0]), fields(&expected));
    expected.as_object_mut().unwrap().retain(|name, _| !["players", "rules"].contains(&name.as_str()));
    assert_eq!(fields(&snapshot["servers"][0]), fields(&expected), "without details");

    // It is proven again, several times. Then somebody else plays: only who asked for details is told.
    let (serial, proven) = (|| server.json("/readyz")["serial"].as_u64(), || row()["proven_at"].clone());
    let (first_serial, first_proven) = (serial(), proven());
    until("more proofs", || (proven() != first_proven && serial() > first_serial.map(|n| n + 1)).then_some(()));
    tank.say("Tank", &[("Ann", 3), ("Cid", 0)]);
    let (_, _, delta) = whole.next();
    let along = ["address", "endpoint", "last_seen", "port", "proven_at", "rtt_ms"];
    let with = |names: &[&'static str]| {
        let mut all = [&along[..], names].concat();
        all.sort_unstable();
        all
    };
    assert_eq!(fields(&delta), ["changed", "serial"]);
    assert_eq!(fields(&delta["changed"][0]), with(&["players"]), "{delta}");
    assert_eq!(delta["changed"][0]["players"][1]["name"], "Cid");
    tank.say("Tank", &[]);
    for (stream, expected) in [(&mut brief, &["players_current"][..]), (&mut whole, &["players", "players_current"])] {
        let (_, _, delta) = stream.next();
        assert_eq!(fields(&delta["changed"][0]), with(expected), "{delta}");
        assert_eq!(delta["changed"][0]["players_current"], 0);
    }
    // What is unknown now is null.
    tank.say_without_map("Tank");
    let (_, _, delta) = brief.next();
    assert_eq!((fields(&delta["changed"][0]), &delta["changed"][0]["map"]), (with(&["map"]), &Value::Null));

    // The id of a snapshot is known, though nothing was sent since it was made.
    let (_, id_now, snapshot) = Stream::open(address, "/api/v1/events", "").next();
    assert!(id_now != id && snapshot["servers"][0]["map"] == Value::Null);
    let before = serial();
    until("a proof", || (serial() > before).then_some(()));
    let mut resumed = Stream::open(address, "/api/v1/events", &format!("Last-Event-ID: {id_now}\r\n"));
    tank.say("Tank", &[]);
    let (name, _, delta) = resumed.next();
    assert_eq!((name.as_str(), &delta["changed"][0]["map"]), ("delta", &json!("Two clans")));
}

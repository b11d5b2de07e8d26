//! Prepared answers: lists that everybody shares are answered without hyper, and nobody can tell. A connection that has asked
//! for anything else is hyper's from then on, so the same bytes are sent on a new connection and on one that has.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rallypoint::net::cores::processors;

use crate::hostile::limits::ask;
use crate::support::*;

/// Asked for first, where the answers are to be hyper's.
const OTHER: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
/// Asked for last, so that the connection ends.
const LAST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// A master with a list that is worth encoding.
fn filled(set: &[&str]) -> Server {
    let many = ["guard.max_servers_per_ip=1000", "guard.exempt=127.7.7.7/32", "iceball.life=1h"];
    let server = Server::start(&[&many, set].concat());
    let game = Game::on(server.address("iceball.listen"), [127, 7, 7, 7].into());
    (1..=40).for_each(|port| game.announce(&announcement(b"one of many servers", port, 3)));
    until("all to be listed", || (server.json("/readyz")["servers"] == 40).then_some(()));
    server
}

fn figure(server: &Server, name: &str) -> u64 {
    let metrics = server.get("/metrics");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_string));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// All answers to these bytes, in as many writes as there are parts. Dates are left out: they may differ.
fn answers(address: SocketAddr, parts: &[&[u8]]) -> String {
    let mut stream = connect(address);
    stream.set_nodelay(true).unwrap();
    for part in parts {
        let _ = stream.write_all(part); // the other side may have closed already
        if parts.len() > 3 {
            // So that the part is read before the next one is sent.
            assert_eq!(get(address, "/healthz", "").status(), 200);
        }
    }
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers); // a reset is an end, too
    let answers = String::from_utf8_lossy(&answers).into_owned();
    let dates = answers.matches("\r\nDate: ").count();
    let mut rest = answers.as_str();
    let mut without = String::new();
    for _ in 0..dates {
        let (before, after) = rest.split_once("\r\nDate: ").unwrap();
        let (date, after) = after.split_once("\r\n").unwrap();
        assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
        without += before;
        without += "\r\nDate\r\n";
        rest = after;
    }
    without + rest
}

/// The answers of a new connection, and those of one that is hyper's.
fn both(address: SocketAddr, bytes: &[u8]) -> (String, String) {
    let healthy = answers(address, &[LAST]).replace("Connection: close\r\n", "");
    let hypers = answers(address, &[OTHER, bytes, LAST]);
    let hypers = hypers.strip_prefix(&healthy).unwrap_or_else(|| panic!("{hypers}\n{healthy}"));
    (answers(address, &[bytes, LAST]), hypers.to_string())
}

/// Compares answers, and shows where they begin to differ.
fn assert_same(ours: &str, hypers: &str, to: &[u8]) {
    let at = ours.bytes().zip(hypers.bytes()).position(|(one, other)| one != other);
    let at = at.unwrap_or(ours.len().min(hypers.len())).saturating_sub(100);
    let from = |text: &str| text.chars().skip(at).take(300).collect::<String>();
    let to = String::from_utf8_lossy(to).chars().take(300).collect::<String>();
    assert!(ours == hypers, "{to:?}\nfrom byte {at} on: {:?}\nwithout hyper: {:?}", from(hypers), from(ours));
}

fn request(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes()
}

#[test]
fn the_answers_are_those_of_hyper() {
    let server = filled(&["guard.idle_timeout=2s"]);
    let address = server.address("web.listen");
    let etag = |encoding: &str| {
        let answer = get(address, "/master.json", &format!("Accept-Encoding: {encoding}\r\n"));
        answer.header("Etag").unwrap().to_string()
    };
    let (plain, gzip, zstd) = (etag("identity"), etag("gzip"), etag("gzip, zstd"));
    let mut kinds: Vec<Vec<u8>> = Vec::new();
    for path in
        ["/master.json", "/api/v1/servers", "/list", "/ddnet/15/servers.json", "/master.json?", "/master.json?a=b"]
    {
        for headers in [
            String::new(),
            "Accept-Encoding: gzip\r\n".into(),
            "accept-encoding: gzip, deflate, br, zstd\r\nUser-Agent: x\r\nAccept: */*\r\n".into(),
            "Accept-Encoding: gzip;q=0\r\nAccept-Encoding: br\r\n".into(),
            "Accept-Encoding: \u{e9}\r\n".into(),
            "Connection: keep-alive\r\n".into(),
            "Connection: close\r\n".into(),
            "Connection: Upgrade\r\nUpgrade: websocket\r\n".into(),
            "Range: bytes=0-9\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".into(),
            "Origin: http://elsewhere.example\r\n".into(),
            format!("If-None-Match: {plain}\r\n"),
            format!("If-None-Match: W/{plain}, \"x\"\r\n"),
            format!("If-None-Match: \"x\"\r\nIf-None-Match: {plain}\r\n"),
            format!("If-None-Match: {gzip}\r\nAccept-Encoding: gzip\r\n"),
            format!("If-None-Match: {zstd}\r\nAccept-Encoding: gzip, zstd\r\n"),
            "If-None-Match: *\r\n".into(),
            "If-None-Match:\r\n".into(),
            "X-Forwarded-For: 192.0.2.9\r\n".into(),
            "Expect: 100-continue\r\n".into(),
            format!("X: {}\r\n", "y".repeat(5_000)),
            "A: b\r\n".repeat(40),
            "A: b\r\n".repeat(200),
        ] {
            kinds.push(request(path, &headers));
        }
    }
    kinds.extend(
        [
            "HEAD /master.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "HEAD /api/v1/servers HTTP/1.1\r\nHost: x\r\nAccept-Encoding: br\r\n\r\n",
            "POST /master.json HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab",
            "OPTIONS /api/v1/servers HTTP/1.1\r\nHost: x\r\n\r\n",
            "get /master.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /master.json HTTP/1.0\r\n\r\n",
            "GET /master.json HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "GET /master.json\r\n\r\n",
            "GET /master.json HTTP/1.1\r\n\r\n",
            "GET /master.json HTTP/1.1\nHost: x\n\n",
            "\r\n\r\nGET /master.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET  /master.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /master.json HTTP/1.1 \r\nHost: x\r\n\r\n",
            "GET /master.json HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET /master.json HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
            "GET /master.json HTTP/1.1\r\nno colon\r\n\r\n",
            "GET http://x/master.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET //master.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /master.json/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /MASTER.json HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /master%2ejson HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /master.json#x HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /master.json HTTP/2.0\r\nHost: x\r\n\r\n",
            "\u{16}\u{3}\u{1}",
        ]
        .map(|text| text.as_bytes().to_vec()),
    );
    // And the same again: nothing of it is read then.
    for bytes in kinds.iter().flat_map(|bytes| [bytes.clone(), bytes.repeat(3)]) {
        let (ours, hypers) = both(address, &bytes);
        assert_same(&ours, &hypers, &bytes);
        assert!(!ours.is_empty());
    }
}

#[test]
fn the_same_request_is_answered_as_the_configuration_says_now() {
    let folder = Folder::new("again");
    let banned = |proxies: &str| format!("[guard]\nbans = [\"192.0.2.66\"]\n[proxy]\nnetworks = [{proxies}]\n");
    let file = folder.write("rallypoint.toml", &(banned("") + "[luanti]\nlist = true\n"));
    let server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let mut kept: Vec<_> = ["/master.json", "/list"]
        .map(|path| {
            let text = String::from_utf8(request(path, "X-Forwarded-For: 192.0.2.66\r\n")).unwrap();
            (BufReader::new(connect_from("127.0.0.2", server.address("web.listen"))), text)
        })
        .into();
    let reload = |text: String| {
        folder.write("rallypoint.toml", &text);
        let reloads = || server.log().matches("configuration reloaded").count();
        let before = reloads();
        server.signal(Signal::SIGHUP);
        until("the reload", || (reloads() > before).then_some(()));
    };
    let mut statuses = || kept.iter_mut().map(|(stream, text)| ask(stream, text).status()).collect::<Vec<_>>();
    assert_eq!([statuses(), statuses()], [[200, 200]; 2], "anybody may write such a header");
    reload(banned("") + "[luanti]\nlist = false\n");
    assert_eq!([statuses(), statuses()], [[200, 404]; 2], "a list that is no longer there");
    reload(banned("\"127.0.0.2\""));
    assert_eq!(statuses(), [403, 403], "the word of a proxy");
}

#[test]
fn a_request_within_a_body_is_never_answered() {
    // What a proxy takes for one request is not two here.
    let server = filled(&[]);
    let address = server.address("web.listen");
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let size = smuggled.len();
    for headers in [
        format!("Content-Length: {size}\r\n"),
        format!("content-length: {size}\r\nContent-Length: {size}\r\n"),
        format!("Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: identity\r\nContent-Length: {size}\r\n"),
        "Transfer-Encoding: chunked\r\n".into(),
        "Content-Length: 0\r\n".into(),
        format!("Content-Length: 0, {size}\r\n"),
        format!("Content-Length: +{size}\r\n"),
        format!("Content-Length : {size}\r\n"),
    ] {
        let bytes = [&request("/master.json", &headers)[..], smuggled.as_bytes()].concat();
        let (ours, hypers) = both(address, &bytes);
        assert_same(&ours, &hypers, headers.as_bytes());
        let is_a_body = headers == format!("Content-Length: {size}\r\n");
        assert!(!is_a_body || !ours.contains("/smuggled"), "{ours}");
    }
}

#[test]
fn requests_in_any_number_of_pieces_and_many_at_once() {
    let server = filled(&[]);
    let address = server.address("web.listen");
    let two = [request("/master.json", "Accept: */*\r\n"), request("/api/v1/servers", "")].concat();
    let whole = answers(address, &[&two, LAST]);
    assert_eq!(whole.matches("HTTP/1.1 200 OK\r\n").count(), 3, "{whole}");
    for at in 1..two.len() {
        let (start, end) = two.split_at(at);
        assert_same(&answers(address, &[start, end, LAST, b""]), &whole, start);
    }
    let bytes: Vec<&[u8]> = two.chunks(1).chain([LAST]).collect();
    assert_same(&answers(address, &bytes), &whole, b"each byte");
    // More than fits into a buffer, with other paths in between and after.
    let many = [two.repeat(100), request("/nothing", ""), two.repeat(3)].concat();
    let (ours, hypers) = both(address, &many);
    assert_eq!(ours.matches("HTTP/1.1 200 OK\r\n").count(), 207);
    assert_same(&ours, &hypers, &many);
}

/// Connections that move from core to core are answered as before, also with what is not prepared.
#[test]
fn connections_that_move_notice_nothing() {
    let processors: Vec<_> = processors().take(2).collect();
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 {
        return; // there is nowhere to move to
    }
    let server = filled(&["log=debug", "guard.exempt=127.0.0.0/8"]);
    let text = String::from_utf8(request("/master.json", "")).unwrap();
    let mut kept: Vec<_> = (0..2 * cores).map(|_| BufReader::new(connect(server.address("web.listen")))).collect();
    let first = ask(&mut kept[0], &text);
    let (half, other_half) = text.split_at(20);
    // One request, several at once, and the beginning of the next one with it.
    let (two, four) = (text.repeat(2) + half, text.repeat(4));
    let parts = [&*text, &two, "", other_half, &four, "", "", ""];
    let moves = || server.log().matches("HTTP connection moves to another core").count();
    for processor in processors.iter().chain(&processors) {
        // Packets over loopback arrive where they are sent.
        let mut only = CpuSet::new();
        only.set(*processor).unwrap();
        sched_setaffinity(Pid::from_raw(0), &only).unwrap(); // this test's own thread
        let before = moves();
        until("a connection to move", || {
            for stream in &mut kept {
                for part in parts.repeat(10) {
                    let answer = ask(stream, part);
                    assert_eq!((answer.status(), &answer.body), (200, &first.body));
                }
            }
            (moves() > before).then_some(())
        });
    }
    for stream in kept.iter_mut().skip(1) {
        let other = ask(stream, std::str::from_utf8(OTHER).unwrap());
        assert_eq!((other.status(), ask(stream, &text).body), (200, first.body.clone()));
    }
    server.signal(Signal::SIGTERM);
    let (status, log) = server.end();
    assert!(status.success(), "it does not stop while connections are open: {log}");
}

#[test]
fn a_list_that_everybody_shares_is_looked_for_once_per_change() {
    let server = filled(&[]);
    let mut stream = BufReader::new(connect(server.address("web.listen")));
    let text = String::from_utf8(request("/master.json", "")).unwrap();
    assert_eq!(ask(&mut stream, &text).status(), 200);
    let (renderings, lists) = ("rallypoint_render_seconds_count", "rallypoint_lists_total{list=\"master.json\"}");
    let before = (figure(&server, renderings), figure(&server, lists));
    (0..100).for_each(|_| assert_eq!(ask(&mut stream, &text).status(), 200));
    let after = (figure(&server, renderings), figure(&server, lists));
    assert!(after.0 - before.0 < 10, "prepared answers are not used");
    assert_eq!(after.1 - before.1, 100);
    // And a change is seen at once.
    Game::new(server.address("iceball.listen")).announce(&announcement(b"new", 1, 0));
    until("the change", || ask(&mut stream, &text).text().contains("\"new\"").then_some(()));
}

/// One that takes a while to render rests after that, and readers get the older one meanwhile: it must not be taken for the newest.
#[test]
fn a_change_of_a_long_list_is_seen_though_nothing_else_changes() {
    let server = filled(&[]);
    let game = Game::on(server.address("iceball.listen"), [127, 7, 7, 7].into());
    (41..=900).for_each(|port| game.announce(&announcement(b"one of many servers", port, 3)));
    until("all to be listed", || (server.json("/readyz")["servers"] == 900).then_some(()));
    let mut stream = BufReader::new(connect(server.address("web.listen")));
    let text = String::from_utf8(request("/master.json", "")).unwrap();
    for number in 0..5 {
        let name = format!("change {number}");
        game.announce(&announcement(name.as_bytes(), 1, 3));
        until(&name, || ask(&mut stream, &text).text().contains(&name).then_some(()));
    }
}

#[test]
fn budgets_and_bans_hold_for_each_client_of_a_proxy() {
    let server = filled(&["proxy.networks=127.0.0.2", "guard.bans=192.0.2.66"]);
    let mut proxy = BufReader::new(connect_from("127.0.0.2", server.address("web.listen")));
    let mut of = |client: &str| {
        let headers = format!("X-Forwarded-For: {client}\r\nAccept-Encoding: identity\r\n");
        let answer = ask(&mut proxy, &String::from_utf8(request("/master.json", &headers)).unwrap());
        answer.status()
    };
    assert!((0..500_000).any(|_| of("192.0.2.1") == 429), "a client reads as much as it likes");
    assert_eq!(of("192.0.2.2"), 200);
    let mut proxy = BufReader::new(connect_from("127.0.0.2", server.address("web.listen")));
    let banned = String::from_utf8(request("/master.json", "X-Forwarded-For: 192.0.2.66\r\n")).unwrap();
    assert_eq!(ask(&mut proxy, &banned).status(), 403);
}

/// Waits for the other side to end the connection.
fn is_closed(stream: &mut TcpStream) {
    if let Err(error) = stream.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn who_sends_slowly_or_does_not_read_is_closed_and_costs_little() {
    let server = filled(&["guard.idle_timeout=500ms"]);
    let address = server.address("web.listen");
    // A head that never ends, whatever comes of it in between.
    let mut slow = connect(address);
    slow.write_all(&request("/master.json", "")).unwrap();
    let mut closed = false;
    until("the slow head to be closed", || {
        closed = closed || slow.write_all(b"G").is_err();
        closed.then_some(())
    });
    // Nothing at all, after an answer.
    let mut idle = connect(address);
    idle.write_all(&request("/master.json", "")).unwrap();
    is_closed(&mut idle);
    // Thousands of requests, and not one answer is read.
    let before = server.memory_kib();
    let mut greedy: Vec<_> = (0..50).map(|_| connect(address)).collect();
    let many = request("/master.json", "").repeat(5_000);
    for stream in &mut greedy {
        stream.set_write_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let _ = stream.write_all(&many); // it is not read to its end
    }
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 16 << 10, "grew by {grown} KiB");
    until("all of them to be closed", || (figure(&server, "rallypoint_connections") <= 2).then_some(()));
}

#[test]
fn a_tag_holds_while_servers_are_only_proven_again() {
    let server = Server::start(&["iceball.life=8s"]);
    let address = server.address("web.listen");
    let game = Game::new(server.address("iceball.listen"));
    let announce = |players| game.announce(&announcement(b"one", 20737, players));
    announce(3);
    until("the server", || server.listed().pop());
    let lists = ["/master.json", "/api/v1/servers", "/api/v1/servers?limit=9"];
    let tags = || lists.map(|path| get(address, path, "").header("Etag").unwrap().to_string());
    let proven_at = || server.json("/api/v1/servers")["servers"][0]["proven_at"].as_str().unwrap().to_string();
    let (first, first_proven) = (tags(), proven_at());
    assert_eq!([&first[0], &first[1]].map(|tag| tag.starts_with("W/")), [false, true]);
    until("another time of proof", || {
        announce(3);
        (proven_at() != first_proven).then_some(())
    });
    assert_eq!(tags(), first);
    for (path, tag) in lists.iter().zip(&first) {
        for known in [tag.clone(), tag.replace("W/", "")] {
            assert_eq!(get(address, path, &format!("If-None-Match: {known}\r\n")).status(), 304, "{path}");
        }
    }
    until("other facts", || {
        announce(4);
        tags().iter().zip(&first).all(|(new, old)| new != old).then_some(())
    });
}

//! Budgets over real sockets: who asks for too much is refused for a while, and nobody else is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::support::*;

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

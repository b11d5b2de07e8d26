//! "Test now": the owner of a server has it tested, and reads each step as it happens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::support::netpanzer::Tank;
use crate::support::*;

fn path(game: &str, port: u16) -> String {
    format!("/api/v1/check/test?game={game}&address=127.0.0.1:{port}")
}

/// A test that is read as it goes on.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(server: &Server, path: &str) -> Stream {
        let mut stream = connect(server.address("web.listen"));
        write!(stream, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        let mut stream = Stream(BufReader::new(stream));
        let status = stream.line();
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
        stream
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
        line
    }

    /// The next event with its name.
    fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            let line = self.line();
            if let Some(found) = line.strip_prefix("event: ") {
                name = found.trim().into();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).unwrap());
            }
        }
    }

    /// The kinds of all steps up to one of this kind.
    fn until(&mut self, kind: &str) -> Vec<String> {
        let mut kinds = Vec::new();
        loop {
            let (name, data) = self.next();
            assert_eq!(name, "step", "{kind} is missing after {kinds:?}: {data}");
            assert!(data["text"].as_str().unwrap().ends_with('.') && data["at"].is_string(), "{data}");
            kinds.push(data["kind"].as_str().unwrap().to_string());
            if data["kind"] == kind {
                return kinds;
            }
        }
    }

    fn result(&mut self) -> Value {
        let (name, data) = self.next();
        assert_eq!(name, "result", "{data}");
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        assert!(!rest.contains("event:"), "{rest}");
        data
    }
}

#[test]
fn a_server_that_answers_is_told_what_it_said_and_whether_it_is_listed() {
    let server = Server::start(&["probe.every=15m"]);
    let tank = Tank::new();
    let mut test = Stream::open(&server, &path("netpanzer", tank.port));
    assert_eq!(test.until("answered"), ["nothing_seen", "query_sent", "answered"]);
    let result = test.result();
    assert_eq!((&result["outcome"], &result["listed"]), (&json!("answered"), &json!(false)), "{result}");
    assert_eq!((&result["said"]["name"], &result["said"]["players_current"]), (&json!("Tank <1>"), &json!(1)));
    assert!(result["advice"].as_str().unwrap().contains("announces itself to this master"), "{result}");
    assert_eq!(server.json("/api/v1/servers")["total"], 0, "a test lists nothing");

    assert_eq!(tank.heartbeat(&server), r"\final\");
    let mut test = Stream::open(&server, &path("netpanzer", tank.port));
    let steps = test.until("query_sent");
    assert!(steps.contains(&"heartbeat".to_string()) && !steps.contains(&"nothing_seen".to_string()), "{steps:?}");
    test.until("answered");
    let result = test.result();
    assert_eq!((&result["listed"], &result["advice"]), (&json!(true), &Value::Null), "{result}");
    assert_eq!(result["endpoint"], format!("127.0.0.1:{}", tank.port));
}

#[test]
fn a_silent_server_gets_advice_and_is_tested_once_at_a_time() {
    let server = Server::start(&[]);
    let tank = Tank::new();
    tank.alive.store(false, Ordering::Relaxed);
    let path = path("netpanzer", tank.port);
    let mut test = Stream::open(&server, &path);
    test.until("query_sent");
    // While it waits for the answer.
    let second = request(server.address("web.listen"), "POST", &path, "");
    assert_eq!(second.status(), 429, "{}", second.text());
    assert!(second.header("Retry-After").is_some() && second.text().contains("being tested already"));
    assert_eq!(test.until("silent"), ["silent"]);
    let result = test.result();
    assert_eq!((&result["outcome"], &result["listed"]), (&json!("silent"), &json!(false)), "{result}");
    let advice = result["advice"].as_str().unwrap();
    assert!(advice.contains("netPanzer") && advice.contains(&format!("UDP port {}", tank.port)), "{advice}");
    assert!(advice.contains("firewall"), "{advice}");
    tank.alive.store(true, Ordering::Relaxed);
    Stream::open(&server, &path).until("answered");
}

#[test]
fn something_else_at_the_port_is_told_from_silence() {
    let server = Server::start(&[]);
    let tank = Tank::new();
    tank.honest.store(false, Ordering::Relaxed);
    let mut test = Stream::open(&server, &path("netpanzer", tank.port));
    assert_eq!(test.until("bad_answer"), ["nothing_seen", "query_sent", "bad_answer"]);
    let result = test.result();
    assert_eq!((&result["outcome"], &result["said"]), (&json!("bad_answer"), &Value::Null), "{result}");
    assert!(result["advice"].as_str().unwrap().contains(&format!("UDP port {}", tank.port)), "{result}");
}

#[test]
fn a_handshake_is_told_step_by_step() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let mut test = Stream::open(&server, &path("iceball", 20737));
    assert_eq!(test.until("waiting"), ["nothing_seen", "waiting"]);
    let cookie = game.cookie(&announcement(b"Handshake", 20737, 3));
    assert_eq!(test.until("cookie_sent"), ["cookie_sent"]);
    game.handshake(&cookie);
    assert_eq!(test.until("cookie_returned"), ["cookie_returned"]);
    let result = test.result();
    assert_eq!((&result["outcome"], &result["listed"]), (&json!("answered"), &json!(true)), "{result}");
    assert_eq!((&result["said"]["name"], &result["said"]["players_current"]), (&json!("Handshake"), &json!(3)));

    // Another port of the same address: its cookie stays away.
    game.cookie(&announcement(b"Half", 20738, 3));
    let mut test = Stream::open(&server, &path("iceball", 20738));
    assert_eq!(test.until("waiting"), ["cookie_sent", "waiting"]);
    let result = test.result();
    assert_eq!((&result["outcome"], &result["listed"]), (&json!("silent"), &json!(false)), "{result}");
    let advice = result["advice"].as_str().unwrap();
    assert!(advice.contains("The cookie did not come back") && advice.contains("UDP port 20738"), "{advice}");
}

#[test]
fn only_the_own_address_is_tested_unless_the_operator_asks() {
    let server = Server::start(&["web.token=secret-0f8e7d6c5b"]);
    let tank = Tank::new();
    let path = path("netpanzer", tank.port);
    let elsewhere = |path: &str, headers: &str| {
        let mut stream = connect_from("127.0.0.2", server.address("web.listen"));
        write!(stream, "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{headers}Connection: close\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        split(&answer)
    };
    let page = path.replace("/api/v1/check/test", "/doctor");
    for path in [&path, &page] {
        for (headers, status) in
            [("", 401), ("Authorization: Bearer guessed\r\n", 401), ("X-Forwarded-For: 127.0.0.1\r\n", 403)]
        {
            assert_eq!(elsewhere(path, headers).status(), status, "{path} {headers}");
        }
        let other = request(server.address("web.listen"), "POST", path, "Origin: http://evil.example\r\n");
        assert_eq!(other.status(), 403, "{path}");
    }
    assert_eq!(tank.asked_from().len(), 0);
    let tested = elsewhere(&path, "Authorization: Bearer secret-0f8e7d6c5b\r\n");
    assert!(tested.status() == 200 && tested.text().contains(r#""outcome":"answered""#), "{}", tested.text());
    assert_eq!(tank.asked_from().len(), 2, "one query and no other: netPanzer's has two parts");

    for (query, parameter) in [
        ("address=127.0.0.1:7", "game"),
        ("game=no-such-game&address=127.0.0.1:7", "game"),
        ("game=netpanzer", "address"),
        ("game=netpanzer&address=127.0.0.1:7&x=1", "x"),
    ] {
        let answer = request(server.address("web.listen"), "POST", &format!("/api/v1/check/test?{query}"), "");
        let json: Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!((answer.status(), &json["parameter"]), (400, &json!(parameter)), "{query}");
    }
    assert_eq!(server.get(&path).status(), 405);
}

#[test]
fn tests_have_the_budget_of_probing() {
    let server = Server::start(&["guard.max_servers_per_ip=1"]);
    let tank = Tank::new();
    let test = || request(server.address("web.listen"), "POST", &path("netpanzer", tank.port), "");
    let refused = until("the budget to end", || Some(test()).filter(|answer| answer.status() == 429));
    assert!(refused.header("Retry-After").is_some() && !refused.text().contains("being tested"), "{}", refused.text());
}

#[test]
fn the_page_tests_without_a_script() {
    let server = Server::start(&[]);
    let tank = Tank::new();
    let page = format!("/doctor?game=netpanzer&address=127.0.0.1:{}", tank.port);
    let shown = server.get(&page);
    let form = format!(r#"<form method="post" action="{}"><button>Test now</button>"#, page.replace('&', "&amp;"));
    assert!(shown.text().contains(&form), "{}", shown.text());
    assert!(!server.get("/doctor?game=netpanzer&address=127.0.0.2:1").text().contains("Test now"));

    let origin = format!("Origin: http://{}\r\nHost: {0}\r\n", server.address("web.listen"));
    let mut stream = connect(server.address("web.listen"));
    write!(stream, "POST {page} HTTP/1.1\r\n{origin}Content-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let tested = split(&answer);
    assert_eq!(tested.status(), 200);
    assert!(tested.header("Content-Security-Policy").is_some());
    for text in
        ["A query goes to UDP port", "The server answered our query", "Tank &lt;1&gt;", "not listed</span>", "</html>"]
    {
        assert!(tested.text().contains(text), "{text}: {}", tested.text());
    }
    assert!(!tested.text().contains("<!-- steps -->") && !tested.text().contains("Tank <1>"));
}

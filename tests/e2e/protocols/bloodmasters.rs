//! Bloodmasters over real sockets: announcements, the ban list, the launchers' list.

use std::io::{Read, Write};
use std::net::UdpSocket;

use crate::support::*;

/// A reply of protocol 28 as the original sends it, with the echo filled in.
fn reply(echo: &[u8]) -> Vec<u8> {
    let mut body = vec![0x0d];
    body.extend(echo);
    let text = |body: &mut Vec<u8>, text: &str| {
        body.push(text.len() as u8);
        body.extend(text.as_bytes());
    };
    text(&mut body, "Loopback \"Arena\"");
    body.push(1);
    text(&mut body, "http://www.example.org/");
    body.extend([10, 8, 2]);
    text(&mut body, "mayanctf");
    body.extend([1, 1, 28, 0, 20, 0, 30, 0]);
    text(&mut body, "Alice");
    body.extend([1, 0, 0, 64]);
    text(&mut body, "Linux Dedicated Server version 1.3.100.7");
    let length = (body.len() + 2) as u16;
    [&length.to_le_bytes()[..], &body].concat()
}

pub fn game() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            if buffer[..size].starts_with(&[7, 0, 0x0d]) {
                socket.send_to(&reply(&buffer[3..7]), from).unwrap();
            }
        }
    });
    port
}

/// The original's request: its only headers are `Host` and `Connection: keep-alive`.
fn update(port: u16) -> String {
    format!(
        "GET /bloodmasterslist.php?action=update&port={port}&time=639303014459349040 HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n"
    )
}

#[test]
fn a_server_announces_itself_and_gets_the_bans_and_launchers_get_the_list() {
    let port = game();
    let server = Server::start(&["guard.bans=198.51.100.7,192.0.2.0/24,2001:db8::/32"]);
    // It keeps its connection open, which must not delay others.
    let mut keep_alive = connect(server.address("web.listen"));
    keep_alive.write_all(update(port).as_bytes()).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        keep_alive.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let answer = split(&head);
    assert_eq!(answer.status(), 200);
    let mut bans = vec![0; answer.header("Content-Length").unwrap().parse().unwrap()];
    keep_alive.read_exact(&mut bans).unwrap();
    let mut lines: Vec<&str> = std::str::from_utf8(&bans).unwrap().lines().collect();
    lines.sort();
    assert_eq!(lines, ["192.0.2.*", "198.51.100.7"]);
    let list = until("the list", || Some(server.get("/bloodmasterslist.php")).filter(|list| !list.body.is_empty()));
    assert_eq!(list.text().trim_end(), format!("127.0.0.1:{port}"));
    let page = server.get("/");
    assert!(page.text().contains("Loopback &quot;Arena&quot;") && page.text().contains("mayanctf"), "{}", page.text());
}

#[test]
fn errors_have_error_statuses() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = Server::start(&[]);
    let ask = |query: &str| server.get(&format!("/bloodmasterslist.php?{query}"));
    let refused = ask(&format!("action=update&port={}", silent.local_addr().unwrap().port()));
    assert_eq!(refused.status(), 403);
    assert!(refused.text().starts_with("no answer from 127.0.0.1:"), "{}", refused.text());
    for query in
        ["action=update", "action=update&port=0", "action=update&port=70000", "action=update&port=x", "action=x"]
    {
        assert_eq!(ask(query).status(), 400, "{query}");
    }
    let empty = server.get("/bloodmasterslist.php");
    assert_eq!((empty.status(), empty.body.len()), (200, 0), "an empty list counts as success");
    let off = Server::start(&["bloodmasters.list=false"]);
    assert_eq!(off.get("/bloodmasterslist.php").status(), 404);
}

//! Hostile input never causes a panic or unbounded memory, and never delays other clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::*;

/// The server still answers, and no thread has panicked.
fn is_well(server: &Server) {
    assert_eq!(server.get("/healthz").status(), 200);
    Game::new(server.address("iceball.listen")).nothing_came_back();
    assert!(!server.log().contains("panic"), "{}", server.log());
}

/// Waits for the server to close a connection: an end or a reset, not our own timeout.
fn is_closed(stream: &mut TcpStream) {
    if let Err(error) = stream.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn datagrams_of_every_length_and_start() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    for start in [&b""[..], b"1CEB", b"1CEB\x02\0\x25\x80\x80\0", b"HSHK", b"MSOK", b"BADV", b"\xff\xff\xff\xff"] {
        for length in 0..=200 {
            let fill = (0..length).map(|at: usize| (at * 7 + length) as u8);
            let bytes: Vec<u8> = start.iter().copied().chain(fill).collect();
            game.send(&bytes);
        }
        game.send(&[start, &[0xaa; 9000]].concat());
    }
    is_well(&server);
    assert_eq!(server.listed().len(), 0);
}

#[test]
fn an_announcement_flood_costs_no_memory() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.socket.set_nonblocking(true).unwrap();
    let before = server.memory_kib();
    let mut buffer = [0; 200];
    for number in 0..200_000u32 {
        let mut bytes = announcement(b"flood", number as u16 | 1, 0);
        bytes[20..24].copy_from_slice(&number.to_le_bytes());
        let _ = game.socket.send_to(&bytes, game.master);
        while game.socket.recv(&mut buffer).is_ok() {}
    }
    is_well(&server);
    assert_eq!(server.listed().len(), 0);
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "grew by {grown} KiB");
}

#[test]
fn http_byte_streams_of_all_kinds() {
    let server = Server::start(&["guard.idle_timeout=300ms"]);
    let address = server.address("iceball.listen");
    let long_line = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(100_000));
    let long_header = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(1_000_000));
    let many_headers = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(100_000));
    let streams: &[&[u8]] = &[
        b"",
        b"\r\n\r\n",
        b"GET",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"1CEB\x02\0\x25\x80\x80\0",
        b"\\list\\gamename\\netpanzer\\final\\",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 70_000],
        long_line.as_bytes(),
        long_header.as_bytes(),
        many_headers.as_bytes(),
    ];
    for bytes in streams {
        let mut stream = connect(address);
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.take(1 << 20).read_to_end(&mut answer);
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{start}: {answer:?}");
        if let Some(status) = answer.get(9..12) {
            assert!(status != b"500", "{start}");
        }
    }
    is_well(&server);
}

#[test]
fn idle_and_slow_connections_are_closed_and_stop_nobody() {
    let server = Server::start(&["guard.idle_timeout=3s", "guard.max_connections_per_ip=1000"]);
    let address = server.address("iceball.listen");
    let mut idle: Vec<TcpStream> = (0..300).map(|_| connect(address)).collect();
    let mut slow: Vec<TcpStream> = (0..100).map(|_| connect(address)).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nX").unwrap();
    }
    // Meanwhile, other clients are served at once.
    for _ in 0..20 {
        assert_eq!(get(address, "/master.json", "").status(), 200);
    }
    for stream in idle.iter_mut().chain(&mut slow) {
        is_closed(stream);
    }
    is_well(&server);
}

#[test]
fn a_thousand_idle_connections_from_one_address_make_room() {
    let server = Server::start(&["guard.idle_timeout=1h", "guard.max_connections_per_ip=50"]);
    let address = server.address("iceball.listen");
    let mut idle: Vec<TcpStream> = (0..1_000).map(|_| connect(address)).collect();
    assert_eq!(get(address, "/master.json", "").status(), 200);
    // The first has been idle longest, so it is closed.
    is_closed(&mut idle[0]);
    is_well(&server);
}

#[test]
fn a_client_that_does_not_read_is_closed() {
    let server = Server::start(&["guard.idle_timeout=300ms"]);
    let game = Game::new(server.address("iceball.listen"));
    for port in 1..=32 {
        game.announce(&announcement(b"to make the page longer", port, 0));
    }
    until("all", || (server.listed().len() == 32).then_some(()));
    let mut stream = connect(server.address("web.listen"));
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    // Send requests without reading until the answers fill every buffer.
    let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    let closed = until("the server to give up", || stream.write_all(&request).err());
    let kinds = [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::WouldBlock];
    assert!(kinds.contains(&closed.kind()), "{closed}");
    until("its connection to be gone", || {
        let mut rest = Vec::new();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        match stream.read_to_end(&mut rest) {
            Ok(_) => Some(()),
            Err(error) => (error.kind() == std::io::ErrorKind::ConnectionReset).then_some(()),
        }
    });
    is_well(&server);
}

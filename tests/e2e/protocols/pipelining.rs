//! Many netPanzer requests on one connection: all are answered in order, as fast as the client reads.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::support::netpanzer::{list, say};
use crate::support::*;

const LIST: &str = r"\list\gamename\g\final\";
const HEARTBEAT: &str = r"\heartbeat\gamename\g\port\8\final\";

/// A server whose list of the game `g` has one entry.
fn with_one_entry(set: &[&str]) -> (Server, String) {
    let server = Server::start(set);
    assert_eq!(say(&server, r"\heartbeat\gamename\g\port\7\final\"), r"\final\");
    let entry = r"\ip\127.0.0.1\port\7\final\".to_string();
    assert_eq!(list(&server, "g"), entry);
    (server, entry)
}

/// A server with a long list of Iceball servers, and that list.
fn with_a_long_list(set: &[&str]) -> (Server, String) {
    const COUNT: u16 = 1_500;
    let server = Server::start(&[&["guard.max_servers_per_ip=5000", "iceball.life=1h"], set].concat());
    let game = Game::new(server.address("iceball.listen"));
    for port in 20_001..=20_000 + COUNT {
        game.announce(&announcement(b"ice", port, 0));
    }
    let long = until("the long list", || {
        Some(list(&server, "iceball")).filter(|list| list.matches(r"\port\").count() == usize::from(COUNT))
    });
    (server, long)
}

fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn more_than_eight_lists_and_a_heartbeat_in_one_write() {
    let (server, entry) = with_one_entry(&[]);
    for count in [9, 1_000] {
        let mut stream = connect(server.address("netpanzer.listen"));
        stream.write_all(format!("{}{HEARTBEAT}", LIST.repeat(count)).as_bytes()).unwrap();
        let answer = read_to_end(stream);
        assert_eq!(answer, format!(r"{}\final\", entry.repeat(count)), "{count} lists");
        until("the heartbeat to count", || list(&server, "g").contains(r"\port\8").then_some(()));
        assert_eq!(say(&server, r"\quit\port\8\final\"), r"\final\");
    }
}

#[test]
fn lists_and_a_heartbeat_byte_by_byte() {
    let (server, entry) = with_one_entry(&[]);
    let mut stream = connect(server.address("netpanzer.listen"));
    stream.set_nodelay(true).unwrap();
    for byte in format!("{}{HEARTBEAT}", LIST.repeat(20)).bytes() {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(read_to_end(stream), format!(r"{}\final\", entry.repeat(20)));
}

#[test]
fn all_requests_are_answered_after_a_half_close() {
    let (server, entry) = with_one_entry(&[]);
    let mut stream = connect(server.address("netpanzer.listen"));
    // The end of the stream ends the last request.
    let requests = LIST.repeat(100);
    stream.write_all(requests.strip_suffix('\\').unwrap().as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(stream), entry.repeat(100));
}

#[test]
fn a_client_that_reads_late_gets_everything_and_costs_little() {
    const COUNT: usize = 1_000;
    // More than an address may read at once.
    let (server, long) = with_a_long_list(&["guard.exempt=127.0.0.0/8"]);
    let before = server.memory_kib();
    let request = format!("{}{HEARTBEAT}", r"\list\gamename\iceball\final\".repeat(COUNT));
    let mut streams: Vec<_> = (0..4).map(|_| connect(server.address("netpanzer.listen"))).collect();
    for stream in &mut streams {
        stream.write_all(request.as_bytes()).unwrap();
    }
    // Others are served meanwhile.
    assert_eq!(list(&server, "iceball"), long);
    for mut stream in streams {
        let grown = server.memory_kib().saturating_sub(before);
        assert!(
            grown < 8 << 10,
            "{} MiB of answers are waiting, and it grew by {grown} KiB",
            (COUNT * long.len()) >> 20
        );
        let mut answer = vec![0; long.len()];
        for number in 0..COUNT {
            stream.read_exact(&mut answer).unwrap();
            assert!(answer == long.as_bytes(), "list number {number}");
        }
        assert_eq!(read_to_end(stream), r"\final\");
    }
}

#[test]
fn a_client_that_never_reads_is_not_served_for_ever() {
    let (server, long) = with_a_long_list(&["guard.idle_timeout=500ms"]);
    let before = server.memory_kib();
    let request = r"\list\gamename\iceball\final\".repeat(1_000);
    let streams: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = connect(server.address("netpanzer.listen"));
            stream.write_all(request.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    for mut stream in streams {
        // Closing with unread requests causes a reset.
        until("the connection to be closed", || match stream.write(b"x") {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Some(()),
            _ => None,
        });
    }
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 16 << 10, "grew by {grown} KiB");
    assert_eq!(list(&server, "iceball"), long);
}

//! Hyperbol over real sockets: the list that a client gets, and how servers get on it.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::*;

/// The reply from the protocol's document, with the echo filled in; the codec's tests have it as a golden vector.
fn reply(echo: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 229];
    bytes[0] = 27;
    bytes[1..5].copy_from_slice(echo);
    for (at, text) in [(5, "Veks California DM"), (37, "Deathmatch"), (72, "a_doommkii.hba"), (169, "1.08b")] {
        bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    bytes[69..71].copy_from_slice(&[3, 8]);
    bytes[222..226].copy_from_slice(&[1, 2, 0, 4]);
    bytes
}

/// A simulated Hyperbol server: its port, and a switch that silences it.
pub fn game() -> (u16, Arc<AtomicBool>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let alive = Arc::new(AtomicBool::new(true));
    let switch = alive.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            if alive.load(Ordering::Relaxed) && size == 5 && buffer[0] == 2 {
                socket.send_to(&reply(&buffer[1..5]), from).unwrap();
            }
        }
    });
    (port, switch)
}

/// Asks as a client does: reads the greeting, returns its key with a filter byte, reads the list until the connection is
/// closed. Returns the total and the list.
fn ask(server: &Server, filter: u8) -> (u32, Vec<u8>) {
    let mut stream = connect(server.address("hyperbol.listen"));
    let mut greeting = [0; 12];
    // Sent in one segment, so one read gets it all.
    assert_eq!(stream.read(&mut greeting).unwrap(), 12);
    assert_eq!(greeting[..4], *b"HBSL");
    stream.write_all(&[&greeting[4..8], &[filter, 0, 0, 0]].concat()).unwrap();
    let mut list = Vec::new();
    stream.read_to_end(&mut list).unwrap();
    (u32::from_le_bytes(greeting[8..].try_into().unwrap()), list)
}

fn record(port: u16, flavor: u8) -> Vec<u8> {
    [&[127, 0, 0, 1][..], &u32::from(port).to_le_bytes(), &[flavor, 0, 0, 0]].concat()
}

#[test]
fn configured_servers_are_asked_and_listed_with_their_flavor() {
    let ((official, switch), (silent, off)) = (game(), game());
    off.store(false, Ordering::Relaxed);
    let server = Server::start(&[
        &format!(
            "hyperbol.servers=[{{address=\"127.0.0.1:{official}\", flavor=4}}, {{address=\"127.0.0.1:{silent}\", flavor=5}}]"
        ),
        "probe.every=1s",
        "probe.misses=2",
    ]);
    until("the official one", || (ask(&server, 0) == (3, record(official, 4))).then_some(()));
    let page = server.get("/");
    assert!(page.text().contains("Veks California DM") && page.text().contains("a_doommkii.hba"), "{}", page.text());
    // One that falls silent is removed; the configuration names it, so it is queried further and listed again.
    switch.store(false, Ordering::Relaxed);
    until("it to leave", || (ask(&server, 0xff) == (0, vec![])).then_some(()));
    switch.store(true, Ordering::Relaxed);
    off.store(true, Ordering::Relaxed);
    until("both", || (ask(&server, 0xff).1.len() == 24).then_some(()));
    assert_eq!(ask(&server, 0).0, 6);
}

#[test]
fn anyone_registers_their_own_address_as_unofficial() {
    let (port, _) = game();
    let server = Server::start(&[]);
    let heartbeat = format!(r"\heartbeat\gamename\hyperbol\port\{port}\final\");
    let answer = exchange(server.address("netpanzer.listen"), heartbeat.as_bytes());
    assert_eq!(answer, br"\final\");
    until("the list", || (ask(&server, 0x10).1 == record(port, 0)).then_some(()));
    assert_eq!(ask(&server, 0xef).1, b"", "it is not official");
}

#[test]
fn a_wrong_key_and_a_slow_client_get_nothing() {
    let (port, _) = game();
    let server =
        Server::start(&[&format!("hyperbol.servers=[{{address=\"127.0.0.1:{port}\", flavor=1}}]"), "probe.every=1s"]);
    until("the list", || (!ask(&server, 0).1.is_empty()).then_some(()));
    let mut stream = connect(server.address("hyperbol.listen"));
    let mut greeting = [0; 12];
    stream.read_exact(&mut greeting).unwrap();
    greeting[4] ^= 1;
    stream.write_all(&[&greeting[4..8], &[0xff, 0, 0, 0], &[1; 100][..]].concat()).unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0, "a clean close, no reset");
    // Seven bytes and nothing more: the server closes the connection after five seconds.
    let mut slow = connect(server.address("hyperbol.listen"));
    slow.read_exact(&mut greeting).unwrap();
    slow.write_all(&greeting[4..11]).unwrap();
    assert_eq!(slow.read_to_end(&mut Vec::new()).unwrap(), 0);
}

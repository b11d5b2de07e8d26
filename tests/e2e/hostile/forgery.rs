//! A forger who can send datagrams from any address, but cannot see the master's datagrams. On loopback that takes a raw
//! socket, so the test has its own network namespace.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::machines::{Own, inside};
use crate::support::netpanzer::Tank;
use crate::support::*;

const FORGED: &str =
    r"gamename\netpanzer\hostname\Forged\mapname\Nowhere\numplayers\7\maxplayers\8\gamestyle\Objective\final\";

struct Forger(Socket);

impl Forger {
    fn new() -> Forger {
        // IPPROTO_RAW: the sender writes the IP header.
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)));
        Forger(socket.expect("a raw socket, in a network of the test's own"))
    }

    /// Sends a datagram with a forged source port.
    fn send(&self, from_port: u16, to_port: u16, bytes: &[u8]) {
        let host = Ipv4Addr::LOCALHOST.octets();
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]; // the kernel fills in length and checksum
        packet.extend(host);
        packet.extend(host);
        packet.extend(from_port.to_be_bytes());
        packet.extend(to_port.to_be_bytes());
        packet.extend((8 + bytes.len() as u16).to_be_bytes());
        packet.extend([0, 0]); // no checksum
        packet.extend(bytes);
        self.0.send_to(&packet, &SocketAddr::from((host, 0)).into()).unwrap();
    }
}

fn listed(server: &Server, tank: &Tank) -> Value {
    server.json(&format!("/api/v1/servers/netpanzer/127.0.0.1:{}", tank.port))
}

fn doctor(tank: &Tank) -> String {
    format!("/api/v1/check?game=netpanzer&address=127.0.0.1:{}", tank.port)
}

#[test]
#[ignore = "needs network namespaces"]
fn forged_statuses_rename_nobody() {
    if !inside(Own::Network, "hostile::forgery::forged_statuses_rename_nobody") {
        return;
    }
    let server = Server::start(&["probe.every=1s"]);
    let tank = Tank::new();
    assert_eq!(tank.heartbeat(&server), r"\final\");
    until("the first round", || (tank.asked_from().len() >= 3).then_some(()));
    let forger = Forger::new();
    // The forged datagrams do arrive: a witness receives one.
    let witness = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    forger.send(tank.port, witness.local_addr().unwrap().port(), FORGED.as_bytes());
    let (size, from) = witness.recv_from(&mut [0; 500]).unwrap();
    assert_eq!((size, from.port()), (FORGED.len(), tank.port));

    // Whenever the game is queried, the forger answers first, to every port that was used before.
    let (sent, game) = (Arc::new(AtomicUsize::new(0)), tank.port);
    let counted = sent.clone();
    *tank.meanwhile.lock().unwrap() = Some(Box::new(move |ports| {
        for _ in 0..10 {
            ports.iter().for_each(|port| forger.send(game, *port, FORGED.as_bytes()));
            counted.fetch_add(ports.len(), Ordering::Relaxed);
        }
    }));
    let enough = tank.asked_from().len() + 10;
    until("ten questions, or another name", || {
        let over = tank.asked_from().len() >= enough || listed(&server, &tank)["name"] != "Tank <1>";
        over.then_some(())
    });
    *tank.meanwhile.lock().unwrap() = None;
    let sent = sent.load(Ordering::Relaxed);
    assert_eq!(listed(&server, &tank)["name"], "Tank <1>", "after {sent} forged datagrams");
    assert!(sent >= 110, "{sent}");
    let ports: BTreeSet<u16> = tank.asked_from().into_iter().collect();
    assert!(ports.len() >= 3, "the source port of queries changes: {ports:?}");
    // When the forgeries stop, the real status is accepted.
    tank.players.store(5, Ordering::Relaxed);
    until("the truth", || (listed(&server, &tank)["players_current"] == 5).then_some(()));
}

/// An attacker on the path sees every question, and adds another status to each answer.
#[test]
fn of_two_statuses_neither_is_believed_and_the_doctor_says_so() {
    let server = Server::start(&["probe.every=1s"]);
    let tank = Tank::new();
    assert_eq!(tank.heartbeat(&server), r"\final\");
    assert_eq!(listed(&server, &tank)["name"], "Tank <1>");
    *tank.forged.lock().unwrap() = Some(FORGED.into());
    tank.players.store(5, Ordering::Relaxed);
    let seen = until("the doctor to report it", || {
        let seen = server.json(&doctor(&tank))["seen"].as_array().unwrap().clone();
        seen.into_iter().find(|seen| seen["what"] == "disputed" && seen["times"].as_u64() >= Some(3))
    });
    assert!(seen["text"].as_str().unwrap().contains("forged answers in its name"), "{seen}");
    assert!(server.get("/metrics").text().contains("rallypoint_events_total{kind=\"disputed\"} "));
    let row = listed(&server, &tank);
    assert_eq!((&row["name"], &row["players_current"]), (&"Tank <1>".into(), &1.into()), "as it was");
    *tank.forged.lock().unwrap() = None;
    until("the truth", || (listed(&server, &tank)["players_current"] == 5).then_some(()));
}

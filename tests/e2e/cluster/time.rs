//! Nodes whose clocks differ (with Debian's faketime), and nodes that come back after a kill.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::cluster::nodes::{announce, lists, wait_for_nodes};
use crate::support::nats::Nats;
use crate::support::*;

/// A node whose clock is off, e.g. by "-10m".
fn node(name: &str, clock: &str, urls: &str, set: &[&str]) -> Server {
    let output = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let output = output.expect("faketime, from Debian's faketime");
    let mut command = command();
    // Preload the library directly, so that signals reach the program and not faketime.
    command.env("LD_PRELOAD", String::from_utf8(output.stdout).unwrap().trim());
    command.env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let (urls, name) = (format!("cluster.nats={urls}"), format!("cluster.node={name}"));
    Server::start_as(command, &[], &[&[&urls, &name, "log=debug"], set].concat())
}

#[test]
#[ignore = "needs nats-server and faketime"]
fn a_handshake_ends_at_a_node_whose_clock_is_off() {
    let nats = Nats::start("cluster-skew", 1);
    let [a, b, c] = [("a", "-3s"), ("b", "+3s"), ("c", "-10m")].map(|(name, off)| node(name, off, &nats.urls(), &[]));
    let nodes = [&a, &b, &c];
    wait_for_nodes(&nodes, 3);
    let mut expected = Vec::new();
    for (from, to) in [(&a, &b), (&b, &a), (&a, &c), (&c, &a), (&b, &c), (&c, &b)] {
        let mut game = Game::new(from.address("iceball.listen"));
        let port = 7001 + expected.len() as u16;
        let cookie = game.cookie(&announcement(b"crossed", port, 1));
        game.master = to.address("iceball.listen");
        game.handshake(&cookie);
        expected.push(port);
        for node in nodes {
            until("the crossed one at all", || lists(node, &expected).then_some(()));
        }
    }
    for node in [&a, &b, &c] {
        until("the warning about the clock", || node.log().contains("this node's clock is").then_some(()));
    }
}

#[test]
#[ignore = "needs nats-server and faketime"]
fn a_node_that_comes_back_with_its_clock_behind_brings_back_nothing_that_has_ended() {
    let nats = Nats::start("cluster-restart", 1);
    let folder = Folder::new("cluster-restart-data");
    let data = format!("data_dir={}", folder.path().display());
    let set = ["iceball.life=10s", "probe.every=1s"];
    let a = node("a", "+0", &nats.urls(), &[&set[..], &[&data]].concat());
    let b = node("b", "+0", &nats.urls(), &set);
    wait_for_nodes(&[&a, &b], 2);
    announce(&a, 8001);
    until("it at the other", || lists(&b, &[8001]).then_some(()));
    until("it in the file", || is_kept(&folder, 8001).then_some(()));
    a.signal(Signal::SIGKILL);
    a.end();
    until("its end at the other", || lists(&b, &[]).then_some(()));

    let a = node("a", "-10m", &nats.urls(), &[&set[..], &[&data]].concat());
    assert!(a.log().contains("restored 1 servers"), "still alive by its own clock:\n{}", a.log());
    wait_for_nodes(&[&a, &b], 2);
    announce(&a, 8002);
    for node in [&a, &b] {
        until("the living one, and no other", || lists(node, &[8002]).then_some(()));
    }
}

/// Whether a server is in the database.
fn is_kept(folder: &Folder, port: u16) -> bool {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let Ok(file) = rusqlite::Connection::open_with_flags(folder.path().join("rallypoint.db"), flags) else {
        return false;
    };
    let sql = "SELECT count(*) FROM servers WHERE substr(address, -2) = ?1";
    file.query_row(sql, [&port.to_be_bytes()[..]], |row| row.get::<_, i64>(0)).is_ok_and(|count| count == 1)
}

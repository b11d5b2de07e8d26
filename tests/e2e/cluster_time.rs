//! Nodes whose clocks differ (with Debian's faketime), and nodes that come back after a kill.

use std::process::Command;

use crate::cluster::{lists, wait_for_nodes};
use crate::nats::Nats;
use crate::support::*;

/// A node whose time of day is off, e.g. by "-10m".
fn node(name: &str, clock: &str, urls: &str, set: &[&str]) -> Server {
    let output = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
    let output = output.expect("faketime, from Debian's faketime");
    let mut command = command();
    // The program itself, not faketime, is what a test sends signals to.
    command.env("LD_PRELOAD", String::from_utf8(output.stdout).unwrap().trim());
    command.env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let (urls, name) = (format!("cluster.nats={urls}"), format!("cluster.node={name}"));
    Server::start_as(command, &[], &[&[&urls, &name, "log=debug"], set].concat())
}

#[test]
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
        until("a word on the clock", || node.log().contains("this node's clock is").then_some(()));
    }
}

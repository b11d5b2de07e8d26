//! Nested limits: per address, per network and in total, and what happens when the list is full.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::*;

/// A game at an address of 127.0.0.0/8.
fn game(server: &Server, ip: [u8; 4]) -> Game {
    Game::on(server.address("iceball.listen"), ip.into())
}

fn check(server: &Server, address: &str) -> Value {
    server.json(&format!("/api/v1/check?game=iceball&address={address}"))
}

fn addresses(server: &Server) -> Vec<String> {
    server.listed().iter().map(|row| format!("{}:{}", row["address"].as_str().unwrap(), row["port"])).collect()
}

#[test]
fn a_full_list_takes_from_the_network_that_has_most() {
    let server = Server::start(&["guard.max_servers=6"]);
    game(&server, [127, 0, 9, 1]).announce(&announcement(b"small", 1, 0));
    // A flood from one /24, from a different address each.
    for host in 1..=20 {
        game(&server, [127, 0, 1, host]).announce(&announcement(b"flood", 1, 0));
    }
    let refused = "no network has more servers on it than its own";
    until("the flood to be refused", || {
        check(&server, "127.0.1.20:1")["summary"].as_str().filter(|summary| summary.contains(refused)).map(drop)
    });
    until("the list to be full", || (server.listed().len() == 6).then_some(()));
    // New servers from other networks are listed, and replace servers of the flood.
    for network in [2, 3] {
        game(&server, [127, 0, network, 1]).announce(&announcement(b"newcomer", 1, 0));
        let newcomer = format!("127.0.{network}.1:1");
        until("the newcomer", || addresses(&server).contains(&newcomer).then_some(()));
    }
    let (flood, mut others): (Vec<_>, Vec<_>) =
        addresses(&server).into_iter().partition(|address| address.starts_with("127.0.1."));
    others.sort();
    assert_eq!((flood.len(), others), (3, ["127.0.2.1:1", "127.0.3.1:1", "127.0.9.1:1"].map(String::from).to_vec()));
}

#[test]
fn exempt_networks_have_only_the_limit_per_address_from_the_next_reload_on() {
    let folder = Folder::new("exempt");
    let limits = |exempt: &str| format!("[guard]\nmax_servers_per_ip = 1\nexempt = [{exempt}]\n");
    let file = folder.write("rallypoint.toml", &limits(""));
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let announce_all = |server: &Server| {
        for host in 1..=10 {
            game(server, [127, 0, 1, host]).announce(&announcement(b"one of ten", 1, 0));
        }
    };
    announce_all(&server);
    let too_many = "too many servers in the network around its address";
    until("the limit of the /24", || {
        check(&server, "127.0.1.10:1")["summary"].as_str().filter(|summary| summary.contains(too_many)).map(drop)
    });
    until("those before it", || (server.listed().len() == 8).then_some(()));
    folder.write("rallypoint.toml", &limits("\"127.0.0.0/8\""));
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    announce_all(&server);
    until("all ten", || (server.listed().len() == 10).then_some(()));
    game(&server, [127, 0, 1, 1]).announce(&announcement(b"second", 2, 0));
    until("the limit of the address", || {
        let diagnosis = check(&server, "127.0.1.1:2");
        diagnosis["summary"].as_str().filter(|summary| summary.contains("too many servers at its address")).map(drop)
    });
}

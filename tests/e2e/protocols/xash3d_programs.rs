//! Xash3D with its community's own program, xash3d-query from crates.io, which reads the lists and asks the servers in them. The
//! ports of masters are fixed, so each test runs in a network namespace of its own.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::support::commands::{ends, simulate};
use crate::support::machines::{Own, inside};
use crate::support::*;

const LISTEN: &str = "xash3d.listen=127.0.0.1:27010,[::1]:27010";
const MASTER: &str = "xash3d://127.0.0.1";
/// The first of the servers' addresses. xash3d-query takes a list for one with a key if its bytes 0 and 5 are 127 and 8: a first
/// server on loopback whose port ends like that would be lost.
const GAMES: &str = "127.0.0.1:27100";

/// What it prints for this filter, in JSON, with a key in its request or without.
fn xash3d_query(filter: &str, more: &[&str]) -> Value {
    let arguments = [&["-m", "127.0.0.1:27010", "-f", filter, "-j"], more].concat();
    let output = Command::new(tool("xash3d-query/bin/xash3d-query")).args(&arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The addresses in its output, whatever its form.
fn addresses(found: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    match found {
        Value::Array(values) => values.iter().for_each(|value| all.extend(addresses(value))),
        Value::Object(fields) => fields.values().for_each(|value| all.extend(addresses(value))),
        Value::String(text) if text.parse::<std::net::SocketAddr>().is_ok() => _ = all.insert(text.clone()),
        _ => {}
    }
    all.remove("127.0.0.1:27010");
    all
}

fn total(server: &Server) -> u64 {
    server.json("/api/v1/servers?game=xash3d&limit=1")["total"].as_u64().unwrap()
}

#[test]
#[ignore = "needs xash3d-query and network namespaces"]
fn servers_are_announced_proven_listed_shown_and_gone() {
    if !inside(Own::Network, "protocols::xash3d_programs::servers_are_announced_proven_listed_shown_and_gone") {
        return;
    }
    let server = Server::start(&[LISTEN, "probe.every=1s", "probe.misses=2"]);
    let (games, urls) = simulate("xash3d", 10, &["--listen", GAMES, "--announce", MASTER]);
    let all: BTreeSet<String> = urls.iter().map(|url| url.strip_prefix("xash3d://").unwrap().to_string()).collect();
    until("all of them to be listed", || (total(&server) == 10).then_some(()));
    let rows = server.json("/api/v1/servers?game=xash3d")["servers"].as_array().unwrap().clone();
    assert!(rows.iter().all(|row| row["verified_by"] == "cookie"), "{rows:?}");
    let of = |gamedir: &str| -> BTreeSet<String> {
        let of_gamedir = rows.iter().filter(|row| row["mode"] == gamedir);
        of_gamedir.map(|row| format!("{}:{}", row["address"].as_str().unwrap(), row["port"])).collect()
    };

    // As it asks without a key, and with one.
    for more in [&["list"][..], &["-k", "list"]] {
        assert_eq!(addresses(&xash3d_query(r"\clver\0.21", more)), all, "{more:?}");
        assert_eq!(addresses(&xash3d_query(r"\gamedir\valve\clver\0.21", more)), of("valve"), "{more:?}");
    }
    assert_eq!(addresses(&xash3d_query(r"\gamedir\none\clver\0.21", &["list"])), BTreeSet::new());
    // It asks the servers of the list, too.
    let shown = xash3d_query(r"\gamedir\cstrike\clver\0.21", &["all"]).to_string();
    assert!(shown.contains("Dust All Day 2") && shown.contains("Dust All Day 7"), "{shown}");

    let page = server.get("/?game=xash3d").text().to_string();
    assert!(page.contains("cstrike") && page.contains("de_dust2"), "{page}");
    let web = format!("http://{}", server.address("web.listen"));
    let (says, _) = ends(0, &["doctor", &web, "xash3d", all.first().unwrap()]);
    assert!(says.contains("Last verified by cookie"), "{says}");
    let of_name = |name: &str| server.json("/api/v1/servers?game=xash3d&q=dust")["servers"].to_string().contains(name);
    until("the name", || of_name("Dust All Day 2").then_some(()));

    // They say nothing when they go, and answer no more.
    drop(games);
    until("all of them to be gone", || (total(&server) == 0).then_some(()));
    assert_eq!(addresses(&xash3d_query(r"\clver\0.21", &["list"])), BTreeSet::new());
}

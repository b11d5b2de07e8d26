//! The command line: help, defaults, mistakes, signals.

use std::io::Write;
use std::process::Output;

use nix::sys::signal::Signal;

use crate::support::*;

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The command fails with this exit code and these texts on stderr, with nothing on stdout and no backtrace.
pub fn fails(arguments: &[&str], code: i32, says: &[&str]) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    let stderr = text(&output.stderr);
    for says in says {
        assert!(stderr.contains(says), "{arguments:?} should say `{says}`:\n{stderr}");
    }
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
}

#[test]
fn help_and_version() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    for word in ["serve", "config", "announce", "Exit codes"] {
        assert!(text(&help.stdout).contains(word));
    }
    for command in ["serve", "config", "announce"] {
        assert!(text(&run(&[command, "--help"]).stdout).contains("Usage: rallypoint"));
    }
    assert_eq!(text(&run(&["--version"]).stdout).trim(), concat!("rallypoint ", env!("CARGO_PKG_VERSION")));
    fails(&[], 2, &["Usage"]);
    fails(&["sreve"], 2, &["similar subcommand", "serve"]);
}

#[test]
fn the_default_file_is_printed_and_passes_its_own_check() {
    let printed = run(&["config"]);
    assert!(printed.status.success());
    let folder = Folder::new("default");
    let file = folder.write("default.toml", text(&printed.stdout));
    let checked = run(&["config", "--check", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(text(&run(&["config", "--template"]).stdout).starts_with("<!doctype html>"));
    assert!(text(&run(&["config", "--stylesheet"]).stdout).contains("body {"));
}

#[test]
fn mistakes_in_the_configuration_are_explained() {
    let folder = Folder::new("mistakes");
    let check = |content: &str, says: &[&str]| {
        let file = folder.write("bad.toml", content);
        fails(&["config", "--check", file.to_str().unwrap()], 2, says);
        fails(&["serve", "--config", file.to_str().unwrap()], 2, says);
    };
    check("[iceball]\n\nlisen = []\n", &["bad.toml:3: unknown key `iceball.lisen`; did you mean `iceball.listen`?"]);
    check("[web]\nlisten = 8080\n", &["bad.toml:2: web.listen: must be a list of addresses"]);
    check("[web]\ntemplate = \"/nowhere.html\"\n", &["web.template: /nowhere.html"]);
    check("[web\n", &["bad.toml:1:"]);
    check(
        "[netpanzer]\npassword = \"final\"\n",
        &["bad.toml:2: netpanzer.password:", "the word `final` ends a message"],
    );
    fails(&["config", "--check", "/nowhere.toml"], 2, &["/nowhere.toml: cannot be read"]);
    fails(&["serve", "--set", "guard.max_servers_per_ip=0"], 2, &["guard.max_servers_per_ip=0", "from 1 to 65535"]);
    fails(
        &["serve", "--set", "netpanzer.password=final"],
        2,
        &["netpanzer.password", "the word `final` ends a message"],
    );
    fails(&["serve", "--set", "iceball"], 2, &["KEY=VALUE"]);
    fails(
        &["serve", "--set", "foo"],
        2,
        &["--set foo: write --set KEY=VALUE; unknown key `foo`; `rallypoint config` prints"],
    );
    fails(&["serve", "--set", "web.lisen"], 2, &["write --set KEY=VALUE", "did you mean `web.listen`?"]);
    fails(&["serve", "--set", "web.listen"], 2, &["--set web.listen: it lacks a value: write --set web.listen=VALUE"]);
}

#[test]
fn a_taken_port_is_named_with_the_key_to_change() {
    let first = Server::start(&[]);
    for key in LISTENERS.iter() {
        let address = first.address(key).to_string();
        let mut arguments = vec!["serve".to_string()];
        for other in LISTENERS.iter() {
            let value = if other == key { &address } else { "127.0.0.1:0" };
            arguments.extend(["--set".into(), format!("{other}={value}")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        // TCP or UDP, depending on the protocol.
        let port = format!("P port {}", first.address(key).port());
        fails(&arguments, 3, &[&port, "another program has it", &format!("`{key}`")]);
    }
    // Only the UDP port is taken. Retried, because another program may have the TCP port of the same number.
    let udp = until("a port that is free for both", || {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        std::net::TcpListener::bind(udp.local_addr().unwrap()).is_ok().then_some(udp)
    });
    let address = udp.local_addr().unwrap();
    let taken = format!("iceball.listen={address}");
    let says = format!("UDP port {}", address.port());
    fails(
        &[
            "serve",
            "--set",
            &taken,
            "--set",
            "web.listen=",
            "--set",
            "iceball.client_listen=",
            "--set",
            "netpanzer.listen=",
        ],
        3,
        &[&says, "`iceball.listen`"],
    );
}

#[test]
fn listeners_can_be_turned_off() {
    let server = Server::start(&["iceball.client_listen=", "web.listen="]);
    assert!(!server.log().contains("client_listen") && !server.log().contains("web.listen"));
    assert_eq!(get(server.address("iceball.listen"), "/healthz", "").status(), 200);
}

#[test]
fn stops_cleanly_and_quickly_with_open_connections() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        // If it waited for connections, it would take an hour.
        let server = Server::start(&["guard.idle_timeout=1h"]);
        let mut idle: Vec<_> = (0..20).map(|_| connect(server.address("web.listen"))).collect();
        // One in the middle of its request, one that never reads its answers.
        idle[0].write_all(b"GET / HTTP/1.1\r\nX").unwrap();
        idle[1].write_all(&b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500)).unwrap();
        Game::new(server.address("iceball.listen")).nothing_came_back();
        server.signal(signal);
        let (status, log) = server.end();
        assert_eq!(status.code(), Some(0), "{signal}: {log}");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[test]
fn sighup_applies_what_can_change() {
    let folder = Folder::new("reload");
    let file = folder.write("rallypoint.toml", "");
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let master = server.address("iceball.listen");
    let (game, other) = (Game::new(master), Game::on(master, "127.0.0.2".parse().unwrap()));
    game.announce(&announcement(b"one", 1, 0));
    other.announce(&announcement(b"to be banned", 1, 0));
    until("both", || (server.listed().len() == 2).then_some(()));
    folder.write(
        "rallypoint.toml",
        "log = \"debug\"\n[web]\ntitle = \"New\"\n[iceball]\nversion = \"0.3\"\nlife = \"2s\"\n\
         [guard]\nbans = [\"127.0.0.2\"]\nmax_servers_per_ip = 1\nidle_timeout = \"300ms\"\n",
    );
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    // New bans remove listed servers; the others stay.
    until("the banned one to go", || (server.listed().len() == 1).then_some(()));
    assert_eq!(server.listed()[0]["name"], "one");
    assert!(server.get("/").text().contains("<title>New"));
    // The versions, the life and the limit.
    let unproven = Game::on(master, "127.0.0.3".parse().unwrap());
    let answer = unproven.ask(&announcement(b"old version", 1, 0));
    assert_eq!(answer[..4], *b"BADV");
    let mut new = announcement(b"new version", 2, 0);
    new[6..10].copy_from_slice(&(3u32 << 22).to_le_bytes());
    game.announce(&new);
    let full = "/api/v1/check?game=iceball&address=127.0.0.1:2";
    until("the new limit", || server.get(full).text().contains("too many servers").then_some(()));
    // The log's level, and the idle time of new connections.
    game.send(b"nonsense");
    server.wait_for_log("dropped_unknown_magic");
    let mut idle = connect(server.address("iceball.listen"));
    assert_eq!(std::io::Read::read(&mut idle, &mut [0; 10]).unwrap(), 0);
}

#[test]
fn one_udp_socket_per_core() {
    let server = Server::start(&[]);
    let port = format!(":{:04X} ", server.address("iceball.listen").port());
    let cores = std::thread::available_parallelism().unwrap().get();
    // The table is read in parts: while other sockets come and go, some may be missing.
    let ours = || {
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
        sockets.lines().filter(|line| line.contains(&port)).count()
    };
    until("a socket for each core", || (ours() == cores).then_some(()));
}

#[test]
fn without_free_descriptors_idle_connections_are_closed() {
    let server = Server::start_after("ulimit -n 200", &["guard.idle_timeout=1h", "guard.max_connections_per_ip=5000"]);
    assert!(server.log().contains("the system allows only 200 descriptors"), "{}", server.log());
    let _idle: Vec<_> = (0..300).map(|_| connect(server.address("web.listen"))).collect();
    assert_eq!(server.get("/healthz").status(), 200);
}

#[test]
fn quiet_by_default_and_one_line_per_refusal_at_debug() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.send(b"nonsense");
    game.nothing_came_back();
    assert!(!server.log().contains("dropped"), "{}", server.log());

    let mut server = Server::start(&["log=debug"]);
    let game = Game::new(server.address("iceball.listen"));
    game.send(b"nonsense");
    server.wait_for_log("dropped_unknown_magic");
    let line = server.log().lines().filter(|line| line.contains("dropped_unknown_magic")).count();
    assert_eq!(line, 1);
}

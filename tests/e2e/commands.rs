//! The commands as a person uses them: help, defaults, mistakes, signals.

use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::*;

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// It fails with this exit code and says this on stderr, without a word on stdout and without a backtrace.
fn fails(arguments: &[&str], code: i32, says: &[&str]) {
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
    fails(&["config", "--check", "/nowhere.toml"], 2, &["/nowhere.toml: cannot be read"]);
    fails(&["serve", "--set", "guard.max_servers_per_ip=0"], 2, &["guard.max_servers_per_ip=0", "from 1 to 65535"]);
    fails(&["serve", "--set", "iceball"], 2, &["KEY=VALUE"]);
}

#[test]
fn a_taken_port_is_named_with_the_key_to_change() {
    let first = Server::start(&[]);
    for key in LISTENERS {
        let address = first.address(key).to_string();
        let mut arguments = vec!["serve".to_string()];
        for other in LISTENERS {
            let value = if other == key { &address } else { "127.0.0.1:0" };
            arguments.extend(["--set".into(), format!("{other}={value}")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let port = format!("TCP port {}", first.address(key).port());
        fails(&arguments, 3, &[&port, "another program has it", &format!("`{key}`")]);
    }
    // Only the UDP half is taken.
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
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
fn stops_cleanly_and_soon_with_connections_open() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let server = Server::start(&[]);
        let _idle: Vec<_> = (0..20).map(|_| connect(server.address("web.listen"))).collect();
        Game::new(server.address("iceball.listen")).nothing_came_back();
        server.signal(signal);
        let (status, took, log) = server.end();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(took < Duration::from_secs(3), "{signal} took {took:?}");
        assert!(log.contains("stopped"), "{log}");
    }
}

#[test]
fn quiet_by_default_and_one_line_a_refusal_at_debug() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.send(b"nonsense");
    game.nothing_came_back();
    assert!(!server.log().contains("dropped"), "{}", server.log());

    let mut server = Server::start(&["log=debug"]);
    let game = Game::new(server.address("iceball.listen"));
    game.send(b"nonsense");
    server.wait_for_log("UnknownMagic");
    let line = server.log().lines().filter(|line| line.contains("UnknownMagic")).count();
    assert_eq!(line, 1);
}

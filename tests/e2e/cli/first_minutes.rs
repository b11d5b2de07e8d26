//! The first ten minutes: what `serve` says to a person, what `rallypoint` alone shows, and the mistakes that everyone makes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::cli::serve::fails;
use crate::support::commands::{Running, ends};
use crate::support::pty::Pty;
use crate::support::*;

/// `serve` with this listener at an address, and all others on free ports.
fn serving(key: &str, address: &str) -> Vec<String> {
    let ports = LISTENERS.iter().map(|other| format!("{other}={}", if other == key { address } else { "127.0.0.1:0" }));
    let set = ports.chain(["data_dir=".into()]).flat_map(|assignment| ["--set".to_string(), assignment]);
    ["serve".to_string()].into_iter().chain(set).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn rallypoint_alone_shows_what_most_people_want() {
    fails(&[], 2, &["rallypoint serve", "rallypoint watch http", "rallypoint doctor http", "rallypoint --help"]);
    let (help, _) = ends(0, &["--help"]);
    assert!(help.contains("Commands:"), "{help}");
}

#[test]
fn first_mistakes_get_a_tip() {
    let folder = Folder::new("first-mistakes");
    let there = folder.path().display().to_string();
    let missing = folder.path().join("new.toml").display().to_string();
    fails(&["serve", "rallypoint.toml"], 2, &["unexpected argument", "tip: ", "--config rallypoint.toml"]);
    fails(&["serve", "--port", "80"], 2, &["tip: ", "--set web.listen=PORT"]);
    fails(&["list"], 2, &["tip: for example: rallypoint list http://"]);
    fails(&["serve", "--config", &missing], 2, &["cannot be read", &format!("rallypoint config > {missing}")]);
    fails(&["serve", "--config", &there], 2, &["Name the file in that folder"]);
    let elsewhere = serving("web.listen", "203.0.113.5:8080");
    fails(&words(&elsewhere), 3, &["no such address", "0.0.0.0"]);
    // A closed port: whoever has it says so.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails(&["list", &format!("http://{closed}")], 3, &["nothing listens on that port"]);
    // One that never answers.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("netpanzer://{}", silent.local_addr().unwrap());
    fails(&["query", &url, "--timeout", "100ms", "--retries", "0"], 1, &["it did not answer", "firewall"]);
}

#[test]
#[ignore = "needs python3"]
fn a_taken_port_is_named_with_the_program_that_has_it() {
    for udp in [false, true] {
        let (mut held, key) = match udp {
            false => ("import socket; s=socket.socket()".to_string(), "web.listen"),
            true => ("import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)".to_string(), "quake3.listen"),
        };
        held += "; s.bind(('127.0.0.1', 0))";
        held += if udp { "" } else { "; s.listen()" };
        held += "; print(s.getsockname()[1], flush=True); input()";
        let mut holder =
            Command::new("python3").args(["-c", &held]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let says = format!("python3, process {}", holder.id());
        let arguments = serving(key, &format!("127.0.0.1:{}", port.trim()));
        fails(&words(&arguments), 3, &["another program has it", &says, key]);
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
}

/// On a terminal: where the page is, which games listen where, and what to do next. A log has a line for each port instead.
#[test]
fn serve_greets_a_person() {
    let mut pty = Pty::new(50, 300); // the program's path may be long
    let arguments = serving("web.listen", "127.0.0.1:0");
    let mut server = pty.run(env!("CARGO_BIN_EXE_rallypoint"), &words(&arguments), "xterm-256color");
    let screen = pty.shows("doctor says why");
    for line in ["is ready. Ctrl-C stops it", "The page", "http://127.0.0.1:", "rallypoint simulate "] {
        assert!(screen.contains(line), "{line:?} is not in\n{screen}");
    }
    for card in rallypoint::protocols::CARDS {
        assert!(screen.contains(card.title), "{}\n{screen}", card.title);
    }
    assert!(!screen.contains("listening on"), "{screen}");
    // The next step that it names is one that works.
    let line = screen.lines().find(|line| line.contains("rallypoint simulate")).unwrap();
    let (program, next) = line.trim().split_once(' ').unwrap();
    assert_eq!(program, env!("CARGO_BIN_EXE_rallypoint"), "as it was called");
    let next: Vec<&str> = next.split_whitespace().collect();
    let page = screen.lines().find_map(|line| line.trim_start().strip_prefix("The page")).unwrap().trim();
    let _servers = Running::start(&next);
    until("five servers on the page", || {
        let (list, _) = ends(0, &["list", page, "--format", "csv", "--no-header"]);
        (list.lines().count() == 5).then_some(())
    });
    pty.press("\u{3}"); // Ctrl-C
    server.end();
}

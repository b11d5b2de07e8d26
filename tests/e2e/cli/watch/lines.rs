//! `rallypoint watch` without a terminal: one line per change. `screen.rs` has the rest.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::netpanzer::{Tank, say};
use crate::support::*;

/// A running `watch`. It is killed when the test ends.
struct Watch {
    child: Child,
    /// Its stderr.
    said: Log,
}

impl Watch {
    fn start(url: &str, arguments: &[&str]) -> (Watch, BufReader<ChildStdout>) {
        let mut watch = command();
        watch.args(["watch", url, "--every", "1s"]).args(arguments);
        let said = Log::new();
        let mut child = watch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said.end()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        (Watch { child, said }, lines)
    }

    fn until_it_says(&self, text: &str) {
        until(text, || self.said.text().contains(text).then_some(()));
    }

    /// Stops it with a signal; returns its stderr.
    fn stop(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let status = until("its end", || self.child.try_wait().unwrap());
        let said = self.said.text();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next_line(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended");
    line
}

fn web(server: &Server) -> String {
    format!("http://{}", server.address("web.listen"))
}

#[test]
fn one_line_per_change() {
    // On an address of its own, so that nobody takes its ports while it is stopped.
    let server = Server::start(&["web.listen=127.0.7.1:0", "iceball.listen=127.0.7.1:0"]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 3));
    until("it", || server.listed().pop());
    let (watch, mut lines) = Watch::start(&web(&server), &[]);
    let line = next_line(&mut lines);
    assert!(line.contains("Z came    iceball://127.0.0.1:1 3/64 | mesa.vxl | ctf | first"), "{line}");
    game.announce(&announcement(b"first", 1, 4));
    let line = next_line(&mut lines);
    assert!(line.contains("changed iceball://127.0.0.1:1 4/64"), "{line}");
    let tank = Tank::new();
    say(&server, &format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", tank.port));
    let line = next_line(&mut lines);
    assert!(line.contains(&format!("came    netpanzer://127.0.0.1:{} 1/8", tank.port)), "{line}");
    say(&server, &format!(r"\quit\port\{}\final\", tank.port));
    let line = next_line(&mut lines);
    assert!(line.contains("went    netpanzer://"), "{line}");

    // The master stops and starts again: each is reported once, and no server is reported as gone.
    let listen = format!("web.listen={}", server.address("web.listen"));
    let iceball = format!("iceball.listen={}", server.address("iceball.listen"));
    drop(server);
    watch.until_it_says("cannot connect");
    let server = Server::start(&[&listen, &iceball]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"first", 1, 5));
    loop {
        let line = next_line(&mut lines);
        if line.contains("changed iceball://127.0.0.1:1 5/64") || line.contains("came    iceball://127.0.0.1:1 5/64") {
            break;
        }
        assert!(line.contains("went    iceball://127.0.0.1:1"), "before it announced itself again: {line}");
    }
    let said = watch.stop();
    assert_eq!(said.matches("cannot connect").count(), 1, "{said}");
    assert_eq!(said.matches("available again").count(), 1, "{said}");
}

#[test]
fn one_json_object_per_line_and_filters() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    for (name, port, players) in [(&b"empty"[..], 1, 0), (b"few", 2, 2), (b"many", 3, 30)] {
        game.announce(&announcement(name, port, players));
    }
    until("all", || (server.listed().len() == 3).then_some(()));
    let arguments = ["--format", "jsonl", "--not-empty", "--sort", "players"];
    let (watch, mut lines) = Watch::start(&format!("iceball://{}", server.address("iceball.listen")), &arguments);
    for name in ["many", "few"] {
        let event: serde_json::Value = serde_json::from_str(&next_line(&mut lines)).unwrap();
        assert_eq!((&event["event"], &event["server"]["name"]), (&"came".into(), &name.into()), "{event}");
        assert!(event["at"].as_str().unwrap().ends_with('Z'), "{event}");
    }
    game.announce(&announcement(b"few", 2, 0));
    let event: serde_json::Value = serde_json::from_str(&next_line(&mut lines)).unwrap();
    assert_eq!((&event["event"], &event["server"]["name"]), (&"went".into(), &"few".into()), "{event}");
    assert_eq!(watch.stop(), "");
}

#[test]
fn a_command_for_every_change() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 3));
    until("it", || server.listed().pop());
    let folder = Folder::new("exec-lines");
    let log = folder.path().join("log");
    // Names are chosen by strangers.
    let script = format!("sh -c 'cat >> {0}; echo \"$RALLYPOINT_NAME\" >> {0}.names; echo heard'", log.display());
    let (watch, mut lines) = Watch::start(&web(&server), &["--exec", &script, "--not-empty"]);
    assert!(next_line(&mut lines).contains("came    iceball://127.0.0.1:1"));
    game.announce(&announcement(b"$(touch x);`id`", 2, 4));
    assert!(next_line(&mut lines).contains("came    iceball://127.0.0.1:2"));
    watch.until_it_says("heard");
    game.announce(&announcement(b"first", 1, 0));
    let line = next_line(&mut lines);
    assert!(line.contains("went    iceball://127.0.0.1:1"), "its output is not on stdout: {line}");
    let events = until("both", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (events.len() == 2).then_some(events)
    });
    let said: Vec<_> = events.iter().map(|event| (&event["event"], &event["server"]["port"])).collect();
    assert_eq!(said, [(&"came".into(), &2.into()), (&"went".into(), &1.into())]);
    until("the names", || {
        let names = std::fs::read_to_string(format!("{}.names", log.display())).unwrap_or_default();
        (names == "$(touch x);`id`\nfirst\n").then_some(())
    });
    watch.stop();
}

#[test]
fn commands_that_fail_hang_or_do_not_exist_are_reported() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 3));
    until("it", || server.listed().pop());
    for (command, timeout, said) in [
        ("sh -c 'exit 7'", "1m", "--exec: `sh` ended with exit code 7 (came iceball://127.0.0.1:2)"),
        ("tail -f /dev/null", "300ms", "--exec: `tail` was ended after 300ms (came iceball://127.0.0.1:2)"),
        ("/nowhere/at-all", "1m", "--exec: cannot run `/nowhere/at-all`: No such file"),
    ] {
        let arguments = ["--exec", command, "--exec-timeout", timeout, "--not-empty"];
        let (watch, mut lines) = Watch::start(&web(&server), &arguments);
        let line = next_line(&mut lines);
        assert!(line.contains("came    iceball://127.0.0.1:1"), "{line}");
        game.announce(&announcement(b"second", 2, 4));
        watch.until_it_says(said);
        watch.stop();
        game.announce(&announcement(b"second", 2, 0));
        until("nobody on it", || {
            // In the list: what is known of a server alone may be newer.
            let is_empty = |server: &serde_json::Value| server["port"] == 2 && server["players_current"] == 0;
            server.listed().iter().any(is_empty).then_some(())
        });
    }
}

#[test]
fn several_masters_in_lines() {
    let (one, two) = (Server::start(&[]), Server::start(&[]));
    for server in [&one, &two] {
        Game::new(server.address("iceball.listen")).announce(&announcement(b"on both", 1, 3));
        until("it", || server.listed().pop());
    }
    let (nobody, two_web) = ("http://127.0.0.1:1", web(&two));
    let (watch, mut lines) = Watch::start(&web(&one), &[nobody, &two_web, "--format", "json"]);
    let event: serde_json::Value = serde_json::from_str(&next_line(&mut lines)).unwrap();
    assert_eq!(event["masters"], serde_json::json!([web(&one), two_web]), "{event}");
    watch.until_it_says("http://127.0.0.1:1: cannot connect");
    Game::new(two.address("iceball.listen")).announce(&announcement(b"on one", 2, 3));
    let event: serde_json::Value = serde_json::from_str(&next_line(&mut lines)).unwrap();
    assert_eq!((&event["event"], &event["masters"]), (&"came".into(), &serde_json::json!([two_web])), "{event}");
    let said = watch.stop();
    assert_eq!(said.matches("cannot connect").count(), 1, "{said}");
}

#[test]
fn mistakes_are_explained() {
    let seventeen: Vec<String> = (1..=17).map(|port| format!("http://127.0.0.1:{port}")).collect();
    let too_many: Vec<&str> = ["watch"].into_iter().chain(seventeen.iter().map(String::as_str)).collect();
    for (arguments, code, said) in [
        (&too_many[..], 2, "at most 16"),
        (&["watch", "http://127.0.0.1:1", "http://127.0.0.1:1"], 2, "http://127.0.0.1:1 is given twice"),
        (&["watch", "http://127.0.0.1:1", "http://127.0.0.1:2"], 3, "cannot connect"),
        (&["watch", "http://127.0.0.1:1", "--game", "x"], 2, "--game cannot choose"),
        (&["watch", "http://127.0.0.1:1", "--exec", "sh -c 'x"], 2, "is not closed"),
        (&["watch", "http://127.0.0.1:1", "--exec-timeout", "5s"], 2, "--exec <COMMAND>"),
        (&["watch"], 2, "<URL>"),
        (&["watch", "http://127.0.0.1:1"], 3, "cannot connect"),
        (&["watch", "http://127.0.0.1:1", "--every", "10ms"], 2, "at least 1s"),
        (&["watch", "gopher://127.0.0.1"], 2, "gopher"),
    ] {
        let output = command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
}

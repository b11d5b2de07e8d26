//! `rallypoint watch` without a terminal: one line per change. `screen.rs` has the rest.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::netpanzer::{Tank, say};
use crate::support::*;

/// A running `watch`. It is killed when the test ends.
struct Watch {
    child: Child,
    /// Its stderr.
    said: Arc<Mutex<String>>,
}

impl Watch {
    fn start(url: &str, arguments: &[&str]) -> (Watch, BufReader<ChildStdout>) {
        let mut watch = command();
        watch.args(["watch", url, "--every", "1s"]).args(arguments);
        let mut child = watch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let said = Arc::<Mutex<String>>::default();
        let (stderr, heard) = (BufReader::new(child.stderr.take().unwrap()), said.clone());
        // This thread ends with the program.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                heard.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        (Watch { child, said }, lines)
    }

    fn until_it_says(&self, text: &str) {
        until(text, || self.said.lock().unwrap().contains(text).then_some(()));
    }

    /// Stops it with a signal; returns its stderr.
    fn stop(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let status = until("its end", || self.child.try_wait().unwrap());
        let said = self.said.lock().unwrap().clone();
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
    let server = Server::start(&[]);
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
fn mistakes_are_explained() {
    for (arguments, code, said) in [
        (&["watch"][..], 2, "<URL>"),
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

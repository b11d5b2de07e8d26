//! Our own commands as a user runs them: simulated servers, and what list, query and export print.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::*;

/// A running command. It is killed when the test ends.
pub struct Running {
    child: Child,
    stdout: Option<BufReader<std::process::ChildStdout>>,
    log: Log,
}

impl Running {
    pub fn start(arguments: &[&str]) -> Running {
        let mut command = command();
        command.args(arguments);
        Running::of(command, Stdio::piped())
    }

    /// Reads its stdout, if that is a pipe.
    pub fn of(mut command: Command, stdout: impl Into<Stdio>) -> Running {
        let log = Log::new();
        command.stdin(Stdio::null()).stdout(stdout).stderr(log.end());
        Running::logging(command, log)
    }

    /// Its stdin, stdout and stderr are set already.
    pub fn logging(mut command: Command, log: Log) -> Running {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        Running { child, stdout, log }
    }

    pub fn log(&self) -> String {
        self.log.text()
    }

    pub fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.len() < count {
            let mut line = String::new();
            let stdout = self.stdout.as_mut().unwrap();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "ended early:\n{}", self.log());
            lines.push(line.trim().to_string());
        }
        lines
    }

    /// Interrupts it as Ctrl-C does; returns its exit code.
    pub fn interrupt(mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
        self.end()
    }

    /// Waits for its end.
    pub fn end(&mut self) -> Option<i32> {
        until("the program to end", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Simulated servers, and their addresses as printed.
pub fn simulate(game: &str, count: usize, more: &[&str]) -> (Running, Vec<String>) {
    let number = count.to_string();
    let mut running = Running::start(&[&["simulate", game, "--count", &number], more].concat());
    let addresses = running.lines(count);
    (running, addresses)
}

pub fn run(arguments: &[&str]) -> Output {
    command().args(arguments).stdin(Stdio::null()).output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The command ends with this exit code; returns stdout and stderr.
pub fn ends(code: i32, arguments: &[&str]) -> (String, String) {
    let output = run(arguments);
    let (stdout, stderr) = (text(&output.stdout).to_string(), text(&output.stderr).to_string());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains('\u{1b}') && !stdout.contains('\u{1b}'), "{stderr}");
    (stdout, stderr)
}

pub fn json(arguments: &[&str]) -> Vec<Value> {
    let (stdout, _) = ends(0, &[arguments, &["--format", "json"]].concat());
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let servers = json["servers"].as_array().unwrap().clone();
    assert_eq!(json["total"], servers.len());
    servers
}

/// `ip:port` of a server in JSON.
pub fn place(server: &Value) -> String {
    let (address, port) = (server["address"].as_str().unwrap(), &server["port"]);
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

pub fn places(servers: &[Value]) -> HashSet<String> {
    servers.iter().map(place).collect()
}

/// All servers, of every game.
pub fn listed(server: &Server) -> Vec<Value> {
    server.json("/api/v1/servers?limit=1000")["servers"].as_array().unwrap().clone()
}

/// Pretend games that are listed at their own master, and the addresses that they printed, without their scheme.
pub fn announced(game: &str, server: &Server, count: usize, more: &[&str]) -> (Running, HashSet<String>) {
    let (scheme, master) = (format!("{game}://"), server.address(&format!("{game}.listen")));
    let (games, addresses) = simulate(game, count, &[&["--announce", &format!("{scheme}{master}")], more].concat());
    until("all of them to be listed", || (listed(server).len() == count).then_some(()));
    let addresses = addresses.iter().map(|address| address.strip_prefix(&scheme).unwrap().to_string());
    (games, addresses.collect())
}

/// The `server` elements of an XML file, each as its attributes.
pub fn xml(text: &str) -> Vec<std::collections::HashMap<String, String>> {
    let document = roxmltree::Document::parse(text).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "serverlist");
    assert!(root.attribute("localtime").is_some() && root.attribute("gmtime").is_some());
    let servers = root.children().filter(|node| node.is_element());
    servers.map(|server| server.attributes().map(|a| (a.name().into(), a.value().into())).collect()).collect()
}

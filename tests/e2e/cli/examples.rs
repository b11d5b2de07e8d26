//! The examples in `examples/`: small launchers in three languages, each run against a real master.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::support::commands::simulate;
use crate::support::*;
use crate::web::api::three;

/// A launcher that runs. Killed when dropped.
struct Launcher(Child, Lines<BufReader<ChildStdout>>);

impl Launcher {
    fn start(mut command: Command, server: &Server) -> Launcher {
        command.arg(format!("http://{}", server.address("web.listen"))).args(["game=iceball", "not_empty=1"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Launcher(child, lines)
    }

    fn line(&mut self) -> String {
        self.1.next().expect("another line").unwrap()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn launches(command: Command) {
    let server = Server::start(&[]);
    three(&server);
    let mut launcher = Launcher::start(command, &server);
    let both = ["Alpha 64/64 iceball://127.0.0.1:2", "gamma 5/64 iceball://127.0.0.1:3"];
    assert_eq!([launcher.line(), launcher.line()], both.map(|line| format!("= {line}")));
    let mut followed = [launcher.line(), launcher.line()];
    followed.sort();
    assert_eq!(followed, both.map(|line| format!("+ {line}")));
    // One begins to match, changes, and no longer matches.
    let game = Game::new(server.address("iceball.listen"));
    for (players, expected) in [(1, "+ beta 1/64"), (2, "* beta 2/64"), (0, "- beta 2/64")] {
        game.announce(&announcement(b"beta", 1, players));
        assert_eq!(launcher.line(), format!("{expected} iceball://127.0.0.1:1"));
    }
}

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let lines = std::fs::read_to_string(&path).unwrap().lines().count();
    assert!(lines < 100, "{name} has {lines} lines");
    path.display().to_string()
}

#[test]
#[ignore = "needs node"]
fn the_launcher_in_javascript() {
    let mut command = Command::new("node");
    command.arg(example("launcher.mjs"));
    launches(command);
}

#[test]
#[ignore = "needs python3"]
fn the_launcher_in_python() {
    let mut command = Command::new("python3");
    command.arg(example("launcher.py"));
    launches(command);
}

/// Builds an example, unless `cargo test` has done so already.
fn built(name: &str) -> PathBuf {
    example(&format!("{name}.rs"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--example", name, "--target-dir"]).arg(target);
    // What cargo tells its tests, and what reports their times: some dependencies are built again when these change.
    let is_of_tests =
        |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_", "RUSTC_"].iter().any(|start| name.starts_with(start));
    std::env::vars().filter(|(name, _)| is_of_tests(name)).for_each(|(name, _)| _ = build.env_remove(name));
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().unwrap().success());
    target.join("debug/examples").join(name)
}

#[test]
fn the_launcher_in_rust() {
    launches(Command::new(built("launcher")));
}

#[test]
fn the_library_asks_servers_without_the_program() {
    let ask = built("ask");
    let (_servers, urls) = simulate("netpanzer", 2, &[]);
    let addresses: Vec<&str> = urls.iter().map(|url| url.strip_prefix("netpanzer://").unwrap()).collect();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = socket.local_addr().unwrap().to_string();
    let output = Command::new(&ask).arg("netpanzer").args(&addresses).arg(&silent).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for address in &addresses {
        let line = text.lines().find(|line| line.starts_with(&format!("{address}: "))).expect("an answer of each");
        assert!(line.contains(" players on "), "{text}");
    }
    assert!(text.contains(&format!("{silent}: no answer\n")), "{text}");
}

/// The codecs and the asker come without the program and what it depends on; `.ci/run` builds them like this.
#[test]
fn launchers_get_no_heavy_dependencies() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--no-default-features", "--edges", "normal", "--prefix", "none", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let tree = String::from_utf8(tree.stdout).unwrap();
    assert!(tree.contains("arrayvec"), "{tree}");
    for heavy in ["tokio", "hyper", "rusqlite", "async-nats", "clap", "rustls"] {
        assert!(!tree.lines().any(|line| line.starts_with(&format!("{heavy} "))), "{heavy} is not for launchers");
    }
}

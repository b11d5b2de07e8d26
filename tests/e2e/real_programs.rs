//! The real programs, from Debian: netPanzer's server and bot, and qstat. netPanzer's ports are fixed, so they run in a
//! network namespace of their own, and so does this test.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::machines::{Own, inside};
use crate::support::*;

/// A program that is ended with the test.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Program {
        let what = format!("{command:?}");
        // netPanzer reads its console: an open pipe keeps it quiet.
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Program(child.unwrap_or_else(|error| panic!("{what}: {error}. Install Debian's netpanzer and qstat")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn netpanzer(home: &Path) -> Command {
    let mut command = Command::new("/usr/games/netpanzer");
    command.env("HOME", home).env("SDL_VIDEODRIVER", "dummy").env("SDL_AUDIODRIVER", "dummy");
    command
}

fn quakestat(arguments: &[&str]) -> String {
    let output = Command::new("quakestat").args(arguments).output().expect("quakestat, from Debian's qstat");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn netpanzers_server_and_bot_and_qstat() {
    if !inside(Own::Network, "real_programs::netpanzers_server_and_bot_and_qstat") {
        return;
    }
    let server = Server::start(&["netpanzer.listen=127.0.0.1:28900", "probe.every=1s", "probe.misses=2"]);
    let folder = Folder::new("netpanzer");
    let homes = ["server", "bot"].map(|name| {
        let home = folder.path().join(name);
        std::fs::create_dir_all(&home).unwrap();
        home
    });
    let game = Program::start(netpanzer(&homes[0]).args([
        "--dedicated",
        "--port=3030",
        "--master_server=127.0.0.1",
        "--debug",
    ]));
    until("the game on the page", || server.get("/").text().contains("data-game=\"netpanzer\"").then_some(()));
    let master = ["-netpm,netpanzer", "127.0.0.1", "-R"];
    let seen = until("qstat to show it", || Some(quakestat(&master)).filter(|text| text.contains("127.0.0.1:3030")));
    assert!(seen.contains("gamename=netpanzer") && seen.contains("0/8"), "{seen}");

    let bot = Program::start(netpanzer(&homes[1]).args(["--bot=127.0.0.1", "--master_server=none"]));
    until("the bot to count as a player", || server.get("/").text().contains(">1/8<").then_some(()));
    assert!(quakestat(&master).contains("1/8"));
    drop(bot);
    drop(game);
    until("the game to be gone", || (!server.get("/").text().contains("data-game=\"netpanzer\"")).then_some(()));
    let gone = quakestat(&master);
    assert!(!gone.contains("127.0.0.1:3030"), "{gone}");
}

//! netPanzer's server and bot, and qstat, from Debian. netPanzer's ports are fixed, so the test runs in its own network
//! namespace.

use std::path::Path;
use std::process::Command;

use crate::support::documents::game_lines;
use crate::support::machines::{Own, inside};
use crate::support::programs::{Program, quakestat};
use crate::support::*;

fn netpanzer(home: &Path) -> Command {
    let mut command = Command::new("/usr/games/netpanzer");
    command.env("HOME", home).env("SDL_VIDEODRIVER", "dummy").env("SDL_AUDIODRIVER", "dummy");
    command
}

#[test]
#[ignore = "needs netpanzer, qstat and network namespaces"]
fn netpanzers_server_and_bot_and_qstat() {
    if !inside(Own::Network, "protocols::netpanzer_programs::netpanzers_server_and_bot_and_qstat") {
        return;
    }
    let server = Server::start(&["netpanzer.listen=127.0.0.1:28900", "probe.every=1s", "probe.misses=2"]);
    let folder = Folder::new("netpanzer");
    let start = |name: &str, arguments: &[&str]| {
        let home = folder.path().join(name);
        std::fs::create_dir_all(&home).unwrap();
        Program::start(netpanzer(&home).args(arguments), &folder, name, "netpanzer")
    };
    // The lines of the book name another master besides this one.
    let lines = game_lines("netpanzer", "lua", "127.0.0.1").replace(", masterserver.netpanzer.org", "");
    let config = folder.path().join("server/.netpanzer/config");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("server.cfg"), lines).unwrap();
    let game = start("server", &["--dedicated", "--port=3030", "--debug"]);
    until("the game on the page", || server.get("/").text().contains("data-game=\"netpanzer\"").then_some(()));
    let master = ["-netpm,netpanzer", "127.0.0.1", "-R"];
    let seen = until("qstat to show it", || Some(quakestat(&master)).filter(|text| text.contains("127.0.0.1:3030")));
    assert!(seen.contains("gamename=netpanzer") && seen.contains("0/8"), "{seen}");

    let bot = start("bot", &["--bot=127.0.0.1", "--master_server=none"]);
    until("the bot to count as a player", || server.get("/").text().contains(">1/8<").then_some(()));
    assert!(quakestat(&master).contains("1/8"));
    drop(bot);
    drop(game);
    until("the game to be gone", || (!server.get("/").text().contains("data-game=\"netpanzer\"")).then_some(()));
    let gone = quakestat(&master);
    assert!(!gone.contains("127.0.0.1:3030"), "{gone}");
}

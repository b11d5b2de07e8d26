//! What a player does with `rallypoint watch` on a terminal: several masters, favourites, joining, copying, the mouse.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use crate::support::history::{data_dir, folder_with_a_week};
use crate::support::netpanzer::{Tank, say};
use crate::support::pty::Pty;
use crate::support::*;

fn web(server: &Server) -> String {
    format!("http://{}", server.address("web.listen"))
}

fn announce(server: &Server, name: &str, port: u16, players: u16) {
    Game::new(server.address("iceball.listen")).announce(&announcement(name.as_bytes(), port, players));
}

/// Lists a netPanzer server.
fn tank(server: &Server) -> Tank {
    let tank = Tank::new();
    say(server, &format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", tank.port));
    until("it", || (server.json("/api/v1/servers")["total"] == 1).then_some(()));
    tank
}

#[test]
fn several_masters_are_one_list_and_one_that_fails_stops_no_other() {
    let (one, two) = (Server::start(&[]), Server::start(&[]));
    for server in [&one, &two] {
        announce(server, "on both", 1, 5);
    }
    announce(&two, "on the second", 2, 4);
    until("all", || (one.listed().len() == 1 && two.listed().len() == 2).then_some(()));
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch_with(&[&web(&one), &web(&two)], &[]);
    let screen = pty.until("both", |screen| screen.contains("on both") && screen.contains("on the second"));
    assert!(screen.contains(&format!("1 {}  2 {}", web(&one), web(&two))), "{screen}");
    assert!(screen.contains("2 servers, 9 players"), "{screen}");
    until("the masters of each", || {
        let ends = |name: &str, end: &str| pty.lines_with(name).iter().any(|line| line.trim_end().ends_with(end));
        (ends("on both", " 1 2") && ends("on the second", " 2")).then_some(())
    });

    let second = two.address("web.listen");
    drop(two);
    pty.shows("failed and is tried again");
    announce(&one, "Newcomer", 3, 9);
    let screen = pty.shows("Newcomer");
    assert!(screen.contains("on the second"), "its last list stays: {screen}");
    let _two = Server::start(&[&format!("web.listen={second}")]);
    pty.until("the second again", |screen| !screen.contains("tried again") && !screen.contains("on the second"));
    pty.press("q");
    watch.end();
}

#[test]
fn favourites_are_on_top_and_survive() {
    let server = Server::start(&[]);
    for (name, port, players) in [("many", 1, 30), ("few", 2, 2)] {
        announce(&server, name, port, players);
    }
    until("both", || (server.listed().len() == 2).then_some(()));
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&web(&server));
    let order = |pty: &Pty| {
        let screen = pty.text();
        Some(screen.find("few")? < screen.find("many")?)
    };
    until("the one with most players first", || (order(&pty) == Some(false)).then_some(()));
    pty.press("\x1b[F*"); // End
    pty.shows("★ few");
    pty.shows("127.0.0.1:2 is a favourite");
    assert_eq!(order(&pty), Some(true), "{}", pty.text());
    pty.press("q");
    watch.end();
    let file = pty.config.path().join("rallypoint/favourites");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "iceball://127.0.0.1:2\n");

    // The next time, with a file that the user has edited.
    std::fs::write(&file, "# mine\niceball://127.0.0.1:2\n").unwrap();
    let mut watch = pty.watch(&web(&server));
    pty.until("it on top again", |screen| screen.contains("★ few"));
    assert_eq!(order(&pty), Some(true), "{}", pty.text());
    pty.press("*"); // the first one
    pty.shows("no favourite any more");
    until("the order without it", || (order(&pty) == Some(false)).then_some(()));
    pty.press("q");
    watch.end();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n");
}

#[test]
fn countries_and_both_pings_have_columns() {
    let places = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/places.mmdb");
    let server = Server::start(&[&format!("geo.database={}", places.display())]);
    let tank = tank(&server);
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&web(&server));
    let is_whole = |line: &String| line.contains(" DE ") && line.matches(" ms").count() == 2;
    until("the country, the ping from here and the master's", || {
        pty.lines_with(&format!("127.0.0.1:{}", tank.port)).iter().any(is_whole).then_some(())
    });
    let titles = pty.lines_with("Ping here");
    assert!(titles.iter().any(|line| line.contains("CC") && line.contains("Master's")), "{titles:?}");
    pty.press("\r");
    let screen = pty.shows("ping from here");
    assert!(screen.contains("master's ping") && screen.contains("country           DE"), "{screen}");
    pty.press("q");
    watch.end();
}

/// A folder with a program of this name that writes its arguments to a file.
fn game(folder: &Folder, name: &str) -> String {
    let script =
        format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > {0}/new && mv {0}/new {0}/arguments\n", folder.path().display());
    folder.program(folder.write("script", &script), name);
    format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap())
}

/// A master that answers every request with these servers. It ends with the test's process.
fn hostile(rows: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let body = format!(r#"{{"serial":1,"total":1,"servers":[{rows}]}}"#);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn joining_runs_our_own_command_and_never_the_masters() {
    let folder = Folder::new("joining");
    let owned = folder.path().join("owned");
    let evil = format!("touch {}", owned.display());
    let row = serde_json::json!({
        "protocol": "netpanzer", "game": "netpanzer", "address": "203.0.113.5", "port": 3030,
        "name": "\u{1b}]52;c;b3duZWQ=\u{7}evil", "country": "\u{1b}c", "mode": format!("$({evil})"),
        "players_current": 1, "join": {"command": evil, "link": evil},
    });
    let path = game(&folder, "netpanzer");
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch_with(&[&hostile(row.to_string()), "--no-query"], &[("PATH", &path)]);
    pty.shows("evil");
    pty.press("J");
    pty.shows("Run this? y n: netpanzer --connect=203.0.113.5:3030");
    pty.press("n");
    pty.shows("q quit");
    assert!(!folder.path().join("arguments").exists(), "it was not wanted");
    pty.press("Jy");
    pty.shows("Started netpanzer --connect=203.0.113.5:3030");
    let arguments = until("the game", || std::fs::read_to_string(folder.path().join("arguments")).ok());
    assert_eq!(arguments, "--connect=203.0.113.5:3030\n");
    // Copies are the address, and the command as we write it.
    pty.press("c");
    pty.shows("Copied 203.0.113.5:3030");
    until("the address", || pty.has_written("\x1b]52;c;MjAzLjAuMTEzLjU6MzAzMA==\x07").then_some(()));
    pty.press("y");
    pty.shows("Copied netpanzer --connect=203.0.113.5:3030");
    pty.press("q");
    watch.end();
    assert!(!owned.exists() && !pty.has_written("\x1b]52;c;b3duZWQ=") && !pty.has_written("\x1bc"));
}

#[test]
fn a_game_that_is_not_installed_is_named() {
    let server = Server::start(&[]);
    announce(&server, "here", 1, 9);
    until("it", || server.listed().pop());
    let mut pty = Pty::new(24, 80);
    let nowhere = Folder::new("no-games");
    let setsid = nowhere.path().join("setsid");
    std::os::unix::fs::symlink("/usr/bin/setsid", setsid).unwrap();
    let mut watch = pty.watch_with(&[&web(&server)], &[("PATH", nowhere.path().to_str().unwrap())]);
    pty.shows("here");
    pty.press("J\r");
    pty.shows("iceball is not installed, or not in PATH; y copies how to join");
    pty.press("y");
    until("the link", || pty.has_written("\x1b]52;c;aWNlYmFsbDovLzEyNy4wLjAuMTox\x07").then_some(()));
    pty.press("q");
    watch.end();
}

#[test]
fn clicks_select_and_sort_and_the_mouse_is_given_back() {
    let server = Server::start(&[]);
    for (name, port, players) in [("zeta", 1, 30), ("beta", 2, 20), ("alpha", 3, 10)] {
        announce(&server, name, port, players);
    }
    until("all", || (server.listed().len() == 3).then_some(()));
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&web(&server));
    pty.shows("alpha");
    let place = |pty: &Pty, text: &str| {
        let screen = pty.text();
        let (row, line) = screen.lines().enumerate().find(|(_, line)| line.contains(text)).unwrap();
        (line.find(text).unwrap() + 1, row + 1)
    };
    let (column, row) = place(&pty, "beta");
    pty.click(column, row);
    pty.press("\r");
    pty.shows("iceball://127.0.0.1:2");
    pty.press("\x1b");
    pty.until("the list alone", |screen| !screen.contains("iceball://127.0.0.1:2"));
    let (column, row) = place(&pty, "Server ");
    pty.click(column, row);
    pty.shows("by name");
    until("the order of names", || (place(&pty, "alpha").1 < place(&pty, "beta").1).then_some(()));
    pty.press("\x1b[<65;5;5M\r"); // the wheel
    pty.shows("iceball://127.0.0.1:1");
    assert!(pty.has_written("\x1b[?1000h\x1b[?1006h") && !pty.has_written("\x1b[?1000l"));
    pty.press("m");
    until("the terminal's own mouse", || pty.has_written("\x1b[?1000l").then_some(()));
    pty.press("mq");
    watch.end();
    until("the terminal given back", || pty.is_given_back().then_some(()));
}

#[test]
fn the_last_day_of_the_selected_server() {
    let at = SocketAddr::from(([127, 0, 0, 1], 1));
    let folder = folder_with_a_week("watched-history", &[("iceball", at, 40)]);
    let server = Server::start(&[&data_dir(&folder)]);
    announce(&server, "old", 1, 9);
    announce(&server, "new", 2, 3);
    until("both", || (server.listed().len() == 2).then_some(()));
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&web(&server));
    let screen = pty.shows("Players in 24 h ");
    let line = screen.lines().find(|line| line.contains("Players in")).unwrap().to_string();
    assert!(line.matches(['▃', '▄', '▅', '▆', '▇', '█']).count() >= 10 && line.contains(" most "), "{line}");
    pty.press("\x1b[B"); // Down
    pty.until("another line for the other server", |screen| !screen.contains(line.trim_end()));
    pty.press("q");
    watch.end();
}

#[test]
fn a_terminal_without_unicode_gets_none() {
    let server = Server::start(&[]);
    announce(&server, "Grüße", 1, 9);
    until("it", || server.listed().pop());
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch_with(&[&web(&server)], &[("LC_ALL", "C")]);
    pty.shows("Gr??e");
    pty.press("\r*?");
    let screen = pty.shows("Ctrl-Z");
    assert!(screen.is_ascii(), "{screen}");
    pty.press("?q");
    watch.end();
}

#[test]
fn commands_run_beside_the_screen() {
    let server = Server::start(&[]);
    announce(&server, "first", 1, 3);
    until("it", || server.listed().pop());
    let folder = Folder::new("exec-screen");
    let log = folder.path().join("log");
    let script =
        format!("sh -c 'echo noise; echo \"$RALLYPOINT_EVENT $RALLYPOINT_NAME\" >> {}; exit 4'", log.display());
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch_with(&[&web(&server), "--exec", &script], &[]);
    pty.shows("first");
    announce(&server, "Newcomer", 2, 9);
    pty.shows("--exec: `sh` ended with exit code 4 (came iceball://127.0.0.1:2)");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "came Newcomer\n", "the first list is no change");
    assert!(!pty.text().contains("noise"), "{}", pty.text());
    pty.press("q");
    watch.end();
}

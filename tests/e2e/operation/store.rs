//! Persistence: kill -9, restarts, backups, a full disk, and history over HTTP.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nix::sys::signal::Signal;
use rusqlite::{Connection, OpenFlags};

use crate::support::machines::{Own, inside};
use crate::support::*;

fn data_dir(folder: &Folder) -> String {
    format!("data_dir={}", folder.path().join("data").display())
}

fn file(folder: &Folder) -> std::path::PathBuf {
    folder.path().join("data/rallypoint.db")
}

/// Opens a database that may be in use.
fn look(path: &Path) -> Option<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()
}

/// The names of the servers in a database; none if it does not exist.
fn kept(path: &Path) -> BTreeSet<String> {
    let names = |connection: Connection| -> rusqlite::Result<BTreeSet<String>> {
        let mut select = connection.prepare("SELECT name FROM servers")?;
        select.query_map([], |row| row.get(0))?.collect()
    };
    look(path).and_then(|connection| names(connection).ok()).unwrap_or_default()
}

fn listed(server: &Server) -> BTreeSet<String> {
    server.listed().into_iter().map(|row| row["name"].as_str().unwrap().to_string()).collect()
}

fn announce(server: &Server, port: u16) {
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(format!("server {port}").as_bytes(), port, port % 64));
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = command().args(arguments).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_kill_at_any_time_loses_nothing_that_was_written() {
    let folder = Folder::new("kill");
    let set = [&*data_dir(&folder), "guard.max_servers_per_ip=60000"];
    let mut port = 0u16;
    let mut written = BTreeSet::new();
    for round in 0..6 {
        let server = Server::start(&set);
        assert_eq!(listed(&server), kept(&file(&folder)), "round {round}: listed at once");
        let (done, is_done) = mpsc::channel::<()>();
        let announced = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (port, server, announced) = (&mut port, &server, &announced);
            scope.spawn(move || {
                let game = Game::new(server.address("iceball.listen"));
                // With a pause before each: the number of ports is limited.
                while is_done.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                    *port += 1;
                    game.announce(&announcement(format!("server {port}").as_bytes(), *port, 1));
                    announced.fetch_add(1, Ordering::Relaxed);
                }
            });
            let enough = written.len() + 10;
            until("some to be written", || (kept(&file(&folder)).len() >= enough).then_some(()));
            // Between two writes or during one: a little later in each round.
            let later = announced.load(Ordering::Relaxed) + round * 60;
            until("some more announcements", || (announced.load(Ordering::Relaxed) >= later).then_some(()));
            written.extend(kept(&file(&folder)));
            drop(done);
        });
        server.signal(Signal::SIGKILL);
        server.end();
        let connection = Connection::open(file(&folder)).unwrap();
        let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        drop(connection);
        let now = kept(&file(&folder));
        assert!(written.is_subset(&now), "round {round} lost {:?}", written.difference(&now));
    }
}

#[test]
fn a_restart_keeps_the_list_with_lives_and_first_seen() {
    let folder = Folder::new("restart");
    let set = [&*data_dir(&folder), "iceball.life=6s"];
    let server = Server::start(&set);
    announce(&server, 1);
    until("the server", || server.listed().pop());
    let first_seen = |server: &Server| {
        let page = server.get("/");
        let page = page.text();
        page.match_indices("datetime=\"").map(|(at, _)| page[at + 10..at + 30].to_string()).next()
    };
    let seen = first_seen(&server);
    let before = server.listed();
    server.signal(Signal::SIGTERM);
    let (status, log) = server.end();
    assert!(status.success(), "{log}");

    let mut server = Server::start(&set);
    assert_eq!(server.listed(), before, "{}", server.log());
    assert_eq!(first_seen(&server), seen);
    server.wait_for_log("restored 1 servers");
    until("its life to end as without the restart", || server.listed().is_empty().then_some(()));
    until("the file to be updated", || kept(&file(&folder)).is_empty().then_some(()));
    server.signal(Signal::SIGKILL);
    server.end();
    assert_eq!(Server::start(&set).listed().len(), 0);
}

#[test]
fn a_folder_is_used_by_one_process_only() {
    let folder = Folder::new("own");
    let set = data_dir(&folder);
    let server = Server::start(&[&set]);
    let listen: Vec<String> = LISTENERS.iter().flat_map(|key| ["--set".into(), format!("{key}=127.0.0.1:0")]).collect();
    let start = |set: &str| {
        let mut arguments = vec!["serve", "--set", set];
        arguments.extend(listen.iter().map(String::as_str));
        run(&arguments)
    };
    let (code, says) = start(&set);
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("data_dir: ") && says.contains("in use by another rallypoint (process "), "{says}");
    drop(server);
    let plain = folder.write("plain", "a file");
    let (code, says) = start(&format!("data_dir={}/below", plain.display()));
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("data_dir: ") && says.contains("cannot write to "), "{says}");

    Connection::open(file(&folder)).unwrap().pragma_update(None, "user_version", 1000).unwrap();
    let (code, says) = start(&set);
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("written by a newer rallypoint"), "{says}");
}

#[test]
fn a_damaged_file_is_set_aside_and_the_server_starts() {
    let folder = Folder::new("damaged");
    std::fs::create_dir_all(folder.path().join("data")).unwrap();
    folder.write("data/rallypoint.db", &"no database ".repeat(1_000));
    let mut server = Server::start(&[&data_dir(&folder)]);
    server.wait_for_log("the damaged file is now ");
    announce(&server, 1);
    until("the server in the new file", || kept(&file(&folder)).contains("server 1").then_some(()));
    let names = std::fs::read_dir(folder.path().join("data")).unwrap();
    let aside = names.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("damaged"));
    assert_eq!(aside.count(), 1);
}

#[test]
fn damage_that_sqlite_does_not_detect_is_set_aside_too() {
    let flip = |file: &Path| {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[18] ^= 0x04; // a format that only a later SQLite could write
        std::fs::write(file, bytes).unwrap();
    };
    let drop_table = |file: &Path| Connection::open(file).unwrap().execute_batch("DROP TABLE history").unwrap();
    for (name, damage) in [("flipped", &flip as &dyn Fn(&Path)), ("table", &drop_table)] {
        let folder = Folder::new(name);
        let set = [&*data_dir(&folder)];
        let server = Server::start(&set);
        announce(&server, 1);
        until("the server in the file", || kept(&file(&folder)).contains("server 1").then_some(()));
        server.signal(Signal::SIGTERM);
        server.end();
        damage(&file(&folder));
        let server = Server::start(&set);
        assert!(server.log().contains("the damaged file is now "), "{}", server.log());
        announce(&server, 2);
        until("the server in the new file", || kept(&file(&folder)).contains("server 2").then_some(()));
        assert_eq!(server.json("/readyz")["store"]["failing"], false);
    }
}

#[test]
fn a_folder_that_is_removed_is_noticed_and_created_again() {
    let folder = Folder::new("removed");
    let set = [&*data_dir(&folder)];
    let mut server = Server::start(&set);
    announce(&server, 1);
    until("the server in the file", || kept(&file(&folder)).contains("server 1").then_some(()));
    assert!(server.json("/readyz")["store"].get("files_lost").is_none());
    std::fs::remove_dir_all(folder.path().join("data")).unwrap();
    server.wait_for_log("rallypoint.db: removed while in use");
    until("the list in a new file", || kept(&file(&folder)).contains("server 1").then_some(()));
    announce(&server, 2);
    until("the new server, too", || kept(&file(&folder)).contains("server 2").then_some(()));
    let ready = server.json("/readyz");
    assert_eq!((&ready["store"]["failing"], &ready["store"]["files_lost"]), (&false.into(), &1.into()), "{ready}");
    assert!(server.get("/metrics").text().contains("rallypoint_store_files_lost_total 1"));
    assert_eq!(server.log().matches("removed while in use").count(), 1, "{}", server.log());
    let listen: Vec<String> = LISTENERS.iter().flat_map(|key| ["--set".into(), format!("{key}=127.0.0.1:0")]).collect();
    let second: Vec<&str> = ["serve", "--set", set[0]].into_iter().chain(listen.iter().map(String::as_str)).collect();
    let (code, says) = run(&second);
    assert!(code == Some(2) && says.contains("in use by another rallypoint"), "{code:?} {says}");
    server.signal(Signal::SIGKILL);
    server.end();
    assert_eq!(listed(&Server::start(&set)).len(), 2);
}

#[test]
fn a_backup_while_the_server_runs() {
    let folder = Folder::new("backup");
    let set = data_dir(&folder);
    let copy = folder.path().join("copy.db");
    let copy_text = copy.to_str().unwrap();
    let backup = |more: &[&str]| run(&[&["backup", copy_text, "--set", &set], more].concat());

    let (code, says) = backup(&[]);
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("does not exist: give the server's --config"), "{says}");

    let server = Server::start(&[&set]);
    announce(&server, 1);
    until("the server in the file", || kept(&file(&folder)).contains("server 1").then_some(()));
    let (code, says) = backup(&[]);
    assert_eq!(code, Some(0), "{says}");
    assert_eq!(kept(&copy), ["server 1".to_string()].into());
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<BTreeSet<_>>(), ["copy.db".into(), "data".into()].into(), "and nothing beside it");

    let (code, says) = backup(&[]);
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("exists already: name another file, or add --force"), "{says}");
    announce(&server, 2);
    until("the second in the file", || kept(&file(&folder)).contains("server 2").then_some(()));
    assert_eq!(backup(&["--force"]).0, Some(0));
    assert_eq!(kept(&copy).len(), 2);
    let nowhere = run(&["backup", "/nowhere/copy.db", "--set", &set]);
    assert_eq!(nowhere.0, Some(1));
    assert!(nowhere.1.contains("/nowhere/copy.db"), "{}", nowhere.1);
    assert_eq!(run(&["backup", copy_text, "--set", "data_dir="]).0, Some(2));
    drop(server);

    // Restoring the backup.
    let restored = Folder::new("backup-restored");
    std::fs::create_dir_all(restored.path().join("data")).unwrap();
    std::fs::copy(&copy, file(&restored)).unwrap();
    assert_eq!(listed(&Server::start(&[&data_dir(&restored)])).len(), 2);
}

#[test]
#[ignore = "needs mount namespaces"]
fn a_full_disk_is_a_warning_and_writing_goes_on_when_there_is_room() {
    if !inside(Own::Mounts, "operation::store::a_full_disk_is_a_warning_and_writing_goes_on_when_there_is_room") {
        return;
    }
    let folder = Folder::new("full");
    let disk = folder.path().join("data");
    std::fs::create_dir_all(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&disk);
    assert!(mount.status().expect("mount, from Debian's mount").success());

    let set = [&*data_dir(&folder), "guard.max_servers_per_ip=60000"];
    let mut server = Server::start(&set);
    announce(&server, 1);
    until("the first", || kept(&file(&folder)).contains("server 1").then_some(()));
    let ballast = disk.join("ballast");
    let fill = || {
        let mut filler = std::fs::File::create(&ballast).unwrap();
        while std::io::Write::write_all(&mut filler, &[0; 4_096]).is_ok() {}
        filler
    };
    let filler = fill();
    let game = Game::new(server.address("iceball.listen"));
    let mut port = 1;
    until("the warning", || {
        for _ in 0..100 {
            port += 1;
            game.announce(&announcement(format!("server {port}").as_bytes(), port, 1));
        }
        server.log().contains("still serving, but nothing is saved until this is fixed").then_some(())
    });
    assert!(server.log().contains("full"), "{}", server.log());
    until("all to be listed nevertheless", || (server.listed().len() == usize::from(port)).then_some(()));
    assert!(server.get("/metrics").text().contains("rallypoint_store_failing 1"));
    assert_eq!(server.json("/readyz")["store"]["failing"], true);
    drop(filler);
    std::fs::remove_file(&ballast).unwrap();
    server.wait_for_log("written again");
    until("all to be written", || (kept(&file(&folder)).len() == usize::from(port)).then_some(()));
    assert_eq!(server.json("/readyz")["store"]["failing"], false);

    // A start on a full disk lists the servers in the file, and keeps them there.
    let all = listed(&server);
    server.signal(Signal::SIGTERM);
    server.end();
    drop(fill());
    let mut server = Server::start(&set);
    assert_eq!(listed(&server), all);
    assert!(server.log().contains("nothing is saved until this is fixed"), "{}", server.log());
    std::fs::remove_file(&ballast).unwrap();
    server.wait_for_log("written again");
    assert_eq!(kept(&file(&folder)), all);
    let _ = Command::new("umount").arg("-l").arg(&disk).status(); // otherwise the namespace's end unmounts it
}

#[test]
fn history_over_http() {
    let folder = Folder::new("history");
    let server = Server::start(&[&data_dir(&folder), "history.every=1s"]);
    announce(&server, 5);
    until("the server", || server.listed().pop());
    let path = "/api/v1/servers/iceball/127.0.0.1:5/history";
    let history = until("a count", || {
        let answer = server.get(path);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(answer.header("Content-Type"), Some("application/json"));
        let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        (json["points"].as_array().unwrap().len() > 1).then_some(json)
    });
    assert_eq!((&history["game"], &history["endpoint"]), (&"iceball".into(), &"127.0.0.1:5".into()));
    assert_eq!((&history["address"], &history["port"]), (&"127.0.0.1".into(), &5.into()));
    let point = &history["points"][0];
    assert_eq!((point["players"].as_f64(), point["present"].as_f64()), (Some(5.0), Some(1.0)));
    assert!(point["at"].as_str().unwrap().ends_with('Z') && point.get("servers").is_none());
    let game = server.json("/api/v1/history?game=iceball&range=7d");
    assert_eq!((&game["range"], &game["step"]), (&"7d".into(), &300.into()));
    let point = game["points"].as_array().unwrap().last().unwrap();
    assert_eq!((point["players"].as_f64(), point["servers"].is_number()), (Some(5.0), true));

    for (path, status, says) in [
        ("/api/v1/history", 400, "is missing"),
        ("/api/v1/history?game=iceball&range=2d", 400, "must be 24h, 7d, 30d or 1y, not `2d`"),
        ("/api/v1/history?game=iceball&rnage=7d", 400, "is unknown here; known are game, range"),
        ("/api/v1/history?game=nothing", 404, "nothing is known"),
        ("/api/v1/servers/iceball/nonsense/history", 400, "`nonsense` is not an address"),
        ("/api/v1/servers/iceball/192.0.2.1:5/history", 404, "nothing is known"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(answer.header("Content-Type"), Some("application/json"));
        let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert!(json["error"].as_str().unwrap().contains(says), "{path}: {json}");
        assert_eq!(json.get("parameter").is_some(), status == 400, "{path}: {json}");
    }
    let metrics = server.get("/metrics");
    for line in ["rallypoint_store_failing 0", "rallypoint_store_failures_total 0", "rallypoint_store_size_bytes "] {
        assert!(metrics.text().contains(line), "{line} is not in\n{}", metrics.text());
    }
    let without = Server::start(&[]).get("/api/v1/history?game=iceball");
    assert!(without.status() == 404 && without.text().contains("keeps no history"), "{}", without.text());
}

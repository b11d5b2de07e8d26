//! Administration: the operator bans, unlists and hides through the socket while the program runs.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use async_nats::jetstream::stream::{Config, StorageType};
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::Value;

use crate::cluster::buckets::Operator;
use crate::cluster::nodes::{cluster_state, node, wait_for_nodes};
use crate::support::nats::Nats;
use crate::support::*;

/// A server with an admin socket and, in the same folder, its data.
pub struct Administered {
    pub server: Server,
    pub socket: PathBuf,
}

impl Administered {
    fn start(folder: &Folder, set: &[&str]) -> Administered {
        Administered::start_by(folder, set, Server::start)
    }

    fn start_by(folder: &Folder, set: &[&str], start: impl Fn(&[&str]) -> Server) -> Administered {
        let socket = folder.path().join("admin.sock");
        let settings = [
            format!("admin.socket={}", socket.display()),
            format!("data_dir={}", folder.path().join("data").display()),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).chain(set.iter().copied()).collect();
        Administered { server: start(&settings), socket }
    }

    /// Stops it and starts it again with the same data.
    fn restart(self, folder: &Folder, set: &[&str]) -> Administered {
        self.server.signal(Signal::SIGTERM);
        let (status, log) = self.server.end();
        assert!(status.success(), "{log}");
        assert!(!self.socket.exists(), "removed at a clean stop");
        Administered::start(folder, set)
    }

    /// What a command prints.
    fn admin(&self, arguments: &[&str]) -> String {
        admin(&self.socket, arguments)
    }

    fn refuses(&self, arguments: &[&str], says: &str) {
        let output = run(&self.socket, arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?} should say `{says}`: {stderr}");
    }

    fn game(&self, ip: [u8; 4]) -> Game {
        Game::on(self.server.address("iceball.listen"), ip.into())
    }

    /// The addresses on the list.
    fn listed(&self) -> Vec<String> {
        let rows = self.server.listed();
        let mut all: Vec<_> =
            rows.iter().map(|row| format!("{}:{}", row["address"].as_str().unwrap(), row["port"])).collect();
        all.sort();
        all
    }

    fn lists(&self, expected: &[&str]) {
        until(&format!("{expected:?} on the list"), || (self.listed() == expected).then_some(()));
    }

    fn check(&self, address: &str) -> Value {
        self.server.json(&format!("/api/v1/check?game=iceball&address={address}"))
    }

    /// Announces until the doctor has this in its summary.
    fn announced_until(&self, ip: [u8; 4], announcement: &[u8], address: &str, says: &str) {
        let game = self.game(ip);
        game.announce(announcement);
        until(says, || self.check(address)["summary"].as_str().filter(|found| found.contains(says)).map(drop));
    }
}

fn run(socket: &Path, arguments: &[&str]) -> Output {
    command().arg("admin").arg("--socket").arg(socket).args(arguments).output().unwrap()
}

pub fn admin(socket: &Path, arguments: &[&str]) -> String {
    let output = run(socket, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A connection from another loopback address.
fn connect_from(ip: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::from(ip), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Whether connections from an address are closed at once. One that stays open is not.
fn is_turned_away(ip: [u8; 4], to: SocketAddr) -> bool {
    match connect_from(ip, to).read(&mut [0; 10]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_ban_takes_effect_at_once_and_survives_a_restart() {
    let folder = Folder::new("admin-ban");
    let mut master = Administered::start(&folder, &["guard.idle_timeout=1h"]);
    master.game([127, 0, 5, 1]).announce(&announcement(b"to be banned", 1, 0));
    master.game([127, 0, 6, 1]).announce(&announcement(b"stays", 1, 0));
    master.lists(&["127.0.5.1:1", "127.0.6.1:1"]);
    let web = master.server.address("web.listen");
    let mut connected = connect_from([127, 0, 5, 2], web);
    let mut other = connect_from([127, 0, 6, 2], web);
    until("both connections", || master.admin(&["status"]).contains("connections  2").then_some(()));

    let said = master.admin(&["ban", "127.0.5.7/24", "--for", "1h", "--reason", "flood <of> announcements"]);
    assert!(said.starts_with("127.0.5.0/24 is banned until 20"), "{said}");
    assert!(
        said.contains(": flood <of> announcements\nservers taken off the list: 1, connections closed: 1\n"),
        "{said}"
    );
    assert_eq!(connected.read(&mut [0; 10]).unwrap(), 0, "closed");
    master.lists(&["127.0.6.1:1"]);
    other.set_nonblocking(true).unwrap();
    assert!(other.read(&mut [0; 10]).is_err(), "still open");
    // The log names the user.
    let user = nix::unistd::User::from_uid(Uid::current()).unwrap().map(|user| user.name).unwrap();
    master.server.wait_for_log(&format!("INFO admin: {user}: ban 127.0.5.0/24 until 20"));

    // No answers, and no new connections.
    let banned = |master: &Administered| {
        master.game([127, 0, 5, 1]).send(&announcement(b"again", 1, 0));
        let seen = || {
            let seen = master.check("127.0.5.1:1")["seen"].as_array().unwrap().clone();
            seen.iter().any(|event| event["what"] == "banned").then_some(())
        };
        until("the datagram to be dropped", seen);
        assert!(is_turned_away([127, 0, 5, 2], master.server.address("web.listen")));
        assert!(!master.listed().contains(&"127.0.5.1:1".into()));
    };
    banned(&master);

    // The owner asks the doctor from elsewhere: in JSON, in the terminal and on the page.
    let diagnosis = master.check("127.0.5.1:1");
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(summary.starts_with("127.0.5.1 is banned here until 20"), "{summary}");
    assert!(summary.ends_with("Reason: flood <of> announcements"), "{summary}");
    assert_eq!((&diagnosis["kept_off"]["kind"], &diagnosis["listed"]), (&"ban".into(), &false.into()));
    let doctor = command().args(["doctor", &format!("http://{web}"), "iceball", "127.0.5.1:1"]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(1));
    assert!(String::from_utf8(doctor.stdout).unwrap().contains("Reason: flood <of> announcements"));
    let page = master.server.get("/doctor?game=iceball&address=127.0.5.1:1");
    assert!(page.text().contains("flood &lt;of&gt; announcements"), "{}", page.text());

    // After a restart, and for the rest of its time.
    let until_before = diagnosis["kept_off"]["until"].clone();
    let mut master = master.restart(&folder, &["guard.bans=198.51.100.0/24"]);
    master.lists(&["127.0.6.1:1"]);
    assert_eq!(master.check("127.0.5.1:1")["kept_off"]["until"], until_before);
    banned(&master);
    let bans = master.admin(&["bans"]);
    let rows: Vec<Vec<&str>> = bans.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SUBJECT", "UNTIL", "BY", "REASON"]);
    assert_eq!(rows[1], ["198.51.100.0/24", "-", "configuration"], "{bans}");
    assert_eq!((rows[2][0], rows[2][2], rows[2][3]), ("127.0.5.0/24", &*user, "flood"), "{bans}");

    // And until it is lifted.
    master.refuses(&["unban", "127.0.5.1"], "127.0.5.1 is not banned by itself, but 127.0.5.0/24 is");
    master.refuses(&["unban", "198.51.100.0/24"], "banned by the configuration: change guard.bans");
    assert_eq!(master.admin(&["unban", "127.0.5.0/24"]), "127.0.5.0/24 is no longer banned\n");
    master.refuses(&["unban", "127.0.5.0/24"], "127.0.5.0/24 is not banned");
    master.game([127, 0, 5, 1]).announce(&announcement(b"forgiven", 1, 0));
    master.lists(&["127.0.5.1:1", "127.0.6.1:1"]);
    master = master.restart(&folder, &[]);
    assert_eq!(master.admin(&["bans"]), "none\n");
    master.lists(&["127.0.5.1:1", "127.0.6.1:1"]);
}

#[test]
fn networks_and_games_show_who_fills_the_list() {
    let folder = Folder::new("admin-networks");
    let master = Administered::start(&folder, &[]);
    assert_eq!(master.admin(&["networks"]), "none\n");
    master.refuses(&["game", "iceball"], "no server of `iceball` is listed");
    master.refuses(&["networks", "--game", "chess"], "no server of `chess` is listed");
    // Fakes of one /24, and two others, of which one has most of the players.
    for host in 1..=3 {
        let fakes = master.game([127, 66, 7, host]);
        (1..=4).for_each(|port| fakes.announce(&announcement(b"fake", port, 0)));
    }
    master.game([127, 8, 8, 1]).announce(&announcement(b"busy", 1, 30));
    master.game([127, 9, 9, 1]).announce(&announcement(b"calm", 1, 2));
    until("all of them", || (master.listed().len() == 14).then_some(()));

    let shown = |arguments: &[&str]| -> Vec<Vec<String>> {
        let text = master.admin(arguments);
        text.lines().map(|line| line.split_whitespace().map(String::from).collect()).collect()
    };
    // Without the memory, which is another test's.
    let rows = |arguments: &[&str]| -> Vec<String> {
        shown(arguments).iter().map(|row| [&row[..4], &row[6.min(row.len() - 1)..]].concat().join(" ")).collect()
    };
    let fakes = ["127.66.7.0/24 86% 12 0 cookie 12", "127.66.7.3/32 29% 4 0 cookie 4"];
    let by_servers = rows(&["networks"]);
    assert_eq!(by_servers[0], "NETWORK SHARE SERVERS PLAYERS PROOFS");
    assert_eq!(by_servers[1], fakes[0]);
    assert!(fakes.iter().all(|row| by_servers.contains(&row.to_string())), "{by_servers:?}");
    let by_players = rows(&["networks", "--by", "players", "--game", "iceball"]);
    assert!(by_players.contains(&"127.8.8.1/32 94% 1 30 cookie 1".to_string()), "{by_players:?}");
    assert!(!by_players.iter().any(|row| row.starts_with("127.66")), "they have no players: {by_players:?}");
    assert_eq!(shown(&["networks", "--by", "bytes"])[1][0], "127.66.7.0/24");

    // What the operator finds, in a form for scripts, and as figures for a graph.
    let game: Value = serde_json::from_str(&master.admin(&["--format", "json", "game", "iceball"])).unwrap();
    assert_eq!((&game["servers"], &game["players"], &game["limit"]), (&14.into(), &32.into(), &Value::Null));
    assert_eq!(game["networks"][0]["network"], "127.66.7.0/24");
    let share = |of: &str| master.server.figure(&format!("rallypoint_largest_network_share{{of=\"{of}\"}}"));
    until("the shares", || (share("servers") == 12.0 / 14.0 && share("players") == 30.0 / 32.0).then_some(()));
    assert_eq!(game["largest_share"]["servers"].as_f64(), Some(share("servers")));
    assert!((0.5..1.0).contains(&share("bytes")) && master.server.figure("rallypoint_servers_bytes") > 0.0);

    // A limit and a ban end it.
    let text = master.admin(&["game", "iceball"]);
    assert!(text.contains("\nlimit        none\n") && text.contains("86% of the servers"), "{text}");
    assert!(master.admin(&["ban", "127.66.7.0/24"]).contains("servers taken off the list: 12"));
    until("the others", || (share("servers") == 0.5).then_some(()));
    let master = master.restart(&folder, &["guard.max_per_game_and_network=[\"iceball=2\"]"]);
    master.lists(&["127.8.8.1:1", "127.9.9.1:1"]);
    assert!(master.admin(&["game", "iceball"]).contains("\nlimit        2 for each network\n"));
}

#[test]
fn a_ban_ends_by_itself() {
    let folder = Folder::new("admin-end");
    let master = Administered::start(&folder, &[]);
    master.admin(&["ban", "127.0.5.1", "--for", "10s"]);
    master.admin(&["unlist", "127.0.5.2:1", "--for", "10s"]);
    master.admin(&["hide", "SPAM*", "--for", "10s"]);
    assert_eq!(master.admin(&["bans"]).lines().count(), 2);
    // Restarted, so that the end is known from the disk.
    let master = master.restart(&folder, &[]);
    until("all to end", || {
        let lists = ["bans", "unlisted", "hidden"].map(|list| master.admin(&[list]));
        (lists == ["none\n"; 3]).then_some(())
    });
    for host in [1, 2] {
        master.game([127, 0, 5, host]).announce(&announcement(b"spam", 1, 0));
    }
    master.lists(&["127.0.5.1:1", "127.0.5.2:1"]);
    assert!(master.check("127.0.5.1:1")["kept_off"].is_null());
}

#[test]
fn an_unlisted_server_is_off_the_list_but_not_banned() {
    let folder = Folder::new("admin-unlist");
    let master = Administered::start(&folder, &[]);
    master.game([127, 0, 5, 1]).announce(&announcement(b"fake players", 1, 60));
    master.game([127, 0, 5, 1]).announce(&announcement(b"its neighbour", 2, 0));
    master.lists(&["127.0.5.1:1", "127.0.5.1:2"]);
    let said = master.admin(&["unlist", "127.0.5.1:1", "--reason", "fake players"]);
    assert!(
        said.starts_with("127.0.5.1:1 is kept off the list: fake players\nservers taken off the list: 1,"),
        "{said}"
    );
    master.lists(&["127.0.5.1:2"]);
    // It gets answers, and may read lists from its address.
    let stays_off = |master: &Administered| {
        master.announced_until(
            [127, 0, 5, 1],
            &announcement(b"renamed", 1, 0),
            "127.0.5.1:1",
            "keeps 127.0.5.1:1 off the list",
        );
        let events = master.check("127.0.5.1:1");
        until("its refusal", || {
            let seen = master.check("127.0.5.1:1")["seen"].as_array().unwrap().clone();
            seen.iter().any(|event| event["what"] == "refused_unlisted").then_some(())
        });
        assert_eq!(events["kept_off"]["reason"], "fake players");
        master.lists(&["127.0.5.1:2"]);
    };
    stays_off(&master);
    let mut reader = connect_from([127, 0, 5, 1], master.server.address("web.listen"));
    std::io::Write::write_all(&mut reader, b"GET /master.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut list = String::new();
    reader.read_to_string(&mut list).unwrap();
    assert!(list.contains("its neighbour"), "{list}");
    let master = master.restart(&folder, &[]);
    stays_off(&master);
    assert!(master.admin(&["unlisted"]).contains("127.0.5.1:1"));
    master.refuses(&["relist", "127.0.5.1:2"], "127.0.5.1:2 is not unlisted");
    assert!(master.admin(&["relist", "127.0.5.1:1"]).contains("from its next announcement on"));
    master.game([127, 0, 5, 1]).announce(&announcement(b"better now", 1, 0));
    master.lists(&["127.0.5.1:1", "127.0.5.1:2"]);
}

#[test]
fn names_that_match_a_pattern_are_kept_off_the_list() {
    let folder = Folder::new("admin-hide");
    let named = r#"iceball.servers=[{address="127.0.5.9:1", official=true}]"#;
    let set = ["guard.hidden_names=*casino*", named];
    let master = Administered::start(&folder, &set);
    master.game([127, 0, 5, 1]).announce(&announcement(b"Cheap GOLD here", 1, 0));
    master.game([127, 0, 5, 2]).announce(&announcement(b"a game", 1, 0));
    master.game([127, 0, 5, 9]).announce(&announcement(b"our own gold", 1, 0));
    master.lists(&["127.0.5.1:1", "127.0.5.2:1", "127.0.5.9:1"]);
    let hidden = "keeps servers with its name off the list";
    master.announced_until([127, 0, 5, 3], &announcement(b"The Casino", 1, 0), "127.0.5.3:1", hidden);
    let said = master.admin(&["hide", "*Gold*", "--reason", "advertising"]);
    assert!(
        said.starts_with("servers named `*gold*` are kept off the list: advertising\nservers taken off the list: 1,"),
        "{said}"
    );
    master.lists(&["127.0.5.2:1", "127.0.5.9:1"]); // those that the configuration names stay
    let diagnosis = master.check("127.0.5.1:1");
    assert_eq!(diagnosis["summary"], format!("The operator {hidden}. Reason: advertising"));
    // A listed server that takes such a name.
    master.announced_until([127, 0, 5, 2], &announcement(b"goldrush", 1, 0), "127.0.5.2:1", hidden);
    let master = master.restart(&folder, &set);
    master.announced_until([127, 0, 5, 1], &announcement(b"more Gold", 1, 0), "127.0.5.1:1", hidden);
    master.lists(&["127.0.5.9:1"]);
    let rows = master.admin(&["hidden"]);
    assert!(rows.contains("*casino*  -      configuration") && rows.contains("*gold*    -"), "{rows}");
    master.refuses(&["unhide", "*casino*"], "hidden by the configuration: change guard.hidden_names");
    master.refuses(&["unhide", "*silver*"], "`*silver*` is not hidden");
    master.refuses(&["hide", "**"], "it matches every name");
    master.admin(&["unhide", "*GOLD*"]);
    master.game([127, 0, 5, 1]).announce(&announcement(b"more Gold", 1, 0));
    master.lists(&["127.0.5.1:1", "127.0.5.9:1"]);
}

#[test]
fn reload_reports_what_is_wrong_and_then_changes_nothing() {
    let folder = Folder::new("admin-reload");
    let socket = folder.path().join("admin.sock");
    let file = folder.write("rallypoint.toml", "[web]\ntitle = \"First\"\n");
    let set = format!("admin.socket={}", socket.display());
    let server = Server::start_with(&["--config", file.to_str().unwrap()], &[&set]);
    admin(&socket, &["ban", "127.0.5.1"]);
    folder.write("rallypoint.toml", "[web]\ntitle = \"Second\"\nlisen = 3\n");
    let output = run(&socket, &["reload"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("rallypoint.toml:3: unknown key `web.lisen`; did you mean `web.listen`?"), "{stderr}");
    assert!(server.get("/").text().contains("<title>First"));
    folder.write(
        "rallypoint.toml",
        "data_dir = \"elsewhere\"\n[web]\ntitle = \"Second\"\n[guard]\nbans = [\"127.0.5.2\"]\n",
    );
    // `--set` on the command line wins, so the folder is not elsewhere.
    assert_eq!(admin(&socket, &["reload"]), "the configuration was reloaded\n");
    assert!(server.get("/").text().contains("<title>Second"));
    let bans = admin(&socket, &["bans"]);
    assert!(bans.contains("127.0.5.1 ") && bans.contains("127.0.5.2 "), "both kinds: {bans}");
    for host in [1, 2] {
        assert!(is_turned_away([127, 0, 5, host], server.address("web.listen")), "both are in effect");
    }
}

#[test]
fn status_says_how_the_server_is() {
    let folder = Folder::new("admin-status");
    let master = Administered::start(&folder, &[]);
    master.game([127, 0, 5, 1]).announce(&announcement(b"a game", 1, 0));
    master.lists(&["127.0.5.1:1"]);
    let text = master.admin(&["status"]);
    for says in [
        concat!("version      ", env!("CARGO_PKG_VERSION"), "\n"),
        "servers      1 (iceball 1)\n",
        "cluster      off\n",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    let json: Value = serde_json::from_str(&master.admin(&["--format", "json", "status"])).unwrap();
    assert_eq!((&json["servers"], &json["servers_by_game"]["iceball"]), (&1.into(), &1.into()));
    assert!(json["memory_bytes"].as_u64().unwrap() > 1 << 20 && json["store"]["failing"] == false);
    let refused = run(&master.socket, &["--format", "json", "unban", "192.0.2.1"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8(refused.stdout).unwrap(), "{\"error\":\"192.0.2.1 is not banned\"}\n");
    let without = Server::start(&[&format!("admin.socket={}", folder.path().join("other.sock").display())]);
    let said = admin(&folder.path().join("other.sock"), &["ban", "192.0.2.1"]);
    assert!(said.contains("kept in memory, because data_dir is not set: a restart forgets it"), "{said}");
    drop(without);
}

#[test]
fn top_names_who_costs_most() {
    let folder = Folder::new("admin-top");
    let master = Administered::start(&folder, &["guard.max_servers_per_ip=1"]);
    assert_eq!(master.admin(&["top"]), "none\n");
    // 64 announcements at once are within the budget.
    let game = master.game([127, 0, 5, 1]);
    for _ in 0..200 {
        game.send(&announcement(b"again and again", 1, 0));
    }
    let top = until("the flood", || {
        let top = master.admin(&["top"]);
        top.lines().any(|line| line.starts_with("127.0.5.1/32  announcements")).then_some(top)
    });
    assert_eq!(
        top.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["PREFIX", "BUDGET", "USED", "REFUSED", "COST"]
    );
    assert!(top.contains("127.0.5.0/24"), "{top}");
    // Refusals may still be counted between the two.
    until("the same refusals in both forms", || {
        let status: Value = serde_json::from_str(&master.admin(&["--format", "json", "status"])).unwrap();
        let refused = status["refused"]["budgets"]["announcements"].as_u64().filter(|refused| *refused > 0)?;
        master.admin(&["status"]).contains(&format!("refused      announcements {refused}")).then_some(())
    });
}

#[test]
fn only_its_user_can_use_the_socket() {
    let folder = Folder::new("admin-mode");
    // With the widest umask, so that nothing but the program restricts it.
    let socket = folder.path().join("admin.sock");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut server = Server::start_after("umask 000", &[&format!("admin.socket={}", socket.display())]);
    let file = std::fs::symlink_metadata(&socket).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid()), (0o600, Uid::current().as_raw()));
    if Uid::current().is_root() {
        let mut other = Command::new(folder.program(env!("CARGO_BIN_EXE_rallypoint"), "rallypoint"));
        std::os::unix::process::CommandExt::uid(&mut other, 65_534);
        let output = other.args(["admin", "--socket", socket.to_str().unwrap(), "status"]).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("permission denied: it belongs to root, so run this as root"), "{stderr}");
    }
    server.wait_for_log("admin.socket: listening at");
    // A killed program leaves its file, and the next one replaces it.
    server.signal(Signal::SIGKILL);
    server.end();
    let refused = run(&socket, &["status"]);
    assert_eq!(refused.status.code(), Some(3));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(stderr.contains("nobody listens there: is the server running?"), "{stderr}");
    let set = format!("admin.socket={}", socket.display());
    let _server = Server::start(&[&set]);
    admin(&socket, &["status"]);
    // One in use is not, nor is anything else.
    let fails = |set: &str, says: &str| {
        let mut start = command();
        start.args(["serve", "--set", "data_dir=", "--set", set]);
        for key in LISTENERS.iter() {
            start.args(["--set", &format!("{key}=127.0.0.1:0")]);
        }
        let output = start.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(says), "{stderr}");
    };
    fails(&set, "another program listens at");
    let precious = folder.write("precious", "data");
    fails(&format!("admin.socket={}", precious.display()), "exists and is not a socket");
    assert_eq!(std::fs::read(&precious).unwrap(), b"data");
    fails("admin.socket=/nowhere/admin.sock", "admin.socket: /nowhere/admin.sock.lock: No such file");
    admin(&socket, &["status"]);
    // Whoever can read the folder can lock it, but that hinders nobody.
    let lock = std::fs::metadata(folder.path().join("admin.sock.lock")).unwrap();
    assert_eq!(lock.mode() & 0o7777, 0o600);
    let held = std::fs::File::open(folder.path()).unwrap();
    held.lock().unwrap();
    let other = folder.path().join("other.sock");
    let _server = Server::start(&[&format!("admin.socket={}", other.display())]);
    admin(&other, &["status"]);
}

#[test]
fn mistakes_are_explained() {
    let folder = Folder::new("admin-mistakes");
    let says = |arguments: &[&str], code: i32, says: &str| {
        let output = command().arg("admin").args(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?} should say `{says}`: {stderr}");
    };
    says(&["status"], 2, "give the server's --config FILE, or its --socket PATH");
    let file = folder.write("rallypoint.toml", "");
    says(&["--config", file.to_str().unwrap(), "status"], 2, "admin.socket is not set");
    says(&["--socket", "/nowhere.sock", "status"], 3, "/nowhere.sock does not exist: is the server running");
    says(&["--socket", "x", "ban", "192.0.2.1", "--for", "5"], 2, "the unit is missing");
    says(&["--socket", "x", "ban"], 2, "NETWORK");
    let master = Administered::start(&folder, &[]);
    folder.write("rallypoint.toml", &format!("[admin]\nsocket = \"{}\"\n", master.socket.display()));
    says(&["--config", file.to_str().unwrap(), "ban", "192.0.2"], 1, "`192.0.2` is not an address or network like");
    master.refuses(&["ban", "0.0.0.0/0"], "is everybody");
    master.refuses(&["unlist", "192.0.2.1"], "is not an address like 203.0.113.5:20737");
    master.refuses(&["ban", "192.0.2.1", "--reason", &"x".repeat(201)], "the reason is longer than 200 bytes");
    // Not from our own command: what is no request is answered, and a long one is not read to its end.
    for (request, error) in [
        ("nonsense\n".to_string(), "the request is not valid"),
        ("{\"command\":\"shout\"}\n".into(), "unknown variant `shout`"),
        ("x".repeat(100_000), "the request is longer than 4096 bytes"),
    ] {
        let mut stream = UnixStream::connect(&master.socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = std::io::Write::write_all(&mut stream, request.as_bytes()); // the server may close before the end
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer); // what it has not read resets the connection after the answer
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains(error), "{answer}");
    }
    // Nothing of it over HTTP.
    for path in ["/admin", "/api/v1/admin", "/api/v1/bans", "/api/v1/ban"] {
        assert_eq!(master.server.get(path).status(), 404, "{path}");
        let posted = request(master.server.address("web.listen"), "POST", path, "Content-Length: 0\r\n");
        assert_eq!(posted.status(), 404, "{path}");
    }
}

/// The bucket of the decisions may be unusable for a while, and may be lost alone.
#[test]
#[ignore = "needs nats-server"]
fn decisions_are_shared_again_once_their_bucket_can_be_used() {
    const STREAM: &str = "KV_rallypoint-decisions";
    let nats = Nats::start("admin-bucket", 1);
    let operator = Operator::of(&nats);
    // Of a kind that cannot be changed.
    let config = Config {
        name: STREAM.into(),
        subjects: vec!["$KV.rallypoint-decisions.>".into()],
        storage: StorageType::Memory,
        ..Config::default()
    };
    operator.runtime.block_on(operator.context.create_stream(config)).unwrap();
    let delete = || operator.runtime.block_on(operator.context.delete_stream(STREAM)).unwrap();
    let folders = ["a", "b"].map(|name| Folder::new(&format!("admin-bucket-{name}")));
    let [mut a, b] = [0, 1]
        .map(|at: usize| Administered::start_by(&folders[at], &[], |set| node(["a", "b"][at], &nats.urls(), set)));
    wait_for_nodes(&[&a.server, &b.server], 2);
    a.server.wait_for_log("bans are not shared");
    a.admin(&["ban", "192.0.2.1"]);
    delete();
    has_bans(&b, &["192.0.2.1"]);
    // It is lost while they are connected.
    delete();
    b.admin(&["ban", "192.0.2.2"]);
    has_bans(&a, &["192.0.2.1", "192.0.2.2"]);
    for node in [&a, &b] {
        let log = node.server.log();
        assert!(!log.contains("serving alone"), "the session goes on: {log}");
    }
}

/// Waits until a node's bans are these.
fn has_bans(node: &Administered, expected: &[&str]) {
    until(&format!("the bans {expected:?}"), || {
        let rows = node.admin(&["--format", "json", "bans"]);
        let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        let subjects: Vec<_> = rows.iter().filter_map(|row| row["subject"].as_str()).collect();
        (subjects == expected).then_some(())
    });
}

#[test]
#[ignore = "needs nats-server"]
fn nodes_share_decisions_and_one_that_was_alone_catches_up() {
    let mut nats = Nats::start("admin-cluster", 1);
    let folders = ["a", "b", "c"].map(|name| Folder::new(&format!("admin-cluster-{name}")));
    let urls = nats.urls();
    let start = |at: usize| {
        let name = ["a", "b", "c"][at];
        Administered::start_by(&folders[at], &[], |set| node(name, &urls, set))
    };
    let [a, b] = [0, 1].map(start);
    wait_for_nodes(&[&a.server, &b.server], 2);
    b.game([127, 0, 5, 1]).announce(&announcement(b"to be banned", 1, 0));
    b.game([127, 0, 6, 1]).announce(&announcement(b"to be unlisted", 1, 0));
    b.game([127, 0, 7, 1]).announce(&announcement(b"SPAM", 1, 0));
    for node in [&a, &b] {
        node.lists(&["127.0.5.1:1", "127.0.6.1:1", "127.0.7.1:1"]);
    }
    a.admin(&["ban", "127.0.5.0/24", "--reason", "flood"]);
    a.admin(&["unlist", "127.0.6.1:1", "--for", "1h"]);
    b.admin(&["hide", "spam*"]);
    for node in [&a, &b] {
        has_bans(node, &["127.0.5.0/24"]);
        node.lists(&[]);
        assert!(node.check("127.0.5.1:1")["summary"].as_str().unwrap().ends_with("Reason: flood"));
    }
    until("the log of the other node", || {
        b.server.log().contains(": ban 127.0.5.0/24 until it is lifted, reason: flood").then_some(())
    });
    // A node that joins later.
    let c = start(2);
    has_bans(&c, &["127.0.5.0/24"]);
    assert!(c.admin(&["hidden"]).contains("spam*") && c.admin(&["unlisted"]).contains("127.0.6.1:1"));
    drop(c);

    // Apart, each keeps its own, and the newest statement about each subject counts when they meet again.
    nats.kill(0);
    for node in [&a, &b] {
        until("the loss to show", || (!cluster_state(&node.server).0).then_some(()));
    }
    b.admin(&["unban", "127.0.5.0/24"]);
    b.admin(&["ban", "198.51.100.0/24"]);
    a.admin(&["ban", "203.0.113.0/24"]);
    has_bans(&a, &["127.0.5.0/24", "203.0.113.0/24"]);
    has_bans(&b, &["198.51.100.0/24"]);
    // One of them is even down meanwhile, with the ban in its file.
    a.server.signal(Signal::SIGTERM);
    assert!(a.server.end().0.success());
    nats.start_one(0);
    until("the store to be back", || cluster_state(&b.server).0.then_some(()));
    let a = start(0);
    for node in [&a, &b] {
        has_bans(node, &["198.51.100.0/24", "203.0.113.0/24"]);
    }
    a.game([127, 0, 5, 1]).announce(&announcement(b"forgiven", 1, 0));
    for node in [&a, &b] {
        node.lists(&["127.0.5.1:1"]);
    }
    // The store has lost everything: the nodes put it again.
    nats.kill(0);
    std::fs::remove_dir_all(nats.folder.path().join("n0")).unwrap();
    nats.start_one(0);
    let c = start(2);
    has_bans(&c, &["198.51.100.0/24", "203.0.113.0/24"]);
}

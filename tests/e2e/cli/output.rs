//! The commands' output: closed pipes, full disks, files, links, FIFOs and devices.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;

use crate::cli::list_query_export::page;
use crate::support::commands::{Running, ends, simulate, text, xml};
use crate::support::pty::Pty;
use crate::support::*;

/// Runs a command to its end with stdout on a pipe that is closed.
fn into_closed_pipe(arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command();
    command.args(arguments);
    let mut running = Running::of(command, writer);
    (running.end(), running.log())
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A master, two simulated servers on its list, and its address.
fn master(set: &[&str]) -> (Server, Running, String) {
    let server = Server::start(set);
    let master = format!("netpanzer://{}", server.address("netpanzer.listen"));
    let (servers, _) = simulate("netpanzer", 2, &["--announce", &master]);
    until("both on the list", || (server.json("/api/v1/servers?game=netpanzer")["total"] == 2).then_some(()));
    (server, servers, master)
}

#[test]
fn every_command_handles_a_closed_pipe_and_a_full_disk() {
    let folder = Folder::new("closed-pipe");
    let data = format!("data_dir={}", folder.path().display());
    let (server, _servers, master) = master(&[&data]);
    let web = format!("http://{}", server.address("web.listen"));
    let (_game, game) = simulate("hyperbol", 1, &[]);
    let mut cases: Vec<(i32, Vec<&str>)> = vec![
        (0, vec!["--help"]),
        (0, vec!["--version"]),
        (0, vec!["help", "list"]),
        (0, vec!["query", "--help"]),
        (0, vec!["config"]),
        (0, vec!["config", "--template"]),
        (0, vec!["config", "--stylesheet"]),
        (0, vec!["list", &master]),
        (0, vec!["list", &master, "--query"]),
        (0, vec!["query", &game[0]]),
        (0, vec!["watch", &master]),
        (1, vec!["doctor", &web, "iceball", "127.0.0.1:1"]),
        (1, vec!["doctor", &web, "iceball", "127.0.0.1:1", "--json"]),
        (0, vec!["export", &master, "--xml", "-"]),
        (0, vec!["export", &master, "--json", "-"]),
    ];
    for shell in ["bash", "zsh", "fish"] {
        cases.push((0, vec!["completions", shell]));
    }
    for format in ["json", "jsonl", "xml", "csv"] {
        cases.push((0, vec!["list", &master, "--format", format]));
    }
    for (_, arguments) in &cases {
        let output = command().args(arguments).stdin(Stdio::null()).stdout(full()).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?} > /dev/full: {stderr}");
        assert!(stderr.contains("No space left") && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
    // With a reader, this would run for ever.
    cases.push((0, vec!["export", &master, "--xml", "-", "--every", "1s"]));
    for (code, arguments) in &cases {
        let (ended, stderr) = into_closed_pipe(arguments);
        assert_eq!(ended, Some(*code), "{arguments:?} | true: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("ipe"), "{arguments:?}: {stderr}");
        assert!(arguments[0] == "export" || stderr.is_empty(), "{arguments:?}: {stderr}");
    }
    // A truncated database is useless, so this is an error.
    let (code, stderr) = into_closed_pipe(&["backup", "-", "--set", &data]);
    assert!(code == Some(1) && stderr.contains("the reader closed the pipe early"), "{stderr}");
    let output = command().args(["backup", "-", "--set", &data]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("No space left"), "{}", text(&output.stderr));
}

#[test]
fn a_server_runs_on_when_its_log_cannot_be_written() {
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stderr in [Stdio::from(full()), Stdio::from(closed)] {
        let mut simulate = command();
        simulate.args(["simulate", "hyperbol"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut servers = Running::logging(simulate, Log::new());
        let address = servers.lines(1).remove(0);
        ends(0, &["query", &address]);
        assert_eq!(servers.interrupt(), Some(0));
    }
    // Failures are reported on stderr, if possible.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = format!("hyperbol://{silent}");
    let output =
        command().args(["query", "iceball://127.0.0.1", &silent]).stdin(Stdio::null()).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn simulated_servers_run_on_without_a_reader_and_end_on_a_full_disk() {
    let mut simulate = command();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    simulate.args(["simulate", "hyperbol"]);
    let servers = Running::of(simulate, closed);
    until("it to run", || servers.log().contains("servers are running").then_some(()));
    assert_eq!(servers.interrupt(), Some(0));
    let mut simulate = command();
    simulate.args(["simulate", "hyperbol"]);
    let mut servers = Running::of(simulate, full());
    assert_eq!(servers.end(), Some(1));
    assert!(servers.log().contains("cannot write to stdout: No space left"), "{}", servers.log());
}

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Reads a FIFO to its end, on a thread: opening one waits for the other side.
fn read_fifo(path: &Path) -> mpsc::Receiver<Vec<u8>> {
    let path = path.to_path_buf();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(fs::read(path).unwrap()));
    receiver
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    names.sort();
    names
}

#[test]
fn an_export_follows_links_keeps_modes_and_replaces_only_files() {
    let (_server, _servers, master) = master(&[]);
    let folder = Folder::new("export-paths");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("www")).unwrap();
    let (file, link, fifo) = (at("www/servers.xml"), at("link.xml"), at("fifo"));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    // Only root can change the owner of files.
    let is_root = fs::metadata(&file).unwrap().uid() == 0;
    if is_root {
        std::os::unix::fs::chown(&file, Some(12_345), Some(23_456)).unwrap();
    }
    symlink("www/servers.xml", &link).unwrap();
    mkfifo(&fifo);
    let reader = read_fifo(&fifo);
    let path = |path: &Path| path.to_str().unwrap().to_string();
    ends(0, &["export", &master, "--xml", &path(&link), "--json", &path(&fifo)]);
    let json: Value = serde_json::from_slice(&reader.recv_timeout(LIMIT).unwrap()).unwrap();
    assert_eq!(json["total"], 2);
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo(), "the FIFO was replaced");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link was replaced");
    assert_eq!(xml(&fs::read_to_string(&file).unwrap()).len(), 2);
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o664);
    if is_root {
        assert_eq!((metadata.uid(), metadata.gid()), (12_345, 23_456));
    }
    assert_eq!(names(folder.path()), ["fifo", "link.xml", "www"].map(PathBuf::from));
    assert_eq!(names(&at("www")), ["servers.xml"].map(PathBuf::from));

    // A device like /dev/null, if the system lets us create one.
    let device = at("null");
    let made = Command::new("mknod").arg(&device).args(["c", "1", "3"]).stderr(Stdio::null()).status();
    if made.is_ok_and(|status| status.success()) && fs::write(&device, "x").is_ok() {
        ends(0, &["export", &master, "--xml", &path(&device)]);
        assert!(fs::symlink_metadata(&device).unwrap().file_type().is_char_device(), "the device was replaced");
    }

    let (stdout, _) = ends(0, &["export", &master, "--xml", "-", "--json", &path(&at("a.json"))]);
    assert_eq!(xml(&stdout).len(), 2);
    assert!(!Path::new("-").exists());
    let usage = |arguments: &[&str], says: &str| {
        let (_, stderr) = ends(2, &[&["export", &master], arguments].concat());
        assert!(stderr.contains(says), "{stderr}");
    };
    usage(&["--xml", "-", "--json", "-"], "only one of --xml, --json and --csv");
    usage(&["--xml", "-", "--ftp", "ftp://me@127.0.0.1/"], "stdout cannot be uploaded");
    usage(&["--xml", &path(&file), "--csv", &path(&link)], "two formats cannot be written to the same file");
    usage(&[], "<--xml <FILE>|--json <FILE>|--csv <FILE>|--site <DIR>>");
}

#[test]
fn an_export_that_waits_for_a_fifos_reader_can_be_interrupted() {
    let (_server, _servers, master) = master(&[]);
    let folder = Folder::new("export-fifo");
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo);
    let export = Running::start(&["export", &master, "--xml", fifo.to_str().unwrap(), "--every", "1s"]);
    // One reader after another; the second reads the second round.
    for _ in 0..2 {
        let text = String::from_utf8(read_fifo(&fifo).recv_timeout(LIMIT).unwrap()).unwrap();
        assert_eq!(xml(&text).len(), 2);
    }
    assert_eq!(export.interrupt(), Some(0));
}

/// A script that uses the file must notice that it was not written.
#[test]
fn an_export_that_is_interrupted_fails() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new("export-stopped");
    let file = folder.path().join("servers.xml");
    let master = format!("netpanzer://{}", listener.local_addr().unwrap());
    let export = Running::start(&["export", &master, "--xml", file.to_str().unwrap()]);
    let _silent = listener.accept().unwrap();
    assert_eq!(export.interrupt(), Some(1));
    assert!(!file.exists());
}

#[test]
fn a_backup_goes_where_the_path_leads() {
    let folder = Folder::new("backup-paths");
    let data = folder.path().join("data");
    let set = format!("data_dir={}", data.display());
    let (server, _servers, _) = master(&[&set]);
    let _ = until("the file", || fs::metadata(data.join("rallypoint.db")).ok());
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("safe")).unwrap();
    let (copy, link, fifo) = (at("safe/copy.db"), at("link.db"), at("fifo"));
    symlink("safe/copy.db", &link).unwrap();
    let backup = |to: &Path, more: &[&str]| {
        let mut command = command();
        command.arg("backup").arg(to).args(["--set", &set]).args(more).env("TMPDIR", at("safe"));
        command.output().unwrap()
    };
    let is_database = |bytes: &[u8]| bytes.starts_with(b"SQLite format 3\0") && bytes.len().is_multiple_of(4096);
    // Through a dangling link; then over the existing file, which keeps its mode.
    assert!(backup(&link, &[]).status.success());
    assert!(is_database(&fs::read(&copy).unwrap()));
    let again = backup(&link, &[]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("--force"));
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(backup(&link, &["--force"]).status.success());
    assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o600);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

    mkfifo(&fifo);
    let reader = read_fifo(&fifo);
    let output = backup(&fifo, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(is_database(&reader.recv_timeout(LIMIT).unwrap()));
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    let output = backup(Path::new("-"), &[]);
    assert!(output.status.success() && is_database(&output.stdout), "{}", text(&output.stderr));
    assert_eq!(backup(&at("safe"), &[]).status.code(), Some(2));
    assert_eq!(names(&at("safe")), [PathBuf::from("copy.db")]);
    drop(server);
}

/// A game server that never answers.
fn silent() -> std::net::UdpSocket {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap()
}

/// A Bloodmasters list of these addresses.
fn list_of(addresses: &[String]) -> String {
    let addresses: String = addresses.iter().map(|url| url.replace("bloodmasters://", "") + "\n").collect();
    format!("bloodmasters+http://{}", page("200 OK", addresses.leak().as_bytes()))
}

#[test]
fn servers_that_failed_are_in_every_file_with_the_reason() {
    let folder = Folder::new("failed");
    let (xml_file, json_file) = (folder.path().join("a.xml"), folder.path().join("a.json"));
    let socket = silent();
    let address = socket.local_addr().unwrap();
    let master = list_of(&[address.to_string()]);
    let csv_file = folder.path().join("a.csv");
    let files = [
        "--xml",
        xml_file.to_str().unwrap(),
        "--json",
        json_file.to_str().unwrap(),
        "--csv",
        csv_file.to_str().unwrap(),
    ];
    let (_, log) = ends(1, &[&["export", &master], &files[..]].concat());
    assert!(log.contains("it did not answer"), "{log}");
    let servers = xml(&fs::read_to_string(&xml_file).unwrap());
    assert_eq!((servers.len(), &*servers[0]["responding"], &*servers[0]["fault"]), (1, "0", "no answer"));
    let json: Value = serde_json::from_slice(&fs::read(&json_file).unwrap()).unwrap();
    assert_eq!((&json["total"], &json["servers"]), (&0.into(), &Value::Array(vec![])));
    assert_eq!(
        (&json["failed"][0]["port"], &json["failed"][0]["fault"]),
        (&address.port().into(), &"no answer".into())
    );
    let csv = fs::read_to_string(&csv_file).unwrap();
    assert!(csv.lines().nth(1).unwrap().contains(",no answer,"), "{csv}");

    // With one server that answers, it succeeds; the others are in CSV and JSON lines, too.
    let (_servers, mut addresses) = simulate("bloodmasters", 1, &[]);
    addresses.push(address.to_string());
    let master = list_of(&addresses);
    let (_, log) = ends(0, &[&["export", &master], &files[..]].concat());
    assert!(log.contains("2 servers listed, 1 without an answer"), "{log}");
    let (csv, _) = ends(0, &["list", &master, "--query", "--format", "csv"]);
    let line = csv.lines().find(|line| line.contains(&format!(",{},", address.port()))).unwrap();
    assert!(csv.starts_with("game,address,port,") && line.contains(",no answer,"), "{csv}");
    let (table, said) = ends(0, &["list", &master, "--query", "--not-empty"]);
    assert!(table.is_empty() && said.contains("no servers match the filters"), "{said}");
    let (lines, _) = ends(0, &["list", &master, "--query", "--format", "jsonl"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let faults: Vec<_> = lines.iter().map(|line| line["fault"].as_str()).collect();
    assert_eq!(faults, [None, Some("no answer")]);
}

#[test]
fn a_list_without_facts_shows_only_addresses() {
    let addresses = ["203.0.113.5:6969".to_string(), "203.0.113.60:1".to_string()];
    let master = list_of(&addresses);
    assert_eq!(ends(0, &["list", &master]).0, "Address\n203.0.113.5:6969\n203.0.113.60:1\n");
    let (urls, _) = ends(0, &["list", &master, "--columns", "url", "--no-header"]);
    assert_eq!(urls, "bloodmasters://203.0.113.5:6969\nbloodmasters://203.0.113.60:1\n");
    // Columns that were chosen are shown even if they are empty.
    let (table, _) = ends(0, &["list", &master, "--columns", "address,map"]);
    assert!(table.starts_with("Address           Map\n"), "{table}");
}

#[test]
fn columns_headers_and_colour_as_chosen() {
    let (_servers, addresses) = simulate("netpanzer", 2, &[]);
    let query = |more: &[&str]| {
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let output = command().arg("query").args(addresses).args(more).env("NO_COLOR", "1").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).to_string()
    };
    let table = query(&["--columns", "players,name", "--sort", "name"]);
    assert_eq!(table, "Players  Server\n    0/8  Tank Alley 1\n   1/12  Tank Alley 2\n");
    let csv = query(&["--columns", "name,players", "--format", "csv", "--no-header", "--sort", "name"]);
    assert_eq!(csv, "Tank Alley 1,0,8\nTank Alley 2,1,12\n");
    let lines = query(&["--columns", "map,name", "--format", "jsonl", "--sort", "name"]);
    assert_eq!(lines.lines().next(), Some(r#"{"map":"Two clans","name":"Tank Alley 1"}"#));
    assert!(query(&["--color", "always"]).contains("\u{1b}["));
    assert!(!query(&["--color", "never"]).contains('\u{1b}') && !query(&[]).contains('\u{1b}'));
    let fails = |more: &[&str], says: &[&str]| {
        let (_, stderr) = ends(2, &[&["query", &addresses[0]], more].concat());
        assert!(says.iter().all(|says| stderr.contains(says)), "{stderr}");
    };
    fails(&["--columns", "name,plyers"], &["'plyers'", "did you mean `players`?", "name, players, map"]);
    fails(&["--columns", ""], &["The columns are"]);
    fails(&["--columns", "map", "--format", "xml"], &["cannot be used with XML"]);
    fails(&["--color", "sometimes"], &["auto, always, never"]);
}

#[test]
fn a_table_on_a_terminal_fits_it_and_progress_shows() {
    let program = env!("CARGO_BIN_EXE_rallypoint");
    let (_servers, mut addresses) = simulate("bloodmasters", 3, &[]);
    let (_others, others) = simulate("netpanzer", 2, &[]);
    addresses.extend(others);
    let on = |columns: u16, environment: &[&str], more: &[&str]| {
        let pty = Pty::new(24, columns);
        let mut arguments: Vec<&str> = [environment, &[program, "query"], more].concat();
        arguments.extend(addresses.iter().map(String::as_str));
        pty.run("env", &arguments, "xterm-256color").end();
        let screen = pty.until("the last server", |screen| screen.contains("Tank Alley 2"));
        (screen, pty.is_styled())
    };
    for columns in [40, 60, 80, 100, 160] {
        let (screen, styled) = on(columns, &[], &[]);
        let lines: Vec<_> = screen.lines().filter(|line| !line.trim().is_empty()).collect();
        assert_eq!(lines.len(), 6, "a header and a line each on {columns} columns:\n{screen}");
        assert!(lines[0].starts_with("Server") && lines[0].contains("Address"), "{screen}");
        let whole = addresses.iter().all(|url| screen.contains(url.split("//").nth(1).unwrap()));
        assert!(whole, "an address is cut:\n{screen}");
        assert_eq!(screen.contains("Capture The Flag"), columns >= 160, "{columns}:\n{screen}");
        assert!(styled, "no colour on a terminal");
    }
    assert!(!on(80, &["NO_COLOR=1"], &[]).1);
    assert!(!on(80, &[], &["--color", "never"]).1);
    // COLUMNS overrides the terminal's width.
    assert!(!on(160, &["COLUMNS=60"], &[]).0.contains("Version"));

    let socket = silent();
    let url = format!("hyperbol://{}", socket.local_addr().unwrap());
    let pty = Pty::new(24, 80);
    let mut query = pty.run(program, &["query", &url, &addresses[0]], "xterm-256color");
    pty.shows("querying");
    query.end();
    let screen = pty.shows("no answer");
    assert!(!screen.contains("querying"), "the bar is left behind:\n{screen}");
}

/// The commands that a command's help names; none if it has no commands of its own.
fn commands_of(arguments: &[&str]) -> Vec<String> {
    let (help, _) = ends(0, &[arguments, &["--help"]].concat());
    let commands = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let commands = commands.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let commands = commands.filter(|line| !line.starts_with(' ')).map(|line| line.split(' ').next().unwrap());
    commands.filter(|command| *command != "help").map(String::from).collect()
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let commands = commands_of(&[]);
    assert!(commands.len() >= 12 && commands.iter().any(|command| command == "completions"), "{commands:?}");
    assert!(commands_of(&["admin"]).iter().any(|command| command == "unban"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (script, _) = ends(0, &["completions", shell]);
        assert!(commands.iter().all(|command| script.contains(command.as_str())), "{shell}");
        assert!(script.contains("no-header"), "{shell}");
    }
    let folder = Folder::new("man");
    let script = folder.write("complete", &ends(0, &["completions", "bash"]).0);
    let complete = "source \"$0\"; COMP_WORDS=(rallypoint \"$@\"); COMP_CWORD=$#; _rallypoint rallypoint \"${!#}\"; \
                    echo \"${COMPREPLY[@]}\"";
    let completed = |words: &[&str]| {
        let output = Command::new("bash").args(["-c", complete]).arg(&script).args(words).output().unwrap();
        text(&output.stdout).trim().to_string()
    };
    assert_eq!(completed(&["comp"]), "completions");
    assert_eq!(completed(&["admin", "unb"]), "unban");
    assert_eq!(completed(&["admin", "ban", "--rea"]), "--reason");
    assert_eq!(completed(&["list", "--no-h"]), "--no-header");

    let pages = folder.path().join("deep/man1");
    ends(0, &["man", pages.to_str().unwrap()]);
    let mut expected: Vec<PathBuf> = vec!["rallypoint.1".into()];
    for command in &commands {
        expected.push(format!("rallypoint-{command}.1").into());
        expected.extend(commands_of(&[command]).iter().map(|of| format!("rallypoint-{command}-{of}.1").into()));
    }
    expected.sort();
    assert_eq!(names(&pages), expected);
    let page = fs::read_to_string(pages.join("rallypoint-list.1")).unwrap();
    for word in [".TH rallypoint-list 1", "no\\-header", "Masters:", "jsonl"] {
        assert!(page.contains(word), "{word}:\n{page}");
    }
    assert!(ends(1, &["man", "/dev/null/man"]).1.contains("/dev/null/man: "));
    assert!(ends(2, &["completions", "tcsh"]).1.contains("bash, elvish, fish"));
}

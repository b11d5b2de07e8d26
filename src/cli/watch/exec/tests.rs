//! Real commands: what they get, and when they fail, hang or are too slow.

use super::*;
use crate::client::{CountryCode, State};
use crate::model::{Facts, Game};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("rallypoint-exec-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// What a hostile server may be called.
const EVIL: &str = "$(touch owned) `touch owned`; touch owned #\"'\\";

fn found(name: &str) -> Found {
    let facts = Facts { name: name.to_string().into(), players_current: Some(3), ..Facts::default() };
    let country = CountryCode::from("DE").ok();
    Found { facts, country, ..Found::new(Game::Own("netpanzer"), "203.0.113.5:3030".parse().unwrap()) }
}

fn exec(command: &str, timeout: Duration) -> Exec {
    Exec::new(ExecCommand::parse(command).unwrap(), timeout, Output::Nowhere)
}

fn job(name: &str) -> Job {
    Job::new("2026-01-01T00:00:00Z", ChangeKind::Came, &[], &found(name))
}

/// Runs until there is something to report.
fn report(exec: &mut Exec) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(exec.report())
}

const MINUTE: Duration = Duration::from_secs(60);

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_command_gets_json_and_variables_and_nothing_is_expanded() {
    let folder = folder("gets");
    let script =
        format!("cd {} && cat > in && printf %s \"$RALLYPOINT_NAME\" > name && env > env && exit 3", folder.display());
    let mut exec = exec(&format!("sh -c '{script}'"), MINUTE);
    exec.push(job(EVIL));
    assert_eq!(report(&mut exec), "--exec: `sh` ended with exit code 3 (came netpanzer://203.0.113.5:3030)");
    let json: serde_json::Value = serde_json::from_str(&read(&folder, "in")).unwrap();
    assert_eq!((&json["event"], &json["server"]["name"]), (&"came".into(), &EVIL.into()));
    assert_eq!(json["server"]["country"], "DE");
    assert_eq!(read(&folder, "name"), EVIL);
    assert!(!folder.join("owned").exists());
    let env = read(&folder, "env");
    for line in ["EVENT=came", "GAME=netpanzer", "PROTOCOL=netpanzer", "ADDRESS=203.0.113.5:3030", "HOST=203.0.113.5"] {
        assert!(env.lines().any(|known| known == format!("RALLYPOINT_{line}")), "{line}: {env}");
    }
    for line in ["PORT=3030", "URL=netpanzer://203.0.113.5:3030", "PLAYERS=3", "COUNTRY=DE", "AT=2026-01-01T00:00:00Z"]
    {
        assert!(env.lines().any(|known| known == format!("RALLYPOINT_{line}")), "{line}: {env}");
    }
    assert!(!env.contains("RALLYPOINT_MAP") && !env.contains("RALLYPOINT_FAULT"), "unknown is not set: {env}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn one_at_a_time_in_order_and_the_oldest_are_dropped() {
    let folder = folder("order");
    let log = folder.join("log");
    let script = format!("echo $RALLYPOINT_NAME >> {}; test $RALLYPOINT_NAME != last", log.display());
    let mut exec = exec(&format!("sh -c '{script}'"), MINUTE);
    for number in 0..QUEUE_MAX + 7 {
        exec.push(job(&number.to_string()));
    }
    assert_eq!(report(&mut exec), "--exec: 7 changes dropped: the command is too slow for them");
    exec.queue.truncate(20);
    exec.push(job("last"));
    assert!(report(&mut exec).contains("exit code 1 "));
    let expected: String = (7..27).map(|number| format!("{number}\n")).collect();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), expected + "last\n");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A command that runs, and what its pipe has had once all that hold it are gone: more than `up` if anything outlives the test.
fn started(name: &str, script: &str) -> (tokio::runtime::Runtime, Exec, JoinHandle<String>) {
    let folder = folder(name);
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let script = script.replace("STAY", "trap \"\" TERM; exec > PIPE; echo up; sleep 20; echo outlived");
    let mut exec = exec(&format!("sh -c '{}'", script.replace("PIPE", &pipe.to_string_lossy())), MINUTE);
    exec.push(job("x"));
    let (is_up, up) = tokio::sync::oneshot::channel();
    let reader = std::thread::spawn(move || {
        let mut pipe = BufReader::new(File::open(pipe).unwrap());
        let mut said = String::new();
        pipe.read_line(&mut said).unwrap();
        is_up.send(()).unwrap();
        pipe.read_to_string(&mut said).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        said
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            said = exec.report() => panic!("{said}"),
            up = up => up.unwrap(),
        }
    });
    (runtime, exec, reader)
}

#[test]
fn a_command_that_hangs_is_ended_with_its_children() {
    // All ignore SIGTERM; or the command itself does not, but a child of it does.
    for (name, script) in [("hangs", "STAY"), ("leaves", "(STAY) & wait")] {
        let (runtime, mut exec, reader) = started(name, script);
        exec.running.as_mut().unwrap().until = Instant::now();
        let said = runtime.block_on(exec.report());
        assert!(said.starts_with("--exec: `sh` was ended after 1m (came "), "{name}: {said}");
        assert_eq!(reader.join().unwrap(), "up\n", "{name}");
    }
}

#[test]
fn no_command_outlives_us() {
    for (name, script) in [("stays", "STAY"), ("forks", "(STAY) & wait")] {
        let (_runtime, exec, reader) = started(name, script);
        drop(exec);
        assert_eq!(reader.join().unwrap(), "up\n", "{name}");
    }
}

#[test]
fn a_command_that_cannot_be_started_is_reported_once() {
    let folder = folder("once");
    let program = folder.join("later");
    let mut exec = exec(&program.to_string_lossy(), MINUTE);
    exec.push(job("x"));
    assert!(report(&mut exec).contains("No such file"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    (0..3).for_each(|_| exec.push(job("x")));
    runtime.block_on(async {
        // The first poll may start one after the other, but has nothing to report.
        let mut silent = std::pin::pin!(exec.report());
        for _ in 0..10 {
            tokio::select! { biased; said = &mut silent => panic!("{said}"), () = tokio::task::yield_now() => {} }
        }
    });
    assert!(exec.queue.is_empty(), "all were tried");
    // It can be started now, and fails to start again later.
    std::os::unix::fs::symlink("/bin/false", &program).unwrap();
    exec.push(job("x"));
    assert!(report(&mut exec).contains("exit code 1 "));
    std::fs::remove_file(&program).unwrap();
    exec.push(job("x"));
    assert!(report(&mut exec).contains("No such file"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_that_does_not_exist_and_one_that_reads_nothing() {
    let mut exec_none = exec("/nowhere/at-all", MINUTE);
    exec_none.push(job("x"));
    let said = report(&mut exec_none);
    assert!(said.starts_with("--exec: cannot run `/nowhere/at-all`: No such file"), "{said}");
    // Far more than a pipe holds.
    let mut long = found("x");
    long.facts.name = "y".repeat(1 << 20).into();
    long.state = State::Failed("no answer".into());
    let mut exec =
        exec("sh -c 'test ${#RALLYPOINT_NAME} = 4096 && test \"$RALLYPOINT_FAULT\" = \"no answer\" && exit 9'", MINUTE);
    exec.push(Job::new("now", ChangeKind::Changed, &["http://a", "http://b"], &long));
    assert_eq!(report(&mut exec), "--exec: `sh` ended with exit code 9 (changed netpanzer://203.0.113.5:3030)");
}

#[test]
fn command_lines() {
    assert_eq!(ExecCommand::parse("a 'b c'"), Ok(ExecCommand(vec!["a".into(), "b c".into()])));
    assert!(ExecCommand::parse("  ").is_err() && ExecCommand::parse("a 'b").is_err());
}

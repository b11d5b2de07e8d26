//! `list` and `query` when things fail: closed ports, silent servers and masters, files with mistakes.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rallypoint::protocols::{CARDS, Card};

use crate::support::netpanzer::Tank;
use crate::support::*;

/// Kills a program that does not end.
struct Ending(Option<Pid>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            let _ = kill(id, Signal::SIGKILL);
        }
    }
}

/// Runs a command with this stdin, and kills it if it does not end.
fn run(arguments: &[&str], stdin: &str) -> Output {
    let mut command = command();
    let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut ending = Ending(Some(Pid::from_raw(child.id() as i32)));
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let waiting = std::thread::spawn(move || child.wait_with_output().unwrap());
    until(&format!("{arguments:?} to end"), || waiting.is_finished().then_some(()));
    ending.0 = None;
    waiting.join().unwrap()
}

/// The command ends with this code; returns stdout and stderr.
fn ends(code: i32, arguments: &[&str], stdin: &str) -> (String, String) {
    let output = run(arguments, stdin);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    (stdout, stderr)
}

fn closed_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_closed_port_is_reported_at_once_and_a_silent_one_after_the_timeout() {
    // With the timeout, it would take minutes.
    for game in CARDS.iter().filter(|card| card.query.is_some()).map(|card| card.name) {
        let url = format!("{game}://127.0.0.1:{}", closed_port());
        let (_, stderr) = ends(1, &["query", &url, "--timeout", "60s"], "");
        assert!(stderr.starts_with(&format!("{url}: connection refused: the port is closed\n")), "{stderr}");
    }
    let game = format!("netpanzer://127.0.0.1:{}", closed_port());
    let arguments = ["announce", "x", "--from-query", &game, "--master", "netpanzer://127.0.0.1:1", "--once"];
    let (_, stderr) = ends(1, &arguments, "");
    assert!(stderr.contains(&format!("the game at {game}: connection refused")), "{stderr}");

    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("hyperbol://{}", silent.local_addr().unwrap());
    for retries in 0..=3 {
        let arguments = ["query", &url, "--timeout", "100ms", "--retries", &retries.to_string()];
        let (_, stderr) = ends(1, &arguments, "");
        assert!(stderr.starts_with(&format!("{url}: no answer\n")), "{stderr}");
        let questions = std::iter::from_fn(|| silent.recv(&mut [0; 100]).ok()).count();
        assert_eq!(questions, retries + 1);
    }
}

#[test]
fn a_silent_master_is_given_up_and_one_that_fails_is_tried_again() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // the kernel accepts connections
    let at = silent.local_addr().unwrap();
    let _also_silent = UdpSocket::bind(at).ok(); // or another silent program has that port
    let of_card = |card: &Card| format!("{}{}", card.name, if card.master_port.is_some() { "" } else { "+http" });
    for scheme in CARDS.iter().map(of_card).chain(["http", "https"].map(String::from)) {
        let (_, stderr) = ends(3, &["list", &format!("{scheme}://{at}"), "--timeout", "300ms"], "");
        assert!(stderr.contains("it did not answer in time"), "{scheme}: {stderr}");
    }
    let (_, stderr) = ends(3, &["watch", &format!("http://{at}"), "--timeout", "300ms"], "");
    assert!(stderr.contains("it did not answer in time"), "{stderr}");
    // A byte from time to time is no answer.
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = slow.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = slow.accept().unwrap();
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        while stream.write_all(b" ").is_ok() {
            let _ = stream.read(&mut [0; 10]); // waits: nothing arrives
        }
    });
    let (_, stderr) = ends(3, &["list", &format!("bloodmasters+http://{at}"), "--timeout", "500ms"], "");
    assert!(stderr.contains("it did not answer in time"), "{stderr}");

    let moody = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = moody.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in moody.incoming().map_while(Result::ok).enumerate() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 100]);
            if number % 3 == 2 {
                let _ = stream.write_all(br"\ip\203.0.113.5\port\3030\final\");
            }
        }
    });
    let url = format!("netpanzer://{at}");
    let (stdout, _) = ends(0, &["list", &url, "--retries", "2", "--format", "csv"], "");
    assert!(stdout.contains("203.0.113.5,3030"), "{stdout}");
    let (_, stderr) = ends(1, &["list", &url, "--retries", "1"], "");
    assert!(stderr.contains("cut short"), "{stderr}");
}

#[test]
fn bad_lines_are_skipped_and_qstats_lines_are_understood() {
    let (tank, other) = (Tank::new(), Tank::new());
    let text = format!(
        "# servers\n\nnetpanser://127.0.0.1\nNETP 127.0.0.1:{}\n127.0.0.1:3030\nHLS 127.0.0.1:27015\n\
         NETP 127.0.0.1:{}      5/ 8  Two clans     12 / 0  A server\n",
        tank.port, other.port
    );
    let (stdout, stderr) = ends(0, &["query", "--from", "-", "--format", "csv"], &text);
    for port in [tank.port, other.port] {
        assert!(stdout.contains(&format!("netpanzer,127.0.0.1,{port},Tank")), "{stdout}");
    }
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{stderr}");
    assert!(lines[0].starts_with("stdin:3: ") && lines[0].contains("did you mean netpanzer://127.0.0.1?"), "{stderr}");
    assert!(lines[1].starts_with("stdin:5: ") && lines[1].contains("write netpanzer://127.0.0.1:3030"), "{stderr}");
    assert!(lines[2].starts_with("stdin:6: `HLS` servers cannot be queried"), "{stderr}");
    // If no line is good, nothing was queried: the file is wrong.
    let (_, stderr) = ends(2, &["query", "--from", "-"], "127.0.0.1:3030\nhttp://127.0.0.1\n");
    assert!(stderr.ends_with("none of these can be queried\n"), "{stderr}");
}

#[test]
#[ignore = "needs qstat"]
fn qstats_output_can_be_queried() {
    let tank = Tank::new();
    let address = format!("127.0.0.1:{}", tank.port);
    for form in [&["-raw", ","][..], &["-default", "qs"]] {
        // Two types, so that quakestat prints the type.
        let mut qstat = std::process::Command::new("quakestat");
        let printed = qstat.args(form).args(["-timeout", "2", "-netp", &address, "-q3s", "127.0.0.1:1"]).output();
        let printed = String::from_utf8_lossy(&printed.expect("Debian's qstat").stdout).into_owned();
        assert!(printed.contains("NETP"), "{printed}");
        let (stdout, _) = ends(0, &["query", "--from", "-", "--format", "csv"], &printed);
        assert!(stdout.contains(&format!("netpanzer,127.0.0.1,{},Tank", tank.port)), "{printed}\n{stdout}");
    }
}

#[test]
fn many_failures_are_summed_up_in_a_few_lines() {
    let tank = Tank::new();
    let open: Vec<_> = (0..300).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let closed: Vec<_> = open.iter().map(|socket| socket.local_addr().unwrap()).collect();
    drop(open);
    let text: String = closed.iter().map(|at| format!("hyperbol://{at}\n")).collect();
    let text = format!("{text}netpanzer://127.0.0.1:{}\n", tank.port);
    let (stdout, stderr) = ends(0, &["query", "--from", "-", "--format", "xml"], &text);
    assert_eq!(stderr.lines().count(), 21, "{stderr}");
    assert!(stderr.ends_with("and 280 more: 280 connection refused\n"), "{stderr}");
    assert_eq!(stdout.matches("responding=\"0\"").count(), 300, "all of them are in the list");
}

#[test]
fn the_doctor_finds_a_server_by_its_name() {
    let server = Server::start(&[]);
    let web = format!("http://{}", server.address("web.listen"));
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"by name", 20737, 0));
    until("it", || server.listed().pop());
    for typed in ["localhost:20737", "localhost", "iceball://localhost"] {
        let (stdout, stderr) = ends(0, &["doctor", &web, "iceball", typed], "");
        assert!(stdout.starts_with("Listed"), "{stdout}");
        assert!(stderr.starts_with("localhost is 127.0.0.1:20737"), "{stderr}");
    }
    let (_, stderr) = ends(0, &["doctor", &web, "iceball", "127.0.0.1"], "");
    assert_eq!(stderr, "");
    let (_, stderr) = ends(3, &["doctor", &web, "iceball", "no-such-host.invalid"], "");
    assert!(stderr.contains("cannot find no-such-host.invalid:20737"), "{stderr}");
    let (_, stderr) = ends(2, &["doctor", &web, "chess", "localhost"], "");
    assert!(stderr.contains("write localhost:PORT"), "{stderr}");
}

//! `rallypoint announce` with a real master, and with simulated ones that misbehave.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::netpanzer::{Tank, list};
use crate::support::*;

/// A running `rallypoint announce`.
struct Announcing {
    child: Child,
    said: Log,
}

impl Announcing {
    fn start(arguments: &[&str]) -> Announcing {
        let mut command = command();
        let said = Log::new();
        command.arg("announce").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.end());
        Announcing { child: command.spawn().unwrap(), said }
    }

    fn said(&self) -> String {
        self.said.text()
    }

    fn wait_for(&self, text: &str) {
        until(&format!("`{text}` in:\n{}", self.said()), || self.said().contains(text).then_some(()));
    }

    fn stop(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Its exit code, and its whole output.
    fn end(mut self) -> (i32, String) {
        let status = until("the end", || self.child.try_wait().unwrap());
        let said = self.said();
        assert!(!said.contains("panicked"), "{said}");
        (status.code().unwrap(), said)
    }
}

impl Drop for Announcing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A simulated Iceball master.
struct Master(UdpSocket);

impl Master {
    fn new() -> Master {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Master(socket)
    }

    fn url(&self) -> String {
        format!("iceball://{}", self.0.local_addr().unwrap())
    }

    fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 4096];
        let (size, from) = self.0.recv_from(&mut buffer).expect("a datagram");
        (buffer[..size].to_vec(), from)
    }

    fn announcement(&self) -> (Vec<u8>, SocketAddr) {
        let (bytes, from) = self.receive();
        assert_eq!((bytes.len(), &bytes[..4]), (86, &b"1CEB"[..]));
        (bytes, from)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) {
        self.0.send_to(bytes, to).unwrap();
    }
}

/// Answers each connection with the result of `answer`.
fn answering(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (address, answer_on(listener, answer))
}

fn answer_on(listener: TcpListener, answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let heard = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            // A request is complete when it ends in one of these.
            while ![&br"\final\"[..], b"\r\n\r\n", b"}"].iter().any(|end| request.ends_with(end)) {
                match stream.read(&mut buffer) {
                    Ok(size) if size > 0 => request.extend(&buffer[..size]),
                    _ => break,
                }
            }
            let _ = stream.write_all(&answer(&request));
            heard.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
        }
    });
    requests
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn once(arguments: &[&str]) -> (i32, String) {
    Announcing::start(&[arguments, &["--once"]].concat()).end()
}

#[test]
fn an_iceball_server_is_listed_with_the_facts_from_the_command_line() {
    let server = Server::start(&[]);
    let master = format!("iceball://{}", server.address("iceball.listen"));
    let announcing = Announcing::start(&[
        "iceball",
        "--port",
        "20737",
        "--master",
        &master,
        "--name",
        "Grüße",
        "--mode",
        "ctf",
        "--map",
        "mesa.vxl",
        "--players",
        "3",
        "--max-players",
        "16",
    ]);
    let listed = until("the list", || server.listed().into_iter().next());
    assert_eq!((listed["name"].as_str(), listed["port"].as_u64()), (Some("Grüße"), Some(20737)));
    assert_eq!((listed["players_current"].as_u64(), listed["players_max"].as_u64()), (Some(3), Some(16)));
    assert_eq!((listed["mode"].as_str(), listed["map"].as_str()), (Some("ctf"), Some("mesa.vxl")));
    assert_eq!(listed["version"], "0.2.1-37");
    announcing.wait_for(&format!("listed at {master}"));
    announcing.stop(Signal::SIGTERM);
    assert_eq!(announcing.end(), (0, format!("listed at {master}\n")));
}

#[test]
fn a_netpanzer_game_is_listed_refusals_are_shown_and_it_quits_at_the_end() {
    let server = Server::start(&["probe.every=15m"]);
    let tank = Tank::new();
    tank.alive.store(false, Ordering::Relaxed);
    let master = format!("netpanzer://{}", server.address("netpanzer.listen"));
    let port = tank.port.to_string();
    let announcing = Announcing::start(&["netpanzer", "--port", &port, "--master", &master]);
    announcing.wait_for(&format!(
        "{master}: refused: no answer from 127.0.0.1:{port} over UDP: it is asked again within a minute; retrying"
    ));
    tank.alive.store(true, Ordering::Relaxed);
    announcing.wait_for(&format!("listed at {master}"));
    until("the list", || list(&server, "netpanzer").contains(&tank.entry()).then_some(()));
    announcing.stop(Signal::SIGINT);
    let (code, said) = announcing.end();
    assert_eq!((code, said.lines().count()), (0, 3), "{said}");
    assert!(said.ends_with(&format!("{master}: notified that the server is gone\n")), "{said}");
    until("it to leave", || (list(&server, "netpanzer") == r"\final\").then_some(()));
}

#[test]
fn once_to_several_masters_is_done_when_all_have_accepted() {
    let server = Server::start(&[]);
    let api = format!("http://{}", server.address("web.listen"));
    let netpanzer = format!("netpanzer://{}", server.address("netpanzer.listen"));
    let (code, said) = once(&["some-game", "--port", "1", "--master", &api, "--master", &netpanzer]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&format!("listed at {api}")) && said.contains(&format!("listed at {netpanzer}\n")), "{said}");
    assert_eq!(list(&server, "some-game"), r"\ip\127.0.0.1\port\1\final\", "no good-bye");

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = format!("netpanzer://{closed}");
    let (code, said) = once(&["some-game", "--port", "2", "--master", &away, "--master", &netpanzer]);
    assert_eq!(code, 1);
    assert!(said.contains(&format!("{away}: failed: cannot connect to {closed}")), "{said}");
    assert!(
        said.contains(&format!("listed at {netpanzer}\n")),
        "an unreachable master does not delay the others: {said}"
    );
    assert!(said.ends_with("accepted by 1 of 2 masters\n"), "{said}");
}

#[test]
fn only_the_masters_own_cookies_are_echoed() {
    let (master, foreign) = (Master::new(), Master::new());
    let announcing = Announcing::start(&["iceball", "--port", "7", "--master", &master.url(), "--name", "x"]);
    let (_, from) = master.announcement();
    foreign.send(b"MSOKforeign", from);
    foreign.send(b"BADF", from);
    let cookie = [b"MSOK".to_vec(), vec![0, 0xff, 0, 7], vec![b'c'; 3_000]].concat();
    for _ in 0..2 {
        master.send(&cookie, from);
        // The next announcement may arrive first.
        let echoed = until("the echo", || Some(master.receive().0).filter(|bytes| bytes.starts_with(b"HSHK")));
        assert_eq!(echoed[4..], cookie[4..]);
    }
    foreign.0.set_nonblocking(true).unwrap();
    assert!(foreign.0.recv_from(&mut [0; 10]).is_err(), "an earlier datagram would have arrived by now");
    announcing.wait_for("listed at");
    announcing.stop(Signal::SIGTERM);
    assert_eq!(announcing.end().0, 0);
}

#[test]
fn another_version_is_tried_once_and_then_the_master_is_given_up() {
    let master = Master::new();
    let announcing = Announcing::start(&["iceball", "--port", "7", "--master", &master.url(), "--version", "0.3"]);
    let (first, from) = master.announcement();
    assert_eq!(first[4..10], [2, 0, 0, 0, 0xc0, 0]);
    master.send(b"BADV\x02\0\x23\x80\x80\0", from);
    let (second, _) = master.announcement();
    assert_eq!(second[4..10], [2, 0, 0x23, 0x80, 0x80, 0]);
    master.send(b"BADV\x02\0\0\0\xc0\0", from);
    let (code, said) = announcing.end();
    assert_eq!(code, 1);
    assert!(said.contains("it expects Iceball 0.2.1-35; announced as that"), "{said}");
    assert!(said.contains(&format!("{}: given up: it takes only Iceball 0.3", master.url())), "{said}");
    assert!(said.ends_with("given up on all masters\n"), "{said}");
}

#[test]
fn an_unknown_heartbeat_version_does_not_affect_other_masters() {
    let (future, good) = (Master::new(), Master::new());
    let announcing = Announcing::start(&[
        "iceball",
        "--port",
        "7",
        "--master",
        &future.url(),
        "--master",
        &good.url(),
        "--name",
        "x",
    ]);
    let (_, from) = future.announcement();
    future.send(b"BADV\x03\0\x25\x80\x80\0", from);
    announcing.wait_for("given up: it takes only Iceball 0.2.1-37 with heartbeat version 3");
    let (_, from) = good.announcement();
    good.send(b"MSOKcookie", from);
    announcing.wait_for(&format!("listed at {}", good.url()));
    announcing.stop(Signal::SIGTERM);
    assert_eq!(announcing.end().0, 0);
}

#[test]
fn a_malformed_announcement_ends_the_program() {
    let master = Master::new();
    let (other, requests) = answering(|_| br"\final\".to_vec());
    let netpanzer = format!("netpanzer://{other}");
    let announcing = Announcing::start(&["iceball", "--port", "7", "--master", &master.url(), "--master", &netpanzer]);
    announcing.wait_for(&format!("listed at {netpanzer}"));
    for _ in 0..2 {
        let (_, from) = master.announcement();
        master.send(b"BADF", from);
    }
    let (code, said) = announcing.end();
    assert_eq!(code, 1);
    assert!(
        said.contains("malformed (BADF)")
            && said.ends_with("stopped: a master rejected the announcement as malformed\n"),
        "{said}"
    );
    assert_eq!(requests.lock().unwrap().last().unwrap(), r"\quit\port\7\final\", "the other masters get a quit");
}

#[test]
fn forged_complaints_do_not_end_what_was_accepted() {
    let master = Master::new();
    let announcing = Announcing::start(&["iceball", "--port", "7", "--master", &master.url(), "--name", "x"]);
    let (_, from) = master.announcement();
    master.send(b"MSOKcookie", from);
    until("the echo", || Some(master.receive().0).filter(|bytes| bytes == b"HSHKcookie"));
    // With the master's address: each of these once ended the program, or the announcements to this master.
    for _ in 0..2 {
        let (announced, from) = master.announcement();
        assert_eq!(announced[4..10], [2, 0, 0x25, 0x80, 0x80, 0], "with the same version as before");
        for forged in [&b"BADF"[..], b"BADV\x03\0\x25\x80\x80\0", b"BADV\x02\0\x23\x80\x80\0", b"BADF"] {
            master.send(forged, from);
        }
    }
    // The next announcement of the burst, after all of them.
    let (_, from) = master.announcement();
    master.send(b"MSOKagain", from);
    until("the echo", || Some(master.receive().0).filter(|bytes| bytes == b"HSHKagain"));
    announcing.stop(Signal::SIGTERM);
    let (code, said) = announcing.end();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("given up") && !said.contains("malformed") && !said.contains("expects"), "{said}");
}

#[test]
fn a_silent_master_is_reported_once() {
    let (silent, server) = (Master::new(), Server::start(&[]));
    let good = format!("iceball://{}", server.address("iceball.listen"));
    let arguments = ["iceball", "--port", "7", "--master", &silent.url(), "--master", &good, "--name", "x"];
    let announcing = Announcing::start(&arguments);
    announcing.wait_for(&format!("listed at {good}"));
    announcing.wait_for(&format!("{}: failed: no answer; retrying", silent.url()));
    for _ in 0..5 {
        silent.announcement();
    }
    announcing.stop(Signal::SIGTERM);
    let (code, said) = announcing.end();
    assert_eq!((code, said.lines().count()), (0, 2), "{said}");
}

#[test]
fn a_master_that_comes_back_is_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let master = format!("netpanzer://localhost:{}", address.port());
    let announcing = Announcing::start(&["any-game", "--port", "9", "--master", &master, "--name", r"A\B"]);
    announcing.wait_for(&format!("{master}: failed: cannot connect to"));
    let requests = answer_on(TcpListener::bind(address).unwrap(), |_| br"\final\".to_vec());
    announcing.wait_for(&format!("listed at {master}"));
    assert_eq!(requests.lock().unwrap()[0], r"\heartbeat\gamename\any-game\port\9\hostname\A/B\final\");
    announcing.stop(Signal::SIGTERM);
    assert_eq!(announcing.end().0, 0);
    assert_eq!(requests.lock().unwrap().last().unwrap(), r"\quit\port\9\final\");
}

#[test]
fn a_bloodmasters_list_gets_its_own_request() {
    let (address, requests) = answering(|_| http("200 OK", "198.51.100.7\r\n192.0.2.*\r\n"));
    let (code, said) = once(&["bloodmasters", "--port", "6969", "--master", &format!("bloodmasters+http://{address}")]);
    assert_eq!(code, 0, "{said}");
    let request = requests.lock().unwrap()[0].to_lowercase();
    assert!(request.starts_with("get /bloodmasterslist.php?action=update&port=6969 http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");

    for (answer, says) in [
        (http("404 Not Found", "no such page"), "refused: HTTP status 404: no such page"),
        (http("200 OK", "<html>welcome</html>"), "not a ban list"),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "failed: no HTTP answer"),
        (b"".to_vec(), "failed: no HTTP answer"),
    ] {
        let (address, _) = answering(move |_| answer.clone());
        let master = format!("bloodmasters+http://{address}/lists/bm.php");
        let (code, said) = once(&["bloodmasters", "--port", "6969", "--master", &master]);
        assert_eq!(code, 1);
        assert!(said.contains(says), "should say `{says}`: {said}");
    }
}

#[test]
fn the_api_gets_json_and_its_reason_is_shown() {
    let (address, requests) = answering(|_| http("201 Created", r#"{"address":"127.0.0.1:20200"}"#));
    let (code, said) = once(&["hyperbol", "--port", "20200", "--master", &format!("http://{address}")]);
    assert_eq!(code, 0, "{said}");
    let request = requests.lock().unwrap()[0].clone();
    assert!(request.starts_with("POST /api/v1/servers HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"game\":\"hyperbol\",\"port\":20200}"), "{request}");
    assert!(request.to_lowercase().contains("content-type: application/json\r\n"), "{request}");

    let (address, _) = answering(|_| http("422 Unprocessable Content", r#"{"reason":"no answer\u001b over UDP"}"#));
    let (code, said) = once(&["hyperbol", "--port", "20200", "--master", &format!("http://{address}/")]);
    assert_eq!(code, 1);
    assert!(said.contains(&format!("http://{address}: refused: no answer over UDP\n")), "{said}");
}

#[test]
fn hyperbol_and_bloodmasters_through_every_channel() {
    let server = Server::start(&["probe.every=15m"]);
    let web = server.address("web.listen");
    let listed = |game: &str| server.json(&format!("/api/v1/servers?game={game}"))["servers"].clone();
    let (hyperbol, _) = crate::protocols::hyperbol::game();
    let masters = [format!("http://{web}"), format!("netpanzer://{}", server.address("netpanzer.listen"))];
    for master in &masters {
        let game = format!("hyperbol://127.0.0.1:{hyperbol}");
        let (code, said) = once(&["hyperbol", "--master", master, "--from-query", &game]);
        assert_eq!((code, said), (0, format!("listed at {master}\n")));
        until("the list", || (listed("hyperbol")[0]["port"] == hyperbol).then_some(()));
    }
    let bloodmasters = crate::protocols::bloodmasters::game();
    let master = format!("bloodmasters+http://{web}/bloodmasterslist.php");
    let (code, said) = once(&["bloodmasters", "--port", &bloodmasters.to_string(), "--master", &master]);
    assert_eq!((code, said), (0, format!("listed at {master}\n")));
    until("the list", || (listed("bloodmasters")[0]["port"] == bloodmasters).then_some(()));

    // A game that does not answer is refused through the same channel, with its own message.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (code, said) = once(&["hyperbol", "--port", &silent, "--master", &masters[0]]);
    assert_eq!(code, 1);
    assert!(said.contains(&format!("{}: refused: no answer from 127.0.0.1:{silent}", masters[0])), "{said}");
}

#[test]
fn unusual_answers_of_netpanzer_masters() {
    for (answer, says) in [
        (&br"\error\wrong password for master update\final\"[..], "refused: wrong password for master update"),
        (br"\error\go away\", "refused: go away"),
        (b"", "failed: it closed the connection without an answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "failed: its answer is not a netPanzer master's"),
        (&[b'x'; 100_000], "failed: its answer is not a netPanzer master's"),
    ] {
        let (address, _) = answering(move |_| answer.to_vec());
        let (code, said) = once(&["netpanzer", "--port", "1", "--master", &format!("netpanzer://{address}")]);
        assert_eq!(code, 1);
        assert!(said.contains(says) || said.contains("connection was lost"), "should say `{says}`: {said}");
    }
}

#[test]
fn facts_from_a_query_are_announced_and_a_silent_game_is_not() {
    let server = Server::start(&[]);
    let tank = Tank::new();
    tank.players.store(5, Ordering::Relaxed);
    let master = format!("iceball://{}", server.address("iceball.listen"));
    let game = format!("netpanzer://127.0.0.1:{}", tank.port);
    let announcing = Announcing::start(&["iceball", "--master", &master, "--from-query", &game, "--mode", "of my own"]);
    let listed = until("the list", || server.listed().into_iter().next());
    assert_eq!((listed["name"].as_str(), listed["map"].as_str()), (Some("Tank <1>"), Some("Two clans")));
    assert_eq!((listed["mode"].as_str(), listed["port"].as_u64()), (Some("of my own"), Some(tank.port.into())));
    assert_eq!((listed["players_current"].as_u64(), listed["players_max"].as_u64()), (Some(5), Some(8)));
    drop(announcing);

    tank.alive.store(false, Ordering::Relaxed);
    let silent = Master::new();
    let (code, said) = once(&["iceball", "--port", "1", "--master", &silent.url(), "--from-query", &game]);
    assert_eq!(code, 1);
    assert!(said.contains(&format!("{}: not announced: the game at {game}: no answer\n", silent.url())), "{said}");
    silent.0.set_nonblocking(true).unwrap();
    assert!(silent.0.recv_from(&mut [0; 100]).is_err(), "nothing was announced");
}

#[test]
fn it_runs_on_when_stderr_is_closed() {
    let (address, requests) = answering(|_| br"\final\".to_vec());
    let mut command = command();
    command.args(["announce", "any-game", "--port", "9", "--once", "--master", &format!("netpanzer://{address}")]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(until("the end", || child.try_wait().unwrap()).code(), Some(0));
    assert_eq!(requests.lock().unwrap().len(), 1);
}

#[test]
fn mistakes_are_explained() {
    let fails = |arguments: &[&str], says: &str| {
        let output = command().arg("announce").args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says) && !said.contains("panicked"), "{arguments:?} should say `{says}`:\n{said}");
        assert!(output.stdout.is_empty());
    };
    let good = "netpanzer://127.0.0.1";
    fails(&[], "Usage");
    fails(&["netpanzer", "--master", good], "--port");
    fails(&["netpanzer", "--port", "1"], "--master");
    fails(&["netpanzer", "--port", "0", "--master", good], "0 is not in 1..");
    fails(&["netpanzer", "--port", "70000", "--master", good], "70000");
    fails(&["netpanzer", "--port", "1", "--master", "127.0.0.1:28900"], "`127.0.0.1:28900`");
    fails(&["netpanzer", "--port", "1", "--master", "iceball://127.0.0.1"], "netpanzer servers cannot be announced to");
    fails(&["hyperbol", "--port", "1", "--master", "hyperbol://127.0.0.1"], "hyperbol servers cannot be announced to");
    fails(&["netpanzer", "--port", "1", "--master", "netpanzer://127.0.0.1:0"], "from 1 to 65535");
    fails(&[r"a\b", "--port", "1", "--master", good], "printable ASCII");
    fails(&["final", "--port", "1", "--master", good], "not a valid name for a game");
    fails(&["iceball", "--port", "1", "--master", "iceball://127.0.0.1", "--version", "two"], "not a version like");
    fails(&["netpanzer", "--port", "1", "--master", good, "--name", "a\nb"], "control characters");
    fails(&["netpanzer", "--port", "1", "--master", "netpanzer://me:secret@127.0.0.1"], "logins are not supported");
    fails(
        &["iceball", "--master", "iceball://127.0.0.1", "--from-query", "iceball://127.0.0.1:1"],
        "cannot be queried",
    );
}

//! `[[notices]]`: what happens is posted to the configured addresses, signed, and again until it arrives.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cli::fetch::{Authority, request, send, serve};
use crate::cluster::nodes::{cluster_state, node, wait_for_nodes};
use crate::operation::admin::admin;
use crate::support::nats::Nats;
use crate::support::netpanzer::Tank;
use crate::support::*;

/// Part of every address and key here: it must not appear anywhere.
const HIDDEN: &str = "hidden-0123456789";
const DONE: &str = "204 No Content\r\n";

/// A web server that takes notices.
struct Hook {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    /// Statuses with their headers, for the next requests; then all is well.
    answers: Arc<Mutex<VecDeque<String>>>,
}

impl Hook {
    fn new() -> Hook {
        let (requests, answers) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<VecDeque<String>>>::default());
        let (taken, next) = (requests.clone(), answers.clone());
        let address = serve(move |mut stream| {
            let Some(request) = request(&stream) else { return };
            taken.lock().unwrap().push(request);
            let answer = next.lock().unwrap().pop_front().unwrap_or(DONE.into());
            let _ = write!(stream, "HTTP/1.1 {answer}Connection: close\r\n\r\n"); // the other side may be gone
        });
        Hook { address, requests, answers }
    }

    fn answer(&self, answers: &[&str]) {
        self.answers.lock().unwrap().extend(answers.iter().map(|answer| answer.to_string()));
    }

    /// `--set` for this address, with more keys.
    fn set(&self, keys: &str) -> String {
        format!("notices=[{{url = \"http://{}/{HIDDEN}\", name = \"hook\", {keys}}}]", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn bodies(&self) -> Vec<Value> {
        self.requests().iter().map(|request| body(request)).collect()
    }

    /// All notices that have arrived, also those that came twice.
    fn notices(&self) -> Vec<Value> {
        self.bodies().iter().flat_map(|body| body["notices"].as_array().unwrap().clone()).collect()
    }

    /// Waits for a notice of this event that fits.
    fn wait_for(&self, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(&format!("`{event}`"), || {
            self.notices().into_iter().find(|notice| notice["event"] == event && fits(notice))
        })
    }

    fn named(&self, event: &str, name: &str) -> Value {
        self.wait_for(event, |notice| notice["server"]["name"] == name)
    }
}

fn body(request: &str) -> Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = request.split_once("\r\n\r\n").unwrap();
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// What openssl says of a text.
fn hmac(secret: &str, text: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["dgst", "-sha256", "-hmac", secret]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = openssl.spawn().expect("openssl, from Debian");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().rsplit(' ').next().unwrap().to_string()
}

fn game(server: &Server, name: &str, port: u16) {
    Game::new(server.address("iceball.listen")).announce(&announcement(name.as_bytes(), port, 0));
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics").text().to_string();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("rallypoint_notices_{name}_total ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Neither an address nor a key is anywhere to be read.
fn keeps_its_secrets(server: &Server) {
    for (place, text) in [("the log", server.log()), ("the metrics", server.get("/metrics").text().to_string())] {
        assert!(!text.contains(HIDDEN), "{place}:\n{text}");
    }
}

#[test]
#[ignore = "needs openssl"]
fn servers_that_come_and_go_and_games_with_players_are_told_with_a_signature() {
    let hook = Hook::new();
    let notices = hook.set(&format!("secret = \"{HIDDEN}\", quiet = \"1s\""));
    let server = Server::start(&[&notices, "probe.every=1s", "probe.misses=2", "log=debug", "web.title=My \"games\""]);
    let tank = Tank::new();
    tank.players.store(0, Ordering::Relaxed);
    assert_eq!(tank.heartbeat(&server), r"\final\");
    let came = hook.named("came", "Tank <1>");
    let row = &came["server"];
    assert_eq!(
        (&row["game"], &row["protocol"], &row["port"]),
        (&"netpanzer".into(), &"netpanzer".into(), &tank.port.into())
    );
    assert_eq!(row["endpoint"], format!("127.0.0.1:{}", tank.port));
    assert!(came["text"].as_str().unwrap().starts_with("Tank <1> is on the list: netPanzer, 127.0.0.1:"), "{came}");

    let request = &hook.requests()[0];
    assert!(request.starts_with(&format!("POST /{HIDDEN} HTTP/1.1\r\n")), "{request}");
    assert_eq!(header(request, "content-type"), Some("application/json"));
    let signature = header(request, "x-rallypoint-signature").unwrap();
    let (time, mac) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let (_, text) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(mac, hmac(HIDDEN, &format!("{time}.{text}")));
    assert_ne!(mac, hmac(HIDDEN, &format!("{time}.{text} ")));
    assert_eq!(body(request)["master"], "My \"games\"");

    tank.players.store(3, Ordering::Relaxed);
    let players = hook.wait_for("players", |_| true);
    assert_eq!((&players["game"], &players["players"]), (&"netpanzer".into(), &3.into()));
    tank.alive.store(false, Ordering::Relaxed);
    hook.named("went", "Tank <1>");
    let told: Vec<String> = hook.notices().iter().map(|notice| notice["event"].as_str().unwrap().into()).collect();
    let place = |event: &str| told.iter().position(|told| told == event);
    assert!(place("came") < place("players") && place("players") < place("went"), "{told:?}");
    until("the metrics to count them", || (metric(&server, "sent") >= 3).then_some(()));
    keeps_its_secrets(&server);
}

#[test]
fn what_fails_is_sent_again_and_what_is_refused_is_not() {
    let (hook, elsewhere) = (Hook::new(), Hook::new());
    // An endless answer is an answer.
    hook.answer(&["500 Oops\r\n", "429 Slow Down\r\nRetry-After: 1\r\n", "200 OK\r\nContent-Length: 99999999999\r\n"]);
    let mut server = Server::start(&[&hook.set(&format!("secret = \"{HIDDEN}\", on = [\"came\"]")), "log=debug"]);
    game(&server, "one", 1);
    until("three tries", || (hook.requests().len() == 3).then_some(()));
    server.wait_for_log("notices hook: notices arrive again");
    let bodies = hook.bodies();
    assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "{bodies:?}");
    assert!(
        server.log().contains("notices hook: it answered 500 Internal Server Error; trying again"),
        "{}",
        server.log()
    );
    assert!(!server.log().contains("it answered 429"), "it is said once");
    assert_eq!((metric(&server, "sent"), metric(&server, "failed")), (1, 0));

    // A redirect is not followed, and not tried again. The next notice is.
    hook.answer(&[&format!("302 Found\r\nLocation: http://{}/\r\n", elsewhere.address)]);
    game(&server, "two", 2);
    server.wait_for_log("notices hook: it answered 302 Found: redirects are not followed");
    game(&server, "three", 3);
    hook.named("came", "three");
    until("it to be counted", || (metric(&server, "sent") == 2).then_some(()));
    assert_eq!((metric(&server, "failed"), hook.requests().len()), (1, 5));
    assert!(hook.bodies()[3]["id"] != hook.bodies()[4]["id"] && elsewhere.requests().is_empty());
    keeps_its_secrets(&server);
}

#[test]
fn many_servers_at_once_are_one_notice() {
    let hook = Hook::new();
    let server = Server::start(&[&hook.set("on = [\"came\"]")]);
    (1..=25).for_each(|port| game(&server, "one of many", port));
    let count = |notice: &Value| notice["count"].as_u64().unwrap_or(1);
    let notices = until("all of them", || {
        let notices = hook.notices();
        (notices.iter().map(count).sum::<u64>() == 25).then_some(notices)
    });
    let summary = notices.iter().find(|notice| notice["count"].is_number()).unwrap();
    assert_eq!(summary["games"]["iceball"], summary["count"]);
    assert!(hook.requests().len() <= 4, "{}", hook.requests().len());
}

#[test]
fn discord_gets_its_form_and_nobody_is_pinged() {
    let hook = Hook::new();
    let server = Server::start(&[&hook.set("form = \"discord\", on = [\"came\"]")]);
    game(&server, "@everyone **x** <@1>", 5);
    let request = until("the message", || hook.requests().pop());
    let body = body(&request);
    assert_eq!(body["allowed_mentions"], serde_json::json!({ "parse": [] }));
    let content = body["content"].as_str().unwrap();
    let expected =
        r"**\@everyone \*\*x\*\* \<\@1\>** is on the list: Iceball, `127.0.0.1:5`, 0 of 64 players, map mesa\.vxl";
    let first = content.lines().next().unwrap();
    assert!(first.starts_with(&format!("{expected} <t:")) && first.ends_with(":R>"), "{content}");
    assert_eq!(header(&request, "x-rallypoint-signature"), None);
}

#[test]
fn a_restart_says_nothing_and_a_reload_changes_the_address() {
    let (folder, hook, second) = (Folder::new("notices"), Hook::new(), Hook::new());
    folder.write("secret", &format!("{HIDDEN}\n"));
    let (file, data, socket) =
        (folder.path().join("conf.toml"), folder.path().join("data"), folder.path().join("admin.sock"));
    let configure = |hook: &Hook, form: &str| {
        let secret = folder.path().join("secret");
        let text = format!(
            "[[notices]]\nurl = \"http://{}/{HIDDEN}\"\nname = \"hook\"\nform = \"{form}\"\nsecret_file = \"{}\"\n",
            hook.address,
            secret.display()
        );
        std::fs::write(&file, text).unwrap();
    };
    let start = || {
        let set = [format!("data_dir={}", data.display()), format!("admin.socket={}", socket.display())];
        Server::start_with(&["--config", file.to_str().unwrap()], &[&set[0], &set[1]])
    };
    configure(&hook, "json");
    let server = start();
    game(&server, "old", 1);
    hook.named("came", "old");
    server.signal(Signal::SIGTERM);
    assert!(server.end().0.success());

    let mut server = start();
    until("the restored list", || (server.listed().len() == 1).then_some(()));
    let before = hook.requests().len();
    game(&server, "new", 2);
    hook.named("came", "new");
    let since: Vec<Value> = hook.bodies().split_off(before);
    assert_eq!(since.len(), 1, "{since:?}");
    assert_eq!(since[0]["notices"].as_array().unwrap().len(), 1, "{since:?}");

    // A mistake changes nothing, and is explained without a secret.
    configure(&second, "xml");
    server.signal(Signal::SIGHUP);
    server.wait_for_log("notices: form must be \"json\" or \"discord\"");
    assert_eq!(admin(&socket, &["notice-test", "hook"]), "hook: the test arrived\n");
    hook.wait_for("test", |_| true);
    configure(&second, "json");
    server.signal(Signal::SIGHUP);
    until("a test at the new address", || {
        admin(&socket, &["notice-test"]);
        second.requests().pop()
    });
    game(&server, "later", 3);
    second.named("came", "later");
    let secret = header(&second.requests()[0], "x-rallypoint-signature").map(String::from);
    assert!(secret.is_some_and(|signature| signature.starts_with("t=")));
    assert!(admin(&socket, &["status"]).contains("notices      hook: ok; 1 sent\n"));
    second.answer(&["403 Forbidden\r\n"]);
    let refused = command().arg("admin").arg("--socket").arg(&socket).arg("notice-test").output().unwrap();
    let printed = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(
        (refused.status.code(), &*printed),
        (Some(1), "hook: the test did not arrive: it answered 403 Forbidden\n")
    );
    keeps_its_secrets(&server);
}

#[test]
fn a_flood_is_told_when_it_begins_and_when_it_is_over() {
    let hook = Hook::new();
    let server =
        Server::start(&[&hook.set("on = [\"flood\"], flood = 1, quiet = \"1s\""), "guard.max_servers_per_ip=1"]);
    let flood = || {
        let game = Game::new(server.address("iceball.listen"));
        (0..200).for_each(|port| game.send(&announcement(b"flood", 1 + port, 0)));
    };
    let begun = until("the flood", || {
        flood();
        hook.notices().pop()
    });
    assert_eq!((&begun["event"], &begun["state"]), (&"flood".into(), &"begun".into()));
    assert!(
        begun["refused_per_second"].as_u64().unwrap() >= 1 && begun["budgets"]["announcements"].as_u64().unwrap() >= 10
    );
    assert_eq!(begun["networks"][0], "127.0.0.0/24");
    let over = hook.wait_for("flood", |notice| notice["state"] == "over");
    assert!(over["refused"].as_u64().unwrap() >= 10, "{over}");
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_that_is_alone_is_told_and_why() {
    let (hook, mut nats) = (Hook::new(), Nats::start("notices-alone", 1));
    let set = hook.set("on = [\"alone\"], quiet = \"1s\"");
    let (first, second) = (node("a", &nats.urls(), &[&set]), node("b", &nats.urls(), &[]));
    wait_for_nodes(&[&first, &second], 2);
    let state = |state: &'static str| move |notice: &Value| notice["state"] == state;
    nats.kill(0);
    let alone = hook.wait_for("alone", |notice| notice["reason"] == "nats");
    assert_eq!(alone["state"], "begun");
    assert_eq!(hook.bodies()[0]["node"], "a");
    nats.start_one(0);
    wait_for_nodes(&[&first, &second], 2);
    hook.wait_for("alone", state("over"));
    second.signal(Signal::SIGTERM);
    assert!(second.end().0.success());
    until("one node", || (cluster_state(&first) == (true, 1)).then_some(()));
    let newest = || hook.notices().pop().filter(|notice| notice["reason"] == "nodes");
    until("the node to be alone again", newest);
}

#[test]
#[ignore = "needs openssl"]
fn notices_go_over_https_to_who_has_a_certificate_for_it() {
    let authority = Authority::new("notices-https");
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let taken = requests.clone();
    let serve = |certificate: &str, taken: Arc<Mutex<Vec<String>>>| {
        authority.serve(certificate, move |mut stream| {
            let Some(request) = request(&mut stream) else { return };
            taken.lock().unwrap().push(request);
            send(&mut stream, format!("HTTP/1.1 {DONE}Connection: close\r\n\r\n").as_bytes());
        })
    };
    let (good, bad) = (serve("good.crt", taken), serve("elsewhere.crt", Arc::default()));
    let table =
        |name: &str, to: SocketAddr| format!("{{url = \"https://{to}/{HIDDEN}\", name = \"{name}\", on = [\"came\"]}}");
    let set = format!("notices=[{}, {}]", table("good", good), table("bad", bad));
    let mut command = command();
    command.env("SSL_CERT_FILE", authority.file()).env_remove("SSL_CERT_DIR");
    let mut server = Server::start_as(command, &[], &[&set, "log=debug"]);
    game(&server, "over TLS", 9);
    let request = until("the request", || requests.lock().unwrap().first().cloned());
    assert_eq!(body(&request)["notices"][0]["server"]["name"], "over TLS");
    server.wait_for_log("notices bad: its certificate is not for 127.0.0.1");
    keeps_its_secrets(&server);
}

/// The first block of docs/notices.md in this language that has this word in it.
fn sample(language: &str, word: &str) -> String {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/notices.md")).unwrap();
    let fence = format!("```{language}\n");
    let mut blocks = text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.contains(word)).unwrap().to_string()
}

#[test]
#[ignore = "needs openssl and python3"]
fn the_samples_of_the_document_verify_a_signature() {
    let (hook, folder) = (Hook::new(), Folder::new("notices-samples"));
    let server = Server::start(&[&hook.set(&format!("secret = \"{HIDDEN}\", on = [\"came\"]"))]);
    game(&server, "signed", 4);
    let request = until("the request", || hook.requests().pop());
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let signature = header(&request, "x-rallypoint-signature").unwrap();
    let (time, mac) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    folder.write("body", body);

    let mut shell = Command::new("sh");
    shell.args(["-c", &sample("sh", "openssl")]).current_dir(folder.path());
    let printed = shell.env("t", time).env("secret", HIDDEN).output().unwrap().stdout;
    assert!(String::from_utf8(printed).unwrap().trim().ends_with(mac));

    let python = sample("python", "def is_ours")
        + "\nimport sys\nprint(is_ours(sys.argv[1], sys.argv[2], open('body', 'rb').read()))\n";
    let program = folder.write("verify.py", &python);
    let verify = |secret: &str, signature: &str| {
        let mut python = Command::new("python3");
        python.arg(&program).args([secret, signature]).current_dir(folder.path());
        let output = python.output().expect("python3, from Debian");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    assert_eq!(verify(HIDDEN, signature), "True");
    assert_eq!(verify("another secret of ours", signature), "False");
    let earlier = time.parse::<u64>().unwrap() - 301;
    let old = format!("t={earlier},v1={}", hmac(HIDDEN, &format!("{earlier}.{body}")));
    assert_eq!(verify(HIDDEN, &old), "False", "a replay");
}

//! Networks of netPanzer masters over real sockets: discovery, heartbeats and quits.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;

use crate::support::netpanzer::{list, say};
use crate::support::*;

/// A simulated master that answers as the original does: after a list, with itself last, the connection stays open; after a
/// heartbeat or a quit it closes it.
struct Master {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Master {
    /// It lists these masters and itself, and gives this answer to heartbeats.
    fn new(knows: impl Fn() -> String + Send + 'static, to_heartbeats: &'static str) -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = Master { port: listener.local_addr().unwrap().port(), heard: Arc::default() };
        let (own, heard) = (entry(master.port), master.heard.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(br"\final\") {
                    let mut byte = [0];
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        break;
                    }
                    request.push(byte[0]);
                }
                let request = String::from_utf8(request).unwrap();
                let answer = match request.split('\\').nth(1) {
                    Some("list") => format!(r"{}{own}\final\", knows()),
                    Some("heartbeat") => to_heartbeats.into(),
                    _ => r"\final\".into(),
                };
                heard.lock().unwrap().push(request);
                let _ = stream.write_all(answer.as_bytes()); // the peer may be gone
            }
        });
        master
    }

    fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn has_heard(&self, message: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|heard| heard == message)
    }
}

fn entry(port: u16) -> String {
    format!(r"\ip\127.0.0.1\port\{port}")
}

fn heartbeat(port: u16) -> String {
    format!(r"\heartbeat\port\{port}\gamename\master\password\secret\final\")
}

fn quit(port: u16) -> String {
    format!(r"\quit\gamename\master\password\secret\port\{port}\final\")
}

#[test]
fn masters_learn_of_each_other_and_say_goodbye() {
    let (a, b) = (free_port(), free_port());
    let start = |own: u16, other: u16| {
        Server::start(&[
            &format!("netpanzer.listen=127.0.0.1:{own}"),
            &format!("netpanzer.neighbours=127.0.0.1:{other}"),
            "netpanzer.password=secret",
        ])
    };
    let first = start(a, b);
    let second = start(b, a);
    until("the first to know the second", || {
        (list(&first, "master") == format!(r"{}{}\final\", entry(b), entry(a))).then_some(())
    });
    until("the second to know the first", || {
        (list(&second, "master") == format!(r"{}{}\final\", entry(a), entry(b))).then_some(())
    });
    // Without the right password, a master cannot be removed.
    let wrong = format!(r"\quit\gamename\master\password\wrong\port\{b}\final\");
    assert_eq!(say(&first, &wrong), r"\error\wrong password for master update\final\");
    assert_eq!(say(&first, &format!(r"\quit\port\{b}\final\")), r"\final\");
    assert_eq!(say(&first, r"\list\gamename\master\password\secret\final\"), format!(r"{}\final\", entry(a)));
    assert!(list(&first, "master").starts_with(&entry(b)));
    second.signal(Signal::SIGTERM);
    let (status, log) = second.end();
    assert_eq!(status.code(), Some(0), "{log}");
    until("the first to hear the goodbye", || {
        (list(&first, "master") == format!(r"{}\final\", entry(a))).then_some(())
    });
    // Masters are not games.
    assert!(!first.get("/").text().contains(">master<"));
}

#[test]
fn an_original_master_as_neighbour() {
    let original = Master::new(|| r"\ip\127.0.0.9\port\28900".into(), r"\final\");
    let server = Server::start(&[&format!("netpanzer.neighbours={}", original.place()), "netpanzer.password=secret"]);
    let own = server.address("netpanzer.listen").port();
    let masters = until("the neighbours' masters", || {
        Some(list(&server, "master")).filter(|list| list.matches(r"\ip\").count() == 3)
    });
    assert!(masters.contains(r"\ip\127.0.0.9\port\28900") && masters.contains(&entry(original.port)), "{masters}");
    assert!(masters.ends_with(&format!(r"{}\final\", entry(own))), "{masters}");
    until("the heartbeat", || original.has_heard(&heartbeat(own)).then_some(()));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end().0.code(), Some(0));
    until("the goodbye", || original.has_heard(&quit(own)).then_some(()));
}

#[test]
fn masters_beyond_the_lists_limit_get_the_quit_too() {
    let learned: Vec<Master> = (0..5).map(|_| Master::new(String::new, r"\final\")).collect();
    let known: String = learned.iter().map(|master| entry(master.port)).collect();
    let neighbour = Master::new(move || known.clone(), r"\final\");
    let server = Server::start(&[
        &format!("netpanzer.neighbours={}", neighbour.place()),
        "netpanzer.password=secret",
        "guard.max_servers=1",
        "guard.max_servers_per_ip=1",
    ]);
    let own = server.address("netpanzer.listen").port();
    let all: Vec<&Master> = learned.iter().chain([&neighbour]).collect();
    // Stopped as soon as all have a heartbeat.
    until("the heartbeats", || all.iter().all(|master| master.has_heard(&heartbeat(own))).then_some(()));
    server.signal(Signal::SIGTERM);
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for master in all {
        assert!(master.has_heard(&quit(own)), "{:?}", master.heard.lock().unwrap());
    }
}

#[test]
fn a_master_among_its_own_neighbours_is_listed_once() {
    let own = free_port();
    // Another master lists this one under two of its addresses.
    let other = Master::new(move || format!(r"{}\ip\127.0.0.3\port\{own}", entry(own)), r"\final\");
    let ourselves = [
        format!("127.0.0.1:{own}"),
        format!("localhost:{own}"),
        format!("127.0.0.2:{own}"),
        format!("[::ffff:127.0.0.1]:{own}"),
        format!("0.0.0.0:{own}"),
    ];
    let mut server = Server::start(&[
        &format!("netpanzer.listen=0.0.0.0:{own}"),
        &format!("netpanzer.neighbours={},{}", ourselves.join(","), other.place()),
        "netpanzer.password=secret",
    ]);
    for spelling in &ourselves {
        server.wait_for_log(&format!("netpanzer.neighbours: {spelling} is this master itself"));
    }
    // Heartbeats come last in a round.
    until("the heartbeat", || other.has_heard(&heartbeat(own)).then_some(()));
    let masters = until("the other master", || {
        let masters = exchange(format!("127.0.0.1:{own}").parse().unwrap(), br"\list\gamename\master\final\\final\");
        String::from_utf8(masters).ok().filter(|masters| masters.contains(&entry(other.port)))
    });
    assert_eq!(masters, format!(r"{}{}\final\", entry(other.port), entry(own)));
}

#[test]
fn refusals_are_explained_in_words() {
    let wrong = Master::new(String::new, r"\error\wrong password for master update\final\");
    let mute = Master::new(String::new, "");
    let colourful = Master::new(String::new, "\\error\\\x1b[31mgo away\r\n\\final\\");
    let strange = Master::new(String::new, "HTTP/1.1 400 Bad Request\r\n\r\n");
    let all = [&wrong, &mute, &colourful, &strange];
    let neighbours: Vec<String> = all.iter().map(|master| master.place()).collect();
    let mut server =
        Server::start(&[&format!("netpanzer.neighbours={}", neighbours.join(",")), "netpanzer.password=secret"]);
    for (master, says) in [
        (wrong, "it refused: wrong password for master update. netpanzer.password has to be the same on both masters"),
        (mute, "it closed the connection without an answer. Is it a netPanzer master?"),
        (colourful, "it refused: [31mgo away"),
        (strange, "its answer is not netPanzer's: \"HTTP/1.1 400 Bad Request\". Is it a netPanzer master?"),
    ] {
        server.wait_for_log(&format!("netPanzer master {} does not list this one: {says}", master.place()));
    }
    assert!(!server.log().contains(['\\', '\x1b']), "{}", server.log());
}

#[test]
fn without_a_password_there_is_no_network() {
    let server = Server::start(&["netpanzer.neighbours=127.0.0.1:1"]);
    assert!(server.log().contains("without netpanzer.password there is no network"), "{}", server.log());
    let answer = say(&server, r"\heartbeat\gamename\master\port\28900\password\x\final\");
    assert_eq!(answer, r"\error\this master is in no master network\final\");
}

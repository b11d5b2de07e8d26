//! Clusters of nodes with real NATS servers on loopback, and what happens when parts of them fail.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use nix::sys::signal::Signal;
use nkeys::KeyPair;
use serde_json::json;

use crate::support::machines::{Machine, Own, inside};
use crate::support::nats::Nats;
use crate::support::netpanzer::say;
use crate::support::*;

pub fn node(name: &str, urls: &str, set: &[&str]) -> Server {
    let (urls, name) = (format!("cluster.nats={urls}"), format!("cluster.node={name}"));
    Server::start(&[&[&urls, &name, "log=debug"], set].concat())
}

pub fn cluster_state(server: &Server) -> (bool, u64) {
    let ready = server.get("/readyz");
    assert_eq!(ready.status(), 200);
    let body: serde_json::Value = serde_json::from_slice(&ready.body).unwrap();
    (body["cluster"]["connected"].as_bool().unwrap(), body["cluster"]["nodes"].as_u64().unwrap())
}

pub fn wait_for_nodes(nodes: &[&Server], count: u64) {
    for node in nodes {
        until(&format!("{count} nodes"), || (cluster_state(node) == (true, count)).then_some(()));
    }
}

/// The ports of all that a node lists.
pub fn ports(web: SocketAddr) -> BTreeSet<u16> {
    let list: serde_json::Value = serde_json::from_slice(&get(web, "/api/v1/servers?limit=1000", "").body).unwrap();
    list["servers"].as_array().unwrap().iter().map(|row| row["port"].as_u64().unwrap() as u16).collect()
}

pub fn lists(node: &Server, expected: &[u16]) -> bool {
    ports(node.address("web.listen")) == expected.iter().copied().collect()
}

pub fn announce(node: &Server, port: u16) {
    announce_from([127, 0, 0, 1].into(), node, port);
}

fn announce_from(ip: IpAddr, node: &Server, port: u16) {
    Game::on(node.address("iceball.listen"), ip).announce(&announcement(b"a game", port, 1));
    let web = node.address("web.listen");
    until("the server at its node", || ports(web).contains(&port).then_some(()));
}

/// Polls lists all the time, and records missing servers.
struct Witness {
    stop: mpsc::Sender<()>,
    expected: Arc<Mutex<HashMap<SocketAddr, BTreeSet<u16>>>>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

impl Witness {
    fn new() -> Witness {
        let expected = Arc::<Mutex<HashMap<SocketAddr, BTreeSet<u16>>>>::default();
        let ((stop, is_over), look_for) = (mpsc::channel(), expected.clone());
        let thread = std::thread::spawn(move || {
            let mut missing = Vec::new();
            let goes_on = || is_over.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout);
            while missing.is_empty() && goes_on() {
                let all = look_for.lock().unwrap();
                for (web, expected) in all.iter() {
                    let lost: Vec<_> = expected.difference(&ports(*web)).copied().collect();
                    if !lost.is_empty() {
                        missing.push(format!("{web} lost {lost:?}"));
                    }
                }
            }
            missing
        });
        Witness { stop, expected, thread }
    }

    /// From now on, this node must list these servers.
    fn expect(&self, node: &Server, ports: &[u16]) {
        self.expected.lock().unwrap().entry(node.address("web.listen")).or_default().extend(ports);
    }

    fn forget(&self, node: &Server) {
        self.expected.lock().unwrap().remove(&node.address("web.listen"));
    }

    fn saw_nothing_missing(self) {
        drop(self.stop);
        assert_eq!(self.thread.join().unwrap(), Vec::<String>::new());
    }
}

#[test]
#[ignore = "needs nats-server"]
fn three_nodes_are_one() {
    let nats = Nats::start("cluster-one", 3);
    let [a, b, c] = ["a", "b", "c"].map(|name| node(name, &nats.urls(), &[]));
    wait_for_nodes(&[&a, &b, &c], 3);

    // A server that is announced to one node is listed by all.
    announce(&a, 1001);
    for node in [&b, &c] {
        until("it at the others", || lists(node, &[1001]).then_some(()));
    }
    let row = &b.json("/api/v1/servers")["servers"][0].clone();
    assert_eq!(
        (&row["name"], &row["verified_by"], &row["map"]),
        (&"a game".into(), &"cookie".into(), &"mesa.vxl".into())
    );

    // A handshake can begin at one node and end at another: a connected node uses the shared keys.
    let mut game = Game::new(a.address("iceball.listen"));
    let cookie = game.cookie(&announcement(b"moved", 1002, 2));
    game.master = c.address("iceball.listen");
    game.handshake(&cookie);
    until("the moved one at all", || [&a, &b, &c].iter().all(|node| lists(node, &[1001, 1002])).then_some(()));

    // A server that quits at one node is removed from all, although it was announced to another.
    let tank = Tank::new(&[]);
    assert_eq!(say(&a, &tank.heartbeat()), r"\final\");
    until("the tank at all", || [&a, &b, &c].iter().all(|node| lists(node, &[1001, 1002, tank.port])).then_some(()));
    assert_eq!(say(&b, &format!(r"\quit\gamename\netpanzer\port\{}\final\", tank.port)), r"\final\");
    until("the tank to be gone", || [&a, &b, &c].iter().all(|node| lists(node, &[1001, 1002])).then_some(()));

    // A node that joins later gets the whole list, and servers stay listed when their node stops.
    let d = node("d", &nats.urls(), &[]);
    until("all at the newcomer", || lists(&d, &[1001, 1002]).then_some(()));
    wait_for_nodes(&[&a, &b, &c, &d], 4);
    a.signal(Signal::SIGTERM);
    let (status, log) = a.end();
    assert!(status.success(), "{log}");
    wait_for_nodes(&[&b, &c, &d], 3);
    assert!(lists(&b, &[1001, 1002]) && lists(&d, &[1001, 1002]));
    let metrics = b.get("/metrics").text().to_string();
    for line in ["rallypoint_cluster_connected 1", "rallypoint_cluster_nodes 3"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert!(!metrics.contains("rallypoint_cluster_merged_total 0"), "{metrics}");
}

#[test]
#[ignore = "needs nats-server"]
fn nothing_proven_is_lost_when_nats_servers_die() {
    let mut nats = Nats::planned("cluster-nats", 3);
    // A start without NATS.
    let [a, b, c] = ["a", "b", "c"].map(|name| node(name, &nats.urls(), &[]));
    let witness = Witness::new();
    for node in [&a, &b, &c] {
        assert_eq!(cluster_state(node), (false, 1));
    }
    announce(&a, 2001);
    witness.expect(&a, &[2001]);
    until("the log to say so", || a.log().contains("no connection to NATS").then_some(()));
    (0..3).for_each(|at| nats.start_one(at));
    wait_for_nodes(&[&a, &b, &c], 3);
    for node in [&b, &c] {
        until("what was announced before", || lists(node, &[2001]).then_some(()));
        witness.expect(node, &[2001]);
    }

    // One of three is killed: the others continue.
    nats.kill(0);
    announce(&b, 2002);
    witness.expect(&b, &[2002]);
    for node in [&a, &c] {
        until("what was announced meanwhile", || lists(node, &[2001, 2002]).then_some(()));
        witness.expect(node, &[2002]);
    }

    // All are killed: each node continues alone.
    nats.kill(1);
    nats.kill(2);
    for (node, port) in [(&a, 2003), (&b, 2004), (&c, 2005)] {
        until("the loss to show", || (!cluster_state(node).0).then_some(()));
        announce(node, port);
        witness.expect(node, &[port]);
    }
    assert!(lists(&c, &[2001, 2002, 2005]));
    let metrics = c.get("/metrics").text().to_string();
    assert!(metrics.contains("rallypoint_cluster_connected 0"), "{metrics}");

    // When NATS is back, the nodes are a cluster again.
    (0..3).for_each(|at| nats.start_one(at));
    for node in [&a, &b, &c] {
        until("all at all", || lists(node, &[2001, 2002, 2003, 2004, 2005]).then_some(()));
    }
    witness.saw_nothing_missing();
    let complaints =
        a.log().lines().filter(|line| line.contains("WARN") && line.contains("no connection to NATS")).count();
    assert!((2..=6).contains(&complaints), "warned at every loss, not at every attempt:\n{}", a.log());
}

#[test]
#[ignore = "needs nats-server and openssl"]
fn over_tls_and_with_a_password() {
    let mut nats = Nats::planned("cluster-tls", 1);
    let folder = nats.folder.path().to_path_buf();
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(&folder).output();
        let output = output.expect("openssl, from Debian's openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca");
    openssl("req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost");
    nats.folder.write("names", "subjectAltName=IP:127.0.0.1");
    openssl("x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem");
    let [ca, certificate, key] =
        ["ca.pem", "server.pem", "server.key"].map(|name| folder.join(name).display().to_string());
    nats.start_with(0, &["--tls", "--tlscert", &certificate, "--tlskey", &key, "--user", "node", "--pass", "secret"]);
    let port = nats.servers[0].port;
    let ca = format!("cluster.ca={ca}");
    let good = node("good", &format!("tls://node:secret@127.0.0.1:{port}"), &[&ca]);
    let stranger = node("stranger", &format!("tls://node:guess@127.0.0.1:{port}"), &[&ca]);
    let doubtful = node("doubtful", &format!("tls://node:secret@127.0.0.1:{port}"), &[]);
    wait_for_nodes(&[&good], 1);
    until("the refusal in the log", || stranger.log().contains("authorization violation").then_some(()));
    until("the doubt in the log", || doubtful.log().to_lowercase().contains("certificate").then_some(()));
    assert!(!cluster_state(&stranger).0 && !cluster_state(&doubtful).0);
    for node in [&good, &stranger, &doubtful] {
        assert!(!node.log().contains("secret") && !node.log().contains("guess"), "{}", node.log());
    }
}

#[test]
#[ignore = "needs nats-server"]
fn with_a_credentials_file() {
    let mut nats = Nats::planned("cluster-creds", 1);
    let [operator, account, system, user] =
        [KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account(), KeyPair::new_user()];
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1});
    let operator_token = token(&operator, &operator, json!({"type": "operator", "version": 2}));
    let account_token = token(&operator, &account, json!({"limits": limits, "type": "account", "version": 2}));
    // The system account cannot use JetStream.
    let system_token = token(&operator, &system, json!({"limits": {"conn": -1}, "type": "account", "version": 2}));
    let user_limits = json!({"subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2});
    let user_token = token(&account, &user, user_limits);
    let (account, system) = (account.public_key(), system.public_key());
    let config = format!(
        "operator: {operator_token}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{ {account}: {account_token}, {system}: {system_token} }}\n"
    );
    let config = nats.folder.write("nats.conf", &config);
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed().unwrap()
    );
    let creds = nats.folder.write("node.creds", &creds);
    nats.start_with(0, &["-c", config.to_str().unwrap()]);
    let good = node("good", &nats.urls(), &[&format!("cluster.credentials={}", creds.display())]);
    let stranger = node("stranger", &nats.urls(), &[]);
    wait_for_nodes(&[&good], 1);
    until("the refusal in the log", || stranger.log().contains("authorization violation").then_some(()));
    assert!(!cluster_state(&stranger).0);
    let seed = user.seed().unwrap();
    assert!(!good.log().contains(&seed), "{}", good.log());
}

/// A NATS JWT: claims about one key, signed with another.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: serde_json::Value) -> String {
    let claims =
        json!({"jti": "test", "iat": 1, "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats});
    let encode = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
    let head = encode(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let said = format!("{head}.{}", encode(claims.to_string().as_bytes()));
    format!("{said}.{}", encode(&issuer.sign(said.as_bytes()).unwrap()))
}

#[test]
#[ignore = "needs nats-server"]
fn two_nodes_of_one_name_are_told_and_hear_each_other_all_the_same() {
    let nats = Nats::start("cluster-twins", 1);
    let [a, b] = [(), ()].map(|()| node("twin", &nats.urls(), &[]));
    for node in [&a, &b] {
        until("the warning", || node.log().contains("another node has the same name, twin").then_some(()));
    }
    announce(&a, 6001);
    announce(&b, 6002);
    for node in [&a, &b] {
        until("both at both", || lists(node, &[6001, 6002]).then_some(()));
    }
}

#[test]
fn a_file_that_is_not_there_is_named_at_the_start() {
    for key in ["cluster.credentials", "cluster.ca"] {
        let set = format!("{key}=/nowhere/file");
        let output =
            command().args(["serve", "--set", "cluster.nats=nats://127.0.0.1:1", "--set", &set]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(&format!("{key}: /nowhere/file: No such file")), "{message}");
    }
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_that_is_cut_off_serves_alone_and_comes_back() {
    let nats = Nats::start("cluster-cut", 1);
    let cable = Cable::to(nats.servers[0].port);
    let [a, b] = ["a", "b"].map(|name| node(name, &nats.urls(), &[]));
    let c = node("c", &format!("nats://{}", cable.address), &[]);
    wait_for_nodes(&[&a, &b, &c], 3);
    let witness = Witness::new();
    announce(&a, 3001);
    for node in [&a, &b, &c] {
        until("the first at all", || lists(node, &[3001]).then_some(()));
        witness.expect(node, &[3001]);
    }
    cable.cut.store(true, Ordering::Relaxed);
    announce(&c, 3002);
    announce(&b, 3003);
    witness.expect(&c, &[3002]);
    witness.expect(&b, &[3003]);
    until("the cut to show", || (cluster_state(&c) == (false, 1)).then_some(()));
    until("the others to be one", || lists(&a, &[3001, 3003]).then_some(()));
    wait_for_nodes(&[&a, &b], 2);
    assert!(lists(&c, &[3001, 3002]));
    cable.cut.store(false, Ordering::Relaxed);
    for node in [&a, &b, &c] {
        until("all at all", || lists(node, &[3001, 3002, 3003]).then_some(()));
    }
    witness.saw_nothing_missing();
}

#[test]
#[ignore = "needs nats-server"]
fn a_handshake_begun_before_a_node_joined_ends_well() {
    let nats = Nats::start("cluster-join", 1);
    let cable = Cable::to(nats.servers[0].port);
    cable.cut.store(true, Ordering::Relaxed);
    let first = node("first", &nats.urls(), &[]);
    wait_for_nodes(&[&first], 1);
    let joins = node("joins", &format!("nats://{}", cable.address), &[]);
    let early = Game::new(joins.address("iceball.listen"));
    let cookie = early.cookie(&announcement(b"early", 5001, 1));
    cable.cut.store(false, Ordering::Relaxed);
    wait_for_nodes(&[&first, &joins], 2);

    let mut game = Game::new(first.address("iceball.listen"));
    let others = game.cookie(&announcement(b"from the other", 5002, 1));
    game.master = joins.address("iceball.listen");
    game.handshake(&others);
    early.handshake(&cookie);
    until("the early one, and that of the other node", || lists(&joins, &[5001, 5002]).then_some(()));
}

/// Three machines, each with a NATS server and a node, with the links between them cut.
#[test]
#[ignore = "needs nats-server and network namespaces"]
fn machines_that_cannot_reach_each_other_serve_alone_and_find_together() {
    if !inside(Own::Network, "cluster::nodes::machines_that_cannot_reach_each_other_serve_alone_and_find_together") {
        return;
    }
    let nats = Nats::on("cluster-machines", Machine::start(3));
    let urls = format!("cluster.nats={}", nats.urls());
    let nodes: Vec<Server> = (0..3)
        .map(|at| {
            let machine = nats.machine(at);
            let [web, iceball] =
                ["web.listen", "iceball.listen"].map(|key| format!("{key}={}:0", machine.for_clients()));
            let name = format!("cluster.node={at}");
            let command = machine.command(env!("CARGO_BIN_EXE_rallypoint"));
            Server::start_as(command, &[], &[&urls, &name, &web, &iceball, "iceball.life=10m", "log=debug"])
        })
        .collect();
    let [a, b, c] = [&nodes[0], &nodes[1], &nodes[2]];
    wait_for_nodes(&[a, b, c], 3);
    let announce = |node, port| announce_from(Machine::client(), node, port);
    let witness = Witness::new();
    announce(a, 4001);
    for node in &nodes {
        until("the first at all", || lists(node, &[4001]).then_some(()));
        witness.expect(node, &[4001]);
    }

    // One of three is cut off with its NATS server: it has no majority, the others have.
    nats.machine(2).plug(false);
    for (node, port) in [(c, 4002), (a, 4003)] {
        announce(node, port);
        witness.expect(node, &[port]);
    }
    until("the cut to show", || (cluster_state(c) == (false, 1)).then_some(()));
    wait_for_nodes(&[a, b], 2);
    until("the others to be one", || lists(b, &[4001, 4003]).then_some(()));
    assert!(lists(c, &[4001, 4002]));
    nats.machine(2).plug(true);
    for node in &nodes {
        until("all at all", || lists(node, &[4001, 4002, 4003]).then_some(()));
        witness.expect(node, &[4001, 4002, 4003]);
    }
    wait_for_nodes(&[a, b, c], 3);

    // All are cut off.
    (0..3).for_each(|at| nats.machine(at).plug(false));
    for (node, port) in [(a, 4004), (b, 4005), (c, 4006)] {
        announce(node, port);
        witness.expect(node, &[port]);
        until("the cut to show", || (cluster_state(node) == (false, 1)).then_some(()));
    }
    assert!(lists(b, &[4001, 4002, 4003, 4005]));
    (0..3).for_each(|at| nats.machine(at).plug(true));
    for node in &nodes {
        until("all at all", || lists(node, &[4001, 4002, 4003, 4004, 4005, 4006]).then_some(()));
    }
    witness.saw_nothing_missing();
}

#[test]
#[ignore = "needs nats-server"]
fn each_server_is_asked_by_one_node_and_by_another_when_that_is_gone() {
    let nats = Nats::start("cluster-ask", 1);
    let fast = ["probe.every=1s", "probe.misses=2"];
    let mut nodes = ["a", "b", "c"].map(|name| Some(node(name, &nats.urls(), &fast)));
    wait_for_nodes(&nodes.iter().flatten().collect::<Vec<_>>(), 3);
    let pids: Vec<u32> = nodes.iter().flatten().map(Server::id).collect();
    let tanks: Vec<Tank> = (0..6).map(|_| Tank::new(&pids)).collect();
    let all: Vec<u16> = tanks.iter().map(|tank| tank.port).collect();
    let witness = Witness::new();
    for (at, tank) in tanks.iter().enumerate() {
        let node = nodes[at % 3].as_ref().unwrap();
        assert_eq!(say(node, &tank.heartbeat()), r"\final\");
    }
    for node in nodes.iter().flatten() {
        until("all tanks at all nodes", || lists(node, &all).then_some(()));
        witness.expect(node, &all);
    }
    // Several nodes may have queried them at first; from now on it is one each.
    tanks.iter().for_each(Tank::forget_askers);
    for tank in &tanks {
        until("five rounds", || (tank.questions() >= 5).then_some(()));
        let askers = tank.askers();
        assert_eq!(askers.len(), 1, "{} was asked by {askers:?}", tank.port);
    }
    let askers: BTreeSet<u32> = tanks.iter().flat_map(Tank::askers).collect();
    assert!(askers.len() > 1, "one node asks all");

    // The node that queries the first is killed.
    let first = tanks[0].askers();
    let dead = nodes.iter().position(|node| first.contains(&node.as_ref().unwrap().id())).unwrap();
    witness.forget(nodes[dead].as_ref().unwrap());
    drop(nodes[dead].take());
    tanks.iter().for_each(Tank::forget_askers);
    until("another node to ask it", || (tanks[0].questions() >= 3).then_some(()));
    assert_eq!(tanks[0].askers().len(), 1);
    assert_ne!(tanks[0].askers(), first);

    // A server that falls silent is removed everywhere, and listed again everywhere.
    let left: Vec<&Server> = nodes.iter().flatten().collect();
    witness.saw_nothing_missing();
    tanks[0].alive.store(false, Ordering::Relaxed);
    for node in &left {
        until("it to leave all lists", || lists(node, &all[1..]).then_some(()));
    }
    tanks[0].alive.store(true, Ordering::Relaxed);
    for node in &left {
        until("it on all lists again", || lists(node, &all).then_some(()));
    }
}

/// The UDP ports that a node currently queries from: its sockets that are not on a loopback address.
fn asks_from(pid: u32) -> BTreeSet<u16> {
    let table = std::fs::read_to_string("/proc/self/net/udp6").unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let inodes: BTreeSet<String> = descriptors
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(String::from))
        .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = lines.filter(|line| inodes.contains(line[9]));
    own.map(|line| u16::from_str_radix(line[1].rsplit(':').next().unwrap(), 16).unwrap()).collect()
}

/// A proxy to a NATS server that can drop all data silently.
struct Cable {
    address: SocketAddr,
    cut: Arc<AtomicBool>,
}

impl Cable {
    fn to(port: u16) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cable = Cable { address: listener.local_addr().unwrap(), cut: Arc::default() };
        let cut = cable.cut.clone();
        // This thread ends with the test's process.
        std::thread::spawn(move || {
            for here in listener.incoming().flatten() {
                let Ok(there) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to) in [(&here, &there), (&there, &here)] {
                    let (from, to, cut) = (from.try_clone().unwrap(), to.try_clone().unwrap(), cut.clone());
                    std::thread::spawn(move || carry(from, to, &cut));
                }
            }
        });
        cable
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 16 << 10];
    while let Ok(size @ 1..) = from.read(&mut buffer) {
        until("the line to be whole again", || (!cut.load(Ordering::Relaxed)).then_some(()));
        if to.write_all(&buffer[..size]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// A simulated netPanzer game that records which of some processes queried it.
struct Tank {
    port: u16,
    alive: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<Option<u32>>>>,
}

impl Tank {
    fn new(pids: &[u32]) -> Tank {
        let pids = pids.to_vec();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let tank = Tank { port, alive: Arc::new(AtomicBool::new(true)), asked: Arc::default() };
        let (alive, asked) = (tank.alive.clone(), tank.asked.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 500];
            while let Ok((size, from)) = socket.recv_from(&mut buffer) {
                let pid = pids.iter().find(|pid| asks_from(**pid).contains(&from.port()));
                asked.lock().unwrap().push(pid.copied());
                if !alive.load(Ordering::Relaxed) {
                    continue;
                }
                let status = br"gamename\netpanzer\protocol\1122\hostname\Tank\gameversion\0.8.7\mapname\Two clans\numplayers\1\maxplayers\8\final\";
                for answer in netpanzer_answers(&buffer[..size], status) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        tank
    }

    fn heartbeat(&self) -> String {
        format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", self.port)
    }

    fn forget_askers(&self) {
        self.asked.lock().unwrap().clear();
    }

    fn questions(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn askers(&self) -> BTreeSet<u32> {
        self.asked.lock().unwrap().iter().copied().flatten().collect()
    }
}

//! The cost of querying servers: simulated netPanzer games, each queried for its proof and its status.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::measure::cpu;
use crate::report::verdict;
use crate::support::Server;

/// Each has its own socket, and systems allow a process about 20,000.
const SERVERS: u32 = 10_000;
/// As many queries as to 100,000 servers every 30 s.
const EVERY: &str = "probe.every=3s";
const FOR: Duration = Duration::from_secs(20);
/// If listing all of them takes longer, something is broken.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Killed when the benchmark ends or panics.
struct Games(Child);

impl Drop for Games {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn run() {
    let server = Server::start(&[EVERY, "guard.max_servers_per_ip=65535"]);
    let master = format!("netpanzer://{}", server.address("netpanzer.listen"));
    let mut games = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    games.args(["simulate", "netpanzer", "--count", &SERVERS.to_string(), "--announce", &master]);
    let games = games.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _games = Games(games);
    let began = Instant::now();
    let listed = || server.json("/readyz")["servers"].as_u64().unwrap() as u32;
    while listed() < SERVERS && began.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(listed(), SERVERS, "not all servers were listed");
    let (before, began) = (cpu(server.id()), Instant::now());
    std::thread::sleep(FOR);
    let share = (cpu(server.id()) - before).as_secs_f64() / began.elapsed().as_secs_f64();
    assert_eq!(listed(), SERVERS, "some servers were removed although they answer");
    println!("{SERVERS} servers queried every 3 s, as many queries as to 100,000 every 30 s; all stay listed");
    verdict("  share of a core", share, share <= 1.0, "at most 1");
}

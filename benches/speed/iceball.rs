//! The server's cost of an announcement with its handshake, compared with the same datagrams through an echo server, with a
//! short and a long list.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::echo::Echo;
use crate::load::{self, Content, Texts};
use crate::measure::{cpu, dropped, median};
use crate::report::Report;
use crate::support::Server;

const PER_IP: u16 = 16;
const SHORT: u32 = 10_000 / PER_IP as u32;
const LONG: u32 = 1_000_000 / PER_IP as u32;
/// The echo and the server take turns, so that a disturbance of the machine affects both, or only some rounds.
const ROUNDS: u16 = 7;
/// Visits per round: enough that the clock's resolution of 10 ms does not matter.
const VISITS: usize = 20_000;

pub fn run() {
    let server = start();
    let mut echo = Echo::start();
    let mut list = |ips| {
        let added = fill(&server, 0..ips, PER_IP, Texts::Typical);
        println!("{} listed; each new one took {added} ns of the server's time", ips * u32::from(PER_IP));
        compare(&server, &mut echo, ips)
    };
    let (short, long) = (list(SHORT), list(LONG));
    // Ratios to the echo at the same time, so that a machine that became slower meanwhile does not matter.
    let growth = median(long) / median(short);
    Report::new("the ratio at 1,000,000 to that at 10,000", "", &[growth]).at_most(1.5);
}

/// No server expires during a benchmark, and an address and its network may have many servers.
pub fn start() -> Server {
    Server::start(&["iceball.life=1h", "guard.max_servers_per_ip=65535", "guard.exempt=127.0.0.0/8"])
}

/// The ratios of all rounds: the server's time to the echo's.
fn compare(server: &Server, echo: &mut Echo, ips: u32) -> Vec<f64> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let content = Content { texts: Texts::Typical, players: 10 + round, changing: 10 };
        theirs.push(cost(echo.address, echo.id(), ips, content));
        ours.push(cost(server.address("iceball.listen"), server.id(), ips, content));
    }
    let servers = ips * u32::from(PER_IP);
    assert_eq!(listed(server), servers);
    println!("the echo received in batches of {:.1}", echo.batch());
    let report = Report::new("announcement + handshake", "ns", &ours).servers(servers);
    report.beside("an echo of the same datagrams", &theirs).at_most(1.5);
    ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect()
}

/// Nanoseconds of processor time for one announcement and its handshake.
fn cost(master: SocketAddr, pid: u32, ips: u32, content: Content) -> f64 {
    let (lost, before) = (dropped(master.port()), cpu(pid));
    let driven = load::drive(master, content, Some(pid), load::jumping(ips, PER_IP).take(VISITS));
    let lost = dropped(master.port()) - lost;
    // Lost datagrams cost nothing, and repeated ones cost twice.
    let few = (lost + driven.sent_again) * 1000 < driven.pairs;
    assert!(few, "{lost} datagrams were lost, {driven:?}; a larger net.core.rmem_max may help");
    settle(pid);
    (cpu(pid) - before).as_nanos() as f64 / driven.pairs as f64
}

/// Waits until the process is idle.
fn settle(pid: u32) {
    let start = Instant::now();
    let mut before = cpu(pid);
    while start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(100));
        let now = cpu(pid);
        if now == before {
            return;
        }
        before = now;
    }
}

/// Announces servers and checks that they are listed. Returns the server's time per new server, in nanoseconds.
pub fn fill(server: &Server, ips: Range<u32>, per_ip: u16, texts: Texts) -> u64 {
    let expected = ips.end * u32::from(per_ip);
    let content = Content { texts, players: 3, changing: 10 };
    let before = cpu(server.id());
    let mut pairs = 0;
    // A lost handshake shows only in the list.
    for _ in 0..3 {
        pairs += load::drive(server.address("iceball.listen"), content, None, load::all(ips.clone(), per_ip)).pairs;
        let start = Instant::now();
        // Several times the interval at which the list is published.
        while start.elapsed() < Duration::from_secs(10) {
            if listed(server) == expected {
                return (cpu(server.id()) - before).as_nanos() as u64 / pairs;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    panic!("{} are listed, not {expected}", listed(server));
}

fn listed(server: &Server) -> u32 {
    server.json("/readyz")["servers"].as_u64().unwrap() as u32
}

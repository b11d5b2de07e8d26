//! What an announcement with its handshake costs the server, against the same datagrams through a bare echo, with a
//! short and with a long list.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::echo::Echo;
use crate::load::{self, Say, Texts};
use crate::measure::{cpu, dropped, median, verdict};
use crate::support::Server;

const PER_IP: u16 = 16;
const SHORT: u32 = 10_000 / PER_IP as u32;
const LONG: u32 = 1_000_000 / PER_IP as u32;
/// The echo and the server take turns; a disturbance of the machine then meets both, or only some rounds.
const ROUNDS: u16 = 7;
/// Visits of one round: enough that the clock's 10 ms do not matter.
const VISITS: usize = 20_000;

pub fn run() {
    let server = start();
    let mut echo = Echo::start();
    let mut list = |ips| {
        let added = fill(&server, 0..ips, PER_IP, Texts::Typical);
        println!("{} listed; a new one took {added} ns of the server's time", ips * u32::from(PER_IP));
        compare(&server, &mut echo, ips)
    };
    let (short, long) = (list(SHORT), list(LONG));
    verdict("at 10,000, server / echo", short, short <= 1.5, "at most 1.5");
    verdict("at 1,000,000, server / echo", long, long <= 1.5, "at most 1.5");
    // Each against the echo of its own minutes, so that a machine that got slower meanwhile does not count.
    verdict("1,000,000 / 10,000", long / short, long / short <= 1.5, "at most 1.5");
}

/// Nobody's life ends during a benchmark, and one address may have many servers, as may its network.
pub fn start() -> Server {
    Server::start(&["iceball.life=1h", "guard.max_servers_per_ip=65535", "guard.exempt=127.0.0.0/8"])
}

/// The server's time to the echo's: the median of the rounds.
fn compare(server: &Server, echo: &mut Echo, ips: u32) -> f64 {
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let say = Say { texts: Texts::Typical, players: 10 + round };
        let by_echo = cost(echo.address, echo.id(), ips, say);
        let by_server = cost(server.address("iceball.listen"), server.id(), ips, say);
        ratios.push(by_server / by_echo);
        ours.push(by_server);
        theirs.push(by_echo);
    }
    assert_eq!(listed(server), ips * u32::from(PER_IP));
    println!(
        "  announcement + handshake: server {:.0} ns, echo {:.0} ns (in batches of {:.1}); ratios of the rounds: {}",
        median(ours),
        median(theirs),
        echo.batch(),
        ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" ")
    );
    median(ratios)
}

/// Nanoseconds of processor time for one announcement and its handshake.
fn cost(master: SocketAddr, pid: u32, ips: u32, say: Say) -> f64 {
    let (lost, before) = (dropped(master.port()), cpu(pid));
    let driven = load::drive(master, say, Some(pid), load::jumping(ips, PER_IP).take(VISITS));
    let lost = dropped(master.port()) - lost;
    // What was lost cost nothing, and what was sent again cost twice.
    let few = (lost + driven.sent_again) * 1000 < driven.pairs;
    assert!(few, "{lost} datagrams were lost, {driven:?}; a larger net.core.rmem_max may help");
    settle(pid);
    (cpu(pid) - before).as_nanos() as f64 / driven.pairs as f64
}

/// Waits until the process has worked off what it has.
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

/// Lists servers and makes sure that they are listed; the server's time for a new one, in nanoseconds.
pub fn fill(server: &Server, ips: Range<u32>, per_ip: u16, texts: Texts) -> u64 {
    let expected = ips.end * u32::from(per_ip);
    let say = Say { texts, players: 3 };
    let before = cpu(server.id());
    let mut pairs = 0;
    // A handshake that was lost is noticed only by the list.
    for _ in 0..3 {
        pairs += load::drive(server.address("iceball.listen"), say, None, load::all(ips.clone(), per_ip)).pairs;
        let start = Instant::now();
        // The list is published at a pace of its own; this is several times that.
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

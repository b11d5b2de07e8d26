//! The server's cost of an announcement with its handshake, compared with the same datagrams through an echo server, and its
//! memory, while the list grows from 1,000 to 1,000,000 servers.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::echo::Echo;
use crate::load::{self, Content, Dialect, Drive, Texts};
use crate::measure::{cpu, dropped, median, stop_cost};
use crate::report::Report;
use crate::support::{LISTENERS, Server};

/// Announcements per round: enough for about a quarter of a second of the server's time.
const ANNOUNCEMENTS: usize = 65_536;
/// Timers of an idle process take less of a tenth of a second.
const IDLE: Duration = Duration::from_millis(2);
/// How often a round is tried in which datagrams get lost.
const TRIES: usize = 5;
/// Servers in the list, and rounds with so many. In a round, the echo and the server
/// take turns, so that a disturbance of the machine affects both, or only some rounds.
const SIZES: [(u32, u16); 4] = [(1_000, 3), (10_000, 5), (100_000, 5), (1_000_000, 7)];

/// A protocol whose servers announce themselves with datagrams.
pub struct Exchange {
    pub title: &'static str,
    pub dialect: Dialect,
    /// The key of its listener.
    pub listener: &'static str,
    /// Servers at an address.
    pub per_ip: u16,
    /// What an exchange may cost, as a ratio to the echo.
    pub ratio_max: f64,
}

impl Exchange {
    pub fn run(&self) {
        let server = start_alone(self.listener);
        let (socket, mut echo) = (UdpSocket::bind("0.0.0.0:0").unwrap(), Echo::start(self.dialect));
        let (mut listed, mut ratios) = (0, Vec::new());
        for (servers, rounds) in SIZES {
            let ips = servers / u32::from(self.per_ip);
            let added = self.fill(&server, &socket, listed..ips);
            println!("{servers} listed; each new one took {added} ns of the server's time");
            listed = ips;
            let memory = server.memory_kib() as f64 / 1024.0;
            Report::new(&format!("{}: memory", self.title), "MiB", &[memory]).servers(servers).untargeted();
            ratios.push(median(self.compare(&server, &socket, &echo, (servers, rounds))));
        }
        println!("the echo received in batches of {:.1}", echo.batch());
        // Ratios to the echo at the same time, so that a machine that became slower meanwhile does not matter.
        let growth = ratios[SIZES.len() - 1] / ratios[1];
        Report::new("the ratio at 1,000,000 to that at 10,000", "", &[growth]).at_most(1.25);
    }

    /// The ratios of all rounds: the server's time to the echo's.
    fn compare(&self, server: &Server, socket: &UdpSocket, echo: &Echo, (servers, rounds): (u32, u16)) -> Vec<f64> {
        let ips = servers / u32::from(self.per_ip);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let content = Content { texts: Texts::Typical, players: 10 + round, changing: 10 };
            theirs.push(self.cost(echo.address(), echo.id(), socket, ips, content));
            ours.push(self.cost(server.address(self.listener), server.id(), socket, ips, content));
        }
        assert_eq!(listed(server), servers);
        let name = format!("{}: announcement + handshake", self.title);
        let report = Report::new(&name, "µs", &ours).servers(servers);
        report.beside("an echo of the same datagrams", &theirs).at_most(self.ratio_max);
        ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect()
    }

    /// Microseconds of processor time for one announcement and its handshake, without what stopping the process takes. A round in
    /// which datagrams were lost or repeated does not count: lost ones cost nothing, and repeated ones cost twice.
    fn cost(&self, master: SocketAddr, pid: u32, socket: &UdpSocket, ips: u32, content: Content) -> f64 {
        let drive = Drive { socket, dialect: self.dialect, master, hold: Some(pid), is_gentle: false };
        let stop_cost = stop_cost(pid);
        let cost = (0..TRIES).find_map(|_| self.undisturbed_cost(drive, stop_cost, ips, content));
        cost.expect("a round without losses; a larger net.core.rmem_max or a quieter machine may help")
    }

    fn undisturbed_cost(&self, drive: Drive<'_>, stop_cost: Duration, ips: u32, content: Content) -> Option<f64> {
        let (master, pid) = (drive.master, drive.hold?);
        let visits = ANNOUNCEMENTS / usize::from(self.per_ip);
        let (lost, before) = (dropped(master.port()), cpu(pid));
        let driven = drive.run(content, load::jumping(ips, self.per_ip).take(visits));
        let lost = dropped(master.port()) - lost;
        settle(pid);
        let is_undisturbed = (lost + driven.sent_again) * 1000 < driven.pairs;
        if !is_undisturbed {
            println!("once more: {lost} datagrams were lost, {driven:?}");
        }
        let spent = (cpu(pid) - before).saturating_sub(stop_cost * driven.stops);
        is_undisturbed.then(|| spent.as_secs_f64() * 1e6 / driven.pairs as f64)
    }

    /// Announces servers and checks that they are listed. Returns the server's time per new server, in nanoseconds.
    fn fill(&self, server: &Server, socket: &UdpSocket, ips: std::ops::Range<u32>) -> u64 {
        let master = server.address(self.listener);
        let drive = Drive { socket, dialect: self.dialect, master, hold: None, is_gentle: false };
        let content = Content { texts: Texts::Typical, players: 3, changing: 10 };
        let expected = ips.end * u32::from(self.per_ip);
        fill_with(server, expected, || drive.run(content, load::all(ips.clone(), self.per_ip)).pairs)
    }
}

/// No server expires during a benchmark, and an address and its network may have many servers.
pub fn start() -> Server {
    start_with(&[])
}

/// The same with this listener only, besides that of the page. The process is stopped and continued again and again, which wakes
/// all its threads: those of other games would be measured, too.
pub fn start_alone(listener: &str) -> Server {
    let others = LISTENERS.iter().filter(|key| *key != listener && !key.starts_with("web."));
    let off: Vec<String> = others.map(|key| format!("{key}=")).collect();
    start_with(&off.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same with more settings.
pub fn start_with(more: &[&str]) -> Server {
    let lives = ["iceball.life=1h", "quake3.life=1h", "xash3d.life=1h", "probe.every=15m"];
    Server::start(&[&lives[..], &["guard.max_servers_per_ip=65535", "guard.exempt=127.0.0.0/8"], more].concat())
}

/// Announces servers until all are listed. Returns the server's time per new server, in nanoseconds.
pub fn fill_with(server: &Server, expected: u32, announce: impl Fn() -> u64) -> u64 {
    let before = cpu(server.id());
    let mut pairs = 0;
    // A lost handshake shows only in the list.
    for _ in 0..3 {
        pairs += announce();
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

/// Waits until the process is idle.
pub fn settle(pid: u32) {
    let start = Instant::now();
    let mut before = cpu(pid);
    while start.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(100));
        let now = cpu(pid);
        if now - before < IDLE {
            return;
        }
        before = now;
    }
}

pub fn listed(server: &Server) -> u32 {
    server.json("/readyz")["servers"].as_u64().unwrap() as u32
}

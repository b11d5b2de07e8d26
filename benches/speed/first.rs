//! First answers: with 100,000 servers and 100 changes a second, how long a client waits that asks right after a change, for the
//! lists that everybody asks for, after a long pause, and for searches that nobody has made before.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};

use crate::iceball::{fill, start};
use crate::load::{self, Content, Texts, Visit};
use crate::measure::median;
use crate::report::Report;
use crate::support::{self, Server};

const PER_IP: u16 = 16;
const IPS: u32 = 6_250;
const SERVERS: u32 = IPS * PER_IP as u32;
const CHANGE_EVERY: Duration = Duration::from_millis(10);
const REQUESTS: usize = 300;
/// Longer than lists are prepared for after somebody has asked for them.
const LONG_PAUSE: Duration = Duration::from_secs(35);
const LISTS: [&str; 3] = ["/master.json", "/", "/api/v1/servers?limit=50"];

pub fn run() {
    let server = start();
    fill(&server, 0..IPS, PER_IP, Texts::Typical);
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| change_until(&stop, &server, &changes));
        let asked = Asked { address: server.address("web.listen"), changes: &changes };
        for path in LISTS {
            let mut times: Vec<f64> = (0..REQUESTS).map(|_| asked.after_a_change(path)).collect();
            report(&format!("{path}, right after a change"), &mut times, Some(20.0));
        }
        let mut searches: Vec<f64> = (0..REQUESTS)
            .map(|number| asked.after_a_change(&format!("/api/v1/servers?q=.{number}:&limit=50")))
            .collect();
        let typical = median(searches.clone());
        Report::new("a search, right after a change: median", "ms", &[typical]).servers(SERVERS).at_most(5.0);
        report("a search, right after a change", &mut searches, None);
        std::thread::sleep(LONG_PAUSE);
        for path in LISTS.into_iter().chain(["/api/v1/servers?q=tanks&limit=50"]) {
            let first = asked.after_a_change(path);
            let target = if path.contains("q=") { None } else { Some(20.0) };
            report(&format!("{path}, after a pause of {} s", LONG_PAUSE.as_secs()), &mut [first], target);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn report(what: &str, times: &mut [f64], target: Option<f64>) {
    times.sort_by(f64::total_cmp);
    let worst = times[(times.len() * 99).div_ceil(100) - 1];
    let name = if times.len() > 1 { format!("{what}: 99th percentile") } else { what.to_string() };
    let worst = [worst];
    let report = Report::new(&name, "ms", &worst).servers(SERVERS);
    match target {
        Some(target) => _ = report.at_most(target),
        None => report.untargeted(),
    }
}

/// Changes one server after another, a hundred a second.
fn change_until(stop: &AtomicBool, server: &Server, changes: &AtomicU64) {
    let master = server.address("iceball.listen");
    let start = Instant::now();
    for number in 0u32.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let content = Content { texts: Texts::Typical, players: 4 + (number / IPS % 50) as u16, changing: 1 };
        load::drive(master, content, None, std::iter::once(Visit { ip: number % IPS, ports: 0..1 }));
        changes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep((CHANGE_EVERY * (number + 1)).saturating_sub(start.elapsed()));
    }
}

struct Asked<'a> {
    address: SocketAddr,
    changes: &'a AtomicU64,
}

impl Asked<'_> {
    /// Waits for the next change, asks on a new connection, and returns the milliseconds until the answer begins to arrive.
    fn after_a_change(&self, path: &str) -> f64 {
        let before = self.changes.load(Ordering::Relaxed);
        while self.changes.load(Ordering::Relaxed) == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        let mut stream = support::connect(self.address);
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut buffer = vec![0; 1 << 20];
        let size = recv(stream.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        let took = start.elapsed();
        assert!(buffer[..size].starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&buffer[..size]));
        while recv(stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC).unwrap() > 0 {}
        took.as_secs_f64() * 1e3
    }
}

//! Attacks by one address, or by many, on a master with 100,000 servers, and what others notice of them. With
//! `RALLYPOINT_BASELINE=/path/to/rallypoint`, the same attacks on another build, in the same run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::iceball::fill;
use crate::load::Texts;
use crate::measure::cpu;
use crate::support::{Game, Server, announcement, command};

const PER_IP: u16 = 16;
const IPS: u32 = 100_000 / PER_IP as u32;
const ROUND: Duration = Duration::from_secs(6);
const ATTACKER: &str = "127.0.0.2";
const OTHER: &str = "127.0.0.3";

pub fn run() {
    let baseline = std::env::var("RALLYPOINT_BASELINE").ok();
    let builds = baseline.iter().map(|path| ("baseline", Command::new(path)));
    for (name, program) in builds.chain([("this build", command())]) {
        println!("{name}");
        // Servers are at exempt addresses; attackers and others are not.
        let many = ["iceball.life=1h", "guard.max_servers_per_ip=65535", "guard.exempt=127.1.0.0/16"];
        let server = Server::start_as(program, &[], &many);
        fill(&server, 0..IPS, PER_IP, Texts::Typical);
        calm(&server);
        searches(&server);
        filtered_lists(&server);
        never_read(&server);
        drop(server);
        let program = if name == "baseline" { Command::new(baseline.as_deref().unwrap()) } else { command() };
        changing_servers(&Server::start_as(program, &[], &["iceball.life=1h"]));
    }
}

fn connect_from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.into()
}

/// The status, and how long it took.
fn get(ip: &str, to: SocketAddr, path: &str) -> (u16, Duration) {
    let started = Instant::now();
    let mut stream = connect_from(ip, to);
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    if stream.write_all(request.as_bytes()).is_err() {
        return (0, started.elapsed());
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let status = answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok()).unwrap_or(0);
    (status, started.elapsed())
}

/// What another client gets meanwhile: 95th percentiles.
fn others(server: &Server, what: &str, pause: Duration) {
    let web = server.address("web.listen");
    for path in ["/healthz", "/api/v1/servers?limit=20&q=somebody", "/api/v1/servers"] {
        let started = Instant::now();
        let mut times = Vec::new();
        let mut failed = 0;
        while started.elapsed() < ROUND / 3 {
            let (status, took) = get(OTHER, web, path);
            failed += u32::from(status != 200);
            times.push(took);
            std::thread::sleep(pause);
        }
        times.sort_unstable();
        let p95 = times[times.len() * 95 / 100].as_secs_f64() * 1e3;
        println!("  {what}: {path} for others: {p95:.1} ms (95th percentile of {}), {failed} refused", times.len());
    }
}

fn calm(server: &Server) {
    others(server, "no attack", Duration::from_millis(200));
}

/// 33 searches a second from one address.
fn searches(server: &Server) {
    let (web, before, started) = (server.address("web.listen"), cpu(server.id()), Instant::now());
    let (mut refused, mut number, mut times) = (0, 0, Vec::new());
    while started.elapsed() < ROUND {
        number += 1;
        let (status, took) = get(ATTACKER, web, &format!("/api/v1/servers?q=somebody%27s+{number}&sort=name"));
        refused += u32::from(status == 429 || status == 503);
        if status == 200 {
            times.push(took.as_secs_f64() * 1e3);
        }
        std::thread::sleep((started + number * Duration::from_millis(30)).saturating_duration_since(Instant::now()));
    }
    let core = (cpu(server.id()) - before).as_secs_f64() / started.elapsed().as_secs_f64();
    let median = crate::measure::median(times);
    println!("  33 searches/s: {:.0} % of a core, {median:.1} ms each, {refused} of {number} refused", core * 100.0);
}

/// 64 connections of one address that ask for filtered lists.
fn filtered_lists(server: &Server) {
    let (address, stop, lists) = (server.address("netpanzer.listen"), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..64 {
            let (stop, lists) = (&stop, &lists);
            scope.spawn(move || {
                let mut round: u64 = number;
                while !stop.load(Ordering::Relaxed) {
                    round += 64;
                    // Each list is another one: no server has this key, but all are looked at.
                    let mut stream = connect_from(ATTACKER, address);
                    let request = format!(r"\list\gamename\iceball\port\20003\mapname\{round}\final\\final\");
                    let _ = stream.write_all(request.as_bytes());
                    let mut answer = Vec::new();
                    let _ = stream.read_to_end(&mut answer);
                    let is_list = answer == br"\final\";
                    lists.fetch_add(u64::from(is_list), Ordering::Relaxed);
                    if !is_list {
                        std::thread::sleep(Duration::from_millis(20)); // an attacker on the same machine takes its share of it
                    }
                }
            });
        }
        others(server, "64 connections, filtered lists", Duration::from_millis(20));
        stop.store(true, Ordering::Relaxed);
    });
    println!("  the attacker got {} lists", lists.load(Ordering::Relaxed));
}

/// 1,500 connections of 25 addresses, each of which asks for a list of its own and never reads.
fn never_read(server: &Server) {
    let before = server.memory_kib();
    let web = server.address("web.listen");
    let mut silent = Vec::new();
    for number in 0..1_500 {
        let mut stream = connect_from(&format!("127.0.9.{}", 1 + number / 60), web);
        let sort = ["name", "-name", "map"][number % 3];
        let request =
            format!("GET /api/v1/servers?sort={sort}&limit={} HTTP/1.1\r\nHost: bench\r\n\r\n", 1_000 - number / 3);
        let _ = stream.write_all(request.repeat(5).as_bytes());
        silent.push(stream);
    }
    std::thread::sleep(ROUND);
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!("  1,500 that never read: {:.0} MiB before, {:.0} MiB then", mib(before), mib(server.memory_kib()));
}

/// One address changes 32 servers while 200 clients read events.
fn changing_servers(server: &Server) {
    let (web, stop, bytes) = (server.address("web.listen"), AtomicBool::new(false), AtomicU64::new(0));
    let game = Game::on(server.address("iceball.listen"), [127, 1, 0, 1].into());
    game.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap(); // what is over budget gets no answer
    std::thread::scope(|scope| {
        for number in 0..200 {
            let mut stream = connect_from(&format!("127.0.8.{}", 1 + number % 50), web);
            stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: bench\r\n\r\n").unwrap();
            let (stop, bytes) = (&stop, &bytes);
            scope.spawn(move || {
                let mut reader = BufReader::new(stream);
                while !stop.load(Ordering::Relaxed) {
                    let size = reader.fill_buf().map_or(0, <[u8]>::len);
                    if size == 0 {
                        break;
                    }
                    bytes.fetch_add(size as u64, Ordering::Relaxed);
                    reader.consume(size);
                }
            });
        }
        let started = Instant::now();
        let (before, mut rounds) = (cpu(server.id()), 0u16);
        while started.elapsed() < ROUND {
            rounds += 1;
            for port in 1..=32 {
                game.send(&announcement(b"changes all the time", port, rounds % 64));
                let mut buffer = [0; 2048];
                if let Ok((size, _)) = game.socket.recv_from(&mut buffer) {
                    game.handshake(&buffer[4..size]);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let (took, spent) = (started.elapsed().as_secs_f64(), cpu(server.id()) - before);
        let rate = bytes.load(Ordering::Relaxed) as f64 / took / 1e6;
        let core = spent.as_secs_f64() / took * 100.0;
        println!("  32 servers that change, 200 readers: {rate:.2} MB/s, {core:.0} % of a core, {rounds} rounds");
        stop.store(true, Ordering::Relaxed);
        // So that the readers see that it is over.
        let last = Game::on(server.address("iceball.listen"), [127, 2, 0, 1].into());
        last.announce(&announcement(b"the last one", 99, 0));
    });
}

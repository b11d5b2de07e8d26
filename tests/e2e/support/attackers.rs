//! Attackers, and those who must not notice them: used by the tests (`attacks.rs`, `faults.rs`) and by the benchmark `attack`.
//!
//! An attack runs on its own threads until it is dropped. Everything is on loopback, where all of 127.0.0.0/8 can be a source:
//!
//! | addresses | who |
//! |---|---|
//! | 127.0.0.1 | who looks at the result; exempt from budgets |
//! | 127.0.2.0/24, 127.128.0.0/10 | attackers |
//! | 127.1.0.0/16 | servers that make the list long; exempt |
//! | 127.4.0.0/16 | other clients, each in a network of its own |
//! | 127.8.0.0/16 | newcomers, each in a network of its own |
//! | 127.16.0.0/14 | real servers, each in a network of its own |
//! | 127.32.0.0 to 127.95.255.255 | forged sources |

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};

use super::load::{self, Content, Dialect, Drive, Texts, Visit};
use crate::support::{Game, Response, Server, announcement, connect_from, split, until};

/// What a master is started with, so that the addresses above are what they are.
pub const SETTINGS: &[&str] =
    &["iceball.life=1h", "guard.max_servers=200000", "guard.exempt=127.0.0.1/32,127.1.0.0/16"];
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 1);
/// Servers that make the list long: so many at each address.
const PER_IP: u16 = 4;
/// Real servers, at most.
pub const REAL: u32 = 1_000;
/// No attack lasts longer, whatever becomes of who started it.
const LONGEST: Duration = Duration::from_secs(300);
/// How soon an attacker who waits for an answer looks whether the attack is over.
const LOOK_UP: Duration = Duration::from_millis(200);

/// An attack: its name, how it is begun (with a limit for forged datagrams a second), and how it shows that it is under way.
pub type Attacker = (&'static str, fn(&Server, Option<u32>) -> Attack, fn(&Attack) -> bool);

pub const ATTACKERS: [Attacker; 8] = [
    ("forged announcements", forged_announcements, |attack| attack.done() > 1_000),
    ("forged cookies", forged_cookies, |attack| attack.done() > 1_000),
    ("filtered lists", |server, _| filtered_lists(server), |attack| attack.done() + attack.refused() > 100),
    (
        "clients that never read",
        |server, _| never_readers(server, one_network),
        |attack| attack.done() + attack.refused() > 50,
    ),
    ("searches", |server, _| searches(server), |attack| attack.done() + attack.refused() > 100),
    ("servers that change all the time", |server, _| changing_servers(server), |attack| attack.done() > 0),
    ("servers that say a lot", |server, _| fat_registrations(server), |attack| attack.done() + attack.refused() > 50),
    ("connections that come and go", |server, _| churn(server), |attack| attack.done() > 1_000),
];

/// An attack in progress. Dropping it ends it.
pub struct Attack {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of an attack share.
pub struct State {
    stop: AtomicBool,
    ends: Instant,
    done: AtomicU64,
    refused: AtomicU64,
}

impl State {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() < self.ends
    }

    fn count(&self, is_done: bool) {
        let counter = if is_done { &self.done } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Attack {
    /// Runs `work` with the numbers of that many threads.
    fn start(threads: u32, work: impl Fn(u32, &State) + Send + Sync + 'static) -> Attack {
        let ends = Instant::now() + LONGEST;
        let state = Arc::new(State { stop: AtomicBool::new(false), ends, done: 0.into(), refused: 0.into() });
        let work = Arc::new(work);
        let spawn = |number| {
            let (state, work) = (state.clone(), work.clone());
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || work(number, &state)).unwrap()
        };
        Attack { threads: (0..threads).map(spawn).collect(), state }
    }

    /// How much of it was done: datagrams sent, lists received, bytes read.
    pub fn done(&self) -> u64 {
        self.state.done.load(Ordering::Relaxed)
    }

    /// How much of it the master refused to do.
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "an attacker failed");
        }
    }
}

/// An attacker's pause, because it shares the machine with what it attacks. Nothing is measured or checked with it.
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

/// Numbers that look random; the same in every run.
fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// Sends a datagram from any loopback address.
fn send_from(socket: &UdpSocket, from: Ipv4Addr, to: SocketAddr, bytes: &[u8]) {
    let SocketAddr::V4(to) = to else { panic!("{to} is not IPv4") };
    let info = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: from.to_bits().to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let (about, to) =
        ([ControlMessage::Ipv4PacketInfo(&info)], SockaddrIn::from(SocketAddrV4::new(*to.ip(), to.port())));
    // What cannot be sent because a buffer is full is part of a flood.
    let _ = sendmsg(socket.as_raw_fd(), &[IoSlice::new(bytes)], &about, MsgFlags::empty(), Some(&to));
}

/// A source of a forged datagram: any of four million addresses in fifteen thousand networks, or every eighth time a real server's.
fn forged_source(number: u64) -> Ipv4Addr {
    if number.is_multiple_of(8) {
        return real_ip(number / 8 % u64::from(REAL));
    }
    Ipv4Addr::from_bits(u32::from_be_bytes([127, 32, 0, 0]) + (scattered(number) % (64 << 16)) as u32)
}

/// Datagrams from very many sources; at most so many a second, if there is a limit.
fn forge(
    master: SocketAddr,
    per_second: Option<u32>,
    datagram: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static,
) -> Attack {
    const AT_ONCE: u64 = 32;
    Attack::start(1, move |_, state| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let (started, mut number) = (Instant::now(), 0);
        while state.goes_on() {
            for _ in 0..AT_ONCE {
                send_from(&socket, forged_source(number), master, &datagram(number));
                state.count(true);
                number += 1;
            }
            if let Some(per_second) = per_second {
                let due = started + Duration::from_micros(number * 1_000_000 / u64::from(per_second));
                rest(due.saturating_duration_since(Instant::now()));
            }
        }
    })
}

/// Announcements in the names of others.
pub fn forged_announcements(server: &Server, per_second: Option<u32>) -> Attack {
    let datagram = announcement(b"forged", 1, 1);
    forge(server.address("iceball.listen"), per_second, move |number| {
        let mut datagram = datagram.clone();
        datagram[10..12].copy_from_slice(&(scattered(number) as u16 | 1).to_le_bytes());
        datagram
    })
}

/// Cookies that the master never made.
pub fn forged_cookies(server: &Server, per_second: Option<u32>) -> Attack {
    forge(server.address("iceball.listen"), per_second, |number| {
        let cookie = (0..13).flat_map(|part| scattered(number * 13 + part).to_le_bytes());
        b"HSHK".iter().copied().chain(cookie.take(97)).collect()
    })
}

/// Queries to a game server in the name of the master, so that a server that limits its answers per address does not answer the
/// master's own.
pub fn forged_queries(game: SocketAddr, master: Ipv4Addr, per_second: u32) -> Attack {
    Attack::start(1, move |_, state| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        while state.goes_on() {
            send_from(&socket, master, game, b"\xff\xff\xff\xffgetstatus forged");
            state.count(true);
            rest(Duration::from_secs(1) / per_second);
        }
    })
}

/// A connection of an attacker; None if the master does not take it.
fn attacker_connects(from: Ipv4Addr, to: SocketAddr) -> Option<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::new(from.into(), 0).into()).ok()?;
    socket.connect(&to.into()).ok()?;
    socket.set_read_timeout(Some(LOOK_UP)).ok()?;
    Some(socket.into())
}

/// Reads until the end, or until the attack is over.
fn read_all(stream: &mut TcpStream, state: &State) -> Vec<u8> {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while state.goes_on() {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(size) => answer.extend_from_slice(&buffer[..size]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    answer
}

/// 64 connections of one address ask for filtered netPanzer lists all the time, while servers of that address change the list: half
/// of them for lists that match a quarter of all servers, half for lists that match none but are all different.
pub fn filtered_lists(server: &Server) -> Attack {
    let (address, changed) = (server.address("netpanzer.listen"), server.address("iceball.listen"));
    Attack::start(65, move |thread, state| {
        if thread == 64 {
            return change_servers(changed, state);
        }
        let mut number = thread;
        while state.goes_on() {
            number += 64;
            let filter = match thread % 2 {
                0 => format!(r"\port\{}", load::FIRST_PORT + (scattered(number.into()) % u64::from(PER_IP)) as u16),
                _ => format!(r"\port\{}\mapname\{number}", load::FIRST_PORT),
            };
            let Some(mut stream) = attacker_connects(ATTACKER, address) else {
                rest(LOOK_UP / 10);
                continue;
            };
            let _ = stream.write_all(format!(r"\list\gamename\iceball{filter}\final\\final\").as_bytes());
            let answer = read_all(&mut stream, state);
            let is_list = answer.ends_with(br"\final\") && !answer.starts_with(br"\error\");
            state.count(is_list);
            if !is_list {
                rest(LOOK_UP / 10);
            }
        }
    })
}

/// Connections that each ask for a list of their own and never read: 1,500 that are being answered, while the oldest make room for
/// new ones. `from` says which address a connection comes from.
pub fn never_readers(server: &Server, from: fn(usize) -> Ipv4Addr) -> Attack {
    const THREADS: u32 = 5;
    const EACH: usize = 1_500 / THREADS as usize;
    let web = server.address("web.listen");
    Attack::start(THREADS, move |thread, state| {
        let mut silent = VecDeque::new();
        for number in (thread as usize..).step_by(THREADS as usize) {
            if !state.goes_on() {
                break;
            }
            let Some(mut stream) = attacker_connects(from(number), web) else { continue };
            // Its system takes nothing, either; and it knows that it may have to wait in a queue.
            let _ = socket2::SockRef::from(&stream).set_recv_buffer_size(4 << 10);
            let _ = stream.set_read_timeout(Some(LOOK_UP * 15));
            let (sort, limit) = (["name", "-name", "map"][number % 3], 1_000 - number / 3 % 500);
            let request = format!("GET /api/v1/servers?sort={sort}&limit={limit} HTTP/1.1\r\nHost: x\r\n\r\n");
            let _ = stream.write_all(request.repeat(5).as_bytes());
            // It looks whether there is an answer, without taking it.
            let mut start = [0; 12];
            let is_list = stream.peek(&mut start).is_ok() && start.ends_with(b" 200");
            state.count(is_list);
            match is_list {
                true => silent.push_back(stream),
                false => rest(LOOK_UP / 20),
            }
            if silent.len() > EACH {
                silent.pop_front();
            }
        }
    })
}

/// Connections of one network: as many as its addresses may have, each replaced by the next.
pub fn churn(server: &Server) -> Attack {
    const EACH: usize = 500;
    let web = server.address("web.listen");
    Attack::start(2, move |thread, state| {
        let mut open = VecDeque::new();
        for number in (thread as usize..).step_by(2).take_while(|_| state.goes_on()) {
            let connection = attacker_connects(one_network(number), web);
            state.count(connection.is_some());
            open.extend(connection);
            if open.len() > EACH {
                open.pop_front();
                rest(LOOK_UP / 200);
            }
        }
    })
}

/// DDNet servers that say as much as their game may, each on a port of its own and 32 at an address.
pub fn fat_registrations(server: &Server) -> Attack {
    const THREADS: u16 = 4;
    let web = server.address("web.listen");
    Attack::start(THREADS.into(), move |thread, state| {
        for number in (thread as u16..).step_by(THREADS.into()).take_while(|_| state.goes_on()) {
            let game = UdpSocket::bind((many_networks(usize::from(number) / 32), 0)).unwrap();
            state.count(register_fat(web, &game, (number, 0)));
        }
    })
}

/// 25 addresses of one network.
pub fn one_network(number: usize) -> Ipv4Addr {
    Ipv4Addr::from([127, 0, 2, 1 + (number % 25) as u8])
}

/// Each in a network of its own: budgets do not help against these.
pub fn many_networks(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be_bytes([127, 128, 0, 1]) + ((number as u32 % (64 << 8)) << 8))
}

/// So many connections at once, each with a request that never ends.
pub fn unfinished_requests(server: &Server, count: usize) -> Attack {
    let web = server.address("web.listen");
    Attack::start(1, move |_, state| {
        let mut slow = Vec::new();
        while state.goes_on() {
            match attacker_connects(many_networks(slow.len()), web) {
                Some(mut stream) if slow.len() < count => {
                    state.count(stream.write_all(b"GET / HTTP/1.1\r\nX").is_ok());
                    slow.push(stream);
                }
                _ => rest(LOOK_UP / 10),
            }
        }
    })
}

/// Searches as fast as one address can, no two alike, from several connections.
pub fn searches(server: &Server) -> Attack {
    let web = server.address("web.listen");
    Attack::start(8, move |thread, state| {
        let mut number = u64::from(thread);
        while state.goes_on() {
            number += 8;
            let Some(mut stream) = attacker_connects(ATTACKER, web) else {
                rest(LOOK_UP / 20);
                continue;
            };
            let path = format!("/api/v1/servers?q=somebody%27s+{number}&sort=name");
            let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let is_done = read_all(&mut stream, state).starts_with(b"HTTP/1.1 200");
            state.count(is_done);
            if !is_done {
                rest(LOOK_UP / 20);
            }
        }
    })
}

/// One address changes 32 servers all the time while 200 others read events: what they read is counted.
pub fn changing_servers(server: &Server) -> Attack {
    const READERS: u32 = 200;
    let (web, master) = (server.address("web.listen"), server.address("iceball.listen"));
    let newest = newest_event(web);
    Attack::start(READERS + 1, move |thread, state| {
        if thread == READERS {
            return change_servers(master, state);
        }
        let from = Ipv4Addr::from([127, 4, (thread % 250) as u8, 2]);
        let Some(mut stream) = attacker_connects(from, web) else { return };
        let _ = write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: {newest}\r\n\r\n");
        let mut buffer = [0; 16 << 10];
        while state.goes_on() {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(size) => drop(state.done.fetch_add(size as u64, Ordering::Relaxed)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    })
}

/// The id of the newest event: who has it gets no snapshot.
fn newest_event(web: SocketAddr) -> String {
    let mut stream = connect_from("127.0.0.1", web);
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = Vec::new();
    while !text.windows(6).any(|window| window == b"\ndata:") {
        let mut some = [0; 1_024];
        let size = stream.read(&mut some).unwrap();
        assert_ne!(size, 0, "no events: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&some[..size]);
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_string()
}

/// Changes 32 servers of the attacker, each about a hundred times a second.
fn change_servers(master: SocketAddr, state: &State) {
    let game = Game::on(master, ATTACKER.into());
    game.socket.set_read_timeout(Some(LOOK_UP / 10)).unwrap(); // what is over budget gets no answer
    for round in 0u16.. {
        for port in 1..=32 {
            if !state.goes_on() {
                return;
            }
            game.send(&announcement(b"changes all the time", port, round % 64));
            let mut buffer = [0; 2_048];
            if let Ok((size, _)) = game.socket.recv_from(&mut buffer) {
                game.handshake(buffer.get(4..size).unwrap_or_default());
            }
        }
        rest(LOOK_UP / 20);
    }
}

fn real_ip(number: u64) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be_bytes([127, 16, 0, 1]) + ((number as u32) << 8))
}

/// Real servers, each in a network of its own, that announce themselves as their game does: from the same ports each time.
pub struct Real {
    socket: UdpSocket,
    count: u32,
}

impl Real {
    pub fn new(count: u32) -> Real {
        assert!(count <= REAL);
        Real { socket: UdpSocket::bind("0.0.0.0:0").unwrap(), count }
    }

    /// Each announces itself until it is answered, and returns the cookie. A lost handshake shows only in the list.
    pub fn announce(&self, server: &Server, players: u16) {
        let content = Content { texts: Texts::Longest, players, changing: 1 };
        let ip = |number: u32| real_ip(number.into()).to_bits() - load::FIRST;
        let visits = (0..self.count).map(|number| Visit { ip: ip(number), ports: 0..1 });
        let (socket, master) = (&self.socket, server.address("iceball.listen"));
        Drive { socket, dialect: Dialect::Iceball, master, hold: None, is_gentle: true }.run(content, visits);
    }

    /// They announce themselves with so many players until the list has all of them.
    pub fn renew(&self, server: &Server, players: u16, what: &str) {
        until(&format!("{what}: all real servers to be renewed"), || {
            self.announce(server, players);
            // What has not been published by then is sent again.
            (Real::listed(server, players) == self.count as usize).then_some(())
        });
    }

    /// How many are listed with so many players.
    pub fn listed(server: &Server, players: u16) -> usize {
        let search = server.get("/api/v1/servers?q=nnnnnnnnnnnnnnnn&limit=1000");
        // When others hold as many lists as they may, common lists are all there is.
        let list = if search.status() == 200 { search } else { server.get("/master.json") };
        let list: serde_json::Value = serde_json::from_slice(&list.body).unwrap();
        let is_real = |server: &&serde_json::Value| server["name"].as_str().is_some_and(|name| name.starts_with("nnn"));
        let servers = list["servers"].as_array().unwrap();
        servers.iter().filter(is_real).filter(|server| server["players_current"] == players).count()
    }
}

/// A server in a network that nobody has seen before announces itself until it is answered. Returns its address.
pub fn newcomer(server: &Server, number: u8) -> SocketAddr {
    let ip = IpAddr::from([127, 8, number, 1]);
    let game = Game::on(server.address("iceball.listen"), ip);
    game.socket.set_read_timeout(Some(LOOK_UP)).unwrap();
    let cookie = until("an answer to a newcomer", || {
        game.send(&announcement(b"a newcomer", 1, 1));
        let mut buffer = [0; 2_048];
        let (size, _) = game.socket.recv_from(&mut buffer).ok()?;
        Some(buffer[4..size].to_vec())
    });
    game.handshake(&cookie);
    SocketAddr::new(ip, 1)
}

/// Whether a server is listed.
pub fn is_listed(server: &Server, address: SocketAddr) -> bool {
    server.get(&format!("/api/v1/servers/iceball/{address}")).status() == 200
}

/// What other clients ask for.
pub const PATHS: &[&str] =
    &["/", "/master.json", "/api/v1/servers?limit=20", "/api/v1/servers?q=somebody&limit=20", "/healthz"];

/// A path, asked for by a client in a network of its own: the status, or 0 if there is no whole answer.
pub fn other_gets(server: &Server, network: u8, path: &str) -> u16 {
    let mut stream = connect_from(&format!("127.4.{network}.1"), server.address("web.listen"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).is_err() || stream.read_to_end(&mut answer).is_err() {
        return 0;
    }
    answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok()).unwrap_or(0)
}

/// Whether such a client gets a netPanzer list with the servers of a port.
pub fn other_gets_netpanzer_list(server: &Server, network: u8, port: u16) -> bool {
    let mut stream = connect_from(&format!("127.4.{network}.1"), server.address("netpanzer.listen"));
    let request = format!(r"\list\gamename\iceball\port\{port}\final\\final\");
    let mut answer = Vec::new();
    let is_whole = stream.write_all(request.as_bytes()).is_ok() && stream.read_to_end(&mut answer).is_ok();
    is_whole && answer.starts_with(br"\ip\") && answer.ends_with(br"\final\")
}

/// Makes the list long: four servers at each of so many addresses, which are exempt.
pub fn fill(server: &Server, ips: u32) {
    let content = Content { texts: Texts::Typical, players: 3, changing: 10 };
    let count = ips * u32::from(PER_IP);
    until("the list to be full", || {
        load::drive(server.address("iceball.listen"), content, None, load::all(0..ips, PER_IP));
        // A lost handshake shows only in the list, which is published after a moment.
        let listed = || server.json("/readyz")["servers"].as_u64().unwrap();
        let mut before = listed();
        until("no more to come", || {
            let now = listed();
            (now >= count.into() || std::mem::replace(&mut before, now) == now).then_some(())
        });
        (before >= count.into()).then_some(())
    });
}

/// DDNet servers that say as much as their game may: 32 at each of so many addresses, each address in a network of its own. Returns
/// how many were accepted.
pub fn fat_servers(server: &Server, addresses: u16) -> usize {
    let web = server.address("web.listen");
    let register = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let ip = Ipv4Addr::from([127, 128 + high, low, 1]);
        let games: Vec<_> = (0..32).map(|_| UdpSocket::bind((ip, 0)).unwrap()).collect();
        games.iter().enumerate().filter(|(at, game)| register_fat(web, game, (number, *at))).count()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || (thread..addresses).step_by(4).map(register).sum::<usize>()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Registers one of them: it is sent a token to the game's port, and returns it with its info.
fn register_fat(web: SocketAddr, game: &UdpSocket, (address, at): (u16, usize)) -> bool {
    let local = game.local_addr().unwrap();
    let post = |token: &str, body: &str| {
        let (port, length) = (local.port(), body.len());
        let request = format!(
            "POST /ddnet/15/register HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Address: tw-0.6+udp://connecting-address.invalid:{port}\r\nSecret: secret-of-{address:04}-{at:04}\r\n\
             Challenge-Secret: x\r\n{token}Info-Serial: 0\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let (mut connection, mut answer) = (connect_from(&local.ip().to_string(), web), String::new());
        // A refused request may be closed before it is read to its end.
        let _ = connection.write_all(request.as_bytes()).and_then(|()| connection.read_to_string(&mut answer));
        answer
    };
    if !post("", "").contains("need_challenge") {
        return false;
    }
    let mut buffer = [0; 300];
    game.set_read_timeout(Some(LOOK_UP * 15)).unwrap();
    let Ok((size, _)) = game.recv_from(&mut buffer) else { return false };
    let challenge = String::from_utf8_lossy(&buffer[14..size]).into_owned();
    let Some((_, token)) = challenge.trim_end_matches('\0').split_once('\0') else { return false };
    post(&format!("Challenge-Token: {token}\r\n"), &fat_info(address, at)).ends_with("{\"status\":\"success\"}\n")
}

/// The info of a full server whose players have long names and skins that hardly compress.
fn fat_info(address: u16, at: usize) -> String {
    let clients = (0..128u64).map(|player| {
        let noise = scattered(u64::from(address) << 32 | (at as u64) << 16 | player);
        format!(
            r#"{{"name":"{:015x}","clan":"{:011x}","country":-1,"score":{},"is_player":true,"skin":{{"name":"{noise:016x}","color_body":{},"color_feet":{}}}}}"#,
            noise >> 4,
            noise >> 20,
            noise % 1_000,
            noise % 16_777_216,
            noise % 16_777_215,
        )
    });
    let clients: Vec<_> = clients.collect();
    let map = format!("{:016x}", scattered(at as u64));
    format!(
        r#"{{"max_clients":128,"max_players":128,"passworded":false,"game_type":"fat","name":"fat {address} {at}","map":{{"name":"{map}"}},"version":"0.6.4","clients":[{}]}}"#,
        clients.join(",")
    )
}

/// The header with which a proxy says for whom it asks: a stranger.
pub const STRANGER: &str = "X-Forwarded-For: 198.51.100.66\r\n";

/// A request from a loopback address with these headers, which are complete lines. A POST has its body as JSON.
pub fn ask_as(server: &Server, from: &str, (method, path): (&str, &str), headers: &str, body: &str) -> Response {
    let mut stream = connect_from(from, server.address("web.listen"));
    let host = if headers.contains("Host: ") { "" } else { "Host: x\r\n" };
    let sent = match method {
        "GET" => String::new(),
        _ => format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
    };
    let request = format!("{method} {path} HTTP/1.1\r\n{host}{headers}{sent}Connection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    split(&answer)
}

/// The headers of a browser whose page was loaded from a host: a name that an attacker owns, and has made to resolve to the master.
pub fn page_at(host: &str) -> String {
    format!("Host: {host}\r\nOrigin: http://{host}\r\nUser-Agent: Mozilla/5.0\r\n")
}

/// Everything that a request can have done, each at the caller's own address: announcements through the API and in the forms of
/// games, tests of a port, and on the doctor's page.
pub fn acts(port: u16) -> Vec<(&'static str, String, String)> {
    let test = format!("game=netpanzer&address=127.0.0.1:{port}");
    vec![
        ("POST", "/api/v1/servers".into(), format!(r#"{{"game":"other","port":{port}}}"#)),
        ("POST", "/announce".into(), r#"json={"action":"start"}"#.into()),
        ("POST", "/ddnet/15/register".into(), "{}".into()),
        ("GET", format!("/bloodmasterslist.php?action=update&port={port}"), String::new()),
        ("POST", format!("/api/v1/check/test?{test}"), String::new()),
        ("POST", format!("/doctor?{test}"), String::new()),
    ]
}

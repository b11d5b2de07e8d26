//! Lists over TCP with one connection each (netPanzer, Hyperbol), compared with a plain thread that accepts, reads, writes the
//! same bytes and closes, in a process of its own like the server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use socket2::{Domain, Socket, Type};

use crate::measure::cpu;
use crate::peer::Peer;
use crate::report::Report;
use crate::support::{self, Server, connect};

/// The argument that makes this program the plain thread.
pub const ARGUMENT: &str = "serve-lists";

const SERVERS: u16 = 100;
/// Enough to keep all cores of the machine busy, whoever answers.
const READERS: usize = 8;
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(700);

/// One exchange: the server's greeting, the client's request, the server's list.
struct Exchange {
    name: &'static str,
    greeting: Vec<u8>,
    request: Vec<u8>,
    list: Vec<u8>,
}

pub fn run() {
    let limits = ["guard.max_servers_per_ip=1000", "guard.max_connections_per_ip=1000", "guard.exempt=127.0.0.0/8"];
    let set = [&["netpanzer.verify=off"], &limits[..]].concat();
    let server = Server::start(&set);
    for game in ["netpanzer", "hyperbol"] {
        for port in 1..=SERVERS {
            let offset = if game == "hyperbol" { SERVERS } else { 0 };
            let heartbeat = format!(r"\heartbeat\gamename\{game}\port\{}\final\", offset + port);
            support::exchange(server.address("netpanzer.listen"), heartbeat.as_bytes());
        }
    }
    support::until("all to be listed", || (server.json("/readyz")["servers"] == 2 * SERVERS).then_some(()));

    let question = br"\list\gamename\netpanzer\final\".to_vec();
    // The second `final` makes the master close; it is not part of the comparison.
    let list = support::exchange(server.address("netpanzer.listen"), &[&question, &br"\final\"[..]].concat());
    compare(
        server.id(),
        server.address("netpanzer.listen"),
        Exchange { name: "netPanzer", greeting: vec![], request: question, list },
    );

    let mut stream = connect(server.address("hyperbol.listen"));
    let mut greeting = vec![0; 12];
    stream.read_exact(&mut greeting).unwrap();
    // Include unofficial servers.
    let request = [&greeting[4..8], &[0x10, 0, 0, 0]].concat();
    stream.write_all(&request).unwrap();
    let mut list = Vec::new();
    stream.read_to_end(&mut list).unwrap();
    compare(server.id(), server.address("hyperbol.listen"), Exchange { name: "Hyperbol", greeting, request, list });
}

fn compare(server: u32, address: SocketAddr, exchange: Exchange) {
    assert!(exchange.list.len() > 500, "{} bytes are too few for {SERVERS} servers", exchange.list.len());
    let plain = Peer::start(&[ARGUMENT], &[exchange.greeting.clone(), exchange.list.clone()]);
    let (mut ours, mut theirs) = (Rounds::default(), Rounds::default());
    for _ in 0..ROUNDS {
        theirs.add(plain.address, plain.id(), &exchange);
        ours.add(address, server, &exchange);
    }
    println!("{}: {} bytes", exchange.name, exchange.list.len());
    let name = format!("{}'s list of {SERVERS}, one connection each", exchange.name);
    Report::new(&name, "lists/s", &ours.rates).beside("a plain thread", &theirs.rates).at_least(0.95);
    let name = format!("{name}: processor time");
    Report::new(&name, "µs", &ours.costs).beside("a plain thread", &theirs.costs).untargeted();
}

/// The plain thread: writes the greeting, reads, writes the list and closes, until its parent kills it.
pub fn serve(messages: &[Vec<u8>]) {
    let [greeting, list] = messages else { panic!("{} messages", messages.len()) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut buffer = [0; 1024];
    for mut stream in listener.incoming().flatten() {
        let _ = stream.write_all(greeting);
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(list);
    }
}

/// Lists per second, and the server's processor time for a list.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    costs: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, address: SocketAddr, process: u32, exchange: &Exchange) {
        let before = cpu(process);
        let (fetched, seconds) = fetch_some(address, exchange);
        self.rates.push(fetched / seconds);
        self.costs.push((cpu(process) - before).as_secs_f64() * 1e6 / fetched);
    }
}

/// How many lists were fetched, in how many seconds.
fn fetch_some(address: SocketAddr, exchange: &Exchange) -> (f64, f64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS).map(|_| scope.spawn(|| fetch_until(&stop, address, exchange))).collect();
        let start = Instant::now();
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        let fetched: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        (fetched as f64, start.elapsed().as_secs_f64())
    })
}

fn fetch_until(stop: &AtomicBool, address: SocketAddr, exchange: &Exchange) -> u64 {
    let mut fetched = 0;
    let mut list = vec![0; exchange.list.len()];
    while !stop.load(Ordering::Relaxed) {
        fetch(connect_anew(address), exchange, &mut list);
        fetched += 1;
    }
    fetched
}

/// Connects from another address each time, as players do. From one address, a client that closes first would soon have used all
/// its ports, and would be what is measured.
fn connect_anew(to: SocketAddr) -> TcpStream {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (1 << 20);
    let from = Ipv4Addr::from_bits(Ipv4Addr::new(127, 16, 0, 0).to_bits() + number);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    setsockopt(&socket, IpBindAddressNoPort, &true).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Reads the whole list and closes, as the games do.
fn fetch(mut stream: TcpStream, exchange: &Exchange, list: &mut [u8]) {
    if exchange.greeting.is_empty() {
        stream.write_all(&exchange.request).unwrap();
    } else {
        // Each connection has another key.
        let mut greeting = [0; 12];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&[&greeting[4..8], &exchange.request[4..]].concat()).unwrap();
    }
    stream.read_exact(list).unwrap();
}

//! The cost of querying servers: simulated netPanzer games, each queried for its proof and its status in one round trip.

use std::io::{Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use rallypoint::protocols::card;
use socket2::{Domain, Socket, Type};

use crate::answerer::Answerer;
use crate::measure::cpu;
use crate::report::Report;
use crate::support::{self, Server};

const SERVERS: u32 = 10_000;
/// As many queries as to 100,000 servers every 30 s.
const EVERY: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(6);
/// Heartbeats at a time.
const ANNOUNCING: usize = 16;

pub fn run() {
    let Some(games) = Answerer::start(card("netpanzer").unwrap(), SERVERS) else { return };
    let every = format!("probe.every={}s", EVERY.as_secs());
    let server = Server::start(&[&every, "guard.max_servers_per_ip=65535", "guard.exempt=[\"127.0.0.0/8\"]"]);
    announce(&games, server.address("netpanzer.listen"));
    let listed = || server.json("/readyz")["servers"].as_u64().unwrap() as u32;
    support::until("all to be listed", || (listed() == SERVERS).then_some(()));
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        let (before, began) = (cpu(server.id()), Instant::now());
        std::thread::sleep(ROUND);
        let queries = f64::from(SERVERS) * began.elapsed().as_secs_f64() / EVERY.as_secs_f64();
        costs.push((cpu(server.id()) - before).as_secs_f64() * 1e6 / queries);
    }
    assert_eq!(listed(), SERVERS, "some servers were removed although they answer");
    println!("{SERVERS} servers queried every 3 s, as many queries as to 100,000 every 30 s; all stay listed");
    Report::new("processor time a server and round", "µs", &costs).at_most(15.0);
}

/// A heartbeat of each server, from its own address.
fn announce(games: &Answerer, master: SocketAddr) {
    let addresses: Vec<SocketAddrV4> = games.addresses().collect();
    std::thread::scope(|scope| {
        for some in addresses.chunks(addresses.len().div_ceil(ANNOUNCING)) {
            scope.spawn(move || some.iter().for_each(|address| heartbeat(*address, master)));
        }
    });
}

fn heartbeat(of: SocketAddrV4, master: SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddrV4::new(*of.ip(), 0).into()).unwrap();
    socket.connect(&master.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    write!(stream, r"\heartbeat\gamename\netpanzer\port\{}\final\", of.port()).unwrap();
    let _ = stream.read(&mut [0; 200]);
}

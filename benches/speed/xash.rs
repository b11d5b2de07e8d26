//! The cost of an announcement compared with xash3d-master, the fastest master known: challenge and data there, announcement
//! and handshake here, from the same generator, in turns. Both list only servers that have proven their address.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::iceball::start;
use crate::load::{self, Content, Dialect, Texts};
use crate::measure::cpu;
use crate::report::Report;
use crate::support::until;

const SERVERS: u32 = 10_000;
const ROUNDS: u16 = 7;
/// Announcements per server and round: enough that the clock's resolution of 10 ms does not matter.
const TIMES: u16 = 5;
/// Installed by `cargo install xash3d-master --root target/xash`.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/xash/bin/xash3d-master");

pub fn run() {
    if !Path::new(PROGRAM).exists() {
        return println!("not installed: cargo install xash3d-master --root target/xash");
    }
    let xash = Xash::start();
    let server = start();
    let sockets = [(); 2].map(|()| UdpSocket::bind("0.0.0.0:0").unwrap());
    let content = |players| Content { texts: Texts::Typical, players, changing: 10 };
    let address = server.address("iceball.listen");
    let visits = || (0..TIMES).flat_map(|_| load::all(0..SERVERS, 1));
    let ours = |content, held: bool| {
        cost(server.id(), || match held {
            true => load::drive(address, content, Some(server.id()), visits()),
            false => load::drive_gently(&sockets[0], Dialect::Iceball, address, content, None, visits()),
        })
    };
    let theirs = |content, held: bool| {
        let hold = held.then_some(xash.child.id());
        cost(xash.child.id(), || load::drive_gently(&sockets[1], Dialect::Xash, xash.address, content, hold, visits()))
    };
    // In the first round, all servers are new.
    ours(content(3), false);
    theirs(content(3), false);
    assert_eq!(server.json("/readyz")["servers"], SERVERS);
    assert!(xash.lists_some(), "xash3d-master lists no servers");
    // At its limits, each has a full receive buffer; otherwise, only a few datagrams are in flight.
    for (when, held) in [("at their limits", true), ("few in flight", false)] {
        let (mut our_costs, mut their_costs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            our_costs.push(ours(content(10 + round), held));
            their_costs.push(theirs(content(10 + round), held));
        }
        let name = format!("announcement + handshake, {when}");
        Report::new(&name, "ns", &our_costs).servers(SERVERS).beside("xash3d-master", &their_costs).at_most(1.0);
    }
}

/// Nanoseconds of processor time per announcement.
fn cost(pid: u32, drive: impl FnOnce() -> load::Driven) -> f64 {
    let before = cpu(pid);
    let driven = drive();
    std::thread::sleep(Duration::from_millis(300)); // until everything in flight has been processed
    (cpu(pid) - before).as_nanos() as f64 / driven.pairs as f64
}

/// A running xash3d-master, killed when dropped.
struct Xash {
    child: Child,
    address: SocketAddr,
}

impl Xash {
    fn start() -> Xash {
        // It cannot report which port the system chose, so choose a free one for it.
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["-i", "127.0.0.1", "-p", &address.port().to_string(), "-l", "off"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let xash = Xash { child, address };
        until("it to answer", || xash.ask(b"q\xff"));
        xash
    }

    fn ask(&self, question: &[u8]) -> Option<Vec<u8>> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.send_to(question, self.address).ok()?;
        let mut buffer = [0; 2048];
        let size = socket.recv(&mut buffer).ok()?;
        Some(buffer[..size].to_vec())
    }

    /// An empty list is an eight-byte header and an address of zeros.
    fn lists_some(&self) -> bool {
        self.ask(b"1\xff0.0.0.0:0\0\\gamedir\\valve\\nat\\0\\clver\\0.20\0").is_some_and(|answer| answer.len() > 64)
    }
}

impl Drop for Xash {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

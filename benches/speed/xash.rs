//! Xash3D's announcements, also compared with xash3d-master, the fastest other master known: the same datagrams from the same
//! generator, in turns. Both list only servers that have proven their address.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::exchange::{Exchange, listed, settle, start_alone};
use crate::load::{self, Content, Dialect, Drive, Texts};
use crate::measure::{cpu, stop_cost};
use crate::report::Report;
use crate::support::until;

const SERVERS: u32 = 10_000;
const ROUNDS: u16 = 5;
/// Announcements per server and round: enough for a good part of a second.
const TIMES: u16 = 5;
/// Installed by `scripts/tools xash3d-master`.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/xash3d-master/bin/xash3d-master");

pub fn run() {
    Exchange { title: "Xash3D", dialect: Dialect::Xash, listener: "xash3d.listen", per_ip: 1, ratio_max: 2.5 }.run();
    if !Path::new(PROGRAM).exists() {
        return println!("not installed: scripts/tools xash3d-master");
    }
    let (xash, server) = (Xash::start(), start_alone("xash3d.listen"));
    let sockets = [(); 2].map(|()| UdpSocket::bind("0.0.0.0:0").unwrap());
    let ours = |players, is_held| cost(&sockets[0], server.address("xash3d.listen"), server.id(), players, is_held);
    let theirs = |players, is_held| cost(&sockets[1], xash.address, xash.child.id(), players, is_held);
    // In the first round, all servers are new.
    ours(3, false);
    theirs(3, false);
    assert_eq!(listed(&server), SERVERS);
    assert!(xash.lists_some(), "xash3d-master lists no servers");
    // At its limits, each has a full receive buffer; otherwise, only a few datagrams are in flight.
    for (when, is_held) in [("at their limits", true), ("few in flight", false)] {
        let (mut our_costs, mut their_costs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            our_costs.push(ours(10 + round, is_held));
            their_costs.push(theirs(10 + round, is_held));
        }
        let name = format!("Xash3D: announcement + handshake, {when}");
        Report::new(&name, "µs", &our_costs).servers(SERVERS).beside("xash3d-master", &their_costs).at_most(1.0);
    }
}

/// Microseconds of processor time per announcement.
fn cost(socket: &UdpSocket, master: SocketAddr, pid: u32, players: u16, is_held: bool) -> f64 {
    let content = Content { texts: Texts::Typical, players, changing: 10 };
    let visits = (0..TIMES).flat_map(|_| load::all(0..SERVERS, 1));
    let drive = Drive { socket, dialect: Dialect::Xash, master, hold: is_held.then_some(pid), is_gentle: true };
    let stop_cost = if is_held { stop_cost(pid) } else { Duration::ZERO };
    let before = cpu(pid);
    let driven = drive.run(content, visits);
    settle(pid);
    let spent = (cpu(pid) - before).saturating_sub(stop_cost * driven.stops);
    spent.as_secs_f64() * 1e6 / driven.pairs as f64
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

//! The Quake III family: heartbeats with their infoResponse, and lists in datagrams, compared with a loop that sends the same
//! packets. dpmaster, the original, is in no package.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};

use crate::exchange::{Exchange, fill_with, settle};
use crate::load::{self, Content, Dialect, Drive, Texts};
use crate::measure::cpu;
use crate::peer::Peer;
use crate::report::Report;
use crate::support::Server;

const REQUEST: &[u8] = b"\xff\xff\xff\xffgetserversExt Xonotic 3 empty full";
/// The end of a list's last packet.
const END: &[u8] = b"\\EOT\0\0\0";
const ROUNDS: usize = 5;
/// Lists per round.
const LISTS: usize = 20_000;
/// Requests in flight: less than the receive buffers hold.
const WINDOW: usize = 32;
/// The argument that makes this program the loop.
pub const ARGUMENT: &str = "serve-packets";

pub fn run() {
    Exchange { title: "Quake III", dialect: Dialect::Quake3, listener: "quake3.listen", per_ip: 1, ratio_max: 3.0 }
        .run();
    for servers in [100, 1_000] {
        lists(servers);
    }
}

fn lists(servers: u32) {
    let budget = ["guard.list_kib_per_second=1048576", "guard.exempt=127.0.0.0/8", "quake3.life=1h"];
    let server = Server::start(&budget);
    let (socket, master) = (UdpSocket::bind("0.0.0.0:0").unwrap(), server.address("quake3.listen"));
    let drive = Drive { socket: &socket, dialect: Dialect::Quake3, master, hold: None, is_gentle: true };
    let content = Content { texts: Texts::Typical, players: 3, changing: 10 };
    fill_with(&server, servers, || drive.run(content, load::all(0..servers, 1)).pairs);
    let packets = fetch(master);
    let bytes: usize = packets.iter().map(Vec::len).sum();
    assert!(bytes >= 7 * servers as usize, "{bytes} bytes are too few for {servers} servers");
    println!("a list of {servers}: {} packets, {bytes} bytes", packets.len());
    let bare = Peer::start(&[ARGUMENT], &packets);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        theirs.push(cost(bare.address, bare.id(), packets.len()));
        ours.push(cost(master, server.id(), packets.len()));
    }
    let report = Report::new("Quake III: a list over UDP", "µs", &ours).servers(servers);
    report.beside("a loop that sends the same packets", &theirs).at_most(1.5);
}

/// One list.
fn fetch(master: SocketAddr) -> Vec<Vec<u8>> {
    let socket = client(master);
    let mut packets = Vec::new();
    let mut buffer = [0; 2048];
    socket.send(REQUEST).unwrap();
    while !packets.last().is_some_and(|last: &Vec<u8>| last.ends_with(END)) {
        let size = socket.recv(&mut buffer).expect("the whole list");
        packets.push(buffer[..size].to_vec());
    }
    packets
}

fn client(master: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    socket.connect(master).unwrap();
    socket
}

/// Microseconds of processor time for one list.
fn cost(master: SocketAddr, pid: u32, packets: usize) -> f64 {
    let (socket, before) = (client(master), cpu(pid));
    let mut buffer = [0; 2048];
    let (mut asked, mut got, mut in_flight, mut lost) = (0, 0, 0, 0);
    while got < LISTS * packets {
        while in_flight < WINDOW && asked < LISTS {
            socket.send(REQUEST).unwrap();
            asked += 1;
            in_flight += 1;
        }
        match socket.recv(&mut buffer) {
            Ok(size) => {
                got += 1;
                in_flight -= usize::from(buffer[..size].ends_with(END));
            }
            // Some packets were lost: what is in flight has ended.
            Err(_) => {
                lost += in_flight * packets - got % packets;
                assert!(lost * 100 < LISTS * packets, "{lost} packets were lost");
                got = asked * packets;
                in_flight = 0;
            }
        }
    }
    settle(pid);
    (cpu(pid) - before).as_secs_f64() * 1e6 / LISTS as f64
}

/// Answers every datagram with these packets, each time with one call, until its parent kills it.
pub fn serve(packets: &[Vec<u8>]) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    println!("{}", socket.local_addr().unwrap());
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(packets.len(), None);
    let slices: Vec<_> = packets.iter().map(|packet| [std::io::IoSlice::new(packet)]).collect();
    let mut buffer = [0; 2048];
    loop {
        let Ok((_, from)) = socket.recv_from(&mut buffer) else { continue };
        let to = vec![Some(SockaddrStorage::from(from)); packets.len()];
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let _ = sendmmsg(fd, &mut headers, &slices, to, [], MsgFlags::empty()).map(Iterator::count);
    }
}

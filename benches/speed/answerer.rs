//! Simulated game servers that cost little themselves: one thread answers for all of them, in batches. Each has an address of
//! its own in 127.0.0.0/8 and the same port. Questions arrive at one socket. Answers leave as whole packets, because one call of a UDP
//! socket has one source address only; a raw socket would look up a route for each, which costs more than the rest of its call.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, bind, recvmmsg, sendmmsg, setsockopt, sockopt,
};
use rallypoint::model::{Address, Facts};
use rallypoint::protocols::Card;
use socket2::{Domain, Socket, Type};

const BATCH: usize = 64;
const FIRST: u32 = u32::from_be_bytes([127, 1, 0, 0]);
const QUESTION_BYTES_MAX: usize = 128;
/// How often a thread with nothing to do looks whether it should end, and how exactly answers are delayed.
const TICK: Duration = Duration::from_millis(1);
const LOOPBACK: &str = "lo";
const ETHERTYPE_IPV4: u16 = 0x0800;
/// The headers of a packet: two addresses that nobody looks at and the type of what follows; IPv4 without options; UDP.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const HEADERS: usize = ETHERNET + IPV4 + UDP;

/// Runs until dropped.
pub struct Answerer {
    port: u16,
    count: u32,
    stop: Arc<AtomicBool>,
    delay_us: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Answerer {
    /// None, with a reason for the user, outside of a network namespace with nothing but loopback: there, packets from 127.0.0.0/8 that no
    /// socket of this machine has sent are not accepted, and that should not be changed for a whole machine.
    pub fn start(card: &'static Card, count: u32) -> Option<Answerer> {
        let packets = match packet_socket() {
            Ok(packets) => packets,
            Err(why) => {
                println!("skipped, because {why}; scripts/bench makes a network namespace for it");
                return None;
            }
        };
        packets.set_send_buffer_size(8 << 20).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        // Beyond the system's limit: a question that is lost here takes a second.
        setsockopt(&socket, sockopt::RcvBufForce, &(32 << 20)).unwrap();
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (stop, delay_us) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, delay) = (stop.clone(), delay_us.clone());
        let thread = std::thread::spawn(move || Thread::new(card, count, port, packets).run(&socket, &stopped, &delay));
        Some(Answerer { port, count, stop, delay_us, thread: Some(thread) })
    }

    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn addresses(&self) -> impl Iterator<Item = SocketAddrV4> {
        (0..self.count).map(|number| SocketAddrV4::new(Ipv4Addr::from(FIRST + number), self.port))
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

/// A socket that sends whole packets over loopback.
fn packet_socket() -> Result<Socket, String> {
    const ACCEPT: &str = "/proc/sys/net/ipv4/conf/lo/route_localnet";
    let addresses: Vec<_> = getifaddrs().unwrap().filter(|one| one.flags.contains(InterfaceFlags::IFF_UP)).collect();
    if let Some(other) = addresses.iter().find(|address| address.interface_name != LOOPBACK) {
        return Err(format!("this machine's network has {}, too", other.interface_name));
    }
    let link = addresses.iter().find_map(|address| address.address?.as_link_addr().copied());
    let link = link.ok_or("loopback is down")?;
    std::fs::write(ACCEPT, "1").map_err(|error| format!("{ACCEPT} cannot be written: {error}"))?;
    // Without a protocol, it receives nothing.
    let socket = Socket::new(Domain::PACKET, Type::RAW, None);
    let socket = socket.map_err(|error| format!("packet sockets are not allowed: {error}"))?;
    bind(socket.as_raw_fd(), &link).map_err(|error| format!("a packet socket cannot be bound: {error}"))?;
    Ok(socket)
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A packet to send, with its headers, from `due` on.
struct Packet {
    due: Instant,
    bytes: Vec<u8>,
}

struct Thread {
    card: &'static Card,
    port: u16,
    socket: Socket,
    servers: Vec<Simulated>,
    packets: VecDeque<Packet>,
    /// Buffers of packets that were sent.
    spare: Vec<Vec<u8>>,
}

struct Simulated {
    address: Address,
    facts: Facts<'static>,
    /// Its answers to questions of each length: questions differ in their nonces only.
    known: Vec<(usize, Vec<Template>)>,
}

/// An answer, and where the nonce of the question is in it.
struct Template {
    bytes: Vec<u8>,
    nonce_at: Option<usize>,
}

impl Thread {
    fn new(card: &'static Card, count: u32, port: u16, socket: Socket) -> Thread {
        let server = |number: u32| Simulated {
            address: Address::new(Ipv4Addr::from(FIRST + number).into(), port).unwrap(),
            facts: (card.pretend)(number as usize),
            known: Vec::new(),
        };
        let servers = (0..count).map(server).collect();
        Thread { card, port, socket, servers, packets: VecDeque::new(), spare: Vec::new() }
    }

    fn run(mut self, socket: &UdpSocket, stop: &AtomicBool, delay_us: &AtomicU64) {
        let mut receive_headers =
            MultiHeaders::<SockaddrIn>::preallocate(BATCH, Some(nix::cmsg_space!(libc::in_pktinfo)));
        let mut send_headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
        let mut buffers = [[0; QUESTION_BYTES_MAX]; BATCH];
        while !stop.load(Ordering::Relaxed) {
            let mut slices = buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
            let flags = MsgFlags::MSG_WAITFORONE;
            let received = recvmmsg(socket.as_raw_fd(), &mut receive_headers, slices.iter_mut(), flags, None);
            let questions: Vec<_> = match received {
                Ok(received) => {
                    received.map(|one| (destination(one.cmsgs().unwrap()), one.address.unwrap(), one.bytes)).collect()
                }
                Err(Errno::EAGAIN | Errno::EINTR) => Vec::new(),
                Err(error) => panic!("receiving failed: {error}"),
            };
            let due = Instant::now() + Duration::from_micros(delay_us.load(Ordering::Relaxed));
            for ((number, from, size), buffer) in questions.into_iter().zip(&buffers) {
                self.answer(due, number as usize, from, &buffer[..size]);
            }
            self.send(&mut send_headers);
        }
    }

    fn answer(&mut self, due: Instant, number: usize, from: SockaddrIn, question: &[u8]) {
        let Some(server) = self.servers.get_mut(number) else { return };
        let nonce = nonce_of(question);
        let place = server.known.iter().position(|(size, _)| *size == question.len()).unwrap_or_else(|| {
            let answers = (self.card.answer.unwrap())(&server.facts, server.address, question);
            let template = |bytes: Vec<u8>| {
                let nonce_at = nonce.and_then(|nonce| bytes.windows(nonce.len()).position(|at| at == nonce));
                Template { bytes, nonce_at }
            };
            server.known.push((question.len(), answers.into_iter().map(template).collect()));
            server.known.len() - 1
        });
        for template in &server.known[place].1 {
            let mut bytes = self.spare.pop().unwrap_or_default();
            headers(FIRST + number as u32, self.port, from, template.bytes.len(), &mut bytes);
            bytes.extend_from_slice(&template.bytes);
            if let (Some(at), Some(nonce)) = (template.nonce_at, nonce) {
                bytes[HEADERS + at..HEADERS + at + nonce.len()].copy_from_slice(nonce);
            }
            self.packets.push_back(Packet { due, bytes });
        }
    }

    fn send(&mut self, send_headers: &mut MultiHeaders<SockaddrIn>) {
        let now = Instant::now();
        let mut due = self.packets.iter().take_while(|packet| packet.due <= now).count();
        while due > 0 {
            let some: Vec<_> = self.packets.drain(..due.min(BATCH)).collect();
            due -= some.len();
            let mut sent = 0;
            while sent < some.len() {
                let slices: Vec<_> = some[sent..].iter().map(|packet| [IoSlice::new(&packet.bytes)]).collect();
                let to = vec![None; slices.len()]; // it is in the packet
                match sendmmsg(self.socket.as_raw_fd(), send_headers, &slices, to, [], MsgFlags::empty()) {
                    Ok(results) => sent += results.count(),
                    Err(Errno::EINTR) => {}
                    Err(error) => panic!("answering failed: {error}"),
                }
            }
            self.spare.extend(some.into_iter().map(|packet| packet.bytes));
        }
    }
}

/// The number of the server that a question was sent to.
fn destination(mut about: impl Iterator<Item = ControlMessageOwned>) -> u32 {
    let ip = about.find_map(|about| match about {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(u32::from_be(info.ipi_addr.s_addr)),
        _ => None,
    });
    ip.unwrap().wrapping_sub(FIRST)
}

/// Eight hexadecimal digits.
fn nonce_of(question: &[u8]) -> Option<&[u8]> {
    question.windows(8).find(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Without a checksum, UDP over IPv4 is valid.
fn headers(from: u32, port: u16, to: SockaddrIn, size: usize, bytes: &mut Vec<u8>) {
    let to_ip = u32::from(to.ip());
    bytes.clear();
    bytes.extend([0; ETHERNET - 2]);
    bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
    let length = (IPV4 + UDP + size) as u16;
    let ip = [0x4500, length, 1, 0, 64 << 8 | libc::IPPROTO_UDP as u16];
    let addresses = [from, to_ip].into_iter().flat_map(|ip| [(ip >> 16) as u16, ip as u16]);
    let sum: u32 = ip.into_iter().chain(addresses).map(u32::from).sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    let checksum = !((sum >> 16) + sum) as u16;
    ip.iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    bytes.extend(checksum.to_be_bytes());
    bytes.extend(from.to_be_bytes());
    bytes.extend(to_ip.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(((UDP + size) as u16).to_be_bytes());
    bytes.extend([0, 0]);
}

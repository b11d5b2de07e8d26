//! A load generator: many simulated servers of a protocol over datagrams. Each has its own address in 127.0.0.0/8, but all
//! share one socket: every send call chooses its source address.
//!
//! A window of announcements is in flight, every challenge of the master is answered, and unanswered announcements are sent
//! again. The window is smaller than the receive buffers of the other side, so hardly anything is lost.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt, sockopt,
};
use nix::unistd::Pid;
use rallypoint::cookie;
use rallypoint::protocols::iceball::wire::{self, Announcement, Version};

/// Announcements in flight.
const WINDOW: usize = 512;
const GENTLE_WINDOW: usize = 128;
/// The same for a process that is held, at most: being held and continued costs it something each time.
const HELD_WINDOW: usize = 2048;
/// Datagrams per send or receive call.
const BATCH: usize = 64;
/// Announcements that are not answered within this time are sent again.
const TIMEOUT: Duration = Duration::from_millis(200);
/// A longer drive means that something is broken.
const DRIVE_TIMEOUT: Duration = Duration::from_secs(180);
/// The first server's address; from here to 127.255.255.255 there are 16 million.
pub const FIRST: u32 = u32::from_be_bytes([127, 1, 0, 0]);
pub const FIRST_PORT: u16 = 20_000;

#[derive(Clone, Copy)]
pub enum Texts {
    Typical,
    /// Every field has its maximum length.
    Longest,
}

/// An address, and which of its servers announce themselves.
#[derive(Clone)]
pub struct Visit {
    pub ip: u32,
    pub ports: Range<u16>,
}

/// The content of the announcements in this drive.
#[derive(Clone, Copy)]
pub struct Content {
    pub texts: Texts,
    /// Some servers have this many players, so that a drive with another number changes them: one in `changing`.
    pub players: u16,
    pub changing: u32,
}

impl Content {
    /// The players of the server with this number.
    fn players_at(self, number: u32) -> u16 {
        if number.is_multiple_of(self.changing) { self.players } else { 3 }
    }
}

/// The protocol of the simulated servers: a server announces itself, the master challenges it, the server answers. Masters of
/// all but Iceball identify a server by its source port, so there is one at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Iceball,
    Xash,
    Quake3,
}

/// What a simulated server sends.
type Sent = ArrayVec<u8, 320>;

const XASH_CHALLENGE: &[u8] = b"\xff\xff\xff\xffs\n";
const QUAKE3_CHALLENGE: &[u8] = b"\xff\xff\xff\xffgetinfo ";

impl Dialect {
    pub const ALL: [Dialect; 3] = [Dialect::Iceball, Dialect::Xash, Dialect::Quake3];

    /// The start of an announcement. Answers to challenges start otherwise.
    pub fn announcement_start(self) -> &'static [u8] {
        match self {
            Dialect::Iceball => &wire::ANNOUNCE,
            Dialect::Xash => b"q\xff",
            Dialect::Quake3 => b"\xff\xff\xff\xffheartbeat ",
        }
    }

    /// What the server with this port number begins with.
    fn announcement(self, content: Content, port: u16, players: u16) -> Sent {
        match self {
            Dialect::Iceball => {
                let mut datagram = announcement(content.texts);
                datagram[10..12].copy_from_slice(&(FIRST_PORT + port).to_le_bytes());
                datagram[12..14].copy_from_slice(&players.to_le_bytes());
                Sent::try_from(&datagram[..]).unwrap()
            }
            Dialect::Xash => Sent::try_from(&b"q\xff\x01\x02\x03\x04"[..]).unwrap(),
            Dialect::Quake3 => Sent::try_from(&b"\xff\xff\xff\xffheartbeat DarkPlaces\n"[..]).unwrap(),
        }
    }

    /// What a server answers to a challenge; None if this is no challenge: some masters also query their servers.
    fn answer(self, bytes: &[u8], players: u16) -> Option<Sent> {
        let text = match self {
            Dialect::Iceball => {
                let mut answer = Sent::try_from(bytes).unwrap();
                assert!(answer.starts_with(&wire::ACCEPTED), "{answer:?}");
                answer[..4].copy_from_slice(&wire::HANDSHAKE);
                return Some(answer);
            }
            Dialect::Xash => {
                let number = bytes.strip_prefix(XASH_CHALLENGE)?.first_chunk::<4>()?;
                format!(
                    "0\n\\protocol\\49\\challenge\\{}\\players\\{players}\\max\\64\\bots\\0\\gamedir\\valve\\map\\crossfire\\type\\d\
                     \\password\\0\\os\\l\\secure\\0\\lan\\0\\version\\0.20\\region\\255\\product\\valve\\nat\\0\n",
                    u32::from_le_bytes(*number)
                )
                .into_bytes()
            }
            Dialect::Quake3 => {
                let challenge = bytes.strip_prefix(QUAKE3_CHALLENGE)?;
                let info = format!(
                    "\\gamename\\Xonotic\\modname\\data\\gameversion\\806\\sv_maxclients\\24\\clients\\{players}\\bots\\0\\mapname\\stormkeep\
                     \\hostname\\Somebody's server [EU]\\protocol\\3\\qcstatus\\dm:0.8.6:P105:S19:F0:MXonotic\\challenge\\"
                );
                [b"\xff\xff\xff\xffinfoResponse\n", info.as_bytes(), challenge].concat()
            }
        };
        Some(text.as_slice().try_into().unwrap())
    }

    /// A challenge that is as long as the master's, for a loop that does nothing else.
    pub fn challenge<const N: usize>(self, announcement: &[u8], reply: &mut ArrayVec<u8, N>) {
        // How much longer the cookie is than the announcement.
        const PADDING: usize = wire::ACCEPTED.len() + cookie::OVERHEAD - wire::BODY;
        let parts: [&[u8]; 3] = match self {
            Dialect::Iceball => [&wire::ACCEPTED, &announcement[wire::ACCEPTED.len()..], &[0; PADDING]],
            Dialect::Xash => [XASH_CHALLENGE, b"abcd", b"\x01\x02\x03\x04"],
            Dialect::Quake3 => [QUAKE3_CHALLENGE, b"0123456789abcdefghijkl", b""],
        };
        parts.iter().for_each(|part| reply.try_extend_from_slice(part).unwrap());
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Driven {
    /// Announcements that were answered, with their handshakes.
    pub pairs: u64,
    pub sent_again: u64,
    /// How often the other side was stopped.
    pub stops: u32,
}

/// Every server once: the first port of all addresses, then the second, and so on. As in a real list, servers of one address
/// are then not neighbours in the other side's memory.
pub fn all(ips: Range<u32>, per_ip: u16) -> impl Iterator<Item = Visit> {
    (0..per_ip).flat_map(move |port| ips.clone().map(move |ip| Visit { ip, ports: port..port + 1 }))
}

/// All servers of an address together, the addresses in a scattered order, repeated endlessly.
pub fn jumping(ips: u32, per_ip: u16) -> impl Iterator<Item = Visit> {
    // A prime that divides no number used here, so every address is visited before the first is repeated.
    (0u64..).map(move |turn| Visit { ip: (turn * 2_654_435_761 % u64::from(ips)) as u32, ports: 0..per_ip })
}

/// Announces the servers of `visits`.
///
/// With `hold`, that process is stopped while datagrams are sent and continued while it answers, so that it always finds full
/// batches, as a server at its limits does. Otherwise the scheduler would decide how many datagrams each receive call finds,
/// and with few of them the cost of the call hides all other costs.
pub fn drive(master: SocketAddr, content: Content, hold: Option<u32>, visits: impl Iterator<Item = Visit>) -> Driven {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    Drive { socket: &socket, dialect: Dialect::Iceball, master, hold, is_gentle: false }.run(content, visits)
}

/// Where announcements go, and how.
#[derive(Clone, Copy)]
pub struct Drive<'a> {
    /// Where they come from. It is the same one in all drives with servers that are known by their source port.
    pub socket: &'a UdpSocket,
    pub dialect: Dialect,
    pub master: SocketAddr,
    /// The process that is held, as in [`drive`].
    pub hold: Option<u32>,
    /// Few announcements are in flight: for a master with one small receive buffer.
    pub is_gentle: bool,
}

impl Drive<'_> {
    pub fn run(&self, content: Content, visits: impl Iterator<Item = Visit>) -> Driven {
        let SocketAddr::V4(master) = self.master else { panic!("{} is not IPv4", self.master) };
        let hold = self.hold.map(|pid| Pid::from_raw(pid as i32));
        let mut driver = Driver::new(self.socket.try_clone().unwrap(), master, content, hold);
        driver.dialect = self.dialect;
        driver.window = match (self.is_gentle, self.hold) {
            (true, _) => GENTLE_WINDOW,
            (false, Some(_)) => held_window(),
            (false, None) => WINDOW,
        };
        driver.run(visits)
    }
}

/// As many as have room in the receive buffers that the system allows. By default that is [`WINDOW`].
fn held_window() -> usize {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok().and_then(|text| text.trim().parse().ok());
    (allowed.unwrap_or(0usize) / 416).clamp(WINDOW, HELD_WINDOW)
}

/// The outstanding answers of an address.
struct Waiting {
    ports: Range<u16>,
    answers: usize,
}

struct Driver {
    socket: UdpSocket,
    master: SockaddrIn,
    content: Content,
    dialect: Dialect,
    window: usize,
    hold: Option<Pid>,
    send_headers: MultiHeaders<SockaddrIn>,
    receive_headers: MultiHeaders<SockaddrIn>,
    buffers: Box<[[u8; 256]; BATCH]>,
    waiting: HashMap<u32, Waiting>,
    in_flight: usize,
    /// Handshakes to send, with their source addresses.
    handshakes: Vec<(u32, Sent)>,
    driven: Driven,
}

impl Driver {
    fn new(socket: UdpSocket, master: SocketAddrV4, content: Content, hold: Option<Pid>) -> Driver {
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
        let headers = || MultiHeaders::preallocate(BATCH, Some(nix::cmsg_space!(libc::in_pktinfo)));
        Driver {
            socket,
            master: master.into(),
            content,
            dialect: Dialect::Iceball,
            window: WINDOW,
            hold,
            send_headers: headers(),
            receive_headers: headers(),
            buffers: Box::new([[0; 256]; BATCH]),
            waiting: HashMap::new(),
            in_flight: 0,
            handshakes: Vec::new(),
            driven: Driven::default(),
        }
    }

    fn run(mut self, visits: impl Iterator<Item = Visit>) -> Driven {
        let start = Instant::now();
        let mut visits = visits.fuse();
        loop {
            self.signal(Signal::SIGSTOP);
            self.return_cookies();
            while self.in_flight < self.window
                && let Some(visit) = visits.next()
            {
                self.announce(&visit);
                let count = visit.ports.len();
                let waiting =
                    self.waiting.entry(visit.ip).or_insert(Waiting { ports: visit.ports.clone(), answers: 0 });
                waiting.ports = waiting.ports.start.min(visit.ports.start)..waiting.ports.end.max(visit.ports.end);
                waiting.answers += count;
                self.in_flight += count;
            }
            self.signal(Signal::SIGCONT);
            if self.waiting.is_empty() {
                return self.driven;
            }
            let mut came = self.collect();
            while came && self.hold.is_some() && !self.waiting.is_empty() {
                came = self.collect();
            }
            if !came {
                self.announce_again();
            }
            assert!(start.elapsed() < DRIVE_TIMEOUT, "{} answers never came, after {:?}", self.in_flight, self.driven);
        }
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(pid) = self.hold {
            kill(pid, signal).unwrap();
            self.driven.stops += u32::from(signal == Signal::SIGSTOP);
        }
    }

    fn announce(&mut self, visit: &Visit) {
        let content = self.content;
        let one = |port: u16| self.dialect.announcement(content, port, content.players_at(visit.ip + u32::from(port)));
        let datagrams: Vec<_> = visit.ports.clone().map(one).collect();
        for some in datagrams.chunks(BATCH) {
            let slices: Vec<_> = some.iter().map(|datagram| [IoSlice::new(datagram)]).collect();
            send(&self.socket, &mut self.send_headers, self.master, visit.ip, &slices);
        }
    }

    fn announce_again(&mut self) {
        let visits: Vec<_> =
            self.waiting.iter().map(|(&ip, waiting)| Visit { ip, ports: waiting.ports.clone() }).collect();
        for visit in visits {
            self.driven.sent_again += visit.ports.len() as u64;
            self.announce(&visit);
        }
    }

    /// Receives the available answers; false if none came in time.
    fn collect(&mut self) -> bool {
        let mut slices = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let flags = MsgFlags::MSG_WAITFORONE;
        let fd = self.socket.as_raw_fd();
        let received = match recvmmsg(fd, &mut self.receive_headers, slices.iter_mut(), flags, None) {
            Ok(received) => received,
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            Err(error) => panic!("receiving failed: {error}"),
        };
        let answers: ArrayVec<_, BATCH> =
            received.map(|message| (destination_of(message.cmsgs().unwrap()), message.bytes)).collect();
        for ((ip, size), buffer) in answers.iter().zip(self.buffers.iter_mut()) {
            let players = self.content.players_at(*ip);
            let Some(answer) = self.dialect.answer(&buffer[..*size], players) else { continue };
            self.handshakes.push((*ip, answer));
            // An announcement that was sent twice may be answered twice.
            if let Some(waiting) = self.waiting.get_mut(ip) {
                self.driven.pairs += 1;
                self.in_flight -= 1;
                waiting.answers -= 1;
                if waiting.answers == 0 {
                    self.waiting.remove(ip);
                }
            }
        }
        true
    }

    /// Sends every cookie back from the address that it was sent to.
    fn return_cookies(&mut self) {
        for same in self.handshakes.chunk_by(|one, next| one.0 == next.0) {
            for some in same.chunks(BATCH) {
                let slices: Vec<_> = some.iter().map(|(_, handshake)| [IoSlice::new(handshake)]).collect();
                send(&self.socket, &mut self.send_headers, self.master, some[0].0, &slices);
            }
        }
        self.handshakes.clear();
    }
}

/// The number of the simulated server that a datagram was sent to.
pub fn destination_of(mut about: impl Iterator<Item = ControlMessageOwned>) -> u32 {
    let ip = about.find_map(|about| match about {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(u32::from_be(info.ipi_addr.s_addr)),
        _ => None,
    });
    ip.unwrap() - FIRST
}

/// Sends from the simulated server with this number.
pub fn send(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrIn>,
    to: SockaddrIn,
    ip: u32,
    slices: &[[IoSlice<'_>; 1]],
) {
    let from = libc::in_addr { s_addr: u32::from(Ipv4Addr::from(FIRST + ip)).to_be() };
    let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: libc::in_addr { s_addr: 0 } };
    let to = [Some(to); BATCH];
    let mut sent = 0;
    while sent < slices.len() {
        let about = [ControlMessage::Ipv4PacketInfo(&info)];
        match sendmmsg(socket.as_raw_fd(), headers, &slices[sent..], to, about, MsgFlags::empty()) {
            Ok(results) => sent += results.count(),
            Err(Errno::EINTR) => {}
            Err(error) => panic!("sending from {} failed: {error}", Ipv4Addr::from(FIRST + ip)),
        }
    }
}

fn announcement(texts: Texts) -> [u8; wire::ANNOUNCEMENT_SIZE] {
    let (name, mode, map): (&[u8], &[u8], &[u8]) = match texts {
        Texts::Typical => (b"Somebody's server [EU]", b"ctf", b"mesa.vxl"),
        Texts::Longest => (&[b'n'; 30], &[b'm'; 10], &[b'p'; 30]),
    };
    let version = match texts {
        Texts::Typical => Version(0x0080_8025),
        Texts::Longest => Version(0x0080_83ff), // 0.2.1-1023
    };
    Announcement { version, port: 0, players_current: 0, players_max: 64, name, mode, map }
        .emit(wire::HEARTBEAT_VERSION)
}

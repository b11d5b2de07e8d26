//! The prober's sockets, called lanes. Some answers carry no nonce, so an attacker must not know which port to send forged
//! answers to: queries go out from several ports at a time, chosen at random by the system, each used for seconds only. The
//! port of each query is chosen at random, too: a server that is queried learns one port, but not which port queries others.
//!
//! The operator may name several addresses to ask from. Then a socket of each is opened at a time, and their lanes follow each
//! other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hash::Hasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::Poll;

use siphasher::sip::SipHasher13;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tracing::debug;

use super::batch::{BATCH, Inbox, Outbox};
use super::prober::{DATAGRAM_BYTES_MAX, destination, socket_with};
use crate::asker::Lane;
use crate::model::Address;
use crate::protocols::{QUESTION_BYTES_MAX, Question};

/// Sockets in use at a time.
const CURRENT: usize = 8;
/// How long a socket sends queries: every quarter of a second, a new port replaces the oldest.
const USED_US: u64 = 2_000_000;
/// Upper bound on open sockets, those in use and those that only wait for answers. Usually far fewer.
const OPEN_MAX: usize = 64;
/// Questions that wait to be sent together. Each socket gets half a batch of them on average, for whose answers every receive
/// buffer has room.
pub const QUESTIONS_MAX: usize = CURRENT * BATCH / 2;
/// Receive buffer of each socket.
const RECEIVE_BUFFER: usize = 1 << 20;

pub struct Lanes {
    /// The addresses to ask from. None: the system chooses, for addresses of a family that has none here.
    sources: Vec<Option<IpAddr>>,
    /// Oldest first.
    open: VecDeque<Open>,
    /// The first lane of the newest.
    opened: Lane,
    /// How long a socket waits for answers after its last query.
    linger_us: u64,
    key: [u8; 16],
    picked: u64,
    /// The place of the socket that is read next, and the lane of the datagrams in the inbox.
    reading: usize,
    read: Lane,
    inbox: Inbox,
    questions: Vec<(Lane, Address, Question)>,
    outbox: Outbox<QUESTION_BYTES_MAX>,
}

/// A socket of each source.
struct Open {
    /// The lane of the first.
    lane: Lane,
    sockets: Vec<Bound>,
    used_until_us: u64,
}

struct Bound {
    socket: UdpSocket,
    /// Whether this socket needs IPv4 addresses as IPv4-mapped IPv6.
    mapped: bool,
}

impl Lanes {
    /// `key` is secret; `from` are the addresses to ask from, if the operator names some. Fails if not a single socket can be
    /// opened.
    pub fn new(key: [u8; 16], from: &[IpAddr], now_us: u64, linger_us: u64) -> io::Result<Lanes> {
        let mut sources: Vec<_> = from.iter().copied().map(Some).collect();
        if !(from.iter().any(IpAddr::is_ipv4) && from.iter().any(IpAddr::is_ipv6)) {
            sources.push(None);
        }
        let mut lanes = Lanes {
            sources,
            open: VecDeque::new(),
            opened: 0,
            linger_us,
            key,
            picked: 0,
            reading: 0,
            read: 0,
            inbox: Inbox::new(DATAGRAM_BYTES_MAX),
            questions: Vec::with_capacity(QUESTIONS_MAX),
            outbox: Outbox::default(),
        };
        lanes.open(now_us + USED_US)?;
        Ok(lanes)
    }

    pub fn set_linger_us(&mut self, linger_us: u64) {
        self.linger_us = linger_us;
    }

    /// Closes sockets that no longer wait for answers; but never the newest, in case the system has no other.
    pub fn close_old(&mut self, now_us: u64) {
        let (linger_us, newest) = (self.linger_us, self.opened);
        self.open.retain(|open| open.lane == newest || now_us < open.used_until_us + linger_us);
    }

    /// Opens as many sockets as are missing. If the system has none left, the others are used for longer.
    pub fn open_new(&mut self, now_us: u64) {
        let mut current = self.open.iter().filter(|open| now_us < open.used_until_us).count();
        while current < CURRENT && self.open.len() < OPEN_MAX {
            current += 1;
            // Staggered, so that sockets opened together do not end together.
            if let Err(error) = self.open(now_us + USED_US * current as u64 / CURRENT as u64) {
                return debug!(%error, "prober: cannot open another socket");
            }
        }
    }

    fn open(&mut self, used_until_us: u64) -> io::Result<()> {
        let bind = |source: &Option<IpAddr>| {
            let (socket, mapped) = socket_with(RECEIVE_BUFFER, *source)?;
            Ok(Bound { socket, mapped })
        };
        let sockets = self.sources.iter().map(bind).collect::<io::Result<_>>()?;
        self.opened = self.opened.wrapping_add(self.sources.len() as Lane);
        self.open.push_back(Open { lane: self.opened, sockets, used_until_us });
        Ok(())
    }

    /// Which of our addresses asks a server of this address when it is the turn of this one: so many lanes after the first.
    pub fn source(&self, to: IpAddr, turn: u8) -> Lane {
        let of_family = |source: &Option<IpAddr>| source.is_some_and(|own| own.is_ipv4() == to.is_ipv4());
        let has_own = self.sources.iter().any(of_family);
        let fits = |source: &Option<IpAddr>| if has_own { of_family(source) } else { source.is_none() };
        let fitting = || (0..).zip(&self.sources).filter(|(_, source)| fits(source)).map(|(number, _)| number);
        fitting().nth(usize::from(turn) % fitting().count().max(1)).unwrap_or(0)
    }

    /// A random socket of those in use, or the newest if none is in use.
    pub fn pick(&mut self, now_us: u64) -> Option<Lane> {
        self.picked += 1;
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(b"lane");
        hasher.write_u64(self.picked);
        let current = || self.open.iter().filter(|open| now_us < open.used_until_us);
        let number = hasher.finish() as usize % current().count().max(1);
        current().nth(number).or(self.open.back()).map(|open| open.lane)
    }

    /// Sends a datagram now.
    pub fn send(&self, lane: Lane, to: Address, bytes: &[u8]) -> io::Result<usize> {
        let Bound { socket, mapped } = self.find(lane).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        // Not through tokio, which assumes that a new socket is not writable yet.
        SockRef::from(socket).send_to(bytes, &destination(to, *mapped).into())
    }

    /// Keeps a question for [`Lanes::flush`].
    pub fn ask(&mut self, lane: Lane, to: Address, question: Question) {
        self.questions.push((lane, to, question));
        if self.questions.len() >= QUESTIONS_MAX {
            self.flush();
        }
    }

    /// Sends the questions, those of each socket together. One that cannot be sent is lost, like any datagram.
    pub fn flush(&mut self) {
        let mut questions = std::mem::take(&mut self.questions);
        questions.sort_unstable_by_key(|(lane, ..)| *lane);
        for same in questions.chunk_by(|one, next| one.0 == next.0).flat_map(|same| same.chunks(BATCH)) {
            let Some(&(lane, ..)) = same.first() else { continue };
            let Some(Bound { socket, mapped }) = find(&self.open, lane) else { continue };
            for (_, to, question) in same {
                self.outbox.push(destination(*to, *mapped), question.clone());
            }
            while let Err((to, error)) = self.outbox.send(socket) {
                debug!(%to, %error, "prober: sending failed");
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.outbox.clear();
                }
            }
        }
        questions.clear();
        self.questions = questions;
    }

    fn find(&self, lane: Lane) -> Option<&Bound> {
        find(&self.open, lane)
    }

    fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.open.iter().flat_map(|open| &open.sockets).map(|bound| &bound.socket)
    }

    /// Waits until any socket is readable.
    pub async fn readable(&self) {
        poll_fn(|context| {
            // Poll every socket, so that each one registers the waker.
            let ready = self.sockets().filter(|socket| socket.poll_recv_ready(context).is_ready()).count();
            if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }

    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// Reads a datagram from any of them, a batch from each in turn. None when all are empty, or when each has had its turn.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<(Lane, usize, SocketAddr)> {
        loop {
            if let Some((size, from)) = self.inbox.take(buffer) {
                return Some((self.read, size, from));
            }
            let (set, number) = (self.reading / self.sources.len(), self.reading % self.sources.len());
            let open = self.open.get(set).and_then(|open| Some((open.lane, open.sockets.get(number)?)));
            let Some((first, Bound { socket, mapped })) = open else {
                self.reading = 0;
                return None;
            };
            self.reading += 1;
            self.read = first.wrapping_add(number as Lane);
            let inbox = &mut self.inbox;
            let result = socket.try_io(Interest::READABLE, || match inbox.fill(socket, *mapped) {
                // The socket is empty: tokio need not ask it again before the system reports the next datagram.
                Ok(_) if !inbox.was_full() => Err(io::ErrorKind::WouldBlock.into()),
                result => result,
            });
            match result {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    // An ICMP error of an earlier question, which times out.
                    debug!(%error, "prober: receiving failed");
                }
                _ => {}
            }
        }
    }
}

fn find(open: &VecDeque<Open>, lane: Lane) -> Option<&Bound> {
    open.iter().rev().find_map(|open| open.sockets.get(lane.wrapping_sub(open.lane) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const LINGER_US: u64 = 3_000_000;

    impl Lanes {
        fn port(&self, lane: Lane) -> u16 {
            self.find(lane).unwrap().socket.local_addr().unwrap().port()
        }
    }

    #[tokio::test]
    async fn every_port_is_used_briefly_and_closed_when_no_more_answers_are_due() {
        let mut lanes = Lanes::new([1; 16], &[], 0, LINGER_US).unwrap();
        let mut asked_from: Vec<(u64, Lane, u16)> = Vec::new();
        for now_us in (0..20_000_000).step_by(50_000) {
            lanes.close_old(now_us);
            lanes.open_new(now_us);
            let lane = lanes.pick(now_us).unwrap();
            asked_from.push((now_us, lane, lanes.port(lane)));
            assert!(
                lanes.count() <= CURRENT + (LINGER_US * CURRENT as u64 / USED_US) as usize + 1,
                "{}",
                lanes.count()
            );
            for (sent_us, lane, port) in asked_from.iter().filter(|(sent_us, ..)| now_us < sent_us + LINGER_US) {
                assert_eq!(lanes.port(*lane), *port, "asked at {sent_us}, gone at {now_us}");
            }
        }
        for (sent_us, lane, _) in &asked_from {
            let used_us =
                asked_from.iter().filter(|(_, other, _)| other == lane).map(|(at_us, ..)| at_us - sent_us.min(at_us));
            assert!(used_us.max().unwrap() < USED_US);
        }
        let ports: HashSet<u16> = asked_from.iter().map(|(_, _, port)| *port).collect();
        assert!(ports.len() > 60, "{} in 20 s", ports.len());
        // After a long pause without new sockets, the last one is kept until there is another.
        lanes.close_old(100_000_000);
        let kept = lanes.pick(100_000_000);
        assert_eq!((lanes.count(), kept), (1, Some(lanes.opened)));
        lanes.open_new(100_000_000);
        assert!((0..100).all(|_| lanes.pick(100_000_000) != kept), "it is not used again");
        lanes.close_old(100_000_000);
        assert_eq!(lanes.count(), CURRENT, "and closed");
    }

    #[tokio::test]
    async fn the_first_query_from_a_new_port_is_sent() {
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = Address::new([127, 0, 0, 1].into(), game.local_addr().unwrap().port()).unwrap();
        let mut lanes = Lanes::new([1; 16], &[], 0, LINGER_US).unwrap();
        lanes.open_new(0);
        for lane in 1..=CURRENT as Lane {
            assert_eq!(lanes.send(lane, to, b"question").unwrap(), 8);
            let (size, from) = game.recv_from(&mut [0; 100]).unwrap();
            assert_eq!((size, from.port()), (8, lanes.port(lane)));
            game.send_to(b"answer", from).unwrap();
            let received = loop {
                lanes.readable().await;
                if let Some(received) = lanes.receive(&mut [0; 100]) {
                    break received;
                }
            };
            assert_eq!(received, (lane, 6, destination(to, lanes.open[0].sockets[0].mapped)));
        }
    }

    #[tokio::test]
    async fn each_of_our_addresses_asks_at_its_turn_and_hears_its_own_answers() {
        let from: [IpAddr; 2] = ["127.0.0.2", "127.0.0.3"].map(|ip| ip.parse().unwrap());
        let mut lanes = Lanes::new([1; 16], &from, 0, LINGER_US).unwrap();
        let (game4, game6) = ("127.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        assert_eq!([0, 1, 2, 255].map(|turn| lanes.source(game4, turn)), [0, 1, 0, 1]);
        assert_eq!([0, 1].map(|turn| lanes.source(game6, turn)), [2, 2], "the system chooses");
        let plain = Lanes::new([1; 16], &[], 0, LINGER_US).unwrap();
        assert_eq!([game4, game6].map(|ip| plain.source(ip, 1)), [0, 0]);
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = Address::new(game4, game.local_addr().unwrap().port()).unwrap();
        for now_us in [0, USED_US, 2 * USED_US] {
            lanes.open_new(now_us);
            for turn in 0..4 {
                let lane = lanes.pick(now_us).unwrap() + lanes.source(game4, turn);
                if turn < 2 {
                    assert_eq!(lanes.send(lane, to, b"question").unwrap(), 8);
                } else {
                    lanes.ask(lane, to, b"question".iter().copied().collect());
                    lanes.flush();
                }
                let (_, asker) = game.recv_from(&mut [0; 100]).unwrap();
                assert_eq!((asker.ip(), asker.port()), (from[usize::from(turn) % 2], lanes.port(lane)));
                game.send_to(b"answer", asker).unwrap();
                let received = loop {
                    lanes.readable().await;
                    if let Some(received) = lanes.receive(&mut [0; 100]) {
                        break received;
                    }
                };
                assert_eq!(received, (lane, 6, to.socket()));
            }
        }
        let ours = Lanes::new([1; 16], &["192.0.2.1".parse().unwrap()], 0, LINGER_US).err().unwrap();
        assert!(ours.to_string().starts_with("from 192.0.2.1: "), "{ours}");
    }

    #[tokio::test]
    async fn questions_leave_together_and_all_answers_arrive() {
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = Address::new([127, 0, 0, 1].into(), game.local_addr().unwrap().port()).unwrap();
        let mut lanes = Lanes::new([1; 16], &[], 0, LINGER_US).unwrap();
        lanes.open_new(0);
        const COUNT: usize = 800;
        let (mut asked, mut heard) = (Vec::new(), Vec::new());
        let mut buffer = [0; 100];
        for round in 0..COUNT / 200 {
            for number in 0..200u8 {
                let lane = lanes.pick(0).unwrap();
                let question: Question = [round as u8, number].into_iter().collect();
                asked.push((lane, [round as u8, number]));
                lanes.ask(lane, to, question);
            }
            lanes.flush();
            for _ in 0..200 {
                let (size, from) = game.recv_from(&mut buffer).unwrap();
                game.send_to(&buffer[..size], from).unwrap();
            }
            while heard.len() < asked.len() {
                lanes.readable().await;
                while let Some((lane, size, from)) = lanes.receive(&mut buffer) {
                    assert_eq!((size, from.port()), (2, to.port()));
                    heard.push((lane, [buffer[0], buffer[1]]));
                }
            }
        }
        asked.sort_unstable();
        heard.sort_unstable();
        assert_eq!(heard, asked, "each on the lane that asked");
        let calls = lanes.outbox.calls() as usize;
        assert!(calls <= COUNT / 200 * CURRENT, "{calls} calls for {COUNT} questions");
    }

    #[tokio::test]
    async fn neither_the_next_port_nor_the_next_choice_can_be_foretold() {
        let mut lanes = Lanes::new([1; 16], &[], 0, LINGER_US).unwrap();
        lanes.open_new(0);
        let ports: Vec<i32> = lanes.sockets().map(|socket| socket.local_addr().unwrap().port().into()).collect();
        let near = ports.windows(2).filter(|pair| (pair[1] - pair[0]).abs() < 100).count();
        assert!(near < CURRENT / 2, "the system's ports are sequential: {ports:?}");
        let picked: Vec<Lane> = (0..800).map(|_| lanes.pick(0).unwrap()).collect();
        let steps: HashSet<(Lane, Lane)> = picked.windows(2).map(|pair| (pair[0], pair[1])).collect();
        assert_eq!(steps.len(), CURRENT * CURRENT, "every lane may follow every lane");
    }
}

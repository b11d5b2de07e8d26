//! The prober's sockets. Some answers carry no nonce, so a forger must not know where to send: questions go out from
//! several ports at a time, chosen at random by the system, each of them in use for seconds only. Which of them asks whom
//! is random, too: whoever is asked knows one port, but not which one asks others.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hash::Hasher;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;

use siphasher::sip::SipHasher13;
use socket2::SockRef;
use tokio::net::UdpSocket;
use tracing::debug;

use super::prober::{destination, socket_with};
use crate::asker::Lane;
use crate::model::Address;

/// Sockets to ask from, at one time.
const CURRENT: usize = 8;
/// How long one is used to ask from: every quarter of a second another port takes the place of the oldest.
const USED_US: u64 = 2_000_000;
/// Those in use, and those that only wait for answers. A bound; the times above keep it well below.
const OPEN_MAX: usize = 64;
/// What the system may keep for each socket until it is read.
const RECEIVE_BUFFER: usize = 1 << 20;

pub struct Lanes {
    /// Oldest first.
    open: VecDeque<Open>,
    opened: Lane,
    /// How long answers are waited for after the last question.
    linger_us: u64,
    key: [u8; 16],
    picked: u64,
}

struct Open {
    lane: Lane,
    socket: UdpSocket,
    /// Whether IPv4 addresses have to be written as IPv6 for this socket.
    mapped: bool,
    used_until_us: u64,
}

impl Lanes {
    /// The key is secret. Fails where no socket can be had at all.
    pub fn new(key: [u8; 16], now_us: u64, linger_us: u64) -> io::Result<Lanes> {
        let mut lanes = Lanes { open: VecDeque::new(), opened: 0, linger_us, key, picked: 0 };
        lanes.open(now_us + USED_US)?;
        Ok(lanes)
    }

    pub fn set_linger_us(&mut self, linger_us: u64) {
        self.linger_us = linger_us;
    }

    /// Closes those whose answers are over; but not the last, which is asked from where the system gives no other.
    pub fn close_old(&mut self, now_us: u64) {
        let (linger_us, newest) = (self.linger_us, self.opened);
        self.open.retain(|open| open.lane == newest || now_us < open.used_until_us + linger_us);
    }

    /// Opens as many as are missing. Where the system gives none, the others are used for longer.
    pub fn open_new(&mut self, now_us: u64) {
        let mut current = self.open.iter().filter(|open| now_us < open.used_until_us).count();
        while current < CURRENT && self.open.len() < OPEN_MAX {
            current += 1;
            // Opened together, they end one after the other all the same.
            if let Err(error) = self.open(now_us + USED_US * current as u64 / CURRENT as u64) {
                return debug!(%error, "prober: cannot open another socket");
            }
        }
    }

    fn open(&mut self, used_until_us: u64) -> io::Result<()> {
        let (socket, mapped) = socket_with(RECEIVE_BUFFER)?;
        self.opened = self.opened.wrapping_add(1);
        self.open.push_back(Open { lane: self.opened, socket, mapped, used_until_us });
        Ok(())
    }

    /// One of those in use, at random; or the newest, where none is.
    pub fn pick(&mut self, now_us: u64) -> Option<Lane> {
        self.picked += 1;
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(b"lane");
        hasher.write_u64(self.picked);
        let current = || self.open.iter().filter(|open| now_us < open.used_until_us);
        let number = hasher.finish() as usize % current().count().max(1);
        current().nth(number).or(self.open.back()).map(|open| open.lane)
    }

    pub fn send(&self, lane: Lane, to: Address, bytes: &[u8]) -> io::Result<usize> {
        let open = self.open.iter().rev().find(|open| open.lane == lane);
        let open = open.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        // Not through tokio, which thinks that a new socket cannot be written to yet.
        SockRef::from(&open.socket).send_to(bytes, &destination(to, open.mapped).into())
    }

    /// Waits until something can be read.
    pub async fn readable(&self) {
        poll_fn(|context| {
            // Each has to be asked, so that each of them wakes.
            let ready = self.open.iter().filter(|open| open.socket.poll_recv_ready(context).is_ready()).count();
            if ready > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }

    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// Reads from one of them, by its place.
    pub fn receive(&self, place: usize, buffer: &mut [u8]) -> io::Result<(Lane, usize, SocketAddr)> {
        let open = self.open.get(place).ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        open.socket.try_recv_from(buffer).map(|(size, from)| (open.lane, size, from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const LINGER_US: u64 = 3_000_000;

    impl Lanes {
        fn port(&self, lane: Lane) -> u16 {
            let open = self.open.iter().find(|open| open.lane == lane).unwrap();
            open.socket.local_addr().unwrap().port()
        }
    }

    #[tokio::test]
    async fn every_port_is_used_for_a_short_time_and_closed_when_its_answers_are_over() {
        let mut lanes = Lanes::new([1; 16], 0, LINGER_US).unwrap();
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
        // After a long rest, when the system has no descriptors left: the last one is kept until there is another.
        lanes.close_old(100_000_000);
        let kept = lanes.pick(100_000_000);
        assert_eq!((lanes.count(), kept), (1, Some(lanes.opened)));
        lanes.open_new(100_000_000);
        assert!((0..100).all(|_| lanes.pick(100_000_000) != kept), "it is not asked from again");
        lanes.close_old(100_000_000);
        assert_eq!(lanes.count(), CURRENT, "and closed");
    }

    #[tokio::test]
    async fn the_first_question_from_a_new_port_is_sent() {
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = Address::new([127, 0, 0, 1].into(), game.local_addr().unwrap().port()).unwrap();
        let mut lanes = Lanes::new([1; 16], 0, LINGER_US).unwrap();
        lanes.open_new(0);
        for lane in 1..=CURRENT as Lane {
            assert_eq!(lanes.send(lane, to, b"question").unwrap(), 8);
            let (size, from) = game.recv_from(&mut [0; 100]).unwrap();
            assert_eq!((size, from.port()), (8, lanes.port(lane)));
            game.send_to(b"answer", from).unwrap();
            let heard = loop {
                lanes.readable().await;
                if let Some(heard) = (0..lanes.count()).find_map(|place| lanes.receive(place, &mut [0; 100]).ok()) {
                    break heard;
                }
            };
            assert_eq!(heard, (lane, 6, destination(to, lanes.open[0].mapped)));
        }
    }

    #[tokio::test]
    async fn neither_the_next_port_nor_the_next_choice_can_be_foretold() {
        let mut lanes = Lanes::new([1; 16], 0, LINGER_US).unwrap();
        lanes.open_new(0);
        let ports: Vec<i32> = lanes.open.iter().map(|open| open.socket.local_addr().unwrap().port().into()).collect();
        let near = ports.windows(2).filter(|pair| (pair[1] - pair[0]).abs() < 100).count();
        assert!(near < CURRENT / 2, "the system counts its ports: {ports:?}");
        let picked: Vec<Lane> = (0..800).map(|_| lanes.pick(0).unwrap()).collect();
        let steps: HashSet<(Lane, Lane)> = picked.windows(2).map(|pair| (pair[0], pair[1])).collect();
        assert_eq!(steps.len(), CURRENT * CURRENT, "every one follows every one");
    }
}

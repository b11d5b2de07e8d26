//! The socket that sends queries, in batches. Unlike a plain one, it reports how many answers its receive buffer dropped, and
//! which queries were rejected with an ICMP error.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, RecvMsg, SockaddrStorage, getsockopt, recvmsg, setsockopt, sockopt,
};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::sleep;

use crate::model::Address;
use crate::net::batch::{Inbox, Outbox, socket_addr};
use crate::net::prober::{DATAGRAM_BYTES_MAX, destination, socket};
use crate::protocols::{QUESTION_BYTES_MAX, Question};

/// Room for an error with the address of the router that reports it.
const CONTROL_BYTES: usize = 256;
/// What an answer takes in the receive buffer: one of up to 1,400 bytes, with the system's own record of it.
const ANSWER_BYTES: usize = 2_304;
/// Requested receive buffer, where this program may exceed the system's limit.
const RECEIVE_BUFFER: usize = 32 << 20;
/// Every so many calls to receive, the answers that were dropped are counted.
const COUNT_EVERY: u32 = 4;
/// Wait for a full send buffer to drain.
const FULL: Duration = Duration::from_millis(1);

pub struct Socket {
    socket: UdpSocket,
    mapped: bool,
    /// Its own loopback address.
    itself: Address,
    inbox: Inbox,
    /// When the datagrams in the inbox were received.
    received_at: Instant,
    outbox: Outbox<QUESTION_BYTES_MAX>,
    control: Vec<u8>,
    lost: u32,
    /// Calls to receive.
    calls: u32,
    is_checking: bool,
    /// The last batch was not full, so that there is nothing to receive now.
    is_empty: bool,
}

/// An ICMP error. Anyone can send one, but only a host that saw the query can quote it.
#[derive(Debug)]
pub struct Undelivered {
    /// The destination of the query.
    pub to: SocketAddr,
    /// Length of the quoted query, which is in the buffer; may be zero.
    pub quoted: usize,
    pub error: io::Error,
}

impl Socket {
    /// With a receive buffer of this size, or as large as the system allows.
    pub fn open(receive_buffer: Option<usize>) -> io::Result<Socket> {
        let (socket, mapped) = socket()?;
        match receive_buffer {
            Some(bytes) => SockRef::from(&socket).set_recv_buffer_size(bytes)?,
            // Beyond the system's limit, where this program may.
            None => drop(setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)),
        }
        // On systems without these options, drops and closed ports look like missing answers.
        let _ = setsockopt(&socket, sockopt::RxqOvfl, &1);
        let _ = setsockopt(&socket, sockopt::Ipv4RecvErr, &true);
        let _ = setsockopt(&socket, sockopt::Ipv6RecvErr, &true);
        let itself = Address::new(Ipv4Addr::LOCALHOST.into(), socket.local_addr()?.port());
        let itself = itself.ok_or_else(|| io::Error::other("the socket has no port"))?;
        Ok(Socket {
            socket,
            mapped,
            itself,
            inbox: Inbox::new(DATAGRAM_BYTES_MAX),
            received_at: Instant::now(),
            outbox: Outbox::default(),
            control: vec![0; CONTROL_BYTES],
            lost: 0,
            calls: 0,
            is_checking: false,
            is_empty: false,
        })
    }

    /// How many answers its receive buffer has room for.
    pub fn room(&self) -> usize {
        getsockopt(&self.socket, sockopt::RcvBuf).unwrap_or(0) / ANSWER_BYTES
    }

    /// Waits for a datagram or an ICMP error.
    pub async fn ready(&self) {
        let _ = self.socket.ready(Interest::READABLE | Interest::ERROR).await; // after an error, too, the caller reads the socket
    }

    /// Adds a datagram to those that [`Socket::flush`] sends.
    pub fn push(&mut self, bytes: Question, to: Address) {
        self.outbox.push(destination(to, self.mapped), bytes);
    }

    /// Whether [`Socket::flush`] is due.
    pub fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    /// Sends what waits. An error is about one datagram only: call it again for the others. [`Socket::undelivered`] reports
    /// the errors of datagrams that were sent before.
    pub async fn flush(&mut self) -> Result<(), (SocketAddr, io::Error)> {
        loop {
            // Not through tokio: after an ICMP error it considers the socket always writable.
            match self.outbox.send(&self.socket) {
                Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => sleep(FULL).await,
                result => return result,
            }
        }
    }

    /// The next datagram; None if there is none.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        loop {
            while let Some((size, from)) = self.inbox.take(buffer) {
                if Address::new(from.ip(), from.port()) != Some(self.itself) {
                    return Some((size, from));
                }
                self.is_checking = false;
            }
            if std::mem::take(&mut self.is_empty) {
                return None;
            }
            let Socket { socket, mapped, inbox, .. } = self;
            // Counting takes new headers for the call, and the next count says what was lost since.
            self.calls = self.calls.wrapping_add(1);
            let counts = self.is_checking || self.calls.is_multiple_of(COUNT_EVERY);
            let fill = || if counts { inbox.fill_counting(socket) } else { inbox.fill(socket, *mapped) };
            match socket.try_io(Interest::READABLE, fill) {
                Ok(_) => {
                    self.received_at = Instant::now();
                    self.lost = self.inbox.dropped().unwrap_or(self.lost);
                    self.is_empty = !self.inbox.was_full();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {} // an earlier query's error, which `undelivered` returns
            }
        }
    }

    /// When the last datagram of [`Socket::receive`] was received.
    pub fn received_at(&self) -> Instant {
        self.received_at
    }

    /// The next ICMP error, with the query it quotes in the buffer; None if there is none.
    pub fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered> {
        let Socket { socket, control, .. } = self;
        loop {
            let report = socket.try_io(Interest::ERROR, || {
                let mut slices = [IoSliceMut::new(buffer)];
                let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
                let read: RecvMsg<SockaddrStorage> = recvmsg(socket.as_raw_fd(), &mut slices, Some(control), flags)?;
                let error = read.cmsgs().ok().into_iter().flatten().find_map(|message| match message {
                    ControlMessageOwned::Ipv4RecvErr(error, _) => Some(error.ee_errno as i32),
                    ControlMessageOwned::Ipv6RecvErr(error, _) => Some(error.ee_errno as i32),
                    _ => None,
                });
                Ok((read.bytes, read.address.as_ref().and_then(socket_addr), error))
            });
            match report {
                Ok((quoted, Some(to), Some(number))) => {
                    return Some(Undelivered { to, quoted, error: io::Error::from_raw_os_error(number) });
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Updates the drop counter. The kernel attaches it to the next datagram, so the socket sends one to itself; receive
    /// until [`Socket::is_checking`] is false.
    pub fn check_for_losses(&mut self) {
        let to = destination(self.itself, self.mapped).into();
        self.is_checking = SockRef::from(&self.socket).send_to(&[0], &to).is_ok();
    }

    /// Whether a check for losses is under way.
    pub fn is_checking(&self) -> bool {
        self.is_checking
    }

    /// Datagrams dropped by a full receive buffer since the socket was opened, as of the last one received.
    pub fn lost(&self) -> u32 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::batch::BATCH;
    use tokio::time::timeout;

    fn here(socket: &std::net::UdpSocket) -> Address {
        let at = socket.local_addr().unwrap();
        Address::new(at.ip(), at.port()).unwrap()
    }

    async fn send(socket: &mut Socket, bytes: &[u8], to: Address) {
        socket.push(bytes.try_into().unwrap(), to);
        socket.flush().await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_with_the_question() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let closed = std::net::UdpSocket::bind(any).map(|socket| here(&socket)).unwrap();
            let open = std::net::UdpSocket::bind(any).unwrap();
            let mut socket = Socket::open(None).unwrap();
            let mut buffer = [0; 100];
            send(&mut socket, b"question", closed).await;
            timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
            // An earlier query's error does not affect the next one.
            send(&mut socket, b"other", here(&open)).await;
            let Undelivered { to, quoted, error } = socket.undelivered(&mut buffer).unwrap();
            let to = Address::new(to.ip(), to.port()).unwrap();
            assert_eq!(
                (to, &buffer[..quoted], error.kind()),
                (closed, &b"question"[..], io::ErrorKind::ConnectionRefused)
            );
            assert!(socket.undelivered(&mut buffer).is_none());
            assert_eq!(open.recv(&mut buffer).unwrap(), 5);
        }
    }

    #[tokio::test]
    async fn a_batch_is_sent_with_one_call_and_a_bad_address_spoils_no_other() {
        let open = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::open(None).unwrap();
        let nowhere = Address::new([255, 255, 255, 255].into(), 9).unwrap(); // needs SO_BROADCAST
        for number in 0..BATCH as u8 {
            assert!(!socket.is_full());
            let to = if number == 20 { nowhere } else { here(&open) };
            socket.push([number].into_iter().collect(), to);
        }
        assert!(socket.is_full());
        let (failed, _) = socket.flush().await.unwrap_err();
        assert_eq!(Address::new(failed.ip(), failed.port()), Some(nowhere));
        socket.flush().await.unwrap();
        let mut byte = [0];
        for expected in (0..BATCH as u8).filter(|number| *number != 20) {
            open.recv(&mut byte).unwrap();
            assert_eq!(byte, [expected]);
        }
        assert!(socket.outbox.calls() <= 5, "{} calls", socket.outbox.calls());
        assert!(!socket.is_full() && socket.outbox.is_empty());
    }

    #[tokio::test]
    async fn dropped_answers_are_counted() {
        let mut socket = Socket::open(Some(1)).unwrap(); // the system uses its minimum
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = [0; 100];
        send(&mut socket, b"question", here(&game)).await;
        let (_, asker) = game.recv_from(&mut buffer).unwrap();
        for _ in 0..100 {
            game.send_to(b"answer", asker).unwrap();
        }
        let mut received = 0;
        let mut receive_all = |socket: &mut Socket| {
            while socket.receive(&mut buffer).is_some() {
                received += 1;
            }
            received
        };
        timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
        let before = receive_all(&mut socket);
        assert!((1..100).contains(&before), "{before}");
        socket.check_for_losses();
        let mut after = before;
        while socket.is_checking() {
            timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
            after = receive_all(&mut socket);
        }
        assert_eq!(after + socket.lost(), 100);
    }

    #[tokio::test]
    async fn dropped_answers_are_noticed_without_asking() {
        let mut socket = Socket::open(Some(1)).unwrap();
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = [0; 100];
        send(&mut socket, b"question", here(&game)).await;
        let (_, asker) = game.recv_from(&mut buffer).unwrap();
        let mut calls = 0;
        for _ in 0..100 {
            game.send_to(b"answer", asker).unwrap();
        }
        while socket.lost() == 0 {
            game.send_to(b"answer", asker).unwrap();
            timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
            while socket.receive(&mut buffer).is_some() {}
            calls += 1;
            assert!(calls <= 2 * COUNT_EVERY, "{calls}");
        }
    }
}

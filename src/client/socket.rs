//! The socket that questions are asked from. It knows what a plain one does not tell: how many answers its own buffer had
//! no room for, and which questions came back because nothing listens where they went.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, RecvMsg, SockaddrStorage, recvmsg, setsockopt, sockopt};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::sleep;

use crate::model::Address;
use crate::net::batch::socket_addr;
use crate::net::prober::{destination, socket};

/// A counter, or an error with the address of the router that reports it.
const CONTROL_BYTES: usize = 256;
/// How long a full send buffer is left to empty itself.
const FULL: Duration = Duration::from_millis(1);

pub struct Socket {
    socket: UdpSocket,
    mapped: bool,
    /// Where it can be reached from this machine.
    itself: Address,
    control: Vec<u8>,
    lost: u32,
    is_looking: bool,
}

/// An ICMP error. Anybody can send one; only who saw the question can quote it.
#[derive(Debug)]
pub struct Undelivered {
    /// Where the question went.
    pub to: SocketAddr,
    /// How much of the buffer it filled with the question, as the report quotes it; a report may quote nothing.
    pub quoted: usize,
    pub error: io::Error,
}

impl Socket {
    /// With room for so many bytes of answers, where that is given, and otherwise as much as the system allows.
    pub fn open(receive_buffer: Option<usize>) -> io::Result<Socket> {
        let (socket, mapped) = socket()?;
        if let Some(bytes) = receive_buffer {
            SockRef::from(&socket).set_recv_buffer_size(bytes)?;
        }
        // Where the system knows none of these, losses and closed ports look like silence, as they do everywhere else.
        let _ = setsockopt(&socket, sockopt::RxqOvfl, &1);
        let _ = setsockopt(&socket, sockopt::Ipv4RecvErr, &true);
        let _ = setsockopt(&socket, sockopt::Ipv6RecvErr, &true);
        let itself = Address::new(Ipv4Addr::LOCALHOST.into(), socket.local_addr()?.port());
        let itself = itself.ok_or_else(|| io::Error::other("the socket has no port"))?;
        Ok(Socket { socket, mapped, itself, control: vec![0; CONTROL_BYTES], lost: 0, is_looking: false })
    }

    /// Until there is an answer, or a report of one that cannot come.
    pub async fn ready(&self) {
        let _ = self.socket.ready(Interest::READABLE | Interest::ERROR).await; // an error is a reason to look, too
    }

    /// Sends a datagram. An error is about this one: what the system reports of earlier ones is asked for separately.
    pub async fn send(&self, bytes: &[u8], to: Address) -> io::Result<()> {
        let to = destination(to, self.mapped).into();
        // Not through the runtime: after a report it takes the socket for one that can always be written to.
        let socket = SockRef::from(&self.socket);
        let mut failed = false;
        loop {
            match socket.send_to(bytes, &to) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(FULL).await,
                Err(error) if failed => return Err(error),
                // An error of an earlier datagram comes up once, and is gone then.
                Err(_) => failed = true,
            }
        }
    }

    /// The next answer; None when there is none now.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        loop {
            match self.read(Interest::READABLE, MsgFlags::MSG_DONTWAIT, buffer) {
                Ok((size, Some(from), control)) => {
                    if let Some(Control::Lost(lost)) = control {
                        self.lost = lost;
                    }
                    if Address::new(from.ip(), from.port()) != Some(self.itself) {
                        return Some((size, from));
                    }
                    self.is_looking = false;
                }
                Ok((_, None, _)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {} // of an earlier question: `undelivered` tells which
            }
        }
    }

    /// The next report of a question that did not arrive, which it quotes in the buffer; None when there is none now.
    pub fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered> {
        loop {
            match self.read(Interest::ERROR, MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT, buffer) {
                Ok((quoted, Some(to), Some(Control::Error(number)))) => {
                    return Some(Undelivered { to, quoted, error: io::Error::from_raw_os_error(number) });
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Finds out what was lost up to now: the next datagram tells, so it sends itself one. What comes before that is
    /// still to be received.
    pub fn look_for_losses(&mut self) {
        let to = destination(self.itself, self.mapped).into();
        self.is_looking = SockRef::from(&self.socket).send_to(&[0], &to).is_ok();
    }

    /// Whether what was lost is not known yet.
    pub fn is_looking(&self) -> bool {
        self.is_looking
    }

    /// Answers that came and found no room, since the beginning. It is told by the next answer that finds some.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    fn read(
        &mut self,
        interest: Interest,
        flags: MsgFlags,
        buffer: &mut [u8],
    ) -> io::Result<(usize, Option<SocketAddr>, Option<Control>)> {
        let Socket { socket, control, .. } = self;
        socket.try_io(interest, || {
            let mut slices = [IoSliceMut::new(buffer)];
            let read: RecvMsg<SockaddrStorage> = recvmsg(socket.as_raw_fd(), &mut slices, Some(control), flags)?;
            let address = read.address.as_ref().and_then(socket_addr);
            let message = read.cmsgs().ok().into_iter().flatten().find_map(|message| match message {
                ControlMessageOwned::RxqOvfl(lost) => Some(Control::Lost(lost)),
                ControlMessageOwned::Ipv4RecvErr(error, _) => Some(Control::Error(error.ee_errno as i32)),
                ControlMessageOwned::Ipv6RecvErr(error, _) => Some(Control::Error(error.ee_errno as i32)),
                _ => None,
            });
            Ok((read.bytes, address, message))
        })
    }
}

enum Control {
    Lost(u32),
    Error(i32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    fn here(socket: &std::net::UdpSocket) -> Address {
        let at = socket.local_addr().unwrap();
        Address::new(at.ip(), at.port()).unwrap()
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_with_the_question() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let closed = std::net::UdpSocket::bind(any).map(|socket| here(&socket)).unwrap();
            let open = std::net::UdpSocket::bind(any).unwrap();
            let mut socket = Socket::open(None).unwrap();
            let mut buffer = [0; 100];
            socket.send(b"question", closed).await.unwrap();
            timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
            // The report of one question does not stand in the way of the next.
            socket.send(b"other", here(&open)).await.unwrap();
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
    async fn answers_that_find_no_room_are_counted() {
        let mut socket = Socket::open(Some(1)).unwrap(); // the system makes it its own least
        let game = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buffer = [0; 100];
        socket.send(b"question", here(&game)).await.unwrap();
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
        socket.look_for_losses();
        let mut after = before;
        while socket.is_looking() {
            timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
            after = receive_all(&mut socket);
        }
        assert_eq!(after + socket.lost(), 100);
    }
}

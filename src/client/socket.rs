//! The socket that sends queries. Unlike a plain one, it reports how many answers its receive buffer dropped, and which
//! queries were rejected with an ICMP error.

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

/// Room for the drop counter, or an error with the address of the router that reports it.
const CONTROL_BYTES: usize = 256;
/// Wait for a full send buffer to drain.
const FULL: Duration = Duration::from_millis(1);

pub struct Socket {
    socket: UdpSocket,
    mapped: bool,
    /// Its own loopback address.
    itself: Address,
    control: Vec<u8>,
    lost: u32,
    is_checking: bool,
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
        if let Some(bytes) = receive_buffer {
            SockRef::from(&socket).set_recv_buffer_size(bytes)?;
        }
        // On systems without these options, drops and closed ports look like missing answers.
        let _ = setsockopt(&socket, sockopt::RxqOvfl, &1);
        let _ = setsockopt(&socket, sockopt::Ipv4RecvErr, &true);
        let _ = setsockopt(&socket, sockopt::Ipv6RecvErr, &true);
        let itself = Address::new(Ipv4Addr::LOCALHOST.into(), socket.local_addr()?.port());
        let itself = itself.ok_or_else(|| io::Error::other("the socket has no port"))?;
        Ok(Socket { socket, mapped, itself, control: vec![0; CONTROL_BYTES], lost: 0, is_checking: false })
    }

    /// Waits for a datagram or an ICMP error.
    pub async fn ready(&self) {
        let _ = self.socket.ready(Interest::READABLE | Interest::ERROR).await; // after an error, too, the caller reads the socket
    }

    /// Sends a datagram. Errors are about this one only: [`Socket::undelivered`] reports those of earlier ones.
    pub async fn send(&self, bytes: &[u8], to: Address) -> io::Result<()> {
        let to = destination(to, self.mapped).into();
        // Not through tokio: after an ICMP error it considers the socket always writable.
        let socket = SockRef::from(&self.socket);
        let mut failed = false;
        loop {
            match socket.send_to(bytes, &to) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(FULL).await,
                Err(error) if failed => return Err(error),
                // An earlier datagram's error is reported once, so the second call succeeds.
                Err(_) => failed = true,
            }
        }
    }

    /// The next datagram; None if there is none.
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
                    self.is_checking = false;
                }
                Ok((_, None, _)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {} // an earlier query's error, which `undelivered` returns
            }
        }
    }

    /// The next ICMP error, with the query it quotes in the buffer; None if there is none.
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
            // An earlier query's error does not affect the next one.
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
    async fn dropped_answers_are_counted() {
        let mut socket = Socket::open(Some(1)).unwrap(); // the system uses its minimum
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
        socket.check_for_losses();
        let mut after = before;
        while socket.is_checking() {
            timeout(Duration::from_secs(20), socket.ready()).await.unwrap();
            after = receive_all(&mut socket);
        }
        assert_eq!(after + socket.lost(), 100);
    }
}

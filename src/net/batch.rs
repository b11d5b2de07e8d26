//! A UDP socket that receives and sends many datagrams with one system call, with preallocated buffers.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

/// Datagrams per call.
pub const BATCH: usize = 64;

pub struct BatchSocket<const REPLY: usize> {
    socket: UdpSocket,
    receive_headers: MultiHeaders<SockaddrStorage>,
    send_headers: MultiHeaders<SockaddrStorage>,
    /// One buffer per datagram, end to end.
    buffers: Box<[u8]>,
    bytes_max: usize,
    /// The sender and the length of the datagram in each buffer.
    received: ArrayVec<(Option<SockaddrStorage>, usize), BATCH>,
    replies: Box<ArrayVec<ArrayVec<u8, REPLY>, BATCH>>,
    reply_to: ArrayVec<Option<SockaddrStorage>, BATCH>,
}

/// One datagram of a batch.
pub struct Datagram<'a> {
    pub from: SocketAddr,
    pub bytes: &'a [u8],
}

impl<const REPLY: usize> BatchSocket<REPLY> {
    /// The socket should have a read timeout, so that its thread can check whether to stop. Datagrams longer than `bytes_max` are
    /// truncated.
    pub fn new(socket: UdpSocket, bytes_max: usize) -> BatchSocket<REPLY> {
        let bytes_max = bytes_max.max(1);
        BatchSocket {
            socket,
            receive_headers: MultiHeaders::preallocate(BATCH, None),
            send_headers: MultiHeaders::preallocate(BATCH, None),
            buffers: vec![0; bytes_max * BATCH].into(),
            bytes_max,
            received: ArrayVec::new(),
            replies: Box::new(ArrayVec::new()),
            reply_to: ArrayVec::new(),
        }
    }

    /// Waits for at least one datagram and receives all that have arrived, up to a batch.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.received.clear();
        let mut buffers = self.buffers.chunks_exact_mut(self.bytes_max);
        let mut slices: [_; BATCH] = std::array::from_fn(|_| [IoSliceMut::new(buffers.next().unwrap_or_default())]);
        let flags = MsgFlags::MSG_WAITFORONE;
        let results = recvmmsg(self.socket.as_raw_fd(), &mut self.receive_headers, slices.iter_mut(), flags, None)?;
        for result in results {
            self.received.push((result.address, result.bytes));
        }
        Ok(self.received.len())
    }

    /// Calls `look` with every received datagram and an empty reply. Non-empty replies are sent by
    /// [`BatchSocket::send_replies`].
    pub fn each<'a>(&'a mut self, mut look: impl FnMut(Datagram<'a>, &mut ArrayVec<u8, REPLY>)) {
        self.replies.clear();
        self.reply_to.clear();
        let mut reply = ArrayVec::new();
        for ((storage, size), buffer) in self.received.iter().zip(self.buffers.chunks_exact(self.bytes_max)) {
            let Some(storage) = storage else { continue };
            let (Some(from), Some(bytes)) = (socket_addr(storage), buffer.get(..*size)) else { continue };
            look(Datagram { from, bytes }, &mut reply);
            if !reply.is_empty() {
                self.reply_to.push(Some(*storage));
                self.replies.push(std::mem::take(&mut reply));
            }
        }
    }

    /// Drops a reply by its index. To drop several, start with the highest index.
    pub fn withhold(&mut self, number: usize) {
        if number < self.replies.len() {
            self.replies.swap_remove(number);
            self.reply_to.swap_remove(number);
        }
    }

    /// Sends the replies. One that cannot be sent (no route, a full buffer) is lost, like any datagram.
    pub fn send_replies(&mut self) {
        let mut sent = 0;
        while sent < self.replies.len() {
            let waiting = self.replies.get(sent..).unwrap_or_default();
            let to = self.reply_to.get(sent..).unwrap_or_default();
            let slices: ArrayVec<[IoSlice<'_>; 1], BATCH> = waiting.iter().map(|reply| [IoSlice::new(reply)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let result = sendmmsg(self.socket.as_raw_fd(), &mut self.send_headers, slices.iter(), to, [], flags);
            match result.map(Iterator::count) {
                Ok(count) => sent += count.max(1),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // The first of the remaining ones failed; skip it and send the others.
                Err(_) => sent += 1,
            }
        }
    }
}

pub fn socket_addr(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn bound() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[test]
    fn a_batch_is_echoed_to_all_senders() {
        let (server, address) = bound();
        let mut server = BatchSocket::<8>::new(server, 100);
        let clients: Vec<_> = (0..BATCH).map(|_| bound().0).collect();
        for (number, client) in clients.iter().enumerate() {
            client.send_to(&[number as u8; 3], address).unwrap();
        }
        let mut seen = 0;
        while seen < clients.len() {
            seen += server.receive().unwrap();
            server.each(|datagram, reply| {
                // Only even numbers are answered.
                if datagram.bytes[0] % 2 == 0 {
                    reply.extend(datagram.bytes.iter().copied());
                }
            });
            server.send_replies();
        }
        for (number, client) in clients.iter().enumerate().step_by(2) {
            let mut buffer = [0; 10];
            assert_eq!(client.recv_from(&mut buffer).unwrap(), (3, address));
            assert_eq!(buffer[0], number as u8);
        }
    }

    #[test]
    fn dropped_replies_are_not_sent_and_the_others_are() {
        let (server, address) = bound();
        let mut server = BatchSocket::<8>::new(server, 100);
        let (client, _) = bound();
        let mut heard = Vec::new();
        for round in 0..2u8 {
            // Sent together, so that they may arrive in one batch; the result is the same if they do not.
            for number in 0..5 {
                client.send_to(&[round * 5 + number], address).unwrap();
            }
            let mut seen = 0;
            while seen < 5 {
                seen += server.receive().unwrap();
                let mut odd = Vec::new();
                let mut replies = 0;
                server.each(|datagram, reply| {
                    reply.push(datagram.bytes[0]);
                    if datagram.bytes[0] % 2 == 1 {
                        odd.push(replies);
                    }
                    replies += 1;
                });
                odd.into_iter().rev().for_each(|reply| server.withhold(reply));
                server.withhold(BATCH);
                server.send_replies();
            }
        }
        client.send_to(&[100], address).unwrap();
        server.receive().unwrap();
        server.each(|datagram, reply| reply.extend(datagram.bytes.iter().copied()));
        server.send_replies();
        while heard.last() != Some(&100) {
            let mut buffer = [0; 10];
            assert_eq!(client.recv(&mut buffer).unwrap(), 1);
            heard.push(buffer[0]);
        }
        heard.sort_unstable();
        assert_eq!(heard, [0, 2, 4, 6, 8, 100]);
    }

    #[test]
    fn long_datagrams_are_truncated_and_empty_ones_are_received() {
        let (server, address) = bound();
        let mut server = BatchSocket::<8>::new(server, 100);
        let (client, from) = bound();
        client.send_to(&[7; 2000], address).unwrap();
        client.send_to(&[], address).unwrap();
        let mut sizes = Vec::new();
        while sizes.len() < 2 {
            server.receive().unwrap();
            server.each(|datagram, _| {
                assert_eq!(datagram.from, from);
                sizes.push(datagram.bytes.len());
            });
        }
        assert_eq!(sizes, [100, 0]);
    }
}

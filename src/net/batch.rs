//! UDP in batches: many datagrams with one system call, with preallocated buffers. [`BatchSocket`] is for threads that answer
//! what they receive; [`Inbox`] and [`Outbox`] are for those that ask, over sockets of their own.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

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
    /// The first of them are those for `reply_to`.
    replies: Box<[ArrayVec<u8, REPLY>]>,
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
            replies: (0..BATCH).map(|_| ArrayVec::new()).collect(),
            reply_to: ArrayVec::new(),
        }
    }

    /// Waits for at least one datagram and receives those that have arrived, up to a batch. Preparing a call costs something for
    /// each datagram, so few are asked for while few arrive.
    pub fn receive(&mut self) -> io::Result<usize> {
        match self.received.len() {
            0..4 => self.receive_up_to::<4>(),
            4..16 => self.receive_up_to::<16>(),
            _ => self.receive_up_to::<BATCH>(),
        }
    }

    fn receive_up_to<const MOST: usize>(&mut self) -> io::Result<usize> {
        self.received.clear();
        let mut buffers = self.buffers.chunks_exact_mut(self.bytes_max);
        let mut slices: [_; MOST] = std::array::from_fn(|_| [IoSliceMut::new(buffers.next().unwrap_or_default())]);
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
        self.reply_to.clear();
        let mut replies = self.replies.iter_mut();
        let mut next_reply = replies.next();
        for ((storage, size), buffer) in self.received.iter().zip(self.buffers.chunks_exact(self.bytes_max)) {
            let Some(storage) = storage else { continue };
            let (Some(from), Some(bytes)) = (socket_addr(storage), buffer.get(..*size)) else { continue };
            let Some(reply) = &mut next_reply else { return };
            reply.clear();
            look(Datagram { from, bytes }, reply);
            if !reply.is_empty() {
                self.reply_to.push(Some(*storage));
                next_reply = replies.next();
            }
        }
    }

    /// Drops a reply by its index. To drop several, start with the highest index.
    pub fn withhold(&mut self, number: usize) {
        if number < self.reply_to.len() {
            self.reply_to.swap_remove(number);
            self.replies.swap(number, self.reply_to.len());
        }
    }

    /// Sends the replies. One that cannot be sent (no route, a full buffer) is lost, like any datagram.
    pub fn send_replies(&mut self) {
        let mut sent = 0;
        while let (Some(waiting), Some(to)) = (self.replies.get(sent..self.reply_to.len()), self.reply_to.get(sent..))
            && !to.is_empty()
        {
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

type Headers = MultiHeaders<SockaddrStorage>;

thread_local! {
    /// The headers of the calls below. They have raw pointers and cannot move between threads, as tasks do; nothing in them
    /// outlives a call, but the length of an address does: IPv4 and IPv6 have their own.
    static RECEIVE_HEADERS: RefCell<[Headers; 2]> =
        RefCell::new(std::array::from_fn(|_| MultiHeaders::preallocate(BATCH, None)));
    static SEND_HEADERS: RefCell<Headers> = RefCell::new(MultiHeaders::preallocate(BATCH, None));
}

/// A cache line, and how much farther apart than their size buffers begin. Without this, the beginnings of buffers of 64 KiB
/// would compete for the same few places in the processor's cache.
const LINE: usize = 64;
const APART: usize = 22 * LINE;

/// Datagrams that were received together and are taken one by one.
pub struct Inbox {
    /// One buffer per datagram, end to end. Pages that no datagram has reached take no memory.
    buffers: Box<[u8]>,
    bytes_max: usize,
    received: ArrayVec<(Option<SocketAddr>, usize), BATCH>,
    /// How many of them were taken.
    taken: usize,
    dropped: Option<u32>,
}

impl Inbox {
    /// Longer datagrams are truncated.
    pub fn new(bytes_max: usize) -> Inbox {
        let bytes_max = bytes_max.max(1).next_multiple_of(LINE) + APART;
        let buffers = vec![0; bytes_max * BATCH].into();
        Inbox { buffers, bytes_max, received: ArrayVec::new(), taken: 0, dropped: None }
    }

    /// Receives what has arrived, up to a batch, without waiting. What was received before must have been taken.
    pub fn fill(&mut self, socket: &impl AsRawFd, is_ipv6: bool) -> io::Result<usize> {
        RECEIVE_HEADERS.with_borrow_mut(|[ipv4, ipv6]| self.receive(socket, if is_ipv6 { ipv6 } else { ipv4 }))
    }

    /// The same for a socket with `SO_RXQ_OVFL`: [`Inbox::dropped`] says how many datagrams it has dropped.
    pub fn fill_counting(&mut self, socket: &impl AsRawFd) -> io::Result<usize> {
        // The system writes into the headers how long each message about a datagram was, so they are good for one call.
        self.receive(socket, &mut MultiHeaders::preallocate(BATCH, Some(nix::cmsg_space!(u32))))
    }

    fn receive(&mut self, socket: &impl AsRawFd, headers: &mut Headers) -> io::Result<usize> {
        let Inbox { buffers, bytes_max, received, taken, dropped } = self;
        received.clear();
        (*taken, *dropped) = (0, None);
        let mut buffers = buffers.chunks_exact_mut(*bytes_max);
        let mut slices: [_; BATCH] = std::array::from_fn(|_| [IoSliceMut::new(buffers.next().unwrap_or_default())]);
        let flags = MsgFlags::MSG_DONTWAIT;
        for result in recvmmsg(socket.as_raw_fd(), headers, slices.iter_mut(), flags, None)? {
            let about = result.cmsgs().ok().into_iter().flatten();
            let counts = about.filter_map(|about| match about {
                ControlMessageOwned::RxqOvfl(count) => Some(count),
                _ => None,
            });
            *dropped = counts.last().or(*dropped);
            received.push((result.address.as_ref().and_then(socket_addr), result.bytes));
        }
        Ok(received.len())
    }

    /// Whether the last batch was full, so that more may have arrived.
    pub fn was_full(&self) -> bool {
        self.received.is_full()
    }

    /// How many datagrams the socket has dropped so far, if the last batch says so.
    pub fn dropped(&self) -> Option<u32> {
        self.dropped
    }

    /// The next datagram of the batch, copied into `buffer`: its size and its sender.
    pub fn take(&mut self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        while let Some((from, size)) = self.received.get(self.taken) {
            let start = self.taken * self.bytes_max;
            self.taken += 1;
            let bytes = self.buffers.get(start..start + size);
            if let (Some(from), Some(bytes), Some(to)) = (from, bytes, buffer.get_mut(..*size)) {
                to.copy_from_slice(bytes);
                return Some((*size, *from));
            }
        }
        None
    }
}

/// Datagrams that wait to be sent together.
#[derive(Default)]
pub struct Outbox<const BYTES: usize> {
    datagrams: Box<ArrayVec<ArrayVec<u8, BYTES>, BATCH>>,
    to: ArrayVec<Option<SockaddrStorage>, BATCH>,
    /// How many of them were sent, or failed.
    done: usize,
    /// How many calls were made.
    calls: u64,
}

impl<const BYTES: usize> Outbox<BYTES> {
    /// Adds a datagram. One that finds the outbox full is lost, so send before.
    pub fn push(&mut self, to: SocketAddr, bytes: ArrayVec<u8, BYTES>) {
        if !self.is_full() {
            self.to.push(Some(to.into()));
            self.datagrams.push(bytes);
        }
    }

    pub fn is_full(&self) -> bool {
        self.datagrams.is_full()
    }

    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Sends all, without waiting. An error is about one datagram, which counts as sent: call it again for the others. After
    /// [`io::ErrorKind::WouldBlock`], all that were not sent are still there.
    pub fn send(&mut self, socket: &impl AsRawFd) -> Result<(), (SocketAddr, io::Error)> {
        let mut has_failed = false;
        while let (Some(waiting), Some(to)) = (self.datagrams.get(self.done..), self.to.get(self.done..))
            && let Some(Some(first)) = to.first()
        {
            let slices: ArrayVec<[IoSlice<'_>; 1], BATCH> =
                waiting.iter().map(|datagram| [IoSlice::new(datagram)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            self.calls += 1;
            let sent = SEND_HEADERS.with_borrow_mut(|headers| {
                sendmmsg(socket.as_raw_fd(), headers, slices.iter(), to, [], flags).map(Iterator::count)
            });
            let error = match sent {
                Ok(count) => {
                    self.done += count.max(1);
                    has_failed = false;
                    continue;
                }
                Err(Errno::EINTR) => continue,
                Err(error) => error,
            };
            // An earlier datagram's ICMP error is reported once, so the second call succeeds.
            if error != Errno::EAGAIN && !std::mem::replace(&mut has_failed, true) {
                continue;
            }
            let first = socket_addr(first).unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
            self.done += usize::from(error != Errno::EAGAIN);
            return Err((first, error.into()));
        }
        self.clear();
        Ok(())
    }

    /// Drops what was not sent.
    pub fn clear(&mut self) {
        self.datagrams.clear();
        self.to.clear();
        self.done = 0;
    }

    /// Calls so far, for tests.
    pub fn calls(&self) -> u64 {
        self.calls
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

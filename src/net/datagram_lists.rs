//! Lists that are sent as datagrams. The receiving threads only queue requests; one thread per listener renders and sends, so
//! that a long list does not delay announcements. An answer gets as many packets as the [budget](crate::budget) grants, and its
//! last packet always has the end mark.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
use tracing::debug;

use super::batch::BATCH;
use super::guard::Guard;
use super::udp::{LOOK_UP, SharedRules};
use crate::budget::{Kind, on_the_wire};
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::model::Now;
use crate::protocols::{Introduction, ListRequest, packets};

/// Upper bound on queued requests; more are refused.
const WAITING_MAX: usize = 1_024;
/// Upper bound on the servers that are told of a client for one request.
const INTRODUCTIONS_MAX: usize = 32;
/// How long to wait for space in the socket's send buffer.
const SEND_PATIENCE: Duration = Duration::from_secs(1);

/// The queue of requests for the sending thread, shared by all threads that receive on one address.
#[derive(Clone)]
pub struct ListRequests {
    waiting: SyncSender<(SocketAddr, ListRequest)>,
    guard: Arc<Guard>,
    metrics: Arc<Metrics>,
}

impl ListRequests {
    /// Queues a request, or refuses it.
    pub fn ask(&self, now: Now, from: SocketAddr, request: ListRequest) {
        let is_taken = self.guard.budgets().may_ask(now, from) && self.waiting.try_send((from, request)).is_ok();
        if !is_taken {
            self.metrics.list_answers.refused.inc();
        }
    }
}

/// The sending thread.
pub struct Sender {
    pub game: &'static str,
    pub rules: SharedRules,
    pub guard: Arc<Guard>,
    pub hub: Arc<Hub>,
    pub metrics: Arc<Metrics>,
    pub stop: Arc<AtomicBool>,
}

impl Sender {
    /// Sends from the listener's own socket, so that answers come from the port that the client sent to.
    pub fn start(self, socket: &UdpSocket) -> std::io::Result<(ListRequests, JoinHandle<()>)> {
        let socket = socket.try_clone()?;
        socket.set_write_timeout(Some(SEND_PATIENCE))?;
        let (handle, requests) = self.queue();
        let name = format!("{} lists", self.game);
        let run = move || self.run(&requests, PacketSocket { socket, headers: MultiHeaders::preallocate(BATCH, None) });
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        Ok((handle, thread))
    }

    /// The queue that it answers, for threads that receive and for this one.
    pub fn queue(&self) -> (ListRequests, Receiver<(SocketAddr, ListRequest)>) {
        let (waiting, requests) = sync_channel(WAITING_MAX);
        (ListRequests { waiting, guard: self.guard.clone(), metrics: self.metrics.clone() }, requests)
    }

    fn run(&self, requests: &Receiver<(SocketAddr, ListRequest)>, mut socket: PacketSocket) {
        while !self.stop.load(Ordering::Relaxed) {
            match requests.recv_timeout(LOOK_UP) {
                Ok((from, request)) => self.answer(from, &request, &mut socket),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Sends as much of a list as the budget grants.
    pub fn answer(&self, to: SocketAddr, request: &ListRequest, socket: &mut impl SendPackets) {
        let (renderer, (unfinished, end), echo, introduction) = {
            let rules = self.rules.load();
            (rules.list(request), rules.last_packet(), rules.echo(request), rules.introduction(request, to))
        };
        let Some(renderer) = renderer else { return };
        let list = self.hub.list_blocking(&renderer);
        let packets = packets::split(list.body.whole());
        let (echo_at, echo) = echo.as_ref().map_or((0, &[][..]), |echo| (echo.at, &*echo.bytes));
        // Any packet may turn out to be the last.
        let sizes = packets.clone().map(|packet| packet.len() + echo.len() + end.len());
        let granted = self.guard.budgets().take_packets(self.hub.clock.now(), to.ip(), sizes);
        let is_cut = packets.clone().nth(granted).is_some();
        debug!(game = self.game, %to, granted, is_cut, "list");
        let answers = &self.metrics.list_answers;
        match (granted, is_cut) {
            (0, _) => {
                answers.refused.inc();
                return;
            }
            (_, true) => answers.cut.inc(),
            (_, false) => answers.whole.inc(),
        };
        let sent = packets.zip(1..=granted).map(|(packet, number)| {
            let (packet, end) = match is_cut && number == granted {
                true => (packet.strip_suffix(unfinished).unwrap_or(packet), end),
                false => (packet, &b""[..]),
            };
            let (head, rest) = packet.split_at_checked(echo_at).unwrap_or((packet, b""));
            [head, echo, rest, end]
        });
        self.metrics.listed(self.game, 1);
        answers.bytes.inc_by(socket.send(to, sent));
        if let Some(introduction) = introduction {
            answers.bytes.inc_by(self.introduce(to, &introduction, socket));
        }
    }

    /// Tells servers of a client. The client is charged as for the list, because it gets a datagram of each, and each server is
    /// charged, too. Returns the number of bytes on the wire.
    fn introduce(&self, client: SocketAddr, introduction: &Introduction, socket: &mut impl SendPackets) -> u64 {
        let list = self.hub.list_blocking(&introduction.servers);
        let servers = packets::addresses(list.body.whole()).take(INTRODUCTIONS_MAX);
        if servers.clone().next().is_none() {
            return 0;
        }
        let (budgets, now) = (self.guard.budgets(), self.hub.clock.now());
        let sizes = servers.clone().map(|_| introduction.datagram.len());
        let granted = budgets.take_packets(now, client.ip(), sizes);
        let told =
            servers.take(granted).filter(|server| budgets.take(Kind::Introductions, now, server.ip(), 1).is_ok());
        told.map(|server| socket.send(server.socket(), [[&introduction.datagram[..], b"", b"", b""]].into_iter())).sum()
    }
}

/// The parts of a packet, in order.
pub type Parts<'a> = [&'a [u8]; 4];

/// Where packets of lists go: a socket, or a simulated network.
pub trait SendPackets {
    /// Sends packets of several parts each. Returns the number of bytes on the wire.
    fn send<'a>(&mut self, to: SocketAddr, packets: impl Iterator<Item = Parts<'a>>) -> u64;
}

struct PacketSocket {
    socket: UdpSocket,
    headers: MultiHeaders<SockaddrStorage>,
}

impl SendPackets for PacketSocket {
    /// Sends many with one system call. After an error the rest is lost, like any datagram.
    fn send<'a>(&mut self, to: SocketAddr, mut packets: impl Iterator<Item = Parts<'a>>) -> u64 {
        let to = [Some(SockaddrStorage::from(to)); BATCH];
        let mut bytes = 0;
        loop {
            let batch: ArrayVec<_, BATCH> = packets.by_ref().take(BATCH).map(|parts| parts.map(IoSlice::new)).collect();
            if batch.is_empty() {
                return bytes;
            }
            let mut waiting = batch.as_slice();
            while !waiting.is_empty() {
                let to = to.get(..waiting.len()).unwrap_or_default();
                let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::empty());
                let sent = sendmmsg(fd, &mut self.headers, waiting.iter(), to, [], flags).map(Iterator::count);
                match sent {
                    Ok(count) if count > 0 => {
                        let (sent, rest) = waiting.split_at_checked(count).unwrap_or((waiting, &[]));
                        let sizes = sent.iter().map(|parts| parts.iter().map(|part| part.len()).sum());
                        bytes += sizes.map(on_the_wire).sum::<u64>();
                        waiting = rest;
                    }
                    Err(Errno::EINTR) => {}
                    Ok(_) | Err(_) => return bytes,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget;
    use crate::ledger::Ledger;
    use crate::net::udp::Worker;
    use crate::net::{guard, listen};
    use crate::protocols::event::{self, AcceptedEvents};
    use crate::protocols::{Context, DatagramRules, Effect, Reply};
    use crate::registry::Settings;
    use crate::registry::view::{Body, Renderer, View};
    use arc_swap::ArcSwap;

    /// A protocol in which `list N` asks for a list of N packets of 1,400 bytes. Each ends with `+`, the last with `END`.
    /// `hello` gets 34 bytes back.
    struct Rules;

    const PACKET_BYTES: usize = 1_400;

    impl DatagramRules for Rules {
        fn datagram<'a>(&self, _: &Context<'_>, _: SocketAddr, bytes: &'a [u8], reply: &mut Reply) -> Effect<'a> {
            if bytes.starts_with(b"hello") {
                reply.extend([if bytes.len() < 30 { b's' } else { b'l' }; 34]);
                return Effect::Answered(event::TOO_SHORT.event());
            }
            Effect::List(bytes.strip_prefix(b"list ").unwrap_or_default().try_into().unwrap_or_default())
        }

        fn list(&self, request: &ListRequest) -> Option<Arc<dyn Renderer>> {
            let packets = std::str::from_utf8(request).ok()?.parse().ok()?;
            Some(Arc::new(List { packets }))
        }

        fn last_packet(&self) -> (&'static [u8], &'static [u8]) {
            (b"+", b"END")
        }

        fn accepted_events(&self) -> AcceptedEvents {
            unreachable!("there are no announcements in these tests")
        }
    }

    struct List {
        packets: usize,
    }

    impl Renderer for List {
        fn render(&self, _: &View) -> Body {
            let mut list = Vec::new();
            for number in 1..=self.packets {
                let mut packet = number.to_be_bytes().to_vec();
                packet.resize(PACKET_BYTES - 3, b'.');
                packet.extend_from_slice(if number == self.packets { b"END" } else { b"+" });
                packets::push(&mut list, &packet);
            }
            list.into()
        }
    }

    struct Master {
        address: SocketAddr,
        metrics: Arc<Metrics>,
        stop: Arc<AtomicBool>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Master {
        fn start(address: &str) -> Master {
            let settings = Settings { servers_max: 9, servers_per_ip_max: 9, ..Settings::UNBOUNDED };
            let (hub, stop) = (Arc::new(Hub::new(settings)), Arc::new(AtomicBool::new(false)));
            let budgets = budget::Settings {
                servers_per_ip_max: 32,
                list_bytes_per_second: 4 << 20,
                ..budget::Settings::default()
            };
            let guard = guard::Settings { budgets, ..guard::Settings::default() };
            let (guard, metrics) = (Arc::new(Guard::new(guard)), Arc::new(Metrics::new()));
            let rules: SharedRules = Arc::new(ArcSwap::from_pointee(Box::new(Rules) as Box<dyn DatagramRules>));
            let sockets = listen::udp(address.parse().unwrap(), 2, "a.key").unwrap();
            let address = sockets[0].local_addr().unwrap();
            let sender = Sender {
                game: "test",
                rules: rules.clone(),
                guard: guard.clone(),
                hub: hub.clone(),
                metrics: metrics.clone(),
                stop: stop.clone(),
            };
            let (lists, thread) = sender.start(&sockets[0]).unwrap();
            let mut threads = vec![thread];
            for socket in sockets {
                let worker = Worker {
                    game: "test",
                    bytes_max: 100,
                    rules: rules.clone(),
                    guard: guard.clone(),
                    hub: hub.clone(),
                    ledger: Arc::new(Ledger::new()),
                    lists: lists.clone(),
                    stop: stop.clone(),
                };
                threads.push(worker.start(socket).unwrap());
            }
            Master { address, metrics, stop, threads }
        }

        fn client(&self) -> UdpSocket {
            let socket = UdpSocket::bind(SocketAddr::new(self.address.ip(), 0)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.connect(self.address).unwrap(); // accept datagrams only from the master's own port
            socket
        }

        fn stop(self) {
            self.stop.store(true, Ordering::Relaxed);
            self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    /// The packets up to the end mark.
    fn heard(client: &UdpSocket) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while packets.last().is_none_or(|packet: &Vec<u8>| !packet.ends_with(b"END")) {
            let mut buffer = [0; 2_000];
            let size = client.recv(&mut buffer).unwrap();
            packets.push(buffer[..size].to_vec());
        }
        packets
    }

    #[test]
    fn a_list_arrives_complete_and_from_the_port_it_was_requested_from() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let master = Master::start(address);
            for packets in [1, 2, 20] {
                let client = master.client();
                client.send(format!("list {packets}").as_bytes()).unwrap();
                let heard = heard(&client);
                assert_eq!(heard.len(), packets);
                for (number, packet) in (1..).zip(&heard) {
                    assert!(packet.starts_with(&usize::to_be_bytes(number)));
                    assert!(packet.ends_with(if number == packets { b"END" } else { b"+" }));
                }
            }
            assert_eq!(master.metrics.list_answers.whole.get(), 3);
            master.stop();
        }
    }

    #[test]
    fn a_list_beyond_the_budget_is_cut_and_still_has_the_end_mark() {
        let master = Master::start("127.0.0.1:0");
        let client = master.client();
        client.send(b"list 1000").unwrap();
        let heard = heard(&client);
        assert!((20..50).contains(&heard.len()), "{} packets", heard.len());
        let (last, others) = heard.split_last().unwrap();
        assert!(others.iter().all(|packet| packet.ends_with(b".+")));
        assert!(last.ends_with(b".END") && last.len() == PACKET_BYTES);
        assert!(last.starts_with(&heard.len().to_be_bytes()));
        assert_eq!(master.metrics.list_answers.cut.get(), 1);
        master.stop();
    }

    #[test]
    fn a_flood_is_hardly_amplified_and_others_get_their_list() {
        let master = Master::start("127.0.0.1:0");
        let victim = master.client();
        let answers = &master.metrics.list_answers;
        for asked in 1..=1_000 {
            victim.send(b"list 1000").unwrap();
            // No faster than they are handled, so that none is lost on the way.
            while answers.refused.get() + answers.cut.get() + 100 < asked {
                std::thread::yield_now();
            }
        }
        assert!(answers.refused.get() > 800 && answers.cut.get() > 0);
        // 64 KiB and what a minute adds, of more than a gigabyte that was asked for.
        assert!(answers.bytes.get() < 1_000_000, "{} bytes", answers.bytes.get());
        let client = UdpSocket::bind("127.0.0.2:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(master.address).unwrap();
        client.send(b"list 2").unwrap();
        assert_eq!(heard(&client).len(), 2);
        master.stop();
    }

    #[test]
    fn replies_that_are_longer_than_the_datagram_are_charged_too() {
        let master = Master::start("127.0.0.1:0");
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(master.address).unwrap();
        let (mut short, mut long) = (0, 0);
        for round in 0..30 {
            for _ in 0..50 {
                client.send(&[b"hello".as_slice(), &[0; 19]].concat()).unwrap();
            }
            // A reply that is no longer than this is always sent.
            client.send(&[b"hello".as_slice(), &[0; 40]].concat()).unwrap();
            while long <= round {
                let mut reply = [0; 100];
                assert_eq!(client.recv(&mut reply).unwrap(), 34);
                if reply[0] == b's' { short += 1 } else { long += 1 }
            }
        }
        assert!((128..1_000).contains(&short), "{short} of 1,500");
        master.stop();
    }
}

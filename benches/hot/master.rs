//! Whole batches of datagrams through the master: bans, budgets, rules, registry and ledger. Everything but the sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use rallypoint::hub::{Hub, VirtualTime};
use rallypoint::ledger::{Channel, Ledger};
use rallypoint::metrics::Metrics;
use rallypoint::net::batch::{BATCH, Datagram};
use rallypoint::net::datagram_lists::Sender;
use rallypoint::net::guard::Guard;
use rallypoint::net::udp::{Datagrams, Worker};
use rallypoint::protocols::Reply;
use rallypoint::protocols::section::Cookies;

use super::world::{self, CONFIG, DATAGRAM_SERVICES, DatagramService, Honest, START};
use super::{HotPath, Scale, Work};

/// Between two batches. A server is proven again after `registered / BATCH` of them, which is less than its life.
const STEP_MS: u64 = 100;

pub fn add(scale: Scale, all: &mut Vec<HotPath>) {
    // More of them cost no more: `registry` shows that.
    let registered = scale.registered.iter().copied().min().unwrap_or(BATCH);
    for service in DATAGRAM_SERVICES.iter() {
        if Honest::new(service.card, 0, address(0)).announcement().is_some() {
            let name = format!("announcement and handshake {}, {registered} listed", service.card.name);
            all.push(HotPath::new(name, BATCH as u32, move || Exchange::new(service, registered)));
        }
    }
}

/// A batch of announcements, and the batch of their handshakes.
struct Exchange {
    worker: Worker,
    time: Arc<VirtualTime>,
    channel: Channel,
    servers: Vec<Honest>,
    /// The first server of the next batch.
    next: usize,
    announcements: Batch,
    handshakes: Batch,
}

impl Exchange {
    fn new(service: &'static DatagramService, registered: usize) -> Exchange {
        let time = Arc::new(VirtualTime::default());
        time.mono_us.store(START.mono_ms * 1_000, Ordering::Relaxed);
        time.unix_ms.store(START.unix_ms as i64, Ordering::Relaxed);
        let hub = Arc::new(Hub::simulated(CONFIG.registry(usize::MAX), time.clone(), 1));
        hub.set_exempt(CONFIG.guard.exempt());
        let cookies = Cookies { keys: world::keys(), time: Default::default() };
        let rules = Arc::new(ArcSwap::from_pointee(service.section.datagrams(cookies).unwrap()));
        let (guard, metrics) = (Arc::new(Guard::new(CONFIG.guard.settings(1_000))), Arc::new(Metrics::new()));
        let sender = Sender {
            game: service.card.name,
            rules: rules.clone(),
            guard: guard.clone(),
            hub: hub.clone(),
            metrics,
            stop: Arc::default(),
        };
        let worker = Worker {
            game: service.card.name,
            bytes_max: service.bytes_max,
            rules,
            guard,
            hub,
            ledger: Arc::new(Ledger::new()),
            lists: sender.queue().0,
            stop: Arc::default(),
        };
        let servers = (0..registered).map(|number| Honest::new(service.card, number, address(number as u32))).collect();
        let channel = Channel::datagrams(service.card.name);
        let (announcements, handshakes) = Default::default();
        let mut exchange = Exchange { worker, time, channel, servers, next: 0, announcements, handshakes };
        for _ in 0..registered.div_ceil(BATCH) {
            exchange.prepare();
            exchange.run();
        }
        exchange.worker.hub.publish(exchange.worker.hub.clock.now());
        assert_eq!(exchange.worker.hub.view().servers.len(), registered, "not all are listed");
        exchange
    }

    fn serve(&mut self) {
        self.worker.serve(&mut self.announcements, self.channel);
    }
}

impl Work for Exchange {
    /// Time passes, and the next servers get their challenges.
    fn prepare(&mut self) {
        self.time.mono_us.fetch_add(STEP_MS * 1_000, Ordering::Relaxed);
        self.time.unix_ms.fetch_add(STEP_MS as i64, Ordering::Relaxed);
        let batch: Vec<&Honest> = self.servers.iter().cycle().skip(self.next).take(BATCH).collect();
        self.next = (self.next + BATCH) % self.servers.len();
        self.announcements.datagrams =
            batch.iter().map(|server| (server.from, server.announcement().unwrap())).collect();
        let batch: Vec<Honest> = batch.into_iter().cloned().collect();
        self.serve();
        assert_eq!(self.announcements.replies.len(), BATCH, "not all announcements are answered");
        let proofs = batch.iter().zip(&self.announcements.replies);
        self.handshakes.datagrams =
            proofs.map(|(server, reply)| (server.from, server.answer(reply).unwrap())).collect();
    }

    fn run(&mut self) {
        self.serve();
        self.worker.serve(&mut self.handshakes, self.channel);
    }
}

/// Scattered over networks whose budgets are not limited.
fn address(number: u32) -> SocketAddr {
    let [_, high, middle, low] = number.to_be_bytes();
    ([127, 1 + high, middle, low], 20_737).into()
}

/// A batch in memory.
#[derive(Default)]
struct Batch {
    datagrams: Vec<(SocketAddr, Vec<u8>)>,
    replies: Vec<Reply>,
}

impl Datagrams for Batch {
    fn each<'a>(&'a mut self, mut look: impl FnMut(Datagram<'a>, &mut Reply)) {
        self.replies.clear();
        let mut reply = Reply::new();
        for (from, bytes) in &self.datagrams {
            look(Datagram { from: *from, bytes }, &mut reply);
            if !reply.is_empty() {
                self.replies.push(std::mem::take(&mut reply));
            }
        }
    }

    fn withhold(&mut self, number: usize) {
        self.replies.swap_remove(number);
    }

    fn send_replies(&mut self) {}
}

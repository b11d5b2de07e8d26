//! The datagram side of a protocol: one thread a socket, one socket a core. Receive a batch, let the card's rules
//! look at each datagram, apply all changes under one lock, send all replies with one call. Nothing is allocated.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use tracing::{debug, warn};

use super::batch::{BATCH, BatchSocket};
use super::guard::Guard;
use crate::hub::Hub;
use crate::model::Change;
use crate::protocols::{DatagramRules, Effect, REPLY_BYTES_MAX};
use crate::registry::Outcome;

/// How often a quiet thread looks up to see whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(200);
/// A socket that fails does so at once and again; this keeps it from taking a core.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// The rules of one protocol, replaced as a whole when keys rotate or the configuration changes.
pub type SharedRules = Arc<ArcSwap<Box<dyn DatagramRules>>>;

pub struct Worker {
    pub game: &'static str,
    pub rules: SharedRules,
    pub guard: Arc<Guard>,
    pub hub: Arc<Hub>,
    pub stop: Arc<AtomicBool>,
}

impl Worker {
    /// Serves the socket on a thread of its own until told to stop.
    pub fn start(self, socket: UdpSocket) -> std::io::Result<JoinHandle<()>> {
        socket.set_read_timeout(Some(LOOK_UP))?;
        let name = format!("{} udp", self.game);
        std::thread::Builder::new().name(name).spawn(move || self.run(BatchSocket::new(socket)))
    }

    fn run(&self, mut socket: BatchSocket<REPLY_BYTES_MAX>) {
        while !self.stop.load(Ordering::Relaxed) {
            match socket.receive() {
                Ok(_) => self.serve(&mut socket),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    warn!(game = self.game, %error, "receiving failed; going on");
                    std::thread::sleep(AFTER_ERROR);
                }
            }
        }
    }

    fn serve(&self, socket: &mut BatchSocket<REPLY_BYTES_MAX>) {
        let now = self.hub.clock.now();
        let rules = self.rules.load();
        let bans = self.guard.bans();
        let mut changes: ArrayVec<Change<'_>, BATCH> = ArrayVec::new();
        socket.each(|datagram, reply| {
            if bans.contains(datagram.from.ip()) {
                debug!(game = self.game, from = %datagram.from, "dropped: banned");
                return;
            }
            match rules.datagram(now, datagram.from, datagram.bytes, reply) {
                Effect::Change(change) => changes.push(change),
                Effect::Answered(answer) => debug!(game = self.game, from = %datagram.from, ?answer, "answered"),
                Effect::Dropped(reason) => debug!(game = self.game, from = %datagram.from, ?reason, "dropped"),
            }
        });
        if !changes.is_empty() {
            self.hub.apply(&changes, now, |change, outcome| {
                if let (Change::Announce(announce), Outcome::Refused(reason)) = (change, outcome) {
                    debug!(game = self.game, address = %announce.address, ?reason, "refused");
                }
            });
        }
        drop(changes);
        socket.send_replies();
    }
}

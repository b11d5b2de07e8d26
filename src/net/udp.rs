//! The datagram side of a protocol: one thread a socket, one socket a core. Receive a batch, let the card's rules
//! look at each datagram, apply all changes under one lock, send all replies with one call. Nothing is allocated.
//!
//! A complaint goes only to an address that has no living cookie-proven server. Whether it has is looked up under the same
//! lock, and only where there is something to complain about.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
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
use crate::ledger::{Channel, Ledger, Note, What};
use crate::model::Change;
use crate::protocols::{Answer, Context, DatagramRules, Effect, REPLY_BYTES_MAX};
use crate::registry::Outcome;

/// How often a quiet thread looks up to see whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(200);
/// A socket that fails does so at once and again; this keeps it from taking a core.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// The rules of one protocol, replaced as a whole when keys rotate or the configuration changes.
pub type SharedRules = Arc<ArcSwap<Box<dyn DatagramRules>>>;

pub struct Worker {
    pub game: &'static str,
    /// Longer datagrams are cut here.
    pub bytes_max: usize,
    pub rules: SharedRules,
    pub guard: Arc<Guard>,
    pub hub: Arc<Hub>,
    pub ledger: Arc<Ledger>,
    pub stop: Arc<AtomicBool>,
}

impl Worker {
    /// Serves the socket on a thread of its own until told to stop.
    pub fn start(self, socket: UdpSocket) -> std::io::Result<JoinHandle<()>> {
        socket.set_read_timeout(Some(LOOK_UP))?;
        let name = format!("{} udp", self.game);
        std::thread::Builder::new().name(name).spawn(move || self.run(BatchSocket::new(socket, self.bytes_max)))
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
        let view = self.hub.view();
        let at = Context { now, view: &view };
        let rules = self.rules.load();
        let bans = self.guard.bans();
        let note = |from: SocketAddr, port: u16, what: What| {
            debug!(game = self.game, %from, port, ?what, "seen");
            self.ledger.note(from.ip(), Note::new(now.unix_ms, Channel::Iceball, port, from.port(), what));
        };
        let mut changes: ArrayVec<Change<'_>, BATCH> = ArrayVec::new();
        let mut senders: ArrayVec<SocketAddr, BATCH> = ArrayVec::new();
        let mut complaints: ArrayVec<Complaint, BATCH> = ArrayVec::new();
        let mut replies = 0;
        socket.each(|datagram, reply| {
            let from = SocketAddr::new(datagram.from.ip().to_canonical(), datagram.from.port());
            if bans.contains(from.ip()) {
                return note(from, 0, What::Banned);
            }
            match rules.datagram(&at, from, datagram.bytes, reply) {
                Effect::Change(change) => {
                    changes.push(change);
                    senders.push(from);
                }
                Effect::Answered(answer) => {
                    if answer.is_complaint() {
                        complaints.push(Complaint { reply: replies, from, answer });
                    } else {
                        let (port, what) = answered(answer, false);
                        note(from, port, what);
                    }
                    replies += 1;
                }
                Effect::List(_) => {}
                Effect::Dropped(reason) => note(from, 0, What::Dropped(reason)),
            }
        });
        let mut withheld: ArrayVec<usize, BATCH> = ArrayVec::new();
        if !changes.is_empty() || !complaints.is_empty() {
            let mut senders = senders.into_iter();
            let outcome = |change: &Change<'_>, outcome| {
                if let (Change::Announce(announce), Some(from)) = (change, senders.next()) {
                    let what = match outcome {
                        Outcome::Refused(refusal) => What::Refused(refusal),
                        Outcome::Added | Outcome::Changed | Outcome::Refreshed => What::CookieReturned,
                        Outcome::Stale => What::CookieRepeated,
                    };
                    note(from, announce.address.port(), what);
                }
            };
            self.hub.apply_and_look(&changes, now, outcome, |registry| {
                for Complaint { reply, from, answer } in complaints {
                    let is_proven = registry.has_cookie_proof(from.ip());
                    if is_proven {
                        withheld.push(reply);
                    }
                    let (port, what) = answered(answer, is_proven);
                    note(from, port, what);
                }
            });
        }
        drop(changes);
        withheld.into_iter().rev().for_each(|reply| socket.withhold(reply));
        socket.send_replies();
    }
}

/// A reply that may have to be withheld.
struct Complaint {
    /// Its number among the replies.
    reply: usize,
    from: SocketAddr,
    answer: Answer,
}

fn answered(answer: Answer, withheld: bool) -> (u16, What) {
    match answer {
        Answer::Cookie { port } => (port, What::CookieSent),
        Answer::BadVersion { port, heartbeat_version, version } => {
            (port, What::BadVersion { heartbeat_version, version, withheld })
        }
        Answer::BadFormat { length } => (0, What::BadFormat { length, withheld }),
    }
}

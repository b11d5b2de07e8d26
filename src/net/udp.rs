//! Serves a protocol's datagrams: one thread per socket, one socket per core. It receives a batch, passes each datagram to the
//! protocol's rules, applies all changes under one lock, and sends all replies with one call. Nothing is allocated.
//!
//! A complaint is sent only if no living server at the address is proven by a cookie. That is looked up under the same lock,
//! and only if there is a complaint.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use tracing::{debug, warn};

use super::batch::{BATCH, BatchSocket, Datagram};
use super::datagram_lists::ListRequests;
use super::guard::Guard;
use crate::budget::{CHANGE_COST, Kind, PROOF_COST};
use crate::hub::Hub;
use crate::ledger::{Channel, Ledger, Note, What};
use crate::model::Change;
use crate::protocols::event::{self, Event};
use crate::protocols::{Context, DatagramRules, Effect, REPLY_BYTES_MAX, Reply};
use crate::registry::Outcome;

/// How often an idle thread checks whether it should stop.
pub(super) const LOOK_UP: Duration = Duration::from_millis(200);
/// Pause after an error: a socket that fails keeps failing at once, and would use a whole core.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// The rules of a protocol, replaced when keys rotate or the configuration changes.
pub type SharedRules = Arc<ArcSwap<Box<dyn DatagramRules>>>;

/// A batch of datagrams, and the replies to it: a socket, or a simulated network.
pub trait Datagrams {
    /// Calls `look` with every datagram and an empty reply. Non-empty replies are sent by [`Datagrams::send_replies`].
    fn each<'a>(&'a mut self, look: impl FnMut(Datagram<'a>, &mut Reply));

    /// Drops a reply by its index. To drop several, start with the highest index.
    fn withhold(&mut self, number: usize);

    fn send_replies(&mut self);
}

impl Datagrams for BatchSocket<REPLY_BYTES_MAX> {
    fn each<'a>(&'a mut self, look: impl FnMut(Datagram<'a>, &mut Reply)) {
        BatchSocket::each(self, look);
    }

    fn withhold(&mut self, number: usize) {
        BatchSocket::withhold(self, number);
    }

    fn send_replies(&mut self) {
        BatchSocket::send_replies(self);
    }
}

pub struct Worker {
    pub game: &'static str,
    /// Longer datagrams are truncated to this size.
    pub bytes_max: usize,
    pub rules: SharedRules,
    pub guard: Arc<Guard>,
    pub hub: Arc<Hub>,
    pub ledger: Arc<Ledger>,
    /// The queue of the thread that sends lists.
    pub lists: ListRequests,
    pub stop: Arc<AtomicBool>,
}

impl Worker {
    /// Serves the socket on its own thread until `stop` is set.
    pub fn start(self, socket: UdpSocket) -> std::io::Result<JoinHandle<()>> {
        socket.set_read_timeout(Some(LOOK_UP))?;
        let name = format!("{} udp", self.game);
        std::thread::Builder::new().name(name).spawn(move || self.run(BatchSocket::new(socket, self.bytes_max)))
    }

    fn run(&self, mut socket: BatchSocket<REPLY_BYTES_MAX>) {
        let channel = Channel::datagrams(self.game);
        while !self.stop.load(Ordering::Relaxed) {
            match socket.receive() {
                Ok(_) => self.serve(&mut socket, channel),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    warn!(game = self.game, %error, "cannot receive; trying again");
                    std::thread::sleep(AFTER_ERROR);
                }
            }
        }
    }

    /// Handles one batch.
    pub fn serve(&self, socket: &mut impl Datagrams, channel: Channel) {
        let now = self.hub.clock.now();
        let view = self.hub.view_guard();
        let at = Context { now, view: &view };
        let rules = self.rules.load();
        let (bans, budgets) = (self.guard.bans(), self.guard.budgets());
        let note = |from: SocketAddr, port: u16, what: What| {
            debug!(protocol = self.game, %from, port, what = what.label(), values = ?what.values(), "datagram");
            self.ledger.note(from.ip(), Note::new(now.unix_ms, channel, port, from.port(), what));
        };
        let note_event = |from: SocketAddr, event: Event| note(from, event.port, What::Datagram(event));
        let mut changes: ArrayVec<Change<'_>, BATCH> = ArrayVec::new();
        let mut senders: ArrayVec<SocketAddr, BATCH> = ArrayVec::new();
        let mut complaints: ArrayVec<Complaint, BATCH> = ArrayVec::new();
        let mut replies = 0;
        socket.each(|datagram, reply| {
            let from = SocketAddr::new(datagram.from.ip().to_canonical(), datagram.from.port());
            if bans.contains(from.ip()) {
                return note(from, 0, What::Banned);
            }
            let (effect, announced) = match rules.datagram(&at, from, datagram.bytes, reply) {
                Effect::Announced(event, change) => (Effect::Answered(event), Some(change)),
                effect => (effect, None),
            };
            match effect {
                Effect::Change(change) => {
                    if budgets.take(Kind::Handshakes, now, from.ip(), PROOF_COST).is_err() {
                        return note_event(from, event::TOO_MANY.event().on_port(port_of(&change)));
                    }
                    changes.push(change);
                    senders.push(from);
                }
                Effect::Answered(event) => {
                    if !budgets.may_answer(now, from, datagram.bytes.len(), reply.len()) {
                        reply.clear();
                        return note_event(from, event::TOO_MANY.event().on_port(event.port));
                    }
                    if event.is_complaint() {
                        complaints.push(Complaint { reply: replies, from, event });
                    } else {
                        note_event(from, event);
                    }
                    replies += 1;
                    if let Some(change) = announced {
                        changes.push(change);
                        senders.push(from);
                    }
                }
                Effect::List(request) => self.lists.ask(now, datagram.from, request),
                Effect::Dropped(event) => note_event(from, event),
                Effect::Announced(..) => {} // taken apart above
            }
        });
        let mut withheld: ArrayVec<usize, BATCH> = ArrayVec::new();
        if !changes.is_empty() || !complaints.is_empty() {
            let mut senders = senders.into_iter();
            let proven = rules.accepted_events();
            let outcome = |change: &Change<'_>, outcome| {
                if let (Change::Announce(announce), Some(from)) = (change, senders.next()) {
                    budgets.prove(now, from);
                    let port = announce.address.port();
                    match outcome {
                        Outcome::Refused(refusal) => note(from, port, What::Refused(refusal)),
                        Outcome::Added | Outcome::Changed => {
                            budgets.charge(Kind::Handshakes, now, from.ip(), CHANGE_COST - PROOF_COST);
                            note_event(from, proven.listed.event().on_port(port));
                        }
                        Outcome::Refreshed => note_event(from, proven.listed.event().on_port(port)),
                        Outcome::Stale => note_event(from, proven.repeated.event().on_port(port)),
                    }
                }
            };
            self.hub.apply_and_look(&changes, now, outcome, |registry| {
                for Complaint { reply, from, event } in complaints {
                    if registry.has_cookie_proof(from.ip()) {
                        withheld.push(reply);
                        note_event(from, event.withheld());
                    } else {
                        note_event(from, event);
                    }
                }
            });
        }
        drop(changes);
        withheld.into_iter().rev().for_each(|reply| socket.withhold(reply));
        socket.send_replies();
    }
}

/// The announced port.
fn port_of(change: &Change<'_>) -> u16 {
    if let Change::Announce(announce) = change { announce.address.port() } else { 0 }
}

/// A reply that may have to be withheld.
struct Complaint {
    /// Its index among the replies.
    reply: usize,
    from: SocketAddr,
    event: Event,
}

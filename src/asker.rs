//! Queries many game servers at once: queries in flight, retries, rate limits, and which answers are accepted. No socket and
//! no clock: datagrams and times come in, datagrams and results come out. `drive.rs` is the loop around it, shared by the
//! master's prober and the query command.
//!
//! An answer is accepted if it comes from the address that was queried, arrives on the lane (local socket) that the question
//! was sent from, and echoes the nonce of one of the tries, if the game returns nonces. `pending.rs` has the rules for answers in several datagrams.

pub mod drive;
mod looks;
mod pending;
mod queues;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use slab::Slab;

use self::looks::Looks;
use self::pending::{Next, Pending, Reading, SETTLE_US};
use self::queues::{Queues, TokenBucket};
use crate::model::{Address, Facts};
use crate::prefix::Networks;
use crate::protocols::{Ask, Fault, Query, Question};

/// Upper bound on the number of tries per question.
pub const TRIES_MAX: u8 = 4;
/// How many farewells may wait to be sent.
const FAREWELLS_MAX: usize = 4096;

/// How much is kept of servers that are not asked now, and how often more than that is looked for: looking takes time for each.
const IDLE_KEPT: usize = 1024;
const FORGET_US: u64 = 100_000;

/// Upper bound on the interval that a game may require between two questions.
const SPACING_US_MAX: u64 = 2_000_000;

/// A local socket to send questions from. The caller numbers them.
pub type Lane = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a question is sent before its server counts as silent; at most [`TRIES_MAX`].
    pub tries: u8,
    /// How long to wait for the answer to one try.
    pub try_us: u64,
    /// No try is sent later than this after the first one to the same server.
    pub all_us: u64,
    /// Questions per second, in all and to one IP address (IPv6 /64). Wider prefixes have larger limits.
    pub per_second: u32,
    pub per_ip_per_second: u32,
}

/// The result for one server.
#[derive(Debug)]
pub struct Finished<T> {
    pub address: Address,
    pub tag: T,
    pub result: Result<Response, Failure>,
}

/// The response of a server that proved its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub rtt_us: u32,
    /// None if no facts arrived that could be trusted.
    pub facts: Option<Box<Facts<'static>>>,
    /// Why they could not be trusted, or parsed.
    pub fault: Option<Fault>,
    /// Conflicting or unsolicited answers arrived: someone is forging them.
    pub disputed: bool,
    /// It did not answer the first try in time, so that several ports were waiting.
    pub retried: bool,
    /// Identifies the answer with the facts, if it carries no nonce; otherwise 0. Without facts, it is the one that was known
    /// when the server was asked: it says nothing new.
    pub digest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer at all.
    Silent,
    /// Answers arrived, but none was acceptable; this was wrong with the last one.
    Bad(Fault),
}

impl Failure {
    /// The failure as text; `of` names the sender, like " from 192.0.2.1:1", or is empty.
    pub fn words(&self, of: &str) -> String {
        match self {
            Failure::Silent => format!("no answer{of}"),
            Failure::Bad(fault) => format!("bad answer{of}: {fault}"),
        }
    }
}

pub struct Asker<T> {
    settings: Settings,
    reading: Reading,
    asked: u64,
    /// The queries in flight. A place is used again, but a serial never is.
    pending: Slab<Pending<T>>,
    /// Their places. The hash of this and of the other tables has a random key, and nobody else sees an order that depends on it, so
    /// no list can be made to collide.
    places: HashMap<Address, Place>,
    /// How many of those have not missed a timeout yet.
    fresh: usize,
    /// Questions to send.
    queues: Queues,
    /// Servers that require an interval between questions: when they were last asked, and the questions that are held back.
    asked_us: HashMap<Address, u64>,
    spaced: BTreeSet<(u64, Turn)>,
    /// When [`Asker::forget`] last looked.
    forgot_us: u64,
    /// Tries in the order in which they time out (all timeouts are equally long), with the number of tries sent by then.
    timeouts: VecDeque<(u64, Turn, u8)>,
    /// When to call [`Pending::look`] for servers that are proven and whose facts are awaited or not settled yet.
    looks: Looks,
    /// The second ones of two questions that are asked at once ([`Asker::ask_both`]).
    seconds: VecDeque<(Address, Question)>,
    /// What servers that have answered are to be sent once more.
    farewells: VecDeque<(Lane, Address, Question)>,
    pace: TokenBucket,
}

/// Where a query in flight is, or its queue, or a network around that.
type Place = usize;

/// A question of a query in flight; over if another serial is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    serial: u64,
    place: Place,
}

impl<T> Asker<T> {
    /// The seed must be secret: with it, nonces can be predicted.
    pub fn new(settings: Settings, seed: [u8; 16]) -> Asker<T> {
        Asker {
            settings,
            reading: Reading { with_details: true, settle_us: SETTLE_US, key: seed },
            asked: 0,
            pending: Slab::new(),
            places: HashMap::new(),
            fresh: 0,
            queues: Queues::default(),
            asked_us: HashMap::new(),
            spaced: BTreeSet::new(),
            forgot_us: 0,
            timeouts: VecDeque::new(),
            looks: Looks::default(),
            seconds: VecDeque::new(),
            farewells: VecDeque::new(),
            pace: TokenBucket::default(),
        }
    }

    /// From now on, facts have no details where the game can leave them out.
    pub fn leave_out_details(&mut self) {
        self.reading.with_details = false;
    }

    /// From now on, facts that come after their nonce settle for this long only, instead of a round trip. For those who show them
    /// to nobody else.
    pub fn settle_for(&mut self, us: u64) {
        self.reading.settle_us = us..=us;
    }

    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Sets the networks in which the limits of wider prefixes do not apply.
    pub fn set_exempt(&mut self, exempt: Arc<Networks>) {
        self.queues.set_exempt(exempt);
    }

    /// Servers that have been asked, or wait for their turn.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Whether less than a second's worth of queries is in flight to every prefix around the address.
    pub fn has_room_for(&self, ip: IpAddr) -> bool {
        self.queues.has_room_for(ip, self.settings.per_ip_per_second)
    }

    /// Queries in flight that have not timed out once and still await facts: so many answers may be on their way.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// The tag of a query in flight.
    pub fn tag_mut(&mut self, address: Address) -> Option<&mut T> {
        self.at_mut(address).map(|pending| &mut pending.tag)
    }

    /// Whether this is a question to the server that was sent and has not been answered yet.
    pub fn has_sent(&self, address: Address, bytes: &[u8]) -> bool {
        let pending = self.places.get(&address).and_then(|place| self.pending.get(*place));
        pending.is_some_and(|pending| pending.has_sent(bytes))
    }

    /// The query to this address.
    fn at_mut(&mut self, address: Address) -> Option<&mut Pending<T>> {
        self.pending.get_mut(*self.places.get(&address)?)
    }

    /// The query that this question belongs to, if it is still its question.
    fn of_mut(&mut self, turn: Turn) -> Option<&mut Pending<T>> {
        self.pending.get_mut(turn.place).filter(|pending| pending.serial == turn.serial)
    }

    /// Starts a query: for a proof first, or for facts at once if the server was proven before. Returns the tag if a query to
    /// this address is in flight already.
    pub fn ask(&mut self, address: Address, query: &'static dyn Query, ask: Ask, tag: T) -> Result<(), T> {
        self.ask_known(address, query, ask, 0, tag)
    }

    /// Starts a query for the proof and the facts at once, with the same nonce, where one answer does not say all that the other
    /// says ([`Query::facts_say_all`]). A server that answers one of them only is asked for the other after its interval.
    pub fn ask_both(&mut self, address: Address, query: &'static dyn Query, tag: T) -> Result<(), T> {
        self.ask(address, query, Ask::Proof, tag)?;
        if let Some(pending) = self.at_mut(address) {
            pending.both = true;
        }
        Ok(())
    }

    /// Starts a query for the facts of a game where [`Asker::ask_both`] could ask for more: one question, and both from the second try
    /// on, because some servers answer one of them only.
    pub fn ask_facts_first(&mut self, address: Address, query: &'static dyn Query, tag: T) -> Result<(), T> {
        self.ask(address, query, Ask::Facts, tag)?;
        if let Some(pending) = self.at_mut(address) {
            pending.both_later = true;
        }
        Ok(())
    }

    /// The same for a server whose last answer had this digest: an equal one is not parsed again.
    pub fn ask_known(
        &mut self,
        address: Address,
        query: &'static dyn Query,
        ask: Ask,
        digest: u64,
        tag: T,
    ) -> Result<(), T> {
        let Entry::Vacant(vacant) = self.places.entry(address) else { return Err(tag) };
        self.asked += 1;
        let serial = self.asked;
        self.fresh += 1;
        let queue = self.queues.join(address.ip());
        let place = self.pending.insert(Pending::new(address, serial, queue, query, ask, digest, tag));
        vacant.insert(place);
        self.queues.push(queue, Turn { serial, place }, false);
        Ok(())
    }

    /// Sends the questions of the query to this address from another of our addresses: so many lanes after the first.
    pub fn ask_from(&mut self, address: Address, source: Lane) {
        if let Some(pending) = self.at_mut(address) {
            pending.source = source;
        }
    }

    /// Adds another question at the end of its prefix's queue, or at its head.
    fn enqueue(&mut self, turn: Turn, first: bool) {
        if let Some(queue) = self.of_mut(turn).map(|pending| pending.queue) {
            self.queues.push(queue, turn, first);
        }
    }

    /// Ends a query.
    fn finish(&mut self, place: Place, facts: Option<Box<Facts<'static>>>) -> Option<Finished<T>> {
        let pending = self.pending.try_remove(place)?;
        let address = pending.address;
        self.places.remove(&address);
        self.fresh -= usize::from(pending.fresh);
        self.queues.leave(pending.queue);
        let (tag, result) = pending.end(facts);
        Some(Finished { address, tag, result })
    }

    /// Drops the query to a server that is known to be unreachable.
    pub fn give_up(&mut self, address: Address) -> Option<T> {
        self.finish(*self.places.get(&address)?, None).map(|finished| finished.tag)
    }

    /// The next datagram to send from this lane; None if there is none, or the rate limits do not allow it yet.
    pub fn next_question(&mut self, now_us: u64, lane: Lane) -> Option<(Address, Question)> {
        self.next_from(now_us, lane).map(|(_, address, question)| (address, question))
    }

    /// The same, with the lane that it has to be sent from: each lane is the first of several, one for each of our addresses
    /// ([`Asker::ask_from`]).
    pub fn next_from(&mut self, now_us: u64, first: Lane) -> Option<(Lane, Address, Question)> {
        if let Some((address, second)) = self.seconds.pop_front() {
            self.pace.take();
            return Some((first, address, second));
        }
        while self.pace.has(now_us, self.settings.per_second) {
            let (queue, turn) = self.queues.next(now_us, self.settings.per_ip_per_second)?;
            let pending = self.pending.get_mut(turn.place).filter(|pending| pending.serial == turn.serial);
            let Some(pending) = pending else { continue };
            let address = pending.address;
            let spacing_us = pending.spacing_us().min(SPACING_US_MAX);
            if let Some(asked_us) = self.asked_us.get(&address).filter(|_| spacing_us > 0)
                && now_us < asked_us + spacing_us
            {
                self.spaced.insert((asked_us + spacing_us, turn));
                continue;
            }
            if spacing_us > 0 {
                self.asked_us.insert(address, now_us);
            }
            self.queues.sent(queue);
            self.pace.take();
            let lane = first + pending.source;
            if let Some((question, second)) = pending.send(now_us, lane, &self.reading.key) {
                self.seconds.extend(second.map(|second| (address, second)));
                self.timeouts.push_back((now_us + self.settings.try_us, turn, pending.tries_sent()));
                return Some((lane, address, question));
            }
        }
        None
    }

    /// Takes a datagram that arrived on this lane. Datagrams from addresses that we did not query are ignored.
    pub fn heard(&mut self, now_us: u64, lane: Lane, from: SocketAddr, bytes: &[u8]) -> Option<Finished<T>> {
        let address = Address::new(from.ip(), from.port())?;
        let place = *self.places.get(&address)?;
        let pending = self.pending.get_mut(place)?;
        if pending.is_asked_on(lane) && self.farewells.len() < FAREWELLS_MAX {
            let mut last = Question::new();
            pending.farewell(bytes, &mut last);
            if !last.is_empty() {
                self.farewells.push_back((lane, address, last));
            }
        }
        let next = pending.hear(now_us, lane, bytes, &self.reading);
        if pending.has_claim() {
            self.fresh -= usize::from(std::mem::take(&mut pending.fresh));
        }
        // What most datagrams lead to needs no other look at the table.
        match next {
            Next::Wait => None,
            Next::LookAt(at_us) => {
                self.looks.push(at_us, Turn { serial: pending.serial, place });
                None
            }
            Next::Believe(facts) => self.finish(place, Some(facts)),
            next => self.act(now_us, place, next),
        }
    }

    /// The next datagram to send to a server that has answered, from the lane on which it did.
    pub fn next_farewell(&mut self) -> Option<(Lane, Address, Question)> {
        self.farewells.pop_front()
    }

    fn act(&mut self, now_us: u64, place: Place, next: Next) -> Option<Finished<T>> {
        let pending = self.pending.get_mut(place)?;
        match next {
            Next::Wait => None,
            Next::LookAt(at_us) => {
                self.looks.push(at_us, Turn { serial: pending.serial, place });
                None
            }
            Next::Ask => {
                self.asked += 1;
                pending.serial = self.asked;
                pending.queued = true;
                // Ahead of the others: the server is proven, and its second answer completes the query.
                self.enqueue(Turn { serial: self.asked, place }, true);
                None
            }
            Next::NoFacts => self.ask_again(now_us, place, true),
            Next::Alive | Next::Same => self.finish(place, None),
            Next::Believe(facts) => self.finish(place, Some(facts)),
        }
    }

    /// Queues another try if one is left; otherwise ends the query.
    fn ask_again(&mut self, now_us: u64, place: Place, first: bool) -> Option<Finished<T>> {
        let pending = self.pending.get_mut(place).filter(|pending| !pending.queued)?;
        let in_time = pending.began_us.is_none_or(|began_us| now_us < began_us + self.settings.all_us);
        if !in_time || pending.tries_sent() >= self.settings.tries.clamp(1, TRIES_MAX) {
            return self.finish(place, None);
        }
        pending.queued = true;
        let serial = pending.serial;
        self.enqueue(Turn { serial, place }, first);
        None
    }

    /// Handles timeouts: returns a server that has used all its tries or whose facts have settled, and queues another try for
    /// the rest. Call it until it returns None, before sending the next questions.
    pub fn timed_out(&mut self, now_us: u64) -> Option<Finished<T>> {
        while let Some(&(due_us, turn)) = self.spaced.first()
            && due_us <= now_us
        {
            self.spaced.pop_first();
            self.enqueue(turn, true);
        }
        while let Some(turn) = self.looks.pop(now_us) {
            let finished = match self.of_mut(turn).map_or(Next::Wait, |pending| pending.look(now_us)) {
                Next::Wait => None,
                Next::Believe(facts) => self.finish(turn.place, Some(facts)),
                next => self.act(now_us, turn.place, next),
            };
            if finished.is_some() {
                return finished;
            }
        }
        while let Some(&(due_us, turn, tries)) = self.timeouts.front()
            && due_us <= now_us
        {
            self.timeouts.pop_front();
            let pending = self.pending.get_mut(turn.place).filter(|pending| pending.serial == turn.serial);
            // A later try has its own timeout.
            let Some(pending) = pending.filter(|pending| pending.tries_sent() == tries) else { continue };
            self.fresh -= usize::from(std::mem::take(&mut pending.fresh));
            pending.overdue = pending.is_listening();
            if !pending.overdue
                && let Some(finished) = self.ask_again(now_us, turn.place, false)
            {
                return Some(finished);
            }
        }
        self.forget(now_us);
        None
    }

    /// Forgets what is known of servers that were not asked for a while, if that is much more than there are queries in flight.
    fn forget(&mut self, now_us: u64) {
        if now_us < self.forgot_us + FORGET_US {
            return;
        }
        self.forgot_us = now_us;
        let most = 2 * self.pending.len() + IDLE_KEPT;
        self.queues.forget_idle(now_us, most);
        if self.asked_us.len() > most {
            self.asked_us.retain(|_, asked_us| *asked_us + SPACING_US_MAX > now_us);
        }
    }

    /// When to call [`Asker::timed_out`] next.
    pub fn next_timeout_us(&self) -> Option<u64> {
        let timeout_us = self.timeouts.front().map(|(due_us, ..)| *due_us);
        let look_us = self.looks.next_us();
        let spaced_us = self.spaced.first().map(|(due_us, ..)| *due_us);
        timeout_us.into_iter().chain(look_us).chain(spaced_us).min()
    }

    /// Whether questions wait for the rate limits.
    pub fn has_questions(&self) -> bool {
        self.queues.has_questions() || !self.seconds.is_empty()
    }
}

#[cfg(test)]
mod tests;

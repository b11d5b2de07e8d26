//! Asking many game servers at once: what is in flight, how often and how fast to ask, which answer counts. No socket and
//! no clock: datagrams and times come in, datagrams and results come out. The loop around it, which the
//! master's prober and the query command share, is in `drive.rs`.
//!
//! An answer counts when it comes from the address that was asked, to the lane from which it was asked, and brings back
//! the nonce of one of the tries. What that means for answers in several datagrams is in `asking.rs`.

mod asking;
pub mod drive;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use self::asking::{Asking, Next};
use crate::model::{Address, Facts};
use crate::prefix::{Networks, Prefix};
use crate::protocols::{Ask, Fault, Query, Question};

/// Tries of one question, at most.
pub const TRIES_MAX: u8 = 4;
/// Idle lines that are kept at least: their pace still counts.
const LINES_KEPT: usize = 1024;

/// Upper bound on the pause between two questions to one server.
const SPACING_US_MAX: u64 = 2_000_000;

/// A local port to ask from, as the caller numbers them.
pub type Lane = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a question is sent before its server counts as silent, at most [`TRIES_MAX`].
    pub tries: u8,
    /// How long to wait for the answer to one try.
    pub try_us: u64,
    /// How long all tries of all questions may take, but for the answer to the last.
    pub all_us: u64,
    /// Questions a second, in all and to one IP address (IPv6 /64). Wider prefixes have a larger pace.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub rtt_us: u32,
    /// None when the server has proven itself, and then said nothing more that can be believed.
    pub facts: Option<Facts<'static>>,
    /// What was wrong with its answer, if there are no facts.
    pub fault: Option<Fault>,
    /// Different facts arrived, or facts that were not asked for: somebody forges them.
    pub disputed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No answer at all.
    Silent,
    /// Answers, but none that counts; this was wrong with the last one.
    Bad(Fault),
}

impl Failure {
    /// The failure in words; `of` says whose answer, like " from 192.0.2.1:1", or is empty.
    pub fn words(&self, of: &str) -> String {
        match self {
            Failure::Silent => format!("no answer{of}"),
            Failure::Bad(fault) => format!("bad answer{of}: {fault}"),
        }
    }
}

pub struct Asker<T> {
    settings: Settings,
    key: [u8; 16],
    asked: u64,
    waiting: HashMap<Address, Asking<T>>,
    /// How many of those have not been silent yet.
    fresh: usize,
    /// What is to be sent, one line per owner, so that an owner with many servers delays no other.
    lines: HashMap<Prefix, Line>,
    /// The wider prefixes around them.
    networks: HashMap<Prefix, Network>,
    /// Addresses that have only the pace of their own.
    exempt: Arc<Networks>,
    /// Owners with questions to send; they take turns.
    ready: VecDeque<Prefix>,
    /// Owners whose pace does not allow another question before this time.
    resting: BTreeSet<(u64, Prefix)>,
    /// When servers were last asked that do not answer often, and those that wait for that reason.
    asked_us: HashMap<Address, u64>,
    spaced: BTreeSet<(u64, Address, u64)>,
    /// Sent, in the order in which they time out: all wait equally long. With the number of tries by then.
    timeouts: VecDeque<(u64, Address, u64, u8)>,
    /// When to look again at servers that have proven themselves, and whose facts are due or have to settle.
    looks: BinaryHeap<Reverse<(u64, Address, u64)>>,
    pace: Bucket,
}

/// The servers of one owner.
#[derive(Default)]
struct Line {
    /// To be sent as soon as the pace allows.
    questions: VecDeque<(Address, u64)>,
    /// Whether the owner is in `ready` or `resting`.
    in_turn: bool,
    /// Servers that have been asked, or wait for their turn.
    in_flight: usize,
    pace: Bucket,
}

/// A prefix with many lines in it.
#[derive(Default)]
struct Network {
    /// Servers that have been asked, or wait for their turn.
    in_flight: usize,
    pace: Bucket,
}

impl<T> Asker<T> {
    /// The seed is secret: the nonces follow from it.
    pub fn new(settings: Settings, seed: [u8; 16]) -> Asker<T> {
        Asker {
            settings,
            key: seed,
            asked: 0,
            waiting: HashMap::new(),
            fresh: 0,
            lines: HashMap::new(),
            networks: HashMap::new(),
            exempt: Arc::default(),
            ready: VecDeque::new(),
            resting: BTreeSet::new(),
            asked_us: HashMap::new(),
            spaced: BTreeSet::new(),
            timeouts: VecDeque::new(),
            looks: BinaryHeap::new(),
            pace: Bucket::default(),
        }
    }

    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// The networks in which each address has only a pace of its own. Questions under way are counted again.
    pub fn set_exempt(&mut self, exempt: Arc<Networks>) {
        self.exempt = exempt;
        self.networks.clear();
        let addresses: Vec<Address> = self.waiting.keys().copied().collect();
        addresses.into_iter().for_each(|address| self.count(address.ip(), true));
    }

    /// The prefixes around an address that are wider than its line's.
    fn wider(&self, ip: IpAddr) -> impl Iterator<Item = Prefix> + use<T> {
        Prefix::all(ip, &self.exempt).into_iter().skip(1)
    }

    /// Counts one more or one less under way, in the wider prefixes.
    fn count(&mut self, ip: IpAddr, more: bool) {
        for prefix in self.wider(ip) {
            let network = self.networks.entry(prefix).or_default();
            network.in_flight =
                if more { network.in_flight.saturating_add(1) } else { network.in_flight.saturating_sub(1) };
        }
    }

    /// Servers that have been asked, or wait for their turn.
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Whether another server of this owner would have its turn soon: a second's worth of questions is not exceeded.
    pub fn has_room_for(&self, ip: IpAddr) -> bool {
        let per_second = self.settings.per_ip_per_second;
        let is_full = |prefix: Prefix| {
            let in_flight = self.networks.get(&prefix).map_or(0, |network| network.in_flight);
            in_flight >= prefix.limit(per_second) as usize
        };
        let in_flight = self.lines.get(&Prefix::narrowest(ip)).map_or(0, |line| line.in_flight);
        in_flight < per_second as usize && !self.wider(ip).any(is_full)
    }

    /// Servers in flight of which no try has timed out and whose facts are still missing: so many answers may be on their
    /// way.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// The tag of a server that is being asked already.
    pub fn tag_mut(&mut self, address: Address) -> Option<&mut T> {
        self.waiting.get_mut(&address).map(|asking| &mut asking.tag)
    }

    /// Puts a server on the list of those to ask: for a proof first, or for facts at once where it has proven itself
    /// before. One that is being asked already is not asked twice: the tag comes back.
    pub fn ask(&mut self, address: Address, query: &'static dyn Query, ask: Ask, tag: T) -> Result<(), T> {
        if self.waiting.contains_key(&address) {
            return Err(tag);
        }
        self.asked += 1;
        let serial = self.asked;
        self.fresh += 1;
        self.waiting.insert(address, Asking::new(serial, query, ask, tag));
        self.lines.entry(Prefix::narrowest(address.ip())).or_default().in_flight += 1;
        self.count(address.ip(), true);
        self.enqueue(address, serial, false);
        Ok(())
    }

    /// Puts a question at the end of its owner's line, or at its head.
    fn enqueue(&mut self, address: Address, serial: u64, first: bool) {
        let owner = Prefix::narrowest(address.ip());
        let line = self.lines.entry(owner).or_default();
        if first {
            line.questions.push_front((address, serial))
        } else {
            line.questions.push_back((address, serial))
        }
        if !std::mem::replace(&mut line.in_turn, true) {
            if first { self.ready.push_front(owner) } else { self.ready.push_back(owner) }
        }
    }

    /// Removes a server and returns its result.
    fn finish(&mut self, address: Address, facts: Option<Facts<'static>>) -> Option<Finished<T>> {
        let asking = self.waiting.remove(&address)?;
        self.fresh -= usize::from(asking.fresh);
        if let Some(line) = self.lines.get_mut(&Prefix::narrowest(address.ip())) {
            line.in_flight -= 1;
        }
        self.count(address.ip(), false);
        let (tag, result) = asking.end(facts);
        Some(Finished { address, tag, result })
    }

    /// Removes a server that is known to be gone by other means, such as an ICMP error.
    pub fn give_up(&mut self, address: Address) -> Option<T> {
        self.finish(address, None).map(|finished| finished.tag)
    }

    /// The next datagram to send now, from this lane; None when there is none, or the pace does not allow it yet.
    pub fn next_question(&mut self, now_us: u64, lane: Lane) -> Option<(Address, Question)> {
        while let Some(&(rested_us, owner)) = self.resting.first()
            && rested_us <= now_us
        {
            self.resting.pop_first();
            self.ready.push_back(owner);
        }
        while self.pace.has(now_us, self.settings.per_second) {
            let owner = self.ready.pop_front()?;
            let Some(line) = self.lines.get_mut(&owner) else { continue };
            let per_second = self.settings.per_ip_per_second;
            let mut rest_us = line.pace.wait_us(now_us, per_second);
            let wider = Prefix::all(owner.network(), &self.exempt).into_iter().skip(1);
            for prefix in wider.clone() {
                let network = self.networks.entry(prefix).or_default();
                rest_us = rest_us.max(network.pace.wait_us(now_us, prefix.limit(per_second)));
            }
            if rest_us > 0 {
                self.resting.insert((now_us + rest_us, owner));
                continue;
            }
            let next = line.questions.pop_front();
            line.in_turn = !line.questions.is_empty();
            if line.in_turn {
                self.ready.push_back(owner);
            }
            let Some((address, serial)) = next else { continue };
            let Some(asking) = self.waiting.get_mut(&address).filter(|asking| asking.serial == serial) else {
                continue;
            };
            let spacing_us = asking.spacing_us().min(SPACING_US_MAX);
            if let Some(asked_us) = self.asked_us.get(&address).filter(|_| spacing_us > 0)
                && now_us < asked_us + spacing_us
            {
                self.spaced.insert((asked_us + spacing_us, address, serial));
                continue;
            }
            if spacing_us > 0 {
                self.asked_us.insert(address, now_us);
            }
            line.pace.take();
            for prefix in wider {
                self.networks.entry(prefix).or_default().pace.take();
            }
            self.pace.take();
            if let Some(question) = asking.send(now_us, lane, &self.key) {
                self.timeouts.push_back((now_us + self.settings.try_us, address, serial, asking.tries_sent()));
                return Some((address, question));
            }
        }
        None
    }

    /// Takes a datagram that came to this lane. Datagrams from addresses that are not being asked are ignored.
    pub fn heard(&mut self, now_us: u64, lane: Lane, from: SocketAddr, bytes: &[u8]) -> Option<Finished<T>> {
        let address = Address::new(from.ip(), from.port())?;
        let asking = self.waiting.get_mut(&address)?;
        let next = asking.hear(now_us, lane, bytes, &self.key);
        if asking.has_claim() {
            self.fresh -= usize::from(std::mem::take(&mut asking.fresh));
        }
        self.act(now_us, address, next)
    }

    fn act(&mut self, now_us: u64, address: Address, next: Next) -> Option<Finished<T>> {
        let asking = self.waiting.get_mut(&address)?;
        match next {
            Next::Wait => None,
            Next::LookAt(at_us) => {
                self.looks.push(Reverse((at_us, address, asking.serial)));
                None
            }
            Next::AskForFacts => {
                self.asked += 1;
                asking.serial = self.asked;
                asking.queued = true;
                // Ahead of the others: it is proven, and waits already.
                self.enqueue(address, self.asked, true);
                None
            }
            Next::NoFacts => self.ask_again(now_us, address, true),
            Next::Believe(facts) => self.finish(address, Some(facts)),
        }
    }

    /// Queues another try, or finishes with the server if there is none left.
    fn ask_again(&mut self, now_us: u64, address: Address, first: bool) -> Option<Finished<T>> {
        let asking = self.waiting.get_mut(&address).filter(|asking| !asking.queued)?;
        let in_time = asking.began_us.is_none_or(|began_us| now_us < began_us + self.settings.all_us);
        if !in_time || asking.tries_sent() >= self.settings.tries.clamp(1, TRIES_MAX) {
            return self.finish(address, None);
        }
        asking.queued = true;
        let serial = asking.serial;
        self.enqueue(address, serial, first);
        None
    }

    /// A server that has been silent for all its tries, or whose facts have settled; the others are asked once more. Call
    /// until None, before the next questions are sent.
    pub fn timed_out(&mut self, now_us: u64) -> Option<Finished<T>> {
        while let Some(&(due_us, address, serial)) = self.spaced.first()
            && due_us <= now_us
        {
            self.spaced.pop_first();
            self.enqueue(address, serial, true);
        }
        while let Some(Reverse((_, address, serial))) =
            self.looks.peek().filter(|Reverse((at_us, ..))| *at_us <= now_us).copied()
        {
            self.looks.pop();
            let asking = self.waiting.get_mut(&address).filter(|asking| asking.serial == serial);
            let next = asking.map_or(Next::Wait, |asking| asking.look(now_us));
            if let Some(finished) = self.act(now_us, address, next) {
                return Some(finished);
            }
        }
        while let Some(&(due_us, address, serial, tries)) = self.timeouts.front() {
            if due_us > now_us {
                return None;
            }
            self.timeouts.pop_front();
            let asking = self.waiting.get_mut(&address).filter(|asking| asking.serial == serial);
            // A later try has its own time.
            let Some(asking) = asking.filter(|asking| asking.tries_sent() == tries) else { continue };
            self.fresh -= usize::from(std::mem::take(&mut asking.fresh));
            asking.overdue = asking.is_listening();
            if !asking.overdue
                && let Some(finished) = self.ask_again(now_us, address, false)
            {
                return Some(finished);
            }
        }
        // What is remembered of the pace of those who are not asked any more can go.
        if self.lines.len() > 2 * self.waiting.len() + LINES_KEPT {
            let is_used = |line: &Line| line.in_turn || line.in_flight > 0 || line.pace.at_us + 1_000_000 > now_us;
            self.lines.retain(|_, line| is_used(line));
        }
        if self.asked_us.len() > 2 * self.waiting.len() + LINES_KEPT {
            self.asked_us.retain(|_, asked_us| *asked_us + SPACING_US_MAX > now_us);
        }
        if self.networks.len() > 2 * self.waiting.len() + LINES_KEPT {
            self.networks.retain(|_, network| network.in_flight > 0 || network.pace.at_us + 1_000_000 > now_us);
        }
        None
    }

    /// When [`Asker::timed_out`] has something to do next.
    pub fn next_timeout_us(&self) -> Option<u64> {
        let timeout_us = self.timeouts.front().map(|(due_us, ..)| *due_us);
        let look_us = self.looks.peek().map(|Reverse((at_us, ..))| *at_us);
        let spaced_us = self.spaced.first().map(|(due_us, ..)| *due_us);
        timeout_us.into_iter().chain(look_us).chain(spaced_us).min()
    }

    /// Whether questions wait for the pace to allow them.
    pub fn has_questions(&self) -> bool {
        !self.ready.is_empty() || !self.resting.is_empty()
    }
}

/// A token bucket: `per_second`, with bursts of at most a twentieth of a second's worth.
#[derive(Default)]
struct Bucket {
    at_us: u64,
    /// Millionths of one.
    level: u64,
}

impl Bucket {
    fn has(&mut self, now_us: u64, per_second: u32) -> bool {
        let most = (u64::from(per_second) * 50_000).max(1_000_000);
        let gained = now_us.saturating_sub(self.at_us).saturating_mul(per_second.into());
        // A bucket is full when first used.
        self.level = if self.at_us == 0 { most } else { self.level.saturating_add(gained).min(most) };
        self.at_us = now_us;
        self.level >= 1_000_000
    }

    fn take(&mut self) {
        self.level = self.level.saturating_sub(1_000_000);
    }

    /// How long until there is one; 0 when there is one now.
    fn wait_us(&mut self, now_us: u64, per_second: u32) -> u64 {
        if self.has(now_us, per_second) { 0 } else { self.rest_us(per_second) }
    }

    /// How long until there is one, when there is none.
    fn rest_us(&self, per_second: u32) -> u64 {
        1_000_000u64.saturating_sub(self.level).div_ceil(u64::from(per_second).max(1)).max(1)
    }
}

#[cfg(test)]
mod tests;

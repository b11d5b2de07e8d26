//! Asking many game servers at once: what is in flight, how often and how fast to ask, which answer counts. No socket and
//! no clock: datagrams and times come in, datagrams and results come out. The master's prober and the query command
//! both drive this.
//!
//! An answer counts when it comes from the address that was asked and brings back the nonce of one of the tries.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher13;

use crate::model::{Address, Facts};
use crate::prefix::{Networks, Prefix};
use crate::protocols::{Fault, Query, Question, fault};

/// Tries are told apart by the nonce's two lowest bits.
pub const TRIES_MAX: u8 = 4;
/// Steps of a query beyond this would be a protocol's mistake.
const STEPS_MAX: u8 = 4;
/// Owners of whom something is remembered though none of their servers is being asked.
const LINES_KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a question is sent before its server counts as silent, at most [`TRIES_MAX`].
    pub tries: u8,
    /// How long to wait for the answer to one try.
    pub try_us: u64,
    /// How long all tries of all steps may take, and a last answer with them.
    pub all_us: u64,
    /// Questions a second, in all and to one IP address (IPv6 /64). Wider prefixes have a larger pace.
    pub per_second: u32,
    pub per_ip_per_second: u32,
}

/// How it ended with one server.
#[derive(Debug)]
pub struct Finished<T> {
    pub address: Address,
    pub tag: T,
    pub result: Result<Answer, Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub rtt_us: u32,
    /// None when the server has proven itself, and then said nothing more that was understood.
    pub facts: Option<Facts<'static>>,
    /// What was wrong with what it said instead.
    pub fault: Option<Fault>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not a single answer.
    Silent,
    /// Answers, but none that counts; this was wrong with the last one.
    Bad(Fault),
}

pub struct Asker<T> {
    settings: Settings,
    key: [u8; 16],
    asked: u64,
    waiting: HashMap<Address, Asking<T>>,
    /// How many of those have not been silent yet.
    fresh: usize,
    /// What is to be sent, by whom it is for: one with many servers stands in nobody's way.
    lines: HashMap<Prefix, Line>,
    /// The wider prefixes around them.
    networks: HashMap<Prefix, Network>,
    /// Addresses that have only the pace of their own.
    exempt: Arc<Networks>,
    /// Those with questions to send, who take turns.
    ready: VecDeque<Prefix>,
    /// Those whose own pace does not allow another question before this time.
    resting: BTreeSet<(u64, Prefix)>,
    /// Sent, in the order in which they time out: all wait equally long.
    timeouts: VecDeque<(u64, Address, u64)>,
    pace: Bucket,
}

/// The servers of one owner.
#[derive(Default)]
struct Line {
    /// To be sent as soon as the pace allows.
    questions: VecDeque<(Address, u64)>,
    /// Whether the owner is among those who are ready or resting.
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

struct Asking<T> {
    /// Tells this question from earlier ones to the same address.
    serial: u64,
    query: &'static dyn Query,
    tag: T,
    nonce: u32,
    step: u8,
    /// When the first try of the first step was sent.
    began_us: Option<u64>,
    /// When each try of this step was sent.
    sent_us: ArrayVec<u64, { TRIES_MAX as usize }>,
    rtt_us: Option<u32>,
    fault: Option<Fault>,
    /// No try of it has timed out.
    fresh: bool,
}

impl<T> Asker<T> {
    /// The seed is secret: whoever knows it can foretell the nonces.
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
            timeouts: VecDeque::new(),
            pace: Bucket::default(),
        }
    }

    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// The networks in which each address has only a pace of its own. What is under way counts anew.
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

    /// Of those in flight, the ones of which no try has timed out: so much may still be on its way.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// The tag of a server that is being asked already.
    pub fn tag_mut(&mut self, address: Address) -> Option<&mut T> {
        self.waiting.get_mut(&address).map(|asking| &mut asking.tag)
    }

    /// Puts a server on the list of those to ask. One that is being asked already is not asked twice: the tag comes back.
    pub fn ask(&mut self, address: Address, query: &'static dyn Query, tag: T) -> Result<(), T> {
        if self.waiting.contains_key(&address) {
            return Err(tag);
        }
        self.asked += 1;
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.asked);
        let nonce = hasher.finish() as u32 & !u32::from(TRIES_MAX - 1);
        let serial = self.asked;
        let sent_us = ArrayVec::new();
        let asking = Asking {
            serial,
            query,
            tag,
            nonce,
            step: 0,
            began_us: None,
            sent_us,
            rtt_us: None,
            fault: None,
            fresh: true,
        };
        self.fresh += 1;
        self.waiting.insert(address, asking);
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

    /// It is over with this server.
    fn take(&mut self, address: Address) -> Option<Asking<T>> {
        let asking = self.waiting.remove(&address)?;
        self.fresh -= usize::from(asking.fresh);
        if let Some(line) = self.lines.get_mut(&Prefix::narrowest(address.ip())) {
            line.in_flight -= 1;
        }
        self.count(address.ip(), false);
        Some(asking)
    }

    /// The next datagram to send now; None when there is none, or the pace does not allow it yet.
    pub fn next_question(&mut self, now_us: u64) -> Option<(Address, Question)> {
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
            line.pace.take();
            for prefix in wider {
                self.networks.entry(prefix).or_default().pace.take();
            }
            self.pace.take();
            let mut question = Question::new();
            asking.query.ask(asking.step, asking.nonce | asking.sent_us.len() as u32, &mut question);
            asking.began_us.get_or_insert(now_us);
            if asking.sent_us.try_push(now_us).is_ok() {
                self.timeouts.push_back((now_us + self.settings.try_us, address, serial));
                return Some((address, question));
            }
        }
        None
    }

    /// Takes a datagram. What comes from nobody who was asked is nobody's business.
    pub fn heard(&mut self, now_us: u64, from: SocketAddr, bytes: &[u8]) -> Option<Finished<T>> {
        let address = Address::new(from.ip(), from.port())?;
        let asking = self.waiting.get_mut(&address)?;
        let heard = match asking.query.hear(asking.step, bytes) {
            Ok(heard) => heard,
            Err(wrong) => {
                // The answer to the step before may come twice; that is no fault.
                let earlier = asking.step.checked_sub(1);
                if earlier.is_none_or(|step| asking.query.hear(step, bytes).is_err()) {
                    asking.fault = Some(wrong);
                }
                return None;
            }
        };
        let try_of = |nonce: u32| asking.sent_us.get((nonce ^ asking.nonce) as usize);
        let sent_us = match heard.nonce {
            Some(nonce) => try_of(nonce),
            // Only a later step has no nonce: the first has proven the address.
            None if asking.step > 0 => asking.sent_us.last(),
            None => None,
        };
        let Some(&sent_us) = sent_us else {
            asking.fault = Some(fault("it does not bring back the number that was sent: forged, or late"));
            return None;
        };
        let rtt_us = *asking.rtt_us.get_or_insert(now_us.saturating_sub(sent_us).min(u32::MAX.into()) as u32);
        if heard.facts.is_none() && asking.step < STEPS_MAX {
            asking.step += 1;
            asking.fault = None;
            asking.sent_us.clear();
            self.asked += 1;
            asking.serial = self.asked;
            // Ahead of the others: it is proven, and waits already.
            self.enqueue(address, self.asked, true);
            return None;
        }
        let facts = heard.facts.map(Facts::into_owned);
        let Asking { tag, .. } = self.take(address)?;
        Some(Finished { address, tag, result: Ok(Answer { rtt_us, facts, fault: None }) })
    }

    /// A server that has been silent for all its tries; the others are asked once more. Call until None.
    pub fn timed_out(&mut self, now_us: u64) -> Option<Finished<T>> {
        while let Some(&(due_us, address, serial)) = self.timeouts.front() {
            if due_us > now_us {
                return None;
            }
            self.timeouts.pop_front();
            let Some(asking) = self.waiting.get_mut(&address).filter(|asking| asking.serial == serial) else {
                continue;
            };
            self.fresh -= usize::from(std::mem::take(&mut asking.fresh));
            let in_time = asking.began_us.is_none_or(|began_us| now_us < began_us + self.settings.all_us);
            if in_time && asking.sent_us.len() < usize::from(self.settings.tries.clamp(1, TRIES_MAX)) {
                self.enqueue(address, serial, false);
                continue;
            }
            let Asking { tag, rtt_us, fault, .. } = self.take(address)?;
            let result = match (rtt_us, fault) {
                (Some(rtt_us), fault) => Ok(Answer { rtt_us, facts: None, fault }),
                (None, Some(fault)) => Err(Failure::Bad(fault)),
                (None, None) => Err(Failure::Silent),
            };
            return Some(Finished { address, tag, result });
        }
        // What is remembered of the pace of those who are not asked any more can go.
        if self.lines.len() > 2 * self.waiting.len() + LINES_KEPT {
            let is_used = |line: &Line| line.in_turn || line.in_flight > 0 || line.pace.at_us + 1_000_000 > now_us;
            self.lines.retain(|_, line| is_used(line));
        }
        if self.networks.len() > 2 * self.waiting.len() + LINES_KEPT {
            self.networks.retain(|_, network| network.in_flight > 0 || network.pace.at_us + 1_000_000 > now_us);
        }
        None
    }

    /// When [`Asker::timed_out`] has something to do next.
    pub fn next_timeout_us(&self) -> Option<u64> {
        self.timeouts.front().map(|(due_us, _, _)| *due_us)
    }

    /// Whether questions wait for the pace to allow them.
    pub fn has_questions(&self) -> bool {
        !self.ready.is_empty() || !self.resting.is_empty()
    }
}

/// A pace: so many a second, and at most a twentieth of a second's worth at once.
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
mod tests {
    use super::*;
    use crate::protocols::{hyperbol, netpanzer};

    const SETTINGS: Settings =
        Settings { tries: 3, try_us: 1_000_000, all_us: 10_000_000, per_second: 1_000, per_ip_per_second: 1_000 };

    fn asker(settings: Settings) -> Asker<u32> {
        Asker::new(settings, [9; 16])
    }

    fn server(port: u16) -> Address {
        Address::new([192, 0, 2, 1].into(), port).unwrap()
    }

    fn hyperbol_answer(question: &Question) -> Vec<u8> {
        let echo = hyperbol::wire::Query::parse(question).unwrap().echo;
        let sample = (hyperbol::CARD.samples)().into_iter().find(|sample| sample.len() == 229).unwrap();
        let mut info = hyperbol::wire::Info::parse(&sample).unwrap();
        info.echo = echo;
        info.emit().to_vec()
    }

    #[test]
    fn the_answer_with_the_nonce_counts_and_nothing_else() {
        let mut asker = asker(SETTINGS);
        asker.ask(server(1), &hyperbol::query::GameQuery, 7).unwrap();
        assert_eq!(asker.ask(server(1), &hyperbol::query::GameQuery, 8), Err(8));
        let (address, question) = asker.next_question(1_000).unwrap();
        assert_eq!(address, server(1));
        assert!(asker.next_question(1_000).is_none());
        let answer = hyperbol_answer(&question);
        assert!(asker.heard(2_000, server(2).socket(), &answer).is_none(), "from somebody else");
        let mut forged = answer.clone();
        forged[3] ^= 0x10;
        assert!(asker.heard(2_000, server(1).socket(), &forged).is_none(), "another nonce");
        assert!(asker.heard(2_000, server(1).socket(), &answer[..228]).is_none(), "cut");
        let finished = asker.heard(26_000, server(1).socket(), &answer).unwrap();
        assert_eq!((finished.tag, finished.address), (7, server(1)));
        let answered = finished.result.unwrap();
        assert_eq!(answered.rtt_us, 25_000);
        assert_eq!(answered.facts.unwrap().name, "Veks California DM");
        assert_eq!((asker.in_flight(), asker.fresh()), (0, 0));
        assert!(asker.heard(26_000, server(1).socket(), &answer).is_none(), "a second time");
    }

    #[test]
    fn a_lost_question_is_asked_again_and_a_late_answer_has_its_own_round_trip() {
        let mut asker = asker(SETTINGS);
        asker.ask(server(1), &hyperbol::query::GameQuery, 0).unwrap();
        let (_, first) = asker.next_question(0).unwrap();
        assert!(asker.timed_out(999_999).is_none() && asker.next_question(999_999).is_none());
        assert!(asker.timed_out(1_000_000).is_none());
        let (_, second) = asker.next_question(1_000_000).unwrap();
        assert_ne!(first, second, "each try has its own nonce");
        let finished = asker.heard(1_200_000, server(1).socket(), &hyperbol_answer(&first)).unwrap();
        assert_eq!(finished.result.unwrap().rtt_us, 1_200_000);
    }

    #[test]
    fn silence_and_nonsense_are_told_apart() {
        let mut asker = asker(SETTINGS);
        asker.ask(server(1), &hyperbol::query::GameQuery, 1).unwrap();
        asker.ask(server(2), &hyperbol::query::GameQuery, 2).unwrap();
        assert_eq!(asker.fresh(), 2);
        let mut finished = Vec::new();
        for second in 0..4u64 {
            assert_eq!((asker.fresh(), asker.in_flight()), if second < 2 { (2, 2) } else { (0, 2) });
            let now_us = second * 1_000_000;
            finished.extend(std::iter::from_fn(|| asker.timed_out(now_us)));
            while asker.next_question(now_us).is_some() {}
            asker.heard(now_us, server(2).socket(), b"nonsense");
        }
        let results: Vec<_> =
            finished.into_iter().map(|finished| (finished.tag, finished.result.unwrap_err())).collect();
        assert_eq!(results[0], (1, Failure::Silent));
        assert!(matches!(results[1], (2, Failure::Bad(_))), "{results:?}");
        assert_eq!(asker.in_flight(), 0);
    }

    #[test]
    fn a_proof_first_and_the_long_answer_then() {
        let mut asker = asker(SETTINGS);
        let game = server(3030).socket();
        asker.ask(server(3030), &netpanzer::query::GameQuery, 0).unwrap();
        let (_, echo) = asker.next_question(0).unwrap();
        let token = echo.strip_prefix(br"\echo\").unwrap().strip_suffix(b"\\").unwrap().to_vec();
        let status = (netpanzer::CARD.samples)().pop().unwrap();
        assert!(asker.heard(10, game, &status).is_none(), "not before the proof");
        assert!(asker.heard(5_000, game, &token).is_none());
        let (_, question) = asker.next_question(5_000).unwrap();
        assert_eq!(&question[..], br"\status\");
        assert!(asker.heard(6_000, game, &token).is_none(), "a duplicate of the proof");
        let answered = asker.heard(9_000, game, &status).unwrap().result.unwrap();
        assert_eq!((answered.rtt_us, &*answered.facts.unwrap().name), (5_000, "A server"));

        // Proven, and then silent: alive, without facts.
        asker.ask(server(3030), &netpanzer::query::GameQuery, 0).unwrap();
        let (_, echo) = asker.next_question(10_000).unwrap();
        let token = echo.strip_prefix(br"\echo\").unwrap().strip_suffix(b"\\").unwrap().to_vec();
        asker.heard(11_000, game, &token);
        let mut finished = None;
        for second in 0..5 {
            let now_us = 20_000 + second * 1_000_000;
            finished = finished.or_else(|| asker.timed_out(now_us));
            asker.next_question(now_us);
        }
        assert_eq!(finished.unwrap().result, Ok(Answer { rtt_us: 1_000, facts: None, fault: None }));
    }

    #[test]
    fn the_pace_holds_in_all_and_for_each_address() {
        let settings = Settings { per_second: 100, per_ip_per_second: 20, ..SETTINGS };
        let mut asker = asker(settings);
        for ip in 0..10u8 {
            for port in 1..=50 {
                let address = Address::new([192, 0, ip, 1].into(), port).unwrap();
                asker.ask(address, &hyperbol::query::GameQuery, 0).unwrap();
            }
        }
        let mut sent: HashMap<IpAddr, u32> = HashMap::new();
        for ms in 0..1_000u64 {
            while let Some((address, _)) = asker.next_question(1 + ms * 1_000) {
                *sent.entry(address.ip()).or_default() += 1;
            }
        }
        let all: u32 = sent.values().sum();
        assert!((95..=110).contains(&all), "{all}");
        assert!(sent.values().all(|count| *count <= 22), "{sent:?}");
        assert!(!asker.has_room_for([192, 0, 1, 1].into()) && asker.has_room_for([192, 0, 77, 1].into()));
    }

    #[test]
    fn one_with_many_servers_stands_in_nobodys_way() {
        let mut asker = asker(Settings { per_second: 1_000, per_ip_per_second: 20, ..SETTINGS });
        for port in 1..=60_000 {
            asker.ask(server(port), &hyperbol::query::GameQuery, 0).unwrap();
        }
        // Addresses of one IPv6 network are one owner, too.
        for host in 1..=1_000 {
            let ip = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
            asker.ask(Address::new(ip.into(), 1).unwrap(), &hyperbol::query::GameQuery, 0).unwrap();
        }
        let mut now_us = 1;
        while asker.next_question(now_us).is_some() {}
        for number in 0..100u8 {
            let other = Address::new([198, 51, number, 1].into(), 1).unwrap();
            asker.ask(other, &hyperbol::query::GameQuery, 0).unwrap();
            now_us += 1_000;
            assert!(asker.lines.len() == 3 + usize::from(number) && asker.ready.len() <= 3, "nobody else is looked at");
            let sent: Vec<_> = std::iter::from_fn(|| asker.next_question(now_us)).map(|(to, _)| to).collect();
            assert!(sent.contains(&other), "{number}: {sent:?}");
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut asker = asker(Settings { per_second: 1_000_000, per_ip_per_second: 1_000_000, ..SETTINGS });
        for number in 0..3 * LINES_KEPT as u32 {
            let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
            asker.ask(Address::new(ip.into(), 1).unwrap(), &hyperbol::query::GameQuery, number).unwrap();
        }
        for second in 0..8 {
            while asker.next_question(1 + second * 1_000_000).is_some() {}
            while asker.timed_out(1 + second * 1_000_000).is_some() {}
        }
        assert_eq!((asker.in_flight(), asker.fresh(), asker.has_questions()), (0, 0, false));
        assert!(asker.lines.is_empty());
    }

    #[test]
    fn a_wider_network_has_a_pace_of_its_own() {
        let settings = Settings { per_second: 100_000, per_ip_per_second: 20, ..SETTINGS };
        let asked_in_a_second = |exempt: &[&str]| {
            let mut asker = asker(settings);
            let exempt: Vec<_> = exempt.iter().map(|network| network.parse().unwrap()).collect();
            asker.set_exempt(Arc::new(Networks::new(&exempt)));
            let mut refused = 0;
            for host in 1..=200 {
                let address = Address::new([192, 0, 2, host].into(), 1).unwrap();
                refused += u32::from(!asker.has_room_for(address.ip()));
                asker.ask(address, &hyperbol::query::GameQuery, 0).unwrap();
            }
            let other = Address::new([198, 51, 100, 1].into(), 1).unwrap();
            assert!(asker.has_room_for(other.ip()));
            asker.ask(other, &hyperbol::query::GameQuery, 0).unwrap();
            let mut asked = Vec::new();
            for now_us in (1_000..900_000).step_by(1_000) {
                asked.extend(std::iter::from_fn(|| asker.next_question(now_us)).map(|(address, _)| address));
            }
            assert!(asked.contains(&other), "somebody else is not held up");
            (asked.len() - 1, refused)
        };
        let (asked, refused) = asked_in_a_second(&[]);
        assert!((140..=160).contains(&asked), "8 times 20 a second: {asked}");
        assert_eq!(refused, 40, "those beyond a second's worth");
        assert_eq!(asked_in_a_second(&["192.0.2.0/24"]), (200, 0));
    }

    #[test]
    fn nothing_is_left_of_the_networks_that_were_asked() {
        let settings = Settings { tries: 1, per_second: 1_000_000, ..SETTINGS };
        let mut asker = asker(settings);
        for network in 0..5_000u32 {
            let address = Address::new(IpAddr::from((0x0a00_0001 + (network << 8)).to_be_bytes()), 1).unwrap();
            asker.ask(address, &hyperbol::query::GameQuery, 0).unwrap();
        }
        for now_us in (1_000..10_000_000).step_by(10_000) {
            while asker.next_question(now_us).is_some() {}
            while asker.timed_out(now_us).is_some() {}
        }
        assert_eq!(asker.in_flight(), 0);
        assert!(asker.networks.len() <= LINES_KEPT && asker.networks.values().all(|network| network.in_flight == 0));
    }
}

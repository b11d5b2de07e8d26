//! Questions that wait for the rate limits of their addresses and of the wider prefixes around these.
//!
//! A query in flight belongs to the queue of its narrowest prefix and remembers its place, so that prefixes are looked up once a query.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use slab::Slab;

use super::{Place, Turn};
use crate::prefix::{LEVELS_MAX, Networks, Prefix};

/// After this long without a question, every rate limit is what it was before the first.
const IDLE_US: u64 = 1_000_000;

#[derive(Default)]
pub(super) struct Queues {
    /// One for each narrowest prefix: an address with many servers does not delay others.
    queues: Slab<PrefixQueue>,
    places: HashMap<Prefix, Place>,
    /// The wider prefixes around them.
    networks: Slab<Network>,
    network_places: HashMap<Prefix, Place>,
    /// Only the narrowest prefix's limit applies to a queue with such an address.
    exempt: Arc<Networks>,
    /// Queues with questions to send, served round-robin.
    ready: VecDeque<Place>,
    /// Queues that are at a rate limit until this time.
    resting: BTreeSet<(u64, Place)>,
}

/// The state of one prefix.
#[derive(Default)]
struct PrefixQueue {
    /// To be sent as soon as the rate limits allow.
    questions: Turns,
    /// Whether the queue is in `ready` or `resting`.
    scheduled: bool,
    /// Servers that have been asked, or wait for their turn.
    in_flight: usize,
    pace: TokenBucket,
    wider: Wider,
}

/// The places of the networks around a queue.
type Wider = ArrayVec<Place, { LEVELS_MAX - 1 }>;

/// A wider prefix, which spans several queues.
struct Network {
    prefix: Prefix,
    /// How many queues it spans.
    queues: usize,
    /// Servers that have been asked, or wait for their turn.
    in_flight: usize,
    pace: TokenBucket,
}

impl Queues {
    /// Sets the networks in which the limits of wider prefixes do not apply, and counts again what is in flight.
    pub fn set_exempt(&mut self, exempt: Arc<Networks>) {
        self.exempt = exempt;
        self.networks.clear();
        self.network_places.clear();
        let Queues { queues, places, networks, network_places, exempt, .. } = self;
        for (prefix, place) in places {
            if let Some(queue) = queues.get_mut(*place) {
                queue.wider = around(*prefix, exempt, networks, network_places);
                each(&queue.wider, networks, |network| network.in_flight += queue.in_flight);
            }
        }
    }

    /// Adds a query that is in flight until [`Queues::leave`]: the place of its queue.
    pub fn join(&mut self, ip: IpAddr) -> Place {
        let Queues { queues, places, networks, network_places, exempt, .. } = self;
        let prefix = Prefix::narrowest(ip);
        let place = match places.entry(prefix) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let wider = around(prefix, exempt, networks, network_places);
                *new.insert(queues.insert(PrefixQueue { wider, ..PrefixQueue::default() }))
            }
        };
        self.count(place, |in_flight| in_flight.saturating_add(1));
        place
    }

    pub fn leave(&mut self, place: Place) {
        self.count(place, |in_flight| in_flight.saturating_sub(1));
    }

    fn count(&mut self, place: Place, count: impl Fn(usize) -> usize) {
        let Some(queue) = self.queues.get_mut(place) else { return };
        queue.in_flight = count(queue.in_flight);
        each(&queue.wider, &mut self.networks, |network| network.in_flight = count(network.in_flight));
    }

    /// Adds a question at the end of its queue, or at its head.
    pub fn push(&mut self, place: Place, turn: Turn, first: bool) {
        let Some(queue) = self.queues.get_mut(place) else { return };
        if first {
            queue.questions.push_front(turn)
        } else {
            queue.questions.push_back(turn)
        }
        if !std::mem::replace(&mut queue.scheduled, true) {
            if first { self.ready.push_front(place) } else { self.ready.push_back(place) }
        }
    }

    /// Takes the next question that the rate limits allow. If it is sent, [`Queues::sent`] has to follow.
    pub fn next(&mut self, now_us: u64, per_ip_per_second: u32) -> Option<(Place, Turn)> {
        while let Some(&(rested_us, place)) = self.resting.first()
            && rested_us <= now_us
        {
            self.resting.pop_first();
            self.ready.push_back(place);
        }
        loop {
            let place = self.ready.pop_front()?;
            let Some(queue) = self.queues.get_mut(place) else { continue };
            let mut rest_us = queue.pace.wait_us(now_us, per_ip_per_second);
            each(&queue.wider, &mut self.networks, |Network { prefix, pace, .. }| {
                rest_us = rest_us.max(pace.wait_us(now_us, prefix.limit(per_ip_per_second)));
            });
            if rest_us > 0 {
                self.resting.insert((now_us + rest_us, place));
                continue;
            }
            let next = queue.questions.pop_front();
            queue.scheduled = !queue.questions.is_empty();
            if queue.scheduled {
                self.ready.push_back(place);
            }
            if let Some(turn) = next {
                return Some((place, turn));
            }
        }
    }

    /// Counts a question of this queue.
    pub fn sent(&mut self, place: Place) {
        let Some(queue) = self.queues.get_mut(place) else { return };
        queue.pace.take();
        each(&queue.wider, &mut self.networks, |network| network.pace.take());
    }

    /// How many queues there are, and how many of them have questions that may be sent.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        (self.queues.len(), self.ready.len())
    }

    /// Whether questions wait.
    pub fn has_questions(&self) -> bool {
        !self.ready.is_empty() || !self.resting.is_empty()
    }

    /// Whether less than a second's worth of queries is in flight to every prefix around the address.
    pub fn has_room_for(&self, ip: IpAddr, per_ip_per_second: u32) -> bool {
        let is_free = |network: &Network| network.in_flight < network.prefix.limit(per_ip_per_second) as usize;
        let is_free = |place: &Place| self.networks.get(*place).is_none_or(is_free);
        match self.places.get(&Prefix::narrowest(ip)).and_then(|place| self.queues.get(*place)) {
            Some(queue) => queue.in_flight < per_ip_per_second as usize && queue.wider.iter().all(is_free),
            None => {
                let mut wider =
                    wider(Prefix::narrowest(ip), &self.exempt).filter_map(|prefix| self.network_places.get(&prefix));
                per_ip_per_second > 0 && wider.all(is_free)
            }
        }
    }

    /// Forgets the rate limits of prefixes that are idle, if there are more than this.
    pub fn forget_idle(&mut self, now_us: u64, most: usize) {
        if self.places.len() <= most {
            return;
        }
        let Queues { queues, places, networks, network_places, .. } = self;
        places.retain(|_, place| {
            let is_used =
                |queue: &PrefixQueue| queue.scheduled || queue.in_flight > 0 || queue.pace.at_us + IDLE_US > now_us;
            if queues.get(*place).is_some_and(is_used) {
                return true;
            }
            // A network is as idle as the last of its queues.
            for network in queues.try_remove(*place).into_iter().flat_map(|queue| queue.wider) {
                let Some(about) = networks.get_mut(network) else { continue };
                about.queues -= 1;
                if about.queues == 0 {
                    network_places.remove(&about.prefix);
                    networks.try_remove(network);
                }
            }
            false
        });
    }
}

/// Does something with each network around a queue.
fn each(wider: &Wider, networks: &mut Slab<Network>, mut act: impl FnMut(&mut Network)) {
    wider.iter().for_each(|place| networks.get_mut(*place).into_iter().for_each(&mut act));
}

/// The networks around a new queue, each of which spans one queue more.
fn around(
    prefix: Prefix,
    exempt: &Networks,
    networks: &mut Slab<Network>,
    places: &mut HashMap<Prefix, Place>,
) -> Wider {
    let mut place = |prefix| {
        let new = || networks.insert(Network { prefix, queues: 0, in_flight: 0, pace: TokenBucket::default() });
        let place = *places.entry(prefix).or_insert_with(new);
        networks.get_mut(place).into_iter().for_each(|network| network.queues += 1);
        place
    };
    wider(prefix, exempt).map(&mut place).collect()
}

/// The prefixes around a narrowest one whose limits apply: none, if an address in it is exempt.
fn wider(prefix: Prefix, exempt: &Networks) -> impl Iterator<Item = Prefix> + use<> {
    let is_exempt = exempt.touches(prefix);
    Prefix::all(prefix.network(), &Networks::NONE).into_iter().skip(1).filter(move |_| !is_exempt)
}

/// The questions to one prefix. Most have one server, whose turn takes no allocation.
#[derive(Default)]
struct Turns {
    /// None: there are no others either.
    first: Option<Turn>,
    others: VecDeque<Turn>,
}

impl Turns {
    fn push_front(&mut self, turn: Turn) {
        if let Some(first) = self.first.replace(turn) {
            self.others.push_front(first);
        }
    }

    fn push_back(&mut self, turn: Turn) {
        match self.first {
            Some(_) => self.others.push_back(turn),
            None => self.first = Some(turn),
        }
    }

    fn pop_front(&mut self) -> Option<Turn> {
        std::mem::replace(&mut self.first, self.others.pop_front())
    }

    fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

/// A rate limit with bursts of at most a twentieth of a second's worth.
#[derive(Default)]
pub(super) struct TokenBucket {
    at_us: u64,
    /// In millionths of a token.
    level: u64,
}

impl TokenBucket {
    pub fn has(&mut self, now_us: u64, per_second: u32) -> bool {
        let most = (u64::from(per_second) * 50_000).max(1_000_000);
        let gained = now_us.saturating_sub(self.at_us).saturating_mul(per_second.into());
        // A bucket is full when first used.
        self.level = if self.at_us == 0 { most } else { self.level.saturating_add(gained).min(most) };
        self.at_us = now_us;
        self.level >= 1_000_000
    }

    pub fn take(&mut self) {
        self.level = self.level.saturating_sub(1_000_000);
    }

    /// How long until there is a token; 0 if there is one now.
    fn wait_us(&mut self, now_us: u64, per_second: u32) -> u64 {
        if self.has(now_us, per_second) { 0 } else { self.rest_us(per_second) }
    }

    /// How long until the next token, if there is none.
    fn rest_us(&self, per_second: u32) -> u64 {
        1_000_000u64.saturating_sub(self.level).div_ceil(u64::from(per_second).max(1)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn turn(serial: u64) -> Turn {
        Turn { serial, place: 0 }
    }

    #[test]
    fn an_empty_bucket_knows_when_it_has_a_token_again() {
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.wait_us(1, 20), 0, "full when first used");
        bucket.take();
        assert_eq!(bucket.wait_us(1, 20), 50_000);
        assert_eq!((bucket.wait_us(50_000, 20), bucket.wait_us(50_001, 20)), (1, 0));
    }

    #[test]
    fn idle_queues_are_forgotten_once_there_are_many_and_what_is_in_use_is_kept() {
        const NOW_US: u64 = 10_000_000;
        const MOST: usize = 1_000;
        let mut queues = Queues::default();
        let ask = |queues: &mut Queues, number: u32, now_us| {
            let place = queues.join(ip(number));
            queues.push(place, turn(1), false);
            assert_eq!(queues.next(now_us, 1_000_000), Some((place, turn(1))));
            queues.sent(place);
            place
        };
        // In use: asked a moment ago, in flight, or with a question to send.
        let recent = ask(&mut queues, 0x100, NOW_US - IDLE_US + 1);
        queues.leave(recent);
        ask(&mut queues, 0x200, 1);
        let waiting = queues.join(ip(0x300));
        queues.push(waiting, turn(2), false);
        queues.leave(waiting);
        let counts = |queues: &Queues| {
            let all = (queues.queues.len(), queues.networks.len());
            assert_eq!((queues.places.len(), queues.network_places.len()), all);
            all
        };
        // Idle, the longest and the shortest time; two in each network, and one in the network of one that is used.
        let idle = |queues: &mut Queues, number, now_us| {
            let place = queues.join(ip(number));
            queues.sent(place);
            queues.queues[place].pace.at_us = now_us;
            queues.leave(place);
        };
        idle(&mut queues, 0x101, 1);
        for number in 4..MOST as u32 {
            idle(&mut queues, (number & !1) << 8 | number & 1, NOW_US - IDLE_US);
        }
        assert_eq!(counts(&queues).0, MOST);
        queues.forget_idle(NOW_US, MOST);
        assert_eq!(counts(&queues).0, MOST, "not many yet");
        idle(&mut queues, 0x102, NOW_US - IDLE_US);
        queues.forget_idle(NOW_US, MOST);
        assert_eq!(counts(&queues), (3, 3), "those in use");
        assert!(queues.networks.iter().all(|(_, network)| network.queues == 1));
        // What was forgotten begins anew.
        let again = queues.join(ip(0x400));
        queues.push(again, turn(3), true);
        assert_eq!(queues.next(NOW_US, 1_000_000), Some((again, turn(3))), "ahead of the one that waits");
    }

    #[test]
    fn an_exempt_address_exempts_its_queue_from_wider_limits_before_and_after_it_is_asked() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut queues = Queues::default();
        queues.set_exempt(Arc::new(Networks::new(&["2001:db8:1:2::10/128".parse().unwrap()])));
        for other in 0..16 {
            queues.join(ip(&format!("2001:db8:1:{:x}::1", 0x10 + other)));
        }
        for _ in 0..2 {
            assert!(!queues.has_room_for(ip("2001:db8:1:3::1"), 1), "the /48 is full");
            assert!(queues.has_room_for(ip("2001:db8:1:2::10"), 3) && queues.has_room_for(ip("2001:db8:1:2::9"), 3));
            queues.join(ip("2001:db8:1:2::10"));
        }
        assert!(!queues.has_room_for(ip("2001:db8:1:2::10"), 2), "its own limit holds");
    }

    #[test]
    fn what_is_in_flight_is_counted_again_for_other_exempt_networks() {
        let mut queues = Queues::default();
        let joined: Vec<_> = (0..16).map(|number| queues.join(ip(number))).collect();
        assert!(!queues.has_room_for(ip(200), 2), "the network has 8 times as much");
        assert!(!queues.has_room_for(ip(3), 1) && queues.has_room_for(ip(3), 3) && queues.has_room_for(ip(0x100), 2));
        queues.set_exempt(Arc::new(Networks::new(&["10.0.0.0/8".parse().unwrap()])));
        assert!(queues.has_room_for(ip(200), 2) && queues.networks.is_empty());
        queues.set_exempt(Arc::default());
        assert!(!queues.has_room_for(ip(200), 2));
        joined.into_iter().for_each(|place| queues.leave(place));
        assert!(queues.has_room_for(ip(200), 2));
        assert!(queues.networks.iter().all(|(_, network)| (network.queues, network.in_flight) == (16, 0)));
    }

    proptest::proptest! {
        #[test]
        fn turns_are_taken_in_their_order(steps in proptest::collection::vec(0..3u8, 0..60)) {
            let (mut turns, mut expected) = (Turns::default(), VecDeque::new());
            for (number, step) in (1..).zip(steps) {
                match step {
                    0 => {
                        turns.push_front(turn(number));
                        expected.push_front(turn(number));
                    }
                    1 => {
                        turns.push_back(turn(number));
                        expected.push_back(turn(number));
                    }
                    _ => proptest::prop_assert_eq!(turns.pop_front(), expected.pop_front()),
                }
                proptest::prop_assert_eq!(turns.is_empty(), expected.is_empty());
            }
        }
    }
}

//! A query in flight: its tries, and which datagrams from its server are accepted.
//!
//! A nonce that comes back on the lane from which it was sent proves the address. Facts without a nonce can be forged. They
//! are accepted only if the nonce of a question for facts came back on the same lane shortly before them, and no different
//! facts arrive for a moment after them. Facts that arrive before their nonce spend that try. Facts that differ, or that
//! arrive on a lane from which none were requested, are forged: they spend all tries in flight. A spent try can still prove
//! the address, but facts have to be requested again, from another lane.
//!
//! Some games return no nonce ([`ProvenBy::Port`]). There the lane alone shows that a question was asked: their answers count on
//! a lane from which one was sent, and their facts have to settle, too.

use std::hash::Hasher;
use std::ops::RangeInclusive;

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher13;

use super::{Failure, Lane, Place, Response, TRIES_MAX};
use crate::model::{Address, Facts};
use crate::protocols::{Ask, Fault, Heard, ProvenBy, Query, Question, fault};

/// How long facts may take after their nonce, in round trips and within these bounds. A server sends both at once; the
/// shorter this window is, the harder it is to inject forged facts when the real ones are lost.
const FACTS_RTTS: u64 = 2;
const FACTS_US_MIN: u64 = 100_000;
const FACTS_US_MAX: u64 = 500_000;
/// How often a server may want its question again with a token.
const AGAIN_MAX: u8 = 2;
/// How long to wait for conflicting facts: one round trip, within these bounds.
pub(super) const SETTLE_US: RangeInclusive<u64> = 20_000..=200_000;

pub(super) struct Pending<T> {
    pub address: Address,
    /// Distinguishes this question from earlier ones to the same address.
    pub serial: u64,
    /// Where its queue is.
    pub queue: Place,
    pub tag: T,
    /// No try has timed out, and facts are still awaited.
    pub fresh: bool,
    /// A try is waiting to be sent.
    pub queued: bool,
    /// The last try timed out while facts were due: if they do not arrive, the query ends.
    pub overdue: bool,
    /// The first question is asked together with the second: now, or from the second try on.
    pub both: bool,
    pub both_later: bool,
    /// So many lanes after the first, which is one of another of our addresses.
    pub source: Lane,
    /// When the first try of the first question was sent.
    pub began_us: Option<u64>,
    query: &'static dyn Query,
    ask: Ask,
    /// The tries of this question.
    tries: ArrayVec<Try, { TRIES_MAX as usize }>,
    rtt_us: Option<u32>,
    /// The server's token, and how often it has given one.
    token: Option<u32>,
    tokens: u8,
    /// Facts from the answer to the first question.
    some: Option<Box<Facts<'static>>>,
    /// Facts from the answer to the second, if it came before the first.
    whole: Option<Box<Facts<'static>>>,
    /// The try of both questions whose first answer has arrived: the second may follow.
    half_answered: Option<Try>,
    claim: Option<Claim>,
    /// The digest of the last answer that is known, and of the one that was accepted; 0: none.
    known_digest: u64,
    digest: u64,
    /// Conflicting or unsolicited answers arrived.
    disputed: bool,
    fault: Option<Fault>,
}

struct Try {
    nonce: u32,
    lane: Lane,
    sent_us: u64,
    /// When the nonce came back.
    proven_us: Option<u64>,
    /// No facts are accepted for this try any more.
    spent: bool,
}

/// Facts that are accepted unless different ones arrive.
struct Claim {
    digest: u64,
    /// None: those that are known.
    facts: Option<Box<Facts<'static>>>,
    settled_us: u64,
}

/// How answers are read.
pub(super) struct Reading {
    pub with_details: bool,
    /// For how long facts without a nonce settle: a round trip, within these bounds.
    pub settle_us: RangeInclusive<u64>,
    /// Secret: nonces and digests follow from it.
    pub key: [u8; 16],
}

/// What to do after a datagram or a timeout.
pub(super) enum Next {
    Wait,
    /// Call [`Pending::look`] at this time.
    LookAt(u64),
    /// Ask the next question: for facts, because the address is proven, or the same with the server's token.
    Ask,
    /// The server is there; there are no facts to wait for.
    Alive,
    /// No try so far will yield facts.
    NoFacts,
    Believe(Box<Facts<'static>>),
    /// The server says what it said the last time.
    Same,
}

impl<T> Pending<T> {
    pub fn new(
        address: Address,
        serial: u64,
        queue: Place,
        query: &'static dyn Query,
        ask: Ask,
        known_digest: u64,
        tag: T,
    ) -> Pending<T> {
        Pending {
            address,
            serial,
            queue,
            tag,
            fresh: true,
            queued: true,
            overdue: false,
            both: false,
            both_later: false,
            source: 0,
            began_us: None,
            query,
            ask,
            tries: ArrayVec::new(),
            rtt_us: None,
            token: None,
            tokens: 0,
            some: None,
            whole: None,
            half_answered: None,
            claim: None,
            known_digest,
            digest: 0,
            disputed: false,
            fault: None,
        }
    }

    /// The next try: its question, and the second one if both are asked at once. None if all tries are used up.
    pub fn send(&mut self, now_us: u64, lane: Lane, key: &[u8; 16]) -> Option<(Question, Option<Question>)> {
        (self.queued, self.overdue) = (false, false);
        if !self.tries.is_empty() && std::mem::take(&mut self.both_later) {
            (self.both, self.ask) = (true, Ask::Proof);
        }
        self.began_us.get_or_insert(now_us);
        let mut hasher = SipHasher13::new_with_key(key);
        hasher.write_u64(self.serial);
        hasher.write_u8(self.tries.len() as u8);
        let nonce = hasher.finish() as u32 & self.query.nonce_mask();
        let sent = Try { nonce, lane, sent_us: now_us, proven_us: None, spent: false };
        self.tries.try_push(sent).ok()?;
        Some((self.question(self.ask, nonce), self.asks_both().then(|| self.question(Ask::Facts, nonce))))
    }

    fn question(&self, ask: Ask, nonce: u32) -> Question {
        let mut question = Question::new();
        match self.token {
            Some(token) => self.query.ask_with(ask, nonce, token, &mut question),
            None => self.query.ask(ask, nonce, &mut question),
        }
        question
    }

    /// Whether this is a question that was sent and has not been answered yet.
    pub fn has_sent(&self, bytes: &[u8]) -> bool {
        let second = self.asks_both().then_some(Ask::Facts);
        let asks = || [Some(self.ask), second].into_iter().flatten();
        self.tries.iter().any(|sent| asks().any(|ask| self.question(ask, sent.nonce)[..] == *bytes))
    }

    fn asks_both(&self) -> bool {
        self.both && self.ask == Ask::Proof
    }

    /// The interval that the game requires between two questions.
    pub fn spacing_us(&self) -> u64 {
        self.query.spacing_us()
    }

    /// What the game wants after this answer.
    pub fn farewell(&self, answer: &[u8], last: &mut Question) {
        self.query.farewell(answer, last);
    }

    pub fn tries_sent(&self) -> u8 {
        self.tries.len() as u8
    }

    /// Takes a datagram from the server's address.
    pub fn hear(&mut self, now_us: u64, lane: Lane, bytes: &[u8], reading: &Reading) -> Next {
        let Reading { with_details, settle_us, key } = reading;
        if self.known_digest != 0 && self.query.is_without_nonce(bytes) && digest(key, bytes) == self.known_digest {
            return self.claim(now_us, lane, settle_us, self.known_digest, None);
        }
        let heard = if *with_details { self.query.hear(bytes) } else { self.query.hear_briefly(bytes) };
        match heard {
            Err(wrong) => {
                self.fault = Some(wrong);
                Next::Wait
            }
            Ok(Heard::Whole { nonce, facts }) => {
                let is_half = self.half_answered.as_ref().is_some_and(|sent| sent.nonce == nonce && sent.lane == lane);
                match is_half || self.prove(now_us, lane, nonce).is_some() {
                    true if self.asks_both() => {
                        self.whole.get_or_insert_with(|| Box::new(facts.into_owned()));
                        Next::Wait
                    }
                    true => Next::Believe(Box::new(facts.into_owned())),
                    false => Next::Wait,
                }
            }
            Ok(Heard::Some { nonce, facts }) => match self.prove(now_us, lane, nonce) {
                Some(number) if self.ask == Ask::Proof => {
                    self.some = Some(Box::new(facts.into_owned()));
                    if let Some(whole) = self.whole.take() {
                        return Next::Believe(whole);
                    }
                    if self.asks_both() {
                        self.half_answered = self.tries.swap_pop(number);
                    }
                    self.proven(now_us, number)
                }
                // The server has no more than this.
                Some(_) => Next::Believe(Box::new(facts.into_owned())),
                None => Next::Wait,
            },
            Ok(Heard::Proof { nonce }) => match self.prove(now_us, lane, nonce) {
                Some(number) => self.proven(now_us, number),
                None => Next::Wait,
            },
            Ok(Heard::Alive) => match self.heard_on(now_us, lane) {
                true => Next::Alive,
                false => {
                    self.disputed = true; // somebody tries one port after another
                    Next::Wait
                }
            },
            Ok(Heard::Again { token }) => self.again(lane, token),
            Ok(Heard::Facts(facts)) => self.claim(now_us, lane, settle_us, digest(key, bytes), Some(facts)),
        }
    }

    /// The index of the try that sent this nonce from this lane.
    fn prove(&mut self, now_us: u64, lane: Lane, nonce: u32) -> Option<usize> {
        let found = self.tries.iter().position(|sent| sent.nonce == nonce && sent.lane == lane);
        if let Some(sent) = found.and_then(|number| self.tries.get(number)) {
            let rtt_us = now_us.saturating_sub(sent.sent_us).min(u32::MAX.into()) as u32;
            self.rtt_us.get_or_insert(rtt_us);
        } else if self.rtt_us.is_none() {
            // After the first proof, an unknown nonce may be a duplicate of it.
            self.fault = Some(fault("the nonce is not one that was sent: the answer is forged or late"));
        }
        found
    }

    /// Whether a question was sent from this lane, where the lane is all that shows it.
    pub fn is_asked_on(&self, lane: Lane) -> bool {
        self.query.proven_by() == ProvenBy::Port && self.tries.iter().any(|sent| sent.lane == lane)
    }

    /// An answer without a nonce arrived on this lane: it belongs to the last try that was sent from there, if there is one.
    fn heard_on(&mut self, now_us: u64, lane: Lane) -> bool {
        if !self.is_asked_on(lane) {
            return false;
        }
        if let Some(sent) = self.tries.iter_mut().rfind(|sent| sent.lane == lane) {
            sent.proven_us.get_or_insert(now_us);
            let rtt_us = now_us.saturating_sub(sent.sent_us).min(u32::MAX.into()) as u32;
            self.rtt_us.get_or_insert(rtt_us);
        }
        true
    }

    /// The server wants its token back before it answers.
    fn again(&mut self, lane: Lane, token: u32) -> Next {
        if !self.is_asked_on(lane) || self.tokens >= AGAIN_MAX {
            return Next::Wait;
        }
        self.tokens += 1;
        self.token = Some(token);
        self.tries.clear();
        Next::Ask
    }

    /// A nonce came back without facts.
    fn proven(&mut self, now_us: u64, number: usize) -> Next {
        if self.ask == Ask::Proof {
            self.ask = Ask::Facts;
            self.tries.clear();
            self.fault = None;
            return Next::Ask;
        }
        let facts_us = self.facts_us();
        match self.tries.get_mut(number) {
            Some(sent) if sent.proven_us.is_none() => {
                sent.proven_us = Some(now_us);
                if sent.spent { self.no_facts_yet() } else { Next::LookAt(now_us + facts_us) }
            }
            _ => Next::Wait, // a duplicate
        }
    }

    /// Facts arrived without a nonce.
    fn claim(
        &mut self,
        now_us: u64,
        lane: Lane,
        settle_us: &RangeInclusive<u64>,
        digest: u64,
        facts: Option<Facts<'_>>,
    ) -> Next {
        if self.query.proven_by() == ProvenBy::Port {
            self.heard_on(now_us, lane);
        }
        let facts_us = self.facts_us();
        // Where there is no nonce, both questions are the same.
        let asked_for_facts = self.ask == Ask::Facts || self.query.proven_by() == ProvenBy::Port;
        let mut asked = self.tries.iter_mut().filter(|sent| asked_for_facts && sent.lane == lane).peekable();
        if asked.peek().is_none() {
            return self.dispute();
        }
        if let Some(claim) = &self.claim {
            return if claim.digest == digest { Next::Wait } else { self.dispute() };
        }
        let mut is_due = false;
        for sent in asked.filter(|sent| !sent.spent) {
            is_due |= sent.proven_us.is_some_and(|proven_us| now_us < proven_us + facts_us);
            sent.spent = sent.proven_us.is_none();
        }
        if !is_due {
            return Next::Wait;
        }
        let rtt_us = u64::from(self.rtt_us.unwrap_or(0));
        // Without a nonce, this is all that tells facts from forged ones.
        let settle_us = if self.query.proven_by() == ProvenBy::Port { &SETTLE_US } else { settle_us };
        let settled_us = now_us + rtt_us.clamp(*settle_us.start(), *settle_us.end());
        self.claim = Some(Claim { digest, facts: facts.map(|facts| Box::new(facts.into_owned())), settled_us });
        Next::LookAt(settled_us)
    }

    fn dispute(&mut self) -> Next {
        self.disputed = true;
        self.fault = Some(fault("conflicting or unsolicited answers: someone is forging them"));
        self.claim = None;
        self.tries.iter_mut().for_each(|sent| sent.spent = true);
        self.no_facts_yet()
    }

    /// The time given by [`Next::LookAt`] has come.
    pub fn look(&mut self, now_us: u64) -> Next {
        if let Some(claim) = self.claim.take_if(|claim| claim.settled_us <= now_us) {
            self.digest = claim.digest;
            return claim.facts.map_or(Next::Same, Next::Believe);
        }
        let facts_us = self.facts_us();
        for sent in &mut self.tries {
            sent.spent |= sent.proven_us.is_some_and(|proven_us| proven_us + facts_us <= now_us);
        }
        self.no_facts_yet()
    }

    fn no_facts_yet(&self) -> Next {
        let has_asked = self.ask == Ask::Facts || self.query.proven_by() == ProvenBy::Port;
        let is_proven = has_asked && self.rtt_us.is_some();
        let is_over = self.tries.iter().all(|sent| sent.spent) || self.overdue;
        if is_proven && is_over && !self.is_listening() { Next::NoFacts } else { Next::Wait }
    }

    /// Facts are due, or have arrived and have to settle.
    pub fn is_listening(&self) -> bool {
        self.claim.is_some() || self.tries.iter().any(|sent| sent.proven_us.is_some() && !sent.spent)
    }

    pub fn has_claim(&self) -> bool {
        self.claim.is_some()
    }

    fn facts_us(&self) -> u64 {
        (u64::from(self.rtt_us.unwrap_or(0)) * FACTS_RTTS).clamp(FACTS_US_MIN, FACTS_US_MAX)
    }

    /// The result of the query.
    pub fn end(self, facts: Option<Box<Facts<'static>>>) -> (T, Result<Response, Failure>) {
        let facts = match (facts, self.some) {
            // The answer with all facts may not say which game it is.
            (Some(mut facts), Some(some)) if facts.game.is_empty() => {
                facts.game = some.game;
                Some(facts)
            }
            // If one answer is missing, the other one's facts are better than none.
            (facts, some) => facts.or(self.whole).or(some),
        };
        let fault = if facts.is_some() || self.digest != 0 { None } else { self.fault };
        let result = match (self.rtt_us, fault) {
            (Some(rtt_us), fault) => {
                let (disputed, retried) = (self.disputed, self.tries.len() > 1);
                Ok(Response { rtt_us, facts, fault, disputed, retried, digest: self.digest })
            }
            (None, Some(fault)) => Err(Failure::Bad(fault)),
            (None, None) => Err(Failure::Silent),
        };
        (self.tag, result)
    }
}

/// Identifies an answer. Never 0.
fn digest(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(bytes);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::testing::two_steps;

    const KEY: [u8; 16] = [3; 16];

    fn asked_for_facts() -> Pending<()> {
        let address = Address::new([192, 0, 2, 1].into(), 1).unwrap();
        let mut pending = Pending::new(address, 1, 0, two_steps::QUERY, Ask::Facts, 0, ());
        pending.send(0, 7, &KEY).unwrap();
        pending
    }

    #[test]
    fn facts_may_take_two_round_trips_within_bounds() {
        let mut pending = asked_for_facts();
        for (rtt_us, facts_us) in [(None, 100_000), (Some(100_000), 200_000), (Some(1_000_000), 500_000)] {
            pending.rtt_us = rtt_us;
            assert_eq!(pending.facts_us(), facts_us, "{rtt_us:?}");
        }
    }

    #[test]
    fn a_nonce_that_comes_twice_gives_no_more_time() {
        let mut pending = asked_for_facts();
        assert!(matches!(pending.proven(10_000, 0), Next::LookAt(110_000)));
        assert!(matches!(pending.proven(50_000, 0), Next::Wait));
        assert_eq!(pending.tries[0].proven_us, Some(10_000));
    }

    #[test]
    fn facts_are_awaited_from_their_nonce_until_they_are_late_or_settled() {
        let mut pending = asked_for_facts();
        assert!(!pending.is_listening());
        pending.proven(10_000, 0);
        assert!(pending.is_listening());
        pending.tries[0].spent = true;
        assert!(!pending.is_listening());
        pending.claim = Some(Claim { digest: 1, facts: None, settled_us: 20_000 });
        assert!(pending.is_listening(), "they have to settle");
    }

    #[test]
    fn a_dispute_ends_nothing_before_the_address_is_proven() {
        let mut pending = asked_for_facts();
        assert!(matches!(pending.dispute(), Next::Wait));
        pending.rtt_us = Some(1);
        assert!(matches!(pending.dispute(), Next::NoFacts));
    }

    #[test]
    fn the_first_answer_names_the_game_if_the_second_does_not() {
        let named = |game: &'static str| Facts { game: game.into(), ..Facts::default() };
        for (second, expected) in [("", "first"), ("second", "second")] {
            let mut pending = asked_for_facts();
            pending.rtt_us = Some(1);
            pending.some = Some(Box::new(named("first")));
            let facts = pending.end(Some(Box::new(named(second)))).1.unwrap().facts.unwrap();
            assert_eq!(facts.game, expected);
        }
    }
}

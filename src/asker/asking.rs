//! One server while it is being asked: its tries, and which of the datagrams heard from it count.
//!
//! A nonce counts on the lane from which it was sent, and proves the address. Facts without a nonce can come from anybody.
//! They are believed only when the nonce of a question for facts came back on the same lane shortly before them, and
//! nothing different is heard for a moment after them. Facts that come before their nonce spend that try. Facts that
//! differ, or that come to a lane from which nobody asked for any, are a forger's: they spend all tries under way. A spent
//! try can still prove the address, but facts have to be asked for again, from another lane.

use std::hash::Hasher;

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher13;

use super::{Failure, Lane, Response, TRIES_MAX};
use crate::model::Facts;
use crate::protocols::{Ask, Fault, Heard, Query, Question, fault};

/// How long facts may take after their nonce, in round trips and within these bounds. A server sends both at once; the
/// shorter this is, the less time there is to slip in others when they are lost.
const FACTS_RTTS: u64 = 2;
const FACTS_US_MIN: u64 = 100_000;
const FACTS_US_MAX: u64 = 500_000;
/// How long to wait for facts that differ: one round trip, within these bounds.
const SETTLE_US_MIN: u64 = 20_000;
const SETTLE_US_MAX: u64 = 200_000;

pub(super) struct Asking<T> {
    /// Tells this question from earlier ones to the same address.
    pub serial: u64,
    pub tag: T,
    /// No try of it has timed out, and facts are still awaited.
    pub fresh: bool,
    /// A try waits to be sent.
    pub queued: bool,
    /// The last try timed out while facts were due: when those do not come, nothing else is waited for.
    pub overdue: bool,
    /// When the first try of the first question was sent.
    pub began_us: Option<u64>,
    query: &'static dyn Query,
    ask: Ask,
    /// The tries of this question.
    tries: ArrayVec<Try, { TRIES_MAX as usize }>,
    rtt_us: Option<u32>,
    /// What the answer to the first question said already.
    some: Option<Box<Facts<'static>>>,
    claim: Option<Claim>,
    /// Forged facts were received.
    disputed: bool,
    fault: Option<Fault>,
}

struct Try {
    nonce: u32,
    lane: Lane,
    sent_us: u64,
    /// When its nonce came back.
    proven_us: Option<u64>,
    /// Its facts no longer count.
    spent: bool,
}

/// Facts that are believed if nothing different is heard.
struct Claim {
    digest: u64,
    facts: Box<Facts<'static>>,
    settled_us: u64,
}

/// What a datagram, or the time, leads to.
pub(super) enum Next {
    Wait,
    /// Call [`Asking::look`] at this time.
    LookAt(u64),
    /// The address is proven; the question for facts is next.
    AskForFacts,
    /// None of the tries will bring facts.
    NoFacts,
    Believe(Facts<'static>),
}

impl<T> Asking<T> {
    pub fn new(serial: u64, query: &'static dyn Query, ask: Ask, tag: T) -> Asking<T> {
        Asking {
            serial,
            tag,
            fresh: true,
            queued: true,
            overdue: false,
            began_us: None,
            query,
            ask,
            tries: ArrayVec::new(),
            rtt_us: None,
            some: None,
            claim: None,
            disputed: false,
            fault: None,
        }
    }

    /// The next try. None when there were enough.
    pub fn send(&mut self, now_us: u64, lane: Lane, key: &[u8; 16]) -> Option<Question> {
        (self.queued, self.overdue) = (false, false);
        self.began_us.get_or_insert(now_us);
        let mut hasher = SipHasher13::new_with_key(key);
        hasher.write_u64(self.serial);
        hasher.write_u8(self.tries.len() as u8);
        let nonce = hasher.finish() as u32;
        let sent = Try { nonce, lane, sent_us: now_us, proven_us: None, spent: false };
        self.tries.try_push(sent).ok()?;
        let mut question = Question::new();
        self.query.ask(self.ask, nonce, &mut question);
        Some(question)
    }

    /// How long to wait between two questions.
    pub fn spacing_us(&self) -> u64 {
        self.query.spacing_us()
    }

    pub fn tries_sent(&self) -> u8 {
        self.tries.len() as u8
    }

    /// Takes a datagram from its address.
    pub fn hear(&mut self, now_us: u64, lane: Lane, bytes: &[u8], key: &[u8; 16]) -> Next {
        match self.query.hear(bytes) {
            Err(wrong) => {
                self.fault = Some(wrong);
                Next::Wait
            }
            Ok(Heard::Whole { nonce, facts }) => match self.prove(now_us, lane, nonce) {
                Some(_) => Next::Believe(facts.into_owned()),
                None => Next::Wait,
            },
            Ok(Heard::Some { nonce, facts }) => match self.prove(now_us, lane, nonce) {
                Some(number) if self.ask == Ask::Proof => {
                    self.some = Some(Box::new(facts.into_owned()));
                    self.proven(now_us, number)
                }
                // It has nothing more to say.
                Some(_) => Next::Believe(facts.into_owned()),
                None => Next::Wait,
            },
            Ok(Heard::Proof { nonce }) => match self.prove(now_us, lane, nonce) {
                Some(number) => self.proven(now_us, number),
                None => Next::Wait,
            },
            Ok(Heard::Facts(facts)) => {
                let mut hasher = SipHasher13::new_with_key(key);
                hasher.write(bytes);
                self.claim(now_us, lane, hasher.finish(), facts)
            }
        }
    }

    /// The try that this nonce was sent with, from this lane.
    fn prove(&mut self, now_us: u64, lane: Lane, nonce: u32) -> Option<usize> {
        let found = self.tries.iter().position(|sent| sent.nonce == nonce && sent.lane == lane);
        if let Some(sent) = found.and_then(|number| self.tries.get(number)) {
            let rtt_us = now_us.saturating_sub(sent.sent_us).min(u32::MAX.into()) as u32;
            self.rtt_us.get_or_insert(rtt_us);
        } else if self.rtt_us.is_none() {
            // Later it may be a copy of the first proof.
            self.fault = Some(fault("it does not bring back the number that was sent: forged, or late"));
        }
        found
    }

    /// A nonce came back alone.
    fn proven(&mut self, now_us: u64, number: usize) -> Next {
        if self.ask == Ask::Proof {
            self.ask = Ask::Facts;
            self.tries.clear();
            self.fault = None;
            return Next::AskForFacts;
        }
        let facts_us = self.facts_us();
        match self.tries.get_mut(number) {
            Some(sent) if sent.proven_us.is_none() => {
                sent.proven_us = Some(now_us);
                if sent.spent { self.no_facts_yet() } else { Next::LookAt(now_us + facts_us) }
            }
            _ => Next::Wait, // a copy
        }
    }

    /// Facts came without a nonce.
    fn claim(&mut self, now_us: u64, lane: Lane, digest: u64, facts: Facts<'_>) -> Next {
        let facts_us = self.facts_us();
        let asked_for_facts = self.ask == Ask::Facts;
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
        let settled_us = now_us + u64::from(self.rtt_us.unwrap_or(0)).clamp(SETTLE_US_MIN, SETTLE_US_MAX);
        self.claim = Some(Claim { digest, facts: Box::new(facts.into_owned()), settled_us });
        Next::LookAt(settled_us)
    }

    fn dispute(&mut self) -> Next {
        self.disputed = true;
        self.fault = Some(fault("answers that differ, or that nobody asked for: somebody forges them"));
        self.claim = None;
        self.tries.iter_mut().for_each(|sent| sent.spent = true);
        self.no_facts_yet()
    }

    /// A time given by [`Next::LookAt`] has come.
    pub fn look(&mut self, now_us: u64) -> Next {
        if let Some(claim) = self.claim.take_if(|claim| claim.settled_us <= now_us) {
            return Next::Believe(*claim.facts);
        }
        let facts_us = self.facts_us();
        for sent in &mut self.tries {
            sent.spent |= sent.proven_us.is_some_and(|proven_us| proven_us + facts_us <= now_us);
        }
        self.no_facts_yet()
    }

    fn no_facts_yet(&self) -> Next {
        let is_proven = self.ask == Ask::Facts && self.rtt_us.is_some();
        let is_over = self.tries.iter().all(|sent| sent.spent) || self.overdue;
        if is_proven && is_over && !self.is_listening() { Next::NoFacts } else { Next::Wait }
    }

    /// Facts are due any moment, or are there and have to settle.
    pub fn is_listening(&self) -> bool {
        self.claim.is_some() || self.tries.iter().any(|sent| sent.proven_us.is_some() && !sent.spent)
    }

    pub fn has_claim(&self) -> bool {
        self.claim.is_some()
    }

    fn facts_us(&self) -> u64 {
        (u64::from(self.rtt_us.unwrap_or(0)) * FACTS_RTTS).clamp(FACTS_US_MIN, FACTS_US_MAX)
    }

    /// The result.
    pub fn end(self, facts: Option<Facts<'static>>) -> (T, Result<Response, Failure>) {
        let facts = match (facts, self.some) {
            // The answer with all facts may not say which game it is.
            (Some(facts), Some(some)) if facts.game.is_empty() => Some(Facts { game: some.game, ..facts }),
            // Better what the first answer said than nothing.
            (facts, some) => facts.or(some.map(|some| *some)),
        };
        let fault = if facts.is_some() { None } else { self.fault };
        let result = match (self.rtt_us, fault) {
            (Some(rtt_us), fault) => Ok(Response { rtt_us, facts, fault, disputed: self.disputed }),
            (None, Some(fault)) => Err(Failure::Bad(fault)),
            (None, None) => Err(Failure::Silent),
        };
        (self.tag, result)
    }
}

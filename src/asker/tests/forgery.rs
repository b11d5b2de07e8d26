//! Answers in two datagrams, the second without a nonce, and a forger who knows everything except the nonce and the lane.

use super::*;
use crate::protocols::testing::two_steps::{QUERY, asks_for_status, forged, status, token};
use crate::protocols::{Fault, Heard, fault};

const A: Lane = 1;
const B: Lane = 2;

fn game() -> Address {
    server(3030)
}

/// A server that was proven before, asked on lane A at time 0.
fn asked() -> (Asker<u32>, Vec<u8>) {
    let mut asker = asker(SETTINGS);
    asker.ask(game(), QUERY, Ask::Facts, 0).unwrap();
    let (_, question) = asker.next_question(0, A).unwrap();
    assert!(asks_for_status(&question), "one question does both");
    (asker, token(&question))
}

fn hear(asker: &mut Asker<u32>, now_us: u64, lane: Lane, bytes: &[u8]) {
    let finished = asker.heard(now_us, lane, game().socket(), bytes);
    assert!(finished.is_none(), "at once: {finished:?}");
}

/// The result at this time.
fn ends(asker: &mut Asker<u32>, now_us: u64) -> Response {
    asker.timed_out(now_us).expect("an end").result.expect("a proof")
}

fn name(answer: &Response) -> Option<&str> {
    answer.facts.as_ref().map(|facts| &*facts.name)
}

#[test]
fn one_question_brings_the_nonce_and_then_the_status() {
    let (mut asker, token) = asked();
    hear(&mut asker, 5_000, A, &token);
    hear(&mut asker, 5_100, A, &status());
    assert_eq!((asker.fresh(), asker.in_flight()), (0, 1), "nothing more is on its way");
    hear(&mut asker, 6_000, A, &token);
    hear(&mut asker, 6_000, A, &status()); // duplicates
    assert_eq!(asker.next_timeout_us(), Some(25_100), "it settles");
    assert!(asker.timed_out(25_099).is_none() && asker.next_question(25_099, A).is_none());
    let answer = ends(&mut asker, 25_100);
    assert_eq!((answer.rtt_us, name(&answer), answer.disputed), (5_000, Some("A server"), false));
    hear(&mut asker, 26_000, A, &forged());
    assert_eq!((asker.in_flight(), asker.timed_out(10_000_000).is_none()), (0, true));
}

#[test]
fn who_asks_for_himself_lets_facts_settle_for_as_long_as_he_likes() {
    for (settles_us, rtt_us) in [(5_000, 1_000), (5_000, 60_000), (0, 0)] {
        let (mut asker, token) = asked();
        asker.settle_for(settles_us);
        hear(&mut asker, rtt_us, A, &token);
        hear(&mut asker, rtt_us, A, &status());
        assert_eq!(asker.next_timeout_us(), Some(rtt_us + settles_us), "{settles_us} {rtt_us}");
        hear(&mut asker, rtt_us, A, &forged());
        assert!(asker.timed_out(rtt_us + settles_us).is_none_or(|ended| name(&ended.result.unwrap()).is_none()));
    }
}

#[test]
fn a_first_proof_is_short_and_the_long_answer_is_asked_for_then() {
    let mut asker = asker(SETTINGS);
    asker.ask(game(), QUERY, Ask::Proof, 0).unwrap();
    let (_, first) = asker.next_question(0, A).unwrap();
    assert_eq!(first.len(), 15, r"\echo\TOKEN\");
    hear(&mut asker, 5_000, A, &token(&first));
    let (_, second) = asker.next_question(5_000, B).unwrap();
    assert!(asks_for_status(&second) && token(&second) != token(&first));
    hear(&mut asker, 6_000, A, &token(&first)); // a duplicate
    hear(&mut asker, 9_000, B, &token(&second));
    hear(&mut asker, 9_000, B, &status());
    let answer = ends(&mut asker, 29_000);
    assert_eq!((answer.rtt_us, name(&answer), answer.disputed), (5_000, Some("A server"), false));
}

#[test]
fn a_nonce_counts_only_on_the_lane_it_was_sent_from() {
    let (mut asker, token) = asked();
    hear(&mut asker, 1_000, B, &token);
    hear(&mut asker, 1_000, A, b"00000000");
    let mut finished = None;
    for second in 1..=3 {
        finished = asker.timed_out(second * 1_000_000);
        asker.next_question(second * 1_000_000, A);
    }
    assert!(matches!(finished.unwrap().result, Err(Failure::Bad(_))));

    let mut asker = super::asker(SETTINGS);
    asker.ask(server(1), one_step::QUERY, Ask::Facts, 0).unwrap();
    let (_, question) = asker.next_question(0, A).unwrap();
    let answer = one_step::answer(&question);
    assert!(asker.heard(1, B, server(1).socket(), &answer).is_none());
    assert!(asker.heard(1, A, std::net::SocketAddr::new(server(1).ip(), 0), &answer).is_none(), "port 0");
    assert!(asker.heard(1, A, server(1).socket(), &answer).is_some());
}

#[test]
fn a_lost_status_is_requested_again_at_once_and_does_not_count_as_silence() {
    let (mut asker, token_1) = asked();
    hear(&mut asker, 5_000, A, &token_1);
    assert!(asker.timed_out(104_999).is_none() && asker.next_question(104_999, B).is_none());
    assert!(asker.timed_out(105_000).is_none());
    let (_, again) = asker.next_question(105_000, B).unwrap();
    hear(&mut asker, 106_000, A, &status()); // too late
    hear(&mut asker, 110_000, B, &token(&again));
    hear(&mut asker, 110_000, B, &status());
    assert_eq!(name(&ends(&mut asker, 130_000)), Some("A server"));

    // A late status is ignored even if its timeout was not handled yet.
    let (mut asker, token_1) = asked();
    hear(&mut asker, 5_000, A, &token_1);
    hear(&mut asker, 105_000, A, &status());
    assert_eq!(asker.timed_out(900_000).map(|finished| finished.result), None);
    assert!(asker.next_question(900_000, B).is_some());

    // It never arrives: the server is alive, without facts.
    let (mut asker, token_1) = asked();
    hear(&mut asker, 5_000, A, &token_1);
    let mut finished = None;
    for now_us in (5_000..).step_by(5_000).take_while(|now_us| *now_us < 4_000_000) {
        finished = finished.or_else(|| asker.timed_out(now_us));
        if let Some((_, question)) = asker.next_question(now_us, B) {
            hear(&mut asker, now_us, B, &token(&question));
        }
    }
    assert_eq!(
        finished.unwrap().result,
        Ok(Response { rtt_us: 5_000, facts: None, fault: None, disputed: false, retried: true, digest: 0 }),
        "after three tries"
    );
    assert_eq!((asker.in_flight(), asker.has_questions()), (0, false));
}

#[test]
fn a_status_before_its_nonce_is_not_accepted() {
    let (mut asker, token_1) = asked();
    hear(&mut asker, 1_000, A, &forged());
    hear(&mut asker, 5_000, A, &token_1);
    hear(&mut asker, 5_000, A, &forged());
    let (_, again) = asker.next_question(5_000, B).expect("asked again, from another port");
    hear(&mut asker, 9_000, B, &token(&again));
    hear(&mut asker, 9_000, B, &status());
    assert_eq!(name(&ends(&mut asker, 29_000)), Some("A server"));
}

#[test]
fn of_two_different_statuses_neither_is_accepted() {
    for order in [[forged(), status()], [status(), forged()]] {
        let (mut asker, token_1) = asked();
        let mut sent = token_1;
        let mut lane = A;
        let mut finished = None;
        for round in 0..3u64 {
            let now_us = 5_000 + round * 10_000;
            hear(&mut asker, now_us, lane, &sent);
            hear(&mut asker, now_us, lane, &order[0]);
            finished = asker.heard(now_us + 1_000, lane, game().socket(), &order[1]);
            if let Some((_, again)) = asker.next_question(now_us + 1_000, lane + 1) {
                (sent, lane) = (token(&again), lane + 1);
            }
        }
        let answer = finished.expect("the end of its tries").result.unwrap();
        assert_eq!((&answer.facts, answer.disputed), (&None, true));
        assert!(answer.fault.unwrap().contains("forging"));
        assert_eq!((asker.in_flight(), asker.has_questions()), (0, false));
    }
}

#[test]
fn after_a_forgery_the_next_try_may_be_accepted_and_the_forgery_is_reported() {
    let (mut asker, token_1) = asked();
    hear(&mut asker, 5_000, A, &token_1);
    hear(&mut asker, 5_000, A, &forged());
    hear(&mut asker, 5_500, A, &status());
    let (_, again) = asker.next_question(6_000, B).unwrap();
    hear(&mut asker, 7_000, A, &forged()); // to the port that is known by now
    hear(&mut asker, 11_000, B, &token(&again));
    hear(&mut asker, 11_000, B, &status());
    let answer = ends(&mut asker, 31_000);
    assert_eq!((name(&answer), answer.disputed, answer.fault), (Some("A server"), true, None));
}

/// The same status arrives on many lanes: a forger tries all ports.
#[test]
fn a_forger_who_tries_many_ports_changes_nothing() {
    for hits in 1..100 {
        let (mut asker, token_1) = asked();
        // Among 100 ports is the right one; the nonce comes back in between; the real status is lost.
        for port in 0..100 {
            let lane = if port == hits { A } else { 100 + port };
            if port == 50 {
                hear(&mut asker, 5_000, A, &token_1);
            }
            hear(&mut asker, 1_000 + u64::from(port) * 80, lane, &forged());
        }
        let mut finished = None;
        for now_us in (10_000..4_000_000).step_by(10_000) {
            finished = finished.or_else(|| asker.timed_out(now_us));
            if finished.is_none()
                && let Some((_, question)) = asker.next_question(now_us, B)
            {
                hear(&mut asker, now_us + 1, B, &token(&question));
            }
        }
        let answer = finished.unwrap().result.unwrap();
        assert_eq!((answer.facts, answer.disputed), (None, true), "hit after {hits}");
    }
}

/// A query whose answers never carry a nonce, so none of them is a proof.
struct Nonceless;

impl Query for Nonceless {
    fn ask(&self, _ask: Ask, _nonce: u32, question: &mut Question) {
        question.extend(*b"?");
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        let name = str::from_utf8(bytes).map_err(fault)?;
        Ok(Heard::Facts(Facts { name: name.into(), ..Facts::default() }))
    }
}

#[test]
fn an_answer_without_a_nonce_proves_nothing() {
    for ask in [Ask::Proof, Ask::Facts] {
        let mut asker = asker(SETTINGS);
        asker.ask(game(), &Nonceless, ask, 0).unwrap();
        let mut finished = None;
        for now_us in (0..4_000_000).step_by(100_000) {
            finished = finished.or_else(|| asker.timed_out(now_us));
            asker.next_question(now_us, A);
            hear(&mut asker, now_us, A, b"a name");
        }
        let result = finished.unwrap().result;
        assert!(result.is_err(), "{ask:?}: {result:?}");
    }
}

/// The last try times out while facts are due after its nonce or an earlier one's, and they never arrive.
#[test]
fn a_status_that_is_lost_after_the_last_timeout_does_not_block_the_query() {
    for late in [0, 1] {
        let (mut asker, token_1) = asked();
        assert!(asker.timed_out(1_000_000).is_none());
        let (_, again) = asker.next_question(1_000_000, B).unwrap();
        let (lane, nonce) = [(A, token_1), (B, token(&again))][late].clone();
        hear(&mut asker, 1_950_000, lane, &nonce);
        let mut finished = None;
        for now_us in (2_000_000..10_000_000).step_by(10_000) {
            finished = finished.or_else(|| asker.timed_out(now_us));
            asker.next_question(now_us, B);
        }
        assert_eq!(finished.expect("an end").result.unwrap().facts, None);
        assert_eq!((asker.in_flight(), asker.has_questions()), (0, false));
    }
}

proptest::proptest! {
    /// For any datagrams at any time and in any order, every query ends exactly once.
    #[test]
    fn every_question_ends_once(
        proven in proptest::bool::ANY,
        events in proptest::collection::vec((0..600u64, 0..5u8, 0..4usize), 0..30),
    ) {
        let mut asker = asker(SETTINGS);
        let ask = if proven { Ask::Facts } else { Ask::Proof };
        asker.ask(game(), QUERY, ask, 0).unwrap();
        let (mut now_us, mut lane, mut ends) = (0, 0, 0);
        let mut sent: Vec<(Lane, Vec<u8>)> = Vec::new();
        // After the events, nothing else arrives.
        for (wait_ms, kind, number) in events.into_iter().chain([(10, 5, 0); 1_000]) {
            while asker.timed_out(now_us).is_some() {
                ends += 1;
            }
            while let Some((_, question)) = asker.next_question(now_us, lane) {
                sent.push((lane, token(&question)));
                lane += 1;
            }
            if let Some((to, token)) = sent.iter().rev().nth(number) {
                let bytes = match kind {
                    0 | 1 => token.clone(),
                    2 => status(),
                    3 => forged(),
                    _ => b"x".to_vec(),
                };
                if kind < 5 && asker.heard(now_us, *to, game().socket(), &bytes).is_some() {
                    ends += 1;
                }
            }
            now_us += wait_ms * 1_000;
        }
        proptest::prop_assert_eq!((ends, asker.in_flight(), asker.fresh(), asker.has_questions()), (1, 0, 0, false));
    }
}

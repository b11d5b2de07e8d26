//! Games that return no nonce: the random port of a question is all that shows that its answer belongs to it.

use super::*;
use crate::protocols::{Heard, ProvenBy, fault};

/// Answers `alive`, or facts after `name `; wants a token where it answers `again `. The question is `ask`, with the token.
struct Nonceless;

impl Query for Nonceless {
    fn ask(&self, _ask: Ask, _nonce: u32, question: &mut Question) {
        question.extend(*b"ask");
    }

    fn ask_with(&self, _ask: Ask, _nonce: u32, token: u32, question: &mut Question) {
        question.extend(*b"ask");
        question.extend(token.to_be_bytes());
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        match bytes {
            b"alive" => Ok(Heard::Alive),
            [b'a', b'g', b'a', b'i', b'n', b' ', token @ ..] => {
                Ok(Heard::Again { token: u32::from_be_bytes(token.try_into().unwrap()) })
            }
            _ => {
                let name = str::from_utf8(bytes).ok().and_then(|text| text.strip_prefix("name "));
                let name = name.ok_or_else(|| fault("nonsense"))?;
                Ok(Heard::Facts(Facts { name: name.into(), ..Facts::default() }))
            }
        }
    }

    fn proven_by(&self) -> ProvenBy {
        ProvenBy::Port
    }

    fn farewell(&self, answer: &[u8], last: &mut Question) {
        if answer == b"alive" {
            last.extend(*b"bye");
        }
    }
}

const OTHER: Lane = LANE + 1;

/// Asked once from [`LANE`] at 0.
fn asked(ask: Ask) -> Asker<u32> {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), &Nonceless, ask, 7).unwrap();
    assert_eq!(asker.next_question(0, LANE).unwrap().1[..], *b"ask");
    asker
}

fn hear(asker: &mut Asker<u32>, now_us: u64, lane: Lane, bytes: &[u8]) -> Option<Finished<u32>> {
    asker.heard(now_us, lane, server(1).socket(), bytes)
}

#[test]
fn an_answer_counts_on_the_port_that_asked_and_on_no_other() {
    for ask in [Ask::Proof, Ask::Facts] {
        let mut asker = asked(ask);
        assert!(hear(&mut asker, 5_000, OTHER, b"alive").is_none());
        assert_eq!(asker.next_farewell(), None, "nothing is sent to a forger's victim");
        let finished = hear(&mut asker, 9_000, LANE, b"alive").unwrap();
        let answered = finished.result.unwrap();
        assert_eq!((answered.rtt_us, answered.facts), (9_000, None));
        assert!(answered.disputed, "somebody tries one port after another");
        assert_eq!((asker.in_flight(), asker.fresh()), (0, 0));
    }
}

#[test]
fn an_answer_says_whether_it_took_more_than_one_try() {
    for tries in [1, 2] {
        let mut asker = asked(Ask::Proof);
        if tries > 1 {
            assert!(asker.timed_out(SETTINGS.try_us).is_none());
            assert!(asker.next_question(SETTINGS.try_us, OTHER).is_some());
        }
        let answered = hear(&mut asker, SETTINGS.try_us + 9_000, LANE, b"alive").unwrap().result.unwrap();
        assert_eq!((answered.retried, answered.disputed), (tries > 1, false));
    }
}

#[test]
fn a_server_that_has_answered_is_told_that_this_was_all() {
    let mut asker = asked(Ask::Proof);
    hear(&mut asker, 9_000, LANE, b"alive");
    let (lane, address, last) = asker.next_farewell().unwrap();
    assert_eq!((lane, address, &last[..]), (LANE, server(1), &b"bye"[..]));
    hear(&mut asker, 9_100, LANE, b"alive");
    assert_eq!(asker.next_farewell(), None, "its second answer comes after the end");
}

#[test]
fn farewells_that_nobody_sends_are_bounded() {
    let mut asker = asker(Settings { per_second: 1_000_000, per_ip_per_second: 1_000_000, ..SETTINGS });
    for number in 0..=FAREWELLS_MAX as u16 {
        asker.ask(server(1 + number), &Nonceless, Ask::Proof, 7).unwrap();
    }
    let mut asked = 0;
    for now_us in (0..1_000_000).step_by(1_000) {
        while let Some((address, _)) = asker.next_question(now_us, LANE) {
            assert!(asker.heard(now_us, LANE, address.socket(), b"alive").is_some());
            asked += 1;
        }
    }
    assert_eq!(asked, FAREWELLS_MAX + 1);
    assert_eq!(std::iter::from_fn(|| asker.next_farewell()).count(), FAREWELLS_MAX);
}

#[test]
fn facts_settle_and_conflicting_ones_are_disputed() {
    let mut asker = asked(Ask::Proof);
    assert!(hear(&mut asker, 9_000, LANE, b"name real").is_none(), "somebody else may say something else");
    assert!(hear(&mut asker, 9_500, LANE, b"name real").is_none(), "twice is once");
    let finished = asker.timed_out(29_000).unwrap();
    assert_eq!(finished.result.unwrap().facts.unwrap().name, "real");

    for ask in [Ask::Proof, Ask::Facts] {
        let mut asker = asked(ask);
        hear(&mut asker, 9_000, LANE, b"name real");
        assert!(hear(&mut asker, 9_500, LANE, b"name forged").is_none());
        let (_, again) = asker.next_question(10_000, OTHER).unwrap();
        assert_eq!(again[..], *b"ask", "from another port");
        hear(&mut asker, 19_000, OTHER, b"name real");
        let finished = asker.timed_out(39_000).unwrap();
        let answered = finished.result.unwrap();
        assert_eq!(answered.facts.unwrap().name, "real");
        assert!(answered.disputed);
    }
}

#[test]
fn facts_on_a_port_that_did_not_ask_are_not_believed() {
    let mut asker = asked(Ask::Facts);
    assert!(hear(&mut asker, 9_000, OTHER, b"name forged").is_none());
    let finished = std::iter::from_fn(|| {
        let now_us = 10_000_000;
        asker.next_question(now_us, LANE);
        asker.timed_out(now_us)
    })
    .next();
    assert!(finished.is_none_or(|finished| finished.result.is_err()));
}

#[test]
fn a_token_goes_back_with_the_question_a_few_times() {
    let mut asker = asked(Ask::Proof);
    assert!(hear(&mut asker, 1_000, OTHER, b"again \0\0\0\x09").is_none());
    assert!(asker.next_question(1_000, LANE).is_none(), "on another port");
    for round in 0..4u8 {
        assert!(hear(&mut asker, 2_000, LANE, &[b"again \0\0\0", &[round][..]].concat()).is_none());
        let question = asker.next_question(2_000, LANE).map(|(_, question)| question.to_vec());
        let expected = (round < 2).then(|| [b"ask\0\0\0", &[round][..]].concat());
        assert_eq!(question, expected, "{round}");
    }
    hear(&mut asker, 9_000, LANE, b"name real");
    assert_eq!(asker.timed_out(40_000).unwrap().result.unwrap().facts.unwrap().name, "real");
}

#[test]
fn without_a_nonce_facts_settle_for_a_round_trip_whoever_asks() {
    let mut asker = asked(Ask::Facts);
    asker.settle_for(5_000);
    assert!(hear(&mut asker, 80_000, LANE, b"name A").is_none());
    assert_eq!(asker.next_timeout_us(), Some(160_000));
}

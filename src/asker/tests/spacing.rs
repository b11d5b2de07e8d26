//! Games that require an interval between questions, and games that send some facts with the first answer and all with
//! the second.

use super::*;
use crate::protocols::{Fault, Heard, fault};

/// A game that is asked at most every 1.05 s. `i` and the nonce is its short answer, `s` and the nonce its long one.
struct Slow;

impl Query for Slow {
    fn ask(&self, ask: Ask, nonce: u32, question: &mut Question) {
        question.push(if ask == Ask::Proof { b'i' } else { b's' });
        question.extend(nonce.to_be_bytes());
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        let (kind, nonce) = bytes.split_first().ok_or(fault("empty"))?;
        let nonce = u32::from_be_bytes(nonce.try_into().map_err(|_| fault("no nonce"))?);
        let facts = |name: &'static str| Facts { name: name.into(), ..Facts::default() };
        match kind {
            b'i' => Ok(Heard::Some { nonce, facts: Facts { game: "chess".into(), ..facts("short") } }),
            _ => Ok(Heard::Whole { nonce, facts: facts("long") }),
        }
    }

    fn spacing_us(&self) -> u64 {
        1_050_000
    }
}

#[test]
fn the_second_question_comes_later_and_says_more() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), &Slow, Ask::Proof, 0).unwrap();
    let (_, first) = asker.next_question(1_000, LANE).unwrap();
    assert!(asker.heard(20_000, LANE, server(1).socket(), &first).is_none(), "a second question follows");
    assert!(asker.next_question(20_000, LANE).is_none() && !asker.has_questions());
    assert_eq!(asker.next_timeout_us(), Some(1_001_000), "the first try's own");
    assert!(asker.timed_out(1_050_999).is_none() && asker.next_question(1_050_999, LANE).is_none());
    assert_eq!(asker.next_timeout_us(), Some(1_051_000));
    assert!(asker.timed_out(1_051_000).is_none() && asker.has_questions());
    let (_, second) = asker.next_question(1_051_000, LANE).unwrap();
    assert_eq!(second[0], b's');
    let finished = asker.heard(1_070_000, LANE, server(1).socket(), &second).unwrap();
    let facts = finished.result.unwrap().facts.unwrap();
    assert_eq!((&*facts.name, &*facts.game), ("long", "chess"), "only the short answer says the game");
}

/// Asks both questions at once.
fn both(asker: &mut Asker<u32>) -> (Question, Question) {
    asker.ask_both(server(1), &Slow, 0).unwrap();
    let mut questions = [(); 2].map(|()| asker.next_question(1_000, LANE).unwrap().1);
    questions.sort_unstable();
    assert!(asker.next_question(1_000, LANE).is_none() && !asker.has_questions());
    let [short, long] = questions;
    assert_eq!((short[0], long[0], &short[1..]), (b'i', b's', &long[1..]), "with one nonce");
    (short, long)
}

#[test]
fn both_questions_at_once_are_over_when_both_are_answered_in_either_order() {
    for is_short_first in [true, false] {
        let mut asker = asker(SETTINGS);
        let (short, long) = both(&mut asker);
        let (first, last) = if is_short_first { (&short, &long) } else { (&long, &short) };
        assert!(asker.heard(20_000, LANE, server(1).socket(), first).is_none());
        assert!(asker.heard(20_000, LANE + 1, server(1).socket(), last).is_none(), "on another lane");
        let mut forged = last.clone();
        forged[2] ^= 1;
        assert!(asker.heard(20_000, LANE, server(1).socket(), &forged).is_none(), "with another nonce");
        let finished = asker.heard(21_000, LANE, server(1).socket(), last).unwrap();
        let Response { facts, rtt_us, .. } = finished.result.unwrap();
        let facts = facts.unwrap();
        assert_eq!((&*facts.name, &*facts.game, rtt_us), ("long", "chess", 19_000));
        assert!(asker.timed_out(3_000_000).is_none() && asker.next_question(3_000_000, LANE).is_none());
    }
}

#[test]
fn a_server_that_answers_one_of_both_is_asked_for_the_other_later() {
    let mut asker = asker(SETTINGS);
    let (short, _) = both(&mut asker);
    assert!(asker.heard(20_000, LANE, server(1).socket(), &short).is_none());
    assert!(asker.timed_out(1_050_999).is_none() && asker.next_question(1_050_999, LANE).is_none());
    assert!(asker.timed_out(1_051_000).is_none());
    let (_, long) = asker.next_question(1_051_000, LANE).unwrap();
    assert_eq!(long[0], b's');
    let finished = asker.heard(1_070_000, LANE, server(1).socket(), &long).unwrap();
    assert_eq!(finished.result.unwrap().facts.unwrap().game, "chess");

    let mut asker = self::asker(Settings { tries: 1, ..SETTINGS });
    let (_, long) = both(&mut asker);
    assert!(asker.heard(20_000, LANE, server(1).socket(), &long).is_none());
    let finished = asker.timed_out(1_001_000).unwrap();
    assert_eq!(finished.result.unwrap().facts.unwrap().name, "long", "better than nothing");
}

#[test]
fn who_wants_the_facts_only_asks_one_question_and_both_if_that_is_not_answered() {
    for is_answered in [true, false] {
        let mut asker = asker(Settings { tries: 2, ..SETTINGS });
        asker.ask_facts_first(server(1), &Slow, 0).unwrap();
        let (_, long) = asker.next_question(1_000, LANE).unwrap();
        assert_eq!((long[0], asker.next_question(1_000, LANE)), (b's', None));
        if is_answered {
            let finished = asker.heard(20_000, LANE, server(1).socket(), &long).unwrap();
            let facts = finished.result.unwrap().facts.unwrap();
            assert_eq!((&*facts.name, &*facts.game), ("long", ""));
            continue;
        }
        // Some servers answer the other question only.
        let mut finished = None;
        let mut asked = Vec::new();
        for now_us in (10_000..6_000_000).step_by(10_000) {
            finished = finished.or(asker.timed_out(now_us));
            while let Some((_, question)) = asker.next_question(now_us, LANE) {
                asked.push(question[0]);
                if question[0] == b'i' {
                    finished = finished.or(asker.heard(now_us, LANE, server(1).socket(), &question));
                }
            }
        }
        assert!(asked.starts_with(b"is"), "{asked:?}");
        assert_eq!(finished.unwrap().result.unwrap().facts.unwrap().name, "short");
    }
}

#[test]
fn the_first_answers_facts_count_if_no_others_follow() {
    let mut asker = asker(Settings { tries: 1, ..SETTINGS });
    asker.ask(server(1), &Slow, Ask::Proof, 0).unwrap();
    let (_, first) = asker.next_question(1_000, LANE).unwrap();
    asker.heard(2_000, LANE, server(1).socket(), &first);
    let mut finished = None;
    for now_us in (10_000..4_000_000).step_by(10_000) {
        finished = finished.or(asker.timed_out(now_us));
        asker.next_question(now_us, LANE);
    }
    assert_eq!(finished.unwrap().result.unwrap().facts.unwrap().name, "short");

    asker.ask(server(2), &Slow, Ask::Facts, 0).unwrap();
    let (_, mut question) = asker.next_question(5_000_000, LANE).unwrap();
    question[0] = b'i';
    let finished = asker.heard(5_001_000, LANE, server(2).socket(), &question).unwrap();
    assert_eq!(finished.result.unwrap().facts.unwrap().name, "short", "a long answer that did not fit");
}

#[test]
fn questions_to_one_server_are_spaced_and_do_not_delay_others() {
    let mut asker = asker(Settings { try_us: 300_000, ..SETTINGS });
    let mut sent = Vec::new();
    for now_us in (1_000..12_000_000).step_by(1_000) {
        while asker.timed_out(now_us).is_some() {}
        for port in 1..=2 {
            let _ = asker.ask(server(port), &Slow, Ask::Facts, 0);
        }
        sent.extend(std::iter::from_fn(|| asker.next_question(now_us, LANE)).map(|(address, _)| (address, now_us)));
    }
    for port in 1..=2 {
        let times: Vec<u64> = sent.iter().filter(|(to, _)| *to == server(port)).map(|(_, at)| *at).collect();
        assert!(times.len() >= 11, "tries and rounds, in 12 s: {times:?}");
        assert!(times.windows(2).all(|two| two[1] - two[0] >= 1_050_000), "{times:?}");
    }
}

#[test]
fn a_question_counts_as_sent_until_it_is_answered_and_as_a_whole_only() {
    let mut asker = asker(SETTINGS);
    assert!(!asker.has_sent(server(1), b""), "nobody is asked");
    asker.ask_both(server(1), &Slow, 0).unwrap();
    assert!(!asker.has_sent(server(1), b"") && !asker.has_sent(server(1), b"i\0\0\0\0"), "nothing was sent yet");
    let [short, long] = [(); 2].map(|()| asker.next_question(1_000, LANE).unwrap().1);
    let mut forged = short.clone();
    forged[2] ^= 1;
    for (bytes, expected) in [(&short[..], true), (&long, true), (&forged, false), (&short[..3], false), (b"", false)] {
        assert_eq!(asker.has_sent(server(1), bytes), expected, "{bytes:?}");
        assert!(!asker.has_sent(server(2), bytes));
    }
    asker.heard(20_000, LANE, server(1).socket(), &short);
    assert!(!asker.has_sent(server(1), &short));
}

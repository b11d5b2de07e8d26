//! The edges of the asker's rules: the last moment, the exact number, and what is forgotten.

use super::*;
use crate::protocols::{Heard, fault};

#[test]
fn failures_say_who_failed_and_why() {
    assert_eq!(Failure::Silent.words(" from 192.0.2.1:1"), "no answer from 192.0.2.1:1");
    assert_eq!(Failure::Bad(fault("cut short")).words(""), "bad answer: cut short");
}

#[test]
fn new_settings_apply_to_queries_in_flight() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 1).unwrap();
    asker.next_question(0, LANE).unwrap();
    asker.set_settings(Settings { tries: 1, ..SETTINGS });
    assert_eq!(asker.timed_out(1_000_000).map(|finished| finished.tag), Some(1), "no second try");
}

#[test]
fn an_address_has_room_for_a_seconds_worth_of_queries() {
    let mut asker = asker(Settings { per_ip_per_second: 2, ..SETTINGS });
    for (port, has_room) in [(1, true), (2, true), (3, false)] {
        assert_eq!(asker.has_room_for(server(port).ip()), has_room, "for number {port}");
        asker.ask(server(port), one_step::QUERY, Ask::Proof, 0).unwrap();
    }
}

#[test]
fn a_query_in_flight_can_be_changed_and_given_up() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 1).unwrap();
    *asker.tag_mut(server(1)).unwrap() += 10;
    assert_eq!(asker.tag_mut(server(2)), None);
    assert_eq!((asker.give_up(server(1)), asker.give_up(server(1))), (Some(11), None));
    assert_eq!(asker.in_flight(), 0);
}

#[test]
fn no_two_questions_have_the_same_nonce() {
    let mut asker = asker(SETTINGS);
    for port in 1..=2 {
        asker.ask(server(port), two_steps::QUERY, Ask::Proof, 0).unwrap();
    }
    let nonce = |question: &Question| question[6..14].to_vec();
    let (first, question) = asker.next_question(0, LANE).unwrap();
    let (_, other) = asker.next_question(100_000, LANE).unwrap();
    asker.heard(110_000, LANE, first.socket(), &nonce(&question));
    let (again, for_facts) = asker.next_question(2_000_000, LANE).unwrap();
    assert_eq!(again, first);
    let nonces = std::collections::HashSet::from([nonce(&question), nonce(&other), nonce(&for_facts)]);
    assert_eq!(nonces.len(), 3);
}

#[test]
fn no_try_begins_when_the_time_for_all_is_over() {
    let mut asker = asker(Settings { all_us: 1_000_000, ..SETTINGS });
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 1).unwrap();
    asker.next_question(0, LANE).unwrap();
    assert!(asker.timed_out(1_000_000).is_some(), "at its last microsecond");
}

#[test]
fn idle_state_is_forgotten_now_and_then_once_there_is_much_of_it_though_others_are_asked() {
    const NOW_US: u64 = 10_000_000;
    let mut asker = asker(SETTINGS);
    for port in 1..=3 {
        asker.ask(server(port), one_step::QUERY, Ask::Proof, 0).unwrap();
    }
    asker.next_question(NOW_US, LANE).unwrap();
    let most = 2 * 3 + IDLE_KEPT;
    // The queries share a queue.
    let add = |asker: &mut Asker<u32>, count: usize, asked_us: u64| {
        let begin = asker.asked_us.len() as u32;
        for number in (begin..).take(count) {
            let ip = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            asker.asked_us.insert(Address::new(ip, 1).unwrap(), asked_us);
            let queue = asker.queues.join(ip);
            asker.queues.leave(queue);
        }
    };
    let kept = |asker: &Asker<u32>| (asker.queues.counts().0, asker.asked_us.len());
    add(&mut asker, 1, NOW_US - SPACING_US_MAX + 1);
    add(&mut asker, most - 2, NOW_US - SPACING_US_MAX);
    assert!(asker.timed_out(NOW_US).is_none());
    assert_eq!(kept(&asker), (most, most - 1), "not many yet");
    add(&mut asker, 2, NOW_US - SPACING_US_MAX);
    assert!(asker.timed_out(NOW_US + FORGET_US - 1).is_none());
    assert_eq!(kept(&asker), (most + 2, most + 1), "this was looked for a moment ago");
    assert!(asker.timed_out(NOW_US + FORGET_US).is_none());
    assert_eq!(kept(&asker), (1, 0), "a try that is outstanding does not keep the rest");
}

/// Returns 16 bits of the nonce, as the question has them.
struct Short;

impl Query for Short {
    fn ask(&self, _ask: Ask, nonce: u32, question: &mut Question) {
        question.extend(nonce.to_be_bytes());
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        let low = bytes.last_chunk().ok_or_else(|| fault("short"))?;
        Ok(Heard::Whole { nonce: u16::from_be_bytes(*low).into(), facts: Facts::default() })
    }

    fn nonce_mask(&self) -> u32 {
        0xffff
    }
}

#[test]
fn only_the_bits_of_a_nonce_that_a_game_returns_are_used() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), &Short, Ask::Proof, 7).unwrap();
    let (_, question) = asker.next_question(0, LANE).unwrap();
    assert_eq!(question[..2], [0, 0]);
    assert_ne!(question[2..], [0, 0]);
    let finished = asker.heard(1_000, LANE, server(1).socket(), &question);
    assert!(finished.is_some_and(|finished| finished.result.is_ok()));
}

//! Answers that say the same as the last one, which are not parsed again.

use super::*;
use crate::protocols::testing::two_steps::{QUERY, forged, status, token};

const A: Lane = 1;
const B: Lane = 2;

fn game() -> Address {
    server(3030)
}

/// Asks on lane A, and returns the token.
fn ask(asker: &mut Asker<u32>, now_us: u64, digest: u64) -> Vec<u8> {
    asker.ask_known(game(), QUERY, Ask::Facts, digest, 0).unwrap();
    token(&asker.next_question(now_us, A).unwrap().1)
}

fn hear(asker: &mut Asker<u32>, now_us: u64, lane: Lane, bytes: &[u8]) {
    assert!(asker.heard(now_us, lane, game().socket(), bytes).is_none());
}

fn ends(asker: &mut Asker<u32>, now_us: u64) -> Response {
    asker.timed_out(now_us).expect("an end").result.expect("a proof")
}

/// A round whose answer is this status; None: it has no new facts.
fn round(asker: &mut Asker<u32>, now_us: u64, digest: u64, status: &[u8]) -> (Option<String>, u64) {
    let token = ask(asker, now_us, digest);
    hear(asker, now_us + 1_000, A, &token);
    hear(asker, now_us + 1_100, A, status);
    let Response { facts, fault, digest, rtt_us, disputed, .. } = ends(asker, now_us + 50_000);
    assert_eq!((fault, rtt_us, disputed), (None, 1_000, false));
    (facts.map(|facts| facts.name.into_owned()), digest)
}

#[test]
fn an_equal_status_proves_the_server_and_brings_no_facts() {
    let mut asker = asker(SETTINGS);
    let (name, digest) = round(&mut asker, 0, 0, &status());
    assert_eq!(name.as_deref(), Some("A server"));
    assert_ne!(digest, 0);
    assert_eq!(round(&mut asker, 1_000_000, digest, &status()), (None, digest));
    let (name, other) = round(&mut asker, 2_000_000, digest, &forged());
    assert_eq!(name.as_deref(), Some("Forged"), "another one is read");
    assert_ne!(other, digest);
    assert_eq!(round(&mut asker, 3_000_000, 0, &status()).0.as_deref(), Some("A server"), "nothing is known");
}

#[test]
fn an_equal_status_without_its_nonce_or_on_another_lane_proves_nothing() {
    let mut asker = asker(Settings { tries: 1, ..SETTINGS });
    let (_, digest) = round(&mut asker, 0, 0, &status());
    ask(&mut asker, 1_000_000, digest);
    hear(&mut asker, 1_001_000, A, &status());
    assert_eq!(asker.timed_out(2_000_000).unwrap().result, Err(Failure::Silent));

    let token = ask(&mut asker, 3_000_000, digest);
    hear(&mut asker, 3_001_000, A, &token);
    let finished = asker.heard(3_001_000, B, game().socket(), &status()).unwrap();
    let Response { disputed, digest, .. } = finished.result.unwrap();
    assert_eq!((disputed, digest), (true, 0), "somebody repeats what it said, on a port that did not ask");
}

#[test]
fn a_different_status_beside_an_equal_one_disputes_it() {
    let mut asker = asker(Settings { tries: 1, ..SETTINGS });
    let (_, digest) = round(&mut asker, 0, 0, &status());
    let token = ask(&mut asker, 1_000_000, digest);
    hear(&mut asker, 1_001_000, A, &token);
    hear(&mut asker, 1_001_100, A, &status());
    let finished = asker.heard(1_001_200, A, game().socket(), &forged()).unwrap();
    let Response { facts, disputed, digest, .. } = finished.result.unwrap();
    assert_eq!((facts, disputed, digest), (None, true, 0));
}

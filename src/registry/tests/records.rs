//! What a record of another node changes here, field by field, and what this node reports to the others.

use super::*;
use crate::model::{Gone, Origin, RemoteServer, RemoteState};
use crate::registry::merge::{LocalState, Removals};

const OWN: u8 = 5;

fn registry() -> Registry {
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.set_node(OWN);
    registry
}

/// A record of node 9. Its last heartbeat was at `seen_ms`; 100 s of its life are left.
fn record(game: &'static str, proven_ms: u64, seen_ms: u64, key: &str) -> RemoteServer<'static> {
    let Change::Announce(announce) = asked(address(1, 1), proven_ms) else { unreachable!() };
    RemoteServer {
        announce: Announce { game: Game::Own(game), life_ms: 100_000, keys: Some(keys(key)), ..announce },
        node: 9,
        first_seen_ms: T,
        last_seen_ms: T + seen_ms,
        via: None,
        stronger_gone_ms: None,
        silence: Silence::None,
    }
}

fn merge(registry: &mut Registry, record: RemoteServer<'static>, ms: u64) -> Outcome {
    registry.apply(&Change::Merge(Box::new(RemoteState::Listed(record))), at(ms))
}

fn gone(at_ms: u64, game_at_ms: u64) -> Gone {
    Gone { address: address(1, 1), at_ms: T + at_ms, game_at_ms, quit: true, foreign: false }
}

fn merge_gone(registry: &mut Registry, gone: Gone, ms: u64) -> Outcome {
    registry.apply(&Change::Merge(Box::new(RemoteState::Gone(gone))), at(ms))
}

fn listed(registry: &Registry) -> &Server {
    registry.listed(address(1, 1)).unwrap()
}

fn life_left_ms(registry: &Registry, ms: u64) -> u64 {
    registry.address_state(address(1, 1), at(ms)).unwrap().life_left_ms
}

#[test]
fn a_record_brings_its_heartbeat_and_its_whole_life() {
    for (left_ms, life_ms) in [(110_000, 120_000), (110_499, 120_000), (110_500, 121_000)] {
        let mut registry = registry();
        let mut known = record("one", 20_000, 10_000, "1");
        known.announce.life_ms = left_ms;
        assert_eq!(merge(&mut registry, known, 20_000), Outcome::Added);
        assert_eq!((listed(&registry).last_seen_ms, listed(&registry).life_ms), (T + 10_000, life_ms), "{left_ms}");
        assert_eq!(life_left_ms(&registry, 20_000), left_ms);
    }
}

#[test]
fn a_listed_server_of_another_node_is_queried_within_an_interval_however_often_its_record_comes() {
    let mut registry = registry();
    merge(&mut registry, record("one", 0, 0, "1"), 0);
    for ms in [10_000, 20_000, 29_000] {
        merge(&mut registry, record("one", ms, ms, "1"), ms);
    }
    assert_eq!(due(&mut registry, 30_250), [address(1, 1)]);

    // The same if it could not be queried before.
    let mut registry = self::registry();
    let mut known = record("one", 0, 0, "1");
    known.announce.asked = false;
    merge(&mut registry, known.clone(), 0);
    known.announce.proven_at_ms += 1_000;
    merge(&mut registry, known, 1_000);
    let state = registry.local_state(address(1, 1), at(1_000));
    assert!(matches!(state, Some(LocalState::Listed { asked: false, .. })), "{state:?}");
    assert_eq!(due(&mut registry, 60_000), []);
    merge(&mut registry, record("one", 60_000, 60_000, "1"), 60_000);
    assert_eq!(due(&mut registry, 74_500), []);
    assert_eq!(due(&mut registry, 90_250), [address(1, 1)]);
}

#[test]
fn the_newer_proof_and_the_newer_heartbeat_are_taken_each_on_its_own() {
    let mut registry = registry();
    let state = |registry: &Registry| {
        let server = listed(registry);
        (server.proven_at_ms - T, server.last_seen_ms - T, server.keys.clone().unwrap())
    };
    merge(&mut registry, record("one", 1_000, 5_000, "first"), 5_000);
    assert_eq!(merge(&mut registry, record("one", 2_000, 3_000, "late"), 6_000), Outcome::Refreshed);
    assert_eq!(state(&registry), (2_000, 5_000, keys("first")), "a newer proof, an older heartbeat");
    let mut renamed = record("one", 1_500, 6_000, "newer");
    renamed.announce.facts.name = "renamed".into();
    assert_eq!(merge(&mut registry, renamed.clone(), 6_000), Outcome::Refreshed);
    assert_eq!(state(&registry), (2_000, 6_000, keys("newer")), "an older proof, a newer heartbeat");
    assert_eq!(listed(&registry).texts.name(), "a server", "the facts belong to the proof");
    renamed.announce.proven_at_ms = T + 7_000;
    assert_eq!(merge(&mut registry, renamed, 7_000), Outcome::Changed);
    assert_eq!(listed(&registry).texts.name(), "renamed");
    assert_eq!(merge(&mut registry, record("other", 8_000, 100, "other"), 8_000), Outcome::Changed);
    assert_eq!(state(&registry), (8_000, 100, keys("other")), "another game replaces both");
}

#[test]
fn a_server_that_another_node_has_seen_is_our_news_once_it_announces_itself_here() {
    let mut registry = registry();
    merge(&mut registry, record("one", 300_000, 1_000, "1"), 300_000);
    let Change::Announce(ours) = asked(address(1, 1), 299_000) else { unreachable!() };
    drained(&mut registry);
    assert_eq!(registry.apply(&Change::Announce(Announce { rtt_us: None, ..ours }), at(300_100)), Outcome::Refreshed);
    let published = only(&mut registry);
    assert_eq!((published.proven_at_ms, published.last_seen_ms, published.foreign), (T + 300_000, T + 299_000, false));
}

#[test]
fn the_later_end_of_life_wins_unless_it_is_another_games() {
    let mut registry = registry();
    merge(&mut registry, record("one", 1_000, 1_000, "1"), 1_000);
    let mut short = record("one", 2_000, 2_000, "1");
    short.announce.life_ms = 50_000;
    merge(&mut registry, short.clone(), 2_000);
    assert_eq!(life_left_ms(&registry, 2_000), 99_000, "the first record's");
    short.announce.game = Game::Own("other");
    short.announce.proven_at_ms = T + 3_000;
    merge(&mut registry, short, 3_000);
    assert_eq!(life_left_ms(&registry, 3_000), 50_000);
    while registry.expire(at(53_250), 10) {}
    assert!(registry.is_empty(), "and it ends in time");
}

#[test]
fn a_server_is_foreign_while_other_nodes_have_all_that_this_one_knows() {
    // Their proof and their heartbeat replace ours.
    let mut registry = registry();
    registry.apply(&asked(address(1, 1), 1_000), at(1_000));
    assert!(!registry.local_state(address(1, 1), at(1_000)).unwrap().foreign());
    merge(&mut registry, record("one", 2_000, 2_000, "1"), 2_000);
    assert!(registry.local_state(address(1, 1), at(2_000)).unwrap().foreign());
    // Our heartbeat is newer: they lack it.
    registry.apply(&heartbeat(address(1, 1), "2"), at(3_000));
    merge(&mut registry, record("one", 4_000, 2_500, "1"), 4_000);
    assert_eq!((listed(&registry).node, listed(&registry).foreign), (9, false));
    // Another game replaces all of it.
    merge(&mut registry, record("other", 5_000, 100, "1"), 5_000);
    assert!(listed(&registry).foreign);

    // So does any record of a server that no longer answered here.
    let mut registry = self::registry();
    registry.apply(&asked(address(1, 1), 1_000), at(1_000));
    for _ in 0..4 {
        registry.apply(&miss(address(1, 1)), at(2_000));
    }
    assert!(!registry.local_state(address(1, 1), at(2_000)).unwrap().foreign(), "our removal");
    assert_eq!(registry.own_removals(0, at(2_000)).count(), 1);
    merge(&mut registry, record("one", 3_000, 500, "1"), 3_000);
    assert!(listed(&registry).foreign);
    assert_eq!(registry.own_removals(0, at(3_000)).count(), 0, "it is listed again, so the removal is over");
}

#[test]
fn a_removal_by_another_node_is_foreign_whatever_its_record_says() {
    let mut registry = registry();
    assert_eq!(merge_gone(&mut registry, gone(1_000, T + 1_000), 1_000), Outcome::Refreshed);
    assert!(registry.local_state(address(1, 1), at(1_000)).unwrap().foreign());
    assert_eq!(registry.own_removals(0, at(1_000)).count(), 0);
}

#[test]
fn a_removal_is_news_if_it_ends_more_than_the_known_one() {
    let mut registry = registry();
    let steps = [
        ((500, 0), Outcome::Refreshed),
        ((500, 0), Outcome::Stale),
        ((500, T + 500), Outcome::Refreshed),
        ((400, T + 400), Outcome::Stale),
        ((600, 0), Outcome::Refreshed),
        ((600, T + 500), Outcome::Stale),
    ];
    for ((at_ms, game_at_ms), expected) in steps {
        assert_eq!(merge_gone(&mut registry, gone(at_ms, game_at_ms), 1_000), expected, "{at_ms} {game_at_ms}");
    }
}

#[test]
fn two_removals_are_merged_in_any_order() {
    let (older, newer) = (gone(500, T + 500), Gone { quit: false, ..gone(700, 0) });
    for order in [[older, newer], [newer, older]] {
        let mut registry = registry();
        for gone in order {
            merge_gone(&mut registry, gone, 1_000);
        }
        let Some(LocalState::Gone(known)) = registry.local_state(address(1, 1), at(1_000)) else { panic!("a removal") };
        assert_eq!((known.at_ms, known.game_at_ms, known.quit), (T + 700, T + 500, false));
    }
    // One from before the clock was set back gives way to any other.
    let mut removals = Removals::default();
    removals.add(gone(3_600_000, T + 3_600_000), at(3_600_000));
    removals.add(gone(1_000, 0), at(1_000));
    let mut registry = registry();
    registry.removals = removals;
    let Some(LocalState::Gone(known)) = registry.local_state(address(1, 1), at(1_000)) else { panic!("a removal") };
    assert_eq!((known.at_ms, known.game_at_ms), (T + 1_000, 0));
}

#[test]
fn after_the_clock_was_set_back_a_removal_still_ends_what_it_may_end_and_nothing_stronger() {
    for (game_at_ms, expected) in [(T + 1_000, Outcome::Changed), (0, Outcome::Stale)] {
        let mut registry = registry();
        registry.apply(&asked(address(1, 1), 3_600_000), at(3_600_000));
        let back = Now { mono_ms: at(3_601_000).mono_ms, unix_ms: T + 1_000 };
        let change = Change::Merge(Box::new(RemoteState::Gone(gone(1_000, game_at_ms))));
        assert_eq!(registry.apply(&change, back), expected, "a removal of {game_at_ms}");
    }
}

#[test]
fn the_end_of_a_stronger_proof_is_reported_beside_a_weaker_one_that_took_its_place() {
    let mut registry = registry();
    let mut weak = record("one", 5_000, 5_000, "1");
    weak.announce.proof = Proof::Connection;
    merge(&mut registry, weak, 5_000);
    let reported = |registry: &Registry| match registry.local_state(address(1, 1), at(6_000)) {
        Some(LocalState::Listed { stronger_gone_ms, .. }) => stronger_gone_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(merge_gone(&mut registry, gone(4_000, 0), 6_000), Outcome::Stale);
    assert_eq!(reported(&registry), None, "only a weaker one has ended");
    assert_eq!(merge_gone(&mut registry, gone(4_000, T + 4_000), 6_000), Outcome::Stale);
    assert_eq!(reported(&registry), Some(T + 4_000));
    // A stronger proof takes the place again, and that is over.
    merge(&mut registry, record("one", 4_500, 4_500, "1"), 6_000);
    assert_eq!((listed(&registry).verified_by, reported(&registry)), (Proof::Query, None));
    registry.retain(|_| false);
    assert!(registry.local_state(address(1, 1), at(6_000)).is_none(), "the removal is forgotten");
}

#[test]
fn a_removal_that_ends_nothing_is_not_remembered() {
    let via = || Some(Arc::new(Origin::new("another master")));
    for (via, game_at_ms) in [(via(), 0), (None, 0), (None, T + 4_000)] {
        let mut registry = registry();
        let known = RemoteServer { via, ..record("one", 5_000, 5_000, "1") };
        merge(&mut registry, known, 5_000);
        assert_eq!(merge_gone(&mut registry, gone(4_000, game_at_ms), 6_000), Outcome::Stale);
        registry.retain(|_| false);
        assert!(registry.local_state(address(1, 1), at(6_000)).is_none(), "{game_at_ms}");
    }
    // Beside a weaker proof, only the end of a stronger one is reported, whatever is remembered.
    let mut registry = registry();
    let mut weak = record("one", 5_000, 5_000, "1");
    weak.announce.proof = Proof::Connection;
    merge(&mut registry, weak, 5_000);
    registry.removals.add(gone(4_000, 0), at(6_000));
    let known = registry.local_state(address(1, 1), at(6_000));
    assert!(matches!(known, Some(LocalState::Listed { stronger_gone_ms: None, .. })), "{known:?}");
}

#[test]
fn a_connection_does_not_bring_a_mirrored_server_back_that_was_removed() {
    let mirrored = RemoteServer { via: Some(Arc::new(Origin::new("m"))), ..record("one", 3_000, 3_000, "1") };
    let mut connected = record("one", 5_000, 5_000, "1");
    connected.announce.proof = Proof::Connection;
    let removal = || gone(4_000, 0);
    for connected_first in [true, false] {
        let mut registry = registry();
        if connected_first {
            merge(&mut registry, connected.clone(), 5_000);
        }
        merge_gone(&mut registry, removal(), 6_000);
        merge(&mut registry, connected.clone(), 6_000);
        merge(&mut registry, mirrored.clone(), 6_000);
        assert_eq!(listed(&registry).verified_by, Proof::Connection, "{connected_first}");
    }
}

#[test]
fn other_nodes_query_a_named_server_only_while_its_own_heartbeats_keep_it_alive() {
    let mut registry = registry();
    let named =
        NamedServer { address: address(1, 1), game: Game::Own("one"), overrides: Overrides::default(), asked: true };
    registry.apply(&Change::NamedServers(Arc::new([named])), at(0));
    registry.apply(&asked(address(1, 1), 0), at(0)); // 720 s
    // Three misses of 30 s, and one interval: 120 s.
    for (ms, expected) in [(599_999, (120_001, true)), (600_000, (120_000, false)), (700_000, (120_000, false))] {
        let Some(LocalState::Listed { life_left_ms, asked, .. }) = registry.local_state(address(1, 1), at(ms)) else {
            panic!("listed at {ms}");
        };
        assert_eq!((life_left_ms, asked), expected, "at {ms}");
    }
}

#[test]
fn a_node_puts_what_is_newer_than_the_stored_record() {
    let mut registry = registry();
    registry.apply(&asked(address(1, 1), 5_000), at(5_000));
    registry.apply(&heartbeat(address(1, 1), "2"), at(8_000));
    let ours = registry.local_state(address(1, 1), at(8_000)).unwrap();
    let is_ahead = |node: u8, proven_ms: u64, seen_ms: u64| {
        ours.is_ahead_of(&RemoteState::Listed(RemoteServer { node, ..record("one", proven_ms, seen_ms, "1") }))
    };
    assert!(is_ahead(9, 4_999, 8_000), "a newer proof");
    assert!(!is_ahead(9, 5_000, 8_000) && is_ahead(4, 5_000, 8_000), "of one millisecond, the higher node's");
    assert!(!is_ahead(OWN, 5_000, 8_000), "the same record");
    assert!(is_ahead(9, 6_000, 7_999) && !is_ahead(9, 6_000, 8_001), "a newer heartbeat");

    let ours = LocalState::Gone(gone(5_000, T + 4_000));
    for (at_ms, game_at_ms, expected) in
        [(4_999, 4_000, true), (5_000, 4_000, false), (5_000, 3_999, true), (6_000, 3_999, true), (6_000, 4_001, false)]
    {
        let stored = RemoteState::Gone(gone(at_ms, T + game_at_ms));
        assert_eq!(ours.is_ahead_of(&stored), expected, "{at_ms} {game_at_ms}");
    }
}

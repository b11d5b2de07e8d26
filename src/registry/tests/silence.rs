//! Servers that announce themselves and do not answer: how long they stay, and who asks before one leaves.

use super::super::merge::LocalState;
use super::*;
use crate::model::{Origin, RemoteServer, RemoteState};

const GRACE_MS: u64 = 600_000;
const ROUND_MS: u64 = SETTINGS.ask_every_ms;

fn registry() -> Registry {
    Registry::new(Settings { grace_ms: GRACE_MS, ..SETTINGS }, at(0))
}

fn server() -> Address {
    address(1, 1)
}

fn announcing() -> Change<'static> {
    Change::Announcing { address: server(), protocol: "one" }
}

fn state(registry: &Registry) -> Option<Silence> {
    registry.listed(server()).map(|server| server.silence())
}

/// One that answered last at 0, after announcements that were this far apart.
fn announced_every(gap_ms: u64) -> Registry {
    let mut registry = registry();
    registry.apply(&asked(server(), 0), at(0));
    registry.apply(&heartbeat(server(), "1"), at(gap_ms));
    registry.apply(&answer(server(), 3), at(gap_ms));
    registry
}

/// Misses from one time to another, each round; `each` happens just before every miss. When it left the list.
fn silent(registry: &mut Registry, from_ms: u64, to_ms: u64, each: impl Fn(&mut Registry, u64)) -> Option<u64> {
    for ms in (from_ms..=to_ms).step_by(ROUND_MS as usize) {
        each(registry, ms);
        registry.apply(&miss(server()), at(ms));
        if state(registry).is_none() {
            return Some(ms);
        }
    }
    None
}

#[test]
fn who_announces_itself_and_does_not_answer_stays_marked_for_the_grace_and_no_longer() {
    let mut registry = announced_every(60_000);
    let beats = |registry: &mut Registry, ms: u64| {
        if ms.is_multiple_of(60_000) {
            assert_eq!(registry.apply(&heartbeat(server(), "1"), at(ms)), Outcome::Refreshed);
        }
    };
    assert_eq!(silent(&mut registry, 90_000, 120_000, beats), None);
    assert_eq!(state(&registry), Some(Silence::None), "two misses mean nothing");
    drained(&mut registry);
    assert_eq!(registry.apply(&miss(server()), at(150_000)), Outcome::Changed);
    let marked = only(&mut registry);
    assert!(marked.is_unanswered() && marked.texts.name() == "answered" && marked.players_current == Some(3));
    assert_eq!((marked.proven_at_ms, marked.verified_by), (T + 60_000, Proof::Query), "as it answered last");
    beats(&mut registry, 180_000);
    assert_eq!(registry.apply(&miss(server()), at(180_000)), Outcome::Refreshed, "nothing new");
    let gone_ms = silent(&mut registry, 210_000, 2_000_000, beats);
    assert_eq!(gone_ms, Some(60_000 + GRACE_MS));
    assert!(matches!(registry.local_state(server(), at(700_000)), Some(LocalState::Gone(_))));
    // It does not come back by heartbeats, but by an answer.
    assert_eq!(registry.apply(&heartbeat(server(), "1"), at(700_000)), Outcome::Refused(Refusal::NotListed));
    registry.apply(&answer(server(), 4), at(700_001));
    assert_eq!(state(&registry), Some(Silence::None));
}

#[test]
fn an_answer_ends_the_mark_and_the_grace_begins_anew() {
    for is_same in [true, false] {
        let mut registry = announced_every(400_000);
        silent(&mut registry, 430_000, 490_000, |_, _| {});
        assert_eq!(state(&registry), Some(Silence::Announces));
        let players = if is_same { 3 } else { 4 };
        assert_eq!(registry.apply(&answer(server(), players), at(500_000)), Outcome::Changed);
        assert_eq!(state(&registry), Some(Silence::None));
        assert_eq!(registry.address_state(server(), at(500_000)).unwrap().misses, 0);
        // Its announcement at 400 s and the next count for 502 s each.
        registry.apply(&heartbeat(server(), "1"), at(800_000));
        assert_eq!(silent(&mut registry, 830_000, 2_000_000, |_, _| {}), Some(1_100_000));
    }
}

#[test]
fn a_dead_server_leaves_as_soon_as_its_announcements_stop() {
    // After three misses, where the next announcement was due before.
    let mut registry = announced_every(10_000);
    assert_eq!(silent(&mut registry, 40_000, 900_000, |_, _| {}), Some(100_000));
    // Otherwise when that has not come: after 60 s and a quarter, and two seconds.
    let mut registry = announced_every(60_000);
    assert_eq!(silent(&mut registry, 76_000, 900_000, |_, _| {}), Some(166_000));
    let mut registry = announced_every(300_000);
    assert_eq!(silent(&mut registry, 330_000, 900_000, |_, _| {}), Some(690_000));
}

#[test]
fn one_announcement_is_no_habit_and_what_nobody_announces_has_no_grace() {
    let mut registry = registry();
    registry.apply(&asked(server(), 0), at(0));
    assert_eq!(silent(&mut registry, 30_000, 900_000, |_, _| {}), Some(90_000));
    // The operator names it.
    let mut registry = self::registry();
    let named = NamedServer { address: server(), game: Game::Own("one"), overrides: Overrides::default(), asked: true };
    registry.apply(&Change::NamedServers(Arc::new([named])), at(0));
    registry.apply(&answer(server(), 1), at(0));
    assert_eq!(silent(&mut registry, 30_000, 900_000, |_, _| {}), Some(90_000));
    // Without a grace, all are removed alike.
    let mut registry = announced_every(60_000);
    registry.set_settings(SETTINGS, at(60_000));
    assert_eq!(silent(&mut registry, 90_000, 900_000, |_, _| {}), Some(150_000));
}

#[test]
fn what_another_master_lists_has_no_grace() {
    let mut registry = announced_every(60_000);
    let known = registry.address_state(server(), at(60_000)).unwrap().server;
    let via = Some(Arc::new(Origin::new("another master")));
    let announce = Announce { life_ms: 600_000, ..announce_of(&asked(server(), 70_000)) };
    let (first_seen_ms, last_seen_ms) = (known.first_seen_ms, T + 70_000);
    let silence = Silence::None;
    let listed = RemoteServer { announce, via, node: 9, silence, first_seen_ms, last_seen_ms, stronger_gone_ms: None };
    registry.apply(&Change::Quit { address: server(), master: false, proven: true }, at(60_500));
    registry.apply(&Change::Merge(Box::new(RemoteState::Listed(listed))), at(70_000));
    assert_eq!(silent(&mut registry, 100_000, 900_000, |_, _| {}), Some(160_000));
}

fn announce_of(change: &Change<'static>) -> Announce<'static> {
    let Change::Announce(announce) = change else { unreachable!() };
    announce.clone()
}

/// Heartbeats that may be forged keep a silent server no longer than real ones.
#[test]
fn announcements_without_a_proof_count_only_while_it_is_silent_and_never_beyond_the_grace() {
    let mut registry = announced_every(10_000);
    let change = |registry: &mut Registry, change: Change<'_>, ms| registry.apply(&change, at(ms));
    assert_eq!(change(&mut registry, announcing(), 20_000), Outcome::Stale, "it answers");
    let beats = |registry: &mut Registry, ms: u64| {
        registry.apply(&announcing(), at(ms - 1));
    };
    let others = |registry: &mut Registry, ms: u64| {
        registry.apply(&Change::Announcing { address: server(), protocol: "other" }, at(ms - 1));
        registry.apply(&Change::Announcing { address: address(1, 2), protocol: "one" }, at(ms - 1));
    };
    assert_eq!(silent(&mut registry, 40_000, 2_000_000, beats), Some(10_000 + GRACE_MS));
    assert_eq!(change(&mut registry, announcing(), 620_000), Outcome::Stale, "it is off the list");
    let mut registry = announced_every(10_000);
    assert_eq!(silent(&mut registry, 40_000, 2_000_000, others), Some(100_000), "another server's");
    let life_left_ms = |registry: &Registry| registry.address_state(server(), at(50_000)).unwrap().life_left_ms;
    let mut registry = announced_every(10_000);
    let before = life_left_ms(&registry);
    silent(&mut registry, 40_000, 40_000, |_, _| {});
    assert_eq!(change(&mut registry, announcing(), 41_000), Outcome::Refreshed);
    assert_eq!(life_left_ms(&registry), before, "its life is not prolonged");
}

#[test]
fn a_clock_that_is_set_extends_no_grace() {
    let mut registry = announced_every(10_000);
    let mut gone_ms = None;
    for ms in (40_000..2_000_000).step_by(ROUND_MS as usize) {
        registry.apply(&announcing(), at(ms - 1));
        let back = Now { unix_ms: T - 3_600_000, ..at(ms) };
        registry.apply(&miss(server()), back);
        if state(&registry).is_none() {
            gone_ms = Some(ms);
            break;
        }
    }
    assert_eq!(gone_ms, Some(40_000 + GRACE_MS), "from the first miss");
}

#[test]
fn the_last_query_before_a_server_leaves_comes_from_another_address() {
    let mut registry = announced_every(600_000);
    let mut turns = Vec::new();
    for round in 1..=5 {
        let mut due = Vec::new();
        let ms = 600_000 + round * 2 * ROUND_MS;
        registry.due(at(ms), 10, &mut due);
        turns.extend(due.iter().map(|due| due.turn));
        registry.apply(&miss(server()), at(ms));
    }
    assert_eq!(turns, [0, 0, 1, 2, 3], "and after that, all in turn");
}

#[test]
fn the_other_nodes_ask_before_a_server_leaves() {
    let [mut own, mut other] = [1, 2].map(|node| {
        let mut registry = announced_every(10_000);
        registry.set_node(node);
        registry
    });
    let state_of = |registry: &Registry, ms| match registry.local_state(server(), at(ms)) {
        Some(LocalState::Listed { server, life_left_ms: life_ms, asked, .. }) => RemoteServer {
            announce: Announce {
                life_ms,
                asked,
                facts: server.facts().into_owned(),
                ..announce_of(&asked_at(&server))
            },
            via: None,
            node: server.node,
            silence: server.silence(),
            first_seen_ms: server.first_seen_ms,
            last_seen_ms: server.last_seen_ms,
            stronger_gone_ms: None,
        },
        state => panic!("{state:?}"),
    };
    let merge = |registry: &mut Registry, record, ms| {
        registry.apply(&Change::Merge(Box::new(RemoteState::Listed(record))), at(ms))
    };
    assert_eq!(silent(&mut own, 40_000, 100_000, |_, _| {}), None);
    assert_eq!(state(&own), Some(Silence::OthersAsk), "and readers see no difference");
    assert!(!own.listed(server()).unwrap().is_unanswered());

    // The record makes the others ask at once, although it brings nothing else.
    let record = state_of(&own, 100_000);
    let mut due = Vec::new();
    other.due(at(100_000), 10, &mut due);
    assert!(due.iter().all(|due| !due.others_ask));
    assert_eq!(merge(&mut other, record.clone(), 100_001), Outcome::Changed);
    assert_eq!(merge(&mut other, record.clone(), 100_001), Outcome::Stale);
    due.clear();
    other.due(at(100_300), 10, &mut due);
    assert!(matches!(&due[..], [Due { others_ask: true, .. }]), "{due:?}");
    // The same proof without the note is older, in whatever order they arrive.
    assert_eq!(merge(&mut other, RemoteServer { silence: Silence::None, ..record.clone() }, 100_301), Outcome::Stale);

    // Another node's answer counts for all.
    other.apply(&answer(server(), 3), at(100_400));
    assert_eq!(merge(&mut own, state_of(&other, 100_400), 100_500), Outcome::Changed);
    assert_eq!((state(&own), state(&other)), (Some(Silence::None), Some(Silence::None)));
    assert_eq!(own.address_state(server(), at(100_500)).unwrap().misses, 0);
    // Without one, the next miss takes it off the list.
    assert_eq!(silent(&mut own, 130_000, 900_000, |_, _| {}), Some(220_000));
}

/// The announcement that says what is known of a server.
fn asked_at(server: &Server) -> Change<'static> {
    asked(server.address, server.proven_at_ms - T)
}

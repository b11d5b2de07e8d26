//! Servers that other masters list.

use super::*;
use crate::model::{Gone, Mirrored, Origin, RemoteServer, RemoteState, round_trip};
use crate::registry::merge::LocalState;

fn origin(name: &str) -> Arc<Origin> {
    Arc::new(Origin::new(name))
}

fn mirror(address: Address, name: &'static str) -> Change<'static> {
    mirror_game(address, "one", name)
}

fn mirror_game(address: Address, game: &'static str, name: &'static str) -> Change<'static> {
    let facts = Facts { name: name.into(), ..Facts::default() };
    Change::Mirror(Box::new(Mirrored { address, game: Game::Own(game), via: origin("x"), rtt_us: 1_000, facts }))
}

fn direct(address: Address, proof: Proof, ms: u64) -> Announce<'static> {
    Announce {
        address,
        game: Game::Own("one"),
        proof,
        proven_at_ms: T + ms,
        life_ms: LIFE_MS,
        asked: proof == Proof::Query,
        rtt_us: None,
        keys: Some(keys("1")),
        facts: Facts { name: "direct".into(), ..Facts::default() },
    }
}

fn answer(address: Address) -> Change<'static> {
    Change::Answer { address, game: Game::Own("one"), rtt_us: 500, facts: None, digest: 0 }
}

fn miss(address: Address) -> Change<'static> {
    Change::Miss { address, game: Game::Own("one"), proven_at_ms: None }
}

fn via(registry: &Registry, address: Address) -> Option<String> {
    registry.listed(address)?.via.as_ref().map(|via| via.name().to_string())
}

fn is_asked(registry: &mut Registry, ms: u64) -> bool {
    let mut due = Vec::new();
    registry.due(at(ms), 100, &mut due);
    !due.is_empty()
}

#[test]
fn a_mirrored_server_stays_while_it_answers_and_leaves_after_its_misses() {
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    assert_eq!(registry.apply(&mirror(server, "a"), at(0)), Outcome::Added);
    let listed = only(&mut registry);
    assert_eq!((listed.verified_by, listed.via.as_deref().map(Origin::name)), (Proof::Query, Some("x")));
    assert_eq!(registry.mirrored(), 1);
    // An hour of answers, and nothing else.
    for ms in (0..=3_600_000).step_by(30_000) {
        assert!(ms == 0 || is_asked(&mut registry, ms));
        registry.apply(&answer(server), at(ms));
        while registry.expire(at(ms), 100) {}
    }
    let listed = only(&mut registry);
    assert_eq!((listed.last_seen_ms, listed.first_seen_ms), (T + 3_600_000, T));
    for number in 1..=3 {
        registry.apply(&miss(server), at(3_600_000 + number * 30_000));
        assert_eq!(registry.listed(server).is_some(), number < 3);
    }
    // It is queried for a while, and would be back with an answer.
    assert!(is_asked(&mut registry, 3_720_000));
    registry.apply(&answer(server), at(3_730_000));
    assert_eq!(via(&registry, server).as_deref(), Some("x"));
    for _ in 0..3 {
        registry.apply(&miss(server), at(3_800_000));
    }
    while registry.expire(at(3_730_000 + 600_000 + wheel::TICK_MS), 100) {}
    assert!(registry.is_empty() && registry.mirrored() == 0);
}

#[test]
fn a_life_is_longer_than_the_misses_that_end_a_listing() {
    for (ask_every_ms, misses_max, expected) in [(30_000, 3, 600_000), (300_000, 3, 1_500_000), (300_000, 1, 900_000)] {
        assert_eq!(Settings { ask_every_ms, misses_max, ..SETTINGS }.mirrored_life_ms(), expected);
    }
}

#[test]
fn another_name_is_an_answer_and_another_game_is_another_server() {
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    registry.set_node(5);
    registry.apply(&mirror(server, "a"), at(0));
    let listed = only(&mut registry);
    assert_eq!((listed.node, listed.rtt_us), (5, Some(round_trip(1_000))));
    assert_eq!(registry.apply(&mirror(server, "b"), at(5_000)), Outcome::Changed);
    let listed = only(&mut registry);
    assert_eq!((listed.texts.name(), listed.first_seen_ms, listed.proven_at_ms), ("b", T, T + 5_000));
    assert_eq!(u64::from(listed.life_ms), 600_000);
    assert_eq!(registry.apply(&mirror_game(server, "other", "b"), at(6_000)), Outcome::Added);
    let listed = only(&mut registry);
    assert_eq!((listed.game.name(), listed.first_seen_ms, registry.mirrored()), ("other", T + 6_000, 1));
}

#[test]
fn new_ones_are_queried_within_an_interval() {
    let mut registry = Registry::new(SETTINGS, at(0));
    for ip in 1..=6 {
        registry.apply(&mirror(address(ip, 1), "a"), at(0));
    }
    assert_eq!(due(&mut registry, 30_250).len(), 6);
}

#[test]
fn the_end_of_a_stronger_proof_is_remembered_and_that_of_a_mirrored_one_is_over_when_it_is_back() {
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    registry.apply(&mirror(server, "a"), at(0));
    for _ in 0..3 {
        registry.apply(&miss(server), at(4_000));
    }
    assert_eq!(registry.own_removals(0, at(4_000)).count(), 1);
    while registry.expire(at(600_000 + wheel::TICK_MS), 100) {}
    assert_eq!(registry.apply(&mirror(server, "a"), at(700_000)), Outcome::Added);
    assert_eq!(registry.own_removals(0, at(700_000)).count(), 0);

    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&Change::Announce(direct(server, Proof::Query, 0)), at(0));
    for _ in 0..3 {
        registry.apply(&miss(server), at(4_000));
    }
    while registry.expire(at(LIFE_MS + wheel::TICK_MS), 100) {}
    assert_eq!(registry.apply(&mirror(server, "a"), at(LIFE_MS + 1_000)), Outcome::Added);
    let state = registry.local_state(server, at(LIFE_MS + 1_000));
    let Some(LocalState::Listed { stronger_gone_ms, .. }) = state else { panic!("{state:?}") };
    assert_eq!(stronger_gone_ms, Some(T + 4_000));
}

#[test]
fn a_removal_that_does_not_end_a_mirrored_server_ends_older_proofs_of_its_game() {
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    registry.apply(&mirror(server, "a"), at(10_000));
    let gone = Gone { address: server, at_ms: T + 5_000, game_at_ms: T + 5_000, quit: false, foreign: true };
    assert_eq!(registry.apply(&Change::Merge(Box::new(RemoteState::Gone(gone))), at(11_000)), Outcome::Stale);
    assert_eq!(registry.apply(&remote(direct(server, Proof::Query, 4_000), None), at(11_000)), Outcome::Stale);
    assert_eq!(via(&registry, server).as_deref(), Some("x"));
    assert_eq!(registry.apply(&remote(direct(server, Proof::Query, 6_000), None), at(11_000)), Outcome::Changed);
}

#[test]
fn an_upstream_neither_edits_nor_extends_nor_ends_what_announces_itself() {
    for proof in [Proof::Query, Proof::Cookie, Proof::Connection] {
        let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
        registry.apply(&Change::Announce(direct(server, proof, 0)), at(0));
        let before = only(&mut registry);
        for change in [mirror(server, "changed"), mirror_game(server, "other", "changed")] {
            assert_eq!(registry.apply(&change, at(LIFE_MS - 1)), Outcome::Stale, "{proof:?}");
        }
        assert!(drained(&mut registry).is_empty() && registry.listed(server) == Some(&before));
        while registry.expire(at(LIFE_MS + wheel::TICK_MS), 100) {}
        assert!(registry.is_empty(), "{proof:?}");
        assert_eq!(registry.apply(&mirror(server, "again"), at(LIFE_MS + 1_000)), Outcome::Added);
    }
    // One that no longer answers is the prober's, too, until its life ends.
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    registry.apply(&Change::Announce(direct(server, Proof::Query, 0)), at(0));
    for _ in 0..3 {
        registry.apply(&miss(server), at(1_000));
    }
    assert_eq!(registry.apply(&mirror(server, "a"), at(2_000)), Outcome::Stale);
    assert!(registry.listed(server).is_none());
    // Neither is a server changed that the operator names.
    let named = address(2, 1);
    registry.apply(&named_servers(named, "one", 1), at(0));
    assert_eq!(registry.apply(&mirror(named, "a"), at(0)), Outcome::Stale);
}

#[test]
fn whoever_announces_itself_takes_over() {
    let server = address(1, 1);
    let heartbeat = Change::Heartbeat { address: server, game: Game::Own("one"), life_ms: LIFE_MS, keys: keys("1") };
    let older = Change::Announce(direct(server, Proof::Query, 5_000));
    for change in [heartbeat, Change::Announce(direct(server, Proof::Query, 20_000)), older] {
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.apply(&mirror(server, "a"), at(10_000));
        drained(&mut registry);
        assert_eq!(registry.apply(&change, at(20_000)), Outcome::Changed, "{change:?}");
        let listed = only(&mut registry);
        assert_eq!((&listed.via, u64::from(listed.life_ms), listed.first_seen_ms), (&None, LIFE_MS, T + 10_000));
        assert_eq!(registry.mirrored(), 0);
        // Its life counts from its announcements now: answers do not extend it.
        registry.apply(&answer(server), at(100_000));
        while registry.expire(at(20_000 + LIFE_MS + wheel::TICK_MS), 100) {}
        assert!(registry.is_empty(), "{change:?}");
    }
    // A connection proves less than an answer.
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&mirror(server, "a"), at(0));
    let weaker = registry.apply(&Change::Announce(direct(server, Proof::Connection, 1)), at(1));
    assert_eq!(weaker, Outcome::Refused(Refusal::StrongerProof));
    assert_eq!(registry.apply(&Change::Quit { address: server, master: false, proven: false }, at(2)), Outcome::Stale);
    assert_eq!(via(&registry, server).as_deref(), Some("x"));
    // The operator vouches for what they name.
    registry.apply(&named_servers(server, "one", 7), at(3));
    let listed = registry.listed(server).unwrap();
    assert_eq!((&listed.via, listed.overrides.priority), (&None, 7));
}

#[test]
fn mirrored_servers_count_for_limits_evict_nobody_and_go_first() {
    let mut registry = Registry::new(SETTINGS, at(0));
    assert_eq!(registry.apply(&mirror(address(1, 1), "a"), at(0)), Outcome::Added);
    assert_eq!(registry.apply(&mirror(address(1, 2), "a"), at(0)), Outcome::Added);
    let third = registry.apply(&mirror(address(1, 3), "a"), at(0));
    assert_eq!(third, Outcome::Refused(Refusal::FullForIp));
    assert_eq!(registry.apply(&announce(address(1, 4), 0, 1), at(0)), Outcome::Refused(Refusal::FullForIp));
    for ip in 2..=5 {
        assert_eq!(registry.apply(&announce(address(ip, 1), 0, 1), at(0)), Outcome::Added);
    }
    assert_eq!(registry.len(), 6);
    let elsewhere = Address::new([203, 0, 113, 1].into(), 1).unwrap();
    assert_eq!(registry.apply(&mirror(elsewhere, "a"), at(0)), Outcome::Refused(Refusal::Full), "evicts nobody");
    // In a full list of one network, its own newcomers evict the newest mirrored one.
    assert_eq!(registry.apply(&announce(address(6, 1), 0, 1), at(0)), Outcome::Added);
    assert!(registry.listed(address(1, 1)).is_some() && registry.listed(address(1, 2)).is_none());
    assert_eq!(registry.apply(&announce(address(7, 1), 0, 1), at(0)), Outcome::Added);
    assert!(registry.listed(address(1, 1)).is_none() && registry.mirrored() == 0);
    assert_eq!(registry.apply(&announce(address(8, 1), 0, 1), at(0)), Outcome::Refused(Refusal::Full));
    assert_eq!(registry.len(), 6);
}

#[test]
fn arrivals_and_departures_leave_no_trace_in_memory() {
    let mut registry = Registry::new(SETTINGS, at(0));
    for number in 0..10_000u64 {
        let server = address((number % 5) as u8, 1);
        registry.apply(&mirror(server, "a"), at(number));
        registry.apply(&Change::Announce(direct(server, Proof::Query, number)), at(number));
        registry.retain(|_| false);
    }
    assert!(registry.mirrored.order.len() <= 100, "{}", registry.mirrored.order.len());
    assert_eq!(registry.mirrored(), 0);

    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&mirror(address(1, 1), "a"), at(0));
    registry.apply(&mirror(address(2, 1), "a"), at(0));
    let arrive = |game| {
        registry.apply(&mirror_game(address(3, 1), game, "a"), at(0));
        registry.mirrored.order.len()
    };
    let most = ["one", "other"].into_iter().cycle().take(1_000).map(arrive).max();
    assert_eq!(most, Some(2 * 3 + 64), "three of which one comes and goes");
}

fn restore(server: &Arc<Server>, ends_at_ms: u64) -> Change<'static> {
    Change::Restore { server: server.clone(), ends_at_ms, grace_ms: 0, behind_ms: 0, ask_in_ms: 500 }
}

#[test]
fn after_a_restart_a_mirrored_server_is_queried_however_long_the_program_was_down() {
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    registry.apply(&mirror(server, "a"), at(0));
    let saved = only(&mut registry);
    let ends_at_ms = saved.last_seen_ms + u64::from(saved.life_ms);
    // Within its life it is listed at once.
    let mut registry = Registry::new(SETTINGS, at(60_000));
    assert_eq!(registry.apply(&restore(&saved, ends_at_ms), at(60_000)), Outcome::Added);
    assert_eq!(via(&registry, server).as_deref(), Some("x"));
    // Later, once it has answered.
    let day = 86_400_000;
    let mut registry = Registry::new(SETTINGS, at(day));
    assert_eq!(registry.apply(&restore(&saved, ends_at_ms), at(day)), Outcome::Refused(Refusal::Late));
    assert!(!is_asked(&mut registry, day) && is_asked(&mut registry, day + 1_000));
    assert!(registry.listed(server).is_none());
    registry.apply(&answer(server), at(day + 1_100));
    assert_eq!(via(&registry, server).as_deref(), Some("x"));
    let mut registry = Registry::new(SETTINGS, at(29 * day));
    registry.apply(&restore(&saved, ends_at_ms), at(29 * day));
    assert!(is_asked(&mut registry, 29 * day + 1_000));
    // Until it is forgotten, its life counts from the start.
    let mut registry = Registry::new(SETTINGS, at(day));
    registry.apply(&restore(&saved, ends_at_ms), at(day));
    while registry.expire(at(day + 600_000 - wheel::TICK_MS), 100) {}
    assert_eq!(registry.len(), 1);
    while registry.expire(at(day + 600_000 + wheel::TICK_MS), 100) {}
    assert!(registry.is_empty());
    // One that announced itself is not: it will do so again.
    let direct = Arc::new(Server { via: None, ..Server::clone(&saved) });
    for (server, ms) in [(&direct, day), (&saved, 30 * day), (&saved, 31 * day)] {
        let mut registry = Registry::new(SETTINGS, at(ms));
        registry.apply(&restore(server, ends_at_ms), at(ms));
        assert!(registry.is_empty());
    }
}

/// A record of another node.
fn remote(announce: Announce<'static>, via: Option<&str>) -> Change<'static> {
    let (first_seen_ms, last_seen_ms) = (announce.proven_at_ms, announce.proven_at_ms);
    let via = via.map(origin);
    let listed = RemoteServer {
        silence: Default::default(),
        announce,
        node: 9,
        first_seen_ms,
        last_seen_ms,
        via,
        stronger_gone_ms: None,
    };
    Change::Merge(Box::new(RemoteState::Listed(listed)))
}

#[test]
fn a_direct_record_wins_over_a_mirrored_one_in_any_order() {
    let server = address(1, 1);
    let ours = remote(direct(server, Proof::Query, 1_000), None);
    let theirs = remote(direct(server, Proof::Query, 2_000), Some("x"));
    for order in [[&ours, &theirs], [&theirs, &ours]] {
        let mut registry = Registry::new(SETTINGS, at(3_000));
        for change in order {
            registry.apply(change, at(3_000));
        }
        let listed = registry.listed(server).unwrap();
        assert_eq!((&listed.via, listed.proven_at_ms), (&None, T + 1_000));
        assert_eq!(registry.mirrored(), 0);
    }
    // That a mirrored one stopped answering says nothing of a server that announces itself.
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&mirror(server, "a"), at(0));
    for _ in 0..3 {
        registry.apply(&miss(server), at(4_000));
    }
    let Some(LocalState::Gone(gone)) = registry.local_state(server, at(4_000)) else { panic!() };
    assert_eq!((gone.at_ms, gone.game_at_ms), (T + 4_000, 0));
    let mut other = Registry::new(SETTINGS, at(0));
    other.apply(&ours, at(3_000));
    other.apply(&Change::Merge(Box::new(RemoteState::Gone(Gone { foreign: true, ..gone }))), at(4_000));
    assert!(other.listed(server).is_some());
    // But it ends the same server at a node that mirrors it, too.
    let mut third = Registry::new(SETTINGS, at(0));
    third.apply(&theirs, at(3_000));
    third.apply(&Change::Merge(Box::new(RemoteState::Gone(Gone { foreign: true, ..gone }))), at(4_000));
    assert!(third.listed(server).is_none());
}

#[test]
fn an_answer_begins_a_life_of_this_nodes_own_length() {
    let (mut registry, server) = (Registry::new(SETTINGS, at(0)), address(1, 1));
    registry.apply(&remote(direct(server, Proof::Query, 0), Some("x")), at(0));
    assert_eq!(u64::from(only(&mut registry).life_ms), LIFE_MS);
    registry.apply(&answer(server), at(30_000));
    let listed = only(&mut registry);
    assert_eq!((u64::from(listed.life_ms), listed.last_seen_ms), (600_000, T + 30_000));
}

#[test]
fn other_nodes_list_a_mirrored_server_while_one_gets_answers() {
    let server = address(1, 1);
    let (mut one, mut other) = (Registry::new(SETTINGS, at(0)), Registry::new(SETTINGS, at(0)));
    one.set_node(1);
    other.set_node(2);
    one.apply(&mirror(server, "a"), at(0));
    for ms in (0..=1_800_000).step_by(30_000) {
        one.apply(&answer(server), at(ms));
        let Some(LocalState::Listed { server, life_left_ms, asked, .. }) = one.local_state(server, at(ms)) else {
            panic!("gone after {ms} ms")
        };
        let announce = Announce {
            address: server.address,
            game: server.game.clone(),
            proof: server.verified_by,
            proven_at_ms: server.proven_at_ms,
            life_ms: life_left_ms,
            asked,
            rtt_us: None,
            keys: None,
            facts: Facts::default(),
        };
        other.apply(&remote(announce, Some("x")), at(ms));
        while other.expire(at(ms), 100) {}
        assert_eq!(via(&other, server.address).as_deref(), Some("x"), "after {ms} ms");
    }
}

//! The edges of the registry's rules: the last moment, the exact field, and what must not happen.

use super::*;
use crate::model::{RemoteServer, RemoteState};

fn merged(announce: Announce<'static>) -> Change<'static> {
    let (first_seen_ms, last_seen_ms) = (announce.proven_at_ms, announce.proven_at_ms);
    let listed = RemoteServer {
        silence: Default::default(),
        announce,
        node: 9,
        first_seen_ms,
        last_seen_ms,
        via: None,
        stronger_gone_ms: None,
    };
    Change::Merge(Box::new(RemoteState::Listed(listed)))
}

fn asked_announce(address: Address, ms: u64) -> Announce<'static> {
    let Change::Announce(announce) = asked(address, ms) else { unreachable!() };
    announce
}

#[test]
fn a_timestamp_up_to_five_seconds_ahead_counts() {
    for (ahead_ms, expected) in [(5_000, Outcome::Stale), (5_001, Outcome::Changed)] {
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.apply(&announce(address(1, 1), ahead_ms, 1), at(0));
        let earlier = announce(address(1, 1), ahead_ms - 1, 2);
        assert_eq!(registry.apply(&earlier, at(0)), expected, "{ahead_ms} ms ahead");
    }
}

/// An announcement takes a round trip; a regular query may be answered in between.
#[test]
fn an_answer_in_between_does_not_cost_an_announcement_its_life() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    let announced = |ms| Change::Announce(Announce { rtt_us: None, ..asked_announce(server, ms) });
    registry.apply(&asked(server, 0), at(0));
    let answer = Change::Answer { address: server, game: Game::Own("one"), rtt_us: 5, facts: None, digest: 0 };
    registry.apply(&answer, at(300_100));
    let proven_at_ms = |registry: &Registry| registry.listed(server).unwrap().proven_at_ms;
    assert_eq!(registry.apply(&announced(300_000), at(300_200)), Outcome::Refreshed);
    assert_eq!(proven_at_ms(&registry), T + 300_100, "the answer is the newer proof");
    assert_eq!(registry.listed(server).unwrap().last_seen_ms, T + 300_000);
    assert_eq!(registry.apply(&announced(300_000), at(300_300)), Outcome::Stale, "once");
    while registry.expire(at(720_000 + wheel::TICK_MS), 100) {}
    assert_eq!(registry.len(), 1);
    while registry.expire(at(1_020_000 + wheel::TICK_MS), 100) {}
    assert!(registry.is_empty());
}

#[test]
fn an_announcement_that_an_answer_overtook_is_published_once_a_quarter_of_a_life() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    let announced = |ms| Change::Announce(Announce { rtt_us: None, ..asked_announce(server, ms) });
    let answer = Change::Answer { address: server, game: Game::Own("one"), rtt_us: 5, facts: None, digest: 0 };
    registry.apply(&asked(server, 0), at(0));
    registry.apply(&answer, at(100_100));
    drained(&mut registry);
    assert_eq!(registry.apply(&announced(100_000), at(100_200)), Outcome::Refreshed);
    assert!(!registry.is_dirty(), "its life is 720 s");
    registry.apply(&answer, at(180_100));
    drained(&mut registry);
    assert_eq!(registry.apply(&announced(180_000), at(180_200)), Outcome::Refreshed);
    assert_eq!(only(&mut registry).last_seen_ms, T + 180_000);
}

#[test]
fn an_older_announcement_with_a_longer_life_prolongs_nothing_where_nobody_asks() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&announce(server, 2_000, 1), at(2_000));
    let Change::Announce(older) = announce(server, 1_000, 1) else { unreachable!() };
    let older = Change::Announce(Announce { life_ms: 720_000, ..older });
    assert_eq!(registry.apply(&older, at(3_000)), Outcome::Stale);
    while registry.expire(at(2_000 + LIFE_MS + wheel::TICK_MS), 100) {}
    assert!(registry.is_empty());
}

#[test]
fn the_same_configuration_again_changes_nothing() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&announce(server, 0, 1), at(0));
    assert_eq!(registry.apply(&named_servers(server, "one", 7), at(0)), Outcome::Changed);
    drained(&mut registry);
    assert_eq!(registry.apply(&named_servers(server, "one", 7), at(0)), Outcome::Refreshed);
    assert!(!registry.is_dirty());
}

#[test]
fn a_list_with_a_server_is_not_empty() {
    let mut registry = Registry::new(SETTINGS, at(0));
    assert!(registry.is_empty());
    registry.apply(&announce(address(1, 1), 0, 1), at(0));
    assert!(!registry.is_empty());
}

#[test]
fn another_interval_applies_from_now_and_the_same_one_moves_no_query() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&asked(server, 0), at(0));
    registry.set_settings(Settings { ask_every_ms: 2_000, ..SETTINGS }, at(1_000));
    assert_eq!(due(&mut registry, 3_250), [server], "not after up to 30 s");

    // Reloaded every 10 s with the same interval, it is still queried.
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&asked(server, 0), at(0));
    for ms in [10_000, 20_000, 30_000] {
        registry.set_settings(Settings { misses_max: 4, ..SETTINGS }, at(ms));
    }
    assert_eq!(due(&mut registry, 30_250), [server]);
}

#[test]
fn a_due_server_is_proven_if_it_answered_the_last_query() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    let proven = |registry: &mut Registry, ms: u64| {
        let mut out = Vec::new();
        registry.due(at(ms), 10, &mut out);
        assert_eq!(out.len(), 1, "at {ms}");
        (out[0].proven, out[0].named)
    };
    registry.apply(&asked(server, 0), at(0));
    assert_eq!(proven(&mut registry, 31_000), (true, false));
    registry.apply(&miss(server), at(32_000));
    assert_eq!(proven(&mut registry, 62_000), (false, false), "it missed one");
    registry.apply(&answer(server, 1), at(63_000));
    assert_eq!(proven(&mut registry, 93_000), (true, false));

    let mut registry = Registry::new(SETTINGS, at(0));
    let named = NamedServer { address: server, game: Game::Own("one"), overrides: Overrides::default(), asked: true };
    registry.apply(&Change::NamedServers(Arc::new([named])), at(0));
    assert_eq!(proven(&mut registry, 0), (false, true), "it has never answered");
}

#[test]
fn what_this_node_proves_is_its_own_whoever_listed_it_before() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.set_node(7);
    let whose = |registry: &Registry| registry.listed(server).map(|server| (server.node, server.foreign));
    registry.apply(&asked(server, 0), at(0));
    assert_eq!(whose(&registry), Some((7, false)));

    let theirs = asked_announce(server, 1_000);
    registry.apply(&merged(theirs.clone()), at(1_000));
    assert_eq!(whose(&registry), Some((9, true)));
    let facts = Facts { name: "renamed".into(), ..Facts::default() };
    let renamed = Announce { proven_at_ms: T + 2_000, rtt_us: Some(9_000), facts, ..theirs };
    registry.apply(&Change::Announce(renamed.clone()), at(2_000));
    assert_eq!(whose(&registry), Some((7, false)));
    assert_eq!(registry.listed(server).unwrap().rtt_us, Some(round_trip(9_000)), "the newest round trip");

    registry.apply(&merged(Announce { proven_at_ms: T + 3_000, ..renamed }), at(3_000));
    assert_eq!(whose(&registry), Some((9, true)));
    assert_eq!(registry.apply(&heartbeat(server, "2"), at(4_000)), Outcome::Changed);
    assert_eq!(whose(&registry), Some((9, false)), "their proof, and our heartbeat, which others lack");
}

#[test]
fn an_announcement_that_brings_a_server_back_cancels_its_removal() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    let removals = |registry: &Registry, ms: u64| registry.own_removals(0, at(ms)).count();
    registry.apply(&asked(server, 0), at(0));
    for _ in 0..3 {
        registry.apply(&miss(server), at(90_000));
    }
    assert_eq!(removals(&registry, 90_000), 1);
    registry.apply(&asked(server, 95_000), at(95_000));
    assert_eq!(removals(&registry, 95_000), 0);

    // A connection does not cancel the removal of a server that answered; only another answer does.
    registry.apply(&Change::Quit { address: server, master: false, proven: false }, at(100_000));
    let connected = Announce { proof: Proof::Connection, asked: false, ..asked_announce(server, 101_000) };
    registry.apply(&Change::Announce(connected), at(101_000));
    assert_eq!((registry.listed(server).is_some(), removals(&registry, 101_000)), (true, 1));
    registry.apply(&asked(server, 102_000), at(102_000));
    assert_eq!(removals(&registry, 102_000), 0);
}

#[test]
fn other_keys_replace_the_keys_and_keep_the_answered_facts() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&asked(server, 0), at(0));
    registry.apply(&answer(server, 2), at(20_000));
    let Change::Announce(again) = announced_by_answer(server, 30_000, "announced") else { unreachable!() };
    let other = Announce { keys: Some(keys("2")), ..again };
    assert_eq!(registry.apply(&Change::Announce(other), at(30_000)), Outcome::Changed);
    let listed = registry.listed(server).unwrap();
    assert_eq!((listed.texts.name(), listed.keys.as_ref()), ("answered", Some(&keys("2"))));
}

#[test]
fn a_heartbeat_is_published_with_other_keys_or_after_a_quarter_of_a_life() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&asked(server, 0), at(0));
    drained(&mut registry);
    assert_eq!(registry.apply(&heartbeat(server, "1"), at(179_999)), Outcome::Refreshed);
    assert!(!registry.is_dirty());
    assert_eq!(registry.apply(&heartbeat(server, "1"), at(180_000)), Outcome::Refreshed);
    assert_eq!(only(&mut registry).last_seen_ms, T + 180_000);
    assert_eq!(registry.apply(&heartbeat(server, "2"), at(180_001)), Outcome::Changed);
    let published = only(&mut registry);
    assert_eq!((published.last_seen_ms, published.keys.as_ref()), (T + 180_001, Some(&keys("2"))));
}

#[test]
fn a_server_is_queried_within_an_interval_after_it_becomes_one_to_query() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&announce(server, 0, 1), at(0)); // cannot be queried
    assert_eq!(due(&mut registry, 60_000), []);
    let announce = Announce { proof: Proof::Query, ..asked_announce(server, 60_000) };
    assert_eq!(registry.apply(&Change::Announce(announce), at(60_000)), Outcome::Changed);
    assert_eq!(due(&mut registry, 74_500), [], "not all at once");
    assert_eq!(due(&mut registry, 90_250), [server]);
}

#[test]
fn with_the_same_key_servers_are_queried_at_the_same_times() {
    let times = |key: u64| {
        let settings = Settings { servers_max: 100, servers_per_ip_max: 100, ..SETTINGS };
        let mut registry = Registry::new(settings, at(0));
        registry.set_spread_key(key);
        for port in 1..=50 {
            registry.apply(&asked(address(1, port), 0), at(0));
        }
        (60..=120).map(|tick| due(&mut registry, tick * 250)).collect::<Vec<_>>()
    };
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
}

#[test]
fn an_announcement_delays_a_query_and_never_hastens_one() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&asked(server, 0), at(0)); // due between 15 s and 30 s
    registry.apply(&announced_by_answer(server, 1_000, "again"), at(1_000));
    assert_eq!(due(&mut registry, 14_750), []);
    assert_eq!(due(&mut registry, 30_250), [server]);
}

#[test]
fn a_named_server_counts_for_no_limit_until_it_is_named_no_more() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&announce(server, 0, 1), at(0));
    assert_eq!(count(&registry, server), 1);
    for _ in 0..2 {
        registry.apply(&named_servers(server, "one", 1), at(0));
        assert_eq!(count(&registry, server), 0);
    }
    registry.set_exempt(Networks::new(&["198.51.100.0/24".parse().unwrap()]));
    assert_eq!(count(&registry, server), 0, "nor when all are counted again");
    registry.apply(&Change::NamedServers(Arc::new([])), at(0));
    assert_eq!(count(&registry, server), 1);
}

#[test]
fn removed_servers_are_not_counted_again_with_other_exempt_networks() {
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&announce(address(1, 1), 0, 1), at(0));
    registry.apply(&announce(address(1, 2), 0, 1), at(0));
    registry.retain(|server| server.port() != 1);
    registry.set_exempt(Networks::new(&["198.51.100.0/24".parse().unwrap()]));
    assert_eq!(count(&registry, address(1, 2)), 1);
}

#[test]
fn only_a_cookie_makes_complaints_about_an_address_suspect() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let addresses = [address(1, 1), "[2001:db8::1]:1".parse().unwrap()];
    for server in addresses {
        registry.apply(&asked(server, 0), at(0));
        assert!(!registry.has_cookie_proof(server.ip()), "{server} is proven by a query");
    }
    for server in addresses {
        registry.apply(&announce(Address::new(server.ip(), 2).unwrap(), 0, 1), at(0));
        assert!(registry.has_cookie_proof(server.ip()), "{server}");
        registry.set_exempt(Networks::new(&[format!("{}/32", server.ip()).parse().unwrap()]));
        assert!(registry.has_cookie_proof(server.ip()), "{server}, also when all are counted again");
    }
}

#[test]
fn the_digest_of_an_answer_is_known_until_something_else_changes_the_server() {
    let server = address(1, 1);
    let mut registry = Registry::new(SETTINGS, at(0));
    let same = |digest| Change::Answer { address: server, game: Game::Own("one"), rtt_us: 5, facts: None, digest };
    let told = |digest| {
        let Change::Answer { address, game, rtt_us, facts, .. } = answer(server, 3) else { unreachable!() };
        Change::Answer { address, game, rtt_us, facts, digest }
    };
    let known = |registry: &Registry| registry.digest(registry.find(server).unwrap());
    registry.apply(&asked(server, 0), at(0));
    assert_eq!(known(&registry), 0);
    registry.apply(&told(7), at(1_000));
    assert_eq!((known(&registry), registry.listed(server).unwrap().players_current), (7, Some(3)));
    assert_eq!(registry.apply(&same(7), at(2_000)), Outcome::Refreshed);
    registry.apply(&same(7), at(500_000));
    assert_eq!(known(&registry), 7, "it was published again, with the same facts");
    assert_eq!(registry.listed(server).unwrap().players_current, Some(3));
    let mut due = Vec::new();
    registry.due(at(600_000), 10, &mut due);
    assert_eq!(due.first().map(|due| due.digest), Some(7));
    // A heartbeat with other keys; the answer to a question from before it was not read.
    registry.apply(&heartbeat(server, "2"), at(600_000));
    assert_eq!(known(&registry), 0);
    registry.apply(&same(7), at(600_100));
    assert_eq!(known(&registry), 0);
    registry.apply(&told(8), at(601_000));
    assert_eq!(known(&registry), 8);
    registry.apply(&same(0), at(602_000));
    assert_eq!(known(&registry), 0, "an answer without a digest");
    registry.apply(&told(8), at(603_000));
    registry.apply(&Change::Quit { address: server, master: false, proven: true }, at(604_000));
    registry.apply(&asked(server, 605_000), at(605_000));
    assert_eq!(known(&registry), 0, "a new server in the same slot");
}

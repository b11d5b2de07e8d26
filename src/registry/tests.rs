//! The registry's rules one by one.

mod edges;
mod mirror;
mod model;
mod records;
mod silence;
mod strength;

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;

use super::view::{Delta, Publisher};
use super::*;
use crate::model::{Facts, Game, HeartbeatKeys, Overrides, Proof};
use crate::prefix::{Networks, Prefix};

const T: u64 = 1_760_000_000_000;
const LIFE_MS: u64 = 120_000;
const SETTINGS: Settings =
    Settings { servers_max: 6, servers_per_ip_max: 2, ask_every_ms: 30_000, misses_max: 3, ..Settings::UNBOUNDED };

fn at(ms: u64) -> Now {
    Now { mono_ms: 5_000 + ms, unix_ms: T + ms }
}

fn address(ip: u8, port: u16) -> Address {
    Address::new([192, 0, 2, ip].into(), port).unwrap()
}

fn announce(address: Address, ms: u64, players: u16) -> Change<'static> {
    announce_game(address, "one", ms, players)
}

fn announce_game(address: Address, game: &'static str, ms: u64, players: u16) -> Change<'static> {
    Change::Announce(Announce {
        address,
        game: Game::Own(game),
        proof: Proof::Cookie,
        proven_at_ms: T + ms,
        life_ms: LIFE_MS,
        asked: false,
        rtt_us: None,
        keys: None,
        facts: Facts { name: "a server".into(), players_current: Some(players), ..Facts::default() },
    })
}

fn named_servers(address: Address, game: &'static str, priority: i32) -> Change<'static> {
    let overrides = Overrides { official: true, priority, flavor: 0 };
    Change::NamedServers(Arc::new([NamedServer { address, game: Game::Own(game), overrides, asked: false }]))
}

/// The entries that count for the limit of an address.
fn count(registry: &Registry, of: Address) -> u32 {
    registry.shares.held(&Prefix::narrowest(of.ip())).entries
}

fn drained(registry: &mut Registry) -> Vec<Dirty> {
    let mut out = Vec::new();
    registry.drain(&mut out);
    out
}

fn only(registry: &mut Registry) -> Arc<Server> {
    match drained(registry).as_slice() {
        [(_, Some(server))] => server.clone(),
        other => panic!("expected one changed server, got {other:?}"),
    }
}

#[test]
fn life_counts_from_the_proof_and_a_replay_extends_nothing() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    assert_eq!(registry.apply(&announce(server, 0, 1), at(10_000)), Outcome::Added);
    assert_eq!(registry.apply(&announce(server, 0, 1), at(29_000)), Outcome::Stale);
    registry.expire(at(LIFE_MS - 1), 100);
    assert_eq!(registry.len(), 1);
    registry.expire(at(LIFE_MS + wheel::TICK_MS), 100);
    assert!(registry.is_empty());
    let late = registry.apply(&announce(server, 0, 1), at(LIFE_MS));
    assert_eq!(late, Outcome::Refused(Refusal::Late));
}

#[test]
fn an_older_announcement_never_overwrites_a_newer_one() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&announce(server, 2_000, 7), at(2_000));
    assert_eq!(registry.apply(&announce(server, 1_000, 3), at(2_100)), Outcome::Stale);
    assert_eq!(only(&mut registry).players_current, Some(7));
}

#[test]
fn of_two_announcements_of_the_same_millisecond_the_second_counts_once() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    let players = |registry: &Registry| registry.listed(server).unwrap().players_current;
    assert_eq!(registry.apply(&announce(server, 1_000, 3), at(1_010)), Outcome::Added);
    assert_eq!(registry.apply(&announce(server, 1_000, 3), at(1_011)), Outcome::Stale, "identical");
    assert_eq!(registry.apply(&announce(server, 1_000, 4), at(1_012)), Outcome::Changed);
    assert_eq!((players(&registry), registry.listed(server).unwrap().proven_at_ms), (Some(4), T + 1_001));
    for replayed in [3, 4] {
        assert_eq!(registry.apply(&announce(server, 1_000, replayed), at(1_013)), Outcome::Stale);
    }
    assert_eq!(players(&registry), Some(4));
    while registry.expire(at(LIFE_MS + 1_000 + wheel::TICK_MS), 100) {}
    assert!(registry.is_empty(), "and its life is not extended");
}

#[test]
fn announcements_count_after_the_clock_was_set_back() {
    let mut registry = Registry::new(SETTINGS, at(3_600_000));
    let server = address(1, 1);
    registry.apply(&announce(server, 3_600_000, 1), at(3_600_000));
    let back = Now { mono_ms: at(3_601_000).mono_ms, unix_ms: T + 1_000 };
    assert_eq!(registry.apply(&announce(server, 1_000, 2), back), Outcome::Changed);
    assert_eq!(registry.apply(&announce(server, 900, 3), back), Outcome::Stale);
}

#[test]
fn unchanged_proofs_are_published_once_a_quarter_of_a_life() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&announce(server, 0, 1), at(0));
    assert_eq!(only(&mut registry).proven_at_ms, T);
    assert_eq!(registry.apply(&announce(server, 29_999, 1), at(29_999)), Outcome::Refreshed);
    assert!(!registry.is_dirty());
    assert_eq!(registry.apply(&announce(server, 30_000, 1), at(30_000)), Outcome::Refreshed);
    let published = only(&mut registry);
    assert_eq!((published.proven_at_ms, published.first_seen_ms), (T + 30_000, T));
    // The life still counts from the newest proof.
    registry.apply(&announce(server, 40_000, 1), at(40_000));
    registry.expire(at(LIFE_MS + 39_000), 100);
    assert_eq!(registry.len(), 1);
}

#[test]
fn limits_apply_to_newcomers_and_places_become_free() {
    let mut registry = Registry::new(SETTINGS, at(0));
    for port in 1..=2 {
        assert_eq!(registry.apply(&announce(address(1, port), 0, 0), at(0)), Outcome::Added);
    }
    let third = announce(address(1, 3), 0, 0);
    assert_eq!(registry.apply(&third, at(0)), Outcome::Refused(Refusal::FullForIp));
    // Named servers neither count for the limit per address nor are subject to it.
    registry.apply(&named_servers(address(1, 3), "one", 1), at(0));
    assert_eq!(registry.apply(&third, at(0)), Outcome::Added);
    registry.apply(&named_servers(address(1, 1), "one", 1), at(0));
    assert_eq!(count(&registry, address(1, 1)), 2, "one is named now, another no longer");
    registry.apply(&named_servers(address(1, 3), "one", 1), at(0));
    for ip in 2..=4 {
        registry.apply(&announce(address(ip, 1), 0, 0), at(0));
    }
    assert_eq!(
        registry.apply(&announce(address(8, 1), 0, 0), at(0)),
        Outcome::Added,
        "for one of the address with two"
    );
    assert_eq!(registry.apply(&announce(address(9, 1), 0, 0), at(0)), Outcome::Refused(Refusal::Full));
    registry.expire(at(LIFE_MS + 1_000), 100);
    assert!(registry.is_empty() && registry.shares.is_empty());
    assert_eq!(registry.apply(&announce(address(9, 1), LIFE_MS, 0), at(LIFE_MS + 1_000)), Outcome::Added);
}

#[test]
fn servers_banned_later_are_removed_and_their_places_become_free() {
    let mut registry = Registry::new(SETTINGS, at(0));
    for (ip, port) in [(1, 1), (1, 2), (2, 1)] {
        registry.apply(&announce(address(ip, port), 0, 0), at(0));
    }
    registry.retain(|server| server.ip() != address(1, 1).ip());
    assert_eq!(registry.len(), 1);
    assert!(registry.listed(address(2, 1)).is_some() && registry.listed(address(1, 1)).is_none());
    assert_eq!(count(&registry, address(1, 1)), 0);
}

#[test]
fn another_game_replaces_the_server_unless_the_operator_names_one() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let place = address(1, 1);
    registry.apply(&announce(place, 0, 1), at(0));
    assert_eq!(registry.apply(&announce_game(place, "other", 1, 1), at(1)), Outcome::Changed);
    let server = only(&mut registry);
    assert_eq!((server.game.name(), server.first_seen_ms), ("other", T + 1));
    assert_eq!(registry.len(), 1);
    // Naming one game removes the other, and keeps it off the list.
    registry.apply(&named_servers(place, "one", 5), at(2));
    assert!(registry.is_empty());
    let refused = Outcome::Refused(Refusal::OtherGameConfigured);
    assert_eq!(registry.apply(&announce_game(place, "other", 3, 1), at(3)), refused);
    registry.apply(&announce(place, 4, 1), at(4));
    assert_eq!(registry.apply(&announce_game(place, "other", 5, 1), at(5)), refused);
    assert_eq!(only(&mut registry).overrides, Overrides { official: true, priority: 5, flavor: 0 });
    // No longer named, it is no longer official.
    registry.apply(&Change::NamedServers(Arc::new([])), at(6));
    assert_eq!(only(&mut registry).overrides, Overrides::default());
}

fn asked(address: Address, ms: u64) -> Change<'static> {
    let Change::Announce(announce) = announce(address, ms, 1) else { unreachable!() };
    let keys = Some(keys("1"));
    Change::Announce(Announce { proof: Proof::Query, life_ms: 720_000, asked: true, rtt_us: Some(5), keys, ..announce })
}

fn keys(port: &str) -> Arc<HeartbeatKeys> {
    Arc::new(HeartbeatKeys([("port", port)].into_iter().collect()))
}

fn heartbeat(address: Address, port: &str) -> Change<'static> {
    Change::Heartbeat { address, game: Game::Own("one"), life_ms: 720_000, keys: keys(port) }
}

fn answer(address: Address, players: u16) -> Change<'static> {
    let facts = Facts { name: "answered".into(), players_current: Some(players), ..Facts::default() };
    Change::Answer { address, game: Game::Own("one"), rtt_us: 25_000, facts: Some(facts), digest: 0 }
}

fn miss(address: Address) -> Change<'static> {
    Change::Miss { address, game: Game::Own("one"), proven_at_ms: None }
}

fn due(registry: &mut Registry, ms: u64) -> Vec<Address> {
    let mut out = Vec::new();
    registry.due(at(ms), 1_000, &mut out);
    out.into_iter().map(|target| target.address).collect()
}

#[test]
fn a_heartbeat_renews_the_life_of_a_listed_server_and_nothing_else() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    let refused = Outcome::Refused(Refusal::NotListed);
    assert_eq!(registry.apply(&heartbeat(server, "1"), at(0)), refused);
    registry.apply(&asked(server, 0), at(0));
    assert_eq!(registry.apply(&heartbeat(server, "1"), at(300_000)), Outcome::Refreshed);
    assert_eq!(registry.apply(&heartbeat(server, "2"), at(300_000)), Outcome::Changed, "other keys");
    let published = only(&mut registry);
    assert_eq!((published.last_seen_ms, published.proven_at_ms), (T + 300_000, T));
    while registry.expire(at(1_000_000), 10) {}
    assert_eq!(registry.len(), 1, "720 s from the heartbeat");
    while registry.expire(at(1_021_000), 10) {}
    assert!(registry.is_empty());
    let other = Change::Heartbeat { address: server, game: Game::Own("other"), life_ms: 1, keys: keys("1") };
    registry.apply(&asked(server, 1_100_000), at(1_100_000));
    assert_eq!(registry.apply(&other, at(1_100_000)), refused, "another game must be proven first");
}

#[test]
fn a_shorter_life_takes_effect() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0)); // 720 s
    let game = Game::Own("one");
    let short = Change::Heartbeat { address: server, game, life_ms: 180_000, keys: keys("1") };
    drained(&mut registry);
    assert_eq!(registry.apply(&short, at(1_000)), Outcome::Refreshed);
    assert_eq!(only(&mut registry).life_ms, 180_000, "a restart uses the published life");
    while registry.expire(at(180_750), 10) {}
    assert_eq!(registry.len(), 1);
    while registry.expire(at(181_250), 10) {}
    assert!(registry.is_empty());

    // An announcement with a shorter life does the same.
    registry.apply(&asked(server, 200_000), at(200_000));
    let Change::Announce(again) = asked(server, 201_000) else { unreachable!() };
    drained(&mut registry);
    registry.apply(&Change::Announce(Announce { life_ms: 60_000, ..again }), at(201_000));
    assert_eq!(only(&mut registry).life_ms, 60_000);
    while registry.expire(at(261_250), 10) {}
    assert!(registry.is_empty());
}

#[test]
fn an_announcement_resets_the_count_of_misses() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0));
    let miss_twice = |registry: &mut Registry, ms: u64| {
        for _ in 0..2 {
            assert_eq!(registry.apply(&miss(server), at(ms)), Outcome::Refreshed, "at {ms}");
        }
    };
    miss_twice(&mut registry, 60_000);
    registry.apply(&asked(server, 61_000), at(61_000));
    miss_twice(&mut registry, 90_000);
    assert_eq!(registry.address_state(server, at(90_000)).unwrap().misses, 2);
    assert_eq!(registry.apply(&miss(server), at(120_000)), Outcome::Changed, "the third in a row");
}

/// A server that was silent when it was asked announces itself before the question has timed out.
#[test]
fn a_miss_does_not_count_after_a_newer_proof() {
    let settings = Settings { misses_max: 1, ..SETTINGS };
    let mut registry = Registry::new(settings, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0));
    let mut targets = Vec::new();
    registry.due(at(60_000), 10, &mut targets);
    let game = Game::Own("one");
    let miss = Change::Miss { address: server, game, proven_at_ms: Some(targets[0].proven_at_ms) };
    registry.apply(&asked(server, 61_000), at(61_000));
    assert_eq!(registry.apply(&miss, at(63_000)), Outcome::Stale);
    assert!(registry.listed(server).is_some());
    registry.due(at(120_000), 10, &mut targets);
    let Change::Miss { address, game, .. } = miss else { unreachable!() };
    let miss = Change::Miss { address, game, proven_at_ms: Some(targets[1].proven_at_ms) };
    assert_eq!(registry.apply(&miss, at(123_000)), Outcome::Changed);
    assert!(registry.listed(server).is_none());
}

/// The announcement of a server in answer to a query: no round trip was measured.
fn announced_by_answer(address: Address, ms: u64, name: &'static str) -> Change<'static> {
    let Change::Announce(announce) = asked(address, ms) else { unreachable!() };
    let facts = Facts { name: name.into(), ..Facts::default() };
    Change::Announce(Announce { rtt_us: None, facts, ..announce })
}

#[test]
fn answers_to_queries_take_precedence_over_announced_facts() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&announced_by_answer(server, 0, "first"), at(0));
    registry.apply(&announced_by_answer(server, 1_000, "second"), at(1_000));
    assert_eq!(only(&mut registry).texts.name(), "second", "it has not been queried yet");
    registry.apply(&answer(server, 2), at(20_000));
    drained(&mut registry);
    let again = announced_by_answer(server, 300_000, "third");
    assert_eq!(registry.apply(&again, at(300_000)), Outcome::Refreshed);
    let listed = only(&mut registry);
    assert_eq!((listed.texts.name(), listed.players_current), ("answered", Some(2)));
    assert_eq!(
        (listed.rtt_us, listed.last_seen_ms),
        (Some(round_trip(25_000)), T + 300_000),
        "and its life is renewed"
    );
    while registry.expire(at(1_000_000), 10) {}
    assert_eq!(registry.len(), 1, "720 s from the last announcement");
    // If it no longer answers, its announcements count.
    for _ in 0..3 {
        registry.apply(&miss(server), at(310_000));
    }
    registry.apply(&announced_by_answer(server, 320_000, "fourth"), at(320_000));
    assert_eq!(only(&mut registry).texts.name(), "fourth");
}

#[test]
fn a_server_that_was_just_queried_is_not_queried_again_within_a_second() {
    let mut registry = Registry::new(Settings { ask_every_ms: 1_000, ..SETTINGS }, at(0));
    let server = address(1, 1);
    registry.apply(&announced_by_answer(server, 0, "first"), at(0));
    assert_eq!(due(&mut registry, 1_000), []);
    assert_eq!(due(&mut registry, 1_500), [server]);
    registry.apply(&announced_by_answer(server, 2_000, "first"), at(2_000));
    assert_eq!(due(&mut registry, 3_000), [], "it would be due now");
    assert_eq!(due(&mut registry, 3_500), [server]);
}

#[test]
fn an_announcement_is_published_when_the_published_heartbeat_is_old_however_new_the_proof() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0));
    registry.apply(&answer(server, 2), at(179_000));
    let answered = only(&mut registry);
    let Change::Announce(announce) = asked(server, 180_000) else { unreachable!() };
    let announce = Change::Announce(Announce { facts: answered.facts(), ..announce });
    assert_eq!(registry.apply(&announce, at(180_000)), Outcome::Refreshed, "it changes nothing");
    assert_eq!(only(&mut registry).last_seen_ms, T + 180_000, "other nodes see that it is alive");
}

#[test]
fn an_answer_that_brings_a_server_back_cancels_its_removal() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0));
    for _ in 0..3 {
        registry.apply(&miss(server), at(90_000));
    }
    assert_eq!(registry.own_removals(0, at(90_000)).collect::<Vec<_>>(), [server]);
    registry.apply(&answer(server, 1), at(95_000));
    assert_eq!(registry.own_removals(0, at(95_000)).count(), 0, "it is listed, so no removal must be put");
}

#[test]
fn a_server_that_is_queued_twice_is_queried_once() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0)); // queued for some time between 15 s and 30 s
    registry.set_settings(Settings { ask_every_ms: 40_000, ..SETTINGS }, at(1_000)); // and between 21 s and 41 s
    let mut counts = Vec::new();
    for ms in (0..41_250).step_by(250) {
        counts.extend(due(&mut registry, ms));
    }
    assert_eq!(counts, [server]);
}

#[test]
fn a_new_server_has_the_round_trip_of_its_proof() {
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&asked(address(1, 1), 0), at(0));
    assert_eq!(only(&mut registry).rtt_us, NonZeroU32::new(5));
}

#[test]
fn answers_fill_in_facts_and_misses_unlist_but_the_entry_stays() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0));
    assert_eq!(registry.apply(&answer(server, 4), at(30_000)), Outcome::Changed);
    let published = only(&mut registry);
    assert_eq!((published.texts.name(), published.players_current), ("answered", Some(4)));
    assert_eq!((published.rtt_us, published.proven_at_ms), (NonZeroU32::new(25_000), T + 30_000));
    for _ in 0..2 {
        assert_eq!(registry.apply(&miss(server), at(60_000)), Outcome::Refreshed);
    }
    assert_eq!(registry.apply(&answer(server, 4), at(61_000)), Outcome::Refreshed, "an answer resets the count");
    drained(&mut registry);
    for _ in 0..2 {
        registry.apply(&miss(server), at(62_000));
    }
    assert!(registry.listed(server).is_some());
    assert_eq!(registry.apply(&miss(server), at(63_000)), Outcome::Changed);
    assert!(registry.listed(server).is_none());
    assert!(matches!(drained(&mut registry)[..], [(_, None)]), "readers see the removal");
    assert_eq!(registry.len(), 1, "the doctor still knows it");
    assert_eq!(registry.apply(&heartbeat(server, "1"), at(64_000)), Outcome::Refused(Refusal::NotListed));
    assert_eq!(registry.apply(&answer(server, 4), at(65_000)), Outcome::Changed, "and it may come back");
    assert_eq!(only(&mut registry).proven_at_ms, T + 65_000);
    assert_eq!(registry.apply(&miss(address(9, 9)), at(0)), Outcome::Stale);
}

#[test]
fn every_server_is_queried_once_per_interval_and_not_all_at_once() {
    let settings = Settings { servers_max: 10_000, servers_per_ip_max: 10_000, ..SETTINGS };
    let mut registry = Registry::new(settings, at(0));
    for port in 1..=3_000 {
        registry.apply(&asked(address(1, port), 0), at(0));
    }
    registry.apply(&announce(address(2, 1), 0, 0), at(0)); // cannot be queried
    let mut counts = Vec::new();
    for round in 0..3u64 {
        let mut seen = std::collections::HashSet::new();
        for ms in (0..30_000).step_by(250) {
            let found = due(&mut registry, 15_000 + round * 30_000 + ms);
            counts.push(found.len());
            for address in found {
                assert!(seen.insert(address), "{address} twice in round {round}");
            }
        }
        assert_eq!(seen.len(), 3_000, "round {round}");
    }
    let most = counts.iter().max().unwrap();
    assert!(*most < 3_000 / 30, "{most} in one tick of 120");
}

#[test]
fn quits_remove_servers_that_came_by_heartbeat_and_masters_only_for_masters() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let quit = |address, master| Change::Quit { address, master, proven: false };
    registry.apply(&announce(address(1, 1), 0, 1), at(0));
    assert_eq!(registry.apply(&quit(address(1, 1), false), at(1)), Outcome::Stale, "it was proven by a cookie");
    registry.apply(&asked(address(1, 2), 0), at(0));
    assert_eq!(registry.apply(&quit(address(1, 2), true), at(1)), Outcome::Stale);
    assert_eq!(registry.apply(&quit(address(1, 2), false), at(1)), Outcome::Changed);
    let Change::Announce(master) = asked(address(2, 1), 0) else { unreachable!() };
    registry.apply(&Change::Announce(Announce { game: Game::master("tanks"), ..master }), at(0));
    assert_eq!(registry.apply(&quit(address(2, 1), false), at(1)), Outcome::Stale, "without the password");
    assert_eq!(registry.apply(&quit(address(2, 1), true), at(1)), Outcome::Changed);
    assert_eq!(registry.apply(&quit(address(9, 9), false), at(1)), Outcome::Stale);
}

#[test]
fn a_named_server_that_quits_is_queried_immediately() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    let named = NamedServer { address: server, game: Game::Own("one"), overrides: Overrides::default(), asked: true };
    registry.apply(&Change::NamedServers(Arc::new([named])), at(0));
    registry.apply(&asked(server, 0), at(0));
    assert!(registry.listed(server).is_some());
    due(&mut registry, 16_000);
    assert_eq!(
        registry.apply(&Change::Quit { address: server, master: false, proven: false }, at(16_100)),
        Outcome::Changed
    );
    assert!(registry.listed(server).is_none());
    assert_eq!(due(&mut registry, 16_250), [server], "queried immediately");
    registry.apply(&answer(server, 2), at(16_300));
    assert!(registry.listed(server).is_some(), "it was running all the time");
    assert_eq!(
        registry.apply(&Change::Quit { address: server, master: false, proven: false }, at(16_400)),
        Outcome::Stale,
        "once"
    );

    // Also if only a connection had proven it, because it no longer answered.
    for _ in 0..3 {
        registry.apply(&miss(server), at(16_500));
    }
    let Change::Announce(connected) = asked(server, 17_000) else { unreachable!() };
    registry.apply(&Change::Announce(Announce { proof: Proof::Connection, asked: false, ..connected }), at(17_000));
    registry.apply(&Change::Quit { address: server, master: false, proven: false }, at(17_100));
    assert_eq!(due(&mut registry, 17_250), [server]);
}

#[test]
fn a_connection_is_no_proof_where_a_query_is_required() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let Change::Announce(connected) = asked(address(1, 1), 0) else { unreachable!() };
    registry.apply(&Change::Announce(Announce { proof: Proof::Connection, asked: false, ..connected }), at(0));
    assert!(registry.listed(address(1, 1)).is_some());
    let refused = Outcome::Refused(Refusal::NotListed);
    assert_eq!(registry.apply(&heartbeat(address(1, 1), "1"), at(1)), refused);
}

#[test]
fn a_named_server_is_queried_immediately_and_listed_while_it_answers() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    let overrides = Overrides { official: true, priority: 0, flavor: 4 };
    let named = NamedServer { address: server, game: Game::Own("one"), overrides, asked: true };
    registry.apply(&Change::NamedServers(Arc::new([named.clone()])), at(0));
    assert!(registry.listed(server).is_none(), "not proven yet");
    assert_eq!(due(&mut registry, 0), [server]);
    assert_eq!(due(&mut registry, 29_000), []);
    assert_eq!(due(&mut registry, 30_000), [server]);
    registry.apply(&answer(server, 2), at(30_000));
    let published = registry.listed(server).unwrap();
    assert_eq!((published.overrides.flavor, published.verified_by), (4, Proof::Query));
    // A named server never expires.
    for hour in 0..50u64 {
        while registry.expire(at(hour * 3_600_000), 10) {}
    }
    assert!(registry.listed(server).is_some());
    // Naming it again changes nothing; no longer named, it is removed.
    registry.apply(&Change::NamedServers(Arc::new([named])), at(180_000_000));
    while registry.expire(at(180_001_000), 10) {}
    assert!(registry.listed(server).is_some());
    registry.apply(&Change::NamedServers(Arc::new([])), at(180_002_000));
    while registry.expire(at(180_003_000), 10) {}
    assert!(registry.is_empty());
}

#[test]
fn restored_servers_have_the_rest_of_their_lives_and_respect_the_size_of_the_list() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let known = |port: u16| {
        let mut server = Server::new(address(1, port), Game::Own("one"), Proof::Cookie, T, &Facts::default());
        server.life_ms = LIFE_MS as u32;
        Arc::new(server)
    };
    let restore = |port: u16, ends_ms: u64| Change::Restore {
        server: known(port),
        ends_at_ms: T + ends_ms,
        grace_ms: 0,
        behind_ms: 0,
        ask_in_ms: 0,
    };
    assert_eq!(registry.apply(&restore(1, 100_000), at(100_000)), Outcome::Refused(Refusal::Late));
    for port in 1..=6 {
        assert_eq!(registry.apply(&restore(port, 110_000), at(100_000)), Outcome::Added, "beyond two for an address");
    }
    assert_eq!(registry.apply(&restore(7, 110_000), at(100_000)), Outcome::Refused(Refusal::Full));
    assert_eq!(registry.apply(&restore(1, 110_000), at(100_000)), Outcome::Stale);
    let mut lives = Vec::new();
    assert_eq!(registry.lives(0, 4, at(101_000), &mut lives), Some(4));
    assert_eq!(registry.lives(4, 4, at(101_000), &mut lives), None);
    let expected = |port| {
        let proven_at_ms = known(port).proven_at_ms;
        Life { address: address(1, port), ends_at_ms: T + 110_000, proven_at_ms }
    };
    assert_eq!(lives, (1..=6).map(expected).collect::<Vec<_>>());
    // Its life goes on, and its next proof counts like any other.
    assert_eq!(registry.apply(&announce(address(1, 1), 105_000, 1), at(105_000)), Outcome::Changed);
    registry.expire(at(111_000), 100);
    assert_eq!(registry.len(), 1);

    // The clock was set back by an hour meanwhile: that must not extend a life.
    let mut registry = Registry::new(SETTINGS, at(0));
    let back = Now { mono_ms: at(0).mono_ms, unix_ms: T - 3_600_000 };
    assert_eq!(registry.apply(&restore(1, LIFE_MS), back), Outcome::Added);
    registry.expire(at(LIFE_MS * 5 / 4 + 1_000), 100);
    assert!(registry.is_empty());
}

#[test]
fn a_slot_is_small_enough_for_a_million_of_them() {
    assert_eq!(size_of::<Slot>(), 64);
}

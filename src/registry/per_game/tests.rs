//! Limits of a game in a network, and who gives way there.

use super::*;
use crate::model::{
    Address, Announce, Change, Facts, Mirrored, NamedServer, Now, Origin, Overrides, Proof, RemoteServer, RemoteState,
};
use crate::registry::{Outcome, Settings};

const T: u64 = 1_760_000_000_000;
const FULL: Outcome = Outcome::Refused(Refusal::FullForGame);

fn at(ms: u64) -> Now {
    Now { mono_ms: 5_000 + ms, unix_ms: T + ms }
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn announcement(at_address: &str, game: &str, ms: u64) -> Announce<'static> {
    Announce {
        address: address(at_address),
        game: Game::carried("many", game),
        proof: Proof::Cookie,
        proven_at_ms: T + ms,
        life_ms: 120_000,
        asked: false,
        rtt_us: None,
        keys: None,
        facts: Facts::default(),
    }
}

fn limits(named: &[(&str, u32)], others: u32) -> GameLimits {
    GameLimits { named: named.iter().map(|(name, most)| (name.to_string(), *most)).collect(), others }
}

fn registry(limits: GameLimits) -> Registry {
    let mut registry = Registry::new(Settings { servers_per_ip_max: 100, ..Settings::UNBOUNDED }, at(0));
    registry.set_game_limits(limits);
    registry
}

fn announce(registry: &mut Registry, at_address: &str, game: &str) -> Outcome {
    registry.apply(&Change::Announce(announcement(at_address, game, 0)), at(0))
}

/// How many of these are added.
fn list(registry: &mut Registry, game: &str, addresses: impl IntoIterator<Item = String>) -> usize {
    let outcomes = addresses.into_iter().map(|text| announce(registry, &text, game));
    outcomes.filter(|outcome| *outcome == Outcome::Added).count()
}

fn flood(net: &str) -> impl Iterator<Item = String> {
    (0..416).map(move |number| format!("{net}.{}:{}", number % 8, number + 1))
}

/// How many servers of a game the registry has counted for the network around an address.
fn counted(registry: &Registry, game: &str, text: &str) -> u32 {
    let network = Prefix::all(address(text).ip(), &Networks::NONE).pop().unwrap();
    let id = registry.per_game.id(&Game::carried("many", game));
    id.map_or(0, |id| registry.per_game.held(id, &network))
}

#[test]
fn a_network_has_so_many_servers_of_a_game_and_others_are_not_concerned() {
    let mut registry = registry(limits(&[("tanks", 40), ("chess", 0)], 200));
    assert_eq!(list(&mut registry, "tanks", flood("192.0.2")), 40);
    assert_eq!(announce(&mut registry, "192.0.2.1:9999", "tanks"), FULL);
    // Another network, another game, the limit of all others, and none.
    assert_eq!(list(&mut registry, "tanks", flood("192.0.3")), 40);
    assert_eq!(list(&mut registry, "planes", flood("192.0.4")), 200);
    assert_eq!(list(&mut registry, "chess", flood("192.0.5")), 416);
    let sixth = (0..500).map(|net| format!("[2001:db8:7:{net:x}::1]:1"));
    list(&mut registry, "tanks", sixth);
    assert_eq!(counted(&registry, "tanks", "[2001:db8:7::1]:1"), 40, "an IPv6 /48");
    // Servers that are known renew themselves, and a place that is free is given again.
    assert_eq!(registry.apply(&Change::Announce(announcement("192.0.2.1:2", "tanks", 1)), at(1)), Outcome::Refreshed);
    registry.retain(|known| known != address("192.0.2.1:2"));
    assert_eq!(announce(&mut registry, "192.0.2.1:9999", "tanks"), Outcome::Added);
}

#[test]
fn without_a_limit_nothing_is_counted() {
    let mut registry = registry(GameLimits::default());
    assert_eq!(list(&mut registry, "tanks", flood("192.0.2")), 416);
    assert!(registry.per_game.held.is_empty() && registry.per_game.counted.is_empty());
    // A limit that is set later removes nobody, and counts who is there.
    registry.set_game_limits(limits(&[], 40));
    assert_eq!((registry.len(), counted(&registry, "tanks", "192.0.2.1:1")), (416, 416));
    assert_eq!(announce(&mut registry, "192.0.2.9:1", "tanks"), Outcome::Added);
    assert_eq!((registry.len(), counted(&registry, "tanks", "192.0.2.9:1")), (416, 416), "one for one");
    registry.retain(|known| known.port() > 386);
    assert_eq!(counted(&registry, "tanks", "192.0.2.9:1"), 29);
    assert_eq!(list(&mut registry, "tanks", flood("192.0.2").take(11)), 11, "up to 40");
    assert_eq!(announce(&mut registry, "192.0.2.1:9999", "tanks"), FULL);
    registry.retain(|_| false);
    assert!(registry.per_game.held.is_empty());
}

#[test]
fn in_a_full_network_the_address_with_the_most_of_the_game_gives_way() {
    let mut registry = registry(limits(&[("tanks", 12)], 0));
    assert_eq!(list(&mut registry, "planes", (1..=50).map(|port| format!("192.0.2.1:{port}"))), 50);
    assert_eq!(list(&mut registry, "tanks", (1..=12).map(|port| format!("192.0.2.2:{port}"))), 12);
    let newcomers = || (1..=6).map(|port| format!("192.0.2.3:{port}"));
    assert_eq!(list(&mut registry, "tanks", newcomers()), 6);
    assert_eq!(counted(&registry, "tanks", "192.0.2.2:1"), 12);
    let left = (1..=12).filter(|port| registry.listed(address(&format!("192.0.2.2:{port}"))).is_some());
    assert_eq!(left.collect::<Vec<u16>>(), [1, 2, 3, 4, 5, 6], "the newest went");
    assert_eq!(announce(&mut registry, "192.0.2.3:7", "tanks"), FULL, "it would have more than anybody");
    assert_eq!(registry.len(), 62, "no server of another game went");
}

#[test]
fn nobody_gives_way_to_one_who_is_refused_all_the_same() {
    let mut registry = registry(limits(&[("tanks", 12)], 0));
    list(&mut registry, "tanks", (1..=12).map(|port| format!("192.0.2.2:{port}")));
    list(&mut registry, "planes", (1..=100).map(|port| format!("192.0.2.1:{port}")));
    assert_eq!(announce(&mut registry, "192.0.2.1:101", "tanks"), Outcome::Refused(Refusal::FullForIp));
    assert_eq!(counted(&registry, "tanks", "192.0.2.2:1"), 12);
}

#[test]
fn another_game_at_a_known_address_is_a_newcomer() {
    let mut registry = registry(limits(&[("tanks", 3)], 0));
    list(&mut registry, "planes", (1..=10).map(|port| format!("192.0.2.1:{port}")));
    let changed = |port: u16| Change::Announce(announcement(&format!("192.0.2.1:{port}"), "tanks", 1_000));
    let outcomes: Vec<Outcome> = (1..=5).map(|port| registry.apply(&changed(port), at(1_000))).collect();
    assert_eq!(outcomes, [Outcome::Changed, Outcome::Changed, Outcome::Changed, FULL, FULL]);
    assert_eq!((counted(&registry, "tanks", "192.0.2.1:1"), registry.len()), (3, 10));
    let back = Change::Announce(announcement("192.0.2.1:1", "planes", 2_000));
    assert_eq!(registry.apply(&back, at(2_000)), Outcome::Changed);
    assert_eq!(counted(&registry, "tanks", "192.0.2.1:1"), 2);
}

#[test]
fn named_servers_exempt_networks_and_masters_have_no_limit() {
    let mut registry = registry(limits(&[("tanks", 2)], 2));
    let named = |text: &str| NamedServer {
        address: address(text),
        game: Game::carried("many", "tanks"),
        overrides: Overrides::default(),
        asked: false,
    };
    let all = ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3"];
    registry.apply(&Change::NamedServers(all.map(named).into()), at(0));
    assert_eq!(list(&mut registry, "tanks", all.map(String::from)), 3);
    assert_eq!(list(&mut registry, "tanks", (11..=13).map(|port| format!("192.0.2.1:{port}"))), 2, "and not counted");
    registry.apply(&Change::NamedServers([].into()), at(0));
    assert_eq!(counted(&registry, "tanks", "192.0.2.1:1"), 5, "no longer named");
    registry.set_exempt(Networks::new(&["198.51.100.0/24".parse().unwrap()]));
    assert_eq!(list(&mut registry, "tanks", (1..=9).map(|host| format!("198.51.100.{host}:1"))), 9);
    assert_eq!(counted(&registry, "tanks", "192.0.2.1:1"), 5);
    // Exempt addresses are not those of the network around them.
    registry.set_exempt(Networks::new(&["192.0.9.0/28".parse().unwrap()]));
    assert_eq!(list(&mut registry, "tanks", (1..=9).map(|port| format!("192.0.9.3:{port}"))), 9);
    list(&mut registry, "tanks", (101..=109).map(|host| format!("192.0.9.{host}:1")));
    let stay = (1..=9).filter(|port| registry.listed(address(&format!("192.0.9.3:{port}"))).is_some());
    assert_eq!(stay.count(), 9, "they do not give way to its newcomers");
    let master = |port: u16| {
        let announcement = announcement(&format!("203.0.113.1:{port}"), "", 0);
        Change::Announce(Announce { game: Game::master("many"), ..announcement })
    };
    assert!((1..=5).all(|port| registry.apply(&master(port), at(0)) == Outcome::Added));
}

#[test]
fn what_other_masters_list_takes_nobodys_place_and_what_other_nodes_list_is_counted() {
    let mut registry = registry(limits(&[("tanks", 4)], 0));
    list(&mut registry, "tanks", (1..=4).map(|port| format!("192.0.2.2:{port}")));
    let mirrored = |text: &str| {
        let (game, facts) = (Game::carried("many", "tanks"), Facts::default());
        let via = std::sync::Arc::new(Origin::new("other"));
        Change::Mirror(Box::new(Mirrored { address: address(text), game, via, rtt_us: 1, facts }))
    };
    assert_eq!(registry.apply(&mirrored("192.0.2.3:1"), at(0)), FULL);
    assert_eq!(registry.apply(&mirrored("192.0.3.3:1"), at(0)), Outcome::Added);
    let announce = announcement("192.0.2.4:1", "tanks", 0);
    let remote = RemoteServer {
        announce,
        node: 9,
        first_seen_ms: T,
        last_seen_ms: T,
        via: None,
        stronger_gone_ms: None,
        silence: Default::default(),
    };
    assert_eq!(registry.apply(&Change::Merge(Box::new(RemoteState::Listed(remote))), at(0)), Outcome::Added);
    assert_eq!(counted(&registry, "tanks", "192.0.2.4:1"), 5);
}

//! The order on lists with known places, and against the plainest way to make it.

use super::*;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A server, as a claim and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct One {
    priority: i32,
    players: u16,
    ip: IpAddr,
    port: u16,
}

fn claim(ip: impl Into<IpAddr>, port: u16, players: u16) -> One {
    One { priority: 0, players, ip: ip.into(), port }
}

/// 300 servers, each in a network of its own: 120 with 48 players, 24, 16, 12 and so on, and 180 empty ones.
fn real() -> Vec<One> {
    let players = |number: u16| if number < 120 { (48 / (number + 1)).max(1) } else { 0 };
    (0..300).map(|number| claim([203, (number >> 8) as u8, number as u8, 1], 27_960, players(number))).collect()
}

/// 32 servers at each of so many addresses, all in networks of their own, that claim 63 players.
fn attackers(addresses: u16) -> Vec<One> {
    let ip = |number: u16| [198, (number >> 8) as u8, number as u8, 9];
    (0..addresses).flat_map(|number| (1..=32).map(move |port| claim(ip(number), port, 63))).collect()
}

fn standings_of(all: &[One]) -> Vec<i64> {
    let claim = |one: &One| Claim { answers: true, priority: one.priority, players: one.players, ip: one.ip };
    standings(all.iter().map(|one| (claim(one), (one.ip, one.port))))
}

fn sorted(all: &[One]) -> Vec<One> {
    let mut all = all.to_vec();
    all.sort_by_key(|one| (one.ip, one.port));
    let mut standings = standings_of(&all).into_iter();
    all.sort_by_cached_key(|_| Reverse(standings.next()));
    all
}

fn by_players(all: &[One]) -> Vec<One> {
    let mut all = all.to_vec();
    all.sort_by_key(|claim| (Reverse(claim.players), claim.ip, claim.port));
    all
}

#[test]
fn those_that_do_not_answer_are_below_all_others_whatever_they_claim() {
    let claim = |answers: bool, priority: i32, players: u16| {
        (Claim { answers, priority, players, ip: [192, 0, 2, players as u8].into() }, players)
    };
    let all = [(true, i32::MIN, 0), (false, i32::MAX, 64), (false, 0, 9), (true, 0, 1), (false, 0, 8), (true, 5, 0)];
    let standings = standings(all.map(|(answers, priority, players)| claim(answers, priority, players)));
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|at| Reverse(standings[*at]));
    assert_eq!(order, [5, 3, 0, 1, 2, 4]);
}

/// The places of some servers, from 1.
fn places(list: &[One], is_one: impl Fn(&One) -> bool) -> Vec<usize> {
    (1..).zip(list).filter(|(_, claim)| is_one(claim)).map(|(place, _)| place).collect()
}

fn ends(places: &[usize]) -> (usize, usize) {
    (*places.first().unwrap(), *places.last().unwrap())
}

/// The numbers of docs/api.md.
#[test]
fn servers_of_a_few_networks_do_not_push_all_others_down() {
    let is_played = |claim: &One| claim.players > 0 && claim.players < 63;
    let is_empty = |claim: &One| claim.players == 0;
    for (addresses, before, after, empty) in [
        (0, (1, 120), (1, 120), (121, 300)),
        (13, (417, 536), (14, 133), (134, 313)),
        (200, (6_401, 6_520), (201, 320), (321, 500)),
    ] {
        let all = [attackers(addresses), real()].concat();
        let (plain, fair) = (by_players(&all), sorted(&all));
        assert_eq!(ends(&places(&plain, is_played)), before, "{addresses}");
        assert_eq!(ends(&places(&fair, is_played)), after, "{addresses}");
        assert_eq!(ends(&places(&fair, is_empty)), empty, "{addresses}");
        let shown = fair.iter().take(400).filter(|claim| claim.players < 63).count();
        assert_eq!(shown, [(0, 300), (13, 300), (200, 200)].into_iter().find(|(of, _)| *of == addresses).unwrap().1);
    }
}

/// As many as stand above without making the list crowded.
#[test]
fn an_attacker_who_knows_the_rule_gains_32_rows_and_half_as_many_as_networks() {
    let few = |addresses: u16, servers: usize| {
        let fakes =
            (0..addresses).flat_map(|number| attackers(200).into_iter().skip(usize::from(number) * 32).take(32));
        let mut fakes: Vec<_> = fakes.collect();
        fakes.sort_by_key(|claim| (claim.port, claim.ip));
        fakes.truncate(servers);
        [fakes, real()].concat()
    };
    let is_real = |claim: &One| claim.players < 32;
    for (addresses, servers, first) in [(1, 32, 34), (13, 52, 54), (13, 53, 15), (200, 332, 334), (200, 333, 202)] {
        assert_eq!(places(&sorted(&few(addresses, servers)), is_real)[0], first, "{addresses} {servers}");
    }
}

/// One host with 32 servers among 300 others.
#[test]
fn a_large_host_with_honest_servers_hardly_notices() {
    let host =
        |players: fn(u16) -> u16| (0..32).map(move |number| claim([192, 0, 2, 1], 100 + number, players(number)));
    let is_host = |claim: &One| claim.ip == IpAddr::from([192, 0, 2, 1]);
    let compared = |players: fn(u16) -> u16| {
        let all: Vec<_> = host(players).chain(real()).collect();
        (places(&by_players(&all), is_host), places(&sorted(&all), is_host), sorted(&all))
    };
    // As busy as the others, and more: where the 1st, 2nd, 4th, 8th, 16th and 32nd stand, sorted by players and fairly.
    let some = |places: &[usize]| [1, 2, 4, 8, 16, 32].map(|number| places[number - 1]);
    let (plain, fair, _) = compared(|number| if number < 13 { 40 / (number + 1) } else { 0 });
    assert_eq!((some(&plain), some(&fair)), ([2, 4, 8, 16, 136, 152], [2, 4, 10, 20, 316, 332]));
    let (plain, fair, list) = compared(|_| 20);
    assert_eq!((some(&plain), some(&fair)), ([3, 4, 6, 10, 18, 34], [3, 5, 7, 11, 19, 35]));
    // None ever stands below a server with less than half of its players.
    for (place, claim) in list.iter().enumerate().filter(|(_, claim)| is_host(claim)) {
        assert!(list.iter().take(place).all(|above| level(above.players) >= level(claim.players)));
    }
}

#[test]
fn the_addresses_of_a_network_take_turns_and_so_do_networks() {
    let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
    // The best first: one address of the first network has the three best.
    let v4 = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.0.2"];
    assert_eq!(rounds(&ips(&v4)), [0, 2, 4, 1, 0, 3]);
    let v6 = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db8:1::1", "::ffff:10.0.0.1", "10.0.0.9"];
    assert_eq!(rounds(&ips(&v6)), [0, 2, 1, 0, 0, 1]);
    assert_eq!(rounds(&[]), [0; 0]);
    // Thirteen addresses of one network are one network.
    let of_one = (0..13u8).flat_map(|host| (1..=32).map(move |port| claim([198, 51, 100, host], port, 63)));
    let list = sorted(&of_one.chain(real()).collect::<Vec<_>>());
    assert_eq!(ends(&places(&list, |claim| (1..63).contains(&claim.players))), (2, 121));
    let ports: Vec<_> = list.iter().filter(|claim| claim.players == 63).map(|claim| claim.port).collect();
    assert!(ports.chunks(13).zip(1..).all(|(turn, port)| turn.iter().all(|it| *it == port)), "{ports:?}");
}

#[test]
fn the_operators_priority_comes_before_all() {
    let mut all = attackers(2);
    all[63].priority = 1;
    all[0].priority = -1;
    let list = sorted(&all);
    assert_eq!((list[0], list[63]), (all[63], all[0]));
    let extremes = [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX];
    let one = |priority| One { priority, players: u16::MAX, ..all[1] };
    let found = standings_of(&extremes.map(one));
    assert!(found.is_sorted_by(|one, next| one < next), "{found:?}");
}

#[test]
fn rounds_beyond_the_last_are_one() {
    let many: Vec<_> = (1..=5_000).map(|port| claim([192, 0, 2, 1], port, 1)).collect();
    assert!(standings_of(&many).is_sorted_by(|one, next| one >= next));
}

fn claims() -> impl Strategy<Value = Vec<One>> {
    let ip = prop_oneof![
        (0..3u8, 0..3u8).prop_map(|(network, host)| IpAddr::from([192, 0, network, host])),
        (0..2u16, 0..2u16, 0..2u16).prop_map(|(a, b, c)| Ipv6Addr::from([0x2001, 0xdb8, a, b, 0, 0, 0, c]).into()),
    ];
    let priority = prop_oneof![8 => Just(0), 1 => Just(3), 1 => Just(-3)];
    let one = (ip, 1..200u16, 0..40u16, priority).prop_map(|(ip, port, players, priority)| One {
        priority,
        players,
        ip,
        port,
    });
    proptest::collection::vec(one, 0..150).prop_map(|mut all| {
        all.sort_by_key(|claim| (claim.ip, claim.port));
        all.dedup_by_key(|claim| (claim.ip, claim.port));
        all
    })
}

/// The same in the plainest way.
fn plainly(all: &[One]) -> Vec<One> {
    let mut list = Vec::new();
    for priority in [3, 0, -3] {
        let base = by_players(&all.iter().copied().filter(|claim| claim.priority == priority).collect::<Vec<_>>());
        let mut begun = 0;
        for end in 1..=base.len() {
            let networks = base[..end].iter().map(|claim| Prefix::widest(claim.ip)).collect::<HashSet<_>>().len();
            let ends = base.get(end).is_none_or(|below| {
                let per_network = if below.players == 0 { 2.0 } else { 0.5 };
                level(below.players) < level(base[end - 1].players)
                    && (end - networks) as f64 <= (per_network * networks as f64).floor() + 32.0
            });
            if ends {
                list.extend(in_turns(&base[begun..end]));
                begun = end;
            }
        }
    }
    list
}

fn in_turns(class: &[One]) -> Vec<One> {
    let turns = |all: Vec<Vec<One>>| {
        (0..class.len())
            .flat_map(move |turn| by_players(&all.iter().filter_map(|one| one.get(turn).copied()).collect::<Vec<_>>()))
            .collect::<Vec<_>>()
    };
    let split = |all: &[One], by: fn(IpAddr) -> Prefix| {
        let keys: HashSet<Prefix> = all.iter().map(|claim| by(claim.ip)).collect();
        keys.into_iter()
            .map(|key| all.iter().copied().filter(|claim| by(claim.ip) == key).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    let networks = split(class, Prefix::widest).into_iter().map(|network| turns(split(&network, Prefix::narrowest)));
    turns(networks.collect())
}

proptest! {
    #[test]
    fn the_order_is_that_of_the_plainest_way_however_they_come_in(all in claims(), rotated in 0..150usize) {
        let mut other = all.clone();
        other.rotate_left(rotated.min(all.len()));
        prop_assert_eq!(&sorted(&all), &plainly(&all));
        prop_assert_eq!(&sorted(&other), &plainly(&all));
    }

    #[test]
    fn networks_with_one_server_each_and_a_single_address_are_sorted_by_players(players in proptest::collection::vec(0..100u16, 0..200)) {
        let each = players.iter().zip(0..).map(|(players, number)| claim(Ipv4Addr::from_bits(0xc000_0201 + (number << 8)), 1, *players));
        let each: Vec<_> = each.collect();
        prop_assert_eq!(sorted(&each), by_players(&each));
        let single: Vec<_> = each.iter().zip(1..).map(|(it, port)| One { ip: [192, 0, 2, 1].into(), port, ..*it }).collect();
        prop_assert_eq!(sorted(&single), by_players(&single));
    }
}

//! Who is admitted, and whose connection is closed for it.

use super::*;
use std::net::Ipv4Addr;

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn ipv6(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn limits(connections_max: usize, per_ip_max: u32) -> Settings {
    Settings { connections_max, per_ip_max, ..Settings::default() }
}

fn guard(connections_max: usize, per_ip_max: u32) -> Arc<Guard> {
    Arc::new(Guard::new(limits(connections_max, per_ip_max)))
}

fn networks(networks: &[&str]) -> Networks {
    Networks::new(&networks.iter().map(|network| network.parse().unwrap()).collect::<Vec<_>>())
}

/// Makes the first the longest idle and the last the most recently active.
fn by_idle_time(admissions: &[&Admission]) {
    for (at_us, admission) in (1..).zip(admissions) {
        admission.connection.active_at_us.store(at_us, Ordering::Relaxed);
    }
}

fn evicted(admission: &Admission) -> bool {
    let waiting = std::pin::pin!(admission.evicted());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    waiting.poll(&mut context).is_ready()
}

#[test]
fn those_who_hold_an_answer_for_longest_are_evicted_first() {
    let guard = guard(100, 100);
    let admissions: Vec<_> = (0..4).map(|last| guard.admit(ip(last)).unwrap()).collect();
    for (admission, since_us) in admissions.iter().zip([0, 30, 10, 20]) {
        admission.connection.holding_since_us.store(since_us, Ordering::Relaxed);
    }
    admissions[1].hold();
    assert_eq!(admissions[1].connection.holding_since_us.load(Ordering::Relaxed), 30, "since it began");
    admissions[3].release();
    assert_eq!(guard.evict_holders(1), 1);
    assert!(evicted(&admissions[2]) && !evicted(&admissions[1]));
    assert_eq!(guard.evict_holders(5), 1);
    assert!(evicted(&admissions[1]) && !evicted(&admissions[0]) && !evicted(&admissions[3]));
    assert_eq!((guard.evict_holders(5), guard.connections()), (0, 2));
    admissions[0].hold();
    assert_eq!(guard.evict_holders(5), 1);
}

#[test]
fn the_network_that_holds_the_most_answers_loses_them_first() {
    let guard = guard(100, 100);
    let network = |third| (0..2).map(move |last| IpAddr::from([192, 0, third, last]));
    let admissions: Vec<_> = [ip(9)].into_iter().chain(network(1)).map(|ip| guard.admit(ip).unwrap()).collect();
    for (admission, since_us) in admissions.iter().zip([1, 30, 20]) {
        admission.connection.holding_since_us.store(since_us, Ordering::Relaxed);
    }
    assert_eq!(guard.evict_holders(1), 1);
    assert!(evicted(&admissions[2]) && !evicted(&admissions[0]), "one alone has held its answer for longer");
    assert_eq!(guard.evict_holders(1), 1);
    assert!(evicted(&admissions[0]), "with one each, the longest");
}

#[test]
fn one_address_evicts_only_its_own_longest_idle() {
    let guard = guard(100, 2);
    let other = guard.admit(ip(9)).unwrap();
    let first = guard.admit(ip(1)).unwrap();
    let second = guard.admit(ip(1)).unwrap();
    by_idle_time(&[&other, &second, &first]);
    let third = guard.admit(ip(1)).unwrap();
    assert!(evicted(&second));
    assert!(!evicted(&first) && !evicted(&third) && !evicted(&other));
    assert_eq!(guard.connections(), 3);
    drop((first, second, third, other));
    assert_eq!(guard.connections(), 0);
    assert!(guard.groups().by_prefix.is_empty());
}

#[test]
fn an_ipv6_64_counts_as_one_address() {
    let guard = guard(100, 2);
    let first = guard.admit(ipv6("2001:db8::1")).unwrap();
    let second = guard.admit(ipv6("2001:db8::2")).unwrap();
    let neighbour = guard.admit(ipv6("2001:db8:0:1::1")).unwrap();
    by_idle_time(&[&neighbour, &first, &second]);
    let third = guard.admit(ipv6("2001:db8::3")).unwrap();
    assert!(evicted(&first));
    assert!(!evicted(&second) && !evicted(&third) && !evicted(&neighbour));
}

#[test]
fn a_wider_network_pushes_out_only_its_own_longest_idle() {
    let guard = guard(100, 1);
    let elsewhere = guard.admit("198.51.100.1".parse().unwrap()).unwrap();
    // 8 in a /24, each at its own address.
    let all: Vec<_> = (1..=8).map(|last| guard.admit(ip(last)).unwrap()).collect();
    by_idle_time(&[&elsewhere, &all[1], &all[0], &all[2], &all[3], &all[4], &all[5], &all[6], &all[7]]);
    let _ninth = guard.admit(ip(9)).unwrap();
    assert_eq!(all.iter().map(evicted).collect::<Vec<_>>(), [false, true, false, false, false, false, false, false]);
    assert!(!evicted(&elsewhere));
    // 4 in a /56, and 16 in a /48.
    let of_56: Vec<_> = (0..4).map(|net| guard.admit(ipv6(&format!("2001:db8:0:{net}::1"))).unwrap()).collect();
    let _fifth = guard.admit(ipv6("2001:db8:0:4::1")).unwrap();
    assert_eq!(of_56.iter().filter(|admission| evicted(admission)).count(), 1);
    let _of_48: Vec<_> = (1..=16).map(|net| guard.admit(ipv6(&format!("2001:db8:0:{net:x}00::1"))).unwrap()).collect();
    assert_eq!(guard.connections(), 1 + 8 + 16);
}

#[test]
fn exempt_networks_have_only_the_limit_of_an_address() {
    let guard = guard(100, 1);
    let exempt = networks(&["192.0.2.0/24"]);
    guard.set(Settings { budgets: budget::Settings { exempt, ..Default::default() }, ..limits(100, 1) });
    let all: Vec<_> = (1..=20).map(|last| guard.admit(ip(last)).unwrap()).collect();
    assert_eq!(guard.connections(), 20);
    let _again = guard.admit(ip(1)).unwrap();
    assert!(evicted(&all[0]));
}

#[test]
fn a_proxy_has_no_limit_of_its_own_but_counts_for_the_limit_in_all() {
    let guard = guard(20, 1);
    let all: Vec<_> = (0..20).map(|_| guard.admit_proxy(ip(1)).unwrap()).collect();
    assert_eq!(guard.connections(), 20);
    let _client = guard.admit(ip(1)).unwrap();
    assert_eq!(all.iter().filter(|admission| evicted(admission)).count(), 1, "the limit in all");
    assert_eq!(guard.connections(), 20);
    guard.set(Settings { bans: networks(&["192.0.2.1/32"]), ..limits(20, 1) });
    assert!(guard.admit_proxy(ip(1)).is_none());
}

#[test]
fn a_connection_that_sends_a_request_is_not_idle() {
    let guard = guard(100, 2);
    let first = guard.admit(ip(1)).unwrap();
    let second = guard.admit(ip(1)).unwrap();
    by_idle_time(&[&first, &second]);
    // Wait until the guard's clock is past the times set above.
    while guard.now_us() <= 2 {
        std::thread::yield_now();
    }
    first.touch();
    let _third = guard.admit(ip(1)).unwrap();
    assert!(evicted(&second) && !evicted(&first));
}

#[test]
fn indexes_stay_right_as_connections_come_and_go() {
    let guard = guard(1_000, 1_000);
    let mut all: Vec<_> = (0..200u16).map(|number| guard.admit(ip((number % 3) as u8)).unwrap()).collect();
    for number in 0..150 {
        drop(all.swap_remove(number * 7 % all.len()));
    }
    assert_eq!(guard.connections(), 50);
    {
        let groups = guard.groups();
        let counted: usize = (0..3).map(|last| groups.by_prefix[&Prefix::narrowest(ip(last))].connections.len()).sum();
        let widest = Prefix::all(ip(0), &Networks::default())[1];
        assert_eq!((counted, groups.by_prefix[&widest].connections.len()), (50, 50));
    }
    drop(all);
    assert!(guard.groups().by_prefix.is_empty() && guard.connections() == 0);
}

#[test]
fn a_full_guard_evicts_the_longest_idle_for_anyone() {
    let guard = guard(10, 100);
    let all: Vec<_> = (0..10).map(|last| guard.admit(ip(last)).unwrap()).collect();
    for (age, admission) in all.iter().enumerate() {
        admission.connection.active_at_us.store(100 - age as u64, Ordering::Relaxed);
    }
    let _new = guard.admit(ip(50)).unwrap();
    assert_eq!(guard.connections(), 10);
    let gone: Vec<_> = all.iter().map(evicted).collect();
    assert_eq!(gone.iter().filter(|gone| **gone).count(), 1);
    assert!(gone[9], "the longest idle one: {gone:?}");
}

#[test]
fn every_connection_is_compared_in_its_turn() {
    let guard = guard(100, 100);
    let all: Vec<_> = (0..64).map(|last| guard.admit(ip(last)).unwrap()).collect();
    for admission in all.iter().rev() {
        all.iter().for_each(|other| other.connection.active_at_us.store(9, Ordering::Relaxed));
        admission.connection.active_at_us.store(1, Ordering::Relaxed);
        let mut groups = guard.groups();
        let mut found = (0..64 / 16).filter_map(|_| groups.all.longest_idle(16, None));
        assert!(found.any(|found| Arc::ptr_eq(&found, &admission.connection)));
    }
}

#[test]
fn only_other_budgets_forget_what_was_used() {
    let guard = guard(10, 10);
    let now = crate::model::Now { mono_ms: 0, unix_ms: 0 };
    let search = || guard.budgets().take(budget::Kind::Searches, now, ip(1), 1_000_000);
    assert!(search().is_ok() && search().is_err());
    guard.set(limits(20, 10));
    assert!(search().is_err(), "the limit of connections is no budget");
    let budgets = budget::Settings { servers_per_ip_max: 7, ..budget::Settings::default() };
    guard.set(Settings { budgets: budgets.clone(), ..limits(20, 10) });
    assert!(search().is_ok());
    assert_eq!(*guard.budgets().settings(), budgets);
}

#[test]
fn banned_addresses_are_not_admitted() {
    let with_bans = || Settings { bans: networks(&["192.0.2.0/28"]), ..limits(10, 10) };
    let guard = Arc::new(Guard::new(with_bans()));
    assert!(guard.admit(ip(15)).is_none());
    assert!(guard.admit("::ffff:192.0.2.1".parse().unwrap()).is_none());
    assert!(guard.admit(ip(16)).is_some());
    guard.set(limits(10, 10));
    let inside = guard.admit(ip(15)).unwrap();
    guard.set(with_bans());
    assert!(evicted(&inside), "banned while connected");
    guard.set_bans(Networks::default());
    let (inside, outside) = (guard.admit(ip(15)).unwrap(), guard.admit(ip(16)).unwrap());
    assert_eq!(guard.set_bans(with_bans().bans), 1);
    assert!(evicted(&inside) && !evicted(&outside) && guard.admit(ip(15)).is_none());
}

#[test]
fn lowered_limits_take_effect_with_the_next_connection() {
    let guard = guard(100, 100);
    let _all: Vec<_> = (0..20).map(|last| guard.admit(ip(last)).unwrap()).collect();
    guard.set(limits(5, 100));
    let _new = guard.admit(ip(50)).unwrap();
    assert_eq!(guard.connections(), 5);
    guard.evict_idle();
    assert_eq!(guard.connections(), 4);
}

/// Whatever comes afterwards is less idle.
fn all_idle_from_the_start(guard: &Guard, admissions: &[Admission]) {
    admissions.iter().for_each(|admission| admission.connection.active_at_us.store(0, Ordering::Relaxed));
    while guard.now_us() == 0 {
        std::thread::yield_now();
    }
}

/// Those among them that were evicted.
fn evicted_of(admissions: &[Admission]) -> Vec<usize> {
    admissions.iter().enumerate().filter(|(_, admission)| evicted(admission)).map(|(number, _)| number).collect()
}

#[test]
fn a_24_that_fills_the_table_and_churns_evicts_nobody_else() {
    let guard = guard(8_192, 1_024);
    // Readers that have been idle for longer than anything of the attacker's: one alone, some that share an address, some in the
    // attacker's own provider, and IPv6.
    let alone = (0..100).map(|net| IpAddr::from([198, net, 100, 1]));
    let school = [IpAddr::from([203, 0, 113, 5]); 200];
    let neighbours = (0..100).map(|net| IpAddr::from([192, 0, 100 + net, 1]));
    let sixth = (0..100).map(|net| ipv6(&format!("2001:db8:{net:x}::1")));
    let readers = alone.chain(school).chain(neighbours).chain(sixth).map(|ip| guard.admit(ip).unwrap());
    let readers: Vec<_> = readers.collect();
    all_idle_from_the_start(&guard, &readers);
    let mut attack: Vec<_> = (0..8_192u32).map(|number| guard.admit(ip((number % 8) as u8)).unwrap()).collect();
    assert!(guard.connections() == 8_192 && evicted_of(&readers).is_empty());
    for number in 0..20_000u32 {
        // Some it closes itself, and some it opens at other addresses of its network.
        let place = (number * 7_919 % 8_192) as usize;
        attack[place] = guard.admit(ip((number % 250) as u8)).unwrap();
        attack[place].touch();
    }
    let _others: Vec<_> = (0..2_000u32).map(|number| guard.admit(ip((number % 8) as u8)).unwrap()).collect();
    assert_eq!((guard.connections(), evicted_of(&readers)), (8_192, vec![]));
}

#[test]
fn an_honest_mix_loses_the_longest_idle() {
    let guard = guard(15, 100);
    // Three in each of five networks.
    let ips = (0..15).map(|number| IpAddr::from([203, number % 5, 113, number]));
    let all: Vec<_> = ips.map(|ip| guard.admit(ip).unwrap()).collect();
    let mut by_age: Vec<&Admission> = all.iter().collect();
    by_age.rotate_left(7);
    by_idle_time(&by_age);
    let _new = guard.admit("192.0.2.1".parse().unwrap()).unwrap();
    assert_eq!(evicted_of(&all), [7], "the longest idle of all");
    let _another = guard.admit("198.51.100.1".parse().unwrap()).unwrap();
    assert_eq!(evicted_of(&all), [8]);
}

#[test]
fn whoever_would_hold_the_most_gives_way_itself() {
    let guard = guard(6, 100);
    let ips = ["192.0.2.1", "192.0.2.1", "198.51.100.1", "198.51.100.2", "203.0.113.1", "203.0.113.1"];
    let all: Vec<_> = ips.iter().map(|ip| guard.admit(ip.parse().unwrap()).unwrap()).collect();
    by_idle_time(&all.iter().collect::<Vec<_>>());
    let _third = guard.admit("198.51.100.1".parse().unwrap()).unwrap();
    assert_eq!(evicted_of(&all), [2], "its own network, and in it the address that holds the most");
    // A network that has less takes from those that have more, the longest idle first. The third is newer than all others.
    let _new: Vec<_> = (1..=2).map(|net| guard.admit(IpAddr::from([10, net, 0, 1])).unwrap()).collect();
    assert_eq!(evicted_of(&all), [0, 3]);
    assert_eq!(guard.connections(), 6);
}

#[test]
fn a_connection_of_a_proxy_counts_like_a_network_of_its_own() {
    let guard = guard(30, 100);
    let clients: Vec<_> = (0..10).map(|_| guard.admit_proxy(ip(1)).unwrap()).collect();
    all_idle_from_the_start(&guard, &clients);
    let flood: Vec<_> = (0..60).map(|_| guard.admit("203.0.113.5".parse().unwrap()).unwrap()).collect();
    assert_eq!((evicted_of(&clients), evicted_of(&flood).len()), (vec![], 40));
    // Where no network holds more than one, the longest idle goes.
    let _new: Vec<_> = (0..21).map(|net| guard.admit(IpAddr::from([10, net, 0, 1])).unwrap()).collect();
    assert_eq!((evicted_of(&clients).len(), evicted_of(&flood).len()), (2, 19));
}

#[test]
fn a_ranking_is_kept_while_the_table_is_full_and_no_longer() {
    let guard = guard(80, 100);
    let ips: Vec<IpAddr> = (0..80).map(|number| [10, number, 0, 1].into()).collect();
    let mut all: Vec<_> = ips.iter().map(|ip| guard.admit(*ip).unwrap()).collect();
    assert!(guard.groups().ranking.is_none());
    all.push(guard.admit(ip(1)).unwrap());
    all.truncate(75);
    let most = |guard: &Guard| guard.groups().ranking.as_ref().map(|ranking| ranking.most(None));
    assert_eq!(most(&guard), Some(1));
    all.push(guard.admit(ips[70]).unwrap());
    assert_eq!(most(&guard), Some(2), "counted without a full table");
    all.truncate(60);
    assert_eq!((most(&guard), guard.connections() <= 60), (None, true));
    // Other networks are exempt from now on.
    guard.set(limits(10, 100));
    all.push(guard.admit(ip(1)).unwrap());
    let exempt = networks(&["10.0.0.0/8"]);
    guard.set(Settings { budgets: budget::Settings { exempt, ..Default::default() }, ..limits(10, 100) });
    assert!(guard.groups().ranking.is_none());
    drop(all);
    assert!(guard.connections() == 0 && guard.groups().by_prefix.is_empty());
}

#[test]
fn a_provider_that_holds_an_answer_in_each_of_its_networks_loses_them_first() {
    let guard = guard(100, 100);
    let provider = (0..4).map(|third| IpAddr::from([203, 0, third * 16, 1]));
    let admissions: Vec<_> = [ip(9)].into_iter().chain(provider).map(|ip| guard.admit(ip).unwrap()).collect();
    for (admission, since_us) in admissions.iter().zip([1, 30, 20, 40, 50]) {
        admission.connection.holding_since_us.store(since_us, Ordering::Relaxed);
    }
    assert_eq!((guard.evict_holders(1), evicted_of(&admissions)), (1, vec![2]));
}

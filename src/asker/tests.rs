//! Retries, rate limits and bounds of the asker.

mod edges;
mod forgery;
mod port;
mod same;
mod spacing;

use super::*;
use crate::protocols::testing::{one_step, two_steps};

const SETTINGS: Settings =
    Settings { tries: 3, try_us: 1_000_000, all_us: 10_000_000, per_second: 1_000, per_ip_per_second: 1_000 };

/// For tests that need only one.
const LANE: Lane = 7;

fn asker(settings: Settings) -> Asker<u32> {
    Asker::new(settings, [9; 16])
}

fn server(port: u16) -> Address {
    Address::new([192, 0, 2, 1].into(), port).unwrap()
}

#[test]
fn the_answer_with_the_nonce_counts_and_nothing_else() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 7).unwrap();
    assert_eq!(asker.ask(server(1), one_step::QUERY, Ask::Proof, 8), Err(8));
    let (address, question) = asker.next_question(1_000, LANE).unwrap();
    assert_eq!(address, server(1));
    assert!(asker.next_question(1_000, LANE).is_none());
    let answer = one_step::answer(&question);
    assert!(asker.heard(2_000, LANE, server(2).socket(), &answer).is_none(), "from another address");
    let mut forged = answer.clone();
    forged[3] ^= 0x10;
    assert!(asker.heard(2_000, LANE, server(1).socket(), &forged).is_none(), "another nonce");
    assert!(asker.heard(2_000, LANE, server(1).socket(), &answer[..228]).is_none(), "cut");
    let finished = asker.heard(26_000, LANE, server(1).socket(), &answer).unwrap();
    assert_eq!((finished.tag, finished.address), (7, server(1)));
    let answered = finished.result.unwrap();
    assert_eq!(answered.rtt_us, 25_000);
    assert_eq!(answered.facts.unwrap().name, one_step::TITLE);
    assert_eq!((asker.in_flight(), asker.fresh()), (0, 0));
    assert!(asker.heard(26_000, LANE, server(1).socket(), &answer).is_none(), "a second time");
}

#[test]
fn a_lost_question_is_asked_again_and_a_late_answer_has_its_own_round_trip() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 0).unwrap();
    let (_, first) = asker.next_question(0, LANE).unwrap();
    assert!(asker.timed_out(999_999).is_none() && asker.next_question(999_999, LANE).is_none());
    assert!(asker.timed_out(1_000_000).is_none());
    let (_, second) = asker.next_question(1_000_000, LANE).unwrap();
    assert_ne!(first, second, "each try has its own nonce");
    let finished = asker.heard(1_200_000, LANE, server(1).socket(), &one_step::answer(&first)).unwrap();
    assert_eq!(finished.result.unwrap().rtt_us, 1_200_000);
}

#[test]
fn silence_and_nonsense_are_different_failures() {
    let mut asker = asker(SETTINGS);
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 1).unwrap();
    asker.ask(server(2), one_step::QUERY, Ask::Proof, 2).unwrap();
    assert_eq!(asker.fresh(), 2);
    let mut finished = Vec::new();
    for second in 0..4u64 {
        assert_eq!((asker.fresh(), asker.in_flight()), if second < 2 { (2, 2) } else { (0, 2) });
        let now_us = second * 1_000_000;
        finished.extend(std::iter::from_fn(|| asker.timed_out(now_us)));
        while asker.next_question(now_us, LANE).is_some() {}
        asker.heard(now_us, LANE, server(2).socket(), b"nonsense");
    }
    let results: Vec<_> = finished.into_iter().map(|finished| (finished.tag, finished.result.unwrap_err())).collect();
    assert_eq!(results[0], (1, Failure::Silent));
    assert!(matches!(results[1], (2, Failure::Bad(_))), "{results:?}");
    assert_eq!(asker.in_flight(), 0);
}

#[test]
fn the_pace_holds_in_all_and_for_each_address() {
    let settings = Settings { per_second: 100, per_ip_per_second: 20, ..SETTINGS };
    let mut asker = asker(settings);
    for ip in 0..10u8 {
        for port in 1..=50 {
            let address = Address::new([192, 0, ip, 1].into(), port).unwrap();
            asker.ask(address, one_step::QUERY, Ask::Proof, 0).unwrap();
        }
    }
    let mut sent: HashMap<IpAddr, u32> = HashMap::new();
    for ms in 0..1_000u64 {
        while let Some((address, _)) = asker.next_question(1 + ms * 1_000, LANE) {
            *sent.entry(address.ip()).or_default() += 1;
        }
    }
    let all: u32 = sent.values().sum();
    assert!((95..=110).contains(&all), "{all}");
    assert!(sent.values().all(|count| *count <= 22), "{sent:?}");
    assert!(!asker.has_room_for([192, 0, 1, 1].into()) && asker.has_room_for([192, 0, 77, 1].into()));
}

#[test]
fn an_address_with_many_servers_does_not_delay_others() {
    let mut asker = asker(Settings { per_second: 1_000, per_ip_per_second: 20, ..SETTINGS });
    for port in 1..=60_000 {
        asker.ask(server(port), one_step::QUERY, Ask::Proof, 0).unwrap();
    }
    // Addresses of one IPv6 /64 share a queue.
    for host in 1..=1_000 {
        let ip = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
        asker.ask(Address::new(ip.into(), 1).unwrap(), one_step::QUERY, Ask::Proof, 0).unwrap();
    }
    let mut now_us = 1;
    while asker.next_question(now_us, LANE).is_some() {}
    for number in 0..100u8 {
        let other = Address::new([198, 51, number, 1].into(), 1).unwrap();
        asker.ask(other, one_step::QUERY, Ask::Proof, 0).unwrap();
        now_us += 1_000;
        let (queues, ready) = asker.queues.counts();
        assert!(queues == 3 + usize::from(number) && ready <= 3, "other queues are not visited");
        let sent: Vec<_> = std::iter::from_fn(|| asker.next_question(now_us, LANE)).map(|(to, _)| to).collect();
        assert!(sent.contains(&other), "{number}: {sent:?}");
    }
}

#[test]
fn finished_queries_leave_nothing_behind() {
    let mut asker = asker(Settings { per_second: 1_000_000, per_ip_per_second: 1_000_000, ..SETTINGS });
    for number in 0..3 * IDLE_KEPT as u32 {
        let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
        asker.ask(Address::new(ip.into(), 1).unwrap(), one_step::QUERY, Ask::Proof, number).unwrap();
    }
    for second in 0..8 {
        while asker.next_question(1 + second * 1_000_000, LANE).is_some() {}
        while asker.timed_out(1 + second * 1_000_000).is_some() {}
    }
    assert_eq!((asker.in_flight(), asker.fresh(), asker.has_questions()), (0, 0, false));
    assert_eq!(asker.queues.counts().0, 0);
}

#[test]
fn a_proven_server_is_asked_for_more_before_the_others() {
    let of_one_owner = |number: u8| server(number.into());
    let of_many_owners = |number: u8| Address::new([198, 51, 100, number].into(), 1).unwrap();
    for address in [&of_one_owner as &dyn Fn(u8) -> Address, &of_many_owners] {
        let mut asker = asker(Settings { per_second: 20, per_ip_per_second: 20, ..SETTINGS });
        for number in 1..=10 {
            asker.ask(address(number), two_steps::QUERY, Ask::Proof, 0).unwrap();
        }
        let (first, question) = asker.next_question(1, LANE).unwrap();
        assert!(asker.next_question(1, LANE).is_none(), "the pace");
        asker.heard(2, LANE, first.socket(), &question[6..14]);
        let (second, question) = asker.next_question(50_001, LANE).unwrap();
        assert_eq!((second, question.ends_with(br"\status\")), (first, true), "the proven server comes first");
    }
}

#[test]
fn the_time_for_all_tries_ends_them() {
    let mut asker = asker(Settings { tries: 3, try_us: 1_000_000, all_us: 1_500_000, ..SETTINGS });
    asker.ask(server(1), one_step::QUERY, Ask::Proof, 1).unwrap();
    assert!(asker.next_question(0, LANE).is_some());
    assert!(asker.timed_out(1_000_000).is_none());
    assert!(asker.next_question(1_000_000, LANE).is_some());
    assert!(asker.timed_out(1_999_999).is_none(), "the last try has its time");
    let finished = asker.timed_out(2_000_000).expect("no third try after all_us");
    assert_eq!((finished.tag, finished.result), (1, Err(Failure::Silent)));

    // The time is for all questions together: the second one does not start it again.
    asker.ask(server(2), two_steps::QUERY, Ask::Proof, 2).unwrap();
    let (_, question) = asker.next_question(10_000_000, LANE).unwrap();
    asker.heard(10_900_000, LANE, server(2).socket(), &question[6..14]);
    assert!(asker.next_question(10_900_000, LANE).is_some());
    let finished = asker.timed_out(11_900_000).expect("no second try after all_us");
    let alone = Response { rtt_us: 900_000, facts: None, fault: None, disputed: false, retried: false, digest: 0 };
    assert_eq!((finished.tag, finished.result), (2, Ok(alone)));
}

#[test]
fn a_wider_network_has_a_pace_of_its_own() {
    let settings = Settings { per_second: 100_000, per_ip_per_second: 20, ..SETTINGS };
    let asked_in_a_second = |exempt: &[&str]| {
        let mut asker = asker(settings);
        let exempt: Vec<_> = exempt.iter().map(|network| network.parse().unwrap()).collect();
        asker.set_exempt(Arc::new(Networks::new(&exempt)));
        let mut refused = 0;
        for host in 1..=200 {
            let address = Address::new([192, 0, 2, host].into(), 1).unwrap();
            refused += u32::from(!asker.has_room_for(address.ip()));
            asker.ask(address, one_step::QUERY, Ask::Proof, 0).unwrap();
        }
        let other = Address::new([198, 51, 100, 1].into(), 1).unwrap();
        assert!(asker.has_room_for(other.ip()));
        asker.ask(other, one_step::QUERY, Ask::Proof, 0).unwrap();
        let mut asked = Vec::new();
        for now_us in (1_000..900_000).step_by(1_000) {
            asked.extend(std::iter::from_fn(|| asker.next_question(now_us, LANE)).map(|(address, _)| address));
        }
        assert!(asked.contains(&other), "other networks are not delayed");
        (asked.len() - 1, refused)
    };
    let (asked, refused) = asked_in_a_second(&[]);
    assert!((140..=160).contains(&asked), "8 times 20 a second: {asked}");
    assert_eq!(refused, 40, "those beyond a second's worth");
    assert_eq!(asked_in_a_second(&["192.0.2.0/24"]), (200, 0));
}

//! Lists that are sent as datagrams: how many packets an answer gets. The sender of a request may be forged: without a bound,
//! an attacker could use this master to flood a victim.
//!
//! Every answer is charged, in bytes on the wire, to its destination address, to each wider network around it, and to the total.
//! It gets as many packets as all of these budgets have left. The last quarter of each is reserved for answers of one packet:
//! under attack, lists get shorter before they stop. docs/budgets.md has the arithmetic.
//!
//! An attacker cannot exhaust many buckets at once: all of them together get no more than the total, which is far less than
//! what the table refills.

use std::net::{IpAddr, SocketAddr};

use super::bucket::charge_all;
use super::{Budgets, Kind};
use crate::model::Now;

/// IPv6 and UDP headers.
const HEADER_BYTES: usize = 48;
/// A request is refused at once if the budget has less than a packet of this size left.
const PACKET_BYTES: u64 = 1_500;
/// How often a grant is retried when another thread changes a bucket at the same time.
const TRIES: usize = 8;

/// Ports of well-known UDP services above 1023. No game client sends from them, and a forged source address could make two
/// services answer each other.
const SERVICE_PORTS: [u16; 14] =
    [1434, 1604, 1900, 3283, 3478, 3702, 5060, 5093, 5353, 5683, 10001, 11211, 17185, 37810];

impl Budgets {
    /// Whether a request for a list in datagrams can get an answer now. Charges nothing.
    pub fn may_ask(&self, now: Now, from: SocketAddr) -> bool {
        let is_player = from.port() >= 1024 && !SERVICE_PORTS.contains(&from.port());
        let buckets = self.buckets(Kind::DatagramLists, from.ip());
        let may = is_player && buckets.iter().all(|bucket| bucket.left(now, 0) >= PACKET_BYTES);
        if !may {
            self.refuse(Kind::DatagramLists, now, &buckets);
        }
        may
    }

    /// Charges as many of these packets as may be sent to this address now, and returns their number.
    pub fn take_packets(&self, now: Now, to: IpAddr, sizes: impl Iterator<Item = usize> + Clone) -> usize {
        let buckets = self.buckets(Kind::DatagramLists, to);
        for _ in 0..TRIES {
            let left = |kept| buckets.iter().map(|bucket| bucket.left(now, kept)).min().unwrap_or(u64::MAX);
            let (count, bytes) = fitting(sizes.clone(), left(0), left(1));
            if count == 0 {
                break;
            }
            if charge_all(&buckets, now, bytes, (count > 1).into()) {
                self.record(Kind::DatagramLists, now, &buckets, bytes);
                return count;
            }
        }
        self.refuse(Kind::DatagramLists, now, &buckets);
        0
    }
}

/// The cost of a packet of this size.
pub fn on_the_wire(size: usize) -> u64 {
    (size + HEADER_BYTES) as u64
}

/// How many packets fit, and their cost: one may use everything that is left, more must spare the last quarter.
fn fitting(sizes: impl Iterator<Item = usize>, left: u64, left_for_more: u64) -> (usize, u64) {
    let (mut count, mut bytes) = (0, 0);
    for size in sizes {
        let with_this = bytes + on_the_wire(size);
        if with_this > if count == 0 { left } else { left_for_more } {
            break;
        }
        (count, bytes) = (count + 1, with_this);
    }
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::super::{Rate, Settings};
    use super::*;
    use crate::prefix::Networks;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ALL: u64 = 4 << 20;
    /// A full packet of a list, and a list of 100 of them.
    const PACKET: usize = 1_400;
    const LONG: usize = 100;

    /// The budget of one address.
    const LISTS: Rate = Rate { burst: 64 << 10, per_second: 16 << 10 };

    fn budget(list_bytes_per_second: u64, exempt: &[&str]) -> Budgets {
        let exempt: Vec<_> = exempt.iter().map(|network| network.parse().unwrap()).collect();
        Budgets::new(Settings { servers_per_ip_max: 32, list_bytes_per_second, exempt: Networks::new(&exempt) }, [1, 2])
    }

    fn at(ms: u64) -> Now {
        Now { mono_ms: 1_000_000 + ms, unix_ms: 0 }
    }

    fn ask(budget: &Budgets, ms: u64, to: &str, packets: usize) -> usize {
        budget.take_packets(at(ms), to.parse().unwrap(), std::iter::repeat_n(PACKET, packets))
    }

    fn bytes(packets: usize) -> u64 {
        packets as u64 * on_the_wire(PACKET)
    }

    #[test]
    fn only_refused_requests_count_as_refused() {
        let budget = budget(ALL, &[]);
        let refused = || budget.refused().find(|(kind, _)| *kind == Kind::DatagramLists).map(|(_, count)| count);
        assert!(budget.may_ask(at(0), "192.0.2.1:27950".parse().unwrap()));
        assert_eq!(refused(), Some(0));
        assert!(!budget.may_ask(at(0), "192.0.2.1:53".parse().unwrap()), "a service's port");
        assert_eq!(refused(), Some(1));
    }

    #[test]
    fn what_is_left_can_be_used_to_the_last_byte() {
        let one = on_the_wire(100);
        assert_eq!(fitting([100, 100].into_iter(), one, 0), (1, one));
        assert_eq!(fitting([100, 100].into_iter(), one - 1, 0), (0, 0));
        assert_eq!(fitting([100, 100].into_iter(), 3 * one, 2 * one), (2, 2 * one));
        assert_eq!(
            fitting([100, 100].into_iter(), 3 * one, 2 * one - 1),
            (1, one),
            "more than one spare the last quarter"
        );
    }

    #[test]
    fn a_thousand_forged_requests_in_a_second_bring_their_victim_less_than_100_kb() {
        for victim in ["192.0.2.1", "2001:db8::1"] {
            for packets in [1, 3, LONG] {
                let budget = budget(ALL, &[]);
                let sent: usize = (0..1_000).map(|ms| ask(&budget, ms, victim, packets)).sum();
                assert!((60_000..100_000).contains(&bytes(sent)), "{victim}, {packets} packets each: {sent}");
            }
        }
    }

    #[test]
    fn with_forged_announcements_beside_them_it_is_still_less() {
        let (budget, to) = (budget(ALL, &[]), [192, 0, 2, 1].into());
        let reply = 34;
        let replied = |ms| match budget.take(Kind::Replies, at(ms), to, on_the_wire(reply)) {
            Ok(()) => on_the_wire(reply),
            Err(_) => 0,
        };
        assert!((0..4 * 32).all(|_| replied(0) > 0), "servers that start together are answered");
        let sent: u64 = (0..1_000).map(|ms| bytes(ask(&budget, ms, "192.0.2.1", 1)) + replied(ms)).sum();
        assert!(sent + 4 * 32 * on_the_wire(reply) < 100_000, "{sent}");
        assert_eq!(replied(1_000), 0);
        assert!(replied(1_100) > 0, "and it comes back");
    }

    #[test]
    fn a_victims_network_gets_a_small_multiple_of_that() {
        let budget = budget(ALL, &[]);
        let sent = (0..1_000).map(|ms| ask(&budget, ms, &format!("192.0.2.{}", ms % 256), LONG)).sum();
        assert!(bytes(sent) <= 8 * (LISTS.burst + LISTS.per_second), "a /24: {}", bytes(sent));
        let elsewhere = ask(&budget, 1_000, "192.0.3.1", 3);
        assert_eq!(elsewhere, 3, "other networks are not affected");
        let sent = (0..1_000).map(|ms| ask(&budget, ms, &format!("2001:db8:1:{ms:x}::1"), LONG)).sum();
        assert!(bytes(sent) <= 16 * (LISTS.burst + LISTS.per_second), "a /48: {}", bytes(sent));
    }

    #[test]
    fn lists_get_shorter_before_they_stop() {
        let budget = budget(ALL, &[]);
        let answers: Vec<_> = (0..100).map(|_| ask(&budget, 0, "192.0.2.1", 10)).collect();
        let whole = answers.iter().take_while(|count| **count == 10).count();
        let shorter = answers.iter().skip(whole).take_while(|count| **count > 1).count();
        let single = answers.iter().skip(whole + shorter).take_while(|count| **count == 1).count();
        assert!(whole >= 3 && shorter <= 1 && single >= 10, "{answers:?}");
        assert!(answers.iter().skip(whole + shorter + single).all(|count| *count == 0), "{answers:?}");
        assert!(!budget.may_ask(at(0), "192.0.2.1:27960".parse().unwrap()));
        assert!(budget.may_ask(at(1_000), "192.0.2.1:27960".parse().unwrap()), "and it refills");
        assert_eq!(ask(&budget, 60_000, "192.0.2.1", 10), 10);
    }

    #[test]
    fn all_together_get_the_total_and_its_last_quarter_is_for_short_lists() {
        let budget = budget(ALL, &[]);
        let mut single = 0;
        let flood = |number: u64| ask(&budget, number / 20, &format!("10.{}.{}.1", number % 250, number / 250), 30);
        let sent: usize = (0..20_000).map(flood).inspect(|count| single += usize::from(*count == 1)).sum();
        assert!(bytes(sent) <= ALL + ALL, "{}", bytes(sent));
        assert!(single > 2_000, "{single} answers of one packet");
    }

    #[test]
    fn two_hundred_players_behind_one_address_get_their_lists() {
        // A list of 450 servers is three packets, 3.3 kB; each player fetches it once a minute, not all at the same time.
        let budget = budget(ALL, &[]);
        let sizes = [PACKET, PACKET, 480];
        let whole =
            |player: u64| budget.take_packets(at(player * 300), "192.0.2.1".parse().unwrap(), sizes.into_iter()) == 3;
        assert!((0..600).all(whole), "three minutes long");
    }

    #[test]
    fn exempt_networks_have_only_the_budget_for_all() {
        let budget = budget(ALL, &["192.0.2.0/24"]);
        let sent: usize = (0..1_000).map(|_| ask(&budget, 0, "192.0.2.1", 30)).sum();
        assert!((ALL * 9 / 10..=ALL).contains(&bytes(sent)), "{}", bytes(sent));
    }

    #[test]
    fn other_services_are_never_answered() {
        let budget = budget(ALL, &[]);
        let may = |port: u16| budget.may_ask(at(0), SocketAddr::new([192, 0, 2, 1].into(), port));
        for port in [0, 17, 19, 53, 111, 123, 137, 161, 389, 1023, 1900, 5353, 11211] {
            assert!(!may(port), "{port}");
        }
        for port in [1024, 27950, 27960, 26000, 40000, 65535] {
            assert!(may(port), "{port}");
        }
    }

    #[test]
    fn a_player_is_not_starved_by_a_flood_from_everywhere_else() {
        // Only a chance collision would affect the player, and all flooded addresses together get only the total.
        let budget = budget(ALL, &[]);
        for request in 0..50_000u32 {
            let from = std::net::Ipv4Addr::from_bits(request.wrapping_mul(2_654_435_761));
            budget.take_packets(at(request.into()), from.into(), std::iter::repeat_n(PACKET, LONG));
        }
        let player = budget.buckets(Kind::DatagramLists, [198, 51, 100, 7].into());
        let left: Vec<_> = player.iter().take(2).map(|bucket| bucket.left(at(50_000), 0)).collect();
        assert!(left.iter().all(|left| *left >= LISTS.burst / 2), "{left:?}");
    }

    #[test]
    fn concurrent_threads_never_exceed_the_budget() {
        let budget = budget(1 << 20, &[]);
        let sent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (budget, sent) = (&budget, &sent);
                scope.spawn(move || {
                    for request in 0..2_000 {
                        let to = format!("10.{}.{thread}.{}", request % 7, request % 256);
                        sent.fetch_add(ask(budget, 0, &to, request % 9), Ordering::Relaxed);
                    }
                });
            }
        });
        let sent = bytes(sent.into_inner());
        assert!(sent <= 1 << 20, "{sent}");
        assert!(sent > (1 << 20) * 9 / 10, "{sent}: refunds lose nothing");
        let left = budget.buckets(Kind::DatagramLists, [192, 0, 2, 1].into()).last().unwrap().left(at(0), 0);
        assert_eq!((1 << 20) - left, sent);
    }

    proptest! {
        #[test]
        fn no_window_exceeds_burst_plus_rate(steps in proptest::collection::vec((0u64..400, 0usize..60, 1usize..1500), 1..200)) {
            let budget = budget(ALL, &[]);
            let (mut ms, mut sent) = (0, 0);
            for (wait_ms, packets, size) in steps {
                ms += wait_ms;
                let count = budget.take_packets(at(ms), [192, 0, 2, 1].into(), std::iter::repeat_n(size, packets));
                prop_assert!(count <= packets);
                sent += count as u64 * on_the_wire(size);
                prop_assert!(sent <= LISTS.burst + LISTS.per_second * ms / 1_000 + 1);
            }
        }
    }
}

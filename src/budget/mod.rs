//! Budgets: what an address may make this master do. Each kind of work has its own, so that a flood of one never starves
//! another. Work is charged by its cost to the address (IPv6 /64) that caused it and to the wider networks around it.
//!
//! Memory is fixed, and nothing here takes a lock that a caller waits for. docs/budgets.md has the arithmetic: one address
//! may be a school, or a provider's NAT, with 200 players and 32 servers.

mod bucket;
mod heaviest;
mod packets;
mod proven;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Now;
use crate::prefix::{Networks, Prefix};
use bucket::{Bucket, Buckets, Rate, Table, charge_all};
use heaviest::Heaviest;
pub use heaviest::Heavy;
pub use packets::on_the_wire;
use proven::Proven;

/// What is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Datagrams that want an answer and whose sender may be forged: one each.
    Announcements,
    /// Answers to such datagrams that are longer than 1.2 times the datagram: bytes on the wire.
    Replies,
    /// Announcements whose sender is proven, by a cookie, a challenge or a connection: [`PROOF_COST`] or [`CHANGE_COST`].
    Handshakes,
    /// What game servers post over HTTP and do not prove: one each. Apart, so that whoever shares an address with proven servers
    /// cannot keep them from renewing themselves.
    Posts,
    /// Lists that are sent as datagrams: bytes on the wire.
    DatagramLists,
    /// Datagrams that tell a game server of a client, at a stranger's request: one each, charged to the server.
    Introductions,
    /// Lists and pages over TCP: bytes.
    Lists,
    /// Lists that are made for a client's own parameters: microseconds of a core.
    Searches,
    /// The event stream: bytes.
    Events,
    /// Queries to a game server because it announced itself: one each.
    Probing,
    /// TLS handshakes, each of which takes up to some milliseconds of a core: one each.
    Tls,
    /// Wrong tokens: one each.
    Guesses,
}

/// The cost of a proof that changes nothing.
pub const PROOF_COST: u64 = 1;
/// The cost of a proof that changes the list: all its readers are told.
pub const CHANGE_COST: u64 = 10;

/// A prefix is recorded among the heaviest once for every such fraction (1/N) of its burst.
const RECORDED: u64 = 64;

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Announcements,
        Kind::Replies,
        Kind::Handshakes,
        Kind::Posts,
        Kind::DatagramLists,
        Kind::Introductions,
        Kind::Lists,
        Kind::Searches,
        Kind::Events,
        Kind::Probing,
        Kind::Tls,
        Kind::Guesses,
    ];

    /// Its name in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Announcements => "announcements",
            Kind::Replies => "replies",
            Kind::Handshakes => "handshakes",
            Kind::Posts => "posts",
            Kind::DatagramLists => "datagram_lists",
            Kind::Introductions => "introductions",
            Kind::Lists => "lists",
            Kind::Searches => "searches",
            Kind::Events => "events",
            Kind::Probing => "probing",
            Kind::Tls => "tls",
            Kind::Guesses => "guesses",
        }
    }

    /// What its costs are counted in.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::Announcements | Kind::Introductions | Kind::Probing => "datagrams",
            Kind::Handshakes => "points",
            Kind::Posts | Kind::Guesses => "requests",
            Kind::Tls => "connections",
            Kind::Replies | Kind::DatagramLists | Kind::Lists | Kind::Events => "bytes",
            Kind::Searches => "microseconds",
        }
    }

    /// The budget of one address that may have so many servers listed.
    fn rate(self, servers_max: u32) -> Rate {
        let servers = u64::from(servers_max);
        match self {
            Kind::Announcements => Rate { burst: 64 * servers, per_second: 8 * servers },
            Kind::Replies => Rate { burst: 4 * servers * REPLY_BYTES, per_second: servers * REPLY_BYTES },
            // Each may change once a second; readers of events are told no more often.
            Kind::Handshakes => Rate { burst: 64 * servers, per_second: 12 * servers },
            Kind::Posts => Rate { burst: 64 * servers, per_second: 8 * servers },
            // Within any one second this is at most 82 kB.
            Kind::DatagramLists => Rate { burst: 64 << 10, per_second: 16 << 10 },
            Kind::Introductions => Rate { burst: 16 * servers, per_second: 2 * servers },
            Kind::Lists => Rate { burst: 128 << 20, per_second: 8 << 20 },
            Kind::Searches => Rate { burst: 1_000_000, per_second: 50_000 },
            Kind::Events => Rate { burst: 128 << 20, per_second: 12 << 20 },
            Kind::Probing => Rate { burst: 16 * servers, per_second: servers },
            Kind::Tls => Rate { burst: 2_048, per_second: 64 },
            Kind::Guesses => Rate { burst: 32, per_second: 1 },
        }
    }
}

/// Upper bound on a reply that asks for a proof, with its headers.
const REPLY_BYTES: u64 = 96;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Servers that one address may have listed.
    pub servers_per_ip_max: u32,
    /// The budget for all lists that are sent as datagrams.
    pub list_bytes_per_second: u64,
    /// Networks without budgets; only that for all lists in datagrams applies.
    pub exempt: Networks,
}

pub struct Budgets {
    settings: Settings,
    key: [u64; 2],
    kinds: [(Table, AtomicU64); Kind::ALL.len()],
    heaviest: Heaviest,
    proven: Arc<Proven>,
}

/// A refusal: the budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// There is something left after this time.
    pub retry_after_s: u32,
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "too many requests from your network: try again in {} s", self.retry_after_s)
    }
}

impl Budgets {
    /// `key` must be random and secret.
    pub fn new(settings: Settings, key: [u64; 2]) -> Budgets {
        Budgets::with(settings, key, Arc::new(Proven::new(key)))
    }

    /// Full budgets with other settings. Who has proven itself is not forgotten.
    pub fn renewed(&self, settings: Settings) -> Budgets {
        Budgets::with(settings, self.key, self.proven.clone())
    }

    fn with(settings: Settings, key: [u64; 2], proven: Arc<Proven>) -> Budgets {
        let table = |kind: Kind| {
            let all = (kind == Kind::DatagramLists).then_some(settings.list_bytes_per_second);
            (Table::new(kind.rate(settings.servers_per_ip_max), all, key), AtomicU64::new(0))
        };
        Budgets { kinds: Kind::ALL.map(table), settings, key, heaviest: Heaviest::default(), proven }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Charges a cost before the work is done, or refuses it.
    pub fn take(&self, kind: Kind, now: Now, ip: IpAddr, cost: u64) -> Result<(), Over> {
        let buckets = self.buckets(kind, ip);
        if charge_all(&buckets, now, cost, 0) {
            self.record(kind, now, &buckets, cost);
            return Ok(());
        }
        Err(self.refuse(kind, now, &buckets).over(cost))
    }

    /// Refuses an address that has nothing left, and charges nothing: for work whose cost is known afterwards.
    pub fn admit(&self, kind: Kind, now: Now, ip: IpAddr) -> Result<(), Over> {
        let buckets = self.buckets(kind, ip);
        match buckets.iter().all(|bucket| bucket.left(now, 0) > 0) {
            true => Ok(()),
            false => Err(self.refuse(kind, now, &buckets).over(1)),
        }
    }

    /// Whether [`Budgets::admit`] would refuse. Nothing is counted.
    pub fn is_over(&self, kind: Kind, now: Now, ip: IpAddr) -> bool {
        self.buckets(kind, ip).iter().any(|bucket| bucket.left(now, 0) == 0)
    }

    /// Charges a cost that has arisen. It may become a debt, which has to be paid off before the next work.
    pub fn charge(&self, kind: Kind, now: Now, ip: IpAddr, cost: u64) {
        let buckets = self.buckets(kind, ip);
        // What exceeds the debt that an address may have is not charged to its neighbours either.
        let charged = buckets.iter().fold(cost, |cost, bucket| bucket.charge_debt(now, cost));
        self.record(kind, now, &buckets, charged);
    }

    /// How much an address, or the network around it that has used most, has used of its budget: in thousandths.
    pub fn share(&self, kind: Kind, now: Now, ip: IpAddr) -> u64 {
        self.buckets(kind, ip).iter().map(|bucket| bucket.share(now)).max().unwrap_or(0)
    }

    /// Whether a datagram that may be forged gets its answer. A long one is charged by its length, too. A source that has proven
    /// itself is answered once a second whatever others send in its name: they must not be able to silence it.
    pub fn may_answer(&self, now: Now, from: SocketAddr, asked_bytes: usize, reply_bytes: usize) -> bool {
        let is_longer = reply_bytes * 5 > asked_bytes * 6;
        let costs = [(Kind::Announcements, 1), (Kind::Replies, on_the_wire(reply_bytes))];
        for (kind, cost) in costs.into_iter().take(1 + usize::from(is_longer)) {
            let buckets = self.buckets(kind, from.ip());
            if charge_all(&buckets, now, cost, 0) {
                self.record(kind, now, &buckets, cost);
            } else if self.proven.may_overdraw(now, from) {
                return true;
            } else {
                self.refuse(kind, now, &buckets);
                return false;
            }
        }
        true
    }

    /// Remembers that a source has proven itself.
    pub fn prove(&self, now: Now, source: SocketAddr) {
        self.proven.prove(now, source);
    }

    /// How often each kind was refused.
    pub fn refused(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.into_iter().zip(&self.kinds).map(|(kind, (_, refused))| (kind, refused.load(Ordering::Relaxed)))
    }

    /// The prefixes that cost most, by the share of what they may use.
    pub fn heaviest(&self, now: Now) -> Vec<Heavy> {
        let share = |kind: Kind, prefix: Prefix| {
            let buckets = self.buckets(kind, prefix.network());
            buckets.iter().find(|bucket| bucket.prefix == Some(prefix)).map_or(0, |bucket| bucket.share(now))
        };
        self.heaviest.all(now, share)
    }

    fn buckets(&self, kind: Kind, ip: IpAddr) -> Buckets<'_> {
        self.kind(kind).0.buckets(ip, &self.settings.exempt)
    }

    /// The table of a kind, and how often it was refused.
    fn kind(&self, kind: Kind) -> &(Table, AtomicU64) {
        let [
            announcements,
            replies,
            handshakes,
            posts,
            datagram_lists,
            introductions,
            lists,
            searches,
            events,
            probing,
            tls,
            guesses,
        ] = &self.kinds;
        match kind {
            Kind::Announcements => announcements,
            Kind::Replies => replies,
            Kind::Handshakes => handshakes,
            Kind::Posts => posts,
            Kind::DatagramLists => datagram_lists,
            Kind::Introductions => introductions,
            Kind::Lists => lists,
            Kind::Searches => searches,
            Kind::Events => events,
            Kind::Probing => probing,
            Kind::Tls => tls,
            Kind::Guesses => guesses,
        }
    }

    /// Among the heaviest, once in a while.
    fn record(&self, kind: Kind, now: Now, buckets: &[Bucket<'_>], cost: u64) {
        for bucket in buckets {
            if let (Some(prefix), Some((cost, weight))) = (bucket.prefix, bucket.crossed(cost, RECORDED)) {
                self.heaviest.add(kind, prefix, now, cost, weight);
            }
        }
    }

    /// Counts a refusal.
    fn refuse<'a>(&self, kind: Kind, now: Now, buckets: &'a [Bucket<'a>]) -> Refused<'a> {
        self.kind(kind).1.fetch_add(1, Ordering::Relaxed);
        let fullest = buckets.iter().max_by_key(|bucket| bucket.share(now));
        if let Some(prefix) = fullest.and_then(|bucket| bucket.prefix) {
            self.heaviest.refuse(kind, prefix, now);
        }
        Refused { now, buckets }
    }
}

struct Refused<'a> {
    now: Now,
    buckets: &'a [Bucket<'a>],
}

impl Refused<'_> {
    /// When this cost will be left.
    fn over(&self, cost: u64) -> Over {
        let wait_s = self.buckets.iter().map(|bucket| bucket.wait_s(self.now, cost)).max().unwrap_or(1);
        Over { retry_after_s: u32::try_from(wait_s).unwrap_or(u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { servers_per_ip_max: 32, list_bytes_per_second: 4 << 20, exempt: NO_NETWORKS };
    const NO_NETWORKS: Networks = Networks::NONE;

    fn budgets() -> Budgets {
        Budgets::new(SETTINGS, [1, 2])
    }

    fn at(ms: u64) -> Now {
        Now { mono_ms: 1_000_000 + ms, unix_ms: 0 }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn kinds_are_numbered_and_named_apart() {
        let budgets = budgets();
        for (kind, of_kind) in Kind::ALL.into_iter().zip(&budgets.kinds) {
            assert!(std::ptr::eq(budgets.kind(kind), of_kind));
            assert!(
                Kind::ALL.iter().filter(|other| other.name() == kind.name()).count() == 1 && !kind.unit().is_empty()
            );
        }
    }

    #[test]
    fn costs_are_counted_in_the_documented_units() {
        let kinds = [Kind::Announcements, Kind::Handshakes, Kind::Lists, Kind::Searches];
        assert_eq!(kinds.map(Kind::unit), ["datagrams", "points", "bytes", "microseconds"]);
    }

    #[test]
    fn an_address_that_may_have_twice_the_servers_may_announce_twice_as_much() {
        let double = |rate: Rate| Rate { burst: 2 * rate.burst, per_second: 2 * rate.per_second };
        let fixed = [Kind::DatagramLists, Kind::Lists, Kind::Searches, Kind::Events, Kind::Tls, Kind::Guesses];
        for kind in Kind::ALL {
            let rate = kind.rate(32);
            assert_eq!(kind.rate(64), if fixed.contains(&kind) { rate } else { double(rate) }, "{kind:?}");
        }
    }

    #[test]
    fn the_settings_can_be_read_back() {
        assert_eq!(*budgets().settings(), SETTINGS);
    }

    #[test]
    fn each_of_the_heaviest_shows_the_share_of_its_own_budget() {
        let budgets = budgets();
        budgets.charge(Kind::Searches, at(0), ip("192.0.2.7"), 500_000);
        let shares: Vec<_> =
            budgets.heaviest(at(0)).iter().map(|heavy| (heavy.prefix.to_string(), heavy.share)).collect();
        assert_eq!(shares, [("192.0.2.7/32".into(), 500), ("192.0.2.0/24".into(), 62)]);
    }

    #[test]
    fn a_flood_of_one_kind_starves_no_other() {
        for flooded in Kind::ALL {
            let budgets = budgets();
            let take = |kind, cost| budgets.take(kind, at(0), ip("192.0.2.1"), cost);
            while take(flooded, 1_000).is_ok() {}
            while take(flooded, 1).is_ok() {}
            assert!(budgets.admit(flooded, at(0), ip("192.0.2.1")).is_err());
            for other in Kind::ALL.into_iter().filter(|kind| *kind != flooded) {
                assert_eq!(take(other, 1), Ok(()), "{other:?} beside a flood of {flooded:?}");
            }
            assert!(budgets.take(flooded, at(0), ip("198.51.100.1"), 1).is_ok(), "another address");
        }
    }

    #[test]
    fn a_refusal_says_when_to_try_again() {
        let budgets = budgets();
        let address = ip("192.0.2.1");
        budgets.charge(Kind::Searches, at(0), address, 1_500_000);
        let over = budgets.admit(Kind::Searches, at(0), address).unwrap_err();
        assert_eq!(over, Over { retry_after_s: 11 });
        assert!(over.to_string().ends_with("try again in 11 s"));
        assert!(budgets.admit(Kind::Searches, at(10_000), address).is_err());
        assert_eq!(budgets.admit(Kind::Searches, at(11_000), address), Ok(()));
        assert_eq!(budgets.refused().find(|(kind, _)| *kind == Kind::Searches), Some((Kind::Searches, 2)));
        assert_eq!(budgets.share(Kind::Searches, at(11_000), address), 950);
        assert_eq!(budgets.share(Kind::Searches, at(0), ip("192.0.2.2")), 187, "as a part of its /24");
    }

    #[test]
    fn forged_announcements_do_not_silence_who_has_proven_itself() {
        let source = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (server, forged, newcomer) = (source("192.0.2.1:1"), source("192.0.2.1:2"), source("192.0.2.1:3"));
        // A short answer, and a long one, which has a smaller budget.
        for (reply_bytes, most) in [(100, 64 * 32), (200, 4 * 32)] {
            let budgets = budgets();
            budgets.prove(at(0), server);
            let may = |ms, from| budgets.may_answer(at(ms), from, 100, reply_bytes);
            let answered = (0..100_000).filter(|_| may(0, forged)).count();
            assert!((1..=most).contains(&answered), "{answered}");
            for second in 1..100 {
                let ms = second * 1_000;
                while may(ms, forged) {}
                assert!(may(ms, server) && !may(ms, server), "once a second");
                assert!(!may(ms, newcomer));
            }
            let later_ms = 2 * 3_600_000;
            while may(later_ms, forged) {}
            assert!(!may(later_ms, server), "not for ever");
            budgets.renewed(Settings { servers_per_ip_max: 1, ..SETTINGS }).prove(at(later_ms), server);
            assert!(may(later_ms, server), "other settings make nobody forgotten");
        }
    }

    #[test]
    fn an_answer_is_charged_by_its_length_if_it_is_longer_than_six_fifths_of_the_question() {
        for (asked_bytes, reply_bytes, is_charged) in
            [(100, 120, false), (100, 121, true), (10, 12, false), (10, 13, true)]
        {
            let budgets = budgets();
            let from = "192.0.2.1:1".parse().unwrap();
            assert!(budgets.may_answer(at(0), from, asked_bytes, reply_bytes));
            let share = budgets.share(Kind::Replies, at(0), from.ip());
            assert_eq!(share > 0, is_charged, "{reply_bytes} for {asked_bytes}");
        }
    }

    #[test]
    fn one_address_cannot_put_its_neighbours_into_debt() {
        let budgets = budgets();
        for _ in 0..1_000 {
            budgets.charge(Kind::Events, at(0), ip("192.0.2.1"), 1 << 30);
        }
        assert!(budgets.admit(Kind::Events, at(0), ip("192.0.2.1")).is_err());
        assert_eq!(budgets.admit(Kind::Events, at(0), ip("192.0.2.2")), Ok(()));
        assert_eq!(budgets.share(Kind::Events, at(0), ip("192.0.2.2")), 500);
    }

    /// docs/budgets.md has this arithmetic in words.
    #[test]
    fn a_school_with_200_players_and_32_servers_is_never_refused() {
        let (budgets, school) = (budgets(), ip("192.0.2.1"));
        let mut refused = Vec::new();
        for second in 0..600u64 {
            let mut take = |kind, count: u64, cost| {
                for number in 0..count {
                    let now = at(second * 1_000 + 1_000 * number / count);
                    if budgets.take(kind, now, school, cost).is_err() {
                        refused.push((second, kind));
                    }
                }
            };
            // At the first second everybody starts at once.
            let started = second == 0;
            // 32 servers: each announces itself twice a minute and changes twice a minute; one is restarted each minute.
            take(Kind::Announcements, if started { 32 } else { 3 }, 1);
            take(Kind::Replies, if started { 32 } else { 3 }, 90);
            take(Kind::Handshakes, if started { 32 } else { 1 }, CHANGE_COST);
            take(Kind::Handshakes, 1, PROOF_COST);
            take(Kind::Probing, if started { 32 } else { u64::from(second % 60 == 0) }, 1);
            // 200 players: each reads the page of 2,000 servers (compressed 60 kB, plain 320 kB) once a minute, searches twice a
            // minute (2,000 servers: 0.3 ms) and keeps a page open (60 kB of changes a second).
            take(Kind::Lists, if started { 200 } else { 4 }, 320 << 10);
            take(Kind::Searches, if started { 200 } else { 7 }, 300);
            take(Kind::Events, 200, if started { 500 << 10 } else { 60_000 });
            // A browser opens four connections for a page; a server that announces itself over HTTPS one every 15 seconds.
            take(Kind::Tls, if started { 832 } else { 16 }, 1);
        }
        assert_eq!(refused, []);
    }

    /// Registered over HTTP, each in two versions of its protocol: every 15 seconds, and again for what it changes, at most once
    /// a second.
    #[test]
    fn servers_that_register_in_two_versions_and_change_every_second_are_never_refused() {
        let (budgets, house) = (budgets(), ip("192.0.2.1"));
        let mut refused = Vec::new();
        for second in 0..600u64 {
            let mut take = |kind, count: u64, cost| {
                for number in 0..count {
                    let now = at(second * 1_000 + 1_000 * number / count);
                    if budgets.take(kind, now, house, cost).is_err() {
                        refused.push(second);
                    }
                }
            };
            match second {
                // All start at once: a challenge for each, then the proof, which changes the list.
                0 => {
                    take(Kind::Posts, 64, 1);
                    take(Kind::Handshakes, 64, CHANGE_COST);
                }
                // A change goes out with the version that is due next, once without its body.
                _ => {
                    take(Kind::Posts, 32, 1);
                    take(Kind::Handshakes, 32, CHANGE_COST);
                }
            }
            if second % 15 == 0 {
                take(Kind::Handshakes, 64, PROOF_COST);
            }
        }
        assert!(refused.is_empty(), "{refused:?}");
    }

    #[test]
    fn exempt_networks_have_no_budgets() {
        let exempt = Networks::new(&["192.0.2.0/24".parse().unwrap()]);
        let budgets = Budgets::new(Settings { exempt, ..SETTINGS }, [1, 2]);
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::DatagramLists) {
            budgets.charge(kind, at(0), ip("192.0.2.1"), u64::MAX);
            assert_eq!(budgets.take(kind, at(0), ip("192.0.2.1"), 1 << 40), Ok(()), "{kind:?}");
        }
    }

    #[test]
    fn the_heaviest_are_known_by_their_prefixes() {
        let budgets = budgets();
        for second in 0..30 {
            budgets.charge(Kind::Searches, at(second * 1_000), ip("192.0.2.7"), 40_000);
            for player in 0..200 {
                let _ = budgets.take(Kind::Lists, at(second * 1_000), ip(&format!("198.51.{player}.1")), 20_000);
            }
        }
        let heaviest = budgets.heaviest(at(30_000));
        let shown = (heaviest[0].kind, heaviest[0].prefix.to_string());
        assert_eq!(shown, (Kind::Searches, "192.0.2.7/32".into()));
        assert!((1_100_000..=1_300_000).contains(&heaviest[0].cost), "{:?}", heaviest[0]);
        assert!(heaviest.iter().any(|heavy| heavy.prefix.to_string() == "192.0.2.0/24"));
    }

    #[test]
    fn budgets_last_for_a_hundred_years_without_a_restart() {
        let hundred_years_ms = 100 * 366 * 86_400_000;
        let most = Settings { servers_per_ip_max: 65_535, list_bytes_per_second: 1 << 30, ..SETTINGS };
        let budgets = Budgets::new(most, [1, 2]);
        for ms in [0, hundred_years_ms, hundred_years_ms + 1_000] {
            for kind in Kind::ALL {
                assert_eq!(budgets.take(kind, at(ms), ip("192.0.2.1"), 1), Ok(()), "{kind:?} at {ms}");
                budgets.charge(kind, at(ms), ip("192.0.2.2"), 1);
            }
            let source = "192.0.2.1:1".parse().unwrap();
            budgets.prove(at(ms), source);
            assert!(budgets.proven.may_overdraw(at(ms), source));
        }
    }
}

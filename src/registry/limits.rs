//! Limits per address and per network, and eviction when the list is full.
//!
//! Limits nest: an address (IPv6 /64) has the configured limit, the prefixes around it have larger ones. A full list evicts
//! the newest entry of the largest address block for a newcomer, so a flood from one network displaces only that network.
//! A newcomer whose own block would then be the largest is refused. Named servers count for no limit and are never evicted;
//! mirrored servers evict nobody and are evicted first.

use std::net::IpAddr;

use super::{Refusal, Registry};
use crate::model::{Address, Proof};
use crate::prefix::Networks;

/// The ranking begins when less than 1/16 of the list is free.
const NEARLY_FULL: usize = 16;
/// Ranking steps per newcomer. An entry takes two, so the ranking is complete before the list is full.
const RANKED_AT_ONCE: usize = 64;

impl Registry {
    /// Sets the networks that have only the limit per address, and counts all entries again.
    pub fn set_exempt(&mut self, exempt: Networks) {
        if *self.prefix_counts.exempt() == exempt {
            return;
        }
        self.prefix_counts.reset(exempt);
        self.ranking = None;
        let counted = self.slots.iter().filter(|slot| slot.counted && slot.server.is_some());
        counted.for_each(|slot| self.prefix_counts.add(slot.address.ip()));
    }

    /// Whether a live server at this address (IPv6 /64) is proven by a cookie. Unproven datagrams that claim to come from
    /// there may be forged to harm it.
    pub fn has_cookie_proof(&self, ip: IpAddr) -> bool {
        self.prefix_counts.is_proven(ip)
    }

    /// Evicts an entry if the list is full, for one more of an address that is not a named server's. Mirrored servers evict
    /// nobody, and are the first to go.
    pub(super) fn make_room_for(&mut self, ip: IpAddr, is_mirrored: bool) -> Result<(), Refusal> {
        if self.len() < self.settings.servers_max {
            return Ok(());
        }
        if is_mirrored {
            return Err(Refusal::Full);
        }
        if let Some(at) = self.newest_mirrored() {
            self.remove(at);
            return Ok(());
        }
        self.rank(usize::MAX);
        let limit_key = self.prefix_counts.limit_key(ip);
        let evicted = self.ranking.as_ref().and_then(|ranking| ranking.to_evict_for(&limit_key));
        // Not put as a removal: other nodes have their own limits, and the server has not quit.
        self.remove(evicted.ok_or(Refusal::Full)?);
        Ok(())
    }

    /// Advances the ranking of all entries that count for limits.
    fn rank(&mut self, most: usize) {
        let Registry { ranking, slots, prefix_counts, .. } = self;
        let entry = |at: u32| slots.get(at as usize).filter(|slot| slot.counted && slot.server.is_some());
        let first_seen_ms = |at| entry(at)?.server.as_ref().map(|server| server.first_seen_ms);
        let limit_key = |at| entry(at).map(|slot| prefix_counts.limit_key(slot.address.ip()));
        ranking.get_or_insert_default().advance(slots.len(), most, first_seen_ms, limit_key);
    }

    /// Adds an entry to the counts of its prefixes, or removes it.
    pub(super) fn count(&mut self, at: u32, ip: IpAddr, counts: bool) {
        if counts {
            self.prefix_counts.add(ip)
        } else {
            self.prefix_counts.remove(ip)
        }
        let (len, most) = (self.len(), self.settings.servers_max);
        // With enough room in the list again, the ranking is not worth its memory.
        if len < most - most / 8 {
            self.ranking = None;
        }
        if let Some(ranking) = &mut self.ranking {
            let limit_key = self.prefix_counts.limit_key(ip);
            if counts { ranking.join(at, limit_key) } else { ranking.leave(at, limit_key) }
        }
        if counts && len >= most - most / NEARLY_FULL {
            self.rank(RANKED_AT_ONCE);
        }
    }

    /// Sets whether an entry counts for limits.
    pub(super) fn recount(&mut self, address: Address, counts: bool) {
        let Some((at, slot)) = self.slot_of(address) else { return };
        if std::mem::replace(&mut slot.counted, counts) != counts {
            self.count(at, address.ip(), counts);
        }
    }

    /// Updates the number of cookie-proven entries of an address. Call it whenever an entry has changed.
    pub(super) fn recount_proof(&mut self, at: u32) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let is_proven = slot.listed && slot.server.as_ref().is_some_and(|server| server.verified_by == Proof::Cookie);
        if std::mem::replace(&mut slot.cookie_proven, is_proven) != is_proven {
            self.prefix_counts.prove(slot.address.ip(), is_proven);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
    use std::sync::Arc;

    use super::super::ranking::Ranking;
    use super::*;
    use crate::model::{
        Announce, Change, Facts, Game, Gone, HeartbeatKeys, NamedServer, Now, Overrides, RemoteServer, RemoteState,
    };
    use crate::registry::{Outcome, Settings};

    const T: u64 = 1_760_000_000_000;
    const LIFE_MS: u64 = 120_000;
    /// The defaults, with a shorter list.
    const SETTINGS: Settings =
        Settings { servers_max: 10_000, servers_per_ip_max: 32, ask_every_ms: 30_000, misses_max: 3 };

    fn at(ms: u64) -> Now {
        Now { mono_ms: 5_000 + ms, unix_ms: T + ms }
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// An address in 2001:db8::/48, each in another /64.
    fn of_the_48(number: u64) -> Address {
        Address::new(Ipv6Addr::from_bits((0x2001_0db8_0000_0000 + u128::from(number)) << 64 | 1).into(), 20737).unwrap()
    }

    fn announcement(address: Address, proof: Proof) -> Announce<'static> {
        Announce {
            address,
            game: Game::Own("one"),
            proof,
            proven_at_ms: T,
            life_ms: LIFE_MS,
            asked: false,
            rtt_us: None,
            keys: None,
            facts: Facts::default(),
        }
    }

    fn announce(address: Address) -> Change<'static> {
        Change::Announce(announcement(address, Proof::Cookie))
    }

    fn remote(address: Address) -> Change<'static> {
        let announce = announcement(address, Proof::Cookie);
        let listed =
            RemoteServer { announce, node: 9, first_seen_ms: T, last_seen_ms: T, via: None, stronger_gone_ms: None };
        Change::Merge(Box::new(RemoteState::Listed(listed)))
    }

    fn named_servers(addresses: &[&str]) -> Change<'static> {
        let overrides = Overrides { official: true, priority: 0, flavor: 0 };
        let game = || Game::Own("one");
        Change::NamedServers(
            addresses
                .iter()
                .map(|text| NamedServer { address: address(text), game: game(), overrides, asked: false })
                .collect(),
        )
    }

    fn networks(networks: &[&str]) -> Networks {
        Networks::new(&networks.iter().map(|network| network.parse().unwrap()).collect::<Vec<_>>())
    }

    fn list(registry: &mut Registry, addresses: impl IntoIterator<Item = String>) -> usize {
        let outcomes = addresses.into_iter().map(|text| registry.apply(&announce(address(&text)), at(0)));
        outcomes.filter(|outcome| *outcome == Outcome::Added).count()
    }

    /// A full list of 100: 60 servers of one /24 and 40 of 20 others. The limit per address is too high to matter.
    fn full() -> Registry {
        let settings = Settings { servers_max: 100, servers_per_ip_max: 1_000, ..SETTINGS };
        let mut registry = Registry::new(settings, at(0));
        assert_eq!(list(&mut registry, (1..=60).map(|port| format!("192.0.2.{}:{port}", port % 7 + 1))), 60);
        assert_eq!(list(&mut registry, (0..40).map(|number| format!("198.51.{}.1:{}", number % 20, number + 1))), 40);
        registry
    }

    #[test]
    fn a_flood_from_one_48_fills_no_list() {
        let mut registry = Registry::new(SETTINGS, at(0));
        let mut counts = [0; 3];
        for number in 0..64_000 {
            match registry.apply(&announce(of_the_48(number)), at(0)) {
                Outcome::Added => counts[0] += 1,
                Outcome::Refused(Refusal::FullForNetwork) => counts[1] += 1,
                _ => counts[2] += 1,
            }
        }
        assert_eq!(counts, [512, 63_488, 0], "16 times the limit of an address");
        assert_eq!(registry.apply(&announce(address("[2001:db8:1::1]:20737")), at(0)), Outcome::Added);
        assert_eq!(registry.apply(&announce(address("203.0.113.5:20737")), at(0)), Outcome::Added);
    }

    #[test]
    fn a_flood_that_fills_the_list_makes_room_for_everybody_else() {
        let settings = Settings { servers_max: 2_000, servers_per_ip_max: 1_000, ..SETTINGS };
        let mut registry = Registry::new(settings, at(0));
        assert_eq!(registry.apply(&announce(address("198.51.100.1:1")), at(0)), Outcome::Added);
        for number in 0..64_000 {
            let outcome = registry.apply(&announce(of_the_48(number)), at(0));
            assert_eq!(outcome == Outcome::Added, number < 1_999, "{number}: {outcome:?}");
        }
        let refused = registry.apply(&announce(of_the_48(65_000)), at(0));
        assert_eq!(refused, Outcome::Refused(Refusal::Full), "the largest itself");
        for number in 0..500u32 {
            let newcomer = Address::new(IpAddr::from((0xcb00_0000 + (number << 8)).to_be_bytes()), 20737).unwrap();
            assert_eq!(registry.apply(&announce(newcomer), at(0)), Outcome::Added);
            assert!(registry.listed(newcomer).is_some());
        }
        assert_eq!(registry.len(), 2_000);
        assert!(registry.listed(address("198.51.100.1:1")).is_some());
        let left = (0..64_000).filter(|number| registry.listed(of_the_48(*number)).is_some());
        assert!(left.eq(0..1_499), "only the newest of the flood were evicted");
    }

    #[test]
    fn the_ranking_is_complete_before_anybody_needs_it() {
        let mut registry = Registry::new(SETTINGS, at(0));
        let mut number = 0;
        let mut newcomer = |registry: &mut Registry| {
            let ip = IpAddr::from((0x0a00_0000u32 + number * 50).to_be_bytes());
            number += 1;
            let newcomer = Address::new(ip, 20737).unwrap();
            assert_eq!(registry.apply(&announce(newcomer), at(0)), Outcome::Added);
            newcomer
        };
        let first: Vec<_> = (0..9_300).map(|_| newcomer(&mut registry)).collect();
        assert!(registry.ranking.is_none(), "a list with room to spare has no ranking");
        // Remove some during the indexing, so that slots are reused.
        for _ in 0..100 {
            newcomer(&mut registry);
        }
        assert!(
            registry.ranking.as_ref().is_some_and(|ranking| !ranking.is_complete()),
            "each newcomer advances it a little"
        );
        registry.retain(|server| !first[..300].contains(&server));
        while registry.len() < SETTINGS.servers_max {
            newcomer(&mut registry);
        }
        assert!(registry.ranking.as_ref().is_some_and(Ranking::is_complete));
        let last = newcomer(&mut registry);
        assert!(registry.len() == SETTINGS.servers_max && registry.listed(last).is_some());
    }

    #[test]
    fn records_of_other_nodes_evict_what_a_local_newcomer_would_and_no_more() {
        let mut registry = full();
        assert_eq!(registry.apply(&remote(address("192.0.2.9:1")), at(0)), Outcome::Refused(Refusal::Full));
        assert_eq!(registry.apply(&remote(address("203.0.113.5:1")), at(0)), Outcome::Added);
        let gone = address("192.0.2.5:60");
        assert!(registry.listed(gone).is_none() && registry.len() == 100);
        assert!(registry.local_state(gone, at(1)).is_none(), "an eviction is not put");
        assert_eq!(registry.own_removals(0, at(1)).count(), 0);
        assert_eq!(registry.apply(&remote(gone), at(1)), Outcome::Refused(Refusal::Full), "and does not come back");
        // Until no block is larger than the newcomer's.
        let more = (2..=200).map(|port| registry.apply(&remote(address(&format!("203.0.113.5:{port}"))), at(1)));
        assert_eq!(more.filter(|outcome| *outcome == Outcome::Added).count(), 29);
        assert_eq!(registry.len(), 100);
    }

    #[test]
    fn restored_servers_follow_the_same_eviction_rule() {
        let mut registry = full();
        let restore = |text: &str| {
            let mut server =
                crate::model::Server::new(address(text), Game::Own("one"), Proof::Cookie, T, &Facts::default());
            server.life_ms = LIFE_MS as u32;
            Change::Restore {
                server: Arc::new(server),
                ends_at_ms: T + LIFE_MS,
                grace_ms: 0,
                behind_ms: 0,
                ask_in_ms: 0,
            }
        };
        assert_eq!(registry.apply(&restore("192.0.2.9:1"), at(0)), Outcome::Refused(Refusal::Full));
        assert_eq!(registry.apply(&restore("203.0.113.5:1"), at(0)), Outcome::Added);
        assert_eq!(registry.len(), 100);
    }

    #[test]
    fn what_the_operator_names_counts_for_no_limit_and_never_goes() {
        let settings = Settings { servers_max: 20, servers_per_ip_max: 2, ..SETTINGS };
        let mut registry = Registry::new(settings, at(0));
        let named = ["192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3"];
        registry.apply(&named_servers(&named), at(0));
        assert_eq!(list(&mut registry, named.map(String::from)), 3, "beyond the limit of an address");
        assert_eq!(list(&mut registry, (11..=12).map(|port| format!("192.0.2.1:{port}"))), 2, "and not counted");
        let third = registry.apply(&announce(address("192.0.2.1:13")), at(0));
        assert_eq!(third, Outcome::Refused(Refusal::FullForIp));
        // Named servers take none of the network's 16 places.
        let of_network = (2..=20).flat_map(|host| (1..=2).map(move |port| format!("192.0.2.{host}:{port}")));
        assert_eq!(list(&mut registry, of_network), 14);
        // One more fills the list; then each newcomer of another network evicts one of this network.
        assert_eq!(list(&mut registry, (0..16).map(|net| format!("198.51.{net}.1:1"))), 16);
        assert_eq!(registry.len(), 20);
        assert!(named.iter().all(|text| registry.listed(address(text)).is_some()));
        assert_eq!(registry.apply(&announce(address("203.0.113.5:1")), at(0)), Outcome::Refused(Refusal::Full));
        registry.apply(&named_servers(&["203.0.113.5:1"]), at(0));
        assert_eq!(registry.apply(&announce(address("203.0.113.5:1")), at(0)), Outcome::Added);
    }

    #[test]
    fn exempt_networks_keep_the_limit_per_address_and_share_with_nobody() {
        let settings = Settings { servers_per_ip_max: 1, ..SETTINGS };
        let mut registry = Registry::new(settings, at(0));
        let hosts = |port: u16| (1..=100).map(move |host| format!("192.0.2.{host}:{port}"));
        assert_eq!(list(&mut registry, hosts(1)), 8);
        registry.set_exempt(networks(&["192.0.2.0/24"]));
        assert_eq!(list(&mut registry, hosts(1)), 92);
        assert_eq!(list(&mut registry, hosts(2)), 0, "one for each address");
        // Without the exemption they stay, but count as one network again, which is the largest.
        registry.set_exempt(Networks::default());
        assert_eq!(registry.len(), 100);
        registry.set_settings(Settings { servers_max: 100, ..settings }, at(0));
        assert_eq!(registry.apply(&announce(address("198.51.100.1:1")), at(0)), Outcome::Added);
        assert_eq!(registry.len(), 100);
        registry.retain(|_| false);
        assert!(registry.prefix_counts.is_empty() && registry.ranking.is_none());
    }

    #[test]
    fn a_cookie_proof_counts_for_its_address_while_it_lives() {
        let mut registry = Registry::new(SETTINGS, at(0));
        let there = address("192.0.2.1:1");
        let is_proven = |registry: &Registry| registry.has_cookie_proof(there.ip());
        assert!(!is_proven(&registry));
        registry.apply(&announce(there), at(0));
        assert!(is_proven(&registry) && !registry.has_cookie_proof(ip("192.0.2.2")));
        registry.set_exempt(networks(&["127.0.0.0/8"]));
        assert!(is_proven(&registry));
        registry.expire(at(LIFE_MS + 1_000), 100);
        assert!(!is_proven(&registry));
        // Also for a named server that another node has proven.
        registry.apply(&named_servers(&["192.0.2.1:1"]), at(0));
        registry.apply(&remote(there), at(0));
        assert!(is_proven(&registry));
        registry.retain(|_| false);
        assert!(!is_proven(&registry));
        // Another node reports it as gone: it is known, but not listed.
        registry.apply(&announce(there), at(0));
        let gone = Gone { address: there, at_ms: T + 1, game_at_ms: T + 1, quit: false, foreign: true };
        registry.apply(&Change::Merge(Box::new(RemoteState::Gone(gone))), at(1));
        assert!(registry.len() == 1 && !is_proven(&registry));
        registry.retain(|_| false);
        // No other kind of proof counts.
        let keys = Some(Arc::new(HeartbeatKeys::default()));
        registry.apply(&Change::Announce(Announce { keys, ..announcement(there, Proof::Query) }), at(0));
        assert!(!is_proven(&registry));
        registry.retain(|_| false);
        // Neither does an evicted entry.
        let mut registry = full();
        registry.retain(|server| server.ip() != ip("192.0.2.5") || server.port() == 60);
        assert_eq!(list(&mut registry, (0..40).map(|net| format!("203.{net}.113.5:1"))), 40);
        assert!(!registry.has_cookie_proof(ip("192.0.2.5")) && registry.has_cookie_proof(ip("192.0.2.1")));
    }
}

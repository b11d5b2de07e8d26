//! Limits per address and per network, and who gives way when places or memory run out.
//!
//! Limits nest: an address (IPv6 /64) has the configured limit, the prefixes around it have larger ones. Where a place is scarce,
//! whoever holds the most gives way ([`shares`](super::shares)): in a full list the largest owner of places, in a full memory the
//! largest owner of bytes, and inside a network that is full the largest address. A newcomer who would then hold as much
//! is refused. Named servers count for no limit and never give way; mirrored servers give way to all others, and nobody to them.

use std::net::IpAddr;

use super::shares::Scarce;
use super::{Refusal, Registry};
use crate::model::{Address, Proof, Server};
use crate::prefix::Networks;

impl Registry {
    /// Sets the networks that have only the limit per address, and counts all entries again.
    pub fn set_exempt(&mut self, exempt: Networks) {
        if *self.shares.exempt() == exempt {
            return;
        }
        self.shares.reset(exempt);
        let counted = (0u32..).zip(&self.slots).filter(|(_, slot)| slot.counted);
        let mut counted: Vec<_> = counted.filter_map(|(at, slot)| Some((slot.server.as_ref()?, at))).collect();
        counted.sort_by_key(|(server, at)| (server.first_seen_ms, *at));
        counted.into_iter().for_each(|(server, at)| self.shares.add(at, server.address.ip(), server.bytes()));
        self.count_games();
    }

    /// What all entries that count for limits take, in bytes.
    pub fn bytes(&self) -> usize {
        self.shares.bytes()
    }

    /// Whether a live server at this address (IPv6 /64) is proven by a cookie. Unproven datagrams that claim to come from
    /// there may be forged to harm it.
    pub fn has_cookie_proof(&self, ip: IpAddr) -> bool {
        self.shares.is_proven(ip)
    }

    /// Makes room for a newcomer that is not a named server: in the networks around it, and in all. A mirrored one takes nobody's
    /// place.
    pub(super) fn admit(&mut self, server: &Server) -> Result<(), Refusal> {
        let (ip, bytes, is_mirrored) = (server.address.ip(), server.bytes(), server.via.is_some());
        // First, so that nobody gives way to one who is refused all the same.
        if let Err((Refusal::FullForIp, _)) = self.shares.fits(ip, self.settings.servers_per_ip_max) {
            return Err(Refusal::FullForIp);
        }
        self.make_room_for_game(ip, &server.game, is_mirrored)?;
        while let Err((refusal, full)) = self.shares.fits(ip, self.settings.servers_per_ip_max) {
            let is_network = refusal == Refusal::FullForNetwork && !is_mirrored;
            let gives_way = || self.shares.gives_way_to(ip, bytes, Some(full), Scarce::Places);
            let gone = is_network.then(gives_way).flatten().ok_or(refusal)?;
            self.remove(gone);
        }
        self.make_room_for(ip, bytes, is_mirrored)
    }

    /// The same without the limits of networks.
    pub(super) fn make_room_for(&mut self, ip: IpAddr, bytes: usize, is_mirrored: bool) -> Result<(), Refusal> {
        while let Some(scarce) = self.scarce(bytes) {
            if is_mirrored {
                return Err(Refusal::Full);
            }
            // Not put as a removal: other nodes have their own limits, and the server has not quit.
            let gives_way = || self.shares.gives_way_to(ip, bytes, None, scarce);
            let gone = self.mirrored.newest(&self.slots).or_else(gives_way).ok_or(Refusal::Full)?;
            self.remove(gone);
        }
        Ok(())
    }

    /// Ends what there is no memory for any more, because servers say more than before.
    pub(super) fn shed(&mut self) {
        while self.shares.bytes() > self.settings.bytes_max {
            let Some(gone) = self.mirrored.newest(&self.slots).or_else(|| self.shares.gives_way(Scarce::Bytes)) else {
                return;
            };
            self.remove(gone);
        }
    }

    /// What would run out with one more entry of this size.
    fn scarce(&self, bytes: usize) -> Option<Scarce> {
        if self.len() >= self.settings.servers_max {
            return Some(Scarce::Places);
        }
        (self.shares.bytes().saturating_add(bytes) > self.settings.bytes_max).then_some(Scarce::Bytes)
    }

    /// Counts an entry for its networks, or no longer.
    pub(super) fn count(&mut self, at: u32, ip: IpAddr, counts: bool) {
        self.recount_game(at);
        if !counts {
            return self.shares.remove(at, ip);
        }
        let server = self.slots.get(at as usize).and_then(|slot| slot.server.as_ref());
        let bytes = server.map_or(0, |server| server.bytes());
        self.shares.add(at, ip, bytes);
    }

    /// Sets whether an entry counts for limits.
    pub(super) fn recount(&mut self, address: Address, counts: bool) {
        let Some((at, slot)) = self.slot_of(address) else { return };
        if std::mem::replace(&mut slot.counted, counts) != counts {
            self.count(at, address.ip(), counts);
        }
    }

    /// Updates what an entry counts for: its game, its bytes, and whether it is cookie-proven. Call it whenever an entry has changed.
    pub(super) fn reweigh(&mut self, at: u32) {
        self.recount_game(at);
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let ip = slot.address.ip();
        let is_proven = slot.listed && slot.server.as_ref().is_some_and(|server| server.verified_by == Proof::Cookie);
        if std::mem::replace(&mut slot.cookie_proven, is_proven) != is_proven {
            self.shares.prove(ip, is_proven);
        }
        if let Some(server) = slot.server.as_ref().filter(|_| slot.counted) {
            self.shares.weigh(at, ip, server.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
    use std::sync::Arc;

    use super::*;
    use crate::model::{
        Announce, Change, Details, Facts, Game, Gone, HeartbeatKeys, NamedServer, Now, Overrides, RemoteServer,
        RemoteState,
    };
    use crate::registry::{Outcome, Settings};

    const T: u64 = 1_760_000_000_000;
    const LIFE_MS: u64 = 120_000;
    /// The defaults, with a shorter list.
    const SETTINGS: Settings = Settings { servers_max: 10_000, servers_per_ip_max: 32, ..Settings::UNBOUNDED };

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
        let listed = RemoteServer {
            silence: Default::default(),
            announce,
            node: 9,
            first_seen_ms: T,
            last_seen_ms: T,
            via: None,
            stronger_gone_ms: None,
        };
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
        assert_eq!((registry.len(), counts[2]), (512, 0), "16 times the limit of an address: {counts:?}");
        assert_eq!(registry.apply(&announce(address("[2001:db8:1::1]:20737")), at(0)), Outcome::Added);
        assert_eq!(registry.apply(&announce(address("203.0.113.5:20737")), at(0)), Outcome::Added);
    }

    #[test]
    fn a_flood_that_fills_the_list_makes_room_for_everybody_else() {
        let settings = Settings { servers_max: 2_000, servers_per_ip_max: 1_000, ..SETTINGS };
        let mut registry = Registry::new(settings, at(0));
        assert_eq!(registry.apply(&announce(address("198.51.100.1:1")), at(0)), Outcome::Added);
        for number in 0..64_000 {
            registry.apply(&announce(of_the_48(number)), at(0));
        }
        assert_eq!(
            registry.apply(&announce(of_the_48(255)), at(0)),
            Outcome::Refused(Refusal::Full),
            "the largest itself"
        );
        for number in 0..500u32 {
            let newcomer = Address::new(IpAddr::from((0xcb00_0000 + (number << 8)).to_be_bytes()), 20737).unwrap();
            assert_eq!(registry.apply(&announce(newcomer), at(0)), Outcome::Added);
            assert!(registry.listed(newcomer).is_some());
        }
        assert_eq!(registry.len(), 2_000);
        assert!(registry.listed(address("198.51.100.1:1")).is_some());
        let left =
            |from: u64| (from..from + 256).filter(|number| registry.listed(of_the_48(*number)).is_some()).count();
        assert_eq!(left(0), left(256), "each /56 of the flood gives way as much as the others");
        assert!((0..5).all(|number| registry.listed(of_the_48(number)).is_some()), "and in each, the newest");
    }

    #[test]
    fn inside_a_full_network_the_largest_address_gives_way() {
        let mut registry = Registry::new(Settings { servers_per_ip_max: 4, ..SETTINGS }, at(0));
        let fills = (1..=8).flat_map(|host| (1..=4).map(move |port| format!("192.0.2.{host}:{port}")));
        assert_eq!(list(&mut registry, fills), 32);
        assert_eq!(list(&mut registry, ["192.0.2.9:1".into()]), 1);
        assert!(registry.len() == 32 && registry.listed(address("192.0.2.8:4")).is_none());
        // Until each has about as many: then nobody is the largest.
        assert_eq!(list(&mut registry, (2..=4).map(|port| format!("192.0.2.9:{port}"))), 2);
        let refused = registry.apply(&announce(address("192.0.2.9:4")), at(0));
        assert_eq!(refused, Outcome::Refused(Refusal::FullForNetwork));
        assert_eq!(registry.len(), 32);
    }

    #[test]
    fn servers_that_say_a_lot_give_way_to_those_that_say_little() {
        let bytes_max = 100_000;
        let mut registry = Registry::new(Settings { bytes_max, ..SETTINGS }, at(0));
        let fat = |at_address: &str, bytes: usize, ms: u64| {
            let rules = [("long", "x".repeat(bytes))].into_iter().collect();
            let facts = Facts { details: Some(Arc::new(Details { players: Vec::new(), rules })), ..Facts::default() };
            let proven_at_ms = T + ms;
            Change::Announce(Announce { facts, proven_at_ms, ..announcement(address(at_address), Proof::Cookie) })
        };
        for port in 1..=32 {
            registry.apply(&fat(&format!("192.0.2.1:{port}"), 8_000, 0), at(0));
        }
        assert!(registry.len() < 13 && (bytes_max - 9_000..=bytes_max).contains(&registry.bytes()));
        // Each that says little takes little, and has its place.
        let honest = || (0..100).map(|net| format!("198.51.{net}.1:1"));
        let all_are_listed = |registry: &Registry| honest().all(|text| registry.listed(address(&text)).is_some());
        assert_eq!(list(&mut registry, honest()), 100);
        assert!(all_are_listed(&registry) && registry.bytes() <= bytes_max);
        // So it is when one that is listed says more than before.
        let outcome = registry.apply(&fat("192.0.2.1:1", 70_000, 1_000), at(1_000));
        assert_eq!(outcome, Outcome::Changed);
        assert!(all_are_listed(&registry) && registry.bytes() <= bytes_max);
        // A lower ceiling counts at once, without a change.
        let lower = registry.bytes() / 2;
        registry.set_settings(Settings { bytes_max: lower, ..SETTINGS }, at(1_000));
        assert!((1..=lower).contains(&registry.bytes()));
    }

    #[test]
    fn records_of_other_nodes_evict_what_a_local_newcomer_would_and_no_more() {
        let mut registry = full();
        assert_eq!(registry.apply(&remote(address("192.0.2.1:100")), at(0)), Outcome::Refused(Refusal::Full));
        assert_eq!(registry.apply(&remote(address("203.0.113.5:1")), at(0)), Outcome::Added);
        let gone = address("192.0.2.5:60");
        assert!(registry.listed(gone).is_none() && registry.len() == 100);
        assert!(registry.local_state(gone, at(1)).is_none(), "an eviction is not put");
        assert_eq!(registry.own_removals(0, at(1)).count(), 0);
        assert_eq!(registry.apply(&remote(gone), at(1)), Outcome::Refused(Refusal::Full), "and does not come back");
        // Until no network is larger than the newcomer's.
        let more = (2..=200).map(|port| registry.apply(&remote(address(&format!("203.0.113.5:{port}"))), at(1)));
        assert_eq!(more.filter(|outcome| *outcome == Outcome::Added).count(), 32);
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
        assert_eq!(registry.apply(&restore("192.0.2.1:100"), at(0)), Outcome::Refused(Refusal::Full));
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
        list(&mut registry, of_network);
        assert_eq!(registry.len(), 3 + 16);
        // One more fills the list; then each newcomer of another network evicts one of this network.
        assert_eq!(list(&mut registry, (0..16).map(|net| format!("198.{net}.51.1:1"))), 16);
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
        assert!(registry.shares.is_empty());
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
        let mut registry = Registry::new(Settings { servers_max: 2, ..SETTINGS }, at(0));
        assert_eq!(list(&mut registry, ["192.0.2.1:1", "192.0.2.5:1", "203.0.113.5:1"].map(String::from)), 3);
        assert!(!registry.has_cookie_proof(ip("192.0.2.5")) && registry.has_cookie_proof(ip("192.0.2.1")));
    }
}

//! Keeps servers off the list that the operator has banned, unlisted or hidden by their names, wherever they come from.
//!
//! A listed server was compared with all rules when it came and when its name changed, so new rules are compared with all
//! servers once, and a proof of a known server is not compared again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{Refusal, Registry, is_from_the_future};
use crate::model::{Address, Now, Strength};
use crate::moderation::{Rules, Withheld};

/// Names of hidden servers to remember, for the doctor. The oldest is forgotten first.
const NAMES_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Moderation {
    rules: Arc<Rules>,
    /// Servers that were refused because of their names.
    hidden: HashMap<Address, Box<str>>,
    order: VecDeque<Address>,
}

impl Moderation {
    fn remember(&mut self, address: Address, name: &str) {
        if let Some(known) = self.hidden.get_mut(&address) {
            if **known != *name {
                *known = name.into();
            }
            return;
        }
        self.hidden.insert(address, name.into());
        self.order.push_back(address);
        if self.order.len() > NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.hidden.remove(&oldest);
        }
    }
}

impl Registry {
    /// Sets what is kept off the list, and removes what is on it. Returns how many servers left the list.
    pub fn set_rules(&mut self, rules: Arc<Rules>) -> usize {
        let new = rules.since(&self.moderation.rules);
        self.moderation.rules = rules;
        let Some(new) = new else { return 0 };
        let withheld = |address: Address, name: &str| new.withholds(address, name, self.named.contains_key(&address));
        let named = self.slots.iter().filter_map(|slot| Some((slot, slot.server.as_ref()?.texts.name())));
        let gone = named.filter_map(|(slot, name)| Some((slot.address, withheld(slot.address, name)?, slot.listed)));
        let gone: Vec<_> = gone.collect();
        for (address, why, _) in &gone {
            self.withdraw(*address, *why, None);
        }
        gone.iter().filter(|(.., listed)| *listed).count()
    }

    /// The name that a server was refused for, if it was.
    pub fn hidden_name(&self, address: Address) -> Option<&str> {
        self.moderation.hidden.get(&address).map(|name| &**name)
    }

    /// Whether the operator keeps a server with this name and proof off the list. If so, it is off the list now. A proof that
    /// is weaker or older than the listed server's changes nothing, so its name hides nothing.
    pub(super) fn refuses(
        &mut self,
        address: Address,
        name: &str,
        strength: Strength,
        proven_at_ms: u64,
        now: Now,
    ) -> Option<Refusal> {
        if self.moderation.rules.is_empty() {
            return None;
        }
        let listed = self.listed(address);
        if listed.is_some_and(|server| server.texts.name() == name) {
            return None;
        }
        let why = self.moderation.rules.withholds(address, name, self.named.contains_key(&address))?;
        let at = self.find(address);
        if at.is_some_and(|at| {
            self.has_stronger_proof(at, strength, now) || self.has_newer_proof(at, strength, proven_at_ms, now)
        }) {
            return None;
        }
        self.withdraw(address, why, Some(name));
        Some(match why {
            Withheld::Banned => Refusal::Banned,
            Withheld::Unlisted => Refusal::Unlisted,
            Withheld::Hidden => Refusal::Hidden,
        })
    }

    /// Whether this slot has a listed server with a newer proof of the same strength.
    fn has_newer_proof(&self, at: u32, strength: Strength, proven_at_ms: u64, now: Now) -> bool {
        let Some(slot) = self.slots.get(at as usize).filter(|slot| slot.listed) else { return false };
        slot.server.as_ref().is_some_and(|server| server.strength() == strength)
            && !is_from_the_future(slot.proven_at_ms, now)
            && proven_at_ms < slot.proven_at_ms
    }

    /// Takes a server off the list. A named one keeps its entry, so that it is back when the operator allows it. `name`: the
    /// one that it is hidden for, if not its known one.
    fn withdraw(&mut self, address: Address, why: Withheld, name: Option<&str>) {
        let is_named = self.is_named(address);
        let known = self.slot_of(address).and_then(|(_, slot)| slot.server.clone());
        if why == Withheld::Hidden
            && let Some(name) = name.or(known.as_ref().map(|server| server.texts.name()))
        {
            self.moderation.remember(address, name);
        }
        let Some((at, slot)) = self.slot_of(address) else { return };
        if !is_named {
            self.remove(at);
        } else if std::mem::replace(&mut slot.listed, false) {
            self.mark(at);
        }
    }

    /// Compares servers that the configuration names no longer.
    pub(super) fn recheck_names(&mut self, addresses: &[Address]) {
        for address in
            addresses.iter().filter(|address| !self.named.contains_key(*address)).copied().collect::<Vec<_>>()
        {
            let Some(server) = self.slot_of(address).and_then(|(_, slot)| slot.server.clone()) else { continue };
            if self.moderation.rules.withholds(address, server.texts.name(), false) == Some(Withheld::Hidden) {
                self.withdraw(address, Withheld::Hidden, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Announce, Change, Facts, Game, Mirrored, NamedServer, Now, Origin, Overrides, Proof, RemoteServer, RemoteState,
        Server,
    };
    use crate::moderation::Subject;
    use crate::registry::{Outcome, Settings};

    const T: u64 = 1_760_000_000_000;
    const SETTINGS: Settings = Settings {
        servers_max: 100,
        servers_per_ip_max: 9,
        ask_every_ms: 30_000,
        misses_max: 3,
        ..Settings::UNBOUNDED
    };

    fn at(ms: u64) -> Now {
        Now { mono_ms: ms, unix_ms: T + ms }
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn announced<'a>(text: &str, name: &'a str, ms: u64) -> Announce<'a> {
        Announce {
            address: address(text),
            game: Game::Own("one"),
            proof: Proof::Cookie,
            proven_at_ms: T + ms,
            life_ms: 60_000,
            asked: false,
            rtt_us: None,
            keys: None,
            facts: Facts { name: name.into(), ..Facts::default() },
        }
    }

    fn rules(subjects: &[(&str, &str)]) -> Arc<Rules> {
        Arc::new(Rules::new(subjects.iter().map(|(kind, text)| Subject::of_kind(kind, text).unwrap())))
    }

    const ALL: [(&str, &str); 3] = [("ban", "192.0.2.0/28"), ("unlist", "192.0.2.20:1"), ("hide", "*spam*")];
    /// One server for each of them, and one that nobody minds.
    const SERVERS: [(&str, &str, Option<Refusal>); 4] = [
        ("192.0.2.1:1", "a", Some(Refusal::Banned)),
        ("192.0.2.20:1", "b", Some(Refusal::Unlisted)),
        ("192.0.2.30:1", "SPAM!", Some(Refusal::Hidden)),
        ("192.0.2.20:2", "c", None),
    ];

    #[test]
    fn every_source_of_servers_obeys() {
        let merged = |announce: Announce<'static>| {
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
        };
        let restored = |announce: Announce<'static>| {
            let server = Arc::new(Server { life_ms: 60_000, ..Server::announced(&announce) });
            Change::Restore { server, ends_at_ms: T + 60_000, grace_ms: 0, behind_ms: 0, ask_in_ms: 0 }
        };
        let mirrored = |announce: Announce<'static>| {
            let Announce { address, game, facts, .. } = announce;
            Change::Mirror(Box::new(Mirrored { address, game, via: Arc::new(Origin::new("x")), rtt_us: 1, facts }))
        };
        let sources: [&dyn Fn(Announce<'static>) -> Change<'static>; 4] =
            [&Change::Announce, &merged, &restored, &mirrored];
        for change in sources {
            let mut registry = Registry::new(SETTINGS, at(0));
            registry.set_rules(rules(&ALL));
            for (text, name, refusal) in SERVERS {
                let expected = refusal.map_or(Outcome::Added, Outcome::Refused);
                assert_eq!(registry.apply(&change(announced(text, name, 0)), at(0)), expected, "{text}");
            }
            assert_eq!(registry.len(), 1);
            assert_eq!(registry.hidden_name(address("192.0.2.30:1")), Some("SPAM!"));
            assert_eq!(registry.hidden_name(address("192.0.2.20:1")), None);
            registry.set_rules(rules(&[]));
            for (text, name, _) in SERVERS {
                registry.apply(&change(announced(text, name, 1)), at(1));
            }
            assert_eq!(registry.len(), 4, "all are back");
        }
    }

    #[test]
    fn new_rules_remove_what_is_listed_and_old_ones_are_not_compared_again() {
        let mut registry = Registry::new(SETTINGS, at(0));
        for (text, name, _) in SERVERS {
            registry.apply(&Change::Announce(announced(text, name, 0)), at(0));
        }
        registry.drain(&mut Vec::new());
        assert_eq!(registry.set_rules(rules(&ALL)), 3);
        let mut changes = Vec::new();
        registry.drain(&mut changes);
        assert_eq!(changes.iter().filter(|(_, listed)| listed.is_none()).count(), 3, "for the deltas");
        assert_eq!(registry.set_rules(rules(&ALL)), 0);
        // A listed server that takes a hidden name, by an announcement or in an answer.
        let renamed = Change::Announce(announced("192.0.2.20:2", "no spam", 5));
        assert_eq!(registry.apply(&renamed, at(5)), Outcome::Refused(Refusal::Hidden));
        assert!(registry.is_empty());
        let asked = Announce { proof: Proof::Query, asked: true, ..announced("192.0.2.40:1", "d", 6) };
        assert_eq!(registry.apply(&Change::Announce(asked), at(6)), Outcome::Added);
        let facts = Some(Facts { name: "spam".into(), ..Facts::default() });
        let answer =
            Change::Answer { address: address("192.0.2.40:1"), game: Game::Own("one"), rtt_us: 1, facts, digest: 0 };
        assert_eq!(registry.apply(&answer, at(7)), Outcome::Refused(Refusal::Hidden));
        assert!(registry.is_empty());
    }

    /// Somebody else at its address can connect from there, and replay what it once announced.
    #[test]
    fn a_hidden_name_with_a_weaker_or_older_proof_hides_nothing() {
        let text = "192.0.2.20:2";
        let mut registry = Registry::new(SETTINGS, at(10));
        registry.set_rules(rules(&ALL));
        assert_eq!(registry.apply(&Change::Announce(announced(text, "c", 10)), at(10)), Outcome::Added);
        let weaker = Announce { proof: Proof::Connection, ..announced(text, "spam", 20) };
        let older = announced(text, "spam", 5);
        for (announce, outcome) in [(weaker, Outcome::Refused(Refusal::StrongerProof)), (older, Outcome::Stale)] {
            assert_eq!(registry.apply(&Change::Announce(announce.clone()), at(20)), outcome);
            let remote = RemoteServer {
                silence: Default::default(),
                announce,
                node: 9,
                first_seen_ms: T,
                last_seen_ms: T,
                via: None,
                stronger_gone_ms: None,
            };
            let merge = Change::Merge(Box::new(RemoteState::Listed(remote)));
            assert_eq!(registry.apply(&merge, at(20)), Outcome::Stale);
            assert!(registry.listed(address(text)).is_some());
        }
        let newer = announced(text, "spam", 30);
        assert_eq!(registry.apply(&Change::Announce(newer), at(30)), Outcome::Refused(Refusal::Hidden));
    }

    #[test]
    fn a_hidden_name_counts_in_the_same_millisecond_and_after_the_clock_was_set_back() {
        let text = "192.0.2.20:2";
        let hidden = Outcome::Refused(Refusal::Hidden);
        let mut registry = Registry::new(SETTINGS, at(10));
        registry.set_rules(rules(&ALL));
        registry.apply(&Change::Announce(announced(text, "c", 10)), at(10));
        assert_eq!(registry.apply(&Change::Announce(announced(text, "spam", 10)), at(10)), hidden);
        assert_eq!(registry.hidden_name(address(text)), Some("spam"));
        assert_eq!(registry.apply(&Change::Announce(announced(text, "more spam", 11)), at(11)), hidden);
        assert_eq!(registry.hidden_name(address(text)), Some("more spam"), "the newest name");

        registry.apply(&Change::Announce(announced(text, "c", 3_600_000)), at(3_600_000));
        assert!(registry.listed(address(text)).is_some());
        let back = Now { mono_ms: 3_601_000, unix_ms: T + 1_000 };
        assert_eq!(registry.apply(&Change::Announce(announced(text, "spam", 1_000)), back), hidden);
    }

    /// Another node's clock is a little ahead, and another master names another game at the same address.
    #[test]
    fn a_mirrored_server_with_a_hidden_name_replaces_no_other_game() {
        let (text, via) = ("192.0.2.20:2", Arc::new(Origin::new("x")));
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.set_rules(rules(&ALL));
        let remote = RemoteServer {
            silence: Default::default(),
            announce: Announce { proof: Proof::Query, ..announced(text, "c", 100) },
            node: 9,
            first_seen_ms: T,
            last_seen_ms: T,
            via: Some(via.clone()),
            stronger_gone_ms: None,
        };
        registry.apply(&Change::Merge(Box::new(RemoteState::Listed(remote))), at(0));
        assert!(registry.listed(address(text)).is_some());
        let facts = Facts { name: "spam".into(), ..Facts::default() };
        let other = Mirrored { address: address(text), game: Game::Own("other"), via, rtt_us: 1, facts };
        assert_eq!(registry.apply(&Change::Mirror(Box::new(other)), at(0)), Outcome::Refused(Refusal::Hidden));
        assert!(registry.listed(address(text)).is_none());
    }

    #[test]
    fn a_named_server_can_be_unlisted_but_is_not_hidden_by_its_name() {
        let (hidden, unlisted) = ("192.0.2.30:1", "192.0.2.20:1");
        let game = Game::Own("one");
        let named = |text| NamedServer {
            address: address(text),
            game: game.clone(),
            overrides: Overrides::default(),
            asked: true,
        };
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.set_rules(rules(&ALL));
        registry.apply(&Change::NamedServers(Arc::new([named(hidden), named(unlisted)])), at(0));
        let answer = |text| {
            let facts = Some(Facts { name: "our spam".into(), ..Facts::default() });
            Change::Answer { address: address(text), game: game.clone(), rtt_us: 1, facts, digest: 0 }
        };
        assert_eq!(registry.apply(&answer(hidden), at(1)), Outcome::Changed);
        assert_eq!(registry.apply(&answer(unlisted), at(1)), Outcome::Refused(Refusal::Unlisted));
        assert!(registry.listed(address(hidden)).is_some() && registry.listed(address(unlisted)).is_none());
        registry.set_rules(rules(&[("hide", "*spam*")]));
        assert_eq!(registry.apply(&answer(unlisted), at(2)), Outcome::Changed, "queried all the time");
        assert!(registry.listed(address(unlisted)).is_some());
        assert_eq!(registry.set_rules(rules(&ALL)), 1);
        assert!(registry.listed(address(unlisted)).is_none());
        // Once the configuration names it no longer, its name counts.
        registry.apply(&Change::NamedServers(Arc::new([])), at(3));
        assert!(registry.listed(address(hidden)).is_none());
    }

    #[test]
    fn the_names_of_hidden_servers_are_bounded() {
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.set_rules(rules(&ALL));
        for number in 0..=NAMES_MAX as u32 {
            let text = format!("{}:1", std::net::Ipv4Addr::from(0x0a00_0000 + number));
            registry.apply(&Change::Announce(announced(&text, "spam", 0)), at(0));
        }
        assert_eq!(registry.moderation.hidden.len(), NAMES_MAX);
        assert_eq!(registry.hidden_name(address("10.0.0.0:1")), None);
        assert_eq!(registry.hidden_name(address("10.0.0.1:1")), Some("spam"));
    }
}

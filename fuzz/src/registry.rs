//! The registry as a state machine: changes of all kinds and times, as the input says. Limits hold, a weaker proof never
//! changes a stronger one, lives end, nothing unproven is listed, no sequence of changes takes more bytes than the ceiling, and
//! the published view is what the registry has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use super::tape::Tape;
use super::world::START;
use rallypoint::model::{
    Address, Announce, Change, Facts, Game, Gone, HeartbeatKeys, Mirrored, NamedServer, Now, Origin, Overrides, Proof,
    RemoteServer, RemoteState, Server, SharedTime, Strength,
};
use rallypoint::moderation::{Rules, Subject};
use rallypoint::prefix::{Networks, Prefix};
use rallypoint::protocols::CARDS;
use rallypoint::registry::merge::LocalState;
use rallypoint::registry::view::{Delta, Publisher, View};
use rallypoint::registry::{Outcome, Registry, Settings};

const STEPS_MAX: usize = 64;
/// How late the end of a life may be noticed.
const TICK_MS: u64 = 250;
/// Longer than any life here, with its grace.
const LONG_MS: u64 = 12_000_000;

/// How long a server that announces itself may be silent.
const GRACE_MS: u64 = 100_000;

/// Addresses of all kinds of prefixes.
static ADDRESSES: LazyLock<Vec<Address>> = LazyLock::new(|| {
    let hosts = ["203.0.113.1", "203.0.113.2", "203.0.113.3", "198.51.100.1"];
    let hosts6 = ["[2001:db8::1]", "[2001:db8::2]", "[2001:db8:0:1::1]", "[2001:db8:0:100::1]", "[2001:db8:1::1]"];
    let place = |host: &&str| [format!("{host}:20001"), format!("{host}:20002")];
    hosts.iter().chain(&hosts6).flat_map(place).map(|text| text.parse().expect("an address")).collect()
});

static GAMES: LazyLock<Vec<Game>> = LazyLock::new(|| {
    let own = CARDS.iter().take(2).map(|card| Game::Own(card.name));
    own.chain([Game::carried(CARDS[0].name, "a game"), Game::master(CARDS[0].name)]).collect()
});

struct World {
    registry: Registry,
    settings: Settings,
    publisher: Publisher,
    view: View,
    /// The list as its deltas describe it.
    by_deltas: BTreeMap<Address, Arc<Server>>,
    now: Now,
    named: Vec<NamedServer>,
    named_most: usize,
    exempt: Networks,
    /// What is listed, and what has been proven since.
    proven: BTreeSet<Address>,
    /// When servers missed the first query in a row.
    missed_ms: BTreeMap<Address, u64>,
    /// What the operator keeps off the list.
    rules: Arc<Rules>,
}

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let servers_max = 4 + tape.below(12);
    let settings = Settings {
        servers_max,
        // In every other world, bytes run out before places do.
        bytes_max: if servers_max.is_multiple_of(2) { servers_max * 400 } else { usize::MAX },
        servers_per_ip_max: 1 + tape.below(3) as u32,
        ask_every_ms: 30_000,
        misses_max: 1 + tape.below(3) as u8,
        grace_ms: if servers_max.is_multiple_of(3) { 0 } else { GRACE_MS },
    };
    // It takes long.
    let until_the_end = tape.byte() & 15 == 15;
    let mut world = World {
        registry: Registry::new(settings, START),
        settings,
        publisher: Publisher::default(),
        view: View::new(0, 0, Vec::new()),
        by_deltas: BTreeMap::new(),
        now: START,
        named: Vec::new(),
        named_most: 0,
        exempt: Networks::default(),
        proven: BTreeSet::new(),
        missed_ms: BTreeMap::new(),
        rules: Arc::default(),
    };
    for _ in 0..STEPS_MAX {
        if tape.is_empty() {
            break;
        }
        world.step(&mut tape);
        world.check();
        // Whatever is off the list needs a new proof.
        let World { proven, registry, .. } = &mut world;
        proven.retain(|address| registry.listed(*address).is_some());
    }
    world.publish();
    if until_the_end {
        world.advance(LONG_MS);
        let named = world.named.iter().filter(|named| named.asked).count();
        assert!(world.registry.len() <= named, "lives never end");
    }
}

impl World {
    fn step(&mut self, tape: &mut Tape<'_>) {
        let kind = tape.below(15);
        let (address, game) = (*tape.choice(&ADDRESSES), tape.choice(&GAMES).clone());
        match kind {
            0..=2 => self.announce(address, game, tape),
            3 => {
                let (life_ms, keys) = (tape.ms(), keys(tape, address));
                self.apply(&Change::Announcing { address, protocol: game.protocol() });
                self.apply(&Change::Heartbeat { address, game, life_ms, keys });
            }
            4 => {
                let facts = tape.flag().then(|| facts(tape));
                if self.registry.address_state(address, self.now).is_some_and(|state| state.server.game == game) {
                    self.proven.insert(address);
                }
                self.apply(&Change::Answer { address, game, rtt_us: tape.number().into(), facts, digest: 0 });
            }
            5 => {
                let proven_at_ms = tape.flag().then(|| self.now.unix_ms.saturating_sub(tape.ms()));
                if self.apply(&Change::Miss { address, game, proven_at_ms }) != Outcome::Stale {
                    self.check_silence(address);
                }
            }
            6 => self.quit(address, tape.flag()),
            7 => self.restore(address, game, tape),
            8 => self.merge(address, game, tape),
            9 => self.name(tape),
            10 | 11 => self.advance(tape.ms()),
            12 => self.settings(tape),
            13 => self.mirror(address, game, tape),
            _ => {
                self.publish();
                let mut due = Vec::new();
                self.registry.due(self.now, 100, &mut due);
                assert!(due.iter().all(|due| self.registry.address_state(due.address, self.now).is_some()));
            }
        }
    }

    /// A server that has missed too many queries is off the list, or marked and within its grace.
    fn check_silence(&mut self, address: Address) {
        let Some(state) = self.registry.address_state(address, self.now) else { return };
        if state.misses == 1 {
            self.missed_ms.insert(address, self.now.mono_ms);
        }
        if state.listed && state.misses >= self.settings.misses_max {
            let missed_ms = self.missed_ms[&address];
            assert!(
                state.server.is_unanswered() && state.server.via.is_none(),
                "{address} is listed as if it answered"
            );
            assert!(self.now.mono_ms < missed_ms + self.settings.grace_ms, "{address} outstays its grace");
        }
    }

    fn apply(&mut self, change: &Change<'_>) -> Outcome {
        self.registry.read_ahead([change]);
        self.registry.apply(change, self.now)
    }

    fn announced(&self, address: Address, game: Game, tape: &mut Tape<'_>) -> Announce<'static> {
        Announce {
            address,
            game,
            proof: *tape.choice(&Proof::ALL),
            proven_at_ms: (self.now.unix_ms + u64::from(tape.byte())).saturating_sub(tape.ms()),
            life_ms: tape.ms(),
            asked: tape.flag(),
            rtt_us: tape.flag().then(|| tape.number().into()),
            keys: tape.flag().then(|| keys(tape, address)),
            facts: facts(tape),
        }
    }

    /// What is listed at an address with more than a connection, and alive.
    fn strong(&self, address: Address) -> Option<Arc<Server>> {
        let state = self.registry.address_state(address, self.now)?;
        let is_strong = state.server.verified_by.strength() == Strength::Game;
        (is_strong && state.listed && state.life_left_ms > 0).then_some(state.server)
    }

    fn announce(&mut self, address: Address, game: Game, tape: &mut Tape<'_>) {
        let announce = self.announced(address, game, tape);
        let strong = self.strong(address).filter(|_| announce.proof.strength() == Strength::Address);
        let outcome = self.apply(&Change::Announce(announce));
        if let Some(strong) = strong {
            assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?} over a stronger proof");
            assert_eq!(self.registry.listed(address), Some(&strong));
        }
        if outcome == Outcome::Added && !self.is_named(address) {
            for prefix in Prefix::all(address.ip(), &self.exempt) {
                let same = |other: &&Address| Prefix::all(other.ip(), &self.exempt).contains(&prefix);
                let entries = ADDRESSES.iter().filter(same).filter(|other| self.counts(**other)).count();
                let most = prefix.limit(self.settings.servers_per_ip_max) as usize;
                assert!(entries <= most, "{entries} servers in {prefix}, of at most {most}");
            }
        }
        if matches!(outcome, Outcome::Added | Outcome::Changed | Outcome::Refreshed) {
            self.proven.insert(address);
        }
    }

    /// Another master names a server, and it has answered. What announces itself here, or is named by the operator, stays.
    fn mirror(&mut self, address: Address, game: Game, tape: &mut Tape<'_>) {
        let known = self.registry.address_state(address, self.now);
        let direct = known.filter(|state| state.server.via.is_none());
        let via = Arc::new(Origin::new("another master"));
        let mirrored = Mirrored { address, game, via, rtt_us: tape.number().into(), facts: facts(tape) };
        let (before, direct_before) = (self.registry.len(), self.direct());
        let outcome = self.apply(&Change::Mirror(Box::new(mirrored)));
        if let Some(direct) = direct {
            let now = self.registry.address_state(address, self.now).expect("it was there");
            assert!(
                (&now.server, now.listed, now.life_left_ms) == (&direct.server, direct.listed, direct.life_left_ms)
            );
            assert_eq!(outcome, Outcome::Stale);
        }
        assert_eq!(self.direct(), direct_before, "{outcome:?} for a mirrored server");
        assert!(self.registry.len() <= before + 1);
        if matches!(outcome, Outcome::Added | Outcome::Changed | Outcome::Refreshed) {
            self.proven.insert(address);
        }
    }

    /// The entries that are not mirrored.
    fn direct(&self) -> usize {
        self.registry.len() - self.registry.mirrored()
    }

    /// A server that is proven by a cookie is not removed over a connection.
    fn quit(&mut self, address: Address, master: bool) {
        let by_cookie = self.registry.listed(address).filter(|server| server.verified_by == Proof::Cookie).cloned();
        self.apply(&Change::Quit { address, master, proven: false });
        if let Some(server) = by_cookie {
            assert_eq!(self.registry.listed(address), Some(&server));
        }
    }

    fn restore(&mut self, address: Address, game: Game, tape: &mut Tape<'_>) {
        let via = tape.flag().then(|| Arc::new(Origin::new("another master")));
        let server = Server { via, ..Server::announced(&self.announced(address, game, tape)) };
        let ends_at_ms = (self.now.unix_ms + tape.ms()).saturating_sub(tape.ms());
        let behind_ms = i64::from(tape.number() as i16) * 10;
        let (grace_ms, ask_in_ms) = (tape.ms(), tape.ms());
        let listed = self.strong(address).filter(|_| server.verified_by.strength() == Strength::Address);
        let change = Change::Restore { server: Arc::new(server), ends_at_ms, grace_ms, behind_ms, ask_in_ms };
        let outcome = self.apply(&change);
        if let Some(strong) = listed {
            assert_eq!(self.registry.listed(address), Some(&strong));
        }
        if outcome == Outcome::Added {
            self.proven.insert(address);
        }
    }

    fn merge(&mut self, address: Address, game: Game, tape: &mut Tape<'_>) {
        let remote = if tape.flag() {
            let at_ms = (self.now.unix_ms + 100).saturating_sub(tape.ms());
            let game_at_ms = if tape.flag() { at_ms } else { 0 };
            RemoteState::Gone(Gone { address, at_ms, game_at_ms, quit: tape.flag(), foreign: true })
        } else {
            let announce = self.announced(address, game, tape);
            RemoteState::Listed(RemoteServer {
                silence: Default::default(),
                node: tape.byte(),
                first_seen_ms: announce.proven_at_ms.saturating_sub(tape.ms()),
                last_seen_ms: announce.proven_at_ms,
                stronger_gone_ms: tape.flag().then(|| self.now.unix_ms.saturating_sub(tape.ms())),
                via: tape.flag().then(|| Arc::new(Origin::new("another master"))),
                announce,
            })
        };
        let is_weak = matches!(&remote, RemoteState::Listed(RemoteServer { announce, stronger_gone_ms: None, .. })
            if announce.proof.strength() == Strength::Address);
        let strong = self.strong(address).filter(|_| is_weak);
        let (is_listed, was_listed) =
            (matches!(remote, RemoteState::Listed(_)), self.registry.listed(address).is_some());
        // A proof from before the removal.
        let is_ended = matches!((self.registry.local_state(address, self.now), &remote),
            (Some(LocalState::Gone(gone)), RemoteState::Listed(remote))
                if gone.ends(remote.strength(), remote.announce.proven_at_ms));
        let outcome = self.apply(&Change::Merge(Box::new(remote)));
        if let Some(strong) = strong {
            assert_eq!(self.registry.listed(address), Some(&strong), "{outcome:?} over a stronger proof");
        }
        if is_ended || matches!(outcome, Outcome::Stale | Outcome::Refused(_)) {
            let is_on = self.registry.listed(address).is_some();
            assert!(was_listed || !is_on, "{outcome:?}, and {address} is on the list");
        } else if is_listed {
            self.proven.insert(address);
        }
    }

    fn name(&mut self, tape: &mut Tape<'_>) {
        let named = (0..tape.below(4)).map(|_| NamedServer {
            address: *tape.choice(&ADDRESSES),
            game: tape.choice(&GAMES).clone(),
            overrides: Overrides { official: tape.flag(), priority: tape.byte().into(), flavor: tape.byte() },
            asked: tape.flag(),
        });
        let all: BTreeMap<Address, NamedServer> = named.map(|named| (named.address, named)).collect();
        self.named = all.into_values().collect();
        self.named_most += self.named.len();
        self.apply(&Change::NamedServers(self.named.clone().into()));
    }

    fn settings(&mut self, tape: &mut Tape<'_>) {
        match tape.below(5) {
            0 => {
                self.settings.ask_every_ms = 1_000 + tape.ms();
                self.registry.set_settings(self.settings, self.now);
            }
            1 => {
                let networks = ["203.0.113.0/24", "2001:db8::/48"].map(|text| text.parse().expect("a network"));
                self.exempt = Networks::new(&networks[..tape.below(3)]);
                self.registry.set_exempt(self.exempt.clone());
            }
            2 => {
                let subjects = (0..tape.below(3)).map(|_| subject(tape)).collect::<Vec<_>>();
                self.rules = Arc::new(Rules::new(subjects));
                self.registry.set_rules(self.rules.clone());
            }
            3 => {
                // The time of day is set; what lives are measured with is not.
                let (forth, back) = (tape.ms(), tape.ms());
                self.now.unix_ms = (self.now.unix_ms + forth).saturating_sub(back);
            }
            _ => {
                let ahead_ms = START.unix_ms as i64 - START.mono_ms as i64 + i64::from(tape.number() as i16) * 10;
                self.registry.set_time(SharedTime { ahead_of_mono_ms: Some(ahead_ms) }, self.now);
            }
        }
    }

    /// Time passes, and lives end.
    fn advance(&mut self, ms: u64) {
        self.pass(ms);
        let before = self.now;
        self.pass(TICK_MS);
        for address in ADDRESSES.iter().filter(|address| !self.is_named(**address)) {
            let state = self.registry.address_state(*address, before);
            assert!(state.is_none_or(|state| state.life_left_ms > 0), "{address} outlives its life");
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = Now { mono_ms: self.now.mono_ms + ms, unix_ms: self.now.unix_ms + ms };
        while self.registry.expire(self.now, 1_000) {}
    }

    fn publish(&mut self) {
        let mut dirty = Vec::new();
        self.registry.drain(&mut dirty);
        assert!(!self.registry.is_dirty());
        let serial = self.view.serial;
        let Some((view, batch)) = self.publisher.publish(&mut dirty, self.now) else { return self.compare() };
        assert!(view.serial == serial + 1 && batch.serial == view.serial);
        for delta in batch.deltas {
            let server = delta.server().clone();
            let before = match delta {
                Delta::Removed(_) => self.by_deltas.remove(&server.address),
                _ => self.by_deltas.insert(server.address, server.clone()),
            };
            let was_there = !matches!(delta, Delta::Added(_));
            assert_eq!(before.is_some(), was_there, "{delta:?}");
        }
        self.view = view;
        self.compare();
    }

    /// The view, the deltas and the registry agree.
    fn compare(&self) {
        let listed = ADDRESSES.iter().filter_map(|address| self.registry.listed(*address));
        let listed: BTreeMap<Address, Arc<Server>> = listed.map(|server| (server.address, server.clone())).collect();
        let view: BTreeMap<Address, Arc<Server>> =
            self.view.servers.iter().map(|server| (server.address, server.clone())).collect();
        assert_eq!(view.len(), self.view.servers.len(), "an address is listed twice");
        assert_eq!(view, listed);
        assert_eq!(self.by_deltas, listed);
    }

    fn is_named(&self, address: Address) -> bool {
        self.named.iter().any(|named| named.address == address)
    }

    /// Whether there is an entry that counts for limits.
    fn counts(&self, address: Address) -> bool {
        !self.is_named(address) && self.registry.address_state(address, self.now).is_some()
    }

    fn check(&self) {
        let states = ADDRESSES.iter().filter_map(|address| self.registry.address_state(*address, self.now));
        let states: Vec<_> = states.collect();
        assert_eq!(states.len(), self.registry.len());
        assert!(self.registry.len() <= self.settings.servers_max + self.named_most, "{} servers", states.len());
        assert!(self.registry.bytes() <= self.settings.bytes_max, "{} bytes", self.registry.bytes());
        assert!(states.iter().all(|state| !state.listed || self.proven.contains(&state.server.address)));
        for state in states.iter().filter(|state| state.listed) {
            let server = &state.server;
            let withheld = self.rules.withholds(server.address, server.texts.name(), self.is_named(server.address));
            assert!(withheld.is_none(), "{} is listed, but {withheld:?}", server.address);
        }
        let has_cookie = |ip: IpAddr| {
            let is_near = |address: &Address| Prefix::narrowest(address.ip()) == Prefix::narrowest(ip);
            states.iter().any(|state| {
                state.listed && state.server.verified_by == Proof::Cookie && is_near(&state.server.address)
            })
        };
        for address in ADDRESSES.iter() {
            assert_eq!(self.registry.has_cookie_proof(address.ip()), has_cookie(address.ip()), "{address}");
            self.registry.local_state(*address, self.now);
        }
    }
}

/// What an operator says of a network, a server or a name.
fn subject(tape: &mut Tape<'_>) -> Subject {
    let address = *tape.choice(&ADDRESSES);
    let subject = match tape.below(3) {
        0 => Subject::network(&address.ip().to_string()),
        1 => Subject::server(&address.to_string()),
        _ => Subject::name(&format!("*{}*", char::from(b'a' + tape.byte() % 26))),
    };
    subject.expect("a subject")
}

fn facts(tape: &mut Tape<'_>) -> Facts<'static> {
    (CARDS[tape.below(2)].pretend)(tape.below(3))
}

fn keys(tape: &mut Tape<'_>, address: Address) -> Arc<HeartbeatKeys> {
    Arc::new(HeartbeatKeys::of(if tape.flag() { "one" } else { "two" }, address))
}

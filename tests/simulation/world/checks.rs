//! The invariants. Their list is in `main.rs`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use rallypoint::cluster::clock::SKEW_MAX_MS;
use rallypoint::cookie;
use rallypoint::model::{Address, Proof, Server};
use rallypoint::prefix::{Networks, Prefix};
use rallypoint::protocols::announce::AnnounceMethod;
use rallypoint::registry::view::Delta;

use super::exchange::EXCHANGE_MS;
use super::{Kind, SOON_MS, World, forger, is_victim};
use crate::game::{Game, State};

/// The tries of one query, and the time until the result is published.
const QUERY_MS: u64 = 4_000;
/// A silent game is asked again for so long after its heartbeat.
const RETRIES_MS: u64 = 60_000;
/// How long after the end of a life a server may be listed because the hub looks at ends only so often.
const SLACK_MS: u64 = 1_000;
/// An announcement may be so much later than a quarter of the interval, which is counted in whole seconds.
const HABIT_SLACK_MS: u64 = 3_250;
/// IPv6 and UDP headers, which budgets count, and those of IPv4.
const HEADER_BYTES: u64 = 48;
const HEADER_BYTES_LEAST: u64 = 28;
/// What Ethernet carries at least: shorter packets are filled up.
const FRAME_BYTES_LEAST: u64 = 46;
/// Budgets to remember; those that are full again are forgotten.
const USED_MAX: usize = 20_000;

/// A budget that a node has for a network.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Budgeted {
    pub node: IpAddr,
    prefix: Prefix,
    what: &'static str,
}

/// How much of it was used at a time.
#[derive(Default)]
pub(super) struct Used {
    thousandths: u64,
    at_ms: u64,
}

impl World {
    /// 1: the address has proven itself, and recently enough. 3: a server that has gone, has gone from the list.
    fn check_life(&self, number: usize, address: Address, server: &Server) {
        if address.socket() == forger() {
            return; // it can prove its own address
        }
        let Some(game) = self.game_at(address) else {
            panic!("{address} is listed, and no server was ever there: {server:?}")
        };
        assert_eq!(server.game.protocol(), game.card.name, "{address} is listed for another protocol");
        let Some(end_ms) = self.end_ms(number, game) else {
            panic!("{address} is listed and has never proven itself: {server:?}")
        };
        assert!(
            self.ms <= end_ms,
            "{address} ({}) is listed {} ms after its end: {:?} since {}, announced {:?}, proven {:?}; {}",
            game.card.name,
            self.ms - end_ms,
            game.state,
            game.ended_ms,
            game.announced_ms,
            game.proof_ms,
            self.known_of(address),
        );
    }

    /// What the nodes know of an address, to explain a failure: the node and how far its clock is ahead; whether the address is
    /// listed, the misses, the rest of its life, whether it came from another node, and whether this node has to ask it.
    fn known_of(&self, address: Address) -> String {
        let known = self.machines.iter().enumerate().map(|(number, machine)| {
            let state = machine.node.as_ref().and_then(|node| node.hub.address_state(address));
            let state = state.map(|state| (state.listed, state.misses, state.life_left_ms, state.server.foreign));
            let is_mine = machine.member.as_ref().is_some_and(|member| member.share.is_mine(address));
            format!("node {number} ({} ms ahead): {state:?}, asks: {is_mine}", machine.ahead_ms)
        });
        known.collect::<Vec<_>>().join("; ")
    }

    /// Until when a server may be listed at the latest.
    fn end_ms(&self, number: usize, game: &Game) -> Option<u64> {
        let own_start_ms = self.machines[number].node.as_ref()?.started_ms;
        let (proof_ms, announced_ms) = (game.proof_ms?, game.announced_ms?);
        let is_clustered = self.machines.len() > 1;
        let starts = self.machines.iter().filter_map(|machine| machine.node.as_ref()).map(|node| node.started_ms);
        let started_ms = starts.max().unwrap_or(own_start_ms);
        let is_restarted = self.machines.iter().any(|machine| machine.run > 1);
        let life_ms = game.card.life_ms;
        let grace_ms = if is_restarted { life_ms / 4 + SLACK_MS } else { 0 };
        // Each of two clocks may be off by the tolerated skew.
        let skew_ms = if is_clustered { 2 * SKEW_MAX_MS + EXCHANGE_MS } else { 0 };
        let delay_ms = 2 * self.plan.delay_ms + 5;
        let counted_ms = if game.is_queried() { announced_ms + RETRIES_MS + QUERY_MS } else { proof_ms };
        // A cookie's age is measured by the time of day, which runs slower for a while after a small step backwards.
        let slewed_ms = if self.plan.jump_every_ms.is_some() { cookie::AGE_MAX_MS / 10 } else { 0 };
        let mut end_ms =
            counted_ms + 3 * delay_ms + life_ms + grace_ms + slewed_ms + skew_ms + SLACK_MS + self.plan.tick_ms;
        if is_restarted && self.machines.iter().any(|machine| machine.was_set_back) {
            // A file is from the future.
            end_ms = end_ms.max(started_ms + life_ms * 5 / 4 + skew_ms + SLACK_MS + self.plan.tick_ms);
        }
        if game.is_queried() {
            let seen_ms = proof_ms.max(if is_restarted { started_ms } else { 0 }).max(self.shared_ms);
            // In a cluster, the other nodes ask for a round before it leaves.
            let mut rounds = u64::from(self.plan.misses) + 1 + u64::from(is_clustered);
            if is_clustered && self.plan.jump_every_ms.is_some() {
                rounds *= 2; // after a step of its clock, its last proof comes back from the others as a newer one, once
            }
            let round_ms = self.plan.ask_every_ms + self.plan.tick_ms;
            let late_ms = delay_ms + QUERY_MS + skew_ms + SLACK_MS;
            let unanswered_ms = seen_ms + rounds * round_ms + late_ms;
            // While it goes on announcing itself, it stays for the grace, and until the next round notices the end of that.
            let graced_ms =
                (seen_ms + self.plan.grace_ms()).min(self.announces_until_ms(game, counted_ms)) + 2 * round_ms;
            end_ms = end_ms.min(unanswered_ms.max(graced_ms + late_ms));
        }
        if let Some(quit_ms) = game.quit_ms
            && self.plan.is_calm()
            && !is_restarted
            && !is_clustered
        {
            end_ms = end_ms.min(quit_ms + SLACK_MS + self.plan.tick_ms);
        }
        Some(end_ms)
    }

    /// Until when a silent server may count as one that goes on announcing itself.
    fn announces_until_ms(&self, game: &Game, counted_ms: u64) -> u64 {
        let is_forged = matches!(game.card.announce, AnnounceMethod::OwnPort { .. })
            && (self.plan.spoof_every_ms.is_some() || self.plan.floods);
        // Where announcements are lost, or the nodes tell each other of some only, the intervals are longer.
        let is_known = self.plan.is_calm() && self.machines.len() == 1;
        let gap_ms = if is_known { game.gap_ms + RETRIES_MS + QUERY_MS } else { game.card.life_ms };
        if is_forged { u64::MAX / 2 } else { counted_ms + gap_ms * 5 / 4 + HABIT_SLACK_MS }
    }

    /// The newest server at an address.
    fn game_at(&self, address: Address) -> Option<&Game> {
        let found = self.by_address.get(&address.socket()).copied();
        let found = found.or_else(|| self.active.iter().rev().copied().find(|&at| self.games[at].address == address));
        found.map(|at| &self.games[at])
    }

    /// 2: an honest server that announces itself is listed.
    fn check_present(&mut self, number: usize) {
        let Some(node) = &self.machines[number].node else { return };
        let (mut checked, mut missing) = (0, 0);
        let connected_ms = self.machines[number].member.as_ref().map_or(0, |member| member.connected_ms);
        if self.ms < connected_ms.saturating_add(SOON_MS) && connected_ms > 0 {
            return; // it does not know the others' servers yet
        }
        let known_ms = 4 * EXCHANGE_MS;
        for &at in &self.active {
            let game = &self.games[at];
            if game.is_liar || game.state != State::Up || self.ms < game.due_ms {
                continue;
            }
            if game.node != number && self.ms < game.due_ms.saturating_add(known_ms) {
                continue;
            }
            checked += 1;
            if node.listed.contains_key(&game.address) {
                continue;
            }
            missing += 1;
            // What was lost may have taken it off the list; its next announcement that arrives puts it there again.
            let excuse_ms = QUERY_MS + game.card.announce_every_ms + SOON_MS + known_ms;
            assert!(
                game.lost_ms.is_some_and(|lost_ms| self.ms <= lost_ms + excuse_ms),
                "{} ({}) is up since {}, announced {:?}, proven {:?}, lost something at {:?}, due at {}, and not \
                 listed by node {number} at {}: {}",
                game.address,
                game.card.name,
                game.up_ms,
                game.announced_ms,
                game.proof_ms,
                game.lost_ms,
                game.due_ms,
                self.ms,
                self.known_of(game.address),
            );
        }
        self.counts.checked += checked;
        self.counts.missing += missing;
    }

    /// 4: what is listed was said by the server itself, not too long ago.
    fn check_facts(&self, number: usize, server: &Server) {
        let (address, name) = (server.address, server.texts.name().to_string());
        let protocol = server.game.protocol();
        if address.socket() == forger() {
            return;
        }
        if name.is_empty() && self.game_at(address).is_some_and(Game::is_queried) {
            return; // it has proven its address, and its facts were lost or late
        }
        let Some(said) = self.said.get(&(protocol, name.clone())) else {
            panic!("{address} is listed as {name:?}, which nobody said: {server:?}")
        };
        let Some(at) = said.game else {
            // A game that returns every cookie confirms what a forger announced in its name.
            let is_returned = server.verified_by == Proof::Cookie && said.in_the_name_of == Some(address.socket());
            // A forgery on the right port at the right moment, while the real answer is lost.
            let is_lucky = self.plan.guesses && !self.plan.is_calm();
            assert!(is_returned || is_lucky, "{address} is listed as a forger says: {name:?}");
            return;
        };
        let game = &self.games[at];
        assert_eq!(game.address, address, "{address} is listed with the facts of another server: {name:?}");
        let Some(node) = &self.machines[number].node else { return };
        let every_ms = if game.describes_itself() { self.plan.ask_every_ms } else { game.card.announce_every_ms };
        let since_ms = said.until_ms.max(node.started_ms).max(game.up_ms);
        let is_old = self.ms > since_ms.saturating_add(every_ms + SOON_MS);
        let is_current = !is_old || !self.plan.is_perfect() || game.is_liar;
        assert!(
            is_current || game.state != State::Up,
            "{address} ({}) is listed as {name:?}, which ended at {}; it is {:?} since {}",
            protocol,
            said.until_ms,
            game.facts.name,
            game.changed_ms
        );
    }

    /// 5: no address and no network has more servers than it may.
    fn check_limits(&self, number: usize) {
        let Some(node) = &self.machines[number].node else { return };
        let mut counts: BTreeMap<Prefix, u32> = BTreeMap::new();
        for address in node.listed.keys() {
            for prefix in Prefix::all(address.ip(), &Networks::default()) {
                let count = counts.entry(prefix).or_default();
                *count += 1;
                // Each node grants the limit.
                let limit = prefix.limit(self.plan.servers_per_ip_max) * self.machines.len() as u32;
                assert!(*count <= limit, "{prefix} has more than {limit} servers");
            }
        }
        assert!(node.listed.len() <= self.plan.servers_max);
        // Forged announcements leave nothing behind: there are no more entries than real servers.
        let slots = node.hub.slots();
        assert!(slots <= self.games.len() + 1, "{slots} entries for {} servers", self.games.len());
    }

    /// 7: no reply is much longer than what it answers, and what goes to addresses that proved nothing keeps within the
    /// budgets. 8: questions never go there.
    pub(super) fn check_sent(&mut self, node: IpAddr, to: SocketAddr, bytes: &[u8], kind: Kind) {
        if kind == Kind::Question {
            self.counts.questions += 1;
        }
        let size = bytes.len() as u64;
        if let Kind::Reply { asked_bytes } = kind {
            // Every sender may be forged.
            let most = (asked_bytes as u64 + HEADER_BYTES_LEAST).max(FRAME_BYTES_LEAST) * 6 / 5;
            assert!(size + HEADER_BYTES_LEAST <= most, "{to} got {size} bytes for {asked_bytes}");
        }
        if !is_victim(to.ip()) {
            return;
        }
        let servers = u64::from(self.plan.servers_per_ip_max);
        match kind {
            Kind::Question => panic!("{to} was asked, and it never announced anything"),
            Kind::Reply { asked_bytes } => {
                self.check_budget(node, to, "replies", 1, (64 * servers, 8 * servers));
                if bytes.len() * 5 > asked_bytes * 6 {
                    let budget = (4 * 96 * servers, 96 * servers);
                    self.check_budget(node, to, "bytes of long replies", size + HEADER_BYTES, budget);
                }
            }
            Kind::List => {
                self.check_budget(node, to, "bytes of lists", size + HEADER_BYTES, (64 << 10, 16 << 10));
            }
        }
    }

    /// What goes to an address and to the network around it keeps within what a budget has at once and per second.
    /// docs/budgets.md has the budgets.
    fn check_budget(&mut self, node: IpAddr, to: SocketAddr, what: &'static str, cost: u64, (burst, rate): (u64, u64)) {
        let ms = self.ms;
        for prefix in Prefix::all(to.ip(), &Networks::default()) {
            let factor = u64::from(prefix.limit(1));
            let used = self.used.entry(Budgeted { node, prefix, what }).or_default();
            let refilled = (ms - used.at_ms) * rate * factor;
            *used = Used { thousandths: used.thousandths.saturating_sub(refilled) + 1_000 * cost, at_ms: ms };
            // A budget is counted in whole units, each time.
            let most = 1_000 * (burst + 1) * factor;
            assert!(used.thousandths <= most, "{prefix} got {} {what} at once, of {burst}", used.thousandths / 1_000);
        }
        if self.used.len() > USED_MAX {
            let longest_ms = 10_000; // all are full again
            self.used.retain(|_, used| ms < used.at_ms + longest_ms);
        }
    }

    /// What a delta says is checked at once.
    pub(super) fn check_delta(&self, number: usize, delta: &Delta) {
        let server = delta.server();
        if !matches!(delta, Delta::Removed(_)) {
            self.check_life(number, server.address, server);
            self.check_facts(number, server);
        }
    }

    /// Everything about a node.
    pub(super) fn check_all(&mut self, number: usize) {
        self.check_present(number);
        let Some(node) = &self.machines[number].node else { return };
        for (address, server) in &node.listed {
            self.check_life(number, *address, server);
            self.check_facts(number, server);
        }
        self.check_limits(number);
        node.check_view();
        self.forget_old_games();
    }

    /// Games that have been gone for long, and cannot be listed any more.
    fn forget_old_games(&mut self) {
        let (ms, games, machines) = (self.ms, &self.games, &self.machines);
        let is_listed = |game: &Game| {
            let mut nodes = machines.iter().filter_map(|machine| machine.node.as_ref());
            nodes.any(|node| node.listed.contains_key(&game.address))
        };
        // The file of a node that is down may have it still.
        let is_all_up = machines.iter().all(|machine| machine.node.is_some());
        self.active.retain(|&at| {
            let game = &games[at];
            game.state != State::Gone || !is_all_up || ms < game.ended_ms + 4 * game.card.life_ms || is_listed(game)
        });
    }

    /// 9: after a restart, what lived is listed again.
    pub(super) fn check_restored(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        let Some(before) = machine.before.take() else { return };
        let Some(store_every_ms) = self.plan.store_every_ms else { return };
        let machine = &self.machines[number];
        let Some(node) = &machine.node else { return };
        if before.ahead_ms != machine.ahead_ms || !self.plan.is_calm() {
            return;
        }
        // What a killed master wrote last is by the clock of that time.
        let written_ms = before.at_ms.saturating_sub(store_every_ms + SLACK_MS);
        if !before.is_clean && machine.jumped_ms.is_some_and(|jumped_ms| jumped_ms >= written_ms) {
            return;
        }
        for (address, since_ms) in before.listed {
            // The announcements of one that answers nonsense come to nothing.
            let Some(game) = self.game_at(address).filter(|game| !game.is_liar) else { continue };
            let (Some(proof_ms), Some(announced_ms)) = (game.proof_ms, game.reached_ms) else { continue };
            // The file has times by the clock. One that was set forth between a proof and the stop makes the rest of a life
            // shorter by that step.
            if machine.jumped_ms.is_some_and(|jumped_ms| jumped_ms + game.card.life_ms >= before.at_ms) {
                continue;
            }
            let counted_ms = if game.is_queried() { announced_ms } else { proof_ms };
            // Nodes tell each other of unchanged servers only after a quarter of a life.
            let untold_ms = if self.machines.len() > 1 { game.card.life_ms / 4 + SKEW_MAX_MS } else { 0 };
            // A kill loses what came after the file was last written. What was announced before that counts.
            let is_written = before.is_clean || counted_ms.max(since_ms) + SOON_MS < written_ms;
            let before_that_ms = written_ms.saturating_sub(game.card.announce_every_ms + SOON_MS);
            let was_established = is_written || since_ms.max(game.up_ms) < before_that_ms;
            let counted_ms = if is_written { counted_ms } else { counted_ms.min(before_that_ms) };
            let lives = self.ms + SLACK_MS + self.plan.tick_ms + untold_ms < counted_ms + game.card.life_ms;
            let has_quit = game.quit_ms.is_some();
            let arrived_ms = counted_ms + 3 * (2 * self.plan.delay_ms + 5);
            if lives && !has_quit && arrived_ms < before.at_ms && was_established {
                assert!(
                    node.listed.contains_key(&address),
                    "{address} ({}) was listed before the restart and lives, proven {proof_ms}, announced {announced_ms}, \
                     down from {} to {}, clean: {}",
                    game.card.name,
                    before.at_ms,
                    self.ms,
                    before.is_clean
                );
            }
        }
    }
}

//! Turns changes of the list and the state of this node into notices for one address: no socket, no clock.
//!
//! What does not last is not told: a server that goes and comes back within the quiet time has not gone. Many changes are told
//! as one: of each kind at most [`MANY`] a minute are told one by one, and all others as a number, once a minute.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::notice::{Event, Notice, Reason, Refusals, Row, What};
use super::settings::Wants;
use crate::model::{Address, Game, Now, Server};
use crate::registry::view::Delta;

/// So many changes of one kind are told one by one in a minute.
pub const MANY: usize = 20;
const MINUTE_MS: u64 = 60_000;
/// Changes are gathered for this long before they are told.
const GATHER_MS: u64 = 1_000;
/// Upper bound on servers that may come back before it is told that they went. Of more, only the number is known.
const GONE_MAX: usize = 4_096;
/// Games that a summary names.
const GAMES_MAX: usize = 16;
/// For this long after the start, servers that were seen before the start are not new: other nodes had them.
const START_MS: u64 = 120_000;
/// A node has to be alone for this long, or for the quiet time if that is shorter.
const ALONE_MS: u64 = 30_000;
/// The time that refusals are counted over.
const FLOOD_MS: u64 = 10_000;
/// A flood is over when it has paused for this long, or for the quiet time if that is shorter.
const FLOOD_OVER_MS: u64 = 60_000;

/// The state of this node at a moment.
pub struct NodeState<'a> {
    /// Whether it is connected, and how many nodes are alive; None without a cluster.
    pub cluster: Option<(bool, i64)>,
    /// How often each budget has refused something since the start.
    pub refused: &'a [(&'static str, u64)],
    /// The networks that use most of their budgets.
    pub networks: &'a dyn Fn() -> Vec<String>,
}

pub struct Watcher {
    wants: Wants,
    started: Now,
    /// Servers that have left the list, and when.
    gone: HashMap<(Address, Game), (Now, Row)>,
    players: HashMap<Game, Players>,
    came: Tally,
    went: Tally,
    played: Tally,
    alone: Lasting,
    flood: Flood,
}

/// A game that has players, or had some within the quiet time.
#[derive(Default)]
struct Players {
    count: u64,
    /// Since when there are none.
    empty_since_ms: Option<u64>,
}

impl Watcher {
    /// `listed` are the servers on the list now, of which nothing is told.
    pub fn new<'a>(wants: Wants, listed: impl Iterator<Item = &'a Server>, now: Now) -> Watcher {
        let mut players: HashMap<Game, Players> = HashMap::new();
        for server in listed.filter(|server| wants.server(server)) {
            let count = players_of(server);
            if count > 0 {
                players.entry(server.game.clone()).or_default().count += count;
            }
        }
        Watcher {
            wants,
            started: now,
            gone: HashMap::new(),
            players,
            came: Tally::new(Event::Came),
            went: Tally::new(Event::Went),
            played: Tally::new(Event::Players),
            alone: Lasting::default(),
            flood: Flood::default(),
        }
    }

    /// The list has changed.
    pub fn changed(&mut self, deltas: &[Delta], now: Now) {
        for delta in deltas {
            match delta {
                Delta::Proven(_) => {}
                Delta::Added(server) if self.wants.server(server) => self.added(server, now),
                Delta::Removed(server) if self.wants.server(server) => self.removed(server, now),
                Delta::Changed { now: server, before, .. } if self.wants.server(server) => {
                    self.plays(server, players_of(before), players_of(server), true, now);
                }
                Delta::Added(_) | Delta::Removed(_) | Delta::Changed { .. } => {}
            }
        }
    }

    fn added(&mut self, server: &Server, now: Now) {
        let is_back = self.gone.remove(&(server.address, server.game.clone())).is_some();
        let is_starting = now.mono_ms.saturating_sub(self.started.mono_ms) < START_MS;
        let is_known = is_starting && server.first_seen_ms < self.started.unix_ms;
        if !is_back && !is_known {
            self.came.add(Notice { at_ms: now.unix_ms, what: What::Came(Row::new(server)) }, server, now);
        }
        self.plays(server, 0, players_of(server), !is_known, now);
    }

    fn removed(&mut self, server: &Server, now: Now) {
        if self.gone.len() < GONE_MAX {
            self.gone.insert((server.address, server.game.clone()), (now, Row::new(server)));
        } else {
            self.went.add(went(Row::new(server), now), server, now);
        }
        self.plays(server, players_of(server), 0, true, now);
    }

    /// A server of a game has other players.
    fn plays(&mut self, server: &Server, before: u64, after: u64, is_news: bool, now: Now) {
        if before == after {
            return;
        }
        let game = self.players.entry(server.game.clone()).or_default();
        let had = game.count;
        game.count = had.saturating_sub(before) + after;
        if had > 0 && game.count == 0 {
            game.empty_since_ms = Some(now.mono_ms);
        } else if had == 0 && game.count > 0 {
            let since_ms = game.empty_since_ms.take();
            let has_lasted =
                since_ms.is_none_or(|since_ms| now.mono_ms - since_ms.min(now.mono_ms) >= self.wants.quiet_ms);
            if has_lasted && is_news {
                let what = What::Players(game.count, Row::new(server));
                self.played.add(Notice { at_ms: now.unix_ms, what }, server, now);
            }
        }
    }

    /// Some changes were missed: the players are counted anew.
    pub fn recount<'a>(&mut self, listed: impl Iterator<Item = &'a Server>) {
        self.players.values_mut().for_each(|game| game.count = 0);
        for server in listed.filter(|server| self.wants.server(server)) {
            let count = players_of(server);
            if count > 0 {
                let game = self.players.entry(server.game.clone()).or_default();
                (game.count, game.empty_since_ms) = (game.count + count, None);
            }
        }
    }

    /// The notices that are due, given the state of this node. `is_listed`: whether a server is on the list after all.
    pub fn due(&mut self, state: &NodeState<'_>, is_listed: impl Fn(Address, &Game) -> bool, now: Now) -> Vec<Notice> {
        self.tell_gone(is_listed, now);
        let quiet_ms = self.wants.quiet_ms;
        let is_recent = |since_ms: u64| now.mono_ms.saturating_sub(since_ms) < quiet_ms;
        self.players.retain(|_, game| game.count > 0 || game.empty_since_ms.is_some_and(is_recent));
        let mut due = Vec::new();
        self.went.take(now, &mut due);
        self.came.take(now, &mut due);
        self.played.take(now, &mut due);
        due.extend(self.look_for_others(state, now));
        due.extend(self.flood.look(state, &self.wants, now));
        due.retain(|notice| self.wants.on.iter().any(|event| event.name() == notice.event()));
        due
    }

    /// Those that have been gone for the quiet time.
    fn tell_gone(&mut self, is_listed: impl Fn(Address, &Game) -> bool, now: Now) {
        let quiet_ms = self.wants.quiet_ms;
        let is_over = |since: &Now| now.mono_ms.saturating_sub(since.mono_ms) >= quiet_ms;
        let over: Vec<_> = self.gone.extract_if(|_, (since, _)| is_over(since)).collect();
        let mut over: Vec<_> = over.into_iter().filter(|((address, game), _)| !is_listed(*address, game)).collect();
        over.sort_by_key(|((address, _), (since, _))| (since.mono_ms, *address));
        for ((_, game), (since, row)) in over {
            self.went.add_of(went(row, since), game.name(), now);
        }
    }

    fn look_for_others(&mut self, state: &NodeState<'_>, now: Now) -> Option<Notice> {
        // Nobody is connected from the first moment on: a restart is not news.
        if now.mono_ms.saturating_sub(self.started.mono_ms) < ALONE_MS {
            return None;
        }
        let reason = match state.cluster? {
            (false, _) => Some(Reason::Nats),
            (true, ..=1) => Some(Reason::Nodes),
            (true, _) => None,
        };
        let lasts_ms = ALONE_MS.min(self.wants.quiet_ms);
        let what = match self.alone.look(reason.is_some(), lasts_ms, lasts_ms, now)? {
            true => What::Alone(reason?),
            false => What::NotAlone,
        };
        Some(Notice { at_ms: now.unix_ms, what })
    }
}

fn players_of(server: &Server) -> u64 {
    server.players_current.unwrap_or(0).into()
}

fn went(row: Row, at: Now) -> Notice {
    Notice { at_ms: at.unix_ms, what: What::Went(row) }
}

/// Changes of one kind that have not been told.
struct Tally {
    event: Event,
    /// The first of them.
    notices: Vec<Notice>,
    count: u64,
    games: BTreeMap<Box<str>, u64>,
    /// When the next are told, if there are any.
    due_ms: u64,
    /// When the last ones were told one by one: at most [`MANY`].
    told_ms: VecDeque<u64>,
}

impl Tally {
    fn new(event: Event) -> Tally {
        Tally { event, notices: Vec::new(), count: 0, games: BTreeMap::new(), due_ms: 0, told_ms: VecDeque::new() }
    }

    fn add(&mut self, notice: Notice, server: &Server, now: Now) {
        self.add_of(notice, server.game.name(), now);
    }

    fn add_of(&mut self, notice: Notice, game: &str, now: Now) {
        if self.count == 0 {
            self.due_ms = self.due_ms.max(now.mono_ms + GATHER_MS);
        }
        self.count += 1;
        if self.notices.len() < MANY {
            self.notices.push(notice);
        }
        if let Some(count) = self.games.get_mut(game) {
            *count += 1;
        } else if self.games.len() < GAMES_MAX {
            self.games.insert(game.into(), 1);
        }
    }

    fn take(&mut self, now: Now, out: &mut Vec<Notice>) {
        if self.count == 0 || now.mono_ms < self.due_ms {
            return;
        }
        let count = std::mem::take(&mut self.count);
        let (notices, games) = (std::mem::take(&mut self.notices), std::mem::take(&mut self.games));
        while self.told_ms.front().is_some_and(|at_ms| at_ms + MINUTE_MS <= now.mono_ms) {
            self.told_ms.pop_front();
        }
        if count as usize + self.told_ms.len() <= MANY {
            self.told_ms.extend(notices.iter().map(|_| now.mono_ms));
            out.extend(notices);
        } else {
            let games = games.into_iter().map(|(game, count)| (game.into(), count)).collect();
            out.push(Notice { at_ms: now.unix_ms, what: What::Many(self.event, count, games) });
            self.due_ms = now.mono_ms + MINUTE_MS;
        }
    }
}

/// A state that is told once it has lasted.
#[derive(Default)]
struct Lasting {
    told: bool,
    /// Since when it is not as told.
    other_since_ms: Option<u64>,
}

impl Lasting {
    /// The new state, if it has to be told. It has to last for `begin_ms`, and its end for `end_ms`.
    fn look(&mut self, is: bool, begin_ms: u64, end_ms: u64, now: Now) -> Option<bool> {
        if is == self.told {
            self.other_since_ms = None;
            return None;
        }
        let since_ms = *self.other_since_ms.get_or_insert(now.mono_ms);
        let lasts_ms = if is { begin_ms } else { end_ms };
        (now.mono_ms.saturating_sub(since_ms) >= lasts_ms).then(|| {
            (self.told, self.other_since_ms) = (is, None);
            is
        })
    }
}

#[derive(Default)]
struct Flood {
    /// The counts of refusals in the last seconds, oldest first, and when each was looked at.
    counts: VecDeque<(u64, Vec<(&'static str, u64)>)>,
    /// What had been refused when it began.
    before: u64,
    lasting: Lasting,
}

impl Flood {
    fn look(&mut self, state: &NodeState<'_>, wants: &Wants, now: Now) -> Option<Notice> {
        let total = |counts: &[(&'static str, u64)]| counts.iter().map(|(_, count)| count).sum::<u64>();
        let refused = total(state.refused);
        if self.counts.back().is_some_and(|(_, last)| total(last) > refused) {
            // New budgets count from zero.
            self.counts.clear();
            self.before = 0;
        }
        self.counts.push_back((now.mono_ms, state.refused.to_vec()));
        while self.counts.get(1).is_some_and(|(at_ms, _)| at_ms + FLOOD_MS <= now.mono_ms) {
            self.counts.pop_front();
        }
        let (_, first) = self.counts.front()?;
        let lately = refused.saturating_sub(total(first));
        let per_second = lately / (FLOOD_MS / 1_000);
        let is_flood = per_second >= wants.flood_per_second;
        let what = match self.lasting.look(is_flood, 0, FLOOD_OVER_MS.min(wants.quiet_ms), now)? {
            true => {
                self.before = total(first);
                let budgets = state
                    .refused
                    .iter()
                    .zip(first)
                    .map(|((name, count), (_, then))| (*name, count.saturating_sub(*then)));
                let budgets = budgets.filter(|(_, count)| *count > 0).collect();
                What::Flood(Refusals { per_second, budgets, networks: (state.networks)() })
            }
            false => What::FloodOver(refused.saturating_sub(self.before)),
        };
        Some(Notice { at_ms: now.unix_ms, what })
    }
}

#[cfg(test)]
mod tests;

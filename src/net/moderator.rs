//! Puts the operator's decisions into effect: in the guard, which drops datagrams and connections, and in the registry.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::guard::Guard;
use super::stopped;
use crate::hub::Hub;
use crate::moderation::{Board, Full, PATTERNS_MAX, Statement};

/// How often ends of statements are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The rules are made again at least this often: the clock may have been set.
const AGAIN_MS: u64 = 60_000;

/// More decisions of other nodes at once are only counted in the log.
const LOGGED_MAX: usize = 10;

/// What a decision did at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    pub servers_removed: usize,
    pub connections_closed: usize,
}

pub struct Moderator {
    pub board: Arc<Board>,
    hub: Arc<Hub>,
    guard: Arc<Guard>,
    /// The lock keeps older rules from replacing newer ones.
    applied: Mutex<Applied>,
}

/// What was last put into effect.
#[derive(Clone, Copy, Default)]
struct Applied {
    /// When the rules have to be made again.
    next_ms: u64,
    /// The board's change.
    change: u64,
    /// Patterns for which there was no room.
    excess_patterns: usize,
}

impl Moderator {
    pub fn new(board: Arc<Board>, hub: Arc<Hub>, guard: Arc<Guard>) -> Moderator {
        Moderator { board, hub, guard, applied: Mutex::default() }
    }

    /// The time of statements: the one that the nodes of a cluster share.
    pub fn now_ms(&self) -> u64 {
        self.hub.shared_ms()
    }

    /// Accepts a statement of the operator and puts it into effect.
    pub fn state(&self, statement: Statement) -> Result<(Statement, Effect), Full> {
        let added = self.board.add(statement, self.now_ms())?;
        Ok((added, self.apply()))
    }

    /// Merges statements of other nodes and puts them into effect.
    pub fn merge(&self, statements: impl IntoIterator<Item = Statement>) {
        let news = self.board.merge(statements);
        if news.is_empty() {
            return;
        }
        self.apply();
        match news.len() {
            ..=LOGGED_MAX => news.iter().for_each(|news| info!("admin: {}: {news}, at another node", news.by)),
            count => info!("admin: {count} decisions of other nodes"),
        }
    }

    /// Puts into effect what the board says now.
    pub fn apply(&self) -> Effect {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.now_ms();
        let (change, excess_patterns) = (*self.board.changes().borrow(), self.board.excess_patterns(now_ms));
        if excess_patterns > applied.excess_patterns {
            warn!(
                "admin: only the newest {PATTERNS_MAX} patterns hide names; {excess_patterns} more of other nodes do not: \
                 unhide some"
            );
        }
        let (rules, end_ms) = self.board.rules(now_ms);
        // The guard first: what arrives from now on is dropped there, and what arrived before is removed below.
        let connections_closed = self.guard.set_bans(rules.bans.clone());
        let servers_removed = self.hub.set_rules(Arc::new(rules));
        let next_ms = end_ms.unwrap_or(u64::MAX).min(now_ms + AGAIN_MS);
        *applied = Applied { next_ms, change, excess_patterns };
        Effect { servers_removed, connections_closed }
    }

    /// Ends what has an end, until stopped.
    pub async fn run(self: Arc<Moderator>, mut stop: watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return,
                _ = tick.tick() => self.end_what_has_ended(),
            }
        }
    }

    /// Puts ends into effect that have come, and statements that the store could read only now.
    pub fn end_what_has_ended(&self) {
        let applied = *self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let (now_ms, next_ms) = (self.now_ms(), applied.next_ms);
        let has_changed = *self.board.changes().borrow() != applied.change;
        // A clock that was set back is far before that time.
        if has_changed || now_ms >= next_ms || next_ms.saturating_sub(now_ms) > 2 * AGAIN_MS {
            self.apply();
        }
    }
}

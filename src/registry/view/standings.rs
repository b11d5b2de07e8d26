//! Where servers stand in the order that is [fair to networks](crate::prefix::fair).

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::model::Server;
use crate::prefix::fair::{self, Claim};

/// The standings of the servers of one list.
#[derive(Debug, Default)]
pub struct Standings {
    /// By where the server is in memory: the list shares it with the view, and addresses take longer to look up.
    by_place: HashMap<usize, i64>,
}

impl Standings {
    pub(super) fn new<'v>(servers: impl Iterator<Item = &'v Arc<Server>>) -> Standings {
        let servers: Vec<_> = servers.collect();
        let standings = fair::standings(servers.iter().map(|server| (claim(server), server.address)));
        Standings { by_place: servers.into_iter().map(place).zip(standings).collect() }
    }

    /// Larger numbers come first. 0 for a server that is not in the list.
    pub fn of(&self, server: &Arc<Server>) -> i64 {
        self.by_place.get(&place(server)).copied().unwrap_or_default()
    }
}

fn place(server: &Arc<Server>) -> usize {
    Arc::as_ptr(server).addr()
}

/// What a server's standing follows from.
pub fn claim(server: &Server) -> Claim {
    let (answers, players) = (!server.is_unanswered(), server.players_current.unwrap_or(0));
    Claim { answers, priority: server.overrides.priority, players, ip: server.address.ip() }
}

/// Sorts what belongs to servers, the best first; those that stand alike by `tie`.
pub fn sort_fairly<T, K: Ord>(all: &mut [T], claim: impl Fn(&T) -> Claim, tie: impl Fn(&T) -> K) {
    let standings = fair::standings(all.iter().map(|one| (claim(one), tie(one))));
    let mut standings = standings.into_iter();
    all.sort_by_cached_key(|one| (Reverse(standings.next()), tie(one))); // keys are made in order
}

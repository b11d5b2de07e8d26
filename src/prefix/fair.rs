//! An order that is fair to networks: what a few of them claim for many servers does not push everybody else down.
//!
//! Nobody can verify how many players a server has. Servers are therefore listed in classes: a class ends where the number of
//! players halves, and where nobody plays. Within a class, the best server of each network comes first, then the second of each.
//! A class does not end while too many servers above its end are further ones of networks that have one there already: then it
//! goes on with fewer players, so that those who claim the most do not keep others below. docs/api.md has the arithmetic.
//! `assets/script/fair.js` computes the same order.

use std::cmp::Reverse;
use std::net::IpAddr;

use hashbrown::{HashMap, HashSet};

use super::Prefix;

/// So many further servers may stand above the end of a class, however few networks are there: all of one address, by default.
const FURTHER: usize = 32;
/// The last round that is told apart.
const ROUND_MAX: u32 = (1 << 10) - 1;

/// What decides where a server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Those that do not answer are a list of their own, the last.
    pub answers: bool,
    /// The operator's; servers of another priority are another list.
    pub priority: i32,
    pub players: u16,
    pub ip: IpAddr,
}

/// Where each of these stands among all of them: the larger the number, the further up. Those of a network that claim the same
/// come in the order of what they have beside their claim.
pub fn standings<K: Ord>(claims: impl IntoIterator<Item = (Claim, K)>) -> Vec<i64> {
    let mut all: Vec<(Claim, K, usize)> =
        claims.into_iter().zip(0..).map(|((claim, tie), at)| (claim, tie, at)).collect();
    let best = |claim: &Claim| Reverse((claim.answers, claim.priority, claim.players));
    all.sort_unstable_by(|one, other| (best(&one.0), &one.1, one.2).cmp(&(best(&other.0), &other.1, other.2)));
    let mut standings = vec![0; all.len()];
    for list in all.chunk_by(|(one, ..), (next, ..)| (one.answers, one.priority) == (next.answers, next.priority)) {
        let (mut above, mut networks) = (0, HashSet::new());
        let classes = list.chunk_by(|(one, ..), (next, ..)| {
            above += 1;
            networks.insert(Prefix::widest(one.ip));
            level(one.players) == level(next.players) || is_crowded(above, networks.len(), next.players)
        });
        for class in classes {
            let end = class.last().map_or(0, |(claim, ..)| level(claim.players));
            let ips: Vec<IpAddr> = class.iter().map(|(claim, ..)| claim.ip).collect();
            for ((claim, _, at), round) in class.iter().zip(rounds(&ips)) {
                if let Some(place) = standings.get_mut(*at) {
                    *place = standing(*claim, end, round);
                }
            }
        }
    }
    standings
}

/// When each of these has its turn, if the best come first: 0 for the best of each network, 1 for the second of each. The
/// addresses of a network take turns in the same way.
pub fn rounds(ips: &[IpAddr]) -> Vec<u32> {
    let mut turns: Vec<(u32, usize)> = (0..ips.len()).map(|at| (0, at)).collect();
    for prefix_of in [Prefix::narrowest, Prefix::widest] {
        turns.sort_unstable();
        let mut counts: HashMap<Prefix, u32> = HashMap::with_capacity(turns.len());
        for (round, at) in &mut turns {
            let Some(ip) = ips.get(*at) else { continue };
            let count = counts.entry(prefix_of(*ip)).or_default();
            *round = std::mem::replace(count, *count + 1);
        }
    }
    turns.sort_unstable_by_key(|(_, at)| *at);
    turns.into_iter().map(|(round, _)| round).collect()
}

/// How often it can be halved until nobody is left.
fn level(players: u16) -> u32 {
    u16::BITS - players.leading_zeros()
}

/// Whether too many of the servers above are further ones of their networks for a class to end here. That servers with players
/// come before empty ones holds for longer, because many hosts have a few.
fn is_crowded(above: usize, networks: usize, players_below: u16) -> bool {
    let allowed = if players_below == 0 { 2 * networks } else { networks / 2 };
    above - networks > FURTHER + allowed
}

/// Whether it answers, priority, the lowest level of the class, the round (the first is the largest) and players, in this order.
fn standing(claim: Claim, end: u32, round: u32) -> i64 {
    let within = end << 26 | (ROUND_MAX - round.min(ROUND_MAX)) << 16 | u32::from(claim.players);
    let half = if claim.answers { 1 << 31 } else { -(1 << 31) };
    (i64::from(claim.priority) + half) << 31 | i64::from(within)
}

#[cfg(test)]
mod tests;

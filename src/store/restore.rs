//! Restores the list after a restart. Lives go on while the program is down.
//!
//! A row is written only when a server changes, so its timestamps may be old. [`super::lives`] has newer ones, which may be
//! out of date by the lag:
//!
//! - After a clean stop there is no lag: lives end as if the program had not been down.
//! - After a kill it is a second or two with up to two thousand servers: only the heartbeats of that time are missing, and
//!   nothing is listed longer than that beyond its life.
//! - With more servers, or if the lag is unknown, a quarter of a life is granted: proofs are published, and so written, at
//!   least that often.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use rusqlite::Connection;

use super::lives::{self, Stamps};
use super::row;
use crate::hub::Hub;
use crate::model::{Change, Proof, Server};
use crate::registry::{Outcome, Refusal};

/// All restored servers that can be queried are queried within this time, those with the oldest proof first.
const ASK_WITHIN_MS: u64 = 3_000;
/// A lag of up to this is granted as it is.
const LAG_MAX_MS: u64 = 2_000;
/// An unchanged proof is published after 1/4 of a life at the latest.
const QUARTER: u64 = 4;

/// The outcomes of all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub listed: usize,
    /// Their lives ended while the program was down.
    pub ended: usize,
    /// Refused for another reason: the list is full, banned, another game is configured there.
    pub refused: usize,
    /// Invalid rows.
    pub unreadable: usize,
}

pub fn restore(connection: &Connection, hub: &Hub, is_banned: impl Fn(IpAddr) -> bool) -> rusqlite::Result<Restored> {
    let mut restored = Restored::default();
    let mut servers: Vec<Server> = Vec::new();
    row::servers(connection, |server| match server {
        Some(server) if is_banned(server.address.ip()) => restored.refused += 1,
        Some(server) => servers.push(server),
        None => restored.unreadable += 1,
    })?;
    let stamps = lives::read(connection)?;
    let lag_ms = lives::lag_ms(connection)?;
    let behind_ms = lives::behind_ms(connection)?;
    let now_ms = hub.clock.now().unix_ms;
    let newest = |server: Server| {
        let stamps = stamps.get(&server.address).copied();
        up_to_date(server, stamps, now_ms)
    };
    let mut servers: Vec<(Server, u64)> = servers.into_iter().map(newest).collect();
    // Of servers that are due at the same moment, the registry hands out the last one added first.
    servers.sort_by_key(|(server, _)| Reverse(server.proven_at_ms));
    let asked = servers.iter().filter(|(server, _)| server.was_asked()).count() as u64;
    let mut turn = asked;
    let changes: Vec<Change<'static>> = servers
        .into_iter()
        .map(|(server, ends_at_ms)| {
            turn -= u64::from(server.was_asked());
            let ask_in_ms = turn * ASK_WITHIN_MS / asked.max(1);
            let grace_ms = grace_ms(&server, lag_ms);
            Change::Restore { server: Arc::new(server), ends_at_ms, grace_ms, behind_ms, ask_in_ms }
        })
        .collect();
    hub.apply(&changes, hub.clock.now(), |_, outcome| match outcome {
        Outcome::Added => restored.listed += 1,
        Outcome::Refused(Refusal::Late) => restored.ended += 1,
        _ => restored.refused += 1,
    });
    Ok(restored)
}

/// The server with its newest timestamps, and the end of its life.
pub fn up_to_date(mut server: Server, stamps: Option<Stamps>, now_ms: u64) -> (Server, u64) {
    let life_ms = u64::from(server.life_ms);
    let mut ends_at_ms = server.last_seen_ms + life_ms;
    // Timestamps that are older than the row belong to an earlier server at this address.
    if let Some(stamps) = stamps.filter(|stamps| stamps.ends_at_ms >= ends_at_ms) {
        ends_at_ms = stamps.ends_at_ms;
        server.proven_at_ms = server.proven_at_ms.max(stamps.proven_at_ms);
        if server.verified_by != Proof::Query {
            // Its life counts from its proof; anything beyond is the grace period of an earlier restart.
            let latest_proof_ms = server.last_seen_ms.max(server.proven_at_ms + 1_000);
            ends_at_ms = ends_at_ms.min(latest_proof_ms + life_ms);
        }
        // The end was rounded up.
        let seen_ms = ends_at_ms.saturating_sub(life_ms + 1_000).min(now_ms);
        server.last_seen_ms = server.last_seen_ms.max(seen_ms);
    }
    (server, ends_at_ms)
}

/// How much later than written a life may really end.
pub fn grace_ms(server: &Server, lag_ms: u64) -> u64 {
    if lag_ms <= LAG_MAX_MS { lag_ms } else { u64::from(server.life_ms) / QUARTER }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};

    #[test]
    fn a_restored_life_gets_a_grace_for_what_may_be_missing() {
        let address = "192.0.2.1:1".parse().unwrap();
        let mut server = Server::new(address, Game::Own("a"), Proof::Cookie, 1_000_000, &Facts::default());
        server.life_ms = 120_000;
        let restored = |ends_at_ms: Option<u64>, lag_ms| {
            let stamps = ends_at_ms.map(|ends_at_ms| Stamps { ends_at_ms, proven_at_ms: ends_at_ms - 119_000 });
            let (server, ends_at_ms) = up_to_date(server.clone(), stamps, u64::MAX);
            (ends_at_ms + grace_ms(&server, lag_ms), server.last_seen_ms, server.proven_at_ms)
        };
        let row = (1_000_000, 1_000_000);
        assert_eq!(restored(None, 0), (1_120_000, row.0, row.1), "after a clean stop: exactly");
        assert_eq!(restored(None, 1_000), (1_121_000, row.0, row.1));
        assert_eq!(restored(None, 500_000), (1_150_000, row.0, row.1), "a quarter of a life at most");
        assert_eq!(restored(Some(1_139_000), 2_000), (1_141_000, 1_018_000, 1_020_000));
        assert_eq!(restored(Some(1_139_000), 3_000), (1_169_000, 1_018_000, 1_020_000));
        assert_eq!(restored(Some(9_139_000), 0), (9_139_000, 9_018_000, 9_020_000), "a row from long ago");
        assert_eq!(restored(Some(120_000), 0), (1_120_000, row.0, row.1), "older than the row");
        let grace = Stamps { ends_at_ms: 1_150_000, proven_at_ms: 1_000_000 };
        assert_eq!(up_to_date(server.clone(), Some(grace), u64::MAX).1, 1_121_000, "the grace is not granted twice");
        let asked = Server { verified_by: Proof::Query, ..server.clone() };
        let (asked, ends_at_ms) = up_to_date(asked, Some(grace), 1_005_000);
        assert_eq!((asked.last_seen_ms, ends_at_ms), (1_005_000, 1_150_000), "nothing is seen in the future");
    }
}

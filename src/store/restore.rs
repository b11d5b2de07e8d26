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

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::Connection;

use super::lives::{self, AllStamps, Stamps};
use super::row::{self, Range};
use super::sqlite;
use crate::hub::Hub;
use crate::model::{Change, Proof, Server};
use crate::registry::{Outcome, Refusal};

/// All restored servers that can be queried are queried within this time, those with the oldest proof first.
const ASK_WITHIN_MS: u64 = 3_000;
/// A lag of up to this is granted as it is.
const LAG_MAX_MS: u64 = 2_000;
/// An unchanged proof is published after 1/4 of a life at the latest.
const QUARTER: u64 = 4;
/// Fewer servers than this are read by one thread.
const SHARED_MIN: usize = 4_096;
/// More threads than this would wait for the disk and for memory.
const THREADS_MAX: usize = 8;
/// Several, so that a thread that is delayed does not delay the others.
const RANGES_PER_THREAD: usize = 4;
/// Changes that are made and applied at once: a million of them would take more memory than the list.
const APPLIED_AT_ONCE: usize = 4096;

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

/// Lists the servers of the file. Threads with the `others` read some of them at the same time.
pub fn restore(
    connection: &Connection,
    others: Vec<Connection>,
    hub: &Hub,
    is_banned: impl Fn(IpAddr) -> bool + Sync,
) -> rusqlite::Result<Restored> {
    let stamps = lives::read(connection)?;
    let lag_ms = lives::lag_ms(connection)?;
    let behind_ms = lives::behind_ms(connection)?;
    let reader = Reader { stamps, now_ms: hub.clock.now().unix_ms, is_banned };
    let parts = reader.read(connection, others)?;
    drop(reader);
    let mut restored = Restored::default();
    let mut servers = Vec::with_capacity(parts.iter().map(|part| part.servers.len()).sum());
    for part in parts {
        servers.extend(part.servers);
        restored.refused += part.banned;
        restored.unreadable += part.unreadable;
    }
    let asks = asks(&servers);
    hub.reserve(servers.len());
    // In the order of the file, in which they are in memory, too: whoever walks over the list finds the next one nearby.
    let mut changes = servers.into_iter().zip(asks).map(|(row, ask_in_ms)| {
        let grace_ms = grace_ms(&row.server, lag_ms);
        Change::Restore { server: row.server, ends_at_ms: row.ends_at_ms, grace_ms, behind_ms, ask_in_ms }
    });
    let now = hub.clock.now();
    loop {
        let some: Vec<Change<'static>> = changes.by_ref().take(APPLIED_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(restored);
        }
        hub.apply(&some, now, |_, outcome| match outcome {
            Outcome::Added => restored.listed += 1,
            Outcome::Refused(Refusal::Late) => restored.ended += 1,
            _ => restored.refused += 1,
        });
    }
}

/// When each of these servers is queried.
fn asks(servers: &[RestoredRow]) -> Vec<u64> {
    let mut order: Vec<_> = (0..).zip(servers).filter(|(_, row)| row.was_asked).map(|(at, _)| at).collect();
    order.sort_by_key(|at: &usize| servers.get(*at).map(|row| row.proven_at_ms));
    let mut asks = vec![0; servers.len()];
    for (turn, at) in (0..).zip(&order) {
        if let Some(ask_in_ms) = asks.get_mut(*at) {
            *ask_in_ms = turn * ASK_WITHIN_MS / order.len() as u64;
        }
    }
    asks
}

/// Connections for other threads, one per core besides this thread's. As many as can be opened: fewer only take longer.
pub fn others(path: &Path) -> Vec<Connection> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    (1..threads).map_while(|_| sqlite::open_to_read(path).ok()).collect()
}

/// Reads the rows of servers, in several threads if there are many.
struct Reader<B> {
    stamps: AllStamps,
    now_ms: u64,
    is_banned: B,
}

/// The rows of one range.
#[derive(Default)]
struct Part {
    servers: Vec<RestoredRow>,
    banned: usize,
    unreadable: usize,
}

/// A server with its newest timestamps. What the order depends on is beside it: the servers are all over the memory.
struct RestoredRow {
    server: Arc<Server>,
    ends_at_ms: u64,
    proven_at_ms: u64,
    was_asked: bool,
}

impl<B: Fn(IpAddr) -> bool + Sync> Reader<B> {
    /// All rows, in order. Each thread reads one range after another, through a connection of its own.
    fn read(&self, connection: &Connection, mut others: Vec<Connection>) -> rusqlite::Result<Vec<Part>> {
        if self.stamps.len() < SHARED_MIN {
            others.clear();
        }
        let count = if others.is_empty() { 1 } else { RANGES_PER_THREAD * (others.len() + 1) };
        let ranges = Range::divided(self.stamps.quantiles(count));
        let next = AtomicUsize::new(0);
        let work = |connection: &Connection| -> rusqlite::Result<Vec<(usize, Part)>> {
            let mut parts = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(range) = ranges.get(number) else { return Ok(parts) };
                parts.push((number, self.read_range(connection, range)?));
            }
        };
        let work = &work;
        let mut parts = std::thread::scope(|scope| -> rusqlite::Result<_> {
            let others: Vec<_> = others.into_iter().map(|other| scope.spawn(move || work(&other))).collect();
            let mut parts = work(connection)?;
            for other in others {
                let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                parts.extend(ended?);
            }
            Ok(parts)
        })?;
        parts.sort_by_key(|(number, _)| *number);
        Ok(parts.into_iter().map(|(_, part)| part).collect())
    }

    fn read_range(&self, connection: &Connection, range: &Range) -> rusqlite::Result<Part> {
        let (mut part, mut next) = (Part::default(), 0);
        row::servers_in(connection, range, |server| match server {
            Some(server) if (self.is_banned)(server.address.ip()) => part.banned += 1,
            Some(server) => {
                let stamps = self.stamps.get(server.address, &mut next);
                let (server, ends_at_ms) = up_to_date(server, stamps, self.now_ms);
                let (proven_at_ms, was_asked) = (server.proven_at_ms, server.was_asked());
                part.servers.push(RestoredRow { server: Arc::new(server), ends_at_ms, proven_at_ms, was_asked });
            }
            None => part.unreadable += 1,
        })?;
        Ok(part)
    }
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
    fn servers_are_queried_within_the_time_and_those_with_the_oldest_proof_first() {
        let row = |proven_at_ms: u64, was_asked: bool| {
            let address = "192.0.2.1:1".parse().unwrap();
            let server = Server::new(address, Game::Own("a"), Proof::Query, proven_at_ms, &Facts::default());
            RestoredRow { server: Arc::new(server), ends_at_ms: 0, proven_at_ms, was_asked }
        };
        let rows = [row(300, true), row(1, false), row(100, true), row(400, true), row(200, true)];
        assert_eq!(asks(&rows), [1_500, 0, 0, 2_250, 750]);
        assert_eq!(asks(&rows[1..2]), [0]);
        assert!(asks(&[]).is_empty());
    }

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

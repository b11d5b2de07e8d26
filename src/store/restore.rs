//! The list after a restart. Lives count the time that the program was down.
//!
//! The registry publishes an unchanged proof only every quarter of a life, so a row's own end (`last_seen` + `life`) may
//! be that much too early. [`super::lives`] writes the true ends, and how far behind it may be (the lag):
//!
//! - After a clean stop the lag is none: lives end as if the program had not been down.
//! - After a kill it is a second or two with up to some thirty thousand servers: only what came in these is missing, and
//!   nothing is listed longer than that beyond its life.
//! - With more servers, or with no word on the lag, lives are restored with a quarter more: nothing that lives is lost,
//!   and nothing is listed longer than that quarter beyond its life.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use rusqlite::Connection;

use super::{lives, row};
use crate::hub::Hub;
use crate::model::{Change, Proof, Server};
use crate::registry::{Outcome, Refusal};

/// All restored servers that can be asked are asked within this time, those with the oldest proof first.
const ASK_WITHIN_MS: u64 = 3_000;
/// A lag that counts as the last second's changes.
const LAG_MAX_MS: u64 = 2_000;
/// Part of a life that may pass before an unchanged proof is published.
const QUARTER: u64 = 4;

/// What became of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub listed: usize,
    /// Their lives ended while the program was down.
    pub ended: usize,
    /// Refused for another reason: the list is full, banned, another game is configured there.
    pub refused: usize,
    /// Rows that make no sense.
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
    let ends = lives::read(connection)?;
    let lag_ms = lives::lag_ms(connection)?;
    // The registry hands out last what came first of those who are due at the same moment.
    servers.sort_by_key(|server| Reverse(server.proven_at_ms));
    let asked = servers.iter().filter(|server| server.verified_by == Proof::Query).count() as u64;
    let mut turn = asked;
    let changes: Vec<Change<'static>> = servers
        .into_iter()
        .map(|server| {
            turn -= u64::from(server.verified_by == Proof::Query);
            let ask_in_ms = turn * ASK_WITHIN_MS / asked.max(1);
            let ends_at_ms = ends_at_ms(&server, ends.get(&server.address).copied(), lag_ms);
            Change::Restore { server: Arc::new(server), ends_at_ms, ask_in_ms }
        })
        .collect();
    hub.apply(&changes, hub.clock.now(), |_, outcome| match outcome {
        Outcome::Added => restored.listed += 1,
        Outcome::Refused(Refusal::Late) => restored.ended += 1,
        _ => restored.refused += 1,
    });
    Ok(restored)
}

/// When the life of a restored server ends.
fn ends_at_ms(server: &Server, written_ms: Option<u64>, lag_ms: u64) -> u64 {
    let own_ms = server.last_seen_ms + u64::from(server.life_ms);
    let quarter_ms = u64::from(server.life_ms) / QUARTER;
    let latest_ms = own_ms + quarter_ms;
    // One beyond the latest (ends are rounded up to seconds) is that of an earlier server at this address.
    let makes_sense = |written_ms: &u64| (own_ms..=latest_ms + 1_000).contains(written_ms);
    let known_ms = written_ms.filter(makes_sense).unwrap_or(own_ms);
    let grace_ms = if lag_ms <= LAG_MAX_MS { lag_ms } else { quarter_ms };
    (known_ms + grace_ms).min(latest_ms).max(known_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};

    #[test]
    fn a_life_is_restored_with_the_grace_of_what_may_be_missing() {
        let address = "192.0.2.1:1".parse().unwrap();
        let mut server = Server::new(address, Game::Known("a"), Proof::Cookie, 1_000_000, &Facts::default());
        server.life_ms = 120_000;
        assert_eq!(ends_at_ms(&server, None, 0), 1_120_000, "after a clean stop: to the moment");
        assert_eq!(ends_at_ms(&server, None, 1_000), 1_121_000);
        assert_eq!(ends_at_ms(&server, None, 500_000), 1_150_000, "a quarter of a life at most");
        assert_eq!(ends_at_ms(&server, Some(1_139_000), 2_000), 1_141_000);
        assert_eq!(ends_at_ms(&server, Some(1_139_000), 3_000), 1_150_000);
        assert_eq!(ends_at_ms(&server, Some(1_149_000), 2_000), 1_150_000);
        assert_eq!(ends_at_ms(&server, Some(1_000), 0), 1_120_000, "older than the row");
        assert_eq!(ends_at_ms(&server, Some(9_000_000), 0), 1_120_000, "of another server");
    }
}

//! When lives really end, and when servers were last proven. A heartbeat that says nothing new changes no row of its own;
//! its effect is written here, slot after slot, a thousand to a row: few bytes, few pages, and nothing on the way of the
//! heartbeat.
//!
//! With more slots than one go takes, they are written by turns. What was published as proven meanwhile is in rows of its own
//! (those with negative numbers), until a round that began later has all of it.

use std::collections::{HashMap, VecDeque};

use rusqlite::Connection;

use super::row::{address_bytes, address_from};
use super::sqlite;
use crate::hub::Hub;
use crate::model::{Address, Now, Server};
use crate::registry::Life;

/// Slots to a row.
const PART: usize = 1024;
/// Rows written in one go: up to two thousand servers are looked at every time, more of them by turns, so that a disk is
/// not worn out by them; but all of them within so many goes.
const PARTS_MIN: usize = 2;
const GOES_MAX: usize = 20;
/// The time between two goes, at the least.
const GO_MS: u64 = 500;
/// Stamps have their form since this version of the file.
const VERSION_MIN: usize = 2;
/// The key of the longest time that a prolonged life may be missing here.
const LAG: &str = "lives_lag_ms";
/// The key of what the clock of all stamps is behind the time of a cluster.
const BEHIND: &str = "clock_behind_ms";
/// A measurement of that clock that differs by less is not written.
const BEHIND_STEP_MS: u64 = 500;

/// Where a round of all slots stands.
pub struct Sweep {
    part: usize,
    began_ms: u64,
    /// The previous round began then.
    before_ms: u64,
    /// What the file says of the lag; None until all slots have been written.
    lag_ms: Option<u64>,
    /// What the file says of the clock; None until it was written.
    behind_ms: Option<i64>,
    /// The rows of what was proven lately, and when each was written.
    recent: VecDeque<(i64, u64)>,
    rows: i64,
    lives: Vec<Life>,
}

impl Sweep {
    pub fn new(now: Now) -> Sweep {
        Sweep {
            part: 0,
            began_ms: now.mono_ms,
            before_ms: now.mono_ms,
            lag_ms: None,
            behind_ms: None,
            recent: VecDeque::new(),
            rows: 0,
            lives: Vec::new(),
        }
    }

    /// Writes the next rows of the round, and what has been published as proven since the last go; `whole` writes all,
    /// exact to this moment.
    pub fn write(
        &mut self,
        connection: &Connection,
        hub: &Hub,
        proven: &[Life],
        now: Now,
        whole: bool,
    ) -> rusqlite::Result<()> {
        self.set_behind(connection, hub.behind_ms(now))?;
        // The slots of the previous run had other servers: its rows are replaced all at once, or not at all.
        let is_first = self.lag_ms.is_none();
        if self.part == 0 || whole || is_first {
            (self.before_ms, self.began_ms, self.part) = (self.began_ms, now.mono_ms, 0);
        }
        let in_one_go = self.part == 0;
        let parts = hub.slots().div_ceil(PART);
        let most = if whole || is_first { usize::MAX } else { PARTS_MIN.max(parts.div_ceil(GOES_MAX)) };
        // Where all slots have their turn now, they say it themselves.
        let is_whole_round = in_one_go && parts <= most;
        if !proven.is_empty() && !is_whole_round {
            self.rows += 1;
            write_part(connection, -self.rows, &encode(proven))?;
            self.recent.push_back((-self.rows, now.mono_ms));
        }
        for _ in 0..most {
            self.lives.clear();
            let next = hub.lives(self.part * PART, PART, now, &mut self.lives);
            write_part(connection, self.part as i64, &encode(&self.lives))?;
            self.part += 1;
            if next.is_none() {
                return self.end_round(connection, now, whole, in_one_go);
            }
        }
        // Known before the round is over: it takes longer than one that was done in one go.
        let expected_ms = 3 * parts.div_ceil(most) as u64 * GO_MS;
        if self.lag_ms.is_some_and(|known_ms| expected_ms > known_ms) {
            self.set_lag(connection, expected_ms)?;
        }
        Ok(())
    }

    fn end_round(&mut self, connection: &Connection, now: Now, whole: bool, in_one_go: bool) -> rusqlite::Result<()> {
        connection.execute("DELETE FROM lives WHERE part >= ?1", [self.part as i64])?;
        self.part = 0;
        if in_one_go {
            // Nothing else is needed, nor what an earlier run has left.
            connection.execute("DELETE FROM lives WHERE part < 0", [])?;
            self.recent.clear();
        }
        while let Some((row, _)) = self.recent.pop_front_if(|(_, at_ms)| *at_ms < self.began_ms) {
            connection.prepare_cached("DELETE FROM lives WHERE part = ?1")?.execute([row])?;
        }
        // What is prolonged right after its row was written waits for the end of the next round.
        let took_ms = now.mono_ms - self.began_ms;
        let lag_ms = if whole { 0 } else { (now.mono_ms - self.before_ms + took_ms).max(GO_MS) };
        self.set_lag(connection, lag_ms)
    }

    /// A file that says nothing of it was written by a clock that is right.
    fn set_behind(&mut self, connection: &Connection, behind_ms: Option<i64>) -> rusqlite::Result<()> {
        let Some(behind_ms) = behind_ms else { return Ok(()) };
        if self.behind_ms.is_none_or(|known_ms| known_ms.abs_diff(behind_ms) > BEHIND_STEP_MS) {
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", (BEHIND, behind_ms))?;
            self.behind_ms = Some(behind_ms);
        }
        Ok(())
    }

    /// Written only when it says something new: in whole seconds, and less only when it is a lot less.
    fn set_lag(&mut self, connection: &Connection, lag_ms: u64) -> rusqlite::Result<()> {
        let lag_ms = lag_ms.next_multiple_of(1_000);
        let good = self.lag_ms.is_some_and(|known_ms| lag_ms > 0 && lag_ms <= known_ms && lag_ms * 2 > known_ms);
        if !good {
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", (LAG, lag_ms as i64))?;
            self.lag_ms = Some(lag_ms);
        }
        Ok(())
    }
}

/// What a published server says of its own stamps.
pub fn of(server: &Server) -> Life {
    let ends_at_ms = server.last_seen_ms.saturating_add(server.life_ms.into());
    Life { address: server.address, ends_at_ms, proven_at_ms: server.proven_at_ms }
}

fn write_part(connection: &Connection, part: i64, data: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO lives VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data = ?2 WHERE data <> ?2";
    connection.prepare_cached(sql)?.execute((part, data))?;
    Ok(())
}

/// The longest time that a prolonged life may be missing; unknown in a file that never had a whole round.
pub fn lag_ms(connection: &Connection) -> rusqlite::Result<u64> {
    let found = meta(connection, LAG)?;
    let found = if sqlite::version(connection)? < VERSION_MIN { None } else { found };
    Ok(found.map_or(u64::MAX / 2, |lag_ms| lag_ms.max(0) as u64))
}

/// What the clock that the file was written with is behind the time that the nodes share.
pub fn behind_ms(connection: &Connection) -> rusqlite::Result<i64> {
    Ok(meta(connection, BEHIND)?.unwrap_or(0))
}

fn meta(connection: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    let mut select = connection.prepare("SELECT value FROM meta WHERE key = ?1")?;
    let mut rows = select.query([key])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

/// The stamps of a server that have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    pub ends_at_ms: u64,
    pub proven_at_ms: u64,
}

/// All of them that make sense. In a file from before they had their form, there are none.
pub fn read(connection: &Connection) -> rusqlite::Result<HashMap<Address, Stamps>> {
    let mut stamps = HashMap::new();
    if sqlite::version(connection)? < VERSION_MIN {
        return Ok(stamps);
    }
    let mut select = connection.prepare("SELECT data FROM lives")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        if let Ok(data) = row.get_ref(0)?.as_blob() {
            decode(data, &mut stamps);
        }
    }
    Ok(stamps)
}

/// Each life: how long the address is, the address, the end in seconds, rounded up, and the proof's, rounded down.
fn encode(lives: &[Life]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lives.len() * 15);
    for life in lives {
        let address = address_bytes(life.address);
        out.push(address.len() as u8);
        out.extend(address);
        out.extend((life.ends_at_ms.div_ceil(1_000) as u32).to_le_bytes());
        out.extend(((life.proven_at_ms / 1_000) as u32).to_le_bytes());
    }
    out
}

fn decode(mut bytes: &[u8], stamps: &mut HashMap<Address, Stamps>) {
    let mut next = || {
        let (size, rest) = bytes.split_first()?;
        let (address, rest) = rest.split_at_checked((*size).into())?;
        let (end, rest) = rest.split_first_chunk::<4>()?;
        let (proven, rest) = rest.split_first_chunk::<4>()?;
        bytes = rest;
        let ms = |seconds: &[u8; 4]| u64::from(u32::from_le_bytes(*seconds)) * 1_000;
        Some((address_from(address)?, Stamps { ends_at_ms: ms(end), proven_at_ms: ms(proven) }))
    };
    while let Some((address, found)) = next() {
        // The latest of them, in whatever order they come.
        let known = stamps.entry(address).or_insert(found);
        known.ends_at_ms = known.ends_at_ms.max(found.ends_at_ms);
        known.proven_at_ms = known.proven_at_ms.max(found.proven_at_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_come_back_to_the_second() {
        let life = |text: &str, ends_at_ms| Life {
            address: text.parse().unwrap(),
            ends_at_ms,
            proven_at_ms: ends_at_ms - 100_500,
        };
        let lives = [life("192.0.2.1:5", 1_760_000_000_001), life("[2001:db8::1]:6", 1_760_000_009_000)];
        let bytes = encode(&lives);
        let mut stamps = HashMap::new();
        decode(&bytes, &mut stamps);
        let expected = |ends_at_ms, proven_at_ms| Stamps { ends_at_ms, proven_at_ms };
        assert_eq!(stamps[&lives[0].address], expected(1_760_000_001_000, 1_759_999_899_000));
        assert_eq!(stamps[&lives[1].address], expected(1_760_000_009_000, 1_759_999_908_000));
        for len in 0..bytes.len() {
            decode(&bytes[..len], &mut HashMap::new());
        }
    }
}

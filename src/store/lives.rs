//! Saves when lives end and when servers were last proven. A heartbeat that changes nothing does not rewrite its server's
//! row; the table `lives` has its effect instead, a thousand slots per row: few bytes, few pages, and no work per heartbeat.
//!
//! If there are more slots than one pass writes, a round over all of them takes several passes. Servers that are published
//! as proven meanwhile go into extra rows (with negative numbers), until a later round has covered them.

use std::collections::VecDeque;

use rusqlite::Connection;

use super::row::{address_bytes, address_from};
use super::sqlite;
use crate::hub::Hub;
use crate::model::{Address, Now, Server};
use crate::registry::Life;

/// Slots per row.
const PART: usize = 1024;
/// Rows per pass: up to two thousand servers are written every time. More are spread over several passes, to spare the disk,
/// but never over more than [`PASSES_MAX`].
const ROWS_MIN: usize = 2;
const PASSES_MAX: usize = 20;
/// The shortest time between two passes.
const PASS_MS: u64 = 500;
/// The first version of the file in which `lives` has this format.
const VERSION_MIN: usize = 2;
/// Key in `meta`: how old the entries in `lives` may be.
const LAG: &str = "lives_lag_ms";
/// Key in `meta`: how far the clock of all timestamps is behind the cluster's time.
const BEHIND: &str = "clock_behind_ms";
/// Smaller changes of that value are not written.
const BEHIND_STEP_MS: u64 = 500;

/// The progress of a round over all slots.
pub struct Sweep {
    part: usize,
    began_ms: u64,
    /// When the previous round began.
    before_ms: u64,
    /// [`LAG`] as written; None until all slots have been written.
    lag_ms: Option<u64>,
    /// [`BEHIND`] as written.
    behind_ms: Option<i64>,
    /// The extra rows of recently proven servers, and when each was written.
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

    /// Writes the next rows of the round, and the servers that were published as proven since the last pass. `whole` writes
    /// all slots.
    pub fn write(
        &mut self,
        connection: &Connection,
        hub: &Hub,
        proven: &[Life],
        now: Now,
        whole: bool,
    ) -> rusqlite::Result<()> {
        self.set_behind(connection, hub.behind_ms(now))?;
        // After a restart the slots hold other servers, so the first pass replaces all rows.
        let is_first = self.lag_ms.is_none();
        if self.part == 0 || whole || is_first {
            (self.before_ms, self.began_ms, self.part) = (self.began_ms, now.mono_ms, 0);
        }
        let in_one_pass = self.part == 0;
        let parts = hub.slots().div_ceil(PART);
        let most = if whole || is_first { usize::MAX } else { ROWS_MIN.max(parts.div_ceil(PASSES_MAX)) };
        // A pass that writes all slots needs no extra row.
        let is_whole_round = in_one_pass && parts <= most;
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
                return self.end_round(connection, now, whole, in_one_pass);
            }
        }
        // A round of several passes lags more than the previous one: write that before the round is over.
        let expected_ms = 3 * parts.div_ceil(most) as u64 * PASS_MS;
        if self.lag_ms.is_some_and(|known_ms| expected_ms > known_ms) {
            self.set_lag(connection, expected_ms)?;
        }
        Ok(())
    }

    fn end_round(&mut self, connection: &Connection, now: Now, whole: bool, in_one_pass: bool) -> rusqlite::Result<()> {
        connection.execute("DELETE FROM lives WHERE part >= ?1", [self.part as i64])?;
        self.part = 0;
        if in_one_pass {
            // No extra rows are needed, including those of an earlier run.
            connection.execute("DELETE FROM lives WHERE part < 0", [])?;
            self.recent.clear();
        }
        while let Some((row, _)) = self.recent.pop_front_if(|(_, at_ms)| *at_ms < self.began_ms) {
            connection.prepare_cached("DELETE FROM lives WHERE part = ?1")?.execute([row])?;
        }
        // A life that is extended right after its row was written waits for the end of the next round.
        let took_ms = now.mono_ms - self.began_ms;
        let lag_ms = if whole { 0 } else { (now.mono_ms - self.before_ms + took_ms).max(PASS_MS) };
        self.set_lag(connection, lag_ms)
    }

    /// Without this key, the clock that wrote the file counts as right.
    fn set_behind(&mut self, connection: &Connection, behind_ms: Option<i64>) -> rusqlite::Result<()> {
        let Some(behind_ms) = behind_ms else { return Ok(()) };
        if self.behind_ms.is_none_or(|known_ms| known_ms.abs_diff(behind_ms) > BEHIND_STEP_MS) {
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", (BEHIND, behind_ms))?;
            self.behind_ms = Some(behind_ms);
        }
        Ok(())
    }

    /// Writes the lag in whole seconds; a smaller value only if it is less than half of the written one.
    fn set_lag(&mut self, connection: &Connection, lag_ms: u64) -> rusqlite::Result<()> {
        let lag_ms = lag_ms.next_multiple_of(1_000);
        let is_close = self.lag_ms.is_some_and(|known_ms| lag_ms > 0 && lag_ms <= known_ms && lag_ms * 2 > known_ms);
        if !is_close {
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", (LAG, lag_ms as i64))?;
            self.lag_ms = Some(lag_ms);
        }
        Ok(())
    }
}

/// The life of a published server.
pub fn of(server: &Server) -> Life {
    let ends_at_ms = server.last_seen_ms.saturating_add(server.life_ms.into());
    Life { address: server.address, ends_at_ms, proven_at_ms: server.proven_at_ms }
}

fn write_part(connection: &Connection, part: i64, data: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO lives VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data = ?2 WHERE data <> ?2";
    connection.prepare_cached(sql)?.execute((part, data))?;
    Ok(())
}

/// How old the entries in `lives` may be. Practically infinite in a file without a complete round.
pub fn lag_ms(connection: &Connection) -> rusqlite::Result<u64> {
    let found = meta(connection, LAG)?;
    let found = if sqlite::version(connection)? < VERSION_MIN { None } else { found };
    Ok(found.map_or(u64::MAX / 2, |lag_ms| lag_ms.max(0) as u64))
}

/// How far the clock that wrote the file was behind the cluster's time.
pub fn behind_ms(connection: &Connection) -> rusqlite::Result<i64> {
    Ok(meta(connection, BEHIND)?.unwrap_or(0))
}

fn meta(connection: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    let mut select = connection.prepare("SELECT value FROM meta WHERE key = ?1")?;
    let mut rows = select.query([key])?;
    rows.next()?.map(|row| row.get(0)).transpose()
}

/// A server's timestamps in `lives`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    pub ends_at_ms: u64,
    pub proven_at_ms: u64,
}

/// The timestamps of all servers, sorted by address. Rows of servers come in nearly the same order, so that finding the
/// timestamps of each costs less than in a hash table.
#[derive(Default)]
pub struct AllStamps(Vec<(Address, Stamps)>);

impl AllStamps {
    /// Of several timestamps of an address, the latest count.
    fn new(mut all: Vec<(Address, Stamps)>) -> AllStamps {
        all.sort_unstable_by_key(|(address, _)| *address);
        all.dedup_by(|(address, next), (known, stamps)| {
            let is_same = address == known;
            if is_same {
                stamps.ends_at_ms = stamps.ends_at_ms.max(next.ends_at_ms);
                stamps.proven_at_ms = stamps.proven_at_ms.max(next.proven_at_ms);
            }
            is_same
        });
        AllStamps(all)
    }

    /// The timestamps of an address. `next` is where to look first: the place after the last one that was found.
    pub fn get(&self, address: Address, next: &mut usize) -> Option<Stamps> {
        let is_next = self.0.get(*next).is_some_and(|(found, _)| *found == address);
        let at = if is_next { *next } else { self.0.binary_search_by_key(&address, |(found, _)| *found).ok()? };
        *next = at + 1;
        self.0.get(at).map(|(_, stamps)| *stamps)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub fn values(&self) -> impl Iterator<Item = &Stamps> {
        self.0.iter().map(|(_, stamps)| stamps)
    }

    /// Addresses that divide all of them into about `parts` equal parts.
    pub fn quantiles(&self, parts: usize) -> impl Iterator<Item = Address> {
        let step = self.0.len().div_ceil(parts.max(1)).max(1);
        self.0.iter().step_by(step).skip(1).map(|(address, _)| *address)
    }
}

/// Reads all valid timestamps; none from a file with an older format.
pub fn read(connection: &Connection) -> rusqlite::Result<AllStamps> {
    let mut stamps = Vec::new();
    if sqlite::version(connection)? < VERSION_MIN {
        return Ok(AllStamps::default());
    }
    let mut select = connection.prepare("SELECT data FROM lives")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        if let Ok(data) = row.get_ref(0)?.as_blob() {
            decode(data, &mut stamps);
        }
    }
    Ok(AllStamps::new(stamps))
}

/// Format of one life: length of the address u8, address, end in seconds u32 LE (rounded up), proof in seconds u32 LE
/// (rounded down).
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

fn decode(mut bytes: &[u8], stamps: &mut Vec<(Address, Stamps)>) {
    let mut next = || {
        let (size, rest) = bytes.split_first()?;
        let (address, rest) = rest.split_at_checked((*size).into())?;
        let (end, rest) = rest.split_first_chunk::<4>()?;
        let (proven, rest) = rest.split_first_chunk::<4>()?;
        bytes = rest;
        let ms = |seconds: &[u8; 4]| u64::from(u32::from_le_bytes(*seconds)) * 1_000;
        Some((address_from(address)?, Stamps { ends_at_ms: ms(end), proven_at_ms: ms(proven) }))
    };
    while let Some(found) = next() {
        stamps.push(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_round_trip_with_a_resolution_of_one_second() {
        let life = |text: &str, ends_at_ms| Life {
            address: text.parse().unwrap(),
            ends_at_ms,
            proven_at_ms: ends_at_ms - 100_500,
        };
        let lives = [life("192.0.2.1:5", 1_760_000_000_001), life("[2001:db8::1]:6", 1_760_000_009_000)];
        let bytes = encode(&lives);
        let mut stamps = Vec::new();
        decode(&bytes, &mut stamps);
        let expected = |ends_at_ms, proven_at_ms| Stamps { ends_at_ms, proven_at_ms };
        assert_eq!(stamps[0], (lives[0].address, expected(1_760_000_001_000, 1_759_999_899_000)));
        assert_eq!(stamps[1], (lives[1].address, expected(1_760_000_009_000, 1_759_999_908_000)));
        for len in 0..bytes.len() {
            decode(&bytes[..len], &mut Vec::new());
        }
    }

    #[test]
    fn stamps_are_found_in_any_order_and_the_latest_of_an_address_count() {
        let address = |port: u16| Address::new([192, 0, 2, 1].into(), port).unwrap();
        let stamps = |ends_at_ms, proven_at_ms| Stamps { ends_at_ms, proven_at_ms };
        let mut all: Vec<_> = (1..=100).rev().map(|port| (address(port), stamps(u64::from(port), 1))).collect();
        all.extend([(address(7), stamps(3, 9)), (address(7), stamps(5, 2))]);
        let all = AllStamps::new(all);
        assert_eq!(all.len(), 100);
        let mut next = 0;
        for port in (1..=100).chain([50, 3, 3, 100]) {
            let expected = stamps(port.into(), if port == 7 { 9 } else { 1 });
            assert_eq!(all.get(address(port), &mut next), Some(expected), "{port}");
        }
        assert_eq!(all.get(address(101), &mut next), None);
        assert_eq!(all.get(address(1), &mut next), Some(stamps(1, 1)), "after one that is unknown");
        let ports = |parts| all.quantiles(parts).map(|address| address.port()).collect::<Vec<_>>();
        assert_eq!((ports(4), ports(1), ports(0)), (vec![26, 51, 76], vec![], vec![]));
        assert_eq!(AllStamps::default().quantiles(4).count(), 0);
    }
}

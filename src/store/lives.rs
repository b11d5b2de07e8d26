//! When lives really end. A heartbeat that says nothing new is not published and changes no row; its effect is written
//! here, slot after slot, a thousand to a row: few bytes, few pages, and nothing on the way of the heartbeat.

use std::collections::HashMap;

use rusqlite::Connection;

use super::row::{address_bytes, address_from};
use crate::hub::Hub;
use crate::model::{Address, Now};
use crate::registry::Life;

/// Slots to a row.
const PART: usize = 1024;
/// Rows written in one go: up to sixteen thousand servers are looked at every time.
const PARTS_MAX: usize = 16;
/// More than the time between two goes.
const GO_MS: u64 = 500;
/// The key of the longest time that a prolonged life may be missing here.
const LAG: &str = "lives_lag_ms";

/// Where a round of all slots stands.
pub struct Sweep {
    part: usize,
    began_ms: u64,
    /// The previous round began then.
    before_ms: u64,
    lag_ms: Option<u64>,
    lives: Vec<Life>,
}

impl Sweep {
    pub fn new(now: Now) -> Sweep {
        Sweep { part: 0, began_ms: now.mono_ms, before_ms: now.mono_ms, lag_ms: None, lives: Vec::new() }
    }

    /// Writes the next rows of the round; `whole` writes all of it, exact to this moment.
    pub fn write(&mut self, connection: &Connection, hub: &Hub, now: Now, whole: bool) -> rusqlite::Result<()> {
        if self.part == 0 || whole {
            (self.before_ms, self.began_ms, self.part) = (self.began_ms, now.mono_ms, 0);
        }
        for _ in 0..if whole { usize::MAX } else { PARTS_MAX } {
            self.lives.clear();
            let next = hub.lives(self.part * PART, PART, now, &mut self.lives);
            write_part(connection, self.part, &encode(&self.lives))?;
            self.part += 1;
            if next.is_none() {
                connection.execute("DELETE FROM lives WHERE part >= ?1", [self.part as i64])?;
                self.part = 0;
                // What is prolonged right after its row was written waits for the end of the next round.
                let took_ms = now.mono_ms - self.began_ms;
                let lag_ms = if whole { 0 } else { (now.mono_ms - self.before_ms + took_ms).max(GO_MS) };
                return self.set_lag(connection, lag_ms);
            }
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

fn write_part(connection: &Connection, part: usize, data: &[u8]) -> rusqlite::Result<()> {
    let sql = "INSERT INTO lives VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data = ?2 WHERE data <> ?2";
    connection.prepare_cached(sql)?.execute((part as i64, data))?;
    Ok(())
}

/// The longest time that a prolonged life may be missing; unknown in a file that never had a whole round.
pub fn lag_ms(connection: &Connection) -> rusqlite::Result<u64> {
    let mut select = connection.prepare("SELECT value FROM meta WHERE key = ?1")?;
    let mut rows = select.query([LAG])?;
    let found: Option<i64> = rows.next()?.map(|row| row.get(0)).transpose()?;
    Ok(found.map_or(u64::MAX / 2, |lag_ms| lag_ms.max(0) as u64))
}

/// The ends that have been written, where they make sense.
pub fn read(connection: &Connection) -> rusqlite::Result<HashMap<Address, u64>> {
    let mut ends = HashMap::new();
    let mut select = connection.prepare("SELECT data FROM lives")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        if let Ok(data) = row.get_ref(0)?.as_blob() {
            decode(data, &mut ends);
        }
    }
    Ok(ends)
}

/// Each life: how long the address is, the address, the end in seconds, rounded up.
fn encode(lives: &[Life]) -> Vec<u8> {
    let mut out = Vec::with_capacity(lives.len() * 11);
    for life in lives {
        let address = address_bytes(life.address);
        out.push(address.len() as u8);
        out.extend(address);
        out.extend((life.ends_at_ms.div_ceil(1_000) as u32).to_le_bytes());
    }
    out
}

fn decode(mut bytes: &[u8], ends: &mut HashMap<Address, u64>) {
    let mut next = || {
        let (size, rest) = bytes.split_first()?;
        let (address, rest) = rest.split_at_checked((*size).into())?;
        let (end, rest) = rest.split_first_chunk::<4>()?;
        bytes = rest;
        Some((address_from(address)?, u64::from(u32::from_le_bytes(*end)) * 1_000))
    };
    while let Some((address, end_ms)) = next() {
        ends.insert(address, end_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_come_back_to_the_second() {
        let life = |text: &str, ends_at_ms| Life { address: text.parse().unwrap(), ends_at_ms };
        let lives = [life("192.0.2.1:5", 1_760_000_000_001), life("[2001:db8::1]:6", 1_760_000_009_000)];
        let bytes = encode(&lives);
        let mut ends = HashMap::new();
        decode(&bytes, &mut ends);
        assert_eq!(ends[&lives[0].address], 1_760_000_001_000);
        assert_eq!(ends[&lives[1].address], 1_760_000_009_000);
        for len in 0..bytes.len() {
            decode(&bytes[..len], &mut HashMap::new());
        }
    }
}

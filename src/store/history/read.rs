//! Reads history, on separate connections: readers do not block the writer.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::str::FromStr;

use rusqlite::{Connection, OptionalExtension};

use super::record::{chunk, samples};
use super::series::{self, Point};
use super::{DAY_S, FIVE_MINUTES, HOURS, RAW, Tier};
use crate::model::Address;
use crate::store::sqlite;

/// How far back to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Day,
    Week,
    Month,
    Year,
}

impl Range {
    pub const ALL: [Range; 4] = [Range::Day, Range::Week, Range::Month, Range::Year];

    pub fn name(self) -> &'static str {
        match self {
            Range::Day => "24h",
            Range::Week => "7d",
            Range::Month => "30d",
            Range::Year => "1y",
        }
    }

    fn seconds(self) -> u64 {
        match self {
            Range::Day => DAY_S,
            Range::Week => 7 * DAY_S,
            Range::Month => 30 * DAY_S,
            Range::Year => 365 * DAY_S,
        }
    }

    fn bounds_s(self, now_ms: u64) -> (u64, u64) {
        let to_s = now_ms / 1_000;
        (to_s.saturating_sub(self.seconds()), to_s)
    }

    /// The points within this range.
    pub fn history(self, now_ms: u64, points: impl IntoIterator<Item = Point>) -> History {
        let (from_s, to_s) = self.bounds_s(now_ms);
        let within = |point: &Point| (from_s..=to_s).contains(&point.at_s);
        History { from_s, to_s, points: points.into_iter().filter(within).collect() }
    }

    fn tier(self) -> &'static Tier {
        match self {
            Range::Day => &RAW,
            Range::Week | Range::Month => &FIVE_MINUTES,
            Range::Year => &HOURS,
        }
    }

    /// Seconds that one point covers; None for raw counts.
    pub fn step_s(self) -> Option<u64> {
        self.tier().step_s
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let known = Range::ALL.into_iter().find(|range| range.name() == text);
        known.ok_or_else(|| format!("must be 24h, 7d, 30d or 1y, not `{text}`"))
    }
}

/// A series over a range, oldest first. There is no point for times at which nothing was counted or listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub from_s: u64,
    pub to_s: u64,
    pub points: Vec<Point>,
}

/// Series whose ids differ by less than this are read in one query.
const NEAR: u32 = 1_024;

/// Reads history from the file. Every call blocks on the disk: keep it off the async threads.
#[derive(Clone, Debug)]
pub struct Reader {
    path: PathBuf,
}

impl Reader {
    pub fn new(path: PathBuf) -> Reader {
        Reader { path }
    }

    /// None: never counted, or deleted since.
    pub fn server(&self, game: &str, address: Address, range: Range, now_ms: u64) -> rusqlite::Result<Option<History>> {
        Ok(self.servers(&[(game, address)], range, now_ms)?.pop().flatten())
    }

    /// Several servers at once, in the given order: much cheaper than one by one.
    pub fn servers(
        &self,
        servers: &[(&str, Address)],
        range: Range,
        now_ms: u64,
    ) -> rusqlite::Result<Vec<Option<History>>> {
        let connection = self.open()?;
        let ids = servers.iter().map(|(game, address)| series_id(&connection, game, &address.to_string()));
        let ids: Vec<Option<u32>> = ids.collect::<rusqlite::Result<_>>()?;
        let mut all = points(&connection, ids.iter().flatten().copied(), range, now_ms)?;
        let mut history = |id: Option<u32>| Some(range.history(now_ms, all.remove(&id?)?.into_values()));
        Ok(ids.into_iter().map(&mut history).collect())
    }

    /// A whole game: the sum of its players, and the number of servers. [`ALL_GAMES`](super::ALL_GAMES) counts as a game.
    pub fn game(&self, game: &str, range: Range, now_ms: u64) -> rusqlite::Result<Option<History>> {
        let connection = self.open()?;
        let Some(id) = series_id(&connection, game, "")? else { return Ok(None) };
        let series = points(&connection, [id], range, now_ms)?.remove(&id).unwrap_or_default();
        Ok(Some(range.history(now_ms, series.into_values())))
    }

    /// A connection in a read transaction: it sees one consistent state of the file.
    fn open(&self) -> rusqlite::Result<Connection> {
        let connection = sqlite::open_to_read(&self.path)?;
        connection.execute_batch("BEGIN")?;
        Ok(connection)
    }
}

fn series_id(connection: &Connection, game: &str, address: &str) -> rusqlite::Result<Option<u32>> {
    let mut select = connection.prepare_cached("SELECT id FROM series WHERE game = ?1 AND address = ?2")?;
    select.query_row([game, address], |row| row.get(0)).optional()
}

/// The points of some series by time: from the range's tier, and from counts that are in no tier yet.
fn points(
    connection: &Connection,
    ids: impl IntoIterator<Item = u32>,
    range: Range,
    now_ms: u64,
) -> rusqlite::Result<HashMap<u32, BTreeMap<u64, Point>>> {
    let (tier, (from_s, to_s)) = (range.tier(), range.bounds_s(now_ms));
    let mut all: HashMap<u32, BTreeMap<u64, Point>> = HashMap::new();
    for id in ids {
        let series = all.entry(id).or_default();
        let mut start_s = tier.chunk_of(from_s);
        while start_s <= to_s {
            let known = chunk(connection, tier, start_s, id)?;
            series.extend(known.into_iter().map(|point| (point.at_s, point)));
            start_s += tier.chunk_s;
        }
    }
    let mut ids: Vec<u32> = all.keys().copied().collect();
    ids.sort_unstable();
    let mut recent: HashMap<u32, Vec<Point>> = HashMap::new();
    let mut times = Vec::new();
    // Read series in groups of neighbouring ids.
    for near in ids.chunk_by(|a, b| b - a < NEAR) {
        let (Some(first), Some(last)) = (near.first(), near.last()) else { continue };
        times.clear();
        samples(connection, from_s..to_s + 1, *first..=*last, &mut times, |at_s, (id, players_x10, count_x100)| {
            if all.contains_key(&id) {
                recent.entry(id).or_default().push(Point::new(at_s, players_x10, count_x100));
            }
        })?;
    }
    for (id, counted) in recent {
        let counted = match tier.step_s {
            Some(step_s) => series::means(&counted, &times, step_s),
            None => counted,
        };
        all.entry(id).or_default().extend(counted.into_iter().map(|point| (point.at_s, point)));
    }
    Ok(all)
}

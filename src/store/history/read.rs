//! The reading side of history, on connections of its own: nobody who reads stops the writer.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::str::FromStr;

use rusqlite::{Connection, OptionalExtension};

use super::record::{chunk, samples};
use super::series::{self, Point};
use super::{DAY_S, FIVE_MINUTES, HOUR_S, HOURS, RAW, Tier};
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

    pub fn seconds(self) -> u64 {
        match self {
            Range::Day => DAY_S,
            Range::Week => 7 * DAY_S,
            Range::Month => 30 * DAY_S,
            Range::Year => 365 * DAY_S,
        }
    }

    fn tier(self) -> &'static Tier {
        match self {
            Range::Day => &RAW,
            Range::Week | Range::Month => &FIVE_MINUTES,
            Range::Year => &HOURS,
        }
    }

    /// Seconds that one point stands for; None where points are as counted.
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

/// A series over a range, oldest first. Where nothing was counted or listed, there is no point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    pub from_s: u64,
    pub to_s: u64,
    pub points: Vec<Point>,
}

/// Reads history from the file. Every call blocks, for as long as a disk takes: keep it off the async threads.
#[derive(Clone, Debug)]
pub struct Reader {
    path: PathBuf,
}

/// Half hours: what a small plot can show of a day.
const SMALL_STEP_S: u64 = 1_800;

impl Reader {
    pub fn new(path: PathBuf) -> Reader {
        Reader { path }
    }

    /// None: never counted, or forgotten since.
    pub fn server(&self, game: &str, address: Address, range: Range, now_ms: u64) -> rusqlite::Result<Option<History>> {
        self.series(game, &address.to_string(), range, now_ms)
    }

    /// The whole game: all its players, and how many servers.
    pub fn game(&self, game: &str, range: Range, now_ms: u64) -> rusqlite::Result<Option<History>> {
        self.series(game, "", range, now_ms)
    }

    /// The last day of every server, in half hours, by game and address: for small plots of all of them at once.
    pub fn last_day(&self, now_ms: u64) -> rusqlite::Result<HashMap<(String, Address), Vec<Point>>> {
        let connection = sqlite::open_to_read(&self.path)?;
        let from_s = (now_ms / 1_000).saturating_sub(DAY_S);
        let mut all: HashMap<u32, BTreeMap<u64, Point>> = HashMap::new();
        let sql = "SELECT series, start, data FROM history WHERE tier = ?1 AND start >= ?2";
        let mut select = connection.prepare(sql)?;
        let mut rows = select.query((FIVE_MINUTES.id, FIVE_MINUTES.chunk_of(from_s) as i64))?;
        while let Some(row) = rows.next()? {
            let points = series::unpack(row.get::<_, i64>(1)? as u64, row.get_ref(2)?.as_blob().unwrap_or_default());
            let points = points.into_iter().flatten().filter(|point| point.at_s >= from_s);
            all.entry(row.get(0)?).or_default().extend(points.map(|point| (point.at_s, point)));
        }
        let mut times = Vec::new();
        let mut recent: HashMap<u32, Vec<Point>> = HashMap::new();
        samples(
            &connection,
            from_s,
            u32::MAX.into(),
            0,
            u32::MAX,
            &mut times,
            |at_s, (id, players_x10, count_x100)| {
                recent.entry(id).or_default().push(Point { at_s, players_x10, count_x100 });
            },
        )?;
        for (id, points) in recent {
            let step_s = FIVE_MINUTES.step_s.unwrap_or(HOUR_S);
            let means = series::means(&points, &times, step_s).into_iter().map(|point| (point.at_s, point));
            all.entry(id).or_default().extend(means);
        }
        names(&connection, all)
    }

    fn series(&self, game: &str, address: &str, range: Range, now_ms: u64) -> rusqlite::Result<Option<History>> {
        let connection = sqlite::open_to_read(&self.path)?;
        let sql = "SELECT id FROM series WHERE game = ?1 AND address = ?2";
        let id: Option<u32> = connection.query_row(sql, [game, address], |row| row.get(0)).optional()?;
        let Some(id) = id else { return Ok(None) };
        let (tier, to_s) = (range.tier(), now_ms / 1_000);
        let from_s = to_s.saturating_sub(range.seconds());
        let mut points: BTreeMap<u64, Point> = BTreeMap::new();
        let mut start_s = tier.chunk_of(from_s);
        while start_s <= to_s {
            let known = chunk(&connection, tier, start_s, id)?;
            points.extend(known.into_iter().map(|point| (point.at_s, point)));
            start_s += tier.chunk_s;
        }
        let mut times = Vec::new();
        let mut recent = Vec::new();
        samples(&connection, from_s, to_s + 1, id, id, &mut times, |at_s, (_, players_x10, count_x100)| {
            recent.push(Point { at_s, players_x10, count_x100 });
        })?;
        let recent = match tier.step_s {
            Some(step_s) => series::means(&recent, &times, step_s),
            None => recent,
        };
        points.extend(recent.into_iter().map(|point| (point.at_s, point)));
        let points = points.into_values().filter(|point| (from_s..=to_s).contains(&point.at_s)).collect();
        Ok(Some(History { from_s, to_s, points }))
    }
}

/// Series by name instead of by number; whole games are left out.
fn names(
    connection: &Connection,
    mut all: HashMap<u32, BTreeMap<u64, Point>>,
) -> rusqlite::Result<HashMap<(String, Address), Vec<Point>>> {
    let mut named = HashMap::new();
    let mut select = connection.prepare("SELECT id, game, address FROM series WHERE address <> ''")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let address = row.get_ref(2)?.as_str().unwrap_or_default().parse();
        if let (Some(points), Ok(address)) = (all.remove(&row.get(0)?), address) {
            let points: Vec<Point> = points.into_values().collect();
            let times: Vec<u64> = points.iter().map(|point| point.at_s).collect();
            named.insert((row.get(1)?, address), series::means(&points, &times, SMALL_STEP_S));
        }
    }
    Ok(named)
}

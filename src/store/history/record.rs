//! Writes history: counts servers and players, moves complete hours into the tiers, and deletes what is too old or too much.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::series::{self, Counted, Point};
use super::{ALL_GAMES, HOUR_S, Settings, TIERS, Tier};
use crate::model::Server;
use crate::prefix::{Networks, Prefix};
use crate::protocols::names_of;
use crate::registry::view::View;
use crate::store::sqlite;

/// Upper bound on servers with a series of their own; those without players are left out first. Totals per game include all.
const SERVERS_MAX: usize = 50_000;
/// Upper bound on games: anyone can make up names. Those with the least [`Standing`] are left out.
const GAMES_MAX: usize = 256;
/// What a network has, for all of its games together.
const VOTE: u64 = 1 << 20;
/// Series per row of `samples`.
const PART: u32 = 256;
/// Series moved to the tiers in one transaction, which should be short.
const SERIES_AT_ONCE: u32 = 250;
/// Free pages that the file may have before some are returned to the file system, and how many at once.
const FREE_PAGES_MAX: i64 = 4_096;
const PAGES_AT_ONCE: i64 = 512;
/// The log may take 1/16 of the size limit, and its index as much again.
const LOG_PART: u64 = 16;

/// Counts and thins. Its state may be lost: thinning the same hour twice changes nothing.
#[derive(Default)]
pub struct Recorder {
    counted_s: u64,
    /// The last series that was moved to the tiers, of the hour being moved.
    done: u32,
    /// Known games: also counted while they have no servers.
    games: Option<BTreeMap<String, Standing>>,
    more: bool,
    /// The log's size limit as last set.
    log_bytes_max: Option<u64>,
}

impl Recorder {
    /// Counts if due, and does one step of thinning.
    pub fn turn(
        &mut self,
        connection: &mut Connection,
        view: &View,
        now_ms: u64,
        settings: Settings,
    ) -> rusqlite::Result<()> {
        let log_bytes_max = log_bytes_max(settings);
        if self.log_bytes_max != Some(log_bytes_max) {
            sqlite::limit_log(connection, log_bytes_max)?;
            self.log_bytes_max = Some(log_bytes_max);
        }
        let is_due = self.is_due(now_ms, settings);
        if is_due || self.has_more() {
            let transaction = sqlite::begin(connection)?;
            if is_due {
                self.count(&transaction, view, now_ms, settings)?;
            }
            self.thin(&transaction, now_ms, settings)?;
            transaction.commit()?;
        }
        if settings.bytes_max > 0 && connection.path().is_some_and(|path| log_bytes(path) > log_bytes_max) {
            sqlite::empty_log(connection)?;
        }
        Ok(())
    }

    /// Whether a count is due: at multiples of the interval, so that a restart neither repeats nor skips one.
    pub fn is_due(&self, now_ms: u64, settings: Settings) -> bool {
        settings.bytes_max > 0 && slot_s(now_ms, settings) != self.counted_s
    }

    /// Counts the listed servers and their players.
    pub fn count(
        &mut self,
        connection: &Connection,
        view: &View,
        now_ms: u64,
        settings: Settings,
    ) -> rusqlite::Result<()> {
        let at_s = slot_s(now_ms, settings);
        let mut counted = Vec::new();
        for server in servers_to_count(view) {
            let series = series_of(connection, server.game.name(), &server.address.to_string(), at_s)?;
            let players_x10 = server.players_current.map(|players| u32::from(players) * 10);
            counted.push((series, players_x10, 100));
        }
        let mut all = Total::default();
        view.games().for_each(|server| all.add(server));
        let totals = self.totals(connection, view, at_s)?;
        for (game, total) in totals.into_iter().chain([(ALL_GAMES.to_string(), all)]) {
            let series = series_of(connection, &game, "", at_s)?;
            let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            counted.push((series, total.players().map(|players| narrow(players * 10)), narrow(total.servers * 100)));
        }
        counted.sort_unstable();
        counted.dedup_by_key(|(series, _, _)| *series);
        connection.prepare_cached("DELETE FROM samples WHERE at = ?1")?.execute([at_s as i64])?;
        let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO samples VALUES (?1, ?2, ?3)")?;
        // A row even if nothing is listed: it records that there was a count.
        insert.execute((at_s as i64, 0, series::pack_sample(&[])))?;
        for counted in counted.chunk_by(|a, b| part_of(a.0) == part_of(b.0)) {
            let part = counted.first().map_or(0, |(series, _, _)| part_of(*series));
            insert.execute((at_s as i64, part, series::pack_sample(counted)))?;
        }
        self.counted_s = at_s;
        Ok(())
    }

    /// Players and servers of each known game, and of each family of games.
    fn totals(&mut self, connection: &Connection, view: &View, at_s: u64) -> rusqlite::Result<BTreeMap<String, Total>> {
        let games = match &mut self.games {
            Some(games) => games,
            None => self.games.insert(known_games(connection, at_s)?),
        };
        let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
        for server in view.games() {
            for name in names_of(&server.game) {
                totals.entry(name).or_default().add(server);
            }
        }
        let mut votes = votes(view);
        let now = totals.iter().map(|(game, total)| {
            let votes = votes.remove(game).unwrap_or(0);
            (*game, Standing { votes, servers: total.servers })
        });
        choose(games, now);
        Ok(games.keys().map(|game| (game.clone(), totals.get(game.as_str()).copied().unwrap_or_default())).collect())
    }

    /// Whether [`Recorder::thin`] has more to do.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Does one step of moving complete hours to the tiers and of shrinking a file that is too large.
    pub fn thin(&mut self, connection: &Connection, now_ms: u64, settings: Settings) -> rusqlite::Result<()> {
        self.more = self.thin_step(connection, now_ms, settings)?;
        Ok(())
    }

    fn thin_step(&mut self, connection: &Connection, now_ms: u64, settings: Settings) -> rusqlite::Result<bool> {
        let now_s = now_ms / 1_000;
        let oldest: Option<i64> = connection.query_row("SELECT min(at) FROM samples", [], |row| row.get(0))?;
        let Some(hour_s) = oldest.map(|at| at as u64 - at as u64 % HOUR_S).filter(|hour_s| hour_s + HOUR_S <= now_s)
        else {
            return shrink(connection, now_s, settings);
        };
        let last: Option<u32> = connection
            .prepare_cached("SELECT max(id) FROM (SELECT id FROM series WHERE id > ?1 ORDER BY id LIMIT ?2)")?
            .query_row([self.done, SERIES_AT_ONCE], |row| row.get(0))?;
        if let Some(last) = last {
            move_to_tiers(connection, hour_s, self.done + 1, last)?;
            self.done = last;
            return Ok(true);
        }
        let hour = (hour_s as i64, (hour_s + HOUR_S) as i64);
        connection.execute("DELETE FROM samples WHERE at >= ?1 AND at < ?2", hour)?;
        self.done = 0;
        // Relative to the counted hour, not to now: a clock that is briefly wrong must not delete a year.
        forget(connection, hour_s + HOUR_S)?;
        Ok(true)
    }
}

/// Players and servers of a game.
#[derive(Clone, Copy, Default)]
struct Total {
    players: u64,
    servers: u64,
    /// Servers that report their players.
    known: u64,
}

impl Total {
    fn add(&mut self, server: &Server) {
        self.players += u64::from(server.players_current.unwrap_or(0));
        self.servers += 1;
        self.known += u64::from(server.players_current.is_some());
    }

    /// None: there are servers, but none of them reports its players.
    fn players(self) -> Option<u64> {
        (self.servers == 0 || self.known > 0).then_some(self.players)
    }
}

/// What decides which games are counted when there are too many. Anyone can make up names, but not networks: each network has one
/// vote, which its games share.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    votes: u64,
    servers: u64,
}

impl Standing {
    /// What is left of it when the game has fewer servers at the next count: a game that is empty for a moment keeps its place.
    fn faded(self) -> Standing {
        Standing { votes: self.votes / 2, servers: self.servers / 2 }
    }
}

/// The votes of each game, from the networks of providers.
fn votes(view: &View) -> HashMap<&str, u64> {
    let mut seen: HashSet<(Option<Prefix>, &str)> = HashSet::new();
    let mut games_of: HashMap<Option<Prefix>, u64> = HashMap::new();
    for server in view.games() {
        let network = Prefix::owners(server.address.ip(), &Networks::NONE).first().copied();
        let new = names_of(&server.game).filter(|name| seen.insert((network, name))).count();
        *games_of.entry(network).or_default() += new as u64;
    }
    let mut votes: HashMap<&str, u64> = HashMap::new();
    for (network, name) in seen {
        *votes.entry(name).or_default() += VOTE / games_of.get(&network).copied().unwrap_or(1).max(1);
    }
    votes
}

/// Chooses the games to count of those known before and those that have servers now.
fn choose<'a>(games: &mut BTreeMap<String, Standing>, now: impl Iterator<Item = (&'a str, Standing)>) {
    let before = std::mem::take(games).into_iter().map(|(game, standing)| (game, (standing.faded(), true)));
    let mut all: BTreeMap<String, (Standing, bool)> = before.collect();
    for (game, standing) in now {
        let (known, _) = all.entry(game.to_string()).or_default();
        *known = standing.max(*known);
    }
    let mut all: Vec<_> = all.into_iter().collect();
    if all.len() > GAMES_MAX {
        // Of equal ones, those that were known before stay.
        all.sort_by_key(|(_, standing)| Reverse(*standing));
        all.truncate(GAMES_MAX);
    }
    games.extend(all.into_iter().map(|(game, (standing, _))| (game, standing)));
}

/// The start of the interval that a count at this moment belongs to.
fn slot_s(now_ms: u64, settings: Settings) -> u64 {
    let now_s = now_ms / 1_000;
    now_s - now_s % settings.every_s.max(1)
}

/// The servers that have a series of their own.
fn servers_to_count(view: &View) -> impl Iterator<Item = &Server> {
    let busy = |server: &&Server| server.players_current.is_some_and(|players| players > 0);
    let all = || view.games().map(|server| &**server);
    all().filter(busy).chain(all().filter(move |server| !busy(server))).take(SERVERS_MAX)
}

/// The id of a series, which is created if it is new.
fn series_of(connection: &Connection, game: &str, address: &str, at_s: u64) -> rusqlite::Result<u32> {
    let mut select = connection.prepare_cached("SELECT id FROM series WHERE game = ?1 AND address = ?2")?;
    if let Some(series) = select.query_row([game, address], |row| row.get(0)).optional()? {
        return Ok(series);
    }
    let sql = "INSERT INTO series (game, address, last) VALUES (?1, ?2, ?3) RETURNING id";
    connection.prepare_cached(sql)?.query_row((game, address, at_s as i64), |row| row.get(0))
}

/// The games of the last week, if there are too many the newest.
fn known_games(connection: &Connection, at_s: u64) -> rusqlite::Result<BTreeMap<String, Standing>> {
    let since_s = at_s.saturating_sub(7 * super::DAY_S) as i64;
    let sql = "SELECT game FROM series WHERE address = '' AND game <> '' AND last >= ?1 ORDER BY last DESC LIMIT ?2";
    let mut select = connection.prepare(sql)?;
    let games = select.query_map([since_s, GAMES_MAX as i64], |row| Ok((row.get(0)?, Standing::default())))?;
    games.collect()
}

/// Moves an hour's counts of some series into the tiers.
fn move_to_tiers(connection: &Connection, hour_s: u64, first: u32, last: u32) -> rusqlite::Result<()> {
    let mut points: BTreeMap<u32, Vec<Point>> = BTreeMap::new();
    let mut times = Vec::new();
    samples(
        connection,
        hour_s..hour_s + HOUR_S,
        first..=last,
        &mut times,
        |at_s, (series, players_x10, count_x100)| {
            points.entry(series).or_default().push(Point::new(at_s, players_x10, count_x100));
        },
    )?;
    let mut seen = connection.prepare_cached("UPDATE series SET last = ?2 WHERE id = ?1")?;
    for (series, points) in &points {
        for tier in &TIERS {
            match tier.step_s {
                None => merge(connection, tier, *series, points)?,
                Some(step_s) => merge(connection, tier, *series, &series::means(points, &times, step_s))?,
            }
        }
        seen.execute((series, hour_s as i64))?;
    }
    Ok(())
}

/// The row of `samples` that a series is in.
fn part_of(series: u32) -> u32 {
    series / PART
}

/// Calls `each` for every count of some series in a time range, and appends all times of counts to `times`.
pub fn samples(
    connection: &Connection,
    mut time_s: Range<u64>,
    series: RangeInclusive<u32>,
    times: &mut Vec<u64>,
    mut each: impl FnMut(u64, Counted),
) -> rusqlite::Result<()> {
    // One query per time of a count, so that the index skips the other parts.
    let mut next = connection.prepare_cached("SELECT min(at) FROM samples WHERE at >= ?1 AND at < ?2")?;
    let sql = "SELECT data FROM samples WHERE at = ?1 AND part BETWEEN ?2 AND ?3 ORDER BY part";
    let mut select = connection.prepare_cached(sql)?;
    let (first, last) = (part_of(*series.start()), part_of(*series.end()));
    while let Some(at) = next.query_row([time_s.start as i64, time_s.end as i64], |row| row.get::<_, Option<i64>>(0))? {
        let at_s = at as u64;
        times.push(at_s);
        let mut rows = select.query((at, first, last))?;
        while let Some(row) = rows.next()? {
            let data = row.get_ref(0)?.as_blob().unwrap_or_default();
            series::unpack_sample(data, &series, |counted| each(at_s, counted));
        }
        time_s.start = at_s + 1;
    }
    Ok(())
}

/// Adds points to a series, replacing points of the same time.
fn merge(connection: &Connection, tier: &Tier, series: u32, points: &[Point]) -> rusqlite::Result<()> {
    for points in points.chunk_by(|a, b| tier.chunk_of(a.at_s) == tier.chunk_of(b.at_s)) {
        let Some(first) = points.first() else { continue };
        let start_s = tier.chunk_of(first.at_s);
        let mut all: BTreeMap<u64, Point> = BTreeMap::new();
        let known = chunk(connection, tier, start_s, series)?;
        all.extend(known.into_iter().chain(points.iter().copied()).map(|point| (point.at_s, point)));
        let all: Vec<Point> = all.into_values().collect();
        let data = series::pack(start_s, &all);
        let sql = "INSERT OR REPLACE INTO history VALUES (?1, ?2, ?3, ?4)";
        connection.prepare_cached(sql)?.execute((tier.id, start_s as i64, series, data))?;
    }
    Ok(())
}

/// The points of one row; empty if the row is missing or invalid.
pub fn chunk(connection: &Connection, tier: &Tier, start_s: u64, series: u32) -> rusqlite::Result<Vec<Point>> {
    let sql = "SELECT data FROM history WHERE tier = ?1 AND start = ?2 AND series = ?3";
    let mut select = connection.prepare_cached(sql)?;
    let data: Option<Vec<u8>> = select.query_row((tier.id, start_s as i64, series), |row| row.get(0)).optional()?;
    Ok(data.and_then(|data| series::unpack(start_s, &data)).unwrap_or_default())
}

/// Deletes what is older than its tier keeps.
fn forget(connection: &Connection, now_s: u64) -> rusqlite::Result<()> {
    for tier in &TIERS {
        let until_s = now_s.saturating_sub(tier.keep_s + tier.chunk_s) as i64;
        let sql = "DELETE FROM history WHERE tier = ?1 AND start <= ?2";
        connection.prepare_cached(sql)?.execute((tier.id, until_s))?;
    }
    forget_series(connection, now_s)
}

/// Deletes series without any points left.
fn forget_series(connection: &Connection, now_s: u64) -> rusqlite::Result<()> {
    let hour_s = now_s - now_s % HOUR_S;
    let mut oldest_s = hour_s as i64 - HOUR_S as i64;
    for tier in &TIERS {
        oldest_s = oldest_s.min(oldest_chunk(connection, tier)?.unwrap_or(i64::MAX));
    }
    connection.execute("DELETE FROM series WHERE last < ?1", [oldest_s])?;
    Ok(())
}

fn oldest_chunk(connection: &Connection, tier: &Tier) -> rusqlite::Result<Option<i64>> {
    let mut select = connection.prepare_cached("SELECT min(start) FROM history WHERE tier = ?1")?;
    select.query_row([tier.id], |row| row.get(0))
}

/// The log's share of the size limit. Its index takes as much again.
fn log_bytes_max(settings: Settings) -> u64 {
    match settings.bytes_max {
        0 => sqlite::LOG_BYTES_MAX,
        bytes_max => (bytes_max / LOG_PART).min(sqlite::LOG_BYTES_MAX),
    }
}

fn log_bytes(path: &str) -> u64 {
    std::fs::metadata(sqlite::log_of(Path::new(path))).map_or(0, |log| log.len())
}

/// Keeps the file within its share of the size limit: returns free pages to the file system, then deletes the oldest
/// history, one chunk at a time. True while there is more to do.
fn shrink(connection: &Connection, now_s: u64, settings: Settings) -> rusqlite::Result<bool> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (pages, free, size) = (pragma("page_count")?, pragma("freelist_count")?, pragma("page_size")?);
    let bytes_max = settings.bytes_max.saturating_sub(2 * log_bytes_max(settings));
    let is_too_large = settings.bytes_max > 0 && (pages * size) as u64 > bytes_max;
    if free > 0 && (is_too_large || free > FREE_PAGES_MAX) {
        // Every step of the query frees one page.
        let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES_AT_ONCE})"))?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        if pragma("freelist_count")? < free {
            return Ok(true);
        }
    }
    // If the file cannot shrink, its free pages count as room.
    if !is_too_large || ((pages - free) * size) as u64 <= bytes_max {
        return Ok(false);
    }
    forget_oldest(connection, now_s)
}

/// Deletes the oldest chunk, or the oldest count if there is no chunk. False if only the last count is left.
fn forget_oldest(connection: &Connection, now_s: u64) -> rusqlite::Result<bool> {
    let mut oldest: Option<(u64, u8, i64)> = None;
    for tier in &TIERS {
        if let Some(start) = oldest_chunk(connection, tier)? {
            let end_s = start as u64 + tier.chunk_s;
            oldest = Some(oldest.map_or((end_s, tier.id, start), |other| other.min((end_s, tier.id, start))));
        }
    }
    if let Some((_, tier, start)) = oldest {
        connection.execute("DELETE FROM history WHERE tier = ?1 AND start = ?2", (tier, start))?;
        forget_series(connection, now_s)?;
        return Ok(true);
    }
    let sql = "DELETE FROM samples WHERE at = (SELECT min(at) FROM samples) AND at < (SELECT max(at) FROM samples)";
    Ok(connection.execute(sql, [])? > 0)
}

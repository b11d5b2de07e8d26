//! History over days and years, in virtual time.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Connection;

use super::*;
use crate::model::{Address, Facts, Game, Proof, Server};
use crate::registry::view::View;
use crate::store::sqlite;

/// A full hour, somewhere in 2025, at the start of a chunk of thirty days.
const T: u64 = 30 * DAY_S * 678;

struct TestHistory {
    folder: PathBuf,
    connection: Connection,
    recorder: Recorder,
    settings: Settings,
}

impl TestHistory {
    fn new(name: &str, every_s: u64, bytes_max: u64) -> TestHistory {
        let folder = std::env::temp_dir().join(format!("rallypoint-history-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let connection = sqlite::open(&folder.join(sqlite::FILE)).unwrap();
        connection.pragma_update(None, "synchronous", "OFF").unwrap();
        TestHistory { folder, connection, recorder: Recorder::default(), settings: Settings { every_s, bytes_max } }
    }

    /// Counts at a time, and does all thinning that is due.
    fn count(&mut self, at_s: u64, servers: &[(u16, Option<u16>)]) {
        let now_ms = at_s * 1_000;
        assert!(self.recorder.is_due(now_ms, self.settings));
        self.recorder.turn(&mut self.connection, &view(servers), now_ms, self.settings).unwrap();
        assert!(!self.recorder.is_due(now_ms, self.settings));
        while self.recorder.has_more() {
            self.recorder.turn(&mut self.connection, &view(servers), now_ms, self.settings).unwrap();
        }
    }

    fn reader(&self) -> Reader {
        Reader::new(self.folder.join(sqlite::FILE))
    }

    fn server(&self, port: u16, range: Range, now_s: u64) -> Vec<Point> {
        self.reader().server("tanks", address(port), range, now_s * 1_000).unwrap().unwrap().points
    }

    fn rows(&self, sql: &str) -> i64 {
        self.connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Size of the file and everything beside it.
    fn disk_bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.folder).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }
}

impl Drop for TestHistory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn address(port: u16) -> Address {
    Address::new([192, 0, 2, 1].into(), port).unwrap()
}

fn view(servers: &[(u16, Option<u16>)]) -> View {
    let server = |(port, players_current): &(u16, Option<u16>)| {
        let facts = Facts { players_current: *players_current, ..Facts::default() };
        Arc::new(Server::new(address(*port), Game::Own("tanks"), Proof::Cookie, 0, &facts))
    };
    View::new(1, 0, servers.iter().map(server).collect())
}

#[test]
fn a_day_is_read_as_raw_counts_and_as_means() {
    let mut history = TestHistory::new("day", 60, 1 << 30);
    let minutes = 26 * 60;
    for minute in 0..minutes {
        // One is gone for ten minutes in each hour; the other never reports its players.
        let here = minute % 60 >= 10;
        let servers = [(1, Some((minute / 60) as u16)), (2, None)];
        history.count(T + minute * 60, if here { &servers } else { &servers[1..] });
    }
    let now_s = T + (minutes - 1) * 60;
    let day = history.server(1, Range::Day, now_s);
    assert_eq!(day.len(), 24 * 50 + 1, "every count of 24 hours");
    assert!(day.windows(2).all(|pair| pair[0].at_s < pair[1].at_s));
    assert_eq!(day.last().unwrap(), &Point::new(now_s, Some(250), 100));
    assert_eq!(day[0].players_x10, Some(10));

    let week = history.server(1, Range::Week, now_s);
    assert_eq!(week.len(), 26 * 10, "five minutes each, two of twelve missing in each hour");
    assert_eq!(week[0], Point::new(T + 600, Some(0), 100));
    let year = history.server(1, Range::Year, now_s);
    let hour = |hour: u64| Point::new(T + hour * HOUR_S, Some(hour as u32 * 10), 83);
    assert_eq!(year, (0..26).map(hour).collect::<Vec<_>>(), "50 of 60 minutes each, the last hour as well");
    assert_eq!(history.server(2, Range::Week, now_s)[0].players_x10, None);

    let game = history.reader().game("tanks", Range::Year, now_s * 1_000).unwrap().unwrap().points;
    assert_eq!((game[4].players_x10, game[4].count_x100), (Some(40), 183), "unknown while only the silent one is here");
    let several = [("tanks", address(9)), ("tanks", address(1)), ("chess", address(1)), ("tanks", address(2))];
    let several = history.reader().servers(&several, Range::Week, now_s * 1_000).unwrap();
    let several: Vec<_> = several.into_iter().map(|history| history.map(|history| history.points)).collect();
    assert_eq!(several, [None, Some(week), None, Some(history.server(2, Range::Week, now_s))]);
    assert_eq!(history.reader().server("tanks", address(9), Range::Day, now_s * 1_000).unwrap(), None);
    assert_eq!(history.reader().game("chess", Range::Day, now_s * 1_000).unwrap(), None);
}

#[test]
fn a_game_without_servers_is_counted_as_zero() {
    let mut history = TestHistory::new("empty", 60, 1 << 30);
    history.count(T, &[(1, Some(3))]);
    history.count(T + 60, &[]);
    history.recorder = Recorder::default(); // a restart
    history.count(T + 120, &[]);
    let game = history.reader().game("tanks", Range::Day, (T + 120) * 1_000).unwrap().unwrap().points;
    let counts: Vec<_> = game.iter().map(|point| (point.players_x10, point.count_x100)).collect();
    assert_eq!(counts, [(Some(30), 100), (Some(0), 0), (Some(0), 0)]);
}

#[test]
fn all_games_together_have_a_series() {
    let mut history = TestHistory::new("together", 60, 1 << 30);
    let now_ms = (T + 300) * 1_000;
    assert_eq!(history.reader().game(ALL_GAMES, Range::Day, now_ms).unwrap(), None);
    history.count(T, &[(1, Some(3)), (2, None)]);
    let other = Server::new(address(5), Game::Own("chess"), Proof::Cookie, 0, &Facts::default());
    let mut servers = view(&[(1, Some(4))]).servers.to_vec();
    servers.push(Arc::new(other));
    history.recorder.count(&history.connection, &View::new(2, 0, servers), now_ms, history.settings).unwrap();
    history.recorder = Recorder::default(); // a restart
    history
        .recorder
        .count(&history.connection, &View::new(3, 0, Vec::new()), now_ms + 60_000, history.settings)
        .unwrap();
    let together = history.reader().game(ALL_GAMES, Range::Day, now_ms + 60_000).unwrap().unwrap().points;
    let point = |at_s, players_x10, count_x100| Point::new(at_s, Some(players_x10), count_x100);
    assert_eq!(together, [point(T, 30, 200), point(T + 300, 40, 200), point(T + 360, 0, 0)]);
    assert_eq!(history.rows("SELECT count(*) FROM series WHERE address = ''"), 3);
}

#[test]
fn a_year_is_thinned_and_deleted_in_time() {
    let mut history = TestHistory::new("year", 6 * HOUR_S, 1 << 30);
    history.count(T, &[(7, Some(1))]); // seen once
    let mut now_s = T;
    for quarter in 1..=400 * 4u64 {
        now_s = T + quarter * 6 * HOUR_S;
        history.count(now_s, &[(1, Some((quarter % 40) as u16))]);
    }
    let newest = |sql: &str| (now_s as i64 - history.rows(sql)) / DAY_S as i64;
    assert_eq!(newest("SELECT min(start) FROM history WHERE tier = 0"), 1);
    assert!((30..=31).contains(&newest("SELECT min(start) FROM history WHERE tier = 1")));
    assert!((365..=395).contains(&newest("SELECT min(start) FROM history WHERE tier = 2")));
    let lengths = Range::ALL.map(|range| history.server(1, range, now_s).len());
    assert_eq!(lengths, [5, 29, 121, 365 * 4 + 1]);
    assert_eq!(history.rows("SELECT count(*) FROM samples"), 1, "only the current hour");
    let one = (7, Range::Year);
    assert_eq!(history.reader().server("tanks", address(one.0), one.1, now_s * 1_000).unwrap(), None);
    assert_eq!(history.rows("SELECT count(*) FROM series"), 3, "the server, its game and all games");
    assert!(history.rows("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()") < 256 << 10);
}

#[test]
fn the_files_stay_within_their_limit_and_the_oldest_history_is_deleted_first() {
    let bound = 512 << 10;
    let mut history = TestHistory::new("bound", 3 * HOUR_S, bound);
    // A list that takes most of the limit.
    history.connection.execute_batch("CREATE TABLE list (data); INSERT INTO list VALUES (zeroblob(360000))").unwrap();
    let mut random = 1u32;
    let mut now_s = T;
    for hour in (0..24 * 20u64).step_by(3) {
        now_s = T + hour * HOUR_S;
        // Random player counts, which do not compress well.
        let servers: Vec<_> = (1..=50u16)
            .map(|port| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (port, Some((random >> 20) as u16))
            })
            .collect();
        history.count(now_s, &servers);
        assert!(history.disk_bytes() <= bound, "{} in hour {hour}", history.disk_bytes());
    }
    assert!(history.disk_bytes() > bound * 3 / 4, "and it is used: {}", history.disk_bytes());
    assert!(history.server(1, Range::Day, now_s).len() >= 7, "the newest is there");
    let oldest = history.server(1, Range::Month, now_s)[0].at_s;
    assert!(oldest > T + 2 * DAY_S, "the oldest is not: {} hours of {}", (oldest - T) / HOUR_S, (now_s - T) / HOUR_S);
}

#[test]
fn free_pages_and_the_log_are_freed_before_any_history_is_deleted() {
    let bound = 512 << 10;
    let mut history = TestHistory::new("free", 3 * HOUR_S, bound);
    for hour in [0, 3, 6] {
        history.count(T + hour * HOUR_S, &[(1, Some(2))]);
    }
    history.connection.execute_batch("CREATE TABLE list (data); INSERT INTO list VALUES (zeroblob(2000000))").unwrap();
    history.connection.execute_batch("DROP TABLE list").unwrap();
    assert!(history.disk_bytes() > 3 * bound, "{}", history.disk_bytes());
    history.count(T + 9 * HOUR_S, &[(1, Some(2))]);
    assert!(history.disk_bytes() <= bound, "{}", history.disk_bytes());
    assert_eq!(history.server(1, Range::Day, T + 9 * HOUR_S).len(), 4, "all of it");
    // If everything is too much, the last count stays.
    history.settings.bytes_max = 32 << 10;
    for hour in [12, 15] {
        history.count(T + hour * HOUR_S, &[(1, Some(2))]);
    }
    history.settings.every_s = 60;
    history.count(T + 15 * HOUR_S + 60, &[(1, Some(2))]);
    assert_eq!(history.rows("SELECT count(*) FROM history"), 0);
    assert_eq!(history.rows("SELECT count(DISTINCT at) FROM samples"), 1);
}

#[test]
fn many_free_pages_are_freed_in_one_step() {
    let mut history = TestHistory::new("vacuum", 3 * HOUR_S, 512 << 10);
    history.connection.execute_batch("CREATE TABLE list (data); INSERT INTO list VALUES (zeroblob(4000000))").unwrap();
    history.connection.execute_batch("DROP TABLE list").unwrap();
    let before = history.rows("PRAGMA freelist_count");
    history.recorder.thin(&history.connection, T * 1_000, history.settings).unwrap();
    assert_eq!(before - history.rows("PRAGMA freelist_count"), 512, "a file of a gigabyte is not shrunk page by page");
}

#[test]
fn a_recount_replaces_the_earlier_count_of_the_same_time() {
    let mut history = TestHistory::new("recount", 60, 1 << 30);
    // More series than one row holds, then a restart within the same minute, and most of them are gone.
    let many: Vec<_> = (1..=600u16).map(|port| (port, Some(5))).collect();
    history.count(T, &many);
    let parts = "SELECT count(*) FROM samples";
    assert!(history.rows(parts) >= 3, "{} rows", history.rows(parts));
    history.recorder = Recorder::default();
    history.count(T, &many[..2]);
    assert_eq!(history.rows("SELECT count(*) FROM samples WHERE part = 1"), 0, "no row of the first count");
    assert_eq!(history.server(1, Range::Day, T).len(), 1);
    assert_eq!(history.server(400, Range::Day, T), [], "not listed at the second count");
    history.count(T + HOUR_S, &[]);
    assert_eq!(history.server(400, Range::Week, T + HOUR_S), [], "and not in the tiers");
}

#[test]
fn thinning_the_same_hour_twice_changes_nothing() {
    let mut history = TestHistory::new("twice", 60, 1 << 30);
    for minute in 0..60 {
        history.count(T + minute * 60, &[(1, Some(minute as u16)), (2, Some(4))]);
    }
    let now_ms = (T + HOUR_S) * 1_000;
    // Interrupted between moving the series to the tiers and deleting the samples; then a restart.
    history.recorder.thin(&history.connection, now_ms, history.settings).unwrap();
    assert!(history.recorder.has_more());
    let before = history.server(1, Range::Year, T + HOUR_S);
    history.recorder = Recorder::default();
    history.count(T + HOUR_S, &[]);
    assert_eq!(history.server(1, Range::Year, T + HOUR_S), before);
    assert_eq!(before, [Point { least_x10: Some(0), most_x10: Some(590), ..Point::new(T, Some(295), 100) }]);
}

#[test]
fn range_names_are_parsed_and_others_are_refused() {
    for range in Range::ALL {
        assert_eq!(range.name().parse(), Ok(range));
    }
    assert_eq!("2d".parse::<Range>().unwrap_err(), "must be 24h, 7d, 30d or 1y, not `2d`");
}

/// So many servers of a game, each in a network of its own, from this network on.
fn spread(game: &str, first: u8, count: u8) -> Vec<Arc<Server>> {
    (0..count).map(|number| of_game(game, [first + number, 0, 2, 1], 1)).collect()
}

fn of_game(game: &str, ip: [u8; 4], port: u16) -> Arc<Server> {
    let (address, facts) =
        (Address::new(ip.into(), port).unwrap(), Facts { players_current: Some(1), ..Facts::default() });
    Arc::new(Server::new(address, Game::carried("many", game), Proof::Cookie, 0, &facts))
}

/// Two servers of each of 256 made-up games, all in one /24.
fn made_up() -> Vec<Arc<Server>> {
    let server =
        |number: u16| of_game(&format!("made up {}", number / 2), [100, 64, 7, (number % 200) as u8], number + 1);
    (0..512).map(server).collect()
}

/// Counts these once a minute, and returns how often each of some games is in the history of that time.
fn counts(history: &mut TestHistory, from_s: u64, lists: &[Vec<Arc<Server>>], games: &[&str]) -> Vec<usize> {
    let mut now_s = from_s;
    for list in lists {
        now_s += 60;
        let view = View::new(1, 0, list.clone());
        history.recorder.turn(&mut history.connection, &view, now_s * 1_000, history.settings).unwrap();
    }
    let of = |game: &&str| history.reader().game(game, Range::Day, now_s * 1_000).unwrap();
    let within = |found: History| found.points.iter().filter(|point| point.at_s > from_s).count();
    games.iter().map(|game| of(game).map_or(0, within)).collect()
}

#[test]
fn made_up_games_take_no_place_from_a_real_one_that_was_empty_for_a_moment() {
    let mut history = TestHistory::new("made-up", 60, 1 << 30);
    let (tanks, chess) = (spread("tanks", 10, 3), spread("chess", 20, 1));
    let with = |lists: &[&[Arc<Server>]]| lists.concat();
    let empty_for_a_moment =
        [with(&[&tanks, &chess]), with(&[&chess, &made_up()]), with(&[&tanks, &chess, &made_up()])];
    let games = ["tanks", "chess", "made up 0", "made up 255", "many", ""];
    let counted = counts(&mut history, T, &empty_for_a_moment, &games);
    assert_eq!(counted[..2], [3, 3], "also while it was empty");
    assert_eq!(counted[4..], [0, 3], "all games together");
    // Empty for hours, it is forgotten for one of those, and counted again from its first server on.
    let hours: Vec<_> = (0..100).map(|_| with(&[&chess, &made_up()])).collect();
    counts(&mut history, T + 180, &hours, &games);
    let back = [with(&[&chess, &made_up(), &tanks[..1]]), with(&[&chess, &made_up(), &tanks])];
    assert_eq!(counts(&mut history, T + 6_180, &back, &games)[..2], [2, 2]);
    // One that is new and has a single server in a network of its own, too.
    let new = spread("newest", 40, 1);
    let both = [with(&[&chess, &made_up(), &tanks, &new])];
    assert_eq!(counts(&mut history, T + 6_300, &both, &["newest", "tanks"]), [1, 1]);
    history.recorder = Recorder::default(); // a restart
    assert_eq!(counts(&mut history, T + 6_360, &both, &["newest", "tanks", "chess"]), [1, 1, 1]);
}

#[test]
fn a_game_with_more_servers_in_more_networks_takes_the_place_of_one_with_fewer() {
    let mut history = TestHistory::new("standing", 60, 1 << 30);
    // 256 games with a server each, in two networks of their own each.
    let of = |number: u16, net: u8| of_game(&format!("game {number}"), [net, number as u8, 2, 1], 1);
    let many: Vec<_> = (0..256).flat_map(|number| [of(number, 20), of(number, 30)]).collect();
    let more = [many.clone(), spread("more", 50, 3)].concat();
    let fewer = [many.clone(), spread("fewer", 50, 1)].concat();
    let games = ["more", "fewer", "game 0", "game 255"];
    assert_eq!(counts(&mut history, T, &[many.clone(), fewer], &games), [0, 0, 2, 2]);
    assert_eq!(counts(&mut history, T + 120, &[more], &games)[..2], [1, 0]);
}

#[test]
fn as_many_games_as_there_are_places_are_all_counted() {
    let mut history = TestHistory::new("as-many", 60, 1 << 30);
    let tanks = spread("tanks", 10, 1);
    let all = [&tanks[..], &made_up()[..508]].concat();
    let games = ["tanks", "made up 0", "made up 253", "chess"];
    assert_eq!(counts(&mut history, T, &[all.clone(), made_up()[..508].to_vec(), all], &games), [3, 3, 3, 0]);
}

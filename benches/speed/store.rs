//! The cost of persistence: starting with a long list in the file, writing, and history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint::model::{Address, Facts, Game, Proof, Server as Entry};
use rallypoint::registry::view::View;
use rallypoint::store::history::{Range, Reader, Recorder, Settings};
use rallypoint::store::sqlite;
use rusqlite::Connection;

use crate::load::{self, Content, Texts};
use crate::report::Report;
use crate::support::{Folder, Server, until_within};

const STARTS: usize = 5;
/// Servers that announce themselves.
const PROVEN: u32 = 20_000;
const COUNTED: u16 = 10_000;
const HOURS: u64 = 26;
const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 1440 * MINUTE_MS;

pub fn run() {
    start_with_a_long_list(100_000, 0.3);
    start_with_a_long_list(1_000_000, 1.5);
    writing();
    history();
}

/// Bytes written while servers announce themselves repeatedly, without and with changes.
fn writing() {
    let folder = Folder::new("bench-writing");
    let set = format!("data_dir={}", folder.path().display());
    // A proof is published once per quarter of a life: as often as with twelve times as many servers and the usual life.
    let limits = ["guard.max_servers_per_ip=65535", "guard.exempt=127.0.0.0/8"];
    let server = Server::start(&[&set, "iceball.life=10s", limits[0], limits[1], "history.every=1h"]);
    let master = server.address("iceball.listen");
    println!("{PROVEN} servers, each proven again within 2.5 s:");
    for (what, players) in [("unchanged", 3..4), ("one in ten changed", 4..u16::MAX)] {
        let mut players = players.clone();
        let mut content = Content { texts: Texts::Typical, players: 3, changing: 10 };
        let mut round = || {
            content.players = players.next().unwrap_or(content.players);
            load::drive(master, content, None, load::all(0..PROVEN, 1));
        };
        round();
        round();
        // Wait until the initial list has been written and moved from the log into the file.
        std::thread::sleep(Duration::from_secs(3));
        let (began, written) = (Instant::now(), written(server.id()));
        while began.elapsed() < Duration::from_secs(10) {
            let turn = Instant::now();
            round();
            std::thread::sleep(Duration::from_millis(2_500).saturating_sub(turn.elapsed()));
        }
        let seconds = began.elapsed().as_secs_f64();
        let kib = (self::written(server.id()) - written) as f64 / 1024.0;
        println!("  {what}: {:.0} KiB written per second", kib / seconds);
    }
}

/// Bytes that a process has caused to be written.
fn written(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap().parse().unwrap();
    assert_ne!(bytes, 0, "the temporary folder is not on a disk: set TMPDIR to another one");
    bytes
}

/// Seconds from the start of the program until all servers of its file are listed, after a kill.
fn start_with_a_long_list(listed: u32, target_s: f64) {
    let folder = Folder::new("bench-start");
    let set = format!("data_dir={}", folder.path().display());
    drop(Server::start(&[&set]));
    let connection = Connection::open(folder.path().join(sqlite::FILE)).unwrap();
    // Twenty per address, proven within the last hundred seconds in no particular order.
    let (now, proven) = ("CAST(unixepoch('subsec') * 1000 AS INTEGER)", "i * 7919 % 100000");
    let insert = format!(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {listed} - 1)
         INSERT INTO servers (address, game, protocol, proof, proven_at, first_seen, last_seen, life, name, mode, map,
         version, players, players_max)
         SELECT unhex(format('0a%06x%04x', i / 20, 20000 + i % 20)), 'iceball', 'iceball', 'cookie', {now} - {proven},
         {now} - {proven}, {now} - {proven}, 3600000, 'server number ' || i, 'ctf', 'mesa.vxl', '0.2.1-37', i % 32, 32
         FROM n"
    );
    connection.execute(&insert, []).unwrap();
    drop(connection);
    // Start once to write the table `lives`; then kill it.
    let first = Server::start(&[&set]);
    until_within(Duration::from_secs(60), "its first pass", || {
        let stamps = Connection::open(folder.path().join(sqlite::FILE)).ok()?;
        let parts: u32 = stamps.query_row("SELECT count(*) FROM lives", [], |row| row.get(0)).ok()?;
        (parts >= listed / 1024).then_some(())
    });
    drop(first);
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let server = Server::start(&[&set]);
        let found = server.json("/readyz")["servers"].as_u64().unwrap();
        times.push(began.elapsed().as_secs_f64());
        assert_eq!(found, u64::from(listed));
    }
    Report::new("from the start until all servers of the file are listed", "s", &times)
        .servers(listed)
        .at_most(target_s);
}

fn history() {
    let folder = Folder::new("bench-history");
    let path = folder.path().join(sqlite::FILE);
    let mut connection = sqlite::open(&path).unwrap();
    let (mut recorder, settings) = (Recorder::default(), Settings { every_s: 60, bytes_max: 4 << 30 });
    let mut players = vec![0u16; COUNTED.into()];
    let mut random = 1u32;
    let (mut counting, mut thinning, mut longest): (Duration, Duration, Duration) = Default::default();
    let start_ms = 20_000 * DAY_MS;
    for minute in 0..HOURS * 60 {
        // Half of them are empty; in the others a player joins or leaves every few minutes.
        for players in players.iter_mut().skip(usize::from(COUNTED / 2)) {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *players = match random >> 28 {
                0 => players.saturating_sub(1),
                1 => (*players + 1).min(32),
                _ => *players,
            };
        }
        let now_ms = start_ms + minute * MINUTE_MS;
        let servers = players.iter().zip(1u16..).map(|(players, port)| entry(port, *players)).collect();
        let view = View::new(minute, now_ms, servers);
        let began = Instant::now();
        let transaction = sqlite::begin(&mut connection).unwrap();
        recorder.count(&transaction, &view, now_ms, settings).unwrap();
        transaction.commit().unwrap();
        counting += began.elapsed();
        longest = began.elapsed().max(longest);
        loop {
            let began = Instant::now();
            let transaction = sqlite::begin(&mut connection).unwrap();
            recorder.thin(&transaction, now_ms, settings).unwrap();
            transaction.commit().unwrap();
            thinning += began.elapsed();
            longest = began.elapsed().max(longest);
            if !recorder.has_more() {
                break;
            }
        }
    }
    let share = |time: Duration| 100.0 * time.as_secs_f64() / (HOURS * 3_600) as f64;
    println!("history of {COUNTED} servers, each counted every minute for {HOURS} hours:");
    println!("  counting takes {:.3} % of a core, thinning {:.3} %", share(counting), share(thinning));
    println!("  the longest transaction takes {:.0} ms", longest.as_secs_f64() * 1e3);
    let size = std::fs::metadata(&path).unwrap().len();
    println!("  {:.0} bytes per server in the file", size as f64 / f64::from(COUNTED));
    let reader = Reader::new(path);
    let now_ms = start_ms + (HOURS * 60 - 1) * MINUTE_MS;
    let timed = |what: &str, read: &dyn Fn() -> usize| {
        let began = Instant::now();
        let points = read();
        println!("  {what}: {points} points read in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    };
    let points =
        |history: Option<rallypoint::store::history::History>| history.map_or(0, |history| history.points.len());
    timed("a server's day", &|| points(reader.server("tanks", address(9_000), Range::Day, now_ms).unwrap()));
    timed("its week", &|| points(reader.server("tanks", address(9_000), Range::Week, now_ms).unwrap()));
    timed("the weeks of a page of 100", &|| {
        let servers: Vec<_> = (0..100).map(|at| ("tanks", address(1 + at * 97))).collect();
        reader.servers(&servers, Range::Week, now_ms).unwrap().into_iter().map(points).sum()
    });
}

fn address(port: u16) -> Address {
    Address::new([192, 0, 2, 1].into(), port).unwrap()
}

fn entry(port: u16, players: u16) -> Arc<Entry> {
    let facts = Facts { players_current: Some(players), ..Facts::default() };
    Arc::new(Entry::new(address(port), Game::Own("tanks"), Proof::Cookie, 0, &facts))
}

//! What the store keeps and restores, and files that are damaged or without room.

mod damage;
mod parallel;
mod removed;
mod versions;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};

use super::*;
use crate::model::{
    Address, Announce, Change, Details, Facts, Game, HeartbeatKeys, NamedServer, Now, Overrides, Player, Proof,
    RemoteServer, RemoteState, Server,
};
use crate::moderation::{Statement, Subject, TIME_MS_MAX};
use crate::protocols::game_named;
use crate::registry::Settings;

const SETTINGS: Settings =
    Settings { servers_max: 100, servers_per_ip_max: 2, ask_every_ms: 30_000, misses_max: 3, ..Settings::UNBOUNDED };
const NO_HISTORY: history::Settings = history::Settings { every_s: 60, bytes_max: 0 };
const LIFE_MS: u64 = 120_000;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rallypoint-store-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join(sqlite::FILE)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn open(&self) -> Result<Store, StoreError> {
        Store::open(&self.0, NO_HISTORY)
    }

    /// Runs a hub and a store to their clean end.
    fn run(&self, changes: &[Change<'_>]) {
        let hub = hub();
        let mut store = self.open().unwrap();
        store.start(&hub).unwrap();
        hub.apply(changes, hub.clock.now(), |_, _| {});
        hub.publish(hub.clock.now());
        store.stop();
    }

    /// A hub restored from the file.
    fn restored(&self) -> (Arc<Hub>, Restored) {
        let hub = hub();
        let restored = self.open().unwrap().restore(&hub, |_| false);
        hub.publish(hub.clock.now());
        (hub, restored)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn hub() -> Arc<Hub> {
    Arc::new(Hub::new(SETTINGS))
}

fn now() -> Now {
    hub().clock.now()
}

fn address(port: u16) -> Address {
    Address::new([192, 0, 2, 1].into(), port).unwrap()
}

fn announce(port: u16, age_ms: u64, proof: Proof) -> Change<'static> {
    let player = Player { name: "Bob".into(), team: Some("red".into()), score: Some(-2), ..Player::default() };
    let details = Details { players: vec![player], rules: [("time", "10 \"min\"")].into() };
    Change::Announce(Announce {
        address: address(port),
        game: game_named("tanks").unwrap(),
        proof,
        proven_at_ms: now().unix_ms - age_ms,
        life_ms: LIFE_MS,
        asked: proof == Proof::Query,
        rtt_us: Some(1_234),
        keys: Some(Arc::new(HeartbeatKeys([(b"\xffkey", b"1")].into_iter().collect()))),
        facts: Facts {
            name: "Grüße".into(),
            map: "mesa".into(),
            players_current: Some(3),
            password: Some(false),
            details: Some(Arc::new(details)),
            ..Facts::default()
        },
    })
}

fn later(hub: &Hub, ms: u64) -> Now {
    let now = hub.clock.now();
    Now { mono_ms: now.mono_ms + ms, unix_ms: now.unix_ms + ms }
}

#[test]
fn all_servers_are_restored_with_the_rest_of_their_lives() {
    let folder = Folder::new("back");
    let before = hub();
    let mut store = folder.open().unwrap();
    store.start(&before).unwrap();
    let changes = [announce(1, 0, Proof::Cookie), announce(2, 100_000, Proof::Query)];
    before.apply(&changes, before.clock.now(), |_, _| {});
    before.publish(before.clock.now());
    let listed = before.view().servers.to_vec();
    store.stop();

    let (after, restored) = folder.restored();
    assert_eq!(restored, Restored { listed: 2, ..Restored::default() });
    let mut again: Vec<Arc<Server>> = after.view().servers.to_vec();
    again.sort_by_key(|server| server.address);
    assert_eq!(again, listed);
    // The second has lived for 100 of its 120 seconds.
    after.publish(later(&after, 10_000));
    assert_eq!(after.view().servers.len(), 2);
    after.publish(later(&after, 25_000));
    assert_eq!(after.view().servers.len(), 1);
    after.publish(later(&after, LIFE_MS + 5_000));
    assert!(after.view().servers.is_empty());
}

#[test]
fn restored_player_counts_are_limited_to_what_the_game_allows() {
    let folder = Folder::new("players");
    let before = hub();
    let mut store = folder.open().unwrap();
    store.start(&before).unwrap();
    let Change::Announce(announce) = announce(1, 0, Proof::Cookie) else { unreachable!() };
    let facts = Facts { players_current: Some(65_535), players_max: Some(65_535), ..Facts::default() };
    let change = Change::Announce(Announce { game: Game::Own("iceball"), facts, ..announce });
    before.apply_one(&change, before.clock.now());
    before.publish(before.clock.now());
    store.stop();
    let (after, _) = folder.restored();
    let server = after.listed(address(1)).unwrap();
    assert_eq!((server.players_current, server.players_max), (Some(512), Some(512)));
}

#[test]
fn expired_servers_are_not_restored_and_are_deleted() {
    let folder = Folder::new("ended");
    folder.run(&[announce(1, 0, Proof::Cookie), announce(2, 0, Proof::Cookie)]);
    let rows = || {
        let connection = sqlite::open_to_read(&folder.file()).unwrap();
        connection.query_row("SELECT count(*) FROM servers", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let connection = sqlite::open(&folder.file()).unwrap();
    let set = "UPDATE servers SET last_seen = last_seen - 200000, proven_at = proven_at - 200000 WHERE address = ?1";
    connection.execute(set, [row::address_bytes(address(2))]).unwrap();
    connection.execute("DELETE FROM lives", []).unwrap();
    drop(connection);
    let (_, restored) = folder.restored();
    assert_eq!(restored, Restored { listed: 1, ended: 1, ..Restored::default() });
    assert_eq!(rows(), 2);
    let hub = hub();
    let mut store = folder.open().unwrap();
    store.restore(&hub, |_| false);
    hub.publish(hub.clock.now());
    store.start(&hub).unwrap();
    store.stop();
    assert_eq!(rows(), 1);
}

#[test]
fn restored_servers_are_queried_soon_the_oldest_proof_first() {
    let folder = Folder::new("asked");
    let hub = Arc::new(Hub::new(Settings { servers_per_ip_max: 100, ..SETTINGS }));
    let mut store = folder.open().unwrap();
    store.start(&hub).unwrap();
    let changes: Vec<_> = (1..=50).map(|port| announce(port, u64::from(port) * 1_000, Proof::Query)).collect();
    hub.apply(&changes, hub.clock.now(), |_, _| {});
    let Change::Announce(never_asked) = announce(99, 0, Proof::Cookie) else { unreachable!() };
    hub.apply_one(&Change::Announce(Announce { rtt_us: None, ..never_asked }), hub.clock.now());
    hub.publish(hub.clock.now());
    store.stop();
    // The limit per address (2) is not checked again.
    let (after, restored) = folder.restored();
    assert_eq!(restored.listed, 51);
    let mut order = Vec::new();
    let mut most = 0;
    for ms in (0..=3_500).step_by(250) {
        let mut due = Vec::new();
        after.due(later(&after, ms), 1_000, &mut due);
        most = most.max(due.len());
        order.extend(due.into_iter().map(|target| target.address.port()));
    }
    assert_eq!(order, (1..=50).rev().collect::<Vec<u16>>());
    assert!(most <= 9, "{most} at once");
}

#[test]
fn the_operators_configuration_takes_precedence_over_the_file() {
    let folder = Folder::new("words");
    let overrides = Overrides { official: true, priority: 3, flavor: 4 };
    let named =
        |port, game, asked| NamedServer { address: address(port), game: game_named(game).unwrap(), overrides, asked };
    let hub_with = |servers: &[NamedServer]| {
        let hub = Arc::new(Hub::new(Settings { servers_per_ip_max: 100, ..SETTINGS }));
        hub.apply_one(&Change::NamedServers(servers.into()), hub.clock.now());
        hub
    };
    // A server that is listed only because it is named, and that has just answered.
    let before = hub_with(&[named(5, "tanks", true)]);
    let mut store = folder.open().unwrap();
    store.start(&before).unwrap();
    let facts = Some(Facts { name: "named".into(), ..Facts::default() });
    let answer =
        Change::Answer { address: address(5), game: game_named("tanks").unwrap(), rtt_us: 5, facts, digest: 0 };
    before.apply(
        &[answer, announce(1, 0, Proof::Cookie), announce(2, 0, Proof::Cookie)],
        before.clock.now(),
        |_, _| {},
    );
    before.publish(before.clock.now());
    store.stop();

    let after = hub_with(&[named(5, "tanks", true), named(1, "chess", false), named(2, "tanks", false)]);
    let restored = folder.open().unwrap().restore(&after, |_| false);
    assert_eq!(restored, Restored { listed: 2, refused: 1, ..Restored::default() });
    assert_eq!(after.listed(address(5)).unwrap().texts.name(), "named");
    assert_eq!(after.listed(address(2)).unwrap().overrides, overrides);
    assert!(after.listed(address(1)).is_none(), "another game is configured there");
    // No longer named: not restored.
    assert_eq!(folder.restored().1, Restored { listed: 2, ended: 1, ..Restored::default() });
    let banned = folder.open().unwrap().restore(&hub(), |_| true);
    assert_eq!(banned, Restored { refused: 3, ..Restored::default() });
}

#[test]
fn an_unpublished_extension_of_a_life_is_saved_at_a_clean_stop() {
    let folder = Folder::new("prolonged");
    let hub = hub();
    let mut store = folder.open().unwrap();
    store.start(&hub).unwrap();
    hub.apply_one(&announce(1, 115_000, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    // Proven again within a quarter of a life: nothing to publish.
    hub.apply_one(&announce(1, 90_000, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    assert_eq!(hub.view().serial, 1);
    store.stop();
    let (after, _) = folder.restored();
    after.publish(later(&after, 28_000));
    assert_eq!(after.view().servers.len(), 1, "30 s are left, not 5");
    after.publish(later(&after, 33_000));
    assert!(after.view().servers.is_empty());
}

#[test]
fn an_unpublished_extension_of_a_life_survives_a_kill() {
    let folder = Folder::new("killed");
    let hub = hub();
    let (mut writer, _) = writer(&folder, &hub);
    hub.apply_one(&announce(1, 115_000, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    hub.apply_one(&announce(1, 90_000, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    drop(writer); // without a last write
    let (after, _) = folder.restored();
    after.publish(later(&after, 28_000));
    assert_eq!(after.view().servers.len(), 1, "30 s are left, not 5");
    after.publish(later(&after, 36_000));
    assert!(after.view().servers.is_empty(), "and not much more");
}

#[test]
fn only_one_process_can_open_a_folder() {
    let folder = Folder::new("lock");
    let first = folder.open().unwrap();
    let second = folder.open().err().unwrap().to_string();
    let process = format!("is in use by another rallypoint (process {})", std::process::id());
    assert!(second.starts_with("data_dir: ") && second.contains(&process), "{second}");
    drop(first);
    folder.open().unwrap();
}

#[test]
fn a_damaged_file_is_set_aside_and_a_new_one_is_created() {
    for (number, damage) in ["nonsense", "cut", "overwritten"].into_iter().enumerate() {
        let folder = Folder::new(&format!("damaged-{number}"));
        folder.run(&(1..=2).map(|port| announce(port, 0, Proof::Cookie)).collect::<Vec<_>>());
        let mut file = OpenOptions::new().write(true).open(folder.file()).unwrap();
        match damage {
            "nonsense" => {
                file.set_len(0).unwrap();
                file.write_all(&b"this is no database. ".repeat(1_000)).unwrap();
            }
            "cut" => file.set_len(5_000).unwrap(),
            _ => {
                // All pages but the first.
                let size = file.metadata().unwrap().len();
                file.seek(SeekFrom::Start(4_096)).unwrap();
                file.write_all(&vec![0xa5; size as usize - 4_096]).unwrap();
            }
        }
        drop(file);
        let (_, restored) = folder.restored();
        assert_eq!(restored, Restored::default(), "{damage}");
        let aside = folder.names().into_iter().find(|name| name.starts_with("rallypoint.db.damaged-"));
        assert!(aside.is_some(), "{damage}: {:?}", folder.names());
        folder.run(&[announce(1, 0, Proof::Cookie)]);
        assert_eq!(folder.restored().1.listed, 1, "{damage}");
    }
}

#[test]
fn invalid_rows_are_skipped_and_rewritten() {
    let folder = Folder::new("row");
    folder.run(&[announce(1, 0, Proof::Cookie), announce(2, 0, Proof::Cookie)]);
    let connection = sqlite::open(&folder.file()).unwrap();
    connection
        .execute("UPDATE servers SET details = '{' WHERE address = ?1", [row::address_bytes(address(1))])
        .unwrap();
    connection
        .execute("UPDATE servers SET address = x'00' WHERE address = ?1", [row::address_bytes(address(2))])
        .unwrap();
    drop(connection);
    assert_eq!(folder.restored().1, Restored { unreadable: 2, ..Restored::default() });
    folder.run(&[announce(3, 0, Proof::Cookie)]);
    assert_eq!(folder.restored().1, Restored { listed: 1, ..Restored::default() });
}

fn writer(folder: &Folder, hub: &Arc<Hub>) -> (Writer, Arc<Status>) {
    let status = Arc::<Status>::default();
    let settings = Arc::new(ArcSwap::from_pointee(NO_HISTORY));
    let folder_lock = Arc::new(FolderLock::take(&folder.0).unwrap());
    (Writer::new(hub.clone(), folder_lock, None, status.clone(), settings), status)
}

#[test]
fn a_writer_that_missed_changes_starts_from_the_current_view() {
    let folder = Folder::new("behind");
    let hub = Arc::new(Hub::new(Settings { servers_per_ip_max: 100, ..SETTINGS }));
    let (mut writer, status) = writer(&folder, &hub);
    hub.apply_one(&announce(60, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    // One is removed and one added, followed by more changes than the channel holds for a slow reader.
    hub.apply_one(&Change::Quit { address: address(60), master: false, proven: false }, hub.clock.now());
    hub.apply_one(&announce(50, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    for round in 0..600u64 {
        hub.apply_one(&announce(1 + (round % 2) as u16, 5_000 - round, Proof::Cookie), hub.clock.now());
        hub.apply_one(
            &Change::Quit { address: address(1 + (round % 3) as u16), master: false, proven: false },
            hub.clock.now(),
        );
        hub.publish(hub.clock.now());
    }
    writer.turn(false);
    drop(writer);
    assert_eq!(status.failures.load(Ordering::Relaxed), 0);
    let mut expected: Vec<Address> = hub.view().servers.iter().map(|server| server.address).collect();
    let mut found: Vec<Address> = folder.restored().0.view().servers.iter().map(|server| server.address).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_proof_without_changes_is_saved_without_rewriting_the_row() {
    let folder = Folder::new("proven");
    let hub = hub();
    let (mut writer, _) = writer(&folder, &hub);
    let mut announced = |age_ms| {
        hub.apply_one(&announce(1, age_ms, Proof::Cookie), hub.clock.now());
        hub.publish(hub.clock.now());
        writer.turn(false);
        let connection = sqlite::open_to_read(&folder.file()).unwrap();
        connection.query_row("SELECT proven_at FROM servers", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let first = announced(100_000);
    assert_eq!(announced(10_000), first, "the row has not changed");
    let published = hub.view().servers[0].clone();
    assert!(published.proven_at_ms > first as u64 + 80_000, "it was published");
    // As after a kill: without a last write.
    drop(writer);
    let (restored, _) = folder.restored();
    let server = restored.view().servers[0].clone();
    assert!(server.is_the_same_as(&published));
    assert!(published.proven_at_ms - server.proven_at_ms < 1_000, "to the second");
    let life = |hub: &Hub| {
        let mut lives = Vec::new();
        hub.lives(0, 10, hub.clock.now(), &mut lives);
        lives[0].ends_at_ms
    };
    assert!(life(&restored) >= life(&hub) && life(&restored) < life(&hub) + 3_000, "and so is its end");
}

/// More servers than one pass writes.
const MANY: u16 = 5_000;

fn large_hub() -> Arc<Hub> {
    Arc::new(Hub::new(Settings { servers_max: 10_000, servers_per_ip_max: 10_000, ..SETTINGS }))
}

fn announce_many(hub: &Hub, age_ms: u64) {
    // The oldest proof first: a restart restores them in reverse order, in other slots.
    let aged = |port| announce(port, age_ms + u64::from(MANY - port), Proof::Cookie);
    let changes: Vec<_> = (1..=MANY).map(aged).collect();
    hub.apply(&changes, hub.clock.now(), |_, _| {});
    hub.publish(hub.clock.now());
}

/// Waits for the next millisecond: two turns of a writer never happen at the same moment.
fn next_moment(hub: &Hub) {
    let before_ms = hub.clock.now().unix_ms;
    while hub.clock.now().unix_ms <= before_ms {
        std::thread::yield_now();
    }
}

#[test]
fn the_lives_of_a_long_list_take_several_passes_and_none_is_missing() {
    let folder = Folder::new("turns");
    let hub = large_hub();
    let (mut writer, _) = writer(&folder, &hub);
    announce_many(&hub, 100_000);
    let stamps = || super::lives::read(&sqlite::open_to_read(&folder.file()).unwrap()).unwrap();
    let rows = |which: &str| {
        let connection = sqlite::open_to_read(&folder.file()).unwrap();
        let sql = format!("SELECT count(*) FROM lives WHERE part {which} 0");
        connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    writer.turn(false);
    assert_eq!((stamps().len(), rows(">="), rows("<")), (MANY.into(), 5, 0), "the first pass writes all");
    // All are proven again. The next pass saves that, although it covers only some of the slots.
    let newest_ms = now().unix_ms - 60_000;
    announce_many(&hub, 50_000);
    writer.turn(false);
    assert_eq!((stamps().len(), rows(">="), rows("<")), (MANY.into(), 5, 1));
    assert!(stamps().values().all(|stamps| stamps.proven_at_ms > newest_ms), "none is missing");
    // The current round began earlier; the next one covers everything.
    let mut passes = 0;
    while rows("<") > 0 {
        next_moment(&hub);
        writer.turn(false);
        passes += 1;
    }
    assert_eq!(passes, 5, "two for the rest of this round, three for the next");
    // Proofs during the last pass of a round are not lost either.
    writer.turn(false);
    writer.turn(false);
    let newest_ms = now().unix_ms - 10_000;
    announce_many(&hub, 0);
    next_moment(&hub);
    writer.turn(false);
    assert_eq!(rows("<"), 1);
    assert!(stamps().values().all(|stamps| stamps.proven_at_ms > newest_ms));
}

#[test]
fn a_long_list_survives_several_kills() {
    let folder = Folder::new("twice");
    let hub = large_hub();
    let (mut first, _) = writer(&folder, &hub);
    announce_many(&hub, 100_000);
    first.turn(false);
    // Make the rows look very old: only `lives` shows that the servers are alive.
    announce_many(&hub, 0);
    for _ in 0..10 {
        next_moment(&hub);
        first.turn(false);
    }
    drop(first);
    sqlite::open(&folder.file()).unwrap().execute("UPDATE servers SET last_seen = last_seen - 9999999", []).unwrap();
    for round in 0..3 {
        let hub = large_hub();
        let mut store = folder.open().unwrap();
        assert_eq!(store.restore(&hub, |_| false).listed, usize::from(MANY), "round {round}");
        drop(store);
        hub.publish(hub.clock.now());
        // Killed after its first pass.
        let (mut writer, _) = writer(&folder, &hub);
        writer.turn(false);
    }
}

#[test]
fn servers_that_other_nodes_have_proven_are_saved_too() {
    let folder = Folder::new("foreign");
    let hub = hub();
    let Change::Announce(announce) = announce(1, 0, Proof::Cookie) else { unreachable!() };
    let seen_ms = announce.proven_at_ms;
    let listed = RemoteServer {
        silence: Default::default(),
        announce,
        first_seen_ms: seen_ms,
        last_seen_ms: seen_ms,
        node: 7,
        via: None,
        stronger_gone_ms: None,
    };
    hub.apply_one(&Change::Merge(Box::new(RemoteState::Listed(listed))), hub.clock.now());
    hub.publish(hub.clock.now());
    assert_eq!(hub.view().servers[0].life_ms, LIFE_MS as u32);
    let (mut writer, _) = writer(&folder, &hub);
    writer.turn(false);
    drop(writer);
    assert_eq!(folder.restored().1.listed, 1);
}

#[test]
fn a_full_disk_is_a_warning_and_writing_resumes_when_there_is_room() {
    let folder = Folder::new("room");
    let hub = hub();
    let (mut writer, status) = writer(&folder, &hub);
    writer.turn(false);
    writer.connection().pragma_update(None, "max_page_count", 1).unwrap(); // the file cannot grow
    let details = |port| {
        let Change::Announce(mut announce) = announce(port, 0, Proof::Cookie) else { unreachable!() };
        let long = "x".repeat(30_000);
        announce.facts.details =
            Some(Arc::new(Details { players: Vec::new(), rules: [("a", &*long), ("b", &long)].into() }));
        Change::Announce(announce)
    };
    hub.apply_one(&details(1), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    assert!(status.is_failing());
    assert_eq!(status.failures.load(Ordering::Relaxed), 1);
    assert_eq!(hub.view().servers.len(), 1, "still served");
    assert!(writer.pause() > Duration::from_millis(500));
    // The next connection has room again, and writes what was missed.
    hub.apply_one(&details(2), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(true);
    assert!(!status.is_failing());
    drop(writer);
    assert_eq!(folder.restored().1.listed, 2);
}

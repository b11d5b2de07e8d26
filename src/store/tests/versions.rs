//! Files of other versions and programs, and what later versions added: protocols, the operator's decisions.

use super::*;
use crate::model::{Mirrored, Origin};

#[test]
fn newer_and_foreign_files_are_refused_and_not_changed() {
    let folder = Folder::new("newer");
    folder.run(&[announce(1, 0, Proof::Cookie)]);
    let pragma = |name: &str, value: i64| {
        Connection::open(folder.file()).unwrap().pragma_update(None, name, value).unwrap();
    };
    pragma("user_version", 99);
    let newer = folder.open().err().unwrap().to_string();
    assert!(newer.contains("written by a newer rallypoint (its schema is 99, this one knows up to 5)"), "{newer}");
    pragma("user_version", 5);
    assert_eq!(folder.restored().1.listed, 1);

    std::fs::remove_file(folder.file()).unwrap();
    Connection::open(folder.file()).unwrap().execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    let before = std::fs::read(folder.file()).unwrap();
    let foreign = folder.open().err().unwrap().to_string();
    assert!(foreign.contains("belongs to another program"), "{foreign}");
    assert_eq!(std::fs::read(folder.file()).unwrap(), before);
    assert!(!folder.names().iter().any(|name| name.contains("damaged")));
}

#[test]
fn a_file_of_an_older_version_is_migrated() {
    let folder = Folder::new("older");
    let Change::Announce(other) = announce(2, 0, Proof::Cookie) else { unreachable!() };
    let own = Change::Announce(Announce { game: Game::Own("iceball"), ..other });
    folder.run(&[announce(1, 0, Proof::Cookie), own]);
    let older = Connection::open(folder.file()).unwrap();
    older
        .execute_batch(
            "DROP TABLE moderation; ALTER TABLE servers DROP COLUMN via; ALTER TABLE servers DROP COLUMN protocol;
             DROP TABLE samples; CREATE TABLE samples (at INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        )
        .unwrap();
    older.pragma_update(None, "user_version", 1).unwrap();
    drop(older);
    let (hub, restored) = folder.restored();
    assert_eq!(restored.listed, 2);
    let game = |port| hub.listed(address(port)).unwrap().game.clone();
    assert_eq!((game(1), game(2)), (game_named("tanks").unwrap(), Game::Own("iceball")), "by their names");
    let newer = Connection::open(folder.file()).unwrap();
    newer.prepare("SELECT part FROM samples").unwrap();
    newer.prepare("SELECT protocol FROM servers").unwrap();
    assert_eq!(newer.pragma_query_value(None, "user_version", |row| row.get(0)), Ok(5));
}

#[test]
fn a_file_of_an_older_version_is_restored_where_there_is_no_room_to_migrate_it() {
    let folder = Folder::new("older-without-room");
    folder.run(&[announce(1, 0, Proof::Cookie)]);
    let older = Connection::open(folder.file()).unwrap();
    older
        .execute_batch(
            "DROP TABLE moderation; ALTER TABLE servers DROP COLUMN via; ALTER TABLE servers DROP COLUMN protocol",
        )
        .unwrap();
    older.pragma_update(None, "user_version", 2).unwrap();
    drop(older);
    let (file, hub) = (sqlite::open_without_room(&folder.file()).unwrap(), hub());
    let restored = restore::restore(&file, Vec::new(), &hub, |_| false).unwrap();
    assert_eq!((restored.listed, restored.unreadable), (1, 0));
    assert_eq!(hub.listed(address(1)).unwrap().game, game_named("tanks").unwrap());
}

#[test]
fn the_operators_decisions_are_kept_and_a_file_of_the_version_before_them_has_none() {
    let folder = Folder::new("decisions");
    let ban = |network: &str, ends_at_ms| Statement {
        subject: Subject::network(network).unwrap(),
        at_ms: 5,
        ends_at_ms,
        reason: "it's \"why\"".into(),
        by: "root".into(),
    };
    let run = |act: &dyn Fn(&Board)| {
        let (hub, board) = (hub(), Arc::new(Board::default()));
        let mut store = folder.open().unwrap();
        store.keep_board(board.clone());
        act(&board);
        store.start(&hub).unwrap();
        store.stop();
        board.statements()
    };
    run(&|board| {
        board.add(ban("192.0.2.0/24", Some(9)), 5).unwrap();
        board.add(ban("2001:db8::/32", None), 5).unwrap();
        let hide = Statement { subject: Subject::name("*x*").unwrap(), ..ban("192.0.2.1", None) };
        board.add(hide, 5).unwrap();
    });
    let kept = run(&|_| {});
    assert_eq!(kept.all().count(), 3);
    assert_eq!(kept.get(&Subject::network("192.0.2.0/24").unwrap()), Some(&ban("192.0.2.0/24", Some(9))));
    // What changed is changed in the file.
    run(&|board| drop(board.add(ban("2001:db8::/32", Some(6)), 6).unwrap()));
    let kept = run(&|_| {});
    assert_eq!(kept.all().count(), 3);
    assert!(kept.live(9).all(|statement| statement.subject.kind() == "hide"));
    // The version before.
    let older = Connection::open(folder.file()).unwrap();
    older.execute_batch("DROP TABLE moderation; ALTER TABLE servers DROP COLUMN via").unwrap();
    older.pragma_update(None, "user_version", 3).unwrap();
    drop(older);
    assert_eq!(moderation::read(&sqlite::open_without_room(&folder.file()).unwrap()), Ok(Default::default()));
    assert_eq!(run(&|board| drop(board.add(ban("192.0.2.1", None), 5).unwrap())).all().count(), 1);
    assert_eq!(run(&|_| {}).all().count(), 1);
}

#[test]
fn decisions_that_could_not_be_read_are_not_deleted() {
    let folder = Folder::new("unread-decisions");
    let ban = |network: &str| Statement {
        subject: Subject::network(network).unwrap(),
        at_ms: 5,
        ends_at_ms: None,
        reason: "".into(),
        by: "root".into(),
    };
    // `is_read`: whether the file can be read at the start.
    let run = |is_read: bool, bans: &[&str]| {
        let (hub, board) = (hub(), Arc::new(Board::default()));
        let mut store = folder.open().unwrap();
        if is_read {
            store.keep_board(board.clone());
        } else {
            store.board = board.clone();
        }
        bans.iter().for_each(|network| drop(board.add(ban(network), 5).unwrap()));
        store.writer(&hub).turn(false);
        board.statements().all().map(|statement| statement.subject.text()).collect::<Vec<_>>()
    };
    run(true, &["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]);
    assert_eq!(run(false, &["192.0.2.9"]).len(), 5, "the writer has read the rest before it wrote");
    assert_eq!(run(true, &[]).len(), 5);
    // Cells that are not what they must be, and a time that cannot be true.
    let file = Connection::open(folder.file()).unwrap();
    let spoil = "UPDATE moderation SET at = 'x' WHERE subject = '192.0.2.2';
                 UPDATE moderation SET reason = x'ff' WHERE subject = '192.0.2.3';
                 INSERT INTO moderation VALUES (x'ff', x'ff', 5, NULL, '', '');";
    file.execute_batch(spoil).unwrap();
    file.execute("UPDATE moderation SET at = ?1 WHERE subject = '192.0.2.4'", [TIME_MS_MAX as i64 + 1]).unwrap();
    drop(file);
    for is_read in [true, false] {
        assert_eq!(run(is_read, &["192.0.2.8"]), ["192.0.2.1", "192.0.2.8", "192.0.2.9"]);
    }
    let rows = || -> i64 {
        let file = Connection::open(folder.file()).unwrap();
        file.query_row("SELECT count(*) FROM moderation", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(rows(), 7, "what cannot be read stays");
    run(true, &["192.0.2.2", "192.0.2.3", "192.0.2.4"]);
    assert_eq!((run(true, &[]).len(), rows()), (6, 7), "what is said again can be read again");
}

/// What the file says of the protocol counts, and a row of a protocol that is not known here is left out.
#[test]
fn a_server_keeps_its_protocol() {
    let folder = Folder::new("protocol");
    folder.run(&[announce(1, 0, Proof::Cookie), announce(2, 0, Proof::Cookie)]);
    let file = Connection::open(folder.file()).unwrap();
    let protocols: Vec<(String, String)> = file
        .prepare("SELECT protocol, game FROM servers")
        .and_then(|mut select| select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .unwrap();
    let tanks = game_named("tanks").unwrap();
    assert!(protocols.iter().all(|found| *found == (tanks.protocol().into(), "tanks".into())), "{protocols:?}");
    file.execute("UPDATE servers SET protocol = 'later' WHERE address = ?1", [row::address_bytes(address(2))]).unwrap();
    drop(file);
    let (hub, restored) = folder.restored();
    assert_eq!((restored.listed, restored.unreadable), (1, 1));
    assert_eq!(hub.listed(address(1)).unwrap().game, tanks);
}

#[test]
fn a_server_keeps_the_master_that_named_it_and_a_file_of_the_version_before_names_none() {
    let folder = Folder::new("via");
    let Change::Announce(Announce { address: other, game, facts, .. }) = announce(2, 0, Proof::Query) else {
        unreachable!()
    };
    let via = Arc::new(Origin::new("netpanzer://old.example"));
    let mirror = Change::Mirror(Box::new(Mirrored { address: other, game, via: via.clone(), rtt_us: 5, facts }));
    folder.run(&[announce(1, 0, Proof::Cookie), mirror]);
    let vias = || {
        let hub = folder.restored().0;
        [address(1), other].map(|address| hub.listed(address).unwrap().via.clone())
    };
    assert_eq!(vias(), [None, Some(via)]);
    let older = Connection::open(folder.file()).unwrap();
    older.execute_batch("ALTER TABLE servers DROP COLUMN via").unwrap();
    older.pragma_update(None, "user_version", 4).unwrap();
    drop(older);
    assert_eq!(vias(), [None, None]);
}

//! Damage that SQLite does not notice when it opens a file.

use std::os::unix::fs::MetadataExt;

use super::*;

fn aside(folder: &Folder) -> usize {
    folder.names().iter().filter(|name| name.starts_with("rallypoint.db.damaged-") && !name.contains("db-")).count()
}

/// Starts with this file, and checks that it can be written afterwards. Returns the number of restored servers, or why the
/// start was refused.
fn started(folder: &Folder, what: &str) -> Result<usize, StoreError> {
    let hub = hub();
    let mut store = folder.open()?;
    let listed = store.restore(&hub, |_| false).listed;
    drop(store);
    hub.apply_one(&announce(7, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    let (mut writer, status) = writer(folder, &hub);
    writer.turn(true);
    if status.is_failing() {
        writer.turn(true); // damage found while writing is repaired by the next attempt
    }
    assert!(!status.is_failing(), "{what}: cannot be written");
    drop(writer);
    let kept = sqlite::open_to_read(&folder.file()).unwrap();
    let kept = kept.query_row("SELECT count(*) FROM servers", [], |row| row.get::<_, u32>(0)).unwrap();
    assert_eq!(kept as usize, listed + 1, "{what}");
    Ok(listed)
}

#[test]
fn any_flipped_byte_of_the_header_is_harmless_refused_or_set_aside() {
    let folder = Folder::new("header");
    folder.run(&[announce(1, 0, Proof::Cookie)]);
    let whole = std::fs::read(folder.file()).unwrap();
    let mut set_aside = Vec::new();
    let all = (0..100).map(|place| (place, 0x02));
    // 63: the version before any table.
    let others = [18, 19, 31, 35, 47, 55, 59, 67].map(|place| (place, 0xff)).into_iter().chain([(63, 0x04)]);
    for (place, flip) in all.chain(others) {
        let what = format!("byte {place} ^ {flip}");
        let folder = Folder::new("header-flipped");
        std::fs::create_dir_all(&folder.0).unwrap();
        let mut bytes = whole.clone();
        bytes[place] ^= flip;
        std::fs::write(folder.file(), bytes).unwrap();
        match started(&folder, &what) {
            Ok(listed) => {
                // Either everything was restored, or the file was set aside.
                assert_eq!((listed, aside(&folder)), if listed == 1 { (1, 0) } else { (0, 1) }, "{what}");
                set_aside.extend((listed == 0).then_some(place));
            }
            Err(refused) => {
                let refused = refused.to_string();
                // This may really be a file of a later version, so the operator has to decide.
                let is_newer = (60..64).contains(&place) && refused.contains("written by a newer rallypoint");
                assert!(is_newer && aside(&folder) == 0, "{what}: {refused}");
            }
        }
    }
    // Among them: write format, schema format, text encoding, user version, application id.
    for place in [0, 16, 18, 19, 47, 59, 63, 68, 69, 70, 71] {
        assert!(set_aside.contains(&place), "byte {place} is damage: {set_aside:?}");
    }
}

#[test]
fn a_missing_table_is_damage_at_startup_and_while_running() {
    for table in ["servers", "lives", "meta", "series", "samples", "history", "moderation"] {
        let folder = Folder::new(&format!("missing-{table}"));
        folder.run(&[announce(1, 0, Proof::Cookie)]);
        let drop_table = || {
            Connection::open(folder.file()).unwrap().execute_batch(&format!("DROP TABLE {table}")).unwrap();
        };
        drop_table();
        assert_eq!(started(&folder, table).unwrap(), 0);
        assert_eq!(aside(&folder), 1, "{table}: {:?}", folder.names());
    }
    let folder = Folder::new("missing-later");
    let hub = hub();
    let (mut writer, status) = writer(&folder, &hub);
    writer.turn(false);
    Connection::open(folder.file()).unwrap().execute_batch("DROP TABLE servers").unwrap();
    hub.apply_one(&announce(1, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    assert!(status.is_failing());
    writer.turn(false);
    assert!(!status.is_failing());
    drop(writer);
    assert_eq!((folder.restored().1.listed, aside(&folder)), (1, 1));
}

#[test]
fn an_invalid_page_in_the_middle_is_damage() {
    let folder = Folder::new("page");
    folder.run(&[announce(1, 0, Proof::Cookie)]);
    let pages = std::fs::metadata(folder.file()).unwrap().len() / 4_096;
    let whole = std::fs::read(folder.file()).unwrap();
    for page in 2..pages as usize {
        let mut bytes = whole.clone();
        bytes[page * 4_096..][..64].fill(0xa5);
        std::fs::write(folder.file(), bytes).unwrap();
        let before = aside(&folder);
        assert_eq!(started(&folder, &format!("page {page}")).unwrap(), 0);
        assert_eq!(aside(&folder), before + 1, "page {page}");
    }
}

#[test]
fn opening_the_file_keeps_the_locks_of_its_readers() {
    let folder = Folder::new("locks");
    folder.run(&[announce(1, 0, Proof::Cookie)]);
    let inode = std::fs::metadata(folder.file()).unwrap().ino();
    let is_locked = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains(" POSIX ") && lock.contains(&format!(":{inode} ")))
    };
    let reader = sqlite::open_to_read(&folder.file()).unwrap();
    reader.query_row("SELECT count(*) FROM servers", [], |_| Ok(())).unwrap();
    assert!(is_locked());
    let writer = sqlite::open(&folder.file()).unwrap();
    assert!(is_locked(), "without the lock, another process would think that it is the last one and remove the log");
    drop((reader, writer));
}

/// Existing files are compared with the text of the schema, including its comments. Adding a migration is fine; changing an
/// existing one would set aside every file as damaged.
#[test]
fn the_schema_of_existing_files_does_not_change() {
    let folder = Folder::new("schema");
    folder.run(&[]);
    let connection = sqlite::open_to_read(&folder.file()).unwrap();
    let mut select = connection.prepare("SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY name").unwrap();
    let all: Vec<String> = select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut hasher = siphasher::sip::SipHasher13::new();
    std::hash::Hasher::write(&mut hasher, all.join("\n").as_bytes());
    assert_eq!(std::hash::Hasher::finish(&hasher), 16_700_655_967_069_655_263, "{all:#?}");
}

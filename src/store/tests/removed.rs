//! The file, its lock and its folder are removed or replaced while in use.

use super::*;

/// A writer with one server in its file.
fn writing(folder: &Folder) -> (Arc<Hub>, Writer, Arc<Status>) {
    let hub = hub();
    let (mut writer, status) = writer(folder, &hub);
    hub.apply_one(&announce(1, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    assert_eq!(rows(folder), Some(1));
    (hub, writer, status)
}

/// Servers in the file at its path.
fn rows(folder: &Folder) -> Option<i64> {
    let connection = sqlite::open_to_read(&folder.file()).ok()?;
    connection.query_row("SELECT count(*) FROM servers", [], |row| row.get(0)).ok()
}

fn lost(status: &Status) -> u64 {
    status.files_lost.load(Ordering::Relaxed)
}

#[test]
fn a_removed_file_is_created_again() {
    let folder = Folder::new("removed-file");
    let (hub, mut writer, status) = writing(&folder);
    for name in folder.names().iter().filter(|name| name.starts_with(sqlite::FILE)) {
        std::fs::remove_file(folder.0.join(name)).unwrap();
    }
    // Even with nothing new to write.
    writer.turn(false);
    assert_eq!((rows(&folder), lost(&status), status.is_failing()), (Some(1), 1, false));
    hub.apply_one(&announce(2, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    assert_eq!((rows(&folder), lost(&status)), (Some(2), 1), "counted once, then written as usual");
    drop(writer);
    assert_eq!(folder.restored().1.listed, 2);
}

#[test]
fn a_removed_folder_is_created_and_locked_again() {
    let folder = Folder::new("removed-folder");
    let (_hub, mut writer, status) = writing(&folder);
    std::fs::remove_dir_all(&folder.0).unwrap();
    writer.turn(false);
    assert_eq!((rows(&folder), lost(&status), status.is_failing()), (Some(1), 1, false));
    let second = folder.open().err().unwrap().to_string();
    assert!(second.contains("is in use by another rallypoint (process "), "{second}");
    drop(writer);
    assert_eq!(folder.restored().1.listed, 1);
}

#[test]
fn a_removed_lock_file_is_created_and_locked_again() {
    let folder = Folder::new("removed-lock");
    let (_hub, mut writer, status) = writing(&folder);
    std::fs::remove_file(folder.0.join("rallypoint.lock")).unwrap();
    writer.turn(false);
    assert!(folder.open().is_err(), "no other process can lock it");
    assert_eq!((rows(&folder), lost(&status), status.is_failing()), (Some(1), 0, false));
}

#[test]
fn a_folder_that_another_process_has_locked_meanwhile_is_left_to_it() {
    let folder = Folder::new("removed-taken");
    let (_hub, mut writer, status) = writing(&folder);
    std::fs::remove_dir_all(&folder.0).unwrap();
    let other = folder.open().unwrap();
    assert_eq!(rows(&folder), Some(0), "its file");
    writer.turn(false);
    writer.turn(false);
    assert_eq!((rows(&folder), status.is_failing()), (Some(0), true), "not one row of ours");
    drop(other);
    writer.turn(false);
    assert_eq!((rows(&folder), status.is_failing()), (Some(1), false), "locked by us again");
    assert!(folder.open().is_err());
}

#[test]
fn a_file_that_replaces_ours_is_used() {
    let folder = Folder::new("replaced");
    let (_hub, mut writer, status) = writing(&folder);
    let copy = folder.0.join("copy.db");
    sqlite::copy(&folder.file(), &copy).unwrap();
    Connection::open(&copy).unwrap().execute_batch("CREATE TABLE mark (a); DELETE FROM servers").unwrap();
    std::fs::rename(&copy, folder.file()).unwrap();
    for part in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(folder.0.join(format!("{}{part}", sqlite::FILE)));
    }
    writer.turn(false);
    assert_eq!((rows(&folder), lost(&status), status.is_failing()), (Some(1), 1, false));
    sqlite::open_to_read(&folder.file()).unwrap().prepare("SELECT * FROM mark").unwrap();
}

#[test]
fn nothing_is_lost_when_the_log_is_removed() {
    let folder = Folder::new("removed-log");
    let (hub, mut writer, status) = writing(&folder);
    std::fs::remove_file(sqlite::log_of(&folder.file())).unwrap();
    hub.apply_one(&announce(2, 0, Proof::Cookie), hub.clock.now());
    hub.publish(hub.clock.now());
    writer.turn(false);
    drop(writer);
    assert_eq!((folder.restored().1.listed, lost(&status), status.is_failing()), (2, 0, false));
    assert!(!folder.names().iter().any(|name| name.contains("damaged")), "{:?}", folder.names());
}

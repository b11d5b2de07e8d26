//! The SQLite file: its schema and migrations, how it is opened, and what happens if it is damaged or too new.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Transaction, TransactionBehavior};
use tracing::warn;

use super::folder::FILE_MODE;

/// The file's name in `data_dir`.
pub const FILE: &str = "rallypoint.db";
/// "Rall": distinguishes our files from those of other programs.
const APPLICATION_ID: i32 = 0x5261_6c6c;
/// How long to wait if another process, e.g. a database tool, has locked the file.
const BUSY: Duration = Duration::from_secs(5);
/// The write-ahead log is truncated to this size after a burst.
pub const LOG_BYTES_MAX: u64 = 32 << 20;
/// Pages in the log before a checkpoint; SQLite's default.
const LOG_PAGES: u64 = 1_000;
/// Files up to this size are checked completely when they are opened, which takes some tenths of a second. In larger ones,
/// damage is noticed when the damaged page is read.
const CHECKED_BYTES_MAX: u64 = 64 << 20;

/// The migrations: a file of version n has had the first n. Never change an existing one, comments included: the text is
/// compared with existing files.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE servers (
        address BLOB PRIMARY KEY,    -- the IP address's bytes, then the port
        game TEXT NOT NULL,
        proof TEXT NOT NULL,
        proven_at INTEGER NOT NULL,  -- all times of servers: milliseconds since 1970
        first_seen INTEGER NOT NULL,
        last_seen INTEGER NOT NULL,
        life INTEGER NOT NULL,       -- counts from last_seen
        rtt_us INTEGER,
        name TEXT NOT NULL, mode TEXT NOT NULL, map TEXT NOT NULL, version TEXT NOT NULL,
        players INTEGER, players_max INTEGER, password INTEGER,
        details TEXT, keys BLOB
    ) WITHOUT ROWID;
    -- Ends of lives that were prolonged without anything new to say; many to a row.
    CREATE TABLE lives (part INTEGER PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    -- Whose history: a server's, or with no address that of a whole game.
    CREATE TABLE series (
        id INTEGER PRIMARY KEY, game TEXT NOT NULL, address TEXT NOT NULL,
        last INTEGER NOT NULL,       -- all times of history: seconds since 1970
        UNIQUE (game, address)
    );
    -- What was counted since the last full hour, one row for all series.
    CREATE TABLE samples (at INTEGER PRIMARY KEY, data BLOB NOT NULL);
    -- Full hours, in three tiers: as counted, means of 5 minutes, means of an hour.
    CREATE TABLE history (
        tier INTEGER NOT NULL, start INTEGER NOT NULL, series INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (tier, start, series)
    ) WITHOUT ROWID;
",
    "
    -- What was counted since the last full hour, in parts of so many series: one server's is read without the others'.
    DROP TABLE samples;
    -- And the stamps of servers have another form.
    DELETE FROM lives;
    DELETE FROM meta;
    CREATE TABLE samples (
        at INTEGER NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (at, part)
    ) WITHOUT ROWID;
",
    "
    -- One protocol carries many games. NULL in rows from before: the protocol follows from the game's name.
    ALTER TABLE servers ADD COLUMN protocol TEXT;
",
    "
    -- What the operator decided while the program ran: the newest statement about each subject, ended ones included.
    CREATE TABLE moderation (
        kind TEXT NOT NULL,          -- ban, unlist or hide
        subject TEXT NOT NULL,       -- the network, the address, the pattern
        at INTEGER NOT NULL,         -- milliseconds since 1970, by the clock that the nodes share
        ends INTEGER,                -- NULL: until another statement
        reason TEXT NOT NULL, author TEXT NOT NULL,
        PRIMARY KEY (kind, subject)
    ) WITHOUT ROWID;
",
    "
    -- The master whose list named a server. NULL: it announced itself.
    ALTER TABLE servers ADD COLUMN via TEXT;
",
];

/// Why the file could not be opened or written.
#[derive(Debug)]
pub enum Fault {
    /// The operator has to decide; the text says what.
    Refused(String),
    /// The file is damaged in a way that SQLite does not report; the text says how.
    Damaged(String),
    /// May work later, unless [`is_damage`].
    Failed(rusqlite::Error),
}

impl Fault {
    /// Whether the file itself is damaged, so that retrying does not help.
    pub fn is_damage(&self) -> bool {
        match self {
            Fault::Refused(_) => false,
            Fault::Damaged(_) => true,
            Fault::Failed(error) => is_damage(error),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Refused(reason) | Fault::Damaged(reason) => f.write_str(reason),
            Fault::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Failed(error)
    }
}

pub fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Opens the file for writing; creates or migrates it if needed. A damaged file is set aside and a new one created.
pub fn open(path: &Path) -> Result<Connection, Fault> {
    match try_open(path) {
        Err(fault) if fault.is_damage() => {
            warn!("{}: {fault}", path.display());
            set_aside(path);
            try_open(path)
        }
        result => result,
    }
}

fn try_open(path: &Path) -> Result<Connection, Fault> {
    // SQLite would make it for everybody to read. The log and the index get its mode. What fails here, SQLite explains.
    let _ = File::options().write(true).create_new(true).mode(FILE_MODE).open(path);
    let mut connection = Connection::open(path).map_err(|error| cannot_open(path, error))?;
    connection.busy_timeout(BUSY)?;
    let is_new = is_empty(&connection).map_err(misread)?;
    if connection.is_readonly(MAIN_DB)? {
        check_header(path)?;
    }
    if is_new {
        // Allows freeing pages later. Only possible while the file is empty.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    } else {
        check(path, &connection)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    limit_log(&connection, LOG_BYTES_MAX)?;
    migrate(&mut connection).map_err(misread)?;
    if !is_new {
        check_schema(&connection)?;
        check_pages(path, &connection)?;
    }
    Ok(connection)
}

/// Our SQL is valid, so if SQLite rejects it, the file is damaged.
fn misread(error: rusqlite::Error) -> Fault {
    let is_rejected =
        matches!(error, rusqlite::Error::SqlInputError { .. }) || error.sqlite_error_code() == Some(ErrorCode::Unknown);
    if is_rejected { Fault::Damaged(error.to_string()) } else { Fault::Failed(error) }
}

/// A header that requires a later SQLite silently makes the file read-only. Call this only for a read-only file: closing the
/// file here releases all locks of this process on it, including those of SQLite's connections.
fn check_header(path: &Path) -> Result<(), Fault> {
    let mut header = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match (read, header) {
        (Ok(()), [.., 1 | 2, 1 | 2]) => Ok(()),
        (Ok(()), _) => Err(Fault::Damaged("its header names an unknown file format".into())),
        (Err(_), _) => Ok(()), // new, or SQLite reports a better error
    }
}

/// Checks that every table and index exists as it was created. Additions by the operator are no damage.
fn check_schema(connection: &Connection) -> Result<(), Fault> {
    let expected = Connection::open_in_memory()?;
    MIGRATIONS.iter().try_for_each(|step| expected.execute_batch(step))?;
    let objects = |connection: &Connection| -> rusqlite::Result<HashSet<(String, Option<String>)>> {
        let mut select = connection.prepare("SELECT name, sql FROM sqlite_schema")?;
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let found = objects(connection).map_err(misread)?;
    let mut missing: Vec<String> = objects(&expected)?.difference(&found).map(|(name, _)| name.clone()).collect();
    missing.sort();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::Damaged(format!("missing or changed in its schema: {}", missing.join(", "))))
}

/// Checks all pages, unless the file is too large for that.
fn check_pages(path: &Path, connection: &Connection) -> Result<(), Fault> {
    if disk_bytes(path) > CHECKED_BYTES_MAX {
        return Ok(());
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(misread)?;
    if found == "ok" { Ok(()) } else { Err(Fault::Damaged(found)) }
}

/// Limits the size of the log. Only a single large transaction may exceed it.
pub fn limit_log(connection: &Connection, bytes_max: u64) -> rusqlite::Result<()> {
    let page_bytes: u64 = connection.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0))?.max(1) as u64;
    connection.pragma_update(None, "journal_size_limit", bytes_max.min(LOG_BYTES_MAX) as i64)?;
    let pages = (bytes_max / 2 / page_bytes).clamp(1, LOG_PAGES);
    connection.pragma_update(None, "wal_autocheckpoint", pages as i64)
}

/// Moves the whole log into the file and truncates it. Does nothing while a reader uses the log.
pub fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    let emptied = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    connection.busy_timeout(BUSY)?;
    emptied
}

/// The write-ahead log of a file.
pub fn log_of(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}

/// The index of that log.
pub fn index_of(path: &Path) -> PathBuf {
    with_suffix(path, "-shm")
}

/// Size of a file on disk, including its log and index.
pub fn disk_bytes(path: &Path) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path) + size(&log_of(path)) + size(&index_of(path))
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

/// Checks that the file is ours and of a known version.
fn check(path: &Path, connection: &Connection) -> Result<(), Fault> {
    let shown = path.display();
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if id != APPLICATION_ID && check_schema(connection).is_ok() {
        // No other program has all of our tables.
        return Err(Fault::Damaged("its header has a wrong application id".into()));
    }
    if id != APPLICATION_ID {
        return Err(Fault::Refused(format!(
            "data_dir: {shown} belongs to another program: choose another folder, or move the file away"
        )));
    }
    let version = version(connection)?;
    if version > MIGRATIONS.len() {
        return Err(Fault::Refused(format!(
            "data_dir: {shown} was written by a newer rallypoint (its schema is {version}, this one knows up to {}): run \
             that one, or move the file away to start with an empty one",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

pub fn version(connection: &Connection) -> rusqlite::Result<usize> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

/// All migrations in one transaction: an interrupted start leaves the file unchanged.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let done = version(connection)?;
    if done >= MIGRATIONS.len() {
        return Ok(());
    }
    let transaction = begin(connection)?;
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    transaction.commit()
}

/// Begins a write transaction.
pub fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn cannot_open(path: &Path, error: rusqlite::Error) -> Fault {
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            Fault::Refused(format!("data_dir: cannot open {}: {error}", path.display()))
        }
        _ => Fault::Failed(error),
    }
}

/// Renames the file, its log and its index, so that the operator can examine them.
pub fn set_aside(path: &Path) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let aside = with_suffix(path, &format!(".damaged-{}", now.as_millis()));
    for part in ["-wal", "-shm"] {
        let _ = std::fs::rename(with_suffix(path, part), with_suffix(&aside, part)); // if there is one
    }
    match std::fs::rename(path, &aside) {
        Ok(()) => warn!("the damaged file is now {}; creating a new one", aside.display()),
        Err(error) => warn!("cannot rename the damaged file to {}: {error}", aside.display()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

/// A read-only connection, for use beside the writer's.
pub fn open_to_read(path: &Path) -> rusqlite::Result<Connection> {
    // Without SQLite's own lock around every call: the compiler sees that only one thread uses a connection.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

/// Opens the file for reading on a disk that has no room for its log and index. No other process may have it open, and it
/// should be closed soon.
pub fn open_without_room(path: &Path) -> Result<Connection, Fault> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // Keeps the index in memory instead of in a shared file.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    check(path, &connection)?;
    Ok(connection)
}

/// Copies the file consistently, while others may write to it. The copy must not exist yet.
pub fn copy(path: &Path, to: &Path) -> Result<(), Fault> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY)?;
    check(path, &connection)?;
    let not_text = || Fault::Refused(format!("{}: SQLite needs a path in UTF-8", to.display()));
    connection.execute("VACUUM INTO ?1", [to.to_str().ok_or_else(not_text)?])?;
    Ok(())
}

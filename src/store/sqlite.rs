//! The file: its schema with a version, how it is opened, and what is done about one that is damaged or too new.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Transaction, TransactionBehavior};
use tracing::warn;

/// The file's name in `data_dir`.
pub const FILE: &str = "rallypoint.db";
/// "Rall": tells our files from those of other programs.
const APPLICATION_ID: i32 = 0x5261_6c6c;
/// How long to wait for another process that has the file locked, e.g. for a person with a database tool.
const BUSY: Duration = Duration::from_secs(5);
/// What is left of the write-ahead log after a burst.
pub const LOG_BYTES_MAX: u64 = 32 << 20;
/// Pages in the log before they go into the file; SQLite's own default.
const LOG_PAGES: u64 = 1_000;
/// Files up to this size are read whole when they are opened: some tenths of a second. In larger ones damage is noticed
/// when it is met.
const CHECKED_BYTES_MAX: u64 = 64 << 20;

/// The schema, step by step: a file of version n has had the first n steps. Only ever add steps.
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
];

/// Why there is no connection.
#[derive(Debug)]
pub enum Fault {
    /// A person has to decide; the text says what.
    Refused(String),
    /// The file is broken in a way that SQLite does not mind; the text says how.
    Damaged(String),
    /// It may work later, unless this is damage.
    Failed(rusqlite::Error),
}

impl Fault {
    /// Whether the file itself is broken, and will be tomorrow.
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

/// Opens the file for writing, made or migrated where needed. A damaged one is set aside, and a new one made.
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
    let mut connection = Connection::open(path).map_err(|error| cannot_open(path, error))?;
    connection.busy_timeout(BUSY)?;
    let is_new = is_empty(&connection).map_err(misread)?;
    if connection.is_readonly(MAIN_DB)? {
        check_header(path)?;
    }
    if is_new {
        // Only possible before there is anything in the file: free pages can be given back to the system.
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

/// Our SQL is right: where SQLite does not understand it, the file is not what it was.
fn misread(error: rusqlite::Error) -> Fault {
    let is_not_understood =
        matches!(error, rusqlite::Error::SqlInputError { .. }) || error.sqlite_error_code() == Some(ErrorCode::Unknown);
    if is_not_understood { Fault::Damaged(error.to_string()) } else { Fault::Failed(error) }
}

/// A header that asks for a later SQLite makes the file read-only, without a word. Only for a file that is: closing it
/// here gives up the locks that this process has on it, those of SQLite's connections too.
fn check_header(path: &Path) -> Result<(), Fault> {
    let mut header = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match (read, header) {
        (Ok(()), [.., 1 | 2, 1 | 2]) => Ok(()),
        (Ok(()), _) => Err(Fault::Damaged("its header names a file format that there is not".into())),
        (Err(_), _) => Ok(()), // new, or SQLite has more to say about it
    }
}

/// Whether every table and index is there as it was made. What a person has added is no damage.
fn check_schema(connection: &Connection) -> Result<(), Fault> {
    let made = Connection::open_in_memory()?;
    MIGRATIONS.iter().try_for_each(|step| made.execute_batch(step))?;
    let objects = |connection: &Connection| -> rusqlite::Result<HashSet<(String, Option<String>)>> {
        let mut select = connection.prepare("SELECT name, sql FROM sqlite_schema")?;
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let found = objects(connection).map_err(misread)?;
    let mut missing: Vec<String> = objects(&made)?.difference(&found).map(|(name, _)| name.clone()).collect();
    missing.sort();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::Damaged(format!("{} is missing from it, or is not as it was made", missing.join(", "))))
}

/// Whether its pages make sense, in a file that is soon read.
fn check_pages(path: &Path, connection: &Connection) -> Result<(), Fault> {
    if disk_bytes(path) > CHECKED_BYTES_MAX {
        return Ok(());
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(misread)?;
    if found == "ok" { Ok(()) } else { Err(Fault::Damaged(found)) }
}

/// Keeps the log from growing beyond a size for longer than a transaction that needs more.
pub fn limit_log(connection: &Connection, bytes_max: u64) -> rusqlite::Result<()> {
    let page_bytes: u64 = connection.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0))?.max(1) as u64;
    connection.pragma_update(None, "journal_size_limit", bytes_max.min(LOG_BYTES_MAX) as i64)?;
    let pages = (bytes_max / 2 / page_bytes).clamp(1, LOG_PAGES);
    connection.pragma_update(None, "wal_autocheckpoint", pages as i64)
}

/// Puts all of the log into the file, and gives its room back; while somebody reads from it, the next time will do.
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

/// What a file takes on the disk, with all that belongs to it.
pub fn disk_bytes(path: &Path) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path) + size(&log_of(path)) + size(&with_suffix(path, "-shm"))
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

/// Whether the file is one of ours, and of a version that we know.
fn check(path: &Path, connection: &Connection) -> Result<(), Fault> {
    let shown = path.display();
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if id != APPLICATION_ID && check_schema(connection).is_ok() {
        // No other program has all of our tables.
        return Err(Fault::Damaged("its header does not say that it is ours".into()));
    }
    if id != APPLICATION_ID {
        return Err(Fault::Refused(format!(
            "data_dir: {shown} belongs to another program: name another folder, or move the file away"
        )));
    }
    let version = version(connection)?;
    if version > MIGRATIONS.len() {
        return Err(Fault::Refused(format!(
            "data_dir: {shown} was written by a newer rallypoint (its schema is {version}, this one knows up to {}): run \
             that one, or move the file away to begin anew",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

pub fn version(connection: &Connection) -> rusqlite::Result<usize> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

/// All steps in one transaction: a start that is cut short leaves the file as it was.
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

/// A transaction that is going to write.
pub fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn cannot_open(path: &Path, error: rusqlite::Error) -> Fault {
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            Fault::Refused(format!("data_dir: {} cannot be opened: {error}", path.display()))
        }
        _ => Fault::Failed(error),
    }
}

/// The file under another name, with what belongs to it, for a person to look at.
pub fn set_aside(path: &Path) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let aside = with_suffix(path, &format!(".damaged-{}", now.as_millis()));
    for part in ["-wal", "-shm"] {
        let _ = std::fs::rename(with_suffix(path, part), with_suffix(&aside, part)); // where there is one
    }
    match std::fs::rename(path, &aside) {
        Ok(()) => warn!("the damaged file is now {}; a new one is begun", aside.display()),
        Err(error) => warn!("the damaged file cannot be renamed to {}: {error}", aside.display()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

/// A connection that only reads, beside the writer's.
pub fn open_to_read(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

/// Opens the file for reading where there is no room for the files that others would need beside it. Nobody else may
/// have it open, and it is to be closed soon.
pub fn open_without_room(path: &Path) -> Result<Connection, Fault> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // With this, what is shared with others otherwise is in this process's memory.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    check(path, &connection)?;
    Ok(connection)
}

/// A consistent copy of the file as it is now, while others go on writing it. The copy must not exist yet.
pub fn copy(path: &Path, to: &Path) -> Result<(), Fault> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY)?;
    check(path, &connection)?;
    let not_text = || Fault::Refused(format!("{} is no name that SQLite can take", to.display()));
    connection.execute("VACUUM INTO ?1", [to.to_str().ok_or_else(not_text)?])?;
    Ok(())
}

//! The file: its schema with a version, how it is opened, and what is done about one that is damaged or too new.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use tracing::warn;

/// The file's name in `data_dir`.
pub const FILE: &str = "rallypoint.db";
/// "Rall": tells our files from those of other programs.
const APPLICATION_ID: i32 = 0x5261_6c6c;
/// How long to wait for another process that has the file locked, e.g. for a person with a database tool.
const BUSY: Duration = Duration::from_secs(5);
/// What is left of the write-ahead log after a burst.
const LOG_BYTES_MAX: u32 = 32 << 20;

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
    /// It may work later.
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Failed(error)
    }
}

/// Whether the file itself is broken, and will be tomorrow.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Opens the file for writing, made or migrated where needed. A damaged one is set aside, and a new one made.
pub fn open(path: &Path) -> Result<Connection, Fault> {
    match try_open(path) {
        Err(Fault::Failed(error)) if is_damage(&error) => {
            warn!("{}: {error}", path.display());
            set_aside(path);
            try_open(path)
        }
        result => result,
    }
}

fn try_open(path: &Path) -> Result<Connection, Fault> {
    let mut connection = Connection::open(path).map_err(|error| cannot_open(path, error))?;
    connection.busy_timeout(BUSY)?;
    let is_new = is_empty(&connection)?;
    if is_new {
        // Only possible before there is anything in the file: free pages can be given back to the system.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    } else {
        check(path, &connection)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)?;
    migrate(&mut connection)?;
    Ok(connection)
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))
}

/// Whether the file is one of ours, and of a version that we know.
fn check(path: &Path, connection: &Connection) -> Result<(), Fault> {
    let shown = path.display();
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
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

//! Persistence: one SQLite file in `data_dir` with every listed server and the history of players. A separate thread writes
//! it in batches; a full or broken disk loses data, but never stops the service.

mod folder;
pub mod history;
pub(crate) mod lives;
pub(crate) mod moderation;
pub(crate) mod restore;
mod row;
pub mod sqlite;
mod writer;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rusqlite::Connection;
use tracing::{info, warn};

use crate::hub::Hub;
use crate::moderation::Board;
use folder::FolderLock;
use history::Reader;
use moderation::Decisions;
pub use restore::Restored;
pub use writer::Writer;

/// How long the last write may take at shutdown.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Why the program cannot start with this `data_dir`: names the key and what to do.
#[derive(Debug)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// The store's state, for metrics and health checks.
#[derive(Debug, Default)]
pub struct Status {
    /// The last write failed.
    pub failing: AtomicBool,
    pub failures: AtomicU64,
    /// Transactions written.
    pub writes: AtomicU64,
    /// Size of the file and its log on disk.
    pub file_bytes: AtomicU64,
    /// How often the file was removed or replaced while in use.
    pub files_lost: AtomicU64,
}

/// The open store. [`Store::stop`] ends its thread.
pub struct Store {
    path: PathBuf,
    status: Arc<Status>,
    settings: Arc<ArcSwap<history::Settings>>,
    connection: Option<Connection>,
    thread: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    folder_lock: Arc<FolderLock>,
    /// The operator's decisions.
    board: Arc<Board>,
}

impl Store {
    /// Locks the folder and opens the file in it. A damaged file is set aside; one that cannot be opened because the disk is
    /// full is tried again later.
    pub fn open(folder: &Path, settings: history::Settings) -> Result<Store, StoreError> {
        let folder_lock = Arc::new(FolderLock::take(folder)?);
        let path = folder_lock.file();
        let connection = match sqlite::open(&path) {
            Ok(connection) => Some(connection),
            Err(sqlite::Fault::Refused(reason)) => return Err(StoreError(reason)),
            Err(fault) => {
                warn!("{}: {fault}; still serving, but nothing is saved until this is fixed", path.display());
                None
            }
        };
        let status = Status { failing: connection.is_none().into(), ..Status::default() };
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let (status, board) = (Arc::new(status), Arc::default());
        Ok(Store { path, status, settings, connection, thread: None, folder_lock, board })
    }

    /// Puts the operator's decisions of earlier runs on the board, and keeps what changes there from now on.
    pub fn keep_board(&mut self, board: Arc<Board>) {
        let read = match &self.connection {
            Some(connection) => moderation::read(connection),
            // On a full disk, the file can still be read.
            None => {
                sqlite::open_without_room(&self.path).map_or(Ok(Decisions::default()), |file| moderation::read(&file))
            }
        };
        match read {
            Ok(decisions) => drop(board.merge(decisions.statements)),
            // The writer tries again before it writes.
            Err(error) => warn!("{}: {error}; bans of earlier runs are not in effect yet", self.path.display()),
        }
        self.board = board;
    }

    /// Lists the servers of the last run again, except banned ones. Apply the operator's overrides first.
    pub fn restore(&mut self, hub: &Hub, is_banned: impl Fn(IpAddr) -> bool + Sync) -> Restored {
        let without_room;
        let (connection, others) = match &self.connection {
            Some(connection) => (connection, restore::others(&self.path)),
            // On a full disk, the file can still be read, by one connection.
            None => match sqlite::open_without_room(&self.path) {
                Ok(connection) => {
                    without_room = connection;
                    (&without_room, Vec::new())
                }
                Err(_) => return Restored::default(), // already logged
            },
        };
        let restored = match restore::restore(connection, others, hub, is_banned) {
            Ok(restored) => restored,
            Err(error) => {
                warn!("{}: {error}; starting with an empty list", self.path.display());
                self.connection = None;
                if sqlite::is_damage(&error) {
                    sqlite::set_aside(&self.path);
                }
                return Restored::default();
            }
        };
        if restored.unreadable > 0 {
            warn!("{}: skipped {} unreadable servers", self.path.display(), restored.unreadable);
        }
        if restored.listed > 0 {
            info!("restored {} servers", restored.listed);
        }
        restored
    }

    /// Starts the thread that saves what the hub publishes.
    pub fn start(&mut self, hub: &Arc<Hub>) -> std::io::Result<()> {
        let (stop, stopped) = mpsc::channel();
        let writer = self.writer(hub);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || writer.run(&stopped))?;
        self.thread = Some((stop, thread));
        Ok(())
    }

    /// What saves the hub's changes, for a caller that decides when it writes.
    pub fn writer(&mut self, hub: &Arc<Hub>) -> Writer {
        let connection = self.connection.take();
        let (status, settings) = (self.status.clone(), self.settings.clone());
        Writer::new(hub.clone(), self.folder_lock.clone(), connection, status, settings).keeping(self.board.clone())
    }

    /// Writes what the hub has published and ends the thread, waiting at most [`STOP_MAX`] for a slow disk.
    pub fn stop(mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        let began = Instant::now();
        while !thread.is_finished() {
            if began.elapsed() > STOP_MAX {
                return warn!("{}: the last changes were not written: the disk is too slow", self.path.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The thread, if it has died unexpectedly.
    pub fn dead_thread(&self) -> Option<&JoinHandle<()>> {
        self.thread.as_ref().map(|(_, thread)| thread).filter(|thread| thread.is_finished())
    }

    pub fn set_history(&self, settings: history::Settings) {
        self.settings.store(Arc::new(settings));
    }

    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    pub fn reader(&self) -> Reader {
        Reader::new(self.path.clone())
    }
}

impl Status {
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;

//! What survives: one SQLite file in `data_dir` with every listed server and the history of players. Written in batches
//! by a thread of its own; a full or broken disk costs what would have been kept, never the service.

pub mod history;
mod hold;
pub(crate) mod lives;
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
use history::Reader;
use hold::Hold;
pub use restore::Restored;
use writer::Writer;

/// How long the last write may take when the program stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Why the program cannot start with this `data_dir`; names the key and says what to do.
#[derive(Debug)]
pub struct StoreError(pub String);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// How the store does, for whoever watches it.
#[derive(Debug, Default)]
pub struct Status {
    /// Nothing is written at the moment: the last attempt failed.
    pub failing: AtomicBool,
    pub failures: AtomicU64,
    /// Transactions written.
    pub writes: AtomicU64,
    /// What the file and its log take on the disk.
    pub file_bytes: AtomicU64,
    /// How often the file was removed from under us, and begun anew without its history.
    pub files_lost: AtomicU64,
}

/// The open store. Its thread ends with [`Store::stop`].
pub struct Store {
    path: PathBuf,
    status: Arc<Status>,
    settings: Arc<ArcSwap<history::Settings>>,
    connection: Option<Connection>,
    thread: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
    hold: Arc<Hold>,
}

impl Store {
    /// Takes the folder for this process and opens the file in it. A damaged file is set aside; one that cannot be
    /// opened for lack of room is tried again later.
    pub fn open(folder: &Path, settings: history::Settings) -> Result<Store, StoreError> {
        let hold = Arc::new(Hold::take(folder)?);
        let path = hold.file();
        let connection = match sqlite::open(&path) {
            Ok(connection) => Some(connection),
            Err(sqlite::Fault::Refused(reason)) => return Err(StoreError(reason)),
            Err(fault) => {
                warn!("{}: {fault}; serving goes on, nothing is kept until this is mended", path.display());
                None
            }
        };
        let status = Status { failing: connection.is_none().into(), ..Status::default() };
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        Ok(Store { path, status: Arc::new(status), settings, connection, thread: None, hold })
    }

    /// Lists again what was listed when the program last ran, but for the banned. Apply the operator's words first.
    pub fn restore(&mut self, hub: &Hub, is_banned: impl Fn(IpAddr) -> bool) -> Restored {
        let without_room;
        let connection = match &self.connection {
            Some(connection) => connection,
            // What is in the file can be read, even where nothing can be written.
            None => match sqlite::open_without_room(&self.path) {
                Ok(connection) => {
                    without_room = connection;
                    &without_room
                }
                Err(_) => return Restored::default(), // why has been told
            },
        };
        let restored = match restore::restore(connection, hub, is_banned) {
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
            warn!("{}: {} servers could not be read and are left out", self.path.display(), restored.unreadable);
        }
        if restored.listed > 0 {
            info!("listed as before: {} servers", restored.listed);
        }
        restored
    }

    /// Starts the thread that keeps what the hub publishes.
    pub fn start(&mut self, hub: &Arc<Hub>) -> std::io::Result<()> {
        let (stop, stopped) = mpsc::channel();
        let connection = self.connection.take();
        let (status, settings) = (self.status.clone(), self.settings.clone());
        let writer = Writer::new(hub.clone(), self.hold.clone(), connection, status, settings);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || writer.run(&stopped))?;
        self.thread = Some((stop, thread));
        Ok(())
    }

    /// Writes what the hub has published, and ends the thread. A disk that hangs is not waited for.
    pub fn stop(mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        let began = Instant::now();
        while !thread.is_finished() {
            if began.elapsed() > STOP_MAX {
                return warn!("{}: the last changes are not written: the disk takes too long", self.path.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The thread, if it has died: it never ends by itself.
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

//! The writer thread. It collects what the hub publishes and writes it about every half second in one transaction. If
//! writing fails, it logs that once, retries, and then compares the file with the current view; the same if the file is
//! removed while in use.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rusqlite::Connection;
use tokio::sync::broadcast::{self, error::TryRecvError};
use tracing::{info, warn};

use super::folder::{FolderLock, Identity};
use super::history::{Recorder, Settings};
use super::lives::{self, Sweep};
use super::sqlite::{self, Fault};
use super::{Status, moderation, row};
use crate::hub::Hub;
use crate::model::{Address, Now, Server};
use crate::moderation::Board;
use crate::registry::Life;
use crate::registry::view::{Batch, Delta, View};

/// Time between two writes.
const EVERY: Duration = Duration::from_millis(500);
/// The longest pause between two attempts while writing fails.
const RETRY_MAX: Duration = Duration::from_secs(5);

pub struct Writer {
    hub: Arc<Hub>,
    folder_lock: Arc<FolderLock>,
    path: PathBuf,
    file: Option<Open>,
    status: Arc<Status>,
    settings: Arc<ArcSwap<Settings>>,
    batches: broadcast::Receiver<Arc<Batch>>,
    /// Servers to write; None: to delete.
    pending: HashMap<Address, Option<Arc<Server>>>,
    /// Servers that were proven again without other changes.
    proven: HashMap<Address, Life>,
    /// Whether the file must be compared with the whole view.
    behind: bool,
    sweep: Sweep,
    recorder: Recorder,
    board: Arc<Board>,
    /// The board's change that the file has.
    board_written: Option<u64>,
    /// Rows of decisions that say nothing valid.
    unreadable_decisions: usize,
    pause: Duration,
}

/// The open file. SQLite would go on writing to a file that was removed, or whose log was.
struct Open {
    connection: Connection,
    /// None: unknown.
    file: Option<Identity>,
    log: Option<Identity>,
}

impl Open {
    fn new(path: &Path, connection: Connection) -> Open {
        let identity = |path: &Path| Identity::at(path).ok().flatten();
        Open { connection, file: identity(path), log: identity(&sqlite::log_of(path)) }
    }
}

/// Whether a path now has another file, or none. A file that cannot be inspected counts as unmoved.
fn has_moved(known: Option<Identity>, path: &Path) -> bool {
    known.is_some_and(|known| Identity::at(path).is_ok_and(|found| found != Some(known)))
}

impl Writer {
    /// Begins by comparing the file with the view: servers that expired while the program was down are still in the file.
    pub fn new(
        hub: Arc<Hub>,
        folder_lock: Arc<FolderLock>,
        connection: Option<Connection>,
        status: Arc<Status>,
        settings: Arc<ArcSwap<Settings>>,
    ) -> Writer {
        let path = folder_lock.file();
        Writer {
            batches: hub.subscribe(),
            sweep: Sweep::new(hub.clock.now()),
            hub,
            folder_lock,
            file: connection.map(|connection| Open::new(&path, connection)),
            path,
            status,
            settings,
            pending: HashMap::new(),
            proven: HashMap::new(),
            behind: true,
            recorder: Recorder::default(),
            board: Arc::default(),
            board_written: None,
            unreadable_decisions: 0,
            pause: EVERY,
        }
    }

    /// Also writes the operator's decisions.
    pub fn keeping(self, board: Arc<Board>) -> Writer {
        Writer { board, ..self }
    }

    /// Writes until the sender of `stop` is dropped; then once more, with the exact end of every life.
    pub fn run(mut self, stop: &Receiver<()>) {
        loop {
            let stopping = stop.recv_timeout(self.pause) != Err(RecvTimeoutError::Timeout);
            self.turn(stopping);
            if stopping {
                return;
            }
        }
    }

    /// Collects and writes once.
    pub fn turn(&mut self, stopping: bool) {
        let now = self.hub.clock.now();
        self.check_files();
        self.gather(now);
        match self.write(now, stopping) {
            Ok(()) => self.succeeded(),
            Err(fault) => self.failed(&fault),
        }
    }

    /// Starts over if the file or its log was removed or replaced.
    fn check_files(&mut self) {
        let Some(open) = &self.file else { return };
        let shown = self.path.display();
        if has_moved(open.file, &self.path) {
            if self.path.exists() {
                warn!("{shown}: replaced while in use; writing the current list to the new file");
            } else {
                warn!("{shown}: removed while in use; writing the current list to a new file, the history is lost");
            }
            self.status.files_lost.fetch_add(1, Ordering::Relaxed);
        } else if has_moved(open.log, &sqlite::log_of(&self.path)) {
            warn!("{shown}: its log was removed while in use; creating a new one");
        } else {
            return;
        }
        self.start_over();
    }

    /// Closes the file and forgets everything about its contents.
    fn start_over(&mut self) {
        self.file = None;
        self.behind = true;
        self.sweep = Sweep::new(self.hub.clock.now());
        self.recorder = Recorder::default();
        self.board_written = None;
    }

    /// Collects what has been published since the last time.
    fn gather(&mut self, now: Now) {
        loop {
            match self.batches.try_recv() {
                Ok(batch) => {
                    for delta in &batch.deltas {
                        let (address, state) = match delta {
                            Delta::Added(server) | Delta::Changed { now: server, .. } => {
                                (server.address, Some(server.clone()))
                            }
                            Delta::Removed(server) => (server.address, None),
                            // Its row stays: `lives` has the timestamps of all servers in far fewer pages.
                            Delta::Proven(server) => {
                                self.proven.insert(server.address, lives::of(server));
                                continue;
                            }
                        };
                        self.pending.insert(address, state);
                    }
                }
                Err(TryRecvError::Lagged(_)) => self.behind = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if self.behind {
            // Subscribe before taking the view, so that no change is missed.
            self.batches = self.hub.subscribe();
            self.pending = HashMap::new();
            self.proven = HashMap::new();
            self.sweep = Sweep::new(now);
        }
    }

    fn write(&mut self, now: Now, stopping: bool) -> Result<(), Fault> {
        if self.folder_lock.renew().map_err(|error| Fault::Refused(error.0))? {
            warn!("{}: its lock file disappeared; locked again", self.path.display());
        }
        if self.file.is_none() {
            self.file = Some(Open::new(&self.path, sqlite::open(&self.path)?));
        }
        let Some(Open { connection, .. }) = &mut self.file else { return Ok(()) };
        let transaction = sqlite::begin(connection)?;
        if self.behind {
            reconcile(&transaction, &self.hub.view())?;
        }
        for (address, server) in &self.pending {
            match server {
                Some(server) => row::write(&transaction, server)?,
                None => row::delete(&transaction, *address)?,
            }
        }
        if self.board_written.is_none() {
            // They may not have been read yet, and what the board lacks is deleted below.
            let decisions = moderation::read(&transaction)?;
            self.board.merge(decisions.statements);
            if std::mem::replace(&mut self.unreadable_decisions, decisions.unreadable) < decisions.unreadable {
                let (path, count) = (self.path.display(), decisions.unreadable);
                warn!("{path}: {count} decisions of the operator cannot be read and are not in effect");
            }
        }
        let change = *self.board.changes().borrow();
        if self.board_written != Some(change) {
            moderation::write(&transaction, &self.board.statements())?;
        }
        let proven: Vec<Life> = self.proven.values().copied().collect();
        self.sweep.write(&transaction, &self.hub, &proven, now, stopping)?;
        transaction.commit()?; // writes nothing if nothing changed
        self.status.writes.fetch_add(1, Ordering::Relaxed);
        self.behind = false;
        self.board_written = Some(change);
        self.pending.clear();
        self.proven.clear();
        if !stopping {
            self.write_history(now)?;
        }
        self.status.file_bytes.store(sqlite::disk_bytes(&self.path), Ordering::Relaxed);
        Ok(())
    }

    fn write_history(&mut self, now: Now) -> Result<(), Fault> {
        let settings = **self.settings.load();
        let Some(Open { connection, .. }) = &mut self.file else { return Ok(()) };
        Ok(self.recorder.turn(connection, &self.hub.view(), now.unix_ms, settings)?)
    }

    fn succeeded(&mut self) {
        self.pause = EVERY;
        if self.status.failing.swap(false, Ordering::Relaxed) {
            info!("{}: written again", self.path.display());
        }
    }

    /// Logs the first failure, and prepares another attempt after a longer pause.
    fn failed(&mut self, fault: &Fault) {
        self.status.failures.fetch_add(1, Ordering::Relaxed);
        if !self.status.failing.swap(true, Ordering::Relaxed) {
            let path = self.path.display();
            warn!("{path}: {fault}; still serving, but nothing is saved until this is fixed");
        }
        self.pause = (self.pause * 2).min(RETRY_MAX);
        self.start_over();
        if fault.is_damage() {
            sqlite::set_aside(&self.path);
        }
    }
}

/// Makes the file equal to the view, writing only the differences.
fn reconcile(connection: &Connection, view: &View) -> rusqlite::Result<()> {
    let mut missing: HashMap<Address, &Arc<Server>> =
        view.servers.iter().map(|server| (server.address, server)).collect();
    let mut gone = Vec::new();
    let mut unreadable = false;
    row::servers(connection, |found| match found {
        Some(mut kept) => match missing.get(&kept.address) {
            Some(server) => {
                kept.overrides = server.overrides; // from the configuration, not in the file
                if server.is_the_same_as(&kept) {
                    missing.remove(&kept.address);
                }
            }
            None => gone.push(kept.address),
        },
        None => unreadable = true,
    })?;
    if unreadable {
        // Invalid rows cannot be deleted by their address: rewrite all.
        connection.execute("DELETE FROM servers", [])?;
        missing = view.servers.iter().map(|server| (server.address, server)).collect();
    }
    for address in gone {
        row::delete(connection, address)?;
    }
    for server in missing.into_values() {
        row::write(connection, server)?;
    }
    Ok(())
}

#[cfg(test)]
impl Writer {
    pub(super) fn connection(&mut self) -> &Connection {
        &self.file.as_ref().unwrap().connection
    }

    pub(super) fn pause(&self) -> Duration {
        self.pause
    }
}

//! The one thread that writes. It follows what the hub publishes, and writes it about every half second in one
//! transaction. When writing fails, it says so once, and starts from a fresh view when there is room again; so it does
//! when the file is removed from under it.

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

use super::history::{Recorder, Settings};
use super::hold::{Hold, Identity};
use super::lives::{self, Sweep};
use super::sqlite::{self, Fault};
use super::{Status, row};
use crate::hub::Hub;
use crate::model::{Address, Now, Server};
use crate::registry::Life;
use crate::registry::view::{Batch, Delta, View};

/// A change is in the file at the latest this long, and the time that writing takes, after it was published.
const EVERY: Duration = Duration::from_millis(500);
/// The longest pause between two attempts while writing fails.
const RETRY_MAX: Duration = Duration::from_secs(5);

pub struct Writer {
    hub: Arc<Hub>,
    hold: Arc<Hold>,
    path: PathBuf,
    file: Option<Open>,
    status: Arc<Status>,
    settings: Arc<ArcSwap<Settings>>,
    batches: broadcast::Receiver<Arc<Batch>>,
    /// What is to be written; None: to be deleted.
    pending: HashMap<Address, Option<Arc<Server>>>,
    /// What was proven without news.
    proven: HashMap<Address, Life>,
    /// Whether the file has to be compared with the whole view.
    behind: bool,
    sweep: Sweep,
    recorder: Recorder,
    pause: Duration,
}

/// The open file. SQLite goes on writing to one that has been removed, and to one whose log has been: it has them open.
struct Open {
    connection: Connection,
    /// Which they were; None where that could not be told.
    file: Option<Identity>,
    log: Option<Identity>,
}

impl Open {
    fn new(path: &Path, connection: Connection) -> Open {
        let identity = |path: &Path| Identity::at(path).ok().flatten();
        Open { connection, file: identity(path), log: identity(&sqlite::log_of(path)) }
    }
}

/// Whether another file, or none, is where a known one was. What cannot be looked at has not moved.
fn has_moved(known: Option<Identity>, path: &Path) -> bool {
    known.is_some_and(|known| Identity::at(path).is_ok_and(|found| found != Some(known)))
}

impl Writer {
    /// Begins by comparing: what ended while the program was down is still in the file.
    pub fn new(
        hub: Arc<Hub>,
        hold: Arc<Hold>,
        connection: Option<Connection>,
        status: Arc<Status>,
        settings: Arc<ArcSwap<Settings>>,
    ) -> Writer {
        let path = hold.file();
        Writer {
            batches: hub.subscribe(),
            sweep: Sweep::new(hub.clock.now()),
            hub,
            hold,
            file: connection.map(|connection| Open::new(&path, connection)),
            path,
            status,
            settings,
            pending: HashMap::new(),
            proven: HashMap::new(),
            behind: true,
            recorder: Recorder::default(),
            pause: EVERY,
        }
    }

    /// Writes until the other end of `stop` is gone; then once more, with every life's exact end.
    pub fn run(mut self, stop: &Receiver<()>) {
        loop {
            let stopping = stop.recv_timeout(self.pause) != Err(RecvTimeoutError::Timeout);
            self.turn(stopping);
            if stopping {
                return;
            }
        }
    }

    /// Gathers and writes once.
    pub(super) fn turn(&mut self, stopping: bool) {
        let now = self.hub.clock.now();
        self.notice_removal();
        self.gather(now);
        match self.write(now, stopping) {
            Ok(()) => self.went_well(),
            Err(fault) => self.failed(&fault),
        }
    }

    /// Whether the file that is being written is the one that others find.
    fn notice_removal(&mut self) {
        let Some(open) = &self.file else { return };
        let shown = self.path.display();
        if has_moved(open.file, &self.path) {
            if self.path.exists() {
                warn!("{shown}: replaced while in use; the file that is there now is used, with the list as it is now");
            } else {
                warn!(
                    "{shown}: removed while in use; a new file is begun with the list as it is now, the history is lost"
                );
            }
            self.status.files_lost.fetch_add(1, Ordering::Relaxed);
        } else if has_moved(open.log, &sqlite::log_of(&self.path)) {
            warn!("{shown}: its log was removed while in use; a new one is begun");
        } else {
            return;
        }
        self.begin_anew();
    }

    /// Forgets the file, and what is known of what is in it.
    fn begin_anew(&mut self) {
        self.file = None;
        self.behind = true;
        self.sweep = Sweep::new(self.hub.clock.now());
        self.recorder = Recorder::default();
    }

    /// Takes what has been published since the last time.
    fn gather(&mut self, now: Now) {
        loop {
            match self.batches.try_recv() {
                Ok(batch) => {
                    for delta in &batch.deltas {
                        let (address, state) = match delta {
                            Delta::Added(server) | Delta::Changed(server) => (server.address, Some(server.clone())),
                            Delta::Removed(server) => (server.address, None),
                            // Its row stays as it is: `lives` has the stamps of all, in a fraction of the pages.
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
            // From here on nothing is missed, and the view that is taken next has everything up to here.
            self.batches = self.hub.subscribe();
            self.pending = HashMap::new();
            self.proven = HashMap::new();
            self.sweep = Sweep::new(now);
        }
    }

    fn write(&mut self, now: Now, stopping: bool) -> Result<(), Fault> {
        if self.hold.take_again().map_err(|error| Fault::Refused(error.0))? {
            warn!("{}: the lock beside it was removed; this process has taken it again", self.path.display());
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
        let proven: Vec<Life> = self.proven.values().copied().collect();
        self.sweep.write(&transaction, &self.hub, &proven, now, stopping)?;
        transaction.commit()?; // where nothing changed, nothing is written
        self.status.writes.fetch_add(1, Ordering::Relaxed);
        self.behind = false;
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

    fn went_well(&mut self) {
        self.pause = EVERY;
        if self.status.failing.swap(false, Ordering::Relaxed) {
            info!("{}: written again", self.path.display());
        }
    }

    /// Whatever is wrong with the file or its disk: serving goes on, and so do the attempts.
    fn failed(&mut self, fault: &Fault) {
        self.status.failures.fetch_add(1, Ordering::Relaxed);
        if !self.status.failing.swap(true, Ordering::Relaxed) {
            let path = self.path.display();
            warn!("{path}: {fault}; serving goes on, nothing is kept until this is mended");
        }
        self.pause = (self.pause * 2).min(RETRY_MAX);
        self.begin_anew();
        if fault.is_damage() {
            sqlite::set_aside(&self.path);
        }
    }
}

/// Makes the file what the view says, touching only what differs.
fn reconcile(connection: &Connection, view: &View) -> rusqlite::Result<()> {
    let mut missing: HashMap<Address, &Arc<Server>> =
        view.servers.iter().map(|server| (server.address, server)).collect();
    let mut gone = Vec::new();
    let mut unreadable = false;
    row::servers(connection, |found| match found {
        Some(mut kept) => match missing.get(&kept.address) {
            Some(server) => {
                kept.overrides = server.overrides; // the operator's, and not in the file
                if server.is_the_same_as(&kept) {
                    missing.remove(&kept.address);
                }
            }
            None => gone.push(kept.address),
        },
        None => unreadable = true,
    })?;
    if unreadable {
        // Rows that make no sense cannot be named: all are written anew.
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

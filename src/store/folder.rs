//! The data folder: a lock that keeps other processes out, and checks whether an open file is still the one at its path.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{StoreError, sqlite};

/// The lock file. It stays on disk, and matters only while a process holds a lock on it.
const LOCK: &str = "rallypoint.lock";
/// Attempts to lock the file if others keep removing it.
const ATTEMPTS_MAX: usize = 10;

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub struct FolderLock {
    folder: PathBuf,
    lock: Mutex<File>,
}

/// Identifies a file regardless of its name. Unique for as long as the file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The file at a path; None if there is none. An error means that it could not be determined.
    pub fn at(path: &Path) -> io::Result<Option<Identity>> {
        match std::fs::metadata(path) {
            Ok(found) => Ok(Some(Identity { device: found.dev(), inode: found.ino() })),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of(file: &File) -> io::Result<Identity> {
        let found = file.metadata()?;
        Ok(Identity { device: found.dev(), inode: found.ino() })
    }

    /// Whether this file is known to be at a path.
    pub fn is_at(self, path: &Path) -> bool {
        Identity::at(path).is_ok_and(|found| found == Some(self))
    }
}

impl FolderLock {
    /// Creates the folder if it is missing, and locks it.
    pub fn take(folder: &Path) -> Result<FolderLock, StoreError> {
        Ok(FolderLock { folder: folder.to_path_buf(), lock: Mutex::new(lock(folder)?) })
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(sqlite::FILE)
    }

    /// Locks the folder again if the lock file, or the folder itself, was removed. Returns whether it was.
    pub fn renew(&self) -> Result<bool, StoreError> {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folder.join(LOCK);
        // A file that cannot be inspected does not count as removed.
        let is_there = match (Identity::of(&held), Identity::at(&path)) {
            (Ok(ours), Ok(found)) => found == Some(ours),
            _ => true,
        };
        if !is_there {
            *held = lock(&self.folder)?;
        }
        Ok(!is_there)
    }
}

fn lock(folder: &Path) -> Result<File, StoreError> {
    let shown = folder.display();
    let cannot = |error: io::Error| {
        StoreError(format!(
            "data_dir: cannot write to {shown}: {error}. Make this user its owner, choose another folder, or set \
             data_dir to \"\" to save nothing"
        ))
    };
    let path = folder.join(LOCK);
    for _ in 0..ATTEMPTS_MAX {
        std::fs::create_dir_all(folder).map_err(cannot)?;
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(cannot)?;
        match file.try_lock() {
            // Removed between opening and locking: other processes would lock another file.
            Ok(()) if !Identity::of(&file).map_err(cannot)?.is_at(&path) => continue,
            Ok(()) => {
                // The process id, for the message below; on a full disk it stays empty.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&mut file).take(32).read_to_string(&mut holder);
                let process = holder.trim();
                let process = if process.is_empty() { String::new() } else { format!(" (process {process})") };
                return Err(StoreError(format!(
                    "data_dir: {shown} is in use by another rallypoint{process}: stop that one, or choose another folder"
                )));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
    }
    Err(cannot(io::Error::other("its lock file keeps being removed")))
}

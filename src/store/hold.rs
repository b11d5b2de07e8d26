//! The folder, taken for this process: the lock that keeps other processes out, and whether what was opened in the folder
//! is still what others find there.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{StoreError, sqlite};

/// The name of the lock; it stays, and means nothing unless a process holds it.
const LOCK: &str = "rallypoint.lock";
/// Attempts to lock a file that others keep removing.
const ATTEMPTS_MAX: usize = 10;

/// Held for as long as this lives.
#[derive(Debug)]
pub struct Hold {
    folder: PathBuf,
    lock: Mutex<File>,
}

/// Which file it is, whatever its name. As long as it is open somewhere, no other file has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// None: there is no such file. An error says nothing about that.
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

    /// Whether this is the file at a path, as far as one can tell.
    pub fn is_at(self, path: &Path) -> bool {
        Identity::at(path).is_ok_and(|found| found == Some(self))
    }
}

impl Hold {
    /// Makes the folder where it is missing, and takes it for this process.
    pub fn take(folder: &Path) -> Result<Hold, StoreError> {
        Ok(Hold { folder: folder.to_path_buf(), lock: Mutex::new(lock(folder)?) })
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(sqlite::FILE)
    }

    /// Takes the folder again if the lock was removed from it, or the folder itself; whether it was.
    pub fn take_again(&self) -> Result<bool, StoreError> {
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folder.join(LOCK);
        // What cannot be looked at is not taken for removed.
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
            "data_dir: {shown} cannot be written: {error}. Make it this user's own, name another folder, or set \
             data_dir to \"\" to keep nothing"
        ))
    };
    let path = folder.join(LOCK);
    for _ in 0..ATTEMPTS_MAX {
        std::fs::create_dir_all(folder).map_err(cannot)?;
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(cannot)?;
        match file.try_lock() {
            // Removed between opening and locking: others would lock another file.
            Ok(()) if !Identity::of(&file).map_err(cannot)?.is_at(&path) => continue,
            Ok(()) => {
                // For the message below; on a full disk it stays empty.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&mut file).take(32).read_to_string(&mut holder); // only for the message
                let process = holder.trim();
                let process = if process.is_empty() { String::new() } else { format!(" (process {process})") };
                return Err(StoreError(format!(
                    "data_dir: {shown} is in use by another rallypoint{process}: stop that one, or name another folder"
                )));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
    }
    Err(cannot(io::Error::other("its lock is removed again and again")))
}

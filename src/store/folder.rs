//! The data folder: a lock that keeps other processes out, and checks whether an open file is still the one at its path.
//!
//! The folder is its owner's alone (0700), and so are the files in it (0600), also if somebody made them by hand. No name in it
//! is followed to another place: whoever could write to it once may have left a link there.

use std::ffi::OsStr;
use std::fs::{DirBuilder, DirEntry, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::libc::O_NOFOLLOW;
use nix::unistd::geteuid;
use tracing::warn;

use super::{StoreError, sqlite};

/// The lock file. It stays on disk, and matters only while a process holds a lock on it.
const LOCK: &str = "rallypoint.lock";
/// What only their owner may do with the folder and its files.
const FOLDER_MODE: u32 = 0o700;
pub const FILE_MODE: u32 = 0o600;
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
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(cannot)?;
        let mut file = open_own(&path).map_err(cannot)?;
        match file.try_lock() {
            // Removed between opening and locking: other processes would lock another file.
            Ok(()) if !Identity::of(&file).map_err(cannot)?.is_at(&path) => continue,
            Ok(()) => {
                check_link(&folder.join(sqlite::FILE)).map_err(cannot)?;
                if let Err(error) = close_to_others(folder).and(close_files(folder)) {
                    warn!("data_dir: others can enter {shown}, or read what is in it: {error}");
                }
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

/// Opens a file of ours, or makes it. Never another one through a link, nor one that somebody else put there.
fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(O_NOFOLLOW);
    let refused = |what: &str| io::Error::other(format!("{}: {what}", path.display()));
    let file = match options.open(path) {
        Err(_) if path.is_symlink() => return Err(refused("it is a symbolic link, which is not followed: remove it")),
        file => file?,
    };
    let found = file.metadata()?;
    match () {
        () if !found.is_file() => Err(refused("it is not a file")),
        () if found.nlink() > 1 => Err(refused("it has another name elsewhere (a hard link): remove it")),
        () if !is_trusted(&found, path) => Err(refused(&format!("it belongs to another user ({})", found.uid()))),
        () => Ok(file),
    }
}

/// Whether a file is our user's, or of whoever owns the folder anyway.
fn is_trusted(file: &Metadata, path: &Path) -> bool {
    let owns_folder =
        || path.parent().and_then(|folder| folder.metadata().ok()).is_some_and(|it| it.uid() == file.uid());
    is_own(file) || owns_folder()
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == geteuid().as_raw()
}

/// Whether a file of ours can be used by others.
fn has_others(found: &Metadata, mode: u32) -> bool {
    is_own(found) && found.mode() & 0o777 & !mode != 0
}

/// Whether a name in the folder is of a file of ours: the lock, the database and what SQLite keeps beside it.
fn is_ours(name: &OsStr) -> bool {
    name == LOCK || name.as_encoded_bytes().starts_with(sqlite::FILE.as_bytes())
}

/// Takes the folder from others. One with files of other programs in it may have to stay open: the operator is told.
fn close_to_others(folder: &Path) -> io::Result<()> {
    let opened = File::open(folder)?;
    if !has_others(&opened.metadata()?, FOLDER_MODE) {
        return Ok(());
    }
    let is_foreign = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| !is_ours(&entry.file_name()));
    if std::fs::read_dir(folder)?.any(is_foreign) {
        return Err(io::Error::other("there are other files in it as well: give the program a folder of its own"));
    }
    opened.set_permissions(Permissions::from_mode(FOLDER_MODE))
}

/// Takes our files from others. They are not opened: closing the database would release SQLite's locks on it.
fn close_files(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)?.flatten().filter(|entry| is_ours(&entry.file_name())) {
        let found = entry.metadata()?; // of a link, if it is one
        if found.is_file() && has_others(&found, FILE_MODE) {
            std::fs::set_permissions(entry.path(), Permissions::from_mode(FILE_MODE))?;
        }
    }
    Ok(())
}

/// A link that our own user made, to keep the database elsewhere, is followed; another's is not.
fn check_link(database: &Path) -> io::Result<()> {
    match database.symlink_metadata() {
        Ok(found) if found.is_symlink() && !is_own(&found) => {
            Err(io::Error::other(format!("{}: it is a link that another user made: remove it", database.display())))
        }
        _ => Ok(()),
    }
}

//! Output files. A regular file is replaced atomically: the new one is written under a temporary name in the same folder,
//! gets the mode and the owner of the old one, and is renamed over it. Symbolic links are followed. FIFOs, devices and open
//! descriptors are written to, never replaced. `-` is stdout.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// Longer chains of symbolic links count as loops, as in Linux itself.
const LINKS_MAX: usize = 40;
/// Mode of a temporary file, until it gets that of the file it replaces.
const PRIVATE: u32 = 0o600;
/// Mode of a new file, before the umask.
const SHARED: u32 = 0o666;

/// What a path refers to, after following links.
#[derive(Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    /// A regular file, which may not exist yet.
    File(PathBuf),
    /// A FIFO, a device, or an open descriptor.
    Special(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Written {
    Whole,
    /// The reader has closed the pipe. Not an error, but there is no point in writing more.
    ReaderGone,
}

impl Destination {
    pub fn of(path: &Path) -> io::Result<Destination> {
        if path == Path::new("-") || path == Path::new("/dev/stdout") {
            return Ok(Destination::Stdout);
        }
        let mut path = path.to_path_buf();
        for _ in 0..LINKS_MAX {
            let kind = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata.file_type(),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Destination::File(path)),
                Err(error) => return Err(error),
            };
            if kind.is_dir() {
                return Err(io::Error::new(ErrorKind::IsADirectory, "is a folder: name a file in it"));
            }
            if !kind.is_symlink() {
                return Ok(if kind.is_file() { Destination::File(path) } else { Destination::Special(path) });
            }
            let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
            // The target of a link in /proc is not always a path, e.g. `pipe:[4026]`; the kernel opens it by the link.
            if folder.canonicalize().is_ok_and(|folder| folder.starts_with("/proc")) {
                return Ok(Destination::Special(path));
            }
            path = folder.join(fs::read_link(&path)?);
        }
        Err(io::Error::other("too many symbolic links"))
    }
}

/// Writes all bytes to the destination of the path.
pub fn write(path: &Path, mut bytes: &[u8]) -> io::Result<Written> {
    match Destination::of(path)? {
        Destination::Stdout => bytes_to_stdout(bytes),
        Destination::Special(path) => to_special(&path, &mut bytes),
        Destination::File(path) => {
            let mut draft = Draft::of(&path)?;
            draft.file.write_all(bytes)?;
            draft.keep()?;
            Ok(Written::Whole)
        }
    }
}

/// In one piece, not line by line or page by page.
pub fn bytes_to_stdout(bytes: &[u8]) -> io::Result<Written> {
    let mut stdout = io::stdout().lock();
    closed_pipe_is_ok(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

pub fn to_stdout(from: &mut dyn Read) -> io::Result<Written> {
    let mut stdout = io::stdout().lock();
    closed_pipe_is_ok(io::copy(from, &mut stdout).and_then(|_| stdout.flush()))
}

/// Opening a FIFO waits for a reader.
pub fn to_special(path: &Path, from: &mut dyn Read) -> io::Result<Written> {
    // A regular file behind a descriptor: continue after what has been written.
    let append = fs::metadata(path)?.is_file();
    let mut file = OpenOptions::new().write(!append).append(append).open(path)?;
    closed_pipe_is_ok(io::copy(from, &mut file).map(drop))
}

fn closed_pipe_is_ok(written: io::Result<()>) -> io::Result<Written> {
    match written {
        Ok(()) => Ok(Written::Whole),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
        Err(error) => Err(error),
    }
}

/// A temporary file: [`Draft::keep`] renames it, otherwise it is removed.
pub struct Draft {
    pub file: File,
    temporary: PathBuf,
    replaces: PathBuf,
}

impl Draft {
    /// A draft of the file at `path`, in the same folder.
    pub fn of(path: &Path) -> io::Result<Draft> {
        let name = path.file_name().ok_or_else(|| io::Error::other("not a file name"))?;
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        let mode = if path.exists() { PRIVATE } else { SHARED };
        // Never follow a symbolic link that another user has put there.
        let create = || OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary);
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&temporary)?; // left by a killed process with our process id
                create()?
            }
            file => file?,
        };
        Ok(Draft { file, temporary, replaces: path.to_path_buf() })
    }

    /// Whether a file's name is one of these temporary ones.
    pub fn is_temporary(name: &str) -> bool {
        let number = name.strip_suffix(".tmp").and_then(|name| name.strip_prefix('.')?.rsplit_once('.'));
        number.is_some_and(|(_, number)| number.parse::<u32>().is_ok())
    }

    /// Its temporary name.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Replaces the file.
    pub fn keep(self) -> io::Result<()> {
        if let Ok(old) = fs::metadata(&self.replaces) {
            let new = self.file.metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                // Only root may change the owner; changing the group to one of ours is allowed.
                let _ = fchown(&self.file, Some(old.uid()), Some(old.gid()))
                    .or_else(|_| fchown(&self.file, None, Some(old.gid())));
            }
            self.file.set_permissions(old.permissions())?; // after the owner, because changing that clears bits
        }
        // A rename before the data is on disk could leave an empty file after a crash.
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.replaces)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary); // already renamed if it was kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A folder for one test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rallypoint-file-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_as_a_whole_and_leaves_nothing_behind() {
        let folder = folder("whole");
        fs::create_dir_all(folder.join("taken")).unwrap();
        let path = folder.join("list.xml");
        for text in ["first", "second"] {
            assert_eq!(write(&path, text.as_bytes()).unwrap(), Written::Whole);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(write(&folder.join("taken"), b"a folder cannot be replaced").is_err());
        assert!(write(Path::new("/"), b"no name").is_err());
        assert!(write(&folder.join("nowhere/list.xml"), b"no folder").is_err());
        let draft = Draft::of(&path).unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
        assert!(Draft::is_temporary(&name(draft.path())) && !Draft::is_temporary(&name(&path)));
        drop(draft); // not kept
        assert_eq!(names(&folder), ["list.xml", "taken"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn links_are_followed_and_the_mode_is_kept() {
        let folder = folder("links");
        fs::create_dir_all(folder.join("real")).unwrap();
        let target = folder.join("real/list.xml");
        symlink("real/list.xml", folder.join("link")).unwrap();
        symlink("link", folder.join("link-to-link")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        // A dangling link's target is created, as by `>` in a shell.
        let _ = write(&folder.join("link-to-link"), b"new").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        let _ = write(&folder.join("link"), b"newer").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "newer");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o640);
        assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink());
        assert!(write(&folder.join("loop"), b"").is_err());
        assert_eq!(names(&folder), ["link", "link-to-link", "loop", "real"]);
        assert_eq!(names(&folder.join("real")), ["list.xml"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn special_files_are_written_to() {
        assert_eq!(Destination::of(Path::new("-")).unwrap(), Destination::Stdout);
        assert_eq!(Destination::of(Path::new("./-")).unwrap(), Destination::File("./-".into()));
        assert_eq!(Destination::of(Path::new("/dev/stdout")).unwrap(), Destination::Stdout);
        let null = Path::new("/dev/null");
        assert_eq!(Destination::of(null).unwrap(), Destination::Special(null.into()));
        assert_eq!(to_special(null, &mut &b"into the void"[..]).unwrap(), Written::Whole);
        assert_eq!(to_special(Path::new("/dev/full"), &mut &b"x"[..]).unwrap_err().kind(), ErrorKind::StorageFull);
        // A descriptor that is open for writing: its contents are kept.
        let folder = folder("descriptor");
        let path = folder.join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one ").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let _ = write(Path::new(&format!("/proc/self/fd/{number}")), b"two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one two");
        fs::remove_dir_all(&folder).unwrap();
    }
}

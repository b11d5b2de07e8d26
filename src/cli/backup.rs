//! `rallypoint backup FILE`: a consistent copy of the server's database, whether the server is running or not.

use std::fs::{File, Permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::out::{cannot_print, message};
use super::{Exit, Failure};
use crate::config::Config;
use crate::export::file::{self, Destination, Draft, Written};
use crate::store::sqlite::{self, Fault};

#[derive(clap::Args)]
#[command(after_help = "\
The copy is written under a temporary name and renamed when it is complete. A replaced file's mode and owner are kept, and \
symbolic links are followed. For a FIFO, a device or stdout the copy is first made in TMPDIR (or /tmp), which needs space \
for it; if the reader closes the pipe early, the command fails.

Examples:
  rallypoint backup /backup/rallypoint.db --force --config /etc/rallypoint/rallypoint.toml
  rallypoint backup - --config /etc/rallypoint/rallypoint.toml | gzip > rallypoint.db.gz")]
pub struct Arguments {
    /// The file to write; `-` is stdout. To restore it, stop the server and copy it to data_dir as rallypoint.db
    file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// The server's configuration file, which sets data_dir
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one key, e.g. --set data_dir=/var/lib/rallypoint
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = Config::load(arguments.config.as_deref(), &arguments.set)
        .map_err(|errors| Failure::new(Exit::Usage, errors))?;
    let folder = config.data_dir.ok_or_else(|| usage("data_dir is not set: the server keeps no data to copy"))?;
    let (from, to) = (folder.join(sqlite::FILE), &arguments.file);
    if !from.is_file() {
        return Err(usage(format!(
            "{} does not exist: give the server's --config, or its folder with --set data_dir=",
            from.display()
        )));
    }
    let copied = match Destination::of(to).map_err(|error| usage(format!("{}: {error}", to.display())))? {
        Destination::File(path) => replace(&from, &path, arguments),
        Destination::Special(path) => write_special(&from, &path, arguments),
        Destination::Stdout => print(&from),
    };
    let size = copied.map_err(|wrong| match wrong {
        Wrong::Failure(failure) => failure,
        Wrong::Store(Fault::Refused(reason)) => usage(reason),
        Wrong::Store(error) => cannot_copy(&from, to, &error),
        Wrong::Disk(error) => cannot_copy(&from, to, &error),
    })?;
    let name = if to == Path::new("-") { "stdout".into() } else { to.display().to_string() };
    message(format!("{name}: {size} bytes, a copy of {}", from.display()));
    Ok(())
}

enum Wrong {
    Failure(Failure),
    Store(Fault),
    Disk(io::Error),
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Wrong {
        Wrong::Failure(failure)
    }
}

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Wrong {
        Wrong::Store(fault)
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Wrong {
        Wrong::Disk(error)
    }
}

fn usage(text: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, text)
}

fn cannot_copy(from: &Path, to: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("{} cannot be copied to {}: {error}", from.display(), to.display()))
}

/// Replaces the file once the copy is complete; returns the size.
fn replace(from: &Path, to: &Path, arguments: &Arguments) -> Result<u64, Wrong> {
    let free = || match to.exists() && !arguments.force {
        true => Err(usage(format!("{} exists already: name another file, or add --force", to.display()))),
        false => Ok(()),
    };
    free()?;
    let draft = Draft::of(to)?;
    sqlite::copy(from, draft.path())?;
    let size = draft.file.metadata()?.len();
    free()?; // it may have been created in the meantime
    draft.keep()?;
    Ok(size)
}

/// Writes to a FIFO or a device; to a block device only with --force.
fn write_special(from: &Path, to: &Path, arguments: &Arguments) -> Result<u64, Wrong> {
    if !arguments.force && std::fs::metadata(to)?.file_type().is_block_device() {
        return Err(usage(format!("{} is a disk: add --force to overwrite it", to.display())).into());
    }
    let (mut copy, size) = temporary_copy(from)?;
    complete(file::to_special(to, &mut copy)?, size)
}

fn print(from: &Path) -> Result<u64, Wrong> {
    if io::stdout().is_terminal() {
        return Err(usage("not writing a database to a terminal: redirect stdout, or name a file").into());
    }
    let (mut copy, size) = temporary_copy(from)?;
    complete(file::to_stdout(&mut copy).map_err(cannot_print)?, size)
}

/// A partial database is useless, so a closed pipe is an error here.
fn complete(written: Written, size: u64) -> Result<u64, Wrong> {
    match written {
        Written::Whole => Ok(size),
        Written::ReaderGone => Err(io::Error::other("the reader closed the pipe early").into()),
    }
}

/// SQLite can only copy to a file. This one is already unlinked when it is returned.
fn temporary_copy(from: &Path) -> Result<(File, u64), Wrong> {
    let draft = Draft::of(&std::env::temp_dir().join(sqlite::FILE))?;
    draft.file.set_permissions(Permissions::from_mode(0o600))?; // the folder is shared with other users
    sqlite::copy(from, draft.path())?;
    let copy = File::open(draft.path())?;
    let size = copy.metadata()?.len();
    Ok((copy, size))
}

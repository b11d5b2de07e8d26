//! `rallypoint backup FILE`: a consistent copy of what the server keeps, while it runs or while it does not.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Exit, Failure};
use crate::config::Config;
use crate::store::sqlite::{self, Fault};

#[derive(clap::Args)]
pub struct Arguments {
    /// Where to put the copy. To go back to it, stop the server and put it in data_dir as rallypoint.db
    file: PathBuf,
    /// Replace the file if there is one already
    #[arg(long)]
    force: bool,
    /// The server's configuration file, for its data_dir
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one key, e.g. --set data_dir=/var/lib/rallypoint
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let failed = |text: String| Failure::new(Exit::Failed, text);
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let config = Config::load(arguments.config.as_deref(), &arguments.set)
        .map_err(|errors| Failure::new(Exit::Usage, errors))?;
    let folder = config.data_dir.ok_or_else(|| usage("data_dir is empty: nothing is kept, nothing to copy".into()))?;
    let (from, to) = (folder.join(sqlite::FILE), &arguments.file);
    if !from.is_file() {
        return Err(usage(format!(
            "data_dir: there is no {}: name the folder with --set data_dir=, or the server's --config",
            from.display()
        )));
    }
    let taken = || !arguments.force && to.exists();
    let exists = || usage(format!("{} exists already: name another file, or add --force", to.display()));
    if to.is_dir() {
        return Err(usage(format!("{} is a folder: name a file in it", to.display())));
    }
    if taken() {
        return Err(exists());
    }
    // Under another name until it is whole: whoever finds the file finds all of it.
    let part = beside(to, ".part");
    let _ = std::fs::remove_file(&part); // of an attempt that was cut short
    let copied = sqlite::copy(&from, &part).map_err(|fault| match fault {
        Fault::Refused(reason) => usage(reason),
        Fault::Failed(error) => failed(format!("{} cannot be copied to {}: {error}", from.display(), to.display())),
    });
    let copied = copied.and_then(|()| if taken() { Err(exists()) } else { Ok(()) });
    let kept = copied.and_then(|()| keep(&part, to).map_err(|error| failed(format!("{}: {error}", to.display()))));
    if kept.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    kept?;
    let size = std::fs::metadata(to).map_or(0, |metadata| metadata.len());
    eprintln!("{}: {size} bytes, a copy of {}", to.display(), from.display());
    Ok(())
}

/// On the disk, then under its name.
fn keep(part: &Path, to: &Path) -> std::io::Result<()> {
    File::open(part)?.sync_all()?;
    std::fs::rename(part, to)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

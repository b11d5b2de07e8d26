//! A copy of a Rallypoint as plain files, for any web server or CDN: the page, the lists and the API's list, each with
//! compressed siblings.
//!
//! `fetch` gets everything from the master before anything is written, `page` turns its page into a copy's, `files`
//! makes the JSON files, `folder` replaces what has changed.

mod fetch;
mod files;
mod folder;
mod page;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::client::list::ListError;
use crate::client::target::Kind;
use crate::client::{RetryPolicy, Target};
use crate::times::rfc3339;
use folder::Folder;

/// A file of the site: its path in the folder, and its bytes.
type File = (String, Vec<u8>);

/// What to copy.
pub struct Original<'a> {
    pub master: &'a Target,
    /// Where visitors find the live list, without a slash at its end.
    pub live: String,
    /// How often the copy is renewed.
    pub every: Option<Duration>,
    pub retry: RetryPolicy,
}

impl Original<'_> {
    /// The address of a Rallypoint for visitors.
    pub fn live_url(target: &Target) -> Result<String, String> {
        match target.kind {
            Kind::Rallypoint if !target.path.contains(['?', '#']) && !target.path.contains("/api/") => {
                Ok(target.to_string().trim_end_matches('/').to_string())
            }
            Kind::Rallypoint => Err(format!("`{target}`: write the address of the master itself, without a list")),
            _ => Err(format!("`{target}`: --site copies a Rallypoint: write http://… or https://…")),
        }
    }
}

/// What is true of the whole copy.
#[derive(Clone, Debug)]
struct About {
    live: String,
    /// RFC 3339, UTC.
    written_at: String,
    every: Option<Duration>,
}

#[derive(Debug)]
pub enum SiteError {
    Fetch(ListError),
    Write(PathBuf, io::Error),
}

impl fmt::Display for SiteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiteError::Fetch(error) => write!(f, "{error}"),
            SiteError::Write(path, error) => write!(f, "{}: cannot be written: {error}", path.display()),
        }
    }
}

/// What one round did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub servers: usize,
    /// Files that were written, compressed siblings not counted.
    pub files_changed: usize,
}

/// A folder with a copy.
pub struct Site {
    folder: Folder,
}

impl Site {
    /// Makes the folder if it does not exist.
    pub fn open(path: &Path) -> Result<Site, SiteError> {
        let folder = Folder::open(path).map_err(|error| SiteError::Write(path.to_path_buf(), error))?;
        Ok(Site { folder })
    }

    /// Copies the master once. Until everything has arrived and is on the disk, the old copy stays as it is.
    pub async fn copy(&mut self, of: &Original<'_>) -> Result<Copied, SiteError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let about = About { live: of.live.clone(), written_at: rfc3339(now.as_secs()), every: of.every };
        let fetched = fetch::all(of.master, of.retry).await.map_err(SiteError::Fetch)?;
        let known = self.folder.names(files::LISTS).map_err(|error| SiteError::Write(files::LISTS.into(), error))?;
        let servers = fetched.list.rows.len();
        let files = files::all(fetched, &about, &known).map_err(|why| SiteError::Fetch(ListError::Bad(why)))?;
        let files_changed = self.folder.replace(&files).map_err(|(path, error)| SiteError::Write(path, error))?;
        Ok(Copied { servers, files_changed })
    }
}

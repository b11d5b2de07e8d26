//! `rallypoint export`: fetches a master's list, queries every server and writes the results to files, or copies a whole
//! Rallypoint into a folder; once or repeatedly. A failed round is logged, and the next one follows.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::level_filters::LevelFilter;
use tracing::{error, info};

use super::list::{exit_of, fetch};
use super::options::{MasterOptions, QueryOptions, count, none_answered, progress};
use super::serve::start_log;
use super::{Exit, Failure, help, run_async, stop_signal, time};
use crate::client::Target;
use crate::client::query::Wanted;
use crate::export::file::{self, Destination, Written};
use crate::export::ftp::{self, Password};
use crate::export::site::{Original, Site, SiteError};
use crate::export::{Format, Layout, write};
use crate::times::format_duration;

/// Servers are not queried more often than this.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(365 * 86_400);

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("files").args(["xml", "json", "csv", "site"]).required(true).multiple(true)))]
#[command(after_help = after_help())]
pub struct Arguments {
    #[command(flatten)]
    master: MasterOptions,
    /// Write XML to this file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    xml: Option<PathBuf>,
    /// Write JSON to this file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write CSV to this file; `-` is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a copy of a Rallypoint into this folder: its page, its lists and its API's list, as files for any web server
    #[arg(long, value_name = "DIR")]
    site: Option<PathBuf>,
    /// The address of the live list that the copy links to [default: the master's address]
    #[arg(long, value_name = "URL", requires = "site")]
    live_url: Option<Target>,
    /// Also upload the files to this folder: ftp://user@host/folder, or ftps:// for FTP over TLS
    #[arg(long, value_name = "URL", value_parser = ftp::FtpFolder::parse)]
    ftp: Option<ftp::FtpFolder>,
    /// A file with the FTP password [default: the environment variable RALLYPOINT_FTP_PASSWORD]
    #[arg(long, value_name = "FILE", requires = "ftp")]
    ftp_password_file: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, in PEM format
    #[arg(long, value_name = "FILE", requires = "ftp")]
    ftp_ca_file: Option<PathBuf>,
    /// Repeat at this interval until Ctrl-C, e.g. 5m
    #[arg(long, value_name = "TIME", value_parser = every)]
    every: Option<Duration>,
    /// Export once (the default)
    #[arg(long, conflicts_with = "every")]
    once: bool,
    #[command(flatten)]
    querying: QueryOptions,
}

fn after_help() -> String {
    let game = help::example();
    format!(
        "\
Files are replaced atomically: a reader never sees a partial one. Their mode and owner are kept, and symbolic links are \
followed. FIFOs and devices are written to; `-` is stdout. Servers that did not answer are included: in XML with \
responding=\"0\" and the reason as fault, in JSON under `failed`, in CSV with the reason as fault.

--site needs no queries: the master knows its servers. All files are fetched before the first is replaced, so that a master \
that does not answer leaves the old copy complete. Files that did not change are left alone, and each has compressed \
siblings (.gz, .br, .zst) where they are smaller. The page says that it is a copy and how old it is. Folders in DIR that are \
symbolic links are refused. The lists of games that are gone become empty; site.json says what is there.

Exit codes: 0 a server answered, or none can be queried; 1 none answered, a file cannot be written, or stopped before the \
end; 2 usage; 3 the master cannot be reached. With --every, a failed round is only logged, and stopping it is 0.

Examples:
  rallypoint export {game}://master.example --xml servers.xml --every 5m
  rallypoint export {game}://master.example --xml servers.xml --ftp ftp://me@web.example/lists
  rallypoint export http://127.0.0.1:8080 --site /var/www/list --live-url https://master.example --every 10s"
    )
}

fn every(text: &str) -> Result<Duration, String> {
    time::between(text, EVERY_MIN, EVERY_MAX)
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    start_log(LevelFilter::INFO);
    let usage = |error: String| Failure::new(Exit::Usage, error);
    arguments.check().map_err(usage)?;
    let upload = Upload::new(arguments).map_err(usage)?;
    let mut mirror = Mirror::new(arguments)?;
    run_async(async {
        let stop = stop_signal()?;
        tokio::select! {
            result = rounds(arguments, upload.as_ref(), mirror.as_mut()) => return result,
            () = stop => info!("stopped"),
        }
        // Stopping is the normal end of repeated rounds, but a single round was not completed.
        if arguments.every.is_some() { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
    })
}

impl Arguments {
    fn files(&self) -> impl Iterator<Item = (&Path, Format)> {
        let files = [(&self.xml, Format::Xml), (&self.json, Format::Json), (&self.csv, Format::Csv)];
        files.into_iter().filter_map(|(path, format)| Some((path.as_deref()?, format)))
    }

    fn check(&self) -> Result<(), String> {
        let mut seen = HashSet::new();
        let mut destinations = self.files().filter_map(|(path, _)| Some((path, Destination::of(path).ok()?)));
        let again = destinations.find(|(_, to)| matches!(to, Destination::File(path) if !seen.insert(path.clone())));
        if let Some((path, _)) = again {
            return Err(format!("{}: two formats cannot be written to the same file", path.display()));
        }
        match self.files().filter(|(path, _)| is_stdout(path)).count() {
            0 if self.ftp.is_some() && self.files().next().is_none() => {
                Err("--ftp uploads the files of --xml, --json and --csv, not a site".into())
            }
            0 => Ok(()),
            _ if self.ftp.is_some() => Err("--ftp needs file names: stdout cannot be uploaded".into()),
            1 => Ok(()),
            _ => Err("only one of --xml, --json and --csv can be `-`".into()),
        }
    }
}

/// The FTP upload of the written files.
struct Upload<'a> {
    target: &'a ftp::FtpFolder,
    password: Password,
    settings: ftp::Settings,
}

impl Upload<'_> {
    fn new(arguments: &Arguments) -> Result<Option<Upload<'_>>, String> {
        let Some(target) = &arguments.ftp else { return Ok(None) };
        let variable = std::env::var("RALLYPOINT_FTP_PASSWORD").ok();
        let password = Password::find(arguments.ftp_password_file.as_deref(), variable)?;
        let settings = ftp::Settings { ca_file: arguments.ftp_ca_file.clone(), ..ftp::Settings::default() };
        Ok(Some(Upload { target, password, settings }))
    }

    async fn send(&self, path: &Path, text: &str) -> Result<(), Failure> {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let sent = ftp::upload(self.target, &self.password, &self.settings, &name, text.as_bytes()).await;
        sent.map_err(|error| Failure::new(Exit::Network, error))
    }
}

/// The copy of a Rallypoint.
struct Mirror<'a> {
    original: Original<'a>,
    path: &'a Path,
    site: Site,
}

impl Mirror<'_> {
    fn new(arguments: &Arguments) -> Result<Option<Mirror<'_>>, Failure> {
        let Some(path) = &arguments.site else { return Ok(None) };
        let usage = |error: String| Failure::new(Exit::Usage, error);
        let master = &arguments.master.url;
        let own = Original::live_url(master).map_err(usage)?;
        let live = arguments.live_url.as_ref().map_or(Ok(own), Original::live_url).map_err(usage)?;
        let retry = arguments.querying.pace().retry;
        let original = Original { master, live, every: arguments.every, retry };
        let site = Site::open(path).map_err(|error| Failure::new(Exit::Failed, error))?;
        Ok(Some(Mirror { original, path, site }))
    }

    async fn copy(&mut self) -> Result<(), Failure> {
        let progress = progress(None, "{spinner} copying {elapsed}");
        let copied = self.site.copy(&self.original).await;
        progress.finish_and_clear();
        let copied = copied.map_err(|error| match error {
            SiteError::Fetch(error) => Failure::new(exit_of(&error), format!("{}: {error}", self.original.master)),
            error => Failure::new(Exit::Failed, error),
        })?;
        let path = self.path.display();
        info!("{} servers copied to {path}; {} files changed", copied.servers, copied.files_changed);
        Ok(())
    }
}

async fn rounds(
    arguments: &Arguments,
    upload: Option<&Upload<'_>>,
    mut mirror: Option<&mut Mirror<'_>>,
) -> Result<(), Failure> {
    let Some(every) = arguments.every else { return round(arguments, upload, mirror).await.map(drop) };
    loop {
        let next = Instant::now() + every;
        match round(arguments, upload, mirror.as_deref_mut()).await {
            Ok(Written::Whole) => {}
            Ok(Written::ReaderGone) => return Ok(()),
            // A usage error would only repeat.
            Err(failure) if failure.exit == Exit::Usage => return Err(failure),
            Err(failure) => {
                error!("{}; next round in {}", failure.message, format_duration(every))
            }
        }
        sleep_until(next).await;
    }
}

async fn round(
    arguments: &Arguments,
    upload: Option<&Upload<'_>>,
    mirror: Option<&mut Mirror<'_>>,
) -> Result<Written, Failure> {
    let copied = match mirror {
        Some(mirror) => mirror.copy().await,
        None => Ok(()),
    };
    // One does not wait for the other: silent game servers are no reason for an old copy.
    let written = match arguments.files().next() {
        Some(_) => lists(arguments, upload).await,
        None => Ok(Written::Whole),
    };
    copied.and(written)
}

/// The lists of queried servers.
async fn lists(arguments: &Arguments, upload: Option<&Upload<'_>>) -> Result<Written, Failure> {
    let mut servers = fetch(&arguments.master, &arguments.querying).await?;
    let details = arguments.files().any(|(_, format)| format.shows_details());
    arguments.querying.query_beside(&mut servers, Wanted { details, ..Wanted::default() }).await?;
    let files: Vec<_> = arguments.files().collect();
    let mut stdout = Written::Whole;
    for (path, format) in &files {
        let text = write(*format, &servers, &Layout::default());
        let written = write_to(path.to_path_buf(), text.clone()).await?;
        if is_stdout(path) {
            stdout = written; // a FIFO may get another reader, but stdout does not
        }
        if let Some(upload) = upload {
            upload.send(path, &text).await?;
        }
    }
    let names: Vec<_> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    let (answered, asked) = count(&servers);
    let failed = asked - answered;
    info!("{} servers listed, {failed} without an answer; written to {}", servers.len(), names.join(" and "));
    if asked > 0 && answered == 0 {
        return Err(Failure::new(Exit::Failed, none_answered(&servers)));
    }
    Ok(stdout)
}

/// A regular file is written synchronously, so that a signal cannot leave a temporary file behind. Anything else is written
/// on another thread: opening a FIFO may block until it has a reader, and Ctrl-C has to end that, too.
async fn write_to(path: PathBuf, text: String) -> Result<Written, Failure> {
    let name = if is_stdout(&path) { "stdout".into() } else { path.display().to_string() };
    let is_file = matches!(Destination::of(&path), Ok(Destination::File(_)));
    let write = move || file::write(&path, text.as_bytes());
    let written = match is_file {
        true => write(),
        false => tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(std::io::Error::other(error))),
    };
    written.map_err(|error| Failure::new(Exit::Failed, format!("{name}: cannot be written: {error}")))
}

fn is_stdout(path: &Path) -> bool {
    matches!(Destination::of(path), Ok(Destination::Stdout))
}

//! `rallypoint export`: fetches a master's list, asks every server and writes what it finds to files, once or again and
//! again. A round that fails is logged, and the next one comes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::level_filters::LevelFilter;
use tracing::{error, info};

use super::list::fetch;
use super::serve::start_log;
use super::shown::Asking;
use super::{Exit, Failure, run_async, stop_signal};
use crate::client::{Place, State};
use crate::export::ftp::{self, Password, Target};
use crate::export::{Format, file, write};

/// Nobody's servers are asked more often than this.
const EVERY_MIN: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
#[command(after_help = "\
The files are replaced as a whole: who reads one never sees half of it. The XML names every listed server, with
responding=\"0\" for those that did not answer; the JSON has those that did.

Example: rallypoint export hyperbol://master.example --xml servers.xml --every 5m --ftp ftp://me@web.example/lists")]
pub struct Arguments {
    /// The master, as for `rallypoint list`
    url: Place,
    /// Write XML to this file
    #[arg(long, value_name = "FILE", required_unless_present = "json")]
    xml: Option<PathBuf>,
    /// Write JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also upload the files, under their own names, to this folder: ftp://user@host/folder, or ftps:// for FTP over TLS
    #[arg(long, value_name = "URL", value_parser = Target::parse)]
    ftp: Option<Target>,
    /// A file with the FTP password; without it, the environment's RALLYPOINT_FTP_PASSWORD
    #[arg(long, value_name = "FILE", requires = "ftp")]
    ftp_password_file: Option<PathBuf>,
    /// Certificates to trust besides the system's, in PEM
    #[arg(long, value_name = "FILE", requires = "ftp")]
    ftp_ca_file: Option<PathBuf>,
    /// Again and again, this far apart, until Ctrl-C; for example 5m
    #[arg(long, value_name = "TIME", value_parser = every)]
    every: Option<Duration>,
    /// One time only, which is the default
    #[arg(long, conflicts_with = "every")]
    once: bool,
    #[command(flatten)]
    asking: Asking,
}

fn every(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|_| "write a time like 5m or 90s".to_string())?;
    if time < EVERY_MIN { Err("at least 1s".into()) } else { Ok(time) }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    start_log(LevelFilter::INFO);
    let upload = Upload::new(arguments).map_err(|error| Failure::new(Exit::Usage, error))?;
    run_async(async {
        let stop = stop_signal()?;
        tokio::select! {
            result = rounds(arguments, upload.as_ref()) => return result,
            () = stop => info!("stopped"),
        }
        Ok(())
    })
}

/// Where the written files go, too.
struct Upload<'a> {
    target: &'a Target,
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

async fn rounds(arguments: &Arguments, upload: Option<&Upload<'_>>) -> Result<(), Failure> {
    let Some(every) = arguments.every else { return round(arguments, upload).await };
    loop {
        let next = Instant::now() + every;
        match round(arguments, upload).await {
            Ok(()) => {}
            // Waiting does not mend what was typed.
            Err(failure) if failure.exit == Exit::Usage => return Err(failure),
            Err(failure) => {
                error!("{}; the next round comes in {}", failure.message, humantime::format_duration(every))
            }
        }
        sleep_until(next).await;
    }
}

async fn round(arguments: &Arguments, upload: Option<&Upload<'_>>) -> Result<(), Failure> {
    let mut servers = fetch(&arguments.url).await?;
    arguments.asking.ask(&mut servers).await?;
    let failed = servers.iter().filter(|server| matches!(server.state, State::Failed(_))).count();
    let files = [(&arguments.xml, Format::Xml), (&arguments.json, Format::Json)];
    let files: Vec<_> = files.into_iter().filter_map(|(path, format)| Some((path.as_ref()?, format))).collect();
    for (path, format) in &files {
        let text = write(*format, &servers);
        file::write(path, &text)
            .map_err(|error| Failure::new(Exit::Failed, format!("{}: cannot be written: {error}", path.display())))?;
        if let Some(upload) = upload {
            upload.send(path, &text).await?;
        }
    }
    let names: Vec<_> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    info!("{} servers listed, {failed} of them silent; written to {}", servers.len(), names.join(" and "));
    Ok(())
}

//! `rallypoint serve`: runs the master server in the foreground until SIGTERM or Ctrl-C. SIGHUP reloads the configuration.

use std::io::IsTerminal;
use std::path::PathBuf;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::level_filters::LevelFilter;
use tracing::{debug, error, info};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

use super::out::message;
use super::{Exit, Failure, greeting};
use crate::admin::answer::Reload;
use crate::app::App;
use crate::config::Config;
use crate::net::listen::ListenError;
use crate::net::network::machine_addresses;

#[derive(clap::Args)]
pub struct Arguments {
    /// Configuration file [default: built-in configuration, see `rallypoint config`]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override one key, e.g. --set web.listen=127.0.0.1:8080; lists are comma-separated, an empty value is an empty list
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Arguments {
    fn load(&self) -> Result<Config, Failure> {
        Config::load(self.config.as_deref(), &self.set).map_err(|errors| Failure::new(Exit::Usage, errors))
    }
}

type LogLevel = reload::Handle<LevelFilter, tracing_subscriber::Registry>;

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = arguments.load()?;
    let level = start_log(config.log.into());
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    let result = runtime.block_on(serve(arguments, config, &level));
    runtime.shutdown_background();
    result
}

async fn serve(arguments: &Arguments, config: Config, level: &LogLevel) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, error);
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut app = App::start(config).await.map_err(|error| {
        let exit = if error.is::<ListenError>() { Exit::Network } else { Exit::Usage };
        Failure::new(exit, format!("{error:#}"))
    })?;
    let mut reloads = app.take_reloads();
    say_ready(&app);
    notify_systemd(NotifyState::Ready);
    loop {
        tokio::select! {
            error = app.supervise() => {
                error!("{error:#}");
                return Err(Failure::new(Exit::Failed, error));
            }
            _ = hangup.recv() => drop(reload_config(&mut app, arguments, level)),
            Some(answer) = next(&mut reloads) => {
                let _ = answer.send(reload_config(&mut app, arguments, level)); // fails if the client is gone
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    info!("stopping");
    notify_systemd(NotifyState::Stopping);
    app.stop().await;
    info!("stopped");
    Ok(())
}

/// To a person on a terminal, where everything is and what comes next; to a log, a line for each port.
fn say_ready(app: &App) {
    let version = env!("CARGO_PKG_VERSION");
    if std::io::stderr().is_terminal() {
        message(greeting::text(version, app.listening(), app.config(), &machine_addresses()));
        return;
    }
    for port in app.listening() {
        info!("{}: listening on {}", port.key, port.address);
    }
    info!("rallypoint {version} is ready");
}

/// The next request over the admin socket; never, if there is none.
async fn next(reloads: &mut Option<mpsc::Receiver<Reload>>) -> Option<Reload> {
    match reloads {
        Some(reloads) => reloads.recv().await,
        None => std::future::pending().await,
    }
}

/// Does nothing unless the program was started by systemd.
fn notify_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        debug!(%error, "cannot notify systemd");
    }
}

/// Returns the keys that need a restart, or the errors. An invalid configuration changes nothing.
fn reload_config(app: &mut App, arguments: &Arguments, level: &LogLevel) -> Result<Vec<String>, String> {
    let mut load = || {
        let config = arguments.load().map_err(|failure| failure.message)?;
        let log = config.log;
        let fixed = app.reload(config).map_err(|error| format!("{error:#}"))?;
        let _ = level.modify(|level| *level = log.into()); // fails only without a subscriber
        Ok(fixed)
    };
    let result: Result<Vec<String>, String> = load();
    match &result {
        Ok(_) => info!("configuration reloaded"),
        Err(errors) => error!("configuration not reloaded, keeping the old one: {errors}"),
    }
    result
}

pub fn start_log(level: LevelFilter) -> LogLevel {
    let (filter, handle) = reload::Layer::new(level);
    let is_terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(is_terminal).with_target(false);
    // The NATS client logs every connection attempt; the cluster reports failures once.
    let lines = lines.with_filter(filter_fn(|line| !line.target().starts_with("async_nats")));
    // A second call in one process (as in tests) keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    handle
}

/// Each connection needs a descriptor, and the usual limit of 1024 is below our own connection limit.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

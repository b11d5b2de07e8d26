//! `rallypoint announce`: runs beside a game server and announces it to masters.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::out::message;
use super::{Exit, Failure, help};
use crate::client::Target;
use crate::client::announce::{self, Master, Plan, Source, Status, Summary};
use crate::model::{Facts, GAME_BYTES_MAX};
use crate::protocols::announce::Offer;
use crate::protocols::card;
use crate::text;

/// Upper bound on names and other texts.
const TEXT_BYTES_MAX: usize = 256;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[arg(value_parser = game, help = game_help())]
    game: String,
    /// The game server's port; with --from-query, defaults to that URL's port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), required_unless_present = "from_query")]
    port: Option<u16>,
    /// A master to announce to; can be given several times
    #[arg(long = "master", value_name = "URL", required = true)]
    masters: Vec<Target>,
    /// The server's name
    #[arg(long, value_parser = clean_text)]
    name: Option<String>,
    /// The game mode
    #[arg(long, value_parser = clean_text)]
    mode: Option<String>,
    /// The current map
    #[arg(long, value_parser = clean_text)]
    map: Option<String>,
    /// Number of players
    #[arg(long, value_name = "N")]
    players: Option<u16>,
    /// Maximum number of players
    #[arg(long, value_name = "N")]
    max_players: Option<u16>,
    /// The game's version [default: the current one]
    #[arg(long, value_name = "V", value_parser = clean_text)]
    version: Option<String>,
    #[arg(long, value_name = "URL", help = from_query_help())]
    from_query: Option<Target>,
    /// Announce once to each master, wait for the results and exit
    #[arg(long)]
    once: bool,
}

fn game_help() -> String {
    format!("The game: {}, or any other name that the master accepts", help::names("or"))
}

fn from_query_help() -> String {
    let game = help::example();
    format!("Query the game server for name, map and players before each announcement, e.g. {game}://127.0.0.1")
}

fn after_help() -> String {
    format!(
        "\
{}
{}A master lists the address that the announcement comes from, so run this on the game server's machine. Each master is \
retried on its own if it refuses or cannot be reached. On Ctrl-C or SIGTERM, masters are notified that the server is gone, \
if their protocol has a message for that; not with --once.

Exit codes: 0 stopped by a signal or, with --once, accepted by every master; 1 given up on every master, rejected as \
malformed by one or, with --once, not accepted by every master; 2 usage.",
        help::announce_masters(),
        help::own_port(),
    )
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let plan = plan(arguments).map_err(|error| Failure::new(Exit::Usage, error))?;
    if plan.masters.iter().any(Master::lists_what_is_announced)
        && plan.source.is_none()
        && plan.offer.facts.name.is_empty()
    {
        message("no --name: the server will be listed without one");
    }
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (masters, once) = (plan.masters.len(), plan.once);
    let result = runtime.block_on(announce(plan));
    runtime.shutdown_background(); // does not wait for DNS lookups
    exit_result(result.map_err(cannot)?, masters, once)
}

async fn announce(plan: Plan) -> std::io::Result<Summary> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let stop = watch::Sender::new(false);
    let once = plan.once;
    let report = move |master: &Master, status: &Status| message(line(master, status, once));
    let announcing = announce::run(plan, Arc::new(report), stop.subscribe());
    tokio::pin!(announcing);
    loop {
        tokio::select! {
            summary = &mut announcing => return Ok(summary),
            _ = terminate.recv() => stop.send_replace(true),
            _ = interrupt.recv() => stop.send_replace(true),
            _ = hangup.recv() => stop.send_replace(true),
        };
    }
}

fn exit_result(summary: Summary, masters: usize, once: bool) -> Result<(), Failure> {
    let failed = |message: String| Err(Failure::new(Exit::Failed, message));
    match summary {
        Summary { malformed: true, .. } => failed("stopped: a master rejected the announcement as malformed".into()),
        Summary { stopped: true, .. } if !once => Ok(()),
        Summary { accepted, .. } if once && accepted == masters => Ok(()),
        Summary { accepted, .. } if once => failed(format!("accepted by {accepted} of {masters} masters")),
        _ => failed("given up on all masters".into()),
    }
}

/// The message for a status change.
fn line(master: &Master, status: &Status, once: bool) -> String {
    let retrying = match status {
        Status::Refused(_) | Status::Failed(_) | Status::GameFailed(_) if !once => "; retrying",
        _ => "",
    };
    match status {
        Status::Listed => format!("listed at {master}"),
        other => format!("{master}: {other}{retrying}"),
    }
}

fn plan(arguments: &Arguments) -> Result<Plan, String> {
    let source = arguments.from_query.clone().map(Source::of).transpose()?;
    let family = source.as_ref().and_then(Source::family).filter(|_| card(&arguments.game).is_none());
    let game = family.unwrap_or(&arguments.game);
    let masters: Result<Vec<_>, _> = arguments.masters.iter().map(|target| Master::of(target.clone(), game)).collect();
    let masters = masters?;
    let port = arguments.port.or(source.as_ref().map(Source::port)).ok_or("--port is missing")?;
    let given = |text: &Option<String>| Cow::Owned(text.clone().unwrap_or_default());
    let facts = Facts {
        name: given(&arguments.name),
        mode: given(&arguments.mode),
        map: given(&arguments.map),
        version: text::version(given(&arguments.version).as_bytes()),
        players_current: arguments.players,
        players_max: arguments.max_players,
        ..Facts::default()
    };
    let offer = Offer { game: game.into(), port, facts };
    masters.iter().try_for_each(|master| master.check(&offer))?;
    Ok(Plan { offer, source, masters, from: None, once: arguments.once })
}

/// A game's name that masters for any game can list.
fn game(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_graphic() && c != '\\';
    match text {
        "" | "final" => Err("not a valid name for a game".into()),
        _ if text.len() > GAME_BYTES_MAX => Err(format!("longer than {GAME_BYTES_MAX} bytes")),
        _ if !text.chars().all(good) => {
            Err("only printable ASCII characters other than space and \\ are allowed".into())
        }
        _ => Ok(text.into()),
    }
}

/// A text without control characters.
fn clean_text(text: &str) -> Result<String, String> {
    match text::clean(text.as_bytes()) {
        _ if text.len() > TEXT_BYTES_MAX => Err(format!("longer than {TEXT_BYTES_MAX} bytes")),
        clean if clean == text => Ok(text.into()),
        _ => Err("contains control characters".into()),
    }
}

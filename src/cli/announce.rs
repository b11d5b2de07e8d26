//! `rallypoint announce`: stands beside a game server and announces it to masters.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::out::tell;
use super::{Exit, Failure, help};
use crate::client::Target;
use crate::client::announce::{self, Ending, Master, Plan, Source, Standing};
use crate::model::{Facts, GAME_BYTES_MAX};
use crate::protocols::announce::Offer;
use crate::text;

/// The longest text that makes sense to a master.
const TEXT_BYTES_MAX: usize = 256;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[arg(value_parser = game, help = game_help())]
    game: String,
    /// The port that the game is played on; with --from-query, that URL's port if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), required_unless_present = "from_query")]
    port: Option<u16>,
    /// A master to announce to; give it again for each further one
    #[arg(long = "master", value_name = "URL", required = true)]
    masters: Vec<Target>,
    /// The server's name
    #[arg(long, value_parser = words)]
    name: Option<String>,
    /// The kind of game that is played
    #[arg(long, value_parser = words)]
    mode: Option<String>,
    /// The map that is played
    #[arg(long, value_parser = words)]
    map: Option<String>,
    /// How many play
    #[arg(long, value_name = "N")]
    players: Option<u16>,
    /// How many can play
    #[arg(long, value_name = "N")]
    max_players: Option<u16>,
    /// The game's version; the current one if not given
    #[arg(long, value_name = "V", value_parser = words)]
    version: Option<String>,
    #[arg(long, value_name = "URL", help = from_query_help())]
    from_query: Option<Target>,
    /// Announce once to each master, wait for the outcome and end
    #[arg(long)]
    once: bool,
}

fn game_help() -> String {
    format!("The game: {}, or any name that a master takes", help::names("or"))
}

fn from_query_help() -> String {
    let game = help::example();
    format!("Read name, map and players from the game itself before each announcement, e.g. {game}://127.0.0.1")
}

fn after_help() -> String {
    format!(
        "\
{}
{}A master lists the address that the announcement comes from: run this on the game server's machine. A master \
that is away or refuses is tried again, and the others are not held up. At the end (Ctrl-C, SIGTERM), masters are told \
that the server is gone where their protocol has a message for it; not with --once.

Exit codes: 0 ended by a signal, or, with --once, accepted by every master; 1 with --once, not accepted by every \
master; otherwise given up by all, or called malformed by one; 2 usage.",
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
        tell("no --name: the server will be listed without one");
    }
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (masters, once) = (plan.masters.len(), plan.once);
    let result = runtime.block_on(announce(plan));
    runtime.shutdown_background(); // a look-up of a name may still be on its way
    judge(result.map_err(cannot)?, masters, once)
}

async fn announce(plan: Plan) -> std::io::Result<Ending> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let stop = watch::Sender::new(false);
    let once = plan.once;
    let told = move |master: &Master, standing: &Standing| tell(line(master, standing, once));
    let announcing = announce::run(plan, Arc::new(told), stop.subscribe());
    tokio::pin!(announcing);
    loop {
        tokio::select! {
            ending = &mut announcing => return Ok(ending),
            _ = terminate.recv() => stop.send_replace(true),
            _ = interrupt.recv() => stop.send_replace(true),
            _ = hangup.recv() => stop.send_replace(true),
        };
    }
}

fn judge(ending: Ending, masters: usize, once: bool) -> Result<(), Failure> {
    let failed = |message: String| Err(Failure::new(Exit::Failed, message));
    match ending {
        Ending { malformed: true, .. } => failed("a master calls the announcement malformed: stopped".into()),
        Ending { stopped: true, .. } if !once => Ok(()),
        Ending { accepted, .. } if once && accepted == masters => Ok(()),
        Ending { accepted, .. } if once => failed(format!("accepted by {accepted} of {masters} masters")),
        _ => failed("no master is left to announce to".into()),
    }
}

/// One change, for people.
fn line(master: &Master, standing: &Standing, once: bool) -> String {
    let again = match standing {
        Standing::Refused(_) | Standing::Away(_) | Standing::GameAway(_) if !once => "; trying again",
        _ => "",
    };
    match standing {
        Standing::Listed => format!("listed at {master}"),
        other => format!("{master}: {other}{again}"),
    }
}

fn plan(arguments: &Arguments) -> Result<Plan, String> {
    let masters: Result<Vec<_>, _> =
        arguments.masters.iter().map(|target| Master::of(target.clone(), &arguments.game)).collect();
    let masters = masters?;
    let source = arguments.from_query.clone().map(Source::of).transpose()?;
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
    let offer = Offer { game: arguments.game.clone(), port, facts };
    masters.iter().try_for_each(|master| master.check(&offer))?;
    Ok(Plan { offer, source, masters, from: None, once: arguments.once })
}

/// A name of a game, as masters that take any game can list it.
fn game(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_graphic() && c != '\\';
    match text {
        "" | "final" => Err("no name of a game".into()),
        _ if text.len() > GAME_BYTES_MAX => Err(format!("longer than {GAME_BYTES_MAX} bytes")),
        _ if !text.chars().all(good) => Err("only letters, digits and signs other than \\".into()),
        _ => Ok(text.into()),
    }
}

/// A text that every master can show.
fn words(text: &str) -> Result<String, String> {
    match text::clean(text.as_bytes()) {
        _ if text.len() > TEXT_BYTES_MAX => Err(format!("longer than {TEXT_BYTES_MAX} bytes")),
        clean if clean == text => Ok(text.into()),
        _ => Err("has control characters".into()),
    }
}

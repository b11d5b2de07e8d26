//! `rallypoint watch`: masters' lists, live. Draws a screen on a terminal; otherwise prints one line per change.

mod child;
mod exec;
mod lines;
mod on_screen;

use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::list::exit_of;
use super::options::{QueryOptions, Selection};
use super::out::message;
use super::screen::KEYS;
use super::terminal::is_drawable;
use super::{Exit, Failure, help, run_async, stop_signal, time};
use crate::client::list::ListError;
use crate::client::query::Pace;
use crate::client::watch::rounds::{Failed, Plan, Round};
use crate::client::watch::{ChangeKind, Changes, Masters};
use crate::client::{Found, Target};
use crate::times::rfc3339;
use exec::{Exec, ExecCommand, Job, Output};

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    /// The masters' addresses: servers of all of them are shown as one list
    #[arg(required = true, value_name = "URL")]
    urls: Vec<Target>,
    /// A game to list, if a master's protocol has several; can be given several times
    #[arg(long = "game", value_name = "NAME[:PROTOCOL]")]
    games: Vec<String>,
    /// How often to refresh
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = every)]
    every: Duration,
    /// Show only the masters' lists, without querying the servers
    #[arg(long)]
    no_query: bool,
    /// Output format if stdout is not a terminal
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Run a command for every change: see below
    #[arg(long, value_name = "COMMAND", value_parser = ExecCommand::parse)]
    exec: Option<ExecCommand>,
    /// End the command of --exec if it takes longer, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = exec_timeout, requires = "exec")]
    exec_timeout: Duration,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    querying: QueryOptions,
}

fn after_help() -> String {
    let keys: String = KEYS.iter().map(|(keys, what)| format!("  {keys:<14}{what}\n")).collect();
    let (masters, game) = (help::masters(), help::example());
    format!(
        "\
{masters}
Keys on a terminal:
{keys}
If stdout is not a terminal, or TERM is `dumb`, it prints one line for every server that comes, changes or goes, until it \
is stopped.

--exec runs its command for every server that comes, changes or goes after a master's first list; --not-empty and --not-full \
count. There is no shell: the command line is split at blanks, with quotes as in a shell, and nothing is expanded. The change \
is on stdin, as the JSON object of --format json, and in RALLYPOINT_EVENT (came, changed or went), RALLYPOINT_AT, _PROTOCOL, \
_GAME, _ADDRESS, _HOST, _PORT, _URL, _NAME, _MAP, _MODE, _VERSION, _PLAYERS, _PLAYERS_MAX, _PING_MS, _COUNTRY, _MASTERS and \
_FAULT; what is unknown is not set. Names are chosen by strangers: in a script, write \"$RALLYPOINT_NAME\" with quotes. One \
command runs at a time; up to {queue} changes wait.

Examples:
  rallypoint watch {game}://master.example --every 10s --not-empty
  rallypoint watch http://one.example {game}://two.example
  rallypoint watch http://master.example --exec 'sh -c \"notify-send -- \\\"$RALLYPOINT_EVENT\\\" \\\"$RALLYPOINT_NAME\\\"\"'",
        queue = exec::QUEUE_MAX
    )
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    /// One object per line: at, event, server
    #[value(alias = "jsonl")]
    Json,
}

const DAY: Duration = Duration::from_secs(86_400);

/// At least a second, to limit the load on the masters.
fn every(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_secs(1), DAY)
}

fn exec_timeout(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_millis(100), Duration::from_secs(3_600))
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let watch = Watch::new(arguments)?;
    let on_a_screen = is_drawable().unwrap_or_else(|why| {
        message(format!("{why}: printing one line per change instead"));
        false
    });
    run_async(async {
        let stop = pin!(stop_signal()?);
        if on_a_screen { on_screen::run(&watch, stop).await } else { lines::run(&watch, stop).await }
    })
}

/// What is watched.
struct Watch<'a> {
    arguments: &'a Arguments,
    plan: Plan,
    /// The masters' addresses as text.
    names: Vec<String>,
}

impl Watch<'_> {
    fn new(arguments: &Arguments) -> Result<Watch<'_>, Failure> {
        let Arguments { urls, games, every, no_query, .. } = arguments;
        let wrong = |why: String| Err(Failure::new(Exit::Usage, why));
        let names: Vec<String> = urls.iter().map(Target::to_string).collect();
        if names.len() > Masters::MAX {
            return wrong(format!(
                "{} masters are given; at most {} can be watched at once",
                names.len(),
                Masters::MAX
            ));
        }
        if let Some(twice) =
            names.iter().enumerate().find_map(|(at, name)| names.get(..at)?.contains(name).then_some(name))
        {
            return wrong(format!("{twice} is given twice"));
        }
        if !games.is_empty() && urls.iter().all(|url| url.datagram_fetch().is_none()) {
            let one = if urls.len() == 1 { "this master has one list" } else { "these masters have one list each" };
            return wrong(format!("{one} for all games; --game cannot choose"));
        }
        let pace: Pace = arguments.querying.pace();
        let plan = Plan {
            masters: urls.clone(),
            games: games.clone(),
            retry: pace.retry,
            pace: (!no_query).then_some(pace),
            every: *every,
        };
        Ok(Watch { arguments, plan, names })
    }

    /// The masters that list a server, if there are several to tell apart.
    fn masters_of(&self, found: &Found) -> Vec<&str> {
        let listing = found.masters.iter().filter_map(|number| self.names.get(number).map(String::as_str));
        if self.names.len() > 1 { listing.collect() } else { Vec::new() }
    }

    fn exec(&self, output: Output) -> Option<Exec> {
        let Arguments { exec, exec_timeout, .. } = self.arguments;
        exec.clone().map(|command| Exec::new(command, *exec_timeout, output))
    }

    /// What a failure is about: a master, or nothing more than its text.
    fn name_of(&self, failed: &Failed) -> &str {
        failed.master.and_then(|number| self.names.get(number)).map_or("cannot send queries", String::as_str)
    }

    /// Why the command fails after its first round; None: it goes on. Wrong addresses do not get better with time.
    fn first_failure(&self, round: &Round) -> Option<Failure> {
        let is_wrong = |failed: &&Failed| matches!(*failed.error, ListError::Usage(_)) || failed.master.is_none();
        let failed = round.failed.iter().find(is_wrong).or_else(|| round.failed.first().filter(|_| !round.has_list))?;
        Some(Failure::new(exit_of(&failed.error), format!("{}: {}", self.name_of(failed), failed.error)))
    }
}

/// Changes that a command is run for: those of the filters on the command line.
#[derive(Default)]
struct Feed {
    changes: Changes,
}

impl Feed {
    /// Compares a round with the last one. Queues a job for each change, except for the servers of a master's first list.
    fn take(&mut self, watch: &Watch<'_>, round: &Round, exec: Option<&mut Exec>) -> Vec<(ChangeKind, Found)> {
        let mut servers = round.servers.clone();
        watch.arguments.selection.apply(&mut servers);
        let changes = self.changes.since_last(servers);
        if let Some(exec) = exec {
            let at = now();
            let is_first =
                |kind: ChangeKind, found: &Found| kind == ChangeKind::Came && found.masters.are_among(round.new);
            for (kind, found) in changes.iter().filter(|(kind, found)| !is_first(*kind, found)) {
                exec.push(Job::new(&at, *kind, &watch.masters_of(found), found));
            }
        }
        changes
    }
}

/// What has happened to a command, once there is something to report.
async fn report_of(exec: &mut Option<Exec>) -> String {
    match exec {
        Some(exec) => exec.report().await,
        None => std::future::pending().await,
    }
}

fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_too_often() {
        assert_eq!(every("90s"), Ok(Duration::from_secs(90)));
        assert!(every("100ms").unwrap_err().contains("at least 1s"));
        assert!(every("500000y").unwrap_err().contains("at most 1d"));
        assert!(every("5").unwrap_err().contains("write 5s for seconds"));
        assert!(every("soon").is_err());
        assert!(exec_timeout("2h").unwrap_err().contains("at most 1h"));
    }
}

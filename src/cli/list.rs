//! `rallypoint list`: a master's list; with `--query`, every server in it is queried.

use super::options::{
    MasterOptions, OutputOptions, QueryOptions, none_answered, progress, report_failures, report_faults,
};
use super::out::message;
use super::{Exit, Failure, help, run_async};
use crate::client::list::{ListError, list};
use crate::client::target::Kind;
use crate::client::{Found, Target};
use crate::model::Facts;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[command(flatten)]
    master: MasterOptions,
    /// Query every server in the list
    #[arg(long, short)]
    query: bool,
    #[command(flatten)]
    querying: QueryOptions,
    #[command(flatten)]
    output: OutputOptions,
}

fn after_help() -> String {
    let (masters, game) = (help::masters(), help::example());
    format!(
        "\
{masters}
On a terminal, the table is fitted to its width: long texts are cut and less important columns omitted. Empty columns are \
always omitted, unless --columns names them. Servers that did not answer are reported on stderr with the reason. JSON has \
them under `failed`; JSON lines, CSV and XML have them among the others, with the reason as `fault`.

Examples:
  rallypoint list {game}://master.example --query --not-empty --sort ping
  rallypoint list {game}://master.example --columns url --no-header | rallypoint query --from -"
    )
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.output.check()?;
    let mut servers = run_async(fetch(&arguments.master, &arguments.querying))?;
    if servers.is_empty() {
        message(format!("{} lists no servers", arguments.master.url));
    }
    if arguments.query {
        arguments.querying.query(&mut servers, arguments.output.wanted())?;
    } else if arguments.output.needs_facts() && servers.iter().any(|server| server.facts == Facts::default()) {
        message(format!("{} lists only addresses; --query also queries the servers", arguments.master.url));
    }
    let (answered, asked) = report_failures(&servers);
    let none = (asked > 0 && answered == 0).then(|| none_answered(&servers));
    arguments.output.print(servers)?;
    none.map_or(Ok(()), |none| Err(Failure::new(Exit::Failed, none)))
}

/// Fetches a master's list and reports invalid entries.
pub async fn fetch(master: &MasterOptions, querying: &QueryOptions) -> Result<Vec<Found>, Failure> {
    let MasterOptions { url, games } = master;
    let failed = |error| Failure::new(exit_of(&error), format!("{url}: {error}{}", hint(url)));
    let progress = progress(None, "{spinner} fetching the list {elapsed}");
    let listing = list(url, games, querying.pace().retry).await;
    progress.finish_and_clear();
    let listing = listing.map_err(failed)?;
    report_faults(url, &listing);
    Ok(listing.servers)
}

/// A hint for a game server's port where a master's is expected.
fn hint(master: &Target) -> String {
    match master.kind {
        Kind::Game(card) if master.port == Some(card.game_port) && card.query.is_some() => {
            format!("; {} is a game server's port: try `rallypoint query {master}`", card.game_port)
        }
        _ => String::new(),
    }
}

/// The exit code for an error.
pub fn exit_of(error: &ListError) -> Exit {
    match error {
        ListError::Usage(_) => Exit::Usage,
        ListError::Connect(_) => Exit::Network,
        ListError::Bad(_) => Exit::Failed,
    }
}

//! `rallypoint list`: the servers that a master knows; with `--query` also what each of them says.

use super::out::tell;
use super::shown::{Asking, Master, Shown, none_answered, progress, tell_failures, tell_faults};
use super::{Exit, Failure, help, run_async};
use crate::client::list::{ListError, list};
use crate::client::target::Kind;
use crate::client::{Found, Target};
use crate::model::Facts;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[command(flatten)]
    master: Master,
    /// Ask every server that is found
    #[arg(long, short)]
    query: bool,
    #[command(flatten)]
    asking: Asking,
    #[command(flatten)]
    shown: Shown,
}

fn after_help() -> String {
    let (masters, game) = (help::masters(), help::example());
    format!(
        "\
{masters}
A table on a terminal is as wide as the terminal: long texts are cut, and the least important columns are left out. \
Columns in which nothing is known are left out everywhere; --columns keeps them. Servers that did not answer are named on \
stderr with the reason. JSON has them under `failed`; in JSON lines, CSV and XML they are among the others, with the reason \
as `fault`.

Examples:
  rallypoint list {game}://master.example --query --not-empty --sort ping
  rallypoint list {game}://master.example --columns url --no-header | rallypoint query --from -"
    )
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.shown.check()?;
    run_async(async {
        let mut servers = fetch(&arguments.master, &arguments.asking).await?;
        if servers.is_empty() {
            tell(format!("{} lists no servers", arguments.master.url));
        }
        if arguments.query {
            arguments.asking.ask(&mut servers).await?;
        } else if arguments.shown.needs_facts() && servers.iter().any(|server| server.facts == Facts::default()) {
            tell(format!("{} tells addresses only; --query asks the servers themselves", arguments.master.url));
        }
        let (answered, asked) = tell_failures(&servers);
        arguments.shown.print(servers)?;
        if asked > 0 && answered == 0 {
            return Err(Failure::new(Exit::Failed, none_answered(asked)));
        }
        Ok(())
    })
}

/// The list of a master; what is wrong with single entries is reported.
pub async fn fetch(master: &Master, asking: &Asking) -> Result<Vec<Found>, Failure> {
    let Master { url, games } = master;
    let failed = |error| Failure::new(exit_of(&error), format!("{url}: {error}{}", hint(url)));
    let progress = progress(None, "{spinner} fetching the list {elapsed}");
    let listing = list(url, games, asking.pace().patience).await;
    progress.finish_and_clear();
    let listing = listing.map_err(failed)?;
    tell_faults(url, &listing);
    Ok(listing.servers)
}

/// For those who name a game server instead of its master.
fn hint(master: &Target) -> String {
    match master.kind {
        Kind::Game(card) if master.port == Some(card.game_port) && card.query.is_some() => {
            format!("; {} is a game server's port: `rallypoint query {master}` asks it", card.game_port)
        }
        _ => String::new(),
    }
}

/// The exit code that goes with an error.
pub fn exit_of(error: &ListError) -> Exit {
    match error {
        ListError::Usage(_) => Exit::Usage,
        ListError::Connect(_) => Exit::Network,
        ListError::Bad(_) => Exit::Failed,
    }
}

//! `rallypoint query`: queries game servers, all at once.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashSet;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::options::{MasterOptions, OutputOptions, QueryOptions, none_answered, report_failures};
use super::out::message;
use super::{Exit, Failure, help, list, run_async};
use crate::client::target::GameServer;
use crate::client::{Found, Target, addresses};
use crate::model::{Address, Game};

/// Concurrent DNS lookups.
const RESOLVING_MAX: usize = 32;
/// The longest file of addresses: millions fit.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Invalid lines and unknown host names that are reported one by one.
const REPORTED_MAX: usize = 20;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("servers").args(["url", "from"]).required(true).multiple(true)))]
#[command(after_help = after_help())]
pub struct Arguments {
    /// The game servers
    url: Vec<Target>,
    /// Read them from a file, one per line, or in the format of qstat's -f; `-` is stdin
    #[arg(long, short, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Show what this master lists about a server that does not say it in its answer
    #[arg(long, value_name = "URL")]
    master: Option<Target>,
    #[command(flatten)]
    querying: QueryOptions,
    #[command(flatten)]
    output: OutputOptions,
}

fn after_help() -> String {
    let (servers, game, other) = (help::game_servers(), help::example(), help::other_example());
    format!(
        "\
{servers}
A server that does not answer fails within 5 seconds, unless --timeout and --retries change that. The first failures are \
reported on stderr with their reasons, the others are counted. If this machine itself loses answers, those servers are \
queried again, more slowly. Invalid lines of --from are reported and skipped. JSON has failed servers under `failed`; \
JSON lines, CSV and XML have them among the others, with the reason as `fault`. Some games' answers say only that a server \
is there: --master fetches a list with more about it.

Exit codes: 0 at least one server answered, 1 none did, 2 usage.

Example: rallypoint query {game}://203.0.113.5 {other}://203.0.113.6 --format json"
    )
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.output.check()?;
    let mut targets = arguments.url.clone();
    let mut wrong = Vec::new();
    if let Some(file) = &arguments.from {
        let (more, lines) = read_file(file).map_err(|why| Failure::new(Exit::Usage, why))?;
        targets.extend(more);
        wrong = lines;
    }
    // Targets that cannot be queried are reported; that is a usage error only if all of them are.
    let queryable = targets.iter().filter(|target| target.game_server().is_ok()).count();
    wrong.extend(targets.iter().filter_map(|target| target.game_server().err()));
    if let Some(why) = wrong.first().filter(|_| wrong.len() == 1 && queryable == 0) {
        return Err(Failure::new(Exit::Usage, why));
    }
    report_some(&wrong);
    if queryable == 0 && !wrong.is_empty() {
        return Err(Failure::new(Exit::Usage, "none of these can be queried"));
    }
    run_async(async {
        let mut servers = resolve(targets).await;
        if let Some(url) = &arguments.master {
            let master = MasterOptions { url: url.clone(), games: Vec::new() };
            describe(&mut servers, list::fetch(&master, &arguments.querying).await?);
        }
        arguments.querying.query(&mut servers, arguments.output.wanted()).await?;
        let (answered, asked) = report_failures(&servers);
        let none = if asked == 0 { "there are no servers to query".into() } else { none_answered(&servers) };
        arguments.output.print(servers)?;
        if answered == 0 {
            return Err(Failure::new(Exit::Failed, none));
        }
        Ok(())
    })
}

/// Replaces servers by what a list has about them.
fn describe(servers: &mut [Found], listed: Vec<Found>) {
    let key = |server: &Found| (server.game.protocol().to_string(), server.address);
    let mut listed: HashMap<_, _> = listed.into_iter().map(|server| (key(&server), server)).collect();
    for server in servers {
        if let Some(known) = listed.remove(&key(server)) {
            *server = known;
        }
    }
}

/// The servers in a file, and messages about its invalid lines.
fn read_file(file: &Path) -> Result<(Vec<Target>, Vec<String>), String> {
    let name = if file == Path::new("-") { "stdin".into() } else { file.display().to_string() };
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
    };
    read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
    // A line in another encoding is reported as invalid.
    let (targets, wrong) = addresses::read(&String::from_utf8_lossy(&bytes));
    Ok((targets, wrong.into_iter().map(|(number, why)| format!("{name}:{number}: {why}")).collect()))
}

/// Reports the first errors and counts the others: every line of a long file may be invalid.
fn report_some(wrong: &[String]) {
    wrong.iter().take(REPORTED_MAX).for_each(message);
    if wrong.len() > REPORTED_MAX {
        message(format!("and {} more that cannot be queried", wrong.len() - REPORTED_MAX));
    }
}

/// Resolves host names and removes duplicates. A name that cannot be resolved is reported and skipped.
async fn resolve(targets: Vec<Target>) -> Vec<Found> {
    let permits = Arc::new(Semaphore::new(RESOLVING_MAX));
    let mut resolving = JoinSet::new();
    let mut servers = Vec::with_capacity(targets.len());
    for (number, target) in targets.into_iter().enumerate() {
        let Ok(GameServer { name, port, .. }) = target.game_server() else { continue };
        if let Ok(ip) = target.host.parse() {
            servers.extend(Address::new(ip, port).map(|address| (number, name, address)));
            continue;
        }
        let permits = permits.clone();
        resolving.spawn(async move {
            let _permit = permits.acquire().await;
            target.address(port).await.map(|address| (number, name, address)).map_err(|error| (target, error))
        });
    }
    let mut unknown = Vec::new();
    while let Some(resolved) = resolving.join_next().await {
        match resolved {
            Ok(Ok(server)) => servers.push(server),
            Ok(Err((target, error))) => unknown.push(format!("{target}: {error}")),
            Err(_) => {} // cancelled
        }
    }
    report_some(&unknown);
    servers.sort_by_key(|(number, _, _)| *number);
    let mut seen = HashSet::with_capacity(servers.len());
    servers.retain(|(_, name, address)| seen.insert((*name, *address)));
    servers.into_iter().map(|(_, name, address)| Found::new(Game::Own(name), address)).collect()
}

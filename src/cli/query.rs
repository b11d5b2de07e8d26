//! `rallypoint query`: queries game servers, all at once.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::options::{MasterOptions, OutputOptions, QueryOptions, none_answered, report_failures};
use super::out::message;
use super::{Exit, Failure, help, list, run_async};
use crate::client::addresses::{self, Line};
use crate::client::seen::first_of_each;
use crate::client::target::GameServer;
use crate::client::{Found, Target};
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
    let mut lines: Vec<Line> = arguments.url.iter().map(|url| Line::Typed(Box::new(url.clone()))).collect();
    let mut wrong = Vec::new();
    if let Some(file) = &arguments.from {
        let (mut more, invalid) = read_file(file).map_err(|why| Failure::new(Exit::Usage, why))?;
        more.splice(0..0, lines);
        (lines, wrong) = (more, invalid);
    }
    // Targets that cannot be queried are reported; that is a usage error only if all of them are.
    let why_not = |line: &Line| match line {
        Line::At(..) => None,
        Line::Typed(target) => target.game_server().err(),
    };
    let before = wrong.len();
    wrong.extend(lines.iter().filter_map(why_not));
    let queryable = lines.len() - (wrong.len() - before);
    if let Some(why) = wrong.first().filter(|_| wrong.len() == 1 && queryable == 0) {
        return Err(Failure::new(Exit::Usage, why));
    }
    report_some(&wrong);
    if queryable == 0 && !wrong.is_empty() {
        return Err(Failure::new(Exit::Usage, "none of these can be queried"));
    }
    let mut servers = run_async(async {
        let mut servers = resolve(lines).await;
        if let Some(url) = &arguments.master {
            let master = MasterOptions { url: url.clone(), games: Vec::new() };
            describe(&mut servers, list::fetch(&master, &arguments.querying).await?);
        }
        Ok(servers)
    })?;
    arguments.querying.query(&mut servers, arguments.output.wanted())?;
    let (answered, asked) = report_failures(&servers);
    let none = if asked == 0 { "there are no servers to query".into() } else { none_answered(&servers) };
    arguments.output.print(servers)?;
    if answered == 0 { Err(Failure::new(Exit::Failed, none)) } else { Ok(()) }
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
fn read_file(file: &Path) -> Result<(Vec<Line>, Vec<String>), String> {
    let name = if file == Path::new("-") { "stdin".into() } else { file.display().to_string() };
    let bytes = if file == Path::new("-") {
        read_all(std::io::stdin().lock(), 0)
    } else {
        std::fs::File::open(file).and_then(|opened| {
            let size = opened.metadata().map_or(0, |about| about.len());
            read_all(opened, size)
        })
    };
    let bytes = bytes.map_err(|error| format!("{name}: cannot be read: {error}"))?;
    // A line in another encoding is reported as invalid.
    let (lines, wrong) = addresses::read(&String::from_utf8_lossy(&bytes));
    Ok((lines, wrong.into_iter().map(|(number, why)| format!("{name}:{number}: {why}")).collect()))
}

/// All bytes, up to the bound; there are probably this many.
fn read_all(from: impl Read, size: u64) -> std::io::Result<Vec<u8>> {
    // One more: only then the end is seen without more room.
    let mut bytes = Vec::with_capacity(size.min(FILE_BYTES_MAX) as usize + 1);
    from.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reports the first errors and counts the others: every line of a long file may be invalid.
fn report_some(wrong: &[String]) {
    wrong.iter().take(REPORTED_MAX).for_each(message);
    if wrong.len() > REPORTED_MAX {
        message(format!("and {} more that cannot be queried", wrong.len() - REPORTED_MAX));
    }
}

/// Resolves host names and removes duplicates. A name that cannot be resolved is reported and skipped.
async fn resolve(mut lines: Vec<Line>) -> Vec<Found> {
    let permits = Arc::new(Semaphore::new(RESOLVING_MAX));
    let mut resolving = JoinSet::new();
    for (number, line) in lines.iter_mut().enumerate() {
        let Line::Typed(target) = line else { continue };
        let Ok(GameServer { name, port, .. }) = target.game_server() else { continue };
        if let Ok(ip) = target.host.parse() {
            Address::new(ip, port).into_iter().for_each(|address| *line = Line::At(name, address));
            continue;
        }
        let (permits, target) = (permits.clone(), target.clone());
        resolving.spawn(async move {
            let _permit = permits.acquire().await;
            target.address(port).await.map(|address| (number, name, address)).map_err(|error| (target, error))
        });
    }
    let mut unknown = Vec::new();
    while let Some(resolved) = resolving.join_next().await {
        match resolved {
            Ok(Ok((number, name, address))) => {
                lines.get_mut(number).into_iter().for_each(|line| *line = Line::At(name, address));
            }
            Ok(Err((target, error))) => unknown.push(format!("{target}: {error}")),
            Err(_) => {} // cancelled
        }
    }
    report_some(&unknown);
    let at = |line: &Line| match line {
        Line::At(name, address) => Some((*name, *address)),
        Line::Typed(_) => None,
    };
    let mut found = Vec::with_capacity(lines.len());
    let servers = first_of_each(&lines, at).filter_map(|number| at(lines.get(number)?));
    found.extend(servers.map(|(name, address)| Found::new(Game::Own(name), address)));
    found
}

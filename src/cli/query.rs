//! `rallypoint query`: asks game servers about themselves, all at once.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::out::tell;
use super::shown::{Asking, Shown, none_answered, tell_failures};
use super::{Exit, Failure, help, run_async};
use crate::client::{Found, Target, addresses};
use crate::model::Game;

/// Names resolved at one time.
const RESOLVING_MAX: usize = 32;
/// The longest file of addresses: a million fit.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Lines that name no server, and names that nobody knows, told one by one.
const WRONG_TOLD: usize = 20;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("servers").args(["url", "from"]).required(true).multiple(true)))]
#[command(after_help = after_help())]
pub struct Arguments {
    /// The game servers
    url: Vec<Target>,
    /// Read them from a file, one per line, or as qstat's -f does; `-` is stdin
    #[arg(long, short, value_name = "FILE")]
    from: Option<PathBuf>,
    #[command(flatten)]
    asking: Asking,
    #[command(flatten)]
    shown: Shown,
}

fn after_help() -> String {
    let (servers, game, other) = (help::game_servers(), help::example(), help::other_example());
    format!(
        "\
{servers}
A server that stays silent is given up within 5 seconds, unless --timeout and --retries say otherwise. The first \
that failed are named on stderr with their reasons, the others are counted. Where this machine itself loses \
answers, it asks again, and more slowly. A line of --from that names no server is reported, and the others are \
asked. JSON has the failed ones under `failed`; in JSON lines, CSV and XML they are among the others, with the \
reason as `fault`. Ends with 0 when at least one answered, with 1 when none did.

Example: rallypoint query {game}://203.0.113.5 {other}://203.0.113.6:6970 --format json"
    )
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.shown.check()?;
    let mut targets = arguments.url.clone();
    let mut wrong = Vec::new();
    if let Some(file) = &arguments.from {
        let (more, lines) = read_file(file).map_err(|why| Failure::new(Exit::Usage, why))?;
        targets.extend(more);
        wrong = lines;
    }
    // Among others, one that cannot be asked is one of those that failed.
    let askable = targets.iter().filter(|target| target.game_server().is_ok()).count();
    wrong.extend(targets.iter().filter_map(|target| target.game_server().err()));
    if let Some(why) = wrong.first().filter(|_| wrong.len() == 1 && askable == 0) {
        return Err(Failure::new(Exit::Usage, why));
    }
    tell_some(&wrong);
    if askable == 0 && !wrong.is_empty() {
        return Err(Failure::new(Exit::Usage, "none of these can be asked"));
    }
    run_async(async {
        let mut servers = resolve(targets).await;
        arguments.asking.ask(&mut servers).await?;
        let (answered, asked) = tell_failures(&servers);
        arguments.shown.print(servers)?;
        if answered == 0 {
            let none = if asked == 0 { "there is nobody to ask".into() } else { none_answered(asked) };
            return Err(Failure::new(Exit::Failed, none));
        }
        Ok(())
    })
}

/// The servers of a file, and its lines that name none, with why.
fn read_file(file: &Path) -> Result<(Vec<Target>, Vec<String>), String> {
    let name = if file == Path::new("-") { "stdin".into() } else { file.display().to_string() };
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
    };
    read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
    // A line in another encoding is wrong by itself, too.
    let (targets, wrong) = addresses::read(&String::from_utf8_lossy(&bytes));
    Ok((targets, wrong.into_iter().map(|(number, why)| format!("{name}:{number}: {why}")).collect()))
}

/// A long file may be wrong from its first line to its last.
fn tell_some(wrong: &[String]) {
    wrong.iter().take(WRONG_TOLD).for_each(tell);
    if wrong.len() > WRONG_TOLD {
        tell(format!("and {} more that cannot be asked", wrong.len() - WRONG_TOLD));
    }
}

/// Where they are, each once. A name that cannot be resolved is told, and the others go on.
async fn resolve(targets: Vec<Target>) -> Vec<Found> {
    let permits = Arc::new(Semaphore::new(RESOLVING_MAX));
    let mut resolving = JoinSet::new();
    let mut servers = Vec::with_capacity(targets.len());
    for (number, target) in targets.into_iter().enumerate() {
        let Ok((card, _)) = target.game_server() else { continue };
        let port = target.port.unwrap_or(card.game_port);
        if target.host.parse::<std::net::IpAddr>().is_ok() {
            servers.extend(target.address(port).await.ok().map(|address| (number, card, address)));
            continue;
        }
        let permits = permits.clone();
        resolving.spawn(async move {
            let _permit = permits.acquire().await;
            target.address(port).await.map(|address| (number, card, address)).map_err(|error| (target, error))
        });
    }
    let mut unknown = Vec::new();
    while let Some(resolved) = resolving.join_next().await {
        match resolved {
            Ok(Ok(server)) => servers.push(server),
            Ok(Err((target, error))) => unknown.push(format!("{target}: {error}")),
            Err(_) => {} // it was stopped with us
        }
    }
    tell_some(&unknown);
    servers.sort_by_key(|(number, _, _)| *number);
    let mut seen = HashSet::new();
    servers.retain(|(_, card, address)| seen.insert((card.name, *address)));
    servers.into_iter().map(|(_, card, address)| Found::new(Game::Own(card.name), address)).collect()
}

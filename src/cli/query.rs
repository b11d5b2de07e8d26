//! `rallypoint query`: asks game servers about themselves, all at once.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::out::tell;
use super::shown::{Asking, Shown, none_answered, tell_failures};
use super::{Exit, Failure, run_async};
use crate::client::{Found, Place};
use crate::model::Game;

/// Names resolved at one time.
const RESOLVING_MAX: usize = 32;
/// The longest file of addresses: a million fit.
const FILE_BYTES_MAX: u64 = 256 << 20;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("servers").args(["url", "from"]).required(true).multiple(true)))]
#[command(after_help = "\
Game servers:
  netpanzer://HOST[:3030]    hyperbol://HOST[:20200]    bloodmasters://HOST[:6969]

A server that stays silent is given up within 5 seconds. Every address that failed is named on stderr with its reason.
Ends with 0 when at least one answered, with 1 when none did.

Example: rallypoint query netpanzer://203.0.113.5 bloodmasters://203.0.113.6:6970 --format json")]
pub struct Arguments {
    /// The game servers
    url: Vec<Place>,
    /// Read them from a file, one a line; `-` is stdin
    #[arg(long, short, value_name = "FILE")]
    from: Option<PathBuf>,
    #[command(flatten)]
    asking: Asking,
    #[command(flatten)]
    shown: Shown,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut places = arguments.url.clone();
    if let Some(file) = &arguments.from {
        places.extend(read_file(file).map_err(|why| Failure::new(Exit::Usage, why))?);
    }
    // Among others, one that cannot be asked is one of those that failed.
    let wrong = places.iter().filter_map(|place| place.game_server().err());
    let wrong: Vec<String> = wrong.collect();
    if let Some(why) = wrong.first().filter(|_| wrong.len() == places.len()) {
        return Err(Failure::new(Exit::Usage, why));
    }
    wrong.iter().for_each(tell);
    run_async(async {
        let mut servers = resolve(places).await;
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

/// One address a line; empty lines and what follows a `#` are passed over. A line that is wrong is named.
fn read_file(file: &Path) -> Result<Vec<Place>, String> {
    let name = if file == Path::new("-") { "stdin".into() } else { file.display().to_string() };
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
    };
    read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{name}: is not text"))?;
    let mut places = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            places.push(line.parse().map_err(|why| format!("{name}:{number}: {why}"))?);
        }
    }
    Ok(places)
}

/// Where they are, each once. A name that cannot be resolved is told, and the others go on.
async fn resolve(places: Vec<Place>) -> Vec<Found> {
    let permits = Arc::new(Semaphore::new(RESOLVING_MAX));
    let mut resolving = JoinSet::new();
    let mut servers = Vec::with_capacity(places.len());
    for (number, place) in places.into_iter().enumerate() {
        let Ok((card, _)) = place.game_server() else { continue };
        let port = place.port.unwrap_or(card.game_port);
        if place.host.parse::<std::net::IpAddr>().is_ok() {
            servers.extend(place.address(port).await.ok().map(|address| (number, card, address)));
            continue;
        }
        let permits = permits.clone();
        resolving.spawn(async move {
            let _permit = permits.acquire().await;
            place.address(port).await.map(|address| (number, card, address)).map_err(|error| (place, error))
        });
    }
    while let Some(resolved) = resolving.join_next().await {
        match resolved {
            Ok(Ok(server)) => servers.push(server),
            Ok(Err((place, error))) => tell(format!("{place}: {error}")),
            Err(_) => {} // it was stopped with us
        }
    }
    servers.sort_by_key(|(number, _, _)| *number);
    let mut seen = HashSet::new();
    servers.retain(|(_, card, address)| seen.insert((card.name, *address)));
    servers.into_iter().map(|(_, card, address)| Found::new(Game::Known(card.name), address)).collect()
}

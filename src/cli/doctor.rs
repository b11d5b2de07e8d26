//! `rallypoint doctor`: asks a Rallypoint what it saw of a server, and says it in plain words.

use serde::Deserialize;

use super::list::exit_of;
use super::out::print;
use super::{Exit, Failure, run_async};
use crate::client::list::PATIENCE;
use crate::client::place::Kind;
use crate::client::{Place, http};
use crate::model::Address;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rallypoint doctor iceball 203.0.113.5:20737
  rallypoint doctor https://master.example netpanzer 203.0.113.5:3030

Exit codes: 0 the server is listed, 1 it is not, 2 usage, 3 the master cannot be reached.")]
pub struct Arguments {
    /// The master (http://127.0.0.1:8080 when left out), the game, and the server's address and port
    #[arg(num_args = 2..=3, required = true, value_names = ["MASTER", "GAME", "ADDRESS"])]
    asked: Vec<String>,
    /// Print what the master says as JSON
    #[arg(long)]
    json: bool,
}

const HERE: &str = "http://127.0.0.1:8080";

/// What is read of the master's diagnosis.
#[derive(Deserialize)]
struct Diagnosis {
    listed: bool,
    summary: String,
    advice: Option<String>,
    seen: Vec<Seen>,
}

#[derive(Deserialize)]
struct Seen {
    at: String,
    text: String,
    times: u32,
    /// Whether it was surely sent from that address. Masters of before do not tell.
    sender_proven: Option<bool>,
    observed_port: Option<u16>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let usage = |error: String| Failure::new(Exit::Usage, error);
    let (master, game, address) = match arguments.asked.as_slice() {
        [game, address] => (HERE, game, address),
        [master, game, address] => (master.as_str(), game, address),
        _ => return Err(usage("name a game and an address".into())),
    };
    let place: Place = master.parse().map_err(usage)?;
    if !matches!(place.kind, Kind::Rallypoint) {
        return Err(usage(format!("`{master}`: only a Rallypoint has a doctor; write http://host:port")));
    }
    let address: Address = address.parse().map_err(usage)?;
    let game: String = form_urlencoded::byte_serialize(game.as_bytes()).collect();
    let path = format!("{}/api/v1/check?game={game}&address={address}", place.path.trim_end_matches('/'));
    run_async(async {
        let failed = |error| Failure::new(exit_of(&error), format!("{place}: {error}"));
        let url = place.page(&path).map_err(usage)?;
        let body = http::Request::get(url, http::ANSWER_BYTES_MAX, PATIENCE).page().await.map_err(failed)?;
        let diagnosis: Diagnosis = serde_json::from_slice(&body)
            .map_err(|error| Failure::new(Exit::Failed, format!("{place}: its answer is no diagnosis: {error}")))?;
        let text = match arguments.json {
            true => format!("{}\n", String::from_utf8_lossy(&body).trim_end()),
            false => in_words(&diagnosis),
        };
        let _ = print(&text)?; // with or without a reader, the exit code says it
        if diagnosis.listed { Ok(()) } else { Err(Failure::silent(Exit::Failed)) }
    })
}

fn in_words(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{}\n", diagnosis.summary);
    if let Some(advice) = &diagnosis.advice {
        text.push_str(&format!("{advice}\n"));
    }
    if !diagnosis.seen.is_empty() {
        text.push_str("\nSeen lately:\n");
    }
    for seen in &diagnosis.seen {
        let times = if seen.times > 1 { format!(" ({} times)", seen.times) } else { String::new() };
        let unproven = if seen.sender_proven == Some(false) { ", not proven" } else { "" };
        let port = seen.observed_port.map(|port| format!(" From port {port}{unproven}.")).unwrap_or_default();
        text.push_str(&format!("  {}  {}{port}{times}\n", seen.at, seen.text));
    }
    text
}

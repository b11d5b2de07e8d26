//! `rallypoint doctor`: asks a Rallypoint why a server is listed or not.

use std::net::IpAddr;

use serde::Deserialize;
use url::form_urlencoded;

use super::list::exit_of;
use super::out::{message, print};
use super::{Exit, Failure, help, run_async};
use crate::client::connect::addresses;
use crate::client::target::Kind;
use crate::client::{RetryPolicy, Target, http};
use crate::model::Address;
use crate::protocols::{CARDS, card};
use crate::text;

#[derive(clap::Args)]
#[command(override_usage = "rallypoint doctor [OPTIONS] [MASTER] <GAME> <ADDRESS>")]
#[command(after_help = after_help())]
pub struct Arguments {
    /// The master (default: http://127.0.0.1:8080), the game, and the server's address or host name; the port can be left
    /// out if it is the game's default
    #[arg(num_args = 1..=3, required = true, value_name = "MASTER GAME ADDRESS")]
    asked: Vec<String>,
    /// Print the master's answer as JSON
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    let (game, other) = (help::example(), help::other_example());
    format!(
        "\
Examples:
  rallypoint doctor {game} 203.0.113.5:3030
  rallypoint doctor https://master.example {other} play.example

Exit codes: 0 the server is listed, 1 it is not, 2 usage, 3 the master cannot be reached."
    )
}

const HERE: &str = "http://127.0.0.1:8080";

/// The parts of the master's diagnosis that are shown.
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
    /// Whether it surely came from that address. Older masters do not say.
    sender_proven: Option<bool>,
    observed_port: Option<u16>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let usage = |error: String| Failure::new(Exit::Usage, error);
    let (master, game, address) = match arguments.asked.as_slice() {
        [master, address] if master.contains("://") => {
            return Err(usage(format!("the game is missing: write `rallypoint doctor {master} GAME {address}`")));
        }
        [game, address] => (HERE, game, address),
        [master, game, address] => (master.as_str(), game, address),
        _ => {
            let game = help::example();
            return Err(usage(format!("give a game and a server: `rallypoint doctor {game} 203.0.113.5:3030`")));
        }
    };
    let target: Target = master.parse().map_err(usage)?;
    if !matches!(target.kind, Kind::Rallypoint) {
        return Err(usage(format!("`{master}`: only a Rallypoint master has a doctor; write http://HOST:PORT")));
    }
    let (server, port) = server(game, address).map_err(usage)?;
    let meant = misspelt(game);
    let game: String = form_urlencoded::byte_serialize(game.as_bytes()).collect();
    run_async(async {
        let address = find(&server, port).await?;
        let path = format!("{}/api/v1/check?game={game}&address={address}", target.path.trim_end_matches('/'));
        let failed = |error| Failure::new(exit_of(&error), format!("{target}: {error}"));
        let url = target.page(&path).map_err(usage)?;
        let body = http::Request::get(url, http::ANSWER_BYTES_MAX, RetryPolicy::default().list_try())
            .page()
            .await
            .map_err(failed)?;
        let diagnosis: Diagnosis = serde_json::from_slice(&body)
            .map_err(|error| Failure::new(Exit::Failed, format!("{target}: its answer is not a diagnosis: {error}")))?;
        let text = if arguments.json { as_json(&body) } else { in_words(&diagnosis) };
        let _ = print(&text)?; // a closed pipe changes nothing: the exit code is the result
        if diagnosis.listed {
            return Ok(());
        }
        meant.inspect(|meant| message(format!("did you mean the game `{meant}`?")));
        Err(Failure::silent(Exit::Failed))
    })
}

/// The known game that was probably meant. An unknown name is not a mistake by itself: masters list unknown games, too.
fn misspelt(game: &str) -> Option<&'static str> {
    let typed = game.to_ascii_lowercase();
    let names = CARDS.iter().map(|card| (strsim::osa_distance(&typed, card.name), card.name));
    names.min().filter(|(distance, _)| (1..=2).contains(distance)).map(|(_, name)| name)
}

/// The unchanged answer, with the characters escaped that a terminal would obey, or that nobody would see.
fn as_json(body: &[u8]) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(body).trim_end().chars() {
        match c {
            '\n' | '\r' | '\t' => text.push(c),
            c if text::is_clean(c) => text.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    text + "\n"
}

/// The typed server: an address or a host name, with a port or the game's default port.
fn server(game: &str, text: &str) -> Result<(Target, u16), String> {
    let card = card(&game.to_ascii_lowercase());
    // Only what follows the scheme matters, so any scheme will do.
    let scheme = card.map_or(help::example(), |card| card.name);
    let typed = if text.contains("://") { text.to_string() } else { format!("{scheme}://{text}") };
    let target: Target =
        typed.parse().map_err(|why: String| why.replace(&format!("`{typed}`"), &format!("`{text}`")))?;
    if !matches!(target.kind, Kind::Game(_)) {
        return Err(format!("`{text}` is not a game server's address; write HOST:PORT"));
    }
    let port = target.port.or(card.map(|card| card.game_port));
    let port = port.ok_or_else(|| format!("`{text}` has no port; write {text}:PORT"))?;
    Ok((target, port))
}

/// Its address. A resolved name is printed, because the master knows only addresses.
async fn find(server: &Target, port: u16) -> Result<Address, Failure> {
    let failed = |error: std::io::Error| Failure::new(Exit::Network, error);
    let found = addresses(&server.authority(port), None).await.map_err(failed)?;
    let address = found.first().and_then(|at| Address::new(at.ip(), at.port()));
    let address = address.ok_or_else(|| failed(std::io::ErrorKind::AddrNotAvailable.into()))?;
    if server.host.parse::<IpAddr>().is_err() {
        let others: Vec<_> = found.iter().skip(1).map(|other| other.ip().to_string()).collect();
        let others = if others.is_empty() { String::new() } else { format!("; it also has {}", others.join(", ")) };
        message(format!("{} is {address}{others}", server.host));
    }
    Ok(address)
}

/// For people. The texts are the master's own, so control characters are removed.
fn in_words(diagnosis: &Diagnosis) -> String {
    let clean = |text: &str| text::clean(text.as_bytes()).into_owned();
    let mut text = format!("{}\n", clean(&diagnosis.summary));
    if let Some(advice) = &diagnosis.advice {
        text.push_str(&format!("{}\n", clean(advice)));
    }
    if !diagnosis.seen.is_empty() {
        text.push_str("\nRecent events:\n");
    }
    for seen in &diagnosis.seen {
        let times = if seen.times > 1 { format!(" ({} times)", seen.times) } else { String::new() };
        let unproven = if seen.sender_proven == Some(false) { ", unverified" } else { "" };
        let port = seen.observed_port.map(|port| format!(" From port {port}{unproven}.")).unwrap_or_default();
        text.push_str(&format!("  {}  {}{port}{times}\n", clean(&seen.at), clean(&seen.text)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_as_they_are_typed() {
        for (game, text, host, port) in [
            ("iceball", "203.0.113.5:1", "203.0.113.5", 1),
            ("iceball", "play.example", "play.example", 20737),
            ("NetPanzer", "[::1]", "::1", 3030),
            ("netpanzer", "netpanzer://play.example:5", "play.example", 5),
            ("chess", "play.example:5", "play.example", 5),
        ] {
            let (target, found) = server(game, text).unwrap();
            assert_eq!((&*target.host, found), (host, port), "{text}");
        }
        for (game, text, says) in [
            ("chess", "play.example", "write play.example:PORT"),
            ("iceball", "2001:db8::a", "`2001:db8::a`: write IPv6 addresses in brackets: [2001:db8::a]"),
            ("iceball", "play.example:x", "`play.example:x`: `x` is not a port"),
            ("iceball", "http://play.example", "write HOST:PORT"),
        ] {
            let error = server(game, text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_terminal_obeys_nothing_that_a_master_says() {
        let evil = "a\u{1b}[31m\u{7}\u{9b}2J\r\nb\u{202e}\u{61c}\u{200b}\u{2060}";
        let seen = Seen { at: evil.into(), text: evil.into(), times: 2, sender_proven: None, observed_port: Some(5) };
        let diagnosis = Diagnosis { listed: false, summary: evil.into(), advice: Some(evil.into()), seen: vec![seen] };
        let text = in_words(&diagnosis);
        assert!(text.chars().all(|c| c == '\n' || text::is_clean(c)), "{text:?}");
        assert_eq!(text.lines().count(), 5, "{text}");
        let body = "{\n  \"summary\": \"a\u{9b}2J\u{7f}\u{61c}\u{200b}\u{e0020}\u{e9}\"\n}\n";
        let shown = as_json(body.as_bytes());
        assert_eq!(shown, "{\n  \"summary\": \"a\\u009b2J\\u007f\\u061c\\u200b\\udb40\\udc20\u{e9}\"\n}\n");
        let same = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(same(&shown), same(body));
    }

    #[test]
    fn a_game_that_was_probably_meant() {
        for (typed, meant) in
            [("icebal", Some("iceball")), ("NetPanser", Some("netpanzer")), ("iceball", None), ("chess", None)]
        {
            assert_eq!(misspelt(typed), meant, "{typed}");
        }
    }
}

//! `rallypoint admin`: sends a command to a running master server over its Unix socket, and shows the answer.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::out::print;
use super::{Exit, Failure, time};
use crate::admin::socket::user_name;
use crate::admin::{ANSWER_BYTES_MAX, By, Request, Terms};
use crate::config::Config;
use crate::text;
use crate::times::format_duration;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
#[command(after_help = "\
The server needs a socket: set admin.socket in its configuration. Only the user that it runs as, and root, can use it.

Examples:
  rallypoint admin --config /etc/rallypoint/rallypoint.toml status
  rallypoint admin --socket /run/rallypoint/admin.sock ban 198.51.100.0/24 --for 2h --reason \"flood of announcements\"

Exit codes: 0 done, 1 refused by the server, 2 usage, 3 the server cannot be reached.")]
pub struct Arguments {
    /// The server's socket
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// The server's configuration file, which sets admin.socket
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Output format; json prints the server's answer, one object per line
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Show the server's state: servers, connections, memory, store, cluster
    Status,
    /// Show the addresses and networks that cost most
    Top,
    /// Show the networks that hold most of the list: servers, players, memory and proofs
    Networks {
        /// Only servers of this game
        #[arg(long, value_name = "NAME")]
        game: Option<String>,
        /// What to compare networks by
        #[arg(long, value_enum, default_value_t = By::Servers)]
        by: By,
    },
    /// Show a game's servers, and the networks that hold most of them
    Game {
        /// The game's name, e.g. xonotic
        name: String,
    },
    /// Ban an address or a network: no answers, no connections, none of its servers listed
    Ban {
        /// An address or a network, e.g. 203.0.113.7 or 198.51.100.0/24
        network: String,
        #[command(flatten)]
        terms: TermOptions,
    },
    /// Lift a ban
    Unban {
        /// The address or the network as `bans` shows it
        network: String,
    },
    /// Show all bans, also those of the configuration
    Bans,
    /// Take a server off the list and keep it off, without a ban: it still gets answers
    Unlist {
        /// The server's address and port, e.g. 203.0.113.7:3030
        address: String,
        #[command(flatten)]
        terms: TermOptions,
    },
    /// Let an unlisted server on the list again, from its next announcement on
    Relist {
        /// The server's address and port
        address: String,
    },
    /// Show all unlisted servers
    Unlisted,
    /// Keep servers whose name matches a pattern off the list
    Hide {
        /// A pattern: `*` is any text, `?` any character, and case does not matter
        pattern: String,
        #[command(flatten)]
        terms: TermOptions,
    },
    /// Lift a pattern
    Unhide {
        /// The pattern as `hidden` shows it
        pattern: String,
    },
    /// Show all patterns, also those of the configuration
    Hidden,
    /// Read the configuration again, as on SIGHUP, and show what is wrong with it
    Reload,
    /// Send a test notice to the addresses of [[notices]], and show whether it arrived
    NoticeTest {
        /// Only to the address of this name
        name: Option<String>,
    },
}

#[derive(clap::Args)]
struct TermOptions {
    /// For how long, e.g. 2h or 7d [default: until it is lifted]
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Option<Duration>,
    /// Why; the owner sees this at the doctor
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

fn length(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_secs(1), Duration::from_secs(10 * 366 * 86_400))
}

impl Command {
    fn request(&self) -> Request {
        let terms = |terms: &TermOptions| Terms {
            for_ms: terms.length.map(|length| length.as_millis() as u64),
            reason: terms.reason.clone(),
        };
        match self {
            Command::Status => Request::Status,
            Command::Top => Request::Top,
            Command::Networks { game, by } => Request::Networks { game: game.clone(), by: *by },
            Command::Game { name } => Request::Game { name: name.clone() },
            Command::Ban { network, terms: of } => Request::Ban { network: network.clone(), terms: terms(of) },
            Command::Unban { network } => Request::Unban { network: network.clone() },
            Command::Bans => Request::Bans,
            Command::Unlist { address, terms: of } => Request::Unlist { address: address.clone(), terms: terms(of) },
            Command::Relist { address } => Request::Relist { address: address.clone() },
            Command::Unlisted => Request::Unlisted,
            Command::Hide { pattern, terms: of } => Request::Hide { pattern: pattern.clone(), terms: terms(of) },
            Command::Unhide { pattern } => Request::Unhide { pattern: pattern.clone() },
            Command::Hidden => Request::Hidden,
            Command::Reload => Request::Reload,
            Command::NoticeTest { name } => Request::NoticeTest { name: name.clone() },
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = arguments.socket()?;
    let (raw, lines) = ask(&path, &arguments.command.request())?;
    let error = lines.first().and_then(|line| line["error"].as_str());
    if arguments.format == Format::Json {
        let _ = print(&raw)?;
        return if error.is_some() || is_lost(&lines) { Err(Failure::silent(Exit::Failed)) } else { Ok(()) };
    }
    if let Some(error) = error {
        return Err(Failure::new(Exit::Failed, clean(error)));
    }
    let _ = print(&shown(&arguments.command, &lines))?;
    if is_lost(&lines) { Err(Failure::silent(Exit::Failed)) } else { Ok(()) }
}

/// Whether a test notice did not arrive.
fn is_lost(lines: &[Value]) -> bool {
    lines.iter().any(|line| line["arrived"] == false)
}

impl Arguments {
    fn socket(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        let Some(file) = &self.config else {
            return Err(Failure::new(Exit::Usage, "give the server's --config FILE, or its --socket PATH"));
        };
        let config = Config::load(Some(file), &[]).map_err(|errors| Failure::new(Exit::Usage, errors))?;
        let unset = || format!("{}: admin.socket is not set, so the server has no socket", file.display());
        config.admin_socket.ok_or_else(|| Failure::new(Exit::Usage, unset()))
    }
}

/// The answer as it came, and its lines.
fn ask(path: &Path, request: &Request) -> Result<(String, Vec<Value>), Failure> {
    let network = |error: std::io::Error| Failure::new(Exit::Network, cannot_reach(path, &error));
    let mut stream = UnixStream::connect(path).map_err(network)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(network)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(network)?;
    let line = serde_json::to_string(request).map_err(|error| Failure::new(Exit::Failed, error))?;
    stream.write_all(format!("{line}\n").as_bytes()).map_err(network)?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).map_err(network)?;
    let lines: Result<Vec<Value>, _> = answer.lines().map(serde_json::from_str).collect();
    // A list ends with the number of its rows.
    let is_complete =
        |lines: &[Value]| lines.split_last().is_some_and(|(last, rows)| rows.is_empty() || last["count"] == rows.len());
    match lines {
        Ok(lines) if answer.ends_with('\n') && is_complete(&lines) => Ok((answer, lines)),
        _ => Err(Failure::new(Exit::Failed, format!("{}: the server's answer is not complete", path.display()))),
    }
}

/// Why the socket cannot be used, and what to do.
fn cannot_reach(path: &Path, error: &std::io::Error) -> String {
    let shown = path.display();
    let owner = std::fs::metadata(path).map(|file| user_name(file.uid()));
    match (error.kind(), owner) {
        (ErrorKind::PermissionDenied, Ok(owner)) => {
            format!("{shown}: permission denied: it belongs to {owner}, so run this as {owner} or as root")
        }
        (ErrorKind::PermissionDenied, Err(_)) => {
            format!("{shown}: permission denied: run this as the user that the server runs as, or as root")
        }
        (ErrorKind::NotFound, _) => {
            format!("{shown} does not exist: is the server running, with this path as its admin.socket?")
        }
        (ErrorKind::ConnectionRefused, _) => format!("{shown}: nobody listens there: is the server running?"),
        (ErrorKind::WouldBlock | ErrorKind::TimedOut, _) => format!("{shown}: the server does not answer"),
        _ => format!("{shown}: {error}"),
    }
}

/// For people. Reasons come from other operators, so control characters are removed.
fn shown(command: &Command, lines: &[Value]) -> String {
    match (command, lines) {
        (Command::Status, [status, ..]) => status_text(status),
        (Command::Top, [rows @ .., _count]) => top_table(rows),
        (Command::Networks { .. }, [rows @ .., _count]) => networks_table(rows),
        (Command::Game { .. }, [game, ..]) => game_text(game),
        (Command::NoticeTest { .. }, [rows @ .., _count]) => rows.iter().map(notice_test_text).collect(),
        (Command::Bans | Command::Unlisted | Command::Hidden, [rows @ .., _count]) => table(rows),
        (_, [done, ..]) => done_text(done),
        _ => String::new(),
    }
}

fn clean(text: &str) -> String {
    text::clean(text.as_bytes()).into_owned()
}

fn of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn done_text(done: &Value) -> String {
    let subject = clean(of(done, "subject"));
    let until = done["until"].as_str().map(|until| format!(" until {}", clean(until))).unwrap_or_default();
    let reason = Some(of(done, "reason")).filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
    let mut text = match of(done, "done") {
        "ban" => format!("{subject} is banned{until}{reason}\n"),
        "unlist" => format!("{subject} is kept off the list{until}{reason}\n"),
        "hide" => format!("servers named `{subject}` are kept off the list{until}{reason}\n"),
        "unban" => format!("{subject} is no longer banned\n"),
        "relist" => format!("{subject} may be listed again, from its next announcement on\n"),
        "unhide" => format!("servers named `{subject}` may be listed again, from their next announcement on\n"),
        "reload" => "the configuration was reloaded\n".into(),
        other => format!("{}\n", clean(other)),
    };
    if let (Some(servers), Some(connections)) = (done["servers_removed"].as_u64(), done["connections_closed"].as_u64())
    {
        text.push_str(&format!("servers taken off the list: {servers}, connections closed: {connections}\n"));
    }
    if done["still_configured"] == true {
        text.push_str("the configuration says the same and still counts\n");
    }
    if let Some(kept) = done["kept"].as_str().filter(|kept| *kept != "disk") {
        text.push_str(&format!("kept in {}: a restart forgets it\n", clean(kept)));
    }
    let restart: Vec<_> = done["restart_needed"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !restart.is_empty() {
        text.push_str(&format!("changed, but in effect only after a restart: {}\n", clean(&restart.join(", "))));
    }
    text
}

fn table(rows: &[Value]) -> String {
    if rows.is_empty() {
        return "none\n".into();
    }
    let mut cells = vec![["SUBJECT", "UNTIL", "BY", "REASON"].map(String::from)];
    for row in rows {
        let by = if of(row, "source") == "configuration" { "configuration" } else { of(row, "by") };
        let until = row["until"].as_str().unwrap_or("-");
        cells.push([of(row, "subject"), until, by, of(row, "reason")].map(clean));
    }
    aligned(&cells)
}

fn top_table(rows: &[Value]) -> String {
    if rows.is_empty() {
        return "none\n".into();
    }
    let mut cells = vec![["PREFIX", "BUDGET", "USED", "REFUSED", "COST"].map(String::from)];
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let used = format!("{}%", number("used_permille") / 10);
        let cost = format!("{} {}", number("cost"), of(row, "unit"));
        let refused = number("refused").to_string();
        cells.push(
            [of(row, "prefix").into(), of(row, "budget").into(), used, refused, cost].map(|cell: String| clean(&cell)),
        );
    }
    aligned(&cells)
}

fn networks_table(rows: &[Value]) -> String {
    if rows.is_empty() {
        return "none\n".into();
    }
    let mut cells = vec![["NETWORK", "SHARE", "SERVERS", "PLAYERS", "MEMORY", "PROOFS"].map(String::from)];
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap_or(0);
        let memory = format!("{:.1} KiB", number("bytes") as f64 / 1024.0);
        let [servers, players] = [number("servers"), number("players")].map(|count| count.to_string());
        cells.push([
            clean(of(row, "network")),
            percent(&row["share"]),
            servers,
            players,
            memory,
            counted(&row["proofs"]),
        ]);
    }
    aligned(&cells)
}

fn game_text(game: &Value) -> String {
    let number = |key: &str| game[key].as_u64().unwrap_or(0);
    let shares = &game["largest_share"];
    let [servers, players, bytes] = [&shares["servers"], &shares["players"], &shares["bytes"]].map(percent);
    let limit = game["limit"].as_u64().map_or("none".into(), |most| format!("{most} for each network"));
    let lines = [
        ("game", clean(of(game, "game"))),
        ("servers", number("servers").to_string()),
        ("players", number("players").to_string()),
        ("memory", format!("{:.1} KiB", number("bytes") as f64 / 1024.0)),
        ("proofs", counted(&game["proofs"])),
        (
            "largest",
            format!("{servers} of the servers, {players} of the players, {bytes} of the memory in one network"),
        ),
        ("limit", limit),
    ];
    let lines: String = lines.iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    let rows = game["networks"].as_array().map(Vec::as_slice).unwrap_or_default();
    format!("{lines}\n{}", networks_table(rows))
}

fn percent(share: &Value) -> String {
    format!("{:.0}%", share.as_f64().unwrap_or(0.0) * 100.0)
}

/// `cookie 3, query 5`.
fn counted(value: &Value) -> String {
    let pairs = value.as_object().into_iter().flatten();
    pairs.map(|(name, count)| format!("{} {count}", clean(name))).collect::<Vec<_>>().join(", ")
}

/// Rows whose columns begin below each other.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.width().max(*width));
    }
    let mut text = String::new();
    for row in rows {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.width())));
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn status_text(status: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let uptime = format_duration(Duration::from_secs(number(&status["uptime_s"])));
    let store = match &status["store"] {
        Value::Null => "off, data_dir is not set".into(),
        store if store["failing"] == true => format!("failing, {} failed writes", number(&store["failures"])),
        store => format!("ok, {:.1} MiB", mib(number(&store["file_bytes"]))),
    };
    let cluster = match &status["cluster"] {
        Value::Null => "off".into(),
        cluster if cluster["connected"] == true => format!("connected, {} nodes", number(&cluster["nodes"])),
        _ => "not connected: this node serves alone".into(),
    };
    let upstreams = status["upstreams"].as_array().into_iter().flatten().map(upstream_text);
    let upstreams: Vec<_> = upstreams.map(|text| ("upstream", text)).collect();
    let notices = status["notices"].as_array().into_iter().flatten().map(notices_text);
    let notices: Vec<_> = notices.map(|text| ("notices", text)).collect();
    let refused = &status["refused"];
    // What never happened is left out.
    let happened = |value: &Value| {
        let happened = value.as_object().into_iter().flatten().filter(|(_, count)| number(count) > 0);
        happened.map(|(name, count)| format!("{} {count}", clean(name))).collect::<Vec<_>>()
    };
    let refused = [happened(&refused["budgets"]), happened(&refused["events"])].concat();
    let refused = if refused.is_empty() { "nothing".into() } else { refused.join(", ") };
    let lines = [
        ("version", clean(of(status, "version"))),
        ("uptime", uptime),
        (
            "servers",
            format!("{} ({})", number(&status["servers"]), counted(&status["servers_by_game"])).replace(" ()", ""),
        ),
        ("connections", number(&status["connections"]).to_string()),
        ("memory", format!("{:.1} MiB", mib(number(&status["memory_bytes"])))),
        ("store", store),
        ("cluster", cluster),
        ("moderation", counted(&status["moderation"])),
        ("refused", refused),
    ];
    lines.iter().chain(&upstreams).chain(&notices).map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

/// A master that the server follows.
fn upstream_text(upstream: &Value) -> String {
    let number = |key: &str| upstream[key].as_u64().unwrap_or(0);
    let (servers, mirrored) = (number("servers"), number("mirrored"));
    let age = upstream["fetched_s_ago"].as_u64().map(|age_s| format_duration(Duration::from_secs(age_s)));
    let state = match (upstream["up"] == true, age) {
        (true, Some(age)) => format!("fetched {age} ago"),
        (false, Some(age)) => format!("does not answer, last fetched {age} ago"),
        (_, None) => "not fetched yet".into(),
    };
    let failures = Some(number("failures")).filter(|count| *count > 0);
    let failures = failures.map(|count| format!(", {count} failures")).unwrap_or_default();
    let name = clean(of(upstream, "name"));
    format!("{name}: {state}{failures}; {servers} servers to ask, {mirrored} listed via it")
}

fn notice_test_text(row: &Value) -> String {
    let name = clean(of(row, "name"));
    match row["reason"].as_str() {
        None => format!("{name}: the test arrived\n"),
        Some(why) => format!("{name}: the test did not arrive: {}\n", clean(why)),
    }
}

/// An address that the server sends notices to.
fn notices_text(notices: &Value) -> String {
    let number = |key: &str| notices[key].as_u64().unwrap_or(0);
    let state = if notices["failing"] == true { "failing" } else { "ok" };
    let counts = ["sent", "waiting", "failed", "dropped"].map(|key| (number(key), key));
    let counts = counts.iter().filter(|(count, key)| *count > 0 || *key == "sent");
    let counts: Vec<String> = counts.map(|(count, key)| format!("{count} {key}")).collect();
    format!("{}: {state}; {}", clean(of(notices, "name")), counts.join(", "))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_in_words() {
        let ban = json!({ "done": "ban", "subject": "192.0.2.1", "until": "2026-01-01T00:00:00Z", "reason": "a\u{1b}[31mb",
            "servers_removed": 2, "connections_closed": 1, "kept": "memory, because data_dir is not set" });
        assert_eq!(
            done_text(&ban),
            "192.0.2.1 is banned until 2026-01-01T00:00:00Z: a[31mb\nservers taken off the list: 2, connections closed: 1\n\
             kept in memory, because data_dir is not set: a restart forgets it\n"
        );
        let lifted = json!({ "done": "unban", "subject": "192.0.2.1", "still_configured": true, "kept": "disk" });
        assert_eq!(
            done_text(&lifted),
            "192.0.2.1 is no longer banned\nthe configuration says the same and still counts\n"
        );
        let reloaded = json!({ "done": "reload", "restart_needed": ["web.listen"] });
        assert!(done_text(&reloaded).ends_with("in effect only after a restart: web.listen\n"));
        let game = json!({ "game": "a\u{1b}b", "servers": 4, "players": 9, "bytes": 2048, "proofs": { "query": 4 }, "limit": 64,
            "largest_share": { "servers": 0.75, "players": 1.0, "bytes": 0.5 }, "networks": [
                { "network": "192.0.2.0/24", "share": 0.75, "servers": 3, "players": 9, "bytes": 1024, "proofs": { "query": 3 } }] });
        assert_eq!(
            game_text(&game),
            "game         ab\nservers      4\nplayers      9\nmemory       2.0 KiB\nproofs       query 4\n\
             largest      75% of the servers, 100% of the players, 50% of the memory in one network\n\
             limit        64 for each network\n\n\
             NETWORK       SHARE  SERVERS  PLAYERS  MEMORY   PROOFS\n\
             192.0.2.0/24  75%    3        9        1.0 KiB  query 3\n"
        );
        assert!(game_text(&json!({})).contains("limit        none\n"));
        assert_eq!(table(&[]), "none\n");
        let rows = [json!({ "subject": "192.0.2.1", "source": "configuration", "until": null, "reason": "" })];
        assert_eq!(table(&rows), "SUBJECT    UNTIL  BY             REASON\n192.0.2.1  -      configuration\n");
    }
}

//! The notices in the configuration: `[[notices]]`. What is secret here (addresses, too: whoever knows a Discord webhook's can
//! post to it) is in no message and in no debug output.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use url::{Host, Url};

use super::notice::Event;
use crate::model::{Address, GAME_BYTES_MAX, Server};
use crate::settings::{Item, Problem};

/// Upper bound on the number of addresses.
const TARGETS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 64;
/// Upper bounds on `games` and `servers`.
const GAMES_MAX: usize = 64;
const SERVERS_MAX: usize = 1_024;
const URL_BYTES_MAX: usize = 2_048;
/// More than the longest value with white space around it.
const FILE_BYTES_MAX: u64 = 16 << 10;
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 512;
const QUIET: Duration = Duration::from_secs(300);
const QUIET_MAX: Duration = Duration::from_secs(86_400);
const FLOOD_PER_SECOND: i64 = 100;
const KEYS: &[&str] =
    &["url", "url_file", "name", "form", "secret", "secret_file", "on", "games", "servers", "quiet", "flood"];
/// Hosts that take Discord's form.
const DISCORD: &[&str] = &["discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"];

/// All addresses, and who sends to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub targets: Vec<Target>,
    pub sender: Sender,
}

/// This master, as notices name it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sender {
    pub title: String,
    /// Its name in a cluster; empty: none.
    pub node: String,
}

/// An address that notices are sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The operator's name for it, or its host: what logs and answers call it.
    pub name: String,
    pub url: SecretUrl,
    pub form: Form,
    /// None: not signed.
    pub secret: Option<Secret>,
    pub wants: Wants,
}

/// How a notice is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Discord,
}

/// What an address is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Wants {
    pub on: Vec<Event>,
    /// Names of games or protocols; empty: all.
    pub games: Vec<String>,
    /// Empty: all.
    pub servers: Vec<Address>,
    /// What lasts shorter than this is not told.
    pub quiet_ms: u64,
    /// So many refusals a second are a flood.
    pub flood_per_second: u64,
}

impl Wants {
    pub fn has(&self, event: Event) -> bool {
        self.on.contains(&event)
    }

    /// Whether it is a server that this address is told of.
    pub fn server(&self, server: &Server) -> bool {
        let game = &server.game;
        let is_game =
            |name: &String| name.eq_ignore_ascii_case(game.name()) || name.eq_ignore_ascii_case(game.protocol());
        !game.is_master()
            && (self.games.is_empty() || self.games.iter().any(is_game))
            && (self.servers.is_empty() || self.servers.contains(&server.address))
    }
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// An address of which only the scheme and the host are shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(Url);

impl SecretUrl {
    /// For the request itself.
    pub fn whole(&self) -> &Url {
        &self.0
    }

    fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// Whether what is sent can be read on its way.
    fn is_open(&self) -> bool {
        let is_here = match self.0.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        self.0.scheme() == "http" && !is_here
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/…", self.0.scheme(), self.host())
    }
}

impl Target {
    /// All tables of the configuration.
    pub fn read_all(item: &Item<'_>) -> Result<Vec<Target>, Problem> {
        // Errors do not quote the value: it may be an address.
        let wrong = || (None, "must be a list of tables: write [[notices]]".to_string());
        let read = |table: Item<'_>| if table.is_table() { Target::read(&table) } else { Err(wrong()) };
        let targets = if item.is_list() { item.list("", read)? } else { return Err(wrong()) };
        if targets.len() > TARGETS_MAX {
            return Err((None, format!("must not be more than {TARGETS_MAX}")));
        }
        for (number, target) in targets.iter().enumerate() {
            if targets.iter().skip(number + 1).any(|other| other.name == target.name) {
                return Err((None, format!("`{}` is there twice: give each a `name`", target.name)));
            }
        }
        Ok(targets)
    }

    fn read(table: &Item<'_>) -> Result<Target, Problem> {
        table.only(KEYS)?;
        let text = one_or_file(table, "url", URL_BYTES_MAX)?.ok_or_else(|| (None, "`url` is missing".to_string()))?;
        let url = url(&text).map_err(|why| (None, format!("url {why}")))?;
        let name = table.optional("name", |item| item.name(NAME_BYTES_MAX))?.unwrap_or_else(|| url.host().to_string());
        let secret = one_or_file(table, "secret", SECRET_BYTES_MAX)?.map(secret).transpose()?;
        let form = table.optional("form", |item| item.one_of(&[("json", Form::Json), ("discord", Form::Discord)]))?;
        let usual = if DISCORD.contains(&url.host()) { Form::Discord } else { Form::Json };
        let on = table.optional("on", events)?.unwrap_or_else(|| Event::ALL.to_vec());
        let quiet = table.optional("quiet", |item| item.duration(Duration::ZERO, QUIET_MAX))?.unwrap_or(QUIET);
        let flood = table.optional("flood", |item| item.integer(1, 1_000_000_000))?.unwrap_or(FLOOD_PER_SECOND);
        let wants = Wants {
            on,
            games: table.optional("games", games)?.unwrap_or_default(),
            servers: table.optional("servers", servers)?.unwrap_or_default(),
            quiet_ms: quiet.as_millis() as u64,
            flood_per_second: flood as u64,
        };
        Ok(Target { name, url, form: form.unwrap_or(usual), secret, wants })
    }

    /// What is allowed, but probably a mistake.
    pub fn warning(&self) -> Option<String> {
        let name = &self.name;
        self.url.is_open().then(|| format!("notices {name}: http is not encrypted: use https, if it can"))
    }
}

/// The value of a key, or of the file that `KEY_file` names, without white space around it. Errors do not name the file: it may be
/// the value, in the wrong place.
fn one_or_file(table: &Item<'_>, key: &str, bytes_max: usize) -> Result<Option<String>, Problem> {
    let file = format!("{key}_file");
    let value = table.optional(key, |item| item.text().map(String::from))?;
    let read = table.optional(&file, |item| {
        read_file(Path::new(item.text()?)).map_err(|error| (None, format!("names a file that cannot be read: {error}")))
    })?;
    match (value, read) {
        (Some(_), Some(_)) => Err((None, format!("has both `{key}` and `{file}`: keep one of them"))),
        (value, read) => {
            let value = value.or(read).map(|text| text.trim().to_string());
            match value {
                Some(value) if value.len() > bytes_max => {
                    Err((None, format!("{key} must not be longer than {bytes_max} bytes")))
                }
                value => Ok(value),
            }
        }
    }
}

/// A file as a whole. Not a FIFO or a device: those may never end, and the program waits here.
fn read_file(path: &Path) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Errors do not quote it.
fn url(text: &str) -> Result<SecretUrl, String> {
    let url = Url::parse(text).map_err(|error| format!("must be an address like \"https://host/path\": {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with https:// or http://".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not have a login: notices are signed with `secret` instead".into());
    }
    if url.fragment().is_some() {
        return Err("must not have a fragment (#…)".into());
    }
    Ok(SecretUrl(url))
}

fn secret(text: String) -> Result<Secret, Problem> {
    match text.len() {
        ..SECRET_BYTES_MIN => Err((None, format!("secret must have at least {SECRET_BYTES_MIN} characters"))),
        _ => Ok(Secret(text.into())),
    }
}

fn events(item: &Item<'_>) -> Result<Vec<Event>, Problem> {
    let choices = Event::ALL.map(|event| (event.name(), event));
    let events = item.list("a list like [\"came\", \"went\"]", |item| item.one_of(&choices))?;
    if events.is_empty() { Err((None, "must name at least one event".into())) } else { Ok(events) }
}

fn games(item: &Item<'_>) -> Result<Vec<String>, Problem> {
    let game = |item: Item<'_>| match item.text()?.trim() {
        "" => Err((None, "must be the name of a game".to_string())),
        name if name.len() > GAME_BYTES_MAX => Err((None, format!("must not be longer than {GAME_BYTES_MAX} bytes"))),
        name => Ok(name.to_string()),
    };
    bounded(item.list("a list of games", game)?, GAMES_MAX)
}

fn servers(item: &Item<'_>) -> Result<Vec<Address>, Problem> {
    bounded(item.list("a list of servers", |item| item.parsed("an address like \"203.0.113.5:20737\""))?, SERVERS_MAX)
}

fn bounded<T>(list: Vec<T>, most: usize) -> Result<Vec<T>, Problem> {
    if list.len() > most { Err((None, format!("must not be more than {most}"))) } else { Ok(list) }
}

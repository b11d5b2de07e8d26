//! The operator's word: one TOML file, or none. Every key is a row in [`keys::KEYS`]; the default file, the checks,
//! `--set` and the tests all follow from the row.

pub mod keys;
mod value;

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use toml::de::{DeTable, DeValue};
use tracing::Level;

use crate::model::{Address, Game, OperatorWord, Word};
use crate::net::guard;
use crate::prefix::Networks;
use crate::protocols::{hyperbol, iceball, life_ms_max, netpanzer};
use crate::registry::Settings;
use crate::store::{cluster, history};
use keys::{KEYS, Key};
use value::Item;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub log: Level,
    /// None: nothing is kept on disk.
    pub data_dir: Option<PathBuf>,
    pub history: history::Settings,
    pub web: Web,
    pub iceball: Iceball,
    pub netpanzer: Netpanzer,
    pub hyperbol: Hyperbol,
    pub bloodmasters: Bloodmasters,
    pub probe: Probe,
    pub guard: Guard,
    pub cluster: cluster::Settings,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Web {
    pub listen: Vec<SocketAddr>,
    pub title: String,
    /// None: the built-in one.
    pub template: Option<PathBuf>,
    pub stylesheet: Option<PathBuf>,
    /// The operator's token for the API; empty: none.
    pub token: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Iceball {
    pub listen: Vec<SocketAddr>,
    pub client_listen: Vec<SocketAddr>,
    pub settings: iceball::serve::Settings,
    pub servers: Vec<OperatorWord>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Netpanzer {
    pub listen: Vec<SocketAddr>,
    pub settings: netpanzer::serve::Settings,
    /// Other masters, as typed: names are looked up when they are needed.
    pub neighbours: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hyperbol {
    pub listen: Vec<SocketAddr>,
    pub servers: Vec<OperatorWord>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bloodmasters {
    pub list: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub every: Duration,
    pub misses: u8,
    pub per_second_max: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    pub servers_max: usize,
    pub servers_per_ip_max: u32,
    pub connections_max: usize,
    pub connections_per_ip_max: usize,
    pub idle: Duration,
    pub bans: Vec<IpNet>,
    pub exempt: Vec<IpNet>,
}

impl Default for Config {
    /// What the default file says.
    fn default() -> Config {
        let mut config = Config {
            log: Level::INFO,
            data_dir: None,
            history: history::Settings { every_s: 0, bytes_max: 0 },
            web: Web {
                listen: Vec::new(),
                title: String::new(),
                template: None,
                stylesheet: None,
                token: String::new(),
            },
            iceball: Iceball {
                listen: Vec::new(),
                client_listen: Vec::new(),
                settings: iceball::serve::Settings::default(),
                servers: Vec::new(),
            },
            netpanzer: Netpanzer { listen: Vec::new(), settings: Default::default(), neighbours: Vec::new() },
            hyperbol: Hyperbol { listen: Vec::new(), servers: Vec::new() },
            bloodmasters: Bloodmasters { list: false },
            probe: Probe { every: Duration::ZERO, misses: 0, per_second_max: 0 },
            guard: Guard {
                servers_max: 0,
                servers_per_ip_max: 0,
                connections_max: 0,
                connections_per_ip_max: 0,
                idle: Duration::ZERO,
                bans: Vec::new(),
                exempt: Vec::new(),
            },
            cluster: cluster::Settings::default(),
        };
        for key in KEYS {
            // A test reads every default, so none of these can fail.
            if let Ok(value) = DeValue::parse(key.default) {
                let _ = (key.set)(&mut config, &Item::new(value.get_ref()));
            }
        }
        config
    }
}

/// All that is wrong with a configuration: one line each, with the place, the key and what to do.
#[derive(Debug)]
pub struct Errors(Vec<String>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Errors {}

impl Config {
    /// The defaults, then the file, then what was set on the command line.
    pub fn load(file: Option<&Path>, set: &[String]) -> Result<Config, Errors> {
        let mut config = Config::default();
        let mut errors = Vec::new();
        if let Some(path) = file {
            match std::fs::read_to_string(path) {
                Ok(text) => config.read(&path.display().to_string(), &text, &mut errors),
                Err(error) => errors.push(format!("{}: cannot be read: {error}", path.display())),
            }
        }
        for assignment in set {
            if let Err(reason) = config.assign(assignment) {
                errors.push(format!("--set {assignment}: {reason}"));
            }
        }
        if errors.is_empty() {
            config.check_listeners(&mut errors);
        }
        if errors.is_empty() { Ok(config) } else { Err(Errors(errors)) }
    }

    fn read(&mut self, file: &str, text: &str, errors: &mut Vec<String>) {
        let line = |span: Range<usize>| text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let place = error.span().map_or(1, line);
                errors.push(format!("{file}:{place}: {}", error.message()));
                return;
            }
        };
        let mut problems = Vec::new();
        self.read_table("", table.get_ref(), &mut problems);
        errors.extend(problems.into_iter().map(|(span, reason)| format!("{file}:{}: {reason}", line(span))));
    }

    fn read_table(&mut self, prefix: &str, table: &DeTable<'_>, problems: &mut Vec<(Range<usize>, String)>) {
        // In the order of the file, so that problems are listed from top to bottom.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in entries {
            let path = format!("{prefix}{}", name.get_ref());
            let is_section = KEYS.iter().any(|key| key.section() == Some(&path));
            match (Key::find(&path), value.get_ref()) {
                (Some(key), found) => {
                    if let Err((span, reason)) = (key.set)(self, &Item::new(found)) {
                        problems.push((span.unwrap_or(value.span()), format!("{path}: {reason}")));
                    }
                }
                (None, DeValue::Table(inner)) if is_section => {
                    self.read_table(&format!("{path}."), inner, problems);
                }
                (None, _) if is_section => {
                    problems.push((name.span(), format!("{path} is a section: write [{path}]")));
                }
                (None, _) => problems.push((name.span(), unknown_key(&path))),
            }
        }
    }

    fn assign(&mut self, assignment: &str) -> Result<(), String> {
        let (path, text) = assignment.split_once('=').ok_or_else(|| match Key::find(assignment.trim()) {
            Some(key) => format!("it lacks a value: write --set {}=VALUE", key.path),
            None => format!("write --set KEY=VALUE; {}", unknown_key(assignment.trim())),
        })?;
        let (path, text) = (path.trim(), text.trim());
        let key = Key::find(path).ok_or_else(|| unknown_key(path))?;
        let quoted = key.toml_for(text);
        let value = DeValue::parse(&quoted).map_err(|error| error.message().to_string())?;
        (key.set)(self, &Item::new(value.get_ref())).map_err(|(_, reason)| reason)
    }

    /// The keys whose values differ between two configurations and cannot change while the program runs.
    pub fn needs_restart(&self, new: &Config) -> Vec<&'static str> {
        let changed = self.listeners().into_iter().zip(new.listeners()).filter(|(old, new)| old != new);
        let data_dir = (self.data_dir != new.data_dir).then_some("data_dir");
        let cluster = (self.cluster != new.cluster).then_some("cluster");
        let other_life = self.iceball.settings.life_ms != new.iceball.settings.life_ms;
        let life = (self.is_one_of_many() && other_life).then_some("iceball.life");
        changed.map(|((path, _), _)| path).chain(data_dir).chain(cluster).chain(life).collect()
    }

    /// Whether there are other nodes. What all of them share is kept for the longest life, so that cannot change either.
    pub fn is_one_of_many(&self) -> bool {
        !self.cluster.nats.is_empty()
    }

    fn listeners(&self) -> [(&'static str, &Vec<SocketAddr>); 5] {
        [
            ("web.listen", &self.web.listen),
            ("iceball.listen", &self.iceball.listen),
            ("iceball.client_listen", &self.iceball.client_listen),
            ("netpanzer.listen", &self.netpanzer.listen),
            ("hyperbol.listen", &self.hyperbol.listen),
        ]
    }

    /// An address that is named twice could be bound only once.
    fn check_listeners(&self, errors: &mut Vec<String>) {
        let mut seen: Vec<(&str, SocketAddr)> = Vec::new();
        for (path, addresses) in self.listeners() {
            for &address in addresses.iter().filter(|address| address.port() != 0) {
                match seen.iter().find(|(_, known)| *known == address) {
                    Some((other, _)) if *other == path => errors.push(format!("{path}: {address} stands there twice")),
                    Some((other, _)) => errors.push(format!("{path}: {address} is taken by {other} already")),
                    None => seen.push((path, address)),
                }
            }
        }
    }

    /// The longest that a server can stay listed without a word.
    pub fn life_max(&self) -> Duration {
        Duration::from_millis(self.iceball.settings.life_ms.max(life_ms_max()))
    }

    /// The operator's words on servers, of all games.
    pub fn words(&self) -> Arc<[OperatorWord]> {
        self.iceball.servers.iter().chain(&self.hyperbol.servers).cloned().collect()
    }

    /// What the registry has to know.
    pub fn registry(&self) -> Settings {
        Settings {
            servers_max: self.guard.servers_max,
            servers_per_ip_max: self.guard.servers_per_ip_max,
            ask_every_ms: self.probe.every.as_millis() as u64,
            misses_max: self.probe.misses,
        }
    }
}

impl Guard {
    /// What the guard at the door has to know; `connections_max` is what the system allows of it.
    pub fn at_the_door(&self, connections_max: usize) -> guard::Settings {
        guard::Settings {
            connections_max,
            per_ip_max: u32::try_from(self.connections_per_ip_max).unwrap_or(u32::MAX),
            bans: Networks::new(&self.bans),
            exempt: self.exempt(),
        }
    }

    pub fn exempt(&self) -> Networks {
        Networks::new(&self.exempt)
    }

    pub fn ipv4_bans(&self) -> Vec<Ipv4Net> {
        let ipv4 = |ban: &IpNet| match ban {
            IpNet::V4(net) => Some(*net),
            IpNet::V6(_) => None,
        };
        self.bans.iter().filter_map(ipv4).collect()
    }
}

fn unknown_key(path: &str) -> String {
    let mut known: Vec<&str> = KEYS.iter().map(|key| key.path).collect();
    known.extend(KEYS.iter().filter_map(Key::section));
    format!("unknown key `{path}`{}", value::nearest(path, known))
}

/// The commented default file.
pub fn default_file() -> String {
    let mut out = String::from(
        "# Rallypoint's configuration. Everything here is the default: keep only what you change.\n\
         # Check a file with `rallypoint config --check FILE`; SIGHUP makes a running server read it again.\n",
    );
    let mut section = None;
    for key in KEYS {
        if key.section() != section {
            section = key.section();
            out.push_str(&format!("\n[{}]\n", section.unwrap_or_default()));
        } else {
            out.push('\n');
        }
        for line in key.doc.lines() {
            out.push_str(&format!("# {line}\n"));
        }
        match key.example {
            "" => out.push_str(&format!("{} = {}\n", key.name(), key.default)),
            example => example.lines().for_each(|line| out.push_str(&format!("#{line}\n"))),
        }
    }
    out
}

/// The operator's word on an Iceball server, from its table.
fn iceball_word(table: &Item<'_>) -> Result<OperatorWord, value::Problem> {
    table.only(&["address", "official", "priority"])?;
    let address: Address = table.required("address", |item| item.parsed("an address like \"203.0.113.5:20737\""))?;
    let official = table.optional("official", Item::boolean)?.unwrap_or(false);
    let priority = table.optional("priority", |item| item.integer(-1_000_000, 1_000_000))?.unwrap_or(0);
    let word = Word { official, priority: priority as i32, flavor: 0 };
    Ok(OperatorWord { address, game: Game::Known(iceball::NAME), word, asked: false })
}

/// The operator's word on a Hyperbol server: it need not announce itself, and only here can it be made official.
fn hyperbol_word(table: &Item<'_>) -> Result<OperatorWord, value::Problem> {
    table.only(&["address", "flavor"])?;
    let address: Address = table.required("address", |item| item.parsed("an address like \"203.0.113.5:20200\""))?;
    let flavor = table.optional("flavor", |item| item.integer(0, 255))?.unwrap_or(0) as u8;
    let word = Word { official: flavor != 0, priority: 0, flavor };
    Ok(OperatorWord { address, game: Game::Known(hyperbol::NAME), word, asked: true })
}

#[cfg(test)]
mod tests;

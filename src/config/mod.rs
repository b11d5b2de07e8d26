//! The configuration: one TOML file, or none. Every key is a row in a table, in [`keys::KEYS`] or in the section of a
//! protocol; the default file, the checks, `--set` and the tests are made from the rows.

pub mod keys;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use toml::de::{DeTable, DeValue};
use tracing::Level;

use crate::budget;
use crate::cluster;
use crate::mirror::{self, Upstream};
use crate::model::NamedServer;
use crate::moderation::board::FromConfig;
use crate::moderation::{Pattern, canonical};
use crate::net::client::{Header, Proxies};
use crate::net::{guard, tcp};
use crate::notices::{self, Target};
use crate::prefix::Networks;
use crate::protocols::section::{Configured, Listener, Section};
use crate::protocols::{CARDS, Card};
use crate::registry::Settings;
use crate::registry::per_game::GameLimits;
use crate::settings::{Item, Key, KeyText, Problem, nearest};
use crate::store::history;
use keys::{KEYS, NOTICES, TOKEN};

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub log: Level,
    /// None: nothing is kept on disk.
    pub data_dir: Option<PathBuf>,
    pub history: history::Settings,
    pub web: Web,
    /// The sections of all protocols, in the order of their cards.
    pub protocols: Vec<Box<dyn Section>>,
    pub probe: Probe,
    pub guard: Guard,
    pub proxy: Proxy,
    /// None: no administration.
    pub admin_socket: Option<PathBuf>,
    pub geo_database: Option<PathBuf>,
    pub cluster: cluster::Settings,
    /// Other masters that are followed.
    pub upstreams: Vec<Upstream>,
    /// Addresses that notices are sent to.
    pub notices: Vec<Target>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Web {
    pub listen: Vec<SocketAddr>,
    pub tls_listen: Vec<SocketAddr>,
    /// PEM files; both are there if anything listens with TLS.
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub title: String,
    /// None: the built-in one.
    pub template: Option<PathBuf>,
    pub stylesheet: Option<PathBuf>,
    /// The operator's token for the API; empty: none.
    pub token: String,
    /// Names under which browsers reach this master, in lower case.
    pub hosts: Vec<String>,
    /// How long browsers shall use TLS only; none: as is safe.
    pub hsts: Option<Duration>,
}

/// The port of HTTPS that browsers use where none is given.
const HTTPS_PORT: u16 = 443;
/// How long browsers shall use TLS only, where that is safe.
const HSTS: Duration = Duration::from_secs(30 * 86_400);

#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub every: Duration,
    pub misses: u8,
    /// How long a server that announces itself may leave our queries unanswered.
    pub grace: Duration,
    /// The addresses to ask from; empty: the system chooses.
    pub from: Vec<IpAddr>,
    pub per_second_max: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    pub servers_max: usize,
    pub servers_per_ip_max: u32,
    pub game_limits: GameLimits,
    pub connections_max: usize,
    pub connections_per_ip_max: usize,
    pub idle: Duration,
    pub list_bytes_per_second: u64,
    /// What strangers may make this program keep in memory; 0: as the system allows.
    pub memory_bytes_max: usize,
    /// What rendered lists may take of it.
    pub list_bytes_held_max: usize,
    pub bans: Vec<IpNet>,
    pub hidden_names: Vec<Pattern>,
    pub exempt: Vec<IpNet>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proxy {
    pub networks: Vec<IpNet>,
    pub header: Header,
    pub protocol: Vec<IpNet>,
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
                tls_listen: Vec::new(),
                tls_certificate: None,
                tls_key: None,
                title: String::new(),
                template: None,
                stylesheet: None,
                token: String::new(),
                hosts: Vec::new(),
                hsts: None,
            },
            protocols: CARDS.iter().map(|card| (card.section)()).collect(),
            probe: Probe {
                every: Duration::ZERO,
                misses: 0,
                grace: Duration::ZERO,
                from: Vec::new(),
                per_second_max: 0,
            },
            guard: Guard {
                servers_max: 0,
                servers_per_ip_max: 0,
                game_limits: GameLimits::default(),
                connections_max: 0,
                connections_per_ip_max: 0,
                idle: Duration::ZERO,
                list_bytes_per_second: 0,
                memory_bytes_max: 0,
                list_bytes_held_max: 0,
                bans: Vec::new(),
                hidden_names: Vec::new(),
                exempt: Vec::new(),
            },
            proxy: Proxy::default(),
            admin_socket: None,
            geo_database: None,
            cluster: cluster::Settings::default(),
            upstreams: Vec::new(),
            notices: Vec::new(),
        };
        KEYS.iter().for_each(|key| key.set_default(&mut config));
        config
    }
}

/// Everything that is wrong with a configuration: one line per problem, with its place, its key and what to do.
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
        let name = file.map(|path| path.display().to_string()).unwrap_or_default();
        match file.map(std::fs::read_to_string).transpose() {
            Ok(text) => Config::parse(text.as_deref().map(|text| (&*name, text)), set),
            Err(error) => {
                let mut errors = vec![format!("{name}: cannot be read: {error}{}", unread(&name, &error))];
                errors.extend(Config::parse(None, set).err().map(|Errors(errors)| errors).unwrap_or_default());
                Err(Errors(errors))
            }
        }
    }

    /// The same from a file's name and text.
    pub fn parse(file: Option<(&str, &str)>, set: &[String]) -> Result<Config, Errors> {
        let mut config = Config::default();
        let mut errors = Vec::new();
        if let Some((name, text)) = file {
            config.read(name, text, &mut errors);
        }
        for assignment in set {
            if let Err(reason) = config.assign(assignment) {
                errors.push(format!("--set {}: {reason}", shown(assignment)));
            }
        }
        if errors.is_empty() {
            config.check_listeners(&mut errors);
            config.check_tls(&mut errors);
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
            let is_section = sections().any(|section| section == path);
            match (self.set(&path, &Item::new(value.get_ref())), value.get_ref()) {
                (Some(Ok(())), _) => {}
                (Some(Err((span, reason))), _) => {
                    problems.push((span.unwrap_or(value.span()), format!("{path}: {reason}")));
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
        let find = |path: &str| all_keys().find(|(known, _)| known == path);
        let (path, text) = assignment.split_once('=').ok_or_else(|| match find(assignment.trim()) {
            Some((path, _)) => format!("it lacks a value: write --set {path}=VALUE"),
            None => format!("write --set KEY=VALUE; {}", unknown_key(assignment.trim())),
        })?;
        let (path, text) = (path.trim(), text.trim());
        let (_, key) = find(path).ok_or_else(|| unknown_key(path))?;
        let quoted = key.toml_for(text);
        let value = DeValue::parse(&quoted).map_err(|error| error.message().to_string())?;
        let set = self.set(path, &Item::new(value.get_ref()));
        set.unwrap_or(Ok(())).map_err(|(_, reason)| reason)
    }

    /// Sets a key by its full path; None if there is no such key.
    fn set(&mut self, path: &str, item: &Item<'_>) -> Option<Result<(), Problem>> {
        if let Some(key) = KEYS.iter().find(|key| key.name == path) {
            return Some((key.set)(self, item));
        }
        let (section, name) = path.split_once('.')?;
        let (_, section) = CARDS.iter().zip(&mut self.protocols).find(|(card, _)| card.name == section)?;
        section.set(name, item)
    }

    /// The settings of one protocol, in its own type.
    pub fn protocol<S: Configured>(&self) -> S {
        self.protocols.iter().find_map(|section| section.as_any().downcast_ref()).cloned().unwrap_or_default()
    }

    /// Every protocol with its section.
    pub fn sections(&self) -> impl Iterator<Item = (&'static Card, &dyn Section)> {
        CARDS.iter().zip(self.protocols.iter().map(|section| &**section))
    }

    /// The keys whose values differ between two configurations and cannot change while the program runs.
    pub fn needs_restart(&self, new: &Config) -> Vec<String> {
        let changed = self.listeners().into_iter().zip(new.listeners()).filter(|(old, new)| old != new);
        let data_dir = (self.data_dir != new.data_dir).then_some("data_dir");
        let admin = (self.admin_socket != new.admin_socket).then_some("admin.socket");
        let cluster = (self.cluster != new.cluster).then_some("cluster");
        let from = (self.probe.from != new.probe.from).then_some("probe.from");
        let other_life = |(old, new): &((&Card, &dyn Section), (&Card, &dyn Section))| {
            self.is_clustered() && old.1.life_max_ms() != new.1.life_max_ms()
        };
        let lives = self.sections().zip(new.sections()).filter(other_life);
        let lives = lives.map(|((card, _), _)| format!("{}.life", card.name));
        let general = data_dir.into_iter().chain(admin).chain(cluster).chain(from).map(String::from);
        changed.map(|((path, _), _)| path).chain(general).chain(lives).collect()
    }

    /// Keeps the lives of another configuration: in a cluster they cannot change, since shared records are kept for the
    /// longest life.
    pub fn keep_lives(&mut self, from: &Config) {
        for (section, from) in self.protocols.iter_mut().zip(&from.protocols) {
            section.keep_life(&**from);
        }
    }

    /// Whether this node is part of a cluster.
    pub fn is_clustered(&self) -> bool {
        !self.cluster.nats.is_empty()
    }

    /// All listeners, by the path of their key.
    fn listeners(&self) -> Vec<(String, &[SocketAddr])> {
        let web = [("web.listen", &self.web.listen), ("web.tls_listen", &self.web.tls_listen)];
        let mut listeners: Vec<_> = web.map(|(path, addresses)| (path.to_string(), &addresses[..])).into();
        for (card, section) in self.sections() {
            let path = |listener: &Listener<'_>| format!("{}.{}", card.name, listener.key);
            listeners.extend(section.listeners().iter().map(|listener| (path(listener), listener.addresses)));
        }
        listeners
    }

    /// Reports addresses that are named twice: they could be bound only once.
    fn check_listeners(&self, errors: &mut Vec<String>) {
        let mut seen: Vec<(String, SocketAddr)> = Vec::new();
        for (path, addresses) in self.listeners() {
            for &address in addresses.iter().filter(|address| address.port() != 0) {
                match seen.iter().find(|(_, known)| *known == address) {
                    Some((other, _)) if *other == path => errors.push(format!("{path}: {address} is listed twice")),
                    Some((other, _)) => errors.push(format!("{path}: {address} is taken by {other} already")),
                    None => seen.push((path.clone(), address)),
                }
            }
        }
    }

    /// Reports files that TLS lacks.
    fn check_tls(&self, errors: &mut Vec<String>) {
        let files = [("web.tls_certificate", &self.web.tls_certificate), ("web.tls_key", &self.web.tls_key)];
        for (path, file) in files.iter().filter(|_| !self.web.tls_listen.is_empty()) {
            if file.is_none() {
                errors.push(format!("{path}: web.tls_listen needs it: name a PEM file"));
            }
        }
    }

    /// How long browsers that came with TLS shall come with nothing else. None: they are not told.
    ///
    /// They apply it to every port of the host. So, unless the operator says how long, they are told only where TLS is on its
    /// usual port and nobody else gets the page without.
    pub fn hsts(&self) -> Option<Duration> {
        let is_usual = self.web.tls_listen.iter().any(|address| address.port() == HTTPS_PORT);
        let is_plain = self.web.listen.iter().any(|address| !address.ip().is_loopback());
        let safe = || if is_usual && !is_plain { HSTS } else { Duration::ZERO };
        Some(self.web.hsts.unwrap_or_else(safe)).filter(|age| !age.is_zero())
    }

    /// The longest that a server can stay listed without a sign of life.
    pub fn life_max(&self) -> Duration {
        let lives = self.protocols.iter().map(|section| section.life_max_ms());
        Duration::from_millis(lives.max().unwrap_or(0).max(self.registry(usize::MAX).mirrored_life_ms()))
    }

    /// The servers that the operator names, of all protocols.
    pub fn named_servers(&self) -> Arc<[NamedServer]> {
        self.protocols.iter().flat_map(|section| section.named_servers()).cloned().collect()
    }

    /// Settings that are allowed but probably a mistake.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = self.protocols.iter().flat_map(|section| section.warnings()).collect();
        for (path, networks) in [("proxy.networks", &self.proxy.networks), ("proxy.protocol", &self.proxy.protocol)] {
            if networks.iter().any(|network| network.prefix_len() == 0) {
                warnings.push(format!("{path} contains every address, so that anybody can pretend to be anybody"));
            }
        }
        warnings.extend(self.upstreams.iter().filter_map(Upstream::warning));
        warnings.extend(self.notices.iter().filter_map(Target::warning));
        warnings
    }

    /// The masters that are followed, and what bounds them.
    pub fn mirror(&self) -> mirror::Settings {
        mirror::Settings {
            upstreams: self.upstreams.clone(),
            servers_per_ip_max: self.guard.servers_per_ip_max,
            exempt: self.guard.exempt(),
        }
    }

    /// Where notices are sent, and in whose name.
    pub fn notices(&self) -> notices::Settings {
        let sender = notices::Sender { title: self.web.title.clone(), node: self.cluster.node.clone() };
        notices::Settings { targets: self.notices.clone(), sender }
    }

    /// What applies to every connection.
    pub fn entrance(&self) -> tcp::Settings {
        let Proxy { networks, header, protocol } = &self.proxy;
        let proxies = Proxies { networks: Networks::new(networks), header: *header, protocol: Networks::new(protocol) };
        tcp::Settings { proxies, idle: self.guard.idle }
    }

    /// The registry's settings; `bytes_max` is what there is memory for.
    pub fn registry(&self, bytes_max: usize) -> Settings {
        Settings {
            servers_max: self.guard.servers_max,
            bytes_max,
            servers_per_ip_max: self.guard.servers_per_ip_max,
            ask_every_ms: self.probe.every.as_millis() as u64,
            misses_max: self.probe.misses,
            grace_ms: self.probe.grace.as_millis() as u64,
        }
    }
}

impl Guard {
    /// The guard's settings; `connections_max` is the number that the system allows.
    pub fn settings(&self, connections_max: usize) -> guard::Settings {
        guard::Settings {
            connections_max,
            per_ip_max: u32::try_from(self.connections_per_ip_max).unwrap_or(u32::MAX),
            bans: Networks::new(&self.bans),
            budgets: budget::Settings {
                servers_per_ip_max: self.servers_per_ip_max,
                list_bytes_per_second: self.list_bytes_per_second,
                exempt: self.exempt(),
            },
        }
    }

    /// What the configuration keeps off the list.
    pub fn moderation(&self) -> FromConfig {
        let bans = self.bans.iter().copied().map(canonical).collect();
        FromConfig { bans, hidden_names: self.hidden_names.clone() }
    }

    pub fn exempt(&self) -> Networks {
        Networks::new(&self.exempt)
    }
}

/// Every key with its full path. The protocols come after the general settings and the page.
fn all_keys() -> impl Iterator<Item = (String, KeyText)> {
    let general = |key: &'static Key<Config>| (key.name.to_string(), key.text());
    let is_first = |key: &&Key<Config>| section(key.name).is_none_or(|section| section == "web");
    let of_protocol = |card: &'static Card| {
        let path = |key: KeyText| (format!("{}.{}", card.name, key.name), key);
        (card.section)().keys().into_iter().map(path)
    };
    let first = KEYS.iter().take_while(is_first).map(general);
    first.chain(CARDS.iter().flat_map(of_protocol)).chain(KEYS.iter().skip_while(is_first).map(general))
}

/// "web" of "web.listen"; None at the top level.
fn section(path: &str) -> Option<&str> {
    path.split_once('.').map(|(section, _)| section)
}

/// What to do about a file that cannot be read.
fn unread(name: &str, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => format!(". To begin with the defaults: rallypoint config > {name}"),
        ErrorKind::PermissionDenied => {
            format!(". Let the user that runs this read it, and enter its folders: ls -l {name}")
        }
        ErrorKind::IsADirectory => ". Name the file in that folder".into(),
        ErrorKind::InvalidData => ": it is not text in UTF-8".into(),
        _ => String::new(),
    }
}

fn sections() -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter_map(|key| section(key.name)).chain(CARDS.iter().map(|card| card.name))
}

/// An assignment for messages: tokens are secret, and so are the addresses of notices and their keys.
fn shown(assignment: &str) -> &str {
    let path = assignment.split_once('=').map_or(assignment, |(path, _)| path);
    // Also with a mistake at its end.
    let is_secret = [NOTICES.trim_end_matches('s'), TOKEN].iter().any(|key| path.trim().starts_with(key));
    if is_secret { path.trim() } else { assignment }
}

fn unknown_key(path: &str) -> String {
    let known: Vec<_> = all_keys().map(|(known, _)| known).chain(sections().map(String::from)).collect();
    format!("unknown key `{path}`{}", nearest(path, known.iter().map(String::as_str).collect()))
}

/// The commented default file.
pub fn default_file() -> String {
    let mut out = String::from(
        "# Rallypoint's configuration. Everything here is the default: keep only what you change.\n\
         # Check a file with `rallypoint config --check FILE`; SIGHUP makes a running server read it again.\n",
    );
    let mut last = None;
    for (path, key) in all_keys() {
        let in_section = section(&path).map(String::from);
        out.push('\n');
        if in_section != last {
            // A list of tables at the end of the file has no section.
            in_section.iter().for_each(|section| out.push_str(&format!("[{section}]\n")));
            last = in_section;
        }
        for line in key.doc.lines() {
            out.push_str(&format!("# {line}\n"));
        }
        let name = path.rsplit('.').next().unwrap_or_default();
        match key.example {
            "" => out.push_str(&format!("{name} = {}\n", key.default)),
            example => example.lines().for_each(|line| out.push_str(&format!("#{line}\n"))),
        }
    }
    out
}

#[cfg(test)]
mod tests;

//! What `list`, `query` and `watch` have in common: how fast to ask, which servers to show, in which order and form.

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::time::Duration;

use clap::{ColorChoice, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use ratatui::crossterm::terminal;

use super::out::{print, tell};
use super::{Exit, Failure, failures, time};
use crate::client::list::Listing;
use crate::client::query::{Pace, ask_all};
use crate::client::{Found, Patience, State, Target};
use crate::export::columns::Column;
use crate::export::{self, Format, Look};
use crate::protocols::query_of;

/// Single reasons told before the rest is only counted, where a list is at fault and not what was asked for.
const FAULTS_TOLD: usize = 5;
/// Of a terminal that does not say.
const WIDTH: usize = 80;

#[derive(clap::Args)]
pub struct Master {
    /// The master, by what it speaks and where it is
    pub url: Target,
    /// A game to list, where the master asks for one; give it again for each further one
    #[arg(long = "game", value_name = "NAME[:PROTOCOL]")]
    pub games: Vec<String>,
}

#[derive(clap::Args)]
pub struct Asking {
    /// Questions a second at the most
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Servers waited for at one time at the most, not counting those that were silent once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: u32,
    /// How long to wait for each try, 100ms to 60s; if not given, 900ms for a server and 30s for a master's list
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    /// How often to try again, up to 3; if not given, 3 for a silent server and 0 for a master
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=i64::from(Patience::RETRIES_MAX)))]
    retries: Option<u8>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_millis(100), Duration::from_secs(60))
}

impl Asking {
    /// Asks all that can be asked, with a progress bar on a terminal.
    pub async fn ask(&self, found: &mut [Found]) -> Result<(), Failure> {
        let askable = found.iter().filter(|server| query_of(&server.game).is_some()).count();
        let bar = progress(Some(askable), "{spinner} asking {bar:30} {pos}/{len} {elapsed}");
        let result = ask_all(found, self.pace(), |_| bar.inc(1)).await;
        bar.finish_and_clear();
        result.map_err(|error| Failure::new(Exit::Network, format!("cannot ask over UDP: {error}")))
    }

    pub fn pace(&self) -> Pace {
        let Asking { rate: per_second, in_flight, timeout, retries } = *self;
        let patience = Patience { timeout, retries };
        Pace { per_second, in_flight: in_flight as usize, patience, ..Pace::default() }
    }
}

/// Draws on stderr, and only on a terminal; it moves while nothing comes in, too.
pub fn progress(steps: Option<usize>, template: &str) -> ProgressBar {
    let bar = steps.map_or_else(ProgressBar::new_spinner, |steps| ProgressBar::new(steps as u64));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[derive(clap::Args)]
pub struct Shown {
    /// How to write the servers; jsonl is one JSON object per line
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Show only these columns, in this order: name, players, map, mode, version, ping, address, game, password, official,
    /// flavor, url, fault. Not for XML
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Column::parse)]
    columns: Vec<&'static Column>,
    /// Leave out the first line of a table or CSV, which names the columns
    #[arg(long)]
    no_header: bool,
    /// Colour in a table; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    #[command(flatten)]
    chosen: Chosen,
}

/// Which servers, and in which order.
#[derive(Clone, Default, clap::Args)]
pub struct Chosen {
    /// Sort by this; players: most first, ping: nearest first
    #[arg(long, value_enum, value_name = "KEY")]
    sort: Option<Sort>,
    /// Only servers on which somebody plays
    #[arg(long)]
    not_empty: bool,
    /// Only servers that have room for one more
    #[arg(long)]
    not_full: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    Name,
    Players,
    Map,
    Mode,
    Version,
    Ping,
    Game,
    Address,
}

impl Chosen {
    pub fn passes(&self, server: &Found) -> bool {
        (!self.not_empty || server.is_not_empty()) && (!self.not_full || server.is_not_full())
    }

    /// Leaves out, and sorts.
    pub fn choose(&self, found: &mut Vec<Found>) {
        found.retain(|server| self.passes(server));
        if let Some(sort) = self.sort {
            sort.apply(found);
        }
    }

    pub fn sort(&self) -> Option<Sort> {
        self.sort
    }

    pub fn toggle_not_empty(&mut self) {
        self.not_empty = !self.not_empty;
    }

    pub fn toggle_not_full(&mut self) {
        self.not_full = !self.not_full;
    }

    /// What is left out, in words.
    pub fn words(&self) -> &'static str {
        match (self.not_empty, self.not_full) {
            (false, false) => "",
            (true, false) => ", not empty",
            (false, true) => ", not full",
            (true, true) => ", not empty, not full",
        }
    }
}

impl Shown {
    /// Leaves out, sorts, and writes to stdout.
    pub fn print(&self, mut found: Vec<Found>) -> Result<(), Failure> {
        let some = !found.is_empty();
        self.chosen.choose(&mut found);
        if some && found.is_empty() {
            tell("no servers match the filters");
        }
        print(&export::write(self.format, &found, &self.look())).map(drop)
    }

    /// What is wrong with these arguments together.
    pub fn check(&self) -> Result<(), Failure> {
        if self.format == Format::Xml && !self.columns.is_empty() {
            let why = "--columns: XML has the attributes of a fixed format; choose table, csv, json or jsonl";
            return Err(Failure::new(Exit::Usage, why));
        }
        Ok(())
    }

    fn look(&self) -> Look {
        let on_terminal = std::io::stdout().is_terminal();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Look {
            columns: (!self.columns.is_empty()).then(|| self.columns.clone()),
            header: !self.no_header,
            color: match self.color {
                ColorChoice::Auto => on_terminal && !is_set("NO_COLOR") && !is_dumb,
                ColorChoice::Always => true,
                ColorChoice::Never => false,
            },
            width: on_terminal.then(terminal_width),
        }
    }

    /// Whether what is asked for can only be told by the servers themselves.
    pub fn needs_facts(&self) -> bool {
        self.chosen.not_empty || self.chosen.not_full
    }
}

/// What COLUMNS says, or the terminal itself.
fn terminal_width() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || terminal::size().ok().map(|(columns, _)| usize::from(columns));
    set.filter(|columns| *columns > 0).or_else(asked).filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

impl Sort {
    /// As it is called on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    /// The one after it; after the last comes the first.
    pub fn next(self) -> Sort {
        let all = Sort::value_variants();
        let target = all.iter().position(|sort| *sort == self).unwrap_or(0);
        all.get(target + 1).or(all.first()).copied().unwrap_or(self)
    }

    /// Unknown comes last; what is equal stays in its order.
    pub fn apply(self, found: &mut [Found]) {
        let text = |text: &str| (text.is_empty(), text.to_lowercase());
        match self {
            Sort::Name => found.sort_by_cached_key(|server| text(&server.facts.name)),
            Sort::Map => found.sort_by_cached_key(|server| text(&server.facts.map)),
            Sort::Mode => found.sort_by_cached_key(|server| text(&server.facts.mode)),
            Sort::Version => found.sort_by_cached_key(|server| text(&server.facts.version)),
            Sort::Game => found.sort_by_cached_key(|server| text(server.game.name())),
            Sort::Players => found.sort_by_key(|server| Reverse(server.facts.players_current)),
            Sort::Ping => found.sort_by_key(|server| server.rtt_us.unwrap_or(u32::MAX)),
            Sort::Address => found.sort_by_key(|server| server.address),
        }
    }
}

/// Tells which servers failed, and why. How many answered of those that were asked?
pub fn tell_failures(found: &[Found]) -> (usize, usize) {
    failures::lines(found).into_iter().for_each(tell);
    count(found)
}

/// How many answered, of those that were asked.
pub fn count(found: &[Found]) -> (usize, usize) {
    let answered = found.iter().filter(|server| server.state == State::Answered).count();
    (answered, answered + found.iter().filter(|server| server.failure().is_some()).count())
}

pub fn none_answered(asked: usize) -> String {
    if asked == 1 { "it did not answer".into() } else { format!("none of {asked} servers answered") }
}

/// Tells what is wrong with a list and with its single entries.
pub fn tell_faults(of: &Target, listing: &Listing) {
    listing.notes.iter().for_each(|note| tell(format!("{of}: {note}")));
    let told = listing.faults.iter().take(FAULTS_TOLD);
    told.clone().for_each(|fault| tell(format!("{of}: left out: {fault}")));
    let rest = listing.left_out - told.len();
    if rest > 0 {
        tell(format!("{of}: left out: {rest} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};

    #[test]
    fn sorts_with_the_unknown_last() {
        let server = |port: u16, name: &'static str, players: Option<u16>, rtt_us: Option<u32>| Found {
            facts: Facts { name: name.into(), players_current: players, ..Facts::default() },
            rtt_us,
            ..Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap())
        };
        let mut found = vec![
            server(9, "", None, None),
            server(3, "beta", Some(0), Some(9)),
            server(2, "Alpha", Some(5), Some(20)),
            server(10, "gamma", Some(5), Some(3)),
        ];
        let mut ports = |sort: Sort| {
            sort.apply(&mut found);
            found.iter().map(|server| server.address.port()).collect::<Vec<_>>()
        };
        assert_eq!(ports(Sort::Name), [2, 3, 10, 9]);
        assert_eq!(ports(Sort::Players), [2, 10, 3, 9]);
        assert_eq!(ports(Sort::Ping), [10, 3, 2, 9]);
        assert_eq!(ports(Sort::Address), [2, 3, 9, 10]);
    }
}

//! Options shared by `list`, `query`, `watch` and `export`: query rate and timeouts, filters, sort order and output format.

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::time::Duration;

use clap::{ColorChoice, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use ratatui::crossterm::terminal;

use super::out::{message, print};
use super::{Exit, Failure, failures, time};
use crate::client::list::Listing;
use crate::client::query::threads::query_in_threads;
use crate::client::query::{Pace, Wanted, in_flight_for};
use crate::client::{Found, RetryPolicy, State, Target};
use crate::export::columns::Column;
use crate::export::{self, Format, Layout};
use crate::protocols::query_of;

/// Invalid list entries that are reported one by one.
const FAULTS_REPORTED_MAX: usize = 5;
/// For a terminal that does not report its width.
const WIDTH: usize = 80;

#[derive(clap::Args)]
pub struct MasterOptions {
    /// The master's address
    pub url: Target,
    /// A game to list, if the master's protocol has several; can be given several times
    #[arg(long = "game", value_name = "NAME[:PROTOCOL]")]
    pub games: Vec<String>,
}

#[derive(clap::Args)]
pub struct QueryOptions {
    /// Maximum number of queries per second
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Maximum number of servers waited for at once, not counting those that have already missed a try [default: 2000, with a
    /// higher --rate a fifteenth of it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: Option<u32>,
    /// Timeout for each try, 100ms to 60s [default: 900ms for a server, 30s for a master's list]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    /// Number of retries, up to 3 [default: 3 for a server, 0 for a master]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=i64::from(RetryPolicy::RETRIES_MAX)))]
    retries: Option<u8>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_millis(100), Duration::from_secs(60))
}

impl QueryOptions {
    /// Queries all servers that can be queried, with a progress bar on a terminal. Blocks; [`QueryOptions::query_beside`] does not.
    pub fn query(&self, found: &mut [Found], wanted: Wanted) -> Result<(), Failure> {
        query(found, Pace { wanted, ..self.pace() }, &querying(found))
    }

    /// The same on other threads, so that a signal can end it. Nothing is left of the list then.
    pub async fn query_beside(&self, found: &mut Vec<Found>, wanted: Wanted) -> Result<(), Failure> {
        let (mut servers, pace) = (std::mem::take(found), Pace { wanted, ..self.pace() });
        let bar = querying(&servers);
        let _cleared = Cleared(bar.clone());
        let querying = tokio::task::spawn_blocking(move || {
            let result = query(&mut servers, pace, &bar);
            (servers, result)
        });
        let (servers, result) = querying.await.map_err(cannot_query)?;
        *found = servers;
        result
    }

    pub fn pace(&self) -> Pace {
        let QueryOptions { rate: per_second, in_flight, timeout, retries } = *self;
        let retry = RetryPolicy { timeout, retries };
        let in_flight = in_flight.map_or_else(|| in_flight_for(per_second), |in_flight| in_flight as usize);
        Pace { per_second, in_flight, retry, ..Pace::default() }
    }
}

/// The progress of queries.
fn querying(found: &[Found]) -> ProgressBar {
    let queryable = found.iter().filter(|server| query_of(&server.game).is_some()).count();
    progress(Some(queryable), "{spinner} querying {bar:30} {pos}/{len} {elapsed}")
}

/// Clears a progress bar when it is dropped, also while another thread has it: the program is about to end then.
struct Cleared(ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn query(found: &mut [Found], pace: Pace, bar: &ProgressBar) -> Result<(), Failure> {
    let is_hidden = bar.is_hidden();
    let count = || {
        if !is_hidden {
            bar.inc(1)
        }
    };
    let result = query_in_threads(found, pace, count);
    bar.finish_and_clear();
    result.map_err(cannot_query)
}

fn cannot_query(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Network, format!("cannot send queries: {error}"))
}

/// A progress bar on stderr, shown only on a terminal. It also moves while nothing arrives.
pub fn progress(steps: Option<usize>, template: &str) -> ProgressBar {
    let bar = steps.map_or_else(ProgressBar::new_spinner, |steps| ProgressBar::new(steps as u64));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[derive(clap::Args)]
pub struct OutputOptions {
    /// Output format; jsonl is one JSON object per line
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Show only these columns, in this order: name, players, map, mode, version, ping, address, game, password, official,
    /// flavor, via, url, fault. Not for XML
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Column::parse)]
    columns: Vec<&'static Column>,
    /// Omit the header line of a table or CSV
    #[arg(long)]
    no_header: bool,
    /// Use colours in a table; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    #[command(flatten)]
    selection: Selection,
}

/// Filters and sort order.
#[derive(Clone, Default, clap::Args)]
pub struct Selection {
    /// Sort by this column; players: most first, ping: lowest first. country and master-ping are what a Rallypoint says of its
    /// servers
    #[arg(long, value_enum, value_name = "KEY")]
    sort: Option<Sort>,
    /// Show only servers with players
    #[arg(long)]
    not_empty: bool,
    /// Show only servers with a free slot
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
    Country,
    /// The round trip that the master has measured
    MasterPing,
}

impl Selection {
    pub fn passes(&self, server: &Found) -> bool {
        (!self.not_empty || server.is_not_empty()) && (!self.not_full || server.is_not_full())
    }

    /// Filters and sorts.
    pub fn apply(&self, found: &mut Vec<Found>) {
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

    /// The filters in words.
    pub fn words(&self) -> &'static str {
        match (self.not_empty, self.not_full) {
            (false, false) => "",
            (true, false) => ", not empty",
            (false, true) => ", not full",
            (true, true) => ", not empty, not full",
        }
    }
}

impl OutputOptions {
    /// Filters, sorts and prints to stdout.
    pub fn print(&self, mut found: Vec<Found>) -> Result<(), Failure> {
        let some = !found.is_empty();
        self.selection.apply(&mut found);
        if some && found.is_empty() {
            message("no servers match the filters");
        }
        let printed = print(&export::write(self.format, &found, &self.layout())).map(drop);
        // The program ends here: it need not free thousands of servers one by one.
        std::mem::forget(found);
        printed
    }

    /// What is printed, or sorted by.
    pub fn wanted(&self) -> Wanted {
        let is_default = self.columns.is_empty();
        Wanted {
            details: is_default && self.format.shows_details(),
            game: is_default
                || self.columns.iter().any(|column| column.name == "game")
                || self.selection.sort == Some(Sort::Game),
            published: false,
        }
    }

    /// Checks for options that exclude each other.
    pub fn check(&self) -> Result<(), Failure> {
        if self.format == Format::Xml && !self.columns.is_empty() {
            let why = "--columns cannot be used with XML, whose attributes are fixed; choose table, csv, json or jsonl";
            return Err(Failure::new(Exit::Usage, why));
        }
        Ok(())
    }

    fn layout(&self) -> Layout {
        let on_terminal = std::io::stdout().is_terminal();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Layout {
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

    /// Whether the filters need facts that only some masters list.
    pub fn needs_facts(&self) -> bool {
        self.selection.not_empty || self.selection.not_full
    }
}

/// From COLUMNS or from the terminal.
fn terminal_width() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || terminal::size().ok().map(|(columns, _)| usize::from(columns));
    set.filter(|columns| *columns > 0).or_else(asked).filter(|columns| *columns > 0).unwrap_or(WIDTH)
}

impl Sort {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }

    /// The next key; the first one after the last.
    pub fn next(self) -> Sort {
        let all = Sort::value_variants();
        let index = all.iter().position(|sort| *sort == self).unwrap_or(0);
        all.get(index + 1).or(all.first()).copied().unwrap_or(self)
    }

    /// A stable sort with unknown values last.
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
            Sort::Country => found.sort_by_key(|server| (server.country.is_none(), server.country)),
            Sort::MasterPing => {
                found.sort_by_key(|server| server.master_rtt_us.or(server.rtt_us).unwrap_or(u32::MAX));
            }
        }
    }
}

/// Reports the servers that failed, and why. Returns how many answered, and how many were queried.
pub fn report_failures(found: &[Found]) -> (usize, usize) {
    failures::lines(found).into_iter().for_each(message);
    count(found)
}

/// How many servers answered, and how many were queried.
pub fn count(found: &[Found]) -> (usize, usize) {
    let answered = found.iter().filter(|server| server.state == State::Answered).count();
    (answered, answered + found.iter().filter(|server| server.failure().is_some()).count())
}

/// Says that no server answered, and what to look at if all were silent: a closed port says so itself.
pub fn none_answered(found: &[Found]) -> String {
    let (_, asked) = count(found);
    let all_silent = found.iter().filter(|server| server.failure().is_some()).all(Found::is_silent);
    let hint = if all_silent { ": not running, another port, or a firewall that drops UDP" } else { "" };
    if asked == 1 { format!("it did not answer{hint}") } else { format!("none of {asked} servers answered{hint}") }
}

/// Reports what is wrong with a list and its entries.
pub fn report_faults(of: &Target, listing: &Listing) {
    listing.notes.iter().for_each(|note| message(format!("{of}: {note}")));
    let reported = listing.faults.iter().take(FAULTS_REPORTED_MAX);
    reported.clone().for_each(|fault| message(format!("{of}: skipped entry: {fault}")));
    let rest = listing.left_out - reported.len();
    if rest > 0 {
        message(format!("{of}: skipped {rest} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};
    use clap::Parser;

    #[test]
    fn only_what_is_shown_is_wanted() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            output: OutputOptions,
        }
        let wanted = |line: &str| {
            let Wanted { details, game, .. } = Line::parse_from(line.split(' ')).output.wanted();
            (details, game)
        };
        assert_eq!(wanted("x"), (false, true));
        assert_eq!(wanted("x --format json"), (true, true));
        assert_eq!(wanted("x --format json --columns name,players"), (false, false));
        assert_eq!(wanted("x --format csv --columns name,game"), (false, true));
        assert_eq!(wanted("x --columns name --sort game"), (false, true));
        assert_eq!(wanted("x --columns name --sort name"), (false, false));
    }

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

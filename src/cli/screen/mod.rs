//! The screen of `watch`: the list, a server's details and the keys. It has no network code. [`input`] is what keys and the
//! mouse do, [`draw`] renders it, [`columns`] decides which columns fit, [`players`] is the line with a server's
//! players over time, [`ascii`] is for terminals without Unicode.

pub mod ascii;
mod columns;
mod details;
mod draw;
mod input;
mod joining;
mod players;
mod text;

use std::collections::HashMap;
use std::time::Instant;

use super::favourites::Favourites;
use super::options::{Selection, Sort};
use crate::client::history::History;
use crate::client::watch::{Masters, has_text};
use crate::client::{Found, State};
use crate::model::{Address, Facts};
use crate::protocols::query_of;
use columns::{Shown, Widths};
use draw::Places;
pub use input::{Action, KEYS};
use players::Players;
pub use players::Wanted;

/// What a screen is for.
#[derive(Default)]
pub struct Setup {
    /// The masters' addresses.
    pub masters: Vec<String>,
    /// Those that have histories of their servers.
    pub with_history: Masters,
    pub selection: Selection,
    /// Whether servers are queried, if their game has a query.
    pub queries: bool,
    /// The terminal has no Unicode.
    pub ascii: bool,
}

pub struct Screen {
    setup: Setup,
    /// The user's favourites, on top of the list.
    favourites: Favourites,
    all: Vec<Found>,
    /// Indices into `all` of the servers that are shown, in order.
    shown: Vec<usize>,
    /// When the last list arrived; None before the first.
    listed_at: Option<Instant>,
    refresh: Refresh,
    /// What failed in the last refresh, and why.
    failures: Vec<String>,
    /// In the last line until a key is pressed.
    note: Option<String>,
    sort: Sort,
    search: String,
    mode: Mode,
    is_open: bool,
    /// Scroll position of the details, and how many lines fitted when they were last drawn.
    details_from: usize,
    details_page: usize,
    /// The selected row, and the first visible one.
    selected: usize,
    first: usize,
    /// Whether the selection follows the server when rows move. Until the user selects one, the first row is selected.
    is_picked: bool,
    /// Rows that fitted when the list was last drawn.
    page: usize,
    widths: Widths,
    has_games: bool,
    has_mouse: bool,
    /// Where things were when the screen was last drawn.
    places: Places,
    players: Players,
}

/// Progress of the current refresh.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refresh {
    None,
    /// Waiting for the masters' lists.
    Listing,
    /// Waiting for this many servers to answer.
    Querying(usize),
}

#[derive(Clone, PartialEq, Eq)]
enum Mode {
    List,
    Search,
    Help,
    /// Whether to run this command.
    Confirm(Vec<String>),
}

impl Screen {
    pub fn new(setup: Setup, favourites: Favourites) -> Screen {
        Screen {
            sort: setup.selection.sort().unwrap_or(Sort::Players),
            players: Players::new(setup.with_history),
            setup,
            favourites,
            all: Vec::new(),
            shown: Vec::new(),
            listed_at: None,
            refresh: Refresh::None,
            failures: Vec::new(),
            note: None,
            search: String::new(),
            mode: Mode::List,
            is_open: false,
            details_from: 0,
            details_page: 1,
            selected: 0,
            first: 0,
            is_picked: false,
            page: 1,
            widths: Widths::default(),
            has_games: false,
            has_mouse: true,
            places: Places::default(),
        }
    }

    pub fn refresh_started(&mut self) {
        self.refresh = Refresh::Listing;
    }

    /// Lists have arrived; their servers have not been queried yet. Known facts are kept until they answer.
    pub fn listed(&mut self, mut found: Vec<Found>) {
        let is_queried = |server: &Found| self.setup.queries && query_of(&server.game).is_some();
        self.refresh = Refresh::Querying(found.iter().filter(|server| is_queried(server)).count());
        let known = by_key(&self.all);
        for server in &mut found {
            if is_queried(server)
                && let Some(known) = known.get(&key(server))
            {
                let Found { country, master_rtt_us, masters, .. } = *server;
                *server = Found { country, master_rtt_us, masters, ..Found::clone(known) };
            }
        }
        self.replace(found);
    }

    /// These servers have answered or failed.
    pub fn answered(&mut self, answers: &[Found]) {
        if let Refresh::Querying(left) = &mut self.refresh {
            *left = left.saturating_sub(answers.len());
        }
        let answers = by_key(answers);
        for server in &mut self.all {
            if let Some(answer) = answers.get(&key(server)) {
                *server = with_known_facts(Found::clone(answer), server);
            }
        }
        self.change(Screen::sort);
    }

    /// With the last list of every master and all answers.
    pub fn refresh_finished(&mut self, mut found: Vec<Found>) {
        self.refresh = Refresh::None;
        let known = by_key(&self.all);
        for server in &mut found {
            if let Some(known) = known.get(&key(server)) {
                *server = with_known_facts(server.clone(), known);
            }
        }
        self.players.count(&found);
        self.replace(found);
    }

    /// What fails now: each master with its reason.
    pub fn fails(&mut self, failed: &[(String, String)]) {
        self.failures = match failed {
            [(_, why)] if self.setup.masters.len() == 1 => vec![format!("The last refresh failed: {why}")],
            failed => failed.iter().map(|(master, why)| format!("{master} failed and is tried again: {why}")).collect(),
        };
    }

    /// Something to read until a key is pressed.
    pub fn note(&mut self, text: String) {
        self.note = Some(text);
    }

    /// The history to fetch, if one is needed now.
    pub fn wanted_history(&mut self, now: Instant) -> Option<Wanted> {
        match self.shown.get(self.selected).and_then(|at| self.all.get(*at)) {
            Some(server) => self.players.wanted(server, now),
            None => {
                self.players.select_none();
                None
            }
        }
    }

    /// When [`Screen::wanted_history`] should be called at the latest.
    pub fn history_due(&self) -> Option<Instant> {
        self.players.due()
    }

    /// A history has arrived; None: there is none.
    pub fn history_arrived(&mut self, wanted: &Wanted, history: Option<History>, now: Instant) {
        self.players.arrived(wanted, history, now);
    }

    fn replace(&mut self, found: Vec<Found>) {
        let selected = self.selected_url();
        self.has_games = found.windows(2).any(|pair| matches!(pair, [one, other] if one.game != other.game));
        self.all = found;
        self.sort();
        self.listed_at = Some(Instant::now());
        self.arrange(selected);
    }

    /// Favourites first, and by the chosen column.
    fn sort(&mut self) {
        self.sort.apply(&mut self.all);
        let favourites = &self.favourites;
        if !favourites.is_empty() {
            self.all.sort_by_cached_key(|server| !favourites.contains(server));
        }
    }

    /// Applies the filters. The selected server stays selected.
    fn arrange(&mut self, selected: Option<String>) {
        let passes = |server: &Found| self.setup.selection.passes(server) && has_text(server, &self.search);
        self.shown = (0..self.all.len()).filter(|at| self.all.get(*at).is_some_and(passes)).collect();
        let selected = selected.filter(|_| self.is_picked);
        let row = selected.and_then(|url| self.servers().position(|server| server.url() == url));
        let last = self.shown.len().saturating_sub(1);
        self.selected = row.unwrap_or(if self.is_picked { self.selected.min(last) } else { 0 });
    }

    fn servers(&self) -> impl Iterator<Item = &Found> {
        self.shown.iter().filter_map(|at| self.all.get(*at))
    }

    fn selected_server(&self) -> Option<&Found> {
        self.all.get(*self.shown.get(self.selected)?)
    }

    fn selected_url(&self) -> Option<String> {
        self.selected_server().map(Found::url)
    }

    /// A server as the list shows it.
    fn row<'a>(&self, server: &'a Found) -> Shown<'a> {
        // Whether its answer is pending.
        let pending =
            matches!(self.refresh, Refresh::Querying(_)) && self.setup.queries && query_of(&server.game).is_some();
        Shown { server, pending, is_favourite: self.favourites.contains(server) }
    }

    fn change(&mut self, change: impl FnOnce(&mut Screen)) {
        let selected = self.selected_url();
        change(self);
        self.arrange(selected);
    }

    /// Selects a row. The first row stays selected when rows move.
    fn select(&mut self, row: usize) {
        self.selected = row.min(self.shown.len().saturating_sub(1));
        self.is_picked = self.selected > 0;
        self.details_from = 0;
    }
}

type Key<'a> = (&'a str, Address);

fn key(server: &Found) -> Key<'_> {
    (server.game.protocol(), server.address)
}

fn by_key(servers: &[Found]) -> HashMap<Key<'_>, &Found> {
    servers.iter().map(|server| (key(server), server)).collect()
}

/// A server that has failed keeps its known facts, except its players, unless a master's list has some.
fn with_known_facts(mut server: Found, known: &Found) -> Found {
    if matches!(server.state, State::Failed(_)) && server.facts == Facts::default() {
        server.facts = Facts { players_current: None, details: None, ..known.facts.clone() };
    }
    server
}

#[cfg(test)]
mod tests;

//! The screen of `watch`: the list, a server's details and the keys. It has no network code. [`draw`] renders it, [`columns`]
//! decides which columns fit.

mod columns;
mod draw;
mod text;

use std::collections::HashMap;
use std::time::Instant;

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::options::{Selection, Sort};
use crate::client::list::ListError;
use crate::client::watch::has_text;
use crate::client::{Found, State};
use crate::model::{Address, Facts};
use crate::protocols::query_of;
use columns::Widths;

/// Upper bound on the length of a search text.
const SEARCH_CHARS_MAX: usize = 64;

/// The keys, for the help on the screen and on the command line.
pub const KEYS: [(&str, &str); 13] = [
    ("Up Down, k j", "select a server"),
    ("PgUp PgDn", "page up or down; scrolls the details while they are open"),
    ("Home End", "go to the first or the last server"),
    ("Enter", "open or close the details of a server"),
    ("/", "search names, maps, modes, games and addresses"),
    ("Esc", "close the details, clear the search"),
    ("s", "sort by the next column"),
    ("e f", "hide empty servers, hide full servers"),
    ("r", "refresh now"),
    ("Ctrl-L", "redraw the screen"),
    ("Ctrl-Z", "suspend; `fg` resumes"),
    ("?", "show this help"),
    ("q, Ctrl-C", "quit"),
];

/// What the caller has to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Refresh,
    Redraw,
    Suspend,
    Quit,
}

pub struct Screen {
    master: String,
    /// Whether servers are queried, if their game has a query.
    queries: bool,
    all: Vec<Found>,
    /// Indices into `all` of the servers that are shown, in order.
    shown: Vec<usize>,
    /// When the last list arrived; None before the first.
    listed_at: Option<Instant>,
    refresh: Refresh,
    /// Why the last refresh failed.
    failure: Option<String>,
    selection: Selection,
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
}

/// Progress of the current refresh.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refresh {
    None,
    /// Waiting for the master's list.
    Listing,
    /// Waiting for this many servers to answer.
    Querying(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    List,
    Search,
    Help,
}

impl Screen {
    pub fn new(master: String, selection: &Selection, queries: bool) -> Screen {
        Screen {
            master,
            queries,
            all: Vec::new(),
            shown: Vec::new(),
            listed_at: None,
            refresh: Refresh::None,
            failure: None,
            selection: selection.clone(),
            sort: selection.sort().unwrap_or(Sort::Players),
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
        }
    }

    /// Whether a list has arrived.
    pub fn has_list(&self) -> bool {
        self.listed_at.is_some()
    }

    pub fn refresh_started(&mut self) {
        self.refresh = Refresh::Listing;
    }

    /// The master's list has arrived; its servers have not been queried yet. Known facts are kept until they answer.
    pub fn listed(&mut self, mut found: Vec<Found>) {
        let is_queried = |server: &Found| self.queries && query_of(&server.game).is_some();
        self.refresh = Refresh::Querying(found.iter().filter(|server| is_queried(server)).count());
        let known = by_key(&self.all);
        for server in &mut found {
            if is_queried(server)
                && let Some(known) = known.get(&key(server))
            {
                *server = Found::clone(known);
            }
        }
        self.failure = None;
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
        self.change(|screen| screen.sort.apply(&mut screen.all));
    }

    /// With the list and all answers. After an error, the old list is kept.
    pub fn refresh_finished(&mut self, found: Result<Vec<Found>, ListError>) {
        self.refresh = Refresh::None;
        match found {
            Ok(mut found) => {
                let known = by_key(&self.all);
                for server in &mut found {
                    if let Some(known) = known.get(&key(server)) {
                        *server = with_known_facts(server.clone(), known);
                    }
                }
                self.failure = None;
                self.replace(found);
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn replace(&mut self, mut found: Vec<Found>) {
        let selected = self.selected_url();
        self.sort.apply(&mut found);
        self.has_games = found.windows(2).any(|pair| matches!(pair, [one, other] if one.game != other.game));
        self.all = found;
        self.listed_at = Some(Instant::now());
        self.arrange(selected);
    }

    /// Applies the filters. The selected server stays selected.
    fn arrange(&mut self, selected: Option<String>) {
        let passes = |server: &Found| self.selection.passes(server) && has_text(server, &self.search);
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

    /// Whether its answer is pending.
    fn is_pending(&self, server: &Found) -> bool {
        matches!(self.refresh, Refresh::Querying(_)) && self.queries && query_of(&server.game).is_some()
    }

    pub fn on(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(*key),
            _ => Action::Nothing, // e.g. a new size: the caller redraws after every event
        }
    }

    fn on_key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                KeyCode::Char('l') => Action::Redraw,
                _ => Action::Nothing,
            };
        }
        match self.mode {
            Mode::List => return self.on_list_key(key.code),
            Mode::Search => self.on_typed(key.code),
            Mode::Help => self.mode = Mode::List,
        }
        Action::Nothing
    }

    /// Esc does not quit: over a slow connection, an arrow key may arrive as Esc and further characters.
    fn on_list_key(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('r') => return Action::Refresh,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Search,
            KeyCode::Esc if self.is_open => self.is_open = false,
            KeyCode::Esc => self.search_for(String::new()),
            KeyCode::Enter => {
                self.is_picked = true;
                self.is_open = !self.is_open && self.selected_server().is_some();
                self.details_from = 0;
            }
            KeyCode::Char('s') => self.change(|screen| {
                screen.sort = screen.sort.next();
                screen.sort.apply(&mut screen.all);
            }),
            KeyCode::Char('e') => self.change(|screen| screen.selection.toggle_not_empty()),
            KeyCode::Char('f') => self.change(|screen| screen.selection.toggle_not_full()),
            KeyCode::PageUp if self.is_open => self.details_from = self.details_from.saturating_sub(self.details_page),
            // Clamped when the details are drawn.
            KeyCode::PageDown if self.is_open => {
                self.details_from = self.details_from.saturating_add(self.details_page)
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected.saturating_add(1)),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(self.page)),
            KeyCode::PageDown => self.select(self.selected.saturating_add(self.page)),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            _ => {}
        }
        Action::Nothing
    }

    fn on_typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.mode = Mode::List;
                self.search_for(String::new());
            }
            KeyCode::Backspace => {
                let mut text = self.search.clone();
                text.pop();
                self.search_for(text);
            }
            KeyCode::Char(typed) if self.search.chars().count() < SEARCH_CHARS_MAX => {
                self.search_for(format!("{}{typed}", self.search));
            }
            _ => {}
        }
    }

    fn search_for(&mut self, text: String) {
        self.change(|screen| screen.search = text);
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
    (server.game.name(), server.address)
}

fn by_key(servers: &[Found]) -> HashMap<Key<'_>, &Found> {
    servers.iter().map(|server| (key(server), server)).collect()
}

/// A server that has failed keeps its known facts, except its players, unless the master's list has some.
fn with_known_facts(mut server: Found, known: &Found) -> Found {
    if matches!(server.state, State::Failed(_)) && server.facts == Facts::default() {
        server.facts = Facts { players_current: None, details: None, ..known.facts.clone() };
    }
    server
}

#[cfg(test)]
mod tests;

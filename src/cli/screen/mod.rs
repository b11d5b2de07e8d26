//! What `watch` shows on a terminal: the list, what one server says, and what the keys do. It draws what it was given and
//! knows no network. [`draw`] puts it on the screen, [`columns`] decides what fits.

mod columns;
mod draw;
mod text;

use std::collections::HashMap;
use std::time::Instant;

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::shown::{Chosen, Sort};
use crate::client::list::ListError;
use crate::client::watch::has_text;
use crate::client::{Found, State};
use crate::model::{Address, Facts};
use crate::protocols::query_of;
use columns::Widths;

/// The longest text that can be searched for.
const SEARCH_CHARS_MAX: usize = 64;

/// The keys and what they do: for the help on the screen and on the command line.
pub const KEYS: [(&str, &str); 13] = [
    ("Up Down, k j", "choose a server"),
    ("PgUp PgDn", "a page up or down; scroll the details while they are open"),
    ("Home End", "go to the first or the last server"),
    ("Enter", "open or close the details of a server"),
    ("/", "search names, maps, modes, games and addresses"),
    ("Esc", "close what is open, clear the search"),
    ("s", "sort by the next column"),
    ("e f", "hide empty servers, hide full servers"),
    ("r", "refresh now"),
    ("Ctrl-L", "redraw the screen"),
    ("Ctrl-Z", "suspend; `fg` resumes"),
    ("?", "show this help"),
    ("q, Ctrl-C", "quit"),
];

/// What a key asks the program for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Look,
    Redraw,
    Suspend,
    Quit,
}

pub struct Screen {
    master: String,
    /// Whether servers are asked themselves, where their game allows it.
    asks: bool,
    all: Vec<Found>,
    /// Places in `all` of what is shown, in order.
    shown: Vec<usize>,
    /// When the list last came; none has come before the first.
    listed_at: Option<Instant>,
    look: Look,
    /// Why the last look failed.
    failure: Option<String>,
    chosen: Chosen,
    sort: Sort,
    search: String,
    mode: Mode,
    is_open: bool,
    /// Lines of the details that are above their top, and how many fitted when they were last drawn.
    details_from: usize,
    details_page: usize,
    /// The chosen row, and the first one that is on the screen.
    selected: usize,
    first: usize,
    /// Whether the chosen server stays chosen wherever it goes. Before somebody chooses, the first row is chosen, whoever
    /// is there.
    is_picked: bool,
    /// Rows that fitted on the screen when it was last drawn.
    page: usize,
    widths: Widths,
    has_games: bool,
}

/// How far the present look has got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    None,
    /// The master's list is waited for.
    Listing,
    /// So many servers have not answered.
    Asking(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    List,
    Search,
    Help,
}

impl Screen {
    pub fn new(master: String, chosen: &Chosen, asks: bool) -> Screen {
        Screen {
            master,
            asks,
            all: Vec::new(),
            shown: Vec::new(),
            listed_at: None,
            look: Look::None,
            failure: None,
            chosen: chosen.clone(),
            sort: chosen.sort().unwrap_or(Sort::Players),
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

    /// Whether there has ever been a list.
    pub fn has_list(&self) -> bool {
        self.listed_at.is_some()
    }

    /// The master is being asked.
    pub fn looks(&mut self) {
        self.look = Look::Listing;
    }

    /// The master's list, whose servers have not been asked yet. What is known of them stays until they answer.
    pub fn listed(&mut self, mut found: Vec<Found>) {
        let asked = |server: &Found| self.asks && query_of(&server.game).is_some();
        self.look = Look::Asking(found.iter().filter(|server| asked(server)).count());
        let known = by_key(&self.all);
        for server in &mut found {
            if asked(server)
                && let Some(known) = known.get(&key(server))
            {
                *server = Found::clone(known);
            }
        }
        self.failure = None;
        self.replace(found);
    }

    /// Servers that have answered, or have been given up.
    pub fn answered(&mut self, answers: &[Found]) {
        if let Look::Asking(left) = &mut self.look {
            *left = left.saturating_sub(answers.len());
        }
        let answers = by_key(answers);
        for server in &mut self.all {
            if let Some(answer) = answers.get(&key(server)) {
                *server = with_name(Found::clone(answer), server);
            }
        }
        self.change(|screen| screen.sort.apply(&mut screen.all));
    }

    /// The end of a look: the list with all answers, or why there is none. What was known stays then.
    pub fn take(&mut self, found: Result<Vec<Found>, ListError>) {
        self.look = Look::None;
        match found {
            Ok(mut found) => {
                let known = by_key(&self.all);
                for server in &mut found {
                    if let Some(known) = known.get(&key(server)) {
                        *server = with_name(server.clone(), known);
                    }
                }
                self.failure = None;
                self.replace(found);
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn replace(&mut self, mut found: Vec<Found>) {
        let chosen = self.chosen_url();
        self.sort.apply(&mut found);
        self.has_games = found.windows(2).any(|pair| matches!(pair, [one, other] if one.game != other.game));
        self.all = found;
        self.listed_at = Some(Instant::now());
        self.arrange(chosen);
    }

    /// Leaves out what is not asked for; the server that was chosen stays chosen, wherever it is now.
    fn arrange(&mut self, chosen: Option<String>) {
        let passes = |server: &Found| self.chosen.passes(server) && has_text(server, &self.search);
        self.shown = (0..self.all.len()).filter(|at| self.all.get(*at).is_some_and(passes)).collect();
        let chosen = chosen.filter(|_| self.is_picked);
        let place = chosen.and_then(|url| self.servers().position(|server| server.url() == url));
        let last = self.shown.len().saturating_sub(1);
        self.selected = place.unwrap_or(if self.is_picked { self.selected.min(last) } else { 0 });
    }

    fn servers(&self) -> impl Iterator<Item = &Found> {
        self.shown.iter().filter_map(|at| self.all.get(*at))
    }

    fn chosen_server(&self) -> Option<&Found> {
        self.all.get(*self.shown.get(self.selected)?)
    }

    fn chosen_url(&self) -> Option<String> {
        self.chosen_server().map(Found::url)
    }

    /// Whether its answer is waited for.
    fn is_asking(&self, server: &Found) -> bool {
        matches!(self.look, Look::Asking(_)) && self.asks && query_of(&server.game).is_some()
    }

    pub fn on(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(*key),
            _ => Action::Nothing, // a new size, for example: all is drawn anyway
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

    /// Esc never quits: over a slow line an arrow key may arrive as Esc and the rest of it.
    fn on_list_key(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('r') => return Action::Look,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Search,
            KeyCode::Esc if self.is_open => self.is_open = false,
            KeyCode::Esc => self.search_for(String::new()),
            KeyCode::Enter => {
                self.is_picked = true;
                self.is_open = !self.is_open && self.chosen_server().is_some();
                self.details_from = 0;
            }
            KeyCode::Char('s') => self.change(|screen| {
                screen.sort = screen.sort.next();
                screen.sort.apply(&mut screen.all);
            }),
            KeyCode::Char('e') => self.change(|screen| screen.chosen.toggle_not_empty()),
            KeyCode::Char('f') => self.change(|screen| screen.chosen.toggle_not_full()),
            KeyCode::PageUp if self.is_open => self.details_from = self.details_from.saturating_sub(self.details_page),
            // What is too far is corrected when the details are drawn.
            KeyCode::PageDown if self.is_open => {
                self.details_from = self.details_from.saturating_add(self.details_page)
            }
            KeyCode::Up | KeyCode::Char('k') => self.go(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(self.selected.saturating_add(1)),
            KeyCode::PageUp => self.go(self.selected.saturating_sub(self.page)),
            KeyCode::PageDown => self.go(self.selected.saturating_add(self.page)),
            KeyCode::Home => self.go(0),
            KeyCode::End => self.go(usize::MAX),
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
        let chosen = self.chosen_url();
        change(self);
        self.arrange(chosen);
    }

    /// Chooses a row. Who goes to the top stays at the top.
    fn go(&mut self, row: usize) {
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

/// A server that does not answer, and of which its master says nothing, keeps what was known of it but its players.
fn with_name(mut server: Found, known: &Found) -> Found {
    if matches!(server.state, State::Failed(_)) && server.facts == Facts::default() {
        server.facts = Facts { players_current: None, details: None, ..known.facts.clone() };
    }
    server
}

#[cfg(test)]
mod tests;

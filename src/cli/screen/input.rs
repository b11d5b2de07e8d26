//! What keys and the mouse do.

use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::Position;

use super::{Mode, Screen, joining};
use crate::client::Found;

/// Upper bound on the length of a search text.
const SEARCH_CHARS_MAX: usize = 64;
/// Rows that a step of the wheel scrolls.
const WHEEL_ROWS: usize = 3;

/// The keys, for the help on the screen and on the command line.
pub const KEYS: [(&str, &str); 18] = [
    ("Up Down, k j", "select a server"),
    ("PgUp PgDn", "page up or down; scrolls the details while they are open"),
    ("Home End", "go to the first or the last server"),
    ("Enter", "open or close the details of a server"),
    ("J", "join: start the game, after a question"),
    ("c y", "copy the address; copy the link or command to join"),
    ("*", "mark or unmark a favourite; favourites are on top"),
    ("/", "search names, maps, modes, games and addresses"),
    ("Esc", "close the details, clear the search"),
    ("s", "sort by the next column"),
    ("e f", "hide empty servers, hide full servers"),
    ("r", "refresh now"),
    ("Mouse", "click a server or a heading; the wheel scrolls"),
    ("m", "mouse off or on: while off, the terminal selects text"),
    ("Ctrl-L", "redraw the screen"),
    ("Ctrl-Z", "suspend; `fg` resumes"),
    ("?", "show this help"),
    ("q, Ctrl-C", "quit"),
];

/// What the caller has to do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Refresh,
    /// Draw everything, whatever the terminal shows.
    Redraw,
    Suspend,
    Quit,
    /// Put this on the clipboard.
    Copy(String),
    /// Run this program with these arguments.
    Join(Vec<String>),
    /// Whether the mouse is ours.
    Mouse(bool),
}

impl Screen {
    pub fn on(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                self.note = None;
                self.on_key(*key)
            }
            Event::Mouse(mouse) => {
                self.on_mouse(*mouse);
                Action::Nothing
            }
            // Also if the size is the same again: what was cut off meanwhile is lost.
            Event::Resize(..) => Action::Redraw,
            _ => Action::Nothing, // the caller draws after every event
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
        match &mut self.mode {
            Mode::List => return self.on_list_key(key.code),
            Mode::Search => self.on_typed(key.code),
            Mode::Help => self.mode = Mode::List,
            Mode::Confirm(command) => {
                let command = std::mem::take(command);
                self.mode = Mode::List;
                if matches!(key.code, KeyCode::Char('y' | 'Y') | KeyCode::Enter) {
                    return Action::Join(command);
                }
            }
        }
        Action::Nothing
    }

    /// Esc does not quit: over a slow connection, an arrow key may arrive as Esc and further characters.
    fn on_list_key(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('r') => return Action::Refresh,
            KeyCode::Char('*') => self.toggle_favourite(),
            KeyCode::Char('J') => self.ask_to_join(),
            KeyCode::Char('c') => return self.copy(|server| server.address.to_string()),
            KeyCode::Char('y') => return self.copy(joining::how),
            KeyCode::Char('m') => {
                self.has_mouse = !self.has_mouse;
                return Action::Mouse(self.has_mouse);
            }
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
                screen.sort();
            }),
            KeyCode::Char('e') => self.change(|screen| screen.setup.selection.toggle_not_empty()),
            KeyCode::Char('f') => self.change(|screen| screen.setup.selection.toggle_not_full()),
            KeyCode::PageUp if self.is_open => self.scroll_details(self.details_page, false),
            KeyCode::PageDown if self.is_open => self.scroll_details(self.details_page, true),
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

    /// Clamped when the details are drawn.
    fn scroll_details(&mut self, lines: usize, down: bool) {
        let from = self.details_from;
        self.details_from = if down { from.saturating_add(lines) } else { from.saturating_sub(lines) };
    }

    /// Marks or unmarks the selected server, which stays selected.
    fn toggle_favourite(&mut self) {
        let Some(server) = self.selected_server().cloned() else { return };
        self.is_picked = true;
        match self.favourites.toggle(&server) {
            Ok(is_favourite) => {
                let what = if is_favourite { "a favourite" } else { "no favourite any more" };
                self.note(format!("{} is {what}", server.address));
            }
            Err(why) => self.note(format!("Favourites cannot be kept: {why}")),
        }
        self.change(Screen::sort);
    }

    fn ask_to_join(&mut self) {
        let Some(server) = self.selected_server() else { return };
        match joining::command(server) {
            Some(command) => self.mode = Mode::Confirm(command),
            None => self.note("No command is known that joins this game: enter the address in it; c copies it".into()),
        }
    }

    fn copy(&mut self, what: fn(&Found) -> String) -> Action {
        let Some(text) = self.selected_server().map(what) else { return Action::Nothing };
        self.note(format!("Copied {text} (if this terminal allows it)"));
        Action::Copy(text)
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

    /// In the list and in the details; a question and the help are answered with keys.
    fn on_mouse(&mut self, mouse: MouseEvent) {
        if !matches!(self.mode, Mode::List | Mode::Search) {
            return;
        }
        let at = Position::new(mouse.column, mouse.row);
        match mouse.kind {
            MouseEventKind::Down(MouseButton::Left) => {
                if let Some(sort) = self.places.sort_at(at) {
                    self.change(|screen| {
                        screen.sort = sort;
                        screen.sort();
                    });
                } else if let Some(row) = self.places.row_at(at).map(|row| self.first + row)
                    && row < self.shown.len()
                {
                    self.select(row);
                    self.is_picked = true;
                }
            }
            MouseEventKind::ScrollUp if self.places.is_in_details(at) => self.scroll_details(WHEEL_ROWS, false),
            MouseEventKind::ScrollDown if self.places.is_in_details(at) => self.scroll_details(WHEEL_ROWS, true),
            MouseEventKind::ScrollUp => self.select(self.selected.saturating_sub(WHEEL_ROWS)),
            MouseEventKind::ScrollDown => self.select(self.selected.saturating_add(WHEEL_ROWS)),
            _ => {}
        }
    }
}

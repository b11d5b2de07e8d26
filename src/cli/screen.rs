//! What `watch` shows on a terminal: the list, what one server says, and what the keys do. It draws what it was given and
//! knows no network.

use std::time::Instant;

use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};

use super::shown::{Chosen, Sort};
use crate::client::Found;
use crate::client::list::ListError;
use crate::client::watch::has_text;

/// The longest text that can be looked for.
const SEARCH_CHARS_MAX: usize = 64;
/// Rows of the list beside an opened server, with their head.
const LIST_ROWS_MIN: u16 = 4;
const KEYS: &str = "q quit  ↑↓ choose  Enter open  / search  s sort  e not empty  f not full  r look again";

/// What a key asks the program for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Look,
    Quit,
}

pub struct Screen {
    master: String,
    all: Vec<Found>,
    /// Places in `all` of what is shown, in order.
    shown: Vec<usize>,
    looked_at: Instant,
    pub is_looking: bool,
    /// Why the last look was in vain.
    failure: Option<String>,
    chosen: Chosen,
    sort: Sort,
    search: String,
    is_typing: bool,
    is_open: bool,
    table: TableState,
}

impl Screen {
    pub fn new(master: String, chosen: &Chosen, found: Vec<Found>) -> Screen {
        let mut screen = Screen {
            master,
            all: Vec::new(),
            shown: Vec::new(),
            looked_at: Instant::now(),
            is_looking: false,
            failure: None,
            chosen: chosen.clone(),
            sort: chosen.sort().unwrap_or(Sort::Players),
            search: String::new(),
            is_typing: false,
            is_open: false,
            table: TableState::new().with_selected(0),
        };
        screen.take(Ok(found));
        screen
    }

    /// A look at the master, or why there was none: what was known stays then.
    pub fn take(&mut self, found: Result<Vec<Found>, ListError>) {
        self.is_looking = false;
        match found {
            Ok(mut found) => {
                let chosen = self.chosen_server().map(Found::url);
                self.sort.apply(&mut found);
                self.all = found;
                self.failure = None;
                self.looked_at = Instant::now();
                self.arrange(chosen);
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// Leaves out what is not asked for; the one that was chosen stays chosen, wherever it is now.
    fn arrange(&mut self, chosen: Option<String>) {
        let passes = |server: &Found| self.chosen.passes(server) && has_text(server, &self.search);
        self.shown = (0..self.all.len()).filter(|at| self.all.get(*at).is_some_and(passes)).collect();
        let place = chosen.and_then(|url| self.servers().position(|server| server.url() == url));
        let last = self.shown.len().saturating_sub(1);
        let selected = place.unwrap_or_else(|| self.table.selected().unwrap_or(0).min(last));
        self.table.select((!self.shown.is_empty()).then_some(selected));
    }

    fn servers(&self) -> impl Iterator<Item = &Found> {
        self.shown.iter().filter_map(|at| self.all.get(*at))
    }

    fn chosen_server(&self) -> Option<&Found> {
        self.servers().nth(self.table.selected()?)
    }

    pub fn on(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(*key),
            _ => Action::Nothing, // a new size, for example: all is drawn anyway
        }
    }

    fn on_key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.is_typing {
            return self.on_typed(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.is_open => self.is_open = false,
            KeyCode::Esc if !self.search.is_empty() => self.look_for(String::new()),
            KeyCode::Esc => return Action::Quit,
            KeyCode::Char('r') => return Action::Look,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-10),
            KeyCode::PageDown => self.go(10),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Enter => self.is_open = !self.is_open && self.chosen_server().is_some(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.change(|screen| {
                screen.sort = screen.sort.next();
                screen.sort.apply(&mut screen.all);
            }),
            KeyCode::Char('e') => self.change(|screen| screen.chosen.toggle_not_empty()),
            KeyCode::Char('f') => self.change(|screen| screen.chosen.toggle_not_full()),
            _ => {}
        }
        Action::Nothing
    }

    fn on_typed(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.look_for(String::new());
            }
            KeyCode::Backspace => {
                let mut text = self.search.clone();
                text.pop();
                self.look_for(text);
            }
            KeyCode::Char(typed) if self.search.chars().count() < SEARCH_CHARS_MAX => {
                self.look_for(format!("{}{typed}", self.search));
            }
            _ => {}
        }
        Action::Nothing
    }

    fn look_for(&mut self, text: String) {
        self.change(|screen| screen.search = text);
    }

    fn change(&mut self, change: impl FnOnce(&mut Screen)) {
        let chosen = self.chosen_server().map(Found::url);
        change(self);
        self.arrange(chosen);
    }

    fn go(&mut self, steps: isize) {
        let last = self.shown.len().saturating_sub(1);
        let place = self.table.selected().unwrap_or(0).saturating_add_signed(steps).min(last);
        self.table.select((!self.shown.is_empty()).then_some(place));
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [top, middle, bottom] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(self.head(), top);
        let opened = self.chosen_server().filter(|_| self.is_open).map(all_of);
        let height = opened.as_ref().map_or(0, |(_, lines)| lines.len() as u16 + 2);
        // The chosen one stays in sight.
        let height = height.min(middle.height.saturating_sub(LIST_ROWS_MIN));
        let [list, details] = Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(middle);
        self.draw_list(frame, list);
        if let Some((title, lines)) = opened {
            frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), details);
        }
        let keys = if self.is_typing { format!("/{}▏", self.search) } else { KEYS.to_string() };
        frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), bottom);
    }

    fn head(&self) -> Line<'_> {
        let players: u64 = self.servers().map(|server| u64::from(server.facts.players_current.unwrap_or(0))).sum();
        let word = |number: u64, one: &'static str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
        let state = match (&self.failure, self.is_looking) {
            (Some(why), _) => why.clone(),
            (None, true) => "looking…".into(),
            (None, false) => format!("{} s ago", self.looked_at.elapsed().as_secs()),
        };
        let search = if self.search.is_empty() { String::new() } else { format!("  /{}", self.search) };
        let said = format!(
            "  {}, {}  by {}{}{search}  {state}",
            word(self.shown.len() as u64, "server"),
            word(players, "player"),
            self.sort.name(),
            self.chosen.words(),
        );
        Line::from(vec![Span::styled(&*self.master, Style::new().add_modifier(Modifier::BOLD)), Span::raw(said)])
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.shown.is_empty() {
            let why = if self.all.is_empty() { "No server is up right now." } else { "No server is like that." };
            return frame.render_widget(Paragraph::new(why), area);
        }
        let widths = [
            Constraint::Min(16),
            Constraint::Length(9),
            Constraint::Max(18),
            Constraint::Max(14),
            Constraint::Max(13),
            Constraint::Length(9),
        ];
        let titles = ["Server", "Players", "Map", "Mode", "Game", "Ping"];
        let head = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
        let rows: Vec<Row<'_>> = self.shown.iter().filter_map(|at| self.all.get(*at)).map(row).collect();
        let table = Table::new(rows, widths).header(head).row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

fn row(server: &Found) -> Row<'_> {
    let facts = &server.facts;
    let name = if facts.name.is_empty() { server.url() } else { facts.name.to_string() };
    let ping = match (server.failure(), server.rtt_us) {
        (Some(_), _) => "silent".into(),
        (None, Some(us)) => format!("{} ms", us.div_ceil(1000)),
        (None, None) => String::new(),
    };
    let cells =
        [name, server.players(), facts.map.to_string(), facts.mode.to_string(), server.game.name().into(), ping];
    let style = if server.is_not_empty() { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
    Row::new(cells.map(Cell::from)).style(style)
}

/// All that one server says, below its name.
fn all_of(server: &Found) -> (String, Vec<Line<'static>>) {
    let facts = &server.facts;
    let mut lines = vec![Line::from(server.url())];
    let mut say = |what: &str, text: &str| {
        if !text.is_empty() {
            lines.push(Line::from(format!("{what:<14}{text}")));
        }
    };
    say("players", &server.players());
    say("map", &facts.map);
    say("mode", &facts.mode);
    say("version", &facts.version);
    say("password", if facts.password == Some(true) { "yes" } else { "" });
    say("fault", server.failure().unwrap_or_default());
    if let Some(details) = facts.details.as_deref() {
        for player in &details.players {
            let score = player.score.or(player.kills).map(|score| format!("  {score}")).unwrap_or_default();
            let ping = player.ping.map(|ping| format!("  {ping} ms")).unwrap_or_default();
            say("player", &format!("{}{score}{ping}", player.name));
        }
        for (name, value) in &details.rules {
            say(name, value);
        }
    }
    (if facts.name.is_empty() { server.address.to_string() } else { facts.name.to_string() }, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Details, Facts, Game, Player};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::sync::Arc;

    fn server(port: u16, name: &'static str, players: u16) -> Found {
        let details = Details {
            players: vec![Player { name: "Ann".into(), score: Some(14), ..Player::default() }],
            rules: vec![("fraglimit".into(), "20".into())],
        };
        let facts = Facts {
            name: name.into(),
            map: "Two clans".into(),
            players_current: Some(players),
            players_max: Some(8),
            details: Some(Arc::new(details)),
            ..Facts::default()
        };
        Found { facts, ..Found::new(Game::Known("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap()) }
    }

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(90, 14)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, keys: &[KeyCode]) -> Action {
        let presses = keys.iter().map(|key| screen.on(&Event::Key(KeyEvent::from(*key))));
        presses.last().unwrap()
    }

    fn typed(screen: &mut Screen, text: &str) {
        for typed in text.chars() {
            press(screen, &[KeyCode::Char(typed)]);
        }
    }

    fn three() -> Screen {
        let found = vec![server(1, "Alpha", 0), server(2, "beta", 5), server(3, "Gamma", 8)];
        Screen::new("netpanzer://master".into(), &Chosen::default(), found)
    }

    /// Where each text is on the screen, from the top.
    fn lines(text: &str, shown: &str) -> Vec<usize> {
        shown.lines().enumerate().filter(|(_, line)| line.contains(text)).map(|(number, _)| number).collect()
    }

    #[test]
    fn the_list_with_most_players_first() {
        let mut screen = three();
        let shown = drawn(&mut screen);
        assert!(shown.contains("netpanzer://master  3 servers, 13 players  by players"), "{shown}");
        let places = ["Gamma", "beta", "Alpha"].map(|name| lines(name, &shown)[0]);
        assert!(places.is_sorted(), "{shown}");
        assert!(shown.contains("5/8") && shown.contains("Two clans") && shown.contains("q quit"), "{shown}");
        assert_eq!(press(&mut screen, &[KeyCode::Char('r')]), Action::Look);
        assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Action::Quit);
    }

    #[test]
    fn keys_sort_leave_out_and_search() {
        let mut screen = three();
        typed(&mut screen, "s");
        let shown = drawn(&mut screen);
        assert!(shown.contains("by map"), "{shown}");
        typed(&mut screen, "ef");
        let shown = drawn(&mut screen);
        assert!(shown.contains("1 server, 5 players") && shown.contains("beta") && !shown.contains("Gamma"), "{shown}");
        typed(&mut screen, "ef/GAM");
        let shown = drawn(&mut screen);
        assert!(shown.contains("/GAM▏") && shown.contains("Gamma") && !shown.contains("beta"), "{shown}");
        typed(&mut screen, "q");
        assert!(drawn(&mut screen).contains("No server is like that."));
        press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
        assert!(drawn(&mut screen).contains("Gamma"));
        assert_eq!(press(&mut screen, &[KeyCode::Esc]), Action::Nothing);
        assert!(drawn(&mut screen).contains("3 servers"));
        assert_eq!(press(&mut screen, &[KeyCode::Esc]), Action::Quit);
    }

    #[test]
    fn the_chosen_server_stays_chosen_and_opens() {
        let mut screen = three();
        press(&mut screen, &[KeyCode::Down]);
        screen.take(Ok(vec![server(2, "beta", 8), server(4, "new", 1), server(3, "Gamma", 2)]));
        press(&mut screen, &[KeyCode::Enter]);
        let shown = drawn(&mut screen);
        assert!(shown.contains("netpanzer://203.0.113.5:2") && shown.contains("fraglimit"), "{shown}");
        assert!(shown.contains("Ann  14"), "{shown}");
        press(&mut screen, &[KeyCode::Esc, KeyCode::End, KeyCode::PageUp, KeyCode::Home, KeyCode::Up]);
        screen.take(Err(ListError::Bad("it is gone".into())));
        let shown = drawn(&mut screen);
        assert!(shown.contains("it is gone") && shown.contains("beta"), "what was known stays: {shown}");
        screen.take(Ok(Vec::new()));
        press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
        assert!(drawn(&mut screen).contains("No server is up right now."));
    }
}

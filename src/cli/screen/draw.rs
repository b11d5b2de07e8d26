//! Draws the screen, at any size.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::columns::{Column, GAP, Shown, Use, cells};
use super::details::labelled;
use super::text::{cut, width, wrap};
use super::{KEYS, Mode, Refresh, Screen, ascii};
use crate::cli::options::Sort;

/// Rows of the list above the details, with its header.
const LIST_ROWS_MIN: u16 = 5;
/// Rows of the list on a low terminal: its header and the selected server.
const SELECTED_ROWS: u16 = 2;
/// One line of the details and its border.
const DETAILS_ROWS_MIN: u16 = 3;
/// Below this height the lines with the keys and the counts are omitted.
const ROWS_COMFORTABLE: u16 = 8;
/// Below this height the line with a server's players over time is omitted.
const ROWS_FOR_PLAYERS: u16 = 12;
const HINT: &str = "? help  q quit  Enter details  J join  c copy  * favourite  / search  s sort";

/// Where things are on the screen, for the mouse.
#[derive(Default)]
pub struct Places {
    /// The titles of the columns and the rows below.
    list: Rect,
    details: Rect,
    /// The first cell of each column, and its width.
    columns: Vec<(u16, u16, Column)>,
}

impl Places {
    /// What the title at this place sorts by.
    pub fn sort_at(&self, at: Position) -> Option<Sort> {
        let columns = || self.columns.iter().find(|(first, cells, _)| (*first..first + cells).contains(&at.x));
        if self.list.contains(at) && at.y == self.list.y { columns()?.2.sort() } else { None }
    }

    /// The visible row at this place, from 0.
    pub fn row_at(&self, at: Position) -> Option<usize> {
        (self.list.contains(at) && at.y > self.list.y).then(|| usize::from(at.y - self.list.y - 1))
    }

    pub fn is_in_details(&self, at: Position) -> bool {
        self.details.contains(at)
    }
}

impl Screen {
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let (cells, rows_max) = (usize::from(area.width), usize::from(area.height / 3).max(1));
        let comfortable = u16::from(area.height >= ROWS_COMFORTABLE);
        let failure = wrapped(&self.failures, cells, rows_max);
        let (below_all, style) = self.bottom_lines(cells, rows_max, comfortable > 0);
        let has_players = area.height >= ROWS_FOR_PLAYERS && !self.shown.is_empty();
        let [top, counts, why, middle, players, bottom] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(comfortable),
            Constraint::Length(failure.len() as u16),
            Constraint::Min(0),
            Constraint::Length(u16::from(has_players)),
            Constraint::Length(below_all.len() as u16),
        ])
        .areas(area);
        self.draw_head(frame, top);
        frame.render_widget(Paragraph::new(cut(&self.counts(), usize::from(counts.width))), counts);
        let lines: Vec<Line<'_>> = failure.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines).style(Modifier::BOLD), why);
        let details = self.details(middle.width);
        let height = details.as_ref().map_or(0, |(_, lines)| lines.len() as u16 + 2);
        // The selected server stays visible, with at least one line of its details.
        let room = middle.height.saturating_sub(LIST_ROWS_MIN).max(DETAILS_ROWS_MIN);
        let fits = middle.height >= DETAILS_ROWS_MIN + SELECTED_ROWS;
        let height = if fits { height.min(room) } else { 0 };
        let [list, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(middle);
        self.draw_list(frame, list);
        if let Some((title, lines)) = details {
            self.draw_details(frame, below, &title, lines);
        }
        (self.places.list, self.places.details) = (list, below);
        if let Some(server) = self.selected_server().filter(|_| has_players) {
            let line = self.players.line(server, usize::from(players.width));
            frame.render_widget(Paragraph::new(cut(&line, usize::from(players.width))), players);
        }
        let lines: Vec<Line<'_>> = below_all.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines).style(style), bottom);
        if self.mode == Mode::Help {
            draw_help(frame, area);
        }
        if self.setup.ascii {
            ascii::replace(frame.buffer_mut());
        }
    }

    /// A question or a note, whole if it fits into `rows_max`, or the most important keys. Empty if there is no room for these.
    fn bottom_lines(&self, cells: usize, rows_max: usize, has_room: bool) -> (Vec<String>, Modifier) {
        let (text, style) = match (&self.mode, &self.note) {
            (Mode::Search, _) => return (vec![cut(&format!("/{}▏", self.search), cells)], Modifier::DIM),
            (Mode::Confirm(command), _) => (format!("Run this? y n: {}", command.join(" ")), Modifier::BOLD),
            (_, Some(note)) => (note.clone(), Modifier::BOLD),
            (_, None) if has_room => return (vec![cut(HINT, cells)], Modifier::DIM),
            (_, None) => return (Vec::new(), Modifier::DIM),
        };
        (wrapped(&[text], cells, rows_max), style)
    }

    /// The masters, and the age of their lists.
    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let state = match (self.refresh, self.listed_at) {
            (Refresh::Listing, _) => "refreshing".to_string(),
            (Refresh::Querying(left @ 1..), _) => format!("querying {left}"),
            (_, Some(listed_at)) => format!("{} s ago", listed_at.elapsed().as_secs()),
            (_, None) => String::new(),
        };
        let cells = usize::from(area.width);
        let room = cells.saturating_sub(width(&state) + 2);
        let masters = match self.setup.masters.as_slice() {
            [only] => only.clone(),
            several => {
                let named = several.iter().enumerate().map(|(number, master)| format!("{} {master}", number + 1));
                named.collect::<Vec<_>>().join("  ")
            }
        };
        let master = cut(&masters, room);
        let gap = " ".repeat(cells.saturating_sub(width(&master) + width(&state)));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Line::from(vec![Span::styled(master, bold), gap.into(), state.into()]), area);
    }

    fn counts(&self) -> String {
        let players: u64 = self.servers().map(|server| u64::from(server.facts.players_current.unwrap_or(0))).sum();
        let count = |number: u64, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
        let search = if self.search.is_empty() { String::new() } else { format!(", with \"{}\"", self.search) };
        format!(
            "{}, {}, by {}{}{search}",
            count(self.shown.len() as u64, "server"),
            count(players, "player"),
            self.sort.name(),
            self.setup.selection.words(),
        )
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.shown.is_empty() {
            let why = match (self.listed_at.is_some(), self.all.is_empty()) {
                (false, _) => "Waiting for the list.",
                (true, true) => "No servers are listed.",
                (true, false) => "No servers match.",
            };
            return frame.render_widget(Paragraph::new(why), area);
        }
        let rows = usize::from(area.height.saturating_sub(1)).max(1); // below the titles
        self.page = rows;
        // The selected row is visible, and no row is blank while there are servers above.
        let last_first = self.shown.len().saturating_sub(rows);
        self.first = self.first.min(self.selected).max((self.selected + 1).saturating_sub(rows)).min(last_first);
        let visible: Vec<Shown<'_>> =
            self.servers().skip(self.first).take(rows).map(|server| self.row(server)).collect();
        let mut widths = self.widths.clone();
        visible.iter().for_each(|row| widths.grow(*row));
        let of_use = Use { games: self.has_games, masters: self.setup.masters.len() > 1 };
        let columns = widths.fit(usize::from(area.width), of_use);
        let rows: Vec<Row<'_>> = visible
            .iter()
            .map(|row| {
                let is_bright = row.server.is_not_empty();
                let style = if is_bright { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
                Row::new(cells(*row, &columns).into_iter().map(Cell::from)).style(style)
            })
            .collect();
        let titles = columns.iter().map(|(column, cells)| cut(column.title(), *cells));
        let head = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
        let constraints: Vec<Constraint> = columns.iter().map(|(_, cells)| Constraint::Length(*cells as u16)).collect();
        let table = Table::new(rows, constraints).header(head).row_highlight_style(Modifier::REVERSED);
        let mut state = TableState::new().with_selected(self.selected - self.first);
        frame.render_stateful_widget(table, area, &mut state);
        let mut first = area.x;
        self.places.columns.clear();
        for (column, cells) in columns {
            self.places.columns.push((first, cells as u16, column));
            first = first.saturating_add((cells + GAP) as u16);
        }
        self.widths = widths;
    }
}

/// Texts in up to `rows_max` lines; the last one is cut if there are more.
fn wrapped(texts: &[String], cells: usize, rows_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = texts.iter().flat_map(|text| wrap(text, cells)).collect();
    if lines.len() > rows_max {
        let rest = lines.split_off(rows_max.saturating_sub(1)).join(" ");
        lines.push(cut(&rest, cells));
    }
    lines
}

/// Draws the keys over everything else.
fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let cells = usize::from(area.width.saturating_sub(4));
    let lines = KEYS.iter().flat_map(|(keys, what)| labelled(keys, what, cells));
    let lines: Vec<Line<'_>> = lines.map(|line| Line::from(format!(" {line}"))).collect();
    let widest = lines.iter().map(Line::width).max().unwrap_or(0) as u16;
    let size = (area.width.min(widest + 3), area.height.min(lines.len() as u16 + 2));
    let place = Rect {
        x: area.x + (area.width - size.0) / 2,
        y: area.y + (area.height - size.1) / 2,
        width: size.0,
        height: size.1,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" Keys ").title_bottom(" any key closes ")),
        place,
    );
}

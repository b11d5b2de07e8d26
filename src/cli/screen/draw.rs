//! Draws the screen, at any size.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::columns::cells;
use super::text::{cut, width, wrap};
use super::{KEYS, Mode, Refresh, Screen};
use crate::client::Found;

/// Rows of the list above the details, with its header.
const LIST_ROWS_MIN: u16 = 5;
/// Rows of the list on a low terminal: its header and the selected server.
const SELECTED_ROWS: u16 = 2;
/// One line of the details and its border.
const DETAILS_ROWS_MIN: u16 = 3;
/// Below this height the lines with the keys and the counts are omitted.
const ROWS_COMFORTABLE: u16 = 8;
/// Width of the details' first column.
const LABEL_CELLS: usize = 18;
const HINT: &str = "? help  q quit  Enter details  / search  s sort  e f hide empty, full  r refresh";

impl Screen {
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let comfortable = u16::from(area.height >= ROWS_COMFORTABLE);
        let failure = self.failure_lines(usize::from(area.width), usize::from(area.height / 3).max(1));
        let [top, counts, why, middle, bottom] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(comfortable),
            Constraint::Length(failure.len() as u16),
            Constraint::Min(0),
            Constraint::Length(comfortable.max(u16::from(self.mode == Mode::Search))),
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
        let hint = if self.mode == Mode::Search { format!("/{}▏", self.search) } else { HINT.to_string() };
        let hint = cut(&hint, usize::from(bottom.width));
        frame.render_widget(Paragraph::new(hint).style(Modifier::DIM), bottom);
        if self.mode == Mode::Help {
            draw_help(frame, area);
        }
    }

    /// The master, and the age of its list.
    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let state = match (self.refresh, self.listed_at) {
            (Refresh::Listing, _) => "refreshing".to_string(),
            (Refresh::Querying(left @ 1..), _) => format!("querying {left}"),
            (_, Some(listed_at)) => format!("{} s ago", listed_at.elapsed().as_secs()),
            (_, None) => String::new(),
        };
        let cells = usize::from(area.width);
        let room = cells.saturating_sub(width(&state) + 2);
        let master = cut(&self.master, room);
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
            self.selection.words(),
        )
    }

    /// Why the last refresh failed, in up to `rows_max` lines.
    fn failure_lines(&self, cells: usize, rows_max: usize) -> Vec<String> {
        let Some(why) = &self.failure else { return Vec::new() };
        let mut lines = wrap(&format!("The last refresh failed: {why}"), cells);
        if lines.len() > rows_max {
            let rest = lines.split_off(rows_max.saturating_sub(1)).join(" ");
            lines.push(cut(&rest, cells));
        }
        lines
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.shown.is_empty() {
            let why = match (self.has_list(), self.all.is_empty()) {
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
        let visible: Vec<&Found> = self.servers().skip(self.first).take(rows).collect();
        let pending: Vec<bool> = visible.iter().map(|server| self.is_pending(server)).collect();
        let mut widths = self.widths.clone();
        visible.iter().zip(&pending).for_each(|(server, pending)| widths.grow(server, *pending));
        let columns = widths.fit(usize::from(area.width), self.has_games);
        let rows: Vec<Row<'_>> = visible
            .iter()
            .zip(pending)
            .map(|(server, pending)| {
                let style = if server.is_not_empty() { Style::new() } else { Style::new().add_modifier(Modifier::DIM) };
                Row::new(cells(server, pending, &columns).into_iter().map(Cell::from)).style(style)
            })
            .collect();
        let titles = columns.iter().map(|(column, cells)| cut(column.title(), *cells));
        let head = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
        let constraints: Vec<Constraint> = columns.iter().map(|(_, cells)| Constraint::Length(*cells as u16)).collect();
        let table = Table::new(rows, constraints).header(head).row_highlight_style(Modifier::REVERSED);
        let mut state = TableState::new().with_selected(self.selected - self.first);
        frame.render_stateful_widget(table, area, &mut state);
        self.widths = widths;
    }

    /// The selected server's name and details, if they are open.
    fn details(&self, width: u16) -> Option<(String, Vec<String>)> {
        let server = self.selected_server().filter(|_| self.is_open)?;
        let facts = &server.facts;
        let name = if facts.has_visible_name() { facts.name.to_string() } else { server.address.to_string() };
        Some((name, details_of(server, usize::from(width.saturating_sub(2)))))
    }

    fn draw_details(&mut self, frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<String>) {
        let rows = usize::from(area.height.saturating_sub(2));
        self.details_page = rows.max(1);
        self.details_from = self.details_from.min(lines.len().saturating_sub(rows));
        let title = cut(title, usize::from(area.width.saturating_sub(2)));
        let mut block = Block::bordered().title(title);
        if lines.len() > rows {
            let last = (self.details_from + rows).min(lines.len());
            block = block.title_bottom(format!(" {last} of {} lines, PgUp PgDn ", lines.len()));
        }
        let lines: Vec<Line<'_>> = lines.into_iter().skip(self.details_from).take(rows).map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }
}

/// A server's facts, in lines of at most `cells`.
fn details_of(server: &Found, cells: usize) -> Vec<String> {
    let facts = &server.facts;
    let mut lines = wrap(&server.url(), cells);
    let mut add = |label: &str, text: &str| {
        if !text.is_empty() {
            lines.extend(labelled(label, text, cells));
        }
    };
    add("error", server.failure().unwrap_or_default());
    add("players", &server.players());
    add("map", &facts.map);
    add("mode", &facts.mode);
    add("version", &facts.version);
    add("password", if facts.password == Some(true) { "yes" } else { "" });
    if let Some(details) = facts.details.as_deref() {
        for player in &details.players {
            let score = player.score.or(player.kills).map(|score| format!("  {score}")).unwrap_or_default();
            let ping = player.ping.map(|ping| format!("  {ping} ms")).unwrap_or_default();
            add("player", &format!("{}{score}{ping}", player.name));
        }
        for (name, value) in &details.rules {
            add(name, value);
        }
    }
    lines
}

/// A label with a wrapped text beside it.
fn labelled(label: &str, text: &str, cells: usize) -> Vec<String> {
    if cells < 2 * LABEL_CELLS {
        return wrap(&format!("{label}: {text}"), cells);
    }
    let label = cut(label, LABEL_CELLS - 1);
    let pad = " ".repeat(LABEL_CELLS - width(&label));
    let texts = wrap(text, cells - LABEL_CELLS).into_iter().enumerate();
    texts
        .map(|(row, text)| if row == 0 { format!("{label}{pad}{text}") } else { " ".repeat(LABEL_CELLS) + &text })
        .collect()
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

//! The details of the selected server, below the list.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph};

use super::columns::milliseconds;
use super::text::{cut, width, wrap};
use super::{Screen, joining};
use crate::client::Found;

/// Width of the first column.
const LABEL_CELLS: usize = 18;

impl Screen {
    /// The selected server's name and details, if they are open.
    pub fn details(&self, width: u16) -> Option<(String, Vec<String>)> {
        let server = self.selected_server().filter(|_| self.is_open)?;
        let facts = &server.facts;
        let name = if facts.has_visible_name() { facts.name.to_string() } else { server.address.to_string() };
        Some((name, details_of(server, &self.setup.masters, usize::from(width.saturating_sub(2)))))
    }

    pub fn draw_details(&mut self, frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<String>) {
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
fn details_of(server: &Found, masters: &[String], cells: usize) -> Vec<String> {
    let facts = &server.facts;
    let mut lines = wrap(&server.url(), cells);
    let mut add = |label: &str, text: &str| {
        if !text.is_empty() {
            lines.extend(labelled(label, text, cells));
        }
    };
    add("error", server.failure().unwrap_or_default());
    add("players", &server.players());
    let join = joining::join(server);
    add("join", join.link.as_deref().unwrap_or_default());
    add(if join.link.is_some() { "or by" } else { "join" }, join.command.as_deref().unwrap_or_default());
    add("country", server.country.as_deref().unwrap_or_default());
    add("ping from here", &server.rtt_us.map(milliseconds).unwrap_or_default());
    add("master's ping", &server.master_rtt_us.map(milliseconds).unwrap_or_default());
    if masters.len() > 1 {
        for master in server.masters.iter().filter_map(|number| masters.get(number)) {
            add("listed by", master);
        }
    }
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
        for (name, value) in details.rules.iter() {
            add(name, value);
        }
    }
    lines
}

/// A label with a wrapped text beside it.
pub fn labelled(label: &str, text: &str, cells: usize) -> Vec<String> {
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

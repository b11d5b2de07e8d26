//! A table for people. On a terminal it is as wide as that and has a little colour; elsewhere it is plain and never cut.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Row, Table, presets};

use super::up;
use crate::client::Found;
use crate::protocols::card;

/// Longer texts are cut: a table is to be looked at.
const TEXT_CHARS_MAX: usize = 48;

pub fn write(servers: &[Found]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    let header = ["Server", "Players", "Map", "Mode", "Version", "Ping", "Game", "Address"];
    table.set_header(header.map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    for number in [1, 5] {
        if let Some(column) = table.column_mut(number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut rows = 0;
    for found in up(servers) {
        table.add_row(row(found));
        rows += 1;
    }
    if rows == 0 { String::new() } else { table.trim_fmt() + "\n" }
}

fn row(found: &Found) -> Row {
    let facts = &found.facts;
    let players = match (facts.players_current, facts.players_max) {
        (Some(players), Some(most)) => format!("{players}/{most}"),
        (Some(players), None) => players.to_string(),
        _ => String::new(),
    };
    let players = Cell::new(players);
    let players = if found.is_not_empty() { players.fg(Color::Green) } else { players };
    let ping = found.rtt_us.map(|rtt_us| format!("{} ms", rtt_us.div_ceil(1000)));
    let lock = if facts.password == Some(true) { " (password)" } else { "" };
    Row::from(vec![
        Cell::new(cut(&facts.name) + lock),
        players,
        Cell::new(cut(&facts.map)),
        Cell::new(cut(&facts.mode)),
        Cell::new(cut(&facts.version)),
        Cell::new(ping.unwrap_or_default()),
        Cell::new(card(found.game.name()).map_or(found.game.name(), |card| card.title)),
        Cell::new(found.address),
    ])
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => text.get(..end).unwrap_or(text).to_string() + "…",
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::servers;
    use super::*;

    #[test]
    fn a_header_and_a_row_each_without_colour_here() {
        let text = write(&servers());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with(" Server") && lines[1].contains("A \"quoted\", <b>&amp;</b> name"), "{text}");
        assert!(lines[1].contains(" 3/8 ") && lines[1].contains(" 13 ms ") && lines[1].contains("203.0.113.5:20200"));
        assert!(lines[2].contains("netPanzer") && lines[2].contains("[2001:db8::1]:3030"));
        assert!(!text.contains('\u{1b}'));
        assert_eq!(write(&[]), "");
    }
}

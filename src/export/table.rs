//! A table for people. On a terminal it is as wide as that and has a little colour; elsewhere it is plain and never cut.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, Table, presets};

use super::up;
use crate::client::Found;
use crate::protocols::card;

/// Longer texts are cut: a table is to be looked at.
const TEXT_CHARS_MAX: usize = 48;
/// In a terminal that is narrower than this, or does not know, lines run over: better than words of one letter a line.
const WIDTH_MIN: u16 = 80;
/// The columns that are numbers, or are copied: they are not broken into lines.
const PLAYERS: usize = 1;
const PING: usize = 5;
const ADDRESS: usize = 6;

pub fn write(servers: &[Found]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // Where all are of one game, nobody needs to be told which.
    let mut games = up(servers).map(|found| found.game.name());
    let first = games.next();
    let several = games.any(|game| Some(game) != first);
    let mut header = vec!["Server", "Players", "Map", "Mode", "Version", "Ping", "Address"];
    header.extend(several.then_some("Game"));
    table.set_header(header.into_iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
    for (number, column) in table.column_iter_mut().enumerate() {
        if [PLAYERS, PING].contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if [PLAYERS, PING, ADDRESS].contains(&number) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    if let Some(width) = table.width() {
        table.set_width(width.max(WIDTH_MIN));
    }
    let mut rows = 0;
    for found in up(servers) {
        table.add_row(row(found, several));
        rows += 1;
    }
    if rows == 0 { String::new() } else { table.trim_fmt() + "\n" }
}

/// What there is to say of one server, in a line that goes on after its address.
pub fn line(found: &Found) -> String {
    let facts = &found.facts;
    let fault = found.failure().map(|why| format!("({why})"));
    let told = [found.players().as_str(), &cut(&facts.map), &cut(&facts.mode), &cut(&facts.name)]
        .map(str::to_string)
        .into_iter()
        .chain(fault);
    told.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" | ")
}

fn row(found: &Found, with_game: bool) -> Row {
    let facts = &found.facts;
    let players = Cell::new(found.players());
    let players = if found.is_not_empty() { players.fg(Color::Green) } else { players };
    let ping = found.rtt_us.map(|rtt_us| format!("{} ms", rtt_us.div_ceil(1000)));
    let lock = if facts.password == Some(true) { " (password)" } else { "" };
    let game = Cell::new(card(found.game.name()).map_or(found.game.name(), |card| card.title));
    let cells = [
        Cell::new(cut(&facts.name) + lock),
        players,
        Cell::new(cut(&facts.map)),
        Cell::new(cut(&facts.mode)),
        Cell::new(cut(&facts.version)),
        Cell::new(ping.unwrap_or_default()),
        Cell::new(found.address),
    ];
    Row::from(cells.into_iter().chain(with_game.then_some(game)).collect::<Vec<_>>())
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
        assert!(!write(&servers()[..1]).contains("Hyperbol"), "one game, one name less");
        assert_eq!(write(&[]), "");
    }
}

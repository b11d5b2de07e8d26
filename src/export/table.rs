//! A table for people: one line per server. On a terminal it is fitted to the width: long texts are cut with an ellipsis, and
//! less important columns are dropped. Elsewhere nothing is cut.

use comfy_table::{Attribute, Cell, CellAlignment, Color, Row, Table, presets};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::columns::{COLUMNS, Column, DEFAULT, DROP_ORDER, Shape};
use super::{Layout, shown};
use crate::client::Found;

/// Between two columns.
const GAP: usize = 2;
/// Longer texts are cut in the output of [`line`].
const LINE_TEXT_MAX: usize = 48;
const LOCK: &str = " (password)";
/// The password mark is omitted if it would leave fewer characters of the name.
const LOCKED_NAME_MIN: usize = 8;

pub fn write(servers: &[Found], layout: &Layout) -> String {
    let rows: Vec<&Found> = shown(servers, layout.has_fault(false)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut columns: Vec<SizedColumn> = match &layout.columns {
        Some(columns) => columns.iter().map(|column| SizedColumn::new(column, &rows, layout)).collect(),
        None => default_columns(&rows, layout),
    };
    if let Some(width) = layout.width {
        lay_out(&mut columns, width, layout.columns.is_none());
    }
    draw(&rows, &columns, layout)
}

/// A column and its width.
struct SizedColumn {
    column: &'static Column,
    /// The width at which nothing is cut.
    natural: usize,
    min: usize,
    width: usize,
}

impl SizedColumn {
    fn new(column: &'static Column, rows: &[&Found], layout: &Layout) -> SizedColumn {
        let title = if layout.header { column.title.width() } else { 0 };
        let natural = rows.iter().map(|found| cell(column, found).width()).chain([title]).max().unwrap_or(0);
        let min = match column.shape {
            Shape::Text(min) => natural.min(min.max(title)),
            Shape::Whole | Shape::Number => natural,
        };
        SizedColumn { column, natural, min, width: natural }
    }
}

/// The default columns, without empty ones.
fn default_columns(rows: &[&Found], layout: &Layout) -> Vec<SizedColumn> {
    // A column with the same game in all rows is of no use.
    let first = rows.first().map(|found| found.game.name());
    let several = rows.iter().any(|found| Some(found.game.name()) != first);
    let columns = COLUMNS.iter().filter(|column| DEFAULT.contains(&column.name));
    let columns = columns.filter(|column| column.name != "game" || several);
    let has_text = |column: &&Column| rows.iter().any(|found| !(column.cell)(found).is_empty());
    columns.filter(has_text).map(|column| SizedColumn::new(column, rows, layout)).collect()
}

/// Makes the columns fit: first by dropping some, if allowed, then by cutting long texts.
fn lay_out(columns: &mut Vec<SizedColumn>, width: usize, may_drop: bool) {
    let least =
        |columns: &[SizedColumn]| columns.iter().map(|sized| sized.min + GAP).sum::<usize>().saturating_sub(GAP);
    for name in DROP_ORDER.iter().take_while(|_| may_drop) {
        if least(columns) <= width || columns.len() < 2 {
            break;
        }
        columns.retain(|sized| sized.column.name != *name);
    }
    columns.iter_mut().for_each(|sized| sized.width = sized.min);
    for _ in least(columns)..width {
        // The narrowest of the cut columns gets the next cell.
        let cut = columns.iter_mut().filter(|sized| sized.width < sized.natural);
        let Some(narrowest) = cut.min_by_key(|sized| sized.width) else { return };
        narrowest.width += 1;
    }
}

fn draw(rows: &[&Found], columns: &[SizedColumn], layout: &Layout) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    if layout.color {
        table.enforce_styling();
    }
    if layout.header {
        let titles = columns.iter().map(|sized| Cell::new(sized.column.title).add_attribute(Attribute::Bold));
        table.set_header(titles);
    }
    for found in rows {
        table.add_row(Row::from(columns.iter().map(|sized| styled(sized, found)).collect::<Vec<_>>()));
    }
    for (column, sized) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, GAP as u16));
        if sized.column.shape == Shape::Number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| line.trim_end().to_string() + "\n");
    lines.collect()
}

fn styled(sized: &SizedColumn, found: &Found) -> Cell {
    let text = cell(sized.column, found);
    let text = match text.strip_suffix(LOCK).filter(|_| is_locked(sized.column, found)) {
        // The password mark is kept when a name is cut.
        Some(name) if text.width() > sized.width && sized.width >= LOCK.len() + LOCKED_NAME_MIN => {
            fit(name, sized.width - LOCK.len()) + LOCK
        }
        _ => fit(&text, sized.width),
    };
    let cell = Cell::new(text);
    match sized.column.name {
        "players" | "players_current" if found.is_not_empty() => cell.fg(Color::Green),
        "fault" => cell.fg(Color::Red),
        _ => cell,
    }
}

fn is_locked(column: &Column, found: &Found) -> bool {
    column.name == "name" && found.facts.password == Some(true)
}

fn cell(column: &Column, found: &Found) -> String {
    let text = (column.cell)(found);
    if is_locked(column, found) { text + LOCK } else { text }
}

/// A server's facts on one line, to be printed after its address.
pub fn line(found: &Found) -> String {
    let facts = &found.facts;
    let cut = |text: &str| fit(text, LINE_TEXT_MAX);
    let fault = found.failure().map(|why| format!("({why})"));
    let fields = [found.players(), cut(&facts.map), cut(&facts.mode), cut(&facts.name)];
    fields.into_iter().chain(fault).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" | ")
}

/// Cut to a width, with an ellipsis for the rest.
fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_string();
    }
    let mut taken = 1; // the ellipsis
    let fits = |c: &char| {
        taken += c.width().unwrap_or(0);
        taken <= width
    };
    let start: String = text.chars().take_while(fits).collect();
    start.trim_end().to_string() + "…"
}

#[cfg(test)]
mod tests {
    use super::super::tests::servers;
    use super::*;
    use crate::client::State;
    use crate::model::{Facts, Game, VersionText};

    fn wide() -> Vec<Found> {
        let long = |port: u16, name: &'static str| Found {
            rtt_us: Some(123_000),
            state: State::Answered,
            facts: Facts {
                name: name.into(),
                map: "Southern Comfort and more".into(),
                mode: "objective based".into(),
                version: VersionText::from("0.9.3.0-build7").unwrap(),
                players_current: Some(12),
                players_max: Some(64),
                password: Some(port == 2),
                ..Facts::default()
            },
            ..Found::new(Game::Own("netpanzer"), format!("203.0.113.200:{port}").parse().unwrap())
        };
        vec![
            long(1, "A server with a very long name of its own"),
            long(2, "日本語のサーバー、長い名前、とても長い名前"),
        ]
    }

    fn at(width: usize) -> Layout {
        Layout { width: Some(width), ..Layout::default() }
    }

    #[test]
    fn a_header_and_one_row_per_server() {
        let text = write(&servers(), &Layout::default());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("Server") && lines[1].contains("A \"quoted\", <b>&amp;</b> name"), "{text}");
        assert!(lines[1].contains(" 3/8 ") && lines[1].contains(" 13 ms ") && lines[1].contains("203.0.113.5:20200"));
        assert!(lines[2].contains("netPanzer") && lines[2].contains("[2001:db8::1]:3030"));
        assert!(!text.contains('\u{1b}') && !text.contains(" \n"), "{text}");
        assert!(!write(&servers()[..1], &Layout::default()).contains("Hyperbol"), "one game, one name less");
        assert_eq!(write(&[], &Layout::default()), "");
        let colored = write(&servers(), &Layout { color: true, ..Layout::default() });
        assert!(colored.contains("\u{1b}[1m") && colored.contains("3/8"), "{colored}");
    }

    #[test]
    fn addresses_only_where_nothing_else_is_known() {
        let only: Vec<_> = servers().into_iter().skip(2).collect();
        assert_eq!(write(&only, &Layout::default()), "Address\n[2001:db8::1]:3030\n");
        assert_eq!(write(&only, &Layout { header: false, ..Layout::default() }), "[2001:db8::1]:3030\n");
    }

    #[test]
    fn one_line_per_server_at_every_width() {
        let whole = write(&wide(), &Layout::default());
        assert!(!whole.contains('…') && whole.contains("とても長い名前 (password)"), "{whole}");
        for width in 30..200 {
            let text = write(&wide(), &at(width));
            assert_eq!(text.lines().count(), 3, "{text}");
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
            assert!(text.contains("203.0.113.200:1") && text.contains("203.0.113.200:2"), "{text}");
            if width >= whole.lines().map(UnicodeWidthStr::width).max().unwrap() {
                assert_eq!(text, whole);
            }
        }
        let eighty = write(&wide(), &at(80));
        for word in ["Server", "Players", "Map", "Ping", "Address", "…", "12/64", "123 ms"] {
            assert!(eighty.contains(word), "{word}:\n{eighty}");
        }
        assert!(!eighty.contains("Version") && eighty.contains("(password)"), "{eighty}");
    }

    #[test]
    fn chosen_columns_stay_in_their_order_and_bring_failures_only_with_their_reason() {
        let columns = |names: &[&str]| Layout {
            columns: Some(names.iter().map(|name| Column::parse(name).unwrap()).collect()),
            header: false,
            ..Layout::default()
        };
        let text = write(&servers(), &columns(&["address", "players"]));
        assert_eq!(text, "203.0.113.5:20200   3/8\n[2001:db8::1]:3030\n");
        let text = write(&servers(), &columns(&["fault", "url"]));
        assert_eq!(text.lines().nth(1), Some("no answer  hyperbol://203.0.113.6:20200"), "{text}");
        let narrow = Layout { width: Some(20), ..columns(&["map", "version", "address"]) };
        assert!(write(&wide(), &narrow).lines().all(|line| line.contains("203.0.113.200")));
    }
}

//! The columns of the list, and which of them fit. Name, players and ping have priority, then the address.

use super::text::{cut, width};
use crate::client::{Found, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Server,
    Address,
    Players,
    Map,
    Mode,
    Game,
    Ping,
}

/// From left to right.
pub const ALL: [Column; 7] =
    [Column::Server, Column::Address, Column::Players, Column::Map, Column::Mode, Column::Game, Column::Ping];

/// By priority, if not all of them fit.
const BY_RANK: [Column; 7] =
    [Column::Server, Column::Players, Column::Ping, Column::Address, Column::Map, Column::Game, Column::Mode];

/// Cells between two columns.
const GAP: usize = 1;
/// Wide enough for a ping and for `querying`, so that the column does not change its width.
const PING_CELLS_MIN: usize = 8;

impl Column {
    pub fn title(self) -> &'static str {
        match self {
            Column::Server => "Server",
            Column::Address => "Address",
            Column::Players => "Players",
            Column::Map => "Map",
            Column::Mode => "Mode",
            Column::Game => "Game",
            Column::Ping => "Ping",
        }
    }

    /// The cell for a server; `pending` while its answer is awaited.
    pub fn text(self, server: &Found, pending: bool) -> String {
        let facts = &server.facts;
        match self {
            Column::Server if facts.has_visible_name() => facts.name.to_string(),
            Column::Server => match server.failure() {
                Some(why) => format!("({why})"),
                None if pending => "(querying)".into(),
                None => "(no name)".into(),
            },
            Column::Address => server.address.to_string(),
            Column::Players => server.players(),
            Column::Map => facts.map.to_string(),
            Column::Mode => facts.mode.to_string(),
            Column::Game => server.game.name().to_string(),
            Column::Ping => match (&server.state, server.rtt_us) {
                (State::Failed(why), _) if why.starts_with("no answer") => "silent".into(),
                (State::Failed(why), _) if why.starts_with("connection refused") => "closed".into(),
                (State::Failed(_), _) => "error".into(),
                (_, Some(us)) => format!("{} ms", us.div_ceil(1000)),
                (State::NotQueried, None) if pending => "querying".into(),
                (_, None) => String::new(),
            },
        }
    }

    /// The minimum width; addresses are never cut.
    fn least(self, natural: usize) -> usize {
        match self {
            Column::Server => natural.clamp(8, 20),
            Column::Map | Column::Mode => natural.min(10),
            Column::Address | Column::Players | Column::Game | Column::Ping => natural,
        }
    }

    /// The width up to which it takes space from others.
    fn most(self, natural: usize) -> usize {
        match self {
            Column::Server => natural.min(30),
            Column::Map => natural.min(24),
            Column::Mode => natural.min(16),
            Column::Address | Column::Players | Column::Game | Column::Ping => natural,
        }
    }
}

/// The preferred width of each column. It only grows, so that columns do not move while scrolling.
#[derive(Clone, Default)]
pub struct Widths([usize; ALL.len()]);

impl Widths {
    pub fn grow(&mut self, server: &Found, pending: bool) {
        for (natural, column) in self.0.iter_mut().zip(ALL) {
            *natural = (*natural).max(width(&column.text(server, pending)));
        }
    }

    fn natural(&self, column: Column) -> usize {
        let seen = ALL.iter().zip(self.0).find(|(known, _)| **known == column).map_or(0, |(_, cells)| cells);
        match column {
            // No server has one.
            Column::Map | Column::Mode if seen == 0 => 0,
            Column::Ping => seen.max(PING_CELLS_MIN),
            _ => seen.max(width(column.title())),
        }
    }

    /// The columns that fit into `cells`, with their widths; `games` if there is more than one game.
    pub fn fit(&self, cells: usize, games: bool) -> Vec<(Column, usize)> {
        let mut fitting: Vec<(Column, usize)> = Vec::new();
        let mut left = cells;
        for column in BY_RANK {
            let natural = self.natural(column);
            if natural == 0 || column == Column::Game && !games {
                continue;
            }
            let gap = if fitting.is_empty() { 0 } else { GAP };
            // The first column is always shown.
            let least = if fitting.is_empty() { column.least(natural).min(cells) } else { column.least(natural) };
            if let Some(rest) = left.checked_sub(least + gap) {
                fitting.push((column, least));
                left = rest;
            }
        }
        for (column, cells) in &mut fitting {
            let more = column.most(self.natural(*column)).saturating_sub(*cells).min(left);
            *cells += more;
            left -= more;
        }
        if let Some((_, cells)) = fitting.first_mut() {
            *cells += left; // names can use any space
        }
        fitting.sort_by_key(|(column, _)| ALL.iter().position(|known| known == column));
        fitting
    }
}

/// A server's row.
pub fn cells(server: &Found, pending: bool, columns: &[(Column, usize)]) -> Vec<String> {
    columns.iter().map(|(column, cells)| cut(&column.text(server, pending), *cells)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};

    fn server(address: &str) -> Found {
        let facts = Facts {
            name: "A name of some length".into(),
            map: "Two clans in the desert".into(),
            mode: "Objective".into(),
            players_current: Some(12),
            players_max: Some(32),
            ..Facts::default()
        };
        Found { facts, rtt_us: Some(31_000), ..Found::new(Game::Own("netpanzer"), address.parse().unwrap()) }
    }

    fn fit(address: &str, cells: usize) -> Vec<(Column, usize)> {
        let mut widths = Widths::default();
        widths.grow(&server(address), false);
        widths.fit(cells, true)
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_eighty_have_an_address() {
        let columns =
            |address: &str, cells: usize| fit(address, cells).iter().map(|(column, _)| *column).collect::<Vec<_>>();
        assert_eq!(columns("203.0.113.5:3030", 120), ALL);
        let eighty = columns("203.0.113.5:3030", 80);
        assert!(eighty.contains(&Column::Address) && eighty.contains(&Column::Map), "{eighty:?}");
        assert!(columns("[2001:db8:1111:2222:3333:4444:5555:6666]:65535", 84).contains(&Column::Address));
        assert_eq!(columns("203.0.113.5:3030", 37), [Column::Server, Column::Players, Column::Ping]);
        assert_eq!(columns("203.0.113.5:3030", 5), [Column::Server]);
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        for cells in 0..200 {
            let columns = fit("203.0.113.5:3030", cells);
            let all: usize =
                columns.iter().map(|(_, cells)| cells).sum::<usize>() + columns.len().saturating_sub(1) * GAP;
            assert_eq!(all, cells, "{columns:?}");
        }
    }

    #[test]
    fn the_state_of_a_query_is_shown() {
        let named = Found::new(Game::Own("netpanzer"), "203.0.113.5:1".parse().unwrap());
        let shown = |server: &Found, pending| [Column::Server, Column::Ping].map(|column| column.text(server, pending));
        assert_eq!(shown(&named, true), ["(querying)", "querying"]);
        assert_eq!(shown(&named, false), ["(no name)", ""]);
        let mut blank = named.clone();
        blank.facts.name = " \u{200b} ".into();
        assert_eq!(shown(&blank, false), ["(no name)", ""], "invisible characters");
        let silent = Found { state: State::Failed("no answer".into()), ..named.clone() };
        assert_eq!(shown(&silent, true), ["(no answer)", "silent"]);
        let closed = "connection refused: the port is closed";
        let closed = Found { state: State::Failed(closed.into()), ..named.clone() };
        assert_eq!(shown(&closed, true), ["(connection refused: the port is closed)", "closed"]);
        let bad = Found { state: State::Failed("bad answer: cut".into()), ..server("203.0.113.5:1") };
        assert_eq!(shown(&bad, false), ["A name of some length", "error"]);
        assert_eq!(shown(&server("203.0.113.5:1"), false), ["A name of some length", "31 ms"]);
    }
}

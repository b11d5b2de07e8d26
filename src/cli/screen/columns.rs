//! The columns of the list, and which of them fit. Name, players and ping have priority, then the address.

use super::text::{cut, width};
use crate::cli::options::Sort;
use crate::client::{Found, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Server,
    Address,
    Country,
    Players,
    Map,
    Mode,
    Game,
    /// Measured here.
    Ping,
    MasterPing,
    /// The numbers of the masters that list it.
    Masters,
}

/// From left to right.
pub const ALL: [Column; 10] = [
    Column::Server,
    Column::Address,
    Column::Country,
    Column::Players,
    Column::Map,
    Column::Mode,
    Column::Game,
    Column::Ping,
    Column::MasterPing,
    Column::Masters,
];

/// By priority, if not all of them fit.
const BY_RANK: [Column; 10] = [
    Column::Server,
    Column::Players,
    Column::Ping,
    Column::Address,
    Column::Country,
    Column::Masters,
    Column::Map,
    Column::MasterPing,
    Column::Game,
    Column::Mode,
];

/// A server as the list shows it.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    pub server: &'a Found,
    /// Its answer is awaited.
    pub pending: bool,
    pub is_favourite: bool,
}

/// Which columns are of use.
#[derive(Clone, Copy)]
pub struct Use {
    /// There is more than one game.
    pub games: bool,
    /// There is more than one master.
    pub masters: bool,
}

/// Cells between two columns.
pub const GAP: usize = 1;
/// Before the names of favourites.
const FAVOURITE: &str = "★";

impl Column {
    pub fn title(self) -> &'static str {
        match self {
            Column::Server => "Server",
            Column::Address => "Address",
            Column::Players => "Players",
            Column::Map => "Map",
            Column::Mode => "Mode",
            Column::Game => "Game",
            Column::Country => "CC",
            Column::Ping => "Ping here",
            Column::MasterPing => "Master's",
            Column::Masters => "Masters",
        }
    }

    /// What a click on its title sorts by.
    pub fn sort(self) -> Option<Sort> {
        Some(match self {
            Column::Server => Sort::Name,
            Column::Address => Sort::Address,
            Column::Players => Sort::Players,
            Column::Map => Sort::Map,
            Column::Mode => Sort::Mode,
            Column::Game => Sort::Game,
            Column::Country => Sort::Country,
            Column::Ping => Sort::Ping,
            Column::MasterPing => Sort::MasterPing,
            Column::Masters => return None,
        })
    }

    /// The cell for a server.
    pub fn text(self, Shown { server, pending, is_favourite }: Shown<'_>) -> String {
        let facts = &server.facts;
        match self {
            Column::Server if is_favourite => {
                format!("{FAVOURITE} {}", self.text(Shown { server, pending, is_favourite: false }))
            }
            Column::Server if facts.has_visible_name() => facts.name.to_string(),
            Column::Server => match server.failure() {
                Some(why) => format!("({why})"),
                None if pending => "(querying)".into(),
                None => "(no name)".into(),
            },
            Column::Country => server.country.map(|code| code.to_string()).unwrap_or_default(),
            Column::MasterPing => server.master_rtt_us.map(milliseconds).unwrap_or_default(),
            Column::Masters => {
                let numbers: Vec<String> = server.masters.iter().map(|number| (number + 1).to_string()).collect();
                numbers.join(" ")
            }
            Column::Address => server.address.to_string(),
            Column::Players => server.players(),
            Column::Map => facts.map.to_string(),
            Column::Mode => facts.mode.to_string(),
            Column::Game => server.game.name().to_string(),
            Column::Ping => match (&server.state, server.rtt_us) {
                (State::Failed(why), _) if why.starts_with("no answer") => "silent".into(),
                (State::Failed(why), _) if why.starts_with("connection refused") => "closed".into(),
                (State::Failed(_), _) => "error".into(),
                (_, Some(us)) => milliseconds(us),
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
            _ => natural,
        }
    }

    /// The width up to which it takes space from others.
    fn most(self, natural: usize) -> usize {
        match self {
            Column::Server => natural.min(30),
            Column::Map => natural.min(24),
            Column::Mode => natural.min(16),
            _ => natural,
        }
    }
}

/// The preferred width of each column. It only grows, so that columns do not move while scrolling.
#[derive(Clone, Default)]
pub struct Widths([usize; ALL.len()]);

impl Widths {
    pub fn grow(&mut self, row: Shown<'_>) {
        for (natural, column) in self.0.iter_mut().zip(ALL) {
            *natural = (*natural).max(width(&column.text(row)));
        }
    }

    fn natural(&self, column: Column) -> usize {
        let seen = ALL.iter().zip(self.0).find(|(known, _)| **known == column).map_or(0, |(_, cells)| cells);
        match column {
            // No server has one.
            Column::Map | Column::Mode | Column::Country | Column::MasterPing | Column::Masters if seen == 0 => 0,
            _ => seen.max(width(column.title())),
        }
    }

    /// The columns that fit into `cells`, with their widths.
    pub fn fit(&self, cells: usize, of_use: Use) -> Vec<(Column, usize)> {
        let mut fitting: Vec<(Column, usize)> = Vec::new();
        let mut left = cells;
        for column in BY_RANK {
            let natural = self.natural(column);
            let is_of_use = match column {
                Column::Game => of_use.games,
                Column::Masters => of_use.masters,
                _ => true,
            };
            if natural == 0 || !is_of_use {
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
pub fn cells(row: Shown<'_>, columns: &[(Column, usize)]) -> Vec<String> {
    columns.iter().map(|(column, cells)| cut(&column.text(row), *cells)).collect()
}

pub fn milliseconds(us: u32) -> String {
    format!("{} ms", us.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::CountryCode;
    use crate::client::watch::Masters;
    use crate::model::{Facts, Game};

    fn row(server: &Found, pending: bool) -> Shown<'_> {
        Shown { server, pending, is_favourite: false }
    }

    fn server(address: &str) -> Found {
        let facts = Facts {
            name: "A name of some length".into(),
            map: "Two clans in the desert".into(),
            mode: "Objective".into(),
            players_current: Some(12),
            players_max: Some(32),
            ..Facts::default()
        };
        let country = CountryCode::from("DE").ok();
        let mut masters = Masters::default();
        [0, 2].into_iter().for_each(|number| masters.insert(number));
        let (rtt_us, master_rtt_us) = (Some(31_000), Some(9_001));
        Found {
            facts,
            rtt_us,
            master_rtt_us,
            country,
            masters,
            ..Found::new(Game::Own("netpanzer"), address.parse().unwrap())
        }
    }

    fn fit(address: &str, cells: usize) -> Vec<(Column, usize)> {
        let mut widths = Widths::default();
        widths.grow(row(&server(address), false));
        widths.fit(cells, Use { games: true, masters: true })
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_eighty_have_an_address() {
        let columns =
            |address: &str, cells: usize| fit(address, cells).iter().map(|(column, _)| *column).collect::<Vec<_>>();
        assert_eq!(columns("203.0.113.5:3030", 130), ALL);
        let eighty = columns("203.0.113.5:3030", 80);
        assert!(eighty.contains(&Column::Address) && eighty.contains(&Column::Map), "{eighty:?}");
        assert!(columns("[2001:db8:1111:2222:3333:4444:5555:6666]:65535", 85).contains(&Column::Address));
        assert!(eighty.contains(&Column::Country) && eighty.contains(&Column::Masters), "{eighty:?}");
        assert_eq!(columns("203.0.113.5:3030", 38), [Column::Server, Column::Players, Column::Ping]);
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
        let shown =
            |server: &Found, pending| [Column::Server, Column::Ping].map(|column| column.text(row(server, pending)));
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

    #[test]
    fn what_masters_say_has_columns_of_its_own() {
        let server = server("203.0.113.5:1");
        let marked = Shown { is_favourite: true, ..row(&server, false) };
        let texts =
            [Column::Server, Column::Country, Column::MasterPing, Column::Masters].map(|column| column.text(marked));
        assert_eq!(texts, ["★ A name of some length", "DE", "10 ms", "1 3"]);
        let mut widths = Widths::default();
        widths.grow(row(&Found::new(Game::Own("netpanzer"), server.address), false));
        let columns: Vec<_> =
            widths.fit(200, Use { games: true, masters: false }).iter().map(|(column, _)| *column).collect();
        assert_eq!(columns, [Column::Server, Column::Address, Column::Players, Column::Game, Column::Ping]);
    }
}

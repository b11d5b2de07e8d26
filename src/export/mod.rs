//! Servers that were found, written down: as a table for people, as JSON, CSV and XML for programs.
//!
//! Table, JSON and CSV have a row for each server that is up, as far as is known; one that was asked in vain is not among
//! them. The XML is the Hyperbol document's own format and names all, with `responding` 0 or 1.

pub mod csv;
pub mod file;
pub mod ftp;
pub mod json;
pub mod table;
mod url;
pub mod xml;

use crate::client::Found;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    Json,
    Xml,
    Csv,
}

/// All of it as text.
pub fn write(format: Format, servers: &[Found]) -> String {
    match format {
        Format::Table => table::write(servers),
        Format::Json => json::write(servers),
        Format::Xml => xml::write(servers, &jiff::Zoned::now()),
        Format::Csv => csv::write(servers),
    }
}

/// Those that did not fail.
fn up(servers: &[Found]) -> impl Iterator<Item = &Found> {
    servers.iter().filter(|server| server.failure().is_none())
}

/// Milliseconds, with the digits that mean something.
fn milliseconds(rtt_us: u32) -> f64 {
    f64::from(rtt_us) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::State;
    use crate::model::{Details, Facts, Game, Player, VersionText};
    use std::sync::Arc;

    /// One of each kind, with every character that a format could trip over.
    pub fn servers() -> Vec<Found> {
        let answered = Found {
            official: Some(true),
            flavor: Some(4),
            rtt_us: Some(12_345),
            state: State::Answered,
            facts: Facts {
                name: "A \"quoted\", <b>&amp;</b> name".into(),
                mode: "Deathmatch".into(),
                map: "a_doommkii.hba".into(),
                version: VersionText::from("1.08b").unwrap(),
                players_current: Some(3),
                players_max: Some(8),
                password: Some(false),
                details: Some(Arc::new(Details {
                    players: vec![Player { name: "Al,ice".into(), team: Some("red".into()), ..Player::default() }],
                    rules: vec![("skill".into(), "above novice".into()), ("players_IMF".into(), "3".into())],
                })),
            },
            ..Found::new(Game::Known("hyperbol"), "203.0.113.5:20200".parse().unwrap())
        };
        let failed = Found {
            state: State::Failed("no answer".into()),
            ..Found::new(Game::Known("hyperbol"), "203.0.113.6:20200".parse().unwrap())
        };
        let named = Found::new(Game::Known("netpanzer"), "[2001:db8::1]:3030".parse().unwrap());
        vec![answered, failed, named]
    }
}

//! Servers that were found, written down: as a table for people, as JSON, CSV and XML for programs.
//!
//! JSON, CSV and XML name the servers that were asked in vain, too, with the reason as `fault`; a table has only those
//! that are up, as far as is known.

pub mod columns;
pub mod csv;
pub mod file;
pub mod ftp;
pub mod json;
pub mod table;
pub mod xml;

use crate::client::Found;
use columns::{Column, FAULT};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    Json,
    Jsonl,
    Xml,
    Csv,
}

/// How it is to look.
pub struct Look {
    /// Those chosen; None: the usual ones.
    pub columns: Option<Vec<&'static Column>>,
    /// Whether a table or CSV begins with the columns' names.
    pub header: bool,
    pub color: bool,
    /// Of the terminal; None: a table is as wide as its contents.
    pub width: Option<usize>,
}

impl Default for Look {
    fn default() -> Look {
        Look { columns: None, header: true, color: false, width: None }
    }
}

impl Look {
    /// Whether failures are shown with their reason.
    fn has_fault(&self, usually: bool) -> bool {
        self.columns.as_ref().map_or(usually, |columns| columns.iter().any(|column| column.name == FAULT))
    }
}

/// All of it as text. XML has no columns to choose.
pub fn write(format: Format, servers: &[Found], look: &Look) -> String {
    match format {
        Format::Table => table::write(servers, look),
        Format::Json => json::write(servers, look),
        Format::Jsonl => json::lines(servers, look),
        Format::Xml => xml::write(servers, &jiff::Zoned::now()),
        Format::Csv => csv::write(servers, look),
    }
}

/// Those that did not fail; with those that did, if they are wanted.
fn shown(servers: &[Found], with_failed: bool) -> impl Iterator<Item = &Found> {
    servers.iter().filter(move |server| with_failed || server.failure().is_none())
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
                ..Facts::default()
            },
            ..Found::new(Game::Own("hyperbol"), "203.0.113.5:20200".parse().unwrap())
        };
        let failed = Found {
            state: State::Failed("no answer".into()),
            ..Found::new(Game::Own("hyperbol"), "203.0.113.6:20200".parse().unwrap())
        };
        let named = Found::new(Game::Own("netpanzer"), "[2001:db8::1]:3030".parse().unwrap());
        vec![answered, failed, named]
    }
}

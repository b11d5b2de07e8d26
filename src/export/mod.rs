//! Output formats for lists of servers: a table for people; JSON, CSV and XML for programs.
//!
//! JSON, CSV and XML include servers that did not answer, with the reason as `fault`; a table does not.

pub mod columns;
pub mod csv;
pub mod file;
pub mod ftp;
pub mod json;
pub mod site;
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

impl Format {
    /// Whether it shows players and rules, or some of them.
    pub fn shows_details(self) -> bool {
        matches!(self, Format::Json | Format::Jsonl | Format::Xml)
    }
}

/// Formatting options.
pub struct Layout {
    /// None: the default ones.
    pub columns: Option<Vec<&'static Column>>,
    /// Whether a table or CSV starts with the columns' names.
    pub header: bool,
    pub color: bool,
    /// The terminal's width; None: a table is as wide as its contents.
    pub width: Option<usize>,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { columns: None, header: true, color: false, width: None }
    }
}

impl Layout {
    /// Whether failed servers are shown; `default` if no columns are selected.
    fn has_fault(&self, default: bool) -> bool {
        self.columns.as_ref().map_or(default, |columns| columns.iter().any(|column| column.name == FAULT))
    }
}

/// The whole document as text. XML ignores the columns.
pub fn write(format: Format, servers: &[Found], layout: &Layout) -> String {
    match format {
        Format::Table => table::write(servers, layout),
        Format::Json => json::write(servers, layout),
        Format::Jsonl => json::lines(servers, layout),
        Format::Xml => xml::write(servers, &jiff::Zoned::now()),
        Format::Csv => csv::write(servers, layout),
    }
}

/// The servers that did not fail and, with `with_failed`, those that did.
fn shown(servers: &[Found], with_failed: bool) -> impl Iterator<Item = &Found> {
    servers.iter().filter(move |server| with_failed || server.failure().is_none())
}

/// In milliseconds, to the microsecond.
fn milliseconds(rtt_us: u32) -> f64 {
    f64::from(rtt_us) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::State;
    use crate::model::{Details, Facts, Game, Player, VersionText};
    use std::sync::Arc;

    /// One server of each kind, with all characters that a format has to escape.
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
                    rules: [("skill", "above novice"), ("players_IMF", "3")].into(),
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

    #[test]
    fn a_format_says_whether_it_shows_details() {
        use clap::ValueEnum;
        let mut brief = servers();
        brief.iter_mut().for_each(|server| server.facts.details = None);
        for format in Format::value_variants() {
            // A document in XML begins with the time.
            let written = |servers: &[Found]| match format {
                Format::Xml => {
                    xml::write(servers, &jiff::Zoned::new(jiff::Timestamp::UNIX_EPOCH, jiff::tz::TimeZone::UTC))
                }
                format => write(*format, servers, &Layout::default()),
            };
            assert_eq!(written(&servers()) != written(&brief), format.shows_details(), "{format:?}");
        }
    }
}

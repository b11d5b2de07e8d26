//! Players and presence over time, for each server and each game: as counted for a day, means of five minutes for a
//! month, means of an hour for a year.
//!
//! A count of all servers is a row in `samples` for each 256 of them. When an hour is over, it goes into the three tiers of
//! `history`, where a row holds an hour, a day or thirty days of one series. So a count costs a few pages, however many
//! servers there are, and a plot costs a few rows. Times come in as arguments: a year passes in a test's moment.

mod read;
mod record;
mod series;

pub use read::{History, Range, Reader};
pub use record::Recorder;
pub use series::Point;

/// What the operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Seconds between two counts.
    pub every_s: u64,
    /// The file may have this many bytes; beyond, the oldest history goes. 0: no history.
    pub bytes_max: u64,
}

/// Where a game's name is asked for: all games together, a series like others.
pub const ALL_GAMES: &str = "";

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;

/// A resolution, how much of it is in one row, and how long it is kept.
#[derive(Clone, Copy, Debug)]
struct Tier {
    id: u8,
    /// None: as counted.
    step_s: Option<u64>,
    chunk_s: u64,
    keep_s: u64,
}

impl Tier {
    fn chunk_of(&self, at_s: u64) -> u64 {
        at_s - at_s % self.chunk_s
    }
}

const RAW: Tier = Tier { id: 0, step_s: None, chunk_s: HOUR_S, keep_s: DAY_S };
const FIVE_MINUTES: Tier = Tier { id: 1, step_s: Some(300), chunk_s: DAY_S, keep_s: 30 * DAY_S };
const HOURS: Tier = Tier { id: 2, step_s: Some(HOUR_S), chunk_s: 30 * DAY_S, keep_s: 365 * DAY_S };
const TIERS: [Tier; 3] = [RAW, FIVE_MINUTES, HOURS];

#[cfg(test)]
mod tests;

//! Players and presence over time, per server and per game: raw counts for a day, five-minute means for a month, hourly
//! means for a year.
//!
//! Each count of all servers goes into `samples`, 256 series per row. At the end of an hour it is moved to the three tiers
//! of `history`, where one row holds an hour, a day or thirty days of one series. So a count writes few pages and a plot
//! reads few rows. Times are arguments, so that tests can run through a year.

mod read;
mod record;
mod series;

pub use read::{History, Range, Reader};
pub use record::Recorder;
pub use series::Point;

/// The `[history]` section of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Seconds between two counts.
    pub every_s: u64,
    /// Size limit of the file; the oldest history is deleted first. 0: no history.
    pub bytes_max: u64,
}

/// In place of a game's name: the series of all games together.
pub const ALL_GAMES: &str = "";

const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 24 * HOUR_S;

/// A resolution, the time that one row covers, and how long it is kept.
#[derive(Clone, Copy, Debug)]
struct Tier {
    id: u8,
    /// None: raw counts.
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

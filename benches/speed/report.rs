//! Results: printed for people and, if `RALLYPOINT_RESULTS` names a file, kept there as rows, from which
//! docs/performance.md is made.
//!
//! ```ignore
//! Report::new("a list of 16 kB, 32 connections", "requests/s", &ours).beside("nginx", &theirs).at_least(1.0);
//! Report::new("a search", "ms", &times).servers(100_000).at_most(5.0);
//! Report::new("new events", "bytes/minute", &[bytes]).untargeted();
//! ```
//!
//! The last call prints and keeps the result. With a baseline, the target is for the ratio, ours / the baseline's, which is
//! computed round by round: both sides take turns, so that a disturbance of the machine affects both, or only some rounds.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::measure::median;

/// The file of rows: tab-separated, one result each, with a header.
pub const FILE_VARIABLE: &str = "RALLYPOINT_RESULTS";
const COLUMNS: &str = "part\tname\tunit\tservers\trounds\tmedian\tleast\tmost\tbaseline\tbaseline_median\tratio\tratio_least\tratio_most\ttarget\treached";

/// The rows of the part that runs.
static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// A result that is being described.
#[must_use = "a result is reported by its target: at_least, at_most or untargeted"]
pub struct Report<'a> {
    name: &'a str,
    unit: &'a str,
    rounds: &'a [f64],
    servers: Option<u32>,
    baseline: Option<(&'a str, &'a [f64])>,
}

impl<'a> Report<'a> {
    /// `name` is unique in its part; `rounds` has a value for each round.
    pub fn new(name: &'a str, unit: &'a str, rounds: &'a [f64]) -> Report<'a> {
        Report { name, unit, rounds, servers: None, baseline: None }
    }

    /// How many servers were listed, if that is what the result depends on. Results of one name with different numbers are a
    /// line in a plot.
    pub fn servers(mut self, servers: u32) -> Report<'a> {
        self.servers = Some(servers);
        self
    }

    /// What the same took another program, in the same unit, with a value for each round of ours.
    pub fn beside(mut self, name: &'a str, rounds: &'a [f64]) -> Report<'a> {
        assert_eq!(rounds.len(), self.rounds.len(), "{}: {name} had other rounds", self.name);
        self.baseline = Some((name, rounds));
        self
    }

    /// Returns whether the target was reached, as the others do.
    pub fn at_least(self, target: f64) -> bool {
        self.finish(&format!("at least {target}"), |value| value >= target)
    }

    pub fn at_most(self, target: f64) -> bool {
        self.finish(&format!("at most {target}"), |value| value <= target)
    }

    pub fn untargeted(self) {
        self.finish("", |_| true);
    }

    /// A target that is no number.
    pub fn target(self, target: &str, is_reached: bool) -> bool {
        self.finish(target, |_| is_reached)
    }

    fn finish(self, target: &str, is_reached: impl FnOnce(f64) -> bool) -> bool {
        let ours = Spread::of(self.rounds);
        let baseline = self.baseline.map(|(name, theirs)| {
            let ratios: Vec<f64> = self.rounds.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
            (name.to_string(), Spread::of(theirs).median, Spread::of(&ratios))
        });
        let is_reached = is_reached(baseline.as_ref().map_or(ours.median, |(_, _, ratio)| ratio.median));
        let row = Row {
            part: String::new(),
            name: self.name.to_string(),
            unit: self.unit.to_string(),
            servers: self.servers,
            rounds: self.rounds.len(),
            ours,
            baseline,
            target: (!target.is_empty()).then(|| (target.to_string(), is_reached)),
        };
        println!("{row}");
        ROWS.lock().unwrap().push(row);
        is_reached
    }
}

/// A single value, with a target in words.
pub fn verdict(what: &str, value: f64, good: bool, target: &str) {
    Report::new(what.trim(), "", &[value]).target(target, good);
}

/// Several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    fn of(rounds: &[f64]) -> Spread {
        assert!(!rounds.is_empty(), "a result without a round");
        let extreme = |choose: fn(f64, f64) -> f64| rounds.iter().copied().reduce(choose).unwrap();
        Spread { median: median(rounds.to_vec()), least: extreme(f64::min), most: extreme(f64::max) }
    }
}

/// A result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub part: String,
    pub name: String,
    pub unit: String,
    pub servers: Option<u32>,
    pub rounds: usize,
    pub ours: Spread,
    /// Its name, its median, and the ratios of ours to it.
    pub baseline: Option<(String, f64, Spread)>,
    /// In words, and whether it was reached.
    pub target: Option<(String, bool)>,
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        write!(f, "{}", self.name)?;
        if let Some(servers) = self.servers {
            write!(f, ", {} listed", thousands(servers.into()))?;
        }
        write!(f, ": {}{unit}", number(self.ours.median))?;
        if self.rounds > 1 {
            write!(f, " ({} to {})", number(self.ours.least), number(self.ours.most))?;
        }
        if let Some((name, median, ratio)) = &self.baseline {
            let (middle, least, most) = (number(ratio.median), number(ratio.least), number(ratio.most));
            write!(f, "; {name} {}{unit}; ratio {middle} ({least} to {most})", number(*median))?;
        }
        match &self.target {
            Some((target, true)) => write!(f, " (target: {target}; reached)"),
            Some((target, false)) => write!(f, " (target: {target}; MISSED)"),
            None => Ok(()),
        }
    }
}

/// Three significant digits, or all before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => thousands(value.round() as i64),
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ if value == value.trunc() => format!("{value:.0}"),
        small if small >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

pub fn thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Ends a part: its rows replace those that the file has of it. A part that panics leaves them as they are.
pub fn end(part: &str) {
    let rows = std::mem::take(&mut *ROWS.lock().unwrap());
    let Some(path) = std::env::var_os(FILE_VARIABLE).map(PathBuf::from) else { return };
    let mut all = read(&path);
    let at = all.iter().position(|row| row.part == part).unwrap_or(all.len());
    all.retain(|row| row.part != part);
    all.splice(at..at, rows.into_iter().map(|row| Row { part: part.to_string(), ..row }));
    write(&path, &all);
}

/// The rows of a file; none if there is no such file.
pub fn read(path: &Path) -> Vec<Row> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let row = |(number, line): (usize, &str)| {
        from_line(line).unwrap_or_else(|| panic!("{}:{}: not a result: {line}", path.display(), number + 1))
    };
    text.lines().enumerate().skip(1).map(row).collect()
}

fn write(path: &Path, rows: &[Row]) {
    let lines: String = rows.iter().map(|row| to_line(row) + "\n").collect();
    std::fs::write(path, format!("{COLUMNS}\n{lines}")).unwrap();
}

fn to_line(row: &Row) -> String {
    let spread = |spread: &Spread| [spread.median, spread.least, spread.most].map(|value| value.to_string()).join("\t");
    let servers = row.servers.map(|servers| servers.to_string()).unwrap_or_default();
    let baseline = row
        .baseline
        .as_ref()
        .map_or("\t\t\t\t".to_string(), |(name, median, ratio)| format!("{name}\t{median}\t{}", spread(ratio)));
    let target = row.target.as_ref().map_or("\t".to_string(), |(target, is_reached)| format!("{target}\t{is_reached}"));
    let (part, name, unit, rounds, ours) = (&row.part, &row.name, &row.unit, row.rounds, spread(&row.ours));
    format!("{part}\t{name}\t{unit}\t{servers}\t{rounds}\t{ours}\t{baseline}\t{target}")
}

fn from_line(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.split('\t').collect();
    let cells: [&str; 15] = cells.try_into().ok()?;
    let [
        part,
        name,
        unit,
        servers,
        rounds,
        median,
        least,
        most,
        baseline,
        theirs,
        ratio,
        ratio_least,
        ratio_most,
        target,
        reached,
    ] = cells;
    let spread = |median: &str, least: &str, most: &str| {
        Some(Spread { median: median.parse().ok()?, least: least.parse().ok()?, most: most.parse().ok()? })
    };
    let baseline = match baseline {
        "" => None,
        name => Some((name.to_string(), theirs.parse().ok()?, spread(ratio, ratio_least, ratio_most)?)),
    };
    Some(Row {
        part: part.to_string(),
        name: name.to_string(),
        unit: unit.to_string(),
        servers: if servers.is_empty() { None } else { Some(servers.parse().ok()?) },
        rounds: rounds.parse().ok()?,
        ours: spread(median, least, most)?,
        baseline,
        target: if target.is_empty() { None } else { Some((target.to_string(), reached.parse().ok()?)) },
    })
}

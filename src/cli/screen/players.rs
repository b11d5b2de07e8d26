//! The players of the selected server over time: the last day from a Rallypoint's history, otherwise what was seen since the start.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::text::width;
use crate::client::Found;
use crate::client::history::History;
use crate::client::watch::Masters;
use crate::model::Address;

/// Counts that are remembered of each server, and servers that are counted.
const SEEN_MAX: usize = 120;
const SERVERS_MAX: usize = 10_000;
/// Histories that are remembered.
const HISTORIES_MAX: usize = 64;
/// A history is fetched once a server has been selected for this long, so that moving through the list fetches none.
const REST: Duration = Duration::from_millis(250);
/// And again after this time.
const FRESH: Duration = Duration::from_secs(60);

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A longer line says no more.
const CELLS_MAX: usize = 96;

type Key = (String, Address);

/// A history to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The number of the master.
    pub master: usize,
    pub game: String,
    pub address: Address,
}

pub struct Players {
    with_history: Masters,
    seen: HashMap<Key, VecDeque<Option<u16>>>,
    /// When each history arrived; None: the master has none.
    histories: HashMap<Key, (Instant, Option<History>)>,
    /// Since when it is selected, and whether a master that lists it has histories.
    selected: Option<(Key, Instant, bool)>,
    is_fetching: bool,
}

fn key(server: &Found) -> Key {
    (server.game.name().to_string(), server.address)
}

impl Players {
    pub fn new(with_history: Masters) -> Players {
        Players { with_history, seen: HashMap::new(), histories: HashMap::new(), selected: None, is_fetching: false }
    }

    /// Counts all servers once. Those that are gone are forgotten.
    pub fn count(&mut self, servers: &[Found]) {
        let mut before = std::mem::take(&mut self.seen);
        for server in servers.iter().take(SERVERS_MAX) {
            let key = key(server);
            let mut counts = before.remove(&key).unwrap_or_default();
            if counts.len() >= SEEN_MAX {
                counts.pop_front();
            }
            counts.push_back(server.facts.players_current);
            self.seen.insert(key, counts);
        }
    }

    /// The history to fetch for the selected server, if it is time.
    pub fn wanted(&mut self, server: &Found, now: Instant) -> Option<Wanted> {
        let key = key(server);
        let since = match &self.selected {
            Some((known, since, _)) if *known == key => *since,
            _ => now,
        };
        let is_fresh = self.histories.get(&key).is_some_and(|(at, _)| now.saturating_duration_since(*at) < FRESH);
        let master = server.masters.iter().find(|number| self.with_history.contains(*number));
        let wanted = master.map(|master| Wanted { master, game: key.0.clone(), address: key.1 });
        self.selected = Some((key, since, master.is_some()));
        let is_due = !self.is_fetching && !is_fresh && now.saturating_duration_since(since) >= REST;
        let wanted = wanted.filter(|_| is_due)?;
        self.is_fetching = true;
        Some(wanted)
    }

    /// When [`Players::wanted`] should be called again, if not later anyway.
    pub fn due(&self) -> Option<Instant> {
        let (key, since, has_history) = self.selected.as_ref()?;
        (!self.is_fetching && *has_history && !self.histories.contains_key(key)).then(|| *since + REST)
    }

    /// No server is shown.
    pub fn select_none(&mut self) {
        self.selected = None;
    }

    pub fn arrived(&mut self, wanted: &Wanted, history: Option<History>, now: Instant) {
        self.is_fetching = false;
        if self.histories.len() >= HISTORIES_MAX {
            self.histories.clear();
        }
        self.histories.insert((wanted.game.clone(), wanted.address), (now, history));
    }

    /// The line for a server.
    pub fn line(&self, server: &Found, cells: usize) -> String {
        let key = key(server);
        let history = self.histories.get(&key).and_then(|(_, history)| history.as_ref());
        let (label, most, bars) = match history.filter(|history| !history.points.is_empty()) {
            Some(history) => {
                let label = "Players in 24 h ";
                let most = most(history.points.iter().map(|(_, players)| *players));
                (label, most, bars(&in_steps(history, room(label, most, cells)), most))
            }
            None => {
                let label = "Players since the start ";
                let counts = self.seen.get(&key).into_iter().flatten();
                let known: Vec<Option<f32>> = counts.map(|count| count.map(f32::from)).collect();
                let most = most(known.iter().flatten().copied());
                let from = known.len().saturating_sub(room(label, most, cells));
                (label, most, bars(known.get(from..).unwrap_or_default(), most))
            }
        };
        if bars.trim().is_empty() { String::new() } else { format!("{label}{bars}{}", ending(most)) }
    }
}

fn ending(most: f32) -> String {
    format!(" most {}", most.round())
}

/// How many bars fit.
fn room(label: &str, most: f32, cells: usize) -> usize {
    cells.saturating_sub(width(label) + width(&ending(most))).min(CELLS_MAX)
}

fn most(players: impl Iterator<Item = f32>) -> f32 {
    players.fold(0.0, f32::max)
}

/// The most players in each of so many equal parts of the time.
fn in_steps(history: &History, steps: usize) -> Vec<Option<f32>> {
    let mut parts = vec![None; steps];
    let length = history.to_s.saturating_sub(history.from_s).max(1);
    for (at, players) in &history.points {
        let past = u128::from(at.saturating_sub(history.from_s).min(length - 1));
        let step = past * steps as u128 / u128::from(length);
        if let Some(part) = parts.get_mut(step as usize) {
            *part = Some(part.map_or(*players, |known: f32| known.max(*players)));
        }
    }
    parts
}

/// A bar for each count, blank where nothing is known. Nobody is the lowest bar.
fn bars(counts: &[Option<f32>], most: f32) -> String {
    let highest = (BARS.len() - 1) as f32;
    let bar = |count: &Option<f32>| match count {
        None => ' ',
        Some(count) if most > 0.0 => {
            let level = (count / most * highest).ceil().clamp(0.0, highest) as usize;
            BARS.get(level).copied().unwrap_or(' ')
        }
        Some(_) => BARS.first().copied().unwrap_or(' '),
    };
    counts.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game};
    use proptest::prelude::*;

    fn server(players: Option<u16>) -> Found {
        let facts = Facts { players_current: players, ..Facts::default() };
        let mut found = Found { facts, ..Found::new(Game::Own("netpanzer"), "203.0.113.5:3030".parse().unwrap()) };
        found.masters.insert(1);
        found
    }

    #[test]
    fn what_was_seen() {
        let mut players = Players::new(Masters::default());
        assert_eq!(players.line(&server(None), 80), "");
        for count in [Some(0), Some(4), None, Some(8), Some(1)] {
            players.count(&[server(count)]);
        }
        assert_eq!(players.line(&server(None), 80), "Players since the start ▁▅ █▂ most 8");
        assert_eq!(players.line(&server(None), 34), "Players since the start  █▂ most 8", "the newest");
        for _ in 0..SEEN_MAX {
            players.count(&[server(Some(0))]);
        }
        assert_eq!(players.line(&server(None), 35), "Players since the start ▁▁▁▁ most 0");
        players.count(&[]);
        assert_eq!(players.line(&server(None), 80), "", "it is gone");
    }

    #[test]
    fn the_last_day() {
        let mut with_history = Masters::default();
        with_history.insert(1);
        let mut players = Players::new(with_history);
        let start = Instant::now();
        assert_eq!((players.wanted(&server(None), start), players.due()), (None, Some(start + REST)), "not at once");
        let wanted = players.wanted(&server(None), start + REST).unwrap();
        assert_eq!((wanted.master, &*wanted.game), (1, "netpanzer"));
        assert_eq!((players.wanted(&server(None), start + FRESH), players.due()), (None, None), "one at a time");
        let history = History { from_s: 100, to_s: 200, points: vec![(100, 2.0), (149, 8.0), (199, 4.0), (500, 1.0)] };
        players.arrived(&wanted, Some(history), start + REST);
        assert_eq!(players.line(&server(None), 33), "Players in 24 h ▃   █    ▅ most 8");
        assert_eq!(players.wanted(&server(None), start + FRESH), None, "still fresh");
        let later = start + REST + FRESH;
        assert!(players.wanted(&server(None), later).is_some());
        // Another server, of a master without histories.
        players.arrived(&wanted, None, later);
        let other = Found { masters: Masters::default(), ..server(None) };
        assert_eq!(players.wanted(&other, later + FRESH + FRESH), None);
        let other = Found { address: "203.0.113.5:3031".parse().unwrap(), ..other };
        for at in [later, later + REST] {
            assert_eq!((players.wanted(&other, at), players.due()), (None, None), "it will never have a history");
        }
    }

    proptest! {
        #[test]
        fn any_history_fits(points in proptest::collection::vec((any::<u64>(), 0f32..70_000.0), 0..50), from: u64, to: u64, cells in 0usize..200) {
            let mut players = Players::new(Masters::default());
            let wanted = Wanted { master: 0, game: "netpanzer".into(), address: server(None).address };
            players.arrived(&wanted, Some(History { from_s: from, to_s: to, points }), Instant::now());
            let line = players.line(&server(None), cells);
            prop_assert!(line.is_empty() || width(&line) <= cells.max(35));
        }
    }
}

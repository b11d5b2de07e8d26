//! The plots on the page. They are drawn by the first who needs them, from the file, and shared for a while; the page
//! without a script has them in it, and the script asks `/plots` for those of rows that it adds.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use tracing::warn;

use super::filter::Wrong;
use super::reply::{self, Fresh};
use super::{JSON, Site, api, plot};
use crate::model::Address;
use crate::protocols::card;
use crate::registry::view::Rendered;
use crate::store::history::{History, Range, Reader};

/// A plot is drawn anew after this long; one with nothing in it sooner.
const KEPT_MS: u64 = 120_000;
const EMPTY_KEPT_MS: u64 = 3_000;
/// Plots that are kept: a few pages of them, about 2 MiB.
const KEPT_MAX: usize = 2_048;
const GAMES_KEPT_MAX: usize = 256;
/// Servers that are read at once.
const AT_ONCE: usize = 100;
/// After reading, this many times as long nothing is read for pages: history never takes more than its share of a core.
const REST: u32 = 4;
const REST_MAX: Duration = Duration::from_secs(2);
/// After an error, nothing is read for this long.
const REST_AFTER_ERROR: Duration = Duration::from_secs(10);
/// Servers that one request of the script may name, and how long a name may be.
const ASKED_MAX: usize = 100;
const ASKED_BYTES_MAX: usize = 128;

/// The history of one server as a row shows it.
#[derive(Clone, Default, Serialize)]
pub struct Small {
    /// A line of the last day, in SVG; empty where nothing was counted.
    pub day: String,
    /// The last week in words, for the plot that an opened row has.
    pub week: String,
}

/// The history of a whole game, or of all of them.
#[derive(Clone, Default, Serialize)]
pub struct Whole {
    pub title: String,
    /// In SVG; empty where nothing was counted.
    pub plot: String,
    pub words: String,
}

/// Plots as they were drawn lately, and the way to draw others.
pub struct Plots {
    reader: Reader,
    kept: Mutex<Kept>,
    /// Who holds this reads; when the next may.
    turn: Mutex<Instant>,
}

#[derive(Default)]
struct Kept {
    servers: HashMap<(Box<str>, Address), Drawn<Small>>,
    /// By name; "" for all together.
    games: HashMap<Box<str>, Drawn<Whole>>,
}

impl Kept {
    fn server(&self, (game, address): &(&str, Address)) -> Option<&Drawn<Small>> {
        self.servers.get(&(Box::from(*game), *address))
    }
}

struct Drawn<T> {
    until_ms: u64,
    plot: Arc<T>,
}

impl<T> Drawn<T> {
    fn new(plot: T, is_empty: bool, now_ms: u64) -> Drawn<T> {
        let kept_ms = if is_empty { EMPTY_KEPT_MS } else { KEPT_MS };
        Drawn { until_ms: now_ms + kept_ms, plot: Arc::new(plot) }
    }

    /// Old, or from a time that is yet to come: the clock was set back.
    fn is_stale(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms || self.until_ms > now_ms + KEPT_MS
    }
}

/// Whose plots.
pub struct Wanted<'a> {
    /// By game and address.
    pub servers: Vec<(&'a str, Address)>,
    /// The game that is wanted as a whole; "" for all together.
    pub whole: Option<&'a str>,
}

impl Wanted<'_> {
    fn is_nothing(&self) -> bool {
        self.servers.is_empty() && self.whole.is_none()
    }
}

/// What there is of them, in their order.
#[derive(Default)]
pub struct Found {
    pub servers: Vec<Option<Arc<Small>>>,
    pub whole: Option<Arc<Whole>>,
}

/// Whether to wait while somebody else reads, or to take what there is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    Wait,
    None,
}

impl Plots {
    pub fn new(reader: Reader) -> Plots {
        Plots { reader, kept: Mutex::default(), turn: Mutex::new(Instant::now()) }
    }

    /// The plots that are wanted. Where they cannot be drawn now there are older ones, or none.
    pub fn get(&self, wanted: &Wanted, now_ms: u64, patience: Patience) -> Found {
        if !self.missing(wanted, now_ms).is_nothing() {
            self.read(patience, |reader| {
                // Somebody else may have drawn them by the time that it is our turn.
                let missing = self.missing(wanted, now_ms);
                missing.servers.chunks(AT_ONCE).try_for_each(|some| self.draw_servers(reader, some, now_ms))?;
                missing.whole.map_or(Ok(()), |game| self.draw_whole(reader, game, now_ms))
            });
        }
        let kept = self.kept();
        let servers = wanted.servers.iter().map(|server| kept.server(server).map(|drawn| drawn.plot.clone())).collect();
        let whole = wanted.whole.and_then(|game| kept.games.get(game)).map(|drawn| drawn.plot.clone());
        Found { servers, whole }
    }

    fn missing<'a>(&self, wanted: &Wanted<'a>, now_ms: u64) -> Wanted<'a> {
        let kept = self.kept();
        let fresh = |server: &_| kept.server(server).is_some_and(|drawn| !drawn.is_stale(now_ms));
        let fresh_whole = |game: &&str| kept.games.get(*game).is_some_and(|drawn| !drawn.is_stale(now_ms));
        Wanted {
            servers: wanted.servers.iter().filter(|server| !fresh(server)).copied().collect(),
            whole: wanted.whole.filter(|game| !fresh_whole(game)),
        }
    }

    fn draw_servers(&self, reader: &Reader, servers: &[(&str, Address)], now_ms: u64) -> rusqlite::Result<()> {
        let weeks = reader.servers(servers, Range::Week, now_ms)?;
        let drawn: Vec<_> = weeks.iter().map(|week| small(week.as_ref(), now_ms)).collect();
        let mut kept = self.kept();
        if kept.servers.len() + drawn.len() > KEPT_MAX {
            kept.servers.retain(|_, drawn| !drawn.is_stale(now_ms));
        }
        if kept.servers.len() + drawn.len() > KEPT_MAX {
            kept.servers.clear();
        }
        for ((game, address), small) in servers.iter().zip(drawn) {
            let is_empty = small.day.is_empty();
            kept.servers.insert((Box::from(*game), *address), Drawn::new(small, is_empty, now_ms));
        }
        Ok(())
    }

    fn draw_whole(&self, reader: &Reader, game: &str, now_ms: u64) -> rusqlite::Result<()> {
        let (history, title) = match game {
            "" => (reader.all_games(Range::Week, now_ms)?, "all games"),
            game => (reader.game(game, Range::Week, now_ms)?, card(game).map_or(game, |card| card.title)),
        };
        let whole = whole(history.as_ref(), title);
        let is_empty = whole.plot.is_empty();
        let mut kept = self.kept();
        if kept.games.len() >= GAMES_KEPT_MAX {
            kept.games.clear(); // anybody can ask for names that nobody has
        }
        kept.games.insert(game.into(), Drawn::new(whole, is_empty, now_ms));
        Ok(())
    }

    /// Reads, one at a time and not all the time.
    fn read(&self, patience: Patience, read: impl FnOnce(&Reader) -> rusqlite::Result<()>) {
        let turn = match patience {
            Patience::Wait => Some(self.turn.lock().unwrap_or_else(PoisonError::into_inner)),
            Patience::None => self.turn.try_lock().ok().filter(|next| Instant::now() >= **next),
        };
        let Some(mut next) = turn else { return };
        let started = Instant::now();
        // A page is made where others are served; they must not wait for a disk.
        let rest = match tokio::task::block_in_place(|| read(&self.reader)) {
            Ok(()) => (started.elapsed() * REST).min(REST_MAX),
            Err(error) => {
                warn!("history cannot be read for the page: {error}");
                REST_AFTER_ERROR
            }
        };
        *next = Instant::now() + rest;
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn small(week: Option<&History>, now_ms: u64) -> Small {
    let Some(week) = week.filter(|week| !week.points.is_empty()) else { return Small::default() };
    let day = Range::Day.history(now_ms, week.points.iter().copied());
    let title = format!("Players {}", plot::in_the_last(Range::Week));
    let line = if day.points.is_empty() { String::new() } else { plot::sparkline(&day) };
    Small { day: line, week: format!("{title}: {}", plot::words(week)) }
}

fn whole(history: Option<&History>, of: &str) -> Whole {
    let title = format!("Players of {of} {}", plot::in_the_last(Range::Week));
    match history.filter(|history| !history.points.is_empty()) {
        Some(history) => Whole { plot: plot::plot(history, &title), words: plot::words(history), title },
        None => Whole { title, ..Whole::default() },
    }
}

/// What the script gets: what it asked for, by the names that it used.
#[derive(Serialize)]
struct Fragments<'a> {
    whole: Option<&'a Whole>,
    servers: BTreeMap<&'a str, &'a Small>,
}

/// `/plots?game=iceball&server=iceball/203.0.113.5:20737&server=…`: parts of the page, not of the API.
pub async fn fragments(State(site): State<Arc<Site>>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let asked = match asked(query.as_deref().unwrap_or_default()) {
        Ok(asked) => asked,
        Err(wrong) => return api::bad_request(&wrong),
    };
    let Some(access) = &site.history else { return reply::rendered(&Rendered::new("{}"), JSON, &headers, Fresh::Ask) };
    let (plots, now_ms) = (access.plots.clone(), site.hub.clock.now().unix_ms);
    let body = access.read(move |_| {
        let pairs = asked.servers.iter().map(|(_, game, address)| (game.as_str(), *address)).collect();
        let wanted = Wanted { servers: pairs, whole: asked.game.as_deref() };
        let found = plots.get(&wanted, now_ms, Patience::Wait);
        let names = asked.servers.iter().map(|(name, _, _)| name.as_str());
        let servers = names.zip(&found.servers).filter_map(|(name, small)| Some((name, &**small.as_ref()?))).collect();
        let whole = found.whole.as_deref();
        Ok(serde_json::to_vec(&Fragments { whole, servers }).unwrap_or_default())
    });
    reply::rendered(&Rendered::new(body.await.unwrap_or_else(|| b"{}".to_vec())), JSON, &headers, Fresh::Seconds(30))
}

struct Asked {
    /// "" for all games together; none where the plot of games is not wanted.
    game: Option<String>,
    /// Each as it was written, and what that means.
    servers: Vec<(String, String, Address)>,
}

fn asked(query: &str) -> Result<Asked, Wrong> {
    let mut asked = Asked { game: None, servers: Vec::new() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if value.len() > ASKED_BYTES_MAX {
            return Err(Wrong::parameter(&name, "is too long"));
        }
        match &*name {
            "game" => asked.game = Some(value.into_owned()),
            "server" if asked.servers.len() >= ASKED_MAX => {
                return Err(Wrong::parameter("server", format!("may be there {ASKED_MAX} times")));
            }
            "server" => {
                let parts = value.rsplit_once('/').and_then(|(game, address)| Some((game, address.parse().ok()?)));
                let (game, address) =
                    parts.ok_or_else(|| Wrong::parameter("server", "must be a game, a slash and an address"))?;
                asked.servers.push((value.to_string(), game.to_string(), address));
            }
            _ => return Err(Wrong::parameter(&name, "is unknown here; `game` and `server` are known")),
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::history::Point;

    const NOW_MS: u64 = 1_760_000_000_000;

    fn week(points: impl IntoIterator<Item = (u64, u32)>) -> History {
        let now_s = NOW_MS / 1_000;
        let point = |(ago_s, players): (u64, u32)| Point {
            at_s: now_s - ago_s,
            players_x10: Some(players * 10),
            count_x100: 100,
        };
        Range::Week.history(NOW_MS, points.into_iter().map(point))
    }

    #[test]
    fn a_row_has_a_day_as_a_line_and_a_week_in_words() {
        let drawn = small(Some(&week([(3 * 86_400, 9), (3_600, 2), (300, 4)])), NOW_MS);
        assert!(drawn.day.contains("between 2 and 4, 3 on average, 4 last."), "{}", drawn.day);
        assert_eq!(drawn.week, "Players in the last 7 days: between 2 and 9, 5 on average, 4 last.");
        let gone = small(Some(&week([(3 * 86_400, 9)])), NOW_MS);
        assert_eq!((gone.day.as_str(), gone.week.contains("between 9 and 9")), ("", true));
        assert!(small(None, NOW_MS).week.is_empty());
        let all = whole(Some(&week([(300, 4)])), "all games");
        assert_eq!(all.title, "Players of all games in the last 7 days");
        assert!(all.plot.contains("<svg") && all.words.contains("4 last"));
        assert!(whole(None, "x").plot.is_empty());
    }

    #[test]
    fn plots_get_old_and_are_not_from_the_future() {
        let drawn = Drawn::new((), false, NOW_MS);
        assert!(!drawn.is_stale(NOW_MS) && !drawn.is_stale(NOW_MS + KEPT_MS - 1));
        assert!(drawn.is_stale(NOW_MS + KEPT_MS) && drawn.is_stale(NOW_MS - 1));
        assert!(Drawn::new((), true, NOW_MS).is_stale(NOW_MS + EMPTY_KEPT_MS));
    }

    #[test]
    fn a_file_that_cannot_be_read_leaves_the_page_without_plots() {
        let plots = Plots::new(Reader::new("/nonexistent/rallypoint.db".into()));
        let address = Address::new([192, 0, 2, 1].into(), 5).unwrap();
        let wanted = Wanted { servers: vec![("iceball", address)], whole: Some("") };
        let found = plots.get(&wanted, NOW_MS, Patience::None);
        assert!(found.servers[0].is_none() && found.whole.is_none());
        assert!(*plots.turn.lock().unwrap() > Instant::now(), "and it is not tried again at once");
    }

    #[test]
    fn what_the_script_asks_for_is_bounded() {
        let asked_for = asked("game=&server=a/b/192.0.2.1:5&server=x/%5B2001:db8::1%5D:7").unwrap();
        assert_eq!(asked_for.game.as_deref(), Some(""));
        let servers: Vec<_> =
            asked_for.servers.iter().map(|(_, game, address)| (game.as_str(), address.port())).collect();
        assert_eq!(servers, [("a/b", 5), ("x", 7)]);
        for (query, said) in [
            ("server=192.0.2.1:5".to_string(), "a slash"),
            ("server=a/b".into(), "a slash"),
            (format!("game={}", "x".repeat(200)), "too long"),
            ("sever=a".into(), "unknown"),
            ("server=a/192.0.2.1:5&".repeat(101), "100 times"),
        ] {
            let wrong = asked(&query).err().unwrap();
            assert!(wrong.error.contains(said), "{query}: {}", wrong.error);
        }
    }
}

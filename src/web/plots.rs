//! The plots on the page. They are drawn on demand from the file, on blocking threads, and cached for a while. The page
//! contains them even without a script; the script requests those of new rows from `/plots`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use axum::extract::{Extension, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use tracing::warn;
use url::form_urlencoded;

use super::filter::Wrong;
use super::history::{Access, Unread};
use super::plot::Look;
use super::reply::{self, Fresh};
use super::{JSON, Peer, Site, api, plot};
use crate::model::{Address, Server};
use crate::protocols::card;
use crate::registry::view::Rendered;
use crate::store::history::{ALL_GAMES, History, Range, Reader};

/// A plot is drawn again after this long; an empty one sooner.
pub const KEPT: Duration = Duration::from_secs(120);
const EMPTY_KEPT: Duration = Duration::from_secs(3);
/// The most plots in the cache: a few pages of them, about 2 MiB.
const KEPT_MAX: usize = 2_048;
const GAMES_KEPT_MAX: usize = 256;
/// Servers that one read covers.
const AT_ONCE: usize = 100;
/// After a read, nothing is read for this many times as long, so that plots never take more than their share of a core.
const REST: u32 = 4;
const REST_MAX: Duration = Duration::from_secs(2);
/// After an error, nothing is read for this long.
const REST_AFTER_ERROR: Duration = Duration::from_secs(10);
/// How often, and at what interval, a request of the script tries to read.
const TRIES: usize = 20;
const TRY_AFTER: Duration = Duration::from_millis(100);
/// How long a browser may keep a large plot.
const LARGE_FRESH: Fresh = Fresh::Seconds(30);
/// The most servers in one request of the script.
const ASKED_MAX: usize = 100;

/// The history of one server as a row shows it.
#[derive(Clone, Default, Serialize)]
pub struct Small {
    /// A line of the last day, in SVG; empty where nothing was counted.
    pub day: String,
    /// The last week in words, for the plot in an opened row.
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

/// A server whose plots are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    pub game: Box<str>,
    pub address: Address,
    /// How many players it has room for.
    pub size: Option<u16>,
}

impl Whose {
    pub fn of(server: &Server) -> Whose {
        Whose { game: server.game.name().into(), address: server.address, size: server.players_max }
    }

    fn key(&self) -> (Box<str>, Address) {
        (self.game.clone(), self.address)
    }
}

/// Whose plots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub servers: Vec<Whose>,
    /// The game that is wanted as a whole, or [`ALL_GAMES`].
    pub whole: Option<Box<str>>,
}

impl Wanted {
    pub fn is_nothing(&self) -> bool {
        self.servers.is_empty() && self.whole.is_none()
    }
}

/// The plots in the cache, in order, and those that have to be drawn.
#[derive(Default)]
pub struct Found {
    pub servers: Vec<Option<Arc<Small>>>,
    pub whole: Option<Arc<Whole>>,
    pub missing: Wanted,
}

/// The cache of plots, and how others are drawn.
pub struct Plots {
    reader: Reader,
    kept: Mutex<Kept>,
    /// Held while drawing; the time of the next read.
    turn: Mutex<Instant>,
    /// How often something was drawn.
    drawn: AtomicU64,
}

#[derive(Default)]
struct Kept {
    servers: HashMap<(Box<str>, Address), Drawn<Small>>,
    games: HashMap<Box<str>, Drawn<Whole>>,
}

struct Drawn<T> {
    until: Instant,
    plot: Arc<T>,
}

impl<T> Drawn<T> {
    fn new(plot: T, is_empty: bool) -> Drawn<T> {
        Drawn { until: Instant::now() + if is_empty { EMPTY_KEPT } else { KEPT }, plot: Arc::new(plot) }
    }
}

impl Plots {
    pub fn new(reader: Reader) -> Plots {
        Plots { reader, kept: Mutex::default(), turn: Mutex::new(Instant::now()), drawn: AtomicU64::new(0) }
    }

    /// How often something was drawn: when this has changed, missing plots may be there.
    pub fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }

    /// What is in the cache. Missing and old plots have to be drawn.
    pub fn find(&self, wanted: &Wanted) -> Found {
        let (kept, now) = (self.kept(), Instant::now());
        let mut found = Found::default();
        for server in &wanted.servers {
            let drawn = kept.servers.get(&server.key());
            if drawn.is_none_or(|drawn| drawn.until <= now) {
                found.missing.servers.push(server.clone());
            }
            found.servers.push(drawn.map(|drawn| drawn.plot.clone()));
        }
        if let Some(game) = &wanted.whole {
            let drawn = kept.games.get(game);
            if drawn.is_none_or(|drawn| drawn.until <= now) {
                found.missing.whole = Some(game.clone());
            }
            found.whole = drawn.map(|drawn| drawn.plot.clone());
        }
        found
    }

    /// Draws what is missing from the file; blocks. False, without drawing, while another thread draws or right after one did.
    pub fn draw(&self, missing: &Wanted, now_ms: u64) -> bool {
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(mut next) = Some(turn).filter(|next| Instant::now() >= **next) else { return false };
        let started = Instant::now();
        let rest = match self.try_draw(missing, now_ms) {
            Ok(()) => (started.elapsed() * REST).min(REST_MAX),
            Err(error) => {
                warn!("history cannot be read for the page: {error}");
                REST_AFTER_ERROR
            }
        };
        *next = Instant::now() + rest;
        self.drawn.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn try_draw(&self, missing: &Wanted, now_ms: u64) -> rusqlite::Result<()> {
        self.kept().make_room(missing.servers.len());
        for servers in missing.servers.chunks(AT_ONCE) {
            let places: Vec<_> = servers.iter().map(|whose| (&*whose.game, whose.address)).collect();
            let weeks = self.reader.servers(&places, Range::Week, now_ms)?;
            let drawn = weeks.iter().zip(servers).map(|(week, whose)| small(week.as_ref(), whose.size, now_ms));
            let drawn: Vec<_> = drawn.map(|small| (small.day.is_empty(), small)).collect();
            let mut kept = self.kept();
            for (server, (is_empty, small)) in servers.iter().zip(drawn) {
                kept.servers.insert(server.key(), Drawn::new(small, is_empty));
            }
        }
        if let Some(game) = &missing.whole {
            let whole = whole(self.reader.game(game, Range::Week, now_ms)?.as_ref(), title_of(game));
            self.kept().games.insert(game.clone(), Drawn::new(whole.clone(), whole.plot.is_empty()));
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Removes old plots, and the older half where that is not enough.
    fn make_room(&mut self, more: usize) {
        let now = Instant::now();
        if self.servers.len() + more > KEPT_MAX {
            self.servers.retain(|_, drawn| drawn.until > now);
        }
        if self.servers.len() + more > KEPT_MAX {
            let mut times: Vec<Instant> = self.servers.values().map(|drawn| drawn.until).collect();
            times.sort_unstable();
            let place = times.len().saturating_sub(KEPT_MAX.saturating_sub(more) / 2);
            let oldest_kept = times.get(place).copied().unwrap_or(now);
            self.servers.retain(|_, drawn| drawn.until > oldest_kept);
        }
        if self.games.len() >= GAMES_KEPT_MAX {
            self.games.clear(); // anybody can request names that do not exist
        }
    }
}

fn small(week: Option<&History>, size: Option<u16>, now_ms: u64) -> Small {
    let Some(week) = week.filter(|week| plot::is_enough(week)) else { return Small::default() };
    let day = Range::Day.history(now_ms, week.points.iter().copied());
    let title = format!("Players {}", plot::in_the_last(Range::Week));
    let line = if plot::is_enough(&day) { plot::sparkline(&day, size) } else { String::new() };
    Small { day: line, week: format!("{title}: {}", plot::words(week)) }
}

fn whole(history: Option<&History>, of: &str) -> Whole {
    let title = format!("Players of {of} {}", plot::in_the_last(Range::Week));
    match history.filter(|history| plot::is_enough(history)) {
        Some(history) => {
            let look = Look { title: &title, ..Look::default() };
            Whole { plot: plot::plot(history, &look), words: plot::words(history), title }
        }
        None => Whole { title, ..Whole::default() },
    }
}

/// What a game is called, or all of them.
pub fn title_of(game: &str) -> &str {
    if game == ALL_GAMES { "all games" } else { card(game).map_or(game, |card| card.title) }
}

/// The answer to the script, by the names in its request.
#[derive(Serialize)]
struct Fragments<'a> {
    whole: Option<&'a Whole>,
    servers: BTreeMap<&'a str, &'a Small>,
}

/// `/plots?game=iceball&server=iceball/203.0.113.5:20737&server=…`, or a large plot in the reader's time zone,
/// `/plots?of=iceball/203.0.113.5:20737&range=7d&zone=120`: parts of the page, not of the API.
pub async fn fragments(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let asked = match Asked::parse(query.as_deref().unwrap_or_default()) {
        Ok(asked) => asked,
        Err(wrong) => return api::bad_request(&wrong),
    };
    let Some(access) = &site.history else { return reply::rendered(&Rendered::new("{}"), JSON, &headers, Fresh::Ask) };
    if let Some(large) = asked.large {
        return match large.draw(&site, access, peer).await {
            Ok(chart) => reply::rendered(
                &Rendered::new(serde_json::to_vec(&chart).unwrap_or_default()),
                JSON,
                &headers,
                LARGE_FRESH,
            ),
            Err(unread) => unread.response(),
        };
    }
    // Only listed servers: a request cannot make us search for others.
    let servers: Vec<(String, Whose)> = asked
        .servers
        .into_iter()
        .filter_map(|(name, game, address)| {
            let listed = site.hub.listed(address).filter(|server| server.game.name() == &*game)?;
            Some((name, Whose::of(&listed)))
        })
        .collect();
    let wanted = Wanted { servers: servers.iter().map(|(_, whose)| whose.clone()).collect(), whole: asked.game };
    let mut found = access.plots.find(&wanted);
    for _ in 0..TRIES {
        if found.missing.is_nothing() || draw(access, peer, found.missing, site.hub.clock.now().unix_ms).await {
            break;
        }
        tokio::time::sleep(TRY_AFTER).await;
        found = access.plots.find(&wanted);
    }
    let found = access.plots.find(&wanted);
    let names = servers.iter().map(|(name, _)| name.as_str());
    let servers = names.zip(&found.servers).filter_map(|(name, small)| Some((name, &**small.as_ref()?))).collect();
    let body = serde_json::to_vec(&Fragments { whole: found.whole.as_deref(), servers }).unwrap_or_default();
    reply::rendered(&Rendered::new(body), JSON, &headers, Fresh::Ask)
}

/// A large plot that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Large {
    pub game: Box<str>,
    /// None: the whole game.
    pub address: Option<Address>,
    pub range: Range,
    /// Minutes east of UTC.
    pub zone: i32,
    /// Whether it carries its values, for the script.
    pub values: bool,
}

/// A large plot and what it says; without data, no plot.
#[derive(Default, Serialize)]
pub struct Chart {
    pub plot: String,
    pub words: String,
    /// The last count in the range, in seconds since 1970; 0 where there is none.
    #[serde(skip)]
    pub last_s: u64,
}

impl Large {
    pub async fn draw(self, site: &Site, access: &Access, peer: Peer) -> Result<Chart, Unread> {
        let listed = self.address.and_then(|address| site.hub.listed(address));
        let size = listed.filter(|server| server.game.name() == &*self.game).and_then(|server| server.players_max);
        let now_ms = site.hub.clock.now().unix_ms;
        access.read(peer, move |reader| self.read(reader, size, now_ms)).await
    }

    fn read(&self, reader: &Reader, size: Option<u16>, now_ms: u64) -> rusqlite::Result<Chart> {
        let history = match self.address {
            Some(address) => reader.server(&self.game, address, self.range, now_ms)?,
            None => reader.game(&self.game, self.range, now_ms)?,
        };
        let Some(history) = history else { return Ok(Chart::default()) };
        let last_s = history.points.last().map_or(0, |point| point.at_s);
        if !plot::is_enough(&history) {
            return Ok(Chart { last_s, ..Chart::default() });
        }
        let whose = self.address.map_or_else(|| title_of(&self.game).to_string(), |address| address.to_string());
        let title = format!("Players of {whose} {}", plot::in_the_last(self.range));
        let look = Look { title: &title, size, zone: self.zone, values: self.values };
        Ok(Chart { plot: plot::plot(&history, &look), words: format!("{title}: {}", plot::words(&history)), last_s })
    }
}

/// Draws on a blocking thread; whether it was done.
pub async fn draw(access: &Access, peer: Peer, missing: Wanted, now_ms: u64) -> bool {
    let plots = access.plots.clone();
    access.read(peer, move |_| Ok(plots.draw(&missing, now_ms))).await == Ok(true)
}

struct Asked {
    large: Option<Large>,
    /// None where the plot of games is not wanted.
    game: Option<Box<str>>,
    /// Each as written in the request, and its meaning.
    servers: Vec<(String, Box<str>, Address)>,
}

impl Asked {
    /// An invalid server is ignored, so that the others get theirs.
    fn parse(query: &str) -> Result<Asked, Wrong> {
        let mut asked = Asked { large: None, game: None, servers: Vec::new() };
        let (mut of, mut range, mut zone) = (None, Range::Week, 0);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "of" => of = Some(value.into_owned()),
                "range" => range = value.parse().map_err(|error: String| Wrong::parameter("range", error))?,
                "zone" => zone = zone_of(&value)?,
                "game" => asked.game = Some(value.into()),
                "server" if asked.servers.len() >= ASKED_MAX => {
                    return Err(Wrong::parameter("server", format!("may be given at most {ASKED_MAX} times")));
                }
                "server" => {
                    let server = server_of(&value).map(|(game, address)| (value.to_string(), Box::from(game), address));
                    asked.servers.extend(server);
                }
                _ => {
                    return Err(Wrong::parameter(
                        &name,
                        "is unknown here; `game`, `server`, `of`, `range` and `zone` are known",
                    ));
                }
            }
        }
        asked.large = of.map(|of| match server_of(&of) {
            Some((game, address)) => Large { game: game.into(), address: Some(address), range, zone, values: true },
            None => Large { game: of.into(), address: None, range, zone, values: true },
        });
        Ok(asked)
    }
}

/// The game and the address of a server, as in `iceball/203.0.113.5:20737`.
fn server_of(text: &str) -> Option<(&str, Address)> {
    let (game, address) = text.rsplit_once('/')?;
    Some((game, address.parse().ok()?))
}

fn zone_of(text: &str) -> Result<i32, Wrong> {
    let zone = text.parse().ok().filter(|zone: &i32| zone.abs() <= plot::ZONE_MAX);
    zone.ok_or_else(|| Wrong::parameter("zone", "must be the minutes east of UTC, -840 to 840"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::history::Point;

    const NOW_MS: u64 = 1_760_000_000_000;

    fn week(points: impl IntoIterator<Item = (u64, u32)>) -> History {
        let now_s = NOW_MS / 1_000;
        let point = |(ago_s, players): (u64, u32)| Point::new(now_s - ago_s, Some(players * 10), 100);
        Range::Week.history(NOW_MS, points.into_iter().map(point))
    }

    #[test]
    fn a_row_has_a_day_as_a_line_and_a_week_in_words() {
        let drawn = small(Some(&week([(3 * 86_400, 9), (4_000, 2), (300, 4)])), Some(8), NOW_MS);
        assert!(drawn.day.contains("between 2 and 4, 3 on average, 4 last."), "{}", drawn.day);
        assert_eq!(drawn.week, "Players in the last 7 days: between 2 and 9, 5 on average, 4 last.");
        let gone = small(Some(&week([(4 * 86_400, 9), (3 * 86_400, 9)])), None, NOW_MS);
        assert_eq!((gone.day.as_str(), gone.week.as_str()), ("", "Players in the last 7 days: always 9."));
        assert!(small(None, None, NOW_MS).week.is_empty());
        let new = small(Some(&week([(900, 3), (300, 4)])), None, NOW_MS);
        assert!(new.day.is_empty() && new.week.is_empty(), "less than an hour is no history");
        let all = whole(Some(&week([(86_400, 6), (300, 4)])), "all games");
        assert_eq!(all.title, "Players of all games in the last 7 days");
        assert!(all.plot.contains("<svg") && all.words.contains("4 last"));
        assert!(whole(None, "x").plot.is_empty() && whole(Some(&week([(300, 4)])), "x").plot.is_empty());
    }

    #[test]
    fn a_large_plot_is_of_a_server_or_a_game() {
        let of = |query: &str| Asked::parse(query).map(|asked| asked.large.unwrap());
        let server = of("of=a/b/192.0.2.1:5&range=30d&zone=-210").unwrap();
        assert_eq!((&*server.game, server.address.map(|it| it.port()), server.zone), ("a/b", Some(5), -210));
        assert_eq!(of("of=iceball").unwrap().address, None);
        assert_eq!(&*of("of=").unwrap().game, ALL_GAMES);
        for wrong in ["of=x&zone=841", "of=x&zone=", "of=x&range=2d"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    fn one() -> Wanted {
        let address = Address::new([192, 0, 2, 1].into(), 5).unwrap();
        Wanted {
            servers: vec![Whose { game: "iceball".into(), address, size: Some(8) }],
            whole: Some(ALL_GAMES.into()),
        }
    }

    #[test]
    fn what_is_old_is_shown_and_drawn_again() {
        let plots = Plots::new(Reader::new("/nonexistent/rallypoint.db".into()));
        assert_eq!(plots.find(&one()).missing, one());
        let small = Small { day: "a line".into(), week: String::new() };
        let keep = |drawn| drop(plots.kept().servers.insert(one().servers[0].key(), drawn));
        keep(Drawn::new(small.clone(), false));
        let found = plots.find(&one());
        assert_eq!((found.missing.servers.len(), found.servers[0].is_some()), (0, true));
        keep(Drawn { until: Instant::now(), plot: Arc::new(small) });
        let found = plots.find(&one());
        assert_eq!((found.missing.servers.len(), found.servers[0].is_some()), (1, true));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_tried_again_at_once() {
        let plots = Plots::new(Reader::new("/nonexistent/rallypoint.db".into()));
        assert!(plots.draw(&one(), NOW_MS));
        assert!(plots.find(&one()).servers[0].is_none());
        assert!(!plots.draw(&one(), NOW_MS), "it rests");
        assert_eq!(plots.drawn(), 1);
    }

    #[test]
    fn the_number_of_plots_is_bounded() {
        let mut kept = Kept::default();
        for port in 1..=3_000u16 {
            kept.make_room(1);
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            kept.servers.insert(("iceball".into(), address), Drawn::new(Small::default(), false));
            assert!(kept.servers.len() <= KEPT_MAX);
        }
    }

    #[test]
    fn what_the_script_asks_for_is_bounded() {
        let asked = Asked::parse("game=&server=a/b/192.0.2.1:5&server=x&server=x/%5B2001:db8::1%5D:7").unwrap();
        assert_eq!(asked.game.as_deref(), Some(""));
        let servers: Vec<_> = asked.servers.iter().map(|(_, game, address)| (&**game, address.port())).collect();
        assert_eq!(servers, [("a/b", 5), ("x", 7)], "what cannot be is left out");
        for (query, said) in [("sever=a".to_string(), "unknown"), ("server=a/192.0.2.1:5&".repeat(101), "100 times")] {
            let wrong = Asked::parse(&query).err().unwrap();
            assert!(wrong.error.contains(said), "{query}: {}", wrong.error);
        }
    }
}

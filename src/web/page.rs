//! The page: one list of servers, filtered and sorted as the address says, from a template that the operator can
//! replace. It works without JavaScript; `assets/script` keeps it up to date.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use url::form_urlencoded;

use super::filter::{Filter, Selection, Wrong};
use super::json::rfc3339;
use super::order::Sort;
use super::plots::{self, Plots, Wanted, Whole, Whose};
use super::row::{Row, encoded};
use super::search::Search;
use super::template::{PageError, Template, read};
use crate::config;
use crate::geo::{self, countries};
use crate::model::{Address, Facts, Game, Server};
use crate::prefix::Prefix;
use crate::protocols::{CARDS, Card, Games, card, own_card};
use crate::registry::view::{Body, Renderer, View};
use crate::store::history::{ALL_GAMES, Range};

pub const BUILT_IN_TEMPLATE: &str = include_str!("../../assets/index.html");
pub const BUILT_IN_STYLESHEET: &str = concat!(
    include_str!("../../assets/style/base.css"),
    include_str!("../../assets/style/list.css"),
    include_str!("../../assets/style/plots.css"),
    include_str!("../../assets/style/text.css"),
    include_str!("../../assets/style/narrow.css"),
);
/// The parts share one scope. Those after the first two are for the list, and end at once on other pages.
pub const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("../../assets/script/common.js"),
    include_str!("../../assets/script/charts.js"),
    include_str!("../../assets/script/list.js"),
    include_str!("../../assets/script/fair.js"),
    include_str!("../../assets/script/favourites.js"),
    include_str!("../../assets/script/rows.js"),
    include_str!("../../assets/script/draw.js"),
    include_str!("../../assets/script/stream.js"),
    include_str!("../../assets/script/actions.js"),
    "})();\n",
);
pub const FAVICON: &str = include_str!("../../assets/favicon.svg");

/// Rows per page where the address has no limit: few enough for a phone. There is a link to the next page.
const ROWS: u16 = 100;
/// The most games without a card in the page's menu: anybody can announce a new name.
const OTHER_GAMES_MAX: usize = 20;
/// The most mistakes in an address that are reported.
const WRONG_MAX: usize = 5;

/// The columns: what each is sorted by, and its title.
const COLUMNS: [(&str, &str); 6] =
    [("name", "Server"), ("players", "Players"), ("map", "Map"), ("mode", "Mode"), ("rtt", "Ping"), ("game", "Game")];

pub fn stylesheet(web: &config::Web) -> Result<String, PageError> {
    let path = web.stylesheet.as_deref();
    path.map_or(Ok(BUILT_IN_STYLESHEET.to_string()), |path| read(path, "web.stylesheet"))
}

/// What the visitor requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    filter: Filter,
    /// The game to show where the address names none.
    home: Option<&'static str>,
    /// Mistakes in the address; those parameters are ignored.
    wrong: Vec<Wrong>,
}

impl Ask {
    /// Reads a query string; wrong parameters are ignored and reported.
    pub fn parse(query: &str, home: Option<&'static str>) -> Ask {
        let mut pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let names_a_game = pairs.iter().any(|(name, _)| name == "game");
        let mut wrong: Vec<Wrong> = Vec::new();
        let mut filter = loop {
            let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
            match Filter::parse(&query, false) {
                Ok(filter) => break filter,
                Err(error) => {
                    let before = pairs.len();
                    pairs.retain(|(name, _)| error.parameter.as_deref() != Some(name));
                    wrong.push(error);
                    if pairs.len() == before {
                        break Filter::default();
                    }
                }
            }
        };
        wrong.truncate(WRONG_MAX);
        if !names_a_game {
            filter.game = home.map(String::from);
        }
        filter.limit.get_or_insert(ROWS);
        Ask { filter, home, wrong }
    }

    /// The address of the page with other parameters.
    fn link(&self, change: impl FnOnce(&mut Filter)) -> String {
        let mut filter = Filter { after: None, ..self.filter.clone() };
        change(&mut filter);
        let mut query = form_urlencoded::Serializer::new(String::new());
        if filter.game.as_deref() != self.home {
            query.append_pair("game", filter.game.as_deref().unwrap_or_default());
        }
        for (name, value) in [
            ("q", &filter.q),
            ("map", &filter.map),
            ("mode", &filter.mode),
            ("version", &filter.version),
            ("verified_by", &filter.verified_by),
            ("via", &filter.via),
            ("protocol", &filter.protocol),
            ("country", &filter.country),
            ("sort", &filter.sort),
            ("after", &filter.after),
        ] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        for (name, flag) in [
            ("not_empty", filter.not_empty),
            ("not_full", filter.not_full),
            ("no_password", filter.no_password),
            ("official", filter.official),
        ] {
            if flag {
                query.append_pair(name, "1");
            }
        }
        if let Some(limit) = filter.limit.filter(|limit| *limit != ROWS) {
            query.append_pair("limit", &limit.to_string());
        }
        format!("/?{}", query.finish()).trim_end_matches('?').to_string()
    }
}

/// The index page's template.
pub struct Index {
    template: Template,
    title: String,
}

impl Index {
    /// Compiles the template and renders it once, to find mistakes before a visitor does.
    pub fn load(web: &config::Web) -> Result<Index, PageError> {
        let (source, place) = match &web.template {
            Some(path) => (read(path, "web.template")?, path.display().to_string()),
            None => (BUILT_IN_TEMPLATE.to_string(), "the built-in template".into()),
        };
        let tell = |error: minijinja::Error| {
            let line = error.line().map(|line| format!(":{line}")).unwrap_or_default();
            PageError(format!("web.template: {place}{line}: {error}"))
        };
        let template = Template::new("index.html", source).map_err(tell)?;
        let index = Index { template, title: web.title.clone() };
        index
            .template
            .try_render(
                &index.variables(&Ask::parse("", None), &View::new(0, 0, Vec::new()), &Search::default(), None).0,
            )
            .map_err(tell)?;
        Ok(index)
    }

    /// The template's variables, and the plots that are not drawn yet.
    fn variables<'a>(
        &'a self,
        ask: &'a Ask,
        view: &'a View,
        search: &Search,
        plots: Option<&Plots>,
    ) -> (Variables<'a>, Wanted) {
        let filter = &ask.filter;
        let Selection { total, players, page, next } = filter.select(view, search);
        let bare = Filter { game: filter.game.clone(), sort: filter.sort.clone(), ..Filter::default() };
        let wanted = Wanted {
            servers: page.iter().map(|server| Whose::of(server)).collect(),
            whole: Some(filter.game.as_deref().unwrap_or(ALL_GAMES).into()),
        };
        let found = plots.map(|plots| plots.find(&wanted)).unwrap_or_default();
        let mut small = found.servers.into_iter();
        let is_filtered = Filter { limit: None, after: None, ..filter.clone() } != bare;
        let variables = Variables {
            title: &self.title,
            serial: view.serial,
            published_at: rfc3339(view.published_at_ms),
            total,
            players,
            servers: page.iter().map(|server| Row::new(server, small.next().flatten().as_deref())).collect(),
            history: plots.is_some(),
            whole: found.whole.as_deref().cloned().unwrap_or_default(),
            ranges: ranges(Range::Week, |_| String::new()),
            countries: geo::has_countries().then(|| countries_of(&page, filter.country.as_deref())),
            blank: Row::default(),
            games: games(view, filter.game.as_deref()),
            one_game: filter
                .game
                .as_deref()
                .is_some_and(|game| card(game).is_none_or(|card| card.games != Games::Family)),
            home: ask.home.unwrap_or_default(),
            filter: Choice::new(filter),
            columns: COLUMNS.map(|(key, title)| Column::new(ask, key, title)),
            wrong: &ask.wrong,
            clear: is_filtered.then(|| ask.link(|filter| *filter = bare)),
            next: next.map(|next| ask.link(|filter| filter.after = Some(next))),
            first: filter.after.is_some().then(|| ask.link(|_| ())),
        };
        (variables, found.missing)
    }
}

/// The index page for one request.
pub struct IndexRenderer {
    index: Arc<Index>,
    ask: Ask,
    search: Arc<Search>,
    /// None where no history is kept.
    plots: Option<Arc<Plots>>,
    last: Mutex<Last>,
}

/// The state of the plots when the page was last rendered.
#[derive(Default)]
struct Last {
    missing: Wanted,
    /// How often plots had been drawn by then.
    drawn: u64,
    /// When to look at the plots again.
    until: Option<Instant>,
    /// The version of the countries.
    countries: u64,
}

impl IndexRenderer {
    pub fn new(index: Arc<Index>, ask: Ask, search: Arc<Search>, plots: Option<Arc<Plots>>) -> IndexRenderer {
        IndexRenderer { index, ask, search, plots, last: Mutex::default() }
    }

    /// The plots that the page lacked.
    pub fn missing(&self) -> Wanted {
        self.last().missing.clone()
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Renderer for IndexRenderer {
    fn render(&self, view: &View) -> Body {
        let countries = geo::version();
        let drawn = self.plots.as_ref().map_or(0, |plots| plots.drawn());
        let (variables, missing) = self.index.variables(&self.ask, view, &self.search, self.plots.as_deref());
        *self.last() = Last { missing, drawn, until: Some(Instant::now() + plots::KEPT), countries };
        self.index.template.render(&variables).into()
    }

    /// Whether missing plots are there now, some have become old, or countries have changed.
    fn is_stale(&self) -> bool {
        let last = self.last();
        if last.countries != geo::version() {
            return true;
        }
        let Some(plots) = &self.plots else { return false };
        !last.missing.is_nothing() && plots.drawn() != last.drawn
            || last.until.is_some_and(|until| Instant::now() >= until)
    }

    fn is_common(&self) -> bool {
        self.ask.wrong.is_empty() && self.ask.filter.limit == Some(ROWS) && self.ask.filter.is_common()
    }
}

/// The template's variables, documented in `assets/index.html`.
#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    serial: u64,
    published_at: String,
    total: usize,
    players: u64,
    servers: Vec<Row<'a>>,
    blank: Row<'a>,
    ranges: Vec<Choosing>,
    /// None without a database.
    countries: Option<BTreeMap<&'static str, &'static str>>,
    history: bool,
    whole: Whole,
    games: Vec<Choosable<'a>>,
    /// Whether all servers are of the same game.
    one_game: bool,
    home: &'static str,
    filter: Choice<'a>,
    columns: [Column; COLUMNS.len()],
    wrong: &'a [Wrong],
    clear: Option<String>,
    next: Option<String>,
    first: Option<String>,
}

/// The current parameters; those not set are empty or false.
#[derive(Serialize)]
struct Choice<'a> {
    game: &'a str,
    q: &'a str,
    map: &'a str,
    mode: &'a str,
    version: &'a str,
    not_empty: bool,
    not_full: bool,
    no_password: bool,
    official: bool,
    verified_by: &'a str,
    country: &'a str,
    sort: &'a str,
}

impl<'a> Choice<'a> {
    fn new(filter: &'a Filter) -> Choice<'a> {
        let text = |value: &'a Option<String>| value.as_deref().unwrap_or_default();
        Choice {
            game: text(&filter.game),
            q: text(&filter.q),
            map: text(&filter.map),
            mode: text(&filter.mode),
            version: text(&filter.version),
            not_empty: filter.not_empty,
            not_full: filter.not_full,
            no_password: filter.no_password,
            official: filter.official,
            verified_by: text(&filter.verified_by),
            country: text(&filter.country),
            sort: text(&filter.sort),
        }
    }
}

#[derive(Serialize)]
struct Column {
    key: &'static str,
    title: &'static str,
    /// Sorts by this column, or reverses the order where it is the current one.
    link: String,
    /// `ascending` or `descending` where the list is sorted by this column.
    sorted: Option<&'static str>,
}

impl Column {
    fn new(ask: &Ask, key: &'static str, title: &'static str) -> Column {
        let named = |sort: String| Filter { sort: Some(sort), ..Filter::default() }.sort();
        // By default, official servers come first; within those and the others, the order is this one.
        let shown = |sort: Sort| if sort == Sort::DEFAULT { named("players".into()) } else { sort };
        let (ours, current) = (named(key.into()), shown(ask.filter.sort()));
        let is_current = ours.key == current.key;
        let turned = if is_current && ours == current { "-" } else { "" };
        let direction = if current.descending { "descending" } else { "ascending" };
        Column {
            key,
            title,
            link: ask.link(|filter| filter.sort = Some(format!("{turned}{key}"))),
            sorted: is_current.then_some(direction),
        }
    }
}

/// A game that can be chosen.
#[derive(Serialize)]
struct Choosable<'a> {
    name: &'a str,
    title: &'a str,
    /// Its own page.
    page: String,
    /// The link that joins a server, with `{address}` for its address; none where no program is known.
    join: Option<String>,
    /// Whether this name stands for all games of a protocol.
    family: bool,
}

impl<'a> Choosable<'a> {
    fn known(card: &'static Card) -> Choosable<'a> {
        Choosable {
            name: card.name,
            title: card.title,
            page: format!("/games/{}", encoded(card.name)),
            join: join_pattern(&Game::Own(card.name)),
            family: card.games == Games::Family,
        }
    }
}

/// The join link of a game with a placeholder for the address, so that the script need not know the games' links.
fn join_pattern(game: &Game) -> Option<String> {
    let (card, any) = (own_card(game)?, Address::new([192, 0, 2, 1].into(), 1)?);
    let link = (card.join)(&Server::new(any, game.clone(), card.proof, 0, &Facts::default())).link?;
    Some(link.replace(&any.to_string(), "{address}"))
}

/// All games and families with a card, the others that most networks have servers of, and the requested one.
fn games<'a>(view: &'a View, asked: Option<&'a str>) -> Vec<Choosable<'a>> {
    let without_card = || view.games().filter(|server| card(server.game.name()).is_none());
    let mut others: BTreeMap<&str, (usize, &Game)> = BTreeMap::new();
    for server in without_card() {
        others.entry(server.game.name()).or_insert((0, &server.game)).0 += 1;
    }
    // Their servers are counted where there is room for all of them, which takes less.
    if others.len() > OTHER_GAMES_MAX {
        let mut networks = HashSet::new();
        others.values_mut().for_each(|(count, _)| *count = 0);
        for server in without_card() {
            let (name, network) = (server.game.name(), Prefix::widest(server.address.ip()));
            if let Some((count, _)) = others.get_mut(name) {
                *count += usize::from(networks.insert((name, network)));
            }
        }
    }
    let mut others: Vec<_> = others.into_iter().map(|(name, (count, game))| (name, count, Some(game))).collect();
    others.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    others.truncate(OTHER_GAMES_MAX);
    if let Some(asked) = asked
        && card(asked).is_none()
        && others.iter().all(|(name, _, _)| *name != asked)
    {
        others.push((asked, 0, None));
    }
    let others = others.into_iter().map(|(name, _, game)| Choosable {
        name,
        title: name,
        page: format!("/games/{}", encoded(name)),
        join: game.and_then(join_pattern),
        family: false,
    });
    CARDS.iter().map(Choosable::known).chain(others).collect()
}

/// A range of a plot that can be chosen.
#[derive(Serialize)]
pub struct Choosing {
    name: &'static str,
    title: &'static str,
    /// Empty where only the script can show it.
    link: String,
    current: bool,
}

pub fn ranges(current: Range, link: impl Fn(Range) -> String) -> Vec<Choosing> {
    let title = |range| match range {
        Range::Day => "Day",
        Range::Week => "Week",
        Range::Month => "Month",
        Range::Year => "Year",
    };
    let choosing = |range: Range| Choosing {
        name: range.name(),
        title: title(range),
        link: link(range),
        current: range == current,
    };
    Range::ALL.map(choosing).into()
}

/// The countries of some servers and the one that was asked for, by their names; each with its code.
fn countries_of(page: &[&Arc<Server>], asked: Option<&str>) -> BTreeMap<&'static str, &'static str> {
    let shown = page.iter().filter_map(|server| geo::country(server.address.ip()));
    let codes = shown.chain(asked.and_then(countries::known));
    codes.filter_map(|code| Some((countries::name(code)?, code))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::model::{Details, Facts, Game, Player, Proof};

    fn server(port: u16, name: &str) -> Arc<Server> {
        let player = |name: &str, team, ping| Player { name: name.into(), team, ping, ..Player::default() };
        let details = Details {
            players: vec![player("Ann", Some("red".into()), None), player("Bob", None, Some(50))],
            rules: [("fraglimit", "<20>")].into(),
        };
        let facts = Facts {
            name: name.to_string().into(),
            players_current: Some(2),
            players_max: Some(8),
            password: Some(true),
            details: Some(Arc::new(details)),
            ..Facts::default()
        };
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        Arc::new(Server::new(address, Game::Own("iceball"), Proof::Cookie, 1_760_000_000_000, &facts))
    }

    #[test]
    fn a_family_can_be_chosen_and_shows_which_game_each_server_is_of() {
        for card in CARDS.iter().filter(|card| card.games == Games::Family) {
            let games = ["Tanks", "Chess"].map(|name| crate::protocols::game(card.name, name).unwrap());
            let servers = games.into_iter().zip(1..).map(|(game, port)| {
                let of_family = Server { game, ..Server::clone(&server(port, "of the family")) };
                Arc::new(of_family)
            });
            let view = View::new(1, 0, servers.chain([server(3, "another")]).collect());
            let family = page(&format!("game={}", card.name), None, &view);
            for shown in ["Tanks", "Chess"] {
                assert!(family.contains(&format!("data-game=\"{shown}\"")), "{shown}: {family}");
            }
            assert!(!family.contains("another"), "{family}");
            assert!(family.contains("data-family selected") && !family.contains("one-game"), "{family}");
            let tanks = page("game=Tanks", None, &view);
            assert!(!tanks.contains("data-game=\"Chess\"") && tanks.contains("one-game"), "{tanks}");
        }
    }

    #[test]
    fn games_of_many_networks_have_a_place_in_the_menu() {
        let one = |network: u8, port: u16, name: &str| {
            let game = crate::protocols::game("netpanzer", name).unwrap();
            let address = Address::new([198, 51, network, 1].into(), port).unwrap();
            Arc::new(Server { game, address, ..Server::clone(&server(port, "")) })
        };
        let of_one = (1..=32)
            .flat_map(|number| (1..=3).map(move |port| one(1, number * 3 + port, &format!("made up {number}"))));
        let view = View::new(1, 0, of_one.chain([one(2, 1, "played"), one(3, 1, "played")]).collect());
        let names: Vec<_> =
            games(&view, None).into_iter().skip(CARDS.len()).map(|game| game.name.to_string()).collect();
        assert_eq!((names.len(), &*names[0]), (OTHER_GAMES_MAX, "played"));
    }

    fn page(query: &str, home: Option<&'static str>, view: &View) -> String {
        let index = Arc::new(Index::load(&Config::default().web).unwrap());
        String::from_utf8(
            IndexRenderer::new(index, Ask::parse(query, home), Arc::default(), None).render(view).to_vec(),
        )
        .unwrap()
    }

    fn view(name: &str) -> View {
        View::new(1, 1_760_000_000_000, vec![server(20737, name)])
    }

    #[test]
    fn names_stay_text() {
        let page = page("", None, &view("<script>alert('x')</script>\" onload=\""));
        assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;"), "{page}");
        assert!(page.contains("href=\"iceball://203.0.113.5:20737\""), "{page}");
        assert!(page.contains("2025-10-09T08:53:20Z"), "{page}");
        assert!(page.contains("&lt;20&gt;") && page.contains("Ann"), "{page}");
    }

    #[test]
    fn the_address_decides_what_is_shown() {
        let view = View::new(1, 0, (1..=150).map(|port| server(port, "one of many")).collect());
        let rows = |page: &str| page.matches("data-address=\"203").count();
        let first = page("sort=address", None, &view);
        assert_eq!(rows(&first), 100);
        assert!(first.contains("<strong id=\"total\">150</strong>"), "the totals are of all pages: {first}");
        let next = first.split("rel=\"next\" href=\"/?").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(rows(&page(&next.replace("&amp;", "&"), None, &view)), 50);
        assert_eq!(rows(&page("no_password=1", None, &view)), 0);
        assert_eq!(rows(&page("", Some("iceball"), &view)), 100);
        assert_eq!(rows(&page("", Some("netpanzer"), &view)), 0);
        assert_eq!(rows(&page("game=", Some("netpanzer"), &view)), 100);
        let noted = page("sort=nonsense&limit=-1&q=many", None, &view);
        assert_eq!(rows(&noted), 100, "what is wrong is left out");
        assert!(noted.contains("<code>sort</code>") && noted.contains("<code>limit</code>"), "{noted}");
    }

    #[test]
    fn links_keep_what_was_asked() {
        let ask = Ask::parse("game=netpanzer&q=a%26b&not_full=1&after=203.0.113.5:1&limit=7", Some("iceball"));
        let sorted = ask.link(|filter| filter.sort = Some("-name".into()));
        assert_eq!(sorted, "/?game=netpanzer&q=a%26b&sort=-name&not_full=1&limit=7");
        assert_eq!(Ask::parse("", Some("iceball")).link(|_| ()), "/");
        assert_eq!(Ask::parse("protocol=quake3", None).link(|_| ()), "/?protocol=quake3");
        assert_eq!(Ask::parse("game=", Some("iceball")).link(|_| ()), "/?game=");
        let column = |query: &str, key| {
            let column = Column::new(&Ask::parse(query, None), key, "");
            (column.link, column.sorted)
        };
        assert_eq!(column("", "players"), ("/?sort=-players".into(), Some("descending")));
        assert_eq!(column("", "name"), ("/?sort=name".into(), None));
        assert_eq!(column("sort=players", "players"), ("/?sort=-players".into(), Some("descending")));
        assert_eq!(column("sort=-players", "players"), ("/?sort=players".into(), Some("ascending")));
        assert_eq!(column("sort=name", "name"), ("/?sort=-name".into(), Some("ascending")));
    }

    #[test]
    fn only_games_that_handle_links_have_one() {
        let link = |game: Game| join_pattern(&game);
        assert_eq!(link(Game::Own("iceball")).as_deref(), Some("iceball://{address}"));
        let quake3 = Game::carried("quake3", "Quake3Arena");
        assert_eq!(link(quake3).as_deref(), Some("quake3://connect/{address}"));
        for game in [Game::Own("netpanzer"), Game::carried("netpanzer", "Chess"), Game::Own("quake3")] {
            assert_eq!(link(game.clone()), None, "{game:?}");
        }
    }

    #[test]
    fn a_broken_template_is_refused_with_its_line() {
        let folder = std::env::temp_dir().join(format!("rallypoint-page-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("broken.html");
        let web = config::Web { template: Some(path.clone()), ..Config::default().web };
        let missing = Index::load(&web).err().unwrap().to_string();
        assert!(missing.contains("web.template") && missing.contains("broken.html"), "{missing}");
        std::fs::write(&path, "fine\n{% for %}\n").unwrap();
        let broken = Index::load(&web).err().unwrap().to_string();
        assert!(broken.contains("broken.html:2"), "{broken}");
        std::fs::write(&path, "{{ servers | nosuchfilter }}").unwrap();
        assert!(Index::load(&web).is_err());
        std::fs::write(&path, "{{ title }}: {{ servers | length }}").unwrap();
        let index = Arc::new(Index::load(&web).unwrap());
        let ask = Ask::parse("", None);
        assert_eq!(IndexRenderer::new(index, ask, Arc::default(), None).render(&view("x")).to_vec(), b"Rallypoint: 1");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

//! Which servers, and how many: the parameters that the API and the page share.

use std::sync::Arc;

use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};
use url::form_urlencoded;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use super::order::{Best, Key, Ordered, Sort, Value, key_names, parse_place, place};
use super::parameters;
use super::search::{self, Prepared, Search};
use crate::geo;
use crate::model::{Address, Proof, Server};
use crate::protocols::{CARDS, card, names_of, servers_of};
use crate::registry::view::{Standings, View};

/// The most servers in one answer.
pub const LIMIT_MAX: usize = 1000;

/// An error in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Wrong {
    /// What is wrong.
    pub error: String,
    /// The parameter at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
}

impl Wrong {
    pub fn parameter(name: &str, error: impl Into<String>) -> Wrong {
        Wrong { error: error.into(), parameter: Some(name.into()) }
    }
}

/// Parameters of a list. Filters are combined with *and*.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default)]
pub struct Filter {
    /// Only this game, by its name. The name of a family of games stands for all of them.
    pub game: Option<String>,
    /// Only servers that speak this protocol, by its name: the `protocol` of a server.
    pub protocol: Option<String>,
    /// Only servers with this text in their name, map, mode, version or address, ignoring case.
    pub q: Option<String>,
    /// Only this map, ignoring case.
    pub map: Option<String>,
    /// Only this mode, ignoring case.
    pub mode: Option<String>,
    /// Only this version, ignoring case.
    pub version: Option<String>,
    /// Only servers with players.
    pub not_empty: bool,
    /// Only servers that are not full.
    pub not_full: bool,
    /// Only servers without a password.
    pub no_password: bool,
    /// Only servers that the operator marks as official.
    pub official: bool,
    /// Only servers verified in this way: `cookie`, `query`, `connection` or `config`.
    pub verified_by: Option<String>,
    /// Only servers that another master named, by that master's name or address: the `via` of a server.
    pub via: Option<String>,
    /// Only servers in this country: two letters (ISO 3166), e.g. `DE`.
    pub country: Option<String>,
    /// `name`, `players`, `map`, `mode`, `version`, `game`, `address`, `rtt`, `country`, `proven`, `first_seen`, each with a `-`
    /// before it for the reverse order. When left out: the operator's priority, then the number of players, roughly: servers
    /// with about as many players come in turns, the best one of each network first.
    pub sort: Option<String>,
    /// The most servers in the answer, 1 to 1000; 1000 when left out.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u16>,
    /// Continue after this place: the `next` of the previous answer, or a server's `address:port`.
    pub after: Option<String>,
}

/// The names of the parameters that say which servers.
pub const FILTERS: [&str; 13] = [
    "game",
    "protocol",
    "q",
    "map",
    "mode",
    "version",
    "not_empty",
    "not_full",
    "no_password",
    "official",
    "verified_by",
    "via",
    "country",
];
/// The names of those that say in which order and how many.
pub const PAGING: [&str; 3] = ["sort", "limit", "after"];

/// Those of a stream, which has no order and no pages.
pub struct Filters;

impl IntoParams for Filters {
    fn into_params(place: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut all = Filter::into_params(place);
        all.retain(|parameter| FILTERS.contains(&&*parameter.name));
        all
    }
}

/// One page of the servers that match.
pub struct Selection<'v> {
    /// How many servers match, and how many players they have, on all pages.
    pub total: usize,
    pub players: u64,
    pub page: Vec<&'v Arc<Server>>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

impl Filter {
    /// Reads a query string. Where `strict`, an unknown or repeated parameter is an error; otherwise, unknown ones are ignored
    /// and the last one counts.
    pub fn parse(query: &str, strict: bool) -> Result<Filter, Wrong> {
        let mut filter = Filter::default();
        let pairs = if strict { parameters::once(query)? } else { form_urlencoded::parse(query.as_bytes()).collect() };
        for (name, value) in pairs {
            if parameters::is_long(&value) {
                return Err(parameters::long(&name));
            }
            if !filter.take(&name, &value)? && strict {
                return Err(parameters::unknown(&name, &[&FILTERS[..], &PAGING].concat()));
            }
        }
        filter.check()?;
        Ok(filter)
    }

    /// Takes a parameter; false if it is none of these.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, Wrong> {
        let text = || (!value.is_empty()).then(|| value.to_string());
        let flag = || parameters::flag(name, value);
        match name {
            "game" => self.game = text(),
            "protocol" => self.protocol = text(),
            "q" => self.q = text(),
            "map" => self.map = text(),
            "mode" => self.mode = text(),
            "version" => self.version = text(),
            "not_empty" => self.not_empty = flag()?,
            "not_full" => self.not_full = flag()?,
            "no_password" => self.no_password = flag()?,
            "official" => self.official = flag()?,
            "verified_by" => self.verified_by = text(),
            "via" => self.via = text(),
            "country" => self.country = text().map(|country| country.to_ascii_uppercase()),
            "sort" => self.sort = text(),
            "limit" if value.is_empty() => self.limit = None,
            "limit" => self.limit = Some(limit(value)?),
            "after" => self.after = text(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub fn check(&self) -> Result<(), Wrong> {
        if let Some(proof) = &self.verified_by
            && Proof::named(proof).is_none()
        {
            let proofs = Proof::ALL.map(Proof::name);
            return Err(Wrong::parameter("verified_by", format!("must be one of {}", proofs.join(", "))));
        }
        if let Some(protocol) = &self.protocol
            && card(protocol).is_none()
        {
            let known: Vec<_> = CARDS.iter().map(|card| card.name).collect();
            return Err(Wrong::parameter("protocol", format!("must be one of {}", known.join(", "))));
        }
        if let Some(sort) = &self.sort
            && Sort::parse(sort).is_none()
        {
            let known: Vec<_> = key_names().collect();
            return Err(Wrong::parameter(
                "sort",
                format!("must be one of {}, or one with a `-` before it", known.join(", ")),
            ));
        }
        if let Some(after) = &self.after
            && parse_place(after).is_none()
            && after.parse::<Address>().is_err()
        {
            return Err(Wrong::parameter(
                "after",
                "must be the `next` of an answer, or an address like 203.0.113.5:20737",
            ));
        }
        Ok(())
    }

    pub fn sort(&self) -> Sort {
        self.sort.as_deref().and_then(Sort::parse).unwrap_or(Sort::DEFAULT)
    }

    /// Whether many clients ask for this: all servers, or all of one of our games, from the start.
    pub fn is_common(&self) -> bool {
        self.is_by_game() && self.game.as_deref().is_none_or(|game| card(game).is_some())
    }

    /// Whether this asks for nothing of a server but its game, which never changes.
    pub fn is_by_game(&self) -> bool {
        *self == Filter { game: self.game.clone(), limit: self.limit, ..Filter::default() }
    }

    /// The page of matching servers that this asks for.
    pub fn select<'v>(&self, view: &'v View, search: &Search) -> Selection<'v> {
        let sort = self.sort();
        let matcher = Matcher::new(self);
        let prepared = (self.q.is_some() || sort.part().is_some()).then(|| search.prepared(view));
        let matching = || matcher.matching(view, prepared.as_deref());
        let standings = match sort.key {
            Key::Priority => standings(view, self.game.as_deref()),
            _ => Arc::default(),
        };
        let place = |server, text| place(server, text, sort.key, &standings);
        let after = self.after.as_deref().and_then(|after| {
            let address = match (after.parse::<Address>(), parse_place(after)) {
                (Ok(address), _) => address,
                // Before 1.1, the places of this order said something else.
                (_, Some((Value::Number(_), address))) if sort.key == Key::Priority => address,
                (_, place) => return place,
            };
            let named = matching().find(|(server, _)| server.address == address);
            Some(named.map_or((zero(sort.key), address), |(server, text)| place(server, text)))
        });
        let after = after.map(|after| Ordered(after, sort.descending));
        let mut best = Best::new(usize::from(self.limit.unwrap_or(LIMIT_MAX as u16)));
        let (mut total, mut players) = (0, 0);
        for (server, text) in matching() {
            total += 1;
            players += u64::from(server.players_current.unwrap_or(0));
            let ordered = Ordered(place(server, text), sort.descending);
            if after.as_ref().is_none_or(|after| ordered > *after) {
                best.push(ordered, server);
            }
        }
        let (page, next) = best.page();
        Selection { total, players, page, next }
    }
}

/// Where an order is continued after a server that is gone.
fn zero(key: Key) -> Value<'static> {
    if key == Key::Priority { Value::Standing(0) } else { Value::Number(0) }
}

/// Where the servers of a game's list, or of all games', stand: among all of them, whatever else is asked of those that are shown.
fn standings(view: &View, game: Option<&str>) -> Arc<Standings> {
    match game {
        Some(game) => view.standings(game, servers_of(view, game)),
        None => view.standings("", view.games()),
    }
}

/// Whether a list of a game, or of all games, has this server.
fn is_of(server: &Server, game: Option<&str>) -> bool {
    game.map_or(!server.game.is_master(), |game| names_of(&server.game).any(|name| name == game))
}

/// What a filter asks of each server, prepared for many of them.
#[derive(Debug)]
pub struct Matcher {
    filter: Filter,
    /// In lower case.
    map: Option<String>,
    mode: Option<String>,
    version: Option<String>,
    q: Option<Finder<'static>>,
}

impl Matcher {
    pub fn new(filter: &Filter) -> Matcher {
        let lower = |text: &Option<String>| text.as_deref().map(str::to_lowercase);
        let q = lower(&filter.q).map(|q| Finder::new(&q).into_owned());
        let (map, mode, version) = (lower(&filter.map), lower(&filter.mode), lower(&filter.version));
        Matcher { filter: filter.clone(), map, mode, version, q }
    }

    /// Whether a list with this filter has the server.
    pub fn matches(&self, server: &Server) -> bool {
        self.is_of(server) && self.passes(server) && self.q.as_ref().is_none_or(|q| search::has(server, q))
    }

    /// Whether the server is of the game that is asked for.
    pub fn is_of(&self, server: &Server) -> bool {
        is_of(server, self.filter.game.as_deref())
    }

    /// All servers of a view that match.
    pub fn all<'v>(&self, view: &'v View, search: &Search) -> Vec<&'v Server> {
        let prepared = self.q.as_ref().map(|_| search.prepared(view));
        self.matching(view, prepared.as_deref()).map(|(server, _)| &**server).collect()
    }

    /// The same, each with its prepared text where there is one. Without it, nothing can be searched for.
    fn matching<'a, 'v: 'a>(
        &'a self,
        view: &'v View,
        prepared: Option<&'a Prepared>,
    ) -> Box<dyn Iterator<Item = (&'v Arc<Server>, &'a [u8])> + 'a> {
        let passes = |(server, _): &(&'v Arc<Server>, &'a [u8])| self.passes(server);
        let is_one = |(server, _): &(&'v Arc<Server>, &'a [u8])| self.is_of(server) && self.passes(server);
        let without_text = |server| (server, &[][..]);
        match (prepared, &self.q, self.filter.game.as_deref()) {
            (Some(prepared), Some(q), _) => Box::new(prepared.find(view, q).filter(is_one)),
            (Some(prepared), None, _) => Box::new(prepared.all(view).filter(is_one)),
            (None, _, Some(game)) => Box::new(servers_of(view, game).map(without_text).filter(passes)),
            (None, _, None) => Box::new(view.games().map(without_text).filter(passes)),
        }
    }

    /// Whether the server is as wanted, besides its game and a text to search for.
    fn passes(&self, server: &Server) -> bool {
        let (filter, texts) = (&self.filter, &server.texts);
        let is =
            |wanted: &Option<String>, text: &str| wanted.as_deref().is_none_or(|wanted| is_in_lower_case(text, wanted));
        let players = server.players_current.unwrap_or(0);
        (!filter.not_empty || players > 0)
            && (!filter.not_full || server.players_max.is_none_or(|max| players < max))
            && (!filter.no_password || server.password != Some(true))
            && (!filter.official || server.overrides.official)
            && filter.verified_by.as_ref().is_none_or(|proof| proof == server.verified_by.name())
            && filter.via.as_ref().is_none_or(|via| server.via.as_ref().is_some_and(|it| it.name() == via))
            && filter.country.as_ref().is_none_or(|it| geo::country(server.address.ip()) == Some(it.as_str()))
            && filter.protocol.as_ref().is_none_or(|protocol| protocol == server.game.protocol())
            && is(&self.map, texts.map())
            && is(&self.mode, texts.mode())
            && is(&self.version, texts.version())
    }
}

/// Whether a text is this one in lower case. Almost all are ASCII, and then nothing is allocated.
fn is_in_lower_case(text: &str, lower: &str) -> bool {
    match text.is_ascii() {
        true => text.len() == lower.len() && text.bytes().map(|byte| byte.to_ascii_lowercase()).eq(lower.bytes()),
        false => text.to_lowercase() == lower,
    }
}

fn limit(value: &str) -> Result<u16, Wrong> {
    let number = value.parse::<u16>().ok().filter(|number| (1..=LIMIT_MAX).contains(&usize::from(*number)));
    number.ok_or_else(|| Wrong::parameter("limit", format!("must be a number from 1 to {LIMIT_MAX}, not `{value}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game, Origin, Overrides};
    use crate::web::order::KEYS;
    use proptest::prelude::*;

    fn server(port: u16, name: &str, players: u16) -> Arc<Server> {
        let facts = Facts {
            name: name.to_string().into(),
            map: "Mesa".into(),
            players_current: Some(players),
            players_max: Some(8),
            password: Some(port == 2),
            ..Facts::default()
        };
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        let server = Server::new(address, Game::Own("iceball"), Proof::Cookie, port.into(), &facts);
        let via = (port == 1).then(|| Arc::new(Origin::new("netpanzer://old.example")));
        Arc::new(Server { overrides: Overrides { official: port == 3, ..Overrides::default() }, via, ..server })
    }

    fn view() -> View {
        let master = Server::new(
            "203.0.113.9:9".parse().unwrap(),
            Game::master("tanks"),
            Proof::Connection,
            0,
            &Facts::default(),
        );
        View::new(1, 0, vec![server(1, "beta", 0), server(2, "Alpha", 8), server(3, "gamma", 3), Arc::new(master)])
    }

    fn ports(query: &str) -> Vec<u16> {
        let view = view();
        let filter = Filter::parse(query, true).unwrap();
        filter.select(&view, &Search::default()).page.iter().map(|server| server.address.port()).collect()
    }

    #[test]
    fn filters_and_orders() {
        for (query, expected) in [
            ("", vec![2, 3, 1]),
            ("sort=name", vec![2, 1, 3]),
            ("sort=-name", vec![3, 1, 2]),
            ("sort=players", vec![2, 3, 1]),
            ("sort=-players_current", vec![1, 3, 2]),
            ("sort=address", vec![1, 2, 3]),
            ("sort=proven", vec![3, 2, 1]),
            ("sort=address&limit=2", vec![1, 2]),
            ("sort=address&after=203.0.113.5:1", vec![2, 3]),
            ("sort=address&after=203.0.113.4:77", vec![1, 2, 3]),
            ("not_empty", vec![2, 3]),
            ("not_full=true", vec![3, 1]),
            ("not_full=0", vec![2, 3, 1]),
            ("no_password=1", vec![3, 1]),
            ("official=yes", vec![3]),
            ("q=ALPH", vec![2]),
            ("q=113.5%3A3", vec![3]),
            ("map=mesa", vec![2, 3, 1]),
            ("map=mes", vec![]),
            ("game=iceball", vec![2, 3, 1]),
            ("game=master", vec![9]),
            ("game=other", vec![]),
            ("verified_by=query", vec![]),
            ("via=netpanzer://old.example", vec![1]),
            ("via=other", vec![]),
            ("verified_by=cookie&not_empty&not_full", vec![3]),
        ] {
            assert_eq!(ports(query), expected, "{query}");
        }
    }

    #[test]
    fn places_of_the_default_order_from_before_are_understood() {
        assert_eq!(ports("after=n3~203.0.113.5:3"), [1], "the place of the server in the order of now");
        assert_eq!(ports("after=n8~203.0.113.5:2&limit=1"), [3]);
        assert_eq!(ports("after=203.0.113.5:2"), [3, 1]);
        assert_eq!(ports("after=n3~203.0.113.5:77"), [0; 0], "it is gone");
        assert_eq!(ports("sort=players&after=n3~203.0.113.5:77"), [1]);
    }

    #[test]
    fn errors_name_the_parameter() {
        for (query, parameter) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("sort=nonsense", "sort"),
            ("verified_by=x", "verified_by"),
            ("not_empty=maybe", "not_empty"),
            ("after=x", "after"),
            ("gmae=iceball", "gmae"),
            ("game=iceball&limit=3&game=hyperbol", "game"),
        ] {
            let wrong = Filter::parse(query, true).unwrap_err();
            assert_eq!(wrong.parameter.as_deref(), Some(parameter), "{query}: {wrong:?}");
        }
        let long = format!("q={}", "x".repeat(1000));
        assert!(Filter::parse(&long, true).is_err());
        assert_eq!(Filter::parse("utm_source=x&utm_source=y", false), Ok(Filter::default()));
    }

    /// The same list in the plainest way: everything is compared in lower case, everything is sorted, and the page is cut out.
    fn plain(filter: &Filter, view: &View) -> (usize, u64, Vec<Address>) {
        let lower = str::to_lowercase;
        let is = |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|it| lower(it) == lower(text));
        let passes = |server: &&Arc<Server>| {
            let (texts, address) = (&server.texts, server.address.to_string());
            let has = |q: &String| {
                let all = [texts.name(), texts.map(), texts.mode(), texts.version(), &address];
                all.iter().any(|text| lower(text).contains(&lower(q)))
            };
            is(&filter.map, texts.map())
                && (!filter.not_empty || server.players_current > Some(0))
                && filter.q.as_ref().is_none_or(has)
        };
        let mut servers: Vec<_> = match &filter.game {
            Some(game) => servers_of(view, game).filter(passes).collect(),
            None => view.games().filter(passes).collect(),
        };
        let sort = filter.sort();
        let standings = standings(view, filter.game.as_deref());
        let value = |server: &Arc<Server>| {
            let texts = &server.texts;
            let text = match sort.key {
                Key::Name => texts.name(),
                Key::Map => texts.map(),
                Key::Mode => texts.mode(),
                Key::Version => texts.version(),
                key => return place(server, &[], key, &standings).0,
            };
            Value::Text(lower(text).into_bytes().into())
        };
        let ordered = |server: &Arc<Server>| Ordered((value(server), server.address), sort.descending);
        servers.sort_by_cached_key(|server| ordered(server));
        let after = filter.after.as_deref().map(|after| {
            let named = servers.iter().find(|server| server.address.to_string() == after);
            named.map_or_else(
                || {
                    Ordered(
                        parse_place(after).unwrap_or_else(|| (zero(sort.key), after.parse().unwrap())),
                        sort.descending,
                    )
                },
                |server| ordered(server),
            )
        });
        let total = servers.len();
        let players = servers.iter().map(|server| u64::from(server.players_current.unwrap_or(0))).sum();
        servers.retain(|server| after.as_ref().is_none_or(|after| ordered(server) > *after));
        servers.truncate(usize::from(filter.limit.unwrap_or(LIMIT_MAX as u16)));
        (total, players, servers.iter().map(|server| server.address).collect())
    }

    /// Texts with upper case, beyond ASCII, and with what a query may look for.
    fn texts() -> impl Strategy<Value = (String, String, u16)> {
        ("[aB~ΣσİK\u{1}:. ]{0,6}", "[mM-oÄ]{0,3}", 0..3u16)
    }

    fn named(port: u16, (name, map, players): &(String, String, u16)) -> Arc<Server> {
        let facts = Facts {
            name: name.clone().into(),
            map: map.clone().into(),
            mode: map.chars().rev().collect::<String>().into(),
            players_current: Some(*players),
            ..Facts::default()
        };
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        let game = [Game::Own("iceball"), Game::carried("netpanzer", "Chess"), Game::master("netpanzer")];
        Arc::new(Server::new(address, game[usize::from(port) % 3].clone(), Proof::Cookie, port.into(), &facts))
    }

    proptest! {
        #[test]
        fn the_prepared_text_finds_what_the_plainest_way_finds(
                rows in proptest::collection::vec(texts(), 0..200), changed in proptest::collection::vec((0..200usize, texts()), 0..5),
                q in "[aBσΣİkK\u{1}:. 0-9m]{0,2}", map in "([mM-oÄä]{1,2})?", limit in proptest::option::of(1..9u16),
                game in proptest::option::of(proptest::sample::select(vec!["iceball", "Chess", "master", "netpanzer"])),
                not_empty: bool, key in 0..KEYS.len(), turned: bool, after in proptest::option::of(1..210u16)) {
            let some = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
            let sort = format!("{}{}", if turned { "-" } else { "" }, KEYS[key].0);
            let after = after.map(|port| format!("203.0.113.5:{port}"));
            let filter = Filter {
                q: some(&q), map: some(&map), sort: Some(sort), limit, not_empty, after, game: game.map(String::from), ..Filter::default()
            };
            let now = crate::model::Now { mono_ms: 0, unix_ms: 0 };
            let (search, mut publisher) = (Search::default(), crate::registry::view::Publisher::default());
            let mut dirty: Vec<_> = rows.iter().zip(0u16..).map(|(row, at)| (at.into(), Some(named(at + 1, row)))).collect();
            let more = changed.iter().map(|(at, row)| vec![(*at as u32, (*at < 150).then(|| named(*at as u16 + 1, row)))]);
            // The same search again after each change: most of what is prepared is used again.
            for mut dirty in std::iter::once(std::mem::take(&mut dirty)).chain(more) {
                let Some((view, _)) = publisher.publish(&mut dirty, now) else { continue };
                let mut filter = filter.clone();
                for _ in 0..3 {
                    let Selection { total, players, page, next } = filter.select(&view, &search);
                    let page: Vec<_> = page.iter().map(|server| server.address).collect();
                    prop_assert_eq!(&(total, players, page), &plain(&filter, &view));
                    // One by one, as the event stream looks at them.
                    let matcher = Matcher::new(&filter);
                    let one_by_one = view.servers.iter().filter(|server| matcher.matches(server)).count();
                    prop_assert_eq!((one_by_one, matcher.all(&view, &search).len()), (total, total));
                    let Some(next) = next else { break };
                    filter.after = Some(next);
                }
            }
        }

        #[test]
        fn pages_put_together_are_the_whole_list(
                rows in proptest::collection::vec(("[a-c~]{0,2}", 0..3u16), 0..40), limit in 1..7u16, key in 0..KEYS.len(), turned: bool) {
            let servers = rows.iter().enumerate().map(|(at, (name, players))| server(at as u16 + 1, name, *players)).collect();
            let view = View::new(1, 0, servers);
            let sort = format!("{}{}", if turned { "-" } else { "" }, KEYS[key].0);
            let mut filter = Filter { sort: Some(sort), limit: Some(limit), ..Filter::default() };
            let whole = plain(&Filter { limit: None, ..filter.clone() }, &view).2;
            let (search, mut pages) = (Search::default(), Vec::new());
            loop {
                let Selection { page, next, .. } = filter.select(&view, &search);
                pages.extend(page.iter().map(|server| server.address));
                filter.after = next;
                if filter.after.is_none() { break }
                prop_assert!(filter.check().is_ok());
            }
            prop_assert_eq!(pages, whole);
        }

        #[test]
        fn any_query_string_is_read_or_refused(query: String) {
            let _ = Filter::parse(&query, true);
        }
    }
}

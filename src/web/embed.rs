//! What other sites show: a list in a frame (`/embed`), and a badge for one server.

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Serialize;

use super::filter::{Filter, Selection};
use super::plot::escaped;
use super::reply::{self, Fresh};
use super::row::Row;
use super::search::Search;
use super::template::{PageError, Template};
use super::{HTML, Peer, REFERRERS, SVG, Site, api};
use crate::model::{Address, Server};
use crate::registry::view::{Body, Rendered, Renderer, View};

/// Rows where the address has no limit.
const ROWS: u16 = 10;
const FRESH: Fresh = Fresh::Seconds(30);
/// The longest name on a badge, in characters.
const NAME_MAX: usize = 32;

pub struct Page {
    template: Template,
    title: String,
}

#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    total: usize,
    players: u64,
    servers: Vec<Row<'a>>,
}

impl Page {
    pub fn new(title: &str) -> Result<Page, PageError> {
        let source = include_str!("../../assets/embed.html").to_string();
        let tell = |error| PageError(format!("the list for other sites: {error}"));
        Ok(Page { template: Template::new("embed.html", source).map_err(tell)?, title: title.into() })
    }
}

struct EmbedRenderer {
    page: Arc<Page>,
    filter: Filter,
    search: Arc<Search>,
}

impl Renderer for EmbedRenderer {
    fn render(&self, view: &View) -> Body {
        let Selection { total, players, page, .. } = self.filter.select(view, &self.search);
        let servers = page.iter().map(|server| Row::new(server, None)).collect();
        self.page.template.render(&Variables { title: &self.page.title, total, players, servers }).into()
    }

    fn is_common(&self) -> bool {
        self.filter.limit == Some(ROWS) && self.filter.is_common()
    }
}

/// `/embed`, with the filters of the list. Any site may show it in a frame.
pub async fn list(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let mut filter = match Filter::parse(query.as_deref().unwrap_or_default(), true) {
        Ok(filter) => filter,
        Err(wrong) => return api::bad_request(&wrong),
    };
    filter.limit.get_or_insert(ROWS);
    let pages = site.pages.load_full();
    let renderer = pages.embeds.get(filter, |filter| {
        Arc::new(EmbedRenderer { page: pages.embed.clone(), filter, search: site.search.clone() })
    });
    let mut response = site.send(&renderer, peer, HTML, &headers, FRESH).await;
    let policy = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors *";
    reply::set(&mut response, header::CONTENT_SECURITY_POLICY, policy);
    reply::set(&mut response, header::REFERRER_POLICY, REFERRERS);
    response
}

/// `/servers/GAME/ADDRESS/badge.svg`.
pub async fn badge(
    State(site): State<Arc<Site>>,
    Path((game, address)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let server = address.parse::<Address>().ok().and_then(|address| site.hub.listed(address));
    let server = server.filter(|server| server.game.name() == game);
    let svg = match server.as_deref() {
        Some(server) => of_server(server),
        None => svg(&address, "offline", "#5a6270"),
    };
    reply::rendered(&Rendered::new(svg), SVG, &headers, FRESH)
}

fn of_server(server: &Server) -> String {
    let address = server.address.to_string();
    let name = Some(server.texts.name()).filter(|name| !name.is_empty()).unwrap_or(&address);
    let players = server.players_current.map_or("?".into(), |players| players.to_string());
    let (count, is_full) = match server.players_max {
        Some(size) => (format!("{players}/{size}"), server.players_current.is_some_and(|it| it > 0 && it >= size)),
        None => (players, false),
    };
    let colour = match server.players_current {
        _ if is_full => "#a02f22",
        Some(0) | None => "#5a6270",
        Some(_) => "#2f7f53",
    };
    svg(name, &format!("{count} players"), colour)
}

fn svg(name: &str, state: &str, colour: &str) -> String {
    let name: String = match name.chars().nth(NAME_MAX) {
        Some(_) => name.chars().take(NAME_MAX - 1).chain(['…']).collect(),
        None => name.into(),
    };
    // The font is the reader's: the text is fitted to widths that suit most.
    let width = |text: &str| text.chars().map(|c| if c.is_ascii() { 7 } else { 11 }).sum::<usize>();
    let (left, right) = (width(&name), width(state));
    let (split, whole) = (left + 12, left + right + 24);
    let (name, state) = (escaped(&name), escaped(state));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{whole}\" height=\"20\" role=\"img\" aria-label=\"{name}: {state}\">\
         <rect width=\"{whole}\" height=\"20\" rx=\"4\" fill=\"#1f2430\"/>\
         <path d=\"M{split} 0H{}a4 4 0 0 1 4 4v12a4 4 0 0 1-4 4H{split}z\" fill=\"{colour}\"/>\
         <g fill=\"#fff\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\">\
         <text x=\"6\" y=\"14\" textLength=\"{left}\" lengthAdjust=\"spacingAndGlyphs\">{name}</text>\
         <text x=\"{}\" y=\"14\" textLength=\"{right}\" lengthAdjust=\"spacingAndGlyphs\">{state}</text></g></svg>",
        whole - 4,
        split + 6,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game, Proof};

    #[test]
    fn a_list_with_a_clients_own_parameters_is_charged_to_it() {
        let is_common = |query: &str| {
            let mut filter = Filter::parse(query, true).unwrap();
            filter.limit.get_or_insert(ROWS);
            EmbedRenderer { page: Arc::new(Page::new("").unwrap()), filter, search: Arc::default() }.is_common()
        };
        assert!(is_common("") && is_common("game=iceball"));
        assert!(!is_common("q=a") && !is_common("limit=1000") && !is_common("game=any") && !is_common("map=a"));
    }

    #[test]
    fn a_badge_says_who_and_how_many_and_stays_a_picture() {
        let of = |name: &str, players, size| {
            let facts = Facts {
                name: name.to_string().into(),
                players_current: players,
                players_max: size,
                ..Facts::default()
            };
            let address = "203.0.113.5:7".parse().unwrap();
            of_server(&Server::new(address, Game::Own("iceball"), Proof::Cookie, 1, &facts))
        };
        let some = of("<b>&", Some(3), Some(8));
        assert!(some.contains("aria-label=\"&lt;b&gt;&amp;: 3/8 players\"") && some.contains("#2f7f53"), "{some}");
        assert!(of("x", Some(8), Some(8)).contains("#a02f22"));
        assert!(of("x", Some(0), Some(8)).contains("#5a6270"));
        assert!(of("", None, None).contains("203.0.113.5:7: ? players"));
        assert!(of(&"é".repeat(99), Some(1), None).contains(&format!("{}…<", "é".repeat(NAME_MAX - 1))));
        let mut reader = quick_xml::Reader::from_str(&some);
        while reader.read_event().unwrap() != quick_xml::events::Event::Eof {}
    }
}

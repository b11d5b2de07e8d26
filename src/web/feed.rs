//! The feed: servers that are new, and servers that somebody plays on after nobody did. For feed readers (Atom, RFC 4287).

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Extension, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use super::filter::Filter;
use super::json::rfc3339;
use super::plot::escaped;
use super::reply::Fresh;
use super::row::encoded;
use super::search::Search;
use super::{Peer, Site, api};
use crate::model::Server;
use crate::net::stopped;
use crate::protocols::card;
use crate::registry::view::{Batch, Body, Delta, Renderer, View};

pub const ATOM: &str = "application/atom+xml; charset=utf-8";
/// The most entries of each kind.
const ENTRIES: u16 = 50;
/// A server comes alive once in this time at most.
const AGAIN_MS: u64 = 6 * 3_600_000;
const FRESH: Fresh = Fresh::Seconds(60);

/// Servers that came alive lately.
#[derive(Default)]
pub struct Alive {
    /// Oldest first.
    entries: Mutex<VecDeque<(u64, Arc<Server>)>>,
    /// Grows with every entry.
    version: AtomicU64,
}

impl Alive {
    fn entries(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Server>)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, batch: &Batch, now_ms: u64) {
        for delta in &batch.deltas {
            if let Delta::Changed { now, before, .. } = delta
                && before.players_current == Some(0)
                && now.players_current.is_some_and(|players| players > 0)
                && !now.game.is_master()
            {
                self.add(now, now_ms);
            }
        }
    }

    fn add(&self, server: &Arc<Server>, now_ms: u64) {
        let mut entries = self.entries();
        let is_it = |(at_ms, known): &(u64, Arc<Server>)| known.address == server.address && now_ms < at_ms + AGAIN_MS;
        if entries.iter().any(is_it) {
            return;
        }
        if entries.len() >= usize::from(ENTRIES) {
            entries.pop_front();
        }
        entries.push_back((now_ms, server.clone()));
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Follows the list until stopped. What it misses is missed.
    pub async fn follow(site: Arc<Site>, mut stop: watch::Receiver<bool>) {
        let mut batches = site.hub.subscribe();
        loop {
            tokio::select! {
                batch = batches.recv() => match batch {
                    Ok(batch) => site.alive.take(&batch, site.hub.clock.now().unix_ms),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                () = stopped(&mut stop) => return,
            }
        }
    }
}

/// The feed of the servers that match a filter.
pub struct FeedRenderer {
    filter: Filter,
    title: String,
    search: Arc<Search>,
    alive: Arc<Alive>,
    /// The entries as of the last rendering.
    rendered: AtomicU64,
}

impl FeedRenderer {
    pub fn new(filter: Filter, title: &str, search: Arc<Search>, alive: Arc<Alive>) -> FeedRenderer {
        FeedRenderer { filter, title: title.into(), search, alive, rendered: AtomicU64::new(0) }
    }
}

impl Renderer for FeedRenderer {
    fn render(&self, view: &View) -> Body {
        self.rendered.store(self.alive.version.load(Ordering::Relaxed), Ordering::Relaxed);
        let newest = Filter { sort: Some("-first_seen".into()), limit: Some(ENTRIES), ..self.filter.clone() };
        let new = newest.select(view, &self.search).page.into_iter();
        let mut entries: Vec<Entry> = new.map(|server| Entry::new(server.first_seen_ms, "New", server)).collect();
        // Those that match, as they were then.
        let then: Vec<(u64, Arc<Server>)> = self.alive.entries().iter().cloned().collect();
        let was = View::new(0, 0, then.iter().map(|(_, server)| server.clone()).collect());
        let matching = Filter { limit: Some(ENTRIES), ..self.filter.clone() }.select(&was, &Search::default()).page;
        let is_wanted = |server: &Arc<Server>| matching.iter().any(|it| Arc::ptr_eq(it, server));
        let alive = then.iter().filter(|(_, server)| is_wanted(server));
        entries.extend(alive.map(|(at_ms, server)| Entry::new(*at_ms, "Came alive", server)));
        entries.sort_by(|one, other| other.at_ms.cmp(&one.at_ms).then_with(|| one.id.cmp(&other.id)));
        self.feed(&entries).into()
    }

    fn is_common(&self) -> bool {
        self.filter.limit.is_none() && self.filter.is_common()
    }

    fn is_stale(&self) -> bool {
        self.alive.version.load(Ordering::Relaxed) != self.rendered.load(Ordering::Relaxed)
    }
}

impl FeedRenderer {
    fn feed(&self, entries: &[Entry]) -> String {
        let of = self.filter.game.as_deref().map(|game| format!(": {}", card(game).map_or(game, |card| card.title)));
        let title = escaped(&format!("{}{}", self.title, of.unwrap_or_default()));
        let updated = rfc3339(entries.first().map_or(0, |entry| entry.at_ms));
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<feed xmlns=\"http://www.w3.org/2005/Atom\"><title>{title}</title>\
             <id>urn:rallypoint:feed:{title}</id><updated>{updated}</updated><author><name>{}</name></author><link href=\"/\"/>",
            escaped(&self.title)
        );
        for Entry { at_ms, id, title, link, text } in entries {
            let (at, id, title, link, text) =
                (rfc3339(*at_ms), escaped(id), escaped(title), escaped(link), escaped(text));
            let _ = write!(
                out,
                "\n<entry><title>{title}</title><id>{id}</id><updated>{at}</updated><link href=\"{link}\"/>\
                 <summary>{text}</summary></entry>"
            );
        }
        out.push_str("\n</feed>\n");
        out
    }
}

struct Entry {
    at_ms: u64,
    id: String,
    title: String,
    link: String,
    text: String,
}

impl Entry {
    fn new(at_ms: u64, what: &str, server: &Server) -> Entry {
        let (game, address) = (server.game.name(), server.address.to_string());
        let game_title = card(game).map_or(game, |card| card.title);
        let name = Some(server.texts.name()).filter(|name| !name.is_empty()).unwrap_or(&address);
        let place = format!("{}/{}", encoded(game), encoded(&address));
        Entry {
            at_ms,
            id: format!("urn:rallypoint:{}:{place}:{at_ms}", what.to_lowercase().replace(' ', "-")),
            title: format!("{what}: {name}"),
            link: format!("/servers/{place}"),
            text: super::server_page::summary(server, game_title),
        }
    }
}

/// `/feed.atom`, with the filters of the list.
pub async fn feed(
    State(site): State<Arc<Site>>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let filter = match Filter::parse(query.as_deref().unwrap_or_default(), true) {
        Ok(filter) => filter,
        Err(wrong) => return api::bad_request(&wrong),
    };
    let pages = site.pages.load_full();
    let renderer: Arc<dyn Renderer> = pages.feeds.get(filter, |filter| {
        Arc::new(FeedRenderer::new(filter, &pages.server.title, site.search.clone(), site.alive.clone()))
    });
    site.send(&renderer, peer, ATOM, &headers, FRESH).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Fields, Game, Proof};

    fn server(port: u16, name: &str, players: u16) -> Arc<Server> {
        let facts = Facts { name: name.to_string().into(), players_current: Some(players), ..Facts::default() };
        let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
        Arc::new(Server::new(address, Game::Own("iceball"), Proof::Cookie, 1_760_000_000_000 + u64::from(port), &facts))
    }

    fn changed(before: Arc<Server>, now: Arc<Server>) -> Batch {
        Batch { serial: 1, deltas: vec![Delta::Changed { now, before, fields: Fields::PLAYERS_CURRENT }] }
    }

    #[test]
    fn a_feed_with_a_clients_own_parameters_is_charged_to_it() {
        let is_common = |query: &str| {
            let filter = Filter::parse(query, true).unwrap();
            FeedRenderer::new(filter, "", Arc::default(), Arc::default()).is_common()
        };
        assert!(is_common("") && is_common("game=iceball"));
        assert!(!is_common("q=a") && !is_common("limit=9") && !is_common("game=any"));
    }

    #[test]
    fn new_servers_and_those_that_came_alive_newest_first() {
        let alive = Arc::<Alive>::default();
        let view = View::new(1, 0, vec![server(1, "a <b>", 0), server(2, "busy", 9)]);
        let now_ms = 1_770_000_000_000;
        alive.take(&changed(server(2, "busy", 9), server(2, "busy", 10)), now_ms);
        alive.take(&changed(server(1, "a <b>", 0), server(1, "a <b>", 3)), now_ms);
        alive.take(&changed(server(1, "a <b>", 3), server(1, "a <b>", 0)), now_ms + 1);
        alive.take(&changed(server(1, "a <b>", 0), server(1, "a <b>", 3)), now_ms + 2);
        assert_eq!(alive.entries().len(), 1, "busy ones were alive, and nobody comes alive twice a day");
        let render = |query: &str| {
            let filter = Filter::parse(query, true).unwrap();
            let feed = FeedRenderer::new(filter, "Us & them", Arc::default(), alive.clone());
            String::from_utf8(feed.render(&view).to_vec()).unwrap()
        };
        let feed = render("");
        let titles: Vec<_> = feed.split("<entry><title>").skip(1).map(|it| it.split('<').next().unwrap()).collect();
        assert_eq!(titles, ["Came alive: a &lt;b&gt;", "New: busy", "New: a &lt;b&gt;"]);
        assert!(
            feed.contains("<title>Us &amp; them</title>") && feed.contains("<updated>2026-02-02T02:40:00Z</updated>")
        );
        assert!(feed.contains("href=\"/servers/iceball/203.0.113.5%3A1\""), "{feed}");
        assert_eq!(render("q=busy").matches("<entry>").count(), 1);
        assert_eq!(render("game=netpanzer").matches("<entry>").count(), 0);
        let mut reader = quick_xml::Reader::from_str(&feed);
        while reader.read_event().unwrap() != quick_xml::events::Event::Eof {}
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let alive = Alive::default();
        for port in 1..=200u16 {
            alive.take(&changed(server(port, "x", 0), server(port, "x", 1)), 1);
        }
        assert_eq!(alive.entries().len(), usize::from(ENTRIES));
    }
}

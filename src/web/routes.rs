//! The paths of the protocols: each answers as the game's own programs expect.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;

use super::door::{Act, Closed, Through};
use super::reply::{self, Fresh};
use super::{Pages, Peer, Site, charge};
use crate::protocols::post::Post;
use crate::protocols::section::{RouteAnswer, Surroundings};
use crate::protocols::{CARDS, Verdict};

/// Every path that game servers post to, and how long a body may be there.
pub static POSTS: LazyLock<Vec<(&'static str, usize)>> = LazyLock::new(|| {
    let posts = CARDS.iter().flat_map(|card| (card.section)().posts());
    posts.map(|post| (post.path, post.bytes_max)).collect()
});

/// All of them. The settings decide what they answer, not whether they exist.
pub fn all() -> Router<Arc<Site>> {
    let posts = POSTS.iter().fold(Router::new(), |router, (path, bytes_max)| {
        let answer = move |State(site), Extension(peer), Extension(through), headers, body| {
            posted(path, site, (peer, through), headers, body)
        };
        router.route(path, post(answer).layer(DefaultBodyLimit::max(*bytes_max)))
    });
    let routes = CARDS.iter().flat_map(|card| (card.section)().routes(&Surroundings::default()));
    routes.fold(posts, |router, route| {
        let path = route.path;
        let answer = move |State(site), Extension(peer), Extension(through), RawQuery(query): RawQuery, headers| async move {
            answer(path, site, (peer, through), query.as_deref().unwrap_or_default(), headers).await
        };
        router.route(path, get(answer))
    })
}

/// Who posts, and through which proxy.
type From = (Peer, Through);

async fn posted(path: &str, site: Arc<Site>, (Peer(peer), through): From, headers: HeaderMap, body: Bytes) -> Response {
    // The games themselves are no browsers. A page could name the port of a server at its visitor's address.
    if let Err(closed) = site.admits(Act::Announce, through, &headers) {
        return reply::error(Closed::STATUS, &format!("{closed}\n"));
    }
    let rule = site.pages.load().posts.iter().find(|post| post.path == path).map(|post| post.rule.clone());
    let Some(rule) = rule else { return reply::error(StatusCode::NOT_FOUND, "not here\n") };
    let header = |name: &'static str| headers.get(name).and_then(|value| value.to_str().ok());
    let answer = site.announcements.post(rule, &Post { peer: peer.ip().to_canonical(), header: &header, body: &body });
    reply::own(answer.await)
}

async fn answer(path: &str, site: Arc<Site>, (Peer(peer), through): From, query: &str, headers: HeaderMap) -> Response {
    let asked = |pages: &Pages| {
        let route = pages.routes.iter().find(|route| route.path == path)?;
        Some((route.rule.get(peer.ip(), query), route.label, route.content_type))
    };
    let Some((asked, label, content_type)) = asked(&site.pages.load()) else {
        return reply::error(StatusCode::NOT_FOUND, "not here\n");
    };
    match asked {
        RouteAnswer::List(renderer) => {
            if let Err(over) = charge::admit(&site, Peer(peer)) {
                return reply::over(over);
            }
            site.metrics.listed(label, 1);
            site.send(&renderer, Peer(peer), content_type, &headers, Fresh::Ask).await
        }
        // The games themselves send nothing but `Host` and `Connection`.
        RouteAnswer::Announce { heartbeat, answer } => {
            if let Err(closed) = site.admits(Act::AnnounceByGet, through, &headers) {
                return reply::error(Closed::STATUS, &format!("{closed}\n"));
            }
            match site.announcements.announce(heartbeat).await {
                Verdict::Listed => reply::rendered(&answer, content_type, &headers, Fresh::Ask),
                Verdict::Refused(reason) => reply::error(StatusCode::FORBIDDEN, &format!("{reason}\n")),
                Verdict::TryLater { reason, after_s } => reply::try_later(&reason, after_s),
            }
        }
        RouteAnswer::Answer(answer) => reply::own(answer),
        RouteAnswer::Refused { status, text } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
            reply::error(status, &format!("{text}\n"))
        }
    }
}

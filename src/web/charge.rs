//! Charges what a client reads to its budget.

use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::{Extension, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::{Peer, Site, reply};
use crate::budget::{Kind, Over};

/// Answered whatever happens: an operator or an owner looks here when something is wrong, or the work has a budget of its own.
const FREE: [&str; 5] = ["/healthz", "/readyz", "/metrics", "/api/v1/check", "/api/v1/events"];
/// The least that a request costs, with its head and its answer's.
pub const REQUEST_BYTES: u64 = 1_024;

/// Refuses a client that has no budget left for lists and pages, and charges the answer's size. Announcements are never refused
/// for what others at the same address read, nor are paths of protocols, which may be either: see [`super::routes`].
pub async fn charge(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let may_announce = !request.method().is_safe() || site.pages.load().routes.iter().any(|route| route.path == path);
    if !may_announce
        && !FREE.contains(&path)
        && let Err(over) = admit(&site, Peer(peer))
    {
        return reply::over(over);
    }
    let has_body = request.method() != Method::HEAD;
    let response = next.run(request).await;
    let bytes = response.body().size_hint().exact().filter(|_| has_body).unwrap_or(0);
    site.guard.budgets().charge(Kind::Lists, site.hub.clock.now(), peer.ip(), bytes.max(REQUEST_BYTES));
    response
}

/// Refuses a client that has no budget left for lists.
pub fn admit(site: &Site, Peer(peer): Peer) -> Result<(), Over> {
    site.guard.budgets().admit(Kind::Lists, site.hub.clock.now(), peer.ip())
}

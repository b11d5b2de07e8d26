//! Charges what a client reads to its budget.

use std::sync::Arc;

use axum::body::HttpBody;
use axum::extract::{Extension, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use super::{Peer, Site, reply};
use crate::budget::Kind;

/// Answered whatever happens: an operator looks here when something is wrong, and the answers are short.
const FREE: [&str; 2] = ["/healthz", "/readyz"];

/// Refuses a client that has no budget left for lists and pages, and charges the answer's size otherwise. The event stream,
/// whose size is not known in advance, has a budget of its own.
pub async fn charge(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if FREE.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    if let Err(over) = site.guard.budgets().admit(Kind::Lists, site.hub.clock.now(), peer.ip()) {
        return reply::over(over);
    }
    let has_body = request.method() != Method::HEAD;
    let response = next.run(request).await;
    if let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > 0 && has_body) {
        site.guard.budgets().charge(Kind::Lists, site.hub.clock.now(), peer.ip(), bytes);
    }
    response
}

//! `/bloodmasterslist.php`, as Bloodmasters' servers and launchers have always asked for it.
//!
//! A server announces itself with `?action=update&port=N` and takes every line of the answer for a ban, so that answer is
//! the ban list or an error status, never an error page with status 200. Without `action` it is the list for launchers.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;

use super::reply::{self, Fresh};
use super::{Peer, Site, TEXT, origin};
use crate::protocols::Verdict;
use crate::protocols::bloodmasters::serve::heartbeat;

#[derive(Deserialize)]
pub struct Asked {
    action: Option<String>,
    port: Option<String>,
}

pub async fn list(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Response {
    if !site.pages.load().bloodmasters {
        return reply::error(StatusCode::NOT_FOUND, "Bloodmasters is not listed here\n");
    }
    match asked.action.as_deref() {
        None | Some("") => {
            site.metrics.listed("bloodmasters", 1);
            reply::rendered(&site.list(|pages| &pages.bloodmasters_list), TEXT, &headers, Fresh::Ask)
        }
        // The game itself sends nothing but `Host` and `Connection`.
        Some("update") if origin::is_cross_origin_get(&headers) => {
            reply::error(StatusCode::FORBIDDEN, "a page of another site cannot announce a server\n")
        }
        Some("update") => {
            let Some(heartbeat) = heartbeat(peer.ip(), asked.port.as_deref().unwrap_or_default()) else {
                return reply::error(StatusCode::BAD_REQUEST, "port must be a number from 1 to 65535\n");
            };
            match site.door.announce(heartbeat).await {
                Verdict::Listed => reply::rendered(&site.pages.load().bloodmasters_bans, TEXT, &headers, Fresh::Ask),
                Verdict::Refused(reason) => reply::error(StatusCode::FORBIDDEN, &format!("{reason}\n")),
            }
        }
        Some(_) => reply::error(StatusCode::BAD_REQUEST, "action must be update, or left out\n"),
    }
}

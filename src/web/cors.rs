//! Pages of any origin may read what everybody may read: the API, the games' own lists, the pages. They may only read, and
//! nobody is known here by a cookie or a password of the browser.

use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::{api, reply};

/// What is meant for the operator.
const OPERATORS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// What a script may read of an answer's head, besides what it may always read.
const EXPOSED: &str = "ETag, Retry-After";
/// What a script may add to a request's head, besides what it may always add.
const ALLOWED: &str = "Cache-Control, If-Modified-Since, If-None-Match, Last-Event-ID";

/// Wraps the whole router, so that it sees every method. Errors of the API become JSON here.
pub async fn allow_everyone(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (is_api, is_public) = (api::is_api(path), !OPERATORS.contains(&path));
    if request.method() == Method::OPTIONS && is_public {
        return preflight();
    }
    let reads = request.method().is_safe();
    let response = next.run(request).await;
    let mut response = if is_api { api::in_json(response).await } else { response };
    if reads && is_public {
        allow_reading(&mut response);
    }
    response
}

pub fn allow_reading(response: &mut Response) {
    reply::set(response, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    reply::set(response, header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}

/// A browser asks whether a script may send its request.
fn preflight() -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    reply::set(&mut response, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    reply::set(&mut response, header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, OPTIONS");
    reply::set(&mut response, header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED);
    reply::set(&mut response, header::ACCESS_CONTROL_MAX_AGE, "86400");
    response
}

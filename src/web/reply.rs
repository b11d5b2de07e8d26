//! Answers: rendered lists with their conditions and encodings, and errors that always have a body.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::TEXT;
use crate::registry::view::Rendered;

/// A rendered list: 304 when the reader has it already, gzip when the reader can take it.
pub fn rendered(list: &Rendered, content_type: &'static str, request: &HeaderMap) -> Response {
    let packed = if accepts_gzip(request) { list.gzip() } else { None };
    let etag = match packed {
        // Another representation has to have another tag.
        Some(_) => list.etag.trim_end_matches('"').to_string() + "-gz\"",
        None => list.etag.clone(),
    };
    let mut response = if knows(request, &etag) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let is_packed = packed.is_some();
        let mut response = Response::new(Body::from(packed.unwrap_or_else(|| list.body.clone())));
        set(&mut response, header::CONTENT_TYPE, content_type);
        if is_packed {
            set(&mut response, header::CONTENT_ENCODING, "gzip");
        }
        response
    };
    set(&mut response, header::ETAG, &etag);
    set(&mut response, header::VARY, "Accept-Encoding");
    // A reader may keep it, but has to ask whether it is still true; that costs a 304.
    set(&mut response, header::CACHE_CONTROL, "no-cache");
    response
}

pub fn error(status: StatusCode, text: &str) -> Response {
    let mut response = Response::new(Body::from(text.to_string()));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, TEXT);
    response
}

/// Sets a header to a value of ours; one that cannot be a header value is left out.
pub fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Whether If-None-Match names this tag. Weak tags match, as the standard says for this header.
fn knows(request: &HeaderMap, etag: &str) -> bool {
    let named = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = named.flat_map(|value| value.split(','));
    tags.any(|tag| tag.trim() == "*" || tag.trim().trim_start_matches("W/") == etag)
}

/// Whether Accept-Encoding names gzip with a weight that is not 0.
fn accepts_gzip(request: &HeaderMap) -> bool {
    let named = request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = named.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        is_gzip && weight != Some(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(HeaderName, &str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn gzip_only_for_those_who_can_take_it() {
        for (value, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0, br", false),
            ("identity", false),
            ("xgzip", false),
        ] {
            assert_eq!(accepts_gzip(&request(&[(header::ACCEPT_ENCODING, value)])), expected, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn a_known_tag_gets_304_and_no_body() {
        let list = Rendered::new("a body that repeats ".repeat(200));
        let plain = rendered(&list, TEXT, &HeaderMap::new());
        assert_eq!(plain.status(), StatusCode::OK);
        let etag = plain.headers()[header::ETAG].to_str().unwrap().to_string();
        for (value, expected) in [
            (etag.clone(), 304),
            (format!("\"x\", W/{etag}"), 304),
            ("*".into(), 304),
            ("\"x\"".into(), 200),
            (etag.replace('"', ""), 200),
        ] {
            let response = rendered(&list, TEXT, &request(&[(header::IF_NONE_MATCH, &value)]));
            assert_eq!(response.status(), expected, "{value}");
            assert_eq!(response.headers()[header::ETAG], etag);
        }
        let packed = rendered(&list, TEXT, &request(&[(header::ACCEPT_ENCODING, "gzip")]));
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        assert_ne!(packed.headers()[header::ETAG], etag);
        assert_eq!(packed.headers()[header::VARY], "Accept-Encoding");
    }
}

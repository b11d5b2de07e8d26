//! Where a request comes from: an announcement lists the caller's own address, so a page on another site must not be
//! able to make its visitor's browser send one.

use axum::http::{HeaderMap, HeaderName, header};
use url::{Position, Url};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a browser sent this for a page of another origin. Other programs send none of these headers.
///
/// Browsers send `Origin` with every POST, and `Sec-Fetch-Site` only where the connection is secure. Where both are present,
/// `Sec-Fetch-Site` decides: behind a proxy, `Host` may be another name than the browser used.
pub fn is_cross_origin(headers: &HeaderMap) -> bool {
    match text(headers, SEC_FETCH_SITE) {
        Some(site) => !matches!(site, "same-origin" | "none"),
        None => text(headers, header::ORIGIN).is_some_and(|origin| !is_own(headers, origin)),
    }
}

/// The same for a GET, with which a browser sends no `Origin` and, if the page wants that, no `Referer`. So a browser that
/// does not say where the request comes from counts as cross-origin, too.
pub fn is_cross_origin_get(headers: &HeaderMap) -> bool {
    if headers.contains_key(SEC_FETCH_SITE) || headers.contains_key(header::ORIGIN) {
        return is_cross_origin(headers);
    }
    match text(headers, header::REFERER) {
        Some(page) => !is_own(headers, page),
        None => text(headers, header::USER_AGENT).is_some_and(|agent| agent.starts_with("Mozilla/")),
    }
}

/// Whether a URL is on the host and port that were asked. The scheme is not compared: a proxy may have changed it. Its usual
/// port may be written or not: browsers leave it out, and some proxies write it.
fn is_own(headers: &HeaderMap, url: &str) -> bool {
    let host = text(headers, header::HOST).unwrap_or_default();
    let is_asked = |url: Url| {
        let authority = &url[Position::BeforeHost..Position::AfterPort];
        let usual = url.port_or_known_default().filter(|_| url.port().is_none());
        let with_port = usual.map(|port| format!("{authority}:{port}"));
        authority.eq_ignore_ascii_case(host) || with_port.is_some_and(|text| text.eq_ignore_ascii_case(host))
    };
    !host.is_empty() && Url::parse(url).is_ok_and(is_asked)
}

/// A header that is not text is present, but has no expected value.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Whether the request declares its body as JSON. Forms cannot do that, and scripts of other origins only after a
/// preflight, which is refused.
pub fn is_json(headers: &HeaderMap) -> bool {
    let kind = text(headers, header::CONTENT_TYPE).unwrap_or_default();
    kind.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        std::iter::once(&("host", "master.example:8080")).chain(pairs).map(pair).collect()
    }

    #[test]
    fn who_counts_as_another_origin() {
        for (pairs, post, get) in [
            (&[][..], false, false),
            (&[("user-agent", "curl/8.5.0")], false, false),
            (&[("origin", "http://master.example:8080")], false, false),
            (&[("origin", "https://MASTER.example:8080")], false, false),
            (&[("origin", "http://master.example")], true, true),
            (&[("origin", "http://evil.example:8080")], true, true),
            (&[("origin", "null")], true, true),
            (&[("origin", "\u{e9}")], true, true),
            (&[("sec-fetch-site", "none"), ("user-agent", "Mozilla/5.0")], false, false),
            (&[("sec-fetch-site", "same-origin"), ("origin", "https://behind.a.proxy")], false, false),
            (&[("sec-fetch-site", "same-site")], true, true),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://master.example:8080")], true, true),
            (&[("sec-fetch-site", "")], true, true),
            (&[("referer", "http://evil.example/page")], false, true),
            (&[("referer", "http://master.example:8080.evil.example/")], false, true),
            (&[("referer", "http://master.example:8080/doctor"), ("user-agent", "Mozilla/5.0")], false, false),
            (&[("user-agent", "Mozilla/5.0")], false, true),
        ] {
            let headers = headers(pairs);
            assert_eq!((is_cross_origin(&headers), is_cross_origin_get(&headers)), (post, get), "{pairs:?}");
        }
        assert!(is_cross_origin(&HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static("http://"))])));
    }

    #[test]
    fn the_usual_port_may_be_written_or_not() {
        let host = |host: &str, origin: &str| {
            let pairs = [(header::HOST, host), (header::ORIGIN, origin)];
            let pairs = pairs.map(|(name, value)| (name, HeaderValue::from_str(value).unwrap()));
            !is_cross_origin(&HeaderMap::from_iter(pairs))
        };
        assert!(host("master.example", "https://master.example"));
        assert!(host("master.example:443", "https://master.example"));
        assert!(host("master.example:80", "http://master.example"));
        assert!(host("[2001:db8::1]:443", "https://[2001:db8::1]"));
        assert!(!host("master.example:443", "http://master.example"));
        assert!(!host("master.example:8443", "https://master.example"));
        assert!(!host("master.example:443", "https://master.example:8443"));
        assert!(!host(":443", "https://master.example"));
    }

    #[test]
    fn what_counts_as_json() {
        for kind in ["application/json", "application/json; charset=utf-8", "Application/JSON ;charset=UTF-8"] {
            assert!(is_json(&headers(&[("content-type", kind)])), "{kind}");
        }
        for kind in
            ["", "text/plain", "text/plain;application/json", "application/jsonp", "application/x-www-form-urlencoded"]
        {
            assert!(!is_json(&headers(&[("content-type", kind)])), "{kind}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}

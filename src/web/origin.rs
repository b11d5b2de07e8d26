//! Where a request comes from: an announcement lists the caller's own address, so a page on another site must not be
//! able to make its visitor's browser send one.

use axum::http::{HeaderMap, HeaderName, header};
use url::{Host, Position, Url};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH: &str = "sec-fetch-";

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sender {
    /// No browser: a game server, or a person with a tool.
    Program,
    /// A browser, for a page of another origin.
    OtherPage,
    /// A browser, for a page of the origin that was asked: the host under which it reached us, if that can be read. Whether it
    /// is ours is not known yet.
    OwnPage(Option<Host>),
}

/// Who sent a request. With a GET a browser sends no `Origin` and, if the page wants that, no `Referer`, so a browser that does
/// not say where such a request comes from counts as another page.
pub fn sender(headers: &HeaderMap, is_get: bool) -> Sender {
    let says = headers.keys().any(|name| *name == header::ORIGIN || name.as_str().starts_with(SEC_FETCH));
    match (says, is_get) {
        (true, _) if is_cross_origin(headers) => Sender::OtherPage,
        (true, _) => Sender::OwnPage(host(headers, header::ORIGIN)),
        (false, false) => Sender::Program,
        (false, true) => match text(headers, header::REFERER) {
            Some(page) if is_own(headers, page) => Sender::OwnPage(host(headers, header::REFERER)),
            Some(_) => Sender::OtherPage,
            None if text(headers, header::USER_AGENT).is_some_and(|agent| agent.starts_with("Mozilla/")) => {
                Sender::OtherPage
            }
            None => Sender::Program,
        },
    }
}

/// Whether a browser sent this for a page of another origin.
///
/// Browsers send `Origin` with every POST, and `Sec-Fetch-Site` only where the connection is secure. Where both are present,
/// `Sec-Fetch-Site` decides: behind a proxy, `Host` may be another name than the browser used.
fn is_cross_origin(headers: &HeaderMap) -> bool {
    match text(headers, SEC_FETCH_SITE) {
        Some(site) => !matches!(site, "same-origin" | "none"),
        None => text(headers, header::ORIGIN).is_some_and(|origin| !is_own(headers, origin)),
    }
}

/// The host in the address of a page, or the one that was asked.
fn host(headers: &HeaderMap, page: HeaderName) -> Option<Host> {
    let of_url = |url: Url| url.host().map(|host| host.to_owned());
    let of_page = text(headers, page).and_then(|page| Url::parse(page).ok()).and_then(of_url);
    let asked = || Url::parse(&format!("http://{}", text(headers, header::HOST)?)).ok().and_then(of_url);
    of_page.or_else(asked)
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
        let own = |host: &str| Sender::OwnPage(Some(Host::parse(host).unwrap()));
        let (program, other, master) = (Sender::Program, Sender::OtherPage, own("master.example"));
        for (pairs, post, get) in [
            (&[][..], &program, &program),
            (&[("user-agent", "curl/8.5.0")], &program, &program),
            (&[("origin", "http://master.example:8080")], &master, &master),
            (&[("origin", "https://MASTER.example:8080")], &master, &master),
            (&[("origin", "http://master.example")], &other, &other),
            (&[("origin", "http://evil.example:8080")], &other, &other),
            (&[("origin", "null")], &other, &other),
            (&[("origin", "\u{e9}")], &other, &other),
            (&[("sec-fetch-site", "none"), ("user-agent", "Mozilla/5.0")], &master, &master),
            (
                &[("sec-fetch-site", "same-origin"), ("origin", "https://behind.a.proxy")],
                &own("behind.a.proxy"),
                &own("behind.a.proxy"),
            ),
            (&[("sec-fetch-site", "same-origin"), ("origin", "null")], &master, &master),
            (&[("sec-fetch-site", "same-site")], &other, &other),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://master.example:8080")], &other, &other),
            (&[("sec-fetch-site", "")], &other, &other),
            (&[("sec-fetch-mode", "cors")], &master, &master),
            (&[("referer", "http://evil.example/page")], &program, &other),
            (&[("referer", "http://master.example:8080.evil.example/")], &program, &other),
            (&[("referer", "http://master.example:8080/doctor"), ("user-agent", "Mozilla/5.0")], &program, &master),
            (&[("user-agent", "Mozilla/5.0")], &program, &other),
        ] {
            let headers = headers(pairs);
            assert_eq!((&sender(&headers, false), &sender(&headers, true)), (post, get), "{pairs:?}");
        }
        let origin_only = HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static("http://"))]);
        assert_eq!(sender(&origin_only, false), Sender::OtherPage);
        let no_host = HeaderMap::from_iter([(SEC_FETCH_SITE, HeaderValue::from_static("none"))]);
        assert_eq!(sender(&no_host, false), Sender::OwnPage(None));
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

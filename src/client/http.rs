//! HTTP for all commands: `http://` and `https://`, one request per connection, bounded in time, size and redirects.
//!
//! Built directly on hyper: a higher-level client would pool connections and choose the local address, which matters here
//! because a master lists the address that an announcement comes from.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use url::{Position, Url};

use super::list::{ListError, size};
use super::{connect, tls};
use crate::text;

/// The longest list in one response: about 80,000 Iceball servers in `/master.json`, 700,000 addresses of Bloodmasters.
/// Larger lists come in pages.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// The longest response that is not a list: a diagnosis, or the reason for a refusal.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;

/// One or two redirects are normal (to TLS, to another host); more are a mistake.
const REDIRECTS_MAX: usize = 5;
/// How much of an error page is quoted in a message.
const REASON_CHARS_MAX: usize = 200;

const AGENT: &str = concat!("rallypoint/", env!("CARGO_PKG_VERSION"));

/// One request. With a body and its type, it is a POST.
pub struct Request {
    pub url: Url,
    pub post: Option<(&'static str, Vec<u8>)>,
    /// Beside those that every request has.
    pub headers: Vec<(&'static str, String)>,
    /// The local address to connect from.
    pub from: Option<IpAddr>,
    /// Redirects to another host are refused.
    pub same_host: bool,
    /// 0: the body is not read.
    pub bytes_max: usize,
    /// For the whole request, from the DNS lookup to the last byte of the response.
    pub timeout: Duration,
}

impl Request {
    /// A GET from the default local address.
    pub fn get(url: Url, bytes_max: usize, timeout: Duration) -> Request {
        Request { url, post: None, headers: Vec::new(), from: None, same_host: false, bytes_max, timeout }
    }

    /// The status and the body, after following redirects.
    pub async fn send(&self) -> Result<(StatusCode, Vec<u8>), ListError> {
        match timeout(self.timeout, self.follow()).await {
            Ok(answer) => answer,
            Err(_) => Err(ListError::Connect(io::ErrorKind::TimedOut.into())),
        }
    }

    /// The body, if the status is 200.
    pub async fn page(&self) -> Result<Vec<u8>, ListError> {
        let (status, body) = self.send().await?;
        if status == StatusCode::OK { Ok(body) } else { Err(refused(status, &body)) }
    }

    /// The body, if the status is 200; None if it is 404.
    pub async fn page_if_found(&self) -> Result<Option<Vec<u8>>, ListError> {
        match self.send().await? {
            (StatusCode::OK, body) => Ok(Some(body)),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, body) => Err(refused(status, &body)),
        }
    }

    /// The status and the headers, whatever they are: redirects are not followed.
    pub async fn send_once(&self) -> Result<(StatusCode, HeaderMap), ListError> {
        match timeout(self.timeout, self.one(&self.url)).await {
            Ok(answer) => answer.map(|answer| (answer.status, answer.headers)),
            Err(_) => Err(ListError::Connect(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn follow(&self) -> Result<(StatusCode, Vec<u8>), ListError> {
        let mut url = self.url.clone();
        let mut seen = Vec::new();
        loop {
            let answer = self.one(&url).await?;
            let Some(location) = answer.location() else {
                return Ok((answer.status, answer.body.map_err(ListError::Bad)?));
            };
            let next = redirect(&url, answer.status, location, self.post.is_some(), self.same_host);
            let next = next.map_err(ListError::Bad)?;
            seen.push(std::mem::replace(&mut url, next));
            if seen.contains(&url) {
                return Err(ListError::Bad(format!("its redirects loop back to {}", shown(&url))));
            }
            if seen.len() > REDIRECTS_MAX {
                return Err(ListError::Bad(format!("it redirects more than {REDIRECTS_MAX} times")));
            }
        }
    }

    /// One request on its own connection.
    async fn one(&self, url: &Url) -> Result<Answer, ListError> {
        let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = url.port_or_known_default().unwrap_or_default();
        let authority = format!("{}:{port}", url.host_str().unwrap_or_default());
        let stream = connect::connect(&authority, self.from).await?;
        if url.scheme() == "https" {
            self.exchange(url, tls::start(stream, host).await?).await.map_err(ListError::Bad)
        } else {
            self.exchange(url, stream).await.map_err(ListError::Bad)
        }
    }

    async fn exchange(
        &self,
        url: &Url,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Answer, String> {
        let failed = |error: hyper::Error| match error.is_parse() {
            true => format!("no HTTP answer: {error}; if it uses TLS, write https://"),
            false => format!("no HTTP answer: {error}"),
        };
        let method = if self.post.is_some() { "POST" } else { "GET" };
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let mut request =
            hyper::Request::builder().method(method).uri(&url[Position::BeforePath..Position::AfterQuery]);
        request =
            request.header(HOST, host).header(USER_AGENT, AGENT).header(ACCEPT, "*/*").header(CONNECTION, "close");
        if let Some((content_type, _)) = self.post {
            request = request.header(CONTENT_TYPE, content_type);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let body = Full::new(Bytes::from(self.post.as_ref().map(|(_, body)| body.clone()).unwrap_or_default()));
        let request = request.body(body).map_err(|error| error.to_string())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let talk = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            let (head, body) = response.into_parts();
            let mut answer = Answer { status: head.status, headers: head.headers, body: Ok(Vec::new()) };
            if answer.location().is_none() && self.bytes_max > 0 {
                answer.body = read(body, self.bytes_max).await;
            }
            Ok(answer)
        };
        // The connection has to be polled until the response is complete. If it ends first, the response has already
        // been received, or never comes.
        tokio::pin!(talk);
        tokio::select! {
            answer = &mut talk => answer,
            _ = connection => talk.await,
        }
    }
}

/// The error for any other status, with the first line of the answer.
fn refused(status: StatusCode, body: &[u8]) -> ListError {
    let says = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let says: String = text::clean(says).chars().take(REASON_CHARS_MAX).collect();
    ListError::Bad(format!("it answered {status}: {says}").trim_end_matches(": ").to_string())
}

/// An answer; of a redirect, and where it is not wanted, without its body.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Result<Vec<u8>, String>,
}

impl Answer {
    /// Where it redirects to. A redirect status without `Location` is treated as a normal response.
    fn location(&self) -> Option<&HeaderValue> {
        self.headers.get(LOCATION).filter(|_| matches!(self.status.as_u16(), 301..=303 | 307 | 308))
    }
}

/// Reads a body into at most `bytes_max` bytes of memory, whatever its length header says.
async fn read(mut body: Incoming, bytes_max: usize) -> Result<Vec<u8>, String> {
    let too_long = || format!("its answer is longer than {}", size(bytes_max));
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the HTTP answer is incomplete: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bytes_max {
            return Err(too_long());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// The target of a redirect. Never from TLS to plain text, and never to another protocol than HTTP. A POST is not turned into
/// a GET and stays on its host, so that no master can make us announce to a third party.
fn redirect(
    from: &Url,
    status: StatusCode,
    location: &HeaderValue,
    is_post: bool,
    same_host: bool,
) -> Result<Url, String> {
    let text = String::from_utf8_lossy(location.as_bytes());
    let mut to =
        from.join(&text).map_err(|_| format!("it redirects to `{}`, which is not a valid address", clean(&text)))?;
    to.set_fragment(None);
    let refused = |why: &str| Err(format!("it redirects to {}; {why}", shown(&to)));
    match (from.scheme(), to.scheme()) {
        ("https", "http") => return refused("not followed, because it leaves TLS"),
        (_, "http" | "https") => {}
        _ => return refused("only http and https are followed"),
    }
    if !to.username().is_empty() || to.password().is_some() {
        return refused("addresses with a login are not followed");
    }
    if is_post && status == StatusCode::SEE_OTHER {
        return refused("it sends us to another page instead of accepting the announcement");
    }
    if is_post && from.host() != to.host() {
        return refused(
            "announcements are not redirected to another host: if you trust that one, announce to it directly",
        );
    }
    if same_host && from.host() != to.host() {
        return refused("not followed, because it is another host");
    }
    Ok(to)
}

/// A redirect's target for messages, without a password.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("").and_then(|()| url.set_password(None)); // fails for URLs that cannot have a login
    clean(url.as_str())
}

fn clean(text: &str) -> String {
    text::clean(text.as_bytes()).chars().take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(from: &str, status: u16, location: &'static str, is_post: bool) -> Result<String, String> {
        let location = HeaderValue::from_static(location);
        let from = Url::parse(from).unwrap();
        redirect(&from, StatusCode::from_u16(status).unwrap(), &location, is_post, false).map(|url| url.to_string())
    }

    #[test]
    fn redirects_that_are_followed() {
        let from = "https://a.example/lists/x?y=z";
        for (location, leads_to) in [
            ("/b", "https://a.example/b"),
            ("b?c#d", "https://a.example/lists/b?c"),
            ("//b.example:8443/", "https://b.example:8443/"),
            ("https://[::1]/", "https://[::1]/"),
        ] {
            assert_eq!(to(from, 302, location, false).as_deref(), Ok(leads_to));
        }
        assert_eq!(to("http://a.example/", 301, "https://a.example/", true).as_deref(), Ok("https://a.example/"));
    }

    #[test]
    fn a_master_that_is_followed_sends_us_to_no_other_host() {
        let from = Url::parse("http://a.example/").unwrap();
        let to = |location| redirect(&from, StatusCode::FOUND, &HeaderValue::from_static(location), false, true);
        assert_eq!(to("https://a.example:8443/b").unwrap().as_str(), "https://a.example:8443/b");
        for other in ["http://127.0.0.1/", "https://b.example/", "//10.0.0.1/admin"] {
            assert!(to(other).unwrap_err().contains("another host"), "{other}");
        }
    }

    #[test]
    fn redirects_that_are_refused() {
        for (from, status, location, is_post, why) in [
            ("https://a.example/", 301, "http://a.example/", false, "it leaves TLS"),
            ("http://a.example/", 301, "file:///etc/passwd", false, "only http and https"),
            ("http://a.example/", 301, "ftp://a.example/", false, "only http and https"),
            ("http://a.example/", 301, "http://:x", false, "which is not a valid address"),
            ("http://a.example/", 301, "http://me:secret@a.example/", false, "addresses with a login"),
            ("http://a.example/", 303, "/done", true, "instead of accepting the announcement"),
            ("http://a.example/", 308, "http://b.example/", true, "not redirected to another host"),
        ] {
            let error = to(from, status, location, is_post).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{location}: {error}");
        }
    }
}

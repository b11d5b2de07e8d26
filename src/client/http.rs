//! HTTP for all commands: `http://` and `https://`, one request per connection, bounded in time, size and redirects.
//!
//! hyper speaks the protocol. A client library above it would pool connections and choose the local address, which
//! matters here: what a master lists is the address that an announcement comes from.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use url::{Position, Url};

use super::list::ListError;
use super::{connect, tls};
use crate::text;

/// The longest list in one piece: about 80,000 Iceball servers in `/master.json`, 700,000 addresses of Bloodmasters.
/// Larger lists come in pages.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// The longest answer that is not a list: a diagnosis, the reason of a refusal.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;

/// A page moves once or twice (to TLS, to another host); more is a mistake.
const REDIRECTS_MAX: usize = 5;
/// What a page says beside its status is for people, and short.
const REASON_CHARS_MAX: usize = 200;

const AGENT: &str = concat!("rallypoint/", env!("CARGO_PKG_VERSION"));

/// One request. `json` makes it a POST.
pub struct Request {
    pub url: Url,
    pub json: Option<Vec<u8>>,
    /// The address of this machine to come from.
    pub from: Option<IpAddr>,
    pub bytes_max: usize,
    /// For everything, from the look-up of the name to the last byte of the answer.
    pub patience: Duration,
}

impl Request {
    /// For a page from wherever this machine's connections come.
    pub fn get(url: Url, bytes_max: usize, patience: Duration) -> Request {
        Request { url, json: None, from: None, bytes_max, patience }
    }

    /// The status and the body, wherever redirects lead.
    pub async fn send(&self) -> Result<(StatusCode, Vec<u8>), ListError> {
        match timeout(self.patience, self.follow()).await {
            Ok(answer) => answer,
            Err(_) => Err(ListError::Connect(io::ErrorKind::TimedOut.into())),
        }
    }

    /// The body, when the status is 200.
    pub async fn page(&self) -> Result<Vec<u8>, ListError> {
        let (status, body) = self.send().await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let says = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let says: String = text::clean(says).chars().take(REASON_CHARS_MAX).collect();
        Err(ListError::Bad(format!("it answered {status}: {says}").trim_end_matches(": ").to_string()))
    }

    async fn follow(&self) -> Result<(StatusCode, Vec<u8>), ListError> {
        let mut url = self.url.clone();
        let mut seen = Vec::new();
        loop {
            let response = match self.one(&url).await? {
                Step::Done(status, body) => return Ok((status, body)),
                Step::Moved(response) => response,
            };
            let next = redirect(&url, response.status, &response.location, self.json.is_some());
            let next = next.map_err(ListError::Bad)?;
            seen.push(std::mem::replace(&mut url, next));
            if seen.contains(&url) {
                return Err(ListError::Bad(format!("its redirects go in a circle, back to {}", shown(&url))));
            }
            if seen.len() > REDIRECTS_MAX {
                return Err(ListError::Bad(format!("it redirects more than {REDIRECTS_MAX} times")));
            }
        }
    }

    /// One request on a connection of its own.
    async fn one(&self, url: &Url) -> Result<Step, ListError> {
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
    ) -> Result<Step, String> {
        let failed = |error: hyper::Error| match error.is_parse() {
            true => format!("no HTTP answer: {error}; does it speak TLS? Then write https://"),
            false => format!("no HTTP answer: {error}"),
        };
        let method = if self.json.is_some() { "POST" } else { "GET" };
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let mut request =
            hyper::Request::builder().method(method).uri(&url[Position::BeforePath..Position::AfterQuery]);
        request =
            request.header(HOST, host).header(USER_AGENT, AGENT).header(ACCEPT, "*/*").header(CONNECTION, "close");
        if self.json.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(self.json.clone().unwrap_or_default()));
        let request = request.body(body).map_err(|error| error.to_string())?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let talk = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            match Moved::of(&response) {
                Some(moved) => Ok(Step::Moved(moved)),
                None => Ok(Step::Done(response.status(), read(response.into_body(), self.bytes_max).await?)),
            }
        };
        // The connection is driven for as long as its one answer takes. When it ends first, the answer is already
        // there, or never comes.
        tokio::pin!(talk);
        tokio::select! {
            answer = &mut talk => answer,
            _ = connection => talk.await,
        }
    }
}

enum Step {
    Done(StatusCode, Vec<u8>),
    Moved(Moved),
}

struct Moved {
    status: StatusCode,
    location: HeaderValue,
}

impl Moved {
    /// A status of this kind without a place to go to is an answer like any other.
    fn of(response: &Response<Incoming>) -> Option<Moved> {
        let status = response.status();
        let location = response.headers().get(LOCATION).filter(|_| matches!(status.as_u16(), 301..=303 | 307 | 308));
        location.map(|location| Moved { status, location: location.clone() })
    }
}

/// A body that takes no more memory than its bound, however long it claims to be or goes on.
async fn read(mut body: Incoming, bytes_max: usize) -> Result<Vec<u8>, String> {
    let too_long = || match bytes_max >> 20 {
        0 => format!("its answer is longer than {} KiB", bytes_max >> 10),
        mib => format!("its answer is longer than {mib} MiB"),
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the HTTP answer breaks off: {error}"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bytes_max {
            return Err(too_long());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Where a redirect leads. Never from TLS to plain text, and never out of HTTP. A POST is not made a GET, and stays on the
/// host that it was meant for: a page elsewhere would be asked to do something that nobody asked it to.
fn redirect(from: &Url, status: StatusCode, location: &HeaderValue, is_post: bool) -> Result<Url, String> {
    let text = String::from_utf8_lossy(location.as_bytes());
    let mut to = from.join(&text).map_err(|_| format!("it redirects to `{}`, which is no address", clean(&text)))?;
    to.set_fragment(None);
    let refused = |why: &str| Err(format!("it redirects to {}; {why}", shown(&to)));
    match (from.scheme(), to.scheme()) {
        ("https", "http") => return refused("that is not followed, because it leaves TLS"),
        (_, "http" | "https") => {}
        _ => return refused("only http and https are followed"),
    }
    if !to.username().is_empty() || to.password().is_some() {
        return refused("addresses with a login are not followed");
    }
    if is_post && status == StatusCode::SEE_OTHER {
        return refused("it wants that page read instead of taking the announcement");
    }
    if is_post && from.host() != to.host() {
        return refused("announcements do not follow to another host: name it yourself if you trust it");
    }
    Ok(to)
}

/// Where a redirect leads, for people; without what may be a password.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("").and_then(|()| url.set_password(None)); // nobody logs in at most schemes
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
        redirect(&from, StatusCode::from_u16(status).unwrap(), &location, is_post).map(|url| url.to_string())
    }

    #[test]
    fn where_redirects_may_lead() {
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
    fn where_they_may_not() {
        for (from, status, location, is_post, why) in [
            ("https://a.example/", 301, "http://a.example/", false, "it leaves TLS"),
            ("http://a.example/", 301, "file:///etc/passwd", false, "only http and https"),
            ("http://a.example/", 301, "ftp://a.example/", false, "only http and https"),
            ("http://a.example/", 301, "http://:x", false, "which is no address"),
            ("http://a.example/", 301, "http://me:secret@a.example/", false, "addresses with a login"),
            ("http://a.example/", 303, "/done", true, "instead of taking the announcement"),
            ("http://a.example/", 308, "http://b.example/", true, "to another host"),
        ] {
            let error = to(from, status, location, is_post).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{location}: {error}");
        }
    }
}

//! Responses: rendered lists with conditional requests and encodings, and errors, which always have a body.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;

use super::{JSON, TEXT};
use crate::budget::Over;
use crate::encodings;
use crate::hub::{Held, Refusal};
use crate::protocols::post::PostAnswer;
use crate::registry::view::{self as list, Rendered, VARIANTS};
use crate::times;

/// Content encodings, best first. The index is that of [`Rendered::variant`].
const ENCODINGS: [Encoding; VARIANTS] = [("zstd", zstd), ("br", brotli), ("gzip", gzip)];

/// Its name, and how it is made.
type Encoding = (&'static str, fn(&list::Body) -> Option<list::Body>);

/// Shorter bodies are not encoded.
const ENCODED_BYTES_MIN: usize = 1024;
/// From this size on, encoding takes milliseconds.
const LONG_BODY: usize = 64 << 10;

/// How long a client may cache a list.
#[derive(Clone, Copy)]
pub enum Fresh {
    /// Revalidate every time, which costs a 304.
    Ask,
    Seconds(u32),
}

/// A rendered list: 304 when the client has it already, encoded when the client accepts that.
pub fn rendered(list: &Rendered, content_type: &'static str, request: &HeaderMap, fresh: Fresh) -> Response {
    let encoded = encoded(list, accepted_by(request));
    let etag = etag(list, encoded.as_ref());
    let is_known = knows(lines(request, header::IF_NONE_MATCH), &etag);
    response(list, content_type, encoded, &etag, is_known, fresh)
}

/// The same for a client whose headers were read before.
pub fn response(
    list: &Rendered,
    content_type: &'static str,
    encoded: Option<Encoded>,
    etag: &str,
    is_known: bool,
    fresh: Fresh,
) -> Response {
    let mut response = if is_known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let (name, body) = encoded.map_or((None, list.body.clone()), |(name, body)| (Some(name), body));
        let mut response = Response::new(sent(&body));
        set(&mut response, header::CONTENT_TYPE, content_type);
        if let Some(name) = name {
            set(&mut response, header::CONTENT_ENCODING, name);
        }
        response
    };
    set(&mut response, header::ETAG, etag);
    if let Some(as_of_ms) = list.as_of_ms {
        set(&mut response, header::LAST_MODIFIED, &times::http_date(as_of_ms / 1_000));
    }
    set(&mut response, header::VARY, "Accept-Encoding");
    match fresh {
        Fresh::Ask => set(&mut response, header::CACHE_CONTROL, "no-cache"),
        Fresh::Seconds(seconds) => set(&mut response, header::CACHE_CONTROL, &format!("public, max-age={seconds}")),
    }
    response
}

/// A list's body as hyper sends it: piece by piece, with its length.
fn sent(body: &list::Body) -> Body {
    match body.pieces() {
        [] => Body::empty(),
        [one] => Body::from(one.clone()),
        _ => Body::new(InPieces { body: body.clone(), sent: 0, left: body.len() as u64 }),
    }
}

struct InPieces {
    body: list::Body,
    /// How many pieces are gone, and how many bytes are left.
    sent: usize,
    left: u64,
}

impl hyper::body::Body for InPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.body.pieces().get(self.sent).cloned();
        self.sent += 1;
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The name of an encoding, and a body in it.
pub type Encoded = (&'static str, list::Body);

/// The tag of a list in an encoding. Each representation needs its own.
pub fn etag(list: &Rendered, encoded: Option<&Encoded>) -> String {
    match encoded {
        Some((name, _)) => format!("{}-{name}\"", list.etag.trim_end_matches('"')),
        None => list.etag.clone(),
    }
}

/// A list in an encoding, by its number, if that makes it smaller.
pub fn encoded(list: &Rendered, encoding: Option<usize>) -> Option<Encoded> {
    if list.body.len() < ENCODED_BYTES_MIN {
        return None;
    }
    let number = encoding?;
    let (name, encode) = ENCODINGS.get(number)?;
    let smaller = |body: &list::Body| encode(body).filter(|encoded| encoded.len() < body.len());
    list.want(number);
    let body = match list.made(number) {
        Some(made) => made,
        None if list.body.len() < LONG_BODY => list.variant(number, smaller),
        // It takes too long for this thread: see `long_encoding`.
        None => None,
    };
    Some((*name, body?))
}

/// The first encoding that the client accepts: its number.
pub fn accepted_by(request: &HeaderMap) -> Option<usize> {
    accepted(|| lines(request, header::ACCEPT_ENCODING))
}

/// The same for the lines of its Accept-Encoding.
pub fn accepted<'a, I: Iterator<Item = &'a [u8]>>(lines: impl Fn() -> I) -> Option<usize> {
    ENCODINGS.iter().position(|(name, _)| names_coding(lines(), name))
}

fn lines(request: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    request.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// How to encode a long list as the client accepts it, if nobody has. A request that finds another one encoding gets the list
/// unencoded.
pub fn long_encoding(
    list: &Arc<Rendered>,
    encoding: Option<usize>,
    held: &Arc<Held>,
) -> Option<impl FnOnce() + Send + use<>> {
    let number = encoding?;
    let (_, encode) = ENCODINGS.get(number)?;
    if list.body.len() < LONG_BODY || list.made(number).is_some() {
        return None;
    }
    let (begun, held) = (list.begin(number)?, held.clone());
    let smaller = move |body: &list::Body| encode(body).filter(|it| it.len() < body.len()).map(|it| held.count(it));
    Some(move || begun.make(smaller))
}

/// Encodes a long list as clients wanted the one before it, so that none of them has to wait for that.
pub fn encode_as_before(list: &Arc<Rendered>, before: &Rendered, held: &Arc<Held>) {
    for number in list.wanted_as(before) {
        if let Some(encode) = long_encoding(list, Some(number), held) {
            encode();
        }
    }
}

// Fast levels: a list is encoded once for each change of it.

fn gzip(body: &list::Body) -> Option<list::Body> {
    Some(encodings::gzip(body.pieces(), 5, list::Writer::default()).ok()?.finish())
}

fn brotli(body: &list::Body) -> Option<list::Body> {
    Some(encodings::brotli(body.pieces(), 4, list::Writer::default()).ok()?.finish())
}

fn zstd(body: &list::Body) -> Option<list::Body> {
    Some(encodings::zstd(body.pieces(), 3, list::Writer::default()).ok()?.finish())
}

/// A response in JSON that is not cached.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let mut response = Response::new(Body::from(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, JSON);
    set(&mut response, header::CACHE_CONTROL, "no-store");
    response
}

pub fn error(status: StatusCode, text: &str) -> Response {
    let mut response = Response::new(Body::from(text.to_string()));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, TEXT);
    response
}

/// A protocol's own answer, which is not cached.
pub fn own(answer: PostAnswer) -> Response {
    let mut response = Response::new(Body::from(answer.body.into_owned()));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_REQUEST);
    set(&mut response, header::CONTENT_TYPE, answer.content_type);
    set(&mut response, header::CACHE_CONTROL, "no-store");
    if let Some(after_s) = answer.retry_after_s {
        set(&mut response, header::RETRY_AFTER, &after_s.to_string());
    }
    response
}

/// A refusal for now.
pub fn try_later(reason: &str, after_s: u32) -> Response {
    later(StatusCode::TOO_MANY_REQUESTS, reason, after_s.into())
}

fn later(status: StatusCode, reason: &str, after_s: u64) -> Response {
    let mut response = error(status, &format!("{reason}\n"));
    set(&mut response, header::RETRY_AFTER, &after_s.to_string());
    set(&mut response, header::CACHE_CONTROL, "no-store");
    response
}

/// The client's network has used up its budget.
pub fn over(over: Over) -> Response {
    try_later(&over.to_string(), over.retry_after_s)
}

/// Work that was not done for a client: when to try again.
pub fn refused(refusal: Refusal) -> Response {
    let status = match refusal {
        Refusal::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::OverBudget { .. } => StatusCode::TOO_MANY_REQUESTS,
    };
    later(status, &refusal.to_string(), refusal.retry_after_s())
}

/// Sets a header; a value that is not valid in a header is left out.
pub fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Whether If-None-Match names this tag. Weak tags match, as the standard says for this header.
pub fn knows<'a>(mut lines: impl Iterator<Item = &'a [u8]>, etag: &str) -> bool {
    lines.any(|line| {
        // As nearly all clients write it: the tag of the answer that they have, as it was.
        line == etag.as_bytes()
            || text(line)
                .is_some_and(|line| line.split(',').any(|tag| tag.trim() == "*" || strong(tag.trim()) == strong(etag)))
    })
}

/// A tag without the mark of a weak one.
fn strong(tag: &str) -> &str {
    tag.trim_start_matches("W/")
}

/// A line of a header, if it is text.
fn text(line: &[u8]) -> Option<&str> {
    let is_text = line.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    str::from_utf8(line).ok().filter(|_| is_text)
}

/// Whether Accept-Encoding names this encoding with a weight that is not 0.
pub fn accepts(request: &HeaderMap, name: &str) -> bool {
    names_coding(lines(request, header::ACCEPT_ENCODING), name)
}

fn names_coding<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &str) -> bool {
    let mut codings = lines.filter_map(text).flat_map(|line| line.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_it = parts.next().is_some_and(|named| named.eq_ignore_ascii_case(name));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        is_it && weight != Some(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(HeaderName, &str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn encodings_only_for_those_who_can_take_them() {
        for (value, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.0, br", false),
            ("identity", false),
            ("xgzip", false),
        ] {
            assert_eq!(names_coding([value.as_bytes()].into_iter(), "gzip"), expected, "{value}");
        }
        assert!(!accepts(&HeaderMap::new(), "gzip") && !names_coding([&b"gzip, \xff"[..]].into_iter(), "gzip"));
    }

    #[test]
    fn a_known_tag_gets_304_and_no_body() {
        let list = Rendered::new("a body that repeats ".repeat(200));
        let plain = rendered(&list, TEXT, &HeaderMap::new(), Fresh::Ask);
        assert_eq!(plain.status(), StatusCode::OK);
        let etag = plain.headers()[header::ETAG].to_str().unwrap().to_string();
        for (value, expected) in [
            (etag.clone(), 304),
            (format!("\"x\", W/{etag}"), 304),
            ("*".into(), 304),
            ("\"x\"".into(), 200),
            (etag.replace('"', ""), 200),
        ] {
            let response = rendered(&list, TEXT, &request(&[(header::IF_NONE_MATCH, &value)]), Fresh::Seconds(2));
            assert_eq!(response.status(), expected, "{value}");
            assert_eq!(response.headers()[header::ETAG], etag);
            assert_eq!(response.headers()[header::CACHE_CONTROL], "public, max-age=2");
        }
        let mut tags = vec![etag];
        for (name, _) in ENCODINGS {
            let packed = rendered(&list, TEXT, &request(&[(header::ACCEPT_ENCODING, name)]), Fresh::Ask);
            assert_eq!(packed.headers()[header::CONTENT_ENCODING], name);
            assert_eq!(packed.headers()[header::VARY], "Accept-Encoding");
            tags.push(packed.headers()[header::ETAG].to_str().unwrap().to_string());
        }
        tags.dedup();
        assert_eq!(tags.len(), 4, "each representation has its own tag");
        let small = rendered(&Rendered::new("short"), TEXT, &request(&[(header::ACCEPT_ENCODING, "gzip")]), Fresh::Ask);
        assert!(small.headers().get(header::CONTENT_ENCODING).is_none());
    }
}

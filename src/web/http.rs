//! One HTTP connection, with hyper. What the games' clients need and libraries do not do by themselves is here:
//! header names in title case (`Length`, not `length`), a `Length` beside every `Content-Length`, no chunks.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower::Service;
use tracing::debug;

use super::door::Through;
use super::fast::{self, Left, Moving};
use super::routes::POSTS;
use super::{Home, Peer, Site, TEXT, api, reply, router};
use crate::hub::Refusal;
use crate::net::cores::{Cores, Place};
use crate::net::guard::Admission;
use crate::net::stopped;
use crate::net::tcp::{self, Entrance};
use crate::prefix::quota::Quota;

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest body of a request, except for what game servers post.
const BODY_BYTES_MAX: usize = 16 << 10;
/// What game servers post is long beyond this, which a full server of 128 players does not need.
const SHORT_POST_BYTES_MAX: usize = 32 << 10;
/// So many long bodies are read at a time, in all and from one address, each for no longer than this. Few games ever send one.
const LONG_BODIES_MAX: usize = 256;
const LONG_BODIES_PER_IP_MAX: u32 = 8;
const LONG_BODY_PATIENCE: Duration = Duration::from_secs(5);
const LENGTH: HeaderName = HeaderName::from_static("length");

/// What all connections of one listener share.
#[derive(Clone)]
pub struct HttpService {
    router: Router,
    site: Arc<Site>,
    pub entrance: Arc<Entrance>,
    pub stop: watch::Receiver<bool>,
    /// Whether its connections use TLS.
    is_secure: bool,
}

/// Where a connection goes on.
enum Next {
    /// In the runtime for other answers, with what was read.
    Others(Bytes),
    /// On the core of this place.
    Core(Place),
}

impl HttpService {
    pub fn new(site: Arc<Site>, home: Home, entrance: Arc<Entrance>, stop: watch::Receiver<bool>) -> HttpService {
        site.add_home(home);
        HttpService { router: router(site.clone(), home), site, entrance, stop, is_secure: false }
    }

    /// The same for connections that use TLS.
    pub fn over_tls(self) -> HttpService {
        HttpService { is_secure: true, ..self }
    }

    /// Serves a connection until it ends, is idle for too long, or the program stops. The idle time is for a request's whole
    /// head, and for every pause while the client reads an answer.
    pub async fn serve<S>(self, mut stream: S, peer: SocketAddr, admission: Arc<Admission>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if let Left::Other(begun) = self.serve_prepared(&mut stream, None, peer, &admission).await {
            self.serve_others(stream, begun, peer, admission).await;
        }
    }

    /// The same on the cores for prepared answers, which nothing else may hold up: a connection that asks for something else
    /// goes on in another runtime.
    pub async fn serve_on(
        self,
        cores: Arc<Cores>,
        others: Handle,
        stream: TcpStream,
        peer: SocketAddr,
        admission: Arc<Admission>,
    ) {
        let mut next = self.serve_at(cores.place(), stream, peer, &admission).await;
        while let Some((stream, place)) = next {
            let (service, admission) = (self.clone(), admission.clone());
            // A set of tasks ends them when it is dropped.
            let mut task = JoinSet::new();
            match place {
                Next::Others(begun) => {
                    let serve = async move {
                        let stream = TcpStream::from_std(stream).ok()?;
                        // A runtime does not know at first that it can write. The answer would seem to be one that the client does
                        // not take.
                        timeout(service.entrance.settings().idle, stream.writable()).await.ok()?.ok()?;
                        service.serve_others(stream, begun, peer, admission).await;
                        None
                    };
                    task.spawn_on(serve, &others);
                }
                Next::Core(place) => {
                    let Some(core) = place.handle().cloned() else { return };
                    debug!(%peer, "HTTP connection moves to another core");
                    let serve = async move {
                        let stream = TcpStream::from_std(stream).ok()?;
                        service.serve_at(Some(place), stream, peer, &admission).await
                    };
                    task.spawn_on(serve, &core);
                }
            }
            next = task.join_next().await.and_then(Result::ok).flatten();
        }
    }

    /// Answers requests for prepared lists on this thread. Returns the connection and where it goes on, if it does.
    async fn serve_at(
        &self,
        mut place: Option<Place>,
        mut stream: TcpStream,
        peer: SocketAddr,
        admission: &Admission,
    ) -> Option<(std::net::TcpStream, Next)> {
        let moving = place.as_mut().map(|place| Moving(place, tcp::arrives_on));
        let next = match self.serve_prepared(&mut stream, moving, peer, admission).await {
            Left::Ended => return None,
            Left::Other(begun) => Next::Others(begun),
            Left::Moved => Next::Core(place?),
        };
        Some((stream.into_std().ok()?, next))
    }

    /// Serves a connection with other answers, and only these.
    pub async fn serve_only<S>(self, router: Router, stream: S, peer: SocketAddr, admission: Arc<Admission>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        HttpService { router, ..self }.serve_others(stream, Bytes::new(), peer, admission).await;
    }

    /// Answers requests for prepared lists. Returns why no more are answered.
    async fn serve_prepared<S>(
        &self,
        stream: &mut S,
        moving: Option<Moving<'_, S>>,
        peer: SocketAddr,
        admission: &Admission,
    ) -> Left
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (site, entrance, stop) = (&self.site, &self.entrance, self.stop.clone());
        let fast = fast::Connection::new(stream, moving, (site, self.is_secure), entrance, peer, admission, stop);
        fast.serve().await.unwrap_or_else(|error| {
            debug!(%peer, %error, "HTTP connection ended");
            Left::Ended
        })
    }

    /// Serves a connection of which these bytes were read.
    async fn serve_others<S>(mut self, stream: S, begun: Bytes, peer: SocketAddr, admission: Arc<Admission>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let idle = self.entrance.settings().idle;
        let mut stream = TimeoutStream::new(Touching { stream, begun, admission, instead: None });
        stream.set_write_timeout(Some(idle));
        let (router, entrance, long_bodies) = (self.router, self.entrance, self.site.long_bodies.clone());
        let (site, is_secure) = (self.site, self.is_secure);
        let service = service_fn(move |request: Request<Incoming>| {
            let settings = entrance.settings();
            let lines = request.headers().get_all(settings.proxies.header.name());
            let names = request.headers().keys().map(HeaderName::as_str);
            let client = client(&entrance, &settings, peer, lines.iter().map(HeaderValue::as_bytes), names);
            let hsts = site.hsts(is_secure);
            let reading = Reading { idle, long_bodies: long_bodies.clone() };
            answer(router.clone(), client, request, reading, hsts)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .title_case_headers(true)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let mut connection = std::pin::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stopped(&mut self.stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            debug!(%peer, %error, "HTTP connection ended");
        }
    }
}

/// A stream whose connection counts as active whenever the client reads something.
struct Touching<S> {
    stream: S,
    /// What was read of it before.
    begun: Bytes,
    admission: Arc<Admission>,
    /// What is sent instead of hyper's own answer.
    instead: Option<Bytes>,
}

/// Hyper answers what it cannot read as a request, without a body. The games' clients need a `Length` and a body in
/// every answer, so they are added here.
fn in_our_words(hypers: &[u8]) -> Option<Bytes> {
    // Almost everything that is written is longer than such an answer.
    let is_short = hypers.len() < 1024 && hypers.starts_with(b"HTTP/1.1 4");
    let head = str::from_utf8(hypers).ok().filter(|_| is_short)?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split("\r\n").next()?;
    let text = match status {
        "400 Bad Request" => "this cannot be read as a request\n",
        "431 Request Header Fields Too Large" => "the head of the request is too long\n",
        _ => return None,
    };
    let size = text.len();
    head.contains("\r\nContent-Length: 0\r\n").then(|| {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {TEXT}\r\nContent-Length: {size}\r\nLength: {size}\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        );
        (head + text).into()
    })
}

impl<S: AsyncWrite + Unpin> Touching<S> {
    /// Sends the replacement; ready when all of it is written.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.instead.as_mut().filter(|rest| !rest.is_empty()) {
            let taken = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if taken == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            rest.advance(taken);
        }
        self.instead = None;
        Poll::Ready(Ok(()))
    }
}

impl<S> Touching<S> {
    /// A client that does not take an answer holds it in memory.
    fn holding(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            self.admission.hold();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Touching<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.begun.is_empty() {
            let size = self.begun.len().min(buf.remaining());
            buf.put_slice(&self.begun.split_to(size));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Touching<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.admission.touch();
        if self.instead.is_none() {
            self.instead = in_our_words(buf);
        }
        if self.instead.is_some() {
            ready!(self.poll_instead(cx))?;
            return Poll::Ready(Ok(buf.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.holding(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            [only] => self.poll_write(cx, only),
            _ => {
                self.admission.touch();
                let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
                self.holding(written)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when hyper has written all of its answer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.admission.release();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The client of a request, and the forgotten proxy that it came through; none if the client is banned. A banned peer is not let
/// in at all; behind a proxy, only its requests show who it is. `lines` are those of the header that names clients, `names` the
/// names of all headers.
pub fn client<'a>(
    entrance: &Entrance,
    settings: &tcp::Settings,
    peer: SocketAddr,
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    names: impl Iterator<Item = &'a str>,
) -> Option<(Peer, Through)> {
    let client = settings.proxies.client(peer, lines);
    let is_banned = client.ip() != peer.ip() && entrance.guard.bans().contains(client.ip());
    (!is_banned).then(|| (Peer(client), Through::of(&settings.proxies, peer.ip(), names)))
}

/// The places for long bodies.
pub fn long_bodies() -> Quota {
    Quota::new(LONG_BODIES_MAX, LONG_BODIES_PER_IP_MAX)
}

/// How bodies are read.
struct Reading {
    idle: Duration,
    long_bodies: Quota,
}

/// The longest body at a path, and whether one of this size is long. A size that is not said in advance may be any.
fn bounds(path: &str, size: Option<u64>) -> (usize, bool) {
    let bytes_max = POSTS.iter().find(|(post, _)| *post == path).map_or(BODY_BYTES_MAX, |(_, most)| *most);
    let may_be_long = bytes_max > SHORT_POST_BYTES_MAX;
    (bytes_max, may_be_long && size.is_none_or(|size| size > SHORT_POST_BYTES_MAX as u64))
}

/// A request with its whole body, or an error. A GET or HEAD has no body to wait for.
async fn whole(
    request: Request<Incoming>,
    Peer(peer): Peer,
    Reading { idle, long_bodies }: Reading,
) -> Result<Request<Body>, Response<Body>> {
    if request.body().is_end_stream() || [Method::GET, Method::HEAD].contains(request.method()) {
        return Ok(request.map(Body::new));
    }
    let (head, body) = request.into_parts();
    let (bytes_max, is_long) = bounds(head.uri.path(), body.size_hint().exact());
    // Together, long bodies are bounded, and nobody takes all of their places.
    let _place = match is_long.then(|| long_bodies.take(peer.ip())) {
        Some(None) => return Err(reply::refused(Refusal::Busy)),
        place => place,
    };
    let patience = if is_long { idle.min(LONG_BODY_PATIENCE) } else { idle };
    let (status, why) = match timeout(patience, Limited::new(body, bytes_max).collect()).await {
        Ok(Ok(body)) => return Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Ok(Err(_)) => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too long, or was cut off\n"),
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time\n"),
    };
    let mut response = reply::error(status, why);
    reply::set(&mut response, header::CONNECTION, "close");
    Err(response)
}

async fn answer(
    mut router: Router,
    client: Option<(Peer, Through)>,
    request: Request<Incoming>,
    reading: Reading,
    hsts: Option<HeaderValue>,
) -> Result<Response<Body>, Infallible> {
    let is_api = api::is_api(request.uri().path());
    let accepted = async {
        let banned = || reply::error(StatusCode::FORBIDDEN, "your address is banned here\n");
        let (client, through) = client.ok_or_else(banned)?;
        let mut request = whole(request, client, reading).await?;
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(through);
        Ok(request)
    };
    let mut response = match accepted.await {
        Ok(request) => router.call(request).await?,
        Err(response) if is_api => api::in_json(response).await,
        Err(response) => response,
    };
    finish(&mut response);
    if let Some(hsts) = hsts {
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, hsts);
    }
    Ok(response)
}

/// Adds what every answer has: its length, if it has a body, and that it is what it says.
pub fn finish(response: &mut Response<Body>) {
    if response.status() != StatusCode::NOT_MODIFIED
        && !response.headers().contains_key(header::CONTENT_LENGTH)
        && let Some(size) = response.body().size_hint().exact()
    {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    // A 304 has no body, and no length.
    let has_body = response.status() != StatusCode::NOT_MODIFIED;
    if let Some(size) = response.headers().get(header::CONTENT_LENGTH).cloned().filter(|_| has_body) {
        response.headers_mut().insert(LENGTH, size);
    }
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_bodies_of_one_address_or_network_leave_room_for_others() {
        let places = long_bodies();
        let take =
            |ips: Vec<String>| -> Vec<_> { ips.iter().filter_map(|ip| places.take(ip.parse().unwrap())).collect() };
        let address = take(vec!["203.0.113.1".into(); 100]);
        // Each of the 65,536 networks of a customer, in their order.
        let customer = take((0..=u16::MAX).map(|subnet| format!("2001:db8:0:{subnet:x}::1")).collect());
        assert_eq!((address.len(), customer.len()), (8, 128));
        assert!(places.take([203, 0, 113, 2].into()).is_some());
        assert!(places.take("2001:db8:1::1".parse().unwrap()).is_some());
        drop(address);
        assert!(places.take([203, 0, 113, 1].into()).is_some());
    }

    #[test]
    fn only_what_game_servers_post_can_be_long_and_most_of_it_is_not() {
        for (path, bytes_max) in POSTS.iter() {
            assert_eq!(bounds(path, Some(24 << 10)), (*bytes_max, false), "{path}: a full server");
            assert_eq!(bounds(path, Some((32 << 10) + 1)), (*bytes_max, true), "{path}");
            assert_eq!(bounds(path, None), (*bytes_max, true), "{path}");
        }
        assert_eq!(bounds("/api/v1/heartbeat", None), (BODY_BYTES_MAX, false));
    }
}

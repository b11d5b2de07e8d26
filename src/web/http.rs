//! One HTTP connection, with hyper. What the games' clients need and libraries do not do by themselves is here:
//! header names in title case (`Length`, not `length`), a `Length` beside every `Content-Length`, no chunks.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;
use tower::Service;
use tracing::debug;

use super::Peer;
use crate::net::guard::Admission;
use crate::net::stopped;

/// A request's head may be this long; nothing that is asked for here is longer.
const HEAD_BYTES_MAX: usize = 16 << 10;
const LENGTH: HeaderName = HeaderName::from_static("length");

#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// For a request's whole head, and for every pause while an answer is taken.
    pub idle: Duration,
}

/// Serves a connection until it ends, is idle for too long, or the program stops.
pub async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    admission: Arc<Admission>,
    router: Router,
    limits: HttpLimits,
    mut stop: watch::Receiver<bool>,
) {
    let mut stream = TimeoutStream::new(Touching { stream, admission });
    stream.set_write_timeout(Some(limits.idle));
    let service = service_fn(move |request: Request<Incoming>| answer(router.clone(), peer, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .title_case_headers(true)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        debug!(%peer, %error, "HTTP connection ended");
    }
}

/// A stream whose connection counts as active whenever the other side takes something.
struct Touching {
    stream: TcpStream,
    admission: Arc<Admission>,
}

impl AsyncRead for Touching {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Touching {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.admission.touch();
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.admission.touch();
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn answer(
    mut router: Router,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Peer(peer));
    let mut response = router.call(request).await?;
    if response.status() != StatusCode::NOT_MODIFIED
        && !response.headers().contains_key(header::CONTENT_LENGTH)
        && let Some(size) = response.body().size_hint().exact()
    {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    // A 304 has no body, and says nothing of the length of what it stands for.
    let has_body = response.status() != StatusCode::NOT_MODIFIED;
    if let Some(size) = response.headers().get(header::CONTENT_LENGTH).cloned().filter(|_| has_body) {
        response.headers_mut().insert(LENGTH, size);
    }
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    Ok(response)
}

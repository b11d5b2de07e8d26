//! One HTTP connection, with hyper. What the games' clients need and libraries do not do by themselves is here:
//! header names in title case (`Length`, not `length`), a `Length` beside every `Content-Length`, no chunks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderName, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
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
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.idle));
    let service = service_fn(move |request: Request<Incoming>| {
        admission.touch();
        answer(router.clone(), peer, request)
    });
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

async fn answer(
    mut router: Router,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(Peer(peer));
    let mut response = router.call(request).await?;
    if !response.headers().contains_key(header::CONTENT_LENGTH)
        && let Some(size) = response.body().size_hint().exact()
    {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    if let Some(size) = response.headers().get(header::CONTENT_LENGTH).cloned() {
        response.headers_mut().insert(LENGTH, size);
    }
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    Ok(response)
}

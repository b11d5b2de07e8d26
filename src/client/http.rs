//! One request over plain HTTP, bounded in time and size.

use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::list::{ListError, PATIENCE};
use super::reach::connect;
use crate::text;

/// The longest body that is read: a million servers fit.
pub const BODY_BYTES_MAX: usize = 256 << 20;

const AGENT: &str = concat!("rallypoint/", env!("CARGO_PKG_VERSION"));

/// The body of a page, when its status is 200.
pub async fn get(authority: &str, path: &str) -> Result<Bytes, ListError> {
    let stream = connect(authority, None).await?;
    let talk = exchange(stream, authority, path, None, BODY_BYTES_MAX);
    let (status, body) = match timeout(PATIENCE, talk).await {
        Ok(answer) => answer.map_err(ListError::Bad)?,
        Err(_) => return Err(ListError::Connect(io::ErrorKind::TimedOut.into())),
    };
    if status == StatusCode::OK {
        return Ok(body);
    }
    // What a page says beside its status is for people, and short.
    let says = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let says: String = text::clean(says).chars().take(200).collect();
    Err(ListError::Bad(format!("it answered {status}: {says}").trim_end_matches(": ").to_string()))
}

/// One request on a connection of its own: the status and the body. `json` makes it a POST.
pub async fn exchange(
    stream: TcpStream,
    host: &str,
    path: &str,
    json: Option<Vec<u8>>,
    bytes_max: usize,
) -> Result<(StatusCode, Bytes), String> {
    let failed = |error: hyper::Error| format!("no HTTP answer: {error}");
    let method = if json.is_some() { "POST" } else { "GET" };
    let mut request = Request::builder().method(method).uri(path);
    request = request.header(HOST, host).header(USER_AGENT, AGENT).header(ACCEPT, "*/*").header(CONNECTION, "close");
    if json.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(Full::new(Bytes::from(json.unwrap_or_default()))).map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        let body = body.map_err(|error| format!("the HTTP answer is cut or too long: {error}"))?;
        Ok((status, body.to_bytes()))
    };
    // The connection is driven for as long as its one answer takes. When it ends first, the answer is already there,
    // or never comes.
    tokio::pin!(talk);
    tokio::select! {
        answer = &mut talk => answer,
        _ = connection => talk.await,
    }
}

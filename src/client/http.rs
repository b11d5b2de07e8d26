//! One GET over plain HTTP, bounded in time and size.

use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::list::{ListError, PATIENCE, connect};
use crate::text;

/// The longest body that is read: a hundred thousand servers fit.
const BODY_BYTES_MAX: usize = 32 << 20;

const AGENT: &str = concat!("rallypoint/", env!("CARGO_PKG_VERSION"));

/// The body of a page, when its status is 200; `source` is the address of this machine to come from.
pub async fn get(source: Option<IpAddr>, authority: &str, path: &str) -> Result<Bytes, ListError> {
    let stream = connect(authority, source).await?;
    let too_long = || ListError::Connect(io::ErrorKind::TimedOut.into());
    timeout(PATIENCE, exchange(stream, authority, path)).await.unwrap_or_else(|_| Err(too_long()))
}

async fn exchange(stream: TcpStream, authority: &str, path: &str) -> Result<Bytes, ListError> {
    let bad = |error: &dyn std::fmt::Display| ListError::Bad(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| bad(&error))?;
    let request = Request::get(path)
        .header(HOST, authority)
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "*/*")
        .body(Empty::<Bytes>::new())
        .map_err(|error| bad(&error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| bad(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| bad(&error))?.to_bytes();
        if status == 200 {
            return Ok(body);
        }
        // What a page says beside its status is for people, and short.
        let says = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let says: String = text::clean(says).chars().take(200).collect();
        Err(ListError::Bad(format!("it answered {status}: {says}").trim_end_matches(": ").to_string()))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection ends first when the other side closes it; the answer may be in by then.
        _ = connection => answer.await,
    }
}

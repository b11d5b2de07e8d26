//! One HTTP request and its bounded answer.

use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const ANSWER_BYTES_MAX: usize = 256 << 10;
const NAME: &str = concat!("rallypoint/", env!("CARGO_PKG_VERSION"));

/// The status and the body. `json` makes it a POST.
pub async fn exchange(
    stream: TcpStream,
    host: &str,
    path: &str,
    json: Option<Vec<u8>>,
) -> Result<(u16, Bytes), String> {
    let failed = |error: hyper::Error| format!("no HTTP answer: {error}");
    let method = if json.is_some() { "POST" } else { "GET" };
    let mut request = Request::builder().method(method).uri(path);
    request = request.header(HOST, host).header(USER_AGENT, NAME).header(CONNECTION, "close");
    if json.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request.body(Full::new(Bytes::from(json.unwrap_or_default()))).map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
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

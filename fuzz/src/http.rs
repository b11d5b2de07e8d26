//! Whole HTTP connections through the real server, in memory. Every answer is well formed and carries its length, and none
//! says that the server failed.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::tape::Tape;
use super::world;
use rallypoint::net::guard::Guard;
use rallypoint::web::HttpService;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

/// Asked for behind every input, so that the connection ends.
const LAST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
/// How long to wait for an answer. Events never end.
const PATIENCE: Duration = Duration::from_millis(30);
const ANSWER_BYTES_MAX: usize = 1 << 20;

struct Server {
    runtime: Runtime,
    service: HttpService,
    guard: Arc<Guard>,
    _stop: watch::Sender<bool>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let stop = watch::Sender::new(false);
    let (service, guard) = runtime.block_on(async { world::http(stop.subscribe()) });
    Server { runtime, service, guard, _stop: stop }
});

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let (peers, split) = (peers(), usize::from(tape.byte()));
    let peer = *tape.choice(&peers);
    let bytes = tape.rest();
    let answers = SERVER.runtime.block_on(exchange(peer, bytes.split_at(split.min(bytes.len()))));
    check(&answers);
}

/// The status and the body of an answer; status 0 if none came in time.
pub fn ask(path: &str) -> (u16, Vec<u8>) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = SERVER.runtime.block_on(exchange(peers()[0], (request.as_bytes(), b"")));
    check(&answer);
    let status = answer.get(9..12).and_then(|code| str::from_utf8(code).ok()?.parse().ok()).unwrap_or(0);
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(answer.len(), |end| end + 4);
    let length = str::from_utf8(&answer[..end]).ok().and_then(|head| {
        let (_, rest) = head.split_once("Content-Length: ")?;
        rest.split("\r\n").next()?.parse::<usize>().ok()
    });
    let body = answer[end..].to_vec();
    // Cut short: it did not come in time.
    if length.is_some_and(|length| body.len() < length) { (0, body) } else { (status, body) }
}

fn peers() -> [SocketAddr; 2] {
    [([127, 0, 0, 1], 40_000).into(), ([0, 0, 0, 0, 0, 0, 0, 1], 40_000).into()]
}

async fn exchange(peer: SocketAddr, parts: (&[u8], &[u8])) -> Vec<u8> {
    let (mut client, server) = duplex(1 << 16);
    let admission = Arc::new(SERVER.guard.admit(peer.ip()).expect("an admission"));
    let serving = tokio::spawn(SERVER.service.clone().serve(server, peer, admission));
    for part in [parts.0, parts.1, LAST] {
        if client.write_all(part).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut answers = Vec::new();
    while answers.len() < ANSWER_BYTES_MAX {
        match timeout(PATIENCE, client.read_buf(&mut answers)).await {
            Ok(Ok(size)) if size > 0 => {}
            _ => break,
        }
    }
    drop(client);
    // A stream of events ends when it notices that, seconds later.
    tokio::task::yield_now().await;
    serving.abort();
    assert!(!serving.await.is_err_and(|error| error.is_panic()), "a panic");
    answers
}

/// A sequence of answers, of which the last may be cut.
fn check(mut answers: &[u8]) {
    while let Some(end) = answers.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
        let head = str::from_utf8(&answers[..end]).expect("a head is text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")));
        let status = status.and_then(|line| line.get(..3)).and_then(|code| code.parse::<u16>().ok());
        let status = status.unwrap_or_else(|| panic!("not an answer: {head}"));
        assert!(status < 500 || status == 503, "{head}");
        let headers: Vec<(String, &str)> = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("not a header: {line:?}")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect();
        assert!(headers.iter().all(|(_, value)| !value.chars().any(char::is_control)), "{head}");
        let value = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
        let length = value("content-length").and_then(|length| length.parse::<usize>().ok());
        let has_body = status != 304 && status != 204;
        let has_length = length.is_none() || value("length") == value("content-length");
        assert!(has_length || !has_body, "no Length: {head}");
        // The games' clients cannot read chunks; only events come in them.
        let has_events = value("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        assert!(value("transfer-encoding").is_none() || has_events, "{head}");
        answers = &answers[end + 4..];
        // An answer to HEAD has a length and no body.
        let is_head = answers.starts_with(b"HTTP/1.") || answers.is_empty();
        let Some(length) = length.filter(|_| !is_head) else {
            if is_head || !has_body {
                continue;
            }
            return; // the rest of the connection is its body
        };
        answers = answers.get(length..).unwrap_or_default();
    }
}

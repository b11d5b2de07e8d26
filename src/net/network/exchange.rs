//! Exchanges with other masters: one message and its answer, to one master or to many.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::protocols::network::NetworkRules;

/// Upper bound on the size of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Upper bound on simultaneous exchanges; fewer than the descriptors that are reserved from connections.
pub const AT_ONCE_MAX: usize = 96;

/// A master: its name in messages, and its possible addresses. The first that accepts a connection is used.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub addresses: Vec<SocketAddr>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.addresses.as_slice() {
            [place] if place.to_string() != self.name => write!(f, " ({place})"),
            _ => Ok(()),
        }
    }
}

/// An answer, and the two ends of its connection.
pub struct Exchanged {
    pub answer: Vec<u8>,
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

/// Sends one message and reads its answer until it is complete or the connection is closed. `note` is called before anything
/// is sent.
pub async fn exchange(
    target: &Target,
    rules: &dyn NetworkRules,
    message: &[u8],
    limit: Duration,
    note: impl FnOnce(SocketAddr),
) -> io::Result<Exchanged> {
    let talk = async {
        let mut stream = TcpStream::connect(target.addresses.as_slice()).await?;
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        note(peer);
        stream.write_all(message).await?;
        let mut answer = Vec::new();
        let mut limited = (&mut stream).take(ANSWER_BYTES_MAX);
        while !rules.is_whole(&answer) && limited.read_buf(&mut answer).await? > 0 {}
        Ok(Exchanged { answer, local, peer })
    };
    let too_late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    timeout(limit, talk).await.unwrap_or_else(|_| Err(too_late()))
}

/// Sends the same message to many masters, a limited number at a time.
pub async fn exchange_all(
    targets: Vec<Target>,
    rules: &'static dyn NetworkRules,
    message: Vec<u8>,
    limit: Duration,
    note: impl Fn(SocketAddr) + Clone + Send + 'static,
) -> Vec<(Target, io::Result<Exchanged>)> {
    let (turns, message) = (Arc::new(Semaphore::new(AT_ONCE_MAX)), Arc::<[u8]>::from(message));
    let mut exchanges = JoinSet::new();
    for target in targets {
        let (turns, message, note) = (turns.clone(), message.clone(), note.clone());
        exchanges.spawn(async move {
            let _turn = turns.acquire().await;
            let exchanged = exchange(&target, rules, &message, limit, note).await;
            (target, exchanged)
        });
    }
    let mut results = Vec::new();
    while let Some(result) = exchanges.join_next().await {
        results.extend(result);
    }
    results
}

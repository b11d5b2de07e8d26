//! A TCP conversation, driven for a protocol's session: reads for it, writes for it, keeps its time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::door::Door;
use super::guard::Admission;
use crate::metrics::Metrics;
use crate::protocols::{Event, Next, Session, StreamRules};

/// Read at once; requests are shorter, and more only waits its turn.
const READ_BYTES: usize = 4096;
/// Answers are put together up to this size, so that they leave in one segment where they fit.
const GATHER_BYTES_MAX: usize = 64 << 10;
/// After the last answer, what the client still sends is read and forgotten for this long and this much: a close with
/// unread bytes would be a reset, which takes the answer away from the client.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 256 << 10;

/// The rules of a protocol, replaced as a whole when the configuration changes.
pub type SharedStreamRules = Arc<ArcSwap<Box<dyn StreamRules>>>;

/// What all conversations of one protocol share.
pub struct Desk {
    pub game: &'static str,
    pub rules: SharedStreamRules,
    pub door: Arc<Door>,
    pub metrics: Arc<Metrics>,
}

/// Serves one connection to its end.
pub async fn serve(stream: TcpStream, peer: SocketAddr, admission: Arc<Admission>, desk: Arc<Desk>, idle: Duration) {
    let Ok(local) = stream.local_addr() else { return };
    let mut random = [0; 4];
    if getrandom::fill(&mut random).is_err() {
        return;
    }
    let (session, idle) = {
        let rules = desk.rules.load();
        let idle = rules.patience_ms().map_or(idle, |own| idle.min(Duration::from_millis(own)));
        (rules.open(peer, local, u32::from_ne_bytes(random)), idle)
    };
    let mut conversation = Conversation { stream, session, door: desk.door.clone(), admission, idle };
    if let Err(error) = conversation.run().await {
        debug!(%peer, %error, "conversation ended");
    }
    desk.metrics.listed(desk.game, conversation.session.lists());
}

struct Conversation {
    stream: TcpStream,
    session: Box<dyn Session>,
    door: Arc<Door>,
    admission: Arc<Admission>,
    idle: Duration,
}

impl Conversation {
    async fn run(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        let mut out = Vec::new();
        let mut next = self.tell(Event::Opened, &mut out);
        // A request has to be whole within the idle time; an answer begins the time anew.
        let mut deadline = Instant::now() + self.idle;
        let mut ended = false;
        loop {
            // Before it is answered: whoever hears that a server is gone may look at once.
            if let Next::Quit { address, master } = next {
                self.door.quit(address, master).await;
            }
            if !out.is_empty() {
                timeout(self.idle, write(&mut self.stream, &mut out)).await??;
                self.admission.touch();
                deadline = Instant::now() + self.idle;
            }
            next = match next {
                Next::Read => {
                    let size = timeout_at(deadline, self.stream.read(&mut buffer)).await??;
                    ended = size == 0;
                    let event = if ended { Event::Ended } else { Event::Bytes(buffer.get(..size).unwrap_or_default()) };
                    self.tell(event, &mut out)
                }
                Next::Announce(heartbeat) => {
                    let verdict = self.door.announce(heartbeat).await;
                    self.tell(Event::Verdict(verdict), &mut out)
                }
                Next::Close | Next::Quit { .. } if ended => return Ok(()), // nothing more can come
                Next::Close | Next::Quit { .. } => break,
            };
        }
        self.stream.shutdown().await?;
        let _ = timeout(LINGER, self.forget_the_rest(&mut buffer)).await; // long enough
        Ok(())
    }

    fn tell(&mut self, event: Event<'_>, out: &mut Vec<Bytes>) -> Next {
        self.session.on(event, &self.door.hub.view(), out)
    }

    async fn forget_the_rest(&mut self, buffer: &mut [u8]) {
        let mut forgotten = 0;
        while forgotten < LINGER_BYTES_MAX {
            match self.stream.read(buffer).await {
                Ok(0) | Err(_) => return,
                Ok(size) => forgotten += size,
            }
        }
    }
}

async fn write(stream: &mut TcpStream, out: &mut Vec<Bytes>) -> std::io::Result<()> {
    let size: usize = out.iter().map(Bytes::len).sum();
    if size <= GATHER_BYTES_MAX {
        let gathered = out.concat();
        out.clear();
        return stream.write_all(&gathered).await;
    }
    for part in out.drain(..) {
        stream.write_all(&part).await?;
    }
    Ok(())
}

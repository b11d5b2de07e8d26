//! Drives a protocol's announcer over a UDP socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{sleep, sleep_until};

use super::{End, MasterTask, Status, stopped};
use crate::client::connect::{addresses, any_port};
use crate::protocols::announce::{Announcer, Complaint, MasterReply, Offer, Pace, Round, StartAnnouncer, Step};
use crate::protocols::announce_every_ms;

/// The longest answer that UDP can carry.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// Delay after a socket error, so that a permanent one does not keep a core busy.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// A socket and its master. Kept for as long as the master answers.
struct Connection {
    socket: UdpSocket,
    master: SocketAddr,
    offer: Offer,
    error: Option<io::Error>,
}

struct Exchange {
    announcer: Box<dyn Announcer>,
    /// For rounds that fail before anything is sent.
    pace: Pace,
    connection: Option<Connection>,
    /// Rounds without an answer so far.
    tries: usize,
}

impl MasterTask<'_> {
    pub(super) async fn announce_by_datagrams(&mut self, start: StartAnnouncer) -> End {
        let announcer = match start(self.now_ms(), &self.plan.offer) {
            Ok(announcer) => announcer,
            Err(why) => {
                self.report(Status::GivenUp(why));
                return End::Failed;
            }
        };
        let every_ms = announce_every_ms(&self.plan.offer.game);
        let mut exchange = Exchange { announcer, pace: Pace::new(self.now_ms(), every_ms), connection: None, tries: 0 };
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut stop = self.stop.clone();
        loop {
            let next = async {
                let due = self.at(exchange.announcer.due_ms());
                tokio::select! {
                    () = sleep_until(due) => self.step(&mut exchange).await,
                    (connection, bytes) = receive(&mut exchange.connection, &mut buffer) => {
                        self.heard(exchange.announcer.as_mut(), connection, bytes).await
                    }
                }
            };
            let end = tokio::select! {
                () = stopped(&mut stop) => Some(End::Stopped),
                end = next => end,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Does what is due. Returns the end of this task, if it is over.
    async fn step(&mut self, exchange: &mut Exchange) -> Option<End> {
        match exchange.announcer.step(self.now_ms())? {
            Step::Prepare => match self.prepare(exchange.connection.take(), exchange.tries).await {
                Ok(connection) => {
                    exchange.connection = Some(connection);
                    exchange.announcer.ready(self.now_ms());
                    None
                }
                Err(status) => {
                    exchange.pace.failed(self.now_ms());
                    exchange.announcer.put_off(exchange.pace.due_ms());
                    self.failed(status)
                }
            },
            Step::Announce => {
                if let Some(connection) = &mut exchange.connection {
                    let sent = connection.socket.send(&exchange.announcer.announcement(&connection.offer)).await;
                    connection.error = sent.err().or(connection.error.take());
                }
                None
            }
            Step::Finish(Round::Accepted) => {
                exchange.pace.accepted(self.now_ms());
                exchange.tries = 0;
                self.plan.once.then_some(End::Accepted)
            }
            // The next round uses another port, which a forger would have to guess again.
            Step::Finish(round) => {
                exchange.tries += 1;
                let error = exchange.connection.take().and_then(|connection| connection.error);
                self.failed(match (round, error) {
                    (Round::Doubted(why), _) => Status::Refused(why.into()),
                    (_, Some(error)) => Status::Failed(error.to_string()),
                    (_, None) => Status::Failed("no answer".into()),
                })
            }
            Step::Believe(complaint) => self.complained(complaint),
        }
    }

    fn failed(&mut self, status: Status) -> Option<End> {
        self.report(status);
        self.plan.once.then_some(End::Failed)
    }

    /// Queries the game, and resolves the master's name unless there is a connection already.
    async fn prepare(&self, connection: Option<Connection>, tries: usize) -> Result<Connection, Status> {
        let offer = self.offer().await?;
        if let Some(connection) = connection {
            return Ok(Connection { offer, error: None, ..connection });
        }
        let failed = |error: io::Error| Status::Failed(error.to_string());
        let found = addresses(&self.master.authority, self.plan.from).await.map_err(failed)?;
        // Another address of the same name may answer.
        let master = found.get(tries % found.len().max(1)).copied();
        let master = master.ok_or_else(|| Status::Failed("it has no address".into()))?;
        let connect = async {
            let from = self.plan.from.map_or_else(|| any_port(master.ip()), |from| SocketAddr::new(from, 0));
            let socket = UdpSocket::bind(from).await?;
            // A connected socket receives only from the master.
            socket.connect(master).await?;
            Ok(socket)
        };
        match connect.await {
            Ok(socket) => Ok(Connection { socket, master, offer, error: None }),
            Err(error) => Err(failed(error)),
        }
    }

    async fn heard(&mut self, announcer: &mut dyn Announcer, connection: &Connection, bytes: &[u8]) -> Option<End> {
        let mut reply = Vec::new();
        match announcer.hear(self.now_ms(), bytes, &mut reply) {
            MasterReply::Nothing => None,
            MasterReply::Accepted => {
                // If the reply is lost, the next announcement repeats it.
                if reply.is_empty() || connection.socket.send(&reply).await.is_ok() {
                    self.report(Status::Listed);
                }
                None
            }
            MasterReply::Complaint(complaint) => self.complained(complaint),
        }
    }

    /// Acts on a complaint that cannot be forged, or was confirmed.
    fn complained(&mut self, complaint: Complaint) -> Option<End> {
        let (status, end) = match complaint {
            Complaint::Adapted(how) => (Status::Adapted(how), None),
            Complaint::GivenUp(why) => (Status::GivenUp(why), Some(End::Failed)),
            Complaint::Malformed(why) => (Status::Malformed(why), Some(End::Malformed)),
        };
        self.report(status);
        end
    }
}

/// The next datagram from the master. Pending without a connection.
async fn receive<'a>(connection: &'a mut Option<Connection>, buffer: &'a mut [u8]) -> (&'a Connection, &'a [u8]) {
    let Some(connection) = connection else { return std::future::pending().await };
    loop {
        match connection.socket.recv_from(buffer).await {
            // A datagram that arrived between bind and connect may be from any address.
            Ok((size, from)) if (from.ip(), from.port()) == (connection.master.ip(), connection.master.port()) => {
                return (connection, buffer.get(..size).unwrap_or_default());
            }
            Ok(_) => {}
            Err(error) => {
                connection.error = Some(error);
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

//! Iceball's announcer on a socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{sleep, sleep_until};

use super::{Attendant, End, Standing, stopped};
use crate::client::connect::{addresses, any_port};
use crate::protocols::announce::{Offer, Pace};
use crate::protocols::iceball::announce::{Announcer, BURST_EVERY_MS, Heard, Step, handshake};
use crate::protocols::iceball::wire::HEARTBEAT_VERSION;

/// A cookie may be as long as a datagram.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// It had accepted before.
const DOUBTED: &str =
    "it no longer accepts the announcement (BADV or BADF); that may be forged, and is believed when it lasts";
/// After an error of the socket, so that a lasting one does not keep a core busy.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// The way to the master for one burst, or for as long as the master answers.
struct Line {
    socket: UdpSocket,
    master: SocketAddr,
    offer: Offer,
    error: Option<io::Error>,
}

/// How far it is with the master.
struct Talk {
    announcer: Announcer,
    /// For bursts that cannot even begin.
    pace: Pace,
    line: Option<Line>,
    /// Bursts without an answer.
    tries: usize,
}

impl Attendant<'_> {
    pub(super) async fn attend_iceball(&mut self) -> End {
        let mut talk = Talk {
            announcer: Announcer::new(self.now_ms(), self.plan.iceball_version),
            pace: Pace::new(self.now_ms(), BURST_EVERY_MS),
            line: None,
            tries: 0,
        };
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut stop = self.stop.clone();
        loop {
            let going_on = async {
                let due = self.at(talk.announcer.due_ms());
                tokio::select! {
                    () = sleep_until(due) => self.step(&mut talk).await,
                    (line, bytes) = receive(&mut talk.line, &mut buffer) => {
                        self.heard(&mut talk.announcer, line, bytes).await
                    }
                }
            };
            let end = tokio::select! {
                () = stopped(&mut stop) => Some(End::Stopped),
                end = going_on => end,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// What is due; an end when there is nothing more to do.
    async fn step(&mut self, talk: &mut Talk) -> Option<End> {
        match talk.announcer.step(self.now_ms())? {
            Step::Prepare => match self.prepare(talk.line.take(), talk.tries).await {
                Ok(line) => {
                    talk.line = Some(line);
                    talk.announcer.ready(self.now_ms());
                    None
                }
                Err(standing) => {
                    talk.pace.failed(self.now_ms());
                    talk.announcer.put_off(talk.pace.due_ms());
                    self.failed(standing)
                }
            },
            Step::Announce => {
                if let Some(line) = &mut talk.line {
                    let sent = line.socket.send(&talk.announcer.announcement(&line.offer)).await;
                    line.error = sent.err().or(line.error.take());
                }
                None
            }
            Step::Judge { answered: true, .. } => {
                talk.pace.accepted(self.now_ms());
                talk.tries = 0;
                self.plan.once.then_some(End::Accepted)
            }
            // The next burst comes from another port, which a forger would have to find again.
            Step::Judge { answered: false, doubted } => {
                talk.tries += 1;
                let error = talk.line.take().and_then(|line| line.error);
                self.failed(match (doubted, error) {
                    (true, _) => Standing::Refused(DOUBTED.into()),
                    (false, Some(error)) => Standing::Away(error.to_string()),
                    (false, None) => Standing::Away("no answer".into()),
                })
            }
            Step::Believe(complaint) => self.complained(complaint),
        }
    }

    fn failed(&mut self, standing: Standing) -> Option<End> {
        self.tell(standing);
        self.plan.once.then_some(End::Failed)
    }

    /// Asks the game, and finds the master; one that answered stays where it was.
    async fn prepare(&self, line: Option<Line>, tries: usize) -> Result<Line, Standing> {
        let offer = self.offer().await?;
        if let Some(line) = line {
            return Ok(Line { offer, error: None, ..line });
        }
        let away = |error: io::Error| Standing::Away(error.to_string());
        let found = addresses(&self.master.authority, self.plan.from).await.map_err(away)?;
        // Another address of the same name may be more talkative.
        let master = found.get(tries % found.len().max(1)).copied();
        let master = master.ok_or_else(|| Standing::Away("it has no address".into()))?;
        let connect = async {
            let from = self.plan.from.map_or_else(|| any_port(master.ip()), |from| SocketAddr::new(from, 0));
            let socket = UdpSocket::bind(from).await?;
            // From here on the system drops what comes from anybody else.
            socket.connect(master).await?;
            Ok(socket)
        };
        match connect.await {
            Ok(socket) => Ok(Line { socket, master, offer, error: None }),
            Err(error) => Err(away(error)),
        }
    }

    async fn heard(&mut self, announcer: &mut Announcer, line: &Line, bytes: &[u8]) -> Option<End> {
        match announcer.hear(self.now_ms(), bytes) {
            Heard::Nothing => {}
            Heard::Accepted { cookie } => {
                let mut answer = Vec::with_capacity(bytes.len());
                handshake(cookie, &mut answer);
                // One that is lost is made up for by the next announcement.
                if line.socket.send(&answer).await.is_ok() {
                    self.tell(Standing::Listed);
                }
            }
            complaint => return self.complained(complaint),
        }
        None
    }

    /// A complaint that is believed.
    fn complained(&mut self, complaint: Heard<'_>) -> Option<End> {
        match complaint {
            Heard::Nothing | Heard::Accepted { .. } => {}
            Heard::FallsBack { version } => self.tell(Standing::FellBack(version)),
            Heard::GivesUp { heartbeat_version, version } => {
                let ours = self.plan.iceball_version;
                self.tell(Standing::GivenUp(format!(
                    "it takes only Iceball {version} with heartbeat version {heartbeat_version}; \
                     this is Iceball {ours} with heartbeat version {HEARTBEAT_VERSION}"
                )));
                return Some(End::Failed);
            }
            Heard::Broken => {
                self.tell(Standing::Broken);
                return Some(End::Broken);
            }
        }
        None
    }
}

/// The next datagram from the master itself. Never ends without a line.
async fn receive<'a>(line: &'a mut Option<Line>, buffer: &'a mut [u8]) -> (&'a Line, &'a [u8]) {
    let Some(line) = line else { return std::future::pending().await };
    loop {
        match line.socket.recv_from(buffer).await {
            // What came between binding and connecting may be from anybody.
            Ok((size, from)) if (from.ip(), from.port()) == (line.master.ip(), line.master.port()) => {
                return (line, buffer.get(..size).unwrap_or_default());
            }
            Ok(_) => {}
            Err(error) => {
                line.error = Some(error);
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

//! A protocol's announcer on a UDP socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{sleep, sleep_until};

use super::{Attendant, End, Standing, stopped};
use crate::client::connect::{addresses, any_port};
use crate::protocols::announce::{Announcer, Complaint, Heard, Offer, Pace, Round, StartAnnouncer, Step};
use crate::protocols::announce_every_ms;

/// A master's answer may be as long as a datagram can be.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// After an error of the socket, so that a lasting one does not keep a core busy.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// The socket for one round, or for as long as the master answers.
struct Line {
    socket: UdpSocket,
    master: SocketAddr,
    offer: Offer,
    error: Option<io::Error>,
}

struct Talk {
    announcer: Box<dyn Announcer>,
    /// For rounds that cannot even begin.
    pace: Pace,
    line: Option<Line>,
    /// Rounds without an answer.
    tries: usize,
}

impl Attendant<'_> {
    pub(super) async fn announce_by_datagrams(&mut self, start: StartAnnouncer) -> End {
        let announcer = match start(self.now_ms(), &self.plan.offer) {
            Ok(announcer) => announcer,
            Err(why) => {
                self.report(Standing::GivenUp(why));
                return End::Failed;
            }
        };
        let every_ms = announce_every_ms(&self.plan.offer.game);
        let mut talk = Talk { announcer, pace: Pace::new(self.now_ms(), every_ms), line: None, tries: 0 };
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut stop = self.stop.clone();
        loop {
            let going_on = async {
                let due = self.at(talk.announcer.due_ms());
                tokio::select! {
                    () = sleep_until(due) => self.step(&mut talk).await,
                    (line, bytes) = receive(&mut talk.line, &mut buffer) => {
                        self.heard(talk.announcer.as_mut(), line, bytes).await
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
            Step::Finish(Round::Accepted) => {
                talk.pace.accepted(self.now_ms());
                talk.tries = 0;
                self.plan.once.then_some(End::Accepted)
            }
            // The next round comes from another port, which a forger would have to find again.
            Step::Finish(round) => {
                talk.tries += 1;
                let error = talk.line.take().and_then(|line| line.error);
                self.failed(match (round, error) {
                    (Round::Doubted(why), _) => Standing::Refused(why.into()),
                    (_, Some(error)) => Standing::Away(error.to_string()),
                    (_, None) => Standing::Away("no answer".into()),
                })
            }
            Step::Believe(complaint) => self.complained(complaint),
        }
    }

    fn failed(&mut self, standing: Standing) -> Option<End> {
        self.report(standing);
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

    async fn heard(&mut self, announcer: &mut dyn Announcer, line: &Line, bytes: &[u8]) -> Option<End> {
        let mut reply = Vec::new();
        match announcer.hear(self.now_ms(), bytes, &mut reply) {
            Heard::Nothing => None,
            Heard::Accepted => {
                // The next announcement makes up for a lost reply.
                if reply.is_empty() || line.socket.send(&reply).await.is_ok() {
                    self.report(Standing::Listed);
                }
                None
            }
            Heard::Complaint(complaint) => self.complained(complaint),
        }
    }

    /// A complaint that is believed.
    fn complained(&mut self, complaint: Complaint) -> Option<End> {
        let (standing, end) = match complaint {
            Complaint::Adapted(how) => (Standing::Adapted(how), None),
            Complaint::GivenUp(why) => (Standing::GivenUp(why), Some(End::Failed)),
            Complaint::Malformed(why) => (Standing::Malformed(why), Some(End::Malformed)),
        };
        self.report(standing);
        end
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

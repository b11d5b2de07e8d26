//! Announcing a game server to one or several masters at once. Each master has a task of its own: one that is away or
//! refuses does not hold up the others.
//!
//! The rules are in the protocols' `announce.rs`; here are the sockets, the clock, and the looking up of names.

mod api;
mod iceball;
mod master;
mod source;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

pub use master::Master;
pub use source::Source;

use super::{connect, http};
use crate::protocols::announce::{Offer, Pace};
use crate::protocols::iceball::announce::VERSION;
use crate::protocols::iceball::wire::Version;
use crate::protocols::netpanzer::announce as netpanzer;
use crate::protocols::{Verdict, announce_every_ms, bloodmasters};
use master::Transport;

/// For one exchange, from the look-up of the name to the last byte of the answer. A Rallypoint asks the game before it
/// answers, which takes up to 4 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the good-byes: the program wants to end.
const GOODBYE: Duration = Duration::from_secs(2);

/// What to announce, and where.
pub struct Plan {
    /// What the owner said; it goes before what the game says.
    pub offer: Offer,
    /// What is announced to Iceball's masters.
    pub iceball_version: Version,
    /// The game itself, asked before each announcement.
    pub source: Option<Source>,
    pub masters: Vec<Master>,
    /// The address of this machine that the announcements come from: where the server will be listed.
    pub from: Option<IpAddr>,
    /// Announce once to each, and end.
    pub once: bool,
}

/// How it stands with one master, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Listed,
    Refused(String),
    Away(String),
    /// The game does not answer, so there is nothing true to announce.
    GameAway(String),
    /// It wanted another version, and gets it.
    FellBack(Version),
    GivenUp(String),
    Broken,
    /// It was told that the server is gone.
    Left,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Listed => write!(f, "listed"),
            Standing::Refused(reason) => write!(f, "refused: {reason}"),
            Standing::Away(reason) => write!(f, "away: {reason}"),
            Standing::GameAway(reason) => write!(f, "not announced: {reason}"),
            Standing::FellBack(version) => write!(f, "it expects Iceball {version}; announced as that"),
            Standing::GivenUp(reason) => write!(f, "given up: {reason}"),
            Standing::Broken => write!(f, "it says that the announcement is malformed (BADF)"),
            Standing::Left => write!(f, "told that the server is gone"),
        }
    }
}

/// RemoteState of every change, and of nothing twice.
pub type Tell = Arc<dyn Fn(&Master, &Standing) + Send + Sync>;

/// How all of it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Masters that had the server listed when their task ended.
    pub accepted: usize,
    /// A master called our announcement malformed; everything was stopped.
    pub broken: bool,
    /// RemoteState to stop.
    pub stopped: bool,
}

/// How it ended with one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Accepted,
    Failed,
    Broken,
}

/// Announces until told to stop, or until there is nothing left to do.
pub async fn run(plan: Plan, tell: Tell, mut stop: watch::Receiver<bool>) -> Ending {
    let plan = Arc::new(plan);
    let stop_all = watch::Sender::new(false);
    let start = Instant::now();
    let mut attending = JoinSet::new();
    for index in 0..plan.masters.len() {
        let (plan, tell, stop) = (plan.clone(), tell.clone(), stop_all.subscribe());
        attending.spawn(async move {
            let Some(master) = plan.masters.get(index) else { return End::Failed };
            Attendant { plan: &plan, master, tell, last: None, stop, start }.attend().await
        });
    }
    let mut ending = Ending::default();
    loop {
        tokio::select! {
            () = stopped(&mut stop), if !ending.stopped => {
                ending.stopped = true;
                stop_all.send_replace(true);
            }
            ended = attending.join_next() => match ended {
                None => return ending,
                Some(Ok(End::Accepted)) => ending.accepted += 1,
                Some(Ok(End::Broken)) => {
                    ending.broken = true;
                    stop_all.send_replace(true);
                }
                Some(_) => {}
            },
        }
    }
}

/// Announces one server to one master, once; an error is why it is not listed.
pub async fn once(offer: Offer, from: IpAddr, master: &Master) -> Result<(), Standing> {
    let plan =
        Plan { offer, iceball_version: VERSION, source: None, masters: Vec::new(), from: Some(from), once: true };
    let never = watch::Sender::new(false);
    let (tell, stop) = (Arc::new(|_: &Master, _: &Standing| {}), never.subscribe());
    let mut attendant = Attendant { plan: &plan, master, tell, last: None, stop, start: Instant::now() };
    match (attendant.attend().await, attendant.last) {
        (End::Accepted, _) | (_, None) => Ok(()),
        (_, Some(standing)) => Err(standing),
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // an error means that whoever would tell is gone
}

/// Attends to one master.
struct Attendant<'a> {
    plan: &'a Plan,
    master: &'a Master,
    tell: Tell,
    last: Option<Standing>,
    stop: watch::Receiver<bool>,
    start: Instant,
}

impl Attendant<'_> {
    async fn attend(&mut self) -> End {
        if self.master.is_iceball() {
            return self.attend_iceball().await;
        }
        let end = self.attend_by_requests().await;
        if end == End::Stopped && self.master.transport == Transport::NetPanzer {
            self.say_goodbye().await;
        }
        end
    }

    async fn attend_by_requests(&mut self) -> End {
        let mut pace = Pace::new(self.now_ms(), announce_every_ms(&self.plan.offer.game));
        loop {
            let began_ms = pace.due_ms().max(self.now_ms());
            let mut stop = self.stop.clone();
            let standing = tokio::select! {
                () = stopped(&mut stop) => return End::Stopped,
                standing = self.announce_at(began_ms) => standing,
            };
            let accepted = standing == Standing::Listed;
            self.tell(standing);
            if self.plan.once {
                return if accepted { End::Accepted } else { End::Failed };
            }
            if accepted { pace.accepted(began_ms) } else { pace.failed(self.now_ms()) }
        }
    }

    async fn announce_at(&self, at_ms: u64) -> Standing {
        sleep_until(self.at(at_ms)).await;
        let offer = match self.offer().await {
            Ok(offer) => offer,
            Err(standing) => return standing,
        };
        match timeout(PATIENCE, self.request(&offer)).await {
            Ok(Ok(Verdict::Listed)) => Standing::Listed,
            Ok(Ok(Verdict::Refused(reason))) => Standing::Refused(reason),
            Ok(Err(reason)) => Standing::Away(reason),
            Err(_) => Standing::Away(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }

    async fn request(&self, offer: &Offer) -> Result<Verdict, String> {
        let target = &self.master.target;
        let path = &target.path;
        let http = async |path: &str, json| {
            let (from, patience, bytes_max) = (self.plan.from, PATIENCE, http::ANSWER_BYTES_MAX);
            let request = http::Request { url: target.page(path)?, json, from, bytes_max, patience };
            let (status, body) = request.send().await.map_err(|error| error.to_string())?;
            Ok::<_, String>((status.as_u16(), body))
        };
        match self.master.transport {
            Transport::Bloodmasters => {
                let (status, body) = http(&bloodmasters::announce::path(path, offer.port), None).await?;
                Ok(bloodmasters::announce::verdict(status, &body))
            }
            Transport::Api => {
                let (status, body) = http(&api::path(path), Some(api::body(offer))).await?;
                Ok(api::verdict(status, &body))
            }
            Transport::NetPanzer => self.say(&netpanzer::heartbeat(offer)).await,
            Transport::Iceball => Err("no request, but a handshake".into()),
        }
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        connect::connect(&self.master.authority, self.plan.from).await.map_err(|error| error.to_string())
    }

    /// One of netPanzer's messages and its answer: to the `final` that ends it, or to the close.
    async fn say(&self, message: &[u8]) -> Result<Verdict, String> {
        let mut stream = self.connect().await?;
        let lost = |error: std::io::Error| format!("the connection was lost: {error}");
        stream.write_all(message).await.map_err(lost)?;
        let mut answer = Vec::new();
        let mut limited = stream.take(netpanzer::ANSWER_BYTES_MAX as u64);
        while limited.read_buf(&mut answer).await.map_err(lost)? > 0 {
            if let Some(verdict) = netpanzer::parse_answer(&answer) {
                return Ok(verdict);
            }
        }
        netpanzer::parse_ended_answer(&answer).ok_or_else(|| match answer.is_empty() {
            true => "it closed the connection without an answer".into(),
            false => "its answer is not a netPanzer master's".into(),
        })
    }

    /// Also to a master from which nothing good was heard: it may have the server listed all the same.
    async fn say_goodbye(&mut self) {
        let message = netpanzer::quit(self.plan.offer.port);
        if let Ok(Ok(_)) = timeout(GOODBYE, self.say(&message)).await {
            self.tell(Standing::Left);
        }
    }

    /// What the owner and the game say now.
    async fn offer(&self) -> Result<Offer, Standing> {
        match &self.plan.source {
            None => Ok(self.plan.offer.clone()),
            Some(source) => {
                let heard = source.facts().await.map_err(Standing::GameAway)?;
                Ok(source::merged(&self.plan.offer, heard))
            }
        }
    }

    fn tell(&mut self, standing: Standing) {
        if self.last.as_ref() != Some(&standing) {
            (self.tell)(self.master, &standing);
            self.last = Some(standing);
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }
}

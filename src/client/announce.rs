//! Announces a game server to one or several masters at once. Each master has its own task, so one that fails does not
//! delay the others.
//!
//! The rules are in the protocols' `announce.rs`; sockets, clock and DNS lookups are here.

mod api;
mod datagrams;
mod master;
mod source;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

pub use master::{Master, scheme};
pub use source::Source;

use super::{connect, http};
use crate::protocols::announce::{HttpAnnounce, Offer, Pace, StreamAnnounce};
use crate::protocols::{Verdict, announce_every_ms};
use master::Form;

/// For one exchange, from the DNS lookup to the last byte of the answer. A Rallypoint queries the game before it answers,
/// which takes up to 4 s.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For the goodbye message. Short, because the program is about to exit.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer over TCP.
const ANSWER_BYTES_MAX: u64 = 4 << 10;

/// Help text for announcing to a Rallypoint's API.
pub const API_HELP: &str = api::ANNOUNCE.help;

/// What to announce, and to which masters.
pub struct Plan {
    /// From the command line; takes precedence over the game's own answers.
    pub offer: Offer,
    /// The game itself, queried before each announcement.
    pub source: Option<Source>,
    pub masters: Vec<Master>,
    /// The local address to announce from, under which the server will be listed.
    pub from: Option<IpAddr>,
    /// Announce once to each master, then return.
    pub once: bool,
}

/// The state at one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Listed,
    Refused(String),
    /// The master cannot be reached, or its answer is invalid.
    Failed(String),
    /// The game does not answer, so there are no facts to announce.
    GameFailed(String),
    /// The master expects a different announcement; the next one follows that.
    Adapted(String),
    GivenUp(String),
    /// The master rejects the announcement as malformed.
    Malformed(String),
    /// The master has acknowledged that the server is gone.
    Left,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Listed => write!(f, "listed"),
            Status::Refused(reason) => write!(f, "refused: {reason}"),
            Status::Failed(reason) => write!(f, "failed: {reason}"),
            Status::GameFailed(reason) => write!(f, "not announced: {reason}"),
            Status::Adapted(text) | Status::Malformed(text) => f.write_str(text),
            Status::GivenUp(reason) => write!(f, "given up: {reason}"),
            Status::Left => write!(f, "notified that the server is gone"),
        }
    }
}

/// Called whenever the status at a master changes.
pub type Report = Arc<dyn Fn(&Master, &Status) + Send + Sync>;

/// The result for all masters together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Masters that had the server listed when their task ended.
    pub accepted: usize,
    /// A master rejected the announcement as malformed, which stops everything.
    pub malformed: bool,
    /// Stopped by the caller.
    pub stopped: bool,
}

/// How the task for one master ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Accepted,
    Failed,
    Malformed,
}

/// Announces until stopped, or until the tasks for all masters have ended.
pub async fn run(plan: Plan, report: Report, mut stop: watch::Receiver<bool>) -> Summary {
    let plan = Arc::new(plan);
    let stop_all = watch::Sender::new(false);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for index in 0..plan.masters.len() {
        let (plan, report, stop) = (plan.clone(), report.clone(), stop_all.subscribe());
        tasks.spawn(async move {
            let Some(master) = plan.masters.get(index) else { return End::Failed };
            MasterTask { plan: &plan, master, report, last: None, stop, start }.run().await
        });
    }
    let mut summary = Summary::default();
    loop {
        tokio::select! {
            () = stopped(&mut stop), if !summary.stopped => {
                summary.stopped = true;
                stop_all.send_replace(true);
            }
            ended = tasks.join_next() => match ended {
                None => return summary,
                Some(Ok(End::Accepted)) => summary.accepted += 1,
                Some(Ok(End::Malformed)) => {
                    summary.malformed = true;
                    stop_all.send_replace(true);
                }
                Some(_) => {}
            },
        }
    }
}

/// Announces one server to one master, once; the error is the status if it is not listed.
pub async fn once(offer: Offer, from: IpAddr, master: &Master) -> Result<(), Status> {
    let plan = Plan { offer, source: None, masters: Vec::new(), from: Some(from), once: true };
    let never = watch::Sender::new(false);
    let (report, stop) = (Arc::new(|_: &Master, _: &Status| {}), never.subscribe());
    let mut task = MasterTask { plan: &plan, master, report, last: None, stop, start: Instant::now() };
    match (task.run().await, task.last) {
        (End::Accepted, _) | (_, None) => Ok(()),
        (_, Some(status)) => Err(status),
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // an error means that the sender is gone
}

/// Announces to one master.
struct MasterTask<'a> {
    plan: &'a Plan,
    master: &'a Master,
    report: Report,
    last: Option<Status>,
    stop: watch::Receiver<bool>,
    start: Instant,
}

impl MasterTask<'_> {
    async fn run(&mut self) -> End {
        match self.master.form {
            Form::Datagrams(start) => self.announce_by_datagrams(start).await,
            Form::Http(_) => self.announce_by_requests().await,
            Form::Stream(rules) => {
                let end = self.announce_by_requests().await;
                if end == End::Stopped {
                    self.send_goodbye(rules).await;
                }
                end
            }
        }
    }

    async fn announce_by_requests(&mut self) -> End {
        let mut pace = Pace::new(self.now_ms(), announce_every_ms(&self.plan.offer.game));
        loop {
            let began_ms = pace.due_ms().max(self.now_ms());
            let mut stop = self.stop.clone();
            let status = tokio::select! {
                () = stopped(&mut stop) => return End::Stopped,
                status = self.announce_at(began_ms) => status,
            };
            let accepted = status == Status::Listed;
            self.report(status);
            if self.plan.once {
                return if accepted { End::Accepted } else { End::Failed };
            }
            if accepted { pace.accepted(began_ms) } else { pace.failed(self.now_ms()) }
        }
    }

    async fn announce_at(&self, at_ms: u64) -> Status {
        sleep_until(self.at(at_ms)).await;
        let offer = match self.offer().await {
            Ok(offer) => offer,
            Err(status) => return status,
        };
        match timeout(TIMEOUT, self.request(&offer)).await {
            Ok(Ok(Verdict::Listed)) => Status::Listed,
            Ok(Ok(Verdict::Refused(reason) | Verdict::TryLater { reason, .. })) => Status::Refused(reason),
            Ok(Err(reason)) => Status::Failed(reason),
            Err(_) => Status::Failed(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }

    async fn request(&self, offer: &Offer) -> Result<Verdict, String> {
        match &self.master.form {
            Form::Http(form) => self.request_page(form, offer).await,
            Form::Stream(rules) => self.exchange(*rules, &rules.message(offer)).await,
            Form::Datagrams(_) => Err("it accepts only datagrams".into()),
        }
    }

    async fn request_page(&self, form: &HttpAnnounce, offer: &Offer) -> Result<Verdict, String> {
        let target = &self.master.target;
        let url = target.page(&(form.path)(&target.path, offer))?;
        let request = http::Request {
            post: form.post.map(|post| (post.content_type, (post.body)(offer))),
            from: self.plan.from,
            ..http::Request::get(url, http::ANSWER_BYTES_MAX, TIMEOUT)
        };
        let (status, body) = request.send().await.map_err(|error| error.to_string())?;
        Ok((form.verdict)(status.as_u16(), &body))
    }

    /// Sends a message and reads the answer, until it is complete or the connection is closed.
    async fn exchange(&self, rules: &dyn StreamAnnounce, message: &[u8]) -> Result<Verdict, String> {
        let connected = connect::connect(&self.master.authority, self.plan.from).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        let lost = |error: std::io::Error| format!("the connection was lost: {error}");
        stream.write_all(message).await.map_err(lost)?;
        let mut answer = Vec::new();
        let mut limited = stream.take(ANSWER_BYTES_MAX);
        while limited.read_buf(&mut answer).await.map_err(lost)? > 0 {
            if let Some(verdict) = rules.verdict(&answer) {
                return Ok(verdict);
            }
        }
        rules.final_verdict(&answer).ok_or_else(|| match answer.is_empty() {
            true => "it closed the connection without an answer".into(),
            false => format!("its answer is not a {} master's", self.master.title()),
        })
    }

    /// Also sent to a master that never confirmed the listing: its answer may have been lost.
    async fn send_goodbye(&mut self, rules: &dyn StreamAnnounce) {
        let Some(message) = rules.goodbye(&self.plan.offer) else { return };
        if let Ok(Ok(_)) = timeout(GOODBYE_TIMEOUT, self.exchange(rules, &message)).await {
            self.report(Status::Left);
        }
    }

    /// The current facts, from the command line and from the game.
    async fn offer(&self) -> Result<Offer, Status> {
        match &self.plan.source {
            None => Ok(self.plan.offer.clone()),
            Some(source) => {
                let queried = source.facts().await.map_err(Status::GameFailed)?;
                Ok(source::merged(&self.plan.offer, queried))
            }
        }
    }

    fn report(&mut self, status: Status) {
        if self.last.as_ref() != Some(&status) {
            (self.report)(self.master, &status);
            self.last = Some(status);
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }
}

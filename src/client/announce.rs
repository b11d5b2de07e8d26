//! Announcing a game server to one or several masters at once. Each master has a task of its own: one that is away or
//! refuses does not hold up the others.
//!
//! The rules are in the protocols' `announce.rs`; here are the sockets, the clock, and the looking up of names.

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

/// For one exchange, from the look-up of the name to the last byte of the answer. A Rallypoint asks the game before it
/// answers, which takes up to 4 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the goodbyes: the program wants to end.
const GOODBYE: Duration = Duration::from_secs(2);
/// The most of an answer over TCP that is read.
const ANSWER_BYTES_MAX: u64 = 4 << 10;

/// What an API of a Rallypoint is for, in the help.
pub const API_HELP: &str = api::ANNOUNCE.help;

/// What to announce, and where.
pub struct Plan {
    /// What the owner said; it goes before what the game says.
    pub offer: Offer,
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
    /// It wanted another announcement, and gets it.
    Adapted(String),
    GivenUp(String),
    /// It says that the announcement is malformed.
    Malformed(String),
    /// It knows that the server is gone.
    Left,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Listed => write!(f, "listed"),
            Standing::Refused(reason) => write!(f, "refused: {reason}"),
            Standing::Away(reason) => write!(f, "away: {reason}"),
            Standing::GameAway(reason) => write!(f, "not announced: {reason}"),
            Standing::Adapted(text) | Standing::Malformed(text) => f.write_str(text),
            Standing::GivenUp(reason) => write!(f, "given up: {reason}"),
            Standing::Left => write!(f, "told that the server is gone"),
        }
    }
}

/// Called with every change, and with nothing twice.
pub type Report = Arc<dyn Fn(&Master, &Standing) + Send + Sync>;

/// How all of it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Masters that had the server listed when their task ended.
    pub accepted: usize,
    /// A master called our announcement malformed; everything was stopped.
    pub malformed: bool,
    /// Stopped by the caller.
    pub stopped: bool,
}

/// How it ended with one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stopped,
    Accepted,
    Failed,
    Malformed,
}

/// Announces until it is stopped, or until there is nothing left to do.
pub async fn run(plan: Plan, report: Report, mut stop: watch::Receiver<bool>) -> Ending {
    let plan = Arc::new(plan);
    let stop_all = watch::Sender::new(false);
    let start = Instant::now();
    let mut attending = JoinSet::new();
    for index in 0..plan.masters.len() {
        let (plan, report, stop) = (plan.clone(), report.clone(), stop_all.subscribe());
        attending.spawn(async move {
            let Some(master) = plan.masters.get(index) else { return End::Failed };
            Attendant { plan: &plan, master, report, last: None, stop, start }.attend().await
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
                Some(Ok(End::Malformed)) => {
                    ending.malformed = true;
                    stop_all.send_replace(true);
                }
                Some(_) => {}
            },
        }
    }
}

/// Announces one server to one master, once; an error is why it is not listed.
pub async fn once(offer: Offer, from: IpAddr, master: &Master) -> Result<(), Standing> {
    let plan = Plan { offer, source: None, masters: Vec::new(), from: Some(from), once: true };
    let never = watch::Sender::new(false);
    let (report, stop) = (Arc::new(|_: &Master, _: &Standing| {}), never.subscribe());
    let mut attendant = Attendant { plan: &plan, master, report, last: None, stop, start: Instant::now() };
    match (attendant.attend().await, attendant.last) {
        (End::Accepted, _) | (_, None) => Ok(()),
        (_, Some(standing)) => Err(standing),
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // an error means that nobody can stop it any more, and nobody waits
}

/// Attends to one master.
struct Attendant<'a> {
    plan: &'a Plan,
    master: &'a Master,
    report: Report,
    last: Option<Standing>,
    stop: watch::Receiver<bool>,
    start: Instant,
}

impl Attendant<'_> {
    async fn attend(&mut self) -> End {
        match self.master.form {
            Form::Datagrams(start) => self.announce_by_datagrams(start).await,
            Form::Http(_) => self.announce_by_requests().await,
            Form::Stream(rules) => {
                let end = self.announce_by_requests().await;
                if end == End::Stopped {
                    self.say_goodbye(rules).await;
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
            let standing = tokio::select! {
                () = stopped(&mut stop) => return End::Stopped,
                standing = self.announce_at(began_ms) => standing,
            };
            let accepted = standing == Standing::Listed;
            self.report(standing);
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
        match &self.master.form {
            Form::Http(form) => self.request_page(form, offer).await,
            Form::Stream(rules) => self.exchange(*rules, &rules.message(offer)).await,
            Form::Datagrams(_) => Err("it takes datagrams only".into()),
        }
    }

    async fn request_page(&self, form: &HttpAnnounce, offer: &Offer) -> Result<Verdict, String> {
        let target = &self.master.target;
        let request = http::Request {
            url: target.page(&(form.path)(&target.path, offer))?,
            json: form.json.map(|json| json(offer)),
            from: self.plan.from,
            bytes_max: http::ANSWER_BYTES_MAX,
            patience: PATIENCE,
        };
        let (status, body) = request.send().await.map_err(|error| error.to_string())?;
        Ok((form.verdict)(status.as_u16(), &body))
    }

    /// A message and its answer, which ends by itself or with the connection.
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

    /// Also to a master that has not accepted anything: it may have the server listed all the same.
    async fn say_goodbye(&mut self, rules: &dyn StreamAnnounce) {
        let Some(message) = rules.goodbye(&self.plan.offer) else { return };
        if let Ok(Ok(_)) = timeout(GOODBYE, self.exchange(rules, &message)).await {
            self.report(Standing::Left);
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

    fn report(&mut self, standing: Standing) {
        if self.last.as_ref() != Some(&standing) {
            (self.report)(self.master, &standing);
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

//! Notices: webhooks for what an operator or a community wants to know at once. They go to the configured addresses and nowhere
//! else.
//!
//! Each address has a task. Its `watcher` turns changes of the list and the state of this node into notices, its `queue`
//! says when to send which, and its `form` writes them; none of these knows a socket or a clock. An address that is slow,
//! dead or hostile costs a bounded amount of memory and one connection at a time, and delays no other.

mod form;
pub mod notice;
mod queue;
pub mod settings;
mod sign;
mod watcher;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use crate::client::http::Request;
use crate::hub::Hub;
use crate::metrics::Metrics;
use crate::model::Now;
use crate::net::guard::Guard;
use crate::net::stopped;
use crate::registry::view::Batch as Deltas;
use notice::{Notice, What};
use queue::{Batch, Outcome, Queue};
pub use settings::{Sender, Settings, Target};
use watcher::{NodeState, Watcher};

/// How often each task looks for what is due.
const TICK: Duration = Duration::from_millis(500);
/// For one request, from the DNS lookup to the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a test, whose answer an operator waits for.
const TEST_TIMEOUT: Duration = Duration::from_secs(8);
/// The networks that a notice of a flood names.
const NETWORKS_MAX: usize = 3;

/// What all addresses share.
pub struct Notices {
    pub hub: Arc<Hub>,
    pub guard: Arc<Guard>,
    pub metrics: Arc<Metrics>,
    /// The addresses of now.
    addresses: Mutex<Vec<Arc<Address>>>,
}

/// An address that is sent to.
struct Address {
    target: Target,
    /// It may change while this is sent to.
    sender: ArcSwap<Sender>,
    /// Random: tells the batches of this task from others.
    run: u64,
    /// One request at a time.
    request: tokio::sync::Mutex<()>,
    figures: Figures,
}

#[derive(Default)]
struct Figures {
    waiting: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    is_failing: AtomicBool,
}

/// The figures of an address at a moment.
pub struct Status {
    pub name: String,
    pub failing: bool,
    /// Notices that have not arrived yet, and those that did, that were given up, and that were dropped because too many waited.
    pub waiting: u64,
    pub sent: u64,
    pub failed: u64,
    pub dropped: u64,
}

impl Notices {
    pub fn new(hub: Arc<Hub>, guard: Arc<Guard>, metrics: Arc<Metrics>) -> Notices {
        Notices { hub, guard, metrics, addresses: Mutex::default() }
    }

    /// Sends to the addresses of the current settings until the program stops. What changes from this call on is news.
    pub fn run(
        self: Arc<Notices>,
        mut settings: watch::Receiver<Settings>,
        mut stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send {
        let (mut tasks, mut sending) = (JoinSet::new(), HashMap::new());
        let first = settings.borrow_and_update().clone();
        self.start(&first, &mut tasks, &mut sending);
        async move {
            loop {
                tokio::select! {
                    () = stopped(&mut stop) => return,
                    Ok(()) = settings.changed() => {
                        let current = settings.borrow_and_update().clone();
                        self.start(&current, &mut tasks, &mut sending);
                    }
                }
            }
        }
    }

    /// Starts what is new, and ends what is no longer configured. What has not changed goes on.
    fn start(
        self: &Arc<Notices>,
        settings: &Settings,
        tasks: &mut JoinSet<()>,
        sending: &mut HashMap<String, (Arc<Address>, AbortHandle)>,
    ) {
        sending.retain(|_, (address, task)| {
            let stays = settings.targets.contains(&address.target);
            if stays {
                address.sender.store(Arc::new(settings.sender.clone()));
            } else {
                task.abort();
                self.metrics.notices.dropped.inc_by(address.figures.waiting.load(Ordering::Relaxed));
            }
            stays
        });
        while tasks.try_join_next().is_some() {} // those that were ended
        for target in &settings.targets {
            if !sending.contains_key(&target.name) {
                let address = Arc::new(Address::new(target.clone(), settings.sender.clone()));
                let task = Sending::new(self.clone(), address.clone());
                sending.insert(target.name.clone(), (address, tasks.spawn(task.run())));
            }
        }
        let in_order = settings.targets.iter().filter_map(|target| sending.get(&target.name));
        *self.addresses() = in_order.map(|(address, _)| address.clone()).collect();
    }

    fn addresses(&self) -> MutexGuard<'_, Vec<Arc<Address>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The figures of all addresses, in the order of the configuration.
    pub fn statuses(&self) -> Vec<Status> {
        self.addresses().iter().map(|address| address.status()).collect()
    }

    /// Sends a test to the address of this name, or to all, at once. Returns how it went for each.
    pub async fn test(&self, name: Option<&str>) -> Vec<(String, Result<(), String>)> {
        let is_meant = |address: &&Arc<Address>| name.is_none_or(|name| name == address.target.name);
        let meant: Vec<Arc<Address>> = self.addresses().iter().filter(is_meant).cloned().collect();
        let now = self.hub.clock.now();
        let mut tests = JoinSet::new();
        for (place, address) in meant.into_iter().enumerate() {
            let notices = vec![Notice { at_ms: now.unix_ms, what: What::Test }];
            let batch = Arc::new(Batch { number: now.unix_ms, notices, dropped: 0 });
            tests.spawn(async move {
                let outcome = tokio::time::timeout(TEST_TIMEOUT, address.clone().deliver(batch, now)).await;
                let result = match outcome {
                    Ok(Outcome::Sent) => Ok(()),
                    Ok(Outcome::Failed(why, _) | Outcome::Refused(why)) => Err(why),
                    Err(_) => Err("it did not answer in time".into()),
                };
                (place, address.target.name.clone(), result)
            });
        }
        let mut results = tests.join_all().await;
        results.sort_by_key(|(place, ..)| *place);
        results.into_iter().map(|(_, name, result)| (name, result)).collect()
    }
}

impl Address {
    fn new(target: Target, sender: Sender) -> Address {
        let mut run = [0; 8];
        let _ = getrandom::fill(&mut run); // only tells batches apart
        let run = u64::from_ne_bytes(run);
        let sender = ArcSwap::from_pointee(sender);
        Address { target, sender, run, request: tokio::sync::Mutex::default(), figures: Figures::default() }
    }

    fn status(&self) -> Status {
        let Figures { waiting, sent, failed, dropped, is_failing } = &self.figures;
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Status {
            name: self.target.name.clone(),
            failing: is_failing.load(Ordering::Relaxed),
            waiting: number(waiting),
            sent: number(sent),
            failed: number(failed),
            dropped: number(dropped),
        }
    }

    /// One try to send a batch. Messages name at most the host: neither the path, which may be a secret, nor the secret.
    async fn deliver(self: Arc<Address>, batch: Arc<Batch>, now: Now) -> Outcome {
        let _alone = self.request.lock().await;
        let id = format!("{:016x}-{}", self.run, batch.number);
        let body = self.target.form.body(&batch, &id, &self.sender.load());
        let sign = |secret| (sign::HEADER, sign::signature(secret, now.unix_ms / 1_000, &body));
        let request = Request {
            headers: self.target.secret.as_ref().map(sign).into_iter().collect(),
            post: Some(("application/json", body)),
            ..Request::get(self.target.url.whole().clone(), 0, TIMEOUT)
        };
        match request.send_once().await {
            Ok((status, headers)) => outcome(status, &headers),
            Err(error) => Outcome::Failed(error.to_string(), None),
        }
    }
}

/// What an answer means. Only what may pass is tried again.
fn outcome(status: StatusCode, headers: &HeaderMap) -> Outcome {
    match status.as_u16() {
        200..=299 => Outcome::Sent,
        408 | 425 | 429 | 500..=599 => Outcome::Failed(format!("it answered {status}"), retry_after_ms(headers)),
        300..=399 => Outcome::Refused(format!("it answered {status}: redirects are not followed")),
        _ => Outcome::Refused(format!("it answered {status}")),
    }
}

/// The pause that the other side asks for, in seconds. A date is ignored: the usual pause will do.
fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let seconds: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    seconds.is_finite().then(|| (seconds.max(0.0) * 1_000.0).ceil() as u64)
}

/// The task of one address.
struct Sending {
    notices: Arc<Notices>,
    address: Arc<Address>,
    watcher: Watcher,
    queue: Queue,
    deltas: Receiver<Arc<Deltas>>,
    /// Deltas up to this serial are known from the view.
    known: u64,
}

impl Sending {
    fn new(notices: Arc<Notices>, address: Arc<Address>) -> Sending {
        let deltas = notices.hub.subscribe();
        let view = notices.hub.view();
        let listed = view.servers.iter().map(|server| &**server);
        let watcher = Watcher::new(address.target.wants.clone(), listed, notices.hub.clock.now());
        Sending { notices, address, watcher, queue: Queue::default(), deltas, known: view.serial }
    }

    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut request: JoinSet<Outcome> = JoinSet::new();
        loop {
            tokio::select! {
                deltas = self.deltas.recv() => match deltas {
                    Ok(deltas) if deltas.serial <= self.known => {}
                    Ok(deltas) => self.watcher.changed(&deltas.deltas, self.now()),
                    Err(RecvError::Lagged(_)) => self.start_again(),
                    Err(RecvError::Closed) => std::future::pending().await, // the program stops
                },
                _ = tick.tick() => self.look(),
                Some(ended) = request.join_next() => {
                    let lost = |error| Outcome::Failed(format!("the request was lost: {error}"), None);
                    self.ended(ended.unwrap_or_else(lost));
                }
            }
            let (form, now) = (self.address.target.form, self.now());
            if let Some(batch) = self.queue.next(|notices| form.fit(notices), now.mono_ms) {
                request.spawn(self.address.clone().deliver(batch, now));
            }
        }
    }

    fn now(&self) -> Now {
        self.notices.hub.clock.now()
    }

    /// Deltas were missed: what they said is not told, but what comes is counted from the right state.
    fn start_again(&mut self) {
        self.deltas = self.notices.hub.subscribe();
        let view = self.notices.hub.view();
        self.known = view.serial;
        self.watcher.recount(view.servers.iter().map(|server| &**server));
    }

    /// Queues what is due.
    fn look(&mut self) {
        let now = self.now();
        let Notices { hub, guard, metrics, .. } = &*self.notices;
        let budgets = guard.budgets();
        let refused: Vec<_> = budgets.refused().map(|(kind, count)| (kind.name(), count)).collect();
        let networks = || {
            let heaviest = budgets.heaviest(now).into_iter().filter(|heavy| heavy.prefix.is_widest());
            let mut networks: Vec<String> = heaviest.map(|heavy| heavy.prefix.to_string()).collect();
            networks.dedup();
            networks.truncate(NETWORKS_MAX);
            networks
        };
        let cluster = metrics.cluster.as_ref().map(|figures| (figures.connected.get() == 1, figures.nodes.get()));
        let state = NodeState { cluster, refused: &refused, networks: &networks };
        let is_listed = |address, game: &_| hub.listed(address).is_some_and(|server| server.game == *game);
        for notice in self.watcher.due(&state, is_listed, now) {
            let dropped = self.queue.push(notice);
            metrics.notices.dropped.inc_by(dropped);
            self.address.figures.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        self.show();
    }

    fn ended(&mut self, outcome: Outcome) {
        let mut jitter = [0; 4];
        let _ = getrandom::fill(&mut jitter); // without it, there is no jitter
        let report = self.queue.ended(outcome, u32::from_ne_bytes(jitter), self.now().mono_ms);
        let (name, metrics) = (&self.address.target.name, &self.notices.metrics.notices);
        match (report.begins_to_fail, report.failed) {
            (Some(why), 0) => warn!("notices {name}: {why}; trying again from time to time"),
            (Some(why), given_up) => warn!("notices {name}: {why}; {given_up} notices are given up"),
            (None, 0) => {}
            (None, given_up) => warn!("notices {name}: {given_up} more notices are given up"),
        }
        if report.works_again {
            info!("notices {name}: notices arrive again");
        }
        metrics.sent.inc_by(report.sent);
        metrics.failed.inc_by(report.failed);
        self.address.figures.sent.fetch_add(report.sent, Ordering::Relaxed);
        self.address.figures.failed.fetch_add(report.failed, Ordering::Relaxed);
        self.show();
    }

    fn show(&self) {
        let figures = &self.address.figures;
        figures.waiting.store(self.queue.len() as u64, Ordering::Relaxed);
        figures.is_failing.store(self.queue.is_failing(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

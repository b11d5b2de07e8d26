//! Fetches the lists of several masters again and again, and queries their servers. A master that is slow or fails delays no
//! other: its last list stays, and it is tried again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::merge::{Masters, merge};
use crate::client::list::{ListError, Listing, list};
use crate::client::query::{Pace, query_all};
use crate::client::{Found, RetryPolicy, Target};

/// After the first list has arrived, how long the others are waited for before servers are queried.
const OTHERS: Duration = Duration::from_secs(2);

/// What is watched, and how.
#[derive(Clone)]
pub struct Plan {
    pub masters: Vec<Target>,
    /// Games to list, where a master's protocol has several.
    pub games: Vec<String>,
    pub retry: RetryPolicy,
    /// None: servers are not queried.
    pub pace: Option<Pace>,
    pub every: Duration,
}

/// What happens, in order.
pub enum Event {
    Started,
    /// A list has arrived: all servers so far, not queried yet.
    Listed(Vec<Found>),
    /// A server has answered or failed.
    Answered(Box<Found>),
    /// A master has failed outside of a round: all that fail now.
    Failed(Vec<Failed>),
    Finished(Round),
}

/// A finished round.
pub struct Round {
    /// The last list of every master, as one; with the answers of the servers.
    pub servers: Vec<Found>,
    /// The masters that have listed servers for the first time.
    pub new: Masters,
    pub failed: Vec<Failed>,
    /// Whether any master has ever listed its servers.
    pub has_list: bool,
}

#[derive(Clone, Debug)]
pub struct Failed {
    /// None: this computer cannot send queries.
    pub master: Option<usize>,
    pub error: Arc<ListError>,
}

/// Runs until it is dropped. `now` starts a round at once.
pub async fn run(plan: &Plan, now: &Notify, mut report: impl FnMut(Event)) {
    let mut rounds = Rounds::new(plan);
    let mut next = Instant::now();
    loop {
        report(Event::Started);
        let is_due = Instant::now() >= next;
        if is_due {
            rounds.start();
            rounds.collect(&mut report).await;
        }
        let round = rounds.query(&mut report).await;
        report(Event::Finished(round));
        if is_due {
            next = Instant::now() + plan.every;
        }
        // A list that arrives late does not wait for the next round.
        loop {
            tokio::select! {
                () = sleep_until(next) => break,
                () = now.notified() => {
                    next = Instant::now();
                    break;
                }
                Some(late) = rounds.fetches.join_next() => {
                    if rounds.take(late) {
                        break;
                    }
                    report(Event::Failed(rounds.failed()));
                }
            }
        }
    }
}

type Fetched = (usize, Result<Listing, ListError>);

struct Rounds<'a> {
    plan: &'a Plan,
    /// The last list of each master, why it failed since, and whether it is being fetched.
    lists: Vec<Option<Vec<Found>>>,
    errors: Vec<Option<Arc<ListError>>>,
    is_fetching: Masters,
    /// At most one for each master.
    fetches: JoinSet<Fetched>,
    new: Masters,
}

impl<'a> Rounds<'a> {
    fn new(plan: &'a Plan) -> Rounds<'a> {
        let count = plan.masters.len();
        Rounds {
            plan,
            lists: vec![None; count],
            errors: vec![None; count],
            is_fetching: Masters::default(),
            fetches: JoinSet::new(),
            new: Masters::default(),
        }
    }

    /// Asks every master that has no request to answer.
    fn start(&mut self) {
        for (number, target) in self.plan.masters.iter().enumerate() {
            if self.is_fetching.contains(number) {
                continue;
            }
            self.is_fetching.insert(number);
            let games = if target.datagram_fetch().is_some() { self.plan.games.clone() } else { Vec::new() };
            let (target, retry) = (target.clone(), self.plan.retry);
            self.fetches.spawn(async move { (number, list(&target, &games, retry).await) });
        }
    }

    /// Waits for the lists; once there is one, not for long.
    async fn collect(&mut self, report: &mut impl FnMut(Event)) {
        let mut until = None;
        loop {
            let patience = async move {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                fetched = self.fetches.join_next() => {
                    let Some(fetched) = fetched else { return };
                    if self.take(fetched) {
                        until.get_or_insert_with(|| Instant::now() + OTHERS);
                        report(Event::Listed(merge(&self.lists)));
                    }
                }
                () = patience => return,
            }
        }
    }

    /// Keeps a list; returns whether it is one.
    fn take(&mut self, fetched: Result<Fetched, tokio::task::JoinError>) -> bool {
        let (number, result) = match fetched {
            Ok(fetched) => fetched,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return false, // aborted, which nobody does
            },
        };
        self.is_fetching.remove(number);
        let (Some(list), Some(error)) = (self.lists.get_mut(number), self.errors.get_mut(number)) else { return false };
        match result {
            Ok(listing) => {
                if list.replace(listing.servers).is_none() {
                    self.new.insert(number);
                }
                *error = None;
                true
            }
            Err(why) => {
                *error = Some(Arc::new(why));
                false
            }
        }
    }

    fn failed(&self) -> Vec<Failed> {
        let errors = self.errors.iter().enumerate();
        errors.filter_map(|(master, error)| Some(Failed { master: Some(master), error: error.clone()? })).collect()
    }

    async fn query(&mut self, report: &mut impl FnMut(Event)) -> Round {
        let mut servers = merge(&self.lists);
        let mut failed = self.failed();
        if let Some(pace) = self.plan.pace {
            let queried =
                query_all(&mut servers, pace, |server| report(Event::Answered(Box::new(server.clone())))).await;
            failed.extend(queried.err().map(|error| Failed { master: None, error: Arc::new(error.into()) }));
        }
        let has_list = self.lists.iter().any(Option::is_some);
        Round { servers, new: std::mem::take(&mut self.new), failed, has_list }
    }
}

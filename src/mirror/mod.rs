//! Follows other masters. What they list is asked by our own prober, and listed here for as long as it answers, as `via` that
//! master: so a list survives its last master.
//!
//! A task per upstream fetches its list from time to time ([`crate::client::list`]) and keeps a `book` of its servers. Those
//! that are not known here are asked; the registry lists those that answer. A dead, slow, huge or hostile upstream costs a
//! bounded amount of time, memory and questions, and what it lists is never believed without an answer.
//!
//! There are no loops: of another Rallypoint only servers are taken that announce themselves there, and nothing keeps a server
//! listed but its own answers.

mod book;
mod names;
mod reach;
pub mod settings;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, timeout};
use tracing::{debug, info, warn};

use crate::client::list::{Limits, Listing, list_within, look_up};
use crate::client::{Found, RetryPolicy};
use crate::metrics::{Metrics, UpstreamFigures};
use crate::model::{Address, Game, Origin};
use crate::net::announcements::Announcements;
use crate::net::mirrored::Asked;
use crate::net::stopped;
use crate::protocols::query_of;
use book::{Book, Bounds, Taken};
use names::Names;
use reach::Reach;
pub use settings::{Settings, Upstream};

/// How often a task looks for servers to ask.
const TICK: Duration = Duration::from_millis(250);
/// Servers of one upstream that are asked at a time.
const ASKING_MAX: usize = 64;
/// For one try to connect and get a page of a list, and for the whole list.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);
const LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest pause between two tries while an upstream cannot be reached.
const PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// What all upstreams' tasks share.
pub struct Mirror {
    pub announcements: Arc<Announcements>,
    pub metrics: Arc<Metrics>,
}

impl Mirror {
    /// Follows the upstreams of the current settings until the program stops.
    pub async fn run(self: Arc<Mirror>, mut settings: watch::Receiver<Settings>, mut stop: watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        let mut following: HashMap<String, (Settings, AbortHandle)> = HashMap::new();
        loop {
            let current = settings.borrow_and_update().clone();
            self.start(&current, &mut tasks, &mut following);
            tokio::select! {
                () = stopped(&mut stop) => return,
                Ok(()) = settings.changed() => {}
            }
        }
    }

    /// Starts what is new, and ends what is no longer configured. What has not changed goes on.
    fn start(
        self: &Arc<Mirror>,
        settings: &Settings,
        tasks: &mut JoinSet<()>,
        following: &mut HashMap<String, (Settings, AbortHandle)>,
    ) {
        let alone = |upstream: &Upstream| Settings { upstreams: vec![upstream.clone()], ..settings.clone() };
        let wanted: HashMap<&str, Settings> =
            settings.upstreams.iter().map(|upstream| (&*upstream.name, alone(upstream))).collect();
        following.retain(|name, (known, task)| {
            let stays = wanted.get(&**name) == Some(known);
            if !stays {
                task.abort();
            }
            stays
        });
        while tasks.try_join_next().is_some() {} // those that were ended
        for upstream in &settings.upstreams {
            if !following.contains_key(&upstream.name) {
                let own = alone(upstream);
                let figures = Arc::new(UpstreamFigures::new(&upstream.name));
                self.metrics.follow(figures.clone());
                let task = Following::new(self.clone(), upstream.clone(), &own, figures);
                following.insert(upstream.name.clone(), (own, tasks.spawn(task.run())));
            }
        }
        self.metrics.keep_upstreams(|name| following.contains_key(name));
    }
}

/// One upstream's task.
struct Following {
    mirror: Arc<Mirror>,
    upstream: Upstream,
    via: Arc<Origin>,
    book: Book,
    names: Names,
    figures: Arc<UpstreamFigures>,
    /// Failed tries in a row to get its list.
    failures: u32,
    next_list_ms: u64,
}

impl Following {
    fn new(mirror: Arc<Mirror>, upstream: Upstream, settings: &Settings, figures: Arc<UpstreamFigures>) -> Following {
        let bounds = Bounds {
            servers_max: upstream.servers_max,
            servers_per_ip_max: settings.servers_per_ip_max,
            exempt: settings.exempt.clone(),
            reach: Reach::of(&upstream.target, settings.exempt.clone()),
        };
        let (book, via) = (Book::new(bounds), Arc::new(Origin::new(&upstream.name)));
        let names = Names::default();
        Following { mirror, upstream, via, book, names, figures, failures: 0, next_list_ms: 0 }
    }

    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asking: JoinSet<(Address, Asked)> = JoinSet::new();
        let mut fetching: JoinSet<Result<Listing, String>> = JoinSet::new();
        let mut lookups: JoinSet<(Box<str>, Option<IpAddr>)> = JoinSet::new();
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    if fetching.is_empty() && self.now_ms() >= self.next_list_ms {
                        fetching.spawn(fetch(self.upstream.clone()));
                    }
                    if let Some(host) = self.names.next(self.now_ms()) {
                        lookups.spawn(ip_of(host));
                    }
                }
                Some(Ok((host, ip))) = lookups.join_next() => self.looked_up(&host, ip),
                Some(Ok(fetched)) = fetching.join_next() => self.fetched(fetched),
                Some(Ok((address, asked))) = asking.join_next() => self.asked(address, asked),
            }
            while asking.len() < ASKING_MAX
                && let Some((address, game)) = self.book.next(self.now_ms())
            {
                self.ask(address, game, &mut asking);
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.mirror.announcements.hub.clock.now().mono_ms
    }

    fn ask(&mut self, address: Address, game: Game, asking: &mut JoinSet<(Address, Asked)>) {
        if self.mirror.announcements.hub.address_state(address).is_some() {
            self.book.known(address, self.now_ms());
            return;
        }
        let (announcements, via) = (self.mirror.announcements.clone(), self.via.clone());
        asking.spawn(async move { (address, announcements.mirror(address, game, via).await) });
    }

    fn asked(&mut self, address: Address, asked: Asked) {
        let now_ms = self.now_ms();
        match asked {
            Asked::Listed => self.book.known(address, now_ms),
            Asked::Silent | Asked::Refused => self.book.silent(address, now_ms),
            Asked::Busy => self.book.busy(address, now_ms),
        }
    }

    fn looked_up(&mut self, host: &str, ip: Option<IpAddr>) {
        let now_ms = self.now_ms();
        let servers = self.names.found(host, ip, now_ms);
        let Taken { taken, .. } = self.book.more(servers, now_ms);
        self.figures.listed(taken);
    }

    fn fetched(&mut self, fetched: Result<Listing, String>) {
        let (now_ms, name) = (self.now_ms(), &self.upstream.name);
        match fetched {
            Ok(listing) => {
                let too_many_names = self.names.list(listing.named, now_ms);
                let listed = listing.servers.into_iter().filter_map(candidate).chain(self.names.servers()).collect();
                let Taken { taken, unreachable, too_many } = self.book.list(listed, now_ms);
                let too_many = too_many + too_many_names;
                let is_news = self.failures > 0 || self.figures.is_new();
                self.failures = 0;
                self.figures.fetched(taken, self.mirror.announcements.hub.clock.now().unix_ms);
                let left_out = unreachable + too_many;
                if is_news {
                    info!("upstream {name}: {taken} servers to ask, {left_out} left out");
                } else {
                    debug!(upstream = name, taken, unreachable, too_many, "list fetched");
                }
            }
            Err(why) => {
                self.book.keep(now_ms);
                if self.failures == 0 {
                    warn!("upstream {name}: {why}; its servers stay listed for as long as they answer");
                }
                self.failures = self.failures.saturating_add(1);
                self.figures.failed();
            }
        }
        self.next_list_ms = now_ms + pause(self.upstream.every, self.failures).as_millis() as u64;
    }
}

/// The pause before the next list: longer with each failure in a row.
fn pause(every: Duration, failures: u32) -> Duration {
    let longer = every.saturating_mul(1 << failures.min(16));
    longer.min(PAUSE_MAX.max(every))
}

async fn fetch(upstream: Upstream) -> Result<Listing, String> {
    let retry = RetryPolicy { timeout: Some(PAGE_TIMEOUT), retries: Some(0) };
    let limits = Limits::addresses(upstream.servers_max);
    match timeout(LIST_TIMEOUT, list_within(&upstream.target, &[], retry, limits)).await {
        Ok(listing) => listing.map_err(|error| error.to_string()),
        Err(_) => Err("its list did not arrive in time".into()),
    }
}

async fn ip_of(host: Box<str>) -> (Box<str>, Option<IpAddr>) {
    let found = look_up(&host, 1).await; // of any port
    let ip = found.map(|address| address.ip()).inspect_err(|error| debug!(error, "a listed name was not found"));
    (host, ip.ok())
}

/// A listed server that can be asked here. Of another Rallypoint, only servers that announce themselves there: it follows
/// masters, too, and would hand our own servers back to us.
fn candidate(found: Found) -> Option<(Address, Game)> {
    let is_direct = found.via.is_none() && !found.game.is_master();
    (is_direct && query_of(&found.game).is_some()).then_some((found.address, found.game))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::CARDS;

    #[test]
    fn an_upstream_that_cannot_be_reached_is_tried_more_and_more_rarely() {
        let minute = Duration::from_secs(60);
        let pauses: Vec<u64> = (0..9).map(|failures| pause(minute, failures).as_secs() / 60).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        let day = Duration::from_secs(86_400);
        assert_eq!((pause(day, 0), pause(day, 5)), (day, day));
        assert_eq!(pause(minute, u32::MAX), PAUSE_MAX);
    }

    #[test]
    fn only_servers_that_can_be_asked_and_announce_themselves_there_are_taken() {
        let found = |game: Game| Found::new(game, "192.0.2.1:1".parse().unwrap());
        for card in CARDS {
            let of_card = found(Game::Own(card.name));
            let via = Found { via: Some("another".into()), ..of_card.clone() };
            assert_eq!(candidate(of_card).is_some(), card.query.is_some(), "{}", card.name);
            assert_eq!(candidate(via), None, "{}", card.name);
            assert_eq!(candidate(found(Game::master(card.name))), None, "{}", card.name);
        }
    }
}

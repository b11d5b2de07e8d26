//! Metrics in the Prometheus text format. The set of labels is bounded: games with a card, and `other`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::budget::Budgets;
use crate::ledger::Ledger;
use crate::model::Now;
use crate::protocols::own_card;
use crate::registry::networks::{By, Holdings};
use crate::registry::view::View;
use crate::store::Status;

/// The heaviest networks that are named.
const NETWORKS_MAX: usize = 10;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfGame {
    game: &'static str,
}

/// `servers`, `players` or `bytes`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfNetwork {
    of: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfList {
    list: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfAnswer {
    answer: &'static str,
}

pub struct Metrics {
    registry: Registry,
    servers: Family<OfGame, Gauge>,
    server_bytes: Gauge,
    largest_share: Family<OfNetwork, Gauge<f64, AtomicU64>>,
    players: Family<OfGame, Gauge>,
    lists: Family<OfList, Counter>,
    rtt: Histogram,
    memory: Gauge,
    connections: Gauge,
    serial: Gauge,
    /// The serial of the view whose servers have been counted.
    counted: Mutex<Option<u64>>,
    waiting: Gauge,
    refused: Counter,
    list_bytes: Gauge,
    /// Queries sent to game servers.
    pub questions: Counter,
    /// Readers of the event stream.
    pub readers: Gauge,
    /// Time to render a list that was not cached.
    pub render: Histogram,
    /// Connections of configured proxies without a valid PROXY header.
    pub proxy_refusals: Counter,
    /// Lists that are sent as datagrams.
    pub list_answers: ListAnswers,
    /// None without a cluster.
    pub cluster: Option<ClusterFigures>,
    upstreams: Mutex<Vec<Arc<UpstreamFigures>>>,
    pub notices: NoticeFigures,
}

/// Notices by what became of them, of all addresses together: the metrics are public, and do not name the addresses.
#[derive(Default)]
pub struct NoticeFigures {
    pub sent: Counter,
    /// Refused, or given up.
    pub failed: Counter,
    /// Too many waited.
    pub dropped: Counter,
}

impl NoticeFigures {
    fn register(registry: &mut Registry) -> NoticeFigures {
        let figures = NoticeFigures::default();
        registry.register("notices_sent", "Notices that arrived", figures.sent.clone());
        registry.register("notices_failed", "Notices that were refused or given up", figures.failed.clone());
        registry.register(
            "notices_dropped",
            "Notices that were dropped because too many waited",
            figures.dropped.clone(),
        );
        figures
    }
}

/// Metrics of another master that this one follows.
#[derive(Debug)]
pub struct UpstreamFigures {
    pub name: String,
    /// Servers of its last list that can be asked.
    listed: AtomicU64,
    /// Servers that are listed here via it, as they were last counted.
    mirrored: AtomicU64,
    /// When its list was last fetched; 0: never.
    fetched_at_ms: AtomicU64,
    failures: AtomicU64,
    is_failing: AtomicBool,
}

/// The figures of an upstream at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamStatus {
    pub name: String,
    /// Whether the last try to fetch its list succeeded.
    pub up: bool,
    pub listed: u64,
    pub mirrored: u64,
    /// None: never.
    pub fetched_at_ms: Option<u64>,
    pub failures: u64,
}

impl UpstreamFigures {
    pub fn new(name: &str) -> UpstreamFigures {
        UpstreamFigures {
            name: name.into(),
            listed: AtomicU64::new(0),
            mirrored: AtomicU64::new(0),
            fetched_at_ms: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Whether its list was never fetched.
    pub fn is_new(&self) -> bool {
        self.fetched_at_ms.load(Ordering::Relaxed) == 0
    }

    /// So many servers of its list can be asked.
    pub fn listed(&self, listed: usize) {
        self.listed.store(listed as u64, Ordering::Relaxed);
    }

    pub fn fetched(&self, listed: usize, at_ms: u64) {
        self.listed(listed);
        self.fetched_at_ms.store(at_ms, Ordering::Relaxed);
        self.is_failing.store(false, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.is_failing.store(true, Ordering::Relaxed);
    }

    fn status(&self) -> UpstreamStatus {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let fetched_at_ms = Some(number(&self.fetched_at_ms)).filter(|at_ms| *at_ms > 0);
        UpstreamStatus {
            name: self.name.clone(),
            up: fetched_at_ms.is_some() && !self.is_failing.load(Ordering::Relaxed),
            listed: number(&self.listed),
            mirrored: number(&self.mirrored),
            fetched_at_ms,
            failures: number(&self.failures),
        }
    }
}

/// Requests for lists in datagrams, by outcome.
pub struct ListAnswers {
    pub whole: Counter,
    /// Truncated to what was left of the budget.
    pub cut: Counter,
    /// No answer at all.
    pub refused: Counter,
    /// Bytes sent, with headers.
    pub bytes: Counter,
}

impl ListAnswers {
    fn register(registry: &mut Registry) -> ListAnswers {
        let (answers, bytes) = (Family::<OfAnswer, Counter>::default(), Counter::default());
        registry.register("list_answers", "Requests for lists in datagrams, by their answer", answers.clone());
        registry.register_with_unit("list", "Lists sent as datagrams", Unit::Bytes, bytes.clone());
        let counter = |answer| answers.get_or_create_owned(&OfAnswer { answer });
        ListAnswers { whole: counter("whole"), cut: counter("cut"), refused: counter("refused"), bytes }
    }
}

/// Metrics of this node in a cluster.
#[derive(Clone, Default)]
pub struct ClusterFigures {
    /// 1 while this node can both read from and write to the shared store.
    pub connected: Gauge,
    /// Nodes alive, including this one.
    pub nodes: Gauge,
    pub puts: Counter,
    pub put_failures: Counter,
    /// Records of other nodes that changed something here.
    pub merged: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let seconds =
            |least: f64| Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(least, 2.0, 14));
        let mut registry = Registry::with_prefix("rallypoint");
        let mut metrics = Metrics {
            list_answers: ListAnswers::register(&mut registry),
            notices: NoticeFigures::register(&mut registry),
            registry,
            servers: Family::default(),
            server_bytes: Gauge::default(),
            largest_share: Family::default(),
            players: Family::default(),
            lists: Family::default(),
            rtt: seconds(0.001),
            memory: Gauge::default(),
            connections: Gauge::default(),
            serial: Gauge::default(),
            counted: Mutex::default(),
            waiting: Gauge::default(),
            refused: Counter::default(),
            list_bytes: Gauge::default(),
            questions: Counter::default(),
            readers: Gauge::default(),
            proxy_refusals: Counter::default(),
            render: seconds(0.000_1),
            cluster: None,
            upstreams: Mutex::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("servers", "Listed servers", metrics.servers.clone());
        let server_bytes = metrics.server_bytes.clone();
        registry.register_with_unit(
            "servers",
            "Memory for listed servers and what they say",
            Unit::Bytes,
            server_bytes,
        );
        let largest_share = metrics.largest_share.clone();
        registry.register(
            "largest_network_share",
            "The largest part of the list that one network holds",
            largest_share,
        );
        registry.register("players", "Players on listed servers", metrics.players.clone());
        registry.register("lists", "Lists served", metrics.lists.clone());
        registry.register("queries", "Queries sent to game servers", metrics.questions.clone());
        let rtt = metrics.rtt.clone();
        registry.register_with_unit("round_trip", "Round trips of answered queries", Unit::Seconds, rtt);
        let render = metrics.render.clone();
        registry.register_with_unit("render", "Time to render a list", Unit::Seconds, render);
        registry.register_with_unit("memory", "Resident memory", Unit::Bytes, metrics.memory.clone());
        registry.register("connections", "Open TCP connections", metrics.connections.clone());
        let refusals = metrics.proxy_refusals.clone();
        registry.register("proxy_refusals", "Connections of proxies closed for lack of a PROXY header", refusals);
        registry.register("event_readers", "Readers of the event stream", metrics.readers.clone());
        let waiting = metrics.waiting.clone();
        registry.register("renderings_waiting", "Clients that wait for a list with parameters of their own", waiting);
        let refused = metrics.refused.clone();
        registry.register("renderings_refused", "Lists with clients' own parameters that were refused", refused);
        let list_bytes = metrics.list_bytes.clone();
        registry.register_with_unit("lists_held", "Rendered lists in memory", Unit::Bytes, list_bytes);
        registry.register("serial", "The published list's serial", metrics.serial.clone());
        metrics
    }

    /// Adds the metrics of a cluster.
    pub fn with_cluster(mut self) -> Metrics {
        let figures = ClusterFigures::default();
        figures.nodes.set(1);
        let registry = &mut self.registry;
        let connected = figures.connected.clone();
        registry.register("cluster_connected", "Whether this node is connected to the shared store", connected);
        registry.register("cluster_nodes", "Nodes alive", figures.nodes.clone());
        registry.register("cluster_puts", "Records written to the shared store", figures.puts.clone());
        let failures = figures.put_failures.clone();
        registry.register("cluster_put_failures", "Failed writes to the shared store; they are retried", failures);
        registry.register("cluster_merged", "Records of other nodes that changed something", figures.merged.clone());
        self.cluster = Some(figures);
        self
    }

    /// Adds the figures of an upstream. They replace those of the same name.
    pub fn follow(&self, figures: Arc<UpstreamFigures>) {
        let mut upstreams = self.followed();
        upstreams.retain(|known| known.name != figures.name);
        upstreams.push(figures);
    }

    /// Removes the figures of upstreams that are no longer followed.
    pub fn keep_upstreams(&self, is_followed: impl Fn(&str) -> bool) {
        self.followed().retain(|figures| is_followed(&figures.name));
    }

    /// The upstreams, in the order of their names.
    pub fn upstreams(&self) -> Vec<UpstreamStatus> {
        let mut upstreams: Vec<_> = self.followed().iter().map(|figures| figures.status()).collect();
        upstreams.sort_by(|one, other| one.name.cmp(&other.name));
        upstreams
    }

    fn followed(&self) -> MutexGuard<'_, Vec<Arc<UpstreamFigures>>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a round trip to a game server.
    pub fn rtt(&self, rtt_us: u32) {
        self.rtt.observe(f64::from(rtt_us) / 1e6);
    }

    /// What counts the lists of this name.
    pub fn lists_served(&self, list: &'static str) -> Counter {
        self.lists.get_or_create(&OfList { list }).clone()
    }

    /// Counts lists that were served. The name is one of ours, so labels stay bounded.
    pub fn listed(&self, list: &'static str, count: u64) {
        self.lists.get_or_create(&OfList { list }).inc_by(count);
    }

    /// Sets the figures of work that clients wait for.
    pub fn set_work(&self, waiting: usize, refused: u64, list_bytes: usize) {
        let _counting = self.counted.lock().unwrap_or_else(PoisonError::into_inner); // one at a time
        self.waiting.set(waiting as i64);
        self.refused.inc_by(refused.saturating_sub(self.refused.get()));
        self.list_bytes.set(list_bytes as i64);
    }

    /// Whether the servers of this view have been counted, or those of a later one.
    pub fn has_counted(&self, view: &View) -> bool {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|serial| serial >= view.serial)
    }

    /// Counts servers and players, once per view.
    pub fn count(&self, view: &View) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.is_some_and(|serial| serial >= view.serial) {
            return;
        }
        *counted = Some(view.serial);
        let mut games: BTreeMap<&'static str, (i64, i64)> = BTreeMap::from([("other", (0, 0))]);
        games.extend(crate::protocols::CARDS.iter().map(|card| (card.name, (0, 0))));
        let mut mirrored: BTreeMap<&str, u64> = BTreeMap::new();
        for server in view.games() {
            if let Some(via) = &server.via {
                *mirrored.entry(via.name()).or_default() += 1;
            }
            let game = own_card(&server.game).map_or("other", |card| card.name);
            let (servers, players) = games.entry(game).or_default();
            *servers += 1;
            *players += i64::from(server.players_current.unwrap_or(0));
        }
        for figures in self.followed().iter() {
            let count = mirrored.get(&*figures.name).copied().unwrap_or(0);
            figures.mirrored.store(count, Ordering::Relaxed);
        }
        // Counted first and set once per game: other readers must not see partial sums.
        let holdings = Holdings::of(view.games().map(|server| &**server));
        self.server_bytes.set(holdings.all.bytes as i64);
        for by in By::ALL {
            self.largest_share.get_or_create(&OfNetwork { of: by.name() }).set(holdings.largest_share(by));
        }
        for (game, (servers, players)) in games {
            self.servers.get_or_create(&OfGame { game }).set(servers);
            self.players.get_or_create(&OfGame { game }).set(players);
        }
    }

    /// All metrics as text, with servers and players as they were last counted.
    pub fn text(
        &self,
        view: &View,
        ledger: &Ledger,
        connections: usize,
        store: Option<&Status>,
        budgets: (&Budgets, Now),
    ) -> String {
        self.connections.set(connections as i64);
        self.serial.set(view.serial as i64);
        self.memory.set(resident_bytes());
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry); // writing to a String cannot fail
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        text.push_str("# HELP rallypoint_events Events by kind.\n# TYPE rallypoint_events counter\n");
        for (label, count) in ledger.counts() {
            let _ = writeln!(text, "rallypoint_events_total{{kind=\"{label}\"}} {count}");
        }
        if let Some(store) = store {
            store_text(store, &mut text);
        }
        upstreams_text(&self.upstreams(), &mut text);
        budgets_text(budgets, &mut text);
        text.push_str("# EOF\n");
        text
    }
}

/// What was refused for lack of budget, and the networks that use most of theirs. These metrics are public, so they name
/// networks and not addresses; `rallypoint admin top` names both.
fn budgets_text((budgets, now): (&Budgets, Now), text: &mut String) {
    let name = "rallypoint_budget_refused";
    let _ = writeln!(text, "# HELP {name} Requests refused for lack of budget.\n# TYPE {name} counter");
    for (kind, count) in budgets.refused() {
        let _ = writeln!(text, "{name}_total{{budget=\"{}\"}} {count}", kind.name());
    }
    let name = "rallypoint_budget_network_share";
    let _ = writeln!(
        text,
        "# HELP {name} How much of its budget a network has used; above 1 is debt.\n# TYPE {name} gauge"
    );
    let networks = budgets.heaviest(now).into_iter().filter(|heavy| heavy.prefix.is_widest());
    for heavy in networks.take(NETWORKS_MAX) {
        let (kind, network, share) = (heavy.kind.name(), heavy.prefix, heavy.share as f64 / 1_000.0);
        let _ = writeln!(text, "{name}{{budget=\"{kind}\",network=\"{network}\"}} {share:.3}");
    }
}

/// Metrics of the masters that are followed. Their names are the operator's, so labels stay bounded.
fn upstreams_text(upstreams: &[UpstreamStatus], text: &mut String) {
    if upstreams.is_empty() {
        return;
    }
    type Figure = fn(&UpstreamStatus) -> u64;
    let figures: [(&str, &str, &str, Figure); 5] = [
        ("up", "gauge", "1 if the last try to fetch its list succeeded", |it| it.up.into()),
        ("servers", "gauge", "Servers of its last list that can be asked", |it| it.listed),
        ("mirrored", "gauge", "Servers that are listed via it", |it| it.mirrored),
        ("last_fetch_timestamp_seconds", "gauge", "When its list was last fetched; 0: never", |it| {
            it.fetched_at_ms.unwrap_or(0) / 1_000
        }),
        ("failures", "counter", "Failed tries to fetch its list", |it| it.failures),
    ];
    for (name, kind, help, value) in figures {
        let _ = writeln!(text, "# HELP rallypoint_upstream_{name} {help}.\n# TYPE rallypoint_upstream_{name} {kind}");
        let total = if kind == "counter" { "_total" } else { "" };
        for upstream in upstreams {
            let label = upstream.name.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(text, "rallypoint_upstream_{name}{total}{{upstream=\"{label}\"}} {}", value(upstream));
        }
    }
}

/// Metrics of the store on disk.
fn store_text(store: &Status, text: &mut String) {
    let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
    for (name, kind, help, value) in [
        (
            "store_size_bytes",
            "gauge",
            "Size of the database with the list and its history, including its log",
            number(&store.file_bytes),
        ),
        ("store_failing", "gauge", "1 while writes fail", store.is_failing().into()),
        ("store_failures", "counter", "Failed writes", number(&store.failures)),
        ("store_writes", "counter", "Transactions written", number(&store.writes)),
        ("store_files_lost", "counter", "Database files that were removed while in use", number(&store.files_lost)),
    ] {
        let _ = writeln!(text, "# HELP rallypoint_{name} {help}.\n# TYPE rallypoint_{name} {kind}");
        let total = if kind == "counter" { "_total" } else { "" };
        let _ = writeln!(text, "rallypoint_{name}{total} {value}");
    }
}

/// Resident memory; 0 if the system does not report it.
pub fn resident_bytes() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: i64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{self, Kind};
    use crate::ledger::{Channel, Note, What};
    use crate::protocols::iceball::{self, events};

    #[test]
    fn all_metrics_are_printed_and_game_labels_are_bounded() {
        use crate::model::{Facts, Game, Proof, Server};
        use std::sync::Arc;
        let metrics = Metrics::new();
        let ledger = Ledger::new();
        let sent = What::Datagram(events::COOKIE_SENT.event());
        ledger.note([203, 0, 113, 5].into(), Note::new(0, Channel::datagrams(iceball::NAME), 1, 1, sent));
        let server = |port: u16, game: Game| {
            let facts = Facts { players_current: Some(3), ..Facts::default() };
            let address = format!("203.0.113.5:{port}").parse().unwrap();
            Arc::new(Server::new(address, game, Proof::Query, 0, &facts))
        };
        let evil = Game::carried("netpanzer", "x\"} 1\nevil");
        let view = View::new(
            7,
            0,
            vec![server(1, Game::Own("netpanzer")), server(2, evil), server(3, Game::master("netpanzer"))],
        );
        metrics.rtt(20_000);
        metrics.listed("master.json", 1);
        metrics.list_answers.cut.inc_by(2);
        metrics.list_answers.bytes.inc_by(1_400);
        metrics.notices.dropped.inc_by(3);
        let budgets = Budgets::new(budget::Settings { servers_per_ip_max: 1, ..Default::default() }, [1, 2]);
        let now = Now { mono_ms: 1_000, unix_ms: 0 };
        budgets.charge(Kind::Searches, now, [203, 0, 113, 5].into(), 4_000_000);
        assert!(budgets.admit(Kind::Searches, now, [203, 0, 113, 5].into()).is_err());
        metrics.count(&view);
        assert!(metrics.has_counted(&view));
        metrics.set_work(3, 2, 1_000);
        metrics.set_work(4, 7, 2_000);
        let text = metrics.text(&view, &ledger, 5, None, (&budgets, now));
        for line in [
            "rallypoint_servers{game=\"netpanzer\"} 1",
            "rallypoint_players{game=\"netpanzer\"} 3",
            "rallypoint_servers{game=\"other\"} 1",
            "rallypoint_servers{game=\"iceball\"} 0",
            "rallypoint_lists_total{list=\"master.json\"} 1",
            "rallypoint_round_trip_seconds_count 1",
            "rallypoint_connections 5",
            "rallypoint_list_answers_total{answer=\"cut\"} 2",
            "rallypoint_list_answers_total{answer=\"refused\"} 0",
            "rallypoint_list_bytes_total 1400",
            "rallypoint_notices_sent_total 0",
            "rallypoint_notices_failed_total 0",
            "rallypoint_notices_dropped_total 3",
            "rallypoint_serial 7",
            "rallypoint_renderings_waiting 4",
            "rallypoint_renderings_refused_total 7",
            "rallypoint_lists_held_bytes 2000",
            "rallypoint_events_total{kind=\"cookie_sent\"} 1",
            "rallypoint_budget_refused_total{budget=\"searches\"} 1",
            "rallypoint_budget_refused_total{budget=\"events\"} 0",
            "rallypoint_budget_network_share{budget=\"searches\",network=\"203.0.113.0/24\"} 0.500",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("203.0.113.5/32"), "players' own addresses are not public");
        assert!(!text.contains("evil") && !text.contains("master\"}"));
        assert!(text.contains("rallypoint_memory_bytes "));
    }
}

//! The answers to the operator's commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use super::{By, Request, Terms};
use crate::budget::Heavy;
use crate::hub::Hub;
use crate::ledger::Ledger;
use crate::metrics::{Metrics, UpstreamStatus, resident_bytes};
use crate::moderation::board::Decision;
use crate::moderation::{Full, PATTERNS_MAX, REASON_BYTES_MAX, STATEMENTS_MAX, Statement, Subject};
use crate::net::guard::Guard;
use crate::net::moderator::Moderator;
use crate::notices::{self, Notices};
use crate::prefix::Prefix;
use crate::protocols::servers_of;
use crate::registry::networks::{self, Holding, Holdings};
use crate::store::Status;
use crate::text;
use crate::times::rfc3339;

/// The shortest and the longest time that something can be decided for.
const FOR_MS_MIN: u64 = 1_000;
const FOR_MS_MAX: u64 = 10 * 366 * 86_400_000;

/// How many networks are shown.
const NETWORKS_MAX: usize = 20;

/// Asks the program to read its configuration again; answered with the keys that need a restart, or with the errors.
pub type Reload = oneshot::Sender<Result<Vec<String>, String>>;

/// What the answers need.
pub struct Answers {
    pub moderator: Arc<Moderator>,
    pub hub: Arc<Hub>,
    pub guard: Arc<Guard>,
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<Metrics>,
    pub notices: Arc<Notices>,
    /// None: nothing is kept on disk.
    pub store: Option<Arc<Status>>,
    pub started: Instant,
    pub reload: mpsc::Sender<Reload>,
}

/// A row of `bans`, `unlisted` and `hidden`.
#[derive(Serialize)]
struct Row<'a> {
    kind: &'static str,
    subject: String,
    /// `admin` or `configuration`.
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// None: until it is lifted.
    until: Option<String>,
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    by: &'a str,
}

impl Answers {
    /// The lines of the answer to a request of a user.
    pub async fn answer(&self, request: Request, user: &str) -> Result<Vec<Value>, String> {
        match request {
            Request::Status => Ok(vec![self.status()]),
            Request::Top => Ok(self.top()),
            Request::Networks { game, by } => self.networks(game.as_deref(), by),
            Request::Game { name } => self.game(&name),
            Request::Bans => Ok(self.decisions("ban")),
            Request::Unlisted => Ok(self.decisions("unlist")),
            Request::Hidden => Ok(self.decisions("hide")),
            Request::Ban { network, terms } => self.decide(Subject::network(&network)?, &terms, user),
            Request::Unlist { address, terms } => self.decide(Subject::server(&address)?, &terms, user),
            Request::Hide { pattern, terms } => self.decide(Subject::name(&pattern)?, &terms, user),
            Request::Unban { network } => self.lift(Subject::network(&network)?, user),
            Request::Relist { address } => self.lift(Subject::server(&address)?, user),
            Request::Unhide { pattern } => self.lift(Subject::name(&pattern)?, user),
            Request::Reload => self.reload(user).await,
            Request::NoticeTest { name } => self.test_notices(name.as_deref(), user).await,
        }
    }

    fn decide(&self, subject: Subject, terms: &Terms, user: &str) -> Result<Vec<Value>, String> {
        let now_ms = self.moderator.now_ms();
        if let Some(for_ms) = terms.for_ms.filter(|for_ms| !(FOR_MS_MIN..=FOR_MS_MAX).contains(for_ms)) {
            return Err(format!("it cannot last {for_ms} ms: from a second to ten years"));
        }
        let reason = text::clean(terms.reason.trim().as_bytes());
        if reason.len() > REASON_BYTES_MAX {
            return Err(format!("the reason is longer than {REASON_BYTES_MAX} bytes"));
        }
        let statement = Statement {
            subject,
            at_ms: now_ms,
            ends_at_ms: terms.for_ms.map(|for_ms| now_ms + for_ms),
            reason: reason.into(),
            by: user.into(),
        };
        let (added, effect) = self.moderator.state(statement).map_err(full)?;
        let until = added.ends_at_ms.map(time);
        let (kind, subject) = (added.subject.kind(), added.subject.text());
        info!("admin: {user}: {added}");
        Ok(vec![json!({
            "done": kind,
            "subject": subject,
            "until": until,
            "reason": added.reason,
            "servers_removed": effect.servers_removed,
            "connections_closed": effect.connections_closed,
            "kept": self.kept(),
        })])
    }

    fn lift(&self, subject: Subject, user: &str) -> Result<Vec<Value>, String> {
        let now_ms = self.moderator.now_ms();
        let (kind, text, board) = (subject.kind(), subject.text(), &self.moderator.board);
        let is_configured = board.is_configured(&subject);
        if board.live(&subject, now_ms).is_none() {
            return Err(match (is_configured, kind) {
                (true, "ban") => format!("{text} is banned by the configuration: change guard.bans and reload"),
                (true, _) => format!("`{text}` is hidden by the configuration: change guard.hidden_names and reload"),
                (false, "ban") => format!("{text} is not banned{}", self.around(&subject, now_ms)),
                (false, "unlist") => format!("{text} is not unlisted"),
                (false, _) => format!("`{text}` is not hidden"),
            });
        }
        let done = subject.opposite();
        let statement =
            Statement { subject, at_ms: now_ms, ends_at_ms: Some(now_ms), reason: "".into(), by: user.into() };
        let (lifted, _) = self.moderator.state(statement).map_err(full)?;
        info!("admin: {user}: {lifted}");
        Ok(vec![json!({
            "done": done,
            "subject": text,
            "still_configured": is_configured,
            "kept": self.kept(),
        })])
    }

    /// For a network that has no ban of its own: the ban that contains it.
    fn around(&self, subject: &Subject, now_ms: u64) -> String {
        let Subject::Network(net) = subject else { return String::new() };
        let ban = self.moderator.board.ban_of(net.network(), now_ms);
        ban.map(|ban| format!(" by itself, but {} is", ban.subject.text())).unwrap_or_default()
    }

    fn decisions(&self, kind: &str) -> Vec<Value> {
        // What is shown is what is in effect.
        self.moderator.end_what_has_ended();
        let decisions = self.moderator.board.decisions(self.moderator.now_ms());
        let rows = decisions.iter().filter(|decision| decision.subject.kind() == kind).map(row);
        let mut lines: Vec<Value> = rows.collect();
        lines.push(json!({ "count": lines.len() }));
        lines
    }

    /// The prefixes that cost most.
    fn top(&self) -> Vec<Value> {
        let heaviest = self.guard.budgets().heaviest(self.hub.clock.now());
        let row = |heavy: &Heavy| {
            json!({
                "prefix": heavy.prefix.to_string(),
                "budget": heavy.kind.name(),
                "cost": heavy.cost,
                "unit": heavy.kind.unit(),
                "used_permille": heavy.share,
                "refused": heavy.refused,
            })
        };
        let mut lines: Vec<Value> = heaviest.iter().map(row).collect();
        lines.push(json!({ "count": lines.len() }));
        lines
    }

    /// Who holds the list, or that of a game.
    fn networks(&self, game: Option<&str>, by: By) -> Result<Vec<Value>, String> {
        let holdings = self.holdings(game)?;
        let mut lines = largest(&holdings, by);
        lines.push(json!({ "count": lines.len() }));
        Ok(lines)
    }

    /// A game's servers, and who holds them.
    fn game(&self, name: &str) -> Result<Vec<Value>, String> {
        let holdings = self.holdings(Some(name))?;
        let shares: Map<String, Value> = networks::By::ALL
            .map(|by| (by.name().to_string(), holdings.largest_share(by).into()))
            .into_iter()
            .collect();
        Ok(vec![holding(
            &holdings.all,
            [
                ("game", name.into()),
                ("limit", self.hub.game_limit(name).into()),
                ("largest_share", shares.into()),
                ("networks", largest(&holdings, By::Servers).into()),
            ],
        )])
    }

    fn holdings(&self, game: Option<&str>) -> Result<Holdings, String> {
        let view = self.hub.view();
        match game {
            None => Ok(Holdings::of(view.games().map(|server| &**server))),
            Some(game) => {
                let holdings = Holdings::of(servers_of(&view, game).map(|server| &**server));
                if holdings.all.servers > 0 { Ok(holdings) } else { Err(format!("no server of `{game}` is listed")) }
            }
        }
    }

    async fn reload(&self, user: &str) -> Result<Vec<Value>, String> {
        let (sender, answer) = oneshot::channel();
        info!("admin: {user}: reload");
        let gone = "the program is stopping";
        self.reload.send(sender).await.map_err(|_| gone.to_string())?;
        let restart_needed = answer.await.map_err(|_| gone.to_string())??;
        Ok(vec![json!({ "done": "reload", "restart_needed": restart_needed })])
    }

    async fn test_notices(&self, name: Option<&str>, user: &str) -> Result<Vec<Value>, String> {
        info!("admin: {user}: notice-test");
        let results = self.notices.test(name).await;
        if results.is_empty() {
            return Err(match name {
                Some(name) => format!("no address of notices has the name `{name}`"),
                None => "the configuration has no [[notices]]".into(),
            });
        }
        let row = |(name, result): (String, Result<(), String>)| json!({ "name": name, "arrived": result.is_ok(), "reason": result.err() });
        let mut lines: Vec<Value> = results.into_iter().map(row).collect();
        lines.push(json!({ "count": lines.len() }));
        Ok(lines)
    }

    /// Where decisions are kept.
    fn kept(&self) -> &'static str {
        match &self.store {
            Some(store) if store.is_failing() => "memory, because writing to data_dir fails",
            Some(_) => "disk",
            None => "memory, because data_dir is not set",
        }
    }

    /// The masters that this one follows.
    fn upstreams(&self) -> Vec<Value> {
        let now_ms = self.hub.clock.now().unix_ms;
        let upstream = |it: UpstreamStatus| {
            let age_s = it.fetched_at_ms.map(|at_ms| now_ms.saturating_sub(at_ms) / 1_000);
            json!({
                "name": it.name,
                "up": it.up,
                "servers": it.listed,
                "mirrored": it.mirrored,
                "fetched_s_ago": age_s,
                "failures": it.failures,
            })
        };
        self.metrics.upstreams().into_iter().map(upstream).collect()
    }

    /// The addresses that notices are sent to.
    fn notices(&self) -> Vec<Value> {
        let notice = |it: notices::Status| {
            json!({
                "name": it.name,
                "failing": it.failing,
                "waiting": it.waiting,
                "sent": it.sent,
                "failed": it.failed,
                "dropped": it.dropped,
            })
        };
        self.notices.statuses().into_iter().map(notice).collect()
    }

    fn status(&self) -> Value {
        let view = self.hub.view();
        self.metrics.count(&view); // servers per upstream
        let mut games: BTreeMap<&str, usize> = BTreeMap::new();
        view.games().for_each(|server| *games.entry(server.game.name()).or_default() += 1);
        let decisions = self.moderator.board.decisions(self.moderator.now_ms());
        let count = |kind: &str| decisions.iter().filter(|decision| decision.subject.kind() == kind).count();
        let events: BTreeMap<&str, u64> =
            self.ledger.counts().filter(|(label, count)| is_refusal(label) && *count > 0).collect();
        let budgets: BTreeMap<&str, u64> =
            self.guard.budgets().refused().map(|(kind, count)| (kind.name(), count)).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_s": self.started.elapsed().as_secs(),
            "serial": view.serial,
            "servers": view.games().count(),
            "servers_by_game": games,
            "connections": self.guard.connections(),
            "event_readers": self.metrics.readers.get(),
            "memory_bytes": resident_bytes(),
            "store": self.store.as_deref().map(store),
            "cluster": self.metrics.cluster.as_ref().map(|figures| json!({
                "connected": figures.connected.get() == 1,
                "nodes": figures.nodes.get(),
            })),
            "upstreams": self.upstreams(),
            "notices": self.notices(),
            "moderation": { "bans": count("ban"), "unlisted": count("unlist"), "hidden": count("hide") },
            "refused": { "budgets": budgets, "events": events },
        })
    }
}

fn largest(holdings: &Holdings, by: By) -> Vec<Value> {
    let all = holdings.all.of(by.into()).max(1) as f64;
    let row = |(network, held): (Prefix, &Holding)| {
        let share = held.of(by.into()) as f64 / all;
        holding(held, [("network", network.to_string().into()), ("share", share.into())])
    };
    holdings.largest(by.into(), NETWORKS_MAX).into_iter().map(row).collect()
}

/// What servers hold together, and what else there is to say of them.
fn holding<const N: usize>(held: &Holding, more: [(&str, Value); N]) -> Value {
    let proofs: BTreeMap<&str, u64> = held.proofs.iter().map(|(proof, count)| (proof.name(), *count)).collect();
    let [servers, players, bytes] = networks::By::ALL.map(|by| (by.name(), held.of(by).into()));
    let all = [servers, players, bytes, ("proofs", json!(proofs))].into_iter().chain(more);
    all.map(|(name, value)| (name.to_string(), value)).collect::<Map<_, _>>().into()
}

/// Events that say that something was refused.
fn is_refusal(label: &str) -> bool {
    label == "banned" || label.starts_with("refused_")
}

fn store(status: &Status) -> Value {
    json!({
        "failing": status.is_failing(),
        "failures": status.failures.load(Ordering::Relaxed),
        "file_bytes": status.file_bytes.load(Ordering::Relaxed),
    })
}

fn row(decision: &Decision) -> Value {
    let statement = decision.statement.as_ref();
    json!(Row {
        kind: decision.subject.kind(),
        subject: decision.subject.text(),
        source: if statement.is_some() { "admin" } else { "configuration" },
        at: statement.map(|statement| time(statement.at_ms)),
        until: decision.ends_at_ms().map(time),
        reason: decision.reason(),
        by: statement.map_or("", |statement| &statement.by),
    })
}

/// To the second.
fn time(unix_ms: u64) -> String {
    rfc3339(unix_ms / 1_000)
}

fn full(full: Full) -> String {
    match full {
        Full::Statements => format!("there are {STATEMENTS_MAX} decisions already: lift some, or ban wider networks"),
        Full::Patterns => format!("there are {PATTERNS_MAX} patterns already: unhide some"),
    }
}

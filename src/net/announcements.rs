//! Heartbeats of all protocols: verifies the server, applies the change, and returns the verdict to send. `posts.rs` has those
//! that come as posts over HTTP.

mod names;
mod posts;

use std::hash::RandomState;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

use self::names::Names;
use super::guard::Guard;
use super::prober::{Prober, Unproven};
use super::retries::Retries;
use super::stopped;
use crate::asker::{Failure, Response};
use crate::budget::{CHANGE_COST, Kind, Over, PROOF_COST};
use crate::hub::Hub;
use crate::ledger::{self, Ledger, Note, What};
use crate::model::{Address, Announce, Change, Facts, Game, Proof, Server};
use crate::prefix::Networks;
use crate::prefix::quota::Quota;
use crate::protocols::section::Cookies;
use crate::protocols::{Games, Heartbeat, Query, Verdict, card_of, game, is_unnamed, query_of};
use crate::registry::view::{Batch, Delta};
use crate::registry::{Outcome, Refusal};

/// Upper bound on the time until a change is published. It takes milliseconds, and up to a second for a very long list.
const SHOWN: Duration = Duration::from_secs(1);
/// Upper bound on announcements that are answered already, and verified in the background: in all, and for one address unless
/// more servers than that are allowed there. Wider networks have a larger limit.
const FILED_MAX: usize = 4096;
const FILED_PER_IP_MAX: u32 = 64;
const TURNS: usize = 64;
/// How often to check for silent games that are due for a retry.
const AGAIN_EVERY: Duration = Duration::from_millis(500);

pub struct Announcements {
    pub hub: Arc<Hub>,
    pub ledger: Arc<Ledger>,
    pub guard: Arc<Guard>,
    prober: Prober,
    retries: Mutex<Retries>,
    filed: Quota,
    names: Names,
    /// Keys and clock of what posts prove.
    cookies: Mutex<Cookies>,
    /// Posts take turns; of one address always the same.
    turns: [Mutex<()>; TURNS],
    spread: RandomState,
}

impl Announcements {
    pub fn new(
        hub: Arc<Hub>,
        guard: Arc<Guard>,
        prober: Prober,
        ledger: Arc<Ledger>,
        cookies: Cookies,
    ) -> Announcements {
        Announcements {
            hub,
            ledger,
            guard,
            prober,
            retries: Mutex::default(),
            filed: Quota::new(FILED_MAX, FILED_PER_IP_MAX),
            names: Names::default(),
            cookies: Mutex::new(cookies),
            turns: [const { Mutex::new(()) }; TURNS],
            spread: RandomState::new(),
        }
    }

    /// Sets the keys and the clock for what posts prove.
    pub fn set_cookies(&self, cookies: Cookies) {
        *self.cookies.lock().unwrap_or_else(PoisonError::into_inner) = cookies;
    }

    /// Returns at once for a server that is proven already; otherwise after its game's query has succeeded or failed.
    pub async fn announce(&self, heartbeat: Heartbeat) -> Verdict {
        match self.take(Kind::Handshakes, heartbeat.address.ip(), PROOF_COST) {
            Ok(()) => self.admitted(heartbeat).await,
            Err(over) => too_many(over),
        }
    }

    /// The same, after it has been charged.
    async fn admitted(&self, heartbeat: Heartbeat) -> Verdict {
        let address = heartbeat.address;
        self.note(address, What::Heartbeat);
        self.retries().take(address);
        let query = query_of(&heartbeat.game);
        // Without an answer, its game within the family is unknown.
        let verify = heartbeat.verify || is_unnamed(&heartbeat.game);
        let verdict = match query.filter(|_| verify) {
            // One that says something of the server has to be proven before it is believed.
            _ if query.is_some() && heartbeat.said.is_none() && self.renew(&heartbeat) => Verdict::Listed,
            None => {
                let said = heartbeat.said.as_deref().cloned().unwrap_or_default();
                self.apply(heartbeat, Proof::Connection, None, said).await
            }
            Some(_) if let Err(over) = self.take(Kind::Probing, address.ip(), 1) => {
                try_later("too many new servers in your network at once", over)
            }
            Some(query) => match self.prober.prove(address, query).await {
                Ok(answer) => self.proven(heartbeat, answer).await,
                Err(Unproven::Asked(Failure::Silent)) => {
                    let silent = Failure::Silent.words(&of(address));
                    let is_kept = self.retries().add(self.hub.clock.now().mono_ms, heartbeat);
                    let again = if is_kept { ": it is asked again within a minute" } else { "" };
                    Verdict::Refused(silent + again)
                }
                Err(Unproven::Asked(failure)) => Verdict::Refused(failure.words(&of(address))),
                Err(Unproven::Busy) => try_later("this master is busy", BUSY),
                Err(Unproven::TooMany) => try_later("too many servers at your address at once", BUSY),
            },
        };
        if let Verdict::Refused(reason) = &verdict {
            debug!(%address, reason, "heartbeat refused");
        }
        verdict
    }

    /// Charges an announcement, whose address is proven by its connection.
    fn take(&self, kind: Kind, ip: IpAddr, cost: u64) -> Result<(), Over> {
        self.guard.budgets().take(kind, self.hub.clock.now(), ip, cost)
    }

    /// Queries games again that were silent when they announced themselves, and lists those that answer.
    pub async fn retry_silent(self: Arc<Announcements>, mut stop: watch::Receiver<bool>) {
        let mut tick = tokio::time::interval(AGAIN_EVERY);
        let mut asking = JoinSet::new();
        loop {
            tokio::select! {
                () = stopped(&mut stop) => return,
                Some(_) = asking.join_next() => {}
                _ = tick.tick() => {
                    for heartbeat in self.retries().due(self.hub.clock.now().mono_ms) {
                        asking.spawn(self.clone().retry(heartbeat));
                    }
                }
            }
        }
    }

    async fn retry(self: Arc<Announcements>, Heartbeat { address, game, .. }: Heartbeat) {
        let Some(query) = query_of(&game) else { return };
        match self.prober.prove(address, query).await {
            Ok(answer) => {
                // It may have quit, or announced itself again, in the meantime.
                let Some(heartbeat) = self.retries().take(address) else { return };
                self.proven(heartbeat, answer).await;
            }
            Err(Unproven::Asked(Failure::Bad(_))) => drop(self.retries().take(address)),
            Err(_) => self.retries().silent(self.hub.clock.now().mono_ms, address),
        }
    }

    /// The server has answered. Without trustworthy facts, the known ones stay.
    async fn proven(&self, heartbeat: Heartbeat, answer: Response) -> Verdict {
        let known = self.hub.address_state(heartbeat.address).map(|record| record.server);
        let known = known.as_deref().filter(|server| is_same(&server.game, &heartbeat.game));
        let mut said = heartbeat.said.as_deref().cloned();
        if let (Some(said), Some(named)) = (&mut said, &heartbeat.name) {
            self.name(heartbeat.address, said, named, known).await;
        }
        let facts = answer.facts.map(|facts| *facts).or(said).or_else(|| known.map(Server::facts)).unwrap_or_default();
        let game = match said_game(&heartbeat.game, &facts, known) {
            Ok(game) => game,
            Err(reason) => return Verdict::Refused(reason),
        };
        self.apply(Heartbeat { game, ..heartbeat }, Proof::Query, Some(answer.rtt_us), facts).await
    }

    /// The addresses of a name that a client asks for: one lookup at a time for each.
    pub async fn addresses_of(&self, host: &str, client: IpAddr) -> Option<Vec<IpAddr>> {
        self.names.addresses(host, client).await
    }

    /// Charges the test of a server to its network.
    pub fn take_test(&self, ip: IpAddr) -> Result<(), Over> {
        self.take(Kind::Probing, ip, 1)
    }

    /// Queries a server for its owner. The list does not change.
    pub async fn test(&self, address: Address, query: &'static dyn Query) -> Result<Response, Unproven> {
        self.prober.prove(address, query).await
    }

    /// The prober that verifies servers.
    pub(super) fn prover(&self) -> &Prober {
        &self.prober
    }

    /// Sets how many servers an address may have, and the networks in which only limits per address apply.
    pub fn set_limits(&self, servers_per_ip_max: u32, exempt: Networks) {
        self.filed.set_per_ip_max(FILED_PER_IP_MAX.max(servers_per_ip_max));
        self.filed.set_exempt(exempt.clone());
        self.names.set_exempt(exempt.clone());
        self.retries().set_exempt(exempt);
    }

    fn retries(&self) -> MutexGuard<'_, Retries> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server quits. The message proves its address, not its port, so it does not count for a server that
    /// announces itself from its own port: this may be another program at its address.
    pub async fn quit(&self, address: Address, master: bool) {
        self.retries().take(address);
        if !self.hub.listed(address).is_some_and(|server| has_own_port(&server)) {
            self.change(address, &Change::Quit { address, master, proven: false }).await;
        }
        self.note(address, What::Quit);
    }

    /// Applies a change and waits until it is published, so that a client that is told about it finds it in the list.
    async fn change(&self, address: Address, change: &Change<'_>) -> Outcome {
        self.applied(address, change).shown().await
    }

    fn applied(&self, address: Address, change: &Change<'_>) -> Applied {
        let batches = self.hub.subscribe();
        let outcome = self.hub.apply_one(change, self.hub.clock.now());
        self.charge_change(address, &outcome);
        Applied { address, outcome, batches }
    }

    /// A change of the list costs more than a sign of life.
    fn charge_change(&self, address: Address, outcome: &Outcome) {
        if matches!(outcome, Outcome::Added | Outcome::Changed) {
            let cost = CHANGE_COST - PROOF_COST;
            self.guard.budgets().charge(Kind::Handshakes, self.hub.clock.now(), address.ip(), cost);
        }
    }

    fn note(&self, address: Address, what: What) {
        let at_ms = self.hub.clock.now().unix_ms;
        self.ledger.note(address.ip(), Note::new(at_ms, ledger::Channel::Heartbeat, address.port(), 0, what));
    }

    fn renew(&self, heartbeat: &Heartbeat) -> bool {
        let listed = self.hub.listed(heartbeat.address).filter(|server| is_same(&server.game, &heartbeat.game));
        // What it said from its own port stays: this may be another program at its address.
        let known = listed.as_ref().filter(|server| has_own_port(server)).and_then(|server| server.keys.clone());
        let change = Change::Heartbeat {
            address: heartbeat.address,
            game: listed.map_or_else(|| heartbeat.game.clone(), |server| server.game.clone()),
            life_ms: heartbeat.life_ms,
            keys: known.unwrap_or_else(|| heartbeat.keys.clone()),
        };
        let outcome = self.hub.apply_one(&change, self.hub.clock.now());
        self.charge_change(heartbeat.address, &outcome);
        matches!(outcome, Outcome::Changed | Outcome::Refreshed)
    }

    async fn apply(&self, heartbeat: Heartbeat, proof: Proof, rtt_us: Option<u32>, facts: Facts<'_>) -> Verdict {
        let now = self.hub.clock.now();
        let change = Change::Announce(Announce {
            address: heartbeat.address,
            game: heartbeat.game,
            proof,
            proven_at_ms: now.unix_ms,
            life_ms: heartbeat.life_ms,
            asked: proof == Proof::Query,
            rtt_us,
            keys: Some(heartbeat.keys),
            facts,
        });
        self.shown(self.applied(heartbeat.address, &change)).await
    }

    /// The verdict on a server that is proven, when the list shows it.
    async fn shown(&self, applied: Applied) -> Verdict {
        let address = applied.address;
        match applied.shown().await {
            Outcome::Refused(refusal) => {
                self.note(address, What::Refused(refusal));
                Verdict::Refused(refusal_text(refusal).into())
            }
            // Stale: of two simultaneous heartbeats, the other was applied.
            Outcome::Added | Outcome::Changed | Outcome::Refreshed | Outcome::Stale => Verdict::Listed,
        }
    }
}

/// A change that is applied, and perhaps not published yet.
struct Applied {
    address: Address,
    outcome: Outcome,
    batches: broadcast::Receiver<Arc<Batch>>,
}

impl Applied {
    /// Waits until it is published.
    async fn shown(mut self) -> Outcome {
        if matches!(self.outcome, Outcome::Added | Outcome::Changed) {
            let shows = |delta: &Delta| delta.server().address == self.address;
            let batches = &mut self.batches;
            let shown = async { while batches.recv().await.is_ok_and(|batch| !batch.deltas.iter().any(shows)) {} };
            let _ = timeout(SHOWN, shown).await; // long enough
        }
        self.outcome
    }
}

/// The sender that a failure names.
fn of(address: Address) -> String {
    format!(" from {address} over UDP")
}

fn too_many(over: Over) -> Verdict {
    try_later("too many announcements from your network", over)
}

/// How long to wait when the prober has no place left.
const BUSY: Over = Over { retry_after_s: 5 };

fn try_later(reason: &str, over: Over) -> Verdict {
    let after_s = over.retry_after_s;
    Verdict::TryLater { reason: format!("{reason}: try again in {after_s} s"), after_s }
}

/// A refusal as text for the server's owner.
fn refusal_text(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Full => "this master's list is full, and no network has more servers on it than yours would have",
        Refusal::FullForIp => "too many servers at your address",
        Refusal::FullForNetwork => "too many servers in your network",
        Refusal::FullForGame => "too many servers of this game in your network",
        Refusal::OtherGameConfigured => "this master's operator names another game at your address",
        Refusal::Late => "the announcement came too late",
        Refusal::NotListed => "not listed",
        Refusal::StrongerProof => "another server at your address and port has proven itself by more than a connection",
        Refusal::Banned => "this master's operator has banned your address",
        Refusal::Unlisted => "this master's operator keeps your server off the list; the doctor says why",
        Refusal::Hidden => "this master's operator keeps servers of this name off the list; the doctor says why",
    }
}

/// Whether a server announces itself from the port that is listed, or with a token that was sent there.
fn has_own_port(server: &Server) -> bool {
    card_of(&server.game).is_some_and(|card| card.announce.only_itself().is_some())
}

/// Whether a server that is known can be the one that was announced. One of a family may be of any of its games.
fn is_same(known: &Game, announced: &Game) -> bool {
    known == announced || is_unnamed(announced) && known.protocol() == announced.protocol()
}

/// The game of a server that another master lists: in a family, as it says itself or, if it does not, as it is listed.
pub(super) fn named_by_itself(listed_as: &Game, facts: &Facts<'_>) -> Option<Game> {
    let is_family = card_of(listed_as).is_some_and(|card| card.games == Games::Family);
    match &*facts.game {
        "" => Some(listed_as.clone()).filter(|game| !is_unnamed(game)),
        name if is_family => game(listed_as.protocol(), name),
        _ => Some(listed_as.clone()),
    }
}

/// The game of a server that has answered: as announced or, in a family, as it says itself. The error is for its owner.
fn said_game(announced: &Game, facts: &Facts<'_>, known: Option<&Server>) -> Result<Game, String> {
    if !is_unnamed(announced) {
        return Ok(announced.clone());
    }
    match (&*facts.game, known) {
        ("", Some(known)) => Ok(known.game.clone()),
        ("", None) => Err("it answers, but does not say which game it is: it needs a gamename".into()),
        (name, _) => {
            game(announced.protocol(), name).ok_or_else(|| "its gamename is not one that can be listed here".into())
        }
    }
}

#[cfg(test)]
mod tests;

//! Heartbeats of all protocols: verifies the server, applies the change, and returns the verdict to send.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

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
use crate::protocols::post::{self, Named, Post, PostAnswer, PostContext, PostEffect, PostRule};
use crate::protocols::section::Cookies;
use crate::protocols::{Games, Heartbeat, Verdict, announce, card_of, game, is_unnamed, query_of};
use crate::registry::view::Delta;
use crate::registry::{Outcome, Refusal};

/// Upper bound on the time until a change is published. It takes milliseconds, and up to a second for a very long list.
const SHOWN: Duration = Duration::from_secs(1);
/// How long an owner is told why an announcement came to nothing.
const FAILURE_MS: u64 = 600_000;
/// How often to check for silent games that are due for a retry.
const AGAIN_EVERY: Duration = Duration::from_millis(500);

pub struct Announcements {
    pub hub: Arc<Hub>,
    pub ledger: Arc<Ledger>,
    pub guard: Arc<Guard>,
    prober: Prober,
    retries: Mutex<Retries>,
    /// Keys and clock of what posts prove.
    cookies: Mutex<Cookies>,
}

impl Announcements {
    pub fn new(
        hub: Arc<Hub>,
        guard: Arc<Guard>,
        prober: Prober,
        ledger: Arc<Ledger>,
        cookies: Cookies,
    ) -> Announcements {
        Announcements { hub, ledger, guard, prober, retries: Mutex::default(), cookies: Mutex::new(cookies) }
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
            None => self.apply(heartbeat, Proof::Connection, None, Facts::default()).await,
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

    /// Handles what a game server posts, and returns the answer.
    pub fn post(
        self: &Arc<Announcements>,
        rule: Arc<dyn PostRule>,
        post: &Post<'_>,
    ) -> impl Future<Output = PostAnswer> + use<> {
        let charged = self.take(Kind::Handshakes, post.peer, PROOF_COST);
        let effect = charged.map(|()| {
            let at = PostContext {
                now: self.hub.clock.now(),
                cookies: *self.cookies.lock().unwrap_or_else(PoisonError::into_inner),
                listed: &|address| self.hub.listed(address),
                failure: &|address| self.last_failure(address),
            };
            rule.post(&at, post)
        });
        let this = self.clone();
        async move {
            match effect {
                Ok(effect) => this.carry_out(&*rule, effect).await,
                Err(over) => rule.decided(&too_many(over)),
            }
        }
    }

    async fn carry_out(self: Arc<Announcements>, rule: &dyn PostRule, effect: PostEffect) -> PostAnswer {
        match effect {
            PostEffect::Answer(answer) => answer,
            PostEffect::File { mut heartbeat, name, answer } => {
                tokio::spawn(async move {
                    if let Some(name) = name {
                        self.name(&mut heartbeat, name).await;
                    }
                    self.admitted(*heartbeat).await
                });
                answer
            }
            PostEffect::Proven { announce, challenge } => {
                self.note(announce.address, What::Heartbeat);
                let verdict = self.listed(&Change::Announce(*announce)).await;
                if let Some(challenge) = challenge.filter(|_| verdict == Verdict::Listed) {
                    self.prober.challenge(challenge);
                }
                rule.decided(&verdict)
            }
            PostEffect::Challenged { challenge, answer } => {
                self.note(challenge.to, What::Heartbeat);
                self.prober.challenge(challenge);
                answer
            }
            PostEffect::Quit { address, answer } => {
                self.retries().take(address);
                self.change(address, &Change::Quit { address, master: false, proven: true }).await;
                self.note(address, What::Quit);
                answer
            }
        }
    }

    /// Gives a server the name that it wants, if that is one of its address.
    async fn name(&self, heartbeat: &mut Heartbeat, Named { host, rule }: Named) {
        let address = heartbeat.address;
        let is_its_own = match self.take(Kind::Probing, address.ip(), 1).is_ok() {
            true => has_address(host.clone(), address.ip()).await,
            false => false,
        };
        if !is_its_own {
            return self.note(address, What::OtherName);
        }
        if let Some(said) = &mut heartbeat.said {
            let mut details = said.details.as_deref().cloned().unwrap_or_default();
            details.rules.insert(0, (rule.into(), host));
            said.details = Some(Arc::new(details.bounded()));
        }
    }

    /// What became of the last announcement of an address, for its owner.
    fn last_failure(&self, address: Address) -> Option<post::Failure> {
        let since_ms = self.hub.clock.now().unix_ms.saturating_sub(FAILURE_MS);
        let notes = self.ledger.notes(address);
        let recent = || notes.iter().rev().filter(|note| note.port == address.port() && note.at_ms >= since_ms);
        let end = recent().find_map(|note| match &note.what {
            What::Answered { .. } => Some(None),
            What::Silent => Some(Some(Failure::Silent.words(&of(address)))),
            What::BadAnswer(fault) => Some(Some(Failure::Bad(**fault).words(&of(address)))),
            What::Refused(refusal) => Some(Some(refusal_text(*refusal).into())),
            _ => None,
        });
        if let Some(text) = end.flatten() {
            return Some(post::Failure { is_warning: false, text });
        }
        let is_misnamed = recent().any(|note| note.what == What::OtherName);
        is_misnamed.then(|| {
            let text =
                format!("the announced name is not one of {}: the server is listed by its address", address.ip());
            post::Failure { is_warning: true, text }
        })
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
        let said = heartbeat.said.as_deref().cloned();
        let facts = answer.facts.or(said).or_else(|| known.map(Server::facts)).unwrap_or_default();
        let game = match said_game(&heartbeat.game, &facts, known) {
            Ok(game) => game,
            Err(reason) => return Verdict::Refused(reason),
        };
        self.apply(Heartbeat { game, ..heartbeat }, Proof::Query, Some(answer.rtt_us), facts).await
    }

    /// The prober that verifies servers.
    pub(super) fn prover(&self) -> &Prober {
        &self.prober
    }

    /// Sets the networks in which only the limit per address applies.
    pub fn set_exempt(&self, exempt: Networks) {
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
        let mut batches = self.hub.subscribe();
        let outcome = self.hub.apply_one(change, self.hub.clock.now());
        self.charge_change(address, &outcome);
        if matches!(outcome, Outcome::Added | Outcome::Changed) {
            let shows = |delta: &Delta| delta.server().address == address;
            let shown = async { while batches.recv().await.is_ok_and(|batch| !batch.deltas.iter().any(shows)) {} };
            let _ = timeout(SHOWN, shown).await; // long enough
        }
        outcome
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
        self.listed(&change).await
    }

    /// Lists a server that is proven.
    async fn listed(&self, change: &Change<'_>) -> Verdict {
        let Change::Announce(Announce { address, .. }) = change else { return Verdict::Listed };
        match self.change(*address, change).await {
            Outcome::Refused(refusal) => {
                self.note(*address, What::Refused(refusal));
                Verdict::Refused(refusal_text(refusal).into())
            }
            // Stale: of two simultaneous heartbeats, the other was applied.
            Outcome::Added | Outcome::Changed | Outcome::Refreshed | Outcome::Stale => Verdict::Listed,
        }
    }
}

/// How many names may be looked up at a time. The system's resolver takes a thread for each.
static LOOKUPS: Semaphore = Semaphore::const_new(16);
const LOOKUP_PATIENCE: Duration = Duration::from_secs(5);

/// Whether a name is one of this address. A lookup cannot be stopped, so it keeps its place until it ends.
async fn has_address(host: Box<str>, ip: IpAddr) -> bool {
    let Ok(Ok(place)) = timeout(LOOKUP_PATIENCE, LOOKUPS.acquire()).await else { return false };
    let lookup = tokio::task::spawn_blocking(move || {
        let _place = place;
        let found = (&*host, 0).to_socket_addrs();
        found.is_ok_and(|mut found| found.any(|found| found.ip().to_canonical() == ip))
    });
    matches!(timeout(LOOKUP_PATIENCE, lookup).await, Ok(Ok(true)))
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
        Refusal::OtherGameConfigured => "this master's operator names another game at your address",
        Refusal::Late => "the announcement came too late",
        Refusal::NotListed => "not listed",
        Refusal::StrongerProof => "another server at your address and port has proven itself by more than a connection",
        Refusal::Banned => "this master's operator has banned your address",
        Refusal::Unlisted => "this master's operator keeps your server off the list; the doctor says why",
        Refusal::Hidden => "this master's operator keeps servers of this name off the list; the doctor says why",
    }
}

/// Whether a server announces itself from the port that is listed.
fn has_own_port(server: &Server) -> bool {
    card_of(&server.game).is_some_and(|card| matches!(card.announce, announce::AnnounceMethod::OwnPort { .. }))
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
mod tests {
    use super::*;
    use crate::budget;
    use crate::cookie::Keys;
    use crate::metrics::Metrics;
    use crate::model::{HeartbeatKeys, SharedTime};
    use crate::net::guard;
    use crate::net::prober::{self, ProbeSettings, Worker};
    use crate::protocols::post::Challenge;
    use crate::protocols::{self, CARDS, Card};
    use crate::registry::Settings;
    use tokio::net::UdpSocket;

    const STATUS: &[u8] = br"gamename\netpanzer\hostname\A server\final\";
    const FORGED: &[u8] = br"gamename\netpanzer\hostname\Forged\final\";

    /// Announcements with a running prober.
    fn announcements() -> Arc<Announcements> {
        let settings = Settings { servers_max: 10, servers_per_ip_max: 10, ask_every_ms: 900_000, misses_max: 1 };
        let (hub, ledger) = (Arc::new(Hub::new(settings)), Arc::new(Ledger::new()));
        hub.start().unwrap(); // this thread ends with the test process
        let settings = prober::settings(1_000, 100, Duration::from_secs(30));
        let metrics = Arc::new(Metrics::new());
        let (prober, worker) = Worker::new(hub.clone(), ledger.clone(), metrics, settings, [7; 16]).unwrap();
        let asking = watch::Sender::new(ProbeSettings { settings, exempt: Arc::default() });
        let stop = watch::Sender::new(false);
        tokio::spawn(async move {
            worker.run(asking.subscribe(), stop.subscribe()).await;
            drop((asking, stop));
        });
        let budgets = budget::Settings { servers_per_ip_max: 32, ..budget::Settings::default() };
        let guard = Arc::new(Guard::new(guard::Settings { budgets, ..guard::Settings::default() }));
        let cookies = Cookies { keys: Keys::new([[1; 16], [2; 16], [3; 16]]), time: SharedTime::default() };
        Arc::new(Announcements::new(hub, guard, prober, ledger, cookies))
    }

    fn heartbeat(address: Address) -> Heartbeat {
        Heartbeat {
            address,
            game: Game::Own("netpanzer"),
            life_ms: 60_000,
            verify: true,
            keys: Default::default(),
            said: None,
        }
    }

    /// A netPanzer game. A forger sends another status with each of its answers.
    async fn disputed_game() -> Address {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let local = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 100];
            while let Ok((size, from)) = socket.recv_from(&mut buffer).await {
                let is_long = buffer[..size].ends_with(br"\status\");
                let answers = [&buffer[6..14], STATUS, FORGED];
                for answer in answers.into_iter().take(if is_long { 3 } else { 1 }) {
                    socket.send_to(answer, from).await.unwrap();
                }
            }
        });
        Address::new(local.ip(), local.port()).unwrap()
    }

    #[tokio::test]
    async fn known_facts_stay_while_new_ones_are_disputed() {
        let (announcements, address) = (announcements(), disputed_game().await);
        let now = announcements.hub.clock.now();
        let known = Facts { name: "Known".into(), map: "Duell".into(), players_max: Some(8), ..Facts::default() };
        let announce = Announce {
            address,
            game: Game::Own("netpanzer"),
            proof: Proof::Query,
            proven_at_ms: now.unix_ms,
            life_ms: 60_000,
            asked: false,
            rtt_us: None,
            keys: None,
            facts: known.clone(),
        };
        let changes =
            [Change::Announce(announce), Change::Miss { address, game: Game::Own("netpanzer"), proven_at_ms: None }];
        announcements.hub.apply(&changes, now, |_, _| {});
        assert!(announcements.hub.listed(address).is_none(), "it is off the list, but its record is kept");
        assert_eq!(announcements.announce(heartbeat(address)).await, Verdict::Listed);
        let server = announcements.hub.listed(address).unwrap();
        assert_eq!((server.facts(), server.verified_by), (known, Proof::Query));
        assert!(announcements.ledger.notes(address).iter().any(|note| note.what == What::Disputed));
    }

    /// A pretend server of a family, which says that it is this game.
    async fn server_of(card: &'static Card, game: &'static str) -> Address {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let local = socket.local_addr().unwrap();
        let address = Address::new(local.ip(), local.port()).unwrap();
        let pretend = (card.pretend)(1);
        // The game may be among its rules, too.
        let mut details = pretend.details.as_deref().cloned().unwrap_or_default();
        details.rules.retain(|(_, value)| **value != *pretend.game);
        let facts = Facts { game: game.into(), details: Some(Arc::new(details)), ..pretend };
        tokio::spawn(async move {
            let mut buffer = [0; 200];
            while let Ok((size, from)) = socket.recv_from(&mut buffer).await {
                for answer in card.answer.unwrap()(&facts, address, &buffer[..size]) {
                    socket.send_to(&answer, from).await.unwrap();
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn a_server_of_a_family_says_which_game_it_is() {
        for card in CARDS.iter().filter(|card| card.games == Games::Family) {
            let (announcements, address) = (announcements(), server_of(card, "Tanks").await);
            let heartbeat = |address| Heartbeat::new(address, None, card.name, HeartbeatKeys::default()).unwrap();
            // Whatever the setting is: the answer alone says which game it is.
            let unverified = Heartbeat { verify: false, ..heartbeat(address) };
            assert_eq!(announcements.announce(unverified).await, Verdict::Listed);
            let game = |address| announcements.hub.listed(address).map(|server| server.game.clone());
            assert_eq!(game(address), protocols::game(card.name, "Tanks"));
            assert_eq!(
                announcements.announce(heartbeat(address)).await,
                Verdict::Listed,
                "another heartbeat renews it"
            );
            assert_eq!(game(address), protocols::game(card.name, "Tanks"));
            for bad in ["", CARDS[0].name] {
                let address = server_of(card, bad).await;
                let verdict = announcements.announce(heartbeat(address)).await;
                assert!(matches!(&verdict, Verdict::Refused(reason) if reason.contains("gamename")), "{verdict:?}");
                assert_eq!(game(address), None);
            }
        }
    }

    /// Other programs at its address can connect from there, and name its port.
    #[tokio::test]
    async fn a_server_with_its_own_port_is_neither_changed_nor_removed_over_a_connection() {
        for card in CARDS.iter().filter(|card| matches!(card.announce, announce::AnnounceMethod::OwnPort { .. })) {
            let keys = |text: &[u8]| HeartbeatKeys(vec![(b"protocol"[..].into(), text.into())]);
            if card.proof == Proof::Cookie {
                let address = "127.0.0.1:1".parse().unwrap();
                assert!(Heartbeat::new(address, None, card.name, keys(b"1")).is_err(), "a connection proves less");
                continue;
            }
            let (announcements, address) = (announcements(), server_of(card, "Tanks").await);
            let now = announcements.hub.clock.now();
            let announce = Announce {
                address,
                game: protocols::game(card.name, "Tanks").unwrap(),
                proof: Proof::Query,
                proven_at_ms: now.unix_ms,
                life_ms: 60_000,
                asked: true,
                rtt_us: None,
                keys: Some(Arc::new(keys(b"71"))),
                facts: Facts::default(),
            };
            announcements.hub.apply_one(&Change::Announce(announce), now);
            let heartbeat = Heartbeat::new(address, None, card.name, keys(b"1")).unwrap();
            assert_eq!(announcements.announce(heartbeat).await, Verdict::Listed);
            announcements.quit(address, false).await;
            let server = announcements.hub.listed(address).unwrap();
            assert_eq!(server.keys.as_deref(), Some(&keys(b"71")));

            // Where it is new, lists know it by its answer.
            let address = server_of(card, "Tanks").await;
            let heartbeat = Heartbeat::new(address, None, card.name, keys(b"1")).unwrap();
            assert_eq!(announcements.announce(heartbeat).await, Verdict::Listed);
            let server = announcements.hub.listed(address).unwrap();
            assert_eq!(server.keys.as_deref(), Some(&HeartbeatKeys::of(card.name, address)));
        }
    }

    /// A rule that does what the body says, for the game at its port.
    struct Posted(Address);

    impl PostRule for Posted {
        fn post(&self, at: &PostContext<'_>, post: &Post<'_>) -> PostEffect {
            let answer = |text: String| PostAnswer::new(200, "text/plain", text);
            let (address, game) = (self.0, Game::Own("netpanzer"));
            let said = Facts { name: "Said".into(), ..Facts::default() };
            let challenge = || Challenge { to: address, bytes: b"challenge"[..].into() };
            match post.body {
                b"file" => {
                    let heartbeat = Heartbeat { said: Some(Box::new(said)), ..heartbeat(address) };
                    let failure = (at.failure)(address).map(|failure| failure.text).unwrap_or_default();
                    PostEffect::File { heartbeat: Box::new(heartbeat), name: None, answer: answer(failure) }
                }
                b"challenge" => PostEffect::Challenged { challenge: challenge(), answer: answer(String::new()) },
                b"proven" => {
                    let announce = Announce {
                        address,
                        game,
                        proof: Proof::Cookie,
                        proven_at_ms: at.now.unix_ms,
                        life_ms: 30_000,
                        asked: false,
                        rtt_us: None,
                        keys: None,
                        facts: said,
                    };
                    PostEffect::Proven { announce: Box::new(announce), challenge: Some(challenge()) }
                }
                b"quit" => {
                    let name = (at.listed)(address).map(|server| server.texts.name().to_string());
                    PostEffect::Quit { address, answer: answer(name.unwrap_or_default()) }
                }
                other => PostEffect::Answer(answer(String::from_utf8_lossy(other).into_owned())),
            }
        }

        fn decided(&self, verdict: &Verdict) -> PostAnswer {
            PostAnswer::new(201, "text/plain", format!("{verdict:?}"))
        }
    }

    async fn post(announcements: &Arc<Announcements>, address: Address, body: &[u8]) -> String {
        let post = Post { peer: address.ip(), header: &|_| None, body };
        announcements.post(Arc::new(Posted(address)), &post).await.body.into_owned()
    }

    #[tokio::test]
    async fn what_a_server_posts_is_believed_once_it_answers() {
        let (announcements, address) = (announcements(), disputed_game().await);
        assert_eq!(post(&announcements, address, b"nothing").await, "nothing");
        assert_eq!(post(&announcements, address, b"file").await, "", "answered at once");
        let listed = || announcements.hub.listed(address);
        while listed().is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!((listed().unwrap().texts.name(), listed().unwrap().verified_by), ("Said", Proof::Query));
        assert_eq!(post(&announcements, address, b"quit").await, "Said");
        assert!(listed().is_none());
    }

    #[tokio::test]
    async fn a_silent_server_is_told_with_its_next_post() {
        let announcements = announcements();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = Address::new(silent.local_addr().unwrap().ip(), silent.local_addr().unwrap().port()).unwrap();
        assert_eq!(post(&announcements, address, b"file").await, "");
        let mut often = tokio::time::interval(Duration::from_millis(5));
        while announcements.last_failure(address).is_none() {
            often.tick().await;
        }
        let told = post(&announcements, address, b"file").await;
        assert!(told.starts_with("no answer from 127.0.0.1:"), "{told}");
        assert!(announcements.hub.listed(address).is_none());
    }

    #[tokio::test]
    async fn a_post_that_proves_lists_at_once_and_its_secret_removes() {
        let announcements = announcements();
        let game = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = Address::new(game.local_addr().unwrap().ip(), game.local_addr().unwrap().port()).unwrap();
        let mut buffer = [0; 64];
        for (body, verdict) in [(&b"challenge"[..], ""), (b"proven", "Listed")] {
            assert_eq!(post(&announcements, address, body).await, verdict);
            let (size, _) = game.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..size], b"challenge");
        }
        assert_eq!(announcements.hub.listed(address).unwrap().verified_by, Proof::Cookie);
        announcements.quit(address, false).await;
        assert!(announcements.hub.listed(address).is_some(), "whoever connects from there cannot remove it");
        post(&announcements, address, b"quit").await;
        assert!(announcements.hub.listed(address).is_none());
    }

    #[tokio::test]
    async fn who_posts_too_much_is_told_when_to_try_again() {
        let (announcements, address) = (announcements(), "192.0.2.1:1".parse().unwrap());
        let mut answers = Vec::new();
        for _ in 0..100_000 {
            answers.push(post(&announcements, address, b"nothing").await);
            if answers.last().unwrap() != "nothing" {
                break;
            }
        }
        assert!(answers.last().unwrap().contains("TryLater"), "{:?}", answers.last());
    }

    #[test]
    fn only_a_server_of_a_family_may_say_which_game_it_is() {
        let facts = Facts { game: "Tanks".into(), ..Facts::default() };
        for card in CARDS {
            let said = said_game(&Game::Own(card.name), &facts, None).unwrap();
            let expected = if card.games == Games::Family { "Tanks" } else { card.name };
            assert_eq!((said.protocol(), said.name()), (card.name, expected));
        }
    }
}

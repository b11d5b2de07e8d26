//! Heartbeats of all protocols: verifies the server, applies the change, and returns the verdict to send.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
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
use crate::protocols::{Heartbeat, Verdict, announce, card_of, game, is_unnamed, query_of};
use crate::registry::view::Delta;
use crate::registry::{Outcome, Refusal};

/// Upper bound on the time until a change is published. It takes milliseconds, and up to a second for a very long list.
const SHOWN: Duration = Duration::from_secs(1);
/// How often to check for silent games that are due for a retry.
const AGAIN_EVERY: Duration = Duration::from_millis(500);

pub struct Announcements {
    pub hub: Arc<Hub>,
    pub ledger: Arc<Ledger>,
    pub guard: Arc<Guard>,
    prober: Prober,
    retries: Mutex<Retries>,
}

impl Announcements {
    pub fn new(hub: Arc<Hub>, guard: Arc<Guard>, prober: Prober, ledger: Arc<Ledger>) -> Announcements {
        Announcements { hub, ledger, guard, prober, retries: Mutex::default() }
    }

    /// Returns at once for a server that is proven already; otherwise after its game's query has succeeded or failed.
    pub async fn announce(&self, heartbeat: Heartbeat) -> Verdict {
        let address = heartbeat.address;
        if let Err(over) = self.take(Kind::Handshakes, address, PROOF_COST) {
            return try_later("too many announcements from your network", over);
        }
        self.note(address, What::Heartbeat);
        self.retries().take(address);
        let query = query_of(&heartbeat.game);
        let of = || format!(" from {address} over UDP");
        // Without an answer, its game within the family is unknown.
        let verify = heartbeat.verify || is_unnamed(&heartbeat.game);
        let verdict = match query.filter(|_| verify) {
            _ if query.is_some() && self.renew(&heartbeat) => Verdict::Listed,
            None => self.apply(heartbeat, Proof::Connection, None, Facts::default()).await,
            Some(_) if let Err(over) = self.take(Kind::Probing, address, 1) => {
                try_later("too many new servers in your network at once", over)
            }
            Some(query) => match self.prober.prove(address, query).await {
                Ok(answer) => self.proven(heartbeat, answer).await,
                Err(Unproven::Asked(Failure::Silent)) => {
                    let silent = Failure::Silent.words(&of());
                    let is_kept = self.retries().add(self.hub.clock.now().mono_ms, heartbeat);
                    let again = if is_kept { ": it is asked again within a minute" } else { "" };
                    Verdict::Refused(silent + again)
                }
                Err(Unproven::Asked(failure)) => Verdict::Refused(failure.words(&of())),
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
    fn take(&self, kind: Kind, address: Address, cost: u64) -> Result<(), Over> {
        self.guard.budgets().take(kind, self.hub.clock.now(), address.ip(), cost)
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
        let facts = answer.facts.or_else(|| known.map(Server::facts)).unwrap_or_default();
        let game = match said_game(&heartbeat.game, &facts, known) {
            Ok(game) => game,
            Err(reason) => return Verdict::Refused(reason),
        };
        self.apply(Heartbeat { game, ..heartbeat }, Proof::Query, Some(answer.rtt_us), facts).await
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
            self.change(address, &Change::Quit { address, master }).await;
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
        let address = heartbeat.address;
        match self.change(address, &change).await {
            Outcome::Refused(refusal) => {
                self.note(address, What::Refused(refusal));
                Verdict::Refused(refusal_text(refusal).into())
            }
            // Stale: of two simultaneous heartbeats, the other was applied.
            Outcome::Added | Outcome::Changed | Outcome::Refreshed | Outcome::Stale => Verdict::Listed,
        }
    }
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
    use crate::metrics::Metrics;
    use crate::model::HeartbeatKeys;
    use crate::net::guard;
    use crate::net::prober::{self, ProbeSettings, Worker};
    use crate::protocols::{self, CARDS, Card, Games};
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
        Arc::new(Announcements::new(hub, guard, prober, ledger))
    }

    fn heartbeat(address: Address) -> Heartbeat {
        Heartbeat { address, game: Game::Own("netpanzer"), life_ms: 60_000, verify: true, keys: Default::default() }
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
            let (announcements, address) = (announcements(), server_of(card, "Tanks").await);
            let now = announcements.hub.clock.now();
            let keys = |text: &[u8]| HeartbeatKeys(vec![(b"protocol"[..].into(), text.into())]);
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

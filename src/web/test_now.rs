//! "Test now": the owner of a server has it queried at once, and reads each step as it happens. Only the caller's own address is
//! tested, or any with the operator's token, so that nobody can make this master send to others.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use utoipa::ToSchema;

use super::check::{Asked, Caller, asked, diagnose, refusal_advice, words};
use super::door::{Act, Closed, Through};
use super::filter::Wrong;
use super::json::{Place, rfc3339};
use super::{Peer, Site, api, reply};
use crate::asker::{self, Failure};
use crate::budget::Over;
use crate::ledger::{Channel, Note, What};
use crate::model::{Address, Facts, Game};
use crate::net::prober::Unproven;
use crate::prefix::quota::{self, Quota};
use crate::protocols::event::Severity;
use crate::protocols::{Card, bound_facts, card_of, game, is_one_host, query_of};

/// Tests at a time in all, and of one address (or IPv6 /64).
const TESTS_MAX: usize = 64;
const TESTS_PER_IP_MAX: u32 = 1;
/// How long to wait for the announcement of a game that cannot be queried.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often to look for events.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A quiet test is kept alive this often: connections on which nothing moves are closed.
const ALIVE_EVERY: Duration = Duration::from_secs(4);
/// Events of one test that are told: more than that are not news to the owner.
const EVENTS_MAX: usize = 64;
/// Events are told that are younger than the time between two announcements of the game, and this.
const LATELY_MS: u64 = 60_000;
/// How many pieces may wait for a slow reader.
const PIECES_MAX: usize = 4;

/// How a test can end.
pub const OUTCOMES: [&str; 4] = ["answered", "silent", "bad_answer", "not_queried"];

/// The places for tests.
pub fn places() -> Quota {
    Quota::new(TESTS_MAX, TESTS_PER_IP_MAX)
}

/// A step of a test.
#[derive(Serialize, ToSchema)]
pub struct TestStep {
    /// When it happened.
    pub at: String,
    /// An event's kind as in `seen` of a `Diagnosis`; or `nothing_seen`, `query_sent`, `not_queried` or `waiting`.
    pub kind: &'static str,
    /// In words.
    pub text: String,
}

/// The end of a test.
#[derive(Serialize, ToSchema)]
pub struct TestResult {
    pub game: String,
    #[serde(flatten)]
    pub place: Place,
    /// `answered`: it answered our query or, if its game cannot be queried, has just been verified. `silent`: it has not.
    /// `bad_answer`: something answered, but not as its game does. `not_queried`: too much else is being queried.
    pub outcome: &'static str,
    /// Whether it is on the list now.
    pub listed: bool,
    /// In a sentence.
    pub summary: String,
    /// What its owner can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// What it said of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<TestSaid>,
}

/// What a server said when it was tested. What it did not say is absent.
#[derive(Serialize, ToSchema)]
pub struct TestSaid {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub map: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub players_current: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub players_max: Option<u16>,
}

impl TestSaid {
    fn new(game: &Game, mut facts: Facts<'_>) -> TestSaid {
        bound_facts(game, &mut facts);
        TestSaid {
            players_current: facts.shown_players(),
            players_max: facts.players_max,
            name: facts.name.into_owned(),
            mode: facts.mode.into_owned(),
            map: facts.map.into_owned(),
            version: facts.version.to_string(),
        }
    }
}

/// What a reader of a test gets.
pub enum Piece {
    Step(TestStep),
    /// Nothing has happened for a while.
    Alive,
    Result(Box<TestResult>),
}

/// Why there is no test.
pub enum Refused {
    Wrong(StatusCode, Wrong),
    /// Not now, but in so many seconds.
    Later(String, u32),
}

/// Tests a server now
///
/// Server-sent events: `step` (its data is a `TestStep`) for each thing that happens, and at the end one `result` (a `TestResult`).
/// First come the recent events of the server. Then it is queried; if its game cannot be queried, its next announcement is
/// waited for, up to 15 seconds. The list does not change. Only the caller's own address can be tested, or any with the operator's
/// token, one at a time, and not by a page of another origin.
#[utoipa::path(post, path = "/api/v1/check/test", tag = "servers", operation_id = "testServer", params(
    ("game" = Option<String>, Query, description = "The game's name. May be left out where the protocol is given, or the server is known"),
    ("protocol" = Option<String>, Query, description = "The protocol that the server speaks"),
    ("address" = String, Query, description = "The server's address and port, e.g. 203.0.113.5:20737. A host name is looked up"),
), responses(
    (status = 200, description = "The steps as they happen, and the result", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 401, description = "Another address needs the operator's token", body = Wrong),
    (status = 403, description = "A page of another origin sent it, or a proxy that is not configured", body = Wrong),
    (status = 404, description = "The host name cannot be found", body = Wrong),
    (status = 429, description = "This address is being tested, or too much is: see `Retry-After`", body = Wrong),
))]
pub async fn test(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(through): Extension<Through>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let caller = Caller { client: peer.ip(), through, headers: &headers };
    match begin(&site, caller, query.as_deref().unwrap_or_default()).await {
        Ok(test) => {
            let mut response = Response::new(test.body(site, Bytes::new(), event, Bytes::new()));
            reply::set(&mut response, header::CONTENT_TYPE, "text/event-stream");
            reply::set(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        Err(Refused::Wrong(status, wrong)) => api::wrong(status, &wrong),
        Err(Refused::Later(reason, after_s)) => reply::try_later(&reason, after_s),
    }
}

/// A piece as a server-sent event.
fn event(_: &Site, piece: &Piece) -> String {
    let named = |name: &str, data: serde_json::Result<String>| {
        format!("event: {name}\ndata: {}\n\n", data.unwrap_or_default()) // texts and numbers can be written
    };
    match piece {
        Piece::Step(step) => named("step", serde_json::to_string(step)),
        Piece::Alive => ": alive\n\n".into(),
        Piece::Result(result) => named("result", serde_json::to_string(result)),
    }
}

/// A test that may begin.
pub struct Test {
    asked: Asked,
    game: Game,
    card: &'static Card,
    /// Its place among all tests.
    _place: quota::Place,
}

/// Whether a client may test the server that it asks for.
pub async fn begin(site: &Site, caller: Caller<'_>, query: &str) -> Result<Test, Refused> {
    let Caller { client, through, headers } = caller;
    if let Err(closed) = site.admits(Act::Test, through, headers) {
        return Err(Refused::Wrong(Closed::STATUS, Wrong { error: closed.to_string(), parameter: None }));
    }
    let wrong = |status, parameter, error: &str| Refused::Wrong(status, Wrong::parameter(parameter, error));
    let later = |over: Over| Refused::Later(over.to_string(), over.retry_after_s);
    let asked = asked(site, caller, query).await.map_err(|(status, wrong)| Refused::Wrong(status, wrong))?;
    let ip = asked.address.ip();
    if ip != client.to_canonical() && !site.has_token(client, headers).map_err(later)? {
        let error = "testing another address than your own needs the operator's token";
        return Err(wrong(StatusCode::UNAUTHORIZED, "address", error));
    }
    if !is_one_host(ip) {
        return Err(wrong(StatusCode::BAD_REQUEST, "address", "is not the address of one host"));
    }
    let known = site.hub.address_state(asked.address).filter(|record| asked.is_about(record));
    let named = || {
        let card = asked.card(&site.hub.view())?;
        game(card.name, if asked.game.is_empty() { card.name } else { &asked.game })
    };
    let game = known.map(|record| record.server.game.clone()).or_else(named);
    let Some((game, card)) = game.and_then(|game| card_of(&game).map(|card| (game, card))) else {
        return Err(wrong(StatusCode::BAD_REQUEST, "game", "is missing, or unknown here"));
    };
    let Some(_place) = site.tests.take(ip) else {
        let after_s = PATIENCE.as_secs() as u32;
        let reason = format!("{ip} is being tested already, or too many others are: try again in {after_s} s");
        return Err(Refused::Later(reason, after_s));
    };
    site.announcements.take_test(ip).map_err(later)?;
    Ok(Test { asked, game, card, _place })
}

impl Test {
    pub fn address(&self) -> Address {
        self.asked.address
    }

    /// A body that tells the test as it goes on, between a head and a tail. The test ends when nobody reads it any more.
    pub fn body(self, site: Arc<Site>, head: Bytes, write: fn(&Site, &Piece) -> String, tail: Bytes) -> Body {
        let (pieces, read) = mpsc::channel(PIECES_MAX);
        let tester = Tester { site: site.clone(), events: 0, told: Vec::new(), quiet_since: Instant::now(), pieces };
        tokio::spawn(tester.run(self));
        let pieces = stream::unfold((read, site, write), |(mut read, site, write)| async move {
            let piece = read.recv().await?;
            Some((Bytes::from(write(&site, &piece)), (read, site, write)))
        });
        let ends = |bytes: Bytes| stream::iter(Some(bytes).filter(|bytes| !bytes.is_empty()));
        let all = stream::StreamExt::chain(stream::StreamExt::chain(ends(head), pieces), ends(tail));
        Body::from_stream(stream::StreamExt::map(all, Ok::<_, std::convert::Infallible>))
    }
}

/// Nobody reads the test any more.
struct Gone;

struct Tester {
    site: Arc<Site>,
    pieces: mpsc::Sender<Piece>,
    events: usize,
    /// The events that were told, or are too old.
    told: Vec<Note>,
    quiet_since: Instant,
}

impl Tester {
    async fn run(mut self, test: Test) {
        if let Ok(result) = self.steps(&test).await {
            drop(test); // who has read the result can test again
            let _ = self.pieces.send(Piece::Result(Box::new(result))).await; // fails when nobody reads
        }
    }

    async fn steps(&mut self, test: &Test) -> Result<TestResult, Gone> {
        let address = test.asked.address;
        let begun_ms = self.now_ms();
        let lately_ms = test.card.announce_every_ms.saturating_add(LATELY_MS);
        let is_recent = |note: &Note| note.at_ms.saturating_add(lately_ms) >= begun_ms;
        let (recent, old): (Vec<_>, _) = self.notes(address).into_iter().partition(is_recent);
        self.told = old;
        if recent.is_empty() {
            let text = format!("Nothing arrived from {address} in the last {} s.", lately_ms / 1000);
            self.step("nothing_seen", text).await?;
        }
        self.tell(recent).await?;
        let Some(query) = query_of(&test.game) else {
            self.wait(address).await?;
            let is_good = |note: &Note| is_recent(note) && note.what.severity() == Severity::Good;
            let outcome = if self.told.iter().any(is_good) { "answered" } else { "silent" };
            return Ok(result(&self.site, test, outcome, None));
        };
        self.step("query_sent", format!("A query goes to UDP port {} of {}.", address.port(), address.ip())).await?;
        let announcements = self.site.announcements.clone();
        let mut query = Box::pin(announcements.test(address, query));
        let answer = loop {
            match timeout_at(Instant::now() + LOOK_EVERY, &mut query).await {
                Ok(answer) => break answer,
                Err(_) => self.news(address, true).await?,
            }
        };
        self.news(address, true).await?;
        let (outcome, what) = match &answer {
            Ok(answer) => ("answered", What::Answered { rtt_us: answer.rtt_us }),
            Err(Unproven::Asked(Failure::Silent)) => ("silent", What::Silent),
            Err(Unproven::Asked(Failure::Bad(fault))) => ("bad_answer", What::BadAnswer(Box::new(*fault))),
            Err(Unproven::Busy | Unproven::TooMany) => {
                let text = "It was not queried: too many other queries are under way.";
                self.step("not_queried", text.into()).await?;
                return Ok(result(&self.site, test, "not_queried", None));
            }
        };
        let note = Note::new(self.now_ms(), Channel::Query, address.port(), 0, what);
        let text = words(&self.site.pages.load(), &note).into_owned();
        self.step(note.what.label(), text).await?;
        Ok(result(&self.site, test, outcome, answer.ok()))
    }

    /// Tells events until one verifies the server.
    async fn wait(&mut self, address: Address) -> Result<(), Gone> {
        let text =
            format!("Its game cannot be queried. Its next announcement is waited for, up to {} s.", PATIENCE.as_secs());
        self.step("waiting", text).await?;
        let (until, begun_ms) = (Instant::now() + PATIENCE, self.now_ms());
        let is_verified = |note: &Note| note.at_ms >= begun_ms && note.what.severity() == Severity::Good;
        while Instant::now() < until && !self.told.iter().any(is_verified) {
            tokio::time::sleep(LOOK_EVERY).await;
            self.news(address, false).await?;
        }
        Ok(())
    }

    /// Tells what has happened since the last time. Our own query is told by its result.
    async fn news(&mut self, address: Address, is_queried: bool) -> Result<(), Gone> {
        let is_told = |note: &Note| self.told.contains(note) || is_queried && note.channel == Channel::Query;
        let news: Vec<_> = self.notes(address).into_iter().filter(|note| !is_told(note)).collect();
        self.tell(news).await?;
        if self.quiet_since.elapsed() >= ALIVE_EVERY {
            return self.send(Piece::Alive).await;
        }
        // Nobody may read it any more.
        if self.pieces.is_closed() { Err(Gone) } else { Ok(()) }
    }

    async fn tell(&mut self, notes: Vec<Note>) -> Result<(), Gone> {
        for note in notes {
            let text = words(&self.site.pages.load(), &note).into_owned();
            let step = TestStep { at: rfc3339(note.at_ms), kind: note.what.label(), text };
            self.told.push(note);
            self.events += 1;
            if self.events <= EVENTS_MAX {
                self.send(Piece::Step(step)).await?;
            }
        }
        Ok(())
    }

    async fn step(&mut self, kind: &'static str, text: String) -> Result<(), Gone> {
        self.send(Piece::Step(TestStep { at: rfc3339(self.now_ms()), kind, text })).await
    }

    async fn send(&mut self, piece: Piece) -> Result<(), Gone> {
        self.quiet_since = Instant::now();
        self.pieces.send(piece).await.map_err(|_| Gone)
    }

    fn notes(&self, address: Address) -> Vec<Note> {
        self.site.announcements.ledger.notes(address)
    }

    fn now_ms(&self) -> u64 {
        self.site.hub.clock.now().unix_ms
    }
}

/// What a test has found, and what the owner can do.
fn result(site: &Site, test: &Test, outcome: &'static str, answer: Option<asker::Response>) -> TestResult {
    let Test { asked, game, card, .. } = test;
    let address = asked.address;
    let record = site.hub.address_state(address);
    let diagnosis = diagnose(site, asked, record.as_ref());
    let (listed, is_queried) = (diagnosis.listed, query_of(game).is_some());
    let (summary, advice) = match outcome {
        // The operator has decided, whatever it answers.
        _ if diagnosis.kept_off.is_some() => (diagnosis.summary, diagnosis.advice),
        "answered" if listed => ("It answers, and it is listed.".into(), None),
        "answered" if is_queried => {
            let notes = site.announcements.ledger.notes(address);
            let refused = notes.iter().rev().find_map(|note| match note.what {
                What::Refused(refusal) => Some(refusal_advice(refusal).to_string()),
                _ => None,
            });
            let announce = || {
                let (how, ip) = (card.announced, address.ip());
                format!("Make sure that it announces itself to this master, {how}, and from {ip}: that lists it.")
            };
            ("It answers, but it is not listed.".into(), refused.or_else(|| Some(announce())))
        }
        "silent" if is_queried => {
            let listed = if listed { " It is still listed, but not for long if it stays silent." } else { "" };
            (format!("It did not answer our query.{listed}"), Some(firewall(card, address)))
        }
        "bad_answer" => {
            let advice = format!("Make sure that UDP port {} is that of {}.", address.port(), card.title);
            (format!("Something answers at {address}, but not as {} does.", card.title), Some(advice))
        }
        "silent" => {
            let advice = diagnosis.advice.map(|advice| advice + " ").unwrap_or_default();
            (diagnosis.summary, Some(advice + &firewall(card, address)))
        }
        "not_queried" => (diagnosis.summary, Some("Test it again in a few seconds.".into())),
        _ => (diagnosis.summary, diagnosis.advice),
    };
    let said = match answer {
        Some(answer) => answer.facts.map(|facts| *facts),
        None if outcome == "answered" => site.hub.listed(address).map(|server| server.facts().into_owned()),
        None => None,
    };
    let said = said.map(|facts| TestSaid::new(game, facts));
    TestResult { game: game.name().into(), place: address.into(), outcome, listed, summary, advice, said }
}

fn firewall(card: &Card, address: Address) -> String {
    let (title, port, ip) = (card.title, address.port(), address.ip());
    format!(
        "Make sure that {title} is running, and that UDP port {port} of {ip} is open to the internet: the firewall allows UDP \
         from any address and port to it, the router forwards it, and replies are let out."
    )
}

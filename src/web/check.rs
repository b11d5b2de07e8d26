//! The doctor: what this master saw of a server, why it is not listed, and what its owner can do. It reports only what
//! concerns the address in question.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::door::{Closed, Through};
use super::filter::Wrong;
use super::json::{Place, ServerJson, rfc3339};
use super::{Pages, Peer, Site, api, aside, parameters, reply};
use crate::budget::{Kind, Over};
use crate::ledger::{Note, What};
use crate::model::{Address, GAME_BYTES_MAX, Reach};
use crate::protocols::event::{Severity, Text};
use crate::protocols::{CARDS, Card, card, card_of, names_of};
use crate::registry::view::View;
use crate::registry::{AddressState, Refusal};

/// What a lookup of a host costs, in microseconds of searching: some ten a second are within the budget of an address.
const LOOKUP_COST: u64 = 5_000;
/// The most names that are compared with a typed one.
const NAMES_MAX: usize = 200;

/// What this master knows of a server.
#[derive(Serialize, ToSchema)]
pub struct Diagnosis<'a> {
    /// Absent where the request names none and nothing is listed there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub game: String,
    #[serde(flatten)]
    pub place: Place,
    /// Whether it is on the list now.
    pub listed: bool,
    /// In a sentence.
    pub summary: String,
    /// What its owner can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The name of a known game that was probably meant, where nobody knows the one that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub did_you_mean: Option<String>,
    /// The operator's decision that keeps it off the list, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_off: Option<KeptOff>,
    /// Recent events, oldest first.
    pub seen: Vec<Seen>,
    /// The server as it is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerJson<'a>>,
}

/// A decision of the operator.
#[derive(Serialize, ToSchema)]
pub struct KeptOff {
    /// `ban`: the address gets no answers. `unlist`: this server is kept off the list. `hide`: servers with its name are.
    pub kind: &'static str,
    /// When it ends; absent if it has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Absent if none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An event.
#[derive(Serialize, ToSchema)]
pub struct Seen {
    /// When it last happened.
    pub at: String,
    /// Where it came from: the name of a protocol (its datagrams), `heartbeat` (TCP or HTTP) or `query` (our query to the
    /// server).
    pub door: &'static str,
    /// Its kind, as in the metrics.
    pub what: &'static str,
    /// What happened, in words.
    pub text: String,
    /// How often it happened.
    pub times: u32,
    /// Whether it surely came from this address: a cookie came back, a connection, or an answer to our query. Otherwise
    /// anybody may have sent it. Absent where nothing was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_proven: Option<bool>,
    /// The port that it was sent from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_port: Option<u16>,
    /// The port that was announced or queried, where the message names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced_port: Option<u16>,
}

/// The server in question, as it is entered.
struct Entered<'q> {
    game: String,
    protocol: Option<&'static Card>,
    /// An address or a host name, with a port.
    address: Cow<'q, str>,
}

/// The server in question.
pub struct Asked {
    /// As typed; empty where only the protocol is given.
    pub game: String,
    protocol: Option<&'static Card>,
    pub address: Address,
}

/// Who asks.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub client: IpAddr,
    pub through: Through,
    pub headers: &'a HeaderMap,
}

/// Why a server is listed or not
#[utoipa::path(get, path = "/api/v1/check", tag = "servers", operation_id = "checkServer", params(
    ("game" = Option<String>, Query, description = "The game's name. May be left out: then this is about whatever is at the address"),
    ("protocol" = Option<String>, Query, description = "The protocol that the server speaks"),
    ("address" = String, Query, description = "The server's address and port, e.g. 203.0.113.5:20737. A host name is looked up"),
), responses(
    (status = 200, description = "What this master saw", body = Diagnosis),
    (status = 400, description = "A parameter is wrong", body = Wrong),
    (status = 403, description = "A host name was asked for through a proxy that is not configured", body = Wrong),
    (status = 404, description = "The host name cannot be found", body = Wrong),
))]
pub async fn check(
    State(site): State<Arc<Site>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(through): Extension<Through>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let caller = Caller { client: peer.ip(), through, headers: &headers };
    match asked(&site, caller, query.as_deref().unwrap_or_default()).await {
        Ok(asked) => {
            let record = site.hub.address_state(asked.address);
            reply::json(StatusCode::OK, &diagnose(&site, &asked, record.as_ref()))
        }
        Err((status, wrong)) => api::wrong(status, &wrong),
    }
}

/// Reads which server is in question. A host name is looked up for the client; of several addresses, one with a server is taken.
pub async fn asked(site: &Site, caller: Caller<'_>, query: &str) -> Result<Asked, (StatusCode, Wrong)> {
    let bad = |wrong| (StatusCode::BAD_REQUEST, wrong);
    let Entered { game, protocol, address } = entered(query).map_err(bad)?;
    let text = address.trim();
    let address = match (text.parse::<Address>(), host_and_port(text)) {
        (Ok(address), _) => address,
        (Err(error), None) => return Err(bad(Wrong::parameter("address", error))),
        (Err(_), Some((host, port))) => {
            let refused = |status, error: String| (status, Wrong { error, parameter: None });
            if let Through(Some(proxy)) = caller.through {
                return Err(refused(Closed::STATUS, Closed::Proxy(proxy).to_string()));
            }
            let over = |over: Over| refused(StatusCode::TOO_MANY_REQUESTS, over.to_string());
            let found = look_up(site, caller, host).await.map_err(over)?;
            let found: Vec<_> = found.into_iter().filter_map(|ip| Address::new(ip, port)).collect();
            let known = found.iter().find(|address| site.hub.address_state(**address).is_some());
            let unknown = || Wrong::parameter("address", format!("cannot find {host}"));
            *known.or(found.first()).ok_or_else(|| (StatusCode::NOT_FOUND, unknown()))?
        }
    };
    Ok(Asked { game, protocol, address })
}

/// The addresses of a host, at the cost of the client. Only a client of a near network is told of names and addresses that are
/// known in such a network alone.
async fn look_up(site: &Site, caller: Caller<'_>, host: &str) -> Result<Vec<IpAddr>, Over> {
    let (client, is_near) = (caller.client, site.is_near(caller.client, caller.headers));
    let (budgets, now) = (site.guard.budgets(), site.hub.clock.now());
    budgets.admit(Kind::Searches, now, client)?;
    budgets.charge(Kind::Searches, now, client, LOOKUP_COST);
    drop(budgets);
    let name = host.trim_end_matches('.');
    let found = match (is_near, name.contains('.')) {
        (true, _) => site.announcements.addresses_of(host, client).await,
        // The last dot keeps the resolver from trying domains of its own.
        (false, true) => site.announcements.addresses_of(&format!("{name}."), client).await,
        (false, false) => None,
    };
    let found = found.unwrap_or_default().into_iter().map(|ip| ip.to_canonical());
    Ok(found.filter(|ip| is_near || Reach::of(*ip) == Reach::Internet).collect())
}

/// A host name, not a number, with a port.
fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let is_name = |label: &str| {
        let bytes = label.as_bytes();
        !label.is_empty()
            && label.len() <= 63
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let is_host = host.len() <= 253 && host.trim_end_matches('.').split('.').all(is_name);
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (is_host && !is_number).then_some((host, port))
}

fn entered(query: &str) -> Result<Entered<'_>, Wrong> {
    let (mut game, mut protocol, mut address) = (None, None, None);
    for (name, value) in parameters::once(query)? {
        match &*name {
            "game" => game = Some(value.into_owned()),
            "protocol" => {
                let known = || CARDS.iter().map(|card| card.name).collect::<Vec<_>>().join(", ");
                let unknown = || Wrong::parameter("protocol", format!("must be one of {}", known()));
                protocol = Some(card(&value).ok_or_else(unknown)?);
            }
            "address" => address = Some(value),
            _ => return Err(parameters::unknown(&name, &["game", "protocol", "address"])),
        }
    }
    let address = address.ok_or_else(|| Wrong::parameter("address", "is missing"))?;
    Ok(Entered { game: game.unwrap_or_default(), protocol, address })
}

impl Asked {
    /// The name of a known game that was probably meant.
    fn meant(&self, view: &View) -> Option<String> {
        if self.game.is_empty() || self.game.len() > GAME_BYTES_MAX || self.card(view).is_some() {
            return None;
        }
        let typed = self.game.to_lowercase();
        let far = |name: &str| strsim::osa_distance(&typed, &name.to_lowercase());
        let known = CARDS.iter().map(|card| card.name).chain(view.groups().map(|(game, ..)| game));
        // Others choose how many games there are: most are ruled out by their length.
        let most = (typed.chars().count() / 3).min(2);
        let near = known.filter(|name| name.chars().count().abs_diff(typed.chars().count()) <= most).take(NAMES_MAX);
        let nearest = near.min_by_key(|name| far(name))?;
        (far(nearest) <= most).then(|| nearest.to_string())
    }

    /// Whether a server is the one in question. The name of a family of games stands for any of them.
    pub fn is_about(&self, record: &AddressState) -> bool {
        let game = &record.server.game;
        let is_game = self.game.is_empty() || names_of(game).any(|name| name == self.game);
        is_game && self.protocol.is_none_or(|card| card.name == game.protocol())
    }

    /// The protocol of the server in question: as given, by the game's name, or that of other servers of the game.
    pub fn card(&self, view: &View) -> Option<&'static Card> {
        let of_others = || aside(view, || view.of_game(&self.game).next().and_then(|server| card_of(&server.game)));
        self.protocol.or_else(|| card(&self.game)).or_else(of_others)
    }
}

pub fn diagnose<'a>(site: &Site, asked: &Asked, record: Option<&'a AddressState>) -> Diagnosis<'a> {
    let address = asked.address;
    let pages = site.pages.load();
    let notes = site.announcements.ledger.notes(address);
    let (record, other) = match record {
        Some(record) if !asked.is_about(record) => (None, Some(record).filter(|record| record.listed)),
        record => (record, None),
    };
    let listed = record.is_some_and(|record| record.listed);
    let kept_off = kept_off(site, address, listed);
    let (summary, advice) = match record {
        _ if let Some(kept_off) = &kept_off => (kept_off.words(address), Some(ASK_OPERATOR.into())),
        Some(record) if record.listed => {
            let (by, at) = (record.server.verified_by.name(), rfc3339(record.proven_at_ms));
            match &record.server.via {
                None if record.server.is_unanswered() => unanswered(record, asked, &at),
                None => (format!("Listed. Last verified by {by} at {at}."), None),
                Some(via) => mirrored(asked, via.name(), by, &at),
            }
        }
        Some(record) => unlisted(record, address),
        None => {
            let refused = notes.iter().rfind(|note| matches!(note.what, What::Refused(_)));
            match (other, refused) {
                (Some(other), None) => other_game(asked, other),
                // The server at this address is another one: only the refusal is about the one in question.
                (Some(_), Some(refused)) => unknown(&pages, &site.hub.view(), asked, std::slice::from_ref(refused)),
                (None, _) => unknown(&pages, &site.hub.view(), asked, &notes),
            }
        }
    };
    let view = site.hub.view();
    let did_you_mean = aside(&view, || asked.meant(&view)).filter(|_| !listed);
    let game = match (asked.game.is_empty(), record, asked.protocol) {
        (true, Some(record), _) => record.server.game.name(),
        (true, None, Some(card)) => card.name,
        _ => &asked.game,
    };
    Diagnosis {
        game: game.to_string(),
        place: address.into(),
        listed,
        summary,
        advice,
        did_you_mean,
        kept_off,
        seen: notes.iter().map(|note| seen(&pages, note)).collect(),
        server: record.filter(|_| listed).map(|record| ServerJson::new(&record.server)),
    }
}

/// The operator's decision that keeps a server off the list.
fn kept_off(site: &Site, address: Address, listed: bool) -> Option<KeptOff> {
    let (board, now_ms) = (&site.board, site.hub.shared_ms());
    let hidden = || {
        let name = Some(address).filter(|_| !listed).and_then(|address| site.hub.hidden_name(address))?;
        board.hiding_of(&name, now_ms)
    };
    let found = board.ban_of(address.ip(), now_ms).or_else(|| board.unlisting_of(address, now_ms)).or_else(hidden)?;
    Some(KeptOff {
        kind: found.subject.kind(),
        until: found.ends_at_ms().map(rfc3339),
        reason: Some(found.reason()).filter(|reason| !reason.is_empty()).map(String::from),
    })
}

impl KeptOff {
    /// In words, for the server's owner.
    fn words(&self, address: Address) -> String {
        let what = match self.kind {
            "ban" => format!("{} is banned here", address.ip()),
            "unlist" => format!("The operator keeps {address} off the list"),
            _ => "The operator keeps servers with its name off the list".into(),
        };
        let until = self.until.as_ref().map(|until| format!(" until {until}")).unwrap_or_default();
        let reason = self.reason.as_ref().map(|reason| format!(" Reason: {reason}")).unwrap_or_default();
        format!("{what}{until}.{reason}")
    }
}

/// Listed for the grace period only.
fn unanswered(record: &AddressState, asked: &Asked, since: &str) -> (String, Option<String>) {
    let (address, misses) = (asked.address, record.misses);
    (
        format!(
            "Listed for now, below the others: it announces itself and does not answer our queries. It last answered at \
             {since}; the last {misses} went unanswered."
        ),
        Some(format!(
            "Make sure that UDP port {} of {} is open to the internet. If it is, the game may limit its answers per address \
             and somebody may be forging queries in this master's name: look there for a flood of queries from this \
             master's address, and let its firewall drop what exceeds a few a second, or raise the game's limit. The \
             server leaves the list if it stays silent, and is back with its next answer.",
            address.port(),
            address.ip()
        )),
    )
}

/// Listed because another master names it.
fn mirrored(asked: &Asked, via: &str, by: &str, at: &str) -> (String, Option<String>) {
    let how =
        asked.protocol.or_else(|| card(&asked.game)).map_or(String::new(), |card| format!(", {}", card.announced));
    (
        format!("Listed via {via}; it does not announce itself here. Last verified by {by} at {at}."),
        Some(format!(
            "It stays listed for as long as it answers. To be listed here whatever becomes of {via}, make it announce \
             itself to this master, too{how}."
        )),
    )
}

const ASK_OPERATOR: &str = "Ask the operator of this master.";

/// Known, but not on the list because it does not answer.
fn unlisted(record: &AddressState, address: Address) -> (String, Option<String>) {
    let summary = match record.misses {
        0 => "Known, but not queried yet.".into(),
        1 => "Not listed: it did not answer our query.".into(),
        misses => format!("Not listed: it did not answer our last {misses} queries."),
    };
    (summary, Some(reachable(address)))
}

/// The address is listed, as a server of another game.
fn other_game(asked: &Asked, other: &AddressState) -> (String, Option<String>) {
    let game = &other.server.game;
    let title = card(game.name()).map_or(game.name(), |card| card.title);
    (
        format!("A server of another game is listed at {}: {title}.", asked.address),
        Some(format!("If this is your server, ask for the game {}. Otherwise check the port.", game.name())),
    )
}

fn reachable(address: Address) -> String {
    format!(
        "Make sure that the game is running and that UDP port {} of {} is open to the internet: allowed by the firewall, \
         and forwarded by the router.",
        address.port(),
        address.ip()
    )
}

/// Not known: the most recent event that can be a reason explains why.
fn unknown(pages: &Pages, view: &View, asked: &Asked, notes: &[Note]) -> (String, Option<String>) {
    let address = asked.address;
    let is_reason = |note: &&Note| note.what.severity() != Severity::Step;
    let Some(last) = notes.iter().rev().find(is_reason).or(notes.last()) else {
        let how = asked.card(view).map_or("by a heartbeat or through the API", |card| card.announced);
        return (
            format!("Nothing was seen of {address} recently."),
            Some(format!(
                "Make sure that the server announces itself to this master, {how}, and from {}.",
                address.ip()
            )),
        );
    };
    let advice = match &last.what {
        What::Datagram(event) => event.kind.advice.map(|advice| pages.text(advice, last).into_owned()),
        What::Silent | What::BadAnswer(_) | What::Challenged => Some(reachable(address)),
        What::BadPost(_) => Some("Correct that in the server's configuration, or update the server.".into()),
        What::Refused(refusal) => Some(refusal_advice(*refusal).into()),
        What::Banned => Some(ASK_OPERATOR.into()),
        What::Quit => Some("Start it again.".into()),
        What::Postponed => Some("Announce it again in a few minutes; most games do so by themselves.".into()),
        What::Disputed | What::Heartbeat | What::OtherName | What::UnknownName | What::Answered { .. } => None,
    };
    let advice = other_port(asked.card(view), last).or(advice);
    let expired = "It was listed until its announcements stopped: make sure that it still announces itself.";
    let advice = advice.or_else(|| (last.what.severity() == Severity::Good).then(|| expired.into()));
    (format!("Not listed. Last event: {}", words(pages, last)), advice)
}

/// Advice where the last datagram arrived on the port of another protocol than the server's own.
fn other_port(own: Option<&'static Card>, last: &Note) -> Option<String> {
    let is_datagram = matches!(last.what, What::Datagram(_));
    let other = card(last.channel.name()).filter(|_| is_datagram)?;
    let own = own.filter(|own| own.name != other.name)?;
    Some(format!(
        "It arrived on the port for {}. Make sure that the server announces itself {}.",
        other.title, own.announced
    ))
}

pub fn refusal_advice(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::FullForIp => "Run fewer servers at this address, or ask the operator for more.",
        Refusal::FullForNetwork => {
            "If they are yours, run fewer servers in this network. Otherwise ask the operator of this master to add the \
             network to guard.exempt, or the server to the configuration."
        }
        Refusal::FullForGame => {
            "If they are yours, run fewer servers of this game in this network. Otherwise ask the operator of this master to raise \
             guard.max_per_game_and_network, or to add the server to the configuration."
        }
        Refusal::StrongerProof => {
            "Two servers announce the same address and port. If both are yours, stop one of them or give it another port. \
             This one can be listed once the other no longer answers."
        }
        Refusal::Full | Refusal::OtherGameConfigured | Refusal::Late | Refusal::NotListed => ASK_OPERATOR,
        Refusal::Banned | Refusal::Unlisted | Refusal::Hidden => ASK_OPERATOR,
    }
}

fn seen(pages: &Pages, note: &Note) -> Seen {
    let port = |port: u16| (port != 0).then_some(port);
    Seen {
        at: rfc3339(note.at_ms),
        door: note.channel.name(),
        what: note.what.label(),
        text: words(pages, note).into_owned(),
        times: note.times,
        sender_proven: note.what.sender_proven(),
        observed_port: port(note.source_port),
        announced_port: port(note.port),
    }
}

impl Pages {
    /// A text of a datagram's protocol.
    fn text(&self, text: Text, note: &Note) -> Cow<'static, str> {
        let What::Datagram(event) = &note.what else { return "".into() };
        let name = note.channel.name();
        let section = self.sections.iter().find(|(card, _)| card.name == name);
        section.map_or("".into(), |(_, section)| text(&**section, event.values))
    }
}

/// What happened, for the server's owner.
pub fn words(pages: &Pages, note: &Note) -> Cow<'static, str> {
    match &note.what {
        What::Datagram(event) => pages.text(event.kind.text, note),
        What::Banned => "Ignored: the address is banned.".into(),
        What::Heartbeat => "The server sent a heartbeat.".into(),
        What::Answered { rtt_us } => {
            format!("The server answered our query in {:.1} ms.", f64::from(*rtt_us) / 1000.0).into()
        }
        What::Silent => "The server did not answer our query over UDP.".into(),
        What::BadAnswer(fault) => format!("The server gave a bad answer to our query: {fault}.").into(),
        What::Disputed => {
            "Someone sends forged answers in its name. They are ignored, but while they arrive, the server's \
                           name, map and players may be out of date."
                .into()
        }
        What::Quit => "The server reported that it stopped.".into(),
        What::OtherName => {
            "The server announced a name that is not one of its address, so it is listed by its address.".into()
        }
        What::Challenged => {
            "The server announced itself, and was sent a token over UDP, which it has to return with its next announcement."
                .into()
        }
        What::BadPost(why) => format!("The server's announcement was refused: {why}.").into(),
        What::UnknownName => {
            "The name that the server announced could not be looked up, so it is listed by its address.".into()
        }
        What::Postponed => "Not verified: too much was announced at once, here or in its network.".into(),
        What::Refused(refusal) => refused(*refusal).into(),
    }
}

fn refused(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Full => {
            "Verified, but refused: the list is full, and no network has more servers on it than its own would have."
        }
        Refusal::FullForIp => "Verified, but refused: too many servers at its address.",
        Refusal::FullForNetwork => "Verified, but refused: too many servers in the network around its address.",
        Refusal::FullForGame => {
            "Verified, but refused: the network around its address has as many servers of this game as the operator allows."
        }
        Refusal::OtherGameConfigured => "Refused: the operator has configured another game for this address.",
        Refusal::Late => "Refused: the proof of its address arrived too late.",
        Refusal::NotListed => "Refused: the server is not listed.",
        Refusal::StrongerProof => {
            "Refused: another server is listed at this address and port, with a stronger proof than a connection."
        }
        Refusal::Banned => "Refused: the operator has banned its address.",
        Refusal::Unlisted => "Refused: the operator keeps this server off the list.",
        Refusal::Hidden => "Refused: the operator keeps servers of this name off the list.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_are_told_from_numbers() {
        assert_eq!(host_and_port("play.example:27790"), Some(("play.example", 27790)));
        assert_eq!(host_and_port("my-server:1"), Some(("my-server", 1)));
        for text in [
            "",
            "play.example",
            "play.example:0",
            "play.example:x",
            "play.example:70000",
            "127.0.0.1:99999",
            "1.2.3:5",
            "a..b:1",
            "[::1]:5",
            "a b:1",
            "é.example:1",
            ":1",
            "10:1",
        ] {
            assert_eq!(host_and_port(text), None, "{text}");
        }
        assert_eq!(host_and_port(&format!("{}:1", "a".repeat(64))), None);
    }

    #[test]
    fn mistyped_names_of_games_are_recognised() {
        let meant = |game: &str| {
            let asked = Asked { game: game.into(), protocol: None, address: "203.0.113.5:1".parse().unwrap() };
            asked.meant(&View::new(1, 0, Vec::new()))
        };
        for (typed, expected) in [
            ("netpanzr", Some("netpanzer")),
            ("NetPanzer", Some("netpanzer")),
            ("icebal", Some("iceball")),
            ("netpanzer", None),
            ("", None),
            ("something else", None),
            ("x", None),
        ] {
            assert_eq!(meant(typed).as_deref(), expected, "{typed}");
        }
    }
}

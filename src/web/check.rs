//! The doctor: tells the owner of a server what this master saw of it, and what to do. Only what concerns the address
//! that was asked about.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::filter::Wrong;
use super::json::{ServerJson, rfc3339};
use super::{Site, api, reply};
use crate::cookie;
use crate::ledger::{Note, What};
use crate::model::Address;
use crate::protocols::iceball::wire::Version;
use crate::protocols::{Drop, card};
use crate::registry::{AddressState, Refusal};

/// What this master knows of a server.
#[derive(Serialize, ToSchema)]
pub struct Diagnosis<'a> {
    pub game: String,
    pub address: String,
    /// Whether it is on the list now.
    pub listed: bool,
    /// In a sentence.
    pub summary: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// What was seen lately, oldest first.
    pub seen: Vec<Seen>,
    /// The server as it is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerJson<'a>>,
}

/// Something that happened.
#[derive(Serialize, ToSchema)]
pub struct Seen {
    /// When it last happened.
    pub at: String,
    /// `iceball` (datagrams), `heartbeat` (TCP or HTTP) or `query` (our question to the server).
    pub door: &'static str,
    pub what: &'static str,
    pub text: String,
    /// How often.
    pub times: u32,
    /// Whether it was surely sent from this address (a cookie came back, a connection, an answer to our query) or could
    /// be anybody's. Absent where nothing was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_proven: Option<bool>,
    /// The port that it was sent from, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_port: Option<u16>,
    /// The port that was announced or asked, where the message told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced_port: Option<u16>,
}

/// Why a server is listed or not
#[utoipa::path(get, path = "/api/v1/check", tag = "servers", params(
    ("game" = String, Query, description = "The game's name"),
    ("address" = String, Query, description = "Its address and port, e.g. 203.0.113.5:20737"),
), responses(
    (status = 200, description = "What this master saw", body = Diagnosis),
    (status = 400, description = "A parameter is wrong", body = Wrong),
))]
pub async fn check(State(site): State<Arc<Site>>, RawQuery(query): RawQuery) -> Response {
    match asked(query.as_deref().unwrap_or_default()) {
        Ok((game, address)) => {
            let record = site.hub.address_state(address);
            reply::json(StatusCode::OK, &diagnose(&site, &game, address, record.as_ref()))
        }
        Err(wrong) => api::bad_request(&wrong),
    }
}

/// The game and the address that are asked about.
pub fn asked(query: &str) -> Result<(String, Address), Wrong> {
    let (mut game, mut address) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "game" if !value.is_empty() && value.len() <= 64 => game = Some(value.into_owned()),
            "game" => return Err(Wrong::parameter("game", "must be the name of a game")),
            "address" => {
                let parsed = value.trim().parse::<Address>();
                address = Some(parsed.map_err(|error| Wrong::parameter("address", error))?);
            }
            _ => return Err(Wrong::parameter(&name, "is unknown here; `game` and `address` are known")),
        }
    }
    let missing = |name| Wrong::parameter(name, "is missing");
    Ok((game.ok_or_else(|| missing("game"))?, address.ok_or_else(|| missing("address"))?))
}

pub fn diagnose<'a>(site: &Site, game: &str, address: Address, record: Option<&'a AddressState>) -> Diagnosis<'a> {
    let notes = site.announcements.ledger.notes(address);
    let record = record.filter(|record| record.server.game.name() == game);
    let listed = record.is_some_and(|record| record.listed);
    let banned = site.guard.bans().contains(address.ip());
    let (summary, advice) = match record {
        _ if banned => (format!("{} is banned here", address.ip()), Some("Ask the operator of this master.".into())),
        Some(record) if record.listed => {
            let by = record.server.verified_by.name();
            (format!("Listed, proven by {by} at {}.", rfc3339(record.proven_at_ms)), None)
        }
        Some(record) => unlisted(record, address),
        None => unknown(site, game, address, &notes),
    };
    Diagnosis {
        game: game.to_string(),
        address: address.to_string(),
        listed,
        summary,
        advice,
        seen: notes.iter().map(|note| seen(site, note)).collect(),
        server: record.filter(|_| listed).map(|record| ServerJson::new(&record.server)),
    }
}

/// Known, but not on the list because it does not answer.
fn unlisted(record: &AddressState, address: Address) -> (String, Option<String>) {
    let summary = match record.misses {
        0 => "Known, and not asked yet.".into(),
        1 => "Not on the list: it did not answer.".into(),
        misses => format!("Not on the list: it did not answer {misses} times in a row."),
    };
    (summary, Some(reachable(address)))
}

fn reachable(address: Address) -> String {
    format!(
        "See that the game runs, and that UDP port {} of {} is open to the internet: in the firewall, and forwarded by \
         the router.",
        address.port(),
        address.ip()
    )
}

/// Not known: the last thing that was seen tells why.
fn unknown(site: &Site, game: &str, address: Address, notes: &[Note]) -> (String, Option<String>) {
    // What was not answered because the server was proven then is no reason now.
    let is_reason = |note: &&Note| !matches!(note.what, What::CookieSent) && !note.what.is_withheld();
    let Some(last) = notes.iter().rev().find(is_reason).or(notes.last()) else {
        let announcements = card(game).map_or("by a heartbeat or through the API", |card| card.announced);
        return (
            format!("Nothing was seen of {address} lately."),
            Some(format!(
                "See that the server announces itself to this master, {announcements}, and from {}.",
                address.ip()
            )),
        );
    };
    let advice = match &last.what {
        What::CookieSent => Some(
            "Our answer does not reach the server, or it does not answer it. Let UDP answers from this master through \
             the firewall to the port that it announces from."
                .to_string(),
        ),
        What::BadVersion { .. } => {
            let expected = site.pages.load().iceball.version;
            Some(format!(
                "This master lists version {expected}. If it was your server, update it, or ask the operator; it announces \
                 itself again after half an hour."
            ))
        }
        What::BadFormat { .. } => Some(
            "If it was your server, the program that announces it is broken: an announcement has 86 bytes. It announces \
             itself again after half an hour."
                .into(),
        ),
        What::Silent | What::BadAnswer(_) => Some(reachable(address)),
        What::Disputed => None,
        What::Refused(Refusal::FullForIp) => {
            Some("Run fewer servers at this address, or ask the operator for more.".into())
        }
        What::Refused(Refusal::FullForNetwork) => Some(
            "If they are yours, run fewer servers in this network. Otherwise ask the operator of this master to name the \
             network in guard.exempt, or the server in the configuration."
                .into(),
        ),
        What::Refused(Refusal::StrongerProof) => Some(
            "Two servers announce the same address and port. If both are yours, stop the other one or give one of them \
             another port; the place is free when the other no longer answers."
                .into(),
        ),
        What::Refused(_) | What::Banned => Some("Ask the operator of this master.".into()),
        What::Dropped(Drop::Cookie(_)) => Some(
            "A cookie came back from another address or port than it was sent to, or too late. NAT does that.".into(),
        ),
        What::Quit => Some("It said that it stopped. Start it again.".into()),
        What::CookieReturned | What::CookieRepeated | What::Heartbeat | What::Answered { .. } => {
            Some("It was here, and its life has ended since: see that it still announces itself.".into())
        }
        What::Dropped(_) => None,
    };
    (format!("Not listed. The last that was seen: {}", words(site, last)), advice)
}

fn seen(site: &Site, note: &Note) -> Seen {
    let port = |port: u16| (port != 0).then_some(port);
    Seen {
        at: rfc3339(note.at_ms),
        door: note.channel.name(),
        what: note.what.label(),
        text: words(site, note),
        times: note.times,
        sender_proven: note.what.is_senders_own(),
        observed_port: port(note.source_port),
        announced_port: port(note.port),
    }
}

/// What a complaint that was earned, and perhaps withheld, says of its sender.
fn complaint(withheld: bool) -> &'static str {
    if withheld {
        "Nothing was answered: a server of this address is proven, so the datagram may be forged to silence it."
    } else {
        "It was told so. Its sender was not proven: it could be anybody."
    }
}

/// What happened, in plain words.
fn words(site: &Site, note: &Note) -> String {
    match &note.what {
        What::CookieSent => "An announcement came, and a cookie was sent to see who it is from.".into(),
        What::CookieReturned => "It brought the cookie back: its address is proven.".into(),
        What::CookieRepeated => "It brought back a cookie that says nothing newer than is known: ignored.".into(),
        What::BadVersion { heartbeat_version, version, withheld } => {
            let iceball = &site.pages.load().iceball;
            format!(
                "An announcement came with version {} (heartbeat {heartbeat_version}); expected is {} (heartbeat {}). {}",
                Version(*version),
                iceball.version,
                iceball.heartbeat_version,
                complaint(*withheld)
            )
        }
        What::BadFormat { length, withheld } => {
            format!("An announcement came with {length} bytes instead of 86. {}", complaint(*withheld))
        }
        What::Banned => "It was not listened to: its address is banned.".into(),
        What::Heartbeat => "It sent a heartbeat.".into(),
        What::Answered { rtt_us } => format!("It answered our query in {:.1} ms.", f64::from(*rtt_us) / 1000.0),
        What::Silent => "It did not answer our query over UDP.".into(),
        What::BadAnswer(fault) => format!("It answered our query wrongly: {fault}."),
        What::Disputed => {
            "Somebody sends forged answers in its name. They are ignored, but while they come, its name, map \
                           and players may be out of date."
                .into()
        }
        What::Quit => "It said that it stopped.".into(),
        What::Refused(refusal) => match refusal {
            Refusal::Full => {
                "It was proven, and refused: the list is full, and no network has more servers on it than its own would have."
                    .into()
            }
            Refusal::FullForIp => "It was proven, and refused: too many servers at its address.".into(),
            Refusal::FullForNetwork => {
                "It was proven, and refused: too many servers in the network around its address.".into()
            }
            Refusal::OtherGameConfigured => "It was refused: the operator names another game at its address.".into(),
            Refusal::Late => "Its proof came too late.".into(),
            Refusal::NotListed => "It is not listed.".into(),
            Refusal::StrongerProof => {
                "It was refused: another server is listed at its address and port, with a stronger proof than a \
                 connection."
                    .into()
            }
        },
        What::Dropped(reason) => match reason {
            Drop::TooShort | Drop::UnknownMagic => "Something came that is no message of the game.".into(),
            Drop::SourcePort0 | Drop::AnnouncedPort0 => "Port 0 was announced, which is none.".into(),
            Drop::SourceAddress => "It came from an address that is no host's.".into(),
            Drop::CookieContent => "A cookie came back that holds no announcement.".into(),
            Drop::Cookie(cookie::Refusal::Old) => "A cookie came back too late.".into(),
            Drop::Cookie(cookie::Refusal::Short | cookie::Refusal::UnknownKey | cookie::Refusal::Forged) => {
                "A cookie came back that was not sent to this address and port.".into()
            }
        },
    }
}

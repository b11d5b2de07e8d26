//! The master's side of Luanti's web list, compatible with the original servers and clients.
//!
//! | request | answer |
//! |---|---|
//! | POST `/announce`, a form with the field `json` | one line, which the game prints in its log |
//! | GET `/list`, `/list.json` | all servers, best first |
//! | GET `/geoip` | the client's continent |
//!
//! A server is probed at the address that it posted from, and nowhere else: nobody can have a packet sent to somebody else.

use std::net::IpAddr;
use std::sync::Arc;

use super::announce::{Action, Announcement, ServerSays};
use super::list::continent;
use super::{NAME, form};
use crate::model::{Address, Facts, Game, GameRules, HeartbeatKeys, Server};
use crate::protocols::post::{Failure, FailureKind, Post, PostAnswer, PostContext, PostEffect, PostRule};
use crate::protocols::section::{Places, RouteAnswer, RouteRule};
use crate::protocols::{Heartbeat, Named, Verdict};
use crate::registry::view::Renderer;

/// Two of the game's intervals, which drift to 305 s, and some time to spare.
pub const LIFE_MS: u64 = 660_000;
/// The original's bound on an announcement.
const JSON_CHARS_MAX: usize = 8_192;
const TEXT: &str = "text/plain; charset=utf-8";
const OFF: &str = "the Luanti list is disabled on this master";

/// The path `/announce`.
pub struct Announce {
    /// Whether the list is enabled.
    pub is_on: bool,
}

impl PostRule for Announce {
    fn post(&self, at: &PostContext<'_>, post: &Post<'_>) -> PostEffect {
        if !self.is_on {
            return PostEffect::Answer(text(404, OFF));
        }
        match self.read(post) {
            Ok(announcement) => effect(at, post.peer, &announcement),
            Err(answer) => PostEffect::Answer(answer),
        }
    }

    fn decided(&self, verdict: &Verdict) -> PostAnswer {
        match verdict {
            Verdict::Listed => text(202, FILED),
            Verdict::Refused(reason) => text(403, reason.clone()),
            Verdict::TryLater { reason, after_s } => {
                PostAnswer { retry_after_s: Some(*after_s), ..text(429, reason.clone()) }
            }
        }
    }
}

const FILED: &str = "Request has been filed.";

impl Announce {
    fn read(&self, post: &Post<'_>) -> Result<Announcement, PostAnswer> {
        let json = form::json((post.header)("content-type"), post.body);
        let json = json.ok_or_else(|| text(400, "The request needs a form with the field `json`."))?;
        let chars = json.chars().count();
        if chars > JSON_CHARS_MAX {
            return Err(text(413, format!("JSON data is too big ({chars}).")));
        }
        Announcement::parse(json.as_bytes()).map_err(|wrong| text(400, wrong.words()))
    }
}

fn effect(at: &PostContext<'_>, peer: IpAddr, announcement: &Announcement) -> PostEffect {
    let Some(address) = Address::new(peer, announcement.port) else {
        return PostEffect::Answer(text(400, "The port must be a number from 1 to 65535."));
    };
    let is_ours = |server: &Arc<Server>| server.game == Game::Own(NAME);
    let Some(server) = &announcement.server else {
        return match (at.listed)(address).filter(is_ours) {
            Some(_) => PostEffect::Quit { address, answer: text(200, "Removed from server list.") },
            None => PostEffect::Answer(text(200, "Server to remove not found.")),
        };
    };
    let name = match host(&announcement.address, peer) {
        Ok(name) => name,
        Err(help) => return PostEffect::Answer(text(400, help)),
    };
    let known = (at.known)(address).filter(is_ours).filter(|_| announcement.action == Action::Update);
    // With less uptime than before it was restarted, and the announcement of its start got lost.
    let before = known.as_deref().map(Server::facts).filter(|before| number(before, "uptime") <= server.uptime());
    let said = Box::new(server.facts(before.as_ref(), &counted(server, before.as_ref())));
    let answer = match (at.failure)(address) {
        None => text(202, FILED),
        Some(Failure { kind: FailureKind::Warning, text: why }) => {
            text(409, format!("{FILED_BUT} there is a warning from the previous one:\n{why}"))
        }
        Some(Failure { kind, text: why }) => {
            let help = if kind == FailureKind::Silent && peer.is_ipv6() { ASKED_OVER_IPV6 } else { "" };
            text(409, format!("{FILED_BUT} the previous one encountered an error:\n{why}{help}"))
        }
    };
    let heartbeat = Heartbeat {
        address,
        game: Game::Own(NAME),
        life_ms: LIFE_MS,
        verify: true,
        keys: Arc::new(HeartbeatKeys::of(NAME, address)),
        said: Some(said),
        name: name.map(|host| Named { host, rule: "address" }),
    };
    PostEffect::File { heartbeat: Box::new(heartbeat), answer }
}

const FILED_BUT: &str = "Request has been filed, but";
/// The game may listen on IPv4 only, while the system that it runs on posts over IPv6.
const ASKED_OVER_IPV6: &str = "\nThe announcement came over IPv6, so the game is asked there. If it listens on IPv4 only, set \
                               ipv6_server = true, or use a name of this master that has no IPv6 address.";

/// What the master counts over a server's announcements: the most players at a time, and the mean.
fn counted(server: &ServerSays, before: Option<&Facts<'_>>) -> GameRules {
    let clients = u64::from(server.clients);
    let known = |key: &str| before.map_or(0, |before| number(before, key));
    let (updates, sum) = (known("updates") + 1, known("updates") * known("pop_v_milli") + clients * 1_000);
    let rules = [
        ("clients_top", known("clients_top").max(clients)),
        ("pop_v_milli", sum / updates),
        ("updates", updates.min(100_000)),
    ];
    rules.into_iter().map(|(key, value)| (key, value.to_string())).collect()
}

/// A number among a server's rules; 0 if it is not there.
pub fn number(facts: &Facts<'_>, key: &str) -> u64 {
    facts.rule(key).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The name under which a server wants to be listed; none if that is its own address. The error helps its owner.
fn host(address: &str, peer: IpAddr) -> Result<Option<Box<str>>, &'static str> {
    if address.is_empty() {
        return Ok(None);
    }
    if let Ok(ip) = address.parse::<IpAddr>() {
        // One of the other family is right, too: this machine has both.
        return Ok((ip.is_ipv4() == peer.is_ipv4() && ip != peer).then(|| address.into()));
    }
    if !address.is_ascii() {
        return Err("server_address has characters other than ASCII: write an international name in Punycode.");
    }
    let is_bad = |b: u8| b.is_ascii_control() || b" @#/*\"'".contains(&b);
    if address.len() > 255 || address.starts_with('-') || address.bytes().any(is_bad) {
        return Err("server_address is not a name: it must be one like play.example.org, without a path.");
    }
    if address.contains(':') {
        return Err("server_address must be a name without a port: that is the setting port.");
    }
    let lower = address.to_ascii_lowercase();
    let top = lower.rsplit_once('.').map_or("", |(_, top)| top);
    if !top.bytes().any(|b| b.is_ascii_alphabetic()) {
        return Err("server_address must be a whole name like play.example.org.");
    }
    if ["local", "localhost", "internal", "invalid"].contains(&top) {
        return Err("server_address is a name that only this machine's own network knows.");
    }
    let is_example = |domain: &str| lower == *domain || lower.ends_with(&format!(".{domain}"));
    if lower == "game.minetest.net" || ["example.com", "example.net", "example.org"].into_iter().any(is_example) {
        return Err(
            "server_address is the example from the documentation. Leave it empty, or set it to a name of this machine.",
        );
    }
    Ok(Some(address.into()))
}

fn text(status: u16, body: impl Into<std::borrow::Cow<'static, str>>) -> PostAnswer {
    let body = body.into().into_owned() + "\n";
    PostAnswer::new(status, TEXT, body)
}

/// The paths `/list` and `/list.json`.
pub struct ListPage {
    /// Whether the list is enabled.
    pub is_on: bool,
    pub rows: Arc<dyn Renderer>,
}

impl RouteRule for ListPage {
    /// The client filters by itself: its parameters change nothing.
    fn get(&self, _peer: IpAddr, _query: &str) -> RouteAnswer {
        match self.is_on {
            true => RouteAnswer::List(self.rows.clone()),
            false => RouteAnswer::Refused { status: 404, text: OFF },
        }
    }
}

/// The path `/geoip`.
pub struct GeoPage {
    pub is_on: bool,
    pub places: Arc<dyn Places>,
}

impl RouteRule for GeoPage {
    fn get(&self, peer: IpAddr, _query: &str) -> RouteAnswer {
        if !self.is_on {
            return RouteAnswer::Refused { status: 404, text: OFF };
        }
        let continent = continent(&*self.places, peer);
        let body = serde_json::json!({ "continent": continent }).to_string() + "\n";
        RouteAnswer::Answer(PostAnswer::new(200, "application/json", body))
    }

    fn is_for_one(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;

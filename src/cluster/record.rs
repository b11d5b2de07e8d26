//! The format of the records in the store: one value per address, as JSON that is readable with `nats kv get`. No socket, no
//! clock.
//!
//! Keys are `v4.203-0-113-5.20737` and `v6.<32 hex digits>.20737`. A value has a version, the name of the node that put it,
//! the time, and either a listed server with its proof and the rest of its life, or a removal. Values are untrusted input:
//! they are bounded and cleaned again, and other versions are ignored.
//!
//! Times in a record are the store's. A node whose clock differs by more than [`SKEW_MAX_MS`] converts them.

use std::borrow::Cow;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use super::clock::{Offset, SKEW_MAX_MS};
use crate::model::{
    Address, Announce, Details, Facts, GAME_BYTES_MAX, Gone, HeartbeatKeys, Now, Origin, Player, Proof, RemoteServer,
    RemoteState, Silence, VersionText,
};
use crate::protocols::{bound_facts, card, game, game_named};
use crate::registry::merge::LocalState;
use crate::text;

/// The longest value. A longer one is put without its players and rules.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Room for a value without players and rules.
const VALUE_BYTES_USUAL: usize = 512;
/// The longest life that the configuration allows.
const LIFE_MS_MAX: u64 = 2 * 86_400_000;
const VERSION: u8 = 1;
const KEYS_MAX: usize = 64;
const PART_BYTES_MAX: usize = 1024;
/// Common team names, which are borrowed instead of copied.
const TEAMS: [&str; 3] = ["none", "red", "blue"];
const TEAM_BYTES_MAX: usize = 64;

/// A node's number, for [`super::share`].
pub fn node_id(name: &str) -> u32 {
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    hasher.finish() as u32
}

/// Breaks ties between proofs of the same millisecond, in the same way on every node. Never 0.
pub fn node_tag(name: &str) -> u8 {
    (node_id(name) as u8).max(1)
}

/// The key of an address in the store.
pub fn key(address: Address) -> String {
    match address.ip() {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            format!("v4.{a}-{b}-{c}-{d}.{}", address.port())
        }
        IpAddr::V6(ip) => format!("v6.{:032x}.{}", ip.to_bits(), address.port()),
    }
}

/// The address of a key, if it is a valid address of a server.
pub fn address(key: &str) -> Option<Address> {
    let (kind, rest) = key.split_once('.')?;
    let (ip, port) = rest.split_once('.')?;
    let ip: IpAddr = match kind {
        "v4" => ipv4(ip)?.into(),
        "v6" if ip.len() == 32 => Ipv6Addr::from_bits(u128::from_str_radix(ip, 16).ok()?).into(),
        _ => return None,
    };
    let address = Address::new(ip, port.parse().ok()?)?;
    (!address.ip().is_unspecified() && !address.ip().is_multicast()).then_some(address)
}

/// An IPv4 address with hyphens in the place of dots.
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut dotted = ArrayString::<15>::new();
    text.chars().try_for_each(|c| dotted.try_push(if c == '-' { '.' } else { c }).ok())?;
    dotted.parse().ok()
}

/// Why a value is not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    TooLong,
    /// Written by a later version of the program.
    Version(u8),
    /// A protocol that only a later version knows.
    Protocol,
    Malformed,
}

/// A value from the store. Times are the store's.
#[derive(Clone, Debug)]
pub struct Record {
    /// The name of the node that put it.
    pub by: String,
    pub put_ms: u64,
    remote: RemoteState<'static>,
}

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    v: u8,
    #[serde(borrow)]
    by: Cow<'a, str>,
    put: u64,
    #[serde(borrow, skip_serializing_if = "Option::is_none", default)]
    listed: Option<WireListed<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    gone: Option<WireGone>,
}

#[derive(Deserialize)]
struct WireVersion {
    v: u8,
}

#[derive(Serialize, Deserialize)]
struct WireGone {
    at: u64,
    quit: bool,
    /// Proofs of the game up to this time have ended; absent if equal to `at`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    game_at: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct WireListed<'a> {
    /// Absent in records of older nodes: it follows from the game's name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    protocol: Option<Cow<'a, str>>,
    #[serde(borrow)]
    game: Cow<'a, str>,
    #[serde(borrow)]
    proof: Cow<'a, str>,
    node: u8,
    at: u64,
    seen: u64,
    first: u64,
    left: u64,
    asked: bool,
    /// The master whose list named it. Older nodes ignore this.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    via: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    stronger_gone: Option<u64>,
    /// What follows from its silence. Older nodes ignore this.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    silence: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    rtt_us: Option<u32>,
    #[serde(borrow, skip_serializing_if = "str::is_empty", default)]
    name: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty", default)]
    mode: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty", default)]
    map: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "str::is_empty", default)]
    version: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    players: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    players_max: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    password: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    details: Option<WireDetails<'a>>,
    /// Each byte as the character with the same code (Latin-1): heartbeats are not always UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    keys: Option<Vec<(String, String)>>,
}

#[derive(Serialize, Deserialize)]
struct WireDetails<'a> {
    people: Vec<WirePlayer<'a>>,
    rules: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

#[derive(Serialize, Deserialize)]
struct WirePlayer<'a> {
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    team: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    spectator: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ping: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    score: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    points: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    kills: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    deaths: Option<i32>,
}

/// The value of a record that the node `by` puts at `put_ms`. `put_ms` and all timestamps are by this node's clock.
pub fn encode(by: &str, put_ms: u64, local: &LocalState, offset: Offset) -> Vec<u8> {
    let mut wire = Wire { v: VERSION, by: by.into(), put: offset.to_store(put_ms), listed: None, gone: None };
    match local {
        LocalState::Gone(gone) => {
            let game_at = match gone.game_at_ms {
                at_ms if at_ms == gone.at_ms => None,
                0 => Some(0),
                at_ms => Some(offset.to_store(at_ms)),
            };
            wire.gone = Some(WireGone { at: offset.to_store(gone.at_ms), quit: gone.quit, game_at });
        }
        LocalState::Listed { server, life_left_ms, asked, stronger_gone_ms } => {
            wire.listed = Some(WireListed {
                protocol: Some(server.game.protocol().into()),
                game: server.game.name().into(),
                proof: server.verified_by.name().into(),
                node: server.node,
                at: offset.to_store(server.proven_at_ms),
                seen: offset.to_store(server.last_seen_ms),
                first: offset.to_store(server.first_seen_ms),
                left: *life_left_ms,
                asked: *asked,
                via: server.via.as_ref().map(|via| via.name().into()),
                stronger_gone: stronger_gone_ms.map(|at_ms| offset.to_store(at_ms)),
                silence: server.silence().name().map(Cow::Borrowed),
                rtt_us: server.rtt_us.map(NonZeroU32::get),
                name: server.texts.name().into(),
                mode: server.texts.mode().into(),
                map: server.texts.map().into(),
                version: server.texts.version().into(),
                players: server.players_current,
                players_max: server.players_max,
                password: server.password,
                details: server.details.as_deref().map(wire_details),
                keys: server.keys.as_deref().map(wire_keys),
            });
        }
    }
    let mut bytes = json(&wire);
    if bytes.len() > VALUE_BYTES_MAX
        && let Some(listed) = &mut wire.listed
    {
        listed.details = None;
        bytes = json(&wire);
    }
    bytes
}

fn json(wire: &Wire<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(VALUE_BYTES_USUAL);
    match serde_json::to_writer(&mut bytes, wire) {
        Ok(()) => bytes,
        Err(_) => Vec::new(), // plain data and text keys: cannot fail
    }
}

/// How every value begins that this version of the program puts as the node `by`.
pub fn start_by(by: &str) -> Vec<u8> {
    let mut bytes = json(&Wire { v: VERSION, by: by.into(), put: 0, listed: None, gone: None });
    bytes.truncate(bytes.len().saturating_sub(b"0}".len()));
    bytes
}

fn wire_details(details: &Details) -> WireDetails<'_> {
    let people = details.players.iter().map(|player| WirePlayer {
        name: (&*player.name).into(),
        team: player.team.as_deref().map(Cow::Borrowed),
        spectator: player.spectator,
        ping: player.ping,
        score: player.score,
        points: player.points,
        kills: player.kills,
        deaths: player.deaths,
    });
    let rules = details.rules.iter().map(|(name, value)| (name.into(), value.into()));
    WireDetails { people: people.collect(), rules: rules.collect() }
}

fn wire_keys(keys: &HeartbeatKeys) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect();
    keys.0.iter().map(|(key, value)| (text(key), text(value))).collect()
}

/// Reads the value of an address.
pub fn decode(address: Address, value: &[u8]) -> Result<Record, RecordError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(RecordError::TooLong);
    }
    let wire = match serde_json::from_slice::<Wire<'_>>(value) {
        Ok(wire) if wire.v == VERSION => wire,
        _ => {
            let version = serde_json::from_slice::<WireVersion>(value).map(|wire| wire.v);
            return Err(match version {
                Ok(v) if v != VERSION => RecordError::Version(v),
                _ => RecordError::Malformed,
            });
        }
    };
    let remote = match (wire.listed, wire.gone) {
        (Some(listed), None) if listed.protocol.as_ref().is_some_and(|name| card(name).is_none()) => {
            return Err(RecordError::Protocol);
        }
        (Some(listed), None) => RemoteState::Listed(read_listed(address, listed).ok_or(RecordError::Malformed)?),
        (None, Some(WireGone { at, quit, game_at })) => {
            let game_at_ms = game_at.unwrap_or(at).min(at);
            RemoteState::Gone(Gone { address, at_ms: at, game_at_ms, quit, foreign: true })
        }
        _ => return Err(RecordError::Malformed),
    };
    Ok(Record { by: cleaned(&wire.by, 64).into_string(), put_ms: wire.put, remote })
}

fn read_listed(address: Address, wire: WireListed<'_>) -> Option<RemoteServer<'static>> {
    let name = cleaned(&wire.game, GAME_BYTES_MAX);
    let game = match &wire.protocol {
        Some(protocol) => game(protocol, &name)?,
        None => game_named(&name)?,
    };
    let fact = |text: &str| Cow::Owned(cleaned(text, PART_BYTES_MAX).into_string());
    let version: VersionText = text::version(wire.version.as_bytes());
    let mut facts = Facts {
        name: fact(&wire.name),
        mode: fact(&wire.mode),
        map: fact(&wire.map),
        version,
        players_current: wire.players,
        players_max: wire.players_max,
        password: wire.password,
        details: wire.details.map(|details| Arc::new(read_details(details))),
        ..Facts::default()
    };
    bound_facts(&game, &mut facts);
    Some(RemoteServer {
        node: wire.node,
        silence: wire.silence.as_deref().map(Silence::named).unwrap_or_default(),
        first_seen_ms: wire.first,
        last_seen_ms: wire.seen,
        stronger_gone_ms: wire.stronger_gone,
        via: wire.via.map(|name| Arc::new(Origin::new(&cleaned(&name, Origin::BYTES_MAX)))),
        announce: Announce {
            address,
            game,
            proof: Proof::named(&wire.proof)?,
            proven_at_ms: wire.at,
            life_ms: wire.left.min(LIFE_MS_MAX),
            asked: wire.asked,
            rtt_us: wire.rtt_us,
            keys: wire.keys.and_then(read_keys),
            facts,
        },
    })
}

fn read_details(wire: WireDetails<'_>) -> Details {
    let players = wire.people.into_iter().map(|player| Player {
        name: cleaned(&player.name, PART_BYTES_MAX),
        team: player.team.as_deref().and_then(read_team),
        spectator: player.spectator,
        ping: player.ping,
        score: player.score,
        points: player.points,
        kills: player.kills,
        deaths: player.deaths,
    });
    // A value is whole or left out: half a list of mods would be put back as if the server had said it.
    let rules = wire.rules.iter();
    let rules = rules.map(|(name, value)| (cleaned(name, PART_BYTES_MAX), cleaned(value, VALUE_BYTES_MAX)));
    Details { players: players.collect(), rules: rules.collect() }.bounded()
}

fn read_team(team: &str) -> Option<Cow<'static, str>> {
    if let Some(known) = TEAMS.into_iter().find(|known| *known == team) {
        return Some(Cow::Borrowed(known));
    }
    let team = cleaned(team, TEAM_BYTES_MAX).into_string();
    (!team.is_empty()).then_some(Cow::Owned(team))
}

/// None if it contains anything that cannot come from a heartbeat.
fn read_keys(wire: Vec<(String, String)>) -> Option<Arc<HeartbeatKeys>> {
    let bytes = |text: String| -> Option<Vec<u8>> {
        let all: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
        all.filter(|bytes| bytes.len() <= PART_BYTES_MAX)
    };
    let pairs = wire.into_iter().take(KEYS_MAX).map(|(key, value)| Some((bytes(key)?, bytes(value)?)));
    Some(Arc::new(HeartbeatKeys(pairs.collect::<Option<_>>()?)))
}

fn cleaned(text: &str, bytes_max: usize) -> Box<str> {
    let clean = text::clean(text.as_bytes());
    clean.get(..clean.floor_char_boundary(bytes_max)).unwrap_or_default().into()
}

impl Record {
    /// Converts the record to this node's time. `created_ms` is the store's timestamp of the record.
    ///
    /// If the node that put it was late (it, or its connection, stalled), its older timestamps hold, so that nothing expired
    /// is listed. If its clock was ahead of the store's by more than the tolerated skew, all timestamps are moved back by
    /// that amount, which is returned.
    pub fn into_local_time(self, created_ms: u64, offset: Offset, now: Now) -> (RemoteState<'static>, Option<u64>) {
        let ahead_ms = Some(self.put_ms.saturating_sub(created_ms)).filter(|ahead_ms| *ahead_ms > SKEW_MAX_MS);
        let here = |ms: u64| offset.to_here(ms.saturating_sub(ahead_ms.unwrap_or(0)));
        let mut remote = self.remote;
        match &mut remote {
            RemoteState::Gone(gone) => {
                gone.at_ms = here(gone.at_ms);
                gone.game_at_ms = if gone.game_at_ms == 0 { 0 } else { here(gone.game_at_ms) };
            }
            RemoteState::Listed(listed) => {
                listed.first_seen_ms = here(listed.first_seen_ms);
                listed.last_seen_ms = here(listed.last_seen_ms);
                listed.stronger_gone_ms = listed.stronger_gone_ms.map(here);
                let announce = &mut listed.announce;
                announce.proven_at_ms = here(announce.proven_at_ms);
                let since_put_ms = now.unix_ms.saturating_sub(here(self.put_ms));
                announce.life_ms = announce.life_ms.saturating_sub(since_put_ms);
            }
        }
        (remote, ahead_ms)
    }
}

#[cfg(test)]
mod tests;

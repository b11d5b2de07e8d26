//! Iceball: game servers announce themselves over UDP, prove their address with a cookie, and are listed over HTTP
//! on the same port number.

pub mod announce;
pub mod events;
pub mod fetch;
pub mod list;
pub mod serve;
pub mod settings;
pub mod wire;

use super::announce::AnnounceMethod;
use super::join::Join;
use super::{Card, Fetch, Games, Take, section};
use crate::model::Proof;
use wire::{Announcement, FromMaster, ToMaster, Version};

pub const NAME: &str = "iceball";

/// How long a proven server is listed without another handshake.
pub const LIFE_MS: u64 = 120_000;

pub const CARD: Card = Card {
    name: NAME,
    title: "Iceball",
    master_port: Some(27790),
    games: Games::One,
    section: section::defaults::<settings::Settings>,
    game_port: 20737,
    qstat_types: &[],
    proof: Proof::Cookie,
    announced: "over UDP port 27790",
    announce: AnnounceMethod::Datagrams {
        start: announce::start,
        help: "Iceball's; name, mode and map are cut to 30, 10, 30 bytes",
    },
    announce_every_ms: announce::BURST_EVERY_MS,
    life_ms: LIFE_MS,
    // CLIENT_MAX of the game's own server.
    players_most: 512,
    details_bytes_max: 512,
    fetch: Fetch::Http { path: "/master.json", read: fetch::read },
    query: None,
    answer: None,
    flavors: false,
    events: &events::ALL,
    pretend: announce::pretend,
    xml_attributes: &[],
    join: |server| Join::by(Some("iceball://{}"), Some("iceball -c iceball://{}"), server.address),
    decoders: &[
        ("to master", |bytes| ToMaster::parse(bytes).is_ok()),
        ("from master", |bytes| FromMaster::parse(bytes).is_ok()),
        ("list", |bytes| fetch::read(bytes, Take::ALL).is_ok()),
        ("announcement body", |bytes| Announcement::parse_body(bytes).is_some()),
    ],
    samples: || {
        let announcement = Announcement {
            version: Version(0x0080_8025),
            port: 20737,
            players_current: 3,
            players_max: 64,
            name: b"Loopback Test",
            mode: b"ctf",
            map: b"mesa.vxl",
        };
        let whole = announcement.emit(wire::HEARTBEAT_VERSION);
        let body = whole.get(wire::BODY..).unwrap_or_default().to_vec();
        vec![whole.to_vec(), b"MSOKcookie".to_vec(), fetch::EXAMPLE.into(), body]
    },
    round_trips: &[
        ("announcement", |bytes| {
            let Ok(ToMaster::Announce { heartbeat_version, whole, .. }) = ToMaster::parse(bytes) else { return None };
            let announcement = Announcement::parse_body(whole.get(wire::BODY..)?)?;
            let again = announcement.emit(heartbeat_version);
            let same_version = matches!(ToMaster::parse(&again), Ok(ToMaster::Announce { heartbeat_version: read, .. })
                if read == heartbeat_version);
            Some(same_version && Announcement::parse_body(again.get(wire::BODY..)?) == Some(announcement))
        }),
        ("from master", |bytes| {
            let message = FromMaster::parse(bytes).ok()?;
            let mut again = Vec::new();
            message.emit(&mut again);
            Some(FromMaster::parse(&again) == Ok(message))
        }),
    ],
};

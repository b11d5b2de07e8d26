//! The Quake III family: Quake III Arena, OpenArena, Xonotic, Nexuiz, Warsow, Tremulous, Enemy Territory and others whose
//! masters speak dpmaster's protocol. Game servers announce themselves over UDP, prove their address by answering
//! `getinfo` with a challenge, and are listed over UDP, by game and protocol number.

pub mod announce;
pub mod answer;
pub mod challenge;
pub mod events;
pub mod fetch;
pub mod info;
pub mod list;
pub mod packets;
pub mod query;
pub mod serve;
pub mod settings;
pub mod tags;
pub mod wire;

use super::announce::AnnounceMethod;
use super::fetch::Fetch;
use super::{Card, Games, section};
use crate::model::Proof;

pub const NAME: &str = "quake3";

/// How long a proven server is listed without another handshake, as on dpmaster.
pub const LIFE_MS: u64 = 900_000;

/// What dpmaster reads of a datagram.
const DATAGRAM_BYTES_MAX: usize = 2048;
/// The most that any engine of the family takes: DarkPlaces' MAX_SCOREBOARD.
const PLAYERS_MOST: u16 = 255;

pub const CARD: Card = Card {
    name: NAME,
    title: "Quake III",
    master_port: Some(27950),
    games: Games::Family,
    section: section::defaults::<settings::Settings>,
    game_port: 27960,
    qstat_types: &[
        "Q3S",
        "IOURTS",
        "NEXUIZS",
        "OPENARENAS",
        "RWS",
        "TREMULOUSS",
        "TREMULOUSGPPS",
        "UNVANQUISHEDS",
        "WARSOWS",
        "WOETS",
        "WOPS",
        "XONOTICS",
    ],
    proof: Proof::Query,
    announced: "over UDP port 27950",
    announce: AnnounceMethod::OwnPort { advice: announce::ADVICE, heartbeat: announce::heartbeat },
    announce_every_ms: announce::EVERY_MS,
    life_ms: LIFE_MS,
    players_most: PLAYERS_MOST,
    details_bytes_max: 8 << 10,
    fetch: Fetch::Datagrams(&fetch::ListFetch),
    query: Some(&query::GameQuery),
    answer: Some(answer::answer),
    flavors: false,
    events: &events::ALL,
    pretend: answer::pretend,
    xml_attributes: &[],
    join: info::join,
    decoders: &[
        ("to master", |bytes| wire::ToMaster::parse(bytes).is_ok()),
        ("list request", |bytes| matches!(wire::ToMaster::parse(bytes), Ok(wire::ToMaster::List(_)))),
        ("info", |bytes| matches!(wire::FromGame::parse(bytes), Ok(wire::FromGame::Info(info)) if is_listable(&info))),
        ("status", |bytes| match wire::StatusResponse::parse(bytes) {
            Ok(status) => status.info.index().count(b"sv_maxclients").is_some(),
            Err(_) => false,
        }),
        ("to game", |bytes| wire::ToGame::parse(bytes).is_ok()),
        ("list packet", |bytes| packets::decode(bytes).is_some()),
    ],
    samples: || {
        let framed = |text: &str| [&wire::HEADER[..], text.as_bytes()].concat();
        vec![
            framed("heartbeat QuakeArena-1\n"),
            framed("getserversExt Quake3Arena 71 empty full ipv6 gametype=4"),
            framed(concat!(
                "infoResponse\n",
                r"\voip\opus\g_needpass\0\pure\1\gametype\0\sv_maxclients\8\g_humanplayers\0\clients\0\mapname\oa_dm1\",
                r"hostname\Loopback ^1OA\protocol\71\gamename\Quake3Arena\challenge\A_ch4Lleng3",
            )),
            framed(concat!(
                "statusResponse\n",
                r"\gamename\Xonotic\modname\data\gameversion\806\sv_maxclients\16\clients\2\bots\1\mapname\stormkeep\",
                r"hostname\^x0f0X\protocol\3\qcstatus\ctf:0.8.6:P1:S2\challenge\0badcafe\d0_blind_id\1 x@y",
                "\n5 64 5 \"^1Bob\"\nlong 0 14 \"[BOT]Ann\"\n",
            )),
            framed("getstatus 0badcafe"),
            packets::encode(true, ["203.0.113.5:27960", "[2001:db8::1]:27961"].iter().flat_map(|at| at.parse()), 9)
                .concat(),
        ]
    },
    round_trips: &[
        ("list request", |bytes| {
            let Ok(wire::ToMaster::List(request)) = wire::ToMaster::parse(bytes) else { return None };
            let mut again = Vec::new();
            request.emit(&mut again);
            Some(wire::ToMaster::parse(&again) == Ok(wire::ToMaster::List(request)))
        }),
        ("to game", |bytes| {
            let question = wire::ToGame::parse(bytes).ok()?;
            let (command, challenge) = match question {
                wire::ToGame::Info { challenge } => ("getinfo", challenge),
                wire::ToGame::Status { challenge } => ("getstatus", challenge),
            };
            let mut again = Vec::new();
            wire::ask(command, challenge, &mut again);
            Some(wire::ToGame::parse(&again) == Ok(question))
        }),
        ("list packet", |bytes| {
            let servers = packets::decode(bytes)?.servers;
            let again = packets::encode(true, servers.iter().copied(), usize::MAX);
            let read: Vec<_> = again.iter().filter_map(|packet| packets::decode(packet)).collect();
            let is_ended = read.iter().rev().map(|packet| packet.end).eq((0..read.len()).map(|number| number == 0));
            Some(is_ended && read.into_iter().flat_map(|packet| packet.servers).eq(servers))
        }),
    ],
};

fn is_listable(info: &wire::InfoString<'_>) -> bool {
    let info = &info.index();
    let facts = info::facts(info, true);
    info::Listing::of(info).is_ok() && facts.players_max.is_some()
}

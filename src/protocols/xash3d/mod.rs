//! Xash3D, the free engine for Half-Life, Counter-Strike 1.6 and their relatives. Game servers announce themselves over UDP,
//! prove their address by returning a challenge, and are listed over UDP, by the folder of their game (gamedir). All of them
//! are one game here.

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
pub mod wire;

use super::announce::AnnounceMethod;
use super::fetch::Fetch;
use super::{Card, Games, section};
use crate::model::Proof;

pub const NAME: &str = "xash3d";

/// How long a server is listed without another announcement. xash3d-master's five minutes are no more than the engine's own
/// interval, so that every lost datagram would show.
pub const LIFE_MS: u64 = 900_000;
/// The same behind NAT, where servers announce themselves every minute and cannot be queried.
pub const NAT_LIFE_MS: u64 = 300_000;

/// What xash3d-master reads of a datagram.
const DATAGRAM_BYTES_MAX: usize = 2048;
/// Counts are bytes on the wire.
const PLAYERS_MOST: u16 = 255;

pub const CARD: Card = Card {
    name: NAME,
    title: "Xash3D",
    master_port: Some(27010),
    games: Games::One,
    section: section::defaults::<settings::Settings>,
    game_port: 27015,
    qstat_types: &[],
    proof: Proof::Cookie,
    announced: "over UDP port 27010",
    announce: AnnounceMethod::OwnPort { advice: announce::ADVICE, heartbeat: announce::heartbeat },
    announce_every_ms: announce::EVERY_MS,
    life_ms: LIFE_MS,
    players_most: PLAYERS_MOST,
    details_bytes_max: 6 << 10,
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
        ("add", |bytes| matches!(wire::ToMaster::parse(bytes), Ok(wire::ToMaster::Add(add)) if is_listable(&add))),
        ("list request", |bytes| matches!(wire::ToMaster::parse(bytes), Ok(wire::ToMaster::Query(_)))),
        ("challenge", |bytes| wire::challenge_answer(bytes).is_some()),
        ("info", |bytes| wire::Info::parse(bytes).is_ok_and(|info| info::answered(&info).players_max.is_some())),
        ("list packet", |bytes| packets::decode(bytes, SAMPLE_KEY).is_some()),
    ],
    samples: || {
        let framed = |text: &[u8]| [&wire::HEADER[..], text].concat();
        let servers = ["203.0.113.5:27015", "203.0.113.6:27016"];
        let list = packets::encode(false, servers.iter().flat_map(|at| at.parse()), 9).concat();
        vec![
            b"q\xff\x78\x56\x34\x12".to_vec(),
            concat!(
                "0\n",
                r"\protocol\49\challenge\1336704556\players\0\max\8\gamedir\valve\map\crossfire\type\d\os\l\version\0.21\",
                r"region\255\bots\0\password\0\secure\0\lan\0\nat\0",
                "\n",
            )
            .into(),
            b"1\xff0.0.0.0:0\0\\gamedir\\valve\\nat\\0\\clver\\0.21\\key\\deadbeef\\buildnum\\5000\0".to_vec(),
            framed(b"s\n\xe9\x01\x7f\xe9\x78\x56\x34\x12"),
            framed(
                b"info\n\\p\\49\\map\\crossfire\\dm\\1\\team\\0\\coop\\0\\numcl\\1\\maxcl\\8\\gamedir\\solo\\password\\0\\dedicated\\1\\host\\Loop X",
            ),
            list,
        ]
    },
    round_trips: &[
        ("list request", |bytes| {
            let Ok(wire::ToMaster::Query(wanted)) = wire::ToMaster::parse(bytes) else { return None };
            let mut again = Vec::new();
            wanted.emit(&mut again);
            Some(wire::ToMaster::parse(&again) == Ok(wire::ToMaster::Query(wanted)))
        }),
        ("info", |bytes| {
            let info = wire::Info::parse(bytes).ok()?;
            let mut again = Vec::new();
            info.emit(&mut again);
            Some(wire::Info::parse(&again) == Ok(info))
        }),
        ("list packet", |bytes| {
            let servers = packets::decode(bytes, SAMPLE_KEY)?.servers;
            let is_ipv6 = servers.first().is_some_and(|server| server.ipv4().is_none());
            let again = packets::encode(is_ipv6, servers.iter().copied(), usize::MAX);
            let read = again.iter().filter_map(|packet| packets::decode(packet, SAMPLE_KEY));
            Some(read.flat_map(|packet| packet.servers).eq(servers))
        }),
    ],
};

const SAMPLE_KEY: u32 = 0xdead_beef;

fn is_listable(add: &wire::Add<'_>) -> bool {
    info::announced(add).players_max.is_some()
}

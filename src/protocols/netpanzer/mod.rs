//! netPanzer: a general TCP protocol for announcements of any game, for lists, and for networks of masters. Its own game is
//! queried over UDP.

pub mod announce;
pub mod answer;
pub mod fetch;
pub mod list;
pub mod network;
pub mod query;
pub mod serve;
pub mod settings;
pub mod wire;

use super::announce::AnnounceMethod;
use super::join::Join;
use super::{Card, Fetch, Games, section};
use crate::model::Proof;

pub const NAME: &str = "netpanzer";

/// How long a server is listed without another heartbeat. The game sends one every 300 s.
pub const LIFE_MS: u64 = 720_000;

pub const CARD: Card = Card {
    name: NAME,
    title: "netPanzer",
    master_port: Some(28900),
    games: Games::Any,
    section: section::defaults::<settings::Settings>,
    game_port: 3030,
    qstat_types: &["NETP"],
    proof: Proof::Query,
    announced: "by a heartbeat or through the API",
    announce: AnnounceMethod::Stream {
        rules: &announce::Heartbeats,
        help: "netPanzer's; they take any game, and get a quit at the end",
    },
    announce_every_ms: announce::EVERY_MS,
    life_ms: LIFE_MS,
    // A player's number is one byte, and 255 means none.
    players_most: 255,
    details_bytes_max: 4 << 10,
    fetch: Fetch::Stream(&fetch::ListFetch),
    query: Some(&query::GameQuery),
    answer: Some(answer::answer),
    flavors: false,
    events: &[],
    pretend: answer::pretend,
    xml_attributes: &[],
    join: |server| Join::by(None, Some("netpanzer --connect={}"), server.address),
    decoders: &[
        ("request", |bytes| matches!(wire::RequestReader::default().read(bytes).1, Some(Ok(_)))),
        ("list", |bytes| wire::parse_list(bytes).is_ok()),
        ("heartbeat answer", |bytes| announce::parse_answer(bytes).is_some()),
        ("status", |bytes| wire::Status::parse(bytes).is_ok()),
    ],
    samples: || {
        vec![
            br"\heartbeat\gamename\netpanzer\port\3030\protocol\1122\final\".to_vec(),
            br"\ip\203.0.113.5\port\3030\ip\203.0.113.6\port\3031\final\".to_vec(),
            br"\error\no port specified\final\".to_vec(),
            concat!(
                r"gamename\netpanzer\protocol\1122\hostname\A server\gameversion\0.8.7\mapname\Two clans\",
                r"mapcycle\Two clans, Bullet Hole\password\n\numplayers\1\maxplayers\8\gamestyle\Objective\",
                r"units_per_player\36\time\0\timelimit\30\fraglimit\300\objectivelimit\7\",
                r"player_0\Player113\kills_0\1\deaths_0\2\score_0\3\points_0\4\flag_0\0\flagu_0\2\final\",
            )
            .into(),
        ]
    },
    round_trips: &[
        ("request", |bytes| {
            let request = wire::RequestReader::default().read(bytes).1?.ok()?;
            Some(wire::RequestReader::default().read(&request.emit()).1 == Some(Ok(request)))
        }),
        ("list", |bytes| {
            let servers = wire::parse_list(bytes).ok()?;
            let mut again = Vec::new();
            servers.iter().filter_map(|at| Some((at.ipv4()?, at.port()))).for_each(|(ip, port)| {
                wire::emit_server(ip, port, &mut again);
            });
            again.extend(br"\final\");
            Some(wire::parse_list(&again) == Ok(servers))
        }),
        ("status", |bytes| {
            // Nothing before the first separator is nothing at all, not an empty key.
            let status =
                wire::Status::parse(bytes).ok().filter(|status| !status.pairs.iter().any(|(key, _)| key.is_empty()))?;
            Some(wire::Status::parse(&status.emit()) == Ok(status))
        }),
    ],
};

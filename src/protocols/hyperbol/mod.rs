//! Hyperbol: game clients get the list from the master over TCP and query each listed server over UDP. Only the master
//! decides which servers are official.

pub mod answer;
pub mod fetch;
pub mod query;
pub mod serve;
pub mod settings;
pub mod wire;

use std::net::Ipv4Addr;

use super::announce::AnnounceMethod;
use super::{Card, Fetch, Games, join, section};
use crate::model::Proof;
use wire::{Greeting, Info, ListRecord, ListRequest, Query};

pub const NAME: &str = "hyperbol";

/// It is not documented how the game's servers announced themselves. Rallypoint accepts netPanzer's heartbeat, with the same
/// times.
const ANNOUNCE_EVERY_MS: u64 = 300_000;
const LIFE_MS: u64 = 720_000;

pub const CARD: Card = Card {
    name: NAME,
    title: "Hyperbol",
    master_port: Some(20203),
    games: Games::One,
    section: section::defaults::<settings::Settings>,
    game_port: 20200,
    qstat_types: &[],
    proof: Proof::Query,
    announced: "by a heartbeat or through the API",
    announce: AnnounceMethod::None,
    announce_every_ms: ANNOUNCE_EVERY_MS,
    life_ms: LIFE_MS,
    players_most: u8::MAX as u16,
    details_bytes_max: 4 << 10,
    fetch: Fetch::Stream(&fetch::ListFetch),
    query: Some(&query::GameQuery),
    answer: Some(answer::answer),
    flavors: true,
    events: &[],
    pretend: answer::pretend,
    xml_attributes: &[("skill", |facts| Some(wire::skill_number(facts.rule("skill")?)?.to_string()))],
    join: join::in_the_game,
    decoders: &[
        ("greeting", |bytes| Greeting::parse(bytes).is_ok()),
        ("list request", |bytes| ListRequest::parse(bytes).is_ok()),
        ("list", |bytes| wire::parse_list(bytes).is_ok_and(|records| records.filter(Result::is_err).count() == 0)),
        ("query", |bytes| Query::parse(bytes).is_ok()),
        ("info", |bytes| Info::parse(bytes).is_ok()),
    ],
    samples: || {
        let key = 0x1bad_b002;
        let addresses = ["76.168.185.136:12133", "76.168.185.136:12129", "203.0.113.77:65535"];
        let addresses = addresses.into_iter().filter_map(|text| text.parse().ok());
        let list = addresses.zip([0, 1, 7]).filter_map(|(address, flavor)| ListRecord::new(address, flavor).ok());
        vec![
            Greeting { key, players_total: 37 }.emit().to_vec(),
            ListRequest { key, filter: wire::EVERYTHING }.emit().to_vec(),
            list.flat_map(|record| record.emit()).collect(),
            Query { echo: EXAMPLE.echo }.emit().to_vec(),
            EXAMPLE.emit().to_vec(),
        ]
    },
    round_trips: &[
        ("greeting", |bytes| Greeting::parse(bytes).ok().map(|read| Greeting::parse(&read.emit()) == Ok(read))),
        ("list request", |bytes| {
            ListRequest::parse(bytes).ok().map(|read| ListRequest::parse(&read.emit()) == Ok(read))
        }),
        ("list", |bytes| {
            let records: Vec<ListRecord> = wire::parse_list(bytes).ok()?.filter_map(Result::ok).collect();
            let again: Vec<u8> = records.iter().flat_map(ListRecord::emit).collect();
            Some(wire::parse_list(&again).is_ok_and(|read| read.eq(records.iter().copied().map(Ok))))
        }),
        ("query", |bytes| Query::parse(bytes).ok().map(|read| Query::parse(&read.emit()) == Ok(read))),
        ("info", |bytes| {
            // A text without an end is cut by a byte when it is written.
            let written = Info::parse(bytes).ok()?.emit();
            Some(Info::parse(&written).is_ok_and(|read| read.emit() == written))
        }),
    ],
};

/// A game server's answer, for samples and tests.
const EXAMPLE: Info<'static> = Info {
    echo: 0x1234_5678,
    name: b"Veks California DM",
    game_type: b"Deathmatch",
    players_current: 3,
    players_max: 8,
    map: b"a_doommkii.hba",
    host: b"76.168.185.136",
    host_port: 12133,
    flags: 0,
    internal_ip: Ipv4Addr::new(192, 168, 0, 10),
    version: b"1.08b",
    factions: [1, 2, 0],
    skill: 4,
};

//! Bloodmasters: game servers announce themselves with a GET of a web page, which returns the ban list to them and the
//! server list to launchers. Launchers query each server over UDP.

pub mod announce;
pub mod answer;
pub mod fetch;
pub mod list;
pub mod query;
pub mod serve;
pub mod settings;
pub mod wire;

use super::announce::AnnounceMethod;
use super::{Card, Fetch, Games, join, section};
use crate::model::Proof;
use wire::{Client, Details, Query, Reply};

pub const NAME: &str = "bloodmasters";

/// The list's path on the original master.
pub const LIST_PATH: &str = "/bloodmasterslist.php";

pub const CARD: Card = Card {
    name: NAME,
    title: "Bloodmasters",
    master_port: None,
    games: Games::One,
    section: section::defaults::<settings::Settings>,
    game_port: 6969,
    qstat_types: &[],
    proof: Proof::Query,
    announced: "by a heartbeat or through the API",
    announce: AnnounceMethod::Http(announce::ANNOUNCE),
    announce_every_ms: announce::EVERY_MS,
    life_ms: serve::LIFE_MS,
    players_most: u8::MAX as u16,
    details_bytes_max: 8 << 10,
    fetch: Fetch::Http { path: LIST_PATH, read: fetch::read },
    query: Some(&query::GameQuery),
    answer: Some(answer::answer),
    flavors: false,
    events: &[],
    pretend: answer::pretend,
    xml_attributes: &[],
    join: join::in_the_game,
    decoders: &[
        ("query", |bytes| wire::parse_queries(bytes).filter(Result::is_ok).count() > 0),
        ("reply", |bytes| Reply::parse(bytes).is_ok()),
        ("list", |bytes| list::parse_servers(bytes).filter(Result::is_err).count() == 0),
        ("ban list", |bytes| list::parse_bans(bytes).filter(Result::is_err).count() == 0),
    ],
    samples: || {
        let reply = example(28);
        vec![
            Query { echo: reply.echo }.emit().to_vec(),
            reply.emit().unwrap_or_default(),
            b"203.0.113.5:6969\r\n203.0.113.6:6970\r\n".to_vec(),
            b"198.51.100.7\n192.0.2.*\n".to_vec(),
        ]
    },
    round_trips: &[
        ("query", |bytes| {
            let query = wire::parse_queries(bytes).find_map(Result::ok)?;
            Some(wire::parse_queries(&query.emit()).eq([Ok(query)]))
        }),
        ("reply", |bytes| {
            let reply = Reply::parse(bytes).ok()?;
            // What is longer than a datagram cannot come from one.
            let again = reply.emit().ok()?;
            Some(Reply::parse(&again) == Ok(reply))
        }),
        ("list", |bytes| {
            let servers: Vec<_> = list::parse_servers(bytes).filter_map(Result::ok).collect();
            let again = list::emit_servers(servers.iter().copied());
            Some(list::parse_servers(again.as_bytes()).eq(servers.into_iter().map(Ok)))
        }),
        ("ban list", |bytes| {
            let bans: Vec<_> = list::parse_bans(bytes).filter_map(Result::ok).collect();
            let again: String = bans.iter().map(|ban| format!("{ban}\n")).collect();
            Some(list::parse_bans(again.as_bytes()).eq(bans.into_iter().map(Ok)))
        }),
    ],
};

/// The original server's answer in a version of the protocol, for samples and tests.
fn example(protocol: u8) -> Reply<'static> {
    let details = Details {
        score_limit: 20,
        time_limit: 30,
        join_smallest: false,
        clients: vec![
            Client { name: b"Alice", team: 1, spectator: false, ping: 64 },
            Client { name: b"B?b", team: 2, spectator: false, ping: 304 },
        ],
        build: (protocol >= wire::BUILD_SINCE).then_some(b"Linux Dedicated Server version 1.3.100.7"),
    };
    Reply {
        echo: 0x1122_3344,
        title: b"Loopback \"Arena\"",
        locked: true,
        website: b"http://www.example.org/",
        clients_max: 10,
        players_max: 8,
        game_type: 2,
        map: b"mayanctf",
        clients_current: 2,
        players_current: 2,
        protocol,
        details: (protocol >= wire::DETAILS_SINCE).then_some(details),
    }
}

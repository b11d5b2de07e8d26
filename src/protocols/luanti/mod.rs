//! Luanti (Minetest): game servers post what they say of themselves to a web server, which probes the game over UDP and lists
//! it as JSON.

pub mod announce;
pub mod answer;
pub mod fetch;
pub mod form;
pub mod list;
pub mod query;
pub mod serve;
pub mod settings;
pub mod wire;

use super::announce::AnnounceMethod;
use super::{Card, Fetch, Games, Take, section};
use crate::model::Proof;

pub const NAME: &str = "luanti";

/// The list's path, as the game's own programs make it of their setting `serverlist_url`.
pub const LIST_PATH: &str = "/list";
pub const ANNOUNCE_PATH: &str = "/announce";

pub const CARD: Card = Card {
    name: NAME,
    title: "Luanti",
    master_port: None,
    games: Games::One,
    section: section::defaults::<settings::Settings>,
    game_port: 30_000,
    qstat_types: &[],
    proof: Proof::Query,
    announced: "with POST /announce, by a heartbeat or through the API",
    announce: AnnounceMethod::Http(announce::ANNOUNCE),
    announce_every_ms: announce::EVERY_MS,
    life_ms: serve::LIFE_MS,
    // More than any real one has.
    players_most: 10_000,
    details_bytes_max: 12 << 10,
    fetch: Fetch::Http { path: LIST_PATH, read: fetch::read },
    query: Some(&query::GameQuery),
    answer: Some(answer::answer),
    flavors: false,
    events: &[],
    pretend: answer::pretend,
    xml_attributes: &[],
    join: list::join,
    decoders: &[
        ("probe", |bytes| wire::is_probe(bytes)),
        ("answer", |bytes| wire::given_id(bytes).is_some()),
        ("form", |bytes| form::json(Some(form::EXAMPLE_TYPE), bytes).is_some()),
        ("announcement", |bytes| announce::Announcement::parse(bytes).is_ok()),
        ("list", |bytes| fetch::read(bytes, Take::ALL).is_ok()),
    ],
    samples: || {
        vec![
            wire::PROBE.to_vec(),
            wire::answer(2).to_vec(),
            form::EXAMPLE.into(),
            announce::EXAMPLE.into(),
            fetch::EXAMPLE.into(),
        ]
    },
    round_trips: &[
        ("answer", |bytes| {
            let id = wire::given_id(bytes)?;
            Some(wire::given_id(&wire::answer(id)) == Some(id))
        }),
        ("announcement", |bytes| {
            let announcement = announce::Announcement::parse(bytes).ok()?;
            let again = announcement.emit();
            Some(announce::Announcement::parse(again.as_bytes()).as_ref() == Ok(&announcement))
        }),
    ],
};

//! DDNet and Teeworlds: game servers register over HTTP, prove their port by a challenge that is sent there over UDP, and are
//! listed over HTTP, with everything that they say of themselves.

pub mod announce;
pub mod answer;
pub mod fetch;
pub mod info;
pub mod list;
pub mod query;
pub mod record;
pub mod register;
pub mod serve;
pub mod settings;
#[cfg(test)]
pub mod testing;
pub mod token;
pub mod wire;

use super::announce::AnnounceMethod;
use super::join::Join;
use super::{Card, Fetch, Games, Take, section};
use crate::model::Proof;
use info::Info;
use wire::{Answer, Version};

pub const NAME: &str = "ddnet";

/// The paths of the original master.
pub const REGISTER_PATH: &str = "/ddnet/15/register";
pub const LIST_PATH: &str = "/ddnet/15/servers.json";

/// The original game's interval.
const EVERY_MS: u64 = 15_000;
/// Long enough that a lost request does not end it.
pub const LIFE_MS: u64 = 45_000;
/// MAX_CLIENTS of the game's own server, and of those that clients know.
const PLAYERS_MOST: u16 = 128;

pub const CARD: Card = Card {
    name: NAME,
    title: "DDNet",
    master_port: None,
    games: Games::One,
    section: section::defaults::<settings::Settings>,
    game_port: 8303,
    qstat_types: &[],
    proof: Proof::Cookie,
    announced: "over HTTP (set sv_register_url in the game)",
    announce: AnnounceMethod::Challenged(announce::ANNOUNCE),
    announce_every_ms: EVERY_MS,
    life_ms: LIFE_MS,
    players_most: PLAYERS_MOST,
    details_bytes_max: 8 << 10,
    fetch: Fetch::Http { path: LIST_PATH, read: fetch::read },
    query: Some(&query::GameQuery),
    answer: Some(answer::answer),
    flavors: false,
    events: &[],
    pretend: answer::pretend,
    xml_attributes: &[],
    join: |server| Join::by(Some("ddnet://{}"), Some("DDNet \"connect {}\""), server.address),
    decoders: &[
        ("info", |bytes| Info::parse(bytes).and_then(Info::kept).is_ok()),
        ("list", |bytes| fetch::read(bytes, Take::ALL).is_ok_and(|list| list.left_out == 0)),
        ("challenge", |bytes| wire::read_challenge(Version::V6, bytes).is_some()),
        ("challenge of 0.7", |bytes| wire::read_challenge(Version::V7, bytes).is_some()),
        ("question", |bytes| wire::read_question(bytes).is_some()),
        ("answer", |bytes| Answer::parse(bytes).is_ok()),
    ],
    samples: || {
        let challenge = wire::Challenge { secret: "9eab27de:tw0.6/ipv4", connless_token: [0xdd, 0x3f, 0x95, 0x63] };
        let mut question = Vec::new();
        wire::ask(0x00ab_cdef, &mut question);
        let facts = answer::pretend(5);
        let answers = "203.0.113.5:8303".parse().map(|at| answer::answer(&facts, at, &question)).unwrap_or_default();
        vec![
            EXAMPLE_INFO.into(),
            format!(
                "{{\"servers\":[{{\"addresses\":[\"tw-0.6+udp://203.0.113.5:8303\",\"tw-0.7+udp://203.0.113.5:8303\"],\
                 \"location\":\"eu:de\",\"info\":{EXAMPLE_INFO}}}]}}"
            )
            .into_bytes(),
            challenge.emit(Version::V6, b"tok-tw-0.6+udp"),
            challenge.emit(Version::V7, b"tok-tw-0.7+udp"),
            question,
            answers.concat(),
        ]
    },
    round_trips: &[
        ("info", |bytes| {
            let info = Info::parse(bytes).ok()?;
            let kept = info.clone().kept().ok()?;
            let again = Info::parse(kept.as_bytes()).ok()?;
            Some(again.facts() == info.facts() && again.kept().as_ref() == Ok(&kept))
        }),
        ("question", |bytes| {
            let token = wire::read_question(bytes)?;
            let mut again = Vec::new();
            wire::ask(token, &mut again);
            Some(wire::read_question(&again) == Some(token))
        }),
        ("answer", |bytes| {
            let Ok(Answer::Info(info)) = Answer::parse(bytes) else { return None };
            Some(Answer::parse(&info.emit()) == Ok(Answer::Info(info)))
        }),
    ],
};

/// The info of a server with two clients.
const EXAMPLE_INFO: &str = concat!(
    r#"{"max_clients":64,"max_players":63,"passworded":false,"game_type":"DDraceNetwork","name":"Loopback DD","#,
    r#""map":{"name":"Tutorial","sha256":"0dafbba301084aebbf439575e36a44bfb65a4f15e606e9eec3814e2e0e28d953","#,
    r#""size":1082711},"version":"0.6.4, 18.0","client_score_kind":"time","requires_login":false,"clients":["#,
    r#"{"name":"Alice","clan":"A","country":276,"score":-9999,"is_player":true,"skin":{"name":"default","#,
    r#""color_body":7,"color_feet":8},"afk":false,"team":0},"#,
    r#"{"name":"Bob","clan":"","country":-1,"score":63,"is_player":false}]}"#,
);

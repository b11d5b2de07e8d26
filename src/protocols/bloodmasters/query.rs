//! Queries a Bloodmasters server: 7 bytes, answered with 100 to 300 bytes that echo the nonce.

use std::sync::Arc;

use super::wire::{self, Reply};
use crate::model::{self, Facts, GameRules, Player, VersionText};
use crate::protocols::{Ask, Fault, Heard, Query, Question, fault};
use crate::text;

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, _ask: Ask, nonce: u32, question: &mut Question) {
        question.extend(wire::Query { echo: nonce }.emit());
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        let reply = Reply::parse(bytes).map_err(fault)?;
        Ok(Heard::Whole { nonce: reply.echo, facts: facts(&reply) })
    }
}

fn facts<'a>(reply: &Reply<'a>) -> Facts<'a> {
    let mut rules = GameRules::new();
    let mut rule = |name: &str, value: String| rules.push(name, &value);
    let website = text::clean(reply.website);
    if !website.is_empty() {
        rule("website", website.into_owned());
    }
    rule("clients", reply.clients_current.to_string());
    rule("clients_max", reply.clients_max.to_string());
    rule("protocol", reply.protocol.to_string());
    let mut players = Vec::new();
    let mut version = VersionText::new();
    if let Some(details) = &reply.details {
        rule("score_limit", details.score_limit.to_string());
        rule("time_limit", details.time_limit.to_string());
        rule("join_smallest", details.join_smallest.to_string());
        if let Some(build) = details.build {
            let build = text::clean(build);
            // "Linux Dedicated Server version 1.3.100.7"
            let number = build.rsplit_once("version ").map(|(_, number)| number);
            version = text::version(number.unwrap_or_default().as_bytes());
            rule("build", build.into_owned());
        }
        players.extend(details.clients.iter().map(|client| Player {
            name: text::clean(client.name).into(),
            team: wire::team_name(client.team).map(Into::into),
            spectator: Some(client.spectator),
            ping: Some(client.ping.into()),
            ..Player::default()
        }));
    }
    let mode = wire::game_type_name(reply.game_type);
    Facts {
        name: text::clean(reply.title),
        mode: mode.map_or_else(|| reply.game_type.to_string().into(), Into::into),
        map: text::clean(reply.map),
        version,
        players_current: Some(reply.players_current.into()),
        players_max: Some(reply.players_max.into()),
        password: Some(reply.locked),
        details: Some(Arc::new(model::Details { players, rules }.bounded())),
        ..Facts::default()
    }
}

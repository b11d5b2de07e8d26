//! Queries a Hyperbol server: 5 bytes, answered with 229 bytes that echo the nonce.

use std::sync::Arc;

use super::wire::{self, Info};
use crate::model::{Details, Facts, GameRules};
use crate::protocols::{Ask, Fault, Heard, Query, Question, fault};
use crate::text;

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, _ask: Ask, nonce: u32, question: &mut Question) {
        question.extend(wire::Query { echo: nonce }.emit());
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        let info = Info::parse(bytes).map_err(fault)?;
        Ok(Heard::Whole { nonce: info.echo, facts: facts(&info) })
    }
}

fn facts<'a>(info: &Info<'a>) -> Facts<'a> {
    let mut rules = GameRules::from([("skill", &*named(info.skill.into(), wire::skill_name(info.skill)))]);
    for (place, players) in info.factions.into_iter().enumerate() {
        let faction = wire::faction_name(place).unwrap_or("unknown");
        rules.push(&format!("players_{faction}"), &players.to_string());
    }
    if info.flags != 0 {
        rules.push("flags", &format!("{:#010x}", info.flags));
    }
    Facts {
        name: text::clean(info.name),
        mode: text::clean(info.game_type),
        map: text::clean(info.map),
        version: text::version(info.version),
        players_current: Some(info.players_current.into()),
        players_max: Some(info.players_max.into()),
        details: Some(Arc::new(Details { players: Vec::new(), rules })),
        ..Facts::default()
    }
}

/// The name, or the number if it has no known name.
fn named(number: u32, name: Option<&str>) -> Box<str> {
    name.map_or_else(|| number.to_string().into(), Into::into)
}

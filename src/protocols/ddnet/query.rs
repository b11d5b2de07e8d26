//! Queries a server over its own protocol, in the extended form of 0.6: 15 bytes, answered with up to 1,400 bytes. A full server
//! sends the rest of its clients in more packets, which are not waited for: the first says how many there are.

use std::sync::Arc;

use super::NAME;
use super::wire::{self, Answer, ServerInfo};
use crate::model::{Details, Facts, Game, GameRules, Player};
use crate::protocols::{Ask, Fault, Heard, Query, Question, bound_facts, fault};
use crate::text;

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, _ask: Ask, nonce: u32, question: &mut Question) {
        wire::ask(nonce, question);
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        match Answer::parse(bytes).map_err(fault)? {
            Answer::Info(info) => Ok(Heard::Whole { nonce: info.token, facts: facts(&info) }),
            Answer::More { token } => Ok(Heard::Proof { nonce: token }),
        }
    }

    fn nonce_mask(&self) -> u32 {
        wire::TOKEN_MASK
    }
}

fn facts<'a>(info: &ServerInfo<'a>) -> Facts<'a> {
    let mut rules = GameRules::new();
    rules.push("clients", &info.clients.to_string());
    rules.push("max_clients", &info.clients_max.to_string());
    rules.push("map_crc", &format!("{:08x}", info.map_crc));
    rules.push("map_size", &info.map_size.to_string());
    let players = info.present.iter().map(|client| {
        let clan = text::clean(client.clan);
        Player {
            name: text::clean(client.name).into(),
            team: Some(clan.into_owned().into()).filter(|clan: &std::borrow::Cow<'_, str>| !clan.is_empty()),
            spectator: Some(!client.is_player),
            score: Some(client.score),
            ..Player::default()
        }
    });
    let players = players.collect();
    let mut facts = Facts {
        name: text::clean(info.name),
        mode: text::clean(info.game_type),
        map: text::clean(info.map),
        version: text::version(info.version),
        players_current: Some(info.players),
        players_max: Some(info.players_max),
        password: Some(info.has_password),
        details: Some(Arc::new(Details { players, rules }.bounded())),
        ..Facts::default()
    };
    bound_facts(&Game::Own(NAME), &mut facts);
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;

    #[test]
    fn the_nonce_comes_back_and_the_rest_of_the_clients_is_not_waited_for() {
        let mut question = Question::new();
        GameQuery.ask(Ask::Proof, 0x00ab_cdef, &mut question);
        assert_eq!(wire::read_question(&question), Some(0x00ab_cdef));
        let info = ServerInfo { token: 0x00ab_cdef, name: b"A", players: 1, clients: 1, ..ServerInfo::default() };
        let bytes = info.emit();
        let Ok(Heard::Whole { nonce: 0x00ab_cdef, facts }) = GameQuery.hear(&bytes) else { panic!() };
        assert_eq!((&*facts.name, facts.players_current), ("A", Some(1)));
        let more = [&hex("ffffffffffff ffffffff6965782b")[..], b"11259375\x001\0\0"].concat();
        assert_eq!(GameQuery.hear(&more), Ok(Heard::Proof { nonce: 0x00ab_cdef }));
        assert!(GameQuery.hear(b"").is_err());
    }
}

//! A game server's answers, in the form of the engine: `info`, and a master's challenge. And what pretend servers say.

use std::sync::Arc;

use super::announce;
use super::wire::{self, HEADER, Info};
use crate::model::{Address, Details, Facts, GameRules};
use crate::protocols::pick;

pub fn answer(of: &Facts<'_>, _at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    match wire::info_request(question) {
        Some(protocol) => vec![info(of, protocol)],
        None => announce::add(of, question).into_iter().collect(),
    }
}

fn info(of: &Facts<'_>, asked: u8) -> Vec<u8> {
    let is = |rule: &str| of.rule(rule) == Some("1");
    let clean = |text: &str| text.replace(['\\', '\n', '\0'], "");
    let (host, map, gamedir) = (clean(&of.name), clean(&of.map), clean(&of.mode));
    let protocol = of.rule("protocol").and_then(|protocol| protocol.parse().ok()).unwrap_or(wire::PROTOCOL);
    if protocol != asked {
        return [&HEADER[..], b"info\n", host.as_bytes(), b": wrong version\n"].concat();
    }
    let info = Info {
        protocol,
        host: host.as_bytes(),
        map: map.as_bytes(),
        gamedir: gamedir.as_bytes(),
        players: of.players_current.unwrap_or(0).min(255) as u8,
        max: of.players_max.unwrap_or(0).min(255) as u8,
        deathmatch: is("deathmatch"),
        team: is("teamplay"),
        coop: is("coop"),
        password: of.password == Some(true),
        dedicated: of.rule("type") == Some("dedicated"),
    };
    let mut bytes = Vec::new();
    info.emit(&mut bytes);
    bytes
}

/// A game that a pretend server may be of.
const GAMES: &[(&str, &str, &[&str])] = &[
    ("valve", "Black Mesa Lobby", &["crossfire", "bounce", "datacore", "stalkyard"]),
    ("cstrike", "Dust All Day", &["de_dust2", "cs_office", "de_inferno", "as_oilrig"]),
    ("gearbox", "Opposing Yard", &["op4_bootcamp", "op4_xendance"]),
    ("dod", "Beach Head", &["dod_anzio", "dod_flash"]),
    ("tfc", "Two Forts", &["2fort", "well", "rock2"]),
];

pub fn pretend(number: usize) -> Facts<'static> {
    let Some((gamedir, name, maps)) = GAMES.iter().cycle().nth(number % GAMES.len()) else { return Facts::default() };
    let players_max = [8, 16, 24, 32].into_iter().cycle().nth(number % 4).unwrap_or(8);
    let has_teams = *gamedir != "valve" && *gamedir != "gearbox";
    let mut rules = GameRules::new();
    rules.push("gamedir", gamedir);
    rules.push("protocol", "49");
    rules.push("type", if number.is_multiple_of(4) { "listen" } else { "dedicated" });
    rules.push("deathmatch", "1");
    if has_teams {
        rules.push("teamplay", "1");
    }
    Facts {
        name: format!("{name} {}", number + 1).into(),
        mode: (*gamedir).into(),
        map: pick(maps, number / GAMES.len()).into(),
        players_current: Some((number * 5 % (players_max + 1)) as u16),
        players_max: Some(players_max as u16),
        password: Some(number % 10 == 9),
        details: Some(Arc::new(Details { players: Vec::new(), rules })),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "203.0.113.5:27015";

    #[test]
    fn questions_of_another_protocol_are_answered_as_the_engine_does() {
        let answers = answer(&pretend(0), AT.parse().unwrap(), b"\xff\xff\xff\xffinfo 48");
        assert_eq!(answers, [b"\xff\xff\xff\xffinfo\nBlack Mesa Lobby 1: wrong version\n".to_vec()]);
    }

    #[test]
    fn nothing_in_a_name_breaks_the_answer() {
        let facts = Facts { name: "a\\b\n\"c".into(), players_max: Some(8), ..Facts::default() };
        let answers = answer(&facts, AT.parse().unwrap(), b"\xff\xff\xff\xffinfo 49");
        assert_eq!(Info::parse(&answers[0]).unwrap().host, b"ab\"c");
    }
}

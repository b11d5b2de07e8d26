//! A netPanzer game's answers: the bare token to `\echo\TOKEN\`, all facts to `\status\`. Several commands in one datagram are
//! answered in order, each with its own datagram; commands after `\status\` are ignored.

use std::sync::Arc;

use super::NAME;
use super::wire::{SEPARATOR, Status};
use crate::model::{Address, Details, Facts, GameRules, Player, VersionText};
use crate::protocols::pick;

pub fn answer(of: &Facts<'_>, _at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    let mut tokens = question.split(|&byte| byte == SEPARATOR).filter(|token| !token.is_empty());
    let mut answers = Vec::new();
    while let Some(command) = tokens.next() {
        match command {
            b"echo" => answers.extend(tokens.next().map(<[u8]>::to_vec)),
            b"status" => {
                answers.push(status(of));
                break;
            }
            _ => {} // `info`, `basic`, `final` and others get no answer
        }
    }
    answers
}

fn status(of: &Facts<'_>) -> Vec<u8> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    // There is no escaping: a separator inside a value would end it.
    let mut pair = |key: &str, value: &str| pairs.push((key.into(), value.replace('\\', "/")));
    pair("gamename", NAME);
    pair("hostname", &of.name);
    pair("gameversion", &of.version);
    pair("mapname", &of.map);
    pair("gamestyle", &of.mode);
    pair("numplayers", &of.players_current.unwrap_or(0).to_string());
    pair("maxplayers", &of.players_max.unwrap_or(0).to_string());
    pair("password", if of.password == Some(true) { "y" } else { "n" });
    if let Some(details) = &of.details {
        details.rules.iter().for_each(|(key, value)| pair(key, value));
        for (number, player) in details.players.iter().enumerate() {
            pair(&format!("player_{number}"), &player.name);
            let numbers = [
                ("kills", player.kills),
                ("deaths", player.deaths),
                ("score", player.score),
                ("points", player.points),
            ];
            for (key, value) in numbers {
                if let Some(value) = value {
                    pair(&format!("{key}_{number}"), &value.to_string());
                }
            }
        }
    }
    Status { pairs: pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())).collect() }.emit()
}

pub fn pretend(number: usize) -> Facts<'static> {
    let map = pick(&["Two clans", "Bullet Hole", "Bad Neuburg", "Duell", "Tight Quarters"], number);
    let players_max = [8, 12, 16, 4].into_iter().cycle().nth(number % 4).unwrap_or(8);
    let players_current = number % (players_max + 1);
    let player = |place: usize| Player {
        name: format!("Commander {}", (number + 7 * place) % 97).into(),
        kills: Some((number * 3 + place * 5) as i32 % 40),
        deaths: Some((number + place * 11) as i32 % 30),
        score: Some((number * 5 + place) as i32 % 200),
        points: Some(place as i32),
        ..Player::default()
    };
    let mut rules = GameRules::new();
    rules.push("protocol", "1122");
    rules.push("mapcycle", map);
    rules.push("units_per_player", pick(&["36", "50", "20"], number));
    rules.push("time", &(number % 30).to_string());
    rules.push("timelimit", "30");
    rules.push("fraglimit", "300");
    rules.push("objectivelimit", "7");
    Facts {
        name: format!("Tank Alley {}", number + 1).into(),
        mode: pick(&["Objective", "FragLimit", "TimeLimit"], number).into(),
        map: map.into(),
        version: VersionText::from("0.8.7").unwrap_or_default(),
        players_current: Some(players_current as u16),
        players_max: Some(players_max as u16),
        password: Some(number % 10 == 9),
        details: Some(Arc::new(Details { players: (0..players_current).map(player).collect(), rules })),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Debian's netPanzer 0.8.7 answers the same bytes.
    #[test]
    fn several_commands_in_one_datagram_are_answered_in_order() {
        let cases: [(&[u8], &[&str]); 17] = [
            (br"\echo\A\status\", &["A", "gamename"]),
            (br"\echo\A\\status\", &["A", "gamename"]),
            (br"echo\A\status", &["A", "gamename"]),
            (br"\echo\A\final\status\", &["A", "gamename"]),
            (br"\echo\A\basic\status\", &["A", "gamename"]),
            (br"\echo\A\echo\B\status\echo\C\", &["A", "B", "gamename"]),
            (br"\foo\echo\B\status\", &["B", "gamename"]),
            (br"\info\echo\B\", &["B"]),
            (br"\status\echo\A\", &["gamename"]),
            (br"status", &["gamename"]),
            (br"\echo\status\", &["status"]),
            (br"\echo\\A\", &["A"]),
            (br"\\\echo\x", &["x"]),
            (br"\echo\", &[]),
            (br"\final\", &[]),
            (br"\rules\", &[]),
            (b"", &[]),
        ];
        let at = "203.0.113.5:3030".parse().unwrap();
        for (question, expected) in cases {
            let answers = answer(&pretend(0), at, question);
            let first_tokens: Vec<_> =
                answers.iter().map(|bytes| bytes.split(|&byte| byte == SEPARATOR).next().unwrap()).collect();
            let expected: Vec<_> = expected.iter().map(|token| token.as_bytes()).collect();
            assert_eq!(first_tokens, expected, "{}", String::from_utf8_lossy(question));
        }
    }
}

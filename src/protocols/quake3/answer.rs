//! A game server's answers to `getinfo` and `getstatus`, in the form of DarkPlaces, and what pretend servers say.

use std::fmt::Write;
use std::sync::Arc;

use super::wire::{HEADER, ToGame};
use crate::model::{Address, Details, Facts, GameRules, Player, VersionText};
use crate::protocols::pick;

/// What fits into a packet of the game. A status that is longer comes as an infoResponse.
const ANSWER_BYTES_MAX: usize = 1_400;

pub fn answer(of: &Facts<'_>, _at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    match ToGame::parse(question) {
        Ok(ToGame::Info { challenge }) => vec![info_response(of, challenge)],
        Ok(ToGame::Status { challenge }) => {
            let status = status_response(of, challenge);
            vec![if status.len() <= ANSWER_BYTES_MAX { status } else { info_response(of, challenge) }]
        }
        Err(_) => Vec::new(),
    }
}

fn info_response(of: &Facts<'_>, challenge: &[u8]) -> Vec<u8> {
    [&HEADER[..], b"infoResponse\n", &info_string(of, challenge)].concat()
}

fn status_response(of: &Facts<'_>, challenge: &[u8]) -> Vec<u8> {
    let mut lines = String::from("\n");
    for player in of.details.as_deref().map_or(&[][..], |details| &details.players) {
        let (score, ping) = (player.score.unwrap_or(0), player.ping.unwrap_or(0));
        let team = player.team.as_deref().map(|team| format!(" {team}")).unwrap_or_default();
        let name: String = player.name.chars().filter(|c| !"\"\\\n".contains(*c)).collect();
        let _ = writeln!(lines, "{score} {ping}{team} \"{name}\"");
    }
    [&HEADER[..], b"statusResponse\n", &info_string(of, challenge), lines.as_bytes()].concat()
}

/// The rules in their order, the facts that are not among them, and the challenge.
fn info_string(of: &Facts<'_>, challenge: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut pair = |key: &str, value: &str| {
        let value: String = value.chars().filter(|c| !"\\\n".contains(*c)).collect();
        out.extend(format!("\\{key}\\{value}").bytes());
    };
    if of.rule("gamename").is_none() && !of.game.is_empty() {
        pair("gamename", &of.game);
    }
    for (key, value) in of.details.iter().flat_map(|details| details.rules.iter()) {
        pair(key, value);
    }
    if of.rule("hostname").is_none() {
        pair("hostname", &of.name);
    }
    pair("mapname", &of.map);
    pair("sv_maxclients", &of.players_max.unwrap_or(0).to_string());
    if let Some(password) = of.password {
        pair("g_needpass", if password { "1" } else { "0" });
    }
    out.extend(b"\\challenge\\");
    out.extend(challenge);
    out
}

/// A game that a pretend server may be of.
struct Pretended {
    game: &'static str,
    protocol: &'static str,
    name: &'static str,
    version: &'static str,
    maps: &'static [&'static str],
    modes: &'static [&'static str],
}

const GAMES: &[Pretended] = &[
    Pretended {
        game: "Xonotic",
        protocol: "3",
        name: "^x0f0Xon^7 Arena",
        version: "0.8.6",
        maps: &["stormkeep", "glowplant", "implosion", "solarium"],
        modes: &["dm", "ctf", "duel"],
    },
    Pretended {
        game: "Quake3Arena",
        protocol: "71",
        name: "^1Open^7 Arena",
        version: "ioq3 1.36 linux-x86_64",
        maps: &["oa_dm1", "aggressor", "kaos2", "oasago2"],
        modes: &["0", "1", "4"],
    },
    Pretended {
        game: "Nexuiz",
        protocol: "3",
        name: "Nexuiz Yard",
        version: "2.5.2",
        maps: &["bloodprison", "aggressor", "basement"],
        modes: &["dm", "tdm"],
    },
    Pretended {
        game: "et",
        protocol: "84",
        name: "^3Radar^7 Station",
        version: "ET Legacy v2.83.1",
        maps: &["oasis", "radar", "goldrush"],
        modes: &["2", "4"],
    },
    Pretended {
        game: "Quake3Arena",
        protocol: "68",
        name: "The Longest Yard",
        version: "ioq3 1.36 linux-x86_64",
        maps: &["q3dm17", "q3dm6", "q3ctf1"],
        modes: &["0", "3", "4"],
    },
    Pretended {
        game: "wolfmp",
        protocol: "60",
        name: "^4Beach^7 Landing",
        version: "iortcw 1.51c-MP",
        maps: &["mp_beach", "mp_base", "mp_village"],
        modes: &["5", "6"],
    },
];

pub fn pretend(number: usize) -> Facts<'static> {
    let Some(of) = GAMES.iter().cycle().nth(number % GAMES.len()) else { return Facts::default() };
    let players_max = [8, 12, 16, 24].into_iter().cycle().nth(number % 4).unwrap_or(8);
    let clients = number * 5 % (players_max + 1);
    let bots = if number.is_multiple_of(3) { clients / 3 } else { 0 };
    let mode = pick(of.modes, number);
    let has_teams = mode != "dm" && mode != "0" && mode != "1" && mode != "duel";
    let player = |place: usize| Player {
        name: format!("Fragger {}", (number + 11 * place) % 97).into(),
        team: has_teams.then(|| ["5", "14"].into_iter().cycle().nth(place).unwrap_or("5").into()),
        // Bots have no ping.
        ping: Some(if place < bots { 0 } else { (13 + number * 7 + place * 29) as i32 % 250 + 1 }),
        score: Some((number * 3 + place * 7) as i32 % 60 - 3),
        ..Player::default()
    };
    let host = format!("{} {}", of.name, number + 1);
    let mut rules = GameRules::new();
    rules.push("clients", &clients.to_string());
    rules.push("gamename", of.game);
    rules.push("protocol", of.protocol);
    rules.push("gametype", mode);
    rules.push("version", of.version);
    rules.push("bots", &bots.to_string());
    rules.push("hostname", &host);
    Facts {
        game: of.game.into(),
        name: super::wire::without_colours(host.into()),
        mode: mode.into(),
        map: pick(of.maps, number / GAMES.len()).into(),
        version: VersionText::from(of.version).unwrap_or_default(),
        players_current: Some((clients - bots) as u16),
        players_max: Some(players_max as u16),
        password: Some(number % 10 == 9),
        details: Some(Arc::new(Details { players: (0..clients).map(player).collect(), rules })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::Heard;
    use crate::protocols::Query;
    use crate::protocols::quake3::query::GameQuery;

    const AT: &str = "203.0.113.5:27960";

    #[test]
    fn a_status_that_does_not_fit_comes_as_an_info() {
        let mut facts = pretend(0);
        let players = (0..200).map(|number| Player { name: format!("{number:010}").into(), ..Player::default() });
        let rules = facts.details.as_ref().unwrap().rules.clone();
        facts.details = Some(Arc::new(Details { players: players.collect(), rules }));
        let answers = answer(&facts, AT.parse().unwrap(), b"\xff\xff\xff\xffgetstatus 0badcafe");
        assert!(matches!(GameQuery.hear(&answers[0]), Ok(Heard::Some { nonce: 0x0bad_cafe, .. })));
    }

    #[test]
    fn a_server_names_its_game_once_if_it_has_one() {
        let named = |facts: &Facts<'_>| {
            let answers = answer(facts, AT.parse().unwrap(), b"\xff\xff\xff\xffgetinfo 0badcafe");
            String::from_utf8_lossy(&answers[0]).matches(r"\gamename\").count()
        };
        assert_eq!(named(&Facts { game: "Xonotic".into(), ..Facts::default() }), 1);
        assert_eq!((named(&pretend(0)), named(&Facts::default())), (1, 0));
    }

    #[test]
    fn nothing_in_a_name_breaks_the_answer() {
        let facts = Facts { name: "a\\b\n\"c".into(), players_max: Some(8), ..Facts::default() };
        let answers = answer(&facts, AT.parse().unwrap(), b"\xff\xff\xff\xffgetinfo 0badcafe\n");
        let Ok(Heard::Some { facts, .. }) = GameQuery.hear(&answers[0]) else { panic!() };
        assert_eq!((&*facts.name, facts.players_max), ("ab\"c", Some(8)));
    }
}

//! A server's answer to the query, and what pretend servers say.

use std::sync::Arc;

use super::wire::{self, Client, ServerInfo};
use crate::model::{Address, Details, Facts, GameRules, Player, VersionText};
use crate::protocols::pick;

pub fn answer(of: &Facts<'_>, _at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    let Some(token) = wire::read_question(question) else { return Vec::new() };
    let players = of.details.as_deref().map_or(&[][..], |details| &details.players);
    let rule = |name: &str| of.rule(name).unwrap_or_default();
    let players_max = of.players_max.unwrap_or(0);
    let info = ServerInfo {
        token,
        version: of.version.as_bytes(),
        name: of.name.as_bytes(),
        map: of.map.as_bytes(),
        map_crc: u32::from_str_radix(rule("map_crc"), 16).unwrap_or(0).cast_signed(),
        map_size: rule("map_size").parse().unwrap_or(0),
        game_type: of.mode.as_bytes(),
        has_password: of.password == Some(true),
        players: of.players_current.unwrap_or(0),
        players_max,
        clients: rule("clients").parse().unwrap_or(0),
        clients_max: rule("max_clients").parse().unwrap_or(players_max),
        present: players.iter().map(client).collect(),
    };
    vec![info.emit()]
}

fn client(player: &Player) -> Client<'_> {
    Client {
        name: player.name.as_bytes(),
        clan: player.team.as_deref().unwrap_or_default().as_bytes(),
        country: -1,
        score: player.score.unwrap_or(0),
        is_player: player.spectator != Some(true),
    }
}

pub fn pretend(number: usize) -> Facts<'static> {
    let players_max = [16, 32, 64].into_iter().cycle().nth(number % 3).unwrap_or(16);
    let clients = number * 3 % 17;
    let spectators = usize::from(clients > 3 && number.is_multiple_of(2));
    let player = |place: usize| Player {
        name: format!("nameless tee {}", (number + 7 * place) % 83).into(),
        team: Some(pick(&["", "Aoe", "Unique", "brainless"], number + place).into())
            .filter(|clan: &std::borrow::Cow<'_, str>| !clan.is_empty()),
        spectator: Some(place < spectators),
        score: Some(-((number * 37 + place * 101) as i32 % 9_999)),
        ..Player::default()
    };
    let mut rules = GameRules::new();
    rules.push("clients", &clients.to_string());
    rules.push("max_clients", &players_max.to_string());
    rules.push("map_crc", &format!("{:08x}", (number as u32).wrapping_mul(0x9e37_79b9)));
    rules.push("map_size", &(100_000 + number * 7_919 % 2_000_000).to_string());
    Facts {
        name: format!("Beach Tees {}", number + 1).into(),
        mode: pick(&["DDraceNetwork", "CTF", "DM", "gores"], number).into(),
        map: pick(&["Tutorial", "Sunny Side Up", "ctf5", "dm1", "Kobra 4"], number).into(),
        version: VersionText::from("0.6.4, 16.4").unwrap_or_default(),
        players_current: Some((clients - spectators) as u16),
        players_max: Some(players_max as u16),
        password: Some(number % 9 == 8),
        details: Some(Arc::new(Details { players: (0..clients).map(player).collect(), rules })),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::ddnet::wire::Answer;

    #[test]
    fn clients_have_no_country_and_spectators_do_not_play() {
        let mut question = Vec::new();
        wire::ask(7, &mut question);
        let player = |name: &'static str, spectator| Player { name: name.into(), spectator, ..Player::default() };
        let players = vec![player("a", None), player("b", Some(false)), player("c", Some(true))];
        let details = Some(Arc::new(Details { players, rules: [("clients", "3")].into() }));
        let facts = Facts { players_current: Some(2), players_max: Some(8), details, ..Facts::default() };
        let answers = answer(&facts, "203.0.113.5:8303".parse().unwrap(), &question);
        let Ok(Answer::Info(info)) = Answer::parse(&answers[0]) else { panic!() };
        let seen: Vec<_> = info.present.iter().map(|client| (client.name, client.country, client.is_player)).collect();
        assert_eq!(seen, [(&b"a"[..], -1, true), (b"b", -1, true), (b"c", -1, false)]);
    }
}

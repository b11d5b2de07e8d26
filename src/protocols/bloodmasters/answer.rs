//! A Bloodmasters server's answer to the query, in the current version of the protocol.

use std::sync::Arc;

use super::wire::{self, Client, Reply};
use crate::model::{self, Address, Facts, GameRules, Player, VersionText};
use crate::protocols::pick;

const PROTOCOL: u8 = 29;

pub fn answer(of: &Facts<'_>, _at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    let Some(query) = wire::parse_queries(question).find_map(Result::ok) else { return Vec::new() };
    let number = |count: Option<u16>| u8::try_from(count.unwrap_or(0)).unwrap_or(u8::MAX);
    let rule = |name: &str| of.rule(name).unwrap_or_default();
    let limit = |name: &str| rule(name).parse().unwrap_or(0);
    let players = of.details.as_deref().map_or(&[][..], |details| &details.players);
    let clients: Vec<_> = players.iter().take(usize::from(u8::MAX)).map(client).collect();
    let reply = Reply {
        echo: query.echo,
        title: of.name.as_bytes(),
        locked: of.password == Some(true),
        website: rule("website").as_bytes(),
        clients_max: rule("clients_max").parse().unwrap_or(number(of.players_max)),
        players_max: number(of.players_max),
        game_type: wire::game_type_number(&of.mode).unwrap_or(0),
        map: of.map.as_bytes(),
        clients_current: clients.len() as u8, // at most 255
        players_current: number(of.players_current),
        protocol: PROTOCOL,
        details: Some(wire::Details {
            score_limit: limit("score_limit"),
            time_limit: limit("time_limit"),
            join_smallest: rule("join_smallest") == "true",
            clients,
            build: Some(rule("build").as_bytes()),
        }),
    };
    reply.emit().ok().into_iter().collect()
}

fn client(player: &Player) -> Client<'_> {
    Client {
        name: player.name.as_bytes(),
        team: player.team.as_deref().and_then(wire::team_number).unwrap_or(0),
        spectator: player.spectator == Some(true),
        ping: player.ping.and_then(|ping| ping.try_into().ok()).unwrap_or(0),
    }
}

pub fn pretend(number: usize) -> Facts<'static> {
    let players_max = 4 + 2 * (number % 5);
    let clients = number % (players_max + 1);
    let spectators = usize::from(clients > 2 && number.is_multiple_of(3));
    let player = |place: usize| Player {
        name: format!("Marine {}", (number + 13 * place) % 89).into(),
        team: wire::team_name((place % 2 + 1) as u8).map(Into::into),
        spectator: Some(place < spectators),
        ping: Some((16 + number * 7 + place * 31) as i32 % 300),
        ..Player::default()
    };
    let mut rules = GameRules::new();
    rules.push("website", "http://www.example.org/");
    rules.push("clients", &clients.to_string());
    rules.push("clients_max", &(players_max + 2).to_string());
    rules.push("protocol", &PROTOCOL.to_string());
    rules.push("score_limit", pick(&["20", "5", "50"], number));
    rules.push("time_limit", pick(&["15", "30"], number));
    rules.push("join_smallest", pick(&["false", "true"], number));
    rules.push("build", "Linux Dedicated Server version 1.3.100.7");
    Facts {
        name: format!("Slaughterhouse {}", number + 1).into(),
        mode: wire::game_type_name((number % 5) as u8).unwrap_or_default().into(),
        map: pick(&["mayanctf", "bleak", "thespire", "dmpit"], number).into(),
        version: VersionText::from("1.3.100.7").unwrap_or_default(),
        players_current: Some((clients - spectators) as u16),
        players_max: Some(players_max as u16),
        password: Some(number % 8 == 7),
        details: Some(Arc::new(model::Details { players: (0..clients).map(player).collect(), rules })),
        ..Facts::default()
    }
}

//! A Hyperbol server's answer to the query.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::wire::{self, Info, Query};
use crate::model::{Address, Details, Facts, GameRules, VersionText};
use crate::protocols::pick;

pub fn answer(of: &Facts<'_>, at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    let Ok(Query { echo }) = Query::parse(question) else { return Vec::new() };
    let number = |count: Option<u16>| u8::try_from(count.unwrap_or(0)).unwrap_or(u8::MAX);
    let host = at.ip().to_string();
    let mut place = 0;
    let factions = [(); 3].map(|()| {
        let players = wire::faction_name(place).and_then(|faction| of.rule(&format!("players_{faction}")));
        place += 1;
        players.and_then(|players| players.parse().ok()).unwrap_or(0)
    });
    let info = Info {
        echo,
        name: of.name.as_bytes(),
        game_type: of.mode.as_bytes(),
        players_current: number(of.players_current),
        players_max: number(of.players_max),
        map: of.map.as_bytes(),
        host: host.as_bytes(),
        host_port: at.port().into(),
        flags: 0,
        internal_ip: at.ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED),
        version: of.version.as_bytes(),
        factions,
        skill: of.rule("skill").and_then(wire::skill_number).unwrap_or(0),
    };
    vec![info.emit().to_vec()]
}

pub fn pretend(number: usize) -> Facts<'static> {
    let players_max = 4 + 4 * (number % 4);
    let factions = [number % 3, number % 2, (number / 3) % 2];
    let skill = wire::skill_name((number % 5) as u8).unwrap_or_default();
    let mut rules = GameRules::from([("skill", skill)]);
    for (place, players) in factions.iter().enumerate() {
        let faction = wire::faction_name(place).unwrap_or_default();
        rules.push(&format!("players_{faction}"), &players.to_string());
    }
    Facts {
        name: format!("Pulse Arena {}", number + 1).into(),
        mode: pick(&["Deathmatch", "Team Deathmatch", "Bounty", "Training"], number).into(),
        map: pick(&["a_doommkii.hba", "a_canyon.hba", "t_outpost.hba"], number).into(),
        version: VersionText::from("1.08b").unwrap_or_default(),
        players_current: Some(factions.iter().sum::<usize>() as u16),
        players_max: Some(players_max as u16),
        password: None,
        details: Some(Arc::new(Details { players: Vec::new(), rules })),
        ..Facts::default()
    }
}

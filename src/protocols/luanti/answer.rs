//! The game server's side of the probe, and simulated servers.

use super::wire;
use crate::model::{Address, Details, Facts, VersionText};
use crate::protocols::pick;

/// The id that a game gives to the first client after its own.
const FIRST_ID: u16 = 2;

pub fn answer(_of: &Facts<'_>, _at: Address, question: &[u8]) -> Vec<Vec<u8>> {
    if wire::is_probe(question) { vec![wire::answer(FIRST_ID).to_vec()] } else { Vec::new() }
}

pub fn pretend(number: usize) -> Facts<'static> {
    let flag = |bit: usize| if number & bit == 0 { "false" } else { "true" };
    let rules = [
        ("description", "Simulated"),
        ("dedicated", "true"),
        ("creative", flag(1)),
        ("damage", flag(2)),
        ("pvp", flag(4)),
        ("privs", "interact,shout"),
        ("proto_min", "37"),
        ("proto_max", "50"),
        ("mods", pick(&["default,beds,farming", "default,mesecons", "mcl_core,mcl_mobs"], number)),
    ];
    let players = u16::try_from(number % 16).unwrap_or_default();
    Facts {
        name: format!("Luanti server {}", number + 1).into(),
        mode: pick(&["minetest_game", "mineclone2", "nodecore", "capturetheflag"], number).into(),
        map: pick(&["v7", "carpathian", "singlenode"], number).into(),
        version: VersionText::from("5.10.0").unwrap_or_default(),
        players_current: Some(players),
        players_max: Some(15 + players),
        password: Some(number.is_multiple_of(5)),
        details: Some(Details { players: Vec::new(), rules: rules.into() }.into()),
        ..Facts::default()
    }
}

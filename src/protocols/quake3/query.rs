//! Asking a server about itself. `getinfo` gets a short answer with the game; `getstatus` gets all settings and the players,
//! 17 bytes for 170 to 1,400, and is asked only of addresses that are proven. Both answers repeat the nonce.
//!
//! DarkPlaces answers `getstatus` with an infoResponse when the status does not fit into a packet.

use super::wire::{self, FromGame, InfoIndex};
use super::{NAME, info};
use crate::model::{Facts, Game};
use crate::protocols::{Ask, Fault, Heard, Query, Question, bound_facts, fault, nonce};

/// DarkPlaces answers one question a second and source, ioquake3 ten at once and then one a second.
pub const SPACING_US: u64 = 1_050_000;

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, ask: Ask, nonce: u32, question: &mut Question) {
        let command = match ask {
            Ask::Proof => "getinfo",
            Ask::Facts => "getstatus",
        };
        wire::ask(command, &nonce::digits(nonce), question);
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        hear(bytes, true)
    }

    fn hear_briefly<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        hear(bytes, false)
    }

    /// A status does not say which game it is.
    fn facts_say_all(&self) -> bool {
        false
    }

    fn spacing_us(&self) -> u64 {
        SPACING_US
    }
}

fn hear(bytes: &[u8], with_details: bool) -> Result<Heard<'_>, Fault> {
    match FromGame::parse(bytes).map_err(fault)? {
        FromGame::Info(info) => {
            let info = info.index();
            Ok(Heard::Some { nonce: nonce(&info)?, facts: allowed(info::facts(&info, with_details)) })
        }
        FromGame::Status(status) => {
            let info = status.info.index();
            Ok(Heard::Whole { nonce: nonce(&info)?, facts: allowed(info::status_facts(&info, &status, with_details)) })
        }
    }
}

fn allowed(mut facts: Facts<'_>) -> Facts<'_> {
    bound_facts(&Game::Own(NAME), &mut facts);
    facts
}

fn nonce(info: &InfoIndex<'_>) -> Result<u32, Fault> {
    let challenge = info.get(b"challenge").ok_or_else(|| fault("its answer has no challenge"))?;
    nonce::read(challenge).ok_or_else(|| fault("its answer has another challenge"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ask: Ask) -> Vec<u8> {
        let mut question = Question::new();
        GameQuery.ask(ask, 0xdead_0042, &mut question);
        question.to_vec()
    }

    #[test]
    fn asks_for_the_short_answer_first() {
        assert_eq!(asked(Ask::Proof), b"\xff\xff\xff\xffgetinfo dead0042");
        assert_eq!(asked(Ask::Facts), b"\xff\xff\xff\xffgetstatus dead0042");
        assert_eq!(GameQuery.spacing_us(), SPACING_US);
    }

    #[test]
    fn an_info_says_the_game_and_a_status_does_not() {
        let info =
            b"\xff\xff\xff\xffinfoResponse\n\\gamename\\Xonotic\\sv_maxclients\\999\\clients\\1\\challenge\\dead0042";
        let Ok(Heard::Some { nonce: 0xdead_0042, facts }) = GameQuery.hear(info) else { panic!() };
        assert_eq!((&*facts.game, facts.players_max), ("Xonotic", Some(super::super::PLAYERS_MOST)));
        let status = b"\xff\xff\xff\xffstatusResponse\n\\challenge\\dead0042\\gamename\\baseoa\\sv_maxclients\\8\n";
        let Ok(Heard::Whole { nonce: 0xdead_0042, facts }) = GameQuery.hear(status) else { panic!() };
        assert_eq!((&*facts.game, facts.rule("gamename")), ("", Some("baseoa")), "it is a folder");
    }

    #[test]
    fn only_our_challenge_counts() {
        for bad in [
            &b""[..],
            b"\xff\xff\xff\xffinfoResponse\n\\clients\\1",
            b"\xff\xff\xff\xffinfoResponse\n\\challenge\\dead004",
            b"\xff\xff\xff\xffinfoResponse\n\\challenge\\dead0042x",
            b"\xff\xff\xff\xffinfoResponse\n\\challenge\\+ead0042",
            b"\xff\xff\xff\xffstatusResponse\n\\a\\b\n1 2 \"challenge\\dead0042\"",
            b"\xff\xff\xff\xffheartbeat DarkPlaces\n",
        ] {
            assert!(GameQuery.hear(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}

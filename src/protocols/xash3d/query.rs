//! Asking a server about itself with `info` and the newest protocol number. One that speaks the old protocol says so, and is
//! asked again with that. Nothing of ours returns, so an answer proves no more than that somebody is there; addresses are
//! proven by challenges.

use super::wire::{self, Info, WireError};
use super::{NAME, info};
use crate::model::Game;
use crate::protocols::{Ask, Fault, Heard, ProvenBy, Query, Question, bound_facts, fault};

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, _: Ask, _: u32, question: &mut Question) {
        wire::ask_info(wire::PROTOCOL, question);
    }

    /// The token is the protocol number.
    fn ask_with(&self, _: Ask, _: u32, token: u32, question: &mut Question) {
        wire::ask_info(token as u8, question);
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        match Info::parse(bytes) {
            Ok(info) => {
                let mut facts = info::answered(&info);
                bound_facts(&Game::Own(NAME), &mut facts);
                Ok(Heard::Facts(facts))
            }
            Err(WireError::WrongVersion) => Ok(Heard::Again { token: wire::OLD_PROTOCOL.into() }),
            Err(error) => Err(fault(error)),
        }
    }

    fn proven_by(&self) -> ProvenBy {
        ProvenBy::Port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_speaks_the_old_protocol_is_asked_for_it() {
        let mut question = Question::new();
        GameQuery.ask(Ask::Facts, 7, &mut question);
        assert_eq!(question[..], *b"\xff\xff\xff\xffinfo 49");
        let Ok(Heard::Again { token }) = GameQuery.hear(b"\xff\xff\xff\xffinfo\nOld: wrong version\n") else {
            panic!()
        };
        question.clear();
        GameQuery.ask_with(Ask::Facts, 7, token, &mut question);
        assert_eq!(question[..], *b"\xff\xff\xff\xffinfo 48");
        let answer = b"\xff\xff\xff\xffinfo\n\\map\\bounce\\numcl\\1\\maxcl\\4\\gamedir\\valve\\host\\Old";
        let Ok(Heard::Facts(facts)) = GameQuery.hear(answer) else { panic!() };
        assert_eq!((&*facts.name, facts.rule("protocol"), facts.players_max), ("Old", Some("48"), Some(4)));
        assert!(GameQuery.hear(b"\xff\xff\xff\xffinfo\n").is_err());
    }
}

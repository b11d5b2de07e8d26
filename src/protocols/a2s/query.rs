//! Asking a server about itself. It may want its challenge back first; nothing of ours returns.

use std::sync::Arc;

use super::wire::{self, Answer, Info};
use crate::model::{Details, Facts};
use crate::protocols::{Ask, Fault, Heard, ProvenBy, Query, Question, fault};
use crate::text;

pub struct InfoQuery;

impl Query for InfoQuery {
    fn ask(&self, _: Ask, _: u32, question: &mut Question) {
        wire::ask(None, question);
    }

    fn ask_with(&self, _: Ask, _: u32, token: u32, question: &mut Question) {
        wire::ask(Some(token), question);
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        Ok(match Answer::parse(bytes).map_err(fault)? {
            Answer::Challenge(token) => Heard::Again { token },
            Answer::Info(info) => Heard::Facts(facts(&info)),
        })
    }

    fn proven_by(&self) -> ProvenBy {
        ProvenBy::Port
    }
}

/// The folder of the game (`cstrike`, `tf`) is the mode, as servers of one game may be asked in different ways.
fn facts<'a>(info: &Info<'a>) -> Facts<'a> {
    let kind = match info.kind.to_ascii_lowercase() {
        b'd' => "dedicated",
        b'l' => "listen",
        b'p' => "proxy",
        _ => "",
    };
    let system = match info.system.to_ascii_lowercase() {
        b'l' => "Linux",
        b'w' => "Windows",
        b'm' | b'o' => "macOS",
        _ => "",
    };
    let bots = Some(info.bots).filter(|bots| *bots > 0).map(|bots| bots.to_string()).unwrap_or_default();
    let rules = [
        ("game", &*text::clean(info.game)),
        ("folder", &text::clean(info.folder)),
        ("type", kind),
        ("os", system),
        ("bots", &bots),
        ("secure", if info.secure { "1" } else { "" }),
        ("keywords", &text::clean(info.keywords)),
    ];
    let rules = rules.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    Facts {
        name: text::clean(info.name),
        mode: text::clean(info.folder),
        map: text::clean(info.map),
        version: text::version(info.version),
        // The count has the bots, too.
        players_current: Some(info.players.saturating_sub(info.bots).into()),
        players_max: Some(info.max.into()),
        password: Some(info.password),
        details: Some(Arc::new(Details { players: Vec::new(), rules }.bounded())),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_returned_and_an_answer_has_the_facts() {
        assert_eq!(InfoQuery.hear(b"\xff\xff\xff\xffA\x01\0\0\0"), Ok(Heard::Again { token: 1 }));
        let sample = &(super::super::DIALECT.samples)()[0];
        let Ok(Heard::Facts(facts)) = InfoQuery.hear(sample) else { panic!() };
        assert_eq!(
            (&*facts.name, &*facts.mode, &*facts.map, &*facts.version),
            ("Arena", "cstrike", "de_dust2", "1.1.2.7/Stdio")
        );
        assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(2), Some(32), Some(false)));
        assert_eq!(
            (facts.rule("game"), facts.rule("os"), facts.rule("bots")),
            (Some("Counter-Strike"), Some("Linux"), Some("1"))
        );
        assert!(InfoQuery.hear(b"nonsense").is_err());
    }
    #[test]
    fn the_second_question_has_the_servers_token() {
        let (mut question, mut again) = (Question::new(), Question::new());
        InfoQuery.ask(Ask::Facts, 7, &mut question);
        assert_eq!(question[..], b"\xff\xff\xff\xffTSource Engine Query\0"[..]);
        InfoQuery.ask_with(Ask::Facts, 7, 0x0403_0201, &mut again);
        assert_eq!(again[..], [&question[..], &[1, 2, 3, 4]].concat());
    }

    #[test]
    fn kinds_and_systems_have_names_and_what_is_not_so_is_left_out() {
        for (kind, system, expected) in [
            (b'd', b'l', [Some("dedicated"), Some("Linux")]),
            (b'L', b'W', [Some("listen"), Some("Windows")]),
            (b'p', b'm', [Some("proxy"), Some("macOS")]),
            (b'x', b'o', [None, Some("macOS")]),
            (b'd', b'x', [Some("dedicated"), None]),
        ] {
            let facts = facts(&Info { kind, system, ..Info::default() });
            assert_eq!(["type", "os"].map(|rule| facts.rule(rule)), expected);
            assert_eq!(["bots", "secure", "keywords"].map(|rule| facts.rule(rule)), [None; 3]);
        }
        let facts = facts(&Info { bots: 1, secure: true, keywords: b"k", ..Info::default() });
        assert_eq!(["bots", "secure", "keywords"].map(|rule| facts.rule(rule)), [Some("1"), Some("1"), Some("k")]);
    }
}

//! The query of netPanzer games. `\echo\TOKEN\` gets the bare token, which proves the address without amplification.
//! `\echo\TOKEN\status\` gets the token and, in a second datagram, the status, which is long and has no field for a nonce.

use std::sync::Arc;

use super::NAME;
use super::wire::{SEPARATOR, WireError, status_pairs};
use crate::model::{Details, Facts, Game, GameRules, Player};
use crate::protocols::{Ask, Fault, Heard, Query, Question, bound_facts, fault, nonce};
use crate::text;

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, ask: Ask, nonce: u32, question: &mut Question) {
        let status: &[u8] = match ask {
            Ask::Proof => br"\",
            Ask::Facts => br"\status\",
        };
        question.extend(br"\echo\".iter().copied().chain(nonce::digits(nonce)).chain(status.iter().copied()));
    }

    fn is_without_nonce(&self, bytes: &[u8]) -> bool {
        memchr::memchr(SEPARATOR, bytes).is_some()
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        self.hear_with(true, bytes)
    }

    fn hear_briefly<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        self.hear_with(false, bytes)
    }
}

impl GameQuery {
    fn hear_with<'a>(&self, details: bool, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        if !self.is_without_nonce(bytes) {
            let nonce = nonce::read(bytes).ok_or_else(|| fault("the echo is not what was sent"))?;
            return Ok(Heard::Proof { nonce });
        }
        Ok(Heard::Facts(facts(bytes, details).map_err(fault)?))
    }
}

/// A status has dozens of keys, most of them of players, so it is read in one pass, in place: keys are compared as bytes, and
/// only what is kept is cleaned.
fn facts<'a>(status: &'a [u8], with_details: bool) -> Result<Facts<'a>, WireError> {
    let mut details = with_details.then(|| Details { rules: GameRules::with_room(status.len()), ..Details::default() });
    let (mut game, mut name, mut mode, mut map, mut version) = (None, None, None, None, None);
    let (mut players_current, mut players_max, mut password) = (None, None, None);
    for pair in status_pairs(status) {
        let (key, value) = pair?;
        // What becomes a fact is not a rule.
        let fact = match key {
            b"gamename" => Some(&mut game),
            b"hostname" => Some(&mut name),
            b"gamestyle" => Some(&mut mode),
            b"mapname" => Some(&mut map),
            b"gameversion" => Some(&mut version),
            b"numplayers" => Some(&mut players_current),
            b"maxplayers" => Some(&mut players_max),
            b"password" => Some(&mut password),
            b"empty" => continue, // follows from the number of players
            _ => None,
        };
        if let Some(fact) = fact {
            fact.get_or_insert(value);
            continue;
        }
        let Some(details) = &mut details else {
            // Behind the facts are rules and players, which nobody wants to know.
            let are_known =
                [game, name, mode, map, version, players_current, players_max, password].iter().all(Option::is_some);
            if are_known && status.ends_with(b"\\final\\") {
                break;
            }
            continue;
        };
        match (numbered(key), details.players.last_mut()) {
            (Some(b"player"), _) => {
                details.players.push(Player { name: text::clean(value).into(), ..Player::default() });
            }
            // These follow their player.
            (Some(b"kills"), Some(player)) => player.kills = number(value),
            (Some(b"deaths"), Some(player)) => player.deaths = number(value),
            (Some(b"score"), Some(player)) => player.score = number(value),
            (Some(b"points"), Some(player)) => player.points = number(value),
            (Some(b"kills" | b"deaths" | b"score" | b"points" | b"flag" | b"flagu"), _) => {}
            _ => details.rules.push(&text::clean(key), &text::clean(value)),
        }
    }
    if game.or(name).is_none() {
        return Err(WireError::NotAStatus);
    }
    let text = |value: Option<&'a [u8]>| text::clean(value.unwrap_or_default());
    let count = |value| text(value).parse().ok();
    let mut facts = Facts {
        name: text(name),
        mode: text(mode),
        map: text(map),
        version: text::version(version.unwrap_or_default()),
        players_current: count(players_current),
        players_max: count(players_max),
        password: match &*text(password) {
            "y" => Some(true),
            "n" => Some(false),
            _ => None,
        },
        details: details.map(|details| Arc::new(details.bounded())),
        ..Facts::default()
    };
    bound_facts(&Game::Own(NAME), &mut facts);
    Ok(facts)
}

/// The key without its number: `kills` of `kills_3`.
fn numbered(key: &[u8]) -> Option<&[u8]> {
    let digits = key.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (name, number) = key.split_at_checked(key.len() - digits)?;
    number.iter().try_fold(0u16, |sum, digit| sum.checked_mul(10)?.checked_add(u16::from(digit - b'0')))?;
    name.strip_suffix(b"_").filter(|_| digits > 0)
}

fn number(value: &[u8]) -> Option<i32> {
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_question_asks_for_a_proof_the_second_for_facts() {
        let mut question = Question::new();
        GameQuery.ask(Ask::Proof, 0xdead_0042, &mut question);
        assert_eq!(&question[..], br"\echo\dead0042\");
        assert_eq!(GameQuery.hear(b"dead0042"), Ok(Heard::Proof { nonce: 0xdead_0042 }));
        for bad in [&b""[..], b"dead004", b"dead00421", b"+ead0042", b"gamename"] {
            assert!(GameQuery.hear(bad).is_err(), "{bad:?}");
        }
        question.clear();
        GameQuery.ask(Ask::Facts, 0xdead_0042, &mut question);
        assert_eq!(&question[..], br"\echo\dead0042\status\");
        assert_eq!(GameQuery.spacing_us(), 0, "the game answers all questions");
    }

    fn heard(status: &[u8]) -> Facts<'_> {
        match GameQuery.hear(status) {
            Ok(Heard::Facts(facts)) => facts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rule_counts_once_and_too_much_is_left_out() {
        let many: String = (0..400).map(|at| format!(r"player_{at}\{}\rule{at}\x\", "n".repeat(100))).collect();
        let status = format!(r"gamename\netpanzer\x\1\x\2\{many}final\");
        let bytes_max = super::super::CARD.details_bytes_max;
        let details = heard(status.as_bytes()).details.unwrap();
        assert_eq!(details.players.len(), bytes_max / 100, "of 400");
        assert_eq!(details.rules.iter().filter(|(name, _)| *name == "x").count(), 1);
        let bytes: usize = details.rules.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(details.players.len() * 100 + bytes <= bytes_max && details.rules.iter().next() == Some(("x", "1")));
    }

    #[test]
    fn the_number_of_a_key_says_whose_it_is() {
        for (key, expected) in [
            ("kills_3", Some("kills")),
            ("a_b_65535", Some("a_b")),
            ("_0", Some("")),
            ("kills_65536", None),
            ("kills_", None),
            ("kills3", None),
            ("3", None),
            ("", None),
        ] {
            assert_eq!(numbered(key.as_bytes()), expected.map(str::as_bytes), "{key}");
        }
        let details =
            heard(br"gamename\netpanzer\kills_0\1\player_0\A\kills_0\-2\flag_0\x\units_per\5\kills_x\7\final\").details;
        let details = details.unwrap();
        assert_eq!(
            (details.players.len(), details.players[0].kills),
            (1, Some(-2)),
            "what precedes a player is nobody's"
        );
        let rules: Vec<_> = details.rules.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(rules, ["units_per=5", "kills_x=7"]);
    }

    #[test]
    fn a_status_becomes_facts() {
        let sample = (super::super::CARD.samples)().pop().unwrap();
        let facts = heard(&sample);
        assert_eq!((&*facts.name, &*facts.map, &*facts.mode), ("A server", "Two clans", "Objective"));
        assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(1), Some(8), Some(false)));
        assert_eq!(facts.version.as_str(), "0.8.7");
        let details = facts.details.unwrap();
        let expected = Player {
            name: "Player113".into(),
            kills: Some(1),
            deaths: Some(2),
            score: Some(3),
            points: Some(4),
            ..Player::default()
        };
        assert_eq!(details.players, [expected]);
        let names: Vec<_> = details.rules.iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            ["protocol", "mapcycle", "units_per_player", "time", "timelimit", "fraglimit", "objectivelimit"]
        );
    }

    #[test]
    fn a_status_counts_no_more_players_than_the_game_allows() {
        let facts = facts(br"gamename\netpanzer\numplayers\65535\maxplayers\40000\final\", true).unwrap();
        assert_eq!((facts.players_current, facts.players_max), (Some(255), Some(255)));
    }
}

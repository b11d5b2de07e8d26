//! A network of netPanzer masters: messages to the other masters, and the meaning of their answers.

use std::sync::Arc;

use super::announce::{parse_answer, parse_ended_answer};
use super::serve::{NO_NETWORK, NO_PASSWORD, WRONG_PASSWORD};
use super::wire::{Request, SEPARATOR, WireError, parse_list};
use super::{LIFE_MS, NAME};
use crate::model::{Address, Announce, Facts, Game, HeartbeatKeys, MASTER, Proof};
use crate::protocols::Verdict;
use crate::protocols::announce::reason;
use crate::protocols::network::{NetworkRules, Trouble};

/// How many characters of an invalid answer are shown.
const STRANGE_CHARS_MAX: usize = 80;
const NO_ANSWER: &str = "it closed the connection without an answer";

fn request(kind: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
    let pairs = pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
    Request { kind: kind.into(), pairs }.emit()
}

#[derive(Debug)]
pub struct Rules;

impl NetworkRules for Rules {
    /// The original's interval.
    fn every_ms(&self) -> u64 {
        300_000
    }

    fn life_ms(&self) -> u64 {
        LIFE_MS
    }

    fn list(&self) -> Vec<u8> {
        request("list", &[("gamename", MASTER)])
    }

    fn heartbeat(&self, port: u16, password: &str) -> Vec<u8> {
        request("heartbeat", &[("port", &port.to_string()), ("gamename", MASTER), ("password", password)])
    }

    fn quit(&self, port: u16, password: &str) -> Vec<u8> {
        request("quit", &[("gamename", MASTER), ("password", password), ("port", &port.to_string())])
    }

    fn is_whole(&self, answer: &[u8]) -> bool {
        answer.ends_with(br"\final\")
    }

    fn read_list(&self, answer: &[u8]) -> Result<Vec<Address>, String> {
        parse_list(answer).map_err(|error| match error {
            _ if answer.is_empty() => NO_ANSWER.into(),
            WireError::Error => self.complaint(answer).unwrap_or_else(|| error.to_string()),
            _ => error.to_string(),
        })
    }

    fn complaint(&self, answer: &[u8]) -> Option<String> {
        match parse_answer(answer).or_else(|| parse_ended_answer(answer)) {
            Some(Verdict::Listed) => None,
            Some(Verdict::Refused(reason) | Verdict::TryLater { reason, .. }) => {
                Some(format!("it refused: {reason}{}", advice(&reason)))
            }
            None if answer.is_empty() => Some(format!("{NO_ANSWER}. Is it a netPanzer master?")),
            None => {
                let shown: String = reason(answer).replace(SEPARATOR as char, " ");
                let shown: String = shown.trim().chars().take(STRANGE_CHARS_MAX).collect();
                Some(format!("its answer is not netPanzer's: \"{shown}\". Is it a netPanzer master?"))
            }
        }
    }

    fn announce(&self, master: Address, now_ms: u64) -> Announce<'static> {
        Announce {
            address: master,
            game: Game::master(NAME),
            proof: Proof::Connection,
            proven_at_ms: now_ms,
            life_ms: LIFE_MS,
            asked: false,
            rtt_us: None,
            keys: Some(Arc::new(HeartbeatKeys::of(MASTER, master))),
            facts: Facts::default(),
        }
    }

    fn warning(&self, master: &str, trouble: &Trouble) -> String {
        match trouble {
            Trouble::Ourselves => format!("netpanzer.neighbours: {master} is this master itself. Remove it"),
            Trouble::NoList(why) => format!("netPanzer master {master} gave no list of masters: {why}"),
            Trouble::Refused(why) => format!("netPanzer master {master} does not list this one: {why}"),
            Trouble::Unreachable(why) => format!("netPanzer master {master} cannot be reached: {why}"),
        }
    }
}

fn advice(reason: &str) -> &'static str {
    match reason {
        WRONG_PASSWORD | NO_PASSWORD => ". netpanzer.password has to be the same on both masters",
        NO_NETWORK => ". It needs the same netpanzer.password as this one",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_explained_with_advice() {
        let same = "netpanzer.password has to be the same on both masters";
        for (answer, expected) in [
            (&br"\final\"[..], None),
            (br"\final", None),
            (
                br"\error\wrong password for master update\final\",
                Some(format!("it refused: wrong password for master update. {same}")),
            ),
            (
                br"\error\passwort missing for master update",
                Some(format!("it refused: passwort missing for master update. {same}")),
            ),
            (
                br"\error\this master is in no master network\final\",
                Some(
                    "it refused: this master is in no master network. It needs the same netpanzer.password as this one"
                        .into(),
                ),
            ),
            (b"\\error\\go\x1b[31m away\\final\\", Some("it refused: go[31m away".into())),
            (b"", Some("it closed the connection without an answer. Is it a netPanzer master?".into())),
            (
                b"\\HTTP/1.1 400\r\n\\x",
                Some("its answer is not netPanzer's: \"HTTP/1.1 400 x\". Is it a netPanzer master?".into()),
            ),
        ] {
            assert_eq!(Rules.complaint(answer), expected, "{}", String::from_utf8_lossy(answer));
        }
        assert!(Rules.complaint(&[b'x'; 100_000]).unwrap().len() < 200);
    }

    #[test]
    fn messages_to_other_masters() {
        assert_eq!(Rules.list(), br"\list\gamename\master\final\");
        assert_eq!(Rules.heartbeat(28900, "p"), br"\heartbeat\port\28900\gamename\master\password\p\final\");
        assert_eq!(Rules.quit(28900, "p"), br"\quit\gamename\master\password\p\port\28900\final\");
        assert_eq!((Rules.is_whole(br"\final\"), Rules.is_whole(br"\final")), (true, false));
        assert_eq!(Rules.every_ms(), 300_000);
        assert!(Rules.life_ms() > 2 * Rules.every_ms(), "one lost heartbeat ends nothing");
    }

    #[test]
    fn a_warning_names_the_master_and_the_trouble() {
        for (trouble, why) in [
            (Trouble::NoList("why 1".into()), "why 1"),
            (Trouble::Refused("why 2".into()), "why 2"),
            (Trouble::Unreachable("why 3".into()), "why 3"),
            (Trouble::Ourselves, "this master itself"),
        ] {
            let warning = Rules.warning("192.0.2.9:1", &trouble);
            assert!(warning.contains("192.0.2.9:1") && warning.contains(why), "{warning}");
        }
    }

    #[test]
    fn lists_of_masters() {
        assert_eq!(Rules.read_list(br"\ip\192.0.2.1\port\28900\final\"), Ok(vec!["192.0.2.1:28900".parse().unwrap()]));
        assert_eq!(Rules.read_list(br"\error\go away\final\"), Err("it refused: go away".into()));
        assert_eq!(Rules.read_list(b""), Err(NO_ANSWER.into()));
        assert!(Rules.read_list(br"\ip\192.0.2.1\port\1").unwrap_err().contains("cut short"));
    }
}

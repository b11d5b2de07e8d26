//! The game server's side of netPanzer's protocol: heartbeats and a quit. Any game may announce itself this way.
//!
//! The answer is `\final\` or `\error\text\final\`. According to the document, an error need not end in `final`, and a good
//! heartbeat gets no answer. But every deployed master answers, and a relay whose master is down also closes the connection
//! silently. So silence does not count as acceptance.

use super::NAME;
use super::wire::{FINAL, Request, SEPARATOR, TOKEN_BYTES_MAX, check_value};
use crate::protocols::Verdict;
use crate::protocols::announce::{Offer, StreamAnnounce, reason};

/// The interval of the game's heartbeats.
pub const EVERY_MS: u64 = 300_000;
/// The network protocol's version in the current game.
const PROTOCOL: &str = "1122";

pub struct Heartbeats;

impl StreamAnnounce for Heartbeats {
    fn message(&self, offer: &Offer) -> Vec<u8> {
        heartbeat(offer)
    }

    fn verdict(&self, answer: &[u8]) -> Option<Verdict> {
        parse_answer(answer)
    }

    fn final_verdict(&self, answer: &[u8]) -> Option<Verdict> {
        parse_ended_answer(answer)
    }

    fn goodbye(&self, offer: &Offer) -> Option<Vec<u8>> {
        Some(quit(offer.port))
    }
}

/// Masters keep keys beyond the documented ones, and lists can be filtered by them. These have the names of the game's status.
pub fn heartbeat(offer: &Offer) -> Vec<u8> {
    let facts = &offer.facts;
    let number = |number: Option<u16>| number.map(|number| number.to_string()).unwrap_or_default();
    let protocol = if offer.game == NAME { PROTOCOL } else { "" };
    let pairs = [
        ("gamename", offer.game.as_str()),
        ("port", &offer.port.to_string()),
        ("protocol", protocol),
        ("hostname", &facts.name),
        ("mapname", &facts.map),
        ("gamestyle", &facts.mode),
        ("numplayers", &number(facts.players_current)),
        ("maxplayers", &number(facts.players_max)),
        ("gameversion", &facts.version),
    ];
    let pairs = pairs.into_iter().filter_map(|(key, text)| Some((key.as_bytes().to_vec(), value(text)?)));
    Request { kind: b"heartbeat".to_vec(), pairs: pairs.collect() }.emit()
}

pub fn quit(port: u16) -> Vec<u8> {
    let pairs = vec![(b"port".to_vec(), port.to_string().into_bytes())];
    Request { kind: b"quit".to_vec(), pairs }.emit()
}

/// A text as a valid value: not empty, not `final`, without the separator, not too long.
fn value(text: &str) -> Option<Vec<u8>> {
    let text = text.get(..text.floor_char_boundary(TOKEN_BYTES_MAX))?;
    let value = text.replace(SEPARATOR as char, "/").into_bytes();
    check_value(&value).is_ok().then_some(value)
}

/// The master's verdict; None while its answer is incomplete.
pub fn parse_answer(bytes: &[u8]) -> Option<Verdict> {
    let mut tokens = bytes.split(|&byte| byte == SEPARATOR).filter(|token| !token.is_empty());
    // A token is complete when a separator follows it.
    let whole = bytes.ends_with(&[SEPARATOR]);
    match tokens.next()? {
        token if token == FINAL && whole => Some(Verdict::Listed),
        b"error" => {
            let text = tokens.next()?;
            let ended = tokens.next().is_some_and(|token| token == FINAL);
            (ended && whole).then(|| Verdict::Refused(reason(text)))
        }
        _ => None,
    }
}

/// The same after the master has closed the connection. None if this is not an answer.
pub fn parse_ended_answer(bytes: &[u8]) -> Option<Verdict> {
    let mut tokens = bytes.split(|&byte| byte == SEPARATOR).filter(|token| !token.is_empty());
    match tokens.next() {
        Some(token) if token == FINAL => Some(Verdict::Listed),
        Some(b"error") => Some(Verdict::Refused(reason(tokens.next().unwrap_or(b"no reason given")))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, VersionText};

    fn offer(game: &str, facts: Facts<'static>) -> Offer {
        Offer { game: game.into(), port: 3030, facts }
    }

    #[test]
    fn the_games_own_bytes() {
        let plain = heartbeat(&offer("netpanzer", Facts::default()));
        assert_eq!(plain, br"\heartbeat\gamename\netpanzer\port\3030\protocol\1122\final\");
        assert_eq!(quit(3030), br"\quit\port\3030\final\");
    }

    #[test]
    fn facts_have_the_names_of_the_status() {
        let facts = Facts {
            name: r"A \ server".into(),
            mode: "final".into(),
            map: "Two clans".into(),
            version: VersionText::from("1.08b").unwrap(),
            players_current: Some(3),
            players_max: Some(8),
            ..Facts::default()
        };
        assert_eq!(
            String::from_utf8(heartbeat(&offer("hyperbol", facts))).unwrap(),
            concat!(
                r"\heartbeat\gamename\hyperbol\port\3030\hostname\A / server\mapname\Two clans",
                r"\numplayers\3\maxplayers\8\gameversion\1.08b\final\"
            )
        );
        let long = Facts { name: "é".repeat(1_000).into(), ..Facts::default() };
        let bytes = heartbeat(&offer("x", long));
        assert!(bytes.split(|&byte| byte == SEPARATOR).all(|token| token.len() <= TOKEN_BYTES_MAX));
    }

    #[test]
    fn the_announce_command_uses_them() {
        let offer = offer("netpanzer", Facts::default());
        assert_eq!(Heartbeats.message(&offer), heartbeat(&offer));
        assert_eq!(Heartbeats.goodbye(&offer), Some(quit(3030)));
        assert_eq!((Heartbeats.verdict(br"\final\"), Heartbeats.verdict(br"\final")), (Some(Verdict::Listed), None));
        assert_eq!(Heartbeats.final_verdict(br"\final"), Some(Verdict::Listed));
    }

    #[test]
    fn answers() {
        let refused = |text: &str| Some(Verdict::Refused(text.into()));
        assert_eq!(parse_answer(br"\final\"), Some(Verdict::Listed));
        let error = br"\error\no port specified\final\";
        assert_eq!(parse_answer(error), refused("no port specified"));
        for len in 0..error.len() {
            assert_eq!(parse_answer(&error[..len]), None, "cut at {len}");
        }
        assert_eq!(parse_ended_answer(b""), None);
        assert_eq!(parse_ended_answer(br"\final"), Some(Verdict::Listed));
        assert_eq!(parse_ended_answer(br"\error\go away\"), refused("go away"));
        assert_eq!(parse_ended_answer(br"\error"), refused("no reason given"));
        assert_eq!(parse_ended_answer(b"HTTP/1.1 400 Bad Request\r\n"), None);
        assert_eq!(parse_answer(b"\\error\\\x1b[31mred\\final\\"), refused("[31mred"));
    }
}

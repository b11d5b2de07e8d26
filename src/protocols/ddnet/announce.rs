//! What a game posts to register itself. Only the game can do so, because the token comes to its port: simulated servers do.

use serde_json::Value;

use super::info::Info;
use super::wire::{self, Version};
use super::{LIST_PATH, REGISTER_PATH};
use crate::protocols::Verdict;
use crate::protocols::announce::{ChallengedAnnounce, HttpBody, Offer, Registration, reason};

pub const ANNOUNCE: ChallengedAnnounce = ChallengedAnnounce {
    advice: "set sv_register_url to https://HOST/ddnet/15/register in its configuration",
    path,
    headers,
    post: HttpBody { content_type: "application/json", body },
    token,
    verdict,
};

const VERSION: Version = Version::V6;

/// From the path of a master, of its list or of this very page.
fn path(given: &str) -> String {
    let given = given.split('?').next().unwrap_or_default();
    let before = [LIST_PATH, REGISTER_PATH].into_iter().find_map(|path| given.strip_suffix(path)).unwrap_or(given);
    format!("{}{REGISTER_PATH}", before.trim_end_matches('/'))
}

fn headers(game: &Registration<'_>) -> Vec<(&'static str, String)> {
    let port = game.offer.port;
    let mut headers = vec![
        ("address", format!("{}://connecting-address.invalid:{port}", VERSION.scheme())),
        ("secret", uuid(game.id)),
        ("challenge-secret", challenge_secret(game.id)),
        ("info-serial", game.serial.to_string()),
    ];
    headers.extend(game.token.map(|token| ("challenge-token", token.to_string())));
    headers
}

fn challenge_secret(id: u128) -> String {
    format!("{}:tw0.6/ipv4", uuid(!id))
}

fn uuid(id: u128) -> String {
    let digits = format!("{id:032x}");
    let (first, rest) = digits.split_at(8);
    let (second, rest) = rest.split_at(4);
    let (third, rest) = rest.split_at(4);
    let (fourth, fifth) = rest.split_at(4);
    [first, second, third, fourth, fifth].join("-")
}

fn body(offer: &Offer) -> Vec<u8> {
    Info::of(&offer.facts).kept().unwrap_or_default().into_bytes()
}

/// As the game does: a datagram with another secret is not from a master that it has asked.
fn token(id: u128, datagram: &[u8]) -> Option<String> {
    let (secret, token) = wire::read_challenge(VERSION, datagram)?;
    (secret == challenge_secret(id)).then(|| token.to_string())
}

fn verdict(status: u16, body: &[u8]) -> Option<Verdict> {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("status") {
        "success" if status == 200 => Some(Verdict::Listed),
        "need_challenge" if status == 200 => None,
        "error" => Some(Verdict::Refused(reason(text("message").as_bytes()))),
        "" => Some(Verdict::Refused(format!("HTTP status {status}"))),
        other => Some(Verdict::Refused(reason(other.as_bytes()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::ddnet::answer;
    use crate::protocols::ddnet::wire::{Action, Challenge, Register};

    #[test]
    fn paths() {
        for given in ["", "/", LIST_PATH, REGISTER_PATH, "/ddnet/15/servers.json?x"] {
            assert_eq!(path(given), REGISTER_PATH, "{given}");
        }
        assert_eq!(path("/masters/"), "/masters/ddnet/15/register");
    }

    #[test]
    fn what_is_posted_is_a_registration_and_the_token_that_comes_is_its_own() {
        let facts = answer::pretend(7);
        let offer = Offer { game: "ddnet".into(), port: 8303, facts: facts.clone() };
        let game = Registration { offer: &offer, id: 5, serial: 3, token: Some("a token") };
        let headers = headers(&game);
        let header = |name: &'static str| headers.iter().find(|(found, _)| *found == name).map(|(_, value)| &**value);
        let register = Register::parse(header).unwrap();
        assert_eq!((register.version, register.port), (Version::V6, 8303));
        assert_eq!(register.secret, "00000000-0000-0000-0000-000000000005");
        let secret = challenge_secret(5);
        let challenge = Challenge { secret: &secret, connless_token: [0; 4] };
        assert!(register.action == Action::Register { challenge, token: Some("a token"), serial: 3 });
        assert_eq!(token(5, &challenge.emit(Version::V6, b"new")), Some("new".into()));
        assert_eq!(token(6, &challenge.emit(Version::V6, b"new")), None, "another game's");
        let info = Info::parse(&body(&offer)).unwrap().facts();
        assert_eq!((info.name, info.map, info.players_current), (facts.name, facts.map, facts.players_current));
    }

    #[test]
    fn verdicts() {
        assert_eq!(verdict(200, b"{\"status\":\"success\"}"), Some(Verdict::Listed));
        assert_eq!(verdict(200, b"{\"status\":\"need_challenge\"}\n"), None);
        for (status, body, why) in [
            (400, "{\"status\":\"error\",\"message\":\"no\"}", "no"),
            (403, "{\"status\":\"success\"}", "success"),
            (403, "{\"status\":\"need_challenge\"}", "need_challenge"),
            (200, "{\"status\":\"need_info\"}", "need_info"),
            (502, "<html>", "HTTP status 502"),
        ] {
            assert_eq!(verdict(status, body.as_bytes()), Some(Verdict::Refused(why.into())));
        }
    }
}

//! How game servers register: `POST /ddnet/15/register`.
//!
//! | request | answer |
//! |---|---|
//! | without a token that counts | `need_challenge`, and a datagram with a token to the game's port |
//! | without a body, where the server is not known by its Secret, or its serial is higher | `need_info` |
//! | otherwise | `success`; with a token that grows old, a datagram with a new one, too |
//! | `Action: delete` with the right Secret | `success`, and the address is no longer listed |
//! | anything wrong | `error` with a message for the owner |
//!
//! A server registers every address and every version of the protocol on its own. What is known at another address does not
//! count here: the game sends its info again when it is asked to.

use std::borrow::Cow;
use std::sync::Arc;

use super::info::Info;
use super::record::{Record, SecretHash};
use super::token::{Tokens, Valid};
use super::wire::{Action, Register, Version};
use super::{LIFE_MS, NAME};
use crate::model::{Address, Announce, Facts, Game, Now, Proof, Server};
use crate::protocols::post::{Challenge, Post, PostAnswer, PostContext, PostEffect, PostRule};
use crate::protocols::{Verdict, is_one_host};

pub struct RegisterRule {
    /// Whether servers can register.
    pub is_on: bool,
}

const NEED_CHALLENGE: &str = "{\"status\":\"need_challenge\"}\n";
const NEED_INFO: &str = "{\"status\":\"need_info\"}\n";
const SUCCESS: &str = "{\"status\":\"success\"}\n";

impl PostRule for RegisterRule {
    fn post(&self, at: &PostContext<'_>, post: &Post<'_>) -> PostEffect {
        let effect = match self.is_on {
            true => registered(at, post),
            false => Err((404, "this master does not list DDNet servers".into())),
        };
        effect.unwrap_or_else(|(status, message)| PostEffect::Answer(error(status, &message)))
    }

    fn decided(&self, verdict: &Verdict) -> PostAnswer {
        match verdict {
            Verdict::Listed => answer(SUCCESS),
            Verdict::Refused(reason) => error(403, reason),
            Verdict::TryLater { reason, after_s } => PostAnswer { retry_after_s: Some(*after_s), ..error(429, reason) },
        }
    }
}

/// A status and a message.
type Refused = (u16, Cow<'static, str>);

fn registered(at: &PostContext<'_>, post: &Post<'_>) -> Result<PostEffect, Refused> {
    let request = Register::parse(post.header).map_err(|error| (400, error.to_string().into()))?;
    let address = Address::new(post.peer, request.port).filter(|address| is_one_host(address.ip()));
    let address = address.ok_or((400, "your address is not that of one host".into()))?;
    let secret = SecretHash::of(request.secret);
    // A server with another Secret is another server, which this one replaces once it has proven itself.
    let listed = (at.listed)(address).filter(|server| server.game.protocol() == NAME);
    let record = listed.as_deref().and_then(Record::of).filter(|record| record.secret.is(&secret));
    let known = listed.zip(record);
    let Action::Register { challenge, token, serial } = request.action else {
        return deleted(at.now, address, request.version, known);
    };
    let tokens = Tokens::new(&at.cookies, at.now);
    let new_challenge = || {
        let bytes = challenge.emit(request.version, &tokens.make(address, request.version));
        Challenge { to: address, bytes: bytes.into() }
    };
    let Some(valid) = token.and_then(|token| tokens.check(address, request.version, token)) else {
        return Ok(PostEffect::Challenged { challenge: new_challenge(), answer: answer(NEED_CHALLENGE) });
    };
    let (facts, record) = match known {
        // An old info may be overtaken by a new one.
        Some((server, mut record)) if serial <= record.serial => {
            record.add(request.version);
            (server.facts().into_owned(), record)
        }
        _ if post.body.is_empty() => return Ok(PostEffect::Answer(answer(NEED_INFO))),
        known => {
            let info = Info::parse(post.body).and_then(|info| Ok((info.facts(), info.kept()?)));
            let (facts, info) = match info {
                Ok(info) => info,
                Err(why) => {
                    let why = format!("invalid info: {why}");
                    return Ok(PostEffect::Refused { address, answer: error(400, &why), why });
                }
            };
            let versions = known.map(|(_, record)| record.versions).unwrap_or_default();
            let mut record = Record { secret, versions, serial, info };
            record.add(request.version);
            (facts, record)
        }
    };
    Ok(PostEffect::Proven {
        announce: Box::new(announce(at.now, address, &record, facts)),
        challenge: (valid == Valid::Old).then(new_challenge),
    })
}

/// A server stops in one version of the protocol. It stays listed for the others.
fn deleted(
    now: Now,
    address: Address,
    version: Version,
    known: Option<(Arc<Server>, Record)>,
) -> Result<PostEffect, Refused> {
    let known = known.filter(|(_, record)| record.versions.contains(&version));
    let (server, mut record) = known.ok_or((400, "could not find registered server".into()))?;
    record.versions.retain(|known| *known != version);
    if record.versions.is_empty() {
        return Ok(PostEffect::Quit { address, answer: answer(SUCCESS) });
    }
    let announce = Box::new(announce(now, address, &record, server.facts().into_owned()));
    Ok(PostEffect::Proven { announce, challenge: None })
}

fn announce(now: Now, address: Address, record: &Record, facts: Facts<'static>) -> Announce<'static> {
    Announce {
        address,
        game: Game::Own(NAME),
        proof: Proof::Cookie,
        proven_at_ms: now.unix_ms,
        life_ms: LIFE_MS,
        // It says everything itself, and as soon as it changes.
        asked: false,
        rtt_us: None,
        keys: Some(record.keys(address)),
        facts,
    }
}

fn answer(body: &'static str) -> PostAnswer {
    PostAnswer::new(200, "application/json", body)
}

fn error(status: u16, message: &str) -> PostAnswer {
    let message = serde_json::Value::from(message);
    PostAnswer::new(status, "application/json", format!("{{\"status\":\"error\",\"message\":{message}}}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cookie::Keys;
    use crate::model::SharedTime;
    use crate::protocols::ddnet::testing::{INFO, SECRET, headers};
    use crate::protocols::ddnet::wire;
    use crate::protocols::section::Cookies;

    const T: u64 = 1_790_000_000_000;
    const OTHER_SECRET: &str = "00000000-1815-4d42-a066-f559a0363903";
    const SEVEN: &[(&str, Option<&str>)] =
        &[("address", Some("tw-0.7+udp://connecting-address.invalid:8303")), ("connless-token", Some("dd3f9563"))];

    /// A master that lists one server at the most.
    struct Master {
        now: Now,
        keys: Keys,
        listed: Option<Arc<Server>>,
    }

    impl Master {
        fn new() -> Master {
            let keys = Keys::new([[1; 16], [2; 16], [3; 16]]);
            Master { now: Now { mono_ms: 0, unix_ms: T }, keys, listed: None }
        }

        fn effect(&self, peer: &str, changes: &[(&'static str, Option<&'static str>)], body: &str) -> PostEffect {
            let headers = headers(changes);
            let header = |name: &'static str| headers.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
            let at = PostContext {
                now: self.now,
                cookies: Cookies { keys: self.keys, time: SharedTime::default() },
                listed: &|address| self.listed.clone().filter(|server| server.address == address),
                known: &|_| None,
                failure: &|_| None,
            };
            let post = Post { peer: peer.parse().unwrap(), header: &header, body: body.as_bytes() };
            RegisterRule { is_on: true }.post(&at, &post)
        }

        /// Does what the effect says, as the master does, and returns the answer and the token that was sent.
        fn post(
            &mut self,
            changes: &[(&'static str, Option<&'static str>)],
            body: &str,
        ) -> (String, Option<&'static str>) {
            let rule = RegisterRule { is_on: true };
            let (answer, challenge) = match self.effect("203.0.113.5", changes, body) {
                PostEffect::Answer(answer) | PostEffect::Refused { answer, .. } => (answer, None),
                PostEffect::Challenged { challenge, answer } => (answer, Some(challenge)),
                PostEffect::Proven { announce, challenge } => {
                    assert_eq!((announce.proof, announce.proven_at_ms), (Proof::Cookie, self.now.unix_ms));
                    self.listed = Some(Arc::new(Server::announced(&announce)));
                    (rule.decided(&Verdict::Listed), challenge)
                }
                PostEffect::Quit { address, answer } => {
                    assert_eq!(self.listed.take().unwrap().address, address);
                    (answer, None)
                }
                PostEffect::File { .. } => panic!("nothing is asked"),
            };
            assert!(answer.content_type == "application/json" && answer.body.ends_with("}\n"));
            let token = challenge.map(|challenge| {
                assert_eq!(challenge.to, "203.0.113.5:8303".parse().unwrap());
                let versions = [Version::V6, Version::V7];
                let read = versions.into_iter().find_map(|version| wire::read_challenge(version, &challenge.bytes));
                let (secret, token) = read.unwrap();
                assert_eq!(secret, crate::protocols::ddnet::testing::CHALLENGE_SECRET);
                &*token.to_string().leak()
            });
            (answer.body.into_owned(), token)
        }

        fn registered(versions: &[&[(&'static str, Option<&'static str>)]]) -> Master {
            let mut master = Master::new();
            for changes in versions {
                let token = master.post(changes, INFO).1;
                let (answer, _) = master.post(&with(changes, &[("challenge-token", token)]), INFO);
                assert_eq!(answer, SUCCESS);
            }
            master
        }

        fn record(&self) -> Record {
            Record::of(self.listed.as_ref().unwrap()).unwrap()
        }

        fn later(&mut self, ms: u64) {
            self.now = Now { mono_ms: self.now.mono_ms + ms, unix_ms: self.now.unix_ms + ms };
        }
    }

    fn with<'a>(
        changes: &[(&'a str, Option<&'a str>)],
        more: &[(&'a str, Option<&'a str>)],
    ) -> Vec<(&'a str, Option<&'a str>)> {
        [changes, more].concat()
    }

    #[test]
    fn a_server_registers_both_versions_and_refreshes_without_its_info() {
        let mut master = Master::new();
        let (answer, token) = master.post(&[], INFO);
        assert_eq!(answer, NEED_CHALLENGE);
        assert!(master.listed.is_none() && token.is_some());
        assert_eq!(master.post(&[("challenge-token", token)], INFO), (SUCCESS.into(), None));
        let server = master.listed.clone().unwrap();
        assert_eq!((server.texts.name(), server.texts.map()), ("Loopback DD", "Tutorial"));
        assert_eq!((server.players_current, server.players_max, server.password), (Some(0), Some(16), Some(false)));
        assert_eq!(master.record().info, INFO);

        let (_, seven) = master.post(SEVEN, "");
        assert_eq!(master.post(&with(SEVEN, &[("challenge-token", seven)]), ""), (SUCCESS.into(), None));
        assert_eq!(master.record().versions, [Version::V6, Version::V7]);
        master.later(15_000);
        let before = master.listed.clone().unwrap();
        assert_eq!(master.post(&[("challenge-token", token)], ""), (SUCCESS.into(), None));
        let after = master.listed.clone().unwrap();
        assert!(before.facts() == after.facts() && before.keys == after.keys, "a refresh changes nothing");
        assert_eq!(after.proven_at_ms, T + 15_000);
    }

    #[test]
    fn an_old_token_counts_and_is_replaced_and_a_very_old_one_does_not_count() {
        let mut master = Master::registered(&[&[]]);
        let (_, token) = master.post(&[], "");
        master.later(30_000);
        let (answer, new) = master.post(&[("challenge-token", token)], "");
        assert_eq!(answer, SUCCESS);
        assert!(new.is_some() && new != token);
        master.later(60_000);
        assert_eq!(master.post(&[("challenge-token", new)], "").0, SUCCESS);
        assert_eq!(master.post(&[("challenge-token", token)], "").0, SUCCESS, "90 s");
        master.later(1_000);
        let listed = master.listed.clone();
        assert_eq!(master.post(&[("challenge-token", token)], INFO).0, NEED_CHALLENGE, "a replay");
        assert_eq!(master.listed, listed);
    }

    #[test]
    fn foreign_tokens_are_worth_nothing() {
        let mut master = Master::registered(&[&[]]);
        let (_, token) = master.post(&[], "");
        let is_refused = |master: &Master, peer, changes: &[(&'static str, Option<&'static str>)]| {
            matches!(master.effect(peer, changes, INFO), PostEffect::Challenged { .. })
        };
        let token = ("challenge-token", token);
        assert!(!is_refused(&master, "203.0.113.5", &[token]));
        assert!(is_refused(&master, "203.0.113.6", &[token]), "another address");
        let port = ("address", Some("tw-0.6+udp://connecting-address.invalid:8304"));
        assert!(is_refused(&master, "203.0.113.5", &[port, token]), "another port");
        assert!(is_refused(&master, "203.0.113.5", &with(SEVEN, &[token])), "another version");
        assert!(is_refused(&master, "203.0.113.5", &[("challenge-token", Some("forged"))]));
        master.keys = Keys::new([[4; 16], [5; 16], [6; 16]]);
        assert!(is_refused(&master, "203.0.113.5", &[token]), "another master");
    }

    #[test]
    fn the_info_is_asked_for_where_it_is_not_known_or_old() {
        let mut master = Master::registered(&[&[]]);
        let (_, token) = master.post(&[], "");
        let token = ("challenge-token", token);
        let next = ("info-serial", Some("1"));
        assert_eq!(master.post(&[token, next], "").0, NEED_INFO);
        let changed = INFO.replace("Tutorial", "Kobra");
        assert_eq!(master.post(&[token, next], &changed).0, SUCCESS);
        assert_eq!((master.record().serial, master.listed.clone().unwrap().texts.map()), (1, "Kobra"));
        assert_eq!(master.post(&[token], INFO).0, SUCCESS, "an old one that comes late");
        assert_eq!((master.record().serial, master.listed.clone().unwrap().texts.map()), (1, "Kobra"));
        master.listed = None;
        assert_eq!(master.post(&[token, next], "").0, NEED_INFO, "a master that knows nothing");
    }

    #[test]
    fn another_secret_takes_the_address_over_with_a_token_of_its_own() {
        let mut master = Master::registered(&[&[], SEVEN]);
        let (_, token) = master.post(&[], "");
        let other = [("secret", Some(OTHER_SECRET)), ("challenge-token", token)];
        assert_eq!(master.post(&other[..1], INFO).0, NEED_CHALLENGE);
        assert_eq!(master.post(&other, "").0, NEED_INFO, "its info is another");
        assert_eq!(master.post(&other, INFO).0, SUCCESS);
        assert_eq!(master.record().versions, [Version::V6], "nothing is left of the other");
        assert!(master.record().secret.is(&SecretHash::of(OTHER_SECRET)));
    }

    #[test]
    fn only_the_secret_removes_a_server_version_by_version() {
        let mut master = Master::registered(&[&[], SEVEN]);
        let delete = ("action", Some("delete"));
        let unknown = "{\"status\":\"error\",\"message\":\"could not find registered server\"}\n";
        assert_eq!(master.post(&[delete, ("secret", Some(OTHER_SECRET))], "").0, unknown);
        assert_eq!(master.post(&[delete], "").0, SUCCESS);
        assert_eq!(master.record().versions, [Version::V7]);
        assert_eq!(master.post(&[delete], "").0, unknown);
        assert_eq!(master.post(&with(SEVEN, &[delete]), "").0, SUCCESS);
        assert!(master.listed.is_none());
        assert_eq!(master.post(&with(SEVEN, &[delete]), "").0, unknown);
    }

    #[test]
    fn errors_have_a_status_and_a_message_and_no_secret() {
        let mut master = Master::new();
        let (_, token) = master.post(&[], INFO);
        let token = ("challenge-token", token);
        let missing = [("address", None), ("secret", None), ("info-serial", None), ("challenge-secret", None)];
        let bad = [("action", Some("x")), ("address", Some("tw-0.6+udp://203.0.113.5:8303"))];
        for change in missing.into_iter().chain(bad) {
            let PostEffect::Answer(answer) = master.effect("203.0.113.5", &[token, change], INFO) else { panic!() };
            assert_eq!(answer.status, 400);
            assert!(answer.body.contains("\"status\":\"error\"") && !answer.body.contains(SECRET), "{}", answer.body);
        }
        let PostEffect::Refused { address, why, answer } = master.effect("203.0.113.5", &[token], "{}") else {
            panic!()
        };
        assert_eq!((answer.status, address), (400, "203.0.113.5:8303".parse().unwrap()));
        assert!(why.starts_with("invalid info: missing field `max_clients`"), "{why}");
        assert!(answer.body.contains("invalid info: missing field `max_clients`"), "{}", answer.body);
        let PostEffect::Answer(answer) = master.effect("224.0.0.1", &[], INFO) else { panic!() };
        assert!(answer.body.contains("one host"));
        let rule = RegisterRule { is_on: false };
        let later = rule.decided(&Verdict::TryLater { reason: "busy".into(), after_s: 5 });
        assert_eq!((later.status, later.retry_after_s), (429, Some(5)));
        assert_eq!(rule.decided(&Verdict::Refused("full".into())).status, 403);
        let at = PostContext {
            now: master.now,
            cookies: Cookies { keys: master.keys, time: SharedTime::default() },
            listed: &|_| None,
            known: &|_| None,
            failure: &|_| None,
        };
        let post = Post { peer: [203, 0, 113, 5].into(), header: &|_| None, body: b"" };
        let PostEffect::Answer(answer) = rule.post(&at, &post) else { panic!() };
        assert_eq!(answer.status, 404);
    }
}

//! Arbitrary bytes to every function that parses a message. What parses is written and read again as the same message, and
//! nothing that is read exceeds its bounds.

use std::net::IpAddr;

use super::tape::Tape;
use super::world;
use rallypoint::cookie::Keys;
use rallypoint::model::{Address, Details, Facts, SharedTime};
use rallypoint::protocols::announce::{AnnounceMethod, Offer};
use rallypoint::protocols::post::{Post, PostContext, PostEffect};
use rallypoint::protocols::section::Cookies;
use rallypoint::protocols::{CARDS, Card, Fetch, Heard, List, Take};

/// The longest text of a reason for people: 200 characters.
const REASON_BYTES_MAX: usize = 800;
/// The longest datagram that a post can have sent.
const CHALLENGE_BYTES_MAX: usize = 200;

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let card = tape.choice(CARDS);
    let bytes = tape.rest();
    for (_, decode) in card.decoders {
        decode(bytes);
    }
    for (message, survives) in card.round_trips {
        assert_ne!(survives(bytes), Some(false), "{} {message}: written and read again, it differs", card.name);
    }
    hear(card, bytes);
    fetch(card, bytes);
    announce(card, bytes);
    post(card, bytes);
}

/// What a game server posts: headers in lines, an empty line, and the body. Nobody knows the keys, so nobody is proven, and
/// datagrams go only to the address that posts.
fn post(card: &Card, bytes: &[u8]) {
    let end = bytes.windows(2).position(|two| two == b"\n\n").unwrap_or(bytes.len());
    let (head, body) = bytes.split_at(end);
    let lines: Vec<(&str, &str)> =
        str::from_utf8(head).unwrap_or_default().lines().filter_map(|line| line.split_once(": ")).collect();
    let header = |name: &'static str| lines.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
    let known = |address| world::VIEW.servers.iter().find(|server| server.address == address).cloned();
    let at = PostContext {
        now: world::START,
        cookies: Cookies { keys: Keys::new([[1; 16], [2; 16], [3; 16]]), time: SharedTime::default() },
        listed: &known,
        known: &known,
        failure: &|_| None,
    };
    let peer: IpAddr = [198, 18, 5, 1].into();
    for route in (card.section)().posts() {
        let body = body.get(2..).unwrap_or_default();
        match route.rule.post(&at, &Post { peer, header: &header, body }) {
            PostEffect::Challenged { challenge, .. } => {
                assert!(challenge.to.ip() == peer && challenge.bytes.len() <= CHALLENGE_BYTES_MAX);
            }
            PostEffect::Proven { .. } => panic!("{}: proven without a token", card.name),
            PostEffect::File { heartbeat, .. } => assert_eq!(heartbeat.address.ip(), peer),
            PostEffect::Answer(_) | PostEffect::Refused { .. } | PostEffect::Quit { .. } => {}
        }
    }
}

/// A game's answers, and its questions.
fn hear(card: &Card, bytes: &[u8]) {
    let heard = card.query.map(|query| query.hear(bytes));
    if let Some(Ok(Heard::Whole { facts, .. } | Heard::Some { facts, .. } | Heard::Facts(facts))) = heard {
        check(&facts);
    }
    let at = Address::new([203, 0, 113, 5].into(), card.game_port);
    if let (Some(answer), Some(at)) = (card.answer, at) {
        answer(&(card.pretend)(0), at, bytes);
    }
}

/// Facts are clean and bounded.
fn check(facts: &Facts<'_>) {
    for text in [&facts.game, &facts.name, &facts.mode, &facts.map] {
        assert!(!text.chars().any(char::is_control), "{text:?} has control characters");
    }
    let Some(details) = &facts.details else { return };
    assert!(details.players.len() <= Details::PLAYERS_MAX && details.rules.len() <= Details::RULES_MAX);
    let names = details.players.iter().map(|player| player.name.len());
    let rules = details.rules.iter().map(|(name, value)| name.len() + value.len());
    assert!(names.chain(rules).sum::<usize>() <= Details::BYTES_MAX);
}

/// A master's list.
fn fetch(card: &Card, bytes: &[u8]) {
    let list = match &card.fetch {
        Fetch::Http { read, .. } => read(bytes, Take::ALL),
        Fetch::Stream(fetch) => {
            let _ = (fetch.request(bytes), fetch.is_whole(bytes));
            fetch.read(bytes)
        }
        Fetch::Datagrams(fetch) => {
            if let Some(packet) = fetch.read(bytes) {
                assert!(packet.servers.len() <= bytes.len());
            }
            return;
        }
    };
    if let Ok(List { servers, left_out, .. }) = list {
        assert!(servers.len() + left_out <= bytes.len());
        servers.iter().for_each(|server| check(&server.facts));
    }
}

/// What a master answers to an announcement.
fn announce(card: &Card, bytes: &[u8]) {
    match &card.announce {
        AnnounceMethod::Http(http) => _ = (http.verdict)(200, bytes),
        AnnounceMethod::Stream { rules, .. } => _ = (rules.verdict(bytes), rules.final_verdict(bytes)),
        AnnounceMethod::Datagrams { start, .. } => {
            let offer = Offer { game: card.name.into(), port: card.game_port, facts: (card.pretend)(0) };
            let mut reply = Vec::new();
            if let Ok(mut announcer) = start(0, &offer) {
                announcer.ready(0);
                announcer.step(0);
                announcer.hear(1, bytes, &mut reply);
            }
            assert!(reply.len() <= bytes.len(), "more comes out of a game than went in");
        }
        AnnounceMethod::Challenged(rules) => _ = ((rules.verdict)(200, bytes), (rules.token)(1, bytes)),
        AnnounceMethod::OwnPort { .. } | AnnounceMethod::None => {}
    }
    assert!(rallypoint::protocols::announce::reason(bytes).len() <= REASON_BYTES_MAX);
}

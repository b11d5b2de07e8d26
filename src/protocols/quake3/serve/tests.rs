use super::*;
use crate::cookie::Keys;
use crate::model::Server;
use crate::protocols::event::EventKind;
use crate::protocols::packets::split;
use crate::protocols::quake3::{announce, answer, packets};
use crate::registry::view::View;
use proptest::prelude::*;

const T: Now = Now { mono_ms: 1_000, unix_ms: 1_760_000_000_000 };

fn later(ms: u64) -> Now {
    Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
}

fn rules() -> Rules {
    let tags = Tags::default();
    Rules {
        life_ms: 900_000,
        challenges: Challenges::new(&Keys::new([[4; 16], [5; 16], [6; 16]])),
        time: SharedTime::default(),
        lists: Arc::new(Lists::new(tags.clone())),
        tags,
    }
}

fn game_server() -> SocketAddr {
    "203.0.113.5:27960".parse().unwrap()
}

fn framed(text: &str) -> Vec<u8> {
    [&HEADER[..], text.as_bytes()].concat()
}

fn effect<'a>(rules: &Rules, now: Now, from: SocketAddr, bytes: &'a [u8]) -> (Effect<'a>, Vec<u8>) {
    let (view, mut reply) = (View::new(1, 0, Vec::new()), Reply::new());
    let effect = rules.datagram(&Context { now, view: &view }, from, bytes, &mut reply);
    (effect, reply.to_vec())
}

fn dropped(rules: &Rules, now: Now, from: SocketAddr, bytes: &[u8]) -> &'static EventKind {
    match effect(rules, now, from, bytes) {
        (Effect::Dropped(event), reply) if reply.is_empty() => event.kind,
        other => panic!("{other:?}"),
    }
}

/// The challenge that a heartbeat with this tag is answered with.
fn challenge(rules: &Rules, now: Now, from: SocketAddr, tag: &str) -> String {
    let heartbeat = framed(&format!("heartbeat {tag}\n"));
    let (effect, reply) = effect(rules, now, from, &heartbeat);
    assert!(matches!(effect, Effect::Announced(event, Change::Announcing { address, .. })
            if event.kind == &events::GETINFO_SENT && event.port == from.port() && address.socket() == from));
    assert!(reply.len() * 10 <= heartbeat.len() * 15, "{} bytes for {}", reply.len(), heartbeat.len());
    let text = reply.strip_prefix(b"\xff\xff\xff\xffgetinfo ").unwrap();
    String::from_utf8(text.to_vec()).unwrap()
}

/// The infoResponse with these keys to a heartbeat with this tag.
fn info(rules: &Rules, tag: &str, keys: &str) -> Vec<u8> {
    let challenge = challenge(rules, T, game_server(), tag);
    framed(&format!("infoResponse\n{keys}\\challenge\\{challenge}"))
}

const GOOD: &str =
    r"\sv_maxclients\8\clients\3\bots\1\mapname\oa_dm1\hostname\^1A ^7server\protocol\71\gametype\4\g_needpass\1";

fn announced<'a>(rules: &Rules, now: Now, bytes: &'a [u8]) -> Announce<'a> {
    match effect(rules, now, game_server(), bytes) {
        (Effect::Change(Change::Announce(announce)), reply) if reply.is_empty() => announce,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_with_our_challenge_lists_the_server() {
    let rules = rules();
    let bytes = info(&rules, "QuakeArena-1", GOOD);
    let announce = announced(&rules, later(80), &bytes);
    assert_eq!(announce.address, "203.0.113.5:27960".parse().unwrap());
    assert_eq!((announce.game.protocol(), announce.game.name()), (NAME, "Quake3Arena"), "as old games do not say");
    assert_eq!((announce.proof, announce.proven_at_ms, announce.life_ms), (Proof::Query, T.unix_ms, 900_000));
    assert!(announce.asked && announce.rtt_us.is_none());
    let facts = &announce.facts;
    assert_eq!((&*facts.name, &*facts.map, &*facts.mode), ("A server", "oa_dm1", "4"));
    assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(2), Some(8), Some(true)));
    assert_eq!((facts.rule("hostname"), facts.rule("clients")), (Some("^1A ^7server"), Some("3")));
    let keys = announce.keys.unwrap();
    for (key, value) in [
        (GAME_KEY, &b"Quake3Arena"[..]),
        (PROTOCOL_KEY, b"71"),
        (GAME_TYPE_KEY, b"4"),
        (TAG_KEY, b"QuakeArena-1"),
        (b"port", b"27960"),
    ] {
        assert_eq!(keys.get(key), Some(value));
    }
}

#[test]
fn the_tag_decides_about_the_gamename() {
    let rules = rules();
    let listed = |tag: &str, name: &str| {
        let bytes = info(&rules, tag, &format!(r"{GOOD}\gamename\{name}"));
        announced(&rules, T, &bytes).game.name().to_string()
    };
    assert_eq!(listed("DarkPlaces", "Xonotic"), "Xonotic");
    assert_eq!(listed("DarkPlaces", "Quake3Arena"), "Quake3Arena");
    assert_eq!(listed("EnemyTerritory-1", "et"), "et");
    let refused =
        |tag: &str, more: &str| dropped(&rules, T, game_server(), &info(&rules, tag, &format!("{GOOD}{more}")));
    assert_eq!(refused("DarkPlaces", ""), &events::NO_GAME_NAME);
    assert_eq!(refused("QuakeArena-1", r"\gamename\et"), &events::OTHER_GAME);
    assert_eq!(refused("Wolfenstein-1", r"\gamename\WOLFMP"), &events::OTHER_GAME);
    assert_eq!(refused("DarkPlaces", r"\gamename\a b"), &events::BAD_GAME_NAME);
    assert_eq!(refused("DarkPlaces", r"\gamename\iceball"), &events::BAD_GAME_NAME, "another protocol's own");
}

#[test]
fn what_is_not_listed_gets_silence_and_a_reason() {
    let rules = rules();
    let refused = |keys: &str| dropped(&rules, T, game_server(), &info(&rules, "QuakeArena-1", keys));
    assert_eq!(refused(r"\sv_maxclients\8\clients\3"), &events::NO_PROTOCOL);
    assert_eq!(refused(r"\protocol\71\clients\3"), &events::NO_MAX_CLIENTS);
    assert_eq!(refused(r"\protocol\71\sv_maxclients\8"), &events::NO_CLIENTS);
    assert_eq!(refused(r"\protocol\71\sv_maxclients\8\clients\0\gametype\a b"), &events::BAD_GAME_TYPE);
    for (bytes, kind) in [
        (framed("heartbeat Nope\n"), &events::UNKNOWN_TAG),
        (framed("heartbeat ETFlatline-1\n"), &events::DEAD_TAG),
        (framed("heartbeat\n"), &events::NO_TAG),
        (framed("getservers x y"), &events::BAD_REQUEST),
        (framed("getserversExt 71"), &events::BAD_REQUEST),
        (framed("GETSERVERS 71 empty"), &event::UNKNOWN_MESSAGE),
        (framed("infoResponse\n\\protocol\\71"), &events::NO_CHALLENGE),
        (framed("infoResponse\n\\challenge\\A_ch4Lleng3"), &events::CHALLENGE_FORGED),
        (b"heartbeat DarkPlaces".to_vec(), &event::UNKNOWN_MESSAGE),
        (HEADER.to_vec(), &event::TOO_SHORT),
        (Vec::new(), &event::TOO_SHORT),
    ] {
        assert_eq!(dropped(&rules, T, game_server(), &bytes), kind, "{}", bytes.escape_ascii());
    }
    let heartbeat = framed("heartbeat DarkPlaces\n");
    assert_eq!(dropped(&rules, T, "203.0.113.5:0".parse().unwrap(), &heartbeat), &event::SOURCE_PORT_0);
    assert_eq!(dropped(&rules, T, "224.0.0.1:1".parse().unwrap(), &heartbeat), &event::SOURCE_ADDRESS);
}

#[test]
fn an_answer_counts_from_its_address_and_port_within_a_minute() {
    let rules = rules();
    let bytes = info(&rules, "QuakeArena-1", GOOD);
    for other in ["203.0.113.6:27960", "203.0.113.5:27961", "[2001:db8::1]:27960"] {
        assert_eq!(dropped(&rules, T, other.parse().unwrap(), &bytes), &events::CHALLENGE_FORGED);
    }
    assert_eq!(dropped(&rules, later(60_001), game_server(), &bytes), &events::CHALLENGE_OLD);
    assert_eq!(announced(&rules, later(60_000), &bytes).proven_at_ms, T.unix_ms, "its life counts from the getinfo");
    let mapped = "[::ffff:203.0.113.5]:27960".parse().unwrap();
    assert!(matches!(effect(&rules, T, mapped, &bytes).0, Effect::Change(_)));
}

#[test]
fn a_handshake_ends_at_a_node_whose_clock_differs_by_an_hour() {
    let node = |off_ms: i64| {
        let time = SharedTime { ahead_of_mono_ms: Some(T.unix_ms as i64) };
        let now = move |ms: u64| Now { mono_ms: ms, unix_ms: (T.unix_ms + ms).saturating_add_signed(off_ms) };
        (Rules { time, ..rules() }, now)
    };
    for (first_ms, second_ms) in [(0, 3_600_000), (3_600_000, 0), (-2_500, 2_500)] {
        let ((first, first_now), (second, second_now)) = (node(first_ms), node(second_ms));
        let challenge = challenge(&first, first_now(5_000), game_server(), "QuakeArena-1");
        let bytes = framed(&format!("infoResponse\n{GOOD}\\challenge\\{challenge}"));
        let announce = announced(&second, second_now(5_080), &bytes);
        assert_eq!(announce.proven_at_ms, second_now(5_000).unix_ms, "in the second node's own time");
    }
}

/// A pretend game and the master's rules, in memory.
#[test]
fn a_game_announces_itself_and_is_found() {
    let rules = rules();
    let mut servers = Vec::new();
    for number in 0..60 {
        let facts = answer::pretend(number);
        let at = Address::new([203, 0, 113, number as u8].into(), 27_960).unwrap();
        let (_, getinfo) = effect(&rules, T, at.socket(), &announce::heartbeat(&facts));
        let answers = answer::answer(&facts, at, &getinfo);
        let view = View::new(1, 0, Vec::new());
        let effect =
            rules.datagram(&Context { now: later(20), view: &view }, at.socket(), &answers[0], &mut Reply::new());
        let Effect::Change(Change::Announce(announce)) = effect else { panic!("{effect:?}") };
        assert_eq!((announce.address, announce.game.name()), (at, &*facts.game));
        assert_eq!((&announce.facts.name, announce.facts.players_current), (&facts.name, facts.players_current));
        let server = Server::new(at, announce.game, announce.proof, announce.proven_at_ms, &announce.facts);
        servers.push((facts, Arc::new(Server { keys: announce.keys, ..server })));
    }
    let view = View::new(2, 0, servers.iter().map(|(_, server)| server.clone()).collect());
    for (request, game, protocol) in [
        ("getservers Xonotic 3 empty full", "Xonotic", "3"),
        ("getservers 71 empty full", "Quake3Arena", "71"),
        ("getservers 68 empty full\n", "Quake3Arena", "68"),
        ("getserversExt et 84", "et", "84"),
        ("getservers wolfmp 60 full empty", "wolfmp", "60"),
    ] {
        let (Effect::List(canonical), _) = effect(&rules, T, game_server(), framed(request).leak()) else { panic!() };
        let list = rules.list(&canonical).unwrap().render(&view).to_vec();
        let mut found: Vec<Address> =
            split(&list).flat_map(|packet| packets::decode(packet).unwrap().servers).collect();
        found.sort();
        let is_wanted =
            |facts: &crate::model::Facts<'_>| facts.game == game && facts.rule("protocol") == Some(protocol);
        let expected: Vec<Address> =
            servers.iter().filter(|(facts, _)| is_wanted(facts)).map(|(_, server)| server.address).collect();
        assert!(!expected.is_empty() && found == expected, "{request}: {found:?}, not {expected:?}");
    }
}

#[test]
fn a_list_is_cut_behind_any_packet_with_the_end_mark_in_its_place() {
    let rules = rules();
    let (suffix, end) = rules.last_packet();
    let servers = (1..=600).map(|port| Address::new([203, 0, 113, 5].into(), port).unwrap());
    let packets = packets::encode(false, servers, 99);
    for packet in packets.iter().take(packets.len() - 1) {
        let cut = [packet.strip_suffix(suffix).unwrap(), end].concat();
        let read = packets::decode(&cut).unwrap();
        assert!(read.end && cut.len() <= packets::PACKET_BYTES_MAX);
        assert_eq!(read.servers, packets::decode(packet).unwrap().servers);
    }
}

proptest! {
    #[test]
    fn nothing_is_answered_with_much_more_than_it_is(bytes: Vec<u8>, text in ".{0,80}") {
        let rules = rules();
        for bytes in [bytes, framed(&text), framed(&format!("heartbeat {text}")), framed(&format!("infoResponse{text}"))] {
            let (_, reply) = effect(&rules, T, game_server(), &bytes);
            prop_assert!(reply.is_empty() || reply.len() <= 34);
        }
    }

    #[test]
    fn no_made_up_info_is_believed(text in "[\\\\a-zA-Z0-9_-]{0,200}") {
        let rules = rules();
        let bytes = framed(&format!("infoResponse\n{text}{GOOD}"));
        prop_assert!(!matches!(effect(&rules, T, game_server(), &bytes).0, Effect::Change(_)));
    }
}

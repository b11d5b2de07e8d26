use super::*;
use crate::bytes::hex;
use crate::cookie::Keys;
use crate::model::Server;
use crate::protocols::event::EventKind;
use crate::protocols::packets::{addresses, split};
use crate::protocols::xash3d::list::Gate;
use crate::protocols::xash3d::{announce, answer};
use crate::registry::view::View;
use proptest::prelude::*;

/// The begin of a slot.
const T: Now = Now { mono_ms: 1_000, unix_ms: 1_760_000_000_000 };

fn later(ms: u64) -> Now {
    Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
}

fn rules() -> Rules {
    Rules {
        life_ms: 900_000,
        server_version_min: Version::default(),
        challenges: Challenges::new(&Keys::new([[4; 16], [5; 16], [6; 16]])),
        time: SharedTime::default(),
        lists: Arc::new(Lists::new(Gate::default())),
    }
}

fn game_server() -> SocketAddr {
    "203.0.113.5:27015".parse().unwrap()
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

fn challenge(rules: &Rules, now: Now) -> u32 {
    let (effect, reply) = effect(rules, now, game_server(), b"q\xff");
    assert!(matches!(effect, Effect::Answered(event) if event.kind == &events::CHALLENGE_SENT && event.port == 27_015));
    assert_eq!((reply.len(), &reply[..6]), (10, &b"\xff\xff\xff\xffs\n"[..]));
    u32::from_le_bytes(reply[6..].try_into().unwrap())
}

const GOOD: &str = r"\protocol\49\players\3\max\8\gamedir\cstrike\map\de_dust\type\d\os\l\version\0.21\region\255\bots\0\password\1\secure\0\lan\0\nat\0";

fn add(challenge: u32, keys: &str) -> Vec<u8> {
    format!("0\n\\challenge\\{challenge}{keys}\n").into_bytes()
}

fn announced<'a>(rules: &Rules, now: Now, bytes: &'a [u8]) -> Announce<'a> {
    match effect(rules, now, game_server(), bytes) {
        (Effect::Change(Change::Announce(announce)), reply) if reply.is_empty() => announce,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_returned_challenge_lists_the_server() {
    let rules = rules();
    let bytes = add(challenge(&rules, T), GOOD);
    for bytes in [&bytes[..], &bytes[..bytes.len() - 1]] {
        let announce = announced(&rules, later(80), bytes);
        assert_eq!(announce.address, "203.0.113.5:27015".parse().unwrap());
        assert_eq!((announce.game, announce.proof, announce.life_ms), (Game::Own(NAME), Proof::Cookie, 900_000));
        assert_eq!((announce.proven_at_ms, announce.rtt_us), (T.unix_ms + 80, None));
        let facts = &announce.facts;
        assert_eq!((&*facts.mode, &*facts.map, &*facts.version), ("cstrike", "de_dust", "0.21"));
        assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(3), Some(8), Some(true)));
    }
}

#[test]
fn the_games_own_number_comes_back_behind_ours() {
    let (_, reply) = effect(&rules(), T, game_server(), &hex("71ff78563412"));
    assert_eq!(reply.len(), 14);
    assert!(reply.starts_with(b"\xff\xff\xff\xffs\n") && reply.ends_with(&[0x78, 0x56, 0x34, 0x12]));
    assert_eq!(reply[6..10], challenge(&rules(), T).to_le_bytes());
    for bytes in ["71ff00", "71ff7856341200", "71ff785634"] {
        assert_eq!(dropped(&rules(), T, game_server(), &hex(bytes)), &events::CHALLENGE_LENGTH);
    }
}

#[test]
fn forged_foreign_and_old_challenges_are_refused() {
    let rules = rules();
    let given = challenge(&rules, T);
    let bytes = add(given, GOOD);
    assert_eq!(dropped(&rules, T, game_server(), &add(given ^ 0x100, GOOD)), &events::CHALLENGE_FORGED);
    for other in ["203.0.113.6:27015", "203.0.113.5:27016", "[2001:db8::1]:27015"] {
        assert_eq!(dropped(&rules, T, other.parse().unwrap(), &bytes), &events::CHALLENGE_FORGED);
    }
    announced(&rules, later(68_000), &bytes);
    assert_eq!(dropped(&rules, later(68_001), game_server(), &bytes), &events::CHALLENGE_OLD);
    assert_eq!(dropped(&rules, later(600_000), game_server(), &bytes), &events::CHALLENGE_FORGED);
    let mapped = "[::ffff:203.0.113.5]:27015".parse().unwrap();
    assert!(matches!(effect(&rules, T, mapped, &bytes).0, Effect::Change(_)));
}

/// The registry finds that a proof is not newer, and nothing changes.
#[test]
fn a_replayed_challenge_proves_no_later_time() {
    let rules = rules();
    let bytes = add(challenge(&rules, later(5_000)), GOOD);
    let at = |ms: u64| announced(&rules, later(ms), &bytes).proven_at_ms - T.unix_ms;
    assert_eq!((at(5_100), at(8_000), at(30_000), at(60_000)), (5_100, 8_000, 8_000, 8_000));
}

#[test]
fn what_is_not_listed_gets_silence_and_a_reason() {
    let rules = Rules { server_version_min: "0.21".parse().unwrap(), ..rules() };
    let given = challenge(&rules, T);
    let refused = |keys: &str| dropped(&rules, T, game_server(), &add(given, keys));
    assert_eq!(refused(r"\version\0.20"), &events::OLD_VERSION);
    assert_eq!(refused(r"\version\new"), &events::OLD_VERSION, "what does not parse counts as 0.0");
    assert_eq!(refused(""), &events::OLD_VERSION);
    let oldest = add(given, r"\version\0.21");
    assert_eq!(&*announced(&rules, T, &oldest).facts.version, "0.21");
    for keys in [r"\players\256", r"\players\-1", r"\max\x", r"\nat\2", r"\password\yes", r"\region\8", r"\bots\"] {
        assert_eq!(refused(keys), &events::BAD_VALUE, "{keys}");
    }
    assert_eq!(refused(&format!(r"\map\{}", "m".repeat(64))), &events::TOO_LONG);
    for (bytes, kind) in [
        (&b"0\n\\protocol\\49"[..], &events::NO_CHALLENGE),
        (b"0\nprotocol\\49", &events::NO_PAIRS),
        (b"0\n\\challenge\\1\\map\\a\0b", &events::NO_PAIRS),
        (b"0\n\\challenge\\1\n\n", &events::NO_PAIRS),
        (b"0\n\\challenge\\4294967296", &events::BAD_VALUE),
        (b"b\n", &events::REMOVE_IGNORED),
        (b"1\xff0.0.0.0:0\0\\clver\\abc\0", &events::BAD_QUERY),
        (b"1\xff0.0.0.0:0\0\\key\\xyz\0", &events::BAD_QUERY),
        (b"1\xff0.0.0.0:0\0\\nat\\2\0", &events::BAD_QUERY),
        (b"1\x080.0.0.0:0\0\0", &events::BAD_QUERY),
        (b"1\xff0.0.0.0:0", &events::BAD_QUERY),
        (b"1", &events::BAD_QUERY),
        (b"adminchallenge", &event::UNKNOWN_MESSAGE),
        (b"\xff\xff\xff\xffinfo x", &event::UNKNOWN_MESSAGE),
        (b"xy", &event::UNKNOWN_MESSAGE),
        (b"x", &event::TOO_SHORT),
        (b"", &event::TOO_SHORT),
    ] {
        assert_eq!(dropped(&rules, T, game_server(), bytes), kind, "{}", bytes.escape_ascii());
    }
    assert_eq!(dropped(&rules, T, "203.0.113.5:0".parse().unwrap(), b"q\xff"), &event::SOURCE_PORT_0);
    assert_eq!(dropped(&rules, T, "224.0.0.1:1".parse().unwrap(), b"q\xff"), &event::SOURCE_ADDRESS);
}

#[test]
fn a_server_behind_nat_is_not_queried_and_lives_for_five_minutes() {
    let rules = rules();
    let bytes = add(challenge(&rules, T), &GOOD.replace(r"\nat\0", r"\nat\1"));
    let announce = announced(&rules, T, &bytes);
    assert_eq!((announce.asked, announce.life_ms), (false, 300_000));
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
        let bytes = add(challenge(&first, first_now(5_000)), GOOD);
        let announce = announced(&second, second_now(5_080), &bytes);
        assert_eq!(announce.proven_at_ms, second_now(5_080).unix_ms, "in the second node's own time");
    }
}

#[test]
fn a_client_gets_servers_of_its_own_family_whatever_it_says() {
    let rules = rules();
    for (client, ipv6) in [("[2001:db8::1]:5", true), ("203.0.113.9:5", false), ("[::ffff:203.0.113.9]:5", false)] {
        for query in [&b"1\xff0.0.0.0:0\0\0"[..], b"1\xff[::]:0\0\0"] {
            let (Effect::List(request), _) = effect(&rules, T, client.parse().unwrap(), query) else { panic!() };
            let Ok(ToMaster::Query(wanted)) = ToMaster::parse(&request) else { panic!() };
            assert_eq!(wanted.ipv6, ipv6, "{client}");
        }
    }
}

#[test]
fn every_packet_repeats_the_clients_key() {
    let rules = rules();
    let query = hex(
        "31ff302e302e302e303a30005c67616d656469725c76616c76655c636c7665725c302e32315c6b65795c64656164626565665c6275696c646e756d5c3530303000",
    );
    let (Effect::List(request), _) = effect(&rules, T, game_server(), &query) else { panic!() };
    let echo = rules.echo(&request).unwrap();
    assert_eq!((echo.at, &echo.bytes[..]), (6, &hex("7fefbeadde08")[..]));
    let without = hex("31ff302e302e302e303a30005c67616d656469725c76616c76655c636c7665725c302e323100");
    let (Effect::List(request), _) = effect(&rules, T, game_server(), &without) else { panic!() };
    assert_eq!(rules.echo(&request), None);
}

/// A pretend game and the master's rules, in memory.
#[test]
fn a_game_announces_itself_and_is_found() {
    let rules = rules();
    let mut servers = Vec::new();
    for number in 0..40 {
        let facts = answer::pretend(number);
        let at = Address::new([203, 0, 113, number as u8].into(), 27_015).unwrap();
        let (_, reply) = effect(&rules, T, at.socket(), &announce::heartbeat(&facts));
        let answers = answer::answer(&facts, at, &reply);
        let view = View::new(1, 0, Vec::new());
        let effect =
            rules.datagram(&Context { now: later(20), view: &view }, at.socket(), &answers[0], &mut Reply::new());
        let Effect::Change(Change::Announce(announce)) = effect else { panic!("{effect:?}") };
        assert_eq!((announce.address, &announce.facts.mode), (at, &facts.mode));
        assert_eq!((&announce.facts.map, announce.facts.players_current), (&facts.map, facts.players_current));
        let server = Server::new(at, announce.game, announce.proof, announce.proven_at_ms, &announce.facts);
        servers.push(Arc::new(Server { keys: announce.keys, ..server }));
    }
    let view = View::new(2, 0, servers.clone());
    for gamedir in ["valve", "cstrike", "dod"] {
        let query = format!("1\u{7f}0.0.0.0:0\0\\gamedir\\{gamedir}\0").into_bytes();
        let query: Vec<u8> = query.into_iter().map(|byte| if byte == 0x7f { 255 } else { byte }).collect();
        let (Effect::List(request), _) = effect(&rules, T, game_server(), &query) else { panic!() };
        let list = rules.list(&request).unwrap().render(&view).to_vec();
        let mut found: Vec<Address> =
            split(&list).flat_map(|packet| packets::decode(packet, 0).unwrap().servers).collect();
        found.sort();
        let expected = servers.iter().filter(|server| server.texts.mode() == gamedir).map(|server| server.address);
        assert_eq!(found, expected.collect::<Vec<_>>(), "{gamedir}");
    }
}

#[test]
fn servers_behind_nat_are_told_of_the_client() {
    let rules = rules();
    let bytes = add(challenge(&rules, T), &GOOD.replace(r"\nat\0", r"\nat\1"));
    let announce = announced(&rules, T, &bytes);
    let server = Server::new(announce.address, announce.game, announce.proof, announce.proven_at_ms, &announce.facts);
    let view = View::new(2, 0, vec![Arc::new(Server { keys: announce.keys, ..server })]);
    let client = "127.0.0.1:54124".parse().unwrap();
    let (Effect::List(request), _) = effect(&rules, T, client, b"1\xff0.0.0.0:0\0\0") else { panic!() };
    let introduction = rules.introduction(&request, client).unwrap();
    assert_eq!(introduction.datagram[..], hex("ffffffff63203132372e302e302e313a3534313234"));
    let servers = introduction.servers.render(&view).to_vec();
    assert_eq!(addresses(&servers).collect::<Vec<_>>(), [announce.address]);
    let (Effect::List(info), _) = effect(&rules, T, client, b"\xff\xff\xff\xffinfo 49") else { panic!() };
    assert!(rules.introduction(&info, client).is_none());
}

proptest! {
    #[test]
    fn nothing_but_a_request_for_a_challenge_is_answered(bytes: Vec<u8>, text in ".{0,80}") {
        let rules = rules();
        for bytes in [bytes, text.clone().into_bytes(), format!("0\n{text}").into_bytes(), format!("1\x02{text}").into_bytes()] {
            let (_, reply) = effect(&rules, T, game_server(), &bytes);
            prop_assert!(reply.is_empty() || reply.len() <= 14 && bytes.starts_with(b"q\xff"));
        }
    }

    #[test]
    fn no_made_up_announcement_is_believed(challenge: u32) {
        let rules = rules();
        prop_assume!(challenge != super::tests::challenge(&rules, T));
        let bytes = add(challenge, GOOD);
        prop_assert!(!matches!(effect(&rules, T, game_server(), &bytes).0, Effect::Change(_)));
    }
}

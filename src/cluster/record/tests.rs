//! Records as they are written, read and refused.

use super::*;
use crate::model::Game;
use crate::model::Server;
use proptest::prelude::*;

const T: u64 = 1_760_000_000_000;
const NOW: Now = Now { mono_ms: 5_000, unix_ms: T };
const NONE: Offset = Offset { ms: 0 };

fn server(address: &str) -> Server {
    let player = Player { name: "Zoë".into(), team: Some("red".into()), ping: Some(-1), ..Player::default() };
    let details = Details { players: vec![player], rules: [("fraglimit", "20")].into() };
    let facts = Facts {
        name: "A \"server\"".into(),
        map: "mesa".into(),
        version: VersionText::from("0.2.1").unwrap(),
        players_current: Some(3),
        password: Some(false),
        details: Some(Arc::new(details)),
        ..Facts::default()
    };
    let game = Game::Own("netpanzer");
    let mut server = Server::new(address.parse().unwrap(), game, Proof::Query, T - 1_000, &facts);
    server.keys = Some(Arc::new(HeartbeatKeys([(b"port", b"\xff\x001")].into_iter().collect())));
    server.rtt_us = NonZeroU32::new(25_000);
    server.node = 77;
    server.first_seen_ms = T - 9_000;
    server
}

#[test]
fn every_value_of_a_node_begins_in_the_same_way() {
    let gone = Gone { address: "192.0.2.1:1".parse().unwrap(), at_ms: 1, game_at_ms: 0, quit: true, foreign: false };
    for by in ["one", "a \"node\"", "é"] {
        for local in [local(server("192.0.2.1:1")), LocalState::Gone(gone)] {
            let value = encode(by, T, &local, NONE);
            let other = start_by("on");
            assert!(value.starts_with(&start_by(by)) && !value.starts_with(&other), "{by}");
        }
    }
}

fn local(server: Server) -> LocalState {
    LocalState::Listed { server: Arc::new(server), life_left_ms: 60_000, asked: true, stronger_gone_ms: None }
}

fn read(value: &[u8]) -> Result<Record, RecordError> {
    decode("203.0.113.5:7".parse().unwrap(), value)
}

fn listed(remote: RemoteState<'static>) -> RemoteServer<'static> {
    match remote {
        RemoteState::Listed(listed) => listed,
        RemoteState::Gone(gone) => panic!("{gone:?}"),
    }
}

#[test]
fn keys_are_addresses_of_both_families() {
    for (text, expected) in
        [("203.0.113.5:20737", "v4.203-0-113-5.20737"), ("[2001:db8::1]:7", "v6.20010db8000000000000000000000001.7")]
    {
        let parsed: Address = text.parse().unwrap();
        assert_eq!(key(parsed), expected);
        assert_eq!(address(expected), Some(parsed));
    }
    for bad in
        ["", "v4", "v4.1-2-3-4", "v4.1-2-3-4.0", "v4.1-2-3.5", "v6.1.5", "node.a", "v4.0-0-0-0.5", "v4.224-0-0-1.5"]
    {
        assert_eq!(address(bad), None, "{bad}");
    }
    // One server must not have two keys.
    assert_eq!(address("v6.00000000000000000000ffffcb007105.7"), address("v4.203-0-113-5.7"));
}

#[test]
fn a_server_round_trips() {
    let before = server("203.0.113.5:7");
    let value = encode("a", T, &local(before.clone()), NONE);
    assert!(value.starts_with(
        br#"{"v":1,"by":"a","put":1760000000000,"listed":{"protocol":"netpanzer","game":"netpanzer","proof":"query""#
    ));
    let record = read(&value).unwrap();
    assert_eq!(record.by, "a");
    let (remote, ahead_ms) = record.into_local_time(T, NONE, NOW);
    let RemoteServer { announce, node, first_seen_ms, last_seen_ms, .. } = listed(remote);
    assert_eq!(ahead_ms, None);
    assert_eq!((node, first_seen_ms, last_seen_ms), (77, T - 9_000, T - 1_000));
    assert_eq!((announce.life_ms, announce.asked, announce.rtt_us), (60_000, true, Some(25_000)));
    assert_eq!((&announce.game, announce.proof, announce.proven_at_ms), (&before.game, Proof::Query, T - 1_000));
    assert_eq!(announce.keys, before.keys);
    assert!(before.matches_facts(&announce.facts), "{:?}", announce.facts);
}

#[test]
fn the_master_that_named_a_server_round_trips_bounded_and_clean() {
    let via = |name: &str| {
        let server = Server { via: Some(Arc::new(Origin::new(name))), ..server("203.0.113.5:7") };
        let value = encode("a", T, &local(server), NONE);
        assert!(String::from_utf8_lossy(&value).contains(r#""via":"#));
        listed(read(&value).unwrap().remote).via.unwrap().name().to_string()
    };
    assert_eq!(via("netpanzer://old.example"), "netpanzer://old.example");
    assert_eq!(via("a\u{1b}b"), "ab");
    assert_eq!(via(&"é".repeat(1_000)).len(), Origin::BYTES_MAX);
    let without = encode("a", T, &local(server("203.0.113.5:7")), NONE);
    assert!(!String::from_utf8_lossy(&without).contains("via"));
    assert_eq!(listed(read(&without).unwrap().remote).via, None);
}

#[test]
fn what_follows_from_a_servers_silence_round_trips() {
    for silence in [Silence::None, Silence::OthersAsk, Silence::Announces] {
        let value = encode("a", T, &local(server("203.0.113.5:7").with_silence(silence)), NONE);
        assert_eq!(String::from_utf8_lossy(&value).contains("silence"), silence != Silence::None);
        assert_eq!(listed(read(&value).unwrap().remote).silence, silence);
    }
}

/// Nodes of the previous version ignore an unknown field, and put records without a protocol.
#[test]
fn nodes_of_several_versions_read_each_other() {
    let value = encode("a", T, &local(server("203.0.113.5:7")), NONE);
    let text = String::from_utf8(value).unwrap();
    let game = |text: &str| read(text.as_bytes()).map(|record| listed(record.remote).announce.game);
    let with = |protocol: &str, name: &str| {
        let named = format!(r#""listed":{{{protocol}"game":"{name}""#);
        text.replace(r#""listed":{"protocol":"netpanzer","game":"netpanzer""#, &named)
    };
    assert_eq!(game(&with("", "netpanzer")), Ok(Game::Own("netpanzer")));
    assert_eq!(game(&with("", "iceball")), Ok(Game::Own("iceball")));
    assert_eq!(game(&with("", "tanks")), Ok(game_named("tanks").unwrap()));
    assert_eq!(game(&with(r#""protocol":"netpanzer","#, "tanks")), Ok(game_named("tanks").unwrap()));
    assert_eq!(game(&with(r#""protocol":"later","#, "tanks")), Err(RecordError::Protocol));
    assert_eq!(game(&with(r#""protocol":"netpanzer","#, "iceball")), Err(RecordError::Malformed));
    assert_eq!(game(&with(r#""later":[1],"#, "iceball")), Ok(Game::Own("iceball")));
}

#[test]
fn a_removal_round_trips() {
    let address = "203.0.113.5:7".parse().unwrap();
    let gone = Gone { address, at_ms: T - 5, game_at_ms: T - 5, quit: true, foreign: false };
    let value = encode("a", T, &LocalState::Gone(gone), NONE);
    let (remote, _) = read(&value).unwrap().into_local_time(T, NONE, NOW);
    assert!(matches!(remote, RemoteState::Gone(Gone { at_ms, quit: true, foreign: true, .. }) if at_ms == T - 5));
}

#[test]
fn a_clock_that_is_ahead_is_corrected_and_a_late_record_gains_nothing() {
    let value = encode("a", T, &local(server("203.0.113.5:7")), NONE);
    let settled = |created_ms, now_ms| {
        let now = Now { mono_ms: 5_000, unix_ms: now_ms };
        let (remote, ahead_ms) = read(&value).unwrap().into_local_time(created_ms, NONE, now);
        let announce = listed(remote).announce;
        (announce.proven_at_ms, announce.life_ms, ahead_ms)
    };
    assert_eq!(settled(T, T), (T - 1_000, 60_000, None));
    assert_eq!(settled(T - SKEW_MAX_MS, T), (T - 1_000, 60_000, None), "within the skew");
    // Put at T by its own clock, stored an hour earlier: all its timestamps are an hour ahead.
    let hour = 3_600_000;
    assert_eq!(settled(T - hour, T - hour), (T - hour - 1_000, 60_000, Some(hour)));
    // Put at T, stored an hour later: its life has ended meanwhile.
    assert_eq!(settled(T + hour, T + hour), (T - 1_000, 0, None));
    assert_eq!(settled(T + 10_000, T + 10_000), (T - 1_000, 50_000, None));
}

#[test]
fn a_node_whose_clock_is_off_converts_both_ways() {
    let behind = Offset { ms: 3_599_990 };
    let value = encode("a", T, &local(server("203.0.113.5:7")), behind);
    let record = read(&value).unwrap();
    assert_eq!(record.put_ms, T + 3_599_990);
    let (remote, ahead_ms) = record.into_local_time(T + 3_600_010, behind, NOW);
    let announce = listed(remote).announce;
    assert_eq!((announce.proven_at_ms, announce.life_ms, ahead_ms), (T - 1_000, 60_000, None));
}

#[test]
fn what_is_strange_is_refused_and_what_is_dirty_is_cleaned() {
    assert_eq!(read(b"").unwrap_err(), RecordError::Malformed);
    assert_eq!(read(b"{\"v\":1}").unwrap_err(), RecordError::Malformed);
    assert_eq!(read(b"{\"v\":2,\"by\":\"a\",\"new\":[]}").unwrap_err(), RecordError::Version(2));
    assert_eq!(read(&vec![b' '; VALUE_BYTES_MAX + 1]).unwrap_err(), RecordError::TooLong);
    let value = String::from_utf8(encode("a", T, &local(server("203.0.113.5:7")), NONE)).unwrap();
    assert_eq!(read(value.replace("\"query\"", "\"magic\"").as_bytes()).unwrap_err(), RecordError::Malformed);
    assert_eq!(
        read(value.replace(r#""game":"netpanzer""#, r#""game":"""#).as_bytes()).unwrap_err(),
        RecordError::Malformed
    );
    let dirty = value.replace("mesa", r"me\u001bsa\u202e").replace("\"left\":60000", "\"left\":999999999999999");
    let (remote, _) = read(dirty.as_bytes()).unwrap().into_local_time(T, NONE, NOW);
    let announce = listed(remote).announce;
    assert_eq!((announce.facts.map.as_ref(), announce.life_ms), ("mesa", LIFE_MS_MAX));
    let long = value.replace("mesa", &"é".repeat(PART_BYTES_MAX));
    let (remote, _) = read(long.as_bytes()).unwrap().into_local_time(T, NONE, NOW);
    assert_eq!(listed(remote).announce.facts.map.len(), PART_BYTES_MAX);
}

#[test]
fn a_value_that_would_be_too_long_has_no_details() {
    let mut server = server("203.0.113.5:7");
    let rules = (0..100).map(|_| ("r", "\"".repeat(PART_BYTES_MAX))).collect();
    server.details = Some(Arc::new(Details { players: Vec::new(), rules }));
    let value = encode("a", T, &local(server), NONE);
    assert!(value.len() < 1_000);
    let (remote, _) = read(&value).unwrap().into_local_time(T, NONE, NOW);
    assert_eq!(listed(remote).announce.facts.details, None);
}

/// A list of mods has several kilobytes. A node that cut it would put the stump as the server's own words.
#[test]
fn long_rules_are_whole_on_the_other_node_and_on_the_next() {
    let mods = (0..400).map(|number| format!("mod_{number:05}")).collect::<Vec<_>>().join(",");
    assert!(mods.len() > 3_900);
    let mut sent = server("203.0.113.5:7");
    let rules = [("mods", &*mods), ("long", &"x".repeat(Details::BYTES_MAX)), ("pvp", "1")].into();
    sent.details = Some(Arc::new(Details { players: Vec::new(), rules }));
    for _node in ["b", "c"] {
        let back = listed(read(&encode("a", T, &local(sent.clone()), NONE)).unwrap().remote).announce.facts;
        let details = back.details.unwrap();
        assert_eq!(details.rules, [("mods", &*mods), ("pvp", "1")].into(), "whole, or not at all");
        sent.details = Some(details);
    }
}

#[test]
fn records_of_the_previous_version_are_read() {
    let value = br#"{"v":1,"by":"b","put":1760000000000,"listed":{"protocol":"netpanzer","game":"netpanzer","proof":"query","node":7,"at":1759999999000,"seen":1759999999000,"first":1759999990000,"left":60000,"asked":true,"name":"Old","details":{"people":[{"name":"Zo"}],"rules":[["mods","a,b"],["pvp","1"]]},"keys":[["gamename","netpanzer"]]}}"#;
    let facts = listed(read(value).unwrap().remote).announce.facts;
    assert_eq!((&*facts.name, facts.rule("mods"), facts.rule("pvp")), ("Old", Some("a,b"), Some("1")));
    assert_eq!(&*facts.details.unwrap().players[0].name, "Zo");
}

#[test]
fn team_names_round_trip() {
    let back = |name: &str| {
        let mut server = server("203.0.113.5:7");
        let player = Player { name: "Zoë".into(), team: Some(name.to_string().into()), ..Player::default() };
        server.details = Some(Arc::new(Details { players: vec![player], rules: Default::default() }));
        let value = encode("a", T, &local(server), NONE);
        let (remote, _) = read(&value).unwrap().into_local_time(T, NONE, NOW);
        listed(remote).announce.facts.details.unwrap().players[0].team.clone()
    };
    for name in ["red", "none", "green", "Équipe 4"] {
        assert_eq!(back(name).as_deref(), Some(name));
    }
    assert!(matches!(back("blue"), Some(Cow::Borrowed("blue"))), "shared, not copied");
    assert_eq!(back("gr\u{1b}een").as_deref(), Some("green"));
    assert_eq!(back(&"x".repeat(1_000)).unwrap().len(), TEAM_BYTES_MAX);
    assert_eq!(back("\u{7}"), None);
}

#[test]
fn the_number_of_a_records_keys_is_bounded() {
    let mut server = server("203.0.113.5:7");
    let pairs = (0..=KEYS_MAX).map(|number| (number.to_string(), b"1"));
    server.keys = Some(Arc::new(HeartbeatKeys(pairs.collect())));
    let value = encode("a", T, &local(server), NONE);
    let (remote, _) = read(&value).unwrap().into_local_time(T, NONE, NOW);
    let keys = listed(remote).announce.keys.unwrap();
    assert_eq!((keys.0.len(), KEYS_MAX), (64, 64));
    assert_eq!((keys.get(b"63"), keys.get(b"64")), (Some(&b"1"[..]), None), "the first ones stay");
}

#[test]
fn player_counts_are_limited_to_what_the_game_allows() {
    let mut server = server("203.0.113.5:7");
    (server.players_current, server.players_max) = (Some(65_535), Some(60_000));
    let (remote, _) = read(&encode("a", T, &local(server), NONE)).unwrap().into_local_time(T, NONE, NOW);
    let facts = listed(remote).announce.facts;
    assert_eq!((facts.players_current, facts.players_max), (Some(255), Some(255)));
}

proptest! {
    #[test]
    fn nothing_panics(bytes: Vec<u8>, at: usize, byte: u8, cut: usize, created: u64, now: u64) {
        let _ = read(&bytes);
        let mut value = encode("a", T, &local(server("203.0.113.5:7")), NONE);
        let _ = read(&value[..cut % value.len()]);
        let at = at % value.len();
        value[at] = byte;
        if let Ok(record) = read(&value) {
            let _ = record.into_local_time(created, NONE, Now { mono_ms: 0, unix_ms: now });
        }
        let _ = address(&String::from_utf8_lossy(&bytes));
    }
}

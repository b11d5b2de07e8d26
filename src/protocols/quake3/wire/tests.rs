use super::*;
use crate::bytes::hex;
use proptest::prelude::*;

fn framed(text: &[u8]) -> Vec<u8> {
    [&HEADER[..], text].concat()
}

fn list(text: &str) -> Result<GetServers<'static>, WireError> {
    let bytes: &'static [u8] = Box::leak(framed(text.as_bytes()).into_boxed_slice());
    match ToMaster::parse(bytes)? {
        ToMaster::List(list) => Ok(list),
        other => panic!("{other:?}"),
    }
}

fn emitted(request: &GetServers<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.emit(&mut bytes);
    bytes
}

#[test]
fn heartbeats_of_real_servers() {
    let openarena = hex("ffffffff686561727462656174205175616b654172656e612d310a");
    assert_eq!(ToMaster::parse(&openarena), Ok(ToMaster::Heartbeat { tag: b"QuakeArena-1" }));
    let darkplaces = hex("ffffffff686561727462656174204461726b506c616365730a");
    assert_eq!(ToMaster::parse(&darkplaces), Ok(ToMaster::Heartbeat { tag: b"DarkPlaces" }));
    assert_eq!(ToMaster::parse(&framed(b"heartbeat x")), Ok(ToMaster::Heartbeat { tag: b"x" }), "without a line end");
    assert_eq!(ToMaster::parse(&framed(b"heartbeat \n")), Err(WireError::NoTag));
}

#[test]
fn an_info_response_of_a_real_server() {
    let bytes = framed(
        br"infoResponse
\voip\opus\g_needpass\0\pure\1\gametype\0\sv_maxclients\8\g_humanplayers\0\clients\0\mapname\oa_dm1\hostname\Loopback ^1OA\protocol\71\gamename\Quake3Arena\challenge\A_ch4Lleng3",
    );
    let Ok(ToMaster::InfoResponse(info)) = ToMaster::parse(&bytes) else { panic!() };
    assert_eq!(info.get(b"challenge"), Some(&b"A_ch4Lleng3"[..]));
    assert_eq!(info.get(b"hostname"), Some(&b"Loopback ^1OA"[..]));
    assert_eq!(info.get(b"protocol").and_then(integer), Some(71));
    assert_eq!((info.get(b"nothing"), info.pairs().count()), (None, 12));
}

#[test]
fn counts_as_c_reads_them() {
    let info = InfoString::new(br"\a\8\b\8x\c\-1\d\99999\e\ +3\f\x\g\").index();
    let counts: Vec<_> = [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"].map(|key| info.count(key)).into();
    assert_eq!(counts, [Some(8), Some(8), Some(0), Some(65_535), Some(3), Some(0), Some(0), None]);
}

#[test]
fn an_index_has_the_same_values_however_many_there_are() {
    for pairs in [0, 1, 47, 48, 49, 200] {
        let text: String = (0..pairs).map(|number| format!(r"\k{number}\{number}\k0\again")).collect();
        let info = InfoString::new(text.as_bytes());
        let index = info.index();
        assert!(index.pairs().eq(info.pairs()));
        for number in 0..=pairs {
            let key = format!("k{number}");
            assert_eq!(index.get(key.as_bytes()), info.get(key.as_bytes()), "{key} of {pairs}");
        }
    }
}

#[test]
fn questions_to_a_game() {
    assert_eq!(
        ToGame::parse(&hex("ffffffff676574696e666f20415f6368344c6c656e6733")),
        Ok(ToGame::Info { challenge: b"A_ch4Lleng3" })
    );
    assert_eq!(ToGame::parse(&hex("ffffffff6765747374617475732058797a")), Ok(ToGame::Status { challenge: b"Xyz" }));
    assert_eq!(ToGame::parse(&framed(b"getinfo\n")), Ok(ToGame::Info { challenge: b"" }), "quakestat's short form");
    assert_eq!(ToGame::parse(&framed(b"getstuff")), Err(WireError::UnknownCommand));
}

#[test]
fn of_a_key_given_twice_the_first_counts_and_long_ones_are_ignored() {
    let long = "x".repeat(256);
    let text = format!(r"\a\1\a\2\{long}\3\b\{long}\c\4\\5\d");
    let info = InfoString::new(text.as_bytes());
    let pairs: Vec<_> = info.pairs().collect();
    assert_eq!(info.get(b"a"), Some(&b"1"[..]));
    assert_eq!(format!("{:?}", InfoString::new(b"\\a\\\x01")), r"a\\\x01");
    assert_eq!(pairs, [(&b"a"[..], &b"1"[..]), (b"a", b"2"), (b"c", b"4")]);
}

#[test]
fn the_text_ends_at_the_first_nul() {
    let bytes = framed(b"heartbeat DarkPlaces\0\nrest");
    assert_eq!(ToMaster::parse(&bytes), Ok(ToMaster::Heartbeat { tag: b"DarkPlaces" }));
}

#[test]
fn requests_of_quakestat() {
    let plain = |game, protocol| GetServers {
        extended: false,
        game,
        protocol,
        empty: true,
        full: true,
        game_type: None,
        ipv4: true,
        ipv6: false,
    };
    let seen = [
        ("ffffffff6765747365727665727320363820656d7074792066756c6c0a", plain(None, 68)),
        ("ffffffff6765747365727665727320373120656d7074792066756c6c", plain(None, 71)),
        ("ffffffff67657473657276657273204e657875697a203320656d7074792066756c6c", plain(Some(b"Nexuiz"), 3)),
        ("ffffffff6765747365727665727320586f6e6f746963203320656d7074792066756c6c", plain(Some(b"Xonotic"), 3)),
    ];
    for (bytes, expected) in seen {
        assert_eq!(ToMaster::parse(&hex(bytes)), Ok(ToMaster::List(expected)));
    }
    assert_eq!(emitted(&plain(Some(b"Xonotic"), 3)), hex(seen[3].0));
}

#[test]
fn options_in_any_order_and_with_any_white_space() {
    let parsed = list("getservers \t 71\nfull  gametype=ctf2\tunknown empty\n").unwrap();
    assert!(parsed.empty && parsed.full && parsed.game_type == Some(b"ctf2") && parsed.ipv4 && !parsed.ipv6);
    for (word, game_type) in [("ffa", b"0"), ("tourney", b"1"), ("team", b"3"), ("ctf", b"4")] {
        assert_eq!(list(&format!("getservers 71 {word}")).unwrap().game_type, Some(&game_type[..]));
    }
    for (options, families) in
        [("", (true, true)), ("ipv4", (true, false)), ("ipv6", (false, true)), ("ipv4 ipv6", (true, true))]
    {
        let parsed = list(&format!("getserversExt Xonotic 3 {options}")).unwrap();
        assert_eq!((parsed.ipv4, parsed.ipv6), families, "{options}");
    }
    let plain = list("getservers Xonotic 3 ipv6").unwrap();
    assert_eq!((plain.ipv4, plain.ipv6), (true, false), "a plain list has no IPv6");
}

#[test]
fn what_is_no_message_says_why() {
    for bytes in [&b""[..], b"\xff\xff\xff", b"\xff\xff\xff\xff", b"heartbeat DarkPlaces"] {
        assert_eq!(ToMaster::parse(bytes), Err(WireError::NoHeader), "{bytes:?}");
    }
    assert_eq!(ToMaster::parse(&framed(b"GETSERVERS 71 empty")), Err(WireError::UnknownCommand));
    for (text, error) in [
        ("getservers", WireError::NoProtocol),
        ("getservers x y", WireError::NoProtocol),
        ("getservers Xonotic", WireError::NoProtocol),
        ("getserversExt", WireError::BadGame),
        ("getserversExt Xonotic", WireError::NoProtocol),
    ] {
        assert_eq!(list(text), Err(error), "{text}");
    }
    assert_eq!(list(&format!("getservers {} 3", "x".repeat(64))), Err(WireError::BadGame));
    assert_eq!(WireError::NoTag.to_string(), "the heartbeat has no tag");
}

#[test]
fn integers_as_c_reads_them() {
    for (text, number) in [("71", 71), ("0x47", 71), ("010", 8), ("0", 0), ("-1", -1), ("+3", 3)] {
        assert_eq!(integer(text.as_bytes()), Some(number), "{text}");
    }
    for text in ["", "-", "--1", "+-1", "0x", "0x-1", "7a", "7 ", "99999999999", "09"] {
        assert_eq!(integer(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn a_status_with_players() {
    let bytes = framed(
        b"statusResponse\n\\challenge\\Xyz\\sv_hostname\\A ^1B\\mapname\\oa_dm1\\d0_blind_id\\x\n0 0 \"Sarge\"\n-3 48 1 \"A \"B\"\n5:2 9 \"\"\nnonsense\n",
    );
    let status = StatusResponse::parse(&bytes).unwrap();
    assert_eq!(status.info.get(b"challenge"), Some(&b"Xyz"[..]));
    let players: Vec<_> = status.players().collect();
    assert_eq!(
        players,
        [
            PlayerLine { score: Some(0), ping: Some(0), team: None, name: b"Sarge" },
            PlayerLine { score: Some(-3), ping: Some(48), team: Some(b"1"), name: b"A \"B" },
            PlayerLine { score: None, ping: Some(9), team: None, name: b"" },
        ]
    );
    assert_eq!(StatusResponse::parse(&framed(b"infoResponse\n\\a\\b")), Err(WireError::UnknownCommand));
}

#[test]
fn questions_have_no_line_end() {
    let mut out = Vec::new();
    ask("getinfo", b"A_ch4Lleng3", &mut out);
    assert_eq!(out, hex("ffffffff676574696e666f20415f6368344c6c656e6733"));
}

#[test]
fn colours_are_stripped() {
    for (text, plain) in [
        ("Loopback ^1OA", "Loopback OA"),
        ("^xF00red ^7white", "red white"),
        ("^xZZZodd", "ZZZodd"),
        ("a^^1b", "a^1b"),
        ("end^", "end^"),
        ("^ b", "^ b"),
        ("^é", "^é"),
        ("^x1é2", "1é2"),
    ] {
        assert_eq!(without_colours(text.into()), plain, "{text}");
    }
}

proptest! {
    #[test]
    fn anything_can_be_read(bytes: Vec<u8>, command in 0..5usize) {
        let commands = ["", "heartbeat ", "infoResponse\n", "getservers ", "getserversExt "];
        let bytes = framed(&[commands[command].as_bytes(), &bytes].concat());
        if let Ok(ToMaster::InfoResponse(info)) = ToMaster::parse(&bytes) {
            prop_assert!(info.pairs().all(|(key, value)| key.len() <= 255 && value.len() <= 255));
        }
        if let Ok(status) = StatusResponse::parse(&framed(&[b"statusResponse\n", &bytes[4..]].concat())) {
            prop_assert!(status.players().count() <= bytes.len());
        }
    }

    #[test]
    fn requests_round_trip(extended: bool, protocol: i32, empty: bool, full: bool, families in 0..3u8,
            game in proptest::option::of("[A-Za-z][A-Za-z0-9-]{0,20}"), game_type in proptest::option::of("[a-z0-9]{1,9}")) {
        let game = game.as_deref().or(extended.then_some("Xonotic"));
        let request = GetServers {
            extended, protocol, empty, full,
            game: game.map(str::as_bytes),
            game_type: game_type.as_deref().map(str::as_bytes),
            ipv4: !extended || families != 1,
            ipv6: extended && families != 2,
        };
        let bytes = emitted(&request);
        prop_assert_eq!(ToMaster::parse(&bytes), Ok(ToMaster::List(request)));
    }

    #[test]
    fn stripping_leaves_no_colour_and_never_grows(text: String) {
        prop_assert!(without_colours((&*text).into()).len() <= text.len());
    }
}

use super::*;
use crate::bytes::hex;
use proptest::prelude::*;

const ADD: &str = "300a5c70726f746f636f6c5c34395c6368616c6c656e67655c313333363730343535365c706c61796572735c305c6d61785c385c67616d656469725c76616c76655c6d61705c63726f7373666972655c747970655c645c6f735c6c5c76657273696f6e5c302e32315c726567696f6e5c3235355c626f74735c305c70617373776f72645c305c7365637572655c305c6c616e5c305c6e61745c300a";
const QUERY: &str = "31ff302e302e302e303a30005c67616d656469725c76616c76655c636c7665725c302e32315c6b65795c64656164626565665c6275696c646e756d5c3530303000";
const UPDATE: &str = "ffffffff696e666f0a5c705c34385c6d61705c55706461746520706c656173655c646d5c315c7465616d5c305c636f6f705c305c6e756d636c5c305c6d6178636c5c33325c67616d656469725c76616c76655c70617373776f72645c305c6465646963617465645c305c686f73745c68747470733a2f2f6769746875622e636f6d2f465747532f7861736833642d66776773";
const INFO: &str = "ffffffff696e666f0a5c705c34395c6d61705c63726f7373666972655c646d5c315c7465616d5c305c636f6f705c305c6e756d636c5c315c6d6178636c5c385c67616d656469725c736f6c6f5c70617373776f72645c305c6465646963617465645c315c686f73745c4c6f6f702058";

fn emitted(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit(&mut bytes);
    bytes
}

#[test]
fn challenges_of_both_lengths() {
    assert_eq!(ToMaster::parse(&hex("71ff")), Ok(ToMaster::Challenge { number: None }));
    assert_eq!(ToMaster::parse(&hex("71ff78563412")), Ok(ToMaster::Challenge { number: Some(305_419_896) }));
    for (answer, challenge, number) in [
        ("ffffffff730ad8b8b550", 1_354_086_616, None),
        ("ffffffff730ae9017fe978563412", 3_917_414_889, Some(305_419_896)),
    ] {
        assert_eq!(emitted(|out| answer_challenge(challenge, number, out)), hex(answer));
        assert_eq!(challenge_answer(&hex(answer)), Some((challenge, number)));
        assert_eq!(emitted(|out| request_challenge(number, out)).len(), if number.is_some() { 6 } else { 2 });
    }
    assert_eq!(challenge_answer(&hex("ffffffff730ad8b8b55000")), None);
}

#[test]
fn an_announcement_of_a_game() {
    let bytes = hex(ADD);
    let Ok(ToMaster::Add(add)) = ToMaster::parse(&bytes) else { panic!() };
    assert_eq!((add.challenge, add.protocol, add.players, add.max, add.region), (1_336_704_556, 49, 0, 8, 255));
    assert_eq!((add.gamedir, add.map, add.kind, add.os), (&b"valve"[..], &b"crossfire"[..], &b"d"[..], &b"l"[..]));
    assert_eq!(add.version, Version { major: 0, minor: 21, patch: 0 });
    assert_eq!(add.flags, Flags(Flags::DEDICATED | Flags::EMPTY));
    assert_eq!(emitted(|out| add.emit(out)), bytes);
    assert_eq!(ToMaster::parse(&bytes[..bytes.len() - 1]), Ok(ToMaster::Add(add)), "the engine forgets the line end");
    let longest = format!("0\n\\challenge\\1\\gamedir\\{0}\\map\\{0}\\lan\\1\\max\\8", "m".repeat(FIELD_BYTES_MAX));
    let Ok(ToMaster::Add(add)) = ToMaster::parse(longest.as_bytes()) else { panic!() };
    assert_eq!(add.flags, Flags(Flags::LAN | Flags::EMPTY));
    let twice = b"0\n\\challenge\\1\\map\\a\\map\\b\\product\\x\\unknown\\y";
    let Ok(ToMaster::Add(add)) = ToMaster::parse(twice) else { panic!() };
    assert_eq!(add.map, b"b", "the last counts");
}

#[test]
fn a_request_for_a_list() {
    let bytes = hex(QUERY);
    let Ok(ToMaster::Query(wanted)) = ToMaster::parse(&bytes) else { panic!() };
    assert_eq!((wanted.region, wanted.gamedir, wanted.map), (WORLD, Some(&b"valve"[..]), None));
    assert_eq!((wanted.key, wanted.build, wanted.protocol), (Some(0xdead_beef), Some(5_000), None));
    assert_eq!((wanted.version, wanted.mask), ("0.21".parse().ok(), Flags(0)));
    assert_eq!(ToMaster::parse(&bytes[..bytes.len() - 1]), Ok(ToMaster::Query(wanted)), "the last NUL is optional");
    let of_tool = hex("31ff302e302e302e303a30005c67616d656469725c736f6c6f00");
    let solo = Wanted { region: WORLD, gamedir: Some(b"solo"), ..Wanted::default() };
    assert_eq!(ToMaster::parse(&of_tool), Ok(ToMaster::Query(solo)));
    assert_eq!(emitted(|out| solo.emit(out)), of_tool);
    let empty = Wanted { region: 0, ..Wanted::default() };
    for bytes in [&b"1\x000.0.0.0:0\0\0"[..], b"1\x000.0.0.0:0\0", b"1\0\0"] {
        assert_eq!(ToMaster::parse(bytes), Ok(ToMaster::Query(empty)));
    }
}

#[test]
fn flags_want_a_server_to_be_or_not_to_be() {
    let Ok(ToMaster::Query(wanted)) =
        ToMaster::parse(b"1\xff0.0.0.0:0\0\\dedicated\\1\\nat\\0\\noplayers\\1\\empty\\0\\x\\y\0")
    else {
        panic!()
    };
    assert_eq!(wanted.mask, Flags(Flags::DEDICATED | Flags::NAT | Flags::EMPTY));
    assert_eq!(wanted.flags, Flags(Flags::DEDICATED));
}

#[test]
fn versions() {
    for (text, expected) in
        [("0.21", (0, 21, 0)), ("0.19.3", (0, 19, 3)), ("1", (1, 0, 0)), ("255.255.255", (255, 255, 255))]
    {
        let version: Version = text.parse().unwrap();
        assert_eq!((version.major, version.minor, version.patch), expected);
        assert_eq!(version.to_string().parse(), Ok(version));
    }
    for bad in ["", "a", "0.", "0.256", "0.1.2.3", "+1", "0.-1", "0.21-rc"] {
        assert_eq!(bad.parse::<Version>(), Err(()), "{bad}");
    }
    assert!("0.19.9".parse::<Version>().unwrap() < Version::SPEAKS_NEW);
}

#[test]
fn what_games_answer() {
    assert_eq!(emitted(|out| ask_info(49, out)), hex("ffffffff696e666f203439"));
    assert_eq!(ToMaster::parse(&hex("ffffffff696e666f203439")), Ok(ToMaster::Info { protocol: 49 }));
    assert_eq!(info_request(b"\xff\xff\xff\xffinfo 48\n\0"), Some(48));
    let bytes = hex(INFO);
    let info = Info::parse(&bytes).unwrap();
    assert_eq!(
        (info.protocol, info.host, info.map, info.gamedir),
        (49, &b"Loop X"[..], &b"crossfire"[..], &b"solo"[..])
    );
    assert_eq!((info.players, info.max, info.deathmatch, info.dedicated), (1, 8, true, true));
    assert_eq!(emitted(|out| info.emit(out)), bytes);
    assert_eq!(Info::parse(&[&bytes[..], b"\0"].concat()), Ok(info), "a NUL at the end is optional");
    assert_eq!(Info::parse(b"\xff\xff\xff\xffinfo\nMy server: wrong version\n"), Err(WireError::WrongVersion));
    let long = |bytes| format!("\\gamedir\\{}", "g".repeat(bytes));
    let long = |bytes| [b"\xff\xff\xff\xffinfo\n", long(bytes).as_bytes()].concat();
    assert!(Info::parse(&long(FIELD_BYTES_MAX)).is_ok());
    assert_eq!(Info::parse(&long(FIELD_BYTES_MAX + 1)), Err(WireError::TooLong));
    let coop = Info::parse(b"\xff\xff\xff\xffinfo\n\\coop\\1\\team\\1").unwrap();
    assert!(coop.coop && coop.team && !coop.deathmatch);
    let update = hex(UPDATE);
    let info = Info::parse(&update).unwrap();
    assert_eq!((info.protocol, info.map), (48, &b"Update please"[..]));
    assert_eq!(emitted(|out| info.emit(out)), update);
}

#[test]
fn errors_say_what_is_wrong() {
    for (error, said) in [
        (WireError::UnknownMessage, "unknown message"),
        (WireError::NoChallenge, "the challenge is missing"),
        (WireError::WrongVersion, "it speaks another protocol version"),
    ] {
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn what_servers_behind_nat_are_sent() {
    let client = "127.0.0.1:54124".parse().unwrap();
    assert_eq!(emitted(|out| connect(client, out)), hex("ffffffff63203132372e302e302e313a3534313234"));
    let client = "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535".parse().unwrap();
    assert!(emitted(|out| connect(client, out)).ends_with(b"ffff]:65535"));
}

proptest! {
    #[test]
    fn anything_can_be_parsed(bytes: Vec<u8>) {
        for begin in [&b""[..], b"q\xff", b"0\n", b"1", b"1\xff0.0.0.0:0\0", b"\xff\xff\xff\xffinfo\n", b"\xff\xff\xff\xffinfo "] {
            let bytes = [begin, &bytes].concat();
            let _ = ToMaster::parse(&bytes);
            let _ = Info::parse(&bytes);
            let _ = challenge_answer(&bytes);
        }
    }

    #[test]
    fn a_request_survives_being_written_and_read_again(region in prop_oneof![0u8..8, Just(255)], ipv6: bool,
            gamedir in proptest::option::of("[a-z_]{0,80}"), map in proptest::option::of("[a-z0-9]{0,80}"),
            protocol: Option<u8>, flags in 0u16..256, mask in 0u16..256, build: Option<u32>, key: Option<u32>,
            version: Option<(u8, u8, u8)>) {
        let wanted = Wanted {
            region, ipv6, gamedir: gamedir.as_deref().map(str::as_bytes), map: map.as_deref().map(str::as_bytes), protocol,
            flags: Flags(flags & mask), mask: Flags(mask), build, key,
            version: version.map(|(major, minor, patch)| Version { major, minor, patch }),
        };
        let bytes = emitted(|out| wanted.emit(out));
        prop_assert_eq!(ToMaster::parse(&bytes), Ok(ToMaster::Query(wanted)));
    }
}

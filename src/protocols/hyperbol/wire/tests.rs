//! Recorded messages in both directions, round trips of generated ones, and invalid messages.

use super::*;
use crate::bytes::hex;
use crate::protocols::hyperbol::EXAMPLE;
use proptest::prelude::*;

const GREETING_HEX: &str = "4842534c02b0ad1b25000000";
const LIST_REQUEST_HEX: &str = "02b0ad1bff000000";
const LIST_HEX: &str = "4ca8b988652f0000000000004ca8b988612f000001000000cb00714dffff000007000000";
const QUERY_HEX: &str = "0278563412";
const INFO_HEX: &str = "1b78563412\
    56656b732043616c69666f726e696120444d0000000000000000000000000000\
    44656174686d6174636800000000000000000000000000000000000000000000\
    030800\
    615f646f6f6d6d6b69692e6862610000000000000000000000000000000000000000000000000000000000000000000000000000\
    000000000000000000000000\
    37362e3136382e3138352e31333600000000000000652f000000000000c0a8000a\
    312e3038620000000000000000000000\
    00000000000000000000000000000000000000000000000000000000000000000000000000\
    01020004000000";

fn list(bytes: &[u8]) -> Vec<Result<ListRecord, BadRecord>> {
    parse_list(bytes).unwrap().collect()
}

#[test]
fn greeting_and_request_in_both_directions() {
    let greeting = Greeting { key: 0x1bad_b002, players_total: 37 };
    assert_eq!(Greeting::parse(&hex(GREETING_HEX)), Ok(greeting));
    assert_eq!(greeting.emit().to_vec(), hex(GREETING_HEX));

    let request = ListRequest { key: greeting.key, filter: EVERYTHING };
    assert_eq!(ListRequest::parse(&hex(LIST_REQUEST_HEX)), Ok(request));
    assert_eq!(request.emit().to_vec(), hex(LIST_REQUEST_HEX));
}

#[test]
fn only_one_bit_of_the_filter_has_a_meaning() {
    for (filter, unofficial) in [
        (EVERYTHING, true),
        ([0x10, 0, 0, 0], true),
        ([0, 0, 0, 0], false),
        ([0xef, 0xff, 0xff, 0xff], false),
        ([0, 0x10, 0x10, 0x10], false),
    ] {
        assert_eq!(ListRequest { key: 0, filter }.wants_unofficial(), unofficial, "{filter:?}");
    }
}

#[test]
fn list_in_both_directions() {
    let servers = [("76.168.185.136:12133", 0), ("76.168.185.136:12129", 1), ("203.0.113.77:65535", 7)];
    let records: Vec<_> = servers.map(|(text, flavor)| ListRecord::new(text.parse().unwrap(), flavor)).into();
    assert_eq!(list(&hex(LIST_HEX)), records);
    let emitted: Vec<u8> = records.iter().flat_map(|record| record.unwrap().emit()).collect();
    assert_eq!(emitted, hex(LIST_HEX));
    assert_eq!(list(&[]), []);
}

#[test]
fn a_list_truncated_inside_a_record_is_refused() {
    let whole = hex(LIST_HEX);
    for len in 0..whole.len() {
        match len % RECORD_SIZE {
            0 => assert_eq!(list(&whole[..len]).len(), len / RECORD_SIZE),
            left => assert_eq!(parse_list(&whole[..len]).err(), Some(WireError::PartialRecord { left })),
        }
    }
}

#[test]
fn invalid_records_are_reported_and_the_others_are_read() {
    let bytes = hex("cb007105 00000000 00 000000
                     cb007105 00000100 00 000000
                     ffffffff 652f0000 00 000000
                     e0000001 652f0000 00 000000
                     00000000 652f0000 00 000000
                     cb007105 652f0000 ff 010203");
    let good = ListRecord::new("203.0.113.5:12133".parse().unwrap(), 255).unwrap();
    assert_eq!(
        list(&bytes),
        [
            Err(BadRecord::Port(0)),
            Err(BadRecord::Port(65536)),
            Err(BadRecord::NotOneHost(Ipv4Addr::BROADCAST)),
            Err(BadRecord::NotOneHost(Ipv4Addr::new(224, 0, 0, 1))),
            Err(BadRecord::NotOneHost(Ipv4Addr::UNSPECIFIED)),
            Ok(good),
        ]
    );
    assert_eq!(ListRecord::new("[2001:db8::1]:12133".parse().unwrap(), 0), Err(BadRecord::NotIpv4));
    assert_eq!(BadRecord::Port(65536).to_string(), "65536 is not a port");
}

#[test]
fn query_and_info_in_both_directions() {
    let query = Query { echo: 0x1234_5678 };
    assert_eq!(Query::parse(&hex(QUERY_HEX)), Ok(query));
    assert_eq!(query.emit().to_vec(), hex(QUERY_HEX));
    assert_eq!(Info::parse(&hex(INFO_HEX)), Ok(EXAMPLE));
    assert_eq!(EXAMPLE.emit().to_vec(), hex(INFO_HEX));
}

#[test]
fn each_field_is_at_its_documented_offset() {
    let mut bytes = [0; INFO_SIZE];
    bytes[0] = INFO;
    for at in [5, 37, 69, 70, 72, 136, 157, 161, 165, 169, 222, 225] {
        bytes[at] = at as u8;
    }
    let expected = Info {
        echo: 0,
        name: &[5],
        game_type: &[37],
        players_current: 69,
        players_max: 70,
        map: &[72],
        host: &[136],
        host_port: 157,
        flags: 161,
        internal_ip: Ipv4Addr::new(165, 0, 0, 0),
        version: &[169],
        factions: [222, 0, 0],
        skill: 225,
    };
    assert_eq!(Info::parse(&bytes), Ok(expected));
    assert_eq!(expected.emit(), bytes);
    for unused in [71, 156, 185, 189, 193, 197, 201, 202, 221, 226, 227, 228] {
        bytes[unused] = 0xff;
    }
    assert_eq!(Info::parse(&bytes), Ok(expected));
}

#[test]
fn texts_end_at_the_first_nul_or_the_fields_end() {
    let mut bytes = EXAMPLE.emit();
    bytes[5..37].fill(b'n');
    bytes[39] = 0; // the game type's third byte
    let parsed = Info::parse(&bytes).unwrap();
    assert_eq!((parsed.name, parsed.game_type), (&[b'n'; 32][..], &b"De"[..]));

    let long = Info { name: &[b'n'; 40], map: b"arena\0secret", ..EXAMPLE }.emit();
    let parsed = Info::parse(&long).unwrap();
    assert_eq!((parsed.name, parsed.map), (&[b'n'; 31][..], &b"arena"[..]));
    assert_eq!(&long[72..83], b"arena\0\0\0\0\0\0");
}

#[test]
fn errors_say_what_is_wrong() {
    let wrong_length = |expected, got| WireError::WrongLength { expected, got };
    for (whole, size) in [(GREETING_HEX, 12), (LIST_REQUEST_HEX, 8), (QUERY_HEX, 5), (INFO_HEX, 229)] {
        let mut whole = hex(whole);
        assert_eq!(whole.len(), size);
        whole.push(0);
        for len in (0..size).chain([size + 1]) {
            let bytes = &whole[..len];
            let error = match size {
                GREETING_SIZE => Greeting::parse(bytes).unwrap_err(),
                LIST_REQUEST_SIZE => ListRequest::parse(bytes).unwrap_err(),
                QUERY_SIZE => Query::parse(bytes).unwrap_err(),
                _ => Info::parse(bytes).unwrap_err(),
            };
            assert_eq!(error, wrong_length(size, len));
        }
    }
    assert_eq!(Greeting::parse(b"HTTP/1.1 400"), Err(WireError::WrongMagic));
    assert_eq!(Query::parse(&hex("0378563412")), Err(WireError::WrongMagic));
    assert_eq!(Info::parse(&hex(QUERY_HEX)), Err(WireError::WrongMagic));
    assert_eq!(wrong_length(229, 5).to_string(), "5 bytes, expected 229");
}

#[test]
fn numbers_have_names() {
    let names = |name: fn(u8) -> Option<&'static str>| (0..=255).map_while(name).count();
    assert_eq!((names(flavor_name), names(skill_name)), (8, 5));
    assert_eq!([0, 1, 2, 3].map(faction_name), [Some("IMF"), Some("Syndicate"), Some("Republic"), None]);
}

proptest! {
    #[test]
    fn the_masters_messages_round_trip(key: u32, players_total: u32, filter: [u8; 4],
            servers in proptest::collection::vec((1u8..224, any::<[u8; 3]>(), 1u16.., any::<u8>()), 0..20)) {
        let greeting = Greeting { key, players_total };
        prop_assert_eq!(Greeting::parse(&greeting.emit()), Ok(greeting));
        let request = ListRequest { key, filter };
        prop_assert_eq!(ListRequest::parse(&request.emit()), Ok(request));
        let records: Vec<_> = servers.iter().map(|&(a, [b, c, d], port, flavor)| {
            ListRecord::new(Address::new(IpAddr::from([a, b, c, d]), port).unwrap(), flavor)
        }).collect();
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.unwrap().emit()).collect();
        prop_assert_eq!(list(&bytes), records);
    }

    #[test]
    fn the_games_messages_round_trip(numbers: (u32, u8, u8, u32, u32, u32), factions: [u8; 3], skill: u8,
            name in proptest::collection::vec(1u8.., 0..32), game_type in proptest::collection::vec(1u8.., 0..32),
            map in proptest::collection::vec(1u8.., 0..64), host in proptest::collection::vec(1u8.., 0..20),
            version in proptest::collection::vec(1u8.., 0..16)) {
        let (echo, players_current, players_max, host_port, flags, internal_ip) = numbers;
        let info = Info {
            echo, name: &name, game_type: &game_type, players_current, players_max, map: &map, host: &host,
            host_port, flags, internal_ip: internal_ip.into(), version: &version, factions, skill,
        };
        let datagram = info.emit();
        prop_assert_eq!(Info::parse(&datagram), Ok(info));
        let query = Query { echo };
        prop_assert_eq!(Query::parse(&query.emit()), Ok(query));
    }
}

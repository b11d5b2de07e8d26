//! Recorded messages in both directions, round trips of generated ones, and invalid messages.

use super::*;
use crate::bytes::hex;
use crate::protocols::bloodmasters::example;
use proptest::prelude::*;

const QUERY: &str = "07000d11223344";
const REPLY_26: &str = "40000d11223344104c6f6f706261636b20224172656e61220117687474703a2f2f7777772e6578616d706c652e6f72\
    672f0a0802086d6179616e63746602021a";
const REPLY_27: &str = "57000d11223344104c6f6f706261636b20224172656e61220117687474703a2f2f7777772e6578616d706c652e6f72\
    672f0a0802086d6179616e63746602021b0014001e0005416c6963650100004003423f6202000130";
const REPLY_28: &str = "80000d11223344104c6f6f706261636b20224172656e61220117687474703a2f2f7777772e6578616d706c652e6f72\
    672f0a0802086d6179616e63746602021c0014001e0005416c6963650100004003423f6202000130284c696e757820446564696361746564\
    205365727665722076657273696f6e20312e332e3130302e37";

fn queries(datagram: &[u8]) -> Vec<Result<Query, WireError>> {
    parse_queries(datagram).collect()
}

/// A message with its length set to its size.
fn with_length(mut message: Vec<u8>) -> Vec<u8> {
    let length = message.len() as u16;
    message[..2].copy_from_slice(&length.to_le_bytes());
    message
}

const OURS: Query = Query { echo: 0x1122_3344 };

#[test]
fn query_in_both_directions() {
    assert_eq!(queries(&hex(QUERY)), [Ok(OURS)]);
    assert_eq!(OURS.emit().to_vec(), hex(QUERY));
}

#[test]
fn reply_in_both_directions_for_each_protocol() {
    for (recorded, protocol) in [(REPLY_26, 26), (REPLY_27, 27), (REPLY_28, 28)] {
        assert_eq!(Reply::parse(&hex(recorded)), Ok(example(protocol)));
        assert_eq!(example(protocol).emit(), Ok(hex(recorded)));
    }
    // 29, the current protocol, has the form of 28.
    let current = example(29).emit().unwrap();
    assert_eq!(Reply::parse(&current), Ok(example(29)));
}

#[test]
fn invalid_queries_get_no_answer() {
    let whole = hex(QUERY);
    for len in 0..whole.len() {
        assert!(queries(&whole[..len]).iter().all(Result::is_err), "cut at {len}");
    }
    let cases = [
        ("00070d11223344", WireError::BigEndianLength { length: 7 }),
        ("08000d11223344", WireError::Truncated { expected: 8, got: 7 }),
        ("02000d11223344", WireError::WrongLength { length: 2 }),
        ("00000d11223344", WireError::WrongLength { length: 0 }),
        ("07000e11223344", WireError::WrongCommand(14)),
        ("0700000d223344", WireError::WrongCommand(0)),
        ("07008d11223344", WireError::FieldsMissing),
        ("06008d112233", WireError::FieldsMissing),
        ("03000d", WireError::FieldsMissing),
        ("07", WireError::Truncated { expected: 3, got: 1 }),
    ];
    for (bytes, error) in cases {
        assert_eq!(queries(&hex(bytes)), [Err(error)], "{bytes}");
        assert_eq!(Reply::parse(&hex(bytes)), Err(error), "{bytes}");
    }
    // A length that is too short truncates the query, and the byte after it is no message.
    assert!(queries(&hex("06000d11223344")).iter().all(Result::is_err));
    assert_eq!(queries(&[]), []);
    assert_eq!(Reply::parse(&[]), Err(WireError::Truncated { expected: 3, got: 0 }));
}

#[test]
fn a_query_is_found_among_other_messages() {
    let cases = [
        "07000d11223344 ffff",           // bytes after the message
        "09000d11223344 ffff",           // bytes in the message
        "0b008d00000001 11223344",       // numbered
        "030005 07000d11223344",         // behind another command
        "07000000000009 07000d11223344", // behind a confirmation
        "07000d11223344 0000",
    ];
    for bytes in cases {
        let found: Vec<_> = parse_queries(&hex(bytes)).flatten().collect();
        assert_eq!(found, [OURS], "{bytes}");
    }
    assert_eq!(queries(&hex("07000d11223344 07000d55667788")), [Ok(OURS), Ok(Query { echo: 0x5566_7788 })]);
    // Nothing can be found after an invalid length.
    assert_eq!(queries(&hex("000000 07000d11223344")), [Err(WireError::WrongLength { length: 0 })]);
}

#[test]
fn a_reply_is_found_among_other_messages() {
    let other = hex("04000501");
    for datagram in [[other.clone(), hex(REPLY_28)].concat(), [hex(REPLY_28), other].concat()] {
        assert_eq!(Reply::parse(&datagram), Ok(example(28)));
    }
    let longer = with_length([hex(REPLY_28), vec![1, 2, 3]].concat());
    assert_eq!(Reply::parse(&longer), Ok(example(28)));
    let mut numbered = hex(REPLY_28);
    numbered[2] |= NUMBERED;
    numbered.splice(3..3, [0, 0, 0, 1]);
    assert_eq!(Reply::parse(&with_length(numbered)), Ok(example(28)));
}

#[test]
fn a_truncated_reply_is_refused_at_every_length() {
    for recorded in [REPLY_26, REPLY_27, REPLY_28].map(hex) {
        for len in 0..recorded.len() {
            let expected = if len < 2 { HEADER_SIZE } else { recorded.len() };
            assert_eq!(Reply::parse(&recorded[..len]), Err(WireError::Truncated { expected, got: len }));
        }
        let build_at = hex(REPLY_27).len();
        for len in (HEADER_SIZE..recorded.len()).filter(|len| *len != build_at) {
            let cut = with_length(recorded[..len].to_vec());
            assert_eq!(Reply::parse(&cut), Err(WireError::FieldsMissing), "cut at {len}");
        }
    }
}

#[test]
fn a_reply_may_end_before_its_build() {
    let mut without = example(28);
    without.details.as_mut().unwrap().build = None;
    let bytes = without.emit().unwrap();
    assert_eq!(bytes.len(), hex(REPLY_27).len());
    assert_eq!(Reply::parse(&bytes), Ok(without));
}

#[test]
fn texts_may_have_any_length_that_fits_a_datagram() {
    for (len, start) in [(0, "00"), (127, "7f"), (128, "8001"), (200, "c801"), (16_384, "808001")] {
        let title = vec![b't'; len];
        let long = Reply { title: &title, ..example(26) };
        let bytes = long.emit().unwrap();
        assert!(bytes[7..].starts_with(&hex(start)), "{len}");
        assert_eq!(Reply::parse(&bytes), Ok(long));
    }
    let endless = with_length(hex("00000d 11223344 80808000"));
    assert_eq!(Reply::parse(&endless), Err(WireError::TextLength));
}

#[test]
fn invalid_replies_cannot_be_written() {
    let title = vec![b't'; 65_507];
    let bytes = hex(REPLY_26).len() - 16 + 2 + title.len();
    assert_eq!(Reply { title: &title, ..example(26) }.emit(), Err(Unwritable::TooLong { bytes }));
    let miscounted = Reply { clients_current: 3, ..example(27) };
    assert_eq!(miscounted.emit(), Err(Unwritable::ClientCount { counted: 3, named: 2 }));
    for (protocol, other) in [(26, 27), (27, 28), (27, 26), (28, 26)] {
        let mixed = Reply { protocol, ..example(other) };
        assert_eq!(mixed.emit(), Err(Unwritable::Protocol(protocol)));
    }
    assert!(miscounted.emit().unwrap_err().to_string().starts_with("3 clients counted, but 2"));
}

#[test]
fn any_byte_but_0_is_true() {
    let mut bytes = hex(REPLY_26);
    bytes[24] = 0x80;
    assert!(Reply::parse(&bytes).unwrap().locked);
    bytes[24] = 0;
    assert!(!Reply::parse(&bytes).unwrap().locked);
}

#[test]
fn names_and_errors_for_people() {
    assert_eq!((0..=255).map_while(game_type_name).count(), 5);
    assert_eq!([0, 1, 2, 3].map(team_name), [Some("none"), Some("red"), Some("blue"), None]);
    let error = Reply::parse(&hex("00070d11223344")).unwrap_err();
    assert_eq!(error.to_string(), "the length 7 is big endian, but must be little endian");
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..300)
}

proptest! {
    #[test]
    fn queries_round_trip(echo: u32) {
        prop_assert_eq!(queries(&Query { echo }.emit()), [Ok(Query { echo })]);
    }

    #[test]
    fn replies_round_trip(texts in [text(), text(), text(), text()], echo: u32, bytes: [u8; 4], protocol: u8,
            limits: (i16, i16), flags: (bool, bool),
            people in proptest::collection::vec((text(), any::<u8>(), any::<bool>(), any::<i16>()), 0..12)) {
        let [title, website, map, build] = &texts;
        let [clients_max, players_max, game_type, players_current] = bytes;
        let clients = people.iter()
            .map(|(name, team, spectator, ping)| Client { name, team: *team, spectator: *spectator, ping: *ping });
        let details = Details {
            score_limit: limits.0, time_limit: limits.1, join_smallest: flags.0, clients: clients.collect(),
            build: (protocol >= 28).then_some(build),
        };
        let reply = Reply {
            echo, title, locked: flags.1, website, clients_max, players_max, game_type, map,
            clients_current: people.len() as u8, players_current, protocol,
            details: (protocol >= 27).then_some(details),
        };
        let datagram = reply.emit().unwrap();
        prop_assert_eq!(Reply::parse(&datagram), Ok(reply));
    }

    #[test]
    fn no_datagram_panics_or_holds_more_queries_than_fit(datagram in proptest::collection::vec(0u8..16, 0..200)) {
        prop_assert!(parse_queries(&datagram).flatten().count() <= datagram.len() / QUERY_SIZE);
        prop_assert!(parse_queries(&datagram).count() <= datagram.len());
        let _ = Reply::parse(&datagram);
    }
}

//! `query a2s://`: any server that answers Valve's query, with and without a challenge.

use std::net::{SocketAddr, UdpSocket};

use serde_json::Value;

use crate::support::commands::ends;
use crate::support::*;

const QUESTION: &[u8] = b"\xff\xff\xff\xffTSource Engine Query\0";
const CHALLENGE: [u8; 4] = [1, 2, 3, 4];

/// A game server. One that wants a challenge answers only questions with it.
fn game(wants_challenge: bool) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            let Some(token) = buffer[..size].strip_prefix(QUESTION) else { continue };
            let answer = match wants_challenge && token != CHALLENGE {
                true => [&b"\xff\xff\xff\xffA"[..], &CHALLENGE].concat(),
                false => [
                    &b"\xff\xff\xff\xffI\x11Dust \x1b[1mAll Day\0de_dust2\0cstrike\0Counter-Strike\0"[..],
                    b"\x0a\x00\x05\x20\x02dl\x01\x011.1.2.7\0\x00",
                ]
                .concat(),
            };
            socket.send_to(&answer, from).unwrap();
        }
    });
    address
}

#[test]
fn servers_with_and_without_a_challenge_are_asked() {
    for wants_challenge in [false, true] {
        let (stdout, _) = ends(0, &["query", &format!("a2s://{}", game(wants_challenge)), "--format", "json"]);
        let found = &serde_json::from_str::<Value>(&stdout).unwrap()["servers"][0];
        assert_eq!((&found["name"], &found["map"]), (&"Dust [1mAll Day".into(), &"de_dust2".into()), "{found}");
        assert_eq!(
            (&found["game"], &found["mode"], &found["version"]),
            (&"a2s".into(), &"cstrike".into(), &"1.1.2.7".into())
        );
        assert_eq!((&found["players_current"], &found["players_max"]), (&3.into(), &32.into()), "people, not bots");
        assert_eq!((&found["rules"]["game"], &found["password"]), (&"Counter-Strike".into(), &true.into()), "{found}");
        assert!(found["rtt_ms"].is_number(), "{found}");
    }
}

#[test]
fn a_file_of_qstat_names_them_too_and_they_are_no_masters() {
    let folder = Folder::new("a2s");
    let file = folder.write("servers", &format!("A2S {}\n", game(true)));
    let (table, _) = ends(0, &["query", "--from", file.to_str().unwrap()]);
    assert!(table.contains("de_dust2"), "{table}");
    let (_, says) = ends(2, &["list", "a2s://127.0.0.1"]);
    assert!(says.contains("rallypoint query a2s://127.0.0.1"), "{says}");
    let (help, _) = ends(0, &["query", "--help"]);
    assert!(help.contains("a2s://HOST[:27015]"), "{help}");
}

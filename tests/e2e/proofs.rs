//! What may be announced through which channel, and what a weaker proof cannot do.

use serde_json::json;

use crate::netpanzer::{list, say};
use crate::support::*;

fn post(server: &Server, body: &str) -> Response {
    let request = format!(
        "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    split(&exchange(server.address("web.listen"), request.as_bytes()))
}

#[test]
fn iceball_servers_are_announced_through_iceballs_own_protocol_only() {
    let server = Server::start(&[]);
    let elsewhere = r"\error\Iceball servers announce themselves over UDP port 27790\final\";
    assert_eq!(say(&server, r"\heartbeat\gamename\iceball\port\20737\final\"), elsewhere);
    let refused = post(&server, r#"{"game": "iceball", "port": 20737}"#);
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("Iceball servers announce themselves over UDP port 27790"), "{}", refused.text());
    assert!(server.listed().is_empty());

    Game::new(server.address("iceball.listen")).announce(&announcement(b"real", 20737, 3));
    let row = until("the real one", || server.listed().pop());
    assert_eq!(say(&server, r"\heartbeat\gamename\iceball\port\20737\final\"), elsewhere);
    assert_eq!(say(&server, r"\quit\port\20737\final\"), r"\final\");
    // Another game's heartbeat goes the same way as these two, so they have had their effect when it is listed.
    assert_eq!(say(&server, r"\heartbeat\gamename\other\port\1\final\"), r"\final\");
    until("the other game", || list(&server, "other").contains(r"\port\1\").then_some(()));
    assert_eq!(server.listed(), [row], "neither blanked nor removed");
}

#[test]
fn a_connection_cannot_take_the_place_of_what_a_cookie_proved() {
    let server = Server::start(&["iceball.life=3s"]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"real", 20737, 3));
    let row = until("the real one", || server.listed().pop());
    let refused = say(&server, r"\heartbeat\gamename\other\port\20737\final\");
    let reason = "another server at your address and port has proven itself by more than a connection";
    assert_eq!(refused, format!(r"\error\{reason}\final\"));
    assert_eq!(server.listed(), [row]);
    let doctor = server.json("/api/v1/check?game=other&address=127.0.0.1:20737");
    assert!(doctor["summary"].as_str().unwrap().contains("with a stronger proof than a connection"), "{doctor}");
    assert!(doctor["advice"].as_str().unwrap().contains("Two servers announce the same address and port"), "{doctor}");
    // When its life is over, the place is free.
    until("the other game", || {
        (say(&server, r"\heartbeat\gamename\other\port\20737\final\") == r"\final\").then_some(())
    });
    assert!(server.listed().is_empty());
}

#[test]
fn every_game_has_its_own_life_through_every_channel() {
    let server = Server::start(&[]);
    let port = crate::bloodmasters::game();
    let announced: serde_json::Value =
        serde_json::from_slice(&post(&server, &json!({"game": "bloodmasters", "port": port}).to_string()).body)
            .unwrap();
    assert_eq!(announced, json!({"listed": true, "address": format!("127.0.0.1:{port}"), "life_s": 180}));
    let other: serde_json::Value =
        serde_json::from_slice(&post(&server, r#"{"game": "other", "port": 2}"#).body).unwrap();
    assert_eq!(other["life_s"], 720);
}

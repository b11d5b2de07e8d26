//! Which games may be announced through which channel, and what a weaker proof cannot do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use serde_json::json;

use crate::support::chromium::Browser;
use crate::support::netpanzer::{list, say};
use crate::support::*;

fn post(server: &Server, body: &str) -> Response {
    post_with(server, body, "Content-Type: application/json\r\n")
}

fn post_with(server: &Server, body: &str, headers: &str) -> Response {
    let request = format!(
        "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
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
    // Another game's heartbeat takes the same path, so when it is listed, these two have been handled.
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
    // When its life is over, the address is free.
    until("the other game", || {
        (say(&server, r"\heartbeat\gamename\other\port\20737\final\") == r"\final\").then_some(())
    });
    assert!(server.listed().is_empty());
}

#[test]
fn every_game_has_its_own_life_through_every_channel() {
    let server = Server::start(&[]);
    let port = crate::protocols::bloodmasters::game();
    let announced: serde_json::Value =
        serde_json::from_slice(&post(&server, &json!({"game": "bloodmasters", "port": port}).to_string()).body)
            .unwrap();
    assert_eq!(
        announced,
        json!({"listed": true, "address": "127.0.0.1", "port": port, "endpoint": format!("127.0.0.1:{port}"), "life_s": 180})
    );
    let other: serde_json::Value =
        serde_json::from_slice(&post(&server, r#"{"game": "other", "port": 2}"#).body).unwrap();
    assert_eq!(other["life_s"], 720);
}

#[test]
fn an_announcement_is_json_and_not_from_another_origin() {
    let server = Server::start(&["web.hosts=x"]);
    let body = r#"{"game": "mygame", "port": 7777}"#;
    let json = "Content-Type: application/json; charset=utf-8\r\n";
    for kind in ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"] {
        let refused = post_with(&server, body, kind);
        assert_eq!(refused.status(), 415, "{kind}");
        assert!(refused.text().contains("the Content-Type has to be application/json"), "{}", refused.text());
    }
    for marker in
        ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"]
    {
        let refused = post_with(&server, body, &format!("{json}{marker}\r\n"));
        assert_eq!(refused.status(), 403, "{marker}");
        assert!(refused.text().contains("another origin cannot announce"), "{}", refused.text());
        assert_eq!(refused.header("Access-Control-Allow-Origin"), None, "{marker}");
    }
    assert_eq!(server.json("/api/v1/servers")["total"], 0);
    assert_eq!(post_with(&server, body, &format!("{json}Origin: http://x\r\n")).status(), 200, "its own page may");
}

#[test]
fn a_browser_announces_no_bloodmasters_server_for_another_site() {
    let server = Server::start(&["guard.bans=198.51.100.7"]);
    let path = format!("/bloodmasterslist.php?action=update&port={}", crate::protocols::bloodmasters::game());
    let address = server.address("web.listen");
    for marker in [
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
        "Origin: http://evil.example",
        "Referer: http://evil.example/page",
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)",
    ] {
        let refused = get(address, &path, &format!("{marker}\r\n"));
        assert_eq!(refused.status(), 403, "{marker}: a body with status 200 would become a ban");
    }
    assert!(server.get("/bloodmasterslist.php").body.is_empty());
    // Launchers and pages may read the list; the game itself sends none of these headers.
    assert_eq!(get(address, "/bloodmasterslist.php", "Origin: http://fan.example\r\n").status(), 200);
    assert_eq!(get(address, &path, "").status(), 200);
}

/// A web server with one empty page.
fn another_site() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        // This thread ends with the test's process.
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\nConnection: close\r\n\r\n<!doctype html>";
            let _ = stream.write_all(page.as_bytes());
        }
    });
    address
}

#[test]
#[ignore = "needs chromium"]
fn a_page_of_another_site_lists_nothing_in_a_real_browser() {
    let server = Server::start(&[]);
    let (master, game) = (server.address("web.listen"), crate::protocols::bloodmasters::game());
    let netpanzer = server.address("netpanzer.listen");
    let browser = Browser::new();
    browser.goto_url(&format!("http://localhost:{}/", another_site().port()));
    let said = browser.run_until_called(&format!(
        r#"const done = arguments[0];
        const post = (type) => fetch("http://{master}/api/v1/servers", {{
            method: "POST", mode: type ? "cors" : "no-cors", body: '{{"game": "mygame", "port": 1}}',
            headers: type ? {{"Content-Type": type}} : {{}},
        }}).then(() => "sent", () => "blocked");
        const update = (referrerPolicy) =>
            fetch("http://{master}/bloodmasterslist.php?action=update&port={game}", {{mode: "no-cors", referrerPolicy}})
                .then(() => "sent", () => "blocked");
        // netPanzer's port does not answer browsers, but must not take their requests either.
        const heartbeat = "\\final\\heartbeat\\gamename\\mygame\\port\\2\\final\\";
        const stream = (path, options) =>
            fetch("http://{netpanzer}/" + path, {{mode: "no-cors", ...options}}).then(() => "sent", () => "blocked");
        const streams = [stream("?" + heartbeat), stream("", {{method: "POST", body: heartbeat}})];
        Promise.all([post(), post("application/json"), update("unsafe-url"), update("no-referrer"), ...streams]).then(done);"#
    ));
    assert_eq!(said, json!(["sent", "blocked", "sent", "sent", "blocked", "blocked"]));
    assert_eq!(server.json("/api/v1/servers")["total"], 0);
}

#[test]
fn impossible_counts_are_cut_and_a_blank_name_is_the_address() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let with_max = |mut announcement: Vec<u8>, most: u16| {
        announcement[14..16].copy_from_slice(&most.to_le_bytes());
        announcement
    };
    game.announce(&with_max(announcement(b"liar", 1, 65_535), 1));
    game.announce(&with_max(announcement(b"bigger liar", 2, 65_535), 65_535));
    game.announce(&announcement("\u{a0} \u{200b} ".as_bytes(), 3, 0));
    let mut rows = until("all three", || Some(server.listed()).filter(|rows| rows.len() == 3));
    rows.sort_by_key(|row| row["port"].as_u64());
    let players = |row: &serde_json::Value| (row["players_current"].clone(), row["players_max"].clone());
    assert_eq!(players(&rows[0]), (json!(1), json!(1)));
    assert_eq!(players(&rows[1]), (json!(512), json!(512)), "the game has room for no more");
    assert_eq!(rows[2]["name"], "127.0.0.1:3");
    let one = server.json("/api/v1/servers/iceball/127.0.0.1:3");
    assert_eq!(one["name"], "127.0.0.1:3");
    assert_eq!(server.json("/api/v1/servers/iceball/127.0.0.1:1")["players_current"], 1);
    let page = server.get("/");
    assert!(page.text().contains(">127.0.0.1:3</a>") && page.text().contains(">1/1<"), "{}", page.text());
}

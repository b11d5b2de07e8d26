//! Iceball: announce, cookie, handshake, list.

use crate::support::*;

#[test]
fn a_server_is_announced_proven_listed_and_refreshed() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    assert_eq!(server.listed().len(), 0);
    game.announce(&announcement(b"Loopback Test", 20737, 0));
    let row = until("the server to be listed", || server.listed().pop());
    let expected = serde_json::json!({
        "name": "Loopback Test", "address": "127.0.0.1", "port": 20737, "players_current": 0, "players_max": 64,
        "mode": "ctf", "map": "mesa.vxl", "version": "0.2.1-37", "priority": 0,
    });
    assert_eq!(row, expected);
    game.announce(&announcement(b"Loopback Test", 20737, 5));
    until("the players to change", || (server.listed()[0]["players_current"] == 5).then_some(()));
    assert_eq!(server.listed().len(), 1);
}

#[test]
fn an_announcement_without_a_handshake_is_not_listed_and_changes_nothing() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 20737, 1));
    until("the server to be listed", || server.listed().pop());
    game.cookie(&announcement(b"changed", 20737, 2));
    game.cookie(&announcement(b"another", 20738, 2));
    // When a third server is listed, the two datagrams before it have been handled.
    game.announce(&announcement(b"third", 20739, 3));
    let rows = until("the third", || Some(server.listed()).filter(|rows| rows.len() == 2));
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "third"]);
}

#[test]
fn a_restarted_game_is_listed_once() {
    let server = Server::start(&[]);
    for players in [1, 2] {
        // With a new source port.
        let game = Game::new(server.address("iceball.listen"));
        game.announce(&announcement(b"restarted", 20737, players));
        until("the new count", || {
            let rows = server.listed();
            (rows.len() == 1 && rows[0]["players_current"] == players).then_some(())
        });
    }
}

#[test]
fn a_silent_server_is_taken_off_when_its_life_ends_and_a_live_one_is_not() {
    let server = Server::start(&["iceball.life=2s"]);
    let silent = Game::new(server.address("iceball.listen"));
    let alive = Game::new(server.address("iceball.listen"));
    silent.announce(&announcement(b"silent", 1, 0));
    until("the silent one", || (server.listed().len() == 1).then_some(()));
    until("only the live one", || {
        alive.announce(&announcement(b"alive", 2, 0));
        let rows = server.listed();
        (rows.len() == 1 && rows[0]["name"] == "alive").then_some(())
    });
}

#[test]
fn forged_foreign_old_and_replayed_cookies() {
    let server = Server::start(&["iceball.life=3s"]);
    let master = server.address("iceball.listen");
    let game = Game::new(master);

    let mut forged = game.cookie(&announcement(b"forged", 1, 0));
    forged[30] ^= 1;
    game.handshake(&forged);

    // Another address, and another port of the same address, return this one's cookie.
    let foreign = game.cookie(&announcement(b"foreign", 2, 0));
    Game::on(master, "127.0.0.2".parse().unwrap()).handshake(&foreign);
    Game::new(master).handshake(&foreign);

    // Truncated and extended.
    let cookie = game.cookie(&announcement(b"cut", 3, 0));
    game.handshake(&cookie[..cookie.len() - 1]);
    game.handshake(&[&cookie[..], b"x"].concat());
    game.handshake(b"");

    let older = game.cookie(&announcement(b"older", 4, 1));
    // The same announcement gets the same cookie until the time stamp changes.
    until("another stamp", || (game.cookie(&announcement(b"older", 4, 1)) != older).then_some(()));
    let newer = game.cookie(&announcement(b"newer", 4, 2));
    game.handshake(&newer);
    game.handshake(&older);
    game.nothing_came_back();
    let rows = until("the newer", || Some(server.listed()).filter(|rows| !rows.is_empty()));
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["name"], "newer");

    // A replayed cookie does not keep a server on the list.
    until("the life to end", || {
        game.handshake(&newer);
        server.listed().is_empty().then_some(())
    });
    game.handshake(&newer);
    game.nothing_came_back();
    assert!(server.listed().is_empty());
}

#[test]
fn answers_are_the_deployed_masters_and_never_much_longer_than_the_question() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let good = announcement(b"x", 1, 0);
    let mut other_version = good.clone();
    other_version[6..10].copy_from_slice(&0x0080_8400u32.to_le_bytes());
    assert_eq!(game.ask(&other_version), [0x42, 0x41, 0x44, 0x56, 2, 0, 0x23, 0x80, 0x80, 0]);
    assert_eq!(game.ask(&other_version[..10]), [0x42, 0x41, 0x44, 0x56, 2, 0, 0x23, 0x80, 0x80, 0]);
    assert_eq!(game.ask(&good[..85]), b"BADF");
    assert_eq!(game.ask(&[&good[..], &[0; 1400]].concat()), b"BADF");
    let accepted = game.ask(&announcement(&[0xff; 30], 1, 0));
    assert!(accepted.len() <= 103, "{} bytes", accepted.len());
}

/// An unknown version in ten bytes, and in fifty. The answers are BADV and BADF, unless a server there is verified.
const FORGED_VERSION: &[u8] = b"1CEB\x09\0\x25\x80\x80\0";

fn forged_format() -> Vec<u8> {
    announcement(b"forged", 20737, 0)[..50].to_vec()
}

#[test]
fn no_complaint_goes_to_an_address_with_a_living_proof() {
    let server = Server::start(&["iceball.life=5s"]);
    let master = server.address("iceball.listen");
    let real = Game::new(master);
    // A socket at the game's address stands for the real game: forged datagrams can name any of its ports.
    let forger = Game::new(master);
    let check = || server.json("/api/v1/check?game=iceball&address=127.0.0.1:20737");
    let seen = |what: &str| {
        let notes = check()["seen"].as_array().unwrap().clone();
        notes.into_iter().find(|note| note["what"] == what)
    };
    assert_eq!(forger.ask(FORGED_VERSION)[..4], *b"BADV");
    assert_eq!(forger.ask(&forged_format()), b"BADF");
    for what in ["bad_version", "bad_format"] {
        let note = seen(what).unwrap();
        assert!(note["text"].as_str().unwrap().ends_with("so the datagram may be forged."), "{note}");
        assert_eq!(note["sender_proven"], false);
    }
    assert!(check()["advice"].as_str().unwrap().starts_with("If it was your server,"), "{}", check());

    real.announce(&announcement(b"real", 20737, 0));
    until("the proof", || (server.listed().len() == 1).then_some(()));
    // One at a time, and many in one batch.
    for _ in 0..40 {
        forger.send(FORGED_VERSION);
        forger.send(&forged_format());
    }
    forger.nothing_came_back();
    for what in ["bad_version_unanswered", "bad_format_unanswered"] {
        let note = seen(what).unwrap();
        let text = note["text"].as_str().unwrap();
        assert!(text.contains("No reply was sent: a server at this address is verified"), "{note}");
        assert_eq!(note["times"], 40);
    }
    assert_eq!(seen("cookie_returned").unwrap()["sender_proven"], true);
    assert_eq!(check()["listed"], true);
    // Another address is not verified, nor is this one after its life.
    assert_eq!(Game::on(master, "127.0.0.2".parse().unwrap()).ask(FORGED_VERSION)[..4], *b"BADV");
    until("the life to end", || server.listed().is_empty().then_some(()));
    assert_eq!(forger.ask(FORGED_VERSION)[..4], *b"BADV");
    assert_eq!(forger.ask(&forged_format()), b"BADF");
}

#[test]
fn the_doctor_distinguishes_accepted_and_repeated_handshakes() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let cookie = game.cookie(&announcement(b"once", 20737, 0));
    game.handshake(&cookie);
    until("the proof", || (server.listed().len() == 1).then_some(()));
    game.handshake(&cookie);
    let times = |what: &str| {
        let check = server.json("/api/v1/check?game=iceball&address=127.0.0.1:20737");
        let notes = check["seen"].as_array().unwrap().clone();
        notes.into_iter().find(|note| note["what"] == what).map(|note| note["times"].clone())
    };
    assert_eq!(until("the second", || times("cookie_repeated")), 1);
    assert_eq!(times("cookie_returned").unwrap(), 1);
}

#[test]
fn one_address_is_limited() {
    let server = Server::start(&["guard.max_servers_per_ip=3"]);
    let game = Game::new(server.address("iceball.listen"));
    for port in 1..=5 {
        game.announce(&announcement(b"many", port, 0));
    }
    let other = Game::on(server.address("iceball.listen"), "127.0.0.2".parse().unwrap());
    other.announce(&announcement(b"other", 1, 0));
    let rows = until("the other address", || {
        Some(server.listed()).filter(|rows| rows.iter().any(|row| row["address"] == "127.0.0.2"))
    });
    assert_eq!(rows.len(), 4);
}

#[test]
fn hostile_and_cut_names_become_clean_text() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let mut cut = "a name that is cut in the mid".as_bytes().to_vec();
    cut.extend(&"é".as_bytes()[..1]);
    assert_eq!(cut.len(), 30);
    game.announce(&announcement(&cut, 1, 0));
    game.announce(&announcement(b"\x01\x1b[31m\"<b>\\\xff\xfe\r\n", 2, 0));
    let rows = until("both", || Some(server.listed()).filter(|rows| rows.len() == 2));
    assert_eq!(rows[0]["name"], "a name that is cut in the mid");
    assert_eq!(rows[1]["name"], "[31m\"<b>\\\u{fffd}\u{fffd}");
    let raw = server.get("/master.json");
    assert!(!raw.text().contains("\\u"), "{}", raw.text());
    let page = server.get("/");
    assert!(page.text().contains("&lt;b&gt;") && !page.text().contains("<b>"));
}

#[test]
fn overrides_and_sighup() {
    let folder = Folder::new("overrides");
    let named = |priority: i32, address: &str| {
        format!("[[iceball.servers]]\naddress = \"{address}\"\nofficial = true\npriority = {priority}\n")
    };
    let file = folder.write("rallypoint.toml", &named(5, "127.0.0.1:2"));
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"plain", 1, 0));
    game.announce(&announcement(b"official", 2, 0));
    let rows = until("both", || Some(server.listed()).filter(|rows| rows.len() == 2));
    assert_eq!(
        (&rows[0]["name"], &rows[0]["official"], &rows[0]["priority"]),
        (&"official".into(), &true.into(), &5.into())
    );
    assert!(rows[1].get("official").is_none(), "absent means no: the game takes any value for yes");

    // An invalid file changes nothing.
    folder.write("rallypoint.toml", "[iceball]\nlisen = []\n");
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.wait_for_log("keeping the old one");
    assert!(server.log().contains("rallypoint.toml:2: unknown key `iceball.lisen`; did you mean `iceball.listen`?"));
    assert_eq!(server.listed()[0]["official"], true);

    // A valid one takes effect at once.
    folder.write("rallypoint.toml", &named(9, "127.0.0.1:1"));
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    let rows = until("the new override", || Some(server.listed()).filter(|rows| rows[0]["name"] == "plain"));
    assert_eq!(rows[0]["priority"], 9);
    assert!(rows[1].get("official").is_none());
}

#[test]
fn a_banned_address_gets_no_answer() {
    let server = Server::start(&["guard.bans=127.0.0.2"]);
    let banned = Game::on(server.address("iceball.listen"), "127.0.0.2".parse().unwrap());
    banned.send(&announcement(b"banned", 1, 0));
    let seen = || server.json("/api/v1/check?game=iceball&address=127.0.0.2:1")["seen"][0]["what"].clone();
    until("the datagram to be seen", || (seen() == "banned").then_some(()));
    banned.socket.set_nonblocking(true).unwrap();
    assert_eq!(banned.socket.recv(&mut [0; 100]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

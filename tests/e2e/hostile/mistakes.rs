//! Mistakes that people make, and what attackers make of them: a proxy that nobody configured, a browser in the operator's network,
//! a link in the data folder, a token that can be guessed, a name that only looks like another.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::attackers::{STRANGER, acts, ask_as, page_at};
use crate::support::netpanzer::Tank;
use crate::support::*;

const KEY: &str = "proxy.networks";

fn total(server: &Server) -> u64 {
    server.json("/api/v1/servers")["total"].as_u64().unwrap()
}

fn announce(server: &Server, from: &str, headers: &str, port: u16) -> Response {
    let body = json!({"game": "other", "port": port}).to_string();
    ask_as(server, from, ("POST", "/api/v1/servers"), headers, &body)
}

/// The address under which an announcement was listed.
fn listed_at(answer: &Response) -> String {
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let answer: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    answer["address"].as_str().unwrap().into()
}

/// What the program says when it does not start. One that does start is ended, and its status fails the test.
fn refusal(set: &[&str]) -> String {
    let listeners = LISTENERS.iter().map(|key| format!("{key}=127.0.0.1:0"));
    let all = listeners.chain(set.iter().map(|set| set.to_string())).flat_map(|set| ["--set".into(), set]);
    let mut command = Command::new("timeout");
    command.args([&LIMIT.as_secs().to_string(), env!("CARGO_BIN_EXE_rallypoint"), "serve"]).args(all);
    let output = command.output().expect("timeout, from coreutils");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

#[test]
fn a_proxy_that_the_operator_forgot_makes_no_stranger_a_neighbour() {
    let mut server = Server::start(&[]);
    let tank = Tank::new();
    let forgotten = "127.0.0.1";
    for header in [STRANGER, "Forwarded: for=198.51.100.66\r\n", "X-Real-IP: 198.51.100.66\r\n", "via: 1.1 proxy\r\n"] {
        for (method, path, body) in acts(tank.port) {
            let refused = ask_as(&server, forgotten, (method, &path), header, &body);
            assert_eq!(refused.status(), 403, "{header}{path}: {}", refused.text());
            assert!(refused.text().contains(KEY), "{path}: {}", refused.text());
        }
        for path in ["/api/v1/check?address=localhost:4000", "/doctor?game=iceball&address=localhost:4000"] {
            let refused = ask_as(&server, forgotten, ("GET", path), header, "");
            assert!(refused.status() == 403 && refused.text().contains(KEY), "{path}: {}", refused.text());
        }
    }
    assert_eq!((total(&server), tank.asked_from().len()), (0, 0));
    server.wait_for_log("proxy.networks does not have it");
    assert_eq!(server.log().matches(KEY).count(), 2, "one line, with what to write: {}", server.log());
    // What is read through it is read by anybody anyway.
    for path in
        ["/", "/master.json", "/api/v1/servers?q=x", "/api/v1/check?address=127.0.0.1:4000", "/doctor", "/healthz"]
    {
        assert_eq!(ask_as(&server, forgotten, ("GET", path), STRANGER, "").status(), 200, "{path}");
    }
    // And whoever is a neighbour indeed is served.
    assert_eq!(listed_at(&announce(&server, forgotten, "", 77)), "127.0.0.1");
    let test = format!("/api/v1/check/test?game=netpanzer&address=127.0.0.1:{}", tank.port);
    let tested = ask_as(&server, forgotten, ("POST", &test), "", "");
    assert!(tested.text().contains(r#""outcome":"answered""#), "{}", tested.text());
    assert_eq!(server.get("/api/v1/check?address=localhost:77").status(), 200);
}

#[test]
fn a_proxy_that_is_configured_announces_its_clients_as_before() {
    let server = Server::start(&["proxy.networks=127.0.0.2"]);
    for (named, listed) in
        [("203.0.113.9", "203.0.113.9"), ("127.0.0.7", "127.0.0.7"), ("198.51.100.66, 127.0.0.8", "127.0.0.8")]
    {
        let header = format!("X-Forwarded-For: {named}\r\nVia: 1.1 proxy\r\n");
        assert_eq!(listed_at(&announce(&server, "127.0.0.2", &header, 77)), listed, "{named}");
    }
    assert_eq!(total(&server), 3);
}

#[test]
fn a_page_under_a_name_of_somebody_else_has_nothing_done_by_its_visitors_browser() {
    let server = Server::start(&["web.hosts=master.example,www.master.example."]);
    let tank = Tank::new();
    let port = server.address("web.listen").port();
    let evil = format!("evil.example:{port}");
    let same_origin = |host: &str| format!("Host: {host}\r\nSec-Fetch-Site: same-origin\r\n");
    for headers in [
        page_at(&evil),
        page_at(&evil) + "Sec-Fetch-Site: same-origin\r\n",
        same_origin(&evil),
        format!("Host: {evil}\r\nSec-Fetch-Mode: cors\r\n"),
        same_origin(&format!("master.example.evil.example:{port}")),
        same_origin(&format!("127.0.0.1.evil.example:{port}")),
    ] {
        for (method, path, body) in acts(tank.port) {
            let refused = ask_as(&server, "127.0.0.1", (method, &path), &headers, &body);
            assert_eq!(refused.status(), 403, "{headers}{path}: {}", refused.text());
            assert!(refused.text().contains("web.hosts"), "{path}: {}", refused.text());
        }
        // Names of the visitor's network are not for the page, although its browser is there. Others are for everybody.
        let path = "/api/v1/check?address=localhost:77";
        assert_eq!(ask_as(&server, "127.0.0.1", ("GET", path), &headers, "").status(), 404, "{headers}");
    }
    let get = ("GET", &*acts(77)[3].1);
    let referer = format!("Host: {evil}\r\nReferer: http://{evil}/page\r\n");
    assert_eq!(ask_as(&server, "127.0.0.1", get, &referer, "").status(), 403, "a browser that says less");
    for headers in [referer, format!("Host: {evil}\r\nUser-Agent: Mozilla/5.0\r\n")] {
        let lookup = ask_as(&server, "127.0.0.1", ("GET", "/api/v1/check?address=localhost:77"), &headers, "");
        assert_eq!(lookup.status(), 404, "nor are names of its visitor's network told to it: {headers}");
    }
    assert_eq!((total(&server), tank.asked_from().len()), (0, 0));

    // Its own page may, and whoever is no browser.
    let own = [
        format!("master.example:{port}"),
        format!("WWW.Master.Example.:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
        format!("localhost:{port}"),
    ];
    for (number, host) in (1..).zip(&own) {
        assert_eq!(announce(&server, "127.0.0.1", &page_at(host), number).status(), 200, "{host}");
        let doctor = ask_as(&server, "127.0.0.1", ("GET", "/api/v1/check?address=localhost:1"), &page_at(host), "");
        assert_eq!(doctor.status(), 200, "{host}");
    }
    assert_eq!(
        listed_at(&announce(&server, "127.0.0.1", &format!("Host: {evil}\r\nUser-Agent: curl/8.5.0\r\n"), 9)),
        "127.0.0.1"
    );
    let test = format!("/api/v1/check/test?game=netpanzer&address=127.0.0.1:{}", tank.port);
    let headers = page_at(&own[0]) + "Sec-Fetch-Site: same-origin\r\n";
    let tested = ask_as(&server, "127.0.0.1", ("POST", &test), &headers, "");
    assert!(tested.text().contains(r#""outcome":"answered""#), "{}", tested.text());
}

#[test]
fn a_lock_that_is_a_link_is_not_followed_and_its_target_stays() {
    let folder = Folder::new("lock-link");
    let (data, victim) = (folder.path().join("data"), folder.write("victim", "precious"));
    std::fs::create_dir(&data).unwrap();
    let set = format!("data_dir={}", data.display());
    let lock = data.join("rallypoint.lock");
    symlink(&victim, &lock).unwrap();
    let said = refusal(&[&set]);
    assert!(
        said.contains("data_dir: cannot write to") && said.contains("rallypoint.lock: it is a symbolic link"),
        "{said}"
    );
    std::fs::remove_file(&lock).unwrap();
    symlink(folder.path().join("not there yet"), &lock).unwrap();
    assert!(refusal(&[&set]).contains("it is a symbolic link"));
    assert!(!folder.path().join("not there yet").exists());
    std::fs::remove_file(&lock).unwrap();
    std::fs::hard_link(&victim, &lock).unwrap();
    assert!(refusal(&[&set]).contains("it has another name elsewhere"));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    std::fs::remove_file(&lock).unwrap();
    let server = Server::start(&[&set]);
    assert_eq!(std::fs::read_to_string(&lock).unwrap().trim(), server.id().to_string(), "an honest lock");
}

#[test]
fn a_data_folder_that_was_made_by_hand_is_its_owners_alone() {
    let folder = Folder::new("by-hand");
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let (data, shared) = (folder.path().join("data"), folder.path().join("shared"));
    for data in [&data, &shared] {
        std::fs::create_dir(data).unwrap();
        open(data, 0o755);
        let lock = data.join("rallypoint.lock");
        File::create(&lock).unwrap();
        open(&lock, 0o644);
    }
    File::create(shared.join("something else")).unwrap();
    let mut servers = [&data, &shared].map(|data| Server::start(&[&format!("data_dir={}", data.display())]));
    for data in [&data, &shared] {
        for name in ["rallypoint.lock", "rallypoint.db", "rallypoint.db-wal", "rallypoint.db-shm"] {
            assert_eq!(mode(&data.join(name)), 0o600, "{name}");
        }
    }
    assert_eq!((mode(&data), mode(&shared)), (0o700, 0o755), "a folder that others use as well is only reported");
    servers[1].wait_for_log("others can enter");
    assert!(!servers[0].log().contains("others can enter"));
    // What an older version left open is closed at the next start.
    let [server, _] = servers;
    server.signal(nix::sys::signal::Signal::SIGTERM);
    server.end();
    open(&data, 0o775);
    open(&data.join("rallypoint.db"), 0o664);
    let _server = Server::start(&[&format!("data_dir={}", data.display())]);
    assert_eq!((mode(&data), mode(&data.join("rallypoint.db"))), (0o700, 0o600));
}

#[test]
fn a_token_is_long_and_guesses_have_a_budget() {
    let short = "tooshort-0f8e7d";
    let said = refusal(&[&format!("web.token={short}"), "data_dir="]);
    assert!(said.contains("web.token") && said.contains("at least 16 characters"), "{said}");
    assert!(!said.contains(short), "{said}");

    let token = "0123456789abcdef";
    let server = Server::start(&[&format!("web.token={token}")]);
    let body = r#"{"game":"other","port":77,"address":"203.0.113.5"}"#;
    let try_token = |from: &str, token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        ask_as(&server, from, ("POST", "/api/v1/servers"), &header, body)
    };
    let refused = until("the guesses to be refused", || {
        let answer = try_token("127.0.9.9", "0123456789abcdeX");
        assert!([401, 429].contains(&answer.status()), "{}", answer.text());
        (answer.status() == 429).then_some(answer)
    });
    assert!(refused.header("Retry-After").is_some());
    // Whoever guesses learns nothing more, but announces its own server as before; others have budgets of their own.
    let path = "/api/v1/check/test?game=netpanzer&address=203.0.113.5:77";
    let guess = "Authorization: Bearer x\r\n";
    let test = until("tests to be refused as well", || {
        let answer = ask_as(&server, "127.0.9.9", ("POST", path), guess, "");
        (answer.status() == 429).then_some(answer)
    });
    assert!(test.header("Retry-After").is_some());
    assert_eq!(listed_at(&announce(&server, "127.0.9.9", "", 78)), "127.0.9.9");
    assert_eq!(listed_at(&try_token("127.0.10.10", token)), "203.0.113.5");
}

#[test]
fn names_that_look_like_a_forbidden_one_are_kept_off_the_list() {
    let server = Server::start(&["guard.hidden_names=*casino*"]);
    let name = |name: &str, port: u16| {
        let body = json!({"game": "other", "port": port, "name": name}).to_string();
        ask_as(&server, "127.0.0.1", ("POST", "/api/v1/servers"), "", &body)
    };
    for (port, look_alike) in (1..).zip([
        "the CASINO",
        "the саѕіпо",
        "the ｃａｓｉｎｏ",
        "the 𝓬𝓪𝓼𝓲𝓷𝓸",
        "the ᴄᴀꜱɪɴᴏ",
        "the c\u{301}a\u{301}s\u{336}i\u{336}n\u{336}o\u{336}",
        "the ca\u{200b}si\u{2060}no",
        "the cаsin0",
    ]) {
        let refused = name(look_alike, port);
        assert_eq!(refused.status(), 422, "{look_alike}: {}", refused.text());
    }
    assert_eq!(total(&server), 0);
    for (port, honest) in (100..).zip(["Kasinostraße", "Cash & no gambling", "казна", "cosine", "カジノではない"])
    {
        assert_eq!(name(honest, port).status(), 200, "{honest}");
    }
    assert_eq!(total(&server), 5);
}

#[test]
fn characters_that_nobody_sees_reach_neither_the_list_nor_a_terminal() {
    let server = Server::start(&[]);
    let unseen = "\u{61c}\u{200b}\u{200c}\u{200d}\u{200e}\u{202e}\u{2060}\u{2066}\u{feff}\u{ad}";
    let said = format!("in{unseen}visible");
    let body =
        json!({"game": "other", "port": 77, "name": said, "map": said, "rules": {said.clone(): said}}).to_string();
    assert_eq!(ask_as(&server, "127.0.0.1", ("POST", "/api/v1/servers"), "", &body).status(), 200);
    let row = server.json("/api/v1/servers/other/127.0.0.1:77");
    assert_eq!((&row["name"], &row["map"]), (&json!("invisible"), &json!("invisible")), "{row}");
    let url = format!("http://{}", server.address("web.listen"));
    for format in ["table", "json", "csv", "xml"] {
        let output = command().args(["list", &url, "--format", format]).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && shown.contains("invisible"), "{format}: {shown}");
        assert!(!shown.contains(|c| unseen.contains(c)), "{format}: {shown:?}");
    }
}

#[test]
fn pages_tell_other_sites_nothing_of_their_visitors() {
    let server = Server::start(&[]);
    for path in ["/", "/?q=secret", "/doctor", "/api", "/embed", "/games/iceball"] {
        assert_eq!(server.get(path).header("Referrer-Policy"), Some("same-origin"), "{path}");
    }
    for path in ["/master.json", "/api/v1/servers", "/healthz"] {
        assert_eq!(server.get(path).header("Referrer-Policy"), None, "{path}: nobody follows a link there");
        assert_eq!(server.get(path).header("Strict-Transport-Security"), None, "{path}: without TLS it says nothing");
    }
}

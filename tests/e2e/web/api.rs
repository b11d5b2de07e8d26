//! The API over real sockets: lists, one server, announcements, the doctor, metrics.

use std::net::UdpSocket;

use serde_json::{Value, json};

use crate::support::*;

pub fn three(server: &Server) {
    let game = Game::new(server.address("iceball.listen"));
    for (name, port, players) in [(&b"beta"[..], 1, 0), (b"Alpha", 2, 64), (b"gamma", 3, 5)] {
        game.announce(&announcement(name, port, players));
    }
    until("all three", || (server.listed().len() == 3).then_some(()));
}

pub fn ports(list: &Value) -> Vec<u64> {
    list["servers"].as_array().unwrap().iter().map(|server| server["port"].as_u64().unwrap()).collect()
}

fn post(server: &Server, body: &str, headers: &str) -> Response {
    let request = format!(
        "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    split(&exchange(server.address("web.listen"), request.as_bytes()))
}

fn parsed(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap()
}

#[test]
fn lists_with_filters_sorting_and_paging() {
    let server = Server::start(&[]);
    three(&server);
    let list = server.json("/api/v1/servers");
    assert_eq!((list["total"].as_u64(), ports(&list)), (Some(3), vec![2, 3, 1]));
    let first = &list["servers"][0];
    let expected = json!({
        "protocol": "iceball", "game": "iceball", "address": "127.0.0.1", "port": 2, "endpoint": "127.0.0.1:2", "name": "Alpha", "mode": "ctf", "map": "mesa.vxl",
        "join": {"link": "iceball://127.0.0.1:2", "command": "iceball -c iceball://127.0.0.1:2"},
        "players_current": 64, "players_max": 64, "version": "0.2.1-37", "official": false, "verified_by": "cookie",
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&first[key], value, "{key}");
    }
    for time in ["proven_at", "first_seen", "last_seen"] {
        assert!(first[time].as_str().unwrap().ends_with('Z'), "{time}");
    }
    for unknown in ["password", "rtt_ms", "players", "rules", "flavor"] {
        assert!(first.get(unknown).is_none(), "absent means unknown: {unknown}");
    }
    assert_eq!(ports(&server.json("/api/v1/servers?game=iceball&not_full=1&sort=name")), [1, 3]);
    assert_eq!(ports(&server.json("/api/v1/servers?protocol=iceball&sort=name")), [2, 1, 3]);
    assert_eq!(server.json("/api/v1/servers?protocol=netpanzer")["total"], 0);
    let page = server.json("/api/v1/servers?sort=address&limit=2");
    assert_eq!(ports(&page), [1, 2]);
    assert_eq!(page["total"], 3);
    let next = page["next"].as_str().unwrap();
    let rest = server.json(&format!("/api/v1/servers?sort=address&limit=2&after={next}"));
    assert_eq!((ports(&rest), rest.get("next")), (vec![3], None));
    assert_eq!(ports(&server.json("/api/v1/servers?sort=address&after=127.0.0.1:2")), [3]);

    let one = server.json("/api/v1/servers/iceball/127.0.0.1:3");
    assert_eq!(one["name"], "gamma");
    assert_eq!(server.get("/api/v1/servers/iceball/127.0.0.1:9").status(), 404);
    assert_eq!(server.get("/api/v1/servers/netpanzer/127.0.0.1:3").status(), 404);
    assert_eq!(server.get("/api/v1/servers/iceball/nonsense").status(), 400);
}

#[test]
fn the_games_with_their_servers_and_players_and_all_protocols() {
    let server = Server::start(&[]);
    three(&server);
    let answer = server.get("/api/v1/games");
    assert_eq!((answer.status(), answer.header("Content-Type")), (200, Some("application/json")));
    let games = parsed(&answer);
    let iceball =
        json!({ "game": "iceball", "protocol": "iceball", "servers": 3, "players_current": 69, "players_max": 192 });
    assert_eq!((&games["total"], &games["games"]), (&json!(1), &json!([iceball])));
    let names = games["protocols"].as_array().unwrap().iter().map(|protocol| protocol["protocol"].as_str().unwrap());
    assert!(names.eq(rallypoint::protocols::CARDS.iter().map(|card| card.name)));
    let known = format!("If-None-Match: {}\r\n", answer.header("Etag").unwrap());
    assert_eq!(get(server.address("web.listen"), "/api/v1/games", &known).status(), 304);
}

#[test]
fn every_object_that_names_a_server_spells_its_address_alike() {
    let server = Server::start(&[]);
    three(&server);
    let listed = server.json("/api/v1/servers?sort=address")["servers"][0].clone();
    let one = server.json("/api/v1/servers/iceball/127.0.0.1:1");
    let diagnosis = server.json("/api/v1/check?game=iceball&address=127.0.0.1:1");
    let game = crate::protocols::bloodmasters::game();
    let announced = parsed(&post(&server, &json!({ "game": "bloodmasters", "port": game }).to_string(), ""));
    assert_eq!((&announced["address"], &announced["port"]), (&json!("127.0.0.1"), &json!(game)), "{announced}");
    assert_eq!(announced["endpoint"], format!("127.0.0.1:{game}"));
    for (what, object) in [listed, one, diagnosis["server"].clone(), diagnosis].iter().enumerate() {
        let place = (&object["address"], &object["port"], &object["endpoint"]);
        assert_eq!(place, (&json!("127.0.0.1"), &json!(1), &json!("127.0.0.1:1")), "{what}: {object}");
    }
}

#[test]
fn bad_parameters_are_named() {
    let server = Server::start(&[]);
    for (query, parameter) in
        [("limit=1001", "limit"), ("sort=x", "sort"), ("gmae=x", "gmae"), ("verified_by=x", "verified_by")]
    {
        let answer = server.get(&format!("/api/v1/servers?{query}"));
        assert_eq!(answer.status(), 400);
        assert_eq!(parsed(&answer)["parameter"], parameter);
        assert!(parsed(&answer)["error"].is_string());
    }
    for (path, parameter) in [
        ("/api/v1/check", "address"),
        ("/api/v1/check?game=iceball", "address"),
        ("/api/v1/check?protocol=chess&address=127.0.0.1:1", "protocol"),
        ("/api/v1/check?game=iceball&address=x", "address"),
        ("/api/v1/events?nonsense=1", "nonsense"),
        ("/api/v1/events?q=a&q=b", "q"),
        ("/api/v1/events?limit=1", "limit"),
        ("/api/v1/events?fields=nonsense", "fields"),
        ("/api/v1/events?verified_by=nonsense", "verified_by"),
        ("/api/v1/servers?game=iceball&game=iceball", "game"),
        ("/api/v1/check?game=iceball&address=127.0.0.1:1&address=127.0.0.1:1", "address"),
        ("/api/v1/history?game=iceball&range=24h&range=7d", "range"),
        ("/api/v1/games?q=x", "q"),
    ] {
        let answer = server.get(path);
        assert_eq!((answer.status(), &parsed(&answer)["parameter"]), (400, &json!(parameter)), "{path}");
    }
}

#[test]
fn all_errors_are_json() {
    let server = Server::start(&[]);
    let web = server.address("web.listen");
    for (method, path, status) in [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/api/v2", 404),
        ("DELETE", "/api/v1/servers", 405),
        ("GET", "/api/v1/servers/iceball/%ff", 400),
        ("GET", "/api/v1/servers/iceball/here", 400),
    ] {
        let answer = request(web, method, path, "");
        assert_eq!((answer.status(), answer.header("Content-Type")), (status, Some("application/json")), "{path}");
        assert!(!parsed(&answer)["error"].as_str().unwrap().is_empty(), "{answer:?}");
    }
    assert!(request(web, "DELETE", "/api/v1/servers", "").header("Allow").is_some());
    for length in [13_000, 16_500] {
        let answer = post(&server, &"x".repeat(length), "");
        assert_eq!((answer.status(), parsed(&answer)["error"].as_str().map(str::is_empty)), (413, Some(false)));
    }
}

#[test]
fn caching_encodings_and_other_origins() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    (1..=20).for_each(|port| game.announce(&announcement(b"one of many", port, 0)));
    until("all", || (server.listed().len() == 20).then_some(()));
    let address = server.address("web.listen");
    let plain = get(address, "/api/v1/servers", "");
    assert_eq!(plain.header("Access-Control-Allow-Origin"), Some("*"));
    assert_eq!(plain.header("Cache-Control"), Some("public, max-age=2"));
    let known = format!("If-None-Match: {}\r\n", plain.header("Etag").unwrap());
    assert_eq!(get(address, "/api/v1/servers", &known).status(), 304);
    for encoding in ["gzip", "br", "zstd"] {
        let packed = get(address, "/api/v1/servers", &format!("Accept-Encoding: {encoding}\r\n"));
        assert_eq!(packed.header("Content-Encoding"), Some(encoding));
        assert!(packed.body.len() < plain.body.len());
    }
}

#[test]
fn pages_of_other_origins_can_read_every_list_and_nothing_else() {
    let server = Server::start(&[]);
    three(&server);
    let address = server.address("web.listen");
    // Prepared answers and others.
    for path in [
        "/api/v1/servers",
        "/api/v1/servers?q=a",
        "/api/v1/games",
        "/master.json",
        "/master.json?x",
        "/list",
        "/ddnet/15/servers.json",
        "/bloodmasterslist.php",
        "/",
    ] {
        let answer = get(address, path, "Origin: http://elsewhere.example\r\n");
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("*"), "{path}");
        let exposed = answer.header("Access-Control-Expose-Headers").unwrap_or_default();
        assert!(exposed.contains("ETag") && exposed.contains("Retry-After"), "{path}: {exposed}");
        assert!(answer.header("Access-Control-Allow-Credentials").is_none(), "{path}");
        // A script that has it sends its tag, for which the browser asks first.
        let asks = "Origin: http://x\r\nAccess-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: if-none-match\r\n";
        let preflight = request(address, "OPTIONS", path, asks);
        assert_eq!((preflight.status(), preflight.header("Access-Control-Allow-Origin")), (204, Some("*")), "{path}");
        assert!(preflight.header("Access-Control-Allow-Headers").unwrap().contains("If-None-Match"), "{path}");
        let methods = preflight.header("Access-Control-Allow-Methods");
        assert_eq!(methods, Some("GET, HEAD, OPTIONS"), "other origins may only read");
        let known = format!("Origin: http://x\r\nIf-None-Match: {}\r\n", answer.header("Etag").unwrap());
        let again = get(address, path, &known);
        assert_eq!((again.status(), again.header("Access-Control-Allow-Origin")), (304, Some("*")), "{path}");
    }
    for path in ["/metrics", "/readyz"] {
        assert!(get(address, path, "").header("Access-Control-Allow-Origin").is_none(), "{path}");
    }
    let refused = post(&server, r#"{"game": "mygame", "port": 7777}"#, "Origin: http://elsewhere.example\r\n");
    assert_eq!((refused.status(), refused.header("Access-Control-Allow-Origin")), (403, None));
}

#[test]
fn a_client_chooses_the_fields_of_servers() {
    let server = Server::start(&["probe.every=1s"]);
    let tank = crate::web::browser::Tank::new("Tank", &[("Ann", 3)]);
    tank.heartbeat(&server);
    let rows = |query: &str| server.json(&format!("/api/v1/servers?{query}"))["servers"].clone();
    until("its players", || rows("")[0]["players"].as_array().filter(|players| players.len() == 1).map(drop));
    let names = |query: &str| rows(query)[0].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    // The JSON of the tests is sorted by name.
    assert_eq!(names("fields=name,players_current"), "address endpoint game name players_current port protocol");
    assert_eq!(names("fields=players"), "address endpoint game players port protocol");
    assert_eq!(rows("fields=players")[0]["players"][0]["name"], "Ann");
    let (whole, brief) = (names(""), names("details=0"));
    assert!(whole.contains("players ") && whole.contains("rules "), "{whole}");
    assert_eq!(whole.replace("players ", "").replace("rules ", ""), brief);
    assert_eq!(names("details=1"), whole);
    for (query, parameter) in [("fields=nmae", "fields"), ("details=x", "details")] {
        let answer = server.get(&format!("/api/v1/servers?{query}"));
        assert_eq!((answer.status(), &parsed(&answer)["parameter"]), (400, &json!(parameter)), "{query}");
    }
}

#[test]
fn the_openapi_document_describes_every_path() {
    let server = Server::start(&[]);
    let document = server.json("/api/v1/openapi.json");
    for path in [
        "/api/v1/servers",
        "/api/v1/servers/{game}/{address}",
        "/api/v1/events",
        "/api/v1/check",
        "/api/v1/check/test",
        "/api/v1/servers/{game}/{address}/history",
        "/api/v1/history",
    ] {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    assert!(document["paths"]["/api/v1/servers"].get("post").is_some());
    let parameters = document["paths"]["/api/v1/servers"]["get"]["parameters"].as_array().unwrap();
    assert_eq!(parameters.len(), 18);
    // The document's properties of a server are those that a server has.
    let properties = document["components"]["schemas"]["Server"]["properties"].as_object().unwrap().clone();
    three(&server);
    for field in server.json("/api/v1/servers")["servers"][0].as_object().unwrap().keys() {
        assert!(properties.contains_key(field), "{field}");
    }
}

#[test]
fn an_owner_states_what_a_server_is_like_that_cannot_be_queried() {
    let folder = Folder::new("stated");
    let data = format!("data_dir={}", folder.path().display());
    let server = Server::start(&[&data]);
    let mut stream = crate::web::events::Stream::open(server.address("web.listen"), "/api/v1/events?details=1", "");
    stream.next();
    let mut body = json!({
        "game": "mygame", "port": 7777, "name": "My \u{202e}server", "map": "hills", "mode": "duel", "version": "2.0",
        "password": true, "players_max": 4, "players": [{"name": "Ann", "score": 7}], "rules": {"speed": "fast"},
    });
    let listed = parsed(&post(&server, &body.to_string(), ""));
    assert_eq!((&listed["listed"], &listed["stated"]), (&json!(true), &json!(true)), "{listed}");
    let expected = json!({
        "name": "My server", "map": "hills", "mode": "duel", "version": "2.0", "password": true, "players_current": 1,
        "players_max": 4, "players": [{"name": "Ann", "score": 7}], "rules": {"speed": "fast"}, "stated": true,
        "verified_by": "connection",
    });
    let says = |row: &Value| expected.as_object().unwrap().iter().all(|(name, value)| row[name] == *value);
    let one = |server: &Server| server.json("/api/v1/servers/mygame/127.0.0.1:7777");
    assert!(says(&one(&server)), "{}", one(&server));
    assert!(says(&stream.next().2["added"][0]));
    // Each announcement replaces the one before it.
    body.as_object_mut().unwrap().retain(|name, _| ["game", "port", "name"].contains(&name.as_str()));
    assert_eq!(post(&server, &body.to_string(), "").status(), 200);
    let (_, _, delta) = stream.next();
    assert_eq!((&delta["changed"][0]["map"], &delta["changed"][0]["rules"]), (&Value::Null, &Value::Null), "{delta}");
    let bare = post(&server, r#"{"game": "mygame", "port": 7777}"#, "");
    assert_eq!((bare.status(), parsed(&bare).get("stated")), (200, None));
    assert!(one(&server).get("stated").is_none() && one(&server).get("name").is_none());
    for (body, field, says) in [
        (r#"{"game": "mygame"}"#, "port", "is missing"),
        (r#"{"port": 7777}"#, "game", "is missing"),
        (r#"{"game": "hyperbol", "port": 7777, "map": "x"}"#, "map", "queried"),
        (r#"{"game": "mygame", "port": 7777, "nmae": "x"}"#, "nmae", "known are game, protocol, port"),
    ] {
        let answer = post(&server, body, "");
        assert_eq!((answer.status(), &parsed(&answer)["parameter"]), (400, &json!(field)), "{body}");
        assert!(parsed(&answer)["error"].as_str().unwrap().contains(says), "{}", answer.text());
    }
    // It survives a restart.
    let whole = r#"{"game": "mygame", "port": 7778, "name": "Kept", "rules": {"a": "b"}}"#;
    assert_eq!(post(&server, whole, "").status(), 200);
    server.signal(nix::sys::signal::Signal::SIGTERM);
    server.end();
    let server = Server::start(&[&data]);
    let kept = server.json("/api/v1/servers/mygame/127.0.0.1:7778");
    assert_eq!((&kept["name"], &kept["rules"], &kept["stated"]), (&json!("Kept"), &json!({"a": "b"}), &json!(true)));
}

#[test]
fn announcements() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let mut reply = vec![0; 229];
            reply[0] = 27;
            reply[1..5].copy_from_slice(&buffer[1..5]);
            reply[5..11].copy_from_slice(b"Hyper!");
            socket.send_to(&reply, from).unwrap();
        }
    });
    let server = Server::start(&["web.token=secret-0f8e7d6c5b"]);
    let listed = post(&server, &format!(r#"{{"game": "hyperbol", "port": {port}}}"#), "");
    assert_eq!((listed.status(), &parsed(&listed)["listed"]), (200, &json!(true)), "{}", listed.text());
    let one = server.json(&format!("/api/v1/servers/hyperbol/127.0.0.1:{port}"));
    assert_eq!((&one["name"], &one["verified_by"], &one["flavor"]), (&json!("Hyper!"), &json!("query"), &json!(0)));
    assert!(one["rtt_ms"].as_f64().is_some());

    let refused = post(&server, &format!(r#"{{"game": "hyperbol", "port": {silent}}}"#), "");
    assert_eq!(refused.status(), 422);
    assert!(parsed(&refused)["error"].as_str().unwrap().starts_with("no answer from 127.0.0.1:"));
    for (body, status) in [
        (r#"{"game": "hyperbol", "port": 0}"#, 400),
        (r#"{"game": "hyperbol"}"#, 400),
        (r#"{"game": "hyperbol", "port": 70000}"#, 400),
        (r#"{"game": "", "port": 1}"#, 400),
        (r#"{"game": "master", "port": 1}"#, 400),
        (r#"{"game": "iceball", "port": 1}"#, 400),
        (r#"{"game": "x", "port": 1, "prot": 2}"#, 400),
        (r#"{"game": "x", "protocol": "y", "port": 1}"#, 400),
        (r#"{"game": "x", "protocol": "hyperbol", "port": 1}"#, 400),
        (r#"{"game": "hyperbol", "protocol": "netpanzer", "port": 1}"#, 400),
        (r#"{"protocol": "iceball", "port": 1}"#, 400),
        (r#"{"port": 1}"#, 400),
        (r#"{"game": "x", "protocol": "netpanzer", "port": 2}"#, 200),
        ("nonsense", 400),
        (r#"{"game": "x", "port": 1, "address": "127.0.0.2"}"#, 401),
        (r#"{"game": "x", "port": 1, "address": "255.255.255.255"}"#, 401),
    ] {
        assert_eq!(post(&server, body, "").status(), status, "{body}");
    }
    let again = post(&server, &format!(r#"{{"protocol": "hyperbol", "port": {port}}}"#), "");
    assert_eq!(again.status(), 200, "its one game needs no name: {}", again.text());
    let carried = server.json("/api/v1/servers/x/127.0.0.1:2");
    assert_eq!((&carried["protocol"], &carried["game"]), (&json!("netpanzer"), &json!("x")));
    let wrong_token = "Authorization: Bearer wrong\r\n";
    let token = "Authorization: Bearer secret-0f8e7d6c5b\r\n";
    let elsewhere = r#"{"game": "x", "port": 1, "address": "127.0.0.2"}"#;
    assert_eq!(post(&server, elsewhere, wrong_token).status(), 401);
    assert_eq!(post(&server, elsewhere, token).status(), 200);
    until("it", || (server.get("/api/v1/servers/x/127.0.0.2:1").status() == 200).then_some(()));
    assert_eq!(post(&server, &"x".repeat(13_000), "").status(), 413);
}

#[test]
fn the_doctor_reports_recent_events() {
    let server = Server::start(&["guard.max_servers_per_ip=2", "guard.bans=127.0.0.9"]);
    let check = |game: &str, address: &str| server.json(&format!("/api/v1/check?game={game}&address={address}"));
    let nothing = check("iceball", "127.0.0.1:1");
    assert_eq!((&nothing["listed"], nothing["seen"].as_array().map(Vec::len)), (&json!(false), Some(0)));
    assert!(nothing["summary"].as_str().unwrap().contains("Nothing was seen"), "{nothing}");

    let game = Game::new(server.address("iceball.listen"));
    game.cookie(&announcement(b"no handshake", 1, 0));
    let sent = check("iceball", "127.0.0.1:1");
    assert_eq!(sent["seen"][0]["what"], "cookie_sent");
    assert_eq!(sent["seen"][0]["observed_port"], game.socket.local_addr().unwrap().port());
    assert!(sent["advice"].as_str().unwrap().contains("firewall"), "{sent}");

    let mut old = announcement(b"old", 1, 0);
    old[6..10].copy_from_slice(&0x0080_0000u32.to_le_bytes());
    game.ask(&old);
    let version = check("iceball", "127.0.0.1:1");
    assert!(version["summary"].as_str().unwrap().contains("version 0.2 (heartbeat 2); expected is 0.2.1"), "{version}");

    for port in 1..=3 {
        game.announce(&announcement(b"many", port, 0));
    }
    until("two", || (server.listed().len() == 2).then_some(()));
    let listed = check("iceball", "127.0.0.1:1");
    assert_eq!((&listed["listed"], &listed["server"]["name"]), (&json!(true), &json!("many")));
    let full = check("iceball", "127.0.0.1:3");
    assert!(full["summary"].as_str().unwrap().contains("too many servers at its address"), "{full}");
    // Only events of the address in question.
    assert!(full["seen"].as_array().unwrap().iter().all(|seen| seen["announced_port"] != 1), "{full}");
    assert_eq!(check("iceball", "127.0.0.2:1")["seen"], json!([]));
    assert!(check("iceball", "127.0.0.9:1")["summary"].as_str().unwrap().contains("banned"));

    // The protocol may be given beside the game or instead of it.
    let by_protocol = server.json("/api/v1/check?protocol=iceball&address=127.0.0.1:1");
    assert_eq!((&by_protocol["listed"], &by_protocol["game"]), (&json!(true), &json!("iceball")));
    let other = server.json("/api/v1/check?protocol=netpanzer&game=iceball&address=127.0.0.1:1");
    assert_eq!(other["listed"], false);
    let nothing = server.json("/api/v1/check?protocol=hyperbol&address=127.0.0.2:1");
    assert!(nothing["advice"].as_str().unwrap().contains("heartbeat") && nothing["game"] == "hyperbol", "{nothing}");

    let silent = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let heartbeat = format!(r"\heartbeat\gamename\netpanzer\port\{silent}\final\");
    exchange(server.address("netpanzer.listen"), heartbeat.as_bytes());
    let answer = check("netpanzer", &format!("127.0.0.1:{silent}"));
    assert!(answer["summary"].as_str().unwrap().contains("did not answer our query"), "{answer}");
    assert!(answer["advice"].as_str().unwrap().contains(&format!("UDP port {silent}")), "{answer}");
}

#[test]
fn the_doctor_distinguishes_a_carried_game_from_its_protocols_own() {
    let server = Server::start(&[]);
    exchange(server.address("netpanzer.listen"), br"\heartbeat\gamename\chess\port\7\final\");
    let carried = server.json("/api/v1/check?protocol=netpanzer&address=127.0.0.1:7");
    assert_eq!((&carried["listed"], &carried["game"]), (&json!(true), &json!("chess")));
    let own = server.json("/api/v1/check?game=netpanzer&address=127.0.0.1:7");
    assert_eq!(own["listed"], false);
}

#[test]
fn good_events_of_others_do_not_replace_a_refusal() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let mut old = announcement(b"old", 9, 0);
    old[6..10].copy_from_slice(&0x0080_0000u32.to_le_bytes());
    game.ask(&old);
    for port in 100..120 {
        game.announce(&announcement(b"fine", port, 0));
    }
    until("all the others", || (server.listed().len() == 20).then_some(()));
    let diagnosis = server.json("/api/v1/check?game=iceball&address=127.0.0.1:9");
    assert!(diagnosis["summary"].as_str().unwrap().contains("expected is 0.2.1"), "{diagnosis}");
    assert_eq!(diagnosis["seen"][0]["announced_port"], 9, "{diagnosis}");
}

#[test]
fn the_doctors_command() {
    let server = Server::start(&[]);
    let master = format!("http://{}", server.address("web.listen"));
    let doctor = |arguments: &[&str]| {
        let output = command().arg("doctor").args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, said, _) = doctor(&[&master, "iceball", "127.0.0.1:1"]);
    assert_eq!(code, 1);
    assert!(said.contains("Nothing was seen of 127.0.0.1:1") && said.contains("port 27790"), "{said}");
    Game::new(server.address("iceball.listen")).announce(&announcement(b"here", 1, 0));
    until("it", || server.listed().pop());
    let (code, said, _) = doctor(&[&master, "iceball", "127.0.0.1:1"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("Listed. Last verified by cookie") && said.contains("returned the cookie"), "{said}");
    let line = |what: &str| said.lines().find(|line| line.contains(what)).unwrap();
    assert!(
        line("a cookie was sent").ends_with(", unverified.") && !line("returned the cookie").contains("unverified")
    );
    let (code, json, _) = doctor(&[&master, "iceball", "127.0.0.1:1", "--json"]);
    assert_eq!((code, &serde_json::from_str::<Value>(&json).unwrap()["listed"]), (0, &json!(true)));
    for (arguments, code, says) in [
        (&["iceball"][..], 2, "give a game and a server"),
        (&[], 2, "Usage: rallypoint doctor [OPTIONS] [MASTER] <GAME> <ADDRESS>"),
        (&[&master, "127.0.0.1:1"], 2, "the game is missing: write `rallypoint doctor http://"),
        (&[&master, "icebal", "127.0.0.1:1"], 1, "did you mean the game `iceball`?"),
        (&[&master, "iceball", "127.0.0.1:99999"], 2, "is not a port"),
        (&[&master, "iceball", "no-such-host.invalid"], 3, "cannot find no-such-host.invalid"),
        (&["netpanzer://x", "iceball", "127.0.0.1:1"], 2, "only a Rallypoint"),
        (&["http://127.0.0.1:1", "iceball", "127.0.0.1:1"], 3, "127.0.0.1:1"),
    ] {
        let (found, _, said) = doctor(arguments);
        assert_eq!(found, code, "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn the_doctor_knows_host_names_and_what_was_probably_meant() {
    let server = Server::start(&[]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"here", 20737, 0));
    until("it", || server.listed().pop());
    let check = |query: &str| server.json(&format!("/api/v1/check?{query}"));
    let named = check("game=iceball&address=localhost:20737");
    assert_eq!((&named["listed"], &named["endpoint"]), (&json!(true), &json!("127.0.0.1:20737")), "{named}");
    let nobody = server.get("/api/v1/check?game=iceball&address=no-such-host.invalid:20737");
    assert_eq!((nobody.status(), &parsed(&nobody)["parameter"]), (404, &json!("address")));
    let any = check("address=127.0.0.1:20737");
    assert_eq!((&any["listed"], &any["game"]), (&json!(true), &json!("iceball")), "whatever is there");
    let mistyped = check("game=netpanzr&address=127.0.0.1:7");
    assert_eq!(mistyped["did_you_mean"], "netpanzer", "{mistyped}");
    let other = check("game=netpanzer&address=127.0.0.1:20737");
    assert!(other["summary"].as_str().unwrap().contains("another game is listed"), "{other}");
    let page = |path: &str| server.get(path).text().to_string();
    assert!(
        page("/doctor?game=netpanzr&address=127.0.0.1:7")
            .contains("Did you mean the game <a href=\"/doctor?game=netpanzer&")
    );
    assert!(page("/doctor?game=iceball").contains("value=\"127.0.0.1:20737\""), "the visitor's own address");
}

#[test]
fn metrics_for_prometheus() {
    let server = Server::start(&[]);
    three(&server);
    exchange(server.address("netpanzer.listen"), br"\list\gamename\a\final\list\gamename\b\final\final\");
    let metrics = until("the lists to be counted", || {
        Some(server.get("/metrics"))
            .filter(|metrics| metrics.text().contains("rallypoint_lists_total{list=\"netpanzer\"} 2"))
    });
    assert_eq!(metrics.header("Content-Type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    for line in [
        "rallypoint_servers{game=\"iceball\"} 3",
        "rallypoint_players{game=\"iceball\"} 69",
        "rallypoint_events_total{kind=\"cookie_sent\"} 3",
        "rallypoint_events_total{kind=\"cookie_returned\"} 3",
    ] {
        assert!(metrics.text().contains(line), "{line} is not in\n{}", metrics.text());
    }
}

use super::*;
use crate::model::{Facts, Game, Proof, Server};
use crate::registry::view::View;
use proptest::prelude::*;

fn server(address: &str, game: &str, proven_at_ms: u64, keys: &[(&str, &str)]) -> Arc<Server> {
    let game = crate::protocols::game_named(game).unwrap();
    let server = Server::new(address.parse().unwrap(), game, Proof::Query, proven_at_ms, &Facts::default());
    Arc::new(Server { keys: Some(Arc::new(HeartbeatKeys(keys.iter().copied().collect()))), ..server })
}

fn view() -> View {
    let keys = |protocol| [("gamename", "netpanzer"), ("port", "3030"), ("protocol", protocol)];
    let iceball =
        Server::new("203.0.113.9:5".parse().unwrap(), Game::Own("iceball"), Proof::Cookie, 1, &Facts::default());
    let servers = vec![
        server("203.0.113.5:3030", "netpanzer", 10, &keys("1122")),
        server("203.0.113.6:3030", "netpanzer", 30, &keys("1122")),
        server("203.0.113.7:3030", "netpanzer", 20, &keys("1120")),
        server("[2001:db8::1]:3030", "netpanzer", 99, &keys("1122")),
        server("203.0.113.8:1", "mygame", 10, &[("gamename", "mygame"), ("mode", "Ctf")]),
        server("203.0.113.10:28900", "master", 10, &[("gamename", "master"), ("port", "28900")]),
        Arc::new(iceball),
    ];
    View::new(1, 0, servers)
}

fn settings(password: &str) -> Settings {
    Settings { password: password.into(), ..Settings::default() }
}

/// The answer as text.
fn shown(out: &[Output], view: &View) -> String {
    out.iter().map(|part| String::from_utf8(part.bytes(view).to_vec()).unwrap()).collect()
}

/// Sends these pieces; returns the whole answer and the session's last `Next`.
fn talk(settings: Settings, pieces: &[&[u8]]) -> (String, Next) {
    let peer = "198.51.100.1:40000".parse().unwrap();
    let local = "192.0.2.1:28900".parse().unwrap();
    let mut session = Rules::new(settings, Own::default()).open(peer, local, 0);
    let (view, mut out) = (view(), Vec::new());
    let mut next = session.on(SessionInput::Opened, &mut out);
    for mut piece in pieces.iter().copied() {
        if matches!(next, Next::Read) {
            next = session.on(SessionInput::Bytes(piece), &mut out);
        }
        while let Next::Write { taken } = next {
            piece = &piece[taken..];
            next = session.on(SessionInput::Bytes(piece), &mut out);
        }
    }
    (shown(&out, &view), next)
}

fn answer(request: &[u8]) -> (String, Next) {
    talk(settings("secret"), &[request])
}

fn announced(request: &[u8]) -> Heartbeat {
    match answer(request) {
        (out, Next::Announce(heartbeat)) if out.is_empty() => heartbeat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_browser_announces_nothing_and_ends_nothing() {
    for message in [r"\heartbeat\gamename\mygame\port\1\final\", r"\quit\gamename\mygame\port\1\final\"] {
        let get = format!("GET /?\\final{message} HTTP/1.1\r\nHost: x\r\n\r\n");
        let post = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n\\final{message}");
        let unfinished = format!("OPTIONS /{message} HTTP/1.1\r\n\r\n{message}");
        for request in [get, post, unfinished] {
            let (out, next) = answer(request.as_bytes());
            assert_eq!(out, r"\error\Unknown request\final\", "{request}");
            assert!(matches!(next, Next::Close), "{request}: {next:?}");
        }
    }
}

#[test]
fn the_originals_answers_byte_for_byte() {
    let closing: &[(&[u8], &str)] = &[
        (br"\heartbeat\port\1\final\", r"\error\no gamename specified\final\"),
        (br"\heartbeat\final\", r"\error\no gamename specified\final\"),
        (br"\heartbeat\gamename\x\final\", r"\error\no port specified\final\"),
        (br"\heartbeat\gamename\master\port\1\final\", r"\error\passwort missing for master update\final\"),
        (br"\heartbeat\gamename\master\port\1\password\x\final\", r"\error\wrong password for master update\final\"),
        (br"\quit\gamename\x\final\", r"\error\missing port in quit message\final\"),
        (br"\quit\gamename\master\port\1\final\", r"\error\passwort missing for master update\final\"),
        (br"\quit\gamename\master\port\1\password\x\final\", r"\error\wrong password for master update\final\"),
        (br"\final\", ""),
    ];
    for (request, expected) in closing {
        let (out, next) = answer(request);
        assert_eq!(out, *expected, "{}", String::from_utf8_lossy(request));
        assert!(matches!(next, Next::Close), "{}", String::from_utf8_lossy(request));
    }
    let open: &[(&[u8], &str)] = &[
        (br"\list\final\", r"\error\missing gamename in list query\final\"),
        (br"\nonsense\a\b\final\", r"\error\Unknown request\final\"),
        (br"\list\gamename\nobody\final\", r"\final\"),
        (br"\LIST\gamename\nobody\final\", r"\error\Unknown request\final\"),
        (br"\ /\final\", r"\error\Unknown request\final\"),
    ];
    for (request, expected) in open {
        let (out, next) = answer(request);
        assert_eq!(out, *expected);
        assert!(matches!(next, Next::Read));
    }
}

#[test]
fn lists_are_most_recently_proven_first_and_ipv4_only() {
    let expected = r"\ip\203.0.113.6\port\3030\ip\203.0.113.7\port\3030\ip\203.0.113.5\port\3030\final\";
    assert_eq!(answer(br"\list\gamename\netpanzer\final\").0, expected);
    assert_eq!(answer(br"\list\gamename\iceball\final\").0, r"\ip\203.0.113.9\port\5\final\");
}

#[test]
fn filters_are_byte_exact_over_any_key() {
    let only_1120 = r"\ip\203.0.113.7\port\3030\final\";
    assert_eq!(answer(br"\list\gamename\netpanzer\protocol\1120\final\").0, only_1120);
    assert_eq!(answer(br"\list\protocol\1120\gamename\netpanzer\final\").0, only_1120);
    assert_eq!(answer(br"\list\gamename\mygame\mode\Ctf\final\").0, r"\ip\203.0.113.8\port\1\final\");
    for none in [&br"\list\gamename\mygame\mode\ctf\final\"[..], br"\list\gamename\mygame\map\x\final\"] {
        assert_eq!(answer(none).0, r"\final\");
    }
}

#[test]
fn a_server_of_another_protocol_is_found_by_its_port_and_by_no_other_key() {
    assert_eq!(answer(br"\list\gamename\iceball\port\5\final\").0, r"\ip\203.0.113.9\port\5\final\");
    for none in [&br"\list\gamename\iceball\port\6\final\"[..], br"\list\gamename\iceball\x\5\final\"] {
        assert_eq!(answer(none).0, r"\final\");
    }
}

#[test]
fn only_the_whole_list_of_a_game_with_a_card_is_common() {
    let peer = "198.51.100.1:40000".parse().unwrap();
    for (request, expected) in [
        (&br"\list\gamename\netpanzer\final\"[..], true),
        (br"\list\gamename\netpanzer\protocol\1122\final\", false),
        (br"\list\gamename\mygame\final\", false),
    ] {
        let mut out = Vec::new();
        Rules::new(settings(""), Own::default()).open(peer, peer, 0).on(SessionInput::Bytes(request), &mut out);
        let Some(Output::List(list)) = out.first() else { panic!("{}", request.escape_ascii()) };
        assert_eq!(list.is_common(), expected, "{}", request.escape_ascii());
    }
}

#[test]
fn lists_are_counted_and_one_that_cannot_be_had_is_refused_with_words() {
    let peer = "198.51.100.1:40000".parse().unwrap();
    let rules = Rules::new(settings(""), Own::default());
    assert_eq!(rules.patience_ms(), None);
    let mut session = rules.open(peer, peer, 0);
    session.on(SessionInput::Bytes(br"\list\final\"), &mut Vec::new());
    assert_eq!(session.lists(), 0);
    session.on(SessionInput::Bytes(&br"\list\gamename\netpanzer\final\".repeat(3)), &mut Vec::new());
    assert_eq!(session.lists(), 3);
    assert_eq!(session.refused("busy").as_deref(), Some(&br"\error\busy\final\"[..]));
}

#[test]
fn the_master_list_ends_with_the_answering_master() {
    let own = r"\ip\192.0.2.1\port\28900\final\";
    assert_eq!(answer(br"\list\gamename\master\final\").0, format!(r"\ip\203.0.113.10\port\28900{own}"));
    let public = Settings { public: Some("203.0.113.99:28900".parse().unwrap()), ..settings("") };
    let (out, _) = talk(public, &[br"\list\gamename\master\final\"]);
    assert!(out.ends_with(r"\ip\203.0.113.99\port\28900\final\"), "{out}");
}

#[test]
fn the_answering_master_is_listed_once_whoever_told_of_it() {
    let client = "198.51.100.1:40000".parse().unwrap();
    let local = "192.0.2.1:28900".parse().unwrap();
    let keys = [("gamename", "master")];
    let masters = ["192.0.2.1:28900", "192.0.2.2:28900", "203.0.113.99:1", "203.0.113.10:28900"];
    let view = View::new(1, 0, masters.map(|address| server(address, "master", 1, &keys)).into());
    let listed = |settings: Settings, peer: SocketAddr, request: &[u8]| {
        let machine = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let own = Own::new(&["0.0.0.0:28900".parse().unwrap()], &machine, settings.public);
        let mut out = Vec::new();
        Rules::new(settings, own).open(peer, local, 0).on(SessionInput::Bytes(request), &mut out);
        shown(&out, &view)
    };
    let list = br"\list\gamename\master\final\";
    let other = r"\ip\203.0.113.10\port\28900";
    assert_eq!(
        listed(settings(""), client, list),
        format!(r"\ip\203.0.113.99\port\1{other}\ip\192.0.2.1\port\28900\final\")
    );
    let public = Settings { public: Some("203.0.113.99:1".parse().unwrap()), ..settings("secret") };
    assert_eq!(listed(public.clone(), client, list), format!(r"{other}\ip\203.0.113.99\port\1\final\"));
    let filtered = br"\list\gamename\master\x\y\final\";
    assert_eq!(listed(settings(""), client, filtered), r"\ip\192.0.2.1\port\28900\final\");
    // It does not list itself as another master.
    let itself = "192.0.2.2:40000".parse().unwrap();
    let heartbeat = br"\heartbeat\port\28900\gamename\master\password\secret\final\";
    assert_eq!(listed(public, itself, heartbeat), r"\error\this is the address of this master itself\final\");
}

#[test]
fn heartbeats() {
    let heartbeat = announced(br"\heartbeat\gamename\netpanzer\port\3030\protocol\1122\final\");
    assert_eq!(heartbeat.address, "198.51.100.1:3030".parse().unwrap());
    assert_eq!((heartbeat.game.name(), heartbeat.verify, heartbeat.life_ms), ("netpanzer", true, 720_000));
    assert_eq!(heartbeat.keys.get(b"protocol"), Some(&b"1122"[..]));
    let other = announced(br"\heartbeat\gamename\mygame\port\1\final\");
    assert_eq!(other.life_ms, 720_000, "games without a card have this protocol's life");
    assert!(!other.verify, "it cannot be queried");
    let old = announced(br"\list\final\heartbeat\gamename\netpanzer\port\3030\final\".get(12..).unwrap());
    assert!(old.verify);
    let trusting = Settings { verify: false, ..settings("") };
    let (_, next) = talk(trusting, &[br"\heartbeat\gamename\netpanzer\port\3030\final\"]);
    assert!(matches!(next, Next::Announce(Heartbeat { verify: false, .. })));
    let master = announced(br"\heartbeat\port\28900\gamename\master\password\secret\final\");
    assert_eq!(master.game.name(), "master");
    assert_eq!(master.keys.get(b"password"), None, "not kept, so lists cannot be filtered by it");
}

#[test]
fn the_old_piggy_backed_form() {
    let (out, next) =
        answer(br"\list\gamename\master\final\heartbeat\gamename\netpanzer\port\3030\protocol\1118\final\");
    assert!(out.ends_with(r"\ip\192.0.2.1\port\28900\final\"));
    assert!(matches!(next, Next::Announce(_)));
}

#[test]
fn ports_are_digits_from_1_to_65535() {
    for port in ["0", "65536", "70000", "-1", "+1", " 1", "1x", "0x10", "99999999999999999999", "３０"] {
        for kind in ["heartbeat", "quit"] {
            let request = format!(r"\{kind}\gamename\x\port\{port}\final\");
            let expected = r"\error\port must be a number from 1 to 65535\final\";
            assert_eq!(answer(request.as_bytes()).0, expected, "{request}");
        }
    }
    assert_eq!(announced(br"\heartbeat\gamename\x\port\65535\final\").address.port(), 65535);
}

#[test]
fn quits_and_networks() {
    let (out, next) = answer(br"\quit\port\3030\final\");
    assert_eq!(out, r"\final\");
    assert!(matches!(next, Next::Quit { master: false, address } if address.port() == 3030));
    let (_, next) = answer(br"\quit\gamename\master\password\secret\port\28900\final\");
    assert!(matches!(next, Next::Quit { master: true, .. }));
    let (out, _) = talk(settings(""), &[br"\heartbeat\gamename\master\port\1\final\"]);
    assert_eq!(out, r"\error\passwort missing for master update\final\");
    let (out, _) = talk(settings(""), &[br"\heartbeat\gamename\master\port\1\password\x\final\"]);
    assert_eq!(out, r"\error\this master is in no master network\final\");
}

#[test]
fn gamespys_form_as_qstat_sends_it() {
    let (out, next) = answer(
        br"\gamename\gamespy2\gamever\020109017\location\5\validate\12345678\final\\list\\gamename\netpanzer\final\",
    );
    let expected = r"\basic\\secure\RALLYP\ip\203.0.113.6:3030\ip\203.0.113.7:3030\ip\203.0.113.5:3030\final\";
    assert_eq!(out, expected);
    assert!(matches!(next, Next::Close));
}

#[test]
fn the_answering_master_has_the_lists_form() {
    let plain = answer(br"\list\gamename\master\final\").0;
    let entry = plain.strip_suffix(r"\final\").unwrap();
    let (ip, port) = entry[entry.rfind(r"\ip\").unwrap() + 4..].split_once(r"\port\").unwrap();
    let gamespy = answer(br"\gamename\gamespy2\final\list\gamename\master\final\").0;
    assert!(gamespy.ends_with(&format!(r"\ip\{ip}:{port}\final\")), "{gamespy}");
}

#[test]
fn names_of_games_are_compared_byte_for_byte() {
    for name in [&b"net\x01panzer"[..], b"netpanzer\xe2", b"netpanzer ", b"NetPanzer"] {
        let list = [br"\list\gamename\", name, br"\final\"].concat();
        assert_eq!(answer(&list).0, r"\final\", "{name:?}");
    }
    for name in [&b"net\x01panzer"[..], b"netpanzer\xe2", &[b'x'; 65]] {
        let heartbeat = [br"\heartbeat\gamename\", name, br"\port\1\final\"].concat();
        assert_eq!(answer(&heartbeat).0, r"\error\gamename must be plain text of at most 64 bytes\final\");
    }
}

/// The answers per write, when all requests arrive in one piece.
fn written(view: &View, mut requests: &[u8]) -> Vec<String> {
    let peer = "198.51.100.1:40000".parse().unwrap();
    let mut session = Rules::new(settings(""), Own::default()).open(peer, peer, 0);
    let mut writes = Vec::new();
    loop {
        let mut out = Vec::new();
        let next = session.on(SessionInput::Bytes(requests), &mut out);
        writes.push(shown(&out, view));
        match next {
            Next::Write { taken } => requests = &requests[taken..],
            _ => return writes,
        }
    }
}

#[test]
fn rare_lists_are_answered_one_at_a_time() {
    let pile = br"\list\gamename\mygame\a\b\final\".repeat(100);
    assert_eq!(written(&view(), &pile), [r"\final\"; 100], "each is written before the next is rendered");
    let heartbeat = br"\heartbeat\gamename\mygame\port\1\final\";
    let (out, next) = answer(&[&pile[..], heartbeat].concat());
    assert_eq!(out, r"\final\".repeat(100));
    assert!(matches!(next, Next::Announce(_)), "{next:?}");
}

#[test]
fn shared_lists_are_gathered_into_one_write_up_to_a_bound() {
    let view = view();
    let one = written(&view, br"\list\gamename\netpanzer\final\").concat();
    let writes = written(&view, &br"\list\gamename\netpanzer\final\".repeat(100));
    assert_eq!(writes.concat(), one.repeat(100));
    // A list and its end are two parts.
    let whole = writes.iter().take_while(|write| **write == one.repeat(GATHERED_PARTS / 2)).count();
    assert_eq!((whole, writes.len()), (100 / (GATHERED_PARTS / 2), 7));
}

#[test]
fn verdicts_and_too_much() {
    let peer = "198.51.100.1:40000".parse().unwrap();
    for (verdict, expected) in [
        (Verdict::Listed, r"\final\".to_string()),
        (Verdict::Refused(r"no\ answer".into()), r"\error\no/ answer\final\".to_string()),
    ] {
        let mut out = Vec::new();
        let next =
            Rules::new(settings(""), Own::default()).open(peer, peer, 0).on(SessionInput::Verdict(verdict), &mut out);
        assert_eq!(shown(&out, &view()), expected);
        assert!(matches!(next, Next::Close));
    }
    let (out, next) = answer(&[b'a'; 100_000]);
    assert_eq!(out, r"\error\token too long\final\");
    assert!(matches!(next, Next::Close));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (out, next) = answer(br"\list\gamename\mygame\final\x\final\list\gamename\nobody\final\");
    assert_eq!(out, r"\ip\203.0.113.8\port\1\final\\error\Unknown request\final\\final\");
    assert!(matches!(next, Next::Read));
}

proptest! {
    #[test]
    fn any_fragmentation_gives_the_same_answer(cuts in proptest::collection::vec(0..150usize, 0..10)) {
        let bytes: &[u8] = br"\list\gamename\netpanzer\final\\x\y\z\final\list\gamename\master\final\heartbeat\gamename\netpanzer\port\3030\final\";
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let (whole, _) = answer(bytes);
        let (cut, next) = talk(settings("secret"), &pieces);
        prop_assert_eq!(cut, whole);
        prop_assert!(matches!(next, Next::Announce(_)));
    }

    #[test]
    fn no_bytes_break_a_session(pieces: Vec<Vec<u8>>) {
        let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
        talk(settings("secret"), &pieces);
    }
}

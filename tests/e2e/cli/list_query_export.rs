//! The client commands: simulated servers, a real master, and list, query and export as its clients. Threads of these tests
//! play masters that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use rallypoint::protocols::announce::AnnounceMethod;
use rallypoint::protocols::{CARDS, Fetch, Games};
use serde_json::Value;

use crate::support::commands::{Running, ends, json, place, simulate, text, xml};
use crate::support::*;

#[test]
fn every_game_from_its_server_to_exported_files() {
    let server = Server::start(&["guard.max_servers_per_ip=100"]);
    let web = server.address("web.listen");
    let folder = Folder::new("every-game");
    for card in CARDS {
        let name = card.name;
        let master = match (card.master_port, &card.fetch) {
            (None, Fetch::Http { path, .. }) => format!("{name}+http://{web}{path}"),
            _ => format!("{name}://{}", server.address(&format!("{name}.listen"))),
        };
        // Where its own masters take no announcements, the API does.
        let announce_to =
            if matches!(card.announce, AnnounceMethod::None) { format!("http://{web}") } else { master.clone() };
        let (_servers, mut addresses) = simulate(name, 3, &["--announce", &announce_to]);
        addresses.sort();
        let listed = until(&format!("three {name} servers on the list"), || {
            let listed = json(&["list", &master]);
            (listed.len() == 3).then_some(listed)
        });
        let mut found: Vec<_> = listed.iter().map(|server| format!("{name}://{}", place(server))).collect();
        found.sort();
        assert_eq!(found, addresses);

        let asked = json(&["list", &master, "--query", "--sort", "name"]);
        assert_eq!(asked.len(), 3);
        for server in &asked {
            assert_eq!(server["protocol"], name);
            assert!(server["game"] == name || card.games == Games::Family, "{server}");
            assert!(server["name"].as_str().is_some_and(|name| name.ends_with(['1', '2', '3'])), "{server}");
            assert!(server["players_max"].as_u64().unwrap() > 0 && !server["map"].as_str().unwrap().is_empty());
            assert_eq!(server["rtt_ms"].is_f64(), card.query.is_some(), "{server}");
        }

        // The same servers through the API.
        let names = |servers: &[Value]| servers.iter().map(|server| server["name"].clone()).collect::<Vec<_>>();
        until("the same names, which some say only when they are asked", || {
            let api = json(&["list", &format!("http://{web}/api/v1/servers?protocol={name}"), "--sort", "name"]);
            (names(&api) == names(&asked)).then_some(())
        });

        let (xml_file, json_file) = (folder.path().join("a.xml"), folder.path().join("a.json"));
        let (_, log) = ends(
            0,
            &["export", &master, "--once", "--xml", xml_file.to_str().unwrap(), "--json", json_file.to_str().unwrap()],
        );
        assert!(log.contains("3 servers listed, 0 without an answer"), "{log}");
        let elements = xml(&std::fs::read_to_string(&xml_file).unwrap());
        assert_eq!(elements.len(), 3);
        for element in &elements {
            assert_eq!((&*element["ip"], &*element["responding"]), ("127.0.0.1", "1"));
            let json = asked.iter().find(|server| place(server).ends_with(&format!(":{}", element["port"]))).unwrap();
            assert_eq!(json["name"], *element["servername"]);
            assert_eq!(json["players_current"].to_string(), element["playercount"]);
            assert_eq!(json["players_max"].to_string(), element["maxplayercount"]);
            assert_eq!(json["map"], *element["mapname"]);
            assert_eq!(element.contains_key("flavor"), card.flavors, "{name}");
            for (attribute, _) in CARDS.iter().flat_map(|card| card.xml_attributes) {
                let is_own = card.xml_attributes.iter().any(|(own, _)| own == attribute);
                assert_eq!(element.contains_key(*attribute), is_own, "{name}: {attribute}");
            }
        }
        let exported: Value = serde_json::from_slice(&std::fs::read(&json_file).unwrap()).unwrap();
        assert_eq!(exported["total"], 3);
    }
}

#[test]
fn a_configured_hyperbol_server_keeps_its_flavor_to_the_end() {
    let (_servers, addresses) = simulate("hyperbol", 1, &[]);
    let address = addresses[0].strip_prefix("hyperbol://").unwrap();
    let folder = Folder::new("flavor");
    let file = folder.write("x.toml", &format!("[[hyperbol.servers]]\naddress = \"{address}\"\nflavor = 4\n"));
    let server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    let master = format!("hyperbol://{}", server.address("hyperbol.listen"));
    let listed = until("it to be listed", || Some(json(&["list", &master])).filter(|listed| listed.len() == 1));
    assert_eq!((&listed[0]["flavor"], &listed[0]["official"]), (&4.into(), &true.into()));
    let (stdout, _) = ends(0, &["list", &master, "--query", "--format", "xml"]);
    let elements = xml(&stdout);
    assert_eq!((&*elements[0]["flavor"], &*elements[0]["skill"]), ("4", "0"));
}

#[test]
fn no_server_is_missed_with_two_percent_loss() {
    for game in CARDS.iter().filter(|card| card.query.is_some()).map(|card| card.name) {
        let (_servers, addresses) = simulate(game, 300, &["--loss", "2", "--delay", "1ms"]);
        let folder = Folder::new(&format!("loss-{game}"));
        let file = folder.write("servers", &addresses.join("\n"));
        let answered = json(&["query", "--from", file.to_str().unwrap(), "--sort", "address", "--in-flight", "100"]);
        assert_eq!(answered.len(), 300);
        assert!(answered.iter().all(|server| server["rtt_ms"].as_f64().unwrap() > 0.0));
    }
}

#[test]
fn no_server_of_ten_thousand_is_missed_at_full_speed() {
    let (_servers, addresses) = simulate("netpanzer", 10_000, &["--delay", "30ms"]);
    let folder = Folder::new("ten-thousand");
    let file = folder.write("servers", &addresses.join("\n"));
    // A busy machine may pause either program for seconds: how fast it is, the benchmark says.
    let as_fast = ["--rate", "1000000", "--in-flight", "1000000", "--timeout", "30s"];
    let answered = json(&[&["query", "--from", file.to_str().unwrap()], &as_fast[..]].concat());
    assert_eq!(answered.len(), 10_000);
}

#[test]
fn output_formats_of_query_and_sources_of_addresses() {
    let (_servers, addresses) = simulate("bloodmasters", 4, &[]);
    let file = format!("# four\r\n\r\n{}   # the first\r\n{}\r\n", addresses[0], addresses[1..].join("\r\n"));
    let query = |arguments: &[&str]| {
        let mut child = command()
            .args([&["query", "--from", "-"], arguments].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(file.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        text(&output.stdout).to_string()
    };
    // Duplicates, also by host name, are queried once.
    let by_name = addresses[0].replace("127.0.0.1", "localhost");
    let table = query(&[&addresses[0], &by_name]);
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.lines().next().unwrap().contains("Players"));
    let csv = query(&["--format", "csv", "--sort", "players"]);
    assert!(csv.starts_with("game,address,port,name,"), "{csv}");
    let names: Vec<_> = csv.lines().skip(1).map(|line| line.split(',').nth(3).unwrap()).collect();
    assert_eq!(names, ["Slaughterhouse 3", "Slaughterhouse 4", "Slaughterhouse 2", "Slaughterhouse 1"]);
    let not_empty = query(&["--format", "csv", "--not-empty"]);
    assert!(!not_empty.contains("Slaughterhouse 1") && not_empty.contains("Slaughterhouse 2"), "{not_empty}");
    assert_eq!(xml(&query(&["--format", "xml"])).len(), 4);
    let players: Value = serde_json::from_str(&query(&["--format", "json", "--not-empty", "--not-full"])).unwrap();
    assert_eq!(players["servers"][0]["players"][0]["team"], "red");
}

/// A game server that answers each datagram with the result of `answer`.
fn game(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        // This thread ends with the test's process.
        while let Ok((size, from)) = socket.recv_from(&mut buffer) {
            for bytes in answer(&buffer[..size]) {
                let _ = socket.send_to(&bytes, from);
            }
        }
    });
    address
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The reply from the protocol's document, with the echo filled in.
fn hyperbol_info(echo: &[u8]) -> Vec<u8> {
    let mut info = vec![27];
    info.extend(echo);
    for (text, size) in [("Veks California DM", 32), ("Deathmatch", 32)] {
        info.extend(text.bytes());
        info.resize(info.len() + size - text.len(), 0);
    }
    info.extend([3, 8, 0]);
    info.extend(b"a_doommkii.hba");
    info.resize(229, 0);
    info
}

fn bloodmasters_reply(echo: &[u8]) -> Vec<u8> {
    let mut reply = from_hex(
        "57000d11223344104c6f6f706261636b20224172656e61220117687474703a2f2f7777772e6578616d706c652e6f72672f0a0802086d617961\
         6e63746602021b0014001e0005416c6963650100004003423f6202000130",
    );
    reply[3..7].copy_from_slice(echo);
    reply
}

#[test]
fn bad_replies_are_explained_and_do_not_stop_the_run() {
    let status = br"gamename\netpanzer\hostname\Tank\mapname\Duell\numplayers\1\maxplayers\8\final\";
    let panzer = |question: &[u8]| netpanzer_answers(question, status);
    let flipped = |echo: &[u8]| echo.iter().rev().map(|b| b ^ 0x55).collect::<Vec<u8>>();
    let elsewhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    let cases: Vec<(&str, SocketAddr, &str)> = vec![
        ("hyperbol", game(move |q| vec![hyperbol_info(&q[1..])[..228].to_vec()]), "228 bytes, expected 229"),
        ("hyperbol", game(move |q| vec![[hyperbol_info(&q[1..]), vec![0]].concat()]), "230 bytes, expected 229"),
        ("hyperbol", game(move |q| vec![hyperbol_info(&flipped(&q[1..]))]), "forged"),
        ("hyperbol", game(|_| vec![b"\xff\xff\xff\xffinfo".to_vec()]), "not a Hyperbol message"),
        ("hyperbol", game(|_| vec![Vec::new()]), "0 bytes"),
        ("hyperbol", game(move |q| vec![hyperbol_info(&[q[4], q[3], q[2], q[1]])]), "forged"),
        ("bloodmasters", game(|q| vec![bloodmasters_reply(&q[3..])[..60].to_vec()]), "truncated: 60 bytes"),
        (
            "bloodmasters",
            game(|q| {
                let mut reply = bloodmasters_reply(&q[3..]);
                reply.swap(0, 1);
                vec![reply]
            }),
            "big endian",
        ),
        (
            "bloodmasters",
            game(|q| {
                let mut reply = bloodmasters_reply(&q[3..]);
                reply[0] = 60;
                vec![reply]
            }),
            "ends before its last field",
        ),
        ("bloodmasters", game(move |q| vec![bloodmasters_reply(&flipped(&q[3..]))]), "forged"),
        ("netpanzer", game(|_| vec![b"00000000".to_vec()]), "forged"),
        ("netpanzer", game(|_| vec![b"nonsense".to_vec()]), "the echo is not what was sent"),
        ("netpanzer", game(move |q| netpanzer_answers(q, &status[..status.len() - 7])), "cut short: no `final`"),
        ("netpanzer", game(move |q| panzer(q)[..1].to_vec()), "answers, but does not describe itself"),
        (
            "netpanzer",
            game(move |q| [panzer(q), netpanzer_answers(br"\status\", b"hostname\\x\\final\\")].concat()),
            "forging",
        ),
        (
            "netpanzer",
            game(move |q| {
                // A correct answer, but from another address.
                let _ = elsewhere.send_to(&panzer(q)[0], "127.0.0.1:9");
                vec![]
            }),
            "no answer",
        ),
    ];
    // A duplicate echo is no error, and a good answer after a bad one is accepted.
    let doubled = game(move |q| {
        let twice = panzer(q).into_iter().flat_map(|answer| [answer.clone(), b"00000000".to_vec(), answer]);
        twice.collect()
    });
    let late = game(|q| vec![b"nonsense".to_vec(), hyperbol_info(&[0; 4]), hyperbol_info(&q[1..])]);
    let good = [format!("netpanzer://{doubled}"), format!("hyperbol://{late}")];
    let urls: Vec<String> = cases.iter().map(|(game, at, _)| format!("{game}://{at}")).chain(good.clone()).collect();
    let arguments: Vec<&str> =
        ["query", "--format", "json"].into_iter().chain(urls.iter().map(String::as_str)).collect();
    let (stdout, stderr) = ends(0, &arguments);
    for ((_, _, why), url) in cases.iter().zip(&urls) {
        let line = stderr.lines().find(|line| line.starts_with(&format!("{url}: ")));
        assert!(line.is_some_and(|line| line.contains(why)), "{url} should be `{why}`:\n{stderr}");
    }
    assert_eq!(stderr.lines().count(), cases.len(), "{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let found: Vec<_> = json["servers"].as_array().unwrap().iter().map(|server| server["name"].clone()).collect();
    assert_eq!(found, ["Tank", "Veks California DM"]);

    // Without a good one among them, nothing answered; XML lists them nevertheless.
    let arguments = ["query", &urls[0], &urls[1], "--format", "xml"];
    let (stdout, stderr) = ends(1, &arguments);
    assert!(stderr.contains("none of 2 servers answered"), "{stderr}");
    assert!(xml(&stdout).iter().all(|server| server["responding"] == "0" && !server.contains_key("servername")));
}

/// A master that handles each connection with `talk`.
pub fn master(talk: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            talk(stream);
        }
    });
    address
}

/// Reads a request's head; returns its first line.
pub fn request_line(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    first
}

/// A web server with the same answer to every request.
pub fn page(status: &'static str, body: &'static [u8]) -> SocketAddr {
    master(move |mut stream| {
        request_line(&stream);
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
    })
}

/// A Hyperbol master as its document describes it.
fn hyperbol_master(greeting: &'static [u8], list: Vec<u8>) -> SocketAddr {
    master(move |mut stream| {
        stream.set_nodelay(true).unwrap();
        for byte in greeting {
            let _ = stream.write_all(&[*byte]);
        }
        let mut request = [0; 8];
        if stream.read_exact(&mut request).is_ok() && request == *b"\x02\xb0\xad\x1b\xff\0\0\0" {
            let _ = stream.write_all(&list);
        }
    })
}

const GREETING: &[u8] = b"HBSL\x02\xb0\xad\x1b\x25\0\0\0";

#[test]
fn lists_of_masters_that_follow_the_documents() {
    let records = from_hex("4ca8b988652f0000000000004ca8b988612f000001000000cb00714dffff000007000000");
    let at = hyperbol_master(GREETING, records.clone());
    let listed = json(&["list", &format!("hyperbol://{at}")]);
    let found: Vec<_> = listed.iter().map(|server| (place(server), server["flavor"].as_u64())).collect();
    assert_eq!(
        found,
        [
            ("76.168.185.136:12133".into(), Some(0)),
            ("76.168.185.136:12129".into(), Some(1)),
            ("203.0.113.77:65535".into(), Some(7))
        ]
    );
    // A bad record, and a server that is listed twice.
    let at = hyperbol_master(GREETING, [&records[..12], &[0; 12], &records[..12]].concat());
    let (stdout, stderr) = ends(0, &["list", &format!("hyperbol://{at}"), "--format", "csv"]);
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    assert!(stderr.contains("skipped entry: 0 is not a port"), "{stderr}");

    let at = page("200 OK", b"203.0.113.5:6969\r\n\r\nnonsense\r\n203.0.113.6:1\r\n");
    let (stdout, stderr) = ends(0, &["list", &format!("bloodmasters+http://{at}/list.php"), "--format", "csv"]);
    assert!(stdout.contains("bloodmasters,203.0.113.5,6969,") && stdout.contains("203.0.113.6,1,"), "{stdout}");
    assert!(stderr.contains("line 3: not an address"), "{stderr}");

    let at = master(|mut stream| {
        let mut request = [0; 31];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(&request, br"\list\gamename\netpanzer\final\");
        stream.write_all(br"\ip\203.0.113.5\port\3030").unwrap();
        stream.write_all(br"\final\").unwrap();
        // The connection stays open: the list is complete without its end.
        let _ = stream.read(&mut request);
    });
    assert_eq!(json(&["list", &format!("netpanzer://{at}")]).len(), 1);
    let at = page("200 OK", b"");
    let (stdout, stderr) = ends(0, &["list", &format!("bloodmasters+http://{at}")]);
    assert_eq!((stdout.as_str(), stderr.contains("lists no servers")), ("", true));
}

#[test]
fn broken_answers_of_masters_are_explained() {
    let closes = master(drop);
    let hears_and_closes = master(|mut stream| drop(stream.read(&mut [0; 100])));
    let resets = master(|stream| {
        stream.peek(&mut [0]).unwrap(); // closing with bytes unread is a reset
    });
    // Bound, so that no other test gets the port, and not listening.
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let refuses = bound.local_addr().unwrap().as_socket().unwrap();
    let cut = hyperbol_master(GREETING, vec![1; 13]);
    let other = hyperbol_master(b"220 mail ESMTP", vec![]);
    let cases = [
        (format!("hyperbol://{refuses}"), 3, "cannot connect"),
        (format!("iceball://{refuses}"), 3, "cannot connect"),
        (format!("netpanzer://{refuses}"), 3, "cannot connect"),
        (format!("bloodmasters+http://{refuses}/"), 3, "cannot connect"),
        (format!("http://{refuses}"), 3, "cannot connect"),
        ("netpanzer://no-such-host.invalid".into(), 3, "cannot find no-such-host.invalid"),
        (format!("hyperbol://{closes}"), 1, "0 bytes, expected 12"),
        (format!("netpanzer://{hears_and_closes}"), 1, "cut short"),
        (format!("netpanzer://{resets}"), 1, "the connection was lost"),
        (format!("hyperbol://{cut}"), 1, "ends inside a record"),
        (format!("hyperbol://{other}"), 1, "not a Hyperbol message"),
        (format!("iceball://{}", page("200 OK", b"<html>")), 1, "not Iceball's list"),
        (format!("iceball://{}", page("404 Not Found", b"no such page\nat all")), 1, "404 Not Found: no such page"),
        (format!("bloodmasters+http://{}", page("200 OK", b"<html>\n<h1>hi</h1>")), 1, "not a list"),
        (format!("http://{}", page("200 OK", b"[]")), 1, "not a Rallypoint's list"),
        ("bloodmasters://127.0.0.1".into(), 2, "write bloodmasters+http://127.0.0.1 or"),
    ];
    for (url, code, why) in cases {
        let (stdout, stderr) = ends(code, &["list", &url]);
        assert!(stdout.is_empty() && stderr.contains(why) && stderr.lines().count() == 1, "{url}: {stderr}");
    }
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listed = page("200 OK", format!("{silent}\n").leak().as_bytes());
    let (_, stderr) = ends(1, &["list", "--query", &format!("bloodmasters+http://{listed}")]);
    assert!(stderr.contains(&format!("bloodmasters://{silent}: connection refused: the port is closed")), "{stderr}");
}

#[test]
fn lists_from_the_api_are_fetched_page_by_page() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let at = master(|mut stream| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        let line = request_line(&stream);
        assert!(line.starts_with("GET /deep/api/v1/servers?limit=1000"), "{line}");
        let after = line.split("after=127.0.0.1%3A").nth(1);
        let after: usize = after.map_or(0, |port| port.split(' ').next().unwrap().parse().unwrap());
        let servers: Vec<_> = (after + 1..=2_500)
            .take(1000)
            .map(|port| format!(r#"{{"game":"netpanzer","address":"127.0.0.1","port":{port},"name":"N {port}"}}"#))
            .collect();
        let body = format!(r#"{{"serial":7,"total":2500,"servers":[{}]}}"#, servers.join(","));
        let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{chunked}");
    });
    let listed = json(&["list", &format!("http://{at}/deep/")]);
    assert_eq!((listed.len(), ASKED.load(Ordering::Relaxed)), (2_500, 3));
    assert_eq!(listed[2_499]["name"], "N 2500");
}

#[test]
fn an_export_survives_failed_rounds_and_ends_on_a_signal() {
    let folder = Folder::new("export-every");
    let file = folder.path().join("servers.xml");
    let (_servers, addresses) = simulate("bloodmasters", 1, &[]);
    let address = addresses[0].strip_prefix("bloodmasters://").unwrap().to_string();
    let rounds = std::sync::Arc::new(AtomicUsize::new(0));
    let counter = rounds.clone();
    let at = master(move |mut stream| {
        request_line(&stream);
        // The second round fails.
        let (status, body) = match counter.fetch_add(1, Ordering::Relaxed) {
            1 => ("503 Service Unavailable", "busy".to_string()),
            _ => ("200 OK", format!("{address}\n")),
        };
        let _ =
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    });
    let url = format!("bloodmasters+http://{at}");
    let export = Running::start(&["export", &url, "--xml", file.to_str().unwrap(), "--every", "1s"]);
    let look = |what: &str, more: usize| {
        until(what, || (rounds.load(Ordering::Relaxed) > more && file.exists()).then_some(()));
        let elements = xml(&std::fs::read_to_string(&file).unwrap());
        assert_eq!((elements.len(), &*elements[0]["responding"]), (1, "1"));
    };
    look("the first round", 0);
    look("the second round", 1);
    std::fs::remove_file(&file).unwrap();
    look("a round after the bad one", 2);
    until("the bad round in the log", || {
        let log = export.log();
        (log.contains("503 Service Unavailable: busy; next round in 1s")).then_some(())
    });
    assert_eq!(export.interrupt(), Some(0));
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["servers.xml"]);
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    let folder = Folder::new("tool-mistakes");
    let bad = folder.write("bad", "netpanzer://127.0.0.1:1\n\n127.0.0.1:3030\n");
    let bad = bad.to_str().unwrap();
    let all_bad = folder.write("all-bad", "127.0.0.1:3030\nHLS 127.0.0.1\n");
    let all_bad = all_bad.to_str().unwrap();
    let empty = folder.write("empty", "# nobody\n");
    let cases: &[(&[&str], i32, &str)] = &[
        (&["list"], 2, "Usage"),
        (&["list", "127.0.0.1"], 2, "write iceball://127.0.0.1, netpanzer://127.0.0.1"),
        (&["list", "doom://127.0.0.1"], 2, "the schemes are iceball, netpanzer"),
        (&["list", "netpanser://127.0.0.1"], 2, "did you mean netpanzer://127.0.0.1?"),
        (&["list", "netpanzer:127.0.0.1"], 2, "write netpanzer://127.0.0.1"),
        (&["list", "127.0.0.1:3030"], 2, "write netpanzer://127.0.0.1:3030"),
        (&["list", "netpanzer://::1"], 2, "write IPv6 addresses in brackets: [::1]"),
        (&["list", "::1"], 2, "netpanzer://[::1]"),
        (&["list", "netpanzer://127.0.0.1", "--format", "yaml"], 2, "possible values: table, json, jsonl, xml, csv"),
        (&["watch", "netpanzer://127.0.0.1", "--every", "5"], 2, "write 5s for seconds or 5m for minutes"),
        (&["list", "netpanzer://127.0.0.1", "--sort", "beauty"], 2, "possible values: name, players"),
        (&["query"], 2, "--from"),
        (&["query", "iceball://127.0.0.1"], 2, "Iceball servers cannot be queried"),
        (&["query", "iceball://127.0.0.1", "netpanzer://127.0.0.1:1"], 1, "Iceball servers cannot be queried"),
        (&["query", "http://127.0.0.1"], 2, "not a game server"),
        (&["query", "netpanzer://127.0.0.1:99999"], 2, "not a port"),
        (&["query", "netpanzer://127.0.0.1", "--rate", "0"], 2, "0 is not in 1..=1000000"),
        (&["query", "--from", "/nowhere/at/all"], 2, "/nowhere/at/all: cannot be read"),
        (&["query", "--from", bad], 1, "bad:3: `127.0.0.1:3030` has no scheme"),
        (&["query", "--from", all_bad], 2, "all-bad:1: `127.0.0.1:3030` has no scheme"),
        (&["query", "http://127.0.0.1:8080"], 2, "`rallypoint list http://127.0.0.1:8080` shows its servers"),
        (&["query", "netpanzer://127.0.0.1", "--timeout", "2"], 2, "write 2s for seconds"),
        (&["query", "netpanzer://127.0.0.1", "--timeout", "1ms"], 2, "must be at least 100ms"),
        (&["query", "netpanzer://127.0.0.1", "--retries", "4"], 2, "4 is not in 0..=3"),
        (&["query", "--from", empty.to_str().unwrap()], 1, "no servers to query"),
        (
            &["query", "netpanzer://no-such-host.invalid"],
            1,
            "no-such-host.invalid: cannot find no-such-host.invalid:3030",
        ),
        (&["export", "netpanzer://127.0.0.1"], 2, "--xml"),
        (&["export", "netpanzer://127.0.0.1", "--xml", "x", "--every", "soon"], 2, "write a time like 5m"),
        (
            &["export", "netpanzer://127.0.0.1", "--xml", "x", "--every", "5"],
            2,
            "write 5s for seconds or 5m for minutes",
        ),
        (&["export", "netpanzer://127.0.0.1", "--xml", "x", "--every", "5m", "--once"], 2, "cannot be used with"),
        (&["simulate"], 2, "Usage"),
        (&["simulate", "doom"], 2, "the games are iceball, netpanzer, hyperbol"),
        (&["simulate", "netpanzer", "--count", "0"], 2, "0 is not in"),
        (&["simulate", "netpanzer", "--loss", "101"], 2, "101 is not in"),
        (&["simulate", "netpanzer", "--delay", "30"], 2, "write 30s for seconds"),
        (&["simulate", "netpanzer", "--listen", "here"], 2, "write an address like"),
        (&["simulate", "netpanzer", "--announce", "iceball://127.0.0.1"], 2, "cannot be announced"),
        (
            &["simulate", "hyperbol", "--announce", "hyperbol://127.0.0.1"],
            2,
            "netpanzer:// and http:// (a Rallypoint) accept any game",
        ),
        (&["simulate", "netpanzer", "--count", "9", "--listen", "127.0.0.1:65530"], 3, "cannot listen"),
    ];
    for (arguments, code, why) in cases {
        let (stdout, stderr) = ends(*code, arguments);
        assert!(stderr.contains(why), "{arguments:?} should say `{why}`:\n{stderr}");
        assert!(stdout.is_empty(), "{arguments:?}: {stdout}");
    }
    let at = page("200 OK", b"");
    let url = format!("bloodmasters+http://{at}");
    let (_, stderr) = ends(1, &["export", &url, "--xml", "/nowhere/at/all.xml"]);
    assert!(stderr.contains("/nowhere/at/all.xml: cannot be written"), "{stderr}");
    for command in ["list", "query", "export", "simulate"] {
        assert!(ends(0, &[command, "--help"]).0.contains("\nExample"), "{command}");
    }
    assert!(ends(0, &["--help"]).0.contains("simulate"));
}

#[test]
fn simulated_servers_show_why_a_master_refuses_them_and_end_on_a_signal() {
    let server = Server::start(&["guard.max_servers_per_ip=2"]);
    let master = format!("netpanzer://{}", server.address("netpanzer.listen"));
    let (running, addresses) = simulate("netpanzer", 4, &["--announce", &master, "--listen", "127.0.0.1:0"]);
    until("the first round to be over", || running.log().contains("announced 2 of 4").then_some(()));
    assert_eq!(running.log().matches(" not announced").count(), 2, "{}", running.log());
    assert_eq!(addresses.len(), 4);
    assert_eq!(running.interrupt(), Some(0));

    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (running, _) = simulate("netpanzer", 1, &["--announce", &format!("netpanzer://{closed}")]);
    until("the failure to be reported", || running.log().contains("cannot connect").then_some(()));
}

//! `[[upstream]]`: a Rallypoint follows other masters, of every kind, and its list outlives them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::Ordering;

use nix::sys::signal::Signal;

use crate::support::commands::{ends, json, listed, place, simulate};
use crate::support::netpanzer::{Tank, list, say};
use crate::support::*;

/// Queries are frequent, so that what is gone is gone soon.
const FAST: [&str; 2] = ["probe.every=1s", "probe.misses=2"];

/// `--set` for one upstream.
fn upstream(url: &str) -> String {
    format!("upstream=[{{url = \"{url}\", every = \"5s\"}}]")
}

fn web(server: &Server) -> String {
    format!("http://{}", server.address("web.listen"))
}

fn mirror_of(url: &str, more: &[&str]) -> Server {
    let upstream = upstream(url);
    Server::start(&[&FAST, &[upstream.as_str()][..], more].concat())
}

/// Each server's address, and what it is listed via.
fn vias(server: &Server) -> BTreeSet<(String, String)> {
    listed(server).iter().map(|row| (place(row), row["via"].as_str().unwrap_or("nobody").into())).collect()
}

fn lists(server: &Server, expected: &BTreeSet<(String, String)>) {
    let mut seen = BTreeSet::new();
    let what = format!("{expected:?} to be listed");
    until(&what, || {
        seen = vias(server);
        (seen == *expected).then_some(())
    });
}

fn via(address: &str, via: &str) -> BTreeSet<(String, String)> {
    BTreeSet::from([(address.to_string(), via.to_string())])
}

fn at(tank: &Tank) -> String {
    format!("127.0.0.1:{}", tank.port)
}

/// Waits until a server has answered again.
fn proven_again(server: &Server) {
    let proven = |server: &Server| listed(server).iter().map(|row| row["proven_at"].to_string()).collect::<Vec<_>>();
    let before = proven(server);
    assert!(!before.is_empty());
    // To the second: all of them, and twice the interval.
    until("everybody to answer again", || {
        let now = proven(server);
        (now.len() == before.len() && now.iter().zip(&before).all(|(now, before)| now > before)).then_some(())
    });
}

#[test]
fn the_list_of_every_kind_of_master_outlives_it_and_ends_with_its_games() {
    let old = Server::start(&FAST);
    let at = |key: &str| old.address(key);
    let (netpanzer, quake3) =
        (format!("netpanzer://{}", at("netpanzer.listen")), format!("quake3://{}", at("quake3.listen")));
    let (xash3d, web_url) = (format!("xash3d://{}", at("xash3d.listen")), web(&old));
    let (luanti, ddnet) = (format!("luanti+{web_url}"), format!("ddnet+{web_url}"));
    let announced_at = [
        ("netpanzer", &netpanzer),
        ("hyperbol", &web_url),
        ("bloodmasters", &web_url),
        ("quake3", &quake3),
        ("xash3d", &xash3d),
        ("luanti", &luanti),
        ("ddnet", &ddnet),
    ];
    let games = announced_at.map(|(game, master)| simulate(game, 2, &["--announce", master]));
    let all = 2 * games.len();
    until("all of them to be listed", || (listed(&old).len() == all).then_some(()));
    let of_quake3 = listed(&old).into_iter().find(|row| row["protocol"] == "quake3").unwrap();
    let urls = [
        web(&old),
        netpanzer,
        format!("hyperbol://{}", at("hyperbol.listen")),
        format!("bloodmasters+{}", web(&old)),
        format!("{quake3}/{}", of_quake3["game"].as_str().unwrap()),
        xash3d,
        luanti,
        ddnet,
    ];
    let mirrors: Vec<(Server, BTreeSet<(String, String)>)> = urls
        .iter()
        .map(|url| {
            let expected = json(&["list", url]).iter().map(|row| (place(row), url.clone())).collect();
            (mirror_of(url, &[]), expected)
        })
        .collect();
    for (mirror, expected) in &mirrors {
        assert!(!expected.is_empty());
        lists(mirror, expected);
        assert!(listed(mirror).iter().all(|row| row["verified_by"] == "query" && row["rtt_ms"].is_number()));
    }
    assert_eq!(mirrors[0].1.len(), all, "a Rallypoint's list has all games");
    // Old clients see them, too.
    let listed = list(&mirrors[1].0, "netpanzer");
    assert!(mirrors[1].1.iter().all(|(place, _)| listed.contains(place.rsplit(':').next().unwrap())), "{listed}");
    drop(old);
    for (mirror, expected) in &mirrors {
        proven_again(mirror);
        lists(mirror, expected);
    }
    drop(games);
    for (mirror, _) in &mirrors {
        lists(mirror, &BTreeSet::new());
    }
}

#[test]
fn who_announces_itself_is_never_listed_via_another_master() {
    let (old, tank) = (Server::start(&FAST), Tank::new());
    tank.heartbeat(&old);
    let mirror = mirror_of(&web(&old), &[]);
    lists(&mirror, &via(&at(&tank), &web(&old)));
    let check = |mirror: &Server| mirror.json(&format!("/api/v1/check?game=netpanzer&address={}", at(&tank)));
    let summary = check(&mirror)["summary"].as_str().unwrap().to_string();
    assert!(summary.starts_with(&format!("Listed via {}; it does not announce itself here.", web(&old))), "{summary}");
    // One heartbeat, and it is this master's own.
    assert_eq!(tank.heartbeat(&mirror), r"\final\", "no error");
    lists(&mirror, &via(&at(&tank), "nobody"));
    proven_again(&mirror);
    lists(&mirror, &via(&at(&tank), "nobody"));
    assert!(check(&mirror)["summary"].as_str().unwrap().starts_with("Listed. "));
    // A quit ends it; then the other master's list brings it back.
    say(&mirror, &format!(r"\quit\port\{}\final\", tank.port));
    until("the upstream to bring it back", || (vias(&mirror) == via(&at(&tank), &web(&old))).then_some(()));
}

#[test]
fn two_that_follow_each_other_end_empty_when_the_games_end() {
    let folder = Folder::new("mirror-loop");
    let file = folder.write("a.toml", "");
    let (config, tank) = (["--config", file.to_str().unwrap()], Tank::new());
    let one = Server::start_with(&config, &FAST);
    let other = mirror_of(&web(&one), &[]);
    folder.write("a.toml", &format!("[[upstream]]\nurl = \"{}\"\nname = \"other\"\nevery = \"5s\"\n", web(&other)));
    one.signal(Signal::SIGHUP);
    let metric = |server: &Server, line: &str| server.get("/metrics").text().lines().any(|found| found == line);
    until("the upstream to be followed", || metric(&one, "rallypoint_upstream_up{upstream=\"other\"} 1").then_some(()));
    tank.heartbeat(&one);
    lists(&other, &via(&at(&tank), &web(&one)));
    lists(&one, &via(&at(&tank), "nobody"));
    assert!(metric(&one, "rallypoint_upstream_servers{upstream=\"other\"} 0"), "its own server is not handed back");
    tank.alive.store(false, Ordering::Relaxed);
    lists(&one, &BTreeSet::new());
    lists(&other, &BTreeSet::new());
    // Without the table it is not followed any more.
    folder.write("a.toml", "");
    one.signal(Signal::SIGHUP);
    until("the figures to go", || (!one.get("/metrics").text().contains("rallypoint_upstream")).then_some(()));
}

/// A netPanzer master that answers every request with these rows.
fn master_with(rows: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("netpanzer://{}", listener.local_addr().unwrap());
    let answer = rows.concat() + r"\final\";
    // This thread ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 500]);
            let _ = stream.write_all(answer.as_bytes()); // the client may have enough
        }
    });
    url
}

fn row(ip: &str, port: u16) -> String {
    format!(r"\ip\{ip}\port\{port}")
}

#[test]
fn a_hostile_master_floods_nobody() {
    let (tank, victim) = (Tank::new(), UdpSocket::bind("127.0.9.9:0").unwrap());
    victim.set_nonblocking(true).unwrap();
    let mut rows = vec![row("127.0.0.1", tank.port), row("0.0.0.0", 1), row("255.255.255.255", 1), row("224.0.0.1", 1)];
    let victims = (0..100).map(|port| row("127.0.9.9", victim.local_addr().unwrap().port().wrapping_add(port).max(1)));
    rows.extend(victims);
    rows.extend((0..4_000u16).map(|number| row(&format!("127.1.{}.{}", number / 200, number % 200 + 1), 9)));
    let set = format!("upstream=[{{url = \"{}\", every = \"5s\", max_servers = 1000}}]", master_with(rows));
    let mirror = Server::start(&[&FAST, &[set.as_str()][..]].concat());
    until("the one that answers", || (listed(&mirror).len() == 1).then_some(()));
    let figure = |name: &str| -> Option<u64> {
        let metrics = mirror.get("/metrics");
        let line = metrics.text().lines().find(|line| line.starts_with(name))?.to_string();
        line.rsplit(' ').next()?.parse().ok()
    };
    let taken = figure("rallypoint_upstream_servers{").unwrap();
    assert_eq!(taken, 1_000 - (100 - 32), "the first 1000 valid rows, and no more than 32 of one address");
    let all_asked = || (figure("rallypoint_queries_total")? > 2 * taken).then_some(());
    until("all of them to be asked", all_asked);
    let mut questions = 0;
    while victim.recv(&mut [0; 500]).is_ok() {
        questions += 1;
    }
    assert!((1..=3).contains(&questions), "{questions} questions in all tries");
    assert_eq!(listed(&mirror).len(), 1);
    // A list that is longer than so many servers need is not read to its end.
    let endless = (0..100_000u32).map(|number| row(&format!("127.{}.{}.1", number / 250 % 250, number % 250), 9));
    let url = master_with(endless.collect());
    let mut mirror = mirror_of(&url, &[]);
    let before = mirror.memory_kib();
    mirror.wait_for_log("its list is longer than 689 KiB; its servers stay listed for as long as they answer");
    assert!(mirror.memory_kib() < before + (32 << 10), "{} and {before} KiB", mirror.memory_kib());
}

/// A Luanti master with this list.
fn page_with(rows: &[String]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("luanti+http://{}", listener.local_addr().unwrap());
    let body = format!(r#"{{"list":[{}]}}"#, rows.join(","));
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    // This thread ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 2_000]);
            let _ = stream.write_all(answer.as_bytes()); // the client may have enough
        }
    });
    url
}

fn json_row(host: &str, port: u16) -> String {
    format!(r#"{{"address":"{host}","port":{port}}}"#)
}

/// The greeting of a Luanti server.
const GREETING: [u8; 14] = [0x4f, 0x45, 0x74, 3, 0, 1, 0, 3, 0xff, 0xdc, 0, 1, 0, 2];
/// The first packet of a client.
const PROBE: [u8; 8] = [0x4f, 0x45, 0x74, 3, 0, 0, 0, 1];

/// The UDP ports of a program: what somebody finds who tries all ports.
fn ports_of(id: u32) -> Vec<u16> {
    let fds = std::fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let inodes: BTreeSet<String> = fds
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_string()))
        .collect();
    let tables =
        ["udp", "udp6"].map(|table| std::fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default());
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let ports = rows.filter_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let port = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
        inodes.contains(*fields.get(9)?).then_some(port)
    });
    ports.collect()
}

/// A server that does not exist: a forger sends answers in its name to all our ports, again and again. Nothing of ours is in
/// such a game's answers, so some arrive where they are awaited.
#[test]
fn a_server_that_somebody_forges_on_all_our_ports_is_not_listed() {
    let (forged, real) = (UdpSocket::bind("127.0.9.8:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let (of_forged, of_real) = (port(&forged), port(&real));
    let url = page_with(&[json_row("127.0.9.8", of_forged), json_row("127.0.0.1", of_real)]);
    let mirror = mirror_of(&url, &[]);
    let id = mirror.id();
    // Both threads end with the test's process.
    std::thread::spawn(move || {
        loop {
            for port in ports_of(id) {
                let _ = forged.send_to(&GREETING, ("127.0.0.1", port)); // it may be closed by now
            }
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((size, from)) = real.recv_from(&mut buffer) {
            if buffer[..size] == PROBE {
                real.send_to(&GREETING, from).unwrap();
            }
        }
    });
    lists(&mirror, &via(&format!("127.0.0.1:{of_real}"), &url));
    let path = format!("/api/v1/check?game=luanti&address=127.0.9.8:{of_forged}");
    until("the forger to be found out", || {
        mirror.json(&path).to_string().contains("Someone sends forged answers in its name").then_some(())
    });
    assert_eq!(vias(&mirror), via(&format!("127.0.0.1:{of_real}"), &url));
}

/// One answer is not enough: it may be a lucky forgery.
#[test]
fn a_server_that_answers_once_is_not_listed_where_nothing_of_ours_returns() {
    let games = [(1, 1), (2, 3), (3, usize::MAX)].map(|(host, answers)| {
        let socket = UdpSocket::bind(format!("127.0.8.{host}:0")).unwrap();
        let at = socket.local_addr().unwrap();
        let (heard, questions) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 100];
            let mut answered = 0;
            while let Ok((size, from)) = socket.recv_from(&mut buffer) {
                if buffer[..size] != PROBE {
                    continue;
                }
                if answered < answers {
                    socket.send_to(&GREETING, from).unwrap();
                }
                answered += 1;
                let _ = heard.send(from.port()); // the test may be over
            }
        });
        (at, questions)
    });
    let rows: Vec<String> = games.iter().map(|(at, _)| json_row(&at.ip().to_string(), at.port())).collect();
    // Rounds are rare, so that it stays listed for as long as the test lasts.
    let url = page_with(&rows);
    let mirror = Server::start(&["probe.every=30s", &upstream(&url)]);
    lists(&mirror, &via(&games[2].0.to_string(), &url));
    let mut ports = BTreeSet::new();
    for ((_, questions), least) in games.iter().zip([4, 6, 4]) {
        // What is not answered is asked three times.
        ports.extend((0..least).map(|_| questions.recv_timeout(LIMIT).unwrap()));
    }
    assert!(ports.len() > 1, "all from one port");
    assert_eq!(vias(&mirror).len(), 1);
}

#[test]
fn servers_that_are_listed_by_a_name_are_followed() {
    let old = Server::start(&FAST);
    let master = format!("luanti+{}", web(&old));
    let _games = simulate("luanti", 1, &["--announce", &master]);
    until("it to be listed", || (listed(&old).len() == 1).then_some(()));
    let port = listed(&old)[0]["port"].as_u64().unwrap() as u16;
    let url = page_with(&[json_row("localhost", port), json_row("missing.invalid", 5)]);
    let mirror = mirror_of(&url, &[]);
    lists(&mirror, &via(&format!("127.0.0.1:{port}"), &url));
    let metrics = mirror.get("/metrics");
    assert!(
        metrics.text().contains(&format!("rallypoint_upstream_servers{{upstream=\"{url}\"}} 1")),
        "{}",
        metrics.text()
    );
}

#[test]
fn a_long_page_costs_as_much_memory_as_the_servers_that_are_wanted() {
    let peak_kib = |server: &Server| -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let idle = Server::start(&FAST);
    // Each player costs many times the bytes of its row.
    let players = vec![r#""""#; 200].join(",");
    let row = |port: usize| format!(r#"{{"address":"127.0.9.7","port":{port},"clients_list":[{players}]}}"#);
    let rows: Vec<String> = (1..=5_000).map(row).collect();
    let set = |url: &str| format!("upstream=[{{url = \"{url}\", every = \"5s\", max_servers = 10}}]");
    let mut mirror = Server::start(&[&FAST, &[set(&page_with(&rows)).as_str()][..]].concat());
    mirror.wait_for_log("10 servers to ask");
    let (peak, usual) = (peak_kib(&mirror), peak_kib(&idle));
    assert!(peak < usual + (24 << 10), "{peak} and {usual} KiB");
    let rows: Vec<String> = (1..=300_000).map(|port| json_row("127.0.9.7", (port % 60_000 + 1) as u16)).collect();
    let mut mirror = Server::start(&[&FAST, &[set(&page_with(&rows)).as_str()][..]].concat());
    mirror.wait_for_log("its answer is longer than 4 MiB");
}

#[test]
fn bans_and_names_that_are_hidden_hold_for_mirrored_servers() {
    let (old, tank) = (Server::start(&FAST), Tank::new());
    tank.heartbeat(&old);
    let (_games, banned) = simulate("netpanzer", 1, &["--announce", &web(&old), "--listen", "127.0.0.5"]);
    until("both to be listed", || (listed(&old).len() == 2).then_some(()));
    let mirror = mirror_of(&web(&old), &["guard.bans=127.0.0.5"]);
    lists(&mirror, &via(&at(&tank), &web(&old)));
    let hiding = mirror_of(&web(&old), &["guard.hidden_names=Tank <?>"]);
    let banned = banned[0].strip_prefix("netpanzer://").unwrap();
    lists(&hiding, &via(banned, &web(&old)));
    let check = hiding.json(&format!("/api/v1/check?game=netpanzer&address={}", at(&tank)));
    assert_eq!((&check["listed"], &check["kept_off"]["kind"]), (&false.into(), &"hide".into()), "{check}");
    lists(&mirror, &via(&at(&tank), &web(&old)));
}

#[test]
fn after_a_restart_the_list_is_there_although_the_master_is_gone() {
    let (folder, old, tank) = (Folder::new("mirror-restart"), Server::start(&FAST), Tank::new());
    tank.heartbeat(&old);
    let (url, data) = (web(&old), format!("data_dir={}", folder.path().display()));
    let mirror = mirror_of(&url, &[&data]);
    lists(&mirror, &via(&at(&tank), &url));
    drop(old);
    mirror.signal(Signal::SIGTERM);
    assert!(mirror.end().0.success());
    let mut mirror = mirror_of(&url, &[&data]);
    assert_eq!(vias(&mirror), via(&at(&tank), &url));
    mirror.wait_for_log(&format!("upstream {url}: cannot connect to"));
    proven_again(&mirror);
    assert_eq!(vias(&mirror), via(&at(&tank), &url));
    // The tools show where it comes from, and `via` selects.
    let (table, _) = ends(0, &["list", &web(&mirror), "--columns", "address,via", "--no-header"]);
    assert_eq!(table.split_whitespace().collect::<Vec<_>>(), [at(&tank), url.clone()]);
    let of = |via: &str| mirror.json(&format!("/api/v1/servers?via={via}"))["total"].clone();
    assert_eq!((of(&url), of("other")), (1.into(), 0.into()));
    assert!(mirror.get("/").text().contains(&format!("<dt>Listed via</dt><dd data-field=\"via\">{url}</dd>")));
}

#[test]
fn a_configuration_that_cannot_work_is_refused_and_one_that_does_nothing_is_reported() {
    let folder = Folder::new("mirror-config");
    let check = |code: i32, text: &str| {
        let file = folder.write("rallypoint.toml", text);
        ends(code, &["config", "--check", file.to_str().unwrap()]).1
    };
    let table = |line: &str| format!("[[upstream]]\n{line}\n");
    for (line, says) in [
        ("name = \"x\"", ":1: upstream: `url` is missing"),
        ("url = \"master.example\"", ":2: upstream: url must be the address of a master: `master.example`"),
        ("url = \"bloodmasters://master.example\"", "write bloodmasters+http://master.example"),
        ("url = \"http://me:secret@master.example\"", "logins are not supported"),
        ("url = \"netpanzer://a\"\nevery = \"1s\"", ":3: upstream: every must be a time like"),
        ("url = \"netpanzer://a\"\nmax_servers = 0", ":3: upstream: max_servers must be a whole number from 1"),
        ("url = \"netpanzer://a\"\nname = \"\"", ":3: upstream: name must be a name"),
        ("url = \"netpanzer://a\"\nurls = \"\"", ":3: upstream: unknown key `urls`; did you mean `url`?"),
        ("url = \"netpanzer://a\"\n[[upstream]]\nurl = \"netpanzer://a\"", "`netpanzer://a` is there twice"),
    ] {
        let stderr = check(2, &table(line));
        assert!(stderr.contains(says) && !stderr.contains("secret"), "{line}: {stderr}");
    }
    assert!(check(2, "[upstream]\nurl = \"netpanzer://a\"").contains("write [[upstream]]"));
    let stderr = check(0, &table("url = \"iceball://master.example\""));
    let says =
        "warning: upstream iceball://master.example: Iceball servers cannot be queried, so none of them can be listed";
    assert!(stderr.contains(says), "{stderr}");
    assert!(!check(0, &table("url = \"netpanzer://master.example\"")).contains("warning"));
}

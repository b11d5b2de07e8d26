//! `rallypoint export --site`: a copy of a real master in a folder, behind a plain web server, in a real browser.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rallypoint::protocols::CARDS;
use rallypoint::protocols::section::Surroundings;
use serde_json::{Value, json};

use crate::cli::list_query_export::{master, request_line};
use crate::support::chromium::Browser;
use crate::support::commands::{Running, ends, simulate};
use crate::support::*;
use crate::web::browser::{axe, found_by_axe, showroom};

/// All files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(inside) = folders.pop() {
        for entry in std::fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn json_of(files: &BTreeMap<String, Vec<u8>>, name: &str) -> Value {
    serde_json::from_slice(files.get(name).unwrap_or_else(|| panic!("no {name}"))).unwrap()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Undoes the compression that a file's ending names.
fn decoded(name: &str, bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let (plain, ending) = name.rsplit_once('.')?;
    let mut undone = Vec::new();
    match ending {
        "gz" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut undone).unwrap(),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut undone).unwrap(),
        "zst" => {
            undone = zstd::stream::decode_all(bytes).unwrap();
            undone.len()
        }
        _ => return None,
    };
    Some((plain.into(), undone))
}

/// The names of the servers in a list.
fn names(list: &Value) -> Vec<&str> {
    let mut names: Vec<_> =
        list["servers"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_copy_has_every_list_as_plain_and_compressed_files() {
    let server = Server::start(&["guard.max_servers_per_ip=100"]);
    let web = server.address("web.listen");
    let _servers: Vec<_> =
        CARDS.iter().map(|card| simulate(card.name, 3, &["--announce", &announced_at(&server, card.name)])).collect();
    let total = 3 * CARDS.len();
    // Some are named once they have answered a query.
    until("all servers, with their names", || {
        let list = server.json("/api/v1/servers");
        let rows = list["servers"].as_array().unwrap();
        (rows.len() == total && rows.iter().all(|row| row["name"].is_string())).then_some(())
    });
    let folder = Folder::new("site-files");
    let site = folder.path().join("new/site");
    let copy = ["export", &format!("http://{web}"), "--site", site.to_str().unwrap()];
    let (_, log) = ends(0, &copy);
    assert!(log.contains(&format!("{total} servers copied to ")), "{log}");
    let found = files(&site);

    // The whole list, and one for each game, with the API's own rows.
    let whole = json_of(&found, "api/v1/servers.json");
    assert_eq!((&whole["total"], whole["servers"].as_array().unwrap().len()), (&json!(total), total));
    for card in CARDS {
        let list = json_of(&found, &format!("api/v1/servers/{}.json", card.name));
        assert_eq!(names(&list), names(&server.json(&format!("/api/v1/servers?game={}", card.name))));
        assert_eq!(list["total"], 3, "{}", card.name);
        // The games' own lists over HTTP.
        let routes = (card.section)().routes(&Surroundings::default());
        for route in routes.iter().filter(|route| !route.rule.is_for_one()) {
            assert_eq!(found[route.path.trim_start_matches('/')], server.get(route.path).body, "{}", route.path);
        }
    }
    for path in ["style.css", "page.js", "favicon.svg", "api/v1/openapi.json"] {
        assert_eq!(found[path], server.get(&format!("/{path}")).body, "{path}");
    }
    let about = json_of(&found, "site.json");
    assert_eq!((&about["servers"], &about["live"]), (&json!(total), &json!(format!("http://{web}"))));
    let page = String::from_utf8(found["index.html"].clone()).unwrap();
    let time = about["written_at"].as_str().unwrap();
    assert!(page.contains("This is a copy from <time datetime") && page.contains(time), "{page}");

    // Compressed siblings are the same bytes, and smaller.
    let siblings: Vec<_> = found.iter().filter_map(|(name, bytes)| Some((bytes, decoded(name, bytes)?))).collect();
    assert!(siblings.len() >= 3 * 8, "{:?}", found.keys());
    for (bytes, (plain, undone)) in siblings {
        assert_eq!(undone, found[&plain], "{plain}");
        assert!(bytes.len() < undone.len(), "{plain}");
    }

    // Again: only what changed is a new file.
    let inode = |name: &str| std::fs::metadata(site.join(name)).unwrap().ino();
    let before: BTreeMap<_, _> = found.keys().map(|name| (name.clone(), inode(name))).collect();
    ends(0, &copy);
    let again = files(&site);
    assert_eq!(again.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "nothing new, nothing gone");
    for (name, bytes) in &again {
        assert_eq!(before[name] == inode(name), found[name] == *bytes, "{name} was written although it did not change");
    }
    assert_eq!(before["style.css"], inode("style.css"));

    // The list of a game that is gone is empty, and with --xml the servers are queried as before.
    std::fs::write(site.join("api/v1/servers/gone.json"), "{}").unwrap();
    let xml = folder.path().join("a.xml");
    ends(0, &[&copy[..], &["--xml", xml.to_str().unwrap()]].concat());
    assert_eq!(json_of(&files(&site), "api/v1/servers/gone.json"), json!({"total": 0, "servers": []}));
    assert_eq!(crate::support::commands::xml(&std::fs::read_to_string(xml).unwrap()).len(), total);
}

/// Where simulated servers of a game announce themselves.
fn announced_at(server: &Server, game: &str) -> String {
    use rallypoint::protocols::announce::AnnounceMethod;
    let card = rallypoint::protocols::card(game).unwrap();
    match card.master_port {
        Some(_) if !matches!(card.announce, AnnounceMethod::None) => {
            format!("{game}://{}", server.address(&format!("{game}.listen")))
        }
        _ if matches!(card.announce, AnnounceMethod::Http(_) | AnnounceMethod::Challenged(_)) => {
            format!("{game}+http://{}", server.address("web.listen"))
        }
        _ => format!("http://{}", server.address("web.listen")),
    }
}

#[test]
fn a_copy_of_a_long_list_is_complete() {
    let server = Server::start(&["guard.max_servers_per_ip=5000"]);
    let game = Game::new(server.address("iceball.listen"));
    for ports in (1..=1_100).collect::<Vec<u16>>().chunks(50) {
        for port in ports {
            game.send(&announcement(format!("server {port}").as_bytes(), *port, port % 64));
        }
        for _ in ports {
            game.handshake(&game.receive()[4..]);
        }
    }
    until("all servers", || (server.json("/api/v1/servers?limit=1")["total"] == 1_100).then_some(()));
    let folder = Folder::new("site-long");
    ends(
        0,
        &["export", &format!("http://{}", server.address("web.listen")), "--site", folder.path().to_str().unwrap()],
    );
    let list = json_of(&files(folder.path()), "api/v1/servers.json");
    let rows = list["servers"].as_array().unwrap();
    let ports: std::collections::BTreeSet<_> = rows.iter().map(|row| row["port"].as_u64().unwrap()).collect();
    assert_eq!((rows.len(), ports.len(), &list["total"]), (1_100, 1_100, &json!(1_100)));
    // In the API's order.
    let first = server.json("/api/v1/servers?limit=500");
    let ports = |rows: &[Value]| rows.iter().map(|row| row["port"].clone()).collect::<Vec<_>>();
    assert_eq!(ports(&rows[..500]), ports(first["servers"].as_array().unwrap()));
}

/// A web server in front of a master: `change` may change an answer; None cuts it off in the middle.
fn relay(to: SocketAddr, change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    master(move |mut stream| {
        let line = request_line(&stream);
        let path = line.split(' ').nth(1).unwrap_or_default();
        let body = get(to, path, "").body;
        let half = body[..body.len() / 2].to_vec();
        let size = body.len();
        let (size, body) = change(path, body).map_or((size, half), |body| (body.len(), body));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(&[head.as_bytes(), &body].concat());
    })
}

#[test]
fn a_master_that_dies_in_the_middle_leaves_the_old_copy() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"first", 1, 0));
    until("a server", || (server.listed().len() == 1).then_some(()));
    // 0: all is well; 1: the page breaks off, which is one of the last requests; 2: another page in the place of a list.
    let mode = Arc::new(AtomicUsize::new(0));
    let current = mode.clone();
    let at = relay(server.address("web.listen"), move |path, body| match current.load(Ordering::Relaxed) {
        1 if path == "/page.js" => None,
        2 if path == "/master.json" => Some(b"<html>Please log in</html>".to_vec()),
        _ => Some(body),
    });
    let folder = Folder::new("site-dies");
    let copy = ["export", &format!("http://{at}"), "--site", folder.path().to_str().unwrap()];
    ends(0, &copy);
    let old = files(folder.path());
    game.announce(&announcement(b"second", 2, 0));
    until("another server", || (server.listed().len() == 2).then_some(()));
    for (broken, why) in [(1, "incomplete"), (2, "/master.json is not a list")] {
        mode.store(broken, Ordering::Relaxed);
        let (_, log) = ends(1, &copy);
        assert!(log.contains(why) && log.lines().count() == 1, "{log}");
        assert_eq!(files(folder.path()), old);
    }
    // Repeated: the next round after the failed one brings the copy up to date.
    let export = Running::start(&[&copy[..], &["--every", "1s"]].concat());
    until("a failed round", || export.log().contains("next round in 1s").then_some(()));
    assert_eq!(files(folder.path()), old);
    mode.store(0, Ordering::Relaxed);
    until("the new copy", || (read_json(&folder.path().join("site.json"))["servers"] == 2).then_some(()));
    assert_eq!(export.interrupt(), Some(0));
    let old = files(folder.path());
    // Nobody listens there.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_, log) = ends(3, &["export", &format!("http://{closed}"), copy[2], copy[3]]);
    assert!(log.lines().count() == 1, "{log}");
    assert_eq!(files(folder.path()), old);
    for (arguments, why) in [
        (vec!["netpanzer://127.0.0.1", "--site", "x"], "--site copies a Rallypoint: write http://"),
        (vec!["http://127.0.0.1/api/v1/servers?game=x", "--site", "x"], "the address of the master itself"),
        (vec!["http://127.0.0.1", "--site", "x", "--live-url", "hyperbol://a"], "write http://"),
        (vec!["http://127.0.0.1", "--site", "x", "--ftp", "ftp://me@127.0.0.1/"], "not a site"),
    ] {
        let (_, log) = ends(2, &[&["export"], &arguments[..]].concat());
        assert!(log.contains(why), "{log}");
        assert!(!Path::new("x").exists());
    }
}

#[test]
fn names_of_games_never_lead_out_of_the_folder() {
    let server = Server::start(&[]);
    let hostile =
        ["../../etc/x", "..", ".hidden", "/tmp/x", "a/b", "a\\b", "a b", "x\u{0}y", "-rf", "index.html/../x", "good-1"];
    let rows: Vec<Value> = hostile
        .iter()
        .zip(1..)
        .map(|(game, port)| json!({"game": game, "protocol": game, "address": "192.0.2.1", "port": port, "name": game}))
        .collect();
    let list = json!({"serial": 1, "total": rows.len(), "servers": rows}).to_string();
    let at = relay(server.address("web.listen"), move |path, body| {
        Some(if path.starts_with("/api/v1/servers?") { list.clone().into_bytes() } else { body })
    });
    let folder = Folder::new("site-hostile");
    let site = folder.path().join("deep/inside/site");
    let copy = ["export", &format!("http://{at}"), "--site", site.to_str().unwrap()];
    ends(0, &copy);
    let found = files(folder.path());
    let lists =
        found.keys().filter_map(|name| name.strip_prefix("deep/inside/site/api/v1/servers/")?.strip_suffix(".json"));
    let mut expected: Vec<_> = CARDS.iter().map(|card| card.name).chain(["good-1"]).collect();
    expected.sort();
    assert_eq!(lists.collect::<Vec<_>>(), expected);
    assert!(found.keys().all(|name| name.starts_with("deep/inside/site/")), "{:?}", found.keys());
    let whole = json_of(&found, "deep/inside/site/api/v1/servers.json");
    assert_eq!(whole["total"], hostile.len(), "as data they are harmless");
    // A folder in it that leads elsewhere is refused.
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::remove_dir_all(site.join("api")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, site.join("api")).unwrap();
    let (_, log) = ends(1, &copy);
    assert!(log.contains("is not a folder"), "{log}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

/// A plain web server: Python's.
fn hosted(folder: &Path) -> (Running, String) {
    let mut python = Command::new("python3");
    python.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]).arg(folder);
    let mut server = Running::of(python, Stdio::piped());
    let line = server.lines(1).remove(0);
    let port = line.split(" port ").nth(1).unwrap().split(' ').next().unwrap().to_string();
    (server, format!("http://127.0.0.1:{port}"))
}

const SHOWN: &str =
    "[...document.querySelectorAll('#servers > tbody [data-field=name]')].map(node => node.textContent).sort().join()";
const COPY: &str = "document.querySelector('#copy').textContent";

#[test]
#[ignore = "needs chromium and python3"]
fn a_copied_page_shows_the_servers_and_its_age() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    for (name, port, players) in [(&b"beta"[..], 1, 0), (b"Alpha", 2, 64)] {
        game.announce(&announcement(name, port, players));
    }
    until("both", || (server.listed().len() == 2).then_some(()));
    let folder = Folder::new("site-page");
    let site = folder.path().join("lists/copy"); // not the root of the web server
    let at = format!("http://{}", server.address("web.listen"));
    let copy = ["export", &at, "--site", site.to_str().unwrap(), "--live-url", "https://live.example/"];
    ends(0, &copy);
    let (_python, host) = hosted(folder.path());
    let browser = Browser::new();
    browser.goto_url(&format!("{host}/lists/copy/?not_empty=1"));
    let loaded = "document.documentElement.matches('.scripted')";
    browser.until("the script", loaded);
    browser.until("the filter", &format!("{SHOWN} == 'Alpha'"));
    browser.click("[name=not_empty]");
    browser.until("both servers", &format!("{SHOWN} == 'Alpha,beta'"));
    assert_eq!(browser.address(), "/lists/copy/");
    browser.type_into("[name=q]", "bet");
    browser.until("the search", &format!("{SHOWN} == 'beta'"));
    let said = browser.value(COPY);
    let said = said.as_str().unwrap();
    assert!(said.contains("(just now); the live list is at https://live.example."), "{said}");
    assert!(!browser.is_displayed("#live"));
    browser.click("tbody summary");
    assert_eq!(browser.texts("tbody .more code")[0], "127.0.0.1:1");
    assert!(browser.attributes("[data-field=doctor]", "href")[0].starts_with("https://live.example/doctor?game="));
    assert_eq!(browser.texts(".top nav a").len(), 3);

    // A newer copy shows without a reload.
    game.announce(&announcement(b"better", 3, 5));
    until("three", || (server.listed().len() == 3).then_some(()));
    ends(0, &copy);
    let refresh = "document.dispatchEvent(new Event('visibilitychange'))";
    browser.run(refresh);
    browser.until("the new server", &format!("{SHOWN} == 'beta,better'"));

    // The master and the export are gone: the list stays, and the page says how old it is.
    drop(server);
    let mut about = json_of(&files(&site), "site.json");
    about["written_at"] = json!("2026-01-02T03:04:05Z");
    let file = std::fs::OpenOptions::new().write(true).truncate(true).open(site.join("site.json")).unwrap();
    (&file).write_all(about.to_string().as_bytes()).unwrap();
    // The web server tells versions apart by their second.
    let later = file.metadata().unwrap().modified().unwrap() + std::time::Duration::from_secs(10);
    file.set_modified(later).unwrap();
    browser.run(refresh);
    browser.until("the age", &format!("/ days ago\\)/.test({COPY})"));
    browser.until("the servers", &format!("{SHOWN} == 'beta,better'"));
    drop(browser);

    let browser = Browser::without_script();
    browser.goto_url(&format!("{host}/lists/copy/"));
    assert_eq!(browser.texts("#servers tbody .name"), ["Alpha", "better", "beta"]);
    assert!(!browser.is_displayed("#filters"), "filters need the script");
    let said = browser.texts("#copy").remove(0);
    assert!(said.starts_with("This is a copy from 20") && said.contains(" UTC; the live list is at https"), "{said}");
}

#[test]
#[ignore = "needs chromium"]
fn a_page_that_has_lost_its_stream_says_since_when() {
    let server = Server::start(&[]);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    drop(server);
    let live = "document.querySelector('#live').textContent";
    browser.until("the loss", &format!("/^Not live since .*\\d.*\\. Reconnecting…$/.test({live})"));
    assert!(browser.texts("#said")[0].starts_with("Not live since"));
}

#[test]
#[ignore = "needs chromium, axe-core and python3"]
fn axe_finds_nothing_in_a_copy() {
    let (_folder, server, _tanks) = showroom("site-1");
    let folder = Folder::new("site-axe");
    let at = format!("http://{}", server.address("web.listen"));
    let live = "https://master.example";
    ends(0, &["export", &at, "--site", folder.path().to_str().unwrap(), "--live-url", live]);
    let (_python, host) = hosted(folder.path());
    let browser = Browser::new();
    let axe = axe();
    for (size, width, height) in [("desktop", 1280, 760), ("phone", 390, 844)] {
        for scheme in ["light", "dark"] {
            browser.look(width, height, scheme);
            browser.goto_url(&host);
            browser.until("the list", "document.documentElement.matches('.scripted')");
            // Rows that come back keep the plots that the page came with.
            browser.type_into("[name=q]", "nobody");
            browser.until("an empty list", "document.querySelectorAll('#servers > tbody').length == 0");
            browser.run("document.querySelector('#clear').click()");
            browser.until("the plots", "document.querySelectorAll('.day svg').length >= 5");
            browser.run("document.querySelector('tbody summary').click()");
            browser.until("a row to open", "document.querySelector('.more')");
            assert_eq!(found_by_axe(&browser, &axe), json!([]), "{size}, {scheme}");
        }
    }
}

//! The page in a real browser: without JavaScript, live, by keyboard, on a phone, and checked by axe-core.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::{Arc, Mutex};

use fantoccini::key::Key;
use serde_json::{Value, json};

use crate::support::chromium::Browser;
use crate::support::history::{data_dir, folder_with_a_week};
use crate::support::*;

/// The names of the listed servers, in order.
const NAMES: &str =
    "[...document.querySelectorAll('#servers > tbody [data-field=name]')].map(node => node.textContent)";

fn names(browser: &Browser) -> Value {
    browser.value(NAMES)
}

fn until_names(browser: &Browser, expected: &[&str]) {
    let expected = json!(expected).to_string();
    browser.until(&expected, &format!("JSON.stringify({NAMES}) == JSON.stringify({expected})"));
}

/// The row of the server with this name.
fn row(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('#servers > tbody')].find(row => row.querySelector('[data-field=name]').textContent == '{name}')"
    )
}

pub fn three(server: &Server) -> Game {
    let game = Game::new(server.address("iceball.listen"));
    for (name, port, players) in [(&b"beta"[..], 1, 0), (b"Alpha", 2, 64), (b"gamma", 3, 5)] {
        game.announce(&announcement(name, port, players));
    }
    until("all three", || (server.listed().len() == 3).then_some(()));
    game
}

/// A simulated netPanzer game with players and rules, which can change.
pub struct Tank {
    port: u16,
    status: Arc<Mutex<String>>,
}

impl Tank {
    pub fn new(name: &str, players: &[(&str, i32)]) -> Tank {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let tank = Tank { port, status: Arc::default() };
        tank.say(name, players);
        let status = tank.status.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 500];
            // This thread ends with the test's process.
            while let Ok((size, from)) = socket.recv_from(&mut buffer) {
                let status = status.lock().unwrap().clone();
                for answer in netpanzer_answers(&buffer[..size], status.as_bytes()) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        tank
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn say_without_map(&self, name: &str) {
        self.say(name, &[]);
        let mut status = self.status.lock().unwrap();
        *status = status.replace(r"mapname\Two clans\", "");
    }

    pub fn say(&self, name: &str, players: &[(&str, i32)]) {
        let mut status = format!(
            r"gamename\netpanzer\hostname\{name}\gameversion\0.8.7\mapname\Two clans\password\y\numplayers\{}\maxplayers\8\gamestyle\Objective\units_per_player\40\time_limit\60",
            players.len()
        );
        for (at, (name, kills)) in players.iter().enumerate() {
            status.push_str(&format!(r"\player_{at}\{name}\kills_{at}\{kills}\deaths_{at}\{at}\score_{at}\{kills}"));
        }
        *self.status.lock().unwrap() = status + r"\final\";
    }

    pub fn heartbeat(&self, server: &Server) {
        let heartbeat = format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", self.port);
        assert_eq!(exchange(server.address("netpanzer.listen"), heartbeat.as_bytes()), br"\final\");
    }

    fn quit(&self, server: &Server) {
        let quit = format!(r"\quit\port\{}\final\", self.port);
        assert_eq!(exchange(server.address("netpanzer.listen"), quit.as_bytes()), br"\final\");
    }
}

/// Most of the servers are of three addresses, which have one turn after the other.
#[test]
#[ignore = "needs chromium"]
fn the_script_keeps_the_order_of_the_master_while_servers_change() {
    let server = Server::start(&[]);
    let game = |ip: [u8; 4]| Game::on(server.address("iceball.listen"), ip.into());
    for network in 0..3 {
        let host = game([127, 128, network, 1]);
        (1..=16).for_each(|port| host.announce(&announcement(format!("many {network} {port}").as_bytes(), port, 63)));
    }
    let few = |number: u8, players: u16| {
        game([127, 16, number, 1]).announce(&announcement(format!("few {number}").as_bytes(), 1, players));
    };
    (0..20).for_each(|number| few(number, u16::from(number) * 2));
    until("all of them", || (server.listed().len() == 3 * 16 + 20).then_some(()));
    let expected = || {
        let list = server.json("/api/v1/servers");
        let names = list["servers"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_string());
        names.collect::<Vec<_>>()
    };
    let until_same = |browser: &Browser| {
        let names = expected();
        until_names(browser, &names.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let few_at = expected().iter().position(|name| name == "few 19");
    assert_eq!(few_at, Some(3), "after one of each address");
    let browser = Browser::without_script();
    browser.goto(&server, "/");
    assert_eq!(names(&browser), json!(expected()));
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    until_same(&browser);
    let until_at = |name: &str, place| {
        until(name, || (expected().iter().position(|it| it == name) == Some(place)).then_some(()));
    };
    until_at("few 10", 12);
    few(3, 60);
    until_at("few 10", 13);
    until_same(&browser);
    // When the three addresses claim less, servers with half as many players as the best stand below all of those again.
    for network in 0..3 {
        let host = game([127, 128, network, 1]);
        (9..=16).for_each(|port| host.announce(&announcement(format!("many {network} {port}").as_bytes(), port, 0)));
    }
    until_at("few 10", 3 * 8 + 5 + 5);
    until_same(&browser);
}

#[test]
#[ignore = "needs chromium"]
fn everything_works_without_javascript() {
    let server = Server::start(&[]);
    three(&server);
    let browser = Browser::without_script();
    browser.goto(&server, "/");
    assert_eq!(browser.texts("#servers tbody .name"), ["Alpha", "gamma", "beta"]);
    assert_eq!(browser.texts(".totals"), ["3 servers 69 players"]);
    assert!(!browser.is_displayed("#live") && !browser.is_displayed("tbody .more"));
    browser.click("tbody summary");
    assert!(browser.is_displayed("tbody .more"));
    assert!(!browser.is_displayed("[data-do=copy]"), "elements that need the script are hidden");
    let codes = ["127.0.0.1:2", "iceball -c iceball://127.0.0.1:2", "iceball.exe -c iceball://127.0.0.1:2"];
    assert_eq!(browser.texts(".more code")[..3], codes);
    browser.click("thead [data-sort=name] a");
    browser.until_texts("#servers tbody .name", &["Alpha", "beta", "gamma"]);
    assert_eq!(browser.address(), "/?sort=name");
    browser.look(800, 900, "light");
    browser.click(".fold > summary");
    browser.click("[name=not_full]");
    browser.type_into("[name=q]", "a");
    browser.click("#filters button");
    browser.until_texts("#servers tbody .name", &["beta", "gamma"]);
    let address = browser.address();
    assert!(["q=a", "not_full=1", "sort=name"].iter().all(|part| address.contains(part)), "{address}");
    browser.click("#clear");
    browser.until_texts("#servers tbody .name", &["Alpha", "beta", "gamma"]);
    assert_eq!(browser.address(), "/?sort=name");
    browser.goto(&server, "/?sort=sideways&not_empty=1");
    assert_eq!(browser.texts("#servers tbody .name"), ["Alpha", "gamma"]);
    assert!(browser.texts("#wrong")[0].starts_with("Ignored: sort must be one of"));
    browser.goto(&server, "/?q=nobody");
    assert_eq!(browser.texts(".empty"), ["", "No servers match your filters."]);
    assert_eq!(server.get("/?verified_by=query").text().matches("<tbody class=\"server\"").count(), 1, "the template");

    browser.click("footer a");
    browser.until_texts("h1", &["Why is my server not listed?"]);
    browser.type_into("[name=game]", "iceball");
    browser.type_into("[name=address]", "example.org");
    browser.click("form button");
    browser.until_texts("#wrong", &["address: `example.org` is not an address like 203.0.113.5:20737."]);
    browser.goto(&server, "/doctor?game=iceball&address=127.0.0.1:2");
    assert!(browser.texts("h2")[0].starts_with("listed"));
    assert!(browser.texts(".seen").concat().contains("The server returned the cookie"));
    browser.click("nav a:last-child");
    browser.until_texts("h1", &["API"]);
    assert_eq!(browser.address(), "/api");
}

#[test]
#[ignore = "needs chromium"]
fn changes_appear_without_reloading() {
    let server = Server::start(&["probe.every=1s"]);
    let game = three(&server);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    until_names(&browser, &["Alpha", "gamma", "beta"]);
    browser.run("window.same = true");

    game.announce(&announcement(b"delta", 4, 9));
    until_names(&browser, &["Alpha", "delta", "gamma", "beta"]);
    browser.until("the totals", "document.querySelector('.totals').innerText == '4 servers 78 players'");
    game.announce(&announcement(b"beta", 1, 60));
    until_names(&browser, &["Alpha", "beta", "delta", "gamma"]);
    browser.until("its bar", &format!("{}.querySelector('meter').value == 60", row("beta")));

    let tank = Tank::new("Tank", &[("Ann", 3), ("Bob", 1)]);
    tank.heartbeat(&server);
    until_names(&browser, &["Alpha", "beta", "delta", "gamma", "Tank"]);
    browser.run(&format!("{}.querySelector('summary').click()", row("Tank")));
    let more = format!("{}.querySelector('.more')?.innerText", row("Tank"));
    browser.until("the players", &format!("{more}?.includes('Ann')"));
    let text = browser.value(&more).to_string();
    assert!(["Kills", "units_per_player", "40", "Copy address"].iter().all(|part| text.contains(part)), "{text}");
    let join = |name: &str| format!("{}.querySelector('[data-field=join]')", row(name));
    assert_eq!(browser.value(&format!("{}.hidden", join("Tank"))), true, "the game handles no links");
    browser.run(&format!("{}.querySelector('summary').click()", row("Alpha")));
    browser.until("its link", &format!("{}?.getAttribute('href')?.startsWith('iceball://')", join("Alpha")));
    tank.say("Tank", &[("Ann", 3), ("Cid", 0)]);
    browser.until("the new player", &format!("{more}.includes('Cid') && !{more}.includes('Bob')"));
    let proof = format!("{}.querySelector('[data-field=rtt]').textContent", row("Tank"));
    assert!(browser.value(&proof).as_str().unwrap().ends_with(" ms"));
    tank.quit(&server);
    until_names(&browser, &["Alpha", "beta", "delta", "gamma"]);
    assert_eq!(browser.value("window.same"), true, "without loading the page again");
}

#[test]
#[ignore = "needs chromium"]
fn search_sort_and_filters_apply_at_once_and_are_in_the_url() {
    let server = Server::start(&[]);
    let game = three(&server);
    let browser = Browser::new();
    browser.goto_live(&server, "/?sort=name");
    until_names(&browser, &["Alpha", "beta", "gamma"]);
    browser.type_into("[name=q]", "am");
    until_names(&browser, &["gamma"]);
    assert_eq!(browser.address(), "/?q=am&sort=name");
    browser.type_into("[name=q]", &format!("{}{}", char::from(Key::Backspace), char::from(Key::Backspace)));
    browser.click("[name=not_full]");
    until_names(&browser, &["beta", "gamma"]);
    assert_eq!(browser.address(), "/?sort=name&not_full=1");
    game.announce(&announcement(b"beta", 1, 64));
    until_names(&browser, &["gamma"]);
    browser.click("thead [data-sort=name] a");
    assert_eq!(browser.address(), "/?sort=-name&not_full=1");
    assert_eq!(browser.value("document.querySelector('[data-sort=name]').ariaSort"), "descending");

    browser.reload();
    browser.until_live();
    until_names(&browser, &["gamma"]);
    assert_eq!(browser.value("document.querySelector('[name=not_full]').checked"), true);
    browser.click("#clear");
    until_names(&browser, &["gamma", "beta", "Alpha"]);
    assert_eq!(browser.address(), "/?sort=-name");
    browser.run("document.querySelector('[name=game]').value = 'netpanzer'; document.querySelector('[name=game]').dispatchEvent(new Event('input', {bubbles: true}))");
    until_names(&browser, &[]);
    assert_eq!(browser.address(), "/?game=netpanzer&sort=-name");
    assert!(browser.is_displayed("#empty"));
    browser.back();
    until_names(&browser, &["gamma", "beta", "Alpha"]);
    browser.back();
    until_names(&browser, &["gamma"]);
    browser.forward();
    until_names(&browser, &["gamma", "beta", "Alpha"]);

    // On the game's own port, its game is the default, and all games are chosen with an empty filter.
    for (path, shown) in [("/", "iceball"), ("/?game=", ""), ("/?game=netpanzer", "netpanzer")] {
        let page = get(server.address("iceball.client_listen"), path, "");
        let selected = page.text().split("selected>").count() - 1;
        assert_eq!(selected, usize::from(!shown.is_empty()), "{path}");
        assert_eq!(page.text().contains("one-game"), !shown.is_empty(), "{path}");
    }

    for (protocol, names) in [("iceball", &["Alpha", "beta", "gamma"][..]), ("quake3", &[])] {
        browser.goto_live(&server, &format!("/?protocol={protocol}&sort=name"));
        until_names(&browser, names);
        assert_eq!(browser.address(), format!("/?protocol={protocol}&sort=name"));
    }
}

#[test]
#[ignore = "needs chromium"]
fn a_hostile_name_stays_text() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    let hostile = "<img src=x onerror=alert(1)>";
    game.announce(&announcement(hostile.as_bytes(), 1, 0));
    until("it", || server.listed().pop());
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    until_names(&browser, &[hostile]);
    let live = "\"'><script>hurt()</script>";
    game.announce(&announcement(live.as_bytes(), 2, 5));
    browser.until("both", "document.querySelectorAll('#servers > tbody').length == 2");
    assert_eq!(names(&browser), json!([live, hostile]));
    browser.run("document.querySelectorAll('summary').forEach(node => node.click())");
    browser.until("both to open", "document.querySelectorAll('.more').length == 2");
    assert_eq!(browser.value("document.querySelectorAll('#servers img:not(.plot), #servers script').length"), 0);
    browser.goto(&server, "/doctor?game=%3Cb%3E&address=%3Ci%3E");
    assert_eq!(browser.value("document.querySelectorAll('main b, main i').length"), 0);
}

#[test]
#[ignore = "needs chromium"]
fn nothing_scrolls_sideways_on_a_phone() {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"aNameWithoutAnySpaceInItAtAll!", 1, 3));
    let tank = Tank::new(&"long".repeat(50), &[(&"player".repeat(20), 1)]);
    tank.heartbeat(&server);
    until("both", || (server.json("/api/v1/servers")["total"] == 2).then_some(()));
    let browser = Browser::new();
    for width in [320, 390] {
        browser.look(width, 800, "light");
        for path in ["/", "/doctor", "/doctor?game=iceball&address=127.0.0.1:1", "/api"] {
            browser.goto(&server, path);
            if path == "/" {
                browser.until_live();
                browser.run("document.querySelectorAll('summary').forEach(node => node.click())");
                browser.until("both to open", "document.querySelectorAll('.more').length == 2");
            }
            let sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth ? \
                            [...document.querySelectorAll('body *')].filter(node => node.getBoundingClientRect().right > \
                            document.documentElement.clientWidth).map(node => node.outerHTML.slice(0, 200)) : null";
            assert_eq!(browser.value(sideways), Value::Null, "{path} at {width}");
        }
    }
}

#[test]
#[ignore = "needs chromium"]
fn everything_can_be_done_by_keyboard() {
    let server = Server::start(&[]);
    three(&server);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    let (tab, enter, space) = (char::from(Key::Tab).to_string(), char::from(Key::Enter).to_string(), " ");
    let focus_on = |selector: &str| {
        for _ in 0..40 {
            if browser.value(&format!("document.activeElement.matches({selector:?})")) == true {
                return;
            }
            browser.press(&tab);
        }
        panic!("{selector} cannot be reached");
    };
    browser.press(&tab);
    assert_eq!(browser.value("document.activeElement.className"), "skip", "the first is the skip link");
    focus_on("[name=q]");
    browser.press("a");
    focus_on("[name=not_full]");
    browser.press(space);
    until_names(&browser, &["gamma", "beta"]);
    focus_on("[data-sort=name] a");
    browser.press(&enter);
    until_names(&browser, &["beta", "gamma"]);
    assert_eq!(browser.address(), "/?q=a&sort=name&not_full=1");
    assert_eq!(browser.value("document.activeElement.closest('th').dataset.sort"), "name", "the focus stays");
    focus_on("summary");
    browser.press(&enter);
    browser.until("the row to open", "document.querySelector('tbody .more')");
    focus_on("[data-do=copy]");
    let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "the focus is visible");
    browser.press(&enter);
    browser.until("the copy", "document.querySelector('[data-do=copy]').textContent == 'Copied'");
}

#[test]
#[ignore = "needs chromium"]
fn a_delta_does_not_disturb_the_reader() {
    let server = Server::start(&["guard.max_servers_per_ip=1000"]);
    let game = Game::new(server.address("iceball.listen"));
    for port in 1..=80 {
        game.announce(&announcement(format!("server {port:03}").as_bytes(), port, 0));
    }
    until("all", || (server.listed().len() == 80).then_some(()));
    let browser = Browser::new();
    browser.goto_live(&server, "/?sort=name");
    browser.until("all rows", &format!("{NAMES}.length == 80"));
    let reader = row("server 050");
    browser.run(&format!("const summary = {reader}.querySelector('summary'); summary.click(); summary.focus()"));
    browser.until("it to open", &format!("{reader}.querySelector('.more')"));
    let is_undisturbed = format!(
        "{reader}.querySelector('summary') == document.activeElement && {reader}.querySelector('details').open && \
         !!{reader}.querySelector('.more')"
    );

    // New rows above the viewport do not move it.
    browser.run(&format!("{reader}.scrollIntoView({{block: 'center'}})"));
    let top = || browser.value(&format!("Math.round({reader}.getBoundingClientRect().top)")).as_i64().unwrap();
    let before = top();
    for port in 1001..=1012 {
        game.announce(&announcement(b"another", port, 0));
    }
    browser.until("them", &format!("{NAMES}.length == 92"));
    browser.until("the place", &format!("Math.abs({reader}.getBoundingClientRect().top - {before}) <= 2"));
    assert_eq!(browser.value(&is_undisturbed), true);

    // The row itself moves, and stays open and focused.
    browser.run("document.querySelector('[data-sort=players] a').click()");
    game.announce(&announcement(b"server 050", 50, 7));
    browser.until("it to be first", &format!("{NAMES}[0] == 'server 050'"));
    assert_eq!(browser.value(&is_undisturbed), true);

    // Nothing moves while text is selected.
    browser.run(&format!("getSelection().selectAllChildren({reader}.querySelector('[data-field=name]'))"));
    game.announce(&announcement(b"while selected", 0x400, 0));
    browser.until("the state to show it", "document.querySelector('#live').dataset.state == 'held'");
    assert_eq!(browser.value("getSelection().toString()"), "server 050");
    assert_eq!(browser.value(&format!("{NAMES}.length")), 92);
    browser.run("getSelection().removeAllRanges()");
    browser.until("it afterwards", &format!("{NAMES}.length == 93"));
}

#[test]
#[ignore = "needs chromium"]
fn the_page_comes_back_with_the_server() {
    // On an address of its own, so that nobody takes its port while it is stopped.
    let server = Server::start(&["web.listen=127.0.7.2:0"]);
    three(&server);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    until_names(&browser, &["Alpha", "gamma", "beta"]);
    let listen = format!("web.listen={}", server.address("web.listen"));
    drop(server);
    browser.until("the state", "document.querySelector('#live').dataset.state == 'waiting'");
    assert_eq!(names(&browser), json!(["Alpha", "gamma", "beta"]), "the last list stays");
    let server = Server::start(&[&listen]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"after", 9, 1));
    browser.until_live();
    until_names(&browser, &["after"]);
}

#[test]
#[ignore = "needs chromium"]
fn five_thousand_servers() {
    let server = Server::start(&["guard.max_servers_per_ip=10000"]);
    let game = Game::new(server.address("iceball.listen"));
    for port in 1..=5000u16 {
        game.announce(&announcement(format!("server {port:04}").as_bytes(), port, port % 64));
    }
    until("all", || (server.listed().len() == 5000).then_some(()));
    let browser = Browser::new();
    browser.goto_live(&server, "/?sort=name");
    browser.until("the totals", "document.querySelector('#total').textContent == '5000'");
    let drawn = "document.querySelectorAll('#servers > tbody').length";
    assert_eq!(browser.value(drawn), 100, "only nearby rows are drawn");
    browser.run("scrollTo(0, document.body.scrollHeight)");
    browser.until("more rows", &format!("{drawn} == 300"));
    browser.type_into("[name=q]", "server 4711");
    until_names(&browser, &["server 4711"]);
    game.announce(&announcement(b"server 4711", 4711, 64));
    browser.until("its change", "document.querySelector('[data-field=players]').textContent == '64/64'");
}

/// Servers for the accessibility check and the screenshots.
const SHOWN: [(u8, &str, u16, u16); 5] = [
    (2, "Mesa Veterans", 20737, 12),
    (3, "Loopback Arena <24/7>", 20737, 58),
    (4, "Grüne Wiese", 20737, 3),
    (5, "build with friends", 20738, 0),
    (6, "test, please ignore", 20740, 1),
];

/// A master with those and two more; most have a week of history.
pub fn showroom(name: &str) -> (Folder, Server, [Tank; 2]) {
    let tanks = [
        Tank::new("Two Clans United", &[("Ann", 14), ("Bob", 9), ("Cid", 3), ("Dora", 0)]),
        Tank::new("Panzer Training", &[]),
    ];
    let iceball = SHOWN.map(|(host, _, port, players)| ("iceball", ([127, 0, 0, host], port).into(), players));
    let mut counted = iceball[..4].to_vec();
    counted.push(("netpanzer", ([127, 0, 0, 1], tanks[0].port).into(), 6));
    let folder = folder_with_a_week(name, &counted);
    let words = "[[iceball.servers]]\naddress = \"127.0.0.2:20737\"\nofficial = true\npriority = 10\n";
    let config = folder.write("words.toml", words);
    let server = Server::start_with(&["--config", config.to_str().unwrap()], &[&data_dir(&folder)]);
    for (host, name, port, players) in SHOWN {
        let game = Game::on(server.address("iceball.listen"), [127, 0, 0, host].into());
        game.announce(&announcement(name.as_bytes(), port, players));
    }
    tanks.iter().for_each(|tank| tank.heartbeat(&server));
    until("all", || (server.json("/api/v1/servers")["total"] == 7).then_some(()));
    (folder, server, tanks)
}

/// axe-core's source, which scripts/test installs.
pub fn axe() -> String {
    std::fs::read_to_string(tool("npm/node_modules/axe-core/axe.min.js")).unwrap()
}

#[test]
#[ignore = "needs chromium and axe-core"]
fn axe_finds_nothing() {
    let (_folder, server, _tanks) = showroom("browser-1");
    let browser = Browser::new();
    let axe = axe();
    for (size, width, height) in [("desktop", 1280, 900), ("phone", 390, 844), ("wide", 1920, 1080)] {
        for scheme in ["light", "dark"] {
            browser.look(width, height, scheme);
            browser.goto_live(&server, "/");
            browser.until("all rows", &format!("{NAMES}.length == 7"));
            browser.run(&format!("{}.querySelector('summary').click()", row("Two Clans United")));
            browser.until("a row to open", "document.querySelector('.more .chart svg')");
            browser.until("the plots", "document.querySelectorAll('.day svg').length >= 5");
            keep_picture(&browser, &format!("page-{size}-{scheme}.png"));
            assert_eq!(found_by_axe(&browser, &axe), json!([]), "{size}, {scheme}");
        }
    }
    // The others have less that depends on both the size and the colours.
    for (width, height, scheme) in [(1280, 900, "dark"), (390, 844, "light")] {
        browser.look(width, height, scheme);
        for path in [
            "/doctor?game=iceball&address=127.0.0.2:20737",
            "/doctor?game=iceball&address=127.0.0.1:20737",
            "/doctor?game=iceball&address=x",
            "/api",
            "/nothing",
            "/games/iceball",
            "/embed",
            "/servers/iceball/127.0.0.3:20737",
        ] {
            browser.goto(&server, path);
            assert_eq!(found_by_axe(&browser, &axe), json!([]), "{path}, {width}, {scheme}");
        }
    }
}

#[test]
#[ignore = "needs chromium and axe-core"]
fn axe_finds_nothing_in_a_test_that_is_shown_step_by_step() {
    let (server, tank) = (Server::start(&[]), Tank::new("Tank", &[("Ann", 3)]));
    let (browser, axe) = (Browser::new(), axe());
    for scheme in ["light", "dark"] {
        browser.look(390, 844, scheme);
        browser.goto(&server, &format!("/doctor?game=netpanzer&address=127.0.0.1:{}", tank.port));
        browser.run("document.querySelector('form[method=post] button').click()");
        browser.until("the result", "document.querySelector('#result')?.innerText.includes('answered')");
        browser.until("the whole page", "document.readyState == 'complete'");
        assert_eq!(found_by_axe(&browser, &axe), json!([]), "{scheme}");
    }
}

/// What axe finds wrong in the page that is shown.
pub fn found_by_axe(browser: &Browser, axe: &str) -> Value {
    browser.run(axe);
    browser.run_until_called(
        "const done = arguments[arguments.length - 1]; axe.run().then(found => done(found.violations.map(violation => \
         violation.id + ': ' + violation.nodes.map(node => node.html + ' ' + node.failureSummary).join('; '))), error => done([String(error)]))",
    )
}

/// Writes a screenshot for the README to the folder in RALLYPOINT_SCREENSHOTS, if that is set.
fn keep_picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("RALLYPOINT_SCREENSHOTS") {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::write(root.join(folder).join(name), browser.screenshot()).unwrap();
    }
}

//! How the page looks and feels in a real browser: what fits on a screen, what is cut, what a key does, pages of servers.

use serde_json::{Value, json};

use crate::support::chromium::Browser;
use crate::support::*;
use crate::web::browser::showroom;

/// A master with many servers, the first of which has a long name.
fn crowd() -> Server {
    let server = Server::start(&["guard.max_servers_per_ip=1000"]);
    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement("aVeryLongNameWithoutAnySpaces!".as_bytes(), 1, 64));
    for port in 2..=30u16 {
        game.announce(&announcement(format!("server {port:02}").as_bytes(), port, if port > 25 { 0 } else { port }));
    }
    until("all", || (server.listed().len() == 30).then_some(()));
    server
}

#[test]
#[ignore = "needs chromium"]
fn twenty_rows_fit_on_a_small_desktop_and_each_is_one_line() {
    let server = crowd();
    let browser = Browser::new();
    for (width, height, rows_min) in [(1280, 900, 20), (1920, 1080, 24), (1000, 900, 20)] {
        browser.look(width, height, "light");
        browser.goto_live(&server, "/");
        let fitting = format!(
            "[...document.querySelectorAll('#servers > tbody')].filter(row => row.getBoundingClientRect().bottom <= {height}).length"
        );
        let fitting = browser.value(&fitting).as_u64().unwrap();
        assert!(fitting >= rows_min, "{fitting} at {width}");
        let heights = "[...new Set([...document.querySelectorAll('#servers tr.line')].map(row => Math.round(row.getBoundingClientRect().height)))]";
        assert_eq!(browser.value(heights).as_array().unwrap().len(), 1, "{}", browser.value(heights));
        let lines = "Math.max(...[...document.querySelectorAll('#servers tr.line')].map(row => row.getBoundingClientRect().height))";
        assert!(browser.value(lines).as_f64().unwrap() < 34.0, "one line");
    }
}

#[test]
#[ignore = "needs chromium"]
fn a_phone_shows_servers_in_its_upper_third_in_two_lines_each() {
    let server = crowd();
    let browser = Browser::new();
    browser.look(390, 844, "light");
    browser.goto_live(&server, "/");
    let top = browser.value("document.querySelector('#servers > tbody').getBoundingClientRect().top").as_f64().unwrap();
    assert!(top < 844.0 / 3.0, "{top}");
    let heights = "Math.max(...[...document.querySelectorAll('#servers tr.line')].map(row => row.getBoundingClientRect().height))";
    assert!(browser.value(heights).as_f64().unwrap() < 60.0, "two lines");
    let name = "document.querySelector('#servers tbody .name a')";
    browser.look(320, 700, "light");
    assert_eq!(browser.value(&format!("{name}.scrollWidth > {name}.clientWidth")), true, "a long name is cut");
    assert!(
        !browser.is_displayed("[name=not_full]")
            && browser.is_displayed("[name=q]")
            && browser.is_displayed("[name=game]")
    );
    browser.click(".fold > summary");
    browser.click("[name=not_full]");
    browser.until("the filter", "document.querySelectorAll('#servers > tbody').length == 29");
    browser.until("the number of filters", "document.querySelector('.fold > summary').textContent == 'Filters (1)'");
    browser.click("#servers tbody:nth-of-type(1) .toggle summary");
    browser.until("the whole name", "document.querySelector('.more h2')?.textContent.startsWith('server')");
}

#[test]
#[ignore = "needs chromium"]
fn bars_tell_empty_filling_and_full_apart() {
    let server = crowd();
    let browser = Browser::new();
    for scheme in ["light", "dark"] {
        browser.look(1280, 900, scheme);
        browser.goto_live(&server, "/");
        let levels =
            "['full', 'some', 'empty'].map(level => document.querySelectorAll(`meter[data-level=${level}]`).length)";
        browser.until("all bars", &format!("JSON.stringify({levels}) == '[1,24,5]'"));
        // The border of each kind against the row: at least 3:1, as WCAG asks of graphics.
        let contrasts = "(() => {
            const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            const light = colour => {
                canvas.fillStyle = colour;
                canvas.fillRect(0, 0, 1, 1);
                const part = byte => (byte /= 255) <= 0.04045 ? byte / 12.92 : ((byte + 0.055) / 1.055) ** 2.4;
                const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
                return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
            };
            return ['full', 'some', 'empty'].map(level => {
                const bar = document.querySelector(`meter[data-level=${level}]`);
                const pair = [getComputedStyle(bar).borderTopColor, getComputedStyle(bar.closest('tbody')).backgroundColor].map(light);
                return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
            });
        })()";
        let contrasts = browser.value(contrasts);
        assert!(contrasts.as_array().unwrap().iter().all(|it| it.as_f64().unwrap() >= 3.0), "{scheme}: {contrasts}");
        let colours = "new Set(['full', 'some', 'empty'].map(level => getComputedStyle(document.querySelector(`meter[data-level=${level}]`)).borderTopColor)).size";
        assert_eq!(browser.value(colours), 3, "{scheme}");
    }
}

#[test]
#[ignore = "needs chromium"]
fn a_row_is_one_tab_stop_and_a_slash_goes_to_the_search() {
    let server = crowd();
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    let stops = "[...document.querySelectorAll('#servers > tbody:nth-of-type(1) :is(a, button, summary, input)')].filter(node => node.tabIndex >= 0).length";
    assert_eq!(browser.value(stops), 1);
    browser.press("/");
    browser.until("the search", "document.activeElement.name == 'q'");
    browser.press("07/");
    browser.until("a slash within it", "document.activeElement.value == '07/'");
    let sorted = "document.querySelector('#servers [aria-sort]')?.dataset.sort";
    assert_eq!(browser.value(sorted), "players", "the order is always shown");
    browser.goto_live(&server, "/?sort=map");
    assert_eq!(browser.value(sorted), "map");
    let arrow = "getComputedStyle(document.querySelector('#servers [aria-sort] a'), '::before').content";
    assert!(browser.value(arrow).as_str().unwrap().contains('↑'));
    assert_eq!(browser.value("document.querySelectorAll('[name=verified_by]').length"), 0);
}

#[test]
#[ignore = "needs chromium"]
fn what_is_missing_is_said_in_the_same_dress() {
    let server = Server::start(&[]);
    let browser = Browser::new();
    browser.goto(&server, "/");
    assert!(browser.texts("#empty")[0].contains("announces itself to this master appears here"));
    assert!(server.get("/favicon.svg").text().starts_with("<svg"));
    browser.goto(&server, "/no/<such>/page");
    assert_eq!(browser.texts("h1"), ["Not found"]);
    assert_eq!(browser.texts(".site"), ["Rallypoint"]);
    assert_eq!(get(server.address("web.listen"), "/nothing", "Accept: text/html\r\n").status(), 404);
    assert_eq!(server.get("/nothing").text(), "no such path: /nothing\n", "programs get a line");
    browser.goto(&server, "/servers/iceball/192.0.2.1:5");
    assert_eq!(browser.texts("h1"), ["No such server"]);
    let unknown = get(server.address("web.listen"), "/servers/iceball/nonsense", "");
    assert_eq!(unknown.status(), 404);
}

#[test]
#[ignore = "needs chromium"]
fn a_server_has_a_page_of_its_own() {
    let (_folder, server, tanks) = showroom("look-1");
    let path = format!("/servers/netpanzer/127.0.0.1:{}", tanks[0].port());
    let page = server.get(&path);
    for part in [
        "<title>Two Clans United – Rallypoint</title>",
        "<meta property=\"og:title\" content=\"Two Clans United\">",
        "<meta property=\"og:description\" content=\"netPanzer: 4 of 8 players on Two clans, Objective, password needed.\">",
        "netpanzer.exe --connect=127.0.0.1:",
    ] {
        assert!(page.text().contains(part), "{part}: {}", page.text());
    }
    let evil = server.get("/servers/iceball/127.0.0.3:20737");
    assert!(evil.text().contains("content=\"Loopback Arena &lt;24/7&gt;\""), "{}", evil.text());
    let plain = Browser::without_script();
    plain.goto(&server, &path);
    assert_eq!(plain.texts("h1"), ["Two Clans United"]);
    assert_eq!(plain.texts(".sheet tbody tr td:first-child")[..4], ["Ann", "Bob", "Cid", "Dora"], "by score");
    assert!(plain.is_displayed(".chart svg .band"));
    plain.click(".ranges a:nth-child(3)");
    plain.until_texts(".ranges [aria-current]", &["Month"]);
    assert!(plain.address().ends_with("?range=30d"));
    drop(plain);

    let browser = Browser::new();
    browser.goto_live(&server, "/?sort=name");
    browser
        .run("[...document.querySelectorAll('.name a')].find(link => link.textContent == 'Two Clans United').click()");
    browser.until("the row to open", "document.querySelector('.more .chart svg')");
    assert_eq!(browser.address(), "/?sort=name", "with the script, the name opens the row");
    assert_eq!(
        browser.value("document.querySelector('.more [data-field=page]').getAttribute('href')"),
        path.replace(':', "%3A")
    );
    let sides = "[...document.querySelectorAll('.details > section:not([hidden])')].map(part => Math.round(part.getBoundingClientRect().top))";
    browser.look(1920, 1080, "light");
    let tops = browser.value(sides);
    assert!(tops.as_array().unwrap().iter().take(3).all(|top| *top == tops[0]), "side by side: {tops}");
}

#[test]
#[ignore = "needs chromium"]
fn the_page_of_a_server_that_is_gone_says_when_it_was_here() {
    let browser = Browser::new();
    let folder = crate::support::history::folder_with_a_week("gone", &[("iceball", ([127, 0, 0, 9], 4).into(), 9)]);
    let server = Server::start(&[&crate::support::history::data_dir(&folder)]);
    browser.goto(&server, "/servers/iceball/127.0.0.9:4");
    assert!(browser.texts(".now")[0].starts_with("This Iceball server is not listed right now. It was last here "));
    let ago = "(Date.now() - Date.parse(document.querySelector('.now time').dateTime)) / 60000";
    let minutes = browser.value(ago).as_f64().unwrap();
    assert!((0.0..=61.0).contains(&minutes), "{minutes}");
    assert_eq!(server.get("/servers/netpanzer/127.0.0.9:4").status(), 404, "it was never this game's");
}

/// The text of an element without its script being asked.
fn caption(browser: &Browser) -> Value {
    browser.value("document.querySelector('.chart figcaption').textContent")
}

#[test]
#[ignore = "needs chromium"]
fn plots_have_ranges_values_under_the_pointer_and_the_readers_own_time() {
    let (_folder, server, _tanks) = showroom("look-3");
    let browser = Browser::new();
    browser.in_time_zone("Asia/Kolkata");
    browser.goto(&server, "/servers/iceball/127.0.0.3:20737");
    browser.until("its plot", "document.querySelector('.chart svg[data-values]')");
    assert_eq!(browser.value("document.querySelector('.chart .zone').textContent"), "UTC+5:30");
    assert!(caption(&browser).as_str().unwrap().starts_with("Players of 127.0.0.3:20737 in the last 7 days: between "));
    assert_eq!(browser.value("document.querySelectorAll('.chart .size').length"), 1, "its size is a line");
    browser.run(
        "const svg = document.querySelector('.chart svg'), box = svg.getBoundingClientRect();
         svg.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + 20}))",
    );
    let said = caption(&browser);
    assert!(said.as_str().unwrap().contains(" players"), "{said}");
    assert_eq!(browser.value("document.querySelectorAll('.chart .cursor').length"), 1);
    browser.run("document.querySelector('.chart svg').dispatchEvent(new PointerEvent('pointerout', {bubbles: true}))");
    assert_ne!(caption(&browser), said);
    for (range, words) in [("24h", "last 24 hours"), ("30d", "last 30 days"), ("1y", "last year")] {
        browser.run(&format!("document.querySelector('.ranges [data-range=\"{range}\"]').click()"));
        browser.until(range, &format!("document.querySelector('.chart figcaption').textContent.includes('{words}')"));
        assert_eq!(browser.value("document.querySelector('.ranges [aria-current]').dataset.range"), json!(range));
    }
}

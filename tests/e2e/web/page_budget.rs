//! What the page costs its readers: bytes on the first visit, and work for a change.

use crate::support::chromium::Browser;
use crate::support::*;

/// Bytes of the first visit, without the list itself in the event stream: page, stylesheet, script, icon.
const FIRST_VISIT_BYTES_MAX: u64 = 60_000;
/// Nodes and attributes of the page that two changed servers may change.
const CHANGES_MAX: u64 = 60;

fn with_servers(count: u16) -> (Server, Game) {
    let server = Server::start(&["guard.max_servers_per_ip=10000"]);
    let game = Game::new(server.address("iceball.listen"));
    for port in 1..=count {
        game.announce(&announcement(format!("server {port:04}").as_bytes(), port, port % 64));
    }
    until("all", || (server.listed().len() == usize::from(count)).then_some(()));
    (server, game)
}

#[test]
#[ignore = "needs chromium"]
fn a_first_visit_is_small_and_is_painted_without_the_script() {
    let (server, _game) = with_servers(200);
    let address = server.address("web.listen");
    let sizes: Vec<(&str, u64)> = ["/", "/style.css", "/page.js", "/favicon.svg"]
        .map(|path| (path, get(address, path, "Accept-Encoding: br\r\n").body.len() as u64))
        .into();
    let all: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    assert!(all < FIRST_VISIT_BYTES_MAX, "{all}: {sizes:?}");

    // Nothing else is loaded before the reader does something, and nothing from elsewhere.
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    let loaded = "performance.getEntriesByType('resource').map(entry => new URL(entry.name).pathname).sort()";
    let loaded = browser.value(loaded);
    let known = ["/api/v1/events", "/favicon.svg", "/page.js", "/plots", "/style.css"];
    assert!(loaded.as_array().unwrap().iter().all(|path| known.contains(&path.as_str().unwrap())), "{loaded}");
    assert_eq!(browser.value("document.querySelector('script[src=\"/page.js\"]').defer"), true);
    drop(browser);

    let plain = Browser::without_script();
    plain.goto(&server, "/");
    assert_eq!(plain.texts("#servers tbody .name").len(), 100, "the list is in the page itself");
}

/// The script looks at all servers, but draws only what it shows and what has changed there.
#[test]
#[ignore = "needs chromium"]
fn a_change_among_two_thousand_servers_changes_little_of_the_page() {
    let (server, game) = with_servers(2_000);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    browser.until("all", "document.querySelector('#total').textContent == '2000'");
    browser.run(
        "window.changes = 0;
         new MutationObserver(all => changes += all.length)
             .observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});",
    );
    // One that is not shown, and one that makes room for another.
    game.announce(&announcement(b"server 0064", 64, 1));
    game.announce(&announcement(b"server 0063", 63, 9));
    browser.until("the change", "!document.querySelector('#servers [data-address=\"127.0.0.1:63\"]')");
    assert!(browser.value("document.querySelectorAll('#servers > tbody').length").as_u64().unwrap() <= 100);
    let changes = browser.value("changes").as_u64().unwrap();
    assert!(changes < CHANGES_MAX, "{changes} changes of the page");
}

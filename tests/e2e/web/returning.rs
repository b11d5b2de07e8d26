//! Reasons to come back to the page: favourites, notifications, the tab's title, the feed, what other sites show, pages of games.

use serde_json::json;

use crate::support::chromium::Browser;
use crate::support::*;
use crate::web::browser::{showroom, three};

fn names(browser: &Browser) -> serde_json::Value {
    browser.value("[...document.querySelectorAll('#servers > tbody .name a')].map(node => node.textContent)")
}

#[test]
#[ignore = "needs chromium"]
fn favourites_are_on_top_and_stay_in_the_browser() {
    let server = Server::start(&[]);
    three(&server);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    assert_eq!(names(&browser), json!(["Alpha", "gamma", "beta"]));
    browser.run("document.querySelector('[data-address=\"127.0.0.1:1\"] .star').click()");
    let on_top = "document.querySelector('#servers > tbody .name a').textContent == 'beta'";
    browser.until("beta on top", on_top);
    browser.goto_live(&server, "/?sort=name");
    browser.until("beta on top in every order", on_top);
    assert_eq!(names(&browser), json!(["beta", "Alpha", "gamma"]));
    // By keyboard, in the opened row.
    browser.run("document.querySelector('[data-address=\"127.0.0.1:1\"] summary').click()");
    browser.until("its row to open", "document.querySelector('.more button[data-do=star]')");
    assert_eq!(browser.value("document.querySelector('.more button[data-do=star]').ariaPressed"), "true");
    browser.run("document.querySelector('.more button[data-do=star]').click()");
    browser.until("the usual order", "document.querySelector('#servers > tbody .name a').textContent == 'Alpha'");
    browser.run("localStorage.setItem('rallypoint.favourites', '[nonsense')");
    browser.goto_live(&server, "/");
    assert_eq!(names(&browser), json!(["Alpha", "gamma", "beta"]), "damaged storage is none");
}

#[test]
#[ignore = "needs chromium"]
fn the_reader_is_told_when_a_server_has_enough_players() {
    let server = Server::start(&[]);
    let game = three(&server);
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    browser.until("the players in the title", "document.title == '(69) Rallypoint'");
    browser.run(
        "window.notices = [];
         window.Notification = class { constructor(title) { notices.push(title); } static async requestPermission() { return 'granted'; } };
         document.querySelector('[data-address=\"127.0.0.1:3\"] summary').click()",
    );
    browser.until("its row to open", "document.querySelector('.more [data-field=tell]')");
    browser.type_into(".more [data-field=tell]", "7");
    browser.run("document.activeElement.blur()");
    browser.until("the promise", "document.querySelector('#said').textContent.includes('when it has 7 players')");
    game.announce(&announcement(b"gamma", 3, 6));
    browser.until("a change", "document.title == '(70) Rallypoint'");
    assert_eq!(browser.value("notices"), json!([]), "not enough yet");
    game.announce(&announcement(b"gamma", 3, 8));
    browser.until("the notice", "notices.length == 1");
    assert_eq!(browser.value("notices[0]"), "gamma: 8 players");
    game.announce(&announcement(b"gamma", 3, 9));
    browser.until("another change", "document.title == '(73) Rallypoint'");
    assert_eq!(browser.value("notices.length"), 1, "once");
}

#[test]
fn a_feed_has_new_servers_and_those_that_came_alive() {
    let server = Server::start(&[]);
    let game = three(&server);
    let feed = |query: &str| server.get(&format!("/feed.atom{query}"));
    assert_eq!(feed("").header("Content-Type"), Some("application/atom+xml; charset=utf-8"));
    until("three entries", || (feed("").text().matches("<title>New: ").count() == 3).then_some(()));
    game.announce(&announcement(b"beta", 1, 3));
    until("it came alive", || feed("").text().contains("<title>Came alive: beta</title>").then_some(()));
    assert!(!feed("").text().contains("alive: gamma"), "somebody played there before");
    assert_eq!(feed("?q=alpha").text().matches("<entry>").count(), 1);
    assert_eq!(feed("?qq=alpha").status(), 400);
    assert!(server.get("/").text().contains("type=\"application/atom+xml\" href=\"/feed.atom\""));
}

#[test]
#[ignore = "needs chromium"]
fn other_sites_show_a_list_and_badges() {
    let (_folder, server, tanks) = showroom("returning-1");
    let page = server.get("/embed?game=iceball&limit=3");
    let policy = page.header("Content-Security-Policy").unwrap();
    assert!(policy.contains("frame-ancestors *") && !policy.contains("script"), "{policy}");
    assert_eq!(page.text().matches("<tr><th scope=\"row\">").count(), 3);
    assert!(page.text().contains("Loopback Arena &lt;24/7&gt;") && page.text().contains(">5 servers, 74 players"));
    assert_eq!(server.get("/embed?limit=0").status(), 400);
    let own = server.get("/").header("Content-Security-Policy").unwrap().to_string();
    assert!(own.contains("frame-ancestors 'none'"), "{own}");
    let badge = |path: &str| server.get(path);
    let tank = badge(&format!("/servers/netpanzer/127.0.0.1:{}/badge.svg", tanks[0].port()));
    assert_eq!(tank.header("Content-Type"), Some("image/svg+xml"));
    assert!(tank.text().contains("aria-label=\"Two Clans United: 4/8 players\""), "{}", tank.text());
    assert!(badge("/servers/netpanzer/192.0.2.1:5/badge.svg").text().contains("192.0.2.1:5: offline"));
    let browser = Browser::new();
    browser.goto(&server, &format!("/servers/netpanzer/127.0.0.1:{}", tanks[0].port()));
    browser.until("the badge", "document.querySelector('.badge img').naturalWidth > 100");
}

#[test]
#[ignore = "needs chromium"]
fn a_game_has_a_page_with_its_plot_maps_and_modes() {
    let (_folder, server, _tanks) = showroom("returning-2");
    let browser = Browser::without_script();
    browser.goto(&server, "/games/iceball");
    assert_eq!(browser.texts("h1"), ["Iceball"]);
    assert_eq!(browser.texts(".now"), ["74 players on 5 servers with room for 320."]);
    assert!(browser.is_displayed(".chart svg"));
    assert_eq!(browser.texts("caption"), ["Maps", "Modes"]);
    assert_eq!(browser.texts(".sheet tbody tr")[0], "mesa.vxl 5 74");
    browser.click(".sheet tbody a");
    assert_eq!(browser.address(), "/?game=iceball&map=mesa.vxl");
    assert_eq!(browser.texts("#servers tbody .name").len(), 5);
    assert_eq!(server.get("/games/no-such-game").status(), 404);
    assert_eq!(server.get("/games/netpanzer?range=1y").status(), 200);
}

//! History on the page: sparklines, plots and their texts, with and without JavaScript.

use std::net::SocketAddr;

use crate::support::chromium::Browser;
use crate::support::history::{data_dir, folder_with_a_week};
use crate::support::*;

/// Two of them have a week of history; the third is new, and may have been counted once.
fn three(name: &str) -> (Folder, Server, Game) {
    let place = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let folder = folder_with_a_week(name, &[("iceball", place(1), 10), ("iceball", place(2), 40)]);
    let server = Server::start(&[&data_dir(&folder)]);
    let game = Game::new(server.address("iceball.listen"));
    for (name, port, players) in [(&b"beta"[..], 1, 9), (b"Alpha", 2, 30), (b"new", 3, 1)] {
        game.announce(&announcement(name, port, players));
    }
    until("all three", || (server.listed().len() == 3).then_some(()));
    (folder, server, game)
}

#[test]
#[ignore = "needs chromium"]
fn rows_show_a_day_and_open_to_a_week_without_javascript() {
    let (_folder, server, _game) = three("week-plain");
    let browser = Browser::without_script();
    let spark = "#servers tbody .day svg[role=img]";
    let seen = |browser: &Browser| {
        browser.goto(&server, "/");
        (browser.attributes(spark, "aria-label").len() >= 2).then_some(())
    };
    until("the lines of the two that were counted", || seen(&browser));
    let words = browser.attributes(spark, "aria-label");
    assert!(words[0].starts_with("Players in the last 24 hours: between "), "{words:?}");
    let points = browser.attributes("#servers tbody .day polyline", "points");
    assert!(points[0].split(' ').count() > 40 && points[1].split(' ').count() > 40, "{points:?}");
    assert!(browser.texts("#whole summary")[0].starts_with("Players of all games in the last 7 days: between "));
    assert!(!browser.is_displayed("#whole svg"));
    browser.click("#whole summary");
    assert!(browser.is_displayed("#whole svg .band"));

    let week = "#servers tbody:nth-of-type(1) .more img";
    assert!(!browser.is_displayed(week), "not before the row is opened");
    browser.click("#servers tbody:nth-of-type(1) summary");
    assert!(browser.is_displayed(week));
    let alternative = browser.attributes(week, "alt").remove(0);
    assert!(alternative.starts_with("Players in the last 7 days: between "), "{alternative}");
    let image = server.get(&browser.attributes(week, "src").remove(0));
    assert_eq!((image.status(), image.header("Content-Type")), (200, Some("image/svg+xml")));
    assert!(image.text().contains("<polyline") && image.text().contains(">Players of 127.0.0.1:2 in the last 7 days<"));

    until("the game's own", || {
        browser.goto(&server, "/?game=iceball");
        let caption = browser.texts("#whole summary").pop()?;
        caption.starts_with("Players of Iceball in the last 7 days").then_some(())
    });
    until("no plot for a game without history", || {
        let whole = server.json("/plots?game=netpanzer")["whole"].clone();
        (whole["plot"] == "").then_some(())
    });
    browser.goto(&server, "/?game=netpanzer");
    assert!(!browser.is_displayed("#whole"));
}

#[test]
#[ignore = "needs chromium"]
fn rows_that_the_script_draws_have_plots_too() {
    let (_folder, server, game) = three("week-live");
    let browser = Browser::new();
    // The page has one row; the script draws the others and fetches their plots.
    browser.goto_live(&server, "/?limit=1&game=iceball");
    let names = "[...document.querySelectorAll('#servers tbody')].filter(row => row.querySelector('.day svg')).map(row => row.dataset.address)";
    let both = "JSON.stringify(['127.0.0.1:2', '127.0.0.1:1'])";
    browser.until("the lines of both", &format!("JSON.stringify({names}.slice(0, 2)) == {both}"));
    browser.until("the game", "document.querySelector('#whole-title').textContent.includes('Iceball')");
    assert_eq!(browser.value("document.querySelector('.day svg').namespaceURI"), "http://www.w3.org/2000/svg");

    browser.run("document.querySelector('[data-address=\"127.0.0.1:1\"] summary').click()");
    let week = "document.querySelector('[data-address=\"127.0.0.1:1\"] .chart')";
    browser.until(
        "the week",
        &format!("{week}.querySelector('svg') && {week}.textContent.includes('last 7 days: between ')"),
    );

    // A change of a server keeps its sparkline; choosing another game replaces the large plot.
    game.announce(&announcement(b"beta", 1, 55));
    browser.until("its players", "document.body.textContent.includes('55/64')");
    assert_eq!(browser.value("document.querySelectorAll('[data-address=\"127.0.0.1:1\"] .day svg').length"), 1);
    browser.run("const game = document.querySelector('[name=game]'); game.value = ''; game.dispatchEvent(new Event('input', {bubbles: true}))");
    browser.until("all games", "document.querySelector('#whole-title').textContent.includes('all games')");
    browser.run("const game = document.querySelector('[name=game]'); game.value = 'netpanzer'; game.dispatchEvent(new Event('input', {bubbles: true}))");
    browser.until("nothing for a game without history", "document.querySelector('#whole').hidden");
}

#[test]
#[ignore = "needs chromium"]
fn a_node_without_history_has_no_column_for_it() {
    let server = Server::start(&[]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"alone", 1, 9));
    until("it", || server.listed().pop());
    let page = server.get("/");
    assert!(page.text().contains("no-history") && !page.text().contains("<svg"), "{}", page.text());
    assert_eq!(server.get("/plots?game=").text(), "{}");
    let browser = Browser::new();
    browser.goto_live(&server, "/");
    assert!(!browser.is_displayed("tbody .day") && !browser.is_displayed("#whole"));
}

#[test]
fn disabled_history_has_no_column_either() {
    let folder = Folder::new("off");
    let server = Server::start(&[&data_dir(&folder), "history.max_mib=0"]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"alone", 1, 9));
    until("it", || server.listed().pop());
    assert!(server.get("/").text().contains("no-history"));
}

#[test]
fn plots_for_other_sites() {
    let (_folder, server, _game) = three("week-images");
    for (path, title) in [
        ("/api/v1/servers/iceball/127.0.0.1:1/history.svg", "Players of 127.0.0.1:1 in the last 24 hours"),
        ("/api/v1/servers/iceball/127.0.0.1:3/history.svg?range=1y", "Players of 127.0.0.1:3 in the last year"),
        ("/api/v1/history.svg?game=iceball&range=30d", "Players of iceball in the last 30 days"),
    ] {
        let image = server.get(path);
        assert_eq!((image.status(), image.header("Content-Type")), (200, Some("image/svg+xml")), "{path}");
        assert_eq!(image.header("Access-Control-Allow-Origin"), Some("*"));
        assert!(image.text().contains(&format!("<title>{title}</title>")), "{path}: {}", image.text());
    }
    assert_eq!(server.get("/api/v1/history.svg?game=chess").status(), 404);
    assert_eq!(server.get("/api/v1/servers/iceball/127.0.0.1:1/history.svg?range=2d").status(), 400);
    assert_eq!(server.get("/plots?sever=nonsense").status(), 400);
    let asked = "/plots?server=nonsense&server=iceball/127.0.0.1:1&server=iceball/192.0.2.1:5";
    let plots = until("the plot of the one that is listed", || {
        let plots = server.json(asked)["servers"].as_object().unwrap().clone();
        (!plots.is_empty()).then_some(plots)
    });
    assert_eq!(plots.keys().collect::<Vec<_>>(), ["iceball/127.0.0.1:1"]);
}

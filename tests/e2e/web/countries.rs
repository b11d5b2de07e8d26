//! Countries of servers, with a database of the operator: on the page, in the API, and when the file changes.

use std::path::Path;

use crate::support::chromium::Browser;
use crate::support::*;

/// Everything on 127.0.0.0/8 is in this country.
fn database(country: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/places.mmdb");
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(2).position(|pair| pair == b"DE").unwrap();
    bytes[at..at + 2].copy_from_slice(country.as_bytes());
    bytes
}

fn listed(server: &Server) {
    Game::new(server.address("iceball.listen")).announce(&announcement(b"here", 1, 9));
    until("it", || server.listed().pop());
}

#[test]
#[ignore = "needs chromium"]
fn every_server_has_a_country_where_a_database_is_known() {
    let folder = Folder::new("countries");
    let path = folder.path().join("places.mmdb");
    std::fs::write(&path, database("DE")).unwrap();
    let server = Server::start(&[&format!("geo.database={}", path.display())]);
    listed(&server);
    let country = |query: &str| server.json(&format!("/api/v1/servers{query}"))["servers"][0]["country"].clone();
    assert_eq!(country(""), "DE");
    assert_eq!(country("?country=de&sort=-country"), "DE");
    assert_eq!(server.json("/api/v1/servers?country=FR")["total"], 0);
    assert_eq!(server.json("/api/v1/servers/iceball/127.0.0.1:1")["country"], "DE");
    let page = server.get("/?country=DE");
    let flag = "title=\"Germany\">\u{1f1e9}\u{1f1ea}</span>";
    assert!(page.text().contains(flag) && page.text().contains("<option value=\"DE\" selected>Germany</option>"));
    assert!(server.get("/?country=FR").text().contains("No servers match your filters."));

    let browser = Browser::new();
    browser.goto_live(&server, "/?sort=country");
    let shown = "document.querySelector('tbody .country')";
    assert_eq!(browser.value(&format!("{shown}.title")), "Germany");
    assert_eq!(browser.value(&format!("{shown}.textContent")), "\u{1f1e9}\u{1f1ea}");
    browser.run("const field = document.querySelector('[name=country]'); field.value = 'DE'; field.dispatchEvent(new Event('input', {bubbles: true}))");
    assert_eq!(browser.address(), "/?country=DE&sort=country");
    browser.run("document.querySelector('tbody summary').click()");
    browser.until("its name", "document.querySelector('.more [data-field=country_name]')?.textContent == 'Germany'");

    std::fs::write(&path, database("FR")).unwrap();
    until("the new file", || (country("") == "FR").then_some(()));
    until("the page", || server.get("/").text().contains("title=\"France\"").then_some(()));
}

#[test]
fn without_a_database_nothing_is_said_of_countries() {
    let server = Server::start(&[]);
    listed(&server);
    assert_eq!(server.json("/api/v1/servers")["servers"][0].get("country"), None);
    assert!(!server.get("/").text().contains("name=\"country\""));
    assert_eq!(server.json("/api/v1/servers?sort=country")["total"], 1);
}

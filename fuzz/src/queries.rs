//! Query strings, to the list, the page, the doctor and the paths of protocols. Pages of a list have every server once, in
//! the same order as the whole list.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::http::ask;
use super::tape::Tape;
use rallypoint::protocols::CARDS;
use rallypoint::protocols::section::Surroundings;
use serde_json::Value;

/// More pages than any list has.
const PAGES_MAX: usize = 300;

/// What takes a query string, besides the list.
static PATHS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let of_protocols =
        CARDS.iter().flat_map(|card| (card.section)().routes(&Surroundings::default())).map(|route| route.path);
    ["/", "/doctor", "/plots", "/api/v1/check", "/api/v1/events"].into_iter().chain(of_protocols).collect()
});

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let (kind, limit) = (tape.below(16), 5 + tape.below(60));
    // What cannot be in a request's first line is the business of another target.
    let query: String =
        tape.rest().iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect();
    match PATHS.get(kind) {
        Some(path) => _ = ask(&format!("{path}?{query}")),
        None => pages(&query, limit),
    }
}

fn pages(query: &str, limit: usize) {
    let (status, whole) = ask(&format!("/api/v1/servers?{query}"));
    // The last of several parameters of the same name counts.
    let mut url = format!("/api/v1/servers?{query}&limit={limit}");
    if status != 200 || query.contains("limit") || query.contains("after") {
        return;
    }
    let expected = addresses(&whole);
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let (status, page) = ask(&url);
        assert!(status != 400, "{url}");
        if status != 200 {
            return; // too busy to answer in time
        }
        found.extend(addresses(&page));
        let page: Value = serde_json::from_slice(&page).expect("JSON");
        let Some(next) = page["next"].as_str() else { break };
        let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
        url = format!("/api/v1/servers?{query}&limit={limit}&after={next}");
    }
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len(), "a server on two pages: {query}");
    assert_eq!(found, expected, "{query}");
}

fn addresses(list: &[u8]) -> Vec<String> {
    let list: Value = serde_json::from_slice(list).expect("JSON");
    let servers = list["servers"].as_array().expect("servers");
    servers.iter().map(|server| format!("{} {}", server["address"], server["port"])).collect()
}

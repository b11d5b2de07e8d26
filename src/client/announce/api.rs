//! Announcing through a Rallypoint's own API: `POST /api/v1/servers` with the game and the port.

use serde_json::{Value, json};

use crate::protocols::Verdict;
use crate::protocols::announce::{HttpAnnounce, HttpBody, Offer, reason};

const PATH: &str = "/api/v1/servers";

pub const ANNOUNCE: HttpAnnounce = HttpAnnounce {
    path: |given, _| path(given),
    post: Some(HttpBody { content_type: "application/json", body }),
    verdict,
    help: "a Rallypoint's API, for games that it can query",
};

/// The API's path, from a URL of a Rallypoint or of its API.
fn path(given: &str) -> String {
    let given = given.split('?').next().unwrap_or_default().trim_end_matches('/');
    if given.ends_with(PATH) { given.to_string() } else { format!("{given}{PATH}") }
}

fn body(offer: &Offer) -> Vec<u8> {
    json!({ "game": offer.game, "port": offer.port }).to_string().into_bytes()
}

fn verdict(status: u16, body: &[u8]) -> Verdict {
    if (200..300).contains(&status) {
        return Verdict::Listed;
    }
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let text = ["reason", "error", "message", "detail"].iter().find_map(|key| json.as_ref()?.get(key)?.as_str());
    let text = text.map_or(body, str::as_bytes).split(|&byte| byte == b'\n').next().unwrap_or_default();
    match reason(text) {
        empty if empty.is_empty() => Verdict::Refused(format!("HTTP status {status}")),
        text => Verdict::Refused(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Facts;

    #[test]
    fn requests() {
        for given in ["", "/", "/api/v1/servers", "/api/v1/servers/"] {
            assert_eq!(path(given), "/api/v1/servers");
        }
        assert_eq!(path("/masters/"), "/masters/api/v1/servers");
        let offer = Offer { game: "hyperbol".into(), port: 20200, facts: Facts::default() };
        assert_eq!(body(&offer), br#"{"game":"hyperbol","port":20200}"#);
    }

    #[test]
    fn verdicts() {
        assert_eq!(verdict(201, b"whatever"), Verdict::Listed);
        let refused = |status, body: &str| match verdict(status, body.as_bytes()) {
            Verdict::Refused(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(422, r#"{"reason":"no answer over UDP"}"#), "no answer over UDP");
        assert_eq!(refused(400, r#"{"error":"bad \u001b[1mport"}"#), "bad [1mport");
        assert_eq!(refused(404, "not found\n"), "not found");
        assert_eq!(refused(500, ""), "HTTP status 500");
    }
}

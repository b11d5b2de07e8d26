//! A game server's side of the list: a GET every minute, answered with the ban list.

use super::list::parse_bans;
use crate::protocols::Verdict;
use crate::protocols::announce::reason;

/// The game's own pace.
pub const EVERY_MS: u64 = 60_000;
/// Where the list has always been.
pub const PAGE: &str = "/bloodmasterslist.php";

/// What to GET: `page` is the list's own path, with a query of its own or without.
pub fn path(page: &str, port: u16) -> String {
    let page = if page.is_empty() || page == "/" { PAGE } else { page };
    let and = if page.contains('?') { '&' } else { '?' };
    format!("{page}{and}action=update&port={port}")
}

/// What the answer means. A page that is no ban list is no master's, whatever its status.
pub fn verdict(status: u16, body: &[u8]) -> Verdict {
    if status != 200 {
        let text = reason(body.split(|&byte| byte == b'\n').next().unwrap_or_default());
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        return Verdict::Refused(format!("HTTP status {status}{text}"));
    }
    match parse_bans(body).find_map(Result::err) {
        None => Verdict::Listed,
        Some(bad) => Verdict::Refused(format!("no Bloodmasters list there: the answer is not a ban list, {bad}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(path("", 6969), "/bloodmasterslist.php?action=update&port=6969");
        assert_eq!(path("/", 6969), "/bloodmasterslist.php?action=update&port=6969");
        assert_eq!(path("/lists/bm.php", 1), "/lists/bm.php?action=update&port=1");
        assert_eq!(path("/index.php?page=bm", 1), "/index.php?page=bm&action=update&port=1");
    }

    #[test]
    fn verdicts() {
        assert_eq!(verdict(200, b""), Verdict::Listed);
        assert_eq!(verdict(200, b"198.51.100.7\r\n192.0.2.*\r\n"), Verdict::Listed);
        let Verdict::Refused(text) = verdict(200, b"<html>\nwelcome") else { panic!() };
        assert!(text.contains("not a ban list, line 1"), "{text}");
        assert_eq!(verdict(404, b""), Verdict::Refused("HTTP status 404".into()));
        assert_eq!(verdict(403, b"no answer\x07\nmore"), Verdict::Refused("HTTP status 403: no answer".into()));
    }
}

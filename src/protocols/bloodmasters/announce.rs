//! The game server's side: a GET every minute, answered with the ban list.

use super::LIST_PATH;
use super::list::parse_bans;
use crate::protocols::Verdict;
use crate::protocols::announce::{HttpAnnounce, reason};

/// The original game's interval.
pub const EVERY_MS: u64 = 60_000;

pub const ANNOUNCE: HttpAnnounce = HttpAnnounce {
    path: |given, offer| path(given, offer.port),
    post: None,
    verdict,
    help: "a Bloodmasters list, on /bloodmasterslist.php if not given",
};

/// What to GET. `page` is the path of the list, with or without a query.
fn path(page: &str, port: u16) -> String {
    let page = if page.is_empty() || page == "/" { LIST_PATH } else { page };
    let and = if page.contains('?') { '&' } else { '?' };
    format!("{page}{and}action=update&port={port}")
}

/// Interprets the answer. A page that is not a ban list does not come from a master, even with status 200.
fn verdict(status: u16, body: &[u8]) -> Verdict {
    if status != 200 {
        let text = reason(body.split(|&byte| byte == b'\n').next().unwrap_or_default());
        let text = if text.is_empty() { String::new() } else { format!(": {text}") };
        return Verdict::Refused(format!("HTTP status {status}{text}"));
    }
    match parse_bans(body).find_map(Result::err) {
        None => Verdict::Listed,
        Some(bad) => Verdict::Refused(format!("not a Bloodmasters master: the answer is not a ban list, {bad}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_update_is_appended_to_the_path() {
        assert_eq!(path("", 6969), "/bloodmasterslist.php?action=update&port=6969");
        assert_eq!(path("/", 6969), "/bloodmasterslist.php?action=update&port=6969");
        assert_eq!(path("/lists/bm.php", 1), "/lists/bm.php?action=update&port=1");
        assert_eq!(path("/index.php?page=bm", 1), "/index.php?page=bm&action=update&port=1");
    }

    #[test]
    fn only_a_ban_list_means_listed() {
        assert_eq!(verdict(200, b""), Verdict::Listed);
        assert_eq!(verdict(200, b"198.51.100.7\r\n192.0.2.*\r\n"), Verdict::Listed);
        let Verdict::Refused(text) = verdict(200, b"<html>\nwelcome") else { panic!() };
        assert!(text.contains("not a ban list, line 1"), "{text}");
        assert_eq!(verdict(404, b""), Verdict::Refused("HTTP status 404".into()));
        assert_eq!(verdict(403, b"no answer\x07\nmore"), Verdict::Refused("HTTP status 403: no answer".into()));
    }
}

//! The master's side of Bloodmasters' web list, compatible with the original servers and launchers.
//!
//! | GET `/bloodmasterslist.php` | answer |
//! |---|---|
//! | without `action` | the list for launchers |
//! | `?action=update&port=N` | the ban list, once the announced server has been verified |
//! | anything else | an error status |
//!
//! A server treats every line of the answer as a ban, so the answer is the ban list or an error status, never an error page
//! with status 200.

use std::cmp::Reverse;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use url::form_urlencoded;

use super::{CARD, NAME, list};
use crate::model::{Address, HeartbeatKeys};
use crate::protocols::Heartbeat;
use crate::protocols::section::{RouteAnswer, RouteRule};
use crate::registry::view::{Body, Rendered, Renderer, Tag, View};

/// The game announces itself every 60 s.
pub const LIFE_MS: u64 = 180_000;

/// The page `/bloodmasterslist.php`.
pub struct ListPage {
    /// Whether the page is enabled.
    is_on: bool,
    servers: Arc<dyn Renderer>,
    bans: Arc<Rendered>,
}

impl ListPage {
    pub fn new(is_on: bool, bans: &[IpNet]) -> ListPage {
        let ipv4 = |ban: &IpNet| match ban {
            IpNet::V4(net) => Some(*net),
            IpNet::V6(_) => None,
        };
        let bans: Vec<Ipv4Net> = bans.iter().filter_map(ipv4).collect();
        ListPage { is_on, servers: Arc::new(ServerLines), bans: Arc::new(Rendered::new(list::emit_bans(&bans))) }
    }
}

impl RouteRule for ListPage {
    fn get(&self, peer: IpAddr, query: &str) -> RouteAnswer {
        if !self.is_on {
            return RouteAnswer::Refused { status: 404, text: "the Bloodmasters list is disabled on this master" };
        }
        let value = |name: &str| {
            form_urlencoded::parse(query.as_bytes())
                .find(|(found, _)| found == name)
                .map_or_else(Default::default, |(_, value)| value)
        };
        match &*value("action") {
            "" => RouteAnswer::List(self.servers.clone()),
            "update" => match heartbeat(peer, &value("port")) {
                Some(heartbeat) => RouteAnswer::Announce { heartbeat, answer: self.bans.clone() },
                None => RouteAnswer::Refused { status: 400, text: "port must be a number from 1 to 65535" },
            },
            _ => RouteAnswer::Refused { status: 400, text: "action must be update or absent" },
        }
    }
}

/// An announcement from `ip`. None if the port is not a decimal number from 1 to 65535.
pub fn heartbeat(ip: IpAddr, port: &str) -> Option<Heartbeat> {
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let address = Address::new(ip, port.parse().ok().filter(|_| digits)?)?;
    Heartbeat::new(address, Some(&CARD), NAME, HeartbeatKeys::of(NAME, address)).ok()
}

/// The list for launchers: `ip:port` lines, most recently proven first.
pub struct ServerLines;

impl Renderer for ServerLines {
    fn render(&self, view: &View) -> Body {
        self.render_tagged(view).0
    }

    /// A list with the same servers says the same, whichever was proven last.
    fn render_tagged(&self, view: &View) -> (Body, Option<Tag>) {
        let mut servers: Vec<_> = view.of_protocol(NAME).collect();
        servers.sort_by_key(|server| Reverse(server.proven_at_ms));
        let body = list::emit_servers(servers.iter().map(|server| server.address)).into();
        servers.sort_by_key(|server| server.address);
        let mut tag = Tag::default();
        servers.iter().for_each(|server| drop(writeln!(tag, "{}", server.address))); // to memory: cannot fail
        (body, Some(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_action_selects_the_answer() {
        let page = ListPage::new(true, &["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()]);
        let get = |query: &str| page.get("203.0.113.5".parse().unwrap(), query);
        assert!(matches!(get(""), RouteAnswer::List(_)) && matches!(get("action="), RouteAnswer::List(_)));
        let RouteAnswer::Announce { heartbeat, answer } = get("time=1&action=update&port=6969") else { panic!() };
        assert_eq!(heartbeat.address, "203.0.113.5:6969".parse().unwrap());
        assert_eq!(answer.body.whole(), b"192.0.2.*\n");
        for bad in ["action=update", "action=update&port=x", "action=delete"] {
            assert!(matches!(get(bad), RouteAnswer::Refused { status: 400, .. }), "{bad}");
        }
        let off = ListPage::new(false, &[]);
        assert!(matches!(off.get("203.0.113.5".parse().unwrap(), ""), RouteAnswer::Refused { status: 404, .. }));
    }

    #[test]
    fn launchers_get_the_most_recently_proven_first() {
        let server = |port: u16, proven_at_ms: u64, game: crate::model::Game| {
            let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
            let facts = crate::model::Facts::default();
            std::sync::Arc::new(crate::model::Server::new(
                address,
                game,
                crate::model::Proof::Query,
                proven_at_ms,
                &facts,
            ))
        };
        let own = || crate::model::Game::Own(NAME);
        let other = crate::model::Game::Own("tanks");
        let view = View::new(1, 0, vec![server(1, 10, own()), server(2, 30, own()), server(3, 40, other)]);
        let text = String::from_utf8(ServerLines.render(&view).to_vec()).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), ["203.0.113.5:2", "203.0.113.5:1"]);
    }

    #[test]
    fn ports_are_decimal_numbers() {
        let ip = "203.0.113.5".parse().unwrap();
        assert_eq!(heartbeat(ip, "6969").unwrap().address, "203.0.113.5:6969".parse().unwrap());
        for bad in ["", "0", "65536", "+1", " 1", "x"] {
            assert!(heartbeat(ip, bad).is_none(), "{bad}");
        }
    }
}

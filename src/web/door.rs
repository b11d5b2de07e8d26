//! Who may make this master act. An announcement lists the caller's own address, a test queries it, and a near client may have
//! internal names looked up: so the caller has to be who the connection says. It is not where
//!
//! - the connection comes from a reverse proxy that the operator forgot to configure, and
//! - a browser sends the request for a page that is not ours: of another origin, or under a name that somebody else owns and
//!   made to resolve to this master (DNS rebinding).
//!
//! Every route that acts asks here; those that only read do not.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Once};

use axum::http::{HeaderMap, StatusCode};
use tracing::warn;
use url::Host;

use super::Site;
use super::origin::{self, Sender};
use super::tls::Tls;
use crate::model::Reach;
use crate::net::client::Proxies;

/// Headers with which proxies say that they forward a request. Programs that are no proxies send none of them.
const FORWARDING: [&str; 8] = [
    "cf-connecting-ip",
    "forwarded",
    "true-client-ip",
    "via",
    "x-client-ip",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-real-ip",
];

/// A proxy that was probably forgotten in the configuration is reported once.
static REPORTED: Once = Once::new();

/// The forgotten proxy that a request came through, if it did: a near peer that forwards requests, and is not configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through(pub Option<IpAddr>);

impl Through {
    /// Looks at the names of a request's headers.
    pub fn of<'a>(proxies: &Proxies, peer: IpAddr, mut names: impl Iterator<Item = &'a str>) -> Through {
        let is_suspect = Reach::is_near(peer) && !proxies.contains(peer);
        let is_forwarding = |name: &str| FORWARDING.iter().any(|known| name.eq_ignore_ascii_case(known));
        let Some(header) = Some(()).filter(|()| is_suspect).and_then(|()| names.find(|name| is_forwarding(name)))
        else {
            return Through(None);
        };
        REPORTED.call_once(|| {
            warn!(
                "requests from {peer} have {header}, as a proxy's have, but proxy.networks does not have it: all clients of \
                 that proxy share one budget, and none of them can announce, test or look up anything. If it is your proxy: \
                 proxy.networks = [\"{peer}\"]"
            );
        });
        Through(Some(peer))
    }
}

/// What a request wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Announce,
    /// With a GET, as some games do.
    AnnounceByGet,
    Test,
}

/// Why a request may not have it done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    Proxy(IpAddr),
    OtherOrigin(Act),
    /// The page was reached under a name that is not ours; empty where there is none.
    OtherName(String),
}

impl Closed {
    pub const STATUS: StatusCode = StatusCode::FORBIDDEN;
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::Proxy(proxy) => write!(
                f,
                "this came through a proxy, {proxy}, that proxy.networks does not have, so nobody knows whose request it is: the \
                 operator of this master has to add it there"
            ),
            Closed::OtherOrigin(Act::Test) => f.write_str("a page of another origin cannot test a server"),
            Closed::OtherOrigin(_) => f.write_str("a page of another origin cannot announce a server"),
            Closed::OtherName(name) => write!(
                f,
                "a page can do this only under a name of this master, and \"{name}\" is none: if it is, the operator has to add \
                 it to web.hosts"
            ),
        }
    }
}

impl Site {
    /// Whether a request may have something done.
    pub fn admits(&self, act: Act, through: Through, headers: &HeaderMap) -> Result<(), Closed> {
        if let Through(Some(proxy)) = through {
            return Err(Closed::Proxy(proxy));
        }
        match origin::sender(headers, act == Act::AnnounceByGet) {
            Sender::Program => Ok(()),
            Sender::OtherPage => Err(Closed::OtherOrigin(act)),
            Sender::OwnPage(host) if self.has_name(host.as_ref()) => Ok(()),
            Sender::OwnPage(host) => Err(Closed::OtherName(host.map(|host| host.to_string()).unwrap_or_default())),
        }
    }

    /// Whether the near networks' own names are nobody's business but the sender's: a page of another site is not told them,
    /// although its visitor's browser asks from here.
    pub fn is_near(&self, client: IpAddr, headers: &HeaderMap) -> bool {
        // Lookups are requested by GET, with which a page's browser may send nothing but a Referer.
        Reach::is_near(client)
            && match origin::sender(headers, true) {
                Sender::Program => true,
                Sender::OwnPage(host) => self.has_name(host.as_ref()),
                Sender::OtherPage => false,
            }
    }

    /// Learns the names in a certificate.
    pub fn set_tls(&self, tls: Arc<Tls>) {
        let _ = self.tls.set(tls); // there is one
    }

    /// Whether this master is reached under a host. An address cannot be rebound, nor can localhost.
    fn has_name(&self, host: Option<&Host>) -> bool {
        match host {
            None => false,
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
            Some(Host::Domain(name)) => {
                let name = name.trim_end_matches('.');
                name == "localhost"
                    || self.pages.load().hosts.iter().any(|own| own == name)
                    || self.tls.get().is_some_and(|tls| tls.is_for(name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::Networks;

    #[test]
    fn a_near_peer_that_forwards_and_is_not_configured_is_a_forgotten_proxy() {
        let networks = |text: &str| Networks::new(&[text.parse().unwrap()]);
        let proxies =
            Proxies { networks: networks("10.0.0.1/32"), protocol: networks("10.0.0.2/32"), ..Proxies::default() };
        let through = |peer: &str, names: &[&'static str]| {
            Through::of(&proxies, peer.parse().unwrap(), names.iter().copied()).0.is_some()
        };
        for peer in
            ["127.0.0.1", "::1", "10.0.0.3", "192.168.1.1", "169.254.1.1", "fe80::1", "100.64.0.1", "::ffff:127.0.0.1"]
        {
            for name in FORWARDING {
                assert!(through(peer, &["host", name]), "{peer} {name}");
            }
            assert!(through(peer, &["X-Forwarded-For"]) && through(peer, &["Via"]), "{peer}");
            assert!(!through(peer, &["host", "origin", "x-forwarded"]), "{peer}");
        }
        for peer in ["10.0.0.1", "10.0.0.2", "9.9.9.9", "2606:4700::1"] {
            assert!(!through(peer, &["x-forwarded-for", "via"]), "{peer}");
        }
    }
}

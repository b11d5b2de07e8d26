//! Suggestions for mistyped addresses. Each is a complete address, ready to copy.

use std::net::Ipv6Addr;

use crate::protocols::{CARDS, Card, DIALECTS, Fetch};

/// Every known scheme, in the order in which messages list them.
pub fn schemes() -> Vec<String> {
    let is_page = |card: &&Card| matches!(card.fetch, Fetch::Http { .. });
    let dialects = DIALECTS.iter().map(|dialect| dialect.name.to_string());
    let games = CARDS.iter().map(|card| card.name.to_string()).chain(dialects);
    let pages =
        CARDS.iter().filter(is_page).flat_map(|card| ["http", "https"].map(|http| format!("{}+{http}", card.name)));
    games.chain(pages).chain(["http".into(), "https".into()]).collect()
}

/// The known scheme that was probably meant.
fn nearest_scheme(typed: &str) -> Option<String> {
    let typed = typed.to_ascii_lowercase();
    let near = |scheme: &String| strsim::osa_distance(&typed, scheme);
    schemes().into_iter().min_by_key(near).filter(|scheme| near(scheme) <= (typed.len() / 3).min(2))
}

/// Error for an unknown scheme.
pub fn unknown_scheme(scheme: &str, rest: &str) -> String {
    if let Some(card) = scheme.split('+').next().and_then(|name| CARDS.iter().find(|card| card.name == name)) {
        let host = rest.split('/').next().unwrap_or_default();
        return format!("unknown scheme `{scheme}`; write {}://{host}", card.name);
    }
    match nearest_scheme(scheme) {
        Some(near) => format!("unknown scheme `{scheme}`; did you mean {near}://{rest}?"),
        None => format!("unknown scheme `{scheme}`; the schemes are {}", schemes().join(", ")),
    }
}

/// Error for an address without `://`.
pub fn no_scheme(text: &str) -> String {
    if text.is_empty() {
        let example = CARDS.iter().find(|card| card.query.is_some()).map_or("http", |card| card.name);
        return format!("the address is empty; write for example {example}://HOST");
    }
    if let Some((typed, rest)) = text.split_once(':')
        && let host = rest.trim_start_matches('/')
        // `netpanzer:3030` is a host named like a game, with a port.
        && host.parse::<u16>().is_err()
        && let Some(near) = nearest_scheme(typed)
    {
        return format!("`{text}` has no `//` after the scheme; write {near}://{host}");
    }
    let host = text.parse::<Ipv6Addr>().map_or_else(|_| text.to_string(), |ip| format!("[{ip}]"));
    let port = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    match port.and_then(usual_scheme) {
        Some(scheme) => format!("`{text}` has no scheme; write {scheme}://{host}"),
        None => {
            let games: Vec<_> = CARDS.iter().map(|card| format!("{}://{host}", card.name)).collect();
            format!("`{text}` has no scheme; write {}, or http://{host} for a Rallypoint", games.join(", "))
        }
    }
}

/// The scheme whose default port this is.
fn usual_scheme(port: u16) -> Option<&'static str> {
    let card = CARDS.iter().find(|card| card.game_port == port || card.master_port == Some(port));
    card.map(|card| card.name).or(match port {
        80 | 8080 => Some("http"),
        443 | 8443 => Some("https"),
        _ => None,
    })
}

/// Error for an IPv6 address without brackets.
pub fn brackets(authority: &str) -> String {
    let example = match authority.rsplit_once(':') {
        // The last group may be a port or part of the address.
        Some((ip, port)) if port.parse::<u16>().is_ok() && ip.parse::<Ipv6Addr>().is_ok() => {
            format!("[{authority}], or [{ip}]:{port} with a port")
        }
        _ if authority.parse::<Ipv6Addr>().is_ok() => format!("[{authority}]"),
        _ => "[2001:db8::1]:3030".into(),
    };
    format!("write IPv6 addresses in brackets: {example}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_can_be_copied() {
        for (text, says) in [
            ("netpanzer:127.0.0.1", "write netpanzer://127.0.0.1"),
            ("netpanzer:127.0.0.1:3030", "write netpanzer://127.0.0.1:3030"),
            ("netpanser:/127.0.0.1", "write netpanzer://127.0.0.1"),
            ("http:/master.example", "write http://master.example"),
            ("127.0.0.1:3030", "write netpanzer://127.0.0.1:3030"),
            ("127.0.0.1:27790", "write iceball://127.0.0.1:27790"),
            ("localhost:8080", "write http://localhost:8080"),
            ("hyperbol:20200", "write hyperbol://hyperbol:20200"),
            ("127.0.0.1", "write iceball://127.0.0.1, netpanzer://127.0.0.1,"),
            ("::1", "netpanzer://[::1],"),
            ("[::1]:3030", "write netpanzer://[::1]:3030"),
            ("", "write for example netpanzer://HOST"),
        ] {
            let hint = no_scheme(text);
            assert!(hint.contains(says), "{text}: {hint}");
        }
        for (scheme, says) in [
            ("netpanser", "did you mean netpanzer://host:1?"),
            ("NetPanser", "did you mean netpanzer://host:1?"),
            ("htps", "did you mean http"),
            ("bloodmaster+http", "did you mean bloodmasters+http://host:1?"),
            ("netpanzer+http", "unknown scheme `netpanzer+http`; write netpanzer://host:1"),
            ("doom", "the schemes are iceball, netpanzer, hyperbol, bloodmasters,"),
        ] {
            let hint = unknown_scheme(scheme, "host:1");
            assert!(hint.contains(says), "{scheme}: {hint}");
        }
        assert!(
            brackets("2001:db8::1").ends_with("brackets: [2001:db8::1]")
                || brackets("2001:db8::1").contains("with a port")
        );
        assert!(brackets("fe80::abcd").ends_with("[fe80::abcd]"));
        assert!(brackets("::1:3030").contains("[::1]:3030 with a port"));
    }
}

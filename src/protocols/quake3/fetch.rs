//! Fetching lists from a master: `quake3://HOST/GAME?protocol=71`, one request for each game and protocol number.

use super::packets;
use super::tags::Tags;
use super::wire::{GAME_BYTES_MAX, GetServers};
use crate::protocols::fetch::{DatagramFetch, Packet, Request};

/// Games with a protocol number that no tag stands for.
const MORE: [(&str, i32); 3] = [("Quake3Arena", 71), ("Xonotic", 3), ("Nexuiz", 3)];

/// More requests would take too long, one after the other.
const REQUESTS_MAX: usize = 64;

pub struct ListFetch;

impl DatagramFetch for ListFetch {
    fn path_help(&self) -> &'static str {
        "[/GAME][?protocol=NUMBER]"
    }

    fn requests(&self, path: &str, query: &str, games: &[String]) -> Result<Vec<Request>, String> {
        let mut protocols = Vec::new();
        let mut extended = true;
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "protocol" => protocols.push(protocol_number(&value)?),
                // For masters that know only the old request.
                "plain" => extended = false,
                _ => return Err(format!("unknown `{name}`: write ?protocol=NUMBER")),
            }
        }
        let in_path = Some((path, None)).filter(|(path, _)| !path.is_empty());
        let mut named: Vec<(&str, Option<i32>)> = in_path.into_iter().collect();
        for game in games {
            named.push(match game.rsplit_once(':') {
                Some((game, number)) => (game, Some(protocol_number(number)?)),
                None => (game, None),
            });
        }
        let known = known();
        let mut lists: Vec<(&str, i32)> = Vec::new();
        for (game, own) in &named {
            check(game)?;
            let usual = known.iter().filter(|(name, _)| **name == **game).map(|(_, protocol)| *protocol);
            let wanted: Vec<i32> = match own {
                Some(number) => vec![*number],
                None if protocols.is_empty() => usual.collect(),
                None => protocols.clone(),
            };
            if wanted.is_empty() {
                let example = if *game == path { format!("/{game}?protocol=NUMBER") } else { format!("{game}:NUMBER") };
                return Err(format!("`{game}` needs a protocol number: {example}"));
            }
            lists.extend(wanted.into_iter().map(|protocol| (*game, protocol)));
        }
        if named.is_empty() {
            let is_wanted = |protocol: &i32| protocols.is_empty() || protocols.contains(protocol);
            lists.extend(known.iter().filter(|(_, protocol)| is_wanted(protocol)).map(|(name, n)| (&**name, *n)));
            if lists.is_empty() {
                return Err("this protocol number needs a game: /GAME?protocol=NUMBER".into());
            }
        }
        lists.dedup();
        if lists.len() > REQUESTS_MAX {
            return Err(format!("more than {REQUESTS_MAX} games and protocol numbers at once"));
        }
        Ok(lists.into_iter().map(|(game, protocol)| request(extended, game, protocol)).collect())
    }

    fn read(&self, bytes: &[u8]) -> Option<Packet> {
        packets::decode(bytes)
    }
}

fn protocol_number(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a protocol number"))
}

/// Every game and protocol number that is asked for where none is named.
fn known() -> Vec<(Box<str>, i32)> {
    let tags = Tags::default();
    let more = MORE.iter().map(|(game, protocol)| (*game, *protocol));
    tags.lists().chain(more).map(|(game, protocol)| (game.into(), protocol)).collect()
}

fn check(game: &str) -> Result<(), String> {
    let is_name = (1..=GAME_BYTES_MAX).contains(&game.len()) && game.bytes().all(|byte| byte.is_ascii_graphic());
    if is_name { Ok(()) } else { Err(format!("`{game}` is not the name of a game")) }
}

fn request(extended: bool, game: &str, protocol: i32) -> Request {
    let mut bytes = Vec::new();
    let list = GetServers {
        extended,
        game: Some(game.as_bytes()),
        protocol,
        empty: true,
        full: true,
        game_type: None,
        ipv4: true,
        ipv6: extended,
    };
    list.emit(&mut bytes);
    Request { bytes, game: Some(game.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, query: &str, games: &[&str]) -> Result<Vec<String>, String> {
        let games: Vec<String> = games.iter().map(|game| game.to_string()).collect();
        let requests = ListFetch.requests(path, query, &games)?;
        Ok(requests.iter().map(|request| String::from_utf8_lossy(&request.bytes[4..]).into_owned()).collect())
    }

    #[test]
    fn one_game() {
        assert_eq!(asked("Xonotic", "protocol=3", &[]).unwrap(), ["getserversExt Xonotic 3 empty full"]);
        assert_eq!(asked("Xonotic", "", &[]).unwrap(), ["getserversExt Xonotic 3 empty full"]);
        assert_eq!(asked("x", "protocol=68&plain", &[]).unwrap(), ["getservers x 68 empty full"]);
        assert_eq!(asked("Quake3Arena", "", &[]).unwrap().len(), 4);
        for (path, query) in [("Other", ""), ("a b", "protocol=1"), ("x", "protocol=y"), ("x", "proto=1")] {
            assert!(asked(path, query, &[]).is_err(), "{path}?{query}");
        }
    }

    #[test]
    fn the_number_of_requests_has_a_bound() {
        let asked = |count: usize| {
            let query: Vec<String> = (0..count).map(|protocol| format!("protocol={protocol}")).collect();
            asked("x", &query.join("&"), &[]).map(|requests| requests.len())
        };
        assert_eq!(asked(REQUESTS_MAX), Ok(REQUESTS_MAX));
        assert!(asked(REQUESTS_MAX + 1).unwrap_err().contains("64") && asked(1_000).is_err());
    }

    #[test]
    fn reads_packets_and_says_what_a_path_may_be() {
        let empty = packets::encode(true, [], 1).remove(0);
        assert_eq!(ListFetch.read(&empty), Some(Packet { servers: Vec::new(), end: true }));
        assert!(ListFetch.path_help().contains("/GAME") && ListFetch.path_help().contains("?protocol="));
    }

    #[test]
    fn every_game_of_the_table_and_those_that_are_named() {
        assert_eq!(asked("", "", &[]).unwrap().len(), 13);
        assert_eq!(asked("", "protocol=71", &[]).unwrap(), ["getserversExt Quake3Arena 71 empty full"]);
        assert_eq!(
            asked("", "protocol=71", &["a", "b"]).unwrap(),
            ["getserversExt a 71 empty full", "getserversExt b 71 empty full"]
        );
        let two = ["getserversExt Xonotic 3 empty full", "getserversExt unv 86 empty full"];
        assert_eq!(asked("", "", &["Xonotic", "unv:86"]).unwrap(), two);
        assert_eq!(asked("Xonotic", "protocol=3", &["unv:86"]).unwrap(), two);
        assert_eq!(asked("", "", &["unv:x"]).unwrap_err(), "`x` is not a protocol number");
        assert_eq!(asked("", "", &["unv"]).unwrap_err(), "`unv` needs a protocol number: unv:NUMBER");
        assert!(asked("", "", &[":3"]).is_err());
        assert!(asked("", "protocol=12345", &[]).unwrap_err().contains("game"));
        let requests = ListFetch.requests("", "", &[]).unwrap();
        assert!(requests.iter().any(|request| request.game.as_deref() == Some("wolfmp")));
    }
}

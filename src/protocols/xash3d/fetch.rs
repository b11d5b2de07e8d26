//! Fetching a list: one request for each gamedir, with a key that all packets of its answer repeat.

use super::packets;
use super::wire::{FIELD_BYTES_MAX, Version, WORLD, Wanted};
use crate::protocols::fetch::{DatagramFetch, Packet, Request};

/// Tells a list with a key from one without. It need not be secret: each request has its own port.
const KEY: u32 = 0x7261_6c79;
/// What masters that have a gate are told: a current engine.
const VERSION: Version = Version { major: 0, minor: 21, patch: 0 };
const BUILD: u32 = 9_999;

pub struct ListFetch;

impl DatagramFetch for ListFetch {
    fn path_help(&self) -> &'static str {
        "[/GAMEDIR][?region=NUMBER&map=MAP]"
    }

    fn requests(&self, path: &str, query: &str, games: &[String]) -> Result<Vec<Request>, String> {
        let mut region = WORLD;
        let mut map = None;
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "region" => {
                    let number = value.parse().ok().filter(|number| *number <= 7 || *number == WORLD);
                    region = number.ok_or_else(|| format!("`{value}` is not a region: write 0 to 7, or 255"))?;
                }
                "map" => map = Some(checked(&value)?.to_string()),
                _ => return Err(format!("unknown `{name}`: write ?region=NUMBER or ?map=MAP")),
            }
        }
        let in_path = Some(path).filter(|path| !path.is_empty());
        // The card's own name stands for all of its servers.
        let named = games.iter().map(String::as_str).filter(|game| *game != super::NAME);
        let gamedirs: Vec<&str> = in_path.into_iter().chain(named).map(checked).collect::<Result<_, _>>()?;
        let request = |gamedir: Option<&str>| {
            let wanted = Wanted {
                region,
                gamedir: gamedir.map(str::as_bytes),
                map: map.as_deref().map(str::as_bytes),
                version: Some(VERSION),
                build: Some(BUILD),
                key: Some(KEY),
                ..Wanted::default()
            };
            let mut bytes = Vec::new();
            wanted.emit(&mut bytes);
            Request { bytes, game: None }
        };
        match gamedirs.is_empty() {
            true => Ok(vec![request(None)]),
            false => Ok(gamedirs.into_iter().map(|gamedir| request(Some(gamedir))).collect()),
        }
    }

    fn read(&self, bytes: &[u8]) -> Option<Packet> {
        packets::decode(bytes, KEY)
    }
}

/// A text that stands between backslashes.
fn checked(text: &str) -> Result<&str, String> {
    let is_value = (1..=FIELD_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_value && !text.contains('\\') {
        Ok(text)
    } else {
        Err(format!("`{text}` is not the name of a gamedir or map"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, query: &str, games: &[&str]) -> Result<Vec<String>, String> {
        let games: Vec<String> = games.iter().map(|game| game.to_string()).collect();
        let requests = ListFetch.requests(path, query, &games)?;
        Ok(requests.iter().map(|request| request.bytes.escape_ascii().to_string()).collect())
    }

    #[test]
    fn reads_lists_with_its_key_and_says_what_a_path_is() {
        let server: crate::model::Address = "203.0.113.5:27015".parse().unwrap();
        let packets = packets::encode(false, [server], 1);
        assert_eq!(ListFetch.read(&packets[0]).map(|packet| packet.servers), Some(vec![server]));
        assert_eq!(ListFetch.read(b"nonsense"), None);
        assert!(ListFetch.path_help().starts_with("[/GAMEDIR]"));
    }

    #[test]
    fn all_servers_or_those_of_a_gamedir() {
        let end = r"\\clver\\0.21\\buildnum\\9999\\key\\72616c79\x00";
        assert_eq!(asked("", "", &[]).unwrap(), [format!(r"1\xff0.0.0.0:0\x00{end}")]);
        assert_eq!(asked("", "", &["xash3d"]).unwrap(), asked("", "", &[]).unwrap());
        assert_eq!(asked("valve", "", &[]).unwrap(), [format!(r"1\xff0.0.0.0:0\x00\\gamedir\\valve{end}")]);
        assert_eq!(
            asked("", "region=3&map=de_dust", &["cstrike"]).unwrap(),
            [format!(r"1\x030.0.0.0:0\x00\\gamedir\\cstrike\\map\\de_dust{end}")]
        );
        assert_eq!(asked("valve", "", &["cstrike"]).unwrap().len(), 2);
        for (path, query) in [("a b", ""), (r"a\b", ""), ("", "region=8"), ("", "map="), ("", "x=1")] {
            assert!(asked(path, query, &[]).is_err(), "{path}?{query}");
        }
    }
}

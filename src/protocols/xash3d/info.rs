//! The facts of an announcement and of an answer to `info`, and what lists are filtered by.
//!
//! The gamedir (`valve`, `cstrike`) is what players look for: it is the mode, and a rule, too.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use super::NAME;
use super::wire::{Add, Flags, Info};
use crate::model::{Address, Details, Facts, GameRules, HeartbeatKeys, Server, VersionText};
use crate::protocols::join::{Join, plain_word};
use crate::text;

/// The keys of an announcement that lists are filtered by, beside the map and the players, which answers keep current.
const GAMEDIR_KEY: &[u8] = b"gamedir";
const PROTOCOL_KEY: &[u8] = b"protocol";
const REGION_KEY: &[u8] = b"region";
const FLAGS_KEY: &[u8] = b"flags";

/// The flags that keys have. The others follow from the players.
const KEPT: u16 = Flags::DEDICATED | Flags::SECURE | Flags::PASSWORD | Flags::NAT | Flags::LAN | Flags::BOTS;

/// What a server is listed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing<'a> {
    pub gamedir: &'a [u8],
    pub protocol: u8,
    pub region: u8,
    pub flags: Flags,
}

pub fn keys(address: Address, add: &Add<'_>) -> HeartbeatKeys {
    let mut digits = [(); 4].map(|()| itoa::Buffer::new());
    let [port, protocol, region, flags] = &mut digits;
    HeartbeatKeys::exactly(&[
        (b"gamename", NAME.as_bytes()),
        (b"port", port.format(address.port()).as_bytes()),
        (GAMEDIR_KEY, add.gamedir),
        (PROTOCOL_KEY, protocol.format(add.protocol).as_bytes()),
        (REGION_KEY, region.format(add.region).as_bytes()),
        (FLAGS_KEY, flags.format(add.flags.0 & KEPT).as_bytes()),
    ])
}

impl<'a> Listing<'a> {
    /// As the server announced itself. One that came in another way is listed by what it says, in all the world.
    pub fn of(server: &'a Server) -> Listing<'a> {
        let key = |key: &[u8]| server.keys.as_ref().and_then(|keys| keys.get(key));
        let number = |name: &[u8]| str::from_utf8(key(name)?).ok()?.parse::<u16>().ok();
        let mut flags = Flags(number(FLAGS_KEY).unwrap_or_else(|| said_flags(server)));
        flags.set(Flags::EMPTY, server.players_current == Some(0));
        flags.set(Flags::FULL, server.players_max.is_some() && server.players_current >= server.players_max);
        let small = |name: &[u8]| number(name).and_then(|number| u8::try_from(number).ok());
        Listing {
            gamedir: key(GAMEDIR_KEY).unwrap_or(server.texts.mode().as_bytes()),
            protocol: small(PROTOCOL_KEY).or_else(|| rule(server, "protocol")?.parse().ok()).unwrap_or(0),
            region: small(REGION_KEY).unwrap_or(super::wire::WORLD),
            flags,
        }
    }
}

fn said_flags(server: &Server) -> u16 {
    let mut flags = Flags::default();
    flags.set(Flags::PASSWORD, server.password == Some(true));
    flags.set(Flags::DEDICATED, rule(server, "type") == Some("dedicated"));
    flags.0
}

fn rule<'a>(server: &'a Server, name: &str) -> Option<&'a str> {
    server.rules().get(name)
}

/// The facts of an announcement. Only an answer has the name.
pub fn announced<'a>(add: &Add<'a>) -> Facts<'a> {
    let kind = match add.kind {
        b"d" => "dedicated",
        b"l" => "listen",
        b"p" => "proxy",
        _ => "",
    };
    let os = match add.os {
        b"l" => "Linux",
        b"w" => "Windows",
        b"m" => "macOS",
        _ => "",
    };
    let is = |flag: u16| if add.flags.has(flag) { "1" } else { "" };
    let gamedir = text::clean(add.gamedir);
    let (mut protocol, mut bots) = (itoa::Buffer::new(), itoa::Buffer::new());
    let rules = [
        ("gamedir", &*gamedir),
        ("protocol", protocol.format(add.protocol)),
        ("type", kind),
        ("os", os),
        ("bots", if add.bots > 0 { bots.format(add.bots) } else { "" }),
        ("secure", is(Flags::SECURE)),
        ("lan", is(Flags::LAN)),
        ("nat", is(Flags::NAT)),
    ];
    let details = details(&rules);
    let mut version = VersionText::new();
    let _ = write!(version, "{}", add.version); // three numbers of a byte each: they fit
    Facts {
        mode: gamedir,
        map: text::clean(add.map),
        version,
        players_current: Some(add.players.into()),
        players_max: Some(add.max.into()),
        password: Some(add.flags.has(Flags::PASSWORD)),
        details: Some(details),
        ..Facts::default()
    }
}

/// The facts of an answer.
pub fn answered<'a>(info: &Info<'a>) -> Facts<'a> {
    let is = |value: bool| if value { "1" } else { "" };
    let gamedir = text::clean(info.gamedir);
    let mut protocol = itoa::Buffer::new();
    let rules = [
        ("gamedir", &*gamedir),
        ("protocol", protocol.format(info.protocol)),
        ("type", if info.dedicated { "dedicated" } else { "listen" }),
        ("deathmatch", is(info.deathmatch)),
        ("teamplay", is(info.team)),
        ("coop", is(info.coop)),
    ];
    let details = details(&rules);
    Facts {
        name: without_colours(text::clean(info.host)),
        mode: gamedir,
        map: text::clean(info.map),
        players_current: Some(info.players.into()),
        players_max: Some(info.max.into()),
        password: Some(info.password),
        details: Some(details),
        ..Facts::default()
    }
}

/// Those that are said. There are few, each with a name of its own, and the longest, the gamedir, is bounded where it is parsed.
fn details(rules: &[(&str, &str)]) -> Arc<Details> {
    let said = rules.iter().copied().filter(|(_, value)| !value.is_empty());
    Arc::new(Details { players: Vec::new(), rules: GameRules::exactly(said) })
}

/// Text without its colour codes, `^` and a digit.
fn without_colours(text: Cow<'_, str>) -> Cow<'_, str> {
    let mut parts = text.split('^');
    let first = parts.next().unwrap_or_default();
    if first.len() == text.len() {
        return text;
    }
    let mut out = first.to_string();
    for part in parts {
        match part.strip_prefix(|c: char| c.is_ascii_digit()) {
            Some(rest) => out.push_str(rest),
            None => {
                out.push('^');
                out.push_str(part);
            }
        }
    }
    Cow::Owned(out)
}

/// How players join: the engine needs the folder of the game, which the mode names.
pub fn join(server: &Server) -> Join {
    let command = plain_word(server.texts.mode()).map(|gamedir| format!("xash3d -game {gamedir} +connect {{}}"));
    Join::by(None, command.as_deref(), server.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Game, Proof};
    use crate::protocols::xash3d::wire::{ToMaster, WORLD};

    const ADD: &[u8] = br"0
\protocol\49\challenge\7\players\3\max\8\gamedir\cstrike\map\de_dust\type\d\os\l\version\0.21.1\region\3\bots\2\password\1\secure\1\lan\0\nat\1";

    fn add() -> Add<'static> {
        let Ok(ToMaster::Add(add)) = ToMaster::parse(ADD) else { panic!() };
        add
    }

    fn server(facts: &Facts<'_>) -> Server {
        let address = "203.0.113.5:27015".parse().unwrap();
        Server::new(address, Game::Own(NAME), Proof::Cookie, 1, facts)
    }

    #[test]
    fn what_an_announcement_says() {
        let facts = announced(&add());
        assert_eq!((&*facts.name, &*facts.mode, &*facts.map, &*facts.version), ("", "cstrike", "de_dust", "0.21.1"));
        assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(3), Some(8), Some(true)));
        let rules: Vec<_> = facts.details.as_ref().unwrap().rules.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let expected = ["gamedir=cstrike", "protocol=49", "type=dedicated", "os=Linux", "bots=2", "secure=1", "nat=1"];
        assert_eq!(rules, expected);
    }

    #[test]
    fn kinds_and_systems_have_names_and_what_is_not_so_is_left_out() {
        for (kind, os, expected) in [
            (&b"d"[..], &b"l"[..], [Some("dedicated"), Some("Linux")]),
            (b"l", b"w", [Some("listen"), Some("Windows")]),
            (b"p", b"m", [Some("proxy"), Some("macOS")]),
            (b"x", b"", [None, None]),
        ] {
            let facts = announced(&Add { kind, os, ..Add::default() });
            assert_eq!(["type", "os"].map(|rule| facts.rule(rule)), expected);
            assert_eq!(["bots", "secure", "lan", "nat"].map(|rule| facts.rule(rule)), [None; 4]);
        }
    }

    #[test]
    fn what_an_answer_says() {
        let answer = br"info
\p\49\map\crossfire\dm\1\team\0\coop\0\numcl\1\maxcl\8\gamedir\solo\password\0\dedicated\1\host\^1Loop^7 ^X^";
        let bytes = [b"\xff\xff\xff\xff".as_slice(), answer].concat();
        let info = Info::parse(&bytes).unwrap();
        let facts = answered(&info);
        assert_eq!((&*facts.name, &*facts.mode, &*facts.map), ("Loop ^X^", "solo", "crossfire"));
        assert_eq!((facts.players_current, facts.players_max, facts.password), (Some(1), Some(8), Some(false)));
        assert_eq!(
            (facts.rule("type"), facts.rule("deathmatch"), facts.rule("coop")),
            (Some("dedicated"), Some("1"), None)
        );
    }

    #[test]
    fn a_server_is_listed_by_its_announcement_and_its_newest_players() {
        let facts = Facts { players_current: Some(8), players_max: Some(8), ..announced(&add()) };
        let announced = server(&facts);
        let announced = Server { keys: Some(Arc::new(keys(announced.address, &add()))), ..announced };
        let listing = Listing::of(&announced);
        assert_eq!((listing.gamedir, listing.protocol, listing.region), (&b"cstrike"[..], 49, 3));
        let full = Flags::DEDICATED | Flags::SECURE | Flags::PASSWORD | Flags::NAT | Flags::BOTS | Flags::FULL;
        assert_eq!(listing.flags, Flags(full));

        let info = Info { protocol: 48, gamedir: b"valve", max: 8, dedicated: true, ..Info::default() };
        let named = server(&answered(&info));
        let flags = Flags(Flags::DEDICATED | Flags::EMPTY);
        assert_eq!(Listing::of(&named), Listing { gamedir: b"valve", protocol: 48, region: WORLD, flags });
        let closed = server(&answered(&Info { password: true, dedicated: false, ..info }));
        assert_eq!(Listing::of(&closed).flags, Flags(Flags::PASSWORD | Flags::EMPTY));
    }
}

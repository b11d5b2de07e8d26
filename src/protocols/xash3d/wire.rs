//! Xash3D's datagrams. Numbers are little endian; what does not parse gets silence.
//!
//! | message | from → to | form |
//! |---|---|---|
//! | challenge | game → master | `q\xff`, newer engines + a u32 of their own |
//! | challenge answer | master → game | `FF FF FF FF s\n` + our u32, + the game's u32 when it sent one |
//! | add | game → master | `0\n` + `\key\value…`, with or without `\n` at the end: the engine forgets it |
//! | remove | game → master | `b\n` |
//! | query | client → master | `1` + region u8 + the last address as text + NUL + `\key\value…` + NUL; the last NUL is optional |
//! | list | master → client | see [`packets`](super::packets) |
//! | connect | master → game | `FF FF FF FF c ` + the client's `IP:PORT`, to open a path through NAT |
//! | info | anyone → game | `FF FF FF FF info ` + the protocol number |
//! | info answer | game → anyone | `FF FF FF FF info\n` + `\key\value…`, or a name and `: wrong version\n` |

use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::str::FromStr;

use arrayvec::ArrayString;

use crate::bytes::{Reader, until_nul};

/// Begins every message to and from clients, and every answer of a master.
pub const HEADER: [u8; 4] = [0xff; 4];
const CHALLENGE: &[u8] = b"q\xff";
const CHALLENGE_ANSWER: &[u8] = b"s\n";
const ADD: &[u8] = b"0\n";
const REMOVE: &[u8] = b"b\n";
const QUERY: &[u8] = b"1";
const INFO: &[u8] = b"info ";
const INFO_ANSWER: &[u8] = b"info\n";
const CONNECT: &[u8] = b"c ";
/// The end of a game's answer to another protocol number than its own.
const WRONG_VERSION: &[u8] = b": wrong version\n";

/// The newest protocol, and the one before.
pub const PROTOCOL: u8 = 49;
pub const OLD_PROTOCOL: u8 = 48;

/// The region of servers anywhere. Others are 0 to 7.
pub const WORLD: u8 = 255;
const REGION_MAX: u8 = 7;

/// A server with a longer gamedir or map is not listed. The engine has room for 63 bytes.
pub const FIELD_BYTES_MAX: usize = 63;

/// What a master may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToMaster<'a> {
    Challenge { number: Option<u32> },
    Add(Add<'a>),
    Remove,
    Query(Wanted<'a>),
    Info { protocol: u8 },
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    UnknownMessage,
    /// A challenge request with neither 0 nor 4 bytes behind its name.
    ChallengeLength,
    /// Not `\key\value…`, or a NUL inside.
    NoPairs,
    /// A number, flag or region that is none.
    BadValue,
    /// An announcement without a challenge.
    NoChallenge,
    /// A gamedir or map that is too long.
    TooLong,
    /// A query without a region or filter, or with a bad value.
    BadQuery,
    /// A game that speaks another protocol number.
    WrongVersion,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireError::UnknownMessage => "unknown message",
            WireError::ChallengeLength => "the challenge request has the wrong length",
            WireError::NoPairs => "keys and values are missing",
            WireError::BadValue => "a value is not the number that it should be",
            WireError::NoChallenge => "the challenge is missing",
            WireError::TooLong => "the gamedir or the map is too long",
            WireError::BadQuery => "the request for a list is malformed",
            WireError::WrongVersion => "it speaks another protocol version",
        })
    }
}

impl<'a> ToMaster<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<ToMaster<'a>, WireError> {
        if let Some(rest) = bytes.strip_prefix(CHALLENGE) {
            return challenge_request(rest);
        }
        if let Some(rest) = bytes.strip_prefix(ADD) {
            return Add::parse(rest).map(ToMaster::Add);
        }
        if bytes == REMOVE {
            return Ok(ToMaster::Remove);
        }
        if let Some(rest) = bytes.strip_prefix(QUERY) {
            return Wanted::parse(rest).map(ToMaster::Query).ok_or(WireError::BadQuery);
        }
        info_request(bytes).map(|protocol| ToMaster::Info { protocol }).ok_or(WireError::UnknownMessage)
    }
}

fn challenge_request<'a>(rest: &[u8]) -> Result<ToMaster<'a>, WireError> {
    let number = match rest {
        [] => None,
        _ => Some(u32::from_le_bytes(rest.try_into().map_err(|_| WireError::ChallengeLength)?)),
    };
    Ok(ToMaster::Challenge { number })
}

/// The protocol number of a question to a game. A line end or NUL behind it is no part of it.
pub fn info_request(bytes: &[u8]) -> Option<u8> {
    number(until_nul(bytes.strip_prefix(&HEADER)?.strip_prefix(INFO)?).trim_ascii_end())
}

/// A game's request for a challenge.
pub fn request_challenge(number: Option<u32>, out: &mut impl Extend<u8>) {
    out.extend(CHALLENGE.iter().copied());
    out.extend(number.into_iter().flat_map(u32::to_le_bytes));
}

/// The master's answer.
pub fn answer_challenge(challenge: u32, number: Option<u32>, out: &mut impl Extend<u8>) {
    out.extend(HEADER);
    out.extend(CHALLENGE_ANSWER.iter().copied());
    out.extend(challenge.to_le_bytes());
    out.extend(number.into_iter().flat_map(u32::to_le_bytes));
}

/// The challenge in a master's answer, and the game's own number.
pub fn challenge_answer(bytes: &[u8]) -> Option<(u32, Option<u32>)> {
    let mut fields = Reader::new(bytes.strip_prefix(&HEADER)?.strip_prefix(CHALLENGE_ANSWER)?);
    let challenge = fields.u32_le()?;
    let number = fields.u32_le();
    fields.rest().is_empty().then_some((challenge, number))
}

/// A question to a game.
pub fn ask_info(protocol: u8, out: &mut impl Extend<u8>) {
    out.extend(HEADER);
    out.extend(INFO.iter().copied());
    extend_with(out, protocol);
}

/// What a server behind NAT is sent, so that it opens a path to the client.
pub fn connect(client: SocketAddr, out: &mut impl Extend<u8>) {
    out.extend(HEADER);
    out.extend(CONNECT.iter().copied());
    extend_with(out, client);
}

/// Text without an allocation. The longest is an IPv6 address with a port, 47 bytes.
fn extend_with(out: &mut impl Extend<u8>, text: impl fmt::Display) {
    let mut buffer = ArrayString::<64>::new();
    let _ = write!(buffer, "{text}");
    out.extend(buffer.bytes());
}

/// Keys and values of `\key\value\key\value…`. There is no escaping, and a key without a value is left out.
pub fn pairs(text: &[u8]) -> Option<impl Iterator<Item = (&[u8], &[u8])>> {
    let rest = if text.is_empty() { text } else { text.strip_prefix(b"\\")? };
    let mut tokens = rest.split(|&byte| byte == b'\\');
    Some(std::iter::from_fn(move || Some((tokens.next()?, tokens.next()?))))
}

fn number<T: FromStr>(text: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(text).ok()?;
    text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.parse().ok())?
}

fn flag(text: &[u8]) -> Option<bool> {
    match text {
        b"0" => Some(false),
        b"1" => Some(true),
        _ => None,
    }
}

fn region(number: u8) -> Option<u8> {
    (number <= REGION_MAX || number == WORLD).then_some(number)
}

/// A version of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

impl Version {
    /// Engines before this one speak only the old protocol.
    pub const SPEAKS_NEW: Version = Version { major: 0, minor: 20, patch: 0 };

    fn parse(text: &[u8]) -> Option<Version> {
        let mut parts = text.splitn(3, |&byte| byte == b'.');
        let mut next = || parts.next().map_or(Some(0), number);
        Some(Version { major: next()?, minor: next()?, patch: next()? })
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Version, ()> {
        Version::parse(text.as_bytes()).ok_or(())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { major, minor, patch } = self;
        write!(f, "{major}.{minor}")?;
        if *patch > 0 { write!(f, ".{patch}") } else { Ok(()) }
    }
}

/// What a server is, one bit each. The same bits say what a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    pub const DEDICATED: u16 = 1;
    pub const SECURE: u16 = 2;
    pub const PASSWORD: u16 = 4;
    /// It has no players.
    pub const EMPTY: u16 = 8;
    pub const FULL: u16 = 16;
    pub const NAT: u16 = 32;
    pub const LAN: u16 = 64;
    pub const BOTS: u16 = 128;

    /// Their names in a filter. `noplayers` is another name of `empty`.
    pub const NAMES: [(&'static str, u16); 8] = [
        ("dedicated", Flags::DEDICATED),
        ("secure", Flags::SECURE),
        ("password", Flags::PASSWORD),
        ("empty", Flags::EMPTY),
        ("full", Flags::FULL),
        ("nat", Flags::NAT),
        ("lan", Flags::LAN),
        ("bots", Flags::BOTS),
    ];

    pub fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }

    pub fn set(&mut self, flag: u16, value: bool) {
        if value { self.0 |= flag } else { self.0 &= !flag }
    }
}

/// A server's announcement. Of a key given twice the last counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Add<'a> {
    pub challenge: u32,
    pub protocol: u8,
    pub players: u8,
    pub max: u8,
    pub bots: u8,
    pub region: u8,
    pub gamedir: &'a [u8],
    pub map: &'a [u8],
    /// `d` dedicated, `l` listen, `p` proxy.
    pub kind: &'a [u8],
    /// `l`, `w` or `m`.
    pub os: &'a [u8],
    /// 0.0 where it does not parse.
    pub version: Version,
    pub flags: Flags,
}

impl<'a> Add<'a> {
    fn parse(text: &'a [u8]) -> Result<Add<'a>, WireError> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        if text.contains(&0) || text.contains(&b'\n') {
            return Err(WireError::NoPairs);
        }
        let mut add = Add::default();
        let mut challenge = None;
        for (key, value) in pairs(text).ok_or(WireError::NoPairs)? {
            if key == b"challenge" {
                challenge = Some(number(value).ok_or(WireError::BadValue)?);
            } else {
                add.set(key, value).ok_or(WireError::BadValue)?;
            }
        }
        let challenge = challenge.ok_or(WireError::NoChallenge)?;
        if add.gamedir.len().max(add.map.len()) > FIELD_BYTES_MAX {
            return Err(WireError::TooLong);
        }
        add.flags.set(Flags::DEDICATED, add.kind == b"d");
        add.flags.set(Flags::EMPTY, add.players == 0);
        add.flags.set(Flags::FULL, add.players >= add.max);
        add.flags.set(Flags::BOTS, add.bots > 0);
        Ok(Add { challenge, ..add })
    }

    /// None: the value is bad. Unknown keys are ignored.
    fn set(&mut self, key: &[u8], value: &'a [u8]) -> Option<()> {
        match key {
            b"protocol" => self.protocol = number(value)?,
            b"players" => self.players = number(value)?,
            b"max" => self.max = number(value)?,
            b"bots" => self.bots = number(value)?,
            b"region" => self.region = region(number(value)?)?,
            b"gamedir" => self.gamedir = value,
            b"map" => self.map = value,
            b"type" => self.kind = value,
            b"os" => self.os = value,
            b"version" => self.version = Version::parse(value).unwrap_or_default(),
            b"password" => self.flags.set(Flags::PASSWORD, flag(value)?),
            b"secure" => self.flags.set(Flags::SECURE, flag(value)?),
            b"lan" => self.flags.set(Flags::LAN, flag(value)?),
            b"nat" => self.flags.set(Flags::NAT, flag(value)?),
            _ => {}
        }
        Some(())
    }

    /// The announcement as a game sends it.
    pub fn emit(&self, out: &mut impl Extend<u8>) {
        out.extend(ADD.iter().copied());
        let mut pair = |key: &str, value: &dyn fmt::Display| {
            out.extend([b'\\']);
            out.extend(key.bytes());
            out.extend([b'\\']);
            extend_with(out, value);
        };
        pair("protocol", &self.protocol);
        pair("challenge", &self.challenge);
        pair("players", &self.players);
        pair("max", &self.max);
        pair("gamedir", &Text(self.gamedir));
        pair("map", &Text(self.map));
        pair("type", &Text(self.kind));
        pair("os", &Text(self.os));
        pair("version", &self.version);
        pair("region", &self.region);
        pair("bots", &self.bots);
        for (key, flag) in
            [("password", Flags::PASSWORD), ("secure", Flags::SECURE), ("lan", Flags::LAN), ("nat", Flags::NAT)]
        {
            pair(key, &u8::from(self.flags.has(flag)));
        }
        out.extend([b'\n']);
    }
}

/// Bytes of a datagram as text, for messages that are written anew; what is not UTF-8 is left out.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()))
    }
}

/// Which servers a client wants, and what it says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub region: u8,
    /// Whether the client's last address is of IPv6. Nothing else of it is used: all packets are sent at once.
    pub ipv6: bool,
    pub gamedir: Option<&'a [u8]>,
    pub map: Option<&'a [u8]>,
    pub protocol: Option<u8>,
    /// What servers must be, of the flags in `mask`.
    pub flags: Flags,
    pub mask: Flags,
    /// The client's own version and build.
    pub version: Option<Version>,
    pub build: Option<u32>,
    /// A number that every packet of the answer repeats.
    pub key: Option<u32>,
}

impl<'a> Wanted<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Wanted<'a>> {
        let (first, rest) = bytes.split_first()?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        let (last, rest) = rest.split_at_checked(end)?;
        let filter = rest.strip_prefix(b"\0")?;
        let filter = filter.strip_suffix(b"\0").unwrap_or(filter);
        if filter.contains(&0) {
            return None;
        }
        let mut wanted = Wanted { region: region(*first)?, ipv6: last.starts_with(b"["), ..Wanted::default() };
        for (key, value) in pairs(filter)? {
            wanted.set(key, value)?;
        }
        Some(wanted)
    }

    /// None: the value is bad. Unknown keys are ignored.
    fn set(&mut self, key: &[u8], value: &'a [u8]) -> Option<()> {
        match key {
            b"gamedir" => self.gamedir = Some(value),
            b"map" => self.map = Some(value),
            b"protocol" => self.protocol = Some(number(value)?),
            b"clver" => self.version = Some(Version::parse(value)?),
            b"buildnum" => self.build = Some(number(value)?),
            b"key" => self.key = Some(hexadecimal(value)?),
            b"noplayers" => self.want(Flags::EMPTY, flag(value)?),
            _ => {
                let known = Flags::NAMES.iter().find(|(name, _)| name.as_bytes() == key);
                if let Some((_, bit)) = known {
                    self.want(*bit, flag(value)?);
                }
            }
        }
        Some(())
    }

    pub fn want(&mut self, bit: u16, value: bool) {
        self.flags.set(bit, value);
        self.mask.set(bit, true);
    }

    /// The request as a client sends it.
    pub fn emit(&self, out: &mut impl Extend<u8>) {
        out.extend(QUERY.iter().copied());
        out.extend([self.region]);
        out.extend(if self.ipv6 { &b"[::]:0"[..] } else { b"0.0.0.0:0" }.iter().copied());
        out.extend([0]);
        let mut key = |key: &str, value: &[u8]| {
            out.extend([b'\\']);
            out.extend(key.bytes());
            out.extend([b'\\']);
            out.extend(value.iter().copied());
        };
        for (name, value) in [("gamedir", self.gamedir), ("map", self.map)] {
            if let Some(value) = value {
                key(name, value);
            }
        }
        for (name, bit) in Flags::NAMES {
            if self.mask.has(bit) {
                key(name, if self.flags.has(bit) { b"1" } else { b"0" });
            }
        }
        let mut number = |name: &str, value: &dyn fmt::Display| {
            let mut buffer = ArrayString::<16>::new();
            let _ = write!(buffer, "{value}"); // the longest has 11 characters
            key(name, buffer.as_bytes());
        };
        if let Some(protocol) = self.protocol {
            number("protocol", &protocol);
        }
        if let Some(version) = self.version {
            number("clver", &version);
        }
        if let Some(build) = self.build {
            number("buildnum", &build);
        }
        if let Some(key) = self.key {
            number("key", &format_args!("{key:x}"));
        }
        out.extend([0]);
    }
}

fn hexadecimal(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.starts_with(|c: char| c.is_ascii_hexdigit()).then(|| u32::from_str_radix(text, 16).ok())?
}

/// A game's answer to `info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info<'a> {
    /// 48 where the answer does not say it.
    pub protocol: u8,
    pub host: &'a [u8],
    pub map: &'a [u8],
    pub gamedir: &'a [u8],
    pub players: u8,
    pub max: u8,
    pub deathmatch: bool,
    pub team: bool,
    pub coop: bool,
    pub password: bool,
    pub dedicated: bool,
}

impl<'a> Info<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Info<'a>, WireError> {
        let text = bytes.strip_prefix(&HEADER).and_then(|rest| rest.strip_prefix(INFO_ANSWER));
        let text = until_nul(text.ok_or(WireError::UnknownMessage)?);
        if text.ends_with(WRONG_VERSION) && !text.starts_with(b"\\") {
            return Err(WireError::WrongVersion);
        }
        if text.is_empty() {
            return Err(WireError::NoPairs);
        }
        let mut info = Info { protocol: OLD_PROTOCOL, ..Info::default() };
        for (key, value) in pairs(text).ok_or(WireError::NoPairs)? {
            info.set(key, value).ok_or(WireError::BadValue)?;
        }
        // It becomes a rule, and an answer may be as long as a datagram.
        if info.gamedir.len() > FIELD_BYTES_MAX {
            return Err(WireError::TooLong);
        }
        Ok(info)
    }

    fn set(&mut self, key: &[u8], value: &'a [u8]) -> Option<()> {
        match key {
            b"p" => self.protocol = number(value)?,
            b"host" => self.host = value,
            b"map" => self.map = value,
            b"gamedir" => self.gamedir = value,
            b"numcl" => self.players = number(value)?,
            b"maxcl" => self.max = number(value)?,
            b"dm" => self.deathmatch = value != b"0",
            b"team" => self.team = value != b"0",
            b"coop" => self.coop = value != b"0",
            b"password" => self.password = flag(value)?,
            b"dedicated" => self.dedicated = flag(value)?,
            _ => {}
        }
        Some(())
    }

    /// The answer as the engine writes it.
    pub fn emit(&self, out: &mut impl Extend<u8>) {
        out.extend(HEADER);
        out.extend(INFO_ANSWER.iter().copied());
        let mut bytes = |key: &str, value: &[u8]| {
            out.extend([b'\\']);
            out.extend(key.bytes());
            out.extend([b'\\']);
            out.extend(value.iter().copied());
        };
        let number = |bytes: &mut dyn FnMut(&str, &[u8]), key: &str, value: u8| {
            let mut buffer = ArrayString::<4>::new();
            let _ = write!(buffer, "{value}");
            bytes(key, buffer.as_bytes());
        };
        number(&mut bytes, "p", self.protocol);
        bytes("map", self.map);
        number(&mut bytes, "dm", self.deathmatch.into());
        number(&mut bytes, "team", self.team.into());
        number(&mut bytes, "coop", self.coop.into());
        number(&mut bytes, "numcl", self.players);
        number(&mut bytes, "maxcl", self.max);
        bytes("gamedir", self.gamedir);
        number(&mut bytes, "password", self.password.into());
        number(&mut bytes, "dedicated", self.dedicated.into());
        bytes("host", self.host);
    }
}

#[cfg(test)]
mod tests;

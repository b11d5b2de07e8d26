//! The datagrams of the Quake III family, as dpmaster, ioquake3 and DarkPlaces speak them.
//!
//! Every message is `FF FF FF FF`, then text; commands are case-sensitive, and the text ends at the first NUL.
//!
//! | message | from → to | form |
//! |---|---|---|
//! | heartbeat | game → master | `heartbeat TAG\n`, the line end is optional |
//! | getinfo | master → game | `getinfo CHALLENGE`, without a line end: DarkPlaces would echo it |
//! | infoResponse | game → master | `infoResponse\n` + `\key\value\key\value…` |
//! | getservers | client → master | `getservers [GAME] PROTOCOL [options]`, separated by any white space |
//! | getserversExt | client → master | `getserversExt GAME PROTOCOL [options]` |
//! | getstatus | anyone → game | `getstatus CHALLENGE` |
//! | statusResponse | game → anyone | `statusResponse\n` + an infostring + `\n` + a line for each player |

use std::borrow::Cow;
use std::fmt::{self, Write};

use arrayvec::{ArrayString, ArrayVec};

use crate::bytes::until_nul;

/// Begins every message.
pub const HEADER: [u8; 4] = [0xff; 4];
/// A key or value longer than this is ignored, as dpmaster does.
const FIELD_BYTES_MAX: usize = 255;
/// The longest name of a game; dpmaster refuses longer ones.
pub const GAME_BYTES_MAX: usize = 63;

/// What a master may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToMaster<'a> {
    Heartbeat { tag: &'a [u8] },
    InfoResponse(InfoString<'a>),
    List(GetServers<'a>),
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// It does not begin with four bytes of FF and a command.
    NoHeader,
    UnknownCommand,
    /// A heartbeat without a tag.
    NoTag,
    /// A list request without a protocol number.
    NoProtocol,
    /// A `getserversExt` without a game, or a game's name that is too long.
    BadGame,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireError::NoHeader => "it does not begin with FF FF FF FF",
            WireError::UnknownCommand => "unknown command",
            WireError::NoTag => "the heartbeat has no tag",
            WireError::NoProtocol => "the protocol number is missing",
            WireError::BadGame => "the game's name is missing or too long",
        })
    }
}

impl<'a> ToMaster<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<ToMaster<'a>, WireError> {
        let text = message(bytes)?;
        if let Some(rest) = text.strip_prefix(b"infoResponse") {
            return Ok(ToMaster::InfoResponse(InfoString::new(rest.trim_ascii_start())));
        }
        let mut words = Words(text);
        match words.next().unwrap_or_default() {
            b"heartbeat" => words.next().map(|tag| ToMaster::Heartbeat { tag }).ok_or(WireError::NoTag),
            b"getservers" => GetServers::parse(false, words).map(ToMaster::List),
            b"getserversExt" => GetServers::parse(true, words).map(ToMaster::List),
            _ => Err(WireError::UnknownCommand),
        }
    }
}

/// The text of a message: behind the header, up to the first NUL.
fn message(bytes: &[u8]) -> Result<&[u8], WireError> {
    bytes.strip_prefix(&HEADER).filter(|text| !text.is_empty()).map(until_nul).ok_or(WireError::NoHeader)
}

/// Words between any white space.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let (word, rest) = rest.split_at_checked(end)?;
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }
}

/// Which servers a client wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetServers<'a> {
    /// `getserversExt`: its answer may have IPv6 addresses.
    pub extended: bool,
    /// None: the game follows from the protocol number.
    pub game: Option<&'a [u8]>,
    pub protocol: i32,
    /// Whether servers without and with as many players as they take are wanted, too.
    pub empty: bool,
    pub full: bool,
    pub game_type: Option<&'a [u8]>,
    pub ipv4: bool,
    pub ipv6: bool,
}

impl<'a> GetServers<'a> {
    fn parse(extended: bool, mut words: Words<'a>) -> Result<GetServers<'a>, WireError> {
        let mut first = words.next();
        let mut game = None;
        if extended || first.is_some_and(|word| integer(word).is_none()) {
            game = first.filter(|name| name.len() <= GAME_BYTES_MAX);
            if game.is_none() && (extended || first.is_some()) {
                return Err(WireError::BadGame);
            }
            first = words.next();
        }
        let protocol = first.and_then(integer).ok_or(WireError::NoProtocol)?;
        let (mut empty, mut full, mut ipv4, mut ipv6, mut game_type) = (false, false, false, false, None);
        for option in words {
            match option {
                b"empty" => empty = true,
                b"full" => full = true,
                b"ipv4" => ipv4 = true,
                b"ipv6" => ipv6 = true,
                b"ffa" => game_type = Some(&b"0"[..]),
                b"tourney" => game_type = Some(b"1"),
                b"team" => game_type = Some(b"3"),
                b"ctf" => game_type = Some(b"4"),
                other => game_type = other.strip_prefix(b"gametype=").or(game_type),
            }
        }
        // A plain list has IPv4 only; an extended one both, unless it names one.
        let both = extended && ipv4 == ipv6;
        let (ipv4, ipv6) = (!extended || both || ipv4, extended && (both || ipv6));
        Ok(GetServers { extended, game, protocol, empty, full, game_type, ipv4, ipv6 })
    }

    /// The request as a client sends it.
    pub fn emit(&self, out: &mut impl Extend<u8>) {
        out.extend(HEADER);
        out.extend(if self.extended { &b"getserversExt"[..] } else { b"getservers" }.iter().copied());
        let mut word = |word: &[u8]| {
            out.extend([b' ']);
            out.extend(word.iter().copied());
        };
        self.game.map(&mut word);
        let mut protocol = ArrayString::<12>::new();
        let _ = write!(protocol, "{}", self.protocol); // the longest has 11 characters
        word(protocol.as_bytes());
        if self.empty {
            word(b"empty");
        }
        if self.full {
            word(b"full");
        }
        if self.extended && self.ipv4 != self.ipv6 {
            word(if self.ipv4 { b"ipv4" } else { b"ipv6" });
        }
        if let Some(game_type) = self.game_type {
            word(b"gametype=");
            out.extend(game_type.iter().copied());
        }
    }
}

/// A whole number as C's `strtol` reads it with base 0: decimal, `0x` hexadecimal, or `0` octal.
pub fn integer(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None; // a second sign, or no digit
    }
    let (digits, base) = match digits.get(..2) {
        Some("0x" | "0X") => (digits.get(2..)?, 16),
        _ if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        _ => (digits, 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(digits, base).ok().and_then(|number| i32::try_from(sign * number).ok())
}

/// `\key\value\key\value…`. Of a key given twice the first counts; there is no escaping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InfoString<'a>(&'a [u8]);

impl<'a> InfoString<'a> {
    pub fn new(text: &'a [u8]) -> InfoString<'a> {
        InfoString(text.strip_prefix(b"\\").unwrap_or(text))
    }

    pub fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.pairs().find(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// The same, split once for all keys.
    pub fn index(&self) -> InfoIndex<'a> {
        InfoIndex { first: self.pairs().take(INDEXED_MAX).collect(), whole: *self }
    }

    /// Keys and values in order. One that is too long is left out, and so is a key without a value.
    pub fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (text, mut start) = (self.0, 0);
        let ends = memchr::memchr_iter(b'\\', text).chain([text.len()]);
        let mut tokens = ends.map_while(move |end| text.get(std::mem::replace(&mut start, end + 1)..end));
        std::iter::from_fn(move || Some((tokens.next()?, tokens.next()?)))
            .filter(|(key, value)| !key.is_empty() && key.len().max(value.len()) <= FIELD_BYTES_MAX)
    }
}

/// More than engines send.
const INDEXED_MAX: usize = 48;

/// An info string whose pairs are found already: a dozen keys are looked for in each, and every look would split it anew.
pub struct InfoIndex<'a> {
    first: ArrayVec<(&'a [u8], &'a [u8]), INDEXED_MAX>,
    whole: InfoString<'a>,
}

impl<'a> InfoIndex<'a> {
    pub fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        match self.first.iter().find(|(found, _)| *found == key) {
            Some((_, value)) => Some(value),
            None if self.first.is_full() => self.whole.get(key),
            None => None,
        }
    }

    /// The number that a value begins with, as C's `atoi` reads it; 0 where it is none, and where it is negative.
    pub fn count(&self, key: &[u8]) -> Option<u16> {
        let digits = self.get(key)?.trim_ascii_start();
        let digits = digits.strip_prefix(b"+").unwrap_or(digits).iter().take_while(|byte| byte.is_ascii_digit());
        Some(digits.fold(0, |number: u16, digit| number.saturating_mul(10).saturating_add(u16::from(digit - b'0'))))
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        self.whole.pairs()
    }

    /// In bytes, as it was sent.
    pub fn size(&self) -> usize {
        self.whole.0.len()
    }
}

impl fmt::Debug for InfoString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// What a game server may be asked. Its answer repeats the challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToGame<'a> {
    Info { challenge: &'a [u8] },
    Status { challenge: &'a [u8] },
}

impl<'a> ToGame<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<ToGame<'a>, WireError> {
        let mut words = Words(message(bytes)?);
        match (words.next().unwrap_or_default(), words.next().unwrap_or_default()) {
            (b"getinfo", challenge) => Ok(ToGame::Info { challenge }),
            (b"getstatus", challenge) => Ok(ToGame::Status { challenge }),
            _ => Err(WireError::UnknownCommand),
        }
    }
}

/// What a game server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromGame<'a> {
    Info(InfoString<'a>),
    Status(StatusResponse<'a>),
}

impl<'a> FromGame<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<FromGame<'a>, WireError> {
        match message(bytes)?.strip_prefix(b"infoResponse") {
            Some(rest) => Ok(FromGame::Info(InfoString::new(rest.trim_ascii_start()))),
            None => StatusResponse::parse(bytes).map(FromGame::Status),
        }
    }
}

/// A server's answer to `getstatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusResponse<'a> {
    pub info: InfoString<'a>,
    lines: &'a [u8],
}

/// A player in a status: `SCORE PING "NAME"`, in team games of DarkPlaces `SCORE PING TEAM "NAME"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayerLine<'a> {
    /// None where the score is not a number.
    pub score: Option<i32>,
    pub ping: Option<i32>,
    pub team: Option<&'a [u8]>,
    pub name: &'a [u8],
}

impl<'a> StatusResponse<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<StatusResponse<'a>, WireError> {
        let text = message(bytes)?.strip_prefix(b"statusResponse\n").ok_or(WireError::UnknownCommand)?;
        let end = memchr::memchr(b'\n', text).unwrap_or(text.len());
        let (info, lines) = text.split_at_checked(end).unwrap_or((text, b""));
        Ok(StatusResponse { info: InfoString::new(info), lines })
    }

    /// Lines that are no player's are left out.
    pub fn players(&self) -> impl Iterator<Item = PlayerLine<'a>> + use<'a> {
        self.lines.split(|&byte| byte == b'\n').filter_map(PlayerLine::parse)
    }
}

impl<'a> PlayerLine<'a> {
    fn parse(line: &'a [u8]) -> Option<PlayerLine<'a>> {
        let start = line.iter().position(|&byte| byte == b'"')?;
        let (before, name) = line.split_at_checked(start)?;
        let name = name.strip_prefix(b"\"")?;
        let name = name.strip_suffix(b"\"").unwrap_or(name);
        let mut words = Words(before);
        let (score, ping) = (words.next()?, words.next()?);
        Some(PlayerLine { score: integer(score), ping: integer(ping), team: words.next(), name })
    }
}

/// `getinfo` or `getstatus` with a challenge.
pub fn ask(command: &str, challenge: &[u8], out: &mut impl Extend<u8>) {
    out.extend(HEADER);
    out.extend(command.bytes());
    out.extend([b' ']);
    out.extend(challenge.iter().copied());
}

/// Text without its colour codes: `^` and a letter or digit, or DarkPlaces' `^x` and three hexadecimal digits. `^^` is a
/// single `^`.
pub fn without_colours(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains('^') {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('^') {
        let (before, code) = rest.split_at(at);
        out.push_str(before);
        let hex = code.get(2..5).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let length = match code.as_bytes().get(1) {
            Some(b'x') if hex => 5,
            Some(byte) if byte.is_ascii_alphanumeric() => 2,
            Some(b'^') => {
                out.push('^');
                2
            }
            _ => {
                out.push('^');
                1
            }
        };
        rest = code.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;

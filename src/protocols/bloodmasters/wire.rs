//! Bloodmasters' query and its reply, in both directions.
//!
//! A datagram holds one or more messages: length u16 little endian, which includes itself; command u8; a message number
//! u32 if bit 0x80 of the command is set; the payload. All other integers are big endian. Query and reply are both
//! command 13:
//! - query: echo u32
//! - reply: echo u32, title, locked, website, max clients u8, max players u8, game type u8, map, clients u8, players u8,
//!   protocol u8; since protocol 27 score limit i16, time limit i16, join smallest, and for each *client* name, team u8,
//!   spectator, ping i16; since 28 the build as text
//!
//! A text is prefixed with its length as a varint: 7 bits per byte, lowest first, bit 0x80 set on all but the last. A
//! Boolean is a byte; any value but 0 is true.

use std::fmt;

use crate::bytes::Reader;

pub const COMMAND: u8 = 13;
/// In a command: a message number precedes the payload.
pub const NUMBERED: u8 = 0x80;

pub const QUERY_SIZE: usize = 7;
/// The shortest message: its length and its command.
const HEADER_SIZE: usize = 3;
/// Three bytes of a text's length are enough for any datagram.
const TEXT_LENGTH_BYTES_MAX: u32 = 3;
/// The largest UDP payload over IPv4.
const DATAGRAM_BYTES_MAX: u16 = 65_507;

/// The first protocol versions whose replies have details, and a build.
pub const DETAILS_SINCE: u8 = 27;
pub const BUILD_SINCE: u8 = 28;

pub fn game_type_name(game_type: u8) -> Option<&'static str> {
    Some(match game_type {
        0 => "Deathmatch",
        1 => "Team Deathmatch",
        2 => "Capture The Flag",
        3 => "Scavenger",
        4 => "Team Scavenger",
        _ => return None,
    })
}

pub fn team_name(team: u8) -> Option<&'static str> {
    ["none", "red", "blue"].get(usize::from(team)).copied()
}

/// The number of a game type, from its name or from the number as text.
pub fn game_type_number(name: &str) -> Option<u8> {
    name.parse().ok().or_else(|| (0..=u8::MAX).find(|game_type| game_type_name(*game_type) == Some(name)))
}

/// The number of a team.
pub fn team_number(name: &str) -> Option<u8> {
    (0..=u8::MAX).find(|team| team_name(*team) == Some(name))
}

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The datagram ends before the message does.
    Truncated {
        expected: usize,
        got: usize,
    },
    /// The length is less than that of any message.
    WrongLength {
        length: usize,
    },
    /// The length would be right in the other byte order.
    BigEndianLength {
        length: usize,
    },
    WrongCommand(u8),
    /// The message ends inside its fields.
    FieldsMissing,
    /// The varint of a text's length is too long.
    TextLength,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Truncated { expected, got } => {
                write!(f, "truncated: {got} bytes of a message of at least {expected}")
            }
            WireError::WrongLength { length } => {
                write!(f, "wrong length: {length} bytes, but every message has at least {HEADER_SIZE}")
            }
            WireError::BigEndianLength { length } => {
                write!(f, "the length {length} is big endian, but must be little endian")
            }
            WireError::WrongCommand(command) => write!(f, "command {command}, expected {COMMAND}"),
            WireError::FieldsMissing => write!(f, "the message ends before its last field"),
            WireError::TextLength => write!(f, "the length of a text is too long"),
        }
    }
}

impl std::error::Error for WireError {}

/// The messages of a datagram, found by their lengths. Stops at an invalid length; the messages before it still count.
struct Payloads<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Payloads<'a> {
    type Item = Result<&'a [u8], WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        Some(split_message(rest).and_then(|(message, rest)| {
            self.rest = rest;
            payload(message)
        }))
    }
}

fn split_message(bytes: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let got = bytes.len();
    let length = *bytes.first_chunk().ok_or(WireError::Truncated { expected: HEADER_SIZE, got })?;
    let (little, big) = (usize::from(u16::from_le_bytes(length)), usize::from(u16::from_be_bytes(length)));
    match bytes.split_at_checked(little) {
        Some(split) if little >= HEADER_SIZE => Ok(split),
        _ if big >= HEADER_SIZE && big == got => Err(WireError::BigEndianLength { length: big }),
        Some(_) => Err(WireError::WrongLength { length: little }),
        None => Err(WireError::Truncated { expected: little, got }),
    }
}

fn payload(message: &[u8]) -> Result<&[u8], WireError> {
    let mut fields = Reader::new(message);
    let (Some(_length), Some(command)) = (fields.u16_le(), fields.u8()) else { return Err(WireError::FieldsMissing) };
    if command & !NUMBERED != COMMAND {
        return Err(WireError::WrongCommand(command));
    }
    if command & NUMBERED != 0 {
        fields.u32_be().ok_or(WireError::FieldsMissing)?;
    }
    Ok(fields.rest())
}

/// The query to a game server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Returned unchanged: an unpredictable number proves the answer.
    pub echo: u32,
}

impl Query {
    pub fn emit(&self) -> [u8; QUERY_SIZE] {
        let [a, b, c, d] = self.echo.to_be_bytes();
        [QUERY_SIZE as u8, 0, COMMAND, a, b, c, d]
    }
}

/// The queries in a datagram. As in the game itself, extra bytes within or after a message are allowed. Errors get no
/// answer.
pub fn parse_queries(datagram: &[u8]) -> impl Iterator<Item = Result<Query, WireError>> {
    Payloads { rest: datagram }.map(|payload| {
        let echo = Reader::new(payload?).u32_be().ok_or(WireError::FieldsMissing)?;
        Ok(Query { echo })
    })
}

/// A game server's answer. The texts are raw bytes; the game writes ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    pub echo: u32,
    pub title: &'a [u8],
    /// A password is needed.
    pub locked: bool,
    pub website: &'a [u8],
    pub clients_max: u8,
    pub players_max: u8,
    pub game_type: u8,
    pub map: &'a [u8],
    /// Players and spectators.
    pub clients_current: u8,
    pub players_current: u8,
    pub protocol: u8,
    /// Since protocol 27.
    pub details: Option<Details<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details<'a> {
    pub score_limit: i16,
    pub time_limit: i16,
    /// New players must join the smallest team.
    pub join_smallest: bool,
    /// [`Reply::clients_current`] of them.
    pub clients: Vec<Client<'a>>,
    /// Since protocol 28.
    pub build: Option<&'a [u8]>,
}

/// A player or spectator. A client that is still loading has no team, is a spectator and has ping 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client<'a> {
    pub name: &'a [u8],
    pub team: u8,
    pub spectator: bool,
    pub ping: i16,
}

/// Why a reply cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// Longer than a datagram can be.
    TooLong { bytes: usize },
    /// The number of clients differs from the list of clients.
    ClientCount { counted: u8, named: usize },
    /// The protocol version has no details or no build, but they are present; or it has details, but they are missing.
    Protocol(u8),
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unwritable::TooLong { bytes } => write!(f, "{bytes} bytes do not fit in a datagram"),
            Unwritable::ClientCount { counted, named } => write!(f, "{counted} clients counted, but {named} listed"),
            Unwritable::Protocol(protocol) => write!(f, "the fields do not match protocol {protocol}"),
        }
    }
}

impl std::error::Error for Unwritable {}

impl<'a> Reply<'a> {
    /// The first reply in a datagram, or the error of its first message.
    pub fn parse(datagram: &'a [u8]) -> Result<Reply<'a>, WireError> {
        let mut replies = Payloads { rest: datagram }.map(|payload| Reply::parse_payload(payload?));
        let first = replies.next().unwrap_or(Err(WireError::Truncated { expected: HEADER_SIZE, got: 0 }));
        first.or_else(|error| replies.find_map(Result::ok).ok_or(error))
    }

    /// Bytes after the last field are ignored: they may be fields of a later protocol.
    fn parse_payload(payload: &'a [u8]) -> Result<Reply<'a>, WireError> {
        let mut fields = Fields(Reader::new(payload));
        let mut reply = Reply {
            echo: fields.u32()?,
            title: fields.text()?,
            locked: fields.bool()?,
            website: fields.text()?,
            clients_max: fields.u8()?,
            players_max: fields.u8()?,
            game_type: fields.u8()?,
            map: fields.text()?,
            clients_current: fields.u8()?,
            players_current: fields.u8()?,
            protocol: fields.u8()?,
            details: None,
        };
        if reply.protocol >= DETAILS_SINCE {
            reply.details = Some(Details::parse(fields, reply.clients_current, reply.protocol)?);
        }
        Ok(reply)
    }

    pub fn emit(&self) -> Result<Vec<u8>, Unwritable> {
        let mut out = vec![0, 0, COMMAND]; // the length is filled in at the end
        out.extend(self.echo.to_be_bytes());
        push_text(&mut out, self.title);
        out.push(self.locked.into());
        push_text(&mut out, self.website);
        out.extend([self.clients_max, self.players_max, self.game_type]);
        push_text(&mut out, self.map);
        out.extend([self.clients_current, self.players_current, self.protocol]);
        match &self.details {
            None if self.protocol < DETAILS_SINCE => {}
            Some(details) if self.protocol >= DETAILS_SINCE => {
                details.emit(&mut out, self.clients_current, self.protocol)?;
            }
            _ => return Err(Unwritable::Protocol(self.protocol)),
        }
        let bytes = out.len();
        let fits = u16::try_from(bytes).ok().filter(|length| *length <= DATAGRAM_BYTES_MAX);
        let length = fits.ok_or(Unwritable::TooLong { bytes })?;
        if let Some(start) = out.first_chunk_mut() {
            *start = length.to_le_bytes();
        }
        Ok(out)
    }
}

impl<'a> Details<'a> {
    fn parse(mut fields: Fields<'a>, clients: u8, protocol: u8) -> Result<Details<'a>, WireError> {
        let mut details = Details {
            score_limit: fields.i16()?,
            time_limit: fields.i16()?,
            join_smallest: fields.bool()?,
            clients: Vec::with_capacity(clients.into()),
            build: None,
        };
        for _ in 0..clients {
            details.clients.push(Client {
                name: fields.text()?,
                team: fields.u8()?,
                spectator: fields.bool()?,
                ping: fields.i16()?,
            });
        }
        // The original launcher also accepts a reply without a build.
        if protocol >= BUILD_SINCE && !fields.0.rest().is_empty() {
            details.build = Some(fields.text()?);
        }
        Ok(details)
    }

    fn emit(&self, out: &mut Vec<u8>, counted: u8, protocol: u8) -> Result<(), Unwritable> {
        let named = self.clients.len();
        if named != usize::from(counted) {
            return Err(Unwritable::ClientCount { counted, named });
        }
        out.extend(self.score_limit.to_be_bytes());
        out.extend(self.time_limit.to_be_bytes());
        out.push(self.join_smallest.into());
        for client in &self.clients {
            push_text(out, client.name);
            out.extend([client.team, client.spectator.into()]);
            out.extend(client.ping.to_be_bytes());
        }
        match self.build {
            None => Ok(()),
            Some(build) if protocol >= BUILD_SINCE => {
                push_text(out, build);
                Ok(())
            }
            Some(_) => Err(Unwritable::Protocol(protocol)),
        }
    }
}

/// A reader in which a missing field is an error.
struct Fields<'a>(Reader<'a>);

impl<'a> Fields<'a> {
    fn u8(&mut self) -> Result<u8, WireError> {
        self.0.u8().ok_or(WireError::FieldsMissing)
    }

    fn bool(&mut self) -> Result<bool, WireError> {
        self.u8().map(|byte| byte != 0)
    }

    fn i16(&mut self) -> Result<i16, WireError> {
        self.0.i16_be().ok_or(WireError::FieldsMissing)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.0.u32_be().ok_or(WireError::FieldsMissing)
    }

    fn text(&mut self) -> Result<&'a [u8], WireError> {
        let mut length = 0;
        for group in 0..TEXT_LENGTH_BYTES_MAX {
            let byte = self.u8()?;
            length |= usize::from(byte & 0x7f) << (7 * group);
            if byte & 0x80 == 0 {
                return self.0.take(length).ok_or(WireError::FieldsMissing);
            }
        }
        Err(WireError::TextLength)
    }
}

fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    let mut length = text.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(text);
}

#[cfg(test)]
mod tests;

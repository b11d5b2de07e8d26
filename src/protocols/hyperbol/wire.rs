//! Hyperbol's messages, in both directions. Integers are little endian, addresses are in network order.
//!
//! With the master, over TCP:
//! - greeting: `HBSL`, key u32, total players u32
//! - list request: key u32, `filter[4]`, of which only bit 0x10 of the first byte has a meaning
//! - list: consecutive records without a count: `address[4]`, port u32, flavor u8, `unused[3]`
//!
//! With a game server, over UDP:
//! - query: 2 u8, echo u32
//! - info, exactly 229 bytes: 27 u8, echo u32, `name[32]`, game `type[32]`, players u8, max players u8, `unused[1]`,
//!   `map[64]`, `host[20]`, `unused[1]`, host port u32, flags u32, internal `address[4]`, `version[16]`, `unused[37]`,
//!   players per `faction[3]`, skill u8, `unused[3]`
//!
//! Texts end at the first NUL. Unused bytes are written as 0 and ignored when read.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use crate::bytes::{Reader, until_nul};
use crate::model::Address;
use crate::protocols::is_one_host;

pub const GREETING: [u8; 4] = *b"HBSL";
pub const QUERY: u8 = 2;
pub const INFO: u8 = 27;

pub const GREETING_SIZE: usize = 12;
pub const LIST_REQUEST_SIZE: usize = 8;
pub const RECORD_SIZE: usize = 12;
pub const QUERY_SIZE: usize = 5;
pub const INFO_SIZE: usize = 229;

const NAME_SIZE: usize = 32;
const GAME_TYPE_SIZE: usize = 32;
const MAP_SIZE: usize = 64;
const HOST_SIZE: usize = 20;
const VERSION_SIZE: usize = 16;
/// Obsolete fields: four u32, a byte and twenty bytes.
const RESERVED_SIZE: usize = 37;

/// In the filter's first byte: include unofficial servers.
pub const UNOFFICIAL_TOO: u8 = 0x10;
/// The filter that the protocol's document recommends: it also matches whatever later filter bits may add.
pub const EVERYTHING: [u8; 4] = [0xff, 0, 0, 0];

/// The kind of a server, which only the master decides: 0 is unofficial, all others are official.
pub fn flavor_name(flavor: u8) -> Option<&'static str> {
    Some(match flavor {
        0 => "unofficial",
        1 => "IMF home",
        2 => "Republic home",
        3 => "Syndicate home",
        4 => "Arena",
        5 => "Team Arena",
        6 => "Bounty Arena",
        7 => "Training Arena",
        _ => return None,
    })
}

/// The skill level that a server is meant for.
pub fn skill_name(skill: u8) -> Option<&'static str> {
    Some(match skill {
        0 => "anyone",
        1 => "training",
        2 => "beginners",
        3 => "novices",
        4 => "above novice",
        _ => return None,
    })
}

/// The number of a skill, from its name or from the number as text.
pub fn skill_number(name: &str) -> Option<u8> {
    name.parse().ok().or_else(|| (0..=u8::MAX).find(|skill| skill_name(*skill) == Some(name)))
}

/// The faction at an index of [`Info::factions`]. Flavors have them in another order.
pub fn faction_name(place: usize) -> Option<&'static str> {
    ["IMF", "Syndicate", "Republic"].get(place).copied()
}

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    WrongLength { expected: usize, got: usize },
    WrongMagic,
    PartialRecord { left: usize },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::WrongLength { expected, got } => write!(f, "{got} bytes, expected {expected}"),
            WireError::WrongMagic => write!(f, "not a Hyperbol message: wrong first bytes"),
            WireError::PartialRecord { left } => {
                write!(f, "the list ends inside a record, after {left} of its {RECORD_SIZE} bytes")
            }
        }
    }
}

impl std::error::Error for WireError {}

/// Reads the fields after the magic of a message of exactly `size` bytes. A wrong magic is reported before a wrong length:
/// it says more about the peer.
fn read<'a, T>(
    bytes: &'a [u8],
    magic: &[u8],
    size: usize,
    fields: impl FnOnce(Reader<'a>) -> Option<T>,
) -> Result<T, WireError> {
    let wrong_length = WireError::WrongLength { expected: size, got: bytes.len() };
    let mut reader = Reader::new(bytes);
    if reader.take(magic.len()).ok_or(wrong_length)? != magic {
        return Err(WireError::WrongMagic);
    }
    if bytes.len() != size {
        return Err(wrong_length);
    }
    fields(reader).ok_or(wrong_length)
}

/// An array of the first `SIZE` bytes, padded with 0.
fn fill<const SIZE: usize>(bytes: impl Iterator<Item = u8>) -> [u8; SIZE] {
    let mut filled = [0; SIZE];
    for (to, from) in filled.iter_mut().zip(bytes) {
        *to = from;
    }
    filled
}

/// The master's first message on every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The client must send it back to get a list.
    pub key: u32,
    pub players_total: u32,
}

impl Greeting {
    pub fn parse(bytes: &[u8]) -> Result<Greeting, WireError> {
        read(bytes, &GREETING, GREETING_SIZE, |mut fields| {
            Some(Greeting { key: fields.u32_le()?, players_total: fields.u32_le()? })
        })
    }

    pub fn emit(&self) -> [u8; GREETING_SIZE] {
        fill(GREETING.into_iter().chain(self.key.to_le_bytes()).chain(self.players_total.to_le_bytes()))
    }
}

/// A client's answer to the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRequest {
    pub key: u32,
    pub filter: [u8; 4],
}

impl ListRequest {
    pub fn parse(bytes: &[u8]) -> Result<ListRequest, WireError> {
        read(bytes, &[], LIST_REQUEST_SIZE, |mut fields| {
            Some(ListRequest { key: fields.u32_le()?, filter: fields.array()? })
        })
    }

    pub fn emit(&self) -> [u8; LIST_REQUEST_SIZE] {
        fill(self.key.to_le_bytes().into_iter().chain(self.filter))
    }

    pub fn wants_unofficial(&self) -> bool {
        let [first, ..] = self.filter;
        first & UNOFFICIAL_TOO != 0
    }
}

/// A server in the list. Its address and port are always valid: bad ones would break a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRecord {
    /// The IP of `address`, known to be IPv4.
    ip: Ipv4Addr,
    address: Address,
    flavor: u8,
}

/// Why a record is invalid. The other records of the list are still used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecord {
    Port(u32),
    /// Broadcast, multicast or unspecified.
    NotOneHost(Ipv4Addr),
    /// The format has only four bytes for an address.
    NotIpv4,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRecord::Port(port) => write!(f, "{port} is not a port"),
            BadRecord::NotOneHost(ip) => write!(f, "{ip} is not the address of one host"),
            BadRecord::NotIpv4 => write!(f, "the list can hold only IPv4 addresses"),
        }
    }
}

impl std::error::Error for BadRecord {}

impl ListRecord {
    pub fn new(address: Address, flavor: u8) -> Result<ListRecord, BadRecord> {
        let ip = address.ipv4().ok_or(BadRecord::NotIpv4)?;
        if !is_one_host(address.ip()) {
            return Err(BadRecord::NotOneHost(ip));
        }
        Ok(ListRecord { ip, address, flavor })
    }

    pub fn address(&self) -> Address {
        self.address
    }

    pub fn flavor(&self) -> u8 {
        self.flavor
    }

    fn parse(bytes: &[u8; RECORD_SIZE]) -> Result<ListRecord, BadRecord> {
        let [a, b, c, d, p0, p1, p2, p3, flavor, ..] = *bytes;
        let port = u32::from_le_bytes([p0, p1, p2, p3]);
        let ip = IpAddr::from([a, b, c, d]);
        let address = u16::try_from(port).ok().and_then(|port| Address::new(ip, port)).ok_or(BadRecord::Port(port))?;
        ListRecord::new(address, flavor)
    }

    pub fn emit(&self) -> [u8; RECORD_SIZE] {
        let port = u32::from(self.address.port());
        fill(self.ip.octets().into_iter().chain(port.to_le_bytes()).chain([self.flavor]))
    }
}

/// Reads a whole list, i.e. everything until the master closed the connection.
pub fn parse_list(bytes: &[u8]) -> Result<impl Iterator<Item = Result<ListRecord, BadRecord>>, WireError> {
    let (records, left) = bytes.as_chunks();
    if !left.is_empty() {
        return Err(WireError::PartialRecord { left: left.len() });
    }
    Ok(records.iter().map(ListRecord::parse))
}

/// The query to a game server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Returned unchanged: an unpredictable number proves the answer.
    pub echo: u32,
}

impl Query {
    pub fn parse(bytes: &[u8]) -> Result<Query, WireError> {
        read(bytes, &[QUERY], QUERY_SIZE, |mut fields| Some(Query { echo: fields.u32_le()? }))
    }

    pub fn emit(&self) -> [u8; QUERY_SIZE] {
        fill([QUERY].into_iter().chain(self.echo.to_le_bytes()))
    }
}

/// A game server's answer. The texts are raw bytes, up to the first NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info<'a> {
    pub echo: u32,
    pub name: &'a [u8],
    pub game_type: &'a [u8],
    pub players_current: u8,
    pub players_max: u8,
    pub map: &'a [u8],
    /// The server's own idea of its address, as text.
    pub host: &'a [u8],
    pub host_port: u32,
    /// Their meaning is unknown.
    pub flags: u32,
    /// Often an address in the server's local network.
    pub internal_ip: Ipv4Addr,
    pub version: &'a [u8],
    /// Players in each faction, see [`faction_name`].
    pub factions: [u8; 3],
    pub skill: u8,
}

impl<'a> Info<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Info<'a>, WireError> {
        read(bytes, &[INFO], INFO_SIZE, Info::parse_fields)
    }

    fn parse_fields(mut fields: Reader<'a>) -> Option<Info<'a>> {
        Some(Info {
            echo: fields.u32_le()?,
            name: fields.text_field(NAME_SIZE)?,
            game_type: fields.text_field(GAME_TYPE_SIZE)?,
            players_current: fields.u8()?,
            players_max: fields.u8()?,
            map: {
                fields.take(1)?;
                fields.text_field(MAP_SIZE)?
            },
            host: fields.text_field(HOST_SIZE)?,
            host_port: {
                fields.take(1)?;
                fields.u32_le()?
            },
            flags: fields.u32_le()?,
            internal_ip: fields.array::<4>()?.into(),
            version: fields.text_field(VERSION_SIZE)?,
            factions: {
                fields.take(RESERVED_SIZE)?;
                fields.array()?
            },
            skill: fields.u8()?,
        })
    }

    /// The whole datagram. A text that is too long is truncated to leave room for a NUL: without it, the game, a C program,
    /// would read on into the next field.
    pub fn emit(&self) -> [u8; INFO_SIZE] {
        let zeros = std::iter::repeat(0);
        let padded = |text: &'a [u8], size: usize| {
            until_nul(text).iter().copied().take(size - 1).chain(zeros.clone()).take(size)
        };
        fill(
            [INFO]
                .into_iter()
                .chain(self.echo.to_le_bytes())
                .chain(padded(self.name, NAME_SIZE))
                .chain(padded(self.game_type, GAME_TYPE_SIZE))
                .chain([self.players_current, self.players_max, 0])
                .chain(padded(self.map, MAP_SIZE))
                .chain(padded(self.host, HOST_SIZE))
                .chain([0])
                .chain(self.host_port.to_le_bytes())
                .chain(self.flags.to_le_bytes())
                .chain(self.internal_ip.octets())
                .chain(padded(self.version, VERSION_SIZE))
                .chain(zeros.clone().take(RESERVED_SIZE))
                .chain(self.factions)
                .chain([self.skill]),
        )
    }
}

#[cfg(test)]
mod tests;

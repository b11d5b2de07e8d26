//! Iceball's datagrams in both directions, little-endian.
//!
//! An announcement is exactly 86 bytes; its texts end at the first NUL or at the end of their field:
//!
//! `1CEB` hbversion u16, ibversion u32, port u16, players_current u16, players_max u16, `name[30]`, `mode[10]`, `map[30]`

use std::fmt;
use std::str::FromStr;

use crate::bytes::Reader;
use crate::model::VersionText;

pub const ANNOUNCE: [u8; 4] = *b"1CEB";
pub const ACCEPTED: [u8; 4] = *b"MSOK";
pub const HANDSHAKE: [u8; 4] = *b"HSHK";
pub const BAD_VERSION: [u8; 4] = *b"BADV";
pub const BAD_FORMAT: [u8; 4] = *b"BADF";

/// The heartbeat protocol's version that all deployed programs speak.
pub const HEARTBEAT_VERSION: u16 = 2;

pub const ANNOUNCEMENT_SIZE: usize = 86;
/// Offset of an announcement's body, after the magic and the heartbeat version.
pub const BODY: usize = 6;
pub const BODY_SIZE: usize = ANNOUNCEMENT_SIZE - BODY;
pub const NAME_SIZE: usize = 30;
pub const MODE_SIZE: usize = 10;
pub const MAP_SIZE: usize = 30;

/// A game's version, packed: W bits 27-31, X 22-26, Y 15-21, letter 10-14, build 0-9.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Version(pub u32);

impl Version {
    /// Builds are not compared: all builds of one version are compatible.
    pub fn plays_with(self, other: Version) -> bool {
        self.0 >> 10 == other.0 >> 10
    }

    /// As text, without an allocation.
    pub fn text(self) -> VersionText {
        use fmt::Write;
        let mut text = VersionText::new();
        let _ = write!(text, "{self}"); // at most 17 characters
        text
    }

    /// W, X, Y, letter, build.
    fn parts(self) -> [u32; 5] {
        let bits = |from: u32, count: u32| (self.0 >> from) & ((1 << count) - 1);
        [bits(27, 5), bits(22, 5), bits(15, 7), bits(10, 5), bits(0, 10)]
    }
}

/// `W.X`, then `.Y` if not 0, then a letter if not 0 (1 is `a`), then `-build` if not 0.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [w, x, y, letter, build] = self.parts();
        write!(f, "{w}.{x}")?;
        if y > 0 {
            write!(f, ".{y}")?;
        }
        match letter {
            0 => {}
            1..=26 => write!(f, "{}", char::from(b'a' + (letter as u8 - 1)))?,
            // The field has five values beyond the alphabet.
            _ => write!(f, "?{letter}")?,
        }
        if build > 0 {
            write!(f, "-{build}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({:#010x})", self.0)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let bad = || format!("`{text}` is not a version like 0.2.1, 0.2.1a or 0.2.1-35");
        let number = |text: &str, bits: u32| text.parse::<u32>().ok().filter(|n| *n < 1 << bits).ok_or_else(bad);
        let (dotted, build) = text.split_once('-').unwrap_or((text, "0"));
        let letter = dotted.bytes().last().filter(u8::is_ascii_lowercase);
        let dotted = dotted.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let mut parts = dotted.split('.');
        let mut part = |bits: u32| parts.next().map(|text| number(text, bits));
        let (w, x, y) = (part(5), part(5), part(7));
        let (Some(w), Some(x), None) = (w, x, parts.next()) else { return Err(bad()) };
        let letter = letter.map_or(0, |letter| u32::from(letter - b'a') + 1);
        let packed = w? << 27 | x? << 22 | y.unwrap_or(Ok(0))? << 15 | letter << 10 | number(build, 10)?;
        let version = Version(packed);
        if version.to_string() == text { Ok(version) } else { Err(bad()) }
    }
}

/// A game server's announcement. The texts are raw bytes, up to any NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement<'a> {
    pub version: Version,
    /// The port of the game.
    pub port: u16,
    pub players_current: u16,
    pub players_max: u16,
    pub name: &'a [u8],
    pub mode: &'a [u8],
    pub map: &'a [u8],
}

impl<'a> Announcement<'a> {
    /// Parses the bytes from [`BODY`] on: exactly [`BODY_SIZE`].
    pub fn parse_body(body: &'a [u8]) -> Option<Announcement<'a>> {
        let mut fields = Reader::new(body);
        let announcement = Announcement {
            version: Version(fields.u32_le()?),
            port: fields.u16_le()?,
            players_current: fields.u16_le()?,
            players_max: fields.u16_le()?,
            name: fields.text_field(NAME_SIZE)?,
            mode: fields.text_field(MODE_SIZE)?,
            map: fields.text_field(MAP_SIZE)?,
        };
        fields.rest().is_empty().then_some(announcement)
    }

    /// The complete datagram. Long texts are cut.
    pub fn emit(&self, heartbeat_version: u16) -> [u8; ANNOUNCEMENT_SIZE] {
        let padded = |text: &'a [u8], size: usize| text.iter().copied().chain(std::iter::repeat(0)).take(size);
        let bytes = (ANNOUNCE.into_iter())
            .chain(heartbeat_version.to_le_bytes())
            .chain(self.version.0.to_le_bytes())
            .chain(self.port.to_le_bytes())
            .chain(self.players_current.to_le_bytes())
            .chain(self.players_max.to_le_bytes())
            .chain(padded(self.name, NAME_SIZE))
            .chain(padded(self.mode, MODE_SIZE))
            .chain(padded(self.map, MAP_SIZE));
        let mut datagram = [0; ANNOUNCEMENT_SIZE];
        for (to, from) in datagram.iter_mut().zip(bytes) {
            *to = from;
        }
        datagram
    }
}

/// A message from a game server to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToMaster<'a> {
    /// Only the versions are parsed: they decide how to parse the rest.
    Announce {
        heartbeat_version: u16,
        version: Version,
        whole: &'a [u8],
    },
    Handshake {
        cookie: &'a [u8],
    },
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    TooShort,
    UnknownMagic,
}

impl<'a> ToMaster<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<ToMaster<'a>, WireError> {
        let mut fields = Reader::new(bytes);
        match fields.array().ok_or(WireError::TooShort)? {
            ANNOUNCE => Ok(ToMaster::Announce {
                heartbeat_version: fields.u16_le().ok_or(WireError::TooShort)?,
                version: Version(fields.u32_le().ok_or(WireError::TooShort)?),
                whole: bytes,
            }),
            HANDSHAKE => Ok(ToMaster::Handshake { cookie: fields.rest() }),
            _ => Err(WireError::UnknownMagic),
        }
    }
}

/// A message from a master to a game server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromMaster<'a> {
    Accepted { cookie: &'a [u8] },
    BadVersion { heartbeat_version: u16, version: Version },
    BadFormat,
}

impl<'a> FromMaster<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<FromMaster<'a>, WireError> {
        let mut fields = Reader::new(bytes);
        match fields.array().ok_or(WireError::TooShort)? {
            ACCEPTED => Ok(FromMaster::Accepted { cookie: fields.rest() }),
            BAD_VERSION => Ok(FromMaster::BadVersion {
                heartbeat_version: fields.u16_le().ok_or(WireError::TooShort)?,
                version: Version(fields.u32_le().ok_or(WireError::TooShort)?),
            }),
            BAD_FORMAT => Ok(FromMaster::BadFormat),
            _ => Err(WireError::UnknownMagic),
        }
    }

    /// Appends the message to `out`, which must have room for it.
    pub fn emit(&self, out: &mut impl Extend<u8>) {
        match self {
            FromMaster::Accepted { cookie } => {
                out.extend(ACCEPTED);
                out.extend(cookie.iter().copied());
            }
            FromMaster::BadVersion { heartbeat_version, version } => {
                out.extend(BAD_VERSION);
                out.extend(heartbeat_version.to_le_bytes());
                out.extend(version.0.to_le_bytes());
            }
            FromMaster::BadFormat => out.extend(BAD_FORMAT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use proptest::prelude::*;

    /// Captured from a real Iceball server.
    const REAL: &str = "314345420200258080000151000040004c6f6f706261636b20546573740000000000000000000000000000000000\
                        637466000000000000006d6573612e76786c00000000000000000000000000000000000000000000";

    fn emitted(message: FromMaster<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        message.emit(&mut out);
        out
    }

    #[test]
    fn reads_and_writes_the_real_servers_announcement() {
        let real = hex(REAL);
        let announcement = Announcement::parse_body(&real[BODY..]).unwrap();
        assert_eq!(
            announcement,
            Announcement {
                version: Version(0x0080_8025),
                port: 20737,
                players_current: 0,
                players_max: 64,
                name: b"Loopback Test",
                mode: b"ctf",
                map: b"mesa.vxl",
            }
        );
        assert_eq!(announcement.version.to_string(), "0.2.1-37");
        assert_eq!(announcement.emit(2).to_vec(), real);
        let parsed = ToMaster::parse(&real).unwrap();
        assert_eq!(parsed, ToMaster::Announce { heartbeat_version: 2, version: Version(0x0080_8025), whole: &real });
    }

    #[test]
    fn writes_the_real_masters_refusals() {
        let expected: Version = "0.2.1-35".parse().unwrap();
        let bad_version = FromMaster::BadVersion { heartbeat_version: 2, version: expected };
        assert_eq!(emitted(bad_version), hex("42414456020023808000"));
        assert_eq!(emitted(FromMaster::BadFormat), hex("42414446"));
    }

    #[test]
    fn texts_may_fill_their_field() {
        let full = Announcement {
            version: Version(0),
            port: 1,
            players_current: 2,
            players_max: 3,
            name: &[b'n'; 30],
            mode: &[b'o'; 10],
            map: &[b'p'; 30],
        };
        let datagram = full.emit(2);
        assert_eq!(Announcement::parse_body(&datagram[BODY..]), Some(full));
        for len in 0..BODY_SIZE {
            assert_eq!(Announcement::parse_body(&datagram[BODY..BODY + len]), None, "cut at {len}");
        }
        assert!(Announcement::parse_body(&[0; BODY_SIZE]).is_some());
        assert_eq!(Announcement::parse_body(&[0; BODY_SIZE + 1]), None);
    }

    #[test]
    fn versions_in_text() {
        let cases = [
            (0x0080_8025, "0.2.1-37"),
            (0x0080_8023, "0.2.1-35"),
            (0x0080_8000, "0.2.1"),
            (0x0080_8400, "0.2.1a"),
            (0x0080_0000, "0.2"),
            (0x0080_03ff, "0.2-1023"),
            (1 << 27 | 2 << 22 | 1 << 15 | 26 << 10 | 7, "1.2.1z-7"),
            (31 << 27 | 31 << 22 | 127 << 15, "31.31.127"),
        ];
        for (packed, text) in cases {
            assert_eq!(Version(packed).to_string(), text);
            assert_eq!(text.parse(), Ok(Version(packed)));
        }
        assert_eq!(format!("{:?}", Version(0x0080_8025)), "0.2.1-37 (0x00808025)");
        assert_eq!(Version(0xffff_ffff).to_string(), "31.31.127?31-1023");
        assert_eq!(Version(0xffff_ffff).text().as_str(), "31.31.127?31-1023");
        for bad in [
            "", "0", "0.", "0.2.", "0.2.1.1", "0.32", "32.0", "0.2.128", "0.2-1024", "0.2.0", "a", "0.2.1ab",
            "0.2.1aa", "0.2.1A", "0.2-", "+0.2", "0.02", "0.2.1-0",
        ] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }

    #[test]
    fn builds_are_not_compared_and_all_else_is() {
        let expected: Version = "0.2.1".parse().unwrap();
        for same in [0x0080_8000, 0x0080_8025, 0x0080_83ff] {
            assert!(Version(same).plays_with(expected));
        }
        for other in ["0.2.1a", "0.2", "0.2.2", "1.2.1", "0.3.1"] {
            assert!(!other.parse::<Version>().unwrap().plays_with(expected), "{other}");
        }
    }

    proptest! {
        #[test]
        fn announcements_round_trip(version: u32, port: u16, players_current: u16, players_max: u16,
                name in proptest::collection::vec(1u8.., 0..=30), mode in proptest::collection::vec(1u8.., 0..=10),
                map in proptest::collection::vec(1u8.., 0..=30)) {
            let announcement = Announcement {
                version: Version(version), port, players_current, players_max, name: &name, mode: &mode, map: &map,
            };
            let datagram = announcement.emit(2);
            prop_assert_eq!(Announcement::parse_body(&datagram[BODY..]), Some(announcement));
        }

        #[test]
        fn answers_round_trip(cookie: Vec<u8>, heartbeat_version: u16, version: u32) {
            let version = Version(version);
            for message in [
                FromMaster::Accepted { cookie: &cookie },
                FromMaster::BadVersion { heartbeat_version, version },
                FromMaster::BadFormat,
            ] {
                let bytes = emitted(message);
                prop_assert_eq!(FromMaster::parse(&bytes), Ok(message));
            }
        }

        #[test]
        fn version_texts_round_trip(packed: u32) {
            let version = Version(packed);
            if version.parts()[3] <= 26 {
                prop_assert_eq!(version.to_string().parse(), Ok(version));
            }
        }
    }
}

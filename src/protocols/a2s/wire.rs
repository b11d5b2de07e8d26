//! The datagrams of Valve's query. Texts end with a NUL, numbers are little endian.
//!
//! | message | form |
//! |---|---|
//! | question | `FF FF FF FF T` + `Source Engine Query\0`, + the server's challenge when it has given one |
//! | challenge | `FF FF FF FF A` + u32 |
//! | answer | `FF FF FF FF I` + protocol u8, name, map, folder, game, app u16, players u8, most u8, bots u8, type u8, system u8, password u8, secure u8, version, more |
//! | answer of old games | `FF FF FF FF m` + address, name, map, folder, game, players u8, most u8, protocol u8, type u8, system u8, password u8, mod u8, …, secure u8, bots u8 |

use std::fmt;

use crate::bytes::Reader;

const HEADER: [u8; 4] = [0xff; 4];
const QUESTION: &[u8] = b"TSource Engine Query\0";
/// Of The Ship, whose answers have three more bytes.
const SHIP: u16 = 2400;

/// Writes the question, with the server's challenge if it has given one.
pub fn ask(challenge: Option<u32>, out: &mut impl Extend<u8>) {
    out.extend(HEADER);
    out.extend(QUESTION.iter().copied());
    out.extend(challenge.into_iter().flat_map(u32::to_le_bytes));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Challenge(u32),
    Info(Info<'a>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info<'a> {
    pub name: &'a [u8],
    pub map: &'a [u8],
    pub folder: &'a [u8],
    pub game: &'a [u8],
    pub version: &'a [u8],
    pub players: u8,
    pub max: u8,
    pub bots: u8,
    pub kind: u8,
    pub system: u8,
    pub password: bool,
    pub secure: bool,
    pub keywords: &'a [u8],
}

/// Why bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    Unknown,
    Short,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireError::Unknown => "it is not an answer to A2S_INFO",
            WireError::Short => "the answer is cut off",
        })
    }
}

impl<'a> Answer<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Answer<'a>, WireError> {
        let mut fields = Reader::new(bytes.strip_prefix(&HEADER).ok_or(WireError::Unknown)?);
        let answer = match fields.u8().ok_or(WireError::Short)? {
            b'A' => fields.u32_le().map(Answer::Challenge),
            b'I' => info(fields).map(Answer::Info),
            b'm' => old_info(fields).map(Answer::Info),
            _ => return Err(WireError::Unknown),
        };
        answer.ok_or(WireError::Short)
    }
}

/// A text up to its NUL, which must be there.
fn text<'a>(fields: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = fields.rest().iter().position(|&byte| byte == 0)?;
    let text = fields.take(length)?;
    fields.u8()?;
    Some(text)
}

fn info(mut fields: Reader<'_>) -> Option<Info<'_>> {
    fields.u8()?; // the protocol
    let [name, map, folder, game] = texts(&mut fields)?;
    let app = fields.u16_le()?;
    let [players, max, bots, kind, system, password, secure] = fields.array()?;
    if app == SHIP {
        fields.take(3)?;
    }
    let version = text(&mut fields)?;
    // What follows is optional, and some games write it wrong.
    let keywords = keywords(fields).unwrap_or_default();
    let (password, secure) = (password != 0, secure != 0);
    Some(Info { name, map, folder, game, version, players, max, bots, kind, system, password, secure, keywords })
}

fn texts<'a>(fields: &mut Reader<'a>) -> Option<[&'a [u8]; 4]> {
    Some([text(fields)?, text(fields)?, text(fields)?, text(fields)?])
}

/// Behind the version: flags, and what they say is there.
fn keywords(mut fields: Reader<'_>) -> Option<&[u8]> {
    let flags = fields.u8()?;
    if flags & 0x80 != 0 {
        fields.take(2)?; // the port
    }
    if flags & 0x10 != 0 {
        fields.take(8)?; // the server's number
    }
    if flags & 0x40 != 0 {
        fields.take(2)?; // spectators: a port and a name
        text(&mut fields)?;
    }
    (flags & 0x20 != 0).then(|| text(&mut fields))?
}

fn old_info(mut fields: Reader<'_>) -> Option<Info<'_>> {
    text(&mut fields)?; // the server's own idea of its address
    let [name, map, folder, game] = texts(&mut fields)?;
    let [players, max, _protocol, kind, system, password, is_mod] = fields.array()?;
    if is_mod == 1 {
        // Two links, an empty text, version u32, size u32, type u8, own library u8.
        text(&mut fields)?;
        text(&mut fields)?;
        fields.take(11)?;
    }
    let [secure, bots] = fields.array()?;
    let (password, secure, version, keywords) = (password != 0, secure != 0, &b""[..], &b""[..]);
    Some(Info { name, map, folder, game, version, players, max, bots, kind, system, password, secure, keywords })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use proptest::prelude::*;

    #[test]
    fn questions_with_and_without_a_challenge() {
        let mut bytes = Vec::new();
        ask(None, &mut bytes);
        assert_eq!(bytes, hex("ffffffff54536f7572636520456e67696e6520517565727900"));
        bytes.clear();
        ask(Some(0x0a0b_0c0d), &mut bytes);
        assert_eq!(bytes, hex("ffffffff54536f7572636520456e67696e65205175657279000d0c0b0a"));
        assert_eq!(Answer::parse(&hex("ffffffff410d0c0b0a")), Ok(Answer::Challenge(0x0a0b_0c0d)));
    }

    /// The example of Valve's own page: a Counter-Strike: Source server, with keywords.
    #[test]
    fn a_new_answer() {
        let bytes = hex(
            "ffffffff49 02 67616d6532786c6f6f2e636f6d00 64655f6475737400 63737472696b6500 436f756e7465722d537472696b653a20536f7572636500 f000 05 10 04 64 6c 00 00 312e302e302e323200 b1 8769 0102030405060708 736563757265 00",
        );
        let Ok(Answer::Info(info)) = Answer::parse(&bytes) else { panic!() };
        assert_eq!((info.name, info.map, info.folder), (&b"game2xloo.com"[..], &b"de_dust"[..], &b"cstrike"[..]));
        assert_eq!((info.game, info.version), (&b"Counter-Strike: Source"[..], &b"1.0.0.22"[..]));
        assert_eq!((info.players, info.max, info.bots, info.password, info.secure), (5, 16, 4, false, false));
        assert_eq!((info.kind, info.system, info.keywords), (b'd', b'l', &b"secure"[..]));
        for length in 0..bytes.len() {
            let _ = Answer::parse(&bytes[..length]);
        }
    }

    #[test]
    fn keywords_are_found_behind_whatever_the_flags_say_is_there() {
        let head = b"\xff\xff\xff\xffI\x11name\0map\0folder\0game\0\x0a\x00\x01\x08\x00dl\x00\x001.0\0";
        let parts: [(u8, &[u8]); 4] =
            [(0x80, b"PP"), (0x10, b"12345678"), (0x40, b"SSspectators\0"), (0x20, b"fun,new\0")];
        for chosen in 0..16 {
            let there =
                || parts.iter().enumerate().filter(|(number, _)| chosen >> number & 1 == 1).map(|(_, part)| part);
            // The lowest flag, a game's own number, comes last.
            let flags = there().fold(1, |flags, (flag, _)| flags | flag);
            let parts: Vec<u8> = there().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
            let bytes = [&head[..], &[flags], &parts, b"12345\0\0\0"].concat();
            let Ok(Answer::Info(info)) = Answer::parse(&bytes) else { panic!("{flags:x}") };
            assert_eq!(info.keywords, if flags & 0x20 != 0 { &b"fun,new"[..] } else { b"" }, "{flags:x}");
        }
    }

    #[test]
    fn an_old_answer_of_a_mod() {
        let bytes = [
            &b"\xff\xff\xff\xffm127.0.0.1:27015\0Old Box\0crossfire\0valve\0Half-Life\0"[..],
            &[3, 8, 47, b'd', b'w', 1, 1],
            b"http://a\0http://b\0\0",
            &[1, 0, 0, 0, 2, 0, 0, 0, 0, 1],
            &[1, 2],
        ]
        .concat();
        let Ok(Answer::Info(info)) = Answer::parse(&bytes) else { panic!() };
        assert_eq!(
            (info.name, info.map, info.folder, info.game),
            (&b"Old Box"[..], &b"crossfire"[..], &b"valve"[..], &b"Half-Life"[..])
        );
        assert_eq!((info.players, info.max, info.bots, info.password, info.secure), (3, 8, 2, true, true));
    }

    #[test]
    fn what_is_no_answer() {
        for (bytes, error) in [
            (&b""[..], WireError::Unknown),
            (b"\xff\xff\xff\xff", WireError::Short),
            (b"\xff\xff\xff\xffD\0", WireError::Unknown),
            (b"\xff\xff\xff\xffA\x01\x02\x03", WireError::Short),
            (b"\xff\xff\xff\xffI\x11name", WireError::Short),
        ] {
            assert_eq!(Answer::parse(bytes), Err(error));
        }
        assert!(
            WireError::Unknown.to_string().contains("not an answer")
                && WireError::Short.to_string().contains("cut off")
        );
    }

    proptest! {
        #[test]
        fn anything_can_be_parsed(bytes: Vec<u8>, kind in proptest::sample::select(b"AIm".to_vec())) {
            let _ = Answer::parse(&[&HEADER[..], &[kind], &bytes].concat());
        }
    }
}

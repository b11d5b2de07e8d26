//! The headers of a register request, the challenge that follows it, and the game's own query.
//!
//! | message | bytes |
//! |---|---|
//! | challenge, 0.6 | `FF`×10 `chal` + Challenge-Secret + `00` + token + `00` |
//! | challenge, 0.7 | `21` + the four bytes of Connless-Token + `FF`×8 `chal` + Challenge-Secret + `00` + token + `00` |
//! | question | `xe` + token bits 16-23, 8-15 + `0000` + `FF`×4 `gie3` + token bits 0-7 |
//! | answer | `FF`×10 `iext` + texts that end with `00`: the token in decimal, then the server, then six for each client |
//! | more clients | `FF`×10 `iex+` + the token, the packet's number and a reserved text, then six for each client |

use std::fmt;

const CONNLESS: &[u8; 6] = &[0xff; 6];
const EXTENDED: &[u8; 2] = b"xe";
const CHALLENGE: &[u8; 8] = b"\xff\xff\xff\xffchal";
const GET_INFO: &[u8; 8] = b"\xff\xff\xff\xffgie3";
const INFO: &[u8; 8] = b"\xff\xff\xff\xffiext";
const MORE: &[u8; 8] = b"\xff\xff\xff\xffiex+";
/// The flags and version of a 0.7 packet without a connection.
const CONNLESS_0_7: u8 = 0x21;

/// Upper bound on Secret, Challenge-Secret, tokens and Connless-Token, as in the original.
const VALUE_BYTES_MAX: usize = 64;
/// The game's Secret is a UUID. One that can be guessed would let others remove the server.
const SECRET_BYTES_MIN: usize = 16;
/// What stands for the address of the connection.
const HOST: &str = "connecting-address.invalid";

/// The bits of the token that a game returns.
pub const TOKEN_MASK: u32 = 0x00ff_ffff;

/// A version of Teeworlds' protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V5,
    V6,
    V7,
}

impl Version {
    pub const ALL: [Version; 3] = [Version::V5, Version::V6, Version::V7];

    pub fn scheme(self) -> &'static str {
        match self {
            Version::V5 => "tw-0.5+udp",
            Version::V6 => "tw-0.6+udp",
            Version::V7 => "tw-0.7+udp",
        }
    }

    /// Its second number.
    pub fn digit(self) -> u8 {
        match self {
            Version::V5 => b'5',
            Version::V6 => b'6',
            Version::V7 => b'7',
        }
    }
}

/// The version and the place of an address like `tw-0.6+udp://127.0.0.1:8303`.
pub fn split_address(text: &str) -> Option<(Version, &str)> {
    let (scheme, place) = text.split_once("://")?;
    let version = Version::ALL.into_iter().find(|version| version.scheme() == scheme)?;
    Some((version, place))
}

/// The headers of a request, without the body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Register<'a> {
    pub version: Version,
    pub port: u16,
    pub secret: &'a str,
    pub action: Action<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action<'a> {
    Delete,
    Register { challenge: Challenge<'a>, token: Option<&'a str>, serial: i64 },
}

/// What a challenge needs from the request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Challenge<'a> {
    pub secret: &'a str,
    /// For 0.7 only.
    pub connless_token: [u8; 4],
}

/// What is wrong with a request. It never has a value of the request: that may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    Missing(&'static str),
    TooLong(&'static str),
    ShortSecret,
    Address,
    ConnlessToken,
    ChallengeSecret,
    Serial,
    Action,
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRequest::Missing(name) => write!(f, "missing or invalid header {name}"),
            BadRequest::TooLong(name) => write!(f, "{name} must have at most {VALUE_BYTES_MAX} characters"),
            BadRequest::ShortSecret => write!(f, "Secret must have at least {SECRET_BYTES_MIN} characters"),
            BadRequest::Address => {
                write!(f, "Address must be tw-0.6+udp://{HOST}:PORT, or the same with tw-0.5+udp or tw-0.7+udp")
            }
            BadRequest::ConnlessToken => f.write_str("Connless-Token must be 8 hexadecimal digits"),
            BadRequest::ChallengeSecret => {
                f.write_str("Challenge-Secret must consist of letters, digits and the characters - : . /")
            }
            BadRequest::Serial => f.write_str("Info-Serial must be an integer of 64 bits"),
            BadRequest::Action => f.write_str("Action must be delete or absent"),
        }
    }
}

impl<'a> Register<'a> {
    /// Reads the headers of a request; names are in lower case.
    pub fn parse(header: impl Fn(&'static str) -> Option<&'a str>) -> Result<Register<'a>, BadRequest> {
        let optional = |name: &'static str, shown: &'static str| match header(name) {
            Some(value) if value.len() > VALUE_BYTES_MAX => Err(BadRequest::TooLong(shown)),
            value => Ok(value),
        };
        let required = |name, shown| optional(name, shown)?.ok_or(BadRequest::Missing(shown));
        let (version, port) = address(header("address").ok_or(BadRequest::Missing("Address"))?)?;
        let secret = required("secret", "Secret")?;
        if secret.len() < SECRET_BYTES_MIN {
            return Err(BadRequest::ShortSecret);
        }
        let action = match header("action") {
            Some("delete") => Action::Delete,
            Some(_) => return Err(BadRequest::Action),
            None => {
                let connless_token = match version {
                    Version::V7 => connless_token(required("connless-token", "Connless-Token")?)?,
                    Version::V5 | Version::V6 => [0; 4],
                };
                let challenge = required("challenge-secret", "Challenge-Secret")?;
                // It goes into a datagram to a port that the client chooses.
                if !challenge.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-:./".contains(&byte)) {
                    return Err(BadRequest::ChallengeSecret);
                }
                let serial = required("info-serial", "Info-Serial")?.parse().map_err(|_| BadRequest::Serial)?;
                Action::Register {
                    challenge: Challenge { secret: challenge, connless_token },
                    token: optional("challenge-token", "Challenge-Token")?,
                    serial,
                }
            }
        };
        Ok(Register { version, port, secret, action })
    }
}

fn address(text: &str) -> Result<(Version, u16), BadRequest> {
    let (version, place) = split_address(text).ok_or(BadRequest::Address)?;
    let port = place.strip_prefix(HOST).and_then(|rest| rest.strip_prefix(':')).ok_or(BadRequest::Address)?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| is_number && *port > 0).ok_or(BadRequest::Address)?;
    Ok((version, port))
}

fn connless_token(text: &str) -> Result<[u8; 4], BadRequest> {
    let is_token = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u32::from_str_radix(text, 16).ok().filter(|_| is_token).ok_or(BadRequest::ConnlessToken)?;
    Ok(number.to_be_bytes())
}

impl Challenge<'_> {
    /// The datagram with this token.
    pub fn emit(&self, version: Version, token: &[u8]) -> Vec<u8> {
        let start = match version {
            Version::V5 | Version::V6 => CONNLESS.to_vec(),
            Version::V7 => [&[CONNLESS_0_7], &self.connless_token[..], &[0xff; 4]].concat(),
        };
        [&start, &CHALLENGE[..], self.secret.as_bytes(), &[0], token, &[0]].concat()
    }
}

/// What a game sees in a challenge: the Challenge-Secret and the token.
pub fn read_challenge(version: Version, bytes: &[u8]) -> Option<(&str, &str)> {
    let rest = match version {
        Version::V5 | Version::V6 => bytes.strip_prefix(CONNLESS)?,
        Version::V7 => bytes.strip_prefix(&[CONNLESS_0_7])?.get(4..)?.strip_prefix(&[0xff; 4])?,
    };
    let mut parts = rest.strip_prefix(CHALLENGE)?.split(|byte| *byte == 0);
    let (secret, token) = (parts.next()?, parts.next()?);
    // Both end with a zero, and nothing follows.
    if parts.next() != Some(&[]) || parts.next().is_some() {
        return None;
    }
    Some((str::from_utf8(secret).ok()?, str::from_utf8(token).ok()?))
}

/// Writes a question; only the bits of [`TOKEN_MASK`] come back.
pub fn ask(token: u32, out: &mut impl Extend<u8>) {
    let [_, high, middle, low] = token.to_be_bytes();
    out.extend(EXTENDED.iter().copied().chain([high, middle, 0, 0]).chain(GET_INFO.iter().copied()).chain([low]));
}

/// Reads a question: its token.
pub fn read_question(bytes: &[u8]) -> Option<u32> {
    let ([high, middle, ..], rest) = bytes.strip_prefix(EXTENDED)?.split_first_chunk::<4>()?;
    let [low] = rest.strip_prefix(GET_INFO)? else { return None };
    Some(u32::from_be_bytes([0, *high, *middle, *low]))
}

/// A game's answer to its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Info(Box<ServerInfo<'a>>),
    /// The clients that did not fit into the first packet.
    More {
        token: u32,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerInfo<'a> {
    pub token: u32,
    pub version: &'a [u8],
    pub name: &'a [u8],
    pub map: &'a [u8],
    pub map_crc: i32,
    pub map_size: i32,
    pub game_type: &'a [u8],
    pub has_password: bool,
    pub players: u16,
    pub players_max: u16,
    pub clients: u16,
    pub clients_max: u16,
    /// Those that fit into the packet.
    pub present: Vec<Client<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client<'a> {
    pub name: &'a [u8],
    pub clan: &'a [u8],
    pub country: i32,
    pub score: i32,
    pub is_player: bool,
}

/// Why bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadAnswer {
    /// Neither `iext` nor `iex+`: a server without extended answers sends `inf3`, which has too few bits of the token.
    NotExtended,
    CutOff,
    /// A text that has to be a number.
    NotANumber,
    /// More players than clients or places.
    Impossible,
}

impl fmt::Display for BadAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadAnswer::NotExtended => "not an extended answer (iext)",
            BadAnswer::CutOff => "the answer is cut off",
            BadAnswer::NotANumber => "a number is missing",
            BadAnswer::Impossible => "more players than places",
        })
    }
}

impl<'a> Answer<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Answer<'a>, BadAnswer> {
        let rest = bytes.strip_prefix(CONNLESS).ok_or(BadAnswer::NotExtended)?;
        if let Some(rest) = rest.strip_prefix(MORE) {
            return Ok(Answer::More { token: Texts(rest).number()? });
        }
        let mut texts = Texts(rest.strip_prefix(INFO).ok_or(BadAnswer::NotExtended)?);
        let mut info = ServerInfo {
            token: texts.number()?,
            version: texts.next()?,
            name: texts.next()?,
            map: texts.next()?,
            map_crc: texts.number()?,
            map_size: texts.number()?,
            game_type: texts.next()?,
            has_password: texts.number::<i32>()? & 1 != 0,
            players: texts.number()?,
            players_max: texts.number()?,
            clients: texts.number()?,
            clients_max: texts.number()?,
            present: Vec::new(),
        };
        if info.players > info.clients || info.players_max > info.clients_max {
            return Err(BadAnswer::Impossible);
        }
        texts.next()?; // reserved
        while !texts.0.is_empty() {
            info.present.push(Client::parse(&mut texts)?);
        }
        Ok(Answer::Info(Box::new(info)))
    }
}

impl<'a> Client<'a> {
    fn parse(texts: &mut Texts<'a>) -> Result<Client<'a>, BadAnswer> {
        let client = Client {
            name: texts.next()?,
            clan: texts.next()?,
            country: texts.number()?,
            score: texts.number()?,
            is_player: texts.number::<i32>()? != 0,
        };
        texts.next()?; // reserved
        Ok(client)
    }
}

impl ServerInfo<'_> {
    pub fn emit(&self) -> Vec<u8> {
        let mut out = [&CONNLESS[..], INFO].concat();
        let mut text = |text: &[u8]| {
            out.extend(text.iter().filter(|byte| **byte != 0));
            out.push(0);
        };
        let decimal = |number: i64| number.to_string().into_bytes();
        text(&decimal(self.token.into()));
        for part in [self.version, self.name, self.map] {
            text(part);
        }
        text(&decimal(self.map_crc.into()));
        text(&decimal(self.map_size.into()));
        text(self.game_type);
        text(&decimal(self.has_password.into()));
        for count in [self.players, self.players_max, self.clients, self.clients_max] {
            text(&decimal(count.into()));
        }
        text(b"");
        for client in &self.present {
            text(client.name);
            text(client.clan);
            text(&decimal(client.country.into()));
            text(&decimal(client.score.into()));
            text(&decimal(client.is_player.into()));
            text(b"");
        }
        out
    }
}

/// Texts that each end with a zero.
struct Texts<'a>(&'a [u8]);

impl<'a> Texts<'a> {
    fn next(&mut self) -> Result<&'a [u8], BadAnswer> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(BadAnswer::CutOff)?;
        let (text, rest) = self.0.split_at_checked(end).ok_or(BadAnswer::CutOff)?;
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(text)
    }

    /// A text that is a number in decimal.
    fn number<N: std::str::FromStr>(&mut self) -> Result<N, BadAnswer> {
        let text = str::from_utf8(self.next()?).ok();
        text.and_then(|text| text.parse().ok()).ok_or(BadAnswer::NotANumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use crate::protocols::ddnet::testing::{CHALLENGE_SECRET, SECRET, headers};

    fn parse(changes: &[(&'static str, Option<&'static str>)]) -> Result<Register<'static>, BadRequest> {
        let headers = headers(changes);
        Register::parse(|name| headers.iter().find(|(found, _)| *found == name).map(|(_, value)| *value))
    }

    #[test]
    fn requests_of_a_real_server() {
        let register = parse(&[]).unwrap();
        assert!(register.version == Version::V6 && register.port == 8303 && register.secret == SECRET);
        let challenge = Challenge { secret: CHALLENGE_SECRET, connless_token: [0; 4] };
        assert!(register.action == Action::Register { challenge, token: None, serial: 0 });

        let seven = [
            ("address", Some("tw-0.7+udp://connecting-address.invalid:8303")),
            ("connless-token", Some("dd3f9563")),
            ("challenge-token", Some("tok-tw-0.7+udp")),
            ("info-serial", Some("-3")),
        ];
        let register = parse(&seven).unwrap();
        let challenge = Challenge { secret: CHALLENGE_SECRET, connless_token: [0xdd, 0x3f, 0x95, 0x63] };
        assert!(register.version == Version::V7);
        assert!(register.action == Action::Register { challenge, token: Some("tok-tw-0.7+udp"), serial: -3 });

        let delete = [("action", Some("delete")), ("challenge-secret", None), ("info-serial", None)];
        assert!(parse(&delete).unwrap().action == Action::Delete);
    }

    #[test]
    fn bad_requests_are_explained_without_their_values() {
        let long = &*"x".repeat(65).leak();
        for (name, value, expected) in [
            ("address", None, BadRequest::Missing("Address")),
            ("address", Some("tw-0.6+udp://127.0.0.1:8303"), BadRequest::Address),
            ("address", Some("tw-0.8+udp://connecting-address.invalid:8303"), BadRequest::Address),
            ("address", Some("tw-0.6+udp://connecting-address.invalid:0"), BadRequest::Address),
            ("address", Some("tw-0.6+udp://connecting-address.invalid:65536"), BadRequest::Address),
            ("address", Some("tw-0.6+udp://connecting-address.invalid:+1"), BadRequest::Address),
            ("address", Some("tw-0.6+udp://connecting-address.invalid"), BadRequest::Address),
            ("address", Some("tw-0.7+udp://connecting-address.invalid:1"), BadRequest::Missing("Connless-Token")),
            ("secret", None, BadRequest::Missing("Secret")),
            ("secret", Some("short"), BadRequest::ShortSecret),
            ("secret", Some(long), BadRequest::TooLong("Secret")),
            ("challenge-secret", None, BadRequest::Missing("Challenge-Secret")),
            ("challenge-secret", Some("a b"), BadRequest::ChallengeSecret),
            ("challenge-secret", Some(long), BadRequest::TooLong("Challenge-Secret")),
            ("challenge-token", Some(long), BadRequest::TooLong("Challenge-Token")),
            ("info-serial", None, BadRequest::Missing("Info-Serial")),
            ("info-serial", Some("1.5"), BadRequest::Serial),
            ("info-serial", Some("9223372036854775808"), BadRequest::Serial),
            ("action", Some("register"), BadRequest::Action),
        ] {
            let error = parse(&[(name, value)]).err();
            assert_eq!(error, Some(expected), "{name}: {value:?}");
            assert!(!expected.to_string().contains(SECRET) && !expected.to_string().contains("xxx"));
        }
        for bad in ["dd3f956", "dd3f95633", "dd3f956g", "+d3f9563"] {
            let seven = Some("tw-0.7+udp://connecting-address.invalid:1");
            let error = parse(&[("address", seven), ("connless-token", Some(bad))]).err();
            assert_eq!(error, Some(BadRequest::ConnlessToken), "{bad}");
        }
    }

    #[test]
    fn values_may_have_64_characters_and_a_secret_must_have_16() {
        let longest = &*"x".repeat(64).leak();
        for name in ["secret", "challenge-secret", "challenge-token"] {
            assert!(parse(&[(name, Some(longest))]).is_ok(), "{name}");
        }
        let shortest = parse(&[("secret", Some("0123456789abcdef"))]).unwrap();
        assert_eq!(shortest.secret.len(), 16);
        assert_eq!(parse(&[("secret", Some("0123456789abcde"))]).err(), Some(BadRequest::ShortSecret));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (error, named) in [
            (BadRequest::Missing("Secret"), "header Secret"),
            (BadRequest::TooLong("Secret"), "Secret must have at most 64"),
            (BadRequest::ShortSecret, "at least 16"),
            (BadRequest::Address, "tw-0.6+udp://connecting-address.invalid:PORT"),
            (BadRequest::ConnlessToken, "Connless-Token"),
            (BadRequest::ChallengeSecret, "Challenge-Secret"),
            (BadRequest::Serial, "Info-Serial"),
            (BadRequest::Action, "Action"),
        ] {
            assert!(error.to_string().contains(named), "{error}");
        }
        assert!(BadAnswer::NotExtended.to_string().contains("iext"));
        assert!(BadAnswer::CutOff.to_string().contains("cut off"));
    }

    #[test]
    fn challenges_byte_for_byte() {
        let seven = Challenge {
            secret: "9eab27de-20c4-431c-b4be-bf15c7b3d21b:tw0.7/ipv4",
            connless_token: [0xdd, 0x3f, 0x95, 0x63],
        };
        let six = Challenge { secret: CHALLENGE_SECRET, connless_token: [0; 4] };
        let golden_6 = hex(concat!(
            "ffffffffffffffffffff6368616c39656162323764652d323063342d343331632d623462652d62663135633762336432",
            "31623a7477302e362f6970763400746f6b2d74772d302e362b75647000",
        ));
        let golden_7 = hex(concat!(
            "21dd3f9563ffffffffffffffff6368616c39656162323764652d323063342d343331632d623462652d62663135633762",
            "33643231623a7477302e372f6970763400746f6b2d74772d302e372b75647000",
        ));
        assert_eq!(six.emit(Version::V6, b"tok-tw-0.6+udp"), golden_6);
        assert_eq!(six.emit(Version::V5, b"tok-tw-0.6+udp"), golden_6);
        assert_eq!(seven.emit(Version::V7, b"tok-tw-0.7+udp"), golden_7);
        assert_eq!(read_challenge(Version::V6, &golden_6), Some((six.secret, "tok-tw-0.6+udp")));
        assert_eq!(read_challenge(Version::V7, &golden_7), Some((seven.secret, "tok-tw-0.7+udp")));
        assert_eq!(read_challenge(Version::V7, &golden_6), None);
        for len in 0..golden_7.len() {
            assert_eq!(read_challenge(Version::V7, &golden_7[..len]), None);
        }
    }

    #[test]
    fn questions_carry_24_bits() {
        let mut question = Vec::new();
        ask(0xffab_cdef, &mut question);
        assert_eq!(question, hex("7865abcd0000 ffffffff67696533 ef"));
        assert_eq!(read_question(&question), Some(0x00ab_cdef));
        assert_eq!(read_question(&hex("ffffffffffff ffffffff67696533 ef")), None, "the short form has 8 bits");
        assert_eq!(read_question(&question[..question.len() - 1]), None);
    }

    fn info() -> ServerInfo<'static> {
        let client = Client { name: b"Alice", clan: b"A", country: -1, score: -9999, is_player: true };
        ServerInfo {
            token: 0xab_cdef,
            version: b"0.6.4, 16.4",
            name: b"Loopback DD",
            map: b"Tutorial",
            map_crc: -5,
            map_size: 1_082_711,
            game_type: b"TestDDraceNetwork",
            has_password: true,
            players: 1,
            players_max: 16,
            clients: 2,
            clients_max: 16,
            present: vec![client, Client { name: b"Bob", clan: b"", is_player: false, ..client }],
        }
    }

    #[test]
    fn answers_in_both_directions() {
        let bytes = info().emit();
        let text = concat!(
            "11259375\x000.6.4, 16.4\0Loopback DD\0Tutorial\0-5\x001082711\0TestDDraceNetwork\x001\x001\x0016\x002\x0016\0\0",
            "Alice\0A\0-1\0-9999\x001\0\0Bob\0\0-1\0-9999\x000\0\0",
        );
        assert_eq!(bytes, [&hex("ffffffffffff ffffffff69657874"), text.as_bytes()].concat());
        assert_eq!(Answer::parse(&bytes), Ok(Answer::Info(Box::new(info()))));
        let more = [&hex("ffffffffffff ffffffff6965782b")[..], b"11259375\x001\0\0Carol\0\0-1\x000\x001\0\0"].concat();
        assert_eq!(Answer::parse(&more), Ok(Answer::More { token: 0xab_cdef }));
    }

    #[test]
    fn the_answer_of_a_real_server() {
        let texts = concat!(
            "11259375\x000.6.4, 16.4\0Loopback DD\0Tutorial\0-1924373370\x001082711\0TestDDraceNetwor\0",
            "0\x000\x0064\x000\x0064\0\0",
        );
        let bytes = [&hex("ffffffffffff ffffffff69657874"), texts.as_bytes()].concat();
        let Ok(Answer::Info(info)) = Answer::parse(&bytes) else { panic!() };
        assert_eq!((info.token, info.map_crc, info.clients_max), (0xab_cdef, -1_924_373_370, 64));
        assert_eq!(info.emit(), bytes);
    }

    #[test]
    fn impossible_and_cut_answers_are_refused() {
        let bytes = info().emit();
        for len in 0..bytes.len() {
            // A cut between two clients cannot be seen.
            let answer = Answer::parse(&bytes[..len]);
            assert!(answer.is_err() || matches!(&answer, Ok(Answer::Info(info)) if info.present.len() < 2), "{len}");
        }
        let parse = |info: ServerInfo<'_>| Answer::parse(&info.emit()).map(drop);
        assert_eq!(parse(ServerInfo { players: 3, ..info() }), Err(BadAnswer::Impossible));
        assert_eq!(parse(ServerInfo { players_max: 17, ..info() }), Err(BadAnswer::Impossible));
        assert_eq!(Answer::parse(&hex("ffffffffffff ffffffff696e6633 3700")), Err(BadAnswer::NotExtended));
    }
}

//! netPanzer's messages: tokens separated by `\`.
//!
//! A message to a master is a type, then keys and values, up to the token `final`. Runs of the separator collapse, so there are
//! no empty tokens; there is no escaping; bytes are opaque and case-sensitive. `final` in place of a value also ends the message
//! and drops the key. Of duplicate keys, the first counts.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::model::Address;

pub const SEPARATOR: u8 = b'\\';
pub const FINAL: &[u8] = b"final";

/// Upper bounds on tokens, keys and messages that a master accepts.
pub const TOKEN_BYTES_MAX: usize = 512;
pub const KEYS_MAX: usize = 64;
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Upper bound on the servers in a list.
const LIST_MAX: usize = 100_000;

/// A complete message to a master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `heartbeat`, `quit`, `list`, or something else; empty for a bare `final`.
    pub kind: Vec<u8>,
    pub pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Request {
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.pairs.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_slice())
    }

    /// The message as bytes, as the game's programs write it.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let tokens = self.pairs.iter().flat_map(|(key, value)| [key.as_slice(), value]);
        for token in std::iter::once(self.kind.as_slice()).chain(tokens).chain([FINAL]) {
            out.push(SEPARATOR);
            out.extend_from_slice(token);
        }
        out.push(SEPARATOR);
        out
    }
}

/// The limit that a request exceeds; the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMuch {
    Token,
    Keys,
    Message,
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TooMuch::Token => "token too long",
            TooMuch::Keys => "too many keys",
            TooMuch::Message => "message too long",
        })
    }
}

/// Why a text cannot be sent as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsendable {
    Empty,
    Separator,
    Final,
    TooLong,
}

impl fmt::Display for Unsendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsendable::Empty => f.write_str("it is empty"),
            Unsendable::Separator => f.write_str("it has a backslash, which separates keys and values"),
            Unsendable::Final => f.write_str("the word `final` ends a message"),
            Unsendable::TooLong => write!(f, "it is longer than {TOKEN_BYTES_MAX} bytes"),
        }
    }
}

/// Whether a master would parse these bytes as one value.
pub fn check_value(value: &[u8]) -> Result<(), Unsendable> {
    match value {
        [] => Err(Unsendable::Empty),
        value if value.contains(&SEPARATOR) => Err(Unsendable::Separator),
        value if value == FINAL => Err(Unsendable::Final),
        value if value.len() > TOKEN_BYTES_MAX => Err(Unsendable::TooLong),
        _ => Ok(()),
    }
}

/// Assembles requests from bytes that arrive in pieces of any size.
#[derive(Default)]
pub struct RequestReader {
    token: Vec<u8>,
    /// The tokens of the message so far: the type, then keys and values in turn.
    kind: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

impl RequestReader {
    /// Reads until a message is complete: the number of bytes read, and the message.
    pub fn read(&mut self, input: &[u8]) -> (usize, Option<Result<Request, TooMuch>>) {
        for (at, &byte) in input.iter().enumerate() {
            self.bytes += 1;
            let result = if byte == SEPARATOR { self.end_token() } else { self.push(byte) };
            if let Some(result) = result {
                return (at + 1, Some(result));
            }
        }
        (input.len(), None)
    }

    /// The input has ended. This ends a token like a separator does; an incomplete message is dropped.
    pub fn end(&mut self) -> Option<Result<Request, TooMuch>> {
        self.end_token()
    }

    fn push(&mut self, byte: u8) -> Option<Result<Request, TooMuch>> {
        if self.token.len() >= TOKEN_BYTES_MAX {
            return Some(Err(TooMuch::Token));
        }
        if self.bytes > MESSAGE_BYTES_MAX {
            return Some(Err(TooMuch::Message));
        }
        self.token.push(byte);
        None
    }

    fn end_token(&mut self) -> Option<Result<Request, TooMuch>> {
        if self.token.is_empty() {
            // A run of separators counts as one, but its length is limited, too.
            return (self.bytes > MESSAGE_BYTES_MAX).then_some(Err(TooMuch::Message));
        }
        let token = std::mem::take(&mut self.token);
        if token == FINAL {
            let RequestReader { kind, pairs, .. } = std::mem::take(self);
            return Some(Ok(Request { kind: kind.unwrap_or_default(), pairs }));
        }
        if self.kind.is_none() {
            self.kind = Some(token);
        } else if let Some(key) = self.key.take() {
            if !self.pairs.iter().any(|(known, _)| *known == key) {
                if self.pairs.len() >= KEYS_MAX {
                    return Some(Err(TooMuch::Keys));
                }
                self.pairs.push((key, token));
            }
        } else {
            self.key = Some(token);
        }
        None
    }
}

/// Why a list or a status is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// It does not end in `final`: it is truncated, or something else.
    NotFinal,
    /// The master answered with an error.
    Error,
    /// It contains an invalid address.
    BadAddress,
    TooLong,
    /// It is not the status of a game: no gamename or hostname.
    NotAStatus,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireError::NotFinal => "cut short: no `final` at its end",
            WireError::Error => "the master answered with an error",
            WireError::BadAddress => "a server in the list has no usable address",
            WireError::TooLong => "too many servers in one list",
            WireError::NotAStatus => "not a status: neither gamename nor hostname in it",
        })
    }
}

impl std::error::Error for WireError {}

/// One server in a plain list.
pub fn emit_server(ip: Ipv4Addr, port: u16, out: &mut Vec<u8>) {
    use std::io::Write;
    let _ = write!(out, r"\ip\{ip}\port\{port}"); // writing to a Vec cannot fail
}

/// Parses a list in either form: `\ip\A.B.C.D\port\N…` or `\ip\A.B.C.D:N…`.
pub fn parse_list(bytes: &[u8]) -> Result<Vec<Address>, WireError> {
    let mut tokens = bytes.split(|&byte| byte == SEPARATOR).filter(|token| !token.is_empty());
    let mut servers = Vec::new();
    let text = |token: Option<&[u8]>| token.and_then(|token| str::from_utf8(token).ok().map(str::to_string));
    loop {
        match tokens.next() {
            None => return Err(WireError::NotFinal),
            Some(b"final") => return Ok(servers),
            Some(b"error") => return Err(WireError::Error),
            Some(b"ip") => {
                let place = text(tokens.next()).ok_or(WireError::NotFinal)?;
                let address = match place.parse::<SocketAddrV4>() {
                    Ok(socket) => Address::new((*socket.ip()).into(), socket.port()),
                    Err(_) => {
                        let ip: Ipv4Addr = place.parse().map_err(|_| WireError::BadAddress)?;
                        if tokens.next() != Some(b"port") {
                            return Err(WireError::BadAddress);
                        }
                        let port = text(tokens.next()).ok_or(WireError::NotFinal)?;
                        port.parse().ok().and_then(|port| Address::new(ip.into(), port))
                    }
                };
                servers.push(address.ok_or(WireError::BadAddress)?);
                if servers.len() > LIST_MAX {
                    return Err(WireError::TooLong);
                }
            }
            // `\basic\\secure\XXXXXX` precedes a list in GameSpy's form.
            Some(_) => {}
        }
    }
}

/// The pairs of a status, read in place, until `final` or an error.
pub fn status_pairs(bytes: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), WireError>> {
    let bytes = bytes.strip_prefix(&[SEPARATOR]).unwrap_or(bytes);
    let mut start = 0;
    let ends = memchr::memchr_iter(SEPARATOR, bytes).chain([bytes.len()]);
    let mut tokens = ends.map_while(move |end| bytes.get(std::mem::replace(&mut start, end + 1)..end));
    let mut is_over = false;
    std::iter::from_fn(move || {
        let key = if is_over { return None } else { tokens.next() };
        if key == Some(FINAL) {
            is_over = true;
            return None;
        }
        let pair = key.zip(tokens.next()).ok_or(WireError::NotFinal);
        is_over = pair.is_err();
        Some(pair)
    })
}

/// A game's answer to `\status\`: keys and values, where values may be empty, until `final`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status<'a> {
    pub pairs: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Status<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Status<'a>, WireError> {
        let status = Status { pairs: status_pairs(bytes).collect::<Result<_, _>>()? };
        let is_known = status.get(b"gamename").or(status.get(b"hostname")).is_some();
        if is_known { Ok(status) } else { Err(WireError::NotAStatus) }
    }

    pub fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.pairs.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for token in self.pairs.iter().flat_map(|(key, value)| [*key, *value]).chain([FINAL]) {
            out.extend_from_slice(token);
            out.push(SEPARATOR);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests(pieces: &[&[u8]]) -> Vec<Result<Request, TooMuch>> {
        let mut reader = RequestReader::default();
        let mut found = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (took, result) = reader.read(rest);
                rest = &rest[took..];
                found.extend(result);
            }
        }
        found.extend(reader.end());
        found
    }

    fn request(kind: &str, pairs: &[(&str, &str)]) -> Request {
        let pairs = pairs.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
        Request { kind: kind.into(), pairs }
    }

    #[test]
    fn the_tokenisers_rules() {
        let netpanzer = request("list", &[("gamename", "netpanzer")]);
        let cases: &[(&[u8], Vec<Request>)] = &[
            (br"\list\gamename\netpanzer\final\", vec![netpanzer.clone()]),
            (br"list\gamename\netpanzer\final\", vec![netpanzer.clone()]),
            (br"\\\list\\gamename\\\netpanzer\\final\\", vec![netpanzer.clone()]),
            (br"\list\gamename\netpanzer\final", vec![netpanzer.clone()]),
            (br"\list\gamename\netpanzer\protocol\final\", vec![netpanzer.clone()]),
            (br"\list\gamename\netpanzer\gamename\other\final\", vec![netpanzer.clone()]),
            (br"\list\gamename\netpanzer", vec![]),
            (br"\final\", vec![request("", &[])]),
            (b"", vec![]),
            (br"\list\final\", vec![request("list", &[])]),
            (
                br"\list\gamename\netpanzer\final\heartbeat\gamename\x\port\1\final\",
                vec![netpanzer.clone(), request("heartbeat", &[("gamename", "x"), ("port", "1")])],
            ),
        ];
        for (bytes, expected) in cases {
            let found: Vec<_> = requests(&[bytes]).into_iter().map(Result::unwrap).collect();
            assert_eq!(found, *expected, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn bounds_hold_without_growing() {
        let long = [&b"\\"[..], &[b'a'; TOKEN_BYTES_MAX + 1]].concat();
        assert_eq!(requests(&[&long]).first(), Some(&Err(TooMuch::Token)));
        let mut many = b"\\list".to_vec();
        for key in 0..=KEYS_MAX {
            many.extend(format!("\\k{key}\\v").bytes());
        }
        assert!(requests(&[&many, b"\\"]).contains(&Err(TooMuch::Keys)));
        let slashes = vec![SEPARATOR; MESSAGE_BYTES_MAX + 2];
        assert!(requests(&[&slashes]).contains(&Err(TooMuch::Message)));
        let same = br"\k\v".repeat(MESSAGE_BYTES_MAX);
        assert!(requests(&[&same]).contains(&Err(TooMuch::Message)));
        // Refused at the first byte beyond the bound; in the second, that is a separator, which ends a token.
        let refused = |bytes: &[u8]| RequestReader::default().read(bytes);
        assert_eq!(refused(&slashes), (MESSAGE_BYTES_MAX + 1, Some(Err(TooMuch::Message))));
        assert_eq!(refused(&same), (MESSAGE_BYTES_MAX + 2, Some(Err(TooMuch::Message))));
    }

    #[test]
    fn lists_in_both_forms() {
        let two: Vec<Address> = vec!["203.0.113.5:3030".parse().unwrap(), "203.0.113.6:3031".parse().unwrap()];
        let mut plain = Vec::new();
        for server in &two {
            emit_server(server.ipv4().unwrap(), server.port(), &mut plain);
        }
        assert_eq!(plain, br"\ip\203.0.113.5\port\3030\ip\203.0.113.6\port\3031");
        plain.extend(br"\final\");
        assert_eq!(parse_list(&plain), Ok(two.clone()));
        assert_eq!(parse_list(br"\basic\\secure\ABCDEF\ip\203.0.113.5:3030\ip\203.0.113.6:3031\final\"), Ok(two));
        assert_eq!(parse_list(br"\final\"), Ok(vec![]));
        for len in 0..plain.len() - 1 {
            assert!(parse_list(&plain[..len]).is_err(), "cut at {len}");
        }
        assert_eq!(parse_list(br"\error\Unknown request\final\"), Err(WireError::Error));
        for bad in [&br"\ip\x\port\1\final\"[..], br"\ip\1.2.3.4\port\0\final\", br"\ip\1.2.3.4\prt\1\final\"] {
            assert_eq!(parse_list(bad), Err(WireError::BadAddress));
        }
    }

    #[test]
    fn a_list_has_a_bound() {
        for entry in [r"\ip\203.0.113.5\port\3030", r"\ip\203.0.113.5:3030"] {
            let mut list = entry.repeat(100_000) + r"\final\";
            assert_eq!(parse_list(list.as_bytes()).map(|servers| servers.len()), Ok(100_000));
            list.insert_str(0, entry);
            assert_eq!(parse_list(list.as_bytes()), Err(WireError::TooLong));
        }
    }

    #[test]
    fn valid_and_invalid_values() {
        let read = |value: &[u8]| {
            let pairs = vec![(b"password".to_vec(), value.to_vec())];
            let found = requests(&[&Request { kind: b"x".to_vec(), pairs }.emit()]);
            found.first().and_then(|request| request.as_ref().ok()?.get(b"password").map(<[u8]>::to_vec))
        };
        let longest = [b'x'; TOKEN_BYTES_MAX];
        for good in [&b"secret"[..], b"Final", b"final ", b" ", "Gr\u{fc}\u{df}e".as_bytes(), &longest] {
            assert_eq!(check_value(good), Ok(()));
            assert_eq!(read(good).as_deref(), Some(good));
        }
        let too_long = [b'x'; TOKEN_BYTES_MAX + 1];
        for (bad, why) in [
            (&b""[..], Unsendable::Empty),
            (b"final", Unsendable::Final),
            (br"\", Unsendable::Separator),
            (br"a\b", Unsendable::Separator),
            (&too_long, Unsendable::TooLong),
        ] {
            assert_eq!(check_value(bad), Err(why));
            assert!(why.to_string().contains(' '), "in words");
            assert_ne!(read(bad).as_deref(), Some(bad));
        }
    }

    #[test]
    fn a_status_of_the_real_game() {
        // Captured from Debian's netpanzer 0.8.7 with one bot.
        let real: &[u8] = br"gamename\netpanzer\protocol\1122\hostname\Player113\gameversion\0.8.7\mapname\Two clans\mapcycle\Two clans, Bullet Hole\password\n\numplayers\0\maxplayers\8\empty\1\gamestyle\Objective\units_per_player\36\time\0\timelimit\30\fraglimit\300\objectivelimit\7\final\";
        let status = Status::parse(real).unwrap();
        assert_eq!(status.get(b"mapname"), Some(&b"Two clans"[..]));
        assert_eq!(status.emit(), real);
        for len in 0..real.len() - 1 {
            assert!(Status::parse(&real[..len]).is_err(), "cut at {len}");
        }
        let empty_name = Status::parse(br"\hostname\\mapname\x\final\").unwrap();
        assert_eq!((empty_name.get(b"hostname"), empty_name.get(b"mapname")), (Some(&b""[..]), Some(&b"x"[..])));
        assert_eq!(Status::parse(br"\a\b\final\"), Err(WireError::NotAStatus));
    }

    proptest! {
        #[test]
        fn any_fragmentation_gives_the_same_requests(
                tokens in proptest::collection::vec(prop_oneof!["[a-z]{1,4}", Just("final".to_string()), Just(String::new())], 0..30),
                cuts in proptest::collection::vec(any::<usize>(), 0..20)) {
            let bytes = tokens.join("\\").into_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut % (bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(requests(&pieces), requests(&[&bytes]));
        }

        #[test]
        fn requests_round_trip(kind in "[a-z]{1,8}", pairs in proptest::collection::btree_map("k[a-z]{1,5}", "v[^\\\\]{1,8}", 0..8)) {
            let pairs = pairs.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
            let request = Request { kind: format!("x{kind}").into_bytes(), pairs };
            prop_assert_eq!(requests(&[&request.emit()]), vec![Ok(request)]);
        }
    }
}

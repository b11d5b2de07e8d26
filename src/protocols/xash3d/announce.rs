//! A game server's announcement: it asks for a challenge and returns it with what it says of itself. The master lists the port
//! that it comes from, so only the game itself can send it.

use super::wire::{self, Add, Flags, Version, WORLD};
use crate::model::Facts;

/// The engine's pace; behind NAT it is a minute.
pub const EVERY_MS: u64 = 300_000;

/// What an owner does instead of announcing it with another program.
pub const ADVICE: &str = "set `public 1` and enter `addmaster HOST:PORT` in the game's console, or write the line `master HOST:PORT` to \
                          xashcomm.lst in the game's folder";

/// The request for a challenge that a server with these facts begins with.
pub fn heartbeat(of: &Facts<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::request_challenge(Some(number(of)), &mut bytes);
    bytes
}

/// The number that an engine chooses: here it follows from the facts.
fn number(of: &Facts<'_>) -> u32 {
    of.name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// What a server with these facts sends when this comes from a master. None: it is no challenge, or none that it asked for.
pub fn add(of: &Facts<'_>, answer: &[u8]) -> Option<Vec<u8>> {
    let (challenge, repeated) = wire::challenge_answer(answer)?;
    if repeated.is_some_and(|repeated| repeated != number(of)) {
        return None;
    }
    let byte = |count: Option<u16>| count.unwrap_or(0).min(255) as u8;
    let kind = of.rule("type").and_then(|kind| kind.as_bytes().get(..1)).unwrap_or_default();
    let mut flags = Flags::default();
    flags.set(Flags::PASSWORD, of.password == Some(true));
    flags.set(Flags::NAT, of.rule("nat").is_some());
    let add = Add {
        challenge,
        protocol: of.rule("protocol").and_then(|protocol| protocol.parse().ok()).unwrap_or(wire::PROTOCOL),
        players: byte(of.players_current),
        max: byte(of.players_max),
        bots: of.rule("bots").and_then(|bots| bots.parse().ok()).unwrap_or(0),
        region: WORLD,
        gamedir: of.mode.as_bytes(),
        map: of.map.as_bytes(),
        kind,
        os: b"l",
        version: of.version.parse().unwrap_or(Version { major: 0, minor: 21, patch: 0 }),
        flags,
    };
    let mut bytes = Vec::new();
    add.emit(&mut bytes);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use crate::model::Details;
    use crate::protocols::xash3d::answer::pretend;
    use std::sync::Arc;

    #[test]
    fn a_challenge_is_returned_with_the_facts_unless_it_is_for_somebody_else() {
        let facts = pretend(3);
        let request = heartbeat(&facts);
        assert!(request.len() == 6 && request.starts_with(b"q\xff"));
        let mut answer = hex("ffffffff730ae9017fe9");
        assert!(add(&facts, &answer).is_some(), "old masters do not repeat the number");
        answer.extend(&request[2..]);
        let bytes = add(&facts, &answer).unwrap();
        assert!(bytes.starts_with(b"0\n\\protocol\\49\\challenge\\3917414889\\"), "{}", bytes.escape_ascii());
        let last = answer.len() - 1;
        answer[last] ^= 1;
        assert_eq!(add(&facts, &answer), None);
    }

    #[test]
    fn the_number_is_a_hash_of_the_name() {
        let facts = Facts { name: "a".into(), ..Facts::default() };
        assert_eq!(heartbeat(&facts), [&b"q\xff"[..], &0xe40c_292c_u32.to_le_bytes()].concat(), "FNV-1a");
    }

    #[test]
    fn a_password_and_nat_are_said() {
        let said = |facts: &Facts<'_>, flags: &[u8]| {
            let bytes = add(facts, &hex("ffffffff730ae9017fe9")).unwrap();
            bytes.windows(flags.len()).any(|part| part == flags)
        };
        let open = Facts { password: Some(false), ..Facts::default() };
        assert!(said(&open, br"\password\0\secure\0\lan\0\nat\0"));
        let details = Details { rules: [("nat", "1")].into(), ..Details::default() };
        let closed = Facts { password: Some(true), details: Some(Arc::new(details)), ..Facts::default() };
        assert!(said(&closed, br"\password\1\secure\0\lan\0\nat\1"));
    }
}

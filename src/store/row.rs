//! Writes servers to rows of the file and reads them back.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use rusqlite::{Connection, Row, named_params, params_from_iter};

use crate::model::{Address, Details, Facts, HeartbeatKeys, Origin, Pairs, Proof, Server, VersionText, round_trip};
use crate::protocols::{bound_facts, game, game_named};

/// An address as bytes: 4 or 16 for the IP address, 2 for the port (big endian).
pub fn address_bytes(address: Address) -> Vec<u8> {
    let mut bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    bytes.extend(address.port().to_be_bytes());
    bytes
}

pub fn address_from(bytes: &[u8]) -> Option<Address> {
    let (ip, port) = bytes.split_last_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
    };
    Address::new(ip, u16::from_be_bytes(*port))
}

pub fn write(connection: &Connection, server: &Server) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT OR REPLACE INTO servers VALUES (:address, :game, :proof, :proven_at, :first_seen, :last_seen, :life,
         :rtt_us, :name, :mode, :map, :version, :players, :players_max, :password, :details, :keys, :protocol, :via)",
    )?;
    let details = server.details.as_ref().map(|details| {
        // Plain data without maps: cannot fail.
        serde_json::to_string(&(&details.players, &details.rules)).unwrap_or_default()
    });
    insert.execute(named_params! {
        ":address": address_bytes(server.address),
        ":game": server.game.name(),
        ":proof": server.verified_by.name(),
        ":proven_at": server.proven_at_ms as i64,
        ":first_seen": server.first_seen_ms as i64,
        ":last_seen": server.last_seen_ms as i64,
        ":life": server.life_ms,
        ":rtt_us": server.rtt_us.map(NonZeroU32::get),
        ":name": server.texts.name(),
        ":mode": server.texts.mode(),
        ":map": server.texts.map(),
        ":version": server.texts.version(),
        ":players": server.players_current,
        ":players_max": server.players_max,
        ":password": server.password,
        ":details": details,
        ":protocol": server.game.protocol(),
        ":keys": server.keys.as_ref().map(|keys| keys_bytes(keys)),
        ":via": server.via.as_ref().map(|via| via.name()),
    })?;
    Ok(())
}

pub fn delete(connection: &Connection, address: Address) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM servers WHERE address = ?1")?.execute([address_bytes(address)])?;
    Ok(())
}

/// A range of rows: from an address on, and before an address. None: from the first, to the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub from: Option<Vec<u8>>,
    pub before: Option<Vec<u8>>,
}

impl Range {
    /// Divides all rows at these addresses. Every row is in exactly one of the ranges, even if its address is invalid, and the
    /// ranges are in the order of the rows.
    pub fn divided(at: impl IntoIterator<Item = Address>) -> Vec<Range> {
        let mut at: Vec<Vec<u8>> = at.into_iter().map(address_bytes).collect();
        at.sort_unstable();
        at.dedup();
        let from = std::iter::once(None).chain(at.iter().cloned().map(Some));
        let before = at.iter().cloned().map(Some).chain([None]);
        from.zip(before).map(|(from, before)| Range { from, before }).collect()
    }
}

/// Calls `each` for every row, with None for an invalid one.
pub fn servers(connection: &Connection, each: impl FnMut(Option<Server>)) -> rusqlite::Result<()> {
    servers_in(connection, &Range::default(), each)
}

/// The same for a range of rows.
pub fn servers_in(
    connection: &Connection,
    range: &Range,
    mut each: impl FnMut(Option<Server>),
) -> rusqlite::Result<()> {
    let (condition, bounds) = match (&range.from, &range.before) {
        (None, None) => ("", vec![]),
        (Some(from), None) => ("WHERE address >= ?1", vec![from]),
        (None, Some(before)) => ("WHERE address < ?1", vec![before]),
        (Some(from), Some(before)) => ("WHERE address >= ?1 AND address < ?2", vec![from, before]),
    };
    let mut select = connection.prepare(&format!("SELECT * FROM servers {condition}"))?;
    let mut rows = select.query(params_from_iter(bounds))?;
    while let Some(row) = rows.next()? {
        each(read(row));
    }
    Ok(())
}

fn read(row: &Row<'_>) -> Option<Server> {
    let text = |at: usize| row.get_ref(at).ok()?.as_str().ok();
    let number = |at: usize| row.get::<_, Option<u16>>(at).ok().flatten();
    let address = address_from(row.get_ref(0).ok()?.as_blob().ok()?)?;
    // A file of an older version, on a disk that has no room to migrate it, lacks columns.
    let later = |at: usize| match row.get_ref(at) {
        Err(rusqlite::Error::InvalidColumnIndex(_)) => Some(None),
        value => value.ok()?.as_str_or_null().ok(),
    };
    let protocol = later(17)?;
    let game = match protocol {
        Some(protocol) => game(protocol, text(1)?)?,
        None => game_named(text(1)?)?,
    };
    let mut facts = Facts {
        name: text(8)?.into(),
        mode: text(9)?.into(),
        map: text(10)?.into(),
        version: VersionText::from(text(11)?).ok()?,
        players_current: number(12),
        players_max: number(13),
        password: row.get(14).ok()?,
        details: optional(text(15), details_from)?,
        ..Facts::default()
    };
    bound_facts(&game, &mut facts);
    let proof = Proof::named(text(2)?)?;
    let mut server = Server::new(address, game, proof, stamp(row, 3)?, &facts);
    server.first_seen_ms = stamp(row, 4)?;
    server.last_seen_ms = stamp(row, 5)?;
    server.life_ms = row.get(6).ok()?;
    server.rtt_us = row.get::<_, Option<u32>>(7).ok()?.map(round_trip);
    server.keys = optional(row.get_ref(16).ok()?.as_blob_or_null().ok()?, keys_from)?;
    server.via = later(18)?.map(|name| Arc::new(Origin::new(name)));
    Some(server)
}

fn stamp(row: &Row<'_>, at: usize) -> Option<u64> {
    u64::try_from(row.get::<_, i64>(at).ok()?).ok()
}

/// A missing value is valid; one that is present must be readable.
fn optional<A, B>(found: Option<A>, read: impl Fn(A) -> Option<B>) -> Option<Option<Arc<B>>> {
    match found {
        Some(found) => Some(Some(Arc::new(read(found)?))),
        None => Some(None),
    }
}

fn details_from(text: &str) -> Option<Details> {
    let (players, rules): (_, Vec<(String, String)>) = serde_json::from_str(text).ok()?;
    Some(Details { players, rules: rules.into_iter().collect() })
}

/// Keys and values alternately, each prefixed with its length u16 LE. They are bytes, not text.
fn keys_bytes(keys: &HeartbeatKeys) -> Vec<u8> {
    let mut out = Vec::new();
    for part in keys.0.iter().flat_map(|(key, value)| [key, value]) {
        let size = u16::try_from(part.len()).unwrap_or(u16::MAX);
        out.extend(size.to_le_bytes());
        out.extend(part.iter().take(size.into()));
    }
    out
}

fn keys_from(mut bytes: &[u8]) -> Option<HeartbeatKeys> {
    let mut keys = Pairs::with_room(bytes.len());
    let mut next = || -> Option<Option<&[u8]>> {
        let Some((size, rest)) = bytes.split_first_chunk::<2>() else {
            return if bytes.is_empty() { Some(None) } else { None };
        };
        let (part, rest) = rest.split_at_checked(u16::from_le_bytes(*size).into())?;
        bytes = rest;
        Some(Some(part))
    };
    while let Some(key) = next()? {
        keys.push(key, next()??);
    }
    Some(HeartbeatKeys(keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Player;

    #[test]
    fn addresses_and_keys_round_trip() {
        for text in ["203.0.113.5:20737", "[2001:db8::5]:1"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address_from(&address_bytes(address)), Some(address));
        }
        for bad in [&b""[..], b"12", b"123456789", &[0; 6], &[0; 17]] {
            assert_eq!(address_from(bad), None, "{bad:?}");
        }
        let keys = HeartbeatKeys([(&b"port"[..], &b"1"[..]), (b"\xff", b"")].into_iter().collect());
        let bytes = keys_bytes(&keys);
        assert_eq!(keys_from(&bytes), Some(keys));
        for len in 1..bytes.len() {
            let cut = keys_from(&bytes[..len]);
            assert!(cut.is_none_or(|keys| keys.0.len() == 1), "{len}");
        }
    }

    #[test]
    fn details_round_trip() {
        let player = Player { name: "B\"b".into(), team: Some("red".into()), score: Some(-3), ..Player::default() };
        let details = Details { players: vec![player], rules: [("a", "é")].into() };
        let text = serde_json::to_string(&(&details.players, &details.rules)).unwrap();
        assert_eq!(details_from(&text), Some(details));
        assert_eq!(details_from("{}"), None);
    }
}

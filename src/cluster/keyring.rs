//! The cookie keys that all nodes share through the store, so that a handshake that begins at one node can end at any
//! other. When keys are old, the first node to replace them wins and the others adopt its keys. No socket, no clock.

use serde::{Deserialize, Serialize};

use crate::cookie::{Key, Keys};

/// Keys are replaced when they are this old.
pub const KEYS_EVERY_MS: u64 = 60_000;
/// Without the store, a node keeps the shared keys for this long before it makes its own.
pub const ALONE_AFTER_MS: u64 = 600_000;
const VERSION: u8 = 2;
const VALUE_BYTES_MAX: usize = 1024;

#[derive(Serialize, Deserialize)]
struct Wire {
    v: u8,
    next: (u8, String),
    current: (u8, String),
    previous: (u8, String),
}

pub fn encode(keys: &Keys) -> Vec<u8> {
    let wire = |key: &Key| (key.id, key.secret.iter().map(|byte| format!("{byte:02x}")).collect());
    let Keys { next, current, previous, .. } = keys;
    let wire = Wire { v: VERSION, next: wire(next), current: wire(current), previous: wire(previous) };
    serde_json::to_vec(&wire).unwrap_or_default() // plain data: cannot fail
}

/// None if the value is not a key ring of this version.
pub fn decode(value: &[u8]) -> Option<Keys> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let wire: Wire = serde_json::from_slice(value).ok().filter(|wire: &Wire| wire.v == VERSION)?;
    let key = |(id, text): (u8, String)| {
        let is_secret = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let secret = u128::from_str_radix(&text, 16).ok().filter(|_| is_secret)?.to_be_bytes();
        Some(Key { id, secret })
    };
    Some(Keys::of(key(wire.next)?, key(wire.current)?, key(wire.previous)?))
}

/// The keys in use, their age, and their revision in the store.
pub struct Keyring {
    pub keys: Keys,
    pub revision: Option<u64>,
    since_ms: u64,
}

impl Keyring {
    /// A node's own keys, before it has read the store's.
    pub fn new(keys: Keys, mono_ms: u64) -> Keyring {
        Keyring { keys, revision: None, since_ms: mono_ms }
    }

    /// Adopts the store's keys, which are already `age_ms` old. False if `revision` is not newer.
    pub fn adopt(&mut self, keys: Keys, revision: u64, mono_ms: u64, age_ms: u64) -> bool {
        if self.revision.is_some_and(|known| known >= revision) {
            return false;
        }
        self.keys = keys.instead_of(&self.keys);
        self.revision = Some(revision);
        self.since_ms = mono_ms.saturating_sub(age_ms);
        true
    }

    /// Forgets the revision: the store is gone and may come back empty.
    pub fn disconnected(&mut self) {
        self.revision = None;
    }

    pub fn is_old(&self, mono_ms: u64) -> bool {
        mono_ms.saturating_sub(self.since_ms) >= KEYS_EVERY_MS
    }

    /// Without the store: rotates to keys of this node's own if the shared ones are too old. True if it did.
    pub fn rotate_alone(&mut self, mono_ms: u64, secret: impl FnOnce() -> Option<[u8; 16]>) -> bool {
        if mono_ms.saturating_sub(self.since_ms) < ALONE_AFTER_MS {
            return false;
        }
        let Some(secret) = secret() else { return false };
        self.keys = self.keys.rotated(secret);
        // From now on, rotate at the usual interval.
        self.since_ms = mono_ms + KEYS_EVERY_MS - ALONE_AFTER_MS.min(mono_ms + KEYS_EVERY_MS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(byte: u8) -> Keys {
        Keys::new([[byte + 20; 16], [byte; 16], [byte + 10; 16]])
    }

    fn secret(ring: &Keyring) -> u8 {
        ring.keys.current.secret[0]
    }

    #[test]
    fn keys_round_trip_and_anything_else_is_refused() {
        let before = keys(1).rotated([0x0f; 16]);
        let value = encode(&before);
        let after = decode(&value).unwrap();
        assert!((after.next.id, after.next.secret) == (3, [0x0f; 16]));
        assert!((after.next, after.current, after.previous) == (before.next, before.current, before.previous));
        for cut in 0..value.len() {
            assert!(decode(&value[..cut]).is_none(), "{cut}");
        }
        let text = String::from_utf8(value).unwrap();
        for (from, to) in [("\"v\":2", "\"v\":3"), ("0f0f", "0f"), ("0f0f", "+f0f"), ("0f0f", "zz0f")] {
            assert!(decode(text.replacen(from, to, 1).as_bytes()).is_none(), "{to}");
        }
    }

    #[test]
    fn newer_keys_are_adopted_once() {
        let mut ring = Keyring::new(keys(1), 0);
        assert!(ring.adopt(keys(2), 5, 1_000, 400));
        assert!(!ring.adopt(keys(3), 4, 1_000, 0), "older");
        assert!(!ring.adopt(keys(2), 5, 1_000, 0), "the same");
        assert_eq!((secret(&ring), ring.revision), (2, Some(5)));
        let (mut cookie, game) = (arrayvec::ArrayVec::<u8, 64>::new(), "192.0.2.1:1".parse().unwrap());
        keys(1).seal(1_000, game, b"begun before", &mut cookie);
        assert!(ring.keys.open(1_000, game, &cookie).is_ok(), "sealed with the node's own keys");
        assert!(!ring.is_old(60_599) && ring.is_old(60_600));
        ring.disconnected();
        assert!(ring.adopt(keys(4), 1, 2_000, 0), "a store that was recreated");
    }

    #[test]
    fn a_node_alone_rotates_only_when_the_shared_keys_are_too_old() {
        let mut ring = Keyring::new(keys(1), 0);
        assert!(!ring.rotate_alone(ALONE_AFTER_MS - 1, || Some([2; 16])));
        assert!(!ring.rotate_alone(ALONE_AFTER_MS, || None), "no random numbers");
        assert!(ring.rotate_alone(ALONE_AFTER_MS, || Some([2; 16])));
        assert_eq!((secret(&ring), ring.keys.previous.secret[0], ring.keys.next.secret[0]), (11, 1, 2));
        assert!(!ring.rotate_alone(ALONE_AFTER_MS + KEYS_EVERY_MS - 1, || Some([3; 16])));
        assert!(ring.rotate_alone(ALONE_AFTER_MS + KEYS_EVERY_MS, || Some([3; 16])));
    }
}

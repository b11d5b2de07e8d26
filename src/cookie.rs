//! Stateless cookies: a sender proves its source address by returning a value that was sent there.
//!
//! A cookie carries its own content, authenticated by a MAC. Nothing is stored for a sender that has not proven its address,
//! so a flood from forged addresses can neither fill memory nor displace a real handshake.
//!
//! Layout: key id u8, timestamp u32 LE (low 32 bits of the milliseconds since 1970), content, `MAC[12]`.
//! The MAC is SipHash-2-4-128 truncated to 96 bits, over the source address, the source port and everything before the MAC.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use siphasher::sip128::{Hasher128, SipHasher24};
use subtle::ConstantTimeEq;

use crate::bytes::Reader;

/// Bytes that a cookie adds to its content.
pub const OVERHEAD: usize = 1 + 4 + MAC_SIZE;
const MAC_SIZE: usize = 12;

/// A cookie older than this is refused. Enough for any round trip and any delay in the game server.
pub const AGE_MAX_MS: u64 = 30_000;
/// A handshake may end at another node, whose clock may be behind by this much.
const SKEW_MAX_MS: u64 = 2_000;

/// One secret. The id in a cookie selects the key, so that only one MAC has to be computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub id: u8,
    pub secret: [u8; 16],
}

/// The current key seals. The previous and the next one also open: another node may already have rotated.
#[derive(Clone, Copy)]
pub struct Keys {
    pub next: Key,
    pub current: Key,
    pub previous: Key,
    /// This node's own key before it adopted the cluster's keys.
    former: Option<Key>,
}

/// Why a cookie was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too short to be one of ours.
    Short,
    /// Sealed with a key that is no longer (or never was) ours.
    UnknownKey,
    /// The MAC is wrong: forged, changed, or sent to another address.
    Forged,
    /// Genuine, but too old (or from the future).
    Old,
}

/// A genuine cookie's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// When it was sealed, milliseconds since 1970.
    pub sealed_at_ms: u64,
    pub content: &'a [u8],
}

impl Keys {
    /// Keys from random secrets, oldest first.
    pub fn new([previous, current, next]: [[u8; 16]; 3]) -> Keys {
        let key = |id, secret| Key { id, secret };
        Keys::of(key(2, next), key(1, current), key(0, previous))
    }

    pub fn of(next: Key, current: Key, previous: Key) -> Keys {
        Keys { next, current, previous, former: None }
    }

    /// The next key becomes current; the current one still opens.
    pub fn rotated(&self, secret: [u8; 16]) -> Keys {
        Keys::of(Key { id: self.next.id.wrapping_add(1), secret }, self.next, self.current)
    }

    /// Replaces the keys `before`; cookies that their current key sealed remain valid.
    pub fn instead_of(self, before: &Keys) -> Keys {
        let is_known = [self.next, self.current, self.previous].contains(&before.current);
        Keys { former: (!is_known).then_some(before.current), ..self }
    }

    /// Derives independent keys for another purpose: a cookie sealed with one set is invalid for the other.
    pub fn for_purpose(&self, purpose: &[u8]) -> Keys {
        let derived = |key: Key| {
            let mut hasher = SipHasher24::new_with_key(&key.secret);
            hasher.write(purpose);
            Key { id: key.id, secret: hasher.finish128().as_bytes() }
        };
        Keys {
            next: derived(self.next),
            current: derived(self.current),
            previous: derived(self.previous),
            former: self.former.map(derived),
        }
    }

    /// A signature of `body` for `peer`, of at most 16 bytes, for protocols whose own form has no room for a cookie. Use
    /// keys [for a purpose](Keys::for_purpose).
    pub fn sign<const N: usize>(&self, peer: SocketAddr, body: &[u8]) -> [u8; N] {
        self.current.signature(peer, body)
    }

    /// Whether one of the keys that count signed `body` for `peer`.
    pub fn is_signed<const N: usize>(&self, peer: SocketAddr, body: &[u8], signature: &[u8; N]) -> bool {
        self.signatures::<N>(peer, body).any(|ours| ours.ct_eq(signature).into())
    }

    /// The signatures of `body` for `peer` by the keys that count, where only a part of one has room. A part is compared by its
    /// value: it is too short for its timing to matter.
    pub fn signatures<const N: usize>(&self, peer: SocketAddr, body: &[u8]) -> impl Iterator<Item = [u8; N]> {
        let all = [Some(self.current), Some(self.previous), Some(self.next), self.former];
        all.into_iter().flatten().map(move |key| key.signature(peer, body))
    }

    /// Appends a cookie to `out`. If it does not fit, appends nothing and returns false.
    pub fn seal<const N: usize>(
        &self,
        unix_ms: u64,
        to: SocketAddr,
        content: &[u8],
        out: &mut ArrayVec<u8, N>,
    ) -> bool {
        if out.remaining_capacity() < OVERHEAD + content.len() {
            return false;
        }
        let start = out.len();
        out.push(self.current.id);
        out.extend((unix_ms as u32).to_le_bytes());
        out.extend(content.iter().copied());
        let mac = self.current.mac(to, out.get(start..).unwrap_or_default());
        out.extend(mac);
        true
    }

    /// Checks a cookie returned by `from`.
    pub fn open<'a>(&self, unix_ms: u64, from: SocketAddr, cookie: &'a [u8]) -> Result<Opened<'a>, Refusal> {
        let (body, mac) = cookie.split_last_chunk::<MAC_SIZE>().ok_or(Refusal::Short)?;
        let mut fields = Reader::new(body);
        let id = fields.u8().ok_or(Refusal::Short)?;
        let stamp = fields.u32_le().ok_or(Refusal::Short)?;
        let all = [Some(self.current), Some(self.previous), Some(self.next), self.former];
        let mut keys = all.into_iter().flatten().filter(|key| key.id == id).peekable();
        keys.peek().ok_or(Refusal::UnknownKey)?;
        if !keys.any(|key| key.mac(from, body).ct_eq(mac).into()) {
            return Err(Refusal::Forged);
        }
        // The timestamp is the low half of a time between AGE_MAX_MS ago and SKEW_MAX_MS ahead.
        let behind = ((unix_ms + SKEW_MAX_MS) as u32).wrapping_sub(stamp);
        if u64::from(behind) > AGE_MAX_MS + SKEW_MAX_MS {
            return Err(Refusal::Old);
        }
        let sealed_at_ms = (unix_ms + SKEW_MAX_MS).saturating_sub(u64::from(behind));
        Ok(Opened { sealed_at_ms, content: fields.rest() })
    }
}

impl Key {
    fn mac(&self, peer: SocketAddr, body: &[u8]) -> [u8; MAC_SIZE] {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        match peer.ip().to_canonical() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write(&peer.port().to_le_bytes());
        hasher.write(body);
        first_bytes(hasher.finish128().as_bytes())
    }

    /// A MAC over the family, the address, the port and the body.
    fn signature<const N: usize>(&self, peer: SocketAddr, body: &[u8]) -> [u8; N] {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        match peer.ip().to_canonical() {
            IpAddr::V4(ip) => {
                hasher.write(&[4]);
                hasher.write(&ip.octets());
            }
            IpAddr::V6(ip) => {
                hasher.write(&[6]);
                hasher.write(&ip.octets());
            }
        }
        hasher.write(&peer.port().to_le_bytes());
        hasher.write(body);
        first_bytes(hasher.finish128().as_bytes())
    }
}

fn first_bytes<const N: usize>(full: [u8; 16]) -> [u8; N] {
    const { assert!(N <= 16) };
    let mut first = [0; N];
    for (to, from) in first.iter_mut().zip(full) {
        *to = from;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: u64 = 1_760_000_000_000;

    fn keys() -> Keys {
        Keys::new([[1; 16], [2; 16], [3; 16]])
    }

    fn peer() -> SocketAddr {
        "203.0.113.5:40000".parse().unwrap()
    }

    fn sealed(keys: &Keys, content: &[u8]) -> Vec<u8> {
        let mut out = ArrayVec::<u8, 128>::new();
        assert!(keys.seal(T, peer(), content, &mut out));
        out.to_vec()
    }

    #[test]
    fn a_cookie_opens_only_for_the_peer_it_was_sealed_for() {
        let keys = keys();
        let cookie = sealed(&keys, b"content");
        assert_eq!(cookie.len(), OVERHEAD + 7);
        assert_eq!(keys.open(T, peer(), &cookie), Ok(Opened { sealed_at_ms: T, content: b"content" }));
        let other_port = "203.0.113.5:40001".parse().unwrap();
        let other_ip = "203.0.113.6:40000".parse().unwrap();
        assert_eq!(keys.open(T, other_port, &cookie), Err(Refusal::Forged));
        assert_eq!(keys.open(T, other_ip, &cookie), Err(Refusal::Forged));
        let mapped = "[::ffff:203.0.113.5]:40000".parse().unwrap();
        assert!(keys.open(T, mapped, &cookie).is_ok());
    }

    #[test]
    fn cookies_expire_and_tolerate_clock_skew() {
        let keys = keys();
        let cookie = sealed(&keys, b"");
        for (later, good) in [(0, true), (AGE_MAX_MS, true), (AGE_MAX_MS + 1, false), (1 << 32, true)] {
            // After the 32-bit timestamp wraps, age alone cannot tell; by then the keys have been rotated away.
            assert_eq!(keys.open(T + later, peer(), &cookie).is_ok(), good, "{later} ms later");
        }
        for (earlier, good) in [(SKEW_MAX_MS, true), (SKEW_MAX_MS + 1, false)] {
            assert_eq!(keys.open(T - earlier, peer(), &cookie).is_ok(), good, "{earlier} ms earlier");
        }
        assert_eq!(keys.open(T + 1234, peer(), &cookie).unwrap().sealed_at_ms, T);
        assert_eq!(keys.open(T - 1234, peer(), &cookie).unwrap().sealed_at_ms, T);
    }

    #[test]
    fn the_previous_key_still_opens_and_the_one_before_does_not() {
        let first = keys();
        let cookie = sealed(&first, b"x");
        let second = first.rotated([7; 16]);
        assert!(second.open(T, peer(), &cookie).is_ok());
        let third = second.rotated([8; 16]);
        assert_eq!(third.open(T, peer(), &cookie), Err(Refusal::UnknownKey));
    }

    #[test]
    fn a_cookie_sealed_by_a_node_that_rotated_first_opens() {
        let (behind, ahead) = (keys(), keys().rotated([7; 16]));
        assert!(behind.open(T, peer(), &sealed(&ahead, b"x")).is_ok());
        assert_eq!(behind.open(T, peer(), &sealed(&ahead.rotated([8; 16]), b"x")), Err(Refusal::UnknownKey));
    }

    #[test]
    fn cookies_from_before_adopting_other_keys_open_until_the_next_rotation() {
        let (own, all) = (keys(), Keys::new([[4; 16], [5; 16], [6; 16]]));
        let cookie = sealed(&own, b"x");
        assert_eq!(all.open(T, peer(), &cookie), Err(Refusal::Forged), "same ids, other secrets");
        let taken = all.instead_of(&own);
        assert!(taken.open(T, peer(), &cookie).is_ok() && taken.open(T, peer(), &sealed(&all, b"y")).is_ok());
        assert_eq!(all.open(T, peer(), &sealed(&taken, b"x")), Ok(Opened { sealed_at_ms: T, content: b"x" }));
        let rotated = all.rotated([7; 16]).instead_of(&taken);
        assert_eq!(rotated.open(T, peer(), &cookie), Err(Refusal::Forged));
    }

    #[test]
    fn signatures_hold_for_one_peer_one_body_and_one_purpose() {
        let keys = keys().for_purpose(b"a test");
        let signature: [u8; 13] = keys.sign(peer(), b"body");
        assert!(keys.is_signed(peer(), b"body", &signature));
        assert!(keys.rotated([7; 16]).is_signed(peer(), b"body", &signature), "the previous key counts");
        assert!(!keys.rotated([7; 16]).rotated([8; 16]).is_signed(peer(), b"body", &signature));
        assert!(!keys.is_signed(peer(), b"bodY", &signature));
        for other in ["203.0.113.6:40000", "203.0.113.5:40001", "[2001:db8::1]:40000"] {
            assert!(!keys.is_signed(other.parse().unwrap(), b"body", &signature), "{other}");
        }
        assert!(keys.is_signed("[::ffff:203.0.113.5]:40000".parse().unwrap(), b"body", &signature));
        assert!(!self::keys().is_signed(peer(), b"body", &signature));
        assert!(!self::keys().for_purpose(b"another").is_signed(peer(), b"body", &signature));
    }

    #[test]
    fn a_cookie_that_does_not_fit_is_not_appended() {
        let mut out = ArrayVec::<u8, 20>::new();
        assert!(!keys().seal(T, peer(), b"four", &mut out));
        assert!(out.is_empty());
        assert!(keys().seal(T, peer(), b"abc", &mut out));
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_refused(content in proptest::collection::vec(any::<u8>(), 0..80), bit: usize) {
            let keys = keys();
            let mut cookie = sealed(&keys, &content);
            let bit = bit % (cookie.len() * 8);
            cookie[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(keys.open(T, peer(), &cookie).is_err());
        }

        #[test]
        fn truncated_or_random_bytes_are_refused(bytes: Vec<u8>, len: usize) {
            let keys = keys();
            prop_assert!(keys.open(T, peer(), &bytes).is_err());
            let cookie = sealed(&keys, b"some content");
            prop_assert!(keys.open(T, peer(), &cookie[..len % cookie.len()]).is_err());
        }
    }
}

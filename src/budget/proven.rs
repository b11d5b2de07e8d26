//! Sources that have proven themselves. Who forges datagrams in a server's name can use up the budget of its address; the
//! server itself must be heard all the same.
//!
//! A source is an address and a port. A forger who knows both makes this master answer the server itself, which does no harm.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use siphasher::sip::SipHasher13;

use crate::model::Now;

/// How long a proof counts.
const PROVEN_FOR_S: u32 = 3_600;
/// Half a megabyte in all.
const PLACES: usize = 1 << 16;

pub struct Proven {
    key: [u64; 2],
    /// By a keyed hash of the source. Sources that collide share a place: a chance for one that is not proven, no harm to others.
    places: Box<[Place]>,
}

/// Times in seconds; 0 means never.
#[derive(Default)]
struct Place {
    proven_s: AtomicU32,
    answered_s: AtomicU32,
}

impl Proven {
    /// `key` must be random and secret.
    pub fn new(key: [u64; 2]) -> Proven {
        Proven { key, places: (0..PLACES).map(|_| Place::default()).collect() }
    }

    /// Remembers that a source has proven itself.
    pub fn prove(&self, now: Now, source: SocketAddr) {
        if let Some(place) = self.place(source) {
            place.proven_s.store(seconds(now), Ordering::Relaxed);
        }
    }

    /// Whether a source is answered although its budget is used up: once a second, if it has proven itself.
    pub fn may_overdraw(&self, now: Now, source: SocketAddr) -> bool {
        let (Some(place), now_s) = (self.place(source), seconds(now)) else { return false };
        let proven_s = place.proven_s.load(Ordering::Relaxed);
        let is_proven = proven_s != 0 && now_s.saturating_sub(proven_s) <= PROVEN_FOR_S;
        is_proven && place.answered_s.swap(now_s, Ordering::Relaxed) != now_s
    }

    fn place(&self, source: SocketAddr) -> Option<&Place> {
        let mut hasher = SipHasher13::new_with_keys(self.key[0], self.key[1]);
        match source.ip().to_canonical() {
            IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
            IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
        }
        hasher.write_u16(source.port());
        self.places.get(hasher.finish() as usize % PLACES)
    }
}

/// Never 0.
fn seconds(now: Now) -> u32 {
    u32::try_from(now.mono_ms / 1_000 + 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ms: u64) -> Now {
        Now { mono_ms: ms, unix_ms: 0 }
    }

    #[test]
    fn a_source_is_proven_for_an_hour_from_the_first_moment_of_the_clock() {
        let (proven, source) = (Proven::new([1, 2]), "192.0.2.1:27960".parse().unwrap());
        assert!(!proven.may_overdraw(after(0), source));
        proven.prove(after(0), source);
        for (ms, may) in [(0, true), (999, false), (1_000, true), (3_600_999, true), (3_601_000, false)] {
            assert_eq!(proven.may_overdraw(after(ms), source), may, "after {ms} ms");
        }
        let same = "[::ffff:192.0.2.1]:27960".parse().unwrap();
        let others = ["192.0.2.1:27961", "192.0.2.2:27960", "[2001:db8::1]:27960"];
        proven.prove(after(5_000_000), source);
        assert!(proven.may_overdraw(after(5_000_000), same));
        assert!(others.iter().all(|other| !proven.may_overdraw(after(5_000_000), other.parse().unwrap())));
    }
}

//! The challenge that a game returns in its announcement: all that has to be remembered of its request, in a u32. Nothing is
//! stored for a sender that has not proven its address.
//!
//! The low four bits are the time in slots of eight seconds, which count 128 s; the others are a MAC over the whole time, the
//! family, the address and the port. The engine has room for no more, so at any time about nine values count for an address,
//! times the keys in use: a guess is right once in a hundred million. What a right guess brings is small, because every server
//! that is listed is queried, too, and leaves the list when it does not answer.

use std::net::SocketAddr;

use crate::cookie::Keys;

/// A challenge older than this is refused. Engines answer within a few seconds (`sv_master_response_timeout`).
pub const AGE_MAX_MS: u64 = 60_000;
/// A handshake may end on another node, whose clock may be behind by this much.
const SKEW_MAX_MS: u64 = 2_000;

pub const SLOT_MS: u64 = 8_000;
/// The bits of the slot in a challenge.
const SLOT_MASK: u32 = 0xf;
const PURPOSE: &[u8] = b"xash3d challenge";

/// Makes and reads challenges.
#[derive(Clone, Copy)]
pub struct Challenges {
    keys: Keys,
}

/// Why a challenge was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None of ours: made up, sent to another address or port, or signed with a key that is no longer ours.
    Forged,
    /// Genuine, but too old.
    Old,
}

impl Challenges {
    pub fn new(keys: &Keys) -> Challenges {
        Challenges { keys: keys.for_purpose(PURPOSE) }
    }

    /// A challenge for a game at `to`.
    pub fn make(&self, unix_ms: u64, to: SocketAddr) -> u32 {
        let slot = unix_ms / SLOT_MS;
        let mac = u32::from_be_bytes(self.keys.sign(to, &slot.to_be_bytes()));
        mac & !SLOT_MASK | slot as u32 & SLOT_MASK
    }

    /// Checks a challenge that came back from `from`. Returns the latest time at which it can have been made, milliseconds since
    /// 1970: the same for every replay, except within the slot itself.
    pub fn open(&self, unix_ms: u64, from: SocketAddr, challenge: u32) -> Result<u64, Refusal> {
        // The slot is the newest with these bits that a clock which is a little ahead can have written.
        let newest = (unix_ms + SKEW_MAX_MS) / SLOT_MS;
        let behind = (newest as u32).wrapping_sub(challenge) & SLOT_MASK;
        let slot = newest.checked_sub(behind.into()).ok_or(Refusal::Forged)?;
        if !self.is_ours(from, slot, challenge) {
            return Err(Refusal::Forged);
        }
        let ended_ms = (slot + 1) * SLOT_MS;
        if ended_ms + AGE_MAX_MS < unix_ms {
            return Err(Refusal::Old);
        }
        Ok(ended_ms.min(unix_ms))
    }

    fn is_ours(&self, from: SocketAddr, slot: u64, challenge: u32) -> bool {
        let ours = |mac: [u8; 4]| u32::from_be_bytes(mac) & !SLOT_MASK == challenge & !SLOT_MASK;
        self.keys.signatures(from, &slot.to_be_bytes()).any(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The begin of a slot.
    const T: u64 = 1_760_000_000_000;

    fn challenges() -> Challenges {
        Challenges::new(&keys())
    }

    fn keys() -> Keys {
        Keys::new([[1; 16], [2; 16], [3; 16]])
    }

    fn game() -> SocketAddr {
        "203.0.113.5:27015".parse().unwrap()
    }

    #[test]
    fn counts_for_a_minute_and_does_not_become_good_again_after_a_turn() {
        assert_eq!(T % SLOT_MS, 0);
        let challenge = challenges().make(T + 3_000, game());
        for (later, expected) in [
            (3_000, Ok(T + 3_000)),
            (7_999, Ok(T + 7_999)),
            (8_000, Ok(T + 8_000)),
            (20_000, Ok(T + 8_000)),
            (68_000, Ok(T + 8_000)),
            (68_001, Err(Refusal::Old)),
            (125_000, Err(Refusal::Old)),
            (126_000, Err(Refusal::Forged)),
            (128_000, Err(Refusal::Forged)),
            (1 << 32, Err(Refusal::Forged)),
        ] {
            assert_eq!(challenges().open(T + later, game(), challenge), expected, "{later} ms later");
        }
        let ahead = challenges().make(T, game());
        assert_eq!(challenges().open(T - SKEW_MAX_MS, game(), ahead), Ok(T - SKEW_MAX_MS), "never in the future");
        assert_eq!(challenges().open(T - SKEW_MAX_MS - 1, game(), ahead), Err(Refusal::Forged));
    }

    #[test]
    fn the_previous_key_counts_and_the_one_before_does_not() {
        let challenge = challenges().make(T, game());
        let rotated = keys().rotated([7; 16]);
        assert!(Challenges::new(&rotated).open(T, game(), challenge).is_ok());
        assert_eq!(Challenges::new(&rotated.rotated([8; 16])).open(T, game(), challenge), Err(Refusal::Forged));
    }

    proptest! {
        #[test]
        fn is_bound_to_address_and_port(ip: u32, port: u16, v6: u128) {
            let challenge = challenges().make(T, game());
            for other in [SocketAddr::from((ip.to_be_bytes(), game().port())), SocketAddr::new(game().ip(), port),
                    SocketAddr::from((std::net::Ipv6Addr::from(v6), port))] {
                // One in 2^28 would fit by chance: these do not.
                prop_assert_eq!(challenges().open(T, other, challenge).is_ok(), other == game());
            }
        }

        #[test]
        fn any_changed_bit_is_refused(bit in 4u32..32) {
            let challenge = challenges().make(T, game()) ^ 1 << bit;
            prop_assert_eq!(challenges().open(T, game(), challenge), Err(Refusal::Forged));
        }
    }
}

//! The challenge of a `getinfo`: everything that has to be remembered of a heartbeat, in 22 characters that the game sends
//! back. Nothing is stored for a sender that has not proven its address.
//!
//! 16 bytes in base64url without padding: time u16 BE, number of the tag u8, `MAC[13]`. Engines echo `[A-Za-z0-9_-]` unchanged
//! and up to 128 bytes.
//!
//! The time is in sixteenths of a second, of which two bytes count 4096 s. The MAC covers the whole time, so a challenge does
//! not become good again after a full turn. It also covers the family, the IP address and the port that the challenge was
//! sent to, and the tag's name: the number is only where to look for it.

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use data_encoding::BASE64URL_NOPAD;

use super::tags::{NAME_BYTES_MAX, Tag, Tags};
use crate::cookie::Keys;

pub const CHARS: usize = 22;
pub type Text = [u8; CHARS];

/// A challenge older than this is refused. Games answer at once; this covers any round trip and a map change.
pub const AGE_MAX_MS: u64 = 60_000;
/// A handshake may end on another node, whose clock may be behind by this much.
const SKEW_MAX_MS: u64 = 2_000;

/// Sixteenths of a second.
const TICKS_PER_SECOND: u64 = 16;
const MAC_SIZE: usize = 13;
const SIGNED_BYTES_MAX: usize = 8 + NAME_BYTES_MAX;
const PURPOSE: &[u8] = b"quake3 challenge";

/// Makes and reads challenges.
#[derive(Clone, Copy)]
pub struct Challenges {
    keys: Keys,
}

/// Why a challenge was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None of ours: made up, changed, sent to another address, or signed with a key that is no longer ours.
    Forged,
    /// Genuine, but too old (or from the future).
    Old,
}

/// What a genuine challenge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'t> {
    /// The tag of the heartbeat that it answered.
    pub tag: &'t Tag,
    /// When it was made, milliseconds since 1970, rounded down to a sixteenth of a second.
    pub made_at_ms: u64,
}

impl Challenges {
    pub fn new(keys: &Keys) -> Challenges {
        Challenges { keys: keys.for_purpose(PURPOSE) }
    }

    /// A challenge for a game at `to` that announced itself with the tag of this number.
    pub fn make(&self, unix_ms: u64, to: SocketAddr, number: u8, tag: &Tag) -> Text {
        let ticks = ticks(unix_ms);
        let [.., high, low] = ticks.to_be_bytes();
        let mac: [u8; MAC_SIZE] = self.keys.sign(to, &signed(ticks, tag));
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().zip([high, low, number].into_iter().chain(mac)) {
            *to = from;
        }
        let mut text = [0; CHARS];
        BASE64URL_NOPAD.encode_mut(&bytes, &mut text);
        text
    }

    /// Checks a challenge that came back from `from`.
    pub fn open<'t>(
        &self,
        unix_ms: u64,
        from: SocketAddr,
        tags: &'t Tags,
        challenge: &[u8],
    ) -> Result<Opened<'t>, Refusal> {
        let text: &Text = challenge.try_into().map_err(|_| Refusal::Forged)?;
        let mut bytes = [0; 16];
        BASE64URL_NOPAD.decode_mut(text, &mut bytes).map_err(|_| Refusal::Forged)?;
        let ([high, low, number], mac) = bytes.split_first_chunk().ok_or(Refusal::Forged)?;
        let mac: &[u8; MAC_SIZE] = mac.try_into().map_err(|_| Refusal::Forged)?;
        let tag = tags.by_number(*number).ok_or(Refusal::Forged)?;
        // The time is the newest with these two bytes that a clock which is a little ahead can have written.
        let newest = ticks(unix_ms + SKEW_MAX_MS);
        let behind = (newest as u16).wrapping_sub(u16::from_be_bytes([*high, *low]));
        let made = newest.checked_sub(behind.into()).ok_or(Refusal::Forged)?;
        if !self.keys.is_signed(from, &signed(made, tag), mac) {
            return Err(Refusal::Forged);
        }
        let made_at_ms = made * 1_000 / TICKS_PER_SECOND;
        if made_at_ms + AGE_MAX_MS < unix_ms {
            return Err(Refusal::Old);
        }
        Ok(Opened { tag, made_at_ms })
    }
}

fn ticks(unix_ms: u64) -> u64 {
    unix_ms.saturating_mul(TICKS_PER_SECOND) / 1_000
}

/// What the MAC covers beside the peer: the whole time, and the tag's name.
fn signed(ticks: u64, tag: &Tag) -> ArrayVec<u8, SIGNED_BYTES_MAX> {
    ticks.to_be_bytes().into_iter().chain(tag.name.bytes()).take(SIGNED_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const T: u64 = 1_760_000_000_000;
    /// One full turn of the two bytes.
    const TURN_MS: u64 = (1 << 16) * 1_000 / TICKS_PER_SECOND;

    fn challenges() -> Challenges {
        Challenges::new(&keys())
    }

    fn keys() -> Keys {
        Keys::new([[1; 16], [2; 16], [3; 16]])
    }

    fn game() -> SocketAddr {
        "203.0.113.5:27960".parse().unwrap()
    }

    fn made(challenges: &Challenges, unix_ms: u64, to: SocketAddr, name: &str) -> Text {
        let tags = Tags::default();
        let (number, tag) = tags.find(name.as_bytes()).unwrap();
        challenges.make(unix_ms, to, number, tag)
    }

    fn open(challenges: &Challenges, unix_ms: u64, from: SocketAddr, text: &[u8]) -> Result<(String, u64), Refusal> {
        let tags = Tags::default();
        let opened = challenges.open(unix_ms, from, &tags, text);
        opened.map(|opened| (opened.tag.name.to_string(), opened.made_at_ms))
    }

    #[test]
    fn comes_back_with_its_tag_and_time() {
        for tag in Tags::default().all() {
            let text = made(&challenges(), T + 7, game(), &tag.name);
            assert!(text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte)));
            let (name, made_at_ms) = open(&challenges(), T + 90, game(), &text).unwrap();
            assert_eq!((&*name, made_at_ms), (&*tag.name, T));
        }
    }

    #[test]
    fn is_dead_after_a_minute_and_does_not_become_good_again_after_a_turn() {
        let text = made(&challenges(), T, game(), "DarkPlaces");
        for (later, expected) in [
            (0, Ok(())),
            (AGE_MAX_MS, Ok(())),
            (AGE_MAX_MS + 1, Err(Refusal::Old)),
            (TURN_MS / 2, Err(Refusal::Old)),
            (TURN_MS - SKEW_MAX_MS, Err(Refusal::Forged)),
            (TURN_MS, Err(Refusal::Forged)),
            (TURN_MS + 1_000, Err(Refusal::Forged)),
            (1 << 32, Err(Refusal::Forged)),
        ] {
            assert_eq!(open(&challenges(), T + later, game(), &text).map(drop), expected, "{later} ms later");
        }
        for (earlier, expected) in [(SKEW_MAX_MS, Ok(())), (SKEW_MAX_MS + 63, Err(Refusal::Forged))] {
            assert_eq!(open(&challenges(), T - earlier, game(), &text).map(drop), expected, "{earlier} ms earlier");
        }
    }

    #[test]
    fn the_previous_key_counts_and_the_one_before_does_not() {
        let text = made(&challenges(), T, game(), "DarkPlaces");
        let rotated = keys().rotated([7; 16]);
        assert!(open(&Challenges::new(&rotated), T, game(), &text).is_ok());
        assert_eq!(open(&Challenges::new(&rotated.rotated([8; 16])), T, game(), &text), Err(Refusal::Forged));
        let other = Keys::new([[4; 16], [5; 16], [6; 16]]);
        assert_eq!(open(&Challenges::new(&other), T, game(), &text), Err(Refusal::Forged));
    }

    #[test]
    fn another_table_of_tags_cannot_turn_it_into_another_tag() {
        let tags = Tags::default();
        let (number, tag) = tags.find(b"QuakeArena-1").unwrap();
        let text = challenges().make(T, game(), number, tag);
        let renamed = Tag { name: "Other-1".into(), ..tag.clone() };
        let others = Tags::new(tags.all().map(|known| if known == tag { renamed.clone() } else { known.clone() }));
        assert_eq!(others.by_number(number), Some(&renamed));
        assert_eq!(challenges().open(T, game(), &others, &text), Err(Refusal::Forged));
    }

    #[test]
    fn a_name_longer_than_any_tag_is_cut() {
        let longest = |more: &str| {
            let name = "x".repeat(NAME_BYTES_MAX) + more;
            challenges().make(T, game(), 0, &Tag { name: name.into(), ..Tags::default().all().next().unwrap().clone() })
        };
        assert_eq!(longest(""), longest(&"y".repeat(1_000)));
    }

    /// Peers of both families, near each other.
    fn peers() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            (0u8..4).prop_map(|last| IpAddr::V4(Ipv4Addr::new(203, 0, 113, last))),
            (0u16..4).prop_map(|last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last))),
            any::<u32>().prop_map(|ip| IpAddr::V4(ip.into())),
            any::<u128>().prop_map(|ip| IpAddr::V6(ip.into())),
        ];
        (ip, prop_oneof![27_960u16..27_964, any::<u16>()]).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn is_bound_to_address_and_port(to in peers(), from in peers()) {
            let text = made(&challenges(), T, to, "DarkPlaces");
            let canonical = |peer: SocketAddr| (peer.ip().to_canonical(), peer.port());
            prop_assert_eq!(open(&challenges(), T, from, &text).is_ok(), canonical(to) == canonical(from));
            prop_assert!(open(&challenges(), T, to, &text).is_ok());
        }

        #[test]
        fn is_bound_to_its_time(made_ms in T..T + (1 << 40), now_ms in T..T + (1 << 40), near in 0u64..200_000) {
            let text = made(&challenges(), made_ms, game(), "DarkPlaces");
            for now_ms in [now_ms, made_ms + near, made_ms.saturating_sub(near)] {
                let age_ms = now_ms as i64 - (made_ms / 125 * 125) as i64;
                match open(&challenges(), now_ms, game(), &text) {
                    Ok((_, at)) => {
                        prop_assert!(at <= made_ms && made_ms - at < 1_000);
                        prop_assert!((-3_000..=62_000).contains(&age_ms), "{}", age_ms);
                    }
                    Err(_) => prop_assert!(!(-1_000..=59_000).contains(&age_ms), "{}", age_ms),
                }
            }
        }

        #[test]
        fn any_changed_character_is_refused(at in 0..CHARS, to: u8, name in 0usize..4) {
            let names = ["DarkPlaces", "QuakeArena-1", "Wolfenstein-1", "EnemyTerritory-1"];
            let mut text = made(&challenges(), T, game(), names[name]);
            prop_assume!(text[at] != to);
            text[at] = to;
            prop_assert!(open(&challenges(), T, game(), &text).is_err());
        }

        #[test]
        fn made_up_or_cut_is_refused(bytes: Vec<u8>, len in 0..CHARS) {
            prop_assert_eq!(open(&challenges(), T, game(), &bytes), Err(Refusal::Forged));
            let text = made(&challenges(), T, game(), "DarkPlaces");
            prop_assert_eq!(open(&challenges(), T, game(), &text[..len]), Err(Refusal::Forged));
            let longer = [&text[..], &bytes, b"A"].concat();
            prop_assert_eq!(open(&challenges(), T, game(), &longer), Err(Refusal::Forged));
        }
    }
}

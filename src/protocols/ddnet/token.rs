//! The token of a challenge. Nothing is stored for a game that has not returned one: the token carries its time, and a MAC
//! over the address, the port, the version of the protocol and the time.
//!
//! Layout, in base64url: seconds since 1970 u32 BE, `MAC[12]`.

use data_encoding::BASE64URL_NOPAD;

use super::wire::Version;
use crate::cookie::Keys;
use crate::model::{Address, Now};
use crate::protocols::section::Cookies;

const MAC_SIZE: usize = 12;
/// Its length in base64url.
pub const CHARS: usize = 22;
pub type Text = [u8; CHARS];

/// A game asks again every 15 s. From its second request on, it gets a new token with the answer, so that it has the next one
/// well before the keys, which rotate every minute, no longer know the last.
const CURRENT_S: u64 = 25;
/// An older token counts for nothing, even if its key is still known.
const AGE_MAX_S: u64 = 90;
/// It may have been made by another node, whose clock may be ahead by this much.
const SKEW_MAX_S: u64 = 2;

/// A token that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    Current,
    /// The game needs a new one.
    Old,
}

pub struct Tokens {
    keys: Keys,
    now_s: u64,
}

impl Tokens {
    pub fn new(cookies: &Cookies, now: Now) -> Tokens {
        Tokens { keys: cookies.keys.for_purpose(b"ddnet"), now_s: cookies.time.unix_ms(now) / 1_000 }
    }

    /// A token for a game at this address.
    pub fn make(&self, to: Address, version: Version) -> Text {
        let time = (self.now_s as u32).to_be_bytes();
        let mac: [u8; MAC_SIZE] = self.keys.sign(to.socket(), &signed(self.now_s, version));
        let mut bytes = [0; 4 + MAC_SIZE];
        for (to, from) in bytes.iter_mut().zip(time.into_iter().chain(mac)) {
            *to = from;
        }
        let mut text = [0; CHARS];
        BASE64URL_NOPAD.encode_mut(&bytes, &mut text);
        text
    }

    /// None: forged, made for another address, port or version, or too old.
    pub fn check(&self, from: Address, version: Version, token: &str) -> Option<Valid> {
        let text: &Text = token.as_bytes().try_into().ok()?;
        let mut bytes = [0; 4 + MAC_SIZE];
        BASE64URL_NOPAD.decode_mut(text, &mut bytes).ok()?;
        let (time, mac) = bytes.split_first_chunk::<4>()?;
        let mac: &[u8; MAC_SIZE] = mac.try_into().ok()?;
        // The newest time with these low bits that a clock which is a little ahead can have written.
        let newest_s = self.now_s + SKEW_MAX_S;
        let behind = (newest_s as u32).wrapping_sub(u32::from_be_bytes(*time));
        let made_s = newest_s.checked_sub(behind.into())?;
        if !self.keys.is_signed(from.socket(), &signed(made_s, version), mac) {
            return None;
        }
        match self.now_s.saturating_sub(made_s) {
            age_s if age_s > AGE_MAX_S => None,
            age_s if age_s > CURRENT_S => Some(Valid::Old),
            _ => Some(Valid::Current),
        }
    }
}

/// What the MAC covers beside the address: the whole time, and the version.
fn signed(made_s: u64, version: Version) -> [u8; 9] {
    let mut bytes = [version.digit(); 9];
    for (to, from) in bytes.iter_mut().zip(made_s.to_be_bytes()) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SharedTime;

    const T: u64 = 1_790_000_000_000;

    fn keys() -> Keys {
        Keys::new([[1; 16], [2; 16], [3; 16]])
    }

    fn tokens(keys: Keys, unix_ms: u64) -> Tokens {
        Tokens::new(&Cookies { keys, time: SharedTime::default() }, Now { mono_ms: 0, unix_ms })
    }

    fn game() -> Address {
        "203.0.113.5:8303".parse().unwrap()
    }

    fn made(version: Version) -> String {
        String::from_utf8(tokens(keys(), T).make(game(), version).to_vec()).unwrap()
    }

    fn check_at(later_ms: i64, token: &str) -> Option<Valid> {
        tokens(keys(), T.saturating_add_signed(later_ms)).check(game(), Version::V6, token)
    }

    #[test]
    fn a_token_grows_old_and_ends() {
        let token = made(Version::V6);
        assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        for (later_s, expected) in [
            (0, Some(Valid::Current)),
            (25, Some(Valid::Current)),
            (26, Some(Valid::Old)),
            (90, Some(Valid::Old)),
            (91, None),
            (1 << 32, None),
            (-2, Some(Valid::Current)),
            (-3, None),
        ] {
            assert_eq!(check_at(later_s * 1_000, &token), expected, "{later_s} s later");
        }
    }

    #[test]
    fn only_the_game_that_it_was_made_for_can_use_it() {
        let token = made(Version::V6);
        let tokens = tokens(keys(), T);
        assert_eq!(tokens.check(game(), Version::V6, &token), Some(Valid::Current));
        for version in [Version::V5, Version::V7] {
            assert_eq!(tokens.check(game(), version, &token), None, "another version");
        }
        for other in ["203.0.113.6:8303", "203.0.113.5:8304", "[2001:db8::1]:8303"] {
            assert_eq!(tokens.check(other.parse().unwrap(), Version::V6, &token), None, "{other}");
        }
    }

    #[test]
    fn a_changed_token_is_forged() {
        let token = made(Version::V6);
        for at in 0..CHARS {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(check_at(0, str::from_utf8(&changed).unwrap()), None, "{at}");
        }
        for bad in ["", &token[1..], &format!("{token}A"), "tok-tw-0.6+udp"] {
            assert_eq!(check_at(0, bad), None, "{bad}");
        }
    }

    #[test]
    fn the_previous_key_counts_and_the_one_before_does_not() {
        let token = made(Version::V6);
        let check = |keys: Keys| tokens(keys, T).check(game(), Version::V6, &token);
        let once = keys().rotated([7; 16]);
        assert_eq!(check(once), Some(Valid::Current));
        assert_eq!(check(once.rotated([8; 16])), None);
        assert_eq!(check(Keys::new([[4; 16], [5; 16], [6; 16]])), None);
        let cookies = Cookies { keys: keys().for_purpose(b"other"), time: SharedTime::default() };
        let other = Tokens::new(&cookies, Now { mono_ms: 0, unix_ms: T });
        assert_eq!(other.check(game(), Version::V6, &token), None);
    }
}

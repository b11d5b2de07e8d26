//! Text from the network, cleaned once, at the door: valid UTF-8, without control characters.
//!
//! What comes out is safe for a terminal, for JSON without a single `\u` escape and for old parsers; it is *not*
//! markup-safe, which is the business of whoever writes markup.

use std::borrow::Cow;

use crate::model::VersionText;

/// Makes a text of what a server sent: bytes that are not UTF-8 become U+FFFD, control characters and the
/// direction overrides that make text lie on a page are dropped. A character cut off at the end of a fixed-size
/// field is dropped too. Borrows when nothing has to change, which is the case for every honest server.
pub fn clean(bytes: &[u8]) -> Cow<'_, str> {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // `error_len` is None when the input ends inside a character.
        Err(error) if error.error_len().is_none() => {
            bytes.get(..error.valid_up_to()).and_then(|start| std::str::from_utf8(start).ok()).unwrap_or_default()
        }
        Err(_) => return Cow::Owned(rebuild(&String::from_utf8_lossy(bytes))),
    };
    if valid.chars().all(is_clean) { Cow::Borrowed(valid) } else { Cow::Owned(rebuild(valid)) }
}

/// A version as a server wrote it; what is too long for a version is cut.
pub fn version(bytes: &[u8]) -> VersionText {
    let mut version = VersionText::new();
    for c in clean(bytes).chars() {
        if version.try_push(c).is_err() {
            break;
        }
    }
    version
}

fn rebuild(text: &str) -> String {
    text.chars().filter(|&c| is_clean(c)).collect()
}

fn is_clean(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn honest_text_is_borrowed() {
        for text in ["", "Loopback Test", "Grüße", "日本"] {
            assert!(matches!(clean(text.as_bytes()), Cow::Borrowed(t) if t == text));
        }
    }

    #[test]
    fn a_character_cut_at_the_fields_end_is_dropped() {
        let name = "aé".as_bytes();
        assert!(matches!(clean(&name[..2]), Cow::Borrowed("a")));
    }

    #[test]
    fn the_rest_becomes_something_valid() {
        assert_eq!(clean(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(clean(b"a\x1b[31m\tb\x7f"), "a[31mb");
        assert_eq!(clean("a\u{85}b\u{202e}c\u{2028}".as_bytes()), "abc");
    }

    #[test]
    fn long_versions_are_cut() {
        assert_eq!(version(b"1.08b").as_str(), "1.08b");
        assert_eq!(version(&[b'9'; 100]).len(), 32);
    }

    proptest! {
        #[test]
        fn always_clean_and_never_changed_again(bytes: Vec<u8>) {
            let once = clean(&bytes).into_owned();
            prop_assert!(!once.chars().any(char::is_control));
            // An escaped backslash before a `u` is not an escape of the `u`.
            prop_assert!(!serde_json::to_string(&once).unwrap().replace(r"\\", "").contains(r"\u"));
            prop_assert_eq!(clean(once.as_bytes()), once.as_str());
            prop_assert!(once.len() <= 3 * bytes.len());
        }
    }
}

//! Text from the network is cleaned once, on arrival: valid UTF-8 without control characters.
//!
//! Clean text is safe for terminals, for JSON (no `\u` escapes needed) and for old parsers. It is *not* safe as markup: the
//! code that writes markup escapes it.

use std::borrow::Cow;

use crate::model::{VersionText, is_invisible};

/// Cleans text from a server. Invalid UTF-8 becomes U+FFFD; control characters and characters that nobody sees (marks of
/// direction, spaces without width, joiners), which can disguise text, are dropped, and so is a character cut off at the end of a fixed-size field. Borrows if nothing has to
/// change, as for every well-behaved server.
pub fn clean(bytes: &[u8]) -> Cow<'_, str> {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // `error_len` is None when the input ends inside a character.
        Err(error) if error.error_len().is_none() => {
            bytes.get(..error.valid_up_to()).and_then(|start| std::str::from_utf8(start).ok()).unwrap_or_default()
        }
        Err(_) => return Cow::Owned(rebuild(&String::from_utf8_lossy(bytes))),
    };
    let is_all_clean = is_plain(bytes) || valid.chars().all(is_clean);
    if is_all_clean { Cow::Borrowed(valid) } else { Cow::Owned(rebuild(valid)) }
}

/// Whether it is printable ASCII, as nearly all text is. One answer has dozens of texts, so this looks at bytes, without a
/// branch for each.
fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().fold(true, |plain, byte| plain & (b' '..=b'~').contains(byte))
}

/// A server's version string, cleaned and truncated.
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

/// Whether a character stays in clean text.
pub fn is_clean(c: char) -> bool {
    // Variation selectors stay: they choose between the forms of the character before them, of which emoji have two.
    let is_variation = matches!(c, '\u{fe00}'..='\u{fe0f}');
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}');
    c.is_ascii() && !c.is_ascii_control() || !(c.is_control() || is_separator || is_invisible(c) && !is_variation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clean_text_is_borrowed() {
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
    fn invalid_and_control_characters_are_replaced_or_dropped() {
        assert_eq!(clean(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(clean(b"a\x1b[31m\tb\x7f"), "a[31mb");
        assert_eq!(clean("a\u{85}b\u{202e}c\u{2028}".as_bytes()), "abc");
        let unseen = "\u{61c}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\u{202a}\u{2060}\u{2063}\u{2066}\u{206f}\u{ad}\u{34f}\
                      \u{115f}\u{180e}\u{3164}\u{feff}\u{ffa0}\u{fff9}\u{fffb}\u{1d173}\u{e0020}\u{e007f}";
        for c in unseen.chars() {
            assert_eq!(clean(format!("a{c}b").as_bytes()), "ab", "{c:?}");
        }
        for seen in ["\u{2764}\u{fe0f}", "e\u{301}", "\u{e01}\u{e34}", "\u{2800}"] {
            assert_eq!(clean(seen.as_bytes()), seen);
        }
    }

    #[test]
    fn plain_text_is_clean_and_all_else_is_looked_at() {
        for byte in 0..=u8::MAX {
            let is_clean_ascii = byte.is_ascii() && is_clean(char::from(byte));
            assert_eq!(is_plain(&[b'a', byte, b'z']), is_clean_ascii, "{byte:#x}");
        }
    }

    #[test]
    fn long_versions_are_truncated() {
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

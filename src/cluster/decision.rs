//! The operator's decisions as values in the store: one per subject, as JSON that is readable with `nats kv get`. No socket, no
//! clock.
//!
//! Keys are `ban.`, `unlist.` or `hide.` and the subject's text in base64url. Values are untrusted input: they are bounded and
//! cleaned, and other versions are ignored. Times are the store's, as in every statement.

use std::borrow::Cow;
use std::collections::HashMap;

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};

use crate::moderation::{KEPT_MS, REASON_BYTES_MAX, STATEMENTS_MAX, Statement, Statements, Subject};
use crate::text;

pub const VALUE_BYTES_MAX: usize = 4096;
const VERSION: u8 = 1;
const BY_BYTES_MAX: usize = 64;
/// Upper bound on the keys of the store that are remembered.
const KNOWN_MAX: usize = 2 * STATEMENTS_MAX;

#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    v: u8,
    kind: Cow<'a, str>,
    subject: Cow<'a, str>,
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ends: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty", default)]
    reason: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty", default)]
    by: Cow<'a, str>,
}

pub fn key(subject: &Subject) -> String {
    format!("{}.{}", subject.kind(), BASE64URL_NOPAD.encode(subject.text().as_bytes()))
}

pub fn encode(statement: &Statement) -> Vec<u8> {
    let wire = Wire {
        v: VERSION,
        kind: statement.subject.kind().into(),
        subject: statement.subject.text().into(),
        at: statement.at_ms,
        ends: statement.ends_at_ms,
        reason: (&*statement.reason).into(),
        by: (&*statement.by).into(),
    };
    serde_json::to_vec(&wire).unwrap_or_default() // plain data and text keys: cannot fail
}

/// None if the value is not a statement of this version about the key's subject.
pub fn decode(of_key: &str, value: &[u8]) -> Option<Statement> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let wire: Wire<'_> = serde_json::from_slice(value).ok().filter(|wire: &Wire<'_>| wire.v == VERSION)?;
    let subject = Subject::of_kind(&wire.kind, &wire.subject).ok().filter(|subject| key(subject) == of_key)?;
    let cleaned = |text: &str, bytes_max: usize| {
        let end = text.floor_char_boundary(bytes_max);
        text::clean(text.as_bytes().get(..end).unwrap_or_default()).into_owned().into_boxed_str()
    };
    let statement = Statement {
        subject,
        at_ms: wire.at,
        ends_at_ms: wire.ends,
        reason: cleaned(&wire.reason, REASON_BYTES_MAX),
        by: cleaned(&wire.by, BY_BYTES_MAX),
    };
    Some(statement).filter(Statement::has_valid_times)
}

/// How long the store keeps a statement; None: for ever.
pub fn age_max_s(statement: &Statement, now_ms: u64) -> Option<u64> {
    statement
        .ends_at_ms
        .map(|ends_at_ms| ends_at_ms.saturating_add(KEPT_MS).saturating_sub(now_ms).div_ceil(1_000).max(1))
}

/// What the store holds, as far as this session has seen it.
#[derive(Default)]
pub struct Known {
    by_key: HashMap<String, (u64, Option<Statement>)>,
}

impl Known {
    /// A value, or None where it was removed, with its revision.
    pub fn note(&mut self, key: String, revision: u64, statement: Option<Statement>) {
        if self.by_key.len() < KNOWN_MAX || self.by_key.contains_key(&key) {
            self.by_key.insert(key, (revision, statement));
        }
    }

    /// The store has nothing under this key.
    pub fn forget(&mut self, key: &str) {
        self.by_key.remove(key);
    }

    /// The statements that the store lacks, each with its key and the revision that it replaces. Not those that it would
    /// no longer keep.
    pub fn lacks(&self, statements: &Statements, now_ms: u64) -> Vec<(String, u64, Statement)> {
        let is_kept = |it: &&Statement| it.ends_at_ms.is_none_or(|ends| ends.saturating_add(KEPT_MS) > now_ms);
        let lacks = |statement: &Statement| {
            let key = key(&statement.subject);
            let (revision, known) = self.by_key.get(&key).map_or((0, None), |(at, known)| (*at, known.as_ref()));
            let is_known = known.is_some_and(|known| !statement.is_newer_than(known));
            (!is_known).then(|| (key, revision, statement.clone()))
        };
        statements.all().filter(is_kept).filter_map(lacks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moderation::TIME_MS_MAX;

    const T: u64 = 1_760_000_000_000;

    fn statement(kind: &str, text: &str, at_ms: u64, ends_at_ms: Option<u64>) -> Statement {
        let subject = Subject::of_kind(kind, text).unwrap();
        Statement { subject, at_ms, ends_at_ms, reason: "why \"not\"".into(), by: "root".into() }
    }

    #[test]
    fn statements_round_trip_and_anything_else_is_refused() {
        for before in [
            statement("ban", "192.0.2.0/24", T, Some(T + 5)),
            statement("ban", "2001:db8::/32", T, None),
            statement("unlist", "[2001:db8::1]:5", T, Some(T)),
            statement("hide", &"*日".repeat(64), T, None),
        ] {
            let (key, value) = (key(&before.subject), encode(&before));
            assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)), "{key}");
            assert_eq!(decode(&key, &value), Some(before.clone()));
            assert_eq!(decode("ban.x", &value), None, "another key");
            for cut in 0..value.len() {
                assert_eq!(decode(&key, &value[..cut]), None, "{cut}");
            }
            let text = String::from_utf8(value).unwrap();
            assert_eq!(decode(&key, text.replacen("\"v\":1", "\"v\":2", 1).as_bytes()), None);
        }
        let long = Statement { reason: "ä\u{1b}".repeat(500).into(), ..statement("ban", "192.0.2.1", T, None) };
        let read = decode(&key(&long.subject), &encode(&long)).unwrap();
        assert!(read.reason.len() <= REASON_BYTES_MAX && read.reason.chars().all(|c| c == 'ä'), "{}", read.reason);
        for (at_ms, ends_at_ms) in [(u64::MAX, None), (T, Some(TIME_MS_MAX + 1))] {
            let never = statement("ban", "192.0.2.1", at_ms, ends_at_ms);
            assert_eq!(decode(&key(&never.subject), &encode(&never)), None, "{at_ms}");
        }
        let huge = Statement { reason: "x".repeat(5_000).into(), ..long };
        assert_eq!(decode(&key(&huge.subject), &encode(&huge)), None);
    }

    #[test]
    fn only_what_the_store_lacks_is_put() {
        let mut known = Known::default();
        let mut all = Statements::default();
        let put = |known: &Known, all: &Statements| -> Vec<u64> {
            known.lacks(all, T).iter().map(|(_, revision, _)| *revision).collect()
        };
        let ban = statement("ban", "192.0.2.1", 5, None);
        all.merge(ban.clone());
        assert_eq!(put(&known, &all), [0], "it has none");
        known.note(key(&ban.subject), 7, Some(statement("ban", "192.0.2.1", 4, None)));
        assert_eq!(put(&known, &all), [7], "it has an older one");
        known.note(key(&ban.subject), 8, Some(ban.clone()));
        assert!(put(&known, &all).is_empty(), "it has this one");
        known.note(key(&ban.subject), 9, Some(statement("ban", "192.0.2.1", 6, Some(6))));
        assert!(put(&known, &all).is_empty(), "it has a newer one");
        known.note(key(&ban.subject), 10, None);
        assert_eq!(put(&known, &all), [10], "it was removed there");
        known.forget(&key(&ban.subject));
        assert_eq!(put(&known, &all), [0]);
        let mut ended = Statements::default();
        ended.merge(statement("ban", "192.0.2.2", T - KEPT_MS, Some(T - KEPT_MS)));
        assert!(put(&known, &ended).is_empty(), "it would not keep it");
        ended.merge(statement("ban", "192.0.2.2", T - KEPT_MS + 1, Some(T - KEPT_MS + 1)));
        assert_eq!(put(&known, &ended), [0]);
        assert_eq!(age_max_s(&ban, T), None);
        let lifted = statement("ban", "192.0.2.1", T, Some(T));
        assert_eq!(age_max_s(&lifted, T), Some(KEPT_MS / 1_000));
        assert_eq!(age_max_s(&lifted, T + 2 * KEPT_MS), Some(1));
    }
}

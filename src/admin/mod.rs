//! Administration over a Unix socket: the only way to moderate. The file's permissions say who may.
//!
//! A client sends one line of JSON, a [`Request`], and reads lines of JSON until the end: answers, or `{"error": …}`. [`socket`]
//! has the file and its connections, [`answer`] the answers.

pub mod answer;
pub mod socket;

use serde::{Deserialize, Serialize};

use crate::registry::networks;

/// Upper bound on a request's line.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Upper bound on an answer: the longest lists every statement.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    Status,
    Top,
    /// Who holds the list: networks, those that hold the most first.
    Networks {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        game: Option<String>,
        #[serde(default)]
        by: By,
    },
    /// What is known of a game.
    Game {
        name: String,
    },
    Ban {
        network: String,
        #[serde(flatten)]
        terms: Terms,
    },
    Unban {
        network: String,
    },
    Bans,
    Unlist {
        address: String,
        #[serde(flatten)]
        terms: Terms,
    },
    Relist {
        address: String,
    },
    Unlisted,
    Hide {
        pattern: String,
        #[serde(flatten)]
        terms: Terms,
    },
    Unhide {
        pattern: String,
    },
    Hidden,
    Reload,
    /// Sends a test to one of the addresses of notices, or to all.
    #[serde(rename = "notice-test")]
    NoticeTest {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

/// What networks are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum By {
    #[default]
    Servers,
    Players,
    Bytes,
}

impl From<By> for networks::By {
    fn from(by: By) -> networks::By {
        match by {
            By::Servers => networks::By::Servers,
            By::Players => networks::By::Players,
            By::Bytes => networks::By::Bytes,
        }
    }
}

/// For how long, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// None: until it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts may speak this without our command: the form stays.
    #[test]
    fn requests_as_they_are_written() {
        let terms = Terms { for_ms: Some(7_200_000), reason: "flood".into() };
        let without = Terms::default();
        for (line, request) in [
            (r#"{"command":"status"}"#, Request::Status),
            (r#"{"command":"networks","by":"servers"}"#, Request::Networks { game: None, by: By::Servers }),
            (
                r#"{"command":"networks","game":"xonotic","by":"bytes"}"#,
                Request::Networks { game: Some("xonotic".into()), by: By::Bytes },
            ),
            (r#"{"command":"game","name":"xonotic"}"#, Request::Game { name: "xonotic".into() }),
            (
                r#"{"command":"ban","network":"192.0.2.0/24","for_ms":7200000,"reason":"flood"}"#,
                Request::Ban { network: "192.0.2.0/24".into(), terms },
            ),
            (
                r#"{"command":"ban","network":"192.0.2.1"}"#,
                Request::Ban { network: "192.0.2.1".into(), terms: without.clone() },
            ),
            (r#"{"command":"unban","network":"192.0.2.1"}"#, Request::Unban { network: "192.0.2.1".into() }),
            (
                r#"{"command":"unlist","address":"192.0.2.1:5"}"#,
                Request::Unlist { address: "192.0.2.1:5".into(), terms: without.clone() },
            ),
            (r#"{"command":"hide","pattern":"*x*"}"#, Request::Hide { pattern: "*x*".into(), terms: without }),
            (r#"{"command":"reload"}"#, Request::Reload),
            (r#"{"command":"notice-test"}"#, Request::NoticeTest { name: None }),
            (r#"{"command":"notice-test","name":"a"}"#, Request::NoticeTest { name: Some("a".into()) }),
        ] {
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
        }
        for bad in ["", "{}", r#"{"command":"shout"}"#, r#"{"command":"ban"}"#, r#"{"command":"ban","network":5}"#] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }
}

//! Rallypoint: one master server for many games.
//!
//! # For launchers
//!
//! What a launcher needs is public on purpose, and uses no socket, no runtime and no clock. Turn the features off, and the
//! crate comes without the program (HTTP, SQLite, NATS and so on):
//!
//! ```toml
//! rallypoint = { path = "../rallypoint", default-features = false }
//! ```
//!
//! - [`protocols`]: the codecs of every game. A [`Card`](protocols::Card) says all about a protocol: how a list is
//!   [fetched](protocols::Fetch) from a master, how a game server is [queried](protocols::Query), and how to
//!   [join](protocols::join) it.
//! - [`asker`]: queries many game servers at once: retries, rate limits, and which answers to believe. Bytes and times go in,
//!   bytes and results come out; `examples/ask.rs` is a whole program around it.
//! - [`model`]: the words that they share: [`Address`](model::Address), [`Facts`](model::Facts).
//! - [`prefix`]: address prefixes, for rate limits; [`text`]: cleaning text that strangers wrote.
//!
//! A question to a server, and what its answer says:
//!
//! ```
//! use rallypoint::model::{Address, Facts};
//! use rallypoint::protocols::{self, Ask, Heard, Question};
//!
//! let card = protocols::card("hyperbol").unwrap();
//! let query = card.query.unwrap();
//! let mut question = Question::new();
//! query.ask(Ask::Facts, 7, &mut question);
//!
//! // What a server would answer: cards can do that, too.
//! let facts = Facts { name: "Home".into(), players_current: Some(3), ..Facts::default() };
//! let at: Address = "203.0.113.5:20200".parse().unwrap();
//! let answers = card.answer.unwrap()(&facts, at, &question);
//!
//! match query.hear(&answers[0]) {
//!     Ok(Heard::Whole { nonce: 7, facts }) => assert_eq!((&*facts.name, facts.players_current), ("Home", Some(3))),
//!     _ => panic!("another answer"),
//! }
//! // Whatever arrives is an answer or an error; nothing panics.
//! assert!(query.hear(b"not an answer").is_err());
//! ```
//!
//! # The program
//!
//! All other modules are the program's own rooms. They are reachable for its tests and benchmarks, are not in this
//! documentation, and change without notice. ARCHITECTURE.md is their map.

pub mod asker;
pub mod model;
pub mod prefix;
pub mod protocols;
pub mod text;

// The rest of what protocols are made of.
#[doc(hidden)]
pub mod bytes;
#[doc(hidden)]
pub mod cookie;
#[doc(hidden)]
pub mod moderation;
#[doc(hidden)]
pub mod registry;
#[doc(hidden)]
pub mod settings;
#[doc(hidden)]
pub mod times;

// The program, which a launcher does without.
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod admin;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod app;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod budget;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod client;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod cluster;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod encodings;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod export;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod geo;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod hub;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod ledger;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod metrics;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod mirror;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod net;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod notices;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod store;
#[cfg(feature = "program")]
#[doc(hidden)]
pub mod web;

//! Laws for everything that reads bytes, each a function of one input. `fuzz_targets` runs them with libFuzzer, and
//! `tests/laws` runs them on the stored inputs and on mutations of them, so they always compile.

pub mod asker;
pub mod client;
pub mod config;
pub mod cookie;
pub mod datagrams;
pub mod decoders;
pub mod http;
pub mod merge;
pub mod proxies;
pub mod queries;
pub mod registry;
pub mod streams;
mod tape;
mod world;

/// A target's name and its law, which panics where it is broken.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("decoders", decoders::run),
    ("datagrams", datagrams::run),
    ("streams", streams::run),
    ("cookie", cookie::run),
    ("asker", asker::run),
    ("registry", registry::run),
    ("merge", merge::run),
    ("proxies", proxies::run),
    ("http", http::run),
    ("queries", queries::run),
    ("config", config::run),
    ("client", client::run),
];

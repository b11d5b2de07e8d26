//! Speed and memory of the real program, compared with a baseline that runs on the same machine at the same time: absolute
//! numbers say more about the machine than about the program. docs/performance.md explains the results.
//!
//! `cargo bench --bench speed -- [PART…]`; without names, all. An unknown name prints the list of parts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod answerer;
mod attack;
mod cluster;
mod echo;
mod events;
mod exchange;
mod first;
mod http;
mod iceball;
mod lists;
mod measure;
mod memory;
mod peer;
mod posts;
mod probe;
mod quake3;
mod query;
mod report;
mod store;
mod xash;
// Shared with the end-to-end tests; not everything is needed here.
#[allow(dead_code)]
#[path = "../../tests/e2e/support/mod.rs"]
mod support;

use support::{attackers, load, nats};

const ALL: &[(&str, fn())] = &[
    ("iceball", iceball::run),
    ("xash", xash::run),
    ("quake3", quake3::run),
    ("posts", posts::run),
    ("memory", memory::run),
    ("http", http::run),
    ("events", events::run),
    ("first", first::run),
    ("lists", lists::run),
    ("probe", probe::run),
    ("query", query::run),
    ("store", store::run),
    ("cluster", cluster::run),
    ("attack", attack::run),
];

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return ALL.iter().for_each(|(name, _)| println!("{name}"));
    }
    // Cargo adds `--bench`.
    let names: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [echo::ARGUMENT, dialect] => return echo::serve(dialect),
        [lists::ARGUMENT] => return lists::serve(&peer::messages()),
        [quake3::ARGUMENT] => return quake3::serve(&peer::messages()),
        [posts::ARGUMENT, name, game_port] => return posts::serve(name, game_port.parse().unwrap()),
        _ => {}
    }
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|(known, _)| known == name)) {
        let known: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("unknown benchmark `{unknown}`; there are: {}", known.join(", "));
        std::process::exit(2);
    }
    for (name, run) in ALL {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            println!("# {name}");
            run();
            report::end(name);
            println!();
        }
    }
}

//! How fast and how small the real program is, always against something that this machine runs in the same minutes:
//! an absolute number says more about the machine than about the program. docs/benchmarks.md says how to read it.
//!
//! `cargo bench --bench speed -- [iceball] [xash] [memory] [http] [lists] [probe] [store] [cluster]`; all of them without a name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod cluster;
mod echo;
mod http;
mod iceball;
mod lists;
mod load;
mod measure;
mod memory;
mod probe;
mod store;
mod xash;
// Starting programs and talking to them is what the end-to-end tests do; not all of theirs is needed here.
#[allow(dead_code)]
#[path = "../../tests/e2e/machines.rs"]
mod machines;
#[allow(dead_code)]
#[path = "../../tests/e2e/nats.rs"]
mod nats;
#[allow(dead_code)]
#[path = "../../tests/e2e/support.rs"]
mod support;

const ALL: &[(&str, fn())] = &[
    ("iceball", iceball::run),
    ("xash", xash::run),
    ("memory", memory::run),
    ("http", http::run),
    ("lists", lists::run),
    ("probe", probe::run),
    ("store", store::run),
    ("cluster", cluster::run),
];

fn main() {
    // Cargo itself adds `--bench`.
    let names: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if names == [echo::ARGUMENT] {
        return echo::serve();
    }
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|(known, _)| known == name)) {
        let known: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no `{unknown}`; there are: {}", known.join(", "));
        std::process::exit(2);
    }
    for (name, run) in ALL {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            println!("# {name}");
            run();
            println!();
        }
    }
}

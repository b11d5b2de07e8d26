//! The pages in docs/moving: one for each protocol, linked from the index. `documents.rs` checks their configurations and commands.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint::protocols::CARDS;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/moving");

/// What a community needs to know before it moves.
const HEADINGS: [&str; 6] = [
    "## The game's lines",
    "## Taking the old ",
    "## What differs from ",
    "## Side by side",
    "## Check",
    "## Going back",
];

/// The text of each page, by its name without `.md`.
fn pages() -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let page = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let name = name.strip_suffix(".md").unwrap_or_else(|| panic!("docs/moving: {name} is not a page"));
        (name.to_string(), std::fs::read_to_string(&path).unwrap())
    };
    entries.map(page).collect()
}

#[test]
fn every_protocol_has_a_page_about_moving_and_no_other_page_is_there() {
    let mut pages = pages();
    let index = pages.remove("README").unwrap();
    let found: BTreeSet<&str> = pages.keys().map(String::as_str).collect();
    let expected: BTreeSet<&str> = CARDS.iter().map(|card| card.name).collect();
    assert_eq!(found, expected, "docs/moving has one page for each card");
    for card in CARDS {
        let page = &pages[card.name];
        assert!(index.contains(&format!("]({}.md)", card.name)), "the index does not link {}.md", card.name);
        for heading in HEADINGS {
            assert!(page.contains(&format!("\n{heading}")), "{}.md has no `{heading}`", card.name);
        }
        for block in ["```toml\n", "```sh\nrallypoint "] {
            assert!(page.contains(block), "{}.md has no {block}", card.name);
        }
    }
}

//! The pages in docs/moving: one for each protocol, linked from the index. Their configurations and commands are real.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint::protocols::CARDS;

use crate::support::*;
use crate::tools::ends;

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

/// The blocks of code in a language.
fn blocks<'a>(page: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
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
    }
}

#[test]
fn every_configuration_in_a_page_about_moving_is_accepted_without_a_warning() {
    let folder = Folder::new("moving");
    for (name, page) in pages() {
        let mut count = 0;
        for block in blocks(&page, "toml") {
            count += 1;
            let file = folder.write(&format!("{name}-{count}.toml"), block);
            let (_, stderr) = ends(0, &["config", "--check", file.to_str().unwrap()]);
            assert!(!stderr.contains("warning"), "{name}.md: {stderr}{block}");
        }
        assert!(count > 0, "{name}.md has no configuration");
    }
}

#[test]
fn every_command_in_a_page_about_moving_has_the_options_that_it_is_given() {
    let is_end = |word: &&str| ["|", ">", "#"].contains(word);
    for (name, page) in pages() {
        let lines = blocks(&page, "sh").flat_map(str::lines).map(str::trim);
        let commands: Vec<&str> = lines.filter_map(|line| line.strip_prefix("rallypoint ")).collect();
        assert!(!commands.is_empty(), "{name}.md has no command");
        for command in commands {
            let mut words = command.split_whitespace().take_while(|word| !is_end(word));
            let help = ends(0, &[words.next().unwrap(), "--help"]).0;
            for option in words.filter(|word| word.starts_with("--")) {
                let is_known = help.split_whitespace().any(|word| word == option);
                assert!(is_known, "{name}.md: `rallypoint {command}`: there is no {option}");
            }
        }
    }
}

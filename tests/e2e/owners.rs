//! The pages in docs/games, for owners of game servers: one for each protocol, with the game's own port in the lines for
//! firewalls, which are run, and the name of the game for the doctor. Real programs are started with their lines, where there are
//! some.

use std::collections::BTreeSet;
use std::process::Command;

use rallypoint::protocols::CARDS;

use crate::documents::{Document, commands_in, documents};
use crate::machines::{Own, inside};

const HEADINGS: [&str; 4] = ["## Configuration", "## Its port", "## Is it listed?", "## When it is not"];

fn pages() -> Vec<(String, Document)> {
    let pages = documents().into_iter().filter_map(|document| {
        let name = document.name.strip_prefix("docs/games/")?.strip_suffix(".md")?.to_string();
        Some((name, document))
    });
    pages.collect()
}

/// The lines of a game's configuration that its page has, for a master at this address: tests with the real programs use them.
pub fn game_lines(game: &str, language: &str, master: &str) -> String {
    game_blocks(game, language, master).into_iter().find(|block| block.contains(master)).unwrap()
}

/// All blocks of a language that the page has.
pub fn game_blocks(game: &str, language: &str, master: &str) -> Vec<String> {
    let (_, page) = pages().into_iter().find(|(name, _)| name == game).unwrap();
    // Over HTTP: a master on this machine has no certificate.
    let here = |text: String| {
        text.replace("https://master.example.org", "http://master.example.org").replace("master.example.org", master)
    };
    page.blocks(language).into_iter().map(|block| here(block.text)).collect()
}

#[test]
fn every_protocol_has_a_page_for_owners_with_its_ports_and_the_doctor() {
    let pages = pages();
    let found: BTreeSet<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    let expected: BTreeSet<&str> = CARDS.iter().map(|card| card.name).chain(["README", "other"]).collect();
    assert_eq!(found, expected, "docs/games has one page for each card");
    let text = |name: &str| &pages.iter().find(|(page, _)| page == name).unwrap().1.text;
    for card in CARDS {
        let (page, port) = (text(card.name), card.game_port);
        let row = text("README").lines().find(|line| line.contains(&format!("]({}.md)", card.name)));
        assert!(row.is_some_and(|row| row.contains(&port.to_string())), "the index, {}: {row:?}", card.name);
        for heading in HEADINGS {
            assert!(page.contains(&format!("\n{heading}")), "{}.md has no `{heading}`", card.name);
        }
        for line in [format!("dport {port} accept"), format!("ufw allow {port}")] {
            assert!(page.contains(&line), "{}.md has no `{line}`", card.name);
        }
        let doctor = page.lines().find(|line| line.starts_with("rallypoint doctor http"));
        let asks = format!(" {} 203.0.113.5:{port}", card.name);
        assert!(doctor.is_some_and(|line| line.ends_with(&asks)), "{}.md: {doctor:?}", card.name);
    }
}

#[test]
fn the_page_about_installing_has_the_port_of_every_protocol() {
    let install = documents().into_iter().find(|document| document.name == "docs/deployment.md").unwrap();
    let (_, table) = install.text.split_once("\n## Ports\n").unwrap();
    for card in CARDS {
        let row = table.lines().find(|line| line.starts_with('|') && line.contains(card.title));
        let row = row.unwrap_or_else(|| panic!("docs/deployment.md does not have {}", card.title));
        let port = card.master_port.map_or("every HTTP port".to_string(), |port| port.to_string());
        assert!(row.contains(&port), "{row}: {port}");
    }
}

fn shell(line: &str) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-c", line]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_lines_for_firewalls_are_accepted() {
    if !inside(Own::Network, "owners::the_lines_for_firewalls_are_accepted") {
        return;
    }
    // As in Debian's /etc/nftables.conf.
    shell("nft add table inet filter");
    shell("nft add chain inet filter input '{ type filter hook input priority 0; }'");
    let mut count = 0;
    for (name, page) in pages() {
        for line in page.command_lines() {
            match commands_in(&line)[0][0].as_str() {
                "nft" => shell(&line),
                // Without `--dry-run` it would change the files of this machine.
                "ufw" => shell(&line.replacen("ufw ", "ufw --dry-run ", 1)),
                _ => continue,
            }
            count += 1;
        }
        assert!(count > 0, "{name}.md has no line for a firewall");
    }
    assert!(count >= 2 * CARDS.len(), "{count} lines");
}

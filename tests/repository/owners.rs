//! The pages in docs/games, for owners of game servers: one for each protocol, with the game's own port in the lines for
//! firewalls, and the name of the game for the doctor.

use std::collections::BTreeSet;

use rallypoint::protocols::CARDS;

use crate::pages::{documents, game_pages};

const HEADINGS: [&str; 4] = ["## Configuration", "## Its port", "## Is it listed?", "## When it is not"];

#[test]
fn every_protocol_has_a_page_for_owners_with_its_ports_and_the_doctor() {
    let pages = game_pages();
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

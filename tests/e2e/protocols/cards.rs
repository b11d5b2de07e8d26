//! Every protocol of the table is in the configuration, the help texts, the page, the doctor, the metrics and the README, and
//! can be simulated and queried. These tests walk the table, so they cover a new protocol without a change.

use rallypoint::protocols::{Ask, CARDS, Card, Heard, Question};
use serde_json::Value;

use crate::support::commands::{ends, simulate};
use crate::support::*;

fn help(command: &str) -> String {
    // Undo line wrapping.
    ends(0, &[command, "--help"]).0.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The URL of its masters.
fn master_address(card: &Card) -> String {
    match card.master_port {
        Some(port) => format!("{}://HOST[:{port}]", card.name),
        None => format!("{}+http://HOST", card.name),
    }
}

#[test]
fn the_configuration_and_the_help_texts_name_every_protocol() {
    let config = ends(0, &["config"]).0;
    let texts = ["list", "watch", "query", "simulate", "announce"].map(|command| (command, help(command)));
    let text = |name: &str| &texts.iter().find(|(command, _)| *command == name).unwrap().1;
    for card in CARDS {
        assert!(config.contains(&format!("\n[{}]\n", card.name)), "`rallypoint config` has no [{}]", card.name);
        for command in ["list", "watch"] {
            let address = master_address(card);
            assert!(text(command).contains(&address), "{command} --help does not name {address}: {}", text(command));
        }
        if card.query.is_some() {
            let address = format!("{}://HOST[:{}]", card.name, card.game_port);
            assert!(text("query").contains(&address), "query --help does not name {address}: {}", text("query"));
        }
        for command in ["simulate", "announce"] {
            assert!(text(command).contains(card.name), "{command} --help does not name {}", card.name);
        }
    }
}

#[test]
fn the_page_the_doctor_the_metrics_and_the_readme_name_every_protocol() {
    let server = Server::start(&[]);
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (page, metrics) = (server.get("/"), server.get("/metrics"));
    for card in CARDS {
        let is_in_menu = page.text().contains(&format!("value=\"{}\"", card.name));
        assert!(is_in_menu, "{}: not on the page", card.name);
        assert!(metrics.text().contains(&format!("game=\"{}\"", card.name)), "{}: not in the metrics", card.name);
        assert!(readme.contains(card.title), "the README does not name {}", card.title);
        let path = format!("/api/v1/check?game={}&address=127.0.0.1:{}", card.name, card.game_port);
        assert_eq!(server.json(&path)["listed"], false, "{}", card.name);
    }
}

/// Whether the game's answer to a query has facts.
fn describes_itself(card: &Card) -> bool {
    let mut question = Question::new();
    card.query.unwrap().ask(Ask::Proof, 1, &mut question);
    let answers = card.answer.unwrap()(&(card.pretend)(1), "192.0.2.1:1".parse().unwrap(), &question);
    !matches!(card.query.unwrap().hear(&answers[0]), Ok(Heard::Alive))
}

#[test]
fn simulated_servers_of_every_protocol_answer_a_query() {
    for card in CARDS.iter().filter(|card| card.query.is_some()) {
        let (_servers, addresses) = simulate(card.name, 2, &[]);
        let arguments: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let (found, _) = ends(0, &[&["query", "--format", "json"], &*arguments].concat());
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["total"], 2, "{}: {found}", card.name);
        for server in found["servers"].as_array().unwrap() {
            assert!(server["rtt_ms"].is_f64(), "{server}");
            if !describes_itself(card) {
                continue;
            }
            assert!(server["name"].is_string() && server["players_max"].as_u64() > Some(0), "{server}");
        }
    }
}

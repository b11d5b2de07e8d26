//! The parts of the help texts that are generated from the protocols' cards.

use crate::client::announce::{API_HELP, scheme};
use crate::protocols::announce::AnnounceMethod;
use crate::protocols::{CARDS, Card, DIALECTS, Fetch};

/// Names of games, as in a sentence: `a, b or c`.
pub fn names(last: &str) -> String {
    let names: Vec<_> = CARDS.iter().map(|card| card.name).collect();
    in_sentence(&names, last)
}

/// Names of games, as in a list.
pub fn list_of_names() -> String {
    CARDS.iter().map(|card| card.name).collect::<Vec<_>>().join(", ")
}

fn in_sentence(words: &[&str], last: &str) -> String {
    match words.split_last() {
        Some((end, [])) => (*end).into(),
        Some((end, start)) => format!("{} {last} {end}", start.join(", ")),
        None => String::new(),
    }
}

/// A game for examples: its masters have lists, and its servers answer queries.
pub fn example() -> &'static str {
    let fits = |card: &&Card| card.query.is_some() && card.master_port.is_some();
    CARDS.iter().find(fits).map_or("GAME", |card| card.name)
}

/// Another one, for examples with two games.
pub fn other_example() -> &'static str {
    let fits = |card: &&Card| card.query.is_some() && card.name != example();
    CARDS.iter().rfind(fits).map_or("GAME", |card| card.name)
}

/// The masters whose lists can be fetched.
pub fn masters() -> String {
    let games = CARDS.iter().map(|card| (master(card), String::new()));
    let own = [("http://HOST[:80]".into(), "another Rallypoint".into())];
    format!("Masters:\n{}{}", rows(games.chain(own)), over_tls(", with the system's trusted certificates"))
}

/// The address of a game's master, as in the help.
fn master(card: &Card) -> String {
    let port = card.master_port.map(|port| format!("[:{port}]")).unwrap_or_default();
    match &card.fetch {
        Fetch::Http { path, .. } if card.master_port.is_none() => format!("{}+http://HOST[:80][{path}]", card.name),
        Fetch::Http { .. } | Fetch::Stream(_) => format!("{}://HOST{port}", card.name),
        Fetch::Datagrams(fetch) => format!("{}://HOST{port}{}", card.name, fetch.path_help()),
    }
}

/// The masters that accept announcements from a program other than the game.
pub fn announce_masters() -> String {
    let form = |card: &Card| {
        let port = card.master_port.map(|port| format!("[:{port}]")).unwrap_or_default();
        let help = match &card.announce {
            AnnounceMethod::Http(http) => http.help,
            AnnounceMethod::Stream { help, .. } | AnnounceMethod::Datagrams { help, .. } => help,
            AnnounceMethod::OwnPort { .. } | AnnounceMethod::Challenged(_) | AnnounceMethod::None => return None,
        };
        let path = if matches!(card.announce, AnnounceMethod::Http(_)) { "[/PATH]" } else { "" };
        Some((format!("{}HOST{port}{path}", scheme(card)?), help.to_string()))
    };
    let api = [("http://HOST[:80]".into(), API_HELP.into())];
    format!("Masters:\n{}{}", rows(CARDS.iter().filter_map(form).chain(api)), over_tls(""))
}

/// The games whose masters accept only announcements from the game itself, with advice for their owners.
pub fn own_port() -> String {
    let advice = |card: &Card| {
        let advice = card.announce.only_itself()?;
        Some(format!("{} servers announce themselves: {advice}.\n", card.title))
    };
    CARDS.iter().filter_map(advice).collect()
}

/// The schemes of all masters that a game or a program can announce to: `a://, b+http:// or http://`.
pub fn announce_schemes() -> String {
    let own = |card: &Card| match card.announce {
        AnnounceMethod::OwnPort { .. } => Some(format!("{}://", card.name)),
        AnnounceMethod::Challenged(_) => Some(format!("{}+http://", card.name)),
        _ => None,
    };
    let schemes: Vec<_> = CARDS.iter().filter_map(|card| scheme(card).or_else(|| own(card))).collect();
    let schemes: Vec<_> = schemes.iter().map(String::as_str).chain(["http://"]).collect();
    in_sentence(&schemes, "or")
}

/// The game servers that can be queried.
pub fn game_servers() -> String {
    let queryable = CARDS.iter().filter(|card| card.query.is_some());
    let servers = queryable.map(|card| (format!("{}://HOST[:{}]", card.name, card.game_port), String::new()));
    let dialects = DIALECTS
        .iter()
        .map(|dialect| (format!("{}://HOST[:{}]", dialect.name, dialect.game_port), dialect.title.to_string()));
    format!("Game servers:\n{}", rows(servers.chain(dialects)))
}

/// The games whose servers cannot be queried.
pub fn not_queryable() -> String {
    let titles: Vec<_> = CARDS.iter().filter(|card| card.query.is_none()).map(|card| card.title).collect();
    match titles.as_slice() {
        [] => String::new(),
        titles => {
            format!("{} servers cannot be queried: they only announce themselves.\n\n", in_sentence(titles, "and"))
        }
    }
}

fn over_tls(more: &str) -> String {
    let pages = CARDS.iter().filter(|card| matches!(card.fetch, Fetch::Http { .. }) && card.master_port.is_none());
    let pages = pages.map(|card| format!("{}+https://", card.name));
    let schemes: Vec<_> = std::iter::once("https://".to_string()).chain(pages).collect();
    let schemes: Vec<_> = schemes.iter().map(String::as_str).collect();
    format!("  {} use TLS{more}\n", in_sentence(&schemes, "and"))
}

/// Formats two columns.
fn rows(rows: impl Iterator<Item = (String, String)>) -> String {
    let rows: Vec<_> = rows.collect();
    let width = rows.iter().map(|(left, _)| left.len()).max().unwrap_or(0);
    rows.iter().map(|(left, right)| format!("  {}\n", format!("{left:width$}  {right}").trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_game_is_in_the_help() {
        for card in CARDS {
            assert!(masters().contains(&format!("  {}", card.name)), "{}", masters());
            assert_eq!(game_servers().contains(&format!("{}://", card.name)), card.query.is_some());
            let only_itself = card.announce.only_itself().is_some();
            assert_eq!(only_itself, super::own_port().contains(card.title), "{}", card.name);
            assert_eq!(scheme(card).is_some(), announce_masters().contains(&format!("  {}", card.name)));
        }
        assert_eq!(in_sentence(&["a", "b", "c"], "or"), "a, b or c");
        assert_eq!(in_sentence(&["a"], "or"), "a");
        assert_ne!(example(), other_example());
    }
}

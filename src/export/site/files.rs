//! The files of a copy. Names of files are our own, or names of games that consist of a few harmless characters.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::fetch::{Fetched, List, Row};
use super::{About, File, page};
use crate::protocols::{CARDS, Games};

/// The folder with one list for each game.
pub const LISTS: &str = "api/v1/servers";
/// The whole list.
pub const WHOLE: &str = "api/v1/servers.json";
const SITE: &str = "site.json";
const INDEX: &str = "index.html";
/// The most lists of games without a card: anybody can announce a new name.
const OTHER_GAMES_MAX: usize = 128;
/// Longer names have no file of their own.
const NAME_BYTES_MAX: usize = 64;

/// All files, those that describe the others last. `known` are the lists that the folder has: they stay, if need be as
/// empty lists, because somebody may fetch them.
pub fn all(fetched: Fetched, about: &About, known: &[String]) -> Result<Vec<File>, String> {
    let Fetched { page, plain, list } = fetched;
    let games = by_game(&list, known);
    let mut files: Vec<File> = plain.into_iter().map(|(path, bytes)| (path.to_string(), bytes)).collect();
    files.push((WHOLE.into(), servers(Some(list.serial), list.rows.iter())));
    for (name, rows) in &games {
        files.push((path_of(name), servers(None, rows.iter().copied())));
    }
    let has = |path: &str| path == INDEX || path == SITE || files.iter().any(|(file, _)| file == path);
    let page = page::copy(&page, about, has)?;
    files.push((INDEX.into(), page.into_bytes()));
    files.push((SITE.into(), summary(about, &list, &games)));
    Ok(files)
}

fn path_of(game: &str) -> String {
    format!("{LISTS}/{game}.json")
}

/// Whether a game's name is safe as a file's name, on every system and in every address.
fn is_file_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= NAME_BYTES_MAX
        && name.bytes().all(is_plain)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// The servers of each game that has a file: those with a card, the largest others, and then those that had one before, so that
/// invented names cannot take the place of a game for ever.
fn by_game<'a>(list: &'a List, known: &[String]) -> BTreeMap<String, Vec<&'a Row>> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for row in list.rows.iter().filter(|row| is_file_name(&row.game)) {
        *sizes.entry(&row.game).or_default() += 1;
    }
    let mut largest: Vec<_> = sizes.into_iter().collect();
    largest.sort_by_key(|(_, size)| std::cmp::Reverse(*size)); // stable: by name where equal
    let own: BTreeSet<&str> = CARDS.iter().map(|card| card.name).collect();
    let known = known.iter().map(String::as_str).filter(|name| is_file_name(name));
    let others = largest.into_iter().map(|(name, _)| name).chain(known).filter(|name| !own.contains(name));
    let mut names = own.clone();
    for name in others {
        if names.len() < own.len() + OTHER_GAMES_MAX {
            names.insert(name);
        }
    }
    let of = |name: &str| list.rows.iter().filter(|row| is_of(row, name)).collect();
    names.into_iter().map(|name| (name.to_string(), of(name))).collect()
}

/// A family's name stands for all games of its protocol.
fn is_of(row: &Row, name: &str) -> bool {
    let is_family = || CARDS.iter().any(|card| card.name == name && card.games == Games::Family);
    row.game == name || row.protocol == name && is_family()
}

/// A list as the API writes it. The serial changes with every list, so those of single games have none: they stay the same
/// while their game does.
fn servers<'a>(serial: Option<u64>, rows: impl Iterator<Item = &'a Row>) -> Vec<u8> {
    let rows: Vec<&str> = rows.map(|row| &*row.json).collect();
    let serial = serial.map(|serial| format!("\"serial\":{serial},")).unwrap_or_default();
    format!("{{{serial}\"total\":{},\"servers\":[{}]}}", rows.len(), rows.join(",")).into_bytes()
}

#[derive(Serialize)]
struct Summary<'a> {
    /// When the copy was made.
    written_at: &'a str,
    /// How often it is renewed, in seconds.
    every_s: Option<u64>,
    /// The address of the live list.
    live: &'a str,
    serial: u64,
    servers: usize,
    players: u64,
    games: Vec<GameSummary<'a>>,
}

#[derive(Serialize)]
struct GameSummary<'a> {
    game: &'a str,
    servers: usize,
    players: u64,
    /// Its list.
    path: String,
}

fn summary(about: &About, list: &List, games: &BTreeMap<String, Vec<&Row>>) -> Vec<u8> {
    fn players<'a>(rows: impl Iterator<Item = &'a Row>) -> u64 {
        rows.map(|row| u64::from(row.players)).sum()
    }
    let games = games.iter().map(|(game, rows)| {
        let players = players(rows.iter().copied());
        GameSummary { game, servers: rows.len(), players, path: path_of(game) }
    });
    let summary = Summary {
        written_at: &about.written_at,
        every_s: about.every.map(|every| every.as_secs()),
        live: &about.live,
        serial: list.serial,
        servers: list.rows.len(),
        players: players(list.rows.iter()),
        games: games.collect(),
    };
    serde_json::to_vec_pretty(&summary).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_names_become_files() {
        for good in ["Xonotic", "q3-rally", "a.b_c", "7"] {
            assert!(is_file_name(good), "{good}");
        }
        let long = "x".repeat(65);
        for bad in
            ["", ".", "..", "../../etc/x", "/etc/x", "a/b", "a\\b", ".hidden", "-rf", "a b", "a\0", "ä", "con:", &long]
        {
            assert!(!is_file_name(bad), "{bad}");
        }
    }
}

//! Compares ARCHITECTURE.md's table of rooms with the rooms that the code uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::house::sources;

type Map = BTreeMap<String, BTreeSet<String>>;

/// Each room of the table, with the rooms that it may use.
fn drawn() -> Map {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();
    let (_, table) = text.split_once("## Rooms").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let mut rooms = Map::new();
    for row in table.lines().filter(|line| line.starts_with("| `src/")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [names, _, uses] = cells[..] else { panic!("not three cells: {row}") };
        let touches: BTreeSet<String> = quoted(uses).map(String::from).collect();
        assert_eq!(touches.is_empty(), uses.trim() == "nothing", "{row}");
        for name in quoted(names) {
            let name = name.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches('/');
            assert!(rooms.insert(name.into(), touches.clone()).is_none(), "`{name}` has two rows");
        }
    }
    rooms
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Each room of the code, with the rooms that it uses outside its tests.
fn built() -> Map {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all: Vec<(Vec<String>, String)> = sources("src")
        .into_iter()
        .map(|(path, source)| {
            let path = path.strip_prefix(&root).unwrap().with_extension("");
            (path.iter().map(|part| part.to_str().unwrap().to_string()).collect(), source)
        })
        .collect();
    let only_tests: BTreeSet<&str> = all.iter().flat_map(|(_, source)| test_modules(source)).collect();
    let mut rooms = Map::new();
    for (path, source) in &all {
        let room = &path[0];
        if ["lib", "main"].contains(&room.as_str()) || path[1..].iter().any(|part| only_tests.contains(part.as_str())) {
            continue;
        }
        let code = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let named = lines.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
            assert!(end > 0, "{path:?}: write one room per line: crate::{rest}");
            rest[..end].to_string()
        });
        rooms.entry(room.clone()).or_default().extend(named.filter(|named| named != room));
    }
    rooms
}

/// The names of modules that are compiled only for tests.
fn test_modules(source: &str) -> impl Iterator<Item = &str> {
    let declared = source.split("#[cfg(test)]\nmod ").skip(1);
    declared.filter_map(|rest| rest.lines().next()?.strip_suffix(';'))
}

#[test]
fn every_room_uses_exactly_the_rooms_in_the_table() {
    let (drawn, built) = (drawn(), built());
    let names = |map: &Map| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&drawn), names(&built), "the rows, and the modules of src/lib.rs");
    for (room, touches) in built {
        assert_eq!(drawn[&room], touches, "`{room}`: the map, and the code");
    }
}

#[test]
fn no_two_rooms_need_each_other() {
    let mut left = built();
    while !left.is_empty() {
        let is_free = |touches: &BTreeSet<String>| touches.iter().all(|room| !left.contains_key(room));
        let free: Vec<String> =
            left.iter().filter(|(_, touches)| is_free(touches)).map(|(room, _)| room.clone()).collect();
        assert!(!free.is_empty(), "a cycle among {:?}", left.keys());
        free.iter().for_each(|room| drop(left.remove(room)));
    }
}

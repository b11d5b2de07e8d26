//! Compares ARCHITECTURE.md's table of rooms with the rooms that the code uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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
    let module = |path: PathBuf| -> Vec<String> {
        let path = path.strip_prefix(&root).unwrap().with_extension("");
        path.iter().map(|part| part.to_str().unwrap().to_string()).filter(|part| part != "mod").collect()
    };
    let all: Vec<(Vec<String>, String)> =
        sources("src").into_iter().map(|(path, source)| (module(path), source)).collect();
    let only_tests: BTreeSet<Vec<String>> =
        all.iter().flat_map(|(module, source)| test_modules(module, source)).collect();
    let is_test = |module: &[String]| (1..=module.len()).any(|end| only_tests.contains(&module[..end]));
    let mut rooms = Map::new();
    for (module, source) in all.iter().filter(|(module, _)| !is_test(module) && module[0] != "lib") {
        let used = uses(module, source).into_iter().filter(|used| *used != module[0]);
        rooms.entry(module[0].clone()).or_default().extend(used);
    }
    rooms
}

/// The rooms that a file names outside its tests, its own included.
fn uses(module: &[String], source: &str) -> BTreeSet<String> {
    let mut code = source.to_string();
    // A block at the margin ends at the margin. What follows it counts.
    while let Some(start) = code.find("\n#[cfg(test)]\nmod tests {") {
        let end = code[start..].find("\n}\n").expect("the end of the tests") + start;
        code.replace_range(start..end + 2, "");
    }
    let mut used = BTreeSet::new();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let steps = (1..).take_while(|steps| line.contains(&"super::".repeat(*steps))).count();
        assert!(steps < module.len(), "{module:?}: another room is named by `crate::`: {line}");
        assert!(!line.contains("use crate as") && !line.contains("#[path"), "{module:?}: {line}");
        // The program itself is another crate.
        let own = if module == ["main"] { "rallypoint::" } else { "crate::" };
        for rest in line.split(own).skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
            assert!(end > 0, "{module:?}: write one room per line: {own}{rest}");
            used.insert(rest[..end].to_string());
        }
    }
    used
}

/// The modules in files of their own that a file declares for tests only.
fn test_modules(module: &[String], source: &str) -> Vec<Vec<String>> {
    let declared = source.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
        let line = rest.lines().next()?;
        line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(|name| [module, &[name.to_string()]].concat()).collect()
}

#[test]
fn every_room_uses_exactly_the_rooms_in_the_table() {
    let (drawn, built) = (drawn(), built());
    let names = |map: &Map| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&drawn), names(&built), "the table, and the files of src");
    let lib = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let modules = lib.lines().filter(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with("#["));
    let modules: BTreeSet<String> =
        modules.map(|line| line.strip_prefix("pub mod ").unwrap().trim_end_matches(';').to_string()).collect();
    let rooms: BTreeSet<String> = names(&built).into_iter().filter(|room| room != "main").collect();
    assert_eq!(modules, rooms, "src/lib.rs declares the rooms and has no code");
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

#[test]
fn every_way_to_name_a_room_is_seen() {
    let module = ["net".to_string(), "udp".to_string()];
    let source = "use crate::hub::{Hub};\nuse super::guard;\n// crate::no\nfn a() { crate::store::b(crate::web::C) }\n\
                  #[cfg(test)]\nmod tests {\n    use crate::no::D;\n}\n\nuse crate::metrics;\n";
    assert_eq!(uses(&module, source).into_iter().collect::<Vec<_>>(), ["hub", "metrics", "store", "web"]);
    for hidden in ["use super::super::store;", "use crate::{hub, store};", "use crate as c;", "#[path = \"../a.rs\"]"] {
        assert!(std::panic::catch_unwind(|| uses(&module, hidden)).is_err(), "{hidden}");
    }
    let of_tests = test_modules(&module, "#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub mod help;\nmod real;\n");
    assert_eq!(of_tests, [["net", "udp", "tests"], ["net", "udp", "help"]]);
}

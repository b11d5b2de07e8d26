//! Rules of this repository that the compiler does not check.

use std::path::{Path, PathBuf};

fn files_under(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

pub fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    files_under(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    assert!(!files.is_empty());
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn code_lines(source: &str) -> impl Iterator<Item = (usize, &str)> {
    source.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn pure_rooms_use_no_socket_runtime_or_clock() {
    let forbidden = [
        "tokio",
        "async ",
        ".await",
        "UdpSocket",
        "TcpStream",
        "TcpListener",
        "std::time",
        "SystemTime",
        "Instant",
        "std::thread",
        "getrandom",
        "nix::",
        "socket2",
        "hyper::",
        "hyper_util",
        "axum",
        "tracing",
        "crate::net",
        "crate::hub",
        "crate::web",
        "crate::config",
        "crate::app",
        "std::fs",
        "std::env",
    ];
    for folder in ["src/protocols", "src/registry"] {
        for (path, source) in sources(folder) {
            for (number, line) in code_lines(&source) {
                for word in forbidden {
                    assert!(!line.contains(word), "{}:{} knows `{word}`: {line}", path.display(), number + 1);
                }
            }
        }
    }
}

#[test]
fn the_registry_uses_no_protocol_and_protocols_do_not_use_each_other() {
    for (path, source) in sources("src/registry") {
        assert!(!source.contains("crate::protocols"), "{}", path.display());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocols");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    let folders: Vec<String> = folders.collect();
    assert!(folders.len() >= 4);
    for folder in &folders {
        for (path, source) in sources(&format!("src/protocols/{folder}")) {
            for other in folders.iter().filter(|other| *other != folder) {
                assert!(!source.contains(&format!("protocols::{other}")), "{}", path.display());
            }
        }
    }
}

#[test]
fn outside_the_protocols_no_code_names_a_game() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let entries = std::fs::read_dir(root.join("protocols")).unwrap().map(|entry| entry.unwrap());
    let games = entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    let games: Vec<String> = games.collect();
    assert!(games.len() >= 4);
    let mut naming = Vec::new();
    let is_test = |path: &Path| path.ends_with("tests.rs") || path.iter().any(|part| part == "tests");
    for (path, source) in sources("src") {
        let path = path.strip_prefix(&root).unwrap();
        if is_test(path) {
            continue;
        }
        let room = path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if room == "protocols" {
            continue;
        }
        let end = source.lines().position(|line| line.starts_with("mod tests")).unwrap_or(usize::MAX);
        for (number, line) in code_lines(&source).take_while(|(number, _)| *number < end) {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| games.iter().any(|game| game.eq_ignore_ascii_case(word))) {
                naming.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(naming.is_empty(), "move what belongs to one game into its folder:\n{}", naming.join("\n"));
}

#[test]
fn the_client_commands_use_nothing_of_the_master() {
    for folder in ["src/client", "src/export"] {
        for (path, source) in sources(folder) {
            for room in ["hub", "registry", "web", "app", "config", "cli"] {
                assert!(!source.contains(&format!("crate::{room}::")), "{} knows `{room}`", path.display());
            }
        }
    }
}

/// What serves strangers knows the disk in these files only, which read what the configuration names, or the state of this
/// process.
#[test]
fn what_serves_strangers_opens_no_files_and_starts_no_processes() {
    // The operator's files; and who has a port that is taken, at the start.
    let known = ["src/web/page.rs", "src/web/template.rs", "src/web/tls.rs", "src/net/holder.rs"];
    let words =
        ["std::fs", "fs::", "File::", "OpenOptions", "tokio::fs", "Command::new", "process::Command", "std::env"];
    let rooms = ["src/net", "src/web", "src/protocols", "src/registry", "src/hub", "src/asker", "src/budget"];
    for (path, source) in rooms.iter().flat_map(|room| sources(room)) {
        let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_str().unwrap().to_string();
        if known.contains(&&*name) || name.contains("tests") {
            continue;
        }
        let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
        for word in words {
            let line = code.lines().find(|line| line.contains(word) && !line.trim_start().starts_with("//"));
            assert!(line.is_none(), "{name} knows {word}: {line:?}");
        }
    }
    // `watch` starts what its user names with --exec, and the game that its user joins.
    let watch = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/watch");
    for (path, source) in sources("src").into_iter().filter(|(path, _)| !path.starts_with(&watch)) {
        let code = source.split("#[cfg(test)]\nmod tests").next().unwrap();
        let starts = ["process::Command", "process::{", "Command::new"].iter().any(|word| code.contains(word));
        assert!(!starts, "{} starts a process", path.display());
    }
}

#[test]
fn nothing_prints_with_macros_that_panic() {
    let macros = ["print!", "println!", "eprint!", "eprintln!"];
    for (path, source) in sources("src") {
        for (number, line) in code_lines(&source) {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '!');
            let used = words.into_iter().find(|word| macros.contains(word));
            assert!(used.is_none(), "{}:{}: {line}: use cli::out", path.display(), number + 1);
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for (path, source) in sources("src") {
        let is_small = source.lines().count() < 10 || path.ends_with("tests.rs");
        assert!(is_small || source.starts_with("//!"), "{} does not begin with //!", path.display());
    }
}

/// The only functions of tests that may read the clock: one waits for a condition, with a limit, one in virtual time, and one is
/// the pace of an attacker, which nothing is concluded from.
const MAY_WAIT: &[(&str, &str)] = &[
    ("tests/e2e/support/mod.rs", "until_within"),
    ("tests/simulation/world.rs", "run"),
    ("tests/e2e/support/attackers.rs", "rest"),
];

/// The lines of a file that only tests run, with their numbers.
fn test_lines<'a>(path: &Path, source: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let only_tests = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    let begin = source.lines().position(|line| line.starts_with("mod tests {")).unwrap_or(usize::MAX);
    code_lines(source).skip_while(move |(number, _)| !only_tests && *number < begin)
}

#[test]
fn no_test_sleeps_or_measures_time() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let forbidden = ["sleep(", "sleep_until(", "park_timeout(", ".elapsed()"];
    let mut waiting = Vec::new();
    for (path, source) in sources("src").into_iter().chain(sources("tests")) {
        let path = path.strip_prefix(root).unwrap();
        let mut function = "";
        for (number, line) in test_lines(path, &source).filter(|_| !path.ends_with("house.rs")) {
            if let Some((_, rest)) = line.split_once("fn ") {
                function = rest.split(['(', '<']).next().unwrap();
            }
            let is_allowed = MAY_WAIT.iter().any(|(file, name)| path.ends_with(file) && function == *name);
            if !is_allowed && forbidden.iter().any(|word| line.contains(word)) {
                waiting.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(waiting.is_empty(), "wait for a condition (support::until) or pass the time in:\n{}", waiting.join("\n"));
}

#[test]
fn every_dependency_is_used_and_has_its_reason_beside_it() {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let folders = ["src", "tests", "benches"].into_iter().flat_map(sources);
    let all: String = folders.map(|(_, source)| source).collect();
    let (mut section, mut above, mut count) = ("", "", 0);
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| section.ends_with("dependencies]")) {
            assert!(above.starts_with("# "), "Cargo.toml: `{name}` has no reason beside it");
            let name = name.replace('-', "_");
            assert!(all.contains(&format!("{name}::")), "Cargo.toml: `{name}` is not used");
            count += 1;
        }
        above = line;
    }
    assert!(count > 40, "{count} dependencies were looked at");
}

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// What stands between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_a_document_names_exists() {
    let all: String = sources("src").into_iter().chain(sources("tests")).map(|(_, source)| source).collect();
    let is_test_name =
        |word: &&str| word.matches('_').count() >= 3 && word.chars().all(|c| c == '_' || c.is_alphanumeric());
    for (file, least) in [("SECURITY.md", 20), ("docs/protocol.md", 15)] {
        let text = document(file);
        let named: Vec<&str> = quoted(&text).filter(is_test_name).collect();
        assert!(named.len() > least, "{named:?}");
        for name in named {
            assert!(all.contains(&format!("fn {name}(")), "{file} names `{name}`, and there is no such test");
        }
    }
}

/// docs/protocol.md lists all files of the folder that it takes as its example, and no others; the paths that it names
/// elsewhere exist.
#[test]
fn the_example_of_a_protocol_is_whole() {
    let page = document("docs/protocol.md");
    let (table, rest) = page.split_once("Outside the folder").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = quoted(table).find(|word| word.starts_with("src/protocols/")).unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let mut listed: Vec<String> =
        rows.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`').to_string()).collect();
    let mut files: Vec<String> = sources(folder)
        .into_iter()
        .map(|(path, _)| path.strip_prefix(root.join(folder)).unwrap().to_str().unwrap().to_string())
        .collect();
    listed.sort();
    files.sort();
    assert_eq!(listed, files);
    for path in quoted(rest).filter(|word| word.contains('/') && !word.contains(' ')) {
        assert!(root.join(path).exists(), "docs/protocol.md names {path}");
    }
}

//! The last of `cargo test`: names the end-to-end tests that did not run because they need other programs. `scripts/test`
//! installs those programs and runs all tests.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// What a test that needs other programs has above it, up to their names.
const MARK: &str = "#[ignore = \"needs ";

fn main() -> std::io::Result<()> {
    // `scripts/test` runs them all; and other runners ask each test program for its list.
    let is_list = std::env::args().any(|argument| argument == "--list");
    if is_list || std::env::var_os("RALLYPOINT_ALL_TESTS").is_some() {
        return Ok(());
    }
    let mut needs = BTreeMap::new();
    count(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e"), &mut needs)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nnot run: {} tests, because they need other programs:", needs.values().sum::<usize>())?;
    for (programs, tests) in needs {
        writeln!(out, "{tests:5}  {programs}")?;
    }
    writeln!(out, "scripts/test installs these programs and runs all tests.\n")
}

/// Counts the tests of a folder by the programs that they need.
fn count(folder: &Path, needs: &mut BTreeMap<String, usize>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            count(&path, needs)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path)?;
            for rest in text.lines().filter_map(|line| line.trim().strip_prefix(MARK)) {
                *needs.entry(rest.trim_end_matches("\"]").to_string()).or_default() += 1;
            }
        }
    }
    Ok(())
}

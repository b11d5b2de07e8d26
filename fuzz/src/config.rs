//! The configuration: any text as a file, any text as `--set`. Errors name the line or the option.

use super::tape::Tape;
use rallypoint::config::Config;

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let count = tape.below(4);
    let set: Vec<String> = (0..count).map(|_| String::from_utf8_lossy(tape.bytes()).into_owned()).collect();
    let text = String::from_utf8_lossy(tape.rest());
    let lines = text.matches('\n').count() + 1;
    match Config::parse(Some(("a file", &text)), &set) {
        Ok(config) => {
            config.warnings();
            config.named_servers();
            assert!(config.needs_restart(&config).is_empty());
        }
        Err(errors) => {
            let errors = errors.to_string();
            let first = errors.lines().next().unwrap_or_default();
            let is_placed = match first.strip_prefix("a file:").and_then(|rest| rest.split_once(':')) {
                Some((line, _)) => line.parse().is_ok_and(|line: usize| (1..=lines).contains(&line)),
                // Two listeners at the same address are named by their keys.
                None => first.starts_with("--set ") || first.contains(" twice") || first.contains(" already"),
            };
            assert!(is_placed, "where is this? {first}");
        }
    }
}

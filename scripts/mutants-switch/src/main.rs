//! Tests many mutants with one build: `mutants-switch PACKAGE [FOLDER=FILTER,FILTER...]...`. The filters say which tests are
//! run for the mutants in a folder; the first folder that a file is in counts. Without any, all tests are run.
//!
//! PACKAGE has the sources in `original/`, and in `mutants.json` what `cargo mutants --list --json` says of them. All mutants
//! are put into one copy of the sources, beside the original code ([`rewrite`]); those that do not compile are taken out again.
//! Then the tests run once for each mutant, which an environment variable chooses. The few that cannot be chosen at run time
//! are built one by one. Results, one name per line: `caught.txt`, `timeout.txt`, `missed.txt`, `unviable.txt`.

mod rewrite;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use regex::Regex;
use rewrite::{Mutant, Place};
use serde_json::Value;

/// Chooses a mutant.
const VARIABLE: &str = "RALLYPOINT_MUTANT";
/// The least processor time that the tests get; a mutant that takes longer has an endless loop.
const TIMEOUT_MIN: Duration = Duration::from_secs(20);
const TIMEOUT_FACTOR: u32 = 8;
/// The same for tests that are built without optimization.
const TIMEOUT_SLOW: Duration = Duration::from_secs(120);
/// How many times as long they may take by the clock, on a machine that does something else, too.
const WAIT_FACTOR: u32 = 6;
/// SIGXCPU and SIGKILL, which follows if it is ignored.
const OUT_OF_TIME: [i32; 2] = [24, 9];
/// How much address space the tests may take, in KiB: a mutant may allocate without end.
const MEMORY_MAX_KIB: u64 = 6 << 20;

const CHOICE: &str = r#"//! Which mutant is chosen.
/// A function's own iterator, or that of a mutant.
#[derive(Clone)]
pub enum Either<A, B> {
    Mutant(A),
    Original(B),
}
impl<B: Iterator, A: Iterator<Item = B::Item>> Iterator for Either<A, B> {
    type Item = B::Item;
    fn next(&mut self) -> Option<B::Item> {
        match self {
            Either::Mutant(items) => items.next(),
            Either::Original(items) => items.next(),
        }
    }
}
pub fn is(number: usize) -> bool {
    static CHOSEN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let read = || std::env::var("RALLYPOINT_MUTANT").ok().and_then(|number| number.parse().ok());
    *CHOSEN.get_or_init(|| read().unwrap_or(usize::MAX)) == number
}
"#;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Caught,
    Timeout,
    Missed,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let package = PathBuf::from(arguments.next().expect("the package's folder"));
    let rules: Vec<String> = arguments.collect();
    let list = fs::read_to_string(package.join("mutants.json")).expect("the list of mutants can be read");
    let mut list: Vec<Value> = serde_json::from_str(&list).expect("the list is JSON");
    let is_wanted = wanted(&package);
    list.retain(|mutant| is_wanted(mutant["name"].as_str().expect("a name")));
    let name = |number: usize| list[number]["name"].as_str().expect("a name");
    let filters = |number: usize| -> Vec<&str> {
        let file = list[number]["file"].as_str().expect("a file");
        let rule = rules.iter().filter_map(|rule| rule.split_once('=')).find(|(folder, _)| file.starts_with(folder));
        rule.map(|(_, filters)| filters.split(',').collect()).unwrap_or_default()
    };

    let (mut unviable, mut skipped) = (BTreeSet::new(), BTreeSet::new());
    let (program, used) = loop {
        let used = write_sources(&package, &list, &skipped, &mut unviable);
        match build(&package, "1") {
            Ok(program) => break (program, used),
            Err(Culprits { inside, beside }) => {
                eprintln!("{} mutants do not compile, and perhaps {}", inside.len(), beside.len());
                let before = skipped.len();
                skipped.extend(inside.iter().chain(&beside));
                unviable.extend(inside);
                assert!(skipped.len() > before, "the package does not compile: see error.txt");
            }
        }
    };
    let all: Vec<&str> =
        rules.iter().filter_map(|rule| rule.split_once('=')).flat_map(|(_, all)| all.split(',')).collect();
    let begun = Instant::now();
    assert!(
        run(&program, &all, usize::MAX, Duration::from_secs(600)) == Outcome::Missed,
        "the tests fail without a mutant"
    );
    let timeout = TIMEOUT_MIN.max((begun.elapsed() * TIMEOUT_FACTOR).min(TIMEOUT_SLOW));
    eprintln!("{} of {} mutants in one build; the tests take {:?}", used.len(), list.len(), begun.elapsed());

    let queue = Mutex::new(used.iter().copied());
    let results = Mutex::new(Vec::new());
    let jobs = std::env::var("MUTANTS_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(2);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some(number) = queue.lock().expect("a lock").next() else { return };
                    let outcome = run(&program, &filters(number), number, timeout);
                    if outcome == Outcome::Missed {
                        println!("MISSED {}", name(number));
                    }
                    let mut results = results.lock().expect("a lock");
                    results.push((number, outcome));
                    if results.len() % 100 == 0 {
                        println!("{} of {}", results.len(), used.len());
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().expect("a lock");

    let left: Vec<usize> =
        (0..list.len()).filter(|number| !used.contains(number) && !unviable.contains(number)).collect();
    println!("{} mutants are built one by one", left.len());
    restore(&package);
    // Without optimization they are built sooner, but the tests of some rooms would take minutes.
    let is_quick = |program: PathBuf| run(&program, &all, usize::MAX, TIMEOUT_MIN) == Outcome::Missed;
    let (opt_level, timeout) = match left.is_empty() || build(&package, "0").is_ok_and(is_quick) {
        true => ("0", TIMEOUT_SLOW),
        false => ("1", timeout),
    };
    for number in left {
        let program = patch(&package, &list[number], opt_level);
        let outcome = program.map(|program| run(&program, &filters(number), number, timeout));
        match outcome {
            Some(Outcome::Missed) => println!("MISSED {}", name(number)),
            None => drop(unviable.insert(number)),
            _ => {}
        }
        results.extend(outcome.map(|outcome| (number, outcome)));
    }
    restore(&package);
    results.sort_unstable_by_key(|(number, _)| *number);
    let write = |file: &str, numbers: Vec<usize>| {
        let names: String = numbers.iter().map(|number| format!("{}\n", name(*number))).collect();
        fs::write(package.join(file), names).expect("the results can be written");
        println!("{file}: {}", numbers.len());
    };
    let of = |outcome| results.iter().filter(|result| result.1 == outcome).map(|result| result.0).collect();
    write("caught.txt", of(Outcome::Caught));
    write("timeout.txt", of(Outcome::Timeout));
    write("missed.txt", of(Outcome::Missed));
    write("unviable.txt", unviable.iter().copied().collect());
}

/// Whether a mutant is to be tested, by its name: cargo-mutants does not apply its own filters to fields.
fn wanted(package: &Path) -> impl Fn(&str) -> bool {
    let regex = |pattern: &str| Regex::new(pattern).expect("a regular expression");
    let only = std::env::var("MUTANTS_RE").ok().map(|pattern| regex(&pattern));
    let settings = fs::read_to_string(package.join(".cargo/mutants.toml")).expect("the settings can be read");
    let lines = settings.lines().map(|line| line.trim().trim_end_matches(',')).filter(|line| line.starts_with('"'));
    let excluded: Vec<Regex> =
        lines.map(|line| regex(&serde_json::from_str::<String>(line).expect("a pattern on a line"))).collect();
    move |name| {
        only.as_ref().is_none_or(|only| only.is_match(name)) && !excluded.iter().any(|pattern| pattern.is_match(name))
    }
}

/// Writes `src` with all mutants but the skipped ones, and returns the numbers of those in it.
fn write_sources(
    package: &Path,
    list: &[Value],
    skipped: &BTreeSet<usize>,
    unviable: &mut BTreeSet<usize>,
) -> BTreeSet<usize> {
    let mut files: BTreeMap<&str, BTreeMap<Place, Vec<Mutant>>> = BTreeMap::new();
    for (number, mutant) in list.iter().enumerate().filter(|(number, _)| !skipped.contains(number)) {
        let text = |key: &str| mutant[key].as_str().expect("a text");
        let start = &mutant["span"]["start"];
        let at = (start["line"].as_u64().expect("a line"), start["column"].as_u64().expect("a column"));
        let (genre, replacement) = (text("genre").to_string(), text("replacement").to_string());
        files.entry(text("file")).or_default().entry(at).or_default().push(Mutant { number, genre, replacement });
    }
    // A file whose mutants are all skipped is as it was.
    restore(package);
    let mut used = BTreeSet::new();
    for (file, mutants) in files {
        let original = package.join("original").join(file.trim_start_matches("src/"));
        let text = fs::read_to_string(&original).expect("the source can be read");
        let (rewritten, numbers, no_rust) = rewrite::rewrite(&text, mutants);
        used.extend(numbers);
        unviable.extend(no_rust);
        fs::write(package.join(file), rewritten).expect("the source can be written");
    }
    let lib = fs::read_to_string(package.join("original/lib.rs")).expect("lib.rs can be read");
    fs::write(package.join("src/lib.rs"), format!("#![allow(warnings)]\n{lib}pub mod mutant;\n"))
        .expect("lib.rs can be written");
    fs::write(package.join("src/mutant.rs"), CHOICE).expect("the source can be written");
    used
}

/// The mutants that the compiler complains about.
#[derive(Default)]
struct Culprits {
    /// The mutant itself does not compile.
    inside: BTreeSet<usize>,
    /// The code around it does not compile; the mutant alone may.
    beside: BTreeSet<usize>,
}

/// The test program, or what keeps it from being built.
fn build(package: &Path, opt_level: &str) -> Result<PathBuf, Culprits> {
    let cargo = Command::new("cargo")
        .args(["test", "--lib", "--no-run", "--message-format=json", "--quiet"])
        .current_dir(package)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", opt_level)
        .stderr(Stdio::null())
        .output()
        .expect("cargo runs");
    let messages = String::from_utf8_lossy(&cargo.stdout);
    let mut culprits = Culprits::default();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if cargo.status.success() {
            if let Some(program) = message["executable"].as_str() {
                return Ok(program.into());
            }
        } else if message["message"]["level"] == "error" {
            let rendered = message["message"]["rendered"].as_str().unwrap_or_default();
            fs::write(package.join("error.txt"), rendered).expect("the error can be written");
            if message["message"]["code"]["code"] == "E0004" {
                // An arm without which a match is not exhaustive: the message shows it.
                culprits.beside.extend(numbers(rendered, "mutant::is("));
                continue;
            }
            let spans = message["message"]["spans"].as_array().into_iter().flatten();
            spans.filter(|span| span["is_primary"] == true).for_each(|span| culprits.find(package, span));
        }
    }
    Err(culprits)
}

impl Culprits {
    /// Adds the mutants around a place in the rewritten sources; or else those on its line; or else the nearest before it.
    fn find(&mut self, package: &Path, span: &Value) {
        let file = package.join(span["file_name"].as_str().unwrap_or_default());
        let text = fs::read_to_string(file).unwrap_or_default();
        let at = (span["byte_start"].as_u64().unwrap_or_default() as usize).min(text.len());
        let (before, after) = text.split_at(at);
        let before_it = numbers(before, "/*[");
        let is_around = |number: &usize| {
            let end = format!("/*{number}]*/");
            after.contains(&end) && !before.contains(&end)
        };
        let around: Vec<usize> = before_it.into_iter().filter(is_around).collect();
        if !around.is_empty() {
            return self.inside.extend(around);
        }
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_end = after.find('\n').map_or(text.len(), |end| at + end);
        let on_line = numbers(&text[line_start..line_end], "mutant::is(");
        let nearest = numbers(before, "mutant::is(").last().copied();
        self.beside.extend(if on_line.is_empty() { nearest.into_iter().collect() } else { on_line });
    }
}

/// Writes `src` as it was.
fn restore(package: &Path) {
    let copied = Command::new("cp").args(["-r", "original/.", "src"]).current_dir(package).status();
    assert!(copied.is_ok_and(|status| status.success()), "the sources can be copied");
}

/// Builds the tests with one mutant, in the place of the original code. None if it does not compile.
fn patch(package: &Path, mutant: &Value, opt_level: &str) -> Option<PathBuf> {
    let (file, diff) = (mutant["file"].as_str().expect("a file"), mutant["diff"].as_str().expect("a diff"));
    let original = package.join("original").join(file.trim_start_matches("src/"));
    let written = package.join("one.diff");
    fs::write(&written, diff).expect("the diff can be written");
    let patched = Command::new("patch")
        .args(["--quiet", "--output"])
        .arg(package.join(file))
        .args([&original, &written])
        .status();
    assert!(patched.is_ok_and(|status| status.success()), "{file} can be patched");
    let program = build(package, opt_level);
    fs::copy(original, package.join(file)).expect("the source can be copied");
    program.ok()
}

/// The numbers that follow a mark.
fn numbers(text: &str, mark: &str) -> Vec<usize> {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    text.split(mark).skip(1).filter_map(digits).collect()
}

/// Runs the tests until the first fails. Endless are tests that use up their processor time, or that wait for many times as
/// long: a busy machine makes nothing endless.
fn run(program: &Path, filters: &[&str], number: usize, timeout: Duration) -> Outcome {
    let limited = format!("ulimit -v {MEMORY_MAX_KIB} -t {}; exec \"$0\" \"$@\"", timeout.as_secs());
    let mut child = Command::new("bash")
        .args(["-c", &limited])
        .arg(program)
        .args(filters)
        .args(["-Zunstable-options", "--fail-fast", "--quiet"])
        .env("RUSTC_BOOTSTRAP", "1") // for --fail-fast
        .env(VARIABLE, number.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the tests run");
    let begun = Instant::now();
    loop {
        match child.try_wait().expect("the tests end") {
            Some(status) if status.success() => return Outcome::Missed,
            Some(status) if status.signal().is_some_and(|signal| OUT_OF_TIME.contains(&signal)) => {
                return Outcome::Timeout;
            }
            Some(_) => return Outcome::Caught,
            None if begun.elapsed() > timeout * WAIT_FACTOR => {
                let _ = child.kill();
                let _ = child.wait();
                return Outcome::Timeout;
            }
            None => {}
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! Counts the instructions of the hot paths (`benches/hot`) with callgrind and compares them with the accepted numbers in
//! `benches/instructions.tsv`. `scripts/instructions` builds and runs it.
//!
//! Instructions do not depend on what else the machine does, so a small growth is visible where times would be noise. They
//! depend on the compiler, on valgrind, on the C library and on what the processor can do. The file names those; with
//! others, nothing is compared.
//!
//! This uses callgrind directly: one process for all paths, nothing to install but valgrind, and the accepted numbers are a
//! file that a reviewer can read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[path = "../hot/mod.rs"]
mod hot;

use std::fmt::Write;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use hot::{Scale, Work};

const SCALE: Scale = Scale { registered: &[10_000], listed: &[100, 1_000], searched: 1_000 };
const ACCEPTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.tsv");
/// A path may grow by this share.
const TOLERANCE: f64 = 0.05;
/// Growth of so few instructions is nothing, even if it is a large share.
const SLACK: f64 = 10.0;
/// The function whose instructions callgrind counts, and the one before which it writes them down. It cannot do both for one.
const COUNTED: &str = "*counted_by_callgrind*";
const WRITTEN: &str = "*written_by_callgrind*";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run-all"] => run_all(),
        [] => return compare(),
        ["--accept"] => accept(),
        _ => {
            eprintln!("usage: scripts/instructions [--accept]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Runs each path once, under callgrind.
fn run_all() {
    for path in hot::all(SCALE) {
        let mut work = path.make();
        // The first run allocates what later ones reuse.
        work.prepare();
        work.run();
        work.prepare();
        written_by_callgrind(&mut *work);
    }
}

#[inline(never)]
fn written_by_callgrind(work: &mut dyn Work) {
    counted_by_callgrind(work);
    black_box(());
}

#[inline(never)]
fn counted_by_callgrind(work: &mut dyn Work) {
    work.run();
    black_box(());
}

/// Instructions per operation of each path, in order.
fn count() -> Vec<(String, f64)> {
    let folder = Folder::new();
    // Where the stack begins, and so how buffers on it are aligned, depends on the environment and on the program's path. That
    // alone makes 6 % of some paths, so both are always as long.
    let program = folder.0.join("hot-paths");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new("valgrind")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .args(["--tool=callgrind", "--collect-atstart=no", "--quiet"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--dump-before={WRITTEN}"))
        .arg(format!("--callgrind-out-file={}", folder.0.join("out").display()))
        .arg(program)
        .arg("run-all")
        .output();
    let output = output.unwrap_or_else(|error| panic!("cannot run valgrind (Debian package `valgrind`): {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What is written before a path has the numbers of the one before it; those of the last are written at the end.
    let all = hot::all(SCALE);
    let names = (2..=all.len()).map(|number| format!("out.{number}")).chain(["out".to_string()]);
    let totals: Vec<u64> = names.map(|name| total(&folder.0.join(name))).collect();
    let each = |(path, total): (hot::HotPath, u64)| (path.name, total as f64 / f64::from(path.count));
    all.into_iter().zip(totals).map(each).collect()
}

/// The sum in one of callgrind's files.
fn total(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    line.and_then(|total| total.trim().parse().ok()).unwrap_or_else(|| panic!("{}: no total", path.display()))
}

/// What the numbers depend on, besides the code.
fn circumstances() -> String {
    let first_line = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().unwrap_or_else(|error| panic!("{program}: {error}"));
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_string()
    };
    let (rustc, valgrind) = (first_line("rustc", "--version"), first_line("valgrind", "--version"));
    let libc = first_line("ldd", "--version");
    let libc = libc.rsplit(' ').next().unwrap_or_default();
    #[cfg(target_arch = "x86_64")]
    let vectors = if std::arch::is_x86_feature_detected!("avx2") { " with AVX2" } else { " without AVX2" };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "";
    format!("{rustc}, {valgrind}, glibc {libc}, {}{vectors}", std::env::consts::ARCH)
}

fn accept() {
    let mut text = format!(
        "# Instructions per operation of the hot paths: scripts/instructions compares, scripts/instructions --accept writes.\n\
         # {}\n",
        circumstances()
    );
    for (name, instructions) in count() {
        writeln!(text, "{name}\t{instructions:.0}").unwrap();
    }
    std::fs::write(ACCEPTED, &text).unwrap();
    println!("accepted {} numbers: benches/instructions.tsv", text.lines().count() - 2);
}

fn compare() -> ExitCode {
    let accepted = std::fs::read_to_string(ACCEPTED).unwrap_or_default();
    let (then, now) = (accepted.lines().nth(1).unwrap_or_default().trim_start_matches("# "), circumstances());
    if then != now {
        println!("instructions: NOT compared, because the numbers were accepted under other circumstances");
        println!("  accepted with: {then}");
        println!("  here:          {now}");
        println!("  To compare here, run `scripts/instructions --accept` on the last good commit.");
        return ExitCode::SUCCESS;
    }
    let rows = accepted.lines().skip(2).filter_map(|line| line.split_once('\t'));
    let accepted: Vec<(&str, f64)> = rows.map(|(name, count)| (name, count.parse().unwrap())).collect();
    let counted = count();
    let report = Report::of(&accepted, &counted);
    print!("{}", report.text);
    if report.is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

struct Report {
    text: String,
    is_failed: bool,
}

impl Report {
    fn of(accepted: &[(&str, f64)], counted: &[(String, f64)]) -> Report {
        let (mut grown, mut shrunk, mut unknown) = (String::new(), String::new(), String::new());
        for (name, now) in counted {
            let Some((_, then)) = accepted.iter().find(|(known, _)| known == name) else {
                writeln!(unknown, "  {name}: {now:.0}, no accepted number").unwrap();
                continue;
            };
            let line = format!("  {name}: {then:.0} -> {now:.0} ({:+.1} %)\n", (now / then - 1.0) * 100.0);
            if *now > then * (1.0 + TOLERANCE) + SLACK {
                grown += &line;
            } else if *now < then * (1.0 - TOLERANCE) - SLACK {
                shrunk += &line;
            }
        }
        for (name, then) in accepted.iter().filter(|(name, _)| !counted.iter().any(|(known, _)| known == name)) {
            writeln!(unknown, "  {name}: {then:.0} accepted, no such path").unwrap();
        }
        let mut text = String::new();
        for (what, lines) in [
            ("more than 5 % more instructions than accepted:", &grown),
            ("not in benches/instructions.tsv, or only there:", &unknown),
            ("fewer than accepted (accept them, so that they stay so):", &shrunk),
        ] {
            if !lines.is_empty() {
                write!(text, "instructions: {what}\n{lines}").unwrap();
            }
        }
        let is_failed = !grown.is_empty() || !unknown.is_empty();
        match is_failed {
            true => text += "If this is intended: scripts/instructions --accept, and commit the file.\n",
            false => {
                writeln!(text, "instructions: {} hot paths, none has grown by more than 5 %", counted.len()).unwrap()
            }
        }
        Report { text, is_failed }
    }
}

/// Callgrind's files, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("rallypoint-instructions-{:010}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

//! The laws of fuzzing (`fuzz/src`) in an ordinary build: on every stored input, on the samples of every protocol, and on
//! mutations of all of them. Mutations follow from a fixed seed, so a run is always the same. `scripts/fuzz` looks further,
//! because it is guided by coverage and runs for hours.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use rallypoint::protocols::{CARDS, Card};

#[path = "../../fuzz/src/lib.rs"]
mod laws;
mod mutate;
#[allow(dead_code)]
#[path = "../simulation/random.rs"]
mod random;

use laws::TARGETS;
use mutate::Mutator;
use random::Rng;

/// All stored inputs together.
const STORED_BYTES_MAX: usize = 1_500_000;

/// One test for each target, with the number of mutations that it tries: those that take microseconds try more.
macro_rules! targets {
    ($($target:ident $mutations:literal)*) => {
        const TESTED: &[&str] = &[$(stringify!($target)),*];

        $(#[test]
        fn $target() {
            the_law_holds(stringify!($target), $mutations);
        })*
    };
}

targets! {
    asker 2_000
    client 4_000
    config 400
    cookie 40_000
    datagrams 4_000
    decoders 4_000
    http 400
    merge 4_000
    proxies 40_000
    queries 400
    registry 1_000
    streams 1_000
}

fn the_law_holds(target: &str, mutations: usize) {
    let (_, law) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let stored = stored(target);
    let samples = samples();
    let mut mutator = Mutator::new(Rng::new(1), dictionary(target), &stored, &samples);
    let mutated = std::iter::from_fn(|| Some(mutator.next())).take(mutations);
    for input in stored.iter().chain(&samples).cloned().chain(mutated) {
        if catch_unwind(|| law(&input)).is_err() {
            let encoded = BASE64.encode(&input);
            panic!(
                "this input breaks the law of {target}: keep it with\n  base64 -d <<<{encoded} >fuzz/regressions/{target}/NAME"
            );
        }
    }
}

/// Stored inputs: those that reach the most code, one a line, and those that once broke a law, one a file.
fn stored(target: &str) -> Vec<Vec<u8>> {
    let corpus = std::fs::read_to_string(fuzz().join(format!("corpus/{target}.base64"))).unwrap();
    let mut inputs: Vec<Vec<u8>> = corpus.lines().map(|line| BASE64.decode(line.as_bytes()).unwrap()).collect();
    inputs.extend(files("regressions").filter(|path| path.parent().unwrap().ends_with(target)).map(read));
    assert!(!inputs.is_empty(), "{target} has no inputs");
    inputs
}

/// What each protocol's games, clients and masters say: whole, and cut in half.
fn samples() -> Vec<Vec<u8>> {
    let of_card = |(card, number): (&Card, u8)| {
        (card.samples)().into_iter().flat_map(move |sample| {
            let whole = [&[number], &sample[..]].concat();
            let half = whole[..whole.len() / 2].to_vec();
            [whole, half]
        })
    };
    CARDS.iter().zip(0u8..).flat_map(of_card).collect()
}

/// The words of libFuzzer's dictionary for a target, if it has one.
fn dictionary(target: &str) -> Vec<Vec<u8>> {
    let path = fuzz().join("dictionaries").join(target);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| mutate::unescaped(line.trim_matches('"'))).collect()
}

#[test]
fn every_target_is_built_and_tested() {
    let targets: BTreeSet<&str> = TARGETS.iter().map(|(target, _)| *target).collect();
    assert_eq!(TESTED.iter().copied().collect::<BTreeSet<_>>(), targets);
    let named = |folder: &str| -> BTreeSet<String> {
        files(folder).map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect()
    };
    for folder in ["fuzz_targets", "corpus"] {
        let named = named(folder);
        assert_eq!(named.iter().map(String::as_str).collect::<BTreeSet<_>>(), targets, "{folder}");
    }
    for path in files("regressions") {
        let target = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        assert!(targets.contains(target), "{} belongs to no target", path.display());
    }
    let bytes: usize = targets.iter().flat_map(|target| stored(target)).map(|input| input.len()).sum();
    assert!(bytes <= STORED_BYTES_MAX, "{bytes} bytes of inputs: scripts/fuzz --minimise");
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn read(path: PathBuf) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// The files in a folder of `fuzz` and in the folders there, in order.
fn files(folder: &str) -> impl Iterator<Item = PathBuf> {
    fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { collect(&path, out) } else { out.push(path) }
        }
    }
    let mut paths = Vec::new();
    collect(&fuzz().join(folder), &mut paths);
    paths.sort();
    paths.into_iter()
}

//! Runs the laws of fuzzing on every stored input, and on every sample of every protocol: whole, cut, and with a byte changed.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rallypoint::protocols::CARDS;

#[path = "../../fuzz/src/lib.rs"]
mod laws;

use laws::TARGETS;

/// The inputs that reach the most code, and those that once broke a law.
const STORED: [&str; 2] = ["corpus", "regressions"];
/// All stored inputs together.
const STORED_BYTES_MAX: u64 = 1_500_000;

#[test]
fn all_laws_hold_for_all_samples() {
    let samples = CARDS
        .iter()
        .zip(0u8..)
        .flat_map(|(card, number)| (card.samples)().into_iter().map(move |sample| [&[number], &sample[..]].concat()));
    for sample in samples {
        let mut changed = sample.clone();
        *changed.last_mut().unwrap() ^= 0x5c;
        for input in [&sample[..], &sample[..sample.len() / 2], &changed] {
            TARGETS.iter().for_each(|(_, law)| law(input));
        }
    }
}

#[test]
fn all_laws_hold_for_all_stored_inputs() {
    let mut broken = Vec::new();
    for (target, law) in TARGETS {
        for input in STORED.iter().flat_map(|kind| files(&fuzz().join(kind).join(target))) {
            let bytes = std::fs::read(&input).unwrap();
            if catch_unwind(|| law(&bytes)).is_err() {
                broken.push(input);
            }
        }
    }
    assert!(broken.is_empty(), "these inputs break the law of their target: {broken:#?}");
}

#[test]
fn every_target_is_built_and_has_inputs() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(target, _)| target.to_string()).collect();
    let built = files(&fuzz().join("fuzz_targets"));
    let built = built.iter().map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    assert_eq!(built.collect::<BTreeSet<_>>(), targets);
    assert!(targets.iter().all(|target| !files(&fuzz().join("corpus").join(target)).is_empty()));
    for folder in STORED.iter().flat_map(|kind| files(&fuzz().join(kind))) {
        assert!(targets.contains(&*folder.file_name().unwrap().to_string_lossy()), "{folder:?} belongs to no target");
    }
    let stored = targets.iter().flat_map(|target| STORED.map(|kind| fuzz().join(kind).join(target)));
    let bytes: u64 = stored.flat_map(|folder| files(&folder)).map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes <= STORED_BYTES_MAX, "{bytes} bytes of inputs: scripts/fuzz --minimise");
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// What is in a folder; nothing if there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

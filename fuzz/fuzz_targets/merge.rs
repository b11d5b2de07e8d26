//! Fuzz target: see `src/merge.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::merge::run(input));

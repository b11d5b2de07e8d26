//! Fuzz target: see `src/streams.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::streams::run(input));

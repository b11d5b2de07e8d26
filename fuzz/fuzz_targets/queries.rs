//! Fuzz target: see `src/queries.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::queries::run(input));

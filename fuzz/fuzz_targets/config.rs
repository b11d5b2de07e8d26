//! Fuzz target: see `src/config.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::config::run(input));

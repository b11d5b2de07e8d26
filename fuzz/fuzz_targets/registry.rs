//! Fuzz target: see `src/registry.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::registry::run(input));

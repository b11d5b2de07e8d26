//! Fuzz target: see `src/asker.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::asker::run(input));

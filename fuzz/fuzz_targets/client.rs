//! Fuzz target: see `src/client.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::client::run(input));

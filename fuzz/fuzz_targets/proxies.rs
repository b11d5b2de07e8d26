//! Fuzz target: see `src/proxies.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::proxies::run(input));

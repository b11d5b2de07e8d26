//! Fuzz target: see `src/cookie.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::cookie::run(input));

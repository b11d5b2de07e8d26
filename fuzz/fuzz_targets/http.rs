//! Fuzz target: see `src/http.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::http::run(input));

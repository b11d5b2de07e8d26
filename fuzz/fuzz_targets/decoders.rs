//! Fuzz target: see `src/decoders.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::decoders::run(input));

//! Fuzz target: see `src/datagrams.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rallypoint_fuzz::datagrams::run(input));

//! End-to-end tests with the real program, real sockets and real files. Everything is on loopback, on ports that the system
//! chooses. Tests wait for conditions, with a limit, and never for a time.
//!
//! A test that needs another program says so in its `#[ignore]`; `scripts/test` installs those programs and runs all tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod cli;
mod cluster;
mod hostile;
mod operation;
mod packages;
mod protocols;
mod support;
mod web;

//! All output of the commands goes through here: `print!` and the like panic on write errors.
//!
//! A closed pipe on stdout (`rallypoint list … | head -1`) is not an error and does not change the exit code. Any other
//! write error is reported.

use std::fmt::Display;
use std::io::{Error, Write, stderr};

use super::{Exit, Failure};
use crate::export::file::{self, Written};

/// Data, to stdout.
pub fn print(text: &str) -> Result<Written, Failure> {
    file::bytes_to_stdout(text.as_bytes()).map_err(cannot_print)
}

pub fn cannot_print(error: Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot write to stdout: {error}"))
}

/// Prints a message to stderr. Errors are ignored: stderr may be closed.
pub fn message(line: impl Display) {
    let _ = writeln!(stderr().lock(), "{line}");
}

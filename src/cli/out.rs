//! The commands' own output: all of it goes through here. `print!` and its kin panic when nothing can be written.
//!
//! A reader of stdout that goes away (`rallypoint list … | head -1`) is no failure: the command ends without a word, with
//! the exit code that it would have had anyway. Any other failed write is one.

use std::fmt::Display;
use std::io::{Error, Write, stderr};

use super::{Exit, Failure};
use crate::export::file::{self, Written};

/// Data, to stdout.
pub fn print(text: &str) -> Result<Written, Failure> {
    file::to_stdout(&mut text.as_bytes()).map_err(cannot_print)
}

pub fn cannot_print(error: Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot write to stdout: {error}"))
}

/// A line for people, to stderr. Nobody may be listening; the work goes on.
pub fn tell(line: impl Display) {
    let _ = writeln!(stderr().lock(), "{line}");
}

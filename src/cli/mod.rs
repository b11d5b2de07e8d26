//! The commands. Data goes to stdout, messages to stderr; the exit code says how it went.

mod backup;
mod config;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// 1: nothing answered, or a check failed. 2: usage or configuration. 3: could not listen or connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Failed = 1,
    Usage = 2,
    Network = 3,
}

#[derive(Parser)]
#[command(name = "rallypoint", version, about, long_about = None, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "Start with `rallypoint serve`: it needs no file.\n\n\
    Exit codes: 0 done, 1 nothing answered or a check failed, 2 usage or configuration, 3 could not listen or connect.";

#[derive(Subcommand)]
enum Command {
    /// Run the master server: on the defaults, or with your file
    Serve(serve::Arguments),
    /// Copy the file with the list and its history, while the server runs
    Backup(backup::Arguments),
    /// Print the commented default configuration, or check a file
    Config(config::Arguments),
}

/// An error and the exit code that goes with it.
struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    fn new(exit: Exit, error: impl std::fmt::Display) -> Failure {
        Failure { exit, message: error.to_string() }
    }
}

pub fn run() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Backup(arguments) => backup::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("rallypoint: {}", failure.message);
            ExitCode::from(failure.exit as u8)
        }
    }
}

//! The commands. Data goes to stdout, messages to stderr; the exit code says how it went.

mod announce;
mod backup;
mod completions;
mod config;
mod doctor;
mod export;
mod failures;
mod help;
mod list;
mod man;
mod out;
mod query;
mod screen;
mod serve;
mod shown;
mod simulate;
mod terminal;
mod time;
mod watch;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use out::tell;

/// 0: done. 1: nothing answered, or a check failed. 2: usage or configuration. 3: could not listen or connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Done = 0,
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
    Exit codes: 0 done, 1 nothing answered or a check failed, 2 usage or configuration, 3 could not listen or connect.\n\
    A reader that closes the pipe (| head) changes nothing about that; output that cannot be written is 1.";

#[derive(Subcommand)]
enum Command {
    /// Run the master server: on the defaults, or with your file
    Serve(serve::Arguments),
    /// Copy the file with the list and its history, while the server runs
    Backup(backup::Arguments),
    /// Print the commented default configuration, or check a file
    Config(config::Arguments),
    /// Show the servers that a master knows
    List(list::Arguments),
    /// Ask game servers about themselves
    Query(query::Arguments),
    /// Follow a master's list as it changes
    Watch(watch::Arguments),
    /// Write a master's list, with every server asked, to XML, JSON and CSV files
    Export(export::Arguments),
    /// Run pretend game servers, to try launchers and masters with
    Simulate(simulate::Arguments),
    /// Ask a Rallypoint why a server is listed or not
    Doctor(doctor::Arguments),
    /// Announce a game server to masters, for as long as this runs
    Announce(announce::Arguments),
    /// Print a script that makes a shell complete these commands
    Completions(completions::Arguments),
    /// Write a man page for each command
    Man(man::Arguments),
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

    /// Where everything has been said.
    fn silent(exit: Exit) -> Failure {
        Failure { exit, message: String::new() }
    }
}

/// Runs a command that waits on sockets; one thread is enough for all but the master server.
fn run_async(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    let result = runtime.block_on(command);
    // A name that is still being looked up would hold up the end.
    runtime.shutdown_background();
    result
}

/// Ends on Ctrl-C or SIGTERM, from now on.
fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, error);
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

pub fn run() -> ExitCode {
    let result = Arguments::try_parse().map_err(help_or_mistake).and_then(|arguments| execute(&arguments.command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                tell(format!("rallypoint: {}", failure.message));
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// clap's own words: help and version to stdout, mistakes to stderr. Its `exit()` would not notice a failed write.
fn help_or_mistake(words: clap::Error) -> Failure {
    let printed = words.print().and_then(|()| std::io::stdout().flush());
    match printed {
        _ if words.use_stderr() => Failure::silent(Exit::Usage),
        Err(error) if error.kind() != ErrorKind::BrokenPipe => out::cannot_print(error),
        _ => Failure::silent(Exit::Done),
    }
}

fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Backup(arguments) => backup::run(arguments),
        Command::Config(arguments) => config::run(arguments),
        Command::List(arguments) => list::run(arguments),
        Command::Query(arguments) => query::run(arguments),
        Command::Watch(arguments) => watch::run(arguments),
        Command::Export(arguments) => export::run(arguments),
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Announce(arguments) => announce::run(arguments),
        Command::Completions(arguments) => completions::run(arguments),
        Command::Man(arguments) => man::run(arguments),
    }
}

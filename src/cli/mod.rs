//! The commands. Data goes to stdout, messages go to stderr.

mod admin;
mod announce;
mod backup;
mod completions;
mod config;
mod doctor;
mod export;
mod failures;
mod favourites;
mod greeting;
mod help;
mod hints;
mod list;
mod man;
mod options;
mod out;
mod query;
mod screen;
mod serve;
mod simulate;
mod terminal;
mod time;
mod watch;
mod words;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use out::message;

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

const AFTER_HELP: &str = "To start a master server, run `rallypoint serve`; it needs no configuration file.\n\n\
    Exit codes: 0 done, 1 nothing answered or a check failed, 2 usage or configuration, 3 could not listen or connect.\n\
    A closed pipe (| head) does not change the exit code; any other write error is 1.";

#[derive(Subcommand)]
enum Command {
    /// Run the master server
    Serve(serve::Arguments),
    /// Ban, unlist and look around while the master server runs
    Admin(admin::Arguments),
    /// Back up the server's database, even while the server is running
    Backup(backup::Arguments),
    /// Print the default configuration with comments, or check a configuration file
    Config(config::Arguments),
    /// Show a master's list of servers
    List(list::Arguments),
    /// Query game servers for their status
    Query(query::Arguments),
    /// Show masters' lists live, as they change
    Watch(Box<watch::Arguments>),
    /// Query every server in a master's list and write XML, JSON and CSV files, or copy a Rallypoint as a static site
    Export(Box<export::Arguments>),
    /// Run simulated game servers, to test launchers and masters
    Simulate(simulate::Arguments),
    /// Find out from a Rallypoint why a server is listed or not
    Doctor(doctor::Arguments),
    /// Announce a game server to masters while this command runs
    Announce(announce::Arguments),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
    /// Write a man page for each command
    Man(man::Arguments),
}

/// An error message and its exit code.
struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    fn new(exit: Exit, error: impl std::fmt::Display) -> Failure {
        Failure { exit, message: error.to_string() }
    }

    /// Without a message, if everything has been reported already.
    fn silent(exit: Exit) -> Failure {
        Failure { exit, message: String::new() }
    }
}

/// Runs an async command on one thread, which is enough for all but the master server.
fn run_async<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    let result = runtime.block_on(command);
    // Does not wait for DNS lookups.
    runtime.shutdown_background();
    result
}

/// Completes on Ctrl-C or SIGTERM.
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

/// Whether this is a command line of the program, or what is wrong with it. Nothing is run: it is for tests of documents.
pub fn accepts(words: &[String]) -> Result<(), String> {
    Arguments::try_parse_from(words).map(drop).map_err(|error| error.to_string())
}

pub fn run() -> ExitCode {
    let result = Arguments::try_parse().map_err(print_help_or_error).and_then(|arguments| execute(&arguments.command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                message(format!("rallypoint: {}", failure.message));
            }
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Prints clap's output: help and version to stdout, errors to stderr. clap's own `exit()` ignores write errors.
fn print_help_or_error(output: clap::Error) -> Failure {
    let typed: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if typed.is_empty() {
        message(hints::first_words().trim_end());
        return Failure::silent(Exit::Usage);
    }
    let printed = output.print().and_then(|()| std::io::stdout().flush());
    if let Some(tip) = hints::tip(&output, &typed) {
        message(format!("\n  tip: {tip}"));
    }
    match printed {
        _ if output.use_stderr() => Failure::silent(Exit::Usage),
        Err(error) if error.kind() != ErrorKind::BrokenPipe => out::cannot_print(error),
        _ => Failure::silent(Exit::Done),
    }
}

fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Admin(arguments) => admin::run(arguments),
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

//! `rallypoint watch`: a master's list, live: a screen on a terminal, a line for every change otherwise.

use std::io::{ErrorKind, IsTerminal, Write};
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};

use ratatui::crossterm::event;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::list::exit_of;
use super::screen::{Action, Screen};
use super::shown::{Asking, Chosen};
use super::{Exit, Failure, run_async, stop_signal};
use crate::client::list::ListError;
use crate::client::query::Pace;
use crate::client::watch::{Changes, What, fetch};
use crate::client::{Found, Place};
use crate::export::{json, table};

#[derive(clap::Args)]
#[command(after_help = "\
Masters:
  iceball://HOST[:27790]    netpanzer://HOST[:28900]    hyperbol://HOST[:20203]
  bloodmasters+http://HOST[:80]/PATH    http://HOST[:80], another Rallypoint

On a terminal: arrows choose, Enter opens, / searches, s sorts, e and f leave out empty and full servers, r looks again at
once, q ends. Elsewhere: a line for every server that comes, changes and goes, until it is stopped.

Example: rallypoint watch netpanzer://master.example --every 10s --not-empty")]
pub struct Arguments {
    /// The master, by what it speaks and where it is
    url: Place,
    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = every)]
    every: Duration,
    /// Show what the master says, and do not ask the servers themselves
    #[arg(long)]
    no_query: bool,
    /// How to write changes where there is no terminal
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    asking: Asking,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    /// An object a line: at, event, server
    Json,
}

const DAY: Duration = Duration::from_secs(86_400);

/// Not more often than every second: others want to be served as well.
fn every(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if every < Duration::from_secs(1) {
        return Err("must be a second at the least".into());
    }
    if every > DAY { Err("must be a day at the most".into()) } else { Ok(every) }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    run_async(async {
        let mut stop = pin!(stop_signal()?);
        let first = tokio::select! {
            first = look(arguments) => first,
            () = &mut stop => return Ok(()),
        };
        let first = first.map_err(|error| Failure::new(exit_of(&error), format!("{}: {error}", arguments.url)))?;
        if std::io::stdout().is_terminal() {
            on_screen(arguments, first, stop).await
        } else {
            in_lines(arguments, first, stop).await
        }
    })
}

async fn look(arguments: &Arguments) -> Result<Vec<Found>, ListError> {
    let pace: Pace = arguments.asking.pace();
    fetch(&arguments.url, (!arguments.no_query).then_some(pace)).await
}

/// A line for every change, to stdout.
async fn in_lines(
    arguments: &Arguments,
    first: Vec<Found>,
    mut stop: impl Future<Output = ()> + Unpin,
) -> Result<(), Failure> {
    let mut changes = Changes::default();
    let mut found = Ok(first);
    let mut failing = false;
    loop {
        match found {
            Ok(mut servers) => {
                if std::mem::take(&mut failing) {
                    tell(&format!("{}: is there again", arguments.url));
                }
                arguments.chosen.choose(&mut servers);
                match write_lines(arguments.format, &changes.since_last(servers)) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()), // nobody reads any more
                    Err(error) => return Err(Failure::new(Exit::Failed, format!("cannot write: {error}"))),
                }
            }
            // Told once; what was known stays.
            Err(error) if !std::mem::replace(&mut failing, true) => tell(&format!("{}: {error}", arguments.url)),
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(arguments.every) => {}
            () = &mut stop => return Ok(()),
        }
        found = tokio::select! {
            found = look(arguments) => found,
            () = &mut stop => return Ok(()),
        };
    }
}

/// Nobody may be listening.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn write_lines(format: Format, news: &[(What, Found)]) -> std::io::Result<()> {
    let at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let line = |(what, server): &(What, Found)| match format {
        Format::Text => format!("{at} {:<7} {} {}\n", what.name(), server.url(), table::line(server)),
        Format::Json => json::event(&at, what.name(), server) + "\n",
    };
    let text: String = news.iter().map(line).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

async fn on_screen(
    arguments: &Arguments,
    first: Vec<Found>,
    mut stop: impl Future<Output = ()> + Unpin,
) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, format!("the terminal: {error}"));
    // Keys are waited for on a thread that ends with the program.
    let (sender, mut events) = mpsc::channel(16);
    std::thread::spawn(move || while event::read().is_ok_and(|event| sender.blocking_send(event).is_ok()) {});
    let mut screen = Screen::new(arguments.url.to_string(), &arguments.chosen, first);
    let mut terminal = ratatui::try_init().map_err(|error| {
        ratatui::restore(); // it may have come halfway
        cannot(error)
    })?;
    let mut next = Instant::now() + arguments.every;
    let mut looking = None;
    let result = loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(cannot(error));
        }
        tokio::select! {
            Some(event) = events.recv() => match screen.on(&event) {
                Action::Nothing => {}
                Action::Look => next = Instant::now(),
                Action::Quit => break Ok(()),
            },
            () = sleep_until(next.into()), if looking.is_none() => {
                screen.is_looking = true;
                looking = Some(Box::pin(look(arguments)));
            }
            found = async { match &mut looking { Some(looking) => looking.await, None => std::future::pending().await } } => {
                looking = None;
                next = Instant::now() + arguments.every;
                screen.take(found);
            }
            // The age of what is shown.
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = &mut stop => break Ok(()),
        }
    };
    ratatui::restore();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_too_often() {
        assert_eq!(every("90s"), Ok(Duration::from_secs(90)));
        assert!(every("100ms").unwrap_err().contains("a second"));
        assert!(every("500000y").unwrap_err().contains("a day"));
        assert!(every("soon").is_err());
    }
}

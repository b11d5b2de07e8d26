//! `rallypoint watch`: a master's list, live. Draws a screen on a terminal; otherwise prints one line per change.

use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::list::exit_of;
use super::options::{MasterOptions, QueryOptions, Selection};
use super::out::{message, print};
use super::screen::{Action, KEYS, Screen};
use super::terminal::{Terminal, TerminalEvent, is_drawable};
use super::{Exit, Failure, help, run_async, stop_signal, time};
use crate::client::Found;
use crate::client::list::ListError;
use crate::client::query::Pace;
use crate::client::watch::{ChangeKind, Changes, Progress, fetch};
use crate::export::file::Written;
use crate::export::{json, table};
use crate::times::rfc3339;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[command(flatten)]
    master: MasterOptions,
    /// How often to refresh
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = every)]
    every: Duration,
    /// Show only the master's list, without querying the servers
    #[arg(long)]
    no_query: bool,
    /// Output format if stdout is not a terminal
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    querying: QueryOptions,
}

fn after_help() -> String {
    let keys: String = KEYS.iter().map(|(keys, what)| format!("  {keys:<14}{what}\n")).collect();
    let (masters, game) = (help::masters(), help::example());
    format!(
        "\
{masters}
Keys on a terminal:
{keys}
If stdout is not a terminal, or TERM is `dumb`, it prints one line for every server that comes, changes or goes, until it \
is stopped.

Example: rallypoint watch {game}://master.example --every 10s --not-empty"
    )
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    /// One object per line: at, event, server
    #[value(alias = "jsonl")]
    Json,
}

const DAY: Duration = Duration::from_secs(86_400);
/// The screen is redrawn at least this often, because it shows the age of the list.
const REDRAW: Duration = Duration::from_secs(1);
/// Answers within this time are drawn together.
const DRAW_DELAY: Duration = Duration::from_millis(50);

/// At least a second, to limit the load on the master.
fn every(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_secs(1), DAY)
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let on_a_screen = is_drawable().unwrap_or_else(|why| {
        message(format!("{why}: printing one line per change instead"));
        false
    });
    run_async(async {
        let stop = pin!(stop_signal()?);
        if on_a_screen { on_screen(arguments, stop).await } else { in_lines(arguments, stop).await }
    })
}

async fn refresh(arguments: &Arguments, report: impl FnMut(Progress<'_>)) -> Result<Vec<Found>, ListError> {
    let pace: Pace = arguments.querying.pace();
    let MasterOptions { url, games } = &arguments.master;
    fetch(url, games, pace.retry, (!arguments.no_query).then_some(pace), report).await
}

fn first_failed(arguments: &Arguments, error: &ListError) -> Failure {
    Failure::new(exit_of(error), format!("{}: {error}", arguments.master.url))
}

/// Prints one line per change to stdout. If the first refresh fails, the command fails.
async fn in_lines(arguments: &Arguments, mut stop: impl Future<Output = ()> + Unpin) -> Result<(), Failure> {
    let mut changes = Changes::default();
    let mut is_first = true;
    let mut failing = false;
    loop {
        let found = tokio::select! {
            found = refresh(arguments, |_| {}) => found,
            () = &mut stop => return Ok(()),
        };
        match found {
            Ok(mut servers) => {
                if std::mem::take(&mut failing) {
                    message(format!("{}: available again", arguments.master.url));
                }
                arguments.selection.apply(&mut servers);
                if write_lines(arguments.format, &changes.since_last(servers))? == Written::ReaderGone {
                    return Ok(());
                }
            }
            Err(error) if is_first => return Err(first_failed(arguments, &error)),
            // Reported once; the last list is kept.
            Err(error) if !std::mem::replace(&mut failing, true) => {
                message(format!("{}: {error}", arguments.master.url))
            }
            Err(_) => {}
        }
        is_first = false;
        tokio::select! {
            () = tokio::time::sleep(arguments.every) => {}
            () = &mut stop => return Ok(()),
        }
    }
}

fn write_lines(format: Format, changes: &[(ChangeKind, Found)]) -> Result<Written, Failure> {
    let at = rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    let line = |(kind, server): &(ChangeKind, Found)| match format {
        Format::Text => format!("{at} {:<7} {} {}\n", kind.name(), server.url(), table::line(server)),
        Format::Json => json::event(&at, kind.name(), server) + "\n",
    };
    print(&changes.iter().map(line).collect::<String>())
}

/// Draws the screen at once, and shows results as they arrive.
async fn on_screen(arguments: &Arguments, mut stop: impl Future<Output = ()> + Unpin) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, format!("the terminal: {error}"));
    let mut terminal = Terminal::open().map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut screen = Screen::new(arguments.master.url.to_string(), &arguments.selection, !arguments.no_query);
    // Bounded by the length of the list: the next refresh starts only after this one has ended.
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let mut answers = Answers::default();
    let mut next = Instant::now();
    let mut refreshing = None;
    loop {
        if answers.due.is_none_or(|due| due <= Instant::now()) {
            answers.show(&mut screen);
            terminal.draw(|frame| screen.draw(frame)).map_err(cannot)?;
        }
        tokio::select! {
            event = terminal.next_event() => {
                answers.hurry();
                match event {
                    TerminalEvent::Input(event) => match screen.on(&event) {
                        Action::Nothing => {}
                        Action::Refresh => next = Instant::now(),
                        Action::Redraw => terminal.clear().map_err(cannot)?,
                        Action::Suspend => terminal.suspend().map_err(cannot)?,
                        Action::Quit => return Ok(()),
                    },
                    TerminalEvent::Suspend => terminal.suspend().map_err(cannot)?,
                    TerminalEvent::Resumed => terminal.resume().map_err(cannot)?,
                }
            }
            () = sleep_until(next.into()), if refreshing.is_none() => {
                screen.refresh_started();
                let sender = sender.clone();
                refreshing = Some(Box::pin(refresh(arguments, move |part| drop(sender.send(Arrival::from(part))))));
            }
            Some(arrival) = arrivals.recv() => answers.take(arrival, &mut screen),
            found = async { match &mut refreshing { Some(refreshing) => refreshing.await, None => std::future::pending().await } } => {
                refreshing = None;
                next = Instant::now() + arguments.every;
                while let Ok(arrival) = arrivals.try_recv() {
                    answers.take(arrival, &mut screen);
                }
                answers.show(&mut screen);
                match found {
                    Err(error) if !screen.has_list() => return Err(first_failed(arguments, &error)),
                    found => screen.refresh_finished(found),
                }
            }
            () = sleep_until(answers.due.unwrap_or_else(|| Instant::now() + REDRAW).into()) => {}
            () = &mut stop => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// An owned [`Progress`].
enum Arrival {
    List(Vec<Found>),
    Answer(Box<Found>),
}

impl From<Progress<'_>> for Arrival {
    fn from(progress: Progress<'_>) -> Arrival {
        match progress {
            Progress::List(servers) => Arrival::List(servers.to_vec()),
            Progress::Answer(server) => Arrival::Answer(Box::new(server.clone())),
        }
    }
}

/// Answers that have not been drawn yet. Thousands may arrive per second, too many to redraw for each.
#[derive(Default)]
struct Answers {
    waiting: Vec<Found>,
    /// When to draw them.
    due: Option<Instant>,
}

impl Answers {
    fn take(&mut self, arrival: Arrival, screen: &mut Screen) {
        match arrival {
            Arrival::List(servers) => screen.listed(servers),
            Arrival::Answer(server) => {
                self.waiting.push(*server);
                self.due.get_or_insert_with(|| Instant::now() + DRAW_DELAY);
            }
        }
    }

    /// Draws at once, because a key was pressed.
    fn hurry(&mut self) {
        self.due = self.due.map(|_| Instant::now());
    }

    fn show(&mut self, screen: &mut Screen) {
        if self.due.take().is_some() {
            screen.answered(&std::mem::take(&mut self.waiting));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_too_often() {
        assert_eq!(every("90s"), Ok(Duration::from_secs(90)));
        assert!(every("100ms").unwrap_err().contains("at least 1s"));
        assert!(every("500000y").unwrap_err().contains("at most 1d"));
        assert!(every("5").unwrap_err().contains("write 5s for seconds"));
        assert!(every("soon").is_err());
    }
}

//! `rallypoint watch`: a master's list, live: a screen on a terminal, a line for every change otherwise.

use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::list::exit_of;
use super::out::{print, tell};
use super::screen::{Action, KEYS, Screen};
use super::shown::{Asking, Chosen, Master};
use super::terminal::{Happening, Terminal, is_drawable};
use super::{Exit, Failure, help, run_async, stop_signal, time};
use crate::client::Found;
use crate::client::list::ListError;
use crate::client::query::Pace;
use crate::client::watch::{Changes, Seen, What, fetch};
use crate::export::file::Written;
use crate::export::{json, table};
use crate::times::rfc3339;

#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Arguments {
    #[command(flatten)]
    master: Master,
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

fn after_help() -> String {
    let keys: String = KEYS.iter().map(|(keys, what)| format!("  {keys:<14}{what}\n")).collect();
    let (masters, game) = (help::masters(), help::example());
    format!(
        "\
{masters}
On a terminal it draws a screen, with these keys:
{keys}
Elsewhere, and where TERM is `dumb`, it writes a line for every server that comes, changes and goes, until it is stopped.

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
/// The screen is drawn at least this often: it shows how old its list is.
const REDRAW: Duration = Duration::from_secs(1);
/// Answers that come within this time are shown together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Not more often than every second: others want to be served as well.
fn every(text: &str) -> Result<Duration, String> {
    time::between(text, Duration::from_secs(1), DAY)
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let on_a_screen = is_drawable().unwrap_or_else(|why| {
        tell(format!("{why}: writing a line for every change instead"));
        false
    });
    run_async(async {
        let stop = pin!(stop_signal()?);
        if on_a_screen { on_screen(arguments, stop).await } else { in_lines(arguments, stop).await }
    })
}

async fn look(arguments: &Arguments, see: impl FnMut(Seen<'_>)) -> Result<Vec<Found>, ListError> {
    let pace: Pace = arguments.asking.pace();
    let Master { url, games } = &arguments.master;
    fetch(url, games, pace.patience, (!arguments.no_query).then_some(pace), see).await
}

fn first_failed(arguments: &Arguments, error: &ListError) -> Failure {
    Failure::new(exit_of(error), format!("{}: {error}", arguments.master.url))
}

/// A line for every change, to stdout. The first look has to succeed.
async fn in_lines(arguments: &Arguments, mut stop: impl Future<Output = ()> + Unpin) -> Result<(), Failure> {
    let mut changes = Changes::default();
    let mut is_first = true;
    let mut failing = false;
    loop {
        let found = tokio::select! {
            found = look(arguments, |_| {}) => found,
            () = &mut stop => return Ok(()),
        };
        match found {
            Ok(mut servers) => {
                if std::mem::take(&mut failing) {
                    tell(format!("{}: is there again", arguments.master.url));
                }
                arguments.chosen.choose(&mut servers);
                if write_lines(arguments.format, &changes.since_last(servers))? == Written::NobodyReads {
                    return Ok(());
                }
            }
            Err(error) if is_first => return Err(first_failed(arguments, &error)),
            // Reported once; what was known stays.
            Err(error) if !std::mem::replace(&mut failing, true) => tell(format!("{}: {error}", arguments.master.url)),
            Err(_) => {}
        }
        is_first = false;
        tokio::select! {
            () = tokio::time::sleep(arguments.every) => {}
            () = &mut stop => return Ok(()),
        }
    }
}

fn write_lines(format: Format, news: &[(What, Found)]) -> Result<Written, Failure> {
    let at = rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
    let line = |(what, server): &(What, Found)| match format {
        Format::Text => format!("{at} {:<7} {} {}\n", what.name(), server.url(), table::line(server)),
        Format::Json => json::event(&at, what.name(), server) + "\n",
    };
    print(&news.iter().map(line).collect::<String>())
}

/// A screen that is there from the first moment, and shows everything as it arrives.
async fn on_screen(arguments: &Arguments, mut stop: impl Future<Output = ()> + Unpin) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, format!("the terminal: {error}"));
    let mut terminal = Terminal::open().map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut screen = Screen::new(arguments.master.url.to_string(), &arguments.chosen, !arguments.no_query);
    // Bounded by the list that is being asked: a look that is not over is not followed by another.
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let mut answers = Answers::default();
    let mut next = Instant::now();
    let mut looking = None;
    loop {
        if answers.due.is_none_or(|due| due <= Instant::now()) {
            answers.show(&mut screen);
            terminal.draw(|frame| screen.draw(frame)).map_err(cannot)?;
        }
        tokio::select! {
            happening = terminal.happening() => {
                answers.hurry();
                match happening {
                    Happening::Typed(event) => match screen.on(&event) {
                        Action::Nothing => {}
                        Action::Look => next = Instant::now(),
                        Action::Redraw => terminal.clear().map_err(cannot)?,
                        Action::Suspend => terminal.suspend().map_err(cannot)?,
                        Action::Quit => return Ok(()),
                    },
                    Happening::Suspend => terminal.suspend().map_err(cannot)?,
                    Happening::Resumed => terminal.resume().map_err(cannot)?,
                }
            }
            () = sleep_until(next.into()), if looking.is_none() => {
                screen.looks();
                let sender = sender.clone();
                looking = Some(Box::pin(look(arguments, move |seen| drop(sender.send(Arrival::from(seen))))));
            }
            Some(arrival) = arrivals.recv() => answers.take(arrival, &mut screen),
            found = async { match &mut looking { Some(looking) => looking.await, None => std::future::pending().await } } => {
                looking = None;
                next = Instant::now() + arguments.every;
                while let Ok(arrival) = arrivals.try_recv() {
                    answers.take(arrival, &mut screen);
                }
                answers.show(&mut screen);
                match found {
                    Err(error) if !screen.has_list() => return Err(first_failed(arguments, &error)),
                    found => screen.take(found),
                }
            }
            () = sleep_until(answers.due.unwrap_or_else(|| Instant::now() + REDRAW).into()) => {}
            () = &mut stop => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// [`Seen`], on its way to the screen.
enum Arrival {
    List(Vec<Found>),
    Answer(Found),
}

impl From<Seen<'_>> for Arrival {
    fn from(seen: Seen<'_>) -> Arrival {
        match seen {
            Seen::List(servers) => Arrival::List(servers.to_vec()),
            Seen::Answer(server) => Arrival::Answer(server.clone()),
        }
    }
}

/// Answers that are shown together: thousands a second may come, and the screen is drawn for none of them alone.
#[derive(Default)]
struct Answers {
    waiting: Vec<Found>,
    /// When they are to be shown.
    due: Option<Instant>,
}

impl Answers {
    fn take(&mut self, arrival: Arrival, screen: &mut Screen) {
        match arrival {
            Arrival::List(servers) => screen.listed(servers),
            Arrival::Answer(server) => {
                self.waiting.push(server);
                self.due.get_or_insert_with(|| Instant::now() + TOGETHER);
            }
        }
    }

    /// Somebody pressed a key, and looks.
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
        assert!(every("100ms").unwrap_err().contains("1s at the least"));
        assert!(every("500000y").unwrap_err().contains("1d at the most"));
        assert!(every("5").unwrap_err().contains("write 5s for seconds"));
        assert!(every("soon").is_err());
    }
}

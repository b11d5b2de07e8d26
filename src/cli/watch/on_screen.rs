//! `watch` on a terminal: draws the screen at once, and shows results as they arrive.

use std::io;
use std::pin::{Pin, pin};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::child::{Group, fault};
use super::exec::Output;
use super::{Feed, Watch, report_of};
use crate::cli::favourites::Favourites;
use crate::cli::screen::{Action, Screen, Setup, Wanted, ascii};
use crate::cli::terminal::{Terminal, TerminalEvent};
use crate::cli::{Exit, Failure};
use crate::client::Found;
use crate::client::history::{self, History};
use crate::client::watch::Masters;
use crate::client::watch::rounds::{self, Event, Failed};

/// The screen is redrawn at least this often, because it shows the age of the list.
const REDRAW: Duration = Duration::from_secs(1);
/// Answers within this time are drawn together.
const DRAW_DELAY: Duration = Duration::from_millis(50);
/// A history is shown beside the list, so it is not waited for long.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(5);
/// Games that were started here and still run.
const GAMES_MAX: usize = 16;

pub async fn run(watch: &Watch<'_>, mut stop: impl Future<Output = ()> + Unpin) -> Result<(), Failure> {
    let mut terminal = Terminal::open().map_err(cannot)?;
    terminal.use_mouse(true).map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut screen = new_screen(watch);
    // Bounded by the length of the list: the next round starts only after this one has ended.
    let (sender, mut events) = mpsc::unbounded_channel();
    let at_once = Notify::new();
    let mut rounds = pin!(rounds::run(&watch.plan, &at_once, |event| drop(sender.send(event))));
    let mut exec = watch.exec(Output::Nowhere);
    let mut shown =
        Live { watch, feed: exec.is_some().then(Feed::default), answers: Answers::default(), has_list: false };
    let mut fetching: Option<Fetching<'_>> = None;
    let mut games = Games::default();
    loop {
        if shown.answers.due.is_none_or(|due| due <= Instant::now()) {
            shown.answers.show(&mut screen);
            terminal.draw(|frame| screen.draw(frame)).map_err(cannot)?;
        }
        if fetching.is_none() {
            fetching = screen.wanted_history(Instant::now()).map(|wanted| fetch(watch, wanted));
        }
        let next = [shown.answers.due, screen.history_due()].into_iter().flatten().min();
        let next = next.unwrap_or_else(|| Instant::now() + REDRAW);
        tokio::select! {
            event = terminal.next_event() => {
                shown.answers.hurry();
                match event {
                    TerminalEvent::Input(event) => match screen.on(&event) {
                        Action::Nothing => {}
                        Action::Refresh => at_once.notify_one(),
                        Action::Redraw => terminal.clear().map_err(cannot)?,
                        Action::Suspend => terminal.suspend().map_err(cannot)?,
                        Action::Copy(text) => terminal.copy(&text).map_err(cannot)?,
                        Action::Mouse(on) => terminal.use_mouse(on).map_err(cannot)?,
                        Action::Join(command) => screen.note(games.start(&command)),
                        Action::Quit => return Ok(()),
                    },
                    TerminalEvent::Suspend => terminal.suspend().map_err(cannot)?,
                    TerminalEvent::Resumed => terminal.resume().map_err(cannot)?,
                }
            }
            () = &mut rounds => return Ok(()), // it has no end
            Some(event) = events.recv() => {
                if let Some(round) = shown.take(event, &mut screen)? && let Some(feed) = &mut shown.feed {
                    feed.take(watch, &round, exec.as_mut());
                }
            }
            (wanted, history) = arrival(&mut fetching) => {
                fetching = None;
                screen.history_arrived(&wanted, history, Instant::now());
            }
            report = report_of(&mut exec) => screen.note(report),
            Some(said) = games.end() => screen.note(said),
            () = sleep_until(next.into()) => {}
            () = &mut stop => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

fn cannot(error: io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the terminal: {error}"))
}

fn new_screen(watch: &Watch<'_>) -> Screen {
    let mut with_history = Masters::default();
    let rallypoints = watch.plan.masters.iter().enumerate().filter(|(_, master)| history::has_histories(master));
    rallypoints.for_each(|(number, _)| with_history.insert(number));
    let setup = Setup {
        masters: watch.names.clone(),
        with_history,
        selection: watch.arguments.selection.clone(),
        queries: watch.plan.pace.is_some(),
        ascii: ascii::is_wanted(|name| std::env::var(name).ok()),
    };
    let (favourites, read) = Favourites::of_user();
    let mut screen = Screen::new(setup, favourites);
    if let Err(why) = read {
        screen.note(format!("Favourites cannot be read: {why}"));
    }
    screen
}

/// The list on the screen.
struct Live<'a> {
    watch: &'a Watch<'a>,
    /// With `--exec`.
    feed: Option<Feed>,
    answers: Answers,
    has_list: bool,
}

impl Live<'_> {
    /// Shows what has happened; returns a finished round. Fails if the first one has.
    fn take(&mut self, event: Event, screen: &mut Screen) -> Result<Option<rounds::Round>, Failure> {
        match event {
            Event::Started => screen.refresh_started(),
            Event::Listed(servers) => screen.listed(servers),
            Event::Answered(server) => self.answers.wait(*server),
            Event::Failed(failed) => screen.fails(&self.named(&failed)),
            Event::Finished(round) => {
                self.answers.show(screen);
                if !std::mem::replace(&mut self.has_list, true)
                    && let Some(failure) = self.watch.first_failure(&round)
                {
                    return Err(failure);
                }
                screen.fails(&self.named(&round.failed));
                screen.refresh_finished(round.servers.clone());
                return Ok(Some(round));
            }
        }
        Ok(None)
    }

    fn named(&self, failed: &[Failed]) -> Vec<(String, String)> {
        failed.iter().map(|failed| (self.watch.name_of(failed).into(), failed.error.to_string())).collect()
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
    fn wait(&mut self, server: Found) {
        self.waiting.push(server);
        self.due.get_or_insert_with(|| Instant::now() + DRAW_DELAY);
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

type Fetching<'a> = Pin<Box<dyn Future<Output = (Wanted, Option<History>)> + 'a>>;

fn fetch<'a>(watch: &'a Watch<'_>, wanted: Wanted) -> Fetching<'a> {
    Box::pin(async move {
        let history = match watch.plan.masters.get(wanted.master) {
            Some(master) => history::last_day(master, &wanted.game, wanted.address, HISTORY_TIMEOUT).await,
            None => Ok(None),
        };
        // Without one, the line shows what was seen; a master that fails is reported when its list is fetched.
        (wanted, history.unwrap_or_default())
    })
}

async fn arrival(fetching: &mut Option<Fetching<'_>>) -> (Wanted, Option<History>) {
    match fetching {
        Some(fetching) => fetching.await,
        None => std::future::pending().await,
    }
}

/// The games that were started here. They go on when this program ends.
#[derive(Default)]
struct Games(JoinSet<(String, io::Result<ExitStatus>)>);

impl Games {
    /// Starts a game; returns what to say about it.
    fn start(&mut self, words: &[String]) -> String {
        let Some((program, arguments)) = words.split_first() else { return String::new() };
        if self.0.len() >= GAMES_MAX {
            return format!("{GAMES_MAX} games that were started here still run");
        }
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match Group::start(&mut command) {
            Ok(mut group) => {
                let named = program.clone();
                self.0.spawn(async move { (named, group.end().await) });
                format!("Started {}", words.join(" "))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                format!("{program} is not installed, or not in PATH; y copies how to join")
            }
            Err(error) => format!("{program} cannot be started: {error}"),
        }
    }

    /// Waits for the end of one; None: none runs. Only a bad end is worth a note.
    async fn end(&mut self) -> Option<String> {
        loop {
            if let Ok((program, Ok(status))) = self.0.join_next().await?
                && let Some(fault) = fault(status)
            {
                return Some(format!("{program} {fault}"));
            }
        }
    }
}

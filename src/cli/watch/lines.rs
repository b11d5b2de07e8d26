//! `watch` without a terminal: one line per change. If all masters fail in the first round, the command fails.

use tokio::sync::{Notify, mpsc};

use super::{Feed, Format, Watch, exec, now, report_of};
use crate::cli::Failure;
use crate::cli::out::{message, print};
use crate::client::Found;
use crate::client::watch::rounds::{self, Event, Failed};
use crate::client::watch::{ChangeKind, Masters};
use crate::export::file::Written;
use crate::export::{json, table};

pub async fn run(watch: &Watch<'_>, mut stop: impl Future<Output = ()> + Unpin) -> Result<(), Failure> {
    // One finished round at most: the next one starts after it was taken, because all is one task.
    let (sender, mut events) = mpsc::unbounded_channel();
    let never = Notify::new();
    let mut rounds = std::pin::pin!(rounds::run(&watch.plan, &never, |event| {
        if matches!(event, Event::Finished(_) | Event::Failed(_)) {
            let _ = sender.send(event);
        }
    }));
    let mut exec = watch.exec(exec::Output::Stderr);
    let mut feed = Feed::default();
    let mut failing = Failing::default();
    let mut is_first = true;
    loop {
        let event = tokio::select! {
            () = &mut rounds => return Ok(()), // it has no end
            Some(event) = events.recv() => event,
            report = report_of(&mut exec) => {
                message(report);
                continue;
            }
            () = &mut stop => return Ok(()),
        };
        match event {
            Event::Finished(round) => {
                if std::mem::take(&mut is_first)
                    && let Some(failure) = watch.first_failure(&round)
                {
                    return Err(failure);
                }
                failing.report(watch, &round.failed);
                let changes = feed.take(watch, &round, exec.as_mut());
                if write(watch, &changes)? == Written::ReaderGone {
                    return Ok(());
                }
            }
            Event::Failed(failed) if !is_first => failing.report(watch, &failed),
            _ => {}
        }
    }
}

/// Reports each master that fails, and when it is available again, once.
#[derive(Default)]
struct Failing(Masters);

impl Failing {
    fn report(&mut self, watch: &Watch<'_>, failed: &[Failed]) {
        let mut now = Masters::default();
        for failure in failed {
            let is_known = failure.master.is_some_and(|number| self.0.contains(number));
            failure.master.iter().for_each(|number| now.insert(*number));
            if !is_known {
                message(format!("{}: {}", watch.name_of(failure), failure.error));
            }
        }
        for number in self.0.iter().filter(|number| !now.contains(*number)) {
            message(format!("{}: available again", watch.names.get(number).map_or("", String::as_str)));
        }
        self.0 = now;
    }
}

fn write(watch: &Watch<'_>, changes: &[(ChangeKind, Found)]) -> Result<Written, Failure> {
    let at = now();
    let line = |(kind, server): &(ChangeKind, Found)| match watch.arguments.format {
        Format::Text => format!("{at} {:<7} {} {}\n", kind.name(), server.url(), table::line(server)),
        Format::Json => json::event(&at, kind.name(), &watch.masters_of(server), server) + "\n",
    };
    print(&changes.iter().map(line).collect::<String>())
}

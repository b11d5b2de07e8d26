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
                failing.masters(watch, &round.failed).into_iter().for_each(message);
                failing.queries(watch, &round.failed).into_iter().for_each(message);
                let changes = feed.take(watch, &round, exec.as_mut());
                if write(watch, &changes)? == Written::ReaderGone {
                    return Ok(());
                }
            }
            Event::Failed(failed) if !is_first => failing.masters(watch, &failed).into_iter().for_each(message),
            _ => {}
        }
    }
}

/// What fails is said once, and so is that a master is available again.
#[derive(Default)]
struct Failing {
    masters: Masters,
    /// Why queries cannot be sent.
    queries: Option<String>,
}

impl Failing {
    /// What to say of the masters.
    fn masters(&mut self, watch: &Watch<'_>, failed: &[Failed]) -> Vec<String> {
        let mut now = Masters::default();
        let mut said = Vec::new();
        for failure in failed {
            let Some(number) = failure.master else { continue };
            now.insert(number);
            if !self.masters.contains(number) {
                said.push(line_of(watch, failure));
            }
        }
        let again = self.masters.iter().filter(|number| !now.contains(*number));
        said.extend(
            again.map(|number| format!("{}: available again", watch.names.get(number).map_or("", String::as_str))),
        );
        self.masters = now;
        said
    }

    /// What to say of a round's queries.
    fn queries(&mut self, watch: &Watch<'_>, failed: &[Failed]) -> Option<String> {
        let now = failed.iter().find(|failure| failure.master.is_none()).map(|failure| line_of(watch, failure));
        let before = std::mem::replace(&mut self.queries, now.clone());
        now.filter(|_| before != self.queries)
    }
}

fn line_of(watch: &Watch<'_>, failed: &Failed) -> String {
    format!("{}: {}", watch.name_of(failed), failed.error)
}

fn write(watch: &Watch<'_>, changes: &[(ChangeKind, Found)]) -> Result<Written, Failure> {
    let at = now();
    let line = |(kind, server): &(ChangeKind, Found)| match watch.arguments.format {
        Format::Text => format!("{at} {:<7} {} {}\n", kind.name(), server.url(), table::line(server)),
        Format::Json => json::event(&at, kind.name(), &watch.masters_of(server), server) + "\n",
    };
    print(&changes.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::watch::Arguments;
    use crate::client::list::ListError;
    use clap::Parser;
    use std::sync::Arc;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn what_fails_is_said_once() {
        let line = Line::parse_from(["watch", "http://one.example", "http://two.example"]);
        let watch = Watch::new(&line.arguments).ok().unwrap();
        let failed = |master, why: &str| Failed { master, error: Arc::new(ListError::Bad(why.into())) };
        let two = &watch.names[1];
        let mut failing = Failing::default();
        let mut round = |failed: &[Failed]| {
            let mut said = failing.masters(&watch, failed);
            said.extend(failing.queries(&watch, failed));
            said
        };
        let both = [failed(Some(1), "bad"), failed(None, "no sockets")];
        assert_eq!(round(&both), [format!("{two}: bad"), "cannot send queries: no sockets".into()]);
        assert_eq!(round(&both), [""; 0]);
        assert_eq!(
            round(&[failed(None, "no memory")]),
            [format!("{two}: available again"), "cannot send queries: no memory".into()]
        );
        assert_eq!(round(&[]), [""; 0]);
        assert_eq!(round(&both).len(), 2, "again");
    }
}

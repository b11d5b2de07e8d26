//! `--exec`: runs a command for every change, one at a time. What servers say reaches it as JSON on stdin and in environment
//! variables, never as a part of a command line.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until};

use super::child::{Group, fault};
use crate::cli::words;
use crate::client::Found;
use crate::client::watch::ChangeKind;
use crate::export::json;
use crate::times::format_duration;

/// Changes that wait for the command. When there are more, the oldest are dropped.
pub const QUEUE_MAX: usize = 1000;
/// Upper bound on the length of a variable; the JSON has all of a text.
const VALUE_BYTES_MAX: usize = 4096;
/// After SIGTERM, how long a command that took too long may take to end.
const TO_END: Duration = Duration::from_secs(1);
/// The same when `watch` ends, which waits for it.
const TO_END_WITH_US: Duration = Duration::from_millis(200);

/// The words of `--exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCommand(Vec<String>);

impl ExecCommand {
    pub fn parse(text: &str) -> Result<ExecCommand, String> {
        match words::split(text)? {
            words if words.is_empty() => Err("name a program".into()),
            words => Ok(ExecCommand(words)),
        }
    }

    fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }
}

/// A change, as the command gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// One line.
    json: String,
    variables: Vec<(&'static str, String)>,
    /// For messages: `came netpanzer://203.0.113.5:3030`.
    what: String,
}

/// All variables that a command may get. Those that are unknown are not set, whatever they were before.
const VARIABLES: [&str; 18] = [
    "RALLYPOINT_EVENT",
    "RALLYPOINT_AT",
    "RALLYPOINT_PROTOCOL",
    "RALLYPOINT_GAME",
    "RALLYPOINT_ADDRESS",
    "RALLYPOINT_HOST",
    "RALLYPOINT_PORT",
    "RALLYPOINT_URL",
    "RALLYPOINT_NAME",
    "RALLYPOINT_MAP",
    "RALLYPOINT_MODE",
    "RALLYPOINT_VERSION",
    "RALLYPOINT_PLAYERS",
    "RALLYPOINT_PLAYERS_MAX",
    "RALLYPOINT_PING_MS",
    "RALLYPOINT_COUNTRY",
    "RALLYPOINT_MASTERS",
    "RALLYPOINT_FAULT",
];

impl Job {
    /// `masters` are those that list the server, if several are watched.
    pub fn new(at: &str, kind: ChangeKind, masters: &[&str], found: &Found) -> Job {
        let facts = &found.facts;
        let number = |number: Option<u16>| number.map(|number| number.to_string()).unwrap_or_default();
        let values = [
            kind.name().into(),
            at.into(),
            found.game.protocol().into(),
            found.game.name().into(),
            found.address.to_string(),
            found.address.ip().to_string(),
            found.address.port().to_string(),
            found.url(),
            facts.name.to_string(),
            facts.map.to_string(),
            facts.mode.to_string(),
            facts.version.to_string(),
            number(facts.players_current),
            number(facts.players_max),
            found.rtt_us.map(|us| us.div_ceil(1000).to_string()).unwrap_or_default(),
            found.country.map(|code| code.to_string()).unwrap_or_default(),
            masters.join(" "),
            found.failure().unwrap_or_default().into(),
        ];
        let variables = VARIABLES.into_iter().zip(values.map(bounded)).filter(|(_, value)| !value.is_empty()).collect();
        Job {
            json: json::event(at, kind.name(), masters, found) + "\n",
            variables,
            what: format!("{} {}", kind.name(), found.url()),
        }
    }
}

/// The system starts no program with a longer variable than about 128 KiB.
fn bounded(mut value: String) -> String {
    value.truncate(value.floor_char_boundary(VALUE_BYTES_MAX));
    value
}

/// Where the command's own output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// To stderr: stdout has our lines.
    Stderr,
    /// Nowhere: the screen is ours.
    Nowhere,
}

pub struct Exec {
    command: ExecCommand,
    timeout: Duration,
    output: Output,
    queue: VecDeque<Job>,
    /// Since the last message about it.
    dropped: usize,
    running: Option<Running>,
    /// Why the last command was not started.
    fault: Option<String>,
}

struct Running {
    group: Group,
    until: Instant,
    state: Patience,
    what: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    InTime,
    Terminated,
    Killed,
}

impl Exec {
    pub fn new(command: ExecCommand, timeout: Duration, output: Output) -> Exec {
        Exec { command, timeout, output, queue: VecDeque::new(), dropped: 0, running: None, fault: None }
    }

    pub fn push(&mut self, job: Job) {
        if self.queue.len() >= QUEUE_MAX {
            self.queue.pop_front();
            self.dropped += 1;
        }
        self.queue.push_back(job);
    }

    /// Runs what is queued; returns when there is something to report. May be dropped and called again.
    pub async fn report(&mut self) -> String {
        loop {
            if self.dropped > 0 {
                let dropped = std::mem::take(&mut self.dropped);
                return format!("--exec: {dropped} changes dropped: the command is too slow for them");
            }
            let Some(running) = &mut self.running else {
                let Some(job) = self.queue.pop_front() else { return std::future::pending().await };
                let fault = match self.start(job) {
                    Ok(running) => {
                        self.running = Some(running);
                        None
                    }
                    Err(error) => Some(format!("--exec: cannot run `{}`: {error}", self.command.program())),
                };
                // It is the same for every change, so it is said once.
                let before = std::mem::replace(&mut self.fault, fault);
                if let Some(fault) = self.fault.clone().filter(|fault| Some(fault) != before.as_ref()) {
                    return fault;
                }
                tokio::task::yield_now().await;
                continue;
            };
            if let Some(message) = running.step(self.timeout).await {
                self.running = None;
                if !message.is_empty() {
                    return format!("--exec: `{}` {message}", self.command.program());
                }
            }
        }
    }

    fn start(&self, job: Job) -> std::io::Result<Running> {
        let Some((program, arguments)) = self.command.0.split_first() else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped());
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.envs(job.variables);
        match self.output {
            Output::Stderr => command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?),
            Output::Nowhere => command.stdout(Stdio::null()).stderr(Stdio::null()),
        };
        // A command need not read its stdin. The thread ends when the command does, at the latest.
        let (sender, stdin) = mpsc::sync_channel::<ChildStdin>(1);
        std::thread::Builder::new().spawn(move || {
            if let Ok(mut stdin) = stdin.recv() {
                let _ = stdin.write_all(job.json.as_bytes());
            }
        })?;
        let mut group = Group::start(&mut command)?;
        if let Some(stdin) = group.stdin() {
            let _ = sender.send(stdin);
        }
        Ok(Running { group, until: Instant::now() + self.timeout, state: Patience::InTime, what: job.what })
    }
}

impl Running {
    /// One step towards its end; Some at the end, with what is wrong.
    async fn step(&mut self, timeout: Duration) -> Option<String> {
        tokio::select! {
            // A late one is waited for only after SIGKILL: that has to reach all that it has started, even if it ended itself.
            ended = self.group.end(), if self.state != Patience::Terminated => {
                let late = (self.state != Patience::InTime)
                    .then(|| format!("was ended after {}", format_duration(timeout)));
                let fault = late.or_else(|| match ended {
                    Ok(status) => fault(status),
                    Err(error) => Some(format!("cannot be waited for: {error}")),
                });
                Some(fault.map(|fault| format!("{fault} ({})", self.what)).unwrap_or_default())
            }
            () = sleep_until(self.until), if self.state != Patience::Killed => {
                let (signal, state) = match self.state {
                    Patience::InTime => (Signal::SIGTERM, Patience::Terminated),
                    _ => (Signal::SIGKILL, Patience::Killed),
                };
                self.group.signal(signal);
                (self.state, self.until) = (state, Instant::now() + TO_END);
                None
            }
        }
    }
}

/// The command does not outlive `watch`.
impl Drop for Running {
    fn drop(&mut self) {
        if self.group.signal(Signal::SIGTERM) {
            std::thread::sleep(TO_END_WITH_US);
            self.group.signal(Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests;

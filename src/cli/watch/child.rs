//! Programs that `watch` starts: without a shell, in a process group of their own, so that a key on our terminal does not reach
//! them, and waited for without a thread.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::signal::unix::{self, SignalKind};

/// A running program and everything that it has started, as long as that stays in its process group.
pub struct Group {
    child: Child,
    /// Any child has ended.
    ended: unix::Signal,
    has_ended: bool,
}

impl Group {
    pub fn start(command: &mut Command) -> io::Result<Group> {
        // Before the start, so that no end is missed.
        let ended = unix::signal(SignalKind::child())?;
        let child = command.process_group(0).spawn()?;
        Ok(Group { child, ended, has_ended: false })
    }

    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Waits for its end. May be dropped and called again.
    pub async fn end(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.has_ended = true;
                return Ok(status);
            }
            if self.ended.recv().await.is_none() {
                return Err(io::Error::other("signals cannot be received"));
            }
        }
    }

    /// Sends a signal to all of them. The number cannot be another program's: this one has not been waited for.
    pub fn signal(&self, signal: Signal) {
        if !self.has_ended
            && let Ok(id) = i32::try_from(self.child.id())
        {
            let _ = killpg(Pid::from_raw(id), signal);
        }
    }
}

/// How a program ended, in words; None: well.
pub fn fault(status: ExitStatus) -> Option<String> {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with exit code {code}")),
        (None, Some(signal)) => Some(format!("was ended by signal {signal}")),
        (None, None) => Some("ended".into()),
    }
}

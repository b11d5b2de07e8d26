//! Programs that `watch` starts: without a shell, in a process group of their own, so that a key on our terminal does not reach
//! them, and waited for without a thread.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{SigSet, Signal, killpg};
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
        let child = stoppable(|| command.process_group(0).spawn())?;
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

    /// Sends a signal to all of them, unless the end has been waited for: until then, the number cannot be another program's.
    /// Returns whether it was sent.
    pub fn signal(&self, signal: Signal) -> bool {
        let id = i32::try_from(self.child.id()).ok().filter(|_| !self.has_ended);
        id.is_some_and(|id| killpg(Pid::from_raw(id), signal).is_ok())
    }
}

/// A program starts with our blocked signals. SIGTSTP is one of them while there is a screen; a game has its own use for it.
fn stoppable(start: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    let before = SigSet::thread_get_mask()?;
    // For a moment, the signal would stop us without giving the terminal back; SIGCONT draws the screen again all the same.
    SigSet::from(Signal::SIGTSTP).thread_unblock()?;
    let child = start();
    before.thread_set_mask()?;
    child
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_can_be_stopped_and_we_are_not() {
        let stop = SigSet::from(Signal::SIGTSTP);
        stop.thread_block().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let status = runtime.block_on(async {
            // The fifth digit from the right has SIGTSTP as its highest bit.
            let mut grep = Command::new("grep");
            grep.args(["-q", "^SigBlk:.*[0-7]....$", "/proc/self/status"]);
            Group::start(&mut grep).unwrap().end().await.unwrap()
        });
        assert_eq!(fault(status), None);
        assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGTSTP));
    }
}

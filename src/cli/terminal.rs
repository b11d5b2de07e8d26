//! The terminal under a full-screen command: taken over, given back, and given back for a while when the command is
//! suspended. However the command ends, and even when it panics, the terminal is left as it was found.

use std::io::{self, IsTerminal, stdout};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui::{DefaultTerminal, Frame};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Whether there is something to give back.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// Whether stdout is a screen that can be drawn on; if it is a terminal but none of that kind, why not.
pub fn is_drawable() -> Result<bool, String> {
    if !stdout().is_terminal() {
        return Ok(false);
    }
    match std::env::var("TERM").as_deref() {
        Err(_) | Ok("") => return Err("TERM is not set".into()),
        Ok(dumb @ ("dumb" | "unknown")) => return Err(format!("TERM={dumb} has no cursor control")),
        Ok(_) => {}
    }
    match size() {
        Ok((1.., 1..)) => Ok(true),
        Ok(_) => Err("the terminal's size is unknown (`stty rows 24 cols 80` sets it)".into()),
        Err(error) => Err(format!("the terminal's size is unknown: {error}")),
    }
}

/// What happened to the terminal.
pub enum Happening {
    Typed(Event),
    /// SIGTSTP: somebody wants the terminal back for a while.
    Suspend,
    /// SIGCONT: others may have used it in between.
    Resumed,
}

pub struct Terminal {
    screen: DefaultTerminal,
    happenings: mpsc::Receiver<Happening>,
    resumed: tokio::signal::unix::Signal,
    /// Held while the signal is let through: it is meant for us then, and not for the thread that waits for it.
    letting_through: Arc<Mutex<()>>,
}

impl Terminal {
    /// Takes the terminal over. Call before any thread is started: those that exist already would be stopped by SIGTSTP
    /// without asking.
    pub fn open() -> io::Result<Terminal> {
        // The signal is blocked, and not handled: let through, it does what the kernel has it do, which is nothing where no
        // shell could resume us.
        stop_signal().thread_block()?;
        let suspended = SignalFd::with_flags(&stop_signal(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let resumed = signal(SignalKind::from_raw(Signal::SIGCONT as i32))?;
        give_back_on_panic();
        if let Err(error) = take() {
            give_back(); // it may have come halfway
            return Err(error);
        }
        let screen = ratatui::Terminal::new(CrosstermBackend::new(stdout())).inspect_err(|_| give_back())?;
        // Both threads end with the program.
        let (sender, happenings) = mpsc::channel(16);
        let letting_through = Arc::<Mutex<()>>::default();
        let (signals, held) = (sender.clone(), letting_through.clone());
        std::thread::spawn(move || wait_for_signals(&suspended, &held, &signals));
        std::thread::spawn(move || {
            while event::read().is_ok_and(|event| sender.blocking_send(Happening::Typed(event)).is_ok()) {}
        });
        Ok(Terminal { screen, happenings, resumed, letting_through })
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.screen.draw(draw).map(|_| ())
    }

    /// Draws everything anew the next time: nothing is known of what is on the screen.
    pub fn clear(&mut self) -> io::Result<()> {
        // ratatui's own `clear` asks the terminal where its cursor is, and the thread that reads keys gets the answer.
        let size = self.screen.size()?;
        self.screen.resize(size.into())
    }

    /// The next thing that happens.
    pub async fn happening(&mut self) -> Happening {
        tokio::select! {
            Some(happening) = self.happenings.recv() => happening,
            Some(()) = self.resumed.recv() => Happening::Resumed,
            else => std::future::pending().await,
        }
    }

    /// Gives the terminal back, stops with the rest of the job, and takes the terminal over again when it is resumed.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        let held = self.letting_through.lock().unwrap_or_else(PoisonError::into_inner);
        stop_signal().thread_unblock()?;
        // Nobody else has it unblocked, so this is where we stop.
        let stopped = kill(Pid::from_raw(0), Signal::SIGTSTP);
        stop_signal().thread_block()?;
        drop(held);
        stopped?;
        self.resume()
    }

    /// Takes the terminal over again, whatever others have done to it.
    pub fn resume(&mut self) -> io::Result<()> {
        give_back();
        take()?;
        self.clear()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn stop_signal() -> SigSet {
    SigSet::from(Signal::SIGTSTP)
}

/// Reports SIGTSTP when it comes from outside.
fn wait_for_signals(suspended: &SignalFd, held: &Mutex<()>, happenings: &mpsc::Sender<Happening>) {
    loop {
        let mut fds = [PollFd::new(suspended.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(_) => return,
        }
        let suspend = {
            let _held = held.lock().unwrap_or_else(PoisonError::into_inner);
            matches!(suspended.read_signal(), Ok(Some(_)))
        };
        if suspend && happenings.blocking_send(Happening::Suspend).is_err() {
            return;
        }
    }
}

fn take() -> io::Result<()> {
    IS_OURS.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Once: what is printed afterwards is not ours to touch. An error is no news: the terminal is gone, or we are going.
fn give_back() {
    if IS_OURS.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// So that what a panic says is seen, and what is typed after it.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::pty::openpty;
    use nix::sys::termios::{LocalFlags, tcgetattr};
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// Set where the test below runs again, on a terminal of its own.
    const INSIDE: &str = "RALLYPOINT_TEST_PANICS";

    fn panic_on_the_terminal() -> ! {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let _terminal = Terminal::open().unwrap();
            // Not dropped by unwinding: the hook alone has to do it.
            std::thread::spawn(|| panic!("on purpose")).join().unwrap_err();
            std::process::exit(7);
        })
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        if std::env::var_os(INSIDE).is_some() {
            panic_on_the_terminal();
        }
        let pty = openpty(None, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let name = "cli::terminal::tests::a_panic_gives_the_terminal_back";
        let mut child = Command::new("setsid")
            .args(["--ctty", &std::env::current_exe().unwrap().to_string_lossy()])
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, "1")
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let flags = tcgetattr(&pty.slave).unwrap().local_flags;
        assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG), "{flags:?}");
        drop(pty.slave);
        let mut said = Vec::new();
        let _ = File::from(pty.master).read_to_end(&mut said); // its end is an error, as the other side is closed
        let said = String::from_utf8_lossy(&said);
        let (taken, given) = (said.find("\x1b[?1049h"), said.find("\x1b[?1049l"));
        assert!(taken.is_some() && taken < given && given < said.find("on purpose"), "{said:?}");
        assert_eq!(said.matches("\x1b[?1049l").count(), 1, "{said:?}");
    }
}

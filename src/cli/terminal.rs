//! The terminal of a full-screen command: raw mode, suspend and resume. Whenever the command ends, even by a panic, the
//! terminal is restored.

use std::io::{self, BufWriter, IsTerminal, Stdout, stdout};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use data_encoding::BASE64;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use ratatui::Frame;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::Print;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Whether the terminal has to be restored.
static IS_RAW: AtomicBool = AtomicBool::new(false);
/// Whether clicks and the wheel are reported.
static HAS_MOUSE: AtomicBool = AtomicBool::new(false);

/// Buttons and the wheel, without movements: those are many bytes over a slow connection.
const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";
/// A frame is sent with one write, so that a terminal never shows a part of it.
const FRAME_BYTES: usize = 64 << 10;

/// Whether stdout is a terminal that can be drawn on. The error says what such a terminal lacks.
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

pub enum TerminalEvent {
    Input(Event),
    /// SIGTSTP.
    Suspend,
    /// SIGCONT: another program may have used the terminal in between.
    Resumed,
}

pub struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    events: mpsc::Receiver<TerminalEvent>,
    resumed: tokio::signal::unix::Signal,
    /// Held while [`Terminal::suspend`] has SIGTSTP unblocked, so that the signal thread does not take that signal.
    suspending: Arc<Mutex<()>>,
}

impl Terminal {
    /// Enters raw mode. Call before any thread is started: SIGTSTP is blocked only in threads started afterwards, and any
    /// other would stop the process at once.
    pub fn open() -> io::Result<Terminal> {
        // Blocked rather than handled: when unblocked, the kernel's default action applies, which is to ignore it if there is
        // no shell to resume us.
        stop_signal().thread_block()?;
        let suspended = SignalFd::with_flags(&stop_signal(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let resumed = signal(SignalKind::from_raw(Signal::SIGCONT as i32))?;
        restore_on_panic();
        if let Err(error) = enter() {
            restore(); // it may have succeeded in part
            return Err(error);
        }
        let output = BufWriter::with_capacity(FRAME_BYTES, stdout());
        let screen = ratatui::Terminal::new(CrosstermBackend::new(output)).inspect_err(|_| restore())?;
        // Both threads end with the program.
        let (sender, events) = mpsc::channel(16);
        let suspending = Arc::<Mutex<()>>::default();
        let (signals, held) = (sender.clone(), suspending.clone());
        std::thread::spawn(move || wait_for_signals(&suspended, &held, &signals));
        std::thread::spawn(move || {
            while event::read().is_ok_and(|event| sender.blocking_send(TerminalEvent::Input(event)).is_ok()) {}
        });
        Ok(Terminal { screen, events, resumed, suspending })
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.screen.draw(draw).map(|_| ())
    }

    /// The next draw repaints the whole screen.
    pub fn clear(&mut self) -> io::Result<()> {
        // ratatui's own `clear` queries the cursor position, and the input thread would swallow the answer.
        let size = self.screen.size()?;
        self.screen.resize(size.into())
    }

    /// Whether clicks and the wheel are reported; if not, the terminal selects text.
    pub fn use_mouse(&mut self, on: bool) -> io::Result<()> {
        HAS_MOUSE.store(on, Ordering::SeqCst);
        execute!(stdout(), Print(if on { MOUSE_ON } else { MOUSE_OFF }))
    }

    /// Asks the terminal to put a text on the clipboard (OSC 52): that works over SSH, too.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(stdout(), Print(clipboard(text)))
    }

    pub async fn next_event(&mut self) -> TerminalEvent {
        tokio::select! {
            Some(event) = self.events.recv() => event,
            Some(()) = self.resumed.recv() => TerminalEvent::Resumed,
            else => std::future::pending().await,
        }
    }

    /// Restores the terminal, stops the whole job, and enters raw mode again when it is resumed.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore();
        let held = self.suspending.lock().unwrap_or_else(PoisonError::into_inner);
        stop_signal().thread_unblock()?;
        // No other thread has it unblocked, so the process stops here.
        let stopped = kill(Pid::from_raw(0), Signal::SIGTSTP);
        stop_signal().thread_block()?;
        drop(held);
        stopped?;
        self.resume()
    }

    /// Enters raw mode again, whatever state the terminal is in.
    pub fn resume(&mut self) -> io::Result<()> {
        restore();
        enter()?;
        self.clear()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn stop_signal() -> SigSet {
    SigSet::from(Signal::SIGTSTP)
}

/// Reports SIGTSTP sent by other processes.
fn wait_for_signals(suspended: &SignalFd, held: &Mutex<()>, events: &mpsc::Sender<TerminalEvent>) {
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
        if suspend && events.blocking_send(TerminalEvent::Suspend).is_err() {
            return;
        }
    }
}

fn enter() -> io::Result<()> {
    IS_RAW.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    let mouse = if HAS_MOUSE.load(Ordering::SeqCst) { MOUSE_ON } else { "" };
    execute!(stdout(), EnterAlternateScreen, Hide, Print(mouse))
}

/// The text is encoded, so that nothing in it can end the sequence.
fn clipboard(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", BASE64.encode(text.as_bytes()))
}

/// Restores the terminal, once. Errors are ignored: the terminal may be gone.
fn restore() {
    if IS_RAW.swap(false, Ordering::SeqCst) {
        let mouse = if HAS_MOUSE.load(Ordering::SeqCst) { MOUSE_OFF } else { "" };
        let _ = execute!(stdout(), Print(mouse), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Restores the terminal before a panic message is printed.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
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

    /// Set in the child process of the test below, which has its own terminal.
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
    fn nothing_in_a_text_ends_the_sequence() {
        assert_eq!(clipboard("203.0.113.5:1"), "\x1b]52;c;MjAzLjAuMTEzLjU6MQ==\x07");
        let evil = clipboard("\x07\x1b]0;owned\x07");
        assert_eq!(evil.matches(['\x1b', '\x07']).count(), 2, "{evil:?}");
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
        let _ = File::from(pty.master).read_to_end(&mut said); // ends with an error, because the other side is closed
        let said = String::from_utf8_lossy(&said);
        let (taken, given) = (said.find("\x1b[?1049h"), said.find("\x1b[?1049l"));
        assert!(taken.is_some() && taken < given && given < said.find("on purpose"), "{said:?}");
        assert_eq!(said.matches("\x1b[?1049l").count(), 1, "{said:?}");
    }
}

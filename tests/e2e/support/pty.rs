//! A pseudo-terminal, and the screen that a user would see on it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::support::*;

pub struct Pty {
    end: OwnedFd,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// All that the program has written.
    written: Arc<Mutex<Vec<u8>>>,
    /// The user's configuration.
    pub config: Folder,
}

/// A program on a terminal. It is killed when the test ends.
pub struct OnPty(pub Child);

impl Drop for OnPty {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl OnPty {
    pub fn end(&mut self) {
        let status = until("its end", || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Pty {
    pub fn new(rows: u16, columns: u16) -> Pty {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let keys = File::from(pty.master.try_clone().unwrap());
        let mut output = File::from(pty.master);
        let screen = vt100::Parser::new(cells(rows), cells(columns), 0);
        let screen = Arc::new(Mutex::new(screen));
        let shown = screen.clone();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let all = written.clone();
        // This thread ends with the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(size @ 1..) = output.read(&mut buffer) {
                all.lock().unwrap().extend(&buffer[..size]);
                shown.lock().unwrap().process(&buffer[..size]);
            }
        });
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let config = Folder::new(&format!("config-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        Pty { end: pty.slave, keys, screen, written, config }
    }

    /// Starts a program in its own session with this controlling terminal.
    pub fn run(&self, program: &str, arguments: &[&str], term: &str) -> OnPty {
        self.run_with(program, arguments, &[("TERM", term)])
    }

    /// The same with these environment variables.
    pub fn run_with(&self, program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> OnPty {
        let end = || Stdio::from(self.end.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.args(["--ctty", program]).args(arguments).env("TERM", "xterm-256color");
        command.env("XDG_CONFIG_HOME", self.config.path()).envs(variables.iter().copied());
        OnPty(command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap())
    }

    pub fn watch(&self, url: &str) -> OnPty {
        self.run(env!("CARGO_BIN_EXE_rallypoint"), &["watch", url, "--every", "1s"], "xterm-256color")
    }

    /// `rallypoint watch` with these arguments.
    pub fn watch_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> OnPty {
        let arguments = [&["watch", "--every", "1s"], arguments].concat();
        self.run_with(env!("CARGO_BIN_EXE_rallypoint"), &arguments, variables)
    }

    /// Whether the program has written these bytes.
    pub fn has_written(&self, bytes: &str) -> bool {
        self.written.lock().unwrap().windows(bytes.len()).any(|window| window == bytes.as_bytes())
    }

    /// The lines of the screen with this text.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(text)).map(String::from).collect()
    }

    /// Presses the left button of the mouse at a place, counted from 1.
    pub fn click(&mut self, column: usize, row: usize) {
        self.press(&format!("\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m"));
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size, as a terminal window does: the program gets SIGWINCH.
    pub fn resize(&self, rows: u16, columns: u16) {
        self.screen.lock().unwrap().set_size(cells(rows), cells(columns));
        self.set_size(rows, columns);
    }

    /// Makes the window tiny for a moment, so short that the program only hears that there is a new size, which is the old one.
    pub fn squeeze(&self, program: &OnPty) {
        let mut screen = self.screen.lock().unwrap();
        let (rows, columns) = screen.screen().size();
        screen.set_size(cells(1), cells(1));
        screen.set_size(rows, columns);
        kill(Pid::from_raw(program.0.id() as i32), Signal::SIGWINCH).unwrap();
    }

    /// Sets the size to zero, as on serial lines.
    pub fn forget_size(&self) {
        self.set_size(0, 0);
    }

    fn set_size(&self, rows: u16, columns: u16) {
        let size = ["rows", &rows.to_string(), "cols", &columns.to_string()];
        let status = Command::new("stty").args(size).stdin(self.end.try_clone().unwrap()).status().unwrap();
        assert!(status.success());
    }

    pub fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Whether anything on the screen is bold or coloured.
    pub fn is_styled(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        let (rows, columns) = screen.screen().size();
        let cells = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| screen.screen().cell(row, column));
        cells.any(|cell| cell.bold() || cell.fgcolor() != vt100::Color::Default)
    }

    /// Waits until the screen meets a condition.
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&str) -> bool) -> String {
        let mut seen = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                seen = self.text();
                is_so(&seen).then_some(())
            })
        }));
        assert!(found.is_ok(), "{what} is not on the screen:\n{}", self.text());
        seen
    }

    pub fn shows(&self, text: &str) -> String {
        self.until(&format!("{text:?}"), |screen| screen.contains(text))
    }

    /// Whether the program has taken over the terminal: alternate screen, no cursor, no echo, no line mode.
    pub fn is_taken_over(&self) -> bool {
        let flags = tcgetattr(&self.end).unwrap().local_flags;
        let screen = self.screen.lock().unwrap();
        !flags.intersects(LINE_MODE) && screen.screen().alternate_screen() && screen.screen().hide_cursor()
    }

    /// Whether keys are echoed and read line by line, as in a shell.
    pub fn is_in_line_mode(&self) -> bool {
        tcgetattr(&self.end).unwrap().local_flags.contains(LINE_MODE)
    }

    /// Whether the terminal is fully restored.
    pub fn is_given_back(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        self.is_in_line_mode() && !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
    }
}

const LINE_MODE: LocalFlags = LocalFlags::ICANON.union(LocalFlags::ECHO).union(LocalFlags::ISIG);

fn cells(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).unwrap()
}

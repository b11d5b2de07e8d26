//! `rallypoint watch` on a terminal: keys, window sizes, suspending and resuming.

use std::sync::atomic::Ordering;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::netpanzer::{Tank, list, say};
use crate::support::pty::Pty;
use crate::support::*;

fn web(server: &Server) -> String {
    format!("http://{}", server.address("web.listen"))
}

/// A master with this many servers, named "game 1" and so on.
fn master_of(count: u16) -> (Server, Game) {
    let server = Server::start(&[]);
    let game = Game::new(server.address("iceball.listen"));
    for number in 1..=count {
        game.announce(&announcement(format!("game {number}.").as_bytes(), number, number));
    }
    until("all", || (server.listed().len() == usize::from(count)).then_some(()));
    (server, game)
}

#[test]
fn the_screen_follows_changes_and_the_terminal_is_restored() {
    let (server, game) = master_of(1);
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&web(&server));
    let screen = pty.shows("game 1.");
    assert!(screen.contains("127.0.0.1:1 ") && screen.contains("mesa.vxl"), "the address and the map: {screen}");
    until("the terminal taken over", || pty.is_taken_over().then_some(()));
    game.announce(&announcement(b"Newcomer", 2, 9));
    pty.shows("Newcomer");
    pty.press("\r");
    pty.shows("iceball://127.0.0.1:2");
    pty.press("?");
    let screen = pty.shows("Keys");
    for key in ["Enter", "Ctrl-Z", "PgUp PgDn", "q, Ctrl-C", "hide empty", "search", "sort", "refresh", "Esc"] {
        assert!(screen.contains(key), "{key}: {screen}");
    }
    pty.press("?");
    pty.until("the list again", |screen| !screen.contains("Ctrl-Z"));
    pty.press("q");
    watch.end();
    until("the terminal given back", || pty.is_given_back().then_some(()));
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    let (server, _game) = master_of(1);
    for end in ["\x03", "SIGTERM", "SIGINT", "SIGHUP"] {
        let mut pty = Pty::new(24, 80);
        let mut watch = pty.watch(&web(&server));
        pty.shows("game 1.");
        match end.parse::<Signal>() {
            Ok(signal) => kill(Pid::from_raw(watch.0.id() as i32), signal).unwrap(),
            Err(_) => pty.press(end),
        }
        watch.end();
        until(&format!("the terminal given back after {end:?}"), || pty.is_given_back().then_some(()));
    }
    // Without a list, the error is shown after the screen is restored.
    let pty = Pty::new(24, 80);
    let mut watch = pty.watch("http://127.0.0.1:1");
    let status = until("its end", || watch.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(3));
    pty.shows("rallypoint: http://127.0.0.1:1: cannot connect to 127.0.0.1:1");
    assert!(pty.is_given_back());
}

#[test]
fn a_larger_window_is_filled_and_a_tiny_one_works() {
    let (server, _game) = master_of(12);
    let mut pty = Pty::new(9, 80);
    let mut watch = pty.watch(&web(&server));
    pty.shows("game 12.");
    pty.press("\x1b[F"); // End: the one with the fewest players
    pty.shows("game 1.");
    pty.resize(24, 80);
    let all = |screen: &str| (1..=12).all(|number| screen.contains(&format!("game {number}.")));
    pty.until("every server", all);
    for (rows, columns) in [(1, 1), (2, 7), (5, 3), (1, 200)] {
        pty.resize(rows, columns);
        pty.press("\x0c"); // after redrawing, it knows the new size
        pty.until("something", |screen| !screen.trim().is_empty());
    }
    pty.resize(24, 80);
    pty.until("every server again", all);
    pty.squeeze(&watch);
    pty.until("every server after a moment in a tiny window", all);
    pty.press("q");
    watch.end();
}

#[test]
fn silent_servers_do_not_delay_other_rows() {
    let server = Server::start(&[]);
    let (silent, tank) = (Tank::new(), Tank::new());
    for tank in [&silent, &tank] {
        say(&server, &format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", tank.port));
    }
    until("both", || {
        let listed = list(&server, "netpanzer");
        [&silent, &tank].iter().all(|tank| listed.contains(&tank.entry())).then_some(())
    });
    silent.alive.store(false, Ordering::Relaxed);
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&format!("netpanzer://{}", server.address("netpanzer.listen")));
    // One has answered while the other is still being queried.
    let screen = pty.until("a row with an answer and one without", |screen| {
        screen.contains("Tank <1>") && screen.contains("(querying)")
    });
    for tank in [&silent, &tank] {
        assert!(screen.contains(&format!("127.0.0.1:{} ", tank.port)), "{screen}");
    }
    assert!(screen.contains("querying 1"), "{screen}");
    let screen = pty.shows("(no answer)");
    assert!(screen.contains("silent"), "{screen}");
    pty.press("q");
    watch.end();
}

#[test]
fn an_error_can_be_read_in_full() {
    let (server, _game) = master_of(1);
    let pty = Pty::new(24, 44);
    let address = server.address("web.listen");
    let _watch = pty.watch(&web(&server));
    pty.shows("game 1.");
    drop(server);
    let whole = format!("The last refresh failed: cannot connect to {address}: Connection refused (os error 111)");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let screen = pty.until("the whole error", |screen| words(screen).contains(&whole));
    assert!(screen.contains("game 1."), "the last list stays: {screen}");
}

/// The only job of a shell.
fn job_of(shell: u32) -> Pid {
    let children = format!("/proc/{shell}/task/{shell}/children");
    let child = until("the job", || std::fs::read_to_string(&children).unwrap().trim().parse().ok());
    Pid::from_raw(child)
}

#[test]
fn a_job_that_is_suspended_and_resumed() {
    let (server, game) = master_of(1);
    let mut pty = Pty::new(24, 80);
    let shell = pty.run("bash", &["--norc", "--noprofile", "--noediting", "-i"], "xterm-256color");
    // The shell echoes what is typed, so its prompt must not match the texts that the test looks for.
    pty.press(&format!("PS1=ready; {} watch {} --every 1s\n", env!("CARGO_BIN_EXE_rallypoint"), web(&server)));
    pty.shows("game 1.");
    until("the terminal taken over", || pty.is_taken_over().then_some(()));
    let watch = job_of(shell.0.id());
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{watch}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().chars().next().unwrap()
    };
    // Typed, and as a signal.
    for round in 0..2 {
        if round == 0 {
            pty.press("\x1a")
        } else {
            kill(watch, Signal::SIGTSTP).unwrap()
        }
        until("it to stop", || (state() == 'T').then_some(()));
        pty.shows("Stopped");
        until("the terminal given back", || pty.is_given_back().then_some(()));
        let newcomer = format!("Newcomer {round}");
        game.announce(&announcement(newcomer.as_bytes(), 100 + round, 9));
        pty.press("clear; fg\n");
        pty.shows(&newcomer);
        pty.until("the whole screen", |screen| screen.contains("game 1.") && screen.contains("? help"));
        until("the terminal taken over again", || pty.is_taken_over().then_some(()));
    }
    // Stopped by SIGSTOP, with the terminal used by the shell meanwhile.
    kill(watch, Signal::SIGSTOP).unwrap();
    until("it to stop", || (state() == 'T').then_some(()));
    // The shell restores its own terminal settings first; keys that are typed earlier, such as the `q`, could reach it.
    until("the shell's terminal", || pty.is_in_line_mode().then_some(()));
    pty.press("stty sane; printf '\\033[?1049l\\033[?25h'; clear; fg\n");
    until("the terminal taken over again", || pty.is_taken_over().then_some(()));
    pty.until("the whole screen", |screen| screen.contains("game 1.") && screen.contains("? help"));
    pty.press("q");
    pty.shows("ready");
    until("the terminal given back", || pty.is_given_back().then_some(()));
    assert!(!std::path::Path::new(&format!("/proc/{watch}")).exists());
}

#[test]
fn without_a_shell_it_cannot_be_suspended() {
    let (server, game) = master_of(1);
    let mut pty = Pty::new(24, 80);
    let mut watch = pty.watch(&web(&server));
    pty.shows("game 1.");
    pty.press("\x1a");
    game.announce(&announcement(b"Newcomer", 2, 9));
    pty.shows("Newcomer");
    until("the terminal taken over", || pty.is_taken_over().then_some(()));
    pty.press("q");
    watch.end();
}

#[test]
fn a_terminal_without_cursor_control_gets_lines() {
    let (server, _game) = master_of(1);
    for (term, rows, why) in
        [("dumb", 24, "TERM=dumb has no cursor control"), ("", 24, "TERM is not set"), ("xterm", 0, "size is unknown")]
    {
        let pty = Pty::new(24, 80);
        if rows == 0 {
            pty.forget_size();
        }
        let mut watch = pty.run(env!("CARGO_BIN_EXE_rallypoint"), &["watch", &web(&server), "--every", "1s"], term);
        let screen = pty.shows("came    iceball://127.0.0.1:1 1/64 | mesa.vxl");
        assert!(screen.contains(why) && screen.contains("one line per change"), "{screen}");
        assert!(pty.is_given_back());
        kill(Pid::from_raw(watch.0.id() as i32), Signal::SIGTERM).unwrap();
        watch.end();
    }
}

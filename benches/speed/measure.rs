//! Measures a process through its clock and /proc. What was measured is reported through [`crate::report`].

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// Processor time of a process so far: all threads, also those that have ended, user and system.
pub fn cpu(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32)).unwrap();
    Duration::from(clock.now().unwrap())
}

/// What stopping and continuing a process costs it, once: each of its threads is woken, whether it has something to do or not.
pub fn stop_cost(pid: u32) -> Duration {
    const TIMES: u32 = 100;
    let spent = |is_stopped: bool| {
        let before = cpu(pid);
        for _ in 0..TIMES {
            for (signal, pause_ms) in [(Signal::SIGSTOP, 1), (Signal::SIGCONT, 2)] {
                kill(Pid::from_raw(pid as i32), is_stopped.then_some(signal)).unwrap(); // none only asks whether it is there
                std::thread::sleep(Duration::from_millis(pause_ms));
            }
        }
        cpu(pid) - before
    };
    let (stopped, idle) = (spent(true), spent(false));
    stopped.saturating_sub(idle) / TIMES
}

/// Datagrams that the system dropped because the buffer of a socket on this port was full.
pub fn dropped(port: u16) -> u64 {
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    let local = format!(":{port:04X}");
    let ours = sockets.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&local)));
    ours.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
}

/// The median, because a single disturbed round does not affect it.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}
